//! Crash-loop delays in the run dir, so that a new agent does not start a crash loop over at full speed: `backoff.json`,
//! written by rename at each granted restart.

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use super::boot_file::{self, boot_id};
use crate::logic::backoff::Record;

/// Version of the file's form.
const VERSION: u32 = 1;
/// Name in the run dir.
const FILE: &str = "backoff.json";
/// Bytes read of it: ten times what the largest table of pods can fill.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    v: u32,
    /// The records' times count from the start of this boot.
    boot_id: String,
    records: Vec<Record>,
}

/// Writes the delays down. Failing costs no more than a restart that comes too early, so it is only told. Blocking.
pub(super) fn save(run: &Path, records: Vec<Record>) {
    let stored = Stored {
        v: VERSION,
        boot_id: boot_id(),
        records,
    };
    if let Err(e) = boot_file::write(run, FILE, &stored) {
        log::warn!("cannot store crash-loop delays: {e}");
    }
}

/// What an earlier agent of this boot stored. Nothing there is the usual case; what cannot be read is told and forgotten.
pub(super) fn restore(run: &Path) -> Vec<Record> {
    match read(run) {
        Ok(Some(stored)) if stored.v == VERSION && stored.boot_id == boot_id() => stored.records,
        Ok(_) => Vec::new(),
        Err(e) => {
            log::warn!("crash-loop delays of the agent before are lost: {e}");
            Vec::new()
        }
    }
}

fn read(run: &Path) -> io::Result<Option<Stored>> {
    boot_file::read(run, FILE, MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{api::Mono, logic::backoff::Key};

    #[test]
    fn what_is_written_is_read_and_damage_is_an_error() {
        let run = std::env::temp_dir().join(format!("picolet-backoff-{}", std::process::id()));
        fs::create_dir_all(&run).expect("directory");
        assert!(read(&run).expect("missing").is_none());
        let record = Record {
            key: Key(u64::MAX),
            last: Mono(5),
            delay_ms: 20_000,
        };
        let stored = Stored {
            v: VERSION,
            boot_id: boot_id(),
            records: vec![record],
        };
        boot_file::write(&run, FILE, &stored).expect("write");
        let back = read(&run).expect("read").expect("there");
        assert_eq!((back.records, back.boot_id), (vec![record], boot_id()));
        fs::write(run.join(FILE), "{\"v\":1").expect("write");
        assert!(read(&run).is_err());
        fs::remove_dir_all(&run).expect("clean up");
    }
}
