//! The machine's disks. No loop device and no mount is needed: `mke2fs -d` fills a file system from a directory.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use super::{machine::Backend, shelf, uml};
use crate::{
    Failure, chaos, image,
    install::{persist, static_busybox},
    process::{find, output, run},
    stage::IMAGE,
};

/// Debian's release.
const SUITE: &str = "bookworm";
/// What a board's installation has, plus what picolet needs. AppArmor brings the profiles that Debian loads at boot.
const PACKAGES: [&str; 10] = [
    "apparmor",
    "busybox-static",
    "containernetworking-plugins",
    "dbus",
    "iproute2",
    "iptables",
    "kmod",
    "runc",
    "systemd-sysv",
    "udev",
];
/// More for a board, whose tarball is checked there.
const BOARD_PACKAGES: [&str; 1] = ["openssl"];
/// More for a machine where agents are killed: a disk is made there, all rules of the packet filter are looked at, and there is
/// a provider.
const CHAOS_PACKAGES: [&str; 3] = ["e2fsprogs", "nftables", "python3-minimal"];
/// The kernel of a machine in qemu.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Size of the root file system; the file has holes.
const ROOT_SIZE: &str = "2G";
/// Size of the disk with what is to be tested.
const PAYLOAD_SIZE: &str = "256M";
/// Where the guest finds that disk.
pub(super) const PAYLOAD: &str = "/payload";
/// What an operator installs for systemd.
pub(super) const UNITS: [&str; 2] = ["picolet.service", "picolet-pods.service"];
/// Guest's name.
pub(super) const HOSTNAME: &str = "board";

/// Starts the checks at the end of every boot and switches the machine off after them.
const UNIT: &str = "[Unit]
Description=Checks of picolet
RequiresMountsFor=/payload
After=multi-user.target
SuccessAction=poweroff
FailureAction=poweroff

[Service]
Type=exec
ExecStart=/payload/xtask vm-guest

[Install]
WantedBy=multi-user.target
";

/// An installed machine that has never been started.
pub(super) struct Base {
    pub(super) backend: Backend,
    root: PathBuf,
    pub(super) kernel: PathBuf,
    /// Only for qemu.
    pub(super) initrd: PathBuf,
    /// Only of a board: a static one for its processor.
    pub(super) busybox: PathBuf,
}

impl Base {
    fn at(dir: &Path, backend: Backend) -> Result<Self, Failure> {
        Ok(Self {
            backend,
            root: dir.join("base.ext4"),
            kernel: match backend {
                Backend::Qemu | Backend::Board(_) => dir.join("vmlinuz"),
                Backend::Uml => uml::kernel().ok_or("User Mode Linux is not installed")?,
            },
            initrd: dir.join("initrd.img"),
            busybox: dir.join("busybox"),
        })
    }
}

/// The base image, made if there is none of its recipe, with a tree below `dir`.
pub(super) fn base(dir: &Path, backend: Backend) -> Result<Base, Failure> {
    let (packages, payload) = match backend {
        Backend::Qemu => (
            [&PACKAGES[..], &CHAOS_PACKAGES, &[KERNEL]].concat(),
            "/dev/vdb",
        ),
        Backend::Uml => ([&PACKAGES[..], &CHAOS_PACKAGES].concat(), "/dev/ubdb"),
        Backend::Board(_) => ([&PACKAGES[..], &BOARD_PACKAGES].concat(), "LABEL=payload"),
    };
    let mut recipe = format!("{SUITE}\n{packages:?}\n{ROOT_SIZE}\n{UNIT}\n{HOSTNAME}\n{payload}\n");
    if backend == Backend::Uml {
        // Its modules are in the image.
        let kernel = uml::kernel().ok_or("User Mode Linux is not installed")?;
        recipe.push_str(&uml::recipe(&kernel)?);
    }
    if let Backend::Board(board) = backend {
        recipe.push_str(&board.recipe()?);
    }
    let kept = shelf::image(&shelf::place(), backend.name(), &recipe, |new| {
        println!("Making the machine's image from Debian packages (once)");
        install(dir, &Base::at(new, backend)?, &packages, payload)
    })?;
    Base::at(&std::path::absolute(kept)?, backend)
}

