//! `picolet cp`: copies files between this machine and a container, by the `tar` of the container, as kubectl does.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::{MetadataExt as _, OpenOptionsExt as _},
        },
    },
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::stat::{Mode, mkdirat},
};

use super::{
    AgentClient, CliError,
    args::{CliWord, CliWords, unexpected_word},
    escape_controls,
    exec::ExecCommand,
    get::DEFAULT_NAMESPACE,
    print_error,
    remote::RemoteCommand,
};
use crate::{
    api::tar_header::{TAR_BLOCK, TAR_END, TarHeader},
    image::tarball::{TarEntryKind, TarInput, TarReader},
    logic::container_copy,
    sys::open::{open_beneath, open_dir},
};

/// Bytes of a file that are copied at a time.
const COPY_BYTES: usize = 32 * 1024;
/// Exit codes of a shell for a command that cannot be run.
const CANNOT_RUN: [u8; 2] = [126, 127];

/// Source or destination of a copy.
#[derive(Debug, PartialEq, Eq)]
enum CopyPlace {
    Local(PathBuf),
    Pod {
        /// Namespace, if it is named here.
        namespace: Option<String>,
        pod: String,
        path: String,
    },
}

pub(super) fn run_cp(mut words: CliWords) -> Result<ExitCode, CliError> {
    let mut exec = ExecCommand {
        namespace: DEFAULT_NAMESPACE.into(),
        ..ExecCommand::default()
    };
    let (mut places, mut no_preserve) = (Vec::new(), false);
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => exec.namespace = words.flag_value()?,
            CliWord::Flag("container") => exec.container = words.flag_value()?,
            CliWord::Flag("no-preserve") => no_preserve = words.switch_value()?,
            CliWord::Value(word) => places.push(parse_place(&word)?),
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    let places = <[CopyPlace; 2]>::try_from(places);
    let places = places.map_err(|_| CliError::new("source and destination are required"))?;
    let client = words.agent_client();
    let mut set_pod = |namespace: Option<String>, pod| {
        exec.pod = pod;
        if let Some(namespace) = namespace {
            exec.namespace = namespace;
        }
    };
    match places {
        [
            CopyPlace::Pod {
                namespace,
                pod,
                path,
            },
            CopyPlace::Local(to),
        ] => {
            set_pod(namespace, pod);
            copy_from_pod(&client, exec, path, to)
        }
        [
            CopyPlace::Local(from),
            CopyPlace::Pod {
                namespace,
                pod,
                path,
            },
        ] => {
            set_pod(namespace, pod);
            copy_to_pod(&client, exec, from, path, no_preserve)
        }
        [CopyPlace::Local(_), CopyPlace::Local(_)] => Err(CliError::new(
            "one of src or dest must be a remote file specification (POD:PATH)",
        )),
        [CopyPlace::Pod { .. }, CopyPlace::Pod { .. }] => Err(CliError::new(
            "one of src or dest must be a local file specification",
        )),
    }
}

/// Reads `[[NAMESPACE/]POD:]PATH`. A word that begins with a slash or a dot is a local path, whatever is in it.
fn parse_place(word: &str) -> Result<CopyPlace, CliError> {
    let remote = word.split_once(':');
    let Some((pod, path)) = remote.filter(|_| !word.starts_with(['/', '.'])) else {
        return match word {
            "" => Err(CliError::new("filepath can not be empty")),
            path => Ok(CopyPlace::Local(path.into())),
        };
    };
    let (namespace, pod) = match pod.split_once('/') {
        Some((namespace, pod)) => (Some(namespace.to_owned()), pod),
        None => (None, pod),
    };
    if pod.is_empty() || pod.contains('/') || path.is_empty() {
        return Err(CliError::new(format!(
            "{word:?} is not understood: expected [[NAMESPACE/]POD:]PATH"
        )));
    }
    Ok(CopyPlace::Pod {
        namespace,
        pod: pod.to_owned(),
        path: path.to_owned(),
    })
}

impl ExecCommand {
    fn start(&mut self, client: &AgentClient, command: &[&str]) -> Result<RemoteCommand, CliError> {
        self.command = command.iter().map(|&word| word.to_owned()).collect();
        let started = RemoteCommand::start(client, &self.request_target())?;
        // A tar names files of the container there.
        Ok(started.with_escaped_stderr())
    }
}

