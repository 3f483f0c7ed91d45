//! A driver that runs no containers: a sample of all that a driver has to do.

use alloc::{collections::BTreeMap, rc::Rc};
use core::{cell::RefCell, future};

use serde_json::json;

use super::{
    super::{
        clock::Clock,
        driver::{DriverFuture, PodDriver, PodStopMode},
        executor::{CallPlan, CallStep},
        parts::AgentParts,
        pod_store::PodStore,
    },
    probes::s,
    world::{World, manifest},
};
use crate::{
    api::{
        Container, ContainerId, Pod, PodUid, SandboxId,
        cri::{ContainerState, ContainerStatus, PodItem, PodRuntimeStatus},
        pod_status::PodPhase,
    },
    logic::{pod_worker::CallOutcome, work_queue::RetryCause},
    runtime::RuntimeCall,
    sys::lane::Lane,
};

/// Machines in the field: each container of a pod is one, and is switched on and off.
struct Devices {
    store: PodStore,
    disk: Lane,
    clock: Rc<dyn Clock>,
    pods: RefCell<BTreeMap<PodUid, PodRuntimeStatus>>,
}

fn devices(parts: &AgentParts) -> Rc<dyn PodDriver> {
    Rc::new(Devices {
        store: parts.machine.store.clone(),
        disk: parts.machine.disk.clone(),
        clock: Rc::clone(&parts.tools.clock),
        pods: RefCell::default(),
    })
}

impl Devices {
    async fn pod(&self, plan: &CallPlan) -> Option<Rc<Pod>> {
        self.store.load_pod(&self.disk, &plan.uid).await.ok()
    }

    fn switch_on(&self, pod: &Pod) {
        let device = |container: &Container| ContainerStatus {
            id: ContainerId::from(&*format!("{}-{}", pod.metadata.uid, container.name)),
            sandbox: SandboxId::from(""),
            name: container.name.clone(),
            restart_count: 0,
            state: ContainerState::Running,
            created_at: self.clock.wall_time(),
            started_at: Some(self.clock.wall_time()),
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            volume_images: Vec::new(),
            mounts: Vec::new(),
            stop_signal: String::new(),
            hash: 0,
            user: None,
            pid: 0,
            log_path: String::new(),
        };
        let status = PodRuntimeStatus {
            uid: pod.metadata.uid.clone(),
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            containers: pod.spec.containers.iter().map(device).collect(),
            ..PodRuntimeStatus::default()
        };
        let mut pods = self.pods.borrow_mut();
        pods.entry(pod.metadata.uid.clone()).or_insert(status);
    }

    fn switch_off(&self, uid: &PodUid) {
        let mut pods = self.pods.borrow_mut();
        let all = pods.get_mut(uid).into_iter();
        for device in all.flat_map(|pod| &mut pod.containers) {
            device.state = ContainerState::Exited;
            device.finished_at = Some(self.clock.wall_time());
            device.exit_code = 7;
        }
    }

    fn read(&self, uid: &PodUid) -> PodRuntimeStatus {
        let known = self.pods.borrow().get(uid).cloned();
        known.unwrap_or_else(|| PodRuntimeStatus {
            uid: uid.clone(),
            ..PodRuntimeStatus::default()
        })
    }
}

impl PodDriver for Devices {
    fn sync_pod<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome> {
        Box::pin(async move {
            let Some(pod) = self.pod(plan).await else {
                return CallOutcome::Failed(RetryCause::Error);
            };
            let begun = plan.line.ask_loop(|answer| CallStep::Begun {
                pod: Rc::clone(&pod),
                runtime: Rc::clone(&plan.runtime),
                failure: None,
                answer,
            });
            if begun.await.terminal {
                return CallOutcome::Terminal;
            }
            self.switch_on(&pod);
            plan.line.tell_loop(CallStep::Changed).await;
            CallOutcome::Done
        })
    }

    fn terminate_pod<'a>(
        &'a self,
        plan: &'a CallPlan,
        stop: PodStopMode,
    ) -> DriverFuture<'a, CallOutcome> {
        Box::pin(async move {
            self.switch_off(&plan.uid);
            if stop != PodStopMode::Unknown
                && let Some(pod) = self.pod(plan).await
            {
                let runtime = Rc::new(self.read(&plan.uid));
                plan.line
                    .tell_loop(CallStep::Stopped { pod, runtime })
                    .await;
            }
            plan.line.tell_loop(CallStep::Changed).await;
            CallOutcome::Done
        })
    }

    fn clean_up_pod<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome> {
        Box::pin(async move {
            let pod = self.pod(plan).await;
            plan.line.tell_loop(CallStep::CleanedUp(pod)).await;
            CallOutcome::Done
        })
    }

    fn remove_pod_remains<'a>(&'a self, uid: &'a PodUid) -> DriverFuture<'a, ()> {
        self.pods.borrow_mut().remove(uid);
        Box::pin(future::ready(()))
    }

    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>> {
        let pods = self.pods.borrow();
        let list = pods.values().map(PodItem::from).collect();
        Box::pin(future::ready(Ok(list)))
    }

    fn read_pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeCall<'a, PodRuntimeStatus> {
        Box::pin(future::ready(Ok(self.read(uid))))
    }

    fn wait_for_change(&self) -> DriverFuture<'_, ()> {
        Box::pin(future::pending())
    }
}

#[test]
fn pods_need_no_containers() {
    let world = World::driven_by(devices);
    world.apply(&[manifest("lamp", json!({})), manifest("pump", json!({}))]);
    world.until("both run", |w| {
        let runs = |uid: &&str| w.phase(uid) == Some(PodPhase::Running);
        ["lamp", "pump"].iter().all(runs)
    });
    // Neither a change of the spec nor time switches a machine twice.
    world.advance(s(120));
    assert_eq!(world.phase("pump"), Some(PodPhase::Running));

    world.apply(&[manifest("pump", json!({}))]);
    world.until("one is gone", |w| w.is_gone("lamp"));
    assert_eq!(world.phase("pump"), Some(PodPhase::Running));

    let _answer = world.stop(true);
    // The agent ends once the driver says that nothing runs any more.
    world.until("the agent ends", World::has_ended);
    assert!(
        world.fake.pods().is_empty(),
        "the runtime had nothing to do"
    );
}
