//! Translation of the agent's configurations of sandboxes and containers into requests (CRI-16 to CRI-35).

use super::{EndpointSettings, wire};
use crate::api::cri::{
    ContainerConfig, ContainerDeviceNode, ContainerMount, IdMap, LinuxResources, LinuxSecurity,
    MountPropagation, NamespaceMode, NamespaceOptions, PortMapping, SandboxConfig, SecurityProfile,
    stop_signal_number,
};

/// `SecurityProfile.ProfileType`.
const RUNTIME_DEFAULT: i32 = 0;
const UNCONFINED: i32 = 1;
const LOCALHOST: i32 = 2;

/// A sandbox, made anew for each call that names it.
pub(super) fn sandbox_config(config: &SandboxConfig) -> wire::PodSandboxConfig {
    wire::PodSandboxConfig {
        metadata: Some(wire::PodSandboxMetadata {
            name: config.name.clone(),
            uid: config.uid.to_string(),
            namespace: config.namespace.clone(),
            attempt: config.attempt,
        }),
        hostname: config.hostname.clone(),
        log_directory: config.log_directory.clone(),
        dns: Some(wire::DnsConfigMessage {
            servers: config.dns.servers.clone(),
            searches: config.dns.searches.clone(),
            options: config.dns.options.clone(),
        }),
        port_mappings: config.port_mappings.iter().map(port).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        linux: Some(wire::LinuxSandbox {
            cgroup_parent: config.cgroup_parent.clone(),
            security: Some(wire::SandboxSecurity {
                namespaces: Some(namespace_options(config.namespaces, "")),
                selinux: selinux(&config.user.selinux_label),
                run_as_user: config.user.run_as_user.map(int64_value),
                supplemental_groups: config.user.supplemental_groups.clone(),
                privileged: config.privileged,
                run_as_group: config.user.run_as_group.map(int64_value),
                seccomp: Some(wire::SecurityProfileMessage::default()),
                supplemental_groups_policy: config.user.strict_supplemental_groups.into(),
            }),
            sysctls: config.sysctls.clone(),
            overhead: Some(linux_resources(&config.overhead)),
            resources: Some(linux_resources(&config.resources)),
        }),
    }
}

fn port(mapping: &PortMapping) -> wire::PortMappingMessage {
    wire::PortMappingMessage {
        protocol: match &*mapping.protocol {
            "UDP" => 1,
            "SCTP" => 2,
            _ => 0,
        },
        container_port: mapping.container_port.into(),
        host_port: mapping.host_port.into(),
        host_ip: mapping.host_ip.clone(),
    }
}

const fn int64_value(value: i64) -> wire::Int64Value {
    wire::Int64Value { value }
}

const fn namespace_mode_number(mode: NamespaceMode) -> i32 {
    match mode {
        NamespaceMode::Pod => 0,
        NamespaceMode::Container => 1,
        NamespaceMode::Node => 2,
        NamespaceMode::Target => 3,
    }
}

fn namespace_options(options: NamespaceOptions, target: &str) -> wire::NamespaceOption {
    wire::NamespaceOption {
        network: namespace_mode_number(options.network),
        pid: namespace_mode_number(options.pid),
        ipc: namespace_mode_number(options.ipc),
        target_id: target.into(),
        userns: Some(wire::UserNamespace {
            mode: namespace_mode_number(match options.users {
                Some(_) => NamespaceMode::Pod,
                None => NamespaceMode::Node,
            }),
            uids: id_mappings(options.users),
            gids: id_mappings(options.users),
        }),
    }
}

fn id_mappings(users: Option<IdMap>) -> Vec<wire::IdMappingMessage> {
    let mapping = users.map(|ids| wire::IdMappingMessage {
        host_id: ids.host_id,
        container_id: 0,
        length: ids.length,
    });
    mapping.into_iter().collect()
}

/// A container.
pub(super) fn container_config(
    config: &ContainerConfig,
    settings: &EndpointSettings,
) -> wire::ContainerConfigMessage {
    let value = |(key, value): &(String, String)| wire::KeyValue {
        key: key.clone(),
        value: value.clone().into_bytes(),
    };
    let users = config.security.namespaces.users;
    wire::ContainerConfigMessage {
        metadata: Some(wire::ContainerMetadata {
            name: config.name.clone(),
            attempt: config.attempt,
        }),
        image: Some(image_spec(&config.image, &config.user_image)),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config.working_dir.clone(),
        envs: config.env.iter().map(value).collect(),
        mounts: config.mounts.iter().map(|m| mount(m, users)).collect(),
        devices: config.devices.iter().map(device).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        log_path: config.log_path.clone(),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        linux: Some(wire::LinuxContainer {
            resources: Some(linux_resources(&config.resources)),
            security: Some(container_security(&config.security, settings)),
        }),
        cdi_devices: config
            .cdi_devices
            .iter()
            .map(|name| wire::CdiDevice { name: name.clone() })
            .collect(),
        stop_signal: stop_signal_number(&config.stop_signal),
    }
}

