//! Bytes of the link: counted as the interface counts them.

use core::time::Duration;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nix::sys::signal::Signal;
use picolet::sys::clock;
use picolet_test_apiserver::TestServer;
use serde_json::{Value, json};

use crate::host::{Host, IDLE, NODE, PATIENCE, able, manifest, pause, sh, text};
use crate::image::{architecture, hex, layer};
use crate::wire::{Weather, Wire};

/// By how much the count may be wrong.
const ERROR_PERCENT: u64 = 3;

/// A registry with one image, `app:1`, over HTTP.
pub(crate) struct Registry {
    address: SocketAddr,
    /// Bytes of its layers: what it shares with the image that hosts have, and what nobody has.
    layer_bytes: [u64; 2],
}

impl Registry {
    pub(crate) fn start(ip: Ipv4Addr) -> Self {
        let listener = TcpListener::bind((ip, 0)).expect("registry");
        let address = listener.local_addr().expect("address");
        let (layer, noise) = (layer(), noise());
        let diffs = [&layer, &noise].map(|l| format!("sha256:{}", hex(l)));
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": diffs},
        });
        let config = config.to_string().into_bytes();
        let of = |kind: &str, bytes: &[u8]| {
            json!({
                "mediaType": format!("application/vnd.oci.image.{kind}"),
                "digest": format!("sha256:{}", hex(bytes)),
                "size": bytes.len(),
            })
        };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": of("config.v1+json", &config),
            "layers": [of("layer.v1.tar", &layer), of("layer.v1.tar", &noise)],
        });
        let manifest = manifest.to_string().into_bytes();
        let layer_bytes = [&layer, &noise].map(|l| l.len() as u64);
        let files: Arc<Vec<(String, Vec<u8>)>> = Arc::new(vec![
            ("manifests/1".into(), manifest.clone()),
            (format!("manifests/sha256:{}", hex(&manifest)), manifest),
            (format!("blobs/sha256:{}", hex(&config)), config),
            (format!("blobs/sha256:{}", hex(&layer)), layer),
            (format!("blobs/sha256:{}", hex(&noise)), noise),
        ]);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let files = Arc::clone(&files);
                // A client that leaves is none of our business.
                std::thread::spawn(move || _ = serve(stream, &files));
            }
        });
        Self {
            address,
            layer_bytes,
        }
    }

    pub(crate) fn image(&self) -> String {
        format!("{}/app:1", self.address)
    }

    /// What an agent reads to ask it in plain text.
    pub(crate) fn configuration(&self) -> String {
        let at = self.address;
        format!("mirrors:\n  \"{at}\":\n    endpoint: [\"http://{at}\"]\n")
    }
}

/// A tar with a file that does not get smaller.
fn noise() -> Vec<u8> {
    const BYTES: usize = 1 << 20;
    let mut seed = 1_u64;
    let mut file = Vec::with_capacity(BYTES);
    while file.len() < BYTES {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        file.extend((seed >> 32).to_le_bytes());
    }
    let mut header = tar::Header::new_ustar();
    header.set_size(file.len() as u64);
    header.set_mode(0o644);
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_data(&mut header, "noise", &*file)
        .expect("layer");
    tar.into_inner().expect("layer")
}

fn serve(mut stream: TcpStream, files: &[(String, Vec<u8>)]) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        let mut line = String::new();
        while lines.read_line(&mut line)? > 2 {
            head.push_str(&line);
            line.clear();
        }
        let mut words = head.split(' ');
        let (Some(method), Some(path)) = (words.next(), words.next()) else {
            return Ok(());
        };
        let found = files.iter().find(|(name, _)| path.ends_with(name));
        let (status, body) = match found {
            Some((_, body)) => ("200 OK", &**body),
            None if path == "/v2/" => ("200 OK", &b"{}"[..]),
            None => ("404 Not Found", &b"{}"[..]),
        };
        let kind = match path.contains("manifests") {
            true => "application/vnd.oci.image.manifest.v1+json",
            false => "application/octet-stream",
        };
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        )?;
        if method != "HEAD" {
            stream.write_all(body)?;
        }
    }
}

