//! Boards: machines of other processors, which qemu emulates as a whole. What is on them is what is given away: programs
//! built for the board, packed as a release, and Debian's kernel and packages.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    disk,
    machine::{Plan, console},
};
use crate::{
    Failure, dist, image,
    install::static_busybox,
    process::{find, output, run},
    release,
    stage::IMAGE,
};

/// A kind of board.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Emulated {
    /// As `cross/NAME.conf` is called.
    pub(super) name: &'static str,
    /// The kind whose program it must refuse.
    other: &'static str,
    /// Debian's name of its processor, and the package that leads to its kernel.
    debian: &'static str,
    kernel: &'static str,
    /// Go's name.
    go: &'static str,
    /// qemu's name, and words that say which processor. Emulated pointer authentication would take four times as long.
    qemu: &'static str,
    processor: &'static str,
}

/// All of them.
pub(super) const EMULATED: [Emulated; 2] = [
    Emulated {
        name: "aarch64",
        other: "armv7",
        debian: "arm64",
        kernel: "linux-image-arm64",
        go: "arm64",
        qemu: "aarch64",
        processor: "max,pauth=off,sve=off,lpa2=off",
    },
    Emulated {
        name: "armv7",
        other: "aarch64",
        debian: "armhf",
        kernel: "linux-image-armmp",
        go: "arm",
        qemu: "arm",
        processor: "cortex-a15",
    },
];

/// Builds a program that is no picolet.
fn double(board: &dist::Board, mode: usize, to: &Path) -> Result<(), Failure> {
    run(Command::new(dist::c_compiler(board)?)
        .args(["-Os", "-static", "-no-pie"])
        .args([
            format!("-Wl,-z,max-page-size={}", board.page),
            format!("-DMODE={mode}"),
        ])
        .arg("-o")
        .args([to, Path::new("tests/host/double.c")]))
}

/// What its kernel needs to see its disk; the rest is loaded from there.
const MODULES: [&str; 3] = ["virtio_mmio", "virtio_blk", "ext4"];
/// Gives the programs of the processor a start, unpacks the kernel, is the first process.
const FOREIGN: &str = "cross/foreign.sh";
const UNPACK: &str = "cross/kernel.sh";
const INIT: &str = include_str!("../../../cross/init.sh");
/// The name of the cable, and of the port for verdicts.
pub(super) const CABLE: &str = "cable";
pub(super) const PORT: &str = "verdict";
/// A network whose servers are qemu's own; it leads nowhere else. Waiting for it at boot is Debian's default.
const NETWORK: &str = "[Match]\nDriver=virtio_net\n[Network]\nDHCP=ipv4\n";
const NETWORK_UNITS: [(&str, &str); 2] = [
    ("multi-user.target.wants", "systemd-networkd.service"),
    (
        "network-online.target.wants",
        "systemd-networkd-wait-online.service",
    ),
];
/// The name of an image for other machines.
pub(super) const FOREIGN_IMAGE: &str = "localhost/picolet/foreign:demo";
/// Where the guest finds the programs that are no picolet: one ends at once, one hangs, one is not healthy.
pub(super) const DOUBLES: [&str; 3] = ["double-0", "double-1", "double-2"];
/// And another picolet that is well.
pub(super) const NEXT: &str = "next";

impl Emulated {
    /// What installs its system, up to the words that are for every machine.
    pub(super) fn mmdebstrap(&self) -> Result<Command, Failure> {
        let hook = std::env::current_dir()?.join(UNPACK);
        let mut command = Command::new("sh");
        command
            .args([FOREIGN, self.qemu, "mmdebstrap"])
            .arg(format!("--architectures={}", self.debian))
            .arg(format!(
                "--customize-hook=sh {} \"$1\" {}",
                hook.display(),
                self.kernel
            ));
        Ok(command)
    }

    /// Tells one image from another.
    pub(super) fn recipe(&self) -> Result<String, Failure> {
        let scripts = [FOREIGN, UNPACK].map(fs::read_to_string);
        let [foreign, unpack] = scripts;
        Ok(format!(
            "{self:?}{MODULES:?}{INIT}{NETWORK}{NETWORK_UNITS:?}{}{}",
            foreign?, unpack?
        ))
    }

    /// Takes kernel, initramfs and busybox out of an installed system, and gives that its network.
    pub(super) fn furnish(&self, tree: &Path, base: &disk::Base) -> Result<(), Failure> {
        let modules = tree.join("lib/modules");
        let entry = fs::read_dir(&modules)?.next().ok_or("no modules")??;
        let version = entry.file_name().to_string_lossy().into_owned();
        run(
            Command::new(find("depmod").ok_or("depmod is not installed")?)
                .arg("-b")
                .arg(tree)
                .arg(&version),
        )?;
        fs::copy(
            tree.join("boot").join(format!("vmlinuz-{version}")),
            &base.kernel,
        )?;
        fs::copy(tree.join("bin/busybox"), &base.busybox)?;
        let units = tree.join("etc/systemd");
        fs::create_dir_all(units.join("network"))?;
        fs::write(units.join("network/cable.network"), NETWORK)?;
        for (target, unit) in NETWORK_UNITS {
            let wants = units.join("system").join(target);
            fs::create_dir_all(&wants)?;
            let unit_file = Path::new("/lib/systemd/system").join(unit);
            std::os::unix::fs::symlink(unit_file, wants.join(unit))?;
        }
        initramfs(tree, &version, base)
    }

