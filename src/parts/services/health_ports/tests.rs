//! The server of health check ports over real sockets and a clock that stands.

use alloc::rc::Rc;
use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
};

use nix::sched::{CloneFlags, unshare};
use smol::{
    LocalExecutor,
    future::{block_on, or, yield_now},
};

use super::*;
use crate::{
    agent::tests::world::{Hands, TestClock},
    api::MonoTime,
    sys::{clock::mono_now, namespaces::set_sysctl},
};

/// Time for what the kernel does, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Bench {
    server: Rc<HealthPortServer>,
    hands: Rc<Hands>,
    is_eligible: Rc<Cell<bool>>,
    executor: Rc<LocalExecutor<'static>>,
}

fn bench(healthz: SocketAddr) -> Bench {
    let hands = Rc::<Hands>::default();
    let clock: Rc<dyn Clock> = Rc::new(TestClock(Rc::clone(&hands)));
    let executor = Rc::<LocalExecutor<'static>>::default();
    let is_eligible = Rc::new(Cell::new(true));
    let eligible = Rc::clone(&is_eligible);
    let board = Rc::<ServicesBoard>::default();
    board.health.borrow_mut().is_written = true;
    board.set_healthz(Some(healthz));
    let server = Rc::new(HealthPortServer {
        board,
        recorder: Rc::new(EventRecorder::new(Rc::clone(&clock), "n1".into())),
        complaints: Rc::new(Complaints::new(Rc::clone(&clock))),
        clock,
        spawner: TaskSpawner::new(&executor),
        is_eligible: Box::new(move || eligible.get()),
        open: Cell::default(),
    });
    Bench {
        server,
        hands,
        is_eligible,
        executor,
    }
}

/// A port that is taken as long as the listener lives.
fn taken_port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Asks over the connection of an answered port.
fn ask(bench: &Bench, (listener, address): &(TcpListener, SocketAddr), path: &str) -> String {
    let mut client = TcpStream::connect(address).expect("connected");
    write!(client, "GET {path} HTTP/1.1\r\nHost: n1\r\n\r\n").expect("sent");
    let (stream, _) = listener.accept().expect("accepted");
    block_on(bench.server.answer_connection(*address, stream)).expect("answered");
    let _ = client.shutdown(Shutdown::Write);
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn the_node_is_unhealthy_once_a_change_has_waited_too_long() {
    // PROX-19
    let port = taken_port();
    let bench = bench(port.1);
    let board = &bench.server.board;
    let status = |path: &str| {
        let answer = ask(&bench, &port, path);
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let both = || [status("/healthz"), status("/livez?verbose")];
    assert_eq!(both(), ["200", "200"]);
    assert_eq!(status("/"), "404");
    board.failing_since.set(Some(MonoTime::default()));
    bench.hands.set(MonoTime::default() + LATE);
    assert_eq!(both(), ["200", "200"]);
    bench
        .hands
        .set(MonoTime::default() + LATE + Duration::from_millis(1));
    assert_eq!(both(), ["503", "503"]);
    board.failing_since.set(None);
    bench.is_eligible.set(false);
    assert_eq!(both(), ["503", "200"]);
    let answer = ask(&bench, &port, "/healthz");
    assert!(
        answer.contains("\r\nX-Content-Type-Options: nosniff\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with(",\"nodeEligible\":false}"), "{answer}");
    // Nothing was written yet.
    board.health.borrow_mut().is_written = false;
    assert_eq!(both(), ["503", "503"]);
}

#[test]
fn a_port_that_is_taken_is_told_of_and_tried_again() {
    // PROX-18 PROX-19
    let (listener, address) = taken_port();
    let bench = bench(address);
    let board = &bench.server.board;
    let port = HealthPort {
        namespace: "shop".into(),
        name: "web".into(),
        endpoints: 1,
    };
    let (of_service, service_address) = taken_port();
    board
        .health_ports
        .borrow_mut()
        .insert(service_address.port(), port);
    let end = mono_now() + PATIENCE;
    let test = async {
        while bench.hands.next_alarm().is_none() {
            yield_now().await;
        }
        // The port of the node is only complained about.
        let events = bench.server.recorder.newest_events(None, 10);
        let reasons: Vec<String> = events.into_iter().map(|it| it.reason).collect();
        assert_eq!(reasons, ["FailedToStartServiceHealthcheck"]);
        drop((listener, of_service));
        bench.hands.set(MonoTime::default() + RETRY);
        for address in [address, service_address] {
            let mut stream = loop {
                match Async::<TcpStream>::connect(address).await {
                    Ok(stream) => break stream,
                    Err(e) => assert!(mono_now() < end, "{address}: {e}"),
                }
                yield_now().await;
            };
            let request = b"GET /healthz HTTP/1.1\r\n\r\n";
            stream.write_all(request).await.expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            let is_of_service = address == service_address;
            assert_eq!(answer.contains("localEndpoints"), is_of_service, "{answer}");
        }
        // Whoever keeps Services instead can have the port.
        board.set_healthz(None);
        while TcpListener::bind(address).is_err() {
            assert!(mono_now() < end, "the port stays taken");
            yield_now().await;
        }
    };
    let serve = Rc::clone(&bench.server).serve_health_ports();
    block_on(bench.executor.run(or(serve, test)));
}

#[test]
fn all_addresses_are_those_of_both_families() {
    // PROX-19
    if !nix::unistd::geteuid().is_root() {
        skipped!("health check ports of both families: namespaces need root");
        return;
    }
    let ran = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network of its own");
        // Without IPv6 there is nothing to tell apart.
        let _ = set_sysctl("net/ipv6/bindv6only", "1");
        let listener = listen("0.0.0.0:0".parse().expect("an address")).expect("a port");
        let is_of_one = socket::getsockopt(&listener, sockopt::Ipv6V6Only);
        assert!(!is_of_one.unwrap_or_default());
    });
    ran.join().expect("answered");
}
