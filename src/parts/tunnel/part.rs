//! The tunnel as a part of a node: its keys, and what a running agent shows of it.

use alloc::{collections::BTreeMap, rc::Rc};
use core::{cell::RefCell, fmt};

use serde_json::Value;

use super::{
    NodeTunnel, TunnelSettings,
    board::TunnelStatus,
    settings::{self, TunnelConfig},
};
use crate::{
    agent::tasks::{AgentTask, box_task},
    api::{WallTime, node::NodeCondition},
    config::{AgentConfig, InvalidField, TableKey},
    kube::store::CertificateStore,
    logic::{
        check::CheckFinding,
        metrics::exposition::MetricsText,
        tunnel::{agent_id, health},
    },
    parts::{ConfiguredPart, Part, PartTools},
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
    running: RefCell<Option<NodeTunnel>>,
}

impl fmt::Debug for ConfiguredTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cfg.fmt(f)
    }
}

impl ConfiguredPart for ConfiguredTunnel {
    fn start(&self, tools: &PartTools<'_>) -> Vec<AgentTask> {
        let (cluster, listen) = (&tools.config.cluster, tools.config.server.listen);
        // Without these there is no configuration of a tunnel.
        let (Some(kubeconfig), Some(listen), Some(serve)) =
            (&cluster.kubeconfig, listen, &tools.serve)
        else {
            return Vec::new();
        };
        let settings = TunnelSettings {
            cfg: self.cfg.clone(),
            kubeconfig: kubeconfig.clone(),
            kept: cluster
                .renewed_certificate_dir()
                .map(CertificateStore::client),
            agent_id: agent_id(&tools.node.name, &tools.node.identity.boot_id),
            port: listen.port(),
        };
        let tunnel = NodeTunnel::start(settings, tools, Rc::clone(serve), Rc::clone(&self.board));
        *self.running.borrow_mut() = Some(tunnel);
        // Its lines are tasks of their own, which come and go.
        Vec::new()
    }

    fn stop(&self) -> AgentTask {
        let tunnel = self.running.take();
        box_task(async move {
            if let Some(tunnel) = tunnel {
                tunnel.stop().await;
            }
        })
    }

    fn conditions(&self, now: WallTime) -> Vec<NodeCondition> {
        vec![self.board.node_condition(now)]
    }

    fn state(&self) -> Option<(String, Value)> {
        let state = serde_json::to_value(self.board.tunnel_health()).ok()?;
        Some((NAME.into(), state))
    }

    fn check(
        &self,
        states: Option<&BTreeMap<String, Value>>,
    ) -> Option<(&'static str, CheckFinding)> {
        let state = states.and_then(|states| states.get(NAME));
        let health = state.and_then(|state| serde_json::from_value(state.clone()).ok());
        Some((
            NAME,
            health::check_tunnel(&self.cfg.servers, health.as_ref()),
        ))
    }

    fn write_metrics(&self, page: &mut MetricsText) {
        health::write_tunnel_metrics(&self.board.tunnel_figures(), None, page);
    }
}
