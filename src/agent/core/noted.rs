//! What of the loop's events and effects goes into the ring. Ticks are told by what they lead to.

use super::{Agent, Command, ConfigOp, Effect, Event};
use crate::{
    agent::{
        recorder::{About, Severity},
        ring::{self, Heard, Made, Seen},
    },
    api::{Mono, Pod},
    logic::{mux::Source, pod_table::Handle},
};

impl Agent {
    /// Takes down what came in. Ticks are told by what they lead to.
    pub(super) fn note(&mut self, event: &Event, now: Mono) {
        let heard = match event {
            Event::ImagesArrived | Event::Command(Command::ImagesArrived) => Heard::Images,
            Event::Done(handle, outcome) => Heard::done(&self.uid_of(*handle), *outcome),
            Event::Command(Command::Stop { all, .. }) => Heard::Stop { all: *all },
            Event::Terminate => Heard::Terminate,
            Event::Delivered(_)
            | Event::Recorded(_)
            | Event::ManifestsRead
            | Event::Settled(_)
            | Event::Shown(..)
            | Event::Loaded(..)
            | Event::Searched(_)
            | Event::Resync(_)
            | Event::Listed(_)
            | Event::Inspected(_)
            | Event::Conditions(_)
            | Event::Ask(_)
            | Event::Step(..)
            | Event::Probed(_)
            | Event::Housekeeping
            | Event::Cleaned
            | Event::Collected => return,
        };
        self.ring.heard(now, heard);
    }

    /// Takes down what a source has.
    pub(super) fn note_config(&mut self, source: Source, ops: &[ConfigOp], now: Mono) {
        let ring = &mut self.ring;
        let seen = |pod: &Pod| Seen::of(pod, source != Source::Api);
        for op in ops {
            match op {
                ConfigOp::Remove(uids) => uids.iter().for_each(|uid| {
                    let pod = ring::cut(uid.as_str());
                    ring.heard(now, Heard::Remove { pod });
                }),
                ConfigOp::Add(pods) => pods
                    .iter()
                    .for_each(|pod| ring.heard(now, Heard::Add(seen(pod)))),
                ConfigOp::Update(pods) => pods
                    .iter()
                    .for_each(|pod| ring.heard(now, Heard::Update(seen(pod)))),
                ConfigOp::Reconcile(pods) => pods
                    .iter()
                    .for_each(|pod| ring.heard(now, Heard::Reconcile(seen(pod)))),
            }
        }
    }

    /// UID of the pod in a slot; empty if the slot is another's by now.
    pub(super) fn uid_of(&self, handle: Handle) -> String {
        let uid = self.pods.uid(handle);
        uid.map_or_else(String::new, |uid| uid.as_str().to_owned())
    }

    pub(super) fn made(&mut self, now: Mono, made: Made) {
        self.ring.made(now, made);
    }

    /// Takes down what is made be done, but for calls, which say more.
    pub(super) fn note_effect(&mut self, effect: &Effect, now: Mono) {
        match effect {
            Effect::TidyDead(uid, id) => self.made(
                now,
                Made::TidyDead {
                    pod: ring::cut(uid.as_str()),
                    id: ring::cut(id.as_str()),
                },
            ),
            Effect::Housekeeping(_) => self.made(now, Made::Housekeeping),
            Effect::Start(..)
            | Effect::Relist
            | Effect::Inspect(..)
            | Effect::Load(..)
            | Effect::Search
            | Effect::Record(_)
            | Effect::SettleRecords
            | Effect::KeepShown(..)
            | Effect::ForgetOutcomes(_) => {}
        }
    }

    pub(super) fn tell_status_failed(&self, handle: Handle) {
        let Some(uid) = self.pods.uid(handle) else {
            return;
        };
        let Some((namespace, name)) = self.name_of(&uid) else {
            return;
        };
        let message = self.view.status_error(&uid).unwrap_or_default();
        let about = About {
            uid: &uid,
            namespace: &namespace,
            name: &name,
            field_path: "",
        };
        let text = format!("error determining status: {message}");
        let recorder = &self.tools.recorder;
        recorder.about(about, Severity::Warning, "FailedSync", &text);
    }
}
