//! install.sh --mode kubeadm, and what kubeadm does to a machine then: join, upgrade, reset, join to another cluster.
//!
//! The machine is this one, with everything that is installed and kept in memory, or over it. Doubles stand for systemd and, in
//! every run, for kubeadm.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use core::time::Duration;
use std::{os::unix::net::UnixStream, rc::Rc};

use picolet::{
    api::MonoTime,
    grpc::{
        ConnectionClock, SleepFuture,
        client::{CallOptions, connect},
        proto::{Message, message},
        status::{GrpcCode, GrpcStatus},
    },
    sys::clock,
};
use picolet_test_apiserver::{BOOTSTRAP_TOKEN, TestServer};
use serde_json::{Value, json};
use smol::{Async, Timer};

use crate::{
    held_port::held_port,
    host::{Host, IMAGE, PATIENCE, PICOLET, text},
    member::{able, wait_ready, wrong},
    pods,
};

/// PID 1 of the machine: everything that is written to is its own.
const SYSTEM: &str = r#"
set -eu
base=$1
for dir in /run /var/lib /var/log /usr/local /boot; do mount -t tmpfs -o mode=755 none $dir; done
for dir in etc usr/bin; do
    name=$(echo $dir | tr / -)
    mkdir -p $base/$name.up $base/$name.work
    mount -t overlay -o "lowerdir=/$dir,upperdir=$base/$name.up,workdir=$base/$name.work" none /$dir
done
mkdir -p /run/systemd/system /usr/local/bin /usr/local/lib /usr/local/sbin /run/cluster
# Where picolet itself looks for it.
cp $base/doubles/systemctl /usr/local/sbin/
rm -rf /etc/kubernetes
touch $base/up
while :; do sleep 1000 & wait $!; done
"#;

/// As the packages of Kubernetes have it (KR 10-kubeadm.conf).
const DROP_IN: &str = r#"[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"#;

/// A machine with install.sh and a program beside it; it ends with the test.
struct Machine {
    host: Host,
    first: Child,
    /// PID 1, as this machine knows it.
    init: String,
    health: u16,
}

