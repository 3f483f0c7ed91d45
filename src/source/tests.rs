use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::*;
use crate::api::strict::{WrongValue, typed_from_value};
use crate::config::decode::{MAX_DEPTH, MAX_DOCUMENT_BYTES};
use crate::sys::lane::Lane;
use crate::testing::TestDir;

/// Time limit of a wait. Only a hang reaches it, even if an emulator runs the tests beside others.
const PATIENCE: Duration = Duration::from_mins(1);

/// A directory for one test, removed at its end.
struct Scratch(TestDir);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = TestDir::new(&format!("source-{name}"));
        fs::create_dir(dir.join("m")).expect("scratch");
        Self(dir)
    }

    fn dir(&self) -> PathBuf {
        self.0.join("m")
    }

    /// Writes a file as if it was there for long: its times are in the past, and no two versions have the same.
    fn put(&self, name: &str, text: &str) {
        self.write(&self.dir().join(name), text);
    }

    fn write(&self, path: &Path, text: &str) {
        let new = self.0.join("new");
        fs::write(&new, text).expect("write");
        fs::rename(new, path).expect("rename");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.dir().join(name)).expect("remove");
    }
}

/// Just enough of a rule: the uid is the file name's last part and the image, the name gets the node's.
const RULES: Rules = Rules {
    pod: |mut raw, node, file| {
        let mut pod: crate::api::Pod = typed_from_value(&raw)?;
        let container = pod
            .spec
            .containers
            .first()
            .ok_or_else(|| WrongValue::new("spec.containers", "Required value"))?;
        if pod.metadata.uid.is_empty() {
            let file = file.rsplit('/').next().unwrap_or("");
            pod.metadata.uid = format!("{file}:{}", container.image).into();
        }
        pod.metadata.name += &format!("-{node}");
        if pod.metadata.namespace.is_empty() {
            pod.metadata.namespace = "default".into();
        }
        raw["metadata"]["uid"] = pod.metadata.uid.as_str().into();
        Ok(Box::new(ReceivedPod {
            pod,
            raw,
            origin: file.into(),
        }))
    },
    config_map: |object| {
        if object.metadata.name.is_empty() {
            Err(WrongValue::new("metadata.name", "Required value").into())
        } else {
            Ok(())
        }
    },
    secret: |_| Ok(()),
    keys: |value| {
        value["odd"]
            .as_str()
            .map(str::to_owned)
            .into_iter()
            .collect()
    },
};

fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: '{image}'}}]}}\n"
    )
}

fn source(path: PathBuf) -> ManifestDir {
    ManifestDir::new(path, "n".into(), RULES)
}

/// A reading in one line: `= a` known, `+ a` read, `! f` a problem, in capitals if new.
fn say(reading: &SourceReading) -> String {
    let file = |p: &SourceProblem| {
        p.path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    };
    match reading {
        SourceReading::Unchanged => "unchanged".into(),
        SourceReading::Failed(problem) => format!("failed: {}", problem.message),
        SourceReading::Snapshot(s) => {
            let mut words: Vec<String> = s
                .pods
                .iter()
                .map(|p| match p {
                    SnapshotEntry::Known(uid) => format!("={uid}"),
                    SnapshotEntry::Read(r) => format!("+{}", r.pod.metadata.uid),
                })
                .collect();
            words.extend(s.config_maps.keys().map(|(ns, n)| format!("cm:{ns}/{n}")));
            words.extend(s.secrets.keys().map(|(ns, n)| format!("secret:{ns}/{n}")));
            words.extend(
                s.problems
                    .iter()
                    .map(|p| format!("{}{}", if p.new { "!!" } else { "!" }, file(p))),
            );
            words.join(" ")
        }
    }
}

/// Reads until the state of all files counts as settled, so that a row does not depend on the clock's grain.
fn settle(dir: &mut ManifestDir) {
    wait_for(|| {
        matches!(dir.read_source(Trigger::Bell), SourceReading::Unchanged) && !dir.wants_recheck()
    });
}

