//! Figures of what runs, read when somebody asks and never before. What of them is said, and how, is decided in
//! [`crate::logic::metrics`].

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
    asker::Asker,
    clock::Clock,
    cluster::Objects,
    complaints::Complaints,
    core::Agent,
    device_plugins::Plugins,
    eviction::{PodFiles, gauge::running_tasks},
    node::NodeFacts,
    tunnel::Board,
    vitals::{HeapUse, LoopWatch, WorkCounters},
};
use crate::{
    api::{
        Mono, Wall,
        stats::{ClaimUsage, Detail},
    },
    cgroup::Cgroups,
    error::chain,
    logic::{
        cgroup::CgroupTree,
        housekeeping::{Gauges, Totals},
        metrics::{
            cadvisor, claims as of_claims, containers,
            exposition::Pieces,
            probes,
            rate::Rates,
            resource,
            sample::{Disk, PodSample, Sample, SystemGroup},
            summary,
        },
        pleg::RunningCounts,
    },
    net::traffic,
    runtime::RuntimeService,
    server::{backend::Figures, http::Refusal},
    sys::lane::Lane,
    volume::Volumes,
};

/// A sample that is no older serves everybody who still reads, or asks meanwhile.
const FRESH: Duration = Duration::from_secs(1);
/// Answers under way at a time; a further one is refused. Each holds a sample: about 1 KiB for each container.
const MAX_READERS: usize = 4;

/// What is counted of pods, and of what reaches the apiserver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Pods, as of the last pass of housekeeping.
    pub(super) gauges: Gauges,
    /// Pods since the start.
    pub(super) totals: Totals,
    /// What ran at the last relist.
    pub(super) running: RunningCounts,
    /// Places of the pod table that are taken.
    pub(super) slots_taken: usize,
    /// When the apiserver last answered.
    pub(super) answered: Option<Mono>,
    /// When this node's client certificate ends, if it is the agent's to keep; the inner one: if there is one.
    pub(super) certificate: Option<Option<Wall>>,
}

/// What figures are read with.
pub(super) struct Tools {
    /// Time.
    pub(super) clock: Rc<dyn Clock>,
    /// Figures of containers.
    pub(super) runtime: Rc<dyn RuntimeService>,
    /// Where files are counted.
    pub(super) disk: Lane,
    /// Volumes of pods.
    pub(super) volumes: Volumes,
    /// Counts the files of pods.
    pub(super) files: PodFiles,
    /// Figures of the machine.
    pub(super) cgroups: Arc<Cgroups>,
    /// What the machine has.
    pub(super) facts: Rc<NodeFacts>,
    /// What the agent counts of its work.
    pub(super) counters: WorkCounters,
    /// Whether its loop moves.
    pub(super) loop_watch: LoopWatch,
    /// Samples use it.
    pub(super) heap: HeapUse,
    /// For what cannot be read.
    pub(super) complaints: Rc<Complaints>,
    /// The agent.
    pub(super) agent: Asker,
    /// What claims are bound to; `None` on a node that stands alone.
    pub(super) objects: Option<Rc<Objects>>,
    /// Those who come in from outside.
    pub(super) peers: Peers,
    /// What does not change.
    pub(super) settings: Settings,
}

/// Who may come in from outside, each if it may.
pub(super) struct Peers {
    /// How the tunnel is.
    pub(super) tunnel: Option<Rc<Board>>,
    /// Device plugins.
    pub(super) plugins: Option<Rc<Plugins>>,
}

/// What of the configuration and the start shapes figures.
pub(super) struct Settings {
    /// Whose disk is looked at.
    pub(super) root_dir: PathBuf,
    /// Below which pods have their groups.
    pub(super) tree: CgroupTree,
    /// So long what files take is not counted anew.
    pub(super) volume_stats: Duration,
    /// Places of the pod table.
    pub(super) slots: usize,
    /// When the agent started.
    pub(super) started_at: Wall,
}

/// Figures of the agent and of what runs. What is kept between questions is one number for each control group, and what files
/// take; samples live as long as somebody reads them. The local commands and the node's server ask.
pub(super) struct Metrics {
    tools: Tools,
    /// One reads, others wait for what it finds.
    turn: smol::lock::Mutex<()>,
    last: RefCell<Option<(Mono, Detail, Weak<Sample>)>>,
    rates: RefCell<Rates>,
    disk: RefCell<Option<(Mono, Rc<Disk>)>>,
    claims: RefCell<Option<(Mono, Rc<[ClaimUsage]>)>>,
    readers: Rc<Cell<usize>>,
}

/// Counts one answer under way.
struct Reader(Rc<Cell<usize>>);

