//! What is on the machine beside what the agent shows: nothing may be there that no pod owns, and nothing twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;
use sha2::{Digest as _, Sha512};

use super::{
    cluster::Cluster,
    world::{Kind, POD_MEMORY, World, derived_id, hex, read_json},
};
use crate::{
    Failure,
    process::{find, output, pids, with_word},
    wait::until_each,
};

/// What pods leave goes with the agent's collection of garbage, once a minute.
const LIMIT: Duration = Duration::from_secs(300);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// Sandboxes of one pod whose chains are looked for.
const ATTEMPTS: u32 = 5;

/// Waits until nothing is wrong; the error says what stays wrong. What containers witnessed is final at once.
pub(super) fn audit(world: &World) -> Result<(), Failure> {
    look(world, true)
}

/// [`audit`] without the logs of pods that are gone, and copies of their objects: what a crash has left goes once a minute.
pub(super) fn audit_briefly(world: &World) -> Result<(), Failure> {
    look(world, false)
}

fn look(world: &World, whole: bool) -> Result<(), Failure> {
    let witnessed = world.ledger.problems();
    if !witnessed.is_empty() {
        return Err(witnessed.join("\n").into());
    }
    until_each(LOOK, LIMIT, || {
        let pods = world.settle()?;
        let problems = Audit::of(world, &pods, whole)?.problems;
        if problems.is_empty() {
            Ok(())
        } else {
            Err(format!("{} problems:\n{}", problems.len(), problems.join("\n")).into())
        }
    })
}

/// What one look finds wrong, `pods` being what the agent showed last.
pub(super) fn problems(world: &World, pods: &[Value]) -> Result<Vec<String>, Failure> {
    let mut problems = world.ledger.problems();
    problems.extend(Audit::of(world, pods, true)?.problems);
    Ok(problems)
}

/// A sandbox that is ready and has a network of its own.
pub(super) fn sandbox_with_network(world: &World, pods: &[Value]) -> Result<String, Failure> {
    let ready = Audit::of(world, pods, false)?.ready;
    let own = ready.into_iter().find(|(_, own)| *own);
    Ok(own.ok_or("no sandbox is ready")?.0)
}

/// A chain that the last looked-for sandbox of a pod would have had, and what is said of it.
pub(super) fn chain_of_old_sandbox(world: &World, uid: &str) -> (String, String) {
    let id = derived_id(uid, "", ATTEMPTS - 1);
    let [_, chain] = chains(&format!("picolet-{}", world.stage.mark), &id);
    let words = format!("chain {chain} of sandbox {id}");
    (chain, words)
}

/// What is there, as far as one look needs it.
struct Audit<'a> {
    world: &'a World,
    /// UIDs of all pods that are shown, and whether they have ended.
    pods: BTreeMap<String, bool>,
    /// Those of them that are no containers.
    lamps: BTreeSet<String>,
    /// By UID, what the one container of a pod of the API asks for.
    asked: BTreeMap<String, Asked>,
    /// Ids of running containers.
    running: BTreeSet<String>,
    /// Sandboxes that are ready: id, and whether they have a network of their own.
    ready: BTreeMap<String, bool>,
    cgroups: Vec<PathBuf>,
    problems: Vec<String>,
}