/// A node of a cluster behind a link of its own, and a registry there.
pub(crate) struct Behind {
    pub(crate) wire: Wire,
    pub(crate) server: TestServer,
    pub(crate) registry: Registry,
    pub(crate) host: Host,
}

impl Behind {
    /// `None`: this machine cannot have one. `number`: of the tests at a time each has another, less than 3.
    pub(crate) fn new(number: u32) -> Option<Self> {
        if !able() {
            return None;
        }
        if !std::path::Path::new("/dev/net/tun").exists() {
            skipped!("cluster: a link of its own needs /dev/net/tun");
            return None;
        }
        let weather = Weather {
            delay: Duration::from_millis(2),
            lost_one_in: u64::MAX,
            forgets: Duration::from_secs(24 * 3600),
        };
        let place = (std::process::id() + 83 * number) % 250;
        let wire = Wire::lay(u8::try_from(place).expect("small"), weather);
        let server = TestServer::builder()
            .listen(SocketAddr::from((wire.near, 0)))
            .host(&wire.near.to_string())
            .start()
            .expect("server");
        let registry = Registry::start(wire.near);
        let config = server.kubeconfig_for_node(NODE).expect("kubeconfig");
        let mut host = Host::new(&[]);
        let at = |name: &str, text: String| {
            let path = host.path(name);
            fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let more = [
            "--kubeconfig".into(),
            at("kubeconfig", config),
            "--private-registry".into(),
            at("registries.yaml", registry.configuration()),
        ];
        host.flags.extend(more);
        // How full the disk of this machine is does not matter here.
        host.flags.extend(
            [
                "--eviction-hard=memory.available<10Mi",
                "--image-gc-high-threshold=100",
            ]
            .map(String::from),
        );
        host.namespace = Some(wire.namespace.clone());
        Some(Self {
            wire,
            server,
            registry,
            host,
        })
    }

    /// Creates a pod with the registry's image.
    pub(crate) fn create(&self, name: &str) {
        let mut container = sh("c", IDLE);
        container["image"] = self.registry.image().into();
        let mut pod = manifest(
            name,
            json!({"containers": [container], "nodeName": NODE, "automountServiceAccountToken": false}),
        );
        pod["metadata"]["namespace"] = "default".into();
        self.server.create(&pod).expect("create");
    }

    fn runs(&self, name: &str) {
        self.server
            .wait_for_phase("default", name, "Running", PATIENCE);
    }
}

/// What the interface of the agent's namespace has received and sent.
fn carried(host: &Host) -> [u64; 2] {
    let text = fs::read_to_string(format!("/proc/{}/net/dev", host.agent_pid())).expect("counts");
    let line = text.lines().find_map(|l| l.trim().strip_prefix("eth0:"));
    let numbers = line.expect("eth0").split_whitespace();
    let numbers: Vec<u64> = numbers.map(|n| n.parse().expect("a number")).collect();
    [numbers[0], numbers[8]]
}

/// `GET` at the agent's socket.
fn get(host: &Host, target: &str) -> String {
    ask(host, "GET", target)
}

/// The body of the answer there.
fn ask(host: &Host, method: &str, target: &str) -> String {
    let mut stream = UnixStream::connect(host.path("run/picolet.sock")).expect("socket");
    let head = format!("{method} {target} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answer");
    let (_, body) = text.split_once("\r\n\r\n").expect("a body");
    body.to_owned()
}

/// What the agent has counted: by class, and all.
pub(crate) fn counted(host: &Host) -> (Vec<[u64; 2]>, [u64; 2]) {
    let link: Value = serde_json::from_str(&get(host, "/link")).expect("JSON");
    let classes: Vec<[u64; 2]> =
        serde_json::from_value(link["bytes"].clone()).expect("bytes by class");
    let all = classes
        .iter()
        .fold([0, 0], |all, of| [all[0] + of[0], all[1] + of[1]]);
    (classes, all)
}

/// Waits until both counts agree; each may be in the middle of something at any moment.
fn agree(host: &Host, since: ([u64; 2], [u64; 2])) {
    let deadline = clock::mono_now() + PATIENCE;
    loop {
        let before = carried(host);
        let (_, all) = counted(host);
        let after = carried(host);
        let is_right = (0..2).all(|way| {
            let counted = all[way] - since.1[way];
            let (least, most) = (before[way] - since.0[way], after[way] - since.0[way]);
            counted * 100 >= least * (100 - ERROR_PERCENT)
                && counted * 100 <= most * (100 + ERROR_PERCENT)
        });
        if is_right {
            let counted = [0, 1].map(|way| all[way] - since.1[way]);
            let carried = [0, 1].map(|way| after[way] - since.0[way]);
            eprintln!("received and sent: counted {counted:?}, carried {carried:?}");
            return;
        }
        assert!(
            clock::mono_now() < deadline,
            "counted {all:?}, carried {after:?}, since {since:?}"
        );
        pause(Duration::from_millis(200));
    }
}

const HEARTBEAT: usize = 0;
const API: usize = 1;
const IMAGE: usize = 2;
const UPDATE: usize = 6;

#[test]
fn counted_as_the_interface_counts() {
    // METER-01
    let Some(mut behind) = Behind::new(1) else {
        return;
    };
    behind.host.start_agent();
    let host = &behind.host;
    behind.server.wait_for("the node", PATIENCE, |view| {
        view.get("nodes", "", NODE).map(drop)
    });
    agree(host, ([0, 0], [0, 0]));
    let (classes, _) = counted(host);
    assert_eq!(classes[IMAGE], [0, 0]);
    let since = (carried(host), counted(host).1);
    behind.create("first");
    behind.runs("first");
    agree(host, since);
    let (classes, all) = counted(host);
    let size: u64 = behind.registry.layer_bytes.iter().sum();
    let image = classes[IMAGE];
    assert!(
        image[0] > size && image[0] < size + size / 10,
        "{image:?} for {size} bytes"
    );
    for class in [HEARTBEAT, API] {
        assert!(classes[class].iter().all(|n| *n > 0), "{classes:?}");
    }
    // What is asked here does not go over the link, nor do the page and the command show anything else.
    let page = get(host, "/metrics");
    let line = "picolet_link_bytes_total{class=\"image\",direction=\"in\"} ";
    let shown = page.lines().find_map(|l| l.strip_prefix(line));
    assert_eq!(shown, Some(&*image[0].to_string()));
    let shown = host.ok(&["top", "net"]);
    assert!(shown.lines().any(|l| l.starts_with("image ")), "{shown}");
    assert!(all[0] > image[0]);
    // Another process of picolet reports what it fetched; what makes no sense is refused.
    ask(host, "POST", "/link/update?received=1000&sent=20");
    for (query, why) in [
        ("received=1073741825", "at most 1073741824 bytes"),
        ("sent=-1", "not a valid number"),
    ] {
        let refused = ask(host, "POST", &format!("/link/update?{query}"));
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(counted(host).0[UPDATE], [1000, 20]);
    // Without a budget nothing is kept.
    assert!(!host.path("root/link-budget.json").exists());
    behind.host.finish();
}

/// Says what may go over the link in a day, from the agent's next start on.
fn allow(behind: &Behind, bytes: u64) {
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         picolet: {{link: {{dailyBytes: \"{bytes}\"}}}}\n"
    );
    fs::write(behind.host.path("config.yaml"), text).expect("configuration");
}

fn events(behind: &Behind, reason: &str) -> Vec<Value> {
    let view = behind.server.list("events", "default");
    view.into_iter().filter(|e| e["reason"] == reason).collect()
}

fn condition(host: &Host) -> Value {
    let node: Value = serde_json::from_str(&host.ok(&["get", "node", "-o", "json"])).expect("JSON");
    let all = node["status"]["conditions"].as_array().expect("conditions");
    let found = all.iter().find(|c| c["type"] == "LinkBudget");
    found.expect("LinkBudget").clone()
}

#[test]
fn a_pull_waits_for_the_budget_and_goes_on() {
    // METER-02 METER-04
    let Some(mut behind) = Behind::new(2) else {
        return;
    };
    // What is in the image that the host has is not fetched.
    let [_, size] = behind.registry.layer_bytes;
    let config = behind.host.path("config.yaml").display().to_string();
    behind.host.flags.extend(["--config".into(), config]);
    // The image takes more than what there is for images.
    allow(&behind, size);
    behind.host.start_agent();
    behind.host.import();
    behind.create("big");
    let waits = behind.server.wait_for("PullDeferred", PATIENCE, |view| {
        let pod = view.get("pods", "default", "big")?;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        (waiting["reason"] == "PullDeferred").then(|| waiting["message"].to_string())
    });
    for part in [
        "needs ",
        "are left for it today",
        "picolet image pull --now",
    ] {
        assert!(waits.contains(part), "{waits}");
    }
    behind.server.wait_for("the event", PATIENCE, |view| {
        let events = view.list("events", "default");
        events
            .iter()
            .any(|e| e["reason"] == "PullDeferred")
            .then_some(())
    });
    let (classes, _) = counted(&behind.host);
    assert!(
        classes[IMAGE][0] < size / 2,
        "only its manifest: {classes:?}"
    );
    // A new agent knows what was used today, and has more.
    behind.host.end_agent(Signal::SIGTERM);
    let before = link_record(&behind.host);
    assert!(before > 0);
    allow(&behind, 100 * size);
    behind.host.start_agent();
    behind.runs("big");
    behind.host.end_agent(Signal::SIGTERM);
    assert!(link_record(&behind.host) > before + size);
    // With less than was used nothing is left.
    allow(&behind, 1000);
    behind.host.start_agent();
    let shown = condition(&behind.host);
    assert_eq!(
        (&shown["status"], &shown["reason"]),
        (&json!("False"), &json!("Spent"))
    );
    let health: Value = serde_json::from_str(&get(&behind.host, "/health")).expect("JSON");
    assert_eq!(health["link"]["waits"], true, "{health}");
    assert!(behind.host.ok(&["top", "net"]).contains("used today"));
    behind
        .server
        .delete("pods", "default", "big", None)
        .expect("delete");
    behind
        .server
        .wait_until_gone("pods", "default", "big", PATIENCE);
    // What needs no image runs, and ends; the node is ready.
    let mut pod = manifest(
        "short",
        json!({"containers": [sh("c", "exit 0")], "nodeName": NODE, "restartPolicy": "Never", "automountServiceAccountToken": false}),
    );
    pod["metadata"]["namespace"] = "default".into();
    behind.server.create(&pod).expect("create");
    behind
        .server
        .wait_for_phase("default", "short", "Succeeded", PATIENCE);
    behind
        .server
        .wait_for("a node that is ready, and its lease", PATIENCE, |view| {
            let node = view.get("nodes", "", NODE)?;
            let conditions = node["status"]["conditions"].as_array()?;
            let is_ready = conditions
                .iter()
                .any(|c| c["type"] == "Ready" && c["status"] == "True");
            is_ready.then_some(())
        });
    let host = &behind.host;
    let image = behind.registry.image();
    host.until("the image is removed", |host| {
        let said = host.cli(&["image", "rm", &image]);
        (said.status.success(), text(&said.stderr))
    });
    let refused = host.cli(&["image", "pull", &image]);
    let why = text(&refused.stderr);
    assert!(!refused.status.success() && why.contains("--now"), "{why}");
    host.ok(&["image", "pull", "--now", &image]);
    assert_eq!(events(&behind, "PullDeferred").len(), 1);
    behind.host.finish();
}

/// Bytes used today, as they are kept.
fn link_record(host: &Host) -> u64 {
    let text = fs::read_to_string(host.path("root/link-budget.json")).expect("a record");
    let record: Value = serde_json::from_str(&text).expect("JSON");
    record["used"].as_u64().expect("a number")
}
