//! Reads tar streams: ustar, PAX, GNU (long names, sparse files), v7.
//!
//! Bounded: one entry's headers are held at a time, extended headers up to [`MAX_EXTENSION_BYTES`]. General tar
//! readers buffer those without a limit, and split PAX records at newlines, which breaks binary attributes.
//!
//! Source: POSIX `pax(1)`, GNU tar manual "Basic Tar Format" and "Sparse Formats".

use std::io::{self, Read};

use super::compress::read_up_to;

/// A tar block, bytes.
pub(super) const BLOCK: usize = 512;
/// Largest extended header (PAX records, GNU long name), bytes.
pub const MAX_EXTENSION_BYTES: u64 = 1024 * 1024;
/// Longest path or link target, bytes (`PATH_MAX`).
pub const MAX_PATH_BYTES: usize = 4096;
/// Extended attributes of one entry.
pub const MAX_XATTRS: usize = 64;
/// Extents of one sparse file.
pub const MAX_EXTENTS: usize = 65_536;

/// Source of tar bytes.
pub(crate) trait TarInput: Read {
    /// Passes over `n` bytes. An input that ends before is an [`io::ErrorKind::UnexpectedEof`].
    fn skip_bytes(&mut self, n: u64) -> io::Result<()> {
        let skipped = io::copy(&mut self.take(n), &mut io::sink())?;
        if skipped < n {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// Type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TarEntryKind {
    /// Regular file.
    File,
    /// Hard link to an entry before it.
    HardLink,
    /// Symbolic link.
    Symlink,
    /// Character device.
    Char,
    /// Block device.
    Block,
    /// Directory.
    Dir,
    /// FIFO.
    Fifo,
}

/// An entry of a tar stream.
#[derive(Debug)]
pub(crate) struct TarEntry {
    /// Path as written, at most [`MAX_PATH_BYTES`].
    pub(crate) path: Vec<u8>,
    /// Target of a link, as written.
    pub(crate) link: Vec<u8>,
    /// Type.
    pub(crate) kind: TarEntryKind,
    /// Permission bits with set-id and sticky.
    pub(crate) mode: u32,
    /// Owner.
    pub(super) uid: u64,
    /// Group.
    pub(super) gid: u64,
    /// Modification time: seconds and nanoseconds since 1970.
    pub(super) mtime: (i64, u32),
    /// Bytes of data in the archive.
    pub(super) size: u64,
    /// Device numbers.
    pub(super) device: (u64, u64),
    /// Extended attributes: name, value.
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Layout of the data, for a sparse file.
    pub(crate) sparse: Option<SparseLayout>,
}

/// Layout of a sparse file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SparseLayout {
    /// Size of the file, bytes.
    pub(super) size: u64,
    /// Offset and length of each run of data, in order.
    pub(super) extents: Vec<(u64, u64)>,
}

/// Reads one tar stream. Its own `Read` gives the data of the current entry.
pub(crate) struct TarReader<'a> {
    input: &'a mut dyn TarInput,
    /// Data of the current entry not yet read.
    left: u64,
    /// Bytes up to the next block after it.
    padding: usize,
}

/// Values that extended headers give for the next entry.
#[derive(Default)]
struct TarExtension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: PaxSparse,
}

/// The three PAX forms of sparse files.
#[derive(Default)]
struct PaxSparse {
    major: u64,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    extents: Option<Vec<(u64, u64)>>,
    offset: Option<u64>,
}

impl<'a> TarReader<'a> {
    pub(crate) fn new(input: &'a mut dyn TarInput) -> Self {
        Self {
            input,
            left: 0,
            padding: 0,
        }
    }

