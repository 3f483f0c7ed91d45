//! `cross/install.sh`, as it stands in a tarball: what it writes, what it refuses, in each shell that boards have.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

const SHELLS: [&[&str]; 2] = [&["dash"], &["busybox", "sh"]];

/// An unpacked tarball, and the root of a system that it is installed into. Both go with the test.
struct Board {
    dir: PathBuf,
    shell: &'static [&'static str],
}

impl Board {
    fn new(name: &str, shell: &'static [&'static str]) -> Self {
        let dir = format!("picolet-install-{name}-{}-{}", shell[0], std::process::id());
        let board = Self {
            dir: std::env::temp_dir().join(dir),
            shell,
        };
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tarball = board.dir.join("tarball");
        for dir in ["tarball/systemd", "tarball/openrc", "tarball/images"] {
            fs::create_dir_all(board.dir.join(dir)).expect("directory");
        }
        fs::copy(project.join("cross/install.sh"), tarball.join("install.sh")).expect("copied");
        for (from, to) in [("systemd", "systemd"), ("systemd/openrc", "openrc")] {
            for entry in fs::read_dir(project.join(from)).expect("directory") {
                let entry = entry.expect("entry");
                if entry.path().is_file() {
                    let to = tarball.join(to).join(entry.file_name());
                    fs::copy(entry.path(), to).expect("copied");
                }
            }
        }
        for name in ["guard", "first-boot"] {
            let script = tarball.join(format!("systemd/{name}.sh"));
            fs::rename(script, tarball.join(name)).expect("renamed");
        }
        fs::write(tarball.join("images/app.tar"), "layers").expect("written");
        board.pack("one");
        for dir in ["root/bin", "root/usr/local", "root/lib/systemd"] {
            fs::create_dir_all(board.dir.join(dir)).expect("directory");
        }
        // As Debian has it. A link of another system may lead into this one.
        let own = fs::canonicalize("/bin/sh").expect("a shell");
        fs::copy(own, board.path("bin/dash")).expect("copied");
        std::os::unix::fs::symlink("dash", board.path("bin/sh")).expect("link");
        fs::write(board.path("lib/systemd/systemd"), "").expect("written");
        board
    }

    /// Puts another version of the program into the tarball: nobody starts it.
    fn pack(&self, version: &str) {
        let own = fs::canonicalize("/bin/sh").expect("a shell");
        let mut program = fs::read(own).expect("read");
        program.extend(version.as_bytes());
        fs::write(self.dir.join("tarball/picolet"), program).expect("written");
    }

    fn path(&self, within: &str) -> PathBuf {
        self.dir.join("root").join(within)
    }

    /// What it says of this machine, without a word of what it would do.
    fn looks_here(&self) -> String {
        let mut command = self.command();
        let output = command.arg("--dry-run").output().expect("started");
        String::from_utf8(output.stderr).expect("text")
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = self.command();
        command.arg("--root").arg(self.dir.join("root")).args(words);
        command.output().expect("started")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.shell[0]);
        // Another uname, say.
        let doubles = self.dir.join("doubles");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = [doubles.as_os_str(), &path].join(":".as_ref());
        command.env("PATH", path);
        command
            .args(&self.shell[1..])
            .arg(self.dir.join("tarball/install.sh"));
        command
    }

    /// Runs it where it has to come to its end; returns what it said.
    fn does(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs it where it has to refuse with this code and words, and to leave everything as it is.
    fn refuses(&self, words: &[&str], code: i32, says: &str) {
        let before = self.files();
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        assert!(said.contains(says), "{words:?}: {said}");
        assert_eq!(self.files(), before, "{words:?}");
    }

    /// Everything below the root: path, inode, mode, target or content.
    fn files(&self) -> Vec<(PathBuf, u64, u32, Vec<u8>)> {
        let mut dirs = vec![self.path("")];
        let mut files = Vec::new();
        // Bounded: by what the test made.
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).expect("directory") {
                let path = entry.expect("entry").path();
                let about = fs::symlink_metadata(&path).expect("metadata");
                let content = if about.is_symlink() {
                    let to = fs::read_link(&path).expect("link");
                    to.into_os_string().into_encoded_bytes()
                } else if about.is_dir() {
                    dirs.push(path.clone());
                    Vec::new()
                } else {
                    fs::read(&path).expect("read")
                };
                files.push((path, about.ino(), about.mode(), content));
            }
        }
        files.sort();
        files
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A board for each shell that is here.
fn boards(name: &str) -> Vec<Board> {
    let mut boards = Vec::new();
    for shell in SHELLS {
        if Command::new(shell[0]).arg("true").output().is_ok() {
            boards.push(Board::new(name, shell));
        } else {
            skipped!("{name} in {}: it is not installed", shell[0]);
        }
    }
    assert!(!boards.is_empty(), "Debian's shell is dash");
    boards
}

#[test]
fn a_second_run_changes_nothing() {
    // PKG-05 PKG-07 PKG-09
    for board in boards("twice") {
        let bare = board.files();
        let said = board.does(&["--dry-run"]);
        assert!(
            said.contains("would install") && !said.contains("\ninstalled"),
            "{said}"
        );
        assert_eq!(board.files(), bare, "a dry run writes nothing");

        board.does(&[]);
        let installed = board.files();
        let program = board.path("usr/local/bin/picolet");
        let mode = fs::metadata(&program)
            .expect("installed")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o755);
        let unit = board.path("etc/systemd/system/picolet.service");
        assert!(fs::read_to_string(unit).is_ok_and(|unit| unit.contains("picolet run")));
        let wanted = board.path("etc/systemd/system/multi-user.target.wants/picolet.service");
        assert!(wanted.is_symlink());
        let guard = board.path("usr/local/lib/picolet/guard");
        assert!(fs::metadata(guard).is_ok_and(|guard| guard.mode() & 0o7777 == 0o755));
        assert!(
            board
                .path("etc/systemd/system/picolet-upgrade.service")
                .exists()
        );
        let image = board.path("var/lib/picolet/import/app.tar");
        assert_eq!(fs::read_to_string(image).expect("imported"), "layers");

        assert_eq!(board.does(&[]), "nothing to change\n");
        assert_eq!(board.files(), installed);

        // Shims use the old program: it is replaced as a whole, and kept.
        let old = fs::read(&program).expect("program");
        let inode = fs::metadata(&program).expect("program").ino();
        board.pack("two");
        board.does(&[]);
        let kept = board.path("usr/local/bin/picolet.old");
        assert_eq!(fs::read(&kept).expect("kept"), old);
        assert_eq!(fs::metadata(&kept).expect("kept").ino(), inode);
        assert_ne!(fs::read(&program).expect("new"), old);
        // Where the new one does not come to be, the one that is kept stays.
        let inode = |path: &Path| fs::metadata(path).expect("a program").ino();
        let first = inode(&kept);
        let new = board.path("usr/local/bin/picolet.new");
        std::os::unix::fs::symlink("/dev/full", &new).expect("link");
        board.pack("three");
        board.refuses(&[], 1, "cannot write");
        assert_eq!(inode(&kept), first);
        fs::remove_file(&new).expect("removed");
        // A run before this one was cut off, and an upgrade is on trial: the program before that may be the last good one.
        let trial = board.path("usr/local/bin/picolet.trial");
        fs::write(&trial, "tries 3\n").expect("written");
        fs::write(&new, "torn").expect("written");
        board.does(&[]);
        assert!(!new.exists() && !trial.exists());
        assert_eq!(inode(&kept), first);

        board.does(&["--uninstall"]);
        assert!(!program.exists() && !kept.exists() && !wanted.is_symlink());
        assert!(board.path("var/lib/picolet/import").exists(), "data stays");
        // As the agent writes it; and as a kubelet does.
        let delays = board.path("etc/systemd/logind.conf.d");
        let delay = delays.join("99-kubelet.conf");
        fs::create_dir_all(&delays).expect("directory");
        fs::write(&delay, "# Kubelet logind override\n").expect("written");
        board.does(&["--uninstall", "--purge"]);
        assert!(delay.exists(), "not ours");
        fs::write(&delay, "# Written by picolet, as a kubelet does\n").expect("written");
        board.does(&["--uninstall", "--purge"]);
        let left = board.files();
        let is_left = |path: &PathBuf| left.iter().any(|(other, ..)| other == path);
        assert!(bare.iter().all(|(path, ..)| is_left(path)));
        let files = left.iter().filter(|(path, ..)| !path.is_dir()).count();
        assert_eq!(files, 3, "{left:?}");
    }
}

