//! From a pod's spec to what the runtime is told: facts are gathered here, decisions are `logic::generate`'s.

use alloc::collections::BTreeMap;
use core::net::IpAddr;
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::{
    cluster::Loaded,
    ctx::Ctx,
    node::NodeFacts,
    recorder::Severity,
    start::{Pass, StartError},
    sync::chain,
    volumes::PodObjects,
};
use crate::api::order::Gather;
use crate::{
    api::{
        Container, Pod,
        cri::{ContainerConfig, DEFAULT_HANDLER, Image, ImageSpec, SandboxConfig},
    },
    config::Config,
    logic::{
        cgroup::CgroupSettings,
        dns::{self, DnsSettings, MAX_RESOLV_CONF},
        downward::Place,
        env::{self, EnvInput},
        generate::{self, ConfigError, ContainerInput, NodeContext, SandboxPlan, VolumeSource},
        hosts,
        qos::qos_class,
        restart,
        security::SecuritySettings,
    },
    sys::open,
    volume::SubPath,
};

/// Bytes read of the node's `/etc/hosts`.
const MAX_HOSTS_BYTES: u64 = 1 << 20;
/// Mode of the managed hosts file.
const HOSTS_MODE: u32 = 0o644;

/// What of the machine and the configuration shapes sandboxes and containers. The resolver file is read anew for each
/// sandbox.
pub(super) fn node_context(
    cfg: &Config,
    facts: &NodeFacts,
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
        runtime_handlers: BTreeMap::new(),
    }
}

/// Directory of the pod's logs.
pub(super) fn log_directory(ctx: &Ctx, pod: &Pod) -> PathBuf {
    PathBuf::from(generate::log_directory(
        &ctx.node.context().pod_logs_dir,
        pod,
    ))
}

fn read_bounded(path: &Path, limit: u64) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Configuration of a pod's sandbox. The node's resolver file must be readable, whatever the pod's policy (CFG-60).
pub(super) fn sandbox_config(ctx: &Ctx, pod: &Pod, attempt: u32) -> Result<SandboxConfig, String> {
    let plan = sandbox_plan(ctx, pod, attempt)?;
    for (reason, message) in &plan.warnings {
        ctx.pod_event(pod, Severity::Warning, reason, message);
    }
    Ok(plan.config)
}

/// The same without its warnings.
pub(super) fn sandbox_plan(ctx: &Ctx, pod: &Pod, attempt: u32) -> Result<SandboxPlan, String> {
    let mut node = ctx.node.context_now();
    if let Some(path) = &ctx.cfg.network.resolv_conf {
        let limit = u64::try_from(MAX_RESOLV_CONF)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        let text = read_bounded(path, limit)
            .map_err(|e| format!("resolver file {}: {e}", path.display()))?;
        node.dns.node = dns::parse_resolv_conf(&text)
            .map_err(|e| format!("resolver file {}: {e}", path.display()))?;
    }
    generate::sandbox_config(pod, attempt, qos_class(pod), &node)
}

/// Configuration of a new instance of `container`, with everything on disk that it refers to. `volume_images` are its
/// volumes that are images.
pub(super) async fn container_config(
    pass: &Pass<'_>,
    container: &Container,
    image: &Image,
    volume_images: BTreeMap<String, ImageSpec>,
) -> Result<ContainerConfig, StartError> {
    let Pass {
        ctx,
        pod,
        runtime,
        mounted,
        ..
    } = *pass;
    let refused = |e: ConfigError| StartError::new(e.reason(), e.0);
    let config_error = |message: String| refused(ConfigError(message));
    let host_ips = ctx.node.host_ips();
    let own_ips = if pod.spec.host_network {
        &host_ips
    } else {
        &runtime.ips
    };
    let loaded = match ctx.objects_of(pod) {
        Some(objects) => Some(objects.for_environment(pod, container, ctx).await),
        None => None,
    };
    let objects = PodObjects {
        ctx,
        mounted,
        loaded: loaded.as_ref(),
    };
    // A host that stands alone has no services; pods of an apiserver wait for them.
    let services = loaded.as_ref().map(Loaded::services).transpose();
    let services = services.map_err(config_error)?;
    let environment = {
        let place = Place {
            node_name: &ctx.node.name,
            host_ips: &host_ips,
            pod_ips: own_ips,
        };
        let stored = objects.borrow();
        env::environment(&EnvInput {
            pod,
            container,
            objects: &stored,
            services,
            place,
            allocatable: ctx.node.context().allocatable,
        })
        .map_err(config_error)?
    };
    drop(loaded);
    let restart_count = next_restart_count(pass, container);
    let sub_paths = pin_sub_paths(pass, container, &environment, &volume_images)
        .await
        .map_err(refused)?;
    let hosts_file = write_hosts_file(ctx, pod, container, own_ips)
        .await
        .map_err(config_error)?;
    let termination_log = make_termination_log(ctx, pod, container, restart_count)
        .await
        .map_err(config_error)?;
    let mut volumes: BTreeMap<String, VolumeSource> = mounted
        .iter()
        .map(|(name, volume)| {
            let host_path = volume.host_path.display().to_string();
            (
                name.clone(),
                VolumeSource {
                    host_path,
                    read_only: volume.read_only,
                    image: None,
                },
            )
        })
        .gather();
    for (name, spec) in volume_images {
        let volume = VolumeSource {
            host_path: String::new(),
            read_only: true,
            image: Some(spec),
        };
        volumes.insert(name, volume);
    }
    make_log_directory(ctx, pod, container)
        .await
        .map_err(config_error)?;
    let target = runtime
        .newest(&container.target_container_name)
        .map(|c| &c.id);
    let volume_groups = match ctx.objects_of(pod) {
        Some(objects) => objects.volume_groups(pod, ctx).await,
        None => Vec::new(),
    };
    let mut config = generate::container_config(&ContainerInput {
        pod,
        container,
        qos: qos_class(pod),
        restart_count,
        image,
        env: &environment,
        volumes: &volumes,
        sub_paths: &sub_paths,
        hosts_file: hosts_file.as_deref(),
        termination_log: termination_log.as_deref(),
        target,
        node: ctx.node.context(),
        recursive_read_only: ctx
            .runtime
            .capabilities()
            .recursive_read_only_mounts(DEFAULT_HANDLER),
    })
    .map_err(refused)?;
    let groups = &mut config.security.supplemental_groups;
    for group in volume_groups {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    Ok(config)
}

/// Restart count of the next instance (CFG-06): one more than the newest, else one more than the logs on disk tell, so
/// that a reboot neither resets it nor overwrites logs.
fn next_restart_count(pass: &Pass<'_>, container: &Container) -> u32 {
    let newest = pass.runtime.newest(&container.name);
    if newest.is_some() {
        return restart::next_restart_count(newest, None);
    }
    let dir = log_directory(pass.ctx, pass.pod).join(&container.name);
    let numbers = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let (number, _) = name.to_str()?.split_once(".log")?;
            number.parse::<u32>().ok()
        });
    restart::next_restart_count(None, numbers.max())
}

