//! The pods of the simulation.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::tests::world::{IMAGE, NODE};
use crate::{
    api::{PodUid, WallTime, pod::RestartPolicy, received::ReceivedPod},
    logic::static_pod,
};

/// An image that nobody has at first.
pub(super) const LATER: &str = "later:1";

/// The program that says whether a container is ready.
pub(super) const READY: &str = "ready";
/// The program that says whether a container lives.
pub(super) const LIVES: &str = "lives";
/// The command of each preStop hook.
pub(super) const PRE_STOP: [&str; 2] = ["true", "before the stop"];

/// How long a token is good for, seconds: the shortest time that there is.
pub(super) const TOKEN_S: i64 = 600;

/// A Secret that may be missing.
pub(super) const SECRET: &str = "secret";

/// It, in this namespace.
pub(super) fn secret(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"namespace": namespace, "name": SECRET, "uid": "secret", "resourceVersion": "1"},
        "data": {"key": "aGk="},
    })
}

/// A ConfigMap that may be missing.
pub(super) const SETTINGS: &str = "settings";

/// It, in this namespace.
pub(super) fn settings(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": SETTINGS, "uid": "settings", "resourceVersion": "1"},
        "data": {"color": "blue"},
    })
}

/// Less memory than a container of the fake uses.
pub(super) const TOO_LITTLE_MIB: u16 = 2;

/// What a pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Kind {
    /// One container that sleeps.
    Sleeps,
    /// Two of them.
    Pair,
    /// A sidecar, and a container beside it.
    Sidecar,
    /// An init container that ends well, then one that sleeps.
    Init,
    /// An init container that fails again and again.
    InitLoops,
    /// Ends well and is not restarted.
    Job,
    /// Ends badly and is not restarted.
    BadJob,
    /// Sleeps and is not restarted.
    Once,
    /// An init container that ends well, then one that sleeps and is not restarted.
    InitOnce,
    /// Two of those that are not restarted.
    PairOnce,
    /// Sleeps and is restarted if it ends badly.
    OnFailure,
    /// Two of those; one that has ended well stays so, also over a boot.
    PairOnFailure,
    /// Ends badly again and again.
    Loops,
    /// Its image is missing at first.
    Missing,
    /// Its program does not exist.
    NoProgram,
    /// Has hooks.
    Hooks,
    /// May run for half a minute.
    Deadline,
    /// Is ready while a command in it says so.
    Probed,
    /// Is killed and started again while a command in it says that it does not live.
    Live,
    /// Has its environment from a ConfigMap, which may be missing.
    Configured,
    /// Has that as a volume, and one of its own.
    Volumes,
    /// Has its environment and a volume from a Secret, which may be missing.
    WithSecret,
    /// Has a token of its service account. Only pods of the API have one.
    WithToken,
    /// Init containers and sidecars in turns.
    Ordered,
    /// Sleeps, and is restarted where its memory changes. Only pods of the API get other resources.
    Restarted,
    /// Two that sleep, in a pod with resources of its own: the first has none itself.
    Level,
    /// Takes a port of the host. Such pods have names of their own, for it cannot be changed.
    Port,
}

impl Kind {
    pub(super) const ALL: [Self; 25] = [
        Self::Sleeps,
        Self::Pair,
        Self::Sidecar,
        Self::Init,
        Self::InitLoops,
        Self::Job,
        Self::BadJob,
        Self::Once,
        Self::InitOnce,
        Self::PairOnce,
        Self::OnFailure,
        Self::PairOnFailure,
        Self::Loops,
        Self::Missing,
        Self::NoProgram,
        Self::Hooks,
        Self::Deadline,
        Self::Probed,
        Self::Live,
        Self::Configured,
        Self::Volumes,
        Self::WithSecret,
        Self::WithToken,
        Self::Ordered,
        Self::Port,
    ];

    /// Whether the pod can come to an end by itself.
    pub(super) const fn may_end(self) -> bool {
        matches!(
            self,
            Self::Job
                | Self::BadJob
                | Self::Once
                | Self::InitOnce
                | Self::PairOnce
                | Self::OnFailure
                | Self::PairOnFailure
                | Self::Deadline
        )
    }

