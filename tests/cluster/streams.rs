//! What kubectl does with containers that run, through the server and the node's own HTTPS port: by SPDY and by WebSocket.
//!
//! Needs a kubectl, of `$K8S_BIN` or on the path, and takes all that it finds; says aloud if there is none and skips.

use core::time::Duration;
use std::env;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;

use picolet_test_apiserver::TestServer;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::containerd::daemon;
use crate::held_port::held_port;
use crate::host::{Host, PATIENCE, able, sh, text, with};
use crate::kubectl::{Kubectl, kubectls};
use crate::pods::{cluster_with, finish, pod, wait_ready};

/// Bytes piped through a container; `PICOLET_STREAM_MIB` says how many MiB else.
const PIPED_MIB: usize = 64;
/// Connections to one port at once.
const CONNECTIONS: usize = 50;

/// Ends a program when it is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn kubectl_talks_to_containers() {
    // SRV-12 SRV-17 STREAM-03 STREAM-05 STREAM-07 STREAM-09 STREAM-12 STREAM-13
    if able() {
        talks(&[], &json!({}));
    }
}

#[test]
fn kubectl_talks_to_containers_of_containerd() {
    // CRI-81
    if let Some(why) = daemon::missing() {
        skipped!("streams of containerd: {why}");
        return;
    }
    let containerd = daemon::Containerd::start();
    let endpoint = format!("unix://{}", containerd.socket().display());
    let image = json!({"image": daemon::IMAGE, "imagePullPolicy": "Never"});
    talks(&["--container-runtime-endpoint", &endpoint], &image);
}

/// With an agent that has these flags, and containers that have these fields.
fn talks(flags: &[&str], fields: &Value) {
    let server = TestServer::builder().start().expect("server");
    let dir = env::temp_dir().join(format!("picolet-streams-{}", server.port()));
    fs::create_dir_all(&dir).expect("dir");
    let (ca, config) = (dir.join("ca.crt"), dir.join("admin"));
    fs::write(&ca, server.ca_pem()).expect("write");
    fs::write(&config, server.admin_kubeconfig().expect("kubeconfig")).expect("write");
    let all = kubectls(&config, "exec, attach, port-forward and cp");
    let ca = ca.display().to_string();
    let (host, server) = cluster_with(server, &[&["--client-ca-file", &ca], flags].concat());
    let serve = "echo hello > /tmp/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp";
    let serve = with(sh("c", serve), fields.clone());
    let talk = with(
        sh("talk", "while read line; do echo heard $line; done"),
        fields.clone(),
    );
    let talk = with(talk, json!({"stdin": true}));
    server
        .create(&pod("p", json!({"containers": [serve, talk]})))
        .expect("pod");
    wait_ready(&server, "p");
    for kubectl in all.iter().flat_map(Kubectl::protocols) {
        commands(&kubectl);
        piped(&kubectl, &host);
        copied(&kubectl, &dir);
        ports(&kubectl);
        attached(&kubectl, if flags.is_empty() { 1 } else { 10 });
        assert_eq!(
            kubectl.ok(&["logs", "p", "-c", "talk", "--tail=1"]),
            "heard something\n"
        );
    }
    let _ = fs::remove_dir_all(&dir);
    finish(host, &server);
}

