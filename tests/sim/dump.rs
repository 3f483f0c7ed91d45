//! From what an agent kept (`picolet debug dump`) to a schedule: what its sources told it, what died, and how runtime and
//! apiserver were, at those times. Of pods only the shape is known, and of failed calls only that they failed: the rules
//! are checked on the same course of events, not on the same machine.

use alloc::collections::BTreeMap;

use super::{
    super::{
        ring::{self, RecordedEvent, RecordedLine, RecordedPod},
        views::ApiAnswer,
    },
    input::{Apiserver, Deed, Input, Timed},
    pods::{Kind, Manifest},
};

/// The schedule in a dump.
pub(super) fn schedule(text: &str) -> Result<Vec<Timed>, String> {
    let (header, lines) =
        ring::tests::parse_dump(text).map_err(|line| format!("line {line} is none of a dump"))?;
    let start = lines.first().map_or(0, |line| line.t);
    let mut reader = Reader {
        in_cluster: lines.iter().any(is_of_cluster),
        pods: BTreeMap::new(),
    };
    let mut schedule = Vec::new();
    if reader.in_cluster {
        let input = Input::Join {
            doorbell: true,
            seed: 1,
        };
        schedule.push(Timed { at_ms: 0, input });
    }
    for (n, line) in lines.iter().enumerate() {
        let until = answers_again(&lines[n..]).unwrap_or(header.now_ms);
        let input = line.heard.as_ref();
        if let Some(input) = input.and_then(|heard| reader.input(heard, until - line.t)) {
            let at_ms = line.t.saturating_sub(start);
            schedule.push(Timed { at_ms, input });
        }
    }
    Ok(schedule)
}

/// Whether only a node of a cluster hears that.
fn is_of_cluster(line: &RecordedLine) -> bool {
    match &line.heard {
        Some(RecordedEvent::Add(seen)) => !seen.is_static,
        Some(heard) => matches!(heard, RecordedEvent::Api(_)),
        None => false,
    }
}

/// When the apiserver answers next.
fn answers_again(lines: &[RecordedLine]) -> Option<u64> {
    let answers =
        |line: &&RecordedLine| line.heard == Some(RecordedEvent::Api(ApiAnswer::Answers(true)));
    lines.iter().find(answers).map(|line| line.t)
}

struct Reader {
    in_cluster: bool,
    /// By uid.
    pods: BTreeMap<String, Known>,
}

/// A pod of the dump.
#[derive(Clone, Copy)]
struct Known {
    number: u8,
    /// From a file.
    is_static: bool,
    /// Its end is announced.
    deleted: bool,
    /// How often it changed.
    version: u32,
}

impl Reader {
    /// The pod of that uid.
    fn known(&mut self, pod: &str) -> &mut Known {
        // More pods than that are not told apart.
        let number = u8::try_from(self.pods.len()).unwrap_or(u8::MAX);
        self.pods.entry(pod.into()).or_insert(Known {
            number,
            is_static: true,
            deleted: false,
            version: 1,
        })
    }

    /// What has the agent hear that; `None`: that comes by itself, or cannot be made to. `outage_ms`: how long one lasts
    /// that begins there.
    fn input(&mut self, heard: &RecordedEvent, outage_ms: u64) -> Option<Input> {
        Some(match heard {
            RecordedEvent::Add(seen) | RecordedEvent::Update(seen) => self.changed(seen),
            RecordedEvent::Remove { pod } => {
                let known = *self.known(pod);
                match known {
                    Known { number: file, is_static: true, .. } => Input::Remove { file },
                    // The agent deletes it itself.
                    Known { deleted: true, .. } => return None,
                    Known { number: name, .. } => Input::Api {
                        name,
                        deed: Deed::Force,
                    },
                }
            }
            RecordedEvent::Images => Input::Offer,
            RecordedEvent::Pleg { pod, kind, .. } if kind == "ContainerDied" => Input::ExitIn {
                file: self.known(pod).number,
                code: 1,
            },
            RecordedEvent::Conditions { runtime, network } => Input::Conditions {
                runtime: *runtime,
                network: *network,
            },
            RecordedEvent::Api(ApiAnswer::Answers(false)) => Input::Apiserver(Apiserver::Outage {
                ms: outage_ms,
                mute: false,
            }),
            RecordedEvent::Shutdown | RecordedEvent::Stop { all: true } => Input::StopAll { down_ms: 1000 },
            RecordedEvent::Stop { all: false } | RecordedEvent::Terminate => Input::Crash {
                after_steps: 0,
                after_changes: None,
                down_ms: 1000,
                source_ms: 0,
                power: false,
                loses: None,
            },
            // The end of an outage is part of it.
            RecordedEvent::Api(ApiAnswer::Answers(true))
            // Nobody looks at a simulated node.
            | RecordedEvent::Restart { .. }
            // Lists fail in an outage; a write is in conflict with what became of its pod, which sources tell.
            | RecordedEvent::Api(ApiAnswer::Lists(_) | ApiAnswer::Write { .. })
            // Pods of the simulation have no probes, and what they refer to never changes.
            | RecordedEvent::Probed { .. }
            | RecordedEvent::Objects
            | RecordedEvent::Resync(_)
            // What calls, records, writes and lists of the simulation come to is their own.
            | RecordedEvent::Pleg { .. }
            | RecordedEvent::Listed { .. }
            | RecordedEvent::Step(_)
            | RecordedEvent::Done { .. }
            | RecordedEvent::Unrecorded { .. }
            | RecordedEvent::Unread { .. }
            | RecordedEvent::RecordsWait(_)
            | RecordedEvent::Shown { .. }
            | RecordedEvent::Reconcile(_)
            | RecordedEvent::ShutdownCancelled => return None,
        })
    }

