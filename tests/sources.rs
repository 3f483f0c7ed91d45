//! The manifest directory from file to operation: source, rules and mux together.

use std::fs;
use std::path::PathBuf;

use picolet::api::{PodUid, WallTime};
use picolet::logic::mux::{MergeResult, PodSource, SourceMux, SourceOperation};
use picolet::logic::{object_fields, static_pod, validation};
use picolet::source::{ManifestDir, Rules, SourceReading, Trigger};

const RULES: Rules = Rules {
    pod: static_pod::prepare_static_pod,
    config_map: validation::validate_config_map,
    secret: validation::validate_secret,
    keys: object_fields::misspelt_keys,
};

/// A manifest directory of its own, and what stands behind it.
struct Bench {
    dir: PathBuf,
    source: ManifestDir,
    mux: SourceMux,
    /// UIDs that the last poll added.
    added: Vec<PodUid>,
}

impl Bench {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("picolet-sources-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("directory");
        Self {
            source: ManifestDir::new(dir.clone(), "board".into(), RULES),
            mux: SourceMux::new(&[PodSource::File]),
            added: Vec::new(),
            dir,
        }
    }

    fn put(&self, name: &str, text: &str) {
        let new = self.dir.join(format!(".{name}"));
        fs::write(&new, text).expect("write");
        fs::rename(new, self.dir.join(name)).expect("rename");
    }

    /// Reads as the interval does, and merges.
    fn poll(&mut self) -> (Vec<String>, Vec<String>) {
        match self.source.read_source(Trigger::Poll) {
            SourceReading::Unchanged => (vec![], vec![]),
            SourceReading::Failed(problem) => panic!("{problem:?}"),
            SourceReading::Snapshot(snapshot) => {
                let merged = self.mux.merge_snapshot(
                    PodSource::File,
                    snapshot.pods,
                    WallTime::from_unix_seconds(1),
                );
                assert!(merged.unknown.is_empty() && merged.dropped.is_empty());
                let added = merged.ops.iter().flat_map(|op| match op {
                    SourceOperation::Add(pods) => pods.as_slice(),
                    _ => &[],
                });
                self.added = added.map(|p| p.pod.metadata.uid.clone()).collect();
                let problems = snapshot.problems.into_iter().filter(|p| p.new);
                (say(&merged), problems.map(|p| p.message).collect())
            }
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn say(merged: &MergeResult) -> Vec<String> {
    merged
        .ops
        .iter()
        .flat_map(|op| match op {
            SourceOperation::Remove(uids) => vec![format!("remove {}", uids.len())],
            SourceOperation::Add(pods) if pods.is_empty() => vec!["ready".into()],
            SourceOperation::Add(pods) => pods
                .iter()
                .map(|p| format!("add {}", p.pod.metadata.name))
                .collect(),
            SourceOperation::Update(pods) => pods
                .iter()
                .map(|p| format!("update {}", p.pod.metadata.name))
                .collect(),
            SourceOperation::Delete(_) | SourceOperation::Reconcile(_) => vec!["?".into()],
        })
        .collect()
}

fn manifest(name: &str, metadata: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n{metadata}spec:\n  containers:\n  - name: c\n    image: {image}\n\
         \x20   volumeMounts: [{{name: v, mountPath: /v}}]\n  volumes:\n  - name: v\n    secret: {{secretName: s, defaultMode: 0400}}\n"
    )
}

#[test]
fn from_file_to_operation() {
    // SRC-06 SRC-16 SRC-20 SRC-25 SRC-28
    let mut bench = Bench::new("ops");
    assert_eq!(bench.poll(), (vec!["ready".into()], vec![]));
    bench.put("a.yaml", &manifest("a", "", "i:1"));
    bench.put("b.yaml", &manifest("b", "  uid: own\n", "i:1"));
    assert_eq!(bench.poll().0, ["add a-board", "add b-board"]);
    // An edit is a new pod, unless the manifest has a uid of its own.
    bench.put("a.yaml", &manifest("a", "", "i:2"));
    bench.put("b.yaml", &manifest("b", "  uid: own\n", "i:2"));
    assert_eq!(
        bench.poll().0,
        ["remove 1", "add a-board", "update b-board"]
    );
    // What changes the text and not the object changes nothing.
    bench.put(
        "a.yaml",
        &format!("# a comment\n{}", manifest("a", "", "'i:2'")),
    );
    assert_eq!(bench.poll().0, Vec::<String>::new());
    // A wrong pod beside right ones.
    bench.put("c.yaml", &manifest("c", "", "''"));
    let mut problems = vec![];
    for _ in 0..1_000_000 {
        let (ops, new) = bench.poll();
        assert_eq!(ops, Vec::<String>::new());
        problems.extend(new);
        if !problems.is_empty() {
            break;
        }
    }
    assert_eq!(
        problems,
        ["Pod \"c-board\" is invalid: spec.containers[0].image: Required value"]
    );
    fs::remove_file(bench.dir.join("a.yaml")).expect("remove");
    assert_eq!(bench.poll().0, ["remove 1"]);
    bench.source.forget_reads();
    assert_eq!(
        bench.poll().0,
        Vec::<String>::new(),
        "reading all anew changes nothing"
    );
}

#[test]
fn a_restart_finds_the_same_pods() {
    // SRC-25
    let mut bench = Bench::new("restart");
    bench.put("a.yaml", &manifest("a", "", "i"));
    bench.poll();
    let before = bench.added.clone();
    assert_eq!(before.len(), 1);
    bench.source = ManifestDir::new(bench.dir.clone(), "board".into(), RULES);
    bench.mux = SourceMux::new(&[PodSource::File]);
    assert_eq!(bench.poll().0, ["add a-board"]);
    assert_eq!(bench.added, before);
}
