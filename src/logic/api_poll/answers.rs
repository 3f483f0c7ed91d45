//! Answers and failures of requests.

use super::{
    ApiPoll, ApiRequestFailure, DeliveryVerdict, GetTicket, PodListItem, PodListKind,
    PodObjectSummary, slot::PodPollSlot, version_number,
};
use crate::api::{MonoTime, PodUid};

impl ApiPoll {
    /// Takes in an item of the metadata list under way.
    pub fn on_list_item(&mut self, item: &PodListItem, now: MonoTime) {
        self.raise_highest_version(version_number(&item.version));
        let known = self.find_slot(&item.uid).is_some();
        // A list of all phases brings two kinds of new pods: those that ended and wait for their deletion, and mirrors.
        // Others finished long ago, or the next list has them.
        if !known && self.listing == Some(PodListKind::All) && !item.deleting && !item.mirror {
            return;
        }
        match self.find_or_add_slot(item, now) {
            Some(index) => {
                let slot = &mut self.slots[index];
                slot.take_shown_version(&item.version);
                slot.request_read_if_doubtful(
                    item.deleting,
                    self.listing == Some(PodListKind::Live),
                );
                if !known && self.listing == Some(PodListKind::All) {
                    slot.presume_terminal();
                }
            }
            None => self.record_refused_pod(item),
        }
    }

    /// Takes in an item of a list of whole objects; `sight` is the part of the object to keep.
    pub fn on_list_object(
        &mut self,
        item: &PodListItem,
        sight: PodObjectSummary,
        now: MonoTime,
    ) -> DeliveryVerdict {
        let Some(index) = self.find_or_add_slot(item, now) else {
            self.record_refused_pod(item);
            return DeliveryVerdict::Ignore;
        };
        let namesakes = self.find_namesake(index).is_some();
        let slot = &mut self.slots[index];
        slot.take_shown_version(&item.version);
        // If two pods have the same name, only a `GET` tells which of them exists.
        if slot.is_overtaken_in_list() || !slot.wants_read() || namesakes {
            return DeliveryVerdict::Ignore;
        }
        self.take_object(index, sight, now)
    }

