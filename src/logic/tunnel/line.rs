//! The way to servers: how many are dialled, when again, and when one is silent for too long (TUN-09 to TUN-11).

use alloc::{borrow::ToOwned as _, string::String, vec::Vec};
use core::time::Duration;

use crate::api::Mono;

/// Streams at once, whatever a server says there are of its kind.
pub const MAX_LINES: usize = 8;
/// After an error.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);
/// After a server that has a stream already, or refuses this node; and the longest then, or where bytes cost money.
const FIRST_REFUSED: Duration = Duration::from_secs(10);
const LONGEST_REFUSED: Duration = Duration::from_secs(5 * 60);
/// A stream that lasted so long was a good one.
const GOOD: Duration = Duration::from_secs(10);
/// Silence after which the server is asked whether it is there. NATs forget after a minute; servers end those who ask more
/// often than every 30 s.
pub const SILENCE: Duration = Duration::from_secs(45);
/// The same where bytes cost money, until it is found to be too long.
pub const SILENCE_METERED: Duration = Duration::from_secs(4 * 60);
/// Time for the answer.
pub const ANSWER: Duration = Duration::from_secs(20);

/// Why there is no stream, or none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The link, or the server.
    Broken,
    /// Nothing came any more, though it was asked for.
    Silent,
    /// The server does not want this node: its certificate, its token.
    Refused,
    /// That server has a stream already.
    Repeated,
}

/// The pauses of one line, and how often it asks.
#[derive(Clone, Debug)]
pub struct Line {
    /// The pause after the next error; none: the first.
    pause: Option<Duration>,
    /// Silence after which the server is asked where bytes cost money, as far as it was found to be short enough.
    longest: Duration,
    /// Bytes cost money.
    is_metered: bool,
}

impl Default for Line {
    /// At its beginning.
    fn default() -> Self {
        Self {
            pause: None,
            longest: SILENCE_METERED,
            is_metered: false,
        }
    }
}

impl Line {
    /// Whether bytes cost money: it is asked and tried less often then.
    pub const fn set_metered(&mut self, is_metered: bool) {
        self.is_metered = is_metered;
    }

    /// Silence after which the server is asked.
    fn longest_silence(&self) -> Duration {
        match self.is_metered {
            true => self.longest,
            false => SILENCE,
        }
    }

    /// How long to wait before the next try. `up`: how long there was a stream. `random` spreads it by a tenth.
    pub fn pause(&mut self, ending: Ending, up: Option<Duration>, random: u64) -> Duration {
        if up.is_some_and(|up| up >= GOOD) {
            self.pause = None;
        }
        if ending == Ending::Silent && self.is_metered {
            // Something on the way forgets sooner than it was asked.
            self.longest = (self.longest_silence() / 2).max(SILENCE);
        }
        let is_refused = matches!(ending, Ending::Refused | Ending::Repeated);
        let (first, longest) = match is_refused {
            true => (FIRST_REFUSED, LONGEST_REFUSED),
            false if self.is_metered => (FIRST, LONGEST_REFUSED),
            false => (FIRST, LONGEST),
        };
        let pause = self.pause.unwrap_or(first).clamp(first, longest);
        let next = match is_refused {
            true => pause * 2,
            false => pause * 3 / 2,
        };
        self.pause = Some(next.min(longest));
        // From nine tenths to eleven.
        let spread = u32::try_from(random % 201).unwrap_or(0);
        pause * (900 + spread) / 1000
    }

    /// What silence asks for. `heard`: when anything last came. `asked`: when the server was asked since, if it was.
    #[must_use]
    pub fn silence(&self, heard: Mono, asked: Option<Mono>, now: Mono) -> Silence {
        let (due, then) = match asked {
            Some(asked) => (asked + ANSWER, Silence::Dead),
            None => (heard + self.longest_silence(), Silence::Ask),
        };
        if now >= due {
            then
        } else {
            Silence::Until(due)
        }
    }
}

/// See [`Line::silence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Nothing is to be done before.
    Until(Mono),
    /// The server is asked whether it is there.
    Ask,
    /// It is not.
    Dead,
}

/// Whether a refusal is one of this node: a status that the server of a tunnel gives those it does not know.
#[must_use]
pub const fn is_refusal(grpc_code: u32) -> bool {
    // UNKNOWN, as it says it; PERMISSION_DENIED and UNAUTHENTICATED, as others in its place do.
    matches!(grpc_code, 2 | 7 | 16)
}

/// Servers with which there are streams.
#[derive(Debug, Default)]
pub struct Servers {
    /// Line and name of the server.
    up: Vec<(usize, String)>,
    /// How many there are, as was said last.
    count: usize,
}

impl Servers {
    /// A stream of this line has begun. False: there is one with that server already, and this one ends.
    pub fn arrive(&mut self, line: usize, server: &str, count: usize) -> bool {
        self.count = count;
        let is_new = self.up.iter().all(|(_, up)| up != server);
        if is_new {
            self.up.push((line, server.to_owned()));
        }
        is_new
    }

    /// That of this line has ended, or is to be followed by another.
    pub fn leave(&mut self, line: usize) {
        self.up.retain(|(of, _)| *of != line);
    }

