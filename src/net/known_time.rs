//! Time for certificates on a machine whose clock is not kept right (TIME-02, TIME-03).
//!
//! A board without a battery boots in 1970, or in the hour of its last power cut. The true time is later than that, and
//! later than the begin of every certificate that was made for the board. So a clock that is behind is helped forward,
//! and a certificate that begins later is taken: it only shows that the clock is wrong. A certificate that had ended by
//! then is refused. As soon as an apiserver with a good certificate has told the time, that is the time for as long as
//! it answers: an apiserver whose own clock was far ahead for a moment must not lock the node out. The machine's clock
//! is never set.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error};

use super::tls::unix_time;
use crate::api::{MonoTime, WallTime};
use crate::sys::clock;

/// Time for which a word about the time counts: some renewals of the lease, each of which brings another.
const TOLD_FOR: Duration = Duration::from_secs(300);
/// Certificates of a chain that may begin later than the one before.
const MAX_LATER: u32 = 3;
/// Time at which this program was made, seconds since 1970; `None` in builds that are no release.
const BUILT: Option<&str> = option_env!("SOURCE_DATE_EPOCH");

/// The process's knowledge of the time.
pub(crate) static KNOWN: SharedKnownTime = SharedKnownTime::new();

/// See the module.
pub(crate) struct SharedKnownTime(Mutex<KnownTime>);

impl SharedKnownTime {
    /// Knows no time yet.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(KnownTime {
            floor: WallTime(i64::MIN),
            told: None,
        }))
    }

    /// Notes that it is later than `moment`: a signature shows that.
    pub(crate) fn note_passed_time(&self, moment: WallTime) {
        let mut known = self.lock();
        known.floor = known.floor.max(moment);
    }

    /// Takes the present time from a source that is trusted.
    pub(crate) fn set_trusted_time(&self, time: WallTime) {
        self.lock().told = Some((time, clock::mono_now()));
    }

    /// The time for certificates.
    pub(crate) fn certificate_time(&self) -> CertificateTime {
        let synchronized = clock::is_synchronized() == Some(true);
        self.lock()
            .certificate_time_at(clock::wall_now(), clock::mono_now(), synchronized)
    }

    fn lock(&self) -> MutexGuard<'_, KnownTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct KnownTime {
    /// Lower bound: the present is later.
    floor: WallTime,
    /// Last time that was told, and the monotonic time at which it was.
    told: Option<(WallTime, MonoTime)>,
}

/// A time for certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CertificateTime {
    pub(crate) at: WallTime,
    /// Set if the time is known to be right. Else it may be later, by years.
    pub(crate) is_sure: bool,
}

impl KnownTime {
    /// The best time to judge by. `synchronized`: the kernel says that `wall` is kept right.
    fn certificate_time_at(
        &self,
        wall: WallTime,
        now: MonoTime,
        synchronized: bool,
    ) -> CertificateTime {
        if synchronized {
            return CertificateTime {
                at: wall,
                is_sure: true,
            };
        }
        let built = BUILT.and_then(|text| text.parse().ok());
        let earliest = built.map_or(self.floor, |at| {
            self.floor.max(WallTime::from_unix_seconds(at))
        });
        // An earlier time that was told is wrong.
        let told = self.told.filter(|(time, _)| *time >= earliest);
        match told.map(|(time, then)| (time, now - then)) {
            Some((time, since)) if since < TOLD_FOR => {
                let since = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
                CertificateTime {
                    at: WallTime(time.0.saturating_add(since)),
                    is_sure: true,
                }
            }
            Some(_) | None => CertificateTime {
                at: wall.max(earliest),
                is_sure: false,
            },
        }
    }
}

impl CertificateTime {
    /// Asks a verifier at this time; if it may be later, then also at the times when certificates of the chain begin.
    pub(crate) fn judge_certificates<T>(
        self,
        verify: impl Fn(UnixTime) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut at = unix_time(self.at).ok_or(Error::FailedToGetCurrentTime)?;
        let mut verdict = verify(at);
        for _ in 0..MAX_LATER {
            match verdict {
                Err(Error::InvalidCertificate(CertificateError::NotValidYetContext {
                    not_before,
                    ..
                })) if !self.is_sure && not_before > at => at = not_before,
                verdict => return verdict,
            }
            verdict = verify(at);
        }
        verdict
    }
}

#[cfg(test)]
mod testing {
    //! Looks for tests.
    use super::{CertificateTime, SharedKnownTime};
    use crate::api::{MonoTime, WallTime};

