use alloc::{borrow::ToOwned, collections::BTreeMap, string::String, vec::Vec};

use super::*;
use crate::api::pod_status::PodPhase;

/// The stored statuses of a node.
#[derive(Default)]
struct Node(BTreeMap<PodUid, (PodStatus, u64, bool, bool)>);

impl LocalPodStates for Node {
    fn local_state(&self, uid: &PodUid) -> Option<LocalPodState<'_>> {
        let (status, version, finished, could_run) = self.0.get(uid)?;
        Some(LocalPodState {
            status,
            version: *version,
            finished: *finished,
            could_run: *could_run,
        })
    }
}

impl Node {
    fn says(&mut self, uid: &str, phase: PodPhase, restarts: u32) {
        let (status, version, ..) = self.0.entry(uid.into()).or_default();
        *status = status_of(phase, restarts);
        *version += 1;
    }

    fn runs(&mut self, uid: &str, could_run: bool, finished: bool) {
        let entry = self.0.get_mut(uid).expect("known");
        (entry.2, entry.3) = (finished, could_run);
    }
}

fn status_of(phase: PodPhase, restarts: u32) -> PodStatus {
    PodStatus {
        phase,
        message: format!("{restarts}"),
        ..PodStatus::default()
    }
}

fn copy(phase: PodPhase, restarts: u32) -> ApiPodCopy {
    ApiPodCopy {
        status: ApiStatusDigest::from_status(&status_of(phase, restarts)),
        deleting: false,
        mirror: false,
    }
}

struct Desk {
    writer: StatusWriter,
    node: Node,
    now: MonoTime,
}

impl Desk {
    fn new() -> Self {
        Self {
            writer: StatusWriter::new(1),
            node: Node::default(),
            now: MonoTime(0),
        }
    }

    /// All that it asks for now, as words.
    fn asks(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(write) = self.writer.poll_write(&self.node, self.now, WallTime(0)) {
            all.push(match write {
                StatusWrite::Patch { uid, body } => {
                    let status = &body["status"];
                    let word = |v: &Value| v.as_str().unwrap_or("-").to_owned();
                    format!(
                        "patch {uid} {} {}",
                        word(&status["phase"]),
                        word(&status["message"])
                    )
                }
                StatusWrite::Delete { uid } => format!("delete {uid}"),
            });
        }
        assert!(self.writer.flights.len() <= MAX_WRITES);
        assert!(
            self.writer.next_timeout(self.now) > self.now,
            "it would be asked in a circle"
        );
        all
    }

    fn patched(&mut self, uid: &str, answer: Result<ApiPodCopy, WriteFailure>) -> WriteFollowUp {
        self.writer.on_patched(&uid.into(), answer, self.now)
    }

    fn says(&mut self, uid: &str, phase: PodPhase, restarts: u32) {
        self.node.says(uid, phase, restarts);
        self.writer.on_status_change();
    }
}

const NONE: [&str; 0] = [];

#[test]
fn newest_wins_and_the_same_is_not_sent() {
    // SM-01 SM-04 SM-05
    let mut desk = Desk::new();
    let uid = PodUid::from("a");
    desk.says("a", PodPhase::Pending, 0);
    assert_eq!(
        desk.asks(),
        NONE,
        "the API does not have it, as far as is known"
    );
    desk.writer.on_api_copy(&uid, copy(PodPhase::Pending, 0));
    assert_eq!(desk.asks(), NONE, "it says so");
    desk.says("a", PodPhase::Running, 1);
    assert_eq!(desk.asks(), ["patch a Running 1"]);
    desk.says("a", PodPhase::Running, 2);
    desk.says("a", PodPhase::Running, 3);
    assert_eq!(desk.asks(), NONE, "one at a time");
    assert_eq!(
        desk.patched("a", Ok(copy(PodPhase::Running, 1))),
        WriteFollowUp::Nothing
    );
    assert_eq!(desk.asks(), ["patch a Running 3"]);
    assert_eq!(
        desk.patched("a", Ok(copy(PodPhase::Running, 3))),
        WriteFollowUp::Nothing
    );
    for _ in 0..100 {
        desk.now = desk.writer.next_timeout(desk.now);
        assert_eq!(desk.asks(), NONE);
    }
    desk.writer.on_pod_gone(&uid);
    desk.says("a", PodPhase::Running, 4);
    assert_eq!(desk.asks(), NONE, "DEL-06: gone in the API");
}

