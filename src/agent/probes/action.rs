//! Actions of probes, made once from a pod's spec. Specs are not kept in memory, and reading a spec every second would
//! cost more than the probe.

use crate::{
    api::{
        Container, PodError,
        pod::{HttpGetAction, Probe},
    },
    logic::{
        expansion,
        probe::{ProbeKind, resolve_port},
    },
    probe::{self, HttpGet, http},
};

/// Action of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum PodProbeAction {
    /// Asks over the network.
    Ask(probe::ProbeAction),
    /// Runs a command in the container.
    Exec(Box<[String]>),
    /// Cannot be done, for this reason. The probe ends in an error each time (PROBE-24).
    Broken(String),
}

/// Makes the action of the container's probe of that kind.
pub(super) fn for_container(container: &Container, kind: ProbeKind) -> PodProbeAction {
    let probe = kind.probe_of(container);
    probe
        .map_or_else(
            || Err(missing_handler_error(container)),
            |probe| parse_action(container, probe),
        )
        .unwrap_or_else(|why| PodProbeAction::Broken(why.to_string()))
}

fn missing_handler_error(container: &Container) -> PodError {
    let name = &container.name;
    PodError::Spec(format!("missing probe handler for container {name}"))
}

fn parse_action(container: &Container, probe: &Probe) -> Result<PodProbeAction, PodError> {
    if let Some(exec) = &probe.exec {
        // Values that the spec does not contain itself count as empty.
        let value = |name: &str| {
            let variable = container.env.iter().rev().find(|e| e.name == name);
            variable.map(|e| e.value.clone())
        };
        let words: Result<Box<[_]>, _> = exec
            .command
            .iter()
            .map(|word| expansion::expand_references(word, value))
            .collect();
        Ok(PodProbeAction::Exec(words?))
    } else if let Some(get) = &probe.http_get {
        Ok(PodProbeAction::Ask(probe::ProbeAction::Http(
            parse_http_get(container, get)?,
        )))
    } else if let Some(tcp) = &probe.tcp_socket {
        Ok(PodProbeAction::Ask(probe::ProbeAction::Tcp {
            host: tcp.host.as_str().into(),
            port: resolve_port(container, &tcp.port)?,
        }))
    } else if let Some(grpc) = &probe.grpc {
        let port = u16::try_from(grpc.port).ok().filter(|port| *port > 0);
        Ok(PodProbeAction::Ask(probe::ProbeAction::Grpc {
            port: port
                .ok_or_else(|| PodError::Spec(format!("invalid port number: {}", grpc.port)))?,
            service: grpc.service.as_deref().unwrap_or("").into(),
        }))
    } else {
        Err(missing_handler_error(container))
    }
}

/// Makes the request of an `httpGet` action, for a probe or a hook.
pub(in crate::agent) fn parse_http_get(
    container: &Container,
    get: &HttpGetAction,
) -> Result<HttpGet, PodError> {
    Ok(HttpGet {
        https: get.scheme.eq_ignore_ascii_case("https"),
        host: get.host.as_str().into(),
        port: resolve_port(container, &get.port)?,
        target: http::request_target(&get.path).into(),
        headers: get
            .http_headers
            .iter()
            .map(|h| (h.name.as_str().into(), h.value.as_str().into()))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_done() {
        // PROBE-20 PROBE-24 PROBE-31
        let container = |probe: serde_json::Value| -> Container {
            serde_json::from_value(json!({
                "name": "c", "livenessProbe": probe,
                "ports": [{"name": "web", "containerPort": 8080}],
                "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
            }))
            .expect("container")
        };
        let words =
            |words: &[&str]| PodProbeAction::Exec(words.iter().map(|w| (*w).to_owned()).collect());
        let ask = PodProbeAction::Ask;
        for (probe, want) in [
            (
                json!({"exec": {"command": ["$(A)", "[$(B)]", "$(C)", "$$(A)"]}}),
                words(&["2", "[]", "$(C)", "$(A)"]),
            ),
            (
                json!({"httpGet": {"port": "web", "scheme": "HTTPS", "path": "a",
                    "httpHeaders": [{"name": "X", "value": "y"}]}}),
                ask(probe::ProbeAction::Http(HttpGet {
                    https: true,
                    host: "".into(),
                    port: 8080,
                    target: "/a".into(),
                    headers: [("X".into(), "y".into())].into(),
                })),
            ),
            (
                json!({"tcpSocket": {"port": "81", "host": "h"}}),
                ask(probe::ProbeAction::Tcp {
                    host: "h".into(),
                    port: 81,
                }),
            ),
            (
                json!({"tcpSocket": {"port": "other"}}),
                PodProbeAction::Broken("port other not found".into()),
            ),
            (
                json!({"grpc": {"port": 82}}),
                ask(probe::ProbeAction::Grpc {
                    port: 82,
                    service: "".into(),
                }),
            ),
            (
                json!({"grpc": {"port": 0}}),
                PodProbeAction::Broken("invalid port number: 0".into()),
            ),
            (
                json!({}),
                PodProbeAction::Broken("missing probe handler for container c".into()),
            ),
        ] {
            let name = probe.to_string();
            assert_eq!(
                for_container(&container(probe), ProbeKind::Liveness),
                want,
                "{name}"
            );
        }
    }
}
