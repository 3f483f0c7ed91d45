//! What can happen to a machine, as plain data, and schedules of it drawn from a seed.

use serde::{Deserialize, Serialize};

use super::{
    super::tests::api,
    pods::{Kind, Manifest, PORT_NAMES, TOO_LITTLE_MIB},
};

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Input {
    /// A manifest is written, or written over.
    Put { file: u8, pod: Manifest },
    /// A manifest is removed: a forced deletion, for no grace was announced.
    Remove { file: u8 },
    /// The `nth` running container ends.
    Exit { nth: u8, code: i32 },
    /// A running container of the pod in this file ends, or of that of this name in the API.
    ExitIn { file: u8, code: i32 },
    /// The `nth` running container runs out of memory.
    OutOfMemory { nth: u8 },
    /// The network of the `nth` pod is lost.
    LoseSandbox { nth: u8 },
    /// Containers of this name ignore their stop signal from now on, or obey it again.
    Ignore { container: String, ignores: bool },
    /// The next calls of the runtime go wrong.
    Fault {
        call: Call,
        times: u32,
        trouble: Trouble,
    },
    /// One of so many updates of a container fails from now on.
    UpdatesFail { every: u32 },
    /// Calls that hang go on.
    Release,
    /// Calls take up to so long from now on.
    Latency { max_ms: u64, seed: u64 },
    /// Events on their way to the loop are lost, doubled and late, in hundredths; 0 ends it.
    Tamper {
        lost: u64,
        doubled: u64,
        late: u64,
        late_ms: u64,
        seed: u64,
    },
    /// The doorbell of the runtime is cut or mended.
    Deaf { deaf: bool },
    /// The image that was missing can be had.
    Offer,
    /// Somebody says that images arrived.
    ImagesArrived,
    /// What the runtime says of itself and its network.
    Conditions { runtime: bool, network: bool },
    /// The wall clock is set.
    Jump { by_s: i64 },
    /// The agent is killed after so many steps of its tasks, or before one of its next changes of the disk, and another starts
    /// later; its first look at the manifests takes a while. With `power` the machine goes down with it.
    Crash {
        after_steps: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_changes: Option<u32>,
        down_ms: u64,
        source_ms: u64,
        power: bool,
        /// Of a power cut that takes what was not synced, the run directory and all that the runtime knew.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loses: Option<u64>,
    },
    /// Commands that say of a container whether it is ready, or whether it lives, fail from now on, or end well.
    Probe { lives: bool, fails: bool },
    /// The ConfigMap that some pods need is there from now on, or is gone.
    Settings { present: bool },
    /// The same of the Secret.
    Secret { present: bool },
    /// The apiserver gives no tokens from now on, or gives them.
    Tokens { refused: bool },
    /// Of the tasks that are ready others go first, so often out of 64; 0 ends it.
    Order { often: u64, seed: u64 },
    /// Changes of the disk fail so from now on, or no longer.
    Disk { trouble: Option<DiskTrouble> },
    /// The same of those in volumes alone.
    Volumes { trouble: Option<DiskTrouble> },
    /// `picolet stop --all`; the agent starts again some time after it has ended.
    StopAll { down_ms: u64 },
    /// So much memory is left.
    MemoryLeft { mib: u16 },
    /// So much of something else is.
    Left(Left),
    /// The machine is a node of a cluster, from the beginning; its agents have a doorbell there, or none.
    Join { doorbell: bool, seed: u64 },
    /// Somebody does something to the pod of that name in the API.
    Api { name: u8, deed: Deed },
    /// Something happens to the apiserver, or on the way to it.
    Apiserver(Apiserver),
}

/// What is left of something but memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Left {
    DiskMib(u16),
    Inodes(u32),
    Pids(u16),
}

/// What users and controllers do to a pod in the API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Deed {
    /// It is made and bound to this node, unless its name is taken.
    Create { pod: Manifest },
    /// It gets other labels.
    Label { version: u32 },
    /// Its first container gets another image.
    Image,
    /// Its first container gets this much of memory and of the processor, in MiB and thousandths.
    Resize { mib: u16, milli: u16 },
    /// It is deleted with that grace; a second time it can only shrink.
    Delete { grace_s: i64 },
    /// It is evicted.
    Evict,
    /// It is deleted by force.
    Force,
    /// The node controller writes `Ready=False`, as after an outage of the link.
    NotReady,
    /// A condition of somebody else.
    Gate { version: u32 },
    /// Somebody else writes that it has failed.
    Fail,
}

