use alloc::{
    borrow::ToOwned,
    string::{String, ToString},
    vec::Vec,
};

use serde_json::json;

use super::*;

mod limits;

/// A poller and its requests, with helpers that make a row read as a sentence.
struct Desk {
    poll: ApiPoll,
    now: MonoTime,
    tickets: Vec<(String, GetTicket)>,
}

fn item(uid: &str, version: &str) -> PodListItem {
    PodListItem {
        namespace: "ns".into(),
        name: format!("pod-{uid}").into(),
        uid: uid.into(),
        version: version.into(),
        deleting: false,
        mirror: false,
    }
}

/// Makes the sight of an object in that version; `spec` stands for its semantic part, `gate` for what others write into
/// the status.
fn object(version: &str, spec: u32, gate: u32, phase: &str) -> PodObjectSummary {
    PodObjectSummary::from_raw_object(&json!({
        "metadata": {"resourceVersion": version},
        "spec": {"n": spec},
        "status": {"phase": phase, "conditions": [{"type": "gate", "status": gate}]},
    }))
}

fn running(version: &str) -> PodObjectSummary {
    object(version, 1, 1, "Running")
}

fn deleting(mut sight: PodObjectSummary) -> PodObjectSummary {
    sight.deleting = true;
    sight
}

const SERVER: ApiRequestFailure = ApiRequestFailure::Server { retry_after: None };

impl Desk {
    fn new(paces: PollIntervals) -> Self {
        Self {
            poll: ApiPoll::new(paces, 30, 1),
            now: MonoTime(0),
            tickets: Vec::new(),
        }
    }

    /// All requests that the poller makes now, as words.
    fn asks(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(ask) = self.poll.poll(self.now) {
            all.push(match ask {
                PollRequest::List(list) => format!("{list:?}"),
                PollRequest::Get { ticket, name, .. } => {
                    self.tickets.push((name.to_string(), ticket));
                    format!("get {name}")
                }
                PollRequest::Watch { from } => format!("watch {from}"),
                PollRequest::Gone(uid) => format!("gone {uid}"),
                PollRequest::Refuse(item) => format!("refuse {}", item.uid),
                PollRequest::Complete => {
                    let known: Vec<PodUid> = self.poll.delivered_pods().collect();
                    let known: Vec<&str> = known.iter().map(|uid| &**uid).collect();
                    format!("complete {}", known.join(" "))
                }
            });
            assert!(all.len() < 100, "{all:?}");
        }
        let next = self.poll.next_timeout(self.now);
        assert!(next > self.now, "it would be asked in a circle");
        all
    }

    fn wait(&mut self, ms: u64) {
        self.now.0 += ms;
    }

    fn ticket(&mut self, uid: &str) -> GetTicket {
        let name = format!("pod-{uid}");
        let at = self.tickets.iter().position(|(n, _)| *n == name);
        self.tickets.remove(at.expect("asked for")).1
    }

    fn read(&mut self, uid: &str, sight: PodObjectSummary) -> DeliveryVerdict {
        let ticket = self.ticket(uid);
        self.poll
            .on_read(ticket, &item(uid, "unused"), sight, self.now)
    }

    fn fails(&mut self, uid: &str, failure: ApiRequestFailure) {
        let ticket = self.ticket(uid);
        self.poll.on_read_failed(ticket, failure, self.now);
    }

    fn list(&mut self, version: &str, items: &[(&str, &str)]) {
        for (uid, version) in items {
            self.poll.on_list_item(&item(uid, version), self.now);
        }
        self.poll.on_list_end(version, self.now);
    }

    fn ring(&mut self, kind: PodWatchEventKind, uid: &str, version: &str) {
        let item = item(uid, version);
        self.poll
            .on_watch_event(&PodWatchEvent { kind, item }, self.now);
    }

