//! Services of the cluster, as a part of a node: connections to them reach their endpoints without kube-proxy.
//!
//! ```text
//! apiserver ─reading─▶ Service, slices ─logic::services─▶ text ─writer─▶ nft
//!     │ doorbells            ▲ due                          │
//!     └──────▶ keeper: ServiceIndex (names and digests) ◀───┘ what was written; then flows (UDP), health ports
//! ```
//!
//! | file | content |
//! |---|---|
//! | `settings` | the keys below `picolet.services` |
//! | `keeper` | the task that decides when to list, read and write |
//! | `doorbells` | watches of Services and slices |
//! | `reading` | requests to the apiserver |
//! | `round` | writes the Services that are due |
//! | `sending` | transactions of a round, and flows (UDP) |
//! | `tools` | what the keeper and its rounds share |
//! | `writer` | the table: `nft`, behind a trait |
//! | `health_ports` | answers to load balancers |
//!
//! Off unless a server of k3s asks for it, or `picolet.services` names ranges. Beside a kube-proxy it does nothing.

mod doorbells;
mod health_ports;
mod keeper;
mod reading;
mod round;
mod sending;
mod settings;
mod tools;
mod writer;

use alloc::{collections::BTreeMap, rc::Rc};
use core::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    pin::Pin,
};

use serde_json::Value;

use super::{ConfiguredPart, Part, PartTools};
use crate::{
    agent::{
        tasks::{AgentTask, box_task},
        waker_set::WakerSet,
    },
    api::{MonoTime, WallTime},
    config::{AgentConfig, InvalidField, TableKey},
    error::error_chain,
    logic::{
        check::CheckFinding,
        metrics::exposition::MetricsText,
        services::health::{
            ServicesFigures, ServicesHealth, check_services, write_services_metrics,
        },
    },
};
use settings::ServicesConfig;
use writer::NftProgram;

/// Name of the part, of its section of the configuration, and of its check.
const NAME: &str = "services";

/// The part; see the module.
pub(super) struct ServicesPart;

impl Part for ServicesPart {
    fn name(&self) -> &'static str {
        NAME
    }

    fn keys(&self) -> &'static [TableKey] {
        &settings::KEYS
    }

    fn configure(
        &self,
        own: &Value,
        config: &AgentConfig,
    ) -> Result<Option<Rc<dyn ConfiguredPart>>, InvalidField> {
        let cfg = settings::resolve_services(own, config)?;
        let with = |cfg| -> Rc<dyn ConfiguredPart> {
            Rc::new(ConfiguredServices {
                cfg,
                board: Rc::default(),
            })
        };
        Ok(cfg.map(with))
    }

    fn remove_remains(&self) -> Pin<Box<dyn Future<Output = Vec<String>>>> {
        Box::pin(async {
            let removed = writer::remove_found_tables(&NftProgram).await;
            let failure = removed.err().map(|e| {
                let why = error_chain(&e);
                format!("cannot remove the rules of Services: {why}")
            });
            failure.into_iter().collect()
        })
    }
}

/// State of the part: the keeper writes it, answers and the check read it.
#[derive(Default)]
struct ServicesBoard {
    health: RefCell<ServicesHealth>,
    figures: Cell<ServicesFigures>,
    /// Services with a health check port, by port.
    health_ports: RefCell<BTreeMap<u16, HealthPort>>,
    /// Number of changes of these ports.
    port_changes: Cell<u64>,
    /// Wakes who serves these ports.
    ports_changed: WakerSet,
    /// Address at which the health of this node is told; `None`: nothing is kept.
    healthz: Cell<Option<SocketAddr>>,
    /// Time since which the table cannot be written: load balancers go elsewhere. An apiserver that is away, or a single
    /// Service that the kernel refuses, changes nothing.
    failing_since: Cell<Option<MonoTime>>,
    /// Time of the last write.
    updated: Cell<WallTime>,
}

/// Service with a health check port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HealthPort {
    namespace: String,
    name: String,
    /// Endpoints of this node that take connections.
    endpoints: usize,
}

impl ServicesBoard {
    fn count(&self, change: impl FnOnce(&mut ServicesFigures)) {
        let mut figures = self.figures.get();
        change(&mut figures);
        self.figures.set(figures);
    }

    fn tell_ports_changed(&self) {
        self.port_changes.set(self.port_changes.get() + 1);
        self.ports_changed.wake_all();
    }

    /// Sets where the health of this node is told.
    fn set_healthz(&self, address: Option<SocketAddr>) {
        if self.healthz.replace(address) != address {
            self.tell_ports_changed();
        }
    }

    /// Closes the health check ports of Services that are not wanted, by namespace and name.
    fn retain_health_ports(&self, is_wanted: impl Fn(&str, &str) -> bool) {
        let mut ports = self.health_ports.borrow_mut();
        let count = ports.len();
        ports.retain(|_, it| is_wanted(&it.namespace, &it.name));
        let has_changed = ports.len() != count;
        drop(ports);
        if has_changed {
            self.tell_ports_changed();
        }
    }

    fn set_trouble(&self, trouble: Option<(String, &str)>) {
        let mut health = self.health.borrow_mut();
        health.fix = trouble.as_ref().map(|(_, fix)| (*fix).to_owned());
        health.trouble = trouble.map(|(trouble, _)| trouble);
    }
}

/// The part with its checked configuration.
struct ConfiguredServices {
    cfg: ServicesConfig,
    board: Rc<ServicesBoard>,
}

impl core::fmt::Debug for ConfiguredServices {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.cfg.fmt(f)
    }
}

impl ConfiguredPart for ConfiguredServices {
    fn reads_cluster(&self) -> bool {
        !self.cfg.is_off
    }

    fn start(&self, tools: &PartTools<'_>) -> Vec<AgentTask> {
        let board = Rc::clone(&self.board);
        let keeper = keeper::ServicesKeeper::new(&self.cfg, tools, board);
        let ports = health_ports::HealthPortServer::new(tools, &self.board);
        vec![
            box_task(keeper.keep_services()),
            box_task(Rc::new(ports).serve_health_ports()),
        ]
    }

    fn state(&self) -> Option<(String, Value)> {
        let state = serde_json::to_value(&*self.board.health.borrow()).ok()?;
        Some((NAME.into(), state))
    }

    fn check(
        &self,
        states: Option<&BTreeMap<String, Value>>,
    ) -> Option<(&'static str, CheckFinding)> {
        if self.cfg.is_off {
            return None;
        }
        let state = states.and_then(|states| states.get(NAME));
        let health = state.and_then(|state| serde_json::from_value(state.clone()).ok());
        Some((NAME, check_services(health.as_ref(), self.cfg.watch)))
    }

    fn write_metrics(&self, page: &mut MetricsText) {
        if !self.cfg.is_off {
            write_services_metrics(&self.board.figures.get(), page);
        }
    }
}
