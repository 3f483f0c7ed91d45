//! Files with the credentials that images were pulled with.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    agent::record,
    api::encode_hex,
    logic::image_access::{PulledRecord, RECORD_VERSION},
    sys::file,
};

/// Bytes of a file: more than a record can have.
const MAX_FILE_BYTES: u64 = 16 << 20;

#[derive(Serialize, Deserialize)]
struct PullIntent {
    v: u32,
    image: String,
}

const PULLED: &str = "pulled";
const PULLING: &str = "pulling";

/// The files of one agent. Every call blocks.
#[derive(Clone)]
pub(super) struct ImageRecordFiles {
    dir: PathBuf,
}

impl ImageRecordFiles {
    /// Files below `root`.
    pub(super) fn below_root(root: &Path) -> Self {
        Self {
            dir: root.join("image_manager"),
        }
    }

    fn record_path(&self, kind: &str, name: &str) -> PathBuf {
        self.dir.join(kind).join(record_file_name(name))
    }

    /// Reads the record of an image.
    pub(super) fn read_record(&self, id: &str) -> io::Result<Option<PulledRecord>> {
        let record: Option<PulledRecord> =
            record::read_record(&self.record_path(PULLED, id), MAX_FILE_BYTES)?;
        match record {
            Some(record) if record.v != RECORD_VERSION || record.image != id => {
                Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "its record belongs to another image or version",
                ))
            }
            record => Ok(record),
        }
    }

    /// Returns true if a pull of `reference` has begun and not ended.
    pub(super) fn is_pull_noted(&self, reference: &str) -> bool {
        self.record_path(PULLING, reference).exists()
    }

    /// Notes that a pull begins.
    pub(super) fn note_pull_begin(&self, reference: &str) -> io::Result<()> {
        if self.is_pull_noted(reference) {
            return Ok(());
        }
        let intent = PullIntent {
            v: RECORD_VERSION,
            image: reference.into(),
        };
        self.write_record(PULLING, reference, &intent)
    }

    /// Notes that a pull has ended.
    pub(super) fn note_pull_end(&self, reference: &str) {
        remove_or_warn(&self.record_path(PULLING, reference));
    }

    /// References of all pulls that have begun and not ended.
    pub(super) fn unfinished_pulls(&self) -> Vec<String> {
        let names = self.list_names(PULLING).into_iter();
        let intents = names.filter_map(|name| {
            let path = self.dir.join(PULLING).join(&name);
            let intent: Option<PullIntent> =
                record::read_record(&path, MAX_FILE_BYTES).ok().flatten();
            if intent.is_none() {
                remove_or_warn(&path);
            }
            intent.map(|intent| intent.image)
        });
        intents.collect()
    }

    /// Changes the record of an image. One that cannot be read is made anew.
    pub(super) fn change_record(
        &self,
        image: &str,
        change: impl FnOnce(&mut PulledRecord) -> bool,
    ) -> io::Result<()> {
        let known = self.read_record(image).unwrap_or_else(|e| {
            log::warn!("the record of the credentials for image {image} is replaced: {e}");
            None
        });
        let mut record = known.clone().unwrap_or_else(|| PulledRecord::new(image));
        if change(&mut record) && known.as_ref() != Some(&record) {
            self.write_record(PULLED, image, &record)?;
        }
        Ok(())
    }

    fn write_record(&self, kind: &str, name: &str, content: &impl Serialize) -> io::Result<()> {
        let path = self.record_path(kind, name);
        if let Some(dir) = path.parent()
            && !dir.exists()
        {
            file::make_dirs(dir, 0o700)?;
        }
        file::write_atomic(&path, &serde_json::to_vec(content)?, 0o600, true)
    }

    /// Names of files.
    fn list_names(&self, kind: &str) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join(kind));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Names of all records.
    pub(super) fn list_records(&self) -> Vec<String> {
        self.list_names(PULLED)
    }

    /// Removes records.
    pub(super) fn remove_records(&self, names: &[String]) {
        for name in names {
            remove_or_warn(&self.dir.join(PULLED).join(name));
        }
    }
}

/// Ids and references may be longer than names of files, and have slashes.
pub(super) fn record_file_name(name: &str) -> String {
    encode_hex(&Sha256::digest(name.as_bytes()))
}

fn remove_or_warn(path: &Path) {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            log::warn!("cannot remove {}: {e}", path.display());
        }
        _ => {}
    }
}
