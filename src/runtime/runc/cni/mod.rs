//! Pod networks by CNI plugins (specification 0.3.1 to 1.1): they are executed, nothing of them stays resident.
//!
//! - The network is the first configuration of the directory; without any, a bridge of ours ([`BuiltInNetwork`]), for which no
//!   plugin is executed but `portmap`, and that only for pods with host ports.
//! - An *attachment* file is written before the first ADD and removed after the last DEL has succeeded. It holds the
//!   configuration and the result, so that DEL undoes what ADD did although the configuration changed since.
//! - Attachments of a foreign configuration lie in the root directory and outlive a reboot: its address leases do too,
//!   and are given back by a DEL at the next start. Those of the built-in network lie in the run directory.

mod bridge;
mod builtin;
mod config;
mod gateway;
pub(crate) mod iptables;
mod masquerade;
mod pool;
mod port_chains;
mod result;
mod spanning;

use alloc::sync::Arc;
use core::{
    cell::{Cell, RefCell},
    net::IpAddr,
    time::Duration,
};
use std::{
    collections::BTreeSet,
    fs, io,
    io::Read,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    files,
    gate::{ChildLimiter, ChildPriority},
};
use crate::api::order::OrderExt;
use crate::api::strict::from_json;
use crate::error::error_chain;
use crate::{
    api::{
        Quantity, SandboxId,
        cri::{RuntimeCondition, SandboxConfig},
    },
    sys::{
        child::{self, ChildInput, Command},
        crash,
        file::write_atomic,
        lane, netlink,
    },
};

pub use builtin::BuiltInNetwork;
pub use config::{NetworkConfig, NetworkConfigError};
pub use iptables::IptablesError;
use masquerade::Masquerade;
pub(crate) use masquerade::{end_exemptions, exempt_ranges};
use pool::AddressPool;
pub use port_chains::forget_port_chains;
pub use spanning::{SpanningNetwork, SpanningSettings};

/// Interface of the pod.
const INTERFACE: &str = "eth0";
/// A plugin that runs longer is killed. DHCP and a busy iptables lock take the longest.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer of a plugin that is kept, bytes.
const ANSWER_LIMIT: usize = 256 * 1024;
/// Longest attachment file that is read, bytes.
const ATTACHMENT_LIMIT: u64 = 1024 * 1024;
/// Version of the attachment file.
const ATTACHMENT_VERSION: u32 = 1;
/// Directories in which plugins find iptables and the like.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Directories in which distributions install plugins.
const USUAL_BIN_DIRS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// Error of a pod's network.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// A configuration file is wrong.
    #[error("network configuration {}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Fault of the file.
        source: NetworkConfigError,
    },
    /// A plugin is not installed.
    #[error(
        "CNI plugin {plugin:?} of network {network:?} is not installed (looked in {looked}): install containernetworking-plugins"
    )]
    NoPlugin {
        /// Name of the plugin.
        plugin: String,
        /// The network that asks for it.
        network: String,
        /// Directories.
        looked: String,
    },
    /// A plugin refused.
    #[error("CNI plugin {plugin:?} failed to {verb} network {network:?}: {why}")]
    Plugin {
        /// Name of the plugin.
        plugin: String,
        /// `ADD`, `CHECK`, `DEL` or `GC`.
        verb: &'static str,
        /// The network.
        network: String,
        /// Error text of the plugin.
        why: String,
    },
    /// The kernel refused a part of the built-in network.
    #[error("bridge of the built-in network: {step}")]
    Bridge {
        /// Step that failed.
        step: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The configured text is no subnet with addresses for pods of the built-in network.
    #[error("{0:?} is not a subnet with addresses for pods")]
    NoSubnet(String),
    /// The built-in network has no address to lend.
    #[error("all addresses of subnet {0} are in use by pods")]
    NoAddressLeft(String),
    /// The rules that let pods of the built-in network speak to the world.
    #[error("masquerade the pods' addresses")]
    Masquerade(#[from] IptablesError),
    /// The plugins succeeded and gave no address.
    #[error("network {0:?} gave the pod no address")]
    NoAddress(String),
    /// A file of the agent could not be read or written.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Directories of networks, and the built-in network.
#[derive(Clone, Debug)]
pub struct CniSettings {
    /// Configurations.
    pub conf_dir: PathBuf,
    /// Plugins; the usual directories are searched after it.
    pub bin_dir: PathBuf,
    /// Attachments of the built-in network (gone at reboot).
    pub run_dir: PathBuf,
    /// Attachments of foreign networks (survive a reboot).
    pub root_dir: PathBuf,
    /// The built-in network at start.
    pub built_in: BuiltInNetwork,
    /// Network between nodes that the built-in network is a part of; `None`: there is none.
    pub spanning: Option<Arc<SpanningNetwork>>,
}

/// The pod that gets a network.
#[derive(Clone, Copy, Debug)]
pub struct PodNetwork<'a> {
    /// Sandbox of the pod.
    pub id: &'a SandboxId,
    /// Network namespace of the pod.
    pub netns: &'a Path,
    /// Names, ports, DNS, annotations.
    pub config: &'a SandboxConfig,
}

/// Record of a pod's attachment to a network.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct AttachmentRecord {
    v: u32,
    sandbox: SandboxId,
    boot: String,
    netns: PathBuf,
    name: String,
    version: String,
    /// Configurations as they are handed to the plugins, without `prevResult`.
    plugins: Vec<Map<String, Value>>,
    args: String,
    disable_check: bool,
    /// Result of the last plugin; absent while ADD has not succeeded.
    result: Option<Value>,
}