/// Seconds that a pod has which is evicted by way of the API.
const EVICTION_GRACE_S: i64 = 5;

impl Deed {
    /// With which grace the pod is to end, if it is.
    pub(super) const fn grace_s(&self) -> Option<i64> {
        match self {
            Self::Delete { grace_s } => Some(*grace_s),
            Self::Evict => Some(EVICTION_GRACE_S),
            _ => None,
        }
    }
}

/// What happens to the apiserver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Apiserver {
    /// How often requests go wrong from now on.
    Odds { odds: Odds, seed: u64 },
    /// Requests and answers take up to so long each from now on.
    Latency { max_ms: u64 },
    /// Nothing arrives for so long; or all that arrives is done, and no answer comes back.
    Outage { ms: u64, mute: bool },
    /// Rings come up to so late, twice or without a name, in hundredths.
    Bell {
        late_ms: u64,
        doubled: u64,
        unknown: u64,
        seed: u64,
    },
    /// The watch that is open tells nothing more, until it is given up.
    Mute,
    /// The watch that is open breaks.
    Break,
    /// A backup is made; stale lists show this state.
    Keep,
    /// The store is put back to the backup.
    Restore,
    /// Somebody deletes a mirror pod.
    RemoveMirror { nth: u8 },
}

/// How often requests go wrong, in hundredths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Odds {
    lost: u64,
    answerless: u64,
    refused: u64,
    busy: u64,
    cut: u64,
    stale: u64,
    #[serde(default)]
    doubled: u64,
    #[serde(default)]
    foreign: u64,
}

impl From<Odds> for api::Odds {
    fn from(odds: Odds) -> Self {
        Self {
            lost: odds.lost,
            answerless: odds.answerless,
            refused: odds.refused,
            busy: odds.busy,
            cut: odds.cut,
            stale: odds.stale,
            doubled: odds.doubled,
            foreign: odds.foreign,
        }
    }
}

/// A call of the runtime that can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Call {
    Status,
    ListPods,
    PodStatus,
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    Exec,
    ImageStatus,
    PullImage,
}

const CALLS: [Call; 13] = [
    Call::Status,
    Call::ListPods,
    Call::PodStatus,
    Call::RunPodSandbox,
    Call::StopPodSandbox,
    Call::RemovePodSandbox,
    Call::CreateContainer,
    Call::StartContainer,
    Call::StopContainer,
    Call::RemoveContainer,
    Call::Exec,
    Call::ImageStatus,
    Call::PullImage,
];

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Trouble {
    /// It fails and has done nothing.
    Fails,
    /// It does its work and fails all the same.
    FailsAfter,
    /// It hangs until [`Input::Release`] or the end of all trouble.
    Hangs,
    /// It takes this long and fails.
    TimesOut { ms: u64 },
}

/// How a disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum DiskTrouble {
    /// No room is left.
    Full,
    /// It was made read-only.
    ReadOnly,
    /// It gives errors.
    Broken,
}

impl DiskTrouble {
    const ALL: [Self; 3] = [Self::Full, Self::ReadOnly, Self::Broken];

    /// The kernel's error.
    pub(super) const fn errno(self) -> i32 {
        match self {
            Self::Full => libc::ENOSPC,
            Self::ReadOnly => libc::EROFS,
            Self::Broken => libc::EIO,
        }
    }
}

/// An [`Input`] and its time, milliseconds after the machine was switched on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Timed {
    pub(super) at_ms: u64,
    pub(super) input: Input,
}

/// Numbers that look random (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which must not be 0.
    pub(super) const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True in so many of a hundred cases.
    pub(super) const fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let index = self.below(from.len() as u64);
        from[usize::try_from(index).expect("below a length")]
    }

    pub(super) fn small(&mut self, end: u8) -> u8 {
        u8::try_from(self.below(u64::from(end))).expect("below a byte")
    }
}

/// Files in the manifest directory.
const FILES: u8 = 3;