    /// Past the start: pod `a` in version 1, everything listed, the doorbell open.
    fn started() -> Self {
        let mut desk = Self::new(PollIntervals::NORMAL);
        assert_eq!(desk.asks(), ["Live"]);
        desk.list("5", &[("a", "1")]);
        assert_eq!(desk.asks(), ["get pod-a", "watch 5"]);
        assert_eq!(desk.read("a", running("1")), DeliveryVerdict::Deliver);
        assert_eq!(desk.asks(), ["complete a"]);
        desk.wait(1000);
        assert_eq!(desk.asks(), ["All"]);
        desk.list("5", &[("a", "1"), ("old-job", "1")]);
        assert_eq!(desk.asks(), Vec::<String>::new());
        desk
    }
}

#[test]
fn unchanged_pods_cost_nothing() {
    let mut desk = Desk::started();
    for round in 0..5 {
        desk.wait(270_000);
        desk.poll.on_watch_end(DoorbellEnd::Clean, desk.now);
        assert_eq!(desk.asks(), ["watch 5"], "{round}: as good as a list");
    }
    desk.wait(300_000);
    assert_eq!(desk.asks(), ["Live"], "the doorbell never ended");
    desk.list("9", &[("a", "1")]);
    assert_eq!(desk.asks(), ["complete a"]);
}

#[test]
fn paces() {
    for (name, paces, lists_in_10_min) in [
        (
            "no doorbell",
            PollIntervals {
                doorbell: false,
                ..PollIntervals::NORMAL
            },
            60,
        ),
        (
            "metered, no doorbell",
            PollIntervals {
                doorbell: false,
                ..PollIntervals::METERED
            },
            10,
        ),
        ("a doorbell that stays open", PollIntervals::NORMAL, 2),
    ] {
        let mut desk = Desk::new(paces);
        let mut lists = 0;
        while desk.now < MonoTime(600_000) {
            for ask in desk.asks() {
                if ask == "Live" {
                    lists += 1;
                }
                if ask == "Live" || ask == "All" {
                    desk.list("5", &[]);
                }
            }
            let next = desk.poll.next_timeout(desk.now);
            desk.now = next;
        }
        assert_eq!(lists, lists_in_10_min, "{name}");
    }
}

#[test]
fn lists_come_less_often_while_somebody_says_so() {
    // METER-02
    let mut desk = Desk::new(PollIntervals {
        doorbell: false,
        ..PollIntervals::NORMAL
    });
    let until = |desk: &mut Desk, end: u64| {
        let mut lists = 0;
        while desk.now < MonoTime(end) {
            for ask in desk.asks() {
                lists += u32::from(ask == "Live");
                if ask == "Live" || ask == "All" {
                    desk.list("5", &[]);
                }
            }
            desk.now = desk.poll.next_timeout(desk.now);
        }
        lists
    };
    assert_eq!(until(&mut desk, 600_000), 60);
    desk.poll.set_list_interval(PollIntervals::METERED.list);
    assert_eq!(until(&mut desk, 1_200_000), 10);
    desk.poll.set_list_interval(PollIntervals::NORMAL.list);
    assert_eq!(until(&mut desk, 1_800_000), 60);
}

#[test]
fn rings() {
    let mut desk = Desk::started();
    desk.ring(PodWatchEventKind::Changed, "a", "1");
    assert_eq!(desk.asks(), Vec::<String>::new(), "nothing new");
    desk.ring(PodWatchEventKind::Changed, "a", "6");
    desk.ring(PodWatchEventKind::Changed, "b", "7");
    assert_eq!(desk.asks(), ["get pod-b", "get pod-a"]);
    // A pod that changes while it is read is read again, and the first answer is used all the same.
    desk.ring(PodWatchEventKind::Changed, "a", "8");
    assert_eq!(
        desk.read("a", object("6", 2, 1, "Running")),
        DeliveryVerdict::Deliver
    );
    assert_eq!(desk.read("b", running("7")), DeliveryVerdict::Deliver);
    assert_eq!(desk.asks(), ["get pod-a"]);
    assert_eq!(
        desk.read("a", object("8", 3, 1, "Running")),
        DeliveryVerdict::Deliver
    );
    // A deleted pod is read once more; a deleted pod that was never known is ignored.
    desk.ring(PodWatchEventKind::Deleted, "b", "9");
    desk.ring(PodWatchEventKind::Deleted, "c", "10");
    assert_eq!(desk.asks(), ["get pod-b"]);
    desk.fails("b", ApiRequestFailure::NotFound);
    assert_eq!(desk.asks(), ["gone b"]);
    // Foreign events were seen, so a clean end proves nothing: the five minutes go on.
    desk.wait(299_000);
    desk.poll.on_watch_end(DoorbellEnd::Clean, desk.now);
    assert_eq!(
        desk.asks(),
        ["Live"],
        "its pace without a doorbell is the shorter one"
    );
    desk.list("11", &[("a", "8")]);
    assert_eq!(desk.asks(), ["complete a", "watch 11"]);
    desk.poll.on_unknown_watch_event();
    desk.wait(1000);
    assert_eq!(
        desk.asks(),
        ["Live"],
        "over-long: nobody knows whose it was"
    );
}