async fn pin_sub_paths(
    pass: &Pass<'_>,
    container: &Container,
    environment: &env::Env,
    volume_images: &BTreeMap<String, ImageSpec>,
) -> Result<BTreeMap<usize, String>, ConfigError> {
    let mut pinned = BTreeMap::new();
    for (index, path) in generate::sub_paths(container, environment)? {
        let name = container.volume_mounts[index].name.clone();
        // The runtime knows the image's files, and they do not change.
        if volume_images.contains_key(&name) {
            pinned.insert(index, path);
            continue;
        }
        // A volume that is missing is told by what reads the mounts.
        let Some(volume) = pass.mounted.get(&name).cloned() else {
            continue;
        };
        let volumes = pass.ctx.volumes.clone();
        let (uid, container_name) = (pass.pod.metadata.uid.clone(), container.name.clone());
        let result = pass.ctx.disk.run(move || {
            let sub = SubPath {
                volume: &name,
                container: &container_name,
                mount_index: index,
                path: &path,
            };
            volumes.sub_path(&uid, &volume, &sub)
        });
        let path = result.await.map_err(|e| ConfigError(chain(&e)))?;
        pinned.insert(index, path.display().to_string());
    }
    Ok(pinned)
}

/// Writes the managed hosts file, if the container gets one (CFG-50).
async fn write_hosts_file(
    ctx: &Ctx,
    pod: &Pod,
    container: &Container,
    ips: &[IpAddr],
) -> Result<Option<String>, String> {
    if !hosts::manages_hosts(pod, container, ips) {
        return Ok(None);
    }
    let names = hosts::pod_names(pod, &ctx.node.context().dns.cluster_domain)?;
    let own = if pod.spec.host_network {
        let path = Path::new("/etc/hosts");
        Some(read_bounded(path, MAX_HOSTS_BYTES).map_err(|e| format!("{}: {e}", path.display()))?)
    } else {
        None
    };
    let text = hosts::hosts_file(own.as_deref(), ips, &names, &pod.spec.host_aliases);
    let path = ctx.store.dir(&pod.metadata.uid).join("etc-hosts");
    let shown = path.display().to_string();
    let written = ctx.disk.run(move || put_hosts_file(&path, &text)).await;
    written.map_err(|e| format!("{shown}: {e}"))?;
    Ok(Some(shown))
}

/// In place: running containers have this very file mounted, and a new one would not reach them.
fn put_hosts_file(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    // Containers may write to it: its length is theirs to choose, what is read of it is not.
    let limit = u64::try_from(text.len())
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let mut old = Vec::new();
    let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut old));
    if read.is_ok() && old == text.as_bytes() {
        return Ok(());
    }
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(HOSTS_MODE))
}

async fn make_termination_log(
    ctx: &Ctx,
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> Result<Option<String>, String> {
    if generate::termination_path(container).is_none() {
        return Ok(None);
    }
    let volumes = ctx.volumes.clone();
    let (uid, name) = (pod.metadata.uid.clone(), container.name.clone());
    let instance = format!("{restart_count:08x}");
    let made = ctx
        .disk
        .run(move || volumes.make_termination_log(&uid, &name, &instance))
        .await;
    made.map(|path| Some(path.display().to_string()))
        .map_err(|e| format!("termination log: {e}"))
}

async fn make_log_directory(ctx: &Ctx, pod: &Pod, container: &Container) -> Result<(), String> {
    let dir = log_directory(ctx, pod).join(&container.name);
    let shown = dir.display().to_string();
    let logs = ctx.cfg.dirs.pod_logs.clone();
    let made = ctx.disk.run(move || {
        fs::create_dir_all(logs)?;
        open::make_log_dir(&dir.join("log"))
    });
    let made = made.await;
    made.map_err(|e| format!("{shown}: {e}"))
}