    impl SharedKnownTime {
        /// The time for certificates while the clock is not kept right.
        pub(crate) fn at(&self, wall: WallTime, now: MonoTime) -> CertificateTime {
            self.lock().certificate_time_at(wall, now, false)
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::crypto::ring;

    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn what_is_known() {
        // TIME-02 TIME-03
        let built: i64 = BUILT.map_or(0, |text| text.parse().expect("a number"));
        let (early, late) = (
            WallTime::from_unix_seconds(60),
            WallTime::from_unix_seconds(built + 5_000_000),
        );
        let of = |at, is_sure| CertificateTime { at, is_sure };
        let known = SharedKnownTime::new();
        let now =
            |wall, now, synchronized| known.lock().certificate_time_at(wall, now, synchronized);
        assert_eq!(now(late, MonoTime(0), false), of(late, false));
        assert_eq!(now(early, MonoTime(0), true), of(early, true));
        known.note_passed_time(late);
        known.note_passed_time(early);
        assert_eq!(now(early, MonoTime(0), false), of(late, false));
        // A told time counts until the clock is kept right, whatever the clock shows, and goes on by uptime.
        let told = WallTime::from_unix_seconds(built + 9_000_000);
        known.lock().told = Some((told, MonoTime(7_000)));
        let later = WallTime(told.0 + 3 * S);
        for wall in [early, WallTime::from_unix_seconds(built + 700_000_000)] {
            assert_eq!(now(wall, MonoTime(10_000), false), of(later, true));
            assert_eq!(now(wall, MonoTime(10_000), true), of(wall, true));
        }
        // An old word is not believed for ever, nor is an impossible one.
        let then = MonoTime(7_000) + TOLD_FOR;
        assert_eq!(now(early, then, false), of(late, false));
        known.lock().told = Some((early, MonoTime(10_000)));
        assert_eq!(now(early, MonoTime(10_000), false), of(late, false));
    }

    /// Has a verifier of one CA judge a chain: a CA below it that begins and ends so many seconds from now, and a
    /// certificate signed by that CA.
    fn verify(
        below: (i64, i64),
        own: (i64, i64),
        moment: CertificateTime,
        name: &str,
    ) -> Result<(), Error> {
        let at = |seconds| clock::wall_now().date_time() + time::Duration::seconds(seconds);
        let made = |times: (i64, i64), is_ca: bool| {
            let mut params = CertificateParams::new(vec!["a".into()]).expect("params");
            if is_ca {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
                params
                    .distinguished_name
                    .push(DnType::CommonName, times.0.to_string());
            }
            (params.not_before, params.not_after) = (at(times.0), at(times.1));
            (params, KeyPair::generate().expect("key"))
        };
        let (params, key) = made((i64::from(i32::MIN), 0), true);
        let root = params.self_signed(&key).expect("CA");
        let issuer = Issuer::new(params, key);
        let (params, key) = made(below, true);
        let middle = params.signed_by(&key, &issuer).expect("CA");
        let issuer = Issuer::new(params, key);
        let (params, key) = made(own, false);
        let own = params.signed_by(&key, &issuer).expect("certificate");

        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).expect("CA");
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
        let verifier = verifier.build().expect("verifier");
        let (name, middle) = (name.try_into().expect("name"), [middle.der().clone()]);
        let told = moment.judge_certificates(|now| {
            verifier.verify_server_cert(own.der(), &middle, &name, &[], now)
        });
        told.map(drop)
    }

    #[test]
    fn who_is_taken() {
        // TIME-03
        const GOOD: (i64, i64) = (-1000, 1000);
        let of = |is_sure| CertificateTime {
            at: clock::wall_now(),
            is_sure,
        };
        for (name, below, own, is_sure, is_taken) in [
            ("good", GOOD, GOOD, true, true),
            (
                "not yet, by a clock that is right",
                GOOD,
                (500, 900),
                true,
                false,
            ),
            ("not yet, by another", GOOD, (500, 900), false, true),
            ("ended", GOOD, (-900, -500), true, false),
            ("ended, by another clock", GOOD, (-900, -500), false, false),
            ("one after the other", (500, 900), (700, 900), false, true),
            (
                "the other after the one",
                (700, 900),
                (500, 900),
                false,
                true,
            ),
            ("never both at once", (700, 900), (500, 600), false, false),
        ] {
            let verdict = verify(below, own, of(is_sure), "a");
            assert_eq!(verdict.is_ok(), is_taken, "{name}: {verdict:?}");
        }
        let verdict = verify(GOOD, (500, 900), of(false), "b");
        assert!(verdict.is_err(), "another's name");
        let before = CertificateTime {
            at: WallTime(-1),
            is_sure: false,
        };
        let verdict = verify(GOOD, GOOD, before, "a");
        assert_eq!(verdict, Err(Error::FailedToGetCurrentTime));
    }
}
