//! The node's sign of life, renewed on the lane of the heartbeat and on nothing else (LEASE).

use alloc::rc::Rc;
use core::time::Duration;

use serde_json::Value;
use smol::future::FutureExt as _;

use super::{
    link::{HeartbeatLane, spread},
    membership::Membership,
};
use crate::{
    agent::{clock::in_step, link_policy::LinkPolicy},
    api::{Lease, MonoTime, strict::typed},
    kube::{KubeApi, KubeError, api::ApiResult},
    logic::lease::{LeaseAnswer, LeaseKeeper, LeaseRequest},
};

/// Keeps the lease.
pub(super) struct LeaseTask {
    pub(super) node: String,
    pub(super) duration_s: u32,
    pub(super) link_policy: Rc<dyn LinkPolicy>,
    pub(super) heartbeat: HeartbeatLane,
    pub(super) member: Rc<Membership>,
}

impl LeaseTask {
    /// For as long as the agent runs.
    ///
    /// The first request waits for the Node, whose uid a new lease needs, but no longer than one renewal.
    pub(super) async fn run(self) {
        let clock = &self.heartbeat.clock;
        let mut keeper = LeaseKeeper::new(self.node.clone(), self.duration_s);
        let duration = Duration::from_secs(self.duration_s.into());
        let begin = clock.until(clock.now() + duration / 4);
        begin.or(self.member.wait_read()).await;
        let mut renewed: Option<MonoTime> = None;
        loop {
            clock.until(wake(keeper.due(), clock.now())).await;
            while let Some(request) = keeper.poll(clock.now(), clock.wall()) {
                let keeps = matches!(request, LeaseRequest::Create(_) | LeaseRequest::Renew(_));
                let answer = self.ask(request).await;
                let now = clock.now();
                if keeps && matches!(answer, LeaseAnswer::Lease(_)) {
                    // It was out for so long that the control plane may have written us off.
                    if renewed.is_some_and(|last| now - last >= duration) {
                        self.heartbeat.link.came_back(now);
                        self.member.doubt();
                    }
                    renewed = Some(now);
                }
                keeper.set_metered(self.link_policy.is_metered());
                if keeper.on_answer(answer, now, spread(&**clock, &self.node)) {
                    self.heartbeat.close_connections().await;
                }
            }
        }
    }

    async fn ask(&self, request: LeaseRequest) -> LeaseAnswer {
        let name = self.node.clone();
        let is_node = request == LeaseRequest::ReadNode;
        let is_renewal = matches!(request, LeaseRequest::Renew(_));
        let reply = self
            .heartbeat
            .ask(move |api| send(api, &name, &request))
            .await;
        match reply {
            Ok(node) if is_node => match node["metadata"]["uid"].as_str() {
                Some(uid) if !uid.is_empty() => LeaseAnswer::Node(uid.into()),
                _ => LeaseAnswer::Failed,
            },
            Ok(lease) => self.read(&lease, is_renewal),
            Err(e) if e.is_not_found() => LeaseAnswer::NotFound,
            Err(e) if e.is_conflict() => LeaseAnswer::Conflict,
            Err(e) => {
                if let KubeError::Api(e) = e {
                    self.heartbeat.complaints.complain(&format!("lease: {e}"));
                }
                LeaseAnswer::Failed
            }
        }
    }

    fn read(&self, lease: &Value, is_renewal: bool) -> LeaseAnswer {
        let Ok(mut lease) = typed::<Lease>(lease) else {
            return LeaseAnswer::Failed;
        };
        if is_renewal {
            // Only its metadata come back; the rest is as it was just sent or did not have to be.
            lease.spec.holder_identity.clone_from(&self.node);
            lease.spec.lease_duration_seconds = self.duration_s.into();
        }
        LeaseAnswer::Lease(Box::new(lease))
    }
}

/// With the other ticks of the agent, if it is a whole while until then.
fn wake(due: MonoTime, now: MonoTime) -> MonoTime {
    if due - now < Duration::from_secs(2) {
        due
    } else {
        in_step(due, now)
    }
}

fn send(api: &dyn KubeApi, name: &str, request: &LeaseRequest) -> ApiResult<Value> {
    match request {
        LeaseRequest::ReadNode => api.node(name),
        LeaseRequest::ReadLease => api.lease(name),
        LeaseRequest::Create(body) => api.create_lease(body.to_string().as_bytes()),
        LeaseRequest::Renew(body) => api.patch_lease(name, body.to_string().as_bytes()),
    }
}
