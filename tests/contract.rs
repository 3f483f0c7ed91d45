//! A runtime that is written against the traits alone, from outside of the crate: what it needs is all that a backend needs.
//!
//! It keeps everything in memory, as a CRI client would see it: opaque ids, streams at a URL, no figures, limits that cannot
//! be changed, times of a clock that stands still.

use std::{
    cell::RefCell,
    future::{pending, ready},
    pin::Pin,
    time::Duration,
};

use picolet::{
    api::{
        ContainerId, PodUid, SandboxId, WallTime,
        cri::{
            ANNOTATION_HASH, AuthConfig, ContainerConfig, ContainerState, ContainerStatus,
            ExecOutput, FsInfo, LinuxResources, PodItem, PodRuntimeStatus, RuntimeCapabilities,
            RuntimeCondition, RuntimeStatus, RuntimeVersion, SandboxConfig, SandboxState,
            SandboxStatus, StoredImage,
        },
        stats::{DiskUsage, PodUsage, StatsDetail},
    },
    image::ImageProgress,
    runtime::{
        AttachOptions, ExecOptions, ImageService, LogRetention, PortConnector, RuntimeCall,
        RuntimeError, RuntimeService, SessionStart, StreamRoute,
        contract::{ContractFixture, run_contract},
    },
};

const REFERENCE: &str = "registry.example/app:1";
const IMAGE: &str = "4f2a";

/// Newest first.
#[derive(Default)]
struct Memory {
    sandboxes: RefCell<Vec<SandboxStatus>>,
    containers: RefCell<Vec<(ContainerStatus, ContainerConfig)>>,
    made: RefCell<u32>,
}

fn done<'a, T: 'a>(result: Result<T, RuntimeError>) -> RuntimeCall<'a, T> {
    Box::pin(ready(result))
}

fn absent<T>(id: &str) -> Result<T, RuntimeError> {
    Err(RuntimeError::NotFound(id.into()))
}

impl Memory {
    fn next_id(&self) -> String {
        *self.made.borrow_mut() += 1;
        format!("{:016x}", *self.made.borrow())
    }

    /// Changes an instance, if it is there.
    fn change(&self, id: &ContainerId, change: impl FnOnce(&mut ContainerStatus)) -> bool {
        let mut all = self.containers.borrow_mut();
        let found = all.iter_mut().find(|(status, _)| status.id == *id);
        found.map(|(status, _)| change(status)).is_some()
    }

    fn state(&self, id: &ContainerId) -> Option<ContainerState> {
        let all = self.containers.borrow();
        let found = all.iter().find(|(status, _)| status.id == *id);
        found.map(|(status, _)| status.state)
    }

    fn end(&self, id: &ContainerId, exit_code: i32, reason: &str) {
        self.change(id, |status| {
            if status.state == ContainerState::Running {
                status.state = ContainerState::Exited;
                status.exit_code = exit_code;
                status.reason = reason.into();
                status.finished_at = Some(WallTime(1));
            }
        });
    }

    fn kill_all(&self, sandbox: &SandboxId) {
        let all = self.containers.borrow();
        let inside = all.iter().filter(|(status, _)| status.sandbox == *sandbox);
        let ids: Vec<ContainerId> = inside.map(|(status, _)| status.id.clone()).collect();
        drop(all);
        for id in ids {
            self.end(&id, 137, "Error");
        }
    }

    fn pod(&self, uid: &PodUid) -> PodRuntimeStatus {
        let mut pod = PodRuntimeStatus {
            uid: uid.clone(),
            ..PodRuntimeStatus::default()
        };
        for status in &*self.sandboxes.borrow() {
            if status.uid == *uid {
                pod.name.clone_from(&status.name);
                pod.namespace.clone_from(&status.namespace);
                pod.ips.extend(&status.ips);
                pod.sandboxes.push(status.clone());
            }
        }
        for (status, _) in &*self.containers.borrow() {
            if pod.sandboxes.iter().any(|s| s.id == status.sandbox) {
                pod.containers.push(status.clone());
            }
        }
        pod
    }
}

