//! A probe of one container: the time of its next pass, and the result of outcomes in a row. Rows PROBE-03 to
//! PROBE-15.
//!
//! ```text
//!  due ──pass──▶ Wait ──▶ due a period later
//!            ├─▶ Ask ──outcome──▶ due a period after this pass was; at once if that has gone by
//!            └─▶ End
//! ```
//!
//! A pass looks at the container's stored status only. Passes keep to a grid of periods; one that takes longer than a period
//! is followed by the next at once, and the grid's points in between are left out. Time is monotonic throughout: a clock
//! that jumps neither ends an initial delay nor makes a probe fail.

use core::time::Duration;

use super::{ProbeKind, ProbeResult};
use crate::api::{MonoTime, pod::Probe};
use crate::fnv::fnv1a;

/// Settings of a probe. Fixed for the life of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Kind of the probe.
    pub kind: ProbeKind,
    /// Set if the container is an init container that goes on running.
    pub sidecar: bool,
    /// Set if the pod had a deletionTimestamp when the worker was made.
    pub deleting: bool,
    /// Age of the container before the first probe.
    pub initial_delay_s: u32,
    /// Time between two passes; at least 1.
    pub period_s: u32,
    /// Time limit of one probe; at least 1.
    pub timeout_s: u32,
    /// Successes in a row that make a success; at least 1.
    pub success_threshold: u32,
    /// Failures in a row that make a failure; at least 1.
    pub failure_threshold: u32,
}

impl ProbeSettings {
    /// Reads the settings of `probe`. Numbers that the API would have refused become the least sensible ones.
    #[must_use]
    pub fn from_probe(kind: ProbeKind, probe: &Probe, sidecar: bool, deleting: bool) -> Self {
        let least = |n: i32, least: u32| u32::try_from(n).unwrap_or(0).max(least);
        Self {
            kind,
            sidecar,
            deleting,
            initial_delay_s: least(probe.initial_delay_seconds, 0),
            period_s: least(probe.period_seconds, 1),
            timeout_s: least(probe.timeout_seconds, 1),
            success_threshold: least(probe.success_threshold, 1),
            failure_threshold: least(probe.failure_threshold, 1),
        }
    }

    const fn initial_result(self) -> ProbeResult {
        match self.kind {
            ProbeKind::Liveness => ProbeResult::Success,
            ProbeKind::Readiness => ProbeResult::Failure,
            ProbeKind::Startup => ProbeResult::Unknown,
        }
    }
}

/// State of the pod that a pass sees: the status as it was last stored.
#[derive(Clone, Copy, Debug)]
pub struct ProbedPod<'a> {
    /// Set if the phase is terminal.
    pub ended: bool,
    /// The container, once an instance of it was created.
    pub container: Option<ProbedContainer<'a>>,
}

/// State of the container that a pass sees.
#[derive(Clone, Copy, Debug)]
pub struct ProbedContainer<'a> {
    /// Instance.
    pub id: &'a str,
    /// State.
    pub state: ProbedContainerState,
    /// `started` of the status.
    pub started: bool,
    /// `ready` of the status.
    pub ready: bool,
}

/// State of a container as a pass sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbedContainerState {
    /// Not started yet, or about to be restarted.
    Waiting,
    /// Runs.
    Running {
        /// Age by the wall clock, which may have jumped; seconds.
        age_s: u32,
        /// Set if the instance ran already when the agent was started.
        adopted: bool,
    },
    /// Ended with this code.
    Ended(i32),
}

/// Order to the caller after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePassStep {
    /// Do nothing until the next pass.
    Wait,
    /// Probe now; [`ProbeWorker::take_result`] follows.
    Ask,
    /// Forget the worker: it has ended.
    End,
}

/// Results of a worker's probes, over all its instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Successes.
    pub successful: u32,
    /// Failures.
    pub failed: u32,
    /// Errors, after all tries.
    pub unknown: u32,
    /// Probes that began more than a period late.
    pub late: u32,
}

/// State machine of one probe of one container.
#[derive(Clone, Debug)]
pub struct ProbeWorker {
    settings: ProbeSettings,
    /// Digest of the instance that was last seen; 0 for none.
    instance: u64,
    /// Time at which the worker was made.
    made: MonoTime,
    /// Time at which that instance was started, by our clock.
    began: MonoTime,
    /// Time at which the next pass is due; during a probe, time at which its pass was due.
    due: MonoTime,
    run: u32,
    counts: ProbeCounts,
    result: Option<ProbeResult>,
    last: Option<bool>,
    /// Set once the instance has ended: true if another one follows.
    restarts: Option<bool>,
    /// Set while the worker waits for a new instance.
    on_hold: bool,
    asking: bool,
    /// Set if another pass was requested meanwhile.
    again: bool,
    /// Set until the first pass of a worker that is spread over a period after the agent's start.
    spreads: bool,
    ended: bool,
}

