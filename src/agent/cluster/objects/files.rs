//! Copies of what pods refer to, on disk: they spare the agent's memory, and pods start from them while the apiserver is
//! away.
//!
//! ```text
//! <root>/objects/<kind>-<32 hex digits>     one object, or one token
//! {"v":1,"kind":"secret","namespace":"ns","name":"n"}\n
//! {…the object, without what nobody here reads…}\n
//! ```
//!
//! Mode 0600 in a directory of mode 0700. With `offlineSecrets: memory`, Secrets and tokens lie below the run directory
//! instead, which a reboot clears. A file is written only if its content changes, by rename; it is on disk for good after
//! [`ObjectFiles::sync_files`], which groups writes: one that is lost or damaged before is as good as none, and read anew.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::api::{PodUid, encode_hex, order::GatherExt as _, strict};
use crate::logic::pod_refs::{PodObjectKey, PodObjectKind, TokenRef};
use crate::sys::{crash, file};

/// Version of a file's form.
const VERSION: u32 = 1;
/// Bytes of a file: the largest object of an apiserver, each byte of it escaped.
const MAX_FILE_BYTES: u64 = 10 << 20;
/// Bytes of a name that are hashed into a file's.
const NAME_BYTES: usize = 16;
/// Name of the directory.
const DIR: &str = "objects";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ObjectFileHeader {
    v: u32,
    kind: String,
    namespace: String,
    name: String,
}

/// Copy of an object on disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ObjectCopy {
    /// Content of the object.
    Held(Vec<u8>),
    /// Note that there is no such object.
    Missing,
    /// No file, or none that can be used.
    None,
}

/// The files of one agent.
#[derive(Clone, Debug)]
pub(super) struct ObjectFiles {
    open: PathBuf,
    secret: PathBuf,
}

impl ObjectFiles {
    /// Files below `root`; those of Secrets and tokens below `secrets`, which is the same or the run directory. Nothing is
    /// made before it is needed.
    pub(super) fn new(root: &Path, secrets: &Path) -> Self {
        Self {
            open: root.join(DIR),
            secret: secrets.join(DIR),
        }
    }

    fn kind_dir(&self, is_secret: bool) -> &Path {
        if is_secret { &self.secret } else { &self.open }
    }

    fn object_path(&self, key: &PodObjectKey) -> PathBuf {
        self.kind_dir(key.kind == PodObjectKind::Secret)
            .join(object_file_name(key))
    }

    fn token_path(&self, uid: &PodUid, token: &TokenRef) -> PathBuf {
        self.kind_dir(true).join(token_name(uid, token))
    }

    /// Reads the copy of an object.
    pub(super) fn read_copy(&self, key: &PodObjectKey) -> ObjectCopy {
        let path = self.object_path(key);
        match read_limited_file(&path).and_then(|text| parse_object_file(&text, key)) {
            Ok(copy) => copy,
            Err(e) if e.kind() == io::ErrorKind::NotFound => ObjectCopy::None,
            Err(e) => {
                log::warn!("{}: {e}: the copy of {key} is not used", path.display());
                ObjectCopy::None
            }
        }
    }

    /// Returns true if there is a file, whatever its content.
    pub(super) fn has_file(&self, key: &PodObjectKey) -> bool {
        self.object_path(key).exists()
    }

    /// Keeps a copy; `None`: that there is no such object. Returns the file if it was written anew.
    pub(super) fn write_copy(
        &self,
        key: &PodObjectKey,
        object: Option<&[u8]>,
    ) -> io::Result<Option<PathBuf>> {
        let header = ObjectFileHeader {
            v: VERSION,
            kind: key.kind.as_str().into(),
            namespace: key.namespace.as_ref().into(),
            name: key.name.as_ref().into(),
        };
        let mut text = serde_json::to_vec(&header)?;
        text.push(b'\n');
        if let Some(object) = object {
            text.extend_from_slice(object);
            text.push(b'\n');
        }
        write_if_changed(self.object_path(key), &text)
    }

    /// Removes the copy of an object. None there is success.
    pub(super) fn remove_copy(&self, key: &PodObjectKey) {
        remove_or_warn(&self.object_path(key));
    }

    /// Keeps a pod's first token; a later one is not kept. Returns the file if it was written.
    pub(super) fn write_token(
        &self,
        uid: &PodUid,
        token: &TokenRef,
        text: &str,
    ) -> io::Result<Option<PathBuf>> {
        let path = self.token_path(uid, token);
        if path.exists() {
            return Ok(None);
        }
        write_if_changed(path, &[text.as_bytes(), b"\n"].concat())
    }

