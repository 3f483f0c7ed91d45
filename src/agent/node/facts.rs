//! Facts of the machine, and settings of the operator for it: read once, at the start.

use core::net::IpAddr;

use super::{machine, network};
use crate::{
    api::{Quantity, cri::RuntimeCondition},
    config::{AgentConfig, ReservedResources},
    logic::{
        declared_features::declared_features,
        downward::Allocatable,
        eviction::{EvictionSignal, EvictionThreshold},
        flash,
        node::{self, NodeSettings},
        node_resources::{self, MachineCapacity, NodeReservations, OverReserved},
    },
    sys::pages,
};

/// Facts of the machine, read once at start.
#[derive(Clone, Debug)]
pub(crate) struct MachineFacts {
    /// Node name.
    pub(crate) name: String,
    /// Host IPs at the start, primary first; [`LocalNode::host_ips`](super::LocalNode::host_ips) knows the present ones.
    pub(in crate::agent) host_ips: Vec<IpAddr>,
    /// Memory of the machine, bytes.
    pub(in crate::agent) memory_bytes: u64,
    /// Processors, thousandths.
    pub(in crate::agent) cpu_milli: u64,
    /// Bytes of the file system of the root dir.
    pub(in crate::agent) storage_bytes: u64,
    /// Condition that says if the disk of the root dir will last, or why not; `None`: the disk does not tell. The
    /// kernel reads that when it finds the disk, so it stays the same until the machine is started again.
    pub(in crate::agent) storage: Option<RuntimeCondition>,
    /// Swap of the machine, bytes.
    pub(in crate::agent) swap_bytes: u64,
    /// Bytes of a page of memory.
    pub(in crate::agent) page_bytes: u64,
    /// Sizes of huge pages that the kernel offers, and memory in pages of this size, used or not: bytes, sorted by
    /// size.
    pub(in crate::agent) hugepages: Vec<(u64, u64)>,
    /// Most processes and threads at a time; 0: not known.
    pub(in crate::agent) pids: u64,
    /// Resources kept from pods.
    pub(in crate::agent) kept: NodeReservations,
    /// Ids, kernel and system of this machine.
    pub(crate) identity: node::MachineIdentity,
    /// Settings of the operator for the node.
    pub(in crate::agent) settings: NodeSettings,
}

fn saturating_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl MachineFacts {
    /// Resources that the machine has.
    pub(in crate::agent) fn capacity(&self) -> MachineCapacity {
        let huge = self.hugepages.iter().map(|(_, bytes)| *bytes);
        MachineCapacity {
            cpu_milli: saturating_i64(self.cpu_milli),
            memory_bytes: saturating_i64(self.memory_bytes),
            hugepages_bytes: saturating_i64(huge.fold(0, u64::saturating_add)),
            storage_bytes: saturating_i64(self.storage_bytes),
            pids: saturating_i64(self.pids),
        }
    }

    /// Resources as the Node object shows them. `devices` is empty.
    pub(in crate::agent) fn resources(&self) -> node::MachineResources {
        let pages = self.hugepages.iter();
        node::MachineResources {
            capacity: self.capacity(),
            hugepages: pages
                .map(|(size, bytes)| (saturating_i64(*size), saturating_i64(*bytes)))
                .collect(),
            kept: self.kept,
            swap_bytes: saturating_i64(self.swap_bytes),
            devices: Vec::new(),
        }
    }

    /// Resources that pods may ask for together.
    pub(in crate::agent) fn allocatable(&self) -> Allocatable {
        node_resources::compute_allocatable(self.capacity(), self.kept)
    }
}

/// Reads the machine's facts. Missing ones are zero or empty.
///
/// - Errors: more is kept from pods than there is.
pub(in crate::agent) fn read_machine_facts(
    cfg: &AgentConfig,
) -> Result<MachineFacts, OverReserved> {
    let local = network::local_addresses(&cfg.node_name);
    // A later look may find an address.
    let host_ips =
        node::choose_host_ips(&cfg.node_ips, &cfg.node_name, &local).unwrap_or_else(|e| {
            log::warn!("{e}");
            configured_addresses(cfg)
        });
    let mut facts = MachineFacts {
        name: cfg.node_name.clone(),
        host_ips,
        memory_bytes: machine::memory_bytes(),
        cpu_milli: machine::cpu_count().saturating_mul(1000),
        storage_bytes: machine::storage_bytes(&cfg.dirs.root),
        storage: machine::disk_with_number(&cfg.dirs.root)
            .and_then(|(disk, _)| flash::storage_worn_condition(&disk)),
        page_bytes: pages::page_size_bytes(),
        hugepages: machine::hugepages(),
        swap_bytes: machine::swap_bytes(),
        pids: machine::max_pids(),
        kept: NodeReservations::default(),
        identity: machine::read_identity(),
        settings: NodeSettings::default(),
    };
    facts.kept = compute_reservations(
        &cfg.reserved,
        &cfg.eviction.settings.thresholds,
        facts.capacity(),
    );
    facts.settings = node_settings(cfg, &facts);
    node_resources::check_reservations(facts.capacity(), facts.kept)?;
    Ok(facts)
}

/// Addresses from the configuration that could not be checked: pods are told these if no others are known.
fn configured_addresses(cfg: &AgentConfig) -> Vec<IpAddr> {
    let given = cfg.node_ips.iter().copied();
    given.filter(|ip| !ip.is_unspecified()).collect()
}