/// Runs plugins.
#[derive(Debug)]
pub struct Cni {
    settings: CniSettings,
    /// The built-in network now.
    built_in: RefCell<BuiltInNetwork>,
    /// Set if the bridge may have gateways of earlier subnets.
    unsettled: Cell<bool>,
    boot: String,
    masquerade: Masquerade,
    /// Addresses of the built-in network, once they are known.
    pool: RefCell<Option<AddressPool>>,
}

impl Cni {
    /// Makes the networks of a machine. Nothing is read before the first pod.
    #[must_use]
    pub fn new(settings: CniSettings, boot: String) -> Self {
        Self {
            built_in: RefCell::new(settings.built_in.clone()),
            unsettled: Cell::new(true),
            settings,
            boot,
            masquerade: Masquerade::default(),
            pool: RefCell::default(),
        }
    }

    /// Sets the subnets of the built-in network: pods that are attached from now on get addresses of these.
    pub fn set_subnets(&self, subnets: &[String]) {
        if self.built_in.borrow().subnets != subnets {
            self.built_in.borrow_mut().subnets = subnets.to_vec();
            self.unsettled.set(true);
        }
    }

    fn built_in_network(&self) -> BuiltInNetwork {
        self.built_in.borrow().clone()
    }

    /// Settings of the network between nodes; those of none have no effect.
    fn spanning_settings(&self) -> SpanningSettings {
        let spanning = self.settings.spanning.as_ref();
        spanning.map_or_else(SpanningSettings::default, |it| it.current_settings())
    }

    /// Makes the rules for the present subnets.
    async fn ensure_masquerade(&self, gate: &ChildLimiter) -> Result<(), CniError> {
        // Bounded: by how often the cluster gives the node others meanwhile.
        loop {
            let built_in = self.built_in_network();
            let reachable = self.spanning_settings().reachable;
            self.masquerade
                .ensure_rules(&built_in, &reachable, gate)
                .await?;
            if *self.built_in.borrow() == built_in {
                return Ok(());
            }
        }
    }

    /// Removes from the bridge the gateways of pods that are gone.
    fn remove_gone_gateways(&self) -> Result<(), CniError> {
        if !self.unsettled.get() {
            return Ok(());
        }
        let built_in = self.built_in.borrow();
        let wanted: Vec<_> = built_in
            .subnets
            .iter()
            .filter_map(|s| pool::subnet_gateway(s))
            .collect();
        let left = gateway::remove_unused_gateways(&built_in.bridge, &wanted, |a| {
            self.gateway_has_pods(a)
        })
        .map_err(|source| CniError::Bridge {
            step: format!("remove former gateways from {}", built_in.bridge),
            source,
        })?;
        self.unsettled.set(left);
        Ok(())
    }

    /// Lends a pod addresses of the built-in network. Returns the attachment that is to be made.
    fn lend_addresses(&self) -> Result<bridge::BridgeAttachment, CniError> {
        if self.pool.borrow().is_none() {
            let mut pool = AddressPool::default();
            for id in self.attached_sandboxes(true) {
                match load_attachment(&self.attachment_path(&id, true)) {
                    Ok(Some(attachment)) => {
                        attachment.pod_addresses().for_each(|ip| pool.mark_lent(ip))
                    }
                    Ok(None) => {}
                    Err(e) => log::warn!(
                        "sandbox={id} its addresses are not known: {}",
                        error_chain(&e)
                    ),
                }
            }
            self.pool.replace(Some(pool));
        }
        let built_in = self.built_in.borrow();
        let mut pool = self.pool.borrow_mut();
        let leases = pool
            .get_or_insert_default()
            .lend_addresses(&built_in.subnets)?;
        Ok(bridge::BridgeAttachment {
            bridge: built_in.bridge.clone(),
            mtu: match self.spanning_settings().mtu {
                0 => built_in.mtu,
                mtu => mtu,
            },
            leases,
        })
    }

    /// Takes back the addresses of a pod whose record is gone, or was never there.
    fn give_back_addresses(&self, attachment: &AttachmentRecord) {
        if let Some(pool) = &mut *self.pool.borrow_mut() {
            attachment
                .pod_addresses()
                .for_each(|ip| pool.give_back_address(ip));
        }
    }

