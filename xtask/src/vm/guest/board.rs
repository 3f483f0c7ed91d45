//! What only emulated boards show: a release as it is given away, images of another processor, cable, clock, upgrades.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use super::{
    Guest, LIMIT, call, expect,
    facts::{inits, text, unit},
    figures,
    node::{configure, drop_manifest, manifest},
    pod, pods as shown, small, until, wait_running,
};
use crate::{
    Failure,
    vm::{
        disk::{HOSTNAME, PAYLOAD},
        emulated::{CABLE, DOUBLES, FOREIGN_IMAGE, NEXT, PORT},
        manifests,
        report::Line,
    },
};

/// This kind of board, as the release calls it.
const NAME: &str = if cfg!(target_arch = "arm") {
    "armv7"
} else {
    "aarch64"
};
const PROGRAM: &str = "/usr/local/bin/picolet";
/// There while a program is on trial.
const TRIAL: &str = "/usr/local/bin/picolet.trial";
/// install.sh ends so if the machine cannot run what it has.
const UNFIT: i32 = 3;
/// Within this time a program that is not well is gone, seconds.
const BACK_S: f64 = 150.0;
/// The address that qemu gives.
const ADDRESS: &str = "10.0.2.15";
/// Seconds since 1970 of a clock that was never set, and how far it is moved then: 56 years.
const NEVER_SET: u64 = 86_400;
const YEARS_56: u64 = 56 * 31_557_600;

/// Little memory, a clock that nobody keeps right, a declared device that is plugged in later, static pods that no eviction ends,
/// and Debian's runc.
const TRUE_WARNINGS: [&str; 5] = [
    "pid-limits",
    "clock",
    "devices",
    "eviction",
    "runtime-version",
];

/// Whether this machine is one.
pub(super) fn is_one() -> bool {
    Path::new(PAYLOAD).join("SHA256SUMS").exists()
}

/// The port for verdicts: its number is another one at each boot.
pub(super) fn port() -> Option<String> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    let mut ports = ports.flatten();
    let port = ports.find(|port| text(port.path().join("name")).is_ok_and(|name| name == PORT))?;
    Some(format!("/dev/{}", port.file_name().to_string_lossy()))
}

/// A tarball of the release: this board's, or that of the other one.
fn tarball(own: bool) -> Result<String, Failure> {
    let mark = format!("-{NAME}.tar.gz");
    for entry in fs::read_dir(PAYLOAD)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".tar.gz") && name.ends_with(&mark) == own {
            return Ok(format!("{PAYLOAD}/{name}"));
        }
    }
    Err("there is no tarball".into())
}

// QEMU-01 QEMU-05
fn machine(guest: &mut Guest) {
    guest.step("qemu's virt has started Debian's kernel itself", || {
        let kind = text("/sys/firmware/devicetree/base/compatible")?;
        expect(&kind, &kind.contains("linux,dummy-virt"), &true)?;
        let firmware = Path::new("/sys/firmware/efi").exists();
        expect("it has a firmware", &firmware, &false)?;
        let version = text("/proc/version")?;
        expect(&version, &version.contains("debian-kernel@"), &true)?;
        text("/proc/sys/kernel/osrelease")
    });
    guest.step("A port for verdicts, a disk to read from, one UART", || {
        let port = port().ok_or("no port has the name of that for verdicts")?;
        let mounts = text("/proc/mounts")?;
        let payload: Vec<&str> = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|words| words.get(1) == Some(&PAYLOAD))
            .ok_or("the payload is not mounted")?;
        expect(payload[0], &payload[0].starts_with("/dev/vd"), &true)?;
        let is_read_only = payload[3].split(',').any(|option| option == "ro");
        expect("it can be written", &!is_read_only, &false)?;
        let ports = fs::read_dir("/sys/class/tty")?.flatten();
        let ports = ports.map(|port| port.file_name().to_string_lossy().into_owned());
        let ports: Vec<_> = ports.filter(|name| name.starts_with("ttyAMA")).collect();
        expect("UARTs", &ports, &vec!["ttyAMA0".to_owned()])?;
        Ok(format!("{port}, {}, {}", payload[0], ports[0]))
    });
}

