//! Containers: names, ports, environment, mounts, probes, lifecycle.

use alloc::{collections::BTreeSet, vec::Vec};

use super::field::{
    FieldErrors, config_key, dns_label, dns_subdomain, env_name, port_name, qualified_name,
};
use super::volume::validate_sub_path;
use super::{UniqueNames, resources, security};
use crate::api::Quantity;
use crate::api::cri::{STOP_SIGNALS, stop_signal_number};
use crate::api::pod::{
    Container, EnvFromSource, EnvVar, EnvVarSource, ExecAction, FieldRef, HttpGetAction,
    IntOrString, Lifecycle, LifecycleHandler, PodSpec, Probe, ResourceFieldRef, RestartPolicy,
    TcpSocketAction, VolumeMount,
};

/// Bytes of an image's name. Upstream has no limit; no reference is longer, and statuses and events repeat the name.
const MAX_IMAGE_BYTES: usize = 4096;
/// Rules of a container for its restarts.
const MAX_RESTART_RULES: usize = 20;
/// Exit codes of a rule; there may be none, and every exit is `NotIn` them.
const MAX_EXIT_CODES: usize = 255;
/// Longest key in a file for a `fileKeyRef`, bytes. Source: KEP-3721.
const MAX_FILE_KEY_BYTES: usize = 128;
/// Values of `imagePullPolicy`.
pub(super) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
/// `fieldPath` of an environment variable.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// `fieldPath` of a file in a downward API volume.
pub(super) const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// Detail of the error if an init container that runs to its end has probes or hooks.
const NOT_FOR_INIT: &str = "may not be set for init containers without restartPolicy=Always";
const IN_PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

#[derive(Clone, Copy, PartialEq, Eq)]
enum ContainerRole {
    Init,
    Sidecar,
    Regular,
}

struct ContainerContext<'a> {
    spec: &'a PodSpec,
    volumes: &'a BTreeSet<&'a str>,
}

