use alloc::vec::Vec;

use super::*;
use crate::api::MonoTime;

fn told(name: &str, reason: &str, message: &str, at_s: i64) -> EventOccurrence {
    EventOccurrence {
        subject: InvolvedObject {
            kind: "Pod",
            namespace: "ns".into(),
            name: name.into(),
            uid: PodUid::new(format!("uid-{name}")),
            field_path: "spec.containers{c}".into(),
        },
        warning: true,
        reason: reason.into(),
        message: message.into(),
        annotations: "".into(),
        times: 1,
        first: WallTime::from_unix_seconds(at_s),
        last: WallTime::from_unix_seconds(at_s),
    }
}

fn at(s: u64) -> MonoTime {
    MonoTime(s * 1000)
}

#[test]
fn the_object() {
    // EVT-01
    let mut correlator = EventCorrelator::new("n");
    let post = correlator
        .correlate(&told("p", "BackOff", "again", 1), at(0))
        .expect("new");
    assert_eq!(
        (&*post.namespace, &*post.name, &post.patch),
        ("ns", "p.3b9aca00", &None)
    );
    assert_eq!(
        post.object,
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": "p.3b9aca00", "namespace": "ns"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "p", "uid": "uid-p",
                "fieldPath": "spec.containers{c}"},
            "type": "Warning", "reason": "BackOff", "message": "again", "count": 1,
            "firstTimestamp": "1970-01-01T00:00:01Z", "lastTimestamp": "1970-01-01T00:00:01Z",
            "source": {"component": "kubelet", "host": "n"},
            "reportingComponent": "kubelet", "reportingInstance": "n",
        })
    );
    let mut node = told("n", "Starting", "", 1);
    node.subject = InvolvedObject {
        kind: "Node",
        namespace: "".into(),
        field_path: "".into(),
        ..node.subject
    };
    let post = correlator.correlate(&node, at(0)).expect("new");
    assert_eq!(&*post.namespace, "default");
    assert_eq!(
        post.object["involvedObject"],
        json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "uid-n"})
    );
    let long = "x".repeat(253);
    assert!(event_name(&long, WallTime(i64::MAX)).len() <= MAX_NAME_BYTES);
    assert_eq!(
        &*event_name(&format!("{}..", "x".repeat(234)), WallTime(1)),
        format!("{}.1", "x".repeat(234))
    );
}

#[test]
fn repeats_are_counted() {
    // EVT-03
    let mut correlator = EventCorrelator::new("n");
    let first = correlator
        .correlate(&told("p", "BackOff", "again", 1), at(1))
        .expect("new");
    let mut more = told("p", "BackOff", "again", 60);
    more.times = 5;
    let post = correlator.correlate(&more, at(60)).expect("a count");
    assert_eq!(post.name, first.name);
    assert_eq!(
        post.patch,
        Some(json!({"count": 6, "lastTimestamp": "1970-01-01T00:01:00Z"}))
    );
    assert_eq!(
        post.object["firstTimestamp"], "1970-01-01T00:00:01Z",
        "if it is not there any more"
    );
    assert_eq!(post.object["count"], 6);
    for other in [
        told("q", "BackOff", "again", 2),
        told("p", "Failed", "again", 2),
        told("p", "BackOff", "other", 2),
    ] {
        let post = correlator.correlate(&other, at(60)).expect("new");
        assert_eq!(post.patch, None, "{other:?}");
    }
}

#[test]
fn similar_ones_are_folded() {
    // EVT-03
    let mut correlator = EventCorrelator::new("n");
    for n in 0..9 {
        let post = correlator
            .correlate(&told("p", "Unhealthy", &format!("{n}"), n), at(0))
            .expect("new");
        assert_eq!(
            (&post.object["message"], &post.patch),
            (&json!(format!("{n}")), &None)
        );
    }
    let folded = correlator
        .correlate(&told("p", "Unhealthy", "9", 9), at(0))
        .expect("new");
    assert_eq!(
        folded.object["message"],
        "(combined from similar events): 9"
    );
    assert_eq!(folded.patch, None);
    let next = correlator
        .correlate(&told("p", "Unhealthy", "10", 10), at(0))
        .expect("a count");
    assert_eq!(next.name, folded.name);
    assert_eq!(
        next.patch,
        Some(json!({
            "count": 2, "lastTimestamp": "1970-01-01T00:00:10Z", "message": "(combined from similar events): 10"
        }))
    );
    // A message that was sent before is folded like all others.
    let old = correlator
        .correlate(&told("p", "Unhealthy", "3", 11), at(0))
        .expect("a count");
    assert_eq!(old.name, folded.name);
    // After a pause they are sent one by one again.
    let later = correlator
        .correlate(&told("p", "Unhealthy", "11", 700), at(601))
        .expect("new");
    assert_eq!(later.object["message"], "11");
}

