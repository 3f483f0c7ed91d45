//! Blocks of header fields, read and written: the static table, the dynamic one, and the Huffman code. Source: RFC 7541.
//!
//! What a block may come to is bounded by the caller; a table by what was offered for it. An error leaves reader and writer of
//! the connection with different tables: it ends the connection.

use std::{collections::VecDeque, sync::Arc};

use thiserror::Error;

/// Size of a table that is offered, in bytes: both sides begin with it.
pub const TABLE_BYTES: usize = 4096;
/// Bytes that an entry counts for beside its name and value. Section 4.1.
const ENTRY_BYTES: usize = 32;
/// Number of times that a block may change the size of the table. Section 4.2 has two in mind.
const MAX_RESIZES: usize = 4;

/// Name and value.
pub type HeaderField = (Vec<u8>, Vec<u8>);

/// Reason why bytes are no block of headers.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends too early.
    #[error("a header that is cut")]
    Cut,
    /// A number too large for its use.
    #[error("a number that is too large")]
    Number,
    /// An entry that is in no table.
    #[error("a reference to a header that was not sent")]
    Reference,
    /// A table larger than was offered, or resized at the wrong place.
    #[error("a table larger than was offered")]
    Resize,
    /// A text that is not in the Huffman code.
    #[error("a header in no code")]
    Code,
}

/// Entries of the dynamic table, the newest first. Those of one name may share it: a literal names an entry by two bytes, and
/// would copy a name as long as the table.
#[derive(Debug)]
struct DynamicTable {
    entries: VecDeque<(Arc<[u8]>, Vec<u8>)>,
    bytes: usize,
    max_bytes: usize,
}

impl DynamicTable {
    const fn new(max_bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            max_bytes,
        }
    }

    fn resize(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
        self.make_room(0);
    }

    /// Section 4.4. An entry larger than the table empties it, and that is no error.
    fn add_entry(&mut self, name: Arc<[u8]>, value: Vec<u8>) {
        let bytes = entry_bytes(&name, &value);
        self.make_room(bytes);
        if bytes <= self.max_bytes {
            self.bytes += bytes;
            self.entries.push_front((name, value));
        }
    }

    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > self.max_bytes
            && let Some((name, value)) = self.entries.pop_back()
        {
            self.bytes -= entry_bytes(&name, &value);
        }
    }
}

/// Bytes that a field counts for: in a table, and in a list of headers.
const fn entry_bytes(name: &[u8], value: &[u8]) -> usize {
    name.len() + value.len() + ENTRY_BYTES
}

/// Reads the blocks of one direction of a connection.
#[derive(Debug)]
pub struct HpackDecoder {
    table: DynamicTable,
}

impl Default for HpackDecoder {
    fn default() -> Self {
        Self {
            table: DynamicTable::new(TABLE_BYTES),
        }
    }
}

impl HpackDecoder {
    /// Reads a whole block: at most `max_bytes` of fields, each counted with 32 bytes beside its text. `None`: there are more.
    /// The table is as it should be then, so that the connection can go on.
    pub fn decode(
        &mut self,
        block: &[u8],
        max_bytes: usize,
    ) -> Result<Option<Vec<HeaderField>>, HpackError> {
        let mut input = HpackInput { bytes: block };
        let (mut fields, mut bytes, mut resizes) = (Vec::new(), 0, 0);
        while let Some(&first) = input.bytes.first() {
            // Nothing that an entry of a table says is copied before the limit has let it: a byte may stand for a whole table.
            if first & 0x80 != 0 {
                let (name, value) = self.table_entry(input.read_integer(7)?)?;
                bytes += entry_bytes(name, value);
                if bytes <= max_bytes {
                    fields.push((name.to_vec(), value.to_vec()));
                }
            } else if first & 0x60 == 0x20 {
                let size = usize::try_from(input.read_integer(5)?).unwrap_or(usize::MAX);
                resizes += 1;
                if size > TABLE_BYTES || bytes > 0 || resizes > MAX_RESIZES {
                    return Err(HpackError::Resize);
                }
                self.table.resize(size);
            } else {
                let is_kept = first & 0x40 != 0;
                let (name, value) = self.read_literal(&mut input, if is_kept { 6 } else { 4 })?;
                bytes += entry_bytes(&name, &value);
                if bytes <= max_bytes {
                    fields.push((name.to_vec(), value.clone()));
                }
                if is_kept {
                    self.table.add_entry(name, value);
                }
            }
        }
        Ok((bytes <= max_bytes).then_some(fields))
    }

