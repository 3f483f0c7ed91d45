//! Record of each Service: its name and digests (PROX-04, PROX-21). Endpoints and elements are only in the kernel.
//!
//! A list of the metadata of all Services and slices tells which moved; a doorbell tells of one. Nothing is due before
//! both lists were read once, and a list that failed changes nothing.

use alloc::{boxed::Box, string::String, vec::Vec};

use super::object::{digest_text, slice_digest};

/// Most Services that are kept.
pub const MAX_SERVICES: usize = 20_000;
/// Bytes of a namespace with a name, as the API limits them.
const MAX_NAME_BYTES: usize = 63 + 1 + 253;
/// Bytes that are kept of a Service, besides its name.
const RECORD_BYTES: usize = 64;
/// Services that are written before all others: no pod works without them (PROX-27).
const FIRST: [&str; 2] = ["default/kubernetes", "kube-system/kube-dns"];

/// Digest of what was written of a Service that has nothing to serve.
const IDLE: u64 = 1;

const fn is_in_table(written: u64) -> bool {
    written > IDLE
}

/// Record of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ServiceRecord {
    /// `NAMESPACE/NAME`.
    name: Box<str>,
    /// Digest of its UID; 0: not read yet.
    uid: u64,
    /// Digest of the version that was seen last.
    version: u64,
    /// Sum of the digests of its slices.
    slices: u64,
    /// Digest of the elements that were written.
    frontends: u64,
    /// Digest of all that was written; 0: nothing.
    written: u64,
    state: RecordState,
}
const _: () = assert!(
    size_of::<ServiceRecord>() <= RECORD_BYTES,
    "one for each Service"
);

/// State of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RecordState {
    /// Has to be read again.
    is_due: bool,
    /// Some keys had no endpoint when it was written.
    was_missing: bool,
    /// Another Service has one of its addresses.
    has_conflict: bool,
    /// The kernel did not take its rules; those of before are still there.
    was_refused: bool,
    /// Flows of UDP may lead to endpoints that are gone: they could not be removed.
    has_stale_flows: bool,
}

/// What was written of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenService {
    /// Digest of its UID.
    pub uid: u64,
    /// Digest of the version that was read.
    pub version: u64,
    /// Sum of the digests of the slices that were read.
    pub slices: u64,
    /// Digest of the elements.
    pub frontends: u64,
    /// Digest of everything.
    pub written: u64,
    /// Some keys have no endpoint.
    pub has_missing: bool,
    /// Another Service has one of its addresses.
    pub has_conflict: bool,
}

/// Knowledge about what was written of a Service before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenBefore {
    /// Digest of its UID; 0: not known.
    pub uid: u64,
    /// Digest of the elements.
    pub frontends: u64,
    /// Digest of everything; 0: nothing was written.
    pub written: u64,
    /// Some keys had no endpoint.
    pub was_missing: bool,
    /// Another Service had one of its addresses.
    pub had_conflict: bool,
    /// The kernel did not take its rules.
    pub was_refused: bool,
    /// Its flows of UDP were not looked through.
    pub has_stale_flows: bool,
}

/// Digests of the UIDs of the Services that exist, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LivingServices(Vec<u64>);

impl LivingServices {
    /// Returns true if the Service exists.
    #[must_use]
    pub fn contains(&self, uid: u64) -> bool {
        self.0.binary_search(&uid).is_ok()
    }

    /// Takes the Service that has a name now, in the place of the one that had it. 0 stands for none.
    pub fn replace(&mut self, before: u64, now: u64) {
        if let Ok(at) = self.0.binary_search(&before) {
            self.0.remove(at);
        }
        if now != 0
            && let Err(at) = self.0.binary_search(&now)
        {
            self.0.insert(at, now);
        }
    }
}

/// Metadata of all Services and slices, while they are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceListing {
    /// Name, digests of UID and version, sum of the digests of its slices.
    rows: Vec<(Box<str>, u64, u64, u64)>,
    /// Set once all Services are there.
    is_sorted: bool,
    is_cut: bool,
}

