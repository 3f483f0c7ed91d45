//! Reader of certificates: their names and the time for which they hold. Nothing is verified here.
//!
//! A name is a credential, so it is read by its type alone: the same bytes as text of another type are another name. A
//! certificate with a name that cannot be read is refused.
//!
//! Source: RFC 5280 section 4.1, ITU-T X.690; alphabets: ITU-T X.680 section 41.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use time::{Date, Month, PrimitiveDateTime, Time};

use crate::api::WallTime;
use crate::net::tls;

/// Largest certificate looked at, bytes.
pub const MAX_CERTIFICATE_BYTES: usize = 64 * 1024;
/// Certificates of one chain looked at.
pub const MAX_CHAIN: usize = 16;
/// Most names of one certificate, of each kind; a certificate with more is refused.
const MAX_NAMES: usize = 100;

/// Object identifiers: CN, O, alternative names.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 17];

/// Tags, as one byte with their class and form.
const BOOLEAN: u8 = 1;
const INTEGER: u8 = 2;
const BIT_STRING: u8 = 3;
const OCTET_STRING: u8 = 4;
const OID: u8 = 6;
const UTF8_STRING: u8 = 12;
const PRINTABLE_STRING: u8 = 19;
const IA5_STRING: u8 = 22;
const UTC_TIME: u8 = 23;
const GENERALIZED_TIME: u8 = 24;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const ISSUER_ID: u8 = 0x81;
const SUBJECT_ID: u8 = 0x82;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;

/// Reason why bytes are not a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// There is no certificate.
    #[error("it holds no certificate")]
    Absent,
    /// The bytes do not have the form of a certificate.
    #[error("its certificate has a wrong format")]
    Malformed,
    /// A name is of an unknown type, or has bytes that its type does not allow.
    #[error("a name in its certificate cannot be read")]
    BadName,
    /// More names than any certificate needs.
    #[error("its certificate has too many names")]
    ManyNames,
    /// More bytes than any certificate needs.
    #[error("its certificate has more than {MAX_CERTIFICATE_BYTES} bytes")]
    TooLarge,
}

/// Result of reading a certificate.
pub type CertificateResult<T> = Result<T, CertificateError>;

/// A certificate as its holder sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// Begin of its validity.
    pub not_before: WallTime,
    /// End of its validity.
    pub not_after: WallTime,
    /// CN of the subject; empty if there is none.
    pub common_name: String,
    /// O of the subject; none is empty.
    pub organizations: Vec<String>,
    /// Names of the host.
    pub dns_names: Vec<String>,
    /// Addresses of the host.
    pub ips: Vec<IpAddr>,
}

/// Reads all certificates in PEM text, the holder's first. Of the others, which vouch for it, only the times are read.
pub fn read_chain(pem: &[u8]) -> CertificateResult<Vec<Certificate>> {
    let chain: Result<Vec<_>, _> = tls::parse_certificates(pem)
        .iter()
        .take(MAX_CHAIN)
        .enumerate()
        .map(|(n, der)| read_with_names(der, n == 0))
        .collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(CertificateError::Absent),
        chain => chain,
    }
}

/// Reads one certificate in DER.
pub fn read_certificate(der: &[u8]) -> CertificateResult<Certificate> {
    read_with_names(der, true)
}

/// Reads when a certificate in DER begins and ends to be valid, whatever its names and extensions are.
pub fn read_validity(der: &[u8]) -> CertificateResult<(WallTime, WallTime)> {
    let read = read_with_names(der, false)?;
    Ok((read.not_before, read.not_after))
}

/// Returns the public key of a certificate in DER with its type (`SubjectPublicKeyInfo`), which digests are made of.
pub fn public_key(der: &[u8]) -> CertificateResult<&[u8]> {
    if der.len() > MAX_CERTIFICATE_BYTES {
        return Err(CertificateError::TooLarge);
    }
    let mut content = DerValues(DerValues::first_of_single(der)?);
    let _version = content.take_optional(VERSION)?;
    let _serial_number = content.expect_tag(INTEGER)?;
    // Bounded: algorithm, issuer, validity, subject.
    for _ in 0..4 {
        content.expect_tag(SEQUENCE)?;
    }
    let (from, _) = (content.0, content.expect_tag(SEQUENCE)?);
    Ok(&from[..from.len() - content.0.len()])
}