impl<'a> Audit<'a> {
    fn of(world: &'a World, pods: &[Value], whole: bool) -> Result<Self, Failure> {
        let mut audit = Audit {
            world,
            pods: BTreeMap::new(),
            lamps: BTreeSet::new(),
            asked: BTreeMap::new(),
            running: BTreeSet::new(),
            ready: BTreeMap::new(),
            cgroups: world.stage.cgroups(),
            problems: Vec::new(),
        };
        let kinds = world.shown();
        for pod in pods {
            let phase = pod["status"]["phase"].as_str().unwrap_or_default();
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
            let ended = matches!(phase, "Succeeded" | "Failed");
            audit.pods.insert(uid.to_owned(), ended);
            if pod["spec"]["runtimeClassName"].is_string() {
                audit.lamps.insert(uid.to_owned());
                continue;
            }
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            if kinds.get(name) == Some(&Kind::Member) {
                let asked = Asked::of(&pod["spec"]["containers"][0]["resources"]);
                audit.asked.insert(uid.to_owned(), asked);
            }
            for list in ["initContainerStatuses", "containerStatuses"] {
                for status in pod["status"][list].as_array().into_iter().flatten() {
                    if status["state"]["running"].is_object()
                        && let Some(id) = status["containerID"].as_str()
                    {
                        let id = id.rsplit('/').next().unwrap_or_default();
                        audit.running.insert(id.to_owned());
                    }
                }
            }
        }
        audit.lamps();
        audit.sandboxes();
        audit.containers();
        audit.mounts();
        audit.network()?;
        audit.namespaces();
        audit.cgroups();
        audit.processes();
        audit.directories();
        audit.images();
        audit.temporary();
        audit.cluster(pods)?;
        if whole {
            audit.logs();
            audit.copies(pods);
        }
        Ok(audit)
    }

    fn say(&mut self, what: impl Into<String>) {
        self.problems.push(what.into());
    }

