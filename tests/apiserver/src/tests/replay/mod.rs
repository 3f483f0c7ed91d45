//! This server beside a real kube-apiserver: one list of requests (`tests/golden/apiserver/requests.json`), sent to both.
//!
//! What the real one answered is kept (`kubernetes-*.json`), so that every run compares this server with it. Where `$K8S_BIN`
//! has a kube-apiserver, the list is sent to that one too.

mod real;

use std::collections::BTreeMap;
use std::{fs, path::PathBuf, thread};

use serde_json::{Map, Value, json};

use super::client::{Client, Got};
use crate::clock::parse_rfc3339;
use crate::{Credentials, CsrMode, TestServer};

/// The version whose answers are kept.
const VERSION: &str = "v1.36.2";
/// What the id of a client certificate begins with.
const CREDENTIAL: &str = "X509SHA256=";
/// What the times in requests begin with: they come back as they were sent.
const SENT: &str = "2026-01-01T";

/// Where requests are sent to.
trait Peer: Sync {
    fn ca_pem(&self) -> &str;
    fn port(&self) -> u16;
    fn credentials(&self, user: &str, groups: &[&str]) -> Credentials;
}

impl Peer for TestServer {
    fn ca_pem(&self) -> &str {
        Self::ca_pem(self)
    }

    fn port(&self) -> u16 {
        Self::port(self)
    }

    fn credentials(&self, user: &str, groups: &[&str]) -> Credentials {
        let hour = std::time::Duration::from_secs(3600);
        Self::credentials(self, user, groups, hour).expect("credentials")
    }
}

fn client(peer: &dyn Peer, who: &str) -> Client {
    let credentials = match who {
        "anonymous" => None,
        "admin" => Some(peer.credentials("admin", &["system:masters"])),
        "nobody" => Some(peer.credentials("nobody", &[])),
        node => Some(peer.credentials(&format!("system:node:{node}"), &["system:nodes"])),
    };
    Client::to(peer.ca_pem(), peer.port(), credentials.as_ref())
}

fn golden(file: &str) -> PathBuf {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/apiserver");
    PathBuf::from(dir).join(file)
}

fn read(file: &str) -> Value {
    let text = fs::read_to_string(golden(file)).expect(file);
    serde_json::from_str(&text).expect(file)
}

/// Answers by the names of their requests, as they can be compared: what each server makes up has another name.
type Answers = BTreeMap<String, Value>;

/// Sends all requests, one after the other.
fn replay(peer: &dyn Peer) -> Answers {
    let mut session = Session {
        peer,
        clients: BTreeMap::new(),
        bodies: BTreeMap::new(),
        asked: String::new(),
        made_up: Vec::new(),
    };
    let mut answers = Answers::new();
    for step in read("requests.json").as_array().expect("a list") {
        let answer = session.take(step);
        if step["quiet"] != true {
            let name = step["name"].as_str().expect("a name").to_owned();
            assert!(answers.insert(name, answer).is_none(), "{step}: twice");
        }
    }
    answers
}

struct Session<'a> {
    peer: &'a dyn Peer,
    clients: BTreeMap<String, Client>,
    /// As they came, for requests that name parts of them.
    bodies: BTreeMap<String, Value>,
    /// Name of the request that is answered.
    asked: String,
    /// Names that the server made up, and what stands for them.
    made_up: Vec<(String, String)>,
}

