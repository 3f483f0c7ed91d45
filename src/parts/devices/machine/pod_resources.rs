//! Devices that pods hold, for programs that count them: `v1.PodResourcesLister` (DEV-17).
//!
//! Source: kubelet `pkg/apis/podresources/v1/api.proto`, `apis/podresources/server_v1.go`.

use alloc::rc::Rc;
use core::pin::Pin;

use smol::LocalExecutor;

use super::socket::DeviceSocketListener;
use crate::{
    api::device::{DeviceHoldings, PodDeviceHoldings},
    grpc::{
        ConnectionClock,
        proto::message,
        server::{CallFuture, CallHandler, ServerCall},
        status::{GrpcCode, GrpcStatus},
    },
};

message! {
    struct PodResourcesEmpty {}
    struct ContainerDevicesMessage {
        1 resource_name: String,
        2 device_ids: Vec<String>,
    }
    struct ContainerResources {
        1 name: String,
        2 devices: Vec<ContainerDevicesMessage>,
    }
    struct PodResources {
        1 name: String,
        2 namespace: String,
        3 containers: Vec<ContainerResources>,
    }
    struct ListPodResourcesResponse {
        1 pods: Vec<PodResources>,
    }
    struct AllocatableResourcesResponse {
        1 devices: Vec<ContainerDevicesMessage>,
    }
    struct GetPodResourcesRequest {
        1 name: String,
        2 namespace: String,
    }
    struct GetPodResourcesResponse {
        1 pod: Option<PodResources>,
    }
}

/// Devices that pods hold, as the agent tells them; `None` if it is asked too often.
pub(crate) type HoldingsAnswer = Pin<Box<dyn Future<Output = Option<DeviceHoldings>>>>;

/// Answers until it is dropped.
pub(crate) async fn serve_pod_resources(
    listener: DeviceSocketListener,
    ask: Rc<dyn Fn() -> HoldingsAnswer>,
    executor: Rc<LocalExecutor<'static>>,
    time: Rc<dyn ConnectionClock>,
) {
    let handler: CallHandler = Rc::new(move |exchange| -> CallFuture {
        let ask = Rc::clone(&ask);
        Box::pin(answer_call(exchange, ask))
    });
    listener.serve_calls(handler, executor, time).await;
}

async fn answer_call(
    mut call: ServerCall,
    ask: Rc<dyn Fn() -> HoldingsAnswer>,
) -> Result<(), GrpcStatus> {
    let path = call.method_path().to_owned();
    let unknown = || GrpcStatus::new(GrpcCode::UNIMPLEMENTED, format!("{path}: unknown"));
    let method = path.strip_prefix("/v1.PodResourcesLister/");
    let method = method.ok_or_else(unknown)?;
    let known = async {
        let limit = || GrpcStatus::new(GrpcCode::RESOURCE_EXHAUSTED, "rejected by rate limit");
        ask().await.ok_or_else(limit)
    };
    match method {
        "List" => {
            call.single_request::<PodResourcesEmpty>().await?;
            let pods = known.await?.pods.into_iter().map(pod_resources).collect();
            call.send_answer(&mut ListPodResourcesResponse { pods })
                .await
        }
        "GetAllocatableResources" => {
            call.single_request::<PodResourcesEmpty>().await?;
            let devices = container_devices(known.await?.healthy);
            call.send_answer(&mut AllocatableResourcesResponse { devices })
                .await
        }
        "Get" => {
            let wanted: GetPodResourcesRequest = call.single_request().await?;
            let mut pods = known.await?.pods.into_iter();
            let is_it =
                |p: &PodDeviceHoldings| p.name == wanted.name && p.namespace == wanted.namespace;
            let found = pods.find(is_it).ok_or_else(|| {
                let GetPodResourcesRequest { name, namespace } = &wanted;
                let text = format!("pod {name} in namespace {namespace} not found");
                GrpcStatus::new(GrpcCode::UNKNOWN, text)
            })?;
            let pod = Some(pod_resources(found));
            call.send_answer(&mut GetPodResourcesResponse { pod }).await
        }
        _ => Err(unknown()),
    }
}

fn pod_resources(pod: PodDeviceHoldings) -> PodResources {
    let containers = pod.containers.into_iter();
    let containers = containers.map(|(name, held)| ContainerResources {
        name,
        devices: container_devices(held),
    });
    PodResources {
        name: pod.name,
        namespace: pod.namespace,
        containers: containers.collect(),
    }
}

fn container_devices(held: Vec<(String, Vec<String>)>) -> Vec<ContainerDevicesMessage> {
    let all = held.into_iter();
    all.map(|(resource_name, device_ids)| ContainerDevicesMessage {
        resource_name,
        device_ids,
    })
    .collect()
}
