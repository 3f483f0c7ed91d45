//! The pods of this node, from the apiserver to the loop. When to ask is decided by [`ApiPoll`], what changed by the mux;
//! here the requests are made, and what they bring is recorded and told.
//!
//! ```text
//!  ApiPoll ──Ask──▶ lanes ──Answer──▶ one queue ──▶ ApiPoll ──Deliver──▶ mux ──▶ record on disk ──▶ loop
//!                 doorbell ──Rung──────────▲
//!                 statuses ──Written───────┘  (an answer to a write that says more than was known)
//! ```
//!
//! One queue, worked off one by one: an object that was read before another of the same pod is also delivered before it.

use alloc::{collections::BTreeMap, rc::Rc};
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};

use smol::{
    LocalExecutor,
    channel::{Receiver, SendError, Sender},
    future::FutureExt as _,
};

use super::{
    answers::{self, Seen},
    boxed, of, restore, statuses, until,
    wake::Wake,
};
use crate::{
    agent::{
        core::Event,
        ctx::Shared,
        recorder::{About, Severity},
        records,
        sync::chain,
    },
    api::{Mono, PodUid, received::Delivered},
    config::Config,
    kube::{Api, Doorbell, KubeError, Listed, Rung, WatchEnd, WatchOptions},
    logic::{
        api_poll::{ApiPoll, Ask, BellEnd, Failure, Item, List, Paces, Ticket, Verdict},
        mirror::Mirrors,
        mux::{Merged, Source},
        status_writer::StatusWriter,
    },
};

/// Answers that wait: whole pods of a list are read no faster than they are recorded.
#[cfg(not(test))]
const ANSWERS: usize = 4;
/// Tests have no lane that could wait beside the executor.
#[cfg(test)]
const ANSWERS: usize = 4096;
/// A watch ends after this time, a little before a list would be due all the same.
const WATCH_TIME: Duration = Duration::from_secs(280);
/// A watch that ends so much earlier did not end by its time: the server stops, or was put back to an older state in
/// which the versions known here lie in the future.
const WATCH_SLACK: Duration = Duration::from_secs(10);
/// Reason of a pod that no list of pods can be told more of than that it is wrong; a kubelet's word for what admission did
/// not expect.
const UNUSABLE: &str = "UnexpectedAdmissionError";

/// What is known of the API's pods.
pub(super) struct Pods {
    pub(super) poll: RefCell<ApiPoll>,
    pub(super) writer: RefCell<StatusWriter>,
    pub(super) mirrors: RefCell<Mirrors>,
    answers: (Sender<Answer>, Receiver<Answer>),
    /// The poller may have something to ask.
    pub(super) asks_due: Wake,
    /// Something may have to be written.
    pub(super) statuses_due: Wake,
    /// The agent ends with its pods: how they end is not the API's business, for the next agent starts them again.
    pub(super) is_silent: Cell<bool>,
    /// Mirrors may not be as they should.
    pub(super) mirrors_due: Wake,
    /// Pods whose record could not be written, to be read again.
    unrecorded: RefCell<BTreeMap<PodUid, Mono>>,
    /// When the watch began.
    watching_since: Cell<Mono>,
    /// When records that wait for the disk are looked at next.
    settle_at: Cell<Mono>,
    bookmarks: bool,
    /// What was restored is known to the loop.
    pub(super) restored: Cell<bool>,
}

/// What a request led to.
enum Answer {
    /// A list of metadata ended; what it has shown until then.
    Listed(Vec<Item>, Result<Listed, KubeError>),
    /// One item of a list of whole objects.
    Object(Box<Seen>),
    /// A read ended; `None`: what came was no pod.
    Got(Ticket, Result<Option<Box<Seen>>, KubeError>),
    /// A write of ours was answered with more than was known.
    Written(Box<Seen>),
}

