//! What was asked, what was answered, and how many bytes it took.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::lock;

/// Requests that are remembered; older ones are dropped, and counted.
const MAX_ENTRIES: usize = 50_000;

/// Connections whose counters are remembered.
const MAX_CONNECTIONS: usize = 10_000;

/// One request.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Milliseconds since the epoch at its arrival.
    pub at_ms: i64,
    /// Number of its connection.
    pub connection: u64,
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub uri: String,
    /// The authorizer's word for it.
    pub verb: String,
    /// Who asked; empty when credentials were wrong.
    pub user: String,
    /// What the client calls itself.
    pub agent: String,
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
    /// Bytes of head and body, before TLS.
    pub bytes_in: u64,
    /// Bytes of head and body of the answer, before TLS; of a watch, so far.
    pub bytes_out: u64,
}

impl Entry {
    /// Whether a correct client would not have sent it: refused, malformed, or with fields that do not exist. Faults
    /// do not count, nor reads that lost a race against a deletion, conflicts and absences.
    pub fn is_wrong(&self) -> bool {
        let refused = matches!(
            self.code,
            400 | 401 | 403 | 405 | 406 | 413 | 415 | 422 | 500
        );
        let race = self.race && self.code == 403;
        let no_such_path =
            self.code == 404 && self.message.starts_with("the server could not find");
        !self.fault && (refused && !race || no_such_path || !self.unknown_fields.is_empty())
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "atMs": self.at_ms, "connection": self.connection, "method": self.method, "uri": self.uri,
            "verb": self.verb, "user": self.user, "code": self.code, "message": self.message,
            "unknownFields": self.unknown_fields, "fault": self.fault, "race": self.race,
            "bytesIn": self.bytes_in, "bytesOut": self.bytes_out, "wrong": self.is_wrong(),
        })
    }
}

/// Counters of one connection: bytes on the wire, TLS included.
#[derive(Debug, Default)]
pub struct Connection {
    /// Its number, from 1.
    pub number: u64,
    /// Bytes that came.
    pub bytes_in: AtomicU64,
    /// Bytes that went.
    pub bytes_out: AtomicU64,
    /// Requests so far.
    pub requests: AtomicU64,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections accepted.
    pub connections: u64,
    /// TLS handshakes with certificates.
    pub full_handshakes: u64,
    /// TLS handshakes that resumed a session.
    pub resumed_handshakes: u64,
    /// Requests.
    pub requests: u64,
    /// Bytes that came, TLS included.
    pub bytes_in: u64,
    /// Bytes that went, TLS included.
    pub bytes_out: u64,
}

#[derive(Debug, Default)]
struct Log {
    entries: VecDeque<(u64, Entry)>,
    next: u64,
    connections: VecDeque<Arc<Connection>>,
    /// Of connections that are no longer remembered.
    gone: (u64, u64, u64),
}

/// The log of a server.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    log: Mutex<Log>,
    pub(crate) full: AtomicU64,
    pub(crate) resumed: AtomicU64,
}

impl Audit {
    pub(crate) fn connection(&self) -> Arc<Connection> {
        let mut log = lock(&self.log);
        let number = u64::try_from(log.connections.len()).unwrap_or(u64::MAX) + log.gone.2 + 1;
        let connection = Arc::new(Connection {
            number,
            ..Connection::default()
        });
        log.connections.push_back(Arc::clone(&connection));
        while log.connections.len() > MAX_CONNECTIONS {
            if let Some(old) = log.connections.pop_front() {
                log.gone.0 += old.bytes_in.load(Ordering::Relaxed);
                log.gone.1 += old.bytes_out.load(Ordering::Relaxed);
                log.gone.2 += 1;
            }
        }
        connection
    }

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

    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        lock(&self.log).connections.iter().cloned().collect()
    }

    pub(crate) fn totals(&self) -> Totals {
        let log = lock(&self.log);
        let sum = |read: fn(&Connection) -> &AtomicU64| -> u64 {
            log.connections
                .iter()
                .map(|c| read(c).load(Ordering::Relaxed))
                .sum()
        };
        Totals {
            connections: u64::try_from(log.connections.len()).unwrap_or(u64::MAX) + log.gone.2,
            full_handshakes: self.full.load(Ordering::Relaxed),
            resumed_handshakes: self.resumed.load(Ordering::Relaxed),
            requests: log.next,
            bytes_in: sum(|c| &c.bytes_in) + log.gone.0,
            bytes_out: sum(|c| &c.bytes_out) + log.gone.1,
        }
    }
}
