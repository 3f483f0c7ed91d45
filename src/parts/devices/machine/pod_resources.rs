//! Devices that pods hold, for programs that count them: `v1.PodResourcesLister` (DEV-17).
//!
//! Source: kubelet `pkg/apis/podresources/v1/api.proto`, `apis/podresources/server_v1.go`.

use alloc::rc::Rc;
use core::pin::Pin;

use smol::LocalExecutor;

use super::socket::Listener;
use crate::{
    api::device::{Holdings, PodHolds},
    grpc::{
        Time,
        proto::message,
        server::{Answering, Exchange, Handler},
        status::{Code, Status},
    },
};

message! {
    struct Empty {}
}
message! {
    struct ContainerDevices {
        1 resource_name: String,
        2 device_ids: Vec<String>,
    }
}
message! {
    struct ContainerResources {
        1 name: String,
        2 devices: Vec<ContainerDevices>,
    }
}
message! {
    struct PodResources {
        1 name: String,
        2 namespace: String,
        3 containers: Vec<ContainerResources>,
    }
}
message! {
    struct ListResponse {
        1 pods: Vec<PodResources>,
    }
}
message! {
    struct AllocatableResponse {
        1 devices: Vec<ContainerDevices>,
    }
}
message! {
    struct GetRequest {
        1 name: String,
        2 namespace: String,
    }
}
message! {
    struct GetResponse {
        1 pod: Option<PodResources>,
    }
}

/// Devices that pods hold, as the agent tells them; `None` if it is asked too often.
pub(crate) type Asked = Pin<Box<dyn Future<Output = Option<Holdings>>>>;

/// Answers until it is dropped.
pub(crate) async fn serve(
    listener: Listener,
    ask: Rc<dyn Fn() -> Asked>,
    executor: Rc<LocalExecutor<'static>>,
    time: Rc<dyn Time>,
) {
    let handler: Handler = Rc::new(move |exchange| -> Answering {
        let ask = Rc::clone(&ask);
        Box::pin(answer(exchange, ask))
    });
    listener.serve(handler, executor, time).await;
}

async fn answer(mut call: Exchange, ask: Rc<dyn Fn() -> Asked>) -> Result<(), Status> {
    let path = call.path().to_owned();
    let unknown = || Status::new(Code::UNIMPLEMENTED, format!("{path}: unknown"));
    let method = path.strip_prefix("/v1.PodResourcesLister/");
    let method = method.ok_or_else(unknown)?;
    let known = async {
        let limit = || Status::new(Code::RESOURCE_EXHAUSTED, "rejected by rate limit");
        ask().await.ok_or_else(limit)
    };
    match method {
        "List" => {
            call.request::<Empty>().await?;
            let pods = known.await?.pods.into_iter().map(pod).collect();
            call.answer(&mut ListResponse { pods }).await
        }
        "GetAllocatableResources" => {
            call.request::<Empty>().await?;
            let devices = devices(known.await?.healthy);
            call.answer(&mut AllocatableResponse { devices }).await
        }
        "Get" => {
            let wanted: GetRequest = call.request().await?;
            let mut pods = known.await?.pods.into_iter();
            let is_it = |p: &PodHolds| p.name == wanted.name && p.namespace == wanted.namespace;
            let found = pods.find(is_it).ok_or_else(|| {
                let GetRequest { name, namespace } = &wanted;
                let text = format!("pod {name} in namespace {namespace} not found");
                Status::new(Code::UNKNOWN, text)
            })?;
            let pod = Some(pod(found));
            call.answer(&mut GetResponse { pod }).await
        }
        _ => Err(unknown()),
    }
}

fn pod(pod: PodHolds) -> PodResources {
    let containers = pod.containers.into_iter();
    let containers = containers.map(|(name, held)| ContainerResources {
        name,
        devices: devices(held),
    });
    PodResources {
        name: pod.name,
        namespace: pod.namespace,
        containers: containers.collect(),
    }
}

fn devices(held: Vec<(String, Vec<String>)>) -> Vec<ContainerDevices> {
    let all = held.into_iter();
    all.map(|(resource_name, device_ids)| ContainerDevices {
        resource_name,
        device_ids,
    })
    .collect()
}