#[test]
fn what_others_change_is_repaired() {
    // SM-04
    let mut desk = Desk::new();
    desk.says("a", PodPhase::Running, 1);
    desk.writer
        .on_api_copy(&"a".into(), copy(PodPhase::Running, 1));
    assert_eq!(desk.asks(), NONE);
    let mut repairs = 0;
    while desk.now < MonoTime(60_000) {
        // Another client overwrites our field after each of our writes.
        desk.writer
            .on_api_copy(&"a".into(), copy(PodPhase::Unknown, 1));
        for ask in desk.asks() {
            assert_eq!(ask, "patch a Running 1");
            assert!(desk.writer.take_external_change());
            repairs += 1;
            assert_eq!(
                desk.patched("a", Ok(copy(PodPhase::Running, 1))),
                WriteFollowUp::Nothing
            );
            assert_eq!(
                repairs == 1,
                desk.now == MonoTime(0),
                "the first one at once"
            );
        }
        desk.now.0 += 1000;
    }
    assert_eq!(repairs, 6);
    // A new status of our own is no repair.
    desk.says("a", PodPhase::Succeeded, 1);
    desk.now.0 += 60_000;
    assert_eq!(desk.asks(), ["patch a Succeeded 1"]);
    assert!(!desk.writer.take_external_change());
}

#[test]
fn ended_told_deleted() {
    // DEL-02 DEL-04 SM-08 SM-11 SM-13 MIR-03 SM-14
    let mut desk = Desk::new();
    let uid = PodUid::from("a");
    let deleting = |phase| ApiPodCopy {
        deleting: true,
        ..copy(phase, 1)
    };
    desk.says("a", PodPhase::Running, 1);
    desk.node.runs("a", true, false);
    desk.writer.on_api_copy(&uid, deleting(PodPhase::Running));
    assert_eq!(desk.asks(), NONE);
    desk.says("a", PodPhase::Failed, 1);
    assert_eq!(desk.asks(), NONE, "containers may still run");
    desk.node.runs("a", false, false);
    desk.writer.on_status_change();
    assert_eq!(desk.asks(), ["patch a Failed 1"]);
    let told = deleting(PodPhase::Failed);
    assert_eq!(desk.patched("a", Ok(told)), WriteFollowUp::Nothing);
    assert_eq!(desk.asks(), NONE, "its volumes are still there");
    desk.node.runs("a", false, true);
    desk.writer.on_status_change();
    assert_eq!(desk.asks(), ["delete a"]);
    assert_eq!(
        desk.writer
            .on_deleted(&uid, Err(WriteFailure::Failed), desk.now),
        WriteFollowUp::Nothing
    );
    desk.now.0 += 1500;
    assert_eq!(desk.asks(), ["delete a"], "until it succeeds");
    // A finalizer keeps the object.
    assert_eq!(
        desk.writer.on_deleted(&uid, Ok(Some(told)), desk.now),
        WriteFollowUp::Nothing
    );
    for _ in 0..10 {
        desk.now.0 += 10_000;
        assert_eq!(desk.asks(), NONE);
    }
    let other = ApiPodCopy {
        status: copy(PodPhase::Failed, 7).status,
        ..told
    };
    desk.writer.on_api_copy(&uid, other);
    assert_eq!(desk.asks(), ["delete a"], "its object changed");
    assert_eq!(
        desk.writer.on_deleted(&uid, Ok(None), desk.now),
        WriteFollowUp::Nothing
    );
    assert!(desk.writer.entries.is_empty());
    // A mirror is never deleted this way.
    desk.writer.on_api_copy(
        &uid,
        ApiPodCopy {
            mirror: true,
            ..told
        },
    );
    assert!(!desk.asks().iter().any(|ask| ask.starts_with("delete")));
}

