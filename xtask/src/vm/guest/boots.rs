//! The checks of the machine whose power is cut, before and after, in order.

use std::{fs, net::IpAddr, path::Path, thread};

use super::{
    Guest, LIMIT, apparmor, board, call, container_id, expect,
    facts::{TREE, control_groups, http, inits, mounts, shims, text, unit, veths},
    figures, groups,
    node::{self, STATE, drop_manifest, hidden, init, manifest, no_restarts, sync_manifest},
    pod, pods, until, wait_running,
};
use crate::{
    Failure,
    vm::{
        disk::HOSTNAME,
        manifests::{self, CROWD, DEFAULT_PROFILE, HOST_PORT},
        report::Line,
    },
};

/// Pods that come and go until the power is cut.
const CHURN: u32 = 6;

/// A new machine, up to the churn in which its power is cut.
pub(super) fn fresh(guest: &mut Guest) {
    node::set_up(guest);
    guest.step(
        "AppArmor: what our profile denies, and what it does not",
        apparmor::profile_rules,
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
        groups::guaranteed,
    );
    guest.step(
        "Burstable: limits of the pod and of one container",
        groups::burstable,
    );
    guest.step("BestEffort and the tiers", groups::tiers);
    guest.step("A pod writes no faster than it may", groups::slow_writer);
    guest.step(
        "A container may use a device that comes while it runs, and no other of its kind",
        groups::live_device,
    );
    guest.step(
        "A child that takes too much memory ends its container",
        groups::oom,
    );
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
        apparmor::profiles,
    );
    guest.step(
        "AppArmor: SYS_ADMIN is no way out of our profile",
        apparmor::holds,
    );
    guest.step(
        "AppArmor: a container whose profile is missing is refused",
        apparmor::missing,
    );
    guest.step("seccomp and no_new_privs", seccomp);
    guest.step(
        "The unit holds the agent alone; shims have a group of their own",
        groups::unit_alone,
    );
    guest.step("Memory is within what is promised", figures::hold);
    if board::is_one() {
        board::pods(guest);
    }

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
            groups::guaranteed()?;
            groups::tiers()?;
            groups::unit_alone()?;
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
        // Of what is ours, the manifests have to be there afterwards. What the agent needs it has synced itself.
        for (name, _) in manifests::few() {
            sync_manifest(name)?;
        }
        crowd().iter().try_for_each(|name| sync_manifest(name))?;
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
        groups::guaranteed()?;
        groups::burstable()?;
        groups::tiers()
    });
    guest.step("HTTP to the pod's IP and through the hostPort", web);
    guest.step(
        "The pod that may not restart is as it ended, and does not run",
        || {
            let told = groups::oom()?;
            let hog = pod("hog")?;
            let id = container_id(&hog, "main")?;
            expect("it runs", &inits().contains_key(&id), &false)?;
            // Of the others it is 1 where the log of before the cut had reached the disk.
            let restarts = &hog["status"]["containerStatuses"][0]["restartCount"];
            expect("restartCount", restarts, &0.into())?;
            Ok(told)
        },
    );
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
    guest.step("Memory is within what is promised", figures::hold);
    guest.step("picolet stop --all ends everything and stays ended", || {
        call(&["picolet", "stop", "--all"])?;
        until(LIMIT, || {
            expect("ActiveState", &unit("ActiveState")?, &"inactive".into())?;
            expect("shims", &shims(), &Vec::new())?;
            expect("containers", &inits().len(), &0)?;
            expect("interfaces", &veths(), &Vec::new())?;
            let pods: Vec<_> = control_groups(&Path::new(TREE).join("kubepods"))
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

fn crowd() -> Vec<String> {
    (0..CROWD).map(|n| format!("crowd-{n}")).collect()
}

/// Pods that run for ever.
fn lasting() -> Vec<String> {
    let mut names = crowd();
    names.extend(["web", "exact", "armored", "guarded"].map(str::to_owned));
    names
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
