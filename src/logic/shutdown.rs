//! Shutdown of the machine: pods end in groups, those of the lowest priority first (SHUT-01, SHUT-04). Names follow
//! kubelet `nodeshutdown`.

use alloc::vec::Vec;
use core::time::Duration;

use crate::{
    api::{MonoTime, PodUid, order::OrderExt as _},
    pod_kind::SYSTEM_CRITICAL_PRIORITY,
    pod_worker::StopStatus,
};

/// Reason in the statuses of ended pods.
pub const REASON: &str = "Terminated";
/// Message of those statuses, and of their condition.
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Reason and text of a refusal.
pub const REFUSED: (&str, &str) = (
    "NodeShutdown",
    "Pod was rejected as the node is shutting down.",
);
/// Reason why the node is not ready.
pub const NOT_READY: &str = "node is shutting down";
/// Grace of a pod whose spec has none, seconds.
const DEFAULT_GRACE_S: i64 = 30;

/// Pods from this priority on, up to the next group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityGroup {
    /// Lowest priority of the group.
    pub priority: i32,
    /// Time for the group, seconds.
    pub seconds: u32,
}

/// The groups of `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`; none if there is no such period.
#[must_use]
pub fn shutdown_groups(grace_s: u32, critical_s: u32) -> Vec<PriorityGroup> {
    if grace_s == 0 {
        return Vec::new();
    }
    vec![
        PriorityGroup {
            priority: 0,
            seconds: grace_s.saturating_sub(critical_s),
        },
        PriorityGroup {
            priority: SYSTEM_CRITICAL_PRIORITY,
            seconds: critical_s,
        },
    ]
}

/// Time for all groups, one after the other.
#[must_use]
pub fn total_shutdown_time(groups: &[PriorityGroup]) -> Duration {
    Duration::from_secs(groups.iter().map(|group| u64::from(group.seconds)).sum())
}

/// A pod that is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndingPod {
    /// UID.
    pub uid: PodUid,
    /// Priority.
    pub priority: i32,
    /// The grace that its spec has.
    pub grace_s: Option<i64>,
}

/// A pod that is to be killed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownKill {
    /// UID.
    pub uid: PodUid,
    /// Grace, seconds.
    pub grace_s: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum ShutdownState {
    #[default]
    Off,
    /// A group ends; `until` `None`: it was not begun.
    Group {
        at: usize,
        until: Option<MonoTime>,
    },
    /// Statuses are on their way.
    Telling(MonoTime),
    Over,
}

/// Shutdown of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeShutdown {
    /// Sorted by priority, ascending.
    groups: Vec<PriorityGroup>,
    /// Pods that were active at the beginning, each with the index of its group.
    pods: Vec<(usize, EndingPod)>,
    /// Time after the last group for the last statuses to reach the API.
    telling: Duration,
    state: ShutdownState,
}

impl NodeShutdown {
    /// Makes a shutdown that is not under way. Without `groups` it never is.
    #[must_use]
    pub fn new(mut groups: Vec<PriorityGroup>) -> Self {
        groups.stable_sort_by(|a, b| a.priority.cmp(&b.priority));
        Self {
            groups,
            ..Self::default()
        }
    }

