//! Pods of providers, as the rest of the agent sees them: lists, usage, commands, streams, removal.

use alloc::rc::Rc;
use core::{fmt::Write as _, future::poll_fn, time::Duration};

use serde_json::Value;
use smol::future::FutureExt as _;

use super::{
    PodProvider, PodProviders, decode_answer,
    driver::PodDriverRouter,
    frames::FramedConnection,
    poll::watch_providers,
    wire::{ProviderError, ProviderRequest},
};
use crate::{
    agent::{
        complaints::Complaints,
        driver::{DriverFuture, PodDriver},
        executor::{PodPreparer, join_all},
        external_pods::{ExternalPods, PodResync},
        recorder::EventRecorder,
        tasks::AgentTask,
    },
    api::{
        ContainerId, PodUid, SandboxId,
        cri::{ContainerState, ExecOutput, PodItem, PodRuntimeStatus, RuntimeCondition},
        order::GatherExt as _,
        stats::{CgroupUsage, ContainerUsage, PodUsage},
    },
    error::error_chain,
    runtime::{
        AttachOptions, ExecOptions, OutputRead, OutputRoom, PortConnector, RuntimeCall,
        RuntimeError, SessionStart,
    },
    server::{
        backend::{BackendReply, IncomingText},
        http::percent_encode,
        log_reader::LogOptions,
    },
};

/// Time for a provider's figures, which are asked for with those of all other pods: a slow provider's pods have none.
const STATS_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of output read at a time.
const STEP_BYTES: usize = 4096;

fn provider_failure(error: ProviderError) -> RuntimeError {
    RuntimeError::Failed(error_chain(&error))
}

/// `stdin=1` and the others of a stream.
fn stream_flags_query(all: [(&str, bool); 4]) -> String {
    let set = all.into_iter().filter(|(_, is)| *is);
    set.map(|(name, _)| format!("&{name}=1")).collect()
}

fn command_query(words: &[String]) -> String {
    let mut query = String::new();
    for word in words {
        let _ = write!(query, "&command={}", percent_encode(word));
    }
    query
}

impl PodProvider {
    /// Asks for the usage of the provider's pods, in its own format; null if it keeps no figures.
    async fn ask_usage_figures(&self) -> Value {
        if !self.table.borrow().is_answering() {
            return Value::Null;
        }
        let request = ProviderRequest {
            time: STATS_TIMEOUT,
            ..ProviderRequest::new("GET", "/stats")
        };
        match self.wire.send_request(request).await {
            Ok(answer) if answer.status == 200 => decode_answer(&answer).unwrap_or_default(),
            _ => Value::Null,
        }
    }

    /// Usage of the provider's pods, of each for which it gives figures.
    async fn read_pod_usage(&self) -> Vec<PodUsage> {
        let used = self.ask_usage_figures().await;
        let at = self.clock.wall_time();
        let table = self.table.borrow();
        let mut all = Vec::new();
        for pod in table.pod_items() {
            let (Some(used), Some(status)) =
                (used.get(pod.uid.as_str()), table.pod_status(&pod.uid))
            else {
                continue;
            };
            let figure = |name: &str| used.get(name).and_then(Value::as_u64).unwrap_or_default();
            let (total_ns, bytes) = (figure("cpuNs"), figure("memoryBytes"));
            let mut usage = CgroupUsage {
                at,
                ..CgroupUsage::default()
            };
            usage.cpu.get_or_insert_default().total_ns = total_ns;
            let memory = usage.memory.get_or_insert_default();
            (memory.usage_bytes, memory.working_set_bytes) = (bytes, bytes);
            let created = status.sandboxes.first().map(|sandbox| sandbox.created_at);
            let all_of_it = status.containers.into_iter();
            let mut running = all_of_it.filter(|c| c.state == ContainerState::Running);
            let first = running.next();
            // The figures of a pod with a single container are that container's.
            let alone = first.filter(|_| running.next().is_none());
            let containers = alone.map(|c| ContainerUsage {
                id: c.id,
                name: c.name,
                image: c.image,
                started_at: c.started_at.unwrap_or(at),
                cgroup: String::new(),
                log_path: String::new(),
                usage: usage.clone(),
            });
            all.push(PodUsage {
                uid: pod.uid,
                name: pod.name,
                namespace: pod.namespace,
                started_at: created.unwrap_or_default(),
                cgroup: String::new(),
                usage,
                network: None,
                containers: containers.into_iter().collect(),
            });
        }
        all
    }
}

