//! The node's sign of life (LEASE). Names and rules follow component-helpers `apimachinery/lease/controller.go`.
//!
//! ```text
//! Wait ──due──▶ Renew (5 tries, each may read the Node first) ──ok──▶ Wait
//!   ▲             │ all failed, not found        ▲
//!   │             ▼                              │ found
//!   └──created── Ensure: read, create if absent ─┘   (again after 200 ms, doubling to 7 s)
//! ```
//!
//! Independent of node status and of the runtime: whoever drives this does nothing else. A renewal is the smallest
//! patch; a kubelet sends the whole object. It carries no resourceVersion: two holders of one name do not stop each
//! other with a PUT either, they only read once more. The first of an agent also clears `managedFields`, which tell
//! nothing of a lease that one party writes: the apiserver keeps none after that, and every answer is a third shorter.
//! (Source: apimachinery `managedfields`, an update of an object without any tracks none.)
//!
//! The node controller counts a renewal only if `renewTime` grew, so it grows whatever the clock shows: by a
//! microsecond at least, on from the latest that was sent or read. A board without a battery clock stays Ready with
//! that.

use alloc::{boxed::Box, string::String, vec};
use core::time::Duration;

use serde_json::{Value, json};

use crate::api::{Lease, MicroTime, MonoTime, WallTime, meta::OwnerReference};

/// Namespace of all node leases.
pub const NAMESPACE: &str = "kube-node-lease";
/// Renewals tried in one round.
const MAX_TRIES: u32 = 5;
/// First pause after a failed "ensure", milliseconds.
const FIRST_PAUSE_MS: u64 = 200;
/// Longest pause, milliseconds.
const LONGEST_PAUSE_MS: u64 = 7000;
/// Least growth of `renewTime`, nanoseconds: the field has microseconds.
const LEAST_GROWTH_NS: i64 = 1000;
/// Longest time between two renewals where bytes cost money, milliseconds. The shortest grace of a node controller is
/// 40 s.
const METERED_MS: u64 = 20_000;
/// Renewals are late by up to this part of their time, in thousandths.
const JITTER_PERMILLE: u64 = 40;

/// Request to the apiserver.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseRequest {
    /// GET of the own Node, for its uid.
    ReadNode,
    /// GET of the lease.
    ReadLease,
    /// POST of this lease.
    Create(Value),
    /// Merge patch of the lease.
    Renew(Value),
}

/// Outcome of a [`LeaseRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseAnswer {
    /// The Node's uid.
    Node(String),
    /// The lease as it is now.
    Lease(Box<Lease>),
    /// 404.
    NotFound,
    /// 409.
    Conflict,
    /// Anything else, also no answer.
    Failed,
}

#[derive(Clone, Debug, PartialEq)]
enum LeaseStep {
    Wait {
        until: MonoTime,
    },
    Renew {
        tries: u32,
        /// The lease was just read: no use reading it again when all tries fail.
        ensured: bool,
        owner: Option<String>,
    },
    Ensure {
        until: MonoTime,
        /// Renewals tried before, if this is because of a conflict.
        tries: u32,
    },
    Create {
        owner: Option<String>,
    },
}

/// Keeps the lease of one node.
#[derive(Clone, Debug)]
pub struct LeaseKeeper {
    node: String,
    duration_s: u32,
    /// Bytes cost money: a renewal is late rather than early (METER-03).
    is_metered: bool,
    seen: Option<Box<Lease>>,
    step: LeaseStep,
    pause_ms: u64,
    /// Set while the `managedFields` of the lease are cleared.
    cleared: bool,
    /// Latest `renewTime` that was sent or read.
    latest: Option<WallTime>,
}

impl LeaseKeeper {
    /// `duration_s`: `nodeLeaseDurationSeconds`. The first request is due at once.
    #[must_use]
    pub const fn new(node: String, duration_s: u32) -> Self {
        Self {
            node,
            duration_s,
            is_metered: false,
            seen: None,
            step: LeaseStep::Ensure {
                until: MonoTime(0),
                tries: 0,
            },
            pause_ms: 0,
            cleared: false,
            latest: None,
        }
    }

    /// Sets if bytes cost money; counts from the next answer on.
    pub const fn set_metered(&mut self, is_metered: bool) {
        self.is_metered = is_metered;
    }

