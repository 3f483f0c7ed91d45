//! The OCI runtime program: found, asked for its version, judged, called.

use alloc::collections::BTreeMap;
use core::{cell::RefCell, time::Duration};
use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    gate::{ChildLimiter, ChildPriority},
    settings::RuncSettings,
};
use crate::{
    api::{
        MonoTime,
        cri::{DEFAULT_HANDLER, HandlerCapabilities, UserNamespaceSupport},
    },
    shim,
    sys::{
        child::{self, ChildInput, Command},
        clock, user_namespace,
    },
};

/// Directories in which a runtime given by name is looked for.
const DIRS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];
/// Longest output that is kept, bytes.
const OUTPUT_LIMIT: usize = 64 * 1024;
/// `--version` and `features` answer at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// First kernel that can make a mount read-only with all mounts below it: mount_setattr(2).
const RECURSIVE_READ_ONLY_KERNEL: (u32, u32, u32) = (5, 12, 0);
/// Errors by which a kernel, or its administrator, says that it never maps owners. Others may pass, as want of memory does.
const LASTING_ERRORS: [i32; 4] = [libc::EINVAL, libc::ENOSYS, libc::EPERM, libc::EOPNOTSUPP];
/// Time after which owners are tried again after an error that may pass: it is asked for each status of each pod.
const TRIAL_PAUSE: Duration = Duration::from_secs(600);
/// `start`, `kill`, `delete`, `state`: tens of milliseconds; a board that swaps needs longer.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Error of finding or calling an OCI runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OciRuntimeError {
    /// The program does not exist.
    #[error("OCI runtime {name:?} not found (looked in {looked}): install runc or set ociRuntime")]
    NotFound {
        /// Name or path as configured.
        name: String,
        /// Directories that were searched.
        looked: String,
    },
    /// The program does not behave like an OCI runtime.
    #[error("{} is not an OCI runtime: {why}", path.display())]
    NotARuntime {
        /// The program.
        path: PathBuf,
        /// Odd behaviour of the program.
        why: String,
    },
    /// A pod names a handler that is not configured.
    #[error("runtime handler {0:?} is not configured: name its OCI runtime in picolet.handlers")]
    NoHandler(String),
    /// A call failed.
    #[error("{call}: {message}")]
    Call {
        /// `start`, `kill`, …
        call: &'static str,
        /// Message of the runtime.
        message: String,
    },
}

/// A probed runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciRuntime {
    /// Absolute path.
    pub path: PathBuf,
    /// `runc`, `crun`, …: the first word of its version text.
    pub name: String,
    /// Version such as `1.1.5`, with additions of the distribution.
    pub version: String,
    /// Known holes of this version, for a warning and `check`. Empty is good.
    pub warnings: Vec<String>,
    /// Read-only mounts can be read-only with all that is mounted below them (RRO-01).
    pub recursive_read_only: bool,
    /// Set if it joins user namespaces and maps the owners of mounts (UNS-20).
    pub user_namespaces: bool,
    /// File that was asked.
    file: Option<FileId>,
}

/// Inode and time of change, seconds: tells a file from the one that replaced it.
type FileId = (u64, i64);

fn file_id(path: &Path) -> Option<FileId> {
    let metadata = path.metadata().ok()?;
    Some((metadata.ino(), metadata.mtime()))
}

impl OciRuntime {
    /// Finds the runtime and asks it for its version and its features.
    ///
    /// # Errors
    /// See [`OciRuntimeError`].
    pub async fn probe(name: &str) -> Result<Self, OciRuntimeError> {
        let path = find_runtime(name)?;
        let file = file_id(&path);
        let wrong = |why: String| OciRuntimeError::NotARuntime {
            path: path.clone(),
            why,
        };
        let command = Command::new(&path)
            .arg("--version")
            .capture_output(OUTPUT_LIMIT);
        let output = child::run_command(command, Some(PROBE_TIMEOUT))
            .await
            .map_err(|e| wrong(e.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (name, version) = parse_version(&text).ok_or_else(|| {
            wrong(format!(
                "--version says {:?}",
                text.lines().next().unwrap_or("")
            ))
        })?;
        let warnings = if name == "runc" {
            known_vulnerabilities(&version, &text)
        } else {
            Vec::new()
        };
        // One without this command mounts nothing so: runc before 1.1, crun before 1.8.6.
        let command = Command::new(&path)
            .arg("features")
            .capture_output(OUTPUT_LIMIT);
        let features = child::run_command(command, Some(PROBE_TIMEOUT)).await;
        let features = features.map(|output| output.stdout).unwrap_or_default();
        let features: Value = serde_json::from_slice(&features).unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            recursive_read_only: offers_rro(&features) && has_rro(&kernel),
            user_namespaces: offers_user_namespaces(&features),
            path,
            name,
            version,
            warnings,
            file,
        })
    }

