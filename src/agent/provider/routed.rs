//! The runtime, and the providers beside it: a call that names a provider's pod or container goes there, every other
//! call to the runtime. So logs, `exec`, probes, figures and garbage collection need to know of no provider.

use alloc::rc::Rc;
use core::{
    fmt::Write as _,
    future::{Future, poll_fn, ready},
    pin::Pin,
    time::Duration,
};

use serde_json::Value;
use smol::future::FutureExt as _;

use super::{Provider, Providers, decoded};
use crate::{
    agent::{executor::join_all, forward::forward},
    api::{
        ContainerId, PodUid, SandboxId,
        cri::{
            AuthConfig, Capabilities, Condition, ContainerConfig, ContainerState, ExecOutput,
            FsInfo, Handler, Image, LinuxResources, PodItem, PodRuntimeStatus, RuntimeStatus,
            SandboxConfig, SandboxStatus, Version,
        },
        order::{Gather as _, Order as _},
        stats::{ContainerUsage, Detail, DiskUsage, PodUsage, Usage},
    },
    error::chain,
    image::Progress,
    logic::metrics::own::Operation,
    provider::{Framed, ProviderError, Request},
    runtime::{
        AttachOptions, Call, Connect, ExecOptions, ImageService, Logs, Output, Room, RuntimeError,
        RuntimeService, Start, Stream,
    },
    server::http::encode,
};

/// Time for a provider's figures, which are asked for with those of all other pods: a slow provider's pods have none.
const STATS_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of output read at a time.
const STEP_BYTES: usize = 4096;

/// See the module's words.
struct Routed {
    inner: Rc<dyn RuntimeService>,
    providers: Rc<Providers>,
}

/// Makes the runtime that the rest of the agent sees: `inner` itself if there are no providers.
pub(in crate::agent) fn route(
    inner: Rc<dyn RuntimeService>,
    providers: Option<&Rc<Providers>>,
) -> Rc<dyn RuntimeService> {
    match providers {
        None => inner,
        Some(providers) => Rc::new(Routed {
            inner,
            providers: Rc::clone(providers),
        }),
    }
}

fn failed(error: ProviderError) -> RuntimeError {
    RuntimeError::Failed(chain(&error))
}

/// `stdin=1` and the others of a stream.
fn flags(all: [(&str, bool); 4]) -> String {
    let set = all.into_iter().filter(|(_, is)| *is);
    set.map(|(name, _)| format!("&{name}=1")).collect()
}

fn command(words: &[String]) -> String {
    let mut query = String::new();
    for word in words {
        let _ = write!(query, "&command={}", encode(word));
    }
    query
}

impl Provider {
    /// Asks for the usage of the provider's pods, in its own format; null if it keeps no figures.
    async fn used(&self) -> Value {
        if !self.table.borrow().answers() {
            return Value::Null;
        }
        let request = Request {
            time: STATS_TIMEOUT,
            ..Request::new("GET", "/stats")
        };
        match self.wire.ask(request).await {
            Ok(answer) if answer.status == 200 => decoded(&answer).unwrap_or_default(),
            _ => Value::Null,
        }
    }

