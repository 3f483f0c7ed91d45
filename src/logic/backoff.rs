//! Growing delays: crash loops (BACK) and failed image pulls (IMG-09).
//!
//! A delay is kept per key in a sorted array of fixed capacity. Nothing here reads a clock; the agent may store
//! [`Backoff::records`] in the run dir and give them back after its restart, for `MonoTime` counts from boot.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{Container, MonoTime, Pod, PodUid};

use super::{fnv::fnv1a, pod_kind::pod_ref};

/// First delay, milliseconds.
pub const INITIAL_MS: u32 = 10_000;
/// Largest delay by default, milliseconds.
pub const MAX_MS: u32 = 300_000;
/// An event later than this after the last grant starts the sequence afresh, milliseconds.
pub const RESET_MS: u64 = 600_000;
/// Longest pull error kept for the waiting message, bytes.
pub const MAX_PULL_ERROR_BYTES: usize = 1024;

/// Owner of a delay: a 64-bit digest. Two keys that collide would share a delay, nothing worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackoffKey(pub u64);

/// Key of a container's restarts: name, namespace, uid, container name, image, resources (BACK-05).
#[must_use]
pub fn crash_loop_key(pod: &Pod, container: &Container) -> BackoffKey {
    let meta = &pod.metadata;
    let resources = [&container.resources.limits, &container.resources.requests]
        .into_iter()
        .flat_map(|list| {
            list.iter()
                .flat_map(|(name, amount)| [name.as_str(), amount.as_str()])
                .chain(["|"])
        });
    digest(
        [
            meta.name.as_str(),
            meta.namespace.as_str(),
            meta.uid.as_str(),
            container.name.as_str(),
            container.image.as_str(),
        ]
        .into_iter()
        .chain(resources),
    )
}

/// Key of an image pull: pod uid and image string (IMG-09).
#[must_use]
pub fn image_key(uid: &PodUid, image: &str) -> BackoffKey {
    digest([uid.as_str(), image].into_iter())
}

fn digest<'a>(parts: impl Iterator<Item = &'a str>) -> BackoffKey {
    BackoffKey(fnv1a(parts.flat_map(|part| part.bytes().chain([0xff_u8]))))
}

/// Delay of one key, as kept and as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffRecord {
    /// Owner of the delay.
    pub key: BackoffKey,
    /// Time when a restart was last granted, or a pull last failed.
    pub last: MonoTime,
    /// Delay that counts now, milliseconds.
    pub delay_ms: u32,
}
const _: () = assert!(size_of::<BackoffRecord>() <= 24, "one per container");

/// A wait that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffWait {
    /// The whole delay, as messages name it.
    pub delay: Duration,
    /// End of the wait.
    pub until: MonoTime,
}

/// Delays of many keys.
///
/// - Shape: at most `capacity` records of 24 bytes. When full, the record longest unused is forgotten: that container
///   or image is tried at once the next time, and then waits like a first offender.
/// - Source: client-go `flowcontrol.Backoff` as kubelet uses it.
#[derive(Clone, Debug)]
pub struct Backoff {
    records: Vec<BackoffRecord>,
    capacity: usize,
    initial_ms: u32,
    max_ms: u32,
}

impl Backoff {
    /// Delays from 10 s to `max`; a `max` below 10 s is also the first delay (BACK-01). Room for `capacity` keys, at
    /// least one.
    #[must_use]
    pub fn new(max: Duration, capacity: usize) -> Self {
        let max_ms = u32::try_from(max.as_millis()).unwrap_or(u32::MAX);
        Self {
            records: Vec::new(),
            capacity: capacity.max(1),
            initial_ms: INITIAL_MS.min(max_ms),
            max_ms,
        }
    }

