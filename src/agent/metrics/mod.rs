//! Figures of the agent, its pods and the machine, read when somebody asks and never before. Their choice and form is
//! decided in [`crate::logic::metrics`].

mod claims;
mod disk;
mod own;
mod written;

use alloc::{
    rc::{Rc, Weak},
    sync::Arc,
};
use core::{cell::Cell, cell::RefCell, time::Duration};
use std::path::PathBuf;

use super::{
    asker::AgentHandle,
    clock::Clock,
    cluster::ObjectStore,
    complaints::Complaints,
    core::Agent,
    eviction::{PodFileCounter, gauge::running_task_count},
    node::MachineFacts,
    node_resources::ResourceGiver,
    vitals::{HeapUse, LoopWatch, WorkCounters},
};
use crate::{
    api::{
        MonoTime, WallTime,
        stats::{ClaimUsage, StatsDetail},
    },
    cgroup::Cgroups,
    error::error_chain,
    logic::{
        cgroup::CgroupTree,
        housekeeping::{PodGauges, PodTotals},
        metrics::{
            cadvisor, claims as of_claims, containers,
            exposition::PagePieces,
            probes,
            rate::CpuRates,
            resource,
            sample::{DiskSample, PodSample, SystemGroup, UsageSample},
            summary,
        },
        pleg::RunningCounts,
    },
    net::traffic,
    parts::ConfiguredPart,
    runtime::RuntimeService,
    server::{backend::MetricsEndpoint, http::Refusal},
    sys::lane::Lane,
    volume::Volumes,
};

/// Age up to which a sample serves all who still read it, or ask meanwhile.
const FRESH: Duration = Duration::from_secs(1);
/// Answers under way at a time; a further one is refused. Each holds a sample: about 1 KiB for each container.
const MAX_READERS: usize = 4;

/// Counts of pods, and times of the apiserver.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodCounts {
    /// Pods, as of the last pass of housekeeping.
    pub(super) gauges: PodGauges,
    /// Pods since the start.
    pub(super) totals: PodTotals,
    /// Sandboxes and containers of the last relist.
    pub(super) running: RunningCounts,
    /// Places of the pod table that are taken.
    pub(super) slots_taken: usize,
    /// Time of the apiserver's last answer.
    pub(super) answered: Option<MonoTime>,
    /// End of this node's client certificate. Outer `None`: the agent does not keep the certificate; inner `None`:
    /// there is none.
    pub(super) certificate: Option<Option<WallTime>>,
}

/// Tools that figures are read with.
pub(super) struct MetricsTools {
    /// Time.
    pub(super) clock: Rc<dyn Clock>,
    /// Figures of containers.
    pub(super) runtime: Rc<dyn RuntimeService>,
    /// Lane on which files are counted.
    pub(super) disk: Lane,
    /// Volumes of pods.
    pub(super) volumes: Volumes,
    /// Counts the files of pods.
    pub(super) files: PodFileCounter,
    /// Figures of the machine.
    pub(super) cgroups: Arc<Cgroups>,
    /// Facts of the machine.
    pub(super) facts: Rc<MachineFacts>,
    /// Counters of the agent's own work.
    pub(super) counters: WorkCounters,
    /// Watch on the loop: tells if it moves.
    pub(super) loop_watch: LoopWatch,
    /// Told of each sample: a sample uses much of the heap.
    pub(super) heap: HeapUse,
    /// Warnings about figures that cannot be read.
    pub(super) complaints: Rc<Complaints>,
    /// The agent.
    pub(super) agent: AgentHandle,
    /// Objects of the cluster, for the volumes that claims are bound to; `None` on a node that stands alone.
    pub(super) objects: Option<Rc<ObjectStore>>,
    /// Others with figures of their own.
    pub(super) peers: MetricsPeers,
    /// Settings that do not change.
    pub(super) settings: MetricsSettings,
}

/// Others with figures of their own.
pub(super) struct MetricsPeers {
    /// Parts of the node.
    pub(super) parts: Vec<Rc<dyn ConfiguredPart>>,
    /// Giver of extended resources.
    pub(super) resources: Option<Rc<dyn ResourceGiver>>,
}