    /// Names what the program lacks for pods with user namespaces.
    #[must_use]
    pub fn missing_for_users(&self) -> Option<String> {
        let Self { path, version, .. } = self;
        (!self.user_namespaces).then(|| {
            format!(
                "{} {version} lacks linux.mountExtensions.idmap or the namespace \"user\" in its features: install runc \
                 1.2.1 or crun 1.9, or later ones",
                path.display()
            )
        })
    }

    /// Runs `<runtime> --root <root> <call> <args…>` to its end.
    ///
    /// # Errors
    /// [`OciRuntimeError::Call`] with the runtime's last message.
    pub async fn call_runtime(
        &self,
        root: &Path,
        call: &'static str,
        args: &[&str],
        gate: &ChildLimiter,
    ) -> Result<Vec<u8>, OciRuntimeError> {
        let input = ChildInput::Null;
        self.call_with_input(root, call, args, input, gate).await
    }

    /// Calls the runtime as [`Self::call_runtime`] does, with something to read.
    pub(super) async fn call_with_input(
        &self,
        root: &Path,
        call: &'static str,
        args: &[&str],
        input: ChildInput,
        gate: &ChildLimiter,
    ) -> Result<Vec<u8>, OciRuntimeError> {
        let failed = |message: String| OciRuntimeError::Call { call, message };
        let command = self
            .runtime_command(root)
            .arg(call)
            .args(args)
            .stdin(input)
            .capture_output(OUTPUT_LIMIT);
        // A container is created by its shim: these calls start, end or ask.
        let _pass = gate.acquire_permit(ChildPriority::Last).await;
        let output = child::run_command(gate.attach_lock(command), Some(CALL_TIMEOUT))
            .await
            .map_err(|e| failed(e.to_string()))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        // With `--log-format json` on standard error every line is an object with its message.
        Err(failed(shim::runtime_message(&String::from_utf8_lossy(
            &output.stderr,
        ))))
    }

    fn runtime_command(&self, root: &Path) -> Command {
        self.add_global_options(Command::new(&self.path), root)
    }

    /// Adds environment and global options of this program to a command that runs it.
    pub(super) fn add_global_options(&self, command: Command, root: &Path) -> Command {
        command
            .env("PATH", DIRS.join(":"))
            // crun and youki refuse to guess without it in some calls.
            .env("XDG_RUNTIME_DIR", root)
            .arg("--root")
            .arg(root)
            .args(["--log-format", "json"])
    }
}

/// The OCI runtimes of a node: the default one, and one for each handler of RuntimeClasses.
pub(super) struct OciRuntimes {
    /// Runtimes by handler: the configured name, and the program that was found.
    all: BTreeMap<String, (String, RefCell<Result<OciRuntime, OciRuntimeError>>)>,
    /// Directory of the images: on its file system owners have to be mapped.
    root_dir: PathBuf,
    /// Answer of [`judge_mapped_owners`], and until when it holds; `None`: for good. Asked only if an OCI runtime could do its
    /// part.
    mapped_owners: RefCell<Option<(UserNamespaceSupport, Option<MonoTime>)>>,
}

impl OciRuntimes {
    /// Finds and probes each. A missing one is logged.
    pub(super) async fn probe_all(settings: &RuncSettings) -> Self {
        let mut all = BTreeMap::new();
        let default = (DEFAULT_HANDLER.to_owned(), settings.runtime.clone());
        let handlers = settings.handlers.clone();
        // Bounded: by `MAX_HANDLERS` of the configuration.
        for (handler, name) in core::iter::once(default).chain(handlers) {
            let found = OciRuntime::probe(&name).await;
            match &found {
                Ok(program) => {
                    for hole in &program.warnings {
                        log::warn!("{} {} has {hole}", program.path.display(), program.version);
                    }
                }
                Err(e) if handler.is_empty() => log::error!("{e}"),
                Err(e) => log::error!("runtime handler {handler:?}: {e}"),
            }
            all.insert(handler, (name, RefCell::new(found)));
        }
        Self {
            all,
            root_dir: settings.root_dir.clone(),
            mapped_owners: RefCell::default(),
        }
    }

