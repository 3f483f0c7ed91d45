//! The Node in the API: made or taken over, kept up to date, read back. What is sent when is decided in
//! [`crate::logic::node`]; what it says is gathered by [`OwnNode`].
//!
//! ```text
//! register ──▶ rounds, every nodeStatusUpdateFrequency; until the first Ready a look every 100 ms
//!    │            │ seen (the last answer) ──apply──▶ wanted ──patch──▶ PATCH nodes/NAME/status
//!    └── answer ──┴─────────────── answer ──▶ the node as the agent knows it, pod CIDRs, cordon
//! ```
//!
//! A round compares with the last answer instead of reading anew: that answer is the Node, as long as nobody else writes to
//! it. Whoever has reason to think that somebody did says [`Membership::request_reread`]: the next round reads first.
//! So does each round in the first minutes after an outage: the node controller may yet notice it. Every report comes
//! back with the whole Node, so that anything else is seen within `nodeStatusReportFrequency`.

use alloc::rc::Rc;
use core::time::Duration;

use serde_json::Value;
use smol::future::FutureExt as _;

use super::{
    link::{HeartbeatLane, fleet_spread},
    membership::Membership,
    objects::ObjectStore,
    pod_cidr::PodCidrFollower,
};
use crate::{
    agent::{
        clock::align_to_second,
        cluster_views::OwnNode,
        core::AgentEvent,
        kept_node::NodeLabelsStore,
        node::CurrentNodeFacts,
        offered::{OfferedResources, ResourceNames},
        recorder::{EventRecorder, EventSeverity},
    },
    api::{MonoTime, Node, strict::typed_from_value},
    config::NodeConfig,
    kube::{KubeError, PatchFormat, api::ApiResult},
    logic::{
        admission::KeptNode,
        node::{
            self, AfterCreate, CreateAnswer, FAST_INTERVAL, MAX_TRIES, NodeEvent, RegisterBackoff,
            StartupRound, StatusPace,
        },
    },
};

/// Registers the node and keeps its status up to date.
pub(super) struct NodeKeeper {
    pub(super) name: String,
    /// Tells one boot from another, in events.
    pub(super) boot_id: String,
    pub(super) settings: NodeConfig,
    pub(super) heartbeat: HeartbeatLane,
    pub(super) member: Rc<Membership>,
    pub(super) own: OwnNode,
    pub(super) recorder: Rc<EventRecorder>,
    /// Objects, which are told the Node's labels and how long they may be kept.
    pub(super) objects: Rc<ObjectStore>,
    pub(super) cidrs: PodCidrFollower,
    /// Extended resources that the Node was told of.
    pub(super) offered: OfferedResources,
    /// Labels and taints of the Node, kept on disk.
    pub(super) record: NodeLabelsStore,
}

/// Shortest pause between two reads because of a doubt.
const DOUBT_GAP: Duration = Duration::from_secs(1);

/// Extra reads of a Node without pod CIDRs, and the pause after the first answer; the pause doubles. Later they come
/// with the next report.
const FIRST_READS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(250);

impl NodeKeeper {
    /// For as long as the agent runs.
    pub(super) async fn keep_node(self: Rc<Self>) {
        self.record_node_event(NodeEvent::Starting);
        let started = self.now();
        if self.settings.register {
            self.register_node().await;
        }
        let mut pace = StatusPace::new(self.settings.status_update, self.settings.status_report);
        // What was registered says it all: the first report is counted from here.
        pace.record_sent_status(true, self.now(), self.spread());
        let mut is_fast = true;
        loop {
            if self.heartbeat.link.is_aftermath(self.now()) {
                self.member.request_reread_quietly();
            }
            self.send_status_round(&mut pace).await;
            let now = self.now();
            let next = align_to_second(pace.next_round(now, self.spread()), now);
            if is_fast {
                is_fast = self.look_until_ready(started, next).await;
            } else {
                self.wait_until_doubt(next).await;
            }
        }
    }

    /// Reads a Node that has no pod CIDR yet some more times: a control plane that gives them does so within a second of its
    /// creation, and pods come as soon.
    pub(super) async fn wait_for_first_cidr(self: Rc<Self>) {
        self.member.wait_for_node_read().await;
        let mut pause = FIRST_PAUSE;
        for _ in 0..FIRST_READS {
            if self.member.has_cidr() {
                return;
            }
            self.until(self.now() + pause).await;
            pause *= 2;
            // Whatever is wrong is told by the rounds.
            let _ = self.read_node().await;
        }
    }

    /// Reads the Node whenever the loop asks for that, and tells it that it is known now, or that no answer came (ADM-08).
    pub(super) async fn read_when_asked(self: Rc<Self>) {
        loop {
            self.member.wait_for_loop_request().await;
            // The first answer of all is as good as another.
            let came = match self.member.is_node_read() {
                true => self.read_node().await.is_ok(),
                false => {
                    self.member.wait_for_node_read().await;
                    true
                }
            };
            self.heartbeat
                .asker
                .send_event(AgentEvent::NodeRead(came))
                .await;
        }
    }