    /// Time of the next request of [`LeaseKeeper::poll_request`].
    #[must_use]
    pub const fn next_request_time(&self) -> MonoTime {
        match self.step {
            LeaseStep::Wait { until } | LeaseStep::Ensure { until, .. } => until,
            LeaseStep::Renew { .. } | LeaseStep::Create { .. } => MonoTime(0),
        }
    }

    /// The request to send now; each is followed by one [`LeaseKeeper::on_answer`].
    pub fn poll_request(&mut self, now: MonoTime, wall: WallTime) -> Option<LeaseRequest> {
        if now < self.next_request_time() {
            return None;
        }
        if matches!(self.step, LeaseStep::Wait { .. }) {
            self.step = if self.seen.is_some() {
                Self::renew_step(0, false)
            } else {
                LeaseStep::Ensure {
                    until: now,
                    tries: 0,
                }
            };
        }
        let time = self.renew_time(wall);
        let request = match (&self.step, &self.seen) {
            (LeaseStep::Renew { owner, .. }, Some(seen)) => {
                if seen.metadata.owner_references.is_empty() && owner.is_none() {
                    LeaseRequest::ReadNode
                } else {
                    LeaseRequest::Renew(self.renewal_patch(seen, owner.as_deref(), time))
                }
            }
            (LeaseStep::Create { owner: None }, _) => LeaseRequest::ReadNode,
            (LeaseStep::Create { owner: Some(uid) }, _) => {
                LeaseRequest::Create(self.new_lease_object(uid, time))
            }
            (LeaseStep::Renew { .. } | LeaseStep::Wait { .. } | LeaseStep::Ensure { .. }, _) => {
                LeaseRequest::ReadLease
            }
        };
        if matches!(request, LeaseRequest::Create(_) | LeaseRequest::Renew(_)) {
            self.latest = Some(time);
        }
        Some(request)
    }

    /// Returns the time of the clock; at least [`LEAST_GROWTH_NS`] more than the latest that was sent or read.
    fn renew_time(&self, wall: WallTime) -> WallTime {
        let later = |WallTime(latest)| WallTime(latest.saturating_add(LEAST_GROWTH_NS));
        wall.max(self.latest.map_or(wall, later))
    }

    const fn renew_step(tries: u32, ensured: bool) -> LeaseStep {
        LeaseStep::Renew {
            tries,
            ensured,
            owner: None,
        }
    }

    /// Takes the answer to the last request. `random`: any number.
    ///
    /// Returns whether idle connections should be closed: tries fail repeatedly, and perhaps the path they go is dead
    /// (CONF-21).
    pub fn on_answer(&mut self, answer: LeaseAnswer, now: MonoTime, random: u64) -> bool {
        match (self.step.clone(), answer) {
            (LeaseStep::Renew { tries, ensured, .. }, LeaseAnswer::Node(uid)) => {
                self.step = LeaseStep::Renew {
                    tries,
                    ensured,
                    owner: Some(uid),
                };
                false
            }
            (LeaseStep::Create { .. }, LeaseAnswer::Node(uid)) => {
                self.step = LeaseStep::Create { owner: Some(uid) };
                false
            }
            (
                LeaseStep::Renew { .. } | LeaseStep::Create { owner: Some(_) },
                LeaseAnswer::Lease(lease),
            ) => {
                self.cleared = matches!(self.step, LeaseStep::Renew { .. });
                self.seen = Some(lease);
                self.wait_for_renewal(now, random);
                false
            }
            // The lease was deleted: it is made anew at once. (The 404 may also be the Node's.)
            (LeaseStep::Renew { owner, .. }, LeaseAnswer::NotFound)
                if owner.is_some() || self.has_owner() =>
            {
                self.seen = None;
                self.step = LeaseStep::Create { owner: None };
                false
            }
            (LeaseStep::Renew { tries, .. }, LeaseAnswer::Conflict) => {
                self.step = LeaseStep::Ensure {
                    until: now,
                    tries: tries + 1,
                };
                false
            }
            (LeaseStep::Renew { tries, ensured, .. }, _) => {
                self.record_failed_renewal(tries + 1, ensured, now, random);
                tries > 0
            }
            (LeaseStep::Ensure { tries, .. }, LeaseAnswer::Lease(lease)) => {
                // The lease may be of another agent, or of an earlier one with another clock.
                let found = lease.spec.renew_time.map(|MicroTime(at)| at);
                self.latest = self.latest.max(found);
                self.seen = Some(lease);
                self.pause_ms = 0;
                if tries < MAX_TRIES {
                    self.step = Self::renew_step(tries, true);
                } else {
                    self.wait_for_renewal(now, random);
                }
                false
            }
            (LeaseStep::Ensure { .. }, LeaseAnswer::NotFound) => {
                self.seen = None;
                self.step = LeaseStep::Create { owner: None };
                false
            }
            // Without the Node's uid there is no lease: not now, and not before the next round (LEASE-03).
            (LeaseStep::Create { owner: None }, _) => {
                self.wait_for_renewal(now, random);
                false
            }
            (
                LeaseStep::Ensure { .. }
                | LeaseStep::Create { owner: Some(_) }
                | LeaseStep::Wait { .. },
                _,
            ) => {
                let next = self.pause_ms.saturating_mul(2);
                self.pause_ms = next.clamp(FIRST_PAUSE_MS, LONGEST_PAUSE_MS);
                self.step = LeaseStep::Ensure {
                    until: now + Duration::from_millis(self.pause_ms),
                    tries: 0,
                };
                false
            }
        }
    }

