//! Changes that concern several Services: addresses that pass from one to another, Services that are made anew, refused,
//! or have nothing to serve any more.

use alloc::{
    format,
    string::{String, ToString as _},
    vec,
    vec::Vec,
};
use core::time::Duration;

use serde_json::{Value, json};

use super::{
    AddressFamily,
    index::{ServiceIndex, ServiceListing, WrittenService},
    live::{LiveTable, has_own_table},
    object::digest_text,
    pause::GrowingPause,
    plan::ServicePlan,
    table::{TABLE, base_table},
    tests::{gather, live_of, network, plan_of, service_of, slice, web},
    transaction::{MAX_SERVICE_BYTES, ServiceWrite, TableBefore, update_live, write_service},
    udp::udp_ports,
};

fn list(index: &mut ServiceIndex, services: &[(&str, &str)]) {
    let mut listing = ServiceListing::default();
    for (name, uid) in services {
        listing.add_service("shop", name, uid, "1");
    }
    index.take_listing(listing);
}

/// Takes all that is due, in order.
fn due(index: &mut ServiceIndex) -> Vec<String> {
    core::iter::from_fn(|| index.take_due())
        .map(|(_, name)| name)
        .collect()
}

fn set_written(index: &mut ServiceIndex, name: &str, uid: &str, has_conflict: bool) {
    let written = WrittenService {
        uid: digest_text(uid),
        version: digest_text("1"),
        frontends: 1,
        written: 2,
        has_conflict,
        ..WrittenService::default()
    };
    index.set_written("shop", name, written);
}

fn write(plan: &ServicePlan, live: &LiveTable, is_living: &dyn Fn(u64) -> bool) -> ServiceWrite {
    let before = TableBefore::Read {
        live,
        is_new: false,
        is_living,
    };
    write_service(plan, before, &mut String::new())
}

#[test]
fn a_service_that_is_made_anew_takes_its_address() {
    // PROX-13
    let mut index = ServiceIndex::default();
    list(&mut index, &[("web", "old"), ("other", "o")]);
    due(&mut index);
    set_written(&mut index, "web", "old", false);
    set_written(&mut index, "other", "o", false);
    let old = plan_of(&web("old", "10.43.0.1", &[]), &[]);
    let new = plan_of(&web("new", "10.43.0.1", &[]), &[]);
    let live = live_of(&[&old]);
    let mut living = index.living();
    assert!(
        !write(&new, &live, &|uid| living.contains(uid))
            .conflicts
            .is_empty()
    );
    let before = index.written_before("shop", "web");
    living.replace(before.uid, new.uid);
    assert!(living.contains(new.uid) && living.contains(digest_text("o")));
    // It had nothing to serve before, and the same UID.
    living.replace(7, 7);
    assert!(living.contains(7));
    let written = write(&new, &live, &|uid| living.contains(uid));
    assert!(written.conflicts.is_empty() && written.robbed.is_empty());
    set_written(&mut index, "web", "new", false);
    assert_eq!(index.take_gone(), [old.uid]);
    living.replace(new.uid, 0);
    assert!(!living.contains(new.uid) && !living.contains(0));
}

#[test]
fn who_waits_for_an_address_is_tried_when_it_is_given_up() {
    // PROX-13
    let wide = plan_of(&web("a", "10.43.0.1", &["203.0.113.1"]), &[]);
    let live = live_of(&[&wide]);
    let living = |_| true;
    assert!(!write(&wide, &live, &living).gave_up, "no change");
    let narrow = plan_of(&web("a", "10.43.0.1", &[]), &[]);
    assert!(write(&narrow, &live, &living).gave_up);
    let gone = ServicePlan {
        uid: wide.uid,
        ..ServicePlan::default()
    };
    assert!(write(&gone, &live, &living).gave_up);
    assert!(!write(&gone, &LiveTable::default(), &living).gave_up);

    let mut index = ServiceIndex::default();
    list(&mut index, &[("loser", "l"), ("winner", "w")]);
    due(&mut index);
    set_written(&mut index, "loser", "l", true);
    set_written(&mut index, "winner", "w", false);
    index.remove_service("shop", "winner");
    assert_eq!(index.count_due(), 0, "its rules are still there");
    index.retry_conflicts();
    assert_eq!(due(&mut index), ["loser"]);
}

