//! The agent as the local server sees it.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{ctx::Shared, image_store};
use crate::api::order::Order;
use crate::api::strict;
use crate::{
    api::{
        ContainerId, Mono, Pod, PodUid,
        cri::{ContainerState, Image},
        pod::CONFIG_SEEN,
        pod_status::ContainerStatus,
    },
    image::Store,
    logic::static_pod,
    runtime::{ExecOptions, ExecSession},
    server::{
        backend::{Backend, ExecRequest, LogTarget, Reply},
        http::Refusal,
    },
    sys::lane::Lane,
};

/// Annotation of `kubectl` that names a pod's default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Serves the local commands from the agent's own state.
pub(super) struct LocalBackend {
    pub(super) ctx: Shared,
    /// Images.
    pub(super) images: Store,
    /// Where requests that only the loop can fulfil go.
    pub(super) commands: smol::channel::Sender<Command>,
}

/// A request to the loop.
pub(super) enum Command {
    /// End the agent; with `all` every pod first. Answered when it is done.
    Stop {
        all: bool,
        done: smol::channel::Sender<()>,
    },
    /// Images were imported.
    ImagesArrived,
}

impl LocalBackend {
    /// UIDs of the pods to show: configured ones and those that still end.
    fn uids(&self) -> Vec<PodUid> {
        let table = self.ctx.table.borrow();
        let mut uids: Vec<PodUid> = self.ctx.config.borrow().keys().cloned().collect();
        for handle in table.handles() {
            if let Some(identity) = table.identity(handle)
                && !table.stage(handle).is_some_and(|s| s.is_finished())
            {
                uids.push(identity.uid.clone());
            }
        }
        uids.order();
        uids.dedup();
        uids
    }

    /// The pod as a Kubernetes object: what was received, defaults filled in, and the local status.
    fn object(&self, uid: &PodUid) -> Option<Value> {
        let (_, raw) = self.ctx.store.read::<Value>(uid).ok()?;
        let mut pod = static_pod::decode(&raw).ok()?;
        if let Some(status) = self.ctx.statuses.borrow().get(uid) {
            pod.status = status.clone();
        }
        let mut object = strict::to_value(&pod).ok()?;
        overlay(&mut object, raw);
        object["apiVersion"] = "v1".into();
        object["kind"] = "Pod".into();
        object["status"] = strict::to_value(&pod.status).ok()?;
        let seen = pod
            .metadata
            .annotations
            .get(CONFIG_SEEN)
            .and_then(|t| crate::api::Wall::parse(t));
        let meta = &mut object["metadata"];
        if pod.metadata.creation_timestamp.is_none()
            && let Some(seen) = seen
        {
            meta["creationTimestamp"] = seen.to_string().into();
        }
        if !self.ctx.config.borrow().contains_key(uid) && pod.metadata.deletion_timestamp.is_none()
        {
            // Its manifest is gone and it still ends: kubectl's word for that comes from this field.
            meta["deletionTimestamp"] = self.ctx.clock.wall().to_string().into();
        }
        Some(object)
    }

    fn find(&self, namespace: &str, name: &str) -> Result<Pod, Refusal> {
        let missing = || Refusal::not_found(format!("pods \"{name}\" not found"));
        // A worker knows its pod's name; only of pods without one must the records be read to find out.
        let may_be = |uid: &PodUid| {
            let table = self.ctx.table.borrow();
            let identity = table.handle(uid).and_then(|handle| table.identity(handle));
            identity.is_none_or(|i| i.namespace == namespace && i.name == name)
        };
        let candidates = self.uids().into_iter().filter(may_be).filter_map(|uid| {
            let mut pod = self.ctx.pod(&uid).ok()?;
            pod.status = self
                .ctx
                .statuses
                .borrow()
                .get(&uid)
                .cloned()
                .unwrap_or_default();
            Some(pod)
        });
        let mut found: Vec<Pod> = candidates
            .filter(|p| p.metadata.namespace == namespace && p.metadata.name == name)
            .collect();
        // A successor of the same name counts before the pod that still ends.
        let config = self.ctx.config.borrow();
        found.order_by_key(|p| !config.contains_key(&p.metadata.uid));
        found.into_iter().next().ok_or_else(missing)
    }

