//! A plain mutator: it has no coverage, but words of the formats, and other inputs to take pieces from.

/// Longest input, bytes.
pub(super) const MAX_INPUT_BYTES: usize = 64 * 1024;

/// Words that parsers of all kinds trip over.
const WORDS: &[&str] = &[
    "",
    "0",
    "-1",
    "1",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "1e309",
    "NaN",
    "null",
    "true",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "..",
    "../..",
    "/",
    "//",
    "/proc/self/fd/7",
    ".wh..wh..opq",
    ".wh...",
    "&a [*a,*a]",
    "*a",
    "<<: *a",
    "---\n",
    "...\n",
    "- ",
    "? ",
    ": ",
    "[[[[[[[[",
    "{{{{{{{{",
    "]",
    "}",
    "\"",
    "'",
    "|\n",
    "!!binary ",
    "%YAML 9.9\n",
    "$(",
    "$$",
    "$(A)",
    "%00",
    "%2f",
    "%",
    "+",
    "\r\n\r\n",
    "\n",
    "\t",
    " F ",
    " P ",
    "stdout",
    "Content-Length: 99999999999999999999\r\n",
    "Transfer-Encoding: chunked\r\n",
    "sha256:",
    "@",
    ":",
    "Ki",
    "E",
    "m",
    "n",
    "1970-01-01T00:00:00Z",
    "9999-12-31T23:59:60.999999999+23:59",
    "\u{1}",
    "root:x:0:0:::",
    "GNU.sparse.map=",
    "30 mtime=99999999999999999999\n",
    "12 path=../x\n",
    "SCHILY.xattr.",
    "application/vnd.oci.image.index.v1+json",
];

/// xorshift64*: small, seeded, good enough to roll dice.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        // The state must not be all zeroes: it would stay so.
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number from 0 to `below` - 1; 0 if `below` is 0.
    pub(super) fn roll(&mut self, below: usize) -> usize {
        let below = u64::try_from(below).unwrap_or(1).max(1);
        usize::try_from((self.next() >> 11) % below).unwrap_or(0)
    }

    fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.roll(all.len())]
    }
}

/// Makes a few changes to `input`; `other` is an input to take pieces from.
pub(super) fn mutate(dice: &mut Dice, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut data = input.to_vec();
    for _ in 0..=dice.roll(4) {
        let at = dice.roll(data.len() + 1);
        let length = match dice.roll(4) {
            0 => dice.roll(data.len() + 1),
            _ => dice.roll(9),
        };
        let end = (at + length).min(data.len());
        match dice.roll(10) {
            0 if at < data.len() => data[at] ^= 1 << dice.roll(8),
            1 if at < data.len() => {
                data[at] = [0, 1, 0x7f, 0x80, 0xff, b' ', b'\n', b'0', b'9', b'/'][dice.roll(10)];
            }
            2 => drop(data.drain(at..end)),
            3 => {
                // A piece is repeated.
                let piece = data[at..end].to_vec();
                for _ in 0..=dice.roll(30) {
                    if data.len() + piece.len() <= MAX_INPUT_BYTES {
                        let here = at.min(data.len());
                        data.splice(here..here, piece.iter().copied());
                    }
                }
            }
            4 => data.truncate(at),
            5 => {
                let from = dice.roll(other.len() + 1);
                let to = (from + 1 + dice.roll(200)).min(other.len());
                data.splice(at..end, other[from.min(to)..to].iter().copied());
            }
            6 => number(dice, &mut data, at),
            7 => nest(dice, &mut data, at),
            _ => drop(data.splice(at..end, dice.of(WORDS).bytes())),
        }
    }
    data.truncate(MAX_INPUT_BYTES);
    data
}

/// Replaces the next number by another one.
fn number(dice: &mut Dice, data: &mut Vec<u8>, at: usize) {
    let digit = |b: &u8| b.is_ascii_digit();
    let Some(start) = data[at..].iter().position(digit).map(|n| at + n) else {
        return;
    };
    let end = data[start..]
        .iter()
        .position(|b| !digit(b))
        .map_or(data.len(), |n| start + n);
    let numbers = [
        "0",
        "-0",
        "1",
        "255",
        "256",
        "65536",
        "2147483648",
        "4294967295",
        "99999999999999999999",
        "0777",
        "1.5",
        "7777777",
    ];
    data.splice(start..end, dice.of(&numbers).bytes());
}

/// Wraps all from `at` on into brackets, many times.
fn nest(dice: &mut Dice, data: &mut Vec<u8>, at: usize) {
    let (open, close) = [
        ("[", "]"),
        ("{\"a\":", "}"),
        ("- ", "\n"),
        ("a:\n ", ""),
        ("(", ")"),
    ][dice.roll(5)];
    let times = [1, 3, 39, 41, 130, 2000][dice.roll(6)];
    if data.len() + times * (open.len() + close.len()) <= MAX_INPUT_BYTES {
        data.extend(close.repeat(times).bytes());
        data.splice(at..at, open.repeat(times).bytes());
    }
}
