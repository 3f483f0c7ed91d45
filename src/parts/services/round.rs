//! One round of writing: reads the Services that are due, and brings the table to them in transactions (PROX-25 to
//! PROX-27).

use alloc::{collections::BTreeSet, rc::Rc};
use core::net::IpAddr;

use super::{
    HealthPort,
    reading::{MAX_SLICES, ReadService, ServiceReader, TOGETHER},
    sending::PendingService,
    tools::KeeperTools,
    writer::{NftError, read_live_table},
};
use crate::{
    agent::recorder::EventSeverity,
    error::error_chain,
    kube::KubeError,
    logic::services::{
        ProxyNetwork, ProxyNode,
        index::{LivingServices, ServiceIndex, WrittenService},
        live::{LiveTable, MAX_READ},
        plan::{ServicePlan, plan_service},
        transaction::{
            MAX_SERVICE_BYTES, ServiceWrite, StaleChain, TableBefore, TransactionParts,
            remove_hairpins, update_live, write_service,
        },
        udp::{UdpPort, udp_ports},
    },
};

/// Services that are due, above which all are read page by page instead of one by one.
const ONE_BY_ONE: usize = 50;
/// Services with a health check port, at most.
const MAX_HEALTH_PORTS: usize = 64;

/// Reason why a round ended early. What it has written counts.
pub(super) struct RoundError {
    /// Text for people.
    pub(super) text: String,
    /// Set if the table may not hold what is thought.
    pub(super) is_of_table: bool,
}

impl From<KubeError> for RoundError {
    fn from(error: KubeError) -> Self {
        Self {
            text: format!("cannot read Services: {}", error_chain(&error)),
            is_of_table: false,
        }
    }
}

impl From<NftError> for RoundError {
    fn from(error: NftError) -> Self {
        Self {
            text: format!(
                "cannot write the rules of Services: {}",
                error_chain(&error)
            ),
            is_of_table: true,
        }
    }
}

/// See the module.
pub(super) struct WriteRound<'a> {
    pub(super) tools: &'a KeeperTools,
    pub(super) network: &'a ProxyNetwork,
    node: &'a ProxyNode,
    /// Set if all Services are written, and what belongs to none is removed.
    is_whole: bool,
    /// The table, once it was needed.
    pub(super) live: Option<LiveTable>,
    /// Set if the table was empty when it was read.
    is_new: bool,
    living: LivingServices,
    /// Set once the tables were seen in this round.
    pub(super) has_tables: bool,
    pub(super) parts: TransactionParts,
    pub(super) pending: Vec<PendingService>,
    /// Chains that are free now. All are of the table as it was read, or of a plan.
    pub(super) stale: BTreeSet<StaleChain>,
    /// Set if the table has more chains than are read: another round has to look for the rest.
    pub(super) is_cut: bool,
    /// Ports of UDP whose flows have to be looked through, and their Services.
    pub(super) udp: Vec<UdpPort>,
    pub(super) udp_services: Vec<(String, String)>,
    hairpins: BTreeSet<IpAddr>,
    /// Set if not all endpoints of this node are in these: a Service is too large.
    has_unplanned: bool,
    pub(super) has_written: bool,
    /// Set if a Service gave up an address, for which another may wait.
    pub(super) gave_up: bool,
    /// Set if the kernel did not take the rules of a Service, or did not remove its flows.
    pub(super) has_refused: bool,
}

impl<'a> WriteRound<'a> {
    pub(super) fn new(
        tools: &'a KeeperTools,
        network: &'a ProxyNetwork,
        node: &'a ProxyNode,
        is_whole: bool,
    ) -> Self {
        Self {
            tools,
            network,
            node,
            is_whole,
            live: None,
            is_new: false,
            living: LivingServices::default(),
            has_tables: false,
            parts: TransactionParts::default(),
            pending: Vec::new(),
            stale: BTreeSet::new(),
            is_cut: false,
            udp: Vec::new(),
            udp_services: Vec::new(),
            hairpins: BTreeSet::new(),
            has_unplanned: false,
            has_written: false,
            gave_up: false,
            has_refused: false,
        }
    }

