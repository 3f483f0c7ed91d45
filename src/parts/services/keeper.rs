//! The task that keeps Services: settings, lists, doorbells, the state of the table (PROX-01, PROX-04, PROX-21, PROX-25).
//!
//! Whatever fails, the table stays as it is, and is brought up to date later.

use alloc::{collections::BTreeSet, rc::Rc};
use core::time::Duration;

use smol::future;

use super::{
    ServicesBoard,
    doorbells::ServiceDoorbells,
    reading::ServiceReader,
    round::{RoundError, WriteRound},
    sending::remove_flows,
    settings::ServicesConfig,
    tools::{KeeperTools, proxy_node},
    writer::{
        NftError, NftProgram, has_tables, remove_found_tables, remove_tables, write_base_tables,
    },
};
use crate::{
    agent::recorder::EventSeverity,
    api::MonoTime,
    error::error_chain,
    kube::{DoorbellNews, KubeError, WatchEnd},
    logic::services::{
        AddressFamily, ProxyNetwork, ProxyNode,
        index::ServiceIndex,
        pause::GrowingPause,
        table::{base_table, remove_table},
        transaction::{DELETED_CHAINS, StaleChain, delete_chains},
    },
    parts::PartTools,
};

/// Time between two lists while doorbells ring.
const WATCHED_LIST: Duration = Duration::from_secs(6 * 3600);
/// Shortest time from a list to one that makes up for lost rings.
const POLL: Duration = Duration::from_secs(10);
/// Time between two lists without doorbells; on a link whose bytes cost money.
const UNWATCHED_LIST: Duration = Duration::from_secs(60);
const METERED_LIST: Duration = Duration::from_secs(30 * 60);
/// Time between two looks at the table, which others may have changed, and for a kube-proxy.
const TABLE_LOOK: Duration = Duration::from_secs(600);
/// Pause after something was written: changes that come meanwhile are written together, and chains that became free can
/// be deleted.
const WRITE_PAUSE: Duration = Duration::from_secs(1);
/// Pauses after a failure.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(2);
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Longest pause before Services that the kernel refused are tried again.
const LAST_REFUSED: Duration = Duration::from_secs(1800);
/// Transactions of deletions that may be refused in a row: endpoints that change wait for them.
const REFUSED_DELETIONS: u32 = 32;
/// Time between two looks for a kube-proxy that was in the way, or a program that was missing.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct ServicesKeeper {
    cfg: ServicesConfig,
    tools: KeeperTools,
    index: ServiceIndex,
    /// Chains that wait to be deleted.
    stale: BTreeSet<StaleChain>,
    /// Set if the table is to be compared with everything: after a start, and after a transaction failed.
    is_suspect: bool,
    /// Set if there is no table.
    is_removed: bool,
    /// Set if the last list failed.
    is_list_failing: bool,
    /// Set once a transaction of Services failed, until one goes well or none is left to write.
    has_failed: bool,
    /// Chains that the kernel did not delete, though they are free. They are tried again alone.
    busy: BTreeSet<StaleChain>,
    /// Time of the next try with those.
    busy_due: Option<MonoTime>,
    busy_pause: GrowingPause,
    /// Time of the next try with Services that the kernel refused.
    retry_due: Option<MonoTime>,
    retry_pause: GrowingPause,
}

