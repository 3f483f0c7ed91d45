//! Addresses for pods, as the control plane gives them.

use std::{fs, net::IpAddr};

use nix::sys::signal::Signal;
use picolet_test_apiserver::TestServer;
use serde_json::{Value, json};

use crate::held_port::held_port;
use crate::host::{self, IDLE, NODE, sh};
use crate::member::{able, member, output_of, wait_ready, wrong};

fn ip(pod: &Value) -> String {
    pod["status"]["podIP"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// A server of one page.
const SERVER: &str = "mkdir /w; echo first >/w/index.html; exec httpd -f -p 80 -h /w";

/// Gets the page from within the network of a process: the busybox of containers may be without working name service.
fn get(pid: i32, ip: &str) -> String {
    let pid = pid.to_string();
    let script = format!(
        "exec 3<>/dev/tcp/{ip}/80; printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' >&3; tail -n 1 <&3"
    );
    let words = ["5", "nsenter", "-n", "-t", &pid, "bash", "-c", &script];
    output_of("timeout", &words).trim().to_owned()
}

#[test]
fn pods_that_start_later_use_the_subnet_given_last() {
    // NODE-16
    if !able() || !host::able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let number = 100 + std::process::id() % 100;
    let cidr = |n: u32| format!("10.{number}.{n}.0/24");
    let given = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "spec": {"podCIDR": cidr(231), "podCIDRs": [cidr(231)]}});
    server.create(&given).expect("node");
    let mut host = member(
        &server,
        &["--pod-cidr=", "--node-status-update-frequency=1s"],
    );
    let kept = host.path("root/pod-cidrs");
    fs::write(&kept, cidr(230)).expect("pod CIDRs");
    // What was last known counts while nobody answers.
    server.set_down(true);
    host.start_agent();
    host.import();
    let server_pod = sh(
        "c",
        "echo first >/tmp/index.html; exec httpd -f -p 80 -h /tmp",
    );
    host.pod("first", json!({"containers": [server_pod]}));
    let first = ip(&host.wait_ready("first"));
    assert!(first.starts_with(&format!("10.{number}.230.")), "{first}");
    server.set_down(false);
    wait_ready(&server, host::PATIENCE);
    host.until("the new subnet", |_| {
        let text = fs::read_to_string(&kept).unwrap_or_default();
        (text.trim() == cidr(231), text)
    });
    host.pod("second", json!({"containers": [sh("c", IDLE)]}));
    let second = ip(&host.wait_ready("second"));
    assert!(second.starts_with(&format!("10.{number}.231.")), "{second}");
    // Old and new reach each other, the host reaches both, and so it stays with the next agent.
    assert_eq!(get(host.pid("second", "c"), &first), "first");
    let address = format!("{first}:80").parse().expect("address");
    assert_eq!(host::http(address).expect("answer").trim(), "first");
    let rules = output_of("iptables", &["-w", "-t", "nat", "-S", "POSTROUTING"]);
    let chain = format!("PICOLET-MASQ-{}", host.bridge());
    let jumps: Vec<&str> = rules.lines().filter(|l| l.contains(&chain)).collect();
    assert_eq!(jumps.len(), 2, "{rules}");
    host.end_agent(Signal::SIGTERM);
    host.start_agent();
    host.pod("third", json!({"containers": [sh("c", IDLE)]}));
    let third = ip(&host.wait_ready("third"));
    assert!(third.starts_with(&format!("10.{number}.231.")), "{third}");
    assert_eq!(get(host.pid("third", "c"), &first), "first");
    // With the last pod of the old subnet goes its gateway, as soon as the next pod comes.
    host.remove("first.yaml");
    host.wait_gone("first");
    host.pod("fourth", json!({"containers": [sh("c", IDLE)]}));
    host.wait_ready("fourth");
    let bridge = host.bridge();
    let addresses = output_of("ip", &["-4", "-o", "address", "show", "dev", &bridge]);
    assert!(
        !addresses.contains(&format!("10.{number}.230.")),
        "{addresses}"
    );
    assert!(
        addresses.contains(&format!("10.{number}.231.1/24")),
        "{addresses}"
    );
    // What was moved still leads out: the answer comes from the other side of the bridge.
    host.pod("last", json!({"containers": [sh("c", SERVER)]}));
    let last = ip(&host.wait_ready("last"));
    // Ready is not yet listening: it has no probe.
    host.until("it answers", |host| {
        let said = get(host.pid("second", "c"), &last);
        (said == "first", said)
    });
    assert_eq!(wrong(&server), [""; 0]);
    host.finish();
}

