//! Pods that no container runtime runs: the reports of their provider, and the checks of these (`tests/spec/edge.md`
//! PRVD).
//!
//! - A provider is asked for a whole list. A report on a pod is checked before it counts; a wrong one changes nothing.
//! - Nothing is concluded from silence, nor from the first list of a provider that has started anew: a pod that is
//!   missing there is told again.
//! - A pod is lost only if one instance of the provider, which had acknowledged it, leaves it out of two lists.
//!
//! Every word of the provider has a number. A list that was asked for before a newer word on a pod came says nothing
//! about that pod.

use alloc::{
    collections::BTreeMap,
    string::{String, ToString as _},
    vec::Vec,
};
use core::{fmt::Write as _, mem};

use serde_json::Value;

use super::{api_pod::is_plain_name, static_pod::is_plain_uid};
use crate::{
    api::{
        ContainerId, Pod, PodUid, SandboxId, WallTime,
        cri::{
            ContainerState, ContainerStatus, NamespaceOptions, PodItem, PodRuntimeStatus,
            SandboxState, SandboxStatus,
        },
        order::{GatherExt as _, OrderExt as _},
        pod::{CONFIG_HASH, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE, EnvVar, RestartPolicy},
    },
    fnv::fnv1a,
};

/// Pods of one provider.
pub const MAX_PODS: usize = 512;
/// Containers in a provider's report of one pod.
pub const MAX_CONTAINERS: usize = 64;
/// Addresses of a pod that are read.
pub const MAX_IPS: usize = 4;
/// Bytes of the message about a container.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Bytes of a reason, a generation, a cursor or the name of an instance.
pub const MAX_WORD_BYTES: usize = 128;
/// Longest time by which a provider's clock may be ahead of ours, nanoseconds.
pub const MAX_AHEAD_NS: i64 = 5 * 60 * 1_000_000_000;
/// Whole lists of one instance that leave out an acknowledged pod, until it counts as not found.
pub const MAX_MISSED: u8 = 2;
/// Pods that have ended, and are kept at one provider for their logs.
pub const MAX_KEPT: usize = 64;
/// Reason of a pod's failure, and of its containers' ends, if its provider has forgotten the pod.
pub const NOT_FOUND: &str = "NotFound";
/// Prefix of the ids of a provider's sandboxes and containers.
pub const ID_PREFIX: &str = "provided-";

/// Exit code of a container whose end was not seen (RTM-05).
const LOST_CODE: i32 = 137;
/// Reason of a container whose end was not seen.
const LOST: &str = "ContainerStatusUnknown";

/// Fault in a provider's answer, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProviderFault(String);

/// All pods of a provider, as it lists them.
#[derive(Clone, Debug, Default)]
pub struct ProviderPodList {
    /// Changes whenever the provider may have forgotten something. Never empty.
    pub instance: String,
    /// Position of this list among changes; empty: the provider does not report changes.
    pub cursor: String,
    /// Pods in any order, each once.
    pub pods: Vec<ProviderPodReport>,
}

/// Report of a provider on one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderPodReport {
    /// UID. Like the four fields below, as the provider was told it.
    pub uid: PodUid,
    /// Node that told it.
    pub node: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Generation of the pod that the provider was last told; see [`pod_generation`].
    pub generation: String,
    /// Status of the pod.
    pub status: ReportedPodStatus,
}

/// Status of a pod in a provider's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedPodStatus {
    /// Newest run of each container.
    pub containers: Vec<ReportedContainer>,
    /// Addresses of the pod, if it has some of its own.
    pub pod_ips: Vec<String>,
}

/// Status of a container in a provider's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedContainer {
    /// Name in the spec.
    pub name: String,
    /// `waiting`, `running` or `terminated`.
    pub state: String,
    /// Runs before this one.
    pub restart_count: u32,
    /// RFC 3339; set at least for a running container.
    pub started_at: String,
    /// RFC 3339; set at least for a terminated container.
    pub finished_at: String,
    /// Exit code of a terminated container.
    pub exit_code: i32,
    /// CamelCase; may be empty.
    pub reason: String,
    /// For people; may be empty.
    pub message: String,
}

/// A field of a map, if it is there.
fn read_field<'a>(of: &'a Value, name: &str) -> Result<Option<&'a Value>, ProviderFault> {
    let fields = of.as_object();
    let fields = fields.ok_or_else(|| ProviderFault(format!("a map is missing around {name}")))?;
    Ok(fields.get(name))
}

fn read_text(of: &Value, name: &str) -> Result<String, ProviderFault> {
    let Some(value) = read_field(of, name)? else {
        return Ok(String::new());
    };
    let text = value.as_str().map(String::from);
    text.ok_or_else(|| ProviderFault(format!("{name} must be a text")))
}

fn read_number<T: TryFrom<i64> + Default>(of: &Value, name: &str) -> Result<T, ProviderFault> {
    let Some(value) = read_field(of, name)? else {
        return Ok(T::default());
    };
    let number = value.as_i64().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| ProviderFault(format!("{name} is not a number in its range")))
}

fn read_items<'a>(of: &'a Value, name: &str) -> Result<&'a [Value], ProviderFault> {
    let Some(value) = read_field(of, name)? else {
        return Ok(&[]);
    };
    let items = value.as_array().map(Vec::as_slice);
    items.ok_or_else(|| ProviderFault(format!("{name} must be a list")))
}

impl ProviderPodList {
    /// Reads the list of a provider. Absent fields are empty, unknown fields are passed over.
    ///
    /// - Errors: the first place with a value of another shape.
    pub fn parse(said: &Value) -> Result<Self, ProviderFault> {
        let mut list = Self {
            instance: read_text(said, "instance")?,
            cursor: read_text(said, "cursor")?,
            pods: Vec::new(),
        };
        for (index, pod) in read_items(said, "pods")?.iter().enumerate() {
            let read = ProviderPodReport::parse(pod);
            let read =
                read.map_err(|ProviderFault(why)| ProviderFault(format!("pods[{index}]: {why}")))?;
            list.pods.push(read);
        }
        Ok(list)
    }
}

impl ProviderPodReport {
    /// Reads the report on one pod; see [`ProviderPodList::parse`].
    pub fn parse(said: &Value) -> Result<Self, ProviderFault> {
        Ok(Self {
            uid: PodUid::from(&*read_text(said, "uid")?),
            node: read_text(said, "node")?,
            namespace: read_text(said, "namespace")?,
            name: read_text(said, "name")?,
            generation: read_text(said, "generation")?,
            status: match read_field(said, "status")? {
                None => ReportedPodStatus::default(),
                Some(status) => ReportedPodStatus::parse(status)?,
            },
        })
    }
}

