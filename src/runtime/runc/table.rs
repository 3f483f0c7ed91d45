//! All sandboxes and instances in memory, kept true by the ends of their processes.
//!
//! Poll and doorbell are one epoll descriptor over the pidfds of all shims: level-triggered, so a missed ring is seen by the
//! next poll, which costs one system call for any number of containers. At rest no file is read.

use core::ops::{Deref, DerefMut};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
};

use async_io::Async;
use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    wait::{Id, WaitPidFlag, waitid},
};

use super::images::BackendImageHold;
use super::record::{self, ContainerRecord, SandboxRecord};
use super::sources::MountSource;
use super::tracers;
use crate::api::order::{GatherExt as _, OrderExt as _};
use crate::api::{
    ContainerId, PodUid, SandboxId,
    cri::{
        ANNOTATION_HASH, ContainerState, ContainerStatus, PodItem, PodRuntimeStatus, SandboxState,
        SandboxStatus, is_stop_signal, stop_signal_name,
    },
};

/// Ends taken from the kernel in one call.
const EVENTS: usize = 32;

/// A sandbox of the table.
#[derive(Debug)]
pub(super) struct SandboxEntry {
    pub(super) status: SandboxStatus,
    /// Place among all sandboxes and instances.
    pub(super) created: record::CreationOrder,
    /// Init of its shared PID namespace.
    pub(super) holder: Option<WatchedProcess>,
}

/// An instance of the table.
#[derive(Debug)]
pub(super) struct ContainerEntry {
    pub(super) uid: PodUid,
    pub(super) status: ContainerStatus,
    /// Place among all sandboxes and instances.
    pub(super) created: record::CreationOrder,
    /// Key of the image in the store: it may not be removed.
    pub(super) image: String,
    /// Holds on this image, and on those of its volumes, for as long as the instance is listed.
    pub(super) holds: Vec<BackendImageHold>,
    pub(super) stop_signal: String,
    /// Kills for want of memory that it had outlived when it was first told to stop.
    pub(super) kills_before_stop: Option<u64>,
    pub(super) cgroup: String,
    /// Set if the container may trace processes of its PID namespace.
    pub(super) traces: bool,
    pub(super) termination_file: String,
    pub(super) termination_fallback: bool,
    /// Set once the termination message was read.
    pub(super) message_read: bool,
    /// Shim of the instance, while it lives.
    pub(super) shim: Option<WatchedProcess>,
    /// The OCI runtime may still know it, or its root file system be mounted.
    pub(super) resident: bool,
    /// A call of the OCI runtime that starts it has not returned yet.
    pub(super) starting: bool,
    /// Paths of the host that it mounts, until it is started.
    pub(super) sources: Vec<MountSource>,
}

/// A process whose end is waited for.
#[derive(Clone, Debug)]
pub(super) struct WatchedProcess {
    pub(super) pidfd: Rc<OwnedFd>,
    token: u64,
}

/// Owner of a process that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProcessOwner {
    Shim(ContainerId),
    Holder(SandboxId),
}

#[derive(Debug)]
struct PidfdEpoll(Epoll);

impl AsFd for PidfdEpoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// A map that counts how often it was opened for changes.
#[derive(Debug)]
pub(super) struct CountedMap<K, V> {
    map: BTreeMap<K, V>,
    changes: u64,
}

impl<K, V> CountedMap<K, V> {
    const fn new() -> Self {
        Self {
            map: BTreeMap::new(),
            changes: 0,
        }
    }
}

impl<K, V> Deref for CountedMap<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl<K, V> DerefMut for CountedMap<K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.changes += 1;
        &mut self.map
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct InstanceTable {
    pub(super) sandboxes: CountedMap<SandboxId, SandboxEntry>,
    pub(super) containers: CountedMap<ContainerId, ContainerEntry>,
    watched: BTreeMap<u64, ProcessOwner>,
    next_token: u64,
    epoll: Rc<Async<PidfdEpoll>>,
}

/// Rings when a watched process ended. Independent of the table, so that it can be awaited while the table is used.
#[derive(Clone, Debug)]
pub(super) struct ProcessDoorbell(Rc<Async<PidfdEpoll>>);

impl ProcessDoorbell {
    /// Resolves when an end is waiting to be taken by [`InstanceTable::take_ended_processes`].
    pub(super) async fn wait_for_ring(&self) {
        if let Err(e) = self.0.readable().await {
            log::warn!("cannot watch the runtime: {e}; the agent only polls it");
            core::future::pending::<()>().await;
        }
    }
}

