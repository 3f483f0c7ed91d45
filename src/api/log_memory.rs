//! The end of a container's log that its shim holds in memory (WEAR-05): a header, then records as they are in the log's file.
//!
//! ```text
//! file     |aaaaaaaaaaaa|            the shim appends what it holds to the file, and removes what it held
//! memory                |bbbbbbbb|   `begins`: where in the file the first of these bytes will be
//! ```
//!
//! A reader reads the file to its end, and what is beyond that from here. While the shim appends, both say the same.

/// Bytes of the header.
pub const HEADER_BYTES: usize = 40;
/// First bytes of the header; the last one is the version.
const MAGIC: [u8; 8] = *b"picolog\x01";

/// Header of the records that follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMemoryHeader {
    /// Device and inode of the file that they belong to.
    pub file: (u64, u64),
    /// Place of the first record in that file. Negative: the file was begun anew, and some records are in the file
    /// before.
    pub begins: i64,
    /// Bytes of older records that this shim gave up: neither memory nor disk had room.
    pub lost: u64,
}

impl LogMemoryHeader {
    /// As it stands in the file.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let words = [
            MAGIC,
            self.file.0.to_le_bytes(),
            self.file.1.to_le_bytes(),
            self.begins.to_le_bytes(),
            self.lost.to_le_bytes(),
        ];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word);
        }
        out
    }

    /// Reads a header that [`Self::encode`] wrote; `None` for anything else, or a later version.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |n: usize| -> [u8; 8] {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[n * 8..n * 8 + 8]);
            word
        };
        (word(0) == MAGIC).then(|| Self {
            file: (u64::from_le_bytes(word(1)), u64::from_le_bytes(word(2))),
            begins: i64::from_le_bytes(word(3)),
            lost: u64::from_le_bytes(word(4)),
        })
    }

    /// Place in these records of the byte that will be at `at` in `file`; `None` if they do not have it.
    #[must_use]
    pub fn record_offset(&self, file: (u64, u64), at: u64) -> Option<u64> {
        let at = i64::try_from(at).ok()?;
        let offset = at.checked_sub(self.begins)?;
        u64::try_from(offset).ok().filter(|_| self.file == file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        // WEAR-05
        let header = LogMemoryHeader {
            file: (1, u64::MAX),
            begins: -9,
            lost: 7,
        };
        let mut bytes = header.encode();
        assert_eq!(LogMemoryHeader::decode(&bytes), Some(header));
        assert_eq!(header.record_offset((1, u64::MAX), 0), Some(9));
        assert_eq!(header.record_offset((1, 2), 0), None, "of another file");
        let later = LogMemoryHeader {
            begins: 5,
            ..header
        };
        assert_eq!(
            later.record_offset((1, u64::MAX), 4),
            None,
            "it is in the file"
        );
        bytes[7] = 2;
        assert_eq!(LogMemoryHeader::decode(&bytes), None, "of a later version");
    }
}
