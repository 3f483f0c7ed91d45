//! The task that drives all probes of the node: it looks when one is due, and starts it.

use alloc::rc::Rc;
use core::time::Duration;
use std::path::PathBuf;

use smol::{LocalExecutor, future::FutureExt as _};

use super::{Asked, Probed, Probes, Wire, ask, passed};
use crate::{
    agent::{clock::Clock, complaints::Complaints},
    api::{ContainerId, Mono, Pod, PodStatus, PodUid, pod_status::ContainerStatus},
    logic::{
        probe::{Key, Seen, SeenContainer, SeenState, Step, workers::bare},
        restart,
    },
    runtime::RuntimeService,
};

/// Probes may come so much early: those that are due at nearly the same time share a wake-up, and find the code they run in
/// the processor's caches. A tenth of the shortest period.
const SLACK: Duration = Duration::from_millis(100);

/// What probes must know of pods, and tell of them.
pub(in crate::agent) trait ProbedPods {
    /// Hands the status that is stored to `look`, which must ask for nothing but [`ProbedPods::spec`].
    fn with_status(&self, uid: &PodUid, look: &mut dyn FnMut(Option<&PodStatus>));
    /// The pod as recorded, if it can be read.
    fn spec(&self, uid: &PodUid) -> Option<Pod>;
    /// Records an event of a container, `field` of the pod's spec, as long as the pod has a worker.
    fn warn(&self, uid: &PodUid, field: &str, reason: &str, message: &str);
}

/// What the driver works with.
pub(in crate::agent) struct Driver {
    /// What it drives.
    pub(in crate::agent) probes: Rc<Probes>,
    /// Time.
    pub(in crate::agent) clock: Rc<dyn Clock>,
    /// Where commands run.
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    /// Where everything else is asked.
    pub(in crate::agent) wire: Rc<dyn Wire>,
    /// Whom they are about.
    pub(in crate::agent) pods: Rc<dyn ProbedPods>,
    /// Hands a result to the loop; `false`: that has ended.
    pub(in crate::agent) tell: Box<dyn Fn(Probed) -> Asked<'static, bool>>,
    /// For what cannot be stored.
    pub(in crate::agent) complaints: Rc<Complaints>,
    /// Where what is ready is stored, for the agent after this one.
    pub(in crate::agent) run_dir: PathBuf,
}

impl Driver {
    /// Takes back what an earlier agent of this boot stored.
    pub(in crate::agent) fn recall(&self) {
        passed::recall(&self.probes, &self.run_dir);
    }

    /// Drives the probes for the life of the agent; each that is due is a task of its own on `executor`.
    pub(in crate::agent) async fn run(self, executor: Rc<LocalExecutor<'static>>) {
        let this = Rc::new(self);
        let (probes, clock) = (&this.probes, &this.clock);
        loop {
            probes.limits.rest.end();
            let now = clock.now();
            probes.limits.pass(now);
            // Not borrowed while a probe is made.
            let next = || probes.workers.borrow_mut().poll_due(now + SLACK);
            while let Some(key) = next() {
                let (step, probed) = this.pass(key, now);
                if step == Step::Ask {
                    match this.target(key) {
                        Some(target) => {
                            let this = Rc::clone(&this);
                            let task = async move { ask::run(&this, key, target).await };
                            executor.spawn(task).detach();
                        }
                        None => _ = probes.workers.borrow_mut().outcome(key, "", None, now),
                    }
                }
                if let Some(probed) = probed
                    && !(this.tell)(probed).await
                {
                    return;
                }
            }
            let due = probes.workers.borrow().next_due();
            let due = due.into_iter().chain(probes.limits.next()).min();
            let due = due.unwrap_or(Mono(u64::MAX));
            probes.limits.rest.until(due).or(clock.until(due)).await;
        }
    }

    /// Hands the stored status of a pod to `look`.
    fn with_status<T>(&self, uid: &PodUid, look: impl FnOnce(Option<&PodStatus>) -> T) -> T {
        let (mut look, mut seen) = (Some(look), None);
        self.pods.with_status(uid, &mut |status| {
            seen = look.take().map(|look| look(status));
        });
        seen.expect("looked at once")
    }

    /// What the worker is about now.
    fn target(&self, key: Key) -> Option<ask::Target> {
        let workers = self.probes.workers.borrow();
        let (uid, entry) = workers.entry(key)?;
        self.with_status(uid, |status| ask::Target::of(uid, entry, status?))
    }

    /// One pass of a worker, by the status that is stored.
    fn pass(&self, key: Key, now: Mono) -> (Step, Option<Probed>) {
        let mut workers = self.probes.workers.borrow_mut();
        let Some((uid, entry)) = workers.entry(key) else {
            return (Step::End, None);
        };
        let (uid, kind) = (uid.clone(), entry.worker.settings().kind);
        let name = entry.container.clone();
        let wall = self.clock.wall();
        self.with_status(&uid, |status| {
            let container = status.and_then(|s| container_status(s, &name));
            let seen = Seen {
                ended: status.is_some_and(|s| s.phase.is_terminal()),
                container: container.map(|c| SeenContainer {
                    id: bare(&c.container_id),
                    state: match (&c.state.running, &c.state.terminated) {
                        (Some(running), _) => {
                            let started_at = running.started_at.unwrap_or(wall);
                            let age_s = wall.secs().saturating_sub(started_at.secs()).max(0);
                            SeenState::Running {
                                age_s: u32::try_from(age_s).unwrap_or(u32::MAX),
                                adopted: workers.is_adopted(started_at),
                            }
                        }
                        (None, Some(ended)) => SeenState::Ended(ended.exit_code),
                        (None, None) => SeenState::Waiting,
                    },
                    started: c.started == Some(true),
                    ready: c.ready,
                }),
            };
            let restarts = |code| self.restarts(&uid, &name, code);
            let (step, news) = workers.pass(key, &seen, restarts, now);
            let probed = news.zip(container).map(|(result, c)| Probed {
                uid: uid.clone(),
                container_id: c.container_id.as_str().into(),
                kind,
                result,
            });
            (step, probed)
        })
    }

    /// Whether the pod's record says that another instance follows. One that cannot be read ends nothing.
    fn restarts(&self, uid: &PodUid, name: &str, exit_code: i32) -> bool {
        let Some(pod) = self.pods.spec(uid) else {
            return true;
        };
        let container = pod.spec.all_containers().find(|c| c.name == name);
        restart::has_restart_all_rule(&pod)
            || container.is_none_or(|c| {
                c.is_sidecar() && pod.spec.init_containers.iter().any(|i| i.name == name)
                    || restart::restarts_after_exit(&pod, c, exit_code)
            })
    }
}

/// The status of a container of which an instance was created.
pub(super) fn container_status<'a>(
    status: &'a PodStatus,
    name: &str,
) -> Option<&'a ContainerStatus> {
    let all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses);
    all.filter(|c| !c.container_id.is_empty())
        .find(|c| c.name == name)
}

/// The instance that a status names.
pub(super) fn instance(status: &ContainerStatus) -> ContainerId {
    bare(&status.container_id).into()
}