impl ServiceListing {
    /// Adds a Service.
    pub fn add_service(&mut self, namespace: &str, name: &str, uid: &str, version: &str) {
        let Some(name) = full_name(namespace, name) else {
            return;
        };
        if self.rows.len() == MAX_SERVICES {
            self.is_cut = true;
            return;
        }
        self.rows
            .push((name, digest_text(uid), digest_text(version), 0));
    }

    /// Adds a slice of a Service. All Services have to be there.
    pub fn add_slice(&mut self, namespace: &str, service: &str, slice: (&str, &str, &str)) {
        if !self.is_sorted {
            self.rows.sort_unstable();
            self.is_sorted = true;
        }
        let Some(owner) = full_name(namespace, service) else {
            return;
        };
        if let Ok(at) = self.rows.binary_search_by(|row| row.0.cmp(&owner)) {
            let (name, uid, version) = slice;
            let row = &mut self.rows[at];
            row.3 = row.3.wrapping_add(slice_digest(name, uid, version));
        }
    }

    /// Returns true if there were more Services than are kept.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// Records of all Services, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceIndex {
    records: Vec<ServiceRecord>,
    /// UIDs of Services that are gone and still in the table.
    gone: Vec<u64>,
    /// UIDs of such Services whose rules the kernel does not let go.
    refused_gone: Vec<u64>,
    is_listed: bool,
}

impl ServiceIndex {
    /// Takes a whole list of Services and slices. What moved is due.
    pub fn take_listing(&mut self, mut listing: ServiceListing) {
        if !listing.is_sorted {
            listing.rows.sort_unstable();
        }
        listing.rows.dedup_by(|a, b| a.0 == b.0);
        let mut before = core::mem::take(&mut self.records).into_iter().peekable();
        let mut now = Vec::with_capacity(listing.rows.len());
        for (name, uid, version, slices) in listing.rows {
            while let Some(lost) = before.next_if(|it| it.name < name) {
                self.gone.extend((lost.uid != 0).then_some(lost.uid));
            }
            let mut record = match before.next_if(|it| it.name == name) {
                Some(record) => record,
                None => ServiceRecord {
                    name,
                    ..ServiceRecord::default()
                },
            };
            if record.uid != uid && record.uid != 0 {
                self.gone.push(record.uid);
                record.written = 0;
                record.frontends = 0;
            }
            let is_new = (record.uid, record.version, record.slices) != (uid, version, slices);
            // One that was refused has its own time.
            let is_unwritten = record.written == 0 && !record.state.was_refused;
            record.state.is_due |= is_new || is_unwritten || record.state.has_conflict;
            (record.uid, record.version, record.slices) = (uid, version, slices);
            now.push(record);
        }
        self.gone
            .extend(before.map(|lost| lost.uid).filter(|uid| *uid != 0));
        now.shrink_to_fit();
        self.records = now;
        self.is_listed = true;
    }

    /// Marks a Service that a doorbell named: it, or a slice of it, changed. A new one gets a record.
    pub fn ring(&mut self, namespace: &str, name: &str) {
        let Some(name) = full_name(namespace, name) else {
            return;
        };
        match self.find(&name) {
            Ok(at) => self.records[at].state.is_due = true,
            Err(at) if self.records.len() < MAX_SERVICES => {
                let mut record = ServiceRecord {
                    name,
                    ..ServiceRecord::default()
                };
                record.state.is_due = true;
                self.records.insert(at, record);
            }
            Err(_) => {}
        }
    }

    /// Marks all: the table, or a setting that all depend on, has changed. Their elements may be gone, too.
    pub fn mark_all(&mut self) {
        for record in &mut self.records {
            record.state.is_due = true;
            record.frontends = 0;
            record.written = 0;
        }
    }

