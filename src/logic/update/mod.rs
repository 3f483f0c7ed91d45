//! Automatic updates: the offer of a channel, the decision of this node, and the time. Rows UPD-01, UPD-02, UPD-06,
//! UPD-07 and PKG-26. [`upgrade`] decides how a program is replaced, watched and put back.

pub mod upgrade;

use alloc::{
    borrow::ToOwned as _,
    string::{String, ToString as _},
    vec::Vec,
};
use core::{fmt, str::FromStr, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use crate::{
    api::{MonoTime, WallTime, strict::from_json},
    fnv::fnv1a,
};

/// Exit code of a look that has to be made up for. Source: sysexits(3), `EX_TEMPFAIL`.
pub const LATER: i32 = 75;
/// Exit code of a look that found an expired channel file.
pub const EXPIRED: i32 = 76;
/// Most bytes of a tarball: some times the size of a release.
pub const MAX_RELEASE_BYTES: u64 = 64 << 20;
/// Serials that are remembered as bad. A serial older than these is, as a rule, lower than the installed one.
pub const MAX_BARRED: usize = 8;
/// Most bytes of the [`UpdateMemory`].
pub const MAX_MEMORY_BYTES: u64 = 4096;
/// Delay of the first look after the agent's start: the agent sees its pods first.
pub const START_DELAY: Duration = Duration::from_secs(15);
/// Pause before the first repeated look in a window; each further one is twice the one before, up to [`MAX_RETRY`].
pub const RETRY: Duration = Duration::from_secs(60);
/// See [`RETRY`].
pub const MAX_RETRY: Duration = Duration::from_secs(30 * 60);
/// Longest wait in one piece: a clock that was set meanwhile is noticed.
pub const MAX_WAIT: Duration = Duration::from_secs(3600);
/// Longest time for which an update waits for a pod that starts or ends, seconds. A pod that is to end later than that
/// does not count yet.
pub const SETTLE_S: i64 = 600;
/// Bytes of a version, and of the name of an architecture.
const MAX_WORD_BYTES: usize = 64;
const DAY_S: i64 = 86_400;
/// Head of a public key for Ed25519 in DER. Source: RFC 8410, section 4.
const DER_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The 32 bytes of a public key for Ed25519, from the line that its PEM form has between the marks.
#[must_use]
pub fn parse_public_key(line: &str) -> Option<[u8; 32]> {
    let der = STANDARD.decode(line).ok()?;
    der.strip_prefix(&DER_HEAD)?.try_into().ok()
}

/// Time in which a node may update itself: on these days, from this time of the day on, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeeklyWindow {
    /// Days of the week; bit 0 is Monday. At least one is set.
    pub days: u8,
    /// Start, in seconds of the day.
    pub start_s: u32,
    /// Length, seconds; a day at most. The window may end on the next day.
    pub length_s: u32,
}

impl WeeklyWindow {
    /// Start of the window that `now` is in, in seconds since 1970.
    #[must_use]
    pub fn opened_at_s(&self, now: WallTime) -> Option<i64> {
        let now = now.unix_seconds();
        let today = now.div_euclid(DAY_S);
        let starts = [today, today - 1].into_iter();
        let mut starts = starts
            .filter(|day| self.begins_on_day(*day))
            .map(|d| self.start_on_day_s(d));
        starts.find(|start| (*start..start + i64::from(self.length_s)).contains(&now))
    }

    /// Start of the first window that begins after `now`. `None` only of a window without days.
    #[must_use]
    pub fn next_opening_s(&self, now: WallTime) -> Option<i64> {
        let now = now.unix_seconds();
        let today = now.div_euclid(DAY_S);
        let days = (today..=today + 7).filter(|day| self.begins_on_day(*day));
        days.map(|day| self.start_on_day_s(day))
            .find(|start| *start > now)
    }

    fn start_on_day_s(&self, day: i64) -> i64 {
        day * DAY_S + i64::from(self.start_s)
    }

    /// Returns true if the window begins on this day. Day 0 was a Thursday.
    const fn begins_on_day(&self, day: i64) -> bool {
        self.days >> (day + 3).rem_euclid(7) & 1 == 1
    }
}

/// Schedule of the looks of a fleet's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateSchedule {
    /// Window outside of which no node looks.
    pub window: WeeklyWindow,
    /// Seconds from the start of the window over which the nodes are spread by their names; not longer than the window.
    pub spread_s: u32,
    /// Set if the clock counts as right though no time service says so.
    pub trusts_clock: bool,
}

