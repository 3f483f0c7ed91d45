//! Credentials of a node: choice between kubeconfigs, time of renewal, answer to a request for a certificate (BOOT).
//!
//! Source: kubelet `pkg/kubelet/certificate/bootstrap`; client-go `util/certificate/certificate_manager.go`, `csr.go`.

use core::net::IpAddr;
use core::time::Duration;

use alloc::string::String;

use crate::api::{CertificateSigningRequest, MonoTime, WallTime};

/// Longest wait for an answer; then another request is made (BOOT-05).
pub const CSR_WAIT: Duration = Duration::from_secs(15 * 60);
/// First delay after a request that could not be sent. It doubles with each of the first [`DELAY_STEPS`] failures.
const FIRST_DELAY: Duration = Duration::from_secs(2);
const DELAY_STEPS: u32 = 4;
/// Delay after all further failures.
const LAST_DELAY: Duration = Duration::from_secs(32);
/// Share by which delays are longer at random, percent.
const DELAY_JITTER_PERCENT: u32 = 10;
/// Time without a certificate after which the agent ends, if the apiserver answers (BOOT-09).
pub const STUCK_TIME: Duration = Duration::from_secs(5 * 60);
/// Pause after a certificate that has to be renewed at once, if the one before it had to be, too: each costs its signer
/// work, and the card a write.
const USELESS_PAUSE: Duration = Duration::from_secs(15 * 60);
/// Earliest time of renewal in a certificate's life, thousandths of its lifetime.
const ROTATE_FROM: u32 = 700;
const ROTATE_SPAN: u32 = 200;

/// State of a kubeconfig and its client certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeconfigFacts {
    /// There is no file.
    Missing,
    /// The file cannot be read, or is no kubeconfig.
    Wrong,
    /// The kubeconfig names no client certificate, but a token or a plugin.
    WithoutCertificate,
    /// The certificate or key is missing or unreadable.
    BadCertificate,
    /// Earliest end of any certificate of its chain.
    Until(WallTime),
}

impl KubeconfigFacts {
    /// Returns true if the kubeconfig can be used when there is no better one, even with an expired certificate: an
    /// apiserver that no longer knows the node ends no pod, but an agent that does not start does.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(self, Self::Until(_) | Self::WithoutCertificate)
    }
}

/// Credentials to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialChoice {
    /// The kubeconfig's credentials.
    Kubeconfig,
    /// The bootstrap kubeconfig's credentials, until the node has got its own.
    Bootstrap,
    /// None can be used; the kubeconfig's error is the one to show.
    Neither,
}

/// Chooses the credentials (BOOT-01). `trusted`: the clock is known to be right. A clock that may stand in 1970, or far
/// ahead, cannot tell that a certificate has expired; then the certificate is tried.
#[must_use]
pub fn choose_credentials(
    kubeconfig: KubeconfigFacts,
    bootstrap: bool,
    now: WallTime,
    trusted: bool,
) -> CredentialChoice {
    match kubeconfig {
        KubeconfigFacts::Until(end) if end < now && trusted && bootstrap => {
            CredentialChoice::Bootstrap
        }
        KubeconfigFacts::Until(_) | KubeconfigFacts::WithoutCertificate => {
            CredentialChoice::Kubeconfig
        }
        KubeconfigFacts::Missing | KubeconfigFacts::BadCertificate if bootstrap => {
            CredentialChoice::Bootstrap
        }
        // A wrong file is a mistake, but the bootstrap writes a new one, which mends it.
        KubeconfigFacts::Wrong if bootstrap => CredentialChoice::Bootstrap,
        KubeconfigFacts::Missing | KubeconfigFacts::Wrong | KubeconfigFacts::BadCertificate => {
            CredentialChoice::Neither
        }
    }
}

/// Client certificate to choose between: the kept one or the kubeconfig's.
#[derive(Clone, Copy, Debug)]
pub struct CertificateCandidate<'a> {
    /// CN
    pub common_name: &'a str,
    /// Begin of validity.
    pub not_before: WallTime,
    /// Earliest end of any certificate of its chain.
    pub end: WallTime,
}