    fn now(&self) -> MonoTime {
        self.heartbeat.clock.now()
    }

    async fn until(&self, due: MonoTime) {
        self.heartbeat.clock.sleep_until(due).await;
    }

    /// Until then, or until there is reason to look at the Node anew.
    async fn wait_until_doubt(&self, next: MonoTime) {
        let soon = async {
            self.until(self.now() + DOUBT_GAP).await;
            self.member.wait_for_doubt().await;
        };
        self.until(next).or(soon).await;
    }

    fn spread(&self) -> u64 {
        fleet_spread(&*self.heartbeat.clock, &self.name)
    }

    fn complain(&self, text: &str) {
        self.heartbeat.complaints.complain(text);
    }

    /// Looks every 100 ms whether the node has become ready, until `next` at most (NODE-24). Returns whether such looks go on.
    async fn look_until_ready(&self, started: MonoTime, next: MonoTime) -> bool {
        loop {
            let now = self.now();
            let is_ready = self.own.is_ready().await;
            match node::decide_startup_round(now - started, self.member.shown_readiness(), is_ready)
            {
                StartupRound::Send => return false,
                StartupRound::Over => {
                    self.wait_until_doubt(next).await;
                    return false;
                }
                StartupRound::Again if now >= next => return true,
                StartupRound::Again => self.until((now + FAST_INTERVAL).min(next)).await,
            }
        }
    }

    /// Until the Node is there (NODE-01, NODE-02).
    async fn register_node(&self) {
        let mut tries = RegisterBackoff::default();
        let mut is_first = true;
        let before = self.offered.earlier_resource_names().await;
        loop {
            self.until(self.now() + tries.next_pause()).await;
            let gathered = Box::pin(self.own.gather_node_facts()).await;
            let (initial, events) = self.own.make_initial_node(&gathered);
            if core::mem::take(&mut is_first) {
                events
                    .into_iter()
                    .for_each(|event| self.record_node_event(event));
            }
            match self.try_register(&initial, before.as_ref()).await {
                // Before the first report tells of anything new.
                Ok(()) => return self.keep_offered(&initial).await,
                Err(e) if e.is_answer() => {
                    self.complain(&format!("cannot register node {}: {e}", self.name));
                }
                Err(_) => {}
            }
        }
    }

    async fn keep_offered(&self, initial: &Node) {
        let kept = self
            .offered
            .keep_offered_names(node::offered_resources(initial))
            .await;
        if let Err(e) = kept {
            // Only the next start is worse off.
            self.complain(&format!("cannot store which resources are offered: {e}"));
        }
    }

    /// `before`: what agents before this one have offered.
    async fn try_register(&self, initial: &Node, before: Option<&ResourceNames>) -> ApiResult<()> {
        let body = encode_node(initial);
        let created = self
            .heartbeat
            .ask_apiserver(move |api| api.create_node(body.as_bytes()))
            .await;
        let answer = match &created {
            Ok(_) => CreateAnswer::Created,
            Err(e) if e.is_conflict() => CreateAnswer::AlreadyExists,
            Err(e) if e.http_status() == Some(403) => CreateAnswer::Forbidden,
            Err(_) => CreateAnswer::Failed,
        };
        match (node::after_create(answer), created) {
            (AfterCreate::Reconcile, refused) => {
                // If there is none, it is why none was made that tells what is wrong.
                let found = match (self.ask_for_node().await, refused) {
                    (Err(e), Err(refused)) if e.is_not_found() => return Err(refused),
                    (found, _) => found?,
                };
                let existing = decode_node(&found)?;
                let patch = node::reconcile_node(&existing, initial, before)
                    .and_then(|wanted| node::compute_status_patch(&existing, &wanted));
                log::info!(
                    "node {} exists already, uid {}",
                    self.name,
                    existing.metadata.uid
                );
                match patch {
                    Some(patch) => {
                        let answer = self.patch_status(&patch.body).await?;
                        self.take_node(decode_node(&answer)?).await;
                    }
                    None => self.take_node(existing).await,
                }
                Ok(())
            }
            (AfterCreate::Registered, Ok(answer)) => {
                log::info!("node {} is registered", self.name);
                self.take_node(decode_node(&answer)?).await;
                Ok(())
            }
            (AfterCreate::Registered | AfterCreate::Retry, result) => result.map(|_| ()),
        }
    }

