//! The node's sign of life, renewed on the lane of the heartbeat and on nothing else (LEASE).

use alloc::rc::Rc;
use core::time::Duration;

use serde_json::Value;
use smol::future::FutureExt as _;

use super::{
    link::{HeartbeatLane, fleet_spread},
    membership::Membership,
};
use crate::{
    agent::{clock::align_to_second, link_policy::LinkPolicy},
    api::{Lease, MonoTime, strict::typed_from_value},
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
    pub(super) async fn keep_lease(self) {
        let clock = &self.heartbeat.clock;
        let mut keeper = LeaseKeeper::new(self.node.clone(), self.duration_s);
        let duration = Duration::from_secs(self.duration_s.into());
        let begin = clock.sleep_until(clock.now() + duration / 4);
        begin.or(self.member.wait_for_node_read()).await;
        let mut renewed: Option<MonoTime> = None;
        loop {
            clock
                .sleep_until(align_wake_time(keeper.next_request_time(), clock.now()))
                .await;
            while let Some(request) = keeper.poll_request(clock.now(), clock.wall_time()) {
                let keeps = matches!(request, LeaseRequest::Create(_) | LeaseRequest::Renew(_));
                let answer = self.send_request(request).await;
                let now = clock.now();
                if keeps && matches!(answer, LeaseAnswer::Lease(_)) {
                    // It was out for so long that the control plane may have written us off.
                    if renewed.is_some_and(|last| now - last >= duration) {
                        self.heartbeat.link.note_recovery(now);
                        self.member.request_reread();
                    }
                    renewed = Some(now);
                }
                keeper.set_metered(self.link_policy.is_metered());
                if keeper.on_answer(answer, now, fleet_spread(&**clock, &self.node)) {
                    self.heartbeat.close_connections().await;
                }
            }
        }
    }

    async fn send_request(&self, request: LeaseRequest) -> LeaseAnswer {
        let name = self.node.clone();
        let is_node = request == LeaseRequest::ReadNode;
        let is_renewal = matches!(request, LeaseRequest::Renew(_));
        let reply = self
            .heartbeat
            .ask_apiserver(move |api| send_lease_request(api, &name, &request))
            .await;
        match reply {
            Ok(node) if is_node => match node["metadata"]["uid"].as_str() {
                Some(uid) if !uid.is_empty() => LeaseAnswer::Node(uid.into()),
                _ => LeaseAnswer::Failed,
            },
            Ok(lease) => self.read_lease_answer(&lease, is_renewal),
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

    fn read_lease_answer(&self, lease: &Value, is_renewal: bool) -> LeaseAnswer {
        let Ok(mut lease) = typed_from_value::<Lease>(lease) else {
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
fn align_wake_time(due: MonoTime, now: MonoTime) -> MonoTime {
    if due - now < Duration::from_secs(2) {
        due
    } else {
        align_to_second(due, now)
    }
}

fn send_lease_request(api: &dyn KubeApi, name: &str, request: &LeaseRequest) -> ApiResult<Value> {
    match request {
        LeaseRequest::ReadNode => api.read_node(name),
        LeaseRequest::ReadLease => api.read_lease(name),
        LeaseRequest::Create(body) => api.create_lease(body.to_string().as_bytes()),
        LeaseRequest::Renew(body) => api.patch_lease(name, body.to_string().as_bytes()),
    }
}