impl ReportedPodStatus {
    fn parse(said: &Value) -> Result<Self, ProviderFault> {
        let mut status = Self::default();
        for ip in read_items(said, "podIPs")? {
            let ip = ip.as_str();
            let ip = ip.ok_or_else(|| ProviderFault("podIPs must be a list of texts".into()))?;
            status.pod_ips.push(ip.into());
        }
        for (index, container) in read_items(said, "containers")?.iter().enumerate() {
            let read = ReportedContainer::parse(container);
            let read = read.map_err(|ProviderFault(why)| {
                ProviderFault(format!("containers[{index}]: {why}"))
            })?;
            status.containers.push(read);
        }
        Ok(status)
    }
}

impl ReportedContainer {
    fn parse(said: &Value) -> Result<Self, ProviderFault> {
        Ok(Self {
            name: read_text(said, "name")?,
            state: read_text(said, "state")?,
            restart_count: read_number(said, "restartCount")?,
            started_at: read_text(said, "startedAt")?,
            finished_at: read_text(said, "finishedAt")?,
            exit_code: read_number(said, "exitCode")?,
            reason: read_text(said, "reason")?,
            message: read_text(said, "message")?,
        })
    }
}

/// Digest of the parts of a pod whose changes its provider is told (PROV-11).
#[must_use]
pub fn pod_generation(pod: &Pod) -> String {
    let mut parts = Pod::default();
    let (meta, spec) = (&mut parts.metadata, &mut parts.spec);
    meta.labels.clone_from(&pod.metadata.labels);
    meta.annotations.clone_from(&pod.metadata.annotations);
    // Annotations that the agent sets on a static pod; one of them changes with each start.
    for own in [CONFIG_SOURCE, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_HASH] {
        meta.annotations.remove(own);
    }
    spec.containers.clone_from(&pod.spec.containers);
    spec.init_containers.clone_from(&pod.spec.init_containers);
    spec.active_deadline_seconds = pod.spec.active_deadline_seconds;
    spec.tolerations.clone_from(&pod.spec.tolerations);
    format!("{:016x}", fnv1a(to_json_bytes(&parts)))
}

/// Plain data as JSON, which does not fail.
fn to_json_bytes<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Resolved environment of a container, in order.
pub type ContainerEnvironment = Vec<(String, String)>;

/// A volume, as the provider finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// Name in the spec.
    pub name: String,
    /// Absolute path on the host.
    pub path: String,
    /// The provider is not to write to it.
    pub read_only: bool,
}

/// Message that tells a provider of a pod, as JSON: the pod without its status, its containers' environment in plain
/// values, and the paths of its volumes (PRVD-03). `environments`: one for each container, init containers first.
#[must_use]
pub fn pod_message(
    pod: &Pod,
    node: &str,
    generation: &str,
    environments: Vec<ContainerEnvironment>,
    volumes: &[VolumePath],
) -> Vec<u8> {
    let mut plain = Pod {
        metadata: pod.metadata.clone(),
        spec: pod.spec.clone(),
        ..Pod::default()
    };
    let mut environments = environments.into_iter();
    let spec = &mut plain.spec;
    for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
        container.env_from.clear();
        container.env.clear();
        for (name, value) in environments.next().unwrap_or_default() {
            container.env.push(EnvVar {
                name,
                value,
                value_from: None,
            });
        }
    }
    let quoted = |text: &str| String::from_utf8(to_json_bytes(&text)).unwrap_or_default();
    let mut places = String::new();
    for volume in volumes {
        let comma = if places.is_empty() { "" } else { "," };
        let (name, path) = (quoted(&volume.name), quoted(&volume.path));
        let is = volume.read_only;
        let _ = write!(places, r#"{comma}{name}:{{"path":{path},"readOnly":{is}}}"#);
    }
    let (node, generation) = (quoted(node), quoted(generation));
    let mut told = format!(
        r#"{{"node":{node},"generation":{generation},"volumes":{{{places}}},"pod":{{"apiVersion":"v1","kind":"Pod","#
    )
    .into_bytes();
    // A pod has at least a name: a field follows the brace.
    told.extend_from_slice(to_json_bytes(&plain).get(1..).unwrap_or_default());
    told.push(b'}');
    told
}

/// Pod whose provider reported it wrongly; people are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MisreportedPod {
    /// UID.
    pub uid: PodUid,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Fault in the report.
    pub why: String,
}

/// Changes that a list brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderListChanges {
    /// Set if anything differs from before.
    pub changed: bool,
    /// Pods to look at anew: they wait for the provider, it does not know them any more, or it has lost them.
    pub sync: Vec<PodUid>,
    /// Pods whose report was not believed. The same fault of a pod is named once.
    pub bad: Vec<MisreportedPod>,
}

/// A pod as its provider has it.
#[derive(Debug, Default)]
struct ProviderPodEntry {
    /// Status without the changes that follow from `fate`.
    status: PodRuntimeStatus,
    /// Generation that this instance of the provider has acknowledged (PROV-06).
    generation: Option<String>,
    /// Known part of the pod's spec.
    spec: Option<ProviderPodSpec>,
    /// Set if all containers that the provider reports have ended.
    ended: bool,
    /// Set if the pod has ended for good and stays at the provider for its logs.
    kept: bool,
    /// Set if the pod is told to an instance that had forgotten it: its restart counts begin anew.
    anew: bool,
    /// Number of the newest word about the pod.
    word: u64,
    /// Lists that left the pod out.
    missed: u8,
    fate: ProviderPodPresence,
    /// Fault of the last report that was not believed.
    bad: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ProviderPodPresence {
    #[default]
    Known,
    /// Forgotten by its provider (PRVD-07).
    Lost,
    /// The provider says that it has removed the pod, as it was asked to.
    Gone,
}

#[derive(Debug)]
struct ProviderPodSpec {
    /// Name and image of each container.
    containers: BTreeMap<String, String>,
    restart_policy: RestartPolicy,
}

impl ProviderPodSpec {
    const fn never_restarts(&self) -> bool {
        matches!(self.restart_policy, RestartPolicy::Never)
    }

    /// Returns true if a pod runs no more once its containers have ended like `ended`.
    fn has_pod_finished(&self, ended: &[ContainerStatus]) -> bool {
        match self.restart_policy {
            RestartPolicy::Never => true,
            RestartPolicy::OnFailure => ended.iter().all(|container| container.exit_code == 0),
            RestartPolicy::Always => false,
        }
    }
}

/// Known pods of one provider. At most [`MAX_PODS`] from the provider, and the pods that the agent told it.
#[derive(Debug, Default)]
pub struct ProviderPodTable {
    instance: String,
    /// Set once a whole list has come since the agent started (PROV-03).
    heard: bool,
    /// Set if the provider answered with a list when it was last asked.
    answers: bool,
    pods: ProviderPodEntries,
    words: u64,
}

/// Entries sorted by UID. No ordered map: its code would be made for these entries alone.
#[derive(Debug, Default)]
struct ProviderPodEntries(Vec<ProviderPodEntry>);

impl ProviderPodEntries {
    fn find_position(&self, uid: &PodUid) -> Result<usize, usize> {
        self.0.binary_search_by(|entry| entry.status.uid.cmp(uid))
    }

