//! State of the connection to the apiserver: answers or not, and the difference of the two clocks. Logged when it changes,
//! shown to local commands whenever they ask.

use alloc::{rc::Rc, sync::Arc};
use core::{
    cell::{Cell, RefCell},
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use crate::{
    agent::{
        asker::AgentHandle, clock::Clock, complaints::Complaints, core::AgentEvent,
        views::ApiAnswer, waker_set::WakerSet,
    },
    api::{MonoTime, WallTime, node::NodeCondition},
    kube::{KubeApi, KubeError, KubeLanes, api::ApiResult},
    logic::{
        fnv::fnv1a,
        server_clock::{ServerClock, is_clock_wrong},
    },
};

/// The condition that `get node` shows beside those of the Node. It never leaves this machine.
const CONDITION: &str = "ApiserverReachable";

/// [`ServerClockSkew`] without an answer.
const NOT_HEARD: i64 = i64::MIN;

/// The apiserver's clock: its [`ServerClock`], milliseconds, or [`NOT_HEARD`]. Written by request threads, read by the
/// deciding one.
#[derive(Debug)]
pub(in crate::agent) struct ServerClockSkew(AtomicI64);

impl Default for ServerClockSkew {
    fn default() -> Self {
        Self(AtomicI64::new(NOT_HEARD))
    }
}

impl ServerClockSkew {
    /// Takes the date of an answer that came at `now`.
    pub(in crate::agent) fn take_server_date(&self, theirs: WallTime, now: MonoTime) {
        let known = ServerClock::from_answer(theirs, now);
        let offset_ms = known.offset_ms.max(NOT_HEARD + 1);
        self.0.store(offset_ms, Ordering::Relaxed);
    }

    fn server_clock(&self) -> Option<ServerClock> {
        let offset_ms = self.0.load(Ordering::Relaxed);
        (offset_ms != NOT_HEARD).then_some(ServerClock { offset_ms })
    }

    /// The time as the apiserver has it; before its first answer, as this machine has it.
    pub(super) fn server_time(&self, clock: &dyn Clock) -> WallTime {
        let known = self.server_clock();
        known.map_or_else(|| clock.wall_time(), |known| known.server_time(clock.now()))
    }

    /// By how much this machine's clock is ahead, seconds, if it is wrong.
    fn clock_error_s(&self, clock: &dyn Clock) -> Option<i64> {
        let ahead = self.server_clock()?.ahead_s(clock.now(), clock.wall_time());
        is_clock_wrong(ahead).then_some(ahead)
    }
}

/// Silence that the control plane may take for the node's end.
const OUTAGE: Duration = Duration::from_secs(25);
/// For so long after it parts of the control plane may still act on what they knew: their own connections come back by a
/// back-off of up to 30 s, and the node controller marks what it has not heard of meanwhile.
const AFTERMATH: Duration = Duration::from_secs(120);

/// State of the connection to the apiserver. [`HeartbeatLane`] and its lane report how requests end; readers show it or
/// wait for a change.
#[derive(Debug, Default)]
pub(in crate::agent) struct ApiserverLink {
    pub(super) skew: Arc<ServerClockSkew>,
    /// Set while the clock counts as wrong. Waiters are woken when that changes.
    is_clock_wrong: Cell<bool>,
    waiters: WakerSet,
    state: RefCell<ApiserverLinkState>,
}

#[derive(Debug, Default)]
struct ApiserverLinkState {
    /// Instant of the apiserver's last answer.
    answered: Option<MonoTime>,
    /// Reason why it does not answer; empty if it does.
    trouble: Option<String>,
    /// Since when that is so.
    since: Option<WallTime>,
    /// The last word before there was trouble; without one, when the trouble began.
    lost: Option<MonoTime>,
    /// Instant of the first answer after an outage.
    returned: Option<MonoTime>,
}

impl ApiserverLink {
    pub(in crate::agent) fn new(skew: Arc<ServerClockSkew>) -> Self {
        Self {
            skew,
            ..Self::default()
        }
    }

    /// Waits until the clock turns out to be wrong, or right again.
    pub(super) fn wait_clock_change(&self) -> impl Future<Output = ()> {
        let before = self.is_clock_wrong.get();
        self.waiters
            .wait_until(move || (self.is_clock_wrong.get() != before).then_some(()))
    }

    /// Takes note of how a request ended. A refusal is an answer, unless it is that nobody knows us. Returns whether the
    /// apiserver answers, if that is news.
    fn note_request_end(
        &self,
        error: Option<&KubeError>,
        clock: &dyn Clock,
        complaints: &Complaints,
    ) -> Option<bool> {
        let trouble = error
            .filter(|e| !e.is_answer() || e.http_status() == Some(401))
            .map(ToString::to_string);
        let mut state = self.state.borrow_mut();
        let first = state.since.is_none();
        let is_news = first || state.trouble.is_some() != trouble.is_some();
        let answers = trouble.is_none();
        match &trouble {
            None => {
                let now = clock.now();
                if let Some(lost) = state.lost.take() {
                    state.returned = (now >= lost + OUTAGE).then_some(now).or(state.returned);
                }
                state.answered = Some(now);
                if is_news {
                    state.since = Some(clock.wall_time());
                    log::info!("the apiserver answers");
                }
            }
            Some(why) if is_news => {
                state.since = Some(clock.wall_time());
                state.lost = Some(state.answered.unwrap_or_else(|| clock.now()));
                log::warn!("the apiserver does not answer, pods keep running: {why}");
            }
            Some(why) => {
                complaints.complain(&format!("the apiserver still does not answer: {why}"));
            }
        }
        state.trouble = trouble;
        drop(state);
        self.report_skew(clock);
        is_news.then_some(answers)
    }

    fn report_skew(&self, clock: &dyn Clock) {
        let wrong = self.skew.clock_error_s(clock);
        if wrong.is_some() != self.is_clock_wrong.replace(wrong.is_some()) {
            self.waiters.wake_all();
            match wrong {
                Some(_) => log::warn!("{}", self.describe_skew(clock).unwrap_or_default()),
                None => log::info!(
                    "the clock agrees with the apiserver's: {}",
                    clock.wall_time()
                ),
            }
        }
    }

    /// Describes by how much the clock is wrong, if it is.
    pub(in crate::agent) fn describe_skew(&self, clock: &dyn Clock) -> Option<String> {
        let ahead = self.skew.clock_error_s(clock)?;
        let (by, word) = (
            ahead.unsigned_abs(),
            if ahead > 0 { "ahead of" } else { "behind" },
        );
        Some(format!(
            "the clock of this machine is {by} s {word} the apiserver's: it decides whether certificates and tokens are valid"
        ))
    }

    /// Reason why the apiserver does not answer, if it does not.
    pub(in crate::agent) fn outage_reason(&self) -> Option<String> {
        self.state.borrow().trouble.clone()
    }

    /// An outage ended that nothing else told of.
    pub(super) fn note_recovery(&self, now: MonoTime) {
        self.state.borrow_mut().returned = Some(now);
    }

    /// Returns true if an outage ended so lately that a controller may still write to the Node because of it.
    pub(super) fn is_aftermath(&self, now: MonoTime) -> bool {
        let returned = self.state.borrow().returned;
        returned.is_some_and(|at| now < at + AFTERMATH)
    }

    /// Instant of the apiserver's last answer.
    pub(in crate::agent) fn last_answer(&self) -> Option<MonoTime> {
        self.state.borrow().answered
    }

    /// Makes the condition of `get node` for the apiserver. `certificate`: the problem of this node's certificate.
    pub(super) fn link_condition(
        &self,
        certificate: Option<String>,
        clock: &dyn Clock,
    ) -> NodeCondition {
        let state = self.state.borrow();
        let (status, reason, message) =
            match (&state.trouble, certificate, self.describe_skew(clock)) {
                (Some(why), None, _) => ("False", "Unreachable", why.clone()),
                (Some(why), Some(own), _) => ("False", "NoCertificate", format!("{own}: {why}")),
                (None, Some(own), _) if state.answered.is_none() => ("False", "NoCertificate", own),
                (None, None, _) if state.answered.is_none() => {
                    ("Unknown", "NotAsked", String::new())
                }
                (None, _, Some(clock)) => ("True", "ClockWrong", clock),
                (None, Some(own), None) => ("True", "NoCertificate", own),
                (None, None, None) => ("True", "Answers", "the apiserver answers".into()),
            };
        NodeCondition {
            kind: CONDITION.into(),
            status: status.into(),
            last_heartbeat_time: Some(clock.wall_time().truncated_to_second()),
            last_transition_time: state.since.map(WallTime::truncated_to_second),
            reason: reason.into(),
            message,
        }
    }
}

/// The lane of the heartbeat: what is asked here waits for nothing else, and how it ends is noted. The loop is told when an
/// outage begins or ends.
#[derive(Clone)]
pub(super) struct HeartbeatLane {
    pub(super) lanes: KubeLanes,
    pub(super) link: Rc<ApiserverLink>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) asker: AgentHandle,
}

