//! What every machine needs: picolet as an operator installs it, an image, manifests.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use super::{
    Guest, LIMIT, board, call, container_id, expect,
    facts::{TREE, inits, text, unit},
    pod, pods, until,
};
use crate::{
    Failure,
    stage::IMAGE,
    vm::{
        disk::{PAYLOAD, UNITS},
        manifests,
    },
};

const CONFIG: &str = "/etc/picolet/config.yaml";
const MANIFESTS: &str = "/etc/picolet/manifests";
pub(super) const STATE: &str = "/var/lib/picolet";
pub(super) const MIB: u64 = 1 << 20;
/// `podPidsLimit` of this machine.
pub(super) const PIDS: u64 = 128;
/// What is kept from pods, processor time aside.
pub(super) const RESERVED_MIB: u64 = 16;
pub(super) const RESERVED_PIDS: u64 = 100;

/// Installs picolet and starts it, up to an imported image.
pub(super) fn set_up(guest: &mut Guest) {
    guest.step("The machine is what a board is", machine);
    if board::is_one() {
        board::install(guest);
    } else {
        guest.step("Installed as the README says", install);
    }
    start(guest);
}

/// The same with more in the configuration.
pub(super) fn set_up_with(guest: &mut Guest, more: &str) {
    guest.step("Installed as the README says", || {
        install()?;
        let text = fs::read_to_string(CONFIG)?;
        fs::write(CONFIG, text + more)?;
        Ok(String::new())
    });
    start(guest);
}

fn start(guest: &mut Guest) {
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
    configure()?;
    // What was installed is to be there after the power cut. The agent has not run yet: nothing of it is synced here.
    call(&["systemctl", "enable", "picolet"])?;
    call(&["sync"])?;
    Ok(String::new())
}

/// What is there before the agent starts.
pub(super) fn configure() -> Result<(), Failure> {
    fs::create_dir_all(MANIFESTS)?;
    fs::write(
        CONFIG,
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodPidsLimit: {PIDS}\n\
             systemReserved: {{cpu: 100m, memory: {RESERVED_MIB}Mi, pid: '{RESERVED_PIDS}'}}\n\
             picolet: {{deviceRoot: {}, devices: [{}]}}\n",
            manifests::MACHINE,
            manifests::DEVICES
        ),
    )?;
    let profile = "/etc/apparmor.d/picolet-vm";
    fs::write(profile, manifests::profile())?;
    call(&["apparmor_parser", "--replace", profile])?;
    Ok(())
}

pub(super) fn manifest(name: &str) -> PathBuf {
    Path::new(MANIFESTS).join(format!("{name}.yaml"))
}

pub(super) fn hidden(name: &str) -> PathBuf {
    Path::new(MANIFESTS).join(format!(".{name}.new"))
}

pub(super) fn drop_manifest(name: &str, text: &str) -> Result<(), Failure> {
    fs::write(hidden(name), text)?;
    fs::rename(hidden(name), manifest(name))?;
    Ok(())
}

/// Brings a manifest to the disk, as whoever wants it after a power cut does. Nothing of the agent's is synced with it.
pub(super) fn sync_manifest(name: &str) -> Result<(), Failure> {
    File::open(manifest(name))?.sync_all()?;
    File::open(MANIFESTS)?.sync_all()?;
    Ok(())
}

/// First process of a pod's container `main`.
pub(super) fn init(name: &str) -> Result<u32, Failure> {
    init_of(name, "main")
}

pub(super) fn init_of(name: &str, container: &str) -> Result<u32, Failure> {
    let id = container_id(&pod(name)?, container)?;
    inits()
        .get(&id)
        .map(|(pid, _)| *pid)
        .ok_or_else(|| format!("{name}/{container} has no first process").into())
}

pub(super) fn no_restarts() -> Result<(), Failure> {
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
