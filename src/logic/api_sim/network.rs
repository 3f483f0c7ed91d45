//! Requests on their way: processed, answered, or lost before or after either.

use core::time::Duration;

use serde_json::Value;

use super::{Answer, Flight, Request, World, copy_of};
use crate::api_pod;
use crate::api_poll::{self, DeliveryVerdict, PodListKind, PodObjectSummary};
use crate::mux::PodSource;
use crate::status_writer::{self, WriteFollowUp};
use crate::testing::server::{Refusal, item_of};

impl World {
    pub(super) fn send(&mut self, request: Request) {
        self.flights.push(Flight {
            request,
            answer: None,
        });
    }

    /// Has a request processed or an answer arrive, or loses either.
    pub(super) fn network(&mut self) {
        let count = u64::try_from(self.flights.len()).expect("few");
        if count == 0 {
            return;
        }
        let index = usize::try_from(self.random.below(count)).expect("few");
        let mut flight = self.flights.swap_remove(index);
        let write = matches!(flight.request, Request::Patch(..) | Request::Delete(..));
        let lost = self.faults && self.random.one_in(6);
        if lost || (write && self.server.is_fresh && flight.answer.is_none()) {
            self.fail(flight.request);
            return;
        }
        match flight.answer {
            None => {
                flight.answer = Some(self.process(&flight.request));
                self.flights.push(flight);
            }
            Some(answer) => self.answer(flight.request, answer),
        }
    }

    fn process(&mut self, request: &Request) -> Answer {
        match request {
            Request::List(list) => {
                // Before the first complete list only the list tells whether a pod is there.
                let may_be_stale =
                    self.faults && self.poll.has_completed() && !self.server.is_fresh;
                let stale = may_be_stale && self.random.one_in(5);
                let mut objects = self.server.list(*list, stale);
                let cut = self.faults && self.random.one_in(5);
                if cut {
                    let keep = self
                        .random
                        .below(u64::try_from(objects.len()).expect("few") + 1);
                    objects.truncate(usize::try_from(keep).expect("few"));
                }
                Answer::List {
                    objects,
                    version: self.server.version(stale),
                    cut,
                }
            }
            Request::Get(_, key) => match self.server.objects.get(key) {
                Some(object) => Answer::Object(object.clone()),
                // The Node authorizer may know of the deletion already, or not yet.
                None if self.random.one_in(3) => Answer::Forbidden,
                None => Answer::Gone,
            },
            Request::Patch(_, key, body) => match self.server.patch(key, body) {
                Ok(object) => Answer::Object(object),
                Err(Refusal::NotFound | Refusal::Conflict) => Answer::Refused,
            },
            Request::Delete(uid, key) => match self.server.delete(key, uid) {
                Ok(()) => Answer::Gone,
                Err(Refusal::NotFound | Refusal::Conflict) => Answer::Refused,
            },
        }
    }

    pub(super) fn fail(&mut self, request: Request) {
        let retry_after = self.random.one_in(3).then_some(Duration::from_secs(2));
        let server = api_poll::ApiRequestFailure::Server { retry_after };
        let write = if retry_after.is_some() {
            status_writer::WriteFailure::Busy { retry_after }
        } else {
            status_writer::WriteFailure::Failed
        };
        match request {
            Request::List(_) => self.poll.on_list_failed(server, self.now),
            Request::Get(ticket, _) => self.poll.on_read_failed(ticket, server, self.now),
            Request::Patch(uid, ..) => {
                let _ = self.poll.on_write_ended(&uid, None, self.now);
                let _ = self.writer.on_patched(&uid, Err(write), self.now);
            }
            Request::Delete(uid, _) => {
                let _ = self.poll.on_write_ended(&uid, None, self.now);
                let _ = self.writer.on_deleted(&uid, Err(write), self.now);
            }
        }
    }

    fn answer(&mut self, request: Request, answer: Answer) {
        match (request, answer) {
            (
                Request::List(list),
                Answer::List {
                    objects,
                    version,
                    cut,
                },
            ) => {
                for object in objects {
                    if list != PodListKind::Objects {
                        self.poll.on_list_item(&item_of(&object), self.now);
                        continue;
                    }
                    let verdict = self.poll.on_list_object(
                        &item_of(&object),
                        PodObjectSummary::from_raw_object(&object),
                        self.now,
                    );
                    self.on_object(object, verdict);
                }
                if cut {
                    let failure = api_poll::ApiRequestFailure::Server { retry_after: None };
                    self.poll.on_list_failed(failure, self.now);
                } else {
                    self.server.is_fresh = false;
                    self.poll.on_list_end(&version, self.now);
                }
            }
            (Request::Get(ticket, _), Answer::Object(object)) => {
                let sight = PodObjectSummary::from_raw_object(&object);
                let verdict = self
                    .poll
                    .on_read(ticket, &item_of(&object), sight, self.now);
                self.on_object(object, verdict);
            }
            (Request::Get(ticket, _), Answer::Gone) => {
                self.poll
                    .on_read_failed(ticket, api_poll::ApiRequestFailure::NotFound, self.now);
            }
            (Request::Get(ticket, _), Answer::Forbidden) => {
                self.poll
                    .on_read_failed(ticket, api_poll::ApiRequestFailure::Forbidden, self.now);
            }
            (Request::Patch(uid, ..), Answer::Object(object)) => {
                let sight = PodObjectSummary::from_raw_object(&object);
                let verdict = self.poll.on_write_ended(&uid, Some(sight), self.now);
                let received = api_pod::decode_api_pod(object.clone(), "n").expect("a pod");
                let _ = self
                    .writer
                    .on_patched(&uid, Ok(copy_of(&received)), self.now);
                if verdict == DeliveryVerdict::Deliver {
                    self.on_object(object, verdict);
                }
            }
            (Request::Delete(uid, _), Answer::Gone) => {
                let _ = self.poll.on_write_ended(&uid, None, self.now);
                self.poll.on_deleted(&uid);
                let _ = self.writer.on_deleted(&uid, Ok(None), self.now);
            }
            (Request::Patch(uid, ..), Answer::Refused) => {
                let _ = self.poll.on_write_ended(&uid, None, self.now);
                let next = self.writer.on_patched(
                    &uid,
                    Err(status_writer::WriteFailure::Unsure),
                    self.now,
                );
                if next == WriteFollowUp::Reread {
                    self.poll.request_read(&uid);
                }
            }
            (Request::Delete(uid, _), Answer::Refused) => {
                let _ = self.poll.on_write_ended(&uid, None, self.now);
                let next = self.writer.on_deleted(
                    &uid,
                    Err(status_writer::WriteFailure::Unsure),
                    self.now,
                );
                if next == WriteFollowUp::Reread {
                    self.poll.request_read(&uid);
                }
            }
            _ => panic!("no such answer"),
        }
    }

    fn on_object(&mut self, object: Value, verdict: DeliveryVerdict) {
        if verdict != DeliveryVerdict::Deliver {
            return;
        }
        // If one pod has taken the name of another, it comes after the other's end.
        while let Some(uid) = self.poll.next_gone_pod() {
            self.writer.on_pod_gone(&uid);
            let merged = self
                .mux
                .merge_partial(PodSource::Api, vec![], &[uid], self.wall());
            self.take(merged);
        }
        let received = api_pod::decode_api_pod(object, "n").expect("a pod");
        self.writer
            .on_api_copy(&received.pod.metadata.uid, copy_of(&received));
        let merged = self
            .mux
            .merge_partial(PodSource::Api, vec![received], &[], self.wall());
        assert!(merged.dropped.is_empty(), "{merged:?}");
        self.take(merged);
    }
}