#[test]
fn one_mode_takes_the_place_of_the_other() {
    // PKG-05 KADM-07
    for board in boards("modes") {
        let wants = |name: &str| {
            let wants = board.path("etc/systemd/system/multi-user.target.wants");
            wants.join(name).is_symlink()
        };
        board.does(&[]);
        board.does(&["--mode", "kubeadm"]);
        let link = fs::read_link(board.path("usr/bin/kubelet")).expect("link");
        assert_eq!(link, Path::new("/usr/local/bin/picolet"));
        assert!(wants("kubelet.service") && !wants("picolet.service"));
        assert_eq!(board.does(&["--mode=kubeadm"]), "nothing to change\n");
        let units = board.path("etc/systemd/system");
        for unit in ["picolet-first-boot.service", "picolet-join.service"] {
            assert!(!wants(unit) && !units.join(unit).exists(), "{unit}");
        }
        let cri = board.path("etc/systemd/system/sockets.target.wants/picolet-cri.socket");
        assert!(cri.is_symlink());
        board.does(&["--mode=standalone"]);
        assert!(
            !cri.is_symlink()
                && !board
                    .path("etc/systemd/system/picolet-cri.service")
                    .exists()
        );
        board.does(&["--mode=kubeadm"]);
        board.does(&["--uninstall", "--purge"]);
        assert!(!board.path("usr/bin/kubelet").is_symlink() && !wants("kubelet.service"));
        assert!(!cri.is_symlink() && !board.path("etc/systemd/system/picolet-cri.socket").exists());

        fs::remove_file(board.path("lib/systemd/systemd")).expect("removed");
        fs::create_dir_all(board.path("sbin")).expect("directory");
        fs::write(board.path("sbin/openrc"), "").expect("written");
        board.does(&[]);
        assert!(board.path("etc/runlevels/default/picolet").is_symlink());
        assert!(
            board
                .path("etc/runlevels/default/picolet-pods")
                .is_symlink()
        );
        assert!(!board.path("etc/systemd/system/picolet.service").exists());
        // What kubeadm finds by rc-update and rc-service.
        board.does(&["--mode", "kubeadm"]);
        assert!(board.path("etc/runlevels/default/kubelet").is_symlink());
        assert!(board.path("etc/init.d/kubelet").exists());
        assert!(!board.path("etc/runlevels/default/picolet").is_symlink());
    }
}

#[test]
fn a_purge_leaves_no_node() {
    // PKG-08
    for board in boards("purge") {
        let config = |ca: &str| {
            format!(
                "# Written by picolet join. Put settings of your own into a drop-in\nauthentication:\n  x509:\n    clientCAFile: {ca}\n\
                 picolet:\n  kubeconfig: /etc/kubernetes/kubelet.conf\n  bootstrapKubeconfig: /etc/kubernetes/bootstrap-kubelet.conf\n"
            )
        };
        let files = ["kubelet.conf", "bootstrap-kubelet.conf", "pki/ca.crt"]
            .map(|name| board.path("etc/kubernetes").join(name));
        let there = || files.iter().map(|file| file.exists()).collect::<Vec<_>>();
        for (text, flags, left) in [
            (
                config("/etc/kubernetes/pki/ca.crt"),
                &["--uninstall", "--purge"][..],
                [false; 3],
            ),
            (
                config("/etc/kubernetes/pki/ca.crt"),
                &["--uninstall"],
                [true; 3],
            ),
            (
                config("/etc/ssl/own.crt"),
                &["--uninstall", "--purge"],
                [false, false, true],
            ),
            // Nobody joined by picolet.
            (
                "picolet: {kubeconfig: /etc/kubernetes/kubelet.conf}\n".into(),
                &["--uninstall", "--purge"],
                [true; 3],
            ),
        ] {
            board.does(&[]);
            fs::create_dir_all(board.path("etc/kubernetes/pki")).expect("directory");
            fs::create_dir_all(board.path("etc/picolet")).expect("directory");
            for file in &files {
                fs::write(file, "secret").expect("written");
            }
            fs::write(board.path("etc/picolet/config.yaml"), &text).expect("written");
            board.does(flags);
            assert_eq!(there(), left, "{flags:?} {text}");
        }
    }
}

