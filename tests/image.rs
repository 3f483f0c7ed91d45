//! Real archives: made by skopeo and umoci, imported, mounted with overlayfs, compared with what umoci unpacks.
//!
//! Needs root, umoci and skopeo; says aloud what is missing and skips.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use picolet::error::error_chain;
use picolet::image::{ImageRecord, ImageStore, ImportOptions};
use picolet::sys::xattr;

/// Whether the tests can run; says what is missing.
fn able() -> bool {
    let mut missing = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        missing.push("root");
    }
    for tool in ["umoci", "skopeo"] {
        if Command::new(tool).arg("--version").output().is_err() {
            missing.push(tool);
        }
    }
    if !missing.is_empty() {
        skipped!("images of other tools: {} missing", missing.join(", "));
    }
    missing.is_empty()
}

fn run(dir: &Path, command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .current_dir(dir)
        .output()
        .unwrap_or_else(|e| panic!("{command}: {e}"));
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

struct Scratch {
    path: PathBuf,
    mounts: Vec<PathBuf>,
}

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = std::env::temp_dir().join(format!(
            "picolet-test-image-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir_all(&path).expect("scratch");
        Self {
            path,
            mounts: Vec::new(),
        }
    }

    fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Mounts an image as a container gets it: layers below, an empty upper directory.
    fn mount(&mut self, store: &ImageStore, image: &ImageRecord) -> PathBuf {
        let at = self.join(&format!("merged{}", self.mounts.len()));
        let [upper, work] = ["upper", "work"].map(|n| at.with_extension(n));
        for dir in [&at, &upper, &work] {
            fs::create_dir(dir).expect("scratch");
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("scratch");
        }
        let dirs = store.layer_dirs(&image.id).expect("layers");
        let dirs: Vec<String> = dirs.iter().map(|d| d.display().to_string()).collect();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            dirs.join(":"),
            upper.display(),
            work.display()
        );
        mount(
            Some("overlay"),
            &at,
            Some("overlay"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .expect("overlay mount");
        self.mounts.push(at.clone());
        at
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for mount in &self.mounts {
            let _ = umount2(mount, MntFlags::MNT_DETACH);
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn import(store: &ImageStore, archive: &Path, names: &[&str]) -> Vec<std::sync::Arc<ImageRecord>> {
    let options = ImportOptions {
        names: names.iter().map(|&n| n.to_owned()).collect(),
        pinned: false,
    };
    store
        .import_archive(archive, &options, &mut |_| ControlFlow::Continue(()))
        .unwrap_or_else(|e| panic!("{}: {}", archive.display(), error_chain(&e)))
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let file = File::open(path).expect("file");
    let name = CString::new(name).expect("name");
    xattr::set_attribute(file.as_fd(), &name, value).expect("xattr");
}

/// Capability set of `ping`, with a newline byte in it on purpose: PAX records are not lines.
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0x0a, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Makes an image of three layers with everything that a file system has, by umoci.
fn make_layout(scratch: &Path) {
    run(scratch, "umoci init --layout layout");
    run(scratch, "umoci new --image layout:app");
    run(scratch, "umoci unpack --image layout:app bundle");
    let root = scratch.join("bundle/rootfs");
    let write = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("parent")).expect("layer");
        fs::write(path, text).expect("layer");
    };
    // Layer 1.
    write("bin/su", "su");
    fs::set_permissions(root.join("bin/su"), fs::Permissions::from_mode(0o4755)).expect("mode");
    write("bin/ping", "ping");
    set_xattr(&root.join("bin/ping"), "security.capability", &CAPABILITY);
    write("etc/passwd", "root:x:0:0:root:/:/bin/sh\n");
    write("etc/old", "goes away in layer 2");
    write("etc/changed", "1");
    write("var/cache/a/b/c", "whole directory goes");
    write("opt/replaced/by/other", "1");
    write("home/user/file", "mine");
    chown(root.join("home/user/file"), Some(1000), Some(100)).expect("owner");
    chown(root.join("home/user"), Some(4_000_000_000), Some(100)).expect("owner");
    fs::create_dir(root.join("tmp")).expect("layer");
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).expect("mode");
    fs::hard_link(root.join("bin/su"), root.join("bin/su2")).expect("link");
    symlink("/bin/su", root.join("sulink")).expect("link");
    symlink("../../../../outside", root.join("etc/up")).expect("link");
    let mode = Mode::from_bits_truncate(0o640);
    mknod(&root.join("null"), SFlag::S_IFCHR, mode, makedev(1, 3)).expect("device");
    mknod(
        &root.join("disk"),
        SFlag::S_IFBLK,
        mode,
        makedev(259, 70_000),
    )
    .expect("device");
    mknod(&root.join("fifo"), SFlag::S_IFIFO, mode, 0).expect("fifo");
    write(&format!("{}end", "long-directory-name/".repeat(12)), "deep");
    run(
        scratch,
        "umoci repack --refresh-bundle --image layout:app bundle",
    );
    // Layer 2: removals, replacements, a changed mode.
    fs::remove_file(root.join("etc/old")).expect("layer");
    fs::write(root.join("etc/changed"), "22").expect("layer");
    fs::remove_dir_all(root.join("var/cache")).expect("layer");
    fs::remove_dir_all(root.join("opt/replaced")).expect("layer");
    write("opt/replaced", "a file now");
    fs::remove_file(root.join("sulink")).expect("layer");
    write("sulink/dir/file", "a directory now");
    fs::set_permissions(root.join("etc"), fs::Permissions::from_mode(0o750)).expect("mode");
    run(
        scratch,
        "umoci repack --refresh-bundle --image layout:app bundle",
    );
    // Layer 3: what was removed comes back, different.
    write("var/cache/new", "back");
    write("etc/old", "back");
    run(
        scratch,
        "umoci repack --refresh-bundle --image layout:app bundle",
    );
    run(
        scratch,
        "umoci config --image layout:app --config.entrypoint /bin/su --config.cmd -c \
         --config.env A=b --config.user 1000:100 --config.workingdir /home",
    );
    run(scratch, "umoci unpack --image layout:app reference");
}

/// One line for everything about each entry: what differs is readable.
fn describe(root: &Path) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    let mut inodes: BTreeMap<u64, String> = BTreeMap::new();
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("directory") {
            let path = entry.expect("entry").path();
            let name = path
                .strip_prefix(root)
                .expect("below")
                .display()
                .to_string();
            let stat = fs::symlink_metadata(&path).expect("stat");
            let kind = stat.file_type();
            let mut text = format!(
                "{:o} {}:{} t{}",
                stat.mode(),
                stat.uid(),
                stat.gid(),
                stat.mtime()
            );
            if kind.is_dir() {
                todo.push(path.clone());
            } else if kind.is_file() {
                let data = fs::read(&path).expect("file");
                let digest = picolet::image::Digest::compute(&data);
                text.push_str(&format!(" {} {digest} n{}", stat.size(), stat.nlink()));
                inodes
                    .entry(stat.ino())
                    .and_modify(|first| *first = first.clone().min(name.clone()))
                    .or_insert_with(|| name.clone());
            } else if kind.is_symlink() {
                text.push_str(&format!(
                    " -> {}",
                    fs::read_link(&path).expect("link").display()
                ));
            } else if kind.is_char_device() || kind.is_block_device() {
                text.push_str(&format!(" dev {:x}", stat.rdev()));
            }
            if kind.is_dir() || kind.is_file() {
                let file = File::open(&path).expect("open");
                let names = xattr::list_attribute_names(file.as_fd()).expect("xattrs");
                for name in names.split(|&b| b == 0).filter(|n| !n.is_empty()) {
                    let name = CString::new(name).expect("name");
                    // What overlayfs and umoci keep for themselves.
                    let skip = [&b"trusted.overlay."[..], b"user.rootlesscontainers"];
                    if !skip.iter().any(|s| name.to_bytes().starts_with(s)) {
                        let value = xattr::read_attribute(file.as_fd(), &name).expect("xattr");
                        text.push_str(&format!(" {name:?}={value:?}"));
                    }
                }
            }
            out.insert(name, text);
        }
    }
    out
}

