//! The protocol of device plugins: a plugin dials the agent's socket and says what it offers; then the agent dials the
//! plugin's. This module does not decide which answers are believed.

mod wire;

use alloc::rc::Rc;
use core::{pin::Pin, time::Duration};
use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _},
        net::UnixStream,
    },
    path::Path,
};

use smol::{Async, LocalExecutor, Task, future::or};

pub(crate) use wire::RegisterRequest;

use super::socket::DeviceSocketListener;
use crate::{
    api::{
        cri::{ContainerDeviceNode, ContainerMount},
        device::PluginAllocation,
        order::OrderExt as _,
    },
    grpc::{
        ConnectionClock,
        client::{self, ClientCall, GrpcClient},
        proto::{self, Limits, Message},
        server::{CallFuture, CallHandler, ServerCall},
        status::{GrpcCode, GrpcStatus},
    },
};

/// Time limit for reaching a plugin, and for its answer about its options.
const DIAL_TIME: Duration = Duration::from_secs(10);
/// Time limit for any other answer of a plugin (DEV-08, DEV-10).
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Longest list, bytes (DEV-03), and limits for reading it.
const MAX_LIST_BYTES: usize = 4 << 20;
const LIST_LIMITS: Limits = Limits {
    depth: 4,
    entries: 16 << 10,
    bytes: 4 << 20,
};
/// Bytes of any other answer, and limits for reading it. They are larger than any answer that is believed: a plugin may
/// prefer all units that it lists.
const MAX_ANSWER_BYTES: usize = 128 << 10;
const ANSWER_LIMITS: Limits = Limits {
    depth: 4,
    entries: 4 << 10,
    bytes: 128 << 10,
};
/// Pause between two lists of a plugin: each is compared with all that is known.
const LIST_PAUSE: Duration = Duration::from_millis(200);
/// Limits of one walk over the paths that a plugin names: nodes, entries of directories, and directories within each
/// other.
const MAX_NODES: usize = 64;
const MAX_ENTRIES: usize = 256;
const MAX_DEPTH: usize = 4;

/// Result of a registration; the plugin is answered with its error.
pub(crate) type RegistrationResult = Pin<Box<dyn Future<Output = Result<(), GrpcStatus>>>>;

/// Takes registrations until it is dropped.
pub(crate) async fn serve_registrations(
    listener: DeviceSocketListener,
    register: Rc<dyn Fn(RegisterRequest) -> RegistrationResult>,
    executor: Rc<LocalExecutor<'static>>,
    time: Rc<dyn ConnectionClock>,
) {
    let handler: CallHandler = Rc::new(move |exchange| -> CallFuture {
        Box::pin(answer_registration(exchange, Rc::clone(&register)))
    });
    listener.serve_calls(handler, executor, time).await;
}

async fn answer_registration(
    mut call: ServerCall,
    register: Rc<dyn Fn(RegisterRequest) -> RegistrationResult>,
) -> Result<(), GrpcStatus> {
    if call.method_path() != "/v1beta1.Registration/Register" {
        let text = format!("{}: device plugins register here", call.method_path());
        return Err(GrpcStatus::new(GrpcCode::UNIMPLEMENTED, text));
    }
    register(call.single_request().await?).await?;
    call.send_answer(&mut wire::DevicePluginEmpty {}).await
}

/// Dials a plugin. The task carries the connection.
pub(super) async fn connect_socket(
    path: &Path,
    executor: &LocalExecutor<'static>,
    time: Rc<dyn ConnectionClock>,
) -> Result<(GrpcClient, Task<()>), GrpcStatus> {
    let failed = |why: &dyn core::fmt::Display| {
        let text = format!("cannot dial {}: {why}", path.display());
        GrpcStatus::new(GrpcCode::UNAVAILABLE, text)
    };
    let connect = async {
        let pipe = Async::<UnixStream>::connect(path).await;
        pipe.map_err(|e| failed(&e))
    };
    let late = async {
        time.sleep(DIAL_TIME).await;
        Err(failed(&"it takes too long"))
    };
    let pipe = or(connect, late).await?;
    let (client, driver) = client::connect(pipe, "localhost", time);
    let driver = executor.spawn(async move {
        driver.await;
    });
    Ok((client, driver))
}