/// Draws a schedule.
pub(super) fn draw(seed: u64) -> Vec<Timed> {
    let random = &mut Random::new(seed);
    let mut files: [Option<Manifest>; FILES as usize] = [None, None, None];
    let mut at_ms = 0;
    let mut schedule = Vec::new();
    // Trouble that lasts is drawn for half of the schedules: the others are about the order of things.
    let mut add = |at_ms: u64, input: Input| schedule.push(Timed { at_ms, input });
    if random.percent(60) {
        let max_ms = random.pick(&[1, 5, 50, 400, 3000]);
        let seed = random.next();
        add(0, Input::Latency { max_ms, seed });
    }
    if random.percent(40) {
        add(0, tampering(random));
    }
    if random.percent(50) {
        add(0, order(random));
    }
    let mut version = 0;
    for _ in 0..random.below(15) + 4 {
        at_ms += match random.below(4) {
            0 => 0,
            1 => random.below(60),
            2 => random.below(2500),
            _ => random.below(15_000),
        };
        let file = random.small(FILES);
        let index = usize::from(file);
        let input = match random.below(109) {
            0..38 => {
                version += 1;
                let pod = match files[index].clone() {
                    None => new_pod(random, file, version),
                    Some(pod) => edited(random, pod, version),
                };
                files[index] = Some(pod.clone());
                Input::Put { file, pod }
            }
            38..50 => {
                let Some(pod) = files[index].take() else {
                    continue;
                };
                // Sometimes all go together, and sometimes this one comes back while they go.
                if random.percent(30) {
                    for other in (0..FILES).filter(|other| *other != file) {
                        if files[usize::from(other)].take().is_some() {
                            add(at_ms, Input::Remove { file: other });
                        }
                    }
                }
                if random.percent(30) {
                    add(at_ms, Input::Remove { file });
                    at_ms += random.below(4000);
                    files[index] = Some(pod.clone());
                    Input::Put { file, pod }
                } else {
                    Input::Remove { file }
                }
            }
            50..57 => Input::Exit {
                nth: random.small(6),
                code: random.pick(&[0, 1, 137]),
            },
            57..59 => Input::OutOfMemory {
                nth: random.small(6),
            },
            59..62 => Input::LoseSandbox {
                nth: random.small(4),
            },
            62..65 => Input::Ignore {
                container: random.pick(&["c", "d", "side", "last"]).into(),
                ignores: random.percent(70),
            },
            65..77 => runtime_fault(random),
            77..80 => Input::Release,
            80..82 => Input::Deaf {
                deaf: random.percent(70),
            },
            82..84 => Input::Offer,
            84..85 => Input::ImagesArrived,
            85..87 => Input::Conditions {
                runtime: random.percent(50),
                network: random.percent(50),
            },
            87..89 => Input::Jump {
                by_s: random.pick(&[-1_000_000_000, -3600, -5, 5, 3600, 1_000_000_000]),
            },
            89..90 => tampering(random),
            90..91 => disk_trouble(random),
            91..92 => Input::Settings {
                present: random.percent(60),
            },
            92..101 => crash(random, 40, &[0, 0, 300, 4000]),
            101..104 => probe(random),
            104..106 => Input::Secret {
                present: random.percent(60),
            },
            106..108 => volume_trouble(random),
            _ => Input::StopAll {
                down_ms: random.below(5000),
            },
        };
        add(at_ms, input);
    }
    schedule
}

fn probe(random: &mut Random) -> Input {
    Input::Probe {
        lives: random.percent(60),
        fails: random.percent(70),
    }
}

fn runtime_fault(random: &mut Random) -> Input {
    Input::Fault {
        call: random.pick(&CALLS),
        times: u32::from(random.small(4)) + 1,
        trouble: match random.below(10) {
            0..4 => Trouble::Fails,
            4..6 => Trouble::FailsAfter,
            6..8 => Trouble::Hangs,
            _ => Trouble::TimesOut {
                ms: random.below(20_000),
            },
        },
    }
}

/// Pods of the API in schedules of a cluster, by name.
const NAMES: u8 = 3;
/// Files in the manifest directory of a node of a cluster.
const CLUSTER_FILES: u8 = 1;

