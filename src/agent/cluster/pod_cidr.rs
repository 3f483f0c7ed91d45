//! Addresses for pods that the control plane gave to this node: handed to the runtime, kept for the next start (NODE-16).
//!
//! They count where the network is the built-in one and nobody has chosen its subnet: pods that start later get theirs
//! from there, those that run keep what they have. Before a node first hears of them it uses the usual subnet, so that
//! static pods need no apiserver.

use alloc::rc::Rc;
use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use super::membership::Membership;
use crate::{
    agent::complaints::Complaints,
    api::node::NodeSpec,
    config::AgentConfig,
    logic::node::{Cidr, PodCidrs},
    runtime::RuntimeService,
    sys::{file, lane::Lane},
};

/// In the root directory: what was last accepted, joined by commas.
const FILE: &str = "pod-cidrs";
/// Two networks have less, bytes.
const MAX_FILE_BYTES: u64 = 256;
const FILE_MODE: u32 = 0o644;

/// Pod CIDRs accepted before this start; none on a node that stands alone, or whose operator chose them.
pub(crate) fn restore_pod_cidrs(cfg: &AgentConfig) -> PodCidrs {
    if !follows_control_plane(cfg) {
        return PodCidrs::default();
    }
    let mut text = String::new();
    let _ = File::open(cfg.dirs.root.join(FILE))
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    let text = text.trim();
    // A file that a disk has spoilt is no file: the apiserver will say it again.
    if text.split(',').all(|c| c.parse::<Cidr>().is_ok()) {
        PodCidrs::from_accepted(text.into())
    } else {
        PodCidrs::default()
    }
}

/// The subnets of the built-in network at start.
pub(in crate::agent) fn network_subnets(cfg: &AgentConfig) -> Vec<String> {
    let known = restore_pod_cidrs(cfg);
    if known.accepted_networks().is_empty() {
        return vec![cfg.network.builtin_subnet.to_string()];
    }
    known
        .accepted_networks()
        .split(',')
        .map(str::to_owned)
        .collect()
}

/// Returns true if this node takes its pod CIDRs from the control plane.
pub(super) fn follows_control_plane(cfg: &AgentConfig) -> bool {
    cfg.cluster.is_member() && !cfg.network.subnet_is_given
}

/// Hands on what the Node says.
pub(super) struct PodCidrFollower {
    pub(super) is_followed: bool,
    pub(super) root: PathBuf,
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) disk: Lane,
    pub(super) complaints: Rc<Complaints>,
}

impl PodCidrFollower {
    /// Hands on what is new in `spec`. What fails is tried again with the next answer.
    pub(super) async fn follow_node_spec(&self, member: &Membership, spec: &NodeSpec) {
        if !self.is_followed {
            return;
        }
        let complain = |text: String| self.complaints.complain(&text);
        let cidrs: Vec<String> = match member.new_pod_cidrs(spec) {
            Ok(None) => return,
            Ok(Some(cidrs)) => cidrs.iter().map(ToString::to_string).collect(),
            Err(e) => return complain(e.to_string()),
        };
        if let Err(e) = self.runtime.update_pod_cidrs(&cidrs).await {
            return complain(format!("cannot use the pod CIDRs {}: {e}", cidrs.join(",")));
        }
        log::info!("pods get their addresses from {}", cidrs.join(","));
        let (root, text) = (self.root.clone(), member.accept_cidrs(spec));
        if let Err(e) = self
            .disk
            .run_job(move || save_pod_cidrs(&root, &text))
            .await
        {
            // Only the next start is worse off.
            complain(format!("cannot keep the pod CIDRs: {e}"));
        }
    }
}

fn save_pod_cidrs(root: &Path, cidrs: &str) -> std::io::Result<()> {
    let text = format!("{cidrs}\n");
    file::write_atomic(&root.join(FILE), text.as_bytes(), FILE_MODE, true)
}
