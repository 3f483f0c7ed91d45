//! Figures of what runs, read when somebody asks and never before. What of them is said, and how, is decided in
//! [`crate::logic::metrics`].

mod claims;
mod disk;
mod own;

use alloc::rc::{Rc, Weak};
use core::{cell::Cell, cell::RefCell, time::Duration};

use super::{ctx::Ctx, sync::chain};
use crate::{
    api::{
        Mono,
        stats::{ClaimUsage, Detail},
    },
    cgroup::Cgroups,
    logic::{
        cgroup,
        metrics::{
            cadvisor,
            exposition::Pieces,
            probes,
            rate::Rates,
            resource,
            sample::{Disk, PodSample, Sample, SystemGroup},
            summary,
        },
    },
    net::traffic,
    server::{backend::Figures, http::Refusal},
};

/// A sample that is no older serves everybody who still reads, or asks meanwhile.
const FRESH: Duration = Duration::from_secs(1);
/// Answers under way at a time; a further one is refused. Each holds a sample: about 1 KiB for each container.
const MAX_READERS: usize = 4;

/// What is kept between questions: one number for each control group. Samples live as long as somebody reads them.
#[derive(Debug, Default)]
pub(in crate::agent) struct Metrics {
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

/// The figures asked for, as text, piece by piece.
pub(super) async fn page(ctx: &Ctx, figures: Figures) -> Result<Pieces, Refusal> {
    let reader = Reader::enter(&ctx.metrics.readers)?;
    let pieces: Pieces = match figures {
        Figures::Own => {
            let claims = claims::usage(ctx).await;
            let own = core::iter::once(own::page(ctx));
            Box::new(own.chain(crate::logic::metrics::claims::page(claims)))
        }
        Figures::Slis => Box::new(core::iter::once(own::slis(ctx))),
        Figures::Probes => {
            let figures = ctx.pods.workers(|table| ctx.probes.figures(table));
            Box::new(probes::page(figures))
        }
        Figures::Resource => Box::new(resource::page(sample(ctx, Detail::Basic).await)),
        Figures::Cadvisor => Box::new(cadvisor::page(sample(ctx, Detail::Full).await)),
        Figures::Summary(detail) => Box::new(summary::pieces(sample(ctx, detail).await, detail)),
    };
    Ok(Box::new(pieces.inspect(move |_| _ = &reader)))
}

/// All figures as they are now.
async fn sample(ctx: &Ctx, detail: Detail) -> Rc<Sample> {
    let metrics = &ctx.metrics;
    let turn = metrics.turn.lock().await;
    let now = ctx.clock.now();
    if let Some((at, known, last)) = &*metrics.last.borrow()
        && *known >= detail
        && now - *at < FRESH
        && let Some(sample) = last.upgrade()
    {
        return sample;
    }
    ctx.heap_used.set(true);
    let read = gather(ctx, detail).await;
    let mut rates = metrics.rates.borrow_mut();
    rates.begin();
    let sample = Rc::new(read.with_rates(&mut rates, now));
    if !sample.failed {
        rates.end();
    }
    *metrics.last.borrow_mut() = Some((now, detail, Rc::downgrade(&sample)));
    drop(turn);
    sample
}

async fn gather(ctx: &Ctx, detail: Detail) -> Sample {
    let pods = ctx.runtime.list_pod_usage(detail).await;
    if let Err(e) = &pods {
        ctx.complain(&format!("cannot read figures of pods: {}", chain(e)));
    }
    let failed = pods.is_err();
    let pods = pods.unwrap_or_default();
    let disk = match detail {
        Detail::Basic => Rc::default(),
        Detail::Full => disk::usage(ctx, &pods).await,
    };
    let cgroups = Cgroups::clone(&ctx.cgroups);
    let since = ctx.started_at;
    let groups = system_groups(&ctx.cfg.cgroup.root);
    let own = ctx.disk.run(move || {
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
        (cgroups.machine_usage(detail), network, groups, tasks())
    });
    let (machine, network, groups, tasks) = own.await;
    Sample {
        node: ctx.node.name.clone(),
        started_at: ctx.started_at,
        machine,
        memory_bytes: ctx.node.memory_bytes,
        cpu_milli: ctx.node.cpu_milli,
        network,
        groups,
        tasks,
        max_pids: Some(ctx.node.pids).filter(|n| *n > 0),
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

/// Names of the system's groups in statistics (MET-14), and where they are; `None`: where this agent is.
fn system_groups(cgroup_root: &str) -> [(&'static str, Option<String>); 3] {
    let root = cgroup_root.trim_end_matches('/');
    [
        ("kubelet", None),
        // What stays with a container, and does its logs.
        ("runtime", Some(format!("{root}/picolet-shims"))),
        ("pods", Some(cgroup::kubepods_path(cgroup_root))),
    ]
}

/// Processes and threads of the machine. Source: proc_loadavg(5).
fn tasks() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let (_, all) = text.split(' ').nth(3)?.split_once('/')?;
    all.parse().ok()
}

/// The agent's own group; none if that is the root.
fn own_group() -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    group_of(&text).map(str::to_owned)
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
        assert!(tasks().is_some_and(|n| n > 0));
    }
}
