//! Records of sandboxes and containers in the run directory, so that the next agent finds them.
//!
//! A record is written as an *intent* before the sandbox or container is made, and its directory is removed last:
//! leftovers of a crash are found by name. Ids are derived, not drawn: a second try finds the leftovers of the first.

use core::net::IpAddr;
use std::{io, path::Path};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use super::files;
use crate::api::strict::from_json;
use crate::api::{
    ContainerId, PodUid, SandboxId, WallTime,
    cri::{ContainerConfig, MountStatus, SandboxConfig},
    encode_hex,
    oci::ResolvedUser,
};

/// Version of both records. Fields may be added without a new one.
pub const VERSION: u32 = 1;
/// Version of the record of a sandbox with a user namespace. Agents that do not know it leave such a sandbox alone:
/// they would run its containers as root of the host.
pub const VERSION_WITH_USERS: u32 = 2;
/// File name of a record in its directory.
pub const FILE: &str = "record.json";
/// Largest record, bytes: a pod's annotations may have 256 KiB, and JSON may need six bytes for one of them.
const LIMIT: u64 = 4 << 20;

/// Position of an instance or sandbox in the order of creation on this machine: (boot number, sequence in that boot).
/// It holds even if the clock is set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CreationOrder(pub u32, pub u32);

/// Phase of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxPhase {
    /// The sandbox is being made, or the agent died while making it.
    Making,
    /// The sandbox can be used.
    Ready,
    /// The sandbox is stopped: it has no namespaces and no network.
    Stopped,
}

/// A process that keeps a PID namespace alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PidNamespaceHolder {
    /// Pid.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// [`VERSION`] or [`VERSION_WITH_USERS`].
    pub v: u32,
    /// Id.
    pub id: SandboxId,
    /// Boot in which it was made.
    pub boot_id: String,
    /// Place among all sandboxes and instances.
    pub created: CreationOrder,
    /// Time of the creation, for the API.
    pub created_at: WallTime,
    /// Phase that the sandbox has reached.
    pub phase: SandboxPhase,
    /// Configuration of the call that made it.
    pub config: SandboxConfig,
    /// Pod IPs, primary first.
    pub ips: Vec<IpAddr>,
    /// Init of the shared PID namespace, if it has one.
    pub holder: Option<PidNamespaceHolder>,
}

/// An instance of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// [`VERSION`].
    pub v: u32,
    /// Id.
    pub id: ContainerId,
    /// Sandbox of the instance.
    pub sandbox: SandboxId,
    /// Pod of the instance.
    pub uid: PodUid,
    /// Boot in which it was made.
    pub boot_id: String,
    /// Place among all sandboxes and instances.
    pub created: CreationOrder,
    /// Time of the creation, for the API.
    pub created_at: WallTime,
    /// Set if the bundle is complete. False: the agent died while making it.
    pub made: bool,
    /// Time at which the runtime's `start` succeeded.
    pub started_at: Option<WallTime>,
    /// Failure of its start: (message, wall clock, milliseconds since boot).
    pub failure: Option<(String, WallTime, u64)>,
    /// Configuration of the call that made it, without environment, mounts and command (they are in `config.json`).
    pub config: ContainerConfig,
    /// Name of the image that the API shows as `imageID`.
    pub image_ref: String,
    /// Key of the image in the store.
    pub image: String,
    /// Keys of the images that it mounts as volumes, sorted, each once.
    #[serde(default)]
    pub volume_images: Vec<String>,
    /// Mounts of which the status tells.
    #[serde(default)]
    pub mounts: Vec<MountStatus>,
    /// Ids in force.
    pub user: ResolvedUser,
    /// Stop signal in force: a name or number.
    pub stop_signal: String,
    /// Log file, absolute.
    pub log: String,
    /// Cgroup, absolute within the hierarchy.
    pub cgroup: String,
    /// The termination log on the host, empty for none.
    pub termination_file: String,
}

/// Id of the sandbox of a pod's `attempt`.
#[must_use]
pub fn sandbox_id(uid: &PodUid, attempt: u32) -> SandboxId {
    SandboxId::new(derive_id(uid, "", attempt))
}

/// Id of an instance.
#[must_use]
pub fn container_id(uid: &PodUid, name: &str, attempt: u32) -> ContainerId {
    ContainerId::new(derive_id(uid, name, attempt))
}

