//! The node's own certificate: asked for while there is none, renewed in time, on disk before it is used (BOOT-02 to
//! BOOT-09). What is asked when, and what follows from an answer, is [`crate::logic::certificates`].
//!
//! ```text
//! Look ──due──▶ Request ──▶ wait for the signer ──▶ stored ──▶ used by the next request
//!  ▲  └─ a minute at most ─┐    │ refused, deleted, silent for 15 min
//!  └───────────────────────┴────┘
//! ```
//!
//! It asks under its own name as long as its certificate holds, else under that of the bootstrap kubeconfig, which is read
//! each time: whoever puts a new token there needs no restart. Time is the wall clock's, which may be set at any moment: no
//! wait is longer than a minute. A clock that the apiserver's own answers prove wrong is corrected by them for the question
//! whether a certificate has ended.

use alloc::sync::Arc;
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};
use std::path::PathBuf;

use smol::{channel::Sender, future::FutureExt as _};

use super::{
    join::{Connect, first_end},
    link::spread,
};
use crate::{
    agent::{
        core::Event,
        ctx::{Ctx, Shared},
        sync::chain,
    },
    api::{Mono, Wall},
    kube::{
        self, Api, KubeError, Kubeconfig,
        api::Reply,
        bootstrap::{self, CLIENT_SIGNER, NODES_GROUP, Requested, node_subject},
        store::Store,
        x509::{self, Certificate},
    },
    logic::certificates::{
        CSR_WAIT, Held, Verdict, Wanted, is_stuck, judge, retry_delay, rotate_at,
    },
};

/// Longest wait for anything that the wall clock decides.
const LOOK: Duration = Duration::from_secs(60);
/// First and longest pause between two looks at a request.
const FIRST_POLL: Duration = Duration::from_millis(200);
const LAST_POLL: Duration = Duration::from_secs(10);

/// See the module.
pub(in crate::agent) struct Certificates {
    store: Store,
    /// Whose connections show the certificate.
    cluster: Arc<kube::Cluster>,
    connect: Connect,
    bootstrap: Option<PathBuf>,
    trouble: RefCell<Option<String>>,
    ended: RefCell<Option<String>>,
    /// Requests in a row that came to nothing.
    failures: Cell<u32>,
    without_since: Cell<Option<Mono>>,
}

/// Under whose name a certificate is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Own,
    Bootstrap,
}

impl Certificates {
    pub(super) fn new(
        store: Store,
        cluster: Arc<kube::Cluster>,
        connect: Connect,
        bootstrap: Option<PathBuf>,
    ) -> Self {
        Self {
            store,
            cluster,
            connect,
            bootstrap,
            trouble: RefCell::default(),
            ended: RefCell::default(),
            failures: Cell::default(),
            without_since: Cell::default(),
        }
    }

