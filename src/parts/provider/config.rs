//! The key `picolet.providers`: sockets of providers by handler, and the attachment of the part.

use alloc::{collections::BTreeMap, rc::Rc};
use std::path::PathBuf;

use serde_json::Value;

use super::{PodProviders, socket::ProviderSocket, wire::ProviderWire};
use crate::{
    agent::{clock::Clock, external_pods::ExternalPods},
    api::names,
    config::{
        AgentConfig, InvalidField, TableKey, checks::invalid_field, endpoints::read_endpoint, key,
    },
    parts::{ConfiguredPart, Part, read_section},
    runtime::runc::process,
};

/// Most providers of a node. Each has a task of its own.
const MAX_PROVIDERS: usize = 8;
const FIELD: &str = "picolet.providers";

/// Providers: programs of this machine that run pods which are no containers.
pub(crate) struct ProviderPart;

/// Keys in the configuration.
static KEYS: [TableKey; 1] = [key("picolet.providers")];

impl Part for ProviderPart {
    fn name(&self) -> &'static str {
        "provider"
    }

    fn keys(&self) -> &'static [TableKey] {
        &KEYS
    }

    fn configure(
        &self,
        own: &Value,
        config: &AgentConfig,
    ) -> Result<Option<Rc<dyn ConfiguredPart>>, InvalidField> {
        let sockets = read_provider_sockets(read_section(own, "providers")?, config)?;
        let configured = (!sockets.is_empty()).then(|| Rc::new(ProviderSockets(sockets)) as _);
        Ok(configured)
    }
}

/// Sockets of providers, by the handler that RuntimeClasses name; at least one.
#[derive(Debug)]
struct ProviderSockets(BTreeMap<String, PathBuf>);

impl ConfiguredPart for ProviderSockets {
    fn external_pods(&self, node: &str, clock: &Rc<dyn Clock>) -> Option<Rc<dyn ExternalPods>> {
        let wires = self.0.iter().map(|(handler, socket)| {
            let wire: Box<dyn ProviderWire> = Box::new(ProviderSocket::new(socket.clone()));
            (handler.clone(), wire)
        });
        Some(PodProviders::new(wires.collect(), node, clock))
    }
}

/// Reads the sockets of providers.
fn read_provider_sockets(
    all: BTreeMap<String, String>,
    config: &AgentConfig,
) -> Result<BTreeMap<String, PathBuf>, InvalidField> {
    if all.len() > MAX_PROVIDERS {
        let found = all.len();
        return invalid_field(
            FIELD,
            format!("has {found} entries, must have at most {MAX_PROVIDERS}"),
        );
    }
    let mut sockets = BTreeMap::new();
    for (name, text) in all {
        if !names::is_dns_label(&name) {
            return invalid_field(
                FIELD,
                format!("{name:?} is no name of a handler: lower-case letters, digits and '-'"),
            );
        }
        let field = format!("{FIELD}.{name}");
        if config.runtime.handlers.contains_key(&name) {
            return invalid_field(&field, "is in picolet.handlers too: remove one of them");
        }
        if config.runtime.process.is_some() && name == process::HANDLER {
            return invalid_field(
                "picolet.process",
                format!("the handler {name:?} is in picolet.providers too: remove one of them"),
            );
        }
        match read_endpoint(&field, "provider", Some(&text))? {
            Some(socket) => sockets.insert(name, socket),
            None => return invalid_field(&field, "is empty, must be the socket of a provider"),
        };
    }
    Ok(sockets)
}