impl Pods {
    pub(super) fn new(cfg: &Config, slots: usize, seed: u64) -> Self {
        let paces = if cfg.cluster.metered {
            Paces::METERED
        } else {
            Paces::NORMAL
        };
        let paces = Paces {
            doorbell: cfg.doorbells,
            ..paces
        };
        Self {
            poll: RefCell::new(ApiPoll::new(paces, slots, seed)),
            writer: RefCell::new(StatusWriter::new(seed.rotate_left(1))),
            mirrors: RefCell::default(),
            answers: smol::channel::bounded(ANSWERS),
            asks_due: Wake::default(),
            statuses_due: Wake::default(),
            is_silent: Cell::new(false),
            mirrors_due: Wake::default(),
            unrecorded: RefCell::default(),
            watching_since: Cell::new(Mono(0)),
            settle_at: Cell::new(Mono(0)),
            bookmarks: !cfg.cluster.metered,
            restored: Cell::new(false),
        }
    }

    pub(super) fn on_status(&self) {
        self.writer.borrow_mut().on_change();
        self.statuses_due.ring();
    }

    pub(super) fn is_unread(&self, uid: &PodUid) -> bool {
        self.poll.borrow().unread().any(|known| *known == **uid)
    }

    pub(super) fn mirror_uids(&self) -> Vec<PodUid> {
        self.mirrors.borrow().uids()
    }

    /// An answer to a write is to be delivered.
    pub(super) async fn written(&self, seen: Box<Seen>) {
        // The receiving end is a field of the same value.
        let _ = self.answers.0.send(Answer::Written(seen)).await;
    }
}

/// Polls until the loop is gone.
pub(super) async fn run(ctx: Shared, executor: Rc<LocalExecutor<'static>>, events: Sender<Event>) {
    let desk = Desk {
        ctx,
        executor,
        events,
    };
    // Only the loop's end ends it.
    let _ = desk.work().await;
}

/// What wakes the desk.
enum Wakened {
    Answer(Answer),
    Rung(Rung),
    Due,
}

struct Desk {
    ctx: Shared,
    executor: Rc<LocalExecutor<'static>>,
    events: Sender<Event>,
}

type Told = Result<(), SendError<Event>>;

impl Desk {
    fn pods(&self) -> &Pods {
        &of(&self.ctx).pods
    }

    fn now(&self) -> Mono {
        self.ctx.clock.now()
    }

    async fn work(&self) -> Told {
        restore::pods(&self.ctx, &self.events).await?;
        let pods = self.pods();
        pods.restored.set(true);
        pods.statuses_due.ring();
        let mut bell = None;
        loop {
            self.ask(&mut bell).await?;
            let answer = async {
                match pods.answers.1.recv().await {
                    Ok(answer) => Wakened::Answer(answer),
                    Err(_) => core::future::pending().await,
                }
            };
            let rung = async {
                match &bell {
                    Some(bell) => Wakened::Rung(Doorbell::next(bell).await),
                    None => core::future::pending().await,
                }
            };
            let due = async {
                let next = if of(&self.ctx).node.is_read() {
                    pods.poll.borrow().next_timeout(self.now())
                } else {
                    Mono(u64::MAX)
                };
                let retry = pods.unrecorded.borrow().values().min().copied();
                let settle = self.records_wait_for_us().then(|| pods.settle_at.get());
                let first = [retry, settle].into_iter().flatten().min();
                until(&self.ctx, first.map_or(next, |first| next.min(first))).await;
                Wakened::Due
            };
            let asked = async {
                pods.asks_due.heard().await;
                Wakened::Due
            };
            match answer.or(rung).or(asked).or(due).await {
                Wakened::Answer(answer) => self.take(answer).await?,
                Wakened::Rung(rung) => self.hear(rung),
                Wakened::Due => self.retry_records().await,
            }
        }
    }

