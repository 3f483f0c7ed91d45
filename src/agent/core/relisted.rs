//! Consequences of a listing of the runtime.

use super::{Agent, AgentEffect, RuntimeListing, runtime_view::ListingResult};
use crate::{
    agent::ring::{self, RecordedEvent},
    api::MonoTime,
    logic::{dispatch, pleg},
};

impl Agent {
    /// Events of a listing find a status at least as new in the cache: what differs is read before they are made (PLEG-07).
    pub(super) fn on_listed(&mut self, listing: RuntimeListing, now: MonoTime) {
        let (differing, happened) = match self.view.take_listing(&listing) {
            ListingResult::Differs(pods) => (pods, None),
            ListingResult::Complete(happened) => (Vec::new(), Some(happened)),
        };
        let effect = AgentEffect::Inspect(differing, listing.inspect);
        self.effects.push_back(effect);
        if let Some(happened) = happened {
            self.on_pleg_events(happened, now);
        }
    }

    pub(super) fn on_pleg_events(&mut self, events: Vec<pleg::PlegEvent>, now: MonoTime) {
        self.take_in_early(now);
        let discarded = self.view.discarded_event_count();
        self.tools
            .counters
            .count_work(|c| c.set_discarded_events(discarded));
        if !events.is_empty() {
            self.rounds.search_due = MonoTime(0);
        }
        for event in events {
            let heard = RecordedEvent::Pleg {
                pod: ring::cut_text(event.uid.as_str()),
                kind: format!("{:?}", event.kind),
                id: ring::cut_text(&event.id),
            };
            self.ring.record_event(now, heard);
            let is_config = self.pods.is_configured(&event.uid);
            let reaction = dispatch::on_pleg_event(event.kind, &event.id, is_config);
            if reaction.sync {
                self.pods.resync_worker(&event.uid, now);
            }
            if reaction.clean_dead {
                self.effects.push_back(AgentEffect::TidyDead(
                    event.uid.clone(),
                    event.id.as_ref().into(),
                ));
            }
        }
    }
}
