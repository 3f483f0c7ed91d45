//! The calls of workers that run.

use alloc::{collections::BTreeMap, rc::Rc};

use crate::{
    agent::executor::{CallCancel, CallStep},
    logic::{
        pod_table::{CallStart, PodHandle, PodTable},
        pod_worker::{CallOutcome, WorkerCall},
    },
};

/// Calls that run, at most one a slot.
#[derive(Default)]
pub(super) struct RunningCalls(BTreeMap<PodHandle, RunningCall>);

/// A call that runs.
struct RunningCall {
    cancel: Rc<CallCancel>,
    /// Set for a sync of a pod that was as it should be, until now.
    is_idle: bool,
}

impl RunningCalls {
    /// A call begins.
    pub(super) fn begin_call(&mut self, start: &CallStart) -> Rc<CallCancel> {
        let cancel = Rc::new(CallCancel::default());
        let call = RunningCall {
            cancel: Rc::clone(&cancel),
            is_idle: start.call == WorkerCall::Sync && !start.first,
        };
        self.0.insert(start.handle, call);
        cancel
    }

    /// Takes down a step of a call.
    pub(super) fn note_step(&mut self, handle: PodHandle, step: &CallStep) {
        let is_look = matches!(step, CallStep::Begun { .. } | CallStep::Mounted(_));
        if !is_look && let Some(call) = self.0.get_mut(&handle) {
            call.is_idle = false;
        }
    }

    /// Forgets a call that has ended. Returns true if it was a sync that found nothing to do.
    pub(super) fn end_call(&mut self, handle: PodHandle, outcome: CallOutcome) -> bool {
        let call = self.0.remove(&handle);
        outcome == CallOutcome::Done && call.is_some_and(|call| call.is_idle)
    }

    /// Shows each call whether it is still wanted.
    pub(super) fn refresh_flags(&self, table: &PodTable) {
        for (handle, call) in &self.0 {
            let stage = table.pod_stage(*handle);
            let ends = stage.is_some_and(|stage| stage.is_termination_requested());
            call.cancel.set_flags(ends, table.is_cancelled(*handle));
        }
    }
}