impl Session<'_> {
    fn take(&mut self, step: &Value) -> Value {
        let who = step["as"].as_str().expect("somebody");
        if step["before"].is_object() {
            let mut before = step["before"].clone();
            before["as"] = who.into();
            self.take(&before);
        }
        let filled = self.filled(&step.to_string());
        let step: Value = serde_json::from_str(&filled).expect("JSON");
        if let Some(number) = step["racing"].as_u64() {
            return self.race(who, &step, number);
        }
        let peer = self.peer;
        let known = self.clients.entry(who.to_owned());
        let got = send(known.or_insert_with(|| client(peer, who)), &step);
        let code = got.code;
        let body = body_of(&got);
        let name = step["name"].as_str().unwrap_or_default();
        name.clone_into(&mut self.asked);
        if let Some(name) = step["name"].as_str() {
            self.bodies.insert(name.to_owned(), body.clone());
        }
        json!({"code": code, "body": self.comparable("", body)})
    }

    /// The codes of equal requests that are sent at once.
    fn race(&self, who: &str, step: &Value, number: u64) -> Value {
        let one = |racer: u64| {
            let text = step.to_string().replace("{{RACER}}", &format!("r{racer}"));
            let step: Value = serde_json::from_str(&text).expect("JSON");
            send(&mut client(self.peer, who), &step).code
        };
        let mut codes: Vec<u16> = thread::scope(|scope| {
            let all: Vec<_> = (0..number).map(|n| scope.spawn(move || one(n))).collect();
            all.into_iter().map(|t| t.join().expect("answer")).collect()
        });
        codes.sort_unstable();
        json!({ "codes": codes })
    }

    /// A request with parts of earlier answers: `{{name of the request/pointer}}`.
    fn filled(&self, text: &str) -> String {
        let mut parts = text.split("{{");
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (at, rest) = part.split_once("}}").expect("closed");
            let (name, pointer) = at.split_once('/').unwrap_or((at, ""));
            match self.bodies.get(name) {
                Some(body) => {
                    let found = body.pointer(&format!("/{pointer}"));
                    filled += found.and_then(Value::as_str).unwrap_or("nothing");
                }
                None => filled += &format!("{{{{{at}}}}}"),
            }
            filled += rest;
        }
        filled
    }

    fn comparable(&mut self, key: &str, value: Value) -> Value {
        match value {
            Value::Object(map) => {
                let one = |(key, value): (String, Value)| {
                    let value = self.comparable(&key, value);
                    (key, value)
                };
                Value::Object(map.into_iter().map(one).collect::<Map<_, _>>())
            }
            // How fields are recorded is nobody's concern but the server's.
            Value::Array(_) if key == "managedFields" => "(kept)".into(),
            Value::Array(list) => list.into_iter().map(|v| self.comparable("", v)).collect(),
            Value::String(text) => self.comparable_text(key, text).into(),
            other => other,
        }
    }

    fn comparable_text(&mut self, key: &str, text: String) -> String {
        match key {
            "uid" if !text.is_empty() && !self.made_up.iter().any(|(uid, _)| *uid == text) => {
                // After the request whose answer has it first.
                let asked = format!("(uid of {}", self.asked);
                let many = self
                    .made_up
                    .iter()
                    .filter(|(_, name)| name.starts_with(&asked));
                let name = match many.count() {
                    0 => format!("{asked})"),
                    more => format!("{asked}, {more} more)"),
                };
                self.made_up.push((text.clone(), name));
            }
            "resourceVersion" => return "(version)".to_owned(),
            "continue" | "token" => return format!("({key})"),
            "message" => return first_line(&self.named(&text)),
            _ if text.starts_with(CREDENTIAL) => return "(credential)".to_owned(),
            _ if !text.starts_with(SENT) && parse_rfc3339(&text).is_some() => {
                return "(time)".to_owned();
            }
            _ => {}
        }
        self.named(&text)
    }

    fn named(&self, text: &str) -> String {
        let replaced = |text: String, (uid, name): &(String, String)| text.replace(uid, name);
        self.made_up.iter().fold(text.to_owned(), replaced)
    }
}

/// A message without the versions of objects, which are each server's own, and without the difference of two objects that
/// follows in further lines: Go prints it with other spaces each time.
fn first_line(message: &str) -> String {
    let mut text = message.lines().next().unwrap_or_default().to_owned();
    for before in ["ResourceVersion in record (", "current: "] {
        if let Some(at) = text.find(before) {
            let from = at + before.len();
            let digits = text[from..].bytes().take_while(u8::is_ascii_digit).count();
            text.replace_range(from..from + digits, "(version)");
        }
    }
    text
}

