//! Updates by themselves: what a channel offers, whether this node takes it, and when. Rows UPD-01, UPD-02, UPD-06, UPD-07
//! and PKG-26. How a program is replaced, watched and put back is in [`super::upgrade`].

use alloc::{
    borrow::ToOwned as _,
    string::{String, ToString as _},
    vec::Vec,
};
use core::{fmt, str::FromStr, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use super::fnv::fnv1a;
use crate::api::{Mono, Wall, strict::from_json};

/// Exit code of a look that has to be made up for. Source: sysexits(3), `EX_TEMPFAIL`.
pub const LATER: i32 = 75;
/// Exit code of a look that found a channel file whose time has passed.
pub const EXPIRED: i32 = 76;
/// Bytes of a tarball at most: some times what a release has.
pub const MAX_RELEASE_BYTES: u64 = 64 << 20;
/// Serials that are remembered as bad. One that is older than these is lower than what is installed, as a rule.
pub const MAX_BARRED: usize = 8;
/// Bytes of what is remembered.
pub const MAX_MEMORY_BYTES: u64 = 4096;
/// An agent that has just started sees its pods first.
pub const START_DELAY: Duration = Duration::from_secs(15);
/// Before the first new look in a window, and the longest such pause: each is twice the one before.
pub const RETRY: Duration = Duration::from_secs(60);
/// See [`RETRY`].
pub const MAX_RETRY: Duration = Duration::from_secs(30 * 60);
/// Longest wait in one piece: a clock that was set meanwhile is noticed.
pub const MAX_WAIT: Duration = Duration::from_secs(3600);
/// A pod that takes longer to start or to end than this is waited for no more, seconds. One that ends later is not yet.
pub const SETTLE_S: i64 = 600;
/// Bytes of a version, and of the name of an architecture.
const MAX_WORD_BYTES: usize = 64;
const DAY_S: i64 = 86_400;
/// What a public key for Ed25519 begins with in DER. Source: RFC 8410, section 4.
const DER_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The 32 bytes of a public key for Ed25519, from the line that its PEM form has between the marks.
#[must_use]
pub fn public_key(line: &str) -> Option<[u8; 32]> {
    let der = STANDARD.decode(line).ok()?;
    der.strip_prefix(&DER_HEAD)?.try_into().ok()
}

/// When a node may update itself: on these days, from this time of the day on, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bit 0 is Monday. At least one is set.
    pub days: u8,
    /// Seconds of the day.
    pub start_s: u32,
    /// Seconds; a day at most. It may end on the next day.
    pub length_s: u32,
}

impl Window {
    /// Start of the window that `now` is in, in seconds since 1970.
    #[must_use]
    pub fn opened(&self, now: Wall) -> Option<i64> {
        let now = now.secs();
        let today = now.div_euclid(DAY_S);
        let starts = [today, today - 1].into_iter();
        let mut starts = starts.filter(|day| self.has(*day)).map(|d| self.start(d));
        starts.find(|start| (*start..start + i64::from(self.length_s)).contains(&now))
    }

    /// Start of the first window that begins after `now`. `None` only of a window without days.
    #[must_use]
    pub fn next(&self, now: Wall) -> Option<i64> {
        let now = now.secs();
        let today = now.div_euclid(DAY_S);
        let days = (today..=today + 7).filter(|day| self.has(*day));
        days.map(|day| self.start(day)).find(|start| *start > now)
    }

    fn start(&self, day: i64) -> i64 {
        day * DAY_S + i64::from(self.start_s)
    }

    /// Day 0 was a Thursday.
    const fn has(&self, day: i64) -> bool {
        self.days >> (day + 3).rem_euclid(7) & 1 == 1
    }
}

/// When the nodes of a fleet look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Never outside of it.
    pub window: Window,
    /// Over so many seconds from its start the nodes are spread by their names; not longer than the window.
    pub spread_s: u32,
    /// The clock counts as right though nobody says that it is.
    pub trusts_clock: bool,
}

impl Schedule {
    /// Seconds from the start of a window after which the node of this name looks.
    #[must_use]
    pub fn moment_s(&self, node: &str) -> i64 {
        let moment = hash("moment", node) % u64::from(self.spread_s.max(1));
        i64::try_from(moment).unwrap_or(0)
    }

