//! Takes a program out of a release's tarball, and checks that it is the released one, for this machine.

use std::{
    fs::{File, Permissions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::statvfs::{FsFlags, statvfs};
use ring::signature::{ED25519, UnparsedPublicKey};
use sha2::{Digest as _, Sha256};

use super::{
    switch::ProgramPaths,
    upgrade::{TakeoverFailure, file_error},
};
use crate::{
    cli::CliError,
    logic::update,
    sys::{
        child::{self, ChildInput, Command, OutputSink},
        file, mount,
    },
};

/// The list of a release's files, in the form of sha256sum(1), and its signature: 64 bytes.
const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.sig";
/// Most bytes of the list, of its signature, and of a key.
const MAX_SUMS_BYTES: u64 = 64 * 1024;
/// Most bytes of a program, debug information included.
const MAX_PROGRAM_BYTES: u64 = 512 << 20;
/// Time limit of unpacking, on a slow card.
const UNPACK_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes written to find out if the disk is full.
const PROBE_BYTES: usize = 64 * 1024;
const TARBALL_END: &str = ".tar.gz";
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ELF: [u8; 4] = *b"\x7fELF";

/// Proof that a tarball has to pass.
#[derive(Debug)]
pub(super) enum ReleaseProof {
    /// A list beside the tarball, signed by the key of this file, or of the first release.
    Listed(Option<PathBuf>),
    /// An offer of a channel, whose signature was checked.
    Offered {
        /// SHA-256, in hexadecimal.
        sum: String,
        /// Name of the directory in the tarball.
        base: String,
    },
}

/// Checks that a new program can be put beside the installed one, as far as can be known before there is one: nothing
/// is fetched for a disk that cannot be written.
pub(super) fn may_stage(places: &ProgramPaths) -> Result<(), TakeoverFailure> {
    let dir = places.program_dir();
    // Other obstacles are reported when the file is written.
    if !statvfs(dir).is_ok_and(|of| of.flags().contains(FsFlags::ST_RDONLY)) {
        return Ok(());
    }
    let mount = mount::mount_holding(dir).ok().flatten();
    let mount = mount.map_or_else(|| dir.into(), |mount| mount.target);
    Err(TakeoverFailure::lasting(format!(
        "the file system of {} is read-only. Make it writable (mount -o remount,rw {}), or update the image that the machine starts from",
        places.program.display(),
        mount.display()
    )))
}

/// Puts a program, or the one of a tarball, beside the installed one, whole and on disk. A tarball has to be the one
/// that the owner of the key has released; a bare program is taken as it is.
pub(super) fn stage_program(
    path: &Path,
    proof: &ReleaseProof,
    places: &ProgramPaths,
) -> Result<(), TakeoverFailure> {
    may_stage(places)?;
    let cannot = |e: &io::Error| file_error("read", path, e);
    let mut from = File::open(path).map_err(|e| cannot(&e))?;
    let mut head = [0; 4];
    from.read_exact(&mut head).map_err(|e| cannot(&e))?;
    from.rewind().map_err(|e| cannot(&e))?;
    let to = places.staged_path();
    let write = || {
        file::mark_change(&to)?;
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o755);
        options.open(&to)
    };
    let mut out = write().map_err(|e| file_error("write", &to, &e))?;
    let is_offer = matches!(proof, ReleaseProof::Offered { .. });
    if head == ELF && !is_offer {
        let copied = io::copy(&mut from.take(MAX_PROGRAM_BYTES), &mut out);
        if copied.map_err(|e| file_error("write", &to, &e))? == MAX_PROGRAM_BYTES {
            return Err(TakeoverFailure::lasting(format!(
                "{} is too large to be picolet: it has {MAX_PROGRAM_BYTES} bytes or more",
                path.display()
            )));
        }
    } else if head.starts_with(&GZIP) {
        let base = verify_tarball(path, &mut from, proof, places)?;
        from.rewind().map_err(|e| cannot(&e))?;
        unpack(path, &base, from, &out).map_err(|e| {
            match out
                .write_all(&[0; PROBE_BYTES])
                .and_then(|()| out.set_len(0))
            {
                // The disk is at fault, not the tarball.
                Err(full) => file_error("write", &to, &full).into(),
                Ok(()) => e,
            }
        })?;
    } else {
        return Err(TakeoverFailure::lasting(format!(
            "{} is neither a program nor the tarball of a release",
            path.display()
        )));
    }
    // Everybody may run the installed program, whatever the umask is.
    out.set_permissions(Permissions::from_mode(0o755))
        .and_then(|()| out.sync_all())
        .map_err(|e| file_error("write", &to, &e))?;
    Ok(())
}

/// Checks that the staged program is for the same kind of processor as the installed one.
pub(super) fn check_processor_kind(places: &ProgramPaths) -> Result<(), TakeoverFailure> {
    // Class, byte order, and machine of an ELF file.
    let kind = |path: &Path| -> Result<([u8; 2], [u8; 2]), CliError> {
        let mut head = [0; 20];
        let read = File::open(path).and_then(|mut f| f.read_exact(&mut head));
        read.map_err(|e| file_error("read", path, &e))?;
        Ok(([head[4], head[5]], [head[18], head[19]]))
    };
    if kind(&places.staged_path())? == kind(&places.program)? {
        return Ok(());
    }
    Err(TakeoverFailure::lasting(
        "this program is for another processor: take the tarball whose name ends like that of the installed one",
    ))
}

/// Computes the SHA-256 of a file, in hexadecimal.
pub(super) fn compute_sha256(path: &Path) -> Result<String, CliError> {
    let read = |path: &Path| hash_contents(&mut File::open(path)?);
    read(path).map_err(|e| file_error("read", path, &e))
}

fn hash_contents(file: &mut File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut block = [0; 16 * 1024];
    // Bounded: by the file.
    loop {
        match file.read(&mut block)? {
            0 => return Ok(format!("{:x}", hash.finalize())),
            n => hash.update(&block[..n]),
        }
    }
}

/// Checks that the tarball is the one that was released. Returns the name of the directory in it.
fn verify_tarball(
    path: &Path,
    tarball: &mut File,
    proof: &ReleaseProof,
    places: &ProgramPaths,
) -> Result<String, TakeoverFailure> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let (wanted, base) = match proof {
        ReleaseProof::Offered { sum, base } => (sum.clone(), base.clone()),
        ReleaseProof::Listed(key) => {
            let key = key.clone().unwrap_or_else(|| places.release_key_path());
            let base = name.trim_end_matches(TARBALL_END);
            (read_released_sum(path, name, &key)?, base.to_owned())
        }
    };
    if hash_contents(tarball).map_err(|e| file_error("read", path, &e))? != wanted {
        return Err(TakeoverFailure::lasting(format!(
            "{name} does not match its checksum in the release: fetch it again"
        )));
    }
    Ok(base)
}