impl Machine {
    fn new() -> Self {
        let host = Host::new(&[]);
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tarball = host.unpack();
        fs::copy(PICOLET, tarball.join("picolet")).expect("copied");
        fs::create_dir(host.path("doubles")).expect("directory");
        for name in ["systemctl", "kubeadm"] {
            let double = host.path("doubles").join(name);
            fs::copy(
                project.join("tests/common").join(format!("{name}.sh")),
                &double,
            )
            .expect("copied");
            fs::set_permissions(double, fs::Permissions::from_mode(0o755)).expect("mode");
        }
        let first = Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "bash",
                "-c",
                SYSTEM,
                "sh",
            ])
            .arg(host.path(""))
            .stdin(Stdio::null())
            .spawn()
            .expect("unshare");
        // It ends with this, whatever fails from here on.
        let mut machine = Self {
            host,
            first,
            init: String::new(),
            health: held_port(),
        };
        let first = &mut machine.first;
        machine.host.until("the machine is up", |host| {
            let ended = first.try_wait().expect("unshare");
            assert!(ended.is_none(), "{ended:?}");
            (host.path("up").exists(), String::new())
        });
        let children = format!("/proc/{0}/task/{0}/children", machine.first.id());
        machine.init = fs::read_to_string(children)
            .expect("children")
            .trim()
            .to_owned();
        machine
    }

    /// Runs a script there; what it prints.
    fn run(&self, script: &str) -> String {
        let output = Command::new("nsenter")
            .args(["--mount", "--pid", "--target", &self.init, "bash", "-c"])
            .arg(format!(
                "set -eu; base={}; {script}",
                self.host.path("").display()
            ))
            .env(
                "PATH",
                format!(
                    "{}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    self.host.path("doubles").display()
                ),
            )
            .stdin(Stdio::null())
            .output()
            .expect("nsenter");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(
            output.status.success(),
            "{script}: {said}\n{}",
            self.agent_log()
        );
        said
    }

    fn agent_log(&self) -> String {
        let words = [
            "--mount",
            "--target",
            &self.init,
            "tail",
            "-n",
            "60",
            "/run/double/log",
        ];
        let output = Command::new("nsenter")
            .args(words)
            .output()
            .expect("nsenter");
        text(&output.stdout)
    }

    /// What the cluster gives kubeadm.
    fn cluster(&self, server: &TestServer) {
        let at = |name: &str| -> PathBuf { self.host.path("shared").join(name) };
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\n\
             authentication: {{anonymous: {{enabled: false}}, webhook: {{cacheTTL: 0s, enabled: true}}, \
             x509: {{clientCAFile: /etc/kubernetes/pki/ca.crt}}}}\nclusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\n\
             crashLoopBackOff: {{}}\nhealthzBindAddress: 127.0.0.1\nhealthzPort: {}\nlogging: {{flushFrequency: 0}}\n\
             memorySwap: {{}}\nrotateCertificates: true\nstaticPodPath: /etc/kubernetes/manifests\nsyncFrequency: 0s\n",
            self.health
        );
        fs::write(at("config.yaml"), config).expect("written");
        fs::write(at("bootstrap"), server.bootstrap_kubeconfig()).expect("written");
        fs::write(at("ca.crt"), server.ca_pem()).expect("written");
        fs::write(at("url"), server.url()).expect("written");
        self.run("cp $base/shared/* /run/cluster/");
    }

    /// Words of systemctl's calls since the last time.
    fn calls(&self) -> Vec<String> {
        let calls = self.run("cat /run/double/calls; : >/run/double/calls");
        calls.lines().map(str::to_owned).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Its first process takes all others with it.
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

/// Counts the processes of pods.
const SLEEPERS: &str = "pgrep -fc \"^sh -c trap 'exit 0' TERM\" || true";

/// Approves whoever asks, as a controller does.
fn server() -> TestServer {
    let server = TestServer::builder().start().expect("server");
    server
        .publish_as_kubeadm(&[BOOTSTRAP_TOKEN])
        .expect("published");
    server
}

/// Flags that keep what an agent makes apart from that of others, where operators put flags of a kubelet.
fn set_flags(machine: &Machine) {
    let flags: Vec<String> = ["--cgroup-root", "--bridge", "--pod-cidr", "--port"]
        .iter()
        .map(|&name| {
            let at = machine
                .host
                .flags
                .iter()
                .position(|f| f == name)
                .expect("flag");
            format!("{name}={}", machine.host.flags[at + 1])
        })
        .collect();
    machine.run(&format!(
        "mkdir -p /etc/default; echo 'KUBELET_EXTRA_ARGS=\"{} --hostname-override=node --fail-swap-on=false\"' >/etc/default/kubelet",
        flags.join(" ")
    ));
}

#[test]
fn a_machine_joins_upgrades_leaves_and_joins_another_cluster() {
    // KADM-05 KADM-07 KADM-30 KADM-31 QEMU-29
    if !able() {
        return;
    }
    let machine = Machine::new();
    machine.run("sh $base/tarball/install.sh --mode kubeadm");
    // Before the join the unit waits for kubeadm's file.
    machine.run("! systemctl is-active kubelet && systemctl is-enabled kubelet && [ ! -d /var/lib/kubelet/pki ]");
    set_flags(&machine);
    machine.host.write_image("first.tar", IMAGE, &json!({}));
    machine.calls();

    let first = server();
    machine.cluster(&first);
    machine.run("kubeadm join");
    let calls = machine.calls();
    let wanted = [
        "status kubelet",
        "is-enabled kubelet",
        "status kubelet",
        "stop kubelet",
        "is-active systemd-resolved",
        "status kubelet",
        "daemon-reload",
        "restart kubelet",
    ];
    assert_eq!(calls, wanted);
    let node = wait_ready(&first, PATIENCE);
    assert_eq!(node["spec"]["taints"][0]["key"], "example.com/new");
    machine.run("picolet image import $base/first.tar");
    let spec = json!({"tolerations": [{"operator": "Exists"}]});
    first
        .create(&pods::pod("of-the-first", spec.clone()))
        .expect("pod");
    pods::wait_ready(&first, "of-the-first");
    let serial = "openssl x509 -noout -serial -in /var/lib/kubelet/pki/kubelet-client-current.pem";
    let of_first = machine.run(serial);

    // It writes files and restarts nothing; then an operator does, and the pod runs on.
    let id = |server: &TestServer, name: &str| -> Value {
        let pod = server.get("pods", "default", name).expect("pod");
        pod["status"]["containerStatuses"][0]["containerID"].clone()
    };
    let before = id(&first, "of-the-first");
    machine.calls();
    machine.run("kubeadm upgrade-node");
    assert_eq!(machine.calls(), [""; 0]);
    // With upstream's drop-in and without it the words are the same.
    machine.run("mkdir -p /etc/systemd/system/kubelet.service.d");
    fs::write(machine.host.path("shared/10-kubeadm.conf"), DROP_IN).expect("written");
    let words = "tr '\\0' ' ' <\"/proc/$(cat /run/double/kubelet.pid)/cmdline\"";
    let plain = machine.run(words);
    machine.run("cp $base/shared/10-kubeadm.conf /etc/systemd/system/kubelet.service.d/; systemctl daemon-reload");
    first.clear_audit();
    machine.run("systemctl restart kubelet");
    first.wait_for("a word of the next agent", PATIENCE, |_| {
        let audit = first.audit();
        audit
            .iter()
            .any(|e| e.verb == "patch" && e.uri.contains("/nodes/"))
            .then_some(())
    });
    assert_eq!(
        machine.run(words),
        plain,
        "the words of the unit, and of the drop-in"
    );
    for word in [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml",
        " --register-with-taints=example.com/new=:NoSchedule ",
        " --hostname-override=node ",
    ] {
        assert!(plain.contains(word), "{word}: {plain}");
    }
    pods::wait_ready(&first, "of-the-first");
    assert_eq!(id(&first, "of-the-first"), before);
    assert_eq!(wrong(&first), [""; 0]);

    // kubeadm leaves the pods; the second step ends them.
    let sleepers = SLEEPERS;
    machine.calls();
    machine.run("kubeadm reset");
    assert_eq!(machine.calls(), ["stop kubelet"]);
    assert_eq!(machine.run(sleepers).trim(), "1", "the pod runs on");
    machine.run("picolet reset --stop --yes");
    assert_eq!(machine.run(sleepers).trim(), "0", "nothing runs on");
    let taken = format!("ss -Hltn 'sport = :{}' | wc -l", machine.health);
    assert_eq!(machine.run(&taken).trim(), "0", "its ports are free");
    machine.run("[ ! -e /var/lib/kubelet/pki ] && [ ! -e /var/lib/picolet ]");

    // Another cluster, without a restart of the machine.
    let second = server();
    machine.cluster(&second);
    machine.run("kubeadm join");
    wait_ready(&second, PATIENCE);
    assert_eq!(second.list("certificatesigningrequests", "").len(), 1);
    assert_ne!(machine.run(serial), of_first, "a certificate of its own");
    machine.run("picolet image import $base/first.tar");
    second
        .create(&pods::pod("of-the-second", spec))
        .expect("pod");
    pods::wait_ready(&second, "of-the-second");
    let listed = machine.run("picolet get pods -A");
    assert!(
        listed.contains("of-the-second") && !listed.contains("of-the-first"),
        "{listed}"
    );
    assert_eq!(wrong(&second), [""; 0]);
    machine.run("kubeadm reset; picolet reset --stop --yes; sh $base/tarball/install.sh --uninstall --purge; [ ! -e /usr/bin/kubelet ]");
}

#[test]
fn a_flashed_board_joins_at_its_first_boot() {
    // PKG-11
    if !able() {
        return;
    }
    let machine = Machine::new();
    let server = TestServer::builder().start().expect("server");
    let pin = server
        .publish_as_kubeadm(&[BOOTSTRAP_TOKEN])
        .expect("published");
    let flag = |name: &str| {
        let at = machine
            .host
            .flags
            .iter()
            .position(|f| f == name)
            .expect("flag");
        machine.host.flags[at + 1].clone()
    };
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupRoot: {}\nfailSwapOn: false\nhealthzPort: 0\nport: {}\npicolet:\n  hostnameOverride: node\n  \
         nodeLabels: {{shelf: a}}\n  builtinNetwork:\n    bridge: {}\n    subnet: {}\n",
        flag("--cgroup-root"),
        flag("--port"),
        flag("--bridge"),
        flag("--pod-cidr")
    );
    let port = server.port();
    let line = format!(
        "kubeadm join 127.0.0.1:{port} --token {BOOTSTRAP_TOKEN} --discovery-token-ca-cert-hash {pin} \n"
    );
    let at = |name: &str| machine.host.path("shared").join(name);
    fs::write(at("picolet.yaml"), config).expect("written");
    fs::write(at("picolet-join.txt"), line).expect("written");
    machine.run("mkdir /boot/firmware; cp $base/shared/picolet* /boot/firmware/; sh $base/tarball/install.sh --no-start");
    for unit in ["picolet-first-boot", "picolet-join"] {
        machine.run(&format!("systemctl is-enabled {unit}"));
    }
    let script = |word: &str| {
        format!("$(sed -n 's/^ExecStart=//p' /etc/systemd/system/picolet-{word}.service)")
    };
    machine.run(&format!(
        "{}; systemctl start picolet; [ -z \"$(ls /boot/firmware)\" ]",
        script("first-boot")
    ));
    // The link comes later.
    server.set_down(true);
    machine.run(&format!(
        "! {}; [ -s /etc/picolet/first-boot.join ] && [ -s /boot/firmware/picolet-join.error.txt ]",
        script("join")
    ));
    server.set_down(false);
    machine.run(&format!(
        "{}; [ ! -e /etc/picolet/first-boot.join ] && [ -z \"$(ls /boot/firmware)\" ]",
        script("join")
    ));
    let node = wait_ready(&server, PATIENCE);
    assert_eq!(node["metadata"]["labels"]["shelf"], "a");
    assert_eq!(wrong(&server), [""; 0]);
    machine.run("sh $base/tarball/install.sh --uninstall --purge");
}