#[test]
fn one_object_does_not_flood() {
    // EVT-03
    let mut correlator = EventCorrelator::new("n");
    let mut told_of = |name: &str, tries: u32, now| {
        let all = (0..tries).filter(|_| {
            correlator
                .correlate(&told(name, "BackOff", "again", 1), now)
                .is_some()
        });
        all.count()
    };
    assert_eq!(told_of("p", 100, at(0)), 25);
    assert_eq!(told_of("q", 100, at(0)), 25, "another object");
    assert_eq!(told_of("p", 10, at(299)), 0);
    assert_eq!(told_of("p", 10, at(300)), 1);
    assert_eq!(told_of("p", 100, at(100_000)), 25);
    let post = correlator
        .correlate(&told("q", "BackOff", "again", 1), at(100_000))
        .expect("a count");
    assert_eq!(post.object["count"], 101, "what was not told was counted");
}

#[test]
fn memory_is_bounded() {
    let mut correlator = EventCorrelator::new("n");
    for n in 0..2_000 {
        correlator.correlate(&told(&format!("p{n}"), "BackOff", "again", n), at(0));
    }
    let EventCorrelator {
        similar,
        seen,
        buckets,
        ..
    } = &correlator;
    assert_eq!(similar.entries.len(), MAX_SIMILAR);
    assert_eq!(seen.entries.len(), MAX_SEEN);
    assert_eq!(buckets.entries.len(), MAX_BUCKETS);
    let recent = correlator
        .correlate(&told("p1999", "BackOff", "again", 1), at(0))
        .expect("a count");
    assert!(recent.patch.is_some());
    let forgotten = correlator
        .correlate(&told("p0", "BackOff", "again", 1), at(0))
        .expect("new");
    assert!(forgotten.patch.is_none());
}

#[test]
fn annotations() {
    // EVICT-14
    let mut correlator = EventCorrelator::new("n");
    let with = EventOccurrence {
        annotations: r#"{"starved_resource":"memory"}"#.into(),
        ..told("p", "Evicted", "x", 1)
    };
    let post = correlator.correlate(&with, at(0)).expect("told");
    let metadata = &post.object["metadata"];
    assert_eq!(metadata["annotations"]["starved_resource"], "memory");
    let post = correlator.correlate(&told("q", "Evicted", "x", 1), at(0));
    let metadata = &post.expect("told").object["metadata"];
    assert_eq!(metadata.get("annotations"), None);
}

#[test]
fn thinned() {
    let mut correlator = EventCorrelator::new("n");
    correlator.set_warnings_only(true);
    let normal = EventOccurrence {
        warning: false,
        ..told("p", "Pulled", "x", 1)
    };
    assert_eq!(correlator.correlate(&normal, at(0)), None);
    let counts: Vec<u64> = (0..20)
        .filter_map(|_| correlator.correlate(&told("p", "BackOff", "again", 1), at(0)))
        .filter_map(|post| post.object["count"].as_u64())
        .collect();
    assert_eq!(counts, [1, 2, 4, 8, 16]);
}

/// A sender and a queue of events that is never empty.
fn sender(per_second: u32) -> EventPoster {
    EventPoster::new(
        EventCorrelator::new("n"),
        per_second,
        2 * per_second,
        MonoTime(0),
        1,
    )
}

#[test]
fn overall_rate() {
    // EVT-03
    let mut sender = sender(50);
    let (mut now, mut sent, mut n) = (MonoTime(0), 0, 0);
    while now < at(10) {
        let next = || {
            n += 1;
            Some(told(&format!("p{n}"), "r", "m", n))
        };
        if sender.poll(next, now).is_some() {
            sent += 1;
            sender.on_sent(Ok(()), now);
        } else {
            assert!(sender.next_timeout() > now);
            now = sender.next_timeout();
        }
    }
    assert!((590..=601).contains(&sent), "{sent}");
}

#[test]
fn tries() {
    for (name, failure, times, lost) in [
        ("no answer", EventPostFailure::Failed, MAX_TRIES, 1),
        ("not taken", EventPostFailure::Rejected, 1, 1),
    ] {
        let mut sender = sender(50);
        let mut queue = vec![told("b", "r", "m", 2), told("a", "r", "m", 1)];
        let (mut now, mut tries) = (MonoTime(0), 0);
        loop {
            let post = sender.poll(|| queue.pop(), now).expect("one waits");
            if post.object["involvedObject"]["name"] == "b" {
                break;
            }
            assert_eq!(sender.poll(|| panic!("one at a time"), now), None);
            tries += 1;
            sender.on_sent(Err(failure), now);
            now = sender.next_timeout().max(now);
        }
        assert_eq!((tries, sender.lost_count()), (times, lost), "{name}");
        assert!(now <= at(10 * u64::from(MAX_TRIES)), "{name}");
    }
}

#[test]
fn what_leads_to_nothing_takes_its_turns() {
    let mut sender = sender(50);
    let mut asked = 0;
    let mut next = || {
        asked += 1;
        Some(told("p", "r", "m", 1))
    };
    for _ in 0..SPAM_BURST {
        assert!(sender.poll(&mut next, MonoTime(0)).is_some());
        sender.on_sent(Ok(()), MonoTime(0));
    }
    assert_eq!(sender.poll(&mut next, MonoTime(0)), None);
    assert_eq!(asked, SPAM_BURST + 32, "the thread is not held up");
    assert!(sender.next_timeout() > MonoTime(0));
}
