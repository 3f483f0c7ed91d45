//! What a container sees and may do: nothing of the agent's, and of the host and its pod what its manifest says.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::{
    stat::{Mode, SFlag, makedev, mknod},
    statfs::statfs,
};
use serde_json::json;

use crate::dead_share::DeadShare;
use crate::host::{self, Host, IDLE, full, sh, status_of, with};

// SEC-01 SEC-08 RTM-08 RTM-10 RTM-12 CFG-13 CFG-32 CFG-39 CFG-50
#[test]
fn inherits_nothing() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    let run = fs::metadata(host.path("run")).expect("run directory").dev();
    // Init's own descriptors, environment and mounts, read by itself before anything else.
    let look = "ls -l /proc/self/fd 2>/dev/null; echo; tr '\\0' '\\n' < /proc/self/environ; echo; cat /proc/self/mountinfo; echo; \
                grep -E '^(Cap|NoNew|Sig(Blk|Ign)|Groups)' /proc/self/status; echo end";
    host.pod(
        "plain",
        json!({"containers": [sh("main", &format!("{look}; {IDLE}"))]}),
    );
    host.wait_ready("plain");
    let mut log = String::new();
    host.until("it has looked", |host| {
        log = host.ok(&["logs", &full("plain")]);
        (log.ends_with("end\n"), log.clone())
    });
    // The same through exec, whose process has another parent.
    let by_exec = host.exec("plain", "main", look);
    for (how, log) in [("create", &log), ("exec", &by_exec)] {
        let mut parts = log.split("\n\n");
        let mut next = || parts.next().unwrap_or_default();
        let (descriptors, environment, mounts, status) = (next(), next(), next(), next());
        for line in descriptors.lines().filter(|l| l.contains(" -> ")) {
            // Beside the three, only the directory that `ls` itself reads.
            let (number, target) = line.rsplit_once(" -> ").unwrap_or_default();
            let number: u32 = number
                .rsplit(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(u32::MAX);
            let fine = number <= 2 || target.starts_with("/proc/");
            assert!(fine, "{how}: {descriptors}");
            let streams = ["/dev/null", "/stdout", "/stderr", "pipe:", "/proc/"];
            assert!(
                streams.iter().any(|s| target.contains(s)),
                "{how}: {descriptors}"
            );
        }
        let mut names: Vec<&str> = environment
            .lines()
            .filter_map(|l| l.split_once('=').map(|(n, _)| n))
            .collect();
        names.sort_unstable();
        let wanted = ["FROM_IMAGE", "HOSTNAME", "PATH"];
        // The shell adds some of its own to what it passes on.
        names.retain(|n| !["SHLVL", "HOME", "PWD", "OLDPWD", "_"].contains(n));
        assert_eq!(names, wanted, "{how}: {environment}");
        // What can be written: the container's own root, mounts of its own, and four files made for it.
        for line in mounts.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (root, point, options) = (words[3], words[4], words[5]);
            // On cgroup v1 the hierarchies are read-only; the empty directory between them is the container's.
            let mounts_of_its_own = [
                "/",
                "/dev",
                "/dev/pts",
                "/dev/shm",
                "/dev/mqueue",
                "/proc",
                "/sys/fs/cgroup",
            ];
            let files = [
                "/etc/hosts",
                "/etc/hostname",
                "/etc/resolv.conf",
                "/dev/termination-log",
            ];
            let mask = point.starts_with("/proc/") && ["/", "/null"].contains(&root);
            let own =
                mask || root == "/" && mounts_of_its_own.contains(&point) || files.contains(&point);
            let read_only = options.split(',').any(|o| o == "ro");
            assert!(own || read_only, "{how}: {line}\n{mounts}");
            // Nothing of it is in the memory that records and sockets of all pods need.
            let (major, minor) = words[2].split_once(':').unwrap_or_default();
            let device = makedev(
                major.parse().expect("device"),
                minor.parse().expect("device"),
            );
            assert!(read_only || device != run, "{how}: {line}");
            // Nothing mounted inside comes out; what the host mounts reaches no volume.
            let slave = line.contains(" master:") && point != "/";
            assert!(!line.contains(" shared:") && !slave, "{how}: {line}");
        }
        assert!(
            status.contains("CapEff:\t00000000a80425fb"),
            "{how}: {status}"
        );
        assert!(
            status.contains("CapBnd:\t00000000a80425fb"),
            "{how}: {status}"
        );
        assert!(
            status.contains("CapAmb:\t0000000000000000"),
            "{how}: {status}"
        );
        assert!(
            status.contains("SigBlk:\t0000000000000000"),
            "{how}: {status}"
        );
        assert!(
            !log.contains("agent-secret") && !log.contains("AGENT_SECRET"),
            "{how}"
        );
    }
    // As under other runtimes the three files can be written; it is the disk that they fill, and they go with the pod.
    for file in ["hostname", "hosts", "resolv.conf"] {
        let script = format!("head -c 3000000 /dev/zero >> /etc/{file} && stat -c %s /etc/{file}");
        let size: u64 = host
            .exec("plain", "main", &script)
            .trim()
            .parse()
            .expect("a size");
        assert!(size > 3_000_000, "{file}: {size}");
    }
    let filled = statfs(&host.path("run")).expect("statfs");
    let used = (filled.blocks() - filled.blocks_free())
        * u64::try_from(filled.block_size()).expect("size");
    assert!(used < 3_000_000, "{used} bytes in the run directory");
    // Namespaces of its own; those of its pod are not the host's.
    let pid = host.pid("plain", "main");
    for kind in ["mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let link = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).expect("namespace");
        // cgroup v1 gives no namespace of cgroups by default.
        if kind != "cgroup" {
            assert_ne!(link(&pid.to_string()), link("self"), "{kind}");
        }
    }
    // Neither its init nor its shim holds anything of the agent.
    let agent_files = host.path("root");
    let (init, shim) = {
        let pod = host.get("plain");
        host.pids_of(
            status_of(&pod, "main")["containerID"]
                .as_str()
                .unwrap_or_default(),
        )
    };
    for pid in [init, shim] {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors") {
            let target = fs::read_link(entry.expect("entry").path()).unwrap_or_default();
            assert!(
                !target.starts_with(&agent_files),
                "{pid}: {}",
                target.display()
            );
            assert!(!target.ends_with("picolet.sock") && !target.ends_with("picolet.lock"));
        }
        let environ = fs::read(format!("/proc/{pid}/environ")).expect("environment");
        assert!(!host::text(&environ).contains("agent-secret"), "{pid}");
    }
    host.finish();
}

