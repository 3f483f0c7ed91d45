//! The cluster of an agent under churn: the test API server, what pods of the API refer to, and a session that stays open.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::world::hex;
use crate::{
    Failure,
    demo::{Client, Double},
    held_port::held_port,
    process::with_word,
    stage::{NODE, Stage},
    wait::until,
};

/// Subnets of this node's pods, one of each family.
pub(super) const SUBNETS: [&str; 2] = ["10.122.7.0/24", "fd00:7a:7::/64"];
/// Objects are as large as those of a cluster, and a node may not read at once what a new pod refers to.
const LIKE_A_REAL_ONE: [&str; 3] = ["--managed-fields", "--graph-lag", "500"];
/// The service account of the namespace is made, the node is ready, by then.
const LIMIT: Duration = Duration::from_secs(60);
/// The claim of all pods that have one.
pub(super) const CLAIM: &str = "data";
/// Bytes of a name that are hashed into that of a copy: as `agent::cluster::objects::files` does it.
const NAME_BYTES: usize = 16;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

/// The control plane, and who talks through the agent.
pub(super) struct Cluster {
    pub(super) client: Client,
    _plane: Double,
    dir: PathBuf,
    session: Option<Session>,
    /// Commands of sessions that began.
    told: PathBuf,
}

/// An open session: its client, and the agent that serves it.
struct Session {
    client: Child,
    agent: Option<u32>,
}