/// Asks a plugin once. Its answer is bounded.
pub(super) async fn call_with_bounds(
    client: &GrpcClient,
    path: &str,
    request: &mut dyn Message,
    answer: &mut dyn Message,
    timeout: Duration,
) -> Result<(), GrpcStatus> {
    let options = client::CallOptions {
        timeout: Some(timeout),
        ..client::CallOptions::default()
    };
    let mut call = client.begin_call(path, &options).await?;
    call.make_lasting(MAX_ANSWER_BYTES);
    call.send_message(&proto::encode(request)).await?;
    call.finish_sending();
    let odd = |text| GrpcStatus::new(GrpcCode::INTERNAL, text);
    let bytes = call.next_message().await?;
    let bytes = bytes.ok_or_else(|| odd("there is no answer".into()))?;
    if call.next_message().await?.is_some() {
        return Err(odd("there is more than one answer".into()));
    }
    let read = proto::decode(answer, &bytes, ANSWER_LIMITS);
    read.map_err(|e| odd(format!("its answer is no message: {e}")))
}

/// A plugin that was dialled.
#[derive(Clone)]
pub(crate) struct PluginConnection {
    client: GrpcClient,
    /// Set if the plugin wants a call before each start of a container.
    pub(crate) pre_start: bool,
    /// Set if the plugin has a preference for the units to choose.
    pub(crate) prefers: bool,
}

impl PluginConnection {
    /// Dials the plugin at `path`, and asks for its options. The task carries the connection.
    pub(crate) async fn dial(
        path: &Path,
        executor: &LocalExecutor<'static>,
        time: Rc<dyn ConnectionClock>,
    ) -> Result<(Self, Task<()>), GrpcStatus> {
        let (client, driver) = connect_socket(path, executor, time).await?;
        let mut plugin = Self {
            client,
            pre_start: false,
            prefers: false,
        };
        let mut options = wire::PluginOptions::default();
        let method = "GetDevicePluginOptions";
        plugin
            .call_plugin(
                method,
                &mut wire::DevicePluginEmpty {},
                &mut options,
                DIAL_TIME,
            )
            .await?;
        plugin.pre_start = options.pre_start_required;
        plugin.prefers = options.preferred_allocation;
        Ok((plugin, driver))
    }

    async fn call_plugin(
        &self,
        method: &str,
        request: &mut dyn Message,
        answer: &mut dyn Message,
        timeout: Duration,
    ) -> Result<(), GrpcStatus> {
        let path = format!("/v1beta1.DevicePlugin/{method}");
        let asked = call_with_bounds(&self.client, &path, request, answer, timeout).await;
        asked.map_err(|e| GrpcStatus::new(e.code, format!("{method}: {}", e.message)))
    }

    /// Subscribes to the plugin's lists of devices. They end when the plugin goes.
    pub(crate) async fn subscribe_device_lists(&self) -> Result<DeviceListStream, GrpcStatus> {
        let path = "/v1beta1.DevicePlugin/ListAndWatch";
        let options = client::CallOptions::default();
        let mut call = self.client.begin_call(path, &options).await?;
        call.make_lasting(MAX_LIST_BYTES);
        call.send_message(&proto::encode(&mut wire::DevicePluginEmpty {}))
            .await?;
        call.finish_sending();
        Ok(DeviceListStream { call, began: false })
    }