/// Returns true if the kubeconfig's certificate replaces the one that the agent has kept (BOOT-01). Each is `None` if
/// there is none that can be read. `own`: CN of this node.
///
/// The later `not_before` does not always tell the newer certificate: kubeadm and others date a certificate back to the
/// beginning of their CA. So an expired certificate is replaced by one that ends later.
#[must_use]
pub fn is_certificate_replaced(
    kept: Option<CertificateCandidate<'_>>,
    brought: Option<CertificateCandidate<'_>>,
    own: &str,
    now: WallTime,
) -> bool {
    let Some(kept) = kept else {
        return true;
    };
    let Some(brought) = brought else {
        return false;
    };
    let is_of_other = kept.common_name != own && brought.common_name == own;
    let has_ended = kept.end < now && brought.end > kept.end;
    is_of_other || has_ended || brought.not_before > kept.not_before
}

/// Contents of a certificate that the node has.
#[derive(Clone, Copy, Debug)]
pub struct HeldCertificate<'a> {
    /// Begin of validity.
    pub not_before: WallTime,
    /// End of validity.
    pub not_after: WallTime,
    /// Time when this machine got the certificate, by its own clock of then; `None` if not known.
    pub since: Option<WallTime>,
    /// CN
    pub common_name: &'a str,
    /// O
    pub organizations: &'a [String],
    /// Names.
    pub dns_names: &'a [String],
    /// Addresses.
    pub ips: &'a [IpAddr],
}

/// Contents that the certificate must have.
#[derive(Clone, Copy, Debug)]
pub struct WantedCertificate<'a> {
    /// CN
    pub common_name: &'a str,
    /// O
    pub organization: &'a str,
    /// Names.
    pub dns_names: &'a [String],
    /// Addresses.
    pub ips: &'a [IpAddr],
}

/// Returns the time to ask for a new certificate (BOOT-07). `None` means at once: there is no certificate, it is that
/// of the bootstrap, or it lacks something that it must have. Otherwise the time is 70 to 90 % into its life. `random`:
/// 0 to 999, drawn once for each certificate; `ours`: this machine's clock.
#[must_use]
pub fn rotation_time(
    held: Option<HeldCertificate<'_>>,
    wanted: WantedCertificate<'_>,
    random: u32,
    ours: WallTime,
) -> Option<WallTime> {
    let held = held.filter(|held| has_wanted_contents(held, &wanted))?;
    let begins = certificate_begin(&held, ours);
    let life = held.not_after.0.saturating_sub(begins.0).max(0);
    let share = ROTATE_FROM + ROTATE_SPAN * random.min(999) / 999;
    let after = life / 1000 * i64::from(share);
    Some(WallTime(begins.0.saturating_add(after)))
}

/// Returns the begin of the certificate's life: its arrival on this machine. Some signers, such as k3s, date
/// certificates back to the beginning of their CA; counted from `not_before`, a new certificate would have to be
/// renewed at once. An impossible time of arrival is ignored: the clock was wrong then, as on a board without a
/// battery.
fn certificate_begin(held: &HeldCertificate<'_>, ours: WallTime) -> WallTime {
    let can_be =
        |since: &WallTime| (held.not_before..=held.not_after).contains(since) && *since <= ours;
    held.since.filter(can_be).unwrap_or(held.not_before)
}

/// Returns true if a certificate has all contents that it must have. More does not matter.
fn has_wanted_contents(held: &HeldCertificate<'_>, wanted: &WantedCertificate<'_>) -> bool {
    held.common_name == wanted.common_name
        && (wanted.organization.is_empty()
            || held.organizations.iter().any(|o| o == wanted.organization))
        && wanted.dns_names.iter().all(|n| held.dns_names.contains(n))
        && wanted.ips.iter().all(|ip| held.ips.contains(ip))
}

/// State of a request for a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsrVerdict {
    /// The request is not answered yet.
    Wait,
    /// PEM in base64.
    Issued(String),
    /// No certificate will come of it: ask anew, later.
    Over(String),
}

/// Judges a request as it was read (BOOT-05). `uid`: that of the object created.
#[must_use]
pub fn judge_csr(csr: &CertificateSigningRequest, uid: &str) -> CsrVerdict {
    let has = |kind: &str| csr.status.conditions.iter().find(|c| c.kind == kind);
    if csr.metadata.uid.as_str() != uid {
        return CsrVerdict::Over("another request has its name".into());
    }
    for kind in ["Denied", "Failed"] {
        if let Some(condition) = has(kind) {
            return CsrVerdict::Over(alloc::format!(
                "it is {kind}: {} {}",
                condition.reason,
                condition.message
            ));
        }
    }
    if has("Approved").is_some() && !csr.status.certificate.is_empty() {
        return CsrVerdict::Issued(csr.status.certificate.clone());
    }
    CsrVerdict::Wait
}

