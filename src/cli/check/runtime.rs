//! Looks at the runtime of containers.

use alloc::rc::Rc;
use std::path::Path;

use smol::LocalExecutor;

use super::gather::{ASK_TIMEOUT, stand_in_cgroups};
use crate::{
    api::cri::{
        CgroupDriver, DEFAULT_HANDLER, HandlerCapabilities, RuntimeCondition, UserNamespaceSupport,
    },
    cgroup::{Cgroups, SYSTEMD_SOCKET},
    config::{AgentConfig, RuntimeEndpoints},
    logic::{cgroup::CgroupTree, check},
    parts,
    runtime::{
        RuntimeError,
        endpoint::EndpointSettings,
        runc::program::{OciRuntime, judge_mapped_owners},
    },
    sys::lane::Lane,
};

/// Looks at the program that runs containers.
pub(super) fn gather_runtime(cfg: &AgentConfig) -> check::RuntimeFacts {
    let mut found = find_runtime(cfg);
    let root = cfg.cgroup.tree.root.clone();
    let driver = CgroupDriver::Systemd;
    let slice = CgroupTree { root, driver }.kubepods_path();
    let drivers = &mut found.drivers;
    drivers.wanted = cfg.cgroup.tree.driver;
    drivers.systemd = Path::new(SYSTEMD_SOCKET).exists();
    drivers.slice = Cgroups::detect().is_ok_and(|cgroups| cgroups.has_group(&slice));
    found
}

fn find_runtime(cfg: &AgentConfig) -> check::RuntimeFacts {
    if let Some(endpoints) = &cfg.runtime.endpoints {
        return ask_endpoint(cfg, endpoints);
    }
    let name = cfg.runtime.program.display().to_string();
    let mut found = check::RuntimeFacts::default();
    match smol::block_on(OciRuntime::probe(&name)) {
        Ok(program) => {
            found.program = program_text(&program);
            found.user_namespaces = match program.missing_for_users() {
                Some(why) => UserNamespaceSupport::Lacks(why),
                None => judge_mapped_owners(find_existing(&cfg.dirs.root)),
            };
            found.holes = program.warnings;
        }
        Err(e) => found.error = Some(e.to_string()),
    }
    for (name, path) in &cfg.runtime.handlers {
        let mut handler = check::HandlerRuntimeFacts {
            name: name.clone(),
            ..check::HandlerRuntimeFacts::default()
        };
        match smol::block_on(OciRuntime::probe(path)) {
            Ok(program) => {
                handler.program = program_text(&program);
                let holes = program.warnings.into_iter();
                found
                    .holes
                    .extend(holes.map(|hole| format!("{hole} as handler {name}")));
            }
            Err(e) => handler.error = Some(e.to_string()),
        }
        found.handlers.push(handler);
    }
    found
}

/// The directory, or the nearest one above it that is there: before the first run the agent has made none.
fn find_existing(dir: &Path) -> &Path {
    dir.ancestors().find(|p| p.exists()).unwrap_or(dir)
}

fn program_text(program: &OciRuntime) -> String {
    let OciRuntime {
        name,
        version,
        path,
        ..
    } = program;
    format!("{name} {version} at {}", path.display())
}

/// Asks a runtime of another process for its name and its network for pods.
fn ask_endpoint(cfg: &AgentConfig, endpoints: &RuntimeEndpoints) -> check::RuntimeFacts {
    let socket = endpoints.runtime.display().to_string();
    let settings = EndpointSettings {
        endpoint: endpoints.runtime.clone(),
        image_endpoint: endpoints.images.clone(),
        request_timeout: cfg.times.runtime_request.min(ASK_TIMEOUT),
        ..EndpointSettings::default()
    };
    let executor = Rc::new(LocalExecutor::new());
    let asked = async {
        let cgroups = Cgroups::detect().unwrap_or_else(|_| stand_in_cgroups());
        let disk = Lane::start("disk").map_err(|e| RuntimeError::Failed(e.to_string()))?;
        let runtime = parts::find_endpoint_client()?(settings, &executor, disk, cgroups).await?;
        let status = runtime.runtime_status().await?;
        let handlers = runtime.capabilities().handlers;
        let told = runtime.reported_cgroup_driver();
        let drivers = check::CgroupDriverFacts {
            told,
            shown: match told {
                Some(_) => None,
                None => runtime.configured_cgroup_driver().await?,
            },
            ..check::CgroupDriverFacts::default()
        };
        Ok((runtime.version(), handlers, status, drivers))
    };
    let asked: Result<_, RuntimeError> = smol::block_on(executor.run(asked));
    let told = |c: &RuntimeCondition| (!c.ok).then(|| format!("{} {}", c.reason, c.message));
    let mut found = check::RuntimeFacts::default();
    match asked {
        Ok((version, handlers, status, drivers)) => {
            found.drivers = drivers;
            let default = handlers.iter().find(|h| h.name == DEFAULT_HANDLER);
            found.user_namespaces = default
                .map(|h| h.user_namespaces.clone())
                .unwrap_or_default();
            let named = handlers
                .into_iter()
                .filter(|handler| handler.name != DEFAULT_HANDLER);
            let handler = |handler: HandlerCapabilities| check::HandlerRuntimeFacts {
                name: handler.name,
                ..check::HandlerRuntimeFacts::default()
            };
            found.handlers = named.map(handler).collect();
            found.program = format!("{} {} at {socket}", version.name, version.version);
            found.error = told(&status.runtime_ready);
            found.network_error = told(&status.network_ready);
        }
        Err(e) => found.error = Some(e.to_string()),
    }
    found.socket = Some(socket);
    found
}