    /// Returns true if the table was changed.
    pub(super) const fn has_written(&self) -> bool {
        self.has_written
    }

    /// Returns true if the kernel refused something of a Service, which is not due.
    pub(super) const fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Takes the chains that are free now.
    pub(super) fn take_stale(&mut self) -> BTreeSet<StaleChain> {
        core::mem::take(&mut self.stale)
    }

    /// Reads and writes all that is due.
    ///
    /// - Errors: what was not written is due again.
    pub(super) async fn write_all(
        &mut self,
        reader: &ServiceReader,
        index: &mut ServiceIndex,
    ) -> Result<(), RoundError> {
        let written = self.write_due(reader, index).await;
        if written.is_err() {
            // Planned, and not sent.
            for pending in self.pending.drain(..) {
                if let Some((namespace, name)) = pending.name {
                    index.set_due(&namespace, &name);
                }
            }
        }
        if self.gave_up {
            index.retry_conflicts();
        }
        written
    }

    async fn write_due(
        &mut self,
        reader: &ServiceReader,
        index: &mut ServiceIndex,
    ) -> Result<(), RoundError> {
        self.living = index.living();
        if self.is_whole {
            self.read_live().await?;
        }
        if index.count_due() > ONE_BY_ONE {
            // Those that no pod works without go first.
            while let Some((namespace, name)) = index.take_first_due() {
                self.write_one(reader, index, namespace, name).await?;
            }
            self.send(index).await?;
            self.walk(reader, index).await?;
        }
        while let Some((namespace, name)) = index.take_due() {
            self.write_one(reader, index, namespace, name).await?;
        }
        self.send(index).await?;
        self.remove_gone(index).await
    }

    async fn write_one(
        &mut self,
        reader: &ServiceReader,
        index: &mut ServiceIndex,
        namespace: String,
        name: String,
    ) -> Result<(), RoundError> {
        let read = async {
            match reader.read_service(&namespace, &name).await? {
                Some(service) => reader.add_endpoints(vec![service], self.node).await,
                None => Ok(Vec::new()),
            }
        };
        let read = match read.await {
            Ok(read) => read,
            Err(e) => {
                index.set_due(&namespace, &name);
                return Err(e.into());
            }
        };
        let Some(service) = read.into_iter().next() else {
            self.forget_health_port(&namespace, &name);
            let before = index.written_before(&namespace, &name);
            self.living.replace(before.uid, 0);
            index.remove_service(&namespace, &name);
            return Ok(());
        };
        let written = self.add_service(index, service).await;
        if written.is_err() {
            index.set_due(&namespace, &name);
        }
        written
    }

    /// Reads all Services page by page, and writes those that are due.
    async fn walk(
        &mut self,
        reader: &ServiceReader,
        index: &mut ServiceIndex,
    ) -> Result<(), RoundError> {
        let mut continues = String::new();
        // Bounded: the list ends, and one that grows for ever is cut by the apiserver (status 410).
        loop {
            let (page, next) = reader.read_service_page(&continues).await?;
            let mut due: Vec<ReadService> = page
                .into_iter()
                .filter(|it| index.is_due(&it.namespace, &it.name))
                .collect();
            due.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
            while let Some(first) = due.first() {
                let namespace = first.namespace.clone();
                let same = due
                    .iter()
                    .take(TOGETHER)
                    .take_while(|it| it.namespace == namespace);
                let count = same.count();
                let rest = due.split_off(count);
                for service in reader.add_endpoints(due, self.node).await? {
                    if service.is_cut && count > 1 {
                        // It may be whole if it is read alone, which is next.
                        continue;
                    }
                    index.set_taken(&service.namespace, &service.name);
                    let (namespace, name) = (service.namespace.clone(), service.name.clone());
                    if let Err(e) = self.add_service(index, service).await {
                        index.set_due(&namespace, &name);
                        return Err(e);
                    }
                }
                due = rest;
            }
            continues = next;
            if continues.is_empty() {
                return Ok(());
            }
        }
    }

