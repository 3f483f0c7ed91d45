//! Providers: programs of this machine that run pods which are no containers. Requests to each, its answers, and the part
//! of the agent that hears of them. Rows PRVD-01 to PRVD-07.
//!
//! `logic::provider` decides what is believed. A provider that is slow, silent or wrong keeps only its own pods
//! waiting. Without one in the configuration nothing of this exists: no task, no timer, no memory.

mod config;
mod driver;
mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod logs;
mod pods;
mod poll;
mod socket;
#[cfg(test)]
mod tests;
mod wire;

pub(super) use config::ProviderPart;

use alloc::{collections::BTreeSet, rc::Rc};
use core::cell::RefCell;

use serde_json::Value;

use wire::{
    MAX_LIST_BYTES, MAX_WORDS_BYTES, ProviderError, ProviderRequest, ProviderResponse, ProviderWire,
};

use crate::{
    agent::{clock::Clock, wake::WakeFlag, waker_set::WakerSet},
    api::{ContainerId, PodUid, SandboxId, strict::from_foreign_json},
    error::error_chain,
    logic::provider::{
        MisreportedPod, ProviderFault, ProviderListChanges, ProviderPodList, ProviderPodReport,
        ProviderPodTable, ReportedPodStatus,
    },
};

/// All providers of this node, at least one.
pub(super) struct PodProviders {
    all: Vec<Rc<PodProvider>>,
    /// Wakes the runtime's doorbell: a provider may have changed.
    bell: Rc<WakeFlag>,
    /// Pods that the runtime has: a provider that lists them does not own them.
    of_runtime: RefCell<BTreeSet<PodUid>>,
}

/// A provider.
pub(super) struct PodProvider {
    /// Handler of the RuntimeClasses whose pods go to the provider.
    handler: String,
    node: String,
    wire: Box<dyn ProviderWire>,
    clock: Rc<dyn Clock>,
    table: RefCell<ProviderPodTable>,
    /// Reason why the provider does not answer, if it does not.
    trouble: RefCell<Option<String>>,
    /// Place of the provider's last list among its changes.
    cursor: RefCell<String>,
    changed: WakerSet,
    bell: Rc<WakeFlag>,
    /// Wakes the watcher, to ask the provider now.
    asked: WakeFlag,
}

/// Result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeleteOutcome {
    /// No part of the pod is there any more.
    Gone,
    /// The pod is being stopped.
    Stopping,
}

impl PodProviders {
    /// The providers behind `wires`, each with its handler.
    pub(super) fn new(
        wires: Vec<(String, Box<dyn ProviderWire>)>,
        node: &str,
        clock: &Rc<dyn Clock>,
    ) -> Rc<Self> {
        let bell = Rc::new(WakeFlag::default());
        let make = |(handler, wire)| {
            Rc::new(PodProvider {
                handler,
                node: node.to_owned(),
                wire,
                clock: Rc::clone(clock),
                table: RefCell::default(),
                trouble: RefCell::new(Some("it was not asked yet".into())),
                cursor: RefCell::default(),
                changed: WakerSet::default(),
                bell: Rc::clone(&bell),
                asked: WakeFlag::default(),
            })
        };
        Rc::new(Self {
            all: wires.into_iter().map(make).collect(),
            bell,
            of_runtime: RefCell::default(),
        })
    }

