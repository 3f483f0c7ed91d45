//! The server's clock, which a test can set forward, and where random names come from.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use ring::rand::{SecureRandom as _, SystemRandom};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Wall time as it was at the start, what has passed since, and what a test added. A server is another machine: whoever sets the
/// clock of this one does not set the server's.
#[derive(Debug)]
pub(crate) struct Clock {
    began: Instant,
    began_ms: i64,
    ahead_ms: AtomicI64,
}

impl Default for Clock {
    #[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
    fn default() -> Self {
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            began: instant(),
            began_ms: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            ahead_ms: AtomicI64::new(0),
        }
    }
}

impl Clock {
    /// Milliseconds since the epoch.
    pub(crate) fn now_ms(&self) -> i64 {
        let passed = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.began_ms + passed + self.ahead_ms.load(Ordering::Relaxed)
    }

    /// Whole seconds since the epoch.
    pub(crate) fn now_s(&self) -> i64 {
        self.now_ms().div_euclid(1000)
    }

    /// Sets it forward for everything that compares times: leases, tokens, continue tokens.
    pub(crate) fn advance(&self, by: Duration) {
        let ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.ahead_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

/// For time-outs of waits only: does not move with [`Clock::advance`].
#[expect(
    clippy::disallowed_methods,
    reason = "the one monotonic clock of this crate"
)]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// `metav1.Time`: whole seconds.
pub(crate) fn rfc3339(seconds: i64) -> String {
    OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .and_then(|t| t.format(&Rfc3339).ok())
        .unwrap_or_default()
}

/// Seconds since the epoch of `metav1.Time` or `MicroTime`; none when it is not one.
pub(crate) fn parse_rfc3339(text: &str) -> Option<i64> {
    OffsetDateTime::parse(text, &Rfc3339)
        .ok()
        .map(OffsetDateTime::unix_timestamp)
}

/// The `Date` header of HTTP.
pub(crate) fn http_date(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let Ok(t) = OffsetDateTime::from_unix_timestamp(seconds) else {
        return String::new();
    };
    let day = usize::from(t.weekday().number_days_from_monday());
    let month = usize::from(u8::from(t.month()) - 1);
    format!(
        "{}, {:02} {} {} {:02}:{:02}:{:02} GMT",
        DAYS[day],
        t.day(),
        MONTHS[month],
        t.year(),
        t.hour(),
        t.minute(),
        t.second()
    )
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the system has randomness");
    bytes
}

/// A version 4 UUID.
pub(crate) fn uuid() -> String {
    let mut b: [u8; 16] = random();
    b[6] = b[6] & 0x0f | 0x40;
    b[8] = b[8] & 0x3f | 0x80;
    let hex: String = b.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// What `generateName` appends: five letters and digits without vowels.
pub(crate) fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    random::<5>()
        .iter()
        .map(|b| char::from(LETTERS[usize::from(*b) % LETTERS.len()]))
        .collect()
}