// CFG-13 CFG-20 RTM-12 STAT-32 SEC-01 SEC-02 SEC-03 SEC-04 SEC-06 RTM-10 RTM-11 VOL-13 VOL-15 VOL-21 VOL-23 VOL-24 VOL-25
#[test]
fn security_and_namespaces() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    host.pod(
        "on-host",
        json!({"hostNetwork": true, "containers": [sh("main", IDLE)]}),
    );
    host.pod(
        "together",
        json!({"shareProcessNamespace": true, "containers": [sh("one", IDLE), sh("two", "sleep 4321")]}),
    );
    let volumes = json!([
        {"name": "data", "mountPath": "/data"},
        {"name": "data", "mountPath": "/part", "subPath": "a/b"},
        {"name": "host", "mountPath": "/host", "readOnly": true},
        {"name": "made", "mountPath": "/made"},
        {"name": "memory", "mountPath": "/memory"}
    ]);
    host.pod(
        "strict",
        json!({
            "securityContext": {
                "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000],
                "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}
            },
            "containers": [with(sh("main", IDLE), json!({
                "securityContext": {
                    "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]}
                },
                "volumeMounts": volumes
            }))],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
                {"name": "host", "hostPath": {"path": host.path("shared"), "type": "Directory"}},
                {"name": "made", "hostPath": {"path": host.path("shared/made"), "type": "DirectoryOrCreate"}}
            ]
        }),
    );
    // It is plugged in while the agent runs.
    let late = Plugged::new("picolet-test-late");
    host.pod(
        "mighty",
        json!({"containers": [with(sh("main", IDLE), json!({"securityContext": {"privileged": true}}))]}),
    );
    host.pod(
        "absent-path",
        json!({
            "containers": [with(sh("main", IDLE), json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}))],
            "volumes": [{"name": "v", "hostPath": {"path": host.path("shared/absent"), "type": "File"}}]
        }),
    );

    let pod = host.wait_ready("on-host");
    assert_eq!(pod["status"]["podIP"], pod["status"]["hostIP"]);
    let pid = host.pid("on-host", "main");
    for file in ["hostname", "hosts", "resolv.conf"] {
        let inode = |path: String| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
        let own = inode(format!("/proc/{pid}/root/etc/{file}"));
        assert_ne!(own, inode(format!("/etc/{file}")), "the machine's {file}");
    }
    for (kind, hosts) in [("net", true), ("uts", true), ("ipc", false), ("pid", false)] {
        let link = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).expect("namespace");
        assert_eq!(link(&pid.to_string()) == link("self"), hosts, "{kind}");
    }

    host.wait_ready("together");
    let seen = host.exec("together", "one", "ps");
    assert!(
        seen.contains("sleep 4321") && seen.contains("sleep 1000"),
        "{seen}"
    );
    host.exec("together", "one", "kill $(pidof sleep)");

    let strict = host.wait_ready("strict");
    // SEC-13
    let user = &status_of(&strict, "main")["user"]["linux"];
    assert_eq!((&user["uid"], &user["gid"]), (&json!(1000), &json!(2000)));
    let groups = user["supplementalGroups"].as_array().expect("groups");
    assert!(
        [3000, 4000].iter().all(|g| groups.contains(&json!(g))),
        "{user}"
    );
    for (script, wanted) in [
        ("id -u; id -g; id -G", "1000\n2000\n2000 3000 4000\n"),
        ("touch /x 2>/dev/null; echo $?", "1\n"),
        (
            "touch /data/x; stat -c %g /data/x; stat -c %a /data",
            "3000\n2777\n",
        ),
        ("touch /part/y; ls /data/a/b", "y\n"),
        ("touch /host/x 2>/dev/null; echo $?", "1\n"),
        (
            "stat -f -c %T /memory; df -m /memory | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2",
            "tmpfs\n4\n",
        ),
        (
            "grep -c '^Cap[A-Z][a-z]*:.0000000000000000$' /proc/self/status",
            "5\n",
        ),
        ("grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\n"),
        ("grep '^Seccomp:' /proc/self/status", "Seccomp:\t2\n"),
        ("unshare -U true 2>/dev/null; echo $?", "1\n"),
    ] {
        let said = host.exec("strict", "main", script);
        assert_eq!(said, wanted, "{script}");
    }
    assert!(host.path("shared/made").is_dir());
    // The files made for a container are part of its root: read-only with it.
    for file in ["hostname", "hosts", "resolv.conf"] {
        let script = format!("echo x 2>/dev/null >> /etc/{file}; echo $?");
        assert_eq!(host.exec("strict", "main", &script), "1\n", "{file}");
    }

    host.wait_ready("mighty");
    let look = format!(
        "cat /proc/self/status; mount -t tmpfs none /tmp && echo mounted; test -c {} && echo late",
        late.0.display()
    );
    let status = host.exec("mighty", "main", &look);
    assert!(
        status.contains("Seccomp:\t0") && status.ends_with("mounted\nlate\n"),
        "{status}"
    );
    host.until("the path is missed", |host| {
        let log = host.agent_log();
        (log.contains("hostPath type check failed:"), log)
    });
    let waits = host.get("absent-path");
    assert_eq!(waits["status"]["phase"], "Pending");
    fs::write(host.path("shared/absent"), "").expect("file");
    host.wait_ready("absent-path");
    host.finish();
}

