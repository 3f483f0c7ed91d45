//! Contents of configMap, secret, downwardAPI and projected volumes (VOL-04 to VOL-12). `crate::volume` writes them.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use crate::api::order::{GatherExt, OrderExt};
use crate::api::pod::{
    ClusterTrustBundleProjection, DownwardApiVolume, KeyToPath, ProjectedSource, Volume,
};
use crate::api::{Pod, PodError, ProjectedFile};
use crate::downward::{Allocatable, UnsetLimit, metadata_field, resource_field};
use crate::env::{ReferencedObjects, object_not_found};
use crate::trust_bundle::bundle_key;

/// Longest path component, bytes.
const MAX_COMPONENT: usize = 255;
/// Longest path, bytes.
const MAX_PATH: usize = 4096;
/// Most bytes that the files of all volumes of one pod may have together: they are in memory while they are written,
/// and files of secrets stay there. Twenty of the largest objects; an item may name a key that others have named.
pub const MAX_POD_BYTES: usize = 32 * 1024 * 1024;
/// Cost of a file beside its content, bytes: an inode in memory.
const FILE_BYTES: usize = 1024;
/// Mode of a token file that a user or group of the pod is to read.
const TOKEN_MODE: u32 = 0o600;
/// Error of a selection without result.
const NO_BUNDLE: &str =
    "combination of signerName and labelSelector matched zero ClusterTrustBundles";

/// Files of a volume sorted by path, or all reasons why they are not known.
pub type ProjectionResult = Result<Vec<ProjectedFile>, PodError>;

/// Contents of every volume of the pod that is made of objects, by volume name.
///
/// An error never means "empty": a volume that is mounted keeps what it holds.
pub fn project_pod_files(
    pod: &Pod,
    objects: &dyn ReferencedObjects,
    node: Allocatable,
) -> BTreeMap<String, ProjectionResult> {
    let volumes = pod.spec.volumes.iter();
    let mut left = MAX_POD_BYTES;
    volumes
        .filter_map(|volume| {
            volume_files(pod, volume, objects, node, &mut left)
                .map(|files| (volume.name.clone(), files))
        })
        .gather_items()
}

/// Contents of one volume; `None` if it is of another kind. `left`: bytes that the pod's files may still have.
fn volume_files(
    pod: &Pod,
    volume: &Volume,
    objects: &dyn ReferencedObjects,
    node: Allocatable,
    left: &mut usize,
) -> Option<ProjectionResult> {
    let mode = [
        volume.config_map.as_ref().map(|v| v.default_mode),
        volume.secret.as_ref().map(|v| v.default_mode),
        volume.downward_api.as_ref().map(|v| v.default_mode),
        volume.projected.as_ref().map(|v| v.default_mode),
    ];
    let default_mode = match mode.into_iter().flatten().next()?.map(check_file_mode) {
        None => return Some(Err(PodError::Spec("no defaultMode is given".into()))),
        Some(Err(error)) => return Some(Err(error)),
        Some(Ok(mode)) => mode,
    };
    let mut payload = ProjectionBuilder {
        pod,
        objects,
        node,
        default_mode,
        files: BTreeMap::new(),
        left,
    };
    let errors = payload.add_volume(volume);
    Some(
        match errors
            .into_iter()
            .reduce(|all, e| all.with_second_error(&e))
        {
            None => Ok(payload.files.into_values().collect()),
            Some(error) => Err(error),
        },
    )
}

struct ProjectionBuilder<'a> {
    pod: &'a Pod,
    objects: &'a dyn ReferencedObjects,
    node: Allocatable,
    default_mode: u32,
    /// Files by path: a later source wins.
    files: BTreeMap<String, ProjectedFile>,
    left: &'a mut usize,
}

