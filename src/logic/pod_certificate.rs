//! Certificates of pods: the request for one, the verdict on it, and the time of the next one (PCT-01 to PCT-04).
//!
//! ```text
//! no pair ──request──▶ wait ──issued──▶ fresh ──time to refresh──▶ wait, the old pair stays
//!    ▲                  │ denied, failed: for good
//!    └─────the apiserver does not have the request any more
//! ```

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::fnv::fnv1a;
use super::token::service_account_of;
use crate::api::certificates::KeyType;
use crate::api::pod::PodCertificateProjection;
use crate::api::{MonoTime, Pod, PodError, WallTime};

/// Longest chain of certificates, bytes: as long as the API takes one.
pub const MAX_CHAIN_BYTES: usize = 100 << 10;
/// Longest key and chain in one file, bytes.
pub const MAX_BUNDLE_BYTES: u64 = (MAX_CHAIN_BYTES + (8 << 10)) as u64;
/// Most certificates of one pod: the agent holds those that are not in their volume yet.
pub const MAX_POD_CERTIFICATES: usize = 16;
/// Age from which a request that the apiserver does not have counts as removed: one that was just made may not be seen yet.
const GIVE_UP: Duration = Duration::from_secs(600);
/// Shortest and longest pause between two looks at a request; between them, half of its age.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(60);
/// First pause between looks while bytes cost money.
const METERED_FIRST_LOOK: Duration = Duration::from_secs(5);
const METERED_LAST_LOOK: Duration = Duration::from_secs(600);
/// Pause after the first request that failed; each further one in a row doubles it, up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(10);
const LAST_RETRY: Duration = Duration::from_secs(600);
/// Longest such pause if the apiserver did not answer: it may be back soon.
const LAST_SILENT_RETRY: Duration = Duration::from_secs(60);
/// Failures that a silence counts for at most: it says nothing of what the apiserver will answer.
const MAX_SILENT_FAILURES: u32 = 3;
/// Most by which a refresh is late, seconds: not all certificates of a cluster are refreshed in the same second.
const MAX_JITTER_S: u64 = 300;
/// Time after that of the refresh at which it is overdue, seconds.
const OVERDUE_S: i64 = 600;

/// Key and certificate of a pod, both PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificatePair {
    /// PKCS#8
    pub key: String,
    /// The pod's certificate first.
    pub chain: String,
}

impl CertificatePair {
    /// Both in one text.
    #[must_use]
    pub fn bundle(&self) -> String {
        format!("{}{}", self.key, self.chain)
    }

    /// Splits a [`CertificatePair::bundle`].
    #[must_use]
    pub fn from_bundle(text: &str) -> Option<Self> {
        let (key, chain) = text.split_at(text.find("-----BEGIN CERTIFICATE-----")?);
        Some(Self {
            key: key.into(),
            chain: chain.into(),
        })
    }
}

/// Reads the type of key that a source asks for. Errors: this node cannot make one.
pub fn key_type(source: &PodCertificateProjection) -> Result<KeyType, PodError> {
    match &*source.key_type {
        "ECDSAP256" => Ok(KeyType::EcdsaP256),
        "ECDSAP384" => Ok(KeyType::EcdsaP384),
        "ED25519" => Ok(KeyType::Ed25519),
        other => Err(PodError::Spec(format!(
            "podCertificate: this node cannot make keys of type {other:?}, only ECDSAP256, ECDSAP384 and ED25519"
        ))),
    }
}

/// The error of each further certificate of a pod.
#[must_use]
pub fn many_error() -> PodError {
    PodError::Spec(format!(
        "podCertificate: the pod asks for more than {MAX_POD_CERTIFICATES} certificates"
    ))
}

/// Proof that the asker has the key.
#[derive(Clone, Copy, Debug)]
pub enum KeyProof<'a> {
    /// A request in the form of PKCS#10, DER, without any name.
    Request(&'a [u8]),
    /// The public key, DER, and its signature of the pod's UID: as servers before 1.36 want it.
    Signature {
        /// `SubjectPublicKeyInfo`
        public_key: &'a [u8],
        /// Signature
        signature: &'a [u8],
    },
}

