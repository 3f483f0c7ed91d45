use alloc::{borrow::ToOwned, boxed::Box, vec::Vec};

use super::*;
use crate::api::pod_status::{
    ContainerState, ContainerStatus, IpEntry, QosClass, Running, Terminated, Waiting,
};
use crate::{
    api::Pod,
    status_update::same_status,
    testing::merge_for_api,
    testing::{Random, smp},
};

const NOW: WallTime = WallTime::from_unix_seconds(1_000);

fn condition(kind: &str, status: &str, reason: &str, at: i64) -> PodCondition {
    PodCondition {
        kind: kind.into(),
        status: status.into(),
        reason: reason.into(),
        last_transition_time: Some(WallTime::from_unix_seconds(at)),
        ..PodCondition::default()
    }
}

fn running() -> PodStatus {
    PodStatus {
        phase: PodPhase::Running,
        conditions: vec![
            condition("Initialized", "True", "", 1),
            condition("Ready", "True", "", 2),
            condition("ContainersReady", "True", "", 2),
        ],
        pod_ip: "10.0.0.2".into(),
        pod_ips: vec![IpEntry {
            ip: "10.0.0.2".into(),
        }],
        start_time: Some(WallTime::from_unix_seconds(1)),
        container_statuses: vec![container(
            "a",
            ContainerState {
                running: Some(Running::default()),
                ..ContainerState::default()
            },
        )],
        qos_class: Some(QosClass::BestEffort),
        ..PodStatus::default()
    }
}

fn container(name: &str, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        state,
        ..ContainerStatus::default()
    }
}

fn patched(raw: &Value, stored: &PodStatus, could_run: bool) -> Option<(Value, StatusPatch)> {
    let api: Pod = strict::typed_from_value(raw).expect("a pod");
    let uid = PodUid::from("u");
    let patch = compute_status_patch(
        &uid,
        &ApiStatusDigest::from_status(&api.status),
        None,
        stored,
        could_run,
        NOW,
    )?;
    let mut after = raw.clone();
    smp::apply(&mut after, &patch.body);
    Some((after, patch))
}

fn object(status: &PodStatus) -> Value {
    json!({"metadata": {"uid": "u", "name": "p"}, "status": strict::to_value(status).expect("json")})
}

#[test]
fn only_what_differs() {
    // SM-05
    let shown = object(&running());
    assert!(
        patched(&shown, &running(), true).is_none(),
        "an empty patch is not sent"
    );
    type Change = fn(&mut PodStatus);
    for (name, change, fields) in [
        (
            "phase",
            (|s| s.phase = PodPhase::Pending) as Change,
            vec!["message", "phase", "reason"],
        ),
        (
            "condition",
            |s| s.conditions[1].status = "False".into(),
            vec!["$setElementOrder/conditions", "conditions"],
        ),
        (
            "container",
            |s| s.container_statuses[0].ready = true,
            vec![
                "containerStatuses",
                "ephemeralContainerStatuses",
                "initContainerStatuses",
            ],
        ),
        (
            "address",
            |s| s.pod_ip = "::1".into(),
            vec![
                "allocatedResources",
                "hostIP",
                "hostIPs",
                "observedGeneration",
                "podIP",
                "podIPs",
                "qosClass",
                "resources",
                "startTime",
            ],
        ),
        (
            "only a time",
            |s| s.conditions[0].last_transition_time = Some(NOW),
            vec![],
        ),
    ] {
        let mut wanted = running();
        change(&mut wanted);
        let Some((after, patch)) = patched(&shown, &wanted, true) else {
            assert!(fields.is_empty(), "{name}");
            continue;
        };
        assert_eq!(patch.body["metadata"], json!({"uid": "u"}), "{name}");
        let status = patch.body["status"].as_object().expect("an object");
        assert_eq!(status.keys().collect::<Vec<_>>(), fields, "{name}");
        assert_eq!(after, object(&wanted), "{name}");
    }
}

