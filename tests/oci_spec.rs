//! Goldens of the OCI configuration: what an OCI runtime gets for a plain and for a privileged container.
//!
//! A golden changes only on purpose: look at the difference, then copy the file that the failing test names.

use std::{fs, path::Path};

use picolet::api::cri::{
    ContainerConfig, ContainerMount, LinuxResources, LinuxSecurity, MountPropagation,
    NamespaceMode, NamespaceOptions, SandboxConfig, SecurityProfile,
};
use picolet::api::oci::{
    HostFacts, ImageProcess, OciCommand, OciDevice, ResolvedUser, SandboxPaths, SpecInput,
};
use picolet::logic::oci::container_spec;

fn container() -> ContainerConfig {
    ContainerConfig {
        name: "app".into(),
        user_image: "registry.example/app:1".into(),
        args: vec!["serve".into()],
        env: vec![("MODE".into(), "fast".into())],
        mounts: vec![
            ContainerMount {
                host_path: "/var/lib/picolet/pods/u-1/volumes/kubernetes.io~empty-dir/data".into(),
                container_path: "/data".into(),
                propagation: MountPropagation::HostToContainer,
                ..ContainerMount::default()
            },
            ContainerMount {
                host_path: "/var/lib/picolet/pods/u-1/etc-hosts".into(),
                container_path: "/etc/hosts".into(),
                ..ContainerMount::default()
            },
        ],
        resources: LinuxResources {
            cpu_shares: Some(102),
            cpu_quota_us: Some(20_000),
            cpu_period_us: Some(100_000),
            memory_limit_bytes: Some(64 << 20),
            oom_score_adj: 984,
            hugepage_limits: [("2MB".to_owned(), 0)].into(),
            unified: [("memory.oom.group".to_owned(), "1".to_owned())].into(),
            ..LinuxResources::default()
        },
        security: LinuxSecurity {
            namespaces: NamespaceOptions {
                pid: NamespaceMode::Container,
                ..NamespaceOptions::default()
            },
            seccomp: SecurityProfile::RuntimeDefault,
            no_new_privs: true,
            drop_capabilities: vec!["NET_RAW".into()],
            ..LinuxSecurity::default()
        },
        ..ContainerConfig::default()
    }
}

fn check(name: &str, container: &ContainerConfig, golden: &str) {
    let sandbox = SandboxConfig {
        name: "web".into(),
        namespace: "prod".into(),
        uid: "u-1".into(),
        hostname: "web".into(),
        privileged: true,
        ..SandboxConfig::default()
    };
    let spec = container_spec(&SpecInput {
        devices: &[],
        host_devices: &[OciDevice {
            kind: "c".into(),
            path: "/dev/gpiomem".into(),
            major: 246,
            file_mode: Some(0o660),
            uid: Some(0),
            gid: Some(997),
            ..OciDevice::default()
        }],
        container_id: "c1",
        sandbox_id: "s1",
        container,
        sandbox: &sandbox,
        image: &ImageProcess {
            entrypoint: OciCommand(vec!["/app".into()]),
            env: vec!["PATH=/bin".into()],
            ..ImageProcess::default()
        },
        user: &ResolvedUser {
            uid: 1000,
            gid: 1000,
            additional_gids: vec![1000],
        },
        paths: &SandboxPaths {
            network_namespace: "/run/picolet/sandboxes/s1/net".into(),
            ipc_namespace: "/run/picolet/sandboxes/s1/ipc".into(),
            uts_namespace: "/run/picolet/sandboxes/s1/uts".into(),
            shm: "/run/picolet/sandboxes/s1/shm".into(),
            hostname: "/run/picolet/sandboxes/s1/hostname".into(),
            resolv_conf: "/run/picolet/sandboxes/s1/resolv.conf".into(),
            ..SandboxPaths::default()
        },
        rootfs: "/run/picolet/containers/c1/rootfs",
        cgroups_path: "/kubepods/burstable/podu-1/c1",
        image_volumes: &[],
        seccomp_file: None,
        apparmor_default: "",
        host: &HostFacts {
            arch: "aarch64".into(),
            kernel: (6, 1),
            cgroup_v2: true,
            min_oom_score_adj: -1000,
            seccomp: true,
            ..HostFacts::default()
        },
    })
    .expect("spec");
    let text = serde_json::to_string_pretty(&spec).expect("json") + "\n";
    if text != golden {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, text).expect("write what was generated");
        panic!("tests/golden/oci/{name} differs from {}", path.display());
    }
}

#[test]
fn plain_container() {
    check(
        "plain.json",
        &container(),
        include_str!("golden/oci/plain.json"),
    );
}

#[test]
fn privileged_container() {
    let mut container = container();
    container.security.privileged = true;
    check(
        "privileged.json",
        &container,
        include_str!("golden/oci/privileged.json"),
    );
}