/// Draws a schedule of a node of a cluster.
pub(super) fn draw_cluster(seed: u64) -> Vec<Timed> {
    // Other seeds than those of a node that stands alone.
    let random = &mut Random::new(seed ^ 0x00c1_u64.rotate_left(40));
    let mut at_ms = 0;
    let mut schedule = Vec::new();
    let mut add = |at_ms: u64, input: Input| schedule.push(Timed { at_ms, input });
    let doorbell = random.percent(75);
    let seed = random.next();
    add(0, Input::Join { doorbell, seed });
    if random.percent(60) {
        let max_ms = random.pick(&[1, 20, 300, 3000, 15_000]);
        add(0, Input::Apiserver(Apiserver::Latency { max_ms }));
    }
    if random.percent(60) {
        add(0, Input::Apiserver(odds(random)));
    }
    if random.percent(40) {
        let max_ms = random.pick(&[1, 50, 400, 3000]);
        let seed = random.next();
        add(0, Input::Latency { max_ms, seed });
    }
    if random.percent(25) {
        add(0, tampering(random));
    }
    if random.percent(40) {
        add(0, Input::Apiserver(bell(random)));
    }
    if random.percent(50) {
        add(0, order(random));
    }
    let mut file: Option<Manifest> = None;
    let mut version = 0;
    for _ in 0..random.below(24) + 6 {
        at_ms += match random.below(5) {
            0 => 0,
            1 => random.below(60),
            2 => random.below(2500),
            3 => random.below(15_000),
            _ => random.below(60_000),
        };
        let name = random.small(NAMES);
        version += 1;
        let input = match random.below(115) {
            0..20 => Input::Api {
                name,
                deed: Deed::Create {
                    pod: api_pod(random, name, version),
                },
            },
            20..48 => Input::Api {
                name,
                deed: deed(random, version),
            },
            48..64 => Input::Apiserver(happening(random)),
            64..69 => {
                let pod = match file.take() {
                    None => new_static(random, version),
                    Some(old) => Manifest {
                        deleted_s: None,
                        ..edited(random, old, version)
                    },
                };
                file = Some(pod.clone());
                Input::Put {
                    file: CLUSTER_FILES - 1,
                    pod,
                }
            }
            69..71 => {
                file = None;
                Input::Remove {
                    file: CLUSTER_FILES - 1,
                }
            }
            71..78 => Input::Exit {
                nth: random.small(6),
                code: random.pick(&[0, 1, 137]),
            },
            78..80 => Input::LoseSandbox {
                nth: random.small(4),
            },
            80..82 => Input::Ignore {
                container: random.pick(&["c", "d", "side", "last"]).into(),
                ignores: random.percent(70),
            },
            82..88 => runtime_fault(random),
            88..90 => Input::Release,
            90..91 => Input::Deaf {
                deaf: random.percent(70),
            },
            91..92 => Input::Offer,
            92..93 => Input::OutOfMemory {
                nth: random.small(6),
            },
            93..94 => disk_trouble(random),
            94..95 => Input::Settings {
                present: random.percent(60),
            },
            95..96 => Input::Conditions {
                runtime: random.percent(50),
                network: random.percent(50),
            },
            96..97 => Input::StopAll {
                down_ms: random.below(5000),
            },
            97..98 => Input::Jump {
                by_s: random.pick(&[-3600, -5, 5, 3600]),
            },
            98..101 => probe(random),
            101..103 => Input::Secret {
                present: random.percent(60),
            },
            103..105 => Input::Tokens {
                refused: random.percent(60),
            },
            105..107 => volume_trouble(random),
            _ => crash(random, 60, &[0, 0, 300, 4000, 40_000]),
        };
        add(at_ms, input);
    }
    schedule
}

pub(super) fn crash(random: &mut Random, steps: u64, down_ms: &[u64]) -> Input {
    let power = random.percent(30);
    Input::Crash {
        after_steps: u32::try_from(random.below(steps)).expect("small"),
        after_changes: random
            .percent(30)
            .then(|| u32::try_from(random.below(8)).expect("small")),
        down_ms: random.pick(down_ms),
        source_ms: random.pick(&[0, 0, 50, 1500, 6000]),
        power,
        loses: (power && random.percent(65)).then(|| random.next()),
    }
}

fn disk_trouble(random: &mut Random) -> Input {
    Input::Disk {
        trouble: random.percent(70).then(|| random.pick(&DiskTrouble::ALL)),
    }
}

fn volume_trouble(random: &mut Random) -> Input {
    Input::Volumes {
        trouble: random.percent(70).then(|| random.pick(&DiskTrouble::ALL)),
    }
}

pub(super) fn order(random: &mut Random) -> Input {
    Input::Order {
        often: random.pick(&[2, 16, 32, 48]),
        seed: random.next(),
    }
}

fn odds(random: &mut Random) -> Apiserver {
    let mut some = |most: u64| match random.percent(50) {
        true => random.below(most),
        false => 0,
    };
    let odds = Odds {
        lost: some(40),
        answerless: some(40),
        refused: some(30),
        busy: some(20),
        cut: some(40),
        stale: some(40),
        doubled: some(40),
        foreign: some(40),
    };
    let seed = random.next();
    Apiserver::Odds { odds, seed }
}

