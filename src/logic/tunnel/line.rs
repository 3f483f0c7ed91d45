//! Lines to servers: how many are dialled, when again, and when one is silent for too long (TUN-09 to TUN-11).

use alloc::{borrow::ToOwned as _, string::String, vec::Vec};
use core::time::Duration;

use crate::api::MonoTime;

/// Number of streams at once, whatever a server says of the number of servers.
pub const MAX_LINES: usize = 8;
/// First pause after an error.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);
/// First pause after a server that has a stream already, or refuses this node. [`LONGEST_REFUSED`]: the longest pause
/// then, or while bytes cost money.
const FIRST_REFUSED: Duration = Duration::from_secs(10);
const LONGEST_REFUSED: Duration = Duration::from_secs(5 * 60);
/// Duration from which on a stream counts as good.
const GOOD: Duration = Duration::from_secs(10);
/// Silence after which the server is pinged. NATs forget after a minute; servers cut off clients that ping more often
/// than every 30 s.
pub const SILENCE: Duration = Duration::from_secs(45);
/// Silence after which the server is pinged while bytes cost money; halved when it proves too long.
pub const SILENCE_METERED: Duration = Duration::from_secs(4 * 60);
/// Time for the answer to a ping.
pub const ANSWER: Duration = Duration::from_secs(20);

/// Reason why a line has no stream, or has lost it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLossReason {
    /// The link or the server failed.
    Broken,
    /// The server did not answer a ping.
    Silent,
    /// The server refuses this node: its certificate or its token.
    Refused,
    /// The server has a stream of this agent already.
    Repeated,
}

/// Pauses and pings of one line.
#[derive(Clone, Debug)]
pub struct TunnelLine {
    /// Pause after the next error; `None`: the first.
    pause: Option<Duration>,
    /// Silence after which the server is pinged while bytes cost money, as far as it has proved short enough.
    longest: Duration,
    /// Set while bytes cost money.
    is_metered: bool,
}

impl Default for TunnelLine {
    /// A line before its first try.
    fn default() -> Self {
        Self {
            pause: None,
            longest: SILENCE_METERED,
            is_metered: false,
        }
    }
}

impl TunnelLine {
    /// Sets if bytes cost money. The line then pings and tries less often.
    pub const fn set_metered(&mut self, is_metered: bool) {
        self.is_metered = is_metered;
    }

    /// Silence after which the server is pinged.
    fn longest_silence(&self) -> Duration {
        match self.is_metered {
            true => self.longest,
            false => SILENCE,
        }
    }

    /// Pause before the next try. `up`: duration of the stream that ended, if there was one. `random` spreads the pause
    /// by a tenth.
    pub fn next_pause(
        &mut self,
        ending: StreamLossReason,
        up: Option<Duration>,
        random: u64,
    ) -> Duration {
        if up.is_some_and(|up| up >= GOOD) {
            self.pause = None;
        }
        if ending == StreamLossReason::Silent && self.is_metered {
            // A NAT on the way has forgotten the connection before the ping.
            self.longest = (self.longest_silence() / 2).max(SILENCE);
        }
        let is_refused = matches!(
            ending,
            StreamLossReason::Refused | StreamLossReason::Repeated
        );
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

    /// Decides what to do about silence. `heard`: time of the last bytes. `asked`: time of the ping since then, if
    /// there was one.
    #[must_use]
    pub fn judge_silence(
        &self,
        heard: MonoTime,
        asked: Option<MonoTime>,
        now: MonoTime,
    ) -> SilenceDecision {
        let (due, then) = match asked {
            Some(asked) => (asked + ANSWER, SilenceDecision::Dead),
            None => (heard + self.longest_silence(), SilenceDecision::Ask),
        };
        if now >= due {
            then
        } else {
            SilenceDecision::Until(due)
        }
    }
}

/// Decision of [`TunnelLine::judge_silence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilenceDecision {
    /// Do nothing before this time.
    Until(MonoTime),
    /// Ping the server.
    Ask,
    /// The stream is dead: the server did not answer the ping.
    Dead,
}

/// Returns true for a status by which the server of a tunnel refuses a node that it does not know.
#[must_use]
pub const fn is_node_refusal(grpc_code: u32) -> bool {
    // UNKNOWN of the server itself; PERMISSION_DENIED and UNAUTHENTICATED of others in its place.
    matches!(grpc_code, 2 | 7 | 16)
}

/// Servers to which there are streams.
#[derive(Debug, Default)]
pub struct ConnectedServers {
    /// Line and name of the server.
    up: Vec<(usize, String)>,
    /// Number of servers, as the last one told it.
    count: usize,
}

impl ConnectedServers {
    /// Takes in that a stream of this line has begun. Returns false if there is one to that server already: the new one
    /// ends.
    pub fn record_stream(&mut self, line: usize, server: &str, count: usize) -> bool {
        self.count = count;
        let is_new = self.up.iter().all(|(_, up)| up != server);
        if is_new {
            self.up.push((line, server.to_owned()));
        }
        is_new
    }

    /// Takes in that the stream of this line has ended, or will be replaced.
    pub fn remove_stream(&mut self, line: usize) {
        self.up.retain(|(of, _)| *of != line);
    }

    /// Number of lines to keep: one for each address of the configuration, and as many more as servers are missing.
    #[must_use]
    pub fn wanted_line_count(&self, addresses: usize) -> usize {
        self.count.max(addresses).min(MAX_LINES.max(addresses))
    }