/// Reads the sum of the tarball from the signed list beside it.
fn read_released_sum(path: &Path, name: &str, key_path: &Path) -> Result<String, CliError> {
    let beside = |name: &str| -> Result<Vec<u8>, CliError> {
        let file = path.with_file_name(name);
        read_small_file(&file).map_err(|e| {
            CliError::new(format!(
                "cannot read {}: {e}: the tarball needs {SUMS} and {SIGNATURE} of its release beside it",
                file.display()
            ))
        })
    };
    let (sums, signature) = (beside(SUMS)?, beside(SIGNATURE)?);
    let key = read_small_file(key_path).map_err(|e| file_error("read the key", key_path, &e))?;
    let key = parse_public_key(&key).ok_or_else(|| {
        CliError::new(format!(
            "{} is not an Ed25519 public key in PEM",
            key_path.display()
        ))
    })?;
    if !is_signed(&sums, &signature, &[key]) {
        return Err(CliError::new(format!(
            "{SUMS} is not signed by {}: fetch it and {SIGNATURE} again, or give the publisher's key with --key",
            key_path.display()
        )));
    }
    let sums = String::from_utf8_lossy(&sums);
    let sum = find_listed_sum(&sums, name).ok_or_else(|| {
        CliError::new(format!(
            "{SUMS} does not name {name}: both files must be from the same release, under their original names"
        ))
    })?;
    Ok(sum.to_owned())
}