impl HeartbeatLane {
    /// Asks the apiserver.
    pub(super) async fn ask_apiserver<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn KubeApi) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let reply = self.lanes.run_heartbeat(job).await;
        let error = reply.as_ref().err();
        let news = self
            .link
            .note_request_end(error, &*self.clock, &self.complaints);
        if let Some(answers) = news {
            self.asker
                .send_event(AgentEvent::Api(ApiAnswer::Answers(answers)))
                .await;
        }
        reply
    }

    /// Connections may be dead without telling (CONF-21).
    pub(super) async fn close_connections(&self) {
        self.lanes
            .run_heartbeat(|api| api.close_heartbeat_connections())
            .await;
    }
}

/// A number that spreads what nodes of a fleet do at the same time. No secret.
pub(super) fn fleet_spread(clock: &dyn Clock, node: &str) -> u64 {
    let time = clock.wall_time().0.to_le_bytes();
    fnv1a(node.bytes().chain(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::tests::world::{Hands, TestClock};

    /// A clock that says so, a while after the boot.
    fn clock(wall_s: i64) -> TestClock {
        let hands = Hands::default();
        hands.set(MonoTime(5_000));
        hands.jump(wall_s - hands.wall().unix_seconds());
        TestClock(Rc::new(hands))
    }

    #[test]
    fn clocks() {
        let link = ApiserverLink::default();
        assert_eq!(link.describe_skew(&clock(0)), None, "nobody has answered");
        assert_eq!(
            link.skew.server_time(&clock(9)),
            WallTime::from_unix_seconds(9)
        );
        for (theirs, ours, says) in [
            (1_700_000_000, 1_700_000_059, None),
            (1_700_000_059, 1_700_000_000, None),
            (1_700_000_000, 1_700_000_060, Some("60 s ahead of")),
            (1_700_000_060, 1_700_000_000, Some("60 s behind")),
            (1_700_000_000, 0, Some("1700000000 s behind")),
            (0, 9_000_000_000, Some("9000000000 s ahead of")),
        ] {
            let clock = clock(ours);
            link.skew
                .take_server_date(WallTime::from_unix_seconds(theirs), clock.now());
            let text = link.describe_skew(&clock);
            assert_eq!(text.is_some(), says.is_some(), "{text:?}");
            assert!(
                text.unwrap_or_default().contains(says.unwrap_or_default()),
                "{says:?}"
            );
        }
    }

    #[test]
    fn a_clock_that_is_set_while_nobody_answers() {
        // TIME-03 TIME-04
        const NOW_S: i64 = 1_790_000_000;
        let (link, clock) = (ApiserverLink::default(), clock(5));
        link.skew
            .take_server_date(WallTime::from_unix_seconds(NOW_S), clock.now());
        let reason = || link.link_condition(None, &clock).reason;
        link.state.borrow_mut().answered = Some(clock.now());
        assert_eq!(reason(), "ClockWrong");
        clock.0.set(MonoTime(65_000));
        clock.0.jump(NOW_S - 5);
        assert_eq!(
            link.skew.server_time(&clock),
            WallTime::from_unix_seconds(NOW_S + 60)
        );
        assert_eq!(clock.wall_time(), WallTime::from_unix_seconds(NOW_S + 60));
        assert_eq!(link.describe_skew(&clock), None, "it is right at once");
        assert_eq!(reason(), "Answers");
        // And if it is set back.
        clock.0.jump(-NOW_S);
        assert_eq!(
            link.skew.server_time(&clock),
            WallTime::from_unix_seconds(NOW_S + 60)
        );
        assert_eq!(reason(), "ClockWrong");
    }
}