    /// How many lines there are to be: one for each address of the configuration, and as many more as servers are missing.
    #[must_use]
    pub fn lines(&self, addresses: usize) -> usize {
        self.count.max(addresses).min(MAX_LINES.max(addresses))
    }

    /// How many there are streams with, and how many there are.
    #[must_use]
    pub fn known(&self) -> (usize, usize) {
        (self.up.len(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: u64 = 100;

    fn pauses(line: &mut Line, ending: Ending, times: usize) -> Vec<u64> {
        let pause = |_| line.pause(ending, None, EVEN).as_secs();
        (0..times).map(pause).collect()
    }

    #[test]
    fn errors_are_tried_again_soon() {
        // TUN-10
        let mut line = Line::default();
        let all = pauses(&mut line, Ending::Broken, 9);
        assert_eq!(all, [1, 1, 2, 3, 5, 7, 10, 10, 10]);
        let short = Some(Duration::from_secs(9));
        assert_eq!(line.pause(Ending::Broken, short, EVEN).as_secs(), 10);
        let good = Some(Duration::from_secs(10));
        assert_eq!(line.pause(Ending::Broken, good, EVEN).as_secs(), 1);
        let mut line = Line::default();
        line.set_metered(true);
        assert_eq!(pauses(&mut line, Ending::Broken, 30).pop(), Some(300));
    }

    #[test]
    fn who_is_refused_or_not_needed_asks_seldom() {
        // TUN-09 TUN-10
        for ending in [Ending::Refused, Ending::Repeated] {
            let mut line = Line::default();
            let all = pauses(&mut line, ending, 7);
            assert_eq!(all, [10, 20, 40, 80, 160, 300, 300]);
            // Another cause is another matter.
            assert_eq!(pauses(&mut line, Ending::Broken, 1), [10]);
        }
    }

    #[test]
    fn pauses_are_spread() {
        // TUN-10
        let pause = |random| Line::default().pause(Ending::Refused, None, random);
        let ms = |random| pause(random).as_millis();
        assert_eq!(
            (ms(0), ms(100), ms(200), ms(201)),
            (9000, 10000, 11000, 9000)
        );
    }

    #[test]
    fn silence_is_asked_about_and_ends() {
        // TUN-11
        let at = |s: u64| Mono(s * 1000);
        let mut line = Line::default();
        assert_eq!(line.silence(at(0), None, at(44)), Silence::Until(at(45)));
        assert_eq!(line.silence(at(0), None, at(45)), Silence::Ask);
        let asked = Some(at(45));
        assert_eq!(line.silence(at(0), asked, at(64)), Silence::Until(at(65)));
        assert_eq!(line.silence(at(0), asked, at(65)), Silence::Dead);
        // No server is asked more often than it allows.
        line.pause(Ending::Silent, None, 0);
        assert_eq!(line.silence(at(0), None, at(44)), Silence::Until(at(45)));
        let mut line = Line::default();
        line.set_metered(true);
        for silence in [240, 120, 60, 45, 45] {
            assert_eq!(
                line.silence(at(0), None, at(1)),
                Silence::Until(at(silence))
            );
            line.pause(Ending::Silent, None, 0);
        }
        line.pause(Ending::Broken, None, 0);
        assert_eq!(line.silence(at(0), None, at(1)), Silence::Until(at(45)));
    }

    #[test]
    fn what_bytes_cost_may_change() {
        // METER-06
        let mut line = Line::default();
        let mut silences = |steps: &[(bool, Ending)]| {
            let silence = |(is_metered, ending): &(bool, Ending)| {
                line.set_metered(*is_metered);
                let until = line.silence(Mono(0), None, Mono(1));
                line.pause(*ending, None, 0);
                until
            };
            steps.iter().map(silence).collect::<Vec<_>>()
        };
        let until = |s: u64| Silence::Until(Mono(s * 1000));
        assert_eq!(
            silences(&[
                // A cable that is pulled says nothing of what a modem's network forgets.
                (false, Ending::Silent),
                (true, Ending::Silent),
                (true, Ending::Broken),
                (false, Ending::Broken),
                (true, Ending::Broken),
            ]),
            [45, 240, 120, 45, 120].map(until)
        );
    }

    #[test]
    fn refusals() {
        // TUN-09
        let all: Vec<u32> = (0..20).filter(|code| is_refusal(*code)).collect();
        assert_eq!(all, [2, 7, 16]);
    }

    #[test]
    fn as_many_servers_as_there_are() {
        // TUN-10
        let mut servers = Servers::default();
        assert_eq!((servers.lines(1), servers.lines(3)), (1, 3));
        assert!(servers.arrive(0, "a", 3));
        assert_eq!((servers.lines(1), servers.known()), (3, (1, 3)));
        assert!(!servers.arrive(1, "a", 3), "a repeat");
        assert!(servers.arrive(2, "b", 2));
        assert_eq!(servers.lines(1), 2);
        servers.leave(0);
        assert!(servers.arrive(1, "a", 2));
        assert_eq!(servers.known(), (2, 2));
        assert!(servers.arrive(0, "c", 1000));
        assert_eq!((servers.lines(1), servers.lines(20)), (8, 20));
    }
}