    fn get(&self, uid: &PodUid) -> Option<&ProviderPodEntry> {
        self.find_position(uid).ok().map(|at| &self.0[at])
    }

    fn get_mut(&mut self, uid: &PodUid) -> Option<&mut ProviderPodEntry> {
        self.find_position(uid).ok().map(|at| &mut self.0[at])
    }

    /// The entry of a pod, a new one if there is none.
    fn entry_or_new(&mut self, uid: &PodUid) -> &mut ProviderPodEntry {
        let at = self.find_position(uid).unwrap_or_else(|at| {
            let mut entry = ProviderPodEntry::default();
            entry.status.uid = uid.clone();
            self.0.insert(at, entry);
            at
        });
        &mut self.0[at]
    }
}

impl ProviderPodTable {
    /// The number of a list that is about to be asked for.
    pub const fn begin_list(&mut self) -> u64 {
        self.words += 1;
        self.words
    }

    /// Returns true once a whole list has come since the agent started.
    #[must_use]
    pub const fn has_whole_list(&self) -> bool {
        self.heard
    }

    /// Returns true if the provider answered when it was last asked.
    #[must_use]
    pub const fn is_answering(&self) -> bool {
        self.answers
    }

    /// Name of the provider's instance that answered last.
    #[must_use]
    pub fn instance_name(&self) -> &str {
        &self.instance
    }

    /// Notes that the provider did not answer, or answered nonsense. Everything known stays (PRVD-07). Returns true if
    /// it had answered before.
    pub const fn record_silence(&mut self) -> bool {
        mem::replace(&mut self.answers, false)
    }

    /// Takes in a list that was asked for under number `begun`.
    ///
    /// - Errors: the reason why none of it counts.
    pub fn take_pod_list(
        &mut self,
        begun: u64,
        mut list: ProviderPodList,
        node: &str,
        now: WallTime,
    ) -> Result<ProviderListChanges, ProviderFault> {
        let named = |text: &str| text.len() <= MAX_WORD_BYTES;
        if list.instance.is_empty() || !named(&list.instance) || !named(&list.cursor) {
            return Err(ProviderFault(format!(
                "instance and cursor must have at most {MAX_WORD_BYTES} bytes, and instance at least one"
            )));
        }
        if list.pods.len() > MAX_PODS {
            return Err(ProviderFault(format!("it lists more than {MAX_PODS} pods")));
        }
        let is_ours = |pod: &&ProviderPodReport| pod.node == node;
        let is_named = |pod: &ProviderPodReport| {
            is_plain_uid(&pod.uid) && is_plain_name(&pod.namespace) && is_plain_name(&pod.name)
        };
        if let Some(bad) = list.pods.iter().filter(is_ours).find(|pod| !is_named(pod)) {
            let uid: String = bad.uid.chars().take(MAX_WORD_BYTES).collect();
            return Err(ProviderFault(format!(
                "it lists a pod with a uid, namespace or name that is not valid: {uid:?}"
            )));
        }
        list.pods.stable_sort_by(|a, b| a.uid.cmp(&b.uid));
        if let Some(twice) = list.pods.windows(2).find(|two| two[0].uid == two[1].uid) {
            return Err(ProviderFault(format!(
                "it lists pod {} twice",
                twice[0].uid
            )));
        }
        let mut news = ProviderListChanges {
            changed: !self.answers,
            ..ProviderListChanges::default()
        };
        self.answers = true;
        self.heard = true;
        let is_another = self.instance != list.instance;
        if is_another {
            // The new instance may have forgotten all pods: they are told again.
            for entry in &mut self.pods.0 {
                entry.generation = None;
                entry.missed = 0;
            }
            self.instance = list.instance;
            news.changed = true;
        }
        let mut listed = Vec::new();
        for said in list.pods {
            // Pods of other nodes do not count here (PROV-04).
            if said.node != node {
                continue;
            }
            listed.push(said.uid.clone());
            let entry = self.pods.get(&said.uid);
            if entry.is_some_and(|entry| entry.word > begun) {
                continue;
            }
            news.changed |= self.take_pod_report(said, now, &mut news.bad);
        }
        self.pods.0.retain_mut(|entry| {
            let uid = &entry.status.uid;
            let is_listed = listed.binary_search(uid).is_ok();
            if entry.word > begun || is_listed || entry.fate == ProviderPodPresence::Gone {
                return true;
            }
            if entry.spec.is_none() || entry.kept {
                // The agent does not want the pod to run, and the provider does not have it any more.
                news.changed = true;
                return false;
            }
            if entry.generation.is_none() {
                entry.anew |= is_another;
                news.sync.push(uid.clone());
            } else if entry.fate == ProviderPodPresence::Known {
                entry.missed += 1;
                if entry.missed >= MAX_MISSED {
                    entry.fate = ProviderPodPresence::Lost;
                    news.changed = true;
                    news.sync.push(uid.clone());
                }
            }
            true
        });
        Ok(news)
    }

    /// Takes in the report on one pod, from a list or an answer. Returns true if anything differs.
    fn take_pod_report(
        &mut self,
        said: ProviderPodReport,
        now: WallTime,
        bad: &mut Vec<MisreportedPod>,
    ) -> bool {
        let ProviderPodReport {
            uid,
            namespace,
            name,
            generation,
            status,
            ..
        } = said;
        let entry = self.pods.entry_or_new(&uid);
        if entry.status.name.is_empty() {
            entry.status.namespace.clone_from(&namespace);
            entry.status.name.clone_from(&name);
        }
        entry.missed = 0;
        let mut changed = mem::take(&mut entry.fate) != ProviderPodPresence::Known;
        if generation.len() <= MAX_WORD_BYTES && entry.generation.as_ref() != Some(&generation) {
            entry.generation = Some(generation);
            changed = true;
        }
        if entry.kept && entry.ended {
            return changed;
        }
        let spec = entry.spec.as_ref();
        let nothing = PodRuntimeStatus::default();
        // A pod that has ended for good stays so, whatever its provider remembers.
        let before = if entry.anew && !spec.is_some_and(ProviderPodSpec::never_restarts) {
            &nothing
        } else {
            &entry.status
        };
        match check_reported_status(&uid, &status, spec, before, now) {
            Ok(checked) => {
                entry.bad.clear();
                let said = &status.containers;
                let ended = !said.is_empty() && said.iter().all(|c| c.state == "terminated");
                entry.anew &= checked.containers.is_empty();
                changed |= entry.ended != ended;
                entry.ended = ended;
                entry.kept &= ended;
                changed |= entry.status.containers != checked.containers;
                changed |= entry.status.ips != checked.ips;
                entry.status.containers = checked.containers;
                entry.status.ips = checked.ips;
            }
            Err(ProviderFault(why)) => {
                if entry.bad != why {
                    entry.bad.clone_from(&why);
                    bad.push(MisreportedPod {
                        uid,
                        namespace,
                        name,
                        why,
                    });
                }
            }
        }
        changed
    }