#[test]
fn what_others_wrote_stays() {
    // SM-07 STAT-40
    let mut raw = object(&running());
    let list = raw["status"]["conditions"].as_array_mut().expect("a list");
    list.insert(0, json!({"type": "x/gate", "status": "True"}));
    list.push(json!({"type": "PodResizePending", "status": "True", "reason": "Deferred"}));
    // The node controller's word after a link outage.
    list[2] = json!({"type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    raw["status"]["resourceClaimStatuses"] = json!([{"name": "c"}]);
    raw["status"]["reason"] = json!("NodeLost");
    let (after, _) = patched(&raw, &running(), true).expect("differs");
    let mut expected = object(&running());
    let list = expected["status"]["conditions"]
        .as_array_mut()
        .expect("a list");
    list.insert(0, json!({"type": "x/gate", "status": "True"}));
    expected["status"]["resourceClaimStatuses"] = json!([{"name": "c"}]);
    assert_eq!(after, expected);
}

#[test]
fn resources_that_a_kubelet_left_are_removed() {
    // RSZ-04
    // RSZ-30
    for (field, value) in [
        ("allocatedResources", json!({"cpu": "1"})),
        ("resources", json!({"limits": {"cpu": "1"}})),
    ] {
        let mut raw = object(&running());
        raw["status"][field] = value;
        let (after, _) = patched(&raw, &running(), true).expect("differs");
        assert_eq!(after, object(&running()), "{field}");
        assert!(patched(&after, &running(), true).is_none(), "{field}");
    }
}

#[test]
fn the_end() {
    // SM-07 SM-08 DEL-02 STAT-12
    let mut failed = running();
    failed.phase = PodPhase::Failed;
    failed.reason = "Evicted".into();
    failed.conditions.push(condition(
        DISRUPTION_TARGET,
        "True",
        "TerminationByKubelet",
        5,
    ));
    let shown = object(&running());
    assert!(
        patched(&shown, &failed, true).is_none(),
        "withheld, and nothing else differs"
    );
    let (after, _) = patched(&shown, &failed, false).expect("told");
    let status: PodStatus = strict::typed_from_value(&after["status"]).expect("a status");
    assert_eq!(status.phase, PodPhase::Failed);
    for (kind, value, reason, at) in [
        ("Ready", "False", "PodFailed", NOW),
        ("ContainersReady", "False", "PodFailed", NOW),
        (DISRUPTION_TARGET, "True", "TerminationByKubelet", NOW),
    ] {
        let c = conditions::find_condition(&status.conditions, kind).expect(kind);
        assert_eq!((c.status.as_str(), c.reason.as_str()), (value, reason));
        assert_eq!(c.last_transition_time, Some(at), "{kind}");
    }
    assert!(patched(&after, &failed, false).is_none(), "told once");
    // Another client has set the condition before, at another time.
    let mut warned = running();
    warned.conditions.push(condition(
        DISRUPTION_TARGET,
        "True",
        "EvictionByEvictionAPI",
        7,
    ));
    let (after, _) = patched(&object(&warned), &failed, false).expect("told");
    let status: PodStatus = strict::typed_from_value(&after["status"]).expect("a status");
    let c = conditions::find_condition(&status.conditions, DISRUPTION_TARGET).expect("kept");
    assert_eq!(
        (c.reason.as_str(), c.last_transition_time),
        ("TerminationByKubelet", Some(WallTime::from_unix_seconds(7)))
    );
    // A pod that has ended in the API stays as it ended.
    for stored in [PodPhase::Running, PodPhase::Succeeded] {
        let mut ended = failed.clone();
        ended.conditions.truncate(3);
        let mut other = failed.clone();
        other.phase = stored;
        other.container_statuses[0].restart_count = 9;
        let (after, _) = patched(&object(&ended), &other, false).expect("containers differ");
        assert_eq!(after["status"]["phase"], "Failed");
        assert_eq!(after["status"]["reason"], "Evicted");
    }
}

#[test]
fn what_a_server_makes_of_it() {
    // An old server does not know observedGeneration; another writes times in its own format.
    let uid = PodUid::from("u");
    let mut wanted = running();
    wanted.observed_generation = Some(3);
    let before = ApiStatusDigest::from_status(&PodStatus::default());
    let patch1 =
        compute_status_patch(&uid, &before, None, &wanted, true, NOW).expect("all differs");
    let answer = ApiStatusDigest::from_status(&running());
    let quirk = patch1
        .told
        .quirk_of_answer(None, &answer)
        .expect("not what it was told");
    assert!(
        compute_status_patch(&uid, &answer, Some(&quirk), &wanted, true, NOW).is_none(),
        "not for ever"
    );
    // Another client changes a part with a quirk, and one without.
    let mut foreign = running();
    foreign.start_time = None;
    assert!(
        compute_status_patch(
            &uid,
            &ApiStatusDigest::from_status(&foreign),
            Some(&quirk),
            &wanted,
            true,
            NOW
        )
        .is_some()
    );
    let mut foreign = running();
    foreign.phase = PodPhase::Unknown;
    let shown = ApiStatusDigest::from_status(&foreign);
    let patch2 =
        compute_status_patch(&uid, &shown, Some(&quirk), &wanted, true, NOW).expect("differs");
    assert!(
        patch2.body["status"].get("startTime").is_none(),
        "no need to tell that again"
    );
    // A change of a part that the patch did not send is no quirk of the server.
    let mut raced = running();
    raced.container_statuses.clear();
    let raced = ApiStatusDigest::from_status(&raced);
    let quirk = patch2.told.quirk_of_answer(Some(&quirk), &raced);
    assert!(compute_status_patch(&uid, &raced, quirk.as_ref(), &wanted, true, NOW).is_some());
}

/// A status of random content; small choices, so that two of them often agree in part.
fn arbitrary(random: &mut Random, foreign: bool) -> PodStatus {
    let mut text =
        |all: &[&str]| all[usize::try_from(random.below(3)).expect("small") % all.len()].to_owned();
    let (reason, message, ip) = (
        text(&["", "Evicted"]),
        text(&["", "why"]),
        text(&["", "10.0.0.2", "::1"]),
    );
    let phases = [
        PodPhase::Pending,
        PodPhase::Running,
        PodPhase::Succeeded,
        PodPhase::Failed,
    ];
    let mut kinds: Vec<&str> = conditions::OWNED.into();
    if foreign {
        kinds.extend(["x/a", "x/b"]);
    }
    let mut all = Vec::new();
    for kind in kinds {
        if random.one_in(2) {
            let status = ["True", "False"][usize::from(random.one_in(2))];
            let reason = ["", "Because"][usize::from(random.one_in(2))];
            all.push(condition(kind, status, reason, 5));
        }
    }
    let states = [
        ContainerState::default(),
        ContainerState {
            waiting: Some(Waiting::default()),
            ..ContainerState::default()
        },
        ContainerState {
            terminated: Some(Box::new(Terminated::default())),
            ..ContainerState::default()
        },
    ];
    let mut list = |name| {
        let count = usize::try_from(random.below(3)).expect("small");
        states[..count]
            .iter()
            .map(|s| container(name, s.clone()))
            .collect::<Vec<_>>()
    };
    let (init_container_statuses, container_statuses) = (list("i"), list("c"));
    PodStatus {
        phase: phases[usize::try_from(random.below(4)).expect("small")],
        conditions: all,
        reason,
        message,
        pod_ips: if ip.is_empty() {
            vec![]
        } else {
            vec![IpEntry { ip: ip.clone() }]
        },
        pod_ip: ip,
        start_time: random.one_in(2).then_some(WallTime::from_unix_seconds(3)),
        init_container_statuses,
        container_statuses,
        observed_generation: random.one_in(2).then_some(1),
        ..PodStatus::default()
    }
}

#[test]
fn leads_where_a_merge_of_the_whole_would() {
    // SM-05 SM-07 SM-08: against the merge of two whole statuses, over statuses of all kinds.
    let mut random = Random(7);
    let mut sent = 0;
    for _ in 0..3_000 {
        let shown = arbitrary(&mut random, true);
        let mut stored = arbitrary(&mut random, false);
        if shown.phase.is_terminal() {
            stored.phase = shown.phase;
        }
        let could_run = random.one_in(2);
        let wanted = merge_for_api(&shown, &stored, could_run, NOW);
        let after = match patched(&object(&shown), &stored, could_run) {
            Some((after, _)) => {
                sent += 1;
                assert!(patched(&after, &stored, could_run).is_none(), "{after}");
                after
            }
            None => object(&shown),
        };
        let status: PodStatus = strict::typed_from_value(&after["status"]).expect("a status");
        assert!(same_status(&status, &wanted), "{status:?}\n{wanted:?}");
        let foreign = |s: &PodStatus| {
            let all = s.conditions.iter().filter(|c| c.kind.starts_with("x/"));
            all.cloned().collect::<Vec<_>>()
        };
        assert_eq!(foreign(&status), foreign(&shown));
    }
    assert!(sent > 2_000);
}