    /// Takes in the good end of the list: it has shown every pod that it selects. `version` is the list's own.
    pub fn on_list_end(&mut self, version: &str, now: MonoTime) {
        let Some(list) = self.listing.take() else {
            return;
        };
        self.record_success();
        let own = version_number(version);
        let back = own != 0 && own < self.list_floor;
        if back || core::mem::take(&mut self.recorded) {
            // The store went back, or may have while no agent looked: equal versions need not be equal objects.
            self.slots.iter_mut().for_each(PodPollSlot::request_read);
        }
        if back {
            // The second time in a row it is no stale list: the store went back, and its version counts from now on.
            if self.went_back {
                self.highest = own;
            }
        }
        self.went_back = back && !self.went_back;
        self.raise_highest_version(own);
        let any_phase = list == PodListKind::All;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let gone = slot.end_list(any_phase);
            // A pod that the list lacks is read even if it was never delivered: the list may be older than the ring.
            if gone {
                self.free_slot(index);
            }
        }
        if any_phase {
            self.scanned = Some(now);
            return;
        }
        if list == PodListKind::Objects {
            self.objects_after = now + super::OBJECTS_GAP;
        }
        self.proved = Some(now);
        self.complete_due = true;
        self.unheard |= self.bell.take_list_version(version);
    }

    /// Takes in the failure of the list. It proves nothing, even if only the last page failed.
    pub fn on_list_failed(&mut self, failure: ApiRequestFailure, now: MonoTime) {
        match self.listing.take() {
            Some(PodListKind::All) => self.scan_wanted = true,
            Some(PodListKind::Objects) => {
                self.objects_after = now + super::OBJECTS_GAP;
                self.wanted = true;
            }
            Some(PodListKind::Live) => self.wanted = true,
            None => return,
        }
        let retry_after = match failure {
            ApiRequestFailure::Server { retry_after } => retry_after,
            ApiRequestFailure::Forbidden
            | ApiRequestFailure::NotFound
            | ApiRequestFailure::Unusable => None,
        };
        self.record_failure(retry_after, now);
    }

    /// Takes in the object that a `GET` brought.
    pub fn on_read(
        &mut self,
        ticket: GetTicket,
        item: &PodListItem,
        sight: PodObjectSummary,
        now: MonoTime,
    ) -> DeliveryVerdict {
        let Some(index) = self.finish_get(ticket) else {
            return DeliveryVerdict::Ignore;
        };
        self.record_success();
        let overtaken = self.slots[index].end_get();
        if self.slots[index].uid() != item.uid.as_str() {
            // Another pod has the name by now, so this one is gone.
            self.drop_gone_pod(index);
            let Some(index) = self.find_or_add_slot(item, now) else {
                self.record_refused_pod(item);
                return DeliveryVerdict::Ignore;
            };
            let slot = &mut self.slots[index];
            slot.take_version(&item.version);
            // A pod that is held already, or that another request reads or writes, is not taken in here.
            if slot.is_held() || slot.is_overtaken_in_list() {
                return DeliveryVerdict::Ignore;
            }
            self.drop_namesakes(index);
            return self.take_object(index, sight, now);
        }
        if overtaken {
            return DeliveryVerdict::Ignore;
        }
        self.drop_namesakes(index);
        self.take_object(index, sight, now)
    }

    /// Takes in the failure of a `GET`.
    pub fn on_read_failed(&mut self, ticket: GetTicket, failure: ApiRequestFailure, now: MonoTime) {
        let Some(index) = self.finish_get(ticket) else {
            return;
        };
        let slot = &mut self.slots[index];
        slot.end_get();
        match failure {
            ApiRequestFailure::NotFound => {
                self.record_success();
                self.drop_gone_pod(index);
            }
            ApiRequestFailure::Forbidden => {
                slot.forbid();
                slot.put_off_read(now, |base| self.jitter.stretch_delay(base));
                self.scan_wanted = true;
                self.record_success();
            }
            ApiRequestFailure::Unusable => {
                slot.put_off_read(now, |base| self.jitter.stretch_delay(base));
                self.record_success();
            }
            ApiRequestFailure::Server { retry_after } => self.record_failure(retry_after, now),
        }
    }

    /// Notes that a write of ours to this pod begins: until it has ended the pod is not read.
    pub fn on_write_started(&mut self, uid: &PodUid) {
        if let Some(index) = self.find_slot(uid) {
            self.slots[index].begin_write();
        }
    }

    /// Takes in the end of a write of ours; `answer` is the resulting object, if there was an answer at all.
    ///
    /// The answer counts as a read. [`DeliveryVerdict::Deliver`]: another client has changed the object meanwhile.
    pub fn on_write_ended(
        &mut self,
        uid: &PodUid,
        answer: Option<PodObjectSummary>,
        now: MonoTime,
    ) -> DeliveryVerdict {
        let Some(index) = self.find_slot(uid) else {
            return DeliveryVerdict::Ignore;
        };
        let slot = &mut self.slots[index];
        slot.end_write();
        let Some(sight) = answer else {
            // It may have been done all the same: the doorbell or the next list shows it.
            return DeliveryVerdict::Same;
        };
        let more = slot.take_write_answer(sight, now);
        self.raise_highest_version(sight.number);
        self.limit_finished();
        if more {
            DeliveryVerdict::Deliver
        } else {
            DeliveryVerdict::Same
        }
    }

    /// Takes in the answer that the API has deleted the pod as we asked: it is gone, not only marked.
    pub fn on_deleted(&mut self, uid: &PodUid) {
        if let Some(index) = self.find_slot(uid) {
            self.drop_gone_pod(index);
        }
    }

    /// Has a pod read whatever its version: a write met a conflict, or the mux does not hold the pod.
    pub fn request_read(&mut self, uid: &PodUid) {
        if let Some(index) = self.find_slot(uid) {
            self.slots[index].request_read();
        }
    }

    /// Has a pod read again if an answer to a write of ours came after it was seen as in `sight`. Returns true then: what was
    /// seen is old.
    pub fn reread_if_overtaken(&mut self, uid: &PodUid, sight: PodObjectSummary) -> bool {
        let Some(index) = self.find_slot(uid) else {
            return false;
        };
        let slot = &mut self.slots[index];
        let is_overtaken = slot.was_read_after(sight);
        if is_overtaken {
            slot.request_read();
        }
        is_overtaken
    }

    /// Takes back the delivery of a pod that the mux did not take: it is read again ([`ApiPoll::unread_pods`]).
    pub fn undeliver(&mut self, uid: &PodUid) {
        if let Some(index) = self.find_slot(uid) {
            self.slots[index].undeliver();
        }
    }

    pub(super) fn raise_highest_version(&mut self, number: u64) {
        self.highest = self.highest.max(number);
    }

    /// Finds another pod of the same namespace and name.
    fn find_namesake(&self, index: usize) -> Option<usize> {
        let path = self.slots[index].namespace_and_name();
        let other = |(other, slot): (usize, &PodPollSlot)| {
            other != index && slot.is_used() && slot.namespace_and_name() == path
        };
        self.slots.iter().enumerate().position(other)
    }

    /// Frees other pods with the same name: a `GET` has shown which pod has it, so the others are gone.
    fn drop_namesakes(&mut self, index: usize) {
        while let Some(other) = self.find_namesake(index) {
            self.free_slot(other);
        }
    }

    /// Takes a `GET` off the count. Returns its pod, unless that is gone.
    fn finish_get(&mut self, ticket: GetTicket) -> Option<usize> {
        self.gets = self.gets.saturating_sub(1);
        let slot = self.slots.get(ticket.index)?;
        (slot.is_used() && slot.generation == ticket.generation).then_some(ticket.index)
    }

    /// Frees a pod that is gone, as an answer says. If the pod was shown while the answer was on its way, the store may
    /// have been restored since: the next list tells, and takes it in as another pod.
    fn drop_gone_pod(&mut self, index: usize) {
        self.wanted |= self.slots[index].was_shown_meanwhile();
        self.free_slot(index);
    }

    fn take_object(
        &mut self,
        index: usize,
        sight: PodObjectSummary,
        now: MonoTime,
    ) -> DeliveryVerdict {
        self.raise_highest_version(sight.number);
        let slot = &mut self.slots[index];
        if sight.terminal && !sight.deleting && !sight.mirror && !slot.is_held() {
            // The pod ended before it was known here: it needs nothing from this node.
            self.free_slot(index);
            return DeliveryVerdict::Ignore;
        }
        slot.take_read_object(sight, now);
        self.limit_finished();
        DeliveryVerdict::Deliver
    }
}
