//! Preemption: the choice of pods that make room for a critical one (ADM-14), and the wait for them. Names and rules
//! follow kubelet `preemption/preemption.go`.

use alloc::{format, string::String, vec::Vec};
use core::time::Duration;

use super::{
    admission::{ActivePod, PODS},
    pod_kind::is_critical,
    pod_worker::StopStatus,
    qos::{CPU, MEMORY, qos_class},
};
use crate::api::{MonoTime, Pod, PodUid, pod_status::QosClass};

/// Reason of the status and of the event of a pod that makes room.
pub const PREEMPTING: &str = "Preempting";
/// Message of the status and of the event.
pub const MESSAGE: &str = "Preempted in order to admit critical pod";
const DISRUPTION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";
/// Least time to wait for pods that make room, whatever their grace.
const MIN_WAIT: Duration = Duration::from_secs(10);

/// Status of a pod that makes room (ADM-15).
#[must_use]
pub fn preemption_stop_status() -> StopStatus {
    StopStatus {
        reason: PREEMPTING.into(),
        message: MESSAGE.into(),
        disruption: Some(DISRUPTION.into()),
    }
}

/// Pods that wait for room (ADM-15). One row each; it is removed when the room is there, or after its longest wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodsWaitingForRoom(Vec<RoomWait>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct RoomWait {
    uid: PodUid,
    victims: Vec<PodUid>,
    until: MonoTime,
    /// Set once the pod was told that the room is there; it is judged once more.
    granted: bool,
}

impl PodsWaitingForRoom {
    /// Lets the pod wait for its victims. `grace_s`: the longest grace of the victims, seconds.
    pub fn begin_wait(&mut self, uid: PodUid, victims: Vec<PodUid>, grace_s: i64, now: MonoTime) {
        let grace = Duration::from_secs(u64::try_from(grace_s).unwrap_or(0));
        self.0.retain(|wait| wait.uid != uid);
        self.0.push(RoomWait {
            uid,
            victims,
            until: now + MIN_WAIT.max(grace.saturating_mul(3) / 2),
            granted: false,
        });
    }

    /// Returns true while the room for the pod is not there.
    #[must_use]
    pub fn is_waiting(&self, uid: &PodUid) -> bool {
        self.0.iter().any(|wait| wait.uid == *uid && !wait.granted)
    }

    /// Returns true if the pod waits, or is about to be judged.
    #[must_use]
    pub fn is_waiting_or_granted(&self, uid: &PodUid) -> bool {
        self.0.iter().any(|wait| wait.uid == *uid)
    }

    /// Returns a pod that need not wait any longer: all its victims have stopped, or had time enough. `runs`: a
    /// container of the victim may still run.
    pub fn poll_ready(&mut self, runs: impl Fn(&PodUid) -> bool, now: MonoTime) -> Option<PodUid> {
        let is_ready = |wait: &RoomWait| wait.until <= now || !wait.victims.iter().any(&runs);
        let mut all = self.0.iter_mut();
        let wait = all.find(|wait| !wait.granted && is_ready(wait))?;
        wait.granted = true;
        Some(wait.uid.clone())
    }

    /// Removes the row of a pod that is judged now, and returns its victims. `None`: it has none.
    pub fn take_victims(&mut self, uid: &PodUid) -> Option<Vec<PodUid>> {
        let at = self.0.iter().position(|wait| wait.uid == *uid)?;
        Some(self.0.swap_remove(at).victims)
    }

    /// End of the shortest wait.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        let waits = self.0.iter().filter(|wait| !wait.granted);
        waits.map(|wait| wait.until).min()
    }
}

/// Rank of a pod among others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodRank {
    /// QoS class.
    pub class: QosClass,
    /// Static, mirror, or of a system priority.
    pub critical: bool,
    /// `spec.priority`.
    pub priority: Option<i32>,
}

impl PodRank {
    /// Rank of `pod`.
    #[must_use]
    pub fn from_pod(pod: &Pod) -> Self {
        Self {
            class: qos_class(pod),
            critical: is_critical(pod),
            priority: pod.spec.priority,
        }
    }

    /// Returns true if a pod of this rank may have a pod of rank `other` killed for itself.
    #[must_use]
    pub fn may_preempt(&self, other: &Self) -> bool {
        let higher = self
            .priority
            .zip(other.priority)
            .is_some_and(|(a, b)| a > b);
        (self.critical && !other.critical) || higher
    }
}

/// Lacking amount of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Resource.
    pub resource: String,
    /// Amount in the unit of requests, positive.
    pub amount: i64,
}

