//! Volumes and their sources.

use alloc::collections::BTreeSet;

use super::field::{FieldErrors, dns_label, dns_subdomain};
use super::{UniqueNames, container, local_path_error, validate_payload_path};
use crate::api::pod::{DownwardApiVolume, KeyToPath, PodSpec, ProjectedVolume, Volume};

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// Checks all volumes and returns their names.
pub(super) fn validate_volumes<'a>(
    spec: &'a PodSpec,
    errors: &mut FieldErrors,
) -> BTreeSet<&'a str> {
    let mut names = UniqueNames::default();
    for (n, volume) in spec.volumes.iter().enumerate() {
        let path = format!("spec.volumes[{n}]");
        errors.check_name(&format!("{path}.name"), &volume.name, dns_label);
        names.check_unique(&format!("{path}.name"), &volume.name, errors);
        validate_volume_source(volume, &path, errors);
    }
    names.0
}

fn validate_volume_source(volume: &Volume, path: &str, errors: &mut FieldErrors) {
    let set = [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("projected", volume.projected.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        (
            "persistentVolumeClaim",
            volume.persistent_volume_claim.is_some(),
        ),
        ("image", volume.image.is_some()),
    ];
    for (name, _) in set.iter().filter(|(_, set)| *set).skip(1) {
        errors.forbidden(
            &format!("{path}.{name}"),
            "may not specify more than 1 volume type",
        );
    }
    // A volume without any modelled source either became an emptyDir or is named by `find_unmodelled_fields`.
    if let Some(source) = &volume.empty_dir {
        let path = format!("{path}.emptyDir");
        if let Some(limit) = &source.size_limit
            && limit.milli_value() < 0
        {
            errors.forbidden(
                &format!("{path}.sizeLimit"),
                "SizeLimit field must be a valid resource quantity",
            );
        }
        if !source.medium.starts_with("HugePages") {
            errors.require_one_of(
                &format!("{path}.medium"),
                &source.medium,
                &["", "HugePages", "Memory"],
            );
        }
    }
    if let Some(source) = &volume.host_path {
        let path = format!("{path}.hostPath");
        if source.path.is_empty() {
            errors.required(&format!("{path}.path"), "");
        } else if source.path.split('/').any(|part| part == "..") {
            errors.invalid(
                &format!("{path}.path"),
                &source.path,
                "must not contain '..'",
            );
        }
        let kind = source.kind.as_deref().unwrap_or("");
        errors.require_one_of(&format!("{path}.type"), kind, &HOST_PATH_TYPES);
    }
    if let Some(source) = &volume.config_map {
        let path = format!("{path}.configMap");
        errors.require_present(&format!("{path}.name"), &source.name);
        validate_file_mode(source.default_mode, &format!("{path}.defaultMode"), errors);
        validate_items(&source.items, &path, errors);
    }
    if let Some(source) = &volume.secret {
        let path = format!("{path}.secret");
        errors.require_present(&format!("{path}.secretName"), &source.secret_name);
        validate_file_mode(source.default_mode, &format!("{path}.defaultMode"), errors);
        validate_items(&source.items, &path, errors);
    }
    if let Some(source) = &volume.downward_api {
        let path = format!("{path}.downwardAPI");
        validate_file_mode(source.default_mode, &format!("{path}.defaultMode"), errors);
        validate_downward_api(source, &path, errors);
    }
    if let Some(source) = &volume.projected {
        validate_projected_volume(source, &format!("{path}.projected"), errors);
    }
    if let Some(source) = &volume.nfs {
        let path = format!("{path}.nfs");
        if source.server.is_empty() {
            errors.required(&format!("{path}.server"), "");
        }
        if source.path.is_empty() {
            errors.required(&format!("{path}.path"), "");
        } else if !source.path.starts_with('/') {
            errors.invalid(
                &format!("{path}.path"),
                &source.path,
                "must be an absolute path",
            );
        }
    }
    if let Some(source) = &volume.persistent_volume_claim {
        let path = format!("{path}.persistentVolumeClaim.claimName");
        errors.check_name(&path, &source.claim_name, dns_subdomain);
    }
    if let Some(source) = &volume.image {
        let path = format!("{path}.image");
        if source.reference.is_empty() {
            errors.required(&format!("{path}.reference"), "");
        }
        errors.require_one_of(
            &format!("{path}.pullPolicy"),
            &source.pull_policy,
            &container::PULL_POLICIES,
        );
    }
}

fn validate_projected_volume(source: &ProjectedVolume, path: &str, errors: &mut FieldErrors) {
    validate_file_mode(source.default_mode, &format!("{path}.defaultMode"), errors);
    let mut paths = UniqueNames::default();
    for (n, source) in source.sources.iter().enumerate() {
        let path = format!("{path}.sources[{n}]");
        let set = usize::from(source.secret.is_some())
            + usize::from(source.config_map.is_some())
            + usize::from(source.downward_api.is_some())
            + usize::from(source.service_account_token.is_some())
            + usize::from(source.cluster_trust_bundle.is_some())
            + usize::from(source.pod_certificate.is_some());
        if set > 1 {
            errors.forbidden(&path, "may not specify more than 1 volume type");
        }
        for (kind, object) in [
            ("secret", &source.secret),
            ("configMap", &source.config_map),
        ] {
            if let Some(object) = object {
                let path = format!("{path}.{kind}");
                errors.require_present(&format!("{path}.name"), &object.name);
                validate_items(&object.items, &path, errors);
                for item in &object.items {
                    paths.check_unique(&format!("{path}.path"), &item.path, errors);
                }
            }
        }
        if let Some(object) = &source.downward_api {
            let path = format!("{path}.downwardAPI");
            validate_downward_api(object, &path, errors);
            for item in &object.items {
                paths.check_unique(&format!("{path}.path"), &item.path, errors);
            }
        }
        if let Some(token) = &source.service_account_token {
            let path = format!("{path}.serviceAccountToken");
            validate_payload_path(&format!("{path}.path"), &token.path, errors);
            paths.check_unique(&format!("{path}.path"), &token.path, errors);
            let seconds = token.expiration_seconds.unwrap_or(3600);
            if seconds < 600 {
                errors.invalid(
                    &format!("{path}.expirationSeconds"),
                    seconds,
                    "may not specify a duration less than 10 minutes",
                );
            }
        }
    }
}

fn validate_items(items: &[KeyToPath], path: &str, errors: &mut FieldErrors) {
    for (n, item) in items.iter().enumerate() {
        let path = format!("{path}.items[{n}]");
        errors.require_present(&format!("{path}.key"), &item.key);
        validate_payload_path(&format!("{path}.path"), &item.path, errors);
        validate_file_mode(item.mode, &format!("{path}.mode"), errors);
    }
}

fn validate_downward_api(source: &DownwardApiVolume, path: &str, errors: &mut FieldErrors) {
    for (n, item) in source.items.iter().enumerate() {
        let path = format!("{path}.items[{n}]");
        validate_payload_path(&format!("{path}.path"), &item.path, errors);
        validate_file_mode(item.mode, &format!("{path}.mode"), errors);
        match (&item.field_ref, &item.resource_field_ref) {
            (Some(_), Some(_)) => errors.invalid(
                &path,
                "resource",
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            ),
            (Some(field), None) => {
                container::validate_field_ref(
                    field,
                    &container::VOLUME_FIELDS,
                    &format!("{path}.fieldRef"),
                    errors,
                );
            }
            (None, Some(resource)) => {
                let path = format!("{path}.resourceFieldRef");
                container::validate_resource_ref(resource, true, &path, errors);
            }
            (None, None) => {
                errors.required(&path, "one of fieldRef and resourceFieldRef is required")
            }
        }
    }
}

fn validate_file_mode(mode: Option<i32>, path: &str, errors: &mut FieldErrors) {
    if let Some(mode) = mode
        && !(0..=0o777).contains(&mode)
    {
        errors.invalid(
            path,
            mode,
            "must be a number between 0 and 0777 (octal), both inclusive",
        );
    }
}

/// Checks the path of a `subPath`.
pub(super) fn validate_sub_path(path: &str, text: &str, errors: &mut FieldErrors) {
    if let Some(detail) = local_path_error(text) {
        errors.invalid(path, text, detail);
    }
}
