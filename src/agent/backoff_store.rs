//! Crash-loop delays in the run dir, so that a new agent does not start a crash loop over at full speed: `backoff.json`,
//! written by rename at each granted restart.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::record::{BootRecord, read_boot_id};
use crate::logic::backoff::BackoffRecord;

/// The delays: ten times what the largest table of pods can fill.
const RECORD: BootRecord = BootRecord {
    name: "backoff.json",
    version: 1,
    max_bytes: 4 << 20,
    lost: "crash-loop delays of the previous agent are lost",
};

#[derive(Debug, Default, Serialize, Deserialize)]
struct BackoffFile {
    /// Delays; their times count from the start of this boot.
    records: Vec<BackoffRecord>,
}

/// Writes the delays down. Failing costs no more than a restart that comes too early, so it is only told. Blocking.
pub(super) fn save_backoffs(run: &Path, records: Vec<BackoffRecord>) {
    if let Err(e) = RECORD.write_boot_record(run, &read_boot_id(), &BackoffFile { records }) {
        log::warn!("cannot store crash-loop delays: {e}");
    }
}

/// Reads the delays that an earlier agent of this boot stored. A file that cannot be read is reported and dropped.
pub(super) fn restore_backoffs(run: &Path) -> Vec<BackoffRecord> {
    let stored: Option<BackoffFile> = RECORD.recall_boot_record(run, &read_boot_id());
    stored.unwrap_or_default().records
}
