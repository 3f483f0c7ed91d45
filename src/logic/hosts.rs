//! Names of a pod: its hostname, its domain and its `/etc/hosts` (CFG-20, CFG-21, CFG-50, CFG-51).

use alloc::string::String;
use core::fmt::Write as _;
use core::net::IpAddr;

use crate::api::pod::HostAlias;
use crate::api::{Pod, PodError};

/// Longest kernel hostname, bytes. Source: `__NEW_UTS_LEN` of uname(2).
pub const MAX_KERNEL_HOSTNAME: usize = 64;
/// Longest DNS label, bytes. Source: RFC 1123.
const MAX_LABEL: usize = 63;
/// Longest DNS name that the API takes, bytes.
const MAX_SUBDOMAIN: usize = 253;

/// Names of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNames {
    /// First label, or the override.
    pub hostname: String,
    /// Domain for the hosts file; empty for none.
    pub domain: String,
    /// Hostname for the kernel; empty for host-network pods.
    pub kernel: String,
}

/// Decides the names of a pod.
///
/// Errors: a name that is not a DNS label, or too long for the kernel; the sandbox cannot be made, and the pod is retried.
pub fn pod_names(pod: &Pod, cluster_domain: &str) -> Result<PodNames, PodError> {
    let spec = &pod.spec;
    let (hostname, domain) = if let Some(name) = &spec.hostname_override {
        if !is_subdomain(name) {
            return Err(PodError::Spec(format!(
                "hostnameOverride {name:?} is not a DNS name"
            )));
        }
        (name.clone(), String::new())
    } else {
        let name = match spec.hostname.as_str() {
            "" => &pod.metadata.name,
            name if is_label(name) => name,
            name => {
                return Err(PodError::Spec(format!(
                    "hostname {name:?} is not a DNS label"
                )));
            }
        };
        let domain = match spec.subdomain.as_str() {
            "" => String::new(),
            name if is_label(name) => {
                let service = format!("{name}.{}.svc", pod.metadata.namespace);
                match cluster_domain {
                    "" => service,
                    cluster => format!("{service}.{cluster}"),
                }
            }
            name => {
                return Err(PodError::Spec(format!(
                    "subdomain {name:?} is not a DNS label"
                )));
            }
        };
        (truncate_hostname(name)?, domain)
    };
    let kernel = if spec.host_network {
        String::new()
    } else if spec.set_hostname_as_fqdn == Some(true) && !domain.is_empty() {
        format!("{hostname}.{domain}")
    } else {
        hostname.clone()
    };
    if kernel.len() > MAX_KERNEL_HOSTNAME {
        return Err(PodError::Spec(format!(
            "hostname {kernel:?} is longer than {MAX_KERNEL_HOSTNAME} characters"
        )));
    }
    Ok(PodNames {
        hostname,
        domain,
        kernel,
    })
}

fn truncate_hostname(name: &str) -> Result<String, PodError> {
    // Pod names are ASCII; a cut elsewhere would not be at a character's boundary.
    let cut = name.get(..MAX_LABEL.min(name.len())).unwrap_or("");
    match if name.len() > MAX_LABEL {
        cut.trim_end_matches(['-', '.'])
    } else {
        cut
    } {
        "" => Err(PodError::Spec(format!(
            "no hostname can be made of {name:?}"
        ))),
        cut => Ok(cut.into()),
    }
}

fn is_label(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= MAX_LABEL
        && edge(name.chars().next())
        && edge(name.chars().next_back())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= MAX_SUBDOMAIN && name.split('.').all(is_label)
}

/// Returns true if the agent manages `/etc/hosts` of this container. The agent does not if the container mounts that
/// path itself, or if the pod has its own network and no address yet (CFG-50).
#[must_use]
pub fn manages_hosts(pod: &Pod, container: &crate::api::Container, pod_ips: &[IpAddr]) -> bool {
    let own = container.volume_mounts.iter();
    let mut own = own.filter(|mount| mount.mount_path.trim_end_matches('/') == "/etc/hosts");
    own.next().is_none() && (pod.spec.host_network || !pod_ips.is_empty())
}

