//! The client against servers that do what they should not.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::time::Duration;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

use super::testing::{Authority, NOW, Say, Seen, Server, Then, chunks, ok, say};
use super::watch::{WatchEnd, WatchEvent, WatchEventKind, WatchOptions};
use super::*;
use crate::api::{PodUid, WallTime};
use crate::error::error_chain;
use crate::image::testing::gzip;
use crate::net::ProxyVariables;
use crate::net::known_time::SharedKnownTime;
use crate::net::way::PeerAddress;
use crate::sys::clock;
use crate::testing::TestDir;

/// A kubeconfig: fields of the cluster beside `server`, the user, further servers.
fn kubeconfig(url: &str, cluster: &str, user: &str, more: &[String]) -> Kubeconfig {
    let text = format!(
        "current-context: a\nclusters: [{{name: c, cluster: {{server: '{url}', {cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n\
         contexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n"
    );
    Kubeconfig::parse(Path::new("/etc/kubernetes/k"), text.as_bytes(), more).expect("kubeconfig")
}

fn quick() -> ClientTimeouts {
    ClientTimeouts {
        connect: Duration::from_secs(10),
        answer: Duration::from_secs(10),
        stall: Duration::from_secs(10),
        whole: None,
    }
}

fn api_of(config: Kubeconfig, timeouts: ClientTimeouts) -> HttpApi {
    let cluster = Arc::new(SharedApiserver::new(
        config,
        ProxyVariables::default(),
        None,
    ));
    let rates = RequestRates {
        main: (0, 0),
        events: (0, 0),
    };
    HttpApi::new(&cluster, timeouts, rates, None)
}

fn api(server: &Server) -> HttpApi {
    api_of(kubeconfig(&server.url(), "", "", &[]), quick())
}

fn names(api: &HttpApi) -> Result<(CompleteList, Vec<String>), KubeError> {
    let mut names = Vec::new();
    let listed = api.list_pods("n", &mut |meta| names.push(meta.name))?;
    Ok((listed, names))
}

fn item(name: &str) -> String {
    format!(
        r#"{{"kind":"PartialObjectMetadata","metadata":{{"name":"{name}","namespace":"shop","uid":"u-{name}","resourceVersion":"5","managedFields":[{{"m":1}}]}}}}"#
    )
}

fn page(version: &str, continues: &str, items: &[String]) -> String {
    let items = items.join(",");
    format!(
        r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"{version}","continue":"{continues}"}},"items":[{items}]}}"#
    )
}

fn status(code: u16, reason: &str) -> Vec<u8> {
    format!(r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"{reason}","message":"m","code":{code}}}"#)
        .into_bytes()
}

