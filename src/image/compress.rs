//! Decompression by the first bytes of a stream, not by its name or media type.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Largest zstd window taken, bytes. Encoders at their usual levels stay at 8 MiB; this much memory is needed twice.
pub const MAX_ZSTD_WINDOW_BYTES: u64 = 32 * 1024 * 1024;
/// Read buffer in front of a decoder, bytes.
const BUFFER_BYTES: usize = 64 * 1024;
/// Bytes looked at to tell the coding.
const MAGIC_BYTES: usize = 6;

/// Compression of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamCompression {
    /// No compression.
    Plain,
    /// gzip, any number of members.
    Gzip,
    /// zstd, any number of frames, skippable ones included.
    Zstd,
}

/// Tells the coding from the first bytes. Errors: a coding that is known by sight and not supported.
pub(super) fn detect_compression(head: &[u8]) -> io::Result<StreamCompression> {
    let unsupported = |what: &str| {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{what} compression is not supported: use gzip or zstd"),
        ))
    };
    match head {
        [0x1f, 0x8b, ..] => Ok(StreamCompression::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(StreamCompression::Zstd),
        [skip, 0x2a, 0x4d, 0x18, ..] if skip >> 4 == 5 => Ok(StreamCompression::Zstd),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => unsupported("xz"),
        [b'B', b'Z', b'h', digit, ..] if digit.is_ascii_digit() => unsupported("bzip2"),
        [0x04, 0x22, 0x4d, 0x18, ..] => unsupported("lz4"),
        _ => Ok(StreamCompression::Plain),
    }
}

/// Wraps `input` in the decoder it needs.
pub(super) fn open_decoder<'a>(
    mut input: impl Read + 'a,
) -> io::Result<(StreamCompression, Box<dyn Read + 'a>)> {
    let mut head = [0; MAGIC_BYTES];
    let n = read_up_to(&mut input, &mut head)?;
    let coding = detect_compression(&head[..n])?;
    let input = BufReader::with_capacity(
        BUFFER_BYTES,
        io::Cursor::new(head).take(n as u64).chain(input),
    );
    Ok((
        coding,
        match coding {
            StreamCompression::Plain => Box::new(input),
            StreamCompression::Gzip => Box::new(MultiGzDecoder::new(input)),
            StreamCompression::Zstd => Box::new(ZstdDecoder::new(input)),
        },
    ))
}

/// Reads until `buf` is full or the input ends.
pub(super) fn read_up_to(input: &mut dyn Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buf.len() {
        match input.read(&mut buf[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

/// Decodes frame after frame. The crate's own streaming decoder stops after the first.
struct ZstdDecoder<R> {
    input: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdDecoder<R> {
    fn new(input: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_ZSTD_WINDOW_BYTES);
        Self {
            input,
            decoder,
            in_frame: false,
        }
    }

    /// Starts the next frame. `false` at the end of the input.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.input) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut self.input.by_ref().take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(decode_error(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for ZstdDecoder<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.in_frame = true;
            }
            while self.decoder.can_collect() < buf.len() && !self.decoder.is_finished() {
                let more = buf.len() - self.decoder.can_collect();
                self.decoder
                    .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBytes(more))
                    .map_err(decode_error)?;
            }
            let n = self.decoder.read(buf)?;
            if n > 0 {
                return Ok(n);
            }
            self.in_frame = false;
        }
    }
}

/// Finds the end of the input among the causes, so that a cut archive is told from a damaged one.
fn decode_error(error: FrameDecoderError) -> io::Error {
    let mut cause: Option<&(dyn core::error::Error + 'static)> = Some(&error);
    while let Some(at) = cause {
        if let Some(io) = at.downcast_ref::<io::Error>() {
            return io::Error::new(io.kind(), error.to_string());
        }
        cause = at.source();
    }
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).expect("memory");
        encoder.finish().expect("memory")
    }

    fn zstd(data: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn decode(data: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        open_decoder(data)?.1.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn decodes() {
        let long = vec![b'x'; 300_000];
        let mut skippable = vec![0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        skippable.extend(zstd(b"ab"));
        skippable.extend([0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]);
        skippable.extend(zstd(b"cd"));
        for (name, input, want) in [
            ("nothing", Vec::new(), Vec::new()),
            ("plain", b"abc".to_vec(), b"abc".to_vec()),
            ("gzip", gzip(&long), long.clone()),
            (
                "two members",
                [gzip(b"ab"), gzip(b"cd")].concat(),
                b"abcd".to_vec(),
            ),
            ("zstd", zstd(&long), long.clone()),
            ("frames, some skippable", skippable, b"abcd".to_vec()),
        ] {
            assert!(decode(&input).expect(name) == want, "{name}");
        }
    }

    #[test]
    fn refuses() {
        let zstd = zstd(&vec![7; 5000]);
        let gzip = gzip(&vec![7; 5000]);
        // A frame whose window is 1 GiB: exponent 20, mantissa 0.
        let huge = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 20 << 3, 0, 0, 0];
        for (name, input, kind) in [
            (
                "cut zstd",
                &zstd[..zstd.len() - 3],
                io::ErrorKind::UnexpectedEof,
            ),
            (
                "cut gzip",
                &gzip[..gzip.len() - 3],
                io::ErrorKind::UnexpectedEof,
            ),
            ("huge window", &huge[..], io::ErrorKind::InvalidData),
            ("xz", b"\xfd7zXZ\0", io::ErrorKind::Unsupported),
            ("bzip2", b"BZh91AY", io::ErrorKind::Unsupported),
            ("lz4", b"\x04\x22\x4d\x18aa", io::ErrorKind::Unsupported),
        ] {
            assert_eq!(decode(input).expect_err(name).kind(), kind, "{name}");
        }
    }
}