/// Content of the managed hosts file.
///
/// - `node_hosts`: the node's own file for a host-network pod, which gets it verbatim; else `None`.
/// - `pod_ips`: primary first; not used with `node_hosts`.
#[must_use]
pub fn hosts_file(
    node_hosts: Option<&str>,
    pod_ips: &[IpAddr],
    names: &PodNames,
    aliases: &[HostAlias],
) -> String {
    let mut out = String::new();
    match node_hosts {
        Some(content) => {
            out.push_str("# Kubernetes-managed hosts file (host network).\n");
            out.push_str(content);
        }
        None => {
            out.push_str(
                "# Kubernetes-managed hosts file.\n\
                 127.0.0.1\tlocalhost\n\
                 ::1\tlocalhost ip6-localhost ip6-loopback\n\
                 fe00::0\tip6-localnet\n\
                 fe00::0\tip6-mcastprefix\n\
                 fe00::1\tip6-allnodes\n\
                 fe00::2\tip6-allrouters\n",
            );
            let PodNames {
                hostname, domain, ..
            } = names;
            for ip in pod_ips {
                // Writing to a String cannot fail.
                let _ = if domain.is_empty() {
                    writeln!(out, "{ip}\t{hostname}")
                } else {
                    writeln!(out, "{ip}\t{hostname}.{domain}\t{hostname}")
                };
            }
        }
    }
    if !aliases.is_empty() {
        out.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let _ = writeln!(out, "{}\t{}", alias.ip, alias.hostnames.join("\t"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::*;

    fn pod(spec: &str) -> Pod {
        let name = "web";
        serde_json::from_str(&format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"prod"}},"spec":{spec}}}"#
        ))
        .expect("pod")
    }

    #[test]
    fn names() {
        // CFG-20 CFG-21 HNO-01
        let label = "a".repeat(63);
        let longest = &*format!("{}.{}", "a".repeat(31), "b".repeat(32));
        for (name, spec, want) in [
            ("pod name", "{}".to_owned(), Some(("web", "", "web"))),
            (
                "hostname",
                r#"{"hostname":"db"}"#.into(),
                Some(("db", "", "db")),
            ),
            (
                "subdomain",
                r#"{"hostname":"db","subdomain":"sql"}"#.into(),
                Some(("db", "sql.prod.svc.cluster.local", "db")),
            ),
            (
                "fqdn",
                r#"{"subdomain":"sql","setHostnameAsFQDN":true}"#.into(),
                Some((
                    "web",
                    "sql.prod.svc.cluster.local",
                    "web.sql.prod.svc.cluster.local",
                )),
            ),
            (
                "fqdn without domain",
                r#"{"setHostnameAsFQDN":true}"#.into(),
                Some(("web", "", "web")),
            ),
            (
                "fqdn too long",
                format!(r#"{{"hostname":"{label}","subdomain":"s","setHostnameAsFQDN":true}}"#),
                None,
            ),
            (
                "host network",
                r#"{"hostNetwork":true,"hostname":"db"}"#.into(),
                Some(("db", "", "")),
            ),
            (
                "override",
                r#"{"hostnameOverride":"a.b.c","hostname":"db","subdomain":"s"}"#.into(),
                Some(("a.b.c", "", "a.b.c")),
            ),
            (
                "override of 64 bytes is not cut",
                format!(r#"{{"hostnameOverride":"{longest}"}}"#),
                Some((longest, "", longest)),
            ),
            (
                "override of 65 bytes",
                format!(r#"{{"hostnameOverride":"{longest}x"}}"#),
                None,
            ),
            (
                "override, and the domain that the name would have",
                r#"{"hostnameOverride":"a.b","subdomain":"s","setHostnameAsFQDN":true}"#.into(),
                Some(("a.b", "", "a.b")),
            ),
            ("bad override", r#"{"hostnameOverride":"A_b"}"#.into(), None),
            ("bad hostname", r#"{"hostname":"a.b"}"#.into(), None),
            ("bad subdomain", r#"{"subdomain":"-"}"#.into(), None),
        ] {
            let got = pod_names(&pod(&spec), "cluster.local");
            let want = want.map(|(hostname, domain, kernel)| PodNames {
                hostname: hostname.into(),
                domain: domain.into(),
                kernel: kernel.into(),
            });
            assert_eq!(got.ok(), want, "{name}");
        }
    }

    #[test]
    fn long_pod_name_is_cut() {
        // CFG-20
        let mut pod = pod("{}");
        pod.metadata.name = format!("{}.-bcd", "a".repeat(61));
        let names = pod_names(&pod, "").expect("names");
        assert_eq!(names.hostname, "a".repeat(61));
    }

    #[test]
    fn file() {
        // CFG-51 HNO-01
        let ips: [IpAddr; 2] = [
            "10.1.0.5".parse().expect("ip"),
            "fd00::5".parse().expect("ip"),
        ];
        let mut names = PodNames {
            hostname: "web".into(),
            ..PodNames::default()
        };
        let aliases = [HostAlias {
            ip: "192.0.2.7".into(),
            hostnames: vec!["x".into(), "y.z".into()],
        }];
        let head = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
            ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n\
            fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
        assert_eq!(
            hosts_file(None, &ips, &names, &[]),
            format!("{head}10.1.0.5\tweb\nfd00::5\tweb\n")
        );
        let own = pod(r#"{"hostnameOverride":"a.b.c","subdomain":"s"}"#);
        let overridden = pod_names(&own, "cluster.local").expect("names");
        assert_eq!(
            hosts_file(None, &ips[..1], &overridden, &[]),
            format!("{head}10.1.0.5\ta.b.c\n")
        );
        names.domain = "s.prod.svc".into();
        let tail = "\n# Entries added by HostAliases.\n192.0.2.7\tx\ty.z\n";
        assert_eq!(
            hosts_file(None, &ips[..1], &names, &aliases),
            format!("{head}10.1.0.5\tweb.s.prod.svc\tweb\n{tail}")
        );
        assert_eq!(
            hosts_file(Some("127.0.0.1 pi\n"), &ips, &names, &aliases),
            format!("# Kubernetes-managed hosts file (host network).\n127.0.0.1 pi\n{tail}")
        );
    }

    #[test]
    fn when_managed() {
        // CFG-50
        let ip: IpAddr = "10.1.0.5".parse().expect("ip");
        let plain = crate::api::Container::default();
        let own: crate::api::Container =
            serde_json::from_str(r#"{"volumeMounts":[{"mountPath":"/etc/hosts/"}]}"#)
                .expect("json");
        for (name, spec, container, ips, want) in [
            ("usual", "{}", &plain, &[ip][..], true),
            ("no address yet", "{}", &plain, &[], false),
            ("host network", r#"{"hostNetwork":true}"#, &plain, &[], true),
            ("mounted by the container", "{}", &own, &[ip], false),
        ] {
            assert_eq!(manages_hosts(&pod(spec), container, ips), want, "{name}");
        }
    }
}