/// Makes it; `payload` is the disk with what is to be tested.
fn install(dir: &Path, base: &Base, packages: &[&str], payload: &str) -> Result<(), Failure> {
    let backend = base.backend;
    fs::create_dir_all(dir)?;
    let tree = dir.join("tree");
    persist(|| {
        remove(&tree)?;
        debian(&tree, packages, backend)
    })?;

    fs::write(tree.join("etc/hostname"), format!("{HOSTNAME}\n"))?;
    fs::write(
        tree.join("etc/fstab"),
        format!("{payload} {PAYLOAD} ext4 ro 0 0\n"),
    )?;
    fs::create_dir_all(tree.join(PAYLOAD.trim_start_matches('/')))?;
    // Without an identity the first boot would count as an installation and enable whatever there is.
    fs::write(
        tree.join("etc/machine-id"),
        "0123456789abcdef0123456789abcdef\n",
    )?;
    let units = tree.join("etc/systemd/system");
    fs::write(units.join("picolet-vm.service"), UNIT)?;
    fs::create_dir_all(units.join("multi-user.target.wants"))?;
    symlink(
        "../picolet-vm.service",
        units.join("multi-user.target.wants/picolet-vm.service"),
    )?;
    match backend {
        Backend::Qemu => {
            fs::copy(tree.join("vmlinuz"), &base.kernel)?;
            fs::copy(tree.join("initrd.img"), &base.initrd)?;
        }
        Backend::Uml => uml::furnish(&tree)?,
        Backend::Board(board) => board.furnish(&tree, base)?,
    }
    make(&tree, &base.root, ROOT_SIZE, "root")?;
    remove(&tree)
}

/// Installs Debian into `tree`.
fn debian(tree: &Path, packages: &[&str], backend: Backend) -> Result<(), Failure> {
    let mut command = match backend {
        Backend::Board(board) => board.mmdebstrap()?,
        Backend::Qemu | Backend::Uml => Command::new("mmdebstrap"),
    };
    command
        .args(["--quiet", "--mode=root", "--format=directory"])
        .args(["--variant=minbase", "--include", &packages.join(",")])
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        .arg(SUITE)
        .arg(tree);
    // The packages come from where this machine's own come from; without such a file from mmdebstrap's default.
    let sources = sources()?;
    if let Backend::Board(_) = backend {
        // The release alone: its updates for other processors are out of step for hours at times, and then none are taken.
        let texts = sources.iter().map(fs::read_to_string);
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        command.args(texts.iter().find_map(|text| mirror(text)));
    } else {
        command.args(sources);
    }
    run(&mut command)
}

/// Files with apt's sources that offer this release's packages.
fn sources() -> Result<Vec<PathBuf>, Failure> {
    let mut found = vec![PathBuf::from("/etc/apt/sources.list")];
    for entry in fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
    {
        found.push(entry?.path());
    }
    found.retain(|path| {
        path.extension()
            .is_some_and(|end| end == "list" || end == "sources")
            && fs::read_to_string(path).is_ok_and(|text| offers(&text))
    });
    found.sort();
    Ok(found)
}

/// The first address in such a file, as a source of the release.
fn mirror(text: &str) -> Option<String> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let address = lines
        .flat_map(str::split_whitespace)
        .find(|word| word.contains("://"))?;
    Some(format!("deb {address} {SUITE} main"))
}

/// Whether a file in either of apt's formats names the release and the component `main`.
fn offers(text: &str) -> bool {
    let has = |word: &str| {
        text.lines()
            .filter(|line| !line.trim_start().starts_with('#'))
            .any(|line| line.split_whitespace().any(|w| w == word))
    };
    has(SUITE) && has("main")
}