    /// Looks again for those that are missing or were replaced: they may have been installed or upgraded since.
    pub(super) async fn probe_changed(&self) {
        // Bounded: by `MAX_HANDLERS` of the configuration.
        for (name, found) in self.all.values() {
            let changed = match &*found.borrow() {
                Ok(program) => file_id(&program.path).is_some_and(|id| Some(id) != program.file),
                Err(_) => true,
            };
            if changed {
                let again = OciRuntime::probe(name).await;
                *found.borrow_mut() = again;
            }
        }
    }

    /// The OCI runtime of a handler.
    pub(super) fn for_handler(&self, handler: &str) -> Result<OciRuntime, OciRuntimeError> {
        match self.all.get(handler) {
            Some((_, found)) => found.borrow().clone(),
            None => Err(OciRuntimeError::NoHandler(handler.to_owned())),
        }
    }

    /// Judges whether pods of a handler can have user namespaces.
    pub(super) fn judge_user_namespaces(&self, handler: &str) -> UserNamespaceSupport {
        match self.for_handler(handler) {
            Ok(program) => self.judge_program(&program),
            Err(e) => UserNamespaceSupport::Lacks(e.to_string()),
        }
    }

    fn judge_program(&self, program: &OciRuntime) -> UserNamespaceSupport {
        if let Some(why) = program.missing_for_users() {
            return UserNamespaceSupport::Lacks(why);
        }
        let mut known = self.mapped_owners.borrow_mut();
        let now = clock::mono_now();
        if let Some((known, until)) = &*known
            && until.is_none_or(|until| now < until)
        {
            return known.clone();
        }
        let tried = user_namespace::try_mapped_owners(&self.root_dir);
        let (support, lasts) = judge_trial(tried);
        let until = (!lasts).then(|| now + TRIAL_PAUSE);
        *known = Some((support.clone(), until));
        support
    }

    /// Configured runtime of a handler, installed or not; empty for a handler that is not configured.
    pub(super) fn configured_name(&self, handler: &str) -> &str {
        self.all.get(handler).map_or("", |(name, _)| name)
    }

    /// Lists the handlers that can run pods, for the Node.
    pub(super) fn list_handlers(&self) -> Vec<HandlerCapabilities> {
        let found = self.all.iter();
        let found = found.filter(|(name, (_, found))| name.is_empty() || found.borrow().is_ok());
        let handler =
            |(name, (_, found)): (&String, &(_, RefCell<Result<OciRuntime, OciRuntimeError>>))| {
                let found = found.borrow();
                HandlerCapabilities {
                    name: name.clone(),
                    recursive_read_only_mounts: found.as_ref().is_ok_and(|p| p.recursive_read_only),
                    user_namespaces: match &*found {
                        Ok(program) => self.judge_program(program),
                        Err(e) => UserNamespaceSupport::Lacks(e.to_string()),
                    },
                }
            };
        found.map(handler).collect()
    }
}

/// Tries whether owners can be mapped on the file system of `root_dir` (UNS-25).
#[must_use]
pub fn judge_mapped_owners(root_dir: &Path) -> UserNamespaceSupport {
    judge_trial(user_namespace::try_mapped_owners(root_dir)).0
}

/// Judges a trial. Also returns true if another trial would say the same.
fn judge_trial(tried: Result<(), (String, io::Error)>) -> (UserNamespaceSupport, bool) {
    let Err((path, e)) = tried else {
        return (UserNamespaceSupport::Works, true);
    };
    let lasts = e
        .raw_os_error()
        .is_some_and(|number| LASTING_ERRORS.contains(&number));
    let next = match lasts {
        true => "it needs Linux 6.3 and a file system that can do it, such as ext4",
        false => "it is tried again",
    };
    let why = format!("owners cannot be mapped at {path}: {e}; {next}");
    (UserNamespaceSupport::Lacks(why), lasts)
}

/// Returns true if an error text says that the runtime does not know the container, or that no process of it runs.
#[must_use]
pub fn is_container_gone(message: &str) -> bool {
    let text = message.to_ascii_lowercase();
    [
        "does not exist",
        "not found",
        "no such file",
        "no such process",
        "process already finished",
        "not running",
        "container is stopped",
    ]
    .iter()
    .any(|words| text.contains(words))
}

fn find_runtime(name: &str) -> Result<PathBuf, OciRuntimeError> {
    if name.contains('/') {
        let path = PathBuf::from(name);
        return if path.is_absolute() && is_executable(&path) {
            Ok(path)
        } else {
            Err(OciRuntimeError::NotFound {
                name: name.to_owned(),
                looked: "that path; it must be absolute and executable".into(),
            })
        };
    }
    search_usual_dirs(name).ok_or_else(|| OciRuntimeError::NotFound {
        name: name.to_owned(),
        looked: DIRS.join(", "),
    })
}

