//! The commands that kubectl has too, judged by a real kubectl: the same objects, the same words, the same bytes.
//!
//! `tests/golden/kubectl` has what kubectl printed. Where a kubectl of that version is found, it is asked again; but not for the
//! tables, whose cells a real apiserver has made.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

use std::{
    collections::BTreeSet,
    env, fs,
    io::{self, BufRead as _, BufReader, Write},
    net::TcpListener,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
    thread,
};

use picolet::{api::WallTime, sys::clock};
use serde_json::{Value, json};

const OBJECTS: &str = include_str!("golden/kubectl/objects.json");
const CASES: &str = include_str!("golden/kubectl/cases.txt");
const TABLE_OBJECTS: &str = include_str!("golden/kubectl/tables.json");
const TABLE_CASES: &str = include_str!("golden/kubectl/tables.txt");
const FLAGS: &str = include_str!("golden/kubectl/flags.txt");
/// Version that printed the golden texts.
const MINOR: &str = "36";
/// Flag that every command of kubectl takes without naming it in its own help.
const NAMESPACE: &str = "namespace:n";

/// A command line and what it prints.
#[derive(Debug, Default, PartialEq, Eq)]
struct Case {
    words: String,
    code: i32,
    stdout: String,
    stderr: String,
    /// picolet has words of its own for this mistake.
    has_other_words: bool,
}

/// Reads lines: `$ words`, `= code`, `> line of output`, `! line of errors`, `%` for words of picolet's own, and `\` where the
/// output ends without a line break.
fn cases(text: &str) -> Vec<Case> {
    let mut all: Vec<Case> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (sign, rest) = line.split_at(1);
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        if sign == "$" {
            all.push(Case {
                words: rest.to_owned(),
                ..Case::default()
            });
        }
        let Some(case) = all.last_mut() else {
            continue;
        };
        match sign {
            "=" => case.code = rest.parse().expect("exit code"),
            ">" => case.stdout += &format!("{rest}\n"),
            "!" => case.stderr += &format!("{rest}\n"),
            "%" => case.has_other_words = true,
            "\\" => _ = case.stdout.pop(),
            _ => {}
        }
    }
    all
}

/// Divides a command line as a shell does that knows single quotes only.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut word, mut quoted) = (Vec::new(), None, false);
    for c in line.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_with(String::new);
            }
            ' ' if !quoted => all.extend(word.take()),
            c => word.get_or_insert_with(String::new).push(c),
        }
    }
    all.extend(word);
    all
}

fn objects(kind: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(OBJECTS).expect("objects.json");
    all[kind].as_array().cloned().unwrap_or_default()
}

/// Answers as the agent does at its socket.
fn agent_answer(path: &str, query: &[(String, String)]) -> Option<Value> {
    let kind = path.trim_matches('/');
    match kind {
        "node" => return objects("nodes").pop(),
        "pressure" => return Some(json!({"short": [], "by": "", "order": []})),
        "pods" | "events" | "configmaps" | "secrets" => {}
        _ => return None,
    }
    Some(agent_list(objects(kind), query))
}

/// Answers as the agent does that has the objects of the tables. It has all nodes.
fn agent_answer_for_tables(path: &str, query: &[(String, String)]) -> Option<Value> {
    static OBJECTS: LazyLock<Value> = LazyLock::new(|| {
        let mut all = serde_json::from_str(TABLE_OBJECTS).expect("tables.json");
        set_times(&mut all, clock::wall_now().unix_seconds());
        all
    });
    let kind = match path.trim_matches('/') {
        "node" => "nodes",
        other => other,
    };
    let items = OBJECTS[kind].as_array()?.clone();
    Some(agent_list(items, query))
}

/// Replaces each `now-SECONDS` by that time. `now`: seconds since 1970.
fn set_times(value: &mut Value, now: i64) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|value| set_times(value, now)),
        Value::Object(all) => all.values_mut().for_each(|value| set_times(value, now)),
        Value::String(text) => {
            let ago = text
                .strip_prefix("now-")
                .and_then(|s| s.parse::<i64>().ok());
            if let Some(ago) = ago {
                *value = json!(WallTime::from_unix_seconds(now - ago));
            }
        }
        _ => {}
    }
}

/// Lists the objects of the namespace that is asked for.
fn agent_list(mut items: Vec<Value>, query: &[(String, String)]) -> Value {
    let namespace = query.iter().find(|(name, _)| name == "namespace");
    items.retain(|item| {
        namespace.is_none_or(|(_, name)| name.is_empty() || item["metadata"]["namespace"] == **name)
    });
    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": ""}, "items": items})
}

