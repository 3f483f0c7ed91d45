//! Checks that `kubeadm join` makes before it changes anything (KADM-10 to KADM-15): its own names and verdicts, and
//! fixes.
//!
//! Source: kubeadm 1.36 `cmd/kubeadm/app/preflight/checks.go`; system-validators `types_unix.go`, `kernel_validator.go`.

use alloc::{string::String, vec::Vec};

use super::{AgentReachability, CheckFacts, CheckFinding, NodeCheck, join_first};

/// Options that kubeadm wants in the kernel's configuration. Any one of each row is enough.
pub const KERNEL_OPTIONS: [&[&str]; 17] = [
    &["CONFIG_NAMESPACES"],
    &["CONFIG_NET_NS"],
    &["CONFIG_PID_NS"],
    &["CONFIG_IPC_NS"],
    &["CONFIG_UTS_NS"],
    &["CONFIG_CGROUPS"],
    &["CONFIG_CGROUP_BPF"],
    &["CONFIG_CGROUP_DEVICE"],
    &["CONFIG_CGROUP_FREEZER"],
    &["CONFIG_CGROUP_PIDS"],
    &["CONFIG_FAIR_GROUP_SCHED"],
    &["CONFIG_CPUSETS"],
    &["CONFIG_MEMCG"],
    &["CONFIG_INET"],
    &["CONFIG_EXT4_FS"],
    &[
        "CONFIG_NETFILTER_XT_TARGET_REDIRECT",
        "CONFIG_IP_NF_TARGET_REDIRECT",
    ],
    &["CONFIG_NETFILTER_XT_MATCH_COMMENT"],
];
/// Files that a join writes: if one exists, it is of an earlier join.
pub const FILES: [&str; 3] = [
    "/etc/kubernetes/kubelet.conf",
    "/etc/kubernetes/bootstrap-kubelet.conf",
    "/etc/kubernetes/pki/ca.crt",
];
/// Programs that kubeadm calls.
pub const PROGRAMS: [&str; 3] = ["losetup", "mount", "cp"];
/// Sockets of runtimes that kubeadm looks for.
pub const SOCKETS: [&str; 3] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
];
/// Socket at which `picolet cri` answers kubeadm.
pub const OWN_SOCKET: &str = "/run/picolet-cri.sock";
/// Ports of a kubelet: its server for the apiserver, and `/healthz`.
const PORT: u16 = 10_250;
const HEALTH_PORT: u16 = 10_248;
/// Most things that one line names.
const MAX_NAMED: usize = 4;

/// Facts for the checks of kubeadm, besides the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeadmFacts {
    /// Files of [`FILES`] that exist.
    pub files: Vec<String>,
    /// Programs of [`PROGRAMS`] that are not on the path.
    pub missing_programs: Vec<String>,
    /// Sockets of [`SOCKETS`] that exist.
    pub sockets: Vec<String>,
    /// [`OWN_SOCKET`] is there.
    pub own_socket: bool,
    /// Output of `kubelet --version`.
    pub version: String,
    /// Reason why `kubelet --version` prints nothing.
    pub version_error: Option<String>,
    /// The kernel's configuration: its path, and the [`KERNEL_OPTIONS`] that it lacks; `None` if it was not found.
    pub kernel: Option<(String, Vec<String>)>,
    /// True if a service named `kubelet` starts with the machine; `None` without a service manager.
    pub enabled: Option<bool>,
    /// Set if the name of the node can be looked up.
    pub resolves: bool,
    /// Requests by https go through a proxy.
    pub proxy: bool,
}

/// All checks of kubeadm, in its order.
const KUBEADM: [NodeCheck; 17] = [
    ("IsPrivilegedUser", check_kubeadm_root),
    ("FileAvailable--etc-kubernetes-kubelet.conf", |f| {
        check_kubeadm_file(f, 0)
    }),
    (
        "FileAvailable--etc-kubernetes-bootstrap-kubelet.conf",
        |f| check_kubeadm_file(f, 1),
    ),
    ("FileAvailable--etc-kubernetes-pki-ca.crt", |f| {
        check_kubeadm_file(f, 2)
    }),
    ("CRI", check_kubeadm_runtime),
    ("ContainerRuntimeVersion", check_kubeadm_runtime),
    (
        "FileContent--proc-sys-net-ipv4-ip_forward",
        check_kubeadm_forwarding,
    ),
    ("Swap", check_kubeadm_swap),
    ("FileExisting-losetup", |f| check_kubeadm_program(f, 0)),
    ("FileExisting-mount", |f| check_kubeadm_program(f, 1)),
    ("FileExisting-cp", |f| check_kubeadm_program(f, 2)),
    ("SystemVerification", check_kubeadm_system),
    ("Hostname", check_kubeadm_hostname),
    ("KubeletVersion", check_kubelet_version),
    ("Service-kubelet", check_kubelet_service),
    ("Port-10250", check_kubelet_port),
    ("HTTPProxy", check_kubeadm_proxy),
];