/// Makes the error of a failed tar understood if the container has none.
fn tar_error(e: CliError) -> CliError {
    // An error that is no exit code: the command was not started.
    if e.message.starts_with("error: ") || CANNOT_RUN.contains(&e.code) {
        let why = e.bare_message();
        return CliError::new(format!(
            "cannot run tar in the container, which cp needs: {why}"
        ));
    }
    e
}

fn copy_error(path: &Path, e: &io::Error) -> CliError {
    CliError::new(format!("cannot copy {}: {e}", path.display()))
}

/// Copies at most `limit` bytes. Returns how many there were.
fn copy_bytes(from: &mut dyn Read, to: &mut dyn Write, limit: u64) -> io::Result<u64> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut done = 0;
    while done < limit {
        let room = usize::try_from(limit - done).unwrap_or(COPY_BYTES);
        let n = from.read(&mut buffer[..room.min(COPY_BYTES)])?;
        if n == 0 {
            break;
        }
        to.write_all(&buffer[..n])?;
        done += u64::try_from(n).unwrap_or(0);
    }
    Ok(done)
}

fn copy_from_pod(
    client: &AgentClient,
    mut exec: ExecCommand,
    path: String,
    mut to: PathBuf,
) -> Result<ExitCode, CliError> {
    let source = container_copy::clean_path(&path);
    if let Some(name) = source.last().filter(|_| to.is_dir()) {
        to.push(name);
    }
    let mut tar = exec.start(client, &["tar", "cf", "-", &path])?;
    let unpacked = unpack_tar(&mut tar, &source, &to);
    match unpacked {
        // A tar that failed says why.
        Ok(()) => tar.finish().map_err(tar_error),
        Err(e) => Err(e),
    }
}

impl TarInput for RemoteCommand {}

/// Unpacks the entries of `source` to the path `to`: files and directories. Everything else is left out, and told.
fn unpack_tar(input: &mut dyn TarInput, source: &[&str], to: &Path) -> Result<(), CliError> {
    let mut reader = TarReader::new(input);
    // Bounded: by the stream, whose files the user asked for.
    while let Some(entry) = reader.next_entry().map_err(|e| copy_error(to, &e))? {
        let shown = String::from_utf8_lossy(&entry.path);
        let place = container_copy::path_in_target(&entry.path, source).ok_or_else(|| {
            CliError::new(format!(
                "tar in the container sent {shown:?}, which is outside of what was asked for: the copy ends here"
            ))
        })?;
        let place = PathBuf::from(OsString::from_vec(place));
        let made = match entry.kind {
            TarEntryKind::Dir => make_dirs(to, &place).map(drop),
            TarEntryKind::File if entry.sparse.is_none() => {
                unpack_file(&mut reader, to, &place, entry.mode)
            }
            _ => {
                let link = String::from_utf8_lossy(&entry.link);
                warn(&format!(
                    "skipping {shown:?} {link:?}: only files and directories are copied"
                ));
                Ok(())
            }
        };
        made.map_err(|e| match e.raw_os_error() {
            Some(libc::EXDEV) => CliError::new(format!(
                "cannot copy {shown:?}: a symbolic link on its way leads out of {}",
                to.display()
            )),
            _ => copy_error(&to.join(&place), &e),
        })?;
    }
    Ok(())
}

