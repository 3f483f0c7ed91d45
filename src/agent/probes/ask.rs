//! A probe at work: asked, asked again if it errs, its result told.

use alloc::rc::Rc;
use core::{net::IpAddr, time::Duration};

use smol::lock::{Semaphore, SemaphoreGuard};

use super::{
    PodProbeAction, ProbeJob, ProbeSlots, UnshownProbeResult, driver::ProbeDriver, passed,
};
use crate::{
    agent::recorder::{EventSeverity, EventSubject},
    api::{ContainerId, PodUid},
    logic::probe::{
        ProbeKind, ProbeResult, ProbeSettings, ProbeWorkerEntry, ProbeWorkerKey,
        workers::strip_runtime_prefix,
    },
    probe::{MAX_TEXT_BYTES, ProbeAnswer},
    runtime::RuntimeError,
};

/// Tries of a probe that errs (PROBE-09).
const TRIES: usize = 3;
/// Bytes kept of each of a command's two output streams (PROBE-20).
const MAX_OUTPUT_BYTES: usize = 10 * 1024;

/// Target of a probe.
pub(super) struct ProbeTarget {
    uid: PodUid,
    name: Box<str>,
    /// Instance, as the API names it and as the runtime does.
    container_id: Box<str>,
    id: ContainerId,
    ip: Option<IpAddr>,
    settings: ProbeSettings,
    job: Rc<ProbeJob>,
}

impl ProbeTarget {
    /// Makes the target of a pod's worker. `container_id`: the present instance, as the API names it.
    pub(super) fn from_worker(
        uid: &PodUid,
        entry: &ProbeWorkerEntry<Rc<ProbeJob>>,
        container_id: &str,
        ip: Option<IpAddr>,
    ) -> Self {
        Self {
            uid: uid.clone(),
            name: entry.container.clone(),
            container_id: container_id.into(),
            id: strip_runtime_prefix(container_id).into(),
            ip,
            settings: entry.worker.settings(),
            job: Rc::clone(&entry.action),
        }
    }
}

/// Probes, and hands the result to the loop.
pub(super) async fn run_probe(driver: &ProbeDriver, key: ProbeWorkerKey, target: ProbeTarget) {
    let (probes, clock) = (&driver.probes, &driver.clock);
    let of = |turns: &ProbeSlots| match &target.job.action {
        PodProbeAction::Exec(_) => Rc::clone(&turns.commands),
        PodProbeAction::Ask(_) | PodProbeAction::Broken(_) => Rc::clone(&turns.connections),
    };
    let (of_pod, of_node) = (of(&target.job.turns), of(&probes.turns));
    let mut waited = false;
    // The pod's place first: a probe that waits for its own pod's places is in no other pod's way.
    let turn_of_pod = take_probe_slot(&of_pod, &mut waited).await;
    let turn = take_probe_slot(&of_node, &mut waited).await;
    let began = clock.now();
    // The pod went meanwhile.
    let Some(late) = probes.workers.borrow_mut().begin_probe(key, waited, began) else {
        return;
    };
    probes.late.set(probes.late.get() + u64::from(late));
    let answer = probe_with_retries(driver, &target).await;
    drop((turn, turn_of_pod));
    let gone = {
        let workers = probes.workers.borrow();
        !workers
            .worker_entry(key)
            .is_some_and(|(_, entry)| entry.worker.is_probing())
    };
    if gone {
        return;
    }
    let success = match &answer {
        ProbeAnswer::Success | ProbeAnswer::Warning(_) => Some(true),
        ProbeAnswer::Failure(_) => Some(false),
        ProbeAnswer::Error(_) => None,
    };
    if success != Some(false) {
        let took_ms = clock.now().since_ms(began);
        probes.workers.borrow_mut().count_duration(key, took_ms);
    }
    record_probe_event(driver, &target, answer).await;
    let changed =
        probes
            .workers
            .borrow_mut()
            .take_result(key, target.id.as_str(), success, clock.now());
    probes.wake_driver();
    if let Some(result) = changed {
        if target.settings.kind != ProbeKind::Liveness {
            passed::save_passed_probes(probes, &driver.run_dir, &driver.complaints);
        }
        log::debug!(
            "uid={} container={} {} probe: {result:?}",
            target.uid,
            target.name,
            target.settings.kind
        );
        let probed = UnshownProbeResult {
            uid: target.uid,
            container_id: target.container_id,
            kind: target.settings.kind,
            result,
        };
        // Closed only when the agent ends.
        let _ = (driver.tell)(probed).await;
    }
    debug_assert!(changed != Some(ProbeResult::Unknown));
}

