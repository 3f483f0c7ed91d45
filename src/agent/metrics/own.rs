//! The agent's figures of itself.

use std::fs;

use super::{super::node::machine, Metrics, MetricsTools};
use crate::{
    api::WallTime,
    cgroup::CgroupVersion,
    logic::metrics::{
        exposition::{MetricType, MetricsText, SampleValue},
        own::{self, AgentCounters, AgentMetricFacts, MachineFigures, ProcessUsage},
    },
    net::meter,
    sys::{
        clock, disk_usage, pages,
        proc::{TICKS, read_small},
    },
};

/// Writes the page `/metrics`.
pub(super) async fn write_agent_page(metrics: &Metrics) -> String {
    let tools = &metrics.tools;
    let now = tools.clock.now();
    let small = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let asked = tools.agent.ask_agent(|agent| {
        (
            agent.count_pods(),
            agent.probe_figures(),
            agent.node_standing(),
        )
    });
    let (counts, probes, standing) = asked.await;
    let root = tools.settings.root_dir.clone();
    let below = move || {
        (
            disk_usage::read_file_system(&root).ok(),
            machine::disk_with_number(&root),
        )
    };
    let (fs, disk) = tools.disk.run_job(below).await;
    let wall = tools.clock.wall_time();
    let left = |end: WallTime| end.unix_seconds().saturating_sub(wall.unix_seconds());
    let machine = MachineFigures {
        ready: standing.not_ready.is_empty(),
        pressure: standing.pressure,
        clock_synchronized: clock::is_synchronized(),
        fs,
        disk: disk.map(|(disk, _)| disk),
        certificate_s: counts.certificate.map(|end| end.map(left)),
    };
    let page = |counters: &AgentCounters| {
        own::agent_page(&AgentMetricFacts {
            node: &tools.facts.name,
            version: crate::VERSION,
            cgroup_version: match tools.cgroups.cgroup_version() {
                CgroupVersion::V1 => 1,
                CgroupVersion::V2 => 2,
            },
            started_at: tools.settings.started_at,
            process: process_figures(),
            gauges: counts.gauges,
            totals: counts.totals,
            running: counts.running,
            slots: [small(counts.slots_taken), small(tools.settings.slots)],
            probes_late: probes.late,
            readers: small(metrics.readers.get().saturating_sub(1)),
            apiserver_age: counts.answered.map(|at| now - at),
            link: meter::counted_bytes(),
            machine: machine.clone(),
            counters,
        })
    };
    let mut text = MetricsText(tools.counters.with_counters(page));
    if let Some(objects) = &tools.objects {
        objects.write_certificate_states(&mut text);
    }
    for part in &tools.peers.parts {
        part.write_metrics(&mut text);
    }
    text.0
}

/// Writes the page `/metrics/slis`: the checks of `/healthz`, as they are now.
pub(super) fn write_slis_page(tools: &MetricsTools) -> String {
    let moves = tools.loop_watch.is_healthy(tools.clock.now());
    let mut text = MetricsText::default();
    let help = "Whether a check of the agent passes: 1, or 0.";
    text.write_family("kubernetes_healthcheck", MetricType::Gauge, help, |s| {
        let own = [("log", true), ("ping", true), ("syncloop", moves)];
        let resources = tools.peers.resources.iter();
        let resources = resources.flat_map(|giver| giver.health_checks());
        let resources = resources.map(|check| (check.name, check.trouble.is_none()));
        for (name, passes) in resources.chain(own) {
            let labels = [("name", name), ("type", "healthz")];
            s.write_sample(&labels, SampleValue::Count(passes.into()), None);
        }
    });
    text.0
}

/// Figures of this process. Source: proc_pid_stat(5).
fn process_figures() -> Option<ProcessUsage> {
    let mut buffer = [0; 1200];
    let stat = read_small("/proc/self/stat", &mut buffer).ok()?;
    let mut process = parse_process_stat(stat)?;
    let files = fs::read_dir("/proc/self/fd").ok()?.count();
    process.files = u64::try_from(files).ok()?;
    Some(process)
}

fn parse_process_stat(stat: &str) -> Option<ProcessUsage> {
    let (_, rest) = stat.rsplit_once(')')?;
    // Fields count from 1; the first one behind the name is the third.
    let field = |n: usize| -> Option<u64> {
        let mut fields = rest.split_ascii_whitespace();
        fields.nth(n - 3)?.parse().ok()
    };
    Some(ProcessUsage {
        cpu_ns: (field(14)? + field(15)?).saturating_mul(1_000_000_000 / TICKS),
        resident_bytes: field(24)?.saturating_mul(pages::page_size_bytes()),
        files: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_process() {
        // Names may have anything in them.
        let line = "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 900 0 12 0 150 50 7 8 20 0 3 0 777 9000000 321 18446744073709551615";
        let process = parse_process_stat(line).expect("whole");
        assert_eq!(process.resident_bytes, 321 * pages::page_size_bytes());
        assert_eq!(process.cpu_ns, 200 * (1_000_000_000 / TICKS));
        assert!(parse_process_stat("1 (x) S 1").is_none());
    }

    #[test]
    fn this_process() {
        // No more is checked: an emulator makes most of the file up.
        let own = process_figures().expect("figures");
        assert!(own.files > 2);
    }
}
