//! From a pod's spec to what the runtime is told: facts are gathered here, decisions are `logic::generate`'s.

use alloc::{collections::BTreeMap, rc::Rc};
use core::{fmt::Display, net::IpAddr};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use smol::future::FutureExt as _;

use super::{
    errors::ContainerStartError,
    start::StartPass,
    steps::CallPlan,
    volumes::{MountedVolumes, PodObjects, read_volume_files},
};
use crate::{
    agent::{
        cluster::{self, LoadedObjects},
        node::MachineFacts,
        node_resources::{AllocationError, ContainerAllocation, ResourceGiver},
        pod_store::PodStore,
        recorder::{EventRecorder, EventSeverity},
    },
    api::{
        Container, Pod, PodError, PodUid,
        cri::{
            ContainerConfig, ContainerMount, DEFAULT_HANDLER, DnsConfig, MountedImage,
            SandboxConfig, SandboxStatus, StoredImage,
        },
        order::GatherExt,
        pod::HostAlias,
    },
    config::AgentConfig,
    error::error_chain,
    logic::{
        cgroup::CgroupSettings,
        dns::{self, DnsSettings, MAX_RESOLV_CONF},
        downward::PodPlacement,
        env::{self, EnvInput},
        generate::{self, CONFIG_ERROR, ContainerInput, MountableVolume, NodeContext, SandboxPlan},
        hosts,
        qos::qos_class,
        restart,
        security::SecuritySettings,
    },
    runtime::RuntimeService,
    sys::{file, lane::Lane, open},
    volume::{MountedVolume, SubPath, VolumeError, VolumeErrorCause, Volumes},
};

/// Bytes read of the node's `/etc/hosts`.
const MAX_HOSTS_BYTES: u64 = 1 << 20;
/// Mode of the managed hosts file.
const HOSTS_MODE: u32 = 0o644;

/// Gathers what sandboxes and containers take from the machine and the configuration. The resolver file is read anew
/// for each sandbox.
pub(in crate::agent) fn gather_node_context(
    cfg: &AgentConfig,
    facts: &MachineFacts,
    cgroups: CgroupSettings,
) -> NodeContext {
    NodeContext {
        name: facts.name.clone(),
        ips: facts.host_ips.clone(),
        allocatable: facts.allocatable(),
        cgroups,
        dns: DnsSettings {
            cluster_dns: cfg
                .network
                .cluster_dns
                .iter()
                .map(IpAddr::to_string)
                .collect(),
            cluster_domain: cfg.network.cluster_domain.clone(),
            has_resolv_conf: cfg.network.resolv_conf.is_some(),
            node: Default::default(),
            node_ips: facts.host_ips.clone(),
        },
        security: SecuritySettings {
            seccomp_default: cfg.seccomp_default,
            seccomp_root: cfg.dirs.seccomp_profiles().display().to_string(),
        },
        pod_logs_dir: cfg.dirs.pod_logs.display().to_string(),
    }
}

