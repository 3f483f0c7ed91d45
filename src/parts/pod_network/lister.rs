//! Reader of the other nodes: a list of their metadata at a ring of the doorbell and every half an hour, and one look at
//! each node for the addresses of its pods (FLAN-01, FLAN-02, FLAN-09).

use alloc::{collections::BTreeMap, rc::Rc};
use core::{future::pending, time::Duration};

use smol::future::FutureExt as _;

use super::shared::PodNetworkShared;
use crate::{
    api::ObjectMeta,
    error::error_chain,
    kube::{
        ClusterReader, DoorbellNews, KubeError, WatchDoorbell, WatchEnd, WatchEventKind,
        WatchOptions, path::encode_segment,
    },
    logic::pod_network::{
        PodNetworkBackend,
        announcement::read_announcement,
        look::look_at_node,
        peers::{ListedNode, MAX_PEERS, PeerList, PeerQuestion},
        schedule::{ListEnd, ListSchedule},
    },
};

/// Path of all nodes.
const NODES: &str = "/api/v1/nodes";
/// Time after which the apiserver ends a watch.
const WATCH_TIME: Duration = Duration::from_secs(10 * 60);
/// A watch that ends earlier by so much was cut.
const WATCH_SLACK: Duration = Duration::from_secs(30);

/// Reads the other nodes, as long as the agent runs.
pub(super) async fn list_nodes(shared: Rc<PodNetworkShared>, reader: Rc<ClusterReader>) {
    let mut schedule = ListSchedule::new(shared.clock.now());
    let mut bell = NodeBell::default();
    let mut choice = shared.state.choices.get();
    loop {
        let backend = shared.wait_for_backend().await;
        let now = shared.state.choices.get();
        if core::mem::replace(&mut choice, now) != now {
            schedule.take_list_end(ListEnd::Outdated, shared.clock.now());
        }
        let due = schedule.due();
        if shared.clock.now() < due {
            let alarm = async {
                shared.clock.sleep_until(due).await;
                None
            };
            let chosen = async {
                shared.state.backend_chosen.wait_for_wake().await;
                None
            };
            if let Some(news) = alarm.or(chosen).or(bell.next_news()).await {
                bell.take_news(news, &shared, &mut schedule).await;
            }
            continue;
        }
        let (end, version) = list_once(&shared, &reader, backend).await;
        schedule.take_list_end(end, shared.clock.now());
        if let Some(version) = version {
            bell.watch_from(version, &shared, &reader).await;
        }
    }
}

/// Doorbell for nodes: none while the link costs money.
#[derive(Default)]
pub(super) struct NodeBell {
    bell: Option<WatchDoorbell>,
    is_watching: bool,
    /// Version from which the next watch begins.
    version: String,
    /// Digests of the annotations of nodes, as the doorbell told them last. At most [`MAX_PEERS`].
    annotations: BTreeMap<String, u64>,
    since: crate::api::MonoTime,
}

impl NodeBell {
    async fn next_news(&self) -> Option<DoorbellNews> {
        match &self.bell {
            Some(bell) if self.is_watching => Some(bell.next_news().await),
            _ => pending().await,
        }
    }

    pub(super) async fn take_news(
        &mut self,
        news: DoorbellNews,
        shared: &PodNetworkShared,
        schedule: &mut ListSchedule,
    ) {
        match news {
            DoorbellNews::Ring(event) => {
                if !event.resource_version.is_empty() {
                    self.version = event.resource_version;
                }
                match event.kind {
                    WatchEventKind::Bookmark => {}
                    // Its own node tells a node nothing.
                    _ if event.name == shared.name => {}
                    WatchEventKind::Modified => {
                        // An event that was too long may lack some annotations.
                        if self.notes_change(event.name, event.annotations) || event.is_cut {
                            schedule.take_ring(false);
                        }
                    }
                    WatchEventKind::Added | WatchEventKind::Deleted | WatchEventKind::Unknown => {
                        self.annotations.remove(&event.name);
                        schedule.take_ring(true);
                    }
                }
            }
            DoorbellNews::Overrun => {
                self.annotations.clear();
                schedule.take_ring(true);
            }
            DoorbellNews::Ended(end) => {
                self.is_watching = false;
                let lived = shared.clock.now() - self.since;
                let is_clean =
                    matches!(end, Ok(WatchEnd::Clean)) && lived + WATCH_SLACK >= WATCH_TIME;
                if is_clean && !shared.link_policy.is_metered() {
                    return self.start_watch(shared).await;
                }
                log::debug!("watch of nodes: {end:?}");
                // What is lost is not known.
                self.annotations.clear();
                schedule.take_ring(false);
            }
        }
    }

