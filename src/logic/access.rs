//! Access to the paths of the node's server: the question to the apiserver before anything is served (SRV-08, SRV-09),
//! and the time for which its answers count.
//!
//! Source: kubelet `pkg/kubelet/server/auth.go`; apiserver `pkg/authentication/token/cache`.

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};
use core::time::Duration;

use crate::api::MonoTime;

/// The verb that a request needs: that of its method, which may be empty. `path`: as for [`node_subresources`].
///
/// A path that acts in a pod needs `create` with any method, unlike upstream: a WebSocket begins as GET, and a user who
/// may only read must not run commands.
#[must_use]
pub fn required_verb(method: &str, path: &[String]) -> &'static str {
    match (path.first().map_or("", String::as_str), method) {
        ("exec" | "attach" | "run" | "portForward", _) | (_, "POST") => "create",
        (_, "GET") => "get",
        (_, "PUT") => "update",
        (_, "PATCH") => "patch",
        (_, "DELETE") => "delete",
        _ => "",
    }
}

/// The subresources of `nodes` of which any one suffices, in the order in which they are asked about.
///
/// `path`: decoded segments, as they are routed. Compared whole and by case.
#[must_use]
pub fn node_subresources(path: &[String]) -> &'static [&'static str] {
    match path.first().map_or("", String::as_str) {
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        "statusz" => &["statusz"],
        "flagz" => &["configz"],
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        _ => &["proxy"],
    }
}

/// Text of a refusal, for the user who asked.
#[must_use]
pub fn forbidden_message(user: &str, verb: &str, subresources: &[&str]) -> String {
    format!(
        "Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
        subresources.join(" ")
    )
}

/// Answers that count for a time: at most `most`; the one that ends first makes room for a new one.
#[derive(Clone, Debug)]
pub struct AnswerCache<K, V> {
    most: usize,
    kept: BTreeMap<K, (MonoTime, V)>,
}

impl<K: Ord + Clone, V: Clone> AnswerCache<K, V> {
    /// Makes an empty store for at most `most` answers.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            most,
            kept: BTreeMap::new(),
        }
    }

    /// The answer to a question, if it still counts.
    #[must_use]
    pub fn cached_answer(&self, question: &K, now: MonoTime) -> Option<V> {
        let (until, answer) = self.kept.get(question)?;
        (now < *until).then(|| answer.clone())
    }

    /// Keeps an answer for `lifetime`; for none at all if that is zero.
    pub fn keep_answer(&mut self, question: K, answer: V, lifetime: Duration, now: MonoTime) {
        if lifetime.is_zero() {
            self.kept.remove(&question);
            return;
        }
        if self.kept.len() >= self.most && !self.kept.contains_key(&question) {
            self.kept.retain(|_, (until, _)| now < *until);
            if self.kept.len() >= self.most {
                let first = self.kept.iter().min_by_key(|(_, (until, _))| *until);
                if let Some(first) = first.map(|(key, _)| key.clone()) {
                    self.kept.remove(&first);
                }
            }
        }
        self.kept.insert(question, (now + lifetime, answer));
    }
}

/// First pause between tries to ask the apiserver (SRV-06); each later one is half as long again.
const FIRST_PAUSE_MS: u64 = 500;
/// Tries in all to get an answer.
pub const REVIEW_TRIES: u32 = 5;

/// The pause after try number `tried` (from 1); `None` after the last one. `random`: 0 to 999, which makes it up to a fifth
/// longer.
#[must_use]
pub fn review_pause(tried: u32, random: u32) -> Option<Duration> {
    if tried >= REVIEW_TRIES {
        return None;
    }
    let grown = (1..tried).fold(FIRST_PAUSE_MS, |ms, _| ms * 3 / 2);
    Some(Duration::from_millis(
        grown + grown * u64::from(random.min(999)) / 5000,
    ))
}