    /// Whether something of it is restarted for ever.
    pub(super) const fn loops(self) -> bool {
        matches!(self, Self::InitLoops | Self::Loops | Self::NoProgram)
    }

    const fn policy(self) -> &'static str {
        match self {
            Self::Job | Self::BadJob | Self::Once | Self::InitOnce | Self::PairOnce => "Never",
            Self::OnFailure | Self::PairOnFailure => "OnFailure",
            Self::Sleeps
            | Self::Pair
            | Self::Sidecar
            | Self::Init
            | Self::InitLoops
            | Self::Loops
            | Self::Missing
            | Self::NoProgram
            | Self::Hooks
            | Self::Deadline
            | Self::Probed
            | Self::Live
            | Self::Configured
            | Self::Volumes
            | Self::WithSecret
            | Self::WithToken
            | Self::Ordered
            | Self::Restarted
            | Self::Level
            | Self::Port => "Always",
        }
    }

    fn spec(self) -> Value {
        let container =
            |name: &str, words: Value| json!({"name": name, "image": IMAGE, "command": words});
        let exits = |code: u8| json!(["sh", "-c", format!("exit {code}")]);
        let sleeps = || container("c", json!(["sleep"]));
        let mut spec = json!({"containers": [sleeps()], "restartPolicy": self.policy()});
        match self {
            Self::Sleeps | Self::Once | Self::OnFailure => {}
            Self::Restarted => {
                spec["containers"][0]["resizePolicy"] =
                    json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
            }
            Self::Level | Self::Pair | Self::PairOnce | Self::PairOnFailure => {
                spec["containers"] = json!([sleeps(), container("d", json!(["sleep"]))])
            }
            Self::Sidecar => {
                let mut side = container("side", json!(["sleep"]));
                side["restartPolicy"] = json!("Always");
                spec["initContainers"] = json!([side]);
            }
            Self::Init | Self::InitOnce => {
                spec["initContainers"] = json!([container("init", exits(0))])
            }
            Self::InitLoops => spec["initContainers"] = json!([container("init", exits(1))]),
            Self::Job => spec["containers"] = json!([container("c", exits(0))]),
            Self::BadJob => spec["containers"] = json!([container("c", exits(3))]),
            Self::Loops => spec["containers"] = json!([container("c", exits(1))]),
            Self::Missing => spec["containers"][0]["image"] = json!(LATER),
            Self::NoProgram => {
                spec["containers"] = json!([container("c", json!(["/nonexistent"]))])
            }
            Self::Hooks => {
                let hook = |command: &[&str]| json!({"exec": {"command": command}});
                spec["containers"][0]["lifecycle"] =
                    json!({"postStart": hook(&["true"]), "preStop": hook(&PRE_STOP)});
            }
            Self::Port => {
                spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]);
            }
            Self::Probed => {
                spec["containers"][0]["readinessProbe"] =
                    json!({"exec": {"command": [READY]}, "periodSeconds": 5});
            }
            Self::Live => {
                // Calls may take their time.
                spec["containers"][0]["livenessProbe"] = json!({"exec": {"command": [LIVES]},
                    "periodSeconds": 5, "failureThreshold": 2, "timeoutSeconds": 30});
            }
            Self::Volumes => {
                spec["volumes"] = json!([
                    {"name": "settings", "configMap": {"name": SETTINGS}},
                    {"name": "own", "emptyDir": {}},
                ]);
                spec["containers"][0]["volumeMounts"] = json!([
                    {"name": "settings", "mountPath": "/settings"},
                    {"name": "own", "mountPath": "/own"},
                ]);
            }
            Self::WithSecret => {
                let key = json!({"name": SECRET, "key": "key"});
                spec["containers"][0]["env"] =
                    json!([{"name": "KEY", "valueFrom": {"secretKeyRef": key}}]);
                spec["volumes"] = json!([{"name": "kept", "secret": {"secretName": SECRET}}]);
                spec["containers"][0]["volumeMounts"] =
                    json!([{"name": "kept", "mountPath": "/kept"}]);
            }
            Self::WithToken => {
                let token = json!({"serviceAccountToken":
                    {"path": "token", "expirationSeconds": TOKEN_S}});
                spec["volumes"] = json!([{"name": "token", "projected": {"sources": [token]}}]);
                spec["containers"][0]["volumeMounts"] =
                    json!([{"name": "token", "mountPath": "/token"}]);
            }
            Self::Configured => {
                let key = json!({"name": SETTINGS, "key": "color"});
                spec["containers"][0]["env"] =
                    json!([{"name": "COLOR", "valueFrom": {"configMapKeyRef": key}}]);
            }
            Self::Ordered => {
                let sidecar = |name: &str| {
                    let mut side = container(name, json!(["sleep"]));
                    side["restartPolicy"] = json!("Always");
                    side
                };
                spec["initContainers"] = json!([
                    container("init", exits(0)),
                    sidecar("side"),
                    container("after", exits(0)),
                    sidecar("last"),
                ]);
            }
            Self::Deadline => spec["activeDeadlineSeconds"] = json!(30),
        }
        spec
    }
}

