//! Transactions of a round: sent, divided if the kernel refuses one, and noted (PROX-20, PROX-25).

use alloc::collections::BTreeSet;
use core::net::IpAddr;
use std::io;

use nix::ifaddrs::getifaddrs;

use super::{
    round::{RoundError, WriteRound},
    writer::{NftError, has_tables},
};
use crate::{
    agent::recorder::EventSeverity,
    error::error_chain,
    logic::services::{
        index::{ServiceIndex, WrittenService},
        transaction::StaleChain,
        udp::{UdpFlow, UdpPort, is_stale_flow},
    },
    sys::conntrack,
};

/// A Service whose text waits in the transaction.
pub(super) struct PendingService {
    /// Namespace and name; `None`: a Service that is gone.
    pub(super) name: Option<(String, String)>,
    pub(super) written: WrittenService,
    /// Its own text, if the transaction has to be divided.
    pub(super) text: String,
    pub(super) stale: Vec<StaleChain>,
    pub(super) udp: Vec<UdpPort>,
    /// See `ServiceWrite`.
    pub(super) gave_up: bool,
    pub(super) robbed: BTreeSet<u64>,
}

impl WriteRound<'_> {
    pub(super) async fn push(
        &mut self,
        index: &mut ServiceIndex,
        service: PendingService,
    ) -> Result<(), RoundError> {
        if let Some(full) = self.parts.push(&service.text) {
            let rest = core::mem::replace(&mut self.pending, vec![service]);
            return self.send_part(index, full, rest).await;
        }
        self.pending.push(service);
        Ok(())
    }

    pub(super) async fn send(&mut self, index: &mut ServiceIndex) -> Result<(), RoundError> {
        let pending = core::mem::take(&mut self.pending);
        match self.parts.finish() {
            Some(text) => self.send_part(index, text, pending).await,
            None => {
                // What has no text is as it should be.
                for service in pending {
                    self.note_written(index, service);
                }
                self.remove_stale_flows(index).await;
                Ok(())
            }
        }
    }

    /// Sends a transaction. One that is refused is divided: a Service that the kernel does not take keeps no other
    /// waiting.
    async fn send_part(
        &mut self,
        index: &mut ServiceIndex,
        text: String,
        services: Vec<PendingService>,
    ) -> Result<(), RoundError> {
        let sent = self.tools.writer.write_text(text).await;
        let Err(error) = sent else {
            self.tools.board.count(|it| it.written += 1);
            for service in services {
                self.note_written(index, service);
            }
            self.remove_stale_flows(index).await;
            return Ok(());
        };
        self.tools.board.count(|it| it.failed += 1);
        let is_refused = matches!(error, NftError::Refused(_));
        let was_refused = |(namespace, name): &(String, String)| {
            index.written_before(namespace, name).was_refused
        };
        let mut names = services.iter().map(|it| it.name.as_ref());
        let is_again = names.all(|name| name.is_some_and(was_refused));
        // One look is enough for all that are tried again. For others the table may have gone meanwhile.
        if is_refused && !(is_again && self.has_tables) {
            self.has_tables = has_tables(&*self.tools.writer, self.network).await;
        }
        // Without the table none is to blame.
        if !is_refused || !self.has_tables {
            set_all_due(index, &services);
            return Err(error.into());
        }
        // What is known of the table counts on all of them, but for one that is tried again.
        if !is_again {
            self.live = None;
        }
        let mut one = (services.len() == 1).then_some(error);
        let mut rest = services.into_iter();
        let mut result = Ok(());
        while let Some(service) = rest.next() {
            let sent = match one.take() {
                Some(error) => Err(error),
                None => self.tools.writer.write_text(service.text.clone()).await,
            };
            match sent {
                Ok(_) => self.note_written(index, service),
                Err(e @ NftError::Refused(_)) => {
                    self.has_refused = true;
                    if service.name.is_none() {
                        index.set_gone_refused(service.written.uid);
                    }
                    let (namespace, name) = service.name.unwrap_or_default();
                    self.refuse_service(index, &namespace, &name, &error_chain(&e));
                }
                Err(e) => {
                    set_all_due(index, &[service]);
                    set_all_due(index, rest.as_slice());
                    result = Err(e.into());
                    break;
                }
            }
        }
        self.remove_stale_flows(index).await;
        result
    }

    /// Notes and tells that a Service cannot be written; one without a name is gone. Its rules stay as they are.
    pub(super) fn refuse_service(
        &self,
        index: &mut ServiceIndex,
        namespace: &str,
        name: &str,
        why: &str,
    ) {
        let why = match name {
            "" => format!("rules of a Service that is gone cannot be removed: {why}"),
            _ => format!("Service {namespace}/{name} cannot be written: {why}"),
        };
        let reason = "ServiceNotWritten";
        self.tools
            .recorder
            .record_node_event(EventSeverity::Warning, reason, &why);
        index.set_refused(namespace, name);
    }

    /// Notes a Service that was written.
    fn note_written(&mut self, index: &mut ServiceIndex, service: PendingService) {
        self.has_written = true;
        self.stale.extend(service.stale);
        if let Some((namespace, name)) = service.name {
            index.set_written(&namespace, &name, service.written);
            if !service.udp.is_empty() {
                self.udp.extend(service.udp);
                self.udp_services.push((namespace, name));
            }
        }
        for uid in service.robbed {
            index.set_robbed(uid);
        }
        self.gave_up |= service.gave_up;
    }

    /// Removes flows of UDP that lead to endpoints which are gone: of all Services with one look at all flows, which takes
    /// the kernel milliseconds. If it fails, the Services are written and looked through again later.
    async fn remove_stale_flows(&mut self, index: &mut ServiceIndex) {
        let ports = core::mem::take(&mut self.udp);
        let services = core::mem::take(&mut self.udp_services);
        if ports.is_empty() {
            return;
        }
        let remove = self.tools.remove_flows;
        match self.tools.disk.run_job(move || remove(&ports)).await {
            Ok(removed) => {
                let removed = u64::try_from(removed).unwrap_or(0);
                self.tools.board.count(|it| it.flows += removed);
            }
            Err(e) => {
                let why = format!("flows of UDP may lead to endpoints that are gone: {e}");
                self.tools.complaints.complain(&why);
                self.has_refused = true;
                for (namespace, name) in services {
                    index.set_stale_flows(&namespace, &name);
                }
            }
        }
    }
}

/// Removes the flows of UDP that lead to none of the endpoints of these ports. Returns their number.
pub(super) fn remove_flows(ports: &[UdpPort]) -> io::Result<usize> {
    let mut removed = 0;
    let own = own_addresses()?;
    for is_v6 in [false, true] {
        let is_mine = |port: &UdpPort| port.serving.iter().any(|it| it.is_ipv6() == is_v6);
        if !ports.iter().any(is_mine) {
            continue;
        }
        removed += conntrack::remove_udp_flows(is_v6, &mut |flow| {
            let flow = UdpFlow {
                dialled: flow.dialled,
                answers: flow.answers,
            };
            is_stale_flow(&flow, ports, &own)
        })?;
    }
    Ok(removed)
}

fn set_all_due(index: &mut ServiceIndex, services: &[PendingService]) {
    for (namespace, name) in services.iter().filter_map(|it| it.name.as_ref()) {
        index.set_due(namespace, name);
    }
}

/// Addresses of this machine, on which ports of nodes answer.
fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let addresses = getifaddrs()?.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
    });
    Ok(addresses.filter(|ip| !ip.is_loopback()).collect())
}
