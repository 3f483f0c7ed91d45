//! The Node in the API: made or taken over, kept up to date, read back. What is sent when is decided in
//! [`crate::logic::node`]; what it says is gathered in [`crate::agent::node`].
//!
//! ```text
//! register ──▶ rounds, every nodeStatusUpdateFrequency; until the first Ready a look every 100 ms
//!    │            │ seen (the last answer) ──apply──▶ wanted ──patch──▶ PATCH nodes/NAME/status
//!    └── answer ──┴─────────────── answer ──▶ the Node here, admission, host IPs, pod CIDRs, cordon
//! ```
//!
//! A round compares with the last answer instead of reading anew: that answer is the Node, as long as nobody else writes to
//! it. Whoever has reason to think that somebody did says [`Membership::doubt`]: the next round reads first. So does each
//! round in the first minutes after an outage: the node controller may yet notice it. Every report comes back with the
//! whole Node, so that anything else is seen within `nodeStatusReportFrequency`.

use core::{
    cell::{Cell, RefCell},
    time::Duration,
};

use serde_json::Value;
use smol::future::FutureExt as _;

use super::{lease::close_connections, link::spread};
use crate::{
    agent::{
        ctx::{Ctx, Shared},
        node::{Gathered, Standing as _},
        pods::Bell,
        pollers::in_step,
        recorder::Severity,
    },
    api::{Mono, Node, node::ContainerImage, strict::typed},
    kube::{Api, KubeError, Patch, api::Reply},
    logic::{
        node::{
            self, AfterCreate, CreateAnswer, FAST_INTERVAL, Fast, MAX_TRIES, NodeEvent, Pace,
            PodCidrs, Registering, Unkept,
        },
        object_table::TTL_ANNOTATION,
    },
};

/// This node's membership, as the deciding thread sees it.
#[derive(Debug, Default)]
pub(in crate::agent) struct Membership {
    /// The Node was read since the agent started.
    read: Cell<bool>,
    bell: Bell,
    /// The last answer may no longer be the Node.
    doubted: Cell<bool>,
    /// Images of the last answer: the one part of it that [`crate::agent::node::Node`] does not keep.
    images: RefCell<Vec<ContainerImage>>,
    unschedulable: Cell<bool>,
    /// Events that were recorded and whose cause the API does not know yet: not to be told again.
    told: RefCell<Vec<NodeEvent>>,
    /// What the apiserver drops.
    unkept: Cell<Unkept>,
    /// What the runtime was given.
    cidrs: RefCell<PodCidrs>,
}

impl Membership {
    /// With the pod CIDRs that the runtime was started with.
    pub(super) fn new(cidrs: PodCidrs) -> Self {
        Self {
            cidrs: RefCell::new(cidrs),
            ..Self::default()
        }
    }

    /// Whether the Node has been read from the API.
    pub(super) fn is_read(&self) -> bool {
        self.read.get()
    }

    /// Waits until the Node has been read from the API: before that no pod of the API is taken up (OFF-07).
    pub(in crate::agent) fn wait_read(&self) -> impl Future<Output = ()> {
        self.bell.until(|| self.read.get().then_some(()))
    }

    /// Somebody else may have written to the Node: it is read before the next status, and that is looked at soon.
    pub(in crate::agent) fn doubt(&self) {
        self.doubted.set(true);
        self.bell.ring();
    }
}

/// Registers the node and keeps its status up to date, for as long as the agent runs.
pub(super) async fn run(ctx: Shared) {
    let Some(cluster) = &ctx.cluster else { return };
    record(&ctx, NodeEvent::Starting);
    let member = &cluster.node;
    let started = ctx.clock.now();
    if ctx.cfg.node.register {
        register(&ctx).await;
    }
    let times = &ctx.cfg.node;
    let mut pace = Pace::new(times.status_update, times.status_report);
    // What was registered says it all: the first report is counted from here.
    pace.sent(true, ctx.clock.now(), spread(&ctx));
    let mut is_fast = true;
    loop {
        if cluster.link.is_aftermath(ctx.clock.now()) {
            member.doubted.set(true);
        }
        round(&ctx, member, &mut pace).await;
        let next = in_step(pace.next_round(ctx.clock.now(), spread(&ctx)));
        if is_fast {
            is_fast = look_often(&ctx, started, next).await;
        } else {
            let doubt = member.bell.until(|| member.doubted.get().then_some(()));
            ctx.clock.until(next).or(soon(&ctx, doubt)).await;
        }
    }
}

