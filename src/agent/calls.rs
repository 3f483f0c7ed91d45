//! The calls of workers that run: what they are given, and what the loop makes of their steps. Statuses, reasons, back-off and
//! probes of pods change here and nowhere else.

use alloc::{collections::BTreeMap, rc::Rc};
use core::net::IpAddr;

use super::{
    ctx::Ctx,
    executor::{Begun, Cancel, Granted, Line, NotStarted, Plan, Problem, Started, Step, Tell},
    status::Statuses,
};
use crate::{
    api::{Container, Mono, Pod, PodSpec, PodStatus, PodUid, cri::PodRuntimeStatus},
    logic::{
        actions, metrics::own::ContainerType, outcome, pod_table::Handle, pod_table::PodTable,
    },
};

/// Flags of the calls that run, at most one a slot.
#[derive(Default)]
pub(super) struct Calls(BTreeMap<Handle, Rc<Cancel>>);

impl Calls {
    /// A call begins.
    pub(super) fn begin(&mut self, handle: Handle) -> Rc<Cancel> {
        let cancel = Rc::new(Cancel::default());
        self.0.insert(handle, Rc::clone(&cancel));
        cancel
    }

    /// It has ended.
    pub(super) fn end(&mut self, handle: Handle) {
        self.0.remove(&handle);
    }

    /// Shows each call whether it is still wanted.
    pub(super) fn refresh(&self, table: &PodTable) {
        for (handle, cancel) in &self.0 {
            let stage = table.stage(*handle);
            let ends = stage.is_some_and(|stage| stage.is_requested());
            cancel.set(ends, table.is_cancelled(*handle));
        }
    }
}

/// What a call is given that begins now.
pub(super) fn plan(ctx: &Ctx, call: Handle, uid: PodUid, cancel: Rc<Cancel>, tell: Tell) -> Plan {
    Plan {
        runtime: ctx.view.status(&uid),
        objects: Rc::clone(&ctx.objects.borrow()),
        host_ips: ctx.node.host_ips(),
        burstable_milli: ctx.pods.burstable_milli(),
        limited: ctx.pods.is_limited(&uid),
        cancel,
        line: Line { call, tell },
        uid,
    }
}

/// Takes in a step of a call.
pub(super) fn on_step(ctx: &Ctx, call: Handle, step: Step, now: Mono) {
    let statuses = ctx.statuses();
    match step {
        Step::Begun {
            pod,
            runtime,
            answer,
        } => answer.give(begun(ctx, call, &pod, &runtime)),
        Step::OutcomeKept(answer) => {
            let uid = ctx.pods.uid(call);
            answer.give(uid.is_some_and(|uid| ctx.pods.is_configured(&uid)));
        }
        Step::Limited => set_limited(ctx, call, true),
        Step::Mounted(pod) => ctx.probes.add(&pod, now),
        Step::SandboxUp(pod) => statuses.sandbox_is_ready(&pod),
        Step::Restarts {
            pod,
            container,
            runtime,
            answer,
        } => answer.give(grant(ctx, &pod, &container, &runtime, now)),
        Step::Acted {
            pod,
            starts,
            failed,
        } => {
            starts.iter().for_each(|start| note_start(ctx, &pod, start));
            ctx.view.request_relist();
            if let Some(runtime) = failed {
                statuses.store(&pod, statuses.generate(&pod, &runtime));
            }
        }
        Step::Stopping {
            pod,
            runtime,
            answer,
        } => {
            let status = statuses.generate_stopping(&pod, &runtime, call);
            statuses.store(&pod, status);
            let uid = &pod.metadata.uid;
            ctx.probes.stopping(uid);
            answer.give(ctx.pods.with_status(uid, ips).unwrap_or_default());
        }
        Step::Killed => {
            if let Some(uid) = ctx.pods.uid(call) {
                ctx.probes.remove(&uid);
            }
        }
        Step::Stopped { pod, runtime } => {
            statuses.store(&pod, statuses.generate_final(&pod, &runtime, call));
        }
        Step::Changed => ctx.view.request_relist(),
        Step::CleanedUp(pod) => {
            set_limited(ctx, call, false);
            if let Some(pod) = pod {
                statuses.finish(&pod);
            }
        }
    }
}

fn begun(ctx: &Ctx, call: Handle, pod: &Pod, runtime: &PodRuntimeStatus) -> Begun {
    let uid = &pod.metadata.uid;
    let statuses = ctx.statuses();
    let status = statuses.generate(pod, runtime);
    let terminal = status.phase.is_terminal();
    let ips = ips(&status);
    let is_outcome = outcome::is_worth_keeping(pod, &status) && ctx.pods.is_configured(uid);
    let outcome = is_outcome.then(|| status.clone());
    // Stored before any side effect: waiting reasons are seen even if a later step blocks.
    statuses.store(pod, status);
    if !terminal {
        statuses.watch_deadline(call, pod);
    }
    let network = || {
        ctx.view
            .network_problem()
            .filter(|_| !pod.spec.host_network)
    };
    let runs_nothing = ctx.view.start_problem().map(Problem::Runtime);
    let actions = ctx.probes.with(uid, |probes| {
        actions::compute_pod_actions(pod, runtime, probes)
    });
    Begun {
        terminal,
        outcome,
        ips,
        problem: runs_nothing.or_else(|| network().map(Problem::Network)),
        actions,
    }
}

/// Addresses that a status shows.
fn ips(status: &PodStatus) -> Vec<IpAddr> {
    let shown = status.pod_ips.iter();
    shown.filter_map(|entry| entry.ip.parse().ok()).collect()
}

fn grant(ctx: &Ctx, pod: &Pod, container: &str, runtime: &PodRuntimeStatus, now: Mono) -> Granted {
    if let Some(container) = pod.spec.all_containers().find(|c| c.name == container) {
        let ended = ctx.view.last_end(runtime, &container.name);
        ctx.pods.grant_start(pod, container, ended, now)?;
    }
    Ok(ctx.pods.delays())
}

fn note_start(ctx: &Ctx, pod: &Pod, start: &Started) {
    let (uid, name) = (&pod.metadata.uid, &start.container);
    let reason = start.result.as_ref().map(drop).map_err(|e| e.reason);
    // What waits for its back-off was not tried.
    if reason != Err("CrashLoopBackOff") {
        let kind = kind_of(&pod.spec, name);
        ctx.counters.count(|c| c.container_started(kind, reason));
    }
    match &start.result {
        Ok(()) => ctx.pods.started(uid, name),
        Err(NotStarted { reason, message }) => ctx.pods.start_failed(uid, name, reason, message),
    }
}

fn kind_of(spec: &PodSpec, name: &str) -> ContainerType {
    let is_in = |list: &[Container]| list.iter().any(|c| c.name == name);
    if is_in(&spec.init_containers) {
        ContainerType::Init
    } else if is_in(&spec.ephemeral_containers) {
        ContainerType::Ephemeral
    } else {
        ContainerType::Regular
    }
}

fn set_limited(ctx: &Ctx, call: Handle, limited: bool) {
    if let Some(uid) = ctx.pods.uid(call) {
        ctx.pods.set_limited(&uid, limited);
    }
}

impl Ctx {
    /// What statuses are made of and where they go.
    pub(super) fn statuses(&self) -> Statuses<'_> {
        Statuses {
            pods: &self.pods,
            probes: &self.probes,
            node: &self.node,
            clock: &*self.clock,
            recorder: &self.recorder,
            counters: &self.counters,
            runtime: &*self.runtime,
            api: self.cluster.as_ref().map(|cluster| &*cluster.writer),
        }
    }
}
