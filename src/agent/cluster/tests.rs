//! The certificates of a node whose clock is wrong.

use alloc::{rc::Rc, sync::Arc};
use core::{net::IpAddr, time::Duration};
use std::{path::PathBuf, sync::Mutex};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use smol::LocalExecutor;

use super::{
    certificates::{ClientCertificateKeeper, ClientCertificateState, RenewedCertificate},
    link::{ApiserverLink, ServerClockSkew},
    serving::ServingCertificateKeeper,
    signing::{CertificateSigner, K3sSigner},
};
use crate::{
    agent::{
        asker::AgentHandle,
        complaints::Complaints,
        node::LocalNode,
        tests::world::{Hands, Template, TestClock},
    },
    api::{self, WallTime, node::NodeAddress},
    kube::{
        ClientTimeouts, HttpApi, KubeLanes, Kubeconfig, RequestRates, SharedApiserver,
        ThreadTransport,
        bootstrap::node_subject,
        csr::{self, CertificateSubject},
        join::k3s::CertificatePurpose,
        store::CertificateStore,
        testing::{Authority, NOW, Server, Validity, ok, say},
    },
    net::{ProxyVariables, Url, tls},
    runtime::fake::Fake,
    sys::{clock, lane::Lane},
    testing::TestDir,
};

/// Name of the node.
const NODE: &str = "n";
/// Address of the node.
const ADDRESS: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));
const HOUR: Duration = Duration::from_secs(3600);
const YEAR_S: i64 = 31_557_600;
/// Most of its life is over.
const OLD: Validity = (-9500, 500);
/// A validity that has just begun.
const FRESH: Validity = (-60, YEAR_S);

/// A machine, and an apiserver that signs whatever it is asked to.
struct World {
    hands: Rc<Hands>,
    skew: Arc<ServerClockSkew>,
    ca: Arc<Authority>,
    server: Server,
    scratch: TestDir,
    executor: LocalExecutor<'static>,
}

