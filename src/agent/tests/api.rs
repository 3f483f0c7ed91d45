//! An apiserver in memory behind the [`KubeApi`] trait: that of the poller's simulation, with a link that fails on demand
//! or by chance.

use alloc::{collections::BTreeMap, sync::Arc};
use core::time::Duration;
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::{
    api_objects::{Stored, Trouble},
    world::NODE,
};
use crate::{
    api::{ObjectMeta, PodUid, WallTime, pod::CONFIG_MIRROR, strict},
    kube::{
        ApiError, CompleteList, KubeApi, KubeError, PatchFormat, WatchCancel, WatchEnd, WatchEvent,
        WatchOptions, api::ApiResult,
    },
    logic::{
        api_poll::PodListKind,
        label_selector::LabelSelector,
        testing::Random,
        testing::server::{Key, Refusal, Server, uid_of},
    },
};

/// UID of the Node object.
pub(super) const NODE_UID: &str = "node-uid";

/// State of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) enum Link {
    #[default]
    Up,
    /// No request arrives.
    Down,
    /// Requests are done, and no answer arrives.
    Mute,
    /// Lists end before their last object.
    Cut,
}

/// Odds that a request goes wrong, in hundredths.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::agent) struct Odds {
    /// The request does not arrive.
    pub(in crate::agent) lost: u64,
    /// The request is done, and its answer does not arrive.
    pub(in crate::agent) answerless: u64,
    /// The server answers 500, 503, 409, 403 or 404 of its own.
    pub(in crate::agent) refused: u64,
    /// The answer is 429, or 503 with a time to wait.
    pub(in crate::agent) busy: u64,
    /// A list ends before its last object.
    pub(in crate::agent) cut: u64,
    /// A list shows an older state.
    pub(in crate::agent) stale: u64,
    /// A list shows a pod twice.
    pub(in crate::agent) doubled: u64,
    /// A list shows a pod of another node.
    pub(in crate::agent) foreign: u64,
}

/// A request of the agent that is right only in some states of the pod; a simulation judges it.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Claim {
    /// The pod with this uid is to be deleted.
    Delete {
        uid: String,
        /// Object that had the pod's name; null: there was none.
        found: Value,
        /// Set if the object was removed.
        removed: bool,
    },
    /// The status says that this pod has ended.
    End { uid: String },
}

struct State {
    server: Server,
    link: Link,
    odds: Odds,
    random: Random,
    /// Set if lists may show an older state.
    may_be_stale: bool,
    /// Set if a whole list was answered since the last [`FakeApi::take_listed`].
    listed: bool,
    claims: Vec<Claim>,
    /// A request that no agent may make.
    violation: Option<String>,
    /// Number of times that each kind of trouble came.
    tally: BTreeMap<&'static str, u64>,
    /// `VERB namespace/name` of each request that arrived, with the content of a patch.
    seen: Vec<String>,
    events: BTreeMap<String, Value>,
    node: OwnNode,
    /// The node's Lease; null: there is none.
    lease: Value,
    /// Objects that pods refer to.
    stored: Stored,
    /// Refusal that answers each status of a pod.
    refusal: Option<(u16, &'static str)>,
}

/// The Node object of the agent.
#[derive(Default)]
struct OwnNode {
    /// The object; null: there is none.
    object: Value,
    /// Number of reads.
    reads: usize,
    /// Set while the Node is not given out, nor its status taken.
    refuses_reads: bool,
}

/// The apiserver in memory; see the module.
#[derive(Default)]
pub(crate) struct FakeApi(Mutex<State>);

impl Default for State {
    fn default() -> Self {
        Self {
            server: Server::default(),
            link: Link::default(),
            odds: Odds::default(),
            random: Random(0),
            may_be_stale: false,
            listed: false,
            claims: Vec::new(),
            violation: None,
            tally: BTreeMap::new(),
            seen: Vec::new(),
            events: BTreeMap::new(),
            node: OwnNode::default(),
            lease: Value::Null,
            stored: Stored::default(),
            refusal: None,
        }
    }
}

impl State {
    fn chance(&mut self, percent: u64, what: &'static str) -> bool {
        let hit = percent > 0 && self.random.below(100) < percent;
        if hit {
            *self.tally.entry(what).or_default() += 1;
        }
        hit
    }

