//! What is installed as a service: units of systemd, scripts of OpenRC. Asserted on the files that are shipped, and on a process
//! that is started as a unit would start it.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

use std::{collections::BTreeMap, fs, path::Path, process::Command};

const AGENTS: [&str; 2] = ["picolet.service", "kubelet.service"];

/// Values by directive, of all lines of a unit.
fn unit(name: &str) -> BTreeMap<String, Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("systemd")
        .join(name);
    let text = fs::read_to_string(path).expect(name);
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some((directive, value)) = line.split_once('=') {
            all.entry(directive.into()).or_default().push(value.into());
        }
    }
    all
}

fn words(unit: &BTreeMap<String, Vec<String>>, directive: &str) -> Vec<String> {
    let values = unit.get(directive).into_iter().flatten();
    values
        .flat_map(|value| value.split_whitespace().map(str::to_owned))
        .collect()
}

#[test]
fn no_unit_shuts_the_agent_or_its_containers_in() {
    // SVC-01
    const NAMESPACE: [&str; 14] = [
        "PrivateDevices",
        "PrivateTmp",
        "ProtectSystem",
        "ProtectHome",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ProtectControlGroups",
        "LogNamespace",
        "ReadWritePaths",
        "ReadOnlyPaths",
        "InaccessiblePaths",
        "TemporaryFileSystem",
        "BindPaths",
        "RootDirectory",
    ];
    // Containers inherit these: see `containers_inherit_nothing_of_the_unit` in tests/host.
    const INHERITED: [&str; 11] = [
        "RestrictAddressFamilies",
        "SystemCallFilter",
        "SystemCallArchitectures",
        "RestrictSUIDSGID",
        "LockPersonality",
        "RestrictRealtime",
        "MemoryDenyWriteExecute",
        "ProtectClock",
        "ProtectHostname",
        "NoNewPrivileges",
        "CapabilityBoundingSet",
    ];
    for name in AGENTS {
        let unit = unit(name);
        for directive in NAMESPACE.iter().chain(&INHERITED) {
            assert!(!unit.contains_key(*directive), "{name}: {directive}");
        }
        assert_eq!(words(&unit, "PrivateMounts"), ["no"], "{name}");
        // Only with Preserve=yes: a stop would remove what pods have there.
        let keeps = words(&unit, "RuntimeDirectoryPreserve") == ["yes"];
        assert!(keeps || !unit.contains_key("RuntimeDirectory"), "{name}");
    }
}

#[test]
fn a_mount_namespace_of_its_own_stops_the_agent() {
    // SVC-01
    if !nix::unistd::geteuid().is_root() {
        skipped!("a_mount_namespace_of_its_own_stops_the_agent: not root");
        return;
    }
    // It compares itself with PID 1, which here is a shell. Should it go on, it has no place to do so.
    let script = format!(
        "unshare --mount {} run --run-dir /proc/none --root-dir /proc/none; exit $?",
        env!("CARGO_BIN_EXE_picolet")
    );
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script])
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("runs in a mount namespace of its own"),
        "{said}"
    );
}

#[test]
fn units_start_after_disks_and_never_after_time_sync() {
    // SVC-04
    for name in AGENTS {
        let unit = unit(name);
        let after = words(&unit, "After");
        for target in [
            "local-fs.target",
            "remote-fs.target",
            "time-set.target",
            "network-online.target",
        ] {
            assert!(after.iter().any(|word| word == target), "{name}: {target}");
        }
        assert!(
            words(&unit, "Wants").contains(&"network-online.target".to_owned()),
            "{name}"
        );
        for directive in ["After", "Wants", "Requires", "BindsTo"] {
            let named = words(&unit, directive);
            assert!(
                !named.iter().any(|word| word == "time-sync.target"),
                "{name}"
            );
        }
        // What is wanted only may fail.
        assert!(
            !unit.contains_key("Requires") && !unit.contains_key("BindsTo"),
            "{name}"
        );
        assert_eq!(words(&unit, "Type"), ["notify"], "{name}");
    }
}

#[test]
fn a_trial_begins_when_the_agent_may_start() {
    // SVC-04 PKG-21
    let trial = words(&unit("picolet-upgrade.service"), "After");
    for name in AGENTS {
        // The time that a new program has does not pass while the agent waits for the link.
        for target in words(&unit(name), "After") {
            assert!(trial.contains(&target), "{name}: {target}");
        }
        // One that hangs at its start is judged, too.
        assert!(!trial.contains(&name.to_owned()), "{name}");
        let wants = words(&unit(name), "Wants");
        assert!(
            wants.contains(&"picolet-upgrade.service".to_owned()),
            "{name}"
        );
    }
    // Under OpenRC who watches is started by what starts the agent, after that.
    for name in ["picolet", "kubelet"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/openrc");
        let text = fs::read_to_string(path.join(name)).expect(name);
        let after = text.split("start_post() {").nth(1).expect(name);
        assert!(after.contains("upgrade --watch"), "{name}");
    }
}