    /// All providers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Rc<PodProvider>> {
        self.all.iter()
    }

    fn by_handler(&self, handler: &str) -> Option<&Rc<PodProvider>> {
        self.iter().find(|provider| provider.handler == handler)
    }

    /// Finds the owner of a pod, as far as a provider has listed it or was told of it.
    fn owner_of(&self, uid: &PodUid) -> Option<&Rc<PodProvider>> {
        let of_agent = |provider: &&Rc<PodProvider>| provider.table.borrow().expects_pod(uid);
        if let Some(provider) = self.iter().find(of_agent) {
            return Some(provider);
        }
        let is_free = !self.of_runtime.borrow().contains(uid);
        let said = |provider: &&Rc<PodProvider>| is_free && provider.table.borrow().has_pod(uid);
        self.iter().find(said)
    }

    /// Returns true if the pod is that provider's: a provider may list another one's pod.
    fn is_owned_by(&self, uid: &PodUid, provider: &Rc<PodProvider>) -> bool {
        self.owner_of(uid)
            .is_some_and(|owner| Rc::ptr_eq(owner, provider))
    }

    /// Finds the owner of a container, with the pod and the container's name there.
    fn find_container(&self, id: &ContainerId) -> Option<(&Rc<PodProvider>, PodUid, String)> {
        self.iter().find_map(|provider| {
            let (uid, name) = provider.table.borrow().find_container(id)?;
            let is_its = self.is_owned_by(&uid, provider);
            is_its.then_some((provider, uid, name))
        })
    }

    /// Finds the owner of a sandbox, with the pod.
    fn find_sandbox(&self, id: &SandboxId) -> Option<(&Rc<PodProvider>, PodUid)> {
        self.iter().find_map(|provider| {
            let uid = provider.table.borrow().find_sandbox_pod(id)?;
            self.is_owned_by(&uid, provider).then_some((provider, uid))
        })
    }

    /// Reasons why providers do not answer; `None` if all do.
    fn describe_trouble(&self) -> Option<String> {
        let all = self.iter().filter_map(|provider| {
            let trouble = provider.trouble.borrow();
            let why = trouble.as_ref()?;
            Some(format!("provider {}: {why}", provider.handler))
        });
        let all: Vec<String> = all.collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl PodProvider {
    /// Returns true once a whole list has come (PROV-03).
    fn is_heard(&self) -> bool {
        self.table.borrow().has_whole_list()
    }

    fn wake_waiters(&self) {
        self.changed.wake_all();
        self.bell.wake_waiters();
    }

    /// Asks for all pods, and takes the list in.
    async fn poll_pods(&self) -> Result<ProviderListChanges, ProviderError> {
        let begun = self.table.borrow_mut().begin_list();
        let listed = self.ask_pod_list().await.and_then(|list| {
            let cursor = list.cursor.clone();
            let mut table = self.table.borrow_mut();
            let news = table.take_pod_list(begun, list, &self.node, self.clock.wall_time());
            let news = news.map_err(nonsense)?;
            *self.cursor.borrow_mut() = cursor;
            Ok(news)
        });
        match &listed {
            Ok(news) => {
                *self.trouble.borrow_mut() = None;
                if news.changed {
                    self.wake_waiters();
                }
            }
            Err(e) => {
                *self.trouble.borrow_mut() = Some(error_chain(e));
                if self.table.borrow_mut().record_silence() {
                    self.wake_waiters();
                }
            }
        }
        listed
    }

    async fn ask_pod_list(&self) -> Result<ProviderPodList, ProviderError> {
        let request = ProviderRequest {
            limit: MAX_LIST_BYTES,
            ..ProviderRequest::new("GET", "/pods")
        };
        let answer = self.wire.send_request(request).await?;
        if answer.status != 200 {
            return Err(ProviderError::Nonsense(format!(
                "GET /pods: status {}",
                answer.status
            )));
        }
        ProviderPodList::parse(&decode_answer(&answer)?).map_err(nonsense)
    }

    /// Tells of a pod; repeatable.
    async fn put_pod(
        &self,
        uid: &PodUid,
        generation: &str,
        told: Vec<u8>,
    ) -> Result<Vec<MisreportedPod>, ProviderError> {
        let request = ProviderRequest {
            body: told,
            limit: MAX_WORDS_BYTES,
            ..ProviderRequest::new("PUT", format!("/pods/{uid}"))
        };
        let answer = self.wire.send_request(request).await?;
        match answer.status {
            200 => {}
            404 => {
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(ProviderError::Refused { status: 404, text });
            }
            other => return Err(ProviderError::Nonsense(format!("PUT: status {other}"))),
        }
        let status = match answer.body.as_slice() {
            [] => ReportedPodStatus::default(),
            _ => read_pod_status(&answer)?,
        };
        let now = self.clock.wall_time();
        let mut table = self.table.borrow_mut();
        let bad = table.record_acknowledgement(uid, generation, status, now);
        drop(table);
        self.wake_waiters();
        Ok(bad)
    }

    /// Has a pod stopped and removed; repeatable, also with less grace. A pod that is not there is a success.
    async fn delete_pod(&self, uid: &PodUid, grace_s: u32) -> Result<DeleteOutcome, ProviderError> {
        let request = ProviderRequest {
            limit: MAX_WORDS_BYTES,
            ..ProviderRequest::new("DELETE", format!("/pods/{uid}?grace={grace_s}"))
        };
        let answer = self.wire.send_request(request).await?;
        let last = match answer.status {
            202 => {
                self.table.borrow_mut().record_stop_begun(uid);
                self.asked.wake_waiters();
                return Ok(DeleteOutcome::Stopping);
            }
            200 if !answer.body.is_empty() => Some(read_pod_status(&answer)?),
            200 | 404 => None,
            other => return Err(ProviderError::Nonsense(format!("DELETE: status {other}"))),
        };
        let now = self.clock.wall_time();
        self.table.borrow_mut().record_removal(uid, last, now);
        self.wake_waiters();
        Ok(DeleteOutcome::Gone)
    }

    fn forget_pod(&self, uid: &PodUid) {
        self.table.borrow_mut().forget_pod(uid);
        self.wake_waiters();
    }
}

fn decode_answer(answer: &ProviderResponse) -> Result<Value, ProviderError> {
    from_foreign_json(&answer.body).map_err(|e| ProviderError::Nonsense(error_chain(&e)))
}

/// Reads the status of the one pod in an answer.
fn read_pod_status(answer: &ProviderResponse) -> Result<ReportedPodStatus, ProviderError> {
    let said = ProviderPodReport::parse(&decode_answer(answer)?);
    said.map(|said| said.status).map_err(nonsense)
}

#[expect(clippy::needless_pass_by_value, reason = "stands behind map_err")]
fn nonsense(wrong: ProviderFault) -> ProviderError {
    ProviderError::Nonsense(wrong.to_string())
}
