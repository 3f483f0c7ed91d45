//! The tables of types: what fields there are, and since when.

/// The grammar: `name` is a string; `:i` a number, `:b` a boolean, `:t` a time that is null when absent, `:u` a
/// microsecond time, `:m` strings by key, `:q` quantities by key, `:y` base64, `:z` base64 by key, `:*` anything; capitals are pointers,
/// kept when zero. `x[…]` is a list of objects, `x[]` of strings, `x{…}` an object. `!` is written even when empty.
pub(super) const META: &str = "name generateName namespace uid resourceVersion generation:i creationTimestamp:T \
    deletionTimestamp:T deletionGracePeriodSeconds:I labels:m annotations:m \
    ownerReferences[apiVersion! kind! name! uid! controller:B blockOwnerDeletion:B] finalizers[]";

const STATE: &str = "waiting{reason message} running{startedAt:t} \
    terminated{exitCode:i! signal:i reason message startedAt:t finishedAt:t containerID}";

const CONTAINER: &str = "name! state{STATE}! lastState{STATE}! ready:b! restartCount:i! image! imageID! containerID \
    started:B allocatedResources:q resources{limits:q requests:q claims[name! request]} \
    volumeMounts[name! mountPath! readOnly:b recursiveReadOnly:S volumeStatus:*] \
    user{linux{uid:i! gid:i! supplementalGroups:*}} allocatedResourcesStatus:* stopSignal:S";

const REFERENCE: &str = "kind namespace name uid apiVersion resourceVersion fieldPath";

pub(super) const SCHEMAS: &[(&str, &str, &str)] = &[
    (
        "",
        "pods",
        "spec{PODSPEC}! status{observedGeneration:i phase \
         conditions[type! observedGeneration:i status! lastProbeTime:t lastTransitionTime:t reason message] \
         message reason nominatedNodeName hostIP hostIPs[ip!] podIP podIPs[ip!] startTime:T \
         initContainerStatuses[CONTAINER] containerStatuses[CONTAINER] qosClass \
         ephemeralContainerStatuses[CONTAINER] resize resourceClaimStatuses[name! resourceClaimName:S] \
         extendedResourceClaimStatus:* allocatedResources:q resources{limits:q requests:q claims[name! request]} \
         nodeAllocatableResourceClaimStatuses:*}!",
    ),
    (
        "",
        "nodes",
        "spec{podCIDR podCIDRs[] providerID unschedulable:b taints[key! value effect! timeAdded:T] configSource:* \
         externalID}! \
         status{capacity:q allocatable:q phase \
         conditions[type! status! lastHeartbeatTime:t lastTransitionTime:t reason message] addresses[type! address!] \
         daemonEndpoints{kubeletEndpoint{Port:i!}!}! \
         nodeInfo{machineID! systemUUID! bootID! kernelVersion! osImage! containerRuntimeVersion! kubeletVersion! \
         kubeProxyVersion! operatingSystem! architecture! swap{capacity:I}}! \
         images[names[]! sizeBytes:i] volumesInUse[] volumesAttached[name! devicePath!] config:* \
         runtimeHandlers[name! features{recursiveReadOnlyMounts:B userNamespaces:B}] \
         features{supplementalGroupsPolicy:B} declaredFeatures[]}!",
    ),
    (
        "coordination.k8s.io",
        "leases",
        "spec{holderIdentity:S leaseDurationSeconds:I acquireTime:U renewTime:U leaseTransitions:I strategy:S \
         preferredHolder:S}!",
    ),
    (
        "",
        "events",
        "involvedObject{REFERENCE}! reason message source{component host}! firstTimestamp:t lastTimestamp:t count:i \
         type eventTime:u series{count:i lastObservedTime:u} action related{REFERENCE} reportingComponent! \
         reportingInstance!",
    ),
    (
        "certificates.k8s.io",
        "certificatesigningrequests",
        "spec{request:y! signerName! expirationSeconds:I usages[] username uid groups[] extra:*}! \
         status{conditions[type! status! reason message lastUpdateTime:t lastTransitionTime:t] certificate:y}!",
    ),
    (
        "certificates.k8s.io",
        "clustertrustbundles",
        "spec{signerName trustBundle!}!",
    ),
    (
        "certificates.k8s.io",
        "podcertificaterequests",
        "spec{signerName! podName! podUID! serviceAccountName! serviceAccountUID! nodeName! nodeUID! \
         maxExpirationSeconds:I stubPKCS10Request:y! unverifiedUserAnnotations:m}! \
         status{conditions[type! status! observedGeneration:i lastTransitionTime:t reason message] certificateChain \
         notBefore:T beginRefreshAt:T notAfter:T}!",
    ),
    ("", "configmaps", "data:m binaryData:z immutable:B"),
    ("", "secrets", "data:z stringData:m type immutable:B"),
    (
        "",
        "serviceaccounts",
        "secrets:* imagePullSecrets:* automountServiceAccountToken:B",
    ),
    (
        "authentication.k8s.io",
        "tokenrequests",
        "spec{audiences[] expirationSeconds:I boundObjectRef{kind apiVersion name uid}}! status:*",
    ),
];