#[test]
fn failures() {
    // SM-05 DEL-05 DEL-06
    for (name, failure, next, least_ms, most_ms) in [
        (
            "no answer",
            WriteFailure::Failed,
            WriteFollowUp::Nothing,
            1000,
            1500,
        ),
        (
            "404 or 409",
            WriteFailure::Unsure,
            WriteFollowUp::Reread,
            1000,
            1500,
        ),
        (
            "422",
            WriteFailure::Refused,
            WriteFollowUp::Nothing,
            1000,
            1500,
        ),
        (
            "429",
            WriteFailure::Busy {
                retry_after: Some(Duration::from_secs(7)),
            },
            WriteFollowUp::Nothing,
            7000,
            7000,
        ),
        (
            "429 for ever",
            WriteFailure::Busy {
                retry_after: Some(Duration::from_secs(7777)),
            },
            WriteFollowUp::Nothing,
            60_000,
            60_000,
        ),
    ] {
        let mut desk = Desk::new();
        desk.says("a", PodPhase::Running, 1);
        desk.writer
            .on_api_copy(&"a".into(), copy(PodPhase::Pending, 0));
        assert_eq!(desk.asks(), ["patch a Running 1"], "{name}");
        assert_eq!(desk.patched("a", Err(failure)), next, "{name}");
        assert_eq!(desk.asks(), NONE, "{name}");
        desk.now = desk.writer.next_timeout(desk.now);
        assert!(
            (least_ms..=most_ms).contains(&desk.now.0),
            "{name}: {:?}",
            desk.now
        );
        assert_eq!(desk.asks(), ["patch a Running 1"], "{name}");
    }
    for (failure, most_s) in [(WriteFailure::Failed, 15), (WriteFailure::Refused, 450)] {
        let mut desk = Desk::new();
        desk.says("a", PodPhase::Running, 1);
        desk.writer
            .on_api_copy(&"a".into(), copy(PodPhase::Pending, 0));
        let mut last = (MonoTime(0), Duration::ZERO);
        for _ in 0..20 {
            while desk.asks().is_empty() {
                desk.now = desk.writer.next_timeout(desk.now);
            }
            let _ = desk.patched("a", Err(failure));
            last = (desk.now, desk.now - last.0);
        }
        assert!(
            last.1.as_secs() <= most_s && last.1.as_secs() * 3 >= most_s * 2,
            "{last:?}"
        );
    }
}

#[test]
fn what_was_refused_holds_back_nothing_else() {
    // SM-04 DEL-01
    let refused = |failure: WriteFailure| {
        let mut desk = Desk::new();
        desk.says("a", PodPhase::Running, 1);
        desk.writer
            .on_api_copy(&"a".into(), copy(PodPhase::Pending, 0));
        for _ in 0..12 {
            while desk.asks().is_empty() {
                desk.now = desk.writer.next_timeout(desk.now);
            }
            let _ = desk.patched("a", Err(failure));
        }
        desk
    };
    let gap = MAX_BACK_OFF + BACK_OFF / 2;
    let first = |desk: &mut Desk| {
        let began = desk.now;
        loop {
            let asked = desk.asks();
            if let [ask] = &*asked {
                return (ask.clone(), desk.now - began);
            }
            desk.now = desk.writer.next_timeout(desk.now);
        }
    };
    let (ask, took) = first(&mut refused(WriteFailure::Refused));
    assert_eq!(ask, "patch a Running 1");
    assert!(took >= MAX_REFUSED_BACK_OFF, "the same one waits: {took:?}");
    // Another status goes soon, but not at once: it may be refused as well.
    let mut desk = refused(WriteFailure::Refused);
    desk.says("a", PodPhase::Running, 2);
    assert_eq!(desk.asks(), NONE);
    let (ask, took) = first(&mut desk);
    assert_eq!(ask, "patch a Running 2");
    assert!(took >= BACK_OFF && took <= gap, "{took:?}");
    // The second status is refused, too, and waits as long as the first.
    let _ = desk.patched("a", Err(WriteFailure::Refused));
    let (_, took) = first(&mut desk);
    assert!(took >= MAX_REFUSED_BACK_OFF, "{took:?}");
    // The delete of a pod that was marked for deletion goes soon, too.
    let mut desk = refused(WriteFailure::Refused);
    let deleting = ApiPodCopy {
        deleting: true,
        ..copy(PodPhase::Failed, 0)
    };
    desk.writer.on_api_copy(&"a".into(), deleting);
    desk.node.runs("a", false, true);
    desk.writer.on_status_change();
    let (ask, took) = first(&mut desk);
    assert_eq!(ask, "delete a");
    assert!(took <= gap, "{took:?}");
    // Once enough time has passed, another status goes at once.
    let mut desk = refused(WriteFailure::Refused);
    desk.now = desk.now + gap;
    assert_eq!(desk.asks(), NONE);
    desk.says("a", PodPhase::Running, 2);
    assert_eq!(desk.asks(), ["patch a Running 2"]);
    // While the apiserver is out of reach, another status waits as well.
    let mut desk = refused(WriteFailure::Failed);
    desk.says("a", PodPhase::Running, 2);
    let (_, took) = first(&mut desk);
    assert!(took >= MAX_BACK_OFF, "{took:?}");
}