fn wait_for(mut condition: impl FnMut() -> bool) {
    let deadline = crate::sys::clock::mono_now() + PATIENCE;
    while !condition() {
        assert!(
            crate::sys::clock::mono_now() < deadline,
            "condition never came"
        );
        std::thread::yield_now();
    }
}

fn problems(reading: &SourceReading) -> Vec<String> {
    match reading {
        SourceReading::Snapshot(s) => s
            .problems
            .iter()
            .map(|p| {
                format!(
                    "{}: {}",
                    p.path.file_name().expect("name").to_string_lossy(),
                    p.message
                )
            })
            .collect(),
        _ => panic!("{reading:?}"),
    }
}

#[test]
fn directory() {
    // SRC-15 SRC-16 SRC-17
    let scratch = Scratch::new("directory");
    let mut dir = source(scratch.dir());
    assert_eq!(
        say(&dir.read_source(Trigger::Poll)),
        "",
        "an empty directory is an empty snapshot"
    );
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "unchanged");
    scratch.put("b.yaml", &pod("b", "1"));
    scratch.put("a.json", r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"image": "1"}]}}"#);
    scratch.put(".hidden.yaml", &pod("h", "1"));
    fs::create_dir(scratch.dir().join("sub")).expect("mkdir");
    fs::write(scratch.dir().join("sub/c.yaml"), pod("c", "1")).expect("write");
    let fifo = scratch.dir().join("pipe");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    symlink(scratch.dir().join("nowhere"), scratch.dir().join("link")).expect("link");
    scratch.put("z-bad.yaml", "a: [");
    let mut dir = source(scratch.dir());
    let first = dir.read_source(Trigger::Poll);
    assert_eq!(
        say(&first),
        "+a.json:1 +b.yaml:1 !!link !!pipe !!sub !!z-bad.yaml"
    );
    let all = problems(&first);
    for (at, says) in [
        "link: link to a file that does not exist",
        "pipe: is not a regular file",
        "sub: is a directory",
        "z-bad.yaml: did not find expected",
    ]
    .iter()
    .enumerate()
    {
        assert!(all[at].starts_with(says), "{all:?}");
    }
    settle(&mut dir);
    scratch.put("b.yaml", &pod("b", "2"));
    assert_eq!(
        say(&dir.read_source(Trigger::Poll)),
        "=a.json:1 +b.yaml:2 !link !pipe !sub !z-bad.yaml"
    );
    settle(&mut dir);
    scratch.remove("a.json");
    assert_eq!(
        say(&dir.read_source(Trigger::Poll)),
        "=b.yaml:2 !link !pipe !sub !z-bad.yaml"
    );
    dir.forget_reads();
    assert_eq!(
        say(&dir.read_source(Trigger::Poll)),
        "+b.yaml:2 !!link !!pipe !!sub !!z-bad.yaml"
    );
}

#[test]
fn bad_edits() {
    // SRC-16
    let scratch = Scratch::new("edits");
    scratch.put("a.yaml", &pod("a", "1"));
    scratch.put("b.yaml", &pod("b", "1"));
    let mut dir = source(scratch.dir());
    dir.read_source(Trigger::Poll);
    settle(&mut dir);
    scratch.put("a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n");
    assert_eq!(
        say(&dir.read_source(Trigger::Bell)),
        "unchanged",
        "perhaps half written"
    );
    assert!(dir.wants_recheck());
    // Still bad a little later: said, but a notification takes nothing away.
    let mut said = String::new();
    wait_for(|| {
        said = say(&dir.read_source(Trigger::Bell));
        said != "unchanged"
    });
    assert_eq!(said, "=a.yaml:1 =b.yaml:1 !!a.yaml");
    assert!(!dir.wants_recheck());
    assert_eq!(say(&dir.read_source(Trigger::Bell)), "unchanged");
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "=b.yaml:1 !a.yaml");
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "unchanged");
    scratch.put("a.yaml", &pod("a", "2"));
    assert_eq!(say(&dir.read_source(Trigger::Bell)), "+a.yaml:2 =b.yaml:1");
    // Good again before it was confirmed bad: nothing happened.
    settle(&mut dir);
    scratch.put("b.yaml", "{");
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "unchanged");
    scratch.put("b.yaml", &pod("b", "1"));
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "=a.yaml:2 +b.yaml:1");
}