    /// Returns true if a pod of the built-in network has an address in the network of a gateway. A pod whose addresses
    /// are not known counts: it is just being attached, or its record cannot be read.
    fn gateway_has_pods(&self, gateway: gateway::BridgeAddress) -> bool {
        self.attached_sandboxes(true).iter().any(|id| {
            let attachment = match load_attachment(&self.attachment_path(id, true)) {
                Ok(None) => return false,
                Ok(Some(attachment)) => attachment,
                Err(_) => return true,
            };
            let mut ips = attachment.pod_addresses().peekable();
            ips.peek().is_none()
                || ips.any(
                    |ip| matches!(ip, IpAddr::V4(ip) if gateway::network_contains(gateway, ip)),
                )
        })
    }

    /// The network as configured now.
    ///
    /// # Errors
    /// [`CniError::Config`].
    pub fn read_network_config(&self) -> Result<NetworkConfig, CniError> {
        Ok(NetworkConfig::read_first_in(&self.settings.conf_dir)?
            .unwrap_or_else(|| builtin::built_in_network_config(&self.built_in.borrow())))
    }

    /// Condition of the pods' network: met if the configuration is readable, every plugin is installed, and iptables is
    /// there where it is needed.
    #[must_use]
    pub fn network_condition(&self) -> RuntimeCondition {
        let not = |reason: &str, message: String| RuntimeCondition {
            ok: false,
            reason: reason.into(),
            message,
        };
        let network = match self.read_network_config() {
            Ok(network) => network,
            Err(e) => return not("NetworkConfigInvalid", error_chain(&e)),
        };
        // The built-in network needs a plugin for host ports only: pods with host ports report a missing one.
        if !network.built_in
            && let Some(why) = self.missing_plugin_error(&network)
        {
            return not("NetworkPluginMissing", why);
        }
        if network.built_in
            && let Some(program) = Masquerade::missing_program(&self.built_in.borrow())
        {
            return not(
                "IptablesMissing",
                format!(
                    "the built-in network needs the program {program}: install the iptables package"
                ),
            );
        }
        if network.built_in
            && let Some(why) = self.spanning_settings().not_ready
        {
            return not("NetworkNotReady", why);
        }
        RuntimeCondition {
            ok: true,
            reason: String::new(),
            message: String::new(),
        }
    }

    /// Error text for the first plugin of a network that is not installed.
    #[must_use]
    pub fn missing_plugin_error(&self, network: &NetworkConfig) -> Option<String> {
        let programs = network.list_executables();
        let missing = |p: &str| self.find_plugin(&network.name, p).err();
        programs
            .into_iter()
            .find_map(missing)
            .map(|e| e.to_string())
    }

    /// Attaches a pod. On error all steps were undone, or an attachment is left for [`Self::detach_sandbox`].
    ///
    /// # Errors
    /// See [`CniError`].
    pub async fn attach_pod(
        &self,
        pod: &PodNetwork<'_>,
        gate: &ChildLimiter,
    ) -> Result<Vec<IpAddr>, CniError> {
        let network = self.read_network_config()?;
        let wanted: Vec<&Map<String, Value>> = network
            .plugins
            .iter()
            .filter(|p| !(network.built_in && is_plugin_idle(p, pod.config)))
            .collect();
        for program in NetworkConfig::executables_of_plugins(wanted.iter().copied()) {
            self.find_plugin(&network.name, program)?;
        }
        let mut plugins: Vec<Map<String, Value>> = wanted
            .into_iter()
            .map(|p| build_plugin_config(p, &network, pod.config))
            .collect();
        if network.built_in {
            self.ensure_masquerade(gate).await?;
            self.remove_gone_gateways()?;
            // There is no wait until the record is saved: others may ask for addresses.
            plugins.insert(0, self.lend_addresses()?.to_plugin());
        }
        let mut attachment = AttachmentRecord {
            v: ATTACHMENT_VERSION,
            sandbox: pod.id.clone(),
            boot: self.boot.clone(),
            netns: pod.netns.to_owned(),
            plugins,
            name: network.name.clone(),
            version: network.version.clone(),
            args: format_cni_args(pod),
            disable_check: network.disable_check,
            result: None,
        };
        let file = self.attachment_path(pod.id, network.built_in);
        // Saved before the first plugin: its work is undone even if this process dies now.
        let lasts = !network.built_in;
        save_attachment(&file, &attachment, lasts).inspect_err(|_| {
            if network.built_in {
                self.give_back_addresses(&attachment);
            }
        })?;
        crash::point("network.intent");
        let mut result = Value::Null;
        for plugin in &attachment.plugins {
            match self
                .call_plugin("ADD", &attachment, plugin, &result, gate)
                .await
            {
                Ok(answer) => {
                    crash::point("network.plugin-added");
                    result = answer;
                }
                Err(e) => {
                    if let Err(undo) = self.detach_sandbox(pod.id, gate).await {
                        log::warn!(
                            "sandbox={} undoing a failed ADD: {}; will be tried again",
                            pod.id,
                            error_chain(&undo)
                        );
                    }
                    return Err(e);
                }
            }
        }
        let ips = result::parse_pod_ips(&result);
        attachment.result = Some(result);
        save_attachment(&file, &attachment, lasts)?;
        if ips.is_empty() {
            if let Err(undo) = self.detach_sandbox(pod.id, gate).await {
                let (id, undo) = (pod.id, error_chain(&undo));
                log::warn!("sandbox={id} undoing an ADD without address: {undo}");
            }
            return Err(CniError::NoAddress(network.name));
        }
        Ok(ips)
    }

