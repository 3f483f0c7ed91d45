//! Containers that may trace processes, while another one is made in the same PID namespace: they stand still.
//!
//! Until the OCI runtime's process in that namespace has changed its root directory, the host's files are below
//! `/proc/PID/root`. That process is closed to those without `SYS_PTRACE` only. A privileged container has the host anyway.

use super::{Runc, chain, failed_error, record::ContainerRecord};
use crate::{
    api::{
        SandboxId,
        cri::{ContainerState, LinuxSecurity, NamespaceMode},
    },
    cgroup::Cgroups,
    runtime::RuntimeError,
};

/// The capability, and the word that has it with all others. As in a pod, with and without its prefix.
const TRACING: [&str; 3] = ["SYS_PTRACE", "CAP_SYS_PTRACE", "ALL"];

/// Returns true if the container has the capability to trace.
pub(super) fn may_trace(security: &LinuxSecurity) -> bool {
    let mut added = security.add_capabilities.iter();
    !security.privileged
        && added.any(|name| TRACING.iter().any(|word| name.eq_ignore_ascii_case(word)))
}

/// Groups that stand still until this is dropped.
pub(super) struct StoppedTracers {
    cgroups: Cgroups,
    groups: Vec<String>,
}

impl Drop for StoppedTracers {
    fn drop(&mut self) {
        for group in &self.groups {
            if let Err(e) = self.cgroups.thaw(group) {
                log::error!("{group}: {}", chain(&e));
            }
        }
    }
}

impl Runc {
    /// Stops the tracers among the containers of the pod for which this one is about to be made.
    ///
    /// # Errors
    /// One cannot be stopped: then the new container must not be made.
    pub(super) async fn stop_tracers(
        &self,
        record: &ContainerRecord,
    ) -> Result<StoppedTracers, RuntimeError> {
        let mut stopped = StoppedTracers {
            cgroups: self.cgroups.clone(),
            groups: Vec::new(),
        };
        let mode = record.config.security.namespaces.pid;
        if matches!(mode, NamespaceMode::Pod | NamespaceMode::Target) {
            // All of them: one that is stopped half has to go on too.
            stopped.groups = self.tracers(Some(&record.sandbox));
        }
        for group in &stopped.groups {
            let frozen = self.cgroups.freeze(group).await;
            frozen.map_err(failed_error)?;
        }
        Ok(stopped)
    }

    /// Lets those go on that an agent before this one has left stopped.
    pub(super) fn let_tracers_go_on(&self) {
        drop(StoppedTracers {
            cgroups: self.cgroups.clone(),
            groups: self.tracers(None),
        });
    }

    /// Groups of tracers that run.
    fn tracers(&self, sandbox: Option<&SandboxId>) -> Vec<String> {
        let table = self.table.borrow();
        let containers = table.containers.values();
        let running = containers.filter(|c| c.traces && c.status.state == ContainerState::Running);
        let wanted = running.filter(|c| sandbox.is_none_or(|id| c.status.sandbox == *id));
        wanted.map(|c| c.cgroup.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_trace() {
        for (privileged, added, expected) in [
            (false, &["SYS_PTRACE"][..], true),
            (false, &["NET_ADMIN", "cap_sys_ptrace"], true),
            (false, &["ALL"], true),
            (false, &["SYS_ADMIN"], false),
            (true, &["SYS_PTRACE"], false),
        ] {
            let security = LinuxSecurity {
                privileged,
                add_capabilities: added.iter().map(|&name| name.to_owned()).collect(),
                ..LinuxSecurity::default()
            };
            assert_eq!(may_trace(&security), expected, "{privileged} {added:?}");
        }
    }
}
