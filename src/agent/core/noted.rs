//! Lines of the ring for the loop's events and effects. A tick has none: its consequences have.

use super::{Agent, AgentCommand, AgentEffect, AgentEvent, ConfigOp};
use crate::{
    agent::{
        executor::CallStep,
        recorder::{EventSeverity, EventSubject},
        ring::{self, RecordedEffect, RecordedEvent, RecordedPod, RecordedStep},
    },
    api::{MonoTime, Pod},
    logic::{mux::PodSource, pod_table::PodHandle},
};

impl Agent {
    /// Takes down what came in, before anything is made of it.
    pub(super) fn note_event(&mut self, event: &AgentEvent, now: MonoTime) {
        if let Some(heard) = self.describe_event(event, now) {
            self.ring.record_event(now, heard);
        }
    }

    /// Returns the line of the ring for an event. A tick has none: its consequences have lines.
    fn describe_event(&self, event: &AgentEvent, now: MonoTime) -> Option<RecordedEvent> {
        Some(match event {
            AgentEvent::ImagesArrived | AgentEvent::Command(AgentCommand::ImagesArrived) => RecordedEvent::Images,
            AgentEvent::Done(handle, outcome) => RecordedEvent::call_done(&self.uid_in_slot(*handle), *outcome),
            AgentEvent::Command(AgentCommand::Shutdown { .. }) => RecordedEvent::Shutdown,
            AgentEvent::Command(AgentCommand::ShutdownCancelled) => RecordedEvent::ShutdownCancelled,
            AgentEvent::Command(AgentCommand::Stop { all, .. }) => RecordedEvent::Stop { all: *all },
            AgentEvent::Command(AgentCommand::Restart(uid)) => RecordedEvent::Restart { pod: ring::cut_text(uid) },
            AgentEvent::Terminate => RecordedEvent::Terminate,
            AgentEvent::Shown(uid, object) => RecordedEvent::shown_pod(uid, object),
            AgentEvent::Loaded(uid, purpose, Err(_)) => RecordedEvent::unread_record(uid, purpose),
            AgentEvent::Resync(uids) => RecordedEvent::Resync(uids.iter().map(|uid| ring::cut_text(uid)).collect()),
            AgentEvent::Listed(_) if self.view.relists_fail(now) => RecordedEvent::Listed {
                after_ms: self.view.last_relist().map(|at| now.since_ms(at)),
            },
            AgentEvent::Conditions(status) => {
                let (runtime, network) = (status.runtime_ready.ok, status.network_ready.ok);
                if self.view.ready_conditions(now) == Some((runtime, network)) {
                    return None;
                }
                RecordedEvent::Conditions { runtime, network }
            }
            AgentEvent::Probed(probed) => RecordedEvent::probe_result(probed),
            AgentEvent::Api(answer) => RecordedEvent::Api(answer.clone()),
            // Told where it shows what they bring: `note_config`, `on_recorded`, `note_waiting_records`,
            // `note_step`, `on_pleg_events`.
            AgentEvent::Delivered(_)
            | AgentEvent::Recorded(_)
            | AgentEvent::Settled(_)
            | AgentEvent::Step(..)
            | AgentEvent::Inspected(_)
            // Told by what they lead to.
            | AgentEvent::Loaded(_, _, Ok(_))
            | AgentEvent::Searched(_)
            | AgentEvent::NodeRead(_)
            | AgentEvent::Listed(_)
            | AgentEvent::Housekeeping
            | AgentEvent::MemoryBell
            | AgentEvent::Eviction(_)
            | AgentEvent::Resources(_)
            | AgentEvent::Cleaned
            | AgentEvent::Collected
            // Nothing is decided by them.
            | AgentEvent::ManifestsRead
            | AgentEvent::Ask(_) => return None,
        })
    }