    /// Passes to the next entry. `None` at the end mark, or where the input ends between entries.
    ///
    /// Errors: `UnexpectedEof` for a cut stream, `InvalidData` for a damaged one, `Unsupported` for an unknown type.
    pub(crate) fn next_entry(&mut self) -> io::Result<Option<TarEntry>> {
        let mut extension = TarExtension::default();
        let mut extended: u64 = 0;
        loop {
            self.input.skip_bytes(self.left)?;
            self.left = 0;
            let mut block = [0; BLOCK];
            // Writers that were not closed leave out the last padding as well as the end mark; Go's reader takes that.
            let padding = core::mem::take(&mut self.padding);
            let read = match read_up_to(self.input, &mut block[..padding])? {
                n if n < padding => 0,
                _ => read_up_to(self.input, &mut block)?,
            };
            match read {
                0 if extended == 0 => return Ok(None),
                BLOCK => {}
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            if block.iter().all(|&b| b == 0) {
                return match read_up_to(self.input, &mut block)? {
                    _ if extended > 0 => Err(damaged("an extended header has no entry")),
                    0 => Ok(None),
                    BLOCK if block.iter().all(|&b| b == 0) => Ok(None),
                    BLOCK => Err(damaged("a lone zero block lies between entries")),
                    _ => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
            let header = TarHeader(&block);
            header.check_checksum()?;
            let size = header.read_unsigned(124..136)?;
            self.set_data(size);
            let kind = header.0[156];
            if matches!(kind, b'x' | b'g' | b'L' | b'K' | b'V') {
                // All extended headers before one entry count together.
                extended = extended.saturating_add(size.max(BLOCK as u64));
                if extended > MAX_EXTENSION_BYTES {
                    return Err(damaged(&format!(
                        "extended headers of one entry exceed {MAX_EXTENSION_BYTES} bytes"
                    )));
                }
                if matches!(kind, b'x' | b'L' | b'K') {
                    let mut data = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
                    self.read_exact(&mut data)?;
                    match kind {
                        b'x' => extension.read_pax(&data)?,
                        b'L' => extension.path = Some(until_nul(&data).to_vec()),
                        _ => extension.link = Some(until_nul(&data).to_vec()),
                    }
                }
                continue;
            }
            let entry = self.build_entry(&header, extension)?;
            return Ok(Some(entry));
        }
    }

    fn set_data(&mut self, size: u64) {
        self.left = size;
        let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
        self.padding = (BLOCK - over) % BLOCK;
    }

    fn build_entry(
        &mut self,
        header: &TarHeader<'_>,
        extension: TarExtension,
    ) -> io::Result<TarEntry> {
        let mut path = extension.path.unwrap_or_else(|| header.entry_path());
        let kind = match header.0[156] {
            // Before POSIX a directory was a file with a slash.
            b'0' | 0 | b'7' if path.last() == Some(&b'/') => TarEntryKind::Dir,
            b'0' | 0 | b'7' | b'S' => TarEntryKind::File,
            b'1' => TarEntryKind::HardLink,
            b'2' => TarEntryKind::Symlink,
            b'3' => TarEntryKind::Char,
            b'4' => TarEntryKind::Block,
            b'5' => TarEntryKind::Dir,
            b'6' => TarEntryKind::Fifo,
            other => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("tar entry type {:?} is not supported", char::from(other)),
                ));
            }
        };
        let mut size = match extension.size {
            Some(size) => size,
            None => header.read_unsigned(124..136)?,
        };
        if kind != TarEntryKind::File {
            // Some writers leave the target's size in a link's header; no data follows it.
            size = 0;
        }
        self.set_data(size);
        let mut sparse = None;
        if header.0[156] == b'S' {
            sparse = Some(self.read_gnu_sparse(header)?);
        } else if extension.sparse.major == 1 {
            sparse = Some(SparseLayout {
                size: extension
                    .sparse
                    .size
                    .ok_or_else(|| damaged("sparse file has no size"))?,
                extents: self.read_pax_sparse_map()?,
            });
        } else if let (Some(size), Some(extents)) =
            (extension.sparse.size, extension.sparse.extents)
        {
            sparse = Some(SparseLayout { size, extents });
        }
        if let Some(name) = extension.sparse.name {
            path = name;
        }
        if let Some(sparse) = &sparse {
            sparse.check_extents(self.left)?;
        }
        let link = extension
            .link
            .unwrap_or_else(|| until_nul(&header.0[157..257]).to_vec());
        if path.len() > MAX_PATH_BYTES || link.len() > MAX_PATH_BYTES {
            return Err(damaged(&format!(
                "a path is longer than {MAX_PATH_BYTES} bytes"
            )));
        }
        Ok(TarEntry {
            path,
            link,
            kind,
            mode: u32::try_from(header.read_unsigned(100..108)? & 0o7777).unwrap_or(0),
            uid: match extension.uid {
                Some(uid) => uid,
                None => header.read_unsigned(108..116)?,
            },
            gid: match extension.gid {
                Some(gid) => gid,
                None => header.read_unsigned(116..124)?,
            },
            mtime: match extension.mtime {
                Some(mtime) => mtime,
                None => (header.read_signed(136..148)?, 0),
            },
            size: self.left,
            device: if matches!(kind, TarEntryKind::Char | TarEntryKind::Block) {
                (
                    header.read_unsigned(329..337)?,
                    header.read_unsigned(337..345)?,
                )
            } else {
                (0, 0)
            },
            xattrs: extension.xattrs,
            sparse,
        })
    }