    /// When the node of this name looks next, in seconds since 1970, if nothing has to be made up for.
    #[must_use]
    pub fn next_moment(&self, node: &str, now: Wall) -> Option<i64> {
        let starts = [self.window.opened(now), self.window.next(now)];
        let mut moments = (starts.into_iter().flatten()).map(|start| start + self.moment_s(node));
        moments.find(|moment| *moment > now.secs())
    }
}

/// A number from a name, the same for ever, and evenly spread for names that differ in a digit.
fn hash(what: &str, node: &str) -> u64 {
    let mut hash = fnv1a(what.bytes().chain([b'/']).chain(node.bytes()));
    // The last steps of MurmurHash3.
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

/// Whether the node of this name is among the `share` percent of the fleet that may update now. Who is stays so when the
/// share grows.
#[must_use]
pub fn is_in_share(node: &str, share: u8) -> bool {
    hash("share", node) % 100 < u64::from(share)
}

/// What the agent does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look now, in the window that began then.
    Look(i64),
    /// Ask again after this time.
    Wait(Duration),
}

/// The looks of an agent: one a window, and more if one has to be made up for.
#[derive(Debug)]
pub struct Looks {
    not_before: Mono,
    /// The window in which a look came to its end.
    done: Option<i64>,
    pause: Duration,
}

impl Looks {
    /// Of an agent that starts at `now`.
    #[must_use]
    pub fn new(now: Mono) -> Self {
        Self {
            not_before: now + START_DELAY,
            done: None,
            pause: RETRY,
        }
    }

    /// What follows. `trusted`: somebody keeps the clock right. `costs`: the bytes of a look cost money.
    #[must_use]
    pub fn next(
        &self,
        schedule: &Schedule,
        node: &str,
        (now, wall): (Mono, Wall),
        trusted: bool,
        costs: bool,
    ) -> Next {
        let wait = |time: Duration| Next::Wait(time.clamp(Duration::from_secs(1), MAX_WAIT));
        if now < self.not_before {
            return wait(self.not_before - now);
        }
        if costs || !(trusted || schedule.trusts_clock) {
            return wait(MAX_RETRY);
        }
        let opened = schedule.window.opened(wall);
        let opened = opened.filter(|start| Some(*start) != self.done);
        let Some(start) = opened.or_else(|| schedule.window.next(wall)) else {
            return wait(MAX_WAIT);
        };
        let left = start + schedule.moment_s(node) - wall.secs();
        match u64::try_from(left) {
            Ok(left) if left > 0 => wait(Duration::from_secs(left)),
            _ => Next::Look(start),
        }
    }

    /// A look in the window that began at `start` has ended. `again`: it has to be made up for.
    pub fn ended(&mut self, start: i64, again: bool, now: Mono) {
        if again {
            self.not_before = now + self.pause;
            self.pause = (self.pause * 2).min(MAX_RETRY);
        } else {
            self.done = Some(start);
            self.pause = RETRY;
        }
    }
}

/// How things are when an update would begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The time of the day.
    pub wall: Wall,
    /// Somebody keeps it right.
    pub trusted: bool,
    /// The bytes of an update cost money.
    pub costs: bool,
    /// Images wait for the budget of the link that they come over, too.
    pub waits: bool,
    /// The node is short of disk.
    pub disk_pressure: bool,
    /// Pods that start or end.
    pub moving: usize,
}

/// Why it may not begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotNow {
    /// Nobody keeps the clock right.
    #[error("nobody keeps the clock of this machine right")]
    Clock,
    /// See [`Window`].
    #[error("the window is closed")]
    Window,
    /// The link is metered.
    #[error("bytes cost money on this link")]
    Link,
    /// The budget of the link is for what is urgent.
    #[error("images wait for bytes of the link")]
    Budget,
    /// The node is short of disk.
    #[error("the node is short of disk")]
    DiskPressure,
    /// So many pods start or end.
    #[error("pods start or end: {0}")]
    Pods(usize),
}

/// Whether an update may begin, or go on to the moment at which the agent is restarted.
pub fn may_begin(schedule: &Schedule, now: &Now) -> Result<(), NotNow> {
    let refused = [
        (!(now.trusted || schedule.trusts_clock), NotNow::Clock),
        (schedule.window.opened(now.wall).is_none(), NotNow::Window),
        (now.costs, NotNow::Link),
        (now.waits, NotNow::Budget),
        (now.disk_pressure, NotNow::DiskPressure),
        (now.moving > 0, NotNow::Pods(now.moving)),
    ];
    let mut refused = refused.into_iter().filter(|(is_so, _)| *is_so);
    refused.next().map_or(Ok(()), |(_, why)| Err(why))
}