    /// Draws an answer that does not come from the store: a refusal, or one that asks to wait.
    fn whim(&mut self) -> Option<KubeError> {
        if self.chance(self.odds.busy, "busy") {
            let (status, wait_s) = [(429, 1), (429, 5), (503, 2)][self.pick(3)];
            return Some(KubeError::Api(ApiError {
                status,
                retry_after: Some(Duration::from_secs(wait_s)),
                ..ApiError::default()
            }));
        }
        if self.chance(self.odds.refused, "refused") {
            // The last two come from a proxy: an apiserver names a reason.
            let all = [
                (500, "InternalError"),
                (503, "ServiceUnavailable"),
                (409, "Conflict"),
                (504, "Timeout"),
                (403, ""),
                (404, ""),
            ];
            let (status, reason) = all[self.pick(all.len())];
            return Some(refused(status, reason));
        }
        None
    }

    fn pick(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("few");
        usize::try_from(self.random.below(end)).expect("few")
    }
}

fn key(namespace: &str, name: &str) -> Key {
    (namespace.into(), name.into())
}

pub(super) fn refused(status: u16, reason: &str) -> KubeError {
    KubeError::Api(ApiError {
        status,
        reason: reason.into(),
        ..ApiError::default()
    })
}

pub(super) fn broken() -> KubeError {
    KubeError::Unreachable {
        url: "https://api".into(),
        why: "no answer".into(),
        sent: true,
    }
}

fn unused<T>() -> ApiResult<T> {
    Err(KubeError::Local("not in this test".into()))
}

impl From<Refusal> for KubeError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound => refused(404, "NotFound"),
            Refusal::Conflict => refused(409, "Conflict"),
        }
    }
}

