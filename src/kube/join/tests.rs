//! Tokens, digests and clocks. Whole exchanges are in `tests/cluster/join.rs`.

use alloc::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};

use super::{JoinError, k3s};
use crate::api::encode_hex;
use crate::held_port::held_port;
use crate::kube::csr;
use crate::kube::kubeconfig::{KubeconfigMaterial, ServerTrust};
use crate::kube::testing::{Authority, NOW, Server, Validity, ok, say};
use crate::net::{ProxyVariables, Url, tls};

const SECRET: &str = "abcdef.0123456789abcdef";

fn token(text: &str) -> k3s::K3sToken {
    k3s::K3sToken::parse(text).expect("a token")
}

/// A server of that CA that answers `/cacerts` with these bytes.
fn server(ca: &Authority, holds: Validity, headers: &'static str, served: String) -> (Server, Url) {
    let pair = ca.server(&["127.0.0.1"], holds);
    let server = Server::tls(&pair, None, move |seen| {
        assert_eq!(
            seen.header("authorization"),
            "",
            "a stranger is told nothing"
        );
        say(200, headers, served.as_bytes())
    });
    let url = Url::parse(&server.url()).expect("a URL");
    (server, url)
}

/// The CA that a supervisor has proved.
fn find(url: &Url, token: k3s::K3sToken) -> Result<Vec<u8>, JoinError> {
    k3s::find_supervisor(url, token, &ProxyVariables::default()).map(|(_, ca)| ca)
}

#[test]
fn tokens_of_k3s() {
    // K3SJ-01
    let digest = "a".repeat(64);
    for (text, names_ca) in [
        (format!("K10{digest}::node:secret"), true),
        (format!("K10{digest}::server:a:b::c"), true),
        (format!("K10{digest}::{SECRET}"), true),
        (SECRET.to_owned(), false),
        ("any-word".to_owned(), false),
    ] {
        let token = k3s::K3sToken::parse(&text);
        let token = token.unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(token.names_ca(), names_ca, "{text}");
    }
    for bad in ["", "K10aa::node:x", "a b", "K10::node:x"] {
        assert!(k3s::K3sToken::parse(bad).is_err(), "{bad}");
    }
    for bad in ["word", "", "node:"] {
        let text = format!("K10{digest}::{bad}");
        assert!(k3s::K3sToken::parse(&text).is_err(), "{text}");
    }
}

#[test]
fn an_agent_of_k3s_asks_as_the_user_node() {
    // K3SJ-01 K3SJ-03
    let ca = Authority::new();
    let pair = ca.server(&["127.0.0.1"], NOW);
    let pem = ca.pem.clone();
    let [node, other] = ["node:a:b", "node:x"].map(|it| format!("Basic {}", STANDARD.encode(it)));
    let server = Server::tls(&pair, None, move |seen| {
        match (&*seen.path, seen.header("authorization")) {
            ("/cacerts", "") => ok(&pem),
            ("/v1-k3s/config", said) if said == node => ok("{}"),
            ("/v1-k3s/config", said) if said == other => say(401, "", b"not authorized"),
            // What the user `server` gets, and a bootstrap token that has ended.
            _ => say(403, "", b"forbidden"),
        }
    });
    let url = Url::parse(&server.url()).expect("a URL");
    let whole = format!("K10{}::", encode_hex(&Sha256::digest(&ca.pem)));
    for (text, let_in) in [
        (format!("{whole}server:a:b"), true),
        (format!("{whole}node:a:b"), true),
        (format!("{whole}:a:b"), true),
        ("a:b".to_owned(), true),
        (format!("{whole}server:x"), false),
        ("x".to_owned(), false),
        (format!("{whole}{SECRET}"), false),
    ] {
        let found = k3s::find_supervisor(&url, token(&text), &ProxyVariables::default());
        let (supervisor, _) = found.expect("proven");
        match supervisor.read_cluster() {
            Ok(_) => assert!(let_in, "{text}"),
            Err(JoinError::Refused { .. }) => assert!(!let_in, "{text}"),
            Err(other) => panic!("{text}: {other}"),
        }
    }
}

