//! Addresses for pods that the control plane gave to this node: handed to the runtime, kept for the next start (NODE-16).
//!
//! They count where the network is the built-in one and nobody has chosen its subnet: pods that start later get theirs
//! from there, those that run keep what they have. Before a node first hears of them it uses the usual subnet, so that
//! static pods need no apiserver.

use core::{cell::RefCell, time::Duration};
use std::{fs::File, io::Read as _, path::Path};

use crate::{
    agent::ctx::{Ctx, Shared},
    api::{Node, node::NodeSpec},
    config::Config,
    logic::node::{Cidr, PodCidrs},
    sys::file,
};

/// In the root directory: what was last accepted, joined by commas.
const FILE: &str = "pod-cidrs";
/// Two networks have less, bytes.
const MAX_FILE_BYTES: u64 = 256;
const FILE_MODE: u32 = 0o644;
/// How often a Node without pod CIDRs is read once more, and how long after the first answer; the pause doubles. After
/// that they come with the next report.
const FIRST_READS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// What was accepted before this start; nothing on a node that stands alone, or whose operator chose.
pub(in crate::agent) fn restored(cfg: &Config) -> PodCidrs {
    if !is_followed(cfg) {
        return PodCidrs::default();
    }
    let mut text = String::new();
    let _ = File::open(cfg.dirs.root.join(FILE))
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    let text = text.trim();
    // A file that a disk has spoilt is no file: the apiserver will say it again.
    if text.split(',').all(|c| c.parse::<Cidr>().is_ok()) {
        PodCidrs::restored(text.into())
    } else {
        PodCidrs::default()
    }
}

/// The subnets of the built-in network at start.
pub(in crate::agent) fn subnets(cfg: &Config) -> Vec<String> {
    let known = restored(cfg);
    if known.accepted().is_empty() {
        return vec![cfg.network.builtin_subnet.to_string()];
    }
    known.accepted().split(',').map(str::to_owned).collect()
}

fn is_followed(cfg: &Config) -> bool {
    cfg.cluster.is_member() && !cfg.network.subnet_is_given
}

/// Reads a Node that has none yet some more times: a control plane that gives them does so within a second of its creation,
/// and pods come as soon.
pub(super) async fn wait_for_first(ctx: Shared) {
    let Some(cluster) = &ctx.cluster else { return };
    if !is_followed(&ctx.cfg) {
        return;
    }
    cluster.node.wait_read().await;
    let mut pause = FIRST_PAUSE;
    for _ in 0..FIRST_READS {
        let known = |node: Option<&Node>| node.is_some_and(|n| !n.spec.pod_cidr.is_empty());
        let has_some = ctx.node.with_object(known);
        if has_some {
            return;
        }
        ctx.clock.until(ctx.clock.now() + pause).await;
        pause *= 2;
        // Whatever is wrong is told by the rounds.
        let _ = super::node::read(&ctx).await;
    }
}

/// Hands on what is new in `spec`. What fails is tried again with the next answer.
pub(super) async fn follow(ctx: &Ctx, known: &RefCell<PodCidrs>, spec: &NodeSpec) {
    if !is_followed(&ctx.cfg) {
        return;
    }
    let news = known.borrow().news(spec);
    let cidrs: Vec<String> = match news {
        Ok(None) => return,
        Ok(Some(cidrs)) => cidrs.iter().map(ToString::to_string).collect(),
        Err(e) => return ctx.complain(&e.to_string()),
    };
    if let Err(e) = ctx.runtime.update_pod_cidrs(&cidrs).await {
        return ctx.complain(&format!(
            "cannot use the pod CIDRs {}: {e}",
            cidrs.join(",")
        ));
    }
    log::info!("pods get their addresses from {}", cidrs.join(","));
    known.borrow_mut().accept(spec);
    let (root, text) = (
        ctx.cfg.dirs.root.clone(),
        known.borrow().accepted().to_owned(),
    );
    if let Err(e) = ctx.disk.run(move || save(&root, &text)).await {
        // Only the next start is worse off.
        ctx.complain(&format!("cannot keep the pod CIDRs: {e}"));
    }
}

fn save(root: &Path, cidrs: &str) -> std::io::Result<()> {
    let text = format!("{cidrs}\n");
    file::write_atomic(&root.join(FILE), text.as_bytes(), FILE_MODE, true)
}
