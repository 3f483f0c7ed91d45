//! Facts that a runtime tells about itself: name, version, capabilities.

use serde_json::Value;

use crate::{
    api::cri::{
        CgroupDriver, HandlerCapabilities, RuntimeCapabilities, RuntimeCondition, RuntimeStatus,
        RuntimeVersion, UserNamespaceSupport,
    },
    api::order::OrderExt as _,
    grpc::{
        client::{CallOptions, GrpcClient},
        proto::{self, Message},
        status::{GrpcCode, GrpcStatus},
    },
};

use super::{link::STATUS_TIMEOUT, wire};

/// The version of the protocol, as every kubelet asks for it and every runtime answers. It never changed.
const KUBE_API_VERSION: &str = "0.1.0";
/// Handlers that are heeded; an answer with more is cut.
const MAX_HANDLERS: usize = 256;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct CriRuntimeFacts {
    /// Name and version of the runtime.
    pub(super) version: RuntimeVersion,
    /// Handlers, and the policy for supplemental groups.
    pub(super) capabilities: RuntimeCapabilities,
}

impl CriRuntimeFacts {
    /// Asks over a new connection.
    pub(super) async fn ask_runtime(client: &GrpcClient) -> Result<Self, GrpcStatus> {
        let options = CallOptions {
            timeout: Some(STATUS_TIMEOUT),
            ..CallOptions::default()
        };
        let ask = async |method: &str, request: &mut dyn Message, answer: &mut dyn Message| {
            let path = format!("/runtime.v1.RuntimeService/{method}");
            let request = proto::encode(request);
            client
                .call_unary_encoded(&path, request, answer, &options)
                .await
        };
        let mut version = wire::VersionResponse::default();
        let mut request = wire::TextMessage {
            word: KUBE_API_VERSION.into(),
        };
        ask("Version", &mut request, &mut version).await?;
        let mut facts = Self {
            version: check_version(version)?,
            ..Self::default()
        };
        let mut status = wire::StatusResponse::default();
        ask("Status", &mut wire::CriEmpty::default(), &mut status).await?;
        facts.take_status(status);
        Ok(facts)
    }

    /// Takes in a status. While the runtime is not ready, the capabilities in it do not count (CRI-13).
    pub(super) fn take_status(&mut self, answer: wire::StatusResponse) {
        let ready = find_condition(&answer, "RuntimeReady").ok;
        if !ready {
            return;
        }
        let handlers = answer.handlers.into_iter().take(MAX_HANDLERS);
        let mut handlers: Vec<HandlerCapabilities> = handlers
            .map(|handler| {
                let features = handler.features.unwrap_or_default();
                HandlerCapabilities {
                    name: handler.name,
                    recursive_read_only_mounts: features.recursive_read_only_mounts,
                    user_namespaces: match features.user_namespaces {
                        true => UserNamespaceSupport::Works,
                        false => UserNamespaceSupport::default(),
                    },
                }
            })
            .collect();
        handlers.stable_sort_by(|a, b| a.name.cmp(&b.name));
        handlers.dedup_by(|a, b| a.name == b.name);
        self.capabilities = RuntimeCapabilities {
            handlers,
            supplemental_groups_policy: answer
                .features
                .is_some_and(|features| features.supplemental_groups_policy),
            live_resource_updates: true,
            container_stats: true,
        };
    }
}

fn check_version(answer: wire::VersionResponse) -> Result<RuntimeVersion, GrpcStatus> {
    let wrong = |text: String| Err(GrpcStatus::new(GrpcCode::INTERNAL, text));
    if [
        &answer.version,
        &answer.runtime_name,
        &answer.runtime_version,
        &answer.runtime_api_version,
    ]
    .iter()
    .any(|field| field.is_empty())
    {
        return wrong("it does not report its name and version".into());
    }
    if answer.version != KUBE_API_VERSION {
        return wrong(format!(
            "it speaks version {:?} of the protocol, not {KUBE_API_VERSION}",
            answer.version
        ));
    }
    Ok(RuntimeVersion {
        name: answer.runtime_name,
        version: answer.runtime_version,
    })
}

/// Reads the cgroup driver from containerd's configuration: that of its default runtime; `None`: it is not shown.
pub(super) fn parse_cgroup_driver(config: &str) -> Option<CgroupDriver> {
    let config: Value = serde_json::from_str(config).ok()?;
    let containerd = &config["containerd"];
    let runtime = containerd["defaultRuntimeName"].as_str()?;
    let options = &containerd["runtimes"][runtime]["options"];
    // Below one that is not shown it is off.
    match options["SystemdCgroup"].as_bool() {
        Some(true) => Some(CgroupDriver::Systemd),
        Some(false) | None => Some(CgroupDriver::Cgroupfs),
    }
}

/// Finds a condition; a missing one does not hold.
fn find_condition(answer: &wire::StatusResponse, kind: &str) -> RuntimeCondition {
    let mut all = answer.status.iter().flat_map(|status| &status.conditions);
    match all.find(|condition| condition.kind == kind) {
        Some(found) => RuntimeCondition {
            ok: found.status,
            reason: found.reason.clone(),
            message: found.message.clone(),
        },
        None => RuntimeCondition {
            ok: false,
            reason: "Unknown".into(),
            message: format!("the runtime does not say whether {kind} holds"),
        },
    }
}

/// Reads the runtime's conditions; `None`: it reports too few to be heeded (CRI-13).
pub(super) fn read_conditions(answer: &wire::StatusResponse) -> Option<RuntimeStatus> {
    let enough = answer.status.as_ref()?.conditions.len() >= 2;
    let runtime_ready = find_condition(answer, "RuntimeReady");
    enough.then(|| RuntimeStatus {
        can_stop_containers: false,
        runtime_ready,
        network_ready: find_condition(answer, "NetworkReady"),
    })
}