#[test]
fn who_loses_an_address_in_the_cluster_is_told() {
    // PROX-13
    let outside = plan_of(&web("a", "10.43.0.9", &["10.43.0.1"]), &[]);
    let owner = json!({
        "metadata": {"namespace": "shop", "name": "own", "uid": "b"},
        "spec": {"clusterIP": "10.43.0.1", "ports": [{"port": 80}]},
    });
    let owner = plan_of(&owner, &[]);
    let written = write(&owner, &live_of(&[&outside]), &|_| true);
    assert_eq!(
        written.robbed.into_iter().collect::<Vec<_>>(),
        [outside.uid]
    );
    let mut index = ServiceIndex::default();
    list(&mut index, &[("web", "a"), ("own", "b")]);
    due(&mut index);
    set_written(&mut index, "web", "a", false);
    set_written(&mut index, "own", "b", false);
    index.set_robbed(outside.uid);
    assert!(index.written_before("shop", "web").had_conflict);
    assert_eq!(due(&mut index), ["web"]);
}

#[test]
fn rules_of_a_service_that_has_nothing_to_serve_any_more_go() {
    // PROX-02 PROX-04
    let mut index = ServiceIndex::default();
    // The table is of an agent before: nothing is known of what was written.
    list(&mut index, &[("web", "w"), ("db", "d")]);
    due(&mut index);
    let (web, db) = (digest_text("w"), digest_text("d"));
    let living = index.living();
    assert!(living.contains(web) && living.contains(db));
    let seen = WrittenService {
        uid: web,
        version: digest_text("1"),
        ..WrittenService::default()
    };
    index.set_idle("shop", "web", seen);
    let living = index.living();
    assert!(!living.contains(web) && living.contains(db));
    assert_eq!(index.take_gone(), [web]);
    // Known now: no list reads it again.
    set_written(&mut index, "db", "d", false);
    list(&mut index, &[("web", "w"), ("db", "d")]);
    assert_eq!(due(&mut index), Vec::<String>::new());
    index.set_idle("shop", "web", seen);
    assert!(index.take_gone().is_empty());
}

#[test]
fn a_refused_service_waits_for_its_time() {
    // PROX-25
    let mut index = ServiceIndex::default();
    let all = [("web", "w"), ("db", "d")];
    list(&mut index, &all);
    due(&mut index);
    set_written(&mut index, "db", "d", false);
    index.set_refused("shop", "web");
    list(&mut index, &all);
    assert_eq!(index.count_due(), 0);
    assert!(index.written_before("shop", "web").was_refused);
    assert!(
        index.living().contains(digest_text("w")),
        "its old rules stay"
    );
    assert_eq!((index.count_refused(), index.count_written()), (1, 1));
    // A change of it is tried at once.
    index.ring("shop", "web");
    assert_eq!(due(&mut index), ["web"]);
    set_written(&mut index, "web", "w", false);
    assert_eq!((index.count_refused(), index.count_written()), (0, 2));
    assert!(index.has_service("shop", "web") && !index.has_service("shop", "we"));

    // Its time comes, and that of others whose flows could not be removed, or that are gone.
    list(&mut index, &[("web", "w"), ("db", "d"), ("dns", "n")]);
    due(&mut index);
    set_written(&mut index, "dns", "n", false);
    index.set_refused("shop", "web");
    index.set_stale_flows("shop", "dns");
    index.set_gone_refused(7);
    assert_eq!((index.count_due(), index.take_gone()), (0, Vec::new()));
    index.retry_refused();
    assert_eq!(
        (due(&mut index).join(" "), index.take_gone()),
        ("dns web".into(), vec![7])
    );
    assert!(index.written_before("shop", "dns").has_stale_flows);
    set_written(&mut index, "web", "w", false);
    set_written(&mut index, "dns", "n", false);
    index.retry_refused();
    assert_eq!((index.count_due(), index.take_gone()), (0, Vec::new()));
}

