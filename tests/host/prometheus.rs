//! What `contrib` has for Prometheus and Grafana, against a real Prometheus that scrapes a real node with pods.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::held_port::held_port;
use crate::host::{self, Host, IDLE, sh, text, with};

const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/contrib");
/// Debian's package, taken out and not installed (`cargo xtask test` does it), or what the machine has.
const PLACES: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/target/prometheus/usr/bin"),
    "/usr/bin",
];
/// Series that this node cannot have: a cluster's, a flash card's. That they are exported under these names
/// `tests/golden/metrics/own.txt` says.
const OF_OTHER_MACHINES: [&str; 5] = [
    "kubelet_certificate_manager_client_ttl_seconds",
    "picolet_apiserver_answer_age_seconds",
    "picolet_disk_at_its_end",
    "picolet_disk_used_life_ratio",
    "picolet_disk_written_bytes_total",
];

fn program(name: &str) -> Option<PathBuf> {
    let mut all = PLACES.iter().map(|place| Path::new(place).join(name));
    all.find(|path| path.exists())
}

fn shipped(name: &str) -> String {
    fs::read_to_string(Path::new(CONTRIB).join(name)).expect(name)
}

fn promtool(words: &[&str]) {
    let Some(promtool) = program("promtool") else {
        return;
    };
    let dir = Path::new(CONTRIB).join("prometheus");
    let said = Command::new(promtool).args(words).current_dir(dir).output();
    let said = said.expect("promtool");
    assert!(
        said.status.success(),
        "{words:?}: {}{}",
        text(&said.stdout),
        text(&said.stderr)
    );
}

#[test]
fn rules_and_their_tests_pass() {
    if program("promtool").is_none() {
        skipped!("rules_and_their_tests_pass: Debian's prometheus is not at hand");
        return;
    }
    promtool(&["check", "config", "prometheus.yml"]);
    promtool(&["check", "rules", "picolet.rules.yml"]);
    promtool(&["test", "rules", "picolet.test.yml"]);
    // Each alert is seen to fire, and not to.
    let (rules, tests) = (
        shipped("prometheus/picolet.rules.yml"),
        shipped("prometheus/picolet.test.yml"),
    );
    let alerts = names(&rules, "- alert: ");
    assert!(alerts.len() >= 11, "{alerts:?}");
    for alert in alerts {
        let of_it: Vec<&str> = tests
            .split("alertname: ")
            .filter(|test| test.lines().next() == Some(&alert))
            .collect();
        let silent = |test: &&&str| test.contains("exp_alerts: []");
        // What follows up to the next test belongs to it.
        let quiet = of_it.iter().filter(silent).count();
        assert!(quiet > 0, "{alert} is not seen to be quiet");
        assert!(of_it.len() > quiet, "{alert} is not seen to fire");
    }
}

/// What stands behind `mark` in lines.
fn names(text: &str, mark: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(mark));
    lines.map(str::to_owned).collect()
}

/// A Prometheus that ends with this.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(program: &Path, host: &Host, node: u16) -> Self {
        let dir = host.path("prometheus");
        fs::create_dir(&dir).expect("directory");
        // The shipped files, but for a hurry.
        let config = shipped("prometheus/prometheus.yml").replace("30s", "1s");
        for (name, text) in [
            ("prometheus.yml", config),
            ("nodes.yml", format!("- targets: [\"127.0.0.1:{node}\"]\n")),
            (
                "picolet.rules.yml",
                shipped("prometheus/picolet.rules.yml").replace("[5m]", "[20s]"),
            ),
        ] {
            fs::write(dir.join(name), text).expect("file");
        }
        let port = held_port();
        let log = File::create(dir.join("log")).expect("log");
        let child = Command::new(program)
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus");
        Self { child, port }
    }

    fn get(&self, target: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        // Of this version nothing comes in chunks.
        write!(stream, "GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    /// How many series an expression returns, or what is wrong with it.
    fn query(&self, expr: &str) -> Result<usize, String> {
        let mut query = String::new();
        for byte in expr.bytes() {
            query.push_str(&format!("%{byte:02x}"));
        }
        let answer = self.get(&format!("/api/v1/query?query={query}"));
        let answer = answer.ok_or("no answer")?;
        let found = answer["data"]["result"].as_array().map(Vec::len);
        found.ok_or_else(|| answer.to_string())
    }

    fn until_data(&self, host: &Host, what: &str, expr: &str) {
        host.until(&format!("{what}: {expr} returns something"), |_| {
            let found = self.query(expr);
            (matches!(found, Ok(1..)), format!("{found:?}"))
        });
    }
}

/// Names of series in an expression: words that are no functions, labels or keywords.
fn series(expr: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    // What stands in braces or quotes is a label.
    let (mut depth, mut bare) = (0, String::new());
    for c in expr.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            c if depth == 0 => bare.push(c),
            _ => {}
        }
    }
    let begins = [
        "container_",
        "kubelet_",
        "machine_",
        "node_",
        "picolet_",
        "pod_",
        "prober_",
        "process_",
        "instance:",
        "namespace_pod:",
    ];
    let words = bare.split(|c| !is_word(c));
    let named = words.filter(|w| *w == "up" || begins.iter().any(|b| w.starts_with(b)));
    named.map(str::to_owned).collect()
}

fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut all = Vec::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("title");
        for target in panel["targets"].as_array().expect("targets") {
            let expr = target["expr"].as_str().expect("expr");
            let expr = expr
                .replace("$instance", ".*")
                .replace("$__rate_interval", "20s")
                .replace("[1h]", "[20s]");
            assert!(!expr.contains('$'), "{title}: {expr}");
            all.push((title.to_owned(), expr));
        }
    }
    all
}

/// A node that stands alone, and lets whoever comes to its address read figures, and nothing else.
fn node() -> (Host, u16) {
    let mut host = Host::new(&["--evict-static-pods"]);
    let config = host.path("config.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nenableServer: true\n\
                address: 127.0.0.1\nenableDebuggingHandlers: false\nauthentication: {anonymous: {enabled: true}}\n\
                authorization: {mode: AlwaysAllow}\n";
    fs::write(&config, text).expect("written");
    let flags = ["--config".to_owned(), config.display().to_string()];
    host.flags.extend(flags);
    let at = host.flags.iter().position(|f| f == "--port").expect("port");
    let port = host.flags[at + 1].parse().expect("a number");
    host.start_agent();
    host.import();
    (host, port)
}

// MET-07 MET-08 MET-09
#[test]
fn every_expression_finds_what_it_names() {
    if !host::able() {
        return;
    }
    let Some(program) = program("prometheus") else {
        skipped!("every_expression_finds_what_it_names: Debian's prometheus is not at hand");
        return;
    };
    let (host, port) = node();
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let web = with(
        sh("main", "while :; do :; done"),
        json!({"readinessProbe": probe, "resources": {"limits": {"cpu": "50m", "memory": "64Mi"}}}),
    );
    host.pod("web", json!({"containers": [web]}));
    host.pod("crash", json!({"containers": [sh("main", "exit 1")]}));
    let fills = format!("dd if=/dev/zero of=/data/x bs=1M count=4; {IDLE}");
    let mount = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    host.pod(
        "greedy",
        json!({
            "containers": [with(sh("main", &fills), mount)],
            "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}],
        }),
    );
    host.wait_ready("web");
    let prometheus = Prometheus::start(&program, &host, port);
    host.wait_phase("greedy", "Failed");
    prometheus.until_data(
        &host,
        "the crash loop",
        "picolet_container_waiting{reason=\"CrashLoopBackOff\"}",
    );

    let dashboard = shipped("grafana/picolet.json");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let exported = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/metrics/own.txt"
    ));
    let exported = exported.expect("golden");
    let elsewhere = |name: &str| {
        let told = exported.contains(&format!("# TYPE {name} "));
        OF_OTHER_MACHINES.contains(&name) && told
    };
    for (title, expr) in expressions(&dashboard) {
        let named = series(&expr);
        assert!(!named.is_empty(), "{title}: {expr}");
        if !named.iter().all(|name| elsewhere(name)) {
            prometheus.until_data(&host, &title, &expr);
        }
    }
    let rules = shipped("prometheus/picolet.rules.yml");
    for record in names(&rules, "- record: ") {
        prometheus.until_data(&host, "a recording rule", &record);
    }
    // Alerts are silent where all is well: what they look at is there.
    for expr in names(&rules, "expr: ") {
        for name in series(&expr) {
            if !elsewhere(&name) {
                prometheus.until_data(&host, &expr, &name);
            }
        }
    }
    host.until("no rule fails", |_| {
        let rules = prometheus.get("/api/v1/rules").unwrap_or_default();
        let groups = rules["data"]["groups"].as_array().cloned();
        let all: Vec<Value> = groups
            .into_iter()
            .flatten()
            .flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default())
            .collect();
        let well = all.iter().all(|rule| rule["health"] == "ok");
        (!all.is_empty() && well, rules.to_string())
    });
    // What is wrong at this node is seen by its alert.
    prometheus.until_data(
        &host,
        "the alert",
        "ALERTS{alertname=\"PicoletEvictions\",instance=~\"127.0.0.1:.*\"}",
    );
    // An expression that names what is not there is found.
    assert_eq!(prometheus.query("picolet_no_such_series"), Ok(0));
    assert!(prometheus.query("rate(picolet_pod_slots)").is_err());
    drop(prometheus);
    host.finish();
}

#[test]
fn names_of_series_are_found() {
    let found =
        series("sum by (pod) (rate(container_x_total{pod!=\"node_y\"}[5m])) / up{job=\"a\"}");
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        ["container_x_total", "up"]
    );
}
