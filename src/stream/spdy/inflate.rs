//! Decompression of header blocks: one zlib stream for the life of a connection, cut at frames.
//!
//! The crate behind it has no preset dictionaries; a window that begins with the dictionary is one. The window starts small:
//! a stream's headers are some 60 bytes, and only a connection with hundreds of streams can refer back 32 KiB.

use alloc::boxed::Box;
use alloc::vec::Vec;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, TINFL_LZ_DICT_SIZE, decompress};

use super::dictionary;
use super::wire::SpdyError;

/// Longest header block, decompressed.
pub(super) const MAX_BLOCK_BYTES: usize = 4 * 1024;
/// The window at first.
const FIRST_WINDOW_BYTES: usize = 4 * 1024;
const _: () =
    assert!(FIRST_WINDOW_BYTES > dictionary::BYTES && FIRST_WINDOW_BYTES.is_power_of_two());
const _: () = assert!(
    size_of::<DecompressorOxide>() <= 12 * 1024,
    "one per connection"
);
/// Compression method and flags, then the dictionary's name.
const ZLIB_HEAD_BYTES: usize = 6;

/// The peer's compression context.
pub(crate) struct HeaderDecompressor {
    state: Box<DecompressorOxide>,
    window: Vec<u8>,
    /// Index in the window at which the next byte goes.
    at: usize,
    /// The window is full and has begun again.
    wrapped: bool,
    head: [u8; ZLIB_HEAD_BYTES],
    head_len: usize,
}

impl HeaderDecompressor {
    pub(crate) fn new() -> Self {
        let mut window: Vec<u8> = dictionary::dictionary_bytes().collect();
        window.resize(FIRST_WINDOW_BYTES, 0);
        Self {
            state: Box::default(),
            window,
            at: dictionary::BYTES,
            wrapped: false,
            head: [0; ZLIB_HEAD_BYTES],
            head_len: 0,
        }
    }

    /// Appends to `block` what `input` holds. All of `input` is used.
    pub(crate) fn decompress_into(
        &mut self,
        input: &[u8],
        block: &mut Vec<u8>,
    ) -> Result<(), SpdyError> {
        let mut input = self.take_zlib_head(input)?;
        if self.head_len < ZLIB_HEAD_BYTES {
            return Ok(());
        }
        loop {
            if self.at == self.window.len() {
                self.advance_window();
            }
            let mut flags = TINFL_FLAG_HAS_MORE_INPUT;
            if !self.wrapped {
                // The window's end is empty yet: a match that reaches there is refused.
                flags |= TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
            }
            let (status, used, made) =
                decompress(&mut self.state, input, &mut self.window, self.at, flags);
            let made = self.window.get(self.at..self.at + made).unwrap_or_default();
            if block.len() + made.len() > MAX_BLOCK_BYTES {
                return Err(SpdyError::Headers("too long"));
            }
            block.extend_from_slice(made);
            self.at += made.len();
            input = input.get(used..).unwrap_or_default();
            #[expect(clippy::wildcard_enum_match_arm, reason = "all else is a failure")]
            match status {
                TINFLStatus::NeedsMoreInput if input.is_empty() => return Ok(()),
                TINFLStatus::HasMoreOutput => {}
                _ => return Err(SpdyError::Headers("not compressed as they should be")),
            }
        }
    }

    /// Reads the head of the zlib stream, once; returns the bytes behind it.
    fn take_zlib_head<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], SpdyError> {
        let n = input.len().min(ZLIB_HEAD_BYTES - self.head_len);
        if n == 0 {
            return Ok(input);
        }
        let (now, rest) = input.split_at(n);
        self.head[self.head_len..self.head_len + n].copy_from_slice(now);
        self.head_len += n;
        if self.head_len == ZLIB_HEAD_BYTES {
            let [method, flags, a, b, c, d] = self.head;
            let deflate = method & 0x0f == 8 && method >> 4 <= 7;
            let checked = u16::from_be_bytes([method, flags]) % 31 == 0;
            let named = flags & 0x20 != 0 && u32::from_be_bytes([a, b, c, d]) == dictionary::ID;
            if !(deflate && checked && named) {
                return Err(SpdyError::Headers("not compressed with SPDY's dictionary"));
            }
        }
        Ok(rest)
    }

    fn advance_window(&mut self) {
        if self.window.len() < TINFL_LZ_DICT_SIZE {
            self.window.resize(self.window.len() * 2, 0);
        } else {
            (self.at, self.wrapped) = (0, true);
        }
    }
}

impl core::fmt::Debug for HeaderDecompressor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inflate")
            .field("window", &self.window.len())
            .finish_non_exhaustive()
    }
}