impl ProjectionBuilder<'_> {
    /// Adds all files; returns what went wrong, one entry for each source.
    fn add_volume(&mut self, volume: &Volume) -> Vec<PodError> {
        let made = if let Some(v) = &volume.config_map {
            self.add_config_map(&v.name, &v.items, v.optional)
        } else if let Some(v) = &volume.secret {
            self.add_secret(&v.secret_name, &v.items, v.optional)
        } else if let Some(v) = &volume.downward_api {
            self.add_downward_api(v)
        } else if let Some(v) = &volume.projected {
            let sources = v.sources.iter().enumerate();
            return sources
                .filter_map(|(n, source)| self.add_source(&volume.name, n, source).err())
                .collect();
        } else {
            Ok(())
        };
        made.err().into_iter().collect()
    }

    fn add_source(
        &mut self,
        volume: &str,
        n: usize,
        source: &ProjectedSource,
    ) -> Result<(), PodError> {
        if let Some(v) = &source.config_map {
            self.add_config_map(&v.name, &v.items, v.optional)
        } else if let Some(v) = &source.secret {
            self.add_secret(&v.name, &v.items, v.optional)
        } else if let Some(v) = &source.downward_api {
            self.add_downward_api(v)
        } else if let Some(v) = &source.service_account_token {
            let token = self
                .objects
                .service_account_token(&v.audience, v.expiration_seconds)?;
            self.add_file_of_user(&v.path, &token)
        } else if let Some(v) = &source.cluster_trust_bundle {
            self.add_trust_bundle(v)
        } else if let Some(v) = &source.pod_certificate {
            let pair = self.objects.pod_certificate(volume, n)?;
            for (path, text) in [
                (&v.credential_bundle_path, &pair.bundle()),
                (&v.key_path, &pair.key),
                (&v.certificate_chain_path, &pair.chain),
            ] {
                if !path.is_empty() {
                    self.add_file_of_user(path, text.as_bytes())?;
                }
            }
            Ok(())
        } else {
            let kind = match source.unmodelled.as_str() {
                "" => "unknown",
                kind => kind,
            };
            Err(PodError::Spec(format!(
                "sources of type {kind:?} of projected volumes are not supported by this agent"
            )))
        }
    }

    fn add_config_map(
        &mut self,
        name: &str,
        items: &[KeyToPath],
        optional: Option<bool>,
    ) -> Result<(), PodError> {
        let namespace = &self.pod.metadata.namespace;
        let Some(map) = self.objects.config_map(namespace, name)? else {
            return missing_object("configmap", name, optional);
        };
        let text = map.data.iter().map(|(key, text)| (key, text.as_bytes()));
        let binary = map.binary_data.iter().map(|(key, b)| (key, b.0.as_slice()));
        let mut data: Vec<_> = text.chain(binary).collect();
        data.stable_sort_by_key(|(key, _)| *key);
        self.add_keys("configmap", name, &data, items, optional)
    }

    fn add_secret(
        &mut self,
        name: &str,
        items: &[KeyToPath],
        optional: Option<bool>,
    ) -> Result<(), PodError> {
        let namespace = &self.pod.metadata.namespace;
        let Some(secret) = self.objects.secret(namespace, name)? else {
            return missing_object("secret", name, optional);
        };
        let data = secret.data.iter().map(|(key, b)| (key, b.0.as_slice()));
        self.add_keys("secret", name, &data.collect::<Vec<_>>(), items, optional)
    }

    fn add_keys(
        &mut self,
        kind: &str,
        name: &str,
        data: &[(&String, &[u8])],
        items: &[KeyToPath],
        optional: Option<bool>,
    ) -> Result<(), PodError> {
        if items.is_empty() {
            for (key, bytes) in data {
                self.add_file(key, bytes, self.default_mode, None)?;
            }
            return Ok(());
        }
        for item in items {
            match data.iter().find(|(key, _)| **key == item.key) {
                Some((_, bytes)) => {
                    let mode = self.effective_mode(item.mode)?;
                    self.add_file(&item.path, bytes, mode, None)?;
                }
                None if optional == Some(true) => {}
                None => {
                    return Err(PodError::Object(format!(
                        "{kind} {name:?} references non-existent key: {}",
                        item.key
                    )));
                }
            }
        }
        Ok(())
    }

    fn add_downward_api(&mut self, volume: &DownwardApiVolume) -> Result<(), PodError> {
        for item in &volume.items {
            let value = if let Some(field) = &item.field_ref {
                metadata_field(self.pod, &field.field_path)?
            } else if let Some(field) = &item.resource_field_ref {
                resource_field(self.pod, None, field, self.node, UnsetLimit::Node)?
            } else {
                return Err(PodError::Spec(format!(
                    "downwardAPI item {:?} names no field",
                    item.path
                )));
            };
            let mode = self.effective_mode(item.mode)?;
            self.add_file(&item.path, value.as_bytes(), mode, None)?;
        }
        Ok(())
    }

    fn add_trust_bundle(&mut self, source: &ClusterTrustBundleProjection) -> Result<(), PodError> {
        let found = match bundle_key(source)? {
            Some(key) => self.objects.trust_bundle(&key)?,
            None => None,
        };
        let text = match found {
            Some(text) => text,
            None if source.optional == Some(true) => "",
            None if source.name.is_empty() => {
                return Err(PodError::Object(NO_BUNDLE.into()));
            }
            None => return Err(object_not_found("clustertrustbundle", &source.name)),
        };
        self.add_file_of_user(&source.path, text.as_bytes())
    }

    /// Adds a file that only the user and the group of the pod may read, if it names one (TOK-06).
    fn add_file_of_user(&mut self, path: &str, data: &[u8]) -> Result<(), PodError> {
        let security = self.pod.spec.security_context.as_ref();
        let fs_group = security.and_then(|security| security.fs_group);
        let owner = common_user(self.pod);
        let mode = if owner.is_some() || fs_group.is_some() {
            TOKEN_MODE
        } else {
            self.default_mode
        };
        self.add_file(path, data, mode, owner)
    }

    fn effective_mode(&self, item: Option<i32>) -> Result<u32, PodError> {
        item.map_or(Ok(self.default_mode), check_file_mode)
    }

    fn add_file(
        &mut self,
        path: &str,
        data: &[u8],
        mode: u32,
        owner: Option<u32>,
    ) -> Result<(), PodError> {
        check_path(path)?;
        let cost = data.len() + path.len() + FILE_BYTES;
        *self.left = self.left.checked_sub(cost).ok_or_else(|| {
            PodError::Spec(format!(
                "path {path:?}: the files of the pod's volumes have more than {MAX_POD_BYTES} bytes"
            ))
        })?;
        let file = ProjectedFile {
            path: path.into(),
            data: data.to_vec(),
            mode,
            owner,
        };
        self.files.insert(path.into(), file);
        Ok(())
    }
}

