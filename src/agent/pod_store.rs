//! Pod specs on disk: `<root>/pods/<uid>/pod.json`, read when a sync needs one and dropped after.
//!
//! ```text
//! {"v":1,"source":"file","resourceVersion":"","digest":123}\n
//! {…the object as received, defaulted…}\n
//! ```
//!
//! Written once a change, by rename, mode 0600. What a record holds is never trusted to be whole: an unreadable one is
//! an error of that pod alone.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::api::PodUid;
use crate::api::strict::from_json;
use crate::sys::crash;

/// Version of the record's form.
pub(super) const RECORD_VERSION: u32 = 1;
/// Bytes of a record: a manifest's limit and room for defaults.
pub(super) const MAX_RECORD_BYTES: u64 = 12 << 20;
/// Mode of a pod's directory (SYNC-08).
const POD_DIR_MODE: u32 = 0o750;

/// First line of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Header {
    /// [`RECORD_VERSION`].
    pub(super) v: u32,
    /// `file`, `http` or `api`.
    pub(super) source: String,
    /// Version at the apiserver; empty for static pods.
    #[serde(default)]
    pub(super) resource_version: String,
    /// Semantic digest of the object.
    #[serde(default)]
    pub(super) digest: u64,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// The file system said no.
    #[error("pod record {path}")]
    Io {
        /// The record.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The record is damaged or of another version.
    #[error("pod record {path} is unusable: {why}")]
    Damaged {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// The records of one agent.
#[derive(Clone, Debug)]
pub(super) struct PodStore {
    pods: PathBuf,
}

impl PodStore {
    /// Records below `root`, which must exist.
    #[must_use]
    pub(super) fn new(root: &Path) -> Self {
        Self {
            pods: root.join("pods"),
        }
    }

    /// Directory of one pod.
    #[must_use]
    pub(super) fn dir(&self, uid: &PodUid) -> PathBuf {
        self.pods.join(uid.as_str())
    }

    /// Writes the record of one pod.
    pub(super) fn write(
        &self,
        uid: &PodUid,
        header: &Header,
        object: &serde_json::Value,
    ) -> Result<(), StoreError> {
        self.write_as("pod.json", uid, header, object)?;
        // What was kept for after an incarnation before this one is older than this.
        let path = self.dir(uid).join("next.json");
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::Io { path, source })
            }
            _ => Ok(()),
        }
    }

    fn write_as(
        &self,
        name: &str,
        uid: &PodUid,
        header: &Header,
        object: &serde_json::Value,
    ) -> Result<(), StoreError> {
        let dir = self.dir(uid);
        let path = dir.join(name);
        let staged = dir.join(format!(".{name}.new"));
        let attempt = || -> io::Result<()> {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(POD_DIR_MODE)
                .create(&dir)?;
            crash::point("pod.directory");
            let file = fs::File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&staged)?;
            let mut out = io::BufWriter::new(file);
            serde_json::to_writer(&mut out, header)?;
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut out, object)?;
            out.write_all(b"\n")?;
            out.into_inner().map_err(io::IntoInnerError::into_error)?;
            crash::point("pod.staged");
            fs::rename(&staged, &path)?;
            crash::point("pod.recorded");
            Ok(())
        };
        attempt().map_err(|source| {
            // On a full disk the half-written file would keep its blocks.
            let _ = fs::remove_file(&staged);
            StoreError::Io {
                path: path.clone(),
                source,
            }
        })
    }

    /// Reads header and object of one pod.
    pub(super) fn read<T: serde::de::DeserializeOwned>(
        &self,
        uid: &PodUid,
    ) -> Result<(Header, T), StoreError> {
        let path = self.dir(uid).join("pod.json");
        let damaged = |why: String| StoreError::Damaged {
            path: path.clone(),
            why,
        };
        let mut text = Vec::new();
        fs::File::open(&path)
            .and_then(|file| file.take(MAX_RECORD_BYTES + 1).read_to_end(&mut text))
            .map_err(|source| StoreError::Io {
                path: path.clone(),
                source,
            })?;
        if text.len() as u64 > MAX_RECORD_BYTES {
            return Err(damaged(format!("over {MAX_RECORD_BYTES} bytes")));
        }
        parse(&text).map_err(damaged)
    }

    /// The result of decoding a record's object, with the record named if that failed.
    pub(super) fn decoded<T>(
        &self,
        uid: &PodUid,
        decoded: Result<T, String>,
    ) -> Result<T, StoreError> {
        decoded.map_err(|why| StoreError::Damaged {
            path: self.dir(uid).join("pod.json"),
            why,
        })
    }

    /// Keeps the object of a pod that shall start again once its present incarnation has ended.
    pub(super) fn write_next(
        &self,
        uid: &PodUid,
        header: &Header,
        object: &serde_json::Value,
    ) -> Result<(), StoreError> {
        self.write_as("next.json", uid, header, object)
    }

    /// Makes the object kept by [`PodStore::write_next`] the pod's record. None kept is success.
    pub(super) fn adopt_next(&self, uid: &PodUid) -> Result<(), StoreError> {
        let dir = self.dir(uid);
        let path = dir.join("next.json");
        match fs::rename(&path, dir.join("pod.json")) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::Io { path, source })
            }
            _ => Ok(()),
        }
    }
}

