//! Translation of a runtime's answers for the agent: lists, statuses, images (CRI-50 to CRI-61, CRI-70). No answer is
//! trusted: an entry that is no sandbox or container is left out of a list, and is an error in the answer about a
//! single one.

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;
use std::path::PathBuf;

use super::wire;
use crate::{
    api::{
        ContainerId, PodUid, SandboxId, WallTime,
        cri::{
            ANNOTATION_HASH, ANNOTATION_RESTART_COUNT, ContainerItem, ContainerState,
            ContainerStatus, IdMap, LABEL_CONTAINER_NAME, LABEL_POD_NAME, LABEL_POD_NAMESPACE,
            LABEL_POD_UID, MountStatus, NamespaceMode, NamespaceOptions, PodItem, SandboxItem,
            SandboxState, SandboxStatus, StoredImage, stop_signal_of_number,
        },
        order::OrderExt as _,
    },
    runtime::RuntimeError,
};

/// Most sandboxes and containers of a list: several times as many as a node can hold. A longer list is an error
/// (CRI-98).
const MAX_SANDBOXES: usize = 4096;
const MAX_CONTAINERS: usize = 32_768;

/// Error for an answer that a runtime must not give.
pub(super) fn nonsense_answer(what: &str) -> RuntimeError {
    RuntimeError::Failed(format!("the runtime answers nonsense: {what}"))
}

/// All pods of two lists, sorted by UID.
pub(super) fn group_pods(
    sandboxes: Vec<wire::PodSandbox>,
    containers: Vec<wire::ContainerMessage>,
) -> Result<Vec<PodItem>, RuntimeError> {
    for (what, has, limit) in [
        ("sandboxes", sandboxes.len(), MAX_SANDBOXES),
        ("containers", containers.len(), MAX_CONTAINERS),
    ] {
        if has > limit {
            let text = format!("the runtime lists {has} {what}, more than {limit}: remove some");
            return Err(RuntimeError::Failed(text));
        }
    }
    let mut pods: BTreeMap<PodUid, PodItem> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for sandbox in sandboxes {
        let Some(metadata) = sandbox.metadata.filter(|m| !m.uid.is_empty()) else {
            log::debug!("sandbox {:?} is of no pod", sandbox.id);
            continue;
        };
        if sandbox.id.is_empty() || !seen.insert(sandbox.id.clone()) {
            log::debug!(
                "a sandbox of pod {} is listed twice, or has no id",
                metadata.uid
            );
            continue;
        }
        let uid = PodUid::new(metadata.uid);
        let pod = pods.entry(uid.clone()).or_default();
        pod.uid = uid;
        pod.name = metadata.name;
        pod.namespace = metadata.namespace;
        pod.sandboxes.push(SandboxItem {
            id: SandboxId::new(sandbox.id),
            attempt: metadata.attempt,
            state: sandbox_state(sandbox.state),
            created_at: WallTime(sandbox.created_at),
        });
    }
    seen.clear();
    for container in containers {
        let label = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
        let uid = label(LABEL_POD_UID);
        let is_whole = !uid.is_empty()
            && !container.id.is_empty()
            && container.metadata.is_some()
            && container.image.is_some();
        if !is_whole || !seen.insert(container.id.clone()) {
            log::debug!("container {:?} is of no pod, or listed twice", container.id);
            continue;
        }
        let uid = PodUid::new(uid);
        let pod = pods.entry(uid.clone()).or_default();
        if pod.uid.is_empty() {
            pod.uid = uid;
            pod.name = label(LABEL_POD_NAME);
            pod.namespace = label(LABEL_POD_NAMESPACE);
        }
        pod.containers.push(ContainerItem {
            name: label(LABEL_CONTAINER_NAME),
            attempt: restart_count(&container.annotations, container.metadata.as_ref()),
            id: ContainerId::new(container.id),
            sandbox: SandboxId::new(container.sandbox),
            state: container_state(container.state),
            created_at: WallTime(container.created_at),
        });
    }
    Ok(pods.into_values().collect())
}

