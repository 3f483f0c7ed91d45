//! Cgroups of pods and tiers: values from `logic::cgroup`, effects in `cgroup`.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::{
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
};

use crate::{
    agent::{
        clock::Clock,
        node::{MachineFacts, machine},
        recorder::{EventRecorder, EventSeverity},
    },
    api::{
        Pod, PodUid, cri::LinuxResources, oci::PodCgroup, order::OrderExt as _,
        pod_status::QosClass,
    },
    cgroup::{CgroupError, CgroupVersion, Cgroups},
    config::{AgentConfig, SwapBehavior},
    error::error_chain,
    logic::{
        cgroup::{self as values, PodRequestTotals, pod_cgroup},
        fnv::fnv1a_32,
        node_resources,
        pod_writes::{self, WriteLimits},
        qos::qos_class,
        resize::raise_pod_values,
    },
    sys::lane::Lane,
};

/// Reads the facts that cgroup values depend on.
pub(in crate::agent) fn read_cgroup_settings(
    cfg: &AgentConfig,
    node: &MachineFacts,
    cgroups: &Cgroups,
) -> values::CgroupSettings {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let cgroup = &cfg.cgroup;
    values::CgroupSettings {
        tree: cgroup.tree.clone(),
        cfs_quota: cgroup.cpu_cfs_quota,
        cfs_period_us: u64::try_from(cgroup.cpu_cfs_quota_period.as_micros())
            .unwrap_or(values::DEFAULT_PERIOD_US),
        static_cpus: cgroup.cpu_policy.is_some(),
        pod_pids_limit: cgroup.pod_pids_limit.unwrap_or(-1),
        writes: WriteLimits {
            bytes_per_second: cgroup.pod_write_limit,
            disk: find_limitable_disk(cgroups, &cfg.dirs.root),
        },
        single_process_oom_kill: cgroup.single_process_oom_kill.unwrap_or(false),
        memory_qos: cgroup.memory_qos.map(|memory| values::MemoryQos {
            throttling_permille: memory.throttling_permille.map(i64::from),
            reserves: memory.reserves,
            allocatable_bytes: node.allocatable().memory_bytes,
            page_bytes: signed(node.page_bytes),
        }),
        limited_swap: cgroup.swap == SwapBehavior::LimitedSwap,
        v2: cgroups.cgroup_version() == CgroupVersion::V2,
        swap_controller: accounts_swap(cgroups, &cgroup.tree.kubepods_path()),
        node_memory_bytes: signed(node.memory_bytes),
        node_swap_bytes: signed(node.swap_bytes),
        hugepage_sizes: node.hugepages.iter().map(|(size, _)| *size).collect(),
    }
}

/// The disk of the root directory, if the kernel can limit what pods write to it.
pub(in crate::agent) fn find_limitable_disk(cgroups: &Cgroups, root: &Path) -> Option<String> {
    let can = cgroups.cgroup_version() == CgroupVersion::V2 && cgroups.has_controller("io");
    let disk = can.then(|| machine::disk_with_number(root));
    disk.flatten().map(|(_, number)| number)
}

/// Returns true if the kernel accounts swap. Version 2 has the file in every group with the memory controller, so
/// `kubepods` and the groups above it are made first.
fn accounts_swap(cgroups: &Cgroups, kubepods: &str) -> bool {
    // Failing to make it is told when the tiers are made.
    let _ = cgroups.create_group(kubepods, &LinuxResources::default());
    let dir = cgroups.memory_dir(kubepods);
    dir.is_some_and(|dir| {
        ["memory.swap.max", "memory.memsw.limit_in_bytes"]
            .iter()
            .any(|f| dir.join(f).exists())
    })
}

/// Between two tries to give `kubepods` its limits.
const ENFORCE_RETRY: Duration = Duration::from_secs(60);

/// Cgroups of pods and tiers. They are read and made on one lane, one job after the other: that of the disk, or where
/// systemd may be waited for.
#[derive(Clone)]
pub(in crate::agent) struct PodCgroups {
    tree: Arc<PodCgroupTree>,
    lane: Lane,
}

/// State that jobs on the lane share.
struct PodCgroupTree {
    cgroups: Arc<Cgroups>,
    per_qos: bool,
    settings: values::CgroupSettings,
    kubepods: LinuxResources,
    /// For what its pods ask together the tiers were last given something; `None`: not known.
    given: Mutex<Option<PodRequestTotals>>,
}