    /// Sends one status: up to five tries (NODE-23).
    async fn send_status_round(&self, pace: &mut StatusPace) {
        let gathered = Box::pin(self.own.gather_node_facts()).await;
        for attempt in 0..MAX_TRIES {
            let Err(e) = self.try_update(&gathered, pace).await else {
                return;
            };
            self.member.request_reread_quietly();
            match e {
                // Somebody deleted it, and only a new agent makes it anew (NODE-06).
                e if e.is_not_found() => {
                    let then = if self.settings.register {
                        "restart the agent to register it again"
                    } else {
                        "create it by hand, because registerNode is false"
                    };
                    self.complain(&format!("node {} is not in the API: {then}", self.name));
                    return;
                }
                // Our own files: looked at again in a round's time.
                KubeError::Local(_) | KubeError::Cancelled => return,
                KubeError::Api(e) => self.complain(&format!("node status: {e}")),
                KubeError::Unreachable { .. } | KubeError::Tls { .. } | KubeError::Wrong { .. } => {
                    if attempt > 0 {
                        self.heartbeat.close_connections().await;
                    }
                }
            }
        }
    }

    async fn try_update(
        &self,
        gathered: &CurrentNodeFacts,
        pace: &mut StatusPace,
    ) -> ApiResult<()> {
        let member = &*self.member;
        let seen = match self.own.node.node_object().filter(|_| !member.is_doubted()) {
            Some(mut node) => {
                member.add_images(&mut node);
                node
            }
            None => self.read_node().await?,
        };
        let mut wanted = seen.clone();
        let applied = self.own.update_node(&mut wanted, gathered);
        member.remove_dropped_fields(&mut wanted);
        if let Some(error) = applied.no_address {
            self.complain(&error.to_string());
        }
        for event in applied.events {
            if member.is_new(event) {
                self.record_node_event(event);
            }
        }
        // The machine's word, also while nobody hears it.
        self.own.node.set_host_ips(node::node_host_ips(&wanted));
        let Some(patch) = node::compute_status_patch(&seen, &wanted) else {
            return Ok(());
        };
        if !pace.must_send_status(patch.is_change, self.now()) {
            return Ok(());
        }
        let answer = decode_node(&self.patch_status(&patch.body).await?)?;
        pace.record_sent_status(patch.is_change, self.now(), self.spread());
        member.note_status_sent(&wanted, &answer);
        self.take_node(answer).await;
        Ok(())
    }

    async fn ask_for_node(&self) -> ApiResult<Value> {
        let name = self.name.clone();
        self.heartbeat
            .ask_apiserver(move |api| api.read_node(&name))
            .await
    }

    /// Reads the Node anew, for whoever cannot wait for the next report.
    pub(super) async fn read_node(&self) -> ApiResult<Node> {
        let node = decode_node(&self.ask_for_node().await?)?;
        self.take_node(node.clone()).await;
        Ok(node)
    }

    async fn patch_status(&self, patch: &Value) -> ApiResult<Value> {
        let (name, body) = (self.name.clone(), patch.to_string());
        self.heartbeat
            .ask_apiserver(move |api| {
                api.patch_node_status(&name, PatchFormat::Strategic, body.as_bytes())
            })
            .await
    }

    /// The Node as the API has it now, with all that follows from it.
    async fn take_node(&self, mut node: Node) {
        self.objects.learn_from_node(&node);
        if let Some(event) = self.member.take_node_answer(&mut node) {
            self.record_node_event(event);
        }
        let spec = node.spec.clone();
        // Before a pod is admitted by it: after a power cut the next agent has to know as much.
        self.keep_node_record(&node).await;
        self.own.node.learn_node_object(node);
        self.cidrs.follow_node_spec(&self.member, &spec).await;
        self.member.set_node_read();
    }

    async fn keep_node_record(&self, node: &Node) {
        let kept = KeptNode::from_node(node);
        let is_same = || {
            self.own
                .node
                .node_object()
                .is_some_and(|k| KeptNode::from_node(&k) == kept)
        };
        if self.record.is_kept() && is_same() {
            return;
        }
        if let Err(e) = self.record.keep_node_labels(kept).await {
            let what =
                "cannot keep the labels and taints of the node for a start without the apiserver";
            self.complain(&format!("{what}: {e}"));
        }
    }

    fn record_node_event(&self, event: NodeEvent) {
        let severity = if event.is_warning() {
            EventSeverity::Warning
        } else {
            EventSeverity::Normal
        };
        let message = event.message(&self.name, &self.boot_id);
        self.recorder
            .record_node_event(severity, event.reason(), &message);
    }
}

fn decode_node(answer: &Value) -> ApiResult<Node> {
    let wrong = |why: String| KubeError::Wrong {
        url: "nodes".into(),
        why,
    };
    let node: Node = typed_from_value(answer).map_err(|e| wrong(e.to_string()))?;
    if node.metadata.uid.is_empty() {
        return Err(wrong("it has no identity".into()));
    }
    Ok(node)
}

fn encode_node(node: &Node) -> String {
    node.to_object().to_string()
}