#[track_caller]
fn assert_same_tree(name: &str, found: &Path, want: &Path) {
    let (found, want) = (describe(found), describe(want));
    assert!(want.len() > 20, "the reference is there");
    let names: BTreeSet<&String> = found.keys().chain(want.keys()).collect();
    let differ: Vec<String> = names
        .into_iter()
        .filter(|n| found.get(*n) != want.get(*n))
        .map(|n| {
            format!(
                "{n}:\n  found {:?}\n  want  {:?}",
                found.get(n),
                want.get(n)
            )
        })
        .collect();
    assert!(differ.is_empty(), "{name}:\n{}", differ.join("\n"));
}

#[test]
fn archives_of_other_tools_unpack_to_the_same_tree() {
    if !able() {
        return;
    }
    let mut scratch = Scratch::new();
    let base = scratch.path.clone();
    make_layout(&base);
    for (copy, compress) in [
        ("docker-archive:docker.tar:quay.io/test/app:1", ""),
        ("oci-archive:oci.tar:quay.io/test/app:1", ""),
        (
            "oci-archive:zstd.tar:quay.io/test/app:1",
            "--dest-compress-format zstd",
        ),
        ("oci:dir:quay.io/test/app:1", ""),
    ] {
        let command = format!("skopeo --insecure-policy copy {compress} oci:layout:app {copy}");
        run(&base, &command);
    }
    for (tool, from, to) in [
        ("gzip -kf", "docker.tar", "docker.tar.gz"),
        ("zstd -qkf", "oci.tar", "oci.tar.zst"),
    ] {
        match Command::new(tool.split(' ').next().unwrap_or(tool))
            .arg("--version")
            .output()
        {
            Ok(_) => {
                run(&base, &format!("{tool} {from}"));
                assert!(base.join(to).exists());
            }
            Err(_) => skipped!("{to}: {tool} missing"),
        }
    }
    for archive in [
        "docker.tar",
        "oci.tar",
        "zstd.tar",
        "dir",
        "docker.tar.gz",
        "oci.tar.zst",
    ] {
        let path = base.join(archive);
        if !path.exists() {
            continue;
        }
        let store = ImageStore::open(&base.join(format!("store-{archive}"))).expect("store");
        let images = import(&store, &path, &[]);
        assert_eq!(images[0].names, ["quay.io/test/app:1"], "{archive}");
        let config = &images[0].config.config;
        assert_eq!(config.user, "1000:100", "{archive}");
        assert_eq!(config.working_dir, "/home", "{archive}");
        assert!(config.env.contains(&"A=b".to_owned()), "{archive}");
        assert!(images[0].layers.len() >= 3, "{archive}");
        let merged = scratch.mount(&store, &images[0]);
        assert_same_tree(archive, &merged, &base.join("reference/rootfs"));
    }
    // umoci's own layout has a bare tag only.
    let store = ImageStore::open(&base.join("store-named")).expect("store");
    let images = import(&store, &base.join("layout"), &["app"]);
    assert_eq!(images[0].names, ["docker.io/library/app:latest"]);
}

