//! The calls of workers that run.

use alloc::{collections::BTreeMap, rc::Rc};

use crate::{
    agent::executor::CallCancel,
    logic::pod_table::{PodHandle, PodTable},
};

/// Flags of the calls that run, at most one a slot.
#[derive(Default)]
pub(super) struct RunningCalls(BTreeMap<PodHandle, Rc<CallCancel>>);

impl RunningCalls {
    /// A call begins.
    pub(super) fn begin_call(&mut self, handle: PodHandle) -> Rc<CallCancel> {
        let cancel = Rc::new(CallCancel::default());
        self.0.insert(handle, Rc::clone(&cancel));
        cancel
    }

    /// Forgets a call that has ended.
    pub(super) fn end_call(&mut self, handle: PodHandle) {
        self.0.remove(&handle);
    }

    /// Shows each call whether it is still wanted.
    pub(super) fn refresh_flags(&self, table: &PodTable) {
        for (handle, cancel) in &self.0 {
            let stage = table.pod_stage(*handle);
            let ends = stage.is_some_and(|stage| stage.is_termination_requested());
            cancel.set_flags(ends, table.is_cancelled(*handle));
        }
    }
}
