//! AppArmor: our profile, others, and containers under them.

use std::{fs, path::Path};

use super::{
    LIMIT, call, expect,
    facts::{TREE, text},
    node::{drop_manifest, init_of, manifest},
    pod, until,
};
use crate::{
    Failure,
    vm::{
        disk::HOSTNAME,
        manifests::{self, DEFAULT_PROFILE, PROFILE},
    },
};

/// A file of the kernel's that a container may read and not write.
const KSM: &str = "/sys/kernel/mm/ksm/run";

/// Our profile alone, with nothing else that would hold a process: no mount is read-only and no path is masked.
pub(super) fn profile_rules() -> Result<String, Failure> {
    // Harmless where they succeed: what is written is what is there, or is taken back.
    let group = format!("{TREE}/apparmor-probe");
    let allowed = [
        "echo 4096 > /proc/sys/kernel/shmmni".to_owned(),
        "echo 100 > /proc/self/oom_score_adj".to_owned(),
        format!("mkdir {group} && rmdir {group}"),
        "echo x > /tmp/probe && chmod 700 /tmp/probe && rm /tmp/probe".to_owned(),
        "cat /proc/1/status /proc/sys/kernel/panic".to_owned(),
        format!("cat {KSM}"),
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
    // A kernel that has not everything denies less.
    let absent: Vec<_> = [
        KSM,
        "/proc/irq/default_smp_affinity",
        "/proc/kcore",
        "/proc/sysrq-trigger",
    ]
    .into_iter()
    .filter(|path| !Path::new(path).exists())
    .collect();
    let is_there = |script: &str| !absent.iter().any(|path| script.contains(path));
    let under = |script: &str| call(&["aa-exec", "-p", DEFAULT_PROFILE, "--", "sh", "-c", script]);
    let allowed: Vec<_> = allowed.iter().filter(|script| is_there(script)).collect();
    let denied: Vec<_> = denied
        .into_iter()
        .filter(|script| is_there(script))
        .collect();
    for script in &allowed {
        under(script).map_err(|e| format!("{script}: {e}"))?;
    }
    for script in &denied {
        match under(script) {
            Err(e) if e.to_string().to_lowercase().contains("permission denied") => {}
            Err(e) => return Err(format!("{script}: {e}").into()),
            Ok(_) => return Err(format!("{script}: is possible").into()),
        }
    }
    let without = match absent[..] {
        [] => String::new(),
        _ => format!("; this kernel has no {}", absent.join(", ")),
    };
    Ok(format!(
        "{} things allowed, {} denied{without}",
        allowed.len(),
        denied.len()
    ))
}

pub(super) fn profiles() -> Result<String, Failure> {
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
pub(super) fn holds() -> Result<String, Failure> {
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

pub(super) fn missing() -> Result<String, Failure> {
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
