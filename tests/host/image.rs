//! An image without any other program: a docker archive of one layer, which holds busybox under all its names.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// Statically linked, or it would not run alone in an image.
pub(crate) const BUSYBOX: &str = "/bin/busybox";

/// Writes an archive of the image `reference` at `path`; `config` is merged over the image's configuration. Hidden first,
/// then renamed, so that a watched directory never shows half of it.
pub(crate) fn write(path: &Path, reference: &str, config: &serde_json::Value) {
    let layer = layer();
    let mut settings = json!({ "Env": ["PATH=/bin", "FROM_IMAGE=yes"], "Cmd": ["sh"] });
    for (key, value) in config.as_object().expect("an object") {
        settings[key] = value.clone();
    }
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": settings,
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))] },
    })
    .to_string();
    let config_name = format!("{}.json", hex(config.as_bytes()));
    let manifest = json!([
        { "Config": config_name, "RepoTags": [reference], "Layers": ["layer.tar"] }
    ])
    .to_string();
    let name = path.file_name().expect("a file").to_string_lossy();
    let hidden = path.with_file_name(format!(".{name}.new"));
    let mut archive = Builder::new(File::create(&hidden).expect("archive"));
    add(&mut archive, &config_name, 0o644, config.as_bytes());
    add(&mut archive, "layer.tar", 0o644, &layer);
    add(&mut archive, "manifest.json", 0o644, manifest.as_bytes());
    archive.into_inner().expect("archive");
    fs::rename(hidden, path).expect("archive");
}

/// What it has: a tar.
pub(crate) fn layer() -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (dir, mode) in [
        ("bin/", 0o755),
        ("etc/", 0o755),
        ("proc/", 0o555),
        ("sys/", 0o555),
        ("dev/", 0o755),
        ("tmp/", 0o1777),
    ] {
        let mut header = header(EntryType::Directory, mode, 0);
        tar.append_data(&mut header, dir, std::io::empty())
            .expect("layer");
    }
    let busybox = fs::read(BUSYBOX).expect("busybox");
    add(&mut tar, "bin/busybox", 0o755, &busybox);
    let list = Command::new(BUSYBOX)
        .arg("--list")
        .output()
        .expect("busybox");
    for applet in String::from_utf8_lossy(&list.stdout).lines() {
        if applet != "busybox" {
            let mut header = header(EntryType::Symlink, 0o777, 0);
            tar.append_link(&mut header, format!("bin/{applet}"), "busybox")
                .expect("layer");
        }
    }
    let passwd = "root:x:0:0:root:/:/bin/sh\nweb:x:33:34::/:/bin/sh\n";
    add(&mut tar, "etc/passwd", 0o644, passwd.as_bytes());
    add(&mut tar, "etc/group", 0o644, b"root:x:0:\nextra:x:55:web\n");
    tar.into_inner().expect("layer")
}

fn add<W: std::io::Write>(tar: &mut Builder<W>, name: &str, mode: u32, data: &[u8]) {
    let mut header = header(EntryType::Regular, mode, data.len() as u64);
    tar.append_data(&mut header, name, data).expect("archive");
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_767_225_600);
    header
}

/// Digest of `data`.
pub(crate) fn hex(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Go's name for this machine.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