#[test]
fn the_userland_decides_and_not_the_kernel() {
    // SVC-18
    /// Class and machine of an ELF header.
    const PROCESSORS: [(&str, u8, u8); 4] = [
        ("aarch64", 2, 0xb7),
        ("32-bit ARM", 1, 0x28),
        ("x86_64", 2, 0x3e),
        ("32-bit x86", 1, 0x03),
    ];
    for board in boards("userland") {
        fs::create_dir_all(board.path("sbin")).expect("directory");
        fs::create_dir_all(board.dir.join("doubles")).expect("directory");
        // Links to this machine say nothing of that one.
        std::os::unix::fs::symlink("/bin/sh", board.path("sbin/init")).expect("link");
        let shell = board.path("bin/dash");
        let kept = board.path("kept");
        fs::rename(&shell, &kept).expect("renamed");
        board.refuses(&[], 3, "cannot tell the processor of the system below");
        std::os::unix::fs::symlink("/usr/bin", board.path("away")).expect("link");
        fs::rename(board.path("bin"), board.path("bin.kept")).expect("renamed");
        fs::rename(board.path("away"), board.path("bin")).expect("renamed");
        board.refuses(&[], 3, "cannot tell the processor of the system below");
        fs::remove_file(board.path("bin")).expect("removed");
        fs::rename(board.path("bin.kept"), board.path("bin")).expect("renamed");
        fs::remove_file(board.path("sbin/init")).expect("removed");
        // A link is passed over, whatever it leads to.
        let head_of_another = {
            let mut head = vec![0; 64];
            head[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 1, 1]);
            head
        };
        fs::write(&shell, head_of_another).expect("written");
        board.refuses(&[], 3, "the system is unknown (010000)");
        fs::remove_file(&shell).expect("removed");
        fs::rename(&kept, &shell).expect("renamed");
        let head = |class: u8, machine: u8| {
            let mut head = vec![0; 64];
            head[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
            head[18] = machine;
            head
        };
        let uname = |machine: &str| {
            let double = board.dir.join("doubles/uname");
            let text = format!("#!/bin/sh\n[ \"$1\" = -m ] && echo {machine} || echo 3.2.0\n");
            fs::write(&double, text).expect("written");
            fs::set_permissions(double, fs::Permissions::from_mode(0o755)).expect("mode");
        };
        let program = board.dir.join("tarball/picolet");
        for (system, class, machine) in PROCESSORS {
            fs::write(board.path("sbin/init"), head(class, machine)).expect("written");
            for (given, class, machine) in PROCESSORS {
                fs::write(&program, head(class, machine)).expect("written");
                // Whatever the kernel is: that of 64 bits runs both, and this one is not that of the other system.
                for kernel in ["aarch64", "x86_64", "armv7l"] {
                    uname(kernel);
                    if given == system {
                        let said = board.does(&["--dry-run"]);
                        assert!(said.contains("would install"), "{given} {kernel}: {said}");
                    } else {
                        let says = format!("is for {given}, the system is {system}: take");
                        board.refuses(&[], 3, &says);
                    }
                }
            }
        }
        // The armhf of Raspberry Pi OS is ARMv6, that of Debian is ARMv7; an ELF header tells neither. For another system it is
        // chosen by hand.
        let (_, class, machine) = PROCESSORS[1];
        fs::write(board.path("sbin/init"), head(class, machine)).expect("written");
        fs::write(&program, head(class, machine)).expect("written");
        fs::write(board.dir.join("tarball/arch"), "armv7\n").expect("written");
        uname("armv6l");
        board.does(&["--dry-run"]);
        board.pack("of this processor");
        if board.shell[0] == "busybox" {
            // It has a uname of its own.
            continue;
        }
        for (given, kernel, fits) in [
            ("armv7", "armv6l", false),
            ("armv6", "armv6l", true),
            ("armv7", "armv7l", true),
            ("armv7", "aarch64", true),
            ("armv6", "armv7l", true),
        ] {
            fs::write(board.dir.join("tarball/arch"), format!("{given}\n")).expect("written");
            uname(kernel);
            let said = board.looks_here();
            let refused = said.contains("the processor is ARMv6: take the tarball for armv6");
            assert_eq!(refused, !fits, "{given} {kernel}: {said}");
            let refused = said.contains("Linux 3.2.0, it must be 5.6 or newer");
            assert!(refused, "{said}");
        }
    }
}

#[test]
fn the_memory_controller_is_switched_on_where_that_is_wanted() {
    // SVC-16
    const LINE: &str = "console=tty1 cgroup_disable=memory root=PARTUUID=1-02 rootwait";
    const WANTED: &str = "console=tty1 root=PARTUUID=1-02 rootwait cgroup_enable=memory";
    for board in boards("memory") {
        board.refuses(&["--enable-memory"], 3, "there is no cmdline.txt");
        board.refuses(
            &["--uninstall", "--enable-memory"],
            2,
            "goes with an installation",
        );
        // What Raspberry Pi OS leaves there, where the other partition is not mounted.
        fs::create_dir_all(board.path("boot")).expect("directory");
        let note = "DO NOT EDIT THIS FILE\n\nIt has moved to /boot/firmware/cmdline.txt\n";
        fs::write(board.path("boot/cmdline.txt"), note).expect("written");
        board.refuses(&["--enable-memory"], 3, "there is no cmdline.txt");
        // Before Debian 12, and since.
        for (dir, text, wanted) in [
            ("boot", format!("{LINE}\n"), format!("{WANTED}\n")),
            (
                "boot/firmware",
                format!("{LINE} \r\n# kept\n"),
                format!("{WANTED}\n# kept\n"),
            ),
        ] {
            fs::create_dir_all(board.path(dir)).expect("directory");
            let file = board.path(dir).join("cmdline.txt");
            fs::write(&file, &text).expect("written");
            // Nobody asked for it.
            board.does(&[]);
            assert_eq!(fs::read_to_string(&file).expect("read"), text);
            let said = board.does(&["--dry-run", "--enable-memory"]);
            assert!(said.contains(&format!("cmdline.txt: {WANTED}")), "{said}");
            assert_eq!(fs::read_to_string(&file).expect("read"), text);
            let said = board.does(&["--enable-memory"]);
            assert!(said.contains("restart the board to use it"), "{said}");
            assert_eq!(fs::read_to_string(&file).expect("read"), wanted);
            let copy = board.path(dir).join("cmdline.txt.before-picolet");
            assert_eq!(fs::read_to_string(&copy).expect("kept"), text);
            assert_eq!(board.does(&["--enable-memory"]), "nothing to change\n");
            // Words that only look like it; and a backslash, which echo would take.
            let odd = format!("a\\tb xcgroup_disable=memory,x {WANTED}");
            let off = "cgroup_disable=memory cgroup_disable=memory";
            fs::write(&file, format!("{off} {odd} {off}\n")).expect("written");
            board.does(&["--enable-memory"]);
            assert_eq!(fs::read_to_string(&file).expect("read"), format!("{odd}\n"));
            // Without an end of its line, and switched on already.
            fs::write(&file, WANTED).expect("written");
            assert_eq!(board.does(&["--enable-memory"]), "nothing to change\n");
            assert_eq!(fs::read_to_string(&file).expect("read"), WANTED);
            assert_eq!(fs::read_to_string(&copy).expect("kept"), text);
        }
    }
    let script = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("cross/install.sh"));
    let script = script.expect("script");
    let restarts = ["reboot", "shutdown"].iter().any(|word| {
        let code = script
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        code.into_iter().any(|line| line.contains(word))
    });
    assert!(!restarts, "it never restarts the machine");
}