/// What a file of the manifest directory says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    pub(super) name: u8,
    /// It names its uid: an edit then changes the pod; otherwise an edit makes another pod of the same name.
    pub(super) own_uid: bool,
    pub(super) kind: Kind,
    pub(super) version: u32,
    pub(super) grace_s: i64,
    /// Its end is announced, with this grace.
    pub(super) deleted_s: Option<i64>,
}

impl Manifest {
    /// The pod as a user makes it in the API, bound to `node`.
    pub(super) fn object(&self, node: &str) -> Value {
        let mut spec = self.kind.spec();
        spec["terminationGracePeriodSeconds"] = json!(self.grace_s);
        spec["nodeName"] = json!(node);
        if matches!(
            self.kind,
            Kind::Sleeps | Kind::Pair | Kind::Sidecar | Kind::Live | Kind::Restarted
        ) {
            let limits = json!({"memory": "16Mi"});
            let requests = json!({"memory": "16Mi", "cpu": "50m"});
            spec["containers"][0]["resources"] = json!({"limits": limits, "requests": requests});
        }
        if self.kind == Kind::Level {
            let limits = json!({"memory": "16Mi"});
            let requests = json!({"memory": "16Mi", "cpu": "50m"});
            let half = json!({"memory": "8Mi"});
            spec["resources"] = json!({"limits": limits, "requests": requests});
            spec["containers"][1]["resources"] = json!({"limits": half, "requests": half});
        }
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("p{}", self.name), "generation": 1,
                "labels": {"version": self.version.to_string()}},
            "spec": spec,
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        })
    }

    /// The pod as its source delivers it.
    pub(super) fn prepare(&self) -> Box<ReceivedPod> {
        let name = format!("pod{}", self.name);
        let mut spec = self.kind.spec();
        spec["terminationGracePeriodSeconds"] = json!(self.grace_s);
        let mut raw = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"version": self.version.to_string()}},
            "spec": spec,
        });
        if self.own_uid {
            raw["metadata"]["uid"] = json!(format!("uid{}", self.name));
        }
        let mut received = static_pod::prepare_static_pod(raw, NODE, "/m/pod.yaml").expect("valid");
        if let Some(grace_s) = self.deleted_s {
            let at = WallTime::from_unix_seconds(1_700_000_000);
            let metadata = &mut received.pod.metadata;
            metadata.deletion_timestamp = Some(at);
            metadata.deletion_grace_period_seconds = Some(grace_s);
            received.raw["metadata"]["deletionTimestamp"] = json!(at);
            received.raw["metadata"]["deletionGracePeriodSeconds"] = json!(grace_s);
        }
        received
    }
}

/// Names of pods of [`Kind::Port`] begin here.
pub(super) const PORT_NAMES: u8 = 240;

/// Whether this is a pod of [`Kind::Port`] with a uid of its own.
pub(super) fn has_port(uid: &PodUid) -> bool {
    let number = uid.strip_prefix("uid").and_then(|n| n.parse::<u8>().ok());
    number.is_some_and(|n| n >= PORT_NAMES)
}

/// Whether a container that ended with `code` stays so.
pub(super) fn stays_ended(policy: RestartPolicy, code: i32) -> bool {
    match policy {
        RestartPolicy::Always => false,
        RestartPolicy::OnFailure => code == 0,
        RestartPolicy::Never => true,
    }
}
