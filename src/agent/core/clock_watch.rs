//! The wall clock is watched: whether it was set, and whether it is right (TIME-05).

use super::{Agent, AgentEffect};
use crate::{agent::cluster::PodNews, api::MonoTime, logic::clock_history::ClockObservation};

impl Agent {
    /// Looks at the clocks. What was dated before the wall clock was right moves, all together and once.
    pub(super) fn watch_clock(&mut self, now: MonoTime) {
        let seen = self.tools.times.observe_clocks(now);
        if seen == ClockObservation::Same {
            return;
        }
        self.effects
            .push_back(AgentEffect::KeepTimes(self.tools.times.make_history_file()));
        if seen != ClockObservation::Right {
            return;
        }
        let (view, pods) = (&mut self.view, &mut self.pods);
        self.tools.times.with_history(|history| {
            view.correct_dates(history);
            pods.correct_status_times(history);
        });
        self.send_api_news(PodNews::Redated);
        // Some may have waited for it.
        for uid in self.pods.configured_uids() {
            self.pods.resync_worker(&uid, now);
        }
    }
}
