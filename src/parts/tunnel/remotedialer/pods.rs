//! Connections of servers to pods of this node, for ways to nodes in which servers dial pods, too (K3ST-16, K3ST-17).
//!
//! ```text
//! session ─▶ pipe ─▶ is it a pod of this node? ─▶ TCP to the pod
//! ```
//!
//! Bytes that come before the pod has answered wait in the pipe.

use alloc::rc::Rc;
use core::{net::SocketAddr, time::Duration};
use std::{io, net::TcpStream};

use async_io::Async;
use smol::future::FutureExt as _;

use super::DialerShared;
use crate::{
    agent::tasks::box_task, parts::tunnel::connect::time_out_at, server::pipe::PipeServerEnd,
};

/// Time for the connection to a pod (K3ST-03).
const DIAL_TIME: Duration = Duration::from_secs(5);

/// Connects `near` to the pod at `to`, for as long as both last. Without such a pod, or if it does not answer, the
/// connection ends.
pub(super) fn connect_pod(shared: &Rc<DialerShared>, to: SocketAddr, near: PipeServerEnd) {
    let shared_here = Rc::clone(shared);
    let task = async move {
        if !(shared_here.sources.is_pod_address)(to).await {
            shared_here.report_foreign(&format!("tcp/{to}"));
            return;
        }
        if let Err(e) = carry_pod_bytes(&shared_here, to, near).await {
            log::debug!("tunnel: pod at {to}: {e}");
        }
    };
    shared.base.executor.spawn(box_task(task)).detach();
}

async fn carry_pod_bytes(
    shared: &DialerShared,
    to: SocketAddr,
    near: PipeServerEnd,
) -> io::Result<()> {
    let late = time_out_at(shared.base.alarm_after(DIAL_TIME));
    let pod = Async::<TcpStream>::connect(to).or(late).await?;
    let (from_server, to_server) = smol::io::split(near);
    // There is no half-close: the end of one direction ends both (K3ST-04).
    let inward = smol::io::copy(from_server, &pod);
    let outward = smol::io::copy(&pod, to_server);
    Box::pin(inward.or(outward)).await.map(drop)
}
