//! Archives whose bytes follow from what is in them: sorted, of root, of one date, compressed without name and date.

use std::{collections::BTreeMap, io::Write as _, path::Path};

use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::Failure;

/// What an archive shall hold.
#[derive(Default)]
pub(super) struct Tree {
    entries: BTreeMap<String, Entry>,
}

enum Entry {
    Dir,
    File { mode: u32, bytes: Vec<u8> },
    Link { to: String },
}

impl Tree {
    /// Adds a file, and the directories that it is in.
    pub(super) fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.add(path, Entry::File { mode, bytes });
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, to: &str) {
        self.add(path, Entry::Link { to: to.into() });
    }

    fn add(&mut self, path: &str, entry: Entry) {
        let above = Path::new(path).ancestors().skip(1);
        for dir in above.filter(|dir| !dir.as_os_str().is_empty() && *dir != Path::new(".")) {
            let dir = format!("{}/", dir.display());
            self.entries.entry(dir).or_insert(Entry::Dir);
        }
        self.entries.insert(path.into(), entry);
    }

    /// KiB that the files take, as Debian counts.
    pub(super) fn kib(&self) -> usize {
        let of = |entry: &Entry| match entry {
            Entry::File { bytes, .. } => bytes.len().div_ceil(1024),
            Entry::Dir | Entry::Link { .. } => 1,
        };
        self.entries.values().map(of).sum()
    }

    /// The archive.
    pub(super) fn tar_gz(&self, date: u64) -> Result<Vec<u8>, Failure> {
        let mut archive = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(date);
            let (kind, mode, bytes) = match entry {
                Entry::Dir => (EntryType::Directory, 0o755, &[][..]),
                Entry::File { mode, bytes } => (EntryType::Regular, *mode, bytes.as_slice()),
                Entry::Link { .. } => (EntryType::Symlink, 0o777, &[][..]),
            };
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_size(bytes.len() as u64);
            match entry {
                Entry::Link { to } => archive.append_link(&mut header, path, to)?,
                Entry::Dir | Entry::File { .. } => archive.append_data(&mut header, path, bytes)?,
            }
        }
        gzip(&archive.into_inner()?)
    }
}

/// Compresses, as `gzip -9n` does.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut out = GzBuilder::new().write(Vec::new(), Compression::best());
    out.write_all(bytes)?;
    Ok(out.finish()?)
}

/// An archive of ar(1), as Debian packages are. Source: deb(5).
pub(super) fn ar(members: &[(&str, &[u8])], date: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let len = bytes.len();
        out.extend(
            format!(
                "{name:<16}{date:<12}{:<6}{:<6}{:<8}{len:<10}`\n",
                0, 0, "100644"
            )
            .bytes(),
        );
        out.extend_from_slice(bytes);
        if len % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}