/// Answers as an apiserver does, that has one version and no tables.
fn apiserver_answer(path: &str, query: &[(String, String)]) -> Option<Value> {
    let kinds = [
        ("pods", "pod", "Pod", true, "po"),
        ("nodes", "node", "Node", false, "no"),
        ("events", "event", "Event", true, "ev"),
        ("configmaps", "configmap", "ConfigMap", true, "cm"),
        ("secrets", "secret", "Secret", true, "secret"),
    ];
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (namespace, parts) = match parts.as_slice() {
        ["api"] => return Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["apis"] => {
            return Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}));
        }
        ["api", "v1"] => {
            let all = kinds.map(|(plural, singular, kind, namespaced, short)| {
                let categories = if plural == "pods" { &["all"][..] } else { &[] };
                json!({"name": plural, "singularName": singular, "kind": kind, "namespaced": namespaced,
                    "verbs": ["get", "list", "watch"], "shortNames": [short], "categories": categories})
            });
            return Some(
                json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": all}),
            );
        }
        ["api", "v1", "namespaces", namespace, rest @ ..] => (Some(*namespace), rest),
        ["api", "v1", rest @ ..] => (None, rest),
        _ => return None,
    };
    let (plural, name) = match parts {
        [plural] => (*plural, None),
        [plural, name] => (*plural, Some(*name)),
        _ => return None,
    };
    let (_, _, kind, _, _) = kinds.into_iter().find(|kind| kind.0 == plural)?;
    let mut items = objects(plural);
    items.retain(|item| namespace.is_none_or(|n| item["metadata"]["namespace"] == n));
    if let Some(name) = name {
        return items.into_iter().find(|o| o["metadata"]["name"] == name);
    }
    let selector = query.iter().find(|(name, _)| name == "fieldSelector");
    let selector = selector.map_or("", |(_, value)| value);
    items.retain(|item| {
        selector
            .split(',')
            .filter(|part| !part.is_empty())
            .all(|part| {
                let (path, value) = part.split_once('=').expect("a field and its value");
                let (path, is_negated) =
                    path.strip_suffix('!').map_or((path, false), |p| (p, true));
                let found = item.pointer(&format!("/{}", path.replace('.', "/")));
                let found = found.and_then(Value::as_str).unwrap_or("");
                (found == value) != is_negated
            })
    });
    let labels = query.iter().find(|(name, _)| name == "labelSelector");
    if let Some((label, value)) = labels.and_then(|(_, text)| text.split_once('=')) {
        items.retain(|item| item["metadata"]["labels"][label] == value);
    }
    // A list says once what its items are.
    for item in &mut items {
        let item = item.as_object_mut().expect("an object");
        item.remove("kind");
        item.remove("apiVersion");
    }
    Some(json!({"kind": format!("{kind}List"), "apiVersion": "v1", "metadata": {}, "items": items}))
}

fn decoded(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let code: String = bytes.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&code, 16).expect("an encoded byte")
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(out).expect("UTF-8")
}

type Answer = fn(&str, &[(String, String)]) -> Option<Value>;

/// Answers one request and closes the connection.
fn serve(mut stream: impl io::Read + Write, answer: Answer) {
    let mut reader = BufReader::new(&mut stream);
    let mut line = String::new();
    let _ = reader.read_line(&mut line);
    let target = line.split(' ').nth(1).unwrap_or("/").to_owned();
    while reader.read_line(&mut line).is_ok_and(|n| n > 2) {}
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let pairs: Vec<_> = pairs.map(|(k, v)| (decoded(k), decoded(v))).collect();
    if query.contains("watch=") && !query.contains("sendInitialEvents") {
        // Nothing ever happens.
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        let _ = io::copy(&mut stream, &mut io::sink());
        return;
    }
    let (status, body) = match answer(path, &pairs) {
        // Refuses the newer way to watch. kubectl then lists first.
        _ if query.contains("watch=") => {
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422});
            ("422 Unprocessable Entity", body)
        }
        Some(body) => ("200 OK", body),
        None => {
            let name = path.rsplit('/').next().unwrap_or("");
            let text = match path.starts_with("/api/v1/") {
                true => format!("pods \"{name}\" not found"),
                false => "the server could not find the requested resource".to_owned(),
            };
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                "message": text, "code": 404});
            ("404 Not Found", body)
        }
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all((head + &body).as_bytes());
}

/// Starts an agent that has the objects. Returns its socket, which lasts as long as this process.
fn start_agent(name: &str, answer: Answer) -> PathBuf {
    let dir = env::temp_dir().join(format!("picolet-kubectl-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).expect("directory");
    let socket = dir.join("agent.sock");
    // One of a process that had this number before.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).expect("socket");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream, answer));
        }
    });
    socket
}

/// Starts an apiserver that has the objects. Returns its address.
fn start_apiserver() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("socket");
    let address = listener.local_addr().expect("address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream, apiserver_answer));
        }
    });
    format!("http://{address}")
}