#[test]
fn missing_and_unreadable_paths() {
    // SRC-17
    let scratch = Scratch::new("missing");
    let mut dir = source(scratch.dir());
    scratch.put("a.yaml", &pod("a", "1"));
    dir.read_source(Trigger::Poll);
    settle(&mut dir);
    fs::rename(scratch.dir(), scratch.0.join("away")).expect("rename");
    assert_eq!(
        say(&dir.read_source(Trigger::Poll)),
        "",
        "a missing path removes all"
    );
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "unchanged");
    fs::rename(scratch.0.join("away"), scratch.dir()).expect("rename");
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "+a.yaml:1");
    // A loop of links is an error other than "missing": no snapshot.
    fs::rename(scratch.dir(), scratch.0.join("away")).expect("rename");
    symlink(scratch.dir(), scratch.dir()).expect("loop");
    for new in [true, false] {
        let SourceReading::Failed(problem) = dir.read_source(Trigger::Poll) else {
            panic!("a snapshot of nothing")
        };
        assert_eq!(problem.new, new);
        assert!(
            problem.message.starts_with("cannot be read: "),
            "{}",
            problem.message
        );
    }
    let mut new = source(scratch.dir());
    assert!(
        matches!(new.read_source(Trigger::Poll), SourceReading::Failed(_)),
        "not even a first one"
    );
}

#[test]
fn single_file() {
    // SRC-17
    let scratch = Scratch::new("single");
    let path = scratch.0.join("pod.yaml");
    let mut dir = source(path.clone());
    assert_eq!(
        say(&dir.read_source(Trigger::Poll)),
        "",
        "missing: an empty snapshot"
    );
    scratch.write(&path, &pod("a", "1"));
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "+pod.yaml:1");
    settle(&mut dir);
    scratch.write(&path, "a: [");
    let mut said = String::new();
    wait_for(|| {
        said = say(&dir.read_source(Trigger::Poll));
        said != "unchanged"
    });
    assert!(said.starts_with("failed: did not find expected"), "{said}");
    scratch.write(&path, &pod("a", "2"));
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "+pod.yaml:2");
    fs::remove_file(&path).expect("remove");
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "");
    scratch.write(&path, "a: [");
    let mut new = source(path);
    assert!(
        say(&new.read_source(Trigger::Poll)).starts_with("failed: "),
        "bad from the start: no snapshot"
    );
}

#[test]
fn two_files_with_one_pod() {
    // SRC-19
    let scratch = Scratch::new("two");
    scratch.put("a.yaml", &pod("x", "1"));
    scratch.put("b.yaml", &pod("x", "1"));
    let uid = "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME, uid: u}\nspec: {containers: [{image: i}]}\n";
    scratch.put("c.yaml", &uid.replace("NAME", "p"));
    scratch.put("d.yaml", &uid.replace("NAME", "q"));
    let mut dir = source(scratch.dir());
    let first = dir.read_source(Trigger::Poll);
    assert_eq!(say(&first), "+b.yaml:1 +u !!a.yaml !!c.yaml");
    assert_eq!(
        problems(&first),
        [
            "a.yaml: pod default/x-n is also in \"b.yaml\", which is used",
            "c.yaml: pod uid u is also in \"d.yaml\", which is used",
        ]
    );
    settle(&mut dir);
    scratch.remove("d.yaml");
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "=b.yaml:1 +u !a.yaml");
    settle(&mut dir);
    scratch.remove("b.yaml");
    assert_eq!(say(&dir.read_source(Trigger::Poll)), "+a.yaml:1 =u");
}

