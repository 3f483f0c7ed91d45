//! Probes when there are many, or some are slow: bounds, turns, and counters.

use core::time::Duration;

use serde_json::{Value, json};

use super::{
    super::core::Agent,
    probes::{exec, is_ready, probed, s, settled, tcp, told},
    wire::Port,
    world::{IMAGE, World, fault, manifest},
};
use crate::{
    api::pod_status::PodPhase,
    logic::probe::{NodeProbeFigures, ProbeCounts, ProbeKind},
    probe::ProbeAnswer,
    runtime::fake::{Fault, Op, Trouble},
};

fn figures(world: &World) -> NodeProbeFigures {
    world.wait(world.asker.ask_agent(Agent::probe_figures))
}

fn late(world: &World) -> u64 {
    figures(world).late
}

#[test]
fn what_is_counted() {
    // MET-09
    let world = settled();
    world.wire.is_well(82, false);
    world.wire.answers(83, ProbeAnswer::Error("odd".into()));
    let probes = json!({"livenessProbe": tcp(80), "readinessProbe": tcp(82)});
    let odd = json!({"readinessProbe": tcp(83)});
    world.apply(&[probed("a", probes), probed("b", odd)]);
    world.until("run", |w| {
        ["a", "b"]
            .iter()
            .all(|uid| w.phase(uid) == Some(PodPhase::Running))
    });
    world.advance(s(10));
    let all = figures(&world);
    assert_eq!((all.late, all.commands, all.connections), (0, 0, 0));
    let of = |uid: &str, kind: ProbeKind| {
        let mut found = all.probes.iter();
        let found = found.find(|f| *f.uid.as_str() == *uid && f.kind == kind);
        found.expect("a probe")
    };
    for (uid, kind, ends, timed) in [
        ("a", ProbeKind::Liveness, (true, false, false), true),
        ("a", ProbeKind::Readiness, (false, true, false), false),
        ("b", ProbeKind::Readiness, (false, false, true), true),
    ] {
        let found = of(uid, kind);
        let ProbeCounts {
            successful,
            failed,
            unknown,
            late,
        } = found.counts;
        assert_eq!((successful > 0, failed > 0, unknown > 0), ends, "{found:?}");
        assert_eq!(late, 0);
        let answered = u64::from(successful + unknown);
        assert!(successful + failed + unknown >= 10);
        assert_eq!(found.took.count(), if timed { answered } else { 0 });
        let names = (&*found.namespace, &*found.pod, &*found.container);
        assert_eq!(names, ("default", &*format!("{uid}-node"), "c"));
    }
    assert_eq!(all.probes.len(), 3);
    world.apply(&[]);
    world.until("are gone", |w| w.is_gone("a") && w.is_gone("b"));
    assert_eq!(figures(&world).probes, []);
}

#[test]
fn commands_take_turns_and_fall_no_further_behind() {
    let world = settled();
    let pods: Vec<Value> = (0..20)
        .map(|n| probed(&format!("p{n}"), json!({"livenessProbe": exec(&["true"])})))
        .collect();
    world.apply(&pods);
    world.until("all run", |w| {
        (0..20).all(|n| w.phase(&format!("p{n}")) == Some(PodPhase::Running))
    });
    world.advance(s(5));
    assert_eq!(late(&world), 0);
    world.fake.add_fault(fault(Op::Exec, 8, Trouble::Hangs));
    world.until("no more at a time", |w| w.fake.hanging(Op::Exec) == 8);
    world.fake.take_calls();
    world.advance(s(30));
    let commands = |world: &World| {
        let calls = world.fake.take_calls().into_iter();
        calls.filter(|(op, _)| *op == Op::Exec).count()
    };
    assert_eq!(commands(&world), 0);
    world.fake.release(Op::Exec);
    world.settle();
    let caught_up = commands(&world);
    assert!(caught_up <= 20, "once each: {caught_up}");
    assert!(late(&world) >= 12, "{}", late(&world));
    world.advance(s(10));
    assert!((180..=220).contains(&commands(&world)));
}

