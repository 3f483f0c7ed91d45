//! Cache of the last runtime status of each pod, with its age.
//!
//! A time is that at which a listing *began*: the listed state is at least that new. Names and rules follow kubelet
//! `container/cache.go` and `container/runtime_cache.go`.

use alloc::{boxed::Box, collections::BTreeMap, rc::Rc, vec::Vec};
use core::time::Duration;

use crate::api::order::OrderExt;
use crate::api::{
    ContainerId, MonoTime, PodUid, WallTime,
    cri::{ContainerState, ContainerStatus, PodItem, PodRuntimeStatus, SandboxState},
};

use super::{
    clock_history::ClockHistory,
    pod_table::{StatusAge, StatusFreshness},
};

/// Longest age of a list of running pods that may be used.
pub const RUNNING_PODS_TTL: Duration = Duration::from_secs(3);

/// The status of a pod, or why it could not be read.
pub type PodStatusResult = Result<Rc<PodRuntimeStatus>, RuntimeStatusError>;

/// Error of the runtime in place of a status, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuntimeStatusError(pub Rc<str>);

/// Time of a look at the runtime: the start on both clocks, and the end.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeReadTime<'a> {
    /// Start of the listing, on the agent's clock.
    pub at: MonoTime,
    /// Start of the listing, on the wall clock.
    pub wall: WallTime,
    /// End of all reads, on the agent's clock.
    pub until: MonoTime,
    /// History of the wall clock, by which the runtime's times are corrected and converted.
    pub clock: &'a ClockHistory,
}

#[derive(Clone, Debug)]
struct RuntimeCacheEntry {
    status: PodStatusResult,
    /// Ends of ended instances, as [`RuntimeCache::last_container_end`] returns them. At most as many as there are in `status`.
    ends: Vec<(ContainerId, MonoTime)>,
    /// Start of the listing that led to `status`.
    modified: MonoTime,
}

/// Last status of each pod. At most as many as the runtime lists.
#[derive(Clone, Debug, Default)]
pub struct RuntimeCache {
    entries: BTreeMap<PodUid, RuntimeCacheEntry>,
    /// Start of the last complete relist; 0 before the first.
    time: MonoTime,
}

/// Corrects the times of a status.
fn correct_status_times(status: &mut PodRuntimeStatus, clock: &ClockHistory) {
    for sandbox in &mut status.sandboxes {
        sandbox.created_at = clock.correct_time(sandbox.created_at);
    }
    for container in &mut status.containers {
        let right = |at: &mut WallTime| *at = clock.correct_time(*at);
        right(&mut container.created_at);
        container.started_at.iter_mut().for_each(right);
        container.finished_at.iter_mut().for_each(right);
    }
}

impl RuntimeCache {
    /// The newest answer about `uid`. A pod the runtime does not know has an empty status.
    pub fn pod_status(&self, uid: &PodUid) -> PodStatusResult {
        self.entries.get(uid).map_or_else(
            || {
                Ok(Rc::new(PodRuntimeStatus {
                    uid: uid.clone(),
                    ..PodRuntimeStatus::default()
                }))
            },
            |entry| entry.status.clone(),
        )
    }

    /// Replaces the answer about `uid` by the one of this look.
    pub fn set_pod_status(
        &mut self,
        uid: &PodUid,
        status: Result<PodRuntimeStatus, RuntimeStatusError>,
        seen: RuntimeReadTime<'_>,
    ) {
        let (status, ends) = match status {
            Ok(mut status) => {
                correct_status_times(&mut status, seen.clock);
                self.keep_ips(uid, &mut status);
                status.sandboxes.shrink_to_fit();
                status.containers.shrink_to_fit();
                let ends = self.ends_of_instances(uid, &status, seen);
                (Ok(Rc::new(status)), ends)
            }
            Err(why) => {
                let known = self.entries.get_mut(uid);
                let ends = known.map(|entry| core::mem::take(&mut entry.ends));
                (Err(why), ends.unwrap_or_default())
            }
        };
        let entry = RuntimeCacheEntry {
            status,
            ends,
            modified: seen.at,
        };
        self.entries.insert(uid.clone(), entry);
    }

