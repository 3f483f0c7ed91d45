//! The patch that brings a pod's status in the API to what the agent wants it to say.
//!
//! A kubelet holds the API's object and sends the difference of two statuses. Here no object is held: memory per pod is
//! precious, and the copy on disk is older than our own writes. So a patch does not carry *changes*, it carries the
//! *wanted state*, in four parts, and only the parts that differ ([`ApiStatusDigest`] keeps a digest of each):
//!
//! | part | fields | how the API merges it |
//! |---|---|---|
//! | lead | `phase`, `reason`, `message` | by field; absent ones are sent as `null` |
//! | conditions | the agent's own, and `DisruptionTarget` at the end | by `type`; foreign ones are not named and stay |
//! | containers | the three lists of statuses | each list is replaced as a whole |
//! | rest | addresses, `startTime`, `qosClass`, `observedGeneration`, `resources`, `allocatedResources` | by field; `podIPs` and `hostIPs` would merge by `ip`, so they carry `$patch: replace` |
//!
//! Such a patch is right whatever the API shows by then. Sent twice, or over a status that another party changed
//! unseen, it leads to the same status: fields that must not exist are sent as `null`, and conditions of ours that do
//! not hold as `$patch: delete`, even if the API never showed them. It needs little of the API's copy: the phase (a
//! terminal one is never left), and the state of `DisruptionTarget`, whose time stays unless its status changes.
//!
//! A terminal phase must not be sent while containers may still run: then the lead is left out.
//!
//! Some servers do not show what they were sent: an older one drops fields that it does not know, and each writes
//! quantities in its own way. The difference is remembered as a [`ServerStatusQuirk`]; without it, a difference that
//! no write can remove would be written for ever. This is safe because the patch decides every field of a part: the answer then
//! holds no field of the part that others wrote before.
//!
//! Source: kubelet `status/status_manager.go` (`mergePodStatus`), `util/pod/pod.go` (`PatchPodStatus`); apimachinery
//! `util/strategicpatch`; the patch strategies of `PodStatus` in core/v1.

use alloc::{string::String, vec::Vec};

use serde_json::{Map, Value, json};

use super::{
    conditions::{self, DISRUPTION_TARGET},
    fnv::fnv1a,
};
use crate::api::{
    PodUid, WallTime,
    order::OrderExt,
    pod_status::{PodCondition, PodPhase, PodStatus},
    strict,
};

/// Parts of a status.
const PARTS: usize = 4;
const LEAD: usize = 0;
const CONDITIONS: usize = 1;
const CONTAINERS: usize = 2;
const REST: usize = 3;

/// Fields of each part, but for the conditions.
const FIELDS: [&[&str]; PARTS] = [
    &["phase", "reason", "message"],
    &[],
    &[
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
    ],
    &[
        "hostIP",
        "hostIPs",
        "podIP",
        "podIPs",
        "startTime",
        "qosClass",
        "observedGeneration",
        "allocatedResources",
        "resources",
    ],
];

/// Fields of a condition that are sent as `null` if the condition does not have them.
const CONDITION_FIELDS: [&str; 3] = ["reason", "message", "observedGeneration"];

/// Digests of the parts of one status. Conditions count without their times, and without those of others.
pub type StatusDigests = [u64; PARTS];

/// Digest of the status that the API shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiStatusDigest {
    digests: StatusDigests,
    /// True if `DisruptionTarget` is `True`; `None` without such a condition.
    disrupted: Option<bool>,
    /// Phase.
    pub phase: PodPhase,
}

impl ApiStatusDigest {
    /// Digests a status.
    #[must_use]
    pub fn from_status(status: &PodStatus) -> Self {
        Self {
            digests: [
                digest_part(lead_part(status)),
                conditions_digest(&status.conditions),
                digest_part(containers_part(status)),
                digest_part(remaining_part(status)),
            ],
            disrupted: conditions::find_condition(&status.conditions, DISRUPTION_TARGET)
                .map(|c| c.status == "True"),
            phase: status.phase,
        }
    }

    /// Returns a copy whose conditions differ from every status: then they are sent in any case, for their times are in
    /// no digest.
    #[must_use]
    pub const fn with_unmatched_conditions(mut self) -> Self {
        self.digests[CONDITIONS] = !self.digests[CONDITIONS];
        self
    }
}

