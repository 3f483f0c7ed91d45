//! Variables that tell a container where services are (ENV-07, ENV-08).

use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};
use core::net::Ipv6Addr;

use crate::api::service;

/// The service every pod is told of, and its namespace.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// Parts of a Service that its variables are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvService {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Cluster IP; empty or `None` for a headless one.
    pub cluster_ip: String,
    /// Ports, in spec order.
    pub ports: Vec<ServicePort>,
}

impl From<service::Service> for EnvService {
    fn from(service: service::Service) -> Self {
        let ports = service.spec.ports.into_iter().map(|port| ServicePort {
            name: port.name,
            protocol: port.protocol,
            port: port.port,
        });
        Self {
            name: service.metadata.name,
            namespace: service.metadata.namespace,
            cluster_ip: service.spec.cluster_ip,
            ports: ports.collect(),
        }
    }
}

/// Port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// Name; may be empty.
    pub name: String,
    /// `TCP` when empty.
    pub protocol: String,
    /// Number.
    pub port: u16,
}

/// Variables for a pod of `namespace`; `links`: enableServiceLinks.
#[must_use]
pub fn service_variables(
    namespace: &str,
    links: bool,
    services: &[EnvService],
) -> BTreeMap<String, String> {
    let mut chosen: BTreeMap<&str, &EnvService> = BTreeMap::new();
    for service in services {
        if service.cluster_ip.is_empty() || service.cluster_ip == "None" {
            continue;
        }
        let own = links && service.namespace == namespace;
        let master = (service.namespace.as_str(), service.name.as_str()) == MASTER;
        if own {
            chosen.insert(&service.name, service);
        } else if master {
            chosen.entry(&service.name).or_insert(service);
        }
    }
    let mut out = BTreeMap::new();
    for service in chosen.into_values() {
        add_service_variables(service, &mut out);
    }
    out
}

fn add_service_variables(service: &EnvService, out: &mut BTreeMap<String, String>) {
    let name = env_name(&service.name);
    let ip = &service.cluster_ip;
    out.insert(format!("{name}_SERVICE_HOST"), ip.clone());
    for (n, port) in service.ports.iter().enumerate() {
        let number = port.port.to_string();
        if !port.name.is_empty() {
            let port_name = env_name(&port.name);
            out.insert(format!("{name}_SERVICE_PORT_{port_name}"), number.clone());
        }
        let protocol = match port.protocol.as_str() {
            "" => "TCP",
            protocol => protocol,
        };
        let lower = protocol.to_ascii_lowercase();
        let url = if ip.parse::<Ipv6Addr>().is_ok() {
            format!("{lower}://[{ip}]:{number}")
        } else {
            format!("{lower}://{ip}:{number}")
        };
        if n == 0 {
            out.insert(format!("{name}_SERVICE_PORT"), number.clone());
            out.insert(format!("{name}_PORT"), url.clone());
        }
        let prefix = format!("{name}_PORT_{number}_{}", protocol.to_ascii_uppercase());
        out.insert(format!("{prefix}_PROTO"), lower);
        out.insert(format!("{prefix}_PORT"), number);
        out.insert(format!("{prefix}_ADDR"), ip.clone());
        out.insert(prefix, url);
    }
}

fn env_name(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(namespace: &str, name: &str, ip: &str) -> EnvService {
        EnvService {
            name: name.into(),
            namespace: namespace.into(),
            cluster_ip: ip.into(),
            ports: Vec::new(),
        }
    }

    #[test]
    fn which_services() {
        // ENV-07
        let all = [
            service("default", "kubernetes", "10.0.0.1"),
            service("prod", "db", "10.0.0.2"),
            service("prod", "headless", "None"),
            service("prod", "pending", ""),
            service("other", "cache", "10.0.0.3"),
        ];
        let hosts = |links, services: &[EnvService]| -> Vec<String> {
            let variables = service_variables("prod", links, services);
            variables
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect()
        };
        assert_eq!(
            hosts(true, &all),
            [
                "DB_SERVICE_HOST=10.0.0.2",
                "KUBERNETES_SERVICE_HOST=10.0.0.1"
            ]
        );
        assert_eq!(hosts(false, &all), ["KUBERNETES_SERVICE_HOST=10.0.0.1"]);
        for order in [[0, 1], [1, 0]] {
            let both = [all[0].clone(), service("prod", "kubernetes", "10.0.0.4")];
            let services = order.map(|n: usize| both[n].clone());
            assert_eq!(hosts(true, &services), ["KUBERNETES_SERVICE_HOST=10.0.0.4"]);
        }
    }

    #[test]
    fn variables_of_one() {
        // ENV-08
        let mut my = service("prod", "my-db", "10.0.0.2");
        my.ports = vec![
            ServicePort {
                name: "sql-in".into(),
                protocol: String::new(),
                port: 5432,
            },
            ServicePort {
                name: String::new(),
                protocol: "UDP".into(),
                port: 53,
            },
        ];
        let got: Vec<String> = service_variables("prod", true, &[my])
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            got,
            [
                "MY_DB_PORT=tcp://10.0.0.2:5432",
                "MY_DB_PORT_53_UDP=udp://10.0.0.2:53",
                "MY_DB_PORT_53_UDP_ADDR=10.0.0.2",
                "MY_DB_PORT_53_UDP_PORT=53",
                "MY_DB_PORT_53_UDP_PROTO=udp",
                "MY_DB_PORT_5432_TCP=tcp://10.0.0.2:5432",
                "MY_DB_PORT_5432_TCP_ADDR=10.0.0.2",
                "MY_DB_PORT_5432_TCP_PORT=5432",
                "MY_DB_PORT_5432_TCP_PROTO=tcp",
                "MY_DB_SERVICE_HOST=10.0.0.2",
                "MY_DB_SERVICE_PORT=5432",
                "MY_DB_SERVICE_PORT_SQL_IN=5432",
            ]
        );
        let mut six = service("prod", "six", "fd00::2");
        six.ports = vec![ServicePort {
            port: 80,
            ..ServicePort::default()
        }];
        let variables = service_variables("prod", true, &[six]);
        assert_eq!(variables["SIX_PORT"], "tcp://[fd00::2]:80");
    }
}
