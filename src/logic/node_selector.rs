//! Match of a pod's node selector, required node affinity and tolerations with a node (ADM-08, ADM-10).

use alloc::{collections::BTreeMap, string::String};

use crate::api::{
    Pod,
    node::Taint,
    pod::{NodeSelectorRequirement, NodeSelectorTerm, Toleration},
};

/// Returns true if `spec.nodeSelector` and the required terms of the node affinity match (ADM-08).
///
/// Terms are alternatives; the requirements of one term must all hold; an empty term matches nothing.
#[must_use]
pub fn fits_node(pod: &Pod, node_name: &str, labels: &BTreeMap<String, String>) -> bool {
    let selected = pod
        .spec
        .node_selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value));
    let required = pod
        .spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    selected
        && required
            .is_none_or(|selector| fits_terms(&selector.node_selector_terms, node_name, labels))
}

/// Returns true if one of the terms matches.
#[must_use]
pub fn fits_terms(
    terms: &[NodeSelectorTerm],
    node_name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    terms
        .iter()
        .any(|term| term_matches(term, node_name, labels))
}

fn term_matches(
    term: &NodeSelectorTerm,
    node_name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    let empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
    !empty
        && term
            .match_expressions
            .iter()
            .all(|r| requirement_holds(r, labels.get(&r.key).map(String::as_str)))
        && term
            .match_fields
            .iter()
            .all(|r| r.key == "metadata.name" && requirement_holds(r, Some(node_name)))
}

fn requirement_holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = value.is_some_and(|v| requirement.values.iter().any(|w| w == v));
    let compared = |holds: fn(i64, i64) -> bool| {
        let bound = match requirement.values.as_slice() {
            [only] => only.parse::<i64>().ok(),
            _ => None,
        };
        value
            .and_then(|v| v.parse::<i64>().ok())
            .zip(bound)
            .is_some_and(|(have, bound)| holds(have, bound))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|have, bound| have > bound),
        "Lt" => compared(|have, bound| have < bound),
        _ => false,
    }
}

/// Returns true if one of `tolerations` tolerates `taint`.
#[must_use]
pub fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|t| {
        let effect = t.effect.is_empty() || t.effect == taint.effect;
        let key = t.key.is_empty() || t.key == taint.key;
        effect
            && key
            && match t.operator.as_str() {
                "Exists" => true,
                "" | "Equal" => !t.key.is_empty() && t.value == taint.value,
                _ => false,
            }
    })
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::*;
    use crate::api::pod::{Affinity, NodeAffinity, NodeSelector};
    use crate::testing::pod_with;

    fn labels() -> BTreeMap<String, String> {
        [("zone", "a"), ("cpus", "4"), ("arch", "arm64")]
            .map(|(k, v)| (k.into(), v.into()))
            .into()
    }

    /// `key operator value,value`
    fn requirement(text: &str) -> NodeSelectorRequirement {
        let mut words = text.split(' ');
        let mut next = || words.next().unwrap_or("").to_owned();
        let (key, operator, values) = (next(), next(), next());
        NodeSelectorRequirement {
            key,
            operator,
            values: values
                .split(',')
                .filter(|v| !v.is_empty())
                .map(Into::into)
                .collect(),
        }
    }

    #[test]
    fn affinity() {
        // ADM-08
        for (name, terms, expected) in [
            ("in", vec![vec!["zone In a,b"]], true),
            ("not in the list", vec![vec!["zone In b"]], false),
            ("not in", vec![vec!["zone NotIn b"]], true),
            (
                "a missing label is not in anything",
                vec![vec!["x NotIn b"]],
                true,
            ),
            ("exists", vec![vec!["zone Exists"]], true),
            ("does not exist", vec![vec!["zone DoesNotExist"]], false),
            ("greater", vec![vec!["cpus Gt 2"]], true),
            ("less", vec![vec!["cpus Lt 4"]], false),
            ("not a number", vec![vec!["zone Gt 2"]], false),
            (
                "all of one term",
                vec![vec!["zone In a", "cpus Gt 8"]],
                false,
            ),
            (
                "any term",
                vec![vec!["zone In b"], vec!["arch In arm64"]],
                true,
            ),
            ("an empty term matches nothing", vec![vec![]], false),
            ("no terms match nothing", vec![], false),
            ("field", vec![vec!["metadata.name In pi"]], true),
            ("unknown operator", vec![vec!["zone Like a"]], false),
        ] {
            let mut pod = pod_with(&["a"]);
            let terms = terms
                .into_iter()
                .map(|term| {
                    let (fields, expressions) = term
                        .into_iter()
                        .map(requirement)
                        .partition(|r| r.key == "metadata.name");
                    NodeSelectorTerm {
                        match_expressions: expressions,
                        match_fields: fields,
                    }
                })
                .collect();
            pod.spec.affinity = Some(Affinity {
                node_affinity: Some(NodeAffinity {
                    required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                        node_selector_terms: terms,
                    }),
                }),
            });
            assert_eq!(fits_node(&pod, "pi", &labels()), expected, "{name}");
        }
        let mut pod = pod_with(&["a"]);
        assert!(fits_node(&pod, "pi", &labels()));
        pod.spec.node_selector = [("zone".into(), "a".into())].into();
        assert!(fits_node(&pod, "pi", &labels()));
        pod.spec.node_selector.insert("x".into(), "y".into());
        assert!(!fits_node(&pod, "pi", &labels()));
    }

    #[test]
    fn tolerations() {
        // ADM-10
        let taint = Taint {
            key: "k".into(),
            value: "v".into(),
            effect: "NoExecute".into(),
            time_added: None,
        };
        for (name, key, operator, value, effect, expected) in [
            ("equal", "k", "Equal", "v", "NoExecute", true),
            ("operator defaults to Equal", "k", "", "v", "", true),
            ("other value", "k", "Equal", "w", "", false),
            ("exists", "k", "Exists", "", "NoExecute", true),
            ("everything", "", "Exists", "", "", true),
            ("other key", "x", "Exists", "", "", false),
            ("other effect", "k", "Exists", "", "NoSchedule", false),
            ("no key needs Exists", "", "Equal", "v", "", false),
        ] {
            let toleration = Toleration {
                key: key.into(),
                operator: operator.into(),
                value: value.into(),
                effect: effect.into(),
                toleration_seconds: None,
            };
            assert_eq!(tolerates(&[toleration], &taint), expected, "{name}");
        }
        assert!(!tolerates(&[], &taint));
    }
}