/// A system with nothing of picolet, in namespaces of its own, and what it is told by `$1`: the tarball, then doubles that note
/// what a service manager is asked.
const SYSTEM: &str = r#"
set -eu
base=$1 shell=$2
mkdir $base/up && mount -t tmpfs none $base/up
for dir in /etc /usr/bin; do
    up=$base/up$dir && mkdir -p $up $up.work
    mount -t overlay -o "lowerdir=$dir,upperdir=$up,workdir=$up.work" none $dir
done
for dir in /run /var/lib /usr/local; do mount -t tmpfs none $dir; done
PATH=$base/doubles:/usr/sbin:/usr/bin:/sbin:/bin
log=$base/asked
install() { : >$log; $shell $base/tarball/install.sh "$@" >$base/said 2>&1 || { cat $base/said >&2; return 1; }; }
fails() { echo "$1: $(cat $base/said $log)" >&2; exit 1; }
# The session ends when the service manager is asked for the first time.
cut() { : >$base/cut; ! install "$@" 2>$base/died || fails "not cut"; [ ! -e $base/cut ] || fails "nobody was asked"; }
asked() { grep -qx "$1" $log || fails "did not ask: $1"; }
never() { ! grep -qx "$1" $log || fails "asked: $1"; }
same() { grep -qx 'nothing to change' $base/said || fails "changed"; never '.* restart'; never 'restart .*'; }

mkdir -p /run/systemd/system
install && asked 'restart picolet'
install && same
echo two >>$base/tarball/picolet
cut
install && asked 'restart picolet' && asked 'daemon-reload'
install && same
# Whoever starts nothing finds nothing to do, until somebody does.
echo three >>$base/tarball/picolet
install --no-start && never 'restart picolet'
install --no-start && same
install && asked 'restart picolet'
install && same
install --uninstall
[ ! -e /usr/local/lib/picolet ] || fails "left the library"

rm -r /run/systemd && mkdir /run/openrc
install && asked 'picolet restart'
[ -f /etc/logrotate.d/picolet ] || fails "no logrotate"
# kubeadm starts the kubelet.
install --mode kubeadm && never 'kubelet restart' && asked 'picolet-pods start'
mkdir -p /var/lib/kubelet && : >/var/lib/kubelet/config.yaml
install --mode kubeadm && asked 'kubelet restart'
install --uninstall
[ ! -e /etc/logrotate.d/picolet ] && [ ! -e /usr/bin/kubelet ] || fails "left something"
echo whole
"#;

/// Notes what it is asked. Nothing is enabled; what has been restarted is active, but for the first question after a cut.
const MANAGER: &str = r#"#!/bin/sh
if [ -e @base@/cut ]; then rm @base@/cut; kill -9 $PPID; fi
words=
for word; do case $word in -*) ;; *) words="$words $word" ;; esac; done
echo "${words# }" >>@base@/asked
case $words in
*is-enabled*) exit 1 ;;
" kubelet status" | " picolet-pods status") exit 1 ;;
esac
"#;

