//! Environment of a container (ENV-01 to ENV-16), built anew at each start.

use alloc::{borrow::ToOwned, collections::BTreeMap, string::String, vec::Vec};

use crate::api::pod::{CONFIG_SOURCE, Container, EnvVarSource, FileKeyRef, KeyRef};
use crate::api::{ConfigMap, Pod, PodError, Secret};
use crate::downward::{Allocatable, PodPlacement, UnsetLimit, env_field, resource_field};
use crate::expansion::{MAX_WORDS_BYTES, expand_references};
use crate::pod_certificate::CertificatePair;
use crate::pod_refs::PodObjectKey;
use crate::service_env::{EnvService, service_variables};

/// Longest value that a file gives to a variable, bytes. Source: KEP-3721.
const MAX_FILE_VALUE_BYTES: usize = 32 << 10;

/// Objects a pod may refer to. `Ok(None)` is "not found", the only failure that `optional` forgives.
pub trait ReferencedObjects {
    /// ConfigMap of the pod's namespace.
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<&ConfigMap>, PodError>;
    /// Secret of the pod's namespace.
    fn secret(&self, namespace: &str, name: &str) -> Result<Option<&Secret>, PodError>;
    /// Text of a file inside one of the pod's mounted volumes, for fileKeyRef.
    fn volume_file(&self, volume: &str, path: &str) -> Result<String, PodError>;
    /// A token of the pod's service account, for `serviceAccountToken` in a projected volume. `expiration`: seconds.
    fn service_account_token(
        &self,
        audience: &str,
        expiration: Option<i64>,
    ) -> Result<Vec<u8>, PodError>;
    /// Certificates to trust, PEM, for `clusterTrustBundle` in a projected volume.
    fn trust_bundle(&self, _: &PodObjectKey) -> Result<Option<&str>, PodError> {
        Err(static_mode_error("ClusterTrustBundle"))
    }
    /// Key and certificate of the pod, for a source of that number in a projected volume.
    fn pod_certificate(&self, _volume: &str, _source: usize) -> Result<&CertificatePair, PodError> {
        Err(static_mode_error("PodCertificate"))
    }
}

/// The error of a source of a projected volume that needs an apiserver, on a node that has none (CTB-03).
#[must_use]
pub fn static_mode_error(kind: &str) -> PodError {
    PodError::Node(format!(
        "{kind} projection is not supported in static kubelet mode"
    ))
}

/// Input for the environment of one container.
pub struct EnvInput<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Container whose environment is made.
    pub container: &'a Container,
    /// ConfigMaps, Secrets, volume files.
    pub objects: &'a dyn ReferencedObjects,
    /// All services; `None`: not read yet, which only static pods may ignore (ENV-09).
    pub services: Option<&'a [EnvService]>,
    /// Node and addresses.
    pub place: PodPlacement<'a>,
    /// Allocatable resources of the node, for unset limits.
    pub allocatable: Allocatable,
}

/// Variables in the order they were first set, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvVariables {
    list: Vec<(String, String)>,
    index: BTreeMap<String, usize>,
    /// Bytes of all names and values set so far, replaced ones included.
    bytes: usize,
}

impl EnvVariables {
    /// Value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = *self.index.get(name)?;
        self.list.get(at).map(|(_, value)| value.as_str())
    }

    /// The variables, in order.
    #[must_use]
    pub fn into_vec(self) -> Vec<(String, String)> {
        self.list
    }

    /// Sets `name`; a later value takes the earlier one's place.
    ///
    /// Errors: more than [`MAX_WORDS_BYTES`] were set. One ConfigMap may come in under many prefixes.
    pub fn set_variable(&mut self, name: &str, value: String) -> Result<(), PodError> {
        self.bytes = self.bytes.saturating_add(name.len() + value.len() + 2);
        if self.bytes > MAX_WORDS_BYTES {
            return Err(PodError::Spec(format!(
                "environment variable {name:?}: the environment has more than {MAX_WORDS_BYTES} bytes, \
                 which is the most that the kernel passes to a program"
            )));
        }
        let at = *self
            .index
            .entry(name.into())
            .or_insert_with(|| self.list.len());
        match self.list.get_mut(at) {
            Some(entry) => entry.1 = value,
            None => self.list.push((name.into(), value)),
        }
        Ok(())
    }
}

