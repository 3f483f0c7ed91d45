//! Questions to name servers and their answers, as bytes.
//!
//! Source: RFC 1035 section 4, RFC 3596 section 2.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest name on the wire, bytes; longest label.
const MAX_NAME_BYTES: usize = 255;
const MAX_LABEL_BYTES: usize = 63;
/// Pointers followed within one name.
const MAX_POINTERS: usize = 32;
/// Addresses taken from one answer.
const MAX_ADDRESSES: usize = 16;
/// Aliases followed in one answer.
const MAX_ALIASES: usize = 16;
/// Length of a message's head, bytes.
const HEAD_BYTES: usize = 12;
/// `IN`
const CLASS: u16 = 1;
/// Type of an alias.
const CNAME: u16 = 5;

/// Type of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DnsQuestionKind {
    /// `A`
    V4,
    /// `AAAA`
    V6,
}

impl DnsQuestionKind {
    const fn record_type(self) -> u16 {
        match self {
            Self::V4 => 1,
            Self::V6 => 28,
        }
    }

    fn parse_address(self, data: &[u8]) -> Option<IpAddr> {
        match self {
            Self::V4 => <[u8; 4]>::try_from(data)
                .ok()
                .map(|b| Ipv4Addr::from(b).into()),
            Self::V6 => <[u8; 16]>::try_from(data)
                .ok()
                .map(|b| Ipv6Addr::from(b).into()),
        }
    }
}

/// Content of a message that a server sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DnsReply {
    /// The message answers another question, or is no answer.
    Other,
    /// The answer was cut: the whole did not fit.
    Cut,
    /// The server cannot answer: the next one may.
    Failed,
    /// The addresses; empty if the name has none of the kind, or is not there.
    Addresses(Vec<IpAddr>),
}

/// The message that asks for the addresses of `name` (without a dot at its end). `None` if it is no name.
pub(crate) fn build_question(id: u16, name: &str, kind: DnsQuestionKind) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(HEAD_BYTES + name.len() + 6);
    message.extend(id.to_be_bytes());
    // Recursion is desired; one question.
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        if label.is_empty() || label.len() > MAX_LABEL_BYTES || !label.is_ascii() {
            return None;
        }
        message.push(u8::try_from(label.len()).ok()?);
        message.extend(label.bytes());
    }
    message.push(0);
    if message.len() - HEAD_BYTES > MAX_NAME_BYTES {
        return None;
    }
    message.extend(kind.record_type().to_be_bytes());
    message.extend(CLASS.to_be_bytes());
    Some(message)
}

/// Reads a message that may be the answer to [`build_question`].
pub(crate) fn parse_answer(id: u16, name: &str, kind: DnsQuestionKind, message: &[u8]) -> DnsReply {
    parse_reply(id, name, kind, message).unwrap_or(DnsReply::Other)
}

