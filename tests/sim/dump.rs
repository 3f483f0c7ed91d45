//! From what an agent kept (`picolet debug dump`) to a schedule: what its sources told it and what died, at those times. Of
//! pods only the shape is known, and of failed calls only that they failed: the rules are checked on the same course of
//! events, not on the same machine.

use alloc::collections::BTreeMap;

use super::{
    super::ring::{self, Heard, Line, Seen},
    input::{Input, Timed},
    pods::{Kind, Manifest},
};

/// The schedule in a dump.
pub(super) fn schedule(text: &str) -> Result<Vec<Timed>, String> {
    let (_, lines) =
        ring::tests::parse(text).map_err(|line| format!("line {line} is none of a dump"))?;
    let start = lines.first().map_or(0, |line| line.t);
    let mut files = BTreeMap::new();
    let inputs = lines
        .iter()
        .filter_map(|line| Some((line, input(line, &mut files)?)));
    Ok(inputs
        .map(|(line, input)| Timed {
            at_ms: line.t.saturating_sub(start),
            input,
        })
        .collect())
}

fn input(line: &Line, files: &mut BTreeMap<String, u8>) -> Option<Input> {
    // More pods than that are not told apart.
    let next = u8::try_from(files.len()).unwrap_or(u8::MAX);
    let mut file_of = |pod: &str| *files.entry(pod.into()).or_insert(next);
    Some(match line.heard.as_ref()? {
        Heard::Add(seen) | Heard::Update(seen) => {
            let file = file_of(&seen.pod);
            Input::Put {
                file,
                pod: manifest(file, seen),
            }
        }
        Heard::Remove { pod } => Input::Remove { file: file_of(pod) },
        Heard::Images => Input::Offer,
        Heard::Pleg { pod, kind, .. } if kind == "ContainerDied" => Input::ExitIn {
            file: file_of(pod),
            code: 1,
        },
        Heard::Stop { all: true } => Input::StopAll { down_ms: 1000 },
        Heard::Stop { all: false } | Heard::Terminate => Input::Crash {
            after_steps: 0,
            down_ms: 1000,
            source_ms: 0,
            power: false,
        },
        Heard::Pleg { .. } | Heard::Done { .. } | Heard::Objects | Heard::Reconcile(_) => {
            return None;
        }
    })
}

fn manifest(file: u8, seen: &Seen) -> Manifest {
    Manifest {
        name: file,
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

    #[test]
    fn a_dump_becomes_a_schedule() {
        let text = r#"{"v":1,"picolet":"0.1.0","nowMs":9000,"wall":"2026-01-31T12:00:00Z","lost":0,"state":""}
{"t":1204,"in":{"add":{"pod":"0a1b","name":"default/web","static":true,"deleted":false,"graceS":3,"restart":"Always","init":0,"containers":2}}}
{"t":1204,"out":{"start":{"pod":"0a1b","call":"sync","graceS":null,"kind":"create","sinceMs":1204,"first":true}}}
{"t":1395,"in":{"pleg":{"pod":"0a1b","kind":"ContainerDied","id":"x"}}}
{"t":1500,"in":{"remove":{"pod":"0a1b"}}}
"#;
        let pod = Manifest {
            name: 0,
            own_uid: true,
            kind: Kind::Pair,
            version: 1,
            grace_s: 3,
            deleted_s: None,
        };
        let expected = [
            (0, Input::Put { file: 0, pod }),
            (191, Input::ExitIn { file: 0, code: 1 }),
            (296, Input::Remove { file: 0 }),
        ];
        let expected = expected.map(|(at_ms, input)| Timed { at_ms, input });
        assert_eq!(schedule(text).expect("a dump"), expected);
    }
}