/// Settings from the configuration and the start that shape figures.
pub(super) struct MetricsSettings {
    /// Directory whose disk is looked at.
    pub(super) root_dir: PathBuf,
    /// Cgroup tree below which pods have their groups.
    pub(super) tree: CgroupTree,
    /// Period in which the disk use of files is counted only once.
    pub(super) volume_stats: Duration,
    /// Places of the pod table.
    pub(super) slots: usize,
    /// Time of the agent's start.
    pub(super) started_at: WallTime,
}

/// Figures of the agent, its pods and the machine. One number for each control group and the disk use of files are kept
/// between questions; samples live as long as they are read. The local commands and the node's server ask.
pub(super) struct Metrics {
    tools: MetricsTools,
    /// Lock of the reader: the others wait, and share its sample.
    turn: smol::lock::Mutex<()>,
    last: RefCell<Option<(MonoTime, StatsDetail, Weak<UsageSample>)>>,
    rates: RefCell<CpuRates>,
    disk: RefCell<Option<(MonoTime, Rc<DiskSample>)>>,
    claims: RefCell<Option<(MonoTime, Rc<[ClaimUsage]>)>>,
    readers: Rc<Cell<usize>>,
}

/// Counts one answer under way.
struct ScrapeGuard(Rc<Cell<usize>>);

impl ScrapeGuard {
    fn enter_scrape(readers: &Rc<Cell<usize>>) -> Result<Self, Refusal> {
        if readers.get() >= MAX_READERS {
            let busy = format!("{MAX_READERS} clients are reading metrics already");
            return Err(Refusal::new(429, busy));
        }
        readers.set(readers.get() + 1);
        Ok(Self(Rc::clone(readers)))
    }
}

impl Drop for ScrapeGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Metrics {
    /// Makes the metrics; no figures are kept yet.
    pub(super) fn new(tools: MetricsTools) -> Self {
        Self {
            tools,
            turn: smol::lock::Mutex::default(),
            last: RefCell::default(),
            rates: RefCell::default(),
            disk: RefCell::default(),
            claims: RefCell::default(),
            readers: Rc::default(),
        }
    }

    /// Returns the figures asked for, as text, piece by piece.
    pub(super) async fn metrics_page(
        &self,
        figures: MetricsEndpoint,
    ) -> Result<PagePieces, Refusal> {
        let reader = ScrapeGuard::enter_scrape(&self.readers)?;
        let pieces: PagePieces = match figures {
            MetricsEndpoint::Own => {
                let claims = claims::claim_usage(self).await;
                let own = core::iter::once(own::write_agent_page(self).await);
                let containers = self.tools.agent.ask_agent(Agent::container_figures).await;
                let of_pods =
                    containers::containers_page(containers).chain(of_claims::claims_page(claims));
                Box::new(own.chain(of_pods))
            }
            MetricsEndpoint::Slis => Box::new(core::iter::once(own::write_slis_page(&self.tools))),
            MetricsEndpoint::Probes => Box::new(probes::probes_page(
                self.tools.agent.ask_agent(Agent::probe_figures).await,
            )),
            MetricsEndpoint::Resource => Box::new(resource::resource_page(
                self.take_sample(StatsDetail::Basic).await,
            )),
            MetricsEndpoint::Cadvisor => Box::new(cadvisor::cadvisor_page(
                self.take_sample(StatsDetail::Full).await,
            )),
            MetricsEndpoint::Disk => {
                Box::new(core::iter::once(written::write_disk_page(self).await))
            }
            MetricsEndpoint::Summary(detail) => Box::new(summary::summary_pieces(
                self.take_sample(detail).await,
                detail,
            )),
        };
        Ok(Box::new(pieces.inspect(move |_| _ = &reader)))
    }

    /// Returns all figures as they are now.
    async fn take_sample(&self, detail: StatsDetail) -> Rc<UsageSample> {
        let turn = self.turn.lock().await;
        let now = self.tools.clock.now();
        if let Some((at, known, last)) = &*self.last.borrow()
            && *known >= detail
            && now - *at < FRESH
            && let Some(sample) = last.upgrade()
        {
            return sample;
        }
        self.tools.heap.note_heap_use();
        let read = self.gather_sample(detail).await;
        let mut rates = self.rates.borrow_mut();
        rates.begin_round();
        let sample = Rc::new(read.with_rates(&mut rates, now));
        if !sample.failed {
            rates.end_round();
        }
        *self.last.borrow_mut() = Some((now, detail, Rc::downgrade(&sample)));
        drop(turn);
        sample
    }