    /// What is wrong with the certificate, if anything is.
    pub(in crate::agent) fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Why the agent ends (BOOT-09).
    pub(super) fn ended(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    /// The time as the apiserver has it, as far as that is known.
    fn now(&self, ctx: &Ctx) -> Wall {
        let ahead = self.connect.skew.ahead_s();
        Wall(
            ctx.clock
                .wall()
                .0
                .saturating_sub(ahead.saturating_mul(1_000_000_000)),
        )
    }

    /// Whether the certificate holds, and why not.
    fn judge(&self, ctx: &Ctx, held: Option<&[Certificate]>) -> bool {
        let end = held.and_then(first_end);
        let trouble = match end {
            None => Some("this node has no client certificate yet".to_owned()),
            Some(end) if end < self.now(ctx) => Some(format!(
                "the client certificate of this node ended at {end}"
            )),
            Some(_) => None,
        };
        let holds = trouble.is_none();
        if *self.trouble.borrow() != trouble {
            match &trouble {
                Some(what) => log::warn!("{what}"),
                None => log::info!(
                    "the client certificate holds until {}",
                    end.unwrap_or(Wall(0))
                ),
            }
        }
        self.trouble.replace(trouble);
        let since = self.without_since.get().unwrap_or_else(|| ctx.clock.now());
        self.without_since.set((!holds).then_some(since));
        holds
    }
}

/// Keeps the certificate for as long as the agent runs.
pub(super) async fn run(ctx: Shared, events: Sender<Event>) {
    let Some(cluster) = &ctx.cluster else { return };
    let Some(own) = &cluster.certificates else {
        return;
    };
    // Drawn once for each certificate.
    let mut draw: Option<(Wall, u32)> = None;
    loop {
        let held = current(&ctx, own).await;
        let holds = own.judge(&ctx, held.as_deref());
        let begins = held.as_ref().and_then(|c| c.first()).map(|c| c.not_before);
        let random = match (draw, begins) {
            (Some((of, random)), Some(begins)) if of == begins => random,
            _ => u32::try_from(spread(&ctx) % 1000).unwrap_or(0),
        };
        draw = begins.map(|begins| (begins, random));
        let due = due(&ctx, held.as_deref(), random).filter(|_| holds);
        let now = own.now(&ctx);
        if let Some(due) = due.filter(|due| *due > now) {
            own.failures.set(0);
            let left = due.0.saturating_sub(now.0) / 1_000_000;
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
            let look = ctx.clock.now() + left.clamp(FIRST_POLL, LOOK);
            ctx.clock.until(look).or(cluster.link.wait_clock()).await;
            continue;
        }
        let name = if holds { Name::Own } else { Name::Bootstrap };
        let failures = own.failures.get().saturating_add(1);
        own.failures.set(failures);
        let failed = match renew(&ctx, own, name).await {
            // A signer whose certificates have to be renewed at once is not asked without end.
            Ok(()) if failures > 1 => Failed::answered("each is to be renewed at once"),
            Ok(()) => continue,
            Err(failed) => failed,
        };
        ctx.complain(&format!("no new client certificate: {}", failed.why));
        let since = own.without_since.get();
        if own.bootstrap.is_some() && is_stuck(since, false, failed.answers, ctx.clock.now()) {
            let why = "no client certificate that holds for 5 minutes, and the apiserver answers";
            own.ended.replace(Some(why.into()));
            let _ = events.send(Event::Terminate).await;
            return;
        }
        let random = u32::try_from(spread(&ctx) % 1000).unwrap_or(0);
        let delay = retry_delay(failures, random).max(failed.retry_after.unwrap_or_default());
        ctx.clock.until(ctx.clock.now() + delay).await;
    }
}

/// The chain in use; `None` if there is none that can be read.
async fn current(ctx: &Ctx, own: &Certificates) -> Option<Vec<Certificate>> {
    let store = own.store.clone();
    let read = ctx.disk.run(move || {
        let pair = store.current().map_err(|e| chain(&e))?;
        pair.map(|pair| x509::read_chain(&pair.chain)).transpose()
    });
    match read.await {
        Ok(found) => found,
        Err(why) => {
            ctx.complain(&format!("the client certificate: {why}"));
            None
        }
    }
}

fn due(ctx: &Ctx, held: Option<&[Certificate]>, random: u32) -> Option<Wall> {
    let subject = node_subject(&ctx.node.name);
    let held = held.and_then(|chain| chain.first()).map(|c| Held {
        not_before: c.not_before,
        not_after: c.not_after,
        common_name: &c.common_name,
        organizations: &c.organizations,
        dns_names: &c.dns_names,
        ips: &c.ips,
    });
    let wanted = Wanted {
        common_name: &subject.common_name,
        organization: NODES_GROUP,
        dns_names: &[],
        ips: &[],
    };
    rotate_at(held, wanted, random)
}

/// Why a request came to nothing.
pub(super) struct Failed {
    pub(super) why: String,
    /// Whether the apiserver answered.
    answers: bool,
    pub(super) retry_after: Option<Duration>,
}

impl Failed {
    pub(super) fn local(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            answers: false,
            retry_after: None,
        }
    }
}