impl PodProviders {
    /// Opens the streams of a container; `None` if it is not a provider's.
    fn open_container_stream(
        &self,
        id: &ContainerId,
        what: &str,
        query: &str,
    ) -> Option<SessionStart<'_>> {
        let (provider, uid, name) = self.find_container(id)?;
        let target = format!(
            "/pods/{uid}/{what}/{name}?{}",
            query.trim_start_matches('&')
        );
        Some(Box::pin(async move {
            let opened = provider
                .wire
                .open_stream("POST", target)
                .await
                .map_err(provider_failure)?;
            Ok(FramedConnection::open_session(opened.into_socket()))
        }))
    }

    /// Runs a command to its end, and keeps `limit` bytes of each stream.
    async fn run_command(
        &self,
        id: &ContainerId,
        words: &[String],
        limit: usize,
    ) -> Result<ExecOutput, RuntimeError> {
        let query = command_query(words) + "&stdout=1&stderr=1";
        let gone = || RuntimeError::NotFound(format!("container {id}"));
        let session = self
            .open_container_stream(id, "exec", &query)
            .ok_or_else(gone)?
            .await?;
        let (mut streams, end) = (session.streams, session.end);
        let mut output = ExecOutput::default();
        let room = OutputRoom {
            stdout: STEP_BYTES,
            stderr: STEP_BYTES,
        };
        let mut buffer = [0; STEP_BYTES];
        loop {
            let read = poll_fn(|cx| streams.poll_output(cx, room, &mut buffer)).await;
            let (kept, n) = match read.map_err(|e| RuntimeError::Failed(e.to_string()))? {
                OutputRead::Stdout(n) => (&mut output.stdout, n),
                OutputRead::Stderr(n) => (&mut output.stderr, n),
                OutputRead::End => break,
            };
            // The rest is read, and thrown away: the command is not to wait for its reader.
            let room = limit.saturating_sub(kept.len()).min(n);
            kept.extend_from_slice(&buffer[..room]);
            crate::sys::turn::yield_to_others().await;
        }
        output.exit_code = end.await?;
        Ok(output)
    }
}

impl ExternalPods for PodProviders {
    fn runtime_handlers(&self) -> Vec<String> {
        let handlers = self.iter().map(|provider| provider.handler.clone());
        handlers.collect()
    }

    fn provider_condition(&self) -> RuntimeCondition {
        let condition = |ok, reason: &str, message| RuntimeCondition {
            ok,
            reason: reason.into(),
            message,
        };
        match self.describe_trouble() {
            None => condition(true, "ProvidersAnswer", "all providers answer".into()),
            Some(why) => condition(false, "ProviderSilent", why),
        }
    }

    fn make_pod_driver(
        self: Rc<Self>,
        containers: Rc<dyn PodDriver>,
        preparer: Rc<PodPreparer>,
    ) -> Rc<dyn PodDriver> {
        Rc::new(PodDriverRouter {
            containers,
            preparer,
            providers: self,
        })
    }

    fn external_pod_tasks(
        &self,
        resync: &PodResync,
        recorder: &Rc<EventRecorder>,
        complaints: &Rc<Complaints>,
    ) -> Vec<AgentTask> {
        watch_providers(self, resync, recorder, complaints)
    }

    fn list_external_pods(&self, of_runtime: &[PodItem]) -> Vec<PodItem> {
        *self.of_runtime.borrow_mut() = of_runtime.iter().map(|pod| pod.uid.clone()).gather_items();
        let mut all = Vec::new();
        for provider in self.iter() {
            let mut listed = provider.table.borrow().pod_items();
            listed.retain(|pod| self.is_owned_by(&pod.uid, provider));
            all.append(&mut listed);
        }
        all
    }

