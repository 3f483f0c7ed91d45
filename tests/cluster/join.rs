//! `picolet join`: a machine becomes a node of a cluster of kubeadm or k3s, or stays what it was and says why.

use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use nix::sys::signal::Signal;
use picolet_test_apiserver::{BOOTSTRAP_TOKEN, Entry, Fault, Rule, TestServer};
use serde_json::json;

use crate::held_port::held_port;
use crate::host::{Host, NODE, PATIENCE, able as able_with_pods, text};
use crate::kubectl::kubectls;
use crate::member::{able, wait_ready, wrong};
use crate::own_network::OwnNetwork;
use crate::server::logs_by;

const SOON: Duration = Duration::from_secs(180);
/// What k3s keeps in `node-token`, without the digest.
pub(crate) const NODE_SECRET: &str = "server:0123456789abcdef0123456789abcdef";

/// A machine that is to join. Everything that is typed besides is for its tests: places of its own.
pub(crate) fn machine() -> Host {
    let mut host = Host::new(&[]);
    let path = |name: &str| host.path(name).display().to_string();
    let (config, kubeconfig) = (path("etc/config.yaml"), path("etc/kubelet.conf"));
    let (ca, drop_ins) = (path("etc/pki/ca.crt"), path("etc/config.d"));
    host.add_flags(&["--kubeconfig", &kubeconfig, "--client-ca-file", &ca]);
    host.add_flags(&["--config", &config, "--config-dir", &drop_ins]);
    fs::create_dir_all(&drop_ins).expect("directory");
    host
}

/// Exit code, and what was said.
pub(crate) fn join(host: &Host, words: &[&str]) -> (Option<i32>, String) {
    let password = host.path("etc/password").display().to_string();
    let bootstrap = host.path("etc/bootstrap.conf").display().to_string();
    let mut all = words.to_vec();
    all.push("--no-start");
    all.extend(match words.contains(&"--k3s") {
        true => ["--node-password-file", &*password],
        false => ["--bootstrap-kubeconfig", &*bootstrap],
    });
    let output = host.command_with_flags("join", &all);
    (
        output.status.code(),
        text(&output.stdout) + &text(&output.stderr),
    )
}

/// It has to fail, and to leave everything as it is; what it says.
fn refuses(host: &Host, words: &[&str]) -> String {
    let all = || ["etc", "root/pki"].map(|dir| tree(&host.path(dir)));
    let before = all();
    let (code, said) = join(host, words);
    assert_eq!(code, Some(1), "{words:?}: {said}");
    assert_eq!(said.lines().count(), 1, "one error: {said}");
    assert!(all() == before, "{words:?}: {said}");
    said
}

/// Every file below `dir`.
fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("type"));
        if kind.is_dir() {
            files.extend(tree(&path));
        } else if kind.is_file() || kind.is_symlink() {
            let content = fs::read(&path).unwrap_or_default();
            files.insert(path.display().to_string(), content);
        }
    }
    files
}

/// From now on only the file that was written says what the agent does. Returns what was typed.
pub(crate) fn by_the_file_alone(host: &mut Host) -> Vec<String> {
    let typed = core::mem::take(&mut host.flags);
    let path = |name: &str| host.path(name).display().to_string();
    let (config, drop_ins) = (path("etc/config.yaml"), path("etc/config.d"));
    host.add_flags(&["--config", &config, "--config-dir", &drop_ins]);
    typed
}

pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("file").permissions().mode() & 0o777
}