/// A pod, as far as it may be on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnItsWay {
    /// The agent has taken it on then.
    pub started: Option<Wall>,
    /// A container of it is being made, and waits for no back-off.
    pub is_starting: bool,
    /// It is to have ended by then.
    pub ends: Option<Wall>,
}

impl OnItsWay {
    /// Whether an update waits for it. One that hangs holds up nothing, nor does a time that a wrong clock wrote.
    #[must_use]
    pub fn is_moving(&self, now: Wall) -> bool {
        let is_recent = |time: Wall| now.secs().abs_diff(time.secs()) < SETTLE_S.unsigned_abs();
        self.ends.is_some_and(is_recent) || self.is_starting && self.started.is_some_and(is_recent)
    }
}

/// What a channel file says: one release for one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Offer {
    /// `picolet`.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// As in the name of the tarball: `aarch64`.
    pub arch: String,
    /// Bytes of the tarball.
    pub size: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
    /// Grows with each release of the channel.
    pub serial: u64,
    /// Where the tarball is, absolute or beside the channel file; there, under its name, if nothing is said.
    #[serde(default)]
    pub url: Option<String>,
    /// Percent of the fleet that may update now.
    #[serde(default = "everyone")]
    pub share: u8,
    /// From when on nobody may follow it; `None`: it counts for ever. So whoever stands on the way to the channel cannot show a
    /// node the release of today for years.
    #[serde(default)]
    pub expires: Option<Wall>,
}

const fn everyone() -> u8 {
    100
}

/// A channel file that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongOffer {
    /// No JSON, or fields are missing.
    #[error("it is no channel file: {0}")]
    Form(String),
    /// A field that cannot be so.
    #[error("its {0} cannot be right")]
    Field(&'static str),
}

impl Offer {
    /// Reads a channel file. Fields that this version does not know are passed over.
    pub fn parse(bytes: &[u8]) -> Result<Self, WrongOffer> {
        let offer: Self = from_json(bytes).map_err(|e| WrongOffer::Form(e.to_string()))?;
        let is_word = |text: &str, more: &[u8]| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || more.contains(&b);
            (1..=MAX_WORD_BYTES).contains(&text.len()) && text.bytes().all(plain)
        };
        let is_sum = offer.sha256.len() == 64
            && (offer.sha256.bytes()).all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        for (field, is_right) in [
            ("name", offer.name == "picolet"),
            ("version", is_word(&offer.version, b".-+~")),
            ("arch", is_word(&offer.arch, b"_")),
            ("size", (1..=MAX_RELEASE_BYTES).contains(&offer.size)),
            ("sha256", is_sum),
            ("serial", offer.serial > 0),
            ("share", offer.share <= 100),
        ] {
            if !is_right {
                return Err(WrongOffer::Field(field));
            }
        }
        Ok(offer)
    }

    /// When its time has passed, if it has. `trusted`: `now` counts as right. By no other clock anything is refused: a board
    /// that thinks that it is 2099 would be locked out, and one in 1970 can tell nothing.
    #[must_use]
    pub fn expired(&self, now: Wall, trusted: bool) -> Option<Wall> {
        self.expires.filter(|at| trusted && now >= *at)
    }

    /// Name of the directory in its tarball, which is the tarball's own without its end.
    #[must_use]
    pub fn base(&self) -> String {
        format!("{}-{}-{}", self.name, self.version, self.arch)
    }
}

/// What a node knows of the updates that it had. Kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Serial of the last one that stayed; 0: none did.
    pub committed: u64,
    /// SHA-256 of its program, in hexadecimal; empty: not known.
    pub sum: String,
    /// One that was begun.
    pub trying: Option<Trying>,
    /// Serials that were put back, the newest last; at most [`MAX_BARRED`].
    pub barred: Vec<u64>,
    /// SHA-256 of the last tarball whose program was of another version than its channel said; empty: of none.
    pub wrong: String,
}

/// An update that was begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trying {
    /// Its serial.
    pub serial: u64,
    /// SHA-256 of its program, in hexadecimal.
    pub sum: String,
}