impl World {
    /// Certificates hold for so long.
    fn new(issued: Validity) -> Self {
        let ca = Arc::new(Authority::new());
        let signer = Arc::clone(&ca);
        let asked = Mutex::new(Value::Null);
        let server = Server::plain(move |seen| {
            let mut asked = asked.lock().expect("lock");
            if seen.method == "POST" {
                *asked = serde_json::from_slice(&seen.body).expect("JSON");
                return ok(r#"{"metadata":{"name":"csr-x","uid":"u"},"status":{}}"#);
            }
            let request = asked["spec"]["request"].as_str().expect("request");
            let request = STANDARD.decode(request).expect("base64");
            let request = String::from_utf8(request).expect("PEM");
            let signed = STANDARD.encode(signer.sign_request(&request, issued));
            let condition = r#"{"type":"Approved","status":"True"}"#;
            ok(&format!(
                r#"{{"metadata":{{"name":"csr-x","uid":"u"}},"status":{{"certificate":"{signed}","conditions":[{condition}]}}}}"#
            ))
        });
        Self {
            hands: Rc::default(),
            skew: Arc::default(),
            ca,
            server,
            scratch: TestDir::new("cluster"),
            executor: LocalExecutor::new(),
        }
    }

    fn cluster(&self) -> Arc<SharedApiserver> {
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: '{}'}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c}}}}]\ncurrent-context: x\n",
            self.server.url()
        );
        let config = Kubeconfig::parse("k".as_ref(), text.as_bytes(), &[]).expect("kubeconfig");
        Arc::new(SharedApiserver::new(
            config,
            ProxyVariables::default(),
            None,
        ))
    }

    fn signer(&self) -> CertificateSigner {
        let rates = RequestRates {
            main: (0, 0),
            events: (0, 0),
        };
        let api = HttpApi::new(&self.cluster(), ClientTimeouts::default(), rates, None);
        let clock = Rc::new(TestClock(Rc::clone(&self.hands)));
        let lanes = [Lane::without_thread(), Lane::without_thread()];
        CertificateSigner {
            lanes: KubeLanes::from_lanes(Arc::new(api), lanes, Rc::new(ThreadTransport)),
            complaints: Rc::new(Complaints::new(Rc::clone(&clock) as _)),
            clock,
            disk: Lane::without_thread(),
            k3s: None,
            skew: Arc::clone(&self.skew),
        }
    }

    /// The certificate of the node's server is kept from now on; one with this life is in use.
    fn serve(&self, held: Validity) -> CertificateStore {
        let subject = CertificateSubject {
            ips: vec![ADDRESS],
            ..node_subject(NODE)
        };
        let store = self.kept(CertificateStore::server(&self.scratch.0), &subject, held);
        let task = ServingCertificateKeeper {
            node: NODE.into(),
            store: store.clone(),
            signer: self.signer(),
            own: self.node(),
            shown: Arc::default(),
        };
        self.executor.spawn(task.keep_certificate()).detach();
        store
    }

    /// The node, with its address.
    fn node(&self) -> Rc<LocalNode> {
        let template = Template::new(&self.scratch.join(""), &[]);
        let given = template.given(Rc::new(Fake::new()), Rc::clone(&self.hands), None);
        let mut object = api::Node::default();
        object.status.addresses = vec![NodeAddress {
            kind: "InternalIP".into(),
            address: ADDRESS.to_string(),
        }];
        given.node.learn_node_object(object);
        given.node
    }

    /// The node's own certificate is kept from now on; one with this life is in use.
    fn join(&self, held: Validity) -> Rc<ClientCertificateState> {
        let store = self.kept(
            CertificateStore::client(&self.scratch.0),
            &node_subject(NODE),
            held,
        );
        let state = Rc::<ClientCertificateState>::default();
        let task = ClientCertificateKeeper {
            node: NODE.into(),
            kept: RenewedCertificate {
                store,
                cluster: self.cluster(),
                bootstrap: None,
            },
            state: Rc::clone(&state),
            signer: self.signer(),
            link: Rc::new(ApiserverLink::new(Arc::clone(&self.skew))),
            member: Rc::default(),
            asker: AgentHandle::new(smol::channel::unbounded().0),
        };
        self.executor.spawn(task.keep_certificate()).detach();
        state
    }

    fn kept(
        &self,
        store: CertificateStore,
        subject: &CertificateSubject,
        holds: Validity,
    ) -> CertificateStore {
        let made = csr::make_key_and_request(subject).expect("request");
        let chain = self.ca.sign_request(&made.request, holds);
        store
            .store_pair(&chain, &made.key, clock::wall_now())
            .expect("kept");
        store
    }

    /// The clock of this machine is set.
    fn set_clock(&self, to: WallTime) {
        self.hands
            .jump(to.unix_seconds() - self.hands.wall().unix_seconds());
    }

    /// The apiserver answers, with that date.
    fn hear(&self, theirs: WallTime) {
        self.skew.take_server_date(theirs, self.hands.now());
    }

    /// Lets time pass, and everything happen that is due.
    fn advance(&self, by: Duration) {
        let end = self.hands.now() + by;
        while self.executor.try_tick() {}
        while let Some(at) = self.hands.next_alarm().filter(|at| *at <= end) {
            self.hands.set(at.max(self.hands.now()));
            while self.executor.try_tick() {}
        }
        self.hands.set(end);
        while self.executor.try_tick() {}
    }

    /// Certificates that were asked for.
    fn asked(&self) -> usize {
        let seen = self.server.seen();
        seen.iter().filter(|seen| seen.method == "POST").count()
    }
}

/// In so many years from now, in truth.
fn in_years(years: i64) -> WallTime {
    WallTime::from_unix_seconds(clock::wall_now().unix_seconds() + years * YEAR_S)
}

fn chain(store: &CertificateStore) -> Vec<u8> {
    store.read_current().expect("read").expect("a pair").chain
}

#[test]
fn a_serving_certificate_is_renewed_by_the_servers_time() {
    // TIME-03 BOOT-11
    for (name, ours, held, want) in [
        ("in 1970", WallTime::from_unix_seconds(5), OLD, 1),
        ("far ahead, and it is old", in_years(50), OLD, 1),
        ("far ahead", in_years(50), FRESH, 0),
        (
            "in 1970, and it is fresh",
            WallTime::from_unix_seconds(5),
            FRESH,
            0,
        ),
    ] {
        let world = World::new(FRESH);
        world.set_clock(ours);
        world.hear(in_years(0));
        let store = world.serve(held);
        let before = chain(&store);
        world.advance(HOUR);
        assert_eq!(world.asked(), want, "{name}");
        assert_eq!(chain(&store) != before, want > 0, "{name}");
    }
}

