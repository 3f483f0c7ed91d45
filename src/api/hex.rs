//! Bytes as text.

use alloc::string::String;
use core::fmt::Write as _;

/// Two lower-case hexadecimal digits for each byte.
#[must_use]
pub fn encode_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // A string takes all.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_digits_a_byte() {
        assert_eq!(super::encode_hex(&[0, 0x0f, 0xa0, 0xff]), "000fa0ff");
        assert_eq!(super::encode_hex(&[]), "");
    }
}