    /// The token that was kept.
    pub(super) fn read_token(&self, uid: &PodUid, token: &TokenRef) -> Option<Vec<u8>> {
        let text = read_limited_file(&self.token_path(uid, token)).ok()?;
        // Without its end it was not written whole.
        let token = text.strip_suffix(b"\n")?;
        (!token.is_empty()).then(|| token.into())
    }

    /// Removes all tokens of a pod.
    pub(super) fn remove_tokens(&self, uid: &PodUid) {
        let prefix = token_prefix(uid);
        for (path, name) in list_files(self.kind_dir(true)) {
            if name.starts_with(&prefix) {
                remove_or_warn(&path);
            }
        }
    }

    /// Removes what no object of `keys` and no pod of `pods` owns.
    pub(super) fn remove_unowned(&self, keys: &BTreeSet<PodObjectKey>, pods: &BTreeSet<PodUid>) {
        let names: BTreeSet<String> = keys.iter().map(object_file_name).gather_items();
        let prefixes: BTreeSet<String> = pods.iter().map(token_prefix).gather_items();
        for dir in [&self.open, &self.secret] {
            for (path, name) in list_files(dir) {
                let of_token = name.get(..name.rfind('-').map_or(0, |at| at + 1));
                let keep = names.contains(&name) || of_token.is_some_and(|p| prefixes.contains(p));
                if !keep {
                    remove_or_warn(&path);
                }
            }
            if self.open == self.secret {
                break;
            }
        }
    }

    /// Makes written files survive a power cut.
    pub(super) fn sync_files(files: &[PathBuf]) -> io::Result<()> {
        let mut dirs = BTreeSet::new();
        for path in files {
            match File::open(path) {
                Ok(file) => file.sync_data()?,
                // Gone since.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            }
            dirs.extend(path.parent());
        }
        dirs.into_iter().try_for_each(file::sync_dir)
    }
}

fn parse_object_file(text: &[u8], key: &PodObjectKey) -> io::Result<ObjectCopy> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let end = text.iter().position(|&b| b == b'\n');
    let end = end.ok_or_else(|| bad("no header line"))?;
    let header: ObjectFileHeader = strict::from_json(&text[..end])?;
    if header.v != VERSION {
        return Err(bad("is of another version"));
    }
    if header.kind != key.kind.as_str()
        || *header.namespace != *key.namespace
        || *header.name != *key.name
    {
        return Err(bad("is of another object"));
    }
    match &text[end + 1..] {
        [] => Ok(ObjectCopy::Missing),
        [object @ .., b'\n'] => Ok(ObjectCopy::Held(object.into())),
        _ => Err(bad("has no end")),
    }
}

/// Names of objects may be longer than names of files, so these are digests.
fn object_file_name(key: &PodObjectKey) -> String {
    let PodObjectKey {
        kind,
        namespace,
        name,
    } = key;
    format!(
        "{}-{}",
        kind.as_str(),
        name_digest(&format!("{namespace}\n{name}"))
    )
}

fn token_prefix(uid: &PodUid) -> String {
    format!("token-{}-", name_digest(uid))
}

fn token_name(uid: &PodUid, token: &TokenRef) -> String {
    let seconds = token.expiration_s.unwrap_or(0);
    let which = name_digest(&format!("{seconds}\n{}", token.audience));
    format!("{}{which}", token_prefix(uid))
}

fn name_digest(text: &str) -> String {
    encode_hex(&Sha256::digest(text.as_bytes())[..NAME_BYTES])
}

fn read_limited_file(path: &Path) -> io::Result<Vec<u8>> {
    let text = file::read_start(path, MAX_FILE_BYTES + 1)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

/// Writes a file unless it says the same already.
fn write_if_changed(path: PathBuf, text: &[u8]) -> io::Result<Option<PathBuf>> {
    let len = u64::try_from(text.len()).unwrap_or(u64::MAX);
    if fs::metadata(&path).is_ok_and(|m| m.size() == len)
        && read_limited_file(&path).is_ok_and(|old| old == text)
    {
        return Ok(None);
    }
    if let Some(dir) = path.parent()
        && !dir.exists()
    {
        file::make_dirs(dir, 0o700)?;
    }
    crash::point("object.read");
    file::write_atomic(&path, text, 0o600, false)?;
    crash::point("object.copied");
    Ok(Some(path))
}

fn remove_or_warn(path: &Path) {
    crash::point("object.unwanted");
    match file::mark_change(path).and_then(|()| fs::remove_file(path)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            log::warn!("cannot remove {}: {e}", path.display());
        }
        _ => {}
    }
}

