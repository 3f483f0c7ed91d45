//! The pods that are wanted, and what happens to them: made, edited, removed; images come and go; shims are killed.

use core::fmt::Write as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    cluster::{self, CLAIM, Cluster},
    ledger::{HOOKED, Ledger},
    rng::Rng,
};
use crate::{
    Failure, image,
    lamps::{self, Lamps},
    process::{kill, with_word},
    stage::{IMAGE, NODE, Stage},
    wait::until,
};

/// After everything that was done the pods must be as wanted by then: a crash loop's first delay is 10 s, a call of a
/// runtime that hangs is given up after 60 s.
const SETTLE_LIMIT: Duration = Duration::from_secs(150);
/// First port of the machine that pods are given.
const FIRST_PORT: u32 = 31_200;
/// Memory limit of each container of a full pod, and of the pod, bytes.
const CONTAINER_MEMORY: u64 = 64 << 20;
pub(super) const POD_MEMORY: u64 = 2 * CONTAINER_MEMORY;
/// Memory limits that a pod of the API is given in turn.
const MEMBER_MEMORY_MIB: [u32; 5] = [96, 192, 64, 128, 80];
/// Handler of the pods at the provider.
const PROVIDER: &str = "lamps";
/// Every container's name, and how often one may have been tried.
const NAMES: [&str; 7] = [
    "idle",
    HOOKED,
    "idle-side",
    "crash",
    "once",
    "once-init",
    "retry",
];
const ATTEMPTS: u32 = 100;
/// What a pod with a hook before its end has time for, seconds: the hook's process has to start.
const MEMBER_GRACE_S: u32 = 10;
/// Ports that are used in turn.
const PORTS: u32 = 500;

/// What a pod is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Init container, sidecar, one PID namespace, every volume that needs work, a port of the machine, limits.
    Full,
    /// One container that stays and one that crashes.
    Plain,
    /// Init container and container that each run once.
    Job,
    /// Fails once, then succeeds.
    Retry,
    /// A program that does not exist.
    Broken,
    /// On the network of the machine.
    HostNetwork,
    /// At a provider: no container.
    Lamp,
    /// Of the API: ConfigMap, Secret, token, claim, probes, hooks.
    Member,
    /// Of the API: variables of a ConfigMap and a Secret; init container and container that each run once.
    Task,
}

impl Kind {
    const fn is_of_api(self) -> bool {
        matches!(self, Self::Member | Self::Task)
    }
}

/// All kinds, those that work hardest more often.
const KINDS: [Kind; 10] = [
    Kind::Full,
    Kind::Full,
    Kind::Plain,
    Kind::Plain,
    Kind::Plain,
    Kind::Job,
    Kind::Retry,
    Kind::Broken,
    Kind::HostNetwork,
    Kind::Lamp,
];
/// Those of a node of a cluster.
const CLUSTER_KINDS: [Kind; 7] = [
    Kind::Member,
    Kind::Member,
    Kind::Member,
    Kind::Task,
    Kind::Task,
    Kind::Plain,
    Kind::Job,
];
/// Those that need no byte of the disk once they run.
const FRUGAL: [Kind; 3] = [Kind::Full, Kind::Plain, Kind::HostNetwork];

/// Where an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On this machine, with a provider.
    Host,
    /// On this machine, in a cluster of this API server; `None`: it is to be built.
    Cluster(Option<PathBuf>),
}

/// The agent, the pods that it should run, and the ledger.
pub(super) struct World {
    pub(super) stage: Stage,
    pub(super) ledger: Ledger,
    /// The provider, if there is one; it lives as long as the world does.
    pub(super) lamps: Option<Lamps>,
    /// What the node is a member of, if anything.
    pub(super) cluster: Option<Cluster>,
    /// Subnets of its pods.
    pub(super) subnets: Vec<&'static str>,
    pub(super) rng: Rng,
    /// Wanted pods by the name in their manifest.
    pub(super) pods: BTreeMap<String, Kind>,
    /// Most pods at a time.
    pub(super) crowd: usize,
    /// Only pods that a full disk does not fail.
    pub(super) frugal: bool,
    /// What was done since the last call of [`Self::told`].
    log: Vec<String>,
    images: Vec<String>,
    next: u32,
    busybox: Vec<u8>,
}