/// Makes the target and directories below it. Returns the target.
fn make_dirs(to: &Path, below: &Path) -> io::Result<OwnedFd> {
    fs::create_dir_all(to)?;
    let target = open_dir(to)?;
    let (mut at, mut made) = (target.try_clone()?, PathBuf::new());
    for part in below {
        match mkdirat(&at, part, Mode::from_bits_truncate(0o777)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
        made.push(part);
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        at = open_beneath(&target, &made, flags, 0)?.into();
    }
    Ok(target)
}

/// Unpacks a file. Links may be in the target already: those that lead out of it are not followed.
fn unpack_file(reader: &mut TarReader<'_>, to: &Path, below: &Path, mode: u32) -> io::Result<()> {
    let mode = mode & 0o777;
    let mut file = match below.parent() {
        // The target itself is where the user wants it.
        None => {
            fs::create_dir_all(to.parent().unwrap_or(to))?;
            let mut options = File::options();
            options.write(true).create(true).truncate(true);
            options.custom_flags(libc::O_NONBLOCK);
            options.mode(mode).open(to).map_err(explain_no_reader)?
        }
        Some(dir) => {
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NONBLOCK;
            let file = open_beneath(make_dirs(to, dir)?, below, flags, mode);
            let file = file.map_err(explain_no_reader)?;
            if !file.metadata()?.is_file() {
                return Err(io::Error::other("it is there, and no file"));
            }
            file
        }
    };
    // Who reads a FIFO may be slow.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    copy_bytes(reader, &mut file, u64::MAX).map(drop)
}

/// Explains the error of a FIFO that was opened without waiting. Source: fifo(7).
fn explain_no_reader(e: io::Error) -> io::Error {
    match e.raw_os_error() {
        Some(libc::ENXIO) => io::Error::other("it is a FIFO or socket, and nobody reads it"),
        _ => e,
    }
}

fn copy_to_pod(
    client: &AgentClient,
    mut exec: ExecCommand,
    from: PathBuf,
    path: String,
    no_preserve: bool,
) -> Result<ExitCode, CliError> {
    let local = |e: io::Error| CliError::new(format!("{}: {e}", from.display()));
    fs::symlink_metadata(&from).map_err(local)?;
    let whole = match from.file_name() {
        Some(_) => from.clone(),
        None => fs::canonicalize(&from).map_err(local)?,
    };
    let name = whole.file_name().unwrap_or_default();
    let is_dir = exec.start(client, &["test", "-d", &path])?.finish().is_ok();
    // A relative path stays one: it begins at the working directory of the container.
    let path = path.trim_end_matches('/');
    let (dir, name) = match path.rsplit_once('/') {
        _ if path.is_empty() => ("/", name.as_bytes()),
        _ if is_dir => (path, name.as_bytes()),
        Some(("", name)) => ("/", name.as_bytes()),
        Some((dir, name)) => (dir, name.as_bytes()),
        None => (".", path.as_bytes()),
    };
    let mut command = vec!["tar"];
    if no_preserve {
        command.extend(["--no-same-permissions", "--no-same-owner"]);
    }
    command.extend(["-xmf", "-", "-C", dir]);
    exec.streams.stdin = true;
    let tar = exec.start(client, &command)?;
    let mut stdin = tar.stdin()?;
    let (name, whole) = (name.to_owned(), whole.clone());
    let pack: Box<dyn FnOnce() + Send> = Box::new(move || {
        match pack_tar(&mut stdin, &name, &whole) {
            // A tar that has ended says why.
            Err((path, e)) if !is_hung_up(&e) => {
                print_error(&copy_error(&path, &e));
                std::process::exit(1);
            }
            _ => {}
        }
    });
    let thread = thread::Builder::new().spawn(pack);
    thread.map_err(|e| CliError::new(format!("cannot start a thread: {e}")))?;
    tar.finish().map_err(tar_error)
}

/// Returns true if the agent takes no more: a connection is reset if it ends with bytes that were not read.
fn is_hung_up(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

type PackError = (PathBuf, io::Error);

/// Writes the tar stream of a file or directory, which is called `name` there.
fn pack_tar(to: &mut dyn Write, name: &[u8], path: &Path) -> Result<(), PackError> {
    pack_entry(to, name, path)?;
    to.write_all(&TAR_END).map_err(|e| (path.to_owned(), e))
}

/// Writes an entry and those below it. Links are not followed.
fn pack_entry(to: &mut dyn Write, name: &[u8], path: &Path) -> Result<(), PackError> {
    let failed = |e| (path.to_owned(), e);
    let metadata = fs::symlink_metadata(path).map_err(failed)?;
    let kind = metadata.file_type();
    if !(kind.is_dir() || kind.is_symlink() || kind.is_file()) {
        warn(&format!("skipping {}: no file", path.display()));
        return Ok(());
    }
    let mut header = TarHeader {
        name,
        kind: b'5',
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: u64::try_from(metadata.mtime()).unwrap_or(0),
        ..TarHeader::default()
    };
    if kind.is_file() {
        // Another user may put a link or a FIFO in the place of the file meanwhile.
        let mut options = File::options();
        options.read(true);
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let mut file = options.open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("it is no file any more")));
        }
        header.kind = b'0';
        header.size = metadata.len();
        to.write_all(&header.to_blocks(&[])).map_err(failed)?;
        let copied = copy_bytes(&mut file, to, header.size).map_err(failed)?;
        if copied < header.size {
            return Err(failed(io::Error::other("it became shorter meanwhile")));
        }
        let over = usize::try_from(copied % TAR_BLOCK as u64).unwrap_or(0);
        let padding = &TAR_END[..(TAR_BLOCK - over) % TAR_BLOCK];
        return to.write_all(padding).map_err(failed);
    }
    if kind.is_symlink() {
        let link = fs::read_link(path).map_err(failed)?;
        header.kind = b'2';
        header.link = link.as_os_str().as_bytes();
        return to.write_all(&header.to_blocks(&[])).map_err(failed);
    }
    to.write_all(&header.to_blocks(&[])).map_err(failed)?;
    for entry in fs::read_dir(path).map_err(failed)? {
        let below = entry.map_err(failed)?.file_name();
        let name = [name, b"/", below.as_bytes()].concat();
        pack_entry(to, &name, &path.join(below))?;
    }
    Ok(())
}

