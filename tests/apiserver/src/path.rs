//! What a request's URL names.
//!
//! Source: apiserver `pkg/endpoints/request/requestinfo.go`.

use crate::kinds::{self, Kind};

/// Query parameters, decoded, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        Self(
            text.split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key, true), decode(value, true))
                })
                .collect(),
        )
    }

    /// The first value of a parameter, or the empty string.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0
            .iter()
            .find(|(k, _)| k == key)
            .map_or("", |(_, v)| v.as_str())
    }

    /// All values of a parameter.
    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let pairs = self.0.iter().filter(move |(k, _)| k == key);
        pairs.map(|(_, v)| v.as_str())
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    /// A boolean as Go's conversion reads it: `0`, `false` and nothing are false, all else is true.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.0
            .iter()
            .any(|(k, v)| k == key && !matches!(v.as_str(), "0" | "false" | "False" | "FALSE"))
    }
}

/// Percent decoding; `plus` also makes spaces of plus signs.
pub(crate) fn decode(text: &str, plus: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes
            .get(at + 1..at + 3)
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
                continue;
            }
            (b'+', _) if plus => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A request, as the authorizer sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info {
    /// False: `path` alone counts.
    pub(crate) is_resource: bool,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for paths the HTTP method.
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) ns: String,
    pub(crate) name: String,
    pub(crate) sub: String,
    pub(crate) path: String,
    /// `k=v` requirements of the field selector.
    pub(crate) field_equals: Vec<(String, String)>,
}

impl Info {
    /// The resource, when this server has it.
    pub(crate) fn kind(&self) -> Option<&'static Kind> {
        kinds::find(&self.group, &self.version, &self.plural)
    }

    /// Reads method, path (without the query) and query.
    pub(crate) fn parse(method: &str, path: &str, query: &Query) -> Self {
        let mut info = Self {
            path: path.to_owned(),
            verb: method.to_ascii_lowercase(),
            ..Self::default()
        };
        let parts: Vec<String> = path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(|part| decode(part, false))
            .collect();
        let mut parts = parts.as_slice();
        match parts {
            [api, version, rest @ ..] if api == "api" && !rest.is_empty() => {
                info.version.clone_from(version);
                parts = rest;
            }
            [apis, group, version, rest @ ..] if apis == "apis" && !rest.is_empty() => {
                info.group.clone_from(group);
                info.version.clone_from(version);
                parts = rest;
            }
            _ => return info,
        }
        info.is_resource = true;
        if let [namespaces, ns, rest @ ..] = parts
            && namespaces == "namespaces"
        {
            info.ns.clone_from(ns);
            if !rest.is_empty() && rest[0] != "status" && rest[0] != "finalize" {
                parts = rest;
            }
        }
        info.plural.clone_from(&parts[0]);
        if let Some(name) = parts.get(1) {
            info.name.clone_from(name);
        }
        info.sub = parts.get(2..).unwrap_or_default().join("/");
        info.verb = match method {
            "GET" | "HEAD" if info.name.is_empty() && query.flag("watch") => "watch",
            "GET" | "HEAD" if info.name.is_empty() => "list",
            "GET" | "HEAD" => "get",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if info.name.is_empty() => "deletecollection",
            "DELETE" => "delete",
            _ => "",
        }
        .to_owned();
        if matches!(info.verb.as_str(), "list" | "watch" | "deletecollection") {
            if let Ok(terms) = crate::select::field_terms(query.get("fieldSelector")) {
                info.field_equals = terms
                    .into_iter()
                    .filter(|term| term.equal)
                    .map(|term| (term.key, term.value))
                    .collect();
            }
            if info.name.is_empty()
                && let Some((_, name)) =
                    info.field_equals.iter().find(|(k, _)| k == "metadata.name")
            {
                info.name.clone_from(name);
            }
        }
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (method, url, want) in [
            ("GET", "/api/v1/pods", "list |v1|pods|||"),
            ("GET", "/api/v1/pods?watch=1", "watch |v1|pods|||"),
            ("GET", "/api/v1/namespaces/a/pods/b", "get |v1|pods|a|b|"),
            (
                "PATCH",
                "/api/v1/namespaces/a/pods/b/status",
                "patch |v1|pods|a|b|status",
            ),
            ("GET", "/api/v1/namespaces", "list |v1|namespaces|||"),
            (
                "DELETE",
                "/api/v1/namespaces/a",
                "delete |v1|namespaces|a|a|",
            ),
            (
                "PUT",
                "/api/v1/namespaces/a/finalize",
                "update |v1|namespaces|a|a|finalize",
            ),
            (
                "PUT",
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
                "update coordination.k8s.io|v1|leases|kube-node-lease|n|",
            ),
            (
                "GET",
                "/api/v1/nodes?fieldSelector=metadata.name%3Dn1",
                "list |v1|nodes||n1|",
            ),
        ] {
            let (path, query) = url.split_once('?').unwrap_or((url, ""));
            let i = Info::parse(method, path, &Query::parse(query));
            let got = format!(
                "{} {}|{}|{}|{}|{}|{}",
                i.verb, i.group, i.version, i.plural, i.ns, i.name, i.sub
            );
            assert_eq!(got, want, "{url}");
        }
        assert!(!Info::parse("GET", "/healthz", &Query::default()).is_resource);
        assert!(!Info::parse("GET", "/api/v1", &Query::default()).is_resource);
    }
}