/// Carries out the checks of kubeadm.
///
/// - Shape: as [`super::run_checks`]; without root only the first, as kubeadm does.
#[must_use]
pub fn run_kubeadm_checks(facts: &CheckFacts) -> Vec<(&'static str, CheckFinding)> {
    let count = if facts.rights.root { KUBEADM.len() } else { 1 };
    let checks = KUBEADM.iter().take(count);
    checks.map(|(name, rule)| (*name, rule(facts))).collect()
}

fn check_kubeadm_root(facts: &CheckFacts) -> CheckFinding {
    if facts.rights.root {
        return CheckFinding::ok("runs as root");
    }
    CheckFinding::error(
        "not root: without root, kubeadm checks nothing else",
        "sudo picolet check --kubeadm",
    )
}

fn check_kubeadm_file(facts: &CheckFacts, n: usize) -> CheckFinding {
    let path = FILES[n];
    if !facts.kubeadm.files.iter().any(|f| f == path) {
        return CheckFinding::ok(format!("there is no {path}"));
    }
    CheckFinding::error(
        format!("{path} is there: this machine is, or was, a node"),
        "kubeadm reset; picolet reset --stop",
    )
}

/// Checks the socket of a container runtime. Picolet needs none; only the checks `CRI` and `ContainerRuntimeVersion`
/// do.
fn check_kubeadm_runtime(facts: &CheckFacts) -> CheckFinding {
    match facts.kubeadm.sockets.as_slice() {
        [] if facts.kubeadm.own_socket => CheckFinding::warning(
            format!("kubeadm does not find {OWN_SOCKET} by itself"),
            format!("kubeadm join --cri-socket unix://{OWN_SOCKET}"),
        ),
        [] => CheckFinding::error(
            "there is no socket of a container runtime: picolet needs none, kubeadm looks for one",
            "kubeadm join --cri-socket unix:///run/picolet-cri.sock (picolet-cri.socket), or --ignore-preflight-errors=CRI,ContainerRuntimeVersion (1.30: CRI,FileExisting-crictl)",
        ),
        [socket] => CheckFinding::ok(socket.clone()),
        sockets => CheckFinding::error(
            format!(
                "there are several: {}",
                join_first(sockets.iter().map(String::as_str), MAX_NAMED)
            ),
            format!("kubeadm join --cri-socket unix://{}", sockets[0]),
        ),
    }
}

fn check_kubeadm_forwarding(facts: &CheckFacts) -> CheckFinding {
    if facts.network.ip_forward {
        return CheckFinding::ok("1");
    }
    CheckFinding::error(
        "net.ipv4.ip_forward is off",
        "printf 'net.ipv4.ip_forward=1\\n' > /etc/sysctl.d/90-picolet-forward.conf && sysctl --system",
    )
}

fn check_kubeadm_swap(facts: &CheckFacts) -> CheckFinding {
    if facts.kernel.swaps.is_empty() {
        return CheckFinding::ok("none");
    }
    let list = join_first(facts.kernel.swaps.iter().map(String::as_str), MAX_NAMED);
    CheckFinding::warning(
        format!("{list} is on: the agent starts anyway, unless failSwapOn is true"),
        "failSwapOn: false in the cluster's ConfigMap kubelet-config, or swapoff -a",
    )
}

fn check_kubeadm_program(facts: &CheckFacts, n: usize) -> CheckFinding {
    let name = PROGRAMS[n];
    if !facts.kubeadm.missing_programs.iter().any(|p| p == name) {
        return CheckFinding::ok("installed");
    }
    let package = if name == "cp" { "coreutils" } else { "mount" };
    CheckFinding::error(
        format!("there is no program {name}"),
        format!("apt-get install {package}"),
    )
}