    /// Notes that the agent has a pod for this provider: from now on the provider's reports are checked against the
    /// spec.
    pub fn expect_pod(&mut self, pod: &Pod) {
        let entry = self.pods.entry_or_new(&pod.metadata.uid);
        let containers: BTreeMap<String, String> = pod
            .spec
            .all_containers()
            .map(|c| (c.name.clone(), c.image.clone()))
            .gather_items();
        entry.status.namespace.clone_from(&pod.metadata.namespace);
        entry.status.name.clone_from(&pod.metadata.name);
        // Reports from before the spec was known.
        let known = &mut entry.status.containers;
        known.retain(|c| containers.contains_key(&c.name));
        for container in known {
            container.image = containers.get(&container.name).cloned().unwrap_or_default();
        }
        entry.kept = false;
        entry.spec = Some(ProviderPodSpec {
            containers,
            restart_policy: pod.spec.restart_policy,
        });
    }

    /// Returns true if the provider has to be told of the pod (PROV-06, PROV-11).
    #[must_use]
    pub fn must_tell_provider(&self, uid: &PodUid, generation: &str) -> bool {
        let entry = self.pods.get(uid);
        entry.is_none_or(|entry| entry.generation.as_deref() != Some(generation))
    }

    /// Takes in that the provider has acknowledged a pod under this generation, with its status.
    pub fn record_acknowledgement(
        &mut self,
        uid: &PodUid,
        generation: &str,
        status: ReportedPodStatus,
        now: WallTime,
    ) -> Vec<MisreportedPod> {
        let word = self.begin_list();
        let Some(entry) = self.pods.get_mut(uid) else {
            return Vec::new();
        };
        entry.word = word;
        let said = ProviderPodReport {
            uid: uid.clone(),
            node: String::new(),
            namespace: entry.status.namespace.clone(),
            name: entry.status.name.clone(),
            generation: generation.into(),
            status,
        };
        let mut bad = Vec::new();
        self.take_pod_report(said, now, &mut bad);
        bad
    }

    /// Takes in that the provider has removed a pod. `last`: its last status, if the provider still knows it.
    pub fn record_removal(&mut self, uid: &PodUid, last: Option<ReportedPodStatus>, now: WallTime) {
        let word = self.begin_list();
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let last = last.filter(|last| !last.containers.is_empty());
        if let Some(last) = last
            && let Ok(last) =
                check_reported_status(uid, &last, entry.spec.as_ref(), &entry.status, now)
        {
            entry.status.containers = last.containers;
        }
        entry.word = word;
        entry.fate = ProviderPodPresence::Gone;
    }

    /// Forgets a pod that is of no interest any more.
    pub fn forget_pod(&mut self, uid: &PodUid) {
        if let Ok(at) = self.pods.find_position(uid) {
            self.pods.0.remove(at);
        }
    }

    /// Decides if the provider is to keep a pod that has ended for good: for its logs, as long as a source has its
    /// object. It keeps the pod if the pod has ended there too, as far as is known. Returns true if it is to.
    pub fn decide_to_keep(&mut self, uid: &PodUid) -> bool {
        let heard = self.heard;
        let entry = self.pods.entry_or_new(uid);
        entry.kept = entry.fate == ProviderPodPresence::Known && (entry.ended || !heard);
        entry.kept
    }

    /// Returns the kept pod that ended first if there are more than [`MAX_KEPT`]: it is to go.
    #[must_use]
    pub fn surplus_kept_pod(&self) -> Option<PodUid> {
        let kept = || self.pods.0.iter().filter(|entry| entry.kept);
        if kept().count() <= MAX_KEPT {
            return None;
        }
        let ends = |entry: &&ProviderPodEntry| {
            let containers = entry.status.containers.iter();
            containers.filter_map(|c| c.finished_at).max()
        };
        kept()
            .min_by_key(ends)
            .map(|entry| entry.status.uid.clone())
    }

    /// Returns true if the pod is this provider's, as far as is known.
    #[must_use]
    pub fn has_pod(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some()
    }

    /// Notes that the provider has begun to stop a pod, as it was told: its earlier report of an end does not count.
    pub fn record_stop_begun(&mut self, uid: &PodUid) {
        let word = self.begin_list();
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.word = word;
            entry.ended = false;
        }
    }

    /// Returns true if the provider says that the pod does not run, now or later, though it was not told to stop the
    /// pod.
    #[must_use]
    pub fn is_pod_over(&self, uid: &PodUid) -> bool {
        let entry = self.pods.get(uid);
        entry.is_none_or(|entry| {
            let runs_again = entry
                .spec
                .as_ref()
                .is_some_and(|spec| !spec.has_pod_finished(&entry.status.containers));
            entry.fate != ProviderPodPresence::Known || entry.ended && !runs_again
        })
    }

    /// Returns true if the agent has the pod for this provider.
    #[must_use]
    pub fn expects_pod(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|entry| entry.spec.is_some())
    }

    /// Returns true if the provider says that no container of the pod runs.
    #[must_use]
    pub fn has_ended(&self, uid: &PodUid) -> bool {
        let entry = self.pods.get(uid);
        entry.is_none_or(|entry| entry.ended || entry.fate != ProviderPodPresence::Known)
    }

    /// Returns true if the provider says that it has removed the pod.
    #[must_use]
    pub fn is_gone(&self, uid: &PodUid) -> bool {
        let entry = self.pods.get(uid);
        entry.is_none_or(|entry| entry.fate == ProviderPodPresence::Gone)
    }

    /// Returns true if the provider has forgotten the pod (PRVD-07).
    #[must_use]
    pub fn is_lost(&self, uid: &PodUid) -> bool {
        let entry = self.pods.get(uid);
        entry.is_some_and(|entry| entry.fate == ProviderPodPresence::Lost)
    }

    /// Status of a pod by the provider's last good report.
    #[must_use]
    pub fn pod_status(&self, uid: &PodUid) -> Option<PodRuntimeStatus> {
        self.pods.get(uid).map(ProviderPodEntry::shown_status)
    }

    /// All pods with a sandbox or a container, sorted by UID.
    #[must_use]
    pub fn pod_items(&self) -> Vec<PodItem> {
        let pods = self.pods.0.iter().map(ProviderPodEntry::shown_status);
        let there = pods.filter(|pod| !pod.sandboxes.is_empty() || !pod.containers.is_empty());
        there.map(|pod| PodItem::from(&pod)).collect()
    }

    /// Pod and name of the container with this id.
    #[must_use]
    pub fn find_container(&self, id: &ContainerId) -> Option<(PodUid, String)> {
        self.pods.0.iter().find_map(|entry| {
            let mut containers = entry.status.containers.iter();
            let found = containers.find(|c| c.id == *id)?;
            Some((entry.status.uid.clone(), found.name.clone()))
        })
    }

    /// Pod of the sandbox with this id.
    #[must_use]
    pub fn find_sandbox_pod(&self, id: &SandboxId) -> Option<PodUid> {
        let uid = PodUid::from(id.as_str().strip_prefix(ID_PREFIX)?);
        self.has_pod(&uid).then_some(uid)
    }
}