fn read_with_names(der: &[u8], names: bool) -> CertificateResult<Certificate> {
    if der.len() > MAX_CERTIFICATE_BYTES {
        return Err(CertificateError::TooLarge);
    }
    parse_certificate(der, names)
}

fn parse_certificate(der: &[u8], names: bool) -> CertificateResult<Certificate> {
    let mut parts = DerValues::single_value(der, SEQUENCE)?;
    let mut content = DerValues(parts.expect_tag(SEQUENCE)?);
    let _algorithm = parts.expect_tag(SEQUENCE)?;
    let _signature = parts.expect_tag(BIT_STRING)?;
    parts.expect_end()?;

    let mut found = Certificate::default();
    let _version = content.take_optional(VERSION)?;
    let _serial_number = content.expect_tag(INTEGER)?;
    let _algorithm = content.expect_tag(SEQUENCE)?;
    let _issuer = content.expect_tag(SEQUENCE)?;
    let mut validity = DerValues(content.expect_tag(SEQUENCE)?);
    found.not_before = parse_time(validity.next_value()?).ok_or(CertificateError::Malformed)?;
    found.not_after = parse_time(validity.next_value()?).ok_or(CertificateError::Malformed)?;
    validity.expect_end()?;
    let subject = DerValues(content.expect_tag(SEQUENCE)?);
    let _key = content.expect_tag(SEQUENCE)?;
    let _ids = [
        content.take_optional(ISSUER_ID)?,
        content.take_optional(SUBJECT_ID)?,
    ];
    let extensions = content.take_optional(EXTENSIONS)?;
    content.expect_end()?;
    if names {
        parse_subject_names(subject, &mut found)?;
        if let Some(extensions) = extensions {
            parse_alternative_names(extensions, &mut found)?;
        }
    }
    Ok(found)
}

fn parse_subject_names(
    mut subject: DerValues<'_>,
    found: &mut Certificate,
) -> CertificateResult<()> {
    while subject.has_more() {
        let mut set = DerValues(subject.expect_tag(SET)?);
        while set.has_more() {
            let mut attribute = DerValues(set.expect_tag(SEQUENCE)?);
            let kind = attribute.expect_tag(OID)?;
            let value = attribute.next_value()?;
            attribute.expect_end()?;
            if kind == COMMON_NAME {
                found.common_name = decode_text(value)?;
            } else if kind == ORGANIZATION {
                let group = Some(decode_text(value)?).filter(|group| !group.is_empty());
                add_name(&mut found.organizations, group)?;
            }
        }
    }
    Ok(())
}

fn parse_alternative_names(extensions: &[u8], found: &mut Certificate) -> CertificateResult<()> {
    let mut extensions = DerValues::single_value(extensions, SEQUENCE)?;
    while extensions.has_more() {
        let mut extension = DerValues(extensions.expect_tag(SEQUENCE)?);
        let kind = extension.expect_tag(OID)?;
        let _critical = extension.take_optional(BOOLEAN)?;
        let value = extension.expect_tag(OCTET_STRING)?;
        extension.expect_end()?;
        if kind != ALTERNATIVE_NAMES {
            continue;
        }
        let mut names = DerValues::single_value(value, SEQUENCE)?;
        while names.has_more() {
            match names.next_value()? {
                (DNS_NAME, name) => {
                    let name =
                        Some(decode_text((IA5_STRING, name))?).filter(|name| !name.is_empty());
                    add_name(&mut found.dns_names, name)?;
                }
                (IP_ADDRESS, ip) => add_name(&mut found.ips, parse_address(ip))?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Adds a name to `names`. `None` is a name that could not be read.
fn add_name<T>(names: &mut Vec<T>, name: Option<T>) -> CertificateResult<()> {
    if names.len() >= MAX_NAMES {
        return Err(CertificateError::ManyNames);
    }
    names.push(name.ok_or(CertificateError::BadName)?);
    Ok(())
}

fn decode_text((tag, value): Value<'_>) -> CertificateResult<String> {
    let fits = match tag {
        UTF8_STRING => true,
        PRINTABLE_STRING => value
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(b)),
        IA5_STRING => value.is_ascii(),
        _ => false,
    };
    match core::str::from_utf8(value) {
        Ok(text) if fits => Ok(text.to_owned()),
        _ => Err(CertificateError::BadName),
    }
}

fn parse_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes)
            .ok()
            .map(|b| Ipv4Addr::from(b).into()),
        _ => <[u8; 16]>::try_from(bytes)
            .ok()
            .map(|b| Ipv6Addr::from(b).into()),
    }
}

