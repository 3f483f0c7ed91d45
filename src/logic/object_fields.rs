//! Fields of pods, ConfigMaps and Secrets, as Kubernetes 1.37 knows them: finds keys that no Kubernetes has, and fields that
//! this node does not act upon although a pod runs otherwise with them.
//!
//! A reader of values passes over what its types do not have. So this looks at the raw object, by a table of its own.
//! `tests/golden/fields/kubernetes-1.37.txt` has each field, what becomes of it here, and the reason if it has no effect.

use alloc::{format, string::String, vec::Vec};

use serde_json::{Value, json};

use super::spelling::{MAX_NAME_BYTES, describe_unknown_field, nearest_name};
use crate::api::pod_status::ContainerStatus;

/// Most findings of one object: the rest says nothing new.
pub const MAX_FINDINGS: usize = 20;

/// A line for each type: its name, then its fields. `:Type` names the type of a field's value, or of its items. The last
/// sign says what becomes of a field: `!` a pod would run otherwise with it, so it is refused or told; `~` nothing that
/// this node does depends on it; `=` nothing runs with it.
const TYPES: &str = "\
Pod apiVersion kind metadata:ObjectMeta spec:PodSpec status~
ConfigMap apiVersion kind metadata:ObjectMeta data binaryData immutable
Secret apiVersion kind metadata:ObjectMeta data stringData type immutable
ObjectMeta name generateName~ namespace selfLink~ uid resourceVersion generation creationTimestamp deletionTimestamp \
deletionGracePeriodSeconds labels annotations ownerReferences~ finalizers~ managedFields~
PodSpec volumes:Volume initContainers:Container containers:Container ephemeralContainers:Container restartPolicy \
terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy nodeSelector serviceAccountName serviceAccount~ \
automountServiceAccountToken~ nodeName hostNetwork hostPID hostIPC shareProcessNamespace securityContext:PodSecurityContext \
imagePullSecrets:LocalObjectReference hostname subdomain affinity:Affinity schedulerName~ tolerations:Toleration \
hostAliases:HostAlias priorityClassName~ priority dnsConfig:PodDNSConfig readinessGates:PodReadinessGate runtimeClassName \
enableServiceLinks preemptionPolicy~ overhead topologySpreadConstraints~ setHostnameAsFQDN os:PodOS hostUsers schedulingGates= \
resourceClaims:PodResourceClaim= resources:ResourceRequirements hostnameOverride schedulingGroup~ evictionResponders~
Volume name hostPath:HostPathVolumeSource emptyDir:EmptyDirVolumeSource secret:SecretVolumeSource nfs:NFSVolumeSource \
persistentVolumeClaim:PersistentVolumeClaimVolumeSource downwardAPI:DownwardAPIVolumeSource configMap:ConfigMapVolumeSource \
projected:ProjectedVolumeSource ephemeral:EphemeralVolumeSource image:ImageVolumeSource gcePersistentDisk= \
awsElasticBlockStore= gitRepo= iscsi= glusterfs= rbd= flexVolume= cinder= cephfs= flocker= fc= azureFile= vsphereVolume= \
quobyte= azureDisk= photonPersistentDisk= portworxVolume= scaleIO= storageos= csi=
HostPathVolumeSource path type
EmptyDirVolumeSource medium sizeLimit mode!
SecretVolumeSource secretName items:KeyToPath defaultMode optional defaultUser!
KeyToPath key path mode user!
NFSVolumeSource server path readOnly
PersistentVolumeClaimVolumeSource claimName readOnly
DownwardAPIVolumeSource items:DownwardAPIVolumeFile defaultMode defaultUser!
DownwardAPIVolumeFile path fieldRef:ObjectFieldSelector resourceFieldRef:ResourceFieldSelector mode user!
ConfigMapVolumeSource name items:KeyToPath defaultMode optional defaultUser!
ProjectedVolumeSource sources:VolumeProjection defaultMode defaultUser!
VolumeProjection secret:SecretProjection downwardAPI:DownwardAPIProjection configMap:ConfigMapProjection \
serviceAccountToken:ServiceAccountTokenProjection clusterTrustBundle:ClusterTrustBundleProjection \
podCertificate:PodCertificateProjection
SecretProjection name items:KeyToPath optional
DownwardAPIProjection items:DownwardAPIVolumeFile
ConfigMapProjection name items:KeyToPath optional
ServiceAccountTokenProjection audience expirationSeconds path user!
ClusterTrustBundleProjection name signerName labelSelector:LabelSelector optional path user!
PodCertificateProjection signerName keyType maxExpirationSeconds credentialBundlePath keyPath certificateChainPath \
userAnnotations user!
LabelSelector matchLabels matchExpressions:LabelSelectorRequirement
LabelSelectorRequirement key operator values
EphemeralVolumeSource volumeClaimTemplate~
ImageVolumeSource reference pullPolicy
Container name image command args workingDir ports:ContainerPort envFrom:EnvFromSource env:EnvVar \
resources:ResourceRequirements resizePolicy:ContainerResizePolicy~ restartPolicy restartPolicyRules:ContainerRestartRule \
volumeMounts:VolumeMount volumeDevices:VolumeDevice= livenessProbe:Probe readinessProbe:Probe startupProbe:Probe \
lifecycle:Lifecycle terminationMessagePath terminationMessagePolicy imagePullPolicy securityContext:SecurityContext stdin \
stdinOnce tty targetContainerName
ContainerPort name hostPort containerPort protocol hostIP
EnvFromSource prefix configMapRef:ConfigMapEnvSource secretRef:SecretEnvSource
ConfigMapEnvSource name optional
SecretEnvSource name optional
EnvVar name value valueFrom:EnvVarSource
EnvVarSource fieldRef:ObjectFieldSelector resourceFieldRef:ResourceFieldSelector configMapKeyRef:ConfigMapKeySelector \
secretKeyRef:SecretKeySelector fileKeyRef:FileKeySelector
ObjectFieldSelector apiVersion fieldPath
ResourceFieldSelector containerName resource divisor
ConfigMapKeySelector name key optional
SecretKeySelector name key optional
FileKeySelector volumeName path key optional
ResourceRequirements limits requests claims!
ContainerResizePolicy resourceName~ restartPolicy~
ContainerRestartRule action exitCodes:ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes operator values
VolumeMount name readOnly recursiveReadOnly mountPath subPath mountPropagation subPathExpr bindMountOptions!
VolumeDevice name= devicePath=
Probe exec:ExecAction httpGet:HTTPGetAction tcpSocket:TCPSocketAction grpc:GRPCAction initialDelaySeconds timeoutSeconds \
periodSeconds successThreshold failureThreshold terminationGracePeriodSeconds
Lifecycle postStart:LifecycleHandler preStop:LifecycleHandler stopSignal
LifecycleHandler exec:ExecAction httpGet:HTTPGetAction tcpSocket:TCPSocketAction sleep:SleepAction
ExecAction command
HTTPGetAction path port host scheme httpHeaders:HTTPHeader protocol!
HTTPHeader name value
TCPSocketAction port host
GRPCAction port service mode!
SleepAction seconds
SecurityContext capabilities:Capabilities privileged seLinuxOptions:SELinuxOptions windowsOptions~ runAsUser runAsGroup \
runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation procMount seccompProfile:SeccompProfile \
appArmorProfile:AppArmorProfile
Capabilities add drop
SELinuxOptions user role type level
SeccompProfile type localhostProfile
AppArmorProfile type localhostProfile
PodSecurityContext seLinuxOptions:SELinuxOptions windowsOptions~ runAsUser runAsGroup runAsNonRoot supplementalGroups \
supplementalGroupsPolicy fsGroup sysctls:Sysctl fsGroupChangePolicy seccompProfile:SeccompProfile \
appArmorProfile:AppArmorProfile seLinuxChangePolicy~
Sysctl name value
LocalObjectReference name
Affinity nodeAffinity:NodeAffinity podAffinity~ podAntiAffinity~
NodeAffinity requiredDuringSchedulingIgnoredDuringExecution:NodeSelector preferredDuringSchedulingIgnoredDuringExecution~
NodeSelector nodeSelectorTerms:NodeSelectorTerm
NodeSelectorTerm matchExpressions:NodeSelectorRequirement matchFields:NodeSelectorRequirement
NodeSelectorRequirement key operator values
Toleration key operator value effect tolerationSeconds~
HostAlias ip hostnames
PodDNSConfig nameservers searches options:PodDNSConfigOption
PodDNSConfigOption name value
PodReadinessGate conditionType
PodOS name
PodResourceClaim name= resourceClaimName= resourceClaimTemplateName=
";

