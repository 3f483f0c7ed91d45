use core::time::Duration;
use std::ffi::OsString;
use std::fs;

use super::*;
use crate::api::cri::CgroupDriver;
use crate::logic::cpu_manager::CpuPolicyOptions;
use crate::logic::eviction::{EvictionSignal, EvictionThreshold};
use crate::logic::image_access::VerificationPolicy;
use crate::testing::TestDir;

fn host() -> HostIdentity {
    HostIdentity {
        hostname: " Board ".into(),
    }
}

fn flags(line: &str) -> flags::CommandLineFlags {
    flags::parse_flags(
        line.split_whitespace().map(OsString::from).collect(),
        Path::new("/cwd"),
    )
    .expect(line)
}

/// Loads `text` as a file with the flags in `line`; an empty text means no file.
fn load(name: &str, text: &str, line: &str) -> Result<AgentConfig, String> {
    let scratch = TestDir::new(name);
    let path = scratch.0.join("config.yaml");
    if !text.is_empty() {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        fs::write(&path, format!("{head}{text}\n")).expect("write");
    }
    let show = |e: ConfigError| e.to_string().replace(&path.display().to_string(), "FILE");
    load_config_from(flags(line), &host(), &path)
        .map(|l| l.config)
        .map_err(show)
}

/// Loads `text` as a file, called as `kubelet`.
fn load_as_kubelet(name: &str, text: &str, line: &str) -> Result<LoadedConfig, String> {
    let scratch = TestDir::new(name);
    let path = scratch.0.join("config.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    fs::write(&path, format!("{head}{text}\n")).expect("write");
    let mut flags = flags(line);
    flags.config = Some(path);
    flags.as_kubelet = true;
    load_config(flags, &host()).map_err(|e| e.to_string())
}

/// Loads drop-ins of these names and texts over `text`, with the flags in `line`.
fn load_dir(
    name: &str,
    text: &str,
    drop_ins: &[(&str, &str)],
    line: &str,
) -> Result<LoadedConfig, String> {
    let scratch = TestDir::new(name);
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let path = scratch.0.join("config.yaml");
    if !text.is_empty() {
        fs::write(&path, format!("{head}{text}\n")).expect("write");
    }
    let dir = scratch.0.join("dir");
    fs::create_dir(&dir).expect("directory");
    for (name, text) in drop_ins {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
        let head = if text.contains("kind:") { "" } else { head };
        fs::write(path, format!("{head}{text}\n")).expect("write");
    }
    let line = format!("--config-dir={} {line}", dir.display());
    let show = |text: String| text.replace(&scratch.0.display().to_string(), "DIR");
    let mut loaded =
        load_config_from(flags(&line), &host(), &path).map_err(|e| show(e.to_string()))?;
    for warning in &mut loaded.warnings {
        warning.place = show(core::mem::take(&mut warning.place));
    }
    Ok(loaded)
}

fn lines(warnings: &[ConfigWarning]) -> Vec<String> {
    warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn images_that_need_no_right() {
    // ICV-01 ICV-02
    let parsed = |list: &str| {
        let policy = "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages";
        let text = format!("{policy}\npreloadedImagesVerificationAllowlist: {list}\n");
        load("allowed-images", &text, "").map(|config| config.images.verification)
    };
    let patterns = [
        "docker.io/library/busybox",
        "quay.io/team/",
        "r.example:5000/a",
        "docker.io/team/",
        "docker.io/",
    ];
    assert_eq!(
        parsed("[busybox, 'quay.io/team/*', 'r.example:5000/a', 'team/*', 'docker.io/*']"),
        Ok(VerificationPolicy::NotAllowed(
            patterns.map(Into::into).into()
        ))
    );
    for (pattern, says) in [
        ("busybox:1", "neither tag nor digest"),
        ("busybox:latest", "neither tag nor digest"),
        (
            &format!("busybox@sha256:{}", "0".repeat(64)),
            "neither tag nor digest",
        ),
        ("*", "only at the end"),
        ("quay.io/*/a", "only at the end"),
        ("quay.io/a*", "only at the end"),
        ("/*", "registry"),
        (" busybox", "space"),
        ("busybox ", "space"),
        ("UPPER", "lower case"),
        ("", "empty"),
    ] {
        let told = parsed(&format!("[{}]", serde_json::json!(pattern))).expect_err(pattern);
        assert!(
            told.contains("preloadedImagesVerificationAllowlist[0]"),
            "{told}"
        );
        assert!(told.contains(says), "{pattern:?}: {told}");
    }
    for (policy, want) in [
        ("NeverVerify", VerificationPolicy::Never),
        (
            "NeverVerifyPreloadedImages",
            VerificationPolicy::NotPreloaded,
        ),
        (
            "NeverVerifyAllowlistedImages",
            VerificationPolicy::NotAllowed(Vec::new()),
        ),
        ("AlwaysVerify", VerificationPolicy::Always),
    ] {
        let text = format!("imagePullCredentialsVerificationPolicy: {policy}\n");
        let config = load("verification", &text, "").expect(policy);
        assert_eq!(config.images.verification, want);
    }
}

#[test]
fn drop_ins_are_laid_over_the_file_and_flags_over_them() {
    // CONF-02 CONF-03
    let file = "maxPods: 5\nport: 10\nhealthzPort: 11\nclusterDNS: [10.0.0.1, 10.0.0.2]\n\
                featureGates: {MemoryQoS: true, NodeSwap: true}\nsystemReserved: {cpu: 100m, memory: 1Gi}";
    let drop_ins = [
        (
            "20-second.conf",
            "maxPods: 7\nport: 21\nclusterDNS: [10.0.0.3]",
        ),
        (
            "10-first.conf",
            "maxPods: 6\nport: 20\nfeatureGates: {MemoryQoS: false, EnvFiles: true}",
        ),
        (
            "15-below/a.conf",
            "podsPerCore: 3\nport: 15\nsystemReserved: {memory: null, pid: \"9\"}",
        ),
        ("README", "not: ours\nkind: x"),
        ("30-off.conf.disabled", "maxPods: 9\nkind: x"),
    ];
    let loaded = load_dir(
        "order",
        file,
        &drop_ins,
        "--port=22 --feature-gates=EnvFiles=false",
    );
    let LoadedConfig {
        config, warnings, ..
    } = loaded.expect("loads");
    assert_eq!((config.max_pods, config.pods_per_core), (7, 3));
    assert_eq!(config.node.port, 22, "a flag wins");
    assert_eq!(config.network.cluster_dns.len(), 1, "a list is replaced");
    let document: Value = serde_json::from_str(&config.document).expect("JSON");
    assert_eq!(document["healthzPort"], 11, "the file's is left");
    let gates = &document["featureGates"];
    assert_eq!(*gates, serde_json::json!({"MemoryQoS": false}));
    assert_eq!(
        lines(&warnings),
        [
            "--feature-gates: featureGates.EnvFiles is without effect here",
            "DIR/config.yaml: featureGates.NodeSwap is without effect here",
        ],
        "gates of both are merged"
    );
    let reserved: Vec<_> = config.reserved.system.keys().map(String::as_str).collect();
    assert_eq!(reserved, ["cpu", "pid"], "null deletes");
}

#[test]
fn drop_ins_without_a_file_and_thresholds() {
    // CONF-02 CONF-10
    let more = [("a.conf", "evictionHard: {memory.available: 50Mi}")];
    let thresholds = |file: &str, drop_ins| {
        let loaded = load_dir("thresholds", file, drop_ins, "").expect("loads");
        let thresholds = loaded.config.eviction.settings.thresholds;
        let written = thresholds.iter();
        // That of all pods together follows another.
        let written = written.filter(|t| t.signal != EvictionSignal::AllocatableMemory);
        written.count()
    };
    assert_eq!(
        thresholds("maxPods: 5", &more),
        5,
        "the default, and one of it changed"
    );
    assert_eq!(thresholds("evictionHard: {nodefs.available: 1%}", &more), 2);
    assert_eq!(thresholds("", &more), 1);
    assert_eq!(thresholds("", &[]), 0);
}

#[test]
fn what_is_wrong_with_a_drop_in_is_told_with_its_name() {
    // CONF-02
    for (name, text, says) in [
        (
            "a.conf",
            "kind: Pod",
            "DIR/dir/a.conf: apiVersion: is null, must be",
        ),
        ("b/c.conf", "maxPods: many", "DIR/dir/b/c.conf: maxPods: "),
        ("d.conf", "a: [", "DIR/dir/d.conf: "),
        (
            "e.conf",
            "podLogsDir: logs",
            "podLogsDir: is \"logs\", must be an absolute path",
        ),
    ] {
        let error = load_dir("wrong", "maxPods: 5", &[(name, text)], "").expect_err(name);
        assert!(error.contains(says), "{name}: {error}");
    }
    let loaded = load_dir("unknown", "", &[("a.conf", "maxpods: 5")], "").expect("loads");
    assert_eq!(
        lines(&loaded.warnings),
        ["DIR/dir/a.conf: unknown field maxpods is ignored, did you mean maxPods?"]
    );
    let missing = load_config_from(flags("--config-dir=/nowhere"), &host(), Path::new(""));
    assert_eq!(missing.expect_err("none").to_string(), "read /nowhere");
    let many: Vec<String> = (0..101).map(|n| format!("{n}.conf")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (&**name, "maxPods: 5")).collect();
    let error = load_dir("many", "", &many, "").expect_err("too many");
    assert!(error.ends_with("has more than 100 drop-ins"), "{error}");
}

#[test]
fn defaults() {
    // CONF-07 CONF-08 CONF-09 CONF-16
    let config = load("defaults", "", "").expect("defaults");
    assert_eq!(config.node_name, "board");
    assert_eq!((config.max_pods, config.pods_per_core), (110, 0));
    assert_eq!(config.ids_per_pod, 65_536);
    assert_eq!(config.times.sync, Duration::from_secs(60));
    assert_eq!(config.times.file_check, Duration::from_secs(20));
    assert_eq!(config.times.runtime_request, Duration::from_secs(120));
    assert_eq!(config.times.streaming_idle, Duration::from_hours(4));
    assert_eq!(config.times.max_restart_backoff, Duration::from_secs(300));
    assert_eq!(
        config.cgroup,
        CgroupConfig {
            tree: crate::logic::cgroup::CgroupTree {
                root: "/".into(),
                ..Default::default()
            },
            per_qos: true,
            enforce_pods: true,
            reserved_groups: Vec::new(),
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            cpu_policy: None,
            pod_pids_limit: None,
            pod_write_limit: None,
            oom_score_adj: -999,
            fail_swap_on: false,
            fail_cgroup_v1: false,
            protect_kernel_defaults: false,
            swap: SwapBehavior::NoSwap,
            memory_qos: None,
            single_process_oom_kill: None,
        }
    );
    assert_eq!(
        config.logs,
        LogConfig {
            max_size_bytes: Some(10 << 20),
            max_all_bytes: None,
            memory_bytes: None,
            max_files: 5,
            workers: 1,
            monitor_interval: Duration::from_secs(10),
        }
    );
    assert_eq!(
        config.images,
        ImageConfig {
            parallel_pulls: Some(1),
            pull_qps: 5,
            pull_burst: 10,
            bytes_per_second: None,
            registries: "/etc/picolet/registries.yaml".into(),
            credential_providers: None,
            allowed_registries: Vec::new(),
            require_digest: false,
            verification: VerificationPolicy::NotPreloaded,
            min_age: Duration::from_secs(120),
            max_age: None,
            high_percent: 85,
            low_percent: 80,
        }
    );
    assert_eq!(
        config.garbage,
        GarbageConfig {
            min_age: Duration::ZERO,
            max_per_container: Some(1),
            max_total: None
        }
    );
    assert_eq!(
        config.dirs,
        AgentDirs {
            root: "/var/lib/picolet".into(),
            run: "/run/picolet".into(),
            manifests: Some("/etc/picolet/manifests".into()),
            image_drop_in: "/var/lib/picolet/import".into(),
            pod_logs: "/var/log/pods".into(),
            container_logs: "/var/log/containers".into(),
            socket: "/run/picolet/picolet.sock".into(),
        }
    );
    assert_eq!(config.network.resolv_conf, Some("/etc/resolv.conf".into()));
    assert_eq!(config.network.builtin_subnet.to_string(), "10.85.0.0/16");
    assert!(!config.network.subnet_is_given);
    assert_eq!(config.runtime.program, Path::new("runc"));
    assert!(!config.seccomp_default && config.doorbells && config.reserved.local_storage);
}

#[test]
fn several_agents_on_one_machine() {
    let line = "--root-dir /a --run-dir /b --pod-manifest-path m --pod-logs-dir /c --container-log-dir /d --cgroup-root /e/f \
                --socket /b/s --image-dir /g --cni-conf-dir /h --cni-bin-dir /i --bridge br7 --pod-cidr 10.7.3.4/24 --oci-runtime /x/crun";
    let config = load("several", "", line).expect("flags");
    assert_eq!(
        config.dirs,
        AgentDirs {
            root: "/a".into(),
            run: "/b".into(),
            manifests: Some("/cwd/m".into()),
            image_drop_in: "/g".into(),
            pod_logs: "/c".into(),
            container_logs: "/d".into(),
            socket: "/b/s".into(),
        }
    );
    assert_eq!(config.cgroup.tree.root, "/e/f");
    assert_eq!(config.runtime.root, Path::new("/b/oci"));
    assert_eq!(config.network.builtin_subnet.to_string(), "10.7.3.0/24");
    assert!(config.network.subnet_is_given);
    assert_eq!(config.network.builtin_bridge, "br7");
    let moved = load("moved", "picolet: {rootDir: /a, runDir: /b}", "")
        .expect("file")
        .dirs;
    assert_eq!(moved.image_drop_in, Path::new("/a/import"));
    assert_eq!(moved.socket, Path::new("/b/picolet.sock"));
    assert_eq!(
        load("off", "staticPodPath: ''", "")
            .expect("off")
            .dirs
            .manifests,
        None
    );
}

#[test]
fn the_defaults_that_are_shown_are_those_that_count() {
    // SRV-13
    let plain = load("no defaults", "maxPods: 110", "").expect("a configuration");
    let shown: Value = serde_json::from_str(&plain.document).expect("JSON");
    let fields = shown.as_object().expect("an object").iter();
    let own = fields.filter(|(name, _)| !["apiVersion", "kind"].contains(&name.as_str()));
    let text: String = own
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect();
    let said = load("all defaults", &text, "").expect("a configuration");
    assert_eq!(format!("{said:#?}"), format!("{plain:#?}"));
}

#[test]
fn precedence() {
    // CONF-03
    let file = "maxPods: 5\nsyncFrequency: 10s\nfeatureGates: {MemoryQoS: true, NodeSwap: true}";
    let flags = "--max-pods 6 --feature-gates NodeSwap=false";
    let config = load("precedence", file, flags).expect("config");
    let off = load("gate off", file, "--feature-gates MemoryQoS=false").expect("config");
    assert!(off.cgroup.memory_qos.is_none(), "a flag wins for its gate");
    assert_eq!(
        (config.max_pods, config.times.sync),
        (6, Duration::from_secs(10))
    );
    // MQOS-01
    let qos = config.cgroup.memory_qos.expect("the file's gate counts");
    assert_eq!(
        qos.throttling_permille, None,
        "not slowed down unless asked"
    );
    let file = format!("{file}\nmemoryThrottlingFactor: 0.5");
    let config = load("factor", &file, "").expect("config");
    let qos = config.cgroup.memory_qos.expect("on");
    assert_eq!((qos.throttling_permille, qos.reserves), (Some(500), false));
}

#[test]
fn zero_durations() {
    // CONF-05
    let zero = "syncFrequency: 0s\nfileCheckFrequency: 0s\nruntimeRequestTimeout: 0s\nimageMinimumGCAge: 0s\n\
                imageMaximumGCAge: 0s\nshutdownGracePeriod: 0s\nshutdownGracePeriodCriticalPods: 0s\nvolumeStatsAggPeriod: 0s\n\
                streamingConnectionIdleTimeout: 0s";
    let config = load("zero", zero, "").expect("zeros are unset");
    let plain = load("plain", "", "").expect("defaults");
    assert_eq!(
        (&config.times, &config.images),
        (&plain.times, &plain.images)
    );
    for field in [
        "cpuCFSQuotaPeriod: 0s",
        "containerLogMonitorInterval: 0s",
        "crashLoopBackOff: {maxContainerRestartPeriod: 0s}",
    ] {
        assert!(load("kept", field, "").is_err(), "{field}");
    }
}

#[test]
fn eviction_defaults() {
    // CONF-10
    let signals = |text: &str| {
        let config = load("eviction", text, "").expect(text);
        let thresholds = config.eviction.settings.thresholds.iter();
        // Of a capacity of 1000.
        let shown = |t: &EvictionThreshold| {
            format!("{} {}", t.signal.name(), t.limit.amount_of_capacity(1000))
        };
        thresholds.map(shown).collect::<Vec<_>>()
    };
    assert_eq!(signals(""), Vec::<String>::new(), "no file, no default");
    assert_eq!(
        signals("maxPods: 1"),
        [
            "memory.available 104857600",
            "allocatableMemory.available 104857600",
            "nodefs.available 100",
            "nodefs.inodesFree 50",
            "imagefs.available 150",
            "imagefs.inodesFree 50",
        ]
    );
    assert_eq!(
        signals("evictionHard: {pid.available: 5%}"),
        ["pid.available 50"]
    );
    assert_eq!(
        signals("evictionHard: {pid.available: 5%}\nmergeDefaultEvictionSettings: true").len(),
        7
    );
    // Of 256 MiB a tenth, of 1 GiB as much as a kubelet keeps.
    assert_eq!(
        signals("picolet: {profile: board}"),
        [
            "memory.available 100",
            "allocatableMemory.available 100",
            "nodefs.available 100",
            "nodefs.inodesFree 50",
            "imagefs.available 100",
            "imagefs.inodesFree 50",
            "pid.available 50",
        ]
    );
    assert_eq!(
        signals("picolet: {profile: board}\nevictionHard: {pid.available: 9%}"),
        ["pid.available 90"],
        "what is said counts"
    );
}

#[test]
fn reserved_resources() {
    // CONF-13
    let text = "systemReserved: {cpu: 100m, memory: 1Gi}\nkubeReserved: {cpu: 1, pid: '10'}\nreservedSystemCPUs: 0-1,3";
    let reserved = load("reserved", text, "").expect(text).reserved;
    assert_eq!(reserved.system["cpu"].value(), 3);
    assert_eq!(reserved.kube.keys().collect::<Vec<_>>(), ["pid"]);
}

#[test]
fn the_policy_of_the_cpu_manager() {
    // CPUM-20
    let policy = |text: &str, line: &str| load("cpus", text, line).expect(text).cgroup.cpu_policy;
    assert_eq!(policy("cpuManagerPolicy: none", ""), None);
    let reserved = "cpuManagerPolicy: static\nsystemReserved: {cpu: 100m}\nkubeReserved: {cpu: 1}";
    let read = policy(reserved, "").expect("static");
    assert_eq!(read.reserved_count, 2);
    assert_eq!(read.options, CpuPolicyOptions::default());
    let line = "--cpu-manager-policy=static --reserved-cpus=0,2 \
        --cpu-manager-policy-options=full-pcpus-only=true,strict-cpu-reservation=false";
    let read = policy("", line).expect("static");
    assert_eq!(read.reserved_count, 2);
    let named = load("cpus", "", line).expect(line).reserved.cpus;
    assert_eq!(named.to_string(), "0,2");
    assert!(read.options.full_cores && !read.options.strict_reservation);
}

#[test]
fn a_negative_size_rotates_no_log() {
    // LOG-06 IGC-04
    let logs = |line: &str| load("logs", "", line).expect(line).logs.max_size_bytes;
    assert_eq!(logs("--container-log-max-size=-1"), None);
    assert_eq!(logs("--container-log-max-size=20Ki"), Some(20 << 10));
}

/// Settings that `kubeadm` writes for the kubelet, and the words of its unit.
#[test]
fn how_pods_end_with_the_machine() {
    // SHUT-01 CONF-12
    let groups = |text: &str| -> Vec<(i32, u32)> {
        let config = load("shutdown", text, "").expect(text);
        config
            .shutdown
            .iter()
            .map(|g| (g.priority, g.seconds))
            .collect()
    };
    assert_eq!(groups(""), []);
    assert_eq!(groups("shutdownGracePeriod: 0s"), []);
    let two = "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s";
    assert_eq!(groups(two), [(0, 20), (2_000_000_000, 10)]);
    let own = "shutdownGracePeriodByPodPriority:\n- {priority: 100, shutdownGracePeriodSeconds: 7}\n\
               - {priority: -5, shutdownGracePeriodSeconds: 0}";
    assert_eq!(groups(own), [(100, 7), (-5, 0)]);
}

#[test]
fn manifests_at_a_url() {
    // SRC-22
    let text = "staticPodURL: https://h/m?k=1\nstaticPodURLHeader: {b: [2], a: [1, x]}\n\
                picolet: {manifestURLCA: ca.pem}";
    let wrong = load("url", text, "").expect_err("a number");
    assert!(wrong.contains("staticPodURLHeader"), "{wrong}");
    let text = text.replace("[2]", "['2']").replace("[1,", "['1',");
    let of = |line: &str| load("url", &text, line).expect(line).manifest_url;
    let found = of("").expect("a URL");
    assert_eq!(found.url.to_string(), "https://h/m?k=1");
    let headers = [("a", "1"), ("a", "x"), ("b", "2")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    assert_eq!(found.headers, headers);
    assert!(
        found
            .ca
            .is_some_and(|ca| ca.is_absolute() && ca.ends_with("ca.pem"))
    );
    assert_eq!(found.checks, [20, 300].map(Duration::from_secs));
    let asked = of("--http-check-frequency 7s").expect("a URL");
    assert_eq!(asked.checks, [7, 7].map(Duration::from_secs));
    assert_eq!(of("--manifest-url="), None);
    let shown = load("url", &text, "").expect("config").document;
    assert!(
        shown.contains(r#""staticPodURLHeader":"<masked>""#),
        "{shown}"
    );
}

#[test]
fn the_words_of_kubeadm() {
    // CONF-19
    let text = r#"
staticPodPath: /etc/kubernetes/manifests
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s"#;
    let unit = "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
                --kubeconfig=/etc/kubernetes/kubelet.conf";
    // From the files of environment: what kubeadm puts there, and an operator.
    let more = "--register-with-taints=node-role.kubernetes.io/control-plane=:NoSchedule \
                --hostname-override=Board-1 --node-ip=10.0.0.7";
    let line = format!("{unit} {more}");
    // KADM-04 KADM-21 KADM-24 KADM-25 SVC-30: the program is called as `kubelet`.
    let endpoint = r#"containerRuntimeEndpoint: "unix:///var/run/containerd/containerd.sock""#;
    let text = text.replace(r#"containerRuntimeEndpoint: """#, endpoint);
    let loaded = load_as_kubelet("kubeadm-unit", &text, &line).expect("as kubeadm has it");
    let warnings = &loaded.warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0]
            .message
            .starts_with("containerRuntimeEndpoint unix:///")
    );
    assert!(
        warnings[1]
            .message
            .starts_with("cgroupDriver: systemd is not used")
    );
    let config = loaded.config;
    assert_eq!(config.runtime.endpoints, None);
    assert_eq!(
        config.cluster.cert_dir,
        Path::new("/var/lib/kubelet/pki"),
        "what kubeadm reset empties"
    );
    assert!(config.document.contains(r#""cgroupDriver":"cgroupfs""#));
    assert!(!config.document.contains("containerRuntimeEndpoint"));
    let more = format!(
        "{line} --use-runtime-endpoint --pod-infra-container-image=registry.k8s.io/pause:3.9"
    );
    let chosen = load_as_kubelet("kubeadm-endpoint", &text, &more).expect("chosen");
    assert!(chosen.config.runtime.endpoints.is_some());
    // CONF-18
    let mut config_of_runtime = chosen.config;
    assert_eq!(config_of_runtime.cgroup.tree.driver, CgroupDriver::Systemd);
    assert!(
        config_of_runtime
            .document
            .contains(r#""cgroupDriver":"systemd""#)
    );
    config_of_runtime.use_cgroup_driver(CgroupDriver::Cgroupfs);
    assert_eq!(config_of_runtime.cgroup.tree.driver, CgroupDriver::Cgroupfs);
    assert!(
        config_of_runtime
            .document
            .contains(r#""cgroupDriver":"cgroupfs""#)
    );
    let ignored = "--pod-infra-container-image is without effect here";
    assert!(
        chosen.warnings.iter().any(|w| w.message == ignored),
        "{:?}",
        chosen.warnings
    );
    assert_eq!(
        config.dirs.manifests,
        Some("/etc/kubernetes/manifests".into())
    );
    assert_eq!(config.node_name, "board-1");
    assert_eq!(
        config.node_ips,
        ["10.0.0.7".parse::<core::net::IpAddr>().expect("address")]
    );
    let taint = &config.node.taints[0];
    assert_eq!(
        (&*taint.key, &*taint.effect),
        ("node-role.kubernetes.io/control-plane", "NoSchedule")
    );
    let server = &config.server;
    assert_eq!(server.healthz, Some(([127, 0, 0, 1], 10248).into()));
    assert_eq!(server.listen, Some(([0, 0, 0, 0], 10250).into()));
    assert!(!server.anonymous);
    assert_eq!(server.tokens, Some(Duration::from_secs(120)));
    assert_eq!(
        server.authorization,
        Some((Duration::from_secs(300), Duration::from_secs(30)))
    );
    assert_eq!(
        server.client_ca.as_deref(),
        Some(Path::new("/etc/kubernetes/pki/ca.crt"))
    );
    // CONF-05: many zero durations, each of them the default.
    let usual = load("usual", "", "--kubeconfig=/k").expect("defaults");
    assert_eq!(config.times, usual.times);
    assert_eq!(config.images.min_age, usual.images.min_age);
    let updates = |config: &AgentConfig| (config.node.status_update, config.node.status_report);
    assert_eq!(updates(&config), updates(&usual));
}

#[test]
fn node_identity() {
    // CONF-16 CONF-17
    let config = load(
        "node",
        "",
        "--hostname-override=NODE.x --node-ip=10.0.0.1,junk,::1",
    )
    .expect("flags");
    assert_eq!(config.node_name, "node.x");
    assert_eq!(config.node_ips.len(), 2);
    let nameless = load_config_from(
        flags(""),
        &HostIdentity::default(),
        Path::new("/nonexistent/c"),
    )
    .expect_err("no name");
    assert!(
        nameless.to_string().contains("the host has no name"),
        "{nameless}"
    );
}

#[test]
fn node_object() {
    use core::time::Duration;
    let seconds = Duration::from_secs;
    let node = |text: &str, line: &str| load("node-object", text, line).map(|c| c.node);
    // CONF-07
    for (text, update, report) in [
        ("", 10, 300),
        ("nodeStatusUpdateFrequency: 30s", 30, 30),
        ("nodeStatusReportFrequency: 1m", 10, 60),
        (
            "nodeStatusUpdateFrequency: 30s\nnodeStatusReportFrequency: 10m",
            30,
            600,
        ),
        ("nodeStatusUpdateFrequency: 0s", 10, 300),
    ] {
        let node = node(text, "").expect(text);
        assert_eq!(
            (node.status_update, node.status_report),
            (seconds(update), seconds(report)),
            "{text}"
        );
    }
    // CONF-14
    let set = node(
        "nodeStatusMaxImages: -1\nnodeLeaseDurationSeconds: 80",
        "--register-node=false --provider-id=x://1 --cloud-provider=external --register-with-taints=a=b:NoSchedule",
    )
    .expect("flags");
    assert!(!set.register && set.external_cloud && set.controller_attach_detach);
    assert_eq!((&*set.provider_id, set.port), ("x://1", 10250));
    assert_eq!((set.max_images, set.lease_duration_s), (None, 80));
    assert_eq!(
        (
            &*set.taints[0].key,
            &*set.taints[0].value,
            &*set.taints[0].effect
        ),
        ("a", "b", "NoSchedule")
    );
    // CONF-15 AUTHZ-10
    for label in [
        "a=b",
        "example.com/a=",
        "kubernetes.io/arch=arm64",
        "node.kubernetes.io/instance-type=pi",
        "topology.kubernetes.io/zone=z",
        "failure-domain.beta.kubernetes.io/region=r",
        "node.kubernetes.io/anything=x",
        "sub.kubelet.kubernetes.io/x=y",
    ] {
        assert_eq!(
            node("", &format!("--node-labels={label}")).map(|n| n.labels.len()),
            Ok(1),
            "{label}"
        );
    }
    for (line, says) in [
        (
            "--node-labels=kubernetes.io/role=x",
            "picolet.nodeLabels[kubernetes.io/role]: ",
        ),
        (
            "--node-labels=node-role.kubernetes.io/master=",
            "a node may not give itself",
        ),
        (
            "--node-labels=node-restriction.kubernetes.io/a=b",
            "a node may not give itself",
        ),
        ("--node-labels=x.k8s.io/a=b", "a node may not give itself"),
        ("--node-labels=a_/b=c", "the key is not valid for a label"),
        (
            "--node-labels=a=-b",
            "\"-b\" is not valid as the value of a label",
        ),
        (
            "--register-with-taints=a:Never",
            "registerWithTaints[0].effect: is \"Never\"",
        ),
        (
            "--register-with-taints=/a:NoSchedule",
            "registerWithTaints[0].key: is \"/a\"",
        ),
        (
            "--register-with-taints=a=-:NoSchedule",
            "registerWithTaints[0].value: is \"-\"",
        ),
        (
            "--register-with-taints=a=1:NoSchedule,a=2:NoSchedule",
            "registerWithTaints[1]: has the same key and effect as another taint",
        ),
        ("--cloud-provider=aws", "picolet.cloudProvider: is \"aws\""),
    ] {
        let error = node("", line).expect_err(line);
        assert!(error.contains(says), "{line}: {error}");
    }
    // CONF-11
    let aged =
        "registerWithTaints: [{key: a, effect: NoExecute, timeAdded: '2024-01-01T00:00:00Z'}]";
    let error = node(aged, "").expect_err(aged);
    assert!(
        error.contains("registerWithTaints[0].timeAdded: must not be set"),
        "{error}"
    );
}

#[test]
fn a_budget_of_the_link() {
    // METER-02
    let cfg = |text: &str| load("link", text, "").expect("a configuration");
    assert_eq!(cfg("").link, LinkConfig::default());
    let link = cfg("picolet: {link: {dailyBytes: 50M, pullWindow: \"23:00-05:00\"}}").link;
    let budget = link.budget.expect("a budget");
    assert_eq!(budget.daily_bytes, 50_000_000);
    assert!(budget.pull_window.is_some());
}

#[test]
fn what_the_link_costs() {
    // METER-05 METER-06
    let of = |text: &str, line: &str| {
        let text = format!("picolet: {{link: {{{text}}}}}");
        load("link", &text, line).map(|cfg| cfg.link.cost)
    };
    let cost = of(
        "meteredInterfaces: [wwan0, \"ppp*\"], streamBytes: 10Mi",
        "",
    );
    let cost = cost.expect("a configuration");
    assert_eq!(cost.interfaces, ["wwan0", "ppp*"]);
    assert_eq!((cost.always, cost.stream_bytes), (false, Some(10 << 20)));
    assert!(of("", "--metered").is_ok_and(|cost| cost.always));
    let many = ["a"; 17].join(", ");
    for (text, says) in [
        ("streamBytes: 0", "streamBytes: is 0, must be more than 0"),
        ("streamBytes: -5", "streamBytes: is -5, must be more than 0"),
        (
            "meteredInterfaces: [eth0, \"\"]",
            "meteredInterfaces[1]: \"\" is empty, must be the name of an interface",
        ),
        (
            "meteredInterfaces: [0123456789abcdef]",
            "meteredInterfaces[0]: \"0123456789abcdef\" is longer than 15 bytes, as no interface's name is",
        ),
        (
            "meteredInterfaces: [a/b]",
            "meteredInterfaces[0]: \"a/b\" is no name of an interface",
        ),
        (
            &*format!("meteredInterfaces: [{many}]"),
            "meteredInterfaces: has more than 16 items",
        ),
    ] {
        let error = of(text, "").expect_err(text);
        assert!(error.contains(&format!("picolet.link.{says}")), "{error}");
    }
}

#[test]
fn variables_of_processes() {
    // PRVD-08
    let load = |more: &str| {
        let config = load("process", &format!("picolet: {{process: {{{more}}}}}"), "")?;
        Ok::<_, String>(config.runtime.process.map(|process| process.variables))
    };
    assert_eq!(load(""), Ok(None));
    assert_eq!(load("directories: [/a]"), Ok(Some(vec![])));
    let listed = Ok(Some(vec!["TZ".into(), "APP_*".into()]));
    assert_eq!(load("directories: [/a], variables: [TZ, APP_*]"), listed);
    let wrong = |more: &str| load(more).expect_err("wrong");
    assert!(wrong("variables: [TZ]").contains("must be set for picolet.process"));
    for odd in ["\"\"", "TZ=UTC"] {
        let said = wrong(&format!("directories: [/a], variables: [{odd}]"));
        assert!(said.contains("picolet.process.variables: has "), "{said}");
    }
    let many = format!("directories: [/a], variables: [{}]", "A, ".repeat(65));
    assert!(wrong(&many).contains("must have at most 64 entries"));
}

#[test]
fn refused() {
    // CONF-08 CONF-11 CONF-12 CONF-13 CONF-17
    for (text, says) in [
        (
            "maxPods: -1",
            "FILE: maxPods: is -1, must be a whole number, at least 0",
        ),
        (
            "maxPods: many",
            "FILE: maxPods: invalid type: string \"many\", expected a whole number",
        ),
        ("podsPerCore: -1", "podsPerCore: is -1"),
        (
            "syncFrequency: 5",
            "FILE: syncFrequency: invalid type: integer `5`, expected a string in quotes",
        ),
        (
            "syncFrequency: soon",
            "FILE: syncFrequency: \"soon\" is not a duration",
        ),
        (
            "syncFrequency: -5s",
            "syncFrequency: \"-5s\" is not a duration",
        ),
        (
            "picolet: {doorbells: 1}",
            "FILE: picolet.doorbells: invalid type: integer `1`, expected a boolean",
        ),
        (
            "picolet: {kubeletVersion: 1.36.0}",
            "picolet.kubeletVersion: is \"1.36.0\", must be a version such as v1.",
        ),
        (
            "picolet: {kubeletVersion: v1.36}",
            "picolet.kubeletVersion: is \"v1.36\", must be a version",
        ),
        (
            "picolet: {kubeletVersion: v1.036.0}",
            "picolet.kubeletVersion: is \"v1.036.0\", must be a version",
        ),
        (
            "picolet: {kubeletVersion: v1.36.0 x}",
            "picolet.kubeletVersion: is \"v1.36.0 x\", must be a version",
        ),
        ("cgroupDriver: other", "cgroupDriver: is \"other\""),
        (
            "containerRuntimeEndpoint: tcp://127.0.0.1:1",
            "containerRuntimeEndpoint: is \"tcp://127.0.0.1:1\", must be the socket of a runtime",
        ),
        (
            "imageServiceEndpoint: unix:///x",
            "imageServiceEndpoint: must not be set without containerRuntimeEndpoint",
        ),
        (
            "containerRuntimeEndpoint: /x\npicolet: {imagePolicy: {requireDigest: true}}",
            "picolet.imagePolicy.requireDigest: cannot be used with containerRuntimeEndpoint",
        ),
        (
            "containerRuntimeEndpoint: /x\npicolet: {handlers: {kata: /x}}",
            "picolet.handlers: cannot be used with containerRuntimeEndpoint",
        ),
        (
            "picolet: {handlers: {kata: kata-runtime}}",
            "picolet.handlers.kata: is \"kata-runtime\", must be the absolute path",
        ),
        (
            "picolet: {handlers: {a: /x, b: /x, c: /x, d: /x, e: /x, f: /x, g: /x, h: /x, i: /x, j: /x, k: /x, l: /x, \
             m: /x, n: /x, o: /x, p: /x, q: /x}}",
            "picolet.handlers: has 17 entries, must have at most 16",
        ),
        (
            "picolet: {providers: {plc: tcp://x}}",
            "picolet.providers.plc: is \"tcp://x\", must be the socket of a provider: unix:///path, up to 107 bytes",
        ),
        (
            "picolet: {providers: {plc: \"\"}}",
            "picolet.providers.plc: is empty, must be the socket of a provider",
        ),
        (
            "picolet: {providers: {PLC: /x}}",
            "picolet.providers: \"PLC\" is no name of a handler",
        ),
        (
            "picolet: {providers: {a: /x}, handlers: {a: /x}}",
            "picolet.providers.a: is in picolet.handlers too: remove one of them",
        ),
        (
            "picolet: {providers: {a: /x, b: /x, c: /x, d: /x, e: /x, f: /x, g: /x, h: /x, i: /x}}",
            "picolet.providers: has 9 entries, must have at most 8",
        ),
        (
            "picolet: {link: {dailyBytes: 0}}",
            "picolet.link.dailyBytes: is 0, must be more than 0",
        ),
        (
            "picolet: {link: {pullWindow: \"01:00-02:00\"}}",
            "picolet.link.pullWindow: needs picolet.link.dailyBytes",
        ),
        (
            "picolet: {link: {dailyBytes: 50M, pullWindow: \"1-2\"}}",
            "picolet.link.pullWindow: is \"1-2\", must be HH:MM-HH:MM, two times of a day (UTC)",
        ),
        (
            "picolet: {handlers: {Kata: /x}}",
            "picolet.handlers: \"Kata\" is no name of a handler",
        ),
        (
            "staticPodURL: ftp://x",
            "staticPodURL: is not a usable URL: it is neither http:// nor https://",
        ),
        (
            "staticPodURL: http://x\nstaticPodURLHeader: {\"a b\": [c]}",
            "staticPodURLHeader[\"a b\"]: is not an HTTP header",
        ),
        (
            "staticPodURL: http://x\npicolet: {manifestURLCA: /ca}",
            "picolet.manifestURLCA: needs a staticPodURL with https",
        ),
        ("runOnce: true", "runOnce: must be false"),
        (
            "port: 0",
            "port: is 0, must be a whole number, between 1 and 65535",
        ),
        ("healthzPort: 70000", "healthzPort: is 70000"),
        (
            "nodeLeaseDurationSeconds: 0",
            "nodeLeaseDurationSeconds: is 0",
        ),
        ("kubeAPIQPS: -1", "kubeAPIQPS: is -1"),
        ("registryBurst: -1", "registryBurst: is -1"),
        (
            "oomScoreAdj: -1001",
            "oomScoreAdj: is -1001, must be a whole number, between -1000 and 1000",
        ),
        (
            "imageGCHighThresholdPercent: 101",
            "imageGCHighThresholdPercent: is 101",
        ),
        (
            "imageGCLowThresholdPercent: 85",
            "imageGCLowThresholdPercent: is 85, must be lower than",
        ),
        (
            "imagePullCredentialsVerificationPolicy: Sometimes",
            "imagePullCredentialsVerificationPolicy: is \"Sometimes\", must be NeverVerify",
        ),
        (
            "preloadedImagesVerificationAllowlist: [busybox]",
            "preloadedImagesVerificationAllowlist: must be set only with imagePullCredentialsVerificationPolicy NeverVerifyAllowlistedImages",
        ),
        (
            "imageMaximumGCAge: 1m",
            "imageMaximumGCAge: is 60s, must be 0 or longer",
        ),
        ("cpuCFSQuotaPeriod: 2s", "cpuCFSQuotaPeriod: is 2s"),
        ("maxParallelImagePulls: 0", "maxParallelImagePulls: is 0"),
        (
            "maxParallelImagePulls: 2\nserializeImagePulls: true",
            "maxParallelImagePulls: must be 1",
        ),
        (
            "containerLogMaxFiles: 1",
            "containerLogMaxFiles: is 1, must be a whole number, at least 2",
        ),
        ("containerLogMaxWorkers: 0", "containerLogMaxWorkers: is 0"),
        (
            "containerLogMaxSize: '0'",
            "containerLogMaxSize: must not be 0",
        ),
        (
            "containerLogMonitorInterval: 2s",
            "containerLogMonitorInterval: is 2s",
        ),
        ("podLogsDir: /var/../log", "podLogsDir: is \"/var/../log\""),
        (
            "podLogsDir: /var//log",
            "podLogsDir: is \"/var//log\", must be a clean path",
        ),
        (
            "podLogsDir: /lög",
            "podLogsDir: is \"/lög\", must be a clean path",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
            "crashLoopBackOff.maxContainerRestartPeriod: is 301s",
        ),
        (
            "memoryThrottlingFactor: 1.5",
            "memoryThrottlingFactor: is 1.5",
        ),
        (
            "memoryReservationPolicy: Some",
            "memoryReservationPolicy: is \"Some\", must be \"None\" or \"TieredReservation\"",
        ),
        (
            "memoryReservationPolicy: TieredReservation",
            "memoryReservationPolicy: is \"TieredReservation\", which needs featureGates: {MemoryQoS: true}",
        ),
        (
            "featureGates: {MemoryQOS: true}",
            "featureGates.MemoryQOS: is not a feature gate of Kubernetes; only MemoryQoS",
        ),
        (
            "memorySwap: {swapBehavior: Some}",
            "memorySwap.swapBehavior: is \"Some\"",
        ),
        (
            "userNamespaces: {idsPerPod: 4294967296}",
            "userNamespaces.idsPerPod: is 4294967296, must be a multiple of 65536",
        ),
        (
            "maxPods: 2\nuserNamespaces: {idsPerPod: 2147483648}",
            "userNamespaces.idsPerPod: is 2147483648: IDs are not enough to support 2 pods",
        ),
        (
            "userNamespaces: {idsPerPod: 65537}",
            "userNamespaces.idsPerPod: is 65537",
        ),
        (
            "picolet: {profile: server}",
            "picolet.profile: is \"server\", must be empty or \"board\"",
        ),
        (
            "picolet: {logMemory: 1023Ki}",
            "picolet.logMemory: is 1047552, must be at least 1048576",
        ),
        (
            "picolet: {logMemory: 4Mi}\ncontainerRuntimeEndpoint: unix:///run/c.sock",
            "picolet.logMemory: cannot be used with containerRuntimeEndpoint",
        ),
        (
            "picolet: {devices: [{preset: i2c}, {preset: coral}]}\ncontainerRuntimeEndpoint: unix:///run/c.sock",
            "picolet.devices[1].live: cannot be used with containerRuntimeEndpoint",
        ),
        (
            "picolet: {podWriteLimit: 63Ki}",
            "picolet.podWriteLimit: is 63Ki, must be at least 64Ki",
        ),
        (
            "picolet: {podWriteLimit: -1}",
            "picolet.podWriteLimit: is -1, must be at least 64Ki",
        ),
        (
            "picolet: {podWriteLimit: 4Mi}\ncgroupsPerQOS: false\nenforceNodeAllocatable: [none]",
            "picolet.podWriteLimit: needs cgroupsPerQOS",
        ),
        (
            "picolet: {maxLogBytes: 9Mi}",
            "picolet.maxLogBytes: is 9437184, must be at least containerLogMaxSize, 10485760",
        ),
        (
            "picolet: {maxLogBytes: 9Mi}\ncontainerLogMaxSize: '-1'",
            "picolet.maxLogBytes: needs a containerLogMaxSize that is not negative",
        ),
        (
            "enforceNodeAllocatable: [pods, pods]",
            "enforceNodeAllocatable: has pods twice",
        ),
        (
            "enforceNodeAllocatable: [pods, none]",
            "enforceNodeAllocatable: must have no other item beside none",
        ),
        (
            "enforceNodeAllocatable: [all]",
            "enforceNodeAllocatable: has \"all\"",
        ),
        (
            "enforceNodeAllocatable: [pods-compressible]",
            "enforceNodeAllocatable: has \"pods-compressible\", known are none, pods, ",
        ),
        (
            "enforceNodeAllocatable: [pods, kube-reserved]",
            "kubeReservedCgroup: is missing, but kube-reserved in enforceNodeAllocatable needs it",
        ),
        (
            "enforceNodeAllocatable: [system-reserved]\nsystemReservedCgroup: system.slice",
            "systemReservedCgroup: is \"system.slice\", must be an absolute path",
        ),
        (
            "enforceNodeAllocatable: [system-reserved, system-reserved-compressible]\nsystemReservedCgroup: /a",
            "enforceNodeAllocatable: has system-reserved and system-reserved-compressible",
        ),
        (
            "enforceNodeAllocatable: [system-reserved]\nsystemReservedCgroup: /a\ncgroupsPerQOS: false",
            "enforceNodeAllocatable: must be [none] when cgroupsPerQOS is false",
        ),
        (
            "cgroupsPerQOS: false",
            "enforceNodeAllocatable: must be [none] when cgroupsPerQOS is false",
        ),
        (
            "shutdownGracePeriod: 500ms",
            "shutdownGracePeriod: is 500ms",
        ),
        (
            "shutdownGracePeriodCriticalPods: 5s",
            "shutdownGracePeriodCriticalPods: is 5s, must not be longer",
        ),
        (
            "shutdownGracePeriod: 5s\nshutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]",
            "shutdownGracePeriodByPodPriority: excludes shutdownGracePeriod",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: -1}]",
            "shutdownGracePeriodByPodPriority[0].shutdownGracePeriodSeconds: must be",
        ),
        (
            "systemReserved: {gpu: 1}",
            "systemReserved[gpu]: must be one of",
        ),
        (
            "kubeReserved: {cpu: -1}",
            "kubeReserved[cpu]: must not be negative",
        ),
        (
            "kubeReserved: {cpu: lots}",
            "kubeReserved.cpu: \"lots\" is not a quantity",
        ),
        ("reservedSystemCPUs: 3-1", "reservedSystemCPUs: is \"3-1\""),
        (
            "cpuManagerPolicy: dynamic",
            "cpuManagerPolicy: is \"dynamic\", must be \"none\" or \"static\"",
        ),
        (
            "cpuManagerPolicy: static",
            "cpuManagerPolicy: is \"static\": [cpumanager] the static policy requires systemreserved.cpu + \
             kubereserved.cpu to be greater than zero",
        ),
        (
            "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}",
            "cpuManagerPolicyOptions: needs cpuManagerPolicy: static",
        ),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: 'true'}",
            "cpuManagerPolicyOptions[align-by-socket]: is not an option here",
        ),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'maybe'}",
            "cpuManagerPolicyOptions[full-pcpus-only]: is \"maybe\", must be true or false",
        ),
        (
            "evictionHard: {memory.available: 101%}",
            "evictionHard[memory.available]: is \"101%\"",
        ),
        (
            "evictionHard: {memory.free: 1Mi}",
            "evictionHard[memory.free]: unknown signal",
        ),
        (
            "evictionSoft: {memory.available: 1Mi}",
            "evictionSoft[memory.available]: needs a grace period",
        ),
        (
            "evictionMinimumReclaim: {nodefs.available: -1Mi}",
            "evictionMinimumReclaim[nodefs.available]: is \"-1Mi\"",
        ),
        (
            "evictionMaxPodGracePeriod: -1",
            "evictionMaxPodGracePeriod: is -1, must be a whole number, at least 0",
        ),
        (
            "clusterDNS: [x]",
            "clusterDNS[0]: is \"x\", must be an IP address",
        ),
        ("podCIDR: 10.0.0.0/33", "podCIDR: is \"10.0.0.0/33\""),
        (
            "picolet: {builtinNetwork: {bridge: a/b}}",
            "picolet.builtinNetwork.bridge: is \"a/b\"",
        ),
        (
            "picolet: {builtinNetwork: {subnet: fd00::/64}}",
            "picolet.builtinNetwork.subnet: is \"fd00::/64\"",
        ),
        (
            "picolet: {hostnameOverride: a_b}",
            "picolet.hostnameOverride: node name is \"a_b\"",
        ),
        (
            "picolet: {nodeIP: '10.0.0.1,10.0.0.2'}",
            "picolet.nodeIP: is",
        ),
        ("picolet: {nodeIP: '0.0.0.0,::1'}", "picolet.nodeIP: is"),
        ("cgroupRoot: a/b", "cgroupRoot: is \"a/b\""),
        ("cgroupRoot: /a/../b", "cgroupRoot: is \"/a/../b\""),
    ] {
        let error = load("refused", text, "").expect_err(text);
        assert!(error.contains(says), "{text}: {error}");
    }
    let error = load("refused", "", "--max-pods=-1").expect_err("flag");
    assert_eq!(
        error,
        "--max-pods: maxPods: is -1, must be a whole number, at least 0"
    );
}

#[test]
fn the_rest_of_a_faulty_configuration_is_usable() {
    // CONF-22
    let scratch = TestDir::new("usable");
    let dir = scratch.join("config.d");
    fs::create_dir(&dir).expect("directory");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let write = |name: &str, text: &str| {
        fs::write(scratch.join(name), format!("{head}{text}")).expect("written");
    };
    write(
        "own.yaml",
        "staticPodPath: m\nmaxPods: many\nfeatureGates: {Nope: true}\nmemoryManagerPolicy: Static\n",
    );
    write(
        "config.d/a.conf",
        "port: 0\nreservedMemory: [{numaNode: 1}]\n",
    );
    write("config.d/b.conf", "a: [");
    let line = format!(
        "--config {0}/own.yaml --config-dir {0}/config.d --sync-frequency=1m --cgroup-root=x --vmodule=a=1",
        scratch.0.display()
    );
    let (loaded, faults) = load_usable_config(flags(&line), &host()).expect("usable");
    let show = |text: String| text.replace(&scratch.0.display().to_string(), "DIR");
    let told: Vec<String> = faults.iter().map(|e| show(e.to_string())).collect();
    let begins = [
        "DIR/config.d/b.conf: ",
        "DIR/own.yaml: maxPods: invalid type",
        "DIR/config.d/a.conf: port: is 0",
        "DIR/own.yaml: featureGates.Nope: is not a feature gate",
        "--cgroup-root: cgroupRoot: is \"x\"",
    ];
    assert_eq!(told.len(), begins.len(), "{told:?}");
    for (told, begin) in told.iter().zip(begins) {
        assert!(told.starts_with(begin), "{told}");
    }
    assert_eq!(show(faults[4].place()), "--cgroup-root");
    let config = loaded.config;
    assert_eq!(config.dirs.manifests, Some(scratch.0.join("m")));
    assert_eq!((config.max_pods, config.node.port), (110, 10250));
    let warnings: Vec<String> = lines(&loaded.warnings).into_iter().map(show).collect();
    assert_eq!(
        warnings,
        [
            "the command line: --vmodule is without effect here",
            "DIR/own.yaml: memoryManagerPolicy is without effect here",
            "DIR/config.d/a.conf: reservedMemory is without effect here",
        ]
    );
    // The host's name cannot be left out.
    let odd = HostIdentity {
        hostname: "a_b".into(),
    };
    let (loaded, faults) = load_usable_config(flags(&line), &odd).expect("usable");
    assert_eq!(
        (&*loaded.config.node_name, faults.len()),
        (STAND_IN_NAME, 6)
    );
    assert_eq!(loaded.config.dirs.manifests, Some(scratch.0.join("m")));
}

#[test]
fn files() {
    // CONF-01
    let scratch = TestDir::new("config-files");
    let missing = flags(&format!("--config {}/none.yaml", scratch.0.display()));
    let error = load_config_from(missing, &host(), Path::new("/nonexistent"))
        .expect_err("named file must exist");
    assert!(matches!(error, ConfigError::Read { .. }));
    let path = scratch.0.join("own.yaml");
    fs::write(&path, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPod: 3\nstaticPodPath: m\n").expect("write");
    let loaded = load_config_from(
        flags(&format!("--config {}", path.display())),
        &host(),
        Path::new("/nonexistent"),
    )
    .expect("loads");
    assert_eq!(
        loaded.warnings[0].message,
        "unknown field maxPod is ignored, did you mean maxPods?"
    );
    assert_eq!(loaded.config.dirs.manifests, Some(scratch.0.join("m")));
    assert_eq!(loaded.file, Some(path));
}

#[test]
fn who_is_served() {
    // CONF-06 SRV-06 BOOT-10 BOOT-13
    let alone = load("alone", "", "").expect("alone").server;
    assert_eq!(alone.listen, None);
    assert_eq!(
        alone.healthz,
        Some(([127, 0, 0, 1], 10248).into()),
        "on the loopback interface alone"
    );
    let member = load("member", "", "--kubeconfig /k")
        .expect("member")
        .server;
    assert_eq!(member.listen, Some(([0, 0, 0, 0], 10250).into()));
    assert_eq!(member.tokens, Some(Duration::from_secs(120)));
    let times = (Duration::from_secs(300), Duration::from_secs(30));
    assert_eq!(member.authorization, Some(times));
    assert_eq!(member.certificate, ServingCertificateSource::SelfSigned);
    assert!(member.debugging && !member.anonymous && !member.only_1_3);
    // What a kubelet of a cluster has is no error on a node that stands alone.
    let kubeadm = "authentication: {x509: {clientCAFile: /ca}, webhook: {enabled: true}}\nserverTLSBootstrap: true\n\
                   authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s}}";
    assert_eq!(
        load("kubeadm", kubeadm, "").expect("file").server.listen,
        None
    );
    // NLQ-01
    let logs = |text: &str| load("node logs", text, "").map(|config| config.server.node_logs);
    for (text, is_on) in [
        ("", false),
        ("enableSystemLogHandler: true\n", false),
        ("enableSystemLogQuery: true\n", true),
        (
            "enableSystemLogHandler: true\nenableSystemLogQuery: true\n",
            true,
        ),
    ] {
        assert_eq!(logs(text).expect(text), is_on, "{text}");
    }
    let text = "enableSystemLogHandler: false\nenableSystemLogQuery: true\n";
    assert!(logs(text).is_err(), "as with a kubelet");
    let text = "enableDebuggingHandlers: false\nhealthzPort: 0\naddress: 127.0.0.1\nport: 99\ntlsMinVersion: VersionTLS13\n\
                tlsCertFile: /c\ntlsPrivateKeyFile: /k\ntlsCipherSuites: [TLS_RSA_WITH_AES_128_CBC_SHA]\n\
                authentication: {x509: {clientCAFile: ca}, webhook: {cacheTTL: 1m}}";
    let line = "--authorization-mode AlwaysAllow --anonymous-auth";
    let server = load("all", text, line).expect("all").server;
    assert_eq!(server.listen, Some(([127, 0, 0, 1], 99).into()));
    assert_eq!((server.healthz, server.authorization), (None, None));
    assert_eq!(
        server.certificate,
        ServingCertificateSource::Files("/c".into(), "/k".into())
    );
    assert!(
        server
            .client_ca
            .is_some_and(|ca| ca.ends_with("ca") && ca.is_absolute())
    );
    assert!(server.anonymous && server.only_1_3 && !server.debugging && server.tokens.is_none());
    for (text, line, says) in [
        (
            "readOnlyPort: 10255",
            "",
            "readOnlyPort: this version serves nothing without authentication",
        ),
        (
            "tlsCipherSuites: [a]",
            "",
            "tlsCipherSuites[0]: is \"a\", which is not a cipher suite",
        ),
        ("tlsMinVersion: TLS1.2", "", "tlsMinVersion: is \"TLS1.2\""),
        ("tlsCertFile: /c", "", "tlsPrivateKeyFile: is missing"),
        ("tlsPrivateKeyFile: /c", "", "tlsCertFile: is missing"),
        (
            "address: localhost",
            "",
            "address: is \"localhost\", must be an IP address",
        ),
        ("healthzBindAddress: x", "", "healthzBindAddress: is \"x\""),
        (
            "authorization: {mode: RBAC}",
            "",
            "authorization.mode: is \"RBAC\"",
        ),
        (
            "enableServer: true",
            "",
            "authentication: leaves no way to know a client",
        ),
        (
            "authentication: {webhook: {enabled: true}}",
            "--enable-server",
            "authentication.webhook.enabled: needs an apiserver",
        ),
        (
            "authentication: {x509: {clientCAFile: /ca}}",
            "--enable-server",
            "authorization.mode: is Webhook, which needs an apiserver",
        ),
        (
            "authentication: {webhook: {enabled: false}}",
            "--kubeconfig /k",
            "authentication: leaves no way to know a client",
        ),
        (
            "serverTLSBootstrap: true\nauthorization: {mode: AlwaysAllow}",
            "--anonymous-auth",
            "serverTLSBootstrap: needs an apiserver",
        ),
    ] {
        let error = load("wrong", text, line).expect_err(text);
        assert!(error.contains(says), "{text}: {error}");
    }
}