/// A node of the machine, which goes with this.
struct Plugged(PathBuf);

impl Plugged {
    fn new(name: &str) -> Self {
        let path = Path::new("/dev").join(format!("{name}-{}", std::process::id()));
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        mknod(&path, SFlag::S_IFCHR, mode, makedev(1, 3)).expect("node");
        Self(path)
    }
}

impl Drop for Plugged {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

// VOL-15 VOL-24
#[test]
fn a_server_that_is_gone_holds_up_its_own_pods_only() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    let dir = host.path("shared/gone");
    let Some(share) = DeadShare::mount(&dir) else {
        host.finish();
        return;
    };
    let pod = |name: &str, path: &Path, kind: &str, sub_path: &str| {
        host.pod(
            name,
            json!({
                "containers": [with(sh("main", IDLE), json!({
                    "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": sub_path}]
                }))],
                "volumes": [{"name": "v", "hostPath": {"path": path, "type": kind}}]
            }),
        );
    };
    pod("typed", &dir.join("x"), "Directory", "");
    pod("plain", &dir.join("x"), "", "");
    pod("part", &dir, "", "x");
    host.pod("other", json!({"containers": [sh("main", IDLE)]}));
    host.wait_ready("other");
    for name in ["typed", "plain", "part"] {
        let name = full(name);
        host.until("it is told", |host| {
            let log = host.agent_log();
            let is_told = |line: &str| line.contains(&name) && line.contains("do not answer");
            (log.lines().any(is_told), log)
        });
    }
    // Whoever hangs gets an error.
    drop(share);
    host.finish();
}