/// Places of most fields, with their types.
const HOMES: [(&str, &str); 3] = [
    ("spec", "PodSpec"),
    ("a container", "Container"),
    ("metadata", "ObjectMeta"),
];

/// A field of [`TYPES`].
#[derive(Clone, Copy)]
struct KnownField<'a> {
    name: &'a str,
    /// Type of the value, or of its items; empty if it has no fields of its own.
    holds: &'a str,
    /// Last sign; a space if there is none.
    mark: char,
}

/// Lists the fields of a type; none if the table does not have the type.
fn fields_of(name: &str) -> impl Iterator<Item = KnownField<'static>> {
    let rest = |line: &'static str| line.strip_prefix(name)?.strip_prefix(' ');
    let line = TYPES.lines().find_map(rest).unwrap_or("");
    line.split(' ').filter(|word| !word.is_empty()).map(|word| {
        let (word, mark) = match word.as_bytes().last() {
            Some(b'!' | b'~' | b'=') => word.split_at(word.len() - 1),
            _ => (word, " "),
        };
        let (name, holds) = word.split_once(':').unwrap_or((word, ""));
        let mark = mark.chars().next().unwrap_or(' ');
        KnownField { name, holds, mark }
    })
}

/// Lists the fields at a path such as `pod.spec.containers`, one a line below the line of the path's own field: its name,
/// the type of its value or items, and what becomes of it here. `None`: there is no such field.
#[must_use]
pub fn explain_field(path: &str) -> Option<String> {
    let mut names = path.split('.');
    let kind = match names.next()? {
        "pod" | "pods" | "po" => "Pod",
        "configmap" | "configmaps" | "cm" => "ConfigMap",
        "secret" | "secrets" => "Secret",
        _ => return None,
    };
    let mut field = KnownField {
        name: kind,
        holds: kind,
        mark: ' ',
    };
    for name in names {
        field = fields_of(field.holds).find(|known| known.name == name)?;
    }
    let mut out = String::new();
    let mut indent = "";
    for known in core::iter::once(field).chain(fields_of(field.holds)) {
        let holds = match known.holds {
            "" => String::new(),
            holds => format!(" <{holds}>"),
        };
        let note = match known.mark {
            '!' => "  (not supported: refused in a static pod)",
            '~' => "  (no effect on this node)",
            '=' => "  (not supported: no pod runs with it)",
            _ => "",
        };
        out += &[indent, known.name, &holds, note, "\n"].concat();
        indent = "  ";
    }
    Some(out)
}

