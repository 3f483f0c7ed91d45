//! New limits for a container that runs (RTM-19, RSZ-21).

use super::{
    Runc, failed_at_step, failed_error, not_found,
    record::{self, ContainerRecord},
};
use crate::{
    api::{ContainerId, cri::LinuxResources, oci, order::GatherExt as _},
    cgroup::CgroupVersion,
    runtime::RuntimeError,
    sys::{child::ChildInput, crash},
};

impl Runc {
    /// Lets the OCI runtime write other limits. Limits that it cannot change in a running container are refused. It is told
    /// all limits of the container each time: what is not named it forgets (RSZ-21).
    pub(super) async fn update_instance(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        self.demand_running(id)?;
        let dir = self.container_dirs(id).run;
        let loaded = record::load_record::<ContainerRecord>(&dir);
        let loaded = loaded.map_err(failed_at_step("read the container record"))?;
        let mut record = loaded.ok_or_else(|| not_found("container", id))?;
        let merged = merge_limits(&record.config.resources, resources).ok_or_else(|| {
            let text = "limits of huge pages cannot be changed while a container runs";
            RuntimeError::Invalid(text.into())
        })?;
        let had = record.config.resources.memory_limit_bytes;
        let object = self.update_object(&merged, limit_falls(had, merged.memory_limit_bytes));
        let input = serde_json::to_vec(&object).unwrap_or_default();
        let program = self.oci_runtime_of(id).map_err(failed_error)?;
        let root = self.runtime_root();
        let updated = program
            .call_with_input(
                &root,
                "update",
                &["--resources=-", id],
                ChildInput::Bytes(input),
                &self.gate,
            )
            .await;
        updated.map_err(failed_error)?;
        crash::point("resize.told");
        record.config.resources = merged;
        // Without it the next update says what was before, where it says nothing.
        if let Err(e) = record::save_record(&dir, &record) {
            log::warn!("container={id} record: {e}");
        }
        Ok(())
    }

    /// Limits as `update` takes them. Controllers that this machine lacks are left out, as when the container was made.
    /// `falls`: the memory limit is lower than before, and the use is to be below it.
    fn update_object(&self, limits: &LinuxResources, falls: bool) -> oci::Resources {
        let is_v2 = self.cgroups.cgroup_version() == CgroupVersion::V2;
        let has = |controller: &str| self.cgroups.has_controller(controller);
        let limit = limits.memory_limit_bytes.filter(|_| has("memory"));
        let quota = limits.cpu_quota_us.filter(|&quota| quota != 0);
        let unified = limits.unified.iter().filter(|(file, _)| {
            let controller = file.split('.').next().unwrap_or_default();
            is_v2 && has(controller)
        });
        oci::Resources {
            memory: limit.map(|limit| oci::Memory {
                limit: Some(limit),
                swap: limits.memory_swap_bytes,
                check_before_update: (is_v2 && falls).then_some(true),
            }),
            cpu: has("cpu").then(|| oci::Cpu {
                shares: limits.cpu_shares,
                quota,
                period: limits.cpu_period_us.filter(|_| quota.is_some()),
                cpus: limits.cpuset_cpus.clone(),
            }),
            pids: limits.pids_limit.map(|limit| oci::Pids { limit }),
            unified: unified
                .map(|(file, value)| (file.clone(), value.clone()))
                .gather_items(),
            ..oci::Resources::default()
        }
    }
}

/// Returns true if a limit is lower than before. One that is absent, or not above zero, is none.
fn limit_falls(had: Option<i64>, wants: Option<i64>) -> bool {
    let amount = |limit: Option<i64>| limit.filter(|&limit| limit > 0).unwrap_or(i64::MAX);
    amount(wants) < amount(had)
}

/// Lays new limits over those of a container; `None` stays as it is. Returns `None` if huge pages are to change.
fn merge_limits(old: &LinuxResources, new: &LinuxResources) -> Option<LinuxResources> {
    let LinuxResources {
        cpu_shares,
        cpu_quota_us,
        cpu_period_us,
        cpuset_cpus,
        memory_limit_bytes,
        memory_swap_bytes,
        oom_score_adj: _, // of the process: it never changes
        pids_limit,
        hugepage_limits,
        unified,
    } = new;
    if !hugepage_limits.is_empty() && *hugepage_limits != old.hugepage_limits {
        return None;
    }
    let mut merged = LinuxResources {
        cpu_shares: cpu_shares.or(old.cpu_shares),
        cpu_quota_us: cpu_quota_us.or(old.cpu_quota_us),
        cpu_period_us: cpu_period_us.or(old.cpu_period_us),
        cpuset_cpus: cpuset_cpus.as_ref().or(old.cpuset_cpus.as_ref()).cloned(),
        memory_limit_bytes: memory_limit_bytes.or(old.memory_limit_bytes),
        memory_swap_bytes: memory_swap_bytes.or(old.memory_swap_bytes),
        pids_limit: pids_limit.or(old.pids_limit),
        ..old.clone()
    };
    for (file, value) in unified {
        merged.unified.insert(file.clone(), value.clone());
    }
    Some(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_that_falls_is_checked() {
        // RSZ-24
        for (had, wants, falls) in [
            (Some(2), Some(1), true),
            (None, Some(1), true),
            (Some(-1), Some(1), true),
            (Some(1), Some(1), false),
            (Some(1), Some(2), false),
            (Some(1), Some(-1), false),
            (Some(1), None, false),
            (None, None, false),
        ] {
            assert_eq!(limit_falls(had, wants), falls, "{had:?} {wants:?}");
        }
    }

    #[test]
    fn limits_that_are_not_named_stay() {
        // RSZ-21 CPUM-24
        let old = LinuxResources {
            cpu_shares: Some(2),
            cpuset_cpus: Some("0-1".into()),
            memory_limit_bytes: Some(1 << 20),
            oom_score_adj: 5,
            hugepage_limits: [("2MB".into(), 0)].into(),
            unified: [("memory.oom.group".into(), "1".into())].into(),
            ..LinuxResources::default()
        };
        let new = LinuxResources {
            cpu_quota_us: Some(-1),
            memory_limit_bytes: Some(2 << 20),
            unified: [("memory.high".into(), "max".into())].into(),
            ..LinuxResources::default()
        };
        let merged = merge_limits(&old, &new).expect("possible");
        let mut expected = old.clone();
        expected.cpu_quota_us = Some(-1);
        expected.memory_limit_bytes = Some(2 << 20);
        expected.unified.insert("memory.high".into(), "max".into());
        assert_eq!(merged, expected);
        let moved = LinuxResources {
            cpuset_cpus: Some("0,3".into()),
            ..LinuxResources::default()
        };
        expected = old.clone();
        expected.cpuset_cpus = Some("0,3".into());
        assert_eq!(merge_limits(&old, &moved), Some(expected));
        let pages = LinuxResources {
            hugepage_limits: [("2MB".into(), 1)].into(),
            ..LinuxResources::default()
        };
        assert_eq!(merge_limits(&old, &pages), None);
    }
}