#[test]
fn an_agent_is_restarted_once_for_what_was_installed() {
    // PKG-05 PKG-07 SVC-07
    if !nix::unistd::geteuid().is_root() {
        skipped!("an_agent_is_restarted_once_for_what_was_installed: not root");
        return;
    }
    for board in boards("restart") {
        fs::create_dir_all(board.dir.join("doubles")).expect("directory");
        for name in ["systemctl", "rc-service"] {
            let double = board.dir.join("doubles").join(name);
            let text = MANAGER.replace("@base@", &board.dir.display().to_string());
            fs::write(&double, text).expect("written");
            fs::set_permissions(double, fs::Permissions::from_mode(0o755)).expect("mode");
        }
        let output = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", SYSTEM, "sh"])
            .arg(&board.dir)
            .arg(board.shell.join(" "))
            .output()
            .expect("unshare");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, "whole\n", "{}: {output:?}", board.shell[0]);
    }
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_written() {
    // PKG-05 PKG-06
    for board in boards("unfit") {
        board.refuses(&["--bogus"], 2, "unknown flag --bogus");
        board.refuses(&["--mode", "x"], 2, "--mode is \"x\"");
        board.refuses(&["--mode"], 2, "--mode needs a value");
        board.refuses(&["nowhere.tar.gz"], 2, "there is no file nowhere.tar.gz");
        board.refuses(&["--purge"], 2, "--purge goes with --uninstall");

        let program = board.dir.join("tarball/picolet");
        let mut foreign = fs::read(&program).expect("program");
        // The processor in an ELF header: one that nobody has.
        foreign[18] = 0xfe;
        fs::write(&program, foreign).expect("written");
        board.refuses(&[], 3, "take the tarball for that");
        board.pack("right");

        fs::create_dir_all(board.path("usr/bin")).expect("directory");
        fs::write(board.path("usr/bin/kubelet"), "").expect("written");
        board.refuses(
            &["--mode", "kubeadm"],
            3,
            "is another kubelet: remove its package",
        );

        let foreign = board.path("etc/systemd/system/kubelet.service");
        fs::create_dir_all(foreign.parent().expect("directory")).expect("directory");
        fs::write(&foreign, "[Service]\nExecStart=/opt/bin/kubelet\n").expect("written");
        board.refuses(
            &[],
            3,
            "kubelet.service belongs to another kubelet: disable it",
        );
        fs::remove_file(foreign).expect("removed");

        fs::create_dir_all(board.path("usr/lib/picolet")).expect("directory");
        fs::write(board.path("usr/lib/picolet/guard"), "").expect("written");
        board.refuses(
            &[],
            3,
            "the Debian package picolet is installed: upgrade it by apt",
        );
        fs::remove_file(board.path("usr/lib/picolet/guard")).expect("removed");

        fs::remove_file(board.path("lib/systemd/systemd")).expect("removed");
        board.refuses(&[], 3, "neither systemd nor OpenRC");
        fs::write(board.path("lib/systemd/systemd"), "").expect("written");

        if !nix::unistd::geteuid().is_root() {
            skipped!("what_cannot_work_is_refused_before_anything_is_written: mounts: not root");
            continue;
        }
        let local = board.path("usr/local");
        for (options, says) in [
            ("noexec", "is mounted noexec: mount -o remount,exec"),
            ("ro", "is read-only: mount -o remount,rw"),
            ("size=16k", "KiB free, but"),
        ] {
            let mount = Command::new("mount")
                .args(["-t", "tmpfs", "-o", options, "none"])
                .arg(&local)
                .status();
            assert!(mount.is_ok_and(|s| s.success()), "{options}");
            let output = board.run(&[]);
            let wrote = fs::read_dir(&local).expect("directory").count();
            let unmounted = Command::new("umount").arg(&local).status();
            assert!(unmounted.is_ok_and(|s| s.success()));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(
                (output.status.code(), wrote),
                (Some(3), 0),
                "{options}: {said}"
            );
            assert!(said.contains(says), "{options}: {said}");
        }
        // A disk of somebody, and a link that leads out of the system.
        board.does(&[]);
        let link = board.path("var");
        fs::rename(&link, board.path("data")).expect("renamed");
        std::os::unix::fs::symlink("data", &link).expect("link");
        let disk = board.path("data/lib/picolet/disk");
        fs::create_dir(&disk).expect("directory");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(&disk)
            .status();
        assert!(mount.is_ok_and(|s| s.success()));
        fs::write(disk.join("theirs"), "").expect("written");
        let output = board.run(&["--uninstall", "--purge"]);
        let stays = disk.join("theirs").exists();
        let unmounted = Command::new("umount").arg(&disk).status();
        assert!(unmounted.is_ok_and(|s| s.success()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stays && output.status.code() == Some(1), "{said}");
        assert!(said.contains("something is mounted"), "{said}");
        let (own, out) = (board.path("data/lib/picolet"), board.dir.join("out"));
        fs::rename(&own, &out).expect("renamed");
        std::os::unix::fs::symlink(&out, &own).expect("link");
        let output = board.run(&["--uninstall", "--purge"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("leads out of") && out.exists(), "{said}");
        fs::rename(&out, board.path("kept")).expect("renamed");
        fs::remove_file(&own).expect("removed");
        std::os::unix::fs::symlink("../../kept", &own).expect("link");
        board.does(&["--uninstall", "--purge"]);
        assert!(!own.is_symlink() && !board.path("kept").exists());
    }
}

/// This machine in namespaces of its own, by the tarball in the directory `$1` and the shell `$2`: another agent runs, the user
/// is not root, the memory controller is off.
const UNFIT: &str = r#"
set -eu
base=$1 shell=$2
for dir in /run /usr/local /sys/fs/cgroup; do mount -t tmpfs none $dir; done
mkdir -p /run/systemd/system
echo 'cpuset cpu memory pids' >/sys/fs/cgroup/cgroup.controllers
fails() { echo "$1: $(cat $base/said)" >&2; exit 1; }
# What is said, and who runs it. Dry: what is not refused would be installed on the machine of the test.
refuses() {
    says=$1 code=0 && shift
    "$@" $shell $base/tarball/install.sh --dry-run >$base/said 2>&1 || code=$?
    [ $code = 3 ] && grep -qF "$says" $base/said || fails "exit $code without '$says'"
}
for name in kubelet k3s k3s-server k3s-agent; do
    cp "$(command -v sleep)" $base/$name
    $base/$name 1000 &
    tries=0
    until [ "$(cat /proc/$!/comm)" = $name ]; do
        tries=$((tries + 1))
        [ $tries -lt 5000 ] || { : >$base/said && fails "$name does not start"; }
    done
    refuses "$name (pid $!) runs here and uses the same port and cgroups: stop and disable it first" env
    kill $! && { wait $! || :; }
done
refuses 'must run as root: sudo sh install.sh' setpriv --reuid 65534 --clear-groups
warning='warning: the memory controller is off, pods with memory limits do not start'
plan() { $shell $base/tarball/install.sh --dry-run >$base/said 2>&1 || fails "refused"; }
plan && ! grep -qF "$warning" $base/said || fails "warned"
echo 'cpuset cpu pids' >/sys/fs/cgroup/cgroup.controllers
plan && grep -qF "$warning" $base/said || fails "not warned"
echo whole
"#;

#[test]
fn a_machine_that_is_in_use_or_lacks_something_is_told_so() {
    // PKG-06
    if !nix::unistd::geteuid().is_root() {
        skipped!("a_machine_that_is_in_use_or_lacks_something_is_told_so: not root");
        return;
    }
    for board in boards("in-use") {
        let output = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", UNFIT, "sh"])
            .arg(&board.dir)
            .arg(board.shell.join(" "))
            .output()
            .expect("unshare");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, "whole\n", "{}: {output:?}", board.shell[0]);
    }
}

#[test]
fn a_root_may_have_a_space_in_its_name() {
    // PKG-05 PKG-06 PKG-08
    for board in boards("space") {
        let root = board.dir.join("my root");
        fs::rename(board.path(""), &root).expect("renamed");
        let run = |words: &[&str]| {
            let mut command = board.command();
            let output = command.arg("--root").arg(&root).args(words).output();
            let output = output.expect("started");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code(), said)
        };
        if nix::unistd::geteuid().is_root() {
            let local = root.join("usr/local");
            let mount = Command::new("mount")
                .args(["-t", "tmpfs", "-o", "noexec", "none"])
                .arg(&local)
                .status();
            assert!(mount.is_ok_and(|s| s.success()));
            let (code, said) = run(&[]);
            let unmounted = Command::new("umount").arg(&local).status();
            assert!(unmounted.is_ok_and(|s| s.success()));
            let wanted = "my root/usr/local, which is mounted noexec: mount";
            assert!(code == Some(3) && said.contains(wanted), "{said}");
        } else {
            skipped!("a_root_may_have_a_space_in_its_name: mounts: not root");
        }
        assert_eq!(run(&[]), (Some(0), String::new()));
        let bin = root.join("usr/local/bin");
        for end in [
            "part",
            "trial",
            "trial.part",
            "bad",
            "bad.part",
            "back",
            "back.part",
            "old",
            "new",
        ] {
            fs::write(bin.join(format!("picolet.{end}")), "").expect("written");
        }
        assert_eq!(run(&["--uninstall"]), (Some(0), String::new()));
        let left: Vec<_> = fs::read_dir(&bin).expect("directory").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The guard on a file system of this machine that is full, in the directory `$1`.
const FULL: &str = r#"
set -eu
guard="$2 $3" && cd "$1"
mount -t tmpfs -o size=64k none . && cd "$1"
echo one >picolet.old
echo two >picolet
printf 'tries 2\nsum abc\nversion 2.0.0\nrestart true\n' >picolet.trial
: >picolet.bad
cat /dev/zero >full 2>/dev/null && exit 1
for start in 1 2; do
    [ "$($guard "$PWD/picolet" echo runs)" = runs ]
    [ "$(cat picolet)" = two ]
    [ "$(cat picolet.trial)" = "$(printf 'tries %s\nsum abc\nversion 2.0.0\nrestart true' $((2 - start)))" ]
done
if [ "$4" = start ]; then $guard "$PWD/picolet"; else $guard --back "$PWD/picolet" 'it was not healthy'; fi
[ "$(cat picolet)" = one ]
echo *
"#;

#[test]
fn a_full_disk_keeps_no_program_in_place_that_is_not_well() {
    // PKG-22
    if !nix::unistd::geteuid().is_root() {
        skipped!("a_full_disk_keeps_no_program_in_place_that_is_not_well: not root");
        return;
    }
    let guard = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/guard.sh");
    for board in boards("full") {
        for way in ["start", "back"] {
            let output = Command::new("unshare")
                .args(["--mount", "sh", "-c", FULL, "sh"])
                .arg(&board.dir)
                .arg(board.shell.join(" "))
                .arg(&guard)
                .arg(way)
                .output()
                .expect("unshare");
            let left = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(
                left, "full picolet picolet.bad picolet.old\n",
                "{way}: {output:?}"
            );
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                said.contains("put the old program back: abc 2.0.0 it "),
                "{said}"
            );
        }
    }
}

/// A machine that has been flashed: a boot partition, and a program that notes what it is called with.
struct Flashed {
    board: Board,
}

const SECRET: &str = "abcdef.0123456789abcdef";
const JOIN_LINE: &str = "kubeadm join 10.0.0.1:6443 --token abcdef.0123456789abcdef \\\n\
    \t--discovery-token-ca-cert-hash sha256:0123456789abcdef \n";
/// The words of the program, and what it is told by its standard input: the token is not among the words.
const JOINED: &str = "join --token-file - 10.0.0.1:6443 --discovery-token-ca-cert-hash sha256:0123456789abcdef <abcdef.0123456789abcdef\n";

impl Flashed {
    fn new(board: Board) -> Self {
        fs::create_dir_all(board.path("boot/firmware")).expect("directory");
        fs::create_dir_all(board.dir.join("doubles")).expect("directory");
        let flashed = Self { board };
        flashed.mounts("");
        flashed.joins("exit 0");
        flashed
    }

    /// What is mounted on it, beside its root.
    fn mounts(&self, more: &str) {
        let table = format!("/dev/root / ext4 rw,relatime 0 0\n{more}");
        fs::write(self.board.dir.join("mounts"), table).expect("written");
    }

    /// How the program's joins go from now on.
    fn joins(&self, how: &str) {
        let double = self.board.dir.join("doubles/picolet");
        let calls = self.board.dir.join("calls");
        // Of checks only the verdict on the configuration counts: it depends on the drop-in, or is a file of the test.
        let text = format!(
            "#!/bin/sh\n[ \"$1\" != check ] || {{ ! grep -qs -- -1 {1} || echo 'ERROR config  maxPods: must be positive'; \
             /bin/cat {0}.check; exit 0; }}\necho \"$* <$(/bin/cat)\" >>{0}\n{how}\n",
            calls.display(),
            self.drop_in().display()
        );
        fs::write(&double, text).expect("written");
        fs::set_permissions(double, fs::Permissions::from_mode(0o755)).expect("mode");
    }

    fn calls(&self) -> String {
        let file = self.board.dir.join("calls");
        let calls = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        calls
    }

    fn boot(&self, name: &str) -> PathBuf {
        self.board.path("boot/firmware").join(name)
    }

    fn run(&self, word: &str) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/first-boot.sh");
        let doubles = self.board.dir.join("doubles");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = [doubles.as_os_str(), &path].join(":".as_ref());
        Command::new(self.board.shell[0])
            .args(&self.board.shell[1..])
            .arg(script)
            .arg(word)
            .env("PICOLET_ROOT", self.board.path(""))
            .env("PICOLET", doubles.join("picolet"))
            .env("PICOLET_MOUNTS", self.board.dir.join("mounts"))
            .env("PATH", path)
            // What a power cut ends.
            .process_group(0)
            .output()
            .expect("started")
    }

    /// Both steps of a boot; whether all of it succeeded.
    fn starts(&self) -> bool {
        ["take", "join"]
            .iter()
            .all(|word| self.run(word).status.success())
    }

    fn drop_in(&self) -> PathBuf {
        self.board.path("etc/picolet/config.d/10-first-boot.conf")
    }

    fn kept(&self) -> PathBuf {
        self.board.path("etc/picolet/first-boot.join")
    }

    /// Every word of the token, wherever it is: in memory it may be, on the card not.
    fn secrets(&self) -> usize {
        let files = self.board.files();
        let has = |content: &Vec<u8>| content.windows(16).any(|w| w == b"0123456789abcdef");
        files
            .iter()
            .filter(|(path, _, _, content)| path.is_file() && has(content))
            .count()
    }
}