    /// The container asked for, or the default one.
    fn container_name(pod: &Pod, asked: &str) -> Result<String, Refusal> {
        if !asked.is_empty() {
            if pod.spec.all_containers().any(|c| c.name == asked) {
                return Ok(asked.to_owned());
            }
            return Err(Refusal::bad(format!(
                "container {asked} is not valid for pod {}",
                pod.metadata.name
            )));
        }
        let annotated = pod.metadata.annotations.get(DEFAULT_CONTAINER);
        let named = annotated.filter(|name| pod.spec.all_containers().any(|c| c.name == **name));
        let first = pod.spec.containers.first().map(|c| &c.name);
        named
            .or(first)
            .cloned()
            .ok_or_else(|| Refusal::bad("the pod has no containers"))
    }
}

/// Lays `over` onto `base`: objects key by key, lists of one length item by item, everything else is replaced.
fn overlay(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(base), Value::Array(over)) if base.len() == over.len() => {
            for (base, over) in base.iter_mut().zip(over) {
                overlay(base, over);
            }
        }
        (base, over) => *base = over,
    }
}

fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = &pod.status;
    status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .chain(&status.ephemeral_container_statuses)
        .find(|c| c.name == container)
}

/// Which instance's log is meant (LOG-05).
fn instance_for_log(
    status: &ContainerStatus,
    pod: &str,
    previous: bool,
) -> Result<ContainerId, Refusal> {
    let bare = |id: &str| ContainerId::from(id.split_once("://").map_or(id, |(_, id)| id));
    let name = &status.name;
    let last = status
        .last_state
        .terminated
        .as_ref()
        .filter(|t| !t.container_id.is_empty());
    if previous {
        return last.map(|t| bare(&t.container_id)).ok_or_else(|| {
            Refusal::bad(format!(
                "previous terminated container \"{name}\" in pod \"{pod}\" not found"
            ))
        });
    }
    if status.state.running.is_some() {
        return Ok(bare(&status.container_id));
    }
    if let Some(ended) = &status.state.terminated {
        let own = Some(&ended.container_id).filter(|id| !id.is_empty());
        let id = own.or_else(|| last.map(|t| &t.container_id));
        return id.map(|id| bare(id)).ok_or_else(|| {
            Refusal::bad(format!(
                "container \"{name}\" in pod \"{pod}\" is terminated"
            ))
        });
    }
    if let Some(last) = last {
        return Ok(bare(&last.container_id));
    }
    let waiting = status.state.waiting.as_ref();
    let reason = waiting.map_or("ContainerCreating", |w| w.reason.as_str());
    Err(Refusal::bad(match reason {
        "ErrImagePull" => {
            format!(
                "container \"{name}\" in pod \"{pod}\" is waiting to start: image can't be pulled"
            )
        }
        "ImagePullBackOff" => {
            format!(
                "container \"{name}\" in pod \"{pod}\" is waiting to start: trying and failing to pull image"
            )
        }
        _ => format!("container \"{name}\" in pod \"{pod}\" is waiting to start: {reason}"),
    }))
}

impl Backend for LocalBackend {
    fn disk_lane(&self) -> &Lane {
        &self.ctx.disk
    }