    async fn read_live(&mut self) -> Result<(), RoundError> {
        if self.live.is_none() {
            let writer = &*self.tools.writer;
            let live = read_live_table(writer, &self.network.families).await?;
            self.is_new = live.elements.is_empty() && live.chains.is_empty();
            self.is_cut = live.chains.len() >= MAX_READ;
            self.live = Some(live);
        }
        Ok(())
    }

    /// Plans a Service, and adds its text to the transaction.
    async fn add_service(
        &mut self,
        index: &mut ServiceIndex,
        read: ReadService,
    ) -> Result<(), RoundError> {
        let (namespace, name) = (read.namespace.clone(), read.name.clone());
        if read.is_cut {
            let why = format!("has more than {MAX_SLICES} slices");
            self.has_unplanned = true;
            self.refuse_service(index, &namespace, &name, &why);
            return Ok(());
        }
        let before = index.written_before(&namespace, &name);
        let seen = WrittenService {
            uid: read.uid,
            version: read.version,
            slices: read.endpoints.slices(),
            ..WrittenService::default()
        };
        let Some(service) = &read.service else {
            self.tell_faults(&namespace, &name, &read.faults);
            self.forget_health_port(&namespace, &name);
            self.living.replace(before.uid, 0);
            index.set_idle(&namespace, &name, seen);
            return Ok(());
        };
        let mut faults = read.faults.clone();
        let plan = plan_service(
            service,
            &read.endpoints,
            self.network,
            self.node,
            &mut faults,
        );
        self.tell_faults(&namespace, &name, &faults);
        self.set_health_port(service, read.endpoints.count_local_ready());
        if self.is_whole {
            self.hairpins.extend(&plan.hairpins);
        }
        if plan.is_too_long() {
            let why = format!("needs more than {} KiB of rules", MAX_SERVICE_BYTES >> 10);
            self.has_unplanned = true;
            self.refuse_service(index, &namespace, &name, &why);
            return Ok(());
        }
        // One that was made anew has the addresses of the old one.
        self.living.replace(before.uid, plan.uid);
        if before.was_refused {
            // It is alone in its transaction.
            self.send(index).await?;
        }
        let mut written = WrittenService {
            frontends: plan.frontends_digest(),
            written: plan.whole_digest(),
            has_missing: !plan.missing.is_empty(),
            ..seen
        };
        let is_same_service = before.uid == plan.uid && !before.had_conflict && !before.was_refused;
        if is_same_service && !before.has_stale_flows && before.written == written.written {
            index.set_written(&namespace, &name, written);
            return Ok(());
        }
        let is_chains_only = is_same_service && before.frontends == written.frontends;
        // Clients may remember an endpoint whose chain has to go.
        let has_affinity = service.affinity_s.is_some();
        let mut text = String::new();
        let result = if is_chains_only && !has_affinity && self.live.is_none() {
            let was_missing = before.was_missing;
            write_service(&plan, TableBefore::SameFrontends { was_missing }, &mut text)
        } else {
            self.read_live().await?;
            self.plan_with_live(&plan, &mut text)
        };
        if !before.was_refused {
            self.note_live(&plan, &result);
        }
        if let Some(key) = result.conflicts.first() {
            written.has_conflict = true;
            let more = result.conflicts.len() - 1;
            let why = format!(
                "Service {namespace}/{name}: {key} belongs to another Service already ({more} more)"
            );
            self.tools
                .recorder
                .record_node_event(EventSeverity::Warning, "ServiceConflict", &why);
        }
        let mut udp = udp_ports(service, &read.endpoints);
        for key in &result.conflicts {
            { udp.iter_mut() }.for_each(|port| port.leave_out(key));
        }
        let pending = PendingService {
            name: Some((namespace.clone(), name.clone())),
            written,
            text,
            stale: result.stale.clone(),
            udp,
            gave_up: result.gave_up,
            robbed: result.robbed.clone(),
        };
        self.push(index, pending).await?;
        if before.was_refused {
            self.send(index).await?;
            // If it was refused again, the table is as it was read.
            if !index.written_before(&namespace, &name).was_refused {
                self.note_live(&plan, &result);
            }
        }
        Ok(())
    }

    fn note_live(&mut self, plan: &ServicePlan, written: &ServiceWrite) {
        if let Some(live) = &mut self.live {
            update_live(live, plan, written);
        }
    }

