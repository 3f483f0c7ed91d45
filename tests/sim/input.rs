//! What can happen to a machine, as plain data, and schedules of it drawn from a seed.

use serde::{Deserialize, Serialize};

use super::pods::{Kind, Manifest, PORT_NAMES};

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
    /// A running container of the pod in this file ends.
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
    /// The agent is killed after so many steps of its tasks, and another starts later; its first look at the manifests
    /// takes a while. With `power` the machine goes down with it.
    Crash {
        after_steps: u32,
        down_ms: u64,
        source_ms: u64,
        power: bool,
    },
    /// `picolet stop --all`; the agent starts again some time after it has ended.
    StopAll { down_ms: u64 },
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

    fn small(&mut self, end: u8) -> u8 {
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
        let input = match random.below(100) {
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
                container: random.pick(&["c", "d", "side"]).into(),
                ignores: random.percent(70),
            },
            65..77 => Input::Fault {
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
            },
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
            90..99 => Input::Crash {
                after_steps: u32::try_from(random.below(40)).expect("small"),
                down_ms: random.pick(&[0, 0, 300, 4000]),
                source_ms: random.pick(&[0, 0, 50, 1500, 6000]),
                power: random.percent(15),
            },
            _ => Input::StopAll {
                down_ms: random.below(5000),
            },
        };
        add(at_ms, input);
    }
    schedule
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
    let kind = random.pick(&Kind::ALL);
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
            if kind != Kind::Port {
                pod.kind = kind;
            }
        }
        _ => {}
    }
    pod
}