impl UpdateSchedule {
    /// Seconds from the start of a window after which the node of this name looks.
    #[must_use]
    pub fn look_offset_s(&self, node: &str) -> i64 {
        let moment = hash_name("moment", node) % u64::from(self.spread_s.max(1));
        i64::try_from(moment).unwrap_or(0)
    }

    /// Time of the next look of the node of this name, in seconds since 1970, if no look has to be made up for.
    #[must_use]
    pub fn next_look_time_s(&self, node: &str, now: WallTime) -> Option<i64> {
        let starts = [
            self.window.opened_at_s(now),
            self.window.next_opening_s(now),
        ];
        let mut moments =
            (starts.into_iter().flatten()).map(|start| start + self.look_offset_s(node));
        moments.find(|moment| *moment > now.unix_seconds())
    }
}

/// Hash of a name. It stays equal for ever, and spreads names that differ in a digit evenly.
fn hash_name(what: &str, node: &str) -> u64 {
    let mut hash = fnv1a(what.bytes().chain([b'/']).chain(node.bytes()));
    // The last steps of MurmurHash3.
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

/// Returns true if the node of this name is among the `share` percent of the fleet that may update now. A node that is
/// among them stays so when the share grows.
#[must_use]
pub fn is_node_in_share(node: &str, share: u8) -> bool {
    hash_name("share", node) % 100 < u64::from(share)
}

/// Next step of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextLook {
    /// Look now, in the window that began at this second since 1970.
    Look(i64),
    /// Ask again after this time.
    Wait(Duration),
}

/// The looks of an agent: one a window, and more if one has to be made up for.
#[derive(Debug)]
pub struct UpdateLooks {
    not_before: MonoTime,
    /// The window in which a look came to its end.
    done: Option<i64>,
    pause: Duration,
}

impl UpdateLooks {
    /// Makes the looks of an agent that starts at `now`.
    #[must_use]
    pub fn new(now: MonoTime) -> Self {
        Self {
            not_before: now + START_DELAY,
            done: None,
            pause: RETRY,
        }
    }

    /// Decides the next step. `trusted`: a time service keeps the clock right. `costs`: the bytes of a look cost money.
    #[must_use]
    pub fn next_step(
        &self,
        schedule: &UpdateSchedule,
        node: &str,
        (now, wall): (MonoTime, WallTime),
        trusted: bool,
        costs: bool,
    ) -> NextLook {
        let wait = |time: Duration| NextLook::Wait(time.clamp(Duration::from_secs(1), MAX_WAIT));
        if now < self.not_before {
            return wait(self.not_before - now);
        }
        if costs || !(trusted || schedule.trusts_clock) {
            return wait(MAX_RETRY);
        }
        let opened = schedule.window.opened_at_s(wall);
        let opened = opened.filter(|start| Some(*start) != self.done);
        let Some(start) = opened.or_else(|| schedule.window.next_opening_s(wall)) else {
            return wait(MAX_WAIT);
        };
        let left = start + schedule.look_offset_s(node) - wall.unix_seconds();
        match u64::try_from(left) {
            Ok(left) if left > 0 => wait(Duration::from_secs(left)),
            _ => NextLook::Look(start),
        }
    }

    /// Takes in the end of a look in the window that began at `start`. `again`: it has to be made up for.
    pub fn record_look_end(&mut self, start: i64, again: bool, now: MonoTime) {
        if again {
            self.not_before = now + self.pause;
            self.pause = (self.pause * 2).min(MAX_RETRY);
        } else {
            self.done = Some(start);
            self.pause = RETRY;
        }
    }
}

/// State of the node when an update would begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateCircumstances {
    /// The time of the day.
    pub wall: WallTime,
    /// Set if a time service keeps the clock right.
    pub trusted: bool,
    /// Set if the bytes of an update cost money.
    pub costs: bool,
    /// Set if images wait for the budget of the link, too.
    pub waits: bool,
    /// Set if the node is short of disk.
    pub disk_pressure: bool,
    /// Number of pods that start or end.
    pub moving: usize,
}

/// Reason why an update may not begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostponeReason {
    /// No time service keeps the clock right.
    #[error("no time service keeps the clock of this machine right")]
    Clock,
    /// See [`WeeklyWindow`].
    #[error("the window is closed")]
    Window,
    /// The link is metered.
    #[error("bytes cost money on this link")]
    Link,
    /// The rest of the link's budget is for urgent images.
    #[error("images wait for bytes of the link")]
    Budget,
    /// The node is short of disk.
    #[error("the node is short of disk")]
    DiskPressure,
    /// Pods start or end: their number.
    #[error("pods start or end: {0}")]
    Pods(usize),
}

