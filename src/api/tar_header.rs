//! Entries of a tar stream before their data, as `cp` and the archives of images have them.
//!
//! Source: POSIX `pax(1)`; the GNU tar manual for long names, which busybox reads too.

use alloc::{string::String, string::ToString as _, vec, vec::Vec};

/// A tar block, bytes.
pub const TAR_BLOCK: usize = 512;
/// End of a stream.
pub const TAR_END: [u8; 2 * TAR_BLOCK] = [0; 2 * TAR_BLOCK];
/// Most bytes of a name in a header; a longer one has an entry of its own before.
const MAX_NAME_BYTES: usize = 100;

/// An entry of a tar stream before its data.
#[derive(Clone, Copy, Debug, Default)]
pub struct TarHeader<'a> {
    /// Path of the entry.
    pub name: &'a [u8],
    /// Target of a link, otherwise empty.
    pub link: &'a [u8],
    /// Type: `0` a file, `1` a further name, `2` a symbolic link, `3` and `4` a device, `5` a directory, `6` a FIFO.
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
    /// Numbers of a device.
    pub device: (u64, u64),
}

impl TarHeader<'_> {
    /// Header of a file of root.
    #[must_use]
    pub fn of_file(name: &[u8], size: u64) -> Vec<u8> {
        let header = TarHeader {
            name,
            kind: b'0',
            mode: 0o644,
            size,
            ..TarHeader::default()
        };
        header.to_blocks(&[])
    }

    /// Makes the blocks before the data. Extended attributes stand in an entry of their own, in the form of pax, and long
    /// names, in that of GNU.
    #[must_use]
    pub fn to_blocks(self, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let mut records = Vec::new();
        for (name, value) in xattrs {
            push_pax_record(&mut records, name, value);
        }
        let mut out = Vec::new();
        for (kind, name, text) in [
            (b'x', &b"pax"[..], &*records),
            (b'K', b"././@LongLink", self.link),
            (b'L', b"././@LongLink", self.name),
        ] {
            let is_long = text.len() > MAX_NAME_BYTES;
            if !(is_long || kind == b'x' && !text.is_empty()) {
                continue;
            }
            // A name ends with a zero.
            let size = text.len() + usize::from(kind != b'x');
            let before = TarHeader {
                name,
                kind,
                mode: 0o644,
                size: u64::try_from(size).unwrap_or(u64::MAX),
                ..TarHeader::default()
            };
            before.write_block(&mut out);
            let end = (out.len() + size).next_multiple_of(TAR_BLOCK);
            out.extend_from_slice(text);
            out.resize(end, 0);
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
            (329, 337, self.device.0),
            (337, 345, self.device.1),
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

/// Writes an extended attribute as a record `LENGTH SCHILY.xattr.NAME=VALUE\n`, whose length counts its own digits.
fn push_pax_record(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let key = b"SCHILY.xattr.";
    let rest = key.len() + name.len() + value.len() + 3;
    let mut digits = String::new();
    // Bounded: the length settles in two or three rounds.
    while digits.parse() != Ok(rest + digits.len()) {
        digits = (rest + digits.len()).to_string();
    }
    for part in [digits.as_bytes(), b" ", key, name, b"=", value, b"\n"] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