/// Names the fields of a pod that change what runs, and that this node leaves out.
///
/// - Shape: paths such as `spec.volumes[0].emptyDir.mode`, at most [`MAX_FINDINGS`].
#[must_use]
pub fn unsupported_fields(pod: &Value) -> Vec<String> {
    let mut found = Vec::new();
    visit_fields(pod, "Pod", "", &mut |path, field| {
        // Values that mean what this node does in any case.
        let is_default = match field.owner {
            "HTTPGetAction" => field.value == "HTTP1",
            "GRPCAction" => field.value == "Plaintext",
            "EmptyDirVolumeSource" => field.value == 0o777,
            _ => false,
        };
        let counts = field.known.is_some_and(|known| known.mark == '!') && !is_default;
        if counts && !is_unset(field.value) && found.len() < MAX_FINDINGS {
            found.push(path.into());
        }
    });
    found
}

/// Describes for an event which fields of a pod this node leaves out; `None`: there are none.
///
/// `raw` is the pod as it was received. Of a pod that is known already (`is_new` is not set) only ephemeral containers count
/// that have no status yet: the others were told of.
#[must_use]
pub fn describe_unsupported_fields(
    raw: &Value,
    ephemeral: &[ContainerStatus],
    is_new: bool,
) -> Option<String> {
    let fields = if is_new {
        unsupported_fields(raw)
    } else {
        let mut added = raw["spec"]["ephemeralContainers"].clone();
        for container in added.as_array_mut().into_iter().flatten() {
            if ephemeral
                .iter()
                .any(|status| container["name"] == *status.name)
            {
                *container = Value::Null;
            }
        }
        unsupported_fields(&json!({"spec": {"ephemeralContainers": added}}))
    };
    match &*fields {
        [] => None,
        [field] => Some(format!("field {field} is not supported by this node")),
        fields => Some(format!(
            "fields {} are not supported by this node",
            fields.join(", ")
        )),
    }
}