/// Checks that an update may begin, or go on to the moment at which the agent is restarted.
pub fn check_may_begin(
    schedule: &UpdateSchedule,
    now: &UpdateCircumstances,
) -> Result<(), PostponeReason> {
    let refused = [
        (
            !(now.trusted || schedule.trusts_clock),
            PostponeReason::Clock,
        ),
        (
            schedule.window.opened_at_s(now.wall).is_none(),
            PostponeReason::Window,
        ),
        (now.costs, PostponeReason::Link),
        (now.waits, PostponeReason::Budget),
        (now.disk_pressure, PostponeReason::DiskPressure),
        (now.moving > 0, PostponeReason::Pods(now.moving)),
    ];
    let mut refused = refused.into_iter().filter(|(is_so, _)| *is_so);
    refused.next().map_or(Ok(()), |(_, why)| Err(why))
}

/// Start and end of a pod, as far as an update waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodTransition {
    /// Time at which the agent took the pod on.
    pub started: Option<WallTime>,
    /// Set if a container of the pod is being made, and waits for no back-off.
    pub is_starting: bool,
    /// Time by which the pod is to have ended.
    pub ends: Option<WallTime>,
}

impl PodTransition {
    /// Returns true if an update waits for the pod. Neither a pod that hangs nor a time that a wrong clock wrote holds
    /// up an update.
    #[must_use]
    pub fn is_moving(&self, now: WallTime) -> bool {
        let is_recent = |time: WallTime| {
            now.unix_seconds().abs_diff(time.unix_seconds()) < SETTLE_S.unsigned_abs()
        };
        self.ends.is_some_and(is_recent) || self.is_starting && self.started.is_some_and(is_recent)
    }
}

/// Content of a channel file: one release for one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct UpdateOffer {
    /// `picolet`.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Architecture, as in the name of the tarball: `aarch64`.
    pub arch: String,
    /// Bytes of the tarball.
    pub size: u64,
    /// SHA-256 of the tarball, in hexadecimal.
    pub sha256: String,
    /// Number that grows with each release of the channel.
    pub serial: u64,
    /// Address of the tarball, absolute or relative to the channel file. `None`: beside the channel file, under its own
    /// name.
    #[serde(default)]
    pub url: Option<String>,
    /// Percent of the fleet that may update now.
    #[serde(default = "everyone")]
    pub share: u8,
    /// Time from which on no node may follow the offer; `None`: it counts for ever. So an attacker between a node and
    /// its channel cannot show the node today's release for years.
    #[serde(default)]
    pub expires: Option<WallTime>,
}

const fn everyone() -> u8 {
    100
}

/// Fault of a channel file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// Not JSON, or fields are missing.
    #[error("it is not a channel file: {0}")]
    Form(String),
    /// A field has an impossible value.
    #[error("its {0} cannot be right")]
    Field(&'static str),
}

impl UpdateOffer {
    /// Reads a channel file. Fields that this version does not know are passed over.
    pub fn parse(bytes: &[u8]) -> Result<Self, OfferError> {
        let offer: Self = from_json(bytes).map_err(|e| OfferError::Form(e.to_string()))?;
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
                return Err(OfferError::Field(field));
            }
        }
        Ok(offer)
    }

    /// Returns the offer's time of expiry if it has passed. `trusted`: `now` counts as right. With any other clock no
    /// offer counts as expired: a board whose clock says 2099 would be locked out, and one in 1970 cannot tell.
    #[must_use]
    pub fn expiry_if_passed(&self, now: WallTime, trusted: bool) -> Option<WallTime> {
        self.expires.filter(|at| trusted && now >= *at)
    }

    /// Name of the directory in its tarball, which is the tarball's own without its end.
    #[must_use]
    pub fn tarball_directory(&self) -> String {
        format!("{}-{}-{}", self.name, self.version, self.arch)
    }
}

/// Memory of a node about its updates. Kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateMemory {
    /// Serial of the last update that stayed; 0: none did.
    pub committed: u64,
    /// SHA-256 of the program of that update, in hexadecimal; empty: not known.
    pub sum: String,
    /// The update that was begun, if there is one.
    pub trying: Option<UpdateAttempt>,
    /// Serials that were put back, the newest last; at most [`MAX_BARRED`].
    pub barred: Vec<u64>,
    /// SHA-256 of the last tarball whose program was of another version than its channel said; empty: of none.
    pub wrong: String,
}

/// An update that was begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateAttempt {
    /// Serial.
    pub serial: u64,
    /// SHA-256 of the program, in hexadecimal.
    pub sum: String,
}