#[test]
fn another_server_renews_when_one_is_silent_or_not_ready() {
    // K3SJ-08
    let ca = Arc::new(Authority::new());
    let pair = ca.server(&["127.0.0.1"], NOW);
    let signer = Arc::clone(&ca);
    let signs = Server::tls(&pair, Some(&ca), move |seen| {
        assert!(seen.peer.is_some() && seen.header("authorization").is_empty());
        assert_eq!(seen.path, "/v1-k3s/client-kubelet.crt");
        let request = csr::encode_pem("CERTIFICATE REQUEST", &seen.body);
        say(200, "", signer.sign_request(&request, NOW).as_bytes())
    });
    let refuses = Server::tls(&pair, Some(&ca), |_| say(403, "", b"another password"));
    let url = |text: &str| Url::parse(text).expect("a URL");
    let silent = url(&format!("https://127.0.0.1:{}", held_port()));
    let (signs, refuses) = (&url(&signs.url()), &url(&refuses.url()));
    let own = ca.client("system:nodes", "system:node:a", NOW);
    let mut config = k3s::apiserver_kubeconfig(
        signs,
        ServerTrust::Ca(KubeconfigMaterial::Inline(ca.pem.clone().into())),
    );
    let inline = |text: &str| KubeconfigMaterial::Inline(text.as_bytes().to_vec());
    config.user.certificate = Some((inline(&own.certificate), inline(&own.key)));
    let node = k3s::K3sNodeIdentity {
        name: "a".into(),
        password: "p".into(),
        ips: Vec::new(),
    };
    let renew = |servers: &[&Url]| {
        let servers: Vec<Url> = servers.iter().copied().cloned().collect();
        let proxies = ProxyVariables::default();
        k3s::renew_certificate(
            &config,
            &servers,
            &proxies,
            &node,
            k3s::CertificatePurpose::Client,
        )
    };
    let (chain, _) = renew(&[&silent, signs]).expect("the second one");
    assert!(chain.contains("BEGIN CERTIFICATE"), "{chain}");
    for status in [429, 500, 503] {
        let sick = Server::tls(&pair, Some(&ca), move |_| say(status, "", b"not ready"));
        let renewed = renew(&[&url(&sick.url()), signs]);
        assert!(renewed.is_ok(), "{status}: {:?}", renewed.err());
        // The error is its answer, not the silence of another one.
        for servers in [&[&url(&sick.url())][..], &[&url(&sick.url()), &silent]] {
            let unready = renew(servers);
            assert!(matches!(&unready, Err(JoinError::Kube(e)) if e.http_status() == Some(status)));
        }
    }
    let refused = renew(&[refuses, signs]);
    assert!(matches!(refused, Err(JoinError::NodePassword { .. })));
    let unreached = renew(&[&silent]);
    assert!(matches!(&unreached, Err(JoinError::Kube(e)) if !e.is_answer()));
    assert!(renew(&[]).is_err());
}

#[test]
fn only_the_ca_of_the_token_is_trusted() {
    // K3SJ-02
    let (ca, other) = (Authority::new(), Authority::new());
    let whole = |bytes: &[u8]| {
        token(&format!(
            "K10{}::{SECRET}",
            encode_hex(&Sha256::digest(bytes))
        ))
    };
    let der = |ca: &Authority| {
        tls::parse_certificates(ca.pem.as_bytes())
            .remove(0)
            .to_vec()
    };
    // One: the bytes as they are served.
    let (_one, url) = server(&ca, NOW, "", ca.pem.clone());
    assert_eq!(
        find(&url, whole(ca.pem.as_bytes())).expect("proven"),
        ca.pem.as_bytes()
    );
    let refused = find(&url, whole(&der(&ca)));
    assert!(matches!(refused, Err(JoinError::OtherCa { .. })));
    // Several: the one that is named, and it alone.
    let both = format!("{}{}", other.pem, ca.pem);
    let (_both, url) = server(&ca, NOW, "", both.clone());
    let found = find(&url, whole(&der(&ca))).expect("proven");
    assert_eq!(
        tls::parse_certificates(&found),
        tls::parse_certificates(ca.pem.as_bytes())
    );
    assert!(matches!(
        find(&url, whole(&der(&other))),
        Err(JoinError::Kube(_))
    ));
    assert!(matches!(
        find(&url, whole(both.as_bytes())),
        Err(JoinError::OtherCa { .. })
    ));
    // None is named: whoever answers.
    assert!(find(&url, token(SECRET)).is_ok());
    let (_none, url) = server(&ca, NOW, "", String::new());
    assert!(matches!(
        find(&url, token(SECRET)),
        Err(JoinError::Wrong { .. })
    ));
}