const _: () = assert!(size_of::<ProbeWorker>() <= 96, "one per probe");

impl ProbeWorker {
    /// Creates a worker whose first pass is due at `due`. A time later than `now` spreads the load of an agent's start:
    /// the pass never comes sooner (PROBE-03).
    #[must_use]
    pub fn new(settings: ProbeSettings, due: MonoTime, now: MonoTime) -> Self {
        Self {
            settings,
            instance: 0,
            made: now,
            began: now,
            due,
            run: 0,
            counts: ProbeCounts::default(),
            result: None,
            last: None,
            restarts: None,
            on_hold: false,
            asking: false,
            again: false,
            spreads: due > now,
            ended: false,
        }
    }

    /// Settings of the probe.
    #[must_use]
    pub const fn settings(&self) -> ProbeSettings {
        self.settings
    }

    /// Time of the next pass; `None` while a probe is under way, and at the end.
    #[must_use]
    pub const fn next_pass_time(&self) -> Option<MonoTime> {
        if self.ended || self.asking {
            None
        } else {
            Some(self.due)
        }
    }

    /// Returns true if a probe is under way whose result counts.
    #[must_use]
    pub const fn is_probing(&self) -> bool {
        self.asking && !self.ended
    }

    /// The result for an instance, if it is the one that was probed.
    #[must_use]
    pub fn result_of_instance(&self, id: &str) -> Option<ProbeResult> {
        self.result
            .filter(|_| self.instance == hash_instance_id(id))
    }

    /// Counts of the results (MET-09).
    #[must_use]
    pub const fn counts(&self) -> ProbeCounts {
        self.counts
    }

    /// Digest of the instance that is probed; 0 for none.
    #[must_use]
    pub const fn instance(&self) -> u64 {
        self.instance
    }

    /// The result for the instance that is probed.
    #[must_use]
    pub const fn result(&self) -> Option<ProbeResult> {
        self.result
    }

    /// Returns true if it is known whether another instance follows the one that ended. [`ProbeWorker::make_pass`]
    /// does not call `restarts` then.
    #[must_use]
    pub const fn knows_restarts(&self) -> bool {
        self.restarts.is_some()
    }

    /// Makes a pass. `restarts` tells if another instance follows an exit with that code; it is called once an
    /// instance. A pass that comes early, to share a wake-up with others, is made as if it were due.
    ///
    /// Returns the next step, and a result that the stored status does not show yet.
    pub fn make_pass(
        &mut self,
        seen: &ProbedPod<'_>,
        restarts: impl FnOnce(i32) -> bool,
        now: MonoTime,
    ) -> (ProbePassStep, Option<ProbeResult>) {
        let now = now.max(self.due);
        self.spreads = false;
        let (step, news) = self.pass_due_probe(seen, restarts, now);
        match step {
            ProbePassStep::Wait => self.schedule_next_pass(now),
            ProbePassStep::Ask => self.asking = true,
            ProbePassStep::End => self.ended = true,
        }
        (step, news)
    }

    fn pass_due_probe(
        &mut self,
        seen: &ProbedPod<'_>,
        restarts: impl FnOnce(i32) -> bool,
        now: MonoTime,
    ) -> (ProbePassStep, Option<ProbeResult>) {
        if self.ended || seen.ended {
            self.result = None;
            return (ProbePassStep::End, None);
        }
        let Some(container) = seen.container else {
            return (ProbePassStep::Wait, None);
        };
        let news = self.start_instance(&container, now);
        if self.on_hold {
            return (ProbePassStep::Wait, news);
        }
        match container.state {
            ProbedContainerState::Running { .. } => {}
            ProbedContainerState::Waiting => {
                self.result = Some(ProbeResult::Failure);
                return (ProbePassStep::Wait, news);
            }
            ProbedContainerState::Ended(code) => {
                self.result = Some(ProbeResult::Failure);
                let goes_on = *self.restarts.get_or_insert_with(|| restarts(code));
                return (
                    if goes_on {
                        ProbePassStep::Wait
                    } else {
                        ProbePassStep::End
                    },
                    news,
                );
            }
        }
        if self.settings.deleting && self.settings.kind != ProbeKind::Readiness {
            // For a quiet end: no probe kills a pod that ends anyway.
            self.result = Some(ProbeResult::Success);
            let startup = self.settings.kind == ProbeKind::Startup && !container.started;
            return (ProbePassStep::End, startup.then_some(ProbeResult::Success));
        }
        let age = now - self.began;
        if age.as_secs() < u64::from(self.settings.initial_delay_s) {
            return (ProbePassStep::Wait, news);
        }
        let own_turn = container.started != (self.settings.kind == ProbeKind::Startup);
        (
            if own_turn {
                ProbePassStep::Ask
            } else {
                ProbePassStep::Wait
            },
            news,
        )
    }

