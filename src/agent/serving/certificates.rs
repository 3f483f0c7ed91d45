//! The certificate that the server shows and the CAs that it trusts, as files (BOOT-10, BOOT-13). They are looked at
//! once a minute. If they cannot be used then, those that were read before stay.

use core::{net::IpAddr, time::Duration};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use alloc::{rc::Rc, sync::Arc};

use crate::{
    agent::{clock::Clock, complaints::Complaints},
    config::{ServerConfig, ServingCertificateSource},
    error::error_chain,
    kube::csr::{self, CertificateSubject, KeyError},
    logic::fnv::fnv1a,
    net::{
        serving::{ClientAuthorities, ServingCertificateSlot},
        tls::TlsError,
    },
    server::network::AccessControl,
    sys::{file, lane::Lane},
};

/// Time between two looks at files.
const LOOK: Duration = Duration::from_secs(60);
/// Largest file read, bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Digest of the files that were read: an equal number means that nothing has changed.
type FilesDigest = u64;

fn files_digest(texts: [&[u8]; 2]) -> FilesDigest {
    let all = texts.iter().flat_map(|text| text.iter().copied());
    fnv1a(all)
}

/// Reason why a certificate, or the CAs of clients, cannot be used. The owner of the files mends them.
#[derive(Debug, thiserror::Error)]
pub(in crate::agent) enum ServingFileError {
    #[error("authentication.x509.clientCAFile: cannot read {}", .0.display())]
    NoAuthorities(PathBuf, #[source] io::Error),
    #[error("authentication.x509.clientCAFile: {}", .0.display())]
    Authorities(PathBuf, #[source] TlsError),
    #[error("cannot read {}", .0.display())]
    NoPair(PathBuf, #[source] io::Error),
    #[error("serving certificate {}", .0.display())]
    Pair(PathBuf, #[source] TlsError),
    #[error(
        "{} exists, but {} is missing: put it back, or remove the other file, and a new pair is made",
        .there.display(),
        .missing.display()
    )]
    Half { there: PathBuf, missing: PathBuf },
    /// No key can be made on this machine.
    #[error(transparent)]
    Own(#[from] KeyError),
    /// The disk does not keep a certificate that was made.
    #[error("cannot store a certificate in {}", .0.display())]
    Unkept(PathBuf, #[source] io::Error),
}

fn read_certificate_file(path: &Path) -> io::Result<Vec<u8>> {
    file::read_start(path, MAX_FILE_BYTES)
}

fn read_authorities(path: &Path) -> Result<Vec<u8>, ServingFileError> {
    read_certificate_file(path).map_err(|e| ServingFileError::NoAuthorities(path.to_owned(), e))
}

/// Tools for looking at files again and again.
pub(super) struct CertificatePoller {
    pub(super) clock: Rc<dyn Clock>,
    pub(super) disk: Lane,
    pub(super) complaints: Rc<Complaints>,
}

impl CertificatePoller {
    /// Waits for a minute, and reads with `read`.
    async fn read_after_pause<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, ServingFileError> + Send + 'static,
    ) -> Result<T, ServingFileError> {
        self.clock.sleep_until(self.clock.now() + LOOK).await;
        self.disk.run_job(read).await
    }
}

/// Trusts the CAs in a file.
pub(super) fn trust_authorities(
    path: &Path,
    access: &AccessControl,
) -> Result<FilesDigest, ServingFileError> {
    take_authorities(path, &read_authorities(path)?, access)
}

fn take_authorities(
    path: &Path,
    text: &[u8],
    access: &AccessControl,
) -> Result<FilesDigest, ServingFileError> {
    let authorities = parse_authorities(path, text)?;
    access.set_authorities(Arc::new(authorities));
    Ok(files_digest([text, b""]))
}

fn parse_authorities(path: &Path, text: &[u8]) -> Result<ClientAuthorities, ServingFileError> {
    let authorities = ClientAuthorities::from_pem(text);
    authorities.map_err(|e| ServingFileError::Authorities(path.to_owned(), e))
}

/// Finds the files of the operator's with which no agent starts: keys of the configuration, and why.
pub(in crate::agent) fn find_unusable_files(cfg: &ServerConfig) -> Vec<(&'static str, String)> {
    if cfg.listen.is_none() {
        return Vec::new();
    }
    let authorities = cfg.client_ca.as_deref().map(|path| {
        let text = read_authorities(path)?;
        parse_authorities(path, &text).map(drop)
    });
    let pair = match &cfg.certificate {
        ServingCertificateSource::Files(certificate, key) => {
            let files = (certificate.clone(), key.clone());
            Some(show_certificate(&files, &ServingCertificateSlot::default()).map(drop))
        }
        ServingCertificateSource::Requested | ServingCertificateSource::SelfSigned => None,
    };
    let all = [
        ("authentication.x509.clientCAFile", authorities),
        ("tlsCertFile or tlsPrivateKeyFile", pair),
    ];
    all.into_iter()
        .filter_map(|(place, read)| Some((place, error_chain(&read?.err()?))))
        .collect()
}

/// Looks at the file of CAs again and again.
pub(super) fn follow_authorities_file(
    looker: Rc<CertificatePoller>,
    path: PathBuf,
    access: Rc<AccessControl>,
) -> impl AsyncFnOnce(FilesDigest) {
    async move |mut before: FilesDigest| loop {
        let file = path.clone();
        match looker
            .read_after_pause(move || read_authorities(&file))
            .await
        {
            Ok(text) if files_digest([&text, b""]) == before => {}
            Ok(text) => match take_authorities(&path, &text, &access) {
                Ok(now) => {
                    log::info!("the CAs of clients have changed");
                    before = now;
                }
                Err(e) => looker.complaints.complain(&error_chain(&e)),
            },
            Err(e) => looker.complaints.complain(&error_chain(&e)),
        }
    }
}

/// A certificate and its key.
type CertificateFiles = (PathBuf, PathBuf);

/// Shows the certificate in a pair of files.
pub(super) fn show_certificate(
    files: &CertificateFiles,
    shown: &ServingCertificateSlot,
) -> Result<FilesDigest, ServingFileError> {
    let pair = read_pair(files)?;
    show_pair(files, &pair, shown)
}

fn read_pair(
    (certificate, key): &CertificateFiles,
) -> Result<(Vec<u8>, Vec<u8>), ServingFileError> {
    let read = |path: &Path| {
        read_certificate_file(path).map_err(|e| ServingFileError::NoPair(path.to_owned(), e))
    };
    Ok((read(certificate)?, read(key)?))
}

fn show_pair(
    (path, _): &CertificateFiles,
    (certificate, key): &(Vec<u8>, Vec<u8>),
    shown: &ServingCertificateSlot,
) -> Result<FilesDigest, ServingFileError> {
    shown
        .set_certificate(certificate, key)
        .map_err(|e| ServingFileError::Pair(path.clone(), e))?;
    Ok(files_digest([certificate, key]))
}

/// Looks at the pair again and again.
pub(super) fn follow_pair_files(
    looker: Rc<CertificatePoller>,
    files: CertificateFiles,
    shown: Arc<ServingCertificateSlot>,
) -> impl AsyncFnOnce(FilesDigest) {
    async move |mut before: FilesDigest| loop {
        let asked = files.clone();
        match looker.read_after_pause(move || read_pair(&asked)).await {
            Ok(pair) if files_digest([&pair.0, &pair.1]) == before => {}
            // The two files may be read between their replacements: one is new then, the other old.
            Ok(pair) => match show_pair(&files, &pair, &shown) {
                Ok(now) => {
                    log::info!("a new serving certificate is in use");
                    before = now;
                }
                Err(e) => looker.complaints.complain(&error_chain(&e)),
            },
            Err(e) => looker.complaints.complain(&error_chain(&e)),
        }
    }
}

/// Shows the certificate of this node's own, and makes one at the first start. A key alone counts as no pair: a power
/// cut has left it there. A certificate alone has been in use, and its key was taken away: that is an error.
pub(super) fn show_own_certificate(
    dir: &Path,
    name: &str,
    ips: &[IpAddr],
    shown: &ServingCertificateSlot,
) -> Result<(), ServingFileError> {
    let files = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
    let is_there = |path: &Path| match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Ok(_) | Err(_) => true,
    };
    match (is_there(&files.0), is_there(&files.1)) {
        (true, true) => {}
        (false, _) => {
            let subject = CertificateSubject {
                common_name: name.to_owned(),
                dns_names: vec![name.to_owned()],
                ips: ips.to_vec(),
                ..CertificateSubject::default()
            };
            let (certificate, key) = csr::make_self_signed(&subject)?;
            write_own_pair(dir, &files, &certificate, &key)
                .map_err(|e| ServingFileError::Unkept(dir.to_owned(), e))?;
            log::info!("made the serving certificate {}", files.0.display());
        }
        (true, false) => {
            let (there, missing) = files;
            return Err(ServingFileError::Half { there, missing });
        }
    }
    show_certificate(&files, shown).map(|_| ())
}

fn write_own_pair(
    dir: &Path,
    files: &CertificateFiles,
    certificate: &str,
    key: &str,
) -> io::Result<()> {
    file::make_dirs(dir, 0o755)?;
    // The certificate is written last: if it is there, so is its key.
    file::write_atomic(&files.1, key.as_bytes(), 0o600, true)?;
    let kept = file::write_atomic(&files.0, certificate.as_bytes(), 0o644, true);
    if kept.is_err() {
        let _ = fs::remove_file(&files.1);
    }
    kept
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::panic;

    use super::*;
    use crate::{sys::file::watched, testing::TestDir};

    fn start(dir: &Path) -> Result<(), ServingFileError> {
        show_own_certificate(
            dir,
            "board",
            &[IpAddr::from([10, 0, 0, 7])],
            &ServingCertificateSlot::default(),
        )
    }

    #[test]
    fn a_first_start_is_gone_on_with_after_a_power_cut_at_any_step() {
        // BOOT-10
        let mut alone = 0;
        for cut in 0.. {
            let scratch = TestDir::new("certificates");
            let [certificate, key] = ["kubelet.crt", "kubelet.key"].map(|name| scratch.join(name));
            let pair = || [&certificate, &key].map(|path| fs::read(path).expect("file"));
            let left = Rc::new(Cell::new(cut));
            watched::set_watcher(Some(Rc::new(move |_: &Path, is_synced: bool| {
                if !is_synced {
                    if left.get() == 0 {
                        panic::resume_unwind(Box::new(()));
                    }
                    left.set(left.get() - 1);
                }
                Ok(())
            })));
            let first = panic::catch_unwind(|| start(&scratch.0));
            watched::set_watcher(None);
            alone += i32::from(key.exists() && !certificate.exists());
            if let Ok(first) = &first {
                first.as_ref().expect("nothing was in its way");
            }
            start(&scratch.0).expect("the next start");
            let made = pair();
            start(&scratch.0).expect("one more");
            assert_eq!(pair(), made, "cut {cut}: it is kept");
            if first.is_ok() {
                break;
            }
        }
        assert!(alone > 0, "no cut leaves the key alone");
    }

    #[test]
    fn half_a_pair() {
        // BOOT-10
        let scratch = TestDir::new("certificates");
        let files = ["kubelet.crt", "kubelet.key"].map(|name| scratch.join(name));
        let [certificate, key] = &files;
        start(&scratch.0).expect("made");
        let first = fs::read(key).expect("key");
        fs::remove_file(certificate).expect("removed");
        // A pair of the operator is never made.
        let pair = (certificate.clone(), key.clone());
        let why = error_chain(
            &show_certificate(&pair, &ServingCertificateSlot::default()).expect_err("half"),
        );
        assert!(
            why.contains("cannot read") && why.contains("kubelet.crt"),
            "{why}"
        );
        start(&scratch.0).expect("another one");
        assert!(fs::read(key).expect("key") != first);
        fs::remove_file(key).expect("removed");
        let why = error_chain(&start(&scratch.0).expect_err("half"));
        assert!(why.contains("kubelet.crt exists, but"), "{why}");
        assert!(certificate.exists() && !key.exists());
    }
}