#[test]
fn a_broken_doorbell_means_a_list() {
    let mut desk = Desk::started();
    desk.wait(60_000);
    desk.poll.on_watch_end(DoorbellEnd::Broken, desk.now);
    assert_eq!(desk.asks(), ["Live"]);
    desk.poll.on_list_failed(SERVER, desk.now);
    assert_eq!(desk.asks(), Vec::<String>::new());
    desk.wait(1500);
    assert_eq!(desk.asks(), ["Live"]);
    desk.list("12", &[("a", "1")]);
    assert_eq!(
        desk.asks(),
        ["complete a", "watch 12"],
        "anew from the list"
    );
    let mut waits = Vec::new();
    for _ in 0..8 {
        desk.poll.on_watch_end(DoorbellEnd::Broken, desk.now);
        let start = desk.now;
        loop {
            desk.now = desk.poll.next_timeout(desk.now);
            let asks = desk.asks();
            if asks.iter().any(|a| a.starts_with("Live")) {
                desk.list("12", &[("a", "1")]);
            }
            if desk
                .asks()
                .iter()
                .chain(&asks)
                .any(|a| a.starts_with("watch"))
            {
                break;
            }
        }
        waits.push((desk.now - start).as_secs());
    }
    assert!(
        waits[..6].is_sorted() && waits[7] >= 60 && waits[7] <= 90,
        "{waits:?}"
    );
}

#[test]
fn own_writes_cost_no_read() {
    for (name, echo_first, answer, verdict, asks) in [
        (
            "as a rule",
            false,
            running("6"),
            DeliveryVerdict::Same,
            vec![],
        ),
        (
            "the echo comes first",
            true,
            running("6"),
            DeliveryVerdict::Same,
            vec![],
        ),
        (
            "somebody edited it meanwhile",
            false,
            object("6", 2, 1, "Running"),
            DeliveryVerdict::Deliver,
            vec![],
        ),
        (
            "somebody set a gate meanwhile",
            true,
            object("6", 1, 2, "Running"),
            DeliveryVerdict::Deliver,
            vec![],
        ),
        (
            "the answer is older than the last ring",
            true,
            running("5"),
            DeliveryVerdict::Same,
            vec!["get pod-a"],
        ),
    ] {
        let mut desk = Desk::started();
        desk.poll.on_write_started(&"a".into());
        if echo_first {
            desk.ring(PodWatchEventKind::Changed, "a", "6");
            assert_eq!(
                desk.asks(),
                Vec::<String>::new(),
                "{name}: while it is written"
            );
        }
        let said = desk
            .poll
            .on_write_ended(&"a".into(), Some(answer), desk.now);
        assert_eq!(said, verdict, "{name}");
        if !echo_first {
            desk.ring(PodWatchEventKind::Changed, "a", "6");
        }
        assert_eq!(desk.asks(), asks, "{name}");
    }
    let mut desk = Desk::started();
    desk.poll.on_write_started(&"a".into());
    desk.ring(PodWatchEventKind::Changed, "a", "6");
    let said = desk.poll.on_write_ended(&"a".into(), None, desk.now);
    assert_eq!(said, DeliveryVerdict::Same);
    assert_eq!(desk.asks(), ["get pod-a"], "done, but the answer was lost");
}

