//! Services on a node without kube-proxy: the part as a whole, from lists and watches of the apiserver to packets.

use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use nix::sys::signal::Signal;
use picolet_test_apiserver::{Entry, Fault, Identity, Rule, TestServer};
use serde_json::{Value, json};

use crate::host::{Host, NODE, PATIENCE, text};
use crate::member::{able, member, wait_ready, wrong};
use crate::own_network::{OwnNetwork, sh};

/// Address of the Service, and those of its endpoints.
const SERVICE: &str = "10.96.7.7";
const ENDPOINTS: [&str; 2] = ["10.244.7.1", "10.244.7.2"];
const PROXY: &str = "system:kube-proxy";
/// More than a page has, whole or of metadata.
const CROWD: usize = 510;

/// Serves at an endpoint: whoever connects is told its address. Ends with the test's process.
pub(crate) fn serve(endpoint: &'static str) {
    sh(&format!("ip addr add {endpoint}/32 dev lo"));
    let listener = TcpListener::bind((endpoint, 8080)).expect("a port");
    thread::spawn(move || {
        use std::io::Write as _;
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(endpoint.as_bytes());
        }
    });
}

/// Connects to a server; what it says, or nothing if nobody answers.
pub(crate) fn hear(ip: &str, port: u16) -> String {
    const WAIT: Duration = Duration::from_secs(5);
    let to = SocketAddr::new(ip.parse().expect("an address"), port);
    let mut said = String::new();
    if let Ok(mut stream) = TcpStream::connect_timeout(&to, WAIT) {
        let _ = stream.set_read_timeout(Some(WAIT));
        let _ = stream.read_to_string(&mut said);
    }
    said
}

/// Connects to the Service; which endpoint answers, or nothing.
fn dial() -> String {
    hear(SERVICE, 80)
}

/// Asks for the health of the node: status, and if load balancers may use it.
fn healthz() -> String {
    use std::io::Write as _;
    let Ok(mut stream) = TcpStream::connect("127.0.0.1:10256") else {
        return String::new();
    };
    let mut answer = String::new();
    let sent = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n");
    let read = sent.and_then(|()| stream.read_to_string(&mut answer));
    let Some((head, body)) = answer.split_once("\r\n\r\n").filter(|_| read.is_ok()) else {
        return answer;
    };
    let status = head.lines().next().unwrap_or_default();
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let status = status.trim_start_matches("HTTP/1.1 ");
    format!("{status} {{nodeEligible: {}}}", body["nodeEligible"])
}

pub(crate) fn service(name: &str, ip: &str) -> Value {
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": ip, "ports": ports},
    })
}

fn endpoints(all: &[&str]) -> Value {
    let ready = |ip: &&str| json!({"addresses": [ip], "conditions": {"ready": true}});
    all.iter().map(ready).collect()
}

pub(crate) fn slice(service: &str, all: &[&str]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "endpoints": endpoints(all), "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

/// Rules of Services in this network.
fn rules() -> String {
    sh("nft -n list ruleset")
}

/// Waits until the rules are as wanted.
pub(crate) fn until_rules(host: &Host, what: &str, holds: impl Fn(&str) -> bool) {
    host.until(what, |host| {
        let rules = rules();
        (holds(&rules), rules + &host.agent_log())
    });
}

/// Requests of the reader: lists of everything, and watches.
fn asked(server: &TestServer) -> [usize; 2] {
    let audit = server.audit();
    let of = |holds: fn(&Entry) -> bool| {
        let all = audit.iter().filter(|entry| entry.user == PROXY);
        all.filter(|entry| holds(entry)).count()
    };
    [
        of(|entry| entry.uri.starts_with("/api/v1/services?") && entry.verb == "list"),
        of(|entry| entry.verb == "watch"),
    ]
}

/// A cluster with a Service of two endpoints, and an agent that has not started.
fn cluster() -> (TestServer, Host) {
    let server = TestServer::builder().start().expect("server");
    let mut host = member(&server, &["--v=4"]);
    let proxy = server.credentials(PROXY, &[], Duration::from_secs(3600));
    let proxy = Identity::Certificate(proxy.expect("credentials"));
    let reader = host.path("network.conf");
    fs::write(&reader, server.kubeconfig(&proxy)).expect("written");
    let config = host.path("config.yaml");
    host.add_flags(&["--config", &config.display().to_string()]);
    configure(&host, true);
    server.create(&service("web", SERVICE)).expect("create");
    server.create(&slice("web", &ENDPOINTS)).expect("create");
    ENDPOINTS.into_iter().for_each(serve);
    (server, host)
}

fn configure(host: &Host, is_enabled: bool) {
    let reader = host.path("network.conf");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 1s\n\
         picolet: {{networkKubeconfig: {}, services: {{enabled: {is_enabled}, \
         clusterRanges: [10.244.0.0/16], serviceRanges: [10.96.0.0/12]}}}}\n",
        reader.display()
    );
    fs::write(host.path("config.yaml"), text).expect("written");
}