    fn pods(&self, namespace: Option<&str>) -> Reply<'_, Vec<Value>> {
        // All of them stand in memory whole until the answer is written.
        self.ctx.heap_used.set(true);
        let mut pods: Vec<Value> = self
            .uids()
            .iter()
            .filter_map(|uid| self.object(uid))
            .collect();
        let text = |pod: &Value, key: &str| pod["metadata"][key].as_str().unwrap_or("").to_owned();
        if let Some(namespace) = namespace {
            pods.retain(|p| text(p, "namespace") == namespace);
        }
        pods.order_by_key(|p| (text(p, "namespace"), text(p, "name")));
        Box::pin(async { Ok(pods) })
    }

    fn events(&self, namespace: Option<&str>) -> Vec<Value> {
        let recorder = self.ctx.recorder.borrow();
        let mut events: Vec<Value> = recorder
            .events()
            .map(|event| event.object(&self.ctx.node.name))
            .filter(|e| namespace.is_none_or(|n| e["metadata"]["namespace"] == n))
            .collect();
        // RFC 3339 in UTC sorts as text.
        let last = |e: &Value| e["lastTimestamp"].as_str().unwrap_or("").to_owned();
        events.order_by_key(last);
        events
    }

    fn config_maps(&self, namespace: Option<&str>) -> Vec<Value> {
        // Theirs may be megabytes.
        self.ctx.heap_used.set(true);
        self.ctx.objects.borrow().config_maps_shown(namespace)
    }

    fn secrets(&self, namespace: Option<&str>) -> Vec<Value> {
        self.ctx.objects.borrow().secrets_shown(namespace)
    }

    fn dump(&self) -> String {
        let clock = &self.ctx.clock;
        self.ctx.heap_used.set(true);
        self.ctx.ring.borrow().dump(clock.now(), clock.wall())
    }

    fn health(&self) -> Value {
        let ctx = &*self.ctx;
        let now = ctx.clock.now();
        let age_ms = |at: Option<Mono>| at.map(|at| (now - at).as_millis());
        let pleg = ctx.pleg.borrow();
        let down = ctx.gate.borrow().check(pleg.healthy(now), now).err();
        json!({
            "version": crate::VERSION,
            "pid": std::process::id(),
            "relistAgeMs": age_ms(pleg.last_relist()),
            "manifestsAgeMs": age_ms(ctx.manifests_read.get()),
            "manifestsIntervalMs": ctx.cfg.times.file_check.as_millis(),
            "down": down.map(|e| e.to_string()),
            "networkDown": ctx.network_problem(),
            "pods": ctx.config.borrow().len(),
        })
    }

    fn node(&self) -> Reply<'_, Value> {
        Box::pin(async { Ok(super::node::object(&self.ctx).await) })
    }

    fn log_target<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        previous: bool,
    ) -> Reply<'a, LogTarget> {
        Box::pin(async move {
            let found = self.find(namespace, pod)?;
            let name = Self::container_name(&found, container)?;
            let status = status_of(&found, &name).ok_or_else(|| {
                Refusal::bad(format!(
                    "container \"{name}\" in pod \"{pod}\" is not available"
                ))
            })?;
            let id = instance_for_log(status, pod, previous)?;
            let runtime = self.ctx.runtime_status(&found.metadata.uid);
            let instance = runtime.containers.iter().find(|c| c.id == id);
            let path = instance
                .map(|c| PathBuf::from(&c.log_path))
                .ok_or_else(|| {
                    Refusal::not_found(format!(
                        "unable to retrieve container logs for {}",
                        status.container_id
                    ))
                })?;
            Ok(LogTarget { path, id })
        })
    }

    fn is_running(&self, id: &ContainerId) -> bool {
        let cache = self.ctx.cache.borrow();
        let mut all = cache
            .iter()
            .filter_map(|(_, status)| status.as_ref().ok())
            .flat_map(|pod| &pod.containers);
        all.any(|c| c.id == *id && c.state == ContainerState::Running)
    }

    fn exec(&self, request: ExecRequest) -> Reply<'_, Box<dyn ExecSession>> {
        Box::pin(async move {
            let pod = self.find(&request.namespace, &request.pod)?;
            let name = Self::container_name(&pod, &request.container)?;
            let runtime = self.ctx.runtime_status(&pod.metadata.uid);
            let running = runtime
                .instances(&name)
                .find(|c| c.state == ContainerState::Running);
            let id = running.map(|c| c.id.clone()).ok_or_else(|| {
                Refusal::bad(format!(
                    "unable to upgrade connection: container not found (\"{name}\")"
                ))
            })?;
            let options = ExecOptions {
                command: request.command,
                stdin: request.stdin,
                tty: request.tty,
            };
            self.ctx
                .runtime
                .open_exec(&id, &options)
                .await
                .map_err(internal)
        })
    }

    fn images(&self) -> Reply<'_, Vec<Image>> {
        Box::pin(async { self.ctx.runtime.list_images().await.map_err(internal) })
    }

    fn import_image(
        &self,
        path: PathBuf,
        name: String,
        steps: Option<smol::channel::Sender<Value>>,
    ) -> Reply<'_, Vec<String>> {
        Box::pin(async move {
            let names = image_store::import(&self.ctx, &self.images, path, name, steps).await?;
            // The loop's end is no reason to call the import failed.
            let _ = self.commands.send(Command::ImagesArrived).await;
            Ok(names)
        })
    }

    fn remove_image<'a>(&'a self, reference: &'a str) -> Reply<'a, ()> {
        Box::pin(async move {
            let found = self
                .ctx
                .runtime
                .image_status(reference)
                .await
                .map_err(internal)?;
            let image = found
                .ok_or_else(|| Refusal::not_found(format!("images \"{reference}\" not found")))?;
            self.ctx
                .runtime
                .remove_image(&image.id)
                .await
                .map_err(|e| Refusal::new(409, e.to_string()))
        })
    }

    fn prune_images(&self) -> Reply<'_, (Vec<String>, u64)> {
        Box::pin(async { image_store::prune(&self.ctx, &self.images).await })
    }

    fn stop(&self, all: bool) -> Reply<'_, ()> {
        Box::pin(async move {
            let (done, finished) = smol::channel::bounded(1);
            let gone = || Refusal::new(503, "the agent is ending");
            self.commands
                .send(Command::Stop { all, done })
                .await
                .map_err(|_| gone())?;
            // The loop's end closes the channel, which is an answer too.
            let _ = finished.recv().await;
            Ok(())
        })
    }
}