    /// Returns the ends of the ended instances of `status`. Known ends stay as they are, whatever happens to the wall
    /// clock.
    fn ends_of_instances(
        &self,
        uid: &PodUid,
        status: &PodRuntimeStatus,
        seen: RuntimeReadTime<'_>,
    ) -> Vec<(ContainerId, MonoTime)> {
        let before = self.entries.get(uid);
        let exited = |c: &&ContainerStatus| c.state == ContainerState::Exited;
        let ended = status.containers.iter().filter(exited).map(|container| {
            let id = &container.id;
            let known = before.and_then(|entry| entry.ends.iter().find(|(known, _)| known == id));
            let at = known.map_or_else(
                || self.first_seen_end(before, container, seen),
                |(_, at)| *at,
            );
            (id.clone(), at)
        });
        ended.collect()
    }

    /// Returns the end of an instance whose end is seen for the first time. Not before the instance was last seen
    /// otherwise; and not after the read, if the instance ended during it.
    fn first_seen_end(
        &self,
        before: Option<&RuntimeCacheEntry>,
        container: &ContainerStatus,
        seen: RuntimeReadTime<'_>,
    ) -> MonoTime {
        let is_it = |c: &ContainerStatus| c.id == container.id;
        let alive = before.filter(|entry| {
            let status = entry.status.as_ref();
            status.is_ok_and(|status| status.containers.iter().any(is_it))
        });
        let earliest = alive.map_or(MonoTime(0), |entry| self.time.max(entry.modified));
        let finished = container.finished_at.unwrap_or(seen.wall);
        let at = seen.clock.time_since_boot(finished, seen.at, seen.wall);
        at.min(seen.until).max(earliest.min(seen.at))
    }

    /// End of the newest ended instance of `container`, for its back-off. `None`: none has ended.
    #[must_use]
    pub fn last_container_end(
        &self,
        status: &PodRuntimeStatus,
        container: &str,
    ) -> Option<MonoTime> {
        let mut instances = status.container_instances(container);
        let ended = instances.find(|c| c.state == ContainerState::Exited)?;
        let known = self.entries.get(&status.uid).and_then(|entry| {
            let end = entry.ends.iter().find(|(id, _)| *id == ended.id);
            end.map(|(_, at)| *at)
        });
        Some(known.unwrap_or_default())
    }

    /// Corrects earlier times, when the clock is right for the first time.
    pub fn correct_times(&mut self, clock: &ClockHistory) {
        for entry in self.entries.values_mut() {
            if let Ok(status) = &mut entry.status {
                correct_status_times(Rc::make_mut(status), clock);
            }
        }
    }

    /// Keeps the addresses of a stopped sandbox: the runtime no longer reports them, but the pod's status still shows
    /// them.
    fn keep_ips(&self, uid: &PodUid, status: &mut PodRuntimeStatus) {
        let ready = |state| state == SandboxState::Ready;
        if status.ips.is_empty()
            && !status.sandboxes.iter().any(|sandbox| ready(sandbox.state))
            && let Some(Ok(before)) = self.entries.get(uid).map(|entry| &entry.status)
        {
            status.ips.clone_from(&before.ips);
        }
    }

    /// Forgets `uid`, as the runtime has. A call that waits for a newer status waits for [`RuntimeCache::set_relist_time`].
    pub fn forget_pod(&mut self, uid: &PodUid) {
        self.entries.remove(uid);
    }

    /// Notes that a complete relist that began at `at` has been taken in.
    pub fn set_relist_time(&mut self, at: MonoTime) {
        self.time = self.time.max(at);
    }

    /// Returns true if a relist was taken in.
    #[must_use]
    pub fn was_listed(&self) -> bool {
        self.time > MonoTime(0)
    }