fn send(client: &mut Client, step: &Value) -> Got {
    let (method, uri) = step["do"]
        .as_str()
        .and_then(|s| s.split_once(' '))
        .expect("what to do");
    let media = step["type"].as_str().unwrap_or(match method {
        "PATCH" => "application/strategic-merge-patch+json",
        _ => "application/json",
    });
    let body = match (&step["text"], &step["body"]) {
        (Value::String(text), _) => text.clone(),
        (_, Value::Null) => String::new(),
        (_, body) => body.to_string(),
    };
    client
        .try_send(method, uri, media, body.as_bytes())
        .expect("answer")
}

/// One value, or the events of a watch.
fn body_of(got: &Got) -> Value {
    let lines = serde_json::Deserializer::from_slice(&got.body).into_iter();
    let values: Result<Vec<Value>, _> = lines.collect();
    match values {
        Ok(mut values) if values.len() == 1 => values.remove(0),
        Ok(values) => values.into(),
        Err(_) => String::from_utf8_lossy(&got.body).into_owned().into(),
    }
}

/// Where two values differ, by JSON pointer.
fn compare(at: &str, ours: &Value, theirs: &Value, found: &mut Vec<(String, String)>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<_> = a.keys().chain(b.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                compare(&format!("{at}/{key}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{at}/{index}"), a, b, found);
            }
        }
        _ if ours == theirs => {}
        _ => found.push((at.to_owned(), format!("ours {ours}, theirs {theirs}"))),
    }
}

/// A known difference: the name of a request, or empty for any; how the JSON pointer into the answer begins or ends; and why
/// it is so, for those who read `differences.json`.
type Known = [String; 3];

fn is_known([request, at, _]: &Known, name: &str, pointer: &str) -> bool {
    let here = request.is_empty() || request == name;
    here && (pointer.starts_with(at) || pointer.ends_with(at))
}

/// What differs, and is no known difference.
fn unexplained(ours: &Answers, theirs: &Answers) -> Vec<String> {
    assert!(
        ours.keys().eq(theirs.keys()),
        "the list has changed: ask a real one again"
    );
    let known: Vec<Known> = serde_json::from_value(read("differences.json")).expect("a list");
    let mut used = vec![false; known.len()];
    let mut left = Vec::new();
    for (name, ours) in ours {
        let mut found = Vec::new();
        compare("", ours, &theirs[name], &mut found);
        for (at, how) in found {
            match known.iter().position(|known| is_known(known, name, &at)) {
                Some(index) => used[index] = true,
                None => left.push(format!("{name}: {at}: {how}")),
            }
        }
    }
    let idle = known.iter().zip(used).filter(|(_, used)| !used);
    left.extend(idle.map(|(known, _)| format!("no difference any more: {known:?}")));
    left
}

fn kept() -> Answers {
    serde_json::from_value(read(&format!("kubernetes-{VERSION}.json"))).expect("answers")
}

#[test]
fn answers_as_a_real_one_did() {
    let server = TestServer::builder()
        .csr(CsrMode::Manual)
        .managed_fields(true)
        .start()
        .expect("server");
    let left = unexplained(&replay(&server), &kept());
    assert!(
        left.is_empty(),
        "{} differences:\n{}",
        left.len(),
        left.join("\n")
    );
}

#[test]
fn a_real_one_answers_as_it_did() {
    let real = match real::Real::start() {
        Ok(real) => real,
        Err(missing) => {
            skipped!("a_real_one_answers_as_it_did: {missing}");
            return;
        }
    };
    let version = client(&real, "admin").get("/version").json();
    let version = version["gitVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if version != VERSION {
        skipped!(
            "a_real_one_answers_as_it_did: found {version}, and answers of {VERSION} are kept"
        );
        return;
    }
    let answers = replay(&real);
    let wanted =
        fs::read_to_string(golden(&format!("kubernetes-{VERSION}.json"))).unwrap_or_default();
    let line = |(name, answer): (&String, &Value)| format!("{}: {answer}", json!(name));
    let lines: Vec<String> = answers.iter().map(line).collect();
    let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
    if text != wanted {
        let file = real.dir().with_extension("json");
        fs::write(&file, text).expect("written");
        panic!("other answers than those that are kept: {}", file.display());
    }
}