    /// Marks all whose choice of endpoints depends on the node: its zone or its addresses have changed.
    pub fn mark_all_due(&mut self) {
        for record in &mut self.records {
            record.state.is_due = true;
        }
    }

    /// Number of Services that are due.
    #[must_use]
    pub fn count_due(&self) -> usize {
        self.records.iter().filter(|it| it.state.is_due).count()
    }

    /// Returns true once there was a whole list: nothing may be written before.
    #[must_use]
    pub const fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Number of Services that are in the table.
    #[must_use]
    pub fn count_written(&self) -> usize {
        self.records
            .iter()
            .filter(|it| is_in_table(it.written))
            .count()
    }

    /// Takes the next Service that is due: namespace and name. Those that no pod works without come first.
    pub fn take_due(&mut self) -> Option<(String, String)> {
        self.take_first_due().or_else(|| {
            let mut records = self.records.iter();
            let at = records.position(|it| it.state.is_due)?;
            self.is_listed.then(|| self.take_at(at))
        })
    }

    /// Takes the next Service that is due and that no pod works without.
    pub fn take_first_due(&mut self) -> Option<(String, String)> {
        let mut first = FIRST.iter().filter_map(|name| self.find(name).ok());
        let at = first.find(|at| self.records[*at].state.is_due)?;
        self.is_listed.then(|| self.take_at(at))
    }

    fn take_at(&mut self, at: usize) -> (String, String) {
        let record = &mut self.records[at];
        record.state.is_due = false;
        let (namespace, name) = record.name.split_once('/').unwrap_or((&record.name, ""));
        (namespace.into(), name.into())
    }

    /// Returns true if a Service is due.
    #[must_use]
    pub fn is_due(&self, namespace: &str, name: &str) -> bool {
        let found = full_name(namespace, name).and_then(|name| self.find(&name).ok());
        found.is_some_and(|at| self.records[at].state.is_due)
    }

    /// Marks a Service that is being read.
    pub fn set_taken(&mut self, namespace: &str, name: &str) {
        if let Some(record) = self.record(namespace, name) {
            record.state.is_due = false;
        }
    }

    /// What was written of a Service before.
    #[must_use]
    pub fn written_before(&self, namespace: &str, name: &str) -> WrittenBefore {
        let found = full_name(namespace, name).and_then(|name| self.find(&name).ok());
        let Some(record) = found.map(|at| &self.records[at]) else {
            return WrittenBefore::default();
        };
        WrittenBefore {
            uid: record.uid,
            frontends: record.frontends,
            written: record.written,
            was_missing: record.state.was_missing,
            had_conflict: record.state.has_conflict,
            was_refused: record.state.was_refused,
            has_stale_flows: record.state.has_stale_flows,
        }
    }

    /// Notes what was read and written of a Service. One with another UID than before leaves the old one to be removed.
    pub fn set_written(&mut self, namespace: &str, name: &str, service: WrittenService) {
        let Some(record) = self.record(namespace, name) else {
            return;
        };
        let lost = (record.uid != service.uid && record.uid != 0).then_some(record.uid);
        record.uid = service.uid;
        record.version = service.version;
        record.slices = service.slices;
        record.frontends = service.frontends;
        record.written = service.written;
        record.state.was_missing = service.has_missing;
        record.state.has_conflict = service.has_conflict;
        record.state.was_refused = false;
        record.state.has_stale_flows = false;
        self.gone.extend(lost);
    }

    /// Notes that a Service has nothing to serve: it stays known, so that the next list finds it unchanged.
    pub fn set_idle(&mut self, namespace: &str, name: &str, seen: WrittenService) {
        let before = self.written_before(namespace, name);
        let idle = WrittenService {
            frontends: 0,
            written: IDLE,
            ..seen
        };
        self.set_written(namespace, name, idle);
        // The table may have elements of it. Those of another UID go as for every Service that was made anew.
        if before.written != IDLE && before.uid == seen.uid && before.uid != 0 {
            self.gone.push(before.uid);
        }
    }