/// Difference between the status that a server was sent and the one it shows for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerStatusQuirk {
    told: StatusDigests,
    shown: StatusDigests,
}

/// Digest of a patch, to be kept until its answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchDigest {
    wanted: StatusDigests,
    /// Parts that the patch carries.
    parts: [bool; PARTS],
}

impl PatchDigest {
    /// Returns the quirk to remember after the API has answered with `shown`, beside `shown` itself. For parts that the
    /// patch did not carry the answer only shows what others wrote.
    #[must_use]
    pub fn quirk_of_answer(
        &self,
        before: Option<&ServerStatusQuirk>,
        shown: &ApiStatusDigest,
    ) -> Option<ServerStatusQuirk> {
        let mut quirk = before.copied().unwrap_or(ServerStatusQuirk {
            told: self.wanted,
            shown: self.wanted,
        });
        for part in (0..PARTS).filter(|part| self.parts[*part]) {
            quirk.told[part] = self.wanted[part];
            quirk.shown[part] = shown.digests[part];
        }
        (quirk.told != quirk.shown).then_some(quirk)
    }
}

/// A status as it is to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusPatch {
    /// The body: a strategic merge patch of the `status` subresource.
    pub body: Value,
    /// Digest of the patch.
    pub told: PatchDigest,
}

/// Makes the patch that turns the status in the API into `stored`. `None`: the API shows it already (SM-01, SM-05,
/// SM-07, SM-08, DEL-02).
///
/// - `could_run`: containers of the pod may still be running, so a move to a terminal phase, its reason and message,
///   and `DisruptionTarget` are withheld.
/// - A terminal phase that the API shows is never left, nor swapped for the other (STAT-12).
/// - The body has at most all of the status.
#[must_use]
pub fn compute_status_patch(
    uid: &PodUid,
    api: &ApiStatusDigest,
    quirk: Option<&ServerStatusQuirk>,
    stored: &PodStatus,
    could_run: bool,
    now: WallTime,
) -> Option<StatusPatch> {
    let ending = !api.phase.is_terminal() && stored.phase.is_terminal();
    let withheld = if api.phase.is_terminal() {
        stored.phase != api.phase
    } else {
        ending && could_run
    };
    let phase = if withheld { api.phase } else { stored.phase };
    let own = own_conditions(stored, phase, now);
    let wanted = [
        if withheld {
            api.digests[LEAD]
        } else {
            digest_part(lead_part(stored))
        },
        conditions_digest(&own),
        digest_part(containers_part(stored)),
        digest_part(remaining_part(stored)),
    ];
    let differs = |part: usize| {
        let shown = api.digests[part];
        let as_it_was_taken =
            |q: &ServerStatusQuirk| q.told[part] == wanted[part] && q.shown[part] == shown;
        shown != wanted[part] && !quirk.is_some_and(as_it_was_taken)
    };
    let mut parts = [LEAD, CONDITIONS, CONTAINERS, REST].map(differs);
    if parts == [false; PARTS] {
        return None;
    }
    let mut status = Map::new();
    for (part, of) in [
        (LEAD, lead_part as fn(&PodStatus) -> PodStatus),
        (CONTAINERS, containers_part),
        (REST, remaining_part),
    ] {
        if parts[part] {
            set_patch_field(&mut status, part, &of(stored));
        }
    }
    let disruption = (ending && !could_run)
        .then(|| disruption_to_send(stored, api, now))
        .flatten();
    if parts[CONDITIONS] || disruption.is_some() {
        parts[CONDITIONS] = true;
        set_patch_conditions(&mut status, &own, disruption);
    }
    Some(StatusPatch {
        body: json!({"metadata": {"uid": uid}, "status": status}),
        told: PatchDigest { wanted, parts },
    })
}

fn lead_part(status: &PodStatus) -> PodStatus {
    PodStatus {
        phase: status.phase,
        reason: status.reason.clone(),
        message: status.message.clone(),
        ..PodStatus::default()
    }
}

fn containers_part(status: &PodStatus) -> PodStatus {
    PodStatus {
        init_container_statuses: status.init_container_statuses.clone(),
        container_statuses: status.container_statuses.clone(),
        ephemeral_container_statuses: status.ephemeral_container_statuses.clone(),
        ..PodStatus::default()
    }
}