    /// Returns true if a relist was taken in and nothing of `uid` runs. A pod whose status is an error is not idle.
    #[must_use]
    pub fn is_idle(&self, uid: &PodUid) -> bool {
        let idle =
            |status: &PodStatusResult| status.as_ref().is_ok_and(|status| !status.is_running());
        self.was_listed()
            && self
                .entries
                .get(uid)
                .is_none_or(|entry| idle(&entry.status))
    }

    /// All pods the runtime knows, sorted by UID.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &PodStatusResult)> {
        self.entries.iter().map(|(uid, entry)| (uid, &entry.status))
    }
}

impl StatusAge for RuntimeCache {
    fn compare_status_age(&self, uid: &PodUid, after: MonoTime) -> StatusFreshness {
        let entry = self.entries.get(uid);
        let newest = entry.map_or(self.time, |entry| self.time.max(entry.modified));
        match entry {
            _ if newest <= after => StatusFreshness::Stale,
            Some(RuntimeCacheEntry { status: Err(_), .. }) => StatusFreshness::Failed,
            Some(RuntimeCacheEntry { status: Ok(_), .. }) | None => StatusFreshness::Fresh,
        }
    }
}

/// A pod that runs as far as the runtime knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPod {
    /// UID.
    pub uid: PodUid,
    /// Name.
    pub name: Box<str>,
    /// Namespace.
    pub namespace: Box<str>,
}

/// The pods with a READY sandbox or a running container, as one listing found them. Sorted by UID.
#[derive(Clone, Debug, Default)]
pub struct RunningPods {
    pods: Rc<[RunningPod]>,
    /// Start of the listing.
    at: Option<MonoTime>,
}

impl RunningPods {
    /// Takes the listing of all pods that began at `at`.
    pub fn set_listing(&mut self, listed: &[PodItem], at: MonoTime) {
        self.at = Some(at);
        let running = listed.iter().filter(|pod| pod.is_running());
        let is_same = |(known, pod): (&RunningPod, &PodItem)| {
            known.uid == pod.uid && *known.name == *pod.name && *known.namespace == *pod.namespace
        };
        // As a rule the same pods run as a second ago, and the runtime lists them in the same order.
        if running.clone().count() == self.pods.len()
            && self.pods.iter().zip(running.clone()).all(is_same)
        {
            return;
        }
        let mut pods: Vec<RunningPod> = running
            .map(|pod| RunningPod {
                uid: pod.uid.clone(),
                name: pod.name.as_str().into(),
                namespace: pod.namespace.as_str().into(),
            })
            .collect();
        pods.stable_sort_by(|a, b| a.uid.cmp(&b.uid));
        self.pods = pods.into();
    }

    /// Notes that a listing that began at `at` would be the last one.
    pub const fn confirm_listing(&mut self, at: MonoTime) {
        self.at = Some(at);
    }

    /// The list, of any age.
    #[must_use]
    pub fn last_listing(&self) -> &[RunningPod] {
        &self.pods
    }

    /// The list, unless it is too old at `now`.
    #[must_use]
    pub fn fresh_listing(&self, now: MonoTime) -> Option<Rc<[RunningPod]>> {
        let young = |at| now - at <= RUNNING_PODS_TTL;
        self.at.is_some_and(young).then(|| Rc::clone(&self.pods))
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use alloc::string::String;

    use super::*;
    use crate::api::{
        SandboxId,
        cri::{NamespaceOptions, SandboxStatus},
    };
    use crate::testing::{exited, instance, nth, running_pod};

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn uid(text: &str) -> PodUid {
        text.into()
    }

    fn status(ips: &[IpAddr], sandbox: Option<SandboxState>) -> PodRuntimeStatus {
        PodRuntimeStatus {
            uid: uid("a"),
            ips: ips.to_vec(),
            sandboxes: sandbox
                .map(|state| SandboxStatus {
                    id: SandboxId::new("s"),
                    uid: uid("a"),
                    name: String::new(),
                    namespace: String::new(),
                    attempt: 0,
                    state,
                    created_at: WallTime(0),
                    ips: ips.to_vec(),
                    namespaces: NamespaceOptions::default(),
                    runtime_handler: String::new(),
                })
                .into_iter()
                .collect(),
            ..PodRuntimeStatus::default()
        }
    }

    /// Clock history without any observation.
    const CLOCK: &ClockHistory = &ClockHistory::new();

    fn seen(ms: u64) -> RuntimeReadTime<'static> {
        RuntimeReadTime {
            at: MonoTime(ms),
            wall: WallTime(0),
            until: MonoTime(ms),
            clock: CLOCK,
        }
    }