/// State of a pod's cgroup after it was ensured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum PodCgroupState {
    /// The cgroup had its limits already.
    There,
    /// The cgroup has the limits of this digest now.
    Made(u32),
    /// The cgroup is missing while containers of the pod run, outside of any limit: they must end before it is made
    /// again.
    MissingUnderContainers,
}

impl PodCgroups {
    /// Begins without making a cgroup.
    pub(in crate::agent) fn new(
        cfg: &AgentConfig,
        node: &MachineFacts,
        settings: values::CgroupSettings,
        cgroups: Arc<Cgroups>,
        disk: Lane,
    ) -> Self {
        let enforce = cfg.cgroup.enforce_pods;
        let lane = cgroups.slice_lane().cloned().unwrap_or(disk);
        let mut kubepods = node_resources::kubepods_resources(node.capacity(), node.kept, enforce);
        // On many boards it is off (QEMU-22). What is written here nobody has asked for: pods without limits run.
        if !cgroups.has_controller("memory") {
            kubepods.memory_limit_bytes = None;
        }
        let tree = PodCgroupTree {
            cgroups,
            per_qos: cfg.cgroup.per_qos,
            settings,
            kubepods,
            given: Mutex::default(),
        };
        Self {
            tree: Arc::new(tree),
            lane,
        }
    }

    /// Tries to make `kubepods` and the tiers until it has succeeded once (CG-12). Nothing is done where pods have no cgroups.
    pub(in crate::agent) async fn enforce_allocatable(
        self,
        clock: Rc<dyn Clock>,
        recorder: Rc<EventRecorder>,
    ) {
        if !self.tree.per_qos {
            return;
        }
        loop {
            match self.run_on_lane(PodCgroupTree::make_tiers).await {
                Ok(()) => {
                    recorder.record_node_event(
                        EventSeverity::Normal,
                        "NodeAllocatableEnforced",
                        "Updated Node Allocatable limit across pods",
                    );
                    return;
                }
                Err(e) => recorder.record_node_event(
                    EventSeverity::Warning,
                    "FailedNodeAllocatableEnforcement",
                    &format!(
                        "Failed to update Node Allocatable Limits {:?}: {}",
                        self.tree.settings.tree.kubepods_path(),
                        error_chain(&e)
                    ),
                ),
            }
            clock.sleep_until(clock.now() + ENFORCE_RETRY).await;
        }
    }

    /// Returns true if the QoS cgroups were not given what their pods now request together.
    pub(in crate::agent) fn are_tiers_stale(&self, asked: PodRequestTotals) -> bool {
        self.tree.are_tiers_stale(asked)
    }

    /// Gives the tiers what their pods ask for together, if they have something else (CG-11, CG-16).
    pub(in crate::agent) async fn refresh_tiers(
        &self,
        asked: PodRequestTotals,
    ) -> Result<(), CgroupError> {
        if !self.are_tiers_stale(asked) {
            return Ok(());
        }
        self.run_on_lane(move |tree| tree.refresh_tiers(asked))
            .await
    }

