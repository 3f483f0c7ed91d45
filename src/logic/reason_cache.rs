//! Reasons of the containers' last failed starts, for their waiting state (CLEAN-17, WAIT-01).

use alloc::{boxed::Box, collections::BTreeMap};
use core::cell::Cell;

use crate::api::PodUid;

/// Entries kept.
pub const CAPACITY: usize = 1000;
/// Longest message kept, bytes: the status shows at most 12 KiB divided by the number of containers (TMSG-04).
pub const MAX_MESSAGE_BYTES: usize = 2048;

/// A failed start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// Waiting reason (`CrashLoopBackOff`, `ErrImagePull`, …).
    pub reason: Box<str>,
    /// Waiting message.
    pub message: Box<str>,
}

struct StartFailureEntry {
    failure: StartFailure,
    used: Cell<u64>,
}

/// Last start failure per pod and container.
///
/// - Shape: at most [`CAPACITY`] entries; when full, the one longest neither stored nor read goes. Its container then
///   shows the plain waiting reason until it fails again.
/// - Source: kubelet `reason_cache.go`.
#[derive(Default)]
pub struct ReasonCache {
    entries: BTreeMap<PodUid, BTreeMap<Box<str>, StartFailureEntry>>,
    len: usize,
    clock: Cell<u64>,
}

impl ReasonCache {
    /// Remembers that `container` failed to start.
    pub fn record_start_failure(
        &mut self,
        uid: &PodUid,
        container: &str,
        reason: &str,
        message: &str,
    ) {
        self.clear_start_failure(uid, container);
        if self.len >= CAPACITY {
            self.drop_oldest();
        }
        let entry = StartFailureEntry {
            failure: StartFailure {
                reason: reason.into(),
                message: super::text::truncate_text(message, MAX_MESSAGE_BYTES).into(),
            },
            used: Cell::new(self.tick()),
        };
        self.entries
            .entry(uid.clone())
            .or_default()
            .insert(container.into(), entry);
        self.len += 1;
    }

    /// Forgets the failure: `container` started.
    pub fn clear_start_failure(&mut self, uid: &PodUid, container: &str) {
        if let Some(pod) = self.entries.get_mut(uid) {
            self.len -= usize::from(pod.remove(container).is_some());
            if pod.is_empty() {
                self.entries.remove(uid);
            }
        }
    }

    /// Forgets a pod.
    pub fn forget_pod(&mut self, uid: &PodUid) {
        self.len -= self.entries.remove(uid).map_or(0, |pod| pod.len());
    }

    /// The last failure of `container`, if it has not started since.
    #[must_use]
    pub fn start_failure(&self, uid: &PodUid, container: &str) -> Option<&StartFailure> {
        let entry = self.entries.get(uid)?.get(container)?;
        entry.used.set(self.tick());
        Some(&entry.failure)
    }

    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn drop_oldest(&mut self) {
        let oldest = self
            .entries
            .iter()
            .flat_map(|(uid, pod)| pod.iter().map(move |(name, e)| (e.used.get(), uid, name)))
            .min();
        if let Some((_, uid, name)) = oldest {
            let (uid, name) = (uid.clone(), name.clone());
            self.clear_start_failure(&uid, &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_until_started() {
        // CLEAN-17 WAIT-01
        let (uid, other) = (PodUid::from("u"), PodUid::from("v"));
        let mut cache = ReasonCache::default();
        cache.record_start_failure(&uid, "a", "ErrImagePull", "first");
        cache.record_start_failure(&uid, "a", "ImagePullBackOff", "second");
        assert_eq!(cache.len, 1);
        assert_eq!(
            &*cache.start_failure(&uid, "a").expect("entry").message,
            "second"
        );
        assert_eq!(cache.start_failure(&uid, "b"), None);
        assert_eq!(cache.start_failure(&other, "a"), None);
        cache.clear_start_failure(&other, "a");
        cache.clear_start_failure(&uid, "a");
        assert!(cache.start_failure(&uid, "a").is_none() && cache.len == 0);
        cache.record_start_failure(&uid, "a", "x", "");
        cache.record_start_failure(&uid, "b", "x", "");
        cache.forget_pod(&uid);
        assert!(cache.len == 0);
    }

    #[test]
    fn least_recently_used_goes() {
        // CLEAN-17
        let uid = PodUid::from("u");
        let mut cache = ReasonCache::default();
        for n in 0..CAPACITY {
            cache.record_start_failure(&uid, &format!("c{n}"), "r", "");
        }
        assert!(
            cache.start_failure(&uid, "c0").is_some(),
            "read, hence recent"
        );
        cache.record_start_failure(&uid, "new", "r", &"x".repeat(MAX_MESSAGE_BYTES + 1));
        assert_eq!(cache.len, CAPACITY);
        assert!(cache.start_failure(&uid, "c0").is_some());
        assert!(cache.start_failure(&uid, "c1").is_none());
        let message = &cache.start_failure(&uid, "new").expect("entry").message;
        assert_eq!(message.len(), MAX_MESSAGE_BYTES);
    }
}
