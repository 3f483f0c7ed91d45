//! Processors of single containers (CPUM-20 to CPUM-24): the record of who has which, and what the runtime was told.
//!
//! The loop gives and releases; a sync keeps the record before it starts anything, and tells the runtime what has changed.

use alloc::{collections::BTreeMap, rc::Rc};
use core::cell::{Cell, RefCell};
use std::{
    io,
    path::{Path, PathBuf},
};

use super::{complaints::Complaints, record};
use crate::{
    api::{
        ContainerId, Pod, PodUid,
        cri::{ContainerState, LinuxResources, PodRuntimeStatus},
    },
    config::{AgentConfig, CpuPolicyConfig},
    logic::{
        cpu_manager::{CpuManager, CpuManagerState, CpuRefusal, MachineCpus},
        cpu_set::CpuSet,
    },
    runtime::RuntimeService,
    sys::{file, lane::Lane},
};

/// Name of the record in the root directory, as a kubelet has it.
const RECORD: &str = "cpu_manager_state";
/// Most bytes of the record that are read: some hundred pods with many containers.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// Most bytes of a file about processors.
const MAX_LIST_BYTES: u64 = 64 << 10;
/// Directory of the machine's processors.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Processors of the node and who has which.
pub(super) struct NodeCpus {
    manager: RefCell<CpuManager>,
    path: PathBuf,
    /// Set if the record says what the manager says.
    is_kept: Cell<bool>,
    /// Processors that the runtime was told last, of running containers.
    told: RefCell<BTreeMap<PodUid, BTreeMap<ContainerId, CpuSet>>>,
    complaints: Rc<Complaints>,
}

impl NodeCpus {
    /// Takes over what the agent before has given. Blocking.
    pub(super) fn recall(
        policy: &CpuPolicyConfig,
        cpus: MachineCpus,
        cfg: &AgentConfig,
        complaints: Rc<Complaints>,
    ) -> Self {
        let listed = &cfg.reserved.cpus;
        let reserved = match listed.is_empty() {
            true => cpus.choose_reserved(policy.reserved_count),
            false => listed.clone(),
        };
        let mut manager = CpuManager::new(cpus, reserved, policy.options);
        let path = cfg.dirs.root.join(RECORD);
        let known = record::recall_record::<CpuManagerState>(&path, MAX_RECORD_BYTES);
        for uid in known.iter().flat_map(|known| manager.restore(known)) {
            log::warn!("uid={uid} its processors cannot be its own any more: it gets others");
        }
        Self {
            is_kept: Cell::new(known.as_ref() == Some(&manager.state())),
            manager: RefCell::new(manager),
            path,
            told: RefCell::default(),
            complaints,
        }
    }

    /// Gives the containers of an admitted pod what they ask for.
    ///
    /// - Errors: the pod has no processors of its own, and must not run.
    pub(super) fn give(&self, pod: &Pod) -> Result<(), CpuRefusal> {
        let had = self.shared_cpus();
        let given = self.manager.borrow_mut().give(pod);
        self.note_change(matches!(given, Ok(true)) || had != self.shared_cpus());
        given.map(drop)
    }

    /// Processors that containers share.
    pub(super) fn shared_cpus(&self) -> CpuSet {
        self.manager.borrow().shared_cpus()
    }

    /// Takes back what pods have that `keeps` does not name. Returns true if the shared processors have changed.
    pub(super) fn release(&self, keeps: impl Fn(&PodUid) -> bool) -> bool {
        self.told.borrow_mut().retain(|uid, _| keeps(uid));
        let released = self.manager.borrow_mut().release(keeps);
        self.note_change(released);
        released
    }

    fn note_change(&self, is_change: bool) {
        self.is_kept.set(self.is_kept.get() && !is_change);
    }

    /// Processors of a container.
    pub(super) fn cpus_of(&self, pod: &PodUid, container: &str) -> CpuSet {
        self.manager.borrow().cpus_of(pod, container)
    }

    /// Notes which processors a container was made with.
    pub(super) fn note_told(&self, pod: &PodUid, container: &ContainerId, cpus: CpuSet) {
        let mut told = self.told.borrow_mut();
        let pod = told.entry(pod.clone()).or_default();
        pod.insert(container.clone(), cpus);
    }

    /// Keeps the record durably, if it has changed.
    ///
    /// - Errors: it cannot be kept; nothing may start.
    pub(super) async fn keep_record(&self, disk: &Lane) -> io::Result<()> {
        if self.is_kept.get() {
            return Ok(());
        }
        let (path, state) = (self.path.clone(), self.manager.borrow().state());
        let written = state.clone();
        let kept = disk
            .run_job(move || record::write_record(&path, &state))
            .await;
        // Others may have got processors meanwhile.
        self.is_kept
            .set(kept.is_ok() && self.manager.borrow().state() == written);
        kept
    }

