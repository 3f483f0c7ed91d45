//! Resources of the node: capacity, reservations, and the rest for pods (NODE-10, NODE-11, CG-12).
//!
//! The rest is two amounts: the requests that pods may have together (allocatable), and the resources that they can
//! take together (the limits of the cgroup `kubepods`). The second is larger by the hard eviction thresholds: between
//! the two, pods are evicted before the kernel has to kill a process.

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use super::{cgroup, downward::Allocatable};
use crate::api::{Quantity, cri::LinuxResources};

/// Resources of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineCapacity {
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory_bytes: i64,
    /// Bytes of `memory_bytes` that are huge pages already, of all sizes.
    pub hugepages_bytes: i64,
    /// Bytes of the file system of the root dir.
    pub storage_bytes: i64,
    /// Most processes and threads at a time; 0: not known.
    pub pids: i64,
}

/// Resources that are kept from pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeReservations {
    /// CPU of `systemReserved` and `kubeReserved` together, thousandths.
    pub cpu_milli: i64,
    /// Memory of both, bytes.
    pub memory_bytes: i64,
    /// Ephemeral storage of both, bytes.
    pub storage_bytes: i64,
    /// Processes of both.
    pub pids: i64,
    /// Hard eviction threshold of `memory.available`, bytes.
    pub eviction_memory_bytes: i64,
    /// Hard eviction threshold of `nodefs.available`, bytes.
    pub eviction_storage_bytes: i64,
}

/// The operator keeps more from pods than there is: amounts and names of the resources.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("systemReserved and kubeReserved together keep {0} from pods")]
pub struct OverReserved(String);

/// Checks that every reservation can be kept.
///
/// - Errors: all reservations that cannot be kept; the agent must not start.
pub fn check_reservations(
    capacity: MachineCapacity,
    kept: NodeReservations,
) -> Result<(), OverReserved> {
    let too_much: Vec<String> = [
        ("cpu", "m", kept.cpu_milli, capacity.cpu_milli),
        ("memory", "", kept.memory_bytes, capacity.memory_bytes),
        (
            "ephemeral-storage",
            "",
            kept.storage_bytes,
            capacity.storage_bytes,
        ),
        ("pid", "", kept.pids, capacity.pids),
    ]
    .into_iter()
    // A capacity of 0 is not known.
    .filter(|(_, _, kept, has)| kept > has && *has > 0)
    .map(|(name, unit, kept, has)| format!("{kept}{unit} of {name}, of which there is {has}{unit}"))
    .collect();
    if too_much.is_empty() {
        Ok(())
    } else {
        Err(OverReserved(too_much.join(", and ")))
    }
}

/// Resources that pods may ask for together (NODE-10).
#[must_use]
pub fn compute_allocatable(capacity: MachineCapacity, kept: NodeReservations) -> Allocatable {
    let left = |has: i64, kept: i64| has.saturating_sub(kept).max(0);
    let memory = left(
        capacity.memory_bytes,
        kept.memory_bytes.saturating_add(kept.eviction_memory_bytes),
    );
    Allocatable {
        cpu_milli: left(capacity.cpu_milli, kept.cpu_milli),
        memory_bytes: left(memory, capacity.hugepages_bytes),
        ephemeral_storage_bytes: left(
            capacity.storage_bytes,
            kept.storage_bytes
                .saturating_add(kept.eviction_storage_bytes),
        ),
    }
}

/// Returns true if a resource is neither native to the kernel nor to Kubernetes: it belongs to a device plugin, or to
/// the cluster.
///
/// - Source: `pkg/apis/core/v1/helper`, `IsExtendedResourceName`.
#[must_use]
pub fn is_extended_resource(resource: &str) -> bool {
    resource.contains('/') && !resource.contains("kubernetes.io/")
}

/// Values of the cgroup `kubepods` (CG-12). `enforce`: `pods` is in `enforceNodeAllocatable`; otherwise pods can take
/// all that there is.
#[must_use]
pub fn kubepods_resources(
    capacity: MachineCapacity,
    kept: NodeReservations,
    enforce: bool,
) -> LinuxResources {
    let kept = if enforce {
        kept
    } else {
        NodeReservations::default()
    };
    let left = |has: i64, kept: i64| has.saturating_sub(kept).max(0);
    let pids = left(capacity.pids, kept.pids);
    cgroup::kubepods_values(
        left(capacity.cpu_milli, kept.cpu_milli),
        left(capacity.memory_bytes, kept.memory_bytes),
        // 0 is not known: no limit.
        (pids > 0).then_some(pids),
    )
}

