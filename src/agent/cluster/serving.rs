//! The certificate that the node's server shows, where the apiserver's signer is to issue it (BOOT-11): asked for with the
//! addresses of the Node, renewed in time and when there are more of them, on disk before it is shown. As long as nobody
//! approves, there is none, and no handshake ends well.

use alloc::sync::Arc;
use core::net::IpAddr;
use core::time::Duration;

use super::{
    certificates::{Failed, ask, wait},
    link::spread,
};
use crate::{
    agent::{
        ctx::{Ctx, Shared},
        sync::chain,
    },
    api::{Node, Wall},
    kube::{
        bootstrap::{self, NODES_GROUP, SERVING_SIGNER, node_subject},
        csr::Subject,
        store::{Store, Stored},
        x509::{self, Certificate},
    },
    logic::certificates::{Held, Wanted, retry_delay, rotate_at},
    net::serving::Shown,
};

/// Longest wait for what the wall clock decides, or addresses.
const LOOK: Duration = Duration::from_secs(60);
/// The same until there is an address to ask for.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Keeps the certificate for as long as the agent runs.
pub(in crate::agent) async fn run(ctx: Shared, shown: Arc<Shown>) {
    let store = Store::server(&ctx.cfg.cluster.cert_dir);
    let recovering = store.clone();
    if let Err(e) = ctx.disk.run(move || recovering.recover()).await {
        log::warn!("serving certificates: {}", chain(&e));
    }
    let mut failures = 0_u32;
    let mut last: Option<Vec<u8>> = None;
    let mut draw: Option<(Wall, u32)> = None;
    loop {
        let (stored, held) = match current(&ctx, &store).await {
            Ok(Some((stored, held))) => (Some(stored), held),
            Ok(None) => (None, Vec::new()),
            Err(why) => {
                ctx.complain(&format!("the serving certificate: {why}"));
                (None, Vec::new())
            }
        };
        if let Some(stored) = stored.filter(|stored| last.as_ref() != Some(&stored.chain)) {
            match shown.show(&stored.chain, &stored.key) {
                Ok(()) => last = Some(stored.chain),
                Err(e) => ctx.complain(&format!("the serving certificate: {}", chain(&e))),
            }
        }
        let Some(subject) = wanted(&ctx) else {
            ctx.clock.until(ctx.clock.now() + FIRST_LOOK).await;
            continue;
        };
        let begins = held.first().map(|c| c.not_before);
        let random = match (draw, begins) {
            (Some((of, random)), Some(begins)) if of == begins => random,
            _ => u32::try_from(spread(&ctx) % 1000).unwrap_or(0),
        };
        draw = begins.map(|begins| (begins, random));
        let now = ctx.clock.wall();
        if due(&held, &subject, random).is_some_and(|due| due > now) {
            failures = 0;
            ctx.clock.until(ctx.clock.now() + LOOK).await;
            continue;
        }
        failures = failures.saturating_add(1);
        let failed = match renew(&ctx, &store, subject).await {
            // A signer whose certificates have to be renewed at once is not asked without end.
            Ok(()) if failures > 1 => Failed::answered("each is to be renewed at once"),
            Ok(()) => continue,
            Err(failed) => failed,
        };
        ctx.complain(&format!("no new serving certificate: {}", failed.why));
        let random = u32::try_from(spread(&ctx) % 1000).unwrap_or(0);
        let delay = retry_delay(failures, random).max(failed.retry_after.unwrap_or_default());
        ctx.clock.until(ctx.clock.now() + delay).await;
    }
}

async fn current(ctx: &Ctx, store: &Store) -> Result<Option<(Stored, Vec<Certificate>)>, String> {
    let store = store.clone();
    let read = ctx.disk.run(move || {
        let Some(pair) = store.current().map_err(|e| chain(&e))? else {
            return Ok(None);
        };
        let held = x509::read_chain(&pair.chain)?;
        Ok(Some((pair, held)))
    });
    read.await
}

fn due(held: &[Certificate], subject: &Subject, random: u32) -> Option<Wall> {
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

/// Whom the certificate is for; `None` until the Node has an address.
fn wanted(ctx: &Ctx) -> Option<Subject> {
    let (dns_names, ips) = ctx.node.with_object(|node| node.map(names))?;
    (!ips.is_empty()).then(|| Subject {
        dns_names,
        ips,
        ..node_subject(&ctx.node.name)
    })
}

/// What the addresses of a Node say, each once.
fn names(node: &Node) -> (Vec<String>, Vec<IpAddr>) {
    let (mut dns_names, mut ips) = (Vec::new(), Vec::new());
    for address in &node.status.addresses {
        let text = &address.address;
        let ip = text.parse::<IpAddr>().ok();
        match (address.kind.as_str(), ip) {
            ("Hostname" | "InternalIP" | "ExternalIP", Some(ip)) if !ips.contains(&ip) => {
                ips.push(ip);
            }
            ("Hostname" | "InternalDNS" | "ExternalDNS", None) if !dns_names.contains(text) => {
                dns_names.push(text.clone());
            }
            _ => {}
        }
    }
    (dns_names, ips)
}

async fn renew(ctx: &Ctx, store: &Store, subject: Subject) -> Result<(), Failed> {
    let requested = ask(ctx, None, move |api| {
        bootstrap::request(api, SERVING_SIGNER, &subject)
    })
    .await?;
    log::info!(
        "request {} for a serving certificate waits for its approval",
        requested.name
    );
    let requested = Arc::new(requested);
    let certificate = wait(ctx, None, &requested).await?;
    let (chain_pem, key) = requested.pair(&certificate).map_err(Failed::answered)?;
    let (store, key, now) = (store.clone(), key.to_owned(), ctx.clock.wall());
    let stored = ctx.disk.run(move || store.store(&chain_pem, &key, now));
    let path = stored.await.map_err(|e| Failed::local(chain(&e)))?;
    log::info!("new serving certificate {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::node::NodeAddress;

    #[test]
    fn names_of_a_node() {
        // BOOT-11
        let mut node = Node::default();
        for (kind, address) in [
            ("InternalIP", "10.0.0.1"),
            ("InternalIP", "fd00::1"),
            ("ExternalIP", "10.0.0.1"),
            ("Hostname", "node-a"),
            ("InternalDNS", "node-a"),
            ("ExternalDNS", "node-a.example"),
            ("Other", "x"),
        ] {
            node.status.addresses.push(NodeAddress {
                kind: kind.into(),
                address: address.into(),
            });
        }
        let (dns_names, ips) = names(&node);
        assert_eq!(dns_names, ["node-a", "node-a.example"]);
        let wanted: Vec<IpAddr> = ["10.0.0.1", "fd00::1"]
            .map(|ip| ip.parse().expect("ip"))
            .into();
        assert_eq!(ips, wanted);
        node.status.addresses.truncate(0);
        node.status.addresses.push(NodeAddress {
            kind: "Hostname".into(),
            address: "10.0.0.9".into(),
        });
        assert_eq!(names(&node).1.len(), 1);
    }
}