impl Failed {
    pub(super) fn answered(why: impl Into<String>) -> Self {
        Self {
            answers: true,
            ..Self::local(why)
        }
    }
}

impl From<KubeError> for Failed {
    fn from(e: KubeError) -> Self {
        Self {
            answers: e.is_answer(),
            retry_after: e.retry_after(),
            why: e.to_string(),
        }
    }
}

/// One request, from the fresh key to the pair in use.
async fn renew(ctx: &Ctx, own: &Certificates, name: Name) -> Result<(), Failed> {
    let other: Option<Arc<dyn Api>> = match (name, &own.bootstrap) {
        (Name::Own, _) | (Name::Bootstrap, None) => None,
        (Name::Bootstrap, Some(path)) => {
            let (path, servers) = (path.clone(), own.connect.servers.clone());
            let read = ctx.disk.run(move || Kubeconfig::load(&path, &servers));
            let config = read.await.map_err(|e| Failed::local(e.to_string()))?;
            Some(Arc::new(own.connect.api(config).1))
        }
    };
    let subject = node_subject(&ctx.node.name);
    let requested = ask(ctx, other.clone(), move |api| {
        bootstrap::request(api, CLIENT_SIGNER, &subject)
    })
    .await?;
    log::info!(
        "certificate request {} waits for its approval",
        requested.name
    );
    let requested = Arc::new(requested);
    let certificate = wait(ctx, other, &requested).await?;
    let (chain_pem, key) = requested.pair(&certificate).map_err(Failed::answered)?;
    let (store, key, now) = (own.store.clone(), key.to_owned(), ctx.clock.wall());
    let stored = ctx.disk.run(move || store.store(&chain_pem, &key, now));
    let path = stored.await.map_err(|e| Failed::local(chain(&e)))?;
    log::info!("new client certificate {}", path.display());
    own.cluster.look_at_credentials();
    if let Some(cluster) = &ctx.cluster {
        cluster.node.doubt();
    }
    Ok(())
}

/// The certificate that was issued, base64.
pub(super) async fn wait(
    ctx: &Ctx,
    other: Option<Arc<dyn Api>>,
    requested: &Arc<Requested>,
) -> Result<String, Failed> {
    let end = ctx.clock.now() + CSR_WAIT;
    let mut pause = FIRST_POLL;
    while ctx.clock.now() < end {
        ctx.clock.until(ctx.clock.now() + pause).await;
        pause = (pause * 2).min(LAST_POLL);
        let asked = Arc::clone(requested);
        match ask(ctx, other.clone(), move |api| bootstrap::look(api, &asked)).await {
            Ok(csr) => match judge(&csr, &requested.uid) {
                Verdict::Wait => {}
                Verdict::Issued(certificate) => return Ok(certificate),
                Verdict::Over(why) => {
                    let name = &requested.name;
                    return Err(Failed::answered(format!("request {name}: {why}")));
                }
            },
            Err(e) if e.is_not_found() || e.status() == Some(401) => return Err(e.into()),
            Err(e) => {
                ctx.complain(&format!("request {}: {e}", requested.name));
                pause = pause.max(e.retry_after().unwrap_or_default());
            }
        }
    }
    let name = &requested.name;
    Err(Failed::answered(format!(
        "nobody has signed request {name}"
    )))
}

/// Asks under another name, if one is given.
pub(super) async fn ask<T: Send + 'static>(
    ctx: &Ctx,
    other: Option<Arc<dyn Api>>,
    job: impl FnOnce(&dyn Api) -> Reply<T> + Send + 'static,
) -> Reply<T> {
    let Some(cluster) = &ctx.cluster else {
        return Err(KubeError::Cancelled);
    };
    let work = move |api: &dyn Api| match other {
        Some(other) => job(&*other),
        None => job(api),
    };
    cluster.lanes.work(work).await
}