impl ImageService for Memory {
    fn image_status<'a>(&'a self, reference: &'a str) -> RuntimeCall<'a, Option<StoredImage>> {
        let known = [REFERENCE, IMAGE].contains(&reference);
        done(Ok(known.then(|| StoredImage {
            id: IMAGE.into(),
            repo_tags: vec![REFERENCE.into()],
            size_bytes: 1,
            ..StoredImage::default()
        })))
    }

    fn list_images(&self) -> RuntimeCall<'_, Vec<StoredImage>> {
        Box::pin(async {
            let image = self.image_status(REFERENCE).await?;
            Ok(image.into_iter().collect())
        })
    }

    fn pull_image<'a>(
        &'a self,
        _: &'a str,
        _: Option<&'a AuthConfig>,
        _: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, String> {
        done(Err(RuntimeError::Failed("no registry".into())))
    }

    fn pull_progress(&self, _: &str) -> Option<ImageProgress> {
        None
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> RuntimeCall<'a, ()> {
        let containers = self.containers.borrow();
        let used = id == IMAGE && !containers.is_empty();
        done(if used {
            Err(RuntimeError::Failed("it is used".into()))
        } else {
            Ok(())
        })
    }

    fn image_fs_info(&self) -> RuntimeCall<'_, FsInfo> {
        done(Ok(FsInfo::default()))
    }
}

impl RuntimeService for Memory {
    fn version(&self) -> RuntimeVersion {
        RuntimeVersion {
            name: "memory".into(),
            version: "1".into(),
        }
    }

    fn capabilities(&self) -> RuntimeCapabilities {
        RuntimeCapabilities::default()
    }