/// Settings of the operator for the node.
pub(in crate::agent) fn node_settings(cfg: &AgentConfig, facts: &MachineFacts) -> NodeSettings {
    NodeSettings {
        name: cfg.node_name.clone(),
        node_ips: cfg.node_ips.clone(),
        external_ips: cfg.node_external_ips.clone(),
        carries_pod_dials: cfg.parts.iter().any(|part| part.carries_pod_dials()),
        labels: cfg.node.labels.clone(),
        taints: cfg.node.taints.clone(),
        provider_id: cfg.node.provider_id.clone(),
        external_cloud: cfg.node.external_cloud,
        controller_attach_detach: cfg.node.controller_attach_detach,
        max_images: cfg.node.max_images,
        max_pods: max_pods(cfg, facts),
        local_storage: cfg.reserved.local_storage,
        // Without a listener there is no port: the apiserver would call it in vain.
        port: cfg.server.listen.map(|listen| listen.port()),
        declared_features: declared_features(cfg.server.listen.is_some()),
        kubelet_version: cfg.node.kubelet_version.clone(),
    }
}

/// `systemReserved`, `kubeReserved` and the hard eviction thresholds, as amounts.
fn compute_reservations(
    reserved: &ReservedResources,
    thresholds: &[EvictionThreshold],
    capacity: MachineCapacity,
) -> NodeReservations {
    let sum = |name: &str, amount: fn(&Quantity) -> i64| {
        [&reserved.system, &reserved.kube]
            .into_iter()
            .filter_map(|map| map.get(name))
            .fold(0_i64, |sum, quantity| sum.saturating_add(amount(quantity)))
    };
    let threshold = |signal: EvictionSignal, has: i64| {
        let hard = |t: &&EvictionThreshold| t.signal == signal && t.grace.is_none();
        let found = thresholds.iter().find(hard);
        found.map_or(0, |threshold| threshold.limit.amount_of_capacity(has))
    };
    NodeReservations {
        cpu_milli: sum("cpu", Quantity::milli_value),
        memory_bytes: sum("memory", Quantity::value),
        storage_bytes: sum("ephemeral-storage", Quantity::value),
        pids: sum("pid", Quantity::value),
        eviction_memory_bytes: threshold(EvictionSignal::MemoryAvailable, capacity.memory_bytes),
        eviction_storage_bytes: threshold(EvictionSignal::NodeFsAvailable, capacity.storage_bytes),
    }
}

/// Largest number of pods on this node.
pub(in crate::agent) fn max_pods(cfg: &AgentConfig, node: &MachineFacts) -> i64 {
    let most = i64::from(cfg.max_pods);
    match i64::from(cfg.pods_per_core) {
        0 => most,
        per_core => most.min(per_core.saturating_mul(node.capacity().cpu_milli / 1000)),
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::config::KUBELET_VERSION;
    use crate::logic::{cpu_set::CpuSet, eviction::ThresholdLimit};

    #[test]
    fn what_is_kept_from_pods() {
        // NODE-10 CG-12
        let quantity = |text: &str| Quantity::parse(text).expect(text);
        let reserved = ReservedResources {
            system: [("cpu", "100m"), ("memory", "16Mi"), ("pid", "100")]
                .map(|(name, text)| (name.to_owned(), quantity(text)))
                .into(),
            kube: [("memory", "8Mi"), ("ephemeral-storage", "1Gi")]
                .map(|(name, text)| (name.to_owned(), quantity(text)))
                .into(),
            cpus: CpuSet::default(),
            local_storage: true,
        };
        let threshold = |signal, limit| EvictionThreshold {
            signal,
            limit,
            grace: None,
            min_reclaim: None,
        };
        let soft = EvictionThreshold {
            grace: Some(Duration::ZERO),
            ..threshold(
                EvictionSignal::MemoryAvailable,
                ThresholdLimit::Percent(90.0),
            )
        };
        let thresholds = [
            threshold(
                EvictionSignal::MemoryAvailable,
                ThresholdLimit::Amount(quantity("100Mi")),
            ),
            soft,
            threshold(
                EvictionSignal::NodeFsAvailable,
                ThresholdLimit::Percent(12.5),
            ),
        ];
        let capacity = MachineCapacity {
            memory_bytes: 512 << 20,
            storage_bytes: 8 << 30,
            ..MachineCapacity::default()
        };
        let want = NodeReservations {
            cpu_milli: 100,
            memory_bytes: 24 << 20,
            storage_bytes: 1 << 30,
            pids: 100,
            eviction_memory_bytes: 100 << 20,
            eviction_storage_bytes: 1 << 30,
        };
        assert_eq!(compute_reservations(&reserved, &thresholds, capacity), want);
        assert_eq!(
            compute_reservations(&ReservedResources::default(), &[], capacity),
            NodeReservations::default()
        );
    }

    #[test]
    fn the_version_is_one_of_kubernetes() {
        // NODE-12: vMAJOR.MINOR.PATCH, then build metadata of semantic versioning.
        let version = KUBELET_VERSION.strip_prefix('v').expect("v");
        let (core, build) = version.split_once('+').expect("build");
        assert_eq!(
            core.split('.').filter(|n| n.parse::<u32>().is_ok()).count(),
            3
        );
        assert!(build.split('.').all(|part| {
            !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
        }));
    }
}