#[test]
fn a_unit_of_its_own_ends_the_pods() {
    // SVC-06
    let pods = unit("picolet-pods.service");
    for agent in AGENTS {
        assert!(words(&pods, "After").contains(&agent.to_owned()), "{agent}");
        let unit = unit(agent);
        assert!(
            words(&unit, "Wants").contains(&"picolet-pods.service".to_owned()),
            "{agent}"
        );
        // A stop or restart of the agent ends nothing but it.
        assert_eq!(words(&unit, "KillMode"), ["process"], "{agent}");
        assert!(
            !unit.contains_key("ExecStop") && !unit.contains_key("ExecStopPost"),
            "{agent}"
        );
    }
    for directive in [
        "Requires",
        "Requisite",
        "BindsTo",
        "PartOf",
        "PropagatesStopTo",
    ] {
        assert!(!pods.contains_key(directive), "{directive}");
    }
    assert_eq!(pods["ExecStop"], ["/usr/local/bin/picolet stop --shutdown"]);
    assert_eq!(words(&pods, "RemainAfterExit"), ["yes"]);
    // systemd's default conflict with shutdown.target stops it.
    assert!(!pods.contains_key("DefaultDependencies"));
}

#[test]
fn an_agent_that_was_told_to_stop_stays_ended() {
    // KADM-05
    for name in AGENTS {
        assert_eq!(words(&unit(name), "Restart"), ["on-failure"], "{name}");
    }
}

/// What OpenRC reads of a script, by a shell that runs it as far as that.
fn openrc(name: &str) -> (String, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("systemd/openrc")
        .join(name);
    let script = format!(
        "need() {{ echo need $*; }}; want() {{ echo want $*; }}; after() {{ echo after $*; }}; use() {{ echo use $*; }}
         ebegin() {{ :; }}; eend() {{ return $1; }}; . {0}; depend >&2
         echo $supervisor $respawn_delay $respawn_max $rc_cgroup_cleanup $command; type stop 2>/dev/null | grep /usr",
        path.display()
    );
    let output = Command::new("sh")
        .args(["-c", &script])
        .output()
        .expect("sh");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn scripts_of_openrc_keep_the_agent_running_and_end_pods_first() {
    // SVC-07
    for name in ["picolet", "kubelet"] {
        let (set, depends) = openrc(name);
        let wanted = "supervise-daemon 5 0 no /usr/local/lib/picolet/guard";
        assert_eq!(set.lines().next(), Some(wanted), "{name}");
        assert!(
            depends.contains("want cgroups\n") && depends.contains("after net "),
            "{depends}"
        );
    }
    // The log is turned over in place: the supervisor keeps it open.
    let read = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/openrc");
        fs::read_to_string(path.join(name)).expect(name)
    };
    let rotation = read("logrotate");
    assert!(rotation.contains("\n    copytruncate\n"));
    let log = rotation.lines().find_map(|line| line.strip_suffix(" {"));
    let log = log.expect("a log");
    for name in ["picolet", "kubelet"] {
        for kind in ["output", "error"] {
            let line = format!("\n{kind}_log={log}\n");
            assert!(read(name).contains(&line), "{name}: {line}");
        }
    }
    let (_, depends) = openrc("picolet-pods");
    assert!(depends.starts_with("after picolet kubelet "), "{depends}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/openrc/picolet-pods");
    let text = fs::read_to_string(path).expect("script");
    let stop = text.split("stop() {").nth(1).expect("stop");
    assert!(stop.contains("picolet stop --shutdown"));
}

#[test]
fn what_is_asked_of_a_runtime_is_answered_outside_the_agent() {
    // KADM-16
    let socket = unit("picolet-cri.socket");
    assert_eq!(words(&socket, "ListenStream"), ["/run/picolet-cri.sock"]);
    assert_eq!(words(&socket, "SocketMode"), ["0600"]);
    assert_eq!(words(&socket, "WantedBy"), ["sockets.target"]);
    let service = unit("picolet-cri.service");
    assert_eq!(service["ExecStart"], ["/usr/local/bin/picolet cri"]);
    assert_eq!(words(&service, "KillMode"), ["process"]);
    // A stop of the agent does not end it, and it starts no agent.
    for directive in ["PartOf", "BindsTo", "Wants", "WantedBy"] {
        assert!(!service.contains_key(directive), "{directive}");
    }
    assert_eq!(words(&service, "Requires"), ["picolet-cri.socket"]);
    for agent in AGENTS {
        assert!(
            !unit(agent)
                .values()
                .flatten()
                .any(|v| v.contains("picolet-cri")),
            "{agent}"
        );
    }
}