impl Cluster {
    /// Starts it and has the stage's agent join. `ledger` is where containers write, `program` the API server.
    pub(super) fn start(
        stage: &mut Stage,
        ledger: &Path,
        program: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        // Not by the stage's name: what is called by it is the agent's.
        let dir = std::env::temp_dir().join(format!("picolet-plane-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let program = program.map_or_else(Double::build, Ok)?;
        let (plane, client) = Double::start(&program, &dir, &LIKE_A_REAL_ONE)?;
        let files = stage.base.join("claim");
        fs::create_dir_all(&files)?;
        client.post(
            "/api/v1/nodes",
            &json!({"metadata": {"name": NODE}, "spec": {"podCIDR": SUBNETS[0], "podCIDRs": SUBNETS}}),
        )?;
        let claim = client.post(CLAIMS, &claim())?;
        let uid = &claim["metadata"]["uid"];
        client.post("/api/v1/persistentvolumes", &volume(&files, uid))?;
        let bound = json!({"status": {"phase": "Bound"}});
        client.patch(&format!("{CLAIMS}/{CLAIM}/status"), &bound)?;
        until(LIMIT, || {
            client.get("/api/v1/namespaces/default/serviceaccounts/default")
        })?;
        stage.subnet = "";
        // A kubelet of this machine has the usual one.
        stage.flags.push(format!("--port={}", held_port()));
        for (flag, file) in [
            ("--kubeconfig", kubeconfig(stage)),
            ("--bootstrap-kubeconfig", dir.join("bootstrap.kubeconfig")),
        ] {
            stage.flags.push(format!("{flag}={}", file.display()));
        }
        Ok(Self {
            client,
            _plane: plane,
            dir,
            session: None,
            told: ledger.join(".sessions"),
        })
    }

    /// Waits until the node takes pods.
    pub(super) fn ready(&self) -> Result<(), Failure> {
        until(LIMIT, || {
            let node = self.client.get(&format!("/api/v1/nodes/{NODE}"))?;
            let conditions = node["status"]["conditions"].as_array();
            let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
            match conditions.is_some_and(|all| all.iter().any(ready)) {
                true => Ok(()),
                false => Err(format!("the node is not ready: {}", node["status"]).into()),
            }
        })
    }

    /// Takes the node's certificate away, while no agent runs: the next one asks for another.
    pub(super) fn forget_identity(stage: &Stage) -> Result<(), Failure> {
        fs::remove_file(kubeconfig(stage))?;
        Ok(fs::remove_dir_all(stage.base.join("root/pki"))?)
    }

    /// Makes a pod and what it refers to; it is this node's from the start.
    pub(super) fn create(&self, name: &str, mut pod: Value) -> Result<(), Failure> {
        let object = |more: Value| {
            let mut object = json!({"metadata": {"name": name}});
            object["data"] = more;
            object
        };
        self.client
            .post(CONFIG_MAPS, &object(json!({"generation": "0"})))?;
        self.client
            .post(SECRETS, &object(json!({"word": "bm90IHRvbGQ="})))?;
        pod["spec"]["nodeName"] = NODE.into();
        pod["spec"]["automountServiceAccountToken"] = false.into();
        pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        self.client.post(PODS, &pod).map(drop)
    }

    /// Changes what a pod refers to.
    pub(super) fn edit(&self, name: &str, generation: u32) -> Result<(), Failure> {
        let more = json!({"data": {"generation": generation.to_string()}});
        self.client
            .patch(&format!("{CONFIG_MAPS}/{name}"), &more)
            .map(drop)
    }

    /// Asks for more or less for a container: of the processors, in thousandths of one, and of memory, in MiB.
    pub(super) fn resize(
        &self,
        name: &str,
        container: &str,
        (cpu, memory): (u32, u32),
    ) -> Result<(), Failure> {
        let memory = format!("{memory}Mi");
        let resources = json!({"requests": {"cpu": format!("{cpu}m"), "memory": memory}, "limits": {"memory": memory}});
        let more = json!({"spec": {"containers": [{"name": container, "resources": resources}]}});
        self.client
            .patch_items(&format!("{PODS}/{name}/resize"), &more)
            .map(drop)
    }

    /// Asks for a pod's end. One that never began is gone at once.
    pub(super) fn delete(&self, name: &str) -> Result<(), Failure> {
        self.client
            .delete(&format!("{PODS}/{name}"), None)
            .map(drop)
    }

    /// All pods, as the API has them.
    pub(super) fn pods(&self) -> Result<Vec<Value>, Failure> {
        let list = self.client.get("/api/v1/pods")?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Opens a session in a container unless one is open. It may come to nothing: the pod may be about to go.
    pub(super) fn hold_session(&mut self, stage: &Stage, pod: &str) -> Result<(), Failure> {
        if let Some(session) = &mut self.session
            && session.client.try_wait()?.is_none()
        {
            return Ok(());
        }
        let script = "echo >> /ledger/.sessions; read x";
        let client = Command::new(stage.program())
            .args(["exec", "-i", "-c", "idle-hooked", pod, "--"])
            .args(["sh", "-c", script, &session_word()])
            .env("PICOLET_SOCKET", stage.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let agent = stage.agent_pid();
        self.session = Some(Session { client, agent });
        Ok(())
    }

    /// Sessions that began.
    pub(super) fn sessions(&self) -> usize {
        fs::read(&self.told).map_or(0, |lines| lines.len())
    }

    /// What sessions left: a client whose agent is gone, a command whose client is.
    pub(super) fn session_problems(&self, agent: Option<u32>) -> Vec<String> {
        let client = self.session.as_ref().map(|s| s.client.id());
        let lives = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let mut problems = Vec::new();
        let open = client.filter(lives);
        if let Some(pid) = open
            && self.session.as_ref().is_some_and(|s| s.agent != agent)
        {
            problems.push(format!(
                "client {pid} of a session of an agent that is gone"
            ));
        }
        let mut commands = with_word(&session_word());
        commands.retain(|pid| Some(*pid) != client);
        if commands.len() > usize::from(open.is_some()) {
            problems.push(format!("commands {commands:?} of sessions that are over"));
        }
        problems
    }

    /// The beginnings of the names that copies of a pod's objects have.
    pub(super) fn copies(uid: &str, name: &str) -> [String; 4] {
        let digest = |text: &str| hex(&Sha256::digest(text)[..NAME_BYTES]);
        [
            format!("configmap-{}", digest(&format!("default\n{name}"))),
            format!("secret-{}", digest(&format!("default\n{name}"))),
            format!(
                "persistentvolumeclaim-{}",
                digest(&format!("default\n{uid}/{CLAIM}/claim"))
            ),
            format!("token-{}-", digest(uid)),
        ]
    }

    /// Where the control plane's files lie.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(Session { client, .. }) = &mut self.session {
            let _ = client.kill();
            let _ = client.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// What the commands of sessions have among their words.
pub(super) fn session_word() -> String {
    format!("session-of-{}", std::process::id())
}

fn kubeconfig(stage: &Stage) -> PathBuf {
    stage.base.join("kubeconfig")
}

fn volume(files: &Path, claim: &Value) -> Value {
    json!({
        "metadata": {"name": "volume"},
        "spec": {
            "capacity": {"storage": "1Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": "default", "name": CLAIM, "uid": claim},
            "local": {"path": files},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]},
            ]}]}},
        },
    })
}

fn claim() -> Value {
    json!({
        "metadata": {"name": CLAIM},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
            "storageClassName": "",
            "volumeName": "volume",
        },
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_port_is_held_for_one_listener_after_the_other() {
        let address = (Ipv4Addr::UNSPECIFIED, held_port());
        for _ in 0..2 {
            TcpStream::connect(address).expect_err("nobody listens");
            let listener = TcpListener::bind(address).unwrap();
            TcpStream::connect(address).unwrap();
            TcpListener::bind(address).expect_err("somebody listens");
            drop(listener);
        }
    }
}