#[test]
fn what_a_write_overtook_is_not_used() {
    let mut desk = Desk::started();
    desk.ring(PodWatchEventKind::Changed, "a", "6");
    assert_eq!(desk.asks(), ["get pod-a"]);
    desk.poll.on_write_started(&"a".into());
    let said = desk
        .poll
        .on_write_ended(&"a".into(), Some(running("7")), desk.now);
    assert_eq!(said, DeliveryVerdict::Same);
    assert_eq!(
        desk.read("a", object("6", 2, 1, "Running")),
        DeliveryVerdict::Ignore
    );
    assert_eq!(
        desk.asks(),
        ["get pod-a"],
        "the ring was no echo, as far as is known"
    );
    assert_eq!(desk.read("a", running("7")), DeliveryVerdict::Deliver);
    assert_eq!(desk.asks(), Vec::<String>::new());
}

#[test]
fn absence_is_a_question() {
    // SRC-30 SRC-31
    let mut desk = Desk::started();
    for uid in ["b", "c", "d"] {
        desk.ring(PodWatchEventKind::Changed, uid, "6");
    }
    desk.asks();
    for uid in ["b", "c"] {
        assert_eq!(desk.read(uid, running("6")), DeliveryVerdict::Deliver);
    }
    desk.asks();
    assert_eq!(desk.read("d", running("6")), DeliveryVerdict::Deliver);
    let list_again = |desk: &mut Desk| {
        desk.poll.on_unknown_watch_event();
        desk.wait(1000);
        assert_eq!(desk.asks(), ["Live"]);
    };
    // A list that fails after its first page lacks pods, and proves nothing.
    list_again(&mut desk);
    desk.poll.on_list_item(&item("a", "1"), desk.now);
    desk.poll.on_list_failed(SERVER, desk.now);
    assert_eq!(desk.asks(), Vec::<String>::new());
    desk.wait(1500);
    assert_eq!(desk.asks(), ["Live"]);
    desk.list("9", &[("a", "1")]);
    assert_eq!(desk.asks(), ["get pod-b", "get pod-c"]);
    assert_eq!(
        desk.read("b", running("6")),
        DeliveryVerdict::Deliver,
        "it is there: the list was stale"
    );
    desk.fails("c", SERVER);
    assert_eq!(desk.asks(), Vec::<String>::new(), "no answer is no answer");
    desk.wait(1500);
    assert_eq!(desk.asks(), ["get pod-d", "get pod-c"]);
    desk.fails("d", ApiRequestFailure::NotFound);
    // Another pod of that name: the old one is gone, the new one is read.
    let ticket = desk.ticket("c");
    let new = PodListItem {
        uid: "c2".into(),
        ..item("c", "10")
    };
    assert_eq!(
        desk.poll.on_read(ticket, &new, running("10"), desk.now),
        DeliveryVerdict::Deliver
    );
    assert_eq!(desk.asks(), ["gone d", "gone c", "complete a b c2"]);
}

#[test]
fn forbidden_is_settled_by_a_list_of_all() {
    let mut desk = Desk::started();
    desk.ring(PodWatchEventKind::Deleted, "a", "6");
    assert_eq!(desk.asks(), ["get pod-a"]);
    desk.fails("a", ApiRequestFailure::Forbidden);
    desk.wait(1000);
    assert_eq!(desk.asks(), ["All"]);
    desk.list("7", &[]);
    assert_eq!(desk.asks(), ["gone a"]);
    // A missing right removes no pod, and does not lead to requests without a pause.
    let mut desk = Desk::started();
    desk.ring(PodWatchEventKind::Changed, "a", "6");
    let mut requests = 0;
    while desk.now < MonoTime(120_000) {
        for ask in desk.asks() {
            requests += 1;
            assert!(!ask.starts_with("gone"));
            match ask.as_str() {
                "get pod-a" => desk.fails("a", ApiRequestFailure::Forbidden),
                "All" | "Live" => desk.list("7", &[("a", "6")]),
                _ => {}
            }
        }
        desk.now = desk
            .poll
            .next_timeout(desk.now)
            .min(MonoTime(desk.now.0 + 10_000));
    }
    assert!(requests < 20, "{requests}");
    assert_eq!(desk.poll.delivered_pods().count(), 1);
}

