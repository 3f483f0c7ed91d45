//! Pollers of the agent: every outside world is read as a complete snapshot at a bounded rate;
//! a doorbell only makes the next read come sooner.

use alloc::rc::Rc;
use core::time::Duration;

use smol::channel::{Receiver, Sender};

use super::{
    asker::AgentHandle,
    assembly,
    clock::{Clock, align_to_second},
    core::AgentEvent,
    driver::PodDriver,
    gc::GarbageCollector,
    parts::AgentParts,
    relister::{Relister, RuntimeConditionReader},
    tasks::{AgentTask, box_task},
};
use crate::api::MonoTime;

/// Time between passes of housekeeping (LOOP-01).
pub(super) const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(2);
/// Time between passes of container garbage collection (GC-01).
pub(super) const CONTAINER_GC_INTERVAL: Duration = Duration::from_secs(60);

/// Makes the tasks that look at the runtime for the loop. `asked`: the loop's requests for relists.
pub(super) fn poller_tasks(
    parts: &AgentParts,
    driver: Rc<dyn PodDriver>,
    asked: Receiver<MonoTime>,
    events: &Sender<AgentEvent>,
) -> Vec<AgentTask> {
    let (tools, runtime) = (&parts.tools, &parts.machine.runtime);
    let conditions = RuntimeConditionReader {
        runtime: Rc::clone(runtime),
        clock: Rc::clone(&tools.clock),
        complaints: Rc::clone(&tools.complaints),
        events: events.clone(),
    };
    let relister = Relister {
        driver,
        clock: Rc::clone(&tools.clock),
        complaints: Rc::clone(&tools.complaints),
        counters: tools.counters.clone(),
        doorbells: parts.cfg.doorbells,
        asked,
        events: events.clone(),
    };
    let garbage = assembly::make_garbage_collector(parts, AgentHandle::new(events.clone()));
    vec![
        box_task(conditions.poll_conditions()),
        box_task(relister.run_relists()),
        box_task(tick_housekeeping(Rc::clone(&tools.clock), events.clone())),
        box_task(run_container_gc(garbage, events.clone())),
    ]
}

/// Tells the loop at an interval that housekeeping is due.
async fn tick_housekeeping(clock: Rc<dyn Clock>, events: Sender<AgentEvent>) {
    loop {
        let now = clock.now();
        let next = align_to_second(now + HOUSEKEEPING_INTERVAL, now);
        clock.sleep_until(next).await;
        if events.send(AgentEvent::Housekeeping).await.is_err() {
            return;
        }
    }
}

/// Collects garbage of containers, sandboxes and logs.
async fn run_container_gc(garbage: GarbageCollector, events: Sender<AgentEvent>) {
    let clock = Rc::clone(&garbage.clock);
    loop {
        let now = clock.now();
        let next = align_to_second(now + CONTAINER_GC_INTERVAL, now);
        clock.sleep_until(next).await;
        garbage.collect_garbage().await;
        if events.send(AgentEvent::Collected).await.is_err() {
            return;
        }
    }
}