impl Memory {
    /// How the update that was begun has ended, now that no program is on trial. Whether that is news.
    ///
    /// - `installed`: SHA-256 of the program in place; `was_put_back`: whether the one that was begun has been.
    pub fn settle(&mut self, installed: &str, was_put_back: bool) -> bool {
        let Some(Trying { serial, sum }) = self.trying.take() else {
            return false;
        };
        if sum == installed {
            self.commit(serial, installed);
        } else if was_put_back && !self.barred.contains(&serial) {
            let over = (self.barred.len() + 1).saturating_sub(MAX_BARRED);
            self.barred.drain(..over);
            self.barred.push(serial);
        }
        true
    }

    /// The release of this serial is the one in place, with this SHA-256.
    pub fn commit(&mut self, serial: u64, installed: &str) {
        self.committed = serial;
        installed.clone_into(&mut self.sum);
        self.barred.retain(|other| *other != serial);
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "committed {}", self.committed)?;
        if !self.sum.is_empty() {
            writeln!(f, "sum {}", self.sum)?;
        }
        if let Some(Trying { serial, sum }) = &self.trying {
            writeln!(f, "trying {serial} {sum}")?;
        }
        for serial in &self.barred {
            writeln!(f, "barred {serial}")?;
        }
        if !self.wrong.is_empty() {
            writeln!(f, "wrong {}", self.wrong)?;
        }
        Ok(())
    }
}

/// A line of the memory that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a line of the memory of updates")]
pub struct WrongLine(String);

impl FromStr for Memory {
    type Err = WrongLine;

    /// Lines of words that this version does not know are passed over.
    fn from_str(text: &str) -> Result<Self, WrongLine> {
        let mut memory = Self::default();
        for line in text.lines() {
            let wrong = || WrongLine(line.to_owned());
            let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
            let (word, value) = line.split_once(' ').ok_or_else(wrong)?;
            match word {
                "committed" => memory.committed = number(value)?,
                "barred" => memory.barred.push(number(value)?),
                "sum" => value.clone_into(&mut memory.sum),
                "wrong" => value.clone_into(&mut memory.wrong),
                "trying" => {
                    let (serial, sum) = value.split_once(' ').ok_or_else(wrong)?;
                    let serial = number(serial)?;
                    let sum = sum.to_owned();
                    memory.trying = Some(Trying { serial, sum });
                }
                _ => {}
            }
        }
        Ok(memory)
    }
}

/// Who is asked whether an offer is taken.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// What its program is for.
    pub arch: &'a str,
    /// What it has had.
    pub memory: &'a Memory,
    /// SHA-256 of the program in place, in hexadecimal.
    pub installed: &'a str,
}

/// What becomes of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is taken.
    Take,
    /// It is installed.
    Have,
    /// Others come first.
    NotInShare,
    /// It is not taken, however often it is looked at.
    Refuse(Refusal),
}

/// Why an offer is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// For another processor.
    #[error("serial {serial} is for {arch}, this node is {own}")]
    Arch {
        /// Of the offer.
        serial: u64,
        /// Of the offer.
        arch: String,
        /// Of the node.
        own: String,
    },
    /// An older one.
    #[error("serial {serial} is lower than {committed}, which this node has")]
    Lower {
        /// Of the offer.
        serial: u64,
        /// Of the node.
        committed: u64,
    },
    /// One that was not healthy here.
    #[error("serial {0} was put back before")]
    Barred(u64),
    /// One whose tarball does not hold what is said.
    #[error("serial {0} is of another version than its channel says")]
    Wrong(u64),
}

/// Judges an offer that is signed. `asked`: somebody asks for it now, who does not wait for his share. `force`: and takes it
/// whatever was before.
#[must_use]
pub fn judge(offer: &Offer, node: Node<'_>, asked: bool, force: bool) -> Verdict {
    let (serial, memory) = (offer.serial, node.memory);
    if offer.arch != node.arch {
        return Verdict::Refuse(Refusal::Arch {
            serial,
            arch: offer.arch.clone(),
            own: node.arch.to_owned(),
        });
    }
    if !force && serial == memory.committed && node.installed == memory.sum {
        return Verdict::Have;
    }
    if !force && memory.barred.contains(&serial) {
        return Verdict::Refuse(Refusal::Barred(serial));
    }
    if !force && offer.sha256 == memory.wrong {
        return Verdict::Refuse(Refusal::Wrong(serial));
    }
    if !force && serial < memory.committed {
        return Verdict::Refuse(Refusal::Lower {
            serial,
            committed: memory.committed,
        });
    }
    if asked || force || is_in_share(node.name, offer.share) {
        Verdict::Take
    } else {
        Verdict::NotInShare
    }
}

#[cfg(test)]
mod tests;