/// Chooses the pods to kill so that `lacking` is there for a pod of rank `preemptor`; returns their indices in
/// `active`.
///
/// As few Guaranteed pods as possible, then as few Burstable ones, then BestEffort ones. Within a class, the pods whose
/// requests come nearest to `lacking`; of two that come equally near, the smaller one.
///
/// - Errors: all pods that may be killed would not be enough.
pub fn choose_victims(
    preemptor: &PodRank,
    lacking: &[Shortfall],
    active: &[&ActivePod],
) -> Result<Vec<usize>, PreemptionError> {
    let of = |class: QosClass| -> Vec<usize> {
        (0..active.len())
            .filter(|&n| active[n].rank.class == class && preemptor.may_preempt(&active[n].rank))
            .collect()
    };
    let lists = [
        of(QosClass::BestEffort),
        of(QosClass::Burstable),
        of(QosClass::Guaranteed),
    ];
    let [best_effort, burstable, guaranteed] = &lists;
    let without = |gone: &[&[usize]]| {
        let gone = gone.iter().flat_map(|list| list.iter());
        remaining_shortfalls(lacking, gone.map(|n| active[*n]))
    };
    let never = without(&[best_effort, burstable, guaranteed]);
    if !never.is_empty() {
        return Err(PreemptionError(never));
    }
    let first = choose_nearest_pods(guaranteed, without(&[best_effort, burstable]), active)?;
    let second = choose_nearest_pods(burstable, without(&[best_effort, &first]), active)?;
    let third = choose_nearest_pods(best_effort, without(&[&second, &first]), active)?;
    Ok([third, second, first].concat())
}

/// Resources that would still be lacking. Source of the words: kubelet `preemption/preemption.go`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no set of running pods found to reclaim resources: [{list}]", list = list_shortfalls(.0))]
pub struct PreemptionError(Vec<Shortfall>);

fn list_shortfalls(lacking: &[Shortfall]) -> String {
    let one = |s: &Shortfall| format!("(res: {}, q: {}), ", s.resource, s.amount);
    lacking.iter().map(one).collect()
}

fn pod_request(pod: &ActivePod, resource: &str) -> i64 {
    match resource {
        PODS => 1,
        _ => pod.requests.get(resource).copied().unwrap_or(0),
    }
}

/// Returns the resources that are still lacking without these pods.
fn remaining_shortfalls<'a>(
    lacking: &[Shortfall],
    gone: impl Iterator<Item = &'a ActivePod> + Clone,
) -> Vec<Shortfall> {
    lacking
        .iter()
        .filter_map(|s| {
            let freed = gone
                .clone()
                .map(|pod| pod_request(pod, &s.resource))
                .fold(0, i64::saturating_add);
            let amount = s.amount.saturating_sub(freed);
            (amount > 0).then(|| Shortfall {
                resource: s.resource.clone(),
                amount,
            })
        })
        .collect()
}

/// Takes the pod nearest to `lacking`, again and again, until no resource is lacking.
fn choose_nearest_pods(
    pods: &[usize],
    mut lacking: Vec<Shortfall>,
    active: &[&ActivePod],
) -> Result<Vec<usize>, PreemptionError> {
    let mut left = pods.to_vec();
    let mut taken = Vec::new();
    while !lacking.is_empty() {
        let key = |n: &usize| {
            let pod = active[*n];
            (
                squared_distance(pod, &lacking),
                pod_request(pod, MEMORY),
                pod_request(pod, CPU),
            )
        };
        let best = (0..left.len()).min_by_key(|&at| key(&left[at]));
        let Some(best) = best else {
            return Err(PreemptionError(lacking));
        };
        let pod = left.swap_remove(best);
        lacking = remaining_shortfalls(&lacking, core::iter::once(active[pod]));
        taken.push(pod);
    }
    Ok(taken)
}

