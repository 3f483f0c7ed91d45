//! Packages of another release of Debian, taken apart in a directory. None is installed: the machine keeps its own.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Failure, install,
    process::{find, output, run},
};

/// Source of packages, before the name of the release.
const SOURCE: &str =
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian";
/// The release with a runc that knows user namespaces, and with a CRIU that runs on kernels of today.
const NEWER: &str = "forky";
/// Programs that are taken from it.
const PROGRAMS: [&str; 2] = ["runc", "criu"];
/// The runc that the tests were written with. That release still changes, and a later one may turn a right change red.
const TRIED_RUNC: &str = "runc version 1.3.";

/// Takes packages of `release` apart in `dir`, with package lists of its own. `words` tell apt-get what to download.
pub(crate) fn unpack(release: &str, words: &[&str], dir: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    let packages = dir.join("cache/archives");
    for below in [&dir.join("lists/partial"), &packages.join("partial")] {
        fs::create_dir_all(below)?;
    }
    fs::write(
        dir.join("sources.list"),
        format!("{SOURCE} {release} main\n"),
    )?;
    // As on a machine without a package: what they need comes with them.
    fs::write(dir.join("status"), "")?;
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command.current_dir(&packages).arg("--quiet=2");
        for (option, below) in [
            ("Dir::Etc::SourceList", "sources.list"),
            ("Dir::State::Lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", "cache"),
        ] {
            let value = dir.join(below);
            command.arg(format!("--option={option}={}", value.display()));
        }
        command.args([
            "--option=Dir::Etc::SourceParts=/dev/null",
            "--option=APT::Sandbox::User=root",
        ]);
        command
    };
    install::persist(|| {
        run(apt_get().arg("update"))?;
        run(apt_get().args(words))
    })?;
    let mut found = false;
    for entry in fs::read_dir(&packages)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "deb") {
            run(Command::new("dpkg").arg("--extract").arg(&path).arg(dir))?;
            found = true;
        }
    }
    for below in ["cache", "lists"] {
        fs::remove_dir_all(dir.join(below))?;
    }
    if found {
        Ok(())
    } else {
        Err("apt-get downloaded nothing".into())
    }
}

/// A directory with a runc and a CRIU of Debian's next release, which bring their libraries along.
pub(crate) fn newer_programs() -> Result<PathBuf, Failure> {
    let dir = env::current_dir()?.join("target/newer");
    let programs = dir.join("programs");
    if !programs.exists() {
        if find("apt-get").is_none() {
            return Err("no apt-get".into());
        }
        println!(
            "Fetching {} below {}",
            PROGRAMS.join(" and "),
            dir.display()
        );
        let download = [
            "install",
            "--yes",
            "--no-install-recommends",
            "--download-only",
        ];
        unpack(NEWER, &[&download[..], &PROGRAMS].concat(), &dir)?;
        let libraries = library_directory(&dir)?;
        let half = dir.join("half");
        fs::create_dir(&half)?;
        for program in PROGRAMS {
            let path = half.join(program);
            fs::copy(dir.join("usr/sbin").join(program), &path)?;
            // runc starts itself again by /proc/self/exe, so it has to name its loader itself.
            run(Command::new("patchelf")
                .arg("--set-interpreter")
                .arg(loader(&libraries)?)
                .args(["--force-rpath", "--set-rpath"])
                .arg(&libraries)
                .arg(&path))?;
        }
        fs::rename(&half, &programs)?;
    }
    let told = output(Command::new(programs.join("runc")).arg("--version"))?;
    if told.starts_with(TRIED_RUNC) {
        Ok(programs)
    } else {
        let first = told.lines().next().unwrap_or_default();
        Err(format!("its runc has not been tried: {first}").into())
    }
}

/// The directory of the unpacked C library.
fn library_directory(dir: &Path) -> Result<PathBuf, Failure> {
    let entries = fs::read_dir(dir.join("usr/lib"))?.flatten();
    entries
        .map(|entry| entry.path())
        .find(|path| path.join("libc.so.6").exists())
        .ok_or_else(|| "no C library came along".into())
}

/// The loader of programs beside the C library.
fn loader(libraries: &Path) -> Result<PathBuf, Failure> {
    let entries = fs::read_dir(libraries)?.flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("ld-linux"))
        .map(|entry| entry.path())
        .next()
        .ok_or_else(|| "no loader came along".into())
}
