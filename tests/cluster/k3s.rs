//! A node of a k3s cluster, beyond its join: its marks in the Node, the pods of the load balancer, dials for pods.

use core::time::Duration;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use nix::sys::signal::Signal;
use picolet_test_apiserver::{BOOTSTRAP_TOKEN, Entry, TestServer};
use serde_json::{Value, json};

use crate::{
    host::{Host, NODE, able as able_with_pods, sh, with},
    join::{NODE_SECRET, by_the_file_alone, join, machine, mode},
    member::{able, wait_ready as wait_node, wrong},
    own_network::{MACHINE, OwnNetwork, sh as shell},
    pods::{finish, pod, wait_ready},
    services::{has_nft, hear, serve, service, slice, until_rules},
};

const SOON: Duration = Duration::from_secs(180);

/// A machine that has joined and runs.
fn joined(server: &TestServer, flags: &[&str]) -> Host {
    let mut host = machine();
    host.add_flags(flags);
    let drop_in = host.path("etc/config.d/10-test.conf");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
        evictionHard: {memory.available: 1Mi}\nnodeStatusReportFrequency: 5m\n";
    fs::write(drop_in, text).expect("written");
    let token = server.k3s_token(BOOTSTRAP_TOKEN);
    let (code, said) = join(&host, &["--k3s", &server.url(), "--token", &token]);
    assert_eq!(code, Some(0), "{said}");
    by_the_file_alone(&mut host);
    host.start_agent();
    host
}

/// Waits until the Node is as wanted.
fn wait_for_node(server: &TestServer, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    server.wait_for(what, SOON, |state| {
        state
            .get("nodes", "", NODE)
            .filter(|node| holds(node))
            .cloned()
    })
}

#[test]
fn the_node_is_marked_as_its_servers_expect() {
    // K3SN-01 K3SN-03 K3SN-05 K3ST-16
    if !able() {
        return;
    }
    let _network = OwnNetwork::enter();
    for has_cloud_controller in [true, false] {
        let server = TestServer::builder()
            .k3s(NODE_SECRET, "pod")
            .k3s_config(json!({"DisableCCM": !has_cloud_controller}))
            .controllers(true)
            .start()
            .expect("server");
        let mut host = joined(
            &server,
            &[
                "--node-status-update-frequency=1s",
                "--node-external-ip=198.51.100.7",
                "--node-labels=shelf=2",
            ],
        );
        wait_node(&server, SOON);
        // Servers reach its pods, whoever gives it addresses.
        let node = wait_for_node(&server, "the label", |node| {
            node["metadata"]["labels"]["egress.k3s.io/cluster"] == "true"
        });
        assert_eq!(node["metadata"]["labels"]["shelf"], "2");
        let notes = &node["metadata"]["annotations"];
        let kinds = |node: &Value| -> Vec<String> {
            let all = node["status"]["addresses"].as_array().cloned();
            let kind = |a: Value| a["type"].as_str().unwrap_or("").to_owned();
            all.unwrap_or_default().into_iter().map(kind).collect()
        };
        if has_cloud_controller {
            assert_eq!(notes["k3s.io/hostname"], NODE);
            assert_eq!(notes["k3s.io/external-ip"], "198.51.100.7");
            let internal = notes["k3s.io/internal-ip"].as_str().expect("addresses");
            assert_eq!(node["status"]["addresses"][0]["address"], internal);
            assert_eq!(node["spec"]["providerID"], format!("k3s://{NODE}"));
            assert_eq!(kinds(&node), ["InternalIP", "ExternalIP", "Hostname"]);
        } else {
            assert!(notes.get("k3s.io/internal-ip").is_none(), "{notes}");
            assert!(node["spec"].get("providerID").is_none());
            assert_eq!(kinds(&node), ["InternalIP", "Hostname"]);
        }
        let taints = node["spec"]["taints"].to_string();
        assert!(!taints.contains("cloudprovider"), "{taints}");

        // Neither side changes what the other has written.
        let heartbeats = |count: usize| {
            server.clear_audit();
            server.wait_for("some heartbeats", SOON, |_| {
                let beats = |e: &&Entry| e.uri.contains("/leases/") && e.code == 200;
                (server.audit().iter().filter(beats).count() >= count).then_some(())
            });
        };
        heartbeats(1);
        heartbeats(2);
        let writes = |e: &&Entry| e.method == "PATCH" && e.uri.ends_with("/nodes/node/status");
        let written = server.audit().iter().filter(writes).count();
        assert_eq!(written, 0, "nothing has changed");
        let now = server.get("nodes", "", NODE).expect("the node");
        assert_eq!(kinds(&now), kinds(&node));

        // What was told is kept, but for the secret; the shared key was never asked for: the reader of Services has its own.
        let kept = host.path("root/k3s-cluster.json");
        let text = fs::read_to_string(&kept).expect("facts");
        assert!(
            text.contains("10.42.0.0") && text.contains("\"egressMode\":\"pod\""),
            "{text}"
        );
        assert!(!text.contains("secret-of-the-cluster"));
        assert_eq!(mode(&kept), 0o600);
        assert_eq!(
            mode(&host.path("root/pki/kube-proxy-client-current.pem")),
            0o600
        );
        assert_eq!(wrong(&server), [""; 0]);
        host.end_agent(Signal::SIGTERM);
        host.clear();
    }
}

