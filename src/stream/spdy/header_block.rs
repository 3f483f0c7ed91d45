//! Names and values of a header block, and the form of empty ones.

use alloc::vec::Vec;

use super::dictionary;
use super::wire::SpdyError;

/// Headers of one stream.
const MAX_HEADERS: u32 = 32;
/// Window of 32 KiB, method deflate; a dictionary follows; both a multiple of 31.
const ZLIB_HEAD: [u8; 2] = [0x78, 0xbb];
/// An empty stored block: what zlib calls a sync flush. Go's reader hands data out only when it sees the end of a block.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// The headers that came with a stream.
#[derive(Clone, Copy, Debug)]
pub struct SpdyHeaders<'a> {
    block: &'a [u8],
}

impl<'a> SpdyHeaders<'a> {
    /// Takes a decompressed block.
    pub(super) const fn new(block: &'a [u8]) -> Self {
        Self { block }
    }

    /// The first value of `name`, which is written in lower case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        let (_, value) = self.iter().find(|(n, _)| *n == name.as_bytes())?;
        let first = value.split(|byte| *byte == 0).next().unwrap_or_default();
        core::str::from_utf8(first).ok()
    }

    fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.block.get(4..).unwrap_or_default();
        core::iter::from_fn(move || {
            let name = take_text(&mut rest)?;
            Some((name, take_text(&mut rest)?))
        })
    }

    /// Checks the block's form: as many headers as it says and no more, names in lower case, none twice.
    pub(super) fn check_form(&self) -> Result<(), SpdyError> {
        let mut rest = self.block;
        let count = take_number(&mut rest).ok_or(SpdyError::Headers("cut short"))?;
        if count > MAX_HEADERS {
            return Err(SpdyError::Headers("too many"));
        }
        for n in 0..count {
            let name = take_text(&mut rest).ok_or(SpdyError::Headers("cut short"))?;
            take_text(&mut rest).ok_or(SpdyError::Headers("cut short"))?;
            if name.is_empty() || name.iter().any(u8::is_ascii_uppercase) {
                return Err(SpdyError::Headers("an invalid name"));
            }
            let before = usize::try_from(n).unwrap_or(usize::MAX);
            if self.iter().take(before).any(|(other, _)| other == name) {
                return Err(SpdyError::Headers("a name twice"));
            }
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(SpdyError::Headers("more than they say"))
        }
    }
}

/// A block of these headers, each of which is there once: names in lower case.
pub(crate) fn encode_headers(headers: &[(&str, &str)]) -> Vec<u8> {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes();
    let mut plain = number(headers.len()).to_vec();
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        plain.extend_from_slice(&number(text.len()));
        plain.extend_from_slice(text.as_bytes());
    }
    plain
}

fn take_number(rest: &mut &[u8]) -> Option<u32> {
    let (number, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_be_bytes(*number))
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_number(rest)?).ok()?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(text)
}

/// Our compression context: stored blocks need no memory of earlier ones.
#[derive(Debug, Default)]
pub(crate) struct HeaderCompressor {
    begun: bool,
}

impl HeaderCompressor {
    /// A header block with `plain` (at most 64 KiB) in compressed form.
    pub(crate) fn compress_block(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(plain.len() + 16);
        if !self.begun {
            self.begun = true;
            out.extend_from_slice(&ZLIB_HEAD);
            out.extend_from_slice(&dictionary::ID.to_be_bytes());
        }
        let length = u16::try_from(plain.len()).unwrap_or(u16::MAX);
        out.push(0);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(plain);
        out.extend_from_slice(&FLUSH);
        out
    }
}