fn parse_reply(id: u16, name: &str, kind: DnsQuestionKind, message: &[u8]) -> Option<DnsReply> {
    let mut input = DnsMessageReader { message, at: 0 };
    let (found, flags) = (input.read_u16()?, input.read_u16()?);
    let (questions, answers) = (input.read_u16()?, input.read_u16()?);
    input.at = HEAD_BYTES;
    let is_answer = flags & 0x8000 != 0;
    if found != id || !is_answer || questions != 1 {
        return None;
    }
    let asked = (input.read_name()?, input.read_u16()?, input.read_u16()?);
    if asked != (name.to_ascii_lowercase(), kind.record_type(), CLASS) {
        return None;
    }
    match flags & 0x000f {
        0 => {}
        // No such name.
        3 => return Some(DnsReply::Addresses(Vec::new())),
        _ => return Some(DnsReply::Failed),
    }
    if flags & 0x0200 != 0 {
        return Some(DnsReply::Cut);
    }
    let mut aliases: Vec<(String, String)> = Vec::new();
    let mut addresses: Vec<(String, IpAddr)> = Vec::new();
    for _ in 0..answers {
        // A broken record makes the whole answer useless: the next server may do better.
        let Some((owner, record, data)) = input.read_record() else {
            return Some(DnsReply::Failed);
        };
        if record == kind.record_type()
            && addresses.len() < MAX_ADDRESSES
            && let Some(address) = kind.parse_address(&message[data.clone()])
        {
            addresses.push((owner, address));
        } else if record == CNAME && aliases.len() < MAX_ALIASES {
            let mut target = DnsMessageReader {
                message,
                at: data.start,
            };
            aliases.push((owner, target.read_name()?));
        }
    }
    let mut name = asked.0;
    for _ in 0..MAX_ALIASES {
        match aliases.iter().find(|(owner, _)| *owner == name) {
            Some((_, target)) => name.clone_from(target),
            None => break,
        }
    }
    let own = addresses.into_iter().filter(|(owner, _)| *owner == name);
    Some(DnsReply::Addresses(
        own.map(|(_, address)| address).collect(),
    ))
}

struct DnsMessageReader<'m> {
    message: &'m [u8],
    at: usize,
}

