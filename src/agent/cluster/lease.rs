//! The node's sign of life, renewed on the lane of the heartbeat and on nothing else (LEASE).

use serde_json::Value;
use smol::future::FutureExt as _;

use super::link::spread;
use crate::{
    agent::{
        ctx::{Ctx, Shared},
        pollers::in_step,
    },
    api::{Lease, Mono, strict::typed},
    kube::{Api, KubeError, api::Reply},
    logic::lease::{Answer, LeaseKeeper, Request},
};

/// Keeps the lease for as long as the agent runs.
///
/// The first request waits for the Node, whose uid a new lease needs, but no longer than one renewal.
pub(super) async fn run(ctx: Shared) {
    let Some(cluster) = &ctx.cluster else { return };
    let mut keeper = LeaseKeeper::new(ctx.node.name.clone(), ctx.cfg.node.lease_duration_s);
    let duration = core::time::Duration::from_secs(ctx.cfg.node.lease_duration_s.into());
    let begin = ctx.clock.until(ctx.clock.now() + duration / 4);
    begin.or(cluster.node.wait_read()).await;
    let mut renewed: Option<Mono> = None;
    loop {
        ctx.clock.until(wake(keeper.due(), ctx.clock.now())).await;
        while let Some(request) = keeper.poll(ctx.clock.now(), ctx.clock.wall()) {
            let keeps = matches!(request, Request::Create(_) | Request::Renew(_));
            let answer = ask(&ctx, request).await;
            let now = ctx.clock.now();
            if keeps && matches!(answer, Answer::Lease(_)) {
                // It was out for so long that the control plane may have written us off.
                if renewed.is_some_and(|last| now - last >= duration) {
                    cluster.link.came_back(now);
                    cluster.node.doubt();
                }
                renewed = Some(now);
            }
            if keeper.on_answer(answer, now, spread(&ctx)) {
                close_connections(&ctx).await;
            }
        }
    }
}

/// With the other ticks of the agent, if it is a whole while until then.
fn wake(due: Mono, now: Mono) -> Mono {
    if due - now < core::time::Duration::from_secs(2) {
        due
    } else {
        in_step(due)
    }
}

/// Connections may be dead without telling (CONF-21).
pub(super) async fn close_connections(ctx: &Ctx) {
    if let Some(cluster) = &ctx.cluster {
        let lanes = &cluster.lanes;
        lanes
            .heartbeat(|api| api.close_heartbeat_connections())
            .await;
    }
}

async fn ask(ctx: &Ctx, request: Request) -> Answer {
    let Some(cluster) = &ctx.cluster else {
        return Answer::Failed;
    };
    let name = ctx.node.name.clone();
    let is_node = request == Request::ReadNode;
    let is_renewal = matches!(request, Request::Renew(_));
    let reply = cluster
        .lanes
        .heartbeat(move |api| send(api, &name, &request))
        .await;
    cluster.link.heard(ctx, reply.as_ref().err());
    match reply {
        Ok(node) if is_node => match node["metadata"]["uid"].as_str() {
            Some(uid) if !uid.is_empty() => Answer::Node(uid.into()),
            _ => Answer::Failed,
        },
        Ok(lease) => read(ctx, &lease, is_renewal),
        Err(e) if e.is_not_found() => Answer::NotFound,
        Err(e) if e.is_conflict() => Answer::Conflict,
        Err(e) => {
            if let KubeError::Api(e) = e {
                ctx.complain(&format!("lease: {e}"));
            }
            Answer::Failed
        }
    }
}

fn send(api: &dyn Api, name: &str, request: &Request) -> Reply<Value> {
    match request {
        Request::ReadNode => api.node(name),
        Request::ReadLease => api.lease(name),
        Request::Create(body) => api.create_lease(body.to_string().as_bytes()),
        Request::Renew(body) => api.patch_lease(name, body.to_string().as_bytes()),
    }
}

fn read(ctx: &Ctx, lease: &Value, is_renewal: bool) -> Answer {
    let Ok(mut lease) = typed::<Lease>(lease) else {
        return Answer::Failed;
    };
    if is_renewal {
        // Only its metadata come back; the rest is as it was just sent or did not have to be.
        lease.spec.holder_identity.clone_from(&ctx.node.name);
        lease.spec.lease_duration_seconds = ctx.cfg.node.lease_duration_s.into();
    }
    Answer::Lease(Box::new(lease))
}
