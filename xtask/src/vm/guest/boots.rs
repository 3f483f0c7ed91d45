//! The checks of the two boots, in order.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    thread,
};

use super::{
    Guest, LIMIT, call, container_id, expect,
    facts::{TREE, groups, http, inits, members, memory, mounts, shims, text, unit, veths},
    pod, pods, wait_running,
};
use crate::{
    Failure,
    stage::IMAGE,
    vm::{
        disk::{HOSTNAME, PAYLOAD, UNITS},
        manifests::{self, CROWD, DEFAULT_PROFILE, HOST_PORT, PROFILE},
        report::Line,
    },
    wait::until,
};

const MANIFESTS: &str = "/etc/picolet/manifests";
const STATE: &str = "/var/lib/picolet";
const MIB: u64 = 1 << 20;
/// `podPidsLimit` of this machine.
const PIDS: u64 = 128;
/// What is kept from pods, processor time aside.
const RESERVED_MIB: u64 = 16;
const RESERVED_PIDS: u64 = 100;
/// Pods that come and go until the power is cut.
const CHURN: u32 = 6;

/// A new machine, up to the churn in which its power is cut.
pub(super) fn fresh(guest: &mut Guest) {
    guest.step("The machine is what a board is", machine);
    guest.step("Installed as the README says", install);
    guest.step(
        "systemctl start waits until it is ready (Type=notify)",
        || {
            call(&["systemctl", "enable", "--now", "picolet"])?;
            expect("ActiveState", &unit("ActiveState")?, &"active".into())?;
            call(&["picolet", "get", "node"])?;
            call(&["systemctl", "is-active", "picolet-pods"])?;
            Ok(format!("main process {}", unit("MainPID")?))
        },
    );
    guest.step("An image dropped as a file is imported", || {
        fs::create_dir_all(format!("{STATE}/import"))?;
        fs::copy(
            format!("{PAYLOAD}/image.tar"),
            format!("{STATE}/import/busybox.tar"),
        )?;
        until(LIMIT, || {
            let images = call(&["picolet", "get", "images"])?;
            let name = IMAGE.rsplit_once(':').map_or(IMAGE, |(name, _)| name);
            if images.contains(name) {
                Ok(name.to_owned())
            } else {
                Err(format!("get images shows {images:?}").into())
            }
        })
    });
    guest.step(
        "AppArmor: what our profile denies, and what it does not",
        profile_rules,
    );
    guest.step("Pods of all three classes become Running", || {
        // As aa-remove-unknown does: it has to be loaded once more.
        fs::write("/sys/kernel/security/apparmor/.remove", DEFAULT_PROFILE)?;
        for (name, text) in manifests::few() {
            drop_manifest(name, &text)?;
        }
        for name in crowd() {
            drop_manifest(&name, &manifests::sleeper(&name, 1_000_000))?;
        }
        wait_running(&lasting())
    });
    guest.step(
        "Guaranteed: the pod's and the container's control group",
        guaranteed,
    );
    guest.step(
        "Burstable: limits of the pod and of one container",
        burstable,
    );
    guest.step("BestEffort and the tiers", tiers);
    guest.step("A child that takes too much memory ends its container", oom);
    guest.step(
        "emptyDir in memory has its limit and its user's content",
        || {
            let points = mounts(|kind, point| kind == "tmpfs" && point.ends_with("/shared"));
            expect("mounts", &points.len(), &1)?;
            let blocks = call(&["stat", "-f", "-c", "%b %S", &points[0]])?;
            expect("its size in blocks", &blocks, &"1024 4096".to_owned())?;
            Ok(points[0].clone())
        },
    );
    guest.step("HTTP to the pod's IP and through the hostPort", web);
    guest.step(
        "AppArmor: every container has the profile it asks for",
        apparmor,
    );
    guest.step(
        "AppArmor: SYS_ADMIN is no way out of our profile",
        apparmor_holds,
    );
    guest.step(
        "AppArmor: a container whose profile is missing is refused",
        apparmor_missing,
    );
    guest.step("seccomp and no_new_privs", seccomp);
    guest.step(
        "The unit holds the agent alone; shims have a group of their own",
        unit_alone,
    );
    figures(guest);

    let before = inits();
    for (what, words) in [
        (
            "systemctl daemon-reload",
            &["systemctl", "daemon-reload"][..],
        ),
        (
            "systemctl daemon-reexec",
            &["systemctl", "daemon-reexec"][..],
        ),
        (
            "systemctl restart picolet",
            &["systemctl", "restart", "picolet"][..],
        ),
        (
            "systemctl kill -s KILL picolet",
            &[
                "systemctl",
                "kill",
                "-s",
                "KILL",
                "--kill-whom=main",
                "picolet",
            ][..],
        ),
        (
            "systemctl stop, then start",
            &[
                "sh",
                "-c",
                "systemctl stop picolet && systemctl start picolet",
            ][..],
        ),
    ] {
        guest.step(&format!("{what}: every container stays"), || {
            let old = unit("MainPID")?;
            call(words)?;
            until(LIMIT, || {
                expect("ActiveState", &unit("ActiveState")?, &"active".into())?;
                let same = old == unit("MainPID")?;
                expect("same agent", &same, &what.contains("daemon"))
            })?;
            wait_running(&lasting())?;
            expect("containers", &inits(), &before)?;
            no_restarts()?;
            guaranteed()?;
            tiers()?;
            unit_alone()?;
            Ok(format!("{} containers", before.len()))
        });
    }
    guest.step(
        "Nothing was asked of systemd that it complained about",
        || {
            let said = call(&["journalctl", "-b", "-p", "warning", "-o", "cat", "_PID=1"])?;
            let about: Vec<_> = said.lines().filter(|l| l.contains("picolet")).collect();
            // Processes that stay behind at a stop would be named here, and settings it does not know. The kill was asked for.
            let odd: Vec<_> = about
                .iter()
                .filter(|l| !l.contains("'signal'") && !l.contains("status=9/KILL"))
                .collect();
            if odd.is_empty() {
                Ok(String::new())
            } else {
                Err(format!("{odd:?}").into())
            }
        },
    );
    guest.step("Churn, in which the power is cut", || {
        // What has to be there afterwards is on the disk; what follows may be or not.
        call(&["sync"])?;
        thread::spawn(churn);
        until(LIMIT, || {
            let seen = pods()?
                .iter()
                .filter(|pod| {
                    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                    name.starts_with("churn-") && pod["status"]["phase"] == "Running"
                })
                .count();
            if seen > 1 {
                Ok(format!("{seen} of its pods run"))
            } else {
                Err(format!("{seen} of its pods run").into())
            }
        })
    });
    guest.say(&Line::End);
    // The power goes any moment; ending would switch the machine off in order.
    loop {
        thread::park();
    }
}

