//! A URL whose server answers in all ways there are.

use alloc::sync::Arc;
use core::time::Duration;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::{DocumentLocation, ManifestUrl, SourceReading};
use crate::api::received::{InvalidObject, ReceivedPod, SnapshotEntry};
use crate::api::strict::WrongValue;
use crate::api::{Pod, strict};
use crate::config::decode::MAX_DOCUMENT_BYTES;
use crate::kube::testing::{Authority, NOW, Say, Seen, Server, Then, ok, say};
use crate::net::{ProxyVariables, Url};
use crate::testing::TestDir;

/// Answers of the server; a test exchanges them.
#[derive(Clone)]
struct Script(Arc<Mutex<Answers>>);
type Answers = Box<dyn Fn(&Seen) -> Say + Send>;

impl Script {
    fn new(answer: impl Fn(&Seen) -> Say + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Box::new(answer))))
    }

    fn set(&self, answer: impl Fn(&Seen) -> Say + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(answer);
    }

    fn handler(&self) -> impl Fn(&Seen) -> Say + Send + Sync + 'static + use<> {
        let script = Arc::clone(&self.0);
        move |seen| (script.lock().unwrap_or_else(PoisonError::into_inner))(seen)
    }
}

/// A server that has a document under a tag, and does not send it twice.
fn tagged(document: &str, tag: &'static str) -> impl Fn(&Seen) -> Say + Send + 'static {
    let document = document.to_owned();
    move |seen| {
        if seen.header("if-none-match") == tag {
            return say(304, "", b"");
        }
        say(200, &format!("etag: {tag}\r\n"), document.as_bytes())
    }
}

/// The rule of these tests: a pod has an image.
fn rule(raw: Value, node: &str, url: &str) -> Result<Box<ReceivedPod>, InvalidObject> {
    let mut pod: Pod = strict::typed_from_value(&raw)?;
    if pod.spec.containers.iter().any(|c| c.image.is_empty()) {
        return Err(WrongValue::new("spec.containers[0].image", "Required value").into());
    }
    pod.metadata.uid = format!("{}@{node}", pod.metadata.name).into();
    Ok(Box::new(ReceivedPod {
        pod,
        raw,
        origin: url.into(),
    }))
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

struct Bench {
    dir: TestDir,
    source: ManifestUrl,
}

impl Bench {
    fn new(url: &str) -> Self {
        let dir = TestDir::new("url-tests");
        Self {
            source: source(place(url), dir.join("copy")),
            dir,
        }
    }

    /// The agent starts anew and finds what is on disk.
    fn restart(&mut self, url: &str) {
        self.source = source(place(url), self.dir.join("copy"));
    }

    /// Has one look taken. Returns the pods of a snapshot, and the messages.
    fn look(&mut self) -> (Option<Vec<String>>, Vec<String>) {
        let new = |problem: super::SourceProblem| problem.new.then_some(problem.message);
        match self.source.read_source() {
            SourceReading::Unchanged => (None, vec![]),
            SourceReading::Failed(problem) => (None, new(problem).into_iter().collect()),
            SourceReading::Snapshot(snapshot) => {
                let pods = snapshot.pods.into_iter().map(|delivered| match delivered {
                    SnapshotEntry::Read(received) => received.pod.metadata.uid.to_string(),
                    SnapshotEntry::Known(uid) => panic!("{uid} is delivered whole"),
                });
                let pods = Some(pods.collect());
                (
                    pods,
                    snapshot.problems.into_iter().filter_map(new).collect(),
                )
            }
        }
    }
}

fn place(url: &str) -> DocumentLocation {
    DocumentLocation {
        url: Url::parse(url).expect("a URL"),
        headers: vec![("authorization".into(), "Bearer x".into())],
        ca: None,
        proxies: ProxyVariables::default(),
        time: super::WHOLE_TIMEOUT,
    }
}

fn source(place: DocumentLocation, copy: PathBuf) -> ManifestUrl {
    let keys = |value: &Value| {
        value["odd"]
            .as_str()
            .map(str::to_owned)
            .into_iter()
            .collect()
    };
    ManifestUrl::new(place, "n".into(), (rule, keys), copy)
}

fn some(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|name| format!("{name}@n")).collect())
}