#[test]
fn a_pod_whose_commands_hang_is_in_its_own_way() {
    let world = settled();
    let slow = json!({"exec": {"command": ["sleep"]}, "periodSeconds": 1, "timeoutSeconds": 600});
    let containers: Vec<Value> = (0..10)
        .map(|n| json!({"name": format!("c{n}"), "image": IMAGE, "command": ["sleep"], "readinessProbe": slow}))
        .collect();
    let hang = Fault {
        op: Op::Exec,
        target: Some("slow".into()),
        times: 100,
        trouble: Trouble::Hangs,
    };
    world.fake.add_fault(hang);
    world.apply(&[manifest("slow", json!({"containers": containers}))]);
    world.until("they hang", |w| w.fake.hanging(Op::Exec) == 2);
    world.advance(s(30));
    assert_eq!(world.fake.hanging(Op::Exec), 2, "no more of one pod");
    assert_eq!(figures(&world).commands, 2);
    let before = world.now();
    world.apply(&[
        manifest("slow", json!({"containers": containers})),
        probed("well", json!({"readinessProbe": exec(&["true"])})),
    ]);
    world.until("the other is ready", |w| is_ready(w, "well"));
    assert!(world.now() - before < s(3));
    world.fake.release(Op::Exec);
}

#[test]
fn connections_are_bounded() {
    let world = settled();
    world.wire.set(81, Port::Waits(ProbeAnswer::Success));
    let mut silent = tcp(81);
    silent["timeoutSeconds"] = json!(600);
    let pods: Vec<Value> = (0..10)
        .map(|pod| {
            let containers: Vec<Value> = (0..15)
                .map(|n| {
                    json!({"name": format!("c{n}"), "image": IMAGE, "command": ["sleep"],
                        "readinessProbe": silent, "livenessProbe": silent})
                })
                .collect();
            manifest(&format!("p{pod}"), json!({"containers": containers}))
        })
        .collect();
    world.apply(&pods);
    world.until("all run", |w| {
        (0..10).all(|n| w.phase(&format!("p{n}")) == Some(PodPhase::Running))
    });
    world.advance(s(60));
    assert_eq!(world.wire.take_asked(81), 256, "of 300");
    world.wire.is_well(81, true);
    world.wire.release();
    world.advance(s(2));
    assert!(
        world
            .status("p9")
            .expect("status")
            .container_statuses
            .iter()
            .all(|c| c.ready)
    );
}

#[test]
fn those_due_at_nearly_the_same_time_share_a_wake_up() {
    // PROBE-03
    const PODS: u16 = 30;
    let world = settled();
    let all: Vec<Value> = (0..PODS)
        .map(|n| probed(&format!("p{n}"), json!({"livenessProbe": tcp(100 + n)})))
        .collect();
    for n in 1..=all.len() {
        world.apply(&all[..n]);
        world.advance(Duration::from_millis(37));
    }
    world.advance(s(5));
    (0..PODS).for_each(|n| _ = world.wire.take_asked(100 + n));
    let step = Duration::from_millis(10);
    let mut passes = vec![Vec::new(); PODS.into()];
    let mut wake_ups = 0;
    for now in 0..1000 {
        world.advance(step);
        let asked = (0..PODS).filter(|n| world.wire.take_asked(100 + n) > 0);
        let asked: Vec<u16> = asked.collect();
        wake_ups += usize::from(!asked.is_empty());
        for n in asked {
            passes[usize::from(n)].push(now);
        }
    }
    assert!(wake_ups <= 110, "one of every 100 ms: {wake_ups}");
    for (n, passes) in passes.iter().enumerate() {
        assert!((9..=11).contains(&passes.len()), "{n}: {passes:?}");
        let mut gaps = passes.windows(2).map(|two| two[1] - two[0]);
        assert!(gaps.all(|gap| (89..=111).contains(&gap)), "{n}: {passes:?}");
    }
}

#[test]
fn silence_is_a_failure_of_its_pod_alone() {
    let world = settled();
    world.wire.set(81, Port::Hangs);
    let mut silent = tcp(81);
    silent["timeoutSeconds"] = json!(30);
    let pods: Vec<Value> = (0..20)
        .map(|n| probed(&format!("s{n}"), json!({"readinessProbe": silent})))
        .chain([probed("well", json!({"readinessProbe": tcp(80)}))])
        .collect();
    let before = world.now();
    world.apply(&pods);
    world.until("the other is ready", |w| is_ready(w, "well"));
    assert!(world.now() - before < s(3));
    world.wire.take_asked(80);
    world.advance(s(100));
    assert!(world.wire.take_asked(80) >= 99);
    assert!(!is_ready(&world, "s0"));
    let asked = world.wire.take_asked(81);
    assert!(
        (60..=100).contains(&asked),
        "one at a time of each: {asked}"
    );
    // The probes ran out of time three times; that is told once.
    assert_eq!(
        told(&world, "Unhealthy")
            .iter()
            .filter(|t| t.ends_with("too late"))
            .count(),
        20
    );
}