fn internal(e: crate::runtime::RuntimeError) -> Refusal {
    Refusal::new(500, e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_keeps_what_is_not_modelled() {
        let mut base = json!({"spec": {"restartPolicy": "Always", "containers": [{"name": "a", "imagePullPolicy": "Always"}]}});
        overlay(
            &mut base,
            json!({"spec": {"futureField": 1, "containers": [{"name": "a", "x": 2}]}}),
        );
        assert_eq!(
            base,
            json!({"spec": {"restartPolicy": "Always", "futureField": 1,
                "containers": [{"name": "a", "imagePullPolicy": "Always", "x": 2}]}})
        );
    }

    #[test]
    fn which_instance_is_read() {
        // LOG-05
        let status = |text: &str| serde_json::from_str::<ContainerStatus>(text).expect("status");
        let last = r#""lastState":{"terminated":{"exitCode":1,"containerID":"picolet://old"}}"#;
        for (name, text, previous, expected) in [
            (
                "running",
                r#"{"containerID":"picolet://new","state":{"running":{}}}"#.to_owned(),
                false,
                Some("new"),
            ),
            (
                "previous",
                format!(r#"{{"containerID":"picolet://new","state":{{"running":{{}}}},{last}}}"#),
                true,
                Some("old"),
            ),
            (
                "no previous",
                r#"{"containerID":"picolet://new","state":{"running":{}}}"#.to_owned(),
                true,
                None,
            ),
            (
                "terminated",
                r#"{"state":{"terminated":{"exitCode":0,"containerID":"picolet://end"}}}"#
                    .to_owned(),
                false,
                Some("end"),
            ),
            (
                "crash loop",
                format!(r#"{{"state":{{"waiting":{{"reason":"CrashLoopBackOff"}}}},{last}}}"#),
                false,
                Some("old"),
            ),
            (
                "waiting",
                r#"{"state":{"waiting":{"reason":"ContainerCreating"}}}"#.to_owned(),
                false,
                None,
            ),
        ] {
            let found = instance_for_log(&status(&text), "p", previous);
            assert_eq!(
                found.ok().as_ref().map(ContainerId::as_str),
                expected,
                "{name}"
            );
        }
    }
}