#[test]
fn one_pod_or_a_list_in_yaml_or_json() {
    // SRC-22 SRC-24
    let script = Script::new(|_| ok(""));
    let server = Server::plain(script.handler());
    let yaml = "apiVersion: v1\nkind: Pod\nmetadata: {name: y}\nspec: {containers: [{name: c, image: i}]}\n";
    let bare = json!({"metadata": {"name": "b"}, "spec": {"containers": []}});
    let kinds = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    let list = |kind: &str, items: &[Value]| {
        json!({"apiVersion": "v1", "kind": kind, "items": items}).to_string()
    };
    for (document, names, says) in [
        (pod("a").to_string(), &["a"][..], ""),
        (yaml.to_owned(), &["y"], ""),
        (list("List", &[pod("a"), pod("b")]), &["a", "b"], ""),
        (list("PodList", &[pod("a"), bare.clone()]), &["a", "b"], ""),
        (list("PodList", &[]), &[], ""),
        (
            list("List", &[pod("a"), bare]),
            &[],
            "items[1]: apiVersion and kind are required",
        ),
        (
            list("List", &[pod("a"), kinds]),
            &[],
            "items[1]: v1 \"ConfigMap\" is not read from a URL",
        ),
        (
            pod("a").to_string().replace("\"i\"", "\"\""),
            &[],
            "spec.containers[0].image: Required value",
        ),
        ("<html>".into(), &[], "apiVersion and kind are required"),
        ("a: [".into(), &[], "did not find expected node content"),
        (
            "apiVersion: v1\nkind: Secret\n".into(),
            &[],
            "v1 \"Secret\" is not read from a URL",
        ),
    ] {
        let mut bench = Bench::new(&server.url());
        let answer = document.clone();
        script.set(move |_| ok(&answer));
        let (pods, said) = bench.look();
        if says.is_empty() {
            assert_eq!((pods, said), (some(names), vec![]), "{document}");
        } else {
            assert_eq!(pods, None, "{document}");
            assert!(matches!(&*said, [one] if one.contains(says)), "{said:?}");
        }
    }
    let seen = server.seen();
    assert!(
        seen.iter()
            .all(|s| s.method == "GET" && s.header("authorization") == "Bearer x")
    );
}

#[test]
fn odd_keys_of_items_are_told_with_their_place() {
    // SRC-34
    let mut odd = pod("a");
    odd["odd"] = json!("what is odd");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod("b"), odd]}).to_string();
    let script = Script::new(move |_| ok(&list));
    let server = Server::plain(script.handler());
    let mut bench = Bench::new(&server.url());
    let said = vec!["items[1]: what is odd".to_owned()];
    assert_eq!(bench.look(), (some(&["b", "a"]), said));
    odd["spec"]["containers"][0]["image"] = json!("");
    script.set(move |_| ok(&odd.to_string()));
    let (pods, said) = bench.look();
    assert_eq!(pods, None);
    assert!(said[0].ends_with("; what is odd"), "{said:?}");
}