impl InstanceTable {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self {
            sandboxes: CountedMap::new(),
            containers: CountedMap::new(),
            watched: BTreeMap::new(),
            next_token: 0,
            // The reactor's handle is not read: it only tells when to look.
            epoll: Rc::new(Async::new_nonblocking(PidfdEpoll(epoll))?),
        })
    }

    pub(super) fn doorbell(&self) -> ProcessDoorbell {
        ProcessDoorbell(Rc::clone(&self.epoll))
    }

    /// Starts waiting for the end of the process behind `pidfd`.
    pub(super) fn watch_process(
        &mut self,
        pidfd: OwnedFd,
        who: ProcessOwner,
    ) -> io::Result<WatchedProcess> {
        let token = self.next_token;
        self.next_token += 1;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
        self.epoll.get_ref().0.add(&pidfd, event)?;
        self.watched.insert(token, who);
        Ok(WatchedProcess {
            pidfd: Rc::new(pidfd),
            token,
        })
    }

    /// Stops waiting. Explicit, because a copy of the descriptor may live on in a future.
    pub(super) fn unwatch_process(&mut self, watched: &WatchedProcess) {
        if self.watched.remove(&watched.token).is_some()
            && let Err(e) = self.epoll.get_ref().0.delete(&watched.pidfd)
        {
            log::debug!("epoll: {e}");
        }
    }

    /// Takes the ends that happened since the last call, each once, and stops waiting for them.
    pub(super) fn take_ended_processes(&mut self) -> Vec<ProcessOwner> {
        let mut all = Vec::new();
        loop {
            let mut events = [EpollEvent::empty(); EVENTS];
            let count = match self.epoll.get_ref().0.wait(&mut events, EpollTimeout::ZERO) {
                Ok(count) => count,
                Err(nix::Error::EINTR) => continue,
                Err(e) => {
                    log::error!("epoll: {e}");
                    return all;
                }
            };
            for event in &events[..count] {
                if let Some(who) = self.watched.get(&event.data()).cloned() {
                    let watched = match &who {
                        ProcessOwner::Shim(id) => {
                            self.containers.get_mut(id).and_then(|c| c.shim.take())
                        }
                        ProcessOwner::Holder(id) => {
                            self.sandboxes.get_mut(id).and_then(|s| s.holder.take())
                        }
                    };
                    if let Some(watched) = watched {
                        self.unwatch_process(&watched);
                        if matches!(who, ProcessOwner::Holder(_)) {
                            reap_holder(&watched.pidfd);
                        }
                    }
                    all.push(who);
                }
            }
            if count < EVENTS {
                return all;
            }
        }
    }

    /// Number of changes of what [`InstanceTable::list_pods`] returns: at least as many as there were.
    pub(super) const fn changes(&self) -> u64 {
        self.sandboxes.changes + self.containers.changes
    }

    /// Every pod, sorted by UID.
    pub(super) fn list_pods(&self) -> Vec<PodItem> {
        let mut sandboxes: Vec<&SandboxStatus> =
            self.sandboxes.values().map(|s| &s.status).collect();
        sandboxes.stable_sort_by(|a, b| a.uid.cmp(&b.uid));
        let mut pods: Vec<PodItem> = Vec::with_capacity(sandboxes.len());
        for status in sandboxes {
            match pods.last_mut().filter(|pod| pod.uid == status.uid) {
                Some(pod) => pod.sandboxes.push(status.into()),
                None => pods.push(PodItem {
                    uid: status.uid.clone(),
                    name: status.name.clone(),
                    namespace: status.namespace.clone(),
                    sandboxes: vec![status.into()],
                    containers: Vec::new(),
                }),
            }
        }
        for ContainerEntry { uid, status, .. } in self.containers.values() {
            let at = pods.binary_search_by(|pod| pod.uid.cmp(uid));
            let at = at.unwrap_or_else(|at| {
                let uid = uid.clone();
                let pod = PodItem {
                    uid,
                    ..PodItem::default()
                };
                pods.insert(at, pod);
                at
            });
            pods[at].containers.push(status.into());
        }
        pods
    }

    /// Status of a pod; empty if no sandbox or container of it is known.
    pub(super) fn pod_status(&self, uid: &PodUid) -> PodRuntimeStatus {
        let all = self.sandboxes.values();
        let mut sandboxes: Vec<&SandboxEntry> = all.filter(|s| s.status.uid == *uid).collect();
        sandboxes.stable_sort_by_key(|s| core::cmp::Reverse((s.status.attempt, s.created)));
        let all = self.containers.values();
        let mut containers: Vec<&ContainerEntry> = all.filter(|c| c.uid == *uid).collect();
        containers.stable_sort_by_key(|c| core::cmp::Reverse(c.created));
        let mut pod = PodRuntimeStatus {
            uid: uid.clone(),
            sandboxes: sandboxes.iter().map(|s| s.status.clone()).collect(),
            containers: containers.iter().map(|c| c.status.clone()).collect(),
            ..PodRuntimeStatus::default()
        };
        if let Some(newest) = pod.sandboxes.first() {
            pod.name.clone_from(&newest.name);
            pod.namespace.clone_from(&newest.namespace);
            // Only a READY sandbox has addresses that count (PLEG-11, STAT-30).
            if newest.state == SandboxState::Ready {
                pod.ips.clone_from(&newest.ips);
            }
        }
        pod
    }

    /// UIDs of all pods with a sandbox, sorted.
    pub(super) fn pod_uids(&self) -> BTreeSet<PodUid> {
        let sandboxes = self.sandboxes.values();
        sandboxes.map(|s| s.status.uid.clone()).gather_items()
    }

    /// Instances of a sandbox.
    pub(super) fn sandbox_containers(&self, sandbox: &SandboxId) -> Vec<ContainerId> {
        self.containers
            .values()
            .filter(|c| c.status.sandbox == *sandbox)
            .map(|c| c.status.id.clone())
            .collect()
    }
}

