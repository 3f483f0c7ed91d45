//! NFS shares, mounted and unmounted by the system's own programs, which alone know how to reach a server. A server that is
//! gone blocks whoever touches its share: nothing here is done on a lane but reading the mount table.

use core::time::Duration;
use std::{ffi::OsString, path::Path};

use crate::{
    agent::complaints::Complaints,
    api::{PodError, PodUid},
    sys::{
        child::{self, SYSTEM_DIRS, find_system_program},
        lane::Lane,
        mount,
    },
    volume::Volumes,
};

/// Time for one mount.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for an orderly unmount; then it is forced (VOL-17).
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a program's complaint that are told.
const TEXT_BYTES: usize = 1024;

/// A share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct NfsShare {
    pub(in crate::agent) server: String,
    pub(in crate::agent) path: String,
    pub(in crate::agent) options: Vec<String>,
    pub(in crate::agent) read_only: bool,
}

impl NfsShare {
    /// `server:path`, as mount(8) takes it.
    fn source(&self) -> String {
        match self.server.contains(':') && !self.server.starts_with('[') {
            true => format!("[{}]:{}", self.server, self.path),
            false => format!("{}:{}", self.server, self.path),
        }
    }

    /// Arguments of mount(8), without its target.
    ///
    /// Errors: what is written in the volume would be read as something else.
    fn mount_arguments(&self) -> Result<Vec<OsString>, PodError> {
        let is_text = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_control());
        if !is_text(&self.server) || self.server.starts_with('-') || !is_text(&self.path) {
            let why = format!("{} is not an NFS share", self.source());
            return Err(PodError::Spec(why));
        }
        let mut options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        if let Some(bad) = options.iter().find(|option| !is_text(option)) {
            return Err(PodError::Spec(format!("{bad:?} is not a mount option")));
        }
        if self.read_only {
            options.push("ro");
        }
        let mut words: Vec<OsString> = vec!["-t".into(), "nfs".into()];
        if !options.is_empty() {
            words.extend(["-o".into(), options.join(",").into()]);
        }
        words.push(self.source().into());
        Ok(words)
    }
}

/// Mounts a share where the volume of a pod is, unless that is done. Returns why it cannot be.
pub(in crate::agent) async fn mount_share(
    volumes: &Volumes,
    disk: &Lane,
    uid: &PodUid,
    name: &str,
    share: &NfsShare,
) -> Result<(), PodError> {
    let target = volumes.nfs_dir(uid, name);
    let (place, words) = (target.clone(), share.mount_arguments());
    let (volumes, uid, name) = (volumes.clone(), uid.clone(), name.to_owned());
    // What is read here is the mount table, and directories that the share will cover.
    let prepare = move || {
        let is_mounted = mount::is_mount_point(&place)
            .map_err(|e| PodError::Node(format!("cannot read the mount table: {e}")))?;
        if is_mounted {
            return Ok(None);
        }
        let words = words?;
        let helper = find_system_program("mount.nfs").and_then(|_| find_system_program("mount"));
        let helper = helper.ok_or_else(|| {
            let why =
                "mount.nfs is not installed on this node: install nfs-common (Debian) or nfs-utils";
            PodError::Node(why.into())
        })?;
        volumes
            .make_nfs_dir(&uid, &name)
            .map_err(|e| PodError::Node(format!("cannot make {}: {e}", place.display())))?;
        Ok::<_, PodError>(Some((helper, words)))
    };
    let Some((helper, words)) = disk.run_job(prepare).await? else {
        return Ok(());
    };
    let command = child::Command::new(helper)
        .args(words)
        .arg(&target)
        .env("PATH", SYSTEM_DIRS.join(":"))
        .capture_output(TEXT_BYTES);
    run_mount_command(command, MOUNT_TIMEOUT).await
}

async fn run_mount_command(command: child::Command, timeout: Duration) -> Result<(), PodError> {
    let output = child::run_command(command, Some(timeout))
        .await
        .map_err(|e| PodError::Node(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim().replace('\n', "; ");
    Err(PodError::Node(format!("{}: {text}", output.status)))
}

/// Unmounts the shares of a pod, by force if they do not go, and what it has of other shares. Returns whether all are gone: the tear-down that follows would
/// wait on a lane for the server of one that stays. Without umount(8) it is left to that.
pub(in crate::agent) async fn unmount_shares(
    volumes: &Volumes,
    disk: &Lane,
    complaints: &Complaints,
    uid: &PodUid,
) -> bool {
    let (known, of) = (volumes.clone(), uid.clone());
    let find = move || (known.nfs_dirs(&of), find_system_program("umount"));
    let (dirs, Some(helper)) = disk.run_job(find).await else {
        return true;
    };
    let shares = volumes.nfs_dir(uid, "");
    let mut all = true;
    for dir in dirs {
        let mut is_gone = false;
        for &words in unmount_options(&dir, &shares) {
            let command = child::Command::new(&helper)
                .args(words)
                .arg(&dir)
                .capture_output(TEXT_BYTES);
            match run_mount_command(command, UNMOUNT_TIMEOUT).await {
                Ok(()) => {
                    is_gone = true;
                    break;
                }
                Err(why) => {
                    complaints.complain(&format!("uid={uid} umount {}: {why}", dir.display()));
                }
            }
        }
        all &= is_gone;
    }
    all
}

/// Options for umount(8), tried one after the other, for a mount of a pod. `shares`: the directory of the pod's own
/// shares. Force also ends what others do on the same share: it is used only below that directory.
fn unmount_options(dir: &Path, shares: &Path) -> &'static [&'static [&'static str]] {
    match dir.starts_with(shares) {
        true => &[&[], &["-f"], &["-f", "-l"]],
        false => &[&[], &["-l"]],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_shares_go_by_force() {
        // VOL-17
        let shares = Path::new("/p/u/volumes/kubernetes.io~nfs/");
        let is_forced = |dir: &str| {
            unmount_options(dir.as_ref(), shares)
                .concat()
                .contains(&"-f")
        };
        assert!(is_forced("/p/u/volumes/kubernetes.io~nfs/v"));
        for dir in [
            "/p/u/volume-subpaths/v/c/0",
            "/p/u/volumes/kubernetes.io~local-volume/v",
        ] {
            assert!(!is_forced(dir), "{dir}");
            assert_eq!(unmount_options(dir.as_ref(), shares), [&[][..], &["-l"]]);
        }
    }

    #[test]
    fn arguments() {
        // VOL-17
        let share = |server: &str, options: &[&str], read_only| NfsShare {
            server: server.into(),
            path: "/x y".into(),
            options: options.iter().map(|o| (*o).to_owned()).collect(),
            read_only,
        };
        for (share, want) in [
            (share("nas", &[], false), "-t nfs nas:/x y"),
            (share("fd00::1", &[], true), "-t nfs -o ro [fd00::1]:/x y"),
            (
                share("[fd00::1]", &["hard", "vers=4"], true),
                "-t nfs -o hard,vers=4,ro [fd00::1]:/x y",
            ),
            (
                share("-o", &[], false),
                "error: -o:/x y is not an NFS share",
            ),
            (share("", &[], false), "error: :/x y is not an NFS share"),
            (
                share("nas", &["a\nb"], false),
                "error: \"a\\nb\" is not a mount option",
            ),
        ] {
            let shown = share.mount_arguments().map_or_else(
                |e| format!("error: {e}"),
                |words| {
                    let words: Vec<_> = words.iter().map(|w| w.to_string_lossy()).collect();
                    words.join(" ")
                },
            );
            assert_eq!(shown, want);
        }
    }
}
