//! Resolver file of a pod (CFG-60, CFG-61, CFG-64).

use alloc::{borrow::ToOwned, string::String, vec::Vec};
use core::net::IpAddr;

use crate::api::cri::DnsConfig;
use crate::api::{Pod, PodError, pod::PodDnsConfig};

/// Largest resolver file that is read, bytes.
pub const MAX_RESOLV_CONF: usize = 10 * 1024 * 1024;
/// Most nameservers; the C library looks at no more.
pub const MAX_NAMESERVERS: usize = 3;
/// Most search domains.
pub const MAX_SEARCHES: usize = 32;
/// Longest search line without its keyword, characters.
pub const MAX_SEARCH_CHARACTERS: usize = 2048;
/// Longest search domain, characters.
pub const MAX_SEARCH_DOMAIN: usize = 253;

/// Resolver settings of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsSettings {
    /// `clusterDNS`.
    pub cluster_dns: Vec<String>,
    /// `clusterDomain`; empty for none.
    pub cluster_domain: String,
    /// `resolvConf` is not the empty string.
    pub has_resolv_conf: bool,
    /// The parsed file.
    pub node: DnsConfig,
    /// Addresses of the node, for the loopback servers that stand in for an empty `resolvConf`.
    pub node_ips: Vec<IpAddr>,
}

/// A pod's resolver file, and Warnings about how it came about (reason, message).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDns {
    /// The file.
    pub config: DnsConfig,
    /// Reasons `DNSConfigForming`, `MissingClusterDNS`.
    pub warnings: Vec<(&'static str, String)>,
}

/// Reads a resolver file.
///
/// Errors: too large, or a `nameserver` line without an address.
pub fn parse_resolv_conf(text: &str) -> Result<DnsConfig, PodError> {
    if text.len() > MAX_RESOLV_CONF {
        return Err(PodError::Node(format!(
            "resolver file is larger than {MAX_RESOLV_CONF} bytes"
        )));
    }
    let mut config = DnsConfig::default();
    for (n, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => match words.next() {
                Some(server) => config.servers.push(server.into()),
                None => {
                    return Err(PodError::Node(format!(
                        "resolver file, line {}: nameserver without address",
                        n + 1
                    )));
                }
            },
            Some("search") => {
                let domains = words.filter(|word| *word != ".");
                config.searches = domains
                    .map(|word| word.strip_suffix('.').unwrap_or(word).into())
                    .collect();
            }
            Some("options") => {
                for word in words {
                    set_dns_option(&mut config.options, word.into());
                }
            }
            // Comments, and lines that musl and glibc ignore as well.
            Some(_) | None => {}
        }
    }
    Ok(config)
}

/// Returns a warning about a resolver file of the node whose search line pods cannot have as it is (EVT-35), in a kubelet's
/// words.
#[must_use]
pub fn search_line_warning(path: &str, node: &DnsConfig, cluster_domain: &str) -> Option<String> {
    /// Search domains of a cluster: they come first.
    const OF_CLUSTER: usize = 3;
    let searches = &node.searches;
    let most = match cluster_domain {
        "" => MAX_SEARCHES,
        _ => MAX_SEARCHES - OF_CLUSTER,
    };
    let mut lengths = searches.iter().map(|domain| domain.chars().count());
    let about = format!("Resolv.conf file '{path}' contains");
    if searches.len() > most {
        Some(format!(
            "{about} search line consisting of more than {most} domains!"
        ))
    } else if lengths.any(|length| length > MAX_SEARCH_DOMAIN) {
        Some(format!(
            "{about} a search path which length is more than allowed {MAX_SEARCH_DOMAIN}!"
        ))
    } else if searches.join(" ").chars().count() > MAX_SEARCH_CHARACTERS {
        Some(format!(
            "{about} search line which length is more than allowed {MAX_SEARCH_CHARACTERS} chars!"
        ))
    } else {
        None
    }
}