    /// GNU's own form: extents in the header and in blocks after it.
    fn read_gnu_sparse(&mut self, header: &TarHeader<'_>) -> io::Result<SparseLayout> {
        let mut extents = Vec::new();
        let mut add = |header: &TarHeader<'_>, from: usize, n: usize| -> io::Result<()> {
            for at in (from..from + n * 24).step_by(24) {
                if header.0[at] == 0 {
                    break;
                }
                extents.push((
                    header.read_unsigned(at..at + 12)?,
                    header.read_unsigned(at + 12..at + 24)?,
                ));
                if extents.len() > MAX_EXTENTS {
                    return Err(damaged("sparse file has too many extents"));
                }
            }
            Ok(())
        };
        add(header, 386, 4)?;
        let mut more = header.0[482] != 0;
        while more {
            let mut block = [0; BLOCK];
            // These blocks lie before the data and are not part of its size.
            self.input.read_exact(&mut block)?;
            let before = block;
            add(&TarHeader(&before), 0, 21)?;
            more = before[504] != 0;
        }
        Ok(SparseLayout {
            size: header.read_unsigned(483..495)?,
            extents,
        })
    }

    /// PAX form 1.0: decimal lines at the start of the data, padded to a block.
    fn read_pax_sparse_map(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let mut read: usize = 0;
        let mut buffer = [0; BLOCK];
        let mut number = || -> io::Result<u64> {
            let mut value: Option<u64> = None;
            loop {
                if read.is_multiple_of(BLOCK) {
                    self.read_exact(&mut buffer)?;
                }
                let byte = buffer[read % BLOCK];
                read += 1;
                match (byte, value) {
                    (b'0'..=b'9', _) => {
                        value = value
                            .unwrap_or(0)
                            .checked_mul(10)
                            .and_then(|v| v.checked_add(u64::from(byte - b'0')));
                        if value.is_none() {
                            return Err(damaged("sparse map is damaged"));
                        }
                    }
                    (b'\n', Some(value)) => return Ok(value),
                    _ => return Err(damaged("sparse map is damaged")),
                }
            }
        };
        let count = number()?;
        if count > MAX_EXTENTS as u64 {
            return Err(damaged("sparse file has too many extents"));
        }
        let mut extents = Vec::new();
        for _ in 0..count {
            extents.push((number()?, number()?));
        }
        Ok(extents)
    }
}

impl Read for TarReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buf.len());
        if want == 0 {
            return Ok(0);
        }
        let n = self.input.read(&mut buf[..want])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= n as u64;
        Ok(n)
    }
}

impl SparseLayout {
    /// Extents must be few, ordered, inside the file, and hold exactly the data there is.
    fn check_extents(&self, data: u64) -> io::Result<()> {
        if self.extents.len() > MAX_EXTENTS {
            return Err(damaged("sparse file has too many extents"));
        }
        let mut end = 0;
        let mut sum: u64 = 0;
        for &(offset, length) in &self.extents {
            let next = offset.checked_add(length);
            match next {
                Some(next) if offset >= end && next <= self.size => end = next,
                _ => return Err(damaged("sparse map is out of order")),
            }
            sum = sum.saturating_add(length);
        }
        if sum == data {
            Ok(())
        } else {
            Err(damaged("sparse map does not fit its data"))
        }
    }
}