/// Identities that the spec of a request names beside the pod.
#[derive(Clone, Copy, Debug)]
pub struct RequestParties<'a> {
    /// UID of the pod's service account.
    pub account_uid: &'a str,
    /// Name of the node.
    pub node: &'a str,
    /// UID of the node.
    pub node_uid: &'a str,
}

/// Makes a `PodCertificateRequest` (PCT-01, PCT-02).
#[must_use]
pub fn certificate_request(
    pod: &Pod,
    source: &PodCertificateProjection,
    version: &str,
    parties: RequestParties<'_>,
    proof: KeyProof<'_>,
) -> Value {
    let meta = &pod.metadata;
    let mut request = json!({
        "apiVersion": format!("certificates.k8s.io/{version}"),
        "kind": "PodCertificateRequest",
        "metadata": {
            "generateName": "req-",
            "namespace": meta.namespace,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}],
        },
        "spec": {
            "signerName": source.signer_name,
            "podName": meta.name,
            "podUID": meta.uid,
            "serviceAccountName": service_account_of(pod),
            "serviceAccountUID": parties.account_uid,
            "nodeName": parties.node,
            "nodeUID": parties.node_uid,
        },
    });
    let spec = &mut request["spec"];
    if let Some(seconds) = source.max_expiration_seconds {
        spec["maxExpirationSeconds"] = seconds.into();
    }
    if !source.user_annotations.is_empty() {
        spec["unverifiedUserAnnotations"] = json!(source.user_annotations);
    }
    match proof {
        KeyProof::Request(der) => spec["stubPKCS10Request"] = STANDARD.encode(der).into(),
        KeyProof::Signature {
            public_key,
            signature,
        } => {
            spec["pkixPublicKey"] = STANDARD.encode(public_key).into();
            spec["proofOfPossession"] = STANDARD.encode(signature).into();
        }
    }
    request
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestVerdict {
    /// No answer yet.
    Wait,
    /// A certificate.
    Issued {
        /// PEM, as it came.
        chain: String,
        /// Time to ask for the next one, seconds since 1970.
        begin_refresh_s: i64,
        /// End of its validity, seconds since 1970.
        not_after_s: i64,
    },
    /// The signer gives none, for good.
    Refused(SignerRefusal),
}

/// Refusal of a signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerRefusal {
    /// `Denied` or `Failed`: the reason of the event.
    pub kind: &'static str,
    /// Signer's reason and message.
    pub why: String,
}

/// Reads what became of a request. Errors: it is issued, and says not what or for how long.
pub fn judge_request(request: &Value) -> Result<RequestVerdict, PodError> {
    let status = &request["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    for condition in conditions {
        let kind = match condition["type"].as_str() {
            Some("Denied") => "Denied",
            Some("Failed") => "Failed",
            Some("Issued") => return read_issued(status),
            _ => continue,
        };
        let text = |name: &str| condition[name].as_str().unwrap_or("");
        let why = format!("reason={:?} message={:?}", text("reason"), text("message"));
        return Ok(RequestVerdict::Refused(SignerRefusal { kind, why }));
    }
    Ok(RequestVerdict::Wait)
}

fn read_issued(status: &Value) -> Result<RequestVerdict, PodError> {
    let seconds = |name: &str| {
        let time = WallTime::parse(status[name].as_str().unwrap_or(""));
        time.map(WallTime::unix_seconds).ok_or_else(|| {
            PodError::Object(format!("the issued PodCertificateRequest has no {name}"))
        })
    };
    let chain = status["certificateChain"].as_str().unwrap_or("");
    if chain.is_empty() || chain.len() > MAX_CHAIN_BYTES {
        let why = "the issued PodCertificateRequest has no certificateChain";
        return Err(PodError::Object(why.into()));
    }
    Ok(RequestVerdict::Issued {
        chain: chain.into(),
        begin_refresh_s: seconds("beginRefreshAt")?,
        not_after_s: seconds("notAfter")?,
    })
}

