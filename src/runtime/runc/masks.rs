//! A look at what the OCI runtime made of the paths to be masked or read-only, between create and start.
//!
//! runc before 1.2.8, 1.3.3 and 1.4.0 masks with whatever stands at `/dev/null` in the container. A pod that mounts a volume
//! of its own on `/dev` puts a link there and gets, say, `/proc/sys/kernel/core_pattern` to write to (CVE-2025-31133). What
//! the runtime mounted can be seen before any program of the container runs, and nobody changes it any more: the container's
//! mount namespace is its own.

use std::{fs, io, path::Path};

use serde::Deserialize;

use super::files;
use crate::{
    api::strict::from_json,
    sys::mount::{self, Mount},
};

/// Longest `config.json` that is read, bytes: a command line and an environment, as much as the kernel takes.
const MAX_CONFIG_BYTES: u64 = 32 * 1024 * 1024;
/// File systems of which nothing may show at a masked path.
const KERNEL: [&str; 2] = ["proc", "sysfs"];

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    linux: Linux,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Linux {
    masked_paths: Vec<String>,
    readonly_paths: Vec<String>,
}

/// Why a container must not be started: what hides the kernel's files in it is not as asked for. Who made the image or wrote
/// the pod misled the OCI runtime, which its operator should replace.
#[derive(Debug, thiserror::Error)]
pub(super) enum MaskError {
    #[error("cannot look at its masked paths")]
    Unseen(#[source] io::Error),
    #[error(
        "the OCI runtime did not mask {0}: it was misled by what stands at /dev/null in the container \
         (CVE-2025-31133)"
    )]
    NotMasked(String),
    #[error("the OCI runtime did not make {0} read-only")]
    Writable(String),
    #[error(
        "the OCI runtime mounted something else than a terminal at /dev/console: it was misled by what stands at \
         /dev/pts in the container (CVE-2025-52565)"
    )]
    NoTerminal,
}

/// Checks the container whose init is `pid` and whose bundle is `bundle`. Blocking.
///
/// - Errors: the container must not be started.
pub(super) fn check(bundle: &Path, pid: i32) -> Result<(), MaskError> {
    let read = || -> io::Result<(Config, Vec<Mount>)> {
        let config = files::read_start(&bundle.join("config.json"), MAX_CONFIG_BYTES)?;
        let mut mounts = Vec::new();
        mount::each_mount_of(pid, |mount| mounts.push(mount))?;
        Ok((from_json(&config)?, mounts))
    };
    let (Config { linux }, mounts) = read().map_err(MaskError::Unseen)?;
    judge(&linux, &mounts, &|path| fs::symlink_metadata(path).is_ok())
}

/// `exists`: whether the kernel has such a path. What it has here it has in the container.
fn judge(linux: &Linux, mounts: &[Mount], exists: &dyn Fn(&str) -> bool) -> Result<(), MaskError> {
    // Of equal ones the last is on top.
    let on = |path: &str| mounts.iter().rev().find(|m| m.target == Path::new(path));
    for path in linux.masked_paths.iter().filter(|path| exists(path)) {
        if on(path).is_none_or(|mount| KERNEL.contains(&mount.kind.as_str())) {
            return Err(MaskError::NotMasked(path.clone()));
        }
    }
    for path in linux.readonly_paths.iter().filter(|path| exists(path)) {
        if !on(path).is_some_and(|mount| mount.read_only) {
            return Err(MaskError::Writable(path.clone()));
        }
    }
    // The terminal is mounted by its name in a directory that may be the pod's, too (CVE-2025-52565).
    if on("/dev/console").is_some_and(|mount| KERNEL.contains(&mount.kind.as_str())) {
        return Err(MaskError::NoTerminal);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(target: &str, kind: &str, read_only: bool) -> Mount {
        Mount {
            device: "0:1".into(),
            root: "/".into(),
            target: target.into(),
            read_only,
            shared: false,
            slave: false,
            kind: kind.into(),
            source: kind.into(),
            options: String::new(),
        }
    }

    // CVE-2025-31133, CVE-2025-52565, CVE-2025-52881: masks that show something else, or are not there.
    #[test]
    fn masks() {
        let linux = Linux {
            masked_paths: vec!["/proc/keys".into(), "/proc/absent".into()],
            readonly_paths: vec!["/proc/sys".into()],
        };
        let proc = mount("/proc", "proc", false);
        let sys = mount("/proc/sys", "proc", true);
        let null = mount("/proc/keys", "tmpfs", false);
        let other = mount("/proc/keys", "proc", false);
        for (name, mounts, wrong) in [
            ("as asked", vec![&proc, &null, &sys], None),
            ("not masked", vec![&proc, &sys], Some("mask /proc/keys")),
            (
                "masked by a file of the kernel",
                vec![&proc, &other, &sys],
                Some("mask /proc/keys"),
            ),
            (
                "and that on top",
                vec![&proc, &null, &other, &sys],
                Some("mask /proc/keys"),
            ),
            (
                "not read-only",
                vec![&proc, &null],
                Some("make /proc/sys read-only"),
            ),
            (
                "a terminal",
                vec![&proc, &null, &sys, &mount("/dev/console", "devpts", false)],
                None,
            ),
            (
                "no terminal",
                vec![&proc, &null, &sys, &mount("/dev/console", "proc", false)],
                Some("/dev/console"),
            ),
            (
                "elsewhere",
                vec![&proc, &null, &mount("/proc/sys", "proc", false)],
                Some("make /proc/sys read-only"),
            ),
        ] {
            let mounts: Vec<Mount> = mounts.into_iter().cloned().collect();
            let judged = judge(&linux, &mounts, &|path| path != "/proc/absent");
            match (judged, wrong) {
                (Ok(()), None) => {}
                (Err(e), Some(word)) => assert!(e.to_string().contains(word), "{name}: {e}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