/// Makes the resolver file of a pod: the base of its policy, then its dnsConfig, then the limits.
#[must_use]
pub fn pod_dns(pod: &Pod, settings: &DnsSettings) -> PodDns {
    let mut warnings = Vec::new();
    let spec = &pod.spec;
    let wants_cluster = match spec.dns_policy.as_str() {
        "None" | "Default" => false,
        "ClusterFirst" | "" => !spec.host_network,
        // `ClusterFirstWithHostNet`, and policies this agent does not know.
        _ => true,
    };
    let mut config = if spec.dns_policy == "None" {
        DnsConfig::default()
    } else if wants_cluster && !settings.cluster_dns.is_empty() {
        cluster_dns_config(&pod.metadata.namespace, settings)
    } else {
        if wants_cluster {
            warnings.push(("MissingClusterDNS", missing_dns(pod)));
        }
        node_dns_config(settings)
    };
    if let Some(own) = &spec.dns_config {
        merge_dns_config(&mut config, own);
    }
    apply_dns_limits(&mut config, &mut warnings);
    PodDns { config, warnings }
}

/// Warning in a kubelet's words, which people search for.
fn missing_dns(pod: &Pod) -> String {
    let meta = &pod.metadata;
    format!(
        "pod: \"{}_{}({})\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
         Falling back to \"Default\" policy.",
        meta.name, meta.namespace, meta.uid
    )
}

fn cluster_dns_config(namespace: &str, settings: &DnsSettings) -> DnsConfig {
    let domain = settings.cluster_domain.as_str();
    let mut searches = Vec::new();
    if !domain.is_empty() {
        searches = vec![
            format!("{namespace}.svc.{domain}"),
            format!("svc.{domain}"),
            domain.into(),
        ];
    }
    add_new(&mut searches, &settings.node.searches);
    DnsConfig {
        servers: settings.cluster_dns.clone(),
        searches,
        options: vec!["ndots:5".into()],
    }
}

fn node_dns_config(settings: &DnsSettings) -> DnsConfig {
    if settings.has_resolv_conf {
        return settings.node.clone();
    }
    // An empty file would make resolvers ask 127.0.0.1 anyway, with the node's search domains.
    let loopback = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" };
    let mut servers: Vec<String> = Vec::new();
    let all: Vec<String> = settings
        .node_ips
        .iter()
        .map(|ip| loopback(ip).into())
        .collect();
    add_new(&mut servers, &all);
    if servers.is_empty() {
        servers.push("127.0.0.1".into());
    }
    DnsConfig {
        servers,
        searches: vec![".".into()],
        options: Vec::new(),
    }
}

fn merge_dns_config(config: &mut DnsConfig, own: &PodDnsConfig) {
    add_new(&mut config.servers, &own.nameservers);
    add_new(&mut config.searches, &own.searches);
    for option in &own.options {
        let word = match &option.value {
            Some(value) if !value.is_empty() => format!("{}:{value}", option.name),
            Some(_) | None => option.name.clone(),
        };
        set_dns_option(&mut config.options, word);
    }
}

fn add_new(list: &mut Vec<String>, more: &[String]) {
    for word in more {
        if !list.contains(word) {
            list.push(word.clone());
        }
    }
}

/// Sets `name` or `name:value`; an option of the same name is replaced where it stands.
fn set_dns_option(options: &mut Vec<String>, word: String) {
    let name = |word: &str| word.split(':').next().unwrap_or_default().to_owned();
    let new = name(&word);
    match options.iter_mut().find(|have| name(have) == new) {
        Some(have) => *have = word,
        None => options.push(word),
    }
}