    /// Makes the pod's cgroup with its limits, or brings its limits up to date; each is at least that of the pod in any of the
    /// states `in_force`. `given`: digest of the limits that this agent
    /// has given it; `runs`: the pod has containers that run. `asked`: requests of all pods together, if they were added up;
    /// without them housekeeping gives the tiers what they lack.
    pub(in crate::agent) async fn ensure_pod_cgroup(
        &self,
        pod: &Pod,
        in_force: &[Pod],
        given: Option<u32>,
        runs: bool,
        asked: Option<PodRequestTotals>,
    ) -> Result<PodCgroupState, CgroupError> {
        if !self.tree.per_qos {
            return Ok(PodCgroupState::There);
        }
        let qos = qos_class(pod);
        if !self
            .tree
            .settings
            .tree
            .is_unambiguous_uid(&pod.metadata.uid)
        {
            return Err(CgroupError::BadPath(pod.metadata.uid.to_string()));
        }
        let settings = &self.tree.settings;
        let mut wanted = pod_cgroup(pod, qos, settings);
        for had in in_force {
            raise_pod_values(&mut wanted.values, &pod_cgroup(had, qos, settings).values);
        }
        let writes = pod_writes::effective_write_limit(pod, &self.tree.settings.writes)?;
        if let Some(writes) = writes {
            wanted
                .values
                .unified
                .insert(pod_writes::FILE.into(), writes);
        }
        // Another path is another cgroup: the values say enough.
        let digest = fnv1a_32(serde_json::to_vec(&wanted.values).unwrap_or_default());
        self.run_on_lane(move |tree| {
            let is_there = tree.cgroups.has_group(&wanted.path);
            if !is_there && runs {
                return Ok(PodCgroupState::MissingUnderContainers);
            }
            // One that an agent before this one left may have died before its limits were written. A lower limit could kill
            // what runs.
            if is_there && given.is_some_and(|given| runs || given == digest) {
                return Ok(PodCgroupState::There);
            }
            let tier = tree.settings.tree.tier_path(qos);
            if !tree.cgroups.has_group(&tier) {
                tree.make_tiers()?;
            }
            if let Some(asked) = asked {
                tree.refresh_tiers(asked)?;
            }
            if is_there {
                tree.unlimit_writes(&mut wanted);
            }
            tree.cgroups.create_group(&wanted.path, &wanted.values)?;
            Ok(PodCgroupState::Made(digest))
        })
        .await
    }

    /// Settings of the machine and the configuration.
    pub(in crate::agent) fn settings(&self) -> &values::CgroupSettings {
        &self.tree.settings
    }

    /// Returns true if pods have cgroups.
    pub(in crate::agent) fn has_pod_cgroups(&self) -> bool {
        self.tree.per_qos
    }

    /// Writes some limits of the pod's cgroup. None there has no limits to change.
    pub(in crate::agent) async fn update_pod_limits(
        &self,
        pod: &Pod,
        values: LinuxResources,
    ) -> Result<(), CgroupError> {
        if !self.tree.per_qos {
            return Ok(());
        }
        let settings = &self.tree.settings;
        let path = settings.tree.pod_path(qos_class(pod), &pod.metadata.uid);
        self.run_on_lane(move |tree| match tree.cgroups.has_group(&path) {
            true => tree.cgroups.create_group(&path, &values),
            false => Ok(()),
        })
        .await
    }

    /// Kills what is left in the pod's cgroup, whatever its tier, and removes it. None there is success (SYNC-32).
    pub(in crate::agent) async fn remove_pod_cgroup(
        &self,
        uid: &PodUid,
    ) -> Result<(), CgroupError> {
        let paths = self.tree.settings.tree.pod_paths_of_tiers(uid);
        let there = self.run_on_lane(move |tree| {
            paths.map(|path| tree.cgroups.has_group(&path).then_some(path))
        });
        for path in there.await.into_iter().flatten() {
            self.tree.cgroups.destroy_group(&path).await?;
        }
        Ok(())
    }

    /// Pods that have a cgroup, sorted, with its path.
    pub(in crate::agent) async fn list_pod_cgroups(&self) -> Vec<(PodUid, String)> {
        self.run_on_lane(PodCgroupTree::list_pod_cgroups).await
    }

    async fn run_on_lane<T: Send + 'static>(
        &self,
        job: impl FnOnce(&PodCgroupTree) -> T + Send + 'static,
    ) -> T {
        let tree = Arc::clone(&self.tree);
        self.lane.run_job(move || job(&tree)).await
    }
}

impl PodCgroupTree {
    fn list_pod_cgroups(&self) -> Vec<(PodUid, String)> {
        let mut found = Vec::new();
        for qos in values::TIERS {
            let tier = self.settings.tree.tier_path(qos);
            for name in self.cgroups.list_child_groups(&tier) {
                if let Some(uid) = self.settings.tree.pod_uid_of(qos, &name) {
                    found.push((PodUid::new(uid), format!("{tier}/{name}")));
                }
            }
        }
        found.stable_sort();
        found
    }

