//! What happened in a campaign, so that one in which something never happened is no proof.

use alloc::collections::BTreeMap;

use super::{Kind, disk::Part};
use crate::runtime::fake::Op;

/// Something that schedules are to bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// The agent was killed while no call of the runtime was under way.
    KilledAtRest,
    /// The agent was killed when some container was created and not started.
    KilledBeforeStart,
    /// The agent was killed while it stopped a pod.
    KilledWhileTerminating,
    /// The agent was killed between the stop of a pod and the end of its last step.
    KilledWhileTerminated,
    /// The machine went down as well.
    PowerCut,
    /// With it went the run directory and all that the runtime knew.
    EverythingForgotten,
    /// Files were lost or torn.
    RecordsLost,
    /// Containers had ended that may not run again.
    EndsRemembered,
    /// The agent was killed between two changes of the disk.
    KilledBetweenChanges,
    /// The disk was full, read-only or broken.
    DiskFails,
    /// The ConfigMap came or went.
    SettingsChange,
    /// The Secret did.
    SecretChange,
    /// A container was not ready by its probe.
    NotReady,
    /// A container was killed because of its probe.
    KilledUnwell,
    /// Memory was found short.
    MemoryShort,
    /// Bytes of the disk were, its inodes, process numbers.
    DiskShort,
    InodesShort,
    PidsShort,
    /// `picolet stop --all` ended the agent.
    StoppedAll,
    EventLost,
    EventDoubled,
    EventLate,
    /// An event overtook one that was sent before it.
    EventsReordered,
    /// Manifests were removed while the pod had a container that ran.
    ForcedDeletion,
    /// A pod was created under the uid of one on its way out.
    SameUidAsked,
    /// It got a slot of its own in the life of one agent.
    SameUidCreated,
    /// Two files spoke of one pod.
    Double,
    GraceShortened,
    /// A call was told to end early.
    Cancelled,
    /// The table was told of a pod that was to end before its first call.
    EndedUnstarted,
    /// What an agent before this one left was ended by the runtime's word alone.
    RuntimeOrphan,
    DeadlineExceeded,
    CrashLoopBackOff,
    ImagePullBackOff,
    /// A host port was taken.
    PortRefused,
    Succeeded,
    Failed,
    OutOfMemory,
    SandboxLost,
    Deaf,
    RuntimeNotReady,
    NetworkNotReady,
    ClockForward,
    ClockBack,
}

const ALL: [What; 44] = [
    What::KilledAtRest,
    What::KilledBeforeStart,
    What::KilledWhileTerminating,
    What::KilledWhileTerminated,
    What::PowerCut,
    What::EverythingForgotten,
    What::RecordsLost,
    What::EndsRemembered,
    What::KilledBetweenChanges,
    What::DiskFails,
    What::SettingsChange,
    What::SecretChange,
    What::NotReady,
    What::KilledUnwell,
    What::MemoryShort,
    What::DiskShort,
    What::InodesShort,
    What::PidsShort,
    What::StoppedAll,
    What::EventLost,
    What::EventDoubled,
    What::EventLate,
    What::EventsReordered,
    What::ForcedDeletion,
    What::SameUidAsked,
    What::SameUidCreated,
    What::Double,
    What::GraceShortened,
    What::Cancelled,
    What::EndedUnstarted,
    What::RuntimeOrphan,
    What::DeadlineExceeded,
    What::CrashLoopBackOff,
    What::ImagePullBackOff,
    What::PortRefused,
    What::Succeeded,
    What::Failed,
    What::OutOfMemory,
    What::SandboxLost,
    What::Deaf,
    What::RuntimeNotReady,
    What::NetworkNotReady,
    What::ClockForward,
    What::ClockBack,
];

/// Errors of the kernel that the disk has to give, each in every part.
const DISK: [i32; 3] = [libc::EIO, libc::ENOSPC, libc::EROFS];
/// See there.
const PARTS: [Part; 2] = [Part::Records, Part::Volumes];

/// Calls during which the agent has to be killed at least once.
const KILLED_IN: [Op; 13] = [
    Op::Status,
    Op::ListPods,
    Op::PodStatus,
    Op::RunPodSandbox,
    Op::StopPodSandbox,
    Op::RemovePodSandbox,
    Op::CreateContainer,
    Op::StartContainer,
    Op::StopContainer,
    Op::RemoveContainer,
    Op::Exec,
    Op::ImageStatus,
    Op::PullImage,
];

/// What has to happen to a node of a cluster.
const CLUSTER: [&str; 34] = [
    "object doubled",
    "foreign object",
    "token refused",
    "token given",
    "lost",
    "answerless",
    "refused",
    "busy",
    "cut",
    "stale",
    "outage",
    "restore",
    "watch of the future",
    "bell broken",
    "bell muted",
    "ring doubled",
    "ring late",
    "ring for nobody",
    "name used again",
    "labels",
    "image",
    "resized",
    "deleted",
    "grace shortened",
    "ended pod deleted",
    "ended pod removed",
    "removed by force",
    "evicted",
    "not ready by others",
    "gate",
    "failed by others",
    "mirror removed",
    "delete refused",
    "terminal phase told",
];