    /// Marks a Service whose rules the kernel does not take: the table has those of before, if any.
    pub fn set_refused(&mut self, namespace: &str, name: &str) {
        if let Some(record) = self.record(namespace, name) {
            record.state.was_refused = true;
        }
    }

    /// Notes a Service that is gone, and whose rules the kernel does not let go.
    pub fn set_gone_refused(&mut self, uid: u64) {
        self.refused_gone.push(uid);
    }

    /// Notes a Service that was written, and whose flows of UDP could not be removed.
    pub fn set_stale_flows(&mut self, namespace: &str, name: &str) {
        if let Some(record) = self.record(namespace, name) {
            record.state.has_stale_flows = true;
        }
    }

    /// Marks all that the kernel did not take, and no other.
    pub fn retry_refused(&mut self) {
        self.gone.append(&mut self.refused_gone);
        for record in &mut self.records {
            let state = &mut record.state;
            state.is_due |= state.was_refused || state.has_stale_flows;
        }
    }

    /// Number of Services whose rules the kernel did not take.
    #[must_use]
    pub fn count_refused(&self) -> usize {
        let refused = self.records.iter().filter(|it| it.state.was_refused);
        refused.count()
    }

    /// Marks a Service that has lost an address to another.
    pub fn set_robbed(&mut self, uid: u64) {
        for record in self.records.iter_mut().filter(|it| it.uid == uid) {
            record.state.has_conflict = true;
            record.state.is_due = true;
        }
    }

    /// Marks a Service that could not be read or written.
    pub fn set_due(&mut self, namespace: &str, name: &str) {
        if let Some(record) = self.record(namespace, name) {
            record.state.is_due = true;
        }
    }

    /// Forgets a Service that is gone.
    pub fn remove_service(&mut self, namespace: &str, name: &str) {
        let found = full_name(namespace, name).and_then(|name| self.find(&name).ok());
        let Some(at) = found else {
            return;
        };
        let record = self.records.remove(at);
        self.gone.extend((record.uid != 0).then_some(record.uid));
    }

    /// Marks Services whose addresses another had, and may have given up.
    pub fn retry_conflicts(&mut self) {
        for record in &mut self.records {
            record.state.is_due |= record.state.has_conflict;
        }
    }

    /// Takes the UIDs of Services that are gone and still in the table.
    pub fn take_gone(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.gone)
    }

    /// Puts UIDs back that could not be removed.
    pub fn put_back_gone(&mut self, gone: &[u64]) {
        self.gone.extend(gone);
    }

    /// Services that the table may have rules of: all but those that have nothing to serve.
    #[must_use]
    pub fn living(&self) -> LivingServices {
        let served = self.records.iter().filter(|it| it.written != IDLE);
        let uids = served.map(|it| it.uid).filter(|uid| *uid != 0);
        let mut living: Vec<u64> = uids.collect();
        living.sort_unstable();
        LivingServices(living)
    }

    /// Returns true if there is a Service of that name.
    #[must_use]
    pub fn has_service(&self, namespace: &str, name: &str) -> bool {
        full_name(namespace, name).is_some_and(|name| self.find(&name).is_ok())
    }

    fn record(&mut self, namespace: &str, name: &str) -> Option<&mut ServiceRecord> {
        let at = self.find(&full_name(namespace, name)?).ok()?;
        self.records.get_mut(at)
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.records.binary_search_by(|it| (*it.name).cmp(name))
    }
}

/// `NAMESPACE/NAME`; `None`: it is no name of the API.
fn full_name(namespace: &str, name: &str) -> Option<Box<str>> {
    let is_wrong =
        |text: &str| text.is_empty() || text.contains(['/', ',', '(', ')', '&', '?', ' ']);
    let is_long = namespace.len() + 1 + name.len() > MAX_NAME_BYTES;
    if is_wrong(namespace) || is_wrong(name) || is_long {
        return None;
    }
    Some([namespace, "/", name].concat().into_boxed_str())
}
