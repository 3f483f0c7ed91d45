//! Needs of a checkpoint, and the files of its archive that describe the container. No effects.
//!
//! Source: containerd `container_checkpoint_linux.go`; checkpointctl `lib/metadata.go`.

use serde_json::{Value, json};

use crate::api::WallTime;

/// Oldest CRIU that need not lock the network, major and minor version: if an older one is killed, the pod has none any more.
const MIN_CRIU: (u32, u32) = (3, 19);
/// Reason of a machine that cannot make checkpoints, in the words that clients know.
pub(super) const NO_CRIU: &str = "CRIU binary not found or too old (<31600)";
/// Part of the free space that the memory and the files of a container may need, per cent.
const SPACE_PER_CENT: u64 = 25;
/// Most bytes of CRIU's log in the text of an error.
const MAX_REASON_BYTES: usize = 300;
/// Most errors of CRIU's log in that text.
const MAX_REASON_LINES: usize = 3;
/// Annotation in the features of runc that says if it was built with checkpoints.
const CHECKPOINT_ANNOTATION: &str = "org.opencontainers.runc.checkpoint.enabled";
/// Time of a restore that has not happened, as Go writes it.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// A container that a checkpoint was made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckpointSubject<'a> {
    /// Id of the container.
    pub(super) id: &'a str,
    /// Name in its pod.
    pub(super) name: &'a str,
    /// Image in the words of the pod.
    pub(super) image: &'a str,
    /// Image as the API shows it in `imageID`.
    pub(super) image_ref: &'a str,
    /// Name of the OCI runtime.
    pub(super) runtime: &'a str,
    /// Pid of its init process.
    pub(super) pid: i32,
    /// Time of its creation.
    pub(super) created_at: WallTime,
    /// Time of its start.
    pub(super) started_at: WallTime,
    /// Time of the checkpoint.
    pub(super) checkpointed_at: WallTime,
}

impl CheckpointSubject<'_> {
    /// Makes `config.dump`.
    pub(super) fn config_dump(&self) -> Value {
        json!({
            "id": self.id,
            "name": self.name,
            "rootfsImage": self.image,
            "rootfsImageRef": self.image_ref,
            "rootfsImageName": self.image,
            "runtime": self.runtime,
            "createdTime": self.created_at,
            "checkpointedTime": self.checkpointed_at,
            "restoredTime": NEVER,
            "restored": false,
        })
    }

    /// Makes `status.dump` in the form of containerd: times in nanoseconds since 1970.
    pub(super) fn status_dump(&self) -> Value {
        json!({
            "CreatedAt": self.created_at.0,
            "StartedAt": self.started_at.0,
            "FinishedAt": 0,
            "ExitCode": 0,
            "Pid": self.pid,
            "Reason": "",
            "Message": "",
        })
    }
}

/// Judges the output of `criu --version`.
pub(super) fn is_criu_new_enough(text: &str) -> bool {
    let version = text.lines().find_map(|line| line.strip_prefix("Version:"));
    let mut numbers = version.unwrap_or("").trim().split('.').map(str::parse);
    let major = numbers.next().and_then(Result::ok).unwrap_or(0);
    (major, numbers.next().and_then(Result::ok).unwrap_or(0)) >= MIN_CRIU
}

/// Returns true if the features of an OCI runtime say that it makes no checkpoints. Only runc says so.
pub(super) fn lacks_checkpoints(features: &Value) -> bool {
    features["annotations"][CHECKPOINT_ANNOTATION] == "false"
}

/// Bytes that a checkpoint may take of the free ones.
pub(super) const fn checkpoint_room(free_bytes: u64) -> u64 {
    free_bytes / 100 * SPACE_PER_CENT
}

/// Finds the last errors in the end of CRIU's log: the very last one only says that it failed. Bounded, and without control
/// characters.
pub(super) fn find_last_errors(log: &str) -> String {
    let lines = log.lines().rev().filter(|line| line.contains("Error"));
    let mut lines: Vec<&str> = lines.take(MAX_REASON_LINES).collect();
    lines.reverse();
    let plain = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
    let text = lines.join("; ");
    text.chars().map(plain).take(MAX_REASON_BYTES).collect()
}