fn read_bounded(path: &Path, limit: u64) -> io::Result<String> {
    let text = file::read_start(path, limit)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The node's resolver file. Blocking.
fn read_resolver(path: &Path) -> Result<DnsConfig, PodError> {
    let wrong =
        |why: &dyn Display| PodError::Node(format!("resolver file {}: {why}", path.display()));
    let limit = u64::try_from(MAX_RESOLV_CONF)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let text = read_bounded(path, limit).map_err(|e| wrong(&e))?;
    dns::parse_resolv_conf(&text).map_err(|e| wrong(&e))
}

/// Returns a warning about the node's resolver file, if there is one (EVT-35). Blocking.
pub(in crate::agent) fn resolver_warning(path: &Path, cluster_domain: &str) -> Option<String> {
    match read_resolver(path) {
        Ok(node) => dns::search_line_warning(&path.display().to_string(), &node, cluster_domain),
        Err(e) => Some(e.to_string()),
    }
}

/// Makes configurations of sandboxes and containers. Nothing is kept between two of them.
pub(crate) struct ConfigGenerator {
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    pub(in crate::agent) context: Rc<NodeContext>,
    pub(in crate::agent) store: PodStore,
    pub(in crate::agent) disk: Lane,
    pub(in crate::agent) volumes: Volumes,
    pub(in crate::agent) recorder: Rc<EventRecorder>,
    pub(in crate::agent) of_api: Option<Rc<cluster::ObjectStore>>,
    pub(in crate::agent) resources: Option<Rc<dyn ResourceGiver>>,
    pub(in crate::agent) resolv_conf: Option<PathBuf>,
    pub(in crate::agent) pod_logs: PathBuf,
    /// Ids of a pod's user namespace (`userNamespaces.idsPerPod`).
    pub(in crate::agent) ids_per_pod: u32,
    /// Most pods on this node.
    pub(in crate::agent) max_pods: u32,
}

impl ConfigGenerator {
    /// Directory of the pod's logs.
    pub(in crate::agent) fn log_directory(&self, pod: &Pod) -> PathBuf {
        PathBuf::from(generate::log_directory(&self.context.pod_logs_dir, pod))
    }

    /// Configuration of a pod's sandbox. The node's resolver file must be readable, whatever the pod's policy (CFG-60).
    pub(in crate::agent) async fn generate_sandbox_config(
        &self,
        plan: &CallPlan,
        pod: &Pod,
        attempt: u32,
    ) -> Result<SandboxConfig, PodError> {
        let handler = self.find_runtime_handler(pod, plan).await?;
        let made = self.plan_sandbox(plan, pod, attempt, handler, None);
        let made = made.await?;
        for (reason, message) in &made.warnings {
            self.recorder
                .record_pod_event(pod, EventSeverity::Warning, reason, message);
        }
        Ok(made.config)
    }

    /// The handler of the pod's RuntimeClass (CFG-16), for static pods too. Where no apiserver can be asked, the class must
    /// be the name of a handler that the runtime has; one that does not tell its handlers refuses itself (RC-03).
    pub(crate) async fn find_runtime_handler(
        &self,
        pod: &Pod,
        plan: &CallPlan,
    ) -> Result<String, PodError> {
        let class = pod.spec.runtime_class_name.as_deref().unwrap_or_default();
        if class.is_empty() {
            return Ok(DEFAULT_HANDLER.into());
        }
        if let Some(objects) = &self.of_api {
            return objects.runtime_handler(pod, class, &plan.cancel).await;
        }
        let handlers = self.runtime.capabilities().handlers;
        if handlers.is_empty() || handlers.iter().any(|handler| handler.name == class) {
            return Ok(class.into());
        }
        Err(PodError::Node(format!(
            "RuntimeClass {class:?} not found: without an apiserver it must be the name of a runtime handler"
        )))
    }

    /// Plans a sandbox for a known handler, without the warnings. `living`: the one that was made of this plan.
    pub(in crate::agent) async fn plan_sandbox(
        &self,
        plan: &CallPlan,
        pod: &Pod,
        attempt: u32,
        runtime_handler: String,
        living: Option<&SandboxStatus>,
    ) -> Result<SandboxPlan, PodError> {
        let mut node = NodeContext::clone(&self.context);
        node.ips.clone_from(&plan.host_ips);
        node.dns.node_ips.clone_from(&plan.host_ips);
        if let Some(path) = self.resolv_conf.clone() {
            node.dns.node = self.disk.run_job(move || read_resolver(&path)).await?;
        }
        let users = self.find_user_ids(pod, &runtime_handler, living).await?;
        let volume_groups = self.volume_groups(pod, plan).await;
        generate::sandbox_config(
            pod,
            attempt,
            qos_class(pod),
            runtime_handler,
            users,
            &volume_groups,
            &node,
        )
    }

    /// Configuration of a new instance of `container`, with everything on disk that it refers to. `volume_images` are its
    /// volumes that are images.
    pub(in crate::agent) async fn generate_container_config(
        &self,
        pass: &StartPass<'_>,
        container: &Container,
        image: &StoredImage,
        volume_images: BTreeMap<String, MountedImage>,
    ) -> Result<ContainerConfig, ContainerStartError> {
        let StartPass {
            plan,
            pod,
            runtime,
            mounted,
            ..
        } = *pass;
        let refused = |e: PodError| ContainerStartError::new(CONFIG_ERROR, e.to_string());
        let own_ips = if pod.spec.host_network {
            &plan.host_ips
        } else {
            &runtime.ips
        };
        let mut environment = self
            .make_environment(plan, pod, container, own_ips, mounted)
            .await
            .map_err(refused)?;
        let given = match (&self.resources, &plan.held) {
            (Some(resources), Some(held)) => {
                let given = resources.gather_allocation(&plan.uid, held, &container.name);
                let cancelled = async {
                    plan.cancel.wait_for_cancel().await;
                    // Nothing is created then.
                    Ok(ContainerAllocation::default())
                };
                // Who gives it may take its time.
                given.or(cancelled).await
            }
            _ => Ok(ContainerAllocation::default()),
        };
        let given = given.map_err(|e| match e {
            AllocationError::Create(why) => ContainerStartError::new("CreateContainerError", why),
            AllocationError::PreStart(why) => ContainerStartError::new(CONFIG_ERROR, why),
        })?;
        for (name, value) in given.env {
            if environment.get(&name).is_none() {
                environment.set_variable(&name, value).map_err(refused)?;
            }
        }
        let sub_paths = self
            .pin_sub_paths(pass, container, &environment, &volume_images)
            .await
            .map_err(refused)?;
        let files = self.make_instance_files(pass, container, own_ips);
        let files = files.await.map_err(refused)?;
        let mut volumes: BTreeMap<String, MountableVolume> = mounted
            .iter()
            .map(|(name, volume)| {
                let host_path = volume.host_path.display().to_string();
                (
                    name.clone(),
                    MountableVolume {
                        host_path,
                        read_only: volume.read_only,
                        image: None,
                    },
                )
            })
            .gather_items();
        for (name, spec) in volume_images {
            let volume = MountableVolume {
                host_path: String::new(),
                read_only: true,
                image: Some(spec),
            };
            volumes.insert(name, volume);
        }
        let sandbox = pass.sandbox;
        let users = self.find_user_ids(pod, &sandbox.runtime_handler, Some(sandbox));
        let users = users.await.map_err(refused)?;
        let target = runtime
            .newest_instance(&container.target_container_name)
            .map(|c| &c.id);
        let volume_groups = self.volume_groups(pod, plan).await;
        let mut config = generate::container_config(&ContainerInput {
            pod,
            container,
            qos: qos_class(pod),
            restart_count: files.restart_count,
            image,
            env: &environment,
            volumes: &volumes,
            sub_paths: &sub_paths,
            hosts_file: files.hosts.as_deref(),
            termination_log: files.termination_log.as_deref(),
            users,
            target,
            node: &self.context,
            recursive_read_only: self
                .runtime
                .capabilities()
                .supports_recursive_read_only(&pass.sandbox.runtime_handler),
        })
        .map_err(refused)?;
        config.devices = given.nodes;
        config.cdi_devices = given.cdi_devices;
        config
            .mounts
            .extend(given.live.iter().map(|live| ContainerMount {
                host_path: live.host_path.clone(),
                container_path: live.container_path.clone(),
                read_only: true,
                ..ContainerMount::default()
            }));
        config.live_devices = given.live;
        // A volume may lie over one of these.
        config.mounts.splice(0..0, given.mounts);
        for (key, value) in given.annotations {
            config.annotations.entry(key).or_insert(value);
        }
        let groups = &mut config.security.supplemental_groups;
        for group in volume_groups {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        Ok(config)
    }

    /// Makes the environment of a container, with all references looked up.
    pub(crate) async fn make_environment(
        &self,
        plan: &CallPlan,
        pod: &Pod,
        container: &Container,
        own_ips: &[IpAddr],
        mounted: &MountedVolumes,
    ) -> Result<env::EnvVariables, PodError> {
        let of_api = cluster::objects_for_pod(self.of_api.as_ref(), pod);
        let loaded = match of_api {
            Some(objects) => Some(
                objects
                    .load_for_environment(pod, container, &plan.cancel)
                    .await,
            ),
            None => None,
        };
        // A host that stands alone has no services; pods of an apiserver wait for them.
        let services = loaded.as_ref().map(LoadedObjects::services).transpose()?;
        let place = PodPlacement {
            node_name: &self.context.name,
            host_ips: &plan.host_ips,
            pod_ips: own_ips,
        };
        let files = read_volume_files(&self.disk, container, mounted).await;
        let objects = PodObjects {
            objects: &plan.objects,
            files: &files,
            loaded: loaded.as_ref(),
        };
        env::build_environment(&EnvInput {
            pod,
            container,
            objects: &objects,
            services,
            place,
            allocatable: self.context.allocatable,
        })
    }

    /// Groups whose members may use the pod's volumes.
    async fn volume_groups(&self, pod: &Pod, plan: &CallPlan) -> Vec<i64> {
        match cluster::objects_for_pod(self.of_api.as_ref(), pod) {
            Some(objects) => objects.volume_groups(pod, &plan.cancel).await,
            None => Vec::new(),
        }
    }

    async fn pin_sub_paths(
        &self,
        pass: &StartPass<'_>,
        container: &Container,
        environment: &env::EnvVariables,
        volume_images: &BTreeMap<String, MountedImage>,
    ) -> Result<Vec<(usize, String)>, PodError> {
        let mut pinned = Vec::new();
        for (index, path) in generate::resolve_sub_paths(container, environment)? {
            let name = container.volume_mounts[index].name.clone();
            // The runtime knows the image's files, and they do not change.
            if volume_images.contains_key(&name) {
                pinned.push((index, path));
                continue;
            }
            // A volume that is missing is told by what reads the mounts.
            let Some(volume) = pass.mounted.get(&name).cloned() else {
                continue;
            };
            let pin = SubPathPin {
                uid: pass.pod.metadata.uid.clone(),
                name,
                volume,
                container: container.name.clone(),
                index,
                path,
            };
            let path = pin.pin_sub_path(&self.volumes, &self.disk).await;
            let path = path.map_err(|e| PodError::Node(error_chain(&e)))?;
            pinned.push((index, path.display().to_string()));
        }
        Ok(pinned)
    }

    /// Makes what a new instance of the container finds on the host, in one go on the disk lane.
    async fn make_instance_files(
        &self,
        pass: &StartPass<'_>,
        container: &Container,
        ips: &[IpAddr],
    ) -> Result<InstanceFiles, PodError> {
        let (uid, name) = (pass.pod.metadata.uid.clone(), container.name.clone());
        let newest = pass.runtime.newest_instance(&container.name);
        let known_count = newest.map(|newest| restart::next_restart_count(Some(newest), None));
        let hosts = self.managed_hosts(pass.pod, container, ips)?;
        let has_termination_log = generate::termination_path(container).is_some();
        let volumes = self.volumes.clone();
        let (logs, dir) = (self.pod_logs.clone(), self.log_directory(pass.pod));
        let dir = dir.join(&container.name);
        let job = move || {
            let restart_count =
                known_count.unwrap_or_else(|| restart::next_restart_count(None, newest_log(&dir)));
            let hosts = hosts.map(|hosts| hosts.write_hosts_file()).transpose()?;
            let termination_log = if has_termination_log {
                let instance = format!("{restart_count:08x}");
                let made = volumes.make_termination_log(&uid, &name, &instance);
                let path = made.map_err(|e| PodError::Node(format!("termination log: {e}")))?;
                Some(path.display().to_string())
            } else {
                None
            };
            fs::create_dir_all(logs)
                .and_then(|()| open::make_log_dir(&dir.join("log")))
                .map_err(|e| PodError::Node(format!("{}: {e}", dir.display())))?;
            Ok(InstanceFiles {
                restart_count,
                hosts,
                termination_log,
            })
        };
        self.disk.run_job(job).await
    }

    /// The managed hosts file, if the container gets one (CFG-50).
    fn managed_hosts(
        &self,
        pod: &Pod,
        container: &Container,
        ips: &[IpAddr],
    ) -> Result<Option<HostsFile>, PodError> {
        if !hosts::manages_hosts(pod, container, ips) {
            return Ok(None);
        }
        Ok(Some(HostsFile {
            path: self.store.pod_dir(&pod.metadata.uid).join("etc-hosts"),
            host_network: pod.spec.host_network,
            ips: ips.to_vec(),
            names: hosts::pod_names(pod, &self.context.dns.cluster_domain)?,
            aliases: pod.spec.host_aliases.clone(),
        }))
    }
}

/// A `subPath` of a container, to be pinned.
#[derive(Clone)]
struct SubPathPin {
    uid: PodUid,
    /// The volume's name in the pod.
    name: String,
    volume: MountedVolume,
    container: String,
    index: usize,
    path: String,
}

impl SubPathPin {
    async fn pin_sub_path(self, volumes: &Volumes, disk: &Lane) -> Result<PathBuf, VolumeError> {
        let is_own = volumes.owns_volume_data(&self.uid, &self.volume);
        let (pin, volumes) = (self.clone(), volumes.clone());
        let job = move || {
            let sub = SubPath {
                volume: &pin.name,
                container: &pin.container,
                mount_index: pin.index,
                path: &pin.path,
            };
            volumes.pin_sub_path(&pin.uid, &pin.volume, &sub)
        };
        if is_own {
            return disk.run_job(job).await;
        }
        let owner = format!("{}/{}", self.uid, self.container);
        let made = disk.run_host_file_job(&owner, job).await;
        made.unwrap_or_else(|e| {
            Err(VolumeError::SubPath {
                volume: self.name,
                container: self.container,
                cause: VolumeErrorCause::Refused(error_chain(&e)),
            })
        })
    }
}

/// Files on the host for an instance of a container.
struct InstanceFiles {
    /// Restart count of the instance (CFG-06).
    restart_count: u32,
    /// Path of the managed hosts file.
    hosts: Option<String>,
    /// Path of the file for its last words.
    termination_log: Option<String>,
}

/// Highest number among the logs of a container: a reboot neither resets the restart count nor overwrites logs.
fn newest_log(dir: &Path) -> Option<u32> {
    let numbers = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let (number, _) = name.to_str()?.split_once(".log")?;
            number.parse::<u32>().ok()
        });
    numbers.max()
}