impl ProviderPodEntry {
    /// Status with the changes that follow from the pod's fate. A pod that was only asked for has no sandbox yet.
    fn shown_status(&self) -> PodRuntimeStatus {
        let mut status = self.status.clone();
        if self.generation.is_none()
            && status.containers.is_empty()
            && self.fate == ProviderPodPresence::Known
        {
            return status;
        }
        let reason = match self.fate {
            ProviderPodPresence::Known => None,
            ProviderPodPresence::Lost => Some(NOT_FOUND),
            ProviderPodPresence::Gone => Some(LOST),
        };
        for container in &mut status.containers {
            if let Some(reason) = reason
                && container.state == ContainerState::Running
            {
                container.state = ContainerState::Exited;
                container.exit_code = LOST_CODE;
                container.reason = reason.into();
                container.finished_at = container.started_at;
            }
        }
        let runs = reason.is_none() && !self.ended;
        let first = status.containers.iter().map(|c| c.created_at).min();
        status.sandboxes = vec![SandboxStatus {
            id: SandboxId::from(&*format!("{ID_PREFIX}{}", status.uid)),
            uid: status.uid.clone(),
            name: status.name.clone(),
            namespace: status.namespace.clone(),
            attempt: 0,
            state: if runs {
                SandboxState::Ready
            } else {
                SandboxState::NotReady
            },
            created_at: first.unwrap_or(WallTime(0)),
            ips: status.ips.clone(),
            namespaces: NamespaceOptions::default(),
            runtime_handler: String::new(),
        }];
        status
    }
}