/// Time until a request that could not be sent is sent again (BOOT-05). `failures`: in a row, 1 after the first;
/// `random`: 0 to 999.
#[must_use]
pub fn csr_retry_delay(failures: u32, random: u32) -> Duration {
    let step = failures.saturating_sub(1);
    let delay = if step < DELAY_STEPS {
        FIRST_DELAY * (1 << step)
    } else {
        LAST_DELAY
    };
    delay + delay * DELAY_JITTER_PERCENT * random.min(999) / 100_000
}

/// Requests in a row since the last certificate that did not have to be renewed at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct CertificateRequests {
    failures: u32,
    obtained: u32,
    /// Earliest time of the next request.
    earliest: MonoTime,
}

impl CertificateRequests {
    /// Counts a request without a result. Returns the number of failures in a row.
    pub fn record_failure(&mut self) -> u32 {
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    /// Counts a request that brought a certificate. A signer whose certificates must be renewed at once is not asked
    /// without end: see [`may_request`](Self::may_request).
    pub fn record_obtained(&mut self, now: MonoTime) {
        self.obtained = self.obtained.saturating_add(1);
        if self.obtained == 1 {
            self.failures = 0;
        } else {
            self.earliest = now + USELESS_PAUSE;
        }
    }

    /// Returns true if another request may be made.
    #[must_use]
    pub fn may_request(&self, now: MonoTime) -> bool {
        now >= self.earliest
    }
}

/// Returns true if the agent has to end, so that its supervisor starts it again with the bootstrap credentials
/// (BOOT-09).
///
/// - `without_since`: time since when there is no valid certificate; `None` while there is one.
/// - `answers`: the apiserver answered the last request, with whatever.
#[must_use]
pub fn must_restart_agent(
    without_since: Option<MonoTime>,
    expired: bool,
    answers: bool,
    now: MonoTime,
) -> bool {
    answers && (expired || without_since.is_some_and(|since| now - since >= STUCK_TIME))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::api::certificates::{CsrCondition, CsrStatus};

    const DAY: i64 = 86_400;

    #[test]
    fn a_certificate_after_failures_is_none() {
        // BOOT-05 BOOT-09
        let now = MonoTime(1000);
        let mut requests = CertificateRequests::default();
        assert_eq!(
            [requests.record_failure(), requests.record_failure()],
            [1, 2]
        );
        requests.record_obtained(now);
        assert!(requests.may_request(now), "the link has come up");
        assert_eq!(requests.record_failure(), 1, "the next is another one");
        let mut then = now;
        for _ in 0..3 {
            requests.record_obtained(then);
            assert!(!requests.may_request(then), "a signer of useless ones");
            let next = then + USELESS_PAUSE;
            assert!(!requests.may_request(MonoTime(next.0 - 1)) && requests.may_request(next));
            then = next;
        }
        assert_eq!(requests.record_failure(), 2);
        assert!(CertificateRequests::default().may_request(MonoTime(0)));
    }

    #[test]
    fn choices() {
        // BOOT-01 SVC-15
        use CredentialChoice::{Bootstrap, Kubeconfig, Neither};
        use KubeconfigFacts::{BadCertificate, Missing, Until, WithoutCertificate, Wrong};
        let now = WallTime::from_unix_seconds(100 * DAY);
        let (past, future) = (
            Until(WallTime::from_unix_seconds(DAY)),
            Until(WallTime::from_unix_seconds(200 * DAY)),
        );
        for (name, facts, bootstrap, trusted, want) in [
            ("as it is", future, true, true, Kubeconfig),
            ("no bootstrap", future, false, true, Kubeconfig),
            ("a token", WithoutCertificate, true, true, Kubeconfig),
            ("over", past, true, true, Bootstrap),
            ("over, no bootstrap", past, false, true, Kubeconfig),
            (
                "over, says a clock that may be wrong",
                past,
                true,
                false,
                Kubeconfig,
            ),
            ("missing", Missing, true, true, Bootstrap),
            ("missing, no bootstrap", Missing, false, true, Neither),
            ("no key", BadCertificate, true, true, Bootstrap),
            ("no key, no bootstrap", BadCertificate, false, true, Neither),
            ("no kubeconfig in it", Wrong, true, true, Bootstrap),
            (
                "no kubeconfig in it, no bootstrap",
                Wrong,
                false,
                true,
                Neither,
            ),
        ] {
            assert_eq!(
                choose_credentials(facts, bootstrap, now, trusted),
                want,
                "{name}"
            );
        }
        for (facts, is_whole) in [
            (past, true),
            (future, true),
            (WithoutCertificate, true),
            (Missing, false),
            (Wrong, false),
            (BadCertificate, false),
        ] {
            assert_eq!(facts.is_usable(), is_whole, "{facts:?}");
        }
    }

    #[test]
    fn rotation() {
        // BOOT-07 BOOT-11
        let text = |all: &[&str]| all.iter().map(|t| String::from(*t)).collect::<Vec<_>>();
        let ips =
            |all: &[&str]| -> Vec<IpAddr> { all.iter().map(|t| t.parse().expect("ip")).collect() };
        let (nodes, names, more) = (text(&["system:nodes"]), text(&["a"]), text(&["a", "b"]));
        let (one, two) = (ips(&["10.0.0.1"]), ips(&["10.0.0.2", "10.0.0.1"]));
        let held = HeldCertificate {
            not_before: WallTime::from_unix_seconds(1000 * DAY),
            not_after: WallTime::from_unix_seconds(1010 * DAY),
            since: None,
            common_name: "n",
            organizations: &nodes,
            dns_names: &more,
            ips: &two,
        };
        let wanted = WantedCertificate {
            common_name: "n",
            organization: "system:nodes",
            dns_names: &names,
            ips: &one,
        };
        let now = WallTime::from_unix_seconds(1001 * DAY);
        let days = |random| {
            rotation_time(Some(held), wanted, random, now).map(|at| at.unix_seconds() / DAY)
        };
        assert_eq!(
            (days(0), days(500), days(999)),
            (Some(1007), Some(1008), Some(1009))
        );
        for (name, held, wanted) in [
            ("none", None, wanted),
            (
                "another node",
                Some(HeldCertificate {
                    common_name: "m",
                    ..held
                }),
                wanted,
            ),
            (
                "another group",
                Some(HeldCertificate {
                    organizations: &names,
                    ..held
                }),
                wanted,
            ),
            (
                "a name is missing",
                Some(HeldCertificate {
                    dns_names: &[],
                    ..held
                }),
                wanted,
            ),
            (
                "an address is missing",
                Some(HeldCertificate { ips: &one, ..held }),
                WantedCertificate {
                    ips: &two,
                    ..wanted
                },
            ),
        ] {
            assert_eq!(rotation_time(held, wanted, 0, now), None, "{name}");
        }
        let odd = HeldCertificate {
            not_after: WallTime(i64::MIN),
            not_before: WallTime(i64::MAX),
            ..held
        };
        assert_eq!(
            rotation_time(Some(odd), wanted, 999, now),
            Some(WallTime(i64::MAX))
        );
    }

    #[test]
    fn a_life_begins_here() {
        // BOOT-07: a certificate that is dated back to the beginning of its CA, years ago.
        let day = |day: i64| WallTime::from_unix_seconds(day * DAY);
        let wanted = WantedCertificate {
            common_name: "n",
            organization: "",
            dns_names: &[],
            ips: &[],
        };
        let held = HeldCertificate {
            not_before: day(1000),
            not_after: day(3000),
            since: None,
            common_name: "n",
            organizations: &[],
            dns_names: &[],
            ips: &[],
        };
        for (name, since, ours, due) in [
            ("it has just come", Some(2900), 2900, 2970),
            ("a while ago", Some(2900), 2960, 2970),
            ("nobody knows", None, 2900, 2400),
            ("it came before it was made", Some(0), 2900, 2400),
            ("it comes after its end", Some(3001), 4000, 2400),
            ("it is still to come", Some(2900), 2899, 2400),
            ("the clock stands in 1970", Some(2900), 1, 2400),
        ] {
            let held = HeldCertificate {
                since: since.map(day),
                ..held
            };
            let found = rotation_time(Some(held), wanted, 0, day(ours));
            assert_eq!(found, Some(day(due)), "{name}");
        }
    }

    #[test]
    fn which_of_two() {
        // BOOT-01
        let of = |common_name: &'static str, from: i64, to: i64| {
            Some(CertificateCandidate {
                common_name,
                not_before: WallTime::from_unix_seconds(from * DAY),
                end: WallTime::from_unix_seconds(to * DAY),
            })
        };
        for (name, kept, brought, want) in [
            ("nothing is kept", None, of("n", 1, 9), true),
            ("nothing at all", None, None, true),
            ("nothing is brought", of("n", 1, 9), None, false),
            ("nothing that can be read", of("n", 1, 2), None, false),
            ("both are the same", of("n", 1, 9), of("n", 1, 9), false),
            ("a later one", of("n", 1, 9), of("n", 2, 9), true),
            ("an earlier one", of("n", 2, 9), of("n", 1, 9), false),
            (
                "kubeadm's, whose CA began before",
                of("n", 3, 4),
                of("n", 1, 9),
                true,
            ),
            (
                "the one kept has not ended",
                of("n", 3, 6),
                of("n", 1, 9),
                false,
            ),
            ("neither holds", of("n", 2, 4), of("n", 1, 3), false),
            ("kept for another name", of("m", 2, 9), of("n", 1, 9), true),
            (
                "brought for another name",
                of("n", 2, 9),
                of("m", 1, 9),
                false,
            ),
            ("both for another name", of("m", 2, 9), of("m", 1, 9), false),
        ] {
            let now = WallTime::from_unix_seconds(5 * DAY);
            assert_eq!(
                is_certificate_replaced(kept, brought, "n", now),
                want,
                "{name}"
            );
        }
    }