    /// Usage of the provider's pods, of each for which it gives figures.
    async fn usage(&self) -> Vec<PodUsage> {
        let used = self.used().await;
        let at = self.clock.wall();
        let table = self.table.borrow();
        let mut all = Vec::new();
        for pod in table.list() {
            let (Some(used), Some(status)) = (used.get(pod.uid.as_str()), table.status(&pod.uid))
            else {
                continue;
            };
            let figure = |name: &str| used.get(name).and_then(Value::as_u64).unwrap_or_default();
            let (total_ns, bytes) = (figure("cpuNs"), figure("memoryBytes"));
            let mut usage = Usage {
                at,
                ..Usage::default()
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

impl Routed {
    /// Passes the call on unchanged: it is counted behind.
    const fn pass<'a, T>(&self, _: Operation, call: Call<'a, T>) -> Call<'a, T> {
        call
    }

    /// Opens the streams of a container; `None` if it is not a provider's.
    fn stream<'a>(
        &'a self,
        id: &ContainerId,
        what: &str,
        query: &str,
    ) -> Option<Call<'a, Stream<Start<'a>>>> {
        let (provider, uid, name) = self.providers.container(id)?;
        let target = format!(
            "/pods/{uid}/{what}/{name}?{}",
            query.trim_start_matches('&')
        );
        let start: Start<'a> = Box::pin(async move {
            let opened = provider.wire.open("POST", target).await.map_err(failed)?;
            Ok(Framed::session(opened.into_socket()))
        });
        Some(Box::pin(ready(Ok(Stream::Local(start)))))
    }

    /// Runs a command to its end, and keeps `limit` bytes of each stream.
    async fn run(
        &self,
        id: &ContainerId,
        words: &[String],
        limit: usize,
    ) -> Result<ExecOutput, RuntimeError> {
        let query = command(words) + "&stdout=1&stderr=1";
        let gone = || RuntimeError::NotFound(format!("container {id}"));
        let opened = self.stream(id, "exec", &query).ok_or_else(gone)?;
        let Stream::Local(start) = opened.await? else {
            return Err(gone());
        };
        let session = start.await?;
        let (mut streams, end) = (session.streams, session.end);
        let mut output = ExecOutput::default();
        let room = Room {
            stdout: STEP_BYTES,
            stderr: STEP_BYTES,
        };
        let mut buffer = [0; STEP_BYTES];
        loop {
            let read = poll_fn(|cx| streams.poll_output(cx, room, &mut buffer)).await;
            let (kept, n) = match read.map_err(|e| RuntimeError::Failed(e.to_string()))? {
                Output::Stdout(n) => (&mut output.stdout, n),
                Output::Stderr(n) => (&mut output.stderr, n),
                Output::End => break,
            };
            // The rest is read, and thrown away: the command is not to wait for its reader.
            let room = limit.saturating_sub(kept.len()).min(n);
            kept.extend_from_slice(&buffer[..room]);
            crate::sys::turn::give().await;
        }
        output.exit_code = end.await?;
        Ok(output)
    }
}

impl ImageService for Routed {
    forward! { image_status list_images pull_image pull_progress is_pulling remove_image image_fs_info }
}

impl RuntimeService for Routed {
    forward! { version update_pod_cidrs status run_pod_sandbox create_container start_container reopen_log }

    fn capabilities(&self) -> Capabilities {
        let mut all = self.inner.capabilities();
        if all.handlers.is_empty() {
            // It does not tell them, and takes whatever name it knows.
            return all;
        }
        all.handlers
            .extend(self.providers.iter().map(|provider| Handler {
                name: provider.handler.clone(),
                ..Handler::default()
            }));
        all.handlers.order_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn providers(&self) -> Option<Condition> {
        let condition = |ok, reason: &str, message| Condition {
            ok,
            reason: reason.into(),
            message,
        };
        Some(match self.providers.trouble() {
            None => condition(true, "ProvidersAnswer", "all providers answer".into()),
            Some(why) => condition(false, "ProviderSilent", why),
        })
    }

    fn list_pods(&self) -> Call<'_, Vec<PodItem>> {
        Box::pin(async {
            let mut all = self.inner.list_pods().await?;
            *self.providers.of_runtime.borrow_mut() =
                all.iter().map(|pod| pod.uid.clone()).gather();
            for provider in self.providers.iter() {
                let mut listed = provider.table.borrow().list();
                listed.retain(|pod| self.providers.is_of(&pod.uid, provider));
                all.append(&mut listed);
            }
            all.order_by(|a, b| a.uid.cmp(&b.uid));
            Ok(all)
        })
    }