    /// Files of the disk with what is to be tested. Where only the first boots are wanted, the other board's tarball has a
    /// small program of that board: it is to be refused.
    pub(super) fn payload(
        &self,
        tree: &Path,
        base: &disk::Base,
        first: bool,
    ) -> Result<(), Failure> {
        println!("Building the programs");
        let names = [self.name, self.other];
        let boards = dist::boards(&names)?;
        let program = dist::program(&boards[0], dist::Edition::Full);
        let other = if first {
            dist::run(&[names[0].to_owned()])?;
            let small = tree.with_extension("other");
            double(&boards[1], 0, &small)?;
            small
        } else {
            dist::run(&names.map(str::to_owned))?;
            dist::program(&boards[1], dist::Edition::Full)
        };
        let programs: Vec<_> = [program.clone(), other].into_iter().zip(boards).collect();
        release::pack_signed(tree, &programs)?;
        let own_board = &programs[0].1;
        let next = tree.join(NEXT);
        fs::copy(program, &next)?;
        File::options()
            .append(true)
            .open(next)?
            .write_all(b"another one")?;
        for (mode, name) in DOUBLES.iter().enumerate() {
            double(own_board, mode, &tree.join(name))?;
        }
        let own = fs::read(&base.busybox)?;
        image::write_for(self.go, &tree.join("image.tar"), IMAGE, &own)?;
        let busybox = static_busybox().ok_or("no static busybox is installed")?;
        let foreign = tree.join("foreign.tar");
        image::write(&foreign, FOREIGN_IMAGE, &fs::read(busybox)?)?;
        fs::copy(dist::guest(own_board)?, tree.join("xtask"))?;
        Ok(())
    }

    /// qemu's words for it.
    pub(super) fn command(&self, plan: &Plan<'_>) -> Result<Command, Failure> {
        let program = format!("qemu-system-{}", self.qemu);
        let mut command =
            Command::new(find(&program).ok_or_else(|| format!("{program} is not installed"))?);
        command
            .args(["-machine", "virt", "-accel", "tcg,thread=multi"])
            .args(["-cpu", self.processor, "-S"])
            .arg("-append")
            .arg(format!(
                "console=ttyAMA0 panic=-1 {} {}",
                super::machine::WORDS,
                plan.boot.words()
            ))
            .args(["-device", "virtio-rng-device"])
            .args(["-device", "virtio-serial-device"])
            // Not stdio: at the end of its input that counts as closed, and what the guest writes is lost.
            .args(["-chardev", "file,id=verdict,path=/dev/stdout"])
            .arg("-device")
            .arg(format!("virtserialport,chardev=verdict,name={PORT}"))
            .args(["-netdev", "user,id=net,restrict=on"])
            .arg("-device")
            .arg(format!("virtio-net-device,netdev=net,id={CABLE}"))
            .arg("-monitor")
            .arg(format!(
                "unix:{},server=on,wait=off",
                monitor(plan.dir).display()
            ))
            .arg("-serial")
            .arg(format!("file:{}", console(plan.dir, plan.boot).display()));
        for (id, file, more) in [
            ("root", plan.root, "cache=unsafe"),
            ("payload", plan.payload, "readonly=on"),
        ] {
            command
                .arg("-drive")
                .arg(format!(
                    "if=none,id={id},format=raw,file={},{more}",
                    file.display()
                ))
                .args(["-device", &format!("virtio-blk-device,drive={id}")]);
        }
        Ok(command)
    }
}

/// Where qemu takes commands.
pub(super) fn monitor(dir: &Path) -> PathBuf {
    dir.join("monitor")
}

/// Modules in their order, busybox to load them, and the script that does.
fn initramfs(tree: &Path, version: &str, base: &disk::Base) -> Result<(), Failure> {
    let modprobe = find("modprobe").ok_or("modprobe is not installed")?;
    let dir = base.initrd.with_extension("tree");
    disk::remove(&dir)?;
    for name in ["bin", "dev", "modules", "proc", "root", "sys"] {
        fs::create_dir_all(dir.join(name))?;
    }
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        let said = output(
            Command::new(&modprobe)
                .args(["--show-depends", "-S", version, "-d"])
                .arg(std::path::absolute(tree)?)
                .arg(module),
        )?;
        for path in said
            .lines()
            .filter_map(|line| line.strip_prefix("insmod "))
            .map(|path| Path::new(path.trim()))
        {
            let name = path.file_name().unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            if !order.contains(&name) {
                fs::copy(path, dir.join("modules").join(&name))?;
                order.push(name);
            }
        }
    }
    fs::write(dir.join("modules/order"), order.join("\n") + "\n")?;
    fs::copy(&base.busybox, dir.join("bin/busybox"))?;
    fs::write(dir.join("init"), INIT)?;
    run(Command::new("chmod")
        .arg("755")
        .args([dir.join("init"), dir.join("bin/busybox")]))?;
    run(Command::new("sh")
        .args(["-c", "cd \"$1\" && find . | \"$2\" cpio -o -H newc >\"$3\""])
        .arg("initramfs")
        .arg(&dir)
        .arg(static_busybox().ok_or("no static busybox is installed")?)
        .arg(std::path::absolute(&base.initrd)?))?;
    disk::remove(&dir)
}