    /// Starts over with a new instance (PROBE-06). An instance that ran before the agent's start keeps its reported
    /// state (PROBE-15).
    fn start_instance(
        &mut self,
        container: &ProbedContainer<'_>,
        now: MonoTime,
    ) -> Option<ProbeResult> {
        let instance = hash_instance_id(container.id);
        if instance == self.instance {
            return None;
        }
        let kind = self.settings.kind;
        let mut adopted_running = false;
        self.began = now;
        if let ProbedContainerState::Running { age_s, adopted } = container.state {
            adopted_running = adopted;
            // An instance started under this worker cannot be older than it, whatever the clock says.
            let age = Duration::from_secs(age_s.into());
            let most = if adopted { age } else { now - self.made };
            self.began = MonoTime(now.0.saturating_sub(duration_ms(age.min(most))));
        }
        self.instance = instance;
        self.on_hold = false;
        self.restarts = None;
        self.run = 0;
        self.last = None;
        self.result = if !adopted_running {
            Some(self.settings.initial_result())
        } else if self.settings.sidecar && kind == ProbeKind::Startup && container.started {
            Some(ProbeResult::Success)
        } else {
            None
        };
        let shown = match kind {
            ProbeKind::Liveness => true,
            ProbeKind::Readiness => self.result.is_none() || !container.ready,
            ProbeKind::Startup => self.result.is_none() || !container.started,
        };
        self.result.filter(|_| !shown)
    }

    /// Takes in the result of a probe of instance `id`; `None`: an error, which does not count (PROBE-09).
    ///
    /// Returns the decisive result if it has changed.
    pub fn take_result(
        &mut self,
        id: &str,
        success: Option<bool>,
        now: MonoTime,
    ) -> Option<ProbeResult> {
        self.asking = false;
        let counts = !self.ended && self.instance == hash_instance_id(id);
        if counts {
            let of = match success {
                Some(true) => &mut self.counts.successful,
                Some(false) => &mut self.counts.failed,
                None => &mut self.counts.unknown,
            };
            *of = of.wrapping_add(1);
        }
        let changed = success
            .filter(|_| counts)
            .and_then(|s| self.count_result(s));
        self.schedule_next_pass(now);
        changed
    }

    fn count_result(&mut self, success: bool) -> Option<ProbeResult> {
        self.run = if self.last == Some(success) {
            self.run.saturating_add(1)
        } else {
            1
        };
        self.last = Some(success);
        let (result, threshold) = if success {
            (ProbeResult::Success, self.settings.success_threshold)
        } else {
            (ProbeResult::Failure, self.settings.failure_threshold)
        };
        if self.run < threshold {
            return None;
        }
        let changed = self.result != Some(result);
        self.result = Some(result);
        let decided = match self.settings.kind {
            ProbeKind::Liveness => !success,
            ProbeKind::Startup => true,
            ProbeKind::Readiness => false,
        };
        if decided {
            // Another instance comes next: an instance that is being stopped is not probed.
            self.on_hold = true;
            self.run = 0;
        }
        changed.then_some(result)
    }

    /// Requests a pass now; the period counts from it (PROBE-13).
    pub fn trigger_pass(&mut self, now: MonoTime) {
        if self.asking || self.spreads {
            self.again = true;
        } else {
            self.due = now;
        }
    }

    /// Takes in that the probe under way begins. If it had to wait for others, the period counts from now, so that a
    /// late probe does not fall further behind. Returns true if it is late by more than a period.
    pub fn begin_probe(&mut self, waited: bool, now: MonoTime) -> bool {
        let late = now - self.due > self.period();
        self.counts.late = self.counts.late.wrapping_add(late.into());
        if waited {
            self.due = now;
        }
        late
    }

    /// Ends the worker and drops its result (SYNC-20, SYNC-22).
    pub fn stop(&mut self) {
        self.ended = true;
        self.result = None;
    }

    fn period(&self) -> Duration {
        Duration::from_secs(self.settings.period_s.into())
    }

    fn schedule_next_pass(&mut self, now: MonoTime) {
        if core::mem::take(&mut self.again) {
            self.due = now;
            return;
        }
        let period = duration_ms(self.period());
        let gone = now.since_ms(self.due) / period;
        self.due = MonoTime(self.due.0 + gone.max(1) * period);
    }
}

fn duration_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Digest that identifies an instance. Never 0.
pub(super) fn hash_instance_id(id: &str) -> u64 {
    fnv1a(id.bytes()).max(1)
}

#[cfg(test)]
mod tests;
