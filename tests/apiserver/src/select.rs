//! Label and field selectors.

use serde_json::Value;

use crate::error::ApiError;
use crate::json::{at, text};
use crate::kinds::Kind;

/// One requirement on a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Term {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) equal: bool,
}

/// Splits a field selector; a backslash quotes a comma, an equals sign or a backslash.
pub(crate) fn field_terms(selector: &str) -> Result<Vec<Term>, ApiError> {
    let mut terms = Vec::new();
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in selector.chars() {
        let last = parts.last_mut().expect("never empty");
        match c {
            _ if quoted => {
                last.push('\\');
                last.push(c);
                quoted = false;
            }
            '\\' => quoted = true,
            ',' => parts.push(String::new()),
            c => last.push(c),
        }
    }
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let (key, value, equal) = if let Some((k, v)) = part.split_once("!=") {
            (k, v, false)
        } else if let Some((k, v)) = part.split_once("==") {
            (k, v, true)
        } else if let Some((k, v)) = part.split_once('=') {
            (k, v, true)
        } else {
            return Err(ApiError::bad_request(format!(
                "invalid selector: '{selector}'; can't understand '{part}'"
            )));
        };
        terms.push(Term {
            key: key.to_owned(),
            value: value
                .replace("\\,", ",")
                .replace("\\=", "=")
                .replace("\\\\", "\\"),
            equal,
        });
    }
    Ok(terms)
}

#[derive(Clone, Debug, PartialEq)]
enum Label {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

/// Which objects a list or watch wants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    fields: Vec<Term>,
    labels: Vec<Label>,
}

impl Selector {
    pub(crate) fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let mut terms = field_terms(fields)?;
        for term in &mut terms {
            if kind.plural == "pods" && term.key == "spec.host" {
                term.key = "spec.nodeName".to_owned();
            }
            let common =
                term.key == "metadata.name" || term.key == "metadata.namespace" && kind.namespaced;
            if !common && !kind.fields.contains(&term.key.as_str()) {
                return Err(ApiError::bad_request(format!(
                    "field label not supported: {}",
                    term.key
                )));
            }
        }
        Ok(Self {
            fields: terms,
            labels: parse_labels(labels)?,
        })
    }

    pub(crate) fn matches(&self, kind: &Kind, object: &Value) -> bool {
        let field =
            |term: &Term| (field_value(kind, object, &term.key) == term.value) == term.equal;
        let label = |key: &str| {
            object["metadata"]["labels"]
                .get(key)
                .and_then(Value::as_str)
        };
        self.fields.iter().all(field)
            && self.labels.iter().all(|want| match want {
                Label::In(key, values) => label(key).is_some_and(|v| values.iter().any(|w| w == v)),
                Label::NotIn(key, values) => {
                    label(key).is_none_or(|v| values.iter().all(|w| w != v))
                }
                Label::Exists(key) => label(key).is_some(),
                Label::Absent(key) => label(key).is_none(),
            })
    }
}

/// A field as selectors compare it: the empty string when unset.
fn field_value(kind: &Kind, object: &Value, key: &str) -> String {
    let flag = |pointer: &str| at(object, pointer).as_bool().unwrap_or(false).to_string();
    match (kind.plural, key) {
        ("pods", "spec.hostNetwork") => flag("/spec/hostNetwork"),
        ("nodes", "spec.unschedulable") => flag("/spec/unschedulable"),
        ("pods", "status.podIP" | "status.podIPs") => {
            text(object, "/status/podIPs/0/ip").to_owned()
        }
        ("events", "source") => {
            let component = text(object, "/source/component");
            let other = text(object, "/reportingComponent");
            if component.is_empty() {
                other
            } else {
                component
            }
            .to_owned()
        }
        _ => text(object, &format!("/{}", key.replace('.', "/"))).to_owned(),
    }
}

fn parse_labels(selector: &str) -> Result<Vec<Label>, ApiError> {
    let mut out = Vec::new();
    let mut rest = selector.trim();
    let bad = || ApiError::bad_request(format!("unable to parse requirement: {selector:?}"));
    while !rest.is_empty() {
        // A comma within brackets belongs to the set.
        let close = rest.find(')').filter(|close| {
            rest.find('(')
                .is_some_and(|open| open < *close && rest[..open].find(',').is_none())
        });
        let end = match close {
            Some(close) => close + 1,
            None => rest.find(',').unwrap_or(rest.len()),
        };
        let (term, tail) = rest.split_at(end);
        rest = tail.strip_prefix(',').unwrap_or(tail).trim_start();
        let term = term.trim();
        if let Some((head, set)) = term.strip_suffix(')').and_then(|t| t.split_once('(')) {
            let values = set.split(',').map(|v| v.trim().to_owned()).collect();
            let mut words = head.split_whitespace();
            out.push(match (words.next(), words.next(), words.next()) {
                (Some(key), Some("in"), None) => Label::In(key.to_owned(), values),
                (Some(key), Some("notin"), None) => Label::NotIn(key.to_owned(), values),
                _ => return Err(bad()),
            });
        } else if let Some((key, value)) = term.split_once("!=") {
            out.push(Label::NotIn(
                key.trim().to_owned(),
                vec![value.trim().to_owned()],
            ));
        } else if let Some((key, value)) = term.split_once('=') {
            let value = value.strip_prefix('=').unwrap_or(value).trim();
            if value.contains('=') {
                let why = "unable to parse requirement: found '=', expected: identifier";
                return Err(ApiError::bad_request(why.to_owned()));
            }
            out.push(Label::In(key.trim().to_owned(), vec![value.to_owned()]));
        } else if let Some(key) = term.strip_prefix('!') {
            out.push(Label::Absent(key.trim().to_owned()));
        } else if term.is_empty() || term.contains(char::is_whitespace) {
            return Err(bad());
        } else {
            out.push(Label::Exists(term.to_owned()));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds;

    #[test]
    fn selectors() {
        let pods = kinds::plural("pods").expect("pods");
        let pod = json!({
            "metadata": {"name": "a", "namespace": "d", "labels": {"app": "web", "tier": "x"}},
            "spec": {"nodeName": "n1"}, "status": {"phase": "Running"},
        });
        for (labels, fields, want) in [
            ("", "", true),
            ("", "spec.nodeName=n1", true),
            ("", "spec.nodeName==n2", false),
            (
                "",
                "spec.nodeName=n1,status.phase!=Succeeded,status.phase!=Failed",
                true,
            ),
            ("", "status.phase!=Running", false),
            ("", "metadata.name=a,metadata.namespace=d", true),
            ("", "spec.hostNetwork=false", true),
            ("app=web", "", true),
            ("app==db", "", false),
            ("app in (web, db),tier", "", true),
            ("app notin (web)", "", false),
            ("!app", "", false),
            ("!zone,app!=db", "", true),
        ] {
            let selector = Selector::parse(pods, labels, fields).expect("parses");
            assert_eq!(selector.matches(pods, &pod), want, "{labels} {fields}");
        }
    }

    #[test]
    fn what_cannot_be_selected() {
        let pods = kinds::plural("pods").expect("pods");
        let nodes = kinds::plural("nodes").expect("nodes");
        let error = Selector::parse(pods, "", "spec.foo=1").expect_err("refused");
        assert_eq!(error.message, "field label not supported: spec.foo");
        assert_eq!(error.code, 400);
        assert!(Selector::parse(nodes, "", "metadata.namespace=x").is_err());
        assert!(Selector::parse(pods, "", "spec.nodeName").is_err());
        assert!(Selector::parse(pods, "a b", "").is_err());
    }
}
