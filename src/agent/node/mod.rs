//! The machine as a node: facts read at start, and the Node object: one, whether it is registered or only shown by
//! `get node`. What it says is decided in [`crate::logic::node`].
//!
//! - [`machine`]: what `/proc`, `/sys` and `/etc` say. [`network`]: its addresses.
//! - [`gather`] reads what may have changed; [`bring_up_to_date`] puts it into a Node.

mod machine;
mod network;

use serde_json::Value;

use super::{
    cluster,
    ctx::{Ctx, NodeFacts},
};
use crate::{
    api::{
        Mono, Node, Quantity,
        cri::{FsInfo, Image},
        node::{RuntimeHandler, RuntimeHandlerFeatures},
    },
    config::{Config, Reserved, Threshold},
    image::import::{RESERVE_BYTES, RESERVE_INODES},
    logic::{
        node::{self, Applied, Local, NodeEvent, Pressure, Resources, RuntimeView, Settings, View},
        node_resources::{self, Capacity, Reservations},
    },
};

/// Version reported as the kubelet's: it must parse as a Kubernetes version. The part behind the plus is ours.
pub(super) const KUBELET_VERSION: &str = concat!("v1.36.0+picolet-", env!("CARGO_PKG_VERSION"));

/// Its name says it: exec, attach and port forwarding may come as WebSocket in their newest forms (STREAM-11).
const WEB_SOCKETS: &str = "ExtendWebSocketsToKubelet";

/// Reads the machine's facts. Missing ones are zero or empty.
///
/// - Errors: more is kept from pods than there is.
pub(super) fn facts(cfg: &Config) -> Result<NodeFacts, String> {
    let local = network::local(&cfg.node_name);
    // Later rounds try again, and say why it is none.
    let host_ips = node::host_ips(&cfg.node_ips, &cfg.node_name, &local).unwrap_or_else(|e| {
        log::warn!("{e}");
        given(cfg)
    });
    let mut facts = NodeFacts {
        name: cfg.node_name.clone(),
        host_ips,
        memory_bytes: machine::memory_bytes(),
        cpu_milli: machine::cpus().saturating_mul(1000),
        storage_bytes: machine::storage_bytes(&cfg.dirs.root),
        hugepages: machine::hugepages(),
        swap_bytes: machine::swap_bytes(),
        pids: machine::max_pids(),
        kept: Reservations::default(),
        identity: machine::identity(),
        settings: Settings::default(),
    };
    facts.kept = reservations(&cfg.reserved, facts.capacity());
    facts.settings = settings(cfg, &facts);
    node_resources::check(facts.capacity(), facts.kept)?;
    Ok(facts)
}

/// Addresses asked for that cannot be checked: what pods are told, for want of better.
fn given(cfg: &Config) -> Vec<core::net::IpAddr> {
    let given = cfg.node_ips.iter().copied();
    given.filter(|ip| !ip.is_unspecified()).collect()
}

/// What the operator says of the node.
pub(super) fn settings(cfg: &Config, facts: &NodeFacts) -> Settings {
    Settings {
        name: cfg.node_name.clone(),
        node_ips: cfg.node_ips.clone(),
        labels: cfg.node.labels.clone(),
        taints: cfg.node.taints.clone(),
        provider_id: cfg.node.provider_id.clone(),
        external_cloud: cfg.node.external_cloud,
        controller_attach_detach: cfg.node.controller_attach_detach,
        max_images: cfg.node.max_images,
        max_pods: max_pods(cfg, facts),
        local_storage: cfg.reserved.local_storage,
        // An apiserver that is told a port where nobody listens would call it in vain.
        port: cfg.server.listen.map(|listen| listen.port()),
        declared_features: cfg
            .server
            .listen
            .map(|_| WEB_SOCKETS.into())
            .into_iter()
            .collect(),
        kubelet_version: KUBELET_VERSION.into(),
    }
}

/// `systemReserved`, `kubeReserved` and the hard eviction thresholds, as amounts.
fn reservations(reserved: &Reserved, capacity: Capacity) -> Reservations {
    let sum = |name: &str, amount: fn(&Quantity) -> i64| {
        [&reserved.system, &reserved.kube]
            .into_iter()
            .filter_map(|map| map.get(name))
            .fold(0_i64, |sum, quantity| sum.saturating_add(amount(quantity)))
    };
    let threshold = |signal: &str, has: i64| match reserved.eviction_hard.get(signal) {
        Some(Threshold::Amount(quantity)) => quantity.value(),
        Some(Threshold::Permille(permille)) => {
            i64::try_from(i128::from(has) * i128::from(*permille) / 1000).unwrap_or(0)
        }
        None => 0,
    };
    Reservations {
        cpu_milli: sum("cpu", Quantity::milli),
        memory_bytes: sum("memory", Quantity::value),
        storage_bytes: sum("ephemeral-storage", Quantity::value),
        pids: sum("pid", Quantity::value),
        eviction_memory_bytes: threshold("memory.available", capacity.memory_bytes),
        eviction_storage_bytes: threshold("nodefs.available", capacity.storage_bytes),
    }
}