/// Values of a group that is limited to its reservation (CG-13): a resource without a reservation is not limited.
/// `compressible`: limit only processor time.
#[must_use]
pub fn reserved_group(reserved: &BTreeMap<String, Quantity>, compressible: bool) -> LinuxResources {
    let get = |name: &str| reserved.get(name);
    let rest = |name: &str| get(name).filter(|_| !compressible).map(Quantity::value);
    LinuxResources {
        cpu_shares: get("cpu").map(|cpu| cgroup::cpu_shares(cpu.milli_value())),
        memory_limit_bytes: rest("memory"),
        pids_limit: rest("pid"),
        ..LinuxResources::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_what_is_reserved() {
        // CG-13
        let all = [
            ("cpu", "500m"),
            ("memory", "64Mi"),
            ("pid", "100"),
            ("ephemeral-storage", "1Gi"),
        ];
        let all = all.map(|(name, text)| (name.into(), Quantity::parse(text).expect(text)));
        let all = BTreeMap::from(all);
        let got = |compressible| {
            let got = reserved_group(&all, compressible);
            (got.cpu_shares, got.memory_limit_bytes, got.pids_limit)
        };
        assert_eq!(got(false), (Some(512), Some(64 << 20), Some(100)));
        assert_eq!(got(true), (Some(512), None, None));
        assert_eq!(
            reserved_group(&BTreeMap::new(), false),
            LinuxResources::default()
        );
    }

    const MIB: i64 = 1 << 20;

    const BOARD: MachineCapacity = MachineCapacity {
        cpu_milli: 4000,
        memory_bytes: 512 * MIB,
        hugepages_bytes: 0,
        storage_bytes: 1000 * MIB,
        pids: 4000,
    };
    const KEPT: NodeReservations = NodeReservations {
        cpu_milli: 500,
        memory_bytes: 64 * MIB,
        storage_bytes: 100 * MIB,
        pids: 1000,
        eviction_memory_bytes: 32 * MIB,
        eviction_storage_bytes: 50 * MIB,
    };

    #[test]
    fn what_may_be_asked_for() {
        // NODE-10
        let huge = MachineCapacity {
            hugepages_bytes: 16 * MIB,
            ..BOARD
        };
        let all = NodeReservations {
            memory_bytes: 500 * MIB,
            ..KEPT
        };
        for (name, capacity, kept, (cpu, memory, storage)) in [
            (
                "nothing kept",
                BOARD,
                NodeReservations::default(),
                (4000, 512, 1000),
            ),
            ("reserved and evicted", BOARD, KEPT, (3500, 416, 850)),
            ("huge pages", huge, KEPT, (3500, 400, 850)),
            ("never below nothing", huge, all, (3500, 0, 850)),
        ] {
            let want = Allocatable {
                cpu_milli: cpu,
                memory_bytes: memory * MIB,
                ephemeral_storage_bytes: storage * MIB,
            };
            assert_eq!(compute_allocatable(capacity, kept), want, "{name}");
        }
    }

    #[test]
    fn what_can_be_taken() {
        // CG-12
        let unknown = MachineCapacity { pids: 0, ..BOARD };
        for (name, capacity, enforce, want) in [
            ("enforced", BOARD, true, (3584, 448, Some(3000))),
            ("not enforced", BOARD, false, (4096, 512, Some(4000))),
            ("processes not known", unknown, true, (3584, 448, None)),
        ] {
            let got = kubepods_resources(capacity, KEPT, enforce);
            assert_eq!(
                (got.cpu_shares, got.memory_limit_bytes, got.pids_limit),
                (Some(want.0), Some(want.1 * MIB), want.2),
                "{name}"
            );
        }
    }

    #[test]
    fn what_cannot_be_kept() {
        // NODE-11
        assert_eq!(check_reservations(BOARD, KEPT), Ok(()));
        let kept = NodeReservations {
            cpu_milli: 4001,
            pids: 5000,
            ..KEPT
        };
        assert_eq!(
            format!("{}", check_reservations(BOARD, kept).expect_err("too much")),
            "systemReserved and kubeReserved together keep 4001m of cpu, of which there is 4000m, and 5000 of pid, of which \
             there is 4000 from pods"
        );
        let unknown = MachineCapacity { pids: 0, ..BOARD };
        assert_eq!(
            check_reservations(unknown, KEPT),
            Ok(()),
            "cannot be judged"
        );
    }
}
