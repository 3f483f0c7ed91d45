//! Containers with device nodes that come and go (DEV-44): this agent opens the devices that they may use, exactly
//! those that they have.

use std::{io, path::Path};

use crate::{
    api::{
        cri::{ContainerConfig, LiveDevices},
        device::LiveRules,
    },
    device,
};

/// Returns true if the container's devices are limited by rules: a privileged container may use all of them.
pub(super) fn is_limited(config: &ContainerConfig) -> bool {
    !config.live_devices.is_empty() && !config.security.privileged
}

/// Gives the nodes that are there to the user of the container, and keeps its rules.
pub(super) fn give(
    all: &[LiveDevices],
    user: (u32, u32),
    rules: Option<&LiveRules>,
) -> io::Result<()> {
    for live in all {
        device::give_nodes(Path::new(&live.host_path), user, live.gid)?;
    }
    match (all.first(), rules) {
        (Some(live), Some(rules)) => device::keep_rules(Path::new(&live.host_path), rules),
        _ => Ok(()),
    }
}
