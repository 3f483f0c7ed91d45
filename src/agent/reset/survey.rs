//! The things that a reset would remove, told without touching anything.

use std::{collections::BTreeMap, path::Path};

use super::{cgroup_paths, files};
use crate::{
    api::PodUid,
    cgroup::Cgroups,
    config::AgentConfig,
    runtime::{
        log_links::LogLinks,
        runc::{self, apparmor},
    },
    sys::mount,
};

/// Lists the things that a reset would remove, one thing a line, pods first; empty if there are none.
pub(super) fn removal_lines(cfg: &AgentConfig, keep_images: bool) -> Vec<String> {
    let dirs = &cfg.dirs;
    let mut lines = pod_lines(cfg);
    if let Ok(cgroups) = Cgroups::detect() {
        for path in cgroup_paths(cfg) {
            if cgroups.has_group(&path) {
                let processes = cgroups.list_pids(&path).len();
                lines.push(format!(
                    "cgroup {path} with {}",
                    count_text(processes, "process")
                ));
            }
        }
    }
    for dir in [&dirs.run, &dirs.root] {
        // The directory itself is a mount where the agent shares its mounts.
        let mounts = mount::mounts_below(dir).unwrap_or_default();
        let below = mounts.iter().filter(|m| *m != dir).count();
        if below > 0 {
            lines.push(format!(
                "{} in {}",
                count_text(below, "mount"),
                dir.display()
            ));
        }
    }
    let bridge = &cfg.network.builtin_bridge;
    if Path::new("/sys/class/net").join(bridge).exists() {
        lines.push(format!("bridge {bridge} and its iptables rules"));
    }
    lines.extend(cfg.parts.iter().flat_map(|part| part.list_remains()));
    if files::dir_entry_names(&dirs.run).next().is_some() {
        lines.push(format!("everything in {}", dirs.run.display()));
    }
    for (path, holds) in files::root_entries(&dirs.root, !keep_images) {
        lines.push(match holds {
            0 => path.display().to_string(),
            n => format!("{} with {}", path.display(), count_text(n, "entry")),
        });
    }
    let (logs, links) = (&dirs.pod_logs, &dirs.container_logs);
    let pods = files::log_dirs(logs).len();
    if pods > 0 {
        lines.push(format!(
            "logs of {} in {}",
            count_text(pods, "pod"),
            logs.display()
        ));
    }
    let open = LogLinks::open(links).ok().flatten();
    let links_there = open.map_or(0, |open| {
        files::links_into_pods(logs, &open.fd_path()).count()
    });
    if links_there > 0 {
        lines.push(format!(
            "{} in {}",
            count_text(links_there, "link"),
            links.display()
        ));
    }
    lines.extend(apparmor::unloadable_profiles().map(|name| format!("AppArmor profile {name}")));
    lines
}

/// Lists the pods that have a sandbox or a directory.
fn pod_lines(cfg: &AgentConfig) -> Vec<String> {
    let mut known: BTreeMap<PodUid, Option<String>> = BTreeMap::new();
    for name in files::dir_entry_names(&cfg.dirs.pods_dir()) {
        known.insert(PodUid::new(name), None);
    }
    for (uid, name) in runc::recorded_pods(&cfg.dirs.run) {
        known.insert(uid, Some(name));
    }
    let line = |(uid, name): (PodUid, Option<String>)| match name {
        Some(name) => format!("pod {name}"),
        None => format!("what is left of pod {uid}"),
    };
    known.into_iter().map(line).collect()
}

fn count_text(n: usize, what: &str) -> String {
    match (n, what) {
        (1, _) => format!("1 {what}"),
        (_, "process") => format!("{n} processes"),
        (_, "entry") => format!("{n} entries"),
        _ => format!("{n} {what}s"),
    }
}