/// Translates a provider's status of a pod into the agent's words, or returns its fault (PRVD-05).
fn check_reported_status(
    uid: &PodUid,
    said: &ReportedPodStatus,
    spec: Option<&ProviderPodSpec>,
    before: &PodRuntimeStatus,
    now: WallTime,
) -> Result<PodRuntimeStatus, ProviderFault> {
    if said.containers.len() > MAX_CONTAINERS || said.pod_ips.len() > MAX_IPS {
        return Err(ProviderFault(format!(
            "at most {MAX_CONTAINERS} containers and {MAX_IPS} addresses are read"
        )));
    }
    let mut checked = PodRuntimeStatus::default();
    for ip in &said.pod_ips {
        let ip = ip
            .parse()
            .map_err(|_| ProviderFault(format!("podIPs: {ip:?} is no address")))?;
        checked.ips.push(ip);
    }
    for container in &said.containers {
        let name = &container.name;
        let wrong = |why: &str| Err(ProviderFault(format!("container {name:?}: {why}")));
        let image = match spec {
            Some(spec) => match spec.containers.get(name) {
                Some(image) => image.clone(),
                None => return wrong("the pod has no container of that name"),
            },
            None => String::new(),
        };
        if checked.containers.iter().any(|c| c.name == *name) {
            return wrong("it is there twice");
        }
        if container.message.len() > MAX_MESSAGE_BYTES || container.reason.len() > MAX_WORD_BYTES {
            return wrong("its reason or message is too long");
        }
        let time = |field: &str, text: &str| -> Result<Option<WallTime>, ProviderFault> {
            if text.is_empty() {
                return Ok(None);
            }
            let at = WallTime::parse(text)
                .filter(|at| at.0 <= now.0.saturating_add(MAX_AHEAD_NS))
                .ok_or_else(|| {
                    ProviderFault(format!(
                        "container {name:?}: {field} {text:?} is not a time, or lies in the future"
                    ))
                })?;
            Ok(Some(at))
        };
        let started_at = time("startedAt", &container.started_at)?;
        let finished_at = time("finishedAt", &container.finished_at)?;
        let state = match (&*container.state, started_at, finished_at) {
            // The container has no run yet.
            ("waiting", ..) => continue,
            ("running", Some(_), None) => ContainerState::Running,
            ("terminated", _, Some(_)) => ContainerState::Exited,
            ("running", ..) => return wrong("running needs startedAt, and no finishedAt"),
            ("terminated", ..) => return wrong("terminated needs finishedAt"),
            _ => return wrong("its state must be waiting, running or terminated"),
        };
        if started_at.is_some_and(|at| finished_at.is_some_and(|end| end < at)) {
            return wrong("it finished before it started");
        }
        if let Some(known) = before.newest_instance(name) {
            let count = container.restart_count;
            let had_ended = known.state == ContainerState::Exited;
            if count < known.restart_count {
                return wrong("its restartCount became less");
            }
            let is_next = count > known.restart_count;
            if had_ended && state == ContainerState::Running && !is_next {
                return wrong("it had terminated, and runs again under the same restartCount");
            }
            if had_ended && is_next && spec.is_some_and(ProviderPodSpec::never_restarts) {
                return wrong("it had terminated, and the pod's restartPolicy is Never");
            }
            if had_ended && !is_next && known.exit_code != container.exit_code {
                return wrong("its exitCode changed");
            }
        }
        let reason = match (&*container.reason, state, container.exit_code) {
            ("", ContainerState::Exited, 0) => "Completed",
            ("", ContainerState::Exited, _) => "Error",
            (reason, ..) => reason,
        };
        let id = format!("{ID_PREFIX}{uid}-{name}-{}", container.restart_count);
        checked.containers.push(ContainerStatus {
            id: ContainerId::from(&*id),
            sandbox: SandboxId::from(&*format!("{ID_PREFIX}{uid}")),
            name: name.clone(),
            restart_count: container.restart_count,
            state,
            created_at: started_at.or(finished_at).unwrap_or(now),
            started_at,
            finished_at,
            exit_code: container.exit_code,
            reason: reason.to_string(),
            message: container.message.clone(),
            image,
            image_id: String::new(),
            volume_images: Vec::new(),
            mounts: Vec::new(),
            stop_signal: String::new(),
            hash: 0,
            user: None,
            pid: 0,
            log_path: String::new(),
        });
    }
    checked
        .containers
        .stable_sort_by(|a, b| a.name.cmp(&b.name));
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: WallTime = WallTime::from_unix_seconds(1_700_000_000);
    const THEN: &str = "2023-11-14T22:13:20Z";

    fn pod(more: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]},
        });
        for (key, value) in more.as_object().expect("an object") {
            pod["spec"][key] = value.clone();
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn running(name: &str, count: u32) -> ReportedContainer {
        ReportedContainer {
            name: name.into(),
            state: "running".into(),
            restart_count: count,
            started_at: THEN.into(),
            ..ReportedContainer::default()
        }
    }

    fn ended(name: &str, count: u32, code: i32) -> ReportedContainer {
        ReportedContainer {
            state: "terminated".into(),
            finished_at: THEN.into(),
            exit_code: code,
            ..running(name, count)
        }
    }

    fn status(containers: &[ReportedContainer]) -> ReportedPodStatus {
        ReportedPodStatus {
            containers: containers.to_vec(),
            pod_ips: Vec::new(),
        }
    }

    fn said(uid: &str, containers: &[ReportedContainer]) -> ProviderPodReport {
        ProviderPodReport {
            uid: uid.into(),
            node: "node".into(),
            namespace: "n".into(),
            name: "p".into(),
            generation: "g".into(),
            status: status(containers),
        }
    }

    fn list(instance: &str, pods: &[ProviderPodReport]) -> ProviderPodList {
        ProviderPodList {
            instance: instance.into(),
            cursor: String::new(),
            pods: pods.to_vec(),
        }
    }

    /// Takes in a list that was asked for just now.
    fn take(
        table: &mut ProviderPodTable,
        listed: ProviderPodList,
    ) -> Result<ProviderListChanges, ProviderFault> {
        let begun = table.begin_list();
        table.take_pod_list(begun, listed, "node", NOW)
    }

    fn states(table: &ProviderPodTable) -> Vec<(String, ContainerState, u32)> {
        let status = table.pod_status(&"u".into()).unwrap_or_default();
        let containers = status.containers.into_iter();
        containers
            .map(|c| (c.name, c.state, c.restart_count))
            .collect()
    }

    /// A table that was told of the pod `u`.
    fn told(pod: &Pod) -> ProviderPodTable {
        let mut table = ProviderPodTable::default();
        table.expect_pod(pod);
        take(&mut table, list("one", &[])).expect("good");
        let bad = table.record_acknowledgement(&"u".into(), "g", status(&[running("c", 0)]), NOW);
        assert_eq!(bad, []);
        table
    }

    #[test]
    fn only_what_counts_makes_another_pod() {
        // PROV-06 PROV-11
        let base = pod(json!({}));
        let mut same = base.clone();
        same.status.reason = "x".into();
        same.metadata.resource_version = "7".into();
        same.spec.priority = Some(3);
        same.spec.node_name = "node".into();
        let seen = same
            .metadata
            .annotations
            .insert(CONFIG_SEEN.into(), "now".into());
        assert_eq!((seen, pod_generation(&same)), (None, pod_generation(&base)));
        type Change = fn(&mut Pod);
        let changes: [(&str, Change); 6] = [
            ("containers", |p| {
                p.spec.containers[0].image = "other".into()
            }),
            ("init containers", |p| {
                p.spec
                    .init_containers
                    .push(crate::api::Container::default())
            }),
            ("deadline", |p| p.spec.active_deadline_seconds = Some(1)),
            ("tolerations", |p| {
                p.spec.tolerations.push(Default::default())
            }),
            ("labels", |p| {
                drop(p.metadata.labels.insert("a".into(), "b".into()))
            }),
            ("annotations", |p| {
                drop(p.metadata.annotations.insert("a".into(), "b".into()))
            }),
        ];
        for (name, change) in changes {
            let mut other = base.clone();
            change(&mut other);
            assert_ne!(pod_generation(&other), pod_generation(&base), "{name}");
        }
    }

    #[test]
    fn what_is_told_is_told_once() {
        // PROV-05 PROV-06
        let mut table = ProviderPodTable::default();
        let uid = PodUid::from("u");
        table.expect_pod(&pod(json!({})));
        assert!(table.must_tell_provider(&uid, "g"), "never told");
        table.record_acknowledgement(&uid, "g", ReportedPodStatus::default(), NOW);
        assert!(!table.must_tell_provider(&uid, "g"));
        assert!(table.must_tell_provider(&uid, "h"), "it changed");
        // An agent that starts finds the pod in the list.
        let mut table = ProviderPodTable::default();
        take(&mut table, list("one", &[said("u", &[running("c", 0)])])).expect("good");
        assert!(!table.must_tell_provider(&uid, "g"));
        // Two pods of one name are told separately.
        let mut namesake = pod(json!({}));
        namesake.metadata.uid = "v".into();
        table.expect_pod(&namesake);
        assert!(table.must_tell_provider(&"v".into(), "g") && !table.must_tell_provider(&uid, "g"));
        // An answer for a forgotten pod changes nothing.
        table.forget_pod(&uid);
        assert_eq!(
            table.record_acknowledgement(&uid, "g", ReportedPodStatus::default(), NOW),
            []
        );
        assert!(!table.has_pod(&uid));
    }

    #[test]
    fn lists_that_were_asked_for_before_a_newer_word_say_nothing_of_its_pod() {
        // PROV-02 PRVD-07
        let mut table = ProviderPodTable::default();
        table.expect_pod(&pod(json!({})));
        let early = table.begin_list();
        table.record_acknowledgement(&"u".into(), "g", status(&[running("c", 0)]), NOW);
        for _ in 0..3 {
            let news = table.take_pod_list(early, list("one", &[]), "node", NOW);
            assert_eq!(news.expect("good").sync, []);
        }
        assert!(!table.is_lost(&"u".into()));
        let early = table.begin_list();
        table.record_removal(&"u".into(), None, NOW);
        let stale = list("one", &[said("u", &[running("c", 0)])]);
        table
            .take_pod_list(early, stale, "node", NOW)
            .expect("good");
        assert!(table.is_gone(&"u".into()));
    }

    #[test]
    fn forgotten_is_what_two_lists_of_one_instance_leave_out() {
        // PRVD-07
        let uid = PodUid::from("u");
        let all = [said("u", &[running("c", 0)])];
        for (name, lists, lost) in [
            ("once", vec![list("one", &[])], false),
            ("twice", vec![list("one", &[]), list("one", &[])], true),
            (
                "with it between",
                vec![list("one", &[]), list("one", &all), list("one", &[])],
                false,
            ),
            (
                "by two instances",
                vec![list("one", &[]), list("two", &[])],
                false,
            ),
            (
                "by one that never had it",
                vec![list("two", &[]), list("two", &[]), list("two", &[])],
                false,
            ),
        ] {
            let mut table = told(&pod(json!({})));
            take(&mut table, list("one", &all)).expect("good");
            for list in lists {
                take(&mut table, list).expect("good");
                table.record_silence();
            }
            assert_eq!(table.is_lost(&uid), lost, "{name}");
            let state = if lost {
                ContainerState::Exited
            } else {
                ContainerState::Running
            };
            assert_eq!(states(&table), [("c".into(), state, 0)], "{name}");
        }
        // A provider that starts anew is told the pod again.
        let mut table = told(&pod(json!({})));
        let news = take(&mut table, list("two", &[])).expect("good");
        assert_eq!(news.sync, core::slice::from_ref(&uid));
        assert!(table.must_tell_provider(&uid, "g"));
    }

    #[test]
    fn statuses_are_checked() {
        // PRVD-05
        let with = |change: fn(&mut ReportedContainer)| {
            let mut container = running("c", 1);
            change(&mut container);
            vec![container]
        };
        for (name, containers, why) in [
            (
                "foreign",
                vec![running("x", 0)],
                "no container of that name",
            ),
            ("twice", vec![ended("c", 1, 3), ended("c", 1, 3)], "twice"),
            ("fewer restarts", vec![ended("c", 0, 0)], "became less"),
            ("another code", vec![ended("c", 1, 4)], "exitCode"),
            ("runs again", vec![running("c", 1)], "runs again"),
            (
                "no such state",
                with(|c| c.state = "glows".into()),
                "state must be",
            ),
            (
                "no time",
                with(|c| c.started_at = "x".into()),
                "is not a time",
            ),
            (
                "later",
                with(|c| c.started_at = "2033-01-01T00:00:00Z".into()),
                "in the future",
            ),
            (
                "no start",
                with(|c| c.started_at.clear()),
                "needs startedAt",
            ),
        ] {
            let mut table = told(&pod(json!({})));
            let before = [ended("c", 1, 3)];
            take(&mut table, list("one", &[said("u", &before)])).expect("good");
            let known = states(&table);
            let news = take(&mut table, list("one", &[said("u", &containers)])).expect("good");
            assert!(
                news.bad.len() == 1 && news.bad[0].why.contains(why),
                "{name}: {news:?}"
            );
            assert_eq!(states(&table), known, "{name}");
            // The repeated report is no news.
            let news = take(&mut table, list("one", &[said("u", &containers)])).expect("good");
            assert_eq!(news.bad, [], "{name}");
            let next = [running("c", 2), ended("d", 0, 0)];
            let news = take(&mut table, list("one", &[said("u", &next)])).expect("good");
            assert_eq!(news.bad, [], "{name}");
            assert_eq!(states(&table)[0].2, 2, "{name}");
        }
        // A pod with restartPolicy Never does not run again.
        let mut table = told(&pod(json!({"restartPolicy": "Never"})));
        take(&mut table, list("one", &[said("u", &[ended("c", 0, 0)])])).expect("good");
        let news = take(&mut table, list("one", &[said("u", &[running("c", 1)])])).expect("good");
        assert!(news.bad[0].why.contains("Never"));
    }

    #[test]
    fn what_is_too_much_is_not_believed() {
        let mut table = told(&pod(json!({})));
        let many: Vec<ProviderPodReport> = (0..=MAX_PODS)
            .map(|n| said(&format!("u{n}"), &[]))
            .collect();
        for (listed, why) in [
            (list("one", &many), "more than 512"),
            (list("one", &[said("u", &[]), said("u", &[])]), "twice"),
            (list("", &[]), "instance"),
            (list(&"x".repeat(MAX_WORD_BYTES + 1), &[]), "instance"),
        ] {
            let error = take(&mut table, listed).expect_err(why);
            assert!(error.0.contains(why), "{error}");
        }
        assert_eq!(table.pod_items().len(), 1, "nothing of it counts");
        let mut long = running("c", 0);
        long.message = "x".repeat(MAX_MESSAGE_BYTES + 1);
        let many = vec![running("c", 0); MAX_CONTAINERS + 1];
        for containers in [vec![long], many] {
            let bad = table.record_acknowledgement(&"u".into(), "g", status(&containers), NOW);
            assert_eq!(bad.len(), 1);
        }
        let ip = ReportedPodStatus {
            pod_ips: vec!["10.0.0.300".into()],
            ..ReportedPodStatus::default()
        };
        let bad = table.record_acknowledgement(&"u".into(), "g", ip, NOW);
        assert!(bad[0].why.contains("no address"));
    }

    #[test]
    fn an_end_is_the_providers_word() {
        // PROV-01 PRVD-06
        let uid = PodUid::from("u");
        let mut table = told(&pod(json!({})));
        assert!(!table.has_ended(&uid));
        let one = [ended("c", 0, 3), running("d", 0)];
        take(&mut table, list("one", &[said("u", &one)])).expect("good");
        assert!(!table.has_ended(&uid), "another runs");
        let all = [ended("c", 0, 3), ended("d", 0, 0)];
        take(&mut table, list("one", &[said("u", &all)])).expect("good");
        assert!(table.has_ended(&uid) && !table.is_gone(&uid));
        table.record_removal(&uid, None, NOW);
        assert!(table.is_gone(&uid));
        let codes: Vec<i32> = table
            .pod_status(&uid)
            .expect("kept")
            .containers
            .iter()
            .map(|c| c.exit_code)
            .collect();
        assert_eq!(codes, [3, 0], "its codes are not invented");
        // Gone without a last report: the end is unknown.
        let mut table = told(&pod(json!({})));
        table.record_removal(&uid, None, NOW);
        let status = table.pod_status(&uid).expect("kept");
        assert_eq!(
            (
                status.containers[0].exit_code,
                &*status.containers[0].reason
            ),
            (137, LOST)
        );
        let mut table = told(&pod(json!({})));
        let last = ReportedPodStatus {
            containers: vec![ended("c", 0, 9)],
            ..ReportedPodStatus::default()
        };
        table.record_removal(&uid, Some(last), NOW);
        assert_eq!(
            table.pod_status(&uid).expect("kept").containers[0].exit_code,
            9
        );
        table.forget_pod(&uid);
        assert_eq!(table.pod_items(), []);
    }

    #[test]
    fn what_has_ended_is_kept_for_its_logs() {
        // PRVD-10
        let uid = PodUid::from("u");
        let mut table = told(&pod(json!({"restartPolicy": "Never"})));
        assert!(!table.decide_to_keep(&uid), "it runs");
        let end = || list("one", &[said("u", &[ended("c", 0, 3)])]);
        take(&mut table, end()).expect("good");
        assert!(table.decide_to_keep(&uid));
        // No later report changes the end of a kept pod.
        let other = list("one", &[said("u", &[running("c", 7), ended("x", 0, 0)])]);
        let news = take(&mut table, other).expect("good");
        assert_eq!((news.bad, news.sync), (Vec::new(), Vec::new()));
        assert_eq!(states(&table), [("c".into(), ContainerState::Exited, 0)]);
        // A kept pod that the provider has forgotten is forgotten here, and not told again.
        let news = take(&mut table, list("two", &[])).expect("good");
        assert_eq!((news.sync, table.has_pod(&uid)), (Vec::new(), false));

        // An agent that starts may get the report later; a pod that runs after all is not kept.
        for (said_later, kept) in [(ended("c", 0, 3), 1), (running("c", 0), 0)] {
            let mut table = ProviderPodTable::default();
            assert!(table.decide_to_keep(&uid));
            take(&mut table, list("one", &[said("u", &[said_later])])).expect("good");
            assert_eq!(table.pods.0.iter().filter(|e| e.kept).count(), kept);
        }
        let mut table = told(&pod(json!({})));
        table.record_removal(&uid, None, NOW);
        assert!(!table.decide_to_keep(&uid), "it is not there");
    }

    #[test]
    fn only_so_many_are_kept_and_the_first_to_end_goes() {
        // PRVD-10
        let mut table = ProviderPodTable::default();
        let uid = |n: usize| format!("u{n}");
        let ended_at = |n: usize| ReportedContainer {
            finished_at: format!("2023-11-14T22:{:02}:{:02}Z", 10 + n % 3, n / 3),
            started_at: String::new(),
            ..ended("c", 0, 0)
        };
        let all: Vec<ProviderPodReport> = (0..=MAX_KEPT)
            .map(|n| said(&uid(n), &[ended_at(n)]))
            .collect();
        take(&mut table, list("one", &all)).expect("good");
        for n in (0..=MAX_KEPT).rev() {
            assert_eq!(table.surplus_kept_pod(), None, "{n}");
            assert!(table.decide_to_keep(&PodUid::from(&*uid(n))));
        }
        assert_eq!(table.surplus_kept_pod(), Some("u0".into()));
        table.forget_pod(&"u0".into());
        assert_eq!(table.surplus_kept_pod(), None);
    }

    #[test]
    fn shapes_are_checked() {
        // PRVD-02
        let good = json!({"instance": "i", "pods": [{"uid": "u", "more": 1, "status": {"podIPs": ["::1"], "containers": [
            {"name": "c", "state": "terminated", "exitCode": -1, "restartCount": 2, "finishedAt": THEN}]}}]});
        let read = ProviderPodList::parse(&good).expect("good");
        let container = ReportedContainer {
            started_at: String::new(),
            ..ended("c", 2, -1)
        };
        assert_eq!(read.pods[0].status.containers, [container]);
        assert_eq!(read.pods[0].status.pod_ips, ["::1"]);
        let of_pod = |status: Value| json!({"pods": [{"status": {}}, {"status": status}]});
        let of_container = |container: Value| of_pod(json!({"containers": [container]}));
        for (wrong, why) in [
            (json!([]), "a map is missing around instance"),
            (json!({"instance": 1}), "instance must be a text"),
            (json!({"cursor": null}), "cursor must be a text"),
            (json!({"pods": {}}), "pods must be a list"),
            (
                json!({"pods": [[]]}),
                "pods[0]: a map is missing around uid",
            ),
            (of_pod(json!([])), "pods[1]: a map is missing around podIPs"),
            (
                of_pod(json!({"podIPs": [1]})),
                "pods[1]: podIPs must be a list of texts",
            ),
            (
                of_container(json!(1)),
                "pods[1]: containers[0]: a map is missing around name",
            ),
            (
                of_container(json!({"restartCount": -1})),
                "pods[1]: containers[0]: restartCount is not a number in its range",
            ),
            (
                of_container(json!({"exitCode": 4_294_967_296_u64})),
                "pods[1]: containers[0]: exitCode is not a number in its range",
            ),
            (
                of_container(json!({"message": []})),
                "pods[1]: containers[0]: message must be a text",
            ),
        ] {
            let said = ProviderPodList::parse(&wrong).expect_err(why);
            assert_eq!(said.to_string(), why);
        }
    }

    #[test]
    fn pods_are_told_in_plain_words() {
        // PRVD-03
        let with = json!({
            "initContainers": [{"name": "i", "image": "i", "envFrom": [{"configMapRef": {"name": "m"}}]}],
            "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}],
        });
        let mut pod = pod(with);
        pod.status.reason = "not told".into();
        let plain = |name: &str| vec![(name.to_string(), "a \"b\"".to_string())];
        let volume = |name: &str| VolumePath {
            name: name.into(),
            path: format!("/x/{name} \\"),
            read_only: name == "v",
        };
        let (volumes, all) = ([volume("v"), volume("w")], vec![plain("B"), plain("A")]);
        let told = pod_message(&pod, "n\"ode", "g", all, &volumes);
        let told: Value = serde_json::from_slice(&told).expect("JSON");
        let env = |name: &str| json!([{"name": name, "value": "a \"b\""}]);
        let wanted = json!({
            "node": "n\"ode", "generation": "g",
            "volumes": {
                "v": {"path": "/x/v \\", "readOnly": true}, "w": {"path": "/x/w \\", "readOnly": false},
            },
            "pod": {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n", "uid": "u"},
                "spec": {
                    "initContainers": [{"name": "i", "image": "i", "env": env("B")}],
                    "containers": [{"name": "c", "image": "i", "env": env("A")}],
                },
            },
        });
        assert_eq!(told, wanted);
    }

    #[test]
    fn pods_of_other_nodes_are_not_there() {
        // PROV-04 PRVD-04
        let mut table = ProviderPodTable::default();
        let mut other = said("other", &[running("c", 0)]);
        other.node = "elsewhere".into();
        let own = said("u", &[running("c", 0)]);
        take(&mut table, list("one", &[other, own])).expect("good");
        let uids: Vec<PodUid> = table.pod_items().into_iter().map(|pod| pod.uid).collect();
        assert_eq!(uids, ["u".into()]);
        // The agent never asked for this pod: it is forgotten as soon as it is not listed.
        let news = take(&mut table, list("one", &[])).expect("good");
        assert!(news.changed && table.pod_items().is_empty());
    }

    #[test]
    fn ids_lead_to_their_pods() {
        let table = told(&pod(json!({})));
        let status = table.pod_status(&"u".into()).expect("there");
        let (container, sandbox) = (&status.containers[0].id, &status.sandboxes[0].id);
        assert_eq!(
            table.find_container(container),
            Some(("u".into(), "c".into()))
        );
        assert_eq!(table.find_sandbox_pod(sandbox), Some("u".into()));
        assert_eq!(table.find_sandbox_pod(&"provided-x".into()), None);
        assert_eq!(table.find_sandbox_pod(&"u".into()), None);
    }
}