#[test]
fn what_a_file_may_hold() {
    // SRC-20
    for (text, says) in [
        ("", "document is empty"),
        (
            "apiVersion: v1\nkind: Pod\nspec: {}\n",
            "spec.containers: Required value",
        ),
        (
            "apiVersion: v1\nkind: PodList\nitems: []\n",
            "kind: PodList: lists are not read, a file holds one object",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\n",
            "apps/v1 Deployment is not read from manifests",
        ),
        ("kind: Pod\n", "apiVersion and kind are required"),
        ("just text", "apiVersion and kind are required"),
        (
            "apiVersion: v1\nkind: ConfigMap\n",
            "metadata.name: Required value",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\ndata: {a: 1}\n",
            "data.a: invalid type: integer `1`, expected a string in quotes",
        ),
        (
            "apiVersion: v1\nkind: Secret\ndata: {a: '*'}\n",
            "data.a: not base64",
        ),
        (
            &format!("{}---\n{}", pod("a", "1"), pod("b", "1")),
            "more than one document",
        ),
        (&"[".repeat(100_000), "brackets"),
        (&" ".repeat(MAX_DOCUMENT_BYTES), "document is too large"),
        (&" ".repeat(2 * MAX_DOCUMENT_BYTES), "document is too large"),
    ] {
        let scratch = Scratch::new("hold");
        scratch.put("f", text);
        let mut dir = source(scratch.dir());
        let all = problems(&dir.read_source(Trigger::Poll));
        let shown: String = text.chars().take(60).collect();
        assert!(
            all.len() == 1 && all[0].contains(says),
            "{shown:?}: {all:?}"
        );
    }
}

#[test]
fn objects_beside_pods() {
    let scratch = Scratch::new("objects");
    scratch.put(
        "cm.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: '1', a: '2'}\n",
    );
    scratch.put("s.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: x}\ndata: {k: aGk=, l: aGk=}\nstringData: {k: over}\n");
    scratch.put("z.yaml", &pod("z", "1"));
    let mut dir = source(scratch.dir());
    let SourceReading::Snapshot(snapshot) = dir.read_source(Trigger::Poll) else {
        panic!()
    };
    assert!(snapshot.objects_changed);
    let secret = &snapshot.secrets[&("x".into(), "s".into())];
    assert_eq!(
        (&*secret.data["k"].0, &*secret.data["l"].0),
        (&b"over"[..], &b"hi"[..])
    );
    assert!(secret.string_data.is_empty() && !format!("{secret:?}").contains("over"));
    let map = &snapshot.config_maps[&("default".into(), "c".into())];
    assert_eq!(map.data["a"], "2");
    assert!(
        map.metadata.creation_timestamp > Some(crate::api::WallTime(0)),
        "the file's"
    );
    assert_eq!(secret.kind, "Opaque");
    let [problem] = &*snapshot.problems else {
        panic!("{:?}", snapshot.problems)
    };
    assert_eq!(
        (problem.fatal, &*problem.message),
        (false, "field data.a occurs twice, the last one counts")
    );
    settle(&mut dir);
    scratch.put("z.yaml", &pod("z", "2"));
    let SourceReading::Snapshot(snapshot) = dir.read_source(Trigger::Poll) else {
        panic!()
    };
    assert!(!snapshot.objects_changed && snapshot.secrets.len() == 1);
    settle(&mut dir);
    scratch.remove("s.yaml");
    let SourceReading::Snapshot(snapshot) = dir.read_source(Trigger::Poll) else {
        panic!()
    };
    assert!(snapshot.objects_changed && snapshot.secrets.is_empty());
}