    /// Returns true if pods are to end in groups at all.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns true if the node goes down. Stays true until [`NodeShutdown::cancel_shutdown`].
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.state != ShutdownState::Off
    }

    /// Returns true if nothing is left to wait for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == ShutdownState::Over
    }

    /// Begins the shutdown with these pods. Does nothing if it is under way.
    pub fn begin_shutdown(&mut self, pods: Vec<EndingPod>, telling: Duration) {
        if self.is_under_way() {
            return;
        }
        let place = |pod: &EndingPod| {
            let place = self.groups.iter().rposition(|g| g.priority <= pod.priority);
            place.unwrap_or(0)
        };
        self.pods = pods.into_iter().map(|pod| (place(&pod), pod)).collect();
        self.telling = telling;
        self.state = ShutdownState::Group { at: 0, until: None };
    }

    /// Calls the shutdown off. Pods that were told to end do so. Returns true if it was under way.
    pub fn cancel_shutdown(&mut self) -> bool {
        let was = self.is_under_way();
        self.pods.clear();
        self.state = ShutdownState::Off;
        was
    }

    /// Moves on, after time has passed or pods have changed; returns the pods to kill now. `is_gone`: the pod has
    /// stopped and its volumes are unmounted.
    pub fn next_kills(
        &mut self,
        is_gone: impl Fn(&PodUid) -> bool,
        now: MonoTime,
    ) -> Vec<ShutdownKill> {
        loop {
            let (at, until) = match self.state {
                ShutdownState::Off | ShutdownState::Over => return Vec::new(),
                ShutdownState::Telling(until) if now < until => return Vec::new(),
                ShutdownState::Telling(_) => {
                    self.state = ShutdownState::Over;
                    return Vec::new();
                }
                ShutdownState::Group { at, until } => (at, until),
            };
            let Some(group) = self.groups.get(at).copied() else {
                self.state = ShutdownState::Telling(now + self.telling);
                continue;
            };
            let own = self.pods.iter().filter(|(place, _)| *place == at);
            let mut left = own.map(|(_, pod)| pod).filter(|pod| !is_gone(&pod.uid));
            match until {
                Some(until) if now < until && left.next().is_some() => return Vec::new(),
                None if left.next().is_some() => {}
                Some(_) | None => {
                    self.state = ShutdownState::Group {
                        at: at + 1,
                        until: None,
                    };
                    continue;
                }
            }
            let until = Some(now + Duration::from_secs(group.seconds.into()));
            self.state = ShutdownState::Group { at, until };
            let kill = |(_, pod): &(usize, EndingPod)| ShutdownKill {
                uid: pod.uid.clone(),
                grace_s: pod
                    .grace_s
                    .unwrap_or(DEFAULT_GRACE_S)
                    .min(group.seconds.into()),
            };
            let own = self.pods.iter().filter(|(place, _)| *place == at);
            return own
                .filter(|(_, pod)| !is_gone(&pod.uid))
                .map(kill)
                .collect();
        }
    }

    /// Time at which [`NodeShutdown::next_kills`] has work to do.
    #[must_use]
    pub const fn next_timeout(&self) -> Option<MonoTime> {
        match self.state {
            ShutdownState::Off | ShutdownState::Over => None,
            ShutdownState::Group { until, .. } => until,
            ShutdownState::Telling(until) => Some(until),
        }
    }
}