/// The disk with what `fill` puts into its directory.
pub(super) fn payload(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<PathBuf, Failure> {
    let tree = dir.join("payload");
    remove(&tree)?;
    fs::create_dir_all(&tree)?;
    fill(&tree)?;
    let disk = dir.join("payload.ext4");
    make(&tree, &disk, PAYLOAD_SIZE, "payload")?;
    Ok(disk)
}

/// For a virtual machine: the program, its unit, an image and this task.
pub(super) fn fill(tree: &Path, program: &Path) -> Result<(), Failure> {
    for (from, name) in [
        (program, "picolet"),
        // Not by its path: cargo may have put another there meanwhile.
        (Path::new("/proc/self/exe"), "xtask"),
    ] {
        let to = tree.join(name);
        fs::copy(from, &to).map_err(|e| format!("{}: {e}", from.display()))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    for unit in UNITS {
        fs::copy(Path::new("systemd").join(unit), tree.join(unit))?;
    }
    let busybox = static_busybox().ok_or("no static busybox is installed")?;
    image::write(&tree.join("image.tar"), IMAGE, &fs::read(busybox)?)
}

/// The test API server.
pub(super) fn fill_apiserver(tree: &Path, apiserver: &Path) -> Result<(), Failure> {
    fs::copy(apiserver, tree.join(chaos::APISERVER))
        .map_err(|e| format!("{}: {e}", apiserver.display()))?;
    Ok(())
}

/// What [`chaos`] needs there beside that.
pub(super) fn fill_chaos(tree: &Path, program: &Path) -> Result<(), Failure> {
    fs::copy(program, tree.join(chaos::PROGRAM))
        .map_err(|e| format!("{}: {e}", program.display()))?;
    run(Command::new("cp")
        .args(["--archive", chaos::SOURCES])
        .arg(tree))
}

/// A root disk that may be written, for one run.
pub(super) fn copy(base: &Base, to: &Path) -> Result<(), Failure> {
    run(Command::new("cp")
        .args(["--sparse=always", "--reflink=auto"])
        .arg(&base.root)
        .arg(to))
}

fn make(tree: &Path, disk: &Path, size: &str, label: &str) -> Result<(), Failure> {
    match fs::remove_file(disk) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    output(
        Command::new(find("mke2fs").ok_or("mke2fs is not installed")?)
            .args(["-q", "-t", "ext4", "-L", label, "-d"])
            .args([tree, disk])
            .arg(size),
    )?;
    Ok(())
}

pub(super) fn remove(tree: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(tree) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", tree.display()).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debians_own_sources() {
        for (name, text, wanted) in [
            (
                "one line",
                "deb [arch=amd64] http://m/debian bookworm main\n",
                true,
            ),
            (
                "deb822",
                "Types: deb\nSuites: bookworm bookworm-updates\nComponents: main\n",
                true,
            ),
            (
                "another release",
                "deb http://m/debian trixie main\n",
                false,
            ),
            (
                "another vendor",
                "deb http://m/apt sdk-bookworm main\n",
                false,
            ),
            (
                "a vendor's component",
                "deb http://m/linux bookworm stable\n",
                false,
            ),
            (
                "commented out",
                "# deb http://m/debian bookworm main\n",
                false,
            ),
        ] {
            assert_eq!(offers(text), wanted, "{name}");
        }
    }

    #[test]
    fn addresses() {
        let wanted = Some("deb http://m/debian bookworm main".to_owned());
        for text in [
            "# http://other\ndeb [arch=amd64] http://m/debian bookworm main\n",
            "Types: deb\nURIs: http://m/debian http://other\nSuites: bookworm\n",
        ] {
            assert_eq!(mirror(text), wanted, "{text}");
        }
        assert_eq!(mirror("Types: deb\n"), None);
    }
}