/// Reason why Services are not kept for now.
enum KeeperPause {
    /// The settings changed.
    Changed,
    /// A fault of the machine: text, and the line to type against it.
    Refused(String, &'static str),
    /// Another proxy, or nobody, is to do this: rules that are there go. The rest is the same.
    Removed(String, &'static str),
}

/// Events that the keeper waits for.
enum KeeperEvent {
    News(usize, DoorbellNews),
    Changed,
    Time,
}

impl ServicesKeeper {
    pub(super) fn new(
        cfg: &ServicesConfig,
        tools: &PartTools<'_>,
        board: Rc<ServicesBoard>,
    ) -> Self {
        let node = Rc::clone(tools.node);
        Self {
            cfg: cfg.clone(),
            tools: KeeperTools {
                board,
                writer: Rc::new(NftProgram),
                recorder: Rc::clone(tools.recorder),
                complaints: Rc::clone(tools.complaints),
                disk: tools.disk.clone(),
                clock: Rc::clone(tools.clock),
                remove_flows,
                read_node: Box::new(move || proxy_node(&node)),
                link_policy: Rc::clone(tools.link_policy),
                cluster_network: Rc::clone(tools.cluster_network),
                reader: tools.cluster_reader.clone(),
            },
            index: ServiceIndex::default(),
            stale: BTreeSet::new(),
            is_suspect: true,
            is_removed: false,
            is_list_failing: false,
            has_failed: false,
            busy: BTreeSet::new(),
            busy_due: None,
            busy_pause: GrowingPause::new(FIRST_PAUSE, LAST_REFUSED),
            retry_due: None,
            retry_pause: GrowingPause::new(FIRST_PAUSE, LAST_REFUSED),
        }
    }

    /// Keeps Services as long as the agent runs.
    pub(super) async fn keep_services(mut self) {
        let told = Rc::clone(&self.tools.cluster_network);
        // Bounded: each turn waits, below or while Services are kept.
        loop {
            let changed = told.changed();
            if self.cfg.is_off {
                if self.remove_rules().await {
                    return;
                }
                self.tools.sleep(REFUSED_PAUSE).await;
                continue;
            }
            let pause = match self.network() {
                Ok(network) => {
                    let Err(pause) = self.keep_with(&network).await;
                    pause
                }
                Err(pause) => pause,
            };
            let (why, fix) = match pause {
                KeeperPause::Changed => continue,
                KeeperPause::Refused(why, fix) => (why, fix),
                KeeperPause::Removed(why, fix) => {
                    self.remove_rules().await;
                    (why, fix)
                }
            };
            self.tools.refuse(&why, fix);
            future::or(changed, self.tools.sleep(REFUSED_PAUSE)).await;
        }
    }

    /// Removes all rules, and closes health check ports. Returns false if it has to be tried again.
    async fn remove_rules(&mut self) -> bool {
        if self.is_removed {
            return true;
        }
        let board = &self.tools.board;
        board.retain_health_ports(|_, _| false);
        board.set_healthz(None);
        board.health.borrow_mut().is_written = false;
        let Err(e) = remove_found_tables(&*self.tools.writer).await else {
            self.is_removed = true;
            return true;
        };
        let why = format!("cannot remove the rules of Services: {}", error_chain(&e));
        self.tools.complaints.complain(&why);
        false
    }

    /// Settings of the network, from the configuration or from servers of k3s.
    fn network(&self) -> Result<ProxyNetwork, KeeperPause> {
        let told = self.tools.cluster_network.current();
        if self.cfg.is_of_k3s {
            let Some(told) = &told else {
                let why = "the servers of k3s have not told the ranges of Services yet";
                return Err(KeeperPause::Refused(why.into(), "see the log of the agent"));
            };
            if !told.has_kube_proxy {
                let why = "the servers of k3s have turned kube-proxy off (--disable-kube-proxy)";
                let fix = "set picolet.services.enabled: false, or run another proxy";
                return Err(KeeperPause::Removed(why.into(), fix));
            }
        }
        let or_told = |own: &[_], told: Option<&Vec<_>>| match own.is_empty() {
            true => told.cloned().unwrap_or_default(),
            false => own.to_vec(),
        };
        let told = told.as_deref();
        let service_ranges = or_told(&self.cfg.service_ranges, told.map(|it| &it.service_ranges));
        let has = |family| {
            service_ranges
                .iter()
                .any(|range| AddressFamily::of(range.0) == family)
        };
        let families = AddressFamily::ALL.into_iter().filter(|family| has(*family));
        Ok(ProxyNetwork {
            families: families.collect(),
            cluster_ranges: or_told(&self.cfg.cluster_ranges, told.map(|it| &it.cluster_ranges)),
            service_ranges,
            node_port_ranges: self.cfg.node_port_ranges.clone(),
        })
    }

    /// Keeps Services with these settings, until they change.
    async fn keep_with(
        &mut self,
        network: &ProxyNetwork,
    ) -> Result<core::convert::Infallible, KeeperPause> {
        let told = Rc::clone(&self.tools.cluster_network);
        let changed = told.changed();
        let mut changed = core::pin::pin!(changed);
        let Some(reader) = self.tools.reader.clone() else {
            let fix = "set picolet.networkKubeconfig";
            return Err(KeeperPause::Removed(
                "nobody may list Services for this node".into(),
                fix,
            ));
        };
        let mut network = network.clone();
        self.refuse_beside_others(&mut network).await?;
        self.is_removed = false;
        self.tools.board.set_healthz(self.cfg.healthz);
        self.remove_families(&network).await;
        let reader = ServiceReader { reader };
        self.index.mark_all();
        self.is_suspect = true;
        let mut bells: Option<ServiceDoorbells> = None;
        let growing = |first| GrowingPause::new(first, LAST_PAUSE);
        let (mut list_pause, mut write_pause) = (growing(FIRST_PAUSE), growing(FIRST_PAUSE));
        let mut watch_pause = growing(POLL);
        let mut list_due = self.tools.clock.now();
        let mut listed = list_due;
        let mut look_due = self.tools.clock.now() + TABLE_LOOK;
        let mut write_due = self.tools.clock.now();
        let mut node = (self.tools.read_node)();
        // Bounded: each turn waits, below or for an answer.
        loop {
            let now = self.tools.clock.now();
            let seen = (self.tools.read_node)();
            if seen != node {
                node = seen;
                self.index.mark_all_due();
            }
            if now >= list_due {
                listed = now;
                match self.list(&reader, &mut bells).await {
                    Ok(next) => {
                        list_due = self.tools.clock.now() + next;
                        list_pause.reset();
                        self.is_list_failing = false;
                    }
                    Err(e) => {
                        self.tools
                            .fail(&format!("cannot list Services: {}", error_chain(&e)));
                        list_due = self.tools.clock.now() + list_pause.take();
                        self.is_list_failing = true;
                    }
                }
            }
            let now = self.tools.clock.now();
            if now >= look_due {
                look_due = now + TABLE_LOOK;
                match self.tools.finds_kube_proxy().await {
                    Ok(true) => return Err(beside_kube_proxy()),
                    Ok(false) => {}
                    Err(e) => self.tools.complaints.complain(&error_chain(&e)),
                }
                if self.is_suspect {
                    // All of it is written anyhow.
                } else if has_tables(&*self.tools.writer, &network).await {
                    let renewed = write_base_tables(&*self.tools.writer, &network).await;
                    if !matches!(renewed, Ok(false)) {
                        // It may have no Service now.
                        self.is_suspect = true;
                        self.index.mark_all();
                    }
                } else {
                    let why =
                        "another program has changed the rules of Services; they are written again";
                    self.tools.recorder.record_node_event(
                        EventSeverity::Warning,
                        "ServiceRulesChanged",
                        why,
                    );
                    self.tools.board.count(|it| it.repaired += 1);
                    self.is_suspect = true;
                    self.index.mark_all();
                }
            }
            if self.retry_due.is_some_and(|due| now >= due) {
                self.retry_due = None;
                self.index.retry_refused();
            }
            if self.busy_due.is_some_and(|due| now >= due) {
                self.busy_due = None;
                self.stale.append(&mut self.busy);
            }
            let mut next = list_due.min(look_due);
            if self.tools.clock.now() >= write_due {
                let written = self.write_due(&reader, &network, &node).await;
                let now = self.tools.clock.now();
                match written {
                    // Rings are answered at once.
                    Ok(false) => {}
                    Ok(true) => {
                        write_pause.reset();
                        write_due = now + WRITE_PAUSE;
                        next = next.min(write_due);
                    }
                    Err(e) => {
                        self.tools.fail(&e.text);
                        if e.is_of_table {
                            let since = &self.tools.board.failing_since;
                            since.set(since.get().or(Some(now)));
                        }
                        write_due = now + write_pause.take();
                        next = next.min(write_due);
                    }
                }
            } else {
                next = next.min(write_due);
            }
            if let Some(bells) = &mut bells {
                bells.start_due(self.tools.clock.now()).await;
            }
            let watch_due = bells.as_ref().and_then(ServiceDoorbells::next_due);
            for due in [self.retry_due, self.busy_due, watch_due]
                .into_iter()
                .flatten()
            {
                next = next.min(due);
            }
            let has_news = self.wait_for_change(&mut bells, next, &mut changed).await?;
            if !has_news {
                // A watch that breaks at once must not make a list each time.
                let lasted = self.tools.clock.now() - listed;
                list_due = list_due.min(listed + watch_pause.take_after_watch(lasted));
            }
        }
    }

    /// Refuses to work beside a kube-proxy, or without what the kernel and the machine need. Leaves out a family that the
    /// kernel lacks.
    async fn refuse_beside_others(&self, network: &mut ProxyNetwork) -> Result<(), KeeperPause> {
        let writer = &*self.tools.writer;
        let refused = |e: NftError| {
            let fix = match e {
                NftError::Missing => "apt install nftables",
                _ => "see docs/services.md",
            };
            KeeperPause::Refused(
                format!("cannot write rules for Services: {}", error_chain(&e)),
                fix,
            )
        };
        if self.tools.finds_kube_proxy().await.map_err(refused)? {
            return Err(beside_kube_proxy());
        }
        let mut missing = Vec::new();
        for family in network.families.clone() {
            let trial = [remove_table(family), base_table(family, network)].concat();
            match writer.check_text(trial).await {
                Ok(_) => {}
                // It tells nothing about the kernel.
                Err(e) if !matches!(e, NftError::Refused(_)) => return Err(refused(e)),
                Err(e) if network.families.len() == 1 => {
                    return Err(KeeperPause::Refused(
                        format!(
                            "the kernel or nft is too old for Services: {}",
                            error_chain(&e)
                        ),
                        "Services need Linux 5.13 and nft 1.0.1; see docs/services.md",
                    ));
                }
                Err(e) => {
                    missing.push(format!("{}: {}", family.word(), error_chain(&e)));
                    network.families.retain(|other| *other != family);
                }
            }
        }
        if !missing.is_empty() {
            let why = format!(
                "Services of one family of addresses do not work: {}",
                missing.join("; ")
            );
            self.tools.recorder.record_node_event(
                EventSeverity::Warning,
                "ServiceFamilyMissing",
                &why,
            );
        }
        Ok(())
    }

    /// Removes the tables of families that no Service is of any more.
    async fn remove_families(&self, network: &ProxyNetwork) {
        let is_gone = |family: &AddressFamily| !network.families.contains(family);
        let gone: Vec<AddressFamily> = AddressFamily::ALL.into_iter().filter(is_gone).collect();
        if let Err(e) = remove_tables(&*self.tools.writer, &gone).await {
            let why = format!("cannot remove the rules of a family: {}", error_chain(&e));
            self.tools.complaints.complain(&why);
        }
    }

    /// Lists everything, and hangs or renews the doorbells. Returns the time until the next list.
    async fn list(
        &mut self,
        reader: &ServiceReader,
        bells: &mut Option<ServiceDoorbells>,
    ) -> Result<Duration, KubeError> {
        let listed = reader.list_all().await?;
        if listed.listing.is_cut() {
            self.tools
                .complaints
                .complain("the cluster has more Services than picolet keeps; see SPECIFICATION.md");
        }
        // A watch that runs is cut: its successor begins with the list.
        *bells = None;
        if self.cfg.watch {
            let now = self.tools.clock.now();
            match ServiceDoorbells::open(reader, &listed, &self.tools.link_policy, now) {
                Ok(mut opened) => {
                    opened.start_due(now).await;
                    *bells = Some(opened);
                }
                Err(e) => log::warn!("doorbell of Services: {e}"),
            }
        }
        self.index.take_listing(listed.listing);
        let is_there = |namespace: &str, name: &str| self.index.has_service(namespace, name);
        self.tools.board.retain_health_ports(is_there);
        self.tools.board.health.borrow_mut().is_polling = bells.is_none();
        Ok(
            match (bells.is_some(), self.tools.link_policy.is_metered()) {
                (true, _) => WATCHED_LIST,
                (false, false) => UNWATCHED_LIST,
                (false, true) => METERED_LIST,
            },
        )
    }

    /// Writes what is due. Returns true if something was written; chains that are free by now are deleted.
    async fn write_due(
        &mut self,
        reader: &ServiceReader,
        network: &ProxyNetwork,
        node: &ProxyNode,
    ) -> Result<bool, RoundError> {
        self.delete_stale(network).await;
        if !self.index.is_listed() {
            return Ok(false);
        }
        if self.is_suspect {
            // Nobody sees if another program has emptied one of its chains.
            write_base_tables(&*self.tools.writer, network).await?;
            // What was written may not be there, or not be all: a round that looks at the whole table plans all of it.
            self.index.mark_all();
        }
        let mut round = WriteRound::new(&self.tools, network, node, self.is_suspect);
        let written = round.write_all(reader, &mut self.index).await;
        let has_written = round.has_written();
        let has_refused = round.has_refused();
        let found = round.take_stale();
        let is_cut = round.is_cut && self.is_suspect;
        if self.is_suspect && !is_cut && written.is_ok() {
            // Others are used again, or gone.
            self.busy.retain(|chain| found.contains(chain));
        }
        self.stale = found.difference(&self.busy).copied().collect();
        if has_refused {
            self.plan_retry();
        }
        self.has_failed &= written.is_err() && !has_written;
        if let Err(e) = written {
            if e.is_of_table {
                self.is_suspect = true;
                self.has_failed = true;
            } else if !self.has_failed {
                // After a failure each round begins with a write of the base: this one went well.
                self.tools.board.failing_since.set(None);
            }
            return Err(e);
        }
        // Once these chains are deleted, others are read.
        self.is_suspect = is_cut && !self.stale.is_empty();
        let services = self.index.count_written();
        let refused = self.index.count_refused();
        if refused == 0 && self.retry_due.is_none() {
            self.retry_pause.reset();
        }
        self.tools.board.failing_since.set(None);
        let updated = self.tools.clock.wall_time();
        self.tools.board.updated.set(updated);
        if !self.is_list_failing {
            self.tools.board.set_trouble(None);
        }
        let mut health = self.tools.board.health.borrow_mut();
        if !health.is_written {
            log::info!("{services} Services are reachable");
        }
        health.is_written = true;
        health.services = services;
        health.refused = refused;
        drop(health);
        self.tools
            .board
            .count(|it| it.services = u64::try_from(services).unwrap_or(0));
        Ok(has_written || !self.stale.is_empty())
    }

    /// Deletes chains that are free. A transaction that is refused is halved: one chain keeps no other.
    async fn delete_stale(&mut self, network: &ProxyNetwork) {
        let stale: Vec<StaleChain> = core::mem::take(&mut self.stale).into_iter().collect();
        let mut groups: Vec<_> = stale.chunks(DELETED_CHAINS).collect();
        let (mut has_seen, mut refusals) = (false, 0);
        // Bounded: down to one chain, or to REFUSED_DELETIONS.
        while let Some(group) = groups.pop() {
            let Err(e) = self.tools.writer.write_text(delete_chains(group)).await else {
                continue;
            };
            log::debug!("chains of Services: {}", error_chain(&e));
            let is_refused = matches!(e, NftError::Refused(_));
            has_seen = has_seen || is_refused && has_tables(&*self.tools.writer, network).await;
            if !is_refused || !has_seen {
                // They are empty, and nothing leads to them; a whole look finds them.
                self.is_suspect = true;
                return;
            }
            refusals += 1;
            if group.len() == 1 || refusals >= REFUSED_DELETIONS {
                self.busy.extend(group);
            } else {
                groups.extend(<[_; 2]>::from(group.split_at(group.len() / 2)));
            }
        }
        if self.busy.is_empty() {
            self.busy_pause.reset();
        } else if self.busy_due.is_none() {
            self.busy_due = Some(self.tools.clock.now() + self.busy_pause.take());
        }
    }

    /// Sets the time of the next try with Services that were refused. One that is set stays: failures in between must not put it off.
    fn plan_retry(&mut self) {
        if self.retry_due.is_none() {
            self.retry_due = Some(self.tools.clock.now() + self.retry_pause.take());
        }
    }

    /// Waits until a doorbell rings or it is `until`. Returns false if a list is due.
    async fn wait_for_change(
        &mut self,
        bells: &mut Option<ServiceDoorbells>,
        until: MonoTime,
        changed: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<bool, KeeperPause> {
        let time = async {
            self.tools.clock.sleep_until(until).await;
            KeeperEvent::Time
        };
        let changed = async {
            changed.await;
            KeeperEvent::Changed
        };
        let waits = future::or(changed, time);
        let event = match bells {
            Some(bells) => {
                let news = async {
                    let (number, news) = bells.next_news().await;
                    KeeperEvent::News(number, news)
                };
                future::or(news, waits).await
            }
            None => waits.await,
        };
        let (index, news) = match event {
            KeeperEvent::Changed => return Err(KeeperPause::Changed),
            KeeperEvent::Time => return Ok(true),
            KeeperEvent::News(number, news) => (number, news),
        };
        match news {
            DoorbellNews::Ring(ring) => {
                if let Some(bells) = bells {
                    bells.note_version(index, &ring.resource_version);
                }
                if ring.kind == crate::kube::WatchEventKind::Bookmark {
                    return Ok(true);
                }
                let service = if index == 0 {
                    &ring.name
                } else {
                    &ring.service
                };
                if service.is_empty() && index == 0 {
                    return Ok(false);
                }
                // A slice without a label belongs to nobody.
                self.index.ring(&ring.namespace, service);
                Ok(true)
            }
            DoorbellNews::Ended(Ok(WatchEnd::Clean)) => {
                if let Some(bells) = bells {
                    bells.note_end(index, self.tools.clock.now());
                }
                Ok(true)
            }
            DoorbellNews::Overrun | DoorbellNews::Ended(_) => Ok(false),
        }
    }
}

fn beside_kube_proxy() -> KeeperPause {
    KeeperPause::Removed(
        "rules of a kube-proxy are on this machine: picolet writes none beside them".into(),
        "end the kube-proxy and restart the machine, or set picolet.services.enabled: false",
    )
}

#[cfg(test)]
mod tests;