impl DnsMessageReader<'_> {
    fn read_byte(&mut self) -> Option<u8> {
        let byte = *self.message.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn read_u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.read_byte()?, self.read_byte()?]))
    }

    /// Reads a record: owner, type and place of its data. The type is 0, which is never asked for, in another class
    /// than ours.
    fn read_record(&mut self) -> Option<(String, u16, core::ops::Range<usize>)> {
        let owner = self.read_name()?;
        let (kind, class) = (self.read_u16()?, self.read_u16()?);
        let _time_to_live = (self.read_u16()?, self.read_u16()?);
        let start = self.at + 2;
        let end = start + usize::from(self.read_u16()?);
        if end > self.message.len() {
            return None;
        }
        self.at = end;
        Some((owner, if class == CLASS { kind } else { 0 }, start..end))
    }

    /// A name in small letters, its labels joined by dots.
    fn read_name(&mut self) -> Option<String> {
        let mut name = String::new();
        let (mut at, mut pointers, mut behind) = (self.at, 0, None);
        loop {
            let length = usize::from(*self.message.get(at)?);
            at += 1;
            match length & 0xc0 {
                0xc0 => {
                    let low = usize::from(*self.message.get(at)?);
                    behind.get_or_insert(at + 1);
                    at = (length & 0x3f) << 8 | low;
                    pointers += 1;
                    if pointers > MAX_POINTERS {
                        return None;
                    }
                }
                0 if length == 0 => {
                    self.at = behind.unwrap_or(at);
                    return Some(name);
                }
                0 => {
                    let label = self.message.get(at..at + length)?;
                    at += length;
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.extend(label.iter().map(|b| char::from(b.to_ascii_lowercase())));
                    if name.len() > MAX_NAME_BYTES * 2 {
                        return None;
                    }
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An answer to `question` with these records: owner (empty: the question's name), type, data.
    pub(in crate::net) fn reply(
        question: &[u8],
        flags: u16,
        records: &[(&str, u16, &[u8])],
    ) -> Vec<u8> {
        let mut message = question.to_vec();
        message[2..4].copy_from_slice(&(0x8180 | flags).to_be_bytes());
        message[7] = u8::try_from(records.len()).expect("few");
        for (owner, kind, data) in records {
            if owner.is_empty() {
                message.extend([0xc0, 12]);
            } else {
                message.extend(wire(owner));
            }
            message.extend(kind.to_be_bytes());
            message.extend([0, 1, 0, 0, 0, 60]);
            message.extend(u16::try_from(data.len()).expect("short").to_be_bytes());
            message.extend(*data);
        }
        message
    }

    /// A name on the wire.
    pub(in crate::net) fn wire(name: &str) -> Vec<u8> {
        let asked = build_question(0, name, DnsQuestionKind::V4).expect("a name");
        asked[HEAD_BYTES..asked.len() - 4].to_vec()
    }

    fn ips(texts: &[&str]) -> DnsReply {
        DnsReply::Addresses(texts.iter().map(|t| t.parse().expect("address")).collect())
    }

    #[test]
    fn answers() {
        let asked = build_question(7, "R.example", DnsQuestionKind::V4).expect("a name");
        let read = |message: &[u8]| parse_answer(7, "r.Example", DnsQuestionKind::V4, message);
        let four: &[u8] = &[10, 0, 0, 1];
        for (name, message, want) in [
            (
                "plain",
                reply(&asked, 0, &[("", 1, four)]),
                ips(&["10.0.0.1"]),
            ),
            ("none", reply(&asked, 0, &[]), ips(&[])),
            ("no such name", reply(&asked, 3, &[]), ips(&[])),
            ("server failure", reply(&asked, 2, &[]), DnsReply::Failed),
            ("refused", reply(&asked, 5, &[]), DnsReply::Failed),
            ("cut", reply(&asked, 0x200, &[]), DnsReply::Cut),
            (
                "aliases in any order",
                reply(
                    &asked,
                    0,
                    &[
                        ("c.example", 1, four),
                        ("b.example", CNAME, &wire("c.example")),
                        ("", CNAME, &wire("b.Example")),
                    ],
                ),
                ips(&["10.0.0.1"]),
            ),
            (
                "a ring of aliases",
                reply(&asked, 0, &[("", CNAME, &wire("r.example"))]),
                ips(&[]),
            ),
            (
                "somebody else's address",
                reply(&asked, 0, &[("evil.example", 1, four)]),
                ips(&[]),
            ),
            (
                "odd length",
                reply(&asked, 0, &[("", 1, &four[1..])]),
                ips(&[]),
            ),
            (
                "another type",
                reply(&asked, 0, &[("", 28, &[0; 16])]),
                ips(&[]),
            ),
            ("the question itself", asked.clone(), DnsReply::Other),
            ("nothing", Vec::new(), DnsReply::Other),
        ] {
            assert_eq!(read(&message), want, "{name}");
        }
        let right = reply(&asked, 0, &[("", 1, four)]);
        assert_eq!(
            parse_answer(8, "r.example", DnsQuestionKind::V4, &right),
            DnsReply::Other
        );
        assert_eq!(
            parse_answer(7, "s.example", DnsQuestionKind::V4, &right),
            DnsReply::Other
        );
        assert_eq!(
            parse_answer(7, "r.example", DnsQuestionKind::V6, &right),
            DnsReply::Other
        );
        for end in 0..right.len() {
            let got = read(&right[..end]);
            assert!(!matches!(got, DnsReply::Addresses(_)), "{end}: {got:?}");
        }
        // A name that points at itself.
        let mut ring = right;
        let at = asked.len();
        ring[at..at + 2].copy_from_slice(&[0xc0, u8::try_from(at).expect("short")]);
        assert_eq!(read(&ring), DnsReply::Failed);
    }

    #[test]
    fn six() {
        let asked = build_question(1, "a", DnsQuestionKind::V6).expect("a name");
        let message = reply(&asked, 0, &[("", 28, &[0x20; 16])]);
        assert_eq!(
            parse_answer(1, "a", DnsQuestionKind::V6, &message),
            ips(&["2020:2020:2020:2020:2020:2020:2020:2020"])
        );
    }

    #[test]
    fn what_is_no_name_is_not_asked_for() {
        let long = "x".repeat(64);
        let many = "abc.".repeat(64) + "de";
        for name in ["", ".", "a..b", "a.", &long, &many, "\u{e9}.example"] {
            assert_eq!(build_question(0, name, DnsQuestionKind::V4), None, "{name}");
        }
    }
}