    fn table_entry(&self, index: u64) -> Result<(&[u8], &[u8]), HpackError> {
        let place = usize::try_from(index).map_err(|_| HpackError::Number)?;
        let place = place.checked_sub(1).ok_or(HpackError::Reference)?;
        if let Some((name, value)) = STATIC.get(place) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let (name, value) = self.dynamic_entry(index).ok_or(HpackError::Reference)?;
        Ok((name, value))
    }

    /// The entry of the dynamic table that is meant by this number, if it is one of these.
    fn dynamic_entry(&self, index: u64) -> Option<&(Arc<[u8]>, Vec<u8>)> {
        let place = usize::try_from(index).ok()?.checked_sub(1 + STATIC.len())?;
        self.table.entries.get(place)
    }

    fn read_literal(
        &self,
        input: &mut HpackInput<'_>,
        prefix_bits: u32,
    ) -> Result<(Arc<[u8]>, Vec<u8>), HpackError> {
        let index = input.read_integer(prefix_bits)?;
        let name = match self.dynamic_entry(index) {
            Some((name, _)) => Arc::clone(name),
            None if index == 0 => input.read_text()?.into(),
            None => self.table_entry(index)?.0.into(),
        };
        Ok((name, input.read_text()?))
    }
}

struct HpackInput<'a> {
    bytes: &'a [u8],
}

impl HpackInput<'_> {
    fn read_byte(&mut self) -> Result<u8, HpackError> {
        let (first, rest) = self.bytes.split_first().ok_or(HpackError::Cut)?;
        self.bytes = rest;
        Ok(*first)
    }

    /// Section 5.1.
    fn read_integer(&mut self, prefix_bits: u32) -> Result<u64, HpackError> {
        let mask = (1_u8 << prefix_bits) - 1;
        let mut value = u64::from(self.read_byte()? & mask);
        if value < u64::from(mask) {
            return Ok(value);
        }
        for shift in (0..35).step_by(7) {
            let byte = self.read_byte()?;
            value += u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(HpackError::Number)
    }

    /// Section 5.2.
    fn read_text(&mut self) -> Result<Vec<u8>, HpackError> {
        let coded = self.bytes.first().is_some_and(|b| b & 0x80 != 0);
        let len = usize::try_from(self.read_integer(7)?).unwrap_or(usize::MAX);
        let (text, rest) = self.bytes.split_at_checked(len).ok_or(HpackError::Cut)?;
        self.bytes = rest;
        if coded {
            decode_huffman(text)
        } else {
            Ok(text.to_vec())
        }
    }
}

/// Writes the blocks of one direction of a connection.
#[derive(Debug)]
pub struct HpackEncoder {
    table: DynamicTable,
    /// The smallest size that the reader has asked for since the last block, if any.
    resized: Option<usize>,
}

impl Default for HpackEncoder {
    fn default() -> Self {
        Self {
            table: DynamicTable::new(TABLE_BYTES),
            resized: None,
        }
    }
}

impl HpackEncoder {
    /// The reader offers a table of so many bytes; no more than [`TABLE_BYTES`] of it are used.
    pub fn resize(&mut self, max_bytes: usize) {
        let max_bytes = max_bytes.min(TABLE_BYTES);
        if max_bytes != self.table.max_bytes {
            self.resized = Some(self.resized.map_or(max_bytes, |least| least.min(max_bytes)));
            self.table.resize(max_bytes);
        }
    }