/// Checks all containers; `volumes` are the names of the pod's volumes.
pub(super) fn validate_containers(
    spec: &PodSpec,
    volumes: &BTreeSet<&str>,
    errors: &mut FieldErrors,
) {
    let context = ContainerContext { spec, volumes };
    let mut names = UniqueNames::default();
    let mut host_ports = BTreeSet::new();
    if spec.containers.is_empty() {
        errors.required("spec.containers", "");
    }
    for (n, container) in spec.containers.iter().enumerate() {
        let path = format!("spec.containers[{n}]");
        names.check_unique(&format!("{path}.name"), &container.name, errors);
        context.validate_container(
            container,
            ContainerRole::Regular,
            &path,
            &mut host_ports,
            errors,
        );
    }
    for (n, container) in spec.init_containers.iter().enumerate() {
        let path = format!("spec.initContainers[{n}]");
        names.check_unique(&format!("{path}.name"), &container.name, errors);
        let role = if container.is_sidecar() {
            ContainerRole::Sidecar
        } else {
            ContainerRole::Init
        };
        // Plain init containers run one after the other, and ports of sidecars are not mapped (CFG-12): each may use
        // the same port.
        let mut own = BTreeSet::new();
        context.validate_container(container, role, &path, &mut own, errors);
    }
    if !spec.ephemeral_containers.is_empty() {
        errors.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
}

type HostPorts<'a> = BTreeSet<(&'a str, &'a str, u16)>;

impl ContainerContext<'_> {
    fn validate_container<'c>(
        &self,
        container: &'c Container,
        role: ContainerRole,
        path: &str,
        host_ports: &mut HostPorts<'c>,
        errors: &mut FieldErrors,
    ) {
        errors.check_name(&format!("{path}.name"), &container.name, dns_label);
        if container.image.is_empty() {
            errors.required(&format!("{path}.image"), "");
        } else if container.image.len() > MAX_IMAGE_BYTES {
            let detail = format!("may not be more than {MAX_IMAGE_BYTES} bytes");
            errors.forbidden(&format!("{path}.image"), &detail);
        } else if container.image.trim() != container.image {
            errors.invalid(
                &format!("{path}.image"),
                &container.image,
                "must not have leading or trailing whitespace",
            );
        }
        errors.require_one_of(
            &format!("{path}.imagePullPolicy"),
            &container.image_pull_policy,
            &PULL_POLICIES,
        );
        errors.require_one_of(
            &format!("{path}.terminationMessagePolicy"),
            &container.termination_message_policy,
            &["FallbackToLogsOnError", "File"],
        );
        self.validate_ports(container, role, path, host_ports, errors);
        for (n, env) in container.env.iter().enumerate() {
            validate_env_var(env, self.spec, &format!("{path}.env[{n}]"), errors);
        }
        for (n, source) in container.env_from.iter().enumerate() {
            validate_env_source(source, &format!("{path}.envFrom[{n}]"), errors);
        }
        self.validate_mounts(container, path, errors);
        if !container.volume_devices.is_empty() {
            errors.forbidden(
                &format!("{path}.volumeDevices"),
                "block volumes need a PersistentVolumeClaim, which this version does not support",
            );
        }
        for (name, probe) in [
            ("livenessProbe", &container.liveness_probe),
            ("readinessProbe", &container.readiness_probe),
            ("startupProbe", &container.startup_probe),
        ] {
            if let Some(probe) = probe {
                let path = format!("{path}.{name}");
                if role == ContainerRole::Init {
                    errors.forbidden(&path, NOT_FOR_INIT);
                } else {
                    validate_probe(probe, name, &path, errors);
                }
            }
        }
        if let Some(lifecycle) = &container.lifecycle {
            let path = format!("{path}.lifecycle");
            if role == ContainerRole::Init {
                errors.forbidden(&path, NOT_FOR_INIT);
            } else {
                self.validate_lifecycle(lifecycle, &path, errors);
            }
        }
        self.validate_restart_policy(container, path, errors);
        self.validate_resize_policy(container, role, path, errors);
        let resources = format!("{path}.resources");
        resources::validate_container_resources(&container.resources, &resources, errors);
        let whole = self.spec.resources.as_ref();
        resources::validate_huge_pages(&container.resources, whole, &resources, errors);
        security::validate_container_security(container, self.spec, path, errors);
    }

    fn validate_ports<'c>(
        &self,
        container: &'c Container,
        role: ContainerRole,
        path: &str,
        host_ports: &mut HostPorts<'c>,
        errors: &mut FieldErrors,
    ) {
        let mut names = UniqueNames::default();
        for (n, port) in container.ports.iter().enumerate() {
            let path = format!("{path}.ports[{n}]");
            if !port.name.is_empty() {
                errors.check_name(&format!("{path}.name"), &port.name, port_name);
                names.check_unique(&format!("{path}.name"), &port.name, errors);
            }
            if port.container_port == 0 {
                errors.required(&format!("{path}.containerPort"), "");
            }
            errors.require_one_of(
                &format!("{path}.protocol"),
                &port.protocol,
                &["SCTP", "TCP", "UDP"],
            );
            if !port.host_ip.is_empty() {
                super::validate_ip(&format!("{path}.hostIP"), &port.host_ip, errors);
            }
            if port.host_port == 0 {
                continue;
            }
            let on_host = self.spec.host_network && role == ContainerRole::Regular;
            if on_host && port.host_port != port.container_port {
                errors.invalid(
                    &format!("{path}.hostPort"),
                    port.host_port,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
            if !host_ports.insert((&port.protocol, &port.host_ip, port.host_port)) {
                errors.duplicate(
                    &format!("{path}.hostPort"),
                    format_args!("{}/{}/{}", port.protocol, port.host_ip, port.host_port),
                );
            }
        }
    }

    fn validate_mounts(&self, container: &Container, path: &str, errors: &mut FieldErrors) {
        let privileged = container
            .security_context
            .as_ref()
            .is_some_and(|c| c.privileged == Some(true));
        let mut targets = BTreeSet::new();
        for (n, mount) in container.volume_mounts.iter().enumerate() {
            let path = format!("{path}.volumeMounts[{n}]");
            if mount.name.is_empty() {
                errors.required(&format!("{path}.name"), "");
            } else if !self.volumes.contains(mount.name.as_str()) {
                errors.not_found(&format!("{path}.name"), &mount.name);
            }
            let target = format!("{path}.mountPath");
            if mount.mount_path.is_empty() {
                errors.required(&target, "");
            } else if !targets.insert(mount.mount_path.as_str()) {
                errors.invalid(&target, &mount.mount_path, "must be unique");
            }
            validate_mount(mount, privileged, &path, errors);
        }
    }

    fn validate_lifecycle(&self, lifecycle: &Lifecycle, path: &str, errors: &mut FieldErrors) {
        let grace = self.spec.termination_grace_period_seconds.unwrap_or(0);
        for (name, hook) in [
            ("postStart", &lifecycle.post_start),
            ("preStop", &lifecycle.pre_stop),
        ] {
            if let Some(hook) = hook {
                let path = format!("{path}.{name}");
                let LifecycleHandler {
                    exec,
                    http_get,
                    tcp_socket,
                    sleep,
                } = hook;
                let set = [
                    exec.is_some(),
                    http_get.is_some(),
                    tcp_socket.is_some(),
                    sleep.is_some(),
                ];
                require_one_handler(&set, &path, errors);
                exec.iter()
                    .for_each(|a| validate_exec_action(a, &path, errors));
                http_get
                    .iter()
                    .for_each(|a| validate_http_action(a, &path, errors));
                tcp_socket
                    .iter()
                    .for_each(|a| validate_tcp_action(a, &path, errors));
                if let Some(sleep) = sleep
                    && !(0..=grace).contains(&sleep.seconds)
                {
                    errors.invalid(
                        &format!("{path}.sleep"),
                        sleep.seconds,
                        &format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})"),
                    );
                }
            }
        }
        if let Some(signal) = &lifecycle.stop_signal
            && stop_signal_number(signal) == 0
        {
            let real_time = ["SIGRTMIN to SIGRTMIN+15", "SIGRTMAX-14 to SIGRTMAX"];
            let known: Vec<&str> = STOP_SIGNALS.into_iter().chain(real_time).collect();
            errors.require_one_of(&format!("{path}.stopSignal"), signal, &known);
        }
    }

    fn validate_restart_policy(&self, container: &Container, path: &str, errors: &mut FieldErrors) {
        if !container.restart_policy_rules.is_empty() && container.restart_policy.is_none() {
            errors.required(
                &format!("{path}.restartPolicy"),
                "must specify restartPolicy when restart rules are used",
            );
        }
        if container.restart_policy_rules.len() > MAX_RESTART_RULES {
            errors.invalid(
                &format!("{path}.restartPolicyRules"),
                container.restart_policy_rules.len(),
                "must not have more than 20 rules",
            );
        }
        for (n, rule) in container.restart_policy_rules.iter().enumerate() {
            let path = format!("{path}.restartPolicyRules[{n}]");
            errors.require_one_of(
                &format!("{path}.action"),
                &rule.action,
                &["Restart", "RestartAllContainers"],
            );
            match &rule.exit_codes {
                None => errors.required(&format!("{path}.exitCodes"), "must be specified"),
                Some(codes) => {
                    errors.require_one_of(
                        &format!("{path}.exitCodes.operator"),
                        &codes.operator,
                        &["In", "NotIn"],
                    );
                    if codes.values.len() > MAX_EXIT_CODES {
                        errors.invalid(
                            &format!("{path}.exitCodes.values"),
                            codes.values.len(),
                            "must not have more than 255 values",
                        );
                    }
                }
            }
        }
    }

    /// Checks what a resize would do to a container, although pods are not resized here (RSZ-04).
    fn validate_resize_policy(
        &self,
        container: &Container,
        role: ContainerRole,
        path: &str,
        errors: &mut FieldErrors,
    ) {
        let path = format!("{path}.resizePolicy");
        let mut names = UniqueNames::default();
        for (n, policy) in container.resize_policy.iter().enumerate() {
            let path = format!("{path}[{n}]");
            let name = policy.resource_name.as_str();
            errors.require_one_of(&format!("{path}.resourceName"), name, &["cpu", "memory"]);
            names.check_unique(&format!("{path}.resourceName"), name, errors);
            let known: &[&str] = match self.spec.restart_policy {
                RestartPolicy::Never => &["NotRequired"],
                RestartPolicy::Always | RestartPolicy::OnFailure => {
                    &["NotRequired", "RestartContainer"]
                }
            };
            let path = format!("{path}.restartPolicy");
            errors.require_one_of(&path, &policy.restart_policy, known);
            if role == ContainerRole::Init && policy.restart_policy == "RestartContainer" {
                errors.invalid(
                    &path,
                    &policy.restart_policy,
                    "must not be 'RestartContainer' for init containers without restartPolicy=Always",
                );
            }
        }
    }
}

