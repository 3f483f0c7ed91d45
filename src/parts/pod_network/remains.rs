//! Removal of all that the network has made on this machine, for a reset (PROX-28). Nothing of another program goes.

use std::{fs, io, path::Path};

use super::{device_name, firewall, kernel};
use crate::{
    error::error_chain,
    logic::pod_network::PodNetworkBackend,
    logic::pod_network::entries::{EntryChange, EntryPlan},
};

/// Lists what is there, one thing a line.
pub(super) fn list_remains() -> Vec<String> {
    let devices = [false, true].map(device_name);
    let devices = devices
        .into_iter()
        .filter(|name| Path::new("/sys/class/net").join(name).exists());
    devices
        .map(|name| {
            format!("device {name}, routes to pods of other nodes and their iptables rules")
        })
        .collect()
}

/// Removes it. Returns what could not be removed.
pub(super) async fn remove_remains(subnet_file: &Path) -> Vec<String> {
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
        if let Err(e) = firewall::remove_rules(is_v6).await {
            left.push(format!("iptables: {}", error_chain(&e)));
        }
    }
    match fs::remove_file(subnet_file) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            left.push(format!("{}: {e}", subnet_file.display()));
        }
        _ => {}
    }
    left
}