fn sandbox_state(state: i32) -> SandboxState {
    match state {
        wire::SANDBOX_READY => SandboxState::Ready,
        _ => SandboxState::NotReady,
    }
}

fn container_state(state: i32) -> ContainerState {
    match state {
        wire::CONTAINER_CREATED => ContainerState::Created,
        wire::CONTAINER_RUNNING => ContainerState::Running,
        wire::CONTAINER_EXITED => ContainerState::Exited,
        _ => ContainerState::Unknown,
    }
}

fn restart_count(annotations: &wire::TextMap, metadata: Option<&wire::ContainerMetadata>) -> u32 {
    let written = annotations.get(ANNOTATION_RESTART_COUNT);
    let attempt = || metadata.map_or(0, |metadata| metadata.attempt);
    written.and_then(|n| n.parse().ok()).unwrap_or_else(attempt)
}

/// A sandbox that was asked for by this id.
pub(super) fn read_sandbox_status(
    asked: &str,
    answer: wire::PodSandboxStatusResponse,
) -> Result<SandboxStatus, RuntimeError> {
    let status = answer
        .status
        .ok_or_else(|| nonsense_answer("no status of a sandbox"))?;
    let metadata = status.metadata.unwrap_or_default();
    let is_whole = status.id == asked
        && !metadata.name.is_empty()
        && !metadata.namespace.is_empty()
        && !metadata.uid.is_empty()
        && status.created_at != 0;
    if !is_whole {
        return Err(nonsense_answer("half a status of a sandbox, or another's"));
    }
    let options = status.linux.unwrap_or_default().namespaces;
    let options = options.unwrap_or_default().options.unwrap_or_default();
    let state = sandbox_state(status.state);
    Ok(SandboxStatus {
        id: SandboxId::new(status.id),
        uid: PodUid::new(metadata.uid),
        name: metadata.name,
        namespace: metadata.namespace,
        attempt: metadata.attempt,
        state,
        created_at: WallTime(status.created_at),
        ips: match state {
            SandboxState::Ready => read_sandbox_addresses(status.network),
            SandboxState::NotReady => Vec::new(),
        },
        namespaces: NamespaceOptions {
            network: namespace_mode(options.network),
            ipc: namespace_mode(options.ipc),
            pid: namespace_mode(options.pid),
            users: options.userns.and_then(|users| read_user_ids(&users)),
        },
        runtime_handler: status.runtime_handler,
    })
}

/// Ids of the sandbox's user namespace. `None`: it has the machine's, or others than an agent asks for.
fn read_user_ids(users: &wire::UserNamespace) -> Option<IdMap> {
    let ids = |list: &[wire::IdMappingMessage]| match list {
        [one] if one.container_id == 0 => Some(IdMap {
            host_id: one.host_id,
            length: one.length,
        }),
        _ => None,
    };
    ids(&users.uids).filter(|found| ids(&users.gids) == Some(*found))
}

const fn namespace_mode(mode: i32) -> NamespaceMode {
    match mode {
        1 => NamespaceMode::Container,
        2 => NamespaceMode::Node,
        3 => NamespaceMode::Target,
        _ => NamespaceMode::Pod,
    }
}

/// Reads the addresses of a sandbox. If one of them cannot be read, there are none (CRI-59).
fn read_sandbox_addresses(network: Option<wire::PodSandboxNetworkStatus>) -> Vec<IpAddr> {
    let Some(network) = network.filter(|network| !network.ip.is_empty()) else {
        return Vec::new();
    };
    let more = network.additional_ips.into_iter().map(|ip| ip.word);
    let all = core::iter::once(network.ip).chain(more);
    let read: Result<Vec<IpAddr>, _> = all.map(|ip| ip.parse()).collect();
    read.unwrap_or_default()
}