/// Tag and content.
type Value<'a> = (u8, &'a [u8]);

/// Values in a row, in DER.
struct DerValues<'a>(&'a [u8]);

impl<'a> DerValues<'a> {
    /// Returns the content of the single value in `der`.
    fn single_value(der: &'a [u8], tag: u8) -> CertificateResult<Self> {
        let mut one = Self(der);
        let content = one.expect_tag(tag)?;
        one.expect_end()?;
        Ok(Self(content))
    }

    /// Returns the content of the first sequence within the single sequence in `der`: a certificate's
    /// `tbsCertificate`.
    fn first_of_single(der: &'a [u8]) -> CertificateResult<&'a [u8]> {
        Self::single_value(der, SEQUENCE)?.expect_tag(SEQUENCE)
    }

    fn next_value(&mut self) -> CertificateResult<Value<'a>> {
        let (value, rest) = split_first_value(self.0).ok_or(CertificateError::Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    fn expect_tag(&mut self, tag: u8) -> CertificateResult<&'a [u8]> {
        match self.next_value()? {
            (found, content) if found == tag => Ok(content),
            _ => Err(CertificateError::Malformed),
        }
    }

    fn take_optional(&mut self, tag: u8) -> CertificateResult<Option<&'a [u8]>> {
        match self.0.first() {
            Some(found) if *found == tag => self.expect_tag(tag).map(Some),
            _ => Ok(None),
        }
    }

    const fn has_more(&self) -> bool {
        !self.0.is_empty()
    }

    fn expect_end(&self) -> CertificateResult<()> {
        if self.has_more() {
            Err(CertificateError::Malformed)
        } else {
            Ok(())
        }
    }
}

/// Splits off the first value. No tag and no length in a certificate has more bytes than are read here.
fn split_first_value(der: &[u8]) -> Option<(Value<'_>, &[u8])> {
    let ([tag, length], rest) = der.split_first_chunk()?;
    if tag & 0x1f == 0x1f {
        return None;
    }
    let (length, rest) = match length {
        ..=0x7f => (usize::from(*length), rest),
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length & 3))?;
            let length = bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b));
            // DER allows only the shortest form of a length.
            if length < 0x80 || bytes.first() == Some(&0) {
                return None;
            }
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some(((*tag, content), rest))
}

/// `YYMMDDHHMMSSZ`, or with four digits of the year.
fn parse_time((tag, value): Value<'_>) -> Option<WallTime> {
    let text = core::str::from_utf8(value).ok()?;
    let digits = match tag {
        UTC_TIME => 2,
        GENERALIZED_TIME => 4,
        _ => return None,
    };
    let (year, rest) = text.split_at_checked(digits)?;
    if !year.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let year: i32 = year.parse().ok()?;
    let century = match tag {
        UTC_TIME if year < 50 => 2000,
        UTC_TIME => 1900,
        _ => 0,
    };
    parse_time_digits(century + year, rest)
}