    /// Detaches a sandbox and forgets it. Nothing attached counts as done. Call it again after an error.
    ///
    /// # Errors
    /// See [`CniError`]; the attachment is kept.
    pub async fn detach_sandbox(
        &self,
        id: &SandboxId,
        gate: &ChildLimiter,
    ) -> Result<(), CniError> {
        for built_in in [true, false] {
            let file = self.attachment_path(id, built_in);
            if let Some(attachment) = load_attachment(&file)? {
                self.detach_plugins(&attachment, gate).await?;
                files::remove_file(&file).map_err(|source| CniError::Io { path: file, source })?;
                if built_in {
                    self.give_back_addresses(&attachment);
                }
            }
        }
        Ok(())
    }

    /// Asks the plugins to check the attachment. `Ok` too where CHECK is not spoken or is disabled.
    ///
    /// # Errors
    /// The error of the first plugin that has one.
    pub async fn check_attachment(
        &self,
        id: &SandboxId,
        gate: &ChildLimiter,
    ) -> Result<(), CniError> {
        for built_in in [true, false] {
            if let Some(attachment) = load_attachment(&self.attachment_path(id, built_in))?
                && !attachment.disable_check
                && attachment.version != "0.3.1"
                && let Some(result) = &attachment.result
            {
                for plugin in &attachment.plugins {
                    self.call_plugin("CHECK", &attachment, plugin, result, gate)
                        .await?;
                }
            }
        }
        Ok(())
    }

    /// Deletes the bridge of the built-in network and its rules (reset). Absent counts as deleted.
    ///
    /// # Errors
    /// The kernel's, iptables'. The bridge is deleted even if the rules could not be.
    pub async fn remove_built_in_network(&self, gate: &ChildLimiter) -> Result<(), CniError> {
        let built_in = self.built_in_network();
        let rules = self.masquerade.remove_rules(&built_in, gate).await;
        let bridge = &built_in.bridge;
        netlink::delete_link(bridge).map_err(|source| CniError::Bridge {
            step: format!("delete {bridge}"),
            source,
        })?;
        Ok(rules?)
    }

    /// Cleans up at the start: removes attachments without a sandbox of this boot, then tells plugins that speak 1.1
    /// which are in use. Failures are logged and tried again at the next start.
    pub async fn sweep_attachments(&self, live: &BTreeSet<SandboxId>, gate: &ChildLimiter) {
        for built_in in [true, false] {
            self.remove_staged(built_in);
            for id in self.attached_sandboxes(built_in) {
                let stale = match load_attachment(&self.attachment_path(&id, built_in)) {
                    Ok(Some(a)) => a.boot != self.boot || !live.contains(&id),
                    Ok(None) => false,
                    Err(e) => {
                        log::warn!("sandbox={id} attachment: {}", error_chain(&e));
                        false
                    }
                };
                if stale && let Err(e) = self.detach_sandbox(&id, gate).await {
                    let e = error_chain(&e);
                    log::warn!("sandbox={id} detaching what an earlier run left: {e}");
                }
            }
        }
        // A firewall may have been reloaded, and perhaps no new pod comes that looks.
        if !self.attached_sandboxes(true).is_empty()
            && let Err(e) = self.ensure_masquerade(gate).await
        {
            log::warn!("{}", error_chain(&e));
        }
        match self.read_network_config() {
            Ok(network) if network.supports_version("1.1.0") && !network.disable_gc => {
                if let Err(e) = self.call_plugins_gc(&network, live, gate).await {
                    log::warn!("{}", error_chain(&e));
                }
            }
            Ok(_) => {}
            Err(e) => log::warn!("{}", error_chain(&e)),
        }
    }

    /// Source: CNI specification 1.1, "GC".
    async fn call_plugins_gc(
        &self,
        network: &NetworkConfig,
        live: &BTreeSet<SandboxId>,
        gate: &ChildLimiter,
    ) -> Result<(), CniError> {
        let valid: Vec<Value> = live
            .iter()
            .map(|id| json!({ "containerID": id.as_str(), "ifname": INTERFACE }))
            .collect();
        for plugin in &network.plugins {
            let mut plugin = build_plugin_config(plugin, network, &SandboxConfig::default());
            plugin.insert("cni.dev/valid-attachments".into(), valid.clone().into());
            let name = NetworkConfig::plugin_type(&plugin).to_owned();
            self.exec_plugin("GC", &network.name, &name, &[], &plugin, gate)
                .await?;
        }
        Ok(())
    }