    /// Takes down a step of a call, unless what it comes to is told with it.
    pub(super) fn note_step(&mut self, call: PodHandle, step: &CallStep, now: MonoTime) {
        let word = match step {
            CallStep::OutcomeKept(..) => "outcomeKept",
            CallStep::Limited(Some(_)) => "limited",
            CallStep::Limited(None) => "unlimited",
            CallStep::SandboxUp(_) => "sandboxUp",
            CallStep::Killed => "killed",
            CallStep::Resized(_) => "resized",
            CallStep::CleanedUp(_) => "cleanedUp",
            CallStep::Acted { pod, starts, .. } => {
                for start in starts {
                    let step = RecordedStep::for_call(&pod.metadata.uid, "started").with_container(&start.container);
                    let why_not = start.result.as_ref().err().map(|why| why.reason);
                    self.record_step_result(now, step.with_reason(why_not));
                }
                return;
            }
            CallStep::Begun { .. }
            | CallStep::Unsettled(_)
            | CallStep::HoldsNothing(..)
            | CallStep::Mounted(_)
            | CallStep::Restarts { .. }
            | CallStep::Stopping { .. }
            | CallStep::Stopped { .. }
            // A doorbell.
            | CallStep::Changed => return,
        };
        let step = RecordedStep::for_call(&self.uid_in_slot(call), word);
        self.record_step_result(now, step);
    }

    /// Takes down what a call came to.
    pub(super) fn record_step_result(&mut self, now: MonoTime, step: RecordedStep) {
        self.ring.record_event(now, RecordedEvent::Step(step));
    }

    /// Takes down what a source has.
    pub(super) fn note_config(&mut self, source: PodSource, ops: &[ConfigOp], now: MonoTime) {
        let ring = &mut self.ring;
        let seen = |pod: &Pod| RecordedPod::from_pod(pod, source != PodSource::Api);
        for op in ops {
            match op {
                ConfigOp::Remove(uids) => uids.iter().for_each(|uid| {
                    let pod = ring::cut_text(uid.as_str());
                    ring.record_event(now, RecordedEvent::Remove { pod });
                }),
                ConfigOp::Add(pods) => pods
                    .iter()
                    .for_each(|pod| ring.record_event(now, RecordedEvent::Add(seen(pod)))),
                ConfigOp::Update(pods) => pods
                    .iter()
                    .for_each(|pod| ring.record_event(now, RecordedEvent::Update(seen(pod)))),
                ConfigOp::Reconcile(pods) => pods
                    .iter()
                    .for_each(|pod| ring.record_event(now, RecordedEvent::Reconcile(seen(pod)))),
            }
        }
    }

    /// UID of the pod in a slot; empty if the slot is another's by now.
    pub(super) fn uid_in_slot(&self, handle: PodHandle) -> String {
        let uid = self.pods.uid_of_handle(handle);
        uid.map_or_else(String::new, |uid| uid.as_str().to_owned())
    }

    pub(super) fn record_effect(&mut self, now: MonoTime, made: RecordedEffect) {
        self.ring.record_effect(now, made);
    }

    /// Takes down what is made be done, but for calls, which say more.
    pub(super) fn note_effect(&mut self, effect: &AgentEffect, now: MonoTime) {
        match effect {
            AgentEffect::TidyDead(uid, id) => self.record_effect(
                now,
                RecordedEffect::TidyDead {
                    pod: ring::cut_text(uid.as_str()),
                    id: ring::cut_text(id.as_str()),
                },
            ),
            AgentEffect::Housekeeping(_) => self.record_effect(now, RecordedEffect::Housekeeping),
            AgentEffect::Start(..)
            | AgentEffect::Relist
            | AgentEffect::Inspect(..)
            | AgentEffect::Load(..)
            | AgentEffect::Search
            | AgentEffect::Record(_)
            | AgentEffect::SettleRecords
            | AgentEffect::KeepShown(..)
            | AgentEffect::KeepTimes(_)
            | AgentEffect::ForgetOutcomes(_)
            | AgentEffect::Eviction(_)
            | AgentEffect::AskResources(_) => {}
        }
    }

    pub(super) fn record_status_failure(&self, handle: PodHandle) {
        let Some(uid) = self.pods.uid_of_handle(handle) else {
            return;
        };
        let Some((namespace, name)) = self.pod_name(&uid) else {
            return;
        };
        let message = self.view.status_error(&uid).unwrap_or_default();
        let about = EventSubject::whole_object(&uid, &namespace, &name);
        let text = format!("error determining status: {message}");
        let recorder = &self.tools.recorder;
        recorder.record_event(about, EventSeverity::Warning, "FailedSync", &text);
    }
}