fn missing_object(kind: &str, name: &str, optional: Option<bool>) -> Result<(), PodError> {
    match optional {
        Some(true) => Ok(()),
        Some(false) | None => Err(object_not_found(kind, name)),
    }
}

/// The API allows 0 to 0777.
fn check_file_mode(mode: i32) -> Result<u32, PodError> {
    u32::try_from(mode)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| PodError::Spec(format!("file mode {mode} is not between 0 and 0777")))
}

fn check_path(path: &str) -> Result<(), PodError> {
    let bad = |why| Err(PodError::Spec(format!("path {path:?} {why}")));
    if path.is_empty() || path.starts_with('/') {
        return bad("must be relative");
    }
    if path.len() > MAX_PATH {
        return bad("is too long");
    }
    // Names of the volume's own layout (`..data`) begin with two dots.
    if path.starts_with("..") {
        return bad("must not begin with '..'");
    }
    for part in path.split('/') {
        if part == ".." {
            return bad("must not contain '..'");
        }
        if part.len() > MAX_COMPONENT {
            return bad("has a component that is too long");
        }
    }
    Ok(())
}

/// Returns the user that all containers run as, if the pod sets one: token files then belong to that user. Ephemeral
/// containers do not count: they come while the others read the token, which must not be opened to all of the machine
/// for them.
///
/// Source: kubelet `pkg/volume/util`, `FsUserFrom`.
fn common_user(pod: &Pod) -> Option<u32> {
    let whole = pod.spec.security_context.as_ref();
    let whole = whole.and_then(|security| security.run_as_user);
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let mut users = containers.map(|container| {
        let own = container.security_context.as_ref();
        own.and_then(|security| security.run_as_user).or(whole)
    });
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ConfigMap, Secret};
    use crate::pod_refs::PodObjectKey;
    use crate::testing::NoObjects;

    struct Fixed(ConfigMap, Secret);
    impl ReferencedObjects for Fixed {
        fn config_map(&self, _: &str, name: &str) -> Result<Option<&ConfigMap>, PodError> {
            match name {
                "cm" => Ok(Some(&self.0)),
                "late" => Err(PodError::Node("timed out".into())),
                _ => Ok(None),
            }
        }
        fn secret(&self, _: &str, name: &str) -> Result<Option<&Secret>, PodError> {
            Ok((name == "sec").then_some(&self.1))
        }
        fn volume_file(&self, _: &str, _: &str) -> Result<String, PodError> {
            Err(PodError::Object("none".into()))
        }
        fn service_account_token(
            &self,
            audience: &str,
            _: Option<i64>,
        ) -> Result<Vec<u8>, PodError> {
            Ok(audience.as_bytes().to_vec())
        }
        fn trust_bundle(&self, key: &PodObjectKey) -> Result<Option<&str>, PodError> {
            Ok(matches!(&*key.name, "ca" | "e.com/s?").then_some("anchors"))
        }
    }

    #[test]
    fn growth_is_bounded() {
        // One key under many names, in memory for a secret.
        let large = "x".repeat(1 << 20);
        let map = serde_json::json!({"data": {"k": large}});
        let objects = Fixed(
            serde_json::from_value(map).expect("configmap"),
            Secret::default(),
        );
        let items: Vec<_> = (0..20)
            .map(|at| serde_json::json!({"key": "k", "path": format!("f{at}")}))
            .collect();
        let volume = |name: &str| serde_json::json!({"name": name, "configMap": {"name": "cm", "defaultMode": 420, "items": items}});
        let pod = serde_json::json!({"spec": {"volumes": [volume("a"), volume("b")]}});
        let pod: Pod = serde_json::from_value(pod).expect("pod");
        let files = project_pod_files(&pod, &objects, Allocatable::default());
        assert_eq!(
            files["a"].as_ref().map(Vec::len),
            Ok(20),
            "more than any volume of whole objects needs"
        );
        let error = format!("{}", files["b"].as_ref().expect_err("bounded"));
        assert!(
            error.starts_with("path \"f11\": ") && error.contains("33554432 bytes"),
            "{error}"
        );
    }

    fn show_pod(volume: &str, spec: &str) -> String {
        let objects = Fixed(
            serde_json::from_str(r#"{"data":{"a":"1","k":"cm"},"binaryData":{"b":"AAE="}}"#)
                .expect("configmap"),
            serde_json::from_str(r#"{"data":{"k":"c2Vj"}}"#).expect("secret"),
        );
        let pod: Pod = serde_json::from_str(&format!(
            r#"{{"metadata":{{"name":"web","namespace":"prod","labels":{{"l":"v"}}}},
                "spec":{{"volumes":[{{"name":"v",{volume}}}],
                "containers":[{{"name":"app","resources":{{"limits":{{"memory":"1Mi"}}}}}}]{spec}}}}}"#
        ))
        .expect(volume);
        match project_pod_files(&pod, &objects, Allocatable::default()).remove("v") {
            None => "none".into(),
            Some(Err(error)) => format!("error: {error}"),
            Some(Ok(files)) => {
                let show = |file: &ProjectedFile| {
                    let text = String::from_utf8_lossy(&file.data);
                    let owner = file.owner.map(|uid| format!("@{uid}")).unwrap_or_default();
                    format!("{}={:?}:{:o}{owner}", file.path, text, file.mode)
                };
                files.iter().map(show).collect::<Vec<_>>().join(" ")
            }
        }
    }

    #[test]
    fn volumes() {
        for (name, volume, want) in [
            // VOL-05 VOL-06
            (
                "every key of both maps",
                r#""configMap":{"name":"cm","defaultMode":420}"#,
                "a=\"1\":644 b=\"\\0\\u{1}\":644 k=\"cm\":644",
            ),
            (
                "items with modes",
                r#""configMap":{"name":"cm","defaultMode":420,"items":[{"key":"k","path":"z/y","mode":256},
                    {"key":"a","path":"c"}]}"#,
                "c=\"1\":644 z/y=\"cm\":400",
            ),
            (
                "missing key",
                r#""configMap":{"name":"cm","defaultMode":420,"items":[{"key":"no","path":"c"}]}"#,
                "error: configmap \"cm\" references non-existent key: no",
            ),
            (
                "missing key of an optional source",
                r#""configMap":{"name":"cm","optional":true,"defaultMode":420,
                    "items":[{"key":"no","path":"c"},{"key":"a","path":"a"}]}"#,
                "a=\"1\":644",
            ),
            (
                "no mode",
                r#""configMap":{"name":"cm"}"#,
                "error: no defaultMode is given",
            ),
            (
                "mode out of range",
                r#""secret":{"secretName":"sec","defaultMode":512}"#,
                "error: file mode 512 is not between 0 and 0777",
            ),
            // VOL-07 VOL-08
            (
                "missing object",
                r#""secret":{"secretName":"no","defaultMode":420}"#,
                "error: secret \"no\" not found",
            ),
            (
                "missing optional object",
                r#""secret":{"secretName":"no","optional":true,"defaultMode":420}"#,
                "",
            ),
            (
                "unreadable object, though optional",
                r#""configMap":{"name":"late","optional":true,"defaultMode":420}"#,
                "error: timed out",
            ),
            // VOL-09
            (
                "later sources win",
                r#""projected":{"defaultMode":292,"sources":[{"configMap":{"name":"cm"}},
                    {"secret":{"name":"sec"}},{"downwardAPI":{"items":[
                    {"path":"a","fieldRef":{"fieldPath":"metadata.name"}}]}}]}"#,
                "a=\"web\":444 b=\"\\0\\u{1}\":444 k=\"sec\":444",
            ),
            (
                "errors together",
                r#""projected":{"defaultMode":292,"sources":[{"configMap":{"name":"no"}},
                    {"secret":{"name":"sec"}},{"secret":{"name":"no"}}]}"#,
                "error: configmap \"no\" not found; secret \"no\" not found",
            ),
            (
                "unknown source",
                r#""projected":{"defaultMode":292,"sources":[{}]}"#,
                "error: sources of type \"unknown\" of projected volumes are not supported by this agent",
            ),
            // VOL-11 VOL-12
            (
                "downward API",
                r#""downwardAPI":{"defaultMode":420,"items":[
                    {"path":"labels","fieldRef":{"fieldPath":"metadata.labels"}},
                    {"path":"mem","mode":384,"resourceFieldRef":{"containerName":"app","resource":"limits.memory"}}]}"#,
                "labels=\"l=\\\"v\\\"\":644 mem=\"1048576\":600",
            ),
            (
                "a field only env has",
                r#""downwardAPI":{"defaultMode":420,"items":[
                    {"path":"ip","fieldRef":{"fieldPath":"status.podIP"}}]}"#,
                "error: unsupported fieldPath: status.podIP",
            ),
            ("another kind", r#""emptyDir":{}"#, "none"),
        ] {
            assert_eq!(show_pod(volume, ""), want, "{name}");
        }
    }

    #[test]
    fn tokens() {
        // TOK-06
        let volume = r#""projected":{"defaultMode":420,"sources":[
            {"serviceAccountToken":{"audience":"me","path":"token"}}]}"#;
        for (name, spec, want) in [
            ("plain", "", "token=\"me\":644"),
            (
                "group",
                r#","securityContext":{"fsGroup":5}"#,
                "token=\"me\":600",
            ),
            (
                "user",
                r#","securityContext":{"runAsUser":7}"#,
                "token=\"me\":600@7",
            ),
            (
                "two users",
                r#","securityContext":{"runAsUser":7},"initContainers":[{"securityContext":{"runAsUser":8}}]"#,
                "token=\"me\":644",
            ),
            (
                "user, and somebody looks into it",
                r#","securityContext":{"runAsUser":7},"ephemeralContainers":[{"securityContext":{"runAsUser":8}}]"#,
                "token=\"me\":600@7",
            ),
            (
                "two users, and one looks into it",
                r#","ephemeralContainers":[{"securityContext":{"runAsUser":7}}]"#,
                "token=\"me\":644",
            ),
        ] {
            assert_eq!(show_pod(volume, spec), want, "{name}");
        }
    }

    #[test]
    fn trust_bundles() {
        // CTB-01
        let none =
            "error: combination of signerName and labelSelector matched zero ClusterTrustBundles";
        for (source, want) in [
            (
                r#""name":"ca","path":"p/ca.crt""#,
                "p/ca.crt=\"anchors\":644",
            ),
            (
                r#""signerName":"e.com/s","labelSelector":{},"path":"p""#,
                "p=\"anchors\":644",
            ),
            (r#""signerName":"e.com/s","path":"p""#, none),
            (
                r#""signerName":"e.com/s","path":"p","optional":true"#,
                "p=\"\":644",
            ),
            (
                r#""signerName":"e.com/s","labelSelector":{"matchLabels":{"a":"b"}},"path":"p""#,
                none,
            ),
            (
                r#""name":"no","path":"p""#,
                "error: clustertrustbundle \"no\" not found",
            ),
            (r#""name":"no","path":"p","optional":true"#, "p=\"\":644"),
        ] {
            let volume = format!(
                r#""projected":{{"defaultMode":420,"sources":[{{"clusterTrustBundle":{{{source}}}}}]}}"#
            );
            assert_eq!(show_pod(&volume, ""), want, "{source}");
        }
        let volume = r#""projected":{"defaultMode":420,"sources":[{"clusterTrustBundle":{"name":"ca","path":"p"}}]}"#;
        let user = r#","securityContext":{"runAsUser":7}"#;
        assert_eq!(show_pod(volume, user), "p=\"anchors\":600@7");
        // CTB-03
        let pod = format!(r#"{{"spec":{{"volumes":[{{"name":"v",{volume}}}]}}}}"#);
        let pod: Pod = serde_json::from_str(&pod).expect("pod");
        let files = project_pod_files(&pod, &NoObjects, Allocatable::default());
        assert_eq!(
            format!("{}", files["v"].as_ref().expect_err("no apiserver")),
            "ClusterTrustBundle projection is not supported in static kubelet mode"
        );
    }

    #[test]
    fn paths() {
        // VOL-04
        let long = "x".repeat(256);
        let deep = "a/".repeat(2048) + "a";
        for (path, ok) in [
            ("a", true),
            ("a/b..c/.d", true),
            ("a/...", true),
            ("", false),
            ("/a", false),
            ("..a", false),
            ("a/../b", false),
            ("a/..", false),
            (&long, false),
            (&deep, false),
        ] {
            assert_eq!(check_path(path).is_ok(), ok, "{path}");
        }
    }
}
