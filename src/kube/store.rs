//! Store of a node's certificates: one file for each pair, and a link to the one in use.
//!
//! ```text
//! <cert-dir>/kubelet-client-2026-11-21-22-00-00.pem     chain, then key; 0600, on disk before anything refers to it
//! <cert-dir>/kubelet-client-current.pem ─▶ that file    switched by a rename: whole or not at all
//! <cert-dir>/kubelet-client-updated.pem                 a link on its way to become the current one
//! ```
//!
//! The names are those of the kubelet: a node that changes from one to the other keeps its identity (BOOT-06). Of pairs that
//! were replaced only the last one stays: a board has one card for many years.
//! Source: client-go `util/certificate/certificate_store.go`.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;

use crate::api::WallTime;
use crate::sys::{crash, file};

/// Largest file of a certificate and its key, bytes.
const MAX_PAIR_BYTES: u64 = 256 * 1024;
/// Most files of the directory that are looked at in the search for old pairs.
const MAX_LISTED: usize = 100_000;
/// Most pairs stored in one second that still get different names.
const MAX_IN_ONE_SECOND: i64 = 16;
/// The time in the name of a file; a letter stands for any digit.
const DATE: &[u8] = b"YYYY-MM-DD-hh-mm-ss";

/// Reason why a certificate cannot be stored or found.
#[derive(Debug, thiserror::Error)]
pub enum CertificateStoreError {
    /// A file or the directory.
    #[error("cannot {action} {}", path.display())]
    File {
        /// Verb.
        action: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file is in the place of the link.
    #[error("{} is a file and not a link: nothing new can be stored over it", _0.display())]
    NotALink(PathBuf),
}

/// The pairs of one purpose.
#[derive(Clone, Debug)]
pub struct CertificateStore {
    dir: PathBuf,
    prefix: &'static str,
}

/// A pair as found.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredCertificate {
    /// The file with the certificate.
    pub path: PathBuf,
    /// Chain, PEM.
    pub chain: Vec<u8>,
    /// Key, PEM; may be the same text.
    pub key: Vec<u8>,
    /// Time at which the file was written, by this machine's clock of then.
    pub since: WallTime,
}

impl CertificateStore {
    /// Store of `kubelet-client`: certificates that this node shows to the apiserver.
    #[must_use]
    pub fn client(dir: &Path) -> Self {
        Self {
            dir: dir.into(),
            prefix: "kubelet-client",
        }
    }

    /// Store of `kubelet-server`: certificates that this node shows to its callers.
    #[must_use]
    pub fn server(dir: &Path) -> Self {
        Self {
            dir: dir.into(),
            prefix: "kubelet-server",
        }
    }

    /// Store of `kube-proxy-client`: certificates by which this node reads what no node may read (K3SN-02).
    #[must_use]
    pub fn kube_proxy(dir: &Path) -> Self {
        Self {
            dir: dir.into(),
            prefix: "kube-proxy-client",
        }
    }

    /// The link to the pair in use.
    #[must_use]
    pub fn current_path(&self) -> PathBuf {
        self.dir.join(format!("{}-current.pem", self.prefix))
    }

    fn updated_path(&self) -> PathBuf {
        self.dir.join(format!("{}-updated.pem", self.prefix))
    }

    /// Makes the directory, and ends a switch that a crash cut short. Call once at start.
    pub fn recover(&self) -> Result<(), CertificateStoreError> {
        file::make_dirs(&self.dir, 0o755).map_err(file_error("make", &self.dir))?;
        let (updated, current) = (self.updated_path(), self.current_path());
        if !path_exists(&updated)? {
            return Ok(());
        }
        if path_exists(&current)? {
            // The switch did not happen: the pair that the link leads to is not in use.
            fs::remove_file(&updated).map_err(file_error("remove", &updated))?;
        } else {
            fs::rename(&updated, &current).map_err(file_error("rename", &updated))?;
        }
        file::sync_dir(&self.dir).map_err(file_error("sync", &self.dir))
    }