async fn take_probe_slot<'a>(turns: &'a Semaphore, waited: &mut bool) -> SemaphoreGuard<'a> {
    match turns.try_acquire() {
        Some(turn) => turn,
        None => {
            *waited = true;
            turns.acquire().await
        }
    }
}

async fn probe_with_retries(driver: &ProbeDriver, target: &ProbeTarget) -> ProbeAnswer {
    let limit = Duration::from_secs(target.settings.timeout_s.into());
    let mut answer = probe_once(driver, target, limit).await;
    for _ in 1..TRIES {
        if !matches!(answer, ProbeAnswer::Error(_)) {
            break;
        }
        answer = probe_once(driver, target, limit).await;
    }
    answer
}

async fn probe_once(driver: &ProbeDriver, target: &ProbeTarget, limit: Duration) -> ProbeAnswer {
    match &target.job.action {
        PodProbeAction::Broken(why) => ProbeAnswer::Error(why.clone()),
        PodProbeAction::Ask(action) => {
            let late = driver.probes.limits.alarm_at(driver.clock.now() + limit);
            driver.wire.send_probe(action, target.ip, limit, late).await
        }
        PodProbeAction::Exec(words) => {
            let ran = driver
                .runtime
                .exec_sync(&target.id, words, Some(limit), MAX_OUTPUT_BYTES)
                .await;
            match ran {
                Ok(output) if output.exit_code == 0 => ProbeAnswer::Success,
                Ok(output) => {
                    let mut text = output.stdout;
                    text.extend_from_slice(&output.stderr);
                    text.truncate(MAX_TEXT_BYTES);
                    ProbeAnswer::Failure(String::from_utf8_lossy(&text).into_owned())
                }
                Err(RuntimeError::Timeout { after, .. }) => ProbeAnswer::Failure(format!(
                    "command timed out: {:?} timed out after {}s",
                    words.join(" "),
                    after.as_secs()
                )),
                Err(e) => ProbeAnswer::Error(e.to_string()),
            }
        }
    }
}

/// The event of an answer that is not a plain success (EVT-17, EVT-18), as long as the pod has a worker.
async fn record_probe_event(driver: &ProbeDriver, target: &ProbeTarget, answer: ProbeAnswer) {
    let kind = target.settings.kind;
    let (reason, text) = match answer {
        ProbeAnswer::Success => return,
        ProbeAnswer::Warning(text) => ("ProbeWarning", format!("{kind} probe warning: {text}")),
        ProbeAnswer::Failure(text) => ("Unhealthy", format!("{kind} probe failed: {text}")),
        ProbeAnswer::Error(text) => {
            // An answer that cannot be read to its end is a failure to the kubelet's HTTP prober, which does not count either.
            let state = match &target.job.action {
                PodProbeAction::Ask(_) => "failure",
                PodProbeAction::Exec(_) | PodProbeAction::Broken(_) => "unknown",
            };
            let text = format!("{kind} probe errored and resulted in {state} state: {text}");
            ("Unhealthy", text)
        }
    };
    // Repeats of another instance are repeats (EVT-01).
    let text = text.replace(target.id.as_str(), &target.name);
    let field = if target.settings.sidecar {
        "initContainers"
    } else {
        "containers"
    };
    let field = format!("spec.{field}{{{}}}", target.name);
    let uid = target.uid.clone();
    let Some((namespace, name)) = driver
        .agent
        .ask_agent(move |agent| agent.pod_name(&uid))
        .await
    else {
        return;
    };
    let about = EventSubject {
        uid: &target.uid,
        namespace: &namespace,
        name: &name,
        field_path: &field,
        annotations: "",
    };
    driver
        .recorder
        .record_event(about, EventSeverity::Warning, reason, &text);
}