/// What rings for a read is not rung more often than this.
const DOUBT_GAP: Duration = Duration::from_secs(1);

async fn soon(ctx: &Ctx, bell: impl Future<Output = ()>) {
    ctx.clock.until(ctx.clock.now() + DOUBT_GAP).await;
    bell.await;
}

/// Looks every 100 ms whether the node has become ready, until `next` at most (NODE-24). Returns whether such looks go on.
async fn look_often(ctx: &Ctx, started: Mono, next: Mono) -> bool {
    loop {
        let now = ctx.clock.now();
        let ready = |node: &Node| node::is_ready(&node.status.conditions);
        let seen = ctx.node.with_object(|node| node.and_then(ready));
        let is_ready = ctx.not_ready().is_empty();
        match node::fast_round(now - started, seen, is_ready) {
            Fast::Send => return false,
            Fast::Over => {
                ctx.clock.until(next).await;
                return false;
            }
            Fast::Again if now >= next => return true,
            Fast::Again => ctx.clock.until((now + FAST_INTERVAL).min(next)).await,
        }
    }
}

/// Until the Node is there (NODE-01, NODE-02).
async fn register(ctx: &Ctx) {
    let mut tries = Registering::default();
    let mut is_told = false;
    loop {
        ctx.clock.until(ctx.clock.now() + tries.pause()).await;
        let gathered = ctx.node.gather(&*ctx.runtime, ctx).await;
        let (initial, events) = ctx.node.initial(&gathered, ctx.clock.wall());
        if !is_told {
            is_told = true;
            for event in events {
                record(ctx, event);
            }
        }
        if let Err(e) = try_register(ctx, &initial).await {
            if e.is_answer() {
                ctx.complain(&format!("cannot register node {}: {e}", ctx.node.name));
            }
        } else {
            return;
        }
    }
}

async fn try_register(ctx: &Ctx, initial: &Node) -> Reply<()> {
    let body = as_object(initial);
    let created = heartbeat(ctx, move |api| api.create_node(body.as_bytes())).await;
    let answer = match &created {
        Ok(_) => CreateAnswer::Created,
        Err(e) if e.is_conflict() => CreateAnswer::AlreadyExists,
        Err(e) if e.status() == Some(403) => CreateAnswer::Forbidden,
        Err(_) => CreateAnswer::Failed,
    };
    match (node::after_create(answer), created) {
        (AfterCreate::Reconcile, refused) => {
            let name = ctx.node.name.clone();
            let found = heartbeat(ctx, move |api| api.node(&name)).await;
            // If there is none, it is why none was made that tells what is wrong.
            let found = match (found, refused) {
                (Err(e), Err(refused)) if e.is_not_found() => return Err(refused),
                (found, _) => found?,
            };
            let existing = decode(&found)?;
            let patch = node::reconcile(&existing, initial, false)
                .and_then(|wanted| node::status_patch(&existing, &wanted));
            log::info!(
                "node {} is there already, uid {}",
                ctx.node.name,
                existing.metadata.uid
            );
            match patch {
                Some(patch) => {
                    let answer = send(ctx, &patch.body).await?;
                    take(ctx, decode(&answer)?).await;
                }
                None => take(ctx, existing).await,
            }
            Ok(())
        }
        (AfterCreate::Registered, Ok(answer)) => {
            log::info!("node {} is registered", ctx.node.name);
            take(ctx, decode(&answer)?).await;
            Ok(())
        }
        (AfterCreate::Registered | AfterCreate::Retry, result) => result.map(|_| ()),
    }
}

/// One status round: up to five tries (NODE-23).
async fn round(ctx: &Ctx, member: &Membership, pace: &mut Pace) {
    let gathered = ctx.node.gather(&*ctx.runtime, ctx).await;
    for attempt in 0..MAX_TRIES {
        let Err(e) = try_update(ctx, member, &gathered, pace).await else {
            return;
        };
        member.doubted.set(true);
        match e {
            // Somebody deleted it, and only a new agent makes it anew (NODE-06).
            e if e.is_not_found() => {
                let then = if ctx.cfg.node.register {
                    "restart the agent to register it anew"
                } else {
                    "somebody else has to create it, for registerNode is false"
                };
                ctx.complain(&format!("node {} is not in the API: {then}", ctx.node.name));
                return;
            }
            // Our own files: looked at again in a round's time.
            KubeError::Local(_) | KubeError::Cancelled => return,
            KubeError::Api(e) => ctx.complain(&format!("node status: {e}")),
            KubeError::Unreachable { .. } | KubeError::Tls { .. } | KubeError::Wrong { .. } => {
                if attempt > 0 {
                    close_connections(ctx).await;
                }
            }
        }
    }
}

