//! The network with real packets: nodes are network namespaces on one wire, pods are namespaces behind a bridge of their
//! node. One node is this code, the others are made as flanneld makes them.

use alloc::{rc::Rc, sync::Arc};
use core::{cell::RefCell, future::ready, net::IpAddr, pin::Pin, time::Duration};
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        mpsc::{self, Receiver},
    },
    thread,
};

use serde_json::{Value, json};
use smol::future::{FutureExt as _, yield_now};

use super::{
    keeper::LookEnd,
    lister::{NodeBell, list_nodes},
    remains::NetworkRemains,
    settings::PodNetworkSettings,
    shared::{AnnouncedNode, KeeperState, PodNetworkShared},
};
use crate::{
    agent::{
        clock::{Clock, SystemClock, TimerFuture},
        complaints::Complaints,
        link_policy::FreeLink,
        recorder::EventRecorder,
        tests::world::TestClock,
    },
    api::{MonoTime, Node, WallTime, strict::typed_from_value},
    kube::{
        ClusterReader, DoorbellNews, KubeError, Kubeconfig, SharedApiserver, WatchEvent,
        WatchEventKind,
        testing::{Server, chunks, ok},
    },
    logic::pod_network::{
        HardwareAddress, PodNetworkBackend,
        announcement::{NodeAnnouncement, NodePlace, read_announcement},
        choice::OwnChoice,
        peers::{ListedNode, PeerList},
        schedule::{ListEnd, ListSchedule},
    },
    net::ProxyVariables,
    sys::{clock::mono_now, lane::Lane, namespaces},
    testing::TestDir,
};

/// Request for the first page of all nodes.
const LIST: &str = "/api/v1/nodes?limit=500";
/// Time after which a packet counts as lost.
const LOST: Duration = Duration::from_secs(2);
/// Time for a packet that must come: a busy machine may be slow.
const ARRIVES: Duration = Duration::from_secs(60);