/// A managed hosts file to be written.
struct HostsFile {
    path: PathBuf,
    /// Set if it begins with the host's own file.
    host_network: bool,
    ips: Vec<IpAddr>,
    names: hosts::PodNames,
    aliases: Vec<HostAlias>,
}

impl HostsFile {
    /// Writes it. Returns its path.
    fn write_hosts_file(&self) -> Result<String, PodError> {
        let failed = |path: &Path, e| PodError::Node(format!("{}: {e}", path.display()));
        let own = if self.host_network {
            let path = Path::new("/etc/hosts");
            let text = read_bounded(path, MAX_HOSTS_BYTES);
            Some(text.map_err(|e| failed(path, e))?)
        } else {
            None
        };
        let text = hosts::hosts_file(own.as_deref(), &self.ips, &self.names, &self.aliases);
        put_hosts_file(&self.path, &text).map_err(|e| failed(&self.path, e))?;
        Ok(self.path.display().to_string())
    }
}

/// In place: running containers have this very file mounted, and a new one would not reach them.
fn put_hosts_file(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    // Containers may write to it: its length is theirs to choose, what is read of it is not.
    let limit = u64::try_from(text.len())
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    if file::read_start(path, limit).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(HOSTS_MODE))
}

#[cfg(test)]
mod tests {
    use core::{pin::pin, time::Duration};