/// 32 hexadecimal digits. Neither UIDs nor container names contain a line feed.
fn derive_id(uid: &PodUid, name: &str, attempt: u32) -> String {
    const BYTES: usize = 16;
    let hash = Sha256::digest(format!("{uid}\n{name}\n{attempt}"));
    encode_hex(&hash[..BYTES])
}

/// Writes a record atomically. Refuses a record that is too large to be read again.
pub fn save_record<T: Serialize>(dir: &Path, record: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(record)?;
    if usize::try_from(LIMIT).is_ok_and(|limit| bytes.len() > limit) {
        let text = format!("its record has more than {LIMIT} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    files::write_atomic(&dir.join(FILE), &bytes)
}

/// Reads a record. `None` if there is none; an error also for one of a later version.
pub fn load_record<T: DeserializeOwned>(dir: &Path) -> io::Result<Option<T>> {
    #[derive(Deserialize)]
    struct RecordVersion {
        v: u32,
    }
    let bytes = match files::read_start(&dir.join(FILE), LIMIT) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let RecordVersion { v } = from_json(&bytes)?;
    if !(1..=VERSION_WITH_USERS).contains(&v) {
        return Err(io::Error::other(format!(
            "version {v} is not known to this build (knows 1 to {VERSION_WITH_USERS})"
        )));
    }
    Ok(Some(from_json(&bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_derived() {
        // RTM-01
        let uid = PodUid::new("0a1b");
        let all = [
            container_id(&uid, "app", 0).to_string(),
            container_id(&uid, "app", 1).to_string(),
            container_id(&uid, "ap", 0).to_string(),
            sandbox_id(&uid, 0).to_string(),
            sandbox_id(&uid, 1).to_string(),
            sandbox_id(&PodUid::new("0a1c"), 0).to_string(),
        ];
        for (i, id) in all.iter().enumerate() {
            assert_eq!(id.len(), 32);
            assert!(!all[..i].contains(id), "{id}");
        }
        assert_eq!(all[0], container_id(&uid, "app", 0).to_string());
        // Pinned: another build must find what this one made.
        assert_eq!(all[3], "2a93212fa2f3a08621306072d73e4e5b");
    }

    #[test]
    fn what_is_written_can_be_read() {
        // RTM-02 KILL-07
        let dir = crate::testing::unused_path("record-large");
        std::fs::create_dir_all(&dir).expect("dir");
        let text = include_str!("../../../tests/golden/sandbox_record.1.json");
        let mut record: SandboxRecord = from_json(text.as_bytes()).expect("read");
        // As many bytes as annotations may have, of which JSON makes six each.
        let value = "\u{1}".repeat(256 << 10);
        record.config.annotations.insert("a".into(), value.clone());
        save_record(&dir, &record).expect("written");
        let read: SandboxRecord = load_record(&dir).expect("read").expect("there");
        assert!(read == record);
        record.config.annotations.insert("b".into(), value.clone());
        record.config.annotations.insert("c".into(), value);
        let refused = save_record(&dir, &record).expect_err("too large");
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        let read: SandboxRecord = load_record(&dir).expect("read").expect("there");
        assert!(read.config.annotations.len() < record.config.annotations.len());
        std::fs::remove_dir_all(dir).expect("clean");
    }

    #[test]
    fn records_of_version_1_are_still_read() {
        let dir = crate::testing::unused_path("record");
        std::fs::create_dir_all(&dir).expect("dir");
        assert!(
            load_record::<SandboxRecord>(&dir)
                .expect("absent")
                .is_none()
        );
        let text = include_str!("../../../tests/golden/sandbox_record.1.json");
        std::fs::write(dir.join(FILE), text).expect("write");
        let sandbox: SandboxRecord = load_record(&dir).expect("read").expect("there");
        assert_eq!(
            (sandbox.phase, sandbox.created),
            (SandboxPhase::Ready, CreationOrder(3, 7))
        );
        let text = include_str!("../../../tests/golden/container_record.1.json");
        std::fs::write(dir.join(FILE), text).expect("write");
        let container: ContainerRecord = load_record(&dir).expect("read").expect("there");
        assert_eq!((container.made, container.config.attempt), (true, 2));
        std::fs::write(dir.join(FILE), text.replace("\"v\":1", "\"v\":3")).expect("write");
        let error = load_record::<ContainerRecord>(&dir).expect_err("later version");
        assert!(error.to_string().contains("version 3"), "{error}");
        std::fs::remove_dir_all(dir).expect("clean");
    }
}