/// Looks for a program in the usual directories; the environment does not count.
pub(super) fn search_usual_dirs(name: &str) -> Option<PathBuf> {
    DIRS.iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| is_executable(path))
}

pub(super) fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Returns true if a kernel of this release can make a mount read-only with all below it.
fn has_rro(release: &str) -> bool {
    parse_version_triple(release) >= RECURSIVE_READ_ONLY_KERNEL
}

/// Returns true if the answer to `features` lists the mount option `rro`.
fn offers_rro(features: &Value) -> bool {
    has_item(&features["mountOptions"], "rro")
}

/// Returns true if the answer to `features` has user namespaces and mounts with mapped owners. A runtime that does not
/// know the latter starts the container, and leaves the owners as they are.
fn offers_user_namespaces(features: &Value) -> bool {
    let linux = &features["linux"];
    has_item(&linux["namespaces"], "user") && linux["mountExtensions"]["idmap"]["enabled"] == true
}

fn has_item(list: &Value, wanted: &str) -> bool {
    let items = list.as_array();
    items.is_some_and(|all| all.iter().any(|item| item == wanted))
}

/// `runc version 1.1.5+ds1` and `crun version 1.8.1`; youki writes `youki version: 0.3`.
fn parse_version(text: &str) -> Option<(String, String)> {
    let mut words = text.lines().next()?.split_whitespace();
    let name = words.next()?;
    if words.next()?.trim_end_matches(':') != "version" {
        return None;
    }
    let version = words.find(|w| w.starts_with(|c: char| c.is_ascii_digit()))?;
    Some((name.to_owned(), version.to_owned()))
}

/// Holes of runc by version. Distributions repair old versions: `commit:` then carries their revision.
fn known_vulnerabilities(version: &str, text: &str) -> Vec<String> {
    let numbers = parse_version_triple(version);
    let revision = text
        .lines()
        .find_map(|l| l.strip_prefix("commit:"))
        .unwrap_or("")
        .trim();
    let mut found = Vec::new();
    // Leaked working directory. Debian 12 repaired 1.1.5+ds1-1 in +deb12u1. Repairs of other distributions under an old
    // number are not known here: a warning too many is the better mistake.
    let repaired = revision.contains("+deb12u");
    if numbers < (1, 1, 12) && !repaired {
        found.push("CVE-2024-21626 (container escape, fixed in runc 1.1.12)".to_owned());
    }
    // Masked paths and /dev/console by mount races. No distribution revision older than these versions is known to
    // carry the repairs in its name.
    let repaired = match (numbers.0, numbers.1) {
        (0, _) => false,
        (1, ..=2) => numbers >= (1, 2, 8),
        (1, 3) => numbers >= (1, 3, 3),
        // The first two candidates of 1.4.0 are older than the repairs.
        (1, 4) => numbers.2 > 0 || !["-rc.1", "-rc.2"].iter().any(|rc| version.contains(rc)),
        _ => true,
    };
    if !repaired {
        found.push(
            "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881 (container escape, fixed in runc 1.2.8, 1.3.3 and 1.4.0)"
                .to_owned(),
        );
    }
    found
}

