//! The task that keeps Services: settings, lists, doorbells, the state of the table (PROX-01, PROX-04, PROX-21, PROX-25).
//!
//! Whatever fails, the table stays as it is, and is brought up to date later.

use alloc::rc::Rc;
use core::time::Duration;

use smol::future;

use super::{
    ServicesBoard,
    reading::{ServiceReader, services_path, slices_path},
    round::{RoundError, WriteRound},
    settings::ServicesConfig,
    writer::{NftError, NftProgram, TableWriter, has_stamp, remove_tables},
};
use crate::{
    agent::{
        clock::Clock,
        cluster_network::ClusterNetworkBoard,
        complaints::Complaints,
        link_policy::LinkPolicy,
        node::LocalNode,
        recorder::{EventRecorder, EventSeverity},
    },
    api::MonoTime,
    error::error_chain,
    kube::{ClusterReader, DoorbellNews, KubeError, WatchDoorbell, WatchEnd, WatchOptions},
    logic::services::{
        AddressFamily, ProxyNetwork, ProxyNode,
        index::ServiceIndex,
        live::has_kube_proxy,
        table::{base_table, remove_table, table_stamp},
        transaction::{StaleChain, delete_chains},
    },
    parts::PartTools,
    sys::lane::Lane,
};

/// Time between two lists while doorbells ring.
const WATCHED_LIST: Duration = Duration::from_secs(3600);
/// Time between two lists without doorbells; on a link whose bytes cost money.
const POLL: Duration = Duration::from_secs(10);
const METERED_POLL: Duration = Duration::from_secs(60);
/// Time that a watch lasts.
const WATCH_TIME: Duration = Duration::from_secs(8 * 60);
/// Time between two looks at the table, which others may have changed.
const TABLE_LOOK: Duration = Duration::from_secs(600);
/// Pause after something was written: changes that come meanwhile are written together, and chains that became free can
/// be deleted.
const WRITE_PAUSE: Duration = Duration::from_secs(1);
/// Pauses after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Time between two looks for a kube-proxy that was in the way, or a program that was missing.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Chains that wait to be deleted; more are found by a later look at the table.
const MAX_STALE: usize = 1000;

/// Tools of the keeper and of its rounds.
pub(super) struct KeeperTools {
    pub(super) board: Rc<ServicesBoard>,
    pub(super) writer: Rc<dyn TableWriter>,
    pub(super) recorder: Rc<EventRecorder>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) disk: Lane,
    clock: Rc<dyn Clock>,
    node: Rc<LocalNode>,
    link_policy: Rc<dyn LinkPolicy>,
    cluster_network: Rc<ClusterNetworkBoard>,
    reader: Option<Rc<ClusterReader>>,
}

/// See the module.
pub(super) struct ServicesKeeper {
    cfg: ServicesConfig,
    tools: KeeperTools,
    index: ServiceIndex,
    /// Chains that wait to be deleted.
    stale: Vec<StaleChain>,
    /// Set if the table is to be compared with everything: after a start, and after a transaction failed.
    is_suspect: bool,
}

/// Reason why Services are not kept for now.
enum KeeperPause {
    /// The settings changed.
    Changed,
    /// A fault of the machine: text, and the line to type against it.
    Refused(String, &'static str),
}

/// Events that the keeper waits for.
enum KeeperEvent {
    Services(DoorbellNews),
    Slices(DoorbellNews),
    Changed,
    Time,
}

/// A doorbell and the version that its next watch begins with.
struct KeptDoorbell {
    bell: WatchDoorbell,
    version: String,
}

impl KeptDoorbell {
    fn open(reader: &ClusterReader, path: &str, version: &str) -> std::io::Result<Self> {
        Ok(Self {
            bell: reader.open_doorbell(path)?,
            version: version.to_owned(),
        })
    }

    async fn start_watch(&self) {
        let options = WatchOptions {
            node: String::new(),
            resource_version: self.version.clone(),
            timeout: WATCH_TIME,
            bookmarks: true,
        };
        self.bell.start_watch(options).await;
    }
}

impl ServicesKeeper {
    pub(super) fn new(
        cfg: &ServicesConfig,
        tools: &PartTools<'_>,
        board: Rc<ServicesBoard>,
    ) -> Self {
        Self {
            cfg: cfg.clone(),
            tools: KeeperTools {
                board,
                writer: Rc::new(NftProgram),
                recorder: Rc::clone(tools.recorder),
                complaints: Rc::clone(tools.complaints),
                disk: tools.disk.clone(),
                clock: Rc::clone(tools.clock),
                node: Rc::clone(tools.node),
                link_policy: Rc::clone(tools.link_policy),
                cluster_network: Rc::clone(tools.cluster_network),
                reader: tools.cluster_reader.clone(),
            },
            index: ServiceIndex::default(),
            stale: Vec::new(),
            is_suspect: true,
        }
    }