fn parse_time_digits(year: i32, rest: &str) -> Option<WallTime> {
    let rest = rest.strip_suffix('Z')?;
    if rest.len() != 10 || !rest.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let part = |n: usize| rest[n * 2..n * 2 + 2].parse::<u8>().ok();
    let month = Month::try_from(part(0)?).ok()?;
    let date = Date::from_calendar_date(year, month, part(1)?).ok()?;
    let time = Time::from_hms(part(2)?, part(3)?, part(4)?).ok()?;
    let at = PrimitiveDateTime::new(date, time).assume_utc();
    // 9999 is how "for ever" is written; it saturates.
    Some(WallTime::from_unix_seconds(at.unix_timestamp()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Authority, NOW, at};
    use super::*;

    #[test]
    fn read_back() {
        let ca = Authority::new();
        let client = ca.client("system:nodes", "system:node:a", (-100, 1000));
        let server = ca.server(&["node-a", "10.0.0.1", "2001:db8::1"], NOW);
        let chain = read_chain(format!("{}{}", client.both(), ca.pem).as_bytes()).expect("chain");
        assert_eq!(chain.len(), 2);
        let found = &chain[0];
        assert_eq!(found.common_name, "system:node:a");
        assert_eq!(found.organizations, ["system:nodes"]);
        assert!(found.dns_names.is_empty() && found.ips.is_empty());
        let near = |wall: WallTime, seconds: i64| {
            (wall.unix_seconds() - at(seconds).unix_timestamp()).abs() < 60
        };
        assert!(near(found.not_before, -100) && near(found.not_after, 1000));
        let found = &read_chain(server.certificate.as_bytes()).expect("chain")[0];
        assert_eq!(found.dns_names, ["node-a"]);
        assert_eq!(
            found.ips,
            ["10.0.0.1", "2001:db8::1"].map(|ip| ip.parse::<IpAddr>().expect("ip"))
        );
        for text in ["", "x", ca.client("o", "n", NOW).key.as_str()] {
            assert_eq!(read_chain(text.as_bytes()), Err(CertificateError::Absent));
        }
        let der = &tls::parse_certificates(client.certificate.as_bytes())[0];
        for end in 0..der.len() {
            assert!(read_certificate(&der[..end]).is_err(), "{end}");
        }
        assert!(read_certificate(&[0x30; 70_000]).is_err());
    }

    const UTF8: u8 = 12;
    const PRINTABLE: u8 = 19;
    const T61: u8 = 20;
    const IA5: u8 = 22;
    const BMP: u8 = 30;

    /// Encodes a value in DER: tag, length, value.
    fn der(tag: u8, value: &[u8]) -> Vec<u8> {
        let length = match value.len() {
            short @ ..128 => vec![u8::try_from(short).expect("short")],
            long => [
                &[0x82][..],
                &u16::try_from(long).expect("long").to_be_bytes(),
            ]
            .concat(),
        };
        [&[tag][..], &length, value].concat()
    }

    /// A certificate of nothing but a subject (attribute, type, text) and alternative names, both in this order.
    fn certificate(subject: &[(u8, u8, &[u8])], names: &[(u8, &[u8])]) -> Vec<u8> {
        let sequence = |parts: &[&[u8]]| der(0x30, &parts.concat());
        let subject: Vec<u8> = subject
            .iter()
            .flat_map(|(attribute, kind, text)| {
                let oid = der(6, &[0x55, 4, *attribute]);
                der(0x31, &sequence(&[&oid, &der(*kind, text)]))
            })
            .collect();
        let names: Vec<u8> = names
            .iter()
            .flat_map(|(tag, text)| der(*tag, text))
            .collect();
        let names = der(4, &der(0x30, &names));
        let extension = sequence(&[&der(6, &[0x55, 0x1d, 0x11]), &names]);
        let instant = der(23, b"260101000000Z");
        let (serial, empty) = (der(2, &[1]), sequence(&[]));
        let content = sequence(&[
            &der(0xa0, &der(2, &[2])),
            &serial,
            &empty,
            &empty,
            &sequence(&[&instant, &instant]),
            &sequence(&[&subject]),
            &empty,
            &der(0xa3, &sequence(&[&extension])),
        ]);
        sequence(&[&content, &empty, &der(3, &[0])])
    }

    const CN: u8 = 3;
    const O: u8 = 10;
    const UNIT: u8 = 11;

    #[test]
    fn names_are_read_by_their_type() {
        // SRV-05
        let wide = |text: &str| text.bytes().flat_map(|b| [0, b]).collect::<Vec<u8>>();
        let read = |kind, text: &[u8]| {
            read_certificate(&certificate(&[(O, kind, text), (CN, UTF8, b"n")], &[]))
        };
        for (kind, text) in [
            (UTF8, "système:*&_@"),
            (PRINTABLE, "system:masters A-Z (0+9)',./=?"),
            (IA5, "a_b@c*\"&"),
        ] {
            let found = read(kind, text.as_bytes()).expect(text);
            assert_eq!(found.organizations, [text]);
        }
        for (why, kind, text) in [
            ("two bytes each", BMP, &*wide("system:masters")),
            ("one kind as another", BMP, b"system:masters"),
            ("any alphabet", T61, b"system:masters"),
            ("digits alone", 18, b"1"),
            ("visible", 26, b"system:masters"),
            ("four bytes each", 28, b"\0\0\0s"),
            ("bytes", 4, b"system:masters"),
            ("in parts", 0x2c, &der(UTF8, b"system:masters")),
            ("not UTF-8", UTF8, b"system:\xffmasters"),
            ("not printable", PRINTABLE, b"a@b"),
            ("not printable", PRINTABLE, b"a*b"),
            ("not printable", PRINTABLE, b"a_b"),
            ("not ASCII", PRINTABLE, "é".as_bytes()),
            ("not ASCII", IA5, "é".as_bytes()),
            ("empty", UTF8, b""),
        ] {
            assert!(read(kind, text).is_err(), "{why}: {kind}");
        }
    }

    #[test]
    fn what_makes_it_bad() {
        let bad = |subject: &[(u8, u8, &[u8])], names: &[(u8, &[u8])]| {
            read_certificate(&certificate(subject, names)).is_err()
        };
        assert!(!bad(&[], &[]), "nobody's, but one");
        assert!(!bad(&[(UNIT, T61, b"\xff")], &[]), "what is not asked for");
        assert!(bad(&[(CN, BMP, b"n")], &[]), "the name itself");
        let alternative = |tag, text: &[u8]| bad(&[], &[(tag, text)]);
        assert!(!alternative(0x82, b"a.example") && !alternative(0x87, &[1; 16]));
        assert!(!alternative(0x81, b"\xff"), "a kind that is not asked for");
        assert!(alternative(0x82, "é".as_bytes()) && alternative(0x82, b""));
        assert!(alternative(0x87, &[1; 5]), "no address");
        let many = vec![(O, UTF8, &b"o"[..]); MAX_NAMES + 1];
        assert!(!bad(&many[1..], &[]) && bad(&many, &[]), "groups");
        let many = vec![(0x82, &b"a"[..]); MAX_NAMES + 1];
        assert!(!bad(&[], &many[1..]) && bad(&[], &many), "names");
        // Lengths that do not fit what counts bytes, on boards of 32 and 64 bits.
        for length in [
            &[0x84, 0xff, 0xff, 0xff, 0xff][..],
            &[0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0],
            &[0x80],
            &[0xff],
            &[0x81, 1],
            &[0x82, 0, 200],
        ] {
            let name = [&[0x82][..], length].concat();
            let oid = der(6, &[0x55, 0x1d, 0x11]);
            let one = certificate(&[], &[(0x82, b"12345678")]);
            let at = one
                .windows(10)
                .position(|w| w == [&[0x82, 8][..], b"12345678"].concat());
            let mut changed = one.clone();
            let at = at.expect("the name");
            changed[at..at + name.len()].copy_from_slice(&name);
            assert!(read_certificate(&changed).is_err(), "{length:?}");
            // And where nothing says what it should be: the serial number.
            let value = [&[0x02][..], length, &oid].concat();
            let content = der(0x30, &value);
            assert!(
                read_certificate(&der(0x30, &content)).is_err(),
                "{length:?}"
            );
        }
    }

    #[test]
    fn only_the_holder_is_named() {
        let ca = Authority::new();
        let pair = ca.client("o", "n", NOW);
        let other = certificate(&[(O, T61, b"an old \xe9 authority")], &[]);
        let pem = |der: &[u8]| {
            use base64::{Engine as _, engine::general_purpose::STANDARD};
            format!(
                "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
                STANDARD.encode(der)
            )
        };
        let chain = read_chain(format!("{}{}", pair.certificate, pem(&other)).as_bytes());
        let chain = chain.expect("a chain");
        assert_eq!((chain.len(), chain[0].organizations.len()), (2, 1));
        assert!(chain[1].organizations.is_empty());
        assert!(read_chain(pem(&other).as_bytes()).is_err());
    }

    #[test]
    fn times() {
        for (year, rest, want) in [
            (1970, "0101000000Z", Some(0)),
            (2049, "1231235959Z", Some(2_524_607_999)),
            (2024, "0229120000Z", Some(1_709_208_000)),
            (2023, "0229120000Z", None),
            (2024, "0229120000", None),
            (2024, "02291200Z", None),
            (2024, "0229120000+0100", None),
        ] {
            assert_eq!(
                parse_time_digits(year, rest),
                want.map(WallTime::from_unix_seconds),
                "{year} {rest}"
            );
        }
        assert_eq!(
            parse_time_digits(9999, "1231235959Z"),
            Some(WallTime(i64::MAX))
        );
        for (tag, text, want) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (GENERALIZED_TIME, "19700101000000Z", Some(0)),
            (UTC_TIME, "+70101000000Z", None),
            (GENERALIZED_TIME, "+9700101000000Z", None),
            (GENERALIZED_TIME, "-9700101000000Z", None),
            (UTF8, "700101000000Z", None),
            (UTC_TIME, "é", None),
            (UTC_TIME, "", None),
        ] {
            let found = parse_time((tag, text.as_bytes()));
            assert_eq!(found, want.map(WallTime::from_unix_seconds), "{text}");
        }
    }
}