#[test]
fn a_store_that_went_back_in_time() {
    let mut desk = Desk::started();
    desk.poll.on_write_started(&"a".into());
    let said = desk
        .poll
        .on_write_ended(&"a".into(), Some(running("9")), desk.now);
    assert_eq!(said, DeliveryVerdict::Same);
    desk.poll.on_watch_end(DoorbellEnd::Broken, desk.now);
    desk.wait(1000);
    assert_eq!(desk.asks(), ["Live"]);
    // The pod's version was given out again, to another object.
    desk.list("8", &[("a", "9")]);
    assert_eq!(desk.asks()[..2], ["complete a", "get pod-a"]);
    let said = desk.read("a", object("9", 2, 1, "Running"));
    assert_eq!(said, DeliveryVerdict::Deliver);
    desk.asks();
    // A write of ours that a list under way does not know yet is no sign of a version given out again.
    desk.wait(300_000);
    assert_eq!(desk.asks(), ["Live"]);
    desk.poll.on_write_started(&"a".into());
    let said = desk
        .poll
        .on_write_ended(&"a".into(), Some(object("21", 2, 1, "Running")), desk.now);
    assert_eq!(said, DeliveryVerdict::Same);
    desk.list("20", &[("a", "21")]);
    assert_eq!(desk.asks(), ["complete a", "watch 20"]);
}

/// The answer to a deletion is late, and the store was restored meanwhile.
#[test]
fn what_is_shown_after_it_was_deleted_is_there_again() {
    for restored in [false, true] {
        let mut desk = Desk::started();
        desk.poll.on_write_started(&"a".into());
        desk.wait(300_000);
        assert_eq!(desk.asks(), ["Live"]);
        let version = if restored { "3" } else { "1" };
        desk.list("9", &[("a", version)]);
        let asked = desk.asks();
        assert!(!asked.contains(&"get pod-a".to_owned()), "{asked:?}");
        let _ = desk.poll.on_write_ended(&"a".into(), None, desk.now);
        desk.poll.on_deleted(&"a".into());
        desk.wait(1000);
        let asked = desk.asks();
        assert!(asked.contains(&"gone a".to_owned()), "{asked:?}");
        assert_eq!(asked.contains(&"Live".to_owned()), restored, "{asked:?}");
        if restored {
            desk.list("10", &[("a", version)]);
            assert!(desk.asks().contains(&"get pod-a".to_owned()));
            assert_eq!(desk.read("a", running(version)), DeliveryVerdict::Deliver);
        }
    }
}

#[test]
fn a_stale_list_forgets_no_ring() {
    let mut desk = Desk::started();
    desk.ring(PodWatchEventKind::Changed, "n", "30");
    assert_eq!(desk.asks(), ["get pod-n"]);
    desk.fails("n", ApiRequestFailure::Server { retry_after: None });
    desk.poll.on_unknown_watch_event();
    desk.wait(3000);
    let asked = desk.asks();
    assert!(asked.contains(&"Live".to_owned()), "{asked:?}");
    assert!(asked.contains(&"get pod-n".to_owned()), "{asked:?}");
    // The list is older than the ring.
    desk.list("20", &[("a", "1")]);
    assert_eq!(desk.read("n", running("30")), DeliveryVerdict::Deliver);
}

#[test]
fn an_older_list_ends_no_question() {
    let mut desk = Desk::started();
    desk.ring(PodWatchEventKind::Deleted, "a", "6");
    assert_eq!(desk.asks(), ["get pod-a"]);
    // A list that began before the ring shows the pod as it was, and the answer is lost.
    desk.poll.on_list_item(&item("a", "1"), desk.now);
    desk.fails("a", SERVER);
    desk.wait(5000);
    assert_eq!(desk.asks(), ["get pod-a"]);
    desk.fails("a", ApiRequestFailure::NotFound);
    assert_eq!(desk.asks(), ["gone a"]);
}

