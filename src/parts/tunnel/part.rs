//! The tunnel as a part of a node: its keys, and what a running agent shows of it.

use alloc::{collections::BTreeMap, rc::Rc};
use core::{cell::RefCell, fmt};

use serde_json::Value;

use super::{
    TunnelSettings,
    base::{self, TunnelBase},
    board::TunnelStatus,
    settings::{self, TunnelConfig},
    start_tunnel,
};
use crate::{
    agent::tasks::AgentTask,
    api::{WallTime, node::NodeCondition},
    config::{AgentConfig, InvalidField, TableKey},
    logic::{
        check::CheckFinding,
        metrics::exposition::MetricsText,
        tunnel::{agent_id, health},
    },
    parts::{ConfiguredPart, Part, PartTools, part_state, read_health},
};

/// Name of the part, of its section of the configuration, and of its check.
pub(super) const NAME: &str = "tunnel";

/// The tunnel, which a node may have.
pub(crate) struct TunnelPart;

impl Part for TunnelPart {
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
        let cfg = settings::resolve_tunnel(own, config.cluster.is_member(), &config.server)?;
        let with = |cfg| -> Rc<dyn ConfiguredPart> {
            Rc::new(ConfiguredTunnel {
                cfg,
                board: Rc::default(),
                running: RefCell::default(),
            })
        };
        Ok(cfg.map(with))
    }
}

/// A tunnel that is configured, and runs in an agent.
struct ConfiguredTunnel {
    cfg: TunnelConfig,
    board: Rc<TunnelStatus>,
    running: RefCell<Option<Rc<TunnelBase>>>,
}

impl fmt::Debug for ConfiguredTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cfg.fmt(f)
    }
}

impl ConfiguredPart for ConfiguredTunnel {
    fn start(&self, tools: &PartTools<'_>) -> Vec<AgentTask> {
        if let Some(base) = TunnelBase::new(tools, &self.board, NAME) {
            let settings = TunnelSettings {
                cfg: self.cfg.clone(),
                agent_id: agent_id(&tools.node.name, &tools.node.identity.boot_id),
            };
            start_tunnel(&base, settings, tools);
            *self.running.borrow_mut() = Some(base);
        }
        // Its lines are tasks of their own, which come and go.
        Vec::new()
    }

    fn stop(&self) -> AgentTask {
        base::stop_tunnel(&self.running)
    }

    fn conditions(&self, now: WallTime) -> Vec<NodeCondition> {
        vec![self.board.node_condition(now)]
    }

    fn state(&self) -> Option<(String, Value)> {
        part_state(NAME, &self.board.tunnel_health())
    }

    fn check(
        &self,
        states: Option<&BTreeMap<String, Value>>,
    ) -> Option<(&'static str, CheckFinding)> {
        let health = read_health(states, NAME);
        Some((
            NAME,
            health::check_tunnel(&self.cfg.servers, health.as_ref()),
        ))
    }

    fn write_metrics(&self, page: &mut MetricsText) {
        health::write_tunnel_metrics(&self.board.tunnel_figures(), None, page);
    }
}
