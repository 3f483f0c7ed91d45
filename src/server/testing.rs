//! An agent that has one pod and does nothing, for tests of the server.

use core::time::Duration;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{
    backend::{
        AgentCheck, BackendReply, DeviceReport, LinkReport, LogTarget, MetricsEndpoint, PodName,
        PressureReport, RunningContainer, RunningPod, ServerBackend, StreamingBackend, TextPieces,
        Uptime,
    },
    http::Refusal,
};
use crate::{
    api::{
        ContainerId, Event, Node, PodUid, SandboxId,
        cri::{ExecOutput, StoredImage},
        health::AgentHealth,
    },
    image::{ImageProgress, StoreVerification},
    runtime::{
        AttachOptions, ExecOptions, PortConnector, RuntimeCall, RuntimeError, SessionStart,
        StreamRoute,
    },
    sys::lane::Lane,
};

/// See the module. Its pod is `ns/p` with the container `c`.
pub(super) struct FakeBackend {
    pub(super) lane: Lane,
    /// Log of the container.
    pub(super) log: PathBuf,
    /// Fault of the loop that `/healthz` shows.
    pub(super) trouble: Option<String>,
    /// Bytes after which a session of another machine ends.
    pub(super) limit: Option<u64>,
    /// Way of the id of the image that is pulled.
    pub(super) pulled: Option<smol::channel::Receiver<String>>,
}

impl Default for FakeBackend {
    fn default() -> Self {
        Self {
            lane: Lane::without_thread(),
            log: PathBuf::new(),
            trouble: None,
            limit: None,
            pulled: None,
        }
    }
}

fn unused<T>() -> BackendReply<'static, T> {
    Box::pin(async { Err(Refusal::new(501, "not in this test")) })
}

/// Makes a call that fails: the fake runs no container.
fn nothing<'a, T: 'a>() -> RuntimeCall<'a, T> {
    Box::pin(async { Err(RuntimeError::NotFound("container c".into())) })
}

impl StreamingBackend for FakeBackend {
    fn running_container<'a>(
        &'a self,
        pod: PodName<'a>,
        container: &'a str,
    ) -> BackendReply<'a, RunningContainer> {
        Box::pin(async move {
            if (pod.namespace, pod.name) != ("ns", "p") {
                return Err(Refusal::not_found("pods not found"));
            }
            let text = format!("container not found (\"{container}\")");
            Err(Refusal::new(500, text))
        })
    }

    fn ready_sandbox<'a>(&'a self, _: PodName<'a>) -> BackendReply<'a, SandboxId> {
        unused()
    }

    fn open_exec<'a>(
        &'a self,
        _: &'a ContainerId,
        _: &'a ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        nothing()
    }

    fn run_command<'a>(
        &'a self,
        _: &'a ContainerId,
        _: &'a [String],
        _: usize,
    ) -> RuntimeCall<'a, ExecOutput> {
        nothing()
    }

    fn open_attach<'a>(
        &'a self,
        _: &'a ContainerId,
        _: AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        nothing()
    }

    fn open_port_forward<'a>(
        &'a self,
        _: &'a SandboxId,
        _: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>> {
        nothing()
    }

    fn idle_timeout(&self) -> Duration {
        Duration::from_hours(4)
    }

    fn session_limit_bytes(&self) -> Option<u64> {
        self.limit
    }

    fn release_stream_memory(&self) {}
}

impl ServerBackend for FakeBackend {
    fn disk_lane(&self) -> &Lane {
        &self.lane
    }

    fn pod_uids<'a>(&'a self, _: Option<&'a str>) -> BackendReply<'a, Vec<PodUid>> {
        Box::pin(async { Ok(["a", "gone", "b"].map(PodUid::from).into()) })
    }

    fn pod_object<'a>(&'a self, uid: &'a PodUid) -> BackendReply<'a, Option<Value>> {
        let pod = (&**uid != "gone").then(|| json!({ "metadata": { "name": "p" } }));
        Box::pin(async { Ok(pod) })
    }

