//! Faults, and what is written down.

use std::io;

use super::client::Client;
use super::reads::pod;
use crate::{Fault, Rule, TestServer};

fn start() -> (TestServer, Client) {
    let server = TestServer::builder().start().expect("server");
    let client = Client::admin(&server);
    (server, client)
}

fn create(client: &mut Client, name: &str) -> io::Result<u16> {
    let body = pod(name, "").to_string();
    client
        .try_send(
            "POST",
            "/api/v1/namespaces/default/pods",
            "application/json",
            body.as_bytes(),
        )
        .map(|got| got.code)
}

#[test]
fn a_reset_after_the_write() {
    let (server, mut client) = start();
    server
        .faults()
        .add(Rule::new(Fault::ResetAfter).on("POST", "/pods").times(1));
    assert!(create(&mut client, "after").is_err());
    assert!(
        server.get("pods", "default", "after").is_some(),
        "written, and not told"
    );
    assert_eq!(create(&mut client, "then").expect("answer"), 201);
    assert!(server.wrong().is_empty(), "faults are nobody's mistake");
}

#[test]
fn statuses_and_counts() {
    let (server, mut client) = start();
    let rule = Rule::new(Fault::Status {
        code: 429,
        retry_after_s: Some(7),
    });
    server
        .faults()
        .add(rule.on("GET", "/nodes").skip(1).times(2));
    let uri = "/api/v1/nodes";
    client.get(uri).expect(200);
    let got = client.get(uri);
    assert_eq!(got.header("retry-after"), "7");
    assert_eq!(got.expect(429)["details"]["retryAfterSeconds"], 7);
    let codes: Vec<u16> = (0..2).map(|_| client.get(uri).code).collect();
    assert_eq!(codes, [429, 200]);
}

#[test]
fn half_a_body() {
    let (server, mut client) = start();
    server.faults().add(Rule::new(Fault::HalfBody).times(1));
    let got = client.try_send("GET", "/api/v1/nodes", "", b"");
    assert_eq!(got.expect_err("cut").kind(), io::ErrorKind::UnexpectedEof);
    client.get("/api/v1/nodes").expect(200);
}

#[test]
fn stale_lists() {
    let (server, mut client) = start();
    create(&mut client, "a").expect("created");
    create(&mut client, "b").expect("created");
    server
        .faults()
        .add(Rule::new(Fault::Stale(1)).on("GET", "/pods").times(1));
    let list = client.get("/api/v1/pods").expect(200);
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
}

#[test]
fn watches_that_break_or_lie() {
    let (server, mut client) = start();
    let uri = "/api/v1/pods?watch=1&resourceVersion=1";
    create(&mut client, "a").expect("created");
    create(&mut client, "b").expect("created");
    let id = server.faults().add(Rule::new(Fault::WatchBreak(1)));
    client.watch(uri);
    assert_eq!(client.event().expect("line").expect("event").0, "ADDED");
    assert!(client.event().is_err(), "in the middle of a line");
    server.faults().remove(id);
    let mut client = Client::admin(&server);
    server.faults().add(Rule::new(Fault::WatchDrop));
    client.watch(&format!("{uri}&timeoutSeconds=1"));
    assert_eq!(client.event().expect("end"), None, "nothing was told");
}

#[test]
fn down_and_up_again() {
    let (server, mut client) = start();
    client.get("/api").expect(200);
    server.set_down(true);
    assert!(client.try_send("GET", "/api", "", b"").is_err());
    assert!(client.try_send("GET", "/api", "", b"").is_err(), "refused");
    server.set_down(false);
    client.get("/api").expect(200);
}

#[test]
fn a_skewed_date() {
    let (server, mut client) = start();
    server
        .faults()
        .add(Rule::new(Fault::DateSkew(-86_400 * 20_000)).times(1));
    let date = client.get("/api").header("date").to_owned();
    assert!(date.contains("197"), "{date}");
    assert!(client.get("/api").header("date").contains("20"));
}

#[test]
fn faults_by_chance() {
    let (server, mut client) = start();
    let rule = Rule::new(Fault::Status {
        code: 500,
        retry_after_s: None,
    });
    server.faults().add(rule.one_in(3));
    let codes: Vec<u16> = (0..30).map(|_| client.get("/api").code).collect();
    assert!(codes.contains(&500) && codes.contains(&200));
}

#[test]
fn the_log_is_for_administrators() {
    let (server, mut client) = start();
    client.get("/api/v1/nothing").refusal(404);
    let log = client.get("/_test/audit").expect(200);
    assert_eq!(log[0]["uri"], "/api/v1/nothing");
    assert_eq!(log.as_array().map(Vec::len), Some(1));
    Client::node(&server, "n1").get("/_test/audit").refusal(403);
}

#[test]
fn bytes_are_counted() {
    let (server, mut client) = start();
    let got = client.get("/api/v1/nodes");
    let totals = server.totals();
    let body = u64::try_from(got.body.len()).expect("small");
    assert!(totals.bytes_out > body, "TLS costs");
    client.get("/api/v1/nodes").expect(200);
    assert!(server.totals().bytes_in > totals.bytes_in);
    let entries = server.audit();
    assert_eq!(entries.len(), 2);
    assert_eq!((entries[0].verb.as_str(), entries[0].code), ("list", 200));
}