fn remaining_part(status: &PodStatus) -> PodStatus {
    PodStatus {
        host_ip: status.host_ip.clone(),
        host_ips: status.host_ips.clone(),
        pod_ip: status.pod_ip.clone(),
        pod_ips: status.pod_ips.clone(),
        start_time: status.start_time,
        qos_class: status.qos_class,
        observed_generation: status.observed_generation,
        allocated_resources: status.allocated_resources.clone(),
        resources: status.resources.clone(),
        ..PodStatus::default()
    }
}

/// Digest of a part's JSON. Encoding does not fail: a status consists of texts, numbers and lists.
fn digest_part(part: PodStatus) -> u64 {
    fnv1a(serde_json::to_vec(&part).unwrap_or_default())
}

fn conditions_digest(all: &[PodCondition]) -> u64 {
    let mut own: Vec<PodCondition> = all
        .iter()
        .filter(|c| conditions::is_owned_by_agent(&c.kind))
        .cloned()
        .collect();
    own.stable_sort_by(|a, b| a.kind.cmp(&b.kind));
    for condition in &mut own {
        condition.last_transition_time = None;
    }
    digest_part(PodStatus {
        conditions: own,
        ..PodStatus::default()
    })
}

/// The agent's conditions, with the readiness that `phase` forces.
fn own_conditions(stored: &PodStatus, phase: PodPhase, now: WallTime) -> Vec<PodCondition> {
    let mut own: Vec<PodCondition> = stored
        .conditions
        .iter()
        .filter(|c| conditions::is_owned_by_agent(&c.kind))
        .cloned()
        .collect();
    let forced = conditions::compute_terminal_readiness(phase);
    for mut condition in forced.into_iter().flatten() {
        let before = conditions::find_condition(&stored.conditions, &condition.kind);
        condition.observed_generation = before.and_then(|c| c.observed_generation);
        condition.last_transition_time = before
            .filter(|c| c.status == condition.status)
            .and_then(|c| c.last_transition_time)
            .or_else(|| Some(now.truncated_to_second()));
        conditions::put_condition(&mut own, condition);
    }
    own
}

/// `DisruptionTarget` as it is sent with the pod's end. Its time is sent only if its status is new.
fn disruption_to_send(
    stored: &PodStatus,
    api: &ApiStatusDigest,
    now: WallTime,
) -> Option<PodCondition> {
    let mut condition = conditions::find_condition(&stored.conditions, DISRUPTION_TARGET)?.clone();
    let same = api.disrupted == Some(condition.status == "True");
    condition.last_transition_time = (!same).then(|| now.truncated_to_second());
    Some(condition)
}

fn set_patch_field(status: &mut Map<String, Value>, part: usize, of: &PodStatus) {
    let Ok(Value::Object(mut fields)) = strict::to_value(of) else {
        return;
    };
    for name in FIELDS[part] {
        let mut field = fields.remove(*name).unwrap_or(Value::Null);
        if let ("hostIPs" | "podIPs", Value::Array(list)) = (*name, &mut field) {
            list.insert(0, json!({"$patch": "replace"}));
        }
        status.insert((*name).into(), field);
    }
}

fn set_patch_conditions(
    status: &mut Map<String, Value>,
    own: &[PodCondition],
    disruption: Option<PodCondition>,
) {
    let (mut list, mut order) = (Vec::new(), Vec::new());
    for condition in own.iter().chain(&disruption) {
        order.push(json!({"type": condition.kind}));
        let mut value = strict::to_value(condition).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            for name in CONDITION_FIELDS {
                fields.entry(name).or_insert(Value::Null);
            }
            // A condition that keeps its time is sent without it.
            if condition.last_transition_time.is_none() {
                fields.remove("lastTransitionTime");
            }
        }
        list.push(value);
    }
    for kind in conditions::OWNED {
        if conditions::find_condition(own, kind).is_none() {
            list.push(json!({"$patch": "delete", "type": kind}));
        }
    }
    status.insert("$setElementOrder/conditions".into(), order.into());
    status.insert("conditions".into(), list.into());
}

#[cfg(test)]
mod tests;