#[test]
fn the_boot_partition_is_read_before_the_agent_and_the_join_waits_for_nobody() {
    // PKG-11
    let take = unit("picolet-first-boot.service");
    assert_eq!(
        words(&take, "Before"),
        ["picolet.service", "picolet-join.service"]
    );
    assert!(
        take["ConditionPathExists"]
            .iter()
            .all(|path| path.starts_with("|/boot/"))
    );
    // No network: an agent must not wait for one.
    assert!(
        !words(&take, "After")
            .iter()
            .any(|word| word.starts_with("network"))
    );
    let join = unit("picolet-join.service");
    assert_eq!(
        words(&join, "ConditionPathExists"),
        ["/etc/picolet/first-boot.join"]
    );
    assert_eq!(words(&join, "Restart"), ["on-failure"]);
    assert!(words(&join, "After").contains(&"network-online.target".to_owned()));
    assert!(!join.contains_key("Before"));
}

#[test]
fn units_without_containers_are_shut_in() {
    // SVC-09
    const BOTH: [(&str, &str); 15] = [
        ("UMask", "0077"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("ProtectKernelTunables", "yes"),
        ("ProtectKernelModules", "yes"),
        ("ProtectKernelLogs", "yes"),
        ("ProtectControlGroups", "yes"),
        ("ProtectHostname", "yes"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", "CAP_DAC_OVERRIDE"),
        ("RestrictSUIDSGID", "yes"),
        ("RestrictNamespaces", "yes"),
        ("LockPersonality", "yes"),
        ("RestrictRealtime", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
    ];
    let take = unit("picolet-first-boot.service");
    let join = unit("picolet-join.service");
    for unit in [&take, &join] {
        for (directive, value) in BOTH {
            assert_eq!(words(unit, directive), [value], "{directive}");
        }
        // As on an older kernel, so that programs go another way.
        assert_eq!(words(unit, "SystemCallErrorNumber"), ["ENOSYS"]);
    }
    assert_eq!(words(&take, "ProtectSystem"), ["strict"]);
    // The directory of the configuration may be a link to another disk.
    assert_eq!(
        words(&take, "ReadWritePaths"),
        ["/etc", "-/etc/picolet", "-/etc/picolet/config.d", "-/boot"]
    );
    assert_eq!(words(&take, "ProtectClock"), ["yes"]);
    assert_eq!(words(&take, "SystemCallFilter"), ["@system-service"]);
    // It asks whether the clock is kept right, which ProtectClock would refuse.
    assert!(!join.contains_key("ProtectClock"));
    assert_eq!(
        words(&join, "SystemCallFilter"),
        [
            "@system-service",
            "adjtimex",
            "clock_adjtime",
            "clock_adjtime64"
        ]
    );
    assert_eq!(words(&take, "ProtectHome"), ["read-only"]);
    assert_eq!(words(&take, "PrivateNetwork"), ["yes"]);
    // The root directory may be anywhere, also below /home. ProtectSystem would shut the boot partition, which
    // ReadWritePaths does not open again.
    assert_eq!(
        words(&join, "ReadOnlyPaths"),
        ["/usr", "-/bin", "-/sbin", "-/lib", "-/opt"]
    );
    for directive in ["ProtectSystem", "ProtectHome"] {
        assert!(!join.contains_key(directive), "{directive}");
    }
    // It asks the service manager to restart the agent.
    let families = words(&join, "RestrictAddressFamilies");
    assert!(families.contains(&"AF_UNIX".to_owned()), "{families:?}");
}

#[test]
fn systemd_reads_the_units_that_are_shut_in() {
    // SVC-09
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        skipped!("systemd_reads_the_units_that_are_shut_in: no systemd-analyze");
        return;
    }
    for name in ["picolet-first-boot", "picolet-join"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("systemd/{name}.service"));
        // Exposure from 0 to 10, times ten, of what holds without asking a service manager.
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=35"])
            .arg(&path)
            .output()
            .expect("systemd-analyze");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {output:?}");
        assert!(said.contains("Overall exposure level"), "{said}");
        // Nothing that it does not know or cannot read.
        let unread = String::from_utf8_lossy(&output.stderr);
        assert!(!unread.contains("ignoring"), "{unread}");
    }
}
