//! `picolet delete pod NAME`: removes static pods. Their manifests stay beside the others, under names that are not read.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
};

use nix::errno::Errno;
use serde_json::Value;

use super::{
    AgentClient, CliCommand, CliError, args,
    check::{self, AgentPaths},
    get::DEFAULT_NAMESPACE,
    health, pods, print_text, wait,
};
use crate::{
    logic::label_selector::LabelSelector,
    sys::{clock, file},
};

/// Most manifests of one name that are set aside.
const MAX_SET_ASIDE: u32 = 1000;

pub(super) fn run_delete(
    command: &'static CliCommand,
    words: Vec<OsString>,
) -> Result<(), CliError> {
    let (own, words) = args::split_flags(command, words)?;
    let (mut namespace, mut waits) = (DEFAULT_NAMESPACE.to_owned(), true);
    let (mut selector, mut all, mut ignores_missing) = (None, false, false);
    let mut timeout = None;
    for (flag, value) in own {
        match flag {
            "namespace" => namespace = value,
            "selector" => selector = Some(pods::parse_selector(&value)?),
            "all" => all = args::parse_switch(&value)?,
            "ignore-not-found" => ignores_missing = args::parse_switch(&value)?,
            "timeout" => timeout = wait::parse_timeout(&value)?,
            _ => waits = args::parse_switch(&value)?,
        }
    }
    let (flags, words) = check::split_files(words)?;
    let (mut names, mut is_kind_known) = (Vec::new(), false);
    for word in words {
        pods::add_pod_word(&mut names, &mut is_kind_known, word)?;
    }
    if all {
        if selector.is_some() {
            return Err(CliError::new("use only one of --all and --selector"));
        }
        selector = Some(LabelSelector::default());
    }
    if selector.is_some() && !names.is_empty() {
        return Err(CliError::new(
            "name cannot be provided when a selector is specified",
        ));
    }
    if names.is_empty() && (selector.is_none() || !is_kind_known) {
        return Err(CliError::new(
            "expected 'delete pod NAME...', or 'delete pod' with -l or --all",
        ));
    }
    if namespace.is_empty() {
        return Err(CliError::new("--namespace: expected a name"));
    }
    let place = AgentPaths::of_running_agent(flags)?;
    let client = AgentClient::new(&place.socket);
    let found = pods::fetch_pods(&client, &namespace)?;
    let mut ending = Vec::new();
    if let Some(selector) = selector {
        let (gone, live) = choose_pods(&found, &selector);
        if gone.is_empty() && live.is_empty() {
            return print_text("No resources found\n");
        }
        ending.extend(gone.iter().map(|pod| &pod["metadata"]["uid"]));
        names = live
            .iter()
            .map(|pod| pods::name_of(pod).to_owned())
            .collect();
    }
    if ignores_missing {
        names.retain(|name| pods::find_pod(&found, name).is_some());
    }
    let mut failed = None;
    for name in &names {
        let kept = match pods::find_pod(&found, name) {
            None => Err(pods::pod_not_found(name)),
            Some(pod) => set_manifest_aside(&place, &namespace, name)
                .inspect(|_| ending.push(&pod["metadata"]["uid"])),
        };
        match kept {
            Ok(kept) => print_text(&format!(
                "pod \"{name}\" deleted: its manifest is now {}\n",
                kept.display()
            ))?,
            Err(e) => _ = failed.get_or_insert(e),
        }
    }
    let deadline = timeout.map(|timeout| clock::mono_now() + timeout);
    // Bounded: by the grace periods of the pods.
    while waits && !ending.is_empty() {
        if deadline.is_some_and(|deadline| clock::mono_now() >= deadline) {
            return Err(CliError::new("timed out waiting for the condition"));
        }
        health::wait_for_next_look();
        let left = pods::fetch_pods(&client, &namespace)?;
        ending.retain(|uid| left.iter().any(|pod| pod["metadata"]["uid"] == **uid));
    }
    failed.map_or(Ok(()), Err)
}

/// Chooses pods: those that end already, which are only waited for, as their names may belong to successors, and all others.
fn choose_pods<'a>(
    pods: &'a [Value],
    selector: &LabelSelector,
) -> (Vec<&'a Value>, Vec<&'a Value>) {
    let chosen = pods.iter().filter(|pod| selector.matches(pod));
    chosen.partition(|pod| pod["metadata"]["deletionTimestamp"].is_string())
}

/// Sets the manifest of a static pod aside, which ends the pod. Returns its new path.
pub(crate) fn set_manifest_aside(
    place: &AgentPaths,
    namespace: &str,
    pod: &str,
) -> Result<PathBuf, CliError> {
    let file = place.find_manifest(namespace, pod).ok_or_else(|| {
        CliError::new(format!(
            "no manifest of this machine has the pod {namespace}/{pod}: delete it where it comes from"
        ))
    })?;
    set_aside(&file).map_err(|e| CliError::new(format!("cannot rename {}: {e}", file.display())))
}

/// Renames a manifest to `.NAME.deleted`. If a file has that name already, it stays, and the new name is
/// `.NAME.deleted.1`, and so on.
fn set_aside(file: &Path) -> io::Result<PathBuf> {
    let (Some(dir), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let opened = std::fs::File::open(dir)?;
    let plain = format!(".{}.deleted", name.to_string_lossy());
    let others = (1..MAX_SET_ASIDE).map(|n| format!("{plain}.{n}"));
    for kept in core::iter::once(plain.clone()).chain(others) {
        match file::rename_new(&opened, name, &opened, OsStr::new(&kept)) {
            Err(Errno::EEXIST) => {}
            other => return other.map(|()| dir.join(kept)).map_err(Into::into),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_end_are_not_deleted_again() {
        // CMD-06
        let pod = |uid: &str, app: &str, end: Option<&str>| {
            serde_json::json!({"metadata": {
                "name": "web", "uid": uid, "labels": {"app": app}, "deletionTimestamp": end,
            }})
        };
        let old = pod("1", "old", Some("2026-01-01T00:00:00Z"));
        let pods = [old, pod("2", "new", None)];
        for (selector, gone, live) in [
            ("app=old", &["1"][..], &[][..]),
            ("app=new", &[], &["2"]),
            ("app", &["1"], &["2"]),
            ("app=none", &[], &[]),
        ] {
            let selector = pods::parse_selector(selector).expect("valid");
            let (is_gone, is_live) = choose_pods(&pods, &selector);
            let uids = |pods: &[&Value]| -> Vec<String> {
                let uids = pods
                    .iter()
                    .filter_map(|pod| pod["metadata"]["uid"].as_str());
                uids.map(str::to_owned).collect()
            };
            assert_eq!(
                (uids(&is_gone), uids(&is_live)),
                (
                    gone.iter().map(|uid| (*uid).to_owned()).collect(),
                    live.iter().map(|uid| (*uid).to_owned()).collect(),
                )
            );
        }
    }

    #[test]
    fn manifests_set_aside_are_all_kept() {
        let dir = crate::testing::unused_path("aside");
        std::fs::create_dir_all(&dir).expect("directory");
        let file = dir.join("web.yaml");
        for (text, name) in [("one", ".web.yaml.deleted"), ("two", ".web.yaml.deleted.1")] {
            std::fs::write(&file, text).expect("manifest");
            assert_eq!(set_aside(&file).expect("set aside"), dir.join(name));
            assert_eq!(std::fs::read_to_string(dir.join(name)).expect("kept"), text);
        }
        assert!(set_aside(&file).is_err(), "it is gone");
        std::fs::remove_dir_all(dir).expect("clean up");
    }
}