#[test]
fn what_the_boot_partition_has_is_taken_once() {
    // PKG-11
    for board in boards("first-boot") {
        let flashed = Flashed::new(board);
        // Without a file there is nothing to do.
        assert!(flashed.starts());
        assert_eq!(flashed.calls(), "");

        let labels = "picolet: {nodeLabels: {shelf: a}}\n";
        fs::write(flashed.boot("picolet.yaml"), labels).expect("written");
        fs::write(flashed.boot("picolet-join.txt"), JOIN_LINE).expect("written");
        // The control plane is away: it stays, where root alone reads it, and is wiped from the partition.
        flashed.joins("echo 'error: cannot reach https://10.0.0.1:6443' >&2; exit 1");
        assert!(!flashed.starts());
        assert_eq!(flashed.calls(), JOINED);
        let drop_in = flashed
            .board
            .path("etc/picolet/config.d/10-first-boot.conf");
        assert_eq!(fs::read_to_string(drop_in).expect("taken"), labels);
        assert!(
            !flashed.boot("picolet.yaml").exists() && !flashed.boot("picolet-join.txt").exists()
        );
        let mode = fs::metadata(flashed.kept()).expect("kept").mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(flashed.secrets(), 1, "only there");
        let error = fs::read_to_string(flashed.boot("picolet-join.error.txt")).expect("told");
        assert!(error.contains("cannot reach"), "{error}");
        // The same again is not written again: cards wear.
        let written = || {
            let about = fs::metadata(flashed.boot("picolet-join.error.txt")).expect("metadata");
            (about.mtime(), about.mtime_nsec())
        };
        let first = written();
        assert!(!flashed.starts() && written() == first);
        assert_eq!(flashed.calls(), JOINED);
        // Later it works, and is done once.
        flashed.joins("exit 0");
        assert!(flashed.starts());
        assert_eq!(flashed.calls(), JOINED);
        assert!(!flashed.kept().exists() && !flashed.boot("picolet-join.error.txt").exists());
        assert_eq!(flashed.secrets(), 0);
        assert!(flashed.starts());
        assert_eq!(flashed.calls(), "");

        // A clock that runs is no other error.
        fs::write(flashed.boot("picolet-join.txt"), JOIN_LINE).expect("written");
        flashed.joins("echo 'error: the clock says 10:00:01' >&2; exit 1");
        assert!(!flashed.starts());
        let first = written();
        flashed.joins("echo 'error: the clock says 10:00:31' >&2; exit 1");
        assert!(!flashed.starts() && written() == first);
        // Windows' own way to write it: UTF-16, with a mark before it.
        let wide = JOIN_LINE.encode_utf16().flat_map(u16::to_le_bytes);
        let wide: Vec<u8> = [0xff, 0xfe].into_iter().chain(wide).collect();
        for (how, bytes) in [
            ("UTF-16", wide),
            ("UTF-8", format!("\u{feff}{JOIN_LINE}").into()),
        ] {
            flashed.calls();
            fs::write(flashed.boot("picolet-join.txt"), bytes).expect("written");
            flashed.joins("exit 0");
            assert!(flashed.starts(), "{how}");
            assert_eq!(flashed.calls(), JOINED, "{how}");
        }

        // The same before Debian 12, with the ends of lines that Windows writes.
        let old = flashed.board.path("boot/picolet-join.txt");
        fs::write(
            &old,
            "picolet join --k3s https://h:6443 --token=K10aa::node:b --node-labels shelf=a\r\n",
        )
        .expect("written");
        flashed.joins("echo 'error: this machine is a node already: --force' >&2; exit 1");
        assert!(flashed.starts(), "that it had joined is no failure");
        assert_eq!(
            flashed.calls(),
            "join --token-file - --k3s https://h:6443 --node-labels shelf=a <K10aa::node:b\n"
        );
        assert!(!old.exists() && !flashed.kept().exists());
    }
}