    fn run(&self) -> &'a Path {
        &self.world.stage.run
    }

    fn root(&self) -> PathBuf {
        self.world.stage.base.join("root")
    }

    /// The provider has the pods that are shown, and no others.
    fn lamps(&mut self) {
        let lit = self.world.lamps.as_ref().map(|lamps| lamps.pods());
        let lit: BTreeSet<String> = lit.into_iter().flatten().map(|p| p.0).collect();
        for uid in lit.symmetric_difference(&self.lamps.clone()) {
            self.say(format!(
                "the provider and the agent do not agree on pod {uid}"
            ));
        }
    }

    /// Each pod that has not ended has one sandbox; what is left of others is stopped.
    fn sandboxes(&mut self) {
        let mut count: BTreeMap<String, usize> = BTreeMap::new();
        for id in names(&self.run().join("sandboxes")) {
            let dir = self.run().join("sandboxes").join(&id);
            let record = read_json(&dir.join("record.json")).unwrap_or_default();
            let uid = record["config"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            match (record["phase"].as_str(), self.pods.get(&uid)) {
                (_, None) => self.say(format!("sandbox {id} of pod {uid:?}, which is gone")),
                (Some("Ready"), Some(false)) => {
                    *count.entry(uid).or_default() += 1;
                    let own = record["config"]["namespaces"]["network"] == "Pod";
                    self.ready.insert(id, own);
                }
                (Some("Stopped"), Some(_)) => {}
                (phase, Some(ended)) => self.say(format!(
                    "sandbox {id} of pod {uid} is {phase:?}, the pod {}",
                    if *ended { "has ended" } else { "runs" }
                )),
            }
        }
        for (uid, ended) in self.pods.clone() {
            let found = count.get(&uid).copied().unwrap_or(0);
            if found != usize::from(!ended && !self.lamps.contains(&uid)) {
                self.say(format!("pod {uid} has {found} sandboxes"));
            }
        }
    }

    /// Containers' directories belong to pods, and no two of one container live.
    fn containers(&mut self) {
        let mut living: BTreeMap<(String, String), usize> = BTreeMap::new();
        for id in names(&self.run().join("containers")) {
            let dir = self.run().join("containers").join(&id);
            let record = read_json(&dir.join("record.json")).unwrap_or_default();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (uid, name) = (text(&record["uid"]), text(&record["config"]["name"]));
            if !self.pods.contains_key(&uid) {
                self.say(format!(
                    "container {id} ({name}) of pod {uid:?}, which is gone"
                ));
            }
            if self.lives(&text(&record["cgroup"])) {
                *living.entry((uid, name)).or_default() += 1;
            }
        }
        for ((uid, name), count) in living {
            if count > 1 {
                self.say(format!("{count} instances of {name} of pod {uid} live"));
            }
        }
        let known = names(&self.run().join("containers"));
        for id in names(&self.root().join("containers")) {
            if !known.contains(&id) {
                self.say(format!("writable layer {id} belongs to no container"));
            }
        }
        for id in names(&self.run().join("runtime")) {
            if !self.running.contains(&id) {
                self.say(format!("the OCI runtime knows {id}, which does not run"));
            }
        }
    }

    /// Whether a cgroup, given within its hierarchy, has a process.
    fn lives(&self, cgroup: &str) -> bool {
        let has = |dir: &PathBuf| {
            fs::read_to_string(dir.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty())
        };
        !cgroup.is_empty()
            && self
                .cgroups
                .iter()
                .any(|dir| dir.to_string_lossy().ends_with(cgroup) && has(dir))
    }

    /// Every mount has an owner that lives; none is there twice, but for the agent's directories on themselves.
    fn mounts(&mut self) {
        let (run, root) = (self.run().to_path_buf(), self.root());
        let mut seen = BTreeSet::new();
        for point in self.world.stage.mounts() {
            let path = Path::new(&point);
            if path == run || path == root {
                continue;
            }
            let owned = if let Ok(inner) = path.strip_prefix(&run) {
                let parts: Vec<_> = inner.iter().filter_map(|p| p.to_str()).collect();
                match parts.as_slice() {
                    ["sandboxes", id, "shm"] | ["sandboxes", id, "ns", _] => {
                        self.ready.contains_key(*id)
                    }
                    ["containers", id, "rootfs"] | ["containers", id, "volumes", _] => {
                        self.running.contains(*id)
                    }
                    _ => false,
                }
            } else if let Ok(inner) = path.strip_prefix(root.join("pods")) {
                let uid = inner.iter().next().and_then(|p| p.to_str());
                uid.is_some_and(|uid| self.pods.get(uid) == Some(&false))
            } else {
                false
            };
            if !owned {
                self.say(format!("mount {point} belongs to nothing that runs"));
            }
            if !seen.insert(point.clone()) {
                self.say(format!("mount {point} is there twice"));
            }
        }
        let ready: Vec<(String, bool)> = self
            .ready
            .iter()
            .map(|(id, own)| (id.clone(), *own))
            .collect();
        for (id, own) in ready {
            let pins = ["net", "uts", "ipc"]
                .map(|kind| run.join("sandboxes").join(&id).join("ns").join(kind));
            for pin in pins.iter().filter(|pin| own || pin.ends_with("ipc")) {
                if !seen.contains(&*pin.to_string_lossy()) {
                    self.say(format!("namespace {} is not pinned", pin.display()));
                }
            }
        }
    }

    /// Interfaces, addresses, attachments and packet filter rules of sandboxes that are ready, and no others.
    fn network(&mut self) -> Result<(), Failure> {
        let mark = self.world.stage.mark.clone();
        let own: BTreeSet<String> = self
            .ready
            .iter()
            .filter(|(_, own)| **own)
            .map(|(id, _)| id.clone())
            .collect();
        let ports = names(&Path::new("/sys/class/net").join(&mark).join("brif"));
        if ports.len() != own.len() {
            self.say(format!(
                "the bridge has {} interfaces for {} sandboxes",
                ports.len(),
                own.len()
            ));
        }
        let attachments = self.run().join("cni/attachments");
        let mut lent = BTreeMap::new();
        for name in names(&attachments) {
            let Some(id) = name.strip_suffix(".json") else {
                continue;
            };
            if !own.contains(id) {
                self.say(format!("attachment of sandbox {id}, which is gone"));
            }
            let attachment = read_json(&attachments.join(&name)).unwrap_or_default();
            let ips = attachment["result"]["ips"].as_array();
            let address = ips.and_then(|ips| ips.first()?["address"].as_str());
            let Some(address) = address else {
                self.say(format!("sandbox {id} has no address"));
                continue;
            };
            if let Some(other) = lent.insert(address.to_owned(), id.to_owned()) {
                self.say(format!("address {address} is lent to {id} and {other}"));
            }
        }
        for id in &own {
            if !attachments.join(format!("{id}.json")).exists() {
                self.say(format!("sandbox {id} has no attachment"));
            }
        }
        let chain = format!("PICOLET-MASQ-{mark}");
        // Of the whole subnet: made before the first pod, and kept.
        let mut common = BTreeSet::new();
        for subnet in &self.world.subnets {
            let six = subnet.contains(':');
            let multicast = if six { "ff00::/8" } else { "224.0.0.0/4" };
            common.extend([
                format!("-A POSTROUTING -s {subnet} -j {chain}"),
                format!("-A {chain} -d {subnet} -j RETURN"),
                format!("-A {chain} ! -d {multicast} -j MASQUERADE"),
            ]);
        }
        let rules = self.world.stage.rules();
        for rule in &common {
            let found = rules.iter().filter(|r| *r == rule).count();
            if found != 1 {
                self.say(format!("rule {rule} is there {found} times"));
            }
        }
        let own_chain = format!(":{chain} ");
        for rule in rules {
            if common.contains(&rule) || rule.starts_with(&own_chain) {
                continue;
            }
            let id = rule
                .split("id: \\\"")
                .nth(1)
                .and_then(|r| r.split('\\').next());
            if id.is_none_or(|id| !own.contains(id)) {
                self.say(format!("rule of a sandbox that is gone: {rule}"));
            }
        }
        let mut saved = String::new();
        for save in ["iptables-save", "ip6tables-save"] {
            // A kernel without a family has no rules of it.
            let said = find(save).map(|s| output(Command::new(s).args(["-t", "nat"])));
            saved += &said.and_then(Result::ok).unwrap_or_default();
        }
        for uid in self.world.ledger.uids() {
            for attempt in 0..ATTEMPTS {
                let id = derived_id(&uid, "", attempt);
                if own.contains(&id) {
                    continue;
                }
                for chain in chains(&format!("picolet-{mark}"), &id) {
                    if saved.contains(&chain) {
                        self.say(format!("chain {chain} of sandbox {id}, which is gone"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Who is in the network of a sandbox is in the cgroup of its pod, and the other way round.
    fn namespaces(&mut self) {
        let sandboxes = self.run().join("sandboxes");
        let mut networks = BTreeMap::new();
        for (id, own) in &self.ready {
            let dir = sandboxes.join(id);
            let uid = read_json(&dir.join("record.json")).unwrap_or_default()["config"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            if *own && let Ok(pin) = fs::metadata(dir.join("ns/net")) {
                networks.insert(format!("net:[{}]", pin.ino()), (id.clone(), uid));
            }
        }
        for pid in pids() {
            let dir = PathBuf::from(format!("/proc/{pid}"));
            let (Ok(network), Ok(groups)) = (
                fs::read_link(dir.join("ns/net")),
                fs::read_to_string(dir.join("cgroup")),
            ) else {
                // It has ended meanwhile.
                continue;
            };
            let network = network.to_string_lossy().into_owned();
            match networks.get(&network) {
                Some((id, uid)) if !groups.contains(&format!("/pod{uid}")) => {
                    self.say(format!("process {pid} in the network of sandbox {id}"));
                }
                Some(_) => {}
                None => {
                    for (id, uid) in networks.values() {
                        // The init of a PID namespace needs no network.
                        if groups.contains(&format!("/pod{uid}/")) && !groups.contains(id) {
                            self.say(format!("process {pid} outside of the network of {id}"));
                        }
                    }
                }
            }
        }
    }

    /// Cgroups of pods that run, with the limits that were asked for, and of what runs in them.
    fn cgroups(&mut self) {
        for dir in self.cgroups.clone() {
            let path = dir.to_string_lossy().into_owned();
            let Some((_, inner)) = path.split_once("/pod") else {
                continue;
            };
            // The name of the directory above may begin with the same letters.
            let inner = inner.rsplit("/pod").next().unwrap_or(inner);
            let mut parts = inner.split('/');
            let uid = parts.next().unwrap_or_default();
            if self.pods.get(uid) != Some(&false) {
                self.say(format!("cgroup {path} of a pod that does not run"));
            }
            match parts.next() {
                Some(id) if !self.running.contains(id) && !self.ready.contains_key(id) => {
                    self.say(format!("cgroup {path} of a container that does not run"));
                }
                within => {
                    let asked = self.asked.get(uid);
                    // Of another pod's container only the pod's group is looked at.
                    if path.contains("/burstable/") && (asked.is_some() || within.is_none()) {
                        let limit = asked.map_or(POD_MEMORY, |asked| asked.memory);
                        let files = ["memory.limit_in_bytes", "memory.max"];
                        let shares = asked.map(|asked| ("cpu.shares", asked.cpu * 1024 / 1000));
                        let all = files.map(|file| (file, limit)).into_iter().chain(shares);
                        self.amounts(&dir, all);
                    }
                }
            }
        }
        let missing: Vec<String> = self
            .running
            .iter()
            .filter(|id| !self.cgroups.iter().any(|dir| dir.ends_with(id)))
            .cloned()
            .collect();
        for id in missing {
            self.say(format!("container {id} runs outside of its cgroup"));
        }
    }

    /// Files of a control group that are there have these amounts.
    fn amounts(&mut self, dir: &Path, all: impl Iterator<Item = (&'static str, u64)>) {
        for (file, want) in all {
            let path = dir.join(file);
            if let Ok(found) = fs::read_to_string(&path)
                && found.trim() != want.to_string()
            {
                let (path, found) = (path.display(), found.trim());
                self.say(format!("{path} is {found}, not {want}"));
            }
        }
    }

    /// One agent, one shim for each running container, nothing else.
    fn processes(&mut self) {
        let shims = self.world.shims();
        let mut of: BTreeMap<&str, usize> = BTreeMap::new();
        for shim in &shims {
            *of.entry(&shim.id).or_default() += 1;
            if !self.running.contains(&shim.id) {
                self.say(format!(
                    "shim {} of {} ({}), which does not run",
                    shim.pid, shim.id, shim.container
                ));
            }
        }
        for id in self.running.clone() {
            match of.get(id.as_str()) {
                Some(1) => {}
                found => self.say(format!("container {id} has {} shims", found.unwrap_or(&0))),
            }
        }
        let agent = self.world.stage.agent_pid();
        // Where processes start slowly there is no moment without a probe's command of the agent that lives. It is a session's
        // or a probe's, and names who waits for it.
        let own = agent.map(|pid| format!("/exec-{pid}-"));
        let is_own = |line: &str| own.as_ref().is_some_and(|own| line.contains(own));
        let mut inits: BTreeMap<String, usize> = BTreeMap::new();
        for pid in with_word(&self.world.stage.mark) {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split('\0');
            let init = words.nth(1) == Some("pod-init");
            if init && let Some(id) = words.next().and_then(|dir| dir.rsplit('/').next()) {
                *inits.entry(id.to_owned()).or_default() += 1;
            } else if Some(pid) != agent
                && !is_own(&line)
                && !shims.iter().any(|shim| shim.pid == pid)
            {
                self.say(format!("process {pid}: {}", line.replace('\0', " ")));
            }
        }
        self.inits(inits);
    }

    /// One init for each sandbox whose containers share their processes.
    fn inits(&mut self, mut found: BTreeMap<String, usize>) {
        for id in self.ready.keys().cloned().collect::<Vec<_>>() {
            let dir = self.run().join("sandboxes").join(&id);
            let record = read_json(&dir.join("record.json")).unwrap_or_default();
            let wanted = usize::from(record["config"]["namespaces"]["pid"] == "Pod");
            let count = found.remove(&id).unwrap_or(0);
            if count != wanted {
                self.say(format!("sandbox {id} has {count} inits, not {wanted}"));
            }
        }
        for (id, count) in found {
            self.say(format!("{count} inits of sandbox {id}, which is gone"));
        }
    }

    /// Directories of pods that are shown, and the files that an agent has.
    fn directories(&mut self) {
        for uid in names(&self.root().join("pods")) {
            if !self.pods.contains_key(&uid) {
                self.say(format!("directory of pod {uid}, which is gone"));
            }
        }
        for name in names(&self.root().join("images/staging")) {
            self.say(format!("half an image: {name}"));
        }
        // Their disk can be written again by now.
        for name in names(&self.run().join("pod-records")) {
            self.say(format!("record {name} waits for the disk"));
        }
        for name in names(self.run()) {
            // A staged file is replaced by the next one of its name.
            let own = staged(&name).unwrap_or(&name);
            if !OWN.contains(&own) && !own.starts_with(super::points::SHIM_MARK) {
                self.say(format!("{name} in the run directory"));
            }
        }
    }

    /// Layers of images that are there, each of them; nothing on its way from a registry, for there is none.
    fn images(&mut self) {
        let store = self.root().join("images");
        let mut wanted = BTreeSet::from(["empty".to_owned()]);
        for name in names(&store.join("records")) {
            let record = read_json(&store.join("records").join(name)).unwrap_or_default();
            let layers = record["layers"].as_array().into_iter().flatten();
            wanted.extend(layers.filter_map(|l| Some(l["dir"].as_str()?.to_owned())));
        }
        let found: BTreeSet<String> = names(&store.join("layers")).into_iter().collect();
        for name in found.difference(&wanted) {
            self.say(format!("layer {name} of no image"));
        }
        for name in wanted.difference(&found) {
            self.say(format!("layer {name} of an image is missing"));
        }
        for name in names(&store.join("pulls/blobs/sha256")) {
            self.say(format!("blob {name} of no image"));
        }
    }

    /// Files on their way to a name are of something that is there: the next write of the name takes them.
    fn temporary(&mut self) {
        let (run, root) = (self.run(), self.root());
        let mut dirs = vec![
            run.join("cni/attachments"),
            root.join("objects"),
            root.join("images"),
            root.join("images/records"),
            root.join("image_manager"),
        ];
        for all in ["sandboxes", "containers", "pod-records"].map(|name| run.join(name)) {
            dirs.extend(names(&all).iter().map(|id| all.join(id)));
            dirs.push(all);
        }
        let pods = root.join("pods");
        dirs.extend(names(&pods).iter().map(|uid| pods.join(uid)));
        for dir in dirs {
            for name in names(&dir) {
                if staged(&name).is_some_and(|of| !dir.join(of).exists()) {
                    self.say(format!(
                        "{} was on its way to a name that is not there",
                        dir.join(name).display()
                    ));
                }
            }
        }
    }

    /// The API has the pods that the agent shows, static ones by their mirrors, as they are; and sessions have ended that lost
    /// their agent.
    fn cluster(&mut self, pods: &[Value]) -> Result<(), Failure> {
        let Some(cluster) = &self.world.cluster else {
            return Ok(());
        };
        let name = |pod: &Value| {
            pod["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let mut api: BTreeMap<String, Value> = cluster
            .pods()?
            .into_iter()
            .map(|pod| (name(&pod), pod))
            .collect();
        for pod in pods {
            let name = name(pod);
            let Some(seen) = api.remove(&name) else {
                self.say(format!("the API has no pod {name}"));
                continue;
            };
            let (ours, theirs) = (told(pod), told(&seen));
            if ours != theirs {
                self.say(format!("pod {name} is {ours}, and {theirs} in the API"));
            }
            if !seen["metadata"]["deletionTimestamp"].is_null() {
                self.say(format!("pod {name} is still to be deleted in the API"));
            }
            if self.world.shown().get(&name) == Some(&Kind::Member) {
                self.resized(&name, &seen);
            }
        }
        for name in api.keys() {
            self.say(format!("pod {name} in the API, which is gone"));
        }
        for problem in cluster.session_problems(self.world.stage.agent_pid()) {
            self.say(problem);
        }
        Ok(())
    }

    /// A pod of the API was given what it asks for, and nothing is left to do.
    fn resized(&mut self, name: &str, pod: &Value) {
        let asked = &pod["spec"]["containers"][0]["resources"];
        let has = &pod["status"]["containerStatuses"][0];
        if has["resources"] != *asked || has["allocatedResources"] != asked["requests"] {
            let (has, allocated) = (&has["resources"], &has["allocatedResources"]);
            self.say(format!(
                "pod {name} asks for {asked}, was allocated {allocated} and has {has}"
            ));
        }
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        for condition in conditions {
            let kind = condition["type"].as_str().unwrap_or_default();
            if kind.starts_with("PodResize") {
                self.say(format!("pod {name} has {condition}"));
            }
        }
    }

    /// Copies of what pods of the API refer to.
    fn copies(&mut self, pods: &[Value]) {
        let mut wanted = Vec::new();
        let kinds = self.world.shown();
        for pod in pods {
            let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
            if matches!(kinds.get(text("name")), Some(Kind::Member | Kind::Task)) {
                wanted.extend(Cluster::copies(text("uid"), text("name")));
                // Of the namespace, for their variables.
                wanted.push("services-".into());
            }
        }
        for name in names(&self.root().join("objects")) {
            if !wanted.iter().any(|begin| name.starts_with(begin.as_str())) {
                self.say(format!("copy {name} of an object that no pod needs"));
            }
        }
    }

    /// Logs of pods that are shown.
    fn logs(&mut self) {
        let logs = self.world.stage.base.join("logs");
        for name in names(&logs) {
            let uid = name.rsplit('_').next().unwrap_or_default();
            if !self.pods.contains_key(uid) {
                self.say(format!("logs {name} of a pod that is gone"));
            }
        }
        let links = self.world.stage.base.join("log-links");
        for name in names(&links) {
            if fs::metadata(links.join(&name)).is_err() {
                self.say(format!("link {name} to a log that is gone"));
            }
        }
    }
}

/// What the agent has in its run directory.
const OWN: [&str; 12] = [
    "backoff.json",
    "calls.lock",
    "clock.json",
    "cni",
    "containers",
    "picolet.lock",
    "picolet.sock",
    "pod-records",
    "pod-writes.json",
    "probes.json",
    "runtime",
    "sandboxes",
];

/// The name that a file is on its way to.
fn staged(name: &str) -> Option<&str> {
    let name = name.strip_prefix('.')?;
    name.strip_suffix(".new")
        .or_else(|| name.strip_suffix(".tmp"))
}

/// What a container asks for.
struct Asked {
    /// Request of processors, in thousandths of one.
    cpu: u64,
    /// Limit of memory, bytes.
    memory: u64,
}

impl Asked {
    fn of(resources: &Value) -> Self {
        let text = |kind: &str, name: &str| resources[kind][name].as_str().unwrap_or_default();
        let (cpu, memory) = (text("requests", "cpu"), text("limits", "memory"));
        let mib = memory.strip_suffix("Mi").and_then(|n| n.parse().ok());
        Self {
            cpu: cpu.trim_end_matches('m').parse().unwrap_or(0),
            memory: mib.map_or_else(|| memory.parse().unwrap_or(0), |n: u64| n << 20),
        }
    }
}

/// What is to be the same wherever a pod is shown.
fn told(pod: &Value) -> String {
    let status = &pod["status"];
    let mut told = status["phase"].as_str().unwrap_or_default().to_owned();
    for list in ["initContainerStatuses", "containerStatuses"] {
        for container in status[list].as_array().into_iter().flatten() {
            let state = container["state"].as_object();
            let state = state.and_then(|s| s.keys().next()).cloned();
            told += &format!(
                " {}: {} {} {}",
                container["name"],
                container["containerID"],
                container["restartCount"],
                state.unwrap_or_default()
            );
        }
    }
    told
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Chains that the bridge and portmap plugins make for a sandbox.
///
/// Source: containernetworking/plugins, `pkg/utils/utils.go` and `plugins/meta/portmap`.
fn chains(network: &str, id: &str) -> [String; 2] {
    const LENGTH: usize = 28;
    let hash = hex(&Sha512::digest(format!("{network}{id}")));
    ["CNI-", "CNI-DN-"].map(|prefix| {
        let mut chain = format!("{prefix}{hash}");
        chain.truncate(LENGTH);
        chain
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_made_elsewhere() {
        // Pinned in `runtime::runc::record`.
        assert_eq!(
            derived_id("0a1b", "", 0),
            "2a93212fa2f3a08621306072d73e4e5b"
        );
        // From the plugins' own tests: `FormatChainName("test", "1234")`.
        assert_eq!(chains("test", "1234")[0], "CNI-2bbe0c48b91a7d1b8a6753a8");
    }
}
