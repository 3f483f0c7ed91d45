//! A device plugin, written after upstream's sample: it serves at a socket of its own, and registers at the agent's. With the
//! bad habits of plugins, each on request.

use core::time::Duration;
use std::collections::BTreeMap;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use picolet::api::MonoTime;
use picolet::grpc::client::{self, CallOptions, GrpcClient};
use picolet::grpc::proto::{Message, message};
use picolet::grpc::server::{CallFuture, CallHandler, ServerCall, serve_calls};
use picolet::grpc::status::{GrpcCode, GrpcStatus};
use picolet::grpc::{ConnectionClock, SleepFuture};
use picolet::sys::clock;
use smol::channel::{Receiver, Sender};
use smol::future::or;
use smol::{Async, LocalExecutor};

message! {
    struct Empty {}
}
message! {
    struct Register {
        1 version: String,
        2 endpoint: String,
        3 resource_name: String,
    }
}
message! {
    /// What it says where it is asked what it is.
    pub(crate) struct Info {
        1 kind: String,
        2 name: String,
        3 endpoint: String,
        4 versions: Vec<String>,
    }
}
message! {
    struct RegistrationStatus {
        1 registered: bool,
        2 error: String,
    }
}
message! {
    struct OptionsMessage {
        1 pre_start_required: bool,
        2 preferred: bool,
    }
}
message! {
    struct ListMessage {
        1 devices: Vec<DeviceMessage>,
    }
}
message! {
    struct DeviceMessage {
        1 id: String,
        2 health: String,
    }
}
message! {
    struct Ids {
        1 ids: Vec<String>,
    }
}
message! {
    struct Containers {
        1 containers: Vec<Ids>,
    }
}
message! {
    struct PreferredRequests {
        1 containers: Vec<PreferredRequest>,
    }
}
message! {
    struct PreferredRequest {
        1 available: Vec<String>,
        2 must_include: Vec<String>,
        3 size: i32,
    }
}
message! {
    struct Allocated {
        1 containers: Vec<Gift>,
    }
}
message! {
    /// What a container gets, whatever it holds; `env` has `IDS` beside.
    pub(crate) struct Gift {
        1 env: BTreeMap<String, String>,
        2 mounts: Vec<MountMessage>,
        3 nodes: Vec<NodeMessage>,
        4 annotations: BTreeMap<String, String>,
        5 cdi_devices: Vec<CdiMessage>,
    }
}
message! {
    pub(crate) struct CdiMessage {
        1 name: String,
    }
}
message! {
    pub(crate) struct ContainerDevices {
        1 resource: String,
        2 ids: Vec<String>,
    }
}
message! {
    struct ContainerHolds {
        1 name: String,
        2 devices: Vec<ContainerDevices>,
    }
}
message! {
    struct PodHolds {
        1 name: String,
        2 namespace: String,
        3 containers: Vec<ContainerHolds>,
    }
}
message! {
    struct PodsHold {
        1 pods: Vec<PodHolds>,
    }
}
message! {
    struct OnePod {
        1 pod: Option<PodHolds>,
    }
}
message! {
    struct WhichPod {
        1 name: String,
        2 namespace: String,
    }
}
message! {
    struct AllDevices {
        1 devices: Vec<ContainerDevices>,
    }
}
message! {
    pub(crate) struct MountMessage {
        1 container_path: String,
        2 host_path: String,
        3 read_only: bool,
    }
}
message! {
    pub(crate) struct NodeMessage {
        1 container_path: String,
        2 host_path: String,
        3 permissions: String,
    }
}

/// How it is, and what it does that others do not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Habits {
    pub(crate) units: Vec<(String, bool)>,
    pub(crate) gift: Gift,
    pub(crate) info: Info,
    pub(crate) pre_start: bool,
    /// It prefers the last ones.
    pub(crate) prefers: bool,
    /// Calls of this name are not answered.
    pub(crate) mute: &'static str,
    /// Calls of this name are refused.
    pub(crate) refuses: &'static str,
}

#[derive(Default)]
struct Shared {
    habits: Mutex<Habits>,
    calls: Mutex<Vec<String>>,
    streams: Mutex<Vec<Sender<()>>>,
}

/// See the module. It ends, and its socket goes, when it is dropped.
pub(crate) struct Plugin {
    path: PathBuf,
    shared: Arc<Shared>,
    end: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

struct Clock;

impl ConnectionClock for Clock {
    fn now(&self) -> Duration {
        clock::mono_now() - MonoTime(0)
    }