    /// Asks for the environment, mounts, nodes, annotations and CDI devices of a container with these units.
    pub(crate) async fn allocate(&self, ids: &[Box<str>]) -> Result<PluginAllocation, GrpcStatus> {
        let mut request = wire::ContainersDeviceIds {
            containers: vec![wire::DeviceIds {
                ids: owned_ids(ids),
            }],
        };
        let mut response = wire::AllocateResponse::default();
        self.call_plugin("Allocate", &mut request, &mut response, ANSWER_TIME)
            .await?;
        let Some(response) = response.containers.into_iter().next() else {
            let text = "Allocate: no containers return in allocation response";
            return Err(GrpcStatus::new(GrpcCode::INTERNAL, text));
        };
        let mounts = response.mounts.into_iter().map(|mount| ContainerMount {
            container_path: mount.container_path,
            host_path: mount.host_path,
            read_only: mount.read_only,
            ..ContainerMount::default()
        });
        let nodes = response
            .devices
            .into_iter()
            .map(|device| ContainerDeviceNode {
                container_path: device.container_path,
                host_path: device.host_path,
                permissions: device.permissions,
                ..ContainerDeviceNode::default()
            });
        let names = response.cdi_devices.into_iter();
        Ok(PluginAllocation {
            env: response.envs,
            mounts: mounts.collect(),
            nodes: nodes.collect(),
            annotations: response.annotations,
            cdi_devices: names.map(|device| device.name).collect(),
        })
    }

    /// Asks which units the plugin would choose. The answer is not checked here.
    pub(crate) async fn ask_preferred_allocation(
        &self,
        available: &[Box<str>],
        must_include: &[Box<str>],
        size: u32,
    ) -> Result<Vec<String>, GrpcStatus> {
        let mut request = wire::PreferredAllocationRequest {
            containers: vec![wire::ContainerPreferredRequest {
                available: owned_ids(available),
                must_include: owned_ids(must_include),
                size: i32::try_from(size).unwrap_or(i32::MAX),
            }],
        };
        let mut response = wire::ContainersDeviceIds::default();
        let method = "GetPreferredAllocation";
        self.call_plugin(method, &mut request, &mut response, ANSWER_TIME)
            .await?;
        let first = response.containers.into_iter().next().unwrap_or_default();
        Ok(first.ids)
    }

    /// A container that holds these units is about to start.
    pub(crate) async fn pre_start(&self, ids: &[Box<str>]) -> Result<(), GrpcStatus> {
        let mut request = wire::DeviceIds {
            ids: owned_ids(ids),
        };
        let mut answer = wire::DevicePluginEmpty {};
        let method = "PreStartContainer";
        self.call_plugin(method, &mut request, &mut answer, ANSWER_TIME)
            .await
    }
}

fn owned_ids(ids: &[Box<str>]) -> Vec<String> {
    ids.iter().map(|id| String::from(&**id)).collect()
}

/// Lists of a plugin.
pub(crate) struct DeviceListStream {
    call: ClientCall,
    /// Set once a list has come.
    began: bool,
}

impl DeviceListStream {
    /// Returns the next list: ids, and their health. `None` at the end. Waits some time after the last list, so that a
    /// plugin cannot flood the agent.
    pub(crate) async fn next_device_list(
        &mut self,
        time: &dyn ConnectionClock,
    ) -> Result<Option<Vec<(String, String)>>, GrpcStatus> {
        if self.began {
            time.sleep(LIST_PAUSE).await;
        }
        self.began = true;
        let Some(bytes) = self.call.next_message().await? else {
            return Ok(None);
        };
        let mut list = wire::ListAndWatchResponse::default();
        let read = proto::decode(&mut list, &bytes, LIST_LIMITS);
        read.map_err(|e| {
            GrpcStatus::new(GrpcCode::INTERNAL, format!("its list is no message: {e}"))
        })?;
        let all = list.devices.into_iter();
        Ok(Some(all.map(|device| (device.id, device.health)).collect()))
    }
}

/// The nodes that plugins name, with their numbers; of a directory all that are in it. Blocking.
///
/// - Errors: there is none, or there are too many; with the path.
pub(crate) fn find_plugin_nodes(
    named: Vec<ContainerDeviceNode>,
) -> io::Result<Vec<ContainerDeviceNode>> {
    let mut walk = DeviceNodeWalk::default();
    for device in named {
        walk.add(device, 0)?;
    }
    Ok(walk.nodes)
}

#[derive(Default)]
struct DeviceNodeWalk {
    nodes: Vec<ContainerDeviceNode>,
    /// Entries of directories by now.
    entries: usize,
}

