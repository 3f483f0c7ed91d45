//! The server side of CRI, as far as kubeadm needs it (KADM-16): `join` checks that there is a runtime, `reset` lists
//! pods, stops and removes them. All other calls are refused by name.
//!
//! Source: kubeadm `cmd/kubeadm/app/util/runtime/runtime.go`; `k8s.io/cri-api` `runtime/v1/api.proto`.

use alloc::rc::Rc;

use super::{
    CGROUPFS,
    link::CriClock,
    wire::{
        ConditionMessage, ConditionsMessage, CriEmpty, ImageFsInfoResponse,
        LinuxRuntimeConfiguration, ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox,
        PodSandboxMetadata, RuntimeConfigResponse, SANDBOX_READY, StatusResponse, TextMessage,
        VersionResponse,
    },
};
use crate::{
    api::{SandboxId, WallTime, cri::SandboxConfig},
    grpc::{
        BytePipe,
        proto::Message,
        server::{CallFuture, CallHandler, ServerCall, serve_calls as serve_connection},
        status::{GrpcCode, GrpcStatus},
    },
    runtime::{RuntimeCall, RuntimeError},
};

/// `PodSandboxState`: not ready.
const SANDBOX_NOT_READY: i32 = 1;

/// A sandbox of this machine.
#[derive(Clone, Debug)]
pub(crate) struct ListedSandbox {
    /// Id of the sandbox.
    pub(crate) id: SandboxId,
    /// Configuration that the sandbox was made with; names its pod.
    pub(crate) config: SandboxConfig,
    /// Time at which the sandbox was made.
    pub(crate) created_at: WallTime,
    /// Set if the sandbox can be used.
    pub(crate) is_ready: bool,
}

/// Pods of this machine, as kubeadm lists and removes them. Stop and remove are idempotent.
pub(crate) trait MachinePods {
    /// All sandboxes, sorted by id.
    fn list_sandboxes(&self) -> Result<Vec<ListedSandbox>, RuntimeError>;
    /// Ends the containers of a sandbox, and its network.
    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()>;
    /// Removes a sandbox with its containers.
    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()>;
}

/// Answers one client until it goes.
pub(crate) async fn serve_kubeadm(
    pipe: impl BytePipe + 'static,
    pods: Rc<dyn MachinePods>,
) -> GrpcStatus {
    let handler: CallHandler = Rc::new(move |exchange| -> CallFuture {
        let pods = Rc::clone(&pods);
        Box::pin(answer_call(exchange, pods))
    });
    serve_connection(pipe, handler, Rc::new(CriClock)).await
}

async fn answer_call(mut call: ServerCall, pods: Rc<dyn MachinePods>) -> Result<(), GrpcStatus> {
    let path = call.method_path().to_owned();
    if path == "/runtime.v1.ImageService/ImageFsInfo" {
        // kubeadm connects to both services, and takes this answer for the sign that the second one is there.
        return send_answer(&mut call, ImageFsInfoResponse::default()).await;
    }
    let Some(name) = path.strip_prefix("/runtime.v1.RuntimeService/") else {
        return Err(unimplemented(&path));
    };
    match name {
        "Version" => {
            send_answer(
                &mut call,
                VersionResponse {
                    version: "0.1.0".into(),
                    runtime_name: "picolet".into(),
                    runtime_version: crate::VERSION.into(),
                    runtime_api_version: "v1".into(),
                },
            )
            .await
        }
        // kubeadm warns without it. Pods have a tree of their own, whatever the kubelet's configuration says (SVC-30).
        "RuntimeConfig" => {
            let linux = LinuxRuntimeConfiguration {
                cgroup_driver: CGROUPFS,
            };
            let linux = Some(linux);
            send_answer(&mut call, RuntimeConfigResponse { linux }).await
        }
        "Status" => {
            let is_true = |kind: &str| ConditionMessage {
                kind: kind.into(),
                status: true,
                ..ConditionMessage::default()
            };
            let conditions = ["RuntimeReady", "NetworkReady"].map(is_true).into();
            send_answer(
                &mut call,
                StatusResponse {
                    status: Some(ConditionsMessage { conditions }),
                    ..StatusResponse::default()
                },
            )
            .await
        }
        "ListPodSandbox" => {
            let request: ListPodSandboxRequest = call.single_request().await?;
            let wanted = request.filter.unwrap_or_default();
            let listed = pods.list_sandboxes().map_err(refusal)?.into_iter();
            let listed = listed.filter(|listed| {
                let labels = &listed.config.labels;
                let has = |(name, value): (&String, &String)| labels.get(name) == Some(value);
                (wanted.id.is_empty() || listed.id.as_str() == wanted.id)
                    && wanted.labels.iter().all(has)
            });
            let items = listed.map(sandbox_message).collect();
            send_answer(&mut call, ListPodSandboxResponse { items }).await
        }
        "StopPodSandbox" | "RemovePodSandbox" => {
            let request: TextMessage = call.single_request().await?;
            let id = SandboxId::new(request.word);
            let done = match name {
                "StopPodSandbox" => pods.stop_sandbox(&id).await,
                _ => pods.remove_sandbox(&id).await,
            };
            done.map_err(refusal)?;
            send_answer(&mut call, CriEmpty {}).await
        }
        _ => Err(unimplemented(&path)),
    }
}

async fn send_answer(call: &mut ServerCall, mut answer: impl Message) -> Result<(), GrpcStatus> {
    call.send_answer(&mut answer).await
}

fn sandbox_message(listed: ListedSandbox) -> PodSandbox {
    let config = listed.config;
    PodSandbox {
        id: listed.id.to_string(),
        metadata: Some(PodSandboxMetadata {
            name: config.name,
            uid: config.uid.to_string(),
            namespace: config.namespace,
            attempt: config.attempt,
        }),
        state: if listed.is_ready {
            SANDBOX_READY
        } else {
            SANDBOX_NOT_READY
        },
        created_at: listed.created_at.0,
    }
}

fn unimplemented(path: &str) -> GrpcStatus {
    let text =
        format!("{path}: picolet runs the containers itself, and answers here what kubeadm asks");
    GrpcStatus::new(GrpcCode::UNIMPLEMENTED, text)
}

fn refusal(error: RuntimeError) -> GrpcStatus {
    GrpcStatus::new(GrpcCode::UNAVAILABLE, error.to_string())
}