fn warn(text: &str) {
    // If standard error is closed, nobody can be told.
    let _ = writeln!(io::stderr(), "warning: {}", escape_controls(text));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    impl TarInput for &[u8] {}

    #[test]
    fn places_of_a_copy() {
        // CMD-07
        let pod = |namespace: Option<&str>, pod: &str, path: &str| CopyPlace::Pod {
            namespace: namespace.map(str::to_owned),
            pod: pod.into(),
            path: path.into(),
        };
        for (word, place) in [
            ("web:/etc/a", Some(pod(None, "web", "/etc/a"))),
            ("web:a:b", Some(pod(None, "web", "a:b"))),
            ("ns/web:a", Some(pod(Some("ns"), "web", "a"))),
            ("a/b", Some(CopyPlace::Local("a/b".into()))),
            ("/a:b", Some(CopyPlace::Local("/a:b".into()))),
            ("./a:b", Some(CopyPlace::Local("./a:b".into()))),
            ("web:", None),
            (":a", None),
            ("a/b/c:d", None),
            ("", None),
        ] {
            assert_eq!(parse_place(word).ok(), place, "{word}");
        }
    }

    #[test]
    fn a_container_without_tar() {
        // CMD-07
        let failed = |message: &str, code| CliError {
            message: message.into(),
            code,
        };
        for (message, code, is_absent) in [
            (
                "error: exec: \"tar\": executable file not found in $PATH",
                1,
                true,
            ),
            ("command terminated with exit code 127", 127, true),
            ("command terminated with exit code 1", 1, false),
            ("command terminated with exit code 2", 2, false),
        ] {
            let e = tar_error(failed(message, code));
            let says = e
                .message
                .starts_with("error: cannot run tar in the container");
            assert_eq!(says, is_absent, "{message}");
            assert!(is_absent || e.code == code, "{message}");
        }
    }

    #[test]
    fn packed_and_unpacked() {
        // CMD-07
        let dir = crate::testing::TestDir::new("cp");
        let (from, to) = (dir.join("from"), dir.join("to"));
        let long = "long".repeat(40);
        fs::create_dir_all(from.join(&long).join("empty")).expect("directory");
        let whole = vec![b'x'; 3 * COPY_BYTES + 1];
        fs::write(from.join(&long).join("large"), &whole).expect("file");
        fs::write(from.join("none"), "").expect("file");
        symlink("/etc/passwd", from.join("link")).expect("link");
        let mut tar = Vec::new();
        pack_tar(&mut tar, b"app", &from)
            .map_err(|(_, e)| e)
            .expect("packed");
        assert!(tar.len().is_multiple_of(TAR_BLOCK));
        // The standard one reads it too, with its links.
        let mut archive = tar::Archive::new(&tar[..]);
        let entries = archive
            .entries()
            .expect("entries")
            .map(|e| e.expect("entry"));
        let links = entries.filter_map(|e| Some(e.link_name().expect("name")?.into_owned()));
        assert_eq!(links.collect::<Vec<_>>(), [Path::new("/etc/passwd")]);
        unpack_tar(&mut &tar[..], &["app"], &to).expect("unpacked");
        assert_eq!(fs::read(to.join(&long).join("large")).expect("file"), whole);
        assert_eq!(fs::read(to.join("none")).expect("file"), b"");
        assert!(to.join(&long).join("empty").is_dir());
        assert!(
            fs::symlink_metadata(to.join("link")).is_err(),
            "links are left out"
        );
        let other = unpack_tar(&mut &tar[..], &["other"], &dir.join("x"));
        assert!(other.expect_err("refused").message.contains("outside"));
        assert!(!dir.join("x").exists());
        let cut = &tar[..tar.len() - 3 * TAR_BLOCK - COPY_BYTES];
        assert!(
            unpack_tar(&mut &*cut, &["app"], &to).is_err(),
            "a cut stream"
        );
    }

    #[test]
    fn a_fifo_that_is_in_the_target_already() {
        // CMD-10
        let dir = crate::testing::TestDir::new("cp-fifo");
        let (to, mode) = (dir.join("to"), Mode::from_bits_truncate(0o600));
        fs::create_dir(&to).expect("directory");
        nix::unistd::mkfifo(&to.join("a"), mode).expect("fifo");
        let unpack = |name: &[u8], to: &Path| {
            let header = TarHeader {
                name,
                kind: b'0',
                size: 2,
                ..TarHeader::default()
            };
            let mut tar = header.to_blocks(&[]);
            tar.extend_from_slice(b"hi");
            tar.resize(2 * TAR_BLOCK, 0);
            unpack_tar(&mut &tar[..], &["app"], to).map_err(|e| e.message)
        };
        let nobody = "it is a FIFO or socket, and nobody reads it";
        let unread = unpack(b"app/a", &to).expect_err("nobody reads");
        assert!(unread.contains(nobody), "{unread}");
        let unread = unpack(b"app", &to.join("a")).expect_err("nobody reads");
        assert!(unread.contains(nobody), "{unread}");
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let mut reader = options.open(to.join("a")).expect("reader");
        let other = unpack(b"app/a", &to).expect_err("no file");
        assert!(other.contains("it is there, and no file"), "{other}");
        // Where the user has named it, somebody waits for the bytes.
        unpack(b"app", &to.join("a")).expect("copied");
        let mut got = String::new();
        reader.read_to_string(&mut got).expect("bytes");
        assert_eq!(got, "hi");
    }

    #[test]
    fn an_entry_that_leaves_the_target() {
        // CMD-08
        let dir = crate::testing::TestDir::new("cp-out");
        let to = dir.join("to");
        for name in [&b"app/../../out"[..], b"/out", b"../out"] {
            let header = TarHeader {
                name,
                kind: b'0',
                mode: 0o644,
                ..TarHeader::default()
            };
            let tar = header.to_blocks(&[]);
            assert!(unpack_tar(&mut &tar[..], &["app"], &to).is_err());
            assert!(!dir.join("out").exists() && !to.exists());
        }
    }

    #[test]
    fn links_that_are_in_the_target_already() {
        // CMD-08
        let dir = crate::testing::TestDir::new("cp-links");
        let (to, out) = (dir.join("to"), dir.join("out"));
        fs::create_dir_all(to.join("below")).expect("directory");
        fs::create_dir(&out).expect("directory");
        symlink("../out", to.join("leaves")).expect("link");
        symlink(out.join("a"), to.join("file")).expect("link");
        symlink("below", to.join("stays")).expect("link");
        for (name, is_copied) in [
            (&b"app/leaves/a"[..], false),
            (b"app/leaves/b/a", false),
            (b"app/file", false),
            (b"app/stays/b/a", true),
        ] {
            let header = TarHeader {
                name,
                kind: b'0',
                mode: 0o644,
                ..TarHeader::default()
            };
            let tar = header.to_blocks(&[]);
            let unpacked = unpack_tar(&mut &tar[..], &["app"], &to);
            let message = unpacked.map_err(|e| e.message).err().unwrap_or_default();
            assert_eq!(message.is_empty(), is_copied, "{message}");
            assert!(is_copied || message.contains("symbolic link"), "{message}");
        }
        assert_eq!(fs::read_dir(&out).expect("directory").count(), 0);
        assert!(to.join("below/b/a").is_file());
        // The target itself may be a link.
        symlink("below", dir.join("to/named")).expect("link");
        let header = TarHeader {
            name: b"app/c",
            kind: b'0',
            ..TarHeader::default()
        };
        let tar = header.to_blocks(&[]);
        unpack_tar(&mut &tar[..], &["app"], &to.join("named")).expect("unpacked");
        assert!(to.join("below/c").is_file());
    }
}