#[test]
fn a_boot_partition_is_not_trusted() {
    // PKG-11
    for board in boards("hostile-boot") {
        let flashed = Flashed::new(board);
        let mark = flashed.board.dir.join("mark");
        let shell = format!("kubeadm join a:1 --token $(touch {})", mark.display());
        for text in [
            "",
            "\n",
            "kubeadm join 10.0.0.1:6443\n",
            "kubeadm join a:1 --token x --config /etc/shadow\n",
            "kubeadm join a:1 --token x --root-dir=/\n",
            "kubeadm join a:1 --token\n",
            "kubeadm join a:1 --token x; reboot\n",
            "kubeadm join a:1 --token `id`\n",
            "kubeadm join a:1 --token x *\n",
            "kubeadm join a:1 --token x abcdef.0123456789abcdef\n",
            "picolet join --k3s https://h:6443 --token x K10aa::node:b\n",
            "picolet join K10aa::node:b --k3s=https://h:6443 --token=x\n",
            "\u{feff}\u{0}\u{1}",
            &shell,
        ] {
            fs::write(flashed.boot("picolet-join.txt"), text).expect("written");
            assert!(flashed.starts(), "{text:?}");
            assert_eq!(flashed.calls(), "", "{text:?}");
            assert!(!flashed.boot("picolet-join.txt").exists() && !flashed.kept().exists());
            let error = fs::read_to_string(flashed.boot("picolet-join.error.txt")).expect("told");
            assert!(
                error.contains("kubeadm token create --print-join-command"),
                "{error}"
            );
            assert_eq!(error.lines().count(), 1);
        }
        assert!(!mark.exists(), "no shell reads it");
        // Nobody is there who could see that another server answers.
        fs::create_dir_all(flashed.board.path("etc/picolet")).expect("directory");
        let any_ca = "--discovery-token-unsafe-skip-ca-verification";
        for (text, says) in [
            (
                format!("picolet join --k3s https://h:6443 --token {SECRET}\n"),
                "--token names no CA",
            ),
            (
                format!("picolet join --token={SECRET} --k3s=https://h:6443\n"),
                "--token names no CA",
            ),
            (
                format!("picolet join --k3s https://h:6443 --token {SECRET} {any_ca}\n"),
                any_ca,
            ),
            (
                format!("kubeadm join a:1 --token {SECRET} {any_ca}=true\n"),
                any_ca,
            ),
        ] {
            fs::write(flashed.boot("picolet-join.txt"), &text).expect("written");
            assert!(flashed.starts(), "{text:?}");
            let error = fs::read_to_string(flashed.boot("picolet-join.error.txt")).expect("told");
            assert!(
                error.starts_with("picolet-join.txt was wiped: ") && error.contains(says),
                "{error}"
            );
            assert_eq!((&*flashed.calls(), flashed.secrets()), ("", 0), "{text:?}");
            // The same, written to where the join looks for it.
            fs::write(flashed.kept(), &text).expect("written");
            assert!(!flashed.run("join").status.success(), "{text:?}");
            let error = fs::read_to_string(flashed.boot("picolet-join.error.txt")).expect("told");
            assert!(
                error.contains("first-boot.join: ") && error.contains(says),
                "{error}"
            );
            assert_eq!((&*flashed.calls(), flashed.secrets()), ("", 1), "{text:?}");
            fs::remove_file(flashed.kept()).expect("removed");
        }
        let long = format!("{JOIN_LINE}{}", "x".repeat(70_000));
        fs::write(flashed.boot("picolet-join.txt"), long).expect("written");
        assert!(flashed.starts() && !flashed.kept().exists());
        let error = fs::read_to_string(flashed.boot("picolet-join.error.txt")).expect("told");
        assert!(error.contains("more than 65536 bytes"), "{error}");
        fs::write(flashed.boot("picolet.yaml"), "a: ".repeat(40_000)).expect("written");
        assert!(flashed.starts());
        assert!(flashed.boot("picolet.yaml.wrong").exists());
        // What an agent could not start with.
        fs::remove_file(flashed.boot("picolet.yaml.wrong")).expect("removed");
        let good = "maxPods: 7\n";
        fs::create_dir_all(flashed.board.path("etc/picolet/config.d")).expect("directory");
        fs::write(flashed.drop_in(), good).expect("written");
        fs::write(flashed.boot("picolet.yaml"), "maxPods: -1\n").expect("written");
        assert!(flashed.starts());
        assert!(flashed.boot("picolet.yaml.wrong").exists());
        let error = fs::read_to_string(flashed.boot("picolet-join.error.txt")).expect("told");
        assert!(error.contains("maxPods: must be positive"), "{error}");
        let now = || fs::read_to_string(flashed.drop_in()).expect("drop-in");
        assert_eq!(now(), good, "that of before is used again");
        fs::remove_file(flashed.drop_in()).expect("removed");
        fs::write(flashed.boot("picolet.yaml"), "maxPods: -1\n").expect("written");
        assert!(flashed.starts() && !flashed.drop_in().exists());
        // What was wrong before is not its fault.
        fs::remove_file(flashed.boot("picolet.yaml.wrong")).expect("removed");
        let verdict = "ok    root    x\nERROR config  port: is taken\n      fix: x\n";
        fs::write(flashed.board.dir.join("calls.check"), verdict).expect("written");
        fs::write(flashed.boot("picolet.yaml"), "maxPods: 8\n").expect("written");
        assert!(flashed.starts());
        assert_eq!(now(), "maxPods: 8\n");
        let left = fs::read_dir(flashed.boot("")).expect("directory").count();
        assert_eq!(left, 1, "the error file");
        assert_eq!(
            fs::read_dir(flashed.board.path("etc/picolet/config.d"))
                .expect("directory")
                .count(),
            1
        );
    }
}

