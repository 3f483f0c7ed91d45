//! Keys of the configuration document: one table that says of each its flag, its range, its default, and if it is a path.
//!
//! The parser of flags, the help, the check of the document, `/configz` and relative paths go by this table. A new key is a
//! row here and a member of [`super::file::KubeletConfiguration`].

use core::{fmt, time::Duration};

use serde_json::Value;

use super::{
    checks::{InvalidField, invalid_field},
    duration,
    flags::FlagValueKind,
};
use crate::parts;
use KeyRange::{Number, Time};

/// A key with a meaning in this program, or a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableKey {
    /// Dotted path in the document.
    pub(crate) name: &'static str,
    /// Flag that stands for the key.
    pub(super) flag: Option<&'static ConfigFlag>,
    /// Range of the value; `None`: any, or a rule of whoever reads it.
    range: Option<&'static KeyRange>,
    /// Default that `/configz` shows: JSON, or else a text; empty: none.
    default: &'static str,
    /// Set if the value is a file or a directory: a relative one is resolved against the directory of the file.
    pub(crate) is_path: bool,
    /// Set if only the operator may see the value. Such a key has no dot.
    is_secret: bool,
}

/// A flag; see [`super::flags`].
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfigFlag {
    /// Name without dashes.
    pub(super) name: &'static str,
    pub(super) kind: FlagValueKind,
    pub(super) help: &'static str,
}

/// Least and greatest value of a key.
#[derive(Clone, Copy, Debug)]
enum KeyRange {
    /// A whole number.
    Number(i64, i64),
    /// A duration.
    Time(Duration, Duration),
}

pub(super) const fn flag(
    name: &'static str,
    kind: FlagValueKind,
    help: &'static str,
) -> ConfigFlag {
    ConfigFlag { name, kind, help }
}

/// Makes the row of a key without flag, range and default.
pub(crate) const fn key(name: &'static str) -> TableKey {
    TableKey {
        name,
        flag: None,
        range: None,
        default: "",
        is_path: false,
        is_secret: false,
    }
}

impl TableKey {
    const fn flag(mut self, flag: &'static ConfigFlag) -> Self {
        self.is_path = matches!(flag.kind, FlagValueKind::Path);
        self.flag = Some(flag);
        self
    }

    const fn range(mut self, range: &'static KeyRange) -> Self {
        self.range = Some(range);
        self
    }

    const fn default(mut self, text: &'static str) -> Self {
        self.default = text;
        self
    }

    /// Default value; `None`: there is none, or it depends on the machine.
    pub(super) fn default_value(&self) -> Option<Value> {
        let value = serde_json::from_str(self.default);
        (!self.default.is_empty()).then(|| value.unwrap_or_else(|_| self.default.into()))
    }

    /// The value is a file or a directory.
    pub(crate) const fn path(mut self) -> Self {
        self.is_path = true;
        self
    }

    const fn secret(mut self) -> Self {
        self.is_secret = true;
        self
    }
}

/// Greatest number of a kubelet's fields of 32 bits.
const I32: i64 = i32::MAX as i64;