// QEMU-20
pub(super) fn install(guest: &mut Guest) {
    machine(guest);
    let installer = format!("{PAYLOAD}/install.sh");
    let key = format!("{PAYLOAD}/release.pub");
    guest.step("The tarball of another board is refused", || {
        let tried = Command::new("sh")
            .args([&installer, "--key", &key, &tarball(false)?])
            .output()?;
        let said = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
        expect("exit code", &tried.status.code(), &Some(UNFIT))?;
        let why =
            said.contains("this program is for") && said.contains("take the tarball for that");
        expect(&said, &why, &true)?;
        expect("installed", &Path::new(PROGRAM).exists(), &false)?;
        Ok(said)
    });
    guest.step("install.sh takes its own, up to READY", || {
        configure()?;
        call(&["sh", &installer, "--key", &key, &tarball(true)?])?;
        expect("ActiveState", &unit("ActiveState")?, &"active".into())?;
        call(&["sync"])?;
        call(&["picolet", "version"])
    });
    guest.step(
        "picolet check warns of what is so, and of nothing else",
        || {
            let said = call(&["picolet", "check"])?;
            let warned: Vec<_> = said
                .lines()
                .filter(|line| !line.starts_with("ok ") && !line.starts_with(' '))
                .filter_map(|line| line.split_whitespace().nth(1))
                .collect();
            let (count, warned) = warned.split_last().ok_or("it says nothing")?;
            expect(
                &format!("{said}: {count}"),
                &said.contains(": 0 errors"),
                &true,
            )?;
            expect("warnings", &warned, &&TRUE_WARNINGS[..])?;
            Ok(warned.join(", "))
        },
    );
}

// QEMU-21
pub(super) fn pods(guest: &mut Guest) {
    guest.step("Logs, exec, and a probe that restarts", || {
        drop_manifest("lively", &manifests::lively("lively"))?;
        wait_running(&["lively".to_owned()])?;
        let name = format!("lively-{HOSTNAME}");
        expect("log", &call(&["picolet", "logs", &name])?, &"begun".into())?;
        let rm = [
            "picolet",
            "exec",
            &name,
            "--",
            "sh",
            "-c",
            "busybox rm /tmp/alive",
        ];
        call(&rm)?;
        until(LIMIT, || {
            let main = &pod("lively")?["status"]["containerStatuses"][0];
            expect("restartCount", &main["restartCount"], &1.into())?;
            expect("ready", &main["ready"], &true.into())
        })?;
        gone("lively")
    });
    guest.step("An image for another processor fails by name", || {
        let archive = format!("{PAYLOAD}/foreign.tar");
        let said = match call(&["picolet", "image", "import", &archive]) {
            Err(e) => e.to_string(),
            Ok(said) => return Err(format!("it is taken: {said}").into()),
        };
        expect(&said, &said.contains("(it has linux/amd64)"), &true)?;
        drop_manifest("foreign", &manifests::of_image("foreign", FOREIGN_IMAGE))?;
        until(LIMIT, || {
            let waiting = &pod("foreign")?["status"]["containerStatuses"][0]["state"]["waiting"];
            expect("reason", &waiting["reason"], &"ErrImageNeverPull".into())
        })?;
        gone("foreign")?;
        Ok(said)
    });
    guest.step("Numbers of 64 bits are whole", || {
        // QEMU-22: more than 32 bits can say.
        let wanted = 5_u64 << 30;
        let asking = format!("resources: {{requests: {{memory: 1Mi}}, limits: {{memory: '{wanted}'}}}}\n    imagePullPolicy");
        let text = manifests::sleeper("wide", 1_000_000).replace("imagePullPolicy", &asking);
        drop_manifest("wide", &text)?;
        wait_running(&["wide".to_owned()])?;
        let (_, own) = super::groups::group_of("wide", "burstable", "main")?;
        super::groups::check_files(&own, &[("memory.max", &format!("{wanted}"))])?;
        gone("wide")
    });
}

/// Takes a pod away, and waits for its end.
pub(super) fn gone(name: &str) -> Result<String, Failure> {
    fs::remove_file(manifest(name))?;
    until(LIMIT, || {
        let there = shown()?
            .iter()
            .any(|pod| pod["metadata"]["name"] == format!("{name}-{HOSTNAME}").as_str());
        expect("it is there", &there, &false)
    })?;
    Ok(String::new())
}