impl DeviceNodeWalk {
    fn add(&mut self, device: ContainerDeviceNode, depth: usize) -> io::Result<()> {
        let failed = |e: io::Error| {
            let text = format!("device {}: {e}", device.host_path);
            io::Error::new(e.kind(), text)
        };
        let metadata = fs::metadata(&device.host_path).map_err(failed)?;
        let kind = metadata.file_type();
        if kind.is_dir() && depth < MAX_DEPTH {
            let mut names = self.names(&device.host_path).map_err(failed)?;
            names.stable_sort_by(Ord::cmp);
            for name in names {
                let below = ContainerDeviceNode {
                    host_path: format!("{}/{name}", device.host_path),
                    container_path: format!("{}/{name}", device.container_path),
                    ..device.clone()
                };
                // A link may lead nowhere.
                let Ok(metadata) = fs::metadata(&below.host_path) else {
                    continue;
                };
                let kind = metadata.file_type();
                if kind.is_dir() || kind.is_char_device() || kind.is_block_device() {
                    self.add(below, depth + 1)?;
                }
            }
            return Ok(());
        }
        if !kind.is_char_device() && !kind.is_block_device() {
            return Err(failed(io::Error::other("is no device node")));
        }
        if self.nodes.len() >= MAX_NODES {
            let text = format!("more than {MAX_NODES} nodes");
            return Err(failed(io::Error::other(text)));
        }
        let number = metadata.rdev();
        self.nodes.push(ContainerDeviceNode {
            block: kind.is_block_device(),
            major: libc::major(number),
            minor: libc::minor(number),
            ..device
        });
        Ok(())
    }

    fn names(&mut self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                let text = format!("more than {MAX_ENTRIES} entries in directories");
                return Err(io::Error::other(text));
            }
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_directories() {
        // DEV-09
        let root = crate::testing::unused_path("nodes");
        let of = |name: &str| {
            let device = ContainerDeviceNode {
                host_path: root.join(name).display().to_string(),
                container_path: "/dev/x".into(),
                ..ContainerDeviceNode::default()
            };
            find_plugin_nodes(vec![device])
        };
        let text = |name: &str| {
            let said = of(name).expect_err("wrong").to_string();
            said.replace(&root.display().to_string(), "")
        };
        let link = |path: &str| std::os::unix::fs::symlink("/dev/null", root.join(path));
        fs::create_dir_all(root.join("a/b/c/d/e")).expect("directory");
        link("a/null").expect("link");
        link("a/b/null").expect("link");
        std::os::unix::fs::symlink("/none", root.join("a/none")).expect("link");
        fs::write(root.join("a/file"), "").expect("file");
        assert_eq!(text("a"), "device /a/b/c/d/e: is no device node");
        fs::remove_dir(root.join("a/b/c/d/e")).expect("removed");
        let found = of("a").expect("nodes");
        let paths: Vec<_> = found.iter().map(|node| &*node.container_path).collect();
        assert_eq!(paths, ["/dev/x/b/null", "/dev/x/null"]);
        let number = fs::metadata("/dev/null").expect("node").rdev();
        assert_eq!(
            (found[0].major, found[0].minor),
            (libc::major(number), libc::minor(number))
        );
        assert!(text("none").starts_with("device /none: "));
        assert_eq!(text("a/file"), "device /a/file: is no device node");
        fs::create_dir(root.join("many")).expect("directory");
        for n in 0..=MAX_NODES {
            link(&format!("many/{n:03}")).expect("link");
        }
        assert_eq!(text("many"), "device /many/064: more than 64 nodes");
        // Files count as well.
        fs::create_dir_all(root.join("far/too")).expect("directory");
        for n in 0..MAX_ENTRIES {
            fs::write(root.join(format!("far/too/{n}")), "").expect("file");
        }
        assert_eq!(
            text("far"),
            "device /far/too: more than 256 entries in directories"
        );
        fs::remove_dir_all(root).expect("clean");
    }
}