    #[test]
    fn when_an_instance_ended() {
        // BACK-02 BACK-07
        let wall = |s| WallTime::from_unix_seconds(1_000_000 + s);
        let at = |s: u64, wall_s| RuntimeReadTime {
            at: MonoTime(s * 1000),
            wall: wall(wall_s),
            until: MonoTime(s * 1000 + 3000),
            clock: CLOCK,
        };
        let with = |n, end: Option<i64>| {
            let mut instance = match end {
                Some(_) => nth(n, exited("a", 1)),
                None => nth(n, instance("a", ContainerState::Running)),
            };
            instance.finished_at = end.map(wall);
            instance
        };
        for (name, before, seen, ended, expected) in [
            (
                "as long ago as the wall clock says",
                None,
                at(500, 500),
                420,
                420,
            ),
            ("in an earlier boot", None, at(5, 500), 100, 0),
            ("while the runtime was read", None, at(500, 500), 502, 502),
            (
                "an end in the future was just now",
                None,
                at(500, 500),
                600,
                503,
            ),
            (
                "seen running before",
                Some(at(498, 498)),
                at(500, 500),
                499,
                499,
            ),
            (
                "and the clock was set since",
                Some(at(498, 498)),
                at(500, 90_500),
                499,
                498,
            ),
        ] {
            let mut cache = RuntimeCache::default();
            let pod = |instance| running_pod(vec![instance]);
            if let Some(before) = before {
                cache.set_pod_status(&uid("uid"), Ok(pod(with(0, None))), before);
                cache.set_relist_time(before.at);
            }
            let status = pod(with(0, Some(ended)));
            cache.set_pod_status(&uid("uid"), Ok(status.clone()), seen);
            let end = Some(MonoTime(expected * 1000));
            assert_eq!(cache.last_container_end(&status, "a"), end, "{name}");
            // Neither a failed look nor a clock that is set changes the end.
            cache.set_pod_status(
                &uid("uid"),
                Err(RuntimeStatusError("no answer".into())),
                at(600, 0),
            );
            cache.set_pod_status(&uid("uid"), Ok(status.clone()), at(601, 1_000_000));
            assert_eq!(cache.last_container_end(&status, "a"), end, "{name}");
            assert_eq!(cache.last_container_end(&status, "b"), None);
        }
        let mut cache = RuntimeCache::default();
        let status = running_pod(vec![with(2, None), with(1, Some(30)), with(0, Some(20))]);
        cache.set_pod_status(&uid("uid"), Ok(status.clone()), at(40, 40));
        assert_eq!(
            cache.last_container_end(&status, "a"),
            Some(MonoTime(30_000))
        );
        let first = running_pod(vec![with(0, None)]);
        assert_eq!(
            cache.last_container_end(&first, "a"),
            None,
            "nothing has ended"
        );
    }

    #[test]
    fn unknown_pods_are_empty() {
        // CACHE-01
        let status = RuntimeCache::default()
            .pod_status(&uid("x"))
            .expect("no error");
        assert_eq!(status.uid, uid("x"));
        assert!(status.sandboxes.is_empty() && status.containers.is_empty());
    }

