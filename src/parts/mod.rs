//! Parts: features that a node can be without.
//!
//! A part is one folder here, for its effects, and one folder of rules, `src/logic/<part>`. It is attached in one
//! place, the list below, and is a cargo feature of the same name. The core never names a part; it asks all of them,
//! by [`Part`] and [`ConfiguredPart`]. A part uses the front doors of the core, and no other part.

#[cfg(feature = "cri")]
mod cri;
#[cfg(feature = "dashboard")]
mod dashboard;
#[cfg(feature = "devices")]
pub(crate) mod devices;
#[cfg(feature = "join")]
mod join;
#[cfg(feature = "pod-network")]
mod pod_network;
#[cfg(feature = "provider")]
mod provider;
#[cfg(feature = "services")]
mod services;
#[cfg(feature = "tunnel")]
pub(crate) mod tunnel;
#[cfg(feature = "update")]
mod update;

#[cfg(feature = "update")]
pub use update::channel;

use alloc::{collections::BTreeMap, rc::Rc, sync::Arc};
use core::{any::Any, fmt, future::ready, net::SocketAddr, pin::Pin};
use std::{ffi::OsString, process::ExitCode};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use smol::LocalExecutor;

use crate::{
    agent::{
        clock::Clock,
        cluster::OwnNodeObject,
        cluster_network::ClusterNetworkBoard,
        complaints::Complaints,
        external_pods::ExternalPods,
        link_policy::LinkPolicy,
        node::LocalNode,
        node_resources::{ResourceGiver, ResourceTools},
        recorder::EventRecorder,
        tasks::{AgentTask, box_task},
    },
    api::{WallTime, node::NodeCondition, strict},
    cli::{CliCommand, CliError},
    config::{AgentConfig, InvalidField, TableKey},
    kube::ClusterReader,
    logic::{
        check::{self, CheckFinding},
        metrics::exposition::MetricsText,
    },
    net::ProxyVariables,
    runtime::{
        RuntimeError,
        endpoint::OpenEndpoint,
        runc::{DeviceInjector, cni::SpanningNetwork},
    },
    server::pipe::PipeServerEnd,
    sys::lane::Lane,
};

/// The parts of this program.
static PARTS: &[&dyn Part] = &[
    #[cfg(feature = "cri")]
    &cri::CriPart,
    #[cfg(feature = "dashboard")]
    &dashboard::DashboardPart,
    #[cfg(feature = "devices")]
    &devices::DevicesPart,
    #[cfg(feature = "join")]
    &join::JoinPart,
    #[cfg(feature = "tunnel")]
    &tunnel::part::TunnelPart,
    #[cfg(feature = "k3s")]
    &tunnel::remotedialer::part::K3sPart,
    #[cfg(feature = "pod-network")]
    &pod_network::part::PodNetworkPart,
    #[cfg(feature = "provider")]
    &provider::ProviderPart,
    #[cfg(feature = "services")]
    &services::ServicesPart,
    #[cfg(feature = "update")]
    &update::UpdatePart,
];

/// Sections below `picolet` in a configuration that belong to a part, with the part's name.
const SECTIONS: &[(&str, &str)] = &[
    ("cdiHooks", "devices"),
    ("cdiSpecDirs", "devices"),
    ("devicePluginDir", "devices"),
    ("devicePlugins", "devices"),
    ("deviceRoot", "devices"),
    ("deviceWait", "devices"),
    ("devices", "devices"),
    ("podNetwork", "pod-network"),
    ("providers", "provider"),
    ("services", "services"),
    ("tunnel", "tunnel"),
    ("update", "update"),
];

/// Command of a part, as it stands in the table of commands.
#[derive(Debug)]
pub(crate) struct PartCommand {
    /// Words, flags and help.
    pub(crate) command: CliCommand,
    /// Carries the command out; given the words behind its name.
    pub(crate) run: fn(&'static CliCommand, Vec<OsString>) -> Result<ExitCode, CliError>,
}

/// A feature that a node can be without. Every method but the name has a default that gives nothing.
pub(crate) trait Part: Sync {
    /// Name of the part: that of its folders and of its cargo feature.
    fn name(&self) -> &'static str;

    /// Commands of the part.
    fn commands(&self) -> &'static [PartCommand] {
        &[]
    }

    /// Client of runtimes of other processes.
    fn endpoint_client(&self) -> Option<OpenEndpoint> {
        None
    }