    fn has_owner(&self) -> bool {
        let owners = self.seen.as_ref().map(|l| &l.metadata.owner_references);
        owners.is_some_and(|owners| !owners.is_empty())
    }

    fn record_failed_renewal(&mut self, tries: u32, ensured: bool, now: MonoTime, random: u64) {
        if tries < MAX_TRIES {
            self.step = Self::renew_step(tries, ensured);
        } else if ensured {
            self.wait_for_renewal(now, random);
        } else {
            self.step = LeaseStep::Ensure {
                until: now,
                tries: 0,
            };
        }
    }

    /// A quarter of the lease's duration; where bytes cost money half of it, up to a limit.
    fn interval_ms(&self) -> u64 {
        let duration_ms = u64::from(self.duration_s) * 1000;
        match self.is_metered {
            true => (duration_ms / 2).min(METERED_MS).max(duration_ms / 4),
            false => duration_ms / 4,
        }
    }

    fn wait_for_renewal(&mut self, now: MonoTime, random: u64) {
        self.pause_ms = 0;
        let interval_ms = self.interval_ms();
        let jitter_ms = interval_ms * JITTER_PERMILLE / 1000;
        let late_ms = random.checked_rem(jitter_ms + 1).unwrap_or(0);
        self.step = LeaseStep::Wait {
            until: now + Duration::from_millis(interval_ms + late_ms),
        };
    }

    /// The lease to create.
    fn new_lease_object(&self, node_uid: &str, time: WallTime) -> Value {
        let mut lease = Lease::default();
        lease.metadata.name.clone_from(&self.node);
        lease.metadata.namespace = NAMESPACE.into();
        lease.metadata.owner_references = vec![OwnerReference::to_node(&self.node, node_uid)];
        lease.spec.holder_identity.clone_from(&self.node);
        lease.spec.lease_duration_seconds = self.duration_s.into();
        lease.spec.renew_time = Some(MicroTime(time));
        let mut body = serde_json::to_value(lease).unwrap_or_default();
        body["apiVersion"] = json!("coordination.k8s.io/v1");
        body["kind"] = json!("Lease");
        body
    }

    /// The smallest merge patch that renews `seen`, and takes it over if it is another's.
    fn renewal_patch(&self, seen: &Lease, node_uid: Option<&str>, time: WallTime) -> Value {
        let mut body = json!({"spec": {"renewTime": MicroTime(time)}});
        if seen.spec.holder_identity != self.node {
            body["spec"]["holderIdentity"] = json!(self.node);
        }
        if seen.spec.lease_duration_seconds != i64::from(self.duration_s) {
            body["spec"]["leaseDurationSeconds"] = json!(self.duration_s);
        }
        if let Some(uid) = node_uid.filter(|_| seen.metadata.owner_references.is_empty()) {
            let owner = OwnerReference::to_node(&self.node, uid);
            body["metadata"]["ownerReferences"] = json!([owner]);
        }
        if !self.cleared {
            body["metadata"]["managedFields"] = json!([{}]);
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString as _, vec::Vec};

    use super::*;

    const AT: WallTime = WallTime(1_700_000_000_123_456_789);

    fn keeper() -> LeaseKeeper {
        LeaseKeeper::new("pi".into(), 40)
    }

    fn lease(holder: &str, owned: bool) -> LeaseAnswer {
        let mut lease = Lease::default();
        lease.spec.holder_identity = holder.into();
        lease.spec.lease_duration_seconds = 40;
        if owned {
            lease.metadata.owner_references = vec![OwnerReference::to_node("pi", "nu")];
        }
        LeaseAnswer::Lease(Box::new(lease))
    }

    /// Sends the next request, answers it with `answer`, and returns the request in one word.
    fn ask(keeper: &mut LeaseKeeper, now: u64, answer: LeaseAnswer) -> &'static str {
        let asked = match keeper.poll_request(MonoTime(now), AT) {
            None => return "nothing",
            Some(LeaseRequest::ReadNode) => "node",
            Some(LeaseRequest::ReadLease) => "read",
            Some(LeaseRequest::Create(_)) => "create",
            Some(LeaseRequest::Renew(_)) => "renew",
        };
        keeper.on_answer(answer, MonoTime(now), 0);
        asked
    }