#[test]
fn an_older_list_and_an_older_answer_forget_no_ring() {
    // SRC-30: the answer to a read that began before the ring says what the list says, which began before it too.
    for known in [true, false] {
        let mut desk = Desk::started();
        let (uid, before) = if known { ("a", "1") } else { ("n", "6") };
        desk.ring(PodWatchEventKind::Changed, uid, "6");
        assert_eq!(desk.asks(), [format!("get pod-{uid}")]);
        desk.ring(PodWatchEventKind::Changed, uid, "7");
        desk.poll.on_list_item(&item(uid, before), desk.now);
        assert_eq!(desk.read(uid, running(before)), DeliveryVerdict::Deliver);
        assert_eq!(desk.asks(), [format!("get pod-{uid}")], "{known}");
        assert_eq!(desk.read(uid, running("7")), DeliveryVerdict::Deliver);
        // After an undisturbed read no question is open.
        let rest = desk.asks();
        assert!(rest.is_empty(), "{rest:?}");
    }
}

#[test]
fn equal_versions_of_different_objects() {
    for (name, known, shown) in [
        (
            "to be deleted",
            running("1"),
            PodListItem {
                deleting: true,
                ..item("a", "1")
            },
        ),
        ("not to be deleted", deleting(running("1")), item("a", "1")),
        ("alive", object("1", 1, 1, "Failed"), item("a", "1")),
    ] {
        let mut desk = Desk::new(PollIntervals::NORMAL);
        desk.poll.on_pod_made(&item("a", "1"), known, desk.now);
        assert_eq!(desk.asks(), ["Live"], "{name}");
        desk.poll.on_list_item(&shown, desk.now);
        desk.poll.on_list_end("5", desk.now);
        assert!(desk.asks().contains(&"get pod-a".to_owned()), "{name}");
    }
}

#[test]
fn terminal_pods() {
    // SM-13
    let mut desk = Desk::started();
    let over = |version| object(version, 1, 1, "Succeeded");
    desk.poll.on_write_started(&"a".into());
    let said = desk
        .poll
        .on_write_ended(&"a".into(), Some(over("6")), desk.now);
    assert_eq!(said, DeliveryVerdict::Same);
    desk.ring(PodWatchEventKind::Deleted, "a", "6");
    assert_eq!(
        desk.asks(),
        Vec::<String>::new(),
        "it only left the selection"
    );
    desk.wait(300_000);
    assert_eq!(desk.asks(), ["Live"]);
    desk.list("9", &[]);
    assert_eq!(
        desk.asks(),
        ["complete a"],
        "still there, though no list of live pods has it"
    );
    // A list of all phases finds the deletion.
    desk.now.0 += 1_800_000;
    assert_eq!(desk.asks(), ["Live"]);
    desk.list("9", &[]);
    desk.wait(1000);
    assert_eq!(desk.asks(), ["complete a", "All"]);
    desk.list("9", &[]);
    assert_eq!(desk.asks(), ["get pod-a"]);
    desk.fails("a", ApiRequestFailure::NotFound);
    assert_eq!(desk.asks(), ["gone a"]);
    // A pod that ended before it was ever read is ignored, unless it waits for its deletion.
    for (name, sight, verdict, known) in [
        ("ended", over("12"), DeliveryVerdict::Ignore, 0),
        (
            "ended and to be deleted",
            deleting(over("12")),
            DeliveryVerdict::Deliver,
            1,
        ),
    ] {
        let mut desk = Desk::new(PollIntervals::NORMAL);
        assert_eq!(desk.asks(), ["Live"]);
        desk.list("5", &[]);
        desk.wait(1000);
        assert_eq!(desk.asks(), ["complete ", "All", "watch 5"]);
        desk.poll.on_list_item(
            &PodListItem {
                deleting: true,
                ..item("b", "12")
            },
            desk.now,
        );
        desk.poll.on_list_item(&item("c", "12"), desk.now);
        desk.poll.on_list_end("5", desk.now);
        // A list of live pods that comes in between does not have it, of course.
        desk.poll.on_watch_end(DoorbellEnd::Broken, desk.now);
        desk.wait(1000);
        assert_eq!(desk.asks(), ["Live", "get pod-b"]);
        desk.list("5", &[]);
        assert_eq!(desk.read("b", sight), verdict, "{name}");
        assert_eq!(desk.poll.delivered_pods().count(), known, "{name}");
    }
}