    /// Keys of the part in the configuration: all below `picolet`.
    fn keys(&self) -> &'static [TableKey] {
        &[]
    }

    /// Checks the part's keys. `own`: the value of `picolet`. `config`: everything but the parts.
    ///
    /// Returns `None` if this part is not configured: then it is not asked for anything.
    fn configure(
        &self,
        own: &Value,
        config: &AgentConfig,
    ) -> Result<Option<Rc<dyn ConfiguredPart>>, InvalidField> {
        _ = (own, config);
        Ok(None)
    }

    /// Removes what the part may have left on the machine although it is not configured any more: for a reset, when no
    /// agent runs. Returns the things that could not be removed, one line each.
    fn remove_remains(&self) -> Pin<Box<dyn Future<Output = Vec<String>>>> {
        Box::pin(ready(Vec::new()))
    }
}

/// Removes what parts have left, configured or not. Returns the things that could not be removed, one line each.
pub(crate) async fn remove_remains() -> Vec<String> {
    let mut left = Vec::new();
    for part in PARTS {
        left.extend(part.remove_remains().await);
    }
    left
}

/// A part with its checked configuration: gives a running agent what the part can do.
/// Every method has a default that gives nothing.
pub(crate) trait ConfiguredPart: Any + fmt::Debug {
    /// Returns true if the part reads Nodes, Services or EndpointSlices: then a node of k3s gets a certificate for it.
    fn reads_cluster(&self) -> bool {
        false
    }

    /// Returns true if servers reach pods of this node through the part, in clusters that want it (K3ST-16).
    fn carries_pod_dials(&self) -> bool {
        false
    }

    /// Begins the work of the part in an agent that runs. Returns its tasks, which run as long as the agent.
    fn start(&self, tools: &PartTools<'_>) -> Vec<AgentTask> {
        _ = tools;
        Vec::new()
    }

    /// Makes what runs pods of some RuntimeClasses without the runtime. `node`: name of the node.
    fn external_pods(&self, node: &str, clock: &Rc<dyn Clock>) -> Option<Rc<dyn ExternalPods>> {
        _ = (node, clock);
        None
    }

    /// Makes the giver of extended resources, if the part is one.
    fn resource_giver(&self, tools: &ResourceTools<'_>) -> Option<Rc<dyn ResourceGiver>> {
        _ = tools;
        None
    }

    /// The giver of devices to containers of the direct backend, if the part is one.
    fn container_devices(&self) -> Option<Arc<dyn DeviceInjector>> {
        None
    }

    /// The network between nodes that the built-in network of the direct backend is a part of, if the part makes one.
    fn spanning_network(&self) -> Option<Arc<SpanningNetwork>> {
        None
    }

    /// Facts about extended resources for `picolet check`.
    fn resource_facts(&self) -> Option<check::OfferedDevices> {
        None
    }

    /// Ends the part's work, before the agent ends.
    fn stop(&self) -> AgentTask {
        box_task(ready(()))
    }

    /// Lists what the part has made outside of the agent's directories, one thing a line, for people who reset the node.
    fn list_remains(&self) -> Vec<String> {
        Vec::new()
    }

    /// Removes what the part has made outside of the agent's directories: for a reset, when no agent runs. Returns the
    /// things that could not be removed, one line each.
    fn remove_remains(&self) -> Pin<Box<dyn Future<Output = Vec<String>>>> {
        Box::pin(ready(Vec::new()))
    }

    /// Conditions that `get node` shows beside those of the Node in the API.
    fn conditions(&self, now: WallTime) -> Vec<NodeCondition> {
        _ = now;
        Vec::new()
    }

    /// State of the part for its check, by the part's name.
    fn state(&self) -> Option<(String, Value)> {
        None
    }

    /// Finding of the part, which stands in the place of the check of that name. `states`: those of the agent's parts;
    /// `None`: no agent answers.
    fn check(
        &self,
        states: Option<&BTreeMap<String, Value>>,
    ) -> Option<(&'static str, CheckFinding)> {
        _ = states;
        None
    }

    /// Writes the part's metrics.
    fn write_metrics(&self, page: &mut MetricsText) {
        _ = page;
    }
}

/// Makes the state of a part for its check from its health.
pub(crate) fn part_state(name: &str, health: &impl Serialize) -> Option<(String, Value)> {
    Some((name.into(), serde_json::to_value(health).ok()?))
}

/// Reads the health of a part from the states of the agent's parts; `None`: no agent answers, or it has no such part.
pub(crate) fn read_health<T: DeserializeOwned>(
    states: Option<&BTreeMap<String, Value>>,
    name: &str,
) -> Option<T> {
    serde_json::from_value(states?.get(name)?.clone()).ok()
}