/// Reaps a PID namespace's init that this agent started. After a restart of the agent it is a child of the machine's
/// init: then there is nothing to do.
fn reap_holder(pidfd: &OwnedFd) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    let _ = waitid(Id::PIDFd(pidfd.as_fd()), flags);
}

/// The status of a sandbox by its record alone.
pub(super) fn sandbox_status(record: &SandboxRecord, state: SandboxState) -> SandboxStatus {
    SandboxStatus {
        id: record.id.clone(),
        uid: record.config.uid.clone(),
        name: record.config.name.clone(),
        namespace: record.config.namespace.clone(),
        attempt: record.config.attempt,
        state,
        created_at: record.created_at,
        ips: record.ips.clone(),
        namespaces: record.config.namespaces,
        runtime_handler: record.config.runtime_handler.clone(),
    }
}

/// The entry of an instance by its record alone: not running, its images not held.
pub(super) fn container_entry(record: &ContainerRecord) -> ContainerEntry {
    let user = &record.user;
    let config = &record.config;
    let hash = config.annotations.get(ANNOTATION_HASH);
    // An older agent took any text.
    let stop_signal = first_stop_signal(&[&record.stop_signal]);
    let shown_signal = stop_signal_name(&stop_signal);
    ContainerEntry {
        uid: record.uid.clone(),
        created: record.created,
        image: record.image.clone(),
        holds: Vec::new(),
        stop_signal,
        kills_before_stop: None,
        cgroup: record.cgroup.clone(),
        traces: tracers::may_trace(&config.security),
        termination_file: record.termination_file.clone(),
        termination_fallback: config
            .annotations
            .get(crate::api::cri::ANNOTATION_TERMINATION_POLICY)
            .is_some_and(|p| p == "FallbackToLogsOnError"),
        message_read: false,
        shim: None,
        resident: true,
        starting: false,
        sources: Vec::new(),
        status: ContainerStatus {
            id: record.id.clone(),
            sandbox: record.sandbox.clone(),
            name: config.name.clone(),
            restart_count: config.attempt,
            state: ContainerState::Created,
            created_at: record.created_at,
            started_at: record.started_at,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: config.user_image.clone(),
            image_id: record.image_ref.clone(),
            volume_images: record.volume_images.clone(),
            mounts: record.mounts.clone(),
            stop_signal: shown_signal.unwrap_or_default(),
            hash: hash
                .and_then(|h| u64::from_str_radix(h, 16).ok())
                .unwrap_or(0),
            user: Some((
                user.uid.into(),
                user.gid.into(),
                user.additional_gids.iter().map(|g| i64::from(*g)).collect(),
            )),
            pid: 0,
            log_path: record.log.clone(),
        },
    }
}

/// First of `wanted` that is a stop signal; SIGTERM if none is (KILL-11).
pub(super) fn first_stop_signal(wanted: &[&str]) -> String {
    let mut known = wanted.iter().filter(|signal| is_stop_signal(signal));
    (*known.next().unwrap_or(&"SIGTERM")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    use crate::sys::pidfd;

    #[test]
    fn changes_are_counted_and_looks_are_not() {
        let mut table = InstanceTable::new().expect("epoll");
        let id = SandboxId::new("s");
        assert_eq!(table.changes(), 0);
        assert!(table.list_pods().is_empty() && table.take_ended_processes().is_empty());
        assert!(table.sandboxes.get(&id).is_none() && table.pod_uids().is_empty());
        assert_eq!(table.changes(), 0, "nothing but looks");
        assert!(table.sandboxes.get_mut(&id).is_none());
        assert!(table.containers.remove(&ContainerId::new("c")).is_none());
        assert_eq!(table.changes(), 2);
    }

    #[test]
    fn an_end_is_seen_once_and_rings() {
        smol::block_on(async {
            let mut table = InstanceTable::new().expect("epoll");
            let (reader, writer) = io::pipe().expect("pipe");
            let mut child = Command::new("/bin/cat")
                .stdin(Stdio::from(reader))
                .spawn()
                .expect("cat");
            let pid = child.id().try_into().expect("a pid");
            let fd = pidfd::open_pidfd(pid).expect("pidfd");
            let who = ProcessOwner::Shim(ContainerId::new("c"));
            let watched = table.watch_process(fd, who.clone()).expect("watch");
            assert!(table.take_ended_processes().is_empty(), "it runs");
            drop(writer);
            table.doorbell().wait_for_ring().await;
            assert_eq!(table.take_ended_processes(), [who]);
            table.unwatch_process(&watched);
            assert!(table.take_ended_processes().is_empty(), "seen once");
            child.wait().expect("reaped");
        });
    }
}