/// Splits a list of sub-protocols (`Sec-WebSocket-Protocol`) into a bearer token that hides among them, still encoded, and the
/// others (SRV-07).
#[must_use]
pub fn split_token_protocol(list: &str) -> (Option<&str>, Vec<&str>) {
    const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
    let mut token = None;
    let mut others = Vec::new();
    for protocol in list.split(',').map(str::trim) {
        match protocol.strip_prefix(PREFIX) {
            Some(encoded) if token.is_none() => token = Some(encoded),
            Some(_) => {}
            None if protocol.is_empty() => {}
            None => others.push(protocol),
        }
    }
    (token, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('/')
            .filter(|s| !s.is_empty())
            .map(String::from)
            .collect()
    }

    #[test]
    fn what_is_asked() {
        // SRV-08 SRV-09
        for (text, asked) in [
            ("/stats/summary", &["stats"][..]),
            ("/stats", &["stats"]),
            ("/statsx", &["proxy"]),
            ("/Stats", &["proxy"]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/logs/syslog", &["log"]),
            ("/checkpoint/a/b/c", &["checkpoint"]),
            ("/statusz", &["statusz"]),
            ("/flagz", &["configz"]),
            ("/pods", &["pods", "proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/healthz/ping", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/exec/a/b/c", &["proxy"]),
            ("/attach/a/b/c", &["proxy"]),
            ("/run/a/b/c", &["proxy"]),
            ("/portForward/a/b", &["proxy"]),
            ("/containerLogs/a/b/c", &["proxy"]),
            ("/debug/pprof", &["proxy"]),
            ("/", &["proxy"]),
            ("/..", &["proxy"]),
        ] {
            assert_eq!(node_subresources(&path(text)), asked, "{text}");
        }
        for (method, asked) in [
            ("GET", "get"),
            ("POST", "create"),
            ("PUT", "update"),
            ("PATCH", "patch"),
            ("DELETE", "delete"),
            ("HEAD", ""),
            ("OPTIONS", ""),
            ("get", ""),
        ] {
            for text in [
                "/",
                "/containerLogs/a/b/c",
                "/Exec/a/b/c",
                "/execute",
                "/x/exec",
            ] {
                assert_eq!(required_verb(method, &path(text)), asked, "{method} {text}");
            }
            for text in [
                "/exec/a/b/c",
                "/exec/a/b/uid/c",
                "/exec",
                "/attach/a/b/c",
                "/run/a/b/c",
                "/portForward/a/b",
            ] {
                assert_eq!(
                    required_verb(method, &path(text)),
                    "create",
                    "{method} {text}"
                );
            }
        }
    }

    #[test]
    fn refusals_name_what_was_asked() {
        // SRV-10
        assert_eq!(
            forbidden_message("eve", "get", &["pods", "proxy"]),
            "Forbidden (user=eve, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
        );
    }

    #[test]
    fn answers_end_and_are_bounded() {
        // SRV-06 SRV-10
        let mut answers = AnswerCache::new(2);
        let s = Duration::from_secs;
        answers.keep_answer("a", 1, s(10), MonoTime(0));
        answers.keep_answer("b", 2, s(5), MonoTime(0));
        answers.keep_answer("never", 0, s(0), MonoTime(0));
        assert_eq!(answers.cached_answer(&"a", MonoTime(9_999)), Some(1));
        assert_eq!(answers.cached_answer(&"a", MonoTime(10_000)), None);
        assert_eq!(answers.cached_answer(&"never", MonoTime(0)), None);
        answers.keep_answer("c", 3, s(10), MonoTime(1_000));
        assert_eq!(answers.kept.len(), 2);
        assert_eq!(
            answers.cached_answer(&"b", MonoTime(1_000)),
            None,
            "it ended first"
        );
        assert_eq!(answers.cached_answer(&"a", MonoTime(1_000)), Some(1));
        answers.keep_answer("a", 4, s(1), MonoTime(1_000));
        assert_eq!(
            answers.cached_answer(&"c", MonoTime(1_000)),
            Some(3),
            "nothing made room"
        );
    }

    #[test]
    fn pauses_grow() {
        // SRV-06
        let ms = |tried, random| review_pause(tried, random).map(|p| p.as_millis());
        assert_eq!(ms(1, 0), Some(500));
        assert_eq!(ms(2, 0), Some(750));
        assert_eq!(ms(4, 0), Some(1687));
        assert!(ms(1, 999).is_some_and(|ms| (590..600).contains(&ms)));
        assert_eq!(ms(5, 0), None);
    }

    #[test]
    fn a_token_among_protocols() {
        // SRV-07
        let (token, others) = split_token_protocol(
            "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj,, x",
        );
        assert_eq!(token, Some("YWJj"));
        assert_eq!(others, ["v5.channel.k8s.io", "x"]);
        assert_eq!(split_token_protocol("v4").0, None);
    }
}
