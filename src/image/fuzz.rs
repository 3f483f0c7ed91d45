//! Entry points of the fuzz targets into this module's private parsers. See [`crate::fuzz`].

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use super::archive::Archive;
use super::below::LowerLayers;
use super::compress;
use super::layer::{self, SpaceBudget};
use super::plan;
use super::platform::MachinePlatform;
use super::reference::ImageReference;
use super::tarball::{TarInput, TarReader};
use super::tree;
use crate::error::error_chain;

/// Bytes that one input may unpack to, and entries.
const BUDGET: SpaceBudget = SpaceBudget {
    bytes: 1 << 20,
    bytes_left: 1 << 20,
    inodes: 500,
    inodes_left: 500,
};
/// Bytes read of a decoder's output.
const DECODED_BYTES: u64 = 4 << 20;

struct Bytes<'a>(&'a [u8]);

impl Read for Bytes<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl TarInput for Bytes<'_> {}

/// Headers of a tar stream, without the disk.
pub(crate) fn tar(data: &[u8]) -> String {
    let data = with_checksums(data);
    let mut input = Bytes(&data);
    let mut tar = TarReader::new(&mut input);
    let mut seen = String::new();
    loop {
        match tar.next_entry() {
            Ok(Some(entry)) => {
                assert!(entry.path.len() <= 4096 && entry.link.len() <= 4096);
                if seen.len() < 200 {
                    seen.push_str(&format!("{:?} ", entry.kind));
                }
            }
            Ok(None) => return seen,
            Err(e) => return seen + &e.to_string(),
        }
    }
}

/// A layer on top of another, in `scratch`. Whatever it says, nothing beside its directory changes.
pub(crate) fn layer(data: &[u8], scratch: &Path) -> String {
    let data = with_checksums(data);
    let (lower, upper) = (scratch.join("lower"), scratch.join("upper"));
    let secret = scratch.join("secret");
    if !lower.exists() {
        fs::create_dir_all(lower.join("usr/lib")).expect("scratch");
        fs::write(lower.join("usr/lib/f"), b"f").expect("scratch");
        fs::write(&secret, b"secret").expect("scratch");
        for (to, link) in [
            ("usr/lib", "lib"),
            ("/usr", "abs"),
            ("../..", "up"),
            ("a", "a"),
        ] {
            std::os::unix::fs::symlink(to, lower.join(link)).expect("scratch");
        }
    }
    fs::create_dir(&upper).expect("scratch");
    let open = |path: &Path| OwnedFd::from(fs::File::open(path).expect("scratch"));
    let mut budget = BUDGET;
    let below = Some(LowerLayers::new(vec![open(&lower)]));
    let result = layer::unpack(
        &mut &data[..],
        open(&upper),
        below,
        &mut budget,
        &mut |_| Ok(()),
    );
    tree::remove_tree(open(scratch).as_fd(), b"upper").expect("what was unpacked can be removed");
    assert_eq!(fs::read(&secret).expect("the file beside it"), b"secret");
    assert_eq!(
        fs::read_dir(scratch).expect("scratch").count(),
        2,
        "nothing beside it"
    );
    match result {
        Ok(unpacked) => format!("ok {}", unpacked.implied.len().min(3)),
        Err(e) => e.problem.to_string(),
    }
}

/// Documents of an archive: manifests, indexes, configurations, and what they refer to.
pub(crate) fn documents(data: &[u8], scratch: &Path) -> String {
    let path = scratch.join("archive");
    fs::write(&path, with_checksums(data)).expect("scratch");
    let planned = Archive::open(&path)
        .map_err(|problem| (None, problem))
        .and_then(|archive| plan::plan_archive(&archive, &[], MachinePlatform::detect_current()));
    match planned {
        Ok(images) => {
            for image in &images {
                assert!(image.layers.len() <= plan::MAX_LAYERS);
                assert!(!image.names.is_empty() || !image.digests.is_empty());
                for name in image.names.iter().chain(&image.digests) {
                    ImageReference::parse(name).expect("names are normalised");
                }
            }
            format!("ok {}", images.len())
        }
        Err((_, problem)) => problem.to_string(),
    }
}

/// The decoders: gzip and zstd.
pub(crate) fn compressed(data: &[u8]) -> String {
    let mut input = data;
    let decoded = compress::open_decoder(&mut input).and_then(|(coding, stream)| {
        let n = io::copy(&mut stream.take(DECODED_BYTES), &mut io::sink())?;
        Ok(format!("{coding:?} {}", n.min(1)))
    });
    decoded.unwrap_or_else(|e| e.to_string())
}

/// Image references.
pub(crate) fn reference(data: &[u8]) -> String {
    let Ok(text) = core::str::from_utf8(data) else {
        return String::new();
    };
    match ImageReference::parse(text) {
        Ok(reference) => {
            if let Some(name) = reference.tagged_name() {
                let again = ImageReference::parse(&name).expect("a normalised name is a name");
                assert_eq!(again.tagged_name(), Some(name));
            }
            "ok".into()
        }
        Err(e) => error_chain(&e),
    }
}

/// Mends the checksums of the headers, which no mutation would hit.
fn with_checksums(data: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut data = data.to_vec();
    let mut at = 0;
    while let Some(block) = data.get_mut(at..at + BLOCK) {
        if block.iter().all(|&b| b == 0) {
            break;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let size = core::str::from_utf8(&block[124..135]).ok();
        let size = size.and_then(|s| usize::from_str_radix(s.trim_matches(['\0', ' ']), 8).ok());
        at = at
            .saturating_add(BLOCK)
            .saturating_add(size.unwrap_or(0).div_ceil(BLOCK).saturating_mul(BLOCK));
        if at > data.len() {
            break;
        }
    }
    data
}
