//! Small files in the run dir that an agent leaves to the next one of this boot: JSON, replaced by rename. On tmpfs as a rule,
//! so that they cost no flash and a power cut takes all of them.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::sys::{crash, file};

/// Identity of this boot; empty if the kernel does not tell.
pub(super) fn boot_id() -> String {
    let mut text = String::new();
    let file = File::open("/proc/sys/kernel/random/boot_id");
    // Without one, records are told apart by their times alone.
    let _ = file.and_then(|f| f.take(64).read_to_string(&mut text));
    text.trim().to_owned()
}

/// Replaces the file with that name. Blocking.
pub(super) fn write(run: &Path, name: &str, stored: &impl Serialize) -> io::Result<()> {
    let staged = run.join(format!(".{name}.new"));
    file::change(&staged)?;
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&staged)?;
    let mut out = io::BufWriter::new(file);
    serde_json::to_writer(&mut out, stored)?;
    out.flush()?;
    crash::point("boot-file.staged");
    file::change(&run.join(name))?;
    fs::rename(&staged, run.join(name))
}

/// What the file with that name says, of which at most `max_bytes` are read. `None`: there is none.
pub(super) fn read<T: DeserializeOwned>(
    run: &Path,
    name: &str,
    max_bytes: u64,
) -> io::Result<Option<T>> {
    let file = match File::open(run.join(name)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}
