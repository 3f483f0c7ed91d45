//! Settings of the kernel that pods need, made at start (CG-19).

use std::{fs, io, path::Path};

/// Directory of the kernel's settings.
pub(crate) const DIR: &str = "/proc/sys";
/// Files below [`DIR`] and their values.
///
/// Source: kubelet `cm/container_manager_linux.go`, `setupKernelTunables`.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Settings below this directory are there if the kernel was built with this option.
const KEYS: (&str, &str) = ("kernel/keys", "CONFIG_KEYS");

/// Settings of the kernel that are not those of a kubelet, and may not be changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("protectKernelDefaults: {}", .0.join("; "))]
pub(crate) struct ProtectedSettings(Vec<String>);

/// Sets those that have another value. With `protect` none is set, and all that differ are one error.
///
/// A setting that this kernel does not have, or that may not be written here, is logged: pods run all the same. One that
/// cannot be read is not known to be right: with `protect` that is an error too.
pub(crate) fn apply_kernel_settings(dir: &Path, protect: bool) -> Result<(), ProtectedSettings> {
    let mut wrong = Vec::new();
    for (file, expected) in SETTINGS {
        let path = dir.join(file);
        let flag = file.replace('/', ".");
        let actual = match fs::read_to_string(&path) {
            Ok(actual) => actual.trim().to_owned(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                log::warn!("kernel setting {flag}: {}", absence_text(file));
                continue;
            }
            Err(e) if protect => {
                wrong.push(format!("kernel setting {flag} cannot be read: {e}"));
                continue;
            }
            Err(e) => {
                log::warn!("kernel setting {flag}: {e}");
                continue;
            }
        };
        if actual == expected {
            continue;
        }
        if protect {
            wrong.push(format!(
                "invalid kernel flag: {flag}, expected value: {expected}, actual value: {actual}"
            ));
            continue;
        }
        match fs::write(&path, expected) {
            Ok(()) => log::info!("kernel setting {flag}: {actual} became {expected}"),
            Err(e) => log::warn!("kernel setting {flag} is {actual}, not {expected}: {e}"),
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(ProtectedSettings(wrong)),
    }
}

fn absence_text(file: &str) -> String {
    let needs = match file.strip_prefix(KEYS.0) {
        Some(_) => format!(": it was built without {}", KEYS.1),
        None => String::new(),
    };
    format!("this kernel does not have it{needs}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_made_or_protected() {
        // CG-19 KSET-01 KSET-02
        let dir = crate::testing::unused_path("settings");
        for sub in ["vm", "kernel/keys"] {
            fs::create_dir_all(dir.join(sub)).expect("directory");
        }
        let read = |file: &str| fs::read_to_string(dir.join(file)).expect(file);
        let write = |file: &str, value: &str| fs::write(dir.join(file), value).expect(file);
        for (file, value) in SETTINGS {
            write(file, &format!("{value}\n"));
        }
        write("kernel/panic", "0\n");
        write("vm/panic_on_oom", "2\n");
        // A kernel without keys.
        fs::remove_dir_all(dir.join("kernel/keys")).expect("remove");
        let error = apply_kernel_settings(&dir, true).expect_err("protected");
        assert_eq!(
            error.to_string(),
            "protectKernelDefaults: invalid kernel flag: vm.panic_on_oom, expected value: 0, actual value: 2; \
             invalid kernel flag: kernel.panic, expected value: 10, actual value: 0"
        );
        assert_eq!(
            (read("kernel/panic"), read("vm/panic_on_oom")),
            ("0\n".into(), "2\n".into())
        );
        assert_eq!(apply_kernel_settings(&dir, false), Ok(()));
        assert_eq!(
            (read("kernel/panic"), read("vm/panic_on_oom")),
            ("10".into(), "0".into())
        );
        assert_eq!(read("kernel/panic_on_oops"), "1\n", "not written again");
        assert_eq!(apply_kernel_settings(&dir, true), Ok(()));
        // One that cannot be read: a directory, which root cannot read either.
        fs::remove_file(dir.join("kernel/panic")).expect("remove");
        fs::create_dir(dir.join("kernel/panic")).expect("directory");
        let error = apply_kernel_settings(&dir, true).expect_err("not read");
        let text = error.to_string();
        assert!(text.contains("kernel.panic cannot be read: "), "{text}");
        assert_eq!(apply_kernel_settings(&dir, false), Ok(()), "logged");
        fs::remove_dir_all(&dir).expect("remove");
    }

    #[test]
    fn settings_are_told_of() {
        // KSET-01 KSET-02
        assert_eq!(
            absence_text("kernel/keys/root_maxkeys"),
            "this kernel does not have it: it was built without CONFIG_KEYS"
        );
        assert_eq!(
            absence_text("vm/panic_on_oom"),
            "this kernel does not have it"
        );
        let page = include_str!("../../docs/operate.md").replace('\n', " ");
        for (file, value) in SETTINGS {
            let named = format!("`{}` {value}", file.replace('/', "."));
            assert!(page.contains(&named), "{named}");
        }
        assert!(page.contains("reboots ten seconds after a kernel panic"));
    }
}
