//! The wall clock is watched: whether it was set, and whether it is right (TIME-05).

use super::{Agent, AgentEffect};
use crate::{agent::cluster::PodNews, api::MonoTime, logic::clock_history::ClockObservation};

impl Agent {
    /// Looks at the clocks. What was dated before the wall clock was right moves, all together and once.
    pub(super) fn watch_clock(&mut self, now: MonoTime) {
        let seen = self.tools.times.look(now);
        if seen == ClockObservation::Same {
            return;
        }
        self.effects
            .push_back(AgentEffect::KeepTimes(self.tools.times.stored()));
        if seen != ClockObservation::Right {
            return;
        }
        let (view, pods) = (&mut self.view, &mut self.pods);
        self.tools.times.with(|history| {
            view.redate(history);
            pods.redate(history);
        });
        self.tell_api(PodNews::Redated);
        // Some may have waited for it.
        for uid in self.pods.configured() {
            self.pods.resync(&uid, now);
        }
    }
}