    /// Tells the runtime the processors of the pod's running containers, where they are others than before. `keeps`: containers
    /// that this sync does not end. What the runtime refuses is tried again at the next sync.
    pub(super) async fn update_running(
        &self,
        pod: &Pod,
        runtime: &dyn RuntimeService,
        status: &PodRuntimeStatus,
        keeps: impl Fn(&ContainerId) -> bool,
    ) {
        let uid = &pod.metadata.uid;
        if let Some(told) = self.told.borrow_mut().get_mut(uid) {
            told.retain(|id, _| status.containers.iter().any(|c| c.id == *id));
        }
        for container in &status.containers {
            if container.state != ContainerState::Running || !keeps(&container.id) {
                continue;
            }
            let cpus = self.cpus_of(uid, &container.name);
            let is_told = {
                let told = self.told.borrow();
                told.get(uid).and_then(|pod| pod.get(&container.id)) == Some(&cpus)
            };
            // Without a processor for all there is nothing that could be told.
            if is_told || cpus.is_empty() {
                continue;
            }
            let resources = LinuxResources {
                cpuset_cpus: Some(cpus.to_string()),
                ..LinuxResources::default()
            };
            let id = &container.id;
            match runtime.update_container_resources(id, &resources).await {
                Ok(()) => self.note_told(uid, id, cpus),
                Err(e) => self.complaints.complain(&format!(
                    "uid={uid} container={} cannot have the processors {cpus}: {e}",
                    container.name
                )),
            }
        }
    }
}

/// Finds the processors of this machine, if the configuration is about single ones (CPUM-20, CONF-13). Blocking.
///
/// - Errors: the key that this machine cannot fulfil, and why.
pub(super) fn find_machine_cpus(
    cfg: &AgentConfig,
) -> Result<Option<MachineCpus>, (&'static str, String)> {
    let is_static = cfg.cgroup.cpu_policy.is_some();
    find_machine_cpus_in(Path::new(PROCESSORS), is_static, &cfg.reserved.cpus)
}

fn find_machine_cpus_in(
    dir: &Path,
    is_static: bool,
    listed: &CpuSet,
) -> Result<Option<MachineCpus>, (&'static str, String)> {
    if !is_static && listed.is_empty() {
        return Ok(None);
    }
    let (field, why) = match read_machine_cpus(dir) {
        Ok(cpus) => match cpus.check_reserved(listed) {
            Ok(()) => return Ok(Some(cpus)),
            Err(absent) => ("reservedSystemCPUs", format!("is \"{listed}\", {absent}")),
        },
        // Only their number counts.
        Err(_) if !is_static => return Ok(None),
        Err(e) => {
            let file = dir.join("online");
            let why = format!("is \"static\": cannot read {}: {e}", file.display());
            ("cpuManagerPolicy", why)
        }
    };
    Err((field, format!("{field}: {why}")))
}

/// Reads the processors that are on-line, and the threads of each core. Blocking.
fn read_machine_cpus(dir: &Path) -> io::Result<MachineCpus> {
    let read = |path: &str| {
        let text = file::read_start(&dir.join(path), MAX_LIST_BYTES)?;
        let set = str::from_utf8(&text).ok().and_then(CpuSet::parse);
        set.filter(|set| !set.is_empty())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no list of processors"))
    };
    let all = read("online")?;
    let mut cores = Vec::new();
    for cpu in all.iter() {
        let siblings = read(&format!("cpu{cpu}/topology/thread_siblings_list"));
        let core = siblings.unwrap_or_default().common(&all);
        // A core is named by each of its threads.
        if core.iter().next() == Some(cpu) {
            cores.push(core);
        }
    }
    Ok(MachineCpus { all, cores })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn the_machine_tells_its_cores() {
        // CPUM-20
        let dir = crate::testing::unused_path("cpus");
        let put = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            fs::write(path, text).expect("file");
        };
        put("online", "0-1,4-5\n");
        // Of the second core one thread is off-line; the last one tells nothing.
        for (cpu, siblings) in [(0, "0,4"), (4, "0,4"), (1, "1-3")] {
            put(&format!("cpu{cpu}/topology/thread_siblings_list"), siblings);
        }
        let cpus = read_machine_cpus(&dir).expect("a list");
        let shown = |set: &CpuSet| set.to_string();
        assert_eq!(shown(&cpus.all), "0-1,4-5");
        let cores: Vec<String> = cpus.cores.iter().map(shown).collect();
        assert_eq!(cores, ["0,4", "1"]);
        assert_eq!(shown(&cpus.choose_reserved(3)), "0-1,4");
        fs::remove_dir_all(&dir).expect("clean");
    }

    #[test]
    fn a_machine_that_cannot_do_what_is_configured() {
        // CPUM-20 CONF-13
        let dir = TestDir::new("cpus");
        let found = |is_static, listed: &str| {
            let listed = CpuSet::parse(listed).expect("a list");
            let found = find_machine_cpus_in(&dir.0, is_static, &listed);
            found.map(|cpus| cpus.map(|cpus| cpus.all.to_string()))
        };
        assert_eq!(found(false, ""), Ok(None));
        assert_eq!(found(false, "1,4"), Ok(None), "only their number counts");
        for text in [None, Some(""), Some("\n"), Some("all")] {
            if let Some(text) = text {
                fs::write(dir.join("online"), text).expect("file");
            }
            let (field, why) = found(true, "").expect_err("no list");
            assert_eq!(field, "cpuManagerPolicy");
            assert!(why.starts_with("cpuManagerPolicy: is \"static\": cannot read"));
        }
        fs::write(dir.join("online"), "0-3\n").expect("file");
        let why = "reservedSystemCPUs: is \"1,4\", names processors that are not on-line: 4; on-line are 0-3";
        let refused = Err(("reservedSystemCPUs", why.to_owned()));
        assert_eq!(
            [true, false].map(|is_static| found(is_static, "1,4")),
            [refused.clone(), refused]
        );
        assert_eq!(found(true, "1,3"), Ok(Some("0-3".into())));
        assert_eq!(found(false, ""), Ok(None));
    }
}