/// Derived layers as they come from tools that archive what they changed without a look at the base image.
#[test]
fn layers_through_links_and_hard_links_of_lower_layers() {
    if !able() {
        return;
    }
    let mut scratch = Scratch::new();
    let base = scratch.path.clone();
    let script = r#"
        set -e
        mkdir -p base/usr/lib/x86 base/usr/bin base/var/old base/run
        chmod 711 base/usr/lib; chmod 1777 base/run
        ln -s usr/lib base/lib; ln -s usr/bin base/bin; ln -s /run base/var/run; ln -s lib base/lib64
        for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $n > base/usr/lib/f$n; done
        echo tool > base/usr/bin/tool; chmod 4755 base/usr/bin/tool; echo old > base/var/old/x
        tar -C base -cf base.tar .
        # Files below a directory that is a link in the base, without the directory itself.
        mkdir -p one/lib/x86 one/var/run one/bin
        echo new > one/lib/new; echo more > one/lib/x86/more; echo pid > one/var/run/pid; echo b > one/bin/b
        : > one/lib/.wh.f3
        tar -C one --no-recursion -cf one.tar lib/new lib/x86/more var/run/pid bin/b lib/.wh.f3
        # Hard links to files of lower layers, also through links.
        mkdir -p two/usr/bin two/usr/lib two/lib two/lib64/x86
        echo tool > two/usr/bin/tool; ln two/usr/bin/tool two/usr/bin/alias
        echo 2 > two/usr/lib/f2; ln two/usr/lib/f2 two/lib/f2link; echo deep > two/lib64/x86/deep
        tar -C two --no-recursion -cf two.tar usr/bin/tool usr/bin/alias usr/lib/f2 lib/f2link lib64/x86/deep
        tar --delete -f two.tar usr/bin/tool usr/lib/f2
    "#;
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(&base)
        .output()
        .expect("sh");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    run(&base, "umoci init --layout layout");
    run(&base, "umoci new --image layout:app");
    for layer in ["base", "one", "two"] {
        run(
            &base,
            &format!("umoci raw add-layer --image layout:app {layer}.tar"),
        );
    }
    // umoci applies them one after the other, as other runtimes do.
    run(&base, "umoci unpack --image layout:app reference");
    run(
        &base,
        "skopeo --insecure-policy copy oci:layout:app docker-archive:docker.tar:quay.io/test/app:1",
    );
    for archive in ["layout", "docker.tar"] {
        let store = ImageStore::open(&base.join(format!("store-{archive}"))).expect("store");
        let images = import(&store, &base.join(archive), &["quay.io/test/app:1"]);
        let merged = scratch.mount(&store, &images[0]);
        assert_same_tree(archive, &merged, &base.join("reference/rootfs"));
        let same = |a: &str, b: &str| {
            let inode = |name: &str| fs::metadata(merged.join(name)).expect("file").ino();
            assert_eq!(inode(a), inode(b), "{a} {b}");
        };
        same("usr/bin/alias", "bin/tool");
        same("usr/lib/f2link", "lib/f2");
        assert!(
            fs::symlink_metadata(merged.join("lib"))
                .expect("lib")
                .is_symlink()
        );
        assert_eq!(
            fs::read_to_string(merged.join("usr/lib/x86/deep")).expect("file"),
            "deep\n"
        );
        // Nothing is kept that the image does not need.
        drop(store);
        let store = ImageStore::open(&base.join(format!("store-{archive}"))).expect("store");
        assert_eq!(
            fs::read_dir(store.layers_root()).expect("layers").count(),
            4
        );
    }
}