impl World {
    pub(super) fn new(mut stage: Stage, place: Place, rng: Rng) -> Result<Self, Failure> {
        let ledger = Ledger::new(stage.base.join("ledger"))?;
        let (mut cluster, mut lamps, mut subnets) = (None, None, vec![stage.subnet]);
        match place {
            Place::Cluster(apiserver) => {
                cluster = Some(Cluster::start(&mut stage, ledger.dir(), apiserver)?);
                subnets = cluster::SUBNETS.to_vec();
            }
            Place::Host => lamps = Some(provider(&mut stage)?),
        }
        let busybox = crate::install::static_busybox().ok_or("no static busybox")?;
        Ok(Self {
            stage,
            ledger,
            lamps,
            cluster,
            subnets,
            rng,
            pods: BTreeMap::new(),
            crowd: 9,
            frugal: false,
            log: Vec::new(),
            images: Vec::new(),
            next: 0,
            busybox: fs::read(busybox)?,
        })
    }

    /// What was done since the last call.
    pub(super) fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    fn tell(&mut self, what: impl Into<String>) {
        self.log.push(what.into());
    }

    /// Does one thing, as the dice fall.
    pub(super) fn churn(&mut self) -> Result<(), Failure> {
        let many = self.pods.len() >= self.crowd;
        self.hold_session()?;
        match self.rng.below(100) {
            0..=39 if !many => {
                let kinds: &[Kind] = match (self.frugal, &self.cluster) {
                    (true, _) => &FRUGAL,
                    (false, Some(_)) => &CLUSTER_KINDS,
                    (false, None) => &KINDS,
                };
                let kind = self.rng.pick(kinds).copied().unwrap_or(Kind::Plain);
                self.add(kind)
            }
            0..=64 => self.remove_any(),
            65..=79 => self.edit_any(),
            80..=89 => self.kill_shim().map(drop),
            90..=94 if !self.frugal => self.drop_image(),
            95..=97 if !self.frugal => {
                self.remove_newest_image();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Adds a pod of `kind`.
    pub(super) fn add(&mut self, kind: Kind) -> Result<(), Failure> {
        self.next += 1;
        let name = format!("p{}", self.next);
        if kind.is_of_api() {
            let pod = manifest(&name, kind, self.next, self.ledger.dir());
            self.cluster()?.create(&name, pod)?;
        } else {
            self.write(&name, kind)?;
        }
        self.tell(format!("add {name} {kind:?}"));
        self.pods.insert(name, kind);
        Ok(())
    }

    /// Writes a manifest that no earlier one is equal to: a static pod's uid is made of its text.
    fn write(&mut self, name: &str, kind: Kind) -> Result<(), Failure> {
        self.next += 1;
        let manifest = manifest(name, kind, self.next, self.ledger.dir());
        self.stage
            .write_manifest(&format!("{name}.json"), &serde_json::to_string(&manifest)?)
    }

    fn cluster(&self) -> Result<&Cluster, Failure> {
        Ok(self.cluster.as_ref().ok_or("there is no cluster")?)
    }

    /// Keeps a session open in a pod, if there is one that may have it.
    pub(super) fn hold_session(&mut self) -> Result<(), Failure> {
        let pod = self.pods.iter().find(|(_, kind)| **kind == Kind::Member);
        match (&mut self.cluster, pod) {
            (Some(cluster), Some((pod, _))) => cluster.hold_session(&self.stage, pod),
            _ => Ok(()),
        }
    }

    fn any(&mut self) -> Option<(String, Kind)> {
        // A pod that runs once fails for good where a frugal one is tried again.
        let kept = |kind: &Kind| !self.frugal || FRUGAL.contains(kind);
        let pods = self.pods.iter().filter(|(_, kind)| kept(kind));
        let names: Vec<_> = pods.map(|(n, k)| (n.clone(), *k)).collect();
        self.rng.pick(&names).cloned()
    }

    /// Removes the pod that has been wanted for the longest time.
    pub(super) fn remove_oldest(&mut self, kind: Kind) -> Result<Option<String>, Failure> {
        let oldest = self
            .pods
            .iter()
            .filter(|(_, k)| **k == kind)
            .min_by_key(|(name, _)| name[1..].parse::<u32>().unwrap_or(0))
            .map(|(name, _)| name.clone());
        oldest
            .as_ref()
            .map_or(Ok(()), |name| self.remove(name))
            .map(|()| oldest)
    }

    /// Waits until no container of a removed pod runs. The pod itself may still be shown: its files may have to stay.
    pub(super) fn ends(&self, name: &str) -> Result<(), Failure> {
        let name = format!("{name}-{NODE}");
        until(SETTLE_LIMIT, || {
            let pods = self.stage.pods()?;
            let pod = pods
                .iter()
                .find(|pod| pod["metadata"]["name"] == name.as_str());
            let runs = |pod: &&Value| {
                ["initContainerStatuses", "containerStatuses"]
                    .iter()
                    .filter_map(|list| pod["status"][list].as_array())
                    .flatten()
                    .any(|status| !status["state"]["running"].is_null())
            };
            match pod.filter(runs) {
                Some(pod) => Err(format!("{name} has not ended: {}", pod["status"]).into()),
                None => Ok(()),
            }
        })
    }

    fn remove_any(&mut self) -> Result<(), Failure> {
        let any = self.any();
        any.map_or(Ok(()), |(name, _)| self.remove(&name))
    }

    fn remove(&mut self, name: &str) -> Result<(), Failure> {
        self.tell(format!("remove {name}"));
        match self.pods.remove(name) {
            Some(kind) if kind.is_of_api() => self.cluster()?.delete(name),
            _ => self.stage.remove_manifest(&format!("{name}.json")),
        }
    }

    /// Removes every pod.
    pub(super) fn remove_all(&mut self) -> Result<(), Failure> {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        names.iter().try_for_each(|name| self.remove(name))
    }

    pub(super) fn edit_any(&mut self) -> Result<(), Failure> {
        let Some((name, kind)) = self.any() else {
            return Ok(());
        };
        self.tell(format!("edit {name}"));
        if kind.is_of_api() {
            self.next += 1;
            self.cluster()?.edit(&name, self.next)?;
            return self.resize_any();
        }
        self.write(&name, kind)
    }

    /// Gives a pod of the API other resources, if there is one that has any.
    pub(super) fn resize_any(&mut self) -> Result<(), Failure> {
        let members = self.pods.iter().filter(|(_, k)| **k == Kind::Member);
        let names: Vec<_> = members.map(|(name, _)| name.clone()).collect();
        let Some(name) = self.rng.pick(&names).cloned() else {
            return Ok(());
        };
        self.next += 1;
        self.tell(format!("resize {name}"));
        let memory = MEMBER_MEMORY_MIB[self.next as usize % MEMBER_MEMORY_MIB.len()];
        let amounts = (10 + self.next % 90, memory);
        self.cluster()?.resize(&name, HOOKED, amounts)
    }

    /// Drops an archive with a layer of its own.
    pub(super) fn drop_image(&mut self) -> Result<(), Failure> {
        self.next += 1;
        let reference = format!("localhost/chaos:{}", self.next);
        let mut program = self.busybox.clone();
        program.extend(self.next.to_le_bytes());
        self.tell(format!("drop {reference}"));
        let path = self.stage.image_dir().join(format!("{}.tar", self.next));
        image::write(&path, &reference, &program)?;
        self.images.push(reference);
        Ok(())
    }

    /// Removes the image that was dropped last.
    fn remove_newest_image(&mut self) {
        if let Some(reference) = self.images.pop() {
            self.remove_image(&reference);
        }
    }

    /// Removes an image that was dropped and is imported by now, if there is one.
    pub(super) fn remove_known_image(&mut self) {
        let known = self.stage.client(&["get", "images", "-o", "json"]);
        let known = known.unwrap_or_default();
        let is_known = |reference: &String| known.contains(&format!("{reference}\""));
        if let Some(at) = self.images.iter().position(is_known) {
            let reference = self.images.remove(at);
            self.remove_image(&reference);
        }
    }

    /// The archive goes too, else it would be imported again.
    fn remove_image(&mut self, reference: &str) {
        self.tell(format!("remove {reference}"));
        let number = reference.rsplit(':').next().unwrap_or_default();
        let _ = fs::remove_file(self.stage.image_dir().join(format!("{number}.tar")));
        // It may not be imported yet, the agent may be away or die of it.
        let _ = self.stage.client(&["image", "rm", reference]);
    }

    /// Kills the shim of one container that stays; whether there was one.
    pub(super) fn kill_shim(&mut self) -> Result<bool, Failure> {
        let mut shims = self.shims();
        shims.retain(|shim| shim.container.starts_with("idle"));
        let Some(shim) = self.rng.pick(&shims).cloned() else {
            return Ok(false);
        };
        self.strike(&shim)?;
        Ok(true)
    }

    /// Kills the shims of all containers that stay; how many.
    pub(super) fn kill_shims(&mut self) -> Result<usize, Failure> {
        let mut shims = self.shims();
        shims.retain(|shim| shim.container.starts_with("idle"));
        for shim in &shims {
            self.strike(shim)?;
        }
        Ok(shims.len())
    }

    fn strike(&mut self, shim: &Shim) -> Result<(), Failure> {
        self.tell(format!("kill the shim of {} {}", shim.uid, shim.container));
        // Before the deed: whatever follows has a cause.
        self.ledger.strike(&shim.uid, &shim.container);
        // It may have ended just now.
        let _ = kill(shim.pid);
        Ok(())
    }

    /// A shim died by itself, so its container may be started again.
    pub(super) fn lost_shim(&mut self, dir: &Path) {
        let id = dir.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        // The agent may have removed what names it by now: but ids are derived.
        for uid in self.ledger.uids() {
            for name in NAMES {
                if (0..ATTEMPTS).any(|attempt| derived_id(&uid, name, attempt) == id) {
                    self.tell(format!("lost the shim of {uid} {name}"));
                    self.ledger.strike(&uid, name);
                    return;
                }
            }
        }
        // One that died before its container ran: nobody will see another start.
    }

    /// Every shim of this stage.
    pub(super) fn shims(&self) -> Vec<Shim> {
        with_word(&self.stage.mark)
            .into_iter()
            .filter_map(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).into_owned();
                let words: Vec<&str> = line.split('\0').collect();
                if words.get(1) != Some(&"shim") {
                    return None;
                }
                let dir = PathBuf::from(words.get(3)?);
                let record = read_json(&dir.join("record.json"))?;
                Some(Shim {
                    pid,
                    id: dir.file_name()?.to_str()?.to_owned(),
                    uid: record["uid"].as_str()?.to_owned(),
                    container: record["config"]["name"].as_str()?.to_owned(),
                })
            })
            .collect()
    }

    /// Waits until the agent shows what is wanted, and it is so.
    pub(super) fn settle(&self) -> Result<Vec<Value>, Failure> {
        until(SETTLE_LIMIT, || {
            let pods = self.stage.pods()?;
            let kinds = self.shown();
            let wanted: BTreeSet<String> = kinds.keys().cloned().collect();
            let mut shown = BTreeSet::new();
            for pod in &pods {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                if !shown.insert(name.to_owned()) {
                    return Err(format!("{name} is shown twice").into());
                }
            }
            if shown != wanted {
                let missing: Vec<_> = wanted.difference(&shown).collect();
                let more: Vec<_> = shown.difference(&wanted).collect();
                return Err(format!("pods missing {missing:?}, too many {more:?}").into());
            }
            for pod in &pods {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let kind = kinds[name];
                self.as_wanted(pod, kind)
                    .map_err(|why| format!("{name} ({kind:?}): {why}: {}", pod["status"]))?;
            }
            Ok(pods)
        })
    }

    /// Wanted pods by the name that they are shown by.
    pub(super) fn shown(&self) -> BTreeMap<String, Kind> {
        let shown = |(name, kind): (&String, &Kind)| match kind.is_of_api() {
            true => (name.clone(), *kind),
            false => (format!("{name}-{NODE}"), *kind),
        };
        self.pods.iter().map(shown).collect()
    }

    fn as_wanted(&self, pod: &Value, kind: Kind) -> Result<(), String> {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        let wanted = match kind {
            Kind::Full | Kind::Plain | Kind::HostNetwork | Kind::Lamp | Kind::Member => "Running",
            Kind::Job | Kind::Retry | Kind::Task => "Succeeded",
            Kind::Broken => "Failed",
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        // Nobody knows how a container ended whose shim died before it could tell.
        if phase == "Failed" && wanted == "Succeeded" && self.ledger.was_struck(uid) {
            return Ok(());
        }
        if phase != wanted {
            return Err(format!("phase {phase}, not {wanted}"));
        }
        if wanted != "Running" {
            return Ok(());
        }
        let conditions = pod["status"]["conditions"].as_array();
        let is_ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
        if kind == Kind::Member && !conditions.is_some_and(|all| all.iter().any(is_ready)) {
            return Err("it is not ready".into());
        }
        for list in ["initContainers", "containers"] {
            for container in pod["spec"][list].as_array().into_iter().flatten() {
                let name = container["name"].as_str().unwrap_or_default();
                if !name.starts_with("idle") {
                    continue;
                }
                if !status_of(pod, name)["state"]["running"].is_object() {
                    return Err(format!("container {name} does not run"));
                }
                if !self.ledger.lives(uid, name) {
                    return Err(format!("no process of container {name} lives"));
                }
            }
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(lamps) = &mut self.lamps {
            lamps.kill();
            let _ = lamps.file().parent().map(fs::remove_dir_all);
        }
    }
}

/// Starts the provider, and has the agent know of it.
fn provider(stage: &mut Stage) -> Result<Lamps, Failure> {
    // Not by the stage's name: what is called by it is the agent's.
    let dir = std::env::temp_dir().join(format!("picolet-lamps-{}", std::process::id()));
    let lamps = Lamps::start(&dir);
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "picolet": {"providers": {PROVIDER: lamps.socket()}},
    });
    let path = stage.base.join("config.json");
    fs::write(&path, config.to_string())?;
    stage.flags.push(format!("--config={}", path.display()));
    Ok(lamps)
}

/// A shim, and whose.
#[derive(Clone, Debug)]
pub(super) struct Shim {
    pub(super) pid: u32,
    /// Id of the container.
    pub(super) id: String,
    pub(super) uid: String,
    pub(super) container: String,
}

/// Id of a container, or of a sandbox if `name` is empty: as `runtime::runc::record` makes it.
pub(super) fn derived_id(uid: &str, name: &str, attempt: u32) -> String {
    const BYTES: usize = 16;
    hex(&Sha256::digest(format!("{uid}\n{name}\n{attempt}"))[..BYTES])
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The status of a container or init container.
pub(super) fn status_of<'a>(pod: &'a Value, container: &str) -> &'a Value {
    ["containerStatuses", "initContainerStatuses"]
        .iter()
        .filter_map(|list| pod["status"][*list].as_array())
        .flatten()
        .find(|s| s["name"] == container)
        .unwrap_or(&Value::Null)
}