    /// Calls DEL in the reverse order of ADD.
    async fn detach_plugins(
        &self,
        attachment: &AttachmentRecord,
        gate: &ChildLimiter,
    ) -> Result<(), CniError> {
        let previous = attachment.result.clone().unwrap_or(Value::Null);
        for plugin in attachment.plugins.iter().rev() {
            self.call_plugin("DEL", attachment, plugin, &previous, gate)
                .await?;
            crash::point("network.plugin-deleted");
        }
        Ok(())
    }

    async fn call_plugin(
        &self,
        verb: &'static str,
        attachment: &AttachmentRecord,
        plugin: &Map<String, Value>,
        previous: &Value,
        gate: &ChildLimiter,
    ) -> Result<Value, CniError> {
        if NetworkConfig::plugin_type(plugin) == bridge::TYPE {
            return self.run_bridge_plugin(verb, attachment, plugin, gate).await;
        }
        let mut config = plugin.clone();
        // 0.3.1 hands no result to DEL.
        let unwanted = verb == "DEL" && attachment.version == "0.3.1";
        if !previous.is_null() && !unwanted {
            config.insert("prevResult".into(), previous.clone());
        }
        // A namespace that is gone (after a reboot, or killed) is not named: plugins then only give back their
        // addresses.
        let netns = if verb == "DEL" && (attachment.boot != self.boot || !attachment.netns.exists())
        {
            PathBuf::new()
        } else {
            attachment.netns.clone()
        };
        let env = [
            ("CNI_CONTAINERID", attachment.sandbox.as_str().to_owned()),
            ("CNI_NETNS", netns.display().to_string()),
            ("CNI_IFNAME", INTERFACE.to_owned()),
            ("CNI_ARGS", attachment.args.clone()),
        ];
        let name = NetworkConfig::plugin_type(plugin).to_owned();
        self.exec_plugin(verb, &attachment.name, &name, &env, &config, gate)
            .await
    }

    /// Runs [`bridge`] in a plugin's place, on a thread that ends with it.
    async fn run_bridge_plugin(
        &self,
        verb: &'static str,
        attachment: &AttachmentRecord,
        plugin: &Map<String, Value>,
        gate: &ChildLimiter,
    ) -> Result<Value, CniError> {
        let attach =
            bridge::BridgeAttachment::from_plugin(plugin).map_err(|e| CniError::Plugin {
                plugin: bridge::TYPE.into(),
                verb,
                network: attachment.name.clone(),
                why: e.to_string(),
            })?;
        let id = attachment.sandbox.clone();
        let (version, netns) = (attachment.version.clone(), attachment.netns.clone());
        let _pass = gate.acquire_permit(verb_priority(verb)).await;
        lane::run_on_fresh_thread("bridge", move || match verb {
            "ADD" => attach.attach_pod(&id, &version, &netns),
            "CHECK" => attach.check_host_side(&id).map(|()| Value::Null),
            _ => bridge::detach_pod(&id).map(|()| Value::Null),
        })
        .await
        .map_err(|source| CniError::Bridge {
            step: "start a thread".into(),
            source,
        })?
    }

    async fn exec_plugin(
        &self,
        verb: &'static str,
        network: &str,
        plugin: &str,
        env: &[(&str, String)],
        config: &Map<String, Value>,
        gate: &ChildLimiter,
    ) -> Result<Value, CniError> {
        let failed = |why: String| CniError::Plugin {
            plugin: plugin.to_owned(),
            verb,
            network: network.to_owned(),
            why,
        };
        let program = self.find_plugin(network, plugin)?;
        let input = serde_json::to_vec(config).map_err(|e| failed(e.to_string()))?;
        let dirs: Vec<String> = self
            .bin_dirs()
            .iter()
            .map(|d| d.display().to_string())
            .collect();
        let mut command = Command::new(program)
            .env("PATH", PATH)
            .env("CNI_COMMAND", verb)
            .env("CNI_PATH", dirs.join(":"))
            .stdin(ChildInput::Bytes(input))
            .capture_output(ANSWER_LIMIT);
        for (key, value) in env {
            command = command.env(key, value);
        }
        let _pass = gate.acquire_permit(verb_priority(verb)).await;
        let output = child::run_command(gate.attach_lock(command), Some(PLUGIN_TIMEOUT))
            .await
            .map_err(|e| failed(e.to_string()))?;
        if !output.status.success() {
            return Err(failed(result::plugin_failure_text(
                &output.stdout,
                &output.stderr,
                output.exit_code(),
            )));
        }
        if verb != "ADD" {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|e| failed(format!("its answer is not JSON: {e}")))
    }