    #[test]
    fn verdicts() {
        // BOOT-05
        let csr = |uid: &str, kinds: &[&str], certificate: &str| CertificateSigningRequest {
            metadata: crate::api::ObjectMeta {
                uid: uid.into(),
                ..Default::default()
            },
            status: CsrStatus {
                conditions: kinds
                    .iter()
                    .map(|kind| CsrCondition {
                        kind: (*kind).into(),
                        reason: "r".into(),
                        message: "m".into(),
                    })
                    .collect(),
                certificate: certificate.into(),
            },
        };
        let over = |why: &str| CsrVerdict::Over(why.into());
        for (name, csr, want) in [
            ("new", csr("u", &[], ""), CsrVerdict::Wait),
            (
                "approved, not signed",
                csr("u", &["Approved"], ""),
                CsrVerdict::Wait,
            ),
            ("signed, not approved", csr("u", &[], "x"), CsrVerdict::Wait),
            (
                "both",
                csr("u", &["Approved"], "x"),
                CsrVerdict::Issued("x".into()),
            ),
            (
                "denied",
                csr("u", &["Denied"], ""),
                over("it is Denied: r m"),
            ),
            (
                "failed",
                csr("u", &["Approved", "Failed"], "x"),
                over("it is Failed: r m"),
            ),
            (
                "another",
                csr("v", &["Approved"], "x"),
                over("another request has its name"),
            ),
        ] {
            assert_eq!(judge_csr(&csr, "u"), want, "{name}");
        }
    }

    #[test]
    fn delays_and_the_end() {
        // BOOT-05 BOOT-09
        let seconds: Vec<_> = (1..=7).map(|n| csr_retry_delay(n, 0).as_secs()).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(csr_retry_delay(1, 999), Duration::from_micros(2_199_800));
        let now = MonoTime(1_000_000);
        let since = |seconds: u64| Some(MonoTime(1_000_000 - seconds * 1000));
        for (name, without, expired, answers, want) in [
            ("all is well", None, false, true, false),
            ("not for long", since(299), false, true, false),
            ("for long", since(300), false, true, true),
            ("for long, nobody answers", since(900), false, false, false),
            ("expired", None, true, true, true),
            ("expired, nobody answers", None, true, false, false),
        ] {
            assert_eq!(
                must_restart_agent(without, expired, answers, now),
                want,
                "{name}"
            );
        }
    }
}