#[test]
fn an_image_of_127_layers_mounts_by_short_names() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let base = scratch.path.clone();
    run(&base, "umoci init --layout layout");
    run(&base, "umoci new --image layout:many");
    for n in 0..127 {
        fs::write(base.join("file"), format!("{n}")).expect("scratch");
        run(
            &base,
            &format!("umoci insert --image layout:many file /f{n}"),
        );
    }
    let store = ImageStore::open(&base.join("store")).expect("store");
    let images = import(&store, &base.join("layout"), &["many"]);
    let names = store.layer_names(&images[0].id).expect("names");
    assert_eq!(names.len(), 127);
    let options = format!("lowerdir={}", names.join(":"));
    assert!(
        options.len() < 4000,
        "{} bytes leave no room",
        options.len()
    );
    // Relative names: in a process of its own, for the working directory belongs to all threads.
    let at = base.join("merged");
    fs::create_dir(&at).expect("scratch");
    let status = Command::new("mount")
        .args(["-i", "-t", "overlay", "overlay", "-o", &options])
        .arg(&at)
        .current_dir(store.layers_root())
        .status()
        .expect("mount");
    assert!(status.success());
    let mut scratch = scratch;
    scratch.mounts.push(at.clone());
    for n in [0, 63, 126] {
        let text = fs::read_to_string(at.join(format!("f{n}"))).expect("file");
        assert_eq!(text, n.to_string());
    }
}