/// Most pods that run here.
pub(super) fn max_pods(cfg: &Config, node: &NodeFacts) -> i64 {
    let most = i64::from(cfg.max_pods);
    match i64::from(cfg.pods_per_core) {
        0 => most,
        per_core => most.min(per_core.saturating_mul(node.capacity().cpu_milli / 1000)),
    }
}

/// Why no image can be pulled or imported any more, if the disk is the reason. Images that are there can be used.
fn too_full(fs: &FsInfo) -> Option<String> {
    if fs.read_only {
        return Some("the disk of the images is read-only".into());
    }
    if fs.capacity_bytes > 0 && fs.available_bytes <= RESERVE_BYTES {
        return Some(format!(
            "the disk of the images has {} MiB left, {} MiB are kept free: nothing can be pulled or imported",
            fs.available_bytes >> 20,
            RESERVE_BYTES >> 20
        ));
    }
    // File systems without an inode table say 0 of 0.
    (fs.inodes > 0 && fs.inodes_free <= RESERVE_INODES).then(|| {
        format!(
            "the disk of the images has {} inodes left, {RESERVE_INODES} are kept free: nothing can be pulled or imported",
            fs.inodes_free
        )
    })
}

/// What a Node says that may change while the agent runs, as it was when it was read.
pub(super) struct Gathered {
    resources: Resources,
    local: Local,
    runtime: RuntimeView,
    images: Option<Vec<Image>>,
    pressure: Pressure,
    not_ready: Vec<String>,
}

impl Gathered {
    fn view<'a>(&'a self, ctx: &'a Ctx) -> View<'a> {
        View {
            settings: &ctx.node.settings,
            identity: &ctx.node.identity,
            resources: &self.resources,
            local: &self.local,
            runtime: &self.runtime,
            images: self.images.as_deref(),
            pressure: &self.pressure,
            not_ready: &self.not_ready,
            volumes_in_use: None,
        }
    }
}

/// Reads what a Node says. A few small files, and the list of images.
pub(super) async fn gather(ctx: &Ctx) -> Gathered {
    let disk = ctx.runtime.image_fs_info().await.ok();
    let trouble = if ctx.pods.records_wait() {
        Some("the root directory cannot be written, records of pods wait in memory".to_owned())
    } else {
        disk.as_ref().and_then(too_full)
    };
    let now = ctx.clock.now();
    let supplemental_groups_policy = ctx.admission_facts.borrow().strict_supplemental_groups;
    Gathered {
        resources: ctx.node.resources(),
        local: network::local(&ctx.node.name),
        runtime: RuntimeView {
            version: ctx.runtime.version(),
            // Neither is done yet; mounts are read-only without what is mounted below them.
            handlers: vec![RuntimeHandler {
                name: String::new(),
                features: Some(RuntimeHandlerFeatures {
                    recursive_read_only_mounts: Some(false),
                    user_namespaces: Some(false),
                }),
            }],
            supplemental_groups_policy,
        },
        images: ctx.runtime.list_images().await.ok(),
        pressure: Pressure {
            disk: trouble.is_some(),
            disk_detail: trouble.unwrap_or_default(),
            ..Pressure::default()
        },
        not_ready: not_ready(ctx, now),
    }
}

/// Why the node is not ready; empty if it is. Cheap.
pub(super) fn not_ready(ctx: &Ctx, now: Mono) -> Vec<String> {
    ctx.view.ready_errors(now)
}

/// The Node to create, and what there is to tell of its first conditions.
pub(super) fn initial(ctx: &Ctx, gathered: &Gathered) -> (Node, Vec<NodeEvent>) {
    node::initial(&gathered.view(ctx), ctx.clock.wall())
}

/// Puts what was gathered into a Node, as last seen in the API or as last shown.
pub(super) fn bring_up_to_date(ctx: &Ctx, node: &mut Node, gathered: &Gathered) -> Applied {
    node::apply(node, &gathered.view(ctx), ctx.clock.wall())
}

/// The Node object of this machine, for people: as it is, or would be, registered.
pub(super) async fn object(ctx: &Ctx) -> Value {
    let gathered = gather(ctx).await;
    let known = ctx.own_node.borrow().clone();
    let mut node = match known {
        Some(mut node) => {
            let applied = bring_up_to_date(ctx, &mut node, &gathered);
            if let Some(error) = applied.no_address {
                ctx.complain(&error.to_string());
            }
            node
        }
        None => {
            let (mut node, _) = initial(ctx, &gathered);
            node.metadata.creation_timestamp = Some(ctx.started_at.truncated());
            node
        }
    };
    if ctx.cluster.is_none() {
        // Kept without its largest part, which is made anew each time. What a cluster has is the apiserver's to say.
        let images = core::mem::take(&mut node.status.images);
        *ctx.own_node.borrow_mut() = Some(node.clone());
        node.status.images = images;
    }
    node.status.conditions.extend(cluster::condition(ctx));
    let mut object = serde_json::to_value(node).unwrap_or_default();
    object["apiVersion"] = "v1".into();
    object["kind"] = "Node".into();
    object
}

#[cfg(test)]
mod tests;