/// Status of a pod that ends by the shutdown (SHUT-05).
#[must_use]
pub fn shutdown_stop_status() -> StopStatus {
    StopStatus {
        reason: REASON.into(),
        message: MESSAGE.into(),
        disruption: Some(MESSAGE.into()),
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    fn pod(uid: &str, priority: i32, grace_s: Option<i64>) -> EndingPod {
        EndingPod {
            uid: uid.into(),
            priority,
            grace_s,
        }
    }

    const fn group(priority: i32, seconds: u32) -> PriorityGroup {
        PriorityGroup { priority, seconds }
    }

    const fn at(s: u64) -> MonoTime {
        MonoTime(s * 1000)
    }

    /// Second, and the pods that are killed then, each with its grace.
    type Killed = (u64, Vec<(&'static str, i64)>);

    /// Returns the pods that are killed at each second, and the second at which it is over.
    fn run(
        groups: Vec<PriorityGroup>,
        pods: &[EndingPod],
        ends: &[(&str, u64)],
    ) -> (Vec<Killed>, u64) {
        const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
        let mut shutdown = NodeShutdown::new(groups);
        shutdown.begin_shutdown(pods.to_vec(), Duration::from_secs(2));
        let mut log = Vec::new();
        for s in 0..1000 {
            let gone: BTreeSet<&str> = ends
                .iter()
                .filter(|(_, end)| *end <= s)
                .map(|(uid, _)| *uid)
                .collect();
            let kills = shutdown.next_kills(|uid| gone.contains(uid.as_str()), at(s));
            if !kills.is_empty() {
                let name = |k: &ShutdownKill| {
                    *NAMES
                        .iter()
                        .find(|n| **n == k.uid.as_str())
                        .expect("a name")
                };
                log.push((s, kills.iter().map(|k| (name(k), k.grace_s)).collect()));
            }
            if shutdown.is_over() {
                return (log, s);
            }
            assert!(
                shutdown.next_timeout().is_some_and(|due| due > at(s)),
                "{s}"
            );
        }
        panic!("it never ends");
    }

    #[test]
    fn groups_in_their_order() {
        // SHUT-01 SHUT-04
        assert_eq!(shutdown_groups(0, 0), []);
        assert_eq!(
            shutdown_groups(30, 10),
            [group(0, 20), group(SYSTEM_CRITICAL_PRIORITY, 10)]
        );
        assert!(
            !NodeShutdown::new(shutdown_groups(0, 0)).is_on()
                && NodeShutdown::new(shutdown_groups(1, 0)).is_on()
        );
        let pods = [
            pod("a", SYSTEM_CRITICAL_PRIORITY, None),
            pod("b", -5, Some(3)),
            pod("c", 100, Some(600)),
        ];
        // When all pods of a group have ended in time, the next group has its turn.
        let (log, over) = run(
            shutdown_groups(30, 10),
            &pods,
            &[("b", 2), ("c", 7), ("a", 9)],
        );
        assert_eq!(log, [(0, vec![("b", 3), ("c", 20)]), (7, vec![("a", 10)])]);
        assert_eq!(over, 11);
        // A group whose pods do not end has its seconds, and no more.
        let (log, over) = run(shutdown_groups(30, 10), &pods, &[]);
        assert_eq!(log, [(0, vec![("b", 3), ("c", 20)]), (20, vec![("a", 10)])]);
        assert_eq!(over, 32);
    }

    #[test]
    fn by_priority() {
        // SHUT-04
        let groups = vec![group(1000, 5), group(10, 7), group(0, 9)];
        let pods = [
            pod("a", 1000, None),
            pod("b", 999, None),
            pod("c", 10, None),
            pod("d", -1, None),
        ];
        let (log, _) = run(groups.clone(), &pods, &[]);
        let all = [
            (0, vec![("d", 9)]),
            (9, vec![("b", 7), ("c", 7)]),
            (16, vec![("a", 5)]),
        ];
        assert_eq!(log, all);
        // Empty groups, and those whose pods are gone, take no time.
        let (log, over) = run(groups.clone(), &pods[..1], &[]);
        assert_eq!((log, over), (vec![(0, vec![("a", 5)])], 7));
        let (log, over) = run(groups, &[], &[]);
        assert_eq!((log, over), (vec![], 2));
    }

    #[test]
    fn it_is_begun_once() {
        let mut shutdown = NodeShutdown::new(shutdown_groups(10, 0));
        assert!(!shutdown.is_under_way());
        assert_eq!(shutdown.next_kills(|_| false, at(0)), []);
        shutdown.begin_shutdown(vec![pod("a", 0, None)], Duration::ZERO);
        assert_eq!(shutdown.next_kills(|_| false, at(1)).len(), 1);
        shutdown.begin_shutdown(vec![pod("b", 0, None)], Duration::ZERO);
        assert_eq!(shutdown.next_kills(|_| false, at(2)), []);
        shutdown.next_kills(|_| true, at(3));
        assert!(shutdown.is_over() && shutdown.is_under_way());
        assert_eq!(shutdown.next_timeout(), None);
    }

    #[test]
    fn it_can_be_called_off() {
        // SHUT-06
        let mut shutdown = NodeShutdown::new(shutdown_groups(10, 0));
        assert!(!shutdown.cancel_shutdown());
        shutdown.begin_shutdown(vec![pod("a", 0, None)], Duration::ZERO);
        assert_eq!(shutdown.next_kills(|_| false, at(1)).len(), 1);
        assert!(shutdown.cancel_shutdown());
        assert!(!shutdown.is_under_way() && shutdown.is_on());
        assert_eq!(shutdown.next_timeout(), None);
        assert_eq!(shutdown.next_kills(|_| false, at(2)), []);
        shutdown.begin_shutdown(vec![pod("b", 0, None)], Duration::ZERO);
        let kills = shutdown.next_kills(|_| false, at(3));
        assert_eq!((kills.len(), kills[0].uid.as_str()), (1, "b"));
    }

    #[test]
    fn how_long_it_takes() {
        // SHUT-02
        assert_eq!(
            total_shutdown_time(&shutdown_groups(30, 10)),
            Duration::from_secs(30)
        );
        assert_eq!(
            total_shutdown_time(&[group(0, u32::MAX), group(1, 1)]).as_secs(),
            1 << 32
        );
    }
}