    fn bin_dirs(&self) -> Vec<PathBuf> {
        let mut dirs = vec![self.settings.bin_dir.clone()];
        dirs.extend(USUAL_BIN_DIRS.map(PathBuf::from));
        dirs.retain(|d| !d.as_os_str().is_empty());
        dirs
    }

    fn find_plugin(&self, network: &str, name: &str) -> Result<PathBuf, CniError> {
        let dirs = self.bin_dirs();
        dirs.iter()
            .map(|d| d.join(name))
            .find(|p| p.is_file())
            .ok_or_else(|| {
                let looked: Vec<String> = dirs.iter().map(|d| d.display().to_string()).collect();
                CniError::NoPlugin {
                    plugin: name.to_owned(),
                    network: network.to_owned(),
                    looked: looked.join(", "),
                }
            })
    }

    fn attachments_dir(&self, built_in: bool) -> PathBuf {
        let base = if built_in {
            &self.settings.run_dir
        } else {
            &self.settings.root_dir
        };
        base.join("attachments")
    }

    fn attachment_path(&self, id: &SandboxId, built_in: bool) -> PathBuf {
        self.attachments_dir(built_in).join(format!("{id}.json"))
    }

    /// Removes records that an agent was writing when it died: the next write of the name may never come.
    fn remove_staged(&self, built_in: bool) {
        for entry in fs::read_dir(self.attachments_dir(built_in))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let is_staged = |name: &str| name.starts_with('.') && name.ends_with(".json.tmp");
            if name.to_str().is_some_and(is_staged)
                && let Err(e) = fs::remove_file(entry.path())
            {
                log::warn!("{}: {e}", entry.path().display());
            }
        }
    }

    fn attached_sandboxes(&self, built_in: bool) -> Vec<SandboxId> {
        let Ok(entries) = fs::read_dir(self.attachments_dir(built_in)) else {
            return Vec::new();
        };
        let mut ids: Vec<SandboxId> = entries
            .flatten()
            .filter_map(|e| {
                Some(SandboxId::new(
                    e.file_name().to_str()?.strip_suffix(".json")?,
                ))
            })
            .collect();
        ids.stable_sort();
        ids
    }
}

impl AttachmentRecord {
    /// Addresses that the pod has, or gets from the built-in network.
    fn pod_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let has = self.result.as_ref().map(result::parse_pod_ips);
        let own = |p: &&Map<String, Value>| NetworkConfig::plugin_type(p) == bridge::TYPE;
        let gets = self.plugins.iter().filter(own);
        let gets = gets.filter_map(|p| bridge::BridgeAttachment::from_plugin(p).ok());
        let gets: Vec<IpAddr> = gets
            .flat_map(|a| a.leases)
            .map(|lease| lease.address)
            .collect();
        has.into_iter().flatten().chain(gets)
    }
}

fn verb_priority(verb: &str) -> ChildPriority {
    if verb == "ADD" {
        ChildPriority::Connect
    } else {
        ChildPriority::Last
    }
}

/// Returns true for a plugin of the built-in network that has nothing to do for this pod: no host port, no portmap.
fn is_plugin_idle(plugin: &Map<String, Value>, pod: &SandboxConfig) -> bool {
    NetworkConfig::plugin_type(plugin) == "portmap"
        && pod.port_mappings.iter().all(|p| p.host_port == 0)
}

/// Configuration as a plugin gets it: name, version, and the capabilities that it asked for.
fn build_plugin_config(
    plugin: &Map<String, Value>,
    network: &NetworkConfig,
    pod: &SandboxConfig,
) -> Map<String, Value> {
    let mut config = plugin.clone();
    config.insert("name".into(), network.name.clone().into());
    config.insert("cniVersion".into(), network.version.clone().into());
    let capabilities = config.remove("capabilities");
    let wants =
        |name: &str| capabilities.as_ref().and_then(|c| c.get(name)) == Some(&Value::Bool(true));
    let mut runtime = Map::new();
    if wants("portMappings") {
        let ports: Vec<Value> = pod
            .port_mappings
            .iter()
            .filter(|p| p.host_port > 0)
            .map(|p| {
                json!({
                    "hostPort": p.host_port,
                    "containerPort": p.container_port,
                    "protocol": p.protocol.to_ascii_lowercase(),
                    "hostIP": p.host_ip,
                })
            })
            .collect();
        if !ports.is_empty() {
            runtime.insert("portMappings".into(), ports.into());
        }
    }
    if wants("dns") {
        runtime.insert(
            "dns".into(),
            json!({ "servers": pod.dns.servers, "searches": pod.dns.searches, "options": pod.dns.options }),
        );
    }
    if wants("bandwidth")
        && let Some(limits) = parse_bandwidth(pod)
    {
        runtime.insert("bandwidth".into(), limits);
    }
    if !runtime.is_empty() {
        config.insert("runtimeConfig".into(), Value::Object(runtime));
    }
    config
}

