//! Makes an image without any other program: a docker archive with one layer, which holds busybox.

use std::{fmt::Write as _, fs::File, path::Path};

use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::Failure;

/// Names under which the image has busybox.
const APPLETS: [&str; 20] = [
    "cat", "cp", "date", "echo", "env", "false", "grep", "httpd", "id", "kill", "ls", "mkdir",
    "ps", "sh", "sleep", "stat", "test", "touch", "true", "wget",
];

/// Writes the archive at `path`: hidden first, then renamed, so that a watched directory never shows half of it.
pub(crate) fn write(path: &Path, reference: &str, busybox: &[u8]) -> Result<(), Failure> {
    write_for(architecture(), path, reference, busybox)
}

/// [`write()`] for machines of that architecture, by its name in Go.
pub(crate) fn write_for(
    architecture: &str,
    path: &Path,
    reference: &str,
    busybox: &[u8],
) -> Result<(), Failure> {
    let layer = layer(busybox)?;
    let config = serde_json::to_vec(&json!({
        "architecture": architecture,
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "config": { "Env": ["PATH=/bin"], "Cmd": ["sh"], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))] },
        "history": [{ "created": "2026-01-01T00:00:00Z", "created_by": "cargo xtask" }],
    }))?;
    let config_name = format!("{}.json", hex(&config));
    let layer_name = format!("{}/layer.tar", hex(&layer));
    let manifest = serde_json::to_vec(&json!([
        { "Config": config_name, "RepoTags": [reference], "Layers": [layer_name] }
    ]))?;

    let name = path
        .file_name()
        .ok_or("an archive needs a name")?
        .to_string_lossy();
    let hidden = path.with_file_name(format!(".{name}.new"));
    let mut archive = Builder::new(File::create(&hidden)?);
    for (name, data) in [
        (config_name.as_str(), &config),
        (layer_name.as_str(), &layer),
        ("manifest.json", &manifest),
    ] {
        add(&mut archive, name, 0o644, data)?;
    }
    archive.into_inner()?.sync_all()?;
    std::fs::rename(hidden, path)?;
    Ok(())
}

fn layer(busybox: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut tar = Builder::new(Vec::new());
    for (dir, mode) in [
        ("bin", 0o755),
        ("etc", 0o755),
        ("proc", 0o555),
        ("sys", 0o555),
        ("dev", 0o755),
        ("tmp", 0o1777),
    ] {
        let mut header = header(EntryType::Directory, mode, 0);
        tar.append_data(&mut header, format!("{dir}/"), std::io::empty())?;
    }
    add(&mut tar, "bin/busybox", 0o755, busybox)?;
    for applet in APPLETS {
        let mut header = header(EntryType::Symlink, 0o777, 0);
        tar.append_link(&mut header, format!("bin/{applet}"), "busybox")?;
    }
    add(
        &mut tar,
        "etc/passwd",
        0o644,
        b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    )?;
    add(
        &mut tar,
        "etc/group",
        0o644,
        b"root:x:0:\nnogroup:x:65534:\n",
    )?;
    Ok(tar.into_inner()?)
}

fn add<W: std::io::Write>(
    tar: &mut Builder<W>,
    name: &str,
    mode: u32,
    data: &[u8],
) -> Result<(), Failure> {
    let mut header = header(EntryType::Regular, mode, u64::try_from(data.len())?);
    tar.append_data(&mut header, name, data)?;
    Ok(())
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

pub(crate) fn hex(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Go's name for this machine.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn archive_agrees_with_itself() {
        let path =
            std::env::temp_dir().join(format!("picolet-xtask-image-{}.tar", std::process::id()));
        write(&path, "localhost/x:1", b"program").unwrap();
        let mut files = std::collections::BTreeMap::new();
        for entry in tar::Archive::new(File::open(&path).unwrap())
            .entries()
            .unwrap()
        {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            files.insert(name, data);
        }
        std::fs::remove_file(path).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "localhost/x:1");
        let config = manifest[0]["Config"].as_str().unwrap();
        assert_eq!(config, format!("{}.json", hex(&files[config])));
        let layer = &files[manifest[0]["Layers"][0].as_str().unwrap()];
        let config: serde_json::Value = serde_json::from_slice(&files[config]).unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", hex(layer))
        );
    }
}