/// The same disk, nothing done by hand.
pub(super) fn after_power_cut(guest: &mut Guest) {
    guest.step("picolet was started by the boot", || {
        until(LIMIT, || {
            expect("ActiveState", &unit("ActiveState")?, &"active".into())
        })?;
        Ok(format!("main process {}", unit("MainPID")?))
    });
    guest.step("Every pod runs again", || wait_running(&lasting()));
    guest.step("Control groups as before", || {
        guaranteed()?;
        burstable()?;
        tiers()
    });
    guest.step("HTTP to the pod's IP and through the hostPort", web);
    let hog = pod("hog").map(|pod| pod["status"]["phase"].to_string());
    guest.note(format!(
        "the pod that may not restart is {}",
        hog.unwrap_or_default()
    ));
    guest.step("What the churn left ends with its manifests", || {
        for name in (0..CHURN).map(churn_name) {
            let _ = fs::remove_file(manifest(&name));
            let _ = fs::remove_file(hidden(&name));
        }
        until(LIMIT, || {
            let left: Vec<_> = pods()?
                .iter()
                .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
                .filter(|name| name.starts_with("churn-"))
                .collect();
            expect("left", &left, &Vec::new())
        })?;
        Ok(String::new())
    });
    guest.step("Nothing is there twice and nothing is left", || {
        until(LIMIT, || {
            let pods = pods()?;
            let running = inits().len();
            let overlays = mounts(|kind, point| kind == "overlay" && point.contains("picolet"));
            expect("root file systems", &overlays.len(), &running)?;
            expect("shims", &shims().len(), &running)?;
            let mut ips: Vec<_> = pods
                .iter()
                .filter(|pod| pod["status"]["phase"] == "Running")
                .map(|pod| pod["status"]["podIP"].to_string())
                .collect();
            let count = ips.len();
            ips.sort();
            ips.dedup();
            expect("different IPs", &ips.len(), &count)?;
            expect("interfaces", &veths().len(), &count)?;
            let dirs = fs::read_dir(format!("{STATE}/pods"))?.count();
            expect("pod directories", &dirs, &pods.len())?;
            Ok(format!("{running} containers in {count} pods"))
        })
    });
    figures(guest);
    guest.step("picolet stop --all ends everything and stays ended", || {
        call(&["picolet", "stop", "--all"])?;
        until(LIMIT, || {
            expect("ActiveState", &unit("ActiveState")?, &"inactive".into())?;
            expect("shims", &shims(), &Vec::new())?;
            expect("containers", &inits().len(), &0)?;
            expect("interfaces", &veths(), &Vec::new())?;
            let pods: Vec<_> = groups(&Path::new(TREE).join("kubepods"))
                .into_iter()
                .filter(|dir| dir.to_string_lossy().contains("/pod"))
                .collect();
            expect("groups", &pods, &Vec::new())?;
            let left = mounts(|kind, point| kind == "overlay" || point.contains("/picolet/pods/"));
            expect("mounts", &left, &Vec::new())
        })?;
        expect("Result", &unit("Result")?, &"success".into())?;
        Ok(String::new())
    });
    guest.step("and a start brings all pods back", || {
        call(&["systemctl", "start", "picolet"])?;
        wait_running(&lasting())
    });
    // Switching off with the pods running is checked from outside.
    guest.say(&Line::End);
}