/// Runs a shell script in the network namespace of this thread; returns its output.
fn sh(script: &str) -> String {
    let mut shell = Command::new("sh");
    let ran = shell.args(["-ec", script]).stdin(Stdio::null()).output();
    let ran = ran.expect("sh");
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{script}: {error}");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Lines without the blanks at their ends.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(|l| l.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// A wire with nodes a, b and c, and a pod behind each: `10.42.N.2` behind node N, which is at `192.168.77.N`.
struct Wire {
    prefix: String,
}

impl Wire {
    /// Makes it. Node a has no device yet; b and c are as flanneld makes them, but do not know a.
    fn lay(name: &str) -> Self {
        let prefix = format!("pn{}{name}", std::process::id() % 10_000);
        let wire = Self { prefix };
        let p = &wire.prefix;
        sh(&format!(
            "ip netns add {p}w
             ip -n {p}w link add name wire type bridge
             ip -n {p}w link set wire up"
        ));
        for (number, node) in [(1, "a"), (2, "b"), (3, "c")] {
            sh(&format!(
                "n={p}{node}; pod={p}p{node}
                 ip netns add $n; ip netns add $pod
                 ip -n $n link set lo up; ip -n $pod link set lo up
                 ip -n {p}w link add name port-{node} type veth peer name eth0 netns $n
                 ip -n {p}w link set port-{node} master wire up
                 ip -n $n addr add 192.168.77.{number}/24 dev eth0
                 ip -n $n link set eth0 up
                 ip -n $n route add default via 192.168.77.254
                 ip -n $n link add name cni0 type bridge
                 ip -n $n link set cni0 mtu 1450 up
                 ip -n $n addr add 10.42.{number}.1/24 dev cni0
                 ip -n $n link add name pod mtu 1450 type veth peer name eth0 mtu 1450 netns $pod
                 ip -n $n link set pod master cni0 up
                 ip -n $pod addr add 10.42.{number}.2/24 dev eth0
                 ip -n $pod link set eth0 up
                 ip -n $pod route add default via 10.42.{number}.1
                 ip netns exec $n iptables -P FORWARD DROP"
            ));
        }
        for (number, node) in [(2, "b"), (3, "c")] {
            sh(&format!(
                "n={p}{node}
                 ip -n $n link add name flannel.1 address 02:00:00:00:00:0{number} mtu 1450 \
                    type vxlan id 1 dev eth0 local 192.168.77.{number} nolearning dstport 8472
                 ip -n $n addr add 10.42.{number}.0/32 dev flannel.1
                 ip -n $n link set flannel.1 up
                 ip netns exec $n sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
                 ip netns exec $n iptables -P FORWARD ACCEPT"
            ));
        }
        wire
    }

    fn path(&self, place: &str) -> PathBuf {
        Path::new("/var/run/netns").join(format!("{}{place}", self.prefix))
    }

    /// Runs `work` on a thread in the namespace of a place.
    fn within<T: Send + 'static>(
        &self,
        place: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let path = self.path(place);
        thread::spawn(move || {
            namespaces::join_namespace(&path).expect("the namespace");
            work()
        })
    }

    fn sh(&self, place: &str, script: &str) -> String {
        let script = script.to_owned();
        let ran = self.within(place, move || sh(&script));
        ran.join().expect("the script")
    }

    /// Tells a node of another, as flanneld does.
    fn tell(&self, node: &str, number: u8, mac: &str) {
        self.sh(
            node,
            &format!(
                "ip neigh replace 10.42.{number}.0 lladdr {mac} dev flannel.1 nud permanent
                 bridge fdb append {mac} dev flannel.1 dst 192.168.77.{number}
                 ip route replace 10.42.{number}.0/24 via 10.42.{number}.0 dev flannel.1 onlink"
            ),
        );
    }

    /// Connects over TCP from a place to the pod of a node. Returns the address that the pod sees.
    fn connect(&self, from: &str, node: &str, number: u8) -> IpAddr {
        let (ready, is_ready) = mpsc::channel();
        let server = self.within(&format!("p{node}"), move || {
            // Not one of before: a program that another test just starts may still have it.
            let listener = TcpListener::bind(("0.0.0.0", 0)).expect("a port");
            let own = listener.local_addr().expect("its address");
            ready.send(own.port()).expect("told");
            let (mut stream, peer) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(ARRIVES)).expect("set");
            let mut text = [0; 4];
            stream.read_exact(&mut text).expect("bytes");
            stream.write_all(&text).expect("written");
            peer.ip()
        });
        let port = is_ready.recv().expect("a server");
        let client = self.within(from, move || {
            let to = (IpAddr::from([10, 42, number, 2]), port).into();
            let mut stream = TcpStream::connect_timeout(&to, ARRIVES).expect("connected");
            stream.set_read_timeout(Some(ARRIVES)).expect("set");
            stream.write_all(b"ping").expect("written");
            let mut text = [0; 4];
            stream.read_exact(&mut text).expect("an answer");
            assert_eq!(&text, b"ping");
        });
        client.join().expect("the client");
        server.join().expect("the server")
    }

    /// Sends a datagram of `bytes`, which must not be cut, from the pod of one node to that of another. Returns true if
    /// it came.
    fn sends(&self, from: &str, node: &str, number: u8, bytes: usize, wait: Duration) -> bool {
        let (ready, is_ready) = mpsc::channel();
        let server = self.within(&format!("p{node}"), move || {
            let socket = UdpSocket::bind(("0.0.0.0", 0)).expect("a port");
            socket.set_read_timeout(Some(wait)).expect("set");
            let own = socket.local_addr().expect("its address");
            ready.send(own.port()).expect("told");
            let mut piece = vec![0; 2000];
            socket.recv(&mut piece).is_ok_and(|got| got == bytes)
        });
        let port = is_ready.recv().expect("a server");
        let client = self.within(&format!("p{from}"), move || {
            let socket = UdpSocket::bind(("0.0.0.0", 0)).expect("a port");
            // A packet is as long as the MTU at most: the kernel sends it whole, and says that it must stay so.
            let _ = socket.send_to(&vec![7; bytes], (IpAddr::from([10, 42, number, 2]), port));
        });
        client.join().expect("the client");
        server.join().expect("the server")
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for place in ["w", "a", "b", "c", "pa", "pb", "pc"] {
            let name = format!("{}{place}", self.prefix);
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

/// Changes of interfaces, routes and neighbours of this namespace, as `ip monitor` prints them.
struct KernelLog {
    child: Child,
    lines: Receiver<String>,
}

impl KernelLog {
    /// Begins. Returns once it is known that nothing more is missed.
    fn follow() -> Self {
        let mut command = Command::new("ip");
        command.args(["monitor", "link", "route", "neigh"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("ip");
        let pipe = BufReader::new(child.stdout.take().expect("a pipe"));
        let (told, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in pipe.lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        let log = Self { child, lines };
        // A route that comes and goes until it is heard of.
        while log.lines.recv_timeout(Duration::from_millis(50)).is_err() {
            sh("ip route add 10.98.0.0/24 dev eth0; ip route del 10.98.0.0/24");
        }
        log
    }

    /// Makes a route, and reads on until it is heard of.
    fn read_until(&mut self, route: &str) -> Vec<String> {
        sh(&format!("ip route add {route} dev eth0"));
        let mut heard = Vec::new();
        while !heard
            .last()
            .is_some_and(|line: &String| line.contains(route))
        {
            heard.push(self.lines.recv().expect("lines"));
        }
        heard
    }
}

impl Drop for KernelLog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The own Node of the tests: patches change it.
struct FakeNode(RefCell<Value>);

impl AnnouncedNode for FakeNode {
    fn node_object(&self) -> Option<Node> {
        typed_from_value(&self.0.borrow()).ok()
    }

    fn host_ips(&self) -> Vec<IpAddr> {
        vec![IpAddr::from([192, 168, 77, 1])]
    }

    fn patch_node<'a>(
        &'a self,
        patch: &'a Value,
    ) -> Pin<Box<dyn Future<Output = Result<(), KubeError>> + 'a>> {
        let news = patch["metadata"]["annotations"].as_object();
        for (name, text) in news.expect("annotations") {
            self.0.borrow_mut()["metadata"]["annotations"][name] = text.clone();
        }
        Box::pin(async { Ok(()) })
    }
}

fn own_node() -> Rc<FakeNode> {
    Rc::new(FakeNode(RefCell::new(json!({
        "metadata": {"name": "a", "uid": "a", "annotations": {"other": "stays"}},
        "spec": {"podCIDR": "10.42.1.0/24", "podCIDRs": ["10.42.1.0/24"]},
    }))))
}

/// An agent on node a that begins. To be called on a thread in its namespace.
fn agent(node: &Rc<FakeNode>, backend: &str, dir: &Path) -> PodNetworkShared {
    let clock: Rc<dyn Clock> = Rc::new(SystemClock::new().expect("a timer"));
    let range = "10.42.0.0/16".parse().expect("a range");
    PodNetworkShared {
        settings: PodNetworkSettings {
            choice: OwnChoice {
                backend: Some(backend.into()),
                ranges: vec![range],
                hides_v6: None,
            },
            interface: None,
            port: 0,
        },
        kept_ranges: Vec::new(),
        name: "a".into(),
        own_node: Rc::<FakeNode>::clone(node),
        remains: NetworkRemains {
            subnet_file: dir.join("flannel/subnet.env"),
            ..NetworkRemains::of_agent(dir, "cni0")
        },
        cluster: Rc::default(),
        complaints: Rc::new(Complaints::new(Rc::clone(&clock))),
        recorder: Rc::new(EventRecorder::new(Rc::clone(&clock), "a".into())),
        link_policy: Rc::new(FreeLink),
        disk: Lane::start("disk").expect("a thread"),
        spanning: Arc::default(),
        status: Rc::default(),
        state: KeeperState::default(),
        peers: RefCell::default(),
        clock,
    }
}

/// Another node: name, public address, last byte of the hardware address, ranges of its pods if they are to be known.
type Row<'a> = (&'a str, &'a str, u8, Option<&'a str>);

/// Lets an agent read a whole list of these nodes.
fn list(agent: &PodNetworkShared, backend: PodNetworkBackend, rows: &[Row<'_>]) {
    let mut list = PeerList::default();
    for (name, public_ip, last, _) in rows {
        let data = match backend {
            PodNetworkBackend::Vxlan => {
                format!("{{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:00:{last:02x}\"}}")
            }
            PodNetworkBackend::HostGateway => "null".into(),
        };
        let texts = [
            ("kube-subnet-manager", "true".to_owned()),
            ("backend-type", backend.name().to_owned()),
            ("public-ip", (*public_ip).to_owned()),
            ("backend-data", data),
        ];
        let texts = texts.map(|(key, text)| (format!("flannel.alpha.coreos.com/{key}"), text));
        list.note_node(&ListedNode {
            name,
            uid: name,
            created_s: 1,
            announcement: read_announcement(&texts.into_iter().collect(), backend),
        });
    }
    let mut peers = agent.peers.borrow_mut();
    let outcome = peers.take_list(list);
    for (name, _, _, range) in rows {
        if let Some(range) = range {
            let ranges = [range.parse().expect("a range")];
            peers.learn_ranges(name, name, &ranges, [false; 2]);
        }
    }
    drop(peers);
    agent.note_list(outcome.faults);
}

fn look(agent: &PodNetworkShared) {
    match smol::block_on(agent.look()) {
        LookEnd::Done => {}
        LookEnd::NotReady(why) => panic!("not ready: {why}"),
    }
}

const B: Row<'_> = ("b", "192.168.77.2", 2, Some("10.42.2.0/24"));
const C: Row<'_> = ("c", "192.168.77.3", 3, Some("10.42.3.0/24"));

/// Routes, forwarding entries and neighbours of the device.
fn tables() -> [Vec<String>; 3] {
    [
        "ip route show dev flannel.1",
        "bridge fdb show dev flannel.1",
        "ip neigh show dev flannel.1 nud permanent",
    ]
    .map(|command| lines(&sh(command)))
}

fn expected(nodes: &[(u8, &str)]) -> [Vec<String>; 3] {
    let of = |format: &dyn Fn(u8, &str) -> String| {
        let mut all: Vec<_> = nodes.iter().map(|(n, ip)| format(*n, ip)).collect();
        all.sort();
        all
    };
    [
        of(&|n, _| format!("10.42.{n}.0/24 via 10.42.{n}.0 onlink")),
        of(&|n, ip| format!("02:00:00:00:00:{n:02x} dst {ip} self permanent")),
        of(&|n, _| format!("10.42.{n}.0 lladdr 02:00:00:00:00:{n:02x} PERMANENT")),
    ]
}

fn can_run() -> bool {
    if !nix::unistd::geteuid().is_root() {
        skipped!("the network between nodes: namespaces need root");
        return false;
    }
    true
}

/// Returns false on a machine without vxlan.
fn has_vxlan(wire: &Wire) -> bool {
    let found = wire.within("w", || {
        let made = Command::new("ip")
            .args([
                "link", "add", "try", "type", "vxlan", "id", "9", "dstport", "9",
            ])
            .output();
        made.is_ok_and(|made| made.status.success())
    });
    found.join().expect("thread")
}

#[test]
fn packets_between_nodes() {
    // FLAN-03 FLAN-04 FLAN-06 FLAN-07 FLAN-08 FLAN-09 FLAN-12 FLAN-13 FLAN-14 FLAN-15 FLAN-19 PROX-28
    if !can_run() {
        return;
    }
    let wire = Arc::new(Wire::lay("v"));
    if !has_vxlan(&wire) {
        skipped!("the network between nodes: the kernel has no vxlan");
        return;
    }
    let on = Arc::clone(&wire);
    let ran = wire.within("a", move || {
        let wire = on;
        let dir = TestDir::new("pod-network");
        let node = own_node();
        let first = agent(&node, "vxlan", &dir.0);
        // The bridge has pods of an agent that knew no other nodes.
        sh("iptables -t nat -N PICOLET-MASQ-cni0
            iptables -t nat -A PICOLET-MASQ-cni0 -d 10.42.1.0/24 -j RETURN
            iptables -t nat -A PICOLET-MASQ-cni0 -j MASQUERADE
            iptables -t nat -A POSTROUTING -s 10.42.1.0/24 -j PICOLET-MASQ-cni0");
        look(&first);
        assert_eq!(
            sh("iptables -t nat -S PICOLET-MASQ-cni0"),
            "-N PICOLET-MASQ-cni0\n\
             -A PICOLET-MASQ-cni0 -d 10.42.0.0/16 -j RETURN\n\
             -A PICOLET-MASQ-cni0 -d 10.42.1.0/24 -j RETURN\n\
             -A PICOLET-MASQ-cni0 -j MASQUERADE\n"
        );
        // The Node says where the others find this one.
        let object = node.0.borrow().clone();
        let text = |key: &str| {
            let key = format!("flannel.alpha.coreos.com/{key}");
            object["metadata"]["annotations"][&key]
                .as_str()
                .expect("a text")
                .to_owned()
        };
        assert_eq!(object["metadata"]["annotations"]["other"], "stays");
        assert_eq!(text("public-ip"), "192.168.77.1");
        assert_eq!(text("backend-type"), "vxlan");
        let data: Value = serde_json::from_str(&text("backend-data")).expect("JSON");
        let mac = data["VtepMAC"].as_str().expect("an address").to_owned();
        let device = sh("ip -d link show flannel.1");
        for part in [
            "mtu 1450",
            "id 1 local 192.168.77.1 dev eth0",
            "dstport 8472",
            "nolearning",
            &mac,
        ] {
            assert!(device.contains(part), "{part}: {device}");
        }
        let address = sh("ip -4 -o addr show flannel.1");
        assert!(
            address.contains("inet 10.42.1.0/32 scope global"),
            "{address}"
        );
        let settings = first.spanning.current_settings();
        assert_eq!((settings.not_ready, settings.mtu), (None, 1450));
        assert_eq!(settings.reachable, ["10.42.0.0/16"]);
        let env = std::fs::read_to_string(&first.remains.subnet_file).expect("the file");
        assert!(
            env.contains("FLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_MTU=1450\n"),
            "{env}"
        );

        list(&first, PodNetworkBackend::Vxlan, &[B, C]);
        look(&first);
        let both = expected(&[(2, "192.168.77.2"), (3, "192.168.77.3")]);
        assert_eq!(tables(), both, "as flanneld's");
        let condition = first.status.node_condition(WallTime(0)).expect("a network");
        assert_eq!(
            (&*condition.kind, &*condition.status, &*condition.message),
            ("PodNetworkReady", "True", "vxlan, 2 other nodes")
        );
        wire.tell("b", 1, &mac);
        wire.tell("c", 1, &mac);
        let pod = IpAddr::from([10, 42, 1, 2]);
        assert_eq!(wire.connect("pa", "b", 2), pod, "the pod's own address");
        assert_eq!(wire.connect("pb", "a", 1), IpAddr::from([10, 42, 2, 2]));
        assert_eq!(
            wire.connect("a", "b", 2),
            IpAddr::from([10, 42, 1, 0]),
            "the host's"
        );
        // 1422 bytes of a datagram, and 28 of its heads.
        assert!(wire.sends("a", "b", 2, 1422, ARRIVES));
        assert!(wire.sends("b", "a", 1, 1422, ARRIVES));

        // Nothing is to be done again.
        let before = first.status.figures();
        look(&first);
        let after = first.status.figures();
        assert_eq!(
            (before.changed, before.deleted),
            (after.changed, after.deleted)
        );

        // Another agent takes over: no entry goes, also while it does not know all.
        let index = || {
            sh("ip -o link show flannel.1")
                .split(':')
                .next()
                .map(str::to_owned)
        };
        let before = index();
        let mut monitor = KernelLog::follow();
        let second = agent(&node, "vxlan", &dir.0);
        look(&second);
        list(
            &second,
            PodNetworkBackend::Vxlan,
            &[B, ("c", "192.168.77.3", 3, None)],
        );
        look(&second);
        assert_eq!(tables(), both);
        list(&second, PodNetworkBackend::Vxlan, &[B, C]);
        look(&second);
        assert_eq!(tables(), both);
        let heard = monitor.read_until("10.99.0.0/24");
        let of_nodes = |line: &&String| line.contains("10.42.") || line.contains("flannel.1");
        let deleted = heard
            .iter()
            .filter(of_nodes)
            .filter(|line| line.contains("Deleted"));
        assert_eq!(deleted.count(), 0, "{heard:?}");
        assert_eq!(index(), before);

        // Node c moves to another address.
        wire.sh(
            "c",
            "ip addr add 192.168.77.30/24 dev eth0
             ip link set flannel.1 type vxlan id 1 dev eth0 local 192.168.77.30",
        );
        let moved = ("c", "192.168.77.30", 3, Some("10.42.3.0/24"));
        list(&second, PodNetworkBackend::Vxlan, &[B, moved]);
        look(&second);
        assert_eq!(
            tables(),
            expected(&[(2, "192.168.77.2"), (3, "192.168.77.30")])
        );
        assert_eq!(wire.connect("pa", "c", 3), pod);

        // A flush of all three tables, and of the rules, is repaired.
        sh("ip neigh flush dev flannel.1 nud permanent
            ip route flush dev flannel.1
            bridge fdb del 02:00:00:00:00:02 dev flannel.1 dst 192.168.77.2
            iptables -F FORWARD; iptables -t nat -F");
        *second.state.rules_seen.borrow_mut() = None;
        look(&second);
        assert_eq!(
            tables(),
            expected(&[(2, "192.168.77.2"), (3, "192.168.77.30")])
        );
        assert_eq!(wire.connect("pa", "b", 2), pod);
        assert_eq!(wire.connect("pb", "a", 1), IpAddr::from([10, 42, 2, 2]));

        // Node c is gone; the others stay.
        list(&second, PodNetworkBackend::Vxlan, &[B]);
        look(&second);
        assert_eq!(tables()[0].len(), 2, "one list alone removes nothing");
        second.peers.borrow_mut().forget_peer("c");
        look(&second);
        assert_eq!(tables(), expected(&[(2, "192.168.77.2")]));
        assert_eq!(wire.connect("pa", "b", 2), pod);
        assert!(!wire.sends("a", "c", 3, 100, LOST));

        // The device is deleted by somebody: it comes again with its address.
        sh("ip link del flannel.1");
        look(&second);
        assert_eq!(tables(), expected(&[(2, "192.168.77.2")]));
        assert!(sh("ip link show flannel.1").contains(&mac));
        assert_eq!(wire.connect("pb", "a", 1), IpAddr::from([10, 42, 2, 2]));

        // The way between nodes has smaller packets now.
        sh("ip link set eth0 mtu 1400");
        look(&second);
        assert_eq!(second.spanning.current_settings().mtu, 1350);
        assert!(sh("ip link show flannel.1").contains("mtu 1350"));
        let events = second.recorder.newest_events(None, 9);
        let reasons: Vec<_> = events.iter().map(|event| &*event.reason).collect();
        assert_eq!(reasons, ["PodNetworkMTUShrank"]);

        // A reset removes what is ours alone.
        sh("iptables -N FOREIGN; iptables -A FORWARD -j FOREIGN");
        let left = smol::block_on(second.remains.remove(true, None));
        assert_eq!(left, Vec::<String>::new());
        assert!(!sh("ip link").contains("flannel.1"));
        assert!(sh("ip route").contains("10.99.0.0/24"));
        let rules = sh("iptables -S; iptables -t nat -S");
        assert!(
            !rules.contains("PICOLET-POD") && rules.contains("FOREIGN"),
            "{rules}"
        );
        // A device that a real flannel makes afterwards is not ours, and neither is that of another agent.
        sh("ip link add name flannel.1 type vxlan id 1 dev eth0 local 192.168.77.1 dstport 8472");
        assert_eq!(second.remains.list(true), Vec::<String>::new());
        assert_eq!(
            smol::block_on(second.remains.remove(true, None)),
            Vec::<String>::new()
        );
        second.state.subnet_file.borrow_mut().clear();
        *second.state.rules_seen.borrow_mut() = None;
        look(&second);
        let other = NetworkRemains::of_agent(&dir.0.join("other"), "cni0");
        assert_eq!(
            smol::block_on(other.remove(false, None)),
            Vec::<String>::new()
        );
        let file = second.remains.subnet_file.display().to_string();
        let rules = "routes to pods of other nodes, and iptables rules for them";
        let own = ["device flannel.1", &file, rules];
        assert_eq!(second.remains.list(false), own[1..], "it is used");
        // One that is made anew is ours. One that another has made meanwhile is not, and neither is one of another boot.
        sh("ip link del flannel.1");
        look(&second);
        assert_eq!(second.remains.list(false), own);
        sh("ip link del flannel.1
            ip link add name flannel.1 type vxlan id 1 dev eth0 local 192.168.77.1 dstport 8472");
        assert_eq!(second.remains.list(false), own[1..]);
        look(&second);
        assert_eq!(second.remains.list(false), own[1..]);
        sh("ip link del flannel.1");
        look(&second);
        assert_eq!(second.remains.list(false), own);
        let mark = std::fs::read_to_string(&second.remains.mark).expect("a mark");
        // An older version wrote an empty one.
        for other in [format!("x{mark}"), String::new()] {
            std::fs::write(&second.remains.mark, other).expect("written");
            assert_eq!(second.remains.list(false), Vec::<String>::new());
            assert_eq!(second.remains.list(true), [rules]);
        }
        std::fs::write(&second.remains.mark, mark).expect("written");
        assert_eq!(second.remains.list(false), own);
        // An agent that dies before it notes what it made has said before that it will.
        sh("ip link del flannel.1");
        let announced = second.remains.announce_device(0, [false; 3]);
        announced.expect("a mark");
        let announced = std::fs::read_to_string(&second.remains.mark).expect("a mark");
        look(&second);
        std::fs::write(&second.remains.mark, announced).expect("written");
        assert_eq!(second.remains.list(false), own);
        look(&second);
        assert_eq!(second.remains.list(false), own);
        // A real flannel starts: it keeps the device, and writes its file.
        sh(&format!("cp {file} {file}.new; mv {file}.new {file}"));
        assert_eq!(second.remains.list(true), [rules]);
        assert_eq!(
            smol::block_on(second.remains.remove(true, None)),
            Vec::<String>::new()
        );
        assert!(sh("ip link").contains("flannel.1"));
        assert!(second.remains.subnet_file.exists() && !second.remains.has_mark());
        assert!(!sh("iptables -S").contains("PICOLET-POD"));
        // An agent whose cluster wants none removes what it made.
        sh(&format!("ip link del flannel.1; rm {file}"));
        second.state.subnet_file.borrow_mut().clear();
        *second.state.rules_seen.borrow_mut() = None;
        look(&second);
        sh(
            "iptables -t nat -A PICOLET-MASQ-cni0 -d 10.42.1.0/24 -j RETURN
            iptables -t nat -A POSTROUTING -s 10.42.1.0/24 -j PICOLET-MASQ-cni0",
        );
        let mut third = agent(&node, "vxlan", &dir.0);
        third.settings.choice.backend = Some("none".into());
        look(&third);
        assert!(!sh("ip link").contains("flannel.1"));
        let rules = sh("iptables -S; iptables -t nat -S");
        assert!(!rules.contains("PICOLET-POD"), "{rules}");
        assert!(!rules.contains("-d 10.42.0.0/16"), "{rules}");
        assert!(rules.contains("-d 10.42.1.0/24 -j RETURN"), "{rules}");
        assert_eq!(third.remains.list(true), Vec::<String>::new());
        assert!(!third.remains.subnet_file.exists() && !third.remains.has_mark());
    });
    ran.join().expect("node a");
}

#[test]
fn a_list_for_another_backend_is_dropped() {
    // FLAN-04
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let server = Server::plain(move |seen| {
        if seen.path != LIST {
            return chunks(&[], true);
        }
        let _ = released.lock().expect("a word").recv();
        let annotations = json!({
            "flannel.alpha.coreos.com/kube-subnet-manager": "true",
            "flannel.alpha.coreos.com/backend-type": "wireguard",
        });
        let node = json!({"metadata": {
            "name": "b", "uid": "b", "resourceVersion": "3", "annotations": annotations,
        }});
        ok(&json!({"metadata": {"resourceVersion": "7"}, "items": [node]}).to_string())
    });
    let text = format!(
        "{{current-context: a, clusters: [{{name: c, cluster: {{server: '{}'}}}}], \
         users: [{{name: u, user: {{}}}}], contexts: [{{name: a, context: {{cluster: c, user: u}}}}]}}",
        server.url()
    );
    let config = Kubeconfig::parse("/k".as_ref(), text.as_bytes(), &[]).expect("kubeconfig");
    let cluster = SharedApiserver::new(config, ProxyVariables::default(), None);
    let reader = Rc::new(ClusterReader::new(Arc::new(cluster)));
    reader.set_ready();
    let dir = TestDir::new("pod-network-list");
    let mut agent = agent(&own_node(), "vxlan", &dir.0);
    // A clock that stands: what is done is done at once.
    agent.clock = Rc::new(TestClock(Rc::default()));
    let agent = Rc::new(agent);
    let until = async |lists: usize, whole: u64| {
        let end = mono_now() + ARRIVES;
        loop {
            let asked = server.seen();
            let asked = asked.iter().filter(|seen| seen.path == LIST).count();
            let read = agent.status.figures().lists;
            if (asked, read) == (lists, whole) {
                break;
            }
            assert!(mono_now() < end, "{asked} lists, {read} whole");
            yield_now().await;
        }
    };
    let test = async {
        agent.set_backend(Some(PodNetworkBackend::Vxlan));
        until(1, 0).await;
        agent.set_backend(Some(PodNetworkBackend::HostGateway));
        release.send(()).expect("told");
        until(2, 0).await;
        assert!(!agent.state.has_list.get());
        assert_eq!(*agent.state.list_trouble.borrow(), None, "it came whole");
        release.send(()).expect("told");
        until(2, 1).await;
        assert!(agent.state.has_list.get());
        let faults = agent.state.list_faults.borrow();
        assert_eq!(faults[0].0, "b");
    };
    smol::block_on(test.or(list_nodes(Rc::clone(&agent), reader)));
}

#[test]
fn only_news_of_other_nodes_ring() {
    // FLAN-02
    let dir = TestDir::new("pod-network-bell");
    let mut agent = agent(&own_node(), "vxlan", &dir.0);
    agent.clock = Rc::new(TestClock(Rc::default()));
    let mut bell = NodeBell::default();
    let event = |kind, name: &str, annotations, is_cut| WatchEvent {
        kind,
        uid: name.into(),
        name: name.into(),
        annotations,
        is_cut,
        ..WatchEvent::default()
    };
    use WatchEventKind::{Added, Bookmark, Deleted, Modified};
    for (what, event, rings) in [
        ("the first of a node", event(Modified, "b", 7, false), true),
        ("a node at rest", event(Modified, "b", 7, false), false),
        ("other annotations", event(Modified, "b", 8, false), true),
        (
            "a node at rest again",
            event(Modified, "b", 8, false),
            false,
        ),
        (
            "maybe not all annotations",
            event(Modified, "b", 8, true),
            true,
        ),
        ("this node", event(Modified, "a", 9, false), false),
        ("a bookmark", event(Bookmark, "", 0, false), false),
        ("a node that comes", event(Added, "c", 7, false), true),
        ("a node that goes", event(Deleted, "b", 8, false), true),
        ("one of its name", event(Modified, "b", 8, false), true),
    ] {
        let now = agent.clock.now();
        let mut schedule = ListSchedule::new(now);
        let quiet = ListEnd::Whole {
            is_changed: false,
            has_questions: false,
        };
        schedule.take_list_end(quiet, now);
        let before = schedule.due();
        let news = DoorbellNews::Ring(event);
        smol::block_on(bell.take_news(news, &agent, &mut schedule));
        assert_eq!(schedule.due() < before, rings, "{what}");
    }
}

#[test]
fn routes_by_gateways() {
    // FLAN-16
    if !can_run() {
        return;
    }
    let wire = Arc::new(Wire::lay("g"));
    let on = Arc::clone(&wire);
    let ran = wire.within("a", move || {
        let wire = on;
        let dir = TestDir::new("pod-network-gw");
        let node = own_node();
        let agent = agent(&node, "host-gw", &dir.0);
        look(&agent);
        let data =
            &node.0.borrow()["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-data"];
        assert_eq!(data, "null");
        assert_eq!(agent.spanning.current_settings().mtu, 1500);
        sh("ip route add 10.42.9.0/24 via 192.168.77.9");
        let far = ("far", "203.0.113.9", 9, Some("10.42.5.0/24"));
        list(&agent, PodNetworkBackend::HostGateway, &[B, far]);
        look(&agent);
        let routes = || lines(&sh("ip route show proto 112"));
        assert_eq!(routes(), ["10.42.2.0/24 via 192.168.77.2 dev eth0"]);
        assert_eq!(
            agent.status.health().faults,
            ["far: it is not on the same link, which host-gw needs"]
        );
        wire.sh("b", "ip route add 10.42.1.0/24 via 192.168.77.1");
        assert_eq!(wire.connect("pa", "b", 2), IpAddr::from([10, 42, 1, 2]));
        assert_eq!(wire.connect("pb", "a", 1), IpAddr::from([10, 42, 2, 2]));
        // A wrong next hop is replaced.
        sh("ip route replace 10.42.2.0/24 via 192.168.77.9 proto 112");
        look(&agent);
        assert_eq!(routes(), ["10.42.2.0/24 via 192.168.77.2 dev eth0"]);
        let left = smol::block_on(agent.remains.remove(true, None));
        assert_eq!(left, Vec::<String>::new());
        assert_eq!(routes(), Vec::<String>::new());
        assert!(sh("ip route").contains("10.42.9.0/24"), "another's");
    });
    ran.join().expect("node a");
}

#[test]
fn a_node_waits_for_its_range_and_its_way() {
    // FLAN-04 FLAN-05 FLAN-06 FLAN-10
    if !can_run() {
        return;
    }
    let wire = Arc::new(Wire::lay("n"));
    let ran = wire.within("a", || {
        let dir = TestDir::new("pod-network-wait");
        let node = own_node();
        let mut agent = agent(&node, "vxlan", &dir.0);
        let why = |agent: &PodNetworkShared| match smol::block_on(agent.look()) {
            LookEnd::Done => String::new(),
            LookEnd::NotReady(why) => why,
        };
        sh("ip route del default");
        assert!(why(&agent).starts_with("there is no default route"));
        // Pods start, and the way to other nodes alone is missing.
        let settings = agent.spanning.current_settings();
        assert_eq!((settings.not_ready, settings.mtu), (None, 1450));
        assert_eq!(settings.reachable, ["10.42.0.0/16"]);
        agent.settings.interface = Some("eth9".into());
        assert_eq!(why(&agent), "there is no interface eth9: waiting for it");
        agent.settings.interface = None;
        // The own Node is not known: a new device would have another hardware address.
        sh("ip route add default via 192.168.77.254");
        agent.kept_ranges = vec!["10.42.1.0/24".parse().expect("a range")];
        let object = node.0.replace(Value::Null);
        let waits = "waiting for the Node object of this node: without it flannel.1 is not made";
        assert_eq!(why(&agent), waits);
        assert!(!agent.status.health().is_ready);
        node.0.replace(object);
        agent.kept_ranges.clear();
        // A device of that name that another program uses for something else.
        sh("ip link add name flannel.1 type bridge");
        assert_eq!(
            why(&agent),
            "interface flannel.1 exists and is no vxlan device"
        );
        sh("ip link del flannel.1");
        agent.settings.interface = Some("lo".into());
        assert!(why(&agent).starts_with("interface lo has no IPv4 address"));
        agent.settings.interface = None;
        node.0.borrow_mut()["spec"] = json!({});
        assert!(why(&agent).starts_with("waiting for spec.podCIDR of this node"));
        node.0.borrow_mut()["spec"] = json!({"podCIDR": "10.88.0.0/24"});
        let outside = "spec.podCIDR 10.88.0.0/24 of this node is outside the network of pods";
        assert_eq!(why(&agent), outside);
        assert!(!sh("ip link").contains("flannel.1"));
        // A backend of others is an event, and pods start.
        agent.settings.choice.backend = Some("wireguard-native".into());
        assert_eq!(why(&agent), "");
        assert_eq!(agent.spanning.current_settings().not_ready, None);
        let health = agent.status.health();
        assert!(health.trouble.expect("told").contains("wireguard-native"));
        let events = agent.recorder.newest_events(None, 9);
        let reasons: Vec<_> = events.iter().map(|event| &*event.reason).collect();
        assert_eq!(reasons, ["PodNetworkBackendUnknown"]);
    });
    ran.join().expect("node a");
}

/// Clock of a machine on which another program gives up its rule after some pauses.
struct RepairClock {
    /// Seconds of each pause.
    pauses: RefCell<Vec<u64>>,
    repair_after: usize,
}

impl Clock for RepairClock {
    fn now(&self) -> MonoTime {
        MonoTime(0)
    }

    fn wall_time(&self) -> WallTime {
        WallTime(0)
    }

    fn is_synchronized(&self) -> bool {
        true
    }

    fn sleep_until(&self, deadline: MonoTime) -> TimerFuture {
        let mut pauses = self.pauses.borrow_mut();
        pauses.push((deadline - MonoTime(0)).as_secs());
        if pauses.len() == self.repair_after {
            sh("iptables -F OTHER; iptables -X OTHER");
        }
        Box::pin(ready(()))
    }
}

#[test]
fn a_removal_is_tried_again() {
    // PROX-28
    if !can_run() {
        return;
    }
    let wire = Arc::new(Wire::lay("r"));
    let ran = wire.within("a", || {
        let dir = TestDir::new("pod-network-again");
        let node = own_node();
        let agent = agent(&node, "host-gw", &dir.0);
        look(&agent);
        // Another program's rule leads into the chain.
        sh("iptables -N OTHER; iptables -A OTHER -j PICOLET-POD-NETWORK");
        let remove = |repair_after| {
            let clock = Rc::new(RepairClock {
                pauses: RefCell::default(),
                repair_after,
            });
            let (remains, lane) = (agent.remains.clone(), agent.disk.clone());
            let of_removal = Rc::<RepairClock>::clone(&clock);
            smol::block_on(remains.remove_with_tries(lane, of_removal));
            clock.pauses.take()
        };
        assert_eq!(remove(usize::MAX), [10, 20, 40, 80, 160]);
        assert!(agent.remains.has_mark(), "the next start tries again");
        assert_eq!(remove(2), [10, 20]);
        assert!(!agent.remains.has_mark());
        assert!(!sh("iptables -S; iptables -t nat -S").contains("PICOLET-POD"));
    });
    ran.join().expect("node a");
}

#[test]
fn both_families() {
    // FLAN-18
    if !can_run() {
        return;
    }
    if !Path::new("/proc/sys/net/ipv6").exists() {
        skipped!("the network between nodes in both families: the kernel has no IPv6");
        return;
    }
    let wire = Arc::new(Wire::lay("d"));
    if !has_vxlan(&wire) {
        skipped!("the network between nodes: the kernel has no vxlan");
        return;
    }
    let ran = wire.within("a", || {
        let dir = TestDir::new("pod-network-dual");
        let node = own_node();
        node.0.borrow_mut()["spec"] = json!({"podCIDRs": ["10.42.1.0/24", "fd42:0:0:1::/64"]});
        let mut agent = agent(&node, "vxlan", &dir.0);
        let v6 = "fd42::/56".parse().expect("a range");
        agent.settings.choice.ranges.push(v6);
        // The interface has no IPv6 address yet: the other family works.
        look(&agent);
        let trouble = agent.status.health().trouble.expect("told");
        assert!(trouble.contains("has no IPv6 address"), "{trouble}");
        assert!(sh("ip link").contains("flannel.1"));
        sh("ip addr add 2001:db8::1/64 dev eth0 nodad");
        look(&agent);
        // Another address comes first now: the device stays.
        let index = || {
            let link = sh("ip -o link show flannel-v6.1");
            link.split(':').next().map(str::to_owned)
        };
        let before = index();
        sh("ip addr add 2001:db8::99/64 dev eth0 nodad");
        look(&agent);
        assert_eq!(index(), before);
        let object = node.0.borrow().clone();
        let public = &object["metadata"]["annotations"]["flannel.alpha.coreos.com/public-ipv6"];
        assert_eq!(public, "2001:db8::1");
        let place = |ip: &str| NodePlace {
            public_ip: ip.parse().expect("an address"),
            mac: HardwareAddress([2, 0, 0, 0, 0, 2]),
        };
        let mut list = PeerList::default();
        list.note_node(&ListedNode {
            name: "b",
            uid: "b",
            created_s: 1,
            announcement: Ok(Some(NodeAnnouncement {
                v4: Some(place("192.168.77.2")),
                v6: Some(place("2001:db8::2")),
                fault: None,
            })),
        });
        let ranges = ["10.42.2.0/24", "fd42:0:0:2::/64"].map(|r| r.parse().expect("a range"));
        agent.peers.borrow_mut().take_list(list);
        let mut peers = agent.peers.borrow_mut();
        peers.learn_ranges("b", "b", &ranges, [false; 2]);
        drop(peers);
        agent.note_list(Vec::new());
        look(&agent);
        assert_eq!(tables(), expected(&[(2, "192.168.77.2")]));
        let device = "dev flannel-v6.1";
        assert_eq!(agent.status.health().trouble, None);
        assert!(sh("ip link show flannel.1").contains("mtu 1450"));
        assert!(sh("ip link show flannel-v6.1").contains("mtu 1430"));
        assert_eq!(agent.spanning.current_settings().mtu, 1430);
        let routes = sh(&format!("ip -6 route show {device} proto boot"));
        assert!(
            routes.starts_with("fd42:0:0:2::/64 via fd42:0:0:2:: "),
            "{routes}"
        );
        assert!(routes.contains("metric 1024 onlink"), "{routes}");
        assert_eq!(
            lines(&sh(&format!("bridge fdb show {device}"))),
            ["02:00:00:00:00:02 dst 2001:db8::2 self permanent"]
        );
        assert_eq!(
            lines(&sh(&format!("ip -6 neigh show {device} nud permanent"))),
            ["fd42:0:0:2:: lladdr 02:00:00:00:00:02 PERMANENT"]
        );
        // Its addresses are not hidden unless that is asked for.
        let rules = sh("ip6tables -t nat -S PICOLET-POD-NETWORK");
        assert!(!rules.contains("MASQUERADE"), "{rules}");
        assert!(sh("iptables -t nat -S PICOLET-POD-NETWORK").contains("MASQUERADE"));
        let before = agent.status.figures();
        look(&agent);
        let after = agent.status.figures();
        assert_eq!(
            (before.changed, before.deleted),
            (after.changed, after.deleted)
        );
    });
    ran.join().expect("node a");
}
