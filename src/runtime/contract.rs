//! The contract of every backend, as one sequence of calls that a test runs against it.
//!
//! Source: `tests/spec/lifecycle.md` PROV, `tests/spec/runtime.md` RTM.

use core::{future::Future, pin::Pin, time::Duration};

use super::{
    AttachOptions, ExecOptions, LogRetention, RuntimeCall, RuntimeError, RuntimeService,
    SessionStart, StreamRoute,
};
use crate::api::cri::{
    ANNOTATION_HASH, ContainerConfig, ContainerMount, ContainerState, ContainerStatus,
    LABEL_CONTAINER_NAME, LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID, LinuxResources,
    MountedImage, PodItem, PodRuntimeStatus, SandboxConfig, SandboxState,
};
use crate::api::stats::StatsDetail;
use crate::api::{ContainerId, PodUid, SandboxId};

/// Most looks for the end of a container; the pause in between is the caller's.
const MAX_LOOKS: usize = 500;
/// Most output that is taken of a command, in bytes.
const LIMIT: usize = 64;

/// Configurations and commands with which the contract is tried.
#[derive(Clone, Debug)]
pub struct ContractFixture {
    /// A sandbox that the backend can make. Its UID must be unknown to the backend.
    pub sandbox: SandboxConfig,
    /// Reference of an image in the store.
    pub image: String,
    /// Set if images can be volumes; otherwise a container with such a volume is refused.
    pub image_volumes: bool,
    /// A command that runs until it is stopped.
    pub runs: Vec<String>,
    /// A command that ends with code 3.
    pub exits_3: Vec<String>,
    /// A command that cannot be started.
    pub cannot_start: Vec<String>,
    /// A command that prints `heard` and a line feed, or without one, and ends with code 0.
    pub echoes: Vec<String>,
}

/// A pause between two looks at the runtime.
pub type ContractPause<'a> = &'a dyn Fn() -> Pin<Box<dyn Future<Output = ()>>>;

/// Breach of the contract by a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractBreach {
    /// The backend's state is not as it says, or as it must be.
    #[error("{0}")]
    Said(String),
    /// The backend refused a call that must succeed.
    #[error("{call}")]
    Refused {
        /// Refused call.
        call: &'static str,
        /// Error of the backend.
        source: RuntimeError,
    },
}

/// Runs the contract. Removes all that it made if the backend keeps the contract.
///
/// - Errors: the first thing that is not as it should be.
pub async fn run_contract(
    runtime: &dyn RuntimeService,
    fixture: &ContractFixture,
    pause: ContractPause<'_>,
) -> Result<(), ContractBreach> {
    let trial = ContractRun {
        runtime,
        fixture,
        pause,
    };
    trial.check_statements()?;
    trial.check_unknown_ids().await?;
    trial.check_images().await?;
    let sandbox = trial.check_sandbox_start().await?;
    trial.check_containers(&sandbox).await?;
    trial.check_sandbox_end(&sandbox).await
}

struct ContractRun<'a> {
    runtime: &'a dyn RuntimeService,
    fixture: &'a ContractFixture,
    pause: ContractPause<'a>,
}

fn ensure_holds(holds: bool, what: &str) -> Result<(), ContractBreach> {
    holds
        .then_some(())
        .ok_or_else(|| ContractBreach::Said(what.to_owned()))
}

fn expect_success<T>(
    result: Result<T, RuntimeError>,
    call: &'static str,
) -> Result<T, ContractBreach> {
    result.map_err(|source| ContractBreach::Refused { call, source })
}

/// Checks that streams of an unknown container are "not found", at once or when they are started.
async fn is_absent(
    opened: RuntimeCall<'_, StreamRoute<SessionStart<'_>>>,
    what: &str,
) -> Result<(), ContractBreach> {
    let result = match opened.await {
        Ok(StreamRoute::Local(start)) => start.await.map(drop),
        Ok(StreamRoute::Url(_)) => Ok(()),
        Err(e) => Err(e),
    };
    ensure_holds(
        matches!(result, Err(RuntimeError::NotFound(_))),
        &format!("{what} in an unknown container says it is not found"),
    )
}