/// Header and object of a record, or what is wrong with it.
fn parse<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<(Header, T), String> {
    let at = text.iter().position(|&b| b == b'\n');
    let at = at.ok_or("no header line")?;
    let header: Header = from_json(&text[..at]).map_err(|e| format!("header: {e}"))?;
    if header.v != RECORD_VERSION {
        return Err(format!("version {} is not {RECORD_VERSION}", header.v));
    }
    let object = from_json(&text[at + 1..]).map_err(|e| e.to_string())?;
    Ok((header, object))
}

/// For [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) -> String {
    use crate::logic::static_pod;
    let read = parse::<serde_json::Value>(data);
    match read.and_then(|(_, object)| static_pod::decode(&object)) {
        Ok(_) => "ok".into(),
        Err(e) => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Pod;

    #[test]
    fn a_record_for_later_waits_and_never_outlives_a_newer_one() {
        let root = std::env::temp_dir().join(format!("picolet-store-next-{}", std::process::id()));
        let store = PodStore::new(&root);
        let uid = PodUid::from("abc");
        let header = Header {
            v: RECORD_VERSION,
            ..Header::default()
        };
        let named = |name: &str| serde_json::json!({"metadata": {"name": name}});
        let name = || store.read::<Pod>(&uid).expect("read").1.metadata.name;
        store.write(&uid, &header, &named("a")).expect("write");
        store.write_next(&uid, &header, &named("b")).expect("next");
        assert_eq!(name(), "a", "the stop still needs the old object");
        store.adopt_next(&uid).expect("adopt");
        assert_eq!(name(), "b");
        store.adopt_next(&uid).expect("nothing kept is success");
        store.write_next(&uid, &header, &named("c")).expect("next");
        store.write(&uid, &header, &named("d")).expect("write");
        store.adopt_next(&uid).expect("adopt");
        assert_eq!(name(), "d", "an old one kept for later is not adopted");
        fs::remove_dir_all(&root).expect("clean up");
    }

    #[test]
    fn records_come_back_and_damage_is_named() {
        let root = std::env::temp_dir().join(format!("picolet-store-{}", std::process::id()));
        let store = PodStore::new(&root);
        let uid = PodUid::from("abc");
        let header = Header {
            v: RECORD_VERSION,
            source: "file".into(),
            digest: 7,
            ..Header::default()
        };
        let object = serde_json::json!({"metadata": {"name": "p", "uid": "abc"}, "spec": {"unknownField": 1}});
        store.write(&uid, &header, &object).expect("write");
        let (back, value) = store.read::<serde_json::Value>(&uid).expect("read");
        assert_eq!(
            (back, &value),
            (header.clone(), &object),
            "fields that are not modelled are kept"
        );
        assert_eq!(store.read::<Pod>(&uid).expect("pod").1.metadata.name, "p");
        let path = store.dir(&uid).join("pod.json");
        for (name, text) in [
            ("empty", ""),
            ("no object", "{\"v\":1,\"source\":\"file\"}\n"),
            ("torn", "{\"v\":1,\"source\":\"file\"}\n{\"metadata\":{\"na"),
            ("other version", "{\"v\":9,\"source\":\"file\"}\n{}\n"),
        ] {
            fs::write(&path, text).expect("write");
            let error = store.read::<Pod>(&uid).expect_err(name).to_string();
            assert!(error.contains("pod.json is unusable"), "{name}: {error}");
        }
        fs::remove_dir_all(&root).expect("clean up");
        assert!(matches!(
            store.read::<Pod>(&uid),
            Err(StoreError::Io { .. })
        ));
    }
}