    fn external_pod_status(&self, uid: &PodUid) -> Option<PodRuntimeStatus> {
        self.owner_of(uid)?.table.borrow().pod_status(uid)
    }

    fn wait_for_external_change(&self) -> DriverFuture<'_, ()> {
        Box::pin(self.bell.wait_for_wake())
    }

    fn read_external_usage(&self) -> DriverFuture<'_, Vec<PodUsage>> {
        Box::pin(async {
            // All are asked at once: a silent provider delays the figures by its own time limit only.
            let said = join_all(self.iter().map(|provider| provider.read_pod_usage())).await;
            let mut all = Vec::new();
            for (provider, mut said) in self.iter().zip(said) {
                said.retain(|pod| self.is_owned_by(&pod.uid, provider));
                all.append(&mut said);
            }
            all
        })
    }

    fn has_container(&self, id: &ContainerId) -> bool {
        self.find_container(id).is_some()
    }

    fn has_sandbox(&self, id: &SandboxId) -> bool {
        self.find_sandbox(id).is_some()
    }

    fn stop_pod_of_container(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> Option<RuntimeCall<'_, ()>> {
        // When its containers run, and again, is the provider's: pods are stopped whole.
        let (provider, uid, _) = self.find_container(id)?;
        Some(Box::pin(async move {
            let grace_s = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
            let deleted = provider.delete_pod(&uid, grace_s).await;
            deleted.map(drop).map_err(provider_failure)
        }))
    }

    fn remove_pod_of_sandbox(&self, id: &SandboxId) -> Option<RuntimeCall<'_, ()>> {
        let (provider, uid) = self.find_sandbox(id)?;
        Some(Box::pin(async move {
            if !provider.table.borrow().is_gone(&uid) {
                provider
                    .delete_pod(&uid, 0)
                    .await
                    .map_err(provider_failure)?;
            }
            if provider.table.borrow().is_gone(&uid) {
                provider.forget_pod(&uid);
            }
            Ok(())
        }))
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Option<RuntimeCall<'a, ExecOutput>> {
        let (provider, ..) = self.find_container(id)?;
        Some(Box::pin(async move {
            let Some(after) = timeout else {
                return self.run_command(id, command, limit).await;
            };
            let late = async {
                provider
                    .clock
                    .sleep_until(provider.clock.now() + after)
                    .await;
                let what = format!("command in container {id}");
                Err(RuntimeError::Timeout { what, after })
            };
            self.run_command(id, command, limit).or(late).await
        }))
    }

    fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Option<SessionStart<'_>> {
        let asked = stream_flags_query([
            ("stdin", options.stdin),
            ("stdout", options.stdout),
            ("stderr", options.stderr),
            ("tty", options.tty),
        ]);
        self.open_container_stream(id, "exec", &(command_query(&options.command) + &asked))
    }

    fn attach(&self, id: &ContainerId, options: AttachOptions) -> Option<SessionStart<'_>> {
        let asked = stream_flags_query([
            ("stdin", options.stdin),
            ("stdout", options.stdout),
            ("stderr", options.stderr),
            ("tty", options.tty),
        ]);
        self.open_container_stream(id, "attach", &asked)
    }

    fn port_forward(&self, id: &SandboxId) -> Option<PortConnector<'_>> {
        let (provider, uid) = self.find_sandbox(id)?;
        Some(Box::new(move |port| {
            let target = format!("/pods/{uid}/portforward?port={port}");
            Box::pin(async move {
                let opened = provider
                    .wire
                    .open_stream("POST", target)
                    .await
                    .map_err(provider_failure)?;
                let socket = opened
                    .into_socket()
                    .into_inner()
                    .map_err(|e| RuntimeError::Failed(e.to_string()))?;
                Ok(socket.into())
            })
        }))
    }

    fn read_container_log<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a LogOptions,
    ) -> BackendReply<'a, Box<dyn IncomingText>> {
        Box::pin(self.read_log(id, options))
    }
}