#[test]
fn a_signer_of_useless_certificates_is_not_asked_without_end() {
    // BOOT-05 BOOT-07 BOOT-11
    type Begin = fn(&World);
    let serve: Begin = |world| _ = world.serve(FRESH);
    let join: Begin = |world| _ = world.join(FRESH);
    for (name, begin) in [("of the server", serve), ("of the node", join)] {
        let world = World::new(FRESH);
        world.set_clock(in_years(0));
        // By its own clock all that it issues has ended.
        world.hear(in_years(10));
        begin(&world);
        world.advance(HOUR);
        let asked = world.asked();
        assert!((3..=6).contains(&asked), "{name}: {asked}");
        // Once that is right again, the last one is good.
        world.hear(in_years(0));
        world.advance(HOUR);
        assert_eq!(world.asked(), asked, "{name}");
    }
}

#[test]
fn a_clock_that_is_set_while_nobody_answers_ends_no_certificate() {
    // TIME-03 TIME-04
    let world = World::new(FRESH);
    world.set_clock(WallTime::from_unix_seconds(5));
    world.hear(in_years(0));
    let state = world.join(FRESH);
    world.advance(HOUR);
    assert_eq!(state.certificate_trouble(), None);
    // The clock is set right, then far ahead, then back.
    for now in [in_years(0), in_years(50), WallTime::from_unix_seconds(5)] {
        world.set_clock(now);
        world.advance(HOUR);
        assert_eq!(state.certificate_trouble(), None, "{now}");
        assert_eq!(
            (state.agent_end_reason(), world.asked()),
            (None, 0),
            "{now}"
        );
    }
}

#[test]
fn the_supervisor_of_k3s_is_shown_what_was_renewed() {
    // K3SJ-08 BOOT-08
    let ca = Authority::new();
    let server = Server::tls(&ca.server(&["127.0.0.1"], NOW), Some(&ca), |_| {
        say(403, "", b"")
    });
    let scratch = TestDir::new("cluster");
    let own = |_| ca.client("system:nodes", "system:node:n", NOW);
    let [brought, renewed] = [(), ()].map(own);
    let (kubeconfig, password_file) = (scratch.join("kubelet.conf"), scratch.join("password"));
    let text = format!(
        "clusters: [{{name: c, cluster: {{server: '{}', insecure-skip-tls-verify: true}}}}]\n\
         users: [{{name: u, user: {{client-certificate-data: {}, client-key-data: {}}}}}]\n\
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n",
        server.url(),
        STANDARD.encode(&brought.certificate),
        STANDARD.encode(&brought.key),
    );
    std::fs::write(&kubeconfig, text).expect("kubeconfig");
    std::fs::write(&password_file, "secret").expect("password");
    let store = CertificateStore::client(&scratch.0);
    let k3s = |kubeconfig: PathBuf, kept: Option<CertificateStore>| K3sSigner {
        node: NODE.into(),
        kubeconfig,
        kept,
        servers: vec![Url::parse(&server.url()).expect("URL")],
        password_file: password_file.clone(),
        proxies: ProxyVariables::default(),
    };
    let shown = |kept: Option<CertificateStore>| {
        let failed =
            k3s(kubeconfig.clone(), kept).certify_key(CertificatePurpose::Serving, Vec::new());
        assert!(failed.is_err_and(|failed| failed.answers));
        let seen = server.seen().pop().expect("a request");
        seen.peer.expect("a certificate")
    };
    let der = |pem: &str| tls::parse_certificates(pem.as_bytes()).remove(0).to_vec();
    assert_eq!(shown(Some(store.clone())), der(&brought.certificate));
    store
        .store_pair(&renewed.certificate, &renewed.key, clock::wall_now())
        .expect("stored");
    assert_eq!(shown(Some(store)), der(&renewed.certificate));
    assert_eq!(shown(None), der(&brought.certificate));
}