/// Runs a case with a program; `first` stands before its words.
fn run(program: &Path, first: &[&str], line: &str) -> Case {
    let output = Command::new(program)
        .args(first)
        .args(words(line))
        .env("TZ", "UTC")
        .env("KUBECONFIG", "/dev/null")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::null())
        .output()
        .expect("the program");
    Case {
        words: line.to_owned(),
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        has_other_words: false,
    }
}

/// Finds a kubectl of the version that printed the golden texts.
fn kubectl() -> Option<PathBuf> {
    let lists = [env::var_os("K8S_BIN"), env::var_os("PATH")];
    let dirs = lists.iter().flatten().flat_map(env::split_paths);
    dirs.map(|dir| dir.join("kubectl")).find(|program| {
        let words = ["version", "--client", "--output=json"];
        let output = Command::new(program).args(words).output();
        let version = output.map(|output| serde_json::from_slice::<Value>(&output.stdout));
        version.is_ok_and(|v| v.is_ok_and(|v| v["clientVersion"]["minor"] == MINOR))
    })
}

/// Lines of `describe node`: a node alone has no lease, and kubectl does not know what a node is short of.
fn is_of_one_program(line: &str) -> bool {
    ["Lease:", "Short of:"]
        .iter()
        .any(|title| line.starts_with(title))
}

#[test]
fn picolet_prints_what_kubectl_prints() {
    // CLI-06
    compare_with(&start_agent("objects", agent_answer), CASES);
}

#[test]
fn picolet_prints_the_tables_of_an_apiserver() {
    // CLI-06
    compare_with(&start_agent("tables", agent_answer_for_tables), TABLE_CASES);
}

/// Runs all cases with the agent at this socket.
fn compare_with(path: &Path, text: &str) {
    let socket = path.to_str().expect("UTF-8");
    let program = Path::new(env!("CARGO_BIN_EXE_picolet"));
    let mut different = Vec::new();
    for mut expected in cases(text) {
        let mut got = run(program, &["--socket", socket], &expected.words);
        got.has_other_words = expected.has_other_words;
        if expected.has_other_words {
            assert!(!got.stderr.is_empty(), "{}: it says nothing", got.words);
            got.stderr.clear();
        }
        for case in [&mut got, &mut expected] {
            let lines = case.stdout.split_inclusive('\n');
            case.stdout = lines.filter(|line| !is_of_one_program(line)).collect();
        }
        if got != expected {
            different.push(format!("{got:#?}\nkubectl: {expected:#?}"));
        }
    }
    let _ = fs::remove_dir_all(path.parent().expect("its directory"));
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn kubectl_prints_the_golden_texts() {
    let Some(program) = kubectl() else {
        skipped!("kubectl_prints_the_golden_texts: no kubectl 1.{MINOR} in K8S_BIN or on PATH");
        return;
    };
    let server = start_apiserver();
    // It learns what the server has only once.
    let dir = env::temp_dir().join(format!("picolet-kubectl-{}-cache", std::process::id()));
    let cache = format!("--cache-dir={}", dir.display());
    for expected in cases(CASES) {
        let mut got = run(&program, &["-s", &server, &cache], &expected.words);
        got.has_other_words = expected.has_other_words;
        if expected.has_other_words {
            got.stderr.clear();
        }
        assert_eq!(got, expected);
    }
    let _ = fs::remove_dir_all(dir);
    for line in FLAGS.lines().filter(|line| !line.starts_with('#')) {
        let (name, flags) = line.split_once(':').expect("a command and its flags");
        if flags.is_empty() {
            continue;
        }
        let mut found: BTreeSet<String> = BTreeSet::new();
        // `top` has the flags of both of its kinds.
        let kinds = if name == "top" {
            &["pod", "node"][..]
        } else {
            &[""]
        };
        for kind in kinds {
            let help = run(&program, &[], &format!("{name} {kind} --help")).stdout;
            let options = help.split("\nOptions:\n").nth(1).unwrap_or("");
            let options = options.split("\nUsage:").next().unwrap_or("");
            found.extend(options.lines().filter_map(flag_of_help));
        }
        let mut known: BTreeSet<String> = flags.split_whitespace().map(str::to_owned).collect();
        known.remove(NAMESPACE);
        assert_eq!(found, known, "{name}");
    }
}

/// Reads a line of help that begins with a flag: `    -n, --name='': text` as `name:n`.
fn flag_of_help(line: &str) -> Option<String> {
    let line = line.trim_start();
    let (letter, long) = match line.split_once(", --") {
        Some((letter, long)) if letter.len() == 2 => (letter.strip_prefix('-'), long),
        _ => (None, line.strip_prefix("--")?),
    };
    let name = long.split('=').next().unwrap_or(long);
    Some(letter.map_or_else(|| name.to_owned(), |letter| format!("{name}:{letter}")))
}
