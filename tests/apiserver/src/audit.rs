//! What was asked, what was answered, and how many bytes it took.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::lock;

/// Requests that are remembered; older ones are dropped.
const MAX_ENTRIES: usize = 50_000;

/// One request.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Milliseconds since the epoch at its arrival.
    pub at_ms: i64,
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub uri: String,
    /// The authorizer's word for it.
    pub verb: String,
    /// Who asked; empty when credentials were wrong.
    pub user: String,
    /// The answer's status; 0 when none was sent.
    pub code: u16,
    /// Why it was refused; empty otherwise.
    pub message: String,
    /// Fields of the body that do not exist and were dropped.
    pub unknown_fields: Vec<String>,
    /// The answer, or the lack of one, was a fault that a test ordered.
    pub fault: bool,
    /// A pod that would have allowed it was deleted lately: a read may lose a race against a deletion.
    pub race: bool,
}

impl Entry {
    /// Whether a correct client would not have sent it: refused, malformed, or with fields that do not exist. Faults
    /// do not count, nor reads that lost a race against a deletion, conflicts and absences. Nor does a client of people that
    /// tries a list by watching and falls back, as it does with an older server.
    pub fn is_wrong(&self) -> bool {
        let refused = matches!(
            self.code,
            400 | 401 | 403 | 405 | 406 | 413 | 415 | 422 | 500
        );
        let race = self.race && self.code == 403;
        let falls_back =
            self.code == 422 && self.user == "admin" && self.message.contains("sendInitialEvents");
        let no_such_path =
            self.code == 404 && self.message.starts_with("the server could not find");
        !self.fault
            && (refused && !race && !falls_back || no_such_path || !self.unknown_fields.is_empty())
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "uri": self.uri, "verb": self.verb, "user": self.user, "code": self.code, "message": self.message,
            "unknownFields": self.unknown_fields, "wrong": self.is_wrong(),
        })
    }
}

/// Bytes of all connections since the start, TLS included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that came.
    pub bytes_in: u64,
    /// Bytes that went.
    pub bytes_out: u64,
}

#[derive(Debug, Default)]
struct Log {
    entries: VecDeque<(u64, Entry)>,
    next: u64,
}

/// The log of a server.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    log: Mutex<Log>,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}

impl Audit {
    /// Notes a request before its answer, so that a hung one is seen. Returns its number.
    pub(crate) fn begin(&self, entry: Entry) -> u64 {
        let mut log = lock(&self.log);
        let number = log.next;
        log.next += 1;
        log.entries.push_back((number, entry));
        while log.entries.len() > MAX_ENTRIES {
            log.entries.pop_front();
        }
        number
    }

    /// Changes an entry that is still remembered.
    pub(crate) fn amend(&self, number: u64, change: impl FnOnce(&mut Entry)) {
        let mut log = lock(&self.log);
        let first = log.entries.front().map_or(0, |(n, _)| *n);
        let at = number
            .checked_sub(first)
            .and_then(|at| usize::try_from(at).ok());
        if let Some((_, entry)) = at.and_then(|at| log.entries.get_mut(at)) {
            change(entry);
        }
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        let log = lock(&self.log);
        log.entries.iter().map(|(_, e)| e.clone()).collect()
    }

    pub(crate) fn clear(&self) {
        lock(&self.log).entries.clear();
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }
}
