//! Pods that a command names, by their names or their labels.

use std::io::Write as _;

use serde_json::Value;

use super::{AgentClient, CliError};
use crate::{logic::label_selector::LabelSelector, server::http::percent_encode};

/// Lists the pods of a namespace, as JSON.
pub(super) fn fetch_pods(client: &AgentClient, namespace: &str) -> Result<Vec<Value>, CliError> {
    client.fetch_items(&format!("/pods?namespace={}", percent_encode(namespace)))
}

/// Lists the pods of a namespace that a selector chooses. If there is none, it says so on standard error.
pub(super) fn fetch_selected_pods(
    client: &AgentClient,
    namespace: &str,
    selector: &LabelSelector,
) -> Result<Vec<Value>, CliError> {
    let mut pods = fetch_pods(client, namespace)?;
    pods.retain(|pod| selector.matches(pod));
    if pods.is_empty() {
        // If standard error is closed, nobody can be told.
        let _ = writeln!(
            std::io::stderr(),
            "No resources found in {namespace} namespace."
        );
    }
    Ok(pods)
}

pub(super) fn parse_selector(text: &str) -> Result<LabelSelector, CliError> {
    LabelSelector::parse(text).ok_or_else(|| {
        CliError::new(format!(
            "invalid selector {text:?}: expected KEY=VALUE, KEY!=VALUE, KEY in (VALUE,...), KEY or !KEY"
        ))
    })
}

pub(super) fn name_of(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or("")
}

/// Finds the pod of this name. A pod that takes the place of one that still ends counts before it.
pub(super) fn find_pod<'a>(pods: &'a [Value], name: &str) -> Option<&'a Value> {
    let is_ending = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_string();
    let named = pods.iter().filter(|pod| name_of(pod) == name);
    named.min_by_key(is_ending)
}

/// Makes the error of a pod that does not exist, in kubectl's words.
pub(super) fn pod_not_found(name: &str) -> CliError {
    CliError::from_server(404, &format!("pods \"{name}\" not found"))
}

/// Reads a word of a command for pods, as kubectl does: `pod` before names, or `pod/NAME`.
pub(super) fn add_pod_word(
    names: &mut Vec<String>,
    is_kind_known: &mut bool,
    word: String,
) -> Result<(), CliError> {
    let (kind, name) = match word.split_once('/') {
        Some((kind, name)) => (kind, Some(name)),
        None if *is_kind_known => ("pod", Some(&*word)),
        None => (&*word, None),
    };
    if !matches!(kind, "pod" | "pods" | "po") || name == Some("") {
        return Err(CliError::new(format!(
            "{word:?} is not understood: expected pod NAME or pod/NAME"
        )));
    }
    *is_kind_known = true;
    names.extend(name.map(str::to_owned));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_that_name_pods() {
        for (words, names) in [
            (&["pod", "a", "b"][..], Some(&["a", "b"][..])),
            (&["pod/a", "pods/b"], Some(&["a", "b"])),
            (&["po"], Some(&[])),
            (&["web"], None),
            (&["pod", "node/a"], None),
            (&["pod", "a", ""], None),
            (&["pod/"], None),
        ] {
            let (mut found, mut is_kind_known) = (Vec::new(), false);
            let read = words
                .iter()
                .try_for_each(|w| add_pod_word(&mut found, &mut is_kind_known, (*w).to_owned()));
            match names {
                Some(names) => assert!(read.is_ok() && found == names, "{words:?}: {found:?}"),
                None => assert!(read.is_err(), "{words:?}"),
            }
        }
    }

    #[test]
    fn a_successor_counts_first() {
        let pod = |uid: &str, end: Option<&str>| json!({"metadata": {"name": "a", "uid": uid, "deletionTimestamp": end}});
        let pods = [pod("old", Some("2026-01-01T00:00:00Z")), pod("new", None)];
        let uid = |pods| find_pod(pods, "a").map(|pod| &pod["metadata"]["uid"]);
        assert_eq!(uid(&pods), Some(&json!("new")));
        assert_eq!(uid(&pods[..1]), Some(&json!("old")));
        assert_eq!(find_pod(&pods, "b"), None);
    }
}
