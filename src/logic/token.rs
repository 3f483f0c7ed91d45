//! Tokens of service accounts: the request, the time of the next one, and the end of a token's use (TOK-01 to TOK-04).
//!
//! A token is read only for its times; the party it is shown to checks that it is genuine.

use alloc::string::String;
use core::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::fnv::fnv1a;
use super::pod_refs::TokenRef;
use crate::api::{
    Pod, WallTime,
    strict::{self, WrongValue},
};

/// Longest token, bytes.
pub const MAX_TOKEN_BYTES: usize = 64 * 1024;
/// Greatest age of a token: an older one is replaced, however long it may live.
const MAX_AGE_S: i64 = 24 * 3600;
/// Part of a token's life after which it is replaced, percent: a fifth is left for trying.
const USED_PERCENT: i64 = 80;
/// Most by which a replacement is early, seconds: not all tokens of a node are replaced in the same second.
const MAX_JITTER_S: u64 = 10;

/// Times of a token, seconds since 1970 by the apiserver's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLifetime {
    /// Start of the token's life.
    pub issued_s: i64,
    /// End of the time in which the token is to be used.
    pub expires_s: i64,
    /// End of the time in which the apiserver accepts the token. A cluster may give tokens a longer life than it tells,
    /// for programs that do not read them again.
    pub taken_until_s: i64,
}

/// A token as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    /// The token.
    pub token: String,
    /// Times of the token.
    pub times: TokenLifetime,
}

/// A new `TokenRequest` for a token of the pod (TOK-01).
#[must_use]
pub fn token_request(pod: &Pod, token: &TokenRef) -> Value {
    let audiences: &[&str] = match &*token.audience {
        "" => &[],
        one => &[one],
    };
    let mut request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audiences,
            "boundObjectRef": {
                "kind": "Pod",
                "apiVersion": "v1",
                "name": pod.metadata.name,
                "uid": pod.metadata.uid,
            },
        },
    });
    if let Some(seconds) = token.expiration_s {
        request["spec"]["expirationSeconds"] = seconds.into();
    }
    request
}