/// A container that was asked for by this id; its last words are still to be read.
pub(super) fn read_container_status(
    asked: &str,
    sandbox: SandboxId,
    status: &wire::ContainerStatusMessage,
) -> Result<ContainerStatus, RuntimeError> {
    let name = status.labels.get(LABEL_CONTAINER_NAME);
    let image = status
        .image
        .as_ref()
        .filter(|image| !image.image.is_empty());
    let metadata = status.metadata.as_ref().filter(|m| !m.name.is_empty());
    let (Some(metadata), Some(image)) = (metadata, image) else {
        return Err(nonsense_answer("half a status of a container"));
    };
    if status.id != asked || status.created_at == 0 || status.image_ref.is_empty() {
        return Err(nonsense_answer(
            "half a status of a container, or another's",
        ));
    }
    let state = container_state(status.state);
    let has_ended = state == ContainerState::Exited;
    let at = |nanos: i64, is_told: bool| (is_told && nanos > 0).then_some(WallTime(nanos));
    let hash = status.annotations.get(ANNOTATION_HASH);
    let user = status.user.clone().and_then(|user| user.linux);
    let images = status.mounts.iter().filter_map(|mount| mount.image.clone());
    let mut volume_images: Vec<String> = images.map(|spec| spec.image).collect();
    volume_images.stable_sort();
    volume_images.dedup();
    let mounts = status.mounts.iter();
    let mounts = mounts.filter(|mount| mount.recursive_read_only || mount.image.is_some());
    let mounts = mounts.map(|mount| MountStatus {
        container_path: mount.container_path.clone(),
        recursive_read_only: mount.recursive_read_only,
        image: mount
            .image
            .clone()
            .map(|image| image.image)
            .unwrap_or_default(),
    });
    let when_ended = |text: &String| match has_ended {
        true => text.clone(),
        false => String::new(),
    };
    Ok(ContainerStatus {
        id: ContainerId::new(asked),
        sandbox,
        name: name.cloned().unwrap_or_default(),
        restart_count: restart_count(&status.annotations, Some(metadata)),
        state,
        created_at: WallTime(status.created_at),
        started_at: at(status.started_at, state != ContainerState::Created),
        finished_at: at(status.finished_at, has_ended),
        exit_code: if has_ended { status.exit_code } else { 0 },
        reason: when_ended(&status.reason),
        message: when_ended(&status.message),
        image: image.image.clone(),
        image_id: status.image_ref.clone(),
        volume_images,
        mounts: mounts.collect(),
        stop_signal: stop_signal_of_number(status.stop_signal).unwrap_or_default(),
        hash: hash
            .and_then(|hash| u64::from_str_radix(hash, 16).ok())
            .unwrap_or_default(),
        user: user.map(|user| (user.uid, user.gid, user.supplemental_groups)),
        pid: 0,
        log_path: status.log_path.clone(),
    })
}

/// Root directories of the agent from which a container mounts: one for each mount with a source below `pods/<uid>`.
pub(super) fn agent_roots(uid: &PodUid, mounts: &[wire::MountMessage]) -> Vec<PathBuf> {
    let of_pod = format!("/pods/{uid}/");
    let paths = mounts.iter().map(|mount| &mount.host_path);
    let roots = paths.filter_map(|path| path.split_once(&of_pod));
    roots.map(|(root, _)| root.into()).collect()
}

/// An image.
pub(super) fn read_image(image: wire::ImageMessage) -> Result<StoredImage, RuntimeError> {
    if image.id.is_empty() || image.size == 0 {
        return Err(nonsense_answer("an image without id or size"));
    }
    let uid = image.uid.map(|uid| uid.value);
    Ok(StoredImage {
        id: image.id,
        repo_tags: image.repo_tags,
        repo_digests: image.repo_digests,
        size_bytes: image.size,
        username: match uid {
            Some(_) => String::new(),
            None => image.username,
        },
        uid,
        pinned: image.pinned,
        stop_signal: String::new(),
    })
}
