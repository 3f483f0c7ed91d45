//! Containers that may trace processes, while another one is made in the same PID namespace: they stand still.
//!
//! Until the OCI runtime's process in that namespace has changed its root directory, the host's files are below
//! `/proc/PID/root`. That process is closed to those without `SYS_PTRACE` only. A privileged container has the host anyway.

use core::time::Duration;

use super::{Runc, error_chain, failed_error, record::ContainerRecord};
use crate::{
    api::cri::{LinuxSecurity, NamespaceMode},
    cgroup::Cgroups,
    runtime::RuntimeError,
};

/// The capability, and the word that has it with all others.
const TRACING: [&str; 2] = ["SYS_PTRACE", "ALL"];
/// Prefix that both may have.
const PREFIX: &str = "CAP_";

/// Longest time of a `create` for which tracers stand still: their probes fail meanwhile. It is half of a probe's patience as
/// Kubernetes has it (three times ten seconds).
pub(super) const TRACED_CREATE_LIMIT: Duration = Duration::from_secs(15);

/// Returns true if the container has the capability to trace.
pub(super) fn may_trace(security: &LinuxSecurity) -> bool {
    let traces = |name: &String| {
        let name = name.to_ascii_uppercase();
        TRACING.contains(&name.strip_prefix(PREFIX).unwrap_or(&name))
    };
    !security.privileged && security.add_capabilities.iter().any(traces)
}

/// Groups that stand still until this is dropped.
pub(super) struct StoppedTracers {
    cgroups: Cgroups,
    groups: Vec<String>,
}

impl Drop for StoppedTracers {
    fn drop(&mut self) {
        for group in &self.groups {
            if let Err(e) = self.cgroups.thaw_group(group) {
                log::error!("{group}: {}", error_chain(&e));
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
        // All of them: one that is stopped half has to go on too.
        stopped.groups = self.tracers_beside(record);
        for group in &stopped.groups {
            let frozen = self.cgroups.freeze_group(group).await;
            frozen.map_err(failed_error)?;
        }
        Ok(stopped)
    }

    /// Lets those go on that an agent before this one has left stopped.
    pub(super) fn resume_tracers(&self) {
        drop(StoppedTracers {
            cgroups: self.cgroups.clone(),
            groups: self.tracer_groups(None),
        });
    }

    /// Groups of tracers in the PID namespace that the container is about to be made in.
    pub(super) fn tracers_beside(&self, record: &ContainerRecord) -> Vec<String> {
        match record.config.security.namespaces.pid {
            NamespaceMode::Pod | NamespaceMode::Target => self.tracer_groups(Some(record)),
            NamespaceMode::Container | NamespaceMode::Node => Vec::new(),
        }
    }

    /// Groups of tracers: all, or those of a container's pod without its own. Also of those that have ended: what they left in
    /// the pod's PID namespace may trace.
    fn tracer_groups(&self, beside: Option<&ContainerRecord>) -> Vec<String> {
        let table = self.table.borrow();
        let all = table.containers.values().filter(|c| c.traces);
        let wanted = all.filter(|c| {
            beside.is_none_or(|made| c.status.sandbox == made.sandbox && c.status.id != made.id)
        });
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
            (false, &["CAP_ALL"], true),
            (false, &["Cap_Sys_Ptrace"], true),
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