/// Builds the environment: envFrom in order, env in order over it, then service variables for names not yet set.
///
/// Errors: a required object or key that is missing, an object that cannot be read, an unknown field. All are retried by
/// the caller (`CreateContainerConfigError`).
pub fn build_environment(input: &EnvInput<'_>) -> Result<EnvVariables, PodError> {
    let services = service_env(input)?;
    let mut env = EnvVariables::default();
    env_from(input, &mut env)?;
    for var in &input.container.env {
        let value = if !var.value.is_empty() {
            expand_references(&var.value, |name| {
                let known = env.get(name).map(str::to_owned);
                known.or_else(|| services.get(name).cloned())
            })
            .map_err(|why| PodError::Spec(format!("environment variable {:?}: {why}", var.name)))?
        } else if let Some(source) = &var.value_from {
            match resolve_value_from(input, source)? {
                Some(value) => value,
                None => continue,
            }
        } else {
            String::new()
        };
        env.set_variable(&var.name, value)?;
    }
    for (name, value) in services {
        if env.get(&name).is_none() {
            env.set_variable(&name, value)?;
        }
    }
    Ok(env)
}

fn service_env(input: &EnvInput<'_>) -> Result<BTreeMap<String, String>, PodError> {
    let source = input.pod.metadata.annotations.get(CONFIG_SOURCE);
    let is_static = source.is_some_and(|source| source != "api");
    match input.services {
        Some(services) => {
            let links = input.pod.spec.enable_service_links.unwrap_or(true);
            Ok(service_variables(
                &input.pod.metadata.namespace,
                links,
                services,
            ))
        }
        None if is_static => Ok(BTreeMap::new()),
        None => Err(PodError::Node(
            "services have not been read yet, cannot construct environment".into(),
        )),
    }
}

