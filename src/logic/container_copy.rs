//! Rules of `picolet cp`: paths that a tar stream may write to, and the headers of one.
//!
//! Source: kubectl's cp.go; POSIX `pax(1)` and the GNU tar manual for headers.

use alloc::{vec, vec::Vec};

/// A tar block, bytes.
pub const TAR_BLOCK: usize = 512;
/// Most bytes of a name in a header; a longer one has an entry of its own before.
const MAX_NAME_BYTES: usize = 100;

/// Splits a path into its names. `..` takes away the name before it, and is nothing at the start, as for tar.
#[must_use]
pub fn clean_path(path: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    names
}

/// Finds the place of a tar entry below the target: a relative path, empty for the target itself. `source`: the path
/// that was asked for, as [`clean_path`] splits it.
///
/// Returns `None` if the entry is not part of the source, or could leave the target.
#[must_use]
pub fn path_in_target(entry: &[u8], source: &[&str]) -> Option<Vec<u8>> {
    let names = entry.split(|&b| b == b'/');
    let mut names = names.filter(|name| !matches!(*name, b"" | b"."));
    if !source
        .iter()
        .all(|name| names.next() == Some(name.as_bytes()))
    {
        return None;
    }
    let below: Vec<&[u8]> = names.collect();
    let leaves = below.iter().any(|name| *name == b".." || name.contains(&0));
    (!leaves).then(|| below.join(&b'/'))
}

/// An entry of a tar stream before its data.
#[derive(Clone, Copy, Debug, Default)]
pub struct TarHeader<'a> {
    /// Path of the entry.
    pub name: &'a [u8],
    /// Target of a symbolic link, otherwise empty.
    pub link: &'a [u8],
    /// Type: `0` a file, `2` a symbolic link, `5` a directory.
    pub kind: u8,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of data that follow.
    pub size: u64,
    /// Time of the last change, in seconds since 1970.
    pub mtime: u64,
}

impl TarHeader<'_> {
    /// Makes the blocks before the data. Long names stand in entries of their own, in GNU's form.
    #[must_use]
    pub fn to_blocks(self) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, text) in [(b'K', self.link), (b'L', self.name)] {
            if text.len() > MAX_NAME_BYTES {
                let long = TarHeader {
                    name: b"././@LongLink",
                    kind,
                    size: u64::try_from(text.len()).unwrap_or(u64::MAX),
                    ..TarHeader::default()
                };
                long.write_block(&mut out);
                out.extend_from_slice(text);
                out.resize(out.len().next_multiple_of(TAR_BLOCK), 0);
            }
        }
        self.write_block(&mut out);
        out
    }

    fn write_block(self, out: &mut Vec<u8>) {
        let mut block = vec![0; TAR_BLOCK];
        for (at, text) in [(0, self.name), (157, self.link)] {
            let text = &text[..text.len().min(MAX_NAME_BYTES)];
            block[at..at + text.len()].copy_from_slice(text);
        }
        for (from, to, value) in [
            (100, 108, self.mode.into()),
            (108, 116, self.uid.into()),
            (116, 124, self.gid.into()),
            (124, 136, self.size),
            (136, 148, self.mtime),
        ] {
            write_number(&mut block[from..to], value);
        }
        block[156] = self.kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum = block.iter().map(|&b| u64::from(b)).sum();
        write_number(&mut block[148..155], sum);
        out.append(&mut block);
    }
}

/// Writes a number in octal with a NUL behind it, or in binary if it is too large for that.
fn write_number(field: &mut [u8], value: u64) {
    let mut rest = value;
    let (last, digits) = field.split_last_mut().expect("a field has bytes");
    *last = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' | (rest & 7).to_le_bytes()[0];
        rest >>= 3;
    }
    if rest > 0 {
        field.fill(0);
        let bytes = field.iter_mut().rev().zip(value.to_le_bytes());
        bytes.for_each(|(to, byte)| *to = byte);
        field[0] = 0x80;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_entries() {
        // CMD-08
        for (source, entry, place) in [
            ("/etc/app", "etc/app/", Some("")),
            ("/etc/app", "etc/app/a/b", Some("a/b")),
            ("etc/app/", "./etc//app/a", Some("a")),
            ("/x/../etc/./app", "etc/app/a", Some("a")),
            ("../up", "up/a", Some("a")),
            (".", "./a", Some("a")),
            ("/", "a", Some("a")),
            ("/etc/app", "/etc/app/a", Some("a")),
            ("/etc/app", "etc/app/../../passwd", None),
            ("/etc/app", "etc/app/..", None),
            ("/etc/app", "../etc/app/a", None),
            ("/", "../a", None),
            ("/etc/app", "etc/apple", None),
            ("/etc/app", "etc", None),
            ("/etc/app", "root/.ssh/authorized_keys", None),
            ("/", "a\0b", None),
        ] {
            let found = path_in_target(entry.as_bytes(), &clean_path(source));
            assert_eq!(
                found.as_deref(),
                place.map(str::as_bytes),
                "{source} {entry}"
            );
        }
    }

    #[test]
    fn numbers() {
        let written = |length: usize, value| {
            let mut field = vec![b'x'; length];
            write_number(&mut field, value);
            field
        };
        assert_eq!(written(8, 0o644), b"0000644\0");
        assert_eq!(written(8, 0o7_777_777), b"7777777\0");
        assert_eq!(written(8, 0o10_000_000), b"\x80\0\0\0\0\x20\0\0");
        assert_eq!(written(12, 1 << 33), b"\x80\0\0\0\0\0\0\x02\0\0\0\0");
    }
}