    #[test]
    fn newer_than() {
        use StatusFreshness::{Failed, Fresh, Stale};
        let (ok, no) = (
            || Ok(status(&[], None)),
            || Err(RuntimeStatusError("x".into())),
        );
        // CACHE-02 CACHE-03
        for (name, time, set, after, expected) in [
            ("before the first relist", 0, None, 0, Stale),
            ("absent, relist newer", 5, None, 4, Fresh),
            ("absent, relist as old", 5, None, 5, Stale),
            ("present, modified newer", 0, Some((ok(), 7)), 6, Fresh),
            ("present, modified as old", 0, Some((ok(), 7)), 7, Stale),
            ("present, relist newer", 9, Some((ok(), 3)), 8, Fresh),
            ("present, all older", 9, Some((ok(), 3)), 9, Stale),
            ("an error is an answer", 0, Some((no(), 7)), 6, Failed),
            ("an old error is not", 0, Some((no(), 7)), 7, Stale),
        ] {
            let mut cache = RuntimeCache::default();
            cache.set_relist_time(MonoTime(time));
            if let Some((status, at)) = set {
                cache.set_pod_status(&uid("a"), status, seen(at));
            }
            assert_eq!(
                cache.compare_status_age(&uid("a"), MonoTime(after)),
                expected,
                "{name}"
            );
        }
        // A deletion alone makes no status fresh; the time of the relist that saw it does.
        let mut cache = RuntimeCache::default();
        cache.set_relist_time(MonoTime(3));
        cache.set_pod_status(&uid("a"), ok(), seen(5));
        cache.forget_pod(&uid("a"));
        assert_eq!(cache.compare_status_age(&uid("a"), MonoTime(4)), Stale);
        cache.set_relist_time(MonoTime(5));
        assert_eq!(cache.compare_status_age(&uid("a"), MonoTime(4)), Fresh);
    }

    #[test]
    fn addresses_are_kept() {
        use SandboxState::{NotReady, Ready};
        // PLEG-11
        for (name, before, sandbox, after, expected) in [
            ("stopped sandbox", Some(IP), Some(NotReady), None, Some(IP)),
            ("no sandbox", Some(IP), None, None, Some(IP)),
            (
                "a READY sandbox without one",
                Some(IP),
                Some(Ready),
                None,
                None,
            ),
            ("a new one", None, Some(Ready), Some(IP), Some(IP)),
            ("never had one", None, Some(NotReady), None, None),
        ] {
            let mut cache = RuntimeCache::default();
            cache.set_pod_status(
                &uid("a"),
                Ok(status(before.as_slice(), Some(Ready))),
                seen(1),
            );
            cache.set_pod_status(&uid("a"), Ok(status(after.as_slice(), sandbox)), seen(2));
            let ips = cache.pod_status(&uid("a")).expect("status").ips.clone();
            assert_eq!(ips, expected.as_slice(), "{name}");
        }
    }

    #[test]
    fn idle() {
        // PW-06
        let mut cache = RuntimeCache::default();
        assert!(!cache.is_idle(&uid("a")), "not before the first relist");
        cache.set_relist_time(MonoTime(1));
        assert!(cache.is_idle(&uid("a")), "an empty entry counts");
        for (status, idle) in [
            (Ok(status(&[], Some(SandboxState::NotReady))), true),
            (Ok(status(&[], Some(SandboxState::Ready))), false),
            (Err(RuntimeStatusError("unreadable".into())), false),
        ] {
            cache.set_pod_status(&uid("a"), status, seen(1));
            assert_eq!(cache.is_idle(&uid("a")), idle);
        }
    }

    #[test]
    fn running_pods() {
        // CACHE-04
        let mut running = RunningPods::default();
        assert_eq!(running.fresh_listing(MonoTime(0)), None);
        let mut other = status(&[], Some(SandboxState::NotReady));
        other.uid = uid("b");
        let ready = status(&[], Some(SandboxState::Ready));
        running.set_listing(&[&other, &ready].map(PodItem::from), MonoTime(10_000));
        let uids = |pods: &[RunningPod]| pods.iter().map(|p| p.uid.clone()).collect::<Vec<_>>();
        assert_eq!(
            running
                .fresh_listing(MonoTime(13_000))
                .map(|pods| uids(&pods)),
            Some(vec![uid("a")])
        );
        assert_eq!(running.fresh_listing(MonoTime(13_001)), None, "expired");
    }
}