#[test]
fn what_is_asked() {
    // AUTHZ-03 AUTHZ-07 SRC-29 DEL-04 CONF-21
    let server = Server::plain(|seen| match seen.path.as_str() {
        path if path.starts_with("/api/v1/pods?") => ok(&page("9", "", &[])),
        path if path.contains("%3Dweb&") => ok(&page("9", "", &[item("web")])),
        path if path.contains("%3Dgone&") => ok(&page("9", "", &[])),
        path if path.ends_with("/pods/gone") => say(404, "", &status(404, "NotFound")),
        path if path.contains("/services?") => ok(&page("9", "", &[])),
        _ => ok("{}"),
    });
    let api = api(&server);
    names(&api).expect("list");
    api.list_whole_pods("n", &mut |_| {}).expect("list");
    let found = api.read_pod("n", "shop", "web").expect("pod");
    assert_eq!(found["metadata"]["uid"], "u-web");
    api.patch_pod_status("shop", "web", PatchFormat::Strategic, b"{1}")
        .expect("patch");
    api.delete_pod("shop", "web", &PodUid::from("u1".to_owned()))
        .expect("delete");
    api.create_pod("shop", b"{2}").expect("create");
    api.patch_node_status("n", PatchFormat::Strategic, b"{}")
        .expect("node");
    api.patch_lease("n", b"{3}").expect("lease");
    api.create_event("shop", b"{}").expect("event");
    api.patch_event("shop", "e", b"{}").expect("event");
    api.create_token("shop", "default", b"{}").expect("token");
    api.read_config_map("shop", "c").expect("config map");
    api.create_csr(b"{}").expect("csr");
    api.read_csr("csr-1").expect("csr");
    api.list_services("shop", &mut |_| {}).expect("services");
    api.read_service("default", "kubernetes").expect("service");
    assert!(matches!(
        api.read_pod("n", "shop/..", "web"),
        Err(KubeError::Local(_))
    ));
    let gone = api.read_pod("n", "shop", "gone").expect_err("none");
    assert!(gone.is_not_found(), "{gone}");
    let selector =
        "fieldSelector=spec.nodeName%3Dn%2Cstatus.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";
    let list = format!("GET /api/v1/pods?{selector}&limit=500");
    let seen = server.seen();
    let asked: Vec<_> = seen
        .iter()
        .map(|s| format!("{} {}", s.method, s.path))
        .collect();
    assert_eq!(
        asked,
        [
            list.as_str(),
            &list,
            "GET /api/v1/namespaces/shop/pods?fieldSelector=spec.nodeName%3Dn%2Cmetadata.name%3Dweb&limit=500",
            "PATCH /api/v1/namespaces/shop/pods/web/status",
            "DELETE /api/v1/namespaces/shop/pods/web",
            "POST /api/v1/namespaces/shop/pods",
            "PATCH /api/v1/nodes/n/status",
            "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
            "POST /api/v1/namespaces/shop/events",
            "PATCH /api/v1/namespaces/shop/events/e",
            "POST /api/v1/namespaces/shop/serviceaccounts/default/token",
            "GET /api/v1/namespaces/shop/configmaps/c",
            "POST /apis/certificates.k8s.io/v1/certificatesigningrequests",
            "GET /apis/certificates.k8s.io/v1/certificatesigningrequests/csr-1",
            "GET /api/v1/namespaces/shop/services?limit=500",
            "GET /api/v1/namespaces/default/services/kubernetes",
            "GET /api/v1/namespaces/shop/pods?fieldSelector=spec.nodeName%3Dn%2Cmetadata.name%3Dgone&limit=500",
            "GET /api/v1/namespaces/shop/pods/gone",
        ]
    );
    assert_eq!(
        seen[0].header("accept"),
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    );
    assert_eq!(seen[0].header("accept-encoding"), "gzip");
    assert_eq!(seen[1].header("accept"), "application/json");
    assert_eq!(seen[3].header("accept-encoding"), "");
    assert_eq!(
        seen[11].header("accept-encoding"),
        "gzip",
        "a ConfigMap may be large"
    );
    assert!(seen[2].header("user-agent").starts_with("picolet/"));
    assert_eq!(
        seen[3].header("content-type"),
        "application/strategic-merge-patch+json"
    );
    assert_eq!(seen[3].body, b"{1}");
    let options: Value = serde_json::from_slice(&seen[4].body).expect("options");
    assert_eq!(options["gracePeriodSeconds"], 0);
    assert_eq!(options["preconditions"]["uid"], "u1");
    assert_eq!(
        seen[7].header("content-type"),
        "application/merge-patch+json"
    );
    assert_eq!(seen[7].header("authorization"), "");
    // One connection for each client, whatever was asked.
    let connections: Vec<_> = seen.iter().map(|s| s.connection).collect();
    assert_eq!(
        connections,
        [0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn pages_make_one_list_or_none() {
    // SRC-30 OFF-03
    let whole = |seen: &Seen| match seen.path.split("continue=").nth(1) {
        None => ok(&page("9", "a/b==", &[item("one"), item("two")])),
        Some("a%2Fb%3D%3D") => ok(&page("9", "", &[item("three")])),
        Some(other) => panic!("{other}"),
    };
    let server = Server::plain(whole);
    let (listed, found) = names(&api(&server)).expect("list");
    assert_eq!(found, ["one", "two", "three"]);
    assert_eq!((listed.resource_version.as_str(), listed.items), ("9", 3));

    type Answer = fn() -> Say;
    let second: [(&str, Answer); 6] = [
        ("expired", || say(410, "", &status(410, "Expired"))),
        ("cut", || {
            let mut say = ok(&page("9", "", &[item("three")]));
            say.bytes.truncate(say.bytes.len() - 5);
            say.then = Then::Close;
            say
        }),
        ("no end", || {
            chunks(&[&page("9", "", &[item("three")])], false)
        }),
        ("half the JSON", || {
            ok(&page("9", "", &[item("three")])[..150])
        }),
        ("no identity", || ok(&page("9", "", &["{}".into()]))),
        ("no list", || ok(r#"{"kind":"Status","metadata":{}}"#)),
    ];
    for (name, answer) in second {
        let server = Server::plain(move |seen| {
            if seen.path.contains("continue=") {
                answer()
            } else {
                ok(&page("9", "x", &[item("one")]))
            }
        });
        let error = names(&api(&server)).expect_err(name);
        assert_eq!(
            error.http_status() == Some(410),
            name == "expired",
            "{error}"
        );
    }
    // A server that never comes to the end.
    let server = Server::plain(|_| ok(&page("9", "x", &[item("one")])));
    assert!(matches!(names(&api(&server)), Err(KubeError::Wrong { .. })));
}

#[test]
fn one_session_of_tls_and_its_address() {
    // METER-05 METER-06
    let ca = Authority::new();
    let pair = ca.server(&["127.0.0.1"], NOW);
    let server = Server::tls(&pair, Some(&ca), |_| ok("{}"));
    let scratch = TestDir::new("kube");
    let pem = scratch.join("pair.pem");
    fs::write(&pem, ca.client("system:nodes", "system:node:n", NOW).both()).expect("pair");
    let user = format!(
        "client-certificate: '{0}', client-key: '{0}'",
        pem.display()
    );
    let authority = scratch.join("ca.pem");
    fs::write(&authority, &ca.pem).expect("CA");
    let trust = format!("certificate-authority: '{}'", authority.display());
    let config = kubeconfig(&server.url(), &trust, &user, &[]);
    let cluster = Arc::new(SharedApiserver::new(
        config,
        ProxyVariables::default(),
        None,
    ));
    assert_eq!(
        format!("{:?}", cluster.peer()),
        format!("{:?}", PeerAddress::default())
    );
    let api = HttpApi::new(&cluster, quick(), RequestRates::default(), None);
    api.read_config_map("a", "b").expect("the first connection");
    assert!(format!("{:?}", cluster.peer()).contains("127.0.0.1"));
    // Another client has a connection of its own, and so has each after an outage.
    for _ in 0..2 {
        api.patch_lease("n", b"{}").expect("the heartbeat's");
        server.close_connections();
        api.read_config_map("a", "b").expect("again");
    }
    let seen = server.seen();
    let kinds: BTreeMap<usize, bool> = seen.iter().map(|s| (s.connection, s.resumed)).collect();
    assert!(kinds.len() >= 4, "{kinds:?}");
    assert!(!kinds[&0], "nothing was there to go on with");
    assert!(kinds.values().skip(1).all(|resumed| *resumed), "{kinds:?}");
    // A certificate is shown once in a session, and known in all of it.
    assert!(seen.iter().all(|s| s.peer.is_some()));
}

#[test]
fn no_body_is_repeated_that_was_answered() {
    // METER-05
    for code in [400, 403, 409, 422, 429, 500, 503] {
        let server = Server::plain(move |_| Say {
            then: Then::Close,
            ..say(code, "retry-after: 1\r\n", &status(code, "x"))
        });
        let api = api(&server);
        let error = api.create_event("a", b"{}").expect_err("refused");
        assert_eq!(error.http_status(), Some(code));
        assert_eq!(server.seen().len(), 1, "{code}");
    }
    // Nor one whose answer broke off: the server has acted upon it.
    let server = Server::plain(|_| {
        let mut say = ok(r#"{"metadata":{"name":"e"}}"#);
        say.bytes.truncate(say.bytes.len() - 5);
        say.then = Then::Close;
        say
    });
    let error = api(&server).create_event("a", b"{}").expect_err("half");
    assert!(matches!(error, KubeError::Unreachable { sent: true, .. }));
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn large_objects_come_packed_and_bounded() {
    // METER-05
    let text = |bytes: usize| {
        let value = "a".repeat(bytes);
        gzip(format!(r#"{{"data":{{"a":"{value}"}}}}"#).as_bytes())
    };
    let (good, bomb) = (text(900_000), text(64 << 20));
    let on_the_way = good.len();
    let server = Server::plain(move |seen| {
        let body = if seen.path.ends_with("/bomb") {
            &bomb
        } else {
            &good
        };
        say(200, "content-encoding: gzip\r\n", body)
    });
    let api = api(&server);
    for found in [api.read_config_map("n", "c"), api.read_secret("n", "s")] {
        let found = found.expect("an object");
        let length = found["data"]["a"].as_str().map(str::len);
        assert_eq!(length, Some(900_000));
    }
    assert!(on_the_way * 100 < 900_000, "{on_the_way}");
    let error = api.read_config_map("n", "bomb").expect_err("too large");
    assert!(matches!(error, KubeError::Wrong { .. }), "{error}");
    assert!(
        server
            .seen()
            .iter()
            .all(|s| s.header("accept-encoding") == "gzip")
    );
}

#[test]
fn packed_bodies() {
    let items: Vec<_> = (0..500).map(|n| item(&format!("pod-{n}"))).collect();
    let text = page("9", "", &items);
    let server = Server::plain(move |seen| {
        let mut packed = gzip(text.as_bytes());
        let mut then = Then::Keep;
        match seen.number {
            0 | 1 => {}
            2 => {
                packed.truncate(packed.len() - 3);
            }
            _ => {
                packed[500] ^= 0x40;
                then = Then::Close;
            }
        }
        Say {
            then,
            ..say(200, "content-encoding: gzip\r\n", &packed)
        }
    });
    let api = api(&server);
    for _ in 0..2 {
        let (listed, found) = names(&api).expect("list");
        assert_eq!((listed.items, found.len()), (500, 500));
    }
    assert!(matches!(
        names(&api),
        Err(KubeError::Unreachable { sent: true, .. })
    ));
    assert!(names(&api).is_err());
    // Each was read to its end.
    let connections: Vec<_> = server.seen().iter().map(|s| s.connection).collect();
    assert_eq!(connections, [0, 0, 0, 0]);
}

#[test]
fn bodies_that_are_too_large() {
    let huge = format!(r#"{{"a":"{}"}}"#, "x".repeat(4 << 20));
    let list = page("9", "", core::slice::from_ref(&huge));
    let server = Server::plain(move |seen| {
        if seen.path.contains("/pods?") {
            ok(&list)
        } else {
            ok(&huge)
        }
    });
    let api = api(&server);
    assert!(matches!(names(&api), Err(KubeError::Wrong { .. })));
    let error = api.read_config_map("a", "b").expect_err("too large");
    assert!(error.to_string().contains("3145728 bytes"), "{error}");
}

#[test]
fn refusals_carry_what_the_caller_needs() {
    let server = Server::plain(|seen| match seen.number {
        0 => say(429, "retry-after: 7\r\n", &status(429, "TooManyRequests")),
        1 => say(503, "", b"upstream is down"),
        2 => say(404, "", &status(404, "NotFound")),
        3 => say(302, "location: http://127.0.0.1:1/\r\n", b""),
        _ => say(409, "", &[b'x'; 200_000]),
    });
    let api = api(&server);
    let busy = api.read_config_map("a", "b").expect_err("429");
    assert_eq!(busy.retry_after(), Some(Duration::from_secs(7)));
    assert!(busy.may_pass());
    let down = api.read_config_map("a", "b").expect_err("503");
    assert!(
        down.to_string().ends_with("503: upstream is down"),
        "{down}"
    );
    let gone = api.read_config_map("a", "b").expect_err("404");
    assert!(gone.is_not_found() && !gone.may_pass());
    assert_eq!(gone.to_string(), "the apiserver answers 404 NotFound: m");
    assert_eq!(
        api.read_config_map("a", "b")
            .expect_err("302")
            .http_status(),
        Some(302)
    );
    assert!(
        api.read_config_map("a", "b")
            .expect_err("409")
            .is_conflict()
    );
    assert_eq!(server.seen().len(), 5, "nothing is repeated here");
}

#[test]
fn answers_that_stop() {
    // OFF-03
    let server = Server::plain(|_| {
        let mut say = ok(r#"{"kind":"Pod","metadata":{}}"#);
        say.bytes.truncate(say.bytes.len() - 3);
        say.then = Then::Hang;
        say
    });
    let timeouts = ClientTimeouts {
        stall: Duration::from_millis(50),
        ..quick()
    };
    let api = api_of(kubeconfig(&server.url(), "", "", &[]), timeouts);
    let error = api.read_config_map("a", "b").expect_err("it stops");
    assert!(
        matches!(error, KubeError::Unreachable { sent: true, .. }),
        "{error}"
    );
    // The heartbeat has a time for the whole (CONF-21).
    let cluster = Arc::clone(&api.main.cluster);
    let heartbeat = Duration::from_millis(50);
    let api = HttpApi::new(&cluster, quick(), RequestRates::default(), Some(heartbeat));
    let begun = clock::mono_now();
    assert!(api.read_lease("n").is_err());
    assert!(clock::mono_now() - begun < Duration::from_secs(5));
}

#[test]
fn a_connection_that_was_closed_meanwhile() {
    let server = Server::plain(|_| ok("{}"));
    let api = api(&server);
    for _ in 0..3 {
        api.read_config_map("a", "b").expect("pod");
        server.close_connections();
    }
    // CONF-21
    api.read_lease("n").expect("lease");
    api.close_heartbeat_connections();
    api.read_lease("n").expect("lease");
    let seen = server.seen();
    assert_ne!(seen[3].connection, seen[4].connection);
}

#[test]
fn servers_in_turn() {
    let first = Server::plain(|_| ok("{}"));
    let second = Server::plain(|_| say(500, "", b""));
    let closed = "http://127.0.0.1:1".to_owned();
    let more = [first.url(), second.url()];
    let api = api_of(kubeconfig(&closed, "", "", &more), quick());
    api.patch_lease("n", b"{}").expect("the second answers");
    api.patch_lease("n", b"{}").expect("and is stayed with");
    assert_eq!(first.seen().len(), 2);
    // An answer is an answer, however bad: only a connection that fails leads on.
    let api = api_of(kubeconfig(&second.url(), "", "", &[first.url()]), quick());
    assert_eq!(
        api.read_config_map("a", "b")
            .expect_err("500")
            .http_status(),
        Some(500)
    );
    assert_eq!((first.seen().len(), second.seen().len()), (2, 1));
    // None at all: each was tried once.
    let api = api_of(
        kubeconfig(&closed, "", "", &["http://127.0.0.1:2".into()]),
        quick(),
    );
    let error = api.read_config_map("a", "b").expect_err("none");
    assert!(
        matches!(error, KubeError::Unreachable { sent: false, .. }),
        "{error}"
    );
}

#[test]
fn tokens_change() {
    // CONF-20
    let scratch = TestDir::new("kube");
    let file = scratch.join("token");
    fs::write(&file, "one\n").expect("token");
    let server = Server::plain(|seen| {
        if seen.header("authorization") == "Bearer one" && seen.number > 0 {
            say(401, "", &status(401, "Unauthorized"))
        } else {
            ok("{}")
        }
    });
    let user = format!("token: static, tokenFile: '{}'", file.display());
    let api = api_of(kubeconfig(&server.url(), "", &user, &[]), quick());
    api.read_config_map("a", "b").expect("the first token");
    fs::write(&file, "two").expect("token");
    // Refused, read again, sent again: at once.
    api.read_config_map("a", "b").expect("the second token");
    fs::write(&file, "a b").expect("token");
    api.read_config_map("a", "b")
        .expect("what was read is good for a while");
    let tokens: Vec<_> = server
        .seen()
        .iter()
        .map(|s| s.header("authorization").to_owned())
        .collect();
    assert_eq!(
        tokens,
        ["Bearer one", "Bearer one", "Bearer two", "Bearer two"]
    );
    // Still refused: an error, without end to it.
    fs::write(&file, "one").expect("token");
    let api = api_of(kubeconfig(&server.url(), "", &user, &[]), quick());
    assert_eq!(
        api.read_config_map("a", "b")
            .expect_err("refused")
            .http_status(),
        Some(401)
    );
    fs::remove_file(&file).expect("token");
    let api = api_of(kubeconfig(&server.url(), "", &user, &[]), quick());
    let error = api
        .read_config_map("a", "b")
        .expect_err("no token")
        .to_string();
    assert!(
        error.starts_with(&format!("token {}: ", file.display())),
        "{error}"
    );
    // A token that cannot be replaced is not presented twice.
    let api = api_of(kubeconfig(&server.url(), "", "token: one", &[]), quick());
    let before = server.seen().len();
    assert_eq!(
        api.read_config_map("a", "b")
            .expect_err("refused")
            .http_status(),
        Some(401)
    );
    assert_eq!(server.seen().len(), before + 1);
}

#[test]
fn trust() {
    let ca = Authority::new();
    let good = ca.server(&["127.0.0.1"], NOW);
    let data = |ca: &Authority| {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        format!("certificate-authority-data: '{}'", STANDARD.encode(&ca.pem))
    };
    let named = format!("{}, tls-server-name: other.example", data(&ca));
    let ours = || data(&ca);
    for (name, pair, cluster, want) in [
        ("good", ca.server(&["127.0.0.1"], NOW), ours(), None),
        (
            "wrong CA",
            ca.server(&["127.0.0.1"], NOW),
            data(&Authority::new()),
            Some(("UnknownIssuer", false)),
        ),
        (
            "wrong name",
            ca.server(&["10.0.0.1"], NOW),
            ours(),
            Some(("not valid for name", false)),
        ),
        (
            "named",
            ca.server(&["other.example"], NOW),
            named.clone(),
            None,
        ),
        (
            "not so named",
            ca.server(&["127.0.0.1"], NOW),
            named,
            Some(("not valid for name", false)),
        ),
        (
            "over",
            ca.server(&["127.0.0.1"], (-7200, -3600)),
            ours(),
            Some(("expired", true)),
        ),
        (
            "any",
            ca.server(&["x"], (-7200, -3600)),
            "insecure-skip-tls-verify: true".into(),
            None,
        ),
    ] {
        let server = Server::tls(&pair, None, |_| ok("{}"));
        let api = api_of(kubeconfig(&server.url(), &cluster, "", &[]), quick());
        match (api.read_config_map("a", "b"), want) {
            (Ok(_), None) => {}
            (Err(KubeError::Tls { why, clock, .. }), Some((text, is_clock))) => {
                assert!(why.contains(text), "{name}: {why}");
                assert_eq!(clock, is_clock, "{name}");
            }
            (other, _) => panic!("{name}: {other:?}"),
        }
    }
    // Without any CA of our own, or with none in it.
    let server = Server::tls(&good, None, |_| ok("{}"));
    let cluster = "certificate-authority-data: Y2VydA==";
    let api = api_of(kubeconfig(&server.url(), cluster, "", &[]), quick());
    let error = api
        .read_config_map("a", "b")
        .expect_err("no CA")
        .to_string();
    assert_eq!(error, "certificate-authority-data holds no CA certificate");
    let api = api_of(
        kubeconfig(&server.url(), "certificate-authority: /none", "", &[]),
        quick(),
    );
    let error = api
        .read_config_map("a", "b")
        .expect_err("no CA")
        .to_string();
    assert!(
        error.starts_with("cannot read /none: No such file"),
        "{error}"
    );
}

#[test]
fn the_servers_time_is_told() {
    let ca = Authority::new();
    let server = Server::tls(&ca.server(&["127.0.0.1"], NOW), None, |_| {
        say(200, "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", b"{}")
    });
    let told = Arc::new(AtomicI64::new(0));
    let teller = Arc::clone(&told);
    let on_date = move |theirs: WallTime, ours: WallTime| {
        assert!(ours > theirs);
        teller.store(theirs.unix_seconds(), Ordering::SeqCst);
    };
    let config = kubeconfig(&server.url(), "insecure-skip-tls-verify: true", "", &[]);
    let cluster = SharedApiserver::new(config, ProxyVariables::default(), Some(Box::new(on_date)));
    let api = HttpApi::new(&Arc::new(cluster), quick(), RequestRates::default(), None);
    api.read_config_map("a", "b").expect("pod");
    assert_eq!(told.load(Ordering::SeqCst), 784_111_777);
}

#[test]
fn what_time_it_is_is_learned_from_those_who_are_trusted() {
    // TIME-02 TIME-03
    let ca = Authority::new();
    let server = Server::tls(&ca.server(&["127.0.0.1"], NOW), None, |_| {
        say(200, "date: Sun, 06 Nov 2095 08:49:37 GMT\r\n", b"{}")
    });
    let date = WallTime::from_unix_seconds(3_971_407_777);
    let own = ca.client("system:nodes", "system:node:a", NOW);
    let data = |text: &str| {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        STANDARD.encode(text)
    };
    let user = format!(
        "client-certificate-data: '{}', client-key-data: '{}'",
        data(&own.certificate),
        data(&own.key)
    );
    let trusted = format!("certificate-authority-data: '{}'", data(&ca.pem));
    for (name, cluster, is_told) in [
        ("checked", &*trusted, true),
        ("not checked", "insecure-skip-tls-verify: true", false),
    ] {
        // Of its own: what others learn is no matter of this test.
        let known: &'static SharedKnownTime = Box::leak(Box::new(SharedKnownTime::new()));
        let config = kubeconfig(&server.url(), cluster, &user, &[]);
        let cluster = SharedApiserver::new(config, ProxyVariables::default(), None).knowing(known);
        let api = HttpApi::new(&Arc::new(cluster), quick(), RequestRates::default(), None);
        api.read_config_map("a", "b").expect("answer");
        let early = WallTime::from_unix_seconds(60);
        let learned = known.at(early, clock::mono_now());
        assert_eq!(learned.is_sure, is_told, "{name}");
        if is_told {
            // And what has passed since.
            assert!(learned.at >= date, "{name}");
        } else {
            let begun = x509::read_chain(own.certificate.as_bytes()).expect("own");
            assert!(learned.at >= begun[0].not_before, "{name}");
        }
    }
}

#[test]
fn new_certificates_are_taken_without_a_restart() {
    // BOOT-08
    let ca = Authority::new();
    let server = Server::tls(&ca.server(&["127.0.0.1"], NOW), Some(&ca), |_| ok("{}"));
    let scratch = TestDir::new("kube");
    let pem = scratch.join("current.pem");
    let user = format!(
        "client-certificate: '{0}', client-key: '{0}'",
        pem.display()
    );
    let config = kubeconfig(&server.url(), "insecure-skip-tls-verify: true", &user, &[]);
    let api = api_of(config, quick());
    let cluster = Arc::clone(&api.main.cluster);
    assert!(
        matches!(api.read_config_map("a", "b"), Err(KubeError::Local(_))),
        "none yet"
    );
    let replace = |text: &str| {
        crate::sys::file::write_atomic(&pem, text.as_bytes(), 0o600, false).expect("pem");
        cluster.reread_credentials();
    };
    replace(&ca.client("system:nodes", "system:node:a", NOW).both());
    api.read_config_map("a", "b").expect("the first");
    api.read_config_map("a", "b").expect("the same");
    replace(&ca.client("system:nodes", "system:node:a", NOW).both());
    api.read_config_map("a", "b").expect("the second");
    replace("half a fi");
    api.read_config_map("a", "b")
        .expect("what is of no use is not used");
    let seen = server.seen();
    let peers: Vec<_> = seen
        .iter()
        .map(|s| s.peer.clone().expect("a certificate"))
        .collect();
    assert_eq!(peers[0], peers[1]);
    assert_ne!(peers[1], peers[2]);
    assert_eq!(peers[2], peers[3]);
    let connections: Vec<_> = seen.iter().map(|s| s.connection).collect();
    assert_eq!(connections, [0, 0, 1, 1]);
}

#[test]
fn a_plugin_knows_a_certificate() {
    // CONF-20
    let ca = Authority::new();
    let server = Server::tls(&ca.server(&["127.0.0.1"], NOW), Some(&ca), |_| ok("{}"));
    let scratch = TestDir::new("kube");
    let pair = ca.client("system:nodes", "system:node:a", NOW);
    let answer = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"clientCertificateData": pair.certificate, "clientKeyData": pair.key},
    });
    fs::write(scratch.join("answer"), answer.to_string()).expect("answer");
    let plugin = scratch.join("plugin");
    let text = format!("#!/bin/sh\ncat {}\n", scratch.join("answer").display());
    crate::testing::write_script(&plugin, &text);
    let user = format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1beta1, command: '{}'}}",
        plugin.display()
    );
    let config = kubeconfig(&server.url(), "insecure-skip-tls-verify: true", &user, &[]);
    let api = api_of(config, quick());
    api.read_config_map("a", "b").expect("pod");
    assert!(server.seen()[0].peer.is_some());
    fs::write(&plugin, "#!/bin/sh\nexit 1\n").expect("plugin");
    api.read_config_map("a", "b").expect("its answer holds");
}

fn options() -> WatchOptions {
    WatchOptions {
        node: "n".into(),
        resource_version: "9".into(),
        timeout: Duration::from_secs(300),
        bookmarks: false,
    }
}

fn event(name: &str) -> String {
    format!(r#"{{"type":"MODIFIED","object":{}}}"#, item(name)) + "\n"
}

#[test]
fn the_doorbell_rings() {
    let server = Server::plain(|seen| match seen.number {
        0 => chunks(&[&event("one"), &event("two")], true),
        1 => chunks(&[&event("one"), &event("two")[..40]], false),
        2 => chunks(&[&event("one")], false),
        3 => say(410, "", &status(410, "Expired")),
        _ => chunks(
            &[r#"{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410}}"#],
            true,
        ),
    });
    let api = api(&server);
    let cancel = Arc::new(WatchCancel::default());
    let watch = || {
        let mut rings = Vec::new();
        let end = api.watch_pods(&options(), &cancel, &mut |ring| rings.push(ring.uid));
        (end, rings)
    };
    let (end, rings) = watch();
    assert_eq!(
        (end.expect("clean"), rings),
        (WatchEnd::Clean, vec!["u-one".into(), "u-two".into()])
    );
    for _ in 0..2 {
        // Broken: what was told counts as a hint, the end as nothing.
        let (end, rings) = watch();
        assert!(matches!(end, Err(KubeError::Unreachable { .. })), "{end:?}");
        assert_eq!(rings, ["u-one"]);
    }
    assert_eq!(watch().0.expect_err("expired").http_status(), Some(410));
    let (end, _) = watch();
    assert!(matches!(end, Ok(WatchEnd::Error(e)) if e.status == 410));
    let seen = server.seen();
    assert_eq!(
        seen[0].path,
        "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn\
         &resourceVersion=9&timeoutSeconds=300&allowWatchBookmarks=false"
    );
    assert_eq!(
        seen[0].header("accept"),
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    );
}

#[test]
fn a_watch_goes_on_over_the_connection_of_the_one_before() {
    // METER-05
    let ca = Authority::new();
    let server = Server::tls(&ca.server(&["127.0.0.1"], NOW), None, |seen| {
        match seen.number {
            // The body of the third is cut, and its connection with it.
            2 => chunks(&[&event("one")], false),
            // The server closes this one after the answer.
            4 => Say {
                then: Then::Close,
                ..chunks(&[&event("one")], true)
            },
            _ => chunks(&[&event("one")], true),
        }
    });
    let config = kubeconfig(&server.url(), "insecure-skip-tls-verify: true", "", &[]);
    let api = api_of(config, quick());
    let cancel = Arc::new(WatchCancel::default());
    let watch = |options| api.watch_pods(&options, &cancel, &mut |_| {});
    for is_clean in [true, true, false, true, true, true] {
        assert_eq!(watch(options()).is_ok(), is_clean);
    }
    // One that may be silent for longer has another limit of its reads.
    let longer = WatchOptions {
        timeout: Duration::from_secs(600),
        ..options()
    };
    assert_eq!(watch(longer).expect("clean"), WatchEnd::Clean);
    // Others share nothing with it, and an interruption ends it.
    api.read_config_map("a", "b").expect("an object");
    cancel.interrupt();
    assert_eq!(watch(options()).expect("clean"), WatchEnd::Clean);
    let connections: Vec<usize> = server.seen().iter().map(|it| it.connection).collect();
    assert_eq!(connections, [0, 0, 0, 1, 1, 2, 3, 4, 5]);
}

#[test]
fn the_doorbell_can_be_cut_off() {
    let ca = Authority::new();
    for with_tls in [false, true] {
        let hang = |_: &Seen| Say {
            then: Then::Hang,
            ..chunks(&[&event("one")], false)
        };
        let server = if with_tls {
            Server::tls(&ca.server(&["127.0.0.1"], NOW), None, hang)
        } else {
            Server::plain(hang)
        };
        let config = kubeconfig(&server.url(), "insecure-skip-tls-verify: true", "", &[]);
        let api = Arc::new(api_of(config, quick()));
        let cancel = Arc::new(WatchCancel::default());
        let (told, rung) = std::sync::mpsc::channel();
        let start = |told: std::sync::mpsc::Sender<WatchEvent>| {
            let (api, cancel) = (Arc::clone(&api), Arc::clone(&cancel));
            thread::spawn(move || {
                api.watch_pods(&options(), &cancel, &mut |ring| {
                    told.send(ring).expect("test")
                })
            })
        };
        // An interruption is a break, and another watch may begin.
        let watching = start(told.clone());
        assert_eq!(rung.recv().expect("a ring").kind, WatchEventKind::Modified);
        cancel.interrupt();
        let end = watching.join().expect("thread");
        assert!(matches!(end, Err(KubeError::Unreachable { .. })), "{end:?}");
        let watching = start(told.clone());
        rung.recv().expect("a ring");
        cancel.cancel();
        let end = watching.join().expect("thread");
        assert!(matches!(end, Err(KubeError::Cancelled)), "{end:?}");
        assert!(cancel.is_cancelled());
        let end = api.watch_pods(&options(), &cancel, &mut |_| panic!("no ring"));
        assert!(matches!(end, Err(KubeError::Cancelled)), "{end:?}");
        assert_eq!(server.seen().len(), 2);
    }
}

#[test]
fn new_certificates_end_the_doorbell() {
    // BOOT-08
    let ca = Authority::new();
    let server = Server::tls(&ca.server(&["127.0.0.1"], NOW), Some(&ca), |seen| {
        if seen.path.contains("watch=1") {
            Say {
                then: Then::Hang,
                ..chunks(&[&event("one")], false)
            }
        } else {
            ok("{}")
        }
    });
    let scratch = TestDir::new("kube");
    let pem = scratch.join("current.pem");
    let replace = || {
        let text = ca.client("system:nodes", "system:node:a", NOW).both();
        crate::sys::file::write_atomic(&pem, text.as_bytes(), 0o600, false).expect("pem");
    };
    replace();
    let user = format!(
        "client-certificate: '{0}', client-key: '{0}'",
        pem.display()
    );
    let config = kubeconfig(&server.url(), "insecure-skip-tls-verify: true", &user, &[]);
    let api = Arc::new(api_of(config, quick()));
    api.read_lease("n").expect("lease");
    let (told, rung) = std::sync::mpsc::channel();
    let watching = {
        let api = Arc::clone(&api);
        let cancel = Arc::new(WatchCancel::default());
        thread::spawn(move || {
            api.watch_pods(&options(), &cancel, &mut |ring| {
                told.send(ring).expect("test")
            })
        })
    };
    rung.recv().expect("a ring");
    replace();
    api.main.cluster.reread_credentials();
    // Whichever client sees it first.
    api.read_lease("n").expect("lease");
    let end = watching.join().expect("thread");
    assert!(matches!(end, Err(KubeError::Unreachable { .. })), "{end:?}");
}

#[test]
fn from_a_token_to_a_certificate() {
    // BOOT-02 BOOT-03 BOOT-05 BOOT-08 AUTHZ-01
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let ca = Arc::new(Authority::new());
    let signer = Arc::clone(&ca);
    let asked = Mutex::new(Value::Null);
    let server = Server::tls(&ca.server(&["127.0.0.1"], NOW), Some(&ca), move |seen| {
        let mut asked = asked.lock().expect("lock");
        let is_bootstrap = seen.header("authorization") == "Bearer ab.cd";
        match (seen.method.as_str(), seen.path.rsplit('/').next()) {
            ("POST", Some("certificatesigningrequests")) if is_bootstrap => {
                *asked = serde_json::from_slice(&seen.body).expect("JSON");
                ok(r#"{"metadata":{"name":"csr-x","uid":"u"},"status":{}}"#)
            }
            ("GET", Some("csr-x")) if is_bootstrap && seen.number == 1 => {
                ok(r#"{"metadata":{"name":"csr-x","uid":"u"},"status":{}}"#)
            }
            ("GET", Some("csr-x")) if is_bootstrap => {
                let request = asked["spec"]["request"].as_str().expect("request");
                let request = STANDARD.decode(request).expect("base64");
                let request = String::from_utf8(request).expect("PEM");
                let signed = STANDARD.encode(signer.sign_request(&request, NOW));
                let condition = r#"{"type":"Approved","status":"True"}"#;
                ok(&format!(
                    r#"{{"metadata":{{"name":"csr-x","uid":"u"}},"status":{{"certificate":"{signed}","conditions":[{condition}]}}}}"#
                ))
            }
            ("GET", Some("a")) if seen.peer.is_some() => {
                assert_eq!(asked["spec"]["signerName"], bootstrap::CLIENT_SIGNER);
                let usages = serde_json::json!(["digital signature", "client auth"]);
                assert_eq!(asked["spec"]["usages"], usages);
                assert_eq!(asked["metadata"]["generateName"], "csr-");
                assert!(asked["spec"]["expirationSeconds"].is_null());
                ok("{}")
            }
            _ => say(403, "", b""),
        }
    });
    let scratch = TestDir::new("kube");
    let trust = format!("certificate-authority-data: {}", STANDARD.encode(&ca.pem));
    let first = kubeconfig(&server.url(), &trust, "token: ab.cd", &[]);
    let store = store::CertificateStore::client(&scratch.join("pki"));
    store.recover().expect("directory");
    let path = scratch.join("kubelet.conf");
    bootstrap::write_kubeconfig(&first, &path, &store.current_path()).expect("kubeconfig");
    let own = Kubeconfig::load(&path, &[]).expect("kubeconfig");
    let why = bootstrap::client_certificate(&own).expect_err("not yet");
    let why = error_chain(&why);
    assert!(why.starts_with("cannot read "), "{why}");

    let api = api_of(first, quick());
    let subject = bootstrap::node_subject("a");
    let requested = bootstrap::post_certificate_request(&api, bootstrap::CLIENT_SIGNER, &subject)
        .expect("request");
    let csr = bootstrap::read_certificate_request(&api, &requested).expect("CSR");
    assert_eq!(csr.status.certificate, "");
    let csr = bootstrap::read_certificate_request(&api, &requested).expect("CSR");
    assert_eq!(csr.status.conditions[0].kind, "Approved");
    let (chain, key) = requested
        .checked_pair(&csr.status.certificate)
        .expect("pair");
    store
        .store_pair(&chain, key, clock::wall_now())
        .expect("store");

    let chain = bootstrap::client_certificate(&own)
        .expect("read")
        .expect("pair");
    assert_eq!(chain[0].common_name, "system:node:a");
    api_of(own, quick())
        .read_node("a")
        .expect("known by its certificate");
    // What is for another key is of no use.
    let other = bootstrap::post_certificate_request(&api, bootstrap::CLIENT_SIGNER, &subject)
        .expect("request");
    assert!(other.checked_pair(&csr.status.certificate).is_err());
    for text in ["", "?", "eA=="] {
        assert!(other.checked_pair(text).is_err(), "{text}");
    }
}

#[test]
fn through_a_proxy() {
    // CONF-20: `proxy-url`; the tunnel ends at the server itself.
    let asked = Arc::new(Mutex::new(String::new()));
    let told = Arc::clone(&asked);
    let proxy = Server::plain(move |seen| {
        *told.lock().expect("lock") = format!("{} {}", seen.method, seen.path);
        say(403, "", b"")
    });
    let cluster = format!(
        "insecure-skip-tls-verify: true, proxy-url: '{}'",
        proxy.url()
    );
    let api = api_of(
        kubeconfig("https://api.example:6443", &cluster, "", &[]),
        quick(),
    );
    let error = api.read_config_map("a", "b").expect_err("refused");
    assert!(
        matches!(error, KubeError::Unreachable { sent: false, .. }),
        "{error}"
    );
    assert_eq!(*asked.lock().expect("lock"), "CONNECT api.example:6443");
}

#[test]
fn nothing_is_touched_before_the_first_request() {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let server = Server::plain(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        ok("{}")
    });
    // Neither the CA nor the token is there.
    let user = "tokenFile: /none";
    let api = api_of(
        kubeconfig(&server.url(), "certificate-authority: /none", user, &[]),
        quick(),
    );
    drop(api);
    assert_eq!(count.load(Ordering::SeqCst), 0);
}
