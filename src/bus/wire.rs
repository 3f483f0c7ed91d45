//! Messages of D-Bus, as far as this client sends and reads them. Little-endian: a bus and its clients are of one machine.
//!
//! Source: D-Bus specification, "Marshaling" and "Message Protocol".

use super::BusError;

/// Longest header, and longest body, of a message that is taken in, bytes each. Answers are far shorter. systemd's
/// signals about units may be longer than answers, but none near this limit was ever seen.
pub(super) const MAX_PART: usize = 1 << 20;
/// Bytes of the part of a header that every message has: four bytes, length of the body, serial, length of the fields.
pub(super) const FIXED: usize = 16;

const CALL: u8 = 1;
pub(super) const RETURN: u8 = 2;
pub(super) const ERROR: u8 = 3;
pub(super) const SIGNAL: u8 = 4;

/// Header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SENDER: u8 = 7;
const SIGNATURE: u8 = 8;

/// Address of a method.
#[derive(Clone, Copy, Debug)]
pub struct MethodAddress {
    /// Name of its owner on the bus; empty without a bus in between.
    pub destination: &'static str,
    /// Path of its object.
    pub path: &'static str,
    /// Name of its interface.
    pub interface: &'static str,
}

/// A value of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// `b`
    Bool(bool),
    /// `t`
    Number(u64),
    /// `s`
    Text(String),
    /// `as`
    Texts(Vec<String>),
}

/// A property and its value, as `a(sv)` has them.
pub type BusProperty = (&'static str, PropertyValue);

/// Arguments of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallArguments {
    signature: String,
    bytes: Vec<u8>,
}

impl CallArguments {
    /// `s`
    #[must_use]
    pub fn with_text(mut self, text: &str) -> Self {
        self.signature.push('s');
        put_text(&mut self.bytes, text);
        self
    }

    /// `b`
    #[must_use]
    pub fn with_bool(mut self, flag: bool) -> Self {
        self.signature.push('b');
        put_number(&mut self.bytes, u32::from(flag));
        self
    }

    /// `i`
    #[must_use]
    pub fn with_signed(mut self, number: i32) -> Self {
        self.signature.push('i');
        put_number(&mut self.bytes, number.cast_unsigned());
        self
    }

    /// `a(sv)`
    #[must_use]
    pub fn with_properties(mut self, properties: &[BusProperty]) -> Self {
        self.signature.push_str("a(sv)");
        put_array(&mut self.bytes, 8, |bytes| {
            for (name, value) in properties {
                pad_to_multiple(bytes, 8);
                put_text(bytes, name);
                put_variant(bytes, value);
            }
        });
        self
    }

    /// `a(sa(sv))`, empty.
    #[must_use]
    pub fn with_no_auxiliaries(mut self) -> Self {
        self.signature.push_str("a(sa(sv))");
        put_array(&mut self.bytes, 8, |_| {});
        self
    }

    /// Makes the whole call. `serial` is not 0.
    pub(super) fn into_call(self, serial: u32, to: MethodAddress, member: &str) -> Vec<u8> {
        let words = [
            (PATH, 'o', to.path),
            (INTERFACE, 's', to.interface),
            (MEMBER, 's', member),
            (DESTINATION, 's', to.destination),
        ];
        let mut fields = HeaderFieldsWriter::default();
        for (code, kind, text) in words {
            if !text.is_empty() {
                fields.put_text_field(code, kind, text);
            }
        }
        fields.into_message(CALL, serial, self)
    }
}

/// Header fields that are being written.
#[derive(Default)]
struct HeaderFieldsWriter(Vec<u8>);

impl HeaderFieldsWriter {
    fn begin_field(&mut self, code: u8, kind: char) {
        pad_to_multiple(&mut self.0, 8);
        self.0.push(code);
        put_signature(&mut self.0, kind.encode_utf8(&mut [0; 4]));
    }

    fn put_text_field(&mut self, code: u8, kind: char, text: &str) {
        self.begin_field(code, kind);
        put_text(&mut self.0, text);
    }

    /// The fields begin at a multiple of 8, so what is aligned in them is aligned in the message.
    fn into_message(mut self, kind: u8, serial: u32, body: CallArguments) -> Vec<u8> {
        if !body.signature.is_empty() {
            self.begin_field(SIGNATURE, 'g');
            put_signature(&mut self.0, &body.signature);
        }
        let mut message = vec![b'l', kind, 0, 1];
        put_number(&mut message, length_u32(&body.bytes));
        put_number(&mut message, serial);
        put_number(&mut message, length_u32(&self.0));
        message.append(&mut self.0);
        pad_to_multiple(&mut message, 8);
        message.extend(body.bytes);
        message
    }
}