message! {
    struct Nothing {}
}
message! {
    struct Word {
        1 word: String,
    }
}
message! {
    struct Version {
        1 version: String,
        2 runtime_name: String,
        3 runtime_version: String,
        4 runtime_api_version: String,
    }
}
message! {
    struct Condition {
        1 kind: String,
        2 status: bool,
    }
}
message! {
    struct Conditions {
        1 conditions: Vec<Condition>,
    }
}
message! {
    struct Standing {
        1 status: Option<Conditions>,
    }
}
message! {
    struct Metadata {
        1 name: String,
        2 uid: String,
        3 namespace: String,
    }
}
message! {
    struct Sandbox {
        1 id: String,
        2 metadata: Option<Metadata>,
        3 state: i32,
        4 created_at: i64,
    }
}
message! {
    struct Sandboxes {
        1 items: Vec<Sandbox>,
    }
}

/// How long kubeadm waits for an answer, and how often it asks.
const KUBEADM_TIMEOUT: Duration = Duration::from_secs(2);
const KUBEADM_TRIES: u32 = 5;

struct Clock;

impl ConnectionClock for Clock {
    fn now(&self) -> Duration {
        clock::mono_now() - MonoTime(0)
    }
    fn sleep(&self, time: Duration) -> SleepFuture {
        Box::pin(async move {
            Timer::after(time).await;
        })
    }
}