#[test]
fn odd_keys_are_told_of_a_good_file_and_of_a_bad_one() {
    // SRC-34
    let scratch = Scratch::new("odd");
    let odd = "odd: what is odd\n";
    scratch.put("bad.yaml", &format!("{odd}apiVersion: v1\nkind: Pod\n"));
    scratch.put("good.yaml", &format!("{odd}{}", pod("a", "1")));
    scratch.put(
        "map.yaml",
        &format!("{odd}apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n"),
    );
    let mut dir = source(scratch.dir());
    let SourceReading::Snapshot(snapshot) = dir.read_source(Trigger::Poll) else {
        panic!()
    };
    let told = snapshot
        .problems
        .iter()
        .map(|p| (p.fatal, p.message.as_str()));
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            (true, "spec.containers: Required value; what is odd"),
            (false, "what is odd"),
            (false, "what is odd"),
        ]
    );
    assert_eq!((snapshot.pods.len(), snapshot.config_maps.len()), (1, 1));
}

#[test]
fn two_files_with_one_object() {
    let scratch = Scratch::new("twice");
    let map = |value: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{a: '{value}'}}\n")
    };
    scratch.put("a.yaml", &map("1"));
    scratch.put("b.yaml", &map("2"));
    // The same name of another kind or in another namespace is another object.
    scratch.put(
        "c.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: c}\n",
    );
    scratch.put(
        "d.yaml",
        &map("3").replace("name: c", "name: c, namespace: x"),
    );
    scratch.put("e.yaml", &pod("c", "1"));
    let mut dir = source(scratch.dir());
    let value = |reading: &SourceReading| {
        let SourceReading::Snapshot(snapshot) = reading else {
            panic!("{reading:?}")
        };
        assert_eq!((snapshot.pods.len(), snapshot.secrets.len()), (1, 1));
        assert_eq!(snapshot.config_maps.len(), 2);
        let map = &snapshot.config_maps[&("default".into(), "c".into())];
        (map.data["a"].clone(), snapshot.objects_changed)
    };
    let first = dir.read_source(Trigger::Poll);
    assert_eq!(value(&first), ("2".into(), true));
    assert_eq!(
        problems(&first),
        ["a.yaml: ConfigMap default/c is also in \"b.yaml\", which is used"]
    );
    settle(&mut dir);
    scratch.remove("b.yaml");
    let second = dir.read_source(Trigger::Poll);
    assert_eq!(value(&second), ("1".into(), true));
    assert!(problems(&second).is_empty());
}

#[test]
fn immutable_objects_stay() {
    let scratch = Scratch::new("immutable");
    let map = |value: &str, immutable: bool| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\nimmutable: {immutable}\ndata: {{a: '{value}'}}\n"
        )
    };
    let secret = |value: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nimmutable: true\nstringData: {{a: '{value}'}}\n"
        )
    };
    let mut dir = source(scratch.dir());
    let mut read = |trigger| {
        let reading = dir.read_source(trigger);
        let all = problems(&reading);
        let SourceReading::Snapshot(snapshot) = reading else {
            panic!("{reading:?}")
        };
        settle(&mut dir);
        let map = snapshot.config_maps.values().next();
        let map = map.map_or_else(String::new, |m| m.data["a"].clone());
        let secret = snapshot.secrets.values().next();
        let secret = secret.map_or_else(Vec::new, |s| s.data["a"].0.clone());
        let secret = String::from_utf8(secret).expect("text");
        (format!("{map}{secret}"), snapshot.objects_changed, all)
    };
    let refused = |file: &str, field: &str| {
        format!(
            "{file}: {field}: Forbidden: field is immutable when `immutable` is set; what the file held before stays in use \
             (remove the file, then write it anew)"
        )
    };
    scratch.put("c.yaml", &map("1", true));
    scratch.put("s.yaml", &secret("x"));
    assert_eq!(read(Trigger::Poll), ("1x".into(), true, vec![]));
    scratch.put("c.yaml", &map("2", true));
    scratch.put("s.yaml", &secret("y"));
    assert_eq!(
        read(Trigger::Bell),
        (
            "1x".into(),
            false,
            vec![refused("c.yaml", "data"), refused("s.yaml", "data")]
        )
    );
    scratch.put("c.yaml", &map("1", false));
    scratch.put("s.yaml", &secret("x"));
    let (held, _, all) = read(Trigger::Bell);
    assert_eq!((&*held, all), ("1x", vec![refused("c.yaml", "immutable")]));
    scratch.remove("c.yaml");
    assert_eq!(read(Trigger::Bell), ("x".into(), true, vec![]));
    scratch.put("c.yaml", &map("2", false));
    assert_eq!(read(Trigger::Bell).0, "2x");
    scratch.put("c.yaml", &map("3", true));
    assert_eq!(
        read(Trigger::Bell).0,
        "3x",
        "what was not immutable can become it"
    );
}