    /// Reads the pair in use: behind the link, or `<prefix>.crt` and `<prefix>.key`. `None` if there is none.
    pub fn read_current(&self) -> Result<Option<StoredCertificate>, CertificateStoreError> {
        let current = self.current_path();
        if let Some((text, since)) = read_with_time(&current)? {
            return Ok(Some(StoredCertificate {
                path: current,
                chain: text.clone(),
                key: text,
                since,
            }));
        }
        let certificate = self.dir.join(format!("{}.crt", self.prefix));
        let key = self.dir.join(format!("{}.key", self.prefix));
        match (read_with_time(&certificate)?, read_with_time(&key)?) {
            (Some((chain, since)), Some((key, _))) => Ok(Some(StoredCertificate {
                path: certificate,
                chain,
                key,
                since,
            })),
            _ => Ok(None),
        }
    }

    /// Forgets which pair is in use, and which one was to be: both are of another cluster. The pairs themselves stay until
    /// the next one is stored.
    pub fn forget_current(&self) -> Result<(), CertificateStoreError> {
        // The other way round the next start could take what was to be for what is.
        for path in [self.updated_path(), self.current_path()] {
            match fs::remove_file(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                removed => removed.map_err(file_error("remove", &path))?,
            }
            file::sync_dir(&self.dir).map_err(file_error("sync", &self.dir))?;
        }
        Ok(())
    }

    /// Keeps a pair and makes it the current one. Both are on disk when this returns.
    ///
    /// - Errors: the old one is still the current one.
    pub fn store_pair(
        &self,
        chain: &str,
        key: &str,
        now: WallTime,
    ) -> Result<PathBuf, CertificateStoreError> {
        let (updated, current) = (self.updated_path(), self.current_path());
        let path = self.keep_pair(chain, key, now)?;
        crash::point("certificate.written");
        match fs::remove_file(&updated) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(file_error("remove", &updated)(e));
            }
            _ => {}
        }
        symlink(&path, &updated).map_err(file_error("make", &updated))?;
        crash::point("certificate.linked");
        let replaced = fs::read_link(&current).ok();
        fs::rename(&updated, &current).map_err(file_error("rename", &updated))?;
        crash::point("certificate.switched");
        file::sync_dir(&self.dir).map_err(file_error("sync", &self.dir))?;
        self.remove_old(replaced.as_deref());
        Ok(path)
    }

    /// Keeps a pair beside the current one, on disk. Nothing leads to it yet.
    ///
    /// - Errors: among others [`CertificateStoreError::NotALink`]: no link could lead to it.
    pub fn keep_pair(
        &self,
        chain: &str,
        key: &str,
        now: WallTime,
    ) -> Result<PathBuf, CertificateStoreError> {
        let current = self.current_path();
        match fs::symlink_metadata(&current) {
            Ok(found) if !found.is_symlink() => {
                return Err(CertificateStoreError::NotALink(current));
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(file_error("look at", &current)(e));
            }
            _ => {}
        }
        let dir = fs::canonicalize(&self.dir).map_err(file_error("find", &self.dir))?;
        let mut path = dir.join(self.pair_file_name(now));
        // A pair that is in use is never written over.
        for more in 1..MAX_IN_ONE_SECOND {
            if !path_exists(&path)? {
                break;
            }
            path = dir.join(self.pair_file_name(WallTime::from_unix_seconds(
                now.unix_seconds().saturating_add(more),
            )));
        }
        let newline = if chain.ends_with('\n') { "" } else { "\n" };
        let text = format!("{chain}{newline}{key}");
        file::write_atomic(&path, text.as_bytes(), 0o600, true)
            .map_err(file_error("write", &path))?;
        Ok(path)
    }

    fn pair_file_name(&self, time: WallTime) -> String {
        let at = time.date_time();
        format!(
            "{}-{:04}-{:02}-{:02}-{:02}-{:02}-{:02}.pem",
            self.prefix,
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second()
        )
    }

    /// Removes pairs that no link of the directory leads to, but for the one that was `replaced` just now. A pair that
    /// cannot be removed is tried again after the next one is stored.
    fn remove_old(&self, replaced: Option<&Path>) {
        let Ok(listed) = fs::read_dir(&self.dir) else {
            return;
        };
        let paths = listed.flatten().take(MAX_LISTED).map(|entry| entry.path());
        let (mut pairs, mut used) = (Vec::new(), Vec::new());
        used.extend(replaced.and_then(Path::file_name).map(ToOwned::to_owned));
        for path in paths {
            if let Ok(target) = fs::read_link(&path) {
                used.extend(target.file_name().map(ToOwned::to_owned));
            } else if self.is_dated(&path) {
                pairs.push(path);
            }
        }
        for path in pairs {
            if !used
                .iter()
                .any(|name| path.file_name() == Some(name.as_os_str()))
            {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Returns true if `path` is named as [`CertificateStore::keep_pair`] names a pair.
    fn is_dated(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        let date = name
            .and_then(|name| name.strip_prefix(self.prefix)?.strip_prefix('-'))
            .and_then(|rest| rest.strip_suffix(".pem"));
        let is_of = |(found, form): (u8, &u8)| match *form {
            b'-' => found == b'-',
            _ => found.is_ascii_digit(),
        };
        date.is_some_and(|date| date.len() == DATE.len() && date.bytes().zip(DATE).all(is_of))
    }
}

fn file_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CertificateStoreError {
    let path = path.to_path_buf();
    move |source| CertificateStoreError::File {
        action,
        path,
        source,
    }
}

fn path_exists(path: &Path) -> Result<bool, CertificateStoreError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(file_error("look at", path)(e)),
    }
}

