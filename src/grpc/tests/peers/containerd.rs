//! grpc-go on the other side: containerd, with a configuration, root and socket of its own.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    rc::Rc,
    time::Duration,
};

use picolet_grpc::{
    client::{self, CallOptions, GrpcClient},
    proto::{Message, encode, message},
    status::{GrpcCode, GrpcStatus},
};
use smol::{Async, LocalExecutor, Timer};

use super::{Clock, program};

/// Time in which the peer has to start.
const PATIENCE_MS: u32 = 30_000;

message! {
    struct VersionRequest {
        1 version: String,
    }
    struct VersionResponse {
        1 version: String,
        2 runtime_name: String,
        3 runtime_version: String,
        4 runtime_api_version: String,
    }
    struct StatusRequest {
        1 verbose: bool,
    }
    struct StatusResponse {
        1 status: Option<RuntimeStatus>,
        2 info: BTreeMap<String, String>,
    }
    struct RuntimeStatus {
        1 conditions: Vec<Condition>,
    }
    struct Condition {
        1 kind: String,
        2 status: bool,
        3 reason: String,
        4 message: String,
    }
    struct ListContainersRequest {
        1 filter: Option<Filter>,
    }
    struct Filter {
        1 id: String,
        2 state: Option<StateValue>,
        4 labels: BTreeMap<String, String>,
    }
    struct StateValue {
        1 state: i32,
    }
    struct ListContainersResponse {
        1 containers: Vec<StatusRequest>,
    }
    struct StatusOfContainer {
        1 id: String,
    }
    struct Subscribe {
        1 filters: Vec<String>,
    }
    struct EventEnvelope {
        2 namespace: String,
        3 topic: String,
    }
    struct CreateNamespace {
        1 namespace: Option<Namespace>,
    }
    struct Namespace {
        1 name: String,
        2 labels: BTreeMap<String, String>,
    }
    struct Write {
        1 action: i32,
        2 reference: String,
        3 total: i64,
        5 offset: i64,
        6 data: Vec<u8>,
        7 labels: BTreeMap<String, String>,
    }
    struct Written {
        1 action: i32,
        4 offset: i64,
        6 digest: String,
    }
    struct Read {
        1 digest: String,
    }
    struct Piece {
        1 offset: i64,
        2 data: Vec<u8>,
    }
}

const WRITE: i32 = 1;
const COMMIT: i32 = 2;