/// Asks as kubeadm does: a connection of its own.
fn ask<A: Message + Default>(
    machine: &Machine,
    path: &str,
    request: impl Message,
) -> Result<A, GrpcStatus> {
    ask_within(machine, path, request, PATIENCE)
}

fn ask_within<A: Message + Default>(
    machine: &Machine,
    path: &str,
    mut request: impl Message,
    timeout: Duration,
) -> Result<A, GrpcStatus> {
    let socket = format!("/proc/{}/root/run/picolet-cri.sock", machine.init);
    let mut stream = None;
    machine.host.until("somebody listens", |_| {
        let connected = UnixStream::connect(&socket).map(|connected| stream = Some(connected));
        (connected.is_ok(), format!("{connected:?}"))
    });
    let stream = Async::new(stream.expect("connected")).expect("stream");
    let (client, driver) = connect(stream, "localhost", Rc::new(Clock));
    let options = CallOptions {
        timeout: Some(timeout),
        ..CallOptions::default()
    };
    let call = client.call_unary(path, &mut request, &options);
    let over = async { Err(driver.await) };
    smol::block_on(smol::future::or(call, over))
}

#[test]
fn a_reset_finds_the_pods_by_a_socket() {
    // KADM-16
    const RUNTIME: &str = "/runtime.v1.RuntimeService";
    if !able() {
        return;
    }
    let machine = Machine::new();
    machine
        .run("sh $base/tarball/install.sh --mode kubeadm; systemctl is-active picolet-cri.socket");
    machine.run("sh $base/tarball/install.sh --mode kubeadm | grep -x 'nothing to change'");
    set_flags(&machine);
    machine.host.write_image("first.tar", IMAGE, &json!({}));
    let at = |name: &str| format!("{RUNTIME}/{name}");
    let list = || -> Vec<Sandbox> {
        let all: Sandboxes = ask(&machine, &at("ListPodSandbox"), Nothing {}).expect("list");
        all.items
    };
    // Before the join: there is a runtime, and it is ready.
    let version: Version = ask(&machine, &at("Version"), Nothing {}).expect("version");
    assert_eq!(
        (&*version.version, &*version.runtime_name),
        ("0.1.0", "picolet")
    );
    assert_eq!(version.runtime_api_version, "v1");
    let standing: Standing = ask(&machine, &at("Status"), Nothing {}).expect("status");
    let conditions = standing.status.expect("conditions").conditions;
    let ready = conditions.iter().find(|c| c.kind == "RuntimeReady");
    assert!(ready.is_some_and(|c| c.status), "{conditions:?}");
    // What kubeadm asks for before it believes that somebody is there.
    for path in [
        &*at("RuntimeConfig"),
        "/runtime.v1.ImageService/ImageFsInfo",
    ] {
        ask::<Nothing>(&machine, path, Nothing {}).expect(path);
    }
    for path in [
        &*at("RunPodSandbox"),
        "/runtime.v1.ImageService/PullImage",
        "/x",
    ] {
        let refused = ask::<Nothing>(&machine, path, Nothing {});
        assert!(
            refused
                .as_ref()
                .is_err_and(|e| e.code == GrpcCode::UNIMPLEMENTED),
            "{path}: {refused:?}"
        );
    }
    assert_eq!(list().len(), 0);

    let server = server();
    machine.cluster(&server);
    machine.run("kubeadm join");
    wait_ready(&server, PATIENCE);
    machine.run("picolet image import $base/first.tar");
    let spec =
        json!({"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 600});
    // Its shell forks once: a child that is not yet `sleep` would be counted with it.
    let deaf = json!({"containers": [{"name": "c", "command": ["sh", "-c", "trap 'exit 0' TERM; trap '' TERM; while :; do sleep 1000000 & wait; done"]}]});
    let deaf = crate::host::with(spec.clone(), deaf);
    for (name, spec) in [("one", spec), ("deaf", deaf)] {
        server.create(&pods::pod(name, spec)).expect("pod");
        pods::wait_ready(&server, name);
    }
    let found = list();
    let mut names: Vec<String> = found
        .iter()
        .filter_map(|s| Some(s.metadata.as_ref()?.name.clone()))
        .collect();
    names.sort();
    assert_eq!(names, ["deaf", "one"]);
    assert!(
        found.iter().all(|s| s.state == 0 && s.created_at > 0),
        "{found:?}"
    );
    assert_eq!(machine.run(SLEEPERS).trim(), "2");
    let end = |name: &str, id: &str| ask::<Nothing>(&machine, &at(name), Word { word: id.into() });
    // An agent that runs would start it again.
    for name in ["StopPodSandbox", "RemovePodSandbox"] {
        let refused = end(name, &found[0].id);
        assert!(
            refused
                .as_ref()
                .is_err_and(|e| e.code == GrpcCode::UNAVAILABLE),
            "{refused:?}"
        );
    }
    assert_eq!(machine.run(SLEEPERS).trim(), "2");

    // kubeadm stops it first.
    machine.run("systemctl stop kubelet");
    for sandbox in &found {
        let stop = || {
            let request = Word {
                word: sandbox.id.clone(),
            };
            ask_within::<Nothing>(&machine, &at("StopPodSandbox"), request, KUBEADM_TIMEOUT)
        };
        assert!(
            (0..KUBEADM_TRIES).any(|_| stop().is_ok()),
            "stopped as soon as kubeadm wants it"
        );
        end("StopPodSandbox", &sandbox.id).expect("stopped already");
    }
    assert_eq!(
        machine.run(SLEEPERS).trim(),
        "0",
        "nobody waits for ten minutes"
    );
    assert!(list().iter().all(|s| s.state == 1), "not ready any more");
    for sandbox in &found {
        end("RemovePodSandbox", &sandbox.id).expect("removed");
        end("RemovePodSandbox", &sandbox.id).expect("removed already");
    }
    assert_eq!(list().len(), 0);
    end("StopPodSandbox", "../../../etc").expect("nobody's");
    // What it leaves, the second step takes; and the service ends by itself.
    let said = machine.run("picolet reset --stop --yes");
    assert!(said.contains("Everything was removed"), "{said}");
    machine.host.until("it ends when nobody asks", |_| {
        let left = machine.run("pgrep -xc picolet || true");
        (left.trim() == "0", left)
    });
    machine.run("sh $base/tarball/install.sh --uninstall --purge; [ ! -e /run/picolet-cri.sock ] && [ ! -e /etc/systemd/system/picolet-cri.socket ]");
    assert_eq!(wrong(&server), [""; 0]);
}