const PODSPEC: &str = "volumes[name! hostPath{path! type:S} emptyDir{medium sizeLimit:*} gcePersistentDisk:* \
     awsElasticBlockStore:* gitRepo:* secret{secretName itemsITEMS defaultMode:I optional:B} nfs{server! \
     path! readOnly:b} iscsi:* glusterfs:* persistentVolumeClaim{claimName! readOnly:b} rbd:* \
     flexVolume:* cinder:* cephfs:* flocker:* downwardAPI{items[path! FIELDREF mode:I] defaultMode:I} \
     fc:* azureFile:* configMap{name itemsITEMS defaultMode:I optional:B} vsphereVolume:* quobyte:* \
     azureDisk:* photonPersistentDisk:* projected{sources[secret{name itemsITEMS optional:B} \
     downwardAPI{items[path! FIELDREF mode:I]} configMap{name itemsITEMS optional:B} \
     serviceAccountToken{audience expirationSeconds:I path!} clusterTrustBundle:* podCertificate:*]! \
     defaultMode:I} portworxVolume:* scaleIO:* storageos:* csi{driver! readOnly:B fsType:S \
     volumeAttributes:m nodePublishSecretRef{name}} ephemeral:* image{reference pullPolicy}] \
     initContainers[CSPEC] containers[CSPEC]! ephemeralContainers:* restartPolicy \
     terminationGracePeriodSeconds:I activeDeadlineSeconds:I dnsPolicy nodeSelector:m serviceAccountName \
     serviceAccount automountServiceAccountToken:B nodeName hostNetwork:b hostPID:b hostIPC:b \
     shareProcessNamespace:B securityContext{seLinuxOptions:* windowsOptions:* runAsUser:I runAsGroup:I \
     runAsNonRoot:B supplementalGroups:* supplementalGroupsPolicy:S fsGroup:I sysctls[name! value!] \
     fsGroupChangePolicy:S seccompProfile{type! localhostProfile:S} appArmorProfile{type! \
     localhostProfile:S} seLinuxChangePolicy:S} imagePullSecrets[name] hostname subdomain affinity:* \
     schedulerName tolerations[key operator value effect tolerationSeconds:I] hostAliases[ip! \
     hostnames[]] priorityClassName priority:I dnsConfig{nameservers[] searches[] options[name value:S]} \
     readinessGates[conditionType!] runtimeClassName:S enableServiceLinks:B preemptionPolicy:S overhead:q \
     topologySpreadConstraints:* setHostnameAsFQDN:B os{name!} hostUsers:B schedulingGates:* \
     resourceClaims:* resources{limits:q requests:q claims[name! request]} hostnameOverride:S \
     schedulingGroup:*";

const CSPEC: &str = "name! image command[] args[] workingDir ports[name hostPort:i containerPort:i! protocol hostIP] \
     envFrom[prefix configMapRef{name optional:B} secretRef{name optional:B}] env[name! value \
     valueFrom{FIELDREF configMapKeyRef{name key! optional:B} secretKeyRef{name key! optional:B} \
     fileKeyRef{volumeName! path! key! optional:B}}] resources{limits:q requests:q claims[name! \
     request]}! resizePolicy[resourceName! restartPolicy!] restartPolicy:S restartPolicyRules[action \
     exitCodes{operator values:*}] volumeMounts[name! readOnly:b recursiveReadOnly:S mountPath! subPath \
     mountPropagation:S subPathExpr] volumeDevices[name! devicePath!] livenessProbePROBE \
     readinessProbePROBE startupProbePROBE lifecycle{postStart{ACTION sleep{seconds:i!}} preStop{ACTION \
     sleep{seconds:i!}} stopSignal:S} terminationMessagePath terminationMessagePolicy imagePullPolicy \
     securityContext{capabilities{add[] drop[]} privileged:B seLinuxOptions:* windowsOptions:* \
     runAsUser:I runAsGroup:I runAsNonRoot:B readOnlyRootFilesystem:B allowPrivilegeEscalation:B \
     procMount:S seccompProfile{type! localhostProfile:S} appArmorProfile{type! localhostProfile:S}} \
     stdin:b stdinOnce:b tty:b";

const PROBE: &str = "{ACTION grpc{port:i! service:S!} initialDelaySeconds:i timeoutSeconds:i periodSeconds:i \
     successThreshold:i failureThreshold:i terminationGracePeriodSeconds:I}";

const ACTION: &str = "exec{command[]} httpGet{path port:* host scheme httpHeaders[name! value!]} tcpSocket{port:* host}";

const FIELDREF: &str =
    "fieldRef{apiVersion fieldPath!} resourceFieldRef{containerName resource! divisor:*}";

/// Words of the tables that stand for others, in the order in which they are replaced.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("CONTAINER", CONTAINER),
    ("STATE", STATE),
    ("REFERENCE", REFERENCE),
    ("PODSPEC", PODSPEC),
    ("CSPEC", CSPEC),
    ("PROBE", PROBE),
    ("ACTION", ACTION),
    ("FIELDREF", FIELDREF),
    ("ITEMS", "[key! path! mode:I]"),
];

/// Fields that older servers do not know or drop, by resource, with the first minor version that keeps them. `*` is
/// each element, `STATUSES` each of the three lists of container statuses. From the versions of the feature gates.
pub(super) const SINCE: &[(&str, &str, u32)] = &[
    ("pods", "status/observedGeneration", 34),
    ("pods", "status/conditions/*/observedGeneration", 34),
    ("pods", "status/STATUSES/*/resources", 33),
    ("pods", "status/STATUSES/*/allocatedResources", 33),
    ("pods", "status/STATUSES/*/volumeMounts", 31),
    ("pods", "status/STATUSES/*/user", 33),
    ("pods", "status/STATUSES/*/stopSignal", 33),
    ("pods", "status/STATUSES/*/allocatedResourcesStatus", 36),
    ("pods", "status/allocatedResources", 36),
    ("pods", "status/resources", 36),
    ("pods", "status/extendedResourceClaimStatus", 36),
    // Behind a gate that is off.
    (
        "pods",
        "status/nodeAllocatableResourceClaimStatuses",
        u32::MAX,
    ),
    ("nodes", "status/runtimeHandlers", 31),
    ("nodes", "status/features", 33),
    ("nodes", "status/nodeInfo/swap", 34),
    ("nodes", "status/declaredFeatures", 36),
];
