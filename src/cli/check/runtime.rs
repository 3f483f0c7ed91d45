//! Looks at what runs containers.

use alloc::rc::Rc;

use smol::LocalExecutor;

use super::gather::{ASK_TIMEOUT, no_cgroups};
use crate::{
    api::cri::Condition,
    cgroup::Cgroups,
    config::{Config, Endpoints},
    logic::check,
    runtime::{
        RuntimeError, RuntimeService as _,
        cri::{self, Cri},
        runc::program::Program,
    },
    sys::lane::Lane,
};

/// Who runs containers.
pub(super) fn look(cfg: &Config) -> check::Runtime {
    if let Some(endpoints) = &cfg.runtime.endpoints {
        return cri(cfg, endpoints);
    }
    let name = cfg.runtime.program.display().to_string();
    match smol::block_on(Program::probe(&name)) {
        Ok(found) => check::Runtime {
            program: format!(
                "{} {} at {}",
                found.name,
                found.version,
                found.path.display()
            ),
            holes: found.warnings,
            ..check::Runtime::default()
        },
        Err(e) => check::Runtime {
            error: Some(e.to_string()),
            ..check::Runtime::default()
        },
    }
}

/// A runtime that serves CRI: who it is, and whether it has a network for pods.
fn cri(cfg: &Config, endpoints: &Endpoints) -> check::Runtime {
    let socket = endpoints.runtime.display().to_string();
    let settings = cri::Settings {
        endpoint: endpoints.runtime.clone(),
        image_endpoint: endpoints.images.clone(),
        request_timeout: cfg.times.runtime_request.min(ASK_TIMEOUT),
        ..cri::Settings::default()
    };
    let executor = Rc::new(LocalExecutor::new());
    let asked = async {
        let cgroups = Cgroups::detect().unwrap_or_else(|_| no_cgroups());
        let disk = Lane::start("disk").map_err(|e| RuntimeError::Failed(e.to_string()))?;
        let runtime = Cri::open(settings, &executor, disk, cgroups).await?;
        let status = runtime.status().await?;
        Ok((runtime.version(), status))
    };
    let asked: Result<_, RuntimeError> = smol::block_on(executor.run(asked));
    let told = |c: &Condition| (!c.ok).then(|| format!("{} {}", c.reason, c.message));
    let mut found = check::Runtime::default();
    match asked {
        Ok((version, status)) => {
            found.program = format!("{} {} at {socket}", version.name, version.version);
            found.error = told(&status.runtime_ready);
            found.network_error = told(&status.network_ready);
        }
        Err(e) => found.error = Some(e.to_string()),
    }
    found.socket = Some(socket);
    found
}
