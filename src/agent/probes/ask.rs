//! One run of a probe: its attempts, its event, and the result for the loop.

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

/// Attempts of a probe as long as each ends in an error (PROBE-09).
const TRIES: usize = 3;
/// Bytes kept of each of a command's two output streams (PROBE-20).
const MAX_OUTPUT_BYTES: usize = 10 * 1024;

/// Target of a probe.
pub(super) struct ProbeTarget {
    uid: PodUid,
    name: Box<str>,
    /// Id of the instance, as the API writes it.
    container_id: Box<str>,
    /// Id of the instance, as the runtime writes it.
    id: ContainerId,
    ip: Option<IpAddr>,
    settings: ProbeSettings,
    job: Rc<ProbeJob>,
}

impl ProbeTarget {
    /// Makes the target of a pod's worker. `container_id`: id of the present instance, as the API writes it.
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

/// Runs the probe, and hands its result to the loop.
pub(super) async fn run_probe(driver: &ProbeDriver, key: ProbeWorkerKey, target: ProbeTarget) {
    let (probes, clock) = (&driver.probes, &driver.clock);
    let slots_for_action = |slots: &ProbeSlots| match &target.job.action {
        PodProbeAction::Exec(_) => Rc::clone(&slots.commands),
        PodProbeAction::Ask(_) | PodProbeAction::Broken(_) => Rc::clone(&slots.connections),
    };
    let pod_slots = slots_for_action(&target.job.turns);
    let node_slots = slots_for_action(&probes.turns);
    let mut waited = false;
    // The pod's slot is taken first. A probe that waits for a slot of its own pod then holds no slot that other pods
    // need.
    let pod_slot = take_probe_slot(&pod_slots, &mut waited).await;
    let node_slot = take_probe_slot(&node_slots, &mut waited).await;
    let began = clock.now();
    // Without a worker there is nothing to do: the pod went while the probe waited.
    let Some(late) = probes.workers.borrow_mut().begin_probe(key, waited, began) else {
        return;
    };
    probes.late.set(probes.late.get() + u64::from(late));
    let answer = probe_with_retries(driver, &target).await;
    drop((node_slot, pod_slot));
    let is_gone = {
        let workers = probes.workers.borrow();
        !workers
            .worker_entry(key)
            .is_some_and(|(_, entry)| entry.worker.is_probing())
    };
    if is_gone {
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
    let new_result =
        probes
            .workers
            .borrow_mut()
            .take_result(key, target.id.as_str(), success, clock.now());
    probes.wake_driver();
    if let Some(result) = new_result {
        if target.settings.kind != ProbeKind::Liveness {
            passed::save_passed_probes(probes, &driver.run_dir, &driver.complaints);
        }
        log::debug!(
            "uid={} container={} {} probe: {result:?}",
            target.uid,
            target.name,
            target.settings.kind
        );
        let unshown = UnshownProbeResult {
            uid: target.uid,
            container_id: target.container_id,
            kind: target.settings.kind,
            result,
        };
        // The answer is `false` only when the agent ends.
        let _ = (driver.tell)(unshown).await;
    }
    debug_assert!(new_result != Some(ProbeResult::Unknown));
}

async fn take_probe_slot<'a>(slots: &'a Semaphore, waited: &mut bool) -> SemaphoreGuard<'a> {
    match slots.try_acquire() {
        Some(slot) => slot,
        None => {
            *waited = true;
            slots.acquire().await
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
            let deadline = driver.probes.limits.alarm_at(driver.clock.now() + limit);
            driver
                .wire
                .send_probe(action, target.ip, limit, deadline)
                .await
        }
        PodProbeAction::Exec(words) => {
            let run = driver
                .runtime
                .exec_sync(&target.id, words, Some(limit), MAX_OUTPUT_BYTES)
                .await;
            match run {
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

/// Records the event of an answer that is not a plain success (EVT-17, EVT-18), as long as the pod has a worker.
async fn record_probe_event(driver: &ProbeDriver, target: &ProbeTarget, answer: ProbeAnswer) {
    let kind = target.settings.kind;
    let (reason, text) = match answer {
        ProbeAnswer::Success => return,
        ProbeAnswer::Warning(text) => ("ProbeWarning", format!("{kind} probe warning: {text}")),
        ProbeAnswer::Failure(text) => ("Unhealthy", format!("{kind} probe failed: {text}")),
        ProbeAnswer::Error(text) => {
            // The kubelet's HTTP prober calls it a failure if an answer cannot be read to its end. That failure does
            // not count there either.
            let state = match &target.job.action {
                PodProbeAction::Ask(_) => "failure",
                PodProbeAction::Exec(_) | PodProbeAction::Broken(_) => "unknown",
            };
            let text = format!("{kind} probe errored and resulted in {state} state: {text}");
            ("Unhealthy", text)
        }
    };
    // The container's name replaces the id of the instance. The same event of another instance then counts as a repeat
    // (EVT-01).
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
    let subject = EventSubject {
        uid: &target.uid,
        namespace: &namespace,
        name: &name,
        field_path: &field,
        annotations: "",
    };
    driver
        .recorder
        .record_event(subject, EventSeverity::Warning, reason, &text);
}
