//! Instants at which tokens are to be replaced.

use alloc::collections::BTreeMap;
use core::cell::RefCell;

use crate::{
    api::{MonoTime, PodUid},
    logic::{fnv::fnv1a, pod_refs::TokenRef},
};

/// Instants at which the tokens in force are to be replaced. As many as volumes of the node's pods ask for.
#[derive(Debug, Default)]
pub(super) struct TokenTimes {
    due: RefCell<BTreeMap<(PodUid, u64), TokenRenewalTime>>,
}

/// Instant at which a token is to be replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenRenewalTime {
    pub(super) at: MonoTime,
    /// An agent before this one asked for it: its age is known by the time of day alone, which may turn out to be another.
    pub(super) is_found: bool,
}

fn token_slot(uid: &PodUid, token: &TokenRef) -> (PodUid, u64) {
    let seconds = token.expiration_s.unwrap_or(0).to_le_bytes();
    (
        uid.clone(),
        fnv1a(seconds.into_iter().chain(token.audience.bytes())),
    )
}

impl TokenTimes {
    /// Instant at which that token is to be replaced, if it is known.
    pub(super) fn renewal_time(&self, uid: &PodUid, token: &TokenRef) -> Option<TokenRenewalTime> {
        self.due.borrow().get(&token_slot(uid, token)).copied()
    }

    /// Sets the instant at which that token is to be replaced.
    pub(super) fn set_renewal_time(&self, uid: &PodUid, token: &TokenRef, due: TokenRenewalTime) {
        self.due.borrow_mut().insert(token_slot(uid, token), due);
    }

    /// Forgets a pod's.
    pub(super) fn forget_pod(&self, uid: &PodUid) {
        self.due.borrow_mut().retain(|(of, _), _| of != uid);
    }

    /// Pods with a token that is to be replaced by now.
    pub(super) fn pods_due(&self, now: MonoTime) -> Vec<PodUid> {
        let due = self.due.borrow();
        let mut pods: Vec<PodUid> = due
            .iter()
            .filter(|(_, due)| due.at <= now)
            .map(|((uid, _), _)| uid.clone())
            .collect();
        pods.dedup();
        pods
    }
}
