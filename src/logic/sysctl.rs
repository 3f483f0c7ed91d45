//! Sysctls that a pod may set (SEC-10, ADM-12). Names follow kubelet `pkg/kubelet/sysctl`.

use alloc::{string::String, vec::Vec};

/// The namespace that keeps a sysctl apart from the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SysctlNamespace {
    Ipc,
    Net,
}

impl SysctlNamespace {
    const fn name(self) -> &'static str {
        match self {
            Self::Ipc => "ipc",
            Self::Net => "net",
        }
    }
}

/// Safe sysctls, with the kernel (major, minor) since which each is kept per namespace.
const SAFE: &[(&str, (u32, u32))] = &[
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// Sysctls that the pods `svclb-*` of k3s set (K3SN-07).
const SERVICE_LB: [&str; 2] = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];

/// Turns a name into its dotted form: `net/ipv4/conf/eth0.1/x` becomes `net.ipv4.conf.eth0/1.x`.
///
/// Dots and slashes are swapped if the first separator is a slash.
#[must_use]
pub fn dotted_sysctl_name(name: &str) -> String {
    if name.find(['.', '/']).map(|at| &name[at..=at]) != Some("/") {
        return name.into();
    }
    name.chars()
        .map(|c| match c {
            '/' => '.',
            '.' => '/',
            other => other,
        })
        .collect()
}

fn namespace_of(dotted: &str) -> Option<SysctlNamespace> {
    if dotted.starts_with("net.") {
        return Some(SysctlNamespace::Net);
    }
    let ipc = dotted == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue."]
            .iter()
            .any(|prefix| dotted.starts_with(prefix));
    ipc.then_some(SysctlNamespace::Ipc)
}

/// A pattern of `allowedUnsafeSysctls` that no namespace keeps apart from the host. The operator takes it out.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not known to be namespaced")]
pub struct NotNamespacedSysctl(String);

/// Reason why a pod may not set a sysctl, as the admission message carries it after `forbidden sysctl: `.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForbiddenSysctl {
    /// The sysctl would be the host's: the pod's author must not set it.
    #[error("{0:?} not allowed with host {1} enabled")]
    OfHost(String, &'static str),
    /// The operator has not allowed the sysctl.
    #[error("{0:?} not allowlisted")]
    NotAllowed(String),
}

/// Sysctls that pods may set on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysctlAllowlist {
    kernel: (u32, u32),
    /// Dotted names, or prefixes that end in `*`.
    unsafe_patterns: Vec<String>,
    /// Set if pods of the load balancer of k3s run here.
    for_service_lb: bool,
}

impl SysctlAllowlist {
    /// The safe sysctls of a kernel, and `allowedUnsafeSysctls` of the configuration.
    ///
    /// # Errors
    /// The first pattern that no namespace keeps apart from the host.
    pub fn new(
        kernel: (u32, u32),
        unsafe_patterns: &[String],
    ) -> Result<Self, NotNamespacedSysctl> {
        let mut patterns = Vec::new();
        for pattern in unsafe_patterns {
            let name = dotted_sysctl_name(pattern);
            let prefix = name.strip_suffix('*').unwrap_or(&name);
            if prefix.contains('*') || namespace_of(prefix).is_none() {
                return Err(NotNamespacedSysctl(pattern.clone()));
            }
            patterns.push(name);
        }
        Ok(Self {
            kernel,
            unsafe_patterns: patterns,
            for_service_lb: false,
        })
    }

    /// Allows the sysctls of the pods of the load balancer of k3s, or not (K3SN-07).
    pub const fn set_service_lb(&mut self, is_allowed: bool) {
        self.for_service_lb = is_allowed;
    }