// DIR-01
#[test]
fn directories() {
    if !host::able() {
        return;
    }
    let mut host = Host::new(&[]);
    for dir in ["root", "logs", "links"] {
        fs::remove_dir(host.path(dir)).expect("removed");
    }
    host.start_agent();
    let mode = |dir: &str| {
        let found = fs::metadata(host.path(dir)).unwrap_or_else(|e| panic!("{dir}: {e}"));
        found.mode() & 0o7777
    };
    for (dir, expected) in [
        ("root", 0o750),
        ("root/pods", 0o750),
        ("logs", 0o750),
        ("links", 0o755),
    ] {
        assert_eq!(mode(dir), expected, "{dir}: {:o}", mode(dir));
    }
    // What is mounted below it is seen where its mounts were copied to.
    let root = host.path("root").display().to_string();
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let point = |line: &&str| line.split(' ').nth(4).unwrap_or_default().to_owned();
    let over = table.lines().filter(|line| {
        let point = point(line);
        root == point || root.starts_with(&format!("{}/", point.trim_end_matches('/')))
    });
    let nearest = over.max_by_key(|line| point(line).len()).expect("a mount");
    assert!(nearest.contains(" shared:"), "{nearest}");
    host.pod("a", json!({"containers": [sh("main", IDLE)]}));
    host.import();
    host.wait_ready("a");
    host.finish();
}

// RES-01 RES-02 RES-03 RES-04 RES-09 RES-10 RES-11 CG-02 CG-07 RTM-05 RTM-17 WAIT-20 TMSG-01 OOMW-04
#[test]
fn resources() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    let limits = json!({"cpu": "250m", "memory": "64Mi"});
    host.pod(
        "guaranteed",
        json!({"containers": [with(sh("main", IDLE), json!({"resources": {"limits": limits}}))]}),
    );
    host.pod(
        "burstable",
        json!({"containers": [with(sh("main", IDLE), json!({"resources": {"requests": {"cpu": "100m"}}}))]}),
    );
    host.pod("besteffort", json!({"containers": [sh("main", IDLE)]}));
    host.pod(
        "hungry",
        json!({
            "restartPolicy": "Never",
            "containers": [with(sh("main", "echo last words > /dev/termination-log; exec tail /dev/zero"), json!({"resources": {"limits": {"memory": "16Mi"}}}))]
        }),
    );
    // Processes beside the one that takes the memory.
    let crowd = "sleep 1000 & sh -c 'tail /dev/zero'; kill $!; exit 9";
    host.pod(
        "crowd",
        json!({
            "restartPolicy": "Never",
            "containers": [with(sh("main", crowd), json!({"resources": {"limits": {"memory": "24Mi"}}}))]
        }),
    );
    for (name, class, tier, shares, adj) in [
        ("guaranteed", "Guaranteed", "", 256, -997),
        ("burstable", "Burstable", "burstable/", 102, 999),
        ("besteffort", "BestEffort", "besteffort/", 2, 1000),
    ] {
        let pod = host.wait_ready(name);
        assert_eq!(pod["status"]["qosClass"], class);
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let pid = host.pid(name, "main");
        let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("cgroups");
        let parent = format!("/kubepods/{tier}pod{uid}/");
        assert!(own.contains(&parent), "{name}: {own}");
        let read = |controller: &str, file: &str| cgroup_file(&own, controller, file);
        if let Some(found) = read("cpu", "cpu.shares") {
            assert_eq!(found, shares.to_string(), "{name}");
        }
        if name == "guaranteed" {
            // Each hierarchy has its own words for the same limits.
            let quota = read("cpu", "cpu.cfs_quota_us").or_else(|| read("", "cpu.max"));
            assert!(
                quota.as_deref().is_some_and(|q| q.starts_with("25000")),
                "{quota:?}"
            );
            let memory = read("memory", "memory.limit_in_bytes").or_else(|| read("", "memory.max"));
            assert_eq!(memory.as_deref(), Some("67108864"));
        }
        // Without CAP_SYS_RESOURCE no process may be given less than its parent has.
        let found = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("score");
        let own = fs::read_to_string("/proc/self/oom_score_adj").expect("score");
        let (found, own): (i32, i32) = (
            found.trim().parse().expect("a number"),
            own.trim().parse().expect("a number"),
        );
        assert!(found == adj || adj < own && found == own, "{name}: {found}");
    }
    let pod = host.wait_phase("hungry", "Failed");
    let end = &status_of(&pod, "main")["state"]["terminated"];
    assert_eq!(end["exitCode"], 137, "{end}");
    assert_eq!(end["reason"], "OOMKilled", "{end}");
    assert_eq!(end["message"], "last words\n", "{end}");
    // With cgroup v2 all of them are killed together.
    let own = fs::read_to_string("/proc/self/cgroup").expect("cgroups");
    let is_v1 = own.lines().any(|line| line.contains(":memory:"));
    let pod = host.wait_phase("crowd", "Failed");
    let end = &status_of(&pod, "main")["state"]["terminated"];
    assert_eq!(end["exitCode"], if is_v1 { 9 } else { 137 }, "{end}");
    assert_eq!(end["reason"], "OOMKilled", "{end}");
    host.finish();
}