/// The table: keys with a flag in the order of the help, then the others. Ranges also stand at keys that this version does
/// not use: a kubelet would refuse the file too.
#[rustfmt::skip]
pub(super) const KEYS: &[TableKey] = &[
    key("picolet.kubeconfig").flag(&flag("kubeconfig", FlagValueKind::Path, "kubeconfig for the apiserver; without it the node is standalone")),
    key("picolet.bootstrapKubeconfig").flag(&flag("bootstrap-kubeconfig", FlagValueKind::Path, "kubeconfig to request the first client certificate with")),
    key("picolet.certDir").flag(&flag("cert-dir", FlagValueKind::Path, "certificates of the node (default pki in the root directory)")),
    key("picolet.apiServers").flag(&flag("api-servers", FlagValueKind::List, "more URLs of the same apiserver, tried in turn")),
    key("rotateCertificates").flag(&flag("rotate-certificates", FlagValueKind::Switch, "ask for a new client certificate before the old one ends")),
    key("kubeAPIQPS").range(&Number(0, I32)).default("50").flag(&flag("kube-api-qps", FlagValueKind::Number, "requests to the apiserver per second")),
    key("kubeAPIBurst").range(&Number(0, I32)).default("100").flag(&flag("kube-api-burst", FlagValueKind::Number, "requests to the apiserver at once, above that rate")),
    key("eventRecordQPS").range(&Number(0, I32)).default("50").flag(&flag("event-qps", FlagValueKind::Number, "events per second; 0: no limit")),
    key("eventBurst").range(&Number(0, I32)).default("100").flag(&flag("event-burst", FlagValueKind::Number, "events at once, above that rate")),
    key("picolet.metered").flag(&flag("metered", FlagValueKind::Switch, "bytes cost money: ask the apiserver less often")),
    key("picolet.offlineSecrets").flag(&flag("offline-secrets", FlagValueKind::Text, "disk or memory: where Secrets are kept for a start without the apiserver")),
    key("picolet.rootDir").flag(&flag("root-dir", FlagValueKind::Path, "directory for data that survives a reboot: pods, images, volumes")),
    key("picolet.runDir").flag(&flag("run-dir", FlagValueKind::Path, "directory for data that does not survive a reboot: sandboxes, containers, locks")),
    key("staticPodPath").default("/etc/picolet/manifests").flag(&flag("pod-manifest-path", FlagValueKind::Path, "directory or file of static pods")),
    key("staticPodURL").flag(&flag("manifest-url", FlagValueKind::Text, "URL of manifests of static pods: a Pod or a list of them")),
    key("staticPodURLHeader").secret().flag(&flag("manifest-url-header", FlagValueKind::Headers, "HTTP headers to send to the server of that URL")),
    key("picolet.manifestURLCA").flag(&flag("manifest-url-ca", FlagValueKind::Path, "CAs of the server of that URL (default: those of the system)")),
    key("httpCheckFrequency").default("20s").flag(&flag("http-check-frequency", FlagValueKind::Time, "time between two reads of the URL")),
    key("picolet.imageDir").flag(&flag("image-dir", FlagValueKind::Path, "directory of image archives to import and lists (.txt) of images to pull, as they appear")),
    key("podLogsDir").default("/var/log/pods").flag(&flag("pod-logs-dir", FlagValueKind::Path, "logs of containers, one directory per pod")),
    key("picolet.containerLogDir").flag(&flag("container-log-dir", FlagValueKind::Path, "links to the logs of containers")),
    key("picolet.socket").flag(&flag("socket", FlagValueKind::Path, "socket of the local commands")),
    key("picolet.hostnameOverride").flag(&flag("hostname-override", FlagValueKind::Text, "name of the node instead of the host name")),
    key("picolet.nodeExternalIP").flag(&flag("node-external-ip", FlagValueKind::Text, "external address of the node, or one of each family, in a cluster of k3s")),
    key("picolet.nodeIP").flag(&flag("node-ip", FlagValueKind::Text, "address of the node, or one of each family")),
    key("picolet.nodeLabels").flag(&flag("node-labels", FlagValueKind::Map("="), "labels of the node beside the usual ones")),
    key("registerNode").default("true").flag(&flag("register-node", FlagValueKind::Switch, "create the Node object")),
    key("registerWithTaints").flag(&flag("register-with-taints", FlagValueKind::Taints, "taints of the Node when the agent creates it")),
    key("providerID").flag(&flag("provider-id", FlagValueKind::Text, "id of this machine in its cloud")),
    key("picolet.cloudProvider").flag(&flag("cloud-provider", FlagValueKind::Text, "external: a cloud controller completes the node")),
    key("enableControllerAttachDetach").default("true").flag(&flag("enable-controller-attach-detach", FlagValueKind::Switch, "the control plane attaches volumes")),
    key("nodeStatusUpdateFrequency").default("10s").flag(&flag("node-status-update-frequency", FlagValueKind::Time, "time between two checks of the node's state")),
    key("nodeStatusMaxImages").range(&Number(-1, I32)).default("50").flag(&flag("node-status-max-images", FlagValueKind::Number, "images named in the status; -1: all")),
    key("enableServer").default("false").flag(&flag("enable-server", FlagValueKind::Switch, "serve over the network (default: if there is an apiserver; alone, with authorization mode AlwaysAllow and a client CA or anonymous clients)")),
    key("address").default("0.0.0.0").flag(&flag("address", FlagValueKind::Text, "address where the HTTPS server listens")),
    key("port").range(&Number(1, 65535)).default("10250").flag(&flag("port", FlagValueKind::Number, "port of the HTTPS server")),
    key("healthzBindAddress").default("127.0.0.1").flag(&flag("healthz-bind-address", FlagValueKind::Text, "address of /healthz in plain text")),
    key("healthzPort").range(&Number(0, 65535)).default("10248").flag(&flag("healthz-port", FlagValueKind::Number, "port of /healthz in plain text; 0: off")),
    key("authentication.x509.clientCAFile").flag(&flag("client-ca-file", FlagValueKind::Path, "CAs of clients of the HTTPS server")),
    key("authentication.anonymous.enabled").default("false").flag(&flag("anonymous-auth", FlagValueKind::Switch, "accept clients without a credential too; authorization decides what they may do")),
    key("authentication.webhook.enabled").default("false").flag(&flag("authentication-token-webhook", FlagValueKind::Switch, "the apiserver checks the tokens of clients")),
    key("authentication.webhook.cacheTTL").default("2m0s").flag(&flag("authentication-token-webhook-cache-ttl", FlagValueKind::Time, "how long that answer is cached")),
    key("authorization.mode").default("Webhook").flag(&flag("authorization-mode", FlagValueKind::Text, "Webhook: the apiserver decides what a client may do; AlwaysAllow: everything")),
    key("authorization.webhook.cacheAuthorizedTTL").default("5m0s").flag(&flag("authorization-webhook-cache-authorized-ttl", FlagValueKind::Time, "how long a permission of the apiserver is cached")),
    key("authorization.webhook.cacheUnauthorizedTTL").default("30s").flag(&flag("authorization-webhook-cache-unauthorized-ttl", FlagValueKind::Time, "how long a refusal of the apiserver is cached")),
    key("tlsCertFile").flag(&flag("tls-cert-file", FlagValueKind::Path, "certificate of the HTTPS server (default: one of its own)")),
    key("tlsPrivateKeyFile").flag(&flag("tls-private-key-file", FlagValueKind::Path, "key of that certificate")),
    key("tlsCipherSuites").flag(&flag("tls-cipher-suites", FlagValueKind::List, "cipher suites offered for TLS 1.2")),
    key("tlsMinVersion").flag(&flag("tls-min-version", FlagValueKind::Text, "VersionTLS12 or VersionTLS13")),
    key("serverTLSBootstrap").flag(&flag("rotate-server-certificates", FlagValueKind::Switch, "ask the apiserver for the certificate of the HTTPS server")),
    key("enableDebuggingHandlers").default("true").flag(&flag("enable-debugging-handlers", FlagValueKind::Switch, "serve logs, exec, attach and port-forward")),
    key("readOnlyPort").range(&Number(0, 65535)).flag(&flag("read-only-port", FlagValueKind::Number, "not supported in this version: must be 0")),
    key("streamingConnectionIdleTimeout").default("4h0m0s").flag(&flag("streaming-connection-idle-timeout", FlagValueKind::Time, "a stream without data ends after this time")),
    key("maxPods").range(&Number(0, I32)).default("110").flag(&flag("max-pods", FlagValueKind::Number, "maximum number of pods on this node")),
    key("podsPerCore").range(&Number(0, I32)).flag(&flag("pods-per-core", FlagValueKind::Number, "maximum number of pods per processor; 0: no limit")),
    key("containerRuntimeEndpoint").flag(&flag("container-runtime-endpoint", FlagValueKind::Text, "socket of a runtime that serves CRI, such as unix:///run/containerd/containerd.sock; without it the agent runs containers itself")),
    key("imageServiceEndpoint").flag(&flag("image-service-endpoint", FlagValueKind::Text, "socket of its image service (default: the same socket)")),
    key("picolet.useRuntimeEndpoint").flag(&flag("use-runtime-endpoint", FlagValueKind::Switch, "use these two sockets (default: yes; no if the program is called as kubelet)")),
    key("picolet.ociRuntime").flag(&flag("oci-runtime", FlagValueKind::Text, "OCI runtime: a path, or a name looked up in PATH")),
    key("picolet.ociRuntimeRoot").flag(&flag("oci-runtime-root", FlagValueKind::Path, "state directory given to the OCI runtime")),
    key("runtimeRequestTimeout").default("2m0s").flag(&flag("runtime-request-timeout", FlagValueKind::Time, "longest time for a runtime operation")),
    key("picolet.cniConfDir").flag(&flag("cni-conf-dir", FlagValueKind::Path, "network configurations")),
    key("picolet.cniBinDir").flag(&flag("cni-bin-dir", FlagValueKind::Path, "network plugins")),
    key("podCIDR").flag(&flag("pod-cidr", FlagValueKind::Text, "subnet of the built-in network")),
    key("picolet.builtinNetwork.bridge").flag(&flag("bridge", FlagValueKind::Text, "bridge of the built-in network")),
    key("resolvConf").default("/etc/resolv.conf").flag(&flag("resolv-conf", FlagValueKind::Path, "resolver file that pods inherit; empty: none")),
    key("clusterDNS").flag(&flag("cluster-dns", FlagValueKind::List, "name servers of pods with ClusterFirst")),
    key("clusterDomain").flag(&flag("cluster-domain", FlagValueKind::Text, "domain of the cluster")),
    key("cgroupRoot").flag(&flag("cgroup-root", FlagValueKind::Text, "cgroup in which kubepods is made")),
    key("cgroupDriver").default("cgroupfs").flag(&flag("cgroup-driver", FlagValueKind::Text, "cgroupfs or systemd: what makes cgroups, unless the container runtime reports its driver")),
    key("cgroupsPerQOS").default("true").flag(&flag("cgroups-per-qos", FlagValueKind::Switch, "one cgroup per pod and quality of service")),
    key("cpuCFSQuota").default("true").flag(&flag("cpu-cfs-quota", FlagValueKind::Switch, "enforce cpu limits")),
    key("cpuCFSQuotaPeriod").range(&Time(Duration::from_millis(1), Duration::from_secs(1))).default("100ms").flag(&flag("cpu-cfs-quota-period", FlagValueKind::Time, "period of cpu limits")),
    key("cpuManagerPolicy").default("none").flag(&flag("cpu-manager-policy", FlagValueKind::Text, "none; or static: containers of Guaranteed pods that ask for whole processors get them for themselves")),
    key("cpuManagerPolicyOptions").flag(&flag("cpu-manager-policy-options", FlagValueKind::Map("="), "options of the static policy: full-pcpus-only, strict-cpu-reservation")),
    key("podPidsLimit").range(&Number(-1, i64::MAX)).default("-1").flag(&flag("pod-max-pids", FlagValueKind::Number, "maximum number of processes per pod; -1: the host's limit")),
    key("picolet.podWriteLimit").flag(&flag("pod-write-limit", FlagValueKind::Size, "bytes per second that a pod may write to the disk of the root directory (cgroup v2)")),
    key("oomScoreAdj").range(&Number(-1000, 1000)).default("-999").flag(&flag("oom-score-adj", FlagValueKind::Number, "OOM score adjustment of the agent itself")),
    key("enforceNodeAllocatable").default(r#"["pods"]"#).flag(&flag("enforce-node-allocatable", FlagValueKind::List, "none, or what is limited: pods, system-reserved, kube-reserved")),
    key("reservedSystemCPUs").flag(&flag("reserved-cpus", FlagValueKind::Text, "processors for system and agent, such as 0-1,3")),
    key("localStorageCapacityIsolation").default("true").flag(&flag("local-storage-capacity-isolation", FlagValueKind::Switch, "the node offers ephemeral-storage")),
    key("systemReserved").flag(&flag("system-reserved", FlagValueKind::Map("="), "resources for the system, not for pods")),
    key("kubeReserved").flag(&flag("kube-reserved", FlagValueKind::Map("="), "resources for the agent, not for pods")),
    key("systemReservedCgroup").flag(&flag("system-reserved-cgroup", FlagValueKind::Text, "control group of the system, to be limited to what is reserved")),
    key("kubeReservedCgroup").flag(&flag("kube-reserved-cgroup", FlagValueKind::Text, "control group of the agent, to be limited to what is reserved")),
    key("picolet.profile").flag(&flag("profile", FlagValueKind::Text, "board: default eviction thresholds for a machine of 256 MiB to 1 GiB")),
    key("evictionHard").default(r#"{"imagefs.available":"15%","imagefs.inodesFree":"5%","memory.available":"100Mi","nodefs.available":"10%","nodefs.inodesFree":"5%"}"#).flag(&flag("eviction-hard", FlagValueKind::Map("<"), "pods are evicted at once when less than this is available")),
    key("evictionSoft").flag(&flag("eviction-soft", FlagValueKind::Map("<"), "pods are evicted when less than this is available for the grace period")),
    key("evictionSoftGracePeriod").flag(&flag("eviction-soft-grace-period", FlagValueKind::Map("="), "how long less than a soft threshold may be available")),
    key("evictionMinimumReclaim").flag(&flag("eviction-minimum-reclaim", FlagValueKind::Map("="), "how much an eviction frees beyond the threshold")),
    key("evictionMaxPodGracePeriod").range(&Number(0, I32)).flag(&flag("eviction-max-pod-grace-period", FlagValueKind::Number, "longest grace period of a pod that is evicted for a soft threshold, in seconds")),
    key("evictionPressureTransitionPeriod").default("5m0s").flag(&flag("eviction-pressure-transition-period", FlagValueKind::Time, "how long the node still reports pressure after the pressure has ended")),
    key("picolet.evictStaticPods").flag(&flag("evict-static-pods", FlagValueKind::Switch, "static pods may be evicted too, except those with a system priority")),
    key("seccompDefault").default("false").flag(&flag("seccomp-default", FlagValueKind::Switch, "RuntimeDefault for containers that name no profile")),
    key("allowedUnsafeSysctls").flag(&flag("allowed-unsafe-sysctls", FlagValueKind::List, "sysctls or patterns (prefix*) pods may set")),
    key("failSwapOn").default("false").flag(&flag("fail-swap-on", FlagValueKind::Switch, "refuse to start while swap is on")),
    key("failCgroupV1").default("false").flag(&flag("fail-cgroupv1", FlagValueKind::Switch, "refuse to start on cgroup v1")),
    key("protectKernelDefaults").flag(&flag("protect-kernel-defaults", FlagValueKind::Switch, "do not change kernel settings; refuse to start if they are not as required")),
    key("runOnce").flag(&flag("runonce", FlagValueKind::Switch, "not supported in this version: must be false")),
    key("volumeStatsAggPeriod").default("1m0s").flag(&flag("volume-stats-agg-period", FlagValueKind::Time, "time between two measurements of the use of volumes")),
    key("syncFrequency").default("1m0s").flag(&flag("sync-frequency", FlagValueKind::Time, "longest time between two syncs of a pod")),
    key("fileCheckFrequency").default("20s").flag(&flag("file-check-frequency", FlagValueKind::Time, "time between two reads of the manifests")),
    key("picolet.doorbells").flag(&flag("doorbells", FlagValueKind::Switch, "react to notifications too, not only poll")),
    key("containerLogMaxSize").default("10Mi").flag(&flag("container-log-max-size", FlagValueKind::Size, "size at which a log is rotated")),
    key("containerLogMaxFiles").range(&Number(2, I32)).default("5").flag(&flag("container-log-max-files", FlagValueKind::Number, "files per log, the current one included")),
    key("picolet.maxLogBytes").flag(&flag("max-log-bytes", FlagValueKind::Size, "maximum size of all logs together; above it, the largest log loses its oldest files")),
    key("picolet.logMemory").flag(&flag("log-memory", FlagValueKind::Size, "memory that all logs may use before they are written to the disk (default: none)")),
    key("imageGCHighThresholdPercent").range(&Number(0, 100)).default("85").flag(&flag("image-gc-high-threshold", FlagValueKind::Number, "disk use in percent at which unused images are removed")),
    key("imageGCLowThresholdPercent").range(&Number(0, 100)).default("80").flag(&flag("image-gc-low-threshold", FlagValueKind::Number, "disk use in percent at which the removal stops")),
    key("imageMinimumGCAge").default("2m0s").flag(&flag("minimum-image-ttl-duration", FlagValueKind::Time, "an unused image stays at least this long")),
    key("picolet.registriesFile").flag(&flag("private-registry", FlagValueKind::Path, "mirrors, credentials and TLS of registries, in the format of k3s")),
    key("picolet.imageCredentialProviderConfig").flag(&flag("image-credential-provider-config", FlagValueKind::Path, "configuration of credential plugins")),
    key("picolet.imageCredentialProviderBinDir").flag(&flag("image-credential-provider-bin-dir", FlagValueKind::Path, "directory of the credential plugins")),
    key("picolet.imagePullBandwidth").flag(&flag("image-pull-bandwidth", FlagValueKind::Size, "bytes per second of all image pulls; 0: no limit")),
    key("registryPullQPS").range(&Number(0, I32)).default("5").flag(&flag("registry-qps", FlagValueKind::Number, "image pulls per second; 0: no limit")),
    key("registryBurst").range(&Number(0, I32)).default("10").flag(&flag("registry-burst", FlagValueKind::Number, "image pulls at once, above that rate")),
    key("maxParallelImagePulls").range(&Number(1, I32)).flag(&flag("max-parallel-image-pulls", FlagValueKind::Number, "images that are pulled at a time")),
    key("serializeImagePulls").default("true").flag(&flag("serialize-image-pulls", FlagValueKind::Switch, "pull one image at a time")),
    key("picolet.minimumContainerTTLDuration").flag(&flag("minimum-container-ttl-duration", FlagValueKind::Time, "a dead container stays at least this long")),
    key("picolet.maximumDeadContainersPerContainer").flag(&flag("maximum-dead-containers-per-container", FlagValueKind::Number, "dead instances kept per container")),
    key("picolet.maximumDeadContainers").flag(&flag("maximum-dead-containers", FlagValueKind::Number, "dead instances kept in all; -1: no limit")),
    key("featureGates").flag(&flag("feature-gates", FlagValueKind::Gates, "features; only MemoryQoS has an effect")),
    key("logging.verbosity").flag(&flag("v", FlagValueKind::Number, "log level: 0 to 1 info, 2 to 4 debug, 5 and more trace")),

    key("configMapAndSecretChangeDetectionStrategy").default("Cache"),
    key("containerLogMaxWorkers").range(&Number(1, I32)).default("1"),
    key("containerLogMonitorInterval").range(&Time(Duration::from_secs(3), Duration::MAX)).default("10s"),
    key("crashLoopBackOff.maxContainerRestartPeriod").range(&Time(Duration::from_secs(1), Duration::from_secs(300))).default("5m0s"),
    key("imageMaximumGCAge").default("0s"),
    key("imagePullCredentialsVerificationPolicy").default("NeverVerifyPreloadedImages"),
    key("maxOpenFiles").range(&Number(0, i64::MAX)),
    key("memoryThrottlingFactor"),
    key("nodeLeaseDurationSeconds").range(&Number(1, I32)).default("40"),
    key("nodeStatusReportFrequency").default("5m0s"), key("picolet.k3sPasswordFile").path(), key("picolet.networkKubeconfig").path(),
    key("shutdownGracePeriod").default("0s"),
    key("shutdownGracePeriodCriticalPods").default("0s"), key("volumePluginDir").path(),
];

/// Keys without a rule in the table, of which many mean nothing here: a kubelet's file loads without noise. With
/// [`KEYS`] these are all fields of KubeletConfiguration v1beta1 in 1.36 and of `picolet`. Maps with free keys are one entry.
#[rustfmt::skip]
const PLAIN: &[&str] = &[
    "apiVersion", "contentType", "cpuManagerReconcilePeriod",
    "enableContentionProfiling", "enableDebugFlagsHandler", "enableProfilingHandler", "enableSystemLogHandler",
    "enableSystemLogQuery", "hairpinMode", "iptablesDropBit",
    "iptablesMasqueradeBit", "kernelMemcgNotification", "kind", "kubeletCgroups", "logging", "makeIPTablesUtilChains",
    "memoryManagerPolicy", "memoryReservationPolicy", "memorySwap.swapBehavior", "mergeDefaultEvictionSettings",
    "picolet.builtinNetwork.subnet", "picolet.handlers", "picolet.imagePolicy.allowedRegistries",
    "picolet.imagePolicy.requireDigest", "picolet.k3sServer", "picolet.kubeletVersion", "picolet.link.dailyBytes",
    "picolet.link.meteredInterfaces", "picolet.link.pullWindow", "picolet.link.streamBytes",
    "picolet.process.allowRoot", "picolet.process.directories", "picolet.process.variables",
    "preloadedImagesVerificationAllowlist", "qosReserved",
    "registerWithTaints.effect", "registerWithTaints.key", "registerWithTaints.timeAdded", "registerWithTaints.value",
    "reservedMemory", "showHiddenMetricsForVersion", "shutdownGracePeriodByPodPriority", "singleProcessOOMKill",
    "systemCgroups", "tlsCurvePreferences", "topologyManagerPolicy", "topologyManagerPolicyOptions",
    "topologyManagerScope", "tracing", "userNamespaces.idsPerPod",
];

/// Place of a field in the tables.
pub(super) enum KeyPlace {
    /// Known field; fields below it are not checked.
    Leaf,
    /// Known field with known fields below it.
    Branch,
    No,
}

/// Finds a field by its dotted path without indices.
pub(super) fn find_key_place(pattern: &str) -> KeyPlace {
    let is_above = |name: &str| {
        let rest = name.strip_prefix(pattern);
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    if PLAIN.contains(&pattern) {
        KeyPlace::Leaf
    } else if key_names().any(is_above) {
        KeyPlace::Branch
    } else if all_keys().any(|key| key.name == pattern) {
        KeyPlace::Leaf
    } else {
        KeyPlace::No
    }
}

/// Lists the rows of this table and of parts.
pub(super) fn all_keys() -> impl Iterator<Item = &'static TableKey> {
    KEYS.iter().chain(parts::part_keys())
}

/// Finds the flag that sets a field, or a map or list that has it.
pub(super) fn find_flag(field: &str) -> Option<&'static str> {
    let has = |key: &&TableKey| {
        let rest = field.strip_prefix(key.name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let flag = all_keys().filter(has).find_map(|key| key.flag);
    flag.map(|flag| flag.name)
}

/// Lists the names of all keys.
pub(super) fn key_names() -> impl Iterator<Item = &'static str> {
    PLAIN.iter().copied().chain(all_keys().map(|key| key.name))
}

/// Lists the keys whose values only the operator may see.
pub(crate) fn secret_keys() -> impl Iterator<Item = &'static str> {
    let secret = all_keys().filter(|key| key.is_secret);
    secret.map(|key| key.name)
}

/// Checks that the values of a document are in their ranges. Values of the wrong kind have been refused before.
pub(super) fn check_ranges(document: &Value) -> Result<(), InvalidField> {
    for key in all_keys() {
        let names = key.name.split('.');
        let value = names.fold(document, |value, name| &value[name]);
        match key.range {
            _ if value.is_null() => {}
            Some(&Number(low, high))
                if !value.as_i64().is_some_and(|n| (low..=high).contains(&n)) =>
            {
                let high = (high < I32).then_some(high);
                let message = format!("is {value}, must be a whole number, {}", bounds(low, high));
                return invalid_field(key.name, message);
            }
            Some(&Time(low, high)) => {
                let time = value.as_str().and_then(duration::parse_go_duration);
                if let Some(time) = time.filter(|time| !(low..=high).contains(time)) {
                    let high = (high < Duration::MAX).then_some(high);
                    let message = format!("is {time:?}, must be {}", bounds(low, high));
                    return invalid_field(key.name, message);
                }
            }
            Some(Number(..)) | None => {}
        }
    }
    Ok(())
}

/// Bounds of a range, for people.
fn bounds(low: impl fmt::Debug, high: Option<impl fmt::Debug>) -> String {
    match high {
        Some(high) => format!("between {low:?} and {high:?}"),
        None => format!("at least {low:?}"),
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_is_sound() {
        let mut names = BTreeSet::new();
        for name in key_names() {
            assert!(names.insert(name), "{name}");
        }
        let dotted = secret_keys().find(|name| name.contains('.'));
        assert_eq!(dotted, None);
        assert!(secret_keys().eq(["staticPodURLHeader"]));
    }

    #[test]
    fn defaults_are_in_their_ranges() {
        for key in all_keys() {
            let value = key.default_value().unwrap_or_default();
            let document = key.name.rsplit('.').fold(value, |value, part| {
                let mut above = Value::Null;
                above[part] = value;
                above
            });
            assert!(check_ranges(&document).is_ok(), "{document}");
        }
    }
}