/// Seconds since the power came.
fn up() -> Result<f64, Failure> {
    let text = text("/proc/uptime")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

/// Seconds from the power to READY.
pub(super) fn ready() -> Result<String, Failure> {
    let micros: f64 = unit("ActiveEnterTimestampMonotonic")?.parse()?;
    Ok(format!("READY {:.1} s after the power came", micros / 1e6))
}

// QEMU-26 QEMU-28
pub(super) fn unplugged(guest: &mut Guest) {
    let crowd = small::crowd();
    guest.step("With the cable out all pods run", || {
        wait_running(&crowd)?;
        Ok(format!("{:.1} s after the power came; {}", up()?, ready()?))
    });
    guest.step("Memory is within what is promised", figures::hold);
    let before = inits();
    // Not by the count of restarts: the boot has counted.
    let stay = || until(LIMIT, || expect("containers", &inits(), &before));
    for (state, wanted) in [("on", true), ("off", false), ("on", true)] {
        guest.say(&Line::Monitor(format!("set_link {CABLE} {state}")));
        guest.step(&format!("The cable is {state}: no pod notices"), || {
            until(LIMIT, || {
                let node = call(&["picolet", "get", "node", "-o", "json"])?;
                expect("it has its address", &node.contains(ADDRESS), &wanted)
            })?;
            wait_running(&crowd)?;
            stay()?;
            Ok(String::new())
        });
    }
    clock(guest, &stay);
    guest.step("An upgrade keeps every process", || {
        call(&["picolet", "upgrade", &format!("{PAYLOAD}/{NEXT}")])?;
        same(NEXT)?;
        wait_running(&crowd)?;
        stay()?;
        expect("a trial", &Path::new(TRIAL).exists(), &false)?;
        Ok(String::new())
    });
    for (name, what) in DOUBLES.iter().zip(["ends", "hangs", "is not healthy"]) {
        guest.step(&format!("A program that {what} goes back"), || {
            let begun = up()?;
            let file = format!("{PAYLOAD}/{name}");
            if call(&["picolet", "upgrade", &file]).is_ok() {
                return Err("it stays".into());
            }
            let took = up()? - begun;
            same(NEXT)?;
            call(&["picolet", "health", "--wait", "60"])?;
            wait_running(&crowd)?;
            stay()?;
            let in_time = took < BACK_S;
            expect(&format!("{took:.1} s within {BACK_S} s"), &in_time, &true)?;
            Ok(format!("after {took:.1} s"))
        });
    }
    guest.step(
        "An upgrade to one that hangs, in which the power is cut",
        || {
            // Put back before, it has to be insisted on.
            Command::new("picolet")
                .args(["upgrade", "--force", &format!("{PAYLOAD}/{}", DOUBLES[1])])
                .stdin(Stdio::null())
                .spawn()?;
            until(LIMIT, || {
                expect("a trial", &Path::new(TRIAL).exists(), &true)?;
                same(DOUBLES[1])
            })?;
            Ok(String::new())
        },
    );
    guest.say(&Line::End);
    loop {
        std::thread::park();
    }
}

/// Whether the installed program is that one.
fn same(name: &str) -> Result<(), Failure> {
    let wanted = fs::read(format!("{PAYLOAD}/{name}"))?;
    expect(
        &format!("{name} is installed"),
        &(fs::read(PROGRAM)? == wanted),
        &true,
    )
}

fn not_restarted(name: &str) -> Result<(), Failure> {
    let count = &pod(name)?["status"]["containerStatuses"][0]["restartCount"];
    expect("restartCount", count, &0.into())
}

fn clock(guest: &mut Guest, stay: &dyn Fn() -> Result<(), Failure>) {
    let set = |seconds: u64| call(&["date", "-s", &format!("@{seconds}")]);
    let late = ["late".to_owned()];
    guest.step("In 1970 a pod starts, and so does an agent", || {
        set(NEVER_SET)?;
        drop_manifest("late", &manifests::lively("late"))?;
        wait_running(&late)?;
        call(&["systemctl", "restart", "picolet"])?;
        wait_running(&late)?;
        not_restarted(&late[0])?;
        call(&["date", "-u", "+%F"])
    });
    guest.step("56 years later nothing restarts and no probe fails", || {
        set(NEVER_SET + YEARS_56)?;
        // Some rounds of its probe, by a clock that does not jump.
        let begun = up()?;
        until(Duration::from_secs(60), || {
            expect("10 s have passed", &(up()? > begun + 10.0), &true)
        })?;
        wait_running(&late)?;
        not_restarted(&late[0])?;
        let events = call(&["picolet", "get", "events", "-A"])?;
        expect(&events, &events.contains("Unhealthy"), &false)?;
        call(&["systemctl", "restart", "picolet"])?;
        wait_running(&late)?;
        not_restarted(&late[0])?;
        gone(&late[0])?;
        stay()?;
        call(&["date", "-u", "+%F"])
    });
}

// QEMU-26
pub(super) fn after_upgrade_cut(guest: &mut Guest) {
    guest.step("The program that hung is gone by itself", || {
        until(LIMIT, || {
            expect("a trial", &Path::new(TRIAL).exists(), &false)?;
            same(NEXT)
        })?;
        call(&["picolet", "health", "--wait", "60"])?;
        let (ready, took) = (ready()?, up()?);
        let in_time = took < BACK_S + 60.0;
        expect(
            &format!("{took:.1} s after the power came"),
            &in_time,
            &true,
        )?;
        Ok(ready)
    });
    guest.step("Every pod runs again", || wait_running(&small::crowd()));
    guest.step("The store is whole", || {
        call(&["picolet", "image", "verify"])
    });
    guest.say(&Line::End);
}

// QEMU-22
pub(super) fn without_memory(guest: &mut Guest) {
    guest.step("picolet check names the word that switches it on", || {
        let tried = Command::new("picolet").arg("check").output()?;
        let said = String::from_utf8_lossy(&tried.stdout).into_owned();
        let named = said.contains("cgroup_disable=memory") && said.contains("cgroup_enable=memory");
        expect(&said, &named, &true)?;
        let line = said.lines().find(|line| line.contains("cgroup_disable"));
        Ok(line.unwrap_or_default().trim().to_owned())
    });
    guest.step("Pods without limits run", || wait_running(&small::crowd()));
    guest.say(&Line::End);
}