/// Kernel and control groups (KADM-12).
fn check_kubeadm_system(facts: &CheckFacts) -> CheckFinding {
    const IGNORE: &str = "kubeadm join --ignore-preflight-errors=SystemVerification";
    if !facts.cgroups.v2 {
        return CheckFinding::error(
            "control groups are of version 1, which kubelet 1.35 no longer supports",
            "systemd.unified_cgroup_hierarchy=1 on the kernel's command line",
        );
    }
    let missing = &facts.cgroups.missing;
    if !missing.is_empty() {
        let list = join_first(missing.iter().map(String::as_str), MAX_NAMED);
        return CheckFinding::error(
            format!("controllers are missing: {list}"),
            "see cgroup-memory and cgroup-limits of picolet check",
        );
    }
    let Some((path, lacks)) = &facts.kubeadm.kernel else {
        return CheckFinding::error(
            format!(
                "the kernel's configuration is neither in /proc/config.gz nor in /boot/config-{}",
                facts.kernel.release
            ),
            format!("modprobe configs; if the kernel was built without that module: {IGNORE}"),
        );
    };
    if !lacks.is_empty() {
        let list = join_first(lacks.iter().map(String::as_str), MAX_NAMED);
        return CheckFinding::error(
            format!("{path} lacks {list}"),
            format!("boot a kernel with these options; if the board works without them: {IGNORE}"),
        );
    }
    CheckFinding::ok(format!("{path} has all required options"))
}

fn check_kubeadm_hostname(facts: &CheckFacts) -> CheckFinding {
    let name = &facts.wanted.node_name;
    if facts.kubeadm.resolves {
        return CheckFinding::ok(name.clone());
    }
    CheckFinding::warning(
        format!("the name {name} cannot be resolved to an address"),
        format!("echo '127.0.1.1 {name}' >> /etc/hosts"),
    )
}

fn check_kubelet_version(facts: &CheckFacts) -> CheckFinding {
    let fix = "sh install.sh --mode kubeadm, or apt-get install picolet-kubelet";
    let said = &facts.kubeadm.version;
    match &facts.kubeadm.version_error {
        Some(why) => CheckFinding::error(format!("kubelet --version: {why}"), fix),
        None if is_kubelet_version(said) => CheckFinding::ok(said.clone()),
        None => CheckFinding::error(format!("kubelet --version says {said:?}"), fix),
    }
}

