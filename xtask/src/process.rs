//! Programs that tasks call, and processes they look for.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

use crate::Failure;

/// Runs `command` with this task's output and no input; an exit other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|e| format!("{}: {e}", show(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{}: {status}", show(command)).into())
    }
}

/// Runs `command` and returns its standard output; an exit other than 0 is an error with what it said.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", show(command)))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {}: {}", show(command), output.status, said.trim()).into())
    }
}

/// The command as it could be typed, its program without directory.
pub(crate) fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy()
        .into_owned();
    for word in command.get_args() {
        text.push(' ');
        text.push_str(&word.to_string_lossy());
    }
    text
}

/// `cargo` of the toolchain that built this task.
pub(crate) fn cargo() -> Command {
    cargo_at(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// `cargo` at that place, as a shell would call it. What the cargo that started this task tells of it must not get there: to
/// ring's build script that is a change, and everything above ring would be built again.
pub(crate) fn cargo_at(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Copies a program. One that an earlier copy still runs as cannot be written to, so the copy takes its place.
pub(crate) fn copy_program(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to.parent().ok_or("no directory")?)?;
    let new = to.with_extension(std::process::id().to_string());
    fs::copy(from, &new).map_err(|e| format!("{}: {e}", new.display()))?;
    Ok(fs::rename(&new, to)?)
}

/// A copy of this task's program, which no build replaces while others are to start it.
pub(crate) fn itself() -> Result<PathBuf, Failure> {
    const DIR: &str = "target/task";
    let file = env::current_dir()?.join(DIR).join("xtask");
    static COPIED: Mutex<bool> = Mutex::new(false);
    let mut copied = COPIED.lock().map_err(|e| e.to_string())?;
    if !*copied {
        copy_program(Path::new("/proc/self/exe"), &file)?;
        *copied = true;
    }
    Ok(file)
}

/// Where program `name` is: `PATH`, then the places that a user's `PATH` leaves out.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Whether this task runs as root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Processes whose command line has a word that contains `mark`, sorted, this one left out.
pub(crate) fn with_word(mark: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for pid in pids() {
        let Ok(line) = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")) else {
            continue;
        };
        if pid != std::process::id()
            && line
                .split(|b| *b == 0)
                .any(|word| String::from_utf8_lossy(word).contains(mark))
        {
            found.push(pid);
        }
    }
    found.sort_unstable();
    found
}

/// Every process.
pub(crate) fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Sends SIGKILL.
pub(crate) fn kill(pid: u32) -> Result<(), Failure> {
    let process = Pid::from_raw(i32::try_from(pid)?);
    signal::kill(process, Signal::SIGKILL).map_err(|e| format!("kill -9 {pid}: {e}").into())
}
