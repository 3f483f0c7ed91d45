//! Archives built in memory, for the tests of this folder.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use tar::{Builder, EntryType, Header};

use super::digest::Digest;

/// Builds a tar stream. Names go in as they are, hostile ones too.
pub(crate) struct Stream(Builder<Vec<u8>>);

impl Stream {
    pub(crate) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    pub(crate) fn entry(
        mut self,
        kind: EntryType,
        path: &str,
        link: &str,
        mode: u32,
        data: &[u8],
    ) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000);
        header.set_size(data.len() as u64);
        let gnu = header.as_gnu_mut().expect("gnu");
        assert!(path.len() <= 100 && link.len() <= 100, "short names only");
        gnu.name[..path.len()].copy_from_slice(path.as_bytes());
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, data).expect("memory");
        self
    }

    pub(crate) fn file(self, path: &str, data: &[u8]) -> Self {
        self.entry(EntryType::Regular, path, "", 0o644, data)
    }

    pub(crate) fn dir(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path, "", mode, b"")
    }

    pub(crate) fn symlink(self, path: &str, to: &str) -> Self {
        self.entry(EntryType::Symlink, path, to, 0o777, b"")
    }

    pub(crate) fn hard_link(self, path: &str, to: &str) -> Self {
        self.entry(EntryType::Link, path, to, 0o644, b"")
    }

    pub(crate) fn device(mut self, kind: EntryType, path: &str, major: u32, minor: u32) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        header.set_path(path).expect("short");
        header.set_device_major(major).expect("gnu");
        header.set_device_minor(minor).expect("gnu");
        header.set_cksum();
        self.0.append(&header, &b""[..]).expect("memory");
        self
    }

    /// PAX records in front of the next entry.
    pub(crate) fn pax(mut self, records: &[(&str, &[u8])]) -> Self {
        self.0
            .append_pax_extensions(records.iter().copied())
            .expect("memory");
        self
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0.into_inner().expect("memory")
    }
}

pub(crate) fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).expect("memory");
    encoder.finish().expect("memory")
}

pub(crate) fn zstd(data: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
}

/// A tar stream of one file without the mark at its end.
fn member(name: &str, data: &[u8]) -> Vec<u8> {
    const END: usize = 1024;
    let mut bytes = Stream::new().file(name, data).bytes();
    bytes.truncate(bytes.len() - END);
    bytes
}