    /// Checks that a pod may set `name`.
    ///
    /// # Errors
    /// The reason why not, as the admission message carries it after `forbidden sysctl: `.
    pub fn check_sysctl(
        &self,
        name: &str,
        host_network: bool,
        host_ipc: bool,
    ) -> Result<(), ForbiddenSysctl> {
        let name = dotted_sysctl_name(name);
        let safe = SAFE
            .iter()
            .any(|(safe, since)| *safe == name && self.kernel >= *since);
        let allowed = safe
            || self.for_service_lb && SERVICE_LB.contains(&&*name)
            || self
                .unsafe_patterns
                .iter()
                .any(|pattern| match pattern.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => *pattern == name,
                });
        let shared = match namespace_of(&name) {
            Some(SysctlNamespace::Ipc) => host_ipc,
            Some(SysctlNamespace::Net) => host_network,
            None => false,
        };
        match namespace_of(&name) {
            Some(namespace) if allowed && shared => {
                Err(ForbiddenSysctl::OfHost(name, namespace.name()))
            }
            Some(_) if allowed => Ok(()),
            Some(_) | None => Err(ForbiddenSysctl::NotAllowed(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        // SEC-10
        for (name, expected) in [
            ("net.ipv4.tcp_rmem", "net.ipv4.tcp_rmem"),
            ("net/ipv4/tcp_rmem", "net.ipv4.tcp_rmem"),
            (
                "net/ipv4/conf/eth0.1/rp_filter",
                "net.ipv4.conf.eth0/1.rp_filter",
            ),
            (
                "net.ipv4.conf.eth0/1.rp_filter",
                "net.ipv4.conf.eth0/1.rp_filter",
            ),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(dotted_sysctl_name(name), expected);
        }
    }

    #[test]
    fn allowed() {
        let patterns = ["net.core.*".into(), "kernel/msgmax".into()];
        let list = |kernel| SysctlAllowlist::new(kernel, &patterns).expect("patterns");
        // SEC-10 ADM-12
        for (name, kernel, sysctl, host_net, host_ipc, expected) in [
            ("safe", (5, 10), "kernel.shm_rmid_forced", false, false, ""),
            (
                "safe, slashes",
                (5, 10),
                "net/ipv4/tcp_syncookies",
                false,
                false,
                "",
            ),
            (
                "kernel new enough",
                (4, 5),
                "net.ipv4.tcp_keepalive_time",
                false,
                false,
                "",
            ),
            (
                "kernel too old",
                (4, 4),
                "net.ipv4.tcp_keepalive_time",
                false,
                false,
                "\"net.ipv4.tcp_keepalive_time\" not allowlisted",
            ),
            (
                "4.14 is older than 4.15",
                (4, 14),
                "net.ipv4.tcp_rmem",
                false,
                false,
                "\"net.ipv4.tcp_rmem\" not allowlisted",
            ),
            (
                "by pattern",
                (5, 10),
                "net.core.somaxconn",
                false,
                false,
                "",
            ),
            ("by name", (5, 10), "kernel.msgmax", false, false, ""),
            (
                "not in the list",
                (5, 10),
                "kernel.msgmnb",
                false,
                false,
                "\"kernel.msgmnb\" not allowlisted",
            ),
            (
                "not namespaced",
                (5, 10),
                "vm.swappiness",
                false,
                false,
                "\"vm.swappiness\" not allowlisted",
            ),
            (
                "host network",
                (5, 10),
                "net.ipv4.tcp_syncookies",
                true,
                false,
                "\"net.ipv4.tcp_syncookies\" not allowed with host net enabled",
            ),
            (
                "host IPC",
                (5, 10),
                "kernel.shm_rmid_forced",
                false,
                true,
                "\"kernel.shm_rmid_forced\" not allowed with host ipc enabled",
            ),
            (
                "the other host namespace does not matter",
                (5, 10),
                "kernel.shm_rmid_forced",
                true,
                false,
                "",
            ),
            (
                "unsafe ones are bound as well",
                (5, 10),
                "net.core.somaxconn",
                true,
                false,
                "\"net.core.somaxconn\" not allowed with host net enabled",
            ),
        ] {
            let got = list(kernel).check_sysctl(sysctl, host_net, host_ipc);
            let got = got.err().map(|e| format!("{e}"));
            assert_eq!(got.unwrap_or_default(), expected, "{name}");
        }
        // K3SN-07
        let mut svclb = list((5, 10));
        for (is_on, host_net) in [(false, false), (true, false), (true, true), (false, false)] {
            svclb.set_service_lb(is_on);
            for name in ["net.ipv4.ip_forward", "net/ipv6/conf/all/forwarding"] {
                let is_ok = svclb.check_sysctl(name, host_net, false).is_ok();
                assert_eq!(is_ok, is_on && !host_net, "{name}");
            }
            assert!(
                svclb
                    .check_sysctl("net.ipv4.conf.all.forwarding", false, false)
                    .is_err()
            );
        }
        for bad in ["vm.*", "vm.swappiness", "*", "net.*.x"] {
            assert!(
                SysctlAllowlist::new((5, 10), &[bad.into()]).is_err(),
                "{bad}"
            );
        }
    }
}
