//! The network of a machine without a configured one: a bridge with addresses of a private subnet.

use serde_json::{Value, json};

use super::NetworkConfig;

/// Name of the built-in network.
const NAME: &str = "picolet";
/// Spoken by plugins since 0.8 (2019), so that old distributions' packages serve.
const VERSION: &str = "0.4.0";

/// Settings of the built-in network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltInNetwork {
    /// Bridge interface, at most 15 bytes.
    pub bridge: String,
    /// Subnet of the pods, e.g. `10.88.0.0/16`; two for dual stack.
    pub subnets: Vec<String>,
    /// MTU; 0 leaves it to the kernel.
    pub mtu: u32,
}

/// The plugins behind the bridge, which is this agent's own: see [`super::bridge`].
pub(super) fn built_in_network_config(built_in: &BuiltInNetwork) -> NetworkConfig {
    // `snat` makes hostPorts reachable at 127.0.0.1 too.
    let portmap =
        json!({ "type": "portmap", "snat": true, "capabilities": { "portMappings": true } });
    let object = |v: Value| match v {
        Value::Object(map) => map,
        _ => serde_json::Map::new(),
    };
    NetworkConfig {
        // Two agents on one machine have two networks: plugins name iptables chains after it.
        name: format!("{NAME}-{}", built_in.bridge),
        version: VERSION.into(),
        plugins: vec![object(portmap)],
        disable_check: false,
        disable_gc: false,
        built_in: true,
        file: Default::default(),
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_for_host_ports_only() {
        let built_in = BuiltInNetwork {
            bridge: "pico0".into(),
            subnets: vec!["10.88.0.0/16".into(), "fd00:88::/64".into()],
            mtu: 1400,
        };
        let config = built_in_network_config(&built_in);
        assert_eq!(config.list_executables(), ["portmap"]);
        assert_eq!(config.name, "picolet-pico0");
    }
}