fn apply_dns_limits(config: &mut DnsConfig, warnings: &mut Vec<(&'static str, String)>) {
    if config.servers.len() > MAX_NAMESERVERS {
        config.servers.truncate(MAX_NAMESERVERS);
        let applied = config.servers.join(" ");
        warnings.push((
            "DNSConfigForming",
            format!(
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {applied}"
            ),
        ));
    }
    let searches = &mut config.searches;
    let before = searches.len();
    searches.retain(|domain| domain.chars().count() <= MAX_SEARCH_DOMAIN);
    searches.truncate(MAX_SEARCHES);
    let mut length = searches.join(" ").chars().count();
    while length > MAX_SEARCH_CHARACTERS
        && let Some(last) = searches.pop()
    {
        length = length.saturating_sub(last.chars().count() + 1);
    }
    if searches.len() < before {
        let applied = searches.join(" ");
        warnings.push((
            "DNSConfigForming",
            format!(
                "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {applied}"
            ),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(Into::into).collect()
    }

    fn config(servers: &str, searches: &str, options: &str) -> DnsConfig {
        DnsConfig {
            servers: words(servers),
            searches: words(searches),
            options: words(options),
        }
    }

    #[test]
    fn resolver_file() {
        // CFG-64
        for (name, text, want) in [
            ("empty", "", config("", "", "")),
            (
                "usual",
                "# made by dhcp\nnameserver 192.0.2.1\nnameserver\t192.0.2.2  x\nsearch a.b. c .\noptions ndots:2 rotate\n",
                config("192.0.2.1 192.0.2.2", "a.b c", "ndots:2 rotate"),
            ),
            (
                "last search, merged options",
                "search a\noptions ndots:2 edns0\nsearch b c\noptions ndots:3\n  #nameserver 1\n",
                config("", "b c", "ndots:3 edns0"),
            ),
            (
                "unknown words",
                "domain x\nsortlist y\n",
                config("", "", ""),
            ),
        ] {
            assert_eq!(parse_resolv_conf(text), Ok(want), "{name}");
        }
        assert!(parse_resolv_conf("nameserver\n").is_err());
        assert!(parse_resolv_conf(&" ".repeat(MAX_RESOLV_CONF + 1)).is_err());
    }

    fn settings() -> DnsSettings {
        DnsSettings {
            cluster_dns: words("10.0.0.10"),
            cluster_domain: "cluster.local".into(),
            has_resolv_conf: true,
            node: config("192.0.2.1 192.0.2.2", "home svc.cluster.local", "rotate"),
            node_ips: vec![],
        }
    }

    fn pod(spec: &str) -> Pod {
        serde_json::from_str(&format!(
            r#"{{"metadata":{{"namespace":"prod"}},"spec":{spec}}}"#
        ))
        .expect("pod")
    }

    #[test]
    fn policies() {
        // CFG-60 CFG-61
        let cluster = config(
            "10.0.0.10",
            "prod.svc.cluster.local svc.cluster.local cluster.local home",
            "ndots:5",
        );
        let node = settings().node;
        for (name, spec, want) in [
            ("none given", "{}", cluster.clone()),
            (
                "ClusterFirst",
                r#"{"dnsPolicy":"ClusterFirst"}"#,
                cluster.clone(),
            ),
            (
                "ClusterFirst on the host's network",
                r#"{"dnsPolicy":"ClusterFirst","hostNetwork":true}"#,
                node.clone(),
            ),
            (
                "ClusterFirstWithHostNet",
                r#"{"dnsPolicy":"ClusterFirstWithHostNet","hostNetwork":true}"#,
                cluster.clone(),
            ),
            ("Default", r#"{"dnsPolicy":"Default"}"#, node),
            ("unknown", r#"{"dnsPolicy":"Magic"}"#, cluster),
            ("None", r#"{"dnsPolicy":"None"}"#, config("", "", "")),
            (
                "None with dnsConfig",
                r#"{"dnsPolicy":"None","dnsConfig":{"nameservers":["9.9.9.9"],"searches":["x"],
                    "options":[{"name":"ndots","value":"1"},{"name":"edns0"}]}}"#,
                config("9.9.9.9", "x", "ndots:1 edns0"),
            ),
            (
                "dnsConfig merged",
                r#"{"dnsConfig":{"nameservers":["10.0.0.10","9.9.9.9"],"searches":["home","x"],
                    "options":[{"name":"ndots","value":"2"}]}}"#,
                config(
                    "10.0.0.10 9.9.9.9",
                    "prod.svc.cluster.local svc.cluster.local cluster.local home x",
                    "ndots:2",
                ),
            ),
        ] {
            let got = pod_dns(&pod(spec), &settings());
            assert_eq!((got.config, got.warnings), (want, vec![]), "{name}");
        }
    }

    #[test]
    fn without_cluster_settings() {
        // CFG-60 CFG-61 CFG-64
        let mut some = settings();
        some.cluster_domain.clear();
        let got = pod_dns(&pod("{}"), &some).config;
        assert_eq!(
            got,
            config("10.0.0.10", "home svc.cluster.local", "ndots:5")
        );

        some.cluster_dns.clear();
        let got = pod_dns(&pod("{}"), &some);
        assert_eq!(got.config, some.node);
        assert_eq!(got.warnings[0].0, "MissingClusterDNS");
        assert!(
            got.warnings[0].1.contains("does not have ClusterDNS IP"),
            "{}",
            got.warnings[0].1
        );
        assert!(
            pod_dns(&pod(r#"{"dnsPolicy":"Default"}"#), &some)
                .warnings
                .is_empty()
        );

        some.has_resolv_conf = false;
        let default = pod(r#"{"dnsPolicy":"Default"}"#);
        assert_eq!(
            pod_dns(&default, &some).config,
            config("127.0.0.1", ".", "")
        );
        some.node_ips = vec![
            "fd00::1".parse().expect("ip"),
            "192.0.2.9".parse().expect("ip"),
        ];
        assert_eq!(
            pod_dns(&default, &some).config,
            config("::1 127.0.0.1", ".", "")
        );
    }

    #[test]
    fn limits() {
        // CFG-64
        let long = "x".repeat(254);
        let many: Vec<String> = (0..40).map(|n| format!("d{n}")).collect();
        let heavy: Vec<String> = (0..20)
            .map(|n| format!("{n:02}{}", "y".repeat(198)))
            .collect();
        for (name, servers, searches, want_servers, want_searches, warnings) in [
            ("within", words("1 2 3"), words("a b"), 3, 2, 0),
            ("servers", words("1 2 3 4"), words("a"), 3, 1, 1),
            ("long domain", words("1"), vec![long, "a".into()], 1, 1, 1),
            ("many domains", words("1"), many, 1, 32, 1),
            // 10 × 200 and 9 spaces are 2009 characters; 11 would be 2210.
            ("many characters", words("1"), heavy, 1, 10, 1),
        ] {
            let mut config = DnsConfig {
                servers,
                searches,
                options: vec![],
            };
            let mut seen = Vec::new();
            apply_dns_limits(&mut config, &mut seen);
            assert_eq!(
                (config.servers.len(), config.searches.len(), seen.len()),
                (want_servers, want_searches, warnings),
                "{name}"
            );
            assert!(
                seen.iter().all(|(reason, _)| *reason == "DNSConfigForming"),
                "{name}"
            );
        }
    }

    #[test]
    fn search_lines_that_pods_cannot_have() {
        // EVT-35
        let domains = |count: usize, length: usize| {
            let domain = "a".repeat(length);
            config("", &format!("{domain} ").repeat(count), "")
        };
        for (name, node, domain, says) in [
            ("none", domains(0, 0), "", None),
            ("32", domains(32, 63), "", None),
            ("33", domains(33, 1), "", Some("more than 32 domains")),
            ("29 in a cluster", domains(29, 1), "cluster.local", None),
            (
                "30 in a cluster",
                domains(30, 1),
                "cluster.local",
                Some("more than 29 domains"),
            ),
            ("long", domains(1, 253), "", None),
            (
                "too long",
                domains(1, 254),
                "",
                Some("more than allowed 253"),
            ),
            (
                "too long together",
                domains(32, 64),
                "",
                Some("more than allowed 2048 chars"),
            ),
        ] {
            let found = search_line_warning("/r", &node, domain);
            assert_eq!(found.is_some(), says.is_some(), "{name}: {found:?}");
            let found = found.unwrap_or_default();
            assert!(found.contains(says.unwrap_or_default()), "{name}: {found}");
        }
    }
}