    /// Makes `kubepods` and the tiers, at start and again if they have gone.
    fn make_tiers(&self) -> Result<(), CgroupError> {
        for qos in values::TIERS {
            let path = self.settings.tree.tier_path(qos);
            let mut limits = if qos == QosClass::Guaranteed {
                self.kubepods.clone()
            } else {
                let mut limits =
                    values::tier_values(qos, PodRequestTotals::default(), &self.settings);
                // Pods of an agent before this one may run there: what it was given stays until the sources are read.
                if qos == QosClass::Burstable && self.cgroups.has_group(&path) {
                    limits.cpu_shares = None;
                    limits.unified.clear();
                }
                limits
            };
            let dir = self.cgroups.memory_dir(&path);
            if dir.is_some_and(|dir| dir.join("memory.min").exists()) {
                values::clear_memory_protection(&mut limits, qos, &self.settings);
            }
            self.cgroups.create_group(&path, &limits)?;
        }
        self.set_given(None);
        Ok(())
    }

    /// Takes the limit of writes from a pod that an agent with another configuration gave one.
    fn unlimit_writes(&self, wanted: &mut PodCgroup) {
        let has_limit = || {
            let dir = self.cgroups.memory_dir(&wanted.path)?;
            fs::read_to_string(dir.join(pod_writes::FILE)).ok()
        };
        let unified = &mut wanted.values.unified;
        if let Some(disk) = &self.settings.writes.disk
            && !unified.contains_key(pod_writes::FILE)
            && has_limit().is_some_and(|text| !text.trim().is_empty())
        {
            unified.insert(pod_writes::FILE.into(), pod_writes::unlimited_writes(disk));
        }
    }

