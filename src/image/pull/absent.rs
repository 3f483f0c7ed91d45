//! Servers that could not be reached a moment ago. If an image has several endpoints, these are asked last.

use alloc::collections::BTreeMap;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use crate::api::MonoTime;
use crate::net::Url;
use crate::sys::clock;

/// Time for which a server that could not be reached is asked last.
const ABSENCE: Duration = Duration::from_secs(120);
/// Most servers that are remembered. A further one is asked in its usual turn, which takes longer and is not wrong.
const MAX_ABSENT: usize = 64;

/// Servers that could not be reached, by scheme and host, each with the time until which it is asked last.
#[derive(Debug, Default)]
pub(super) struct AbsentServers(Mutex<BTreeMap<String, MonoTime>>);

impl AbsentServers {
    pub(super) fn mark_absent(&self, base: &Url) {
        self.mark_absent_at(base, clock::mono_now());
    }

    pub(super) fn is_absent(&self, base: &Url) -> bool {
        self.is_absent_at(base, clock::mono_now())
    }

    fn mark_absent_at(&self, base: &Url, now: MonoTime) {
        let mut absent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        absent.retain(|_, until| *until > now);
        if absent.len() < MAX_ABSENT {
            absent.insert(server_key(base), now + ABSENCE);
        }
    }

    fn is_absent_at(&self, base: &Url, now: MonoTime) -> bool {
        let absent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        absent
            .get(&server_key(base))
            .is_some_and(|until| *until > now)
    }
}

fn server_key(base: &Url) -> String {
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
            absent.mark_absent_at(&url(n), now);
        }
        assert!(absent.is_absent_at(&url(0).with_path("/x".into()), now));
        absent.mark_absent_at(&url(MAX_ABSENT), now);
        assert!(!absent.is_absent_at(&url(MAX_ABSENT), now));
        assert!(!absent.is_absent_at(&url(0), now + ABSENCE));
        absent.mark_absent_at(&url(MAX_ABSENT), now + ABSENCE);
        assert!(absent.is_absent_at(&url(MAX_ABSENT), now + ABSENCE));
    }
}