impl FakeApi {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::agent) fn set_link(&self, link: Link) {
        self.state().link = link;
    }

    pub(in crate::agent) fn link(&self) -> Link {
        self.state().link
    }

    /// Sets the odds that requests go wrong from now on.
    pub(in crate::agent) fn set_odds(&self, odds: Odds, seed: u64) {
        let mut state = self.state();
        state.odds = odds;
        state.random = Random(seed);
    }

    pub(in crate::agent) fn set_may_be_stale(&self, may_be_stale: bool) {
        self.state().may_be_stale = may_be_stale;
    }

    /// Returns true if a whole list was answered since this was last asked.
    pub(in crate::agent) fn take_listed(&self) -> bool {
        core::mem::take(&mut self.state().listed)
    }

    pub(in crate::agent) fn tally(&self) -> BTreeMap<&'static str, u64> {
        self.state().tally.clone()
    }

    pub(in crate::agent) fn violation(&self) -> Option<String> {
        self.state().violation.clone()
    }

    pub(in crate::agent) fn take_claims(&self) -> Vec<Claim> {
        core::mem::take(&mut self.state().claims)
    }

    /// Refuses statuses of pods with this answer from now on; `None`: takes them.
    pub(super) fn refuse_statuses(&self, answer: Option<(u16, &'static str)>) {
        self.state().refusal = answer;
    }

    /// Looks at the store, or changes it as another client does.
    pub(in crate::agent) fn with<T>(&self, act: impl FnOnce(&mut Server) -> T) -> T {
        act(&mut self.state().server)
    }

    /// Creates a pod with one container `c`; `more` is laid over its spec. Returns its uid.
    pub(crate) fn create(&self, name: &str, more: Value) -> String {
        let mut pod = super::world::manifest(name, more);
        pod["spec"]["nodeName"] = NODE.into();
        pod["metadata"] = json!({"name": name, "namespace": "ns"});
        pod["status"] = json!({"phase": "Pending"});
        self.put_new(pod)
    }

    fn put_new(&self, pod: Value) -> String {
        let mut state = self.state();
        let of = |field: &str| pod["metadata"][field].as_str().expect("text").to_owned();
        let key = (of("namespace"), of("name"));
        state.server.put_new(key, pod)
    }

    /// Stores an object whose name is free, under a new uid.
    pub(super) fn put(&self, namespace: &str, name: &str, object: Value) {
        self.state().server.put_new(key(namespace, name), object);
    }

    /// Changes an object in place.
    pub(super) fn edit(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        let key = key("ns", name);
        let mut object = state.server.objects.get(&key).expect("there").clone();
        edit(&mut object);
        state.server.put(key, object);
    }

    /// Deletes a pod as a user does: with grace.
    pub(super) fn delete(&self, name: &str) {
        let key = key("ns", name);
        self.state()
            .server
            .delete_gracefully(&key, WallTime::from_unix_seconds(1), 30);
    }

    /// Removes a pod as `kubectl delete --force --grace-period=0` does.
    pub(super) fn remove(&self, namespace: &str, name: &str) {
        self.state().server.remove(&key(namespace, name));
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Value> {
        self.state()
            .server
            .objects
            .get(&key(namespace, name))
            .cloned()
    }

    pub(super) fn phase(&self, name: &str) -> String {
        let pod = self.get("ns", name).unwrap_or_default();
        pod["status"]["phase"].as_str().unwrap_or("").into()
    }

    /// Keeps the present state of the store for [`FakeApi::restore`].
    pub(super) fn keep(&self) {
        self.state().server.keep_state();
    }

    /// Restores the store from the backup: objects and versions go back.
    pub(super) fn restore(&self) {
        let mut state = self.state();
        state.server.restore();
        // The agent does not write before it has listed here.
        state.server.is_fresh = false;
    }

    pub(in crate::agent) fn take_seen(&self) -> Vec<String> {
        core::mem::take(&mut self.state().seen)
    }

    /// Reasons of all events told.
    pub(super) fn events(&self) -> Vec<String> {
        let state = self.state();
        let reasons = state.events.values().map(|e| e["reason"].as_str());
        reasons.map(|r| r.unwrap_or("").to_owned()).collect()
    }

    /// Changes the Node in place.
    pub(super) fn edit_node(&self, edit: impl FnOnce(&mut Value)) {
        edit(&mut self.state().node.object);
    }

    /// Number of reads of the Node since this was last asked.
    pub(super) fn take_node_reads(&self) -> usize {
        core::mem::take(&mut self.state().node.reads)
    }

    /// Refuses the Node and its status from now on, or takes requests for both again.
    pub(super) fn refuse_nodes(&self, refuses: bool) {
        self.state().node.refuses_reads = refuses;
    }

    /// Puts an object that pods refer to at a path such as `configmaps/ns/name`, in place of the one there.
    pub(crate) fn put_object(&self, path: &str, object: Value) {
        self.state().stored.put(path, object);
    }

    pub(super) fn object(&self, path: &str) -> Option<Value> {
        self.state().stored.object(path)
    }

    pub(in crate::agent) fn remove_object(&self, path: &str) {
        self.state().stored.remove(path);
    }

    /// Makes the next `times` requests for objects whose paths begin with `prefix` go wrong.
    pub(in crate::agent) fn trouble(&self, prefix: &str, times: u32, trouble: Trouble) {
        let troubles = &mut self.state().stored.troubles;
        troubles.push((prefix.into(), times, trouble));
    }

    /// Ends all trouble with objects.
    pub(in crate::agent) fn heal(&self) {
        self.state().stored.troubles.clear();
    }

    /// Paths of objects that were asked for since this was last called.
    pub(super) fn take_asked(&self) -> Vec<String> {
        core::mem::take(&mut self.state().stored.asked)
    }

    /// Sets the clock of the apiserver.
    pub(in crate::agent) fn set_now(&self, now: WallTime) {
        self.state().stored.now_s = now.unix_seconds();
    }

    /// Processes one request as far as the link lets it.
    fn serve<T>(
        &self,
        what: String,
        serve: impl FnOnce(&mut State) -> ApiResult<T>,
    ) -> ApiResult<T> {
        let mut state = self.state();
        let odds = state.odds;
        if state.link == Link::Down || state.chance(odds.lost, "lost") {
            return Err(broken());
        }
        state.seen.push(what);
        if let Some(refusal) = state.whim() {
            return Err(refusal);
        }
        // An executor does not tell that a detached task has panicked.
        let served = catch_unwind(AssertUnwindSafe(|| serve(&mut state)));
        let answer = match served {
            Ok(answer) => answer,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                state.violation = Some(text.unwrap_or("?").to_owned());
                drop(state);
                resume_unwind(panic);
            }
        };
        if state.link == Link::Mute || state.chance(odds.answerless, "answerless") {
            return Err(broken());
        }
        answer
    }

    fn about_objects<T>(&self, serve: impl FnOnce(&mut Stored) -> ApiResult<T>) -> ApiResult<T> {
        self.not_noted(|state| serve(&mut state.stored))
    }

    /// Processes a request that is not about pods, without a note of it.
    fn not_noted<T>(&self, serve: impl FnOnce(&mut State) -> ApiResult<T>) -> ApiResult<T> {
        let answer = self.serve(String::new(), serve);
        self.state().seen.retain(|what| !what.is_empty());
        answer
    }

    fn list(&self, list: PodListKind, each: &mut dyn FnMut(Value)) -> ApiResult<CompleteList> {
        self.serve(format!("LIST {list:?}"), |state| {
            let odds = state.odds;
            let fresh = state.server.is_fresh || !state.may_be_stale;
            // A list of all phases is asked for once in half an hour: a pod that it leaves out stays out for so long.
            let stale = !fresh && list != PodListKind::All && state.chance(odds.stale, "stale");
            let mut objects = state.server.list(list, stale);
            if state.chance(odds.doubled, "object doubled") {
                objects.extend(objects.first().cloned());
            }
            if state.chance(odds.foreign, "foreign object")
                && let Some(mut foreign) = objects.first().cloned()
            {
                foreign["metadata"]["uid"] = "foreign".into();
                foreign["metadata"]["name"] = "foreign".into();
                foreign["spec"]["nodeName"] = "elsewhere".into();
                objects.push(foreign);
            }
            let (all, half) = (objects.len(), state.link == Link::Cut);
            let chance = state.chance(odds.cut, "cut");
            let shown = match (half, chance) {
                (true, _) => all / 2,
                (false, true) => state.pick(all + 1),
                (false, false) => all,
            };
            objects.into_iter().take(shown).for_each(each);
            if half || chance {
                return Err(broken());
            }
            state.listed |= list != PodListKind::All;
            Ok(CompleteList {
                resource_version: state.server.version(stale),
                items: all,
            })
        })
    }
}

