//! grpc-C on the other side: Python's `grpcio`, over unix sockets as plugins of a kubelet use them.

use std::{
    os::unix::net::UnixListener,
    path::PathBuf,
    process::{Command, Stdio},
    rc::Rc,
    time::Duration,
};

use picolet_grpc::{
    client::{self, CallOptions},
    envelope::MAX_MESSAGE_BYTES,
    server,
    status::GrpcCode,
};
use smol::{
    Async, LocalExecutor, Timer,
    process::{Child, Command as AsyncCommand},
};

use super::{Clock, Text, calls::service, program, text};

/// Time in which the peer has to start.
const PATIENCE_MS: u32 = 30_000;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/peer.py");

/// Python with `grpcio`; says so if it is not there.
fn python(test: &str) -> Option<Command> {
    let mut python = Command::new("python3");
    if let Some(dir) = program("grpcio/grpc/__init__.py", "") {
        python.env("PYTHONPATH", dir.parent()?.parent()?);
    }
    let mut has = Command::new("python3");
    has.args(["-c", "import grpc"]).stderr(Stdio::null());
    has.envs(
        python
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    if has.status().is_ok_and(|status| status.success()) {
        return Some(python);
    }
    skipped!("{test}: needs Python with grpcio");
    None
}

fn start(python: Command, words: &[&str], socket: &PathBuf) -> Child {
    let mut python = AsyncCommand::from(python);
    python
        .arg(SCRIPT)
        .args(words)
        .arg(socket)
        .kill_on_drop(true);
    python.spawn().expect("python starts")
}

fn socket(name: &str) -> PathBuf {
    let socket = std::env::temp_dir().join(format!("picolet-{name}-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&socket);
    socket
}

#[test]
fn their_client_and_our_server() {
    let Some(python) = python("grpcio::their_client_and_our_server") else {
        return;
    };
    let socket = socket("grpc-server");
    let listener = UnixListener::bind(&socket).expect("socket");
    let executor = LocalExecutor::new();
    let accept = async {
        let listener = Async::new(listener).expect("listener");
        let (handler, _) = service();
        loop {
            let (client, _) = listener.accept().await.expect("a client");
            let clock = Rc::new(Clock { speed: 1 });
            let serve = server::serve_calls(client, handler.clone(), clock);
            executor.spawn(serve).detach();
        }
    };
    let ask = async { start(python, &["client"], &socket).status().await };
    let status = smol::block_on(executor.run(smol::future::or(accept, ask)));
    let _ = std::fs::remove_file(&socket);
    assert!(status.expect("its end").success());
}

#[test]
fn our_client_and_their_server() {
    let Some(python) = python("grpcio::our_client_and_their_server") else {
        return;
    };
    let socket = socket("grpc-client");
    let executor = LocalExecutor::new();
    smol::block_on(executor.run(async {
        let _server = start(python, &["server"], &socket);
        let mut tries = 0;
        let pipe = loop {
            if let Ok(pipe) = Async::<std::os::unix::net::UnixStream>::connect(&socket).await {
                break pipe;
            }
            tries += 1;
            assert!(tries < PATIENCE_MS / 20, "python does not listen");
            Timer::after(Duration::from_millis(20)).await;
        };
        let (client, driver) = client::connect(pipe, "localhost", Rc::new(Clock { speed: 1 }));
        executor.spawn(driver).detach();
        let options = CallOptions {
            timeout: Some(Duration::from_secs(60)),
            metadata: vec![(b"x-test".to_vec(), b"value".to_vec())],
            ..CallOptions::default()
        };
        for bytes in [0, 1, 100_000, MAX_MESSAGE_BYTES - 100] {
            let mut asked = text(&"x".repeat(bytes));
            let answer = client.call_unary::<Text>("/test.Echo/Once", &mut asked, &options);
            assert!(answer.await == Ok(asked), "{bytes} bytes");
        }
        let answer = client.call_unary::<Text>("/test.Echo/Refused", &mut text(""), &options);
        let status = answer.await.expect_err("refused");
        assert_eq!(
            (status.code, status.message.as_str()),
            (GrpcCode::NOT_FOUND, "100 % né\n")
        );
        let answer = client
            .call_unary::<Text>("/a.B/C", &mut text(""), &options)
            .await;
        assert_eq!(answer.expect_err("unknown").code, GrpcCode::UNIMPLEMENTED);
        let call = client.call_streaming("/test.Echo/Many", &mut text("a"), &options);
        let mut call = call.await.expect("a call");
        for _ in 0..5000 {
            assert_eq!(call.next_answer().await, Ok(Some(text("a"))));
        }
        assert_eq!(call.next_answer::<Text>().await, Ok(None));
        let short = CallOptions {
            timeout: Some(Duration::from_millis(50)),
            ..CallOptions::default()
        };
        let answer = client.call_unary::<Text>("/test.Echo/Never", &mut text(""), &short);
        assert_eq!(
            answer.await.expect_err("late").code,
            GrpcCode::DEADLINE_EXCEEDED
        );
    }));
    let _ = std::fs::remove_file(&socket);
}