/// The service account whose tokens the pod gets.
#[must_use]
pub fn service_account_of(pod: &Pod) -> &str {
    match &*pod.spec.service_account_name {
        "" => "default",
        name => name,
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenRequestAnswer {
    spec: TokenRequestSpec,
    status: TokenRequestStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TokenRequestSpec {
    expiration_seconds: i64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TokenRequestStatus {
    token: String,
    expiration_timestamp: Option<WallTime>,
}

/// Fault of the apiserver's answer to a [`token_request`]. Never contains the token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRequestError {
    /// A value of the wrong kind.
    #[error(transparent)]
    Value(#[from] WrongValue),
    /// No token, or none that can be sent.
    #[error("the answer to a request for a token has none")]
    None,
    /// No time of expiry.
    #[error("the answer to a request for a token does not say when it expires")]
    NoEnd,
}

/// Reads the answer to a [`token_request`]. The server may have given the token another life than was asked for (TOK-03).
pub fn parse_issued_token(answer: &Value) -> Result<IssuedToken, TokenRequestError> {
    let answer: TokenRequestAnswer =
        strict::typed_from_value(answer).map_err(WrongValue::without_value)?;
    let token = answer.status.token;
    if token.is_empty() || token.len() > MAX_TOKEN_BYTES || !token.is_ascii() {
        return Err(TokenRequestError::None);
    }
    let Some(expires) = answer.status.expiration_timestamp else {
        return Err(TokenRequestError::NoEnd);
    };
    let expires_s = expires.unix_seconds();
    let taken_until_s =
        parse_token_times(token.as_bytes()).map_or(expires_s, |own| own.taken_until_s);
    Ok(IssuedToken {
        times: TokenLifetime {
            issued_s: expires_s.saturating_sub(answer.spec.expiration_seconds.max(0)),
            expires_s,
            taken_until_s: taken_until_s.max(expires_s),
        },
        token,
    })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenClaims {
    iat: i64,
    exp: i64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: PrivateClaims,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PrivateClaims {
    warnafter: Option<i64>,
}

/// Reads the times from a token; `None` if it is no JSON Web Token.
#[must_use]
pub fn parse_token_times(token: &[u8]) -> Option<TokenLifetime> {
    let payload = token.split(|b| *b == b'.').nth(1)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let claims: TokenClaims = strict::from_json(&payload).ok()?;
    (claims.iat > 0 && claims.exp > claims.iat).then(|| TokenLifetime {
        issued_s: claims.iat,
        expires_s: claims
            .kubernetes
            .warnafter
            .unwrap_or(claims.exp)
            .min(claims.exp),
        taken_until_s: claims.exp,
    })
}

/// Time after which a token that has just come is to be replaced; `uid` spreads the pods of a node.
#[must_use]
pub fn refresh_interval(times: TokenLifetime, uid: &str) -> Duration {
    let life_s = times.expires_s.saturating_sub(times.issued_s).max(0);
    let used_s = (life_s / 100 * USED_PERCENT + life_s % 100 * USED_PERCENT / 100).min(MAX_AGE_S);
    let jitter_s = fnv1a(uid.bytes()) % (MAX_JITTER_S + 1);
    let used_s = u64::try_from(used_s).unwrap_or(0);
    Duration::from_secs(used_s.saturating_sub(jitter_s))
}

/// Rest of the [`refresh_interval`] of a token that was found, by this machine's time of day.
#[must_use]
pub fn time_left_to_refresh(times: TokenLifetime, uid: &str, now: WallTime) -> Duration {
    let age_s = u64::try_from(now.unix_seconds().saturating_sub(times.issued_s)).unwrap_or(0);
    refresh_interval(times, uid).saturating_sub(Duration::from_secs(age_s))
}

/// Returns true if the apiserver still accepts a token: then it is used for want of a newer one (TOK-04).
#[must_use]
pub const fn is_still_accepted(times: TokenLifetime, now: WallTime) -> bool {
    now.unix_seconds() < times.taken_until_s
}

#[cfg(test)]
mod tests {

    use super::*;

    fn jwt(payload: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload))
    }

    const fn times_of(issued_s: i64, expires_s: i64, taken_until_s: i64) -> TokenLifetime {
        TokenLifetime {
            issued_s,
            expires_s,
            taken_until_s,
        }
    }

    #[test]
    fn requests() {
        // TOK-01
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}});
        let mut pod: Pod = serde_json::from_value(pod).expect("pod");
        let token = TokenRef {
            audience: String::new(),
            expiration_s: None,
        };
        let plain = token_request(&pod, &token);
        assert_eq!(plain["spec"]["audiences"], json!([]));
        assert_eq!(plain["spec"].get("expirationSeconds"), None);
        let token = TokenRef {
            audience: "vault".into(),
            expiration_s: Some(600),
        };
        let full = token_request(&pod, &token);
        assert_eq!(
            full["spec"],
            json!({"audiences": ["vault"], "expirationSeconds": 600,
                "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"}})
        );
        assert_eq!(service_account_of(&pod), "default");
        pod.spec.service_account_name = "robot".into();
        assert_eq!(service_account_of(&pod), "robot");
    }

    #[test]
    fn answers() {
        // TOK-03
        let long = jwt(r#"{"iat":1000,"exp":31537000,"kubernetes.io":{"warnafter":4607}}"#);
        let answer = |token: &str, seconds: i64| {
            json!({"spec": {"expirationSeconds": seconds},
                "status": {"token": token, "expirationTimestamp": "1970-01-01T01:16:47Z"}})
        };
        for (name, answer, want) in [
            (
                "its own word for the end",
                answer(&long, 3607),
                Ok(times_of(1000, 4607, 31_537_000)),
            ),
            (
                "opaque",
                answer("secret", 600),
                Ok(times_of(4007, 4607, 4607)),
            ),
            (
                "none",
                answer("", 600),
                Err("the answer to a request for a token has none"),
            ),
            (
                "no end",
                json!({"status": {"token": "t"}}),
                Err("the answer to a request for a token does not say when it expires"),
            ),
            (
                "wrong, and not told",
                json!({"status": {"token": 3}}),
                Err("status.token: is of the wrong type, expected a string in quotes"),
            ),
        ] {
            let found = parse_issued_token(&answer)
                .map(|i| i.times)
                .map_err(|e| format!("{e}"));
            assert_eq!(found, want.map_err(String::from), "{name}");
        }
    }

    #[test]
    fn what_a_token_says() {
        for (token, want) in [
            (jwt(r#"{"iat":10,"exp":20}"#), Some(times_of(10, 20, 20))),
            (
                jwt(r#"{"iat":10,"exp":99,"kubernetes.io":{"warnafter":20}}"#),
                Some(times_of(10, 20, 99)),
            ),
            (jwt(r#"{"iat":10,"exp":10}"#), None),
            (jwt("[]"), None),
            ("opaque".into(), None),
            ("a.%.c".into(), None),
        ] {
            assert_eq!(parse_token_times(token.as_bytes()), want, "{token}");
        }
    }

    #[test]
    fn when_to_ask_again() {
        // TOK-03
        let jitter = fnv1a("u".bytes()) % 11;
        for (life_s, want_s) in [
            (3607, 2885),
            (600, 480),
            (100_000, 80_000),
            (1_000_000, 86_400),
            (0, 0),
            (-5, 0),
        ] {
            let times = times_of(1000, 1000 + life_s, 1000 + life_s);
            let want = Duration::from_secs(u64::saturating_sub(want_s, jitter));
            assert_eq!(refresh_interval(times, "u"), want, "{life_s}");
        }
        let times = times_of(1000, 1600, 1600);
        for (now_s, left_s) in [(1000, 480), (0, 480), (1100, 380), (1480, 0), (9999, 0)] {
            let left = time_left_to_refresh(times, "u", WallTime::from_unix_seconds(now_s));
            assert_eq!(
                left,
                Duration::from_secs(u64::saturating_sub(left_s, jitter)),
                "{now_s}"
            );
        }
        // TOK-04
        let times = times_of(1000, 1600, 2000);
        assert!(
            is_still_accepted(times, WallTime::from_unix_seconds(1999))
                && !is_still_accepted(times, WallTime::from_unix_seconds(2000))
        );
    }
}