pub(super) fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// What every container does first, and the two ends it can have.
const PROLOGUE: &str = r#"L=/ledger/$POD_UID.$NAME
exec 9>>$L.lock
/ledger/.witness chaos-witness <&9 || echo D >> $L
echo S >> $L
trap 'echo T >> $L; exit 0' TERM
"#;
const IDLE: &str = "while :; do sleep 1000 & wait $!; done";
const FAIL: &str = "sleep 0.2; echo E >> $L; exit 1";
const ONCE: &str = "echo E >> $L; exit 0";
const FAIL_ONCE: &str = "echo E >> $L; test -e /disk/x && exit 0; touch /disk/x; exit 1";

fn container(name: &str, script: &str, more: Value) -> Value {
    let mut mounts = vec![json!({"name": "ledger", "mountPath": "/ledger"})];
    mounts.extend(more["volumeMounts"].as_array().cloned().unwrap_or_default());
    let mut container = json!({
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", format!("NAME={name}\n{PROLOGUE}{script}")],
        "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
    });
    if let Value::Object(more) = more {
        for (key, value) in more {
            container[key] = value;
        }
    }
    container["volumeMounts"] = mounts.into();
    container
}

fn manifest(name: &str, kind: Kind, generation: u32, ledger: &Path) -> Value {
    let mut volumes =
        vec![json!({"name": "ledger", "hostPath": {"path": ledger, "type": "Directory"}})];
    let mut spec = match kind {
        Kind::Full => {
            volumes.extend([
                json!({"name": "disk", "emptyDir": {}}),
                json!({"name": "memory", "emptyDir": {"medium": "Memory"}}),
                json!({"name": "image", "image": {"reference": IMAGE, "pullPolicy": "Never"}}),
                json!({"name": "info", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
            ]);
            let limits = json!({"requests": {"cpu": "10m"}, "limits": {"memory": CONTAINER_MEMORY.to_string()}});
            let mounts = json!([
                {"name": "disk", "mountPath": "/disk"},
                {"name": "memory", "mountPath": "/memory"},
                {"name": "info", "mountPath": "/info"},
                {"name": "image", "mountPath": "/image", "subPath": "bin"},
            ]);
            json!({
                "shareProcessNamespace": true,
                "initContainers": [
                    container("once-init", ONCE, json!({"volumeMounts": mounts, "resources": limits})),
                    container("idle-side", IDLE, json!({"restartPolicy": "Always", "resources": limits})),
                ],
                "containers": [container("idle", IDLE, json!({
                    "volumeMounts": mounts,
                    "ports": [{"containerPort": 8080, "hostPort": FIRST_PORT + generation % PORTS}],
                    "resources": limits,
                }))],
            })
        }
        Kind::Plain => json!({"containers": [
            container("idle", IDLE, json!({})),
            container("crash", FAIL, json!({})),
        ]}),
        Kind::Job => json!({
            "restartPolicy": "Never",
            "initContainers": [container("once-init", ONCE, json!({}))],
            "containers": [container("once", ONCE, json!({}))],
        }),
        Kind::Retry => {
            volumes.push(json!({"name": "disk", "emptyDir": {}}));
            json!({
                "restartPolicy": "OnFailure",
                "containers": [container("retry", FAIL_ONCE, json!({"volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}))],
            })
        }
        Kind::Broken => json!({
            "restartPolicy": "Never",
            "containers": [container("once", "", json!({"command": ["/no/such/program"]}))],
        }),
        Kind::HostNetwork => json!({
            "hostNetwork": true,
            "containers": [container("idle", IDLE, json!({}))],
        }),
        Kind::Lamp => json!({
            "runtimeClassName": PROVIDER,
            "containers": [lamps::lamp("lamp", None)],
        }),
        Kind::Member => {
            volumes.extend([
                json!({"name": "settings", "configMap": {"name": name}}),
                json!({"name": "secret", "secret": {"secretName": name}}),
                json!({"name": "token", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                    {"configMap": {"name": name}},
                ]}}),
                json!({"name": "claim", "persistentVolumeClaim": {"claimName": CLAIM}}),
            ]);
            let check =
                "test -s /settings/generation -a -s /secret/word -a -s /token/token -a -d /claim";
            let probe = json!({
                "exec": {"command": ["sh", "-c", check]},
                "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 30,
            });
            let hook = |letter| {
                let script = format!("echo {letter} >> /ledger/$POD_UID.{HOOKED}");
                json!({"exec": {"command": ["sh", "-c", script]}})
            };
            json!({"containers": [container(HOOKED, IDLE, json!({
                "volumeMounts": [
                    {"name": "settings", "mountPath": "/settings"},
                    {"name": "secret", "mountPath": "/secret"},
                    {"name": "token", "mountPath": "/token"},
                    {"name": "claim", "mountPath": "/claim"},
                ],
                "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": POD_MEMORY.to_string()}},
                "startupProbe": probe, "livenessProbe": probe, "readinessProbe": probe,
                "lifecycle": {"postStart": hook("H"), "preStop": hook("B")},
            }))]})
        }
        Kind::Task => {
            let mut once = container("once", ONCE, json!({}));
            if let Value::Array(env) = &mut once["env"] {
                env.extend([
                    json!({"name": "GENERATION", "valueFrom": {"configMapKeyRef": {"name": name, "key": "generation"}}}),
                    json!({"name": "WORD", "valueFrom": {"secretKeyRef": {"name": name, "key": "word"}}}),
                ]);
            }
            json!({
                "restartPolicy": "Never",
                "initContainers": [container("once-init", ONCE, json!({}))],
                "containers": [once],
            })
        }
    };
    let grace_s = if kind == Kind::Member {
        MEMBER_GRACE_S
    } else {
        2
    };
    spec["terminationGracePeriodSeconds"] = grace_s.into();
    spec["volumes"] = volumes.into();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"chaos/generation": generation.to_string()}},
        "spec": spec,
    })
}