#[test]
fn families_that_do_not_agree_make_the_node_not_ready() {
    // K3SN-16
    if !able() {
        return;
    }
    let _network = OwnNetwork::enter();
    let services = json!([{"IP": "fd43::", "Mask": "////////AAAAAAAAAAAAAA=="}]);
    let pods = json!([{"IP": "fd42::", "Mask": "////////AAAAAAAAAAAAAA=="}]);
    let server = TestServer::builder()
        .k3s(NODE_SECRET, "disabled")
        .k3s_config(json!({"ClusterIPRanges": pods, "ServiceIPRanges": services}))
        .start()
        .expect("server");
    let mut host = joined(
        &server,
        &["--node-status-update-frequency=1s", "--node-ip=0.0.0.0"],
    );
    let says = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().cloned();
        let ready = conditions.unwrap_or_default().into_iter();
        ready
            .filter(|c| c["type"] == "Ready" && c["status"] == "False")
            .any(|c| c["message"].to_string().contains("picolet.nodeIP"))
    };
    wait_for_node(&server, "the reason", says);
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

/// A pod like those of a DaemonSet `svclb-*`, which runs this script. `destinations` is the source of its variable `DEST_IPS`.
fn svclb(name: &str, script: &str, destinations: Value) -> Value {
    let destinations = with(json!({"name": "DEST_IPS"}), destinations);
    let container = with(
        sh("lb-tcp-80", script),
        json!({
            "env": [
                {"name": "SRC_PORT", "value": "80"}, {"name": "DEST_PROTO", "value": "TCP"},
                {"name": "DEST_PORT", "value": "80"}, destinations,
            ],
            "ports": [{"containerPort": 80, "hostPort": 80, "name": "lb-tcp-80", "protocol": "TCP"}],
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
        }),
    );
    pod(
        name,
        json!({
            "containers": [container],
            "securityContext": {"sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}]},
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
        }),
    )
}

#[test]
fn pods_of_the_load_balancer_run_unless_there_is_none() {
    // K3SN-07
    if !able_with_pods() {
        return;
    }
    let _network = OwnNetwork::enter();
    for has_service_lb in [true, false] {
        let server = TestServer::builder()
            .k3s(NODE_SECRET, "disabled")
            .k3s_config(json!({"DisableServiceLB": !has_service_lb}))
            .start()
            .expect("server");
        let host = joined(&server, &[]);
        host.import();
        wait_node(&server, SOON);
        host.until("the facts", |host| {
            (
                host.path("root/k3s-cluster.json").exists(),
                host.agent_log(),
            )
        });
        let script = "echo \"ips $DEST_IPS\"; echo \"forward $(cat /proc/sys/net/ipv4/ip_forward)\"; exec sleep 1000000";
        let own = json!({"valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}});
        server
            .create(&svclb("svclb-web", script, own))
            .expect("create");
        if has_service_lb {
            wait_ready(&server, "svclb-web");
            let node = server.get("nodes", "", NODE).expect("the node");
            let ip = node["status"]["addresses"][0]["address"]
                .as_str()
                .expect("an address");
            let script = "echo $DEST_IPS; cat /proc/sys/net/ipv4/ip_forward";
            let words = [
                "exec",
                "svclb-web",
                "-c",
                "lb-tcp-80",
                "--",
                "sh",
                "-c",
                script,
            ];
            let env = host.ok(&words);
            assert_eq!(env, format!("{ip}\n1\n"));
        } else {
            let pod = server.wait_for_phase("default", "svclb-web", "Failed", SOON);
            assert_eq!(pod["status"]["reason"], "SysctlForbidden");
        }
        finish(host, &server);
    }
}

/// Carries connections on as the pods of the load balancer do.
const FORWARD: &str = "test $(cat /proc/sys/net/ipv4/ip_forward) = 1 || exit 1
    tables=/usr/sbin/iptables-nft
    $tables -t nat -A PREROUTING -p tcp --dport $SRC_PORT -j DNAT --to $DEST_IPS:$DEST_PORT || exit 2
    $tables -t nat -A POSTROUTING -d $DEST_IPS/32 -p tcp -j MASQUERADE || exit 3
    exec sleep 1000000";
/// Address of the Service that they carry them to, and of its endpoint.
const BALANCED: &str = "10.43.7.7";
const ENDPOINT: &str = "10.42.9.1";

/// A network namespace at the other end of the network of the test.
struct Outside(String);

impl Outside {
    fn reach() -> Self {
        let name = format!("out{}", std::process::id());
        shell(&format!(
            "ip netns add {name}
             ip link set world netns {name}
             ip -n {name} addr add 192.0.2.1/24 dev world
             ip -n {name} link set world up"
        ));
        Self(name)
    }

    /// What a server says at that port of the machine.
    fn hear(&self, port: u16) -> String {
        let words = format!(
            "ip netns exec {} busybox nc -w 5 {MACHINE} {port} </dev/null",
            self.0
        );
        shell(&format!("{words} || true"))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        shell(&format!("ip netns del {}", self.0));
    }
}

#[test]
fn ports_of_pods_lead_to_a_service_beside_its_own_address() {
    // K3SN-08 K3SN-10
    if !able_with_pods() || !has_nft() {
        return;
    }
    let _network = OwnNetwork::enter();
    let server = TestServer::builder()
        .k3s(NODE_SECRET, "disabled")
        .start()
        .expect("server");
    let host = joined(&server, &[]);
    host.import();
    wait_node(&server, SOON);
    serve(ENDPOINT);
    server.create(&service("web", BALANCED)).expect("create");
    server.create(&slice("web", &[ENDPOINT])).expect("create");
    let mut balancer = svclb("svclb-web", FORWARD, json!({"value": BALANCED}));
    // Its image has iptables; this one has that of the machine.
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for (number, path) in ["/usr", "/lib", "/lib64"].iter().enumerate() {
        let Ok(source) = fs::canonicalize(path) else {
            continue;
        };
        let name = format!("v{number}");
        volumes.push(json!({"name": name, "hostPath": {"path": source}}));
        mounts.push(json!({"name": name, "mountPath": path, "readOnly": true}));
    }
    balancer["spec"]["volumes"] = json!(volumes);
    balancer["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
    server.create(&balancer).expect("create");
    let mut plain = pod(
        "plain",
        json!({"containers": [sh("c", "exec nc -ll -p 8080 -e echo plain")]}),
    );
    plain["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 8081}]);
    server.create(&plain).expect("create");
    wait_ready(&server, "svclb-web");
    wait_ready(&server, "plain");

    let outside = Outside::reach();
    let from_pod = |ip: &str, port: u16| {
        let words = format!("nc -w 5 {ip} {port} </dev/null || true");
        host.ok(&["exec", "plain", "-c", "c", "--", "sh", "-c", &words])
    };
    let until = |what: &str, hear: &dyn Fn() -> String, wanted: &str| {
        host.until(what, |host| {
            let said = hear();
            let rules = shell("nft list ruleset");
            (said.trim() == wanted, said + &rules + &host.agent_log())
        });
    };
    let all = |round: &str| {
        for (port, wanted) in [(80, ENDPOINT), (8081, "plain")] {
            let what = |from: &str| format!("{round}: port {port} from {from}");
            until(&what("outside"), &|| outside.hear(port), wanted);
            until(&what("the machine"), &|| hear(MACHINE, port), wanted);
            until(&what("a pod"), &|| from_pod(MACHINE, port), wanted);
        }
        let own = format!("{round}: the Service's own address");
        until(&own, &|| hear(BALANCED, 80), ENDPOINT);
        until(&own, &|| from_pod(BALANCED, 80), ENDPOINT);
    };
    all("through the pod of the load balancer");
    // Then the controller writes the addresses of its nodes into the Service, and connections pass the pod by.
    let status =
        json!({"status": {"loadBalancer": {"ingress": [{"ip": MACHINE, "ipMode": "VIP"}]}}});
    let written = server.patch("services", "default", "web", "status", &status);
    written.expect("patch");
    until_rules(&host, "the address of the machine", |rules| {
        rules.contains(&format!("{MACHINE} . 6 . 80 : goto"))
    });
    // The pod leads nowhere any more: it is the Service that answers.
    let flush = ["/usr/sbin/iptables-nft", "-t", "nat", "-F"];
    host.ok(&[&["exec", "svclb-web", "-c", "lb-tcp-80", "--"], &flush[..]].concat());
    all("at the address of the machine");
    assert_eq!(wrong(&server), [""; 0]);
    finish(host, &server);
}

#[test]
fn servers_dial_pods_through_the_tunnel() {
    // K3ST-16 K3ST-17
    if !able_with_pods() {
        return;
    }
    let _network = OwnNetwork::enter();
    for egress in ["pod", "agent"] {
        let server = TestServer::builder()
            .k3s(NODE_SECRET, egress)
            .start()
            .expect("server");
        let host = joined(&server, &[]);
        host.import();
        wait_node(&server, SOON);
        host.until("a session", |host| {
            (server.tunnel_sessions(NODE) == 1, host.agent_log())
        });
        let serve = "mkdir /w; echo hello >/w/index.html; exec httpd -f -p 8080 -h /w";
        let spec = json!({"containers": [sh("c", serve)]});
        server.create(&pod("web", spec)).expect("create");
        let web = wait_ready(&server, "web");
        let ip = web["status"]["podIP"]
            .as_str()
            .expect("an address")
            .to_owned();
        let fetch = |target: &str| -> String {
            let mut stream: TcpStream = server.dial_in_tunnel(NODE, target).expect("a session");
            let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        };
        let target = format!("tcp/{ip}:8080");
        host.until("the server of the pod", |host| {
            let answer = fetch(&target);
            let is_served = answer.contains("hello");
            (is_served == (egress == "pod"), host.agent_log() + &answer)
        });
        // Nobody else is reached: neither the next address, nor a port of the host that no pod has declared.
        let node = server.get("nodes", "", NODE).expect("the node");
        let own = node["status"]["addresses"][0]["address"]
            .as_str()
            .expect("an address");
        for other in ["tcp/192.0.2.77:80", &format!("tcp/{own}:{}", server.port())] {
            assert_eq!(fetch(other), "", "{other}");
        }
        assert_eq!(server.wrong_in_tunnels(), [""; 0]);
        finish(host, &server);
    }
}