#[test]
fn same_size_within_one_tick() {
    // The kernel's file times may not move between two writes: what was read just after a write is read once more.
    let scratch = Scratch::new("tick");
    let path = scratch.dir().join("a.yaml");
    for n in 0..20 {
        let (one, two) = (pod("a", "1"), pod("a", "2"));
        fs::write(&path, &one).expect("write");
        let mut dir = source(scratch.dir());
        let first = say(&dir.read_source(Trigger::Poll));
        fs::write(&path, &two).expect("write");
        assert_eq!(first, "+a.yaml:1", "{n}");
        assert_eq!(say(&dir.read_source(Trigger::Poll)), "+a.yaml:2", "{n}");
    }
}

#[test]
fn hostile_files_fit_a_lanes_stack() {
    let deep = MAX_DEPTH - 2;
    let nested = "{a: ".repeat(deep) + &"}".repeat(deep);
    let too_deep = "{a: ".repeat(400) + &"}".repeat(400);
    let deep_json = "{\"a\":".repeat(deep) + "1" + &"}".repeat(deep);
    let lane = Lane::start("test").expect("lane");
    for (name, text) in [
        ("flow", nested),
        ("too deep", too_deep),
        ("json", deep_json),
        ("list", "[".repeat(deep) + &"]".repeat(deep)),
    ] {
        let scratch = Scratch::new("stack");
        scratch.put("f.yaml", &format!("{{x: {text}}}"));
        let mut dir = source(scratch.dir());
        let reading = smol::block_on(lane.run_job(move || dir.read_source(Trigger::Poll)));
        assert_eq!(say(&reading), "!!f.yaml", "{name}");
    }
}

#[test]
fn doorbell_rings_before_the_poll() {
    // SRC-15
    let scratch = Scratch::new("bell");
    let lane = Lane::start("test").expect("lane");
    let day = Duration::from_secs(86_400);
    let next = |poller: &mut ManifestDirPoller| {
        let late = async {
            smol::Timer::after(PATIENCE).await;
            panic!("the doorbell is silent")
        };
        say(&smol::block_on(smol::future::or(
            poller.next_reading(&lane),
            late,
        )))
    };
    let mut poller = ManifestDirPoller::new(source(scratch.dir()), day, true);
    assert_eq!(next(&mut poller), "");
    let path = scratch.dir().join("a.yaml");
    fs::write(&path, pod("a", "1")).expect("written in place");
    // One change may ring more than once, so that a reading may only repeat what is known.
    wait_for(|| next(&mut poller).contains("+a.yaml:1"));
    scratch.put("b.yaml", &pod("b", "1"));
    wait_for(|| next(&mut poller).contains("+b.yaml:1"));
    fs::hard_link(&path, scratch.dir().join("c.yaml")).expect("link");
    wait_for(|| next(&mut poller).contains("c.yaml:1"));
    File::options()
        .write(true)
        .open(&path)
        .expect("open")
        .set_modified(SystemTime::UNIX_EPOCH)
        .expect("touch");
    wait_for(|| next(&mut poller).contains("b.yaml"));
    scratch.remove("b.yaml");
    wait_for(|| !next(&mut poller).contains("b.yaml"));
    fs::remove_dir_all(scratch.dir()).expect("remove");
    wait_for(|| next(&mut poller).is_empty());
    // The path is back: the parent is watched while it is missing.
    let new = scratch.0.join("new-dir");
    fs::create_dir(&new).expect("mkdir");
    fs::write(new.join("d.yaml"), pod("d", "1")).expect("write");
    fs::rename(new, scratch.dir()).expect("rename");
    assert_eq!(next(&mut poller), "+d.yaml:1");
    poller.forget_reads();
    assert_eq!(next(&mut poller), "+d.yaml:1");
}

