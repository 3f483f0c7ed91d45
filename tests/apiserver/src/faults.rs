//! Faults that a test orders: which requests they hit, how often, and what then happens.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::lock;

/// Rules at once.
const MAX_RULES: usize = 1000;

/// How long to wait for the socket to be closed or opened.
const LISTEN_WAIT: Duration = Duration::from_secs(5);

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The request takes effect, then the connection is reset.
    ResetAfter,
    /// Answered so, without effect.
    Status {
        /// 401, 429, 500, 503, ….
        code: u16,
        /// Sent as `Retry-After`.
        retry_after_s: Option<u32>,
    },
    /// Half of the body, then the end of the connection; the request took effect.
    HalfBody,
    /// A list or read as of that many versions ago.
    Stale(u64),
    /// A watch ends in the middle of a line after that many events.
    WatchBreak(u32),
    /// A watch leaves out events that change something.
    WatchDrop,
    /// The `Date` header is off by so many seconds.
    DateSkew(i64),
}

/// A fault and the requests that it hits.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    method: String,
    uri: String,
    skip: u32,
    times: Option<u32>,
    one_in: Option<u32>,
}

impl Rule {
    /// Hits every request, always.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            method: String::new(),
            uri: String::new(),
            skip: 0,
            times: None,
            one_in: None,
        }
    }

    /// Only requests with this method whose path and query contain `uri`; empty texts match all.
    #[must_use]
    pub fn on(mut self, method: &str, uri: &str) -> Self {
        method.clone_into(&mut self.method);
        uri.clone_into(&mut self.uri);
        self
    }

    /// Only so many matching requests.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// Lets so many matching requests pass first.
    #[must_use]
    pub fn skip(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }

    /// Only one of so many matching requests, by chance, the same in each run.
    #[must_use]
    pub fn one_in(mut self, n: u32) -> Self {
        self.one_in = Some(n.max(1));
        self
    }
}

#[derive(Debug)]
struct Active {
    id: u64,
    rule: Rule,
    seen: u32,
    hits: u32,
}

#[derive(Debug)]
struct State {
    rules: Vec<Active>,
    next: u64,
    random: u64,
    refusing: bool,
    /// Whether the socket is open, as the thread that holds it says.
    listening: bool,
    stopped: bool,
}

/// The faults of a server. Rules stay until they are removed.
#[derive(Debug)]
pub struct Faults {
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                rules: Vec::new(),
                next: 1,
                random: 0x9E37_79B9_7F4A_7C15,
                refusing: false,
                listening: false,
                stopped: false,
            }),
            changed: Condvar::new(),
        }
    }
}

impl Faults {
    /// Adds a rule and returns its number.
    ///
    /// # Panics
    ///
    /// With more than 1000 rules: a test that adds without removing.
    pub fn add(&self, rule: Rule) -> u64 {
        let mut state = lock(&self.state);
        assert!(state.rules.len() < MAX_RULES, "too many rules");
        let id = state.next;
        state.next += 1;
        state.rules.push(Active {
            id,
            rule,
            seen: 0,
            hits: 0,
        });
        id
    }

    /// Removes a rule.
    pub fn remove(&self, id: u64) {
        lock(&self.state).rules.retain(|active| active.id != id);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        lock(&self.state).rules.clear();
    }

    /// Closes the listening socket, so that connections are refused, or opens it again. Open connections live on.
    pub(crate) fn refuse_connections(&self, refuse: bool) {
        let mut state = lock(&self.state);
        state.refusing = refuse;
        self.changed.notify_all();
        drop(
            self.changed
                .wait_timeout_while(state, LISTEN_WAIT, |state| {
                    !state.stopped && state.listening == refuse
                }),
        );
    }

    pub(crate) fn refusing(&self) -> bool {
        lock(&self.state).refusing
    }

    pub(crate) fn set_listening(&self, listening: bool) {
        lock(&self.state).listening = listening;
        self.changed.notify_all();
    }

    /// Blocks while connections are refused. False when the server has stopped.
    pub(crate) fn wait_until_accepting(&self) -> bool {
        let state = self
            .changed
            .wait_while(lock(&self.state), |s| s.refusing && !s.stopped)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        !state.stopped
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.changed.notify_all();
    }

    /// Faults that hit a request; counts them.
    pub(crate) fn hit(&self, method: &str, uri: &str) -> Vec<Fault> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let mut hits = Vec::new();
        for active in &mut state.rules {
            let rule = &active.rule;
            let matches = (rule.method.is_empty() || rule.method == method)
                && uri.contains(&rule.uri)
                && rule.times.is_none_or(|times| active.hits < times);
            if !matches {
                continue;
            }
            active.seen += 1;
            if active.seen <= rule.skip {
                continue;
            }
            if let Some(n) = rule.one_in {
                state.random ^= state.random << 13;
                state.random ^= state.random >> 7;
                state.random ^= state.random << 17;
                if !state.random.is_multiple_of(u64::from(n)) {
                    continue;
                }
            }
            active.hits += 1;
            hits.push(rule.fault.clone());
        }
        hits
    }

    /// Waits, unless the server stops.
    pub(crate) fn pause(&self, time: Duration) {
        drop(
            self.changed
                .wait_timeout_while(lock(&self.state), time, |state| !state.stopped),
        );
    }
}