    async fn gather_sample(&self, detail: StatsDetail) -> UsageSample {
        let MetricsTools {
            runtime,
            facts,
            settings,
            ..
        } = &self.tools;
        let pods = runtime.list_pod_usage(detail).await;
        if let Err(e) = &pods {
            let text = format!("cannot read figures of pods: {}", error_chain(e));
            self.tools.complaints.complain(&text);
        }
        let failed = pods.is_err();
        let pods = pods.unwrap_or_default();
        let disk = match detail {
            StatsDetail::Basic => Rc::default(),
            StatsDetail::Full => disk::files_disk_usage(self, &pods).await,
        };
        let cgroups = Cgroups::clone(&self.tools.cgroups);
        let since = settings.started_at;
        let groups = system_groups(&settings.tree);
        let own = self.tools.disk.run_job(move || {
            let groups = groups.into_iter().filter_map(|(name, path)| {
                let cgroup = path.or_else(own_group)?;
                let usage = cgroups.read_usage(&cgroup, detail)?;
                Some(SystemGroup {
                    name,
                    cgroup,
                    started_at: since,
                    usage,
                    nano_cores: None,
                })
            });
            let groups: Vec<SystemGroup> = groups.collect();
            let network = match detail {
                StatsDetail::Basic => None,
                StatsDetail::Full => traffic::read_thread_interfaces().ok(),
            };
            (
                cgroups.read_machine_usage(detail),
                network,
                groups,
                running_task_count(),
            )
        });
        let (machine, network, groups, tasks) = own.await;
        UsageSample {
            node: facts.name.clone(),
            started_at: since,
            machine,
            memory_bytes: facts.memory_bytes,
            cpu_milli: facts.cpu_milli,
            network,
            groups,
            tasks,
            max_pids: Some(facts.pids).filter(|n| *n > 0),
            disk,
            failed,
            pods: pods
                .into_iter()
                .map(|pod| PodSample {
                    pod,
                    ..PodSample::default()
                })
                .collect(),
            ..UsageSample::default()
        }
    }
}

/// Names of the system's groups in statistics (MET-14), and their paths; `None`: the group of this agent.
fn system_groups(tree: &CgroupTree) -> [(&'static str, Option<String>); 3] {
    let root = tree.root.trim_end_matches('/');
    [
        ("kubelet", None),
        // The shims: each stays with a container, and writes its logs.
        ("runtime", Some(format!("{root}/picolet-shims"))),
        ("pods", Some(tree.kubepods_path())),
    ]
}

/// Path of the agent's own group; none if that is the root.
fn own_group() -> Option<String> {
    // A line for each tree of version 1, with a path.
    let mut buffer = vec![0; 16 * 1024];
    let text = crate::sys::proc::read_small("/proc/self/cgroup", &mut buffer).ok()?;
    parse_cgroup_path(text).map(str::to_owned)
}

/// Finds the control group of a process: of version 1 the group that counts memory. Source: cgroups(7).
fn parse_cgroup_path(text: &str) -> Option<&str> {
    let lines = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let of = |wanted: fn(&str) -> bool| lines.clone().find(|(c, _)| wanted(c));
    let found = of(|c| c.split(',').any(|c| c == "memory")).or_else(|| of(str::is_empty));
    found.map(|(_, path)| path).filter(|path| path.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_agent() {
        for (text, want) in [
            (
                "0::/system.slice/picolet.service\n",
                Some("/system.slice/picolet.service"),
            ),
            ("5:cpu,cpuacct:/a\n4:memory:/b\n0::/c\n", Some("/b")),
            ("4:memory:/\n0::/c\n", None),
            ("1:name=systemd:/x\n0::/c\n", Some("/c")),
            ("rubbish", None),
        ] {
            assert_eq!(parse_cgroup_path(text), want, "{text}");
        }
    }
}