    fn sleep(&self, time: Duration) -> SleepFuture {
        Box::pin(async move {
            smol::Timer::after(time).await;
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody fell")
}

impl Plugin {
    /// Serves at `path`, a socket beside the agent's.
    pub(crate) fn start(path: &Path, habits: Habits) -> Self {
        let shared = Arc::new(Shared::default());
        *lock(&shared.habits) = habits;
        let listener = UnixListener::bind(path).expect("socket of the plugin");
        let (end, ends) = smol::channel::bounded(1);
        let of_thread = Arc::clone(&shared);
        let thread = thread::spawn(move || run(listener, of_thread, ends));
        Self {
            path: path.to_path_buf(),
            shared,
            end,
            thread: Some(thread),
        }
    }

    /// Registers as kubelets want it.
    pub(crate) fn register(&self, resource: &str) {
        let name = self.path.file_name().expect("name").to_string_lossy();
        let dir = self.path.parent().expect("directory");
        register(dir, "v1beta1", &name, resource).expect("registered");
    }

    /// Takes up other habits; units that differ are listed at once.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Habits)) {
        change(&mut lock(&self.shared.habits));
        for stream in &*lock(&self.shared.streams) {
            let _ = stream.try_send(());
        }
    }

    /// What it was called for: method, and ids.
    pub(crate) fn calls(&self) -> Vec<String> {
        lock(&self.shared.calls).clone()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.end.try_send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn run(listener: UnixListener, shared: Arc<Shared>, ends: Receiver<()>) {
    let executor = LocalExecutor::new();
    let accept = async {
        let listener = Async::new(listener).expect("listener");
        let handler: CallHandler = Rc::new(move |call| -> CallFuture {
            let shared = Arc::clone(&shared);
            Box::pin(async move { answer(call, &shared).await })
        });
        loop {
            let (pipe, _) = listener.accept().await.expect("an agent");
            let serve = serve_calls(pipe, handler.clone(), Rc::new(Clock));
            executor.spawn(serve).detach();
        }
    };
    let end = async {
        let _ = ends.recv().await;
    };
    smol::block_on(executor.run(or(accept, end)));
}

async fn answer(mut call: ServerCall, shared: &Shared) -> Result<(), GrpcStatus> {
    let path = call.method_path().to_owned();
    let method = path.strip_prefix("/v1beta1.DevicePlugin/");
    let method = method.or_else(|| path.strip_prefix("/pluginregistration.Registration/"));
    let method =
        method.ok_or_else(|| GrpcStatus::new(GrpcCode::UNIMPLEMENTED, "another service"))?;
    let habits = lock(&shared.habits).clone();
    let note = |ids: &[String]| {
        let text = format!("{method} {}", ids.join(","));
        lock(&shared.calls).push(text);
    };
    if method == habits.mute {
        note(&[]);
        core::future::pending::<()>().await;
    }
    if method == habits.refuses {
        return Err(GrpcStatus::new(GrpcCode::INTERNAL, "not today"));
    }
    match method {
        "GetInfo" => {
            note(&[]);
            let mut info = habits.info;
            call.send_answer(&mut info).await
        }
        "NotifyRegistrationStatus" => {
            let told: RegistrationStatus = call.single_request().await?;
            note(&[told.registered.to_string(), told.error]);
            call.send_answer(&mut Empty {}).await
        }
        "GetDevicePluginOptions" => {
            let mut options = OptionsMessage {
                pre_start_required: habits.pre_start,
                preferred: habits.prefers,
            };
            call.send_answer(&mut options).await
        }
        "ListAndWatch" => {
            let (sender, changes) = smol::channel::unbounded();
            lock(&shared.streams).push(sender);
            loop {
                let units = lock(&shared.habits).units.clone();
                let unit = |(id, healthy): (String, bool)| DeviceMessage {
                    id,
                    health: if healthy { "Healthy" } else { "Unhealthy" }.into(),
                };
                let devices = units.into_iter().map(unit).collect();
                call.send_answer(&mut ListMessage { devices }).await?;
                let _ = changes.recv().await;
            }
        }
        "GetPreferredAllocation" => {
            let asked: PreferredRequests = call.single_request().await?;
            let asked = asked.containers.into_iter().next().unwrap_or_default();
            note(&asked.available);
            let size = usize::try_from(asked.size).unwrap_or_default();
            let ids = asked.available.into_iter().rev().take(size).collect();
            let containers = vec![Ids { ids }];
            call.send_answer(&mut Containers { containers }).await
        }
        "Allocate" => {
            let asked: Containers = call.single_request().await?;
            let ids = asked.containers.into_iter().flat_map(|c| c.ids);
            let ids: Vec<String> = ids.collect();
            note(&ids);
            let mut gift = habits.gift;
            gift.env.insert("IDS".into(), ids.join(","));
            let containers = vec![gift];
            call.send_answer(&mut Allocated { containers }).await
        }
        "PreStartContainer" => {
            let asked: Ids = call.single_request().await?;
            note(&asked.ids);
            call.send_answer(&mut Empty {}).await
        }
        _ => Err(GrpcStatus::new(GrpcCode::UNIMPLEMENTED, "another method")),
    }
}

/// Registers at the agent that serves in `dir`. The error is what it says.
pub(crate) fn register(
    dir: &Path,
    version: &str,
    endpoint: &str,
    resource: &str,
) -> Result<(), String> {
    let mut request = Register {
        version: version.into(),
        endpoint: endpoint.into(),
        resource_name: resource.into(),
    };
    let path = "/v1beta1.Registration/Register";
    ask::<Empty>(dir, path, &mut request).map(drop)
}

/// Asks the agent that serves in `dir`.
fn ask<A: Message + Default>(
    dir: &Path,
    path: &str,
    request: &mut dyn Message,
) -> Result<A, String> {
    connected(dir, async |client: GrpcClient| {
        let options = CallOptions::default();
        let asked = client.call_unary::<A>(path, request, &options).await;
        asked.map_err(|e| e.message)
    })
}

fn connected<T>(
    dir: &Path,
    work: impl AsyncFnOnce(GrpcClient) -> Result<T, String>,
) -> Result<T, String> {
    let socket = dir.join("kubelet.sock");
    let executor = LocalExecutor::new();
    let work = async {
        let pipe = Async::<UnixStream>::connect(&socket).await;
        let pipe = pipe.map_err(|e| e.to_string())?;
        let (client, driver) = client::connect(pipe, "localhost", Rc::new(Clock));
        executor.spawn(driver).detach();
        work(client).await
    };
    smol::block_on(executor.run(work))
}

/// Asks so often, without a pause, what can be given, until it is refused. The error is how.
pub(crate) fn hurry(dir: &Path, times: usize) -> Result<(), String> {
    connected(dir, async |client: GrpcClient| {
        for _ in 0..times {
            let options = CallOptions::default();
            let path = "/v1.PodResourcesLister/GetAllocatableResources";
            let asked = client.call_unary::<AllDevices>(path, &mut Empty {}, &options);
            asked
                .await
                .map_err(|e| format!("{}: {}", e.code, e.message))?;
        }
        Ok(())
    })
}

fn shown(devices: Vec<ContainerDevices>) -> String {
    let all = devices.into_iter();
    let all = all.map(|d| format!("{}={}", d.resource, d.ids.join("+")));
    all.collect::<Vec<_>>().join(" ")
}

fn lines(pod: PodHolds) -> Vec<String> {
    let PodHolds {
        name,
        namespace,
        containers,
    } = pod;
    let all = containers.into_iter();
    all.map(|c| format!("{namespace}/{name}/{}: {}", c.name, shown(c.devices)))
        .collect()
}

/// What the agent says that pods hold, container by container, sorted.
pub(crate) fn list(dir: &Path) -> Result<Vec<String>, String> {
    let path = "/v1.PodResourcesLister/List";
    let all: PodsHold = ask(dir, path, &mut Empty {})?;
    let mut lines: Vec<String> = all.pods.into_iter().flat_map(lines).collect();
    lines.sort();
    Ok(lines)
}

/// The same of one pod.
pub(crate) fn get(dir: &Path, namespace: &str, name: &str) -> Result<Vec<String>, String> {
    let mut which = WhichPod {
        name: name.into(),
        namespace: namespace.into(),
    };
    let pod: OnePod = ask(dir, "/v1.PodResourcesLister/Get", &mut which)?;
    Ok(pod.pod.map(lines).unwrap_or_default())
}

/// What it says that can be given.
pub(crate) fn allocatable(dir: &Path) -> Result<String, String> {
    let path = "/v1.PodResourcesLister/GetAllocatableResources";
    let all: AllDevices = ask(dir, path, &mut Empty {})?;
    Ok(shown(all.devices))
}
