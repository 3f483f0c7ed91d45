//! The network of a machine on which nobody configured one: a bridge with addresses of a private subnet.

use std::path::Path;

use serde_json::{Value, json};

use super::NetworkConfig;

/// Name of the built-in network.
const NAME: &str = "picolet";
/// Spoken by plugins since 0.8 (2019), so that old distributions' packages serve.
const VERSION: &str = "0.4.0";

/// What may be changed about the built-in network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// Bridge interface, at most 15 bytes.
    pub bridge: String,
    /// Subnet of the pods, e.g. `10.88.0.0/16`; two for dual stack.
    pub subnets: Vec<String>,
    /// MTU; 0 leaves it to the kernel.
    pub mtu: u32,
}

/// The configuration. Leases lie in `leases`, which is gone at reboot as the interfaces are: a power cut leaks no address.
pub(super) fn config(built_in: &BuiltIn, leases: &Path) -> NetworkConfig {
    let ranges: Vec<Value> = built_in
        .subnets
        .iter()
        .map(|s| json!([{ "subnet": s }]))
        .collect();
    let mut routes: Vec<Value> = built_in
        .subnets
        .iter()
        .map(|s| json!({ "dst": if s.contains(':') { "::/0" } else { "0.0.0.0/0" } }))
        .collect();
    routes.dedup();
    let mut bridge = json!({
        "type": "bridge",
        "bridge": built_in.bridge,
        "isGateway": true,
        "ipMasq": true,
        // A pod reaches itself through its own hostPort.
        "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "dataDir": leases,
            "ranges": ranges,
            "routes": routes,
        },
    });
    if built_in.mtu > 0 {
        bridge["mtu"] = built_in.mtu.into();
    }
    // `snat` makes hostPorts reachable at 127.0.0.1 too.
    let portmap = json!({ "type": "portmap", "snat": true, "capabilities": { "portMappings": true } });
    let object = |v: Value| match v {
        Value::Object(map) => map,
        _ => serde_json::Map::new(),
    };
    NetworkConfig {
        // Two agents on one machine have two networks: plugins name iptables chains and leases after it.
        name: format!("{NAME}-{}", built_in.bridge),
        version: VERSION.into(),
        plugins: vec![object(bridge), object(portmap)],
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
    fn is_a_bridge_with_portmap() {
        let built_in = BuiltIn {
            bridge: "pico0".into(),
            subnets: vec!["10.88.0.0/16".into(), "fd00:88::/64".into()],
            mtu: 1400,
        };
        let config = config(&built_in, Path::new("/run/p/cni/leases"));
        assert_eq!(config.programs(), ["bridge", "host-local", "portmap"]);
        let bridge = &config.plugins[0];
        assert_eq!(bridge["mtu"], 1400);
        assert_eq!(bridge["ipam"]["dataDir"], "/run/p/cni/leases");
        assert_eq!(bridge["ipam"]["ranges"][1][0]["subnet"], "fd00:88::/64");
        assert_eq!(bridge["ipam"]["routes"][1]["dst"], "::/0");
    }
}