/// A file system in memory, mounted on a directory of the machine; gone at the end.
struct Below(PathBuf);

impl Below {
    fn new(at: PathBuf) -> Self {
        fs::create_dir_all(&at).expect("directory");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(&at)
            .status();
        assert!(mount.expect("mount").success());
        Self(at)
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn read_only_with_all_that_is_mounted_below() {
    // RRO-02 CFG-34 STAT-28 VOL-23
    if !host::able() {
        return;
    }
    let mut host = Host::new(&[]);
    let below = Below::new(host.path("shared/sub"));
    host.start_agent();
    host.import();
    let modes = ["IfPossible", "Enabled", "Disabled"];
    let container = |mode: &&str| {
        let mount =
            json!({"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": mode});
        with(
            sh(&mode.to_lowercase(), IDLE),
            json!({"volumeMounts": [mount]}),
        )
    };
    host.pod(
        "below",
        json!({
            "containers": modes.iter().map(container).collect::<Vec<_>>(),
            "volumes": [{"name": "v", "hostPath": {"path": host.path("shared")}}]
        }),
    );
    let pod = host.wait_ready("below");
    for mode in modes {
        let (name, below) = (mode.to_lowercase(), mode == "Disabled");
        let shown = &status_of(&pod, &name)["volumeMounts"][0]["recursiveReadOnly"];
        assert_eq!(shown, if below { "Disabled" } else { "Enabled" }, "{mode}");
        for (path, writable) in [("/v/x", false), ("/v/sub/x", below)] {
            let command = format!("touch {path} 2>/dev/null && echo written || echo refused");
            let expected = if writable { "written\n" } else { "refused\n" };
            assert_eq!(
                host.exec("below", &name, &command),
                expected,
                "{mode} {path}"
            );
        }
    }
    // What the host mounts now does not appear in containers that run.
    let late = Below::new(host.path("shared/late"));
    fs::write(host.path("shared/late/file"), "").expect("file");
    for mode in modes {
        let seen = host.exec("below", &mode.to_lowercase(), "ls /v/late");
        assert_eq!(seen, "", "{mode}");
    }
    drop((below, late));
    host.finish();
}

#[test]
fn a_host_name_in_place_of_all_others() {
    // HNO-01 CFG-20
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    let name = format!("licence.{}.example", "x".repeat(48));
    assert_eq!(name.len(), 64);
    host.pod(
        "licensed",
        json!({
            "hostnameOverride": name, "hostname": "other", "subdomain": "sub",
            "containers": [sh("main", IDLE)],
        }),
    );
    host.wait_ready("licensed");
    for command in ["hostname", "hostname -f", "cat /proc/sys/kernel/hostname"] {
        let said = host.exec("licensed", "main", command);
        assert_eq!(said.trim(), name, "{command}");
    }
    let hosts = host.exec("licensed", "main", "tail -n 1 /etc/hosts");
    let words: Vec<&str> = hosts.split_whitespace().skip(1).collect();
    assert_eq!(words, [name.as_str()], "{hosts}");
    host.finish();
}

/// A file of a process' cgroup in the hierarchy of `controller` (empty: the unified one).
fn cgroup_file(own: &str, controller: &str, file: &str) -> Option<String> {
    let top = Path::new("/sys/fs/cgroup");
    own.lines().find_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        let (controllers, path) = (words.next()?, words.next()?);
        let hierarchy = match controllers {
            "" if top.join("cgroup.controllers").exists() => top.to_path_buf(),
            "" => top.join("unified"),
            _ => top.join(controllers),
        };
        let mine = controllers.split(',').any(|c| c == controller);
        let file = hierarchy.join(path.trim_start_matches('/')).join(file);
        let text = fs::read_to_string(file).ok().filter(|_| mine)?;
        Some(text.trim().to_owned())
    })
}