#[test]
fn a_clock_that_is_wrong_is_named() {
    let ca = Authority::new();
    let ended = (-7200, -3600);
    let then = "date: Tue, 01 Jan 2109 00:00:00 GMT\r\n";
    let (_server, url) = server(&ca, ended, then, ca.pem.clone());
    let said = find(&url, token(SECRET)).expect_err("ended").to_string();
    assert!(
        said.ends_with("Set it: date -u -s '2109-01-01T00:00:00Z'"),
        "{said}"
    );
    // Both have the same time: it is the certificate.
    let (_server, url) = server(&ca, ended, "", ca.pem.clone());
    let said = find(&url, token(SECRET)).expect_err("ended");
    assert!(matches!(said, JoinError::Kube(_)), "{said}");
}

#[test]
fn a_busy_server_is_asked_again() {
    // K3SJ-03
    let ca = Authority::new();
    let pair = ca.server(&["127.0.0.1"], NOW);
    let pem = ca.pem.clone();
    let busy = Server::tls(&pair, None, move |seen| match seen.number {
        0..4 => say(
            if seen.number % 2 == 0 { 429 } else { 503 },
            "retry-after: 0\r\n",
            b"",
        ),
        _ => ok(&pem),
    });
    let url = Url::parse(&busy.url()).expect("a URL");
    find(&url, token(SECRET)).expect("in the end");
    assert_eq!(busy.seen().len(), 6);

    let always = Server::tls(&pair, None, |_| say(429, "retry-after: 0\r\n", b""));
    let url = Url::parse(&always.url()).expect("a URL");
    assert!(find(&url, token(SECRET)).is_err());
    assert_eq!(always.seen().len(), 6, "and no longer");
}

#[test]
fn the_certificate_of_kube_proxy_is_asked_for_with_a_key_of_our_own() {
    // K3SN-02
    let ca = Arc::new(Authority::new());
    let pair = ca.server(&["127.0.0.1"], NOW);
    let own = ca.client("system:nodes", "system:node:a", NOW);
    let proxies = ProxyVariables::default();
    let ask = |server: &Server| {
        let url = Url::parse(&server.url()).expect("a URL");
        let mut config = k3s::apiserver_kubeconfig(
            &url,
            ServerTrust::Ca(KubeconfigMaterial::Inline(ca.pem.clone().into())),
        );
        let inline = |text: &str| KubeconfigMaterial::Inline(text.as_bytes().to_vec());
        config.user.certificate = Some((inline(&own.certificate), inline(&own.key)));
        let node = k3s::K3sNodeIdentity {
            name: "a".into(),
            password: String::new(),
            ips: Vec::new(),
        };
        let purpose = k3s::CertificatePurpose::KubeProxy;
        k3s::renew_certificate(&config, &[url], &proxies, &node, purpose)
    };
    let signer = Arc::clone(&ca);
    let signs = Server::tls(&pair, Some(&ca), move |seen| {
        assert_eq!(
            (&*seen.method, &*seen.path),
            ("POST", "/v1-k3s/client-kube-proxy.crt")
        );
        // Neither name nor password of the node is sent.
        for header in [
            "k3s-node-name",
            "k3s-node-password",
            "k3s-node-ip",
            "authorization",
        ] {
            assert_eq!(seen.header(header), "", "{header}");
        }
        let request = csr::encode_pem("CERTIFICATE REQUEST", &seen.body);
        say(200, "", signer.sign_request(&request, NOW).as_bytes())
    });
    let (chain, key) = ask(&signs).expect("a certificate");
    assert!(chain.contains("BEGIN CERTIFICATE") && key.contains("PRIVATE KEY"));
    // A key that others have too, and the certificate of somebody else, are none.
    let (certificate, shared) = (own.certificate.clone(), own.key.clone());
    let shares = Server::tls(&pair, Some(&ca), move |_| {
        say(200, "", format!("{certificate}{shared}").as_bytes())
    });
    assert!(matches!(ask(&shares), Err(JoinError::Wrong { .. })));
    let other = own.certificate.clone();
    let lies = Server::tls(&pair, Some(&ca), move |_| say(200, "", other.as_bytes()));
    assert!(matches!(ask(&lies), Err(JoinError::Wrong { .. })));
    // A refusal is not about the password.
    let refuses = Server::tls(&pair, Some(&ca), |_| say(403, "", b"forbidden"));
    let refused = ask(&refuses);
    assert!(matches!(&refused, Err(JoinError::Kube(e)) if e.http_status() == Some(403)));
}