    fn runtime_status(&self) -> RuntimeCall<'_, RuntimeStatus> {
        let condition = RuntimeCondition {
            ok: true,
            reason: String::new(),
            message: String::new(),
        };
        done(Ok(RuntimeStatus {
            runtime_ready: condition.clone(),
            network_ready: condition,
            can_stop_containers: false,
        }))
    }

    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>> {
        let sandboxes = self.sandboxes.borrow();
        let mut uids: Vec<&PodUid> = sandboxes.iter().map(|status| &status.uid).collect();
        uids.sort();
        uids.dedup();
        let pods = uids.into_iter().map(|uid| PodItem::from(&self.pod(uid)));
        done(Ok(pods.collect()))
    }

    fn pod_status(&self, uid: &PodUid) -> RuntimeCall<'_, PodRuntimeStatus> {
        done(Ok(self.pod(uid)))
    }

    fn wait_for_doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(pending())
    }

    fn run_pod_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> RuntimeCall<'a, SandboxStatus> {
        let status = SandboxStatus {
            id: SandboxId::new(self.next_id()),
            uid: config.uid.clone(),
            name: config.name.clone(),
            namespace: config.namespace.clone(),
            attempt: config.attempt,
            state: SandboxState::Ready,
            created_at: WallTime(1),
            ips: vec!["10.0.0.1".parse().expect("address")],
            namespaces: config.namespaces,
            runtime_handler: config.runtime_handler.clone(),
        };
        self.sandboxes.borrow_mut().insert(0, status.clone());
        done(Ok(status))
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        self.kill_all(id);
        for status in &mut *self.sandboxes.borrow_mut() {
            if status.id == *id {
                status.state = SandboxState::NotReady;
                status.ips.clear();
            }
        }
        done(Ok(()))
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        let mut containers = self.containers.borrow_mut();
        containers.retain(|(status, _)| status.sandbox != *id);
        self.sandboxes
            .borrow_mut()
            .retain(|status| status.id != *id);
        done(Ok(()))
    }

    fn create_container<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a ContainerConfig,
        made: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, ContainerId> {
        let sandboxes = self.sandboxes.borrow();
        if !sandboxes.iter().any(|status| status.id == *sandbox) {
            return done(absent(sandbox));
        }
        let volume_images = config.volume_images();
        if let Some(image) = volume_images.iter().find(|image| **image != IMAGE) {
            return done(absent(image));
        }
        let id = ContainerId::new(self.next_id());
        let logs = made.map_or("", |made| &made.log_directory);
        let hash = config.annotations.get(ANNOTATION_HASH);
        let status = ContainerStatus {
            id: id.clone(),
            sandbox: sandbox.clone(),
            name: config.name.clone(),
            restart_count: config.attempt,
            state: ContainerState::Created,
            created_at: WallTime(1),
            started_at: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: config.user_image.clone(),
            image_id: IMAGE.into(),
            volume_images,
            mounts: Vec::new(),
            stop_signal: String::new(),
            hash: hash.map_or(0, |hash| u64::from_str_radix(hash, 16).expect("a hash")),
            user: None,
            pid: 0,
            log_path: format!("{logs}/{}", config.log_path),
        };
        let record = (status, config.clone());
        self.containers.borrow_mut().insert(0, record);
        done(Ok(id))
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeCall<'a, ()> {
        let all = self.containers.borrow();
        let Some((_, config)) = all.iter().find(|(status, _)| status.id == *id) else {
            return done(absent(id));
        };
        let word = config.command[0].clone();
        drop(all);
        self.change(id, |status| {
            status.state = ContainerState::Running;
            status.started_at = Some(WallTime(1));
        });
        match word.as_str() {
            "fails" => {
                self.end(id, 128, "StartError");
                return done(Err(RuntimeError::Failed("no such program".into())));
            }
            "ends" => self.end(id, 3, "Error"),
            _ => {}
        }
        done(Ok(()))
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeCall<'a, ()> {
        self.end(id, if grace.is_zero() { 137 } else { 143 }, "Error");
        done(Ok(()))
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, _: LogRetention) -> RuntimeCall<'a, ()> {
        let mut all = self.containers.borrow_mut();
        all.retain(|(status, _)| status.id != *id);
        done(Ok(()))
    }

    fn reopen_container_log<'a>(&'a self, _: &'a ContainerId) -> RuntimeCall<'a, ()> {
        done(Ok(()))
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        _: Option<Duration>,
        _: usize,
    ) -> RuntimeCall<'a, ExecOutput> {
        if self.state(id) != Some(ContainerState::Running) {
            return done(absent(id));
        }
        done(Ok(ExecOutput {
            stdout: command[1..].join(" ").into_bytes(),
            ..ExecOutput::default()
        }))
    }

    fn update_container_resources<'a>(
        &'a self,
        _: &'a ContainerId,
        _: &'a LinuxResources,
    ) -> RuntimeCall<'a, ()> {
        done(Err(RuntimeError::Invalid("limits stay as they are".into())))
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        _: &'a ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        self.attach(id, AttachOptions::default())
    }

    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        _: AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        done(match self.state(id) {
            Some(ContainerState::Running) => {
                Ok(StreamRoute::Url(format!("http://127.0.0.1:1/{id}")))
            }
            _ => absent(id),
        })
    }

    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        _: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>> {
        let sandboxes = self.sandboxes.borrow();
        done(match sandboxes.iter().any(|status| status.id == *id) {
            true => Ok(StreamRoute::Url(format!("http://127.0.0.1:1/{id}"))),
            false => absent(id),
        })
    }

    fn list_pod_usage(&self, _: StatsDetail) -> RuntimeCall<'_, Vec<PodUsage>> {
        done(Ok(Vec::new()))
    }

    fn writable_layer_usage<'a>(
        &'a self,
        _: &'a ContainerId,
    ) -> RuntimeCall<'a, Option<DiskUsage>> {
        done(Ok(None))
    }
}

#[test]
fn whoever_implements_the_traits_keeps_the_contract() {
    // RTM-02 RTM-03
    let words = |word: &str| vec![word.to_owned(), "heard".to_owned()];
    let fixture = ContractFixture {
        sandbox: SandboxConfig {
            name: "p".into(),
            namespace: "ns".into(),
            uid: "u".into(),
            ..SandboxConfig::default()
        },
        image: REFERENCE.into(),
        runs: words("runs"),
        image_volumes: true,
        exits_3: words("ends"),
        cannot_start: words("fails"),
        echoes: words("echo"),
    };
    let pause = || -> Pin<Box<dyn Future<Output = ()>>> { Box::pin(ready(())) };
    let kept = smol::block_on(run_contract(&Memory::default(), &fixture, &pause));
    assert_eq!(kept, Ok(()));
}
