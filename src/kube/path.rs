//! Names in URLs: what comes from objects may not lead anywhere else.

use super::error::KubeError;
use crate::net::url::encode_percent;

/// Longest name of an object.
const MAX_NAME_BYTES: usize = 253;

/// Encodes a name as one step of a path. Errors: it is not a name.
pub(crate) fn encode_segment(name: &str) -> Result<String, KubeError> {
    let is_name = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && !matches!(name, "." | "..")
        && !name.contains(['/', '%']);
    if !is_name {
        let cut: String = name.chars().take(80).collect();
        return Err(KubeError::Local(format!(
            "{cut:?} is not the name of an object"
        )));
    }
    Ok(encode_query(name))
}

/// Character that stands before a further parameter of a path.
pub(super) fn query_separator(path: &str) -> char {
    match path.contains('?') {
        true => '&',
        false => '?',
    }
}

/// Encodes a text as a value of a query.
pub(crate) fn encode_query(text: &str) -> String {
    encode_percent(text, b"-._~")
}

/// Makes the selector of the pods that this node may list (AUTHZ-03), without those that have run to their end.
pub(super) fn pod_selector(node: &str) -> Result<String, KubeError> {
    let node = encode_segment(node)?;
    Ok(format!(
        "fieldSelector=spec.nodeName%3D{node}%2Cstatus.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"
    ))
}

/// Makes the selector of all pods of this node.
pub(super) fn node_selector(node: &str) -> Result<String, KubeError> {
    Ok(format!(
        "fieldSelector=spec.nodeName%3D{}",
        encode_segment(node)?
    ))
}

/// The pod of this node that has a name.
pub(super) fn one_selector(node: &str, name: &str) -> Result<String, KubeError> {
    let name = encode_segment(name)?;
    Ok(format!("{}%2Cmetadata.name%3D{name}", node_selector(node)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, want) in [
            ("web-0", Some("web-0")),
            ("system:node:a", Some("system%3Anode%3Aa")),
            ("a b?c=d#e", Some("a%20b%3Fc%3Dd%23e")),
            ("", None),
            ("..", None),
            ("a/b", None),
            ("a%2fb", None),
        ] {
            assert_eq!(encode_segment(name).ok().as_deref(), want, "{name}");
        }
        assert!(encode_segment(&"a".repeat(254)).is_err());
        assert_eq!(encode_query("a+/=&"), "a%2B%2F%3D%26");
    }
}