/// Times of the pair in use, seconds since 1970 by the apiserver's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairTimes {
    /// Time to ask for the next pair.
    refresh_s: i64,
    /// Time after which the refresh is overdue.
    overdue_s: i64,
    /// End of its validity.
    not_after_s: i64,
}

impl PairTimes {
    /// Times of a pair that was issued; `spread`: a number of the pair's own.
    #[must_use]
    pub const fn issued(begin_refresh_s: i64, not_after_s: i64, spread: u64) -> Self {
        let refresh_s = begin_refresh_s.saturating_add((spread % MAX_JITTER_S).cast_signed());
        Self {
            refresh_s,
            overdue_s: refresh_s.saturating_add(OVERDUE_S),
            not_after_s,
        }
    }

    /// Times of a pair that an agent before this one has left (PCT-05). The signer's advice is not known any more: two
    /// thirds of the life are the advice of most. It is not overdue before this agent has had its time to try. `None`: it
    /// is not valid now.
    #[must_use]
    pub fn found(not_before_s: i64, not_after_s: i64, spread: u64, now_s: i64) -> Option<Self> {
        let life_s = not_after_s.saturating_sub(not_before_s);
        let begin_s = not_before_s.saturating_add(life_s / 3 * 2);
        let times = Self::issued(begin_s, not_after_s, spread);
        (now_s < not_after_s).then(|| Self {
            overdue_s: times.overdue_s.max(now_s.saturating_add(OVERDUE_S)),
            ..times
        })
    }
}

/// Number that spreads the refreshes of a pod's certificates.
#[must_use]
pub fn spread_number(uid: &str, volume: &str, source: usize) -> u64 {
    let text = uid.bytes().chain(volume.bytes());
    fnv1a(text.chain(source.to_le_bytes()))
}

/// Next step for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateStep {
    /// The pair in use is good, or no other will come.
    Keep,
    /// Ask for a pair.
    Request,
    /// Look what became of the request.
    Look,
    /// Time of the next step: until then it is too early for another look, or for another request after one that failed.
    Wait(MonoTime),
}

/// A request that was made.
#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    since: MonoTime,
    next_look: MonoTime,
}

/// Pause after a look at a request of that age.
fn look_pause(age: Duration, is_metered: bool) -> Duration {
    let (first, last) = match is_metered {
        true => (METERED_FIRST_LOOK, METERED_LAST_LOOK),
        false => (FIRST_LOOK, LAST_LOOK),
    };
    (age / 2).clamp(first, last)
}

/// Pause after requests that failed, `failures` in a row.
fn retry_pause(failures: u32, is_silent: bool) -> Duration {
    let longest = match is_silent {
        true => LAST_SILENT_RETRY,
        false => LAST_RETRY,
    };
    let doubled = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
    doubled.min(longest)
}

/// State of one certificate of a pod.
#[derive(Clone, Debug, Default)]
pub struct CertificateRecord {
    /// Times of the pair in use.
    pub pair: Option<PairTimes>,
    /// Request under way.
    request: Option<OpenRequest>,
    /// Requests that failed in a row.
    failures: u32,
    /// No request before then.
    not_before: MonoTime,
    /// Error of the last request or look; `None` if it went well.
    failure: Option<PodError>,
    refusal: Option<SignerRefusal>,
    is_overdue_told: bool,
    is_end_told: bool,
}

impl CertificateRecord {
    /// Decides the next step. `now_s`: seconds since 1970 by the apiserver's clock.
    #[must_use]
    pub fn next_step(&self, now_s: i64, now: MonoTime) -> CertificateStep {
        let is_fresh = self.pair.is_some_and(|pair| now_s < pair.refresh_s);
        match self.request {
            _ if self.refusal.is_some() => CertificateStep::Keep,
            Some(request) if now < request.next_look => CertificateStep::Wait(request.next_look),
            Some(_) => CertificateStep::Look,
            None if is_fresh => CertificateStep::Keep,
            None if now < self.not_before => CertificateStep::Wait(self.not_before),
            None => CertificateStep::Request,
        }
    }