/// An image as a pod and the runtime name it.
pub(super) fn image_spec(image: &str, user_image: &str) -> wire::ImageSpecMessage {
    wire::ImageSpecMessage {
        image: image.into(),
        user_specified_image: user_image.into(),
        ..wire::ImageSpecMessage::default()
    }
}

fn mount(mount: &ContainerMount, users: Option<IdMap>) -> wire::MountMessage {
    wire::MountMessage {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.read_only,
        propagation: match mount.propagation {
            MountPropagation::Private => 0,
            MountPropagation::HostToContainer => 1,
            MountPropagation::Bidirectional => 2,
        },
        recursive_read_only: mount.recursive_read_only,
        image: mount
            .image
            .as_ref()
            .map(|i| image_spec(&i.image, &i.user_image)),
        image_sub_path: mount.image_sub_path.clone(),
        uid_mappings: id_mappings(users),
        gid_mappings: id_mappings(users),
        ..wire::MountMessage::default()
    }
}

/// Translates a device. CRI has no fields for owner and mode: the runtime chooses them.
fn device(device: &ContainerDeviceNode) -> wire::DeviceMessage {
    wire::DeviceMessage {
        container_path: device.container_path.clone(),
        host_path: device.host_path.clone(),
        permissions: device.permissions.clone(),
    }
}

/// Translates limits; one that is not set is 0.
pub(super) fn linux_resources(limits: &LinuxResources) -> wire::LinuxContainerResources {
    let number = |n: Option<u64>| n.map_or(0, |n| i64::try_from(n).unwrap_or(i64::MAX));
    let pages = limits.hugepage_limits.iter();
    wire::LinuxContainerResources {
        cpu_period: number(limits.cpu_period_us),
        cpu_quota: limits.cpu_quota_us.unwrap_or(0),
        cpu_shares: number(limits.cpu_shares),
        memory_limit_in_bytes: limits.memory_limit_bytes.unwrap_or(0),
        oom_score_adj: limits.oom_score_adj.into(),
        cpuset_cpus: limits.cpuset_cpus.clone().unwrap_or_default(),
        hugepage_limits: pages
            .map(|(page_size, limit)| wire::HugepageLimit {
                page_size: page_size.clone(),
                limit: *limit,
            })
            .collect(),
        unified: limits.unified.clone(),
        memory_swap_limit_in_bytes: limits.memory_swap_bytes.unwrap_or(0),
    }
}

fn container_security(
    wanted: &LinuxSecurity,
    settings: &EndpointSettings,
) -> wire::ContainerSecurity {
    let has_capabilities =
        !wanted.add_capabilities.is_empty() || !wanted.drop_capabilities.is_empty();
    let target = wanted.target.as_ref().map_or("", |id| id.as_str());
    // The runtime adds none of its own: what is not masked is not sent either.
    let paths = |all: &[String]| match wanted.unmasked_proc {
        true => Vec::new(),
        false => all.to_vec(),
    };
    wire::ContainerSecurity {
        capabilities: has_capabilities.then(|| wire::Capability {
            add: wanted.add_capabilities.clone(),
            drop: wanted.drop_capabilities.clone(),
        }),
        privileged: wanted.privileged,
        namespaces: Some(namespace_options(wanted.namespaces, target)),
        selinux: selinux(&wanted.selinux_label),
        run_as_user: wanted.run_as_user.map(int64_value),
        run_as_username: match wanted.run_as_user {
            Some(_) => String::new(),
            None => wanted.username.clone(),
        },
        run_as_group: wanted.run_as_group.map(int64_value),
        readonly_rootfs: wanted.readonly_rootfs,
        supplemental_groups: wanted.supplemental_groups.clone(),
        supplemental_groups_policy: i32::from(wanted.strict_supplemental_groups),
        no_new_privs: wanted.no_new_privs,
        masked_paths: paths(&settings.masked_paths),
        readonly_paths: paths(&settings.readonly_paths),
        seccomp: Some(
            security_profile(&wanted.seccomp).unwrap_or_else(|| profile_of_kind(UNCONFINED)),
        ),
        apparmor: security_profile(&wanted.apparmor),
        apparmor_profile: match &wanted.apparmor {
            SecurityProfile::RuntimeDefault => "runtime/default".into(),
            SecurityProfile::Unconfined => "unconfined".into(),
            SecurityProfile::Localhost(name) => format!("localhost/{name}"),
            SecurityProfile::Unset => String::new(),
        },
    }
}