/// Makes CRIU's configuration: FIFOs of a shim are not the container's, so CRIU does not look for them in its mounts. Rules
/// that CRIU makes in the network of the pod would stay if it is killed.
pub(super) fn criu_configuration(fifos: Option<(u32, &[u64])>) -> String {
    let mut text = String::from("network-lock skip\n");
    if let Some((mount_id, inodes)) = fifos {
        let line = |inode| format!("external file[{mount_id:x}:{inode:x}]\n");
        text.extend(inodes.iter().map(line));
    }
    text
}

/// Finds the mount of an open file in `/proc/PID/fdinfo/FD`.
pub(super) fn parse_mount_id(fdinfo: &str) -> Option<u32> {
    let told = fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    told?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: WallTime = WallTime::from_unix_seconds(1_767_323_045);

    #[test]
    fn versions_of_criu() {
        // CKPT-01
        for (text, able) in [
            ("Version: 4.2.1\nGitID: v4.2.1\n", true),
            ("Version: 3.19\n", true),
            ("Version: 3.17.1\n", false),
            ("Version: 3\n", false),
            ("Version: 2.99\n", false),
            ("criu 4.2\n", false),
            ("", false),
        ] {
            assert_eq!(is_criu_new_enough(text), able, "{text}");
        }
        let features = |told: &str| json!({"annotations": {CHECKPOINT_ANNOTATION: told}});
        assert!(lacks_checkpoints(&features("false")));
        assert!(!lacks_checkpoints(&features("true")));
        assert!(!lacks_checkpoints(&Value::Null));
    }

    #[test]
    fn a_quarter_of_the_free_space() {
        // CKPT-04
        for (free, room) in [
            (1000, 250),
            (99, 0),
            (0, 0),
            (u64::MAX, u64::MAX / 100 * 25),
        ] {
            assert_eq!(checkpoint_room(free), room, "{free}");
        }
    }

    #[test]
    fn the_last_errors_of_a_log() {
        // CKPT-02
        let log = "(0.1) Error (a.c:1): 1\n(0.2) Error (a.c:2): 2\n(0.3) well\n(0.4) Error (b.c:3): \u{1b}3\n(0.5) Error 4\n(0.6) done\n";
        let errors = "(0.2) Error (a.c:2): 2; (0.4) Error (b.c:3): ?3; (0.5) Error 4";
        assert_eq!(find_last_errors(log), errors);
        assert_eq!(find_last_errors("all is well\n"), "");
        let long = format!("Error {}", "ä".repeat(1000));
        assert_eq!(find_last_errors(&long).len(), MAX_REASON_BYTES);
    }

    #[test]
    fn files_outside_of_the_container() {
        // CKPT-02
        let fdinfo = "pos:\t0\nflags:\t0500002\nmnt_id:\t55\nino:\t7\n";
        assert_eq!(parse_mount_id(fdinfo), Some(55));
        assert_eq!(parse_mount_id("pos:\t0\n"), None);
        let text = criu_configuration(Some((55, &[10, 255])));
        assert_eq!(
            text,
            "network-lock skip\nexternal file[37:a]\nexternal file[37:ff]\n"
        );
        assert_eq!(criu_configuration(None), "network-lock skip\n");
    }

    #[test]
    fn files_that_describe_the_container() {
        // CKPT-03
        let subject = CheckpointSubject {
            id: "1a",
            name: "app",
            image: "busybox:1",
            image_ref: "busybox@sha256:2b",
            runtime: "runc",
            pid: 7,
            created_at: WallTime(1),
            started_at: WallTime(2),
            checkpointed_at: AT,
        };
        let expected = json!({
            "id": "1a", "name": "app", "rootfsImage": "busybox:1", "rootfsImageRef": "busybox@sha256:2b",
            "rootfsImageName": "busybox:1", "runtime": "runc", "createdTime": "1970-01-01T00:00:00Z",
            "checkpointedTime": "2026-01-02T03:04:05Z", "restoredTime": "0001-01-01T00:00:00Z", "restored": false,
        });
        assert_eq!(subject.config_dump(), expected);
        let status = subject.status_dump();
        assert_eq!(
            (&status["StartedAt"], &status["Pid"]),
            (&json!(2), &json!(7))
        );
    }
}