    /// Appends a block. All fields are remembered, but for those that hold secrets and those that are too large for it.
    pub fn encode<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) {
        if let Some(least) = self.resized.take() {
            // Both, if it shrank and grew again: what the smaller one drove out is gone.
            if least != self.table.max_bytes {
                put_integer(out, 0x20, 5, least);
            }
            put_integer(out, 0x20, 5, self.table.max_bytes);
        }
        for (name, value) in fields {
            self.put_field(name, value, out);
        }
    }

    fn put_field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let fixed = STATIC.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes()));
        let added = self.table.entries.iter();
        let known = fixed.chain(added.map(|(n, v)| (&**n, v.as_slice())));
        let mut named = 0;
        for (index, (n, v)) in (1..).zip(known) {
            if n == name && v == value {
                return put_integer(out, 0x80, 7, index);
            }
            if n == name && named == 0 {
                named = index;
            }
        }
        let is_secret = name == b"authorization";
        // Half the table for one entry would drive the useful ones out.
        let is_kept = !is_secret && entry_bytes(name, value) <= self.table.max_bytes / 2;
        if is_kept {
            put_integer(out, 0x40, 6, named);
        } else {
            put_integer(out, if is_secret { 0x10 } else { 0 }, 4, named);
        }
        if named == 0 {
            put_text(out, name);
        }
        put_text(out, value);
        if is_kept {
            self.table.add_entry(name.into(), value.to_vec());
        }
    }
}

fn put_integer(out: &mut Vec<u8>, mark: u8, prefix_bits: u32, value: usize) {
    let mask = (1_u8 << prefix_bits) - 1;
    match u8::try_from(value) {
        Ok(value) if value < mask => out.push(mark | value),
        _ => {
            out.push(mark | mask);
            let mut rest = value - usize::from(mask);
            while rest >= 0x80 {
                out.push(0x80 | (rest & 0x7f).to_le_bytes()[0]);
                rest >>= 7;
            }
            out.push(rest.to_le_bytes()[0]);
        }
    }
}

/// Writes a text, in the Huffman code where that is shorter.
fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    let bits: usize = text
        .iter()
        .map(|byte| usize::from(CODE_BITS[usize::from(*byte)]))
        .sum();
    let coded_bytes = bits.div_ceil(8);
    if coded_bytes >= text.len() {
        put_integer(out, 0, 7, text.len());
        out.extend_from_slice(text);
        return;
    }
    put_integer(out, 0x80, 7, coded_bytes);
    // At most 7 bits of bytes before, and a code.
    let (mut held, mut len) = (0_u64, 0);
    for byte in text {
        let bits = CODE_BITS[usize::from(*byte)];
        held = held << bits | u64::from(CODE[usize::from(*byte)]);
        len += bits;
        while len >= 8 {
            len -= 8;
            out.push((held >> len).to_le_bytes()[0]);
        }
    }
    if len > 0 {
        // Filled up with ones: the beginning of the longest code.
        out.push((held << (8 - len) | 0xff >> len).to_le_bytes()[0]);
    }
}

/// Appendix A.
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// Lengths of the codes of all bytes, in bits. The codes follow from them: in order of length, then of the byte.
const CODE_BITS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, //
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, //
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, //
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, //
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, //
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, //
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, //
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, //
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, //
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, //
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, //
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, //
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, //
];
const LONGEST_CODE_BITS: u8 = 30;

/// Number of bytes that have a code of each length.
const CODES: [u32; 31] = {
    let mut codes = [0; 31];
    let mut byte = 0;
    while byte < CODE_BITS.len() {
        codes[CODE_BITS[byte] as usize] += 1;
        byte += 1;
    }
    codes
};

