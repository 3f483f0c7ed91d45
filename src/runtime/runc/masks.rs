//! A look at what the OCI runtime made of the paths to be masked or read-only, of `/proc` and of the SELinux label, between
//! create and start.
//!
//! runc before 1.2.8, 1.3.3 and 1.4.0 masks with whatever stands at `/dev/null` in the container. A pod that mounts a volume
//! of its own on `/dev` puts a link there and gets, say, `/proc/sys/kernel/core_pattern` to write to (CVE-2025-31133). What
//! the runtime mounted can be seen before any program of the container runs, and nobody changes it any more: the container's
//! mount namespace is its own.
//!
//! A runtime writes labels into files below `/proc`. If a volume led a mount there, it wrote into another file, and the
//! program would run without its label (CVE-2025-52881). So nothing may be mounted below `/proc` that was not asked for, and
//! the SELinux label is read back. AppArmor's cannot be: to who asks for the profile that another process gets at its exec,
//! the kernel shows the asker's own.
//!
//! Source: kernel `security/apparmor/lsm.c`, `apparmor_getprocattr`; `security/selinux/hooks.c`, `selinux_getprocattr`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::IgnoredAny};

use super::files;
use crate::{
    api::{
        oci::{SameLabelFn, may_mount_at},
        strict::from_json,
    },
    sys::mount::{self, MountEntry},
};

/// Longest `config.json` that is read, bytes: a command line and an environment, as much as the kernel takes.
const MAX_CONFIG_BYTES: u64 = 32 * 1024 * 1024;
/// Longest label that is read, bytes: a page, which is the kernel's limit.
const MAX_LABEL_BYTES: u64 = 4096;
/// File systems of which nothing may show at a masked path.
const KERNEL: [&str; 2] = ["proc", "sysfs"];

#[derive(Default, Deserialize)]
#[serde(default)]
struct OciConfigView {
    linux: OciLinuxView,
    mounts: Vec<ConfigMount>,
    process: OciProcessView,
    hooks: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigMount {
    destination: String,
    r#type: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OciProcessView {
    selinux_label: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OciLinuxView {
    masked_paths: Vec<String>,
    readonly_paths: Vec<String>,
}

/// Reason why a container must not be started: a mask of the kernel's files, or its label, is not as asked for. The
/// author of the image or of the pod misled the OCI runtime, which the operator of the node should replace.
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
    #[error(
        "the OCI runtime mounted something at {0:?} that was not asked for: it was misled by a volume (CVE-2025-52881)"
    )]
    InProc(PathBuf),
    #[error("cannot read its SELinux label")]
    NoLabel(#[source] io::Error),
    #[error(
        "the OCI runtime gave its program the SELinux label {found:?} instead of {asked:?}: it cannot set labels, or it \
         was misled by a volume (CVE-2025-52881)"
    )]
    Label { asked: String, found: String },
}

/// Checks the container whose init is `pid` and whose bundle is `bundle`. Blocking.
///
/// - Errors: the container must not be started.
pub(super) fn check_masks(
    bundle: &Path,
    pid: i32,
    same_label: SameLabelFn,
) -> Result<(), MaskError> {
    let read = || -> io::Result<(OciConfigView, Vec<MountEntry>)> {
        let config = files::read_start(&bundle.join("config.json"), MAX_CONFIG_BYTES)?;
        let mut mounts = Vec::new();
        mount::each_mount_of(pid, |mount| mounts.push(mount))?;
        Ok((from_json(&config)?, mounts))
    };
    let (config, mounts) = read().map_err(MaskError::Unseen)?;
    let exists = |path: &str| fs::symlink_metadata(path).is_ok();
    judge_masks(&config, &mounts, &exists)?;
    let process = Path::new("/proc").join(pid.to_string());
    check_label(&config.process.selinux_label, &process, same_label)
}

/// Compares the label that the process gets at its exec, the program's. `process`: its directory in `/proc`.
fn check_label(asked: &str, process: &Path, same_label: SameLabelFn) -> Result<(), MaskError> {
    if asked.is_empty() {
        return Ok(());
    }
    let read = files::read_start(&process.join("attr/exec"), MAX_LABEL_BYTES);
    let read = read.map_err(MaskError::NoLabel)?;
    let found = String::from_utf8_lossy(&read);
    let found = found.trim_end_matches(['\n', '\0']);
    if same_label(asked, found) {
        return Ok(());
    }
    let (asked, found) = (asked.to_owned(), found.to_owned());
    Err(MaskError::Label { asked, found })
}

