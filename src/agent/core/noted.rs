//! Lines of the ring for the loop's events and effects. A tick has none: its consequences have.

use super::{Agent, Command, ConfigOp, Effect, Event};
use crate::{
    agent::{
        executor::Step,
        recorder::{About, Severity},
        ring::{self, Heard, Made, Seen, Stepped},
    },
    api::{Mono, Pod},
    logic::{mux::Source, pod_table::Handle},
};

impl Agent {
    /// Takes down what came in, before anything is made of it.
    pub(super) fn note(&mut self, event: &Event, now: Mono) {
        if let Some(heard) = self.heard(event, now) {
            self.ring.heard(now, heard);
        }
    }

    /// Returns the line of the ring for an event. A tick has none: its consequences have lines.
    fn heard(&self, event: &Event, now: Mono) -> Option<Heard> {
        Some(match event {
            Event::ImagesArrived | Event::Command(Command::ImagesArrived) => Heard::Images,
            Event::Done(handle, outcome) => Heard::done(&self.uid_of(*handle), *outcome),
            Event::Command(Command::Shutdown { .. }) => Heard::Shutdown,
            Event::Command(Command::ShutdownCancelled) => Heard::ShutdownCancelled,
            Event::Command(Command::Stop { all, .. }) => Heard::Stop { all: *all },
            Event::Command(Command::Restart(uid)) => Heard::Restart { pod: ring::cut(uid) },
            Event::Terminate => Heard::Terminate,
            Event::Shown(uid, object) => Heard::shown(uid, object),
            Event::Loaded(uid, purpose, Err(_)) => Heard::unread(uid, purpose),
            Event::Resync(uids) => Heard::Resync(uids.iter().map(|uid| ring::cut(uid)).collect()),
            Event::Listed(_) if self.view.relists_fail(now) => Heard::Listed {
                after_ms: self.view.last_relist().map(|at| now.since_ms(at)),
            },
            Event::Conditions(status) => {
                let (runtime, network) = (status.runtime_ready.ok, status.network_ready.ok);
                if self.view.conditions(now) == Some((runtime, network)) {
                    return None;
                }
                Heard::Conditions { runtime, network }
            }
            Event::Probed(probed) => Heard::probed(probed),
            Event::Api(answer) => Heard::Api(answer.clone()),
            // Told where it shows what they bring: `note_config`, `on_recorded`, `note_waiting`, `note_step`, `on_pleg`.
            Event::Delivered(_)
            | Event::Recorded(_)
            | Event::Settled(_)
            | Event::Step(..)
            | Event::Inspected(_)
            // Told by what they lead to.
            | Event::Loaded(_, _, Ok(_))
            | Event::Searched(_)
            | Event::NodeRead(_)
            | Event::Listed(_)
            | Event::Housekeeping
            | Event::MemoryBell
            | Event::Eviction(_)
            | Event::Resources(_)
            | Event::Cleaned
            | Event::Collected
            // Nothing is decided by them.
            | Event::ManifestsRead
            | Event::Ask(_) => return None,
        })
    }

    /// Takes down a step of a call, unless what it comes to is told with it.
    pub(super) fn note_step(&mut self, call: Handle, step: &Step, now: Mono) {
        let word = match step {
            Step::OutcomeKept(..) => "outcomeKept",
            Step::Limited(true) => "limited",
            Step::Limited(false) => "unlimited",
            Step::SandboxUp(_) => "sandboxUp",
            Step::Killed => "killed",
            Step::CleanedUp(_) => "cleanedUp",
            Step::Acted { pod, starts, .. } => {
                for start in starts {
                    let step = Stepped::of(&pod.metadata.uid, "started").about(&start.container);
                    let why_not = start.result.as_ref().err().map(|why| why.reason);
                    self.stepped(now, step.because(why_not));
                }
                return;
            }
            Step::Begun { .. }
            | Step::Unsettled(_)
            | Step::HoldsNothing(..)
            | Step::Mounted(_)
            | Step::Restarts { .. }
            | Step::Stopping { .. }
            | Step::Stopped { .. }
            // A doorbell.
            | Step::Changed => return,
        };
        let step = Stepped::of(&self.uid_of(call), word);
        self.stepped(now, step);
    }

    /// Takes down what a call came to.
    pub(super) fn stepped(&mut self, now: Mono, step: Stepped) {
        self.ring.heard(now, Heard::Step(step));
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
            | Effect::KeepTimes(_)
            | Effect::ForgetOutcomes(_)
            | Effect::Eviction(_)
            | Effect::AskResources(_) => {}
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
        let about = About::whole(&uid, &namespace, &name);
        let text = format!("error determining status: {message}");
        let recorder = &self.tools.recorder;
        recorder.about(about, Severity::Warning, "FailedSync", &text);
    }
}