/// Files of a directory with their names; none if it cannot be read.
fn list_files(dir: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn what_is_written_is_read_and_damage_is_as_good_as_nothing() {
        // OFF-02
        let dir = TestDir::new("objects-read");
        let (root, run) = (dir.0.join("root"), dir.0.join("run"));
        let files = ObjectFiles::new(&root, &run);
        let long = "n".repeat(253);
        let key = PodObjectKey::new(PodObjectKind::ConfigMap, "ns", &long);
        assert_eq!(files.read_copy(&key), ObjectCopy::None);
        let object = b"{\"data\":{\"a\":\"1\"}}";
        let written = files.write_copy(&key, Some(object)).expect("write");
        let path = written.expect("new");
        assert!(path.starts_with(&root));
        let mode = |path: &Path| fs::metadata(path).expect("stat").permissions().mode() & 0o777;
        assert_eq!(
            (mode(&path), mode(path.parent().expect("dir"))),
            (0o600, 0o700)
        );
        assert_eq!(files.read_copy(&key), ObjectCopy::Held(object.to_vec()));
        assert_eq!(
            files.write_copy(&key, Some(object)).expect("write"),
            None,
            "the same"
        );
        ObjectFiles::sync_files(&[path.clone(), root.join("gone")]).expect("commit");
        files.write_copy(&key, None).expect("write");
        assert_eq!(files.read_copy(&key), ObjectCopy::Missing);
        for damage in [
            "",
            "{}\n",
            "{\"v\":1,\"kind\":\"configmap\",\"namespace\":\"ns\",\"name\":\"other\"}\n{}\n",
            "{\"v\":2,\"kind\":\"configmap\",\"namespace\":\"ns\",\"name\":\"x\"}\n{}\n",
        ] {
            fs::write(&path, damage).expect("write");
            assert_eq!(files.read_copy(&key), ObjectCopy::None, "{damage:?}");
        }
        let text = format!(
            "{{\"v\":1,\"kind\":\"configmap\",\"namespace\":\"ns\",\"name\":\"{long}\"}}\n{{\"data\""
        );
        fs::write(&path, text).expect("write");
        assert_eq!(files.read_copy(&key), ObjectCopy::None, "half");
        let secret = PodObjectKey::new(PodObjectKind::Secret, "ns", "s");
        let path = files
            .write_copy(&secret, Some(object))
            .expect("write")
            .expect("new");
        assert!(path.starts_with(&run), "offlineSecrets: memory");
        files.remove_copy(&secret);
        assert!(!files.has_file(&secret));
    }

    #[test]
    fn only_the_first_token_is_kept_and_goes_with_its_pod() {
        let dir = TestDir::new("objects-token");
        let files = ObjectFiles::new(&dir.0, &dir.0);
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        let token = TokenRef {
            audience: "x".into(),
            expiration_s: None,
        };
        let other = TokenRef {
            expiration_s: Some(600),
            ..token.clone()
        };
        for (uid, token, text) in [
            (&a, &token, "1"),
            (&a, &token, "2"),
            (&a, &other, "3"),
            (&b, &token, "4"),
        ] {
            files.write_token(uid, token, text).expect("write");
        }
        assert_eq!(files.read_token(&a, &token), Some(b"1".to_vec()));
        assert_eq!(files.read_token(&a, &other), Some(b"3".to_vec()));
        files.remove_tokens(&a);
        assert_eq!(files.read_token(&a, &token), None);
        assert_eq!(files.read_token(&b, &token), Some(b"4".to_vec()));
        fs::write(files.token_path(&b, &token), "4").expect("write");
        assert_eq!(files.read_token(&b, &token), None, "half");
        fs::write(files.token_path(&b, &token), "4\n").expect("write");
        // What nobody refers to goes.
        let keys = ["x", "y"].map(|name| PodObjectKey::new(PodObjectKind::Secret, "ns", name));
        for key in &keys {
            files.write_copy(key, Some(b"{}")).expect("write");
        }
        files.write_token(&a, &token, "5").expect("write");
        files.remove_unowned(
            &keys[..1].iter().cloned().collect(),
            &[b.clone()].into_iter().collect(),
        );
        assert!(files.has_file(&keys[0]) && !files.has_file(&keys[1]));
        assert_eq!(files.read_token(&a, &token), None);
        assert!(files.read_token(&b, &token).is_some());
    }
}