/// Names the keys of a Pod, ConfigMap or Secret that no Kubernetes has, one sentence each with the nearest known key.
///
/// - Shape: at most [`MAX_FINDINGS`]; none for an object of another kind.
#[must_use]
pub fn misspelt_keys(object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let kind = object["kind"].as_str().unwrap_or("");
    visit_fields(object, kind, "", &mut |path, field| {
        if field.known.is_none() && found.len() < MAX_FINDINGS {
            let mut names = fields_of(field.owner).map(|known| known.name);
            let near = nearest_name(field.key, &mut names);
            found.push(describe_unknown_field(
                path,
                near,
                find_other_owner(field.key),
            ));
        }
    });
    found
}

/// A field of an object, in a value of type `owner`.
struct ObjectField<'a> {
    owner: &'a str,
    key: &'a str,
    value: &'a Value,
    /// `None`: the table does not have it.
    known: Option<KnownField<'static>>,
}

/// Takes a path, and the field there.
type FieldVisitor<'a> = dyn FnMut(&str, &ObjectField<'_>) + 'a;

/// Shows `visit` each field below `value`, which is a `holds` or a list of them.
fn visit_fields(value: &Value, holds: &str, path: &str, visit: &mut FieldVisitor<'_>) {
    let all: Vec<KnownField<'_>> = fields_of(holds).collect();
    if !all.is_empty() {
        visit_type_fields(value, (holds, &all), path, visit);
    }
}

fn visit_type_fields(
    value: &Value,
    of: (&str, &[KnownField<'static>]),
    path: &str,
    visit: &mut FieldVisitor<'_>,
) {
    let (owner, all) = of;
    match value {
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                visit_type_fields(item, of, &format!("{path}[{n}]"), visit);
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                let key = &key[..key.floor_char_boundary(MAX_NAME_BYTES)];
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{key}");
                let known = all.iter().find(|known| known.name == key).copied();
                let field = ObjectField {
                    owner,
                    key,
                    value,
                    known,
                };
                visit(&path, &field);
                if let Some(known) = known {
                    visit_fields(value, known.holds, &path, visit);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns true for a value that Go reads as an absent one. A number or `false` may be meant.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Finds the place of a field that is known elsewhere: one of [`HOMES`], or the first field whose value has it.
fn find_other_owner(key: &str) -> Option<&'static str> {
    let has = |owner: &str| fields_of(owner).any(|known| known.name == key);
    let home = HOMES.iter().find(|(_, owner)| has(owner));
    let elsewhere = || {
        let types = TYPES.lines().filter_map(|line| line.split(' ').next());
        types.flat_map(fields_of).find(|known| has(known.holds))
    };
    home.map(|(home, _)| *home)
        .or_else(|| elsewhere().map(|known| known.name))
}

#[cfg(test)]
mod tests;