fn found(object: &Value) -> ApiResult<Value> {
    if object.is_null() {
        return Err(Refusal::NotFound.into());
    }
    Ok(object.clone())
}

fn patched(object: &mut Value, body: &[u8]) -> ApiResult<Value> {
    found(object)?;
    merge(object, &serde_json::from_slice(body).expect("json"));
    Ok(object.clone())
}

/// Merges a patch: lists whose items have a `type` are merged by it, other lists replaced.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(into), Value::Array(patch))
            if patch.iter().all(|p| p["type"].is_string()) =>
        {
            for value in patch {
                match into.iter_mut().find(|own| own["type"] == value["type"]) {
                    Some(own) => merge(own, value),
                    None => into.push(value.clone()),
                }
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

fn meta(object: &Value) -> ObjectMeta {
    strict::typed_from_value(&object["metadata"]).expect("metadata")
}

impl KubeApi for FakeApi {
    fn list_pods(&self, _: &str, each: &mut dyn FnMut(ObjectMeta)) -> ApiResult<CompleteList> {
        self.list(PodListKind::Live, &mut |object| each(meta(&object)))
    }

    fn list_all_pods(&self, _: &str, each: &mut dyn FnMut(ObjectMeta)) -> ApiResult<CompleteList> {
        self.list(PodListKind::All, &mut |object| each(meta(&object)))
    }

    fn list_whole_pods(&self, _: &str, each: &mut dyn FnMut(Value)) -> ApiResult<CompleteList> {
        self.list(PodListKind::Objects, each)
    }

    fn watch_pods(
        &self,
        _: &WatchOptions,
        _: &Arc<WatchCancel>,
        _: &mut dyn FnMut(WatchEvent),
    ) -> ApiResult<WatchEnd> {
        unused()
    }

    fn read_pod(&self, _: &str, namespace: &str, name: &str) -> ApiResult<Value> {
        self.serve(format!("GET {namespace}/{name}"), |state| {
            let found = state.server.objects.get(&key(namespace, name));
            found.cloned().ok_or_else(|| Refusal::NotFound.into())
        })
    }

    fn patch_pod_status(
        &self,
        namespace: &str,
        name: &str,
        _: PatchFormat,
        body: &[u8],
    ) -> ApiResult<Value> {
        let told = String::from_utf8_lossy(body);
        self.serve(format!("PATCH {namespace}/{name} {told}"), |state| {
            let body: Value = serde_json::from_slice(body).expect("json");
            let key = key(namespace, name);
            if state.server.is_fresh {
                return Err(broken());
            }
            if let Some((status, reason)) = state.refusal {
                return Err(refused(status, reason));
            }
            let ends = |phase: &Value| matches!(phase.as_str(), Some("Failed" | "Succeeded"));
            let before = state.server.objects.get(&key).cloned();
            let after = state.server.patch(&key, &body)?;
            let before = before.unwrap_or_default();
            if ends(&body["status"]["phase"]) && !ends(&before["status"]["phase"]) {
                let uid = uid_of(&after).to_owned();
                state.claims.push(Claim::End { uid });
            }
            Ok(after)
        })
    }

    fn create_pod(&self, namespace: &str, body: &[u8]) -> ApiResult<Value> {
        let mut pod: Value = serde_json::from_slice(body).expect("json");
        let name = pod["metadata"]["name"].as_str().expect("name").to_owned();
        self.serve(format!("CREATE {namespace}/{name}"), |state| {
            let key = key(namespace, &name);
            if state.server.is_fresh {
                return Err(broken());
            }
            if state.server.objects.contains_key(&key) {
                return Err(refused(409, "AlreadyExists"));
            }
            pod["status"] = json!({"phase": "Pending"});
            state.server.put_new(key.clone(), pod);
            Ok(state.server.objects[&key].clone())
        })
    }

    fn delete_pod(&self, namespace: &str, name: &str, uid: &PodUid) -> ApiResult<Option<Value>> {
        self.serve(format!("DELETE {namespace}/{name}"), |state| {
            let key = key(namespace, name);
            if state.server.is_fresh {
                return Err(broken());
            }
            let found = state.server.objects.get(&key).cloned().unwrap_or_default();
            let annotations = &found["metadata"]["annotations"];
            let own = found["metadata"]["uid"] == **uid;
            let done = if own && !annotations[CONFIG_MIRROR].is_null() {
                // A mirror may go at any time.
                state.server.remove(&key);
                Ok(())
            } else {
                state.server.delete(&key, uid)
            };
            state.claims.push(Claim::Delete {
                uid: uid.to_string(),
                found,
                removed: done.is_ok(),
            });
            done?;
            Ok(None)
        })
    }

    fn read_node(&self, _: &str) -> ApiResult<Value> {
        self.not_noted(|state| {
            if state.node.refuses_reads {
                return Err(refused(503, "ServiceUnavailable"));
            }
            state.node.reads += 1;
            found(&state.node.object)
        })
    }

    fn create_node(&self, body: &[u8]) -> ApiResult<Value> {
        self.not_noted(|state| {
            if !state.node.object.is_null() {
                return Err(refused(409, "AlreadyExists"));
            }
            state.node.object = serde_json::from_slice(body).expect("json");
            state.node.object["metadata"]["uid"] = NODE_UID.into();
            Ok(state.node.object.clone())
        })
    }

    fn patch_node_status(&self, _: &str, _: PatchFormat, body: &[u8]) -> ApiResult<Value> {
        self.not_noted(|state| {
            if state.node.refuses_reads {
                return Err(refused(503, "ServiceUnavailable"));
            }
            patched(&mut state.node.object, body)
        })
    }

    fn read_lease(&self, _: &str) -> ApiResult<Value> {
        self.not_noted(|state| found(&state.lease))
    }

    fn create_lease(&self, body: &[u8]) -> ApiResult<Value> {
        self.not_noted(|state| {
            state.lease = serde_json::from_slice(body).expect("json");
            state.lease["metadata"]["resourceVersion"] = "1".into();
            Ok(state.lease.clone())
        })
    }

    fn patch_lease(&self, _: &str, body: &[u8]) -> ApiResult<Value> {
        self.not_noted(|state| patched(&mut state.lease, body))
    }

    fn create_event(&self, namespace: &str, body: &[u8]) -> ApiResult<Value> {
        let event: Value = serde_json::from_slice(body).expect("json");
        let name = event["metadata"]["name"].as_str().expect("name").to_owned();
        self.serve(format!("EVENT {namespace}/{name}"), |state| {
            // The clock of a test stands still: names do not tell events apart.
            let reason = event["reason"].as_str().unwrap_or("").to_owned();
            state.events.insert(format!("{name} {reason}"), event);
            Ok(json!({}))
        })
    }

    fn patch_event(&self, namespace: &str, name: &str, body: &[u8]) -> ApiResult<Value> {
        let patch: Value = serde_json::from_slice(body).expect("json");
        self.serve(format!("COUNT {namespace}/{name}"), |state| {
            let mut all = state.events.iter_mut();
            let event = all.find(|(own, _)| own.split(' ').next() == Some(name));
            let (_, event) = event.ok_or_else(|| refused(404, "NotFound"))?;
            event["count"] = patch["count"].clone();
            Ok(json!({}))
        })
    }

    fn create_token(&self, namespace: &str, account: &str, body: &[u8]) -> ApiResult<Value> {
        self.not_noted(|state| {
            let answer = state.stored.token(namespace, account, body);
            let what = match answer {
                Ok(_) => "token given",
                Err(_) => "token refused",
            };
            *state.tally.entry(what).or_default() += 1;
            answer
        })
    }

    fn read_config_map(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("configmaps", namespace, name))
    }

    fn read_secret(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("secrets", namespace, name))
    }

    fn read_persistent_volume_claim(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("claims", namespace, name))
    }

    fn read_persistent_volume(&self, name: &str) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("volumes", "", name))
    }

    fn read_runtime_class(&self, name: &str) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("runtimeclasses", "", name))
    }

    fn list_api_resources(&self, group: &str, version: &str) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("apis", group, version))
    }

    fn read_trust_bundle(&self, version: &str, name: &str) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("bundles", version, name))
    }

    fn list_trust_bundles(
        &self,
        version: &str,
        _: &str,
        labels: &str,
        each: &mut dyn FnMut(Value),
    ) -> ApiResult<CompleteList> {
        let all = self.about_objects(|stored| stored.list("bundles", version))?;
        let selector = LabelSelector::parse(labels);
        let chosen = |bundle: &Value| match &selector {
            Some(selector) => selector.matches(bundle),
            None => labels.is_empty(),
        };
        all.into_iter().filter(chosen).for_each(each);
        Ok(CompleteList::default())
    }

    fn list_services(
        &self,
        namespace: &str,
        each: &mut dyn FnMut(Value),
    ) -> ApiResult<CompleteList> {
        let all = self.about_objects(|stored| stored.list("services", namespace))?;
        all.into_iter().for_each(each);
        Ok(CompleteList::default())
    }

    fn read_service(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("services", namespace, name))
    }

    fn create_csr(&self, _: &[u8]) -> ApiResult<Value> {
        unused()
    }

    fn read_csr(&self, _: &str) -> ApiResult<Value> {
        unused()
    }

    fn read_service_account(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("accounts", namespace, name))
    }

    fn create_pod_certificate_request(
        &self,
        version: &str,
        namespace: &str,
        body: &[u8],
    ) -> ApiResult<Value> {
        let body = serde_json::from_slice(body).expect("json");
        self.about_objects(|stored| stored.create_request(version, namespace, body))
    }

    fn read_pod_certificate_request(
        &self,
        _: &str,
        namespace: &str,
        name: &str,
    ) -> ApiResult<Value> {
        self.about_objects(|stored| stored.read("requests", namespace, name))
    }

    fn review_token(&self, _: &[u8]) -> ApiResult<Value> {
        unused()
    }

    fn review_access(&self, _: &[u8]) -> ApiResult<Value> {
        unused()
    }

    fn close_heartbeat_connections(&self) {}
}
