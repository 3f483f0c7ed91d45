//! A release that is packed twice, unpacked, and installed as far as it is what was released.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, id},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::{rand::SystemRandom, signature::Ed25519KeyPair};
use sha2::{Digest as _, Sha256};

use super::{Board, Edition, Key, Source, Texts, archive::ar, finish};
use crate::process::find;

const BOARD: &str = "picolet-1.2.3-x86_64";

/// Where the scripts find the commands that no stand-in takes the place of.
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A directory that goes with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = env::temp_dir().join(format!("picolet-release-{name}-{}", id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key() -> Key {
    let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let text = STANDARD.encode(der);
    Key::parse(&format!(
        "-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"
    ))
    .unwrap()
}

/// The files of the project that are packed, copied to a directory, the last one first if asked for.
fn source(dir: &Path, backwards: bool, key: &Key) -> Source {
    let mut files = vec!["LICENSE".into(), "cross/install.sh".into()];
    for dir in ["systemd", "systemd/openrc"] {
        for entry in fs::read_dir(Path::new("..").join(dir)).unwrap() {
            let entry = entry.unwrap();
            if entry.path().is_file() {
                files.push(format!("{dir}/{}", entry.file_name().to_str().unwrap()));
            }
        }
    }
    files.sort();
    if backwards {
        files.reverse();
    }
    for file in files {
        let to = dir.join(&file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        // Written now: its date is another one.
        fs::write(to, fs::read(Path::new("..").join(file)).unwrap()).unwrap();
    }
    let text = |what: &str| format!("# {what}\n");
    Source {
        root: dir.into(),
        date: 1_700_000_000,
        version: "1.2.3".into(),
        public_key: Some(key.public()),
        texts: Texts {
            bash: text("bash"),
            zsh: text("zsh"),
            fish: text("fish"),
            man: text("man"),
        },
    }
}

fn board(name: &str) -> Board {
    let text = fs::read_to_string(format!("../cross/{name}.conf")).unwrap();
    Board::parse(name, &text).unwrap()
}

/// A program for this machine: nobody starts it.
fn program() -> Vec<u8> {
    fs::read(fs::canonicalize("/bin/sh").unwrap()).unwrap()
}

fn released(dir: &Path, key: &Key, backwards: bool) -> Vec<(String, Vec<u8>)> {
    let source = source(dir, backwards, key);
    source
        .files(Edition::Full, &board("x86_64"), &program(), "{}\n")
        .unwrap()
}

#[test]
fn the_same_bytes_anywhere_and_any_day() {
    // PKG-01 PKG-03
    let (one, other) = (Dir::new("one"), Dir::new("other-and-longer"));
    let key = key();
    let first = released(&one.0, &key, false);
    let old = Command::new("find")
        .arg(&one.0)
        .args(["-exec", "touch", "-d", "2001-01-01", "{}", "+"])
        .status();
    assert!(old.unwrap().success());
    assert!(first == released(&other.0, &key, true));
    assert!(
        first == released(&one.0, &key, false),
        "files of another date"
    );
    let names: Vec<_> = first.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            &*format!("{BOARD}.tar.gz"),
            "picolet_1.2.3_amd64.deb",
            "picolet-kubelet_1.2.3_amd64.deb"
        ]
    );
}

fn call(program: &str, words: &[&str]) -> Output {
    Command::new(program).args(words).output().unwrap()
}

#[test]
fn everybody_can_unpack_it() {
    // PKG-01 PKG-10
    let dir = Dir::new("unpack");
    for (name, bytes) in released(&dir.path("source"), &key(), false) {
        fs::write(dir.path(&name), bytes).unwrap();
    }
    let tarball = dir.path(&format!("{BOARD}.tar.gz")).display().to_string();
    for tar in [&["tar"][..], &["busybox", "tar"]] {
        if find(tar[0]).is_none() {
            println!(
                "SKIPPED everybody_can_unpack_it: {} is not installed",
                tar[0]
            );
            continue;
        }
        let to = dir.path(tar[0]);
        fs::create_dir(&to).unwrap();
        let words = [&tar[1..], &["-xzf", &tarball, "-C", to.to_str().unwrap()]].concat();
        let done = call(tar[0], &words);
        assert!(done.status.success(), "{done:?}");
        let inside = to.join(BOARD);
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1, "one directory");
        assert_eq!(fs::read_to_string(inside.join("arch")).unwrap(), "x86_64\n");
        for file in [
            "picolet",
            "install.sh",
            "guard",
            "first-boot",
            "LICENSE",
            "sbom.json",
            "release.pub",
            "completion/zsh",
            "man/picolet.8",
            "systemd/picolet.service",
            "systemd/picolet-upgrade.service",
            "openrc/picolet-pods",
        ] {
            assert!(inside.join(file).is_file(), "{file}");
        }
        assert!(fs::read(inside.join("picolet")).unwrap() == program());
    }
    if find("dpkg-deb").is_none() {
        println!("SKIPPED everybody_can_unpack_it: dpkg-deb is not installed");
        return;
    }
    let package = |name: &str| {
        dir.path(&format!("{name}_1.2.3_amd64.deb"))
            .display()
            .to_string()
    };
    let field = |name: &str, field: &str| {
        let told = call("dpkg-deb", &["--field", &package(name), field]);
        String::from_utf8(told.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(field("picolet", "Architecture"), "amd64");
    assert_eq!(field("picolet-kubelet", "Conflicts"), "kubelet");
    assert_eq!(field("picolet-kubelet", "Depends"), "picolet (= 1.2.3)");
    let to = dir.path("root").display().to_string();
    for name in ["picolet", "picolet-kubelet"] {
        let done = call("dpkg-deb", &["--extract", &package(name), &to]);
        assert!(done.status.success(), "{done:?}");
    }
    let root = dir.path("root");
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/picolet.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/picolet run") && !unit.contains("/usr/local"));
    assert!(unit.contains("ExecStartPre=-/usr/lib/picolet/guard /usr/bin/picolet"));
    // The same as the tarball's: no configuration is in place.
    assert!(!root.join("etc").exists());
    assert!(
        root.join("usr/share/doc/picolet/examples/config.yaml")
            .is_file()
    );
    assert_eq!(
        fs::read_link(root.join("usr/bin/kubelet")).unwrap(),
        Path::new("picolet")
    );
    assert!(
        root.join("usr/share/zsh/vendor-completions/_picolet")
            .is_file()
    );
    let control = dir.path("control").display().to_string();
    assert!(
        call("dpkg-deb", &["--control", &package("picolet"), &control])
            .status
            .success()
    );
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        let script = dir.path("control").join(script);
        let checked = call("sh", &["-n", script.to_str().unwrap()]);
        assert!(checked.status.success(), "{checked:?}");
    }
    // PKG-10: before the program is replaced. The guard would put the old one over it.
    let before = fs::read_to_string(dir.path("control").join("preinst")).unwrap();
    assert!(
        before.contains("\nrm -f /usr/bin/picolet.trial\n"),
        "{before}"
    );
    // As the agent: /usr/bin, and waiting for what that waits for.
    let trial = root.join("usr/lib/systemd/system/picolet-upgrade.service");
    let trial = fs::read_to_string(trial).unwrap();
    assert!(trial.contains("\nAfter=network-online.target\n"), "{trial}");
    assert!(
        trial.contains("ExecStart=/usr/bin/picolet.old upgrade") && !trial.contains("/usr/local")
    );
}

#[test]
fn a_package_starts_what_it_installs() {
    // PKG-10
    let dir = Dir::new("scripts");
    let key = key();
    let files = released(&dir.path("source"), &key, false);
    finish(&dir.path("files"), files, Some(&key)).unwrap();
    if find("dpkg-deb").is_none() {
        println!("SKIPPED a_package_starts_what_it_installs: dpkg-deb is not installed");
        return;
    }
    let run = dir.path("run");
    fs::create_dir_all(dir.path("bin")).unwrap();
    fs::create_dir_all(&run).unwrap();
    let double = dir.path("bin/systemctl");
    let calls = dir.path("calls");
    let text = format!(
        "#!/bin/sh\necho \"$@\" >>{}\n[ \"$1\" != \"$(cat {} 2>/dev/null)\" ]\n",
        calls.display(),
        dir.path("fails").display()
    );
    fs::write(&double, text).unwrap();
    fs::set_permissions(&double, fs::Permissions::from_mode(0o755)).unwrap();
    for (name, enable, start, service) in [
        (
            "picolet",
            "enable -q picolet.service picolet-first-boot.service picolet-join.service\n",
            "daemon-reload\nstart picolet.service\n",
            "picolet.service",
        ),
        (
            "picolet-kubelet",
            "disable -q picolet.service\nenable -q kubelet.service picolet-cri.socket\n",
            "daemon-reload\nstop picolet.service\nstart picolet-cri.socket\n",
            "kubelet.service",
        ),
    ] {
        let package = dir.path(&format!("files/{name}_1.2.3_amd64.deb"));
        let control = dir.path(name);
        let words = [package.to_str().unwrap(), control.to_str().unwrap()];
        assert!(
            call("dpkg-deb", &["--control", words[0], words[1]])
                .status
                .success()
        );
        // Exit code, what was said, what was asked of systemd.
        let script = |script: &str, words: &[&str]| {
            let text = fs::read_to_string(control.join(script)).unwrap();
            let text = text
                .replace("/run/", &format!("{}/", run.display()))
                .replace("/usr/", &format!("{}/", dir.path("usr").display()));
            let done = Command::new("sh")
                .env(
                    "PATH",
                    format!("{}:{SYSTEM_PATH}", dir.path("bin").display()),
                )
                .args(["-c", &text, script])
                .args(words)
                .output()
                .unwrap();
            let asked = fs::read_to_string(&calls).unwrap_or_default();
            let _ = fs::remove_file(&calls);
            let said = String::from_utf8(done.stderr).unwrap();
            (done.status.code(), said, asked)
        };
        let quiet = |asked: &str| (Some(0), String::new(), asked.to_owned());
        // The program of the other package is not its own.
        let before = fs::read_to_string(control.join("preinst")).unwrap();
        assert_eq!(before.contains("picolet.trial"), name == "picolet");
        // An image that is built: nothing runs there.
        assert_eq!(script("preinst", &["install"]), quiet(""));
        assert_eq!(script("postinst", &["configure", ""]), quiet(enable));
        // A machine.
        fs::create_dir_all(run.join("systemd/system")).unwrap();
        let all = format!("{enable}{start}");
        assert_eq!(script("preinst", &["install"]), quiet(""));
        assert_eq!(script("postinst", &["configure", ""]), quiet(&all));
        let again = format!("daemon-reload\ntry-restart {service}\n");
        assert_eq!(script("preinst", &["upgrade", "1.2.2"]), quiet(""));
        assert_eq!(script("postinst", &["configure", "1.2.2"]), quiet(&again));
        // Removed, not purged, and installed again: dpkg tells of the version before.
        assert_eq!(script("preinst", &["install", "1.2.2"]), quiet(""));
        assert_eq!(script("postinst", &["configure", "1.2.2"]), quiet(&all));
        assert_eq!(script("postinst", &["configure", "1.2.2"]), quiet(&again));
        // It does not start: the package is installed all the same.
        fs::write(dir.path("fails"), "try-restart").unwrap();
        let (code, said, _) = script("postinst", &["configure", "1.2.2"]);
        assert_eq!(code, Some(0));
        assert!(said.contains("picolet check"), "{said}");
        fs::remove_file(dir.path("fails")).unwrap();
        // Beside what a tarball has installed, which would be used instead.
        let guard = dir.path("usr/local/lib/picolet/guard");
        fs::create_dir_all(guard.parent().unwrap()).unwrap();
        fs::write(&guard, "").unwrap();
        let (code, said, _) = script("preinst", &["install"]);
        assert_eq!(code, Some(1));
        assert!(said.contains("install.sh --uninstall"), "{said}");
        fs::remove_file(guard).unwrap();
        fs::remove_dir_all(run.join("systemd")).unwrap();
    }
}

#[test]
fn only_what_was_released_is_installed() {
    // PKG-02 PKG-06
    let dir = Dir::new("install");
    let (own, foreign) = (key(), key());
    if find("openssl").is_none() {
        println!("SKIPPED only_what_was_released_is_installed: openssl is not installed");
        return;
    }
    let source = source(&dir.path("source"), false, &own);
    let mut other = program();
    // The processor in an ELF header: one that nobody has.
    other[18] = 0xfe;
    let mut files = released(&dir.path("source"), &own, false);
    let mut unknown = board("x86_64");
    (unknown.name, unknown.debian) = ("other".into(), None);
    files.extend(
        source
            .files(Edition::Full, &unknown, &other, "{}\n")
            .unwrap(),
    );
    files.push((
        "install.sh".into(),
        fs::read("../cross/install.sh").unwrap(),
    ));
    finish(&dir.path("files"), files, Some(&own)).unwrap();
    fs::write(dir.path("foreign.pub"), foreign.public()).unwrap();
    for path in ["root/bin", "root/usr/local", "root/lib/systemd"] {
        fs::create_dir_all(dir.path(path)).unwrap();
    }
    fs::write(dir.path("root/bin/sh"), program()).unwrap();
    fs::write(dir.path("root/lib/systemd/systemd"), "").unwrap();
    let install = |shell: &[&str], board: &str, more: &[&str]| -> (Option<i32>, String) {
        let done = Command::new(shell[0])
            .env(
                "PATH",
                format!("{}:{SYSTEM_PATH}", dir.path("bin").display()),
            )
            .args(&shell[1..])
            .arg(dir.path("files/install.sh"))
            .arg("--root")
            .arg(dir.path("root"))
            .args(more)
            .arg(dir.path(&format!("files/picolet-1.2.3-{board}.tar.gz")))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.code(), said)
    };
    let installed = dir.path("root/usr/local/bin/picolet");
    let tarball = dir.path(&format!("files/{BOARD}.tar.gz"));
    let sums = dir.path("files/SHA256SUMS");
    let foreign_key = dir.path("foreign.pub").display().to_string();
    let changed = |path: &Path, change: &dyn Fn(&mut Vec<u8>)| {
        let whole = fs::read(path).unwrap();
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
        let path = path.to_owned();
        move || fs::write(path, whole).unwrap()
    };
    for shell in [&["dash"][..], &["busybox", "sh"]] {
        if find(shell[0]).is_none() {
            println!(
                "SKIPPED only_what_was_released_is_installed: {} is not installed",
                shell[0]
            );
            continue;
        }
        let refused = |board: &str, more: &[&str], says: &str| {
            let (code, said) = install(shell, board, more);
            assert_eq!(code, Some(3), "{said}");
            assert!(said.contains(says), "{said}");
            assert!(!installed.exists(), "{says}");
        };
        let undo = changed(&tarball, &|bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
        refused(
            "x86_64",
            &[],
            "does not match its checksum in the release: fetch it again",
        );
        undo();
        let undo = changed(&sums, &|bytes| bytes[0] ^= 1);
        refused("x86_64", &[], "SHA256SUMS is not signed by");
        undo();
        refused(
            "x86_64",
            &["--key", &foreign_key],
            "or give the publisher's key with --key",
        );
        refused("other", &[], "take the tarball for that");
        // One of before 3.0 has no -rawin.
        fs::create_dir_all(dir.path("bin")).unwrap();
        let old = dir.path("bin/openssl");
        fs::write(
            &old,
            "#!/bin/sh\necho 'Usage: pkeyutl [options]' >&2\nexit 1\n",
        )
        .unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
        refused("x86_64", &[], "it must be 3.0 or newer");
        fs::remove_file(&old).unwrap();
        fs::rename(&tarball, dir.path("files/picolet-1.2.3-renamed.tar.gz")).unwrap();
        refused(
            "renamed",
            &[],
            "SHA256SUMS does not name picolet-1.2.3-renamed.tar.gz",
        );
        fs::rename(dir.path("files/picolet-1.2.3-renamed.tar.gz"), &tarball).unwrap();
        fs::rename(dir.path("files/SHA256SUMS.sig"), dir.path("kept")).unwrap();
        refused(
            "x86_64",
            &[],
            "put SHA256SUMS and SHA256SUMS.sig of the release beside",
        );
        fs::rename(dir.path("kept"), dir.path("files/SHA256SUMS.sig")).unwrap();

        // Another file takes the place of one that was checked.
        let evil = b"no tarball";
        let evil_sums = format!("{:x}  {BOARD}.tar.gz\n", Sha256::digest(evil));
        for (checks, when) in [("openssl", "*-verify*"), ("sha256sum", "*")] {
            let real = find(checks).unwrap();
            let double = dir.path("bin").join(checks);
            let (tarball_kept, sums_kept) = (fs::read(&tarball).unwrap(), fs::read(&sums).unwrap());
            fs::write(dir.path("evil"), evil).unwrap();
            fs::write(dir.path("evil-sums"), &evil_sums).unwrap();
            let script = format!(
                "#!/bin/sh\n{} \"$@\" || exit\ncase \"$*\" in {when}) cp {1}/evil {2}; cp {1}/evil-sums {3} ;; esac\n",
                real.display(),
                dir.path("").display(),
                tarball.display(),
                sums.display()
            );
            fs::write(&double, script).unwrap();
            fs::set_permissions(&double, fs::Permissions::from_mode(0o755)).unwrap();
            let (code, said) = install(shell, "x86_64", &[]);
            assert_eq!(code, Some(0), "{checks}: {said}");
            assert!(fs::read(&installed).unwrap() == program());
            fs::remove_file(&double).unwrap();
            fs::write(&tarball, tarball_kept).unwrap();
            fs::write(&sums, sums_kept).unwrap();
        }

        // PKG-09: beside the tarball, too.
        fs::create_dir_all(dir.path("files/images")).unwrap();
        fs::write(dir.path("files/images/app.tar"), "layers").unwrap();
        let (code, said) = install(shell, "x86_64", &[]);
        assert_eq!(code, Some(0), "{said}");
        let image = dir.path("root/var/lib/picolet/import/app.tar");
        assert_eq!(fs::read_to_string(&image).unwrap(), "layers");
        fs::remove_file(image).unwrap();
        assert!(fs::read(&installed).unwrap() == program());
        let library = dir.path("root/usr/local/lib/picolet");
        assert_eq!(
            fs::read_to_string(library.join("release.pub")).unwrap(),
            own.public()
        );
        assert!(dir.path("root/usr/local/share/man/man8/picolet.8").exists());
        let uninstalled = Command::new(shell[0])
            .args(&shell[1..])
            .arg(dir.path("files/install.sh"))
            .args(["--uninstall", "--root"])
            .arg(dir.path("root"))
            .status();
        assert!(uninstalled.unwrap().success());
        assert!(!installed.exists() && !library.exists());
    }
}

#[test]
fn the_core_is_installed_without_what_it_cannot_serve() {
    // PKG-01 PKG-06
    let dir = Dir::new("core");
    let source = source(&dir.path("source"), false, &key());
    for path in ["root/bin", "root/usr/local", "root/lib/systemd"] {
        fs::create_dir_all(dir.path(path)).unwrap();
    }
    fs::write(dir.path("root/bin/sh"), program()).unwrap();
    fs::write(dir.path("root/lib/systemd/systemd"), "").unwrap();
    let install = |edition: Edition, mode: &str| -> (Option<i32>, String) {
        let files = source.files(edition, &board("x86_64"), &program(), "{}\n");
        let (name, bytes) = files.unwrap().remove(0);
        let tarball = dir.path(&name).display().to_string();
        fs::write(&tarball, bytes).unwrap();
        let to = dir.path("").display().to_string();
        assert!(call("tar", &["-xzf", &tarball, "-C", &to]).status.success());
        let script = dir
            .path(name.trim_end_matches(".tar.gz"))
            .join("install.sh");
        let root = dir.path("root").display().to_string();
        let script = script.display().to_string();
        let done = call("sh", &[&script, "--root", &root, "--mode", mode]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.code(), said)
    };
    let joins = || {
        let units = dir.path("root/etc/systemd/system");
        ["picolet-first-boot.service", "picolet-join.service"].map(|unit| units.join(unit).exists())
    };
    let installed = dir.path("root/usr/local/bin/picolet");
    let (code, said) = install(Edition::Core, "kubeadm");
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("this is picolet-core"), "{said}");
    assert!(!installed.exists());
    for (edition, want) in [
        (Edition::Core, false),
        (Edition::Full, true),
        (Edition::Core, false),
    ] {
        let (code, said) = install(edition, "standalone");
        assert_eq!(code, Some(0), "{said}");
        assert!(installed.exists());
        assert_eq!(joins(), [want; 2], "{edition:?}");
    }
}

#[test]
fn archives_of_debian() {
    // PKG-10
    let made = ar(&[("a", b"odd"), ("b", b"even")], 7);
    let text = String::from_utf8(made).unwrap();
    assert_eq!(
        text,
        "!<arch>\na               7           0     0     100644  3         `\nodd\n\
         b               7           0     0     100644  4         `\neven"
    );
}