fn bell(random: &mut Random) -> Apiserver {
    Apiserver::Bell {
        late_ms: random.pick(&[1, 50, 3000, 60_000]),
        doubled: random.pick(&[0, 30]),
        unknown: random.pick(&[0, 0, 20]),
        seed: random.next(),
    }
}

fn deed(random: &mut Random, version: u32) -> Deed {
    match random.below(32) {
        0..4 => Deed::Label { version },
        4..8 => Deed::Image,
        8..15 => Deed::Delete {
            grace_s: random.pick(&[1, 2, 5, 30, 60]),
        },
        15..17 => Deed::Evict,
        17..20 => Deed::Force,
        20..23 => Deed::NotReady,
        23..26 => Deed::Gate { version },
        26..30 => Deed::Resize {
            // Also less than a container of the fake uses, and more than the node has.
            mib: random.pick(&[TOO_LITTLE_MIB, 8, 16, 64, 2000]),
            milli: random.pick(&[50, 100, 200, 5000]),
        },
        _ => Deed::Fail,
    }
}

fn happening(random: &mut Random) -> Apiserver {
    match random.below(24) {
        0..3 => odds(random),
        3..5 => Apiserver::Latency {
            max_ms: random.pick(&[0, 1, 300, 5000]),
        },
        5..9 => Apiserver::Outage {
            ms: random.pick(&[500, 5000, 60_000, 400_000]),
            mute: random.percent(40),
        },
        9..11 => bell(random),
        11..13 => Apiserver::Mute,
        13..16 => Apiserver::Break,
        16..20 => Apiserver::Keep,
        20..22 => Apiserver::Restore,
        _ => Apiserver::RemoveMirror { nth: 0 },
    }
}

fn api_pod(random: &mut Random, name: u8, version: u32) -> Manifest {
    loop {
        let kind = random.pick(&Kind::ALL);
        if kind != Kind::Port && (kind != Kind::WithToken || name < NAMES) {
            return Manifest {
                name,
                own_uid: false,
                kind,
                version,
                grace_s: random.pick(&[0, 1, 2, 5, 30]),
                deleted_s: None,
            };
        }
    }
}

/// Static pods have names of their own.
fn new_static(random: &mut Random, version: u32) -> Manifest {
    Manifest {
        name: 100,
        // With a uid of its own its mirror would show the spec that it had first, as upstream.
        own_uid: false,
        ..api_pod(random, 100, version)
    }
}

fn tampering(random: &mut Random) -> Input {
    Input::Tamper {
        lost: random.pick(&[0, 10, 50, 100]),
        doubled: random.pick(&[0, 20]),
        late: random.pick(&[0, 20, 60]),
        late_ms: random.pick(&[1, 20, 1000, 8000]),
        seed: random.next(),
    }
}

fn new_pod(random: &mut Random, file: u8, version: u32) -> Manifest {
    // Tokens are for pods of the API.
    let kind = match random.pick(&Kind::ALL) {
        Kind::WithToken => Kind::WithSecret,
        kind => kind,
    };
    let port = kind == Kind::Port;
    Manifest {
        // Now and then two files speak of one pod.
        name: if random.percent(12) { 0 } else { file } + if port { PORT_NAMES } else { 0 },
        own_uid: port || random.percent(60),
        kind,
        version,
        grace_s: random.pick(&[0, 1, 2, 5, 30]),
        deleted_s: random
            .percent(4)
            .then(|| random.below(40).try_into().expect("small")),
    }
}

fn edited(random: &mut Random, old: Manifest, version: u32) -> Manifest {
    let old_kind = old.kind;
    let mut pod = Manifest { version, ..old };
    match random.below(10) {
        // The end is announced, or hurried.
        0..4 => {
            let grace_s = random.below(40).try_into().expect("small");
            pod.deleted_s = Some(old.deleted_s.unwrap_or(60).min(grace_s));
            // The same object but for its end.
            pod.version = old.version;
        }
        4..7 if old_kind != Kind::Port => {
            let kind = random.pick(&Kind::ALL);
            if ![Kind::Port, Kind::WithToken].contains(&kind) {
                pod.kind = kind;
            }
        }
        _ => {}
    }
    pod
}