    /// Does all that the poller wants done now.
    async fn ask(&self, bell: &mut Option<Doorbell>) -> Told {
        if !of(&self.ctx).node.is_read() {
            return Ok(());
        }
        loop {
            let next = self.pods().poll.borrow_mut().poll(self.now());
            match next {
                None => return Ok(()),
                Some(Ask::List(list)) => self.list(list),
                Some(Ask::Get {
                    ticket,
                    namespace,
                    name,
                }) => self.get(ticket, namespace, name),
                Some(Ask::Watch { from }) => self.watch(bell, &from).await,
                Some(Ask::Gone(uid)) => self.gone(uid).await?,
                Some(Ask::Refuse(item)) => {
                    let message = "Node didn't have enough resource: pods";
                    self.refuse(item, "OutOfpods", message);
                }
                Some(Ask::Complete) => self.complete().await?,
            }
        }
    }

    fn list(&self, list: List) {
        let (ctx, node) = (Rc::clone(&self.ctx), self.ctx.node.name.clone());
        let answers = self.pods().answers.0.clone();
        let task = async move {
            let objects = answers.clone();
            let job = move |api: &dyn Api| {
                let mut items = Vec::new();
                let mut each = |meta| items.push(answers::item(meta));
                let ended = match list {
                    List::Live => api.list_pods(&node, &mut each),
                    List::All => api.list_all_pods(&node, &mut each),
                    List::Objects => api.list_whole_pods(&node, &mut |raw| {
                        if let Some(seen) = Seen::of(raw, &node) {
                            // Nobody takes it only when the agent ends.
                            let _ = objects.send_blocking(Answer::Object(Box::new(seen)));
                        }
                    }),
                };
                Answer::Listed(items, ended)
            };
            let answer = of(&ctx).lanes.work(job).await;
            let _ = answers.send(answer).await;
        };
        self.executor.spawn(boxed(task)).detach();
    }

    fn get(&self, ticket: Ticket, namespace: Box<str>, name: Box<str>) {
        let (ctx, node) = (Rc::clone(&self.ctx), self.ctx.node.name.clone());
        let answers = self.pods().answers.0.clone();
        let task = async move {
            let job = move |api: &dyn Api| {
                let read = api.pod(&node, &namespace, &name)?;
                let seen = Seen::of(read, &node).map(Box::new);
                // Another pod than the one asked for is an answer of nobody's.
                Ok(seen.filter(|s| s.item.namespace == namespace && s.item.name == name))
            };
            let got = of(&ctx).lanes.work(job).await;
            let _ = answers.send(Answer::Got(ticket, got)).await;
        };
        self.executor.spawn(boxed(task)).detach();
    }

    async fn watch(&self, bell: &mut Option<Doorbell>, from: &str) {
        let options = WatchOptions {
            node: self.ctx.node.name.clone(),
            resource_version: from.into(),
            timeout: WATCH_TIME,
            bookmarks: self.pods().bookmarks,
        };
        if bell.is_none() {
            match of(&self.ctx).lanes.doorbell() {
                Ok(started) => *bell = Some(started),
                Err(e) => {
                    self.ctx
                        .complain(&format!("apiserver: no thread for the doorbell: {e}"));
                    let mut poll = self.pods().poll.borrow_mut();
                    poll.on_bell_end(BellEnd::Broken, self.now());
                }
            }
        }
        self.pods().watching_since.set(self.now());
        if let Some(bell) = bell {
            bell.watch(options).await;
        }
    }

    fn hear(&self, rung: Rung) {
        let now = self.now();
        let mut poll = self.pods().poll.borrow_mut();
        match rung {
            Rung::Ring(ring) => match answers::ring(ring) {
                Some(ring) => poll.on_ring(&ring, now),
                None => poll.on_unknown_ring(),
            },
            Rung::Overrun => poll.on_unknown_ring(),
            Rung::Ended(Ok(WatchEnd::Clean)) => {
                let lived = now - self.pods().watching_since.get();
                let end = if lived + WATCH_SLACK < WATCH_TIME {
                    BellEnd::Broken
                } else {
                    BellEnd::Clean
                };
                poll.on_bell_end(end, now);
            }
            Rung::Ended(Ok(WatchEnd::Error(e))) => {
                log::debug!("apiserver: watch of pods: {e}");
                poll.on_bell_end(BellEnd::Broken, now);
            }
            Rung::Ended(Err(e)) => {
                log::debug!("apiserver: watch of pods: {}", chain(&e));
                poll.on_bell_end(BellEnd::Broken, now);
            }
        }
    }