    /// Returns the wait of `key` if it is not over at `now`. The delay counts from `event`.
    #[must_use]
    pub fn remaining_wait(
        &self,
        key: BackoffKey,
        event: MonoTime,
        now: MonoTime,
    ) -> Option<BackoffWait> {
        let record = self.find(key).ok().map(|at| self.records[at])?;
        let delay = Duration::from_millis(u64::from(record.delay_ms));
        let until = event + delay;
        (event.since_ms(record.last) <= RESET_MS && now < until)
            .then_some(BackoffWait { delay, until })
    }

    /// Notes a restart that was granted, or a pull that failed, for an event at `event`: the delay doubles, or starts
    /// at the first one if the last grant is too long before the event (BACK-03).
    pub fn record_failure(&mut self, key: BackoffKey, event: MonoTime, now: MonoTime) {
        match self.find(key) {
            Ok(at) => {
                let record = &mut self.records[at];
                record.delay_ms = if event.since_ms(record.last) > RESET_MS {
                    self.initial_ms
                } else {
                    record.delay_ms.saturating_mul(2).min(self.max_ms)
                };
                record.last = now;
            }
            Err(_) => self.insert(BackoffRecord {
                key,
                last: now,
                delay_ms: self.initial_ms,
            }),
        }
    }

    /// Forgets `key`.
    pub fn forget_key(&mut self, key: BackoffKey) {
        if let Ok(at) = self.find(key) {
            self.records.remove(at);
        }
    }

    /// Forgets what can no longer delay anything.
    pub fn forget_expired(&mut self, now: MonoTime) {
        let useful_ms = RESET_MS + u64::from(self.max_ms);
        self.records
            .retain(|record| now.since_ms(record.last) <= useful_ms);
    }

    /// All delays, sorted by key: what the agent may store.
    #[must_use]
    pub fn records(&self) -> &[BackoffRecord] {
        &self.records
    }

    /// Takes stored delays back. Those of another boot, visible by a grant after `now`, are dropped.
    pub fn restore_records(
        &mut self,
        records: impl IntoIterator<Item = BackoffRecord>,
        now: MonoTime,
    ) {
        for mut record in records {
            if record.last <= now && self.find(record.key).is_err() {
                record.delay_ms = record.delay_ms.clamp(self.initial_ms, self.max_ms);
                self.insert(record);
            }
        }
    }

    fn find(&self, key: BackoffKey) -> Result<usize, usize> {
        self.records.binary_search_by_key(&key, |r| r.key)
    }

    fn insert(&mut self, record: BackoffRecord) {
        if self.records.len() >= self.capacity {
            let oldest = self
                .records
                .iter()
                .enumerate()
                .min_by_key(|(_, r)| r.last)
                .map(|(at, _)| at);
            if let Some(at) = oldest {
                self.records.remove(at);
            }
        }
        if let Err(at) = self.find(record.key) {
            self.records.insert(at, record);
        }
    }
}

/// A container start that must wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashLoopWait {
    /// Earliest time of the start.
    pub until: MonoTime,
    /// Waiting message: delay, container, pod (BACK-06). The waiting reason is `CrashLoopBackOff`.
    pub message: String,
}

/// Asks for one more start of `container`; on success the grant is noted (BACK-02, BACK-07).
///
/// `ended` is the end of the newest *exited* instance at the begin of the pass; the delay counts from there. An
/// instance killed within the pass does not count. `None`: no instance has ended, and no grant is noted.
///
/// # Errors
/// The wait that is not over.
pub fn grant_start(
    backoff: &mut Backoff,
    pod: &Pod,
    container: &Container,
    ended: Option<MonoTime>,
    now: MonoTime,
) -> Result<(), CrashLoopWait> {
    let Some(event) = ended else {
        return Ok(());
    };
    let key = crash_loop_key(pod, container);
    if let Some(wait) = backoff.remaining_wait(key, event, now) {
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            duration_text(wait.delay),
            container.name,
            pod_ref(pod)
        );
        return Err(CrashLoopWait {
            until: wait.until,
            message,
        });
    }
    backoff.record_failure(key, event, now);
    Ok(())
}