    fn pod_status(&self, uid: &PodUid) -> Call<'_, PodRuntimeStatus> {
        let provider = self.providers.of(uid);
        match provider.and_then(|provider| provider.table.borrow().status(uid)) {
            Some(status) => Box::pin(ready(Ok(status))),
            None => self.inner.pod_status(uid),
        }
    }

    fn doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.inner.doorbell().or(self.providers.bell.woken()))
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> Call<'a, ()> {
        match self.providers.sandbox(id) {
            // It goes with its removal.
            Some(_) => Box::pin(ready(Ok(()))),
            None => self.inner.stop_pod_sandbox(id),
        }
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> Call<'a, ()> {
        let Some((provider, uid)) = self.providers.sandbox(id) else {
            return self.inner.remove_pod_sandbox(id);
        };
        Box::pin(async move {
            if !provider.table.borrow().is_gone(&uid) {
                provider.delete(&uid, 0).await.map_err(failed)?;
            }
            if provider.table.borrow().is_gone(&uid) {
                provider.forget(&uid);
            }
            Ok(())
        })
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> Call<'a, ()> {
        match self.providers.container(id) {
            // When its containers run, and again, is the provider's: pods are stopped whole.
            Some((provider, uid, _)) => Box::pin(async move {
                let grace_s = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
                let deleted = provider.delete(&uid, grace_s).await;
                deleted.map(drop).map_err(failed)
            }),
            None => self.inner.stop_container(id, grace),
        }
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, logs: Logs) -> Call<'a, ()> {
        match self.providers.container(id) {
            Some(_) => Box::pin(ready(Ok(()))),
            None => self.inner.remove_container(id, logs),
        }
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Call<'a, ExecOutput> {
        let Some((provider, ..)) = self.providers.container(id) else {
            return self.inner.exec_sync(id, command, timeout, limit);
        };
        Box::pin(async move {
            let Some(after) = timeout else {
                return self.run(id, command, limit).await;
            };
            let late = async {
                provider.clock.until(provider.clock.now() + after).await;
                let what = format!("command in container {id}");
                Err(RuntimeError::Timeout { what, after })
            };
            self.run(id, command, limit).or(late).await
        })
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a ContainerId,
        resources: &'a LinuxResources,
    ) -> Call<'a, ()> {
        match self.providers.container(id) {
            // It is told of the pod as it is now.
            Some(_) => Box::pin(ready(Ok(()))),
            None => self.inner.update_container_resources(id, resources),
        }
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> Call<'a, Stream<Start<'a>>> {
        let asked = flags([
            ("stdin", options.stdin),
            ("stdout", options.stdout),
            ("stderr", options.stderr),
            ("tty", options.tty),
        ]);
        let query = command(&options.command) + &asked;
        let stream = self.stream(id, "exec", &query);
        stream.unwrap_or_else(|| self.inner.exec(id, options))
    }

    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> Call<'a, Stream<Start<'a>>> {
        let query = flags([
            ("stdin", options.stdin),
            ("stdout", options.stdout),
            ("stderr", options.stderr),
            ("tty", options.tty),
        ]);
        let stream = self.stream(id, "attach", &query);
        stream.unwrap_or_else(|| self.inner.attach(id, options))
    }

    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> Call<'a, Stream<Connect<'a>>> {
        let Some((provider, uid)) = self.providers.sandbox(id) else {
            return self.inner.port_forward(id, ports);
        };
        let connect: Connect<'a> = Box::new(move |port| {
            let target = format!("/pods/{uid}/portforward?port={port}");
            Box::pin(async move {
                let opened = provider.wire.open("POST", target).await.map_err(failed)?;
                let socket = opened
                    .into_socket()
                    .into_inner()
                    .map_err(|e| RuntimeError::Failed(e.to_string()))?;
                Ok(socket.into())
            })
        });
        Box::pin(ready(Ok(Stream::Local(connect))))
    }

    fn list_pod_usage(&self, detail: Detail) -> Call<'_, Vec<PodUsage>> {
        Box::pin(async move {
            let mut all = self.inner.list_pod_usage(detail).await?;
            // All are asked at once: a silent provider delays the figures by its own time limit only.
            let providers = || self.providers.iter();
            let said = join_all(providers().map(|provider| provider.usage())).await;
            for (provider, mut said) in providers().zip(said) {
                said.retain(|pod| self.providers.is_of(&pod.uid, provider));
                all.append(&mut said);
            }
            all.order_by(|a, b| a.uid.cmp(&b.uid));
            Ok(all)
        })
    }

    fn writable_layer<'a>(&'a self, id: &'a ContainerId) -> Call<'a, Option<DiskUsage>> {
        match self.providers.container(id) {
            Some(_) => Box::pin(ready(Ok(None))),
            None => self.inner.writable_layer(id),
        }
    }
}