    use smol::{Timer, future::poll_once};

    use super::*;
    use crate::dead_share::DeadShare;

    #[test]
    fn a_sub_path_that_does_not_answer() {
        // VOL-24 VOL-26
        let top = crate::testing::unused_path("pin");
        let dir = top.join("share");
        // A thread that comes late finds this in the place of the share.
        fs::create_dir_all(&dir).expect("directory");
        fs::write(dir.join("x"), "").expect("file");
        let Some(share) = DeadShare::mount(&dir) else {
            return;
        };
        let volumes = Volumes::new(&top).expect("root");
        let disk = Lane::start("disk").expect("a thread");
        let pin = || {
            let pin = SubPathPin {
                uid: "u".into(),
                name: "v".into(),
                volume: MountedVolume {
                    host_path: dir.clone(),
                    read_only: false,
                    size_limit: None,
                },
                container: "main".into(),
                index: 0,
                path: "x/y".into(),
            };
            async {
                let made = pin.pin_sub_path(&volumes, &disk).await;
                made.expect_err("no answer").to_string()
            }
        };
        smol::block_on(async {
            let mut first = pin!(pin());
            assert!(poll_once(&mut first).await.is_none());
            let late = async {
                Timer::after(Duration::from_secs(10)).await;
                String::from("nothing is said")
            };
            assert_eq!(
                pin().or(late).await,
                "failed to prepare subPath for volumeMount \"v\" of container \"main\": files of the host do not \
                 answer: is the server of a network file system gone?"
            );
            assert_eq!(disk.run_job(|| 1).await, 1, "the lane goes on");
            drop(share);
            let error = first.await;
            assert!(
                error.contains("subPath could not be opened") || error.contains("not a directory"),
                "{error}"
            );
        });
        fs::remove_dir_all(top).expect("clean");
    }
}
