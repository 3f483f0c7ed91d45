//! What a certificate says of itself: whose it is and how long it holds. Nothing is verified here.
//!
//! Source: RFC 5280 section 4.1, ITU-T X.690.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use time::{Date, Month, PrimitiveDateTime, Time};
use yasna::models::ObjectIdentifier;
use yasna::tags::{TAG_GENERALIZEDTIME, TAG_UTCTIME};
use yasna::{ASN1Error, ASN1ErrorKind, ASN1Result, BERReader, BERReaderSeq, Tag};

use crate::api::Wall;
use crate::net::tls;

/// Largest certificate looked at, bytes.
pub const MAX_CERTIFICATE_BYTES: usize = 64 * 1024;
/// Certificates of one chain looked at.
pub const MAX_CHAIN: usize = 16;
/// Names taken from one certificate, of each kind.
const MAX_NAMES: usize = 100;

const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
const ALTERNATIVE_NAMES: &[u64] = &[2, 5, 29, 17];

/// A certificate as its holder sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// Holds from then on.
    pub not_before: Wall,
    /// Holds until then.
    pub not_after: Wall,
    /// CN of the subject; empty if there is none.
    pub common_name: String,
    /// O of the subject.
    pub organizations: Vec<String>,
    /// Names of the host.
    pub dns_names: Vec<String>,
    /// Addresses of the host.
    pub ips: Vec<IpAddr>,
}

/// Reads all certificates in PEM text, the holder's first. Errors: what is wrong, such as that there is none.
pub fn read_chain(pem: &[u8]) -> Result<Vec<Certificate>, String> {
    let chain: Result<Vec<_>, _> = tls::certificates(pem)
        .iter()
        .take(MAX_CHAIN)
        .map(|der| read(der))
        .collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err("it holds no certificate".into()),
        chain => chain,
    }
}

/// Reads one certificate in DER.
pub fn read(der: &[u8]) -> Result<Certificate, String> {
    if der.len() > MAX_CERTIFICATE_BYTES {
        return Err(format!(
            "its certificate has more than {MAX_CERTIFICATE_BYTES} bytes"
        ));
    }
    yasna::parse_der(der, |reader| {
        reader.read_sequence(|reader| {
            let found = reader.next().read_sequence(content)?;
            let _algorithm = reader.next().read_tagged_der()?;
            let _signature = reader.next().read_tagged_der()?;
            Ok(found)
        })
    })
    .map_err(|_| "its certificate is not one".into())
}

fn content(reader: &mut BERReaderSeq<'_, '_>) -> ASN1Result<Certificate> {
    let mut found = Certificate::default();
    let version = Tag::context(0);
    let _version = reader.read_optional(|r| r.read_tagged(version, |r| r.read_u8()))?;
    for _ in ["serial number", "algorithm", "issuer"] {
        reader.next().read_tagged_der()?;
    }
    reader.next().read_sequence(|reader| {
        found.not_before = instant(reader.next())?;
        found.not_after = instant(reader.next())?;
        Ok(())
    })?;
    reader.next().read_sequence_of(|reader| {
        reader.read_set_of(|reader| {
            reader.read_sequence(|reader| {
                let kind = reader.next().read_oid()?;
                let value = reader.next().read_tagged_der()?;
                let text = String::from_utf8_lossy(value.value()).into_owned();
                if is(&kind, COMMON_NAME) {
                    found.common_name = text;
                } else if is(&kind, ORGANIZATION) && found.organizations.len() < MAX_NAMES {
                    found.organizations.push(text);
                }
                Ok(())
            })
        })
    })?;
    let _key = reader.next().read_tagged_der()?;
    for unique_id in [1, 2] {
        reader.read_optional(|r| {
            r.read_tagged_implicit(Tag::context(unique_id), |r| r.read_bitvec_bytes())
        })?;
    }
    let extensions = Tag::context(3);
    reader.read_optional(|reader| {
        reader.read_tagged(extensions, |reader| {
            reader.read_sequence_of(|reader| {
                reader.read_sequence(|reader| {
                    let kind = reader.next().read_oid()?;
                    let _critical = reader.read_optional(|r| r.read_bool())?;
                    let value = reader.next().read_bytes()?;
                    if is(&kind, ALTERNATIVE_NAMES) {
                        alternative_names(&value, &mut found)?;
                    }
                    Ok(())
                })
            })
        })
    })?;
    Ok(found)
}

fn is(found: &ObjectIdentifier, wanted: &[u64]) -> bool {
    found.components().as_slice() == wanted
}

fn alternative_names(der: &[u8], found: &mut Certificate) -> ASN1Result<()> {
    yasna::parse_der(der, |reader| {
        reader.read_sequence_of(|reader| {
            let name = reader.read_tagged_der()?;
            let value = name.value();
            if name.tag() == Tag::context(2) && found.dns_names.len() < MAX_NAMES {
                found
                    .dns_names
                    .push(String::from_utf8_lossy(value).into_owned());
            } else if name.tag() == Tag::context(7) && found.ips.len() < MAX_NAMES {
                if let Ok(four) = <[u8; 4]>::try_from(value) {
                    found.ips.push(Ipv4Addr::from(four).into());
                } else if let Ok(six) = <[u8; 16]>::try_from(value) {
                    found.ips.push(Ipv6Addr::from(six).into());
                }
            }
            Ok(())
        })
    })
}

/// `YYMMDDHHMMSSZ`, or with four digits of the year.
fn instant(reader: BERReader<'_, '_>) -> ASN1Result<Wall> {
    let invalid = || ASN1Error::new(ASN1ErrorKind::Invalid);
    let value = reader.read_tagged_der()?;
    let text = core::str::from_utf8(value.value()).map_err(|_| invalid())?;
    let (year, rest) = if value.tag() == TAG_UTCTIME {
        let (year, rest) = text.split_at_checked(2).ok_or_else(invalid)?;
        let year: i32 = year.parse().map_err(|_| invalid())?;
        (if year < 50 { 2000 + year } else { 1900 + year }, rest)
    } else if value.tag() == TAG_GENERALIZEDTIME {
        let (year, rest) = text.split_at_checked(4).ok_or_else(invalid)?;
        (year.parse().map_err(|_| invalid())?, rest)
    } else {
        return Err(invalid());
    };
    parse(year, rest).ok_or_else(invalid)
}

fn parse(year: i32, rest: &str) -> Option<Wall> {
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
    Some(Wall::from_secs(at.unix_timestamp()))
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
        let near =
            |wall: Wall, seconds: i64| (wall.secs() - at(seconds).unix_timestamp()).abs() < 60;
        assert!(near(found.not_before, -100) && near(found.not_after, 1000));
        let found = &read_chain(server.certificate.as_bytes()).expect("chain")[0];
        assert_eq!(found.dns_names, ["node-a"]);
        assert_eq!(
            found.ips,
            ["10.0.0.1", "2001:db8::1"].map(|ip| ip.parse::<IpAddr>().expect("ip"))
        );
        for text in ["", "x", ca.client("o", "n", NOW).key.as_str()] {
            assert_eq!(
                read_chain(text.as_bytes()),
                Err("it holds no certificate".into())
            );
        }
        let der = &tls::certificates(client.certificate.as_bytes())[0];
        for end in 0..der.len() {
            assert!(read(&der[..end]).is_err(), "{end}");
        }
        assert!(read(&[0x30; 70_000]).is_err());
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
                parse(year, rest),
                want.map(Wall::from_secs),
                "{year} {rest}"
            );
        }
        assert_eq!(parse(9999, "1231235959Z"), Some(Wall(i64::MAX)));
    }
}