#[test]
fn a_mirror_that_shows_an_end() {
    // MIR-10
    let mut desk = Desk::new(PollIntervals::NORMAL);
    assert_eq!(desk.asks(), ["Live"]);
    desk.list("5", &[]);
    desk.wait(1000);
    assert_eq!(desk.asks(), ["complete ", "All", "watch 5"]);
    let mirror = PodListItem {
        mirror: true,
        ..item("m", "4")
    };
    desk.poll.on_list_item(&mirror, desk.now);
    desk.poll.on_list_end("5", desk.now);
    assert_eq!(desk.asks(), ["get pod-m"]);
    let mut sight = object("4", 1, 1, "Failed");
    sight.mirror = true;
    assert_eq!(desk.read("m", sight), DeliveryVerdict::Deliver);
}

#[test]
fn the_deletion_of_what_has_ended() {
    // CLEAN-10
    let ended = || {
        let mut desk = Desk::started();
        desk.ring(PodWatchEventKind::Changed, "a", "6");
        desk.asks();
        assert_eq!(
            desk.read("a", object("6", 1, 1, "Succeeded")),
            DeliveryVerdict::Deliver
        );
        assert_eq!(desk.asks(), [""; 0]);
        desk
    };
    let mut desk = ended();
    desk.ring(PodWatchEventKind::Deleted, "a", "7");
    assert_eq!(desk.asks(), ["get pod-a"], "the doorbell tells");
    desk.fails("a", ApiRequestFailure::NotFound);
    assert_eq!(desk.asks(), ["gone a"]);

    let mut desk = ended();
    desk.poll.on_watch_end(DoorbellEnd::Broken, desk.now);
    desk.wait(1000);
    assert_eq!(desk.asks(), ["Live"]);
    desk.list("8", &[]);
    assert_eq!(desk.asks(), ["complete a"]);
    desk.wait(1000);
    assert_eq!(desk.asks(), ["watch 8"]);
    desk.wait(60_000);
    assert_eq!(desk.asks(), ["All"], "nobody listened for a while");

    let mut desk = ended();
    desk.wait(20_000);
    desk.poll.on_watch_end(DoorbellEnd::Clean, desk.now);
    assert_eq!(desk.asks(), ["Live"], "before the watch goes on");
    desk.list("8", &[]);
    assert_eq!(desk.asks(), ["complete a", "watch 8"]);
    desk.wait(60_000);
    assert_eq!(desk.asks(), ["All"], "nobody heard of version 7");

    let mut desk = Desk::new(PollIntervals {
        doorbell: false,
        ..PollIntervals::NORMAL
    });
    desk.poll
        .restore(&item("a", "6"), object("6", 1, 1, "Failed"), desk.now);
    let mut scans = 0;
    for _ in 0..360 {
        for ask in desk.asks() {
            match &*ask {
                "Live" => desk.list("8", &[]),
                "All" => {
                    scans += 1;
                    desk.list("8", &[("a", "6")]);
                }
                _ => {}
            }
        }
        desk.wait(1000);
    }
    assert!((5..=7).contains(&scans), "{scans} in six minutes");
}

#[test]
fn a_ring_for_one_too_many() {
    // The pod of the ring may have ended, so it is not refused before a list shows it.
    let mut desk = Desk::started();
    let names: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
    for name in &names {
        desk.ring(PodWatchEventKind::Changed, name, "6");
    }
    desk.wait(1000);
    let asks = desk.asks();
    assert!(!asks.iter().any(|a| a.starts_with("refuse")), "{asks:?}");
    assert!(asks.contains(&"Objects".to_owned()), "{asks:?}");
}

