//! The body of an answer as plain bytes: unpacked, read to its end.

use std::io::{self, BufReader, Read};

use flate2::bufread::GzDecoder;

/// Buffer of packed bytes.
const PACKED_BUFFER_BYTES: usize = 4 * 1024;

/// Unpacked bytes of an answer. After their end the connection can be used again.
///
/// - Errors: `UnexpectedEof` if the packed stream ends early, `InvalidData` if something follows it.
pub(super) enum UnpackedBody<R> {
    /// Body as it was sent.
    Plain(R),
    /// `content-encoding: gzip`
    Packed(Box<GzDecoder<BufReader<R>>>),
}

/// Error of an answer that is packed in a way that was not asked for.
#[derive(Debug, thiserror::Error)]
#[error("its encoding is {0:?}")]
pub(super) struct UnknownEncoding(String);

impl<R: Read> UnpackedBody<R> {
    /// `encoding`: the header.
    pub(super) fn new(bytes: R, encoding: Option<&str>) -> Result<Self, UnknownEncoding> {
        match encoding {
            None | Some("" | "identity") => Ok(Self::Plain(bytes)),
            Some(name) if name.eq_ignore_ascii_case("gzip") => {
                let buffer = BufReader::with_capacity(PACKED_BUFFER_BYTES, bytes);
                Ok(Self::Packed(Box::new(GzDecoder::new(buffer))))
            }
            Some(other) => Err(UnknownEncoding(other.into())),
        }
    }
}

impl<R: Read> Read for UnpackedBody<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(bytes) => bytes.read(buf),
            Self::Packed(unpacked) => {
                let n = unpacked.read(buf)?;
                if n == 0 && !buf.is_empty() && unpacked.get_mut().read(&mut [0])? != 0 {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "there is more data after its compressed body",
                    ));
                }
                Ok(n)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::testing::gzip;

    fn all(bytes: &[u8], encoding: Option<&str>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        UnpackedBody::new(bytes, encoding)
            .map_err(io::Error::other)?
            .read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn packed_whole_and_half() {
        let text = b"pods ".repeat(10_000);
        let packed = gzip(&text);
        assert_eq!(all(&text, None).expect("plain"), text);
        assert_eq!(all(&packed, Some("gzip")).expect("packed"), text);
        for end in [0, 1, 9, packed.len() / 2, packed.len() - 1] {
            let error = all(&packed[..end], Some("GZIP")).expect_err("half");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{end}");
        }
        let mut spoiled = packed.clone();
        let last = spoiled.len() - 6;
        spoiled[last] ^= 1;
        assert!(all(&spoiled, Some("gzip")).is_err());
        assert!(all(&[&packed[..], b"x"].concat(), Some("gzip")).is_err());
        assert!(all(&packed, Some("br")).is_err());
    }
}
