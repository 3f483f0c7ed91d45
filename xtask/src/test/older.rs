//! A program of an earlier commit.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    Failure,
    process::{cargo, output, run},
    stage::PROGRAM,
};

/// What boards may run when they are given this build. Raised with every release.
const COMMIT: &str = "0a873cfe93f958d751bfbaae8e010d1280a8f59f";
const TREE: &str = "target/older/tree";

/// Builds it; none if this clone does not have the commit.
pub(super) fn program() -> Result<Option<PathBuf>, Failure> {
    let has = Command::new("git")
        .args(["cat-file", "-e", &format!("{COMMIT}^{{commit}}")])
        .stderr(Stdio::null())
        .status()?;
    if !has.success() {
        return Ok(None);
    }
    let tree = Path::new(TREE);
    if tree.exists() {
        fs::remove_dir_all(tree)?;
    }
    fs::create_dir_all(tree)?;
    let archive = tree.with_file_name("archive.tar");
    output(
        Command::new("git")
            .args(["archive", "--output"])
            .arg(&archive)
            .arg(COMMIT),
    )?;
    run(Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(tree))?;
    let build = std::path::absolute(tree.with_file_name("build"))?;
    let told = output(
        cargo()
            .current_dir(tree)
            .env("CARGO_TARGET_DIR", &build)
            .args(["build", "--package", PROGRAM, "--bin", PROGRAM])
            .arg("--message-format=json"),
    )?;
    let file = told
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    Ok(Some(file.ok_or("cargo built no program")?))
}