/// Makes files in pieces of their own, compressed and plain, and the table of contents that lists them.
fn pieces(
    files: &[(&str, &[u8])],
    compress: fn(&[u8]) -> Vec<u8>,
) -> (Vec<u8>, Vec<u8>, serde_json::Value) {
    let (mut packed, mut plain, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    for (name, data) in files {
        let digest = Digest::compute(data).to_string();
        entries.push(serde_json::json!({
            "name": name, "type": "reg", "size": data.len(), "mode": 0o644, "offset": packed.len(),
            "digest": digest, "chunkDigest": digest,
        }));
        let member = member(name, data);
        packed.extend(compress(&member));
        plain.extend(member);
    }
    let toc = serde_json::json!({"version": 1, "entries": entries});
    (packed, plain, toc)
}

/// A layer as eStargz has it, and the tar stream in it: a gzip member for each file, one for the table of contents, which
/// is a file of the layer too, and an empty one whose header says where that is.
///
/// Source: containerd/stargz-snapshotter `docs/estargz.md`.
pub(crate) fn estargz(files: &[(&str, &[u8])]) -> (Vec<u8>, Vec<u8>) {
    let (mut packed, mut plain, toc) = pieces(files, gzip);
    let at = packed.len();
    let toc = Stream::new().file("stargz.index.json", toc.to_string().as_bytes());
    let toc = toc.bytes();
    packed.extend(gzip(&toc));
    plain.extend(toc);
    let extra = format!("{at:016x}STARGZ");
    packed.extend([
        0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff, 26, 0, b'S', b'G', 22, 0,
    ]);
    packed.extend(extra.as_bytes());
    packed.extend([1, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    (packed, plain)
}

/// A layer as zstd:chunked has it, and the tar stream in it: a frame for each file, then the table of contents and where
/// it is in frames that decoders skip.
///
/// Source: containers/storage `pkg/chunked/internal/compression.go`.
pub(crate) fn zstd_chunked(files: &[(&str, &[u8])]) -> (Vec<u8>, Vec<u8>) {
    let skipped = |data: &[u8]| {
        let length = u32::try_from(data.len()).expect("small");
        [&[0x50, 0x2a, 0x4d, 0x18], &length.to_le_bytes()[..], data].concat()
    };
    let (mut packed, mut plain, toc) = pieces(files, zstd);
    let end = [0; 1024];
    packed.extend(zstd(&end));
    plain.extend(end);
    let text = toc.to_string();
    let toc = zstd(text.as_bytes());
    let place = packed.len() + 8;
    packed.extend(skipped(&toc));
    let mut footer = Vec::new();
    for number in [place, toc.len(), text.len(), 1, 0, 0, 0] {
        footer.extend((number as u64).to_le_bytes());
    }
    footer.extend(b"GNUlInUx");
    packed.extend(skipped(&footer));
    (packed, plain)
}

/// Go's name of the architecture of this machine.
pub(crate) fn architecture() -> &'static str {
    super::platform::MachinePlatform::detect_current().architecture
}

/// A configuration with these layers; `mark` makes it differ from others.
pub(crate) fn config(layers: &[&[u8]], mark: &str) -> Vec<u8> {
    let diff_ids: Vec<String> = layers
        .iter()
        .map(|l| Digest::compute(l).to_string())
        .collect();
    serde_json::json!({
        "architecture": architecture(), "os": "linux",
        "config": {"Env": [format!("MARK={mark}")], "Cmd": ["/bin/sh"], "User": "1000:100"},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
    .to_string()
    .into_bytes()
}

/// A docker-archive with one image of uncompressed layers.
pub(crate) fn docker_archive(tag: &str, layers: &[&[u8]]) -> Vec<u8> {
    let config = config(layers, tag);
    let config_name = format!("{}.json", Digest::compute(&config).hex());
    let mut stream = Stream::new();
    let mut names = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        let name = format!("{at}/layer.tar");
        stream = stream.file(&name, layer);
        names.push(name);
    }
    let manifest = serde_json::json!([{"Config": config_name, "RepoTags": [tag], "Layers": names}]);
    stream
        .file(&config_name, &config)
        .file("manifest.json", manifest.to_string().as_bytes())
        .bytes()
}

/// Blobs of an OCI layout in the making.
#[derive(Clone)]
pub(crate) struct Layout {
    pub(crate) blobs: Vec<(String, Vec<u8>)>,
    pub(crate) manifests: Vec<serde_json::Value>,
}

impl Layout {
    pub(crate) fn new() -> Self {
        Self {
            blobs: Vec::new(),
            manifests: Vec::new(),
        }
    }

    /// Adds a blob and returns its descriptor.
    pub(crate) fn blob(&mut self, media_type: &str, data: &[u8]) -> serde_json::Value {
        let digest = Digest::compute(data);
        let name = format!("blobs/sha256/{}", digest.hex());
        if !self.blobs.iter().any(|(n, _)| *n == name) {
            self.blobs.push((name, data.to_vec()));
        }
        serde_json::json!({"mediaType": media_type, "digest": digest.to_string(), "size": data.len()})
    }

    /// Adds an image and returns its manifest's descriptor.
    pub(crate) fn image(&mut self, config: &[u8], layers: &[&[u8]]) -> serde_json::Value {
        let config = self.blob("application/vnd.oci.image.config.v1+json", config);
        let layers: Vec<_> = layers
            .iter()
            .map(|l| self.blob("application/vnd.oci.image.layer.v1.tar", l))
            .collect();
        let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": layers});
        self.blob(
            "application/vnd.oci.image.manifest.v1+json",
            manifest.to_string().as_bytes(),
        )
    }

    pub(crate) fn index(&mut self, manifests: &[serde_json::Value]) -> serde_json::Value {
        let index = serde_json::json!({"schemaVersion": 2, "manifests": manifests});
        self.blob(
            "application/vnd.oci.image.index.v1+json",
            index.to_string().as_bytes(),
        )
    }

    pub(crate) fn name(&mut self, mut descriptor: serde_json::Value, name: &str) {
        descriptor["annotations"] = serde_json::json!({"org.opencontainers.image.ref.name": name});
        self.manifests.push(descriptor);
    }

    fn members(&self) -> Vec<(String, Vec<u8>)> {
        let index = serde_json::json!({"schemaVersion": 2, "manifests": self.manifests});
        let mut members = vec![
            (
                "oci-layout".to_owned(),
                br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
            ),
            ("index.json".to_owned(), index.to_string().into_bytes()),
        ];
        members.extend(self.blobs.iter().cloned());
        members
    }

    pub(crate) fn tar(&self) -> Vec<u8> {
        let mut stream = Stream::new();
        for (name, data) in self.members() {
            stream = stream.file(&name, &data);
        }
        stream.bytes()
    }

    pub(crate) fn write_to(&self, dir: &Path) {
        for (name, data) in self.members() {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().expect("parent")).expect("scratch");
            fs::write(path, data).expect("scratch");
        }
    }
}
