//! Crates of a release against the advisories of RustSec. `cargo deny` asks for these, so a network is needed.

use std::{path::Path, process::Command};

use crate::{Failure, crates::RULES, process::run};

/// The file of a release whose crates were not looked up.
const RECORD: &str = "ADVISORIES-NOT-CHECKED";

/// Has cargo-deny look the crates of the lock file up, or says in a file of the release why nobody did.
///
/// - `program`: cargo-deny, if it is installed; `reason`: why it is not asked.
/// - Errors: an advisory applies, the database cannot be read, or nobody is there to ask.
pub(super) fn check(
    program: Option<&Path>,
    reason: Option<&str>,
) -> Result<Option<(String, Vec<u8>)>, Failure> {
    if let Some(reason) = reason.map(str::trim) {
        if reason.is_empty() {
            return Err("--skip-advisories needs a reason".into());
        }
        println!("Advisories were not checked: {reason}");
        return Ok(Some((RECORD.into(), format!("{reason}\n").into())));
    }
    let program = program.ok_or(
        "a release is held against the advisories of RustSec, and cargo-deny is not installed: cargo install --locked cargo-deny. \
         Without a network: --skip-advisories REASON; the release says so then",
    )?;
    run(Command::new(program).args(["--config", RULES, "check", "advisories"]))?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, os::unix::fs::PermissionsExt as _, process::id};

    use super::*;

    #[test]
    fn a_release_is_held_against_advisories_or_says_that_it_was_not() {
        // PKG-04
        let dir = env::temp_dir().join(format!("picolet-advisories-{}", id()));
        fs::create_dir_all(&dir).unwrap();
        let (program, asked) = (dir.join("cargo-deny"), dir.join("asked"));
        let stand_in = |code: u8| {
            let text = format!("#!/bin/sh\necho \"$*\" >{}\nexit {code}\n", asked.display());
            fs::write(&program, text).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        };
        stand_in(0);
        assert_eq!(check(Some(&program), None).unwrap(), None);
        let words = fs::read_to_string(&asked).unwrap();
        assert_eq!(words, "--config .cargo/deny.toml check advisories\n");
        stand_in(1);
        check(Some(&program), None).unwrap_err();
        let said = check(None, None).unwrap_err().to_string();
        for way in ["cargo install --locked cargo-deny", "--skip-advisories"] {
            assert!(said.contains(way), "{said}");
        }
        fs::remove_file(&asked).unwrap();
        check(None, Some(" ")).unwrap_err();
        let record = check(Some(&program), Some("no link here")).unwrap();
        let record = record.expect("a file");
        assert_eq!(record, (RECORD.into(), b"no link here\n".to_vec()));
        assert!(!asked.exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