fn validate_mount(mount: &VolumeMount, privileged: bool, path: &str, errors: &mut FieldErrors) {
    validate_sub_path(&format!("{path}.subPath"), &mount.sub_path, errors);
    validate_sub_path(&format!("{path}.subPathExpr"), &mount.sub_path_expr, errors);
    if !mount.sub_path.is_empty() && !mount.sub_path_expr.is_empty() {
        errors.invalid(
            &format!("{path}.subPathExpr"),
            &mount.sub_path_expr,
            "subPathExpr and subPath are mutually exclusive",
        );
    }
    if let Some(propagation) = &mount.mount_propagation {
        let path = format!("{path}.mountPropagation");
        errors.require_one_of(
            &path,
            propagation,
            &["Bidirectional", "HostToContainer", "None"],
        );
        if propagation == "Bidirectional" && !privileged {
            errors.forbidden(
                &path,
                "Bidirectional mount propagation is available only to privileged containers",
            );
        }
    }
    if let Some(mode) = &mount.recursive_read_only {
        let path = format!("{path}.recursiveReadOnly");
        errors.require_one_of(&path, mode, &["Disabled", "Enabled", "IfPossible"]);
        if mode == "Disabled" {
            return;
        }
        if !mount.read_only {
            errors.forbidden(&path, "may only be specified when readOnly is true");
        }
        if mount
            .mount_propagation
            .as_deref()
            .is_some_and(|p| p != "None")
        {
            errors.forbidden(
                &path,
                "may only be specified when mountPropagation is None or not specified",
            );
        }
    }
}