/// Returns true if the owner of one of the keys has signed these bytes.
pub(super) fn is_signed(bytes: &[u8], signature: &[u8], keys: &[[u8; 32]]) -> bool {
    let mut keys = keys.iter().map(|key| UnparsedPublicKey::new(&ED25519, key));
    keys.any(|key| key.verify(bytes, signature).is_ok())
}

fn read_small_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_SUMS_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Finds the sum that the list has for a file.
fn find_listed_sum<'a>(sums: &'a str, name: &str) -> Option<&'a str> {
    sums.lines()
        .filter_map(|line| line.split_once("  "))
        .find(|(_, file)| *file == name)
        .map(|(sum, _)| sum)
}

/// Reads the 32 bytes of a key in PEM.
fn parse_public_key(pem: &[u8]) -> Option<[u8; 32]> {
    let text = core::str::from_utf8(pem).ok()?;
    let text = text.split_once("-----BEGIN PUBLIC KEY-----")?.1;
    let text = text.split_once("-----END PUBLIC KEY-----")?.0;
    let line: String = text.split_whitespace().collect();
    update::parse_public_key(&line)
}

/// Has tar write the program into `out`.
fn unpack(path: &Path, base: &str, tarball: File, out: &File) -> Result<(), TakeoverFailure> {
    let member = format!("{base}/picolet");
    let out = out.try_clone().map_err(|e| CliError::new(e.to_string()))?;
    let tar = Command::new("/bin/tar")
        .args(["-xzOf", "-", &member])
        .env("PATH", super::running::PATH)
        .stdin(ChildInput::Fd(tarball.into()))
        .stdout(OutputSink::Fd(out.into()))
        .stderr(OutputSink::Capture(4096));
    let done = smol::block_on(child::run_command(tar, Some(UNPACK_TIMEOUT)));
    let done = done.map_err(|e| CliError::new(format!("cannot run tar: {e}")))?;
    if !done.status.success() {
        return Err(TakeoverFailure::lasting(format!(
            "cannot unpack {member} of {}: {}",
            path.display(),
            String::from_utf8_lossy(&done.stderr).trim()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use flate2::{Compression, write::GzEncoder};
    use nix::{
        mount::MsFlags,
        sched::{CloneFlags, unshare},
    };
    use ring::{
        rand::SystemRandom,
        signature::{Ed25519KeyPair, KeyPair as _},
    };

    use super::*;
    use crate::testing::TestDir;

    const DER_HEAD: [u8; 12] = *b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

    #[test]
    fn lists_and_keys() {
        let sums = "aa  picolet-1-armv7.tar.gz\nbb  picolet-1-aarch64.tar.gz\n";
        assert_eq!(
            find_listed_sum(sums, "picolet-1-aarch64.tar.gz"),
            Some("bb")
        );
        assert_eq!(find_listed_sum(sums, "picolet-1"), None);
        let key = [DER_HEAD.as_slice(), &[7; 32]].concat();
        assert_eq!(parse_public_key(pem(&key).as_bytes()), Some([7; 32]));
        for wrong in [&key[..43], &key[1..], &[]] {
            assert_eq!(parse_public_key(pem(wrong).as_bytes()), None);
        }
        assert_eq!(parse_public_key(b"\xff"), None);
    }

    #[test]
    fn a_disk_that_takes_nothing_is_told_first() {
        // UPD-04
        if !nix::unistd::geteuid().is_root() {
            skipped!("a program on a read-only file system: a mount needs root");
            return;
        }
        // The mount namespace is this thread's.
        let thread = std::thread::spawn(|| {
            if let Err(e) = unshare(CloneFlags::CLONE_NEWNS) {
                skipped!("a program on a read-only file system: no mount namespace: {e}");
                return;
            }
            let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
            let none = None::<&str>;
            nix::mount::mount(none, "/", none, private, none).expect("private");
            let scratch = TestDir::new("release");
            // Without links.
            let dir = fs::canonicalize(&scratch.0).expect("directory");
            let bin = dir.join("bin");
            fs::create_dir(&bin).expect("directory");
            let places = ProgramPaths::of_program(&bin.join("picolet"));
            fs::write(&places.program, "one").expect("written");
            may_stage(&places).expect("it is writable");
            mount::bind_mount(&bin, &bin, false).expect("bind");
            mount::remount_read_only(&bin).expect("read-only");
            let none = dir.join("none");
            // Not even the new program is looked at.
            let staged = stage_program(&none, &ReleaseProof::Listed(None), &places);
            for refused in [may_stage(&places), staged] {
                let refused = refused.expect_err("read-only");
                let hint = format!("mount -o remount,rw {}", bin.display());
                let said = refused.to_string();
                assert!(refused.lasts, "{said}");
                for part in ["is read-only", &*hint, "update the image"] {
                    assert!(said.contains(part), "{said}");
                }
            }
            mount::unmount(&bin).expect("unmounted");
            let missing =
                stage_program(&none, &ReleaseProof::Listed(None), &places).expect_err("missing");
            assert!(missing.to_string().contains("cannot read"), "{missing}");
        });
        thread.join().expect("test thread");
    }

    fn pem(der: &[u8]) -> String {
        let text = STANDARD.encode(der);
        format!("# of a release\n-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }

    /// A key, and its public half in PEM.
    fn key() -> (Ed25519KeyPair, String) {
        let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("key");
        let key = Ed25519KeyPair::from_pkcs8(der.as_ref()).expect("key");
        let public = pem(&[&DER_HEAD, key.public_key().as_ref()].concat());
        (key, public)
    }

    const NAME: &str = "picolet-1.0.0-armv7.tar.gz";

    fn tarball(program: &[u8]) -> Vec<u8> {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let mut header = tar::Header::new_gnu();
        header.set_size(program.len() as u64);
        header.set_mode(0o755);
        let path = "picolet-1.0.0-armv7/picolet";
        archive
            .append_data(&mut header, path, program)
            .expect("archive");
        archive
            .into_inner()
            .and_then(GzEncoder::finish)
            .expect("archive")
    }

    #[test]
    fn only_what_was_released_is_unpacked() {
        // PKG-02
        let dir = crate::testing::unused_path("released");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("bin")).expect("directory");
        let write = |name: &str, bytes: &[u8]| -> PathBuf {
            let path = dir.join(name);
            fs::write(&path, bytes).expect("written");
            path
        };
        let (own, public) = key();
        let (_, foreign) = key();
        let key_file = write("release.pub", public.as_bytes());
        let foreign = write("foreign.pub", foreign.as_bytes());
        let places = ProgramPaths::of_program(&dir.join("bin/picolet"));
        let program = b"\x7fELF and more".as_slice();
        let whole = tarball(program);
        let path = write(NAME, &whole);
        let publish = |sums: &str| {
            write(SUMS, sums.as_bytes());
            write(SIGNATURE, own.sign(sums.as_bytes()).as_ref());
        };
        let sum = compute_sha256(&path).expect("sum");
        let refused = |path: &Path, key: &Path, says: &str| {
            let proof = ReleaseProof::Listed(Some(key.into()));
            let refused = stage_program(path, &proof, &places).expect_err(says);
            let said = refused.to_string();
            assert!(said.contains(says), "{said}");
            assert!(
                fs::read(places.staged_path()).is_ok_and(|b| b.is_empty()),
                "{says}"
            );
        };
        refused(&path, &key_file, "of its release beside it");
        publish("00  another.tar.gz\n");
        refused(
            &path,
            &key_file,
            "SHA256SUMS does not name picolet-1.0.0-armv7.tar.gz",
        );
        publish(&format!("{sum}  {NAME}\n"));
        refused(&path, &foreign, "is not signed by");
        refused(&path, &path, "is not an Ed25519 public key");
        refused(&path, &dir.join("none"), "cannot read the key");
        write(SUMS, format!("{sum}  {NAME}\n \n").as_bytes());
        refused(&path, &key_file, "is not signed by");
        publish(&format!("{sum}  {NAME}\n"));
        let mut changed = whole.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        write(NAME, &changed);
        refused(
            &path,
            &key_file,
            "does not match its checksum in the release: fetch it again",
        );
        write(NAME, &whole);
        let moved = dir.join("picolet-2.0.0-armv7.tar.gz");
        fs::copy(&path, &moved).expect("copied");
        publish(&format!(
            "{sum}  picolet-2.0.0-armv7.tar.gz\n{sum}  {NAME}\n"
        ));
        refused(
            &moved,
            &key_file,
            "cannot unpack picolet-2.0.0-armv7/picolet",
        );

        // PKG-20: everybody may run it, whatever the umask is, or the mode of what an upgrade before has left.
        fs::set_permissions(places.staged_path(), Permissions::from_mode(0o600)).expect("mode");
        stage_program(&path, &ReleaseProof::Listed(Some(key_file)), &places).expect("staged");
        assert_eq!(fs::read(places.staged_path()).expect("staged"), program);
        let mode = fs::metadata(places.staged_path())
            .expect("staged")
            .permissions();
        assert_eq!(mode.mode() & 0o7777, 0o755);
        // UPD-01: by what a channel says, whatever its name, and never a bare program.
        let offered = |sum: &str| ReleaseProof::Offered {
            sum: sum.into(),
            base: "picolet-1.0.0-armv7".into(),
        };
        let part = dir.join("part");
        fs::rename(&path, &part).expect("renamed");
        stage_program(&part, &offered(&sum), &places).expect("staged");
        assert_eq!(fs::read(places.staged_path()).expect("staged"), program);
        fs::write(&path, program).expect("written");
        let wrong = offered(&"0".repeat(64));
        for (path, says) in [
            (&part, "does not match its checksum"),
            (&path, "is neither"),
        ] {
            let refused = stage_program(path, &wrong, &places).expect_err(says);
            let said = refused.to_string();
            assert!(said.contains(says) && refused.lasts, "{said}");
        }
        let elsewhere = ReleaseProof::Offered {
            sum: sum.clone(),
            base: "picolet-9".into(),
        };
        let refused = stage_program(&part, &elsewhere, &places).expect_err("not in it");
        assert!(refused.lasts, "{refused}");
        // UPD-07: a disk that is full is not the fault of the release.
        fs::remove_file(places.staged_path()).expect("removed");
        std::os::unix::fs::symlink("/dev/full", places.staged_path()).expect("link");
        let full = stage_program(&part, &offered(&sum), &places).expect_err("full");
        assert!(
            !full.lasts && full.to_string().contains("No space left"),
            "{full}"
        );
        fs::remove_file(places.staged_path()).expect("removed");
        stage_program(&part, &offered(&sum), &places).expect("staged");
        fs::write(&places.program, fs::read("/proc/self/exe").expect("own")).expect("written");
        let other = check_processor_kind(&places)
            .expect_err("too short")
            .to_string();
        assert!(
            other.contains("cannot read") || other.contains("processor"),
            "{other}"
        );
        fs::remove_dir_all(dir).expect("removed");
    }
}