    async fn take(&self, answer: Answer) -> Told {
        let now = self.now();
        let poll = &self.pods().poll;
        match answer {
            Answer::Listed(items, ended) => {
                let mut poll = poll.borrow_mut();
                items.iter().for_each(|item| poll.on_item(item, now));
                match ended {
                    Ok(listed) => poll.on_list_end(&listed.resource_version, now),
                    Err(e) => {
                        self.ctx
                            .complain(&format!("apiserver: pods: {}", chain(&e)));
                        poll.on_list_failed(answers::list_failure(&e), now);
                    }
                }
                drop(poll);
                // The queue is empty: what stood in memory whole lives on disk by now.
                crate::sys::memory::trim();
                Ok(())
            }
            Answer::Object(seen) => {
                if seen.pod.is_err() {
                    // It is read by itself, and judged then.
                    poll.borrow_mut().on_item(&seen.item, now);
                    return Ok(());
                }
                let verdict = poll.borrow_mut().on_object(&seen.item, seen.sight, now);
                self.deliver(verdict, seen).await
            }
            Answer::Got(ticket, Ok(Some(seen))) if seen.pod.is_ok() => {
                let verdict = poll
                    .borrow_mut()
                    .on_read(ticket, &seen.item, seen.sight, now);
                self.deliver(verdict, seen).await
            }
            Answer::Got(ticket, Ok(seen)) => {
                let failure = Failure::Unusable;
                poll.borrow_mut().on_read_failed(ticket, failure, now);
                if let Some(seen) = seen {
                    self.unusable(*seen);
                }
                Ok(())
            }
            Answer::Got(ticket, Err(e)) => {
                let failure = answers::read_failure(&e);
                if matches!(failure, Failure::Server { .. } | Failure::Unusable) {
                    self.ctx.complain(&format!("apiserver: pod: {}", chain(&e)));
                }
                poll.borrow_mut().on_read_failed(ticket, failure, now);
                Ok(())
            }
            Answer::Written(seen) => {
                // It may have gone since.
                let held = poll.borrow().holds(&seen.item.uid);
                let verdict = if held {
                    Verdict::Deliver
                } else {
                    Verdict::Ignore
                };
                self.deliver(verdict, seen).await
            }
        }
    }

    async fn deliver(&self, verdict: Verdict, seen: Box<Seen>) -> Told {
        let (Verdict::Deliver, Ok(received)) = (verdict, seen.pod) else {
            return Ok(());
        };
        // One that has taken the name of another comes after the other's end (SRC-07).
        loop {
            let gone = self.pods().poll.borrow_mut().next_gone();
            match gone {
                Some(uid) => self.gone(uid).await?,
                None => break,
            }
        }
        let (ctx, pods) = (&self.ctx, self.pods());
        let uid = received.pod.metadata.uid.clone();
        let is_static = ctx.pods.with_config(&uid, |c| c.is_static);
        if is_static == Some(true) {
            // Files of root come before the apiserver.
            let message = "a static pod has this uid; this one is ignored";
            ctx.complain(&format!("uid={uid} {message}"));
            return Ok(());
        }
        let copy = answers::copy_of(&received.pod);
        pods.writer.borrow_mut().on_api_copy(&uid, copy);
        pods.statuses_due.ring();
        if let Some((name, mirror)) = answers::mirror_of(&received.pod) {
            pods.mirrors.borrow_mut().put(name, mirror);
            pods.mirrors_due.ring();
            return Ok(());
        }
        let merged = ctx
            .mux
            .borrow_mut()
            .amend(Source::Api, vec![received], &[], ctx.clock.wall());
        self.take_in(merged).await
    }