fn machine() -> Result<String, Failure> {
    let kind = call(&["stat", "-f", "-c", "%T", TREE])?;
    expect(
        "the file system of control groups",
        &kind,
        &"cgroup2fs".into(),
    )?;
    expect("process 1", &text("/proc/1/comm")?, &"systemd".into())?;
    let enabled = text("/sys/module/apparmor/parameters/enabled")?;
    expect("AppArmor", &enabled, &"Y".into())?;
    let memory = text("/proc/meminfo")?;
    let systemd = call(&["systemctl", "--version"])?;
    let runc = call(&["runc", "--version"])?;
    let first = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    Ok(format!(
        "Linux {}, {}, {}, {}",
        text("/proc/sys/kernel/osrelease")?,
        first(&systemd),
        first(&runc),
        first(&memory)
    ))
}

fn install() -> Result<String, Failure> {
    call(&["install", &format!("{PAYLOAD}/picolet"), "/usr/local/bin/"])?;
    for name in UNITS {
        let unit = format!("{PAYLOAD}/{name}");
        call(&["install", "-m", "644", &unit, "/etc/systemd/system/"])?;
    }
    fs::create_dir_all(MANIFESTS)?;
    fs::write(
        "/etc/picolet/config.yaml",
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodPidsLimit: {PIDS}\n\
             systemReserved: {{cpu: 100m, memory: {RESERVED_MIB}Mi, pid: '{RESERVED_PIDS}'}}\n"
        ),
    )?;
    let profile = "/etc/apparmor.d/picolet-vm";
    fs::write(profile, manifests::profile())?;
    call(&["apparmor_parser", "--replace", profile])?;
    Ok(String::new())
}

fn crowd() -> Vec<String> {
    (0..CROWD).map(|n| format!("crowd-{n}")).collect()
}

/// Pods that run for ever.
fn lasting() -> Vec<String> {
    let mut names = crowd();
    names.extend(["web", "exact", "armored", "guarded"].map(str::to_owned));
    names
}

fn manifest(name: &str) -> PathBuf {
    Path::new(MANIFESTS).join(format!("{name}.yaml"))
}

fn hidden(name: &str) -> PathBuf {
    Path::new(MANIFESTS).join(format!(".{name}.new"))
}

fn drop_manifest(name: &str, text: &str) -> Result<(), Failure> {
    fs::write(hidden(name), text)?;
    fs::rename(hidden(name), manifest(name))?;
    Ok(())
}

fn churn_name(n: u32) -> String {
    format!("churn-{n}")
}

/// Creates, edits and removes pods for ever.
fn churn() {
    for round in 0.. {
        let name = churn_name(round % CHURN);
        let _ = drop_manifest(&name, &manifests::sleeper(&name, 1_000_000 + round));
        let _ = until(LIMIT, || {
            expect("phase", &pod(&name)?["status"]["phase"], &"Running".into())
        });
        if round % 3 == 2 {
            let _ = fs::remove_file(manifest(&churn_name((round + 1) % CHURN)));
        }
    }
}

/// Directory of a pod's control group and of one container's in it.
fn group_of(name: &str, tier: &str, container: &str) -> Result<(PathBuf, PathBuf), Failure> {
    let pod = pod(name)?;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let dir = Path::new(TREE)
        .join("kubepods")
        .join(tier)
        .join(format!("pod{uid}"));
    let own = dir.join(container_id(&pod, container)?);
    Ok((dir, own))
}

