//! Writing of messages.

use super::{FIXED32, FIXED64, Form, LENGTH, Message, Numbers, Slot, VARINT};

/// Writes a message.
///
/// It is asked for its places as a reader asks, so that a table is one function; nothing of it changes.
pub fn encode(message: &mut dyn Message) -> Vec<u8> {
    let mut out = Vec::new();
    put_message(message, &mut out);
    out
}

fn put_message(message: &mut dyn Message, out: &mut Vec<u8>) {
    for &number in message.numbers() {
        match message.slot(number) {
            Some(Slot::Number(form, numbers)) => put_numbers(number, form, numbers, out),
            Some(Slot::Text(texts)) => {
                for at in 0..texts.count() {
                    let text = texts.bytes(at);
                    put_tag(number, LENGTH, out);
                    put_varint(length(text), out);
                    out.extend_from_slice(text);
                }
            }
            Some(Slot::Message(messages)) => {
                for at in 0..messages.count() {
                    if let Some(message) = messages.message(at) {
                        put_nested(number, message, out);
                    }
                }
            }
            Some(Slot::Map(entries)) => {
                entries.each(&mut |entry| put_nested(number, entry, out));
            }
            None => {}
        }
    }
}

fn put_nested(number: u32, message: &mut dyn Message, out: &mut Vec<u8>) {
    put_tag(number, LENGTH, out);
    let begin = out.len();
    put_message(message, out);
    put_length_before(begin, out);
}

fn put_numbers(number: u32, form: Form, numbers: &dyn Numbers, out: &mut Vec<u8>) {
    let count = numbers.count();
    if count == 0 {
        return;
    }
    if !numbers.is_list() {
        put_tag(number, form.wire(), out);
        return form.put(numbers.bits(0), out);
    }
    put_tag(number, LENGTH, out);
    let begin = out.len();
    for at in 0..count {
        form.put(numbers.bits(at), out);
    }
    put_length_before(begin, out);
}

/// Puts the length of the bytes since `begin` in front of them.
pub(super) fn put_length_before(begin: usize, out: &mut Vec<u8>) {
    let end = out.len();
    put_varint(length(&out[begin..]), out);
    let added = out.len() - end;
    out[begin..].rotate_right(added);
}

fn put_tag(number: u32, wire: u64, out: &mut Vec<u8>) {
    put_varint(u64::from(number) << 3 | wire, out);
}

fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(0x80 | (number & 0x7f).to_le_bytes()[0]);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

impl Form {
    pub(super) const fn wire(self) -> u64 {
        match self {
            Self::Varint | Self::Zigzag => VARINT,
            Self::Fixed32 => FIXED32,
            Self::Fixed64 => FIXED64,
        }
    }

    fn put(self, bits: u64, out: &mut Vec<u8>) {
        match self {
            Self::Varint => put_varint(bits, out),
            Self::Zigzag => {
                let sign = (bits.cast_signed() >> 63).cast_unsigned();
                put_varint(bits << 1 ^ sign, out);
            }
            Self::Fixed32 => out.extend(&bits.to_le_bytes()[..4]),
            Self::Fixed64 => out.extend(bits.to_le_bytes()),
        }
    }
}