async fn try_update(
    ctx: &Ctx,
    member: &Membership,
    gathered: &Gathered,
    pace: &mut Pace,
) -> Reply<()> {
    let known = ctx.node.object();
    let known = known.filter(|_| !member.doubted.get());
    let seen = match known {
        Some(mut node) => {
            node.status.images.clone_from(&member.images.borrow());
            node
        }
        None => read(ctx).await?,
    };
    let mut wanted = seen.clone();
    let applied = ctx
        .node
        .bring_up_to_date(&mut wanted, gathered, ctx.clock.wall());
    let mut unkept = member.unkept.get();
    unkept.leave_out(&mut wanted);
    if let Some(error) = applied.no_address {
        ctx.complain(&error.to_string());
    }
    for event in applied.events {
        if !member.told.borrow().contains(&event) {
            member.told.borrow_mut().push(event);
            record(ctx, event);
        }
    }
    // The machine's word, also while nobody hears it.
    ctx.node.set_host_ips(node::of_node(&wanted));
    let Some(patch) = node::status_patch(&seen, &wanted) else {
        return Ok(());
    };
    let now = ctx.clock.now();
    if !pace.must_send(patch.is_change, now) {
        return Ok(());
    }
    let answer = decode(&send(ctx, &patch.body).await?)?;
    pace.sent(patch.is_change, ctx.clock.now(), spread(ctx));
    member.told.borrow_mut().clear();
    unkept.learn(&wanted, &answer);
    member.unkept.set(unkept);
    take(ctx, answer).await;
    Ok(())
}

/// Reads the Node anew, for whoever cannot wait for the next report.
pub(in crate::agent) async fn read(ctx: &Ctx) -> Reply<Node> {
    let name = ctx.node.name.clone();
    let answer = heartbeat(ctx, move |api| api.node(&name)).await?;
    let node = decode(&answer)?;
    take(ctx, node.clone()).await;
    Ok(node)
}

async fn send(ctx: &Ctx, patch: &Value) -> Reply<Value> {
    let (name, body) = (ctx.node.name.clone(), patch.to_string());
    heartbeat(ctx, move |api| {
        api.patch_node_status(&name, Patch::Strategic, body.as_bytes())
    })
    .await
}

/// On the lane of the heartbeat; how it ended is noted.
async fn heartbeat<T: Send + 'static>(
    ctx: &Ctx,
    job: impl FnOnce(&dyn Api) -> Reply<T> + Send + 'static,
) -> Reply<T> {
    let Some(cluster) = &ctx.cluster else {
        return Err(KubeError::Cancelled);
    };
    let reply = cluster.lanes.heartbeat(job).await;
    cluster.link.heard(ctx, reply.as_ref().err());
    reply
}

fn decode(answer: &Value) -> Reply<Node> {
    let wrong = |why: String| KubeError::Wrong {
        url: "nodes".into(),
        why,
    };
    let node: Node = typed(answer).map_err(|e| wrong(e.to_string()))?;
    if node.metadata.uid.is_empty() {
        return Err(wrong("it has no identity".into()));
    }
    Ok(node)
}

fn as_object(node: &Node) -> String {
    node.to_object().to_string()
}

/// The Node as the API has it now, with all that follows from it.
async fn take(ctx: &Ctx, mut node: Node) {
    let Some(cluster) = &ctx.cluster else { return };
    let member = &cluster.node;
    let ttl = node.metadata.annotations.get(TTL_ANNOTATION);
    cluster.objects.set_ttl(ttl.map(String::as_str));
    let before = member.unschedulable.replace(node.spec.unschedulable);
    if let Some(event) = NodeEvent::of_cordon(before, node.spec.unschedulable) {
        record(ctx, event);
    }
    *member.images.borrow_mut() = core::mem::take(&mut node.status.images);
    let spec = node.spec.clone();
    ctx.node.learn(node);
    member.doubted.set(false);
    super::pod_cidr::follow(ctx, &member.cidrs, &spec).await;
    if !member.read.replace(true) {
        member.bell.ring();
        cluster.on_node_read();
    }
}

fn record(ctx: &Ctx, event: NodeEvent) {
    let severity = if event.is_warning() {
        Severity::Warning
    } else {
        Severity::Normal
    };
    let message = event.message(&ctx.node.name, &ctx.node.identity.boot_id);
    ctx.node_event(severity, event.reason(), &message);
}
