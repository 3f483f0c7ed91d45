//! The dictionary that header compression starts with: names as they stand in a header block, then common values.
//!
//! Source: SPDY draft 3, section 2.6.10.1.

/// Bytes of the dictionary.
pub(super) const BYTES: usize = 1423;
/// Adler-32 of the dictionary, which names it in a zlib stream.
pub(super) const ID: u32 = 0xe3c6_a7c2;

/// Names, each behind its length in four bytes.
const NAMES: &[&str] = &[
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

/// End of the dictionary, behind the names.
const VALUES: &[&str] = &[
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Au",
    "thoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidd",
    "en404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr Ma",
    "y Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,imag",
    "e/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicpri",
    "vatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.",
];

/// The whole.
pub(super) fn dictionary_bytes() -> impl Iterator<Item = u8> {
    let names = NAMES.iter().flat_map(|name| {
        let length = u32::try_from(name.len()).unwrap_or_default();
        length.to_be_bytes().into_iter().chain(name.bytes())
    });
    names.chain(VALUES.iter().flat_map(|text| text.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_one_of_the_draft() {
        let (mut a, mut b, mut n) = (1_u32, 0_u32, 0);
        for byte in dictionary_bytes() {
            a = (a + u32::from(byte)) % 65521;
            b = (b + a) % 65521;
            n += 1;
        }
        assert_eq!((n, b << 16 | a), (BYTES, ID));
    }
}