fn env_from(input: &EnvInput<'_>, env: &mut EnvVariables) -> Result<(), PodError> {
    let namespace = input.pod.metadata.namespace.as_str();
    for source in &input.container.env_from {
        if let Some(reference) = &source.config_map_ref {
            match input.objects.config_map(namespace, &reference.name)? {
                Some(map) => {
                    for (key, value) in &map.data {
                        env.set_variable(&format!("{}{key}", source.prefix), value.clone())?;
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(object_not_found("configmap", &reference.name)),
            }
        }
        if let Some(reference) = &source.secret_ref {
            match input.objects.secret(namespace, &reference.name)? {
                Some(secret) => {
                    for (key, value) in &secret.data {
                        env.set_variable(
                            &format!("{}{key}", source.prefix),
                            text_of_bytes(&value.0),
                        )?;
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(object_not_found("secret", &reference.name)),
            }
        }
    }
    Ok(())
}

/// `Ok(None)`: optional and missing, the variable is left out.
fn resolve_value_from(
    input: &EnvInput<'_>,
    source: &EnvVarSource,
) -> Result<Option<String>, PodError> {
    let namespace = input.pod.metadata.namespace.as_str();
    if let Some(field) = &source.field_ref {
        return env_field(input.pod, field, input.place).map(Some);
    }
    if let Some(field) = &source.resource_field_ref {
        return resource_field(
            input.pod,
            Some(input.container),
            field,
            input.allocatable,
            UnsetLimit::PodThenNode,
        )
        .map(Some);
    }
    if let Some(reference) = &source.config_map_key_ref {
        let map = input.objects.config_map(namespace, &reference.name)?;
        let value = map.map(|map| map.data.get(&reference.key).cloned());
        return resolve_key_ref("configmap", namespace, reference, value);
    }
    if let Some(reference) = &source.secret_key_ref {
        let secret = input.objects.secret(namespace, &reference.name)?;
        let value = secret.map(|secret| {
            secret
                .data
                .get(&reference.key)
                .map(|value| text_of_bytes(&value.0))
        });
        return resolve_key_ref("secret", namespace, reference, value);
    }
    if let Some(reference) = &source.file_key_ref {
        return resolve_file_key(input, reference);
    }
    Ok(Some(String::new()))
}

fn resolve_key_ref(
    kind: &str,
    namespace: &str,
    reference: &KeyRef,
    found: Option<Option<String>>,
) -> Result<Option<String>, PodError> {
    match found {
        Some(Some(value)) => Ok(Some(value)),
        Some(None) | None if reference.optional == Some(true) => Ok(None),
        Some(None) => Err(PodError::Object(format!(
            "couldn't find key {} in {kind} {namespace}/{}",
            reference.key, reference.name
        ))),
        None => Err(object_not_found(kind, &reference.name)),
    }
}

/// "Not found" in the API server's words, which people search for.
pub(super) fn object_not_found(kind: &str, name: &str) -> PodError {
    PodError::Object(format!("{kind} {name:?} not found"))
}

/// Environment blocks are bytes to the kernel but text in every format on the way there.
fn text_of_bytes(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn resolve_file_key(
    input: &EnvInput<'_>,
    reference: &FileKeyRef,
) -> Result<Option<String>, PodError> {
    let FileKeyRef {
        volume_name,
        path,
        key,
        optional,
    } = reference;
    let content = input.objects.volume_file(volume_name, path)?;
    let value = env_file_value(&content, key).map_err(|error| {
        PodError::Object(format!("file {path:?} in volume {volume_name:?}: {error}"))
    })?;
    match value {
        Some(value) if value.len() > MAX_FILE_VALUE_BYTES => Err(PodError::Object(format!(
            "the value of key {key:?} in file {path:?} of volume {volume_name:?} has more than {MAX_FILE_VALUE_BYTES} bytes"
        ))),
        Some(value) if !value.is_empty() => Ok(Some(value)),
        Some(_) | None if *optional == Some(true) => Ok(None),
        Some(_) | None => Err(PodError::Object(format!(
            "environment variable key {key:?} not found in file {path:?} of volume {volume_name:?}"
        ))),
    }
}

/// First value of `key` among lines `KEY='value'`; a value may span lines (ENV-16).
///
/// Errors: a malformed line before the key.
fn env_file_value(content: &str, key: &str) -> Result<Option<String>, PodError> {
    let mut rest = content;
    let mut line_number = 1;
    while !rest.is_empty() {
        let (line, next) = rest.split_once('\n').unwrap_or((rest, ""));
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            rest = next;
            line_number += 1;
            continue;
        }
        let malformed =
            || PodError::Object(format!("line {line_number} is not of the form KEY='value'"));
        let (name, after) = rest.split_once("='").ok_or_else(malformed)?;
        let name = name.trim_start();
        if name.is_empty() || name.contains(['\n', '=', '\'', ' ', '\t']) {
            return Err(malformed());
        }
        let (value, tail) = after.split_once('\'').ok_or_else(malformed)?;
        let (remainder, next) = tail.split_once('\n').unwrap_or((tail, ""));
        let remainder = remainder.trim();
        if !remainder.is_empty() && !remainder.starts_with('#') {
            return Err(malformed());
        }
        if name == key {
            return Ok(Some(value.into()));
        }
        line_number += 1 + value.matches('\n').count();
        rest = next;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use serde_json::json;

    use super::*;

    struct Two(ConfigMap, Secret);
    impl ReferencedObjects for Two {
        fn config_map(&self, _: &str, name: &str) -> Result<Option<&ConfigMap>, PodError> {
            match name {
                "cm" => Ok(Some(&self.0)),
                "broken" => Err(PodError::Node("connection refused".into())),
                _ => Ok(None),
            }
        }
        fn secret(&self, _: &str, name: &str) -> Result<Option<&Secret>, PodError> {
            Ok((name == "sec").then_some(&self.1))
        }
        fn volume_file(&self, volume: &str, path: &str) -> Result<String, PodError> {
            match (volume, path) {
                ("v", "env") => {
                    Ok("# c\nA='1'\n\nB='two\nlines' # note\nA='3'\nE=''\nbad\nC='x'\n".into())
                }
                ("v", "literal") => Ok("A='$(HOME)'\n".into()),
                ("v", "longest") => Ok(format!("A='{}'", "x".repeat(32 << 10))),
                ("v", "longer") => Ok(format!("A='{}'", "x".repeat((32 << 10) + 1))),
                _ => Err(PodError::Object("no such volume".into())),
            }
        }
        fn service_account_token(&self, _: &str, _: Option<i64>) -> Result<Vec<u8>, PodError> {
            Err(PodError::Node("none".into()))
        }
    }

    fn build(
        container: &str,
        services: Option<&[EnvService]>,
    ) -> Result<Vec<(String, String)>, PodError> {
        let objects = Two(
            serde_json::from_str(r#"{"data":{"A":"cm-a","K":"cm-k"},"binaryData":{"BIN":"AA=="}}"#)
                .expect("configmap"),
            serde_json::from_str(r#"{"data":{"K":"c2VjLWs="}}"#).expect("secret"),
        );
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"web","namespace":"prod",
                "annotations":{"kubernetes.io/config.source":"file"}}}"#,
        )
        .expect("pod");
        let container: Container = serde_json::from_str(container).expect("container");
        let input = EnvInput {
            pod: &pod,
            container: &container,
            objects: &objects,
            services,
            place: PodPlacement {
                node_name: "pi",
                host_ips: &[],
                pod_ips: &[],
            },
            allocatable: Allocatable::default(),
        };
        build_environment(&input).map(EnvVariables::into_vec)
    }

    fn joined(env: Result<Vec<(String, String)>, PodError>) -> String {
        match env {
            Ok(env) => {
                let parts: Vec<String> = env.iter().map(|(n, v)| format!("{n}={v}")).collect();
                parts.join(" ")
            }
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn build_order_and_sources() {
        // ENV-01 ENV-02 ENV-03 ENV-04 ENV-05
        for (name, container, want) in [
            (
                "envFrom in order, env over it",
                r#"{"envFrom":[{"configMapRef":{"name":"cm"}},{"secretRef":{"name":"sec"}},
                    {"prefix":"P-","secretRef":{"name":"sec"}}],"env":[{"name":"A","value":"own"}]}"#,
                "A=own K=sec-k P-K=sec-k",
            ),
            (
                "expansion sees what is built already",
                r#"{"envFrom":[{"configMapRef":{"name":"cm"}}],"env":[{"name":"X","value":"$(A)-$(Y)"},
                    {"name":"Y","value":"y"},{"name":"Z","value":"$(X) $$(A)"}]}"#,
                "A=cm-a K=cm-k X=cm-a-$(Y) Y=y Z=cm-a-$(Y) $(A)",
            ),
            (
                "value wins over valueFrom",
                r#"{"env":[{"name":"X","value":"v","valueFrom":{"secretKeyRef":{"name":"none","key":"K"}}}]}"#,
                "X=v",
            ),
            (
                "keys of objects, field, empty",
                r#"{"env":[{"name":"S","valueFrom":{"secretKeyRef":{"name":"sec","key":"K"}}},
                    {"name":"C","valueFrom":{"configMapKeyRef":{"name":"cm","key":"A"}}},
                    {"name":"N","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},{"name":"E"}]}"#,
                "S=sec-k C=cm-a N=web E=",
            ),
            (
                "optional and missing is left out",
                r#"{"envFrom":[{"configMapRef":{"name":"none","optional":true}},{"secretRef":{"name":"none","optional":true}}],
                    "env":[{"name":"S","valueFrom":{"secretKeyRef":{"name":"none","key":"K","optional":true}}},
                    {"name":"C","valueFrom":{"configMapKeyRef":{"name":"cm","key":"none","optional":true}}}]}"#,
                "",
            ),
            (
                "missing object",
                r#"{"envFrom":[{"configMapRef":{"name":"none"}}]}"#,
                "error: configmap \"none\" not found",
            ),
            (
                "missing secret",
                r#"{"envFrom":[{"secretRef":{"name":"none"}}]}"#,
                "error: secret \"none\" not found",
            ),
            (
                "missing key",
                r#"{"env":[{"name":"S","valueFrom":{"secretKeyRef":{"name":"sec","key":"none"}}}]}"#,
                "error: couldn't find key none in secret prod/sec",
            ),
            (
                "binaryData is no env",
                r#"{"env":[{"name":"S","valueFrom":{"configMapKeyRef":{"name":"cm","key":"BIN"}}}]}"#,
                "error: couldn't find key BIN in configmap prod/cm",
            ),
            (
                "other errors are never optional",
                r#"{"envFrom":[{"configMapRef":{"name":"broken","optional":true}}]}"#,
                "error: connection refused",
            ),
        ] {
            assert_eq!(joined(build(container, Some(&[]))), want, "{name}");
        }
    }

    #[test]
    fn growth_is_bounded() {
        // Each variable ten times the one before; then one ConfigMap under many prefixes.
        let var = |at: usize| match at {
            0 => json!({"name": "V0", "value": "0123456789"}),
            _ => json!({"name": format!("V{at}"), "value": format!("$(V{})", at - 1).repeat(10)}),
        };
        let laughs: Vec<_> = (0..20).map(var).collect();
        let error = build(&json!({"env": laughs}).to_string(), Some(&[])).expect_err("bounded");
        assert!(
            error
                .to_string()
                .starts_with("environment variable \"V5\": is longer than 131071 bytes"),
            "{error}"
        );
        let large: Vec<_> = (0..100)
            .map(|at| json!({"name": format!("V{at}"), "value": "x".repeat(100_000)}))
            .collect();
        let error = build(&json!({"env": large}).to_string(), Some(&[])).expect_err("bounded");
        assert!(
            error.to_string().starts_with(
                "environment variable \"V62\": the environment has more than 6291456 bytes"
            ),
            "{error}"
        );
    }

    #[test]
    fn services_come_last() {
        // ENV-01 ENV-04 ENV-09
        let service = EnvService {
            name: "db".into(),
            namespace: "prod".into(),
            cluster_ip: "10.0.0.9".into(),
            ports: vec![],
        };
        let container = r#"{"env":[{"name":"URL","value":"$(DB_SERVICE_HOST)"},{"name":"DB_SERVICE_HOST","value":"me"}]}"#;
        assert_eq!(
            joined(build(container, Some(core::slice::from_ref(&service)))),
            "URL=10.0.0.9 DB_SERVICE_HOST=me"
        );
        assert_eq!(
            joined(build("{}", Some(&[service]))),
            "DB_SERVICE_HOST=10.0.0.9"
        );
        assert_eq!(joined(build("{}", None)), "", "static pods do not wait");
        let pod = Pod::default();
        let input = EnvInput {
            pod: &pod,
            container: &Container::default(),
            objects: &crate::testing::NoObjects,
            services: None,
            place: PodPlacement {
                node_name: "",
                host_ips: &[],
                pod_ips: &[],
            },
            allocatable: Allocatable::default(),
        };
        assert!(
            build_environment(&input).is_err(),
            "pods of the API server do"
        );
    }

    #[test]
    fn file_keys() {
        // ENV-16 ENVF-01 ENVF-02
        for (key, volume, optional, want) in [
            ("A", "v", false, "X=1"),
            ("B", "v", false, "X=two\nlines"),
            ("E", "v", true, ""),
            (
                "C",
                "v",
                true,
                "error: file \"env\" in volume \"v\": line 8 is not of the form KEY='value'",
            ),
            ("A", "w", true, "error: no such volume"),
            (
                "E",
                "v",
                false,
                "error: environment variable key \"E\" not found in file \"env\" of volume \"v\"",
            ),
        ] {
            let container = format!(
                r#"{{"env":[{{"name":"X","valueFrom":{{"fileKeyRef":
                    {{"volumeName":"{volume}","path":"env","key":"{key}","optional":{optional}}}}}}}]}}"#
            );
            assert_eq!(
                joined(build(&container, Some(&[]))),
                want,
                "{key} in {volume}"
            );
        }
        // What a file says is not expanded, and others see it.
        let literal = r#"{"env":[{"name":"X","valueFrom":{"fileKeyRef":{"volumeName":"v","path":"literal","key":"A"}}},
            {"name":"Y","value":"$(X)"}]}"#;
        assert_eq!(joined(build(literal, Some(&[]))), "X=$(HOME) Y=$(HOME)");
        for (path, fits) in [("longest", true), ("longer", false)] {
            let container = format!(
                r#"{{"env":[{{"name":"X","valueFrom":{{"fileKeyRef":{{"volumeName":"v","path":"{path}","key":"A"}}}}}}]}}"#
            );
            let built = build(&container, Some(&[]));
            assert_eq!(built.is_ok(), fits, "{path}");
            if let Err(e) = built {
                let says = "the value of key \"A\" in file \"longer\" of volume \"v\" has more than 32768 bytes";
                assert_eq!(e.to_string(), says, "and nothing of the file");
            }
        }
        for bad in ["A=1", "A='1", "A='1' x", "='1'", "A B='1'", "A=\"1\""] {
            assert!(env_file_value(bad, "Z").is_err(), "{bad}");
        }
        assert_eq!(env_file_value("A='1'", "Z"), Ok(None));
    }
}