#[test]
fn directories_that_come_later_ring() {
    // SRC-15
    let scratch = Scratch::new("late-bell");
    let lane = Lane::start("test").expect("lane");
    let dir = scratch.0.join("etc/manifests");
    let mut poller = ManifestDirPoller::new(source(dir.clone()), Duration::from_secs(86_400), true);
    let mut next = || {
        let late = async {
            smol::Timer::after(PATIENCE).await;
            panic!("the doorbell is silent")
        };
        say(&smol::block_on(smol::future::or(
            poller.next_reading(&lane),
            late,
        )))
    };
    assert_eq!(next(), "");
    fs::create_dir_all(&dir).expect("mkdir -p");
    fs::write(dir.join("a.yaml"), pod("a", "1")).expect("written in place");
    wait_for(|| next().contains("+a.yaml:1"));
    // The directory itself is watched by now, not only those above it.
    fs::write(dir.join("b.yaml"), pod("b", "1")).expect("written in place");
    wait_for(|| next().contains("+b.yaml:1"));
}

#[test]
fn the_directory_behind_a_link_rings_though_the_link_was_replaced() {
    // SRC-15
    let scratch = Scratch::new("link-bell");
    let lane = Lane::start("test").expect("lane");
    let (link, next_link) = (scratch.0.join("link"), scratch.0.join("next"));
    for name in ["one", "two"] {
        fs::create_dir(scratch.0.join(name)).expect("mkdir");
    }
    symlink(scratch.0.join("one"), &link).expect("link");
    let day = Duration::from_secs(86_400);
    let mut poller = ManifestDirPoller::new(source(link.clone()), day, true);
    let next = |poller: &mut ManifestDirPoller| {
        let late = async {
            smol::Timer::after(PATIENCE).await;
            panic!("the doorbell is silent")
        };
        let reading = smol::future::or(poller.next_reading(&lane), late);
        say(&smol::block_on(reading))
    };
    assert_eq!(next(&mut poller), "");
    symlink(scratch.0.join("two"), &next_link).expect("link");
    fs::rename(&next_link, &link).expect("replaced");
    // As by the poll.
    poller.forget_reads();
    assert_eq!(next(&mut poller), "");
    fs::write(scratch.0.join("two/a.yaml"), pod("a", "1")).expect("written in place");
    wait_for(|| next(&mut poller).contains("+a.yaml:1"));
}

#[test]
fn without_doorbell_the_poll_finds_it() {
    // SRC-15 SRC-18
    let scratch = Scratch::new("poll");
    let lane = Lane::start("test").expect("lane");
    let mut poller =
        ManifestDirPoller::new(source(scratch.dir()), Duration::from_millis(20), false);
    assert_eq!(say(&smol::block_on(poller.next_reading(&lane))), "");
    scratch.put("a.yaml", &pod("a", "1"));
    wait_for(|| say(&smol::block_on(poller.next_reading(&lane))) == "+a.yaml:1");
    // The agent's health tells when it last looked, not only when it last found a change.
    wait_for(|| say(&smol::block_on(poller.next_reading(&lane))) == "unchanged");
    assert_eq!(
        say(&smol::block_on(poller.next_reading(&lane))),
        "unchanged"
    );
}