/// Serves a connection of a source, whose name is the second argument, as one from outside to the server of this node.
pub(crate) type ServeConnection = Rc<dyn Fn(PipeServerEnd, &'static str)>;

/// Returns true if a pod of this node answers at an address; with the host's network, only at ports that it has declared.
pub(crate) type IsPodAddress = Rc<dyn Fn(SocketAddr) -> Pin<Box<dyn Future<Output = bool>>>>;

/// Tools of a running agent that its parts work with.
pub(crate) struct PartTools<'a> {
    /// The whole configuration.
    pub(crate) config: &'a AgentConfig,
    /// Proxies of this machine.
    pub(crate) proxies: &'a ProxyVariables,
    /// Time.
    pub(crate) clock: &'a Rc<dyn Clock>,
    /// Kubernetes events.
    pub(crate) recorder: &'a Rc<EventRecorder>,
    /// Policy of the link.
    pub(crate) link_policy: &'a Rc<dyn LinkPolicy>,
    /// Warnings that may come again and again.
    pub(crate) complaints: &'a Rc<Complaints>,
    /// Lane for blocking file work.
    pub(crate) disk: &'a Lane,
    /// The machine as a node.
    pub(crate) node: &'a Rc<LocalNode>,
    /// The Node in the API; `None`: the node stands alone.
    pub(crate) own_node: Option<Rc<OwnNodeObject>>,
    /// Network of the cluster, if its servers tell it.
    pub(crate) cluster_network: &'a Rc<ClusterNetworkBoard>,
    /// Reader of what no node may read; `None`: no part wants it ([`ConfiguredPart::reads_cluster`]), or nobody has
    /// given this node an identity for it.
    pub(crate) cluster_reader: Option<Rc<ClusterReader>>,
    /// Tells addresses of this node's pods from others.
    pub(crate) is_pod_address: IsPodAddress,
    /// Takes connections to the server of this node; `None`: there is no server.
    pub(crate) serve: Option<ServeConnection>,
    pub(crate) executor: &'a Rc<LocalExecutor<'static>>,
}

/// Lists the commands of all parts.
pub(crate) fn part_commands() -> impl Iterator<Item = &'static PartCommand> {
    PARTS.iter().flat_map(|part| part.commands())
}

/// Lists the configuration keys of all parts.
pub(crate) fn part_keys() -> impl Iterator<Item = &'static TableKey> {
    PARTS.iter().flat_map(|part| part.keys())
}

/// Client of runtimes of other processes.
///
/// # Errors
/// This program has none.
pub fn find_endpoint_client() -> Result<OpenEndpoint, RuntimeError> {
    let client = PARTS.iter().find_map(|part| part.endpoint_client());
    client
        .ok_or_else(|| RuntimeError::Invalid("this program was built without the part cri".into()))
}

/// Finds the part that a key below `picolet` belongs to, if this program was built without it.
pub(crate) fn find_left_out_part(section: &str) -> Option<&'static str> {
    let (_, part) = SECTIONS.iter().find(|(name, _)| *name == section)?;
    let is_here = PARTS.iter().any(|it| it.name() == *part);
    (!is_here).then_some(part)
}

/// Configures all parts.
pub(crate) fn configure_parts(
    own: &Value,
    config: &AgentConfig,
) -> Result<Vec<Rc<dyn ConfiguredPart>>, InvalidField> {
    let configured = PARTS.iter().map(|part| part.configure(own, config));
    configured.filter_map(Result::transpose).collect()
}

/// Finds the configured part of this type.
pub(crate) fn find_configured_part<P: ConfiguredPart>(config: &AgentConfig) -> Option<&P> {
    let mut parts = config.parts.iter();
    parts.find_map(|part| {
        let any: &dyn Any = &**part;
        any.downcast_ref()
    })
}

/// Reads the section of a part below `picolet`; a wrong value is named with its path.
pub(crate) fn read_section<T: DeserializeOwned + Default>(
    own: &Value,
    name: &str,
) -> Result<T, InvalidField> {
    let value = own.get(name).filter(|value| !value.is_null());
    let typed = value.map(strict::typed_from_value).transpose();
    typed
        .map(Option::unwrap_or_default)
        .map_err(|e| InvalidField {
            field: match e.path.as_str() {
                "." => format!("picolet.{name}"),
                path if path.starts_with('[') => format!("picolet.{name}{path}"),
                path => format!("picolet.{name}.{path}"),
            },
            message: e.message,
        })
}

/// Entry points of parts for fuzzing.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    #[cfg(feature = "provider")]
    pub(crate) use super::provider::fuzz as provider;
}

#[cfg(test)]
mod tests {
    use super::{PARTS, SECTIONS};

    #[test]
    fn each_key_is_in_the_sections() {
        for part in PARTS {
            for key in part.keys() {
                let section = key.name.split('.').nth(1).unwrap_or("");
                let of = SECTIONS.iter().find(|(name, _)| *name == section);
                assert_eq!(of.map(|(_, of)| *of), Some(part.name()), "{}", key.name);
            }
        }
    }
}