impl TarExtension {
    /// PAX records: `length key=value\n`, where length counts the whole record in decimal.
    fn read_pax(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            // Some writers pad with NUL.
            if data.iter().all(|&b| b == 0) {
                break;
            }
            let bad = || damaged("a PAX record is damaged");
            let space = data.iter().position(|&b| b == b' ').ok_or_else(bad)?;
            let length = parse_decimal(&data[..space]).ok_or_else(bad)?;
            let length = usize::try_from(length).map_err(|_| bad())?;
            if length <= space + 1 || length > data.len() || data[length - 1] != b'\n' {
                return Err(bad());
            }
            let record = &data[space + 1..length - 1];
            data = &data[length..];
            let equals = record.iter().position(|&b| b == b'=').ok_or_else(bad)?;
            self.set_pax_value(&record[..equals], &record[equals + 1..])?;
        }
        Ok(())
    }

    fn set_pax_value(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let number = || {
            parse_decimal(value).ok_or_else(|| {
                damaged(&format!(
                    "PAX record {} is not a number",
                    String::from_utf8_lossy(key)
                ))
            })
        };
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number()?),
            b"uid" => self.uid = Some(number()?),
            b"gid" => self.gid = Some(number()?),
            b"mtime" => self.mtime = Some(parse_pax_time(value)?),
            b"GNU.sparse.major" => self.sparse.major = number()?,
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_vec()),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.size = Some(number()?),
            b"GNU.sparse.offset" => self.sparse.offset = Some(number()?),
            b"GNU.sparse.numbytes" => {
                let offset = self.sparse.offset.take();
                let offset = offset.ok_or_else(|| damaged("sparse map is damaged"))?;
                let length = number()?;
                let extents = self.sparse.extents.get_or_insert_default();
                extents.push((offset, length));
            }
            b"GNU.sparse.map" => {
                let numbers: Option<Vec<u64>> =
                    value.split(|&b| b == b',').map(parse_decimal).collect();
                let numbers = numbers.filter(|n| n.len().is_multiple_of(2));
                let numbers = numbers.ok_or_else(|| damaged("sparse map is damaged"))?;
                self.sparse.extents = Some(numbers.chunks_exact(2).map(|p| (p[0], p[1])).collect());
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    if self.xattrs.len() >= MAX_XATTRS {
                        return Err(damaged(&format!(
                            "an entry has more than {MAX_XATTRS} extended attributes"
                        )));
                    }
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

/// A header block.
struct TarHeader<'b>(&'b [u8; BLOCK]);

impl TarHeader<'_> {
    /// Compares the checksum: the sum of all bytes with its own field as spaces; old writers summed signed bytes.
    fn check_checksum(&self) -> io::Result<()> {
        let stored = self.read_unsigned(148..156)?;
        let mut unsigned: u64 = 0;
        let mut signed: i64 = 0;
        for (at, &byte) in self.0.iter().enumerate() {
            let byte = if (148..156).contains(&at) { b' ' } else { byte };
            unsigned += u64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        if stored == unsigned || i64::try_from(stored) == Ok(signed) {
            Ok(())
        } else {
            Err(damaged("a tar header's checksum is wrong"))
        }
    }

    fn entry_path(&self) -> Vec<u8> {
        let name = until_nul(&self.0[..100]);
        // The prefix field is ustar's; GNU keeps times there.
        if &self.0[257..263] == b"ustar\0" && self.0[345] != 0 {
            [until_nul(&self.0[345..500]), b"/", name].concat()
        } else {
            name.to_vec()
        }
    }

    fn read_unsigned(&self, field: core::ops::Range<usize>) -> io::Result<u64> {
        u64::try_from(self.read_signed(field)?)
            .map_err(|_| damaged("a tar header has a negative number"))
    }

    /// Octal text, or with the high bit set big-endian two's complement.
    fn read_signed(&self, field: core::ops::Range<usize>) -> io::Result<i64> {
        let bytes = &self.0[field];
        let bad = || damaged("a number in a tar header is damaged");
        if bytes[0] & 0x80 != 0 {
            // The first bit only marks; the second is the sign.
            let mut value: i128 = i128::from(bytes[0] & 0x3f);
            if bytes[0] & 0x40 != 0 {
                value -= 0x40;
            }
            for &byte in &bytes[1..] {
                value = (value << 8) | i128::from(byte);
            }
            return i64::try_from(value).map_err(|_| bad());
        }
        let text = until_nul(bytes).trim_ascii();
        let mut value: i64 = 0;
        for &digit in text {
            if !(b'0'..=b'7').contains(&digit) {
                return Err(bad());
            }
            value = (value << 3) | i64::from(digit - b'0');
        }
        Ok(value)
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&b| b == 0).next().unwrap_or(bytes)
}

fn parse_decimal(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// `[-]seconds[.fraction]`.
fn parse_pax_time(text: &[u8]) -> io::Result<(i64, u32)> {
    let parse = || {
        let text = core::str::from_utf8(text).ok()?;
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let seconds: i64 = whole.parse().ok()?;
        let mut nanos: u32 = 0;
        for at in 0..9 {
            let digit = fraction.as_bytes().get(at).copied().unwrap_or(b'0');
            nanos = nanos * 10 + u32::from(digit.checked_sub(b'0').filter(|d| *d < 10)?);
        }
        // −1.25 s is 2 s before, 0.75 s after.
        if whole.starts_with('-') && nanos > 0 {
            return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos));
        }
        Some((seconds, nanos))
    };
    parse().ok_or_else(|| damaged("a PAX time is damaged"))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