    async fn gone(&self, uid: PodUid) -> Told {
        let pods = self.pods();
        pods.writer.borrow_mut().on_gone(&uid);
        pods.unrecorded.borrow_mut().remove(&uid);
        let mirror = pods.mirrors.borrow().name_of(&uid).cloned();
        if let Some(name) = mirror {
            pods.mirrors.borrow_mut().remove(&name, &uid);
            pods.mirrors_due.ring();
            return Ok(());
        }
        let now = self.ctx.clock.wall();
        let merged = self
            .ctx
            .mux
            .borrow_mut()
            .amend(Source::Api, vec![], &[uid], now);
        self.take_in(merged).await
    }

    /// The whole is known: what is not in it is no pod of this node.
    async fn complete(&self) -> Told {
        let pods = self.pods();
        let known = {
            let (poll, mirrors) = (pods.poll.borrow(), pods.mirrors.borrow());
            let own = poll.known().filter(|uid| mirrors.name_of(uid).is_none());
            own.map(Delivered::Known).collect()
        };
        let merged = self
            .ctx
            .mux
            .borrow_mut()
            .merge(Source::Api, known, self.ctx.clock.wall());
        for uid in &merged.unknown {
            pods.poll.borrow_mut().undeliver(uid);
        }
        pods.mirrors_due.ring();
        self.take_in(merged).await
    }

    async fn take_in(&self, merged: Merged) -> Told {
        for dropped in &merged.dropped {
            let message = "another pod has this name or uid already; this one is ignored";
            self.ctx
                .pod_event(&dropped.pod, Severity::Warning, "FailedValidation", message);
        }
        if merged.ops.is_empty() {
            return Ok(());
        }
        let failed = records::take_in(&self.ctx, Source::Api, merged.ops, &self.events).await?;
        let again = self.now() + records::RETRY;
        let all = failed.into_iter().map(|uid| (uid, again));
        self.pods().unrecorded.borrow_mut().extend(all);
        Ok(())
    }

    /// Pods without a record are read again; records that wait move to the disk.
    async fn retry_records(&self) {
        let (pods, now) = (self.pods(), self.now());
        pods.unrecorded.borrow_mut().retain(|uid, at| {
            let due = *at <= now;
            if due {
                pods.poll.borrow_mut().reread(uid);
            }
            !due
        });
        if now >= pods.settle_at.get() && self.records_wait_for_us() {
            records::settle(&self.ctx).await;
            pods.settle_at.set(self.now() + records::RETRY);
        }
    }

    /// Records wait for the disk, and nobody who reads manifests sees to them.
    fn records_wait_for_us(&self) -> bool {
        self.ctx.pods.records_wait() && self.ctx.cfg.dirs.manifests.is_none()
    }

    /// A pod that this agent cannot read ends here, unless something of it may run.
    fn unusable(&self, seen: Seen) {
        let Err(why) = seen.pod else { return };
        let item = seen.item;
        let (ctx, uid) = (&self.ctx, &item.uid);
        ctx.complain(&format!(
            "pod={}/{} uid={uid} is of no use: {why}",
            item.namespace, item.name
        ));
        let about = About {
            uid,
            namespace: &item.namespace,
            name: &item.name,
            field_path: "",
        };
        ctx.event_about(about, Severity::Warning, UNUSABLE, &why);
        let settled = seen.sight.terminal && !seen.sight.deleting;
        let known = self.pods().poll.borrow().holds(uid) || ctx.pods.is_configured(uid);
        if !settled && !known && ctx.view.is_idle(uid) {
            self.refuse(item, UNUSABLE, &why);
        }
    }

    fn refuse(&self, item: Item, reason: &'static str, message: &str) {
        let task = statuses::refuse(Rc::clone(&self.ctx), item, reason, message.into());
        self.executor.spawn(boxed(task)).detach();
    }
}