impl ContractRun<'_> {
    async fn pod(&self) -> Result<PodRuntimeStatus, ContractBreach> {
        let uid = &self.fixture.sandbox.uid;
        expect_success(self.runtime.pod_status(uid).await, "pod status")
    }

    async fn instance(&self, id: &ContainerId) -> Result<ContainerStatus, ContractBreach> {
        let pod = self.pod().await?;
        let found = pod.containers.into_iter().find(|c| c.id == *id);
        found.ok_or_else(|| ContractBreach::Said(format!("container {id} is not listed")))
    }

    async fn is_listed(&self) -> Result<bool, ContractBreach> {
        let pods = expect_success(self.runtime.list_pods().await, "list of pods")?;
        ensure_holds(
            pods.is_sorted_by(|a, b| a.uid < b.uid),
            "the list of pods is sorted by UID",
        )?;
        Ok(pods.iter().any(|pod| pod.uid == self.fixture.sandbox.uid))
    }

    async fn wait_until_exited(&self, id: &ContainerId) -> Result<ContainerStatus, ContractBreach> {
        for _ in 0..MAX_LOOKS {
            let status = self.instance(id).await?;
            if status.state == ContainerState::Exited {
                return Ok(status);
            }
            (self.pause)().await;
        }
        Err(ContractBreach::Said(format!("container {id} did not end")))
    }

    fn check_statements(&self) -> Result<(), ContractBreach> {
        let version = self.runtime.version();
        ensure_holds(
            !version.name.is_empty() && !version.version.is_empty(),
            "a backend says its name and version",
        )?;
        let handlers = self.runtime.capabilities().handlers;
        ensure_holds(
            handlers.is_sorted_by(|a, b| a.name < b.name),
            "handlers are sorted by name, each once",
        )
    }

    async fn check_unknown_ids(&self) -> Result<(), ContractBreach> {
        let runtime = self.runtime;
        let container = ContainerId::new("0123456789abcdef0123456789abcdef");
        let sandbox = SandboxId::new("0123456789abcdef0123456789abcdef");
        let uid = PodUid::new("00000000-0000-0000-0000-000000000000");
        let pod = expect_success(runtime.pod_status(&uid).await, "status of an unknown pod")?;
        ensure_holds(
            pod.uid == uid && pod.containers.is_empty() && pod.sandboxes.is_empty(),
            "the status of an unknown pod is empty and carries its UID",
        )?;
        ensure_holds(!self.is_listed().await?, "the pod is not there yet")?;
        let grace = Duration::from_secs(1);
        expect_success(
            runtime.stop_container(&container, grace).await,
            "stop of an unknown container",
        )?;
        expect_success(
            runtime
                .remove_container(&container, LogRetention::Remove)
                .await,
            "removal of an unknown container",
        )?;
        expect_success(
            runtime.stop_pod_sandbox(&sandbox).await,
            "stop of an unknown sandbox",
        )?;
        expect_success(
            runtime.remove_pod_sandbox(&sandbox).await,
            "removal of an unknown sandbox",
        )?;
        let start = runtime.start_container(&container).await;
        ensure_holds(
            matches!(start, Err(RuntimeError::NotFound(_))),
            "starting an unknown container says it is not found",
        )?;
        let sync = runtime.exec_sync(&container, &self.fixture.echoes, None, LIMIT);
        ensure_holds(sync.await.is_err(), "nothing runs in an unknown container")?;
        let resources = LinuxResources::default();
        let update = runtime.update_container_resources(&container, &resources);
        ensure_holds(update.await.is_err(), "an unknown container has no limits")?;
        let options = self.options();
        is_absent(runtime.exec(&container, &options), "exec").await?;
        let output = AttachOptions {
            stdout: true,
            ..AttachOptions::default()
        };
        is_absent(runtime.attach(&container, output), "attach").await?;
        let ports = match runtime.port_forward(&sandbox, &[]).await {
            Ok(StreamRoute::Local(connect)) => connect(1).await.map(drop),
            Ok(StreamRoute::Url(_)) => Ok(()),
            Err(e) => Err(e),
        };
        ensure_holds(
            matches!(ports, Err(RuntimeError::NotFound(_))),
            "an unknown sandbox has no ports",
        )?;
        let config = self.container("unknown", 0, &self.fixture.runs, "");
        let create = runtime
            .create_container(&sandbox, &config, Some(&self.fixture.sandbox))
            .await;
        ensure_holds(
            matches!(create, Err(RuntimeError::NotFound(_))),
            "creating in an unknown sandbox says it is not found",
        )
    }

    fn options(&self) -> ExecOptions {
        ExecOptions {
            command: self.fixture.echoes.clone(),
            stdout: true,
            ..ExecOptions::default()
        }
    }

    async fn check_images(&self) -> Result<(), ContractBreach> {
        let runtime = self.runtime;
        let absent = runtime.image_status("example.invalid/absent:1").await;
        ensure_holds(
            absent == Ok(None),
            "an absent image is nothing, not an error",
        )?;
        let image = self.image().await?;
        ensure_holds(image.size_bytes > 0, "an image has a size")?;
        ensure_holds(
            image.uid.is_none() || image.username.is_empty(),
            "an image has a numeric user or a user name, never both",
        )?;
        let all = expect_success(runtime.list_images().await, "list of images")?;
        ensure_holds(
            all.iter().any(|other| other.id == image.id),
            "an image is listed under the id it was looked up with",
        )?;
        expect_success(
            runtime.remove_image("sha256:absent").await,
            "removal of an absent image",
        )
    }

    async fn image(&self) -> Result<crate::api::cri::StoredImage, ContractBreach> {
        let found = self.runtime.image_status(&self.fixture.image).await;
        expect_success(found, "image status")?
            .ok_or_else(|| ContractBreach::Said("the fixture's image is missing".into()))
    }

    async fn check_sandbox_start(&self) -> Result<SandboxId, ContractBreach> {
        let made = self.runtime.run_pod_sandbox(&self.fixture.sandbox).await;
        let made = expect_success(made, "sandbox")?;
        ensure_holds(made.state == SandboxState::Ready, "a new sandbox is ready")?;
        ensure_holds(self.is_listed().await?, "a pod with a sandbox is listed")?;
        let pod = self.pod().await?;
        ensure_holds(
            pod.sandboxes.first().map(|sandbox| &sandbox.id) == Some(&made.id),
            "the sandbox is listed under its id",
        )?;
        ensure_holds(pod.ips == made.ips, "the pod has the sandbox's addresses")?;
        ensure_holds(
            pod.name == self.fixture.sandbox.name
                && pod.namespace == self.fixture.sandbox.namespace,
            "name and namespace come back unchanged",
        )?;
        Ok(made.id)
    }

    fn container(
        &self,
        name: &str,
        attempt: u32,
        command: &[String],
        image_id: &str,
    ) -> ContainerConfig {
        let sandbox = &self.fixture.sandbox;
        let labels = [
            (LABEL_POD_NAME, sandbox.name.as_str()),
            (LABEL_POD_NAMESPACE, &sandbox.namespace),
            (LABEL_POD_UID, &sandbox.uid),
            (LABEL_CONTAINER_NAME, name),
        ];
        ContainerConfig {
            name: name.into(),
            attempt,
            image: image_id.into(),
            user_image: self.fixture.image.clone(),
            command: command.to_vec(),
            labels: labels.map(|(key, value)| (key.into(), value.into())).into(),
            annotations: [(ANNOTATION_HASH.into(), "2a".into())].into(),
            log_path: format!("{name}/{attempt}.log"),
            ..ContainerConfig::default()
        }
    }

    async fn create(
        &self,
        sandbox: &SandboxId,
        name: &str,
        attempt: u32,
        command: &[String],
    ) -> Result<ContainerId, ContractBreach> {
        let image = self.image().await?;
        let config = self.container(name, attempt, command, &image.id);
        expect_success(
            self.runtime
                .create_container(sandbox, &config, Some(&self.fixture.sandbox))
                .await,
            "container",
        )
    }

    async fn check_containers(&self, sandbox: &SandboxId) -> Result<(), ContractBreach> {
        let (runtime, fixture) = (self.runtime, self.fixture);
        let grace = Duration::from_secs(2);

        let first = self.create(sandbox, "main", 0, &fixture.exits_3).await?;
        let created = self.instance(&first).await?;
        ensure_holds(
            created.state == ContainerState::Created && created.started_at.is_none(),
            "creation does not start",
        )?;
        ensure_holds(
            created.hash == 0x2a && created.name == "main" && created.image == fixture.image,
            "annotations, name and image come back unchanged",
        )?;
        expect_success(runtime.start_container(&first).await, "start")?;
        let ended = self.wait_until_exited(&first).await?;
        ensure_holds(
            ended.exit_code == 3 && ended.reason == "Error",
            "an exit code is reported as it is",
        )?;
        ensure_holds(ended.pid == 0, "what ended has no process")?;
        expect_success(
            runtime.stop_container(&first, grace).await,
            "stop after the end",
        )?;

        let second = self.create(sandbox, "main", 1, &fixture.runs).await?;
        ensure_holds(first != second, "every attempt has its own id")?;
        expect_success(runtime.start_container(&second).await, "second start")?;
        let running = self.instance(&second).await?;
        ensure_holds(
            running.state == ContainerState::Running && running.restart_count == 1,
            "a started instance runs and knows its restart count",
        )?;
        let pod = self.pod().await?;
        ensure_holds(
            pod.newest_instance("main").map(|newest| &newest.id) == Some(&second)
                && pod.container_instances("main").count() == 2,
            "instances are listed newest first, ended ones included",
        )?;
        self.lists_agree(&pod).await?;
        self.check_running_calls(&second).await?;
        let image = self.image().await?;
        ensure_holds(
            runtime.remove_image(&image.id).await.is_err(),
            "an image in use is not removed",
        )?;
        expect_success(runtime.stop_container(&second, grace).await, "stop")?;
        let stopped = self.instance(&second).await?;
        ensure_holds(
            stopped.state == ContainerState::Exited && stopped.exit_code > 128,
            "a stop waits for the end, and a signal's code is 128 and more",
        )?;
        expect_success(runtime.stop_container(&second, grace).await, "second stop")?;

        let third = self.create(sandbox, "main", 2, &fixture.runs).await?;
        expect_success(runtime.start_container(&third).await, "third start")?;
        expect_success(
            runtime.stop_container(&third, Duration::ZERO).await,
            "stop without grace",
        )?;
        ensure_holds(
            self.instance(&third).await?.exit_code == 137,
            "no grace means SIGKILL",
        )?;

        self.check_image_volumes(sandbox).await?;

        let broken = self
            .create(sandbox, "broken", 0, &fixture.cannot_start)
            .await;
        // An OCI runtime finds out when it creates the container; the instance is listed all the same.
        if let Ok(broken) = &broken {
            ensure_holds(
                runtime.start_container(broken).await.is_err(),
                "what cannot start says so",
            )?;
        }
        let pod = self.pod().await?;
        let broken = pod.newest_instance("broken");
        let broken =
            broken.ok_or_else(|| ContractBreach::Said("a failed start is never lost".into()))?;
        ensure_holds(
            broken.state == ContainerState::Exited
                && broken.exit_code == 128
                && broken.reason == "StartError",
            "a failed start ends with 128 and StartError",
        )?;

        for _ in 0..2 {
            expect_success(
                runtime.remove_container(&first, LogRetention::Remove).await,
                "removal",
            )?;
        }
        ensure_holds(
            self.instance(&first).await.is_err(),
            "what was removed is not listed",
        )
    }

    /// An image as a volume of a container.
    async fn check_image_volumes(&self, sandbox: &SandboxId) -> Result<(), ContractBreach> {
        let (runtime, fixture) = (self.runtime, self.fixture);
        let image = self.image().await?;
        let mut config = self.container("reader", 0, &fixture.runs, &image.id);
        config.mounts = vec![ContainerMount {
            container_path: "/image".into(),
            read_only: true,
            image: Some(MountedImage {
                image: image.id.clone(),
                user_image: fixture.image.clone(),
            }),
            ..ContainerMount::default()
        }];
        let reader = runtime
            .create_container(sandbox, &config, Some(&fixture.sandbox))
            .await;
        if !fixture.image_volumes {
            ensure_holds(reader.is_err(), "who cannot mount an image says so")?;
            return ensure_holds(
                self.pod().await?.newest_instance("reader").is_none(),
                "what could not be created is not listed",
            );
        }
        let reader = expect_success(reader, "container with an image as a volume")?;
        ensure_holds(
            self.instance(&reader).await?.volume_images == [image.id.clone()],
            "an instance tells which images it mounts",
        )?;
        if let Some(spec) = &mut config.mounts[0].image {
            spec.image = "sha256:absent".into();
        }
        config.name = "blind".into();
        ensure_holds(
            matches!(
                runtime
                    .create_container(sandbox, &config, Some(&fixture.sandbox))
                    .await,
                Err(RuntimeError::NotFound(_))
            ),
            "an absent image cannot be a volume",
        )?;
        ensure_holds(
            self.pod().await?.newest_instance("blind").is_none(),
            "what could not be created is not listed",
        )?;
        expect_success(
            runtime
                .remove_container(&reader, LogRetention::Remove)
                .await,
            "removal",
        )
    }

    /// Checks that a pod is listed as its status describes it.
    async fn lists_agree(&self, status: &PodRuntimeStatus) -> Result<(), ContractBreach> {
        let listed = expect_success(self.runtime.list_pods().await, "list of pods")?;
        let listed = listed.into_iter().find(|pod| pod.uid == status.uid);
        let listed = listed.ok_or_else(|| ContractBreach::Said("the pod is not listed".into()))?;
        let mut expected = PodItem::from(status);
        let mut found = listed;
        for pod in [&mut expected, &mut found] {
            pod.sandboxes.sort_by(|a, b| a.id.cmp(&b.id));
            pod.containers.sort_by(|a, b| a.id.cmp(&b.id));
        }
        ensure_holds(found == expected, "list and status agree")
    }

    /// Tries the calls on a container that runs.
    async fn check_running_calls(&self, id: &ContainerId) -> Result<(), ContractBreach> {
        let (runtime, uid) = (self.runtime, &self.fixture.sandbox.uid);
        let said = runtime.exec_sync(id, &self.fixture.echoes, None, LIMIT);
        let said = expect_success(said.await, "command in a container")?;
        ensure_holds(
            said.exit_code == 0 && said.stdout.trim_ascii_end() == b"heard",
            "a command's output comes back",
        )?;
        let options = self.options();
        match expect_success(runtime.exec(id, &options).await, "streams of a command")? {
            StreamRoute::Local(start) => {
                let session = expect_success(start.await, "streams of a command")?;
                ensure_holds(
                    session.end.await == Ok(0),
                    "a command with streams says how it ended",
                )?;
            }
            StreamRoute::Url(url) => ensure_holds(!url.is_empty(), "a URL leads somewhere")?,
        }
        let can = runtime.capabilities();
        let resources = LinuxResources {
            memory_limit_bytes: Some(64 << 20),
            ..LinuxResources::default()
        };
        let updated = runtime.update_container_resources(id, &resources).await;
        ensure_holds(
            updated.is_ok() == can.live_resource_updates,
            "limits of a running container change if the backend says so",
        )?;
        let usage = runtime.list_pod_usage(StatsDetail::Basic).await;
        let usage = usage.unwrap_or_default();
        let found = usage.iter().find(|pod| pod.uid == *uid);
        ensure_holds(
            found.is_some_and(|pod| pod.containers.iter().any(|c| c.id == *id))
                == can.container_stats,
            "usage is told if the backend says so",
        )
    }

    async fn check_sandbox_end(&self, sandbox: &SandboxId) -> Result<(), ContractBreach> {
        let (runtime, fixture) = (self.runtime, self.fixture);
        let last = self.create(sandbox, "last", 0, &fixture.runs).await?;
        expect_success(runtime.start_container(&last).await, "last start")?;
        for _ in 0..2 {
            expect_success(runtime.stop_pod_sandbox(sandbox).await, "stop of a sandbox")?;
        }
        let pod = self.pod().await?;
        ensure_holds(
            !pod.is_running(),
            "stopping a sandbox ends its containers and it",
        )?;
        ensure_holds(pod.ips.is_empty(), "its addresses are released")?;
        ensure_holds(
            pod.newest_instance("last")
                .is_some_and(|last| last.exit_code == 137),
            "its containers were killed",
        )?;
        for _ in 0..2 {
            expect_success(
                runtime.remove_pod_sandbox(sandbox).await,
                "removal of a sandbox",
            )?;
        }
        ensure_holds(!self.is_listed().await?, "a removed pod is not listed")?;

        let again = SandboxConfig {
            attempt: 1,
            ..fixture.sandbox.clone()
        };
        let made = expect_success(runtime.run_pod_sandbox(&again).await, "second sandbox")?;
        ensure_holds(made.id != *sandbox, "every attempt has its own id")?;
        let image = self.image().await?;
        let config = self.container("again", 0, &fixture.runs, &image.id);
        let id = runtime
            .create_container(&made.id, &config, Some(&again))
            .await;
        let id = expect_success(id, "container in the second sandbox")?;
        expect_success(
            runtime.start_container(&id).await,
            "start in the second sandbox",
        )?;
        expect_success(
            runtime.remove_pod_sandbox(&made.id).await,
            "removal of a running sandbox",
        )?;
        ensure_holds(
            !self.is_listed().await?,
            "removing a sandbox removes its containers, running or not",
        )
    }
}
