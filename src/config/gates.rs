//! Names of the feature gates of Kubernetes 1.28 to 1.37. Of these only [`MEMORY_QOS`] changes what this agent does.

/// The gate that has an effect here (CG-16).
pub(super) const MEMORY_QOS: &str = "MemoryQoS";

/// Returns true if a Kubernetes has a gate of this name.
pub(super) fn is_known_gate(name: &str) -> bool {
    KNOWN.contains(&hash(name))
}

/// Hashes of [`NAMES`]: the program carries four bytes of each name.
static KNOWN: [u32; NAMES.len()] = {
    let mut hashes = [0; NAMES.len()];
    let mut n = 0;
    while n < NAMES.len() {
        hashes[n] = hash(NAMES[n]);
        n += 1;
    }
    hashes
};

/// FNV-1a of 32 bits.
const fn hash(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    let mut n = 0;
    while n < bytes.len() {
        hash = (hash ^ bytes[n] as u32).wrapping_mul(0x0100_0193);
        n += 1;
    }
    hash
}

/// Sorted. Gates that were removed before 1.28 are absent: a kubelet refuses them too.
///
/// - Source: `test/compatibility_lifecycle/reference/feature_list.md`.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    "APIListChunking", "APIPriorityAndFairness", "APIResponseCompression", "APISelfSubjectReview",
    "APIServerIdentity", "APIServerTracing", "APIServerWebhookAuthenticationToken", "APIServingWithRoutine",
    "AdmissionWebhookMatchConditions", "AggregatedDiscoveryEndpoint", "AggregatedDiscoveryRemoveBetaType",
    "AllAlpha", "AllBeta", "AllowDNSOnlyNodeCSR", "AllowInsecureKubeletCertificateSigningRequests",
    "AllowOverwriteTerminationGracePeriodSeconds", "AllowParsingUserUIDFromCertAuth", "AllowServiceLBStatusOnNonLB",
    "AllowUnsafeMalformedObjectDeletion", "AnonymousAuthConfigurableEndpoints", "AnyVolumeDataSource", "AppArmor",
    "AppArmorFields", "AtomicFIFO", "AtomicWriteVolumeUserFields", "AuthorizeNodeWithSelectors",
    "AuthorizePodWebsocketUpgradeCreatePermission", "AuthorizeWithSelectors", "BtreeWatchCache",
    "CBORServingAndStorage", "CPUManager", "CPUManagerPolicyAlphaOptions", "CPUManagerPolicyBetaOptions",
    "CPUManagerPolicyOptions", "CRDObservedGenerationTracking", "CRDValidationRatcheting", "CRIListStreaming",
    "CSIMigrationAzureFile", "CSIMigrationPortworx", "CSIMigrationRBD", "CSIMigrationvSphere",
    "CSINodeExpandSecret", "CSIServiceAccountTokenSecrets", "CSIVolumeHealth",
    "ChangeContainerStatusOnKubeletRestart", "ClearingNominatedNodeNameAfterBinding", "ClientsAllowCARotation",
    "ClientsAllowCBOR", "ClientsAllowTLSCacheGC", "ClientsPreferCBOR",
    "CloudControllerManagerWatchBasedRoutesReconciliation", "CloudControllerManagerWebhook",
    "CloudDualStackNodeIPs", "CloudNodeAdditionalLabelsReconciliation", "ClusterTrustBundle",
    "ClusterTrustBundleProjection", "ComponentFlagz", "ComponentSLIs", "ComponentStatusz", "CompositePodGroup",
    "ConcurrentWatchObjectDecode", "ConditionalAuthorization", "ConsistentHTTPGetHandlers",
    "ConsistentListFromCache", "ConsistentListFromCacheSkipTimeoutFallback", "ConstrainedImpersonation",
    "ContainerCheckpoint", "ContainerRestartRules", "ContainerStopSignals", "ContextualLogging",
    "ControllerManagerReleaseLeaderElectionLockOnExit", "CoordinatedLeaderElection", "CronJobTimeZone",
    "CronJobsScheduledAnnotation", "CrossNamespaceVolumeDataSource", "CustomCPUCFSQuotaPeriod",
    "CustomResourceFieldSelectors", "CustomResourceValidationExpressions", "DRAAdminAccess",
    "DRAConsumableCapacity", "DRAControlPlaneController", "DRADerivedAttributes", "DRADeviceBindingConditions",
    "DRADeviceCompatibilityGroups", "DRADeviceTaintRules", "DRADeviceTaints", "DRAExtendedResource",
    "DRAFractionalCapacityRange", "DRAListTypeAttributes", "DRANodeAllocatableResources",
    "DRAOptionalNodeOperations", "DRAPartitionableDevices", "DRAPartitionableDevicesType", "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus", "DRAResourceClaimGranularStatusAuthorization", "DRAResourcePoolStatus",
    "DRASchedulerFilterTimeout", "DRAWorkloadResourceClaims", "DaemonSetUpdateSurge", "DeclarativeValidation",
    "DeclarativeValidationBeta", "DeclarativeValidationTakeover", "DefaultHostNetworkHostPortsInPodTemplates",
    "DeploymentPodReplacementPolicy", "DeploymentReplicaSetTerminatingReplicas", "DetectCacheInconsistency",
    "DevicePluginCDIDevices", "DisableAllocatorDualWrite", "DisableCPUQuotaWithExclusiveCPUs",
    "DisableCloudProviders", "DisableKubeletCloudCredentialProviders", "DisableNodeKubeProxyVersion",
    "DownwardAPIHugePages", "DynamicResourceAllocation", "EfficientWatchResumption", "ElasticIndexedJob",
    "EmptyDirVolumeMode", "EnvFiles", "EtcdRangeStream", "EventedPLEG", "EvictionRequestAPI",
    "ExcludeAdmissionWebhookVirtualResources", "ExecProbeTimeout", "ExpandedDNSConfig",
    "ExperimentalHostUserNamespaceDefaulting", "ExtendWebSocketsToKubelet", "ExternalServiceAccountTokenSigner",
    "GRPCContainerProbe", "GRPCContainerProbeTLS", "GangScheduling", "GenericWorkload", "GitRepoVolumeDriver",
    "GracefulNodeShutdown", "GracefulNodeShutdownBasedOnPodPriority", "H2CContainerProbe",
    "HPAConfigurableTolerance", "HPAContainerMetrics", "HPAScaleToZero", "HonorPVReclaimPolicy", "HostnameOverride",
    "IPTablesOwnershipCleanup", "ImageMaximumGCAge", "ImageVolume", "ImageVolumeWithDigest", "InOrderInformers",
    "InOrderInformersBatchProcess", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScaling",
    "InPlacePodVerticalScalingAllocatedStatus", "InPlacePodVerticalScalingExclusiveCPUs",
    "InPlacePodVerticalScalingExclusiveMemory", "InPlacePodVerticalScalingInitContainers",
    "InPlacePodVerticalScalingSchedulerPreemption", "InTreePluginAWSUnregister", "InTreePluginAzureDiskUnregister",
    "InTreePluginAzureFileUnregister", "InTreePluginGCEUnregister", "InTreePluginOpenStackUnregister",
    "InTreePluginPortworxUnregister", "InTreePluginRBDUnregister", "InTreePluginvSphereUnregister",
    "InformerResourceVersion", "InterPodAffinityHostnameFastPath", "JobBackoffLimitPerIndex", "JobManagedBy",
    "JobMutableNodeSchedulingDirectives", "JobPodFailurePolicy", "JobPodReplacementPolicy", "JobReadyPods",
    "JobSuccessPolicy", "JobTrackingWithFinalizers", "KMSv1", "KMSv2", "KMSv2KDF",
    "KubeProxyDrainingTerminatingNodes", "KubeletCgroupDriverFromCRI", "KubeletCrashLoopBackOffMax",
    "KubeletCredentialProviders", "KubeletEnsureSecretPulledImages", "KubeletFineGrainedAuthz",
    "KubeletInUserNamespace", "KubeletPSI", "KubeletPodResources", "KubeletPodResourcesDynamicResources",
    "KubeletPodResourcesGet", "KubeletPodResourcesGetAllocatable", "KubeletPodResourcesListUseActivePods",
    "KubeletRegistrationGetOnExistsOnly", "KubeletSeparateDiskGC",
    "KubeletServiceAccountTokenForCredentialProviders", "KubeletTracing", "LegacyServiceAccountTokenCleanUp",
    "LegacyServiceAccountTokenNoAutoGeneration", "LegacyServiceAccountTokenTracking", "LegacySidecarContainers",
    "ListFromCacheSnapshot", "LoadBalancerIPMode", "LocalStorageCapacityIsolationFSQuotaMonitoring",
    "LogarithmicScaleDown", "LoggingAlphaOptions", "LoggingBetaOptions", "LoggingStableOptions",
    "ManifestBasedAdmissionControlConfig", "MatchLabelKeysInPodAffinity", "MatchLabelKeysInPodTopologySpread",
    "MatchLabelKeysInPodTopologySpreadSelectorMerge", "MaxUnavailableStatefulSet", "MemoryManager", "MemoryQoS",
    "MinDomainsInPodTopologySpread", "MinimizeIPTablesRestore", "MultiCIDRRangeAllocator",
    "MultiCIDRServiceAllocator", "MutableCSINodeAllocatableCount", "MutablePVNodeAffinity",
    "MutablePodResourcesForSuspendedJobs", "MutableSchedulingDirectivesForSuspendedJobs", "MutatingAdmissionPolicy",
    "NFTablesProxyMode", "NativeHistograms", "NewVolumeManagerReconstruction", "NodeDeclaredFeatures",
    "NodeInclusionPolicyInPodTopologySpread", "NodeLogQuery", "NodeOutOfServiceVolumeDetach", "NodeSwap",
    "NominatedNodeNameForExpectation", "OpenAPIEnums", "OpenAPIV3", "OpportunisticBatching",
    "OrderedNamespaceDeletion", "PDBUnhealthyPodEvictionPolicy", "PLEGOnDemandRelist", "PerPodPIDLimit",
    "PersistentVolumeClaimUnusedSinceTime", "PersistentVolumeLastPhaseTransitionTime",
    "PodAndContainerStatsFromCRI", "PodCertificateProjection", "PodCertificateRequest", "PodDeletionCost",
    "PodDisruptionConditions", "PodGroupPreemptionPolicy", "PodHostIPs", "PodIndexLabel",
    "PodLevelResourceManagers", "PodLevelResources", "PodLevelResourcesFixDefaulting",
    "PodLevelResourcesFixKubeletQOSClass", "PodLevelResourcesFixUpdateDefaulting", "PodLifecycleSleepAction",
    "PodLifecycleSleepActionAllowZero", "PodLogsQuerySplitStreams", "PodObservedGenerationTracking",
    "PodReadyToStartContainersCondition", "PodSchedulingReadiness", "PodTopologyLabelsAdmission", "PodsAPI",
    "PortForwardWebsockets", "PreferSameTrafficDistribution", "PreventStaticPodAPIReferences",
    "ProbeTerminationGracePeriod", "ProcMountType", "ProxyTerminatingEndpoints", "QOSReserved", "RangeStream",
    "ReadWriteOncePod", "RecoverVolumeExpansionFailure", "RecursiveReadOnlyMounts",
    "ReduceDefaultCrashLoopBackOffDecay", "RelaxedDNSSearchValidation", "RelaxedEnvironmentVariableValidation",
    "RelaxedServiceNameValidation", "ReloadKubeletClientCAFile", "ReloadKubeletServerCertificateFile",
    "RemainingItemCount", "RemoteRequestHeaderUID", "RemoveSelfLink", "RequestWatchProgress",
    "ResilientWatchCacheInitialization", "ResourceHealthStatus", "ResourceHealthStatusMessage",
    "RestartAllContainersOnContainerExits", "RetroactiveDefaultStorageClass", "RetryGenerateName",
    "RotateKubeletServerCertificate", "RuntimeClassInImageCriApi", "SELinuxChangePolicy", "SELinuxMount",
    "SELinuxMountReadWriteOncePod", "SchedulerAsyncAPICalls", "SchedulerAsyncPreemption",
    "SchedulerPopFromBackoffQ", "SchedulerPreQueueingHints", "SchedulerQueueingHints", "SeccompDefault",
    "SecurityContextDeny", "SeparateCacheWatchRPC", "SeparateTaintEvictionController", "ServerSideApply",
    "ServerSideFieldValidation", "ServiceAccountNodeAudienceRestriction", "ServiceAccountTokenJTI",
    "ServiceAccountTokenNodeBinding", "ServiceAccountTokenNodeBindingValidation", "ServiceAccountTokenPodNodeInfo",
    "ServiceNodePortStaticSubrange", "ServiceTrafficDistribution", "ShardedListAndWatch", "SidecarContainers",
    "SizeBasedListCostEstimate", "SizeMemoryBackedVolumes", "SkipReadOnlyValidationGCE",
    "StableLoadBalancerNodeSet", "StaleControllerConsistencyDaemonSet", "StaleControllerConsistencyJob",
    "StaleControllerConsistencyReplicaSet", "StaleControllerConsistencyStatefulSet", "StatefulSetAutoDeletePVC",
    "StatefulSetRecreateStrategy", "StatefulSetSemanticRevisionComparison", "StatefulSetStartOrdinal",
    "StorageCapacityScoring", "StorageNamespaceIndex", "StorageVersionAPI", "StorageVersionHash",
    "StorageVersionMigrator", "StreamingCollectionEncodingToJSON", "StreamingCollectionEncodingToProtobuf",
    "StrictCostEnforcementForVAP", "StrictCostEnforcementForWebhooks", "StrictIPCIDRValidation",
    "StructuredAuthenticationConfiguration", "StructuredAuthenticationConfigurationEgressSelector",
    "StructuredAuthenticationConfigurationJWKSMetrics", "StructuredAuthorizationConfiguration",
    "SupplementalGroupsPolicy", "SystemdWatchdog", "TaintTolerationComparisonOperators",
    "TokenRequestServiceAccountUIDValidation", "TopologyAwareHints", "TopologyAwareWorkloadScheduling",
    "TopologyManager", "TopologyManagerPolicyAlphaOptions", "TopologyManagerPolicyBetaOptions",
    "TopologyManagerPolicyOptions", "TranslateStreamCloseWebsocketRequests", "UnauthenticatedHTTP2DOSMitigation",
    "UnknownVersionInteroperabilityProxy", "UnlockWhileProcessingFIFO", "UserNamespacesHostNetworkSupport",
    "UserNamespacesPodSecurityStandards", "UserNamespacesSupport", "ValidatingAdmissionPolicy",
    "VolumeAttributesClass", "VolumeBindMountOptions", "VolumeCapacityPriority", "VolumeLimitScaling",
    "WatchBookmark", "WatchCacheInitializationPostStartHook", "WatchFromStorageWithoutResourceVersion", "WatchList",
    "WatchListClient", "WatchListCompression", "WebhookRoundTripLoadBalancing", "WinDSR", "WinOverlay",
    "WindowsCPUAndMemoryAffinity", "WindowsGracefulNodeShutdown", "WindowsHostNetwork",
    "WindowsHostProcessContainers", "WorkloadAwarePreemption", "WorkloadWithJob",
    "ZeroLimitedNominalConcurrencyShares",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_gates_and_misspelt_ones() {
        assert!(NAMES.is_sorted());
        let mut hashes = KNOWN.to_vec();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), NAMES.len(), "no two names share a hash");
        for name in [MEMORY_QOS, "AllAlpha", "SidecarContainers", "NodeSwap"] {
            assert!(is_known_gate(name), "{name}");
        }
        for name in ["", "MemoryQOS", "memoryQoS", "NodeSwaps", "A"] {
            assert!(!is_known_gate(name), "{name}");
        }
    }
}
