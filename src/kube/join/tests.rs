//! Tokens, digests and clocks. Whole exchanges are in `tests/cluster/join.rs`.

use sha2::{Digest as _, Sha256};

use super::{JoinError, k3s, kubeadm};
use crate::api::hex;
use crate::kube::testing::{Authority, NOW, Server, Validity, ok, say};
use crate::net::{ProxyVariables, Url, tls};

const SECRET: &str = "abcdef.0123456789abcdef";

fn token(text: &str) -> k3s::Token {
    k3s::Token::parse(text).expect("a token")
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
fn find(url: &Url, token: k3s::Token) -> Result<Vec<u8>, JoinError> {
    k3s::find(url, token, &ProxyVariables::default()).map(|(_, ca)| ca)
}

#[test]
fn tokens_of_kubeadm() {
    assert!(kubeadm::Token::parse(SECRET).is_ok());
    for bad in [
        "",
        "abcdef",
        "abcdef.0123",
        "ABCDEF.0123456789abcdef",
        "abcdef.0123456789abcdef.",
        "abcde.f0123456789abcdef",
    ] {
        assert!(kubeadm::Token::parse(bad).is_err(), "{bad}");
    }
    let digest = "0Aa".repeat(21) + "0";
    for (pin, good) in [
        (format!("sha256:{digest}"), true),
        (format!("sha256:{digest},sha256:{digest}"), true),
        (digest.clone(), false),
        (format!("sha512:{digest}"), false),
        (format!("sha256:{digest}0"), false),
        (format!("sha256:{digest},"), false),
    ] {
        assert_eq!(kubeadm::Pins::parse([&*pin]).is_ok(), good, "{pin}");
    }
}

#[test]
fn signatures_of_kubeadm() {
    // Made by another program; the payload is left out of each.
    let good =
        "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9.._eGhkhvMETkspJf4jT7mXczIA2_goqGeiH7SB4uUaeg";
    let of_nobody =
        "eyJhbGciOiJub25lIiwia2lkIjoiYWJjZGVmIn0..-6HNiMbPbvb192sEqEFwFXRrG6JinVeR251zpyeMWBE";
    let of_other =
        "eyJhbGciOiJIUzI1NiIsImtpZCI6Im90aGVyMCJ9..RXwENVExX0q9C1iMt99W1Yy9UnISAs8E93ohqcNBWS8";
    let token = kubeadm::Token::parse(SECRET).expect("a token");
    let other = kubeadm::Token::parse("abcdef.0123456789abcdee").expect("a token");
    let payload = b"hello cluster";
    assert!(token.has_signed(good, payload));
    assert!(!token.has_signed(good, b"hello cluste"), "another text");
    assert!(!other.has_signed(good, payload), "another secret");
    for bad in [
        of_nobody,
        of_other,
        "",
        "..",
        "a..b",
        &good[1..],
        &good[..good.len() - 2],
    ] {
        assert!(!token.has_signed(bad, payload), "{bad}");
    }
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
        let token = k3s::Token::parse(&text);
        let token = token.unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(token.names_ca(), names_ca, "{text}");
    }
    for bad in ["", "K10aa::node:x", "a b", "K10::node:x"] {
        assert!(k3s::Token::parse(bad).is_err(), "{bad}");
    }
    assert!(k3s::Token::parse(&format!("K10{digest}::word")).is_err());
    assert!(k3s::Token::parse(&format!("K10{digest}::")).is_err());
}

#[test]
fn only_the_ca_of_the_token_is_trusted() {
    // K3SJ-02
    let (ca, other) = (Authority::new(), Authority::new());
    let whole = |bytes: &[u8]| token(&format!("K10{}::{SECRET}", hex(&Sha256::digest(bytes))));
    let der = |ca: &Authority| tls::certificates(ca.pem.as_bytes()).remove(0).to_vec();
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
        tls::certificates(&found),
        tls::certificates(ca.pem.as_bytes())
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