/// First three numbers; one that cannot be read counts as 0, so that there is a warning.
fn parse_version_triple(version: &str) -> (u32, u32, u32) {
    let mut numbers = version
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, want) in [
            (
                "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n",
                Some(("runc", "1.1.5+ds1")),
            ),
            (
                "crun version 1.8.1\ncommit: f8a0\n",
                Some(("crun", "1.8.1")),
            ),
            ("youki version: 0.3.3\n", Some(("youki", "0.3.3"))),
            ("BusyBox\n", None),
            ("", None),
        ] {
            let got = parse_version(text);
            let got = got.as_ref().map(|(n, v)| (n.as_str(), v.as_str()));
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn features_are_asked_of_each_program() {
        // RRO-01
        let dir = crate::testing::unused_path("program");
        fs::create_dir_all(&dir).expect("dir");
        let path = dir.join("runtime");
        // Another process writes it: a file that this one has open for writing may reach a child, and cannot be executed.
        let install = |features: &str| {
            let text = format!(
                "#!/bin/sh\ncase $1 in --version) echo runc version 9.9.9 ;; features) {features} ;; esac\n"
            );
            let write = "printf %s \"$1\" >$2.new && chmod +x $2.new && mv $2.new $2";
            let write = std::process::Command::new("sh")
                .args(["-c", write, "sh", &text])
                .arg(&path)
                .status();
            assert!(write.expect("sh").success());
        };
        install("exit 1");
        let name = path.display().to_string();
        let probe = |name: &str| smol::block_on(OciRuntime::probe(name));
        let all = BTreeMap::from([(String::new(), (name.clone(), RefCell::new(probe(&name))))]);
        let programs = OciRuntimes {
            all,
            root_dir: dir.clone(),
            mapped_owners: RefCell::default(),
        };
        for (release, able) in [
            ("4.19.0", false),
            ("5.11.99", false),
            ("5.12.0-rc1", true),
            ("6.1.0-13-arm64", true),
            ("", false),
        ] {
            assert_eq!(has_rro(release), able, "{release}");
        }
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("release");
        let able = has_rro(&kernel);
        for (features, offered) in [
            ("exit 1", false),
            (r#"echo '{"mountOptions": ["ro", "rro"]}'"#, true),
            (r#"echo '{"mountOptions": ["ro"]}'"#, false),
            (r#"echo '{"mountOptions": "rro"}'"#, false),
            (r#"echo rro"#, false),
        ] {
            install(features);
            smol::block_on(programs.probe_changed());
            let found = programs.list_handlers();
            assert_eq!(found.len(), 1);
            assert_eq!(
                found[0].recursive_read_only_mounts,
                offered && able,
                "{features}"
            );
        }
        fs::remove_dir_all(&dir).expect("remove");
    }

    #[test]
    fn trials_that_are_made_again() {
        assert_eq!(judge_trial(Ok(())), (UserNamespaceSupport::Works, true));
        for (number, lasts) in [
            (libc::EINVAL, true),
            (libc::ENOSYS, true),
            (libc::EPERM, true),
            (libc::EOPNOTSUPP, true),
            (libc::ENOMEM, false),
            (libc::EAGAIN, false),
            (libc::EMFILE, false),
            (libc::ENOSPC, false),
            (libc::ENOENT, false),
        ] {
            let error = io::Error::from_raw_os_error(number);
            let (support, found) = judge_trial(Err(("/x".into(), error)));
            let UserNamespaceSupport::Lacks(why) = support else {
                panic!("{number}");
            };
            assert_eq!(found, lasts, "{why}");
            assert_eq!(why.ends_with("it is tried again"), !lasts, "{why}");
        }
    }

    #[test]
    fn known_holes() {
        for (name, version, revision, want) in [
            (
                "plain old",
                "1.1.5",
                "v1.1.5-0-gf19387a6",
                &["21626", "31133"][..],
            ),
            ("Debian 12", "1.1.5+ds1", "1.1.5+ds1-1+deb12u1", &["31133"]),
            (
                "Debian 12, first",
                "1.1.5+ds1",
                "1.1.5+ds1-1",
                &["21626", "31133"],
            ),
            ("21626 fixed", "1.1.12", "v1.1.12", &["31133"]),
            ("1.2 fixed", "1.2.8", "", &[]),
            ("1.3 before the fix", "1.3.2", "", &["31133"]),
            ("1.3 fixed", "1.3.3", "", &[]),
            ("1.4 candidate", "1.4.0-rc.3", "", &[]),
            ("1.4 candidate before the fix", "1.4.0-rc.2", "", &["31133"]),
            ("unreadable", "dev", "", &["21626", "31133"]),
        ] {
            let text = format!("runc version {version}\ncommit: {revision}\n");
            let found = known_vulnerabilities(version, &text);
            assert_eq!(found.len(), want.len(), "{name}: {found:?}");
            for (hole, cve) in found.iter().zip(want) {
                assert!(hole.contains(cve), "{name}: {hole}");
            }
        }
    }

    #[test]
    fn missing_and_wrong_programs() {
        let probe = |name: &str| {
            smol::block_on(OciRuntime::probe(name))
                .expect_err(name)
                .to_string()
        };
        assert!(probe("no-such-runtime").contains("install runc"));
        assert!(probe("/no/such").contains("absolute"));
        assert!(probe("/bin/true").contains("not an OCI runtime"));
    }

    #[test]
    fn gone_is_gone() {
        for (text, gone) in [
            ("container does not exist", true),
            ("container with id exists: container not running", true),
            ("unable to signal init: os: process already finished", true),
            ("permission denied", false),
        ] {
            assert_eq!(is_container_gone(text), gone, "{text}");
        }
    }
}