#[test]
fn what_has_not_changed_is_not_sent_again() {
    // SRC-23
    let script = Script::new(tagged(&pod("a").to_string(), "\"1\""));
    let server = Server::plain(script.handler());
    let mut bench = Bench::new(&server.url());
    assert_eq!(bench.look(), (some(&["a"]), vec![]));
    for _ in 0..3 {
        assert_eq!(bench.look(), (None, vec![]));
    }
    let asked: Vec<String> = server
        .seen()
        .iter()
        .map(|s| s.header("if-none-match").to_owned())
        .collect();
    assert_eq!(asked, ["", "\"1\"", "\"1\"", "\"1\""]);
    // The agent could not record them: they come again, from the disk.
    bench.source.forget_reads();
    assert_eq!(bench.look(), (some(&["a"]), vec![]));
    // The next agent fetches nothing either.
    bench.restart(&server.url());
    assert_eq!(bench.look(), (some(&["a"]), vec![]));
    assert_eq!(
        server
            .seen()
            .last()
            .map(|s| s.header("if-none-match").to_owned()),
        Some("\"1\"".into())
    );
    // Without the copy it has to fetch.
    fs::remove_file(bench.dir.join("copy")).expect("removed");
    bench.source.forget_reads();
    assert_eq!(bench.look(), (some(&["a"]), vec![]));
    // A server that sends only a date.
    let document = pod("b").to_string();
    script.set(move |seen| match seen.header("if-modified-since") {
        "then" => say(304, "", b""),
        _ => say(200, "last-modified: then\r\n", document.as_bytes()),
    });
    assert_eq!(bench.look(), (some(&["b"]), vec![]));
    assert_eq!(bench.look(), (None, vec![]));
    // A server without tags sends the same document again, which is no news.
    let document = pod("c").to_string();
    script.set(move |_| ok(&document));
    assert_eq!(bench.look(), (some(&["c"]), vec![]));
    assert_eq!(bench.look(), (None, vec![]));
    // A server that answers 304 to a client without a document.
    let mut bench = Bench::new(&server.url());
    script.set(|_| say(304, "", b""));
    assert_eq!(bench.look(), (None, vec!["answers with status 304".into()]));
}

#[test]
fn an_answer_of_no_use_changes_nothing_and_is_told_once() {
    // SRC-22 SRC-23 SRC-24
    let good = tagged(&pod("a").to_string(), "\"1\"");
    let script = Script::new(good);
    let server = Server::plain(script.handler());
    let mut bench = Bench::new(&server.url());
    let mut slow = place(&server.url());
    // Enough for an emulator to read what is huge.
    slow.time = Duration::from_secs(3);
    bench.source = source(slow, bench.dir.join("copy"));
    assert_eq!(bench.look().0, some(&["a"]));
    let huge = MAX_DOCUMENT_BYTES;
    let answers: [(&str, Answers, &str); 11] = [
        (
            "missing",
            Box::new(|_| say(404, "", b"no")),
            "answers with status 404",
        ),
        (
            "failing",
            Box::new(|_| say(500, "etag: \"2\"\r\n", b"")),
            "answers with status 500",
        ),
        (
            "part",
            Box::new(|_| say(206, "", b"x")),
            "answers with status 206",
        ),
        (
            "wrong",
            Box::new(|_| ok("nonsense")),
            "apiVersion and kind are required",
        ),
        (
            "wrong, with a tag",
            Box::new(|seen| match seen.header("if-none-match") {
                "\"bad\"" => say(304, "", b""),
                _ => say(200, "etag: \"bad\"\r\n", b"[1]"),
            }),
            "apiVersion and kind are required",
        ),
        (
            "huge, and says so",
            Box::new(move |_| Say {
                bytes: format!("HTTP/1.1 200 OK\r\ncontent-length: {huge}\r\n\r\n").into_bytes(),
                then: Then::Hang,
            }),
            "sends 10485760 bytes or more",
        ),
        (
            "huge, without a word",
            Box::new(move |_| Say {
                bytes: [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &vec![b'#'; huge + 1]].concat(),
                then: Then::Close,
            }),
            "sends 10485760 bytes or more",
        ),
        (
            "packed",
            Box::new(|_| say(200, "content-encoding: gzip\r\n", b"x")),
            "is compressed",
        ),
        (
            "slow",
            Box::new(|_| Say {
                bytes: b"HTTP/1.1 200 OK\r\n".to_vec(),
                then: Then::Hang,
            }),
            "cannot be read: ",
        ),
        (
            "in the midst",
            Box::new(|_| Say {
                bytes: b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\napiVersion: v1\n".to_vec(),
                then: Then::Close,
            }),
            "cannot be read: ",
        ),
        (
            "nonsense",
            Box::new(|_| Say {
                bytes: b"SSH-2.0\r\n\r\n".to_vec(),
                then: Then::Close,
            }),
            "cannot be read: ",
        ),
    ];
    for (name, answer, says) in answers {
        script.set(answer);
        let (pods, said) = bench.look();
        assert!(
            matches!(&*said, [one] if one.contains(says)),
            "{name}: {said:?}"
        );
        assert_eq!(pods, None, "{name}");
        for _ in 0..2 {
            assert_eq!(bench.look(), (None, vec![]), "{name}: told once");
        }
        // The earlier document is there again, which is no news.
        script.set(tagged(&pod("a").to_string(), "\"1\""));
        bench.look();
        assert_eq!(bench.look(), (None, vec![]), "{name}");
        // The next agent would begin with it.
        let copy = fs::read_to_string(bench.dir.join("copy")).expect("a copy");
        assert!(copy.ends_with(&pod("a").to_string()), "{name}: {copy}");
    }
    drop(server);
    let (pods, said) = bench.look();
    assert!(
        pods.is_none() && matches!(&*said, [one] if one.contains("cannot be read")),
        "{said:?}"
    );
    assert_eq!(bench.look(), (None, vec![]));
}