/// Reads the two well-known annotations for bandwidth, bits a second. Bursts are as large as the plugin takes, as with
/// other runtimes.
fn parse_bandwidth(pod: &SandboxConfig) -> Option<Value> {
    const BURST_BITS: u32 = i32::MAX.unsigned_abs();
    let mut limits = Map::new();
    for (key, rate, burst) in [
        (
            "kubernetes.io/ingress-bandwidth",
            "ingressRate",
            "ingressBurst",
        ),
        (
            "kubernetes.io/egress-bandwidth",
            "egressRate",
            "egressBurst",
        ),
    ] {
        if let Some(text) = pod.annotations.get(key)
            && let Ok(quantity) = Quantity::parse(text)
            && quantity.value() > 0
        {
            limits.insert(rate.into(), quantity.value().into());
            limits.insert(burst.into(), BURST_BITS.into());
        }
    }
    (!limits.is_empty()).then_some(Value::Object(limits))
}

fn format_cni_args(pod: &PodNetwork<'_>) -> String {
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
        pod.config.namespace, pod.config.name, pod.id, pod.config.uid
    )
}

/// Writes an attachment file. `lasts`: it has to survive a power cut, because the plugins' own leases may survive it.
fn save_attachment(
    file: &Path,
    attachment: &AttachmentRecord,
    lasts: bool,
) -> Result<(), CniError> {
    let io = |source| CniError::Io {
        path: file.to_owned(),
        source,
    };
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir).map_err(io)?;
    }
    let bytes = serde_json::to_vec(attachment).map_err(|e| io(e.into()))?;
    write_atomic(file, &bytes, 0o600, lasts).map_err(io)
}

/// Reads an attachment file; `None` if there is none. One that cannot be read is an error: forgetting it would leak an
/// address.
fn load_attachment(file: &Path) -> Result<Option<AttachmentRecord>, CniError> {
    let io = |source| CniError::Io {
        path: file.to_owned(),
        source,
    };
    match read_limited(file, ATTACHMENT_LIMIT) {
        Ok(bytes) => from_json(&bytes).map(Some).map_err(|e| io(e.into())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io(e)),
    }
}

fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(limit + 1)
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        return Err(io::Error::other(format!("longer than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// For [`crate::fuzz`]: a plugin's answer, its error, a configuration.
    pub(crate) fn run(data: &[u8]) -> String {
        let ips = from_json::<Value>(data).map_or(0, |answer| result::parse_pod_ips(&answer).len());
        let failure = result::plugin_failure_text(data, data, 1);
        assert!(failure.len() <= 8 * 1024, "an error is short");
        let config = NetworkConfig::parse(data).map_or_else(|e| e.to_string(), |_| "ok".into());
        format!("{} {config}", ips.min(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{PodUid, cri::PortMapping};

    /// A directory with plugins that are shell scripts and log their calls.
    struct Bench {
        dir: PathBuf,
        cni: Cni,
        gate: ChildLimiter,
    }

    impl Bench {
        fn new(name: &str) -> Self {
            let dir = crate::testing::unused_path(&format!("cni-{name}"));
            let _ = fs::remove_dir_all(&dir);
            for sub in ["conf", "bin"] {
                fs::create_dir_all(dir.join(sub)).expect("dir");
            }
            let bench = Self {
                cni: Self::cni(&dir, "boot1"),
                gate: ChildLimiter::new(2, &dir),
                dir,
            };
            bench.plugin(
                "first",
                r#"{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.2/24"}]}"#,
            );
            bench.plugin(
                "second",
                r#"{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.2/24"}],"x":1}"#,
            );
            bench.conf("1.1.0");
            bench
        }

        fn cni(dir: &Path, boot: &str) -> Cni {
            Cni::new(
                CniSettings {
                    conf_dir: dir.join("conf"),
                    bin_dir: dir.join("bin"),
                    run_dir: dir.join("run"),
                    root_dir: dir.join("root"),
                    built_in: BuiltInNetwork {
                        bridge: "b".into(),
                        subnets: vec![],
                        mtu: 0,
                    },
                    spanning: None,
                },
                boot.into(),
            )
        }

        fn conf(&self, version: &str) {
            let text = json!({"cniVersion": version, "name": "n", "plugins": [
                {"type": "first"}, {"type": "second", "capabilities": {"portMappings": true}}]});
            fs::write(self.dir.join("conf/1.conflist"), text.to_string()).expect("conf");
        }

        /// Fails while a file `fail-<name>-<verb>` exists.
        fn plugin(&self, name: &str, answer: &str) {
            let dir = self.dir.display();
            let script = format!(
                "#!/bin/sh\nread -r in\necho \"{name} $CNI_COMMAND $CNI_CONTAINERID [$CNI_NETNS] $CNI_ARGS $in\" >> {dir}/log\n\
                 if [ -e {dir}/fail-{name}-$CNI_COMMAND ]; then echo '{{\"code\":11,\"msg\":\"no\"}}'; exit 1; fi\n\
                 [ $CNI_COMMAND = ADD ] && echo '{answer}'\nexit 0\n"
            );
            let path = self.dir.join("bin").join(name);
            crate::testing::write_script(&path, &script);
        }

        fn log(&self) -> Vec<String> {
            let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let _ = fs::remove_file(self.dir.join("log"));
            text.lines().map(str::to_owned).collect()
        }

        fn add(&self, id: &SandboxId) -> Result<Vec<IpAddr>, CniError> {
            let config = SandboxConfig {
                name: "p".into(),
                namespace: "ns".into(),
                uid: PodUid::new("u"),
                port_mappings: vec![PortMapping {
                    protocol: "TCP".into(),
                    container_port: 80,
                    host_port: 8080,
                    host_ip: String::new(),
                }],
                ..SandboxConfig::default()
            };
            let pod = PodNetwork {
                id,
                netns: Path::new("/proc/self/ns/net"),
                config: &config,
            };
            smol::block_on(self.cni.attach_pod(&pod, &self.gate))
        }

        fn del(&self, id: &SandboxId) -> Result<(), CniError> {
            smol::block_on(self.cni.detach_sandbox(id, &self.gate))
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn chain_is_added_and_deleted() {
        let bench = Bench::new("chain");
        let id = SandboxId::new("s1");
        let ips = bench.add(&id).expect("added");
        assert_eq!(ips, ["10.9.0.2".parse::<IpAddr>().expect("ip")]);
        let log = bench.log();
        assert!(log[0].starts_with(
            "first ADD s1 [/proc/self/ns/net] IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;"
        ));
        assert!(!log[0].contains("runtimeConfig") && !log[0].contains("prevResult"));
        assert!(
            log[1].contains(r#""prevResult":{"cniVersion""#),
            "{}",
            log[1]
        );
        assert!(log[1].contains(r#""hostPort":8080"#) && !log[1].contains("capabilities"));
        smol::block_on(bench.cni.check_attachment(&id, &bench.gate)).expect("check");
        assert_eq!(bench.log().len(), 2);
        bench.del(&id).expect("deleted");
        let log = bench.log();
        assert!(log[0].starts_with("second DEL") && log[1].starts_with("first DEL"));
        assert!(
            log[0].contains(r#""x":1"#),
            "DEL gets the cached result: {}",
            log[0]
        );
        bench.del(&id).expect("again");
        assert!(bench.log().is_empty());
    }

    #[test]
    fn failed_add_is_undone_and_del_is_repeated() {
        // RTM-18
        let bench = Bench::new("undo");
        let id = SandboxId::new("s2");
        let fail =
            |name: &str| fs::write(bench.dir.join(format!("fail-{name}")), "").expect("flag");
        fail("second-ADD");
        fail("first-DEL");
        let error = bench.add(&id).expect_err("second refuses");
        assert_eq!(
            error.to_string(),
            r#"CNI plugin "second" failed to ADD network "n": no (code 11)"#
        );
        assert_eq!(bench.log().len(), 4, "two ADD, two DEL");
        bench.del(&id).expect_err("still refused");
        fs::remove_file(bench.dir.join("fail-first-DEL")).expect("flag");
        assert_eq!(bench.log().len(), 2);
        bench.del(&id).expect("done");
        assert_eq!(bench.log().len(), 2);
        bench.del(&id).expect("forgotten");
        assert_eq!(bench.log().len(), 0);
    }

    #[test]
    fn other_boots_are_swept() {
        let bench = Bench::new("sweep");
        let (old, live, orphan) = (
            SandboxId::new("old"),
            SandboxId::new("live"),
            SandboxId::new("orphan"),
        );
        for id in [&old, &live, &orphan] {
            bench.add(id).expect("added");
        }
        bench.log();
        let alive: BTreeSet<SandboxId> = [live.clone()].into();
        smol::block_on(bench.cni.sweep_attachments(&alive, &bench.gate));
        let log = bench.log();
        let gone = log.iter().filter(|l| l.contains(" DEL ")).count();
        assert_eq!(gone, 4, "two orphans, two plugins each: {log:?}");
        assert!(
            log.iter()
                .any(|l| l.contains(" GC ") && l.contains(r#""containerID":"live""#))
        );
        let next = Bench::cni(&bench.dir, "boot2");
        smol::block_on(next.sweep_attachments(&alive, &bench.gate));
        let log = bench.log();
        assert!(
            log[0].starts_with("second DEL live [] "),
            "no namespace of another boot: {}",
            log[0]
        );
    }

    #[test]
    fn missing_plugin_is_named() {
        let bench = Bench::new("missing");
        fs::remove_file(bench.dir.join("bin/second")).expect("remove");
        let condition = bench.cni.network_condition();
        assert_eq!(
            (condition.ok, condition.reason.as_str()),
            (false, "NetworkPluginMissing")
        );
        assert!(bench.add(&SandboxId::new("s")).is_err());
        assert!(bench.log().is_empty(), "nothing was begun");
    }
}
