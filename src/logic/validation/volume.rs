//! Volumes and their sources.

use alloc::collections::BTreeSet;

use super::field::{FieldErrors, dns_label, dns_subdomain};
use super::{UniqueNames, container, local_path, payload_path};
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
pub(super) fn volumes<'a>(spec: &'a PodSpec, errors: &mut FieldErrors) -> BTreeSet<&'a str> {
    let mut names = UniqueNames::default();
    for (n, volume) in spec.volumes.iter().enumerate() {
        let path = format!("spec.volumes[{n}]");
        errors.name(&format!("{path}.name"), &volume.name, dns_label);
        names.once(&format!("{path}.name"), &volume.name, errors);
        source(volume, &path, errors);
    }
    names.0
}

fn source(volume: &Volume, path: &str, errors: &mut FieldErrors) {
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
    // A volume without any modelled source either became an emptyDir or is named by `unmodelled`.
    if let Some(source) = &volume.empty_dir {
        let path = format!("{path}.emptyDir");
        if let Some(limit) = &source.size_limit
            && limit.milli() < 0
        {
            errors.forbidden(
                &format!("{path}.sizeLimit"),
                "SizeLimit field must be a valid resource quantity",
            );
        }
        if !source.medium.starts_with("HugePages") {
            errors.one_of(
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
        errors.one_of(&format!("{path}.type"), kind, &HOST_PATH_TYPES);
    }
    if let Some(source) = &volume.config_map {
        let path = format!("{path}.configMap");
        errors.present(&format!("{path}.name"), &source.name);
        mode(source.default_mode, &format!("{path}.defaultMode"), errors);
        items(&source.items, &path, errors);
    }
    if let Some(source) = &volume.secret {
        let path = format!("{path}.secret");
        errors.present(&format!("{path}.secretName"), &source.secret_name);
        mode(source.default_mode, &format!("{path}.defaultMode"), errors);
        items(&source.items, &path, errors);
    }
    if let Some(source) = &volume.downward_api {
        let path = format!("{path}.downwardAPI");
        mode(source.default_mode, &format!("{path}.defaultMode"), errors);
        downward(source, &path, errors);
    }
    if let Some(source) = &volume.projected {
        projected(source, &format!("{path}.projected"), errors);
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
        errors.name(&path, &source.claim_name, dns_subdomain);
    }
    if let Some(source) = &volume.image {
        let path = format!("{path}.image");
        if source.reference.is_empty() {
            errors.required(&format!("{path}.reference"), "");
        }
        errors.one_of(
            &format!("{path}.pullPolicy"),
            &source.pull_policy,
            &container::PULL_POLICIES,
        );
    }
}

fn projected(source: &ProjectedVolume, path: &str, errors: &mut FieldErrors) {
    mode(source.default_mode, &format!("{path}.defaultMode"), errors);
    let mut paths = UniqueNames::default();
    for (n, source) in source.sources.iter().enumerate() {
        let path = format!("{path}.sources[{n}]");
        let set = usize::from(source.secret.is_some())
            + usize::from(source.config_map.is_some())
            + usize::from(source.downward_api.is_some())
            + usize::from(source.service_account_token.is_some());
        if set > 1 {
            errors.forbidden(&path, "may not specify more than 1 volume type");
        }
        for (kind, object) in [
            ("secret", &source.secret),
            ("configMap", &source.config_map),
        ] {
            if let Some(object) = object {
                let path = format!("{path}.{kind}");
                errors.present(&format!("{path}.name"), &object.name);
                items(&object.items, &path, errors);
                for item in &object.items {
                    paths.once(&format!("{path}.path"), &item.path, errors);
                }
            }
        }
        if let Some(object) = &source.downward_api {
            let path = format!("{path}.downwardAPI");
            downward(object, &path, errors);
            for item in &object.items {
                paths.once(&format!("{path}.path"), &item.path, errors);
            }
        }
        if let Some(token) = &source.service_account_token {
            let path = format!("{path}.serviceAccountToken");
            payload_path(&format!("{path}.path"), &token.path, errors);
            paths.once(&format!("{path}.path"), &token.path, errors);
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

fn items(items: &[KeyToPath], path: &str, errors: &mut FieldErrors) {
    for (n, item) in items.iter().enumerate() {
        let path = format!("{path}.items[{n}]");
        errors.present(&format!("{path}.key"), &item.key);
        payload_path(&format!("{path}.path"), &item.path, errors);
        mode(item.mode, &format!("{path}.mode"), errors);
    }
}

fn downward(source: &DownwardApiVolume, path: &str, errors: &mut FieldErrors) {
    for (n, item) in source.items.iter().enumerate() {
        let path = format!("{path}.items[{n}]");
        payload_path(&format!("{path}.path"), &item.path, errors);
        mode(item.mode, &format!("{path}.mode"), errors);
        match (&item.field_ref, &item.resource_field_ref) {
            (Some(_), Some(_)) => errors.invalid(
                &path,
                "resource",
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            ),
            (Some(field), None) => {
                container::field_ref(
                    field,
                    &container::VOLUME_FIELDS,
                    &format!("{path}.fieldRef"),
                    errors,
                );
            }
            (None, Some(resource)) => {
                let path = format!("{path}.resourceFieldRef");
                container::resource_ref(resource, true, &path, errors);
            }
            (None, None) => {
                errors.required(&path, "one of fieldRef and resourceFieldRef is required")
            }
        }
    }
}

fn mode(mode: Option<i32>, path: &str, errors: &mut FieldErrors) {
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
pub(super) fn sub_path(path: &str, text: &str, errors: &mut FieldErrors) {
    if let Some(detail) = local_path(text) {
        errors.invalid(path, text, detail);
    }
}
