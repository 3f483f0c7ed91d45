//! Security contexts of pods and containers, sysctls.

use alloc::string::String;

use super::UniqueNames;
use super::field::{FieldErrors, sysctl_name};
use crate::api::Pod;
use crate::api::pod::{Container, PodSpec, SeccompProfile};
use crate::security::APPARMOR_ANNOTATION;

/// Largest user or group id a pod may name.
const MAX_ID: i64 = i32::MAX as i64;

/// Bytes of the name of an AppArmor profile.
const MAX_APP_ARMOR_BYTES: usize = 4095;
/// Beginning of an annotation's value that names an AppArmor profile of the kernel; the name follows.
const LOCALHOST: &str = "localhost/";

/// The pod's own security context and its namespaces.
pub(super) fn validate_pod_security(spec: &PodSpec, errors: &mut FieldErrors) {
    let path = "spec.securityContext";
    if spec.share_process_namespace == Some(true) && spec.host_pid {
        errors.invalid(
            "spec.shareProcessNamespace",
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    if spec.host_users == Some(false) {
        for (name, set) in [
            ("hostNetwork", spec.host_network),
            ("hostPID", spec.host_pid),
            ("hostIPC", spec.host_ipc),
        ] {
            if set {
                errors.forbidden(&format!("spec.{name}"), "when `hostUsers` is false");
            }
        }
    }
    let Some(context) = &spec.security_context else {
        return;
    };
    validate_id(context.run_as_user, &format!("{path}.runAsUser"), errors);
    validate_id(context.run_as_group, &format!("{path}.runAsGroup"), errors);
    validate_id(context.fs_group, &format!("{path}.fsGroup"), errors);
    for (n, group) in context.supplemental_groups.iter().enumerate() {
        validate_id(
            Some(*group),
            &format!("{path}.supplementalGroups[{n}]"),
            errors,
        );
    }
    if let Some(policy) = &context.fs_group_change_policy {
        let known = ["Always", "OnRootMismatch"];
        errors.require_one_of(&format!("{path}.fsGroupChangePolicy"), policy, &known);
    }
    if let Some(policy) = &context.supplemental_groups_policy {
        errors.require_one_of(
            &format!("{path}.supplementalGroupsPolicy"),
            policy,
            &["Merge", "Strict"],
        );
    }
    validate_profile(
        context.seccomp_profile.as_ref(),
        &format!("{path}.seccompProfile"),
        super::volume::validate_sub_path,
        errors,
    );
    validate_profile(
        context.app_armor_profile.as_ref(),
        &format!("{path}.appArmorProfile"),
        validate_app_armor_name,
        errors,
    );
    let mut names = UniqueNames::default();
    for (n, sysctl) in context.sysctls.iter().enumerate() {
        let path = format!("{path}.sysctls[{n}].name");
        errors.check_name(&path, &sysctl.name, sysctl_name);
        names.check_unique(&path, &sysctl.name, errors);
        let dotted = sysctl.name.replace('/', ".");
        if spec.host_network && dotted.starts_with("net.") {
            errors.invalid(
                &path,
                &sysctl.name,
                "may not be specified when 'hostNetwork' is true",
            );
        }
        let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."]
            .iter()
            .any(|p| dotted.starts_with(p))
            || dotted == "kernel.sem";
        if spec.host_ipc && ipc {
            errors.invalid(
                &path,
                &sysctl.name,
                "may not be specified when 'hostIPC' is true",
            );
        }
    }
}

/// Annotations that ask for AppArmor profiles: with a misspelt name the container would run without one.
pub(super) fn validate_app_armor_annotations(pod: &Pod, errors: &mut FieldErrors) {
    let whole = pod.spec.security_context.as_ref();
    for (key, value) in &pod.metadata.annotations {
        let Some(name) = key.strip_prefix(APPARMOR_ANNOTATION) else {
            continue;
        };
        let path = format!("metadata.annotations[{key}]");
        let known = ["", "runtime/default", "unconfined"].contains(&value.as_str());
        if !known && !value.starts_with(LOCALHOST) {
            errors.invalid(&path, value, "invalid AppArmor profile name");
        }
        let Some(container) = pod.spec.all_containers().find(|c| c.name == name) else {
            errors.invalid(&path, name, "container not found");
            continue;
        };
        let own = container.security_context.as_ref();
        let field = own
            .and_then(|own| own.app_armor_profile.as_ref())
            .or_else(|| whole?.app_armor_profile.as_ref());
        if field.is_some_and(|field| *value != app_armor_annotation(field)) {
            errors.forbidden(&path, "apparmor profile in annotation and field must match");
        }
    }
}

/// The annotation that asks for the same AppArmor profile as the field.
fn app_armor_annotation(profile: &SeccompProfile) -> String {
    match profile.kind.as_str() {
        "RuntimeDefault" => "runtime/default".into(),
        "Unconfined" => "unconfined".into(),
        _ => format!(
            "{LOCALHOST}{}",
            profile.localhost_profile.as_deref().unwrap_or_default()
        ),
    }
}

/// A container's security context.
pub(super) fn validate_container_security(
    container: &Container,
    spec: &PodSpec,
    path: &str,
    errors: &mut FieldErrors,
) {
    let Some(context) = &container.security_context else {
        return;
    };
    let path = format!("{path}.securityContext");
    validate_id(context.run_as_user, &format!("{path}.runAsUser"), errors);
    validate_id(context.run_as_group, &format!("{path}.runAsGroup"), errors);
    validate_profile(
        context.seccomp_profile.as_ref(),
        &format!("{path}.seccompProfile"),
        super::volume::validate_sub_path,
        errors,
    );
    validate_profile(
        context.app_armor_profile.as_ref(),
        &format!("{path}.appArmorProfile"),
        validate_app_armor_name,
        errors,
    );
    if let Some(mount) = &context.proc_mount {
        errors.require_one_of(
            &format!("{path}.procMount"),
            mount,
            &["Default", "Unmasked"],
        );
        if mount == "Unmasked" && spec.host_users != Some(false) {
            errors.invalid(
                &format!("{path}.procMount"),
                mount,
                "`hostUsers` must be false to use `Unmasked`",
            );
        }
    }
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            errors.invalid(
                &path,
                "allowPrivilegeEscalation",
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let added = context
            .capabilities
            .as_ref()
            .is_some_and(|c| c.add.iter().any(|name| name == "CAP_SYS_ADMIN"));
        if added {
            errors.invalid(
                &path,
                "allowPrivilegeEscalation",
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
}

fn validate_id(id: Option<i64>, path: &str, errors: &mut FieldErrors) {
    if let Some(id) = id
        && !(0..=MAX_ID).contains(&id)
    {
        errors.invalid(path, id, "must be between 0 and 2147483647, inclusive");
    }
}

/// Checks the name of a profile that the kernel has; it may look like any path.
fn validate_app_armor_name(path: &str, name: &str, errors: &mut FieldErrors) {
    if name.trim() != name || name.len() > MAX_APP_ARMOR_BYTES {
        errors.invalid(
            path,
            name,
            "must have at most 4095 bytes, without space around them",
        );
    }
}

fn validate_profile(
    profile: Option<&SeccompProfile>,
    path: &str,
    rule: fn(&str, &str, &mut FieldErrors),
    errors: &mut FieldErrors,
) {
    let Some(profile) = profile else {
        return;
    };
    if profile.kind.is_empty() {
        errors.required(
            &format!("{path}.type"),
            "type is required when the profile is set",
        );
        return;
    }
    let known = ["Localhost", "RuntimeDefault", "Unconfined"];
    errors.require_one_of(&format!("{path}.type"), &profile.kind, &known);
    let path = format!("{path}.localhostProfile");
    match (
        profile.kind == "Localhost",
        profile.localhost_profile.as_deref(),
    ) {
        (true, None | Some("")) => errors.required(&path, "must be set when the type is Localhost"),
        (true, Some(name)) => rule(&path, name, errors),
        (false, Some(name)) => {
            errors.invalid(&path, name, "can only be set when the type is Localhost");
        }
        (false, None) => {}
    }
}