#[test]
fn pods_of_both_families() {
    // STAT-30 ENV-11 PROBE-31 STREAM-13
    if !able() || !host::able() {
        return;
    }
    if fs::read("/proc/net/if_inet6").is_err() {
        skipped!("pods_of_both_families: the kernel has no IPv6");
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let number = 100 + std::process::id() % 100;
    let (v4, v6) = (
        format!("10.{number}.232.0/24"),
        format!("fd00:{number:x}:232::/64"),
    );
    let given = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "spec": {"podCIDR": v4, "podCIDRs": [v4, v6]}});
    server.create(&given).expect("node");
    let mut host = member(&server, &["--pod-cidr="]);
    host.start_agent();
    host.import();
    wait_ready(&server, host::PATIENCE);
    let port = held_port();
    let mut main = sh(
        "c",
        "mkdir /w; echo both >/w/index.html; echo own >/w/own; httpd -p '[::1]:81' -h /w; exec httpd -f -p '[::]:80' -h /w",
    );
    main["ports"] = json!([{"containerPort": 80, "hostPort": port}]);
    main["readinessProbe"] =
        json!({"httpGet": {"port": 80, "path": "/index.html"}, "periodSeconds": 1});
    main["env"] =
        json!([{"name": "IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}}]);
    host.pod("both", json!({"containers": [main]}));
    let pod = host.wait_ready("both");
    let ips: Vec<IpAddr> = pod["status"]["podIPs"]
        .as_array()
        .expect("addresses")
        .iter()
        .map(|entry| {
            entry["ip"]
                .as_str()
                .expect("text")
                .parse()
                .expect("an address")
        })
        .collect();
    let [first, second] = *ips else {
        panic!("{ips:?}")
    };
    assert!(first.is_ipv4() && second.is_ipv6(), "{ips:?}");
    assert_eq!(ip(&pod), first.to_string());
    let env = host.exec("both", "c", "echo $IPS; cat /etc/hosts");
    assert!(env.starts_with(&format!("{first},{second}\n")), "{env}");
    for address in [first, second] {
        assert!(env.contains(&format!("{address}\t")), "{env}");
        assert_eq!(
            host::http((address, 80).into()).expect("answer").trim(),
            "both"
        );
    }
    // From pod to pod, and a probe that names an address.
    let mut watch = sh("c", IDLE);
    watch["readinessProbe"] = json!({
        "httpGet": {"host": second.to_string(), "port": 80, "path": "/index.html"}, "periodSeconds": 1});
    host.pod("watch", json!({"containers": [watch]}));
    host.wait_ready("watch");
    assert_eq!(get(host.pid("watch", "c"), &second.to_string()), "both");
    // The port of the node leads to both addresses: by its own address of each family.
    let bridge = host.bridge();
    let own = |family: &str| -> IpAddr {
        let shown = output_of(
            "ip",
            &[
                family, "-o", "address", "show", "dev", &bridge, "scope", "global",
            ],
        );
        let net = shown.split_whitespace().nth(3).expect("an address");
        net.split('/')
            .next()
            .unwrap_or_default()
            .parse()
            .expect("an address")
    };
    for address in [own("-4"), own("-6")] {
        let said = host::http((address, port).into());
        assert_eq!(said.expect("answer").trim(), "both", "{address}");
    }
    // Forwarded to what listens on `::1` alone.
    let local = held_port();
    let mut forward = host
        .command(&[
            "port-forward",
            &format!("both-{NODE}"),
            &format!("{local}:81"),
        ])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("port-forward");
    host.until("the port is forwarded", |_| {
        let said = host::http(([127, 0, 0, 1], local).into());
        (
            said.as_ref().is_ok_and(|s| s.trim() == "both"),
            format!("{said:?}"),
        )
    });
    forward.kill().expect("signal");
    forward.wait().expect("an end");
    assert_eq!(wrong(&server), [""; 0]);
    host.finish();
}
