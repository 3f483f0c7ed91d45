//! The certificate that the server shows and the CAs that it trusts, as files (BOOT-10, BOOT-13). They are looked at once a
//! minute: what cannot be used leaves what was read before.

use core::time::Duration;
use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use alloc::{rc::Rc, sync::Arc};

use crate::{
    agent::{clock::Clock, complaints::Complaints, node::NodeFacts},
    error::chain,
    kube::csr::{self, KeyError, Subject},
    logic::fnv::fnv1a,
    net::{
        serving::{Authorities, Shown},
        tls::TlsError,
    },
    server::network::Access,
    sys::{file, lane::Lane},
};

/// Time between two looks at files.
const LOOK: Duration = Duration::from_secs(60);
/// Largest file read, bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// What was read, in short: the same number means that nothing has changed.
type Seen = u64;

fn seen(texts: [&[u8]; 2]) -> Seen {
    let all = texts.iter().flat_map(|text| text.iter().copied());
    fnv1a(all)
}

/// Why a certificate, or the CAs of clients, cannot be used. Who put the files there mends them.
#[derive(Debug, thiserror::Error)]
pub(in crate::agent) enum FileError {
    #[error("authentication.x509.clientCAFile: cannot read {}", .0.display())]
    NoAuthorities(PathBuf, #[source] io::Error),
    #[error("authentication.x509.clientCAFile: {}", .0.display())]
    Authorities(PathBuf, #[source] TlsError),
    #[error("cannot read {}", .0.display())]
    NoPair(PathBuf, #[source] io::Error),
    #[error("serving certificate {}", .0.display())]
    Pair(PathBuf, #[source] TlsError),
    #[error(
        "{} is there and {} is not: put it back, or remove the other one and a new pair is made",
        .there.display(),
        .missing.display()
    )]
    Half { there: PathBuf, missing: PathBuf },
    /// This machine makes none.
    #[error(transparent)]
    Own(#[from] KeyError),
    /// The disk.
    #[error("cannot keep a certificate in {}", .0.display())]
    Unkept(PathBuf, #[source] io::Error),
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes))?;
    Ok(bytes)
}

fn read_authorities(path: &Path) -> Result<Vec<u8>, FileError> {
    read(path).map_err(|e| FileError::NoAuthorities(path.to_owned(), e))
}

/// What files are looked at with, again and again.
pub(super) struct Looker {
    pub(super) clock: Rc<dyn Clock>,
    pub(super) disk: Lane,
    pub(super) complaints: Rc<Complaints>,
}

impl Looker {
    /// Reads with `read` in a minute's time.
    async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        self.clock.until(self.clock.now() + LOOK).await;
        self.disk.run(read).await
    }
}

/// Trusts the CAs in a file.
pub(super) fn trust(path: &Path, access: &Access) -> Result<Seen, FileError> {
    take_authorities(path, &read_authorities(path)?, access)
}

fn take_authorities(path: &Path, text: &[u8], access: &Access) -> Result<Seen, FileError> {
    let authorities = Authorities::read(text);
    let authorities = authorities.map_err(|e| FileError::Authorities(path.to_owned(), e))?;
    access.trust(Arc::new(authorities));
    Ok(seen([text, b""]))
}

/// Looks at the file again and again.
pub(super) fn trust_again(
    looker: Rc<Looker>,
    path: PathBuf,
    access: Rc<Access>,
) -> impl AsyncFnOnce(Seen) {
    async move |mut before: Seen| loop {
        let file = path.clone();
        match looker.look(move || read_authorities(&file)).await {
            Ok(text) if seen([&text, b""]) == before => {}
            Ok(text) => match take_authorities(&path, &text, &access) {
                Ok(now) => {
                    log::info!("the CAs of clients have changed");
                    before = now;
                }
                Err(e) => looker.complaints.complain(&chain(&e)),
            },
            Err(e) => looker.complaints.complain(&chain(&e)),
        }
    }
}

/// A certificate and its key.
type Files = (PathBuf, PathBuf);

/// Shows the certificate in a pair of files.
pub(super) fn show(files: &Files, shown: &Shown) -> Result<Seen, FileError> {
    let pair = read_pair(files)?;
    take_pair(files, &pair, shown)
}

fn read_pair((certificate, key): &Files) -> Result<(Vec<u8>, Vec<u8>), FileError> {
    let read = |path: &Path| read(path).map_err(|e| FileError::NoPair(path.to_owned(), e));
    Ok((read(certificate)?, read(key)?))
}

fn take_pair(
    (path, _): &Files,
    (certificate, key): &(Vec<u8>, Vec<u8>),
    shown: &Shown,
) -> Result<Seen, FileError> {
    shown
        .show(certificate, key)
        .map_err(|e| FileError::Pair(path.clone(), e))?;
    Ok(seen([certificate, key]))
}

/// Looks at the pair again and again.
pub(super) fn show_again(
    looker: Rc<Looker>,
    files: Files,
    shown: Arc<Shown>,
) -> impl AsyncFnOnce(Seen) {
    async move |mut before: Seen| loop {
        let asked = files.clone();
        match looker.look(move || read_pair(&asked)).await {
            Ok(pair) if seen([&pair.0, &pair.1]) == before => {}
            // Of two files that are replaced, one may be new already.
            Ok(pair) => match take_pair(&files, &pair, &shown) {
                Ok(now) => {
                    log::info!("a new serving certificate is shown");
                    before = now;
                }
                Err(e) => looker.complaints.complain(&chain(&e)),
            },
            Err(e) => looker.complaints.complain(&chain(&e)),
        }
    }
}

/// Shows the certificate of this node's own, and makes one at the first start.
pub(super) fn own(dir: &Path, node: &NodeFacts, shown: &Shown) -> Result<(), FileError> {
    let files = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
    let is_there = |path: &Path| match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Ok(_) | Err(_) => true,
    };
    match (is_there(&files.0), is_there(&files.1)) {
        (true, true) => {}
        (false, false) => {
            let subject = Subject {
                common_name: node.name.clone(),
                dns_names: vec![node.name.clone()],
                ips: node.host_ips.clone(),
                ..Subject::default()
            };
            let (certificate, key) = csr::self_signed(&subject)?;
            write(dir, &files, &certificate, &key)
                .map_err(|e| FileError::Unkept(dir.to_owned(), e))?;
            log::info!("made the serving certificate {}", files.0.display());
        }
        (certificate, _) => {
            let (there, missing) = match certificate {
                true => files,
                false => (files.1, files.0),
            };
            return Err(FileError::Half { there, missing });
        }
    }
    show(&files, shown).map(|_| ())
}

fn write(dir: &Path, files: &Files, certificate: &str, key: &str) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)?;
    // After a power cut there may be the key alone, which is of no use: the certificate is the one that counts.
    file::write_atomic(&files.1, key.as_bytes(), 0o600, true)?;
    let kept = file::write_atomic(&files.0, certificate.as_bytes(), 0o644, true);
    if kept.is_err() {
        let _ = fs::remove_file(&files.1);
    }
    kept
}