    /// A pod is new or another in its source.
    fn changed(&mut self, seen: &RecordedPod) -> Input {
        let in_cluster = self.in_cluster;
        let is_new = !self.pods.contains_key(&seen.pod);
        let known = self.known(&seen.pod);
        known.is_static = seen.is_static || !in_cluster;
        known.deleted = seen.deleted;
        known.version += u32::from(!is_new);
        let Known {
            number, version, ..
        } = *known;
        let pod = Manifest {
            name: number,
            // With a uid of its own its mirror would show the spec that it had first.
            own_uid: !in_cluster,
            ..manifest(seen)
        };
        if known.is_static {
            return Input::Put { file: number, pod };
        }
        let deed = match (is_new, pod.deleted_s) {
            (true, _) => Deed::Create { pod },
            (false, Some(grace_s)) => Deed::Delete { grace_s },
            (false, None) => Deed::Label { version },
        };
        Input::Api { name: number, deed }
    }
}

fn manifest(seen: &RecordedPod) -> Manifest {
    Manifest {
        name: 0,
        own_uid: true,
        kind: match (seen.restart.as_str(), seen.init, seen.containers) {
            ("Never", ..) => Kind::Once,
            ("OnFailure", ..) => Kind::OnFailure,
            (_, 0, 0 | 1) => Kind::Sleeps,
            (_, 0, _) => Kind::Pair,
            _ => Kind::Init,
        },
        version: 1,
        grace_s: seen.grace_s.unwrap_or(30),
        deleted_s: seen.deleted.then_some(seen.grace_s.unwrap_or(30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed<const N: usize>(inputs: [(u64, Input); N]) -> [Timed; N] {
        inputs.map(|(at_ms, input)| Timed { at_ms, input })
    }

    fn sleeper(name: u8, own_uid: bool) -> Manifest {
        Manifest {
            name,
            own_uid,
            kind: Kind::Sleeps,
            version: 1,
            grace_s: 3,
            deleted_s: None,
        }
    }

    #[test]
    fn a_dump_becomes_a_schedule() {
        let text = r#"{"v":1,"picolet":"0.1.0","nowMs":9000,"wall":"2026-01-31T12:00:00Z","lost":0,"state":""}
{"t":1204,"in":{"add":{"pod":"0a1b","name":"default/web","static":true,"deleted":false,"graceS":3,"restart":"Always","init":0,"containers":2}}}
{"t":1204,"out":{"start":{"pod":"0a1b","call":"sync","graceS":null,"kind":"create","sinceMs":1204,"first":true}}}
{"t":1395,"in":{"pleg":{"pod":"0a1b","kind":"ContainerDied","id":"x"}}}
{"t":1500,"in":{"remove":{"pod":"0a1b"}}}
"#;
        let pod = Manifest {
            kind: Kind::Pair,
            ..sleeper(0, true)
        };
        let expected = timed([
            (0, Input::Put { file: 0, pod }),
            (191, Input::ExitIn { file: 0, code: 1 }),
            (296, Input::Remove { file: 0 }),
        ]);
        assert_eq!(schedule(text).expect("a dump"), expected);
    }

    #[test]
    fn a_dump_of_a_cluster_becomes_a_schedule() {
        let text = r#"{"v":2,"picolet":"0.1.0","nowMs":99000,"wall":"2026-01-31T12:00:00Z","lost":0,"state":""}
{"t":1000,"in":{"conditions":{"runtime":true,"network":false}}}
{"t":1000,"in":{"api":{"answers":true}}}
{"t":1200,"in":{"add":{"pod":"s","name":"default/s","static":true,"deleted":false,"graceS":3,"restart":"Always","init":0,"containers":1}}}
{"t":1204,"in":{"add":{"pod":"0a1b","name":"ns/web","static":false,"deleted":false,"graceS":3,"restart":"Always","init":0,"containers":1}}}
{"t":1205,"in":{"step":{"pod":"0a1b","step":"begun","phase":"Pending"}}}
{"t":2000,"in":{"probed":{"pod":"0a1b","id":"x","kind":"readiness","result":"success"}}}
{"t":3000,"in":{"api":{"answers":false}}}
{"t":3500,"in":{"api":{"lists":false}}}
{"t":7000,"in":{"api":{"answers":true}}}
{"t":7100,"in":{"api":{"write":{"pod":"0a1b","what":"status","word":"conflict"}}}}
{"t":8000,"in":{"update":{"pod":"0a1b","name":"ns/web","static":false,"deleted":false,"graceS":3,"restart":"Always","init":0,"containers":1}}}
{"t":8500,"in":{"update":{"pod":"0a1b","name":"ns/web","static":false,"deleted":true,"graceS":2,"restart":"Always","init":0,"containers":1}}}
{"t":9000,"in":{"remove":{"pod":"0a1b"}}}
{"t":9500,"in":{"api":{"answers":false}}}
"#;
        let api = |deed| Input::Api { name: 1, deed };
        let outage = |ms| Input::Apiserver(Apiserver::Outage { ms, mute: false });
        let (doorbell, seed) = (true, 1);
        let (runtime, network) = (true, false);
        let pod = sleeper(1, false);
        let expected = timed([
            (0, Input::Join { doorbell, seed }),
            (0, Input::Conditions { runtime, network }),
            (
                200,
                Input::Put {
                    file: 0,
                    pod: sleeper(0, false),
                },
            ),
            (204, api(Deed::Create { pod })),
            (2000, outage(4000)),
            (7000, api(Deed::Label { version: 2 })),
            (7500, api(Deed::Delete { grace_s: 2 })),
            (8500, outage(89_500)),
        ]);
        assert_eq!(schedule(text).expect("a dump"), expected);
    }
}