    /// Keeps Services as long as the agent runs.
    pub(super) async fn keep_services(mut self) {
        if self.cfg.is_off {
            if let Err(e) = remove_tables(&*self.tools.writer).await {
                log::warn!("cannot remove the rules of Services: {}", error_chain(&e));
            }
            return;
        }
        let told = Rc::clone(&self.tools.cluster_network);
        loop {
            let changed = told.changed();
            let pause = match self.network() {
                Ok(network) => {
                    let Err(pause) = self.keep_with(&network).await;
                    pause
                }
                Err(pause) => pause,
            };
            match pause {
                KeeperPause::Changed => {}
                KeeperPause::Refused(why, fix) => {
                    self.tools.refuse(&why, fix);
                    let later = self.tools.clock.now() + REFUSED_PAUSE;
                    future::or(changed, self.tools.clock.sleep_until(later)).await;
                }
            }
        }
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
                return Err(KeeperPause::Refused(why.into(), fix));
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
            return Err(KeeperPause::Refused(
                "nobody may list Services for this node".into(),
                fix,
            ));
        };
        let mut network = network.clone();
        self.refuse_beside_others(&mut network).await?;
        let reader = ServiceReader { reader };
        self.index.mark_all();
        self.is_suspect = true;
        let mut bells: Option<[KeptDoorbell; 2]> = None;
        let mut pause = FIRST_PAUSE;
        let mut list_due = self.tools.clock.now();
        let mut listed = list_due;
        let mut look_due = self.tools.clock.now() + TABLE_LOOK;
        let mut write_due = self.tools.clock.now();
        let mut node = self.tools.proxy_node();
        // Bounded: each turn waits, below or for an answer.
        loop {
            let now = self.tools.clock.now();
            let seen = self.tools.proxy_node();
            if seen != node {
                node = seen;
                self.index.mark_all_due();
            }
            if now >= list_due {
                listed = now;
                match self.list(&reader, &mut bells).await {
                    Ok(next) => {
                        list_due = self.tools.clock.now() + next;
                        pause = FIRST_PAUSE;
                    }
                    Err(e) => {
                        self.tools
                            .fail(&format!("cannot list Services: {}", error_chain(&e)));
                        list_due = self.tools.clock.now() + pause;
                        pause = (pause * 2).min(LAST_PAUSE);
                    }
                }
            }
            let now = self.tools.clock.now();
            if now >= look_due {
                look_due = now + TABLE_LOOK;
                if !self.is_suspect && !self.has_table(&network).await {
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
            let mut next = list_due.min(look_due);
            if self.tools.clock.now() >= write_due {
                let written = self.write_due(&reader, &network, &node).await;
                let now = self.tools.clock.now();
                match written {
                    // Rings are answered at once.
                    Ok(false) => {}
                    Ok(true) => {
                        pause = FIRST_PAUSE;
                        write_due = now + WRITE_PAUSE;
                        next = next.min(write_due);
                    }
                    Err(e) => {
                        self.tools.fail(&e.text);
                        write_due = now + pause;
                        next = next.min(write_due);
                        pause = (pause * 2).min(LAST_PAUSE);
                    }
                }
            } else {
                next = next.min(write_due);
            }
            let has_news = self.wait_for_change(&mut bells, next, &mut changed).await?;
            if !has_news {
                // A watch that breaks at once must not make a list each time.
                list_due = list_due.min(listed + POLL).max(self.tools.clock.now());
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
        let mut printed = writer.list(&["list", "chains"]).await.map_err(refused)?;
        printed.push_str(&writer.list(&["list", "tables"]).await.map_err(refused)?);
        if has_kube_proxy(&printed) {
            return Err(KeeperPause::Refused(
                "rules of a kube-proxy are on this machine: picolet writes none beside them".into(),
                "end the kube-proxy and restart the machine, or set picolet.services.enabled: false",
            ));
        }
        let mut missing = Vec::new();
        for family in network.families.clone() {
            let trial = [remove_table(family), base_table(family, network)].concat();
            match writer.check_text(trial).await {
                Ok(_) => {}
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

    /// Lists everything, and hangs or renews the doorbells. Returns the time until the next list.
    async fn list(
        &mut self,
        reader: &ServiceReader,
        bells: &mut Option<[KeptDoorbell; 2]>,
    ) -> Result<Duration, KubeError> {
        let listed = reader.list_all().await?;
        if listed.listing.is_cut() {
            self.tools
                .complaints
                .complain("the cluster has more Services than picolet keeps; see SPECIFICATION.md");
        }
        self.index.take_listing(listed.listing);
        let is_metered = self.tools.link_policy.is_metered();
        let is_watched = self.cfg.watch.unwrap_or(!is_metered);
        // A watch that runs is cut: its successor begins with the list.
        *bells = None;
        if is_watched {
            let open =
                |path: &str, version: &str| KeptDoorbell::open(&reader.reader, path, version);
            let services = open(&services_path(), &listed.services_version);
            let slices = open(&slices_path(), &listed.slices_version);
            match (services, slices) {
                (Ok(services), Ok(slices)) => {
                    services.start_watch().await;
                    slices.start_watch().await;
                    *bells = Some([services, slices]);
                }
                (Err(e), _) | (_, Err(e)) => log::warn!("doorbell of Services: {e}"),
            }
        }
        self.tools.board.health.borrow_mut().is_polling = is_metered && bells.is_none();
        Ok(match (bells.is_some(), is_metered) {
            (true, _) => WATCHED_LIST,
            (false, false) => POLL,
            (false, true) => METERED_POLL,
        })
    }

    /// Returns true if the tables are there, made by this version with these settings.
    async fn has_table(&self, network: &ProxyNetwork) -> bool {
        for family in &network.families {
            let stamp = table_stamp(*family, network);
            if !has_stamp(&*self.tools.writer, *family, &stamp).await {
                return false;
            }
        }
        true
    }

    /// Writes what is due. Returns true if something was written; chains that are free by now are deleted.
    async fn write_due(
        &mut self,
        reader: &ServiceReader,
        network: &ProxyNetwork,
        node: &ProxyNode,
    ) -> Result<bool, RoundError> {
        let ready = core::mem::take(&mut self.stale);
        let mut rest = ready.as_slice();
        while !rest.is_empty() {
            let (text, later) = delete_chains(rest);
            rest = later;
            if let Err(e) = self.tools.writer.write_text(text).await {
                // They are empty, and nothing leads to them; the next whole look finds them.
                log::debug!("chains of Services: {}", error_chain(&e));
            }
        }
        if !self.index.is_listed() {
            return Ok(false);
        }
        if self.is_suspect {
            if !self.has_table(network).await {
                self.write_base(network).await?;
            }
            // What was written may not be there, or not be all: a round that looks at the whole table plans all of it.
            self.index.mark_all();
        }
        let mut round = WriteRound::new(&self.tools, network, node, self.is_suspect);
        let written = round.write_all(reader, &mut self.index).await;
        let has_written = round.has_written();
        let stale = round.take_stale();
        self.stale.extend(stale.into_iter().take(MAX_STALE));
        if let Err(e) = written {
            self.is_suspect |= e.is_of_table;
            return Err(e);
        }
        self.is_suspect = false;
        let services = self.index.count_written();
        let mut health = self.tools.board.health.borrow_mut();
        if !health.is_written {
            log::info!("{services} Services are reachable");
        }
        health.is_written = true;
        health.services = services;
        health.trouble = None;
        self.tools
            .board
            .count(|it| it.services = u64::try_from(services).unwrap_or(0));
        Ok(has_written || !self.stale.is_empty())
    }

    async fn write_base(&mut self, network: &ProxyNetwork) -> Result<(), NftError> {
        for family in &network.families {
            let text = base_table(*family, network);
            let Err(e) = self.tools.writer.write_text(text.clone()).await else {
                continue;
            };
            // The table of another version has sets of another form: all is made anew in one transaction.
            log::info!("table of Services: {}; it is made anew", error_chain(&e));
            let anew = [remove_table(*family), text].concat();
            self.tools.writer.write_text(anew).await?;
        }
        Ok(())
    }

    /// Waits until a doorbell rings or it is `until`. Returns false if a list is due.
    async fn wait_for_change(
        &mut self,
        bells: &mut Option<[KeptDoorbell; 2]>,
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
            Some([services, slices]) => {
                let services = async { KeeperEvent::Services(services.bell.next_news().await) };
                let slices = async { KeeperEvent::Slices(slices.bell.next_news().await) };
                future::or(future::or(services, slices), waits).await
            }
            None => waits.await,
        };
        let (index, news) = match event {
            KeeperEvent::Changed => return Err(KeeperPause::Changed),
            KeeperEvent::Time => return Ok(true),
            KeeperEvent::Services(news) => (0, news),
            KeeperEvent::Slices(news) => (1, news),
        };
        match news {
            DoorbellNews::Ring(ring) => {
                if !ring.resource_version.is_empty()
                    && let Some(bells) = bells
                {
                    bells[index].version.clone_from(&ring.resource_version);
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
                    bells[index].start_watch().await;
                }
                Ok(true)
            }
            DoorbellNews::Overrun | DoorbellNews::Ended(_) => Ok(false),
        }
    }
}

impl KeeperTools {
    /// The node as the choice of endpoints sees it.
    fn proxy_node(&self) -> ProxyNode {
        ProxyNode {
            name: self.node.name.clone(),
            zone: self
                .node
                .label("topology.kubernetes.io/zone")
                .unwrap_or_default(),
            addresses: self.node.host_ips(),
        }
    }

    /// Tells once why nothing is written.
    fn refuse(&self, why: &str, fix: &str) {
        let is_new = self.board.health.borrow().trouble.as_deref() != Some(why);
        if is_new {
            self.recorder
                .record_node_event(EventSeverity::Warning, "ServicesRefused", why);
        }
        self.board.set_trouble(Some((why.to_owned(), fix)));
    }

    /// Tells of a step that failed and is tried again.
    fn fail(&self, why: &str) {
        self.complaints.complain(why);
        self.board
            .set_trouble(Some((why.to_owned(), "see docs/services.md")));
    }
}