/// What else has to happen there.
const OF_BOTH: [What; 18] = [
    What::KilledUnwell,
    What::MemoryShort,
    What::DiskShort,
    What::InodesShort,
    What::PidsShort,
    What::KilledAtRest,
    What::KilledBeforeStart,
    What::PowerCut,
    What::EverythingForgotten,
    What::RecordsLost,
    What::EndsRemembered,
    What::KilledBetweenChanges,
    What::DiskFails,
    What::SettingsChange,
    What::SecretChange,
    What::StoppedAll,
    What::OutOfMemory,
    What::RuntimeNotReady,
];

/// How often.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Instants at which something happened.
    pub(super) instants: u64,
    /// Time that passed.
    pub(super) virtual_ms: u64,
    /// Agents that were killed.
    pub(super) kills: u64,
    what: BTreeMap<What, u64>,
    killed_in: BTreeMap<Op, u64>,
    /// Operations that were judged.
    pub(super) judged: BTreeMap<Op, u64>,
    /// Calls that went wrong, by how.
    pub(super) faults: BTreeMap<(Op, &'static str), u64>,
    /// Changes of the disk that failed, by error of the kernel and by what they were of.
    pub(super) disk: BTreeMap<(i32, Part), u64>,
    /// Tasks that were ready and went behind others.
    pub(super) waited: u64,
    /// What happened in the cluster.
    pub(super) api: BTreeMap<&'static str, u64>,
}

impl Counts {
    pub(super) fn saw(&mut self, what: What) {
        *self.what.entry(what).or_default() += 1;
    }

    pub(super) fn killed_in(&mut self, op: Op) {
        *self.killed_in.entry(op).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.instants += other.instants;
        self.virtual_ms += other.virtual_ms;
        self.kills += other.kills;
        for (what, more) in &other.what {
            *self.what.entry(*what).or_default() += more;
        }
        for (op, more) in &other.killed_in {
            *self.killed_in.entry(*op).or_default() += more;
        }
        for (op, more) in &other.judged {
            *self.judged.entry(*op).or_default() += more;
        }
        for (what, more) in &other.disk {
            *self.disk.entry(*what).or_default() += more;
        }
        self.waited += other.waited;
        for (what, more) in &other.api {
            *self.api.entry(what).or_default() += more;
        }
        for (fault, more) in &other.faults {
            *self.faults.entry(*fault).or_default() += more;
        }
    }

    /// What never happened.
    ///
    /// `schedules`: how many there were. What comes a few times in 10,000 is asked for among more only: seeds are new in each run.
    pub(super) fn missing(&self, kind: Kind, schedules: u64) -> Vec<String> {
        /// So many schedules have everything.
        const ALL_FROM: u64 = 100_000;
        let is_rare = |what: &What| *what == What::EndsRemembered && schedules < ALL_FROM;
        let is_rare_op = |op: Op| op == Op::PullImage && schedules < ALL_FROM;
        if kind == Kind::Resizes {
            return Vec::new();
        }
        let all = DISK
            .iter()
            .flat_map(|errno| PARTS.map(|part| (*errno, part)));
        let never = all.filter(|what| !self.disk.contains_key(what));
        let mut missing: Vec<String> = never.map(|(e, p)| format!("errno {e} in {p:?}")).collect();
        if self.waited == 0 {
            missing.push("another task goes first".into());
        }
        if kind == Kind::Cluster {
            let none = CLUSTER.iter().filter(|what| !self.api.contains_key(*what));
            missing.extend(none.map(|what| (*what).to_owned()));
            let none = OF_BOTH.iter().filter(|what| !self.what.contains_key(what));
            missing.extend(none.map(|what| format!("{what:?}")));
            return missing;
        }
        let none = ALL.iter().filter(|what| !self.what.contains_key(what));
        let none = none.filter(|what| !is_rare(what));
        missing.extend(none.map(|what| format!("{what:?}")));
        let grace = (Op::StopContainer, "uses the grace up");
        if !self.faults.contains_key(&grace) {
            missing.push(format!("{grace:?}"));
        }
        for op in KILLED_IN.into_iter().filter(|op| !is_rare_op(*op)) {
            if !self.killed_in.contains_key(&op) {
                missing.push(format!("killed in {op:?}"));
            }
            for how in ["fails", "fails after", "hangs", "times out"] {
                if !self.faults.contains_key(&(op, how)) {
                    missing.push(format!("{op:?} {how}"));
                }
            }
        }
        missing
    }
}

impl core::fmt::Display for Counts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        writeln!(
            f,
            "{} instants in {} days, {} agents killed",
            self.instants,
            self.virtual_ms / 86_400_000,
            self.kills
        )?;
        for what in ALL {
            write!(f, "{what:?} {}, ", self.what.get(&what).unwrap_or(&0))?;
        }
        if !self.api.is_empty() {
            write!(f, "\nin the cluster: ")?;
        }
        for (what, count) in &self.api {
            write!(f, "{what} {count}, ")?;
        }
        write!(f, "\nthe disk failed with: ")?;
        for ((errno, part), count) in &self.disk {
            write!(f, "errno {errno} in {part:?} {count}, ")?;
        }
        write!(f, "\nother tasks went first: {}", self.waited)?;
        write!(f, "\nkilled during: ")?;
        for (op, count) in &self.killed_in {
            write!(f, "{op:?} {count}, ")?;
        }
        write!(f, "\njudged: ")?;
        for (op, count) in &self.judged {
            write!(f, "{op:?} {count}, ")?;
        }
        write!(f, "\nwent wrong: ")?;
        for ((op, how), count) in &self.faults {
            write!(f, "{op:?} {how} {count}, ")?;
        }
        Ok(())
    }
}