#[test]
fn an_empty_answer_ends_them_and_they_may_come_back() {
    // SRC-23
    let script = Script::new(tagged(&pod("a").to_string(), "\"1\""));
    let server = Server::plain(script.handler());
    let mut bench = Bench::new(&server.url());
    assert_eq!(bench.look().0, some(&["a"]));
    script.set(|_| ok(""));
    let (pods, said) = bench.look();
    assert_eq!(pods, some(&[]));
    assert_eq!(said, ["answers with an empty document: its pods end"]);
    assert_eq!(bench.look(), (None, vec![]), "once");
    script.set(tagged(&pod("a").to_string(), "\"1\""));
    assert_eq!(bench.look().0, some(&["a"]), "the same document");
}

#[test]
fn redirects_are_followed_to_an_end() {
    // SRC-22
    let other = Server::plain(|_| ok(&pod("o").to_string()));
    let away = other.url();
    let script = Script::new(|_| ok(""));
    let server = Server::plain(script.handler());
    let to = |path: &str| say(302, &format!("location: {path}\r\n"), b"");
    let mut bench = Bench::new(&format!("{}/m/a", server.url()));
    let moved = away.clone();
    script.set(move |seen| match &*seen.path {
        "/m/a" => to("b"),
        "/m/b" => to("/c?d"),
        _ => to(&moved),
    });
    assert_eq!(bench.look(), (some(&["o"]), vec![]));
    let paths: Vec<String> = server.seen().into_iter().map(|s| s.path).collect();
    assert_eq!(paths, ["/m/a", "/m/b", "/c?d"]);
    // Headers for the one server must not go to the other.
    assert!(
        other
            .seen()
            .iter()
            .all(|s| s.header("authorization").is_empty())
    );
    for (location, says) in [
        ("/m/a", "redirects more than 5 times"),
        ("file:///etc/passwd", "redirects to an invalid URL"),
    ] {
        script.set(move |_| to(location));
        let (pods, said) = bench.look();
        assert!(
            pods.is_none() && matches!(&*said, [one] if one.contains(says)),
            "{said:?}"
        );
        assert_eq!(bench.look(), (None, vec![]));
    }
}