    #[test]
    fn a_new_lease() {
        // LEASE-01 LEASE-03
        let mut keeper = keeper();
        assert_eq!(ask(&mut keeper, 0, LeaseAnswer::NotFound), "read");
        assert_eq!(ask(&mut keeper, 0, LeaseAnswer::Node("nu".into())), "node");
        let Some(LeaseRequest::Create(body)) = keeper.poll_request(MonoTime(0), AT) else {
            panic!("create")
        };
        assert_eq!(
            body,
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "pi", "namespace": "kube-node-lease", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "pi", "uid": "nu"}]},
                "spec": {"holderIdentity": "pi", "leaseDurationSeconds": 40,
                    "renewTime": "2023-11-14T22:13:20.123456Z"},
            })
        );
        keeper.on_answer(lease("pi", true), MonoTime(0), 0);
        assert_eq!(ask(&mut keeper, 9_999, LeaseAnswer::Failed), "nothing");
        assert_eq!(ask(&mut keeper, 10_000, lease("pi", true)), "renew");
    }

    #[test]
    fn renewals_are_small() {
        // LEASE-01 LEASE-04
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "pi", "uid": "nu"}]);
        let time = "2023-11-14T22:13:20.123456Z";
        for (name, found, node, body) in [
            (
                "own",
                lease("pi", true),
                None,
                json!({"spec": {"renewTime": time}, "metadata": {"managedFields": [{}]}}),
            ),
            (
                "another's is taken over",
                lease("x", true),
                None,
                json!({"spec": {"renewTime": time, "holderIdentity": "pi"}, "metadata": {"managedFields": [{}]}}),
            ),
            (
                "nobody owns it",
                lease("pi", false),
                Some("nu"),
                json!({"spec": {"renewTime": time}, "metadata": {"ownerReferences": owner, "managedFields": [{}]}}),
            ),
        ] {
            let mut keeper = keeper();
            assert_eq!(ask(&mut keeper, 0, found), "read", "{name}");
            if let Some(uid) = node {
                assert_eq!(
                    ask(&mut keeper, 0, LeaseAnswer::Node(uid.into())),
                    "node",
                    "{name}"
                );
            }
            let renewal = keeper.poll_request(MonoTime(0), AT);
            assert_eq!(renewal, Some(LeaseRequest::Renew(body)), "{name}");
        }
        let mut other = LeaseKeeper::new("pi".into(), 80);
        assert_eq!(ask(&mut other, 0, lease("pi", true)), "read");
        let Some(LeaseRequest::Renew(body)) = other.poll_request(MonoTime(0), AT) else {
            panic!("renew")
        };
        assert_eq!(body["spec"]["leaseDurationSeconds"], 80);
        assert!(body.to_string().len() < 120, "{body}");
        // Clearing once is enough, until the lease is made anew.
        assert!(!other.on_answer(lease("pi", true), MonoTime(0), 0));
        let Some(LeaseRequest::Renew(body)) = other.poll_request(other.next_request_time(), AT)
        else {
            panic!("renew")
        };
        assert!(
            body["metadata"].is_null() && body.to_string().len() < 90,
            "{body}"
        );
    }

    #[test]
    fn the_rhythm() {
        // LEASE-02 METER-03
        for (is_metered, duration_s, random, next_ms) in [
            (false, 40, 0, 10_000),
            (false, 40, 400, 10_400),
            (false, 40, 401, 10_000),
            (false, 4, u64::MAX, 1_000 + u64::MAX % 41),
            (false, 1, 3, 253),
            (true, 40, 0, 20_000),
            (true, 40, 800, 20_800),
            (true, 20, 0, 10_000),
            (true, 60, 0, 20_000),
            (true, 200, 0, 50_000),
        ] {
            let mut keeper = LeaseKeeper::new("pi".into(), duration_s);
            keeper.set_metered(is_metered);
            keeper.on_answer(lease("pi", true), MonoTime(0), 0);
            keeper.on_answer(lease("pi", true), MonoTime(0), random);
            assert_eq!(
                keeper.next_request_time(),
                MonoTime(next_ms),
                "{is_metered} {duration_s} {random}"
            );
        }
    }

    /// Answers the requests one after the other with `answers`; returns each with its time.
    fn course(keeper: &mut LeaseKeeper, answers: &[LeaseAnswer]) -> Vec<(u64, &'static str)> {
        let mut now = 0;
        let mut course = Vec::new();
        for answer in answers {
            now = now.max(keeper.next_request_time().0);
            course.push((now, ask(keeper, now, answer.clone())));
        }
        course
    }

    fn kept() -> LeaseKeeper {
        let mut keeper = keeper();
        keeper.on_answer(lease("pi", true), MonoTime(0), 0);
        keeper.on_answer(lease("pi", true), MonoTime(0), 0);
        keeper
    }

    #[test]
    fn when_it_fails() {
        use LeaseAnswer::{Conflict, Failed, NotFound};
        // LEASE-04
        let found = || lease("pi", true);
        let t = 10_000;
        for (name, answers, want) in [
            (
                "one failure",
                vec![Failed, found(), found()],
                vec![(t, "renew"), (t, "renew"), (2 * t, "renew")],
            ),
            (
                "five failures: read it",
                vec![
                    Failed,
                    Failed,
                    Failed,
                    Failed,
                    Failed,
                    found(),
                    found(),
                    found(),
                ],
                vec![
                    (t, "renew"),
                    (t, "renew"),
                    (t, "renew"),
                    (t, "renew"),
                    (t, "renew"),
                    (t, "read"),
                    (t, "renew"),
                    (2 * t, "renew"),
                ],
            ),
            (
                "and five more: next round",
                vec![
                    Failed,
                    Failed,
                    Failed,
                    Failed,
                    Failed,
                    found(),
                    Failed,
                    Failed,
                    Failed,
                    Failed,
                    Failed,
                    found(),
                ],
                vec![
                    (t, "renew"),
                    (t, "renew"),
                    (t, "renew"),
                    (t, "renew"),
                    (t, "renew"),
                    (t, "read"),
                    (t, "renew"),
                    (t, "renew"),
                    (t, "renew"),
                    (t, "renew"),
                    (t, "renew"),
                    (2 * t, "renew"),
                ],
            ),
            (
                "conflict: read it and go on",
                vec![Conflict, found(), found(), found()],
                vec![(t, "renew"), (t, "read"), (t, "renew"), (2 * t, "renew")],
            ),
            (
                "deleted",
                vec![NotFound, LeaseAnswer::Node("nu".into()), found(), found()],
                vec![(t, "renew"), (t, "node"), (t, "create"), (2 * t, "renew")],
            ),
        ] {
            assert_eq!(course(&mut kept(), &answers), want, "{name}");
        }
    }

    #[test]
    fn without_an_apiserver() {
        // LEASE-04
        let answers = vec![LeaseAnswer::Failed; 9];
        let times: Vec<u64> = course(&mut keeper(), &answers)
            .into_iter()
            .map(|(at, asked)| {
                assert_eq!(asked, "read");
                at
            })
            .collect();
        let pauses: Vec<u64> = times.windows(2).map(|w| w[1] - w[0]).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 7000, 7000]);
    }

    #[test]
    fn renew_time_always_grows() {
        // TIME-01
        const YEARS_50_NS: i64 = 50 * 365 * 86_400 * 1_000_000_000;
        let at = |time: &str| WallTime::parse(time).expect("a time");
        let (now, set_back) = (
            at("2026-01-01T00:00:00.5Z"),
            WallTime(at("2026-01-01T00:00:00.5Z").0 - YEARS_50_NS),
        );
        let found = |time: &str| {
            let LeaseAnswer::Lease(mut lease) = lease("pi", true) else {
                panic!("a lease")
            };
            lease.spec.renew_time = Some(MicroTime(at(time)));
            LeaseAnswer::Lease(lease)
        };
        let sent = |keeper: &mut LeaseKeeper, wall: WallTime| loop {
            match keeper
                .poll_request(keeper.next_request_time(), wall)
                .expect("a request")
            {
                LeaseRequest::Renew(body) | LeaseRequest::Create(body) => {
                    return body["spec"]["renewTime"].as_str().unwrap_or("").to_string();
                }
                LeaseRequest::ReadNode => {
                    keeper.on_answer(LeaseAnswer::Node("nu".into()), MonoTime(0), 0)
                }
                LeaseRequest::ReadLease => keeper.on_answer(LeaseAnswer::NotFound, MonoTime(0), 0),
            };
        };
        for (name, before, answers, wall, want) in [
            (
                "as the clock goes",
                "2025-12-31T23:59:50Z",
                vec![],
                now,
                "2026-01-01T00:00:00.500000Z",
            ),
            (
                "the clock stands still or is set back",
                "2026-01-01T00:00:00.5Z",
                vec![],
                now,
                "2026-01-01T00:00:00.500001Z",
            ),
            (
                "no clock: on from what an earlier agent wrote",
                "2026-01-01T00:00:00Z",
                vec![],
                set_back,
                "2026-01-01T00:00:00.000001Z",
            ),
            (
                "and on, though the answer to a renewal says no time",
                "2026-01-01T00:00:00Z",
                vec![lease("pi", true), lease("pi", true)],
                set_back,
                "2026-01-01T00:00:00.000003Z",
            ),
            (
                "an answer that was lost may have been a renewal",
                "2026-01-01T00:00:00Z",
                vec![LeaseAnswer::Failed],
                set_back,
                "2026-01-01T00:00:00.000002Z",
            ),
            (
                "another one wrote",
                "2026-01-01T00:00:00Z",
                vec![LeaseAnswer::Conflict, found("2030-01-01T00:00:00.000007Z")],
                now,
                "2030-01-01T00:00:00.000008Z",
            ),
            (
                "an older state of the cluster came back",
                "2026-01-01T00:00:00Z",
                vec![LeaseAnswer::Conflict, found("2025-01-01T00:00:00Z")],
                set_back,
                "2026-01-01T00:00:00.000002Z",
            ),
            (
                "made anew: the controller remembers the one before",
                "2026-01-01T00:00:00Z",
                vec![LeaseAnswer::NotFound],
                set_back,
                "2026-01-01T00:00:00.000002Z",
            ),
        ] {
            let mut keeper = keeper();
            keeper.on_answer(found(before), MonoTime(0), 0);
            for answer in answers {
                keeper.poll_request(keeper.next_request_time(), set_back);
                keeper.on_answer(answer, keeper.next_request_time(), 0);
            }
            assert_eq!(sent(&mut keeper, wall), want, "{name}");
        }
    }

    #[test]
    fn without_the_node() {
        use LeaseAnswer::{Failed, NotFound};
        // LEASE-03
        let node = || LeaseAnswer::Node("nu".into());
        for (name, answers, want) in [
            (
                "not created in this round",
                vec![NotFound, Failed, NotFound, node()],
                vec![(0, "read"), (0, "node"), (10_000, "read"), (10_000, "node")],
            ),
            (
                "not renewed either",
                vec![
                    lease("pi", false),
                    NotFound,
                    node(),
                    lease("pi", true),
                    lease("pi", true),
                ],
                vec![
                    (0, "read"),
                    (0, "node"),
                    (0, "node"),
                    (0, "renew"),
                    (10_000, "renew"),
                ],
            ),
            (
                "created by another meanwhile",
                vec![NotFound, node(), LeaseAnswer::Conflict, lease("pi", true)],
                vec![(0, "read"), (0, "node"), (0, "create"), (200, "read")],
            ),
        ] {
            assert_eq!(course(&mut keeper(), &answers), want, "{name}");
        }
    }

    #[test]
    fn a_path_that_is_dead() {
        // CONF-21
        let mut keeper = kept();
        let now = MonoTime(10_000);
        let closes: Vec<bool> = (0..3)
            .map(|_| {
                keeper.poll_request(now, AT).expect("renewal");
                keeper.on_answer(LeaseAnswer::Failed, now, 0)
            })
            .collect();
        assert_eq!(closes, [false, true, true]);
    }
}
