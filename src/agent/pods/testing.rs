//! What tests ask of pods. Only built for tests.

use alloc::collections::BTreeMap;
use core::cell::Ref;

use super::{Pods, entry::PodEntry};
use crate::{
    api::{PodStatus, PodUid},
    config::{self, Host},
    logic::pod_table::PodTable,
};

/// Pods of a node with the defaults of its configuration.
pub(super) fn pods() -> Pods {
    let host = Host {
        hostname: "board".into(),
    };
    let flags = config::flags::parse(Vec::new(), std::path::Path::new("/")).expect("no flags");
    let loaded = config::load(flags, &host).expect("defaults");
    Pods::new(&loaded.config, 1)
}

impl Pods {
    /// The workers.
    pub(in crate::agent) fn table(&self) -> Ref<'_, PodTable> {
        self.table.borrow()
    }

    /// All stored statuses.
    pub(in crate::agent) fn statuses(&self) -> BTreeMap<PodUid, PodStatus> {
        let entries = self.entries.borrow();
        let stored = entries
            .iter()
            .map(|(uid, e)| Some((uid.clone(), e.status.get()?.clone())));
        stored.flatten().collect()
    }

    /// Whether nobody has a turn.
    pub(in crate::agent) fn is_idle(&self) -> bool {
        self.entries.borrow().values().all(PodEntry::is_idle)
    }

    /// Whether nothing is known of the pod.
    pub(super) fn is_forgotten(&self, uid: &PodUid) -> bool {
        !self.entries.borrow().contains_key(uid)
    }

    /// Whether some pod has not run yet.
    pub(in crate::agent) fn some_start(&self) -> bool {
        self.entries.borrow().values().any(|e| e.starting.is_some())
    }
}