/// Asks for the restart of the whole pod, caused by the end of `container` at `ended` (ACT-72). A grant for this end
/// stays valid: a pass that was cut short goes on, because a part of the pod is already gone.
///
/// # Errors
/// The wait that is not over.
pub fn grant_restart_all(
    backoff: &mut Backoff,
    pod: &Pod,
    container: &Container,
    ended: Option<MonoTime>,
    now: MonoTime,
) -> Result<(), CrashLoopWait> {
    let at = backoff.find(crash_loop_key(pod, container));
    match at.is_ok_and(|at| ended.is_some_and(|ended| backoff.records[at].last >= ended)) {
        true => Ok(()),
        false => grant_start(backoff, pod, container, ended, now),
    }
}

/// Back-off of image pulls, with the last error of each.
#[derive(Clone, Debug)]
pub struct ImageBackoff {
    delays: Backoff,
    /// Sorted by key; never more than delays.
    errors: Vec<(BackoffKey, Box<str>)>,
}

impl ImageBackoff {
    /// Room for `capacity` pod and image pairs.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            delays: Backoff::new(Duration::from_millis(u64::from(MAX_MS)), capacity),
            errors: Vec::new(),
        }
    }

    /// The waiting message if `image` must not be pulled yet (reason `ImagePullBackOff`, IMG-10).
    #[must_use]
    pub fn waiting_message(&self, uid: &PodUid, image: &str, now: MonoTime) -> Option<String> {
        let key = image_key(uid, image);
        let record = self
            .delays
            .find(key)
            .ok()
            .map(|at| self.delays.records[at])?;
        let age_ms = now.since_ms(record.last);
        if age_ms > RESET_MS || age_ms >= u64::from(record.delay_ms) {
            return None;
        }
        let error = self
            .errors
            .binary_search_by_key(&key, |e| e.0)
            .map_or("", |at| &self.errors[at].1);
        Some(if error.is_empty() {
            format!("Back-off pulling image \"{image}\"")
        } else {
            format!("Back-off pulling image \"{image}\": {error}")
        })
    }

    /// Forgets the delay of `image` for one pod: it may be tried at once.
    pub fn forget_image(&mut self, uid: &PodUid, image: &str) {
        let key = image_key(uid, image);
        self.delays.forget_key(key);
        self.errors.retain(|e| e.0 != key);
    }

    /// Notes a failed pull.
    pub fn record_pull_failure(&mut self, uid: &PodUid, image: &str, error: &str, now: MonoTime) {
        let key = image_key(uid, image);
        self.delays.record_failure(key, now, now);
        let error: Box<str> = super::text::truncate_text(error, MAX_PULL_ERROR_BYTES).into();
        match self.errors.binary_search_by_key(&key, |e| e.0) {
            Ok(at) => self.errors[at].1 = error,
            Err(at) => self.errors.insert(at, (key, error)),
        }
        let delays = &self.delays;
        self.errors.retain(|(key, _)| delays.find(*key).is_ok());
    }

    /// Forgets what can no longer delay anything.
    pub fn forget_expired(&mut self, now: MonoTime) {
        self.delays.forget_expired(now);
        let delays = &self.delays;
        self.errors.retain(|(key, _)| delays.find(*key).is_ok());
    }
}