// LOG-01 LOG-06 LOG-07 RTM-07
#[test]
fn rotation_loses_nothing() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[
        "--container-log-max-size",
        "100Ki",
        "--container-log-max-files",
        "50",
    ]);
    // About 200 KiB a second, until it is told to end.
    let chatty = "trap 'echo last $n; exit 0' TERM; n=0; \
                  while :; do n=$((n+1)); echo $n; case $n in *00) usleep 10000;; esac; done";
    let mut pod = host::manifest("chatty", json!({"containers": [sh("main", chatty)]}));
    pod["spec"]["terminationGracePeriodSeconds"] = 10.into();
    host.write("chatty.yaml", &pod.to_string());
    let pod = host.wait_ready("chatty");
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let dir = host
        .path("logs")
        .join(format!("default_{}_{uid}", full("chatty")))
        .join("main");
    let files = || -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    host.until("two rotations", |_| {
        let names = files();
        (
            names.iter().filter(|n| n.starts_with("0.log.")).count() >= 2,
            format!("{names:?}"),
        )
    });
    // The reader of the live file goes on across a rotation; now the container falls silent.
    let pid = host.pid("chatty", "main");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGSTOP,
    )
    .expect("stop");
    // The older files are compressed at the agent's next look.
    host.until("all but the newest are compressed", |_| {
        let names = files();
        let rotated = names.iter().filter(|n| n.starts_with("0.log."));
        let plain = rotated.filter(|n| !n.ends_with(".gz")).count();
        (plain == 1, format!("{names:?}"))
    });
    // All that was said is in the files once the shim has drained the pipe.
    let mut all = String::new();
    let mut numbers = 0;
    host.until("every line is there", |_| {
        let names = files();
        let mut before: Vec<&String> = names.iter().filter(|n| n.starts_with("0.log.")).collect();
        before.sort();
        all.clear();
        for name in before.into_iter().map(String::as_str).chain(["0.log"]) {
            let bytes = fs::read(dir.join(name)).unwrap_or_default();
            let bytes = if name.ends_with(".gz") {
                unzip(&bytes)
            } else {
                bytes
            };
            all.push_str(&host::text(&bytes));
        }
        let count = all.lines().count();
        let still = count == numbers && count > 0;
        numbers = count;
        (still, format!("{count} lines in {names:?}"))
    });
    for (at, line) in all.lines().enumerate() {
        let said = line.rsplit(' ').next();
        assert_eq!(
            said,
            Some((at + 1).to_string().as_str()),
            "line {}: {line}",
            at + 1
        );
    }
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGCONT,
    )
    .expect("go on");
    host.finish();
}

fn unzip(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(bytes), &mut text)
        .expect("gzip");
    text
}