impl Reader {
    fn enter(readers: &Rc<Cell<usize>>) -> Result<Self, Refusal> {
        if readers.get() >= MAX_READERS {
            let busy = format!("{MAX_READERS} answers with figures are being read already");
            return Err(Refusal::new(429, busy));
        }
        readers.set(readers.get() + 1);
        Ok(Self(Rc::clone(readers)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Metrics {
    /// Nobody has asked yet.
    pub(super) fn new(tools: Tools) -> Self {
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

    /// The figures asked for, as text, piece by piece.
    pub(super) async fn page(&self, figures: Figures) -> Result<Pieces, Refusal> {
        let reader = Reader::enter(&self.readers)?;
        let pieces: Pieces = match figures {
            Figures::Own => {
                let claims = claims::usage(self).await;
                let own = core::iter::once(own::page(self).await);
                let containers = self.tools.agent.ask(Agent::container_figures).await;
                let of_pods = containers::page(containers).chain(of_claims::page(claims));
                Box::new(own.chain(of_pods))
            }
            Figures::Slis => Box::new(core::iter::once(own::slis(&self.tools))),
            Figures::Probes => Box::new(probes::page(self.tools.agent.ask(Agent::probes).await)),
            Figures::Resource => Box::new(resource::page(self.sample(Detail::Basic).await)),
            Figures::Cadvisor => Box::new(cadvisor::page(self.sample(Detail::Full).await)),
            Figures::Disk => Box::new(core::iter::once(written::page(self).await)),
            Figures::Summary(detail) => {
                Box::new(summary::pieces(self.sample(detail).await, detail))
            }
        };
        Ok(Box::new(pieces.inspect(move |_| _ = &reader)))
    }

    /// All figures as they are now.
    async fn sample(&self, detail: Detail) -> Rc<Sample> {
        let turn = self.turn.lock().await;
        let now = self.tools.clock.now();
        if let Some((at, known, last)) = &*self.last.borrow()
            && *known >= detail
            && now - *at < FRESH
            && let Some(sample) = last.upgrade()
        {
            return sample;
        }
        self.tools.heap.note();
        let read = self.gather(detail).await;
        let mut rates = self.rates.borrow_mut();
        rates.begin();
        let sample = Rc::new(read.with_rates(&mut rates, now));
        if !sample.failed {
            rates.end();
        }
        *self.last.borrow_mut() = Some((now, detail, Rc::downgrade(&sample)));
        drop(turn);
        sample
    }

    async fn gather(&self, detail: Detail) -> Sample {
        let Tools {
            runtime,
            facts,
            settings,
            ..
        } = &self.tools;
        let pods = runtime.list_pod_usage(detail).await;
        if let Err(e) = &pods {
            let text = format!("cannot read figures of pods: {}", chain(e));
            self.tools.complaints.complain(&text);
        }
        let failed = pods.is_err();
        let pods = pods.unwrap_or_default();
        let disk = match detail {
            Detail::Basic => Rc::default(),
            Detail::Full => disk::usage(self, &pods).await,
        };
        let cgroups = Cgroups::clone(&self.tools.cgroups);
        let since = settings.started_at;
        let groups = system_groups(&settings.tree);
        let own = self.tools.disk.run(move || {
            let groups = groups.into_iter().filter_map(|(name, path)| {
                let cgroup = path.or_else(own_group)?;
                let usage = cgroups.usage(&cgroup, detail)?;
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
                Detail::Basic => None,
                Detail::Full => traffic::of_this_thread().ok(),
            };
            (
                cgroups.machine_usage(detail),
                network,
                groups,
                running_tasks(),
            )
        });
        let (machine, network, groups, tasks) = own.await;
        Sample {
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
            ..Sample::default()
        }
    }
}

/// Names of the system's groups in statistics (MET-14), and where they are; `None`: where this agent is.
fn system_groups(tree: &CgroupTree) -> [(&'static str, Option<String>); 3] {
    let root = tree.root.trim_end_matches('/');
    [
        ("kubelet", None),
        // What stays with a container, and does its logs.
        ("runtime", Some(format!("{root}/picolet-shims"))),
        ("pods", Some(tree.kubepods())),
    ]
}

/// The agent's own group; none if that is the root.
fn own_group() -> Option<String> {
    // A line for each tree of version 1, with a path.
    let mut buffer = vec![0; 16 * 1024];
    let text = crate::sys::proc::read_small("/proc/self/cgroup", &mut buffer).ok()?;
    group_of(text).map(str::to_owned)
}

/// Of version 1 the one that counts memory. Source: cgroups(7).
fn group_of(text: &str) -> Option<&str> {
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
            assert_eq!(group_of(text), want, "{text}");
        }
    }
}