#[test]
fn no_pod_starves_another() {
    let mut desk = Desk::new();
    let uids: Vec<String> = (0..20).map(|n| format!("p{n:02}")).collect();
    for uid in &uids {
        desk.says(uid, PodPhase::Running, 0);
        desk.writer
            .on_api_copy(&PodUid::new(uid.as_str()), copy(PodPhase::Pending, 0));
    }
    let mut served: BTreeMap<String, u32> = BTreeMap::new();
    let mut open = desk.asks();
    for round in 1..200u32 {
        let ask = open.remove(0);
        let uid = ask.split(' ').nth(1).expect("a uid").to_owned();
        *served.entry(uid.clone()).or_default() += 1;
        // By the time a status was sent, every pod has a new one.
        uids.iter()
            .for_each(|uid| desk.says(uid, PodPhase::Running, round));
        let _ = desk.patched(&uid, Ok(copy(PodPhase::Running, 0)));
        open.extend(desk.asks());
    }
    assert!(
        served.len() == 20 && served.values().all(|n| (9..=10).contains(n)),
        "{served:?}"
    );
}

#[test]
fn answers_of_pods_that_are_gone() {
    let mut desk = Desk::new();
    desk.says("a", PodPhase::Running, 1);
    desk.writer
        .on_api_copy(&"a".into(), copy(PodPhase::Pending, 0));
    assert_eq!(desk.asks(), ["patch a Running 1"]);
    desk.writer.on_pod_gone(&"a".into());
    desk.writer
        .on_api_copy(&"a".into(), copy(PodPhase::Pending, 0));
    assert_eq!(desk.asks(), NONE, "the request of before is still out");
    assert_eq!(
        desk.patched("a", Err(WriteFailure::Failed)),
        WriteFollowUp::Nothing
    );
    desk.now.0 += 2000;
    assert_eq!(desk.asks(), ["patch a Running 1"]);
    assert_eq!(
        desk.patched("b", Ok(copy(PodPhase::Running, 1))),
        WriteFollowUp::Nothing
    );
}

#[test]
fn what_a_start_says_on_its_way_waits_for_its_end() {
    // SM-04
    let uid = PodUid::from("a");
    let on_its_way = || {
        let mut desk = Desk::new();
        desk.says("a", PodPhase::Pending, 1);
        desk.writer.on_api_copy(&uid, copy(PodPhase::Pending, 0));
        assert_eq!(
            desk.asks(),
            ["patch a Pending 1"],
            "that it is known is told at once"
        );
        let _ = desk.patched("a", Ok(copy(PodPhase::Pending, 1)));
        assert_eq!(desk.asks(), NONE);
        desk.says("a", PodPhase::Pending, 2);
        assert_eq!(desk.asks(), NONE);
        desk
    };
    let mut desk = on_its_way();
    desk.now = desk.now + START_HOLD / 2;
    desk.says("a", PodPhase::Running, 3);
    assert_eq!(desk.asks(), ["patch a Running 3"], "one request for both");
    // A longer start is reported, and a change meanwhile does not put the report off.
    let mut desk = on_its_way();
    assert_eq!(desk.writer.next_timeout(desk.now), desk.now + START_HOLD);
    desk.now = desk.now + START_HOLD / 2;
    desk.says("a", PodPhase::Pending, 3);
    assert_eq!(desk.asks(), NONE);
    desk.now = desk.now + START_HOLD / 2;
    assert_eq!(desk.asks(), ["patch a Pending 3"]);
    // A pod that is deleted waits for nothing.
    let mut desk = on_its_way();
    let deleting = ApiPodCopy {
        deleting: true,
        ..copy(PodPhase::Pending, 1)
    };
    desk.writer.on_api_copy(&uid, deleting);
    assert_eq!(desk.asks(), ["patch a Pending 2"]);
    // A forgotten pod does not keep the writer awake, either.
    let mut desk = on_its_way();
    desk.node.0.clear();
    desk.now = desk.now + START_HOLD;
    assert_eq!(desk.asks(), NONE);
}
