//! Servers that were not there a moment ago: of several endpoints they are asked last.

use alloc::collections::BTreeMap;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use crate::api::MonoTime;
use crate::net::Url;
use crate::sys::clock;

/// Time for which a server that was not there is asked last.
const ABSENCE: Duration = Duration::from_secs(120);
/// Servers remembered. One more is asked in its turn, which takes longer and is not wrong.
const MAX_ABSENT: usize = 64;

/// Servers that were not there, by scheme and host, with the end of their time.
#[derive(Debug, Default)]
pub(super) struct AbsentServers(Mutex<BTreeMap<String, MonoTime>>);

impl AbsentServers {
    pub(super) fn add(&self, base: &Url) {
        self.add_at(base, clock::mono());
    }

    pub(super) fn has(&self, base: &Url) -> bool {
        self.has_at(base, clock::mono())
    }

    fn add_at(&self, base: &Url, now: MonoTime) {
        let mut absent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        absent.retain(|_, until| *until > now);
        if absent.len() < MAX_ABSENT {
            absent.insert(key(base), now + ABSENCE);
        }
    }

    fn has_at(&self, base: &Url, now: MonoTime) -> bool {
        let absent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        absent.get(&key(base)).is_some_and(|until| *until > now)
    }
}

fn key(base: &Url) -> String {
    format!("{}://{}", base.scheme(), base.authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_a_while_and_not_too_many() {
        let absent = AbsentServers::default();
        let url = |n: usize| Url::parse(&format!("https://m{n}.example/v2")).expect("url");
        let now = MonoTime(1000);
        for n in 0..MAX_ABSENT {
            absent.add_at(&url(n), now);
        }
        assert!(absent.has_at(&url(0).with_path("/x".into()), now));
        absent.add_at(&url(MAX_ABSENT), now);
        assert!(!absent.has_at(&url(MAX_ABSENT), now));
        assert!(!absent.has_at(&url(0), now + ABSENCE));
        absent.add_at(&url(MAX_ABSENT), now + ABSENCE);
        assert!(absent.has_at(&url(MAX_ABSENT), now + ABSENCE));
    }
}