const fn profile_of_kind(kind: i32) -> wire::SecurityProfileMessage {
    wire::SecurityProfileMessage {
        kind,
        localhost_ref: String::new(),
    }
}

fn security_profile(profile: &SecurityProfile) -> Option<wire::SecurityProfileMessage> {
    Some(match profile {
        SecurityProfile::RuntimeDefault => profile_of_kind(RUNTIME_DEFAULT),
        SecurityProfile::Unconfined => profile_of_kind(UNCONFINED),
        SecurityProfile::Localhost(reference) => wire::SecurityProfileMessage {
            kind: LOCALHOST,
            localhost_ref: reference.clone(),
        },
        SecurityProfile::Unset => return None,
    })
}

/// `user:role:type:level`, of which any may be empty.
fn selinux(label: &str) -> Option<wire::SelinuxOption> {
    let mut parts = label.splitn(4, ':').map(str::to_owned);
    let mut part = || parts.next().unwrap_or_default();
    (!label.is_empty()).then(|| wire::SelinuxOption {
        user: part(),
        role: part(),
        kind: part(),
        level: part(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::proto::encode;

    fn settings() -> EndpointSettings {
        EndpointSettings {
            masked_paths: vec!["/proc/kcore".into()],
            readonly_paths: vec!["/proc/sys".into()],
            ..EndpointSettings::default()
        }
    }

    #[test]
    fn signals() {
        // CRI-35 STS-02
        for (name, number) in [
            ("", 0),
            ("SIGNONE", 0),
            ("SIGABRT", 1),
            ("SIGTERM", 23),
            ("SIGXFSZ", 34),
            ("SIGRTMIN", 35),
            ("SIGRTMIN+15", 50),
            ("SIGRTMAX-14", 51),
            ("SIGRTMAX-1", 64),
            ("SIGRTMAX", 65),
            ("SIGRTMIN+16", 0),
        ] {
            assert_eq!(stop_signal_number(name), number, "{name}");
        }
    }

    #[test]
    fn what_is_there_though_it_is_zero() {
        // CRI-08 CRI-33 CRI-34
        let security = LinuxSecurity {
            run_as_user: Some(0),
            username: "nobody".into(),
            seccomp: SecurityProfile::RuntimeDefault,
            apparmor: SecurityProfile::Localhost("mine".into()),
            ..LinuxSecurity::default()
        };
        let mut sent = container_security(&security, &settings());
        assert_eq!(sent.run_as_user, Some(wire::Int64Value { value: 0 }));
        assert_eq!(sent.run_as_username, "", "never both");
        assert_eq!(sent.seccomp, Some(wire::SecurityProfileMessage::default()));
        assert_eq!(sent.apparmor_profile, "localhost/mine");
        assert_eq!(sent.apparmor.as_ref().map(|a| a.kind), Some(LOCALHOST));
        assert_eq!(sent.masked_paths, ["/proc/kcore"]);
        assert_eq!(sent.capabilities, None, "nothing asked, nothing sent");
        // Field 5 is a message of no bytes, field 15 too.
        let bytes = encode(&mut sent);
        assert!(bytes.windows(2).any(|w| w == [5 << 3 | 2, 0]));
        assert!(bytes.windows(2).any(|w| w == [15 << 3 | 2, 0]));
        let unset = container_security(
            &LinuxSecurity {
                seccomp: SecurityProfile::Unset,
                apparmor: SecurityProfile::Unset,
                unmasked_proc: true,
                ..LinuxSecurity::default()
            },
            &settings(),
        );
        assert_eq!(unset.seccomp.map(|s| s.kind), Some(UNCONFINED));
        assert_eq!(unset.apparmor, None);
        assert!(unset.masked_paths.is_empty() && unset.readonly_paths.is_empty());
    }

    #[test]
    fn sandboxes() {
        // CRI-16 CRI-17 CRI-18 CRI-19 CRI-20
        let config = SandboxConfig {
            name: "p".into(),
            namespace: "ns".into(),
            uid: "u".into(),
            attempt: 2,
            hostname: "h".into(),
            log_directory: "/logs".into(),
            port_mappings: ["TCP", "UDP", "SCTP"]
                .map(|protocol| PortMapping {
                    protocol: protocol.into(),
                    container_port: 80,
                    ..PortMapping::default()
                })
                .to_vec(),
            cgroup_parent: "/kubepods/podu".into(),
            sysctls: [("net.a".into(), "1".into())].into(),
            namespaces: NamespaceOptions {
                network: NamespaceMode::Node,
                ipc: NamespaceMode::Pod,
                pid: NamespaceMode::Container,
                users: None,
            },
            ..SandboxConfig::default()
        };
        let sent = sandbox_config(&config);
        let metadata = sent.metadata.expect("metadata");
        assert_eq!((&*metadata.uid, metadata.attempt), ("u", 2));
        let protocols: Vec<i32> = sent.port_mappings.iter().map(|p| p.protocol).collect();
        assert_eq!(protocols, [0, 1, 2], "ports without a host port too");
        let linux = sent.linux.expect("linux");
        assert_eq!(linux.cgroup_parent, "/kubepods/podu");
        assert_eq!(linux.sysctls["net.a"], "1");
        let security = linux.security.expect("security");
        let modes = security.namespaces.expect("namespaces");
        assert_eq!((modes.network, modes.ipc, modes.pid), (2, 0, 1));
        assert_eq!(modes.userns.map(|u| u.mode), Some(2));
        assert_eq!(
            security.seccomp,
            Some(wire::SecurityProfileMessage::default())
        );
    }

    #[test]
    fn users_of_their_own() {
        // CRI-22 CRI-28
        let users = Some(IdMap {
            host_id: 131_072,
            length: 65_536,
        });
        let mut config = ContainerConfig {
            mounts: vec![ContainerMount::default(); 2],
            ..ContainerConfig::default()
        };
        config.security.namespaces.users = users;
        let sandbox = SandboxConfig {
            namespaces: config.security.namespaces,
            ..SandboxConfig::default()
        };
        let wanted = vec![wire::IdMappingMessage {
            host_id: 131_072,
            container_id: 0,
            length: 65_536,
        }];
        let sent = container_config(&config, &settings());
        for mount in &sent.mounts {
            let maps = (&mount.uid_mappings, &mount.gid_mappings);
            assert_eq!(maps, (&wanted, &wanted));
        }
        let of_container = sent.linux.and_then(|linux| linux.security);
        let of_sandbox = sandbox_config(&sandbox).linux;
        let of_sandbox = of_sandbox.and_then(|linux| linux.security);
        let modes = [
            of_container.and_then(|security| security.namespaces),
            of_sandbox.and_then(|security| security.namespaces),
        ];
        for modes in modes {
            let sent = modes.and_then(|modes| modes.userns).expect("userns");
            assert_eq!(
                (sent.mode, sent.uids, sent.gids),
                (0, wanted.clone(), wanted.clone())
            );
        }
        config.security.namespaces.users = None;
        let sent = container_config(&config, &settings());
        assert!(sent.mounts.iter().all(|m| m.uid_mappings.is_empty()));
    }

    #[test]
    fn devices_of_plugins() {
        // CDI-08 DEV-09
        let config = ContainerConfig {
            cdi_devices: vec!["v.com/c=1".into()],
            ..ContainerConfig::default()
        };
        let mut sent = container_config(&config, &settings());
        let bytes = encode(&mut sent);
        // Field 17, in it field 1.
        let name = [
            &[17 << 3 & 0x7f | 0x80 | 2, 1, 11, 0x0a, 9],
            &b"v.com/c=1"[..],
        ]
        .concat();
        assert!(bytes.windows(name.len()).any(|w| w == name), "{bytes:?}");
    }

    #[test]
    fn labels_and_limits() {
        // CRI-32
        let label = selinux("u:r:t:s0:c1,c2").expect("a label");
        assert_eq!((&*label.kind, &*label.level), ("t", "s0:c1,c2"));
        assert_eq!(selinux(""), None);
        let limits = LinuxResources {
            cpu_shares: Some(u64::MAX),
            memory_limit_bytes: Some(-1),
            oom_score_adj: -997,
            hugepage_limits: [("2MB".into(), 0)].into(),
            ..LinuxResources::default()
        };
        let sent = linux_resources(&limits);
        assert_eq!(
            (sent.cpu_shares, sent.cpu_quota, sent.memory_limit_in_bytes),
            (i64::MAX, 0, -1)
        );
        assert_eq!(sent.oom_score_adj, -997);
        assert_eq!(sent.hugepage_limits.len(), 1, "also a limit of 0");
    }
}