    /// Notes the digest of a node's annotations. Returns false if it is the same as before: a node at rest reports every few
    /// minutes, and no list could bring news.
    fn notes_change(&mut self, name: String, annotations: u64) -> bool {
        if self.annotations.len() >= MAX_PEERS {
            self.annotations.clear();
        }
        self.annotations.insert(name, annotations) != Some(annotations)
    }

    async fn watch_from(
        &mut self,
        version: String,
        shared: &PodNetworkShared,
        reader: &ClusterReader,
    ) {
        if shared.link_policy.is_metered() {
            *self = Self::default();
            return;
        }
        if self.is_watching {
            return;
        }
        self.version = version;
        if self.bell.is_none() {
            match reader.open_doorbell(NODES) {
                Ok(bell) => self.bell = Some(bell),
                Err(e) => {
                    let text =
                        format!("pod network: cannot start a thread that watches nodes: {e}");
                    return shared.complaints.complain(&text);
                }
            }
        }
        self.start_watch(shared).await;
    }

    async fn start_watch(&mut self, shared: &PodNetworkShared) {
        let Some(bell) = &self.bell else { return };
        let options = WatchOptions {
            node: String::new(),
            resource_version: self.version.clone(),
            timeout: WATCH_TIME,
            bookmarks: true,
        };
        bell.start_watch(options).await;
        self.is_watching = true;
        self.since = shared.clock.now();
    }
}

/// Makes one list, and asks what it left open. Returns also the version of a whole list.
async fn list_once(
    shared: &PodNetworkShared,
    reader: &ClusterReader,
    backend: PodNetworkBackend,
) -> (ListEnd, Option<String>) {
    let choice = shared.state.choices.get();
    let own = shared.name.clone();
    let note = move |list: &mut PeerList, meta: ObjectMeta| {
        if meta.name == own || encode_segment(&meta.name).is_err() {
            return;
        }
        list.note_node(&ListedNode {
            name: &meta.name,
            uid: meta.uid.as_str(),
            created_s: meta.creation_timestamp.map_or(0, |at| at.unix_seconds()),
            announcement: read_announcement(&meta.annotations, backend),
        });
    };
    let (list, whole) = match reader.list_metadata(NODES, PeerList::default(), note).await {
        Ok(listed) => listed,
        Err(e) => {
            shared.set_list_trouble(Some(list_error_text(&e)));
            return (ListEnd::Failed, None);
        }
    };
    if shared.state.choices.get() != choice {
        return (ListEnd::Outdated, None);
    }
    let outcome = shared.peers.borrow_mut().take_list(list);
    if outcome.left_out > 0 {
        let text = format!("pod network: {} nodes are too many", outcome.left_out);
        shared.complaints.complain(&text);
    }
    let mut is_changed = outcome.is_changed;
    let questions = shared.peers.borrow().open_questions();
    for (name, question) in questions {
        is_changed |= ask_about(shared, reader, backend, &name, question).await;
        if shared.state.choices.get() != choice {
            return (ListEnd::Outdated, None);
        }
    }
    let has_questions = !shared.peers.borrow().open_questions().is_empty();
    shared.set_list_trouble(None);
    shared.note_list(outcome.faults);
    let end = ListEnd::Whole {
        is_changed,
        has_questions,
    };
    (end, Some(whole.resource_version))
}

fn list_error_text(error: &KubeError) -> String {
    match error.http_status() {
        Some(status @ (401 | 403)) => format!(
            "the identity of the pod network may not list nodes (status {status}): {}",
            error_chain(error)
        ),
        _ => format!("cannot list nodes: {}", error_chain(error)),
    }
}

/// Looks at one node. Returns true if that brought news.
async fn ask_about(
    shared: &PodNetworkShared,
    reader: &ClusterReader,
    backend: PodNetworkBackend,
    name: &str,
    question: PeerQuestion,
) -> bool {
    let Ok(segment) = encode_segment(name) else {
        return false;
    };
    let path = format!("{NODES}/{segment}");
    let looked = reader
        .read_object(&path, move |object| look_at_node(object, backend))
        .await;
    let mut peers = shared.peers.borrow_mut();
    match (looked, question) {
        (Ok(Some(look)), _) => {
            let is_gone =
                question == PeerQuestion::Existence && !look.takes_part && peers.forget_peer(name);
            peers.learn_ranges(name, &look.uid, &look.ranges, look.has_wrong) || is_gone
        }
        (Ok(None), _) => {
            let text = format!("pod network: the object of node {name} cannot be read");
            shared.complaints.complain(&text);
            peers.note_unreadable(name)
        }
        (Err(e), PeerQuestion::Existence) if e.is_not_found() => {
            log::info!("node {name} is gone: its routes are removed");
            peers.forget_peer(name)
        }
        (Err(e), _) => {
            log::debug!("look at node {name}: {}", error_chain(&e));
            false
        }
    }
}