    /// Number of servers with a stream, and number of servers.
    #[must_use]
    pub fn server_counts(&self) -> (usize, usize) {
        (self.up.len(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: u64 = 100;

    fn pauses(line: &mut TunnelLine, ending: StreamLossReason, times: usize) -> Vec<u64> {
        let pause = |_| line.next_pause(ending, None, EVEN).as_secs();
        (0..times).map(pause).collect()
    }

    #[test]
    fn errors_are_tried_again_soon() {
        // TUN-10
        let mut line = TunnelLine::default();
        let all = pauses(&mut line, StreamLossReason::Broken, 9);
        assert_eq!(all, [1, 1, 2, 3, 5, 7, 10, 10, 10]);
        let short = Some(Duration::from_secs(9));
        assert_eq!(
            line.next_pause(StreamLossReason::Broken, short, EVEN)
                .as_secs(),
            10
        );
        let good = Some(Duration::from_secs(10));
        assert_eq!(
            line.next_pause(StreamLossReason::Broken, good, EVEN)
                .as_secs(),
            1
        );
        let mut line = TunnelLine::default();
        line.set_metered(true);
        assert_eq!(
            pauses(&mut line, StreamLossReason::Broken, 30).pop(),
            Some(300)
        );
    }

    #[test]
    fn who_is_refused_or_not_needed_asks_seldom() {
        // TUN-09 TUN-10
        for ending in [StreamLossReason::Refused, StreamLossReason::Repeated] {
            let mut line = TunnelLine::default();
            let all = pauses(&mut line, ending, 7);
            assert_eq!(all, [10, 20, 40, 80, 160, 300, 300]);
            // Another kind of ending has its own pauses.
            assert_eq!(pauses(&mut line, StreamLossReason::Broken, 1), [10]);
        }
    }

    #[test]
    fn pauses_are_spread() {
        // TUN-10
        let pause =
            |random| TunnelLine::default().next_pause(StreamLossReason::Refused, None, random);
        let ms = |random| pause(random).as_millis();
        assert_eq!(
            (ms(0), ms(100), ms(200), ms(201)),
            (9000, 10000, 11000, 9000)
        );
    }

    #[test]
    fn silence_is_asked_about_and_ends() {
        // TUN-11
        let at = |s: u64| MonoTime(s * 1000);
        let mut line = TunnelLine::default();
        assert_eq!(
            line.judge_silence(at(0), None, at(44)),
            SilenceDecision::Until(at(45))
        );
        assert_eq!(
            line.judge_silence(at(0), None, at(45)),
            SilenceDecision::Ask
        );
        let asked = Some(at(45));
        assert_eq!(
            line.judge_silence(at(0), asked, at(64)),
            SilenceDecision::Until(at(65))
        );
        assert_eq!(
            line.judge_silence(at(0), asked, at(65)),
            SilenceDecision::Dead
        );
        // The silence never gets shorter than servers allow.
        line.next_pause(StreamLossReason::Silent, None, 0);
        assert_eq!(
            line.judge_silence(at(0), None, at(44)),
            SilenceDecision::Until(at(45))
        );
        let mut line = TunnelLine::default();
        line.set_metered(true);
        for silence in [240, 120, 60, 45, 45] {
            assert_eq!(
                line.judge_silence(at(0), None, at(1)),
                SilenceDecision::Until(at(silence))
            );
            line.next_pause(StreamLossReason::Silent, None, 0);
        }
        line.next_pause(StreamLossReason::Broken, None, 0);
        assert_eq!(
            line.judge_silence(at(0), None, at(1)),
            SilenceDecision::Until(at(45))
        );
    }

    #[test]
    fn what_bytes_cost_may_change() {
        // METER-06
        let mut line = TunnelLine::default();
        let mut silences = |steps: &[(bool, StreamLossReason)]| {
            let silence = |(is_metered, ending): &(bool, StreamLossReason)| {
                line.set_metered(*is_metered);
                let until = line.judge_silence(MonoTime(0), None, MonoTime(1));
                line.next_pause(*ending, None, 0);
                until
            };
            steps.iter().map(silence).collect::<Vec<_>>()
        };
        let until = |s: u64| SilenceDecision::Until(MonoTime(s * 1000));
        assert_eq!(
            silences(&[
                // Silence on a free link does not shorten the silence of a metered one.
                (false, StreamLossReason::Silent),
                (true, StreamLossReason::Silent),
                (true, StreamLossReason::Broken),
                (false, StreamLossReason::Broken),
                (true, StreamLossReason::Broken),
            ]),
            [45, 240, 120, 45, 120].map(until)
        );
    }

    #[test]
    fn refusals() {
        // TUN-09
        let all: Vec<u32> = (0..20).filter(|code| is_node_refusal(*code)).collect();
        assert_eq!(all, [2, 7, 16]);
    }

    #[test]
    fn as_many_servers_as_there_are() {
        // TUN-10
        let mut servers = ConnectedServers::default();
        assert_eq!(
            (servers.wanted_line_count(1), servers.wanted_line_count(3)),
            (1, 3)
        );
        assert!(servers.record_stream(0, "a", 3));
        assert_eq!(
            (servers.wanted_line_count(1), servers.server_counts()),
            (3, (1, 3))
        );
        assert!(!servers.record_stream(1, "a", 3), "a repeat");
        assert!(servers.record_stream(2, "b", 2));
        assert_eq!(servers.wanted_line_count(1), 2);
        servers.remove_stream(0);
        assert!(servers.record_stream(1, "a", 2));
        assert_eq!(servers.server_counts(), (2, 2));
        assert!(servers.record_stream(0, "c", 1000));
        assert_eq!(
            (servers.wanted_line_count(1), servers.wanted_line_count(20)),
            (8, 20)
        );
    }
}
