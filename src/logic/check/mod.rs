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

pub use agent::{agent_trouble, judge_manifests};
pub use facts::{
    AgentDirectoryFacts, AgentReachability, ApiserverAnswer, ApiserverFacts, BootstrapKubeconfig,
    CgroupDriverFacts, CgroupFacts, CheckFacts, ClockFacts, DirectoryFacts, DiskWearFacts,
    HandlerRuntimeFacts, KernelFacts, ManifestFacts, NetworkFacts, OfferedDevices, OperatorConfig,
    ProcessRights, RegistryConfigFacts, RuntimeFacts,
};

pub use kubeadm::{
    FILES, KERNEL_OPTIONS, KubeadmFacts, OWN_SOCKET, PROGRAMS, SOCKETS, run_kubeadm_checks,
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
    /// More findings of the same check.
    pub more: Vec<Self>,
}

/// Most findings of one check. Errors come first.
const MAX_FINDINGS: usize = 500;

impl CheckFinding {
    fn new(level: FindingLevel, says: String, fix: String) -> Self {
        Self {
            level,
            says,
            fix,
            more: Vec::new(),
        }
    }

    pub(crate) fn ok(says: impl Into<String>) -> Self {
        Self::new(FindingLevel::Ok, says.into(), String::new())
    }

    pub(crate) fn warning(says: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(FindingLevel::Warning, says.into(), fix.into())
    }

    pub(crate) fn error(says: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(FindingLevel::Error, says.into(), fix.into())
    }

    /// Makes one of the first [`MAX_FINDINGS`] findings of a check; `None`: there are none.
    fn join(mut findings: Vec<Self>) -> Option<Self> {
        findings.truncate(MAX_FINDINGS);
        let more = findings.split_off(findings.len().min(1));
        let first = findings.pop()?;
        Some(Self { more, ..first })
    }

    /// Lists this finding and those that are joined to it, under the name of their check.
    pub fn list_all(mut self, name: &str) -> impl Iterator<Item = (&str, Self)> {
        let more = core::mem::take(&mut self.more);
        let all = core::iter::once(self).chain(more);
        all.map(move |finding| (name, finding))
    }
}

/// A check: its name and its rule.
pub type NodeCheck = (&'static str, fn(&CheckFacts) -> CheckFinding);

/// All checks, in the order in which they are shown.
pub const CHECKS: [NodeCheck; 54] = [
    ("config", agent::check_config),
    ("root", machine::check_root),
    ("capabilities", machine::check_capabilities),
    ("hostname", machine::check_hostname),
    ("kernel", kernel::check_kernel_version),
    ("architecture", kernel::check_architecture),
    ("page-size", kernel::check_page_size),
    ("cgroup", kernel::check_cgroup),
    ("cgroup-memory", kernel::check_cgroup_memory),
    ("cgroup-limits", kernel::check_cgroup_limits),
    ("overlayfs", kernel::check_overlayfs),
    ("seccomp", kernel::check_seccomp),
    ("apparmor", kernel::check_apparmor),
    ("pid-limits", kernel::check_pid_limits),
    ("inotify", kernel::check_inotify),
    ("swap", kernel::check_swap),
    ("clock", machine::check_clock),
    ("rtc", machine::check_rtc),
    ("devices", machine::check_devices),
    ("disk", machine::check_disk_space),
    ("inodes", machine::check_inodes),
    ("eviction", machine::check_eviction),
    ("read-only", machine::check_read_only),
    ("mount-options", machine::check_mount_options),
    ("root-dir", machine::check_root_dir),
    ("wear", machine::check_disk_wear),
    ("run-dir", machine::check_run_dir),
    ("records", machine::check_records),
    ("log-dir", machine::check_log_dir),
    ("mounts", machine::check_mounts),
    ("runtime", kernel::check_runtime),
    ("cgroup-driver", kernel::check_cgroup_driver),
    ("runtime-version", kernel::check_runtime_version),
    ("runtime-handlers", kernel::check_runtime_handlers),
    ("user-namespaces", kernel::check_user_namespaces),
    ("cni-config", network::check_network_config),
    ("cni-plugins", network::check_cni_plugins),
    ("iptables", network::check_iptables),
    ("forwarding", network::check_forwarding),
    ("firewall", network::check_firewall),
    ("dns", network::check_dns),
    ("neighbours", agent::check_neighbours),
    ("manifests", agent::check_manifests),
    ("ports", agent::check_ports),
    ("secrets", agent::check_secret_files),
    ("registries", agent::check_registries),
    ("kubeconfig", cluster::check_kubeconfig),
    ("certificate", cluster::check_certificate),
    ("apiserver", cluster::check_apiserver),
    ("pod-routes", cluster::check_pod_routes),
    ("services", cluster::check_services),
    ("tunnel", cluster::check_control_plane_tunnel),
    ("link-budget", agent::check_link_budget),
    ("agent", agent::check_agent),
];

/// Carries out every check.
///
/// - Shape: in the order of [`CHECKS`], with their names. A check may have more than one finding.
#[must_use]
pub fn run_checks(facts: &CheckFacts) -> Vec<(&'static str, CheckFinding)> {
    let found = |(name, rule): &NodeCheck| {
        let of_part = facts.of_parts.iter().find(|(of, _)| of == name);
        let finding = of_part.map_or_else(|| rule(facts), |(_, finding)| finding.clone());
        finding.list_all(name)
    };
    CHECKS.iter().flat_map(found).collect()
}

/// `a, b and 3 more`: at most `limit` of `items`.
pub(crate) fn join_first<'a>(
    items: impl ExactSizeIterator<Item = &'a str>,
    limit: usize,
) -> String {
    let more = items.len().saturating_sub(limit);
    let shown: Vec<&str> = items.take(limit).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