pub(crate) fn has_nft() -> bool {
    let has_nft = ["/usr/sbin/nft", "/sbin/nft"]
        .iter()
        .any(|path| fs::exists(path).unwrap_or(false));
    if !has_nft {
        skipped!("services need nft");
    }
    has_nft
}

fn able_with_rules() -> bool {
    has_nft() && able()
}

#[test]
fn services_are_written_followed_and_removed() {
    // PROX-02 PROX-04 PROX-19 PROX-21 PROX-28
    if !able_with_rules() {
        return;
    }
    let _network = OwnNetwork::enter();
    let (server, mut host) = cluster();
    host.start_agent();
    wait_ready(&server, PATIENCE);
    let mut answers = BTreeSet::new();
    host.until("both endpoints answer", |host| {
        answers.insert(dial());
        let both = ENDPOINTS.iter().all(|ip| answers.contains(*ip));
        (
            both,
            format!("{answers:?}\n{}\n{}", rules(), host.agent_log()),
        )
    });
    server.wait_for("two watches", PATIENCE, |_| {
        (asked(&server) == [1, 2]).then_some(())
    });

    // A change rings, and only what rang is read.
    let one = json!({"endpoints": endpoints(&ENDPOINTS[1..])});
    let patch = |body: &Value| {
        let patched = server.patch("endpointslices", "default", "web-1", "", body);
        patched.expect("patch");
    };
    patch(&one);
    let has = |rules: &str, ip: &str| rules.contains(ip);
    until_rules(&host, "an endpoint goes", |rules| !has(rules, ENDPOINTS[0]));
    assert_eq!(dial(), ENDPOINTS[1]);
    assert_eq!(asked(&server), [1, 2], "nothing is listed anew");

    // A watch that ends before its time goes on after a pause. One that breaks may have lost something: all is listed, and
    // watched from there.
    let broken = Rule::new(Fault::WatchBreak(0)).on("GET", "watch=1&labelSelector");
    for (number, fault) in [None, Some(broken.times(1))].into_iter().enumerate() {
        fault.map(|rule| server.faults().add(rule));
        let before = asked(&server);
        assert!(server.restore(server.resource_version()));
        server.wait_for("a watch or a list", PATIENCE, |_| {
            let now = asked(&server);
            let is_asked = match number {
                0 => now[1] > before[1] && now[0] == before[0],
                _ => now[0] > before[0],
            };
            is_asked.then_some(())
        });
        let one_or_both = &ENDPOINTS[..number % 2 + 1];
        patch(&json!({"endpoints": endpoints(one_or_both)}));
        until_rules(&host, "another change", |rules| {
            has(rules, ENDPOINTS[0]) && has(rules, ENDPOINTS[1]) == (number == 1)
        });
    }
    server
        .create(&service("next", "10.96.7.8"))
        .expect("create");
    server.create(&slice("next", &ENDPOINTS)).expect("create");
    // With an endpoint, its address is in one set or map; without, it is in the set of those, too.
    let count = |rules: &str| rules.matches("10.96.7.8 . 6 . 80").count();
    until_rules(&host, "a Service comes", |rules| count(rules) == 1);
    // Its slice leaves it.
    let label = json!({"metadata": {"labels": {"kubernetes.io/service-name": null}}});
    let patched = server.patch("endpointslices", "default", "next-1", "", &label);
    patched.expect("patch");
    until_rules(&host, "a slice leaves", |rules| count(rules) == 2);

    // The health of the node.
    let healthy = "200 OK {nodeEligible: true}";
    host.until("a healthy node", |_| (healthz() == healthy, healthz()));
    let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "PreferNoSchedule"});
    let taint = json!({"spec": {"taints": [taint]}});
    server.patch("nodes", "", NODE, "", &taint).expect("patch");
    host.until("a node that is about to go", |_| {
        let told = healthz();
        (
            told == "503 Service Unavailable {nodeEligible: false}",
            told,
        )
    });

    let check = host.command_with_flags("check", &[]);
    let said = text(&check.stdout);
    assert!(said.contains("3 Services are reachable"), "{said}");

    // Deleted, while the agent runs and while none does.
    server
        .delete("services", "default", "web", None)
        .expect("delete");
    until_rules(&host, "a Service goes", |rules| !has(rules, "10.96.7.7 "));
    host.end_agent(Signal::SIGKILL);
    server
        .delete("services", "default", "next", None)
        .expect("delete");
    assert!(has(&rules(), "10.96.7.8 "), "rules stay without an agent");
    host.start_agent();
    until_rules(&host, "the other goes", |rules| !has(rules, "10.96.7.8 "));
    assert_eq!(wrong(&server), [""; 0]);

    // It is not wanted any more.
    host.end_agent(Signal::SIGTERM);
    assert!(has(&rules(), "picolet-services"));
    configure(&host, false);
    host.start_agent();
    until_rules(&host, "the table goes", |rules| {
        !has(rules, "picolet-services")
    });
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn a_crowd_of_services_is_read_page_by_page() {
    // PROX-02
    if !able_with_rules() {
        return;
    }
    let _network = OwnNetwork::enter();
    let (server, mut host) = cluster();
    let ip = |number: usize| format!("10.96.{}.{}", 8 + number / 200, number % 200 + 1);
    for number in 1..=CROWD {
        let name = format!("s{number}");
        server.create(&service(&name, &ip(number))).expect("create");
        server.create(&slice(&name, &ENDPOINTS)).expect("create");
    }
    // Others serve these.
    for (number, label) in [(1001, "service-proxy-name"), (1002, "headless")] {
        let mut other = service(label, &ip(number));
        other["metadata"]["labels"] = json!({format!("service.kubernetes.io/{label}"): "other"});
        server.create(&other).expect("create");
    }
    host.start_agent();
    until_rules(&host, "all of them", |rules| {
        let is_there = |number: usize| rules.contains(&format!("{} . 6 . 80 : goto", ip(number)));
        (1..=CROWD).all(is_there)
    });
    let rules = rules();
    for number in [1001, 1002] {
        assert!(!rules.contains(&ip(number)), "{rules}");
    }
    let pages = |path: &str| {
        let audit = server.audit();
        let is_page = |entry: &&Entry| entry.user == PROXY && entry.uri.starts_with(path);
        audit
            .iter()
            .filter(is_page)
            .filter(|e| e.uri.contains("&continue="))
            .count()
    };
    assert!(
        pages("/api/v1/services?") > 0 && pages("/apis/discovery.k8s.io/v1/endpointslices?") > 0
    );
    assert_eq!(wrong(&server), [""; 0]);
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn rules_stay_while_nobody_answers() {
    // PROX-04
    if !able_with_rules() {
        return;
    }
    let _network = OwnNetwork::enter();
    let (server, mut host) = cluster();
    host.start_agent();
    host.until("an endpoint answers", |host| {
        (!dial().is_empty(), rules() + &host.agent_log())
    });
    // Refused, and not there at all: the next agent knows as little.
    server.set_down(true);
    host.end_agent(Signal::SIGTERM);
    host.start_agent();
    host.until("a list that fails", |host| {
        let log = host.agent_log();
        (log.contains("cannot list Services"), log)
    });
    assert_ne!(dial(), "", "{}", rules());
    // Somebody takes the table away meanwhile; the list after the outage brings it back.
    sh("nft delete table ip picolet-services");
    server.set_down(false);
    host.until("an endpoint answers again", |host| {
        (!dial().is_empty(), rules() + &host.agent_log())
    });
    assert_eq!(wrong(&server), [""; 0]);
    host.end_agent(Signal::SIGTERM);
    host.clear();
}
