//! Removal of all that the network has made on this machine: for a reset, and once there is to be none (PROX-28). Nothing of
//! another program goes: a device `flannel.1` may be that of a real flannel, and there may be another agent.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{SUBNET_FILE, device_name, firewall, kernel};
use crate::{
    error::error_chain,
    logic::pod_network::PodNetworkBackend,
    logic::pod_network::entries::{EntryChange, EntryPlan},
    sys::{file, lane::Lane},
};

/// File in the root directory that says that this agent made a network. It is written before the network is made.
const MARK: &str = "pod-network";
const MARK_MODE: u32 = 0o600;

/// Places of what the network leaves.
#[derive(Clone, Debug)]
pub(super) struct NetworkRemains {
    /// File that flannel's CNI plugin reads.
    pub(super) subnet_file: PathBuf,
    /// File that says that there is a network of this agent.
    pub(super) mark: PathBuf,
}

impl NetworkRemains {
    /// Those of an agent with this root directory.
    pub(super) fn of_agent(root: &Path) -> Self {
        Self {
            subnet_file: SUBNET_FILE.into(),
            mark: root.join(MARK),
        }
    }

    /// Notes that a network is made from now on.
    pub(super) fn write_mark(&self) -> io::Result<()> {
        match self.has_mark() {
            true => Ok(()),
            false => file::write_atomic(&self.mark, b"", MARK_MODE, true),
        }
    }

    /// Returns true if this agent, or one before it, made a network that is not removed.
    pub(super) fn has_mark(&self) -> bool {
        self.mark.exists()
    }

    /// Returns true if the network of this machine is ours. `is_wanted`: this agent is to make it, so that its rules are
    /// ours, too.
    async fn is_ours(&self, is_wanted: bool) -> bool {
        if self.has_mark() {
            return true;
        }
        for is_v6 in [false, true] {
            // One that cannot be asked about is left.
            if is_wanted && firewall::has_rules(is_v6).await.unwrap_or_default() {
                return true;
            }
        }
        false
    }

    /// Lists what is there, one thing a line. It blocks.
    pub(super) fn list(&self, is_wanted: bool) -> Vec<String> {
        if !smol::block_on(self.is_ours(is_wanted)) {
            return Vec::new();
        }
        let devices = [false, true].map(device_name);
        let has_device = |name: &&str| kernel::read_device(name).is_ok_and(|it| it.is_some());
        let devices = devices.into_iter().filter(has_device);
        let mut lines: Vec<String> = devices.map(|name| format!("device {name}")).collect();
        lines.push("routes to pods of other nodes, and iptables rules for them".into());
        lines
    }

    /// Removes it, if it is ours; the kernel's part on a lane if one is given. Returns what could not be removed.
    pub(super) async fn remove(&self, is_wanted: bool, lane: Option<&Lane>) -> Vec<String> {
        if !self.is_ours(is_wanted).await {
            return Vec::new();
        }
        let mut left = match lane {
            Some(lane) => lane.run_job(remove_from_kernel).await,
            None => remove_from_kernel(),
        };
        for is_v6 in [false, true] {
            if let Err(e) = firewall::remove_rules(is_v6).await {
                left.push(format!("iptables: {}", error_chain(&e)));
            }
        }
        remove_file(&self.subnet_file, &mut left);
        // The last thing: until then the next one goes on.
        if left.is_empty() {
            remove_file(&self.mark, &mut left);
        }
        left
    }
}

fn remove_file(path: &Path, left: &mut Vec<String>) {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            left.push(format!("{}: {e}", path.display()));
        }
        _ => {}
    }
}

/// Removes devices and routes. Returns what could not be removed.
fn remove_from_kernel() -> Vec<String> {
    let mut left = Vec::new();
    for is_v6 in [false, true] {
        let name = device_name(is_v6);
        if let Err(e) = kernel::delete_device(name) {
            left.push(format!("{name}: {}", error_chain(&e)));
        }
        match kernel::read_entries(0, is_v6) {
            Ok(found) => {
                let routes = found.routes.into_iter().map(EntryChange::DeleteRoute);
                let plan = EntryPlan {
                    sets: Vec::new(),
                    deletions: routes.collect(),
                };
                let applied = kernel::apply_plan(&plan, 0, PodNetworkBackend::HostGateway);
                left.extend(applied.undeleted);
            }
            Err(e) => left.push(format!("routes to other nodes: {}", error_chain(&e))),
        }
    }
    left
}