impl UpdateMemory {
    /// Notes the end of the update that was begun, now that no program is on trial. Returns true if one had been begun.
    ///
    /// - `installed`: SHA-256 of the program in place; `was_put_back`: the update that was begun has been put back.
    pub fn settle_attempt(&mut self, installed: &str, was_put_back: bool) -> bool {
        let Some(UpdateAttempt { serial, sum }) = self.trying.take() else {
            return false;
        };
        if sum == installed {
            self.commit_release(serial, installed);
        } else if was_put_back && !self.barred.contains(&serial) {
            let over = (self.barred.len() + 1).saturating_sub(MAX_BARRED);
            self.barred.drain(..over);
            self.barred.push(serial);
        }
        true
    }

    /// Notes that the release of this serial is in place, with this SHA-256.
    pub fn commit_release(&mut self, serial: u64, installed: &str) {
        self.committed = serial;
        installed.clone_into(&mut self.sum);
        self.barred.retain(|other| *other != serial);
    }
}

impl fmt::Display for UpdateMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "committed {}", self.committed)?;
        if !self.sum.is_empty() {
            writeln!(f, "sum {}", self.sum)?;
        }
        if let Some(UpdateAttempt { serial, sum }) = &self.trying {
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

/// Line of the memory that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a line of the memory of updates")]
pub struct MemoryLineError(String);

impl FromStr for UpdateMemory {
    type Err = MemoryLineError;

    /// Passes over lines with a word that this version does not know.
    fn from_str(text: &str) -> Result<Self, MemoryLineError> {
        let mut memory = Self::default();
        for line in text.lines() {
            let wrong = || MemoryLineError(line.to_owned());
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
                    memory.trying = Some(UpdateAttempt { serial, sum });
                }
                _ => {}
            }
        }
        Ok(memory)
    }
}

/// Node that decides about an offer.
#[derive(Clone, Copy, Debug)]
pub struct UpdatingNode<'a> {
    /// Name.
    pub name: &'a str,
    /// Architecture of its program.
    pub arch: &'a str,
    /// Memory of earlier updates.
    pub memory: &'a UpdateMemory,
    /// SHA-256 of the program in place, in hexadecimal.
    pub installed: &'a str,
}

/// Verdict on an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferVerdict {
    /// Take the offer.
    Take,
    /// The offer is installed.
    Have,
    /// The node is not in the share: other nodes come first.
    NotInShare,
    /// Never take the offer, however often it is looked at.
    Refuse(OfferRefusal),
}

/// Reason why an offer is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferRefusal {
    /// The offer is for another processor.
    #[error("serial {serial} is for {arch}, this node is {own}")]
    Arch {
        /// Serial of the offer.
        serial: u64,
        /// Architecture of the offer.
        arch: String,
        /// Architecture of the node.
        own: String,
    },
    /// The offer is older than the committed release.
    #[error("serial {serial} is lower than {committed}, which this node has")]
    Lower {
        /// Serial of the offer.
        serial: u64,
        /// Serial of the release that the node has.
        committed: u64,
    },
    /// The release of this serial was put back here before.
    #[error("serial {0} was put back before")]
    Barred(u64),
    /// The tarball of this serial holds another version than the channel says.
    #[error("serial {0} is of another version than its channel says")]
    Wrong(u64),
}

/// Judges an offer that is signed. `asked`: an operator asks for it now and does not wait for the node's share.
/// `force`: the operator also takes it whatever happened before.
#[must_use]
pub fn judge_offer(
    offer: &UpdateOffer,
    node: UpdatingNode<'_>,
    asked: bool,
    force: bool,
) -> OfferVerdict {
    let (serial, memory) = (offer.serial, node.memory);
    if offer.arch != node.arch {
        return OfferVerdict::Refuse(OfferRefusal::Arch {
            serial,
            arch: offer.arch.clone(),
            own: node.arch.to_owned(),
        });
    }
    if !force && serial == memory.committed && node.installed == memory.sum {
        return OfferVerdict::Have;
    }
    if !force && memory.barred.contains(&serial) {
        return OfferVerdict::Refuse(OfferRefusal::Barred(serial));
    }
    if !force && offer.sha256 == memory.wrong {
        return OfferVerdict::Refuse(OfferRefusal::Wrong(serial));
    }
    if !force && serial < memory.committed {
        return OfferVerdict::Refuse(OfferRefusal::Lower {
            serial,
            committed: memory.committed,
        });
    }
    if asked || force || is_node_in_share(node.name, offer.share) {
        OfferVerdict::Take
    } else {
        OfferVerdict::NotInShare
    }
}

#[cfg(test)]
mod tests;