/// `Kubernetes v1.36.0`, with a suffix or without (KADM-01).
fn is_kubelet_version(said: &str) -> bool {
    let Some(rest) = said.strip_prefix("Kubernetes v") else {
        return false;
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (numbers, suffix) = rest.split_at(end.unwrap_or(rest.len()));
    let is_number = |n: &str| !n.is_empty() && n.len() < 6;
    numbers.split('.').count() == 3
        && numbers.split('.').all(is_number)
        && suffix
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
}

fn check_kubelet_service(facts: &CheckFacts) -> CheckFinding {
    match facts.kubeadm.enabled {
        None => CheckFinding::ok("nothing manages services here: start the kubelet by hand"),
        Some(true) => CheckFinding::ok("starts with the machine"),
        Some(false) => CheckFinding::warning(
            "the service kubelet does not start with the machine",
            "systemctl enable kubelet",
        ),
    }
}

/// kubeadm looks at the first port only; it waits for the second one later (KADM-11).
fn check_kubelet_port(facts: &CheckFacts) -> CheckFinding {
    let listening = &facts.network.listening;
    let taken = |port: &u16| listening.binary_search(port).is_ok();
    let Some(port) = [PORT, HEALTH_PORT].into_iter().find(taken) else {
        return CheckFinding::ok("10250 and 10248 are free");
    };
    match (&facts.agent, facts.apiserver.is_some()) {
        (AgentReachability::Up(_), false) => CheckFinding::error(
            format!("the standalone picolet of this machine uses port {port}"),
            "systemctl disable --now picolet; kubeadm then starts it as kubelet",
        ),
        (AgentReachability::Up(_), true) => CheckFinding::error(
            format!("picolet uses port {port}, and this machine is a node already"),
            "kubeadm reset; picolet reset --stop",
        ),
        (AgentReachability::Absent | AgentReachability::Mute(_), _) => CheckFinding::error(
            format!("port {port} is taken"),
            format!("ss -ltnp 'sport = :{port}'  (then end that program)"),
        ),
    }
}

fn check_kubeadm_proxy(facts: &CheckFacts) -> CheckFinding {
    if !facts.kubeadm.proxy {
        return CheckFinding::ok("none");
    }
    CheckFinding::warning(
        "HTTPS_PROXY is set: must the control plane be reached through that proxy?",
        "add the addresses of the control plane to NO_PROXY",
    )
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::{super::tests::sound, *};
    use crate::check::FindingLevel;

    /// Everything is as kubeadm wants it.
    fn ready() -> CheckFacts {
        CheckFacts {
            kubeadm: KubeadmFacts {
                version: "Kubernetes v1.36.0+picolet-0.1.0".into(),
                sockets: [SOCKETS[0].to_owned()].into(),
                kernel: Some(("/boot/config-6.12".into(), Vec::new())),
                enabled: Some(true),
                resolves: true,
                ..KubeadmFacts::default()
            },
            agent: AgentReachability::Absent,
            ..sound()
        }
    }

    type Change = fn(&mut CheckFacts);

    /// Rows of the test: change, name of the check that reports it, level, part of the finding, part of the fix.
    #[rustfmt::skip]
    const ROWS: &[(Change, &str, FindingLevel, &str, &str)] = &[
        (|f| f.kubeadm.files = [FILES[0].to_owned()].into(), "FileAvailable--etc-kubernetes-kubelet.conf", FindingLevel::Error, "is, or was, a node", "kubeadm reset"),
        (|f| f.kubeadm.files = [FILES[1].to_owned()].into(), "FileAvailable--etc-kubernetes-bootstrap-kubelet.conf", FindingLevel::Error, "is, or was, a node", "kubeadm reset"),
        (|f| f.kubeadm.files = [FILES[2].to_owned()].into(), "FileAvailable--etc-kubernetes-pki-ca.crt", FindingLevel::Error, "is, or was, a node", "kubeadm reset"),
        // KADM-15
        (|f| f.kubeadm.sockets.clear(), "CRI", FindingLevel::Error, "picolet needs none", "--ignore-preflight-errors=CRI,ContainerRuntimeVersion"),
        (|f| f.kubeadm.sockets.clear(), "ContainerRuntimeVersion", FindingLevel::Error, "picolet needs none", "(1.30: CRI,FileExisting-crictl)"),
        (|f| (f.kubeadm.sockets, f.kubeadm.own_socket) = (Vec::new(), true), "CRI", FindingLevel::Warning, "/run/picolet-cri.sock", "kubeadm join --cri-socket unix:///run/picolet-cri.sock"),
        (|f| f.kubeadm.sockets.push(SOCKETS[1].into()), "CRI", FindingLevel::Error, "several: /run/containerd/containerd.sock, /run/crio/crio.sock", "--cri-socket unix:///run/containerd/containerd.sock"),
        (|f| f.network.ip_forward = false, "FileContent--proc-sys-net-ipv4-ip_forward", FindingLevel::Error, "is off", "net.ipv4.ip_forward=1"),
        (|f| f.kernel.swaps = ["/dev/zram0".to_owned()].into(), "Swap", FindingLevel::Warning, "/dev/zram0 is on", "failSwapOn: false"),
        (|f| f.kubeadm.missing_programs = ["losetup".to_owned()].into(), "FileExisting-losetup", FindingLevel::Error, "losetup", "install mount"),
        (|f| f.kubeadm.missing_programs = ["mount".to_owned()].into(), "FileExisting-mount", FindingLevel::Error, "mount", "install mount"),
        (|f| f.kubeadm.missing_programs = ["cp".to_owned()].into(), "FileExisting-cp", FindingLevel::Error, "cp", "install coreutils"),
        // KADM-12
        (|f| f.cgroups.v2 = false, "SystemVerification", FindingLevel::Error, "version 1", "unified_cgroup_hierarchy"),
        (|f| f.cgroups.missing = ["memory".to_owned()].into(), "SystemVerification", FindingLevel::Error, "missing: memory", "cgroup-memory"),
        (|f| f.kubeadm.kernel = None, "SystemVerification", FindingLevel::Error, "neither in /proc/config.gz nor in /boot/config-6.12.25+rpt-rpi-v8", "--ignore-preflight-errors=SystemVerification"),
        (|f| f.kubeadm.kernel = Some(("/proc/config.gz".into(), ["CONFIG_EXT4_FS".to_owned()].into())), "SystemVerification", FindingLevel::Error, "/proc/config.gz lacks CONFIG_EXT4_FS", "--ignore-preflight-errors=SystemVerification"),
        (|f| f.kubeadm.resolves = false, "Hostname", FindingLevel::Warning, "pi.example cannot be resolved", "/etc/hosts"),
        (|f| f.kubeadm.version = "picolet 0.1.0".into(), "KubeletVersion", FindingLevel::Error, "says \"picolet 0.1.0\"", "--mode kubeadm"),
        (|f| f.kubeadm.version_error = Some("there is no such program".into()), "KubeletVersion", FindingLevel::Error, "no such program", "--mode kubeadm"),
        (|f| f.kubeadm.enabled = Some(false), "Service-kubelet", FindingLevel::Warning, "does not start", "systemctl enable kubelet"),
        // KADM-11
        (|f| f.network.listening = [22, 10_250].into(), "Port-10250", FindingLevel::Error, "port 10250 is taken", "sport = :10250"),
        (|f| f.network.listening = [10_248].into(), "Port-10250", FindingLevel::Error, "port 10248 is taken", "sport = :10248"),
        (|f| { f.network.listening = [10_250].into(); f.agent = sound().agent; }, "Port-10250", FindingLevel::Error, "standalone picolet of this machine uses port 10250", "disable --now picolet"),
        (|f| f.kubeadm.proxy = true, "HTTPProxy", FindingLevel::Warning, "HTTPS_PROXY", "NO_PROXY"),
    ];

    #[test]
    fn the_verdicts_of_kubeadm() {
        // KADM-10 KADM-11 KADM-12
        for (name, finding) in run_kubeadm_checks(&ready()) {
            assert_eq!(finding.level, FindingLevel::Ok, "{name}: {finding:?}");
        }
        for (change, name, level, says, fix) in ROWS {
            let mut facts = ready();
            change(&mut facts);
            let all = run_kubeadm_checks(&facts);
            let bad = |(_, finding): &&(&str, CheckFinding)| finding.level != FindingLevel::Ok;
            let named: Vec<&str> = all.iter().filter(bad).map(|(name, _)| *name).collect();
            assert!(named.contains(name), "{name}: {named:?}");
            // A fault that two checks of kubeadm look at is named by both.
            assert!(
                named.len() == 1 || *name == "CRI" || *name == "ContainerRuntimeVersion",
                "{named:?}"
            );
            let (_, finding) = all.iter().find(|(n, _)| n == name).expect("named");
            assert_eq!(finding.level, *level, "{name}");
            assert!(finding.says.contains(says), "{name}: {}", finding.says);
            assert!(finding.fix.contains(fix), "{name}: {}", finding.fix);
        }
        for (name, _) in KUBEADM {
            let is_first = name == "IsPrivilegedUser";
            assert!(
                is_first || ROWS.iter().any(|row| row.1 == name),
                "{name} has no row"
            );
        }
        // First, and alone.
        let mut facts = ready();
        facts.rights.root = false;
        let all = run_kubeadm_checks(&facts);
        assert_eq!(all.len(), 1);
        assert_eq!(
            (all[0].0, all[0].1.level),
            ("IsPrivilegedUser", FindingLevel::Error)
        );
        // A machine without a service manager is sound, too.
        facts.rights.root = true;
        facts.kubeadm.enabled = None;
        assert!(
            run_kubeadm_checks(&facts)
                .iter()
                .all(|(_, f)| f.level == FindingLevel::Ok)
        );
    }

    #[test]
    fn versions_that_kubeadm_reads() {
        // KADM-01
        for (said, good) in [
            ("Kubernetes v1.36.0", true),
            ("Kubernetes v1.36.0+picolet-0.1.0", true),
            ("Kubernetes v1.36.0-rc.1_x", true),
            ("Kubernetes 1.36.0", false),
            ("Kubernetes v1.36", false),
            ("Kubernetes v1.36.0 (x)", false),
            ("Kubernetes v1..0", false),
            ("v1.36.0", false),
            ("", false),
        ] {
            assert_eq!(is_kubelet_version(said), good, "{said}");
        }
    }
}