fn validate_env_var(env: &EnvVar, spec: &PodSpec, path: &str, errors: &mut FieldErrors) {
    errors.check_name(&format!("{path}.name"), &env.name, env_name);
    let Some(source) = &env.value_from else {
        return;
    };
    let path = format!("{path}.valueFrom");
    let EnvVarSource {
        field_ref,
        resource_field_ref,
        config_map_key_ref,
        secret_key_ref,
        file_key_ref,
    } = source;
    let set = usize::from(field_ref.is_some())
        + usize::from(resource_field_ref.is_some())
        + usize::from(config_map_key_ref.is_some())
        + usize::from(secret_key_ref.is_some())
        + usize::from(file_key_ref.is_some());
    if set == 0 {
        errors.invalid(
            &path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if !env.value.is_empty() {
        errors.invalid(&path, "", "may not be specified when `value` is not empty");
    } else if set > 1 {
        errors.invalid(
            &path,
            "",
            "may not have more than one field specified at a time",
        );
    }
    if let Some(field) = field_ref {
        validate_field_ref(field, &ENV_FIELDS, &format!("{path}.fieldRef"), errors);
    }
    if let Some(resource) = resource_field_ref {
        validate_resource_ref(resource, false, &format!("{path}.resourceFieldRef"), errors);
    }
    for (kind, key) in [
        ("configMapKeyRef", config_map_key_ref),
        ("secretKeyRef", secret_key_ref),
    ] {
        if let Some(key) = key {
            let path = format!("{path}.{kind}");
            errors.check_name(&format!("{path}.name"), &key.name, dns_subdomain);
            errors.check_name(&format!("{path}.key"), &key.key, config_key);
        }
    }
    if let Some(file) = file_key_ref {
        let path = format!("{path}.fileKeyRef");
        let key = format!("{path}.key");
        errors.check_name(&key, &file.key, env_name);
        if file.key.len() > MAX_FILE_KEY_BYTES {
            let detail = format!("may not be more than {MAX_FILE_KEY_BYTES} bytes");
            errors.invalid(&key, &file.key, &detail);
        }
        super::validate_payload_path(&format!("{path}.path"), &file.path, errors);
        let mut volumes = spec.volumes.iter();
        let path = format!("{path}.volumeName");
        match volumes.find(|volume| volume.name == file.volume_name) {
            None => errors.not_found(&path, &file.volume_name),
            Some(volume) if volume.empty_dir.is_none() => {
                errors.invalid(&path, &file.volume_name, "must be an emptyDir");
            }
            Some(_) => {}
        }
    }
}

fn validate_env_source(source: &EnvFromSource, path: &str, errors: &mut FieldErrors) {
    if !source.prefix.is_empty()
        && let Some(detail) = env_name(&source.prefix)
    {
        errors.invalid(&format!("{path}.prefix"), &source.prefix, detail);
    }
    match (&source.config_map_ref, &source.secret_ref) {
        (None, None) => errors.invalid(
            path,
            "",
            "must specify one of: `configMapRef` or `secretRef`",
        ),
        (Some(_), Some(_)) => {
            errors.invalid(
                path,
                "",
                "may not have more than one field specified at a time",
            );
        }
        (Some(object), None) => {
            errors.check_name(
                &format!("{path}.configMapRef.name"),
                &object.name,
                dns_subdomain,
            );
        }
        (None, Some(object)) => {
            errors.check_name(
                &format!("{path}.secretRef.name"),
                &object.name,
                dns_subdomain,
            );
        }
    }
}

/// Checks a downward API field; `known` are the plain paths, `metadata.labels['k']` and the like always count.
pub(super) fn validate_field_ref(
    field: &FieldRef,
    known: &[&str],
    path: &str,
    errors: &mut FieldErrors,
) {
    if field.api_version != "v1" {
        errors.require_one_of(&format!("{path}.apiVersion"), &field.api_version, &["v1"]);
    }
    let path = format!("{path}.fieldPath");
    if field.field_path.is_empty() {
        errors.required(&path, "");
        return;
    }
    let subscript = field
        .field_path
        .strip_suffix("']")
        .and_then(|rest| rest.split_once("['"));
    match subscript {
        Some(("metadata.labels" | "metadata.annotations", key)) => {
            if let Some(detail) = qualified_name(&key.to_ascii_lowercase()) {
                errors.invalid(&path, key, detail);
            }
        }
        Some((other, _)) => {
            errors.invalid(&path, other, "does not support subscript");
        }
        None => errors.require_one_of(&path, &field.field_path, known),
    }
}

/// Checks a resource field; in a volume the container must be named.
pub(super) fn validate_resource_ref(
    resource: &ResourceFieldRef,
    in_volume: bool,
    path: &str,
    errors: &mut FieldErrors,
) {
    if in_volume && resource.container_name.is_empty() {
        errors.required(&format!("{path}.containerName"), "");
    }
    if resource.resource.is_empty() {
        errors.required(&format!("{path}.resource"), "");
        return;
    }
    let huge = ["limits.hugepages-", "requests.hugepages-"]
        .iter()
        .any(|p| resource.resource.starts_with(p));
    if !huge {
        errors.require_one_of(
            &format!("{path}.resource"),
            &resource.resource,
            &RESOURCE_FIELDS,
        );
    }
    let Some(divisor) = resource.divisor.as_ref().filter(|d| d.milli_value() != 0) else {
        return;
    };
    let allowed: &[&str] = if resource.resource.ends_with(".cpu") {
        &["1m", "1"]
    } else {
        &[
            "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
        ]
    };
    if !allowed.contains(&divisor.as_str()) {
        errors.require_one_of(
            &format!("{path}.divisor"),
            canonical_quantity(divisor).as_str(),
            allowed,
        );
    }
}

/// The amount as an apiserver writes it once it has read it: `1Mi` for `1024Ki`.
fn canonical_quantity(amount: &Quantity) -> Quantity {
    if amount.as_str().ends_with('i') {
        Quantity::from_binary_units(amount.value())
    } else {
        Quantity::from_decimal_milli(amount.milli_value())
    }
}

fn validate_probe(probe: &Probe, name: &str, path: &str, errors: &mut FieldErrors) {
    let Probe {
        exec,
        http_get,
        tcp_socket,
        grpc,
        ..
    } = probe;
    let set = [
        exec.is_some(),
        http_get.is_some(),
        tcp_socket.is_some(),
        grpc.is_some(),
    ];
    require_one_handler(&set, path, errors);
    exec.iter()
        .for_each(|a| validate_exec_action(a, path, errors));
    http_get
        .iter()
        .for_each(|a| validate_http_action(a, path, errors));
    tcp_socket
        .iter()
        .for_each(|a| validate_tcp_action(a, path, errors));
    if let Some(grpc) = grpc
        && !(1..=65535).contains(&grpc.port)
    {
        errors.invalid(&format!("{path}.grpc.port"), grpc.port, IN_PORT_RANGE);
    }
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if value < 0 {
            errors.invalid(
                &format!("{path}.{field}"),
                value,
                "must be greater than or equal to 0",
            );
        }
    }
    let readiness = name == "readinessProbe";
    if !readiness && probe.success_threshold != 1 {
        errors.invalid(
            &format!("{path}.successThreshold"),
            probe.success_threshold,
            "must be 1",
        );
    }
    if let Some(grace) = probe.termination_grace_period_seconds {
        let path = format!("{path}.terminationGracePeriodSeconds");
        if readiness {
            errors.invalid(&path, grace, "must not be set for readinessProbes");
        } else if grace <= 0 {
            errors.invalid(&path, grace, "must be greater than 0");
        }
    }
}

fn require_one_handler(set: &[bool], path: &str, errors: &mut FieldErrors) {
    match set.iter().filter(|set| **set).count() {
        0 => errors.required(path, "must specify a handler type"),
        1 => {}
        _ => errors.forbidden(path, "may not specify more than 1 handler type"),
    }
}

fn validate_exec_action(action: &ExecAction, path: &str, errors: &mut FieldErrors) {
    if action.command.is_empty() {
        errors.required(&format!("{path}.exec.command"), "");
    }
}

fn validate_http_action(action: &HttpGetAction, path: &str, errors: &mut FieldErrors) {
    let path = format!("{path}.httpGet");
    if action.path.is_empty() {
        errors.required(&format!("{path}.path"), "");
    }
    validate_port(&action.port, &format!("{path}.port"), errors);
    errors.require_one_of(
        &format!("{path}.scheme"),
        &action.scheme,
        &["HTTP", "HTTPS"],
    );
    for (n, header) in action.http_headers.iter().enumerate() {
        let name = &header.name;
        let ok = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
        if !ok {
            errors.invalid(
                &format!("{path}.httpHeaders[{n}].name"),
                name,
                "a valid HTTP header must consist of alphanumeric characters or '-'",
            );
        }
    }
}

fn validate_tcp_action(action: &TcpSocketAction, path: &str, errors: &mut FieldErrors) {
    validate_port(&action.port, &format!("{path}.tcpSocket.port"), errors);
}

fn validate_port(port: &IntOrString, path: &str, errors: &mut FieldErrors) {
    match port {
        IntOrString::Int(n) if (1..=65535).contains(n) => {}
        IntOrString::Int(n) => errors.invalid(path, n, IN_PORT_RANGE),
        IntOrString::Text(name) => errors.check_name(path, name, port_name),
    }
}
