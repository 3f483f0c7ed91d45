//! Builders of one line, so that a test's row reads as a sentence. Only built for tests.

use alloc::{string::String, vec::Vec};

use crate::api::{
    ConfigMap, Container, ContainerId, Pod, PodError, PodUid, SandboxId, Secret, WallTime,
    cri::{
        ContainerState, ContainerStatus, NamespaceOptions, PodRuntimeStatus, SandboxState,
        SandboxStatus,
    },
    pod::RestartPolicy,
    pod_status::PodStatus,
};
use crate::conditions::{self, DISRUPTION_TARGET};
use crate::env::ReferencedObjects;
use crate::probe::{ProbeResult, ProbeResults};
use crate::spec_hash::spec_hash;

pub mod server;
pub mod smp;

/// A container of that name with image `img`.
pub fn container(name: &str) -> Container {
    Container {
        name: name.into(),
        image: "img".into(),
        ..Container::default()
    }
}

/// An init container that goes on running.
pub fn sidecar(name: &str) -> Container {
    Container {
        restart_policy: Some(RestartPolicy::Always),
        ..container(name)
    }
}

/// Pod `ns/p` with these regular containers and policy `Always`.
pub fn pod_with(regular: &[&str]) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = "p".into();
    pod.metadata.namespace = "ns".into();
    pod.metadata.uid = PodUid::from("uid");
    pod.spec.termination_grace_period_seconds = Some(30);
    pod.spec.containers = regular.iter().map(|name| container(name)).collect();
    pod
}

/// A first instance (`<name>-0`), created first; exited ones with code 0.
pub fn instance(name: &str, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        id: ContainerId::new(format!("{name}-0")),
        sandbox: SandboxId::from("sb-0"),
        name: name.into(),
        restart_count: 0,
        state,
        created_at: WallTime::from_unix_seconds(100),
        started_at: (state != ContainerState::Created).then_some(WallTime::from_unix_seconds(101)),
        finished_at: (state == ContainerState::Exited).then_some(WallTime::from_unix_seconds(102)),
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: "img".into(),
        image_id: "img@sha256:1".into(),
        volume_images: Vec::new(),
        mounts: Vec::new(),
        stop_signal: String::new(),
        hash: spec_hash(&container(name)),
        user: None,
        pid: 0,
        log_path: String::new(),
    }
}

/// An exited instance with that code.
pub fn exited(name: &str, exit_code: i32) -> ContainerStatus {
    ContainerStatus {
        exit_code,
        reason: if exit_code == 0 { "Completed" } else { "Error" }.into(),
        ..instance(name, ContainerState::Exited)
    }
}

/// The `n`th instance of a container: id and restart count follow.
pub fn nth(n: u32, mut status: ContainerStatus) -> ContainerStatus {
    status.id = ContainerId::new(format!("{}-{n}", status.name));
    status.restart_count = n;
    status.created_at = WallTime::from_unix_seconds(100 + i64::from(n));
    status
}

/// Sandbox `sb-<attempt>` with one IP.
pub fn sandbox(attempt: u32, state: SandboxState) -> SandboxStatus {
    SandboxStatus {
        id: SandboxId::new(format!("sb-{attempt}")),
        uid: PodUid::from("uid"),
        name: "p".into(),
        namespace: "ns".into(),
        attempt,
        state,
        created_at: WallTime::from_unix_seconds(100),
        ips: vec!["10.0.0.2".parse().expect("address")],
        namespaces: NamespaceOptions::default(),
        runtime_handler: String::new(),
    }
}

/// A pod with one ready sandbox and these instances, newest first.
pub fn running_pod(containers: Vec<ContainerStatus>) -> PodRuntimeStatus {
    PodRuntimeStatus {
        uid: PodUid::from("uid"),
        name: "p".into(),
        namespace: "ns".into(),
        ips: vec!["10.0.0.2".parse().expect("address")],
        sandboxes: vec![sandbox(0, SandboxState::Ready)],
        containers,
    }
}

/// A small seeded generator (SplitMix64): tests stay reproducible without a dependency.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The whole status that a patch is to lead to; `compute_status_patch` is compared with it.
///
/// - Conditions of others are those of the API.
/// - While containers may still run, a move to a terminal phase is withheld with its reason and message, and so is
///   `DisruptionTarget`; everything else is sent.
/// - With a terminal phase `Ready` and `ContainersReady` are False.
pub fn merge_for_api(
    api: &PodStatus,
    stored: &PodStatus,
    could_have_running_containers: bool,
    now: WallTime,
) -> PodStatus {
    let mut merged = stored.clone();
    let ending = !api.phase.is_terminal() && stored.phase.is_terminal();
    merged.conditions = api
        .conditions
        .iter()
        .filter(|c| !conditions::is_owned_by_agent(&c.kind))
        .cloned()
        .collect();
    for condition in &stored.conditions {
        if conditions::is_owned_by_agent(&condition.kind) {
            merged.conditions.push(condition.clone());
        } else if condition.kind == DISRUPTION_TARGET && ending && !could_have_running_containers {
            let mut disruption = condition.clone();
            let same = conditions::find_condition(&api.conditions, DISRUPTION_TARGET)
                .filter(|c| c.status == disruption.status);
            disruption.last_transition_time = same
                .and_then(|c| c.last_transition_time)
                .or_else(|| Some(now.truncated_to_second()));
            conditions::put_condition(&mut merged.conditions, disruption);
        }
    }
    if ending && could_have_running_containers {
        merged.phase = api.phase;
        merged.reason.clone_from(&api.reason);
        merged.message.clone_from(&api.message);
    }
    for mut condition in conditions::compute_terminal_readiness(merged.phase)
        .into_iter()
        .flatten()
    {
        let before = conditions::find_condition(&stored.conditions, &condition.kind);
        condition.observed_generation = before.and_then(|c| c.observed_generation);
        condition.last_transition_time = before
            .filter(|c| c.status == condition.status)
            .and_then(|c| c.last_transition_time)
            .or_else(|| Some(now.truncated_to_second()));
        conditions::put_condition(&mut merged.conditions, condition);
    }
    merged
}

/// No objects at all.
pub struct NoObjects;

impl ReferencedObjects for NoObjects {
    fn config_map(&self, _: &str, _: &str) -> Result<Option<&ConfigMap>, PodError> {
        Ok(None)
    }
    fn secret(&self, _: &str, _: &str) -> Result<Option<&Secret>, PodError> {
        Ok(None)
    }
    fn volume_file(&self, volume: &str, path: &str) -> Result<String, PodError> {
        let why = format!("no file {path:?} in volume {volume:?}");
        Err(PodError::Object(why))
    }
    fn service_account_token(&self, _: &str, _: Option<i64>) -> Result<Vec<u8>, PodError> {
        let why = "service account tokens need an API server";
        Err(PodError::Node(why.into()))
    }
}

/// Probe results of a pod without probes. A container that has a startup or readiness probe then never counts as
/// started or ready.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProbes;

impl ProbeResults for NoProbes {
    fn liveness(&self, _: &ContainerId) -> Option<ProbeResult> {
        None
    }
    fn readiness(&self, _: &ContainerId) -> Option<ProbeResult> {
        None
    }
    fn startup(&self, _: &ContainerId) -> Option<ProbeResult> {
        None
    }
}