fn check_files(dir: &Path, files: &[(&str, &str)]) -> Result<(), Failure> {
    for (file, wanted) in files {
        let path = dir.join(file);
        expect(
            &path.display().to_string(),
            &text(&path)?,
            &(*wanted).to_owned(),
        )?;
    }
    Ok(())
}

fn guaranteed() -> Result<String, Failure> {
    let (pod, own) = group_of("exact", "", "main")?;
    let memory = (32 * MIB).to_string();
    // 250 thousandths are 256 shares, which are weight 10 of 10000.
    let both = [
        ("cpu.weight", "10"),
        ("cpu.max", "25000 100000"),
        ("memory.max", memory.as_str()),
    ];
    check_files(&pod, &both)?;
    check_files(&pod, &[("pids.max", &PIDS.to_string())])?;
    check_files(&own, &both)?;
    check_files(&own, &[("memory.oom.group", "1"), ("memory.swap.max", "0")])?;
    Ok(
        "cpu.weight 10, cpu.max 25000 100000, memory.max 32 MiB, memory.oom.group 1, pids.max 128"
            .into(),
    )
}

fn burstable() -> Result<String, Failure> {
    let (pod, own) = group_of("web", "burstable", "server")?;
    // The limits of server, writer and sidecar; processor time is not limited for all, so not for the pod.
    check_files(
        &pod,
        &[
            ("memory.max", &(80 * MIB).to_string()),
            ("cpu.max", "max 100000"),
            ("cpu.weight", "4"),
        ],
    )?;
    check_files(
        &own,
        &[
            ("memory.max", &(32 * MIB).to_string()),
            ("cpu.max", "50000 100000"),
            ("cpu.weight", "4"),
            ("memory.oom.group", "1"),
        ],
    )?;
    Ok("pod: memory.max 80 MiB; server: cpu.max 50000 100000, memory.max 32 MiB".into())
}

fn tiers() -> Result<String, Failure> {
    let kubepods = Path::new(TREE).join("kubepods");
    let total: u64 = text("/proc/meminfo")?
        .split_whitespace()
        .nth(1)
        .unwrap_or_default()
        .parse()?;
    let number = |path: &str| -> Result<u64, Failure> { Ok(text(path)?.parse()?) };
    let pids = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    // 1900 thousandths are 1945 shares, which are weight 75 of 10000.
    expect("processors", &thread::available_parallelism()?.get(), &2)?;
    check_files(
        &kubepods,
        &[
            (
                "memory.max",
                &(total * 1024 - RESERVED_MIB * MIB).to_string(),
            ),
            ("pids.max", &(pids - RESERVED_PIDS).to_string()),
            ("cpu.weight", "75"),
        ],
    )?;
    // web's 100 thousandths are 102 shares; the other two pods of the tier ask for nothing.
    for (tier, weight) in [("burstable", "4"), ("besteffort", "1")] {
        check_files(&kubepods.join(tier), &[("cpu.weight", weight)])?;
    }
    let (pod, own) = group_of("crowd-0", "besteffort", "main")?;
    check_files(&pod, &[("cpu.weight", "1"), ("memory.max", "max")])?;
    check_files(&own, &[("cpu.weight", "1"), ("memory.oom.group", "1")])?;
    for dir in [Path::new(TREE), &kubepods, &pod] {
        let list = text(dir.join("cgroup.subtree_control"))?;
        for controller in ["cpu", "memory", "pids"] {
            if !list.split(' ').any(|c| c == controller) {
                return Err(format!("{} hands down only {list:?}", dir.display()).into());
            }
        }
    }
    Ok("cpu.weight 4 and 1, 1 a pod; cpu, memory and pids handed down".into())
}

fn oom() -> Result<String, Failure> {
    until(LIMIT, || {
        let pod = pod("hog")?;
        let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        expect("phase", &pod["status"]["phase"], &"Failed".into())?;
        expect("reason", &state["reason"], &"OOMKilled".into())?;
        expect("exit code", &state["exitCode"], &137.into())?;
        Ok("phase Failed, reason OOMKilled, exit code 137".into())
    })
}

