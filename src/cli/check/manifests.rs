//! Facts of the preflight about manifests and the configuration of registries, and who else can read them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::gather::{RULES, read_text};
use crate::{
    agent::images,
    api::{order::OrderExt as _, received::SnapshotEntry},
    config::AgentConfig,
    error::error_chain,
    logic::check::{self, ManifestFacts},
    net::Url,
    source::{ManifestDir, SourceProblem, SourceReading, Trigger},
};

pub(super) fn gather_manifests(cfg: &AgentConfig) -> ManifestFacts {
    let url = cfg.manifest_url.as_ref().map(|at| &at.url);
    let open = find_readable_credentials(cfg);
    let at_url = ManifestFacts {
        url: url.map(Url::without_query),
        is_url_plain: url.is_some_and(Url::is_plain_over_network),
        open_secrets: open.iter().cloned().collect(),
        ..ManifestFacts::default()
    };
    let Some(path) = &cfg.dirs.manifests else {
        return at_url;
    };
    let mut out = ManifestFacts {
        path: Some(path.display().to_string()),
        open_secrets: find_readable_secrets(path)
            .into_iter()
            .chain(open)
            .collect(),
        ..at_url
    };
    read_manifests(path, &cfg.node_name, &mut out);
    out
}

/// Looks at one file, or a directory of them, as the agent of node `node` would.
pub(super) fn gather_manifest_file(path: &Path, node: &str) -> ManifestFacts {
    let mut out = ManifestFacts {
        path: Some(path.display().to_string()),
        ..ManifestFacts::default()
    };
    if path.exists() {
        read_manifests(path, node, &mut out);
    } else {
        let why = "does not exist".to_owned();
        out.bad.push((path.display().to_string(), why));
    }
    out
}

fn read_manifests(path: &Path, node: &str, out: &mut ManifestFacts) {
    let told = |problem: &SourceProblem| {
        let one_line = problem.message.replace('\n', "; ");
        (problem.path.display().to_string(), one_line)
    };
    match ManifestDir::new(path.into(), node.into(), RULES).read_source(Trigger::Poll) {
        SourceReading::Unchanged => {}
        SourceReading::Failed(problem) => out.bad.push(told(&problem)),
        SourceReading::Snapshot(snapshot) => {
            for problem in &snapshot.problems {
                let list = match problem.fatal {
                    true => &mut out.bad,
                    false => &mut out.odd,
                };
                list.push(told(problem));
            }
            for delivered in &snapshot.pods {
                let SnapshotEntry::Read(received) = delivered else {
                    continue;
                };
                out.pods += 1;
                let pod = &received.pod;
                let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
                let ports = pod.spec.all_containers().flat_map(|c| &c.ports);
                let wanted = ports.filter(|p| p.protocol.is_empty() || p.protocol == "TCP");
                out.host_ports.extend(
                    wanted
                        .map(|p| p.host_port)
                        .filter(|port| *port != 0)
                        .map(|port| (port, name.clone())),
                );
            }
        }
    }
    out.host_ports.stable_sort();
}

/// Reads the configuration of registries as the agent does. `socket`: of the agent, if there is one.
pub(super) fn gather_registries(
    cfg: &AgentConfig,
    socket: Option<&Path>,
) -> check::RegistryConfigFacts {
    let path = &cfg.images.registries;
    if !path.exists() {
        return check::RegistryConfigFacts::default();
    }
    let written = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    // The agent makes its socket when it starts.
    let started = socket.and_then(written);
    let mut found = check::RegistryConfigFacts {
        path: Some(path.display().to_string()),
        is_newer: started.is_some_and(|started| written(path).is_some_and(|at| at > started)),
        ..check::RegistryConfigFacts::default()
    };
    match images::read_registries(path) {
        Ok((registries, faults)) => {
            let what = registries.without_effect();
            let of_runtime = cfg.runtime.endpoints.as_ref().and(what);
            let of_runtime = of_runtime.map(|what| format!("{}: {what}", path.display()));
            found.faults = faults.into_iter().chain(of_runtime).collect();
        }
        Err(e) => found.unusable = Some(error_chain(&e)),
    }
    found
}

