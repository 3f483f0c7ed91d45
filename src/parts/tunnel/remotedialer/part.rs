//! The tunnel of k3s as a part of a node, and what a running agent shows of it.

use alloc::{collections::BTreeMap, rc::Rc};
use core::{cell::RefCell, fmt};

use serde_json::Value;

use super::{DialerSettings, K3sTunnelStatus, start_tunnel};
use crate::{
    agent::tasks::AgentTask,
    api::{WallTime, node::NodeCondition},
    config::{AgentConfig, InvalidField},
    logic::{
        check::CheckFinding,
        metrics::exposition::MetricsText,
        tunnel::{health::write_tunnel_metrics, remotedialer::health::check_k3s_tunnel},
    },
    net::Url,
    parts::{
        ConfiguredPart, Part, PartTools, part_state, read_health,
        tunnel::{
            self,
            base::{self, TunnelBase},
        },
    },
};

/// Name of the part.
pub(super) const NAME: &str = "k3s";

/// The tunnel of a node of k3s.
pub(crate) struct K3sPart;

impl Part for K3sPart {
    fn name(&self) -> &'static str {
        NAME
    }

    fn configure(
        &self,
        own: &Value,
        config: &AgentConfig,
    ) -> Result<Option<Rc<dyn ConfiguredPart>>, InvalidField> {
        let Some((joined, _)) = &config.cluster.k3s else {
            return Ok(None);
        };
        // Whoever names other servers for a tunnel has set up another way to this node.
        let has_other = tunnel::settings::names_servers(own);
        if has_other || config.server.listen.is_none() {
            return Ok(None);
        }
        Ok(Some(Rc::new(ConfiguredK3sTunnel {
            joined: joined.clone(),
            status: Rc::default(),
            running: RefCell::default(),
        })))
    }
}

/// A tunnel that is configured, and runs in an agent.
struct ConfiguredK3sTunnel {
    joined: Url,
    status: Rc<K3sTunnelStatus>,
    running: RefCell<Option<Rc<TunnelBase>>>,
}

impl fmt::Debug for ConfiguredK3sTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.joined.fmt(f)
    }
}

/// The supervisor of a server of k3s: beside its apiserver, at the port of all supervisors.
fn supervisor_beside(apiserver: &Url, port: u16) -> Option<Url> {
    let host = match apiserver.host() {
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    let url = Url::parse(&format!("https://{host}:{port}")).ok();
    url.filter(|_| apiserver.https)
}

impl ConfiguredPart for ConfiguredK3sTunnel {
    fn carries_pod_dials(&self) -> bool {
        true
    }

    fn start(&self, tools: &PartTools<'_>) -> Vec<AgentTask> {
        let Some(base) = TunnelBase::new(tools, &self.status.board, NAME) else {
            return Vec::new();
        };
        let cluster = Rc::clone(tools.cluster_network);
        let told = cluster.facts();
        let told = told.as_ref().map(|facts| &facts.apiservers[..]);
        let told = told.unwrap_or_default().iter();
        let told = told.map(|address| format!("https://{address}"));
        // The one that was joined may be gone (K3SN-12).
        let servers = tools.config.cluster.servers.iter().cloned().chain(told);
        let servers = servers.filter_map(|url| Url::parse(&url).ok());
        let others = servers.filter_map(|url| supervisor_beside(&url, self.joined.port()));
        let others = others.filter(|url| !url.same_origin(&self.joined));
        let settings = DialerSettings {
            supervisors: core::iter::once(self.joined.clone())
                .chain(others)
                .collect(),
            proxies: tools.proxies.clone(),
        };
        start_tunnel(
            &base,
            settings,
            cluster,
            Rc::clone(&self.status),
            Rc::clone(&tools.is_pod_address),
        );
        *self.running.borrow_mut() = Some(base);
        // Its lines are tasks of their own, which come and go.
        Vec::new()
    }

    fn stop(&self) -> AgentTask {
        base::stop_tunnel(&self.running)
    }

    fn conditions(&self, now: WallTime) -> Vec<NodeCondition> {
        match self.status.is_needless() {
            true => Vec::new(),
            false => vec![self.status.board.node_condition(now)],
        }
    }

    fn state(&self) -> Option<(String, Value)> {
        part_state(NAME, &self.status.tunnel_health())
    }

    fn check(
        &self,
        states: Option<&BTreeMap<String, Value>>,
    ) -> Option<(&'static str, CheckFinding)> {
        let health = read_health(states, NAME);
        let joined = self.joined.without_query();
        let joined = joined.trim_end_matches('/');
        Some((
            tunnel::part::NAME,
            check_k3s_tunnel(joined, health.as_ref()),
        ))
    }

    fn write_metrics(&self, page: &mut MetricsText) {
        let figures = self.status.board.tunnel_figures();
        write_tunnel_metrics(&figures, Some(NAME), page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisors_have_one_port() {
        // K3ST-10
        for (apiserver, supervisor) in [
            ("https://a.test:6443", Some("a.test 9345")),
            ("https://[fd00::1]:6443", Some("fd00::1 9345")),
            ("http://a.test", None),
        ] {
            let found = supervisor_beside(&Url::parse(apiserver).expect("valid"), 9345);
            let found = found.map(|url| format!("{} {}", url.host(), url.port()));
            assert_eq!(found.as_deref(), supervisor, "{apiserver}");
        }
    }
}