fn commands(kubectl: &Kubectl) {
    let script = "echo out; echo err >&2; exit 7";
    let output = kubectl.run(&["exec", "p", "-c", "c", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "out\n");
    assert!(
        text(&output.stderr).starts_with("err\n"),
        "{}",
        text(&output.stderr)
    );
    let missing = kubectl.run(&["exec", "p", "-c", "c", "--", "/no/such"]);
    assert!(!missing.status.success());
    assert!(
        text(&missing.stderr).contains("no such file"),
        "{}",
        text(&missing.stderr)
    );
}

/// All that goes in comes out again, and nothing of it stays behind.
fn piped(kubectl: &Kubectl, host: &Host) {
    let mib = env::var_os("PICOLET_STREAM_MIB").and_then(|n| n.to_str()?.parse().ok());
    let mib: usize = mib.unwrap_or(PIPED_MIB);
    let mut command = kubectl.command(&["exec", "-i", "p", "-c", "c", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("kubectl");
    let mut stdin = child.stdin.take().expect("stdin");
    let mut stdout = child.stdout.take().expect("stdout");
    let sender = thread::spawn(move || {
        let mut sum = Sha256::new();
        // Not the same twice: what is lost or doubled shows.
        for number in 0..mib * 16 {
            let mut block: Vec<u8> = number.to_le_bytes().repeat(65_536 / size_of::<usize>());
            block[0] ^= 0x5a;
            sum.update(&block);
            stdin.write_all(&block).expect("write");
        }
        sum.finalize()
    });
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 65_536];
    let mut count = 0;
    loop {
        let n = stdout.read(&mut buffer).expect("read");
        if n == 0 {
            break;
        }
        sum.update(&buffer[..n]);
        count += n;
    }
    assert!(child.wait().expect("kubectl").success());
    assert_eq!(count, mib << 20);
    assert_eq!(sum.finalize(), sender.join().expect("sender"));
    host.until("the commands are gone", |host| {
        let all = host.processes();
        let left: Vec<_> = all
            .iter()
            .filter(|(_, line)| line.contains("exec-wait"))
            .collect();
        (left.is_empty(), format!("{left:?}"))
    });
}

fn copied(kubectl: &Kubectl, dir: &std::path::Path) {
    let (here, back) = (dir.join("here"), dir.join("back"));
    let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&here, &bytes).expect("write");
    let (here, back) = (here.display().to_string(), back.display().to_string());
    kubectl.ok(&["cp", &here, "p:/tmp/there", "-c", "c"]);
    kubectl.ok(&["cp", "p:/tmp/there", &back, "-c", "c"]);
    assert!(fs::read(&back).expect("copy") == bytes);
    fs::remove_file(&back).expect("remove");
}

fn ports(kubectl: &Kubectl) {
    let (local, closed) = (held_port(), held_port());
    let mut command = kubectl.command(&[
        "port-forward",
        "pod/p",
        &format!("{local}:8080"),
        &format!("{closed}:9"),
    ]);
    let _forward = Ended(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("kubectl"),
    );
    let connect = || loop {
        match TcpStream::connect(("127.0.0.1", local)) {
            Ok(stream) => return stream,
            Err(_) => thread::yield_now(),
        }
    };
    drop(connect());
    let ask = |mut stream: TcpStream| {
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("timeout");
        stream
            .write_all(b"GET /index.html HTTP/1.0\r\n\r\n")
            .expect("request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answer");
        assert!(answer.ends_with("hello\n"), "{answer:?}");
    };
    let all: Vec<_> = (0..CONNECTIONS)
        .map(|_| connect())
        .map(|stream| thread::spawn(move || ask(stream)))
        .collect();
    for one in all {
        one.join().expect("answer");
    }
    // A port that nobody listens at is the end of its own connection only. Newer kubectl end with it: it comes last.
    let mut refused = TcpStream::connect(("127.0.0.1", closed)).expect("connect");
    refused
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("timeout");
    let mut nothing = Vec::new();
    // An end or a reset.
    let _ = refused.read_to_end(&mut nothing);
    assert!(nothing.is_empty(), "{}", text(&nothing));
}

/// Attaches to a container that answers each line. containerd may pass the first one on before it listens to the
/// container: then only the log has the answer, and another line is needed.
fn attached(kubectl: &Kubectl, lines: u32) {
    let mut command = kubectl.command(&["attach", "-i", "p", "-c", "talk"]);
    let mut child = Ended(command.stdin(Stdio::piped()).spawn().expect("kubectl"));
    let mut stdin = child.0.stdin.take().expect("stdin");
    let mut stdout = child.0.stdout.take().expect("stdout");
    let expected = b"heard something\n";
    let (told, heard) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        let read = stdout.read_exact(&mut got);
        // Nobody listens any more if the test has failed.
        let _ = told.send(read.map(|()| got));
    });
    let answer = (0..lines).find_map(|_| {
        stdin.write_all(b"something\n").expect("write");
        heard.recv_timeout(PATIENCE / lines).ok()
    });
    let answer = answer.expect("an answer in time").expect("an answer");
    assert_eq!(answer, expected);
    drop(child);
    reader.join().expect("reader");
}