fn web() -> Result<String, Failure> {
    let status = pod("web")?["status"].clone();
    let ip: IpAddr = status["podIP"].as_str().unwrap_or_default().parse()?;
    let wanted = format!("prepared for web-{HOSTNAME}");
    expect("the page", &http(ip, 8080, "/index.html")?, &wanted)?;
    let count: u64 = until(LIMIT, || Ok(http(ip, 8080, "/count")?.parse()?))?;
    let local = IpAddr::from([127, 0, 0, 1]);
    expect(
        "through the hostPort",
        &http(local, HOST_PORT, "/index.html")?,
        &wanted,
    )?;
    Ok(format!("{ip}:8080 and {local}:{HOST_PORT}, count {count}"))
}

/// First process of a pod's container `main`.
fn init(name: &str) -> Result<u32, Failure> {
    init_of(name, "main")
}

fn init_of(name: &str, container: &str) -> Result<u32, Failure> {
    let id = container_id(&pod(name)?, container)?;
    inits()
        .get(&id)
        .map(|(pid, _)| *pid)
        .ok_or_else(|| format!("{name}/{container} has no first process").into())
}

fn apparmor() -> Result<String, Failure> {
    let profile = |pod: &str, container: &str| {
        text(format!("/proc/{}/attr/current", init_of(pod, container)?))
    };
    let enforced = |name: &str| format!("{name} (enforce)");
    let ours = enforced(DEFAULT_PROFILE);
    for (pod, container, wanted) in [
        ("armored", "main", enforced(PROFILE)),
        ("guarded", "main", ours.clone()),
        ("guarded", "bare", "unconfined".into()),
        // Nothing asked.
        ("exact", "main", ours.clone()),
    ] {
        expect(
            &format!("profile of {pod}/{container}"),
            &profile(pod, container)?,
            &wanted,
        )?;
    }
    let pod = format!("armored-{HOSTNAME}");
    call(&["picolet", "exec", &pod, "--", "touch", "/tmp/allowed"])?;
    match call(&["picolet", "exec", &pod, "--", "touch", "/tmp/forbidden"]) {
        Err(e) if e.to_string().contains("Permission denied") => {
            Ok(format!("{ours}, {PROFILE}, unconfined; exec too"))
        }
        Err(e) => Err(e),
        Ok(_) => Err("exec is not held by it".into()),
    }
}

/// Both containers may administer the system; our profile holds one of them. The other shows that nothing else does.
fn apparmor_holds() -> Result<String, Failure> {
    let pod = format!("guarded-{HOSTNAME}");
    let run = |container: &str, script: &str| {
        call(&[
            "picolet", "exec", &pod, "-c", container, "--", "sh", "-c", script,
        ])
    };
    let ways = [
        "busybox mount -t tmpfs none /tmp",
        "busybox mount -o remount,rw /proc/sys && echo 11 > /proc/sys/kernel/panic",
        "busybox mount -t proc proc /tmp",
        "exec 3> /proc/loadavg",
    ];
    for script in ways {
        run("bare", script).map_err(|e| format!("without a profile: {e}"))?;
        match run("main", script) {
            Err(e) if e.to_string().to_lowercase().contains("permission denied") => {}
            Err(e) => return Err(format!("{script}: {e}").into()),
            Ok(_) => return Err(format!("{script}: is possible").into()),
        }
    }
    expect(
        "kernel.panic, by way of the container without a profile",
        &text("/proc/sys/kernel/panic")?,
        &"11".into(),
    )?;
    Ok(format!("{} ways", ways.len()))
}

fn apparmor_missing() -> Result<String, Failure> {
    drop_manifest(
        "stray",
        &manifests::under_profile("stray", "no-such-profile"),
    )?;
    let seen = until(LIMIT, || {
        let pod = pod("stray")?;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        expect("reason", &waiting["reason"], &"CreateContainerError".into())?;
        expect(
            "message",
            &waiting["message"],
            &"apparmor profile not found no-such-profile".into(),
        )?;
        Ok(waiting["message"].to_string())
    });
    fs::remove_file(manifest("stray"))?;
    seen
}