#[test]
fn sparse_files_of_gnu_tar_keep_their_content() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let base = scratch.path.clone();
    fs::create_dir(base.join("files")).expect("scratch");
    // More extents than fit into one header.
    let file = File::create(base.join("files/sparse")).expect("scratch");
    file.set_len(20 << 20).expect("scratch");
    for n in 0..60_u64 {
        use std::os::unix::fs::FileExt;
        file.write_at(format!("piece {n}").as_bytes(), n * 300_000)
            .expect("scratch");
    }
    drop(file);
    for (name, format) in [
        ("gnu", "--format=gnu"),
        ("0.0", "--format=posix --sparse-version=0.0"),
        ("0.1", "--format=posix --sparse-version=0.1"),
        ("1.0", "--format=posix --sparse-version=1.0"),
    ] {
        let layer = base.join("layer.tar");
        run(
            &base,
            &format!("tar --sparse {format} -C files -cf layer.tar sparse"),
        );
        let mut data = Vec::new();
        File::open(&layer)
            .and_then(|mut f| f.read_to_end(&mut data))
            .expect("layer");
        assert!(data.len() < 2 << 20, "{name}: the holes are left out");
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let diff_id = picolet::image::Digest::compute(&data);
        let config = format!(
            r#"{{"architecture":"{arch}","os":"linux","rootfs":{{"type":"layers","diff_ids":["{diff_id}"]}}}}"#
        );
        fs::write(base.join("config.json"), config).expect("scratch");
        fs::write(
            base.join("manifest.json"),
            r#"[{"Config":"config.json","RepoTags":["a:1"],"Layers":["layer.tar"]}]"#,
        )
        .expect("scratch");
        run(
            &base,
            "tar -cf image.tar layer.tar config.json manifest.json",
        );
        let store = ImageStore::open(&base.join(format!("store-{name}"))).expect("store");
        let image = import(&store, &base.join("image.tar"), &[]).remove(0);
        let dirs = store.layer_dirs(&image.id).expect("layers");
        let unpacked = dirs[0].join("sparse");
        assert!(
            fs::read(&unpacked).expect("file")
                == fs::read(base.join("files/sparse")).expect("file"),
            "{name}"
        );
        let stat = fs::metadata(&unpacked).expect("stat");
        assert!(stat.blocks() * 512 < 4 << 20, "{name}: the holes are holes");
    }
}

/// Peak of the process's own memory so far, KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    let field = line.and_then(|l| l.split_whitespace().nth(1));
    field.and_then(|f| f.parse().ok()).expect("VmHWM")
}

/// Run alone: `cargo test --release --test image -- --ignored --nocapture`.
#[test]
#[ignore = "measures, and wants the machine for itself"]
fn memory_does_not_grow_with_the_archive() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let base = scratch.path.clone();
    // 100 MiB in 3200 files that compress about as programs do: random bytes and runs.
    let mut random = File::open("/dev/urandom").expect("random");
    for n in 0..3200 {
        let dir = base.join(format!("files/usr/lib/{}", n % 64));
        fs::create_dir_all(&dir).expect("scratch");
        let mut data = vec![0; 32 * 1024];
        random
            .read_exact(&mut data[..12 * 1024])
            .expect("random bytes");
        fs::write(dir.join(format!("file{n}")), data).expect("scratch");
    }
    run(&base, "tar -C files -cf big.tar usr");
    run(&base, "umoci init --layout layout");
    run(&base, "umoci new --image layout:big");
    run(&base, "umoci raw add-layer --image layout:big big.tar");
    run(
        &base,
        "skopeo --insecure-policy copy oci:layout:big docker-archive:docker.tar:big:1",
    );
    run(
        &base,
        "skopeo --insecure-policy copy --dest-compress-format zstd oci:layout:big oci-archive:zstd.tar:big:1",
    );
    run(&base, "gzip -k1 docker.tar");
    for (what, archive) in [
        ("docker-archive, plain layer", "docker.tar"),
        ("OCI layout, gzip layer", "layout"),
        ("OCI archive, zstd layer", "zstd.tar"),
        ("docker-archive, gzip around it", "docker.tar.gz"),
    ] {
        let store = ImageStore::open(&base.join(format!("store-{archive}"))).expect("store");
        let (start, before) = (picolet::sys::clock::mono_now(), peak_kib());
        let image = import(&store, &base.join(archive), &["big"]).remove(0);
        let took = picolet::sys::clock::mono_now().since_ms(start);
        println!(
            "{what}: {} MiB in {took} ms, peak {before} -> {} KiB",
            image.size_bytes >> 20,
            peak_kib()
        );
        assert!(peak_kib() < 24 * 1024, "{what}");
    }
}
