//! Lifecycle hooks. Rows HOOK-01 to HOOK-05.

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

use async_io::Async;
use smol::{
    future::FutureExt as _,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
};

use super::ctx::Ctx;
use crate::{
    api::{
        Container, ContainerId, Mono, Pod,
        cri::{ContainerState, PodRuntimeStatus},
        pod::{HttpGetAction, IntOrString, LifecycleHandler},
    },
    logic::pod_table::Handle,
    runtime::RuntimeError,
};

/// Bytes kept of what a hook's command writes; it is only logged.
const MAX_OUTPUT_BYTES: usize = 1024;
/// An HTTP hook that is not answered in this time has failed.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// When a hook is no longer waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// At this instant: the grace of its container is used up.
    Time(Mono),
    /// When the pod's running call is told to end early.
    Cancelled(Handle),
}

/// How a hook did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HookError {
    /// It failed. The text may hold secrets.
    Failed(String),
    /// It was not waited for any longer.
    NotWaitedFor,
}

/// Runs a hook to its end, at most until `until`. A command that is not waited for any longer is killed.
pub(super) async fn run(
    ctx: &Ctx,
    pod: &Pod,
    status: &PodRuntimeStatus,
    container: &Container,
    handler: &LifecycleHandler,
    until: Until,
) -> Result<(), HookError> {
    let late = async {
        match until {
            Until::Time(deadline) => ctx.clock.until(deadline).await,
            Until::Cancelled(handle) => {
                let is_cancelled = || ctx.table.borrow().is_cancelled(handle).then_some(());
                ctx.cancelled.until(is_cancelled).await;
            }
        }
        Err(HookError::NotWaitedFor)
    };
    if let Some(exec) = &handler.exec {
        let running = status
            .instances(&container.name)
            .find(|c| c.state == ContainerState::Running);
        let id = running
            .map(|c| c.id.clone())
            .ok_or_else(|| HookError::Failed("the container does not run".into()))?;
        match until {
            // The command has its own time-out, so that its end is waited for too.
            Until::Time(deadline) => {
                let left = deadline - ctx.clock.now();
                command(ctx, &id, &exec.command, Some(left)).await
            }
            Until::Cancelled(_) => command(ctx, &id, &exec.command, None).or(late).await,
        }
    } else if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        let done = async {
            ctx.clock
                .until(ctx.clock.now() + Duration::from_secs(seconds))
                .await;
            Ok(())
        };
        done.or(late).await
    } else if let Some(get) = &handler.http_get {
        let wait = ctx.clock.now() + HTTP_TIMEOUT;
        let unanswered = async {
            ctx.clock.until(wait).await;
            Err("no answer in time".to_owned())
        };
        let get = async {
            let answer = http_get(pod, status, container, get).or(unanswered).await;
            answer.map_err(HookError::Failed)
        };
        get.or(late).await
    } else {
        Err(HookError::Failed(
            "invalid handler: none of exec, httpGet, sleep".into(),
        ))
    }
}

async fn command(
    ctx: &Ctx,
    id: &ContainerId,
    words: &[String],
    timeout: Option<Duration>,
) -> Result<(), HookError> {
    match ctx.runtime.exec(id, words, timeout, MAX_OUTPUT_BYTES).await {
        Ok(output) if output.exit_code == 0 => Ok(()),
        Ok(output) => Err(HookError::Failed(format!(
            "command ended with {}: {}{}",
            output.exit_code,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))),
        Err(RuntimeError::Timeout { .. }) if timeout.is_some() => Err(HookError::NotWaitedFor),
        Err(e) => Err(HookError::Failed(e.to_string())),
    }
}

/// Any HTTP answer is success, whatever its status code (HOOK-05).
async fn http_get(
    pod: &Pod,
    status: &PodRuntimeStatus,
    container: &Container,
    get: &HttpGetAction,
) -> Result<(), String> {
    if get.scheme.eq_ignore_ascii_case("https") {
        return Err("https hooks need TLS, which this agent does not have yet".into());
    }
    let port = port_of(container, &get.port)?;
    let ip: IpAddr = if get.host.is_empty() {
        let own = status.ips.first().copied();
        own.or_else(|| pod.status.pod_ip.parse().ok())
            .ok_or("the pod has no IP")?
    } else {
        get.host
            .parse()
            .map_err(|_| format!("host {:?}: only IP addresses can be used", get.host))?
    };
    let address = SocketAddr::new(ip, port);
    let failed = |e: std::io::Error| format!("{address}: {e}");
    let mut stream = Async::<std::net::TcpStream>::connect(address)
        .await
        .map_err(failed)?;
    let path = if get.path.starts_with('/') {
        get.path.clone()
    } else {
        format!("/{}", get.path)
    };
    let mut head = format!("GET {path} HTTP/1.1\r\n");
    let has = |name: &str| {
        get.http_headers
            .iter()
            .any(|h| h.name.eq_ignore_ascii_case(name))
    };
    if !has("host") {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    if !has("user-agent") {
        head.push_str("User-Agent: kube-lifecycle/1.36\r\n");
    }
    if !has("accept") {
        head.push_str("Accept: */*\r\n");
    }
    for header in &get.http_headers {
        if !header.name.contains(['\r', '\n']) && !header.value.contains(['\r', '\n']) {
            head.push_str(&format!("{}: {}\r\n", header.name, header.value));
        }
    }
    head.push_str("Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.map_err(failed)?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.map_err(failed)?;
    if answer == *b"HTTP/" {
        Ok(())
    } else {
        Err(format!("{address}: what answers does not speak HTTP"))
    }
}

fn port_of(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(n) => u16::try_from(*n).ok(),
        IntOrString::Text(name) => {
            let named = container
                .ports
                .iter()
                .find(|p| p.name == *name)
                .map(|p| p.container_port);
            named.or_else(|| name.parse().ok())
        }
    };
    number
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("invalid port {port:?}"))
}