/// `1m20s`, as upstream prints durations of whole seconds.
fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 60, seconds % 60) {
        (0, s) => format!("{s}s"),
        (m, s) => format!("{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Quantity;
    use crate::testing::{container, pod_with};

    fn secs(s: u64) -> MonoTime {
        MonoTime(s * 1000)
    }

    /// Crashes at once after each start, and asks every second; returns the waits between end and grant, seconds.
    fn crash_loop(backoff: &mut Backoff, rounds: u32) -> Vec<u64> {
        let pod = pod_with(&["a"]);
        let (mut now, mut waits) = (1000, Vec::new());
        for _ in 0..rounds {
            let end = now;
            let ended = Some(secs(end));
            while grant_start(backoff, &pod, &pod.spec.containers[0], ended, secs(now)).is_err() {
                now += 1;
            }
            waits.push(now - end);
        }
        waits
    }

    #[test]
    fn sequence_of_a_crash_loop() {
        // BACK-01 BACK-02
        for (name, max_s, waits) in [
            ("default", 300, [0, 10, 20, 40, 80, 160, 300, 300]),
            ("cap 60", 60, [0, 10, 20, 40, 60, 60, 60, 60]),
            ("cap below the start", 3, [0, 3, 3, 3, 3, 3, 3, 3]),
        ] {
            let mut backoff = Backoff::new(Duration::from_secs(max_s), 8);
            assert_eq!(crash_loop(&mut backoff, 8), waits, "{name}");
        }
    }

    #[test]
    fn a_restart_of_all_waits_once_for_each_end() {
        // ACT-72 BACK-02
        let mut backoff = Backoff::new(Duration::from_secs(300), 8);
        let pod = pod_with(&["a"]);
        let (mut now, mut waits) = (1000, Vec::new());
        for _ in 0..5 {
            let end = now;
            let mut grant = |now| {
                let (container, ended) = (&pod.spec.containers[0], Some(secs(end)));
                grant_restart_all(&mut backoff, &pod, container, ended, secs(now))
            };
            now += 1;
            while grant(now).is_err() {
                now += 1;
            }
            assert_eq!(grant(now), Ok(()), "what was begun goes on");
            waits.push(now - end);
            now += 1;
        }
        assert_eq!(waits, [1, 10, 20, 40, 80]);
    }

    #[test]
    fn a_long_run_resets() {
        // BACK-03
        let pod = pod_with(&["a"]);
        let a = &pod.spec.containers[0];
        for (name, run_s, delay_ms) in [("599 s", 599, 20_000), ("601 s", 601, 10_000)] {
            let mut backoff = Backoff::new(Duration::from_secs(300), 8);
            let (first, second) = (Some(secs(0)), Some(secs(run_s)));
            assert_eq!(grant_start(&mut backoff, &pod, a, first, secs(0)), Ok(()));
            let at_once = grant_start(&mut backoff, &pod, a, second, secs(run_s)).is_ok();
            assert_eq!(at_once, run_s > 600, "{name}");
            if !at_once {
                let later = grant_start(&mut backoff, &pod, a, second, secs(run_s + 10));
                assert_eq!(later, Ok(()), "{name}");
            }
            assert_eq!(backoff.records()[0].delay_ms, delay_ms, "{name}");
        }
    }

    #[test]
    fn key_covers_image_and_resources() {
        // BACK-05
        let pod = pod_with(&["a"]);
        let base = crash_loop_key(&pod, &container("a"));
        let mut image = container("a");
        image.image = "other".into();
        let mut resources = container("a");
        let cpu = Quantity::parse("1").expect("quantity");
        resources.resources.limits.insert("cpu".into(), cpu);
        let mut other_pod = pod.clone();
        other_pod.metadata.uid = "other".into();
        let mut env = container("a");
        env.working_dir = "/".into();
        for (name, key, same) in [
            ("image", crash_loop_key(&pod, &image), false),
            ("resources", crash_loop_key(&pod, &resources), false),
            ("container", crash_loop_key(&pod, &container("b")), false),
            ("pod", crash_loop_key(&other_pod, &container("a")), false),
            ("anything else", crash_loop_key(&pod, &env), true),
        ] {
            assert_eq!(key == base, same, "{name}");
        }
    }

    #[test]
    fn message_and_neighbours() {
        // BACK-06
        let pod = pod_with(&["a", "b"]);
        let mut backoff = Backoff::new(Duration::from_secs(300), 8);
        crash_loop(&mut backoff, 4);
        let ended = Some(secs(1100));
        let wait = grant_start(
            &mut backoff,
            &pod,
            &pod.spec.containers[0],
            ended,
            secs(1101),
        )
        .expect_err("waits");
        assert_eq!(wait.until, secs(1180));
        assert_eq!(
            wait.message,
            "back-off 1m20s restarting failed container=a pod=p_ns(uid)"
        );
        let b = &pod.spec.containers[1];
        assert_eq!(
            grant_start(&mut backoff, &pod, b, ended, secs(1101)),
            Ok(())
        );
    }

    #[test]
    fn killed_within_the_pass() {
        // BACK-07
        let pod = pod_with(&["a"]);
        let a = &pod.spec.containers[0];
        let mut backoff = Backoff::new(Duration::from_secs(300), 8);
        let key = crash_loop_key(&pod, a);
        let older = Some(secs(0));
        assert_eq!(grant_start(&mut backoff, &pod, a, older, secs(0)), Ok(()));
        // Killed for its probe at 60 s: the older exit gates, long over; yet the delay doubles.
        assert_eq!(grant_start(&mut backoff, &pod, a, older, secs(60)), Ok(()));
        assert_eq!(backoff.records()[0].delay_ms, 20_000);
        assert_eq!(backoff.records()[0].key, key);
        // Only running instances: nothing to wait for, nothing noted.
        let mut empty = Backoff::new(Duration::from_secs(300), 8);
        assert_eq!(grant_start(&mut empty, &pod, a, None, secs(60)), Ok(()));
        assert!(empty.records().is_empty());
    }

    #[test]
    fn bounded_stored_and_swept() {
        let mut backoff = Backoff::new(Duration::from_secs(300), 3);
        for n in 0..10 {
            backoff.record_failure(BackoffKey(n), secs(n), secs(n));
            assert!(backoff.records().len() <= 3);
        }
        let keys: Vec<_> = backoff.records().iter().map(|r| r.key.0).collect();
        assert_eq!(keys, [7, 8, 9], "the longest unused goes first");

        let text = serde_json::to_string(backoff.records()).expect("json");
        let stored: Vec<BackoffRecord> = serde_json::from_str(&text).expect("json");
        let mut next = Backoff::new(Duration::from_secs(300), 3);
        next.restore_records(stored.clone(), secs(9));
        assert_eq!(next.records(), backoff.records());
        let mut other_boot = Backoff::new(Duration::from_secs(300), 3);
        other_boot.restore_records(stored, secs(8));
        assert_eq!(other_boot.records().len(), 2);

        next.forget_expired(secs(9 + 900));
        assert_eq!(next.records().len(), 1);
        next.forget_expired(secs(9 + 901));
        assert!(next.records().is_empty());
        backoff.forget_key(BackoffKey(7));
        assert_eq!(backoff.records().len(), 2);
    }

    #[test]
    fn image_pulls() {
        // IMG-09 IMG-10
        let uid = PodUid::from("uid");
        let mut pulls = ImageBackoff::new(2);
        let mut now = 0;
        for wait_s in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(pulls.waiting_message(&uid, "i", secs(now)), None);
            pulls.record_pull_failure(&uid, "i", "no route", secs(now));
            assert_eq!(
                pulls
                    .waiting_message(&uid, "i", secs(now + wait_s - 1))
                    .as_deref(),
                Some("Back-off pulling image \"i\": no route")
            );
            now += wait_s;
        }
        assert_eq!(
            pulls.waiting_message(&"other".into(), "i", secs(now - 1)),
            None
        );
        pulls.record_pull_failure(&uid, "i", "again", secs(now + 601));
        assert!(
            pulls
                .waiting_message(&uid, "i", secs(now + 601 + 9))
                .is_some()
        );
        assert_eq!(pulls.waiting_message(&uid, "i", secs(now + 601 + 10)), None);
        for image in ["j", "k", "l"] {
            pulls.record_pull_failure(&uid, image, "x", secs(now + 700));
        }
        assert_eq!(pulls.errors.len(), 2);
        pulls.forget_expired(secs(now + 10_000));
        assert!(pulls.errors.is_empty());
    }
}