/// Names `registries.yaml` if it holds credentials and users other than root can read it.
fn find_readable_credentials(cfg: &AgentConfig) -> Option<String> {
    let path = &cfg.images.registries;
    let dir = path.parent()?;
    if !is_open_to_others(dir, 0o011) || !is_open_to_others(path, 0o044) {
        return None;
    }
    let (registries, _) = images::read_registries(path).ok()?;
    let holds = registries.has_credentials();
    holds.then(|| path.display().to_string())
}

/// Returns true if users other than root, the file's group or all, have one of these bits.
fn is_open_to_others(path: &Path, bits: u32) -> bool {
    fs::metadata(path).is_ok_and(|m| m.permissions().mode() & bits != 0)
}

/// Lists the files with a Secret that users other than root can read: the file's group, or all.
fn find_readable_secrets(path: &Path) -> Vec<String> {
    let files: Vec<PathBuf> = if path.is_dir() {
        if !is_open_to_others(path, 0o011) {
            return Vec::new();
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|e| e.path()).filter(|p| p.is_file()).collect()
    } else {
        vec![path.to_owned()]
    };
    let mut open: Vec<String> = files
        .iter()
        .filter(|file| is_open_to_others(file, 0o044) && holds_secret(&read_text(file)))
        .map(|file| file.display().to_string())
        .collect();
    open.stable_sort();
    open
}

/// Returns true if a manifest is that of a Secret, in YAML or JSON.
fn holds_secret(manifest: &str) -> bool {
    manifest.match_indices("kind").any(|(at, word)| {
        let rest = manifest[at + word.len()..].trim_start_matches(['"', '\'', ' ', '\t', ':']);
        rest.strip_prefix("Secret")
            .is_some_and(|end| !end.starts_with(|c: char| c.is_alphanumeric()))
    })
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::fs::File;

    use super::*;
    use crate::{
        config::{self, HostIdentity},
        testing::TestDir,
    };

    #[test]
    fn registries_are_read_as_the_agent_reads_them() {
        // CONF-23
        let dir = TestDir::new("gather-registries");
        let path = dir.join("r.yaml");
        let socket = dir.join("socket");
        let stand_in = HostIdentity {
            hostname: "board".into(),
        };
        let mut cfg = config::default_config(&stand_in).expect("defaults");
        cfg.images.registries.clone_from(&path);
        assert_eq!(gather_registries(&cfg, None).path, None, "no file");
        fs::write(&path, "mirrors: [").expect("written");
        let found = gather_registries(&cfg, None);
        assert_eq!(found.path, Some(path.display().to_string()));
        assert!(found.unusable.is_some_and(|why| why.contains("r.yaml")));
        fs::write(&path, "mirrors: {a: {}}\nmirrrors: {}\n").expect("written");
        assert_eq!(gather_registries(&cfg, None).faults.len(), 1);
        cfg.runtime.endpoints = Some(config::RuntimeEndpoints {
            runtime: "/r".into(),
            images: "/r".into(),
        });
        let faults = gather_registries(&cfg, None).faults;
        assert!(faults[1].ends_with("set them in the container runtime"));
        let start = |seconds| {
            fs::write(&socket, "").expect("written");
            let at = fs::metadata(&path).and_then(|meta| meta.modified());
            let at = at.expect("a time") + Duration::from_secs(10) - Duration::from_secs(seconds);
            let file = File::options().write(true).open(&socket).expect("socket");
            file.set_modified(at).expect("set");
            gather_registries(&cfg, Some(&socket)).is_newer
        };
        assert!(start(20) && !start(0));
    }

    #[test]
    fn secrets_among_manifests() {
        for (text, secret) in [
            ("apiVersion: v1\nkind: Secret\n", true),
            ("{\"kind\": \"Secret\"}", true),
            ("{'kind':'Secret','x':1}", true),
            ("kind: SecretProviderClass\n", false),
            ("kind: Pod\nspec: {volumes: [{secret: {}}]}\n", false),
            ("", false),
        ] {
            assert_eq!(holds_secret(text), secret, "{text}");
        }
    }
}