/// Sum of the squares of the parts that would still be lacking: every resource weighs the same.
fn squared_distance(pod: &ActivePod, lacking: &[Shortfall]) -> u128 {
    /// Parts of one: 20 bits, squared 40.
    const ONE: u128 = 1 << 20;
    lacking
        .iter()
        .map(|s| {
            let rest = s
                .amount
                .saturating_sub(pod_request(pod, &s.resource))
                .max(0);
            let part =
                u128::from(rest.unsigned_abs()) * ONE / u128::from(s.amount.unsigned_abs().max(1));
            part * part
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use QosClass::{BestEffort, Burstable, Guaranteed};

    fn pod(class: QosClass, cpu: i64, memory: i64) -> ActivePod {
        ActivePod {
            requests: [(CPU.into(), cpu), (MEMORY.into(), memory)].into(),
            rank: PodRank {
                class,
                critical: false,
                priority: Some(0),
            },
            ..ActivePod::default()
        }
    }

    #[test]
    fn room_is_waited_for() {
        // ADM-15 PRE-03
        let at = |s: u64| MonoTime(s * 1000);
        let uid = |name: &str| PodUid::from(name);
        let mut waiting = PodsWaitingForRoom::default();
        waiting.begin_wait(uid("critical"), vec![uid("a"), uid("b")], 30, at(0));
        assert!(waiting.is_waiting(&uid("critical")) && !waiting.is_waiting(&uid("a")));
        assert_eq!(waiting.next_timeout(), Some(at(45)));
        let runs_b = |uid: &PodUid| uid.as_str() == "b";
        assert_eq!(waiting.poll_ready(runs_b, at(44)), None);
        assert_eq!(waiting.poll_ready(|_| false, at(44)), Some(uid("critical")));
        assert_eq!(waiting.poll_ready(|_| false, at(44)), None, "once");
        assert!(!waiting.is_waiting(&uid("critical")));
        assert_eq!(
            waiting.take_victims(&uid("critical")),
            Some(vec![uid("a"), uid("b")])
        );
        assert_eq!(waiting, PodsWaitingForRoom::default());
        waiting.begin_wait(uid("late"), vec![uid("b")], 1, at(0));
        assert_eq!(waiting.poll_ready(runs_b, at(9)), None);
        assert_eq!(waiting.poll_ready(runs_b, at(10)), Some(uid("late")));
        assert_eq!(waiting.next_timeout(), None);
        assert_eq!(waiting.take_victims(&uid("a")), None);
    }

    fn critical(mut pod: ActivePod) -> ActivePod {
        pod.rank.critical = true;
        pod
    }

    fn lacking(pairs: &[(&str, i64)]) -> Vec<Shortfall> {
        pairs
            .iter()
            .map(|(resource, amount)| Shortfall {
                resource: (*resource).into(),
                amount: *amount,
            })
            .collect()
    }

    const STATIC: PodRank = PodRank {
        class: Burstable,
        critical: true,
        priority: None,
    };

    #[test]
    fn who_may_go() {
        // ADM-14 PRE-01
        let rank = |critical, priority| PodRank {
            class: Burstable,
            critical,
            priority,
        };
        for (name, a, b, may) in [
            ("critical", rank(true, None), rank(false, None), true),
            ("both critical", rank(true, None), rank(true, None), false),
            ("priority", rank(true, Some(9)), rank(true, Some(8)), true),
            (
                "same priority",
                rank(true, Some(9)),
                rank(true, Some(9)),
                false,
            ),
            ("no priority", rank(true, Some(9)), rank(true, None), false),
            ("neither", rank(false, None), rank(false, None), false),
        ] {
            assert_eq!(a.may_preempt(&b), may, "{name}");
        }
    }

    #[test]
    fn who_goes() {
        // ADM-14 PRE-01 PRE-02
        for (name, need, active, want) in [
            (
                "the nearest",
                lacking(&[(MEMORY, 6)]),
                vec![
                    pod(Burstable, 0, 1),
                    pod(Burstable, 0, 5),
                    pod(Burstable, 0, 6),
                    pod(Burstable, 0, 9),
                ],
                Ok(vec![2]),
            ),
            (
                "rather one that is more than enough than two",
                lacking(&[(MEMORY, 6)]),
                vec![
                    pod(Burstable, 0, 3),
                    pod(Burstable, 0, 9),
                    pod(Burstable, 0, 4),
                ],
                Ok(vec![1]),
            ),
            (
                "Burstable before Guaranteed",
                lacking(&[(MEMORY, 5)]),
                vec![pod(Guaranteed, 0, 5), pod(Burstable, 0, 9)],
                Ok(vec![1]),
            ),
            (
                "both where one is not enough",
                lacking(&[(MEMORY, 9)]),
                vec![
                    pod(Guaranteed, 0, 4),
                    pod(Guaranteed, 0, 5),
                    pod(Burstable, 0, 5),
                ],
                Ok(vec![2, 0]),
            ),
            (
                "two resources",
                lacking(&[(CPU, 100), (MEMORY, 10)]),
                vec![
                    pod(Burstable, 100, 0),
                    pod(Burstable, 0, 10),
                    pod(Burstable, 90, 9),
                    pod(Burstable, 100, 10),
                ],
                Ok(vec![3]),
            ),
            (
                "a place: BestEffort first",
                lacking(&[(PODS, 1)]),
                vec![pod(Burstable, 0, 1), pod(BestEffort, 0, 0)],
                Ok(vec![1]),
            ),
            (
                "critical ones stay",
                lacking(&[(CPU, 2550)]),
                vec![critical(pod(Burstable, 9000, 0)), pod(Burstable, 0, 9)],
                Err("no set of running pods found to reclaim resources: [(res: cpu, q: 2550), ]"),
            ),
            (
                "nobody there",
                lacking(&[(MEMORY, 5), (PODS, 1)]),
                vec![],
                Err(
                    "no set of running pods found to reclaim resources: [(res: memory, q: 5), (res: pods, q: 1), ]",
                ),
            ),
        ] {
            let got = choose_victims(&STATIC, &need, &active.iter().collect::<Vec<_>>());
            assert_eq!(
                got.map_err(|e| format!("{e}")),
                want.map_err(String::from),
                "{name}"
            );
        }
        let equal = [
            pod(Burstable, 5, 9),
            pod(Burstable, 4, 9),
            pod(Burstable, 9, 8),
        ];
        assert_eq!(
            choose_victims(&STATIC, &lacking(&[(PODS, 1)]), &equal.each_ref()),
            Ok(vec![2]),
            "the smaller one"
        );
        assert_eq!(choose_victims(&STATIC, &[], &equal.each_ref()), Ok(vec![]));
    }
}
