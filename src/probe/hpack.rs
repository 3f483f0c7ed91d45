//! Header blocks of HTTP/2, read: as much as an answer to one call needs.
//!
//! The dynamic table is told away (`SETTINGS_HEADER_TABLE_SIZE` 0), so nothing is remembered between blocks. Of the static
//! table only the status codes are known by value; other names in it are of no interest. Source: RFC 7541.

/// Bytes of names and values taken out of one block.
const MAX_TEXT_BYTES: usize = 16 * 1024;
/// The entries of the static table that are status codes: from this one on.
const FIRST_STATUS: u64 = 8;
const STATUSES: [&str; 7] = ["200", "204", "206", "304", "400", "404", "500"];
/// Fields of one block that have a name; an answer has about six.
const MAX_FIELDS: usize = 100;
/// Entries of the static table.
const STATIC_ENTRIES: u64 = 61;

/// One field with a name.
pub(super) type Field = (Vec<u8>, Vec<u8>);

/// Reads a whole block; fields whose name is of no interest are left out. Errors: it is none.
pub(super) fn decode(block: &[u8]) -> Result<Vec<Field>, &'static str> {
    let mut input = Input { bytes: block };
    let mut fields = Vec::new();
    let mut total = 0;
    while let Some(&first) = input.bytes.first() {
        let field = if first & 0x80 != 0 {
            indexed(input.integer(7)?, true)?
        } else if first & 0x40 != 0 {
            // To be remembered; with a table of no size that means nothing.
            input.literal(6)?
        } else if first & 0x20 != 0 {
            if input.integer(5)? != 0 {
                return Err("a table larger than was offered");
            }
            continue;
        } else {
            input.literal(4)?
        };
        total += field.0.len() + field.1.len();
        if total > MAX_TEXT_BYTES {
            return Err("headers that are too long");
        }
        if field.0.is_empty() {
            continue;
        }
        if fields.len() >= MAX_FIELDS {
            return Err("too many headers");
        }
        fields.push(field);
    }
    Ok(fields)
}

fn indexed(index: u64, with_value: bool) -> Result<Field, &'static str> {
    if index == 0 || index > STATIC_ENTRIES {
        return Err("a reference to a header that was not sent");
    }
    let status = index.checked_sub(FIRST_STATUS);
    let status = status.and_then(|n| STATUSES.get(usize::try_from(n).ok()?));
    Ok(match status {
        Some(code) => {
            let value = if with_value { *code } else { "" };
            (b":status".to_vec(), value.into())
        }
        None => (Vec::new(), Vec::new()),
    })
}

struct Input<'a> {
    bytes: &'a [u8],
}

impl Input<'_> {
    fn byte(&mut self) -> Result<u8, &'static str> {
        let (first, rest) = self.bytes.split_first().ok_or("a header that is cut")?;
        self.bytes = rest;
        Ok(*first)
    }

    /// Section 5.1.
    fn integer(&mut self, prefix_bits: u32) -> Result<u64, &'static str> {
        let mask = (1_u8 << prefix_bits) - 1;
        let mut value = u64::from(self.byte()? & mask);
        if value < u64::from(mask) {
            return Ok(value);
        }
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value += u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number that is too large")
    }

    /// Section 5.2.
    fn text(&mut self) -> Result<Vec<u8>, &'static str> {
        let coded = self.bytes.first().is_some_and(|b| b & 0x80 != 0);
        let len = usize::try_from(self.integer(7)?).unwrap_or(usize::MAX);
        let bytes = self.bytes.get(..len).ok_or("a header that is cut")?;
        self.bytes = &self.bytes[len..];
        if coded {
            unpack(bytes)
        } else {
            Ok(bytes.to_vec())
        }
    }

    fn literal(&mut self, prefix_bits: u32) -> Result<Field, &'static str> {
        let index = self.integer(prefix_bits)?;
        let name = if index == 0 {
            self.text()?
        } else {
            indexed(index, false)?.0
        };
        Ok((name, self.text()?))
    }
}

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

/// How many bytes have a code of each length.
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

/// Undoes the Huffman code of appendix B. It is canonical: codes of one length follow each other, so that a code is found by
/// counting.
fn unpack(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
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
            return Err("a header in no code");
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
    // What is left is the beginning of the longest code, which is all ones.
    if bits > 7 || code != (1 << bits) - 1 {
        return Err("a header with a wrong end");
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let value = |pair: &[u8]| {
            let pair = core::str::from_utf8(pair).expect("digits");
            u8::from_str_radix(pair, 16).expect("a byte")
        };
        digits.chunks(2).map(value).collect()
    }

    #[test]
    fn examples_of_the_standard() {
        // RFC 7541 appendix C.2 and C.6.
        for (block, name, value) in [
            (
                "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
                "custom-key",
                "custom-header",
            ),
            (
                "1008 7061 7373 776f 7264 0673 6563 7265 74",
                "password",
                "secret",
            ),
            ("88", ":status", "200"),
            ("20 8e", ":status", "500"),
            ("4882 6402", ":status", "302"),
            ("4883 640e ff", ":status", "307"),
            (
                "40 88 25a8 49e9 5ba9 7d7f 89 25a8 49e9 5bb8 e8b4 bf",
                "custom-key",
                "custom-value",
            ),
        ] {
            let fields = decode(&hex(block)).expect(block);
            let text = |b: &[u8]| String::from_utf8(b.to_vec()).expect("text");
            let got: Vec<_> = fields.iter().map(|(n, v)| (text(n), text(v))).collect();
            assert_eq!(got, [(name.to_owned(), value.to_owned())], "{block}");
        }
        // By a name of the static table it is left out.
        let known = hex("6196 d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff");
        assert_eq!(decode(&known).expect("a date"), []);
        let date = hex("4004 6461 7465 96 d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff");
        let fields = decode(&date).expect("a date");
        assert_eq!(fields[0].1, b"Mon, 21 Oct 2013 20:13:21 GMT");
    }

    #[test]
    fn what_nobody_asks_for_is_not_kept() {
        let block = [0x81; 16 * 1024];
        assert_eq!(decode(&block).expect("a block").len(), 0);
        let named: Vec<u8> = (0..4096).flat_map(|_| [0, 1, b'a', 0]).collect();
        assert!(decode(&named).is_err(), "thousands of names");
        let few: Vec<u8> = (0..MAX_FIELDS).flat_map(|_| [0, 1, b'a', 0]).collect();
        assert_eq!(decode(&few).expect("a block").len(), MAX_FIELDS);
    }

    #[test]
    fn refused() {
        for block in [
            "80",
            "be",
            "ff 80 80 80 80 80 01",
            "40",
            "4005",
            "40 01 61 85 ffffffff ff",
            "3f e1 1f",
            "41 82 64",
        ] {
            assert!(decode(&hex(block)).is_err(), "{block}");
        }
        let long = [&hex("40 01 61 7f 81 7f")[..], &vec![b'x'; MAX_TEXT_BYTES]].concat();
        assert!(decode(&long).is_err());
    }

    #[test]
    fn no_block_makes_it_fall() {
        let mut seed = 7_u64;
        let mut byte = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed.to_be_bytes()[0]
        };
        for _ in 0..2000 {
            let len = byte() % 40;
            let block: Vec<u8> = (0..len).map(|_| byte()).collect();
            let _ = decode(&block);
        }
    }
}