    /// Notes a request that was made.
    pub fn record_request(&mut self, is_metered: bool, now: MonoTime) {
        (self.failures, self.failure) = (0, None);
        self.request = Some(OpenRequest {
            since: now,
            next_look: now + look_pause(Duration::ZERO, is_metered),
        });
    }

    /// Notes that a request could not be made. `is_silent`: the apiserver did not answer.
    pub fn record_failure(&mut self, why: PodError, is_silent: bool, now: MonoTime) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + retry_pause(self.failures, is_silent);
        if is_silent {
            self.failures = self.failures.min(MAX_SILENT_FAILURES);
        }
        self.failure = Some(why);
    }

    /// Notes a look that found no answer, or that failed.
    pub fn record_look(&mut self, failure: Option<PodError>, is_metered: bool, now: MonoTime) {
        if let Some(request) = &mut self.request {
            let pause = look_pause(now - request.since, is_metered);
            // One that failed may have missed the answer, which a cluster does not keep for long.
            let longest = failure.as_ref().map_or(pause, |_| LAST_SILENT_RETRY);
            request.next_look = now + pause.min(longest);
        }
        self.failure = failure;
    }

    /// Notes that the apiserver does not have the request. Only this ends one: a slow signer may answer late.
    pub fn record_absence(&mut self, is_metered: bool, now: MonoTime) {
        self.record_look(None, is_metered, now);
        self.request = self.request.filter(|request| now - request.since < GIVE_UP);
    }

    /// Error of the last request or look, if it failed.
    #[must_use]
    pub const fn failure(&self) -> Option<&PodError> {
        self.failure.as_ref()
    }

    /// Notes a pair that was issued.
    pub fn record_pair(&mut self, times: PairTimes) {
        *self = Self {
            pair: Some(times),
            ..Self::default()
        };
    }

    /// Notes that the signer gives none.
    pub fn record_refusal(&mut self, refusal: SignerRefusal) {
        (self.request, self.failure) = (None, None);
        self.refusal = Some(refusal);
    }

    /// The error of a pod that has no valid pair now and gets none.
    #[must_use]
    pub fn refusal_error(&self, now_s: i64) -> Option<PodError> {
        let refusal = self.refusal.as_ref()?;
        let is_valid = self.pair.is_some_and(|pair| now_s < pair.not_after_s);
        let end = refusal.kind.to_ascii_lowercase();
        let why = &refusal.why;
        (!is_valid).then(|| {
            PodError::Object(format!(
                "PodCertificateRequest was permanently {end}: {why}"
            ))
        })
    }

    /// Events that are due, each once for a pair: reason and message (PCT-04).
    pub fn take_warnings(&mut self, now_s: i64) -> Vec<(&'static str, &'static str)> {
        let mut warnings = Vec::new();
        if self.is_overdue(now_s) && !self.is_overdue_told {
            self.is_overdue_told = true;
            warnings.push((
                "CertificateOverdueForRefresh",
                "PodCertificate refresh overdue",
            ));
        }
        if self.is_expired(now_s) && !self.is_end_told {
            self.is_end_told = true;
            warnings.push(("CertificateExpired", "PodCertificate expired"));
        }
        warnings
    }

    fn is_overdue(&self, now_s: i64) -> bool {
        self.pair.is_some_and(|pair| now_s > pair.overdue_s)
    }

    fn is_expired(&self, now_s: i64) -> bool {
        self.pair.is_some_and(|pair| now_s > pair.not_after_s)
    }

    /// Returns true if a sync of the pod would do something for the certificate.
    #[must_use]
    pub fn is_due(&self, now_s: i64, now: MonoTime) -> bool {
        let step = self.next_step(now_s, now);
        matches!(step, CertificateStep::Request | CertificateStep::Look)
            || self.is_expired(now_s) && !self.is_end_told
    }

    /// Name of the state in metrics (PCT-06).
    #[must_use]
    pub fn state_name(&self, now_s: i64) -> &'static str {
        match (&self.refusal, self.pair) {
            (Some(refusal), _) if refusal.kind == "Denied" => "denied",
            (Some(_), _) => "failed",
            (None, None) => "not_yet_issued",
            (None, Some(_)) if self.is_expired(now_s) => "expired",
            (None, Some(_)) if self.is_overdue(now_s) => "overdue_for_refresh",
            (None, Some(_)) => "fresh",
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    fn source(more: Value) -> PodCertificateProjection {
        serde_json::from_value(more).expect("source")
    }

    #[test]
    fn types_of_keys() {
        // PCT-01
        for (name, want) in [
            ("ECDSAP256", Some(KeyType::EcdsaP256)),
            ("ECDSAP384", Some(KeyType::EcdsaP384)),
            ("ED25519", Some(KeyType::Ed25519)),
            ("ECDSAP521", None),
            ("RSA3072", None),
            ("RSA4096", None),
            ("", None),
        ] {
            let found = key_type(&source(json!({"keyType": name})));
            match (found, want) {
                (Ok(found), Some(want)) => assert_eq!(found, want),
                (Err(e), None) => {
                    let says = format!(
                        "cannot make keys of type {name:?}, only ECDSAP256, ECDSAP384 and ED25519"
                    );
                    assert!(e.to_string().contains(&says), "{e}");
                }
                (found, want) => panic!("{name}: {found:?} for {want:?}"),
            }
        }
    }

    #[test]
    fn requests() {
        // PCT-01 PCT-02
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"serviceAccountName": "robot"}});
        let pod: Pod = serde_json::from_value(pod).expect("pod");
        let parties = RequestParties {
            account_uid: "au",
            node: "n",
            node_uid: "nu",
        };
        let plain = source(json!({"signerName": "e.com/s"}));
        let made = certificate_request(&pod, &plain, "v1", parties, KeyProof::Request(b"hi"));
        let mut want = json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "PodCertificateRequest",
            "metadata": {"generateName": "req-", "namespace": "ns",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]},
            "spec": {"signerName": "e.com/s", "podName": "p", "podUID": "u", "serviceAccountName": "robot",
                "serviceAccountUID": "au", "nodeName": "n", "nodeUID": "nu", "stubPKCS10Request": "aGk="},
        });
        assert_eq!(made, want);
        let full = json!({"signerName": "e.com/s", "maxExpirationSeconds": 3600, "userAnnotations": {"e.com/a": "b"}});
        let proof = KeyProof::Signature {
            public_key: b"hi",
            signature: b"hi",
        };
        let made = certificate_request(&pod, &source(full), "v1beta1", parties, proof);
        want["apiVersion"] = "certificates.k8s.io/v1beta1".into();
        let spec = &mut want["spec"];
        spec.as_object_mut()
            .expect("object")
            .remove("stubPKCS10Request");
        spec["maxExpirationSeconds"] = 3600.into();
        spec["unverifiedUserAnnotations"] = json!({"e.com/a": "b"});
        spec["pkixPublicKey"] = "aGk=".into();
        spec["proofOfPossession"] = "aGk=".into();
        assert_eq!(made, want);
    }

    #[test]
    fn verdicts() {
        // PCT-03
        let judge = |status: Value| judge_request(&json!({"status": status}));
        let of = |kind: &str| json!([{"type": kind, "reason": "R", "message": "m"}]);
        assert_eq!(judge(json!({})), Ok(RequestVerdict::Wait));
        for kind in ["Denied", "Failed"] {
            let refused = SignerRefusal {
                kind: if kind == "Denied" { "Denied" } else { "Failed" },
                why: "reason=\"R\" message=\"m\"".into(),
            };
            let verdict = judge(json!({"conditions": of(kind)}));
            assert_eq!(verdict, Ok(RequestVerdict::Refused(refused)));
        }
        let mut status = json!({"conditions": of("Issued"), "certificateChain": "PEM",
            "beginRefreshAt": "1970-01-01T00:10:00Z", "notAfter": "1970-01-01T01:00:00Z"});
        let issued = RequestVerdict::Issued {
            chain: "PEM".into(),
            begin_refresh_s: 600,
            not_after_s: 3600,
        };
        assert_eq!(judge(status.clone()), Ok(issued));
        for missing in ["certificateChain", "beginRefreshAt", "notAfter"] {
            let mut without = status.clone();
            without[missing] = Value::Null;
            let error = judge(without).expect_err("not whole").to_string();
            assert!(error.contains(missing), "{error}");
        }
        status["certificateChain"] = "x".repeat(MAX_CHAIN_BYTES + 1).into();
        assert!(judge(status).is_err());
    }

    const fn at(s: u64) -> MonoTime {
        MonoTime(s * 1000)
    }

    #[test]
    fn a_pair_is_refreshed_in_time() {
        // PCT-04
        let mut record = CertificateRecord::default();
        assert_eq!(record.next_step(0, at(0)), CertificateStep::Request);
        assert_eq!(record.state_name(0), "not_yet_issued");
        record.record_request(false, at(0));
        assert_eq!(record.next_step(0, at(0)), CertificateStep::Wait(at(1)));
        assert_eq!(record.next_step(0, at(1)), CertificateStep::Look);
        record.record_pair(PairTimes::issued(1000, 4000, 300 + 7));
        assert_eq!(record.next_step(1006, at(899)), CertificateStep::Keep);
        assert!(!record.is_due(1006, at(899)));
        assert_eq!(record.next_step(1007, at(899)), CertificateStep::Request);
        assert!(record.is_due(1007, at(899)));
        assert_eq!(record.take_warnings(1607), []);
        assert_eq!(record.state_name(1607), "fresh");
        let reasons = |record: &mut CertificateRecord, now_s| {
            let told = record.take_warnings(now_s);
            told.into_iter()
                .map(|(reason, _)| reason)
                .collect::<Vec<_>>()
        };
        assert_eq!(record.state_name(1608), "overdue_for_refresh");
        assert_eq!(reasons(&mut record, 1608), ["CertificateOverdueForRefresh"]);
        assert_eq!(reasons(&mut record, 4000), [""; 0], "once");
        assert_eq!(record.state_name(4001), "expired");
        assert_eq!(reasons(&mut record, 4001), ["CertificateExpired"]);
        assert_eq!(reasons(&mut record, 9999), [""; 0], "once");
        record.record_pair(PairTimes::issued(5000, 8000, 0));
        assert_eq!(reasons(&mut record, 9999).len(), 2, "of a new pair again");
    }

    #[test]
    fn a_request_is_looked_at_until_it_is_gone() {
        // PCT-04
        let day_s = 24 * 3600;
        for (is_metered, first_s, last_s, most) in [(false, 1, 60, 1500), (true, 5, 600, 160)] {
            let mut record = CertificateRecord::default();
            record.record_request(is_metered, at(0));
            let (mut now_s, mut looks, mut pause_s) = (0, 0, 0);
            while now_s < day_s {
                let CertificateStep::Wait(until) = record.next_step(0, at(now_s)) else {
                    panic!("{now_s}: a pause after each look");
                };
                assert!(!record.is_due(0, at(now_s)));
                let next_s = until.0.div_ceil(1000);
                assert!(next_s - now_s + 1 >= pause_s, "pauses grow");
                pause_s = next_s - now_s;
                assert!((first_s..=last_s).contains(&pause_s), "{pause_s}");
                now_s = next_s;
                assert_eq!(record.next_step(0, at(now_s)), CertificateStep::Look);
                record.record_look(None, is_metered, at(now_s));
                looks += 1;
            }
            assert_eq!(pause_s, last_s);
            assert!(looks <= most, "{looks} looks");
            // A look without an answer is repeated soon.
            let why = Some(PodError::Object("no".into()));
            record.record_look(why, is_metered, at(now_s));
            let soon = CertificateStep::Wait(at(now_s + 60));
            assert_eq!(record.next_step(0, at(now_s)), soon);
            // Only one that is gone is made anew.
            record.record_absence(is_metered, at(now_s));
            assert_eq!(record.next_step(0, at(now_s)), CertificateStep::Request);
            record.record_request(is_metered, at(0));
            record.record_absence(is_metered, at(599));
            assert_ne!(record.next_step(0, at(5000)), CertificateStep::Request);
            record.record_absence(is_metered, at(600));
            assert_eq!(record.next_step(0, at(600)), CertificateStep::Request);
        }
    }

    #[test]
    fn failed_requests_are_tried_again_more_and_more_slowly() {
        // PCT-04
        let why = || PodError::Object("no".into());
        let mut record = CertificateRecord::default();
        let pause = |record: &CertificateRecord| record.next_step(0, at(0));
        for want_s in [10, 20, 40, 80, 160, 320, 600, 600] {
            record.record_failure(why(), false, at(0));
            assert_eq!(pause(&record), CertificateStep::Wait(at(want_s)));
            assert_eq!(record.next_step(0, at(want_s)), CertificateStep::Request);
            assert_eq!(record.failure(), Some(&why()));
        }
        record.record_failure(why(), true, at(0));
        assert_eq!(pause(&record), CertificateStep::Wait(at(60)), "silence");
        let mut after_silence = CertificateRecord::default();
        for _ in 0..100 {
            after_silence.record_failure(why(), true, at(0));
        }
        after_silence.record_failure(why(), false, at(0));
        let wait = pause(&after_silence);
        assert_eq!(wait, CertificateStep::Wait(at(80)), "silence counts little");
        for _ in 0..100 {
            record.record_failure(why(), false, at(0));
        }
        assert_eq!(pause(&record), CertificateStep::Wait(at(600)));
        record.record_request(false, at(600));
        assert_eq!(record.failure(), None);
        record.record_absence(false, at(1200));
        record.record_failure(why(), false, at(1200));
        assert_eq!(
            record.next_step(0, at(1200)),
            CertificateStep::Wait(at(1210)),
            "a new row of failures"
        );
    }

    #[test]
    fn a_refusal_is_for_good_and_takes_no_valid_pair() {
        // PCT-03 PCT-04
        for (kind, state) in [("Denied", "denied"), ("Failed", "failed")] {
            let why = String::from("reason=\"R\" message=\"\"");
            let refusal = || SignerRefusal {
                kind,
                why: why.clone(),
            };
            let mut record = CertificateRecord::default();
            record.record_request(false, at(0));
            record.record_refusal(refusal());
            assert_eq!(record.next_step(0, at(100_000)), CertificateStep::Keep);
            let error = record.refusal_error(0).expect("no pair").to_string();
            assert!(
                error.contains(&format!("permanently {state}: {why}")),
                "{error}"
            );
            assert_eq!(record.state_name(0), state);
            record.record_pair(PairTimes::issued(1000, 4000, 0));
            record.record_refusal(refusal());
            assert_eq!(record.refusal_error(3999), None);
            assert!(!record.is_due(3999, at(0)));
            assert!(record.refusal_error(4000).is_some());
            assert_eq!(record.next_step(5000, at(0)), CertificateStep::Keep);
            assert!(record.is_due(4001, at(0)), "its end is told");
        }
    }

    #[test]
    fn a_pair_that_was_found() {
        // PCT-05
        let found = PairTimes::found(1000, 4000, 0, 2000).expect("valid");
        assert_eq!(found, PairTimes::issued(3000, 4000, 0));
        assert_eq!(PairTimes::found(1000, 4000, 0, 4000), None);
        // The time to refresh is over: it is tried at once, and is not overdue yet.
        let mut record = CertificateRecord {
            pair: PairTimes::found(1000, 9000, 0, 8000),
            ..CertificateRecord::default()
        };
        assert_eq!(record.next_step(8000, at(0)), CertificateStep::Request);
        assert_eq!(record.take_warnings(8600), []);
        assert_eq!(record.state_name(8600), "fresh");
        assert_eq!(record.take_warnings(8601).len(), 1);
        let pair = CertificatePair {
            key: "-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n".into(),
            chain: "-----BEGIN CERTIFICATE-----\na\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nb\n-----END CERTIFICATE-----\n".into(),
        };
        assert_eq!(CertificatePair::from_bundle(&pair.bundle()), Some(pair));
        assert_eq!(CertificatePair::from_bundle("no certificate"), None);
    }
}