/// Our profile alone, with nothing else that would hold a process: no mount is read-only and no path is masked.
fn profile_rules() -> Result<String, Failure> {
    // Harmless where they succeed: what is written is what is there, or is taken back.
    let group = format!("{TREE}/apparmor-probe");
    let allowed = [
        "echo 4096 > /proc/sys/kernel/shmmni".to_owned(),
        "echo 100 > /proc/self/oom_score_adj".to_owned(),
        format!("mkdir {group} && rmdir {group}"),
        "echo x > /tmp/probe && chmod 700 /tmp/probe && rm /tmp/probe".to_owned(),
        "cat /proc/1/status /proc/sys/kernel/panic /sys/kernel/mm/ksm/run".to_owned(),
        "sleep 100 & kill $! && kill -0 1".to_owned(),
        "busybox ip link set lo up".to_owned(),
    ];
    let denied = [
        "echo 0 > /proc/sys/kernel/panic",
        "echo core > /proc/sys/kernel/core_pattern",
        "echo 0 > /proc/sys/kernel/sysrq",
        "echo 0 > /proc/sys/net/ipv4/tcp_syncookies",
        "echo 60 > /proc/sys/vm/swappiness",
        "echo h > /proc/sysrq-trigger",
        "echo 1 > /proc/irq/default_smp_affinity",
        "exec 3> /proc/loadavg",
        "busybox head -c 1 /proc/kcore",
        "cat /sys/kernel/security/apparmor/profiles",
        "echo 0 > /sys/kernel/mm/ksm/run",
        "echo 0 > /sys/module/printk/parameters/time",
        "echo change > /sys/class/mem/null/uevent",
        "busybox mount -t tmpfs none /mnt",
        "busybox mount -o bind /proc /mnt",
        "kill -CONT 1",
    ];
    let under = |script: &str| call(&["aa-exec", "-p", DEFAULT_PROFILE, "--", "sh", "-c", script]);
    for script in &allowed {
        under(script).map_err(|e| format!("{script}: {e}"))?;
    }
    for script in denied {
        match under(script) {
            Err(e) if e.to_string().to_lowercase().contains("permission denied") => {}
            Err(e) => return Err(format!("{script}: {e}").into()),
            Ok(_) => return Err(format!("{script}: is possible").into()),
        }
    }
    Ok(format!(
        "{} things allowed, {} denied",
        allowed.len(),
        denied.len()
    ))
}

fn seccomp() -> Result<String, Failure> {
    let mode = |name: &str| -> Result<String, Failure> {
        let status = text(format!("/proc/{}/status", init(name)?))?;
        Ok(status
            .lines()
            .find_map(|line| line.strip_prefix("Seccomp:"))
            .unwrap_or_default()
            .trim()
            .to_owned())
    };
    expect("RuntimeDefault", &mode("exact")?, &"2".into())?;
    expect("no profile", &mode("crowd-0")?, &"0".into())?;
    Ok("filter with RuntimeDefault, none without".into())
}

/// Whatever the agent forks for pods must be elsewhere: systemd would count it, and end it with the unit.
fn unit_alone() -> Result<String, Failure> {
    let group = unit("ControlGroup")?;
    let main: u32 = unit("MainPID")?.parse()?;
    // A client or a plugin may be running this moment.
    until(LIMIT, || {
        let members = members(&Path::new(TREE).join(group.trim_start_matches('/')));
        expect("processes of the unit", &members, &vec![main])
    })?;
    let (shims, containers) = (shims().len(), inits().len());
    expect("shims", &shims, &containers)?;
    Ok(format!("{shims} shims for {containers} containers"))
}

fn no_restarts() -> Result<(), Failure> {
    for pod in pods()? {
        for status in pod["status"]["containerStatuses"]
            .as_array()
            .into_iter()
            .flatten()
        {
            expect(
                &format!("restartCount of {}", pod["metadata"]["name"]),
                &status["restartCount"],
                &0.into(),
            )?;
        }
    }
    Ok(())
}

/// Memory, told and not judged: `cargo xtask bench` measures, tests hold limits.
fn figures(guest: &mut Guest) {
    let told = || -> Result<String, Failure> {
        let agent = memory(unit("MainPID")?.parse()?)?;
        let shims: Vec<_> = shims().into_iter().map(memory).collect::<Result<_, _>>()?;
        let count = u64::try_from(shims.len())?.max(1);
        let pss: u64 = shims.iter().map(|(pss, _)| pss).sum();
        let private = shims.iter().map(|(_, private)| private).max().copied();
        Ok(format!(
            "{} pods: agent {} KiB PSS ({} private), {count} shims {} KiB PSS each (most private {}), all {} KiB; unit's memory.current {} KiB",
            pods()?.len(),
            agent.0,
            agent.1,
            pss / count,
            private.unwrap_or(0),
            agent.0 + pss,
            unit("MemoryCurrent")?.parse::<u64>()? / 1024,
        ))
    };
    guest.note(told().unwrap_or_else(|e| format!("memory: {e}")));
}
