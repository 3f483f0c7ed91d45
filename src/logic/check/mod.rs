//! The preflight: faults of a machine before or while an agent runs on it, and the exact fix of each.
//!
//! Each check is a pure function over [`CheckFacts`]; [`CHECKS`] lists all of them in the order in which they are shown.

mod agent;
mod cluster;
mod facts;
mod kernel;
mod kubeadm;
mod machine;
mod network;
#[cfg(test)]
mod tests;

use alloc::{string::String, vec::Vec};

pub use agent::{judge_manifests, trouble};
pub use facts::{
    AgentDirectoryFacts, AgentFacts, AgentReachability, ApiserverAnswer, ApiserverFacts,
    BootstrapKubeconfig, CgroupDriverFacts, CgroupFacts, CheckFacts, ClockFacts, DirectoryFacts,
    DiskWearFacts, HandlerRuntimeFacts, KernelFacts, ManifestFacts, NetworkFacts, OfferedDevices,
    OperatorConfig, ProcessRights, RegistryConfigFacts, RuntimeFacts,
};

pub use kubeadm::{
    FILES, KERNEL_OPTIONS, KubeadmFacts, OWN_SOCKET, PROGRAMS, SOCKETS, run_kubeadm,
};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingLevel {
    /// As it should be.
    Ok,
    /// Pods run; something is lost or will go wrong.
    Warning,
    /// Pods will not run: some of them, or all.
    Error,
}

impl FindingLevel {
    /// `ok`, `warning`, `error`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFinding {
    /// Severity.
    pub level: FindingLevel,
    /// Text of the finding, in one line.
    pub says: String,
    /// Command to type or line to write; empty where nothing is to be done.
    pub fix: String,
}

impl CheckFinding {
    pub(crate) fn ok(says: impl Into<String>) -> Self {
        Self {
            level: FindingLevel::Ok,
            says: says.into(),
            fix: String::new(),
        }
    }

    pub(crate) fn warning(says: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            level: FindingLevel::Warning,
            says: says.into(),
            fix: fix.into(),
        }
    }

    pub(crate) fn error(says: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            level: FindingLevel::Error,
            says: says.into(),
            fix: fix.into(),
        }
    }
}

/// A check: its name and its rule.
pub type NodeCheck = (&'static str, fn(&CheckFacts) -> CheckFinding);

/// All checks, in the order in which they are shown.
pub const CHECKS: [NodeCheck; 53] = [
    ("config", agent::config),
    ("root", machine::root),
    ("capabilities", machine::capabilities),
    ("hostname", machine::hostname),
    ("kernel", kernel::version),
    ("architecture", kernel::architecture),
    ("page-size", kernel::page_size),
    ("cgroup", kernel::cgroup),
    ("cgroup-memory", kernel::cgroup_memory),
    ("cgroup-limits", kernel::cgroup_limits),
    ("overlayfs", kernel::overlayfs),
    ("seccomp", kernel::seccomp),
    ("apparmor", kernel::apparmor),
    ("pid-limits", kernel::pid_limits),
    ("inotify", kernel::inotify),
    ("swap", kernel::swap),
    ("clock", machine::clock),
    ("rtc", machine::rtc),
    ("devices", machine::devices),
    ("disk", machine::disk),
    ("inodes", machine::inodes),
    ("eviction", machine::eviction),
    ("read-only", machine::read_only),
    ("mount-options", machine::mount_options),
    ("root-dir", machine::root_dir),
    ("wear", machine::wear),
    ("run-dir", machine::run_dir),
    ("records", machine::records),
    ("log-dir", machine::log_dir),
    ("mounts", machine::mounts),
    ("runtime", kernel::runtime),
    ("cgroup-driver", kernel::cgroup_driver),
    ("runtime-version", kernel::runtime_version),
    ("runtime-handlers", kernel::runtime_handlers),
    ("cni-config", network::config),
    ("cni-plugins", network::plugins),
    ("iptables", network::iptables),
    ("forwarding", network::forwarding),
    ("firewall", network::firewall),
    ("dns", network::dns),
    ("neighbours", agent::neighbours),
    ("manifests", agent::manifests),
    ("ports", agent::ports),
    ("secrets", agent::secrets),
    ("registries", agent::registries),
    ("kubeconfig", cluster::kubeconfig),
    ("certificate", cluster::certificate),
    ("apiserver", cluster::apiserver),
    ("pod-routes", cluster::pod_routes),
    ("services", cluster::services),
    ("tunnel", cluster::tunnel),
    ("link-budget", agent::link_budget),
    ("agent", agent::agent),
];

/// Carries out every check.
///
/// - Shape: in the order of [`CHECKS`], with their names.
#[must_use]
pub fn run(facts: &CheckFacts) -> Vec<(&'static str, CheckFinding)> {
    let found = |(name, rule): &NodeCheck| {
        let of_part = facts.of_parts.iter().find(|(of, _)| of == name);
        let finding = of_part.map_or_else(|| rule(facts), |(_, finding)| finding.clone());
        (*name, finding)
    };
    CHECKS.iter().map(found).collect()
}

/// `a, b and 3 more`: at most `limit` of `items`.
pub(crate) fn some_of<'a>(items: impl ExactSizeIterator<Item = &'a str>, limit: usize) -> String {
    let more = items.len().saturating_sub(limit);
    let shown: Vec<&str> = items.take(limit).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