    fn running_pods(&self) -> BackendReply<'_, Vec<RunningPod>> {
        let pod = RunningPod {
            name: "running".into(),
            ..RunningPod::default()
        };
        Box::pin(async { Ok(vec![pod]) })
    }

    fn container_names<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
    ) -> BackendReply<'a, Vec<String>> {
        let found = (namespace == "ns" && pod == "p").then(|| vec!["c".into()]);
        Box::pin(async { found.ok_or_else(|| Refusal::not_found("pods not found")) })
    }

    fn checkpoint_container<'a>(
        &'a self,
        _: PodName<'a>,
        container: &'a str,
        timeout: Duration,
    ) -> RuntimeCall<'a, String> {
        let answer = match timeout.as_secs() {
            13 => Err(RuntimeError::Failed("no CRIU".into())),
            seconds => Ok(format!("/checkpoints/{container}-{seconds}.tar")),
        };
        Box::pin(async { answer })
    }

    fn configuration(&self) -> &str {
        r#"{"maxPods":7}"#
    }

    fn run_health_checks(&self) -> Vec<AgentCheck> {
        let check = |name, trouble| AgentCheck { name, trouble };
        vec![check("ping", None), check("syncloop", self.trouble.clone())]
    }

    fn uptime(&self) -> Uptime {
        Uptime {
            up: Duration::from_secs(3723),
            kubelet_version: "v1".into(),
            ..Uptime::default()
        }
    }

    fn agent_health(&self) -> BackendReply<'_, AgentHealth> {
        unused()
    }

    fn events(&self, _: Option<&str>, _: usize) -> Vec<Event> {
        Vec::new()
    }

    fn config_maps(&self, _: Option<&str>) -> BackendReply<'_, Vec<Value>> {
        unused()
    }

    fn secrets(&self, _: Option<&str>) -> BackendReply<'_, Vec<Value>> {
        unused()
    }

    fn dump_recorded_events(&self) -> BackendReply<'_, String> {
        unused()
    }

    fn metrics_page(&self, which: MetricsEndpoint) -> BackendReply<'_, TextPieces> {
        let pieces = [format!("{which:?} "), "piece\n".into()];
        Box::pin(async { Ok(Box::new(pieces.into_iter()) as TextPieces) })
    }

    fn node_object(&self) -> BackendReply<'_, Node> {
        unused()
    }

    fn pressure_report(&self, order: bool) -> BackendReply<'_, PressureReport> {
        let by = if order { "memory.available" } else { "" };
        let shown = PressureReport {
            by: by.into(),
            ..PressureReport::default()
        };
        Box::pin(core::future::ready(Ok(shown)))
    }

    fn find_log_target<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        previous: bool,
    ) -> BackendReply<'a, LogTarget> {
        Box::pin(async move {
            if previous {
                return Err(Refusal::new(404, "previous terminated container not found"));
            }
            Ok(LogTarget {
                path: self.log.clone(),
                memory: PathBuf::new(),
                id: ContainerId::from("id"),
            })
        })
    }

    fn link_report(&self) -> LinkReport {
        LinkReport::default()
    }

    fn is_instance_running<'a>(&'a self, _: &'a ContainerId) -> BackendReply<'a, bool> {
        Box::pin(async { Ok(false) })
    }

    fn device_reports(&self) -> BackendReply<'_, Vec<DeviceReport>> {
        unused()
    }

    fn list_images(&self) -> BackendReply<'_, Vec<StoredImage>> {
        unused()
    }

    fn import_image(
        &self,
        _: PathBuf,
        _: String,
        _: Option<smol::channel::Sender<ImageProgress>>,
    ) -> BackendReply<'_, Vec<String>> {
        unused()
    }

    fn pull_image<'a>(&'a self, _: &'a str, _: bool) -> BackendReply<'a, String> {
        let Some(pulled) = &self.pulled else {
            return unused();
        };
        Box::pin(async { Ok(pulled.recv().await.expect("an image")) })
    }

    fn pull_progress(&self, _: &str) -> Option<ImageProgress> {
        None
    }

    fn inspect_image<'a>(&'a self, _: &'a str, _: bool) -> BackendReply<'a, Value> {
        unused()
    }

    fn tag_image<'a>(&'a self, _: &'a str, _: &'a str) -> BackendReply<'a, String> {
        unused()
    }

    fn remove_image<'a>(&'a self, _: &'a str) -> BackendReply<'a, Vec<String>> {
        unused()
    }

    fn prune_images(&self) -> BackendReply<'_, (Vec<String>, u64)> {
        unused()
    }

    fn verify_images(
        &self,
        _: bool,
        _: smol::channel::Sender<ImageProgress>,
    ) -> BackendReply<'_, StoreVerification> {
        unused()
    }

    fn restart_pod<'a>(&'a self, _: &'a str, _: &'a str) -> BackendReply<'a, ()> {
        unused()
    }

    fn stop_agent(&self, _: bool) -> BackendReply<'_, ()> {
        unused()
    }

    fn shut_down_machine(&self) -> BackendReply<'_, ()> {
        unused()
    }
}

/// Processor time that this thread has used.
pub(super) fn cpu_time() -> Duration {
    let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
    nix::time::clock_gettime(clock).expect("clock").into()
}
