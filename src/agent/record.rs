//! Small files that an agent leaves to the next one: JSON, replaced by rename. A file counts as damaged if it is torn,
//! or longer than its limit.
//!
//! A [`BootRecord`] lies in the run dir and holds for one boot. The run dir is on tmpfs as a rule: records cost no
//! flash, and a power cut takes all of them. Files in the root directory ([`keep_record`], [`recall_record`]) are durable.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    api::strict::from_json,
    sys::{crash, file},
};

/// Identity of this boot; empty if the kernel does not tell.
pub(crate) fn read_boot_id() -> String {
    let mut text = String::new();
    let file = File::open("/proc/sys/kernel/random/boot_id");
    // Without an id, records are told apart by their times alone.
    let _ = file.and_then(|f| f.take(64).read_to_string(&mut text));
    text.trim().to_owned()
}

/// A record of this boot.
pub(crate) struct BootRecord {
    /// Name in the run dir.
    pub(crate) name: &'static str,
    /// Version of the record's form.
    pub(crate) version: u32,
    /// Most bytes that are read of the file.
    pub(crate) max_bytes: u64,
    /// Words of the warning if the file cannot be read: the facts that are lost then.
    pub(crate) lost: &'static str,
}

/// The fields that all records of a boot begin with.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BootHeader {
    v: u32,
    boot_id: String,
}

impl BootRecord {
    /// Replaces the file. `content` has at least one field. Blocking.
    pub(crate) fn write_boot_record(
        &self,
        run: &Path,
        boot_id: &str,
        content: &impl Serialize,
    ) -> io::Result<()> {
        let header = BootHeader {
            v: self.version,
            boot_id: boot_id.to_owned(),
        };
        let staged = run.join(format!(".{}.new", self.name));
        file::mark_change(&staged)?;
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&staged)?;
        // The fields of both become one object.
        let mut text = serde_json::to_vec(&header)?;
        text.pop();
        text.push(b',');
        let content = serde_json::to_vec(content)?;
        text.extend_from_slice(content.strip_prefix(b"{").unwrap_or(&content));
        file.write_all(&text)?;
        crash::point("boot-file.staged");
        file::mark_change(&run.join(self.name))?;
        fs::rename(&staged, run.join(self.name))
    }

    /// Reads the record that an earlier agent of this boot wrote. No file is the usual case; a file that cannot be read
    /// is logged. Blocking.
    pub(crate) fn recall_boot_record<T: DeserializeOwned>(
        &self,
        run: &Path,
        boot_id: &str,
    ) -> Option<T> {
        self.read_boot_record(run, boot_id).unwrap_or_else(|e| {
            log::warn!("{}: {e}", self.lost);
            None
        })
    }

    fn read_boot_record<T: DeserializeOwned>(
        &self,
        run: &Path,
        boot_id: &str,
    ) -> io::Result<Option<T>> {
        let Some(text) = read_text(&run.join(self.name), self.max_bytes)? else {
            return Ok(None);
        };
        let header: BootHeader = from_json(&text)?;
        if header.v != self.version || header.boot_id != boot_id {
            return Ok(None);
        }
        Ok(Some(from_json(&text)?))
    }
}

fn read_text(path: &Path, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    match file::read_start(path, max_bytes) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Reads a record; `None`: there is no file. Blocking.
pub(crate) fn read_record<T: DeserializeOwned>(
    path: &Path,
    max_bytes: u64,
) -> io::Result<Option<T>> {
    let text = read_text(path, max_bytes)?;
    Ok(text.map(|text| from_json(&text)).transpose()?)
}

/// Reads a record; `None`: there is no file, or none that can be used, which is logged. Blocking.
pub(crate) fn recall_record<T: DeserializeOwned>(path: &Path, max_bytes: u64) -> Option<T> {
    read_record(path, max_bytes).unwrap_or_else(|e| {
        log::warn!("{}: {e}", path.display());
        None
    })
}

/// Keeps a record durably. The file is written only if its content changes. Blocking.
pub(crate) fn keep_record<T>(path: &Path, content: &T, max_bytes: u64) -> io::Result<()>
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    if read_record(path, max_bytes).is_ok_and(|known| known.as_ref() == Some(content)) {
        return Ok(());
    }
    write_record(path, content)
}

/// Writes a record durably, also if its content is the same: a write that failed at its end may have left it in place without its
/// name being safe. Blocking.
pub(crate) fn write_record(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(content)?;
    file::write_atomic(path, &text, 0o600, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Content {
        records: Vec<u64>,
    }

    #[test]
    fn a_record_of_this_boot_comes_back() {
        let run = crate::testing::unused_path("record");
        fs::create_dir_all(&run).expect("directory");
        let record = BootRecord {
            name: "a.json",
            version: 1,
            max_bytes: 1000,
            lost: "all is lost",
        };
        let read = |boot: &str| record.read_boot_record::<Content>(&run, boot).map_err(drop);
        assert_eq!(read("b"), Ok(None), "there is none");
        let content = Content {
            records: vec![5, u64::MAX],
        };
        record
            .write_boot_record(&run, "b", &content)
            .expect("written");
        let path = run.join("a.json");
        let text = fs::read_to_string(&path).expect("there");
        assert_eq!(
            text,
            r#"{"v":1,"bootId":"b","records":[5,18446744073709551615]}"#
        );
        assert_eq!(read("b"), Ok(Some(content)));
        assert_eq!(read("c"), Ok(None), "of another boot");
        fs::write(&path, text.replace(":1", ":2")).expect("written");
        assert_eq!(read("b"), Ok(None), "of another version");
        for damaged in ["{\"v\":1", "", r#"{"v":1,"bootId":"b"}"#] {
            fs::write(&path, damaged).expect("written");
            assert_eq!(read("b"), Err(()), "{damaged}");
            assert!(record.recall_boot_record::<Content>(&run, "b").is_none());
        }
        fs::remove_dir_all(&run).expect("clean up");
    }
}