#[test]
fn what_would_not_last_is_not_wiped() {
    // PKG-11
    for board in boards("first-boot-memory") {
        let flashed = Flashed::new(board);
        let etc = flashed.board.path("etc");
        let upper = flashed.board.dir.join("upper");
        fs::create_dir_all(&upper).expect("directory");
        fs::create_dir_all(&etc).expect("directory");
        let (etc, upper) = (fs::canonicalize(etc), fs::canonicalize(upper));
        let (etc, upper) = (etc.expect("etc"), upper.expect("upper"));
        let (etc, upper) = (etc.display(), upper.display());
        let over = |upper: &str| {
            format!("overlay {etc} overlay rw,lowerdir=/l,upperdir={upper},workdir=/w 0 0\n")
        };
        let below = format!("none {upper} tmpfs rw 0 0\n");
        let labels = "picolet: {nodeLabels: {shelf: a}}\n";
        let put = || {
            fs::write(flashed.boot("picolet.yaml"), labels).expect("written");
            fs::write(flashed.boot("picolet-join.txt"), JOIN_LINE).expect("written");
        };
        put();
        for mounts in [
            format!("none {etc} tmpfs rw 0 0\n"),
            // On top of a disk.
            format!("/dev/a {etc} ext4 rw 0 0\nnone {etc} tmpfs rw 0 0\n"),
            over(&upper.to_string()) + &below,
            // Seen by the initramfs alone.
            over("/picolet-upper-of-nobody"),
        ] {
            flashed.mounts(&mounts);
            assert!(flashed.run("take").status.success(), "{mounts}");
            // They serve this boot, and the next one.
            let drop_in = fs::read_to_string(flashed.drop_in());
            assert_eq!(drop_in.expect("taken"), labels, "{mounts}");
            assert!(flashed.kept().exists(), "{mounts}");
            for name in ["picolet.yaml", "picolet-join.txt"] {
                assert!(flashed.boot(name).exists(), "{name}: {mounts}");
            }
            let error = fs::read_to_string(flashed.boot("picolet-join.error.txt")).expect("told");
            assert!(error.contains("is in memory"), "{error}");
        }
        // Over a disk it lasts.
        flashed.mounts(&over(&upper.to_string()));
        assert!(flashed.starts());
        assert_eq!((flashed.secrets(), &*flashed.calls()), (0, JOINED));
        assert!(!flashed.boot("picolet.yaml").exists());

        // Where nothing can be written: told on the card, and both are looked at.
        put();
        fs::remove_dir_all(flashed.board.path("etc/picolet")).expect("removed");
        fs::write(flashed.board.path("etc/picolet"), "").expect("written");
        assert!(!flashed.run("take").status.success());
        let error = fs::read_to_string(flashed.boot("picolet-join.error.txt")).expect("told");
        assert!(
            error.contains("first-boot.join: /etc/picolet must be"),
            "{error}"
        );
        assert!(flashed.boot("picolet.yaml").exists() && flashed.boot("picolet-join.txt").exists());
        fs::remove_file(flashed.boot("picolet-join.txt")).expect("removed");
        assert!(!flashed.run("take").status.success());
        let error = fs::read_to_string(flashed.boot("picolet-join.error.txt")).expect("told");
        assert!(
            error.contains("10-first-boot.conf: /etc/picolet must be"),
            "{error}"
        );
    }
}

#[test]
fn a_power_cut_while_it_is_taken_loses_nothing() {
    // PKG-11
    // Programs of the shell itself cannot be replaced in busybox.
    let Some(board) = boards("first-boot-cut")
        .into_iter()
        .find(|b| b.shell[0] == "dash")
    else {
        skipped!("a_power_cut_while_it_is_taken_loses_nothing: no dash");
        return;
    };
    let flashed = Flashed::new(board);
    let doubles = flashed.board.dir.join("doubles");
    let left = flashed.board.dir.join("left");
    // Each of them ends the script and all that it has started, before or after it has done its work, when its turn has come.
    for name in ["cat", "mv", "rm", "sync", "mkdir", "tr"] {
        let real = format!("/bin/{name}");
        let real = if Path::new(&real).exists() {
            real
        } else {
            format!("/usr/bin/{name}")
        };
        let double = format!(
            "#!/bin/sh\nn=$(/bin/cat {left} 2>/dev/null || echo 0)\n[ $n -eq 0 ] || echo $((n - 1)) >{left}\n\
             [ $n -ne 1 ] || kill -9 0\n{real} \"$@\"\ncode=$?\n\
             [ $n -ne 2 ] || {{ echo 0 >{left}; kill -9 0; }}\nexit $code\n",
            left = left.display()
        );
        fs::write(doubles.join(name), double).expect("written");
        fs::set_permissions(doubles.join(name), fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let mut cuts = 0;
    // Bounded: the script calls fewer programs.
    for turn in 1..200 {
        fs::write(flashed.boot("picolet-join.txt"), JOIN_LINE).expect("written");
        fs::write(flashed.boot("picolet.yaml"), "a: b\n").expect("written");
        fs::write(&left, turn.to_string()).expect("written");
        let whole = flashed.starts();
        let rest = fs::read_to_string(&left).expect("a number");
        // Nobody's turn came.
        let is_over = rest.trim().parse::<u32>().is_ok_and(|n| n > 2);
        fs::write(&left, "0").expect("written");
        if !whole {
            cuts += 1;
            assert!(flashed.starts(), "turn {turn}: the next boot");
        }
        let calls = flashed.calls();
        assert!(
            !calls.is_empty() && calls.lines().all(|call| format!("{call}\n") == JOINED),
            "turn {turn}: {calls}"
        );
        assert_eq!(flashed.secrets(), 0, "turn {turn}");
        assert!(
            !flashed.boot("picolet-join.txt").exists() && !flashed.kept().exists(),
            "turn {turn}"
        );
        let drop_in = flashed
            .board
            .path("etc/picolet/config.d/10-first-boot.conf");
        assert_eq!(
            fs::read_to_string(&drop_in).expect("taken"),
            "a: b\n",
            "turn {turn}"
        );
        fs::remove_file(drop_in).expect("removed");
        if is_over {
            break;
        }
    }
    assert!(cuts >= 20, "{cuts} cuts");
}