    fn plan_with_live(&self, plan: &ServicePlan, text: &mut String) -> ServiceWrite {
        let Some(live) = &self.live else {
            return ServiceWrite::default();
        };
        let living = &self.living;
        let before = TableBefore::Read {
            live,
            is_new: self.is_new
                && !plan
                    .elements
                    .keys()
                    .any(|key| live.elements.contains_key(key)),
            is_living: &|uid| living.contains(uid),
        };
        write_service(plan, before, text)
    }

    /// Removes Services that are gone; in a whole round all that belongs to none.
    async fn remove_gone(&mut self, index: &mut ServiceIndex) -> Result<(), RoundError> {
        let mut gone = index.take_gone();
        self.living = index.living();
        if self.is_whole || !gone.is_empty() {
            if let Err(e) = self.read_live().await {
                index.put_back_gone(&gone);
                return Err(e);
            }
            let of_table = self.live.iter().filter(|_| self.is_whole);
            gone.extend(of_table.flat_map(LiveTable::owners));
        }
        gone.retain(|uid| !self.living.contains(*uid));
        gone.sort_unstable();
        gone.dedup();
        for uid in &gone {
            let plan = ServicePlan {
                uid: *uid,
                ..ServicePlan::default()
            };
            let mut text = String::new();
            if let Err(e) = self.read_live().await {
                index.put_back_gone(&gone);
                return Err(e);
            }
            let result = self.plan_with_live(&plan, &mut text);
            self.note_live(&plan, &result);
            let pending = PendingService {
                name: None,
                written: WrittenService {
                    uid: *uid,
                    ..WrittenService::default()
                },
                text,
                stale: result.stale,
                udp: Vec::new(),
                gave_up: result.gave_up,
                robbed: BTreeSet::new(),
            };
            if let Err(e) = self.push(index, pending).await {
                index.put_back_gone(&gone);
                return Err(e);
            }
        }
        if let Err(e) = self.send(index).await {
            index.put_back_gone(&gone);
            return Err(e);
        }
        if self.is_whole
            && !self.has_unplanned
            && let Some(live) = &self.live
        {
            let left: Vec<IpAddr> = live.hairpins.difference(&self.hairpins).copied().collect();
            if !left.is_empty() {
                self.tools.writer.write_text(remove_hairpins(&left)).await?;
            }
        }
        Ok(())
    }

    fn tell_faults(&self, namespace: &str, name: &str, faults: &[String]) {
        for fault in faults {
            let why = format!("Service {namespace}/{name}: {fault}");
            self.tools
                .recorder
                .record_node_event(EventSeverity::Warning, "ServiceFault", &why);
        }
    }

    fn set_health_port(
        &self,
        service: &crate::logic::services::object::ProxyService,
        endpoints: usize,
    ) {
        let board = Rc::clone(&self.tools.board);
        let mut ports = board.health_ports.borrow_mut();
        let count = ports.len();
        let is_other = |port: u16, it: &HealthPort| {
            let is_mine = (&it.namespace, &it.name) == (&service.namespace, &service.name);
            !is_mine || service.health_port == Some(port)
        };
        ports.retain(|port, it| is_other(*port, it));
        let mut has_changed = ports.len() != count;
        if let Some(port) = service.health_port {
            let entry = HealthPort {
                namespace: service.namespace.clone(),
                name: service.name.clone(),
                endpoints,
            };
            has_changed |= !ports.contains_key(&port);
            if ports.contains_key(&port) || ports.len() < MAX_HEALTH_PORTS {
                ports.insert(port, entry);
            } else {
                self.tell_faults(
                    &service.namespace,
                    &service.name,
                    &[format!(
                        "spec.healthCheckNodePort: more than {MAX_HEALTH_PORTS} Services have one"
                    )],
                );
            }
        }
        drop(ports);
        if has_changed {
            board.tell_ports_changed();
        }
    }

    fn forget_health_port(&self, namespace: &str, name: &str) {
        let is_other = |a: &str, b: &str| (a, b) != (namespace, name);
        self.tools.board.retain_health_ports(is_other);
    }
}
