//! The ring of a node in a cluster, and a check that it holds all inputs of the agent: an agent whose surroundings are
//! made of nothing but the lines of a dump writes the same dump.

use alloc::sync::Arc;
use core::time::Duration;

use serde_json::{Value, json};

use super::{
    super::{
        ring::{RecordedEffect, RecordedEvent, RecordedLine, RecordedStep},
        views::ApiAnswer,
    },
    api::{FakeApi, Link},
    life::dump,
    world::{IMAGE, World},
};
use crate::{
    api::MonoTime,
    logic::{probe::ProbeResult, status_writer::WriteAnswer},
};

const PORT: u16 = 80;
const CONFLICT: (u16, &str) = (409, "Conflict");

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn world() -> (World, Arc<FakeApi>) {
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    (world, api)
}

/// Spec of a pod whose readiness changes with one answer of its probe.
fn spec() -> Value {
    let probe = json!({"tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 1});
    let container =
        json!({"name": "c", "image": IMAGE, "command": ["sleep"], "readinessProbe": probe});
    json!({"containers": [container], "terminationGracePeriodSeconds": 5})
}

fn is_ready(api: &FakeApi, name: &str) -> bool {
    let pod = api.get("ns", name).unwrap_or_default();
    let all = pod["status"]["conditions"].as_array();
    let ready = all.and_then(|all| all.iter().find(|c| c["type"] == "Ready"));
    ready.is_some_and(|ready| ready["status"] == "True")
}

/// A world in which the events of another agent's dump happen.
struct Around {
    world: World,
    api: Arc<FakeApi>,
}

impl Around {
    fn new() -> Self {
        let (world, api) = world();
        Self { world, api }
    }

    /// Repeats all inputs of a dump, each one millisecond before its time.
    fn replay(&self, told: &[RecordedLine], end: MonoTime) {
        for line in told {
            let Some(heard) = &line.heard else { continue };
            let eve = MonoTime(line.t.saturating_sub(1));
            self.world.advance(eve - self.world.now());
            self.happens(heard);
        }
        self.world.advance(end - self.world.now());
    }

    fn happens(&self, heard: &RecordedEvent) {
        let api = &self.api;
        let name = |full: &str| full.split_once('/').expect("a name").1.to_owned();
        match heard {
            RecordedEvent::Add(seen) => {
                assert_eq!(api.create(&name(&seen.name), spec()), seen.pod);
            }
            RecordedEvent::Update(seen) if seen.deleted => api.delete(&name(&seen.name)),
            RecordedEvent::Probed { result, .. } => self
                .world
                .wire
                .is_well(PORT, *result == ProbeResult::Success),
            RecordedEvent::Api(ApiAnswer::Answers(up) | ApiAnswer::Lists(up)) => {
                api.set_link(if *up { Link::Up } else { Link::Down });
            }
            RecordedEvent::Api(ApiAnswer::Write { word, .. }) => {
                let answers = *word != WriteAnswer::Failed;
                api.set_link(if answers { Link::Up } else { Link::Down });
                api.refuse_statuses((*word == WriteAnswer::Conflict).then_some(CONFLICT));
            }
            // All else is the agent's own work: results of its calls, of its writes, of its clock.
            _ => {}
        }
    }
}

#[test]
fn a_run_of_a_cluster_replays_from_its_dump() {
    let (world, api) = world();
    let uid = api.create("a", spec());
    world.until("is ready", |_| is_ready(&api, "a"));
    world.advance(s(30));
    world.wire.is_well(PORT, false);
    world.until("fails", |_| !is_ready(&api, "a"));
    world.wire.is_well(PORT, true);
    world.until("recovers", |_| is_ready(&api, "a"));

    api.set_link(Link::Down);
    world.advance(s(100));
    api.set_link(Link::Up);
    world.advance(s(100));

    api.refuse_statuses(Some(CONFLICT));
    world.wire.is_well(PORT, false);
    world.advance(s(10));
    assert!(is_ready(&api, "a"));
    api.refuse_statuses(None);
    world.until("is told", |_| !is_ready(&api, "a"));
    world.advance(s(20));

    api.delete("a");
    world.until("is gone", |w| w.is_gone(&uid));
    world.advance(s(3));
    let told = dump(&world);

    // The dump shows the events in their order.
    let story: Vec<String> = told.iter().filter_map(|line| word(line, &uid)).collect();
    assert_eq!(
        story,
        [
            "answers true",
            "lists true",
            "add",
            "readiness success",
            "readiness failure",
            "readiness success",
            "lists false",
            "answers false",
            "answers true",
            "lists true",
            "readiness failure",
            "status conflict",
            "status done",
            "delete",
            "gone",
        ]
    );
    let is_told =
        |f: fn(&RecordedEvent) -> bool| told.iter().any(|l| l.heard.as_ref().is_some_and(f));
    assert!(is_told(|h| matches!(h, RecordedEvent::Conditions { .. })));
    assert!(is_told(|h| matches!(h, RecordedEvent::Listed { .. })));
    assert!(is_told(
        |h| matches!(h, RecordedEvent::Shown { phase, .. } if phase == "Running")
    ));
    for (step, phase) in [
        ("begun", "Pending"),
        ("begun", "Running"),
        ("stopping", "Running"),
    ] {
        let is = |step_of: &RecordedStep| {
            step_of.step == step && step_of.phase.as_deref() == Some(phase)
        };
        let mut steps = told.iter().filter_map(|line| match &line.heard {
            Some(RecordedEvent::Step(step)) => Some(step),
            _ => None,
        });
        assert!(steps.any(is), "{step} {phase}");
    }

    assert_replays(&told, &world);

    // The check can fail: without the lines of one probe result, all later lines differ.
    let without: Vec<RecordedLine> = told
        .iter()
        .filter(|line| !matches!(&line.heard, Some(RecordedEvent::Probed { result, .. }) if *result == ProbeResult::Failure))
        .cloned()
        .collect();
    let again = Around::new();
    again.replay(&without, world.now());
    assert_ne!(dump(&again.world), told);
}

#[test]
fn a_status_that_waits_for_the_end_of_an_outage() {
    let (world, api) = world();
    let uid = api.create("a", spec());
    world.until("is ready", |_| is_ready(&api, "a"));
    world.advance(s(30));
    api.set_link(Link::Down);
    world.advance(s(50));
    world.wire.is_well(PORT, false);
    world.advance(s(50));
    assert!(is_ready(&api, "a"), "nobody hears of it");
    api.set_link(Link::Up);
    world.until("is told", |_| !is_ready(&api, "a"));
    world.advance(s(100));
    // The pauses between tries are spread by random numbers; each failure takes one.
    api.refuse_statuses(Some(CONFLICT));
    world.wire.is_well(PORT, true);
    world.advance(s(10));
    api.refuse_statuses(None);
    world.until("is told", |_| is_ready(&api, "a"));
    let told = dump(&world);
    let writes = told.iter().filter_map(|line| word(line, &uid));
    let writes: Vec<String> = writes.filter(|word| word.starts_with("status")).collect();
    assert_eq!(
        writes,
        [
            "status failed",
            "status done",
            "status conflict",
            "status done"
        ]
    );
    assert_replays(&told, &world);
}

/// Checks that an agent with the inputs of `told`, run until the present time of `world`, writes the same dump.
fn assert_replays(told: &[RecordedLine], world: &World) {
    let again = Around::new();
    again.replay(told, world.now());
    let retold = dump(&again.world);
    for (n, (told, retold)) in told.iter().zip(&retold).enumerate() {
        assert_eq!(retold, told, "line {n}");
    }
    assert_eq!(retold.len(), told.len());
}

/// Word for a line that is about this pod or the apiserver.
fn word(line: &RecordedLine, uid: &str) -> Option<String> {
    Some(match (&line.heard, &line.done) {
        (Some(RecordedEvent::Add(seen)), _) if seen.pod == uid => "add".into(),
        (Some(RecordedEvent::Update(seen)), _) if seen.pod == uid && seen.deleted => {
            "delete".into()
        }
        (Some(RecordedEvent::Api(ApiAnswer::Answers(yes))), _) => format!("answers {yes}"),
        (Some(RecordedEvent::Api(ApiAnswer::Lists(yes))), _) => format!("lists {yes}"),
        (Some(RecordedEvent::Api(ApiAnswer::Write { pod, what, word })), _) if **pod == *uid => {
            format!("{what:?} {word:?}").to_lowercase()
        }
        (Some(RecordedEvent::Probed { kind, result, .. }), _) => {
            format!("{kind:?} {result:?}").to_lowercase()
        }
        (_, Some(RecordedEffect::Gone { pod, .. })) if pod == uid => "gone".into(),
        _ => return None,
    })
}