    fn set_given(&self, asked: Option<PodRequestTotals>) {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner) = asked;
    }

    fn are_tiers_stale(&self, asked: PodRequestTotals) -> bool {
        let given = *self.given.lock().unwrap_or_else(PoisonError::into_inner);
        self.per_qos && given != Some(asked)
    }

    fn refresh_tiers(&self, asked: PodRequestTotals) -> Result<(), CgroupError> {
        if !self.are_tiers_stale(asked) {
            return Ok(());
        }
        if let Some(kept) = values::kubepods_protection(asked, &self.settings) {
            // systemd has to know it, too.
            self.cgroups
                .create_group(&self.settings.tree.kubepods_path(), &kept)?;
        }
        let qos = QosClass::Burstable;
        let path = self.settings.tree.tier_path(qos);
        let limits = values::tier_values(qos, asked, &self.settings);
        self.cgroups.create_group(&path, &limits)?;
        self.set_given(Some(asked));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::{
        api::cri::CgroupDriver,
        bus::testing::{Double, Reply},
        cgroup::Hierarchy,
    };

    /// No controller has to be handed down.
    const LISTS: [&str; 2] = ["cgroup.controllers", "cgroup.subtree_control"];

    #[test]
    fn a_pod_writes_no_faster_than_it_may() {
        // WEAR-07
        let root = crate::testing::unused_path("writes");
        let dir = root.join("kubepods/besteffort/podu-1");
        fs::create_dir_all(&dir).expect("directory");
        let above = ["", "kubepods", "kubepods/besteffort"].map(|path| root.join(path));
        for dir in above.iter().chain([&dir]) {
            for file in ["cpu.weight", "io.max"].iter().chain(&LISTS) {
                fs::write(dir.join(file), "").expect("file");
            }
        }
        let line = format!("1 1 0:1 / {} rw - cgroup2 none rw", root.display());
        let hierarchy = Hierarchy::parse(&line).expect("a tree");
        let ensure = |bytes_per_second, disk: Option<&str>, annotation: Option<&str>| {
            let tree = PodCgroupTree {
                cgroups: Arc::new(Cgroups::with_hierarchy(hierarchy.clone())),
                per_qos: true,
                settings: values::CgroupSettings {
                    writes: WriteLimits {
                        bytes_per_second,
                        disk: disk.map(Into::into),
                    },
                    ..values::CgroupSettings::default()
                },
                kubepods: LinuxResources::default(),
                given: Mutex::new(Some(PodRequestTotals::default())),
            };
            let cgroups = PodCgroups {
                tree: Arc::new(tree),
                lane: Lane::start("cgroups").expect("a thread"),
            };
            let mut pod = Pod::default();
            pod.metadata.uid = PodUid::new("u-1");
            let annotation = annotation.map(|text| ("picolet/write-limit".into(), text.into()));
            pod.metadata.annotations.extend(annotation);
            let ensured = cgroups.ensure_pod_cgroup(
                &pod,
                &[],
                None,
                false,
                Some(PodRequestTotals::default()),
            );
            let ensured = smol::block_on(ensured);
            let text = fs::read_to_string(dir.join("io.max")).expect("file");
            let is_made = ensured.map(|state| matches!(state, PodCgroupState::Made(_)));
            (is_made.map_err(|e| e.to_string()), text)
        };
        let made = |text: &str| (Ok(true), text.to_owned());
        let disk = Some("179:0");
        assert_eq!(ensure(None, disk, None), made(""), "nothing to take back");
        let limited = made("179:0 wbps=4194304");
        assert_eq!(ensure(Some(4 << 20), disk, None), limited);
        let own = ensure(Some(4 << 20), disk, Some("1Mi"));
        // The file is none of the kernel's, which would take a new value whole.
        assert_eq!(own, made("179:0 wbps=1048576"));
        fs::write(dir.join("io.max"), "179:0 wbps=1").expect("file");
        assert_eq!(ensure(None, disk, None), made("179:0 wbps=max"));
        let (refused, _) = ensure(None, None, Some("1Mi"));
        let why = refused.expect_err("nothing to limit it with");
        assert!(why.contains("needs cgroup v2"), "{why}");
        fs::remove_dir_all(&root).expect("clean up");
    }

    #[test]
    fn what_a_policy_reserved_goes_with_it() {
        // CG-16 MQOS-02 MQOS-03
        let root = crate::testing::unused_path("tiers");
        let names = values::CgroupTree {
            root: String::new(),
            driver: CgroupDriver::Systemd,
        };
        let tiers = values::TIERS.map(|qos| names.tier_path(qos));
        let dirs = tiers.map(|tier| root.join(tier.trim_start_matches('/')));
        fs::create_dir_all(&root).expect("directory");
        for file in LISTS {
            fs::write(root.join(file), "").expect("file");
        }
        for dir in &dirs {
            fs::create_dir_all(dir).expect("directory");
            for file in ["cpu.weight", "memory.min", "memory.low"]
                .iter()
                .chain(&LISTS)
            {
                fs::write(dir.join(file), "").expect("file");
            }
        }
        let line = format!("1 1 0:1 / {} rw - cgroup2 none rw", root.display());
        let hierarchy = Hierarchy::parse(&line).expect("a tree");
        let told = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&told);
        let systemd = Double::new(move |call| {
            counted.fetch_add(call.has("MemoryMin").into(), Ordering::Relaxed);
            Reply::Job("done")
        });
        let tree = |reserves| PodCgroupTree {
            cgroups: Arc::new(
                Cgroups::with_hierarchy(hierarchy.clone()).with_systemd_slices(systemd.slices()),
            ),
            per_qos: true,
            settings: values::CgroupSettings {
                tree: names.clone(),
                v2: true,
                memory_qos: Some(values::MemoryQos {
                    throttling_permille: Some(900),
                    reserves,
                    allocatable_bytes: 1 << 30,
                    page_bytes: 4096,
                }),
                ..values::CgroupSettings::default()
            },
            kubepods: LinuxResources::default(),
            given: Mutex::default(),
        };
        let asked = PodRequestTotals {
            burstable_milli: 0,
            burstable_bytes: 7,
            guaranteed_bytes: 9,
        };
        let kept = || {
            dirs.each_ref().map(|dir| {
                ["memory.min", "memory.low"]
                    .map(|file| fs::read_to_string(dir.join(file)).expect("file"))
            })
        };
        let reserving = tree(true);
        reserving.make_tiers().expect("made");
        reserving.refresh_tiers(asked).expect("given");
        assert_eq!(kept(), [["9", "7"], ["", "7"], ["", ""]]);
        let times_told = || told.load(Ordering::Relaxed);
        assert_eq!(times_told(), 1, "of kubepods");
        // Another agent of the same policy leaves it.
        tree(true).make_tiers().expect("made");
        assert_eq!(kept(), [["9", "7"], ["", "7"], ["", ""]]);
        let other = tree(false);
        other.make_tiers().expect("made");
        other.refresh_tiers(asked).expect("given");
        assert_eq!(kept(), [["0", "0"], ["0", "0"], ["", ""]]);
        assert_eq!(times_told(), 3, "of kubepods and a tier");
        fs::remove_dir_all(&root).expect("clean up");
    }
}
