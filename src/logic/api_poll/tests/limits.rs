//! Tests of the poller's bounds.

use alloc::{string::String, vec::Vec};

use super::*;

#[test]
fn many_changes_are_read_by_one_list() {
    let mut desk = Desk::new(PollIntervals::NORMAL);
    assert_eq!(desk.asks(), ["Live"]);
    let names: Vec<String> = (0..25).map(|n| format!("p{n}")).collect();
    let all: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "1")).collect();
    desk.list("5", &all);
    assert_eq!(desk.asks(), ["watch 5"]);
    desk.wait(1000);
    assert_eq!(desk.asks(), ["Objects"]);
    for name in &names[1..] {
        let said = desk
            .poll
            .on_list_object(&item(name, "1"), running("1"), desk.now);
        assert_eq!(said, DeliveryVerdict::Deliver);
        let again = desk
            .poll
            .on_list_object(&item(name, "1"), running("1"), desk.now);
        assert_eq!(again, DeliveryVerdict::Ignore);
    }
    // An over-long object is shown by its metadata, and read by itself.
    desk.poll.on_list_item(&item("p0", "1"), desk.now);
    desk.poll.on_list_end("6", desk.now);
    assert_eq!(desk.asks(), ["get pod-p0"], "the first snapshot waits");
    assert!(!desk.poll.has_completed());
    for _ in 0..TRIES {
        desk.fails("p0", ApiRequestFailure::Unusable);
        desk.wait(6_000);
        desk.asks();
    }
    assert!(desk.poll.has_completed());
    assert_eq!(
        desk.poll.unread_pods().collect::<Vec<_>>(),
        ["p0"],
        "not for ever"
    );
}

#[test]
fn more_pods_than_fit() {
    let mut desk = Desk::new(PollIntervals::NORMAL);
    desk.asks();
    let names: Vec<String> = (0..50).map(|n| format!("p{n}")).collect();
    for name in &names {
        desk.poll.on_list_item(&item(name, "1"), desk.now);
    }
    desk.poll.on_list_end("5", desk.now);
    let refused: Vec<String> = desk
        .asks()
        .into_iter()
        .filter(|a| a.starts_with("refuse"))
        .collect();
    assert_eq!(
        refused.len(),
        MAX_REFUSALS,
        "the others come with the next list"
    );
    assert_eq!(refused[0], "refuse p30");
    assert_eq!(desk.poll.slots.len(), 30);
}

#[test]
fn finished_pods_do_not_fill_the_table() {
    let mut desk = Desk::started();
    let over = |n: u64| object(&format!("{n}"), 1, 1, "Failed");
    let count = u64::try_from(MAX_FINISHED).expect("few") + 10;
    for n in 0..count {
        desk.wait(1);
        let uid = format!("job-{n:03}");
        let item = item(&uid, "0");
        desk.poll.restore(&item, running("0"), desk.now);
        desk.poll.on_write_started(&item.uid);
        let said = desk.poll.on_write_ended(&item.uid, Some(over(n)), desk.now);
        assert_eq!(said, DeliveryVerdict::Same);
    }
    assert_eq!(desk.poll.delivered_pods().count(), MAX_FINISHED + 1);
    let gone: Vec<String> = desk
        .asks()
        .into_iter()
        .filter(|a| a.starts_with("gone"))
        .collect();
    assert_eq!((gone.len(), gone[0].as_str()), (10, "gone job-000"));
}
