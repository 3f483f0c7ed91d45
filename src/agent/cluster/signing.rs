//! Certificates of this node, asked for at a signer of the apiserver: what its client certificate and that of its server
//! have in common.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;

use crate::{
    agent::{clock::Clock, complaints::Complaints},
    api::Wall,
    error::chain,
    kube::{
        Api, KubeError, KubeLanes,
        api::Reply,
        bootstrap::{self, NODES_GROUP, Requested},
        csr::Subject,
        store::Store,
        x509::Certificate,
    },
    logic::certificates::{CSR_WAIT, Held, Verdict, Wanted, judge, rotate_at},
    sys::lane::Lane,
};

/// Longest wait for anything that the wall clock decides.
pub(super) const LOOK: Duration = Duration::from_secs(60);
/// First and longest pause between two looks at a request.
pub(super) const FIRST_POLL: Duration = Duration::from_millis(200);
const LAST_POLL: Duration = Duration::from_secs(10);

/// The number that spreads renewals, drawn once for each certificate.
#[derive(Debug, Default)]
pub(super) struct Draw(Option<(Wall, u32)>);

impl Draw {
    /// That of the certificate in use.
    pub(super) fn of(&mut self, held: &[Certificate], draw: impl FnOnce() -> u32) -> u32 {
        let begins = held.first().map(|c| c.not_before);
        let random = match (self.0, begins) {
            (Some((of, random)), Some(begins)) if of == begins => random,
            _ => draw(),
        };
        self.0 = begins.map(|begins| (begins, random));
        random
    }
}

/// When a new certificate for `subject` is to be asked for, given the chain in use; empty: there is none.
pub(super) fn due(held: &[Certificate], subject: &Subject, random: u32) -> Option<Wall> {
    let held = held.first().map(|c| Held {
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
        dns_names: &subject.dns_names,
        ips: &subject.ips,
    };
    rotate_at(held, wanted, random)
}

/// Why a request came to nothing.
pub(super) struct Failed {
    pub(super) why: String,
    /// Whether the apiserver answered.
    pub(super) answers: bool,
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

/// What it takes to get a certificate signed.
pub(super) struct Signer {
    pub(super) lanes: KubeLanes,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) disk: Lane,
}

impl Signer {
    /// One request, from the fresh key to the pair in the store. It is made under another name, if one is given.
    pub(super) async fn obtain(
        &self,
        what: &str,
        signer: &'static str,
        subject: Subject,
        store: &Store,
        other: Option<Arc<dyn Api>>,
    ) -> Result<(), Failed> {
        let request = move |api: &dyn Api| bootstrap::request(api, signer, &subject);
        let requested = self.ask(other.clone(), request).await?;
        log::info!(
            "request {} for a {what} certificate waits for its approval",
            requested.name
        );
        let requested = Arc::new(requested);
        let certificate = self.wait(other, &requested).await?;
        let pair = requested.pair(&certificate);
        let (chain_pem, key) = pair.map_err(|e| Failed::answered(chain(&e)))?;
        let (store, key, now) = (store.clone(), key.to_owned(), self.clock.wall());
        let stored = self.disk.run(move || store.store(&chain_pem, &key, now));
        let path = stored.await.map_err(|e| Failed::local(chain(&e)))?;
        log::info!("new {what} certificate {}", path.display());
        Ok(())
    }

    /// The certificate that was issued, base64.
    async fn wait(
        &self,
        other: Option<Arc<dyn Api>>,
        requested: &Arc<Requested>,
    ) -> Result<String, Failed> {
        let (clock, name) = (&self.clock, &requested.name);
        let end = clock.now() + CSR_WAIT;
        let mut pause = FIRST_POLL;
        while clock.now() < end {
            clock.until(clock.now() + pause).await;
            pause = (pause * 2).min(LAST_POLL);
            let asked = Arc::clone(requested);
            let look = move |api: &dyn Api| bootstrap::look(api, &asked);
            match self.ask(other.clone(), look).await {
                Ok(csr) => match judge(&csr, &requested.uid) {
                    Verdict::Wait => {}
                    Verdict::Issued(certificate) => return Ok(certificate),
                    Verdict::Over(why) => {
                        return Err(Failed::answered(format!("request {name}: {why}")));
                    }
                },
                Err(e) if e.is_not_found() || e.status() == Some(401) => return Err(e.into()),
                Err(e) => {
                    self.complaints.complain(&format!("request {name}: {e}"));
                    pause = pause.max(e.retry_after().unwrap_or_default());
                }
            }
        }
        Err(Failed::answered(format!(
            "nobody has signed request {name}"
        )))
    }

    async fn ask<T: Send + 'static>(
        &self,
        other: Option<Arc<dyn Api>>,
        job: impl FnOnce(&dyn Api) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let work = move |api: &dyn Api| match other {
            Some(other) => job(&*other),
            None => job(api),
        };
        self.lanes.work(work).await
    }
}