/// A daemon, ended with its directory.
struct Containerd {
    child: Child,
    dir: PathBuf,
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Containerd {
    fn start(file: &Path) -> Self {
        let dir = std::env::temp_dir().join(format!("picolet-containerd-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("directory");
        let at = dir.display();
        let config = format!(
            "version = 2\nroot = \"{at}/root\"\nstate = \"{at}/state\"\n\
             [grpc]\naddress = \"{at}/sock\"\n[ttrpc]\naddress = \"{at}/ttrpc\"\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{at}/opt\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n"
        );
        fs::write(dir.join("config"), config).expect("configuration");
        let log = fs::File::create(dir.join("log")).expect("log");
        let child = Command::new(file)
            .arg("--config")
            .arg(dir.join("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let child = child.expect("containerd starts");
        Self { child, dir }
    }

    /// Waits until it answers.
    async fn client(&mut self, executor: &LocalExecutor<'_>) -> GrpcClient {
        for _ in 0..PATIENCE_MS / 20 {
            if let Ok(socket) = Async::<UnixStream>::connect(self.dir.join("sock")).await {
                let clock = Rc::new(Clock { speed: 1 });
                let (client, driver) = client::connect(socket, "localhost", clock);
                executor.spawn(driver).detach();
                return client;
            }
            let ended = self.child.try_wait().expect("its state");
            assert!(ended.is_none(), "{}", self.log());
            Timer::after(Duration::from_millis(20)).await;
        }
        panic!("containerd does not listen: {}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

async fn cri<A: Message + Default>(
    client: &GrpcClient,
    method: &str,
    request: &mut dyn Message,
) -> Result<A, GrpcStatus> {
    let options = CallOptions {
        timeout: Some(Duration::from_secs(60)),
        metadata: vec![(b"containerd-namespace".to_vec(), b"test".to_vec())],
        ..CallOptions::default()
    };
    client
        .call_unary(&format!("/{method}"), request, &options)
        .await
}

#[test]
fn our_client_and_containerd() {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let Some(file) = program("containerd/usr/bin/containerd", "containerd").filter(|_| is_root)
    else {
        skipped!("our_client_and_containerd: needs root, and Debian's containerd");
        return;
    };
    let mut containerd = Containerd::start(&file);
    let executor = LocalExecutor::new();
    smol::block_on(executor.run(async {
        let client = containerd.client(&executor).await;
        runtime_service(&client).await;
        events(&client).await;
        content(&client).await;
    }));
}

async fn runtime_service(client: &GrpcClient) {
    let mut request = VersionRequest {
        version: "0.1.0".into(),
    };
    let method = "runtime.v1.RuntimeService/Version";
    let version: VersionResponse = cri(client, method, &mut request).await.expect("a version");
    assert_eq!(version.runtime_name, "containerd");
    assert_eq!(
        (
            version.version.as_str(),
            version.runtime_api_version.as_str()
        ),
        ("0.1.0", "v1")
    );
    let method = "runtime.v1.RuntimeService/ListContainers";
    let labels = (0..100).map(|n| (format!("key{n}"), "v".repeat(300)));
    let mut request = ListContainersRequest {
        filter: Some(Filter {
            state: Some(StateValue { state: 1 }),
            labels: labels.collect(),
            ..Filter::default()
        }),
    };
    for _ in 0..200 {
        let list: ListContainersResponse = cri(client, method, &mut request).await.expect("a list");
        assert!(list.containers.is_empty());
    }
    let method = "runtime.v1.RuntimeService/Status";
    let mut request = StatusRequest { verbose: true };
    let status: StatusResponse = cri(client, method, &mut request).await.expect("a status");
    let conditions = status.status.expect("there").conditions;
    assert!(
        conditions
            .iter()
            .any(|c| c.kind == "RuntimeReady" && c.status),
        "{conditions:?}"
    );
    assert!(status.info["config"].starts_with('{'));
    for (method, code, text) in [
        (
            "runtime.v1.RuntimeService/NoSuchMethod",
            GrpcCode::UNIMPLEMENTED,
            "unknown method NoSuchMethod for service runtime.v1.RuntimeService",
        ),
        ("a.B/C", GrpcCode::UNIMPLEMENTED, "unknown service a.B"),
        (
            "runtime.v1.RuntimeService/ContainerStatus",
            GrpcCode::NOT_FOUND,
            "an error occurred when try to find container \"gone\": not found",
        ),
    ] {
        let mut request = StatusOfContainer { id: "gone".into() };
        let answer = cri::<StatusRequest>(client, method, &mut request).await;
        assert_eq!(answer, Err(GrpcStatus::new(code, text)));
    }
}

/// A stream that goes on while other calls are made; then it is dropped.
async fn events(client: &GrpcClient) {
    let options = CallOptions::default();
    let path = "/containerd.services.events.v1.Events/Subscribe";
    let call = client.call_streaming(path, &mut Subscribe::default(), &options);
    let mut events = call.await.expect("a subscription");
    // Until the subscription is there, nothing is told of what happens.
    for n in 0.. {
        let mut request = CreateNamespace {
            namespace: Some(Namespace {
                name: format!("n{n}"),
                labels: [("a".into(), "b".into())].into(),
            }),
        };
        let method = "containerd.services.namespaces.v1.Namespaces/Create";
        cri::<CreateNamespace>(client, method, &mut request)
            .await
            .expect("created");
        let event = async { Some(events.next_answer::<EventEnvelope>().await) };
        let soon = async {
            Timer::after(Duration::from_millis(100)).await;
            None
        };
        if let Some(event) = smol::future::or(event, soon).await {
            let event = event.expect("well").expect("an event");
            assert_eq!(event.topic, "/namespaces/create");
            return;
        }
        assert!(n < 100, "no event comes");
    }
}

/// A stream both ways, and a large one back.
async fn content(client: &GrpcClient) {
    const PIECE_BYTES: usize = 3 << 20;
    let options = CallOptions {
        metadata: vec![(b"containerd-namespace".to_vec(), b"test".to_vec())],
        ..CallOptions::default()
    };
    let mut all = Vec::new();
    let path = "/containerd.services.content.v1.Content/Write";
    let mut call = client.begin_call(path, &options).await.expect("a call");
    let mut digest = String::new();
    for (n, action) in (0_u8..).zip([WRITE, WRITE, WRITE, WRITE, COMMIT]) {
        let mut write = Write {
            action,
            reference: "a".into(),
            offset: i64::try_from(all.len()).expect("small"),
            data: vec![n; PIECE_BYTES],
            ..Write::default()
        };
        all.extend_from_slice(&write.data);
        call.send_message(&encode(&mut write)).await.expect("sent");
        let written: Written = call.next_answer().await.expect("well").expect("an answer");
        assert_eq!(usize::try_from(written.offset), Ok(all.len()));
        digest = written.digest;
    }
    call.finish_sending();
    // The end is told once more.
    while let Some(written) = call.next_answer::<Written>().await.expect("well") {
        assert_eq!(written.digest, digest);
    }
    assert!(digest.starts_with("sha256:"), "{digest}");
    let path = "/containerd.services.content.v1.Content/Read";
    let call = client.call_streaming(path, &mut Read { digest }, &options);
    let mut call = call.await.expect("a call");
    let mut read = Vec::new();
    while let Some(piece) = call.next_answer::<Piece>().await.expect("well") {
        assert_eq!(usize::try_from(piece.offset), Ok(read.len()));
        read.extend(piece.data);
    }
    assert!(read == all, "{} bytes of {}", read.len(), all.len());
}