#[test]
fn chains_of_a_policy_or_of_affinity_that_ends_go() {
    // PROX-25
    let with = |fields: &[(&str, Value)]| {
        let mut object = web("a", "10.43.0.1", &["203.0.113.1"]);
        for (field, value) in fields {
            object["spec"][*field] = value.clone();
        }
        plan_of(&object, &[slice("s", &["10.42.0.11"])])
    };
    let plain = with(&[]);
    for (field, value, chains) in [
        ("externalTrafficPolicy", json!("Local"), &["local-"][..]),
        ("internalTrafficPolicy", json!("Local"), &["local-"]),
        ("sessionAffinity", json!("ClientIP"), &["endpoint-"]),
    ] {
        let before = with(&[(field, value)]);
        assert_ne!(
            before.frontends_digest(),
            plain.frontends_digest(),
            "{field}"
        );
        let mut live = live_of(&[&before]);
        let written = write(&plain, &live, &|_| true);
        assert!(!written.stale.is_empty(), "{field}");
        for (_, name) in &written.stale {
            let name = name.to_string();
            assert!(chains.iter().any(|kind| name.starts_with(kind)), "{name}");
        }
        // They are free once, not each time that the Service is written.
        update_live(&mut live, &plain, &written);
        assert_eq!(write(&plain, &live, &|_| true).stale, []);
    }
}

#[test]
fn pauses() {
    let s = Duration::from_secs;
    let mut pause = GrowingPause::new(s(2), s(60));
    let taken: Vec<u64> = (0..7).map(|_| pause.take().as_secs()).collect();
    assert_eq!(taken, [2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(pause.take_after_watch(s(0)), s(60));
    assert_eq!(pause.take_after_watch(s(480)), s(0));
    assert_eq!(pause.take_after_watch(s(1)), s(2));
    assert_eq!(pause.take_after_watch(s(59)), s(4));
    pause.reset();
    assert_eq!(pause.take(), s(2));
}

#[test]
fn the_text_of_a_service_is_bounded() {
    // PROX-26
    let ports: Vec<Value> = (1..=100)
        .map(|port| json!({"name": format!("p{port}"), "port": port}))
        .collect();
    let object = json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "w"},
        "spec": {"clusterIP": "10.43.0.1", "sessionAffinity": "ClientIP", "ports": ports},
    });
    let ips: Vec<String> = (0..900)
        .map(|n| format!("10.42.{}.{}", n / 250, n % 250 + 1))
        .collect();
    let mut many = slice("s", &ips.iter().map(String::as_str).collect::<Vec<_>>());
    many["ports"] = object["spec"]["ports"].clone();
    let plan = plan_of(&object, &[many.clone()]);
    assert!(plan.is_too_long());
    // The plan ends where it is too long.
    let rules: usize = plan.chains.iter().map(|chain| chain.rules.len()).sum();
    assert!(rules < 2 * MAX_SERVICE_BYTES, "{rules}");
    let mut usual = object;
    usual["spec"]["ports"] = json!([{"name": "p1", "port": 1}, {"name": "p2", "port": 2}]);
    usual["spec"]["sessionAffinity"] = json!("None");
    assert!(!plan_of(&usual, &[many]).is_too_long());
}

#[test]
fn flows_of_a_service_that_was_not_seen_whole_stay() {
    // PROX-20
    let service = service_of(&web("a", "10.43.0.1", &[]));
    let slices: Vec<Value> = (0..21)
        .map(|n| {
            let ips: Vec<String> = (0..1000)
                .map(|i| format!("10.{}.{}.{}", 100 + n, i / 250, i % 250 + 1))
                .collect();
            slice(
                &format!("s{n}"),
                &ips.iter().map(String::as_str).collect::<Vec<_>>(),
            )
        })
        .collect();
    let endpoints = gather(&service, &slices);
    assert!(endpoints.is_cut());
    assert_eq!(udp_ports(&service, &endpoints), []);
}

#[test]
fn own_tables() {
    // PROX-28
    assert!(has_own_table(&format!(
        "table ip filter\ntable ip6 {TABLE}\n"
    )));
    assert!(!has_own_table(
        "table ip kube-proxy\ntable inet picolet-services-of-mine\n"
    ));
    assert!(!has_own_table(""));
    assert!(!has_own_table(&base_table(AddressFamily::V4, &network())));
}