/// Length of a part. Parts that are written are short.
fn length_u32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn pad_to_multiple(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn put_number(bytes: &mut Vec<u8>, number: u32) {
    pad_to_multiple(bytes, 4);
    bytes.extend(number.to_le_bytes());
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    put_number(bytes, length_u32(text.as_bytes()));
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

fn put_signature(bytes: &mut Vec<u8>, signature: &str) {
    bytes.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
    bytes.extend(signature.as_bytes());
    bytes.push(0);
}

fn put_variant(bytes: &mut Vec<u8>, value: &PropertyValue) {
    match value {
        PropertyValue::Bool(flag) => {
            put_signature(bytes, "b");
            put_number(bytes, u32::from(*flag));
        }
        PropertyValue::Number(number) => {
            put_signature(bytes, "t");
            pad_to_multiple(bytes, 8);
            bytes.extend(number.to_le_bytes());
        }
        PropertyValue::Text(text) => {
            put_signature(bytes, "s");
            put_text(bytes, text);
        }
        PropertyValue::Texts(texts) => {
            put_signature(bytes, "as");
            put_array(bytes, 4, |bytes| {
                for text in texts {
                    put_text(bytes, text);
                }
            });
        }
    }
}

/// Writes an array whose elements are aligned to `to`. Its length does not count the padding before the first one.
fn put_array(bytes: &mut Vec<u8>, to: usize, put: impl FnOnce(&mut Vec<u8>)) {
    put_number(bytes, 0);
    let at = bytes.len() - 4;
    pad_to_multiple(bytes, to);
    let start = bytes.len();
    put(bytes);
    let len = length_u32(&bytes[start..]);
    bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// Returns the lengths of a message's header and of the whole message. `fixed` is its first part.
pub(super) fn read_message_lengths(fixed: &[u8; FIXED]) -> Result<(usize, usize), BusError> {
    let number = |at: usize| {
        let bytes: [u8; 4] = core::array::from_fn(|n| fixed[at + n]);
        usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
    };
    if fixed[0] != b'l' || fixed[3] != 1 {
        return Err(BusError::Nonsense(
            "a message of another byte order or protocol",
        ));
    }
    let (body, fields) = (number(4), number(12));
    if body > MAX_PART || fields > MAX_PART {
        return Err(BusError::Nonsense("a message of more than 1 MiB"));
    }
    let header = (FIXED + fields).next_multiple_of(8);
    Ok((header, header + body))
}

/// A message that came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusMessage {
    pub(super) kind: u8,
    /// Serial of the call that it answers.
    pub(super) answers: u32,
    /// Name of the signal.
    pub(super) member: String,
    pub(super) error: String,
    /// Sender, as the bus says; empty without a bus in between.
    pub(super) sender: String,
    signature: String,
    pub(super) body: Vec<u8>,
}

impl BusMessage {
    /// Reads a message from all its bytes. `header` is the length of its header.
    pub(super) fn parse_message(bytes: &[u8], header: usize) -> Result<Self, BusError> {
        let mut message = Self {
            kind: bytes[1],
            body: bytes[header..].into(),
            ..Self::default()
        };
        let mut fields = BusMessageReader {
            bytes: &bytes[..header],
            at: 12,
        };
        let end = FIXED + usize::try_from(fields.read_u32()?).unwrap_or(usize::MAX);
        while fields.at < end {
            fields.skip_padding(8)?;
            let code = fields.read_byte()?;
            match (code, fields.read_signature()?) {
                (MEMBER, "s") => message.member = fields.read_text()?.into(),
                (SENDER, "s") => message.sender = fields.read_text()?.into(),
                (ERROR_NAME, "s") => message.error = fields.read_text()?.into(),
                (SIGNATURE, "g") => message.signature = fields.read_signature()?.into(),
                (REPLY_SERIAL, "u") => message.answers = fields.read_u32()?,
                (_, "s" | "o") => drop(fields.read_text()?),
                (_, "u") => drop(fields.read_u32()?),
                (_, "g") => drop(fields.read_signature()?),
                _ => return Err(BusError::Nonsense("an unknown kind of header field")),
            }
        }
        Ok(message)
    }

    /// Reader of the arguments. An error, if they are not of this signature.
    pub fn arguments(&self, signature: &str) -> Result<BusMessageReader<'_>, BusError> {
        if self.signature != signature {
            return Err(BusError::Nonsense("an answer of another type"));
        }
        Ok(BusMessageReader {
            bytes: &self.body,
            at: 0,
        })
    }
}

/// Position of a reader in a message. Reading beyond its end is an error.
pub struct BusMessageReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BusMessageReader<'a> {
    fn take_bytes(&mut self, count: usize) -> Result<&'a [u8], BusError> {
        let taken = self.bytes.get(self.at..).and_then(|left| left.get(..count));
        self.at = self.at.saturating_add(count);
        taken.ok_or(BusError::Nonsense("a message that ends too soon"))
    }

    fn skip_padding(&mut self, to: usize) -> Result<(), BusError> {
        let padding = self.at.next_multiple_of(to) - self.at;
        self.take_bytes(padding).map(drop)
    }

    fn read_byte(&mut self) -> Result<u8, BusError> {
        Ok(self.take_bytes(1)?[0])
    }

    /// `u`, `b`, and the place of a descriptor, `h`
    pub fn read_u32(&mut self) -> Result<u32, BusError> {
        self.skip_padding(4)?;
        let bytes = self.take_bytes(4)?;
        Ok(u32::from_le_bytes(core::array::from_fn(|n| bytes[n])))
    }

    /// `t`
    pub fn read_u64(&mut self) -> Result<u64, BusError> {
        self.skip_padding(8)?;
        let bytes = self.take_bytes(8)?;
        Ok(u64::from_le_bytes(core::array::from_fn(|n| bytes[n])))
    }

    /// `s`, `o`
    pub fn read_text(&mut self) -> Result<&'a str, BusError> {
        let count = usize::try_from(self.read_u32()?).unwrap_or(usize::MAX);
        self.read_terminated(count)
    }

    /// `g`
    pub fn read_signature(&mut self) -> Result<&'a str, BusError> {
        let count = self.read_byte()?.into();
        self.read_terminated(count)
    }

    /// Text and the zero behind it.
    fn read_terminated(&mut self, count: usize) -> Result<&'a str, BusError> {
        let text = self.take_bytes(count)?;
        self.take_bytes(1)?;
        core::str::from_utf8(text).map_err(|_| BusError::Nonsense("a text that is not UTF-8"))
    }
}