/// `exists`: whether the kernel has such a path. What it has here it has in the container.
fn judge_masks(
    config: &OciConfigView,
    mounts: &[MountEntry],
    exists: &dyn Fn(&str) -> bool,
) -> Result<(), MaskError> {
    let linux = &config.linux;
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
    // Who mounts the machine's gets what is mounted in that, and a device's hooks may mount what they want.
    let machine =
        |m: &ConfigMount| m.r#type == "bind" && Path::new(&m.destination) == Path::new("/proc");
    if on("/proc").is_some_and(|mount| mount.kind != "proc") {
        return Err(MaskError::InProc("/proc".into()));
    }
    if config.hooks.is_some() || config.mounts.iter().any(machine) {
        return Ok(());
    }
    let hidden = [&linux.masked_paths, &linux.readonly_paths];
    let asked = |path: &Path| {
        hidden
            .into_iter()
            .flatten()
            .any(|hidden| path == Path::new(hidden))
    };
    let other = mounts.iter().map(|mount| &mount.target);
    match other
        .filter(|path| !path.to_str().is_some_and(may_mount_at))
        .find(|path| !asked(path))
    {
        Some(path) => Err(MaskError::InProc(path.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(target: &str, kind: &str, read_only: bool) -> MountEntry {
        MountEntry {
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
        let config = OciConfigView {
            linux: OciLinuxView {
                masked_paths: vec!["/proc/keys".into(), "/proc/absent".into()],
                readonly_paths: vec!["/proc/sys".into()],
            },
            ..OciConfigView::default()
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
            let mounts: Vec<MountEntry> = mounts.into_iter().cloned().collect();
            let judged = judge_masks(&config, &mounts, &|path| path != "/proc/absent");
            match (judged, wrong) {
                (Ok(()), None) => {}
                (Err(e), Some(word)) => assert!(e.to_string().contains(word), "{name}: {e}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    // CVE-2025-52881: a volume that led a mount into /proc would take what the runtime writes there, labels among it.
    #[test]
    fn nothing_else_is_mounted_in_proc() {
        let config = |text: &str| from_json::<OciConfigView>(text.as_bytes()).expect("config");
        let usual = r#"{"mounts":[{"destination":"/proc","type":"proc"},{"destination":"/v","type":"bind"}]"#;
        let plain = config(&format!(
            r#"{usual},"linux":{{"maskedPaths":["/proc/keys"]}}}}"#
        ));
        let hooks = config(&format!(
            r#"{usual},"hooks":{{"createContainer":[{{"path":"/x"}}]}}}}"#
        ));
        let machine = config(r#"{"mounts":[{"destination":"/proc/","type":"bind"}]}"#);
        let proc = mount("/proc", "proc", false);
        let keys = mount("/proc/keys", "tmpfs", false);
        for (name, config, at, kind, wrong) in [
            ("elsewhere", &plain, "/v", "ext4", false),
            ("a longer name", &plain, "/processes", "ext4", false),
            ("lxcfs", &plain, "/proc/meminfo", "fuse.lxcfs", false),
            ("a label's file", &plain, "/proc/1/attr", "tmpfs", true),
            ("below a masked path", &plain, "/proc/keys/x", "tmpfs", true),
            (
                "another file of the kernel",
                &plain,
                "/proc/1/attr/exec",
                "proc",
                true,
            ),
            ("another /proc", &plain, "/proc", "tmpfs", true),
            (
                "of a hook",
                &hooks,
                "/proc/driver/nvidia/params",
                "tmpfs",
                false,
            ),
            ("another /proc by a hook", &hooks, "/proc", "tmpfs", true),
            (
                "the machine's",
                &machine,
                "/proc/sys/fs/binfmt_misc",
                "autofs",
                false,
            ),
            ("what is not the machine's", &machine, "/proc", "ext4", true),
        ] {
            let mounts = [proc.clone(), keys.clone(), mount(at, kind, false)];
            match judge_masks(config, &mounts, &|_| true) {
                Err(MaskError::InProc(path)) => assert!(wrong && path == Path::new(at), "{name}"),
                Ok(()) => assert!(!wrong, "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    // CVE-2025-52881
    #[test]
    fn labels() {
        let process = crate::testing::unused_path("label");
        fs::create_dir_all(process.join("attr")).expect("directory");
        let same: SameLabelFn = |asked, found| asked == found;
        for (asked, text, says) in [
            ("u:r:t:s0", Some("u:r:t:s0\0"), None),
            ("u:r:t:s0", Some("u:r:t:s0\n"), None),
            (
                "u:r:t:s0",
                Some(""),
                Some(r#"label "" instead of "u:r:t:s0""#),
            ),
            ("u:r:t:s0", Some("u:r:other:s0"), Some("u:r:other:s0")),
            ("u:r:t:s0", None, Some("cannot read")),
            ("", None, None),
        ] {
            let _ = fs::remove_file(process.join("attr/exec"));
            if let Some(text) = text {
                fs::write(process.join("attr/exec"), text).expect("label");
            }
            match (check_label(asked, &process, same), says) {
                (Ok(()), None) => {}
                (Err(e), Some(says)) => assert!(e.to_string().contains(says), "{e}"),
                other => panic!("{asked} {text:?}: {other:?}"),
            }
        }
        fs::remove_dir_all(&process).expect("remove");
    }
}