/// Reads a file and the time at which it was written. `None`: there is no file.
fn read_with_time(path: &Path) -> Result<Option<(Vec<u8>, WallTime)>, CertificateStoreError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        let since = fstat(&file)?.st_mtime;
        file.take(MAX_PAIR_BYTES).read_to_end(&mut bytes)?;
        Ok(WallTime::from_unix_seconds(since))
    });
    match read {
        Ok(since) => Ok(Some((bytes, since))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(file_error("read", path)(e)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::sys::clock;
    use crate::testing::TestDir;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("list")
            .map(|e| e.expect("entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    fn chain(store: &CertificateStore) -> Option<String> {
        let found = store.read_current().expect("current")?;
        Some(String::from_utf8(found.chain).expect("text"))
    }

    #[test]
    fn stored_and_switched() {
        // BOOT-06
        let scratch = TestDir::new("store");
        let dir = scratch.join("pki");
        let store = CertificateStore::client(&dir);
        store.recover().expect("directory");
        assert_eq!(
            fs::metadata(&dir).expect("stat").permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(chain(&store), None);
        let first = store
            .store_pair("chain one", "key one\n", WallTime::from_unix_seconds(0))
            .expect("store");
        assert_eq!(chain(&store).expect("pair"), "chain one\nkey one\n");
        assert_eq!(
            fs::metadata(&first).expect("stat").permissions().mode() & 0o777,
            0o600
        );
        assert!(
            fs::read_link(store.current_path())
                .expect("link")
                .is_absolute()
        );
        store
            .store_pair(
                "chain two\n",
                "key two\n",
                WallTime::from_unix_seconds(1_700_000_000),
            )
            .expect("store");
        assert_eq!(chain(&store).expect("pair"), "chain two\nkey two\n");
        assert_eq!(
            names(&dir),
            [
                "kubelet-client-1970-01-01-00-00-00.pem",
                "kubelet-client-2023-11-14-22-13-20.pem",
                "kubelet-client-current.pem",
            ]
        );
    }

    #[test]
    fn a_pair_and_the_one_before_are_kept() {
        // BOOT-06
        let scratch = TestDir::new("store");
        let store = CertificateStore::client(&scratch.0);
        let others = [
            "kubelet-client-1970-01-01-00-00-00.pem.bak",
            "kubelet-client-1970-01-01-00-00-xx.pem",
            "kubelet-client.crt",
            "kubelet-server-1970-01-01-00-00-00.pem",
        ];
        for name in others {
            fs::write(scratch.join(name), "other").expect("write");
        }
        // A pair that a join has made and that does not count yet.
        let waits = store
            .keep_pair("w", "k", WallTime::from_unix_seconds(5))
            .expect("kept");
        symlink(&waits, scratch.join("kubelet-client-current.pem.joining")).expect("link");
        // The clock goes back: names say nothing about which one is older.
        for seconds in [30, 20, 40, 10, 10, 10] {
            store
                .store_pair("c", "k", WallTime::from_unix_seconds(seconds))
                .expect("store");
            assert!(path_exists(&store.current_path()).expect("look"));
            assert_eq!(chain(&store).expect("pair"), "c\nk");
        }
        let mut expected: Vec<String> = others.map(String::from).into();
        expected.extend(
            [
                "kubelet-client-1970-01-01-00-00-05.pem",
                "kubelet-client-1970-01-01-00-00-11.pem",
                "kubelet-client-1970-01-01-00-00-12.pem",
                "kubelet-client-current.pem",
                "kubelet-client-current.pem.joining",
            ]
            .map(String::from),
        );
        expected.sort();
        assert_eq!(names(&scratch.0), expected);
        let found = store.read_current().expect("current").expect("pair");
        let age = clock::wall_now().unix_seconds() - found.since.unix_seconds();
        assert!((0..600).contains(&age), "since when it is here: {age} s");
    }

    #[test]
    fn what_is_of_another_cluster_is_forgotten() {
        // BOOT-06 K3SN-02
        let scratch = TestDir::new("store");
        let store = CertificateStore::kube_proxy(&scratch.join("none"));
        store.forget_current().expect("there is none");
        let store = CertificateStore::kube_proxy(&scratch.0);
        let path = store
            .store_pair("chain", "key", WallTime::from_unix_seconds(0))
            .expect("store");
        // An agent was killed in the midst of a switch.
        symlink(&path, store.updated_path()).expect("link");
        store.forget_current().expect("forgotten");
        store.recover().expect("nothing to recover");
        assert_eq!(chain(&store), None);
    }

    #[test]
    fn what_a_crash_left() {
        // BOOT-06
        let scratch = TestDir::new("store");
        let store = CertificateStore::server(&scratch.0);
        let path = store
            .store_pair("chain", "key", WallTime::from_unix_seconds(0))
            .expect("store");
        // Between the two steps of a first switch.
        fs::rename(store.current_path(), store.updated_path()).expect("rename");
        assert_eq!(chain(&store), None);
        store.recover().expect("recover");
        assert_eq!(chain(&store).expect("pair"), "chain\nkey");
        // Between the two steps of a later one.
        symlink(&path, store.updated_path()).expect("link");
        store.recover().expect("recover");
        assert!(!path_exists(&store.updated_path()).expect("look"));
        symlink(&path, store.updated_path()).expect("link");
        store
            .store_pair("two", "key", WallTime::from_unix_seconds(9))
            .expect("store");
        assert_eq!(chain(&store).expect("pair"), "two\nkey");
    }

    #[test]
    fn other_places() {
        // BOOT-06
        let scratch = TestDir::new("store");
        let store = CertificateStore::client(&scratch.0);
        fs::write(scratch.join("kubelet-client.crt"), "c").expect("write");
        assert_eq!(chain(&store), None, "without its key");
        fs::write(scratch.join("kubelet-client.key"), "k").expect("write");
        let found = store.read_current().expect("current").expect("pair");
        assert_eq!((found.chain, found.key), (b"c".to_vec(), b"k".to_vec()));
        fs::write(store.current_path(), "plain").expect("write");
        assert_eq!(chain(&store).expect("pair"), "plain");
        let error = store
            .store_pair("x", "y", WallTime::from_unix_seconds(0))
            .expect_err("a file");
        assert!(matches!(error, CertificateStoreError::NotALink(_)));
        assert_eq!(chain(&store).expect("pair"), "plain");
    }
}