/// All bytes in the order of their codes.
const BY_CODE: [u8; 256] = {
    let mut order = [0; 256];
    let (mut at, mut bits) = (0, 0);
    while bits <= LONGEST_CODE_BITS {
        let mut byte = 0;
        while byte < CODE_BITS.len() {
            if CODE_BITS[byte] == bits {
                order[at] = byte.to_le_bytes()[0];
                at += 1;
            }
            byte += 1;
        }
        bits += 1;
    }
    order
};

/// The code of each byte, in its lowest bits.
const CODE: [u32; 256] = {
    let mut all = [0; 256];
    let (mut at, mut code, mut bits) = (0, 0, 0);
    while bits <= LONGEST_CODE_BITS {
        let mut n = 0;
        while n < CODES[bits as usize] {
            all[BY_CODE[at] as usize] = code;
            code += 1;
            at += 1;
            n += 1;
        }
        code <<= 1;
        bits += 1;
    }
    all
};

/// Undoes the Huffman code of appendix B. It is canonical: codes of one length follow each other, so that a code is found by
/// counting.
fn decode_huffman(bytes: &[u8]) -> Result<Vec<u8>, HpackError> {
    let mut out = Vec::new();
    let (mut code, mut bits) = (0_u32, 0_u8);
    // First code of the current length, as far as it is known, and the place of its byte.
    let (mut first, mut place) = (0_u32, 0_u32);
    for bit in bytes
        .iter()
        .flat_map(|b| (0..8).rev().map(move |n| (b >> n) & 1))
    {
        code = (code << 1) | u32::from(bit);
        bits += 1;
        first <<= 1;
        if bits > LONGEST_CODE_BITS {
            return Err(HpackError::Code);
        }
        let count = CODES[usize::from(bits)];
        if code.wrapping_sub(first) < count {
            let at = usize::try_from(place + (code - first)).ok();
            out.extend(at.and_then(|at| BY_CODE.get(at)));
            (code, bits, first, place) = (0, 0, 0, 0);
        } else {
            first += count;
            place += count;
        }
    }
    // The remaining bits must be the beginning of the longest code, which is all ones.
    if bits > 7 || code != (1 << bits) - 1 {
        return Err(HpackError::Code);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limit that no block here reaches.
    const MAX_BYTES: usize = 64 * 1024;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let value = |pair: &[u8]| {
            let pair = core::str::from_utf8(pair).expect("digits");
            u8::from_str_radix(pair, 16).expect("a byte")
        };
        digits.chunks(2).map(value).collect()
    }

    fn texts(fields: &[HeaderField]) -> Vec<(&str, &str)> {
        let text = |bytes| core::str::from_utf8(bytes).expect("text");
        fields.iter().map(|(n, v)| (text(n), text(v))).collect()
    }

    fn bytes<'a>(fields: &'a [(&str, &str)]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes()))
    }

    #[test]
    fn single_examples_of_the_standard() {
        // RFC 7541 appendix C.2 and C.6.
        for (block, name, value) in [
            (
                "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
                "custom-key",
                "custom-header",
            ),
            (
                "040c 2f73 616d 706c 652f 7061 7468",
                ":path",
                "/sample/path",
            ),
            (
                "1008 7061 7373 776f 7264 0673 6563 7265 74",
                "password",
                "secret",
            ),
            ("82", ":method", "GET"),
            ("88", ":status", "200"),
            ("20 8e", ":status", "500"),
            ("4882 6402", ":status", "302"),
            ("4883 640e ff", ":status", "307"),
            (
                "40 88 25a8 49e9 5ba9 7d7f 89 25a8 49e9 5bb8 e8b4 bf",
                "custom-key",
                "custom-value",
            ),
            (
                "6196 d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff",
                "date",
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
        ] {
            let fields = HpackDecoder::default().decode(&hex(block), MAX_BYTES);
            let fields = fields.expect(block).expect("short");
            assert_eq!(texts(&fields), [(name, value)], "{block}");
        }
    }

    #[test]
    fn requests_of_the_standard() {
        // Appendix C.4: three requests on one connection.
        let (mut decoder, mut encoder) = (HpackDecoder::default(), HpackEncoder::default());
        let first = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
        ];
        let second = [&first[..], &[("cache-control", "no-cache")]].concat();
        let third = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ];
        for (fields, block, entries, table_bytes) in [
            (
                &first[..],
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                1,
                57,
            ),
            (&second, "8286 84be 5886 a8eb 1064 9cbf", 2, 110),
            (
                &third,
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
                3,
                164,
            ),
        ] {
            let block = hex(block);
            let read = decoder.decode(&block, MAX_BYTES).expect("a block");
            assert_eq!(texts(&read.expect("short")), fields);
            let mut written = Vec::new();
            encoder.encode(bytes(fields), &mut written);
            assert_eq!(written, block);
            for table in [&decoder.table, &encoder.table] {
                assert_eq!((table.entries.len(), table.bytes), (entries, table_bytes));
            }
        }
    }

    #[test]
    fn answers_of_the_standard() {
        // Appendix C.6: a table of 256 bytes, in which entries drive others out.
        let mut decoder = HpackDecoder::default();
        decoder.table.resize(256);
        let date = "Mon, 21 Oct 2013 20:13:21 GMT";
        let location = "https://www.example.com";
        let cookie = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
        for (block, fields, table_bytes) in [
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b \
                 97c8 e9ae 82ae 43d3",
                &[
                    (":status", "302"),
                    ("cache-control", "private"),
                    ("date", date),
                    ("location", location),
                ][..],
                222,
            ),
            (
                "4883 640e ffc1 c0bf",
                &[
                    (":status", "307"),
                    ("cache-control", "private"),
                    ("date", date),
                    ("location", location),
                ],
                222,
            ),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf \
                 cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                &[
                    (":status", "200"),
                    ("cache-control", "private"),
                    ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
                    ("location", location),
                    ("content-encoding", "gzip"),
                    ("set-cookie", cookie),
                ],
                215,
            ),
        ] {
            let read = decoder.decode(&hex(block), MAX_BYTES).expect("a block");
            assert_eq!(texts(&read.expect("short")), fields);
            assert_eq!(decoder.table.bytes, table_bytes);
        }
    }

    #[test]
    fn a_table_that_changes_its_size() {
        let (mut decoder, mut encoder) = (HpackDecoder::default(), HpackEncoder::default());
        let fields = [("a", "1"), ("authorization", "Bearer x"), ("b", "2")];
        let mut pass = |encoder: &mut HpackEncoder| {
            let mut block = Vec::new();
            encoder.encode(bytes(&fields), &mut block);
            let read = decoder.decode(&block, MAX_BYTES).expect("a block");
            assert_eq!(texts(&read.expect("short")), fields);
            assert_eq!(decoder.table.entries, encoder.table.entries);
            block.len()
        };
        let first = pass(&mut encoder);
        assert!(pass(&mut encoder) < first, "remembered");
        assert_eq!(encoder.table.entries.len(), 2, "the secret is not");
        encoder.resize(0);
        encoder.resize(1 << 20);
        assert_eq!(pass(&mut encoder), first + 4, "forgotten, and told twice");
        encoder.resize(0);
        pass(&mut encoder);
        assert!(encoder.table.entries.is_empty());
    }

    #[test]
    fn bombs() {
        // A large entry, and a byte for each time that it is meant.
        let value = [b'x'; 3000];
        let mut block = vec![0x40, 1, b'a'];
        put_integer(&mut block, 0, 7, value.len());
        block.extend(value);
        block.extend([0xbe; 16 * 1024]);
        let mut decoder = HpackDecoder::default();
        assert_eq!(decoder.decode(&block, MAX_BYTES), Ok(None));
        // The entries that the block added to the table stay there.
        let next = decoder.decode(&[0xbe], MAX_BYTES).expect("a block");
        assert_eq!(next.expect("short"), [(b"a".to_vec(), value.to_vec())]);
        // Many entries stay within the table; many fields without text are too many.
        let named: Vec<u8> = (0..4096).flat_map(|_| [0x40, 1, b'a', 0]).collect();
        assert_eq!(decoder.decode(&named, MAX_BYTES), Ok(None));
        assert!(decoder.table.bytes <= TABLE_BYTES);
        assert_eq!(decoder.table.entries.len(), TABLE_BYTES / 33);
        assert_eq!(
            decoder.decode(&[0x20; 5], MAX_BYTES),
            Err(HpackError::Resize)
        );
    }

    #[test]
    fn names_of_the_table_are_not_copied_again() {
        let name = [b'n'; 1000];
        let mut named = vec![0x40];
        put_integer(&mut named, 0, 7, name.len());
        named.extend(name);
        named.push(0);
        let mut decoder = HpackDecoder::default();
        decoder.decode(&named, MAX_BYTES).expect("a block");
        let made = decoder.table.entries[0].0.clone();
        // A few bytes each name the newest entry: kept in the table, and not.
        for literal in [&[0x7e, 0][..], &[0x0f, 62 - 15, 0]] {
            let block = literal.repeat(4000);
            assert_eq!(decoder.decode(&block, MAX_BYTES), Ok(None));
            let block = literal.repeat(2);
            let fields = decoder.decode(&block, MAX_BYTES).expect("a block");
            let one = (name.to_vec(), Vec::new());
            assert_eq!(fields.expect("short"), [one.clone(), one]);
            for (shared, _) in &decoder.table.entries {
                assert!(Arc::ptr_eq(shared, &made));
            }
            let kept = decoder.table.entries.len();
            assert_eq!(Arc::strong_count(&made), kept + 1, "nothing else has it");
        }
    }

    #[test]
    fn refused() {
        for (block, why) in [
            ("80", HpackError::Reference),
            ("be", HpackError::Reference),
            ("7e 00", HpackError::Reference),
            ("ff 80 80 80 80 80 01", HpackError::Number),
            ("40", HpackError::Cut),
            ("4005", HpackError::Cut),
            ("40 01 61 85 ffffffff ff", HpackError::Code),
            ("40 01 61 81 00", HpackError::Code),
            ("3f e2 1f", HpackError::Resize),
            ("82 20", HpackError::Resize),
            ("41 82 64", HpackError::Cut),
        ] {
            let read = HpackDecoder::default().decode(&hex(block), MAX_BYTES);
            assert_eq!(read, Err(why), "{block}");
        }
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        for text in [&all[..], b"", &[0xff; 200], &[b'e'; 200]] {
            let mut block = vec![0, 1, b'n'];
            put_text(&mut block, text);
            let read = HpackDecoder::default().decode(&block, MAX_BYTES);
            assert_eq!(read.expect("a block").expect("short")[0].1, text);
        }
        for value in [0, 30, 31, 127, 128, 1337, 1 << 20] {
            let mut out = Vec::new();
            put_integer(&mut out, 0, 5, value);
            let read = HpackInput { bytes: &out }.read_integer(5);
            assert_eq!(read.ok(), u64::try_from(value).ok());
        }
    }

    #[test]
    fn no_block_makes_it_fall() {
        let mut seed = 7_u64;
        let mut byte = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed.to_be_bytes()[0]
        };
        let mut decoder = HpackDecoder::default();
        for _ in 0..2000 {
            let len = byte() % 40;
            let block: Vec<u8> = (0..len).map(|_| byte()).collect();
            let _ = decoder.decode(&block, MAX_BYTES);
            assert!(decoder.table.bytes <= TABLE_BYTES);
        }
    }
}
