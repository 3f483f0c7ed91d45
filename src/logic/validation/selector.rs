//! Required node affinity, which the node itself checks when it admits a pod.

use super::field::{FieldErrors, dns_subdomain, label_value, qualified_name};
use crate::api::pod::{NodeSelector, NodeSelectorRequirement};

const OPERATORS: [&str; 6] = ["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"];
/// The only field of a Node that can be selected by.
const NODE_NAME: &str = "metadata.name";

/// Checks the terms of a node selector.
pub(super) fn validate_node_selector(selector: &NodeSelector, errors: &mut FieldErrors) {
    let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    if selector.node_selector_terms.is_empty() {
        errors.required(path, "must have at least one node selector term");
    }
    for (n, term) in selector.node_selector_terms.iter().enumerate() {
        for (m, one) in term.match_expressions.iter().enumerate() {
            let path = format!("{path}[{n}].matchExpressions[{m}]");
            validate_expression(one, &path, errors);
        }
        for (m, one) in term.match_fields.iter().enumerate() {
            let path = format!("{path}[{n}].matchFields[{m}]");
            validate_field_requirement(one, &path, errors);
        }
    }
}

fn validate_expression(one: &NodeSelectorRequirement, path: &str, errors: &mut FieldErrors) {
    errors.check_name(&format!("{path}.key"), &one.key, qualified_name);
    errors.require_one_of(&format!("{path}.operator"), &one.operator, &OPERATORS);
    let values = format!("{path}.values");
    match (one.operator.as_str(), one.values.len()) {
        ("In" | "NotIn", 0) => {
            errors.required(&values, "must be set when `operator` is 'In' or 'NotIn'");
        }
        ("Exists" | "DoesNotExist", 1..) => errors.forbidden(
            &values,
            "may not be set when `operator` is 'Exists' or 'DoesNotExist'",
        ),
        ("Gt" | "Lt", 0 | 2..) => errors.required(
            &values,
            "must be a single value when `operator` is 'Gt' or 'Lt'",
        ),
        _ => {}
    }
    for (n, value) in one.values.iter().enumerate() {
        if let Some(detail) = label_value(value) {
            errors.invalid(&format!("{values}[{n}]"), value, detail);
        }
    }
}

fn validate_field_requirement(one: &NodeSelectorRequirement, path: &str, errors: &mut FieldErrors) {
    errors.require_one_of(&format!("{path}.key"), &one.key, &[NODE_NAME]);
    errors.require_one_of(&format!("{path}.operator"), &one.operator, &["In", "NotIn"]);
    let values = format!("{path}.values");
    let [name] = one.values.as_slice() else {
        return errors.required(&values, "must be the name of one node");
    };
    errors.check_name(&format!("{values}[0]"), name, dns_subdomain);
}