fn address(server: &TestServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

#[test]
fn a_cluster_of_kubeadm_is_joined() {
    // KADM-13 KADM-20 BOOT-01
    if !able() {
        return;
    }
    let server = TestServer::builder().version(34).start().expect("server");
    let pin = server
        .publish_as_kubeadm(&[BOOTSTRAP_TOKEN])
        .expect("published");
    let mut host = machine();
    // What the operator has set goes before what the cluster sets.
    let own = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 9\nclusterDomain: own.local\n";
    fs::write(host.path("etc/config.yaml"), own).expect("file");
    let at = address(&server);
    let words = [
        "--token",
        BOOTSTRAP_TOKEN,
        "--discovery-token-ca-cert-hash",
        &pin,
        &at,
    ];
    let (code, said) = join(&host, &words);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("node \"node\" of https://{at}")),
        "{said}"
    );
    assert_eq!(
        fs::read_to_string(host.path("etc/pki/ca.crt")).expect("CA"),
        server.ca_pem()
    );
    assert_eq!(mode(&host.path("etc/bootstrap.conf")), 0o600);
    let kept = fs::read_to_string(host.path("etc/config.d/00-before-join.conf"));
    assert_eq!(kept.expect("a drop-in"), own);
    let config = fs::read_to_string(host.path("etc/config.yaml")).expect("configuration");
    assert!(
        config.contains("10.96.0.10") && config.contains("kubeletVersion: v1.34.0"),
        "{config}"
    );
    for other in ["cgroupDriver", "/etc/kubernetes/manifests", ".joining"] {
        assert!(!config.contains(other), "{other}: {config}");
    }
    // Only one who knows the CA was told the token.
    let by = |path: &str| -> Vec<String> {
        let audit = server.audit();
        let of = audit.iter().filter(|e| e.uri.ends_with(path));
        of.map(|e| e.user.clone()).collect()
    };
    assert_eq!(
        by("/cluster-info"),
        ["system:anonymous", "system:anonymous"]
    );
    assert_eq!(by("/kubelet-config"), ["system:bootstrap:abcdef"]);

    let typed = by_the_file_alone(&mut host);
    host.start_agent();
    let node = wait_ready(&server, SOON);
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.34.0");
    assert_eq!(node["status"]["capacity"]["pods"], "9");
    assert_eq!(wrong(&server), [""; 0]);

    // Once more: nothing changes, unless it is wanted.
    let said = refuses(&host, &words);
    assert!(
        said.contains("is a node already") && said.contains("--force"),
        "{said}"
    );
    host.end_agent(Signal::SIGTERM);
    // As after a kill in the midst of a renewal.
    let updated = host.path("root/pki/kubelet-client-updated.pem");
    let current = fs::read_link(host.path("root/pki/kubelet-client-current.pem")).expect("link");
    symlink(current, &updated).expect("link");
    host.flags = typed;
    let other = TestServer::builder().start().expect("server");
    let pin = other
        .publish_as_kubeadm(&[BOOTSTRAP_TOKEN])
        .expect("published");
    let at = address(&other);
    let words = [
        "--force",
        "--token",
        BOOTSTRAP_TOKEN,
        "--discovery-token-ca-cert-hash",
        &pin,
        &at,
    ];
    let (code, said) = join(&host, &words);
    assert_eq!(code, Some(0), "{said}");
    assert!(fs::symlink_metadata(&updated).is_err(), "it would count");
    host.start_agent();
    // The certificate of the first cluster is of no use here, and nobody shows it.
    wait_ready(&other, SOON);
    assert_eq!(other.list("certificatesigningrequests", "").len(), 1);
    assert_eq!(wrong(&other), [""; 0]);
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn what_kubeadm_would_refuse_changes_nothing() {
    // KADM-20
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let host = machine();
    let at = address(&server);
    let nowhere = format!("127.0.0.1:{}", held_port());
    let unsigned = "aaaaaa.0123456789abcdef";
    let secret = "abcdef.fedcba9876543210";
    let shut_out = "bbbbbb.0123456789abcdef";
    let hash = "--discovery-token-ca-cert-hash";
    let other = format!("sha256:{}", "0".repeat(64));
    let said = refuses(&host, &["--token", BOOTSTRAP_TOKEN, hash, &other, &at]);
    assert!(said.contains("no ConfigMap cluster-info"), "{said}");
    let pin = server
        .publish_as_kubeadm(&[BOOTSTRAP_TOKEN, shut_out])
        .expect("published");
    for (token, pin, at, says) in [
        ("abcdef", &pin, &at, "the token is not a bootstrap token"),
        (
            BOOTSTRAP_TOKEN,
            &"sha256:12".to_owned(),
            &at,
            "must be sha256: and 64",
        ),
        (BOOTSTRAP_TOKEN, &pin, &nowhere, "cannot reach"),
        (
            unsigned,
            &pin,
            &at,
            "does not know the token \"aaaaaa\": it is wrong or has expired",
        ),
        (secret, &pin, &at, "is not signed with this token"),
        (BOOTSTRAP_TOKEN, &other, &at, "has the digest sha256:"),
        (shut_out, &pin, &at, "refuses this token"),
    ] {
        let said = refuses(&host, &["--token", token, hash, pin, at]);
        assert!(said.contains(says), "{token} {pin} {at}: {said}");
        assert!(
            !said.contains(token) || token.len() < 7,
            "no secret is shown: {said}"
        );
    }
    let said = refuses(&host, &["--token", BOOTSTRAP_TOKEN, &at]);
    assert!(
        said.contains("--discovery-token-ca-cert-hash is missing"),
        "{said}"
    );
    let said = refuses(&host, &[hash, &pin, &at]);
    assert!(said.contains("no token is given"), "{said}");
    let said = refuses(&host, &["--token", BOOTSTRAP_TOKEN, hash, &pin]);
    assert!(said.contains("no server is given"), "{said}");

    // Somebody else of that name.
    let good = ["--token", BOOTSTRAP_TOKEN, hash, &pin, &at];
    server
        .create(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .expect("node");
    let said = refuses(&host, &good);
    assert!(said.contains("--hostname-override"), "{said}");
    server.delete("nodes", "", NODE, None).expect("deleted");

    // What an agent could not start with.
    let config = json!({"data": {"kubelet":
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: -1\n"}});
    server
        .patch("configmaps", "kube-system", "kubelet-config", "", &config)
        .expect("patched");
    let said = refuses(&host, &good);
    assert!(said.contains("what the cluster says: maxPods"), "{said}");

    // Somebody else does it at the same time.
    let held = fs::File::open(host.path("etc")).expect("directory");
    held.try_lock().expect("free");
    let said = refuses(&host, &good);
    assert!(said.contains("another picolet join is under way"), "{said}");
    drop(held);

    // Another kubelet's identity.
    fs::write(host.path("etc/kubelet.conf"), "").expect("file");
    let said = refuses(&host, &good);
    assert!(said.contains("another kubelet"), "{said}");
    host.clear();
}

/// A configuration that says this, of an operator.
fn document(text: &str) -> String {
    format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}\n")
}

#[test]
fn a_node_comes_up_as_what_it_joined_as() {
    // KADM-20
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let pin = server
        .publish_as_kubeadm(&[BOOTSTRAP_TOKEN])
        .expect("published");
    let host = machine();
    let at = address(&server);
    let hash = "--discovery-token-ca-cert-hash";
    let good = ["--token", BOOTSTRAP_TOKEN, hash, &pin, &at];
    let (file, drop_ins) = (host.path("etc/config.yaml"), host.path("etc/config.d"));
    let write = |path: &Path, text: &str| fs::write(path, document(text)).expect("file");
    let pki = host.path("root/pki").display().to_string();

    // What was typed has not the last word at the next start. The name and the directory are those of the flags.
    let last = drop_ins.join("60-last.conf");
    for (path, text, key, seen) in [
        (
            &file,
            "picolet: {hostnameOverride: other}",
            "picolet.hostnameOverride",
            "other",
        ),
        (
            &last,
            "picolet: {hostnameOverride: other}",
            "picolet.hostnameOverride",
            "other",
        ),
        (
            &last,
            "picolet: {certDir: /elsewhere}",
            "picolet.certDir",
            "/elsewhere",
        ),
        (
            &last,
            "picolet: {rootDir: /elsewhere}",
            "picolet.rootDir",
            "/elsewhere/pki",
        ),
        (&file, "picolet: {kubeconfig: ''}", "picolet.kubeconfig", ""),
        (
            &last,
            "picolet: {kubeconfig: /k}",
            "picolet.kubeconfig",
            "/k",
        ),
        (
            &last,
            "picolet: {bootstrapKubeconfig: /b}",
            "picolet.bootstrapKubeconfig",
            "/b",
        ),
    ] {
        write(&file, "maxPods: 9");
        write(path, text);
        // A directory that nobody typed is that of the drop-in, and the join uses it.
        let is_dir = key == "picolet.certDir";
        let typed = ["--cert-dir", &*pki].into_iter().filter(|_| is_dir);
        let words: Vec<&str> = good.into_iter().chain(typed).collect();
        let said = refuses(&host, &words);
        let wins = format!(
            "start with {seen:?}. {} sets {key}, which takes precedence",
            path.display()
        );
        assert!(said.contains(&wins), "{text}: {said}");
        let _ = fs::remove_file(&last);
    }

    // The cluster says so of all its nodes.
    write(&file, "maxPods: 9");
    let kubelet = |text: &str| {
        let config = json!({"data": {"kubelet": document(text)}});
        server
            .patch("configmaps", "kube-system", "kubelet-config", "", &config)
            .expect("patched");
    };
    kubelet("picolet: {certDir: /elsewhere}");
    let said = refuses(&host, &good);
    assert!(said.contains("The cluster sets picolet.certDir"), "{said}");
    kubelet("clusterDomain: cluster.local");

    // The file would become a drop-in that wins over this one.
    write(&drop_ins.join("00-a.conf"), "maxPods: 8");
    let said = refuses(&host, &good);
    assert!(
        said.contains("config.d/00-a.conf sorts before 00-before-join.conf"),
        "{said}"
    );
    fs::rename(drop_ins.join("00-a.conf"), drop_ins.join("10-a.conf")).expect("renamed");
    // Somebody else's has its place.
    let own = drop_ins.join("00-before-join.conf");
    write(&own, "maxPods: 7");
    let said = refuses(&host, &good);
    assert!(
        said.contains("00-before-join.conf: another file is there"),
        "{said}"
    );

    // The power failed in the middle of a join: no copy stays, also if the next one fails.
    let text = fs::read(&file).expect("file");
    fs::write(&own, &text).expect("file");
    fs::write(host.path("etc/config.yaml.joining"), "").expect("file");
    let nowhere = format!("127.0.0.1:{}", held_port());
    let (code, said) = join(&host, &["--token", BOOTSTRAP_TOKEN, hash, &pin, &nowhere]);
    assert_eq!(code, Some(1), "{said}");
    assert!(!own.exists());
    assert_eq!(fs::read(&file).expect("file"), text);

    // A board that joined with an earlier version keeps that drop-in, in its rank.
    let earlier = drop_ins.join("50-before-join.conf");
    write(&earlier, "clusterDomain: earlier.local");
    let (code, said) = join(&host, &good);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fs::read(&own).expect("own"), text);
    let kept = fs::read_to_string(&earlier).expect("earlier");
    assert!(kept.contains("earlier.local"), "{kept}");

    // The name was in the file that a join replaces.
    let typed = [&good[..], &["--force"]].concat();
    let mut host = host;
    let at_name = host
        .flags
        .iter()
        .position(|word| word == "--hostname-override");
    host.flags.drain(at_name.map_or(0..0, |at| at..at + 2));
    let said = refuses(&host, &typed);
    assert!(
        said.contains("with the name \"node\"") && said.contains("use --hostname-override"),
        "{said}"
    );
    host.clear();
}

#[test]
fn a_copy_of_a_join_that_was_cut_off_goes_with_the_next_start() {
    // KADM-20
    if !able() {
        return;
    }
    let mut host = machine();
    let own = host.path("etc/config.d/00-before-join.conf");
    let text = document("maxPods: 9");
    for path in [&host.path("etc/config.yaml"), &own] {
        fs::write(path, &text).expect("file");
    }
    fs::write(host.path("etc/config.yaml.joining"), "").expect("file");
    // It stands alone.
    for flag in ["--kubeconfig", "--client-ca-file"] {
        let at = host.flags.iter().position(|word| word == flag);
        host.flags.drain(at.map_or(0..0, |at| at..at + 2));
    }
    // Somebody joins at the moment, and needs the copy.
    let held = fs::File::open(host.path("etc")).expect("directory");
    held.try_lock().expect("free");
    host.start_agent();
    assert!(own.exists());
    host.end_agent(Signal::SIGTERM);
    drop(held);
    host.start_agent();
    assert!(!own.exists());
    assert_eq!(
        fs::read_to_string(host.path("etc/config.yaml")).expect("file"),
        text
    );
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn a_server_of_k3s_is_joined() {
    // K3SJ-01 K3SJ-02 K3SJ-03 K3SJ-04 K3SJ-05 K3SJ-06 K3SJ-07 K3SJ-13 K3SN-01 K3ST-19
    if !able() {
        return;
    }
    let _network = OwnNetwork::enter();
    let server = TestServer::builder()
        .k3s(NODE_SECRET, "agent")
        .start()
        .expect("server");
    let mut host = machine();
    let url = server.url();
    // Busy at first.
    server.faults().add(
        Rule::new(Fault::Status {
            code: 429,
            retry_after_s: Some(1),
        })
        .on("GET", "/v1-k3s/config")
        .times(1),
    );
    let token = server.k3s_token(BOOTSTRAP_TOKEN);
    // Another kubelet's; and what a join left that the power cut off before its configuration counted.
    fs::write(host.path("etc/kubelet.conf"), "").expect("written");
    let said = refuses(&host, &["--k3s", &url, "--token", &token]);
    assert!(said.contains("another kubelet"), "{said}");
    fs::remove_file(host.path("etc/kubelet.conf")).expect("removed");
    for name in ["config.yaml.joining", "kubelet.conf.joining"] {
        fs::write(host.path("etc").join(name), "").expect("written");
    }
    let (code, said) = join(&host, &["--k3s", &url, "--token", &token]);
    assert_eq!(code, Some(0), "{said}");
    let left = |host: &Host| {
        let names: Vec<String> = ["etc", "root/pki"]
            .iter()
            .flat_map(|dir| tree(&host.path(dir)).into_keys())
            .collect();
        names.into_iter().any(|name| name.ends_with(".joining"))
    };
    assert!(!left(&host));
    // The servers want a tunnel: the agent opens it, and nobody has to do anything.
    assert!(!said.contains("egress-selector-mode"), "{said}");
    let password = fs::read_to_string(host.path("etc/password")).expect("password");
    assert_eq!(
        (password.trim().len(), mode(&host.path("etc/password"))),
        (32, 0o600)
    );
    let config = fs::read_to_string(host.path("etc/config.yaml")).expect("configuration");
    for part in ["10.43.0.10", "k3s.local", "https://192.0.2.1:6443"] {
        assert!(config.contains(part), "{part}: {config}");
    }
    assert_eq!(mode(&host.path("etc/kubelet.conf")), 0o600);
    let client_ca = fs::read_to_string(host.path("etc/pki/ca.crt")).expect("CA");
    assert_ne!(client_ca, server.ca_pem(), "that of clients is another one");
    assert_eq!(wrong(&server), [""; 0]);
    let typed = by_the_file_alone(&mut host);
    host.start_agent();
    wait_ready(&server, SOON);
    let said = refuses(&host, &["--k3s", &url, "--token", &token]);
    assert!(said.contains("is a node already"), "{said}");

    // One of the two servers is there. Nobody has to bring a proxy for Services.
    host.until("a tunnel, and Services", |host| {
        let check = text(&host.command_with_flags("check", &[]).stdout);
        let has_both =
            check.contains("Services are reachable") && check.contains("streams to 1 of 2 servers");
        (has_both, check)
    });
    assert_eq!(server.tunnel_sessions("node"), 1);
    let secret = "secret-of-the-cluster";
    assert!(!said.contains(secret) && !host.agent_log().contains(secret));
    for dir in ["etc", "root"] {
        let kept = tree(&host.path(dir));
        let has_secret = |content: &Vec<u8>| text(content).contains(secret);
        assert!(!kept.values().any(has_secret), "{dir}");
    }

    // The same board once more, with the other kinds of tokens: its password is known.
    host.end_agent(Signal::SIGTERM);
    let by_file = core::mem::replace(&mut host.flags, typed);
    let whole = server.k3s_token(NODE_SECRET);
    let (_, short) = NODE_SECRET.split_once(':').expect("a user");
    for token in [&*whole, short] {
        let file = host.path("token");
        fs::write(&file, format!("{token}\n")).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
        let file = file.display().to_string();
        let mut words = vec!["--force", "--k3s", &url, "--token-file", &file];
        if token == short {
            words.push("--discovery-token-unsafe-skip-ca-verification");
        }
        let (code, said) = join(&host, &words);
        assert_eq!(code, Some(0), "{said}");
        let kept = fs::read_to_string(host.path("etc/password")).expect("password");
        assert_eq!(kept, password);
    }
    assert_eq!(wrong(&server), [""; 0]);

    // The power fails right after the configuration has begun to count: the agent does the rest.
    let kubeconfig = host.path("etc/kubelet.conf");
    let waits = host.path("etc/kubelet.conf.joining");
    fs::rename(&kubeconfig, &waits).expect("renamed");
    let link = host.path("root/pki/kubelet-client-current.pem");
    let waits = host.path("root/pki/kubelet-client-current.pem.joining");
    fs::rename(&link, &waits).expect("renamed");
    host.flags = by_file;
    server.clear_audit();
    host.start_agent();
    server.wait_for("a heartbeat of the node", PATIENCE, |_| {
        let by = |e: &Entry| e.uri.contains("/leases/") && e.code < 300;
        server.audit().iter().any(by).then_some(())
    });
    assert!(kubeconfig.exists() && link.exists() && !left(&host));
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn kubectl_reaches_a_node_of_k3s() {
    // K3ST-01 K3ST-03 K3ST-04 K3ST-06 K3ST-07 K3ST-10
    if !able_with_pods() {
        return;
    }
    let _network = OwnNetwork::enter();
    let server = TestServer::builder()
        .k3s(NODE_SECRET, "agent")
        .start()
        .expect("server");
    let mut host = machine();
    let drop_in = host.path("etc/config.d/10-test.conf");
    fs::write(drop_in, document("evictionHard: {memory.available: 1Mi}")).expect("written");
    let token = server.k3s_token(NODE_SECRET);
    let (code, said) = join(&host, &["--k3s", &server.url(), "--token", &token]);
    assert_eq!(code, Some(0), "{said}");
    by_the_file_alone(&mut host);
    host.start_agent();
    host.import();
    wait_ready(&server, SOON);
    host.until("a session", |host| {
        (server.tunnel_sessions(NODE) == 1, host.agent_log())
    });
    // The server has no other way to the node.
    let config = host.path("admin.kubeconfig");
    fs::write(&config, server.admin_kubeconfig().expect("kubeconfig")).expect("write");
    for kubectl in kubectls(&config, "logs") {
        logs_by(&kubectl, &host, &server);
    }
    let refused = [""; 0];
    assert_eq!(server.wrong_in_tunnels(), refused);
    host.end_agent(Signal::SIGTERM);
    host.until("no session", |host| {
        (server.tunnel_sessions(NODE) == 0, host.agent_log())
    });
    host.clear();
}

#[test]
fn a_server_of_k3s_renews_the_certificate() {
    // K3SJ-08 BOOT-07
    if !able() {
        return;
    }
    let _network = OwnNetwork::enter();
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    // With a CA that is much older than a certificate gets: each is dated back to its beginning.
    let life = days(100);
    let server = TestServer::builder()
        .k3s(NODE_SECRET, "disabled")
        .certificate_life(life)
        .ca_age(days(5 * 365))
        .start()
        .expect("server");
    let mut host = machine();
    host.add_flags(&["--node-status-update-frequency=1s"]);
    let token = server.k3s_token(BOOTSTRAP_TOKEN);
    let (code, said) = join(&host, &["--k3s", &server.url(), "--token", &token]);
    assert_eq!(code, Some(0), "{said}");
    by_the_file_alone(&mut host);
    let pair =
        |host: &Host| fs::read(host.path("root/pki/kubelet-client-current.pem")).expect("pair");
    let first = pair(&host);
    host.start_agent();
    wait_ready(&server, SOON);
    assert!(pair(&host) == first, "that of the join is used");
    let renewals = |of: &str| {
        let audit = server.audit();
        let path = format!("/v1-k3s/{of}-kubelet.crt");
        let by = |e: &&Entry| e.uri == path && e.user.starts_with("system:node:");
        audit.iter().filter(by).count()
    };
    assert_eq!(renewals("client"), 0, "it is new");
    server.clear_audit();
    server.advance(life / 100 * 95);
    host.until("another certificate", |host| {
        (pair(host) != first, host.agent_log())
    });
    let made = server.audit();
    let made: Vec<&str> = made
        .iter()
        .filter(|e| e.uri.starts_with("/v1-k3s/"))
        .map(|e| e.user.as_str())
        .collect();
    assert!(
        !made.is_empty() && made.iter().all(|by| *by == "system:node:node"),
        "{made:?}"
    );
    server.advance(life / 100 * 10);
    server.clear_audit();
    server.wait_for("a heartbeat with the new one", PATIENCE, |_| {
        let audit = server.audit();
        let by = |e: &Entry| e.uri.contains("/leases/") && e.code == 200;
        audit.iter().any(by).then_some(())
    });
    assert_eq!(renewals("client"), 0, "it is not renewed again");
    // Once, for the node may have more addresses than that from which it reaches the server.
    assert!(renewals("serving") <= 1, "nor is that");
    assert_eq!(server.list("certificatesigningrequests", "").len(), 0);
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn what_k3s_would_refuse_changes_nothing() {
    // K3SJ-01 K3SJ-02 K3SJ-03 K3SJ-04
    if !able() {
        return;
    }
    let k3s = || TestServer::builder().k3s(NODE_SECRET, "disabled").start();
    let (server, other) = (k3s().expect("server"), k3s().expect("server"));
    let kubeadm = TestServer::builder().start().expect("server");
    let host = machine();
    let url = server.url();
    let plain = url.replace("https:", "http:");
    let good = server.k3s_token(BOOTSTRAP_TOKEN);
    let nowhere = format!("https://127.0.0.1:{}", held_port());
    for (url, token, says) in [
        (&url, "K1012::node:x", "has not 64 hexadecimal digits"),
        (
            &url,
            &*format!("{}x", server.k3s_token("")),
            "has neither user:password nor id.secret",
        ),
        (&plain, &*good, "must begin with https://"),
        (&nowhere, &*good, "cannot reach"),
        (&kubeadm.url(), &*good, "is it a k3s server?"),
        (&other.url(), &*good, "the CA has changed"),
        (
            &url,
            &*server.k3s_token("server:wrong"),
            "refuses this token",
        ),
        (&url, "a-word", "the token names no CA"),
        (&url, BOOTSTRAP_TOKEN, "node-token on the server"),
        (&good, &*url, "--k3s is not the address of a server"),
        (
            &url,
            &*server.k3s_token("aaaaaa.0123456789abcdef"),
            "refuses this token",
        ),
    ] {
        let said = refuses(&host, &["--k3s", url, "--token", token]);
        assert!(said.contains(says), "{url} {token}: {said}");
    }
    let told = |server: &TestServer| {
        server
            .audit()
            .iter()
            .filter(|e| e.uri != "/cacerts")
            .count()
    };
    assert_eq!(told(&other), 0, "a stranger was told the token");

    // Another board has had the name; its operator deletes its Secret then.
    let first = machine();
    let (code, said) = join(&first, &["--k3s", &url, "--token", &good]);
    assert_eq!(code, Some(0), "{said}");
    fs::create_dir_all(host.path("etc")).expect("directory");
    fs::write(host.path("etc/password"), "another\n").expect("file");
    let said = refuses(&host, &["--k3s", &url, "--token", &good]);
    assert!(
        said.contains("delete secret node.node-password.k3s"),
        "{said}"
    );
    server.forget_node_password(NODE);
    // Without a digest nobody is asked, unless whoever answers is to be trusted; that is said.
    let (_, short) = good.split_once("::").expect("a whole token");
    server.clear_audit();
    let said = refuses(&host, &["--k3s", &url, "--token", short]);
    assert!(said.contains("the token names no CA"), "{said}");
    assert!(server.audit().is_empty());
    let any = "--discovery-token-unsafe-skip-ca-verification";
    let (code, said) = join(&host, &["--k3s", &url, "--token", short, any]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("warning: the token does not name the CA"),
        "{said}"
    );
    first.clear();
    host.clear();
}
