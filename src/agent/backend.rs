//! The agent as the local server sees it.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{ctx::Shared, images::ImageCommands, node::KUBELET_VERSION};
use crate::api::order::Order;
use crate::api::strict;
use crate::{
    api::{
        Container, ContainerId, Mono, Pod, PodUid,
        cri::{ContainerState, Image},
        pod::CONFIG_SEEN,
        pod_status::ContainerStatus,
    },
    logic::static_pod,
    server::{
        backend::{Backend, Check, Figures, LogTarget, Pieces, Reply, Uptime},
        http::Refusal,
    },
    sys::lane::Lane,
};

/// Annotation of `kubectl` that names a pod's default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Serves the local commands from the agent's own state.
pub(super) struct LocalBackend {
    pub(super) ctx: Shared,
    /// What is done with images.
    pub(super) images: ImageCommands,
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
        let mut uids = self.ctx.pods.configured();
        self.ctx.pods.workers(|table| {
            for handle in table.handles() {
                if let Some(identity) = table.identity(handle)
                    && !table.stage(handle).is_some_and(|s| s.is_finished())
                {
                    uids.push(identity.uid.clone());
                }
            }
        });
        uids.order();
        uids.dedup();
        uids
    }

    /// The pod as a Kubernetes object: what was received, defaults filled in, and the local status.
    fn object(&self, uid: &PodUid) -> Option<Value> {
        let (_, raw) = self.ctx.store.read::<Value>(uid).ok()?;
        let mut pod = static_pod::decode(&raw).ok()?;
        if let Some(status) = self.ctx.pods.status(uid) {
            pod.status = status;
        }
        let mut object = strict::to_value(&pod).ok()?;
        overlay(&mut object, raw);
        object["apiVersion"] = "v1".into();
        object["kind"] = "Pod".into();
        object["status"] = strict::to_value(&pod.status).ok()?;
        self.tell_progress(&pod, &mut object["status"]);
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
        if !self.ctx.pods.is_configured(uid) && pod.metadata.deletion_timestamp.is_none() {
            // Its manifest is gone and it still ends: kubectl's word for that comes from this field.
            meta["deletionTimestamp"] = self.ctx.clock.wall().to_string().into();
        }
        Some(object)
    }

    /// Containers that wait for an image, their own or a volume's, say how far it is. Only here: no status is written for it.
    fn tell_progress(&self, pod: &Pod, status: &mut Value) {
        for list in ["initContainerStatuses", "containerStatuses"] {
            let Some(containers) = status.get_mut(list).and_then(Value::as_array_mut) else {
                continue;
            };
            for container in containers {
                let named = |c: &&Container| container["name"] == *c.name;
                let mut all = pod.spec.all_containers();
                let waits = all.find(named);
                let under_way = waits.and_then(|c| self.ctx.images.progress(pod, c));
                let Some((image, progress)) = under_way else {
                    continue;
                };
                let Some(waiting) = container.pointer_mut("/state/waiting") else {
                    continue;
                };
                if waiting.is_object() {
                    let before = waiting["message"].as_str().unwrap_or("");
                    let gap = if before.is_empty() { "" } else { "; " };
                    let message = format!("{before}{gap}Pulling image \"{image}\": {progress}");
                    waiting["message"] = message.into();
                }
            }
        }
    }

    pub(super) fn find(&self, namespace: &str, name: &str) -> Result<Pod, Refusal> {
        let missing = || Refusal::not_found(format!("pods \"{name}\" not found"));
        // A worker knows its pod's name; only of pods without one must the records be read to find out.
        let may_be = |uid: &PodUid| {
            self.ctx.pods.workers(|table| {
                let identity = table.handle(uid).and_then(|handle| table.identity(handle));
                identity.is_none_or(|i| i.namespace == namespace && i.name == name)
            })
        };
        let candidates = self.uids().into_iter().filter(may_be).filter_map(|uid| {
            let mut pod = self.ctx.pod(&uid).ok()?;
            pod.status = self.ctx.pods.status(&uid).unwrap_or_default();
            Some(pod)
        });
        let mut found: Vec<Pod> = candidates
            .filter(|p| p.metadata.namespace == namespace && p.metadata.name == name)
            .collect();
        // A successor of the same name counts before the pod that still ends.
        found.order_by_key(|p| !self.ctx.pods.is_configured(&p.metadata.uid));
        found.into_iter().next().ok_or_else(missing)
    }

    /// The container asked for, or the default one.
    pub(super) fn container_name(pod: &Pod, asked: &str) -> Result<String, Refusal> {
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

    fn uptime(&self) -> Uptime {
        Uptime {
            since: self.ctx.started_at,
            up: self.ctx.clock.now() - self.ctx.started,
            kubelet_version: KUBELET_VERSION,
        }
    }

    fn running_pods(&self) -> Vec<Value> {
        let pods = self.ctx.view.statuses();
        let running = pods.iter().filter_map(|pod| {
            let containers = pod.containers.iter();
            let containers: Vec<Value> = containers
                .filter(|c| c.state == ContainerState::Running)
                .map(|c| json!({ "name": c.name, "image": c.image, "resources": {} }))
                .collect();
            let meta = json!({ "name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "creationTimestamp": null });
            (!containers.is_empty()).then(|| {
                json!({ "metadata": meta, "spec": { "containers": containers }, "status": {} })
            })
        });
        running.collect()
    }

    fn container_names(&self, namespace: &str, pod: &str) -> Option<Vec<String>> {
        let pod = self.find(namespace, pod).ok()?;
        Some(pod.spec.all_containers().map(|c| c.name.clone()).collect())
    }

    fn configuration(&self) -> Value {
        serde_json::from_str(&self.ctx.cfg.document).unwrap_or_default()
    }

    fn checks(&self) -> Vec<Check> {
        let (health, now) = (self.ctx.loop_health.get(), self.ctx.clock.now());
        let moves = health.is_healthy(self.ctx.cfg.times.sync, now);
        let well = |name| Check {
            name,
            trouble: None,
        };
        vec![
            well("ping"),
            well("log"),
            Check {
                name: "syncloop",
                trouble: (!moves).then(|| "sync Loop took longer than expected".to_owned()),
            },
        ]
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
        let down = ctx.view.down(now);
        let probes = ctx.pods.workers(|table| ctx.probes.figures(table));
        json!({
            "version": crate::VERSION,
            "pid": std::process::id(),
            "relistAgeMs": age_ms(ctx.view.last_relist()),
            "manifestsAgeMs": age_ms(ctx.manifests_read.get()),
            "manifestsIntervalMs": ctx.cfg.times.file_check.as_millis(),
            "down": down.map(|e| e.to_string()),
            "networkDown": ctx.view.network_problem(),
            "pods": ctx.pods.configured().len(),
            "probes": {
                "count": probes.probes.len(),
                "ended": probes.ended(),
                "late": probes.late,
                "commands": probes.commands,
                "connections": probes.connections,
            },
            "apiserver": ctx.cluster.as_ref().map(|cluster| cluster.health(now)),
        })
    }

    fn figures(&self, which: Figures) -> Reply<'_, Pieces> {
        Box::pin(super::metrics::page(&self.ctx, which))
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
            let runtime = self.ctx.view.status(&found.metadata.uid);
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
        self.ctx.view.is_running(id)
    }

    fn images(&self) -> Reply<'_, Vec<Image>> {
        Box::pin(self.images.list())
    }

    fn import_image(
        &self,
        path: PathBuf,
        name: String,
        steps: Option<smol::channel::Sender<Value>>,
    ) -> Reply<'_, Vec<String>> {
        Box::pin(async move {
            let names = self.images.import(path, name, steps).await?;
            // The loop's end is no reason to call the import failed.
            let _ = self.commands.send(Command::ImagesArrived).await;
            Ok(names)
        })
    }

    fn pull_image<'a>(&'a self, reference: &'a str) -> Reply<'a, String> {
        Box::pin(async move {
            let id = self.images.pull(reference).await?;
            // The loop's end is no reason to call the pull failed.
            let _ = self.commands.send(Command::ImagesArrived).await;
            Ok(id)
        })
    }

    fn pull_progress(&self, reference: &str) -> Option<Value> {
        self.images.progress(reference)
    }

    fn remove_image<'a>(&'a self, reference: &'a str) -> Reply<'a, ()> {
        Box::pin(self.images.remove(reference))
    }

    fn prune_images(&self) -> Reply<'_, (Vec<String>, u64)> {
        Box::pin(self.images.prune())
    }

    fn verify_images(&self, repair: bool, steps: smol::channel::Sender<Value>) -> Reply<'_, Value> {
        Box::pin(self.images.verify(repair, steps))
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