#[test]
fn a_start_from_records() {
    let mut desk = Desk::new(PollIntervals::NORMAL);
    for uid in ["a", "b", "c"] {
        desk.poll.restore(&item(uid, "1"), running("1"), desk.now);
    }
    assert_eq!(desk.asks(), ["Live"]);
    desk.poll.on_list_failed(SERVER, desk.now);
    assert!(!desk.poll.has_completed());
    desk.wait(90_000);
    assert_eq!(desk.asks(), ["Live"]);
    desk.list("5", &[("a", "1"), ("b", "2")]);
    assert_eq!(desk.asks(), ["get pod-a", "get pod-b", "watch 5"]);
    // The pod's version is that of the record, but was given out again: the store went back while no agent looked.
    assert_eq!(
        desk.read("a", object("1", 2, 1, "Running")),
        DeliveryVerdict::Deliver
    );
    assert_eq!(desk.read("b", running("2")), DeliveryVerdict::Deliver);
    assert_eq!(desk.asks(), ["get pod-c"]);
    desk.fails("c", ApiRequestFailure::NotFound);
    assert_eq!(desk.asks()[..2], ["gone c", "complete a b"]);
    // Records are read once.
    desk.poll.on_watch_end(DoorbellEnd::Broken, desk.now);
    desk.wait(10_000);
    assert!(desk.asks().contains(&"Live".to_owned()));
    desk.list("5", &[("a", "1"), ("b", "2")]);
    let asks = desk.asks();
    assert!(!asks.iter().any(|ask| ask.starts_with("get")), "{asks:?}");
}

#[test]
fn back_off() {
    let mut desk = Desk::new(PollIntervals::NORMAL);
    let mut waits = Vec::new();
    for _ in 0..10 {
        assert_eq!(desk.asks(), ["Live"]);
        desk.poll.on_list_failed(SERVER, desk.now);
        let next = desk.poll.next_timeout(desk.now);
        waits.push((next - desk.now).as_millis());
        desk.now = next;
    }
    assert!(waits[0] >= 1000 && waits[0] < 1500, "{waits:?}");
    assert!(waits[9] >= 60_000 && waits[9] < 90_000, "{waits:?}");
    assert_eq!(desk.asks(), ["Live"]);
    let retry_after = Some(Duration::from_secs(3600));
    desk.poll
        .on_list_failed(ApiRequestFailure::Server { retry_after }, desk.now);
    let next = desk.poll.next_timeout(desk.now);
    assert!(
        (next - desk.now).as_secs() <= 90,
        "no server may silence a node"
    );
}

#[test]
fn late_answers_find_nobody() {
    let mut desk = Desk::started();
    desk.ring(PodWatchEventKind::Changed, "a", "6");
    assert_eq!(desk.asks(), ["get pod-a"]);
    desk.poll.on_deleted(&"a".into());
    assert_eq!(desk.asks(), ["gone a"]);
    assert_eq!(desk.read("a", running("6")), DeliveryVerdict::Ignore);
    assert_eq!(desk.poll.gets, 0);
    assert_eq!(desk.poll.delivered_pods().count(), 0);
    assert_eq!(desk.poll.namespace_and_name(&"a".into()), None);
}

#[test]
fn a_copy_that_a_write_has_overtaken_is_read_again() {
    let mut desk = Desk::started();
    let uid = "a".into();
    desk.ring(PodWatchEventKind::Changed, "a", "6");
    assert_eq!(desk.asks(), ["get pod-a"]);
    assert_eq!(desk.read("a", running("6")), DeliveryVerdict::Deliver);
    assert!(!desk.poll.reread_if_overtaken(&uid, running("6")));
    // The loop has the copy still when a status is written and answered.
    desk.poll.on_write_started(&uid);
    let _ = desk.poll.on_write_ended(&uid, Some(running("7")), desk.now);
    assert!(desk.poll.reread_if_overtaken(&uid, running("6")));
    assert_eq!(desk.asks(), ["get pod-a"]);
    assert_eq!(desk.read("a", running("7")), DeliveryVerdict::Deliver);
    assert!(!desk.poll.reread_if_overtaken(&uid, running("7")));
}