#[test]
fn a_start_without_link_begins_with_the_last_good_answer() {
    // SRC-22
    let script = Script::new(tagged(&pod("a").to_string(), "\"1\""));
    let server = Server::plain(script.handler());
    let url = format!("{}/?key=k", server.url());
    let mut bench = Bench::new(&url);
    assert_eq!(bench.look().0, some(&["a"]));
    let mode = fs::metadata(bench.dir.join("copy"))
        .expect("a copy")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "a manifest may have keys in it");
    // A bad answer counts as no answer, also at a start; the tag of the kept document stays.
    for bad in ["nonsense", ""] {
        bench.restart(&url);
        script.set(move |_| say(if bad.is_empty() { 503 } else { 200 }, "", bad.as_bytes()));
        let (pods, said) = bench.look();
        assert_eq!(pods, some(&["a"]), "{bad}");
        assert!(
            matches!(&*said, [one] if one.contains("; its answer of 20")),
            "{said:?}"
        );
        assert_eq!(bench.look(), (None, vec![]), "{bad}");
    }
    bench.restart(&url);
    let port = server.port;
    drop(server);
    let (pods, said) = bench.look();
    assert_eq!(pods, some(&["a"]));
    assert!(
        matches!(&*said, [one] if one.starts_with("cannot be read: ") && !one.contains("key")),
        "{said:?}"
    );
    // A copy of another URL does not count, nor does a damaged one.
    bench.restart(&format!("http://127.0.0.1:{port}/other"));
    assert_eq!(bench.look().0, None);
    let mut copy = fs::read(bench.dir.join("copy")).expect("a copy");
    copy.pop();
    fs::write(bench.dir.join("copy"), copy).expect("written");
    bench.restart(&url);
    assert_eq!(bench.look().0, None);
}

#[test]
fn a_copy_that_cannot_be_kept_is_named_once() {
    let script = Script::new(|seen| ok(&pod(&format!("p{}", seen.number)).to_string()));
    let server = Server::plain(script.handler());
    let mut bench = Bench::new(&server.url());
    bench.source = source(place(&server.url()), bench.dir.join("no/copy"));
    let (pods, said) = bench.look();
    assert_eq!(pods, some(&["p0"]));
    assert!(
        matches!(&*said, [one] if one.starts_with("cannot store the answer")),
        "{said:?}"
    );
    assert_eq!(bench.look(), (some(&["p1"]), vec![]));
}

#[test]
fn whose_certificate_counts() {
    // SRC-22
    let ca = Authority::new();
    let pair = ca.server(&["127.0.0.1"], NOW);
    let server = Server::tls(&pair, None, |_| ok(&pod("a").to_string()));
    let dir = TestDir::new("url-tests");
    let by = |pem: &str, name: &str| {
        fs::write(dir.join(name), pem).expect("written");
        DocumentLocation {
            ca: Some(dir.join(name)),
            ..place(&server.url())
        }
    };
    let look = |place: DocumentLocation| {
        let mut bench = Bench::new(&server.url());
        bench.source = source(place, bench.dir.join("copy"));
        bench.look()
    };
    assert_eq!(look(by(&ca.pem, "own")), (some(&["a"]), vec![]));
    let other = Authority::new();
    for (place, says) in [
        (by(&other.pem, "other"), "certificate"),
        (by("", "none"), "holds no CA certificate"),
        (
            DocumentLocation {
                ca: Some("/no/such".into()),
                ..place(&server.url())
            },
            "cannot read /no/such",
        ),
    ] {
        let (pods, said) = look(place);
        assert!(
            pods.is_none() && matches!(&*said, [one] if one.contains(says)),
            "{said:?}"
        );
    }
    // No redirect leads from https to plain http.
    let plain = Server::plain(|_| ok(&pod("b").to_string())).url();
    let server = Server::tls(&pair, None, move |_| {
        say(301, &format!("location: {plain}\r\n"), b"")
    });
    let (pods, said) = look(DocumentLocation {
        url: Url::parse(&server.url()).expect("a URL"),
        ..by(&ca.pem, "own")
    });
    assert!(
        pods.is_none() && matches!(&*said, [one] if one.contains("redirects from https")),
        "{said:?}"
    );
}
