//! The resources that this server has, as rows of one table: discovery, routing and the store read it.

/// How an update treats what is not there, and what carries no resourceVersion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Updates {
    /// A PUT makes the object when there is none.
    pub(crate) creates: bool,
    /// A PUT without resourceVersion is taken.
    pub(crate) unconditional: bool,
}

/// One resource of one group and version.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespaced: bool,
    pub(crate) short: &'static [&'static str],
    /// Has objects; without it only `create` exists and nothing is kept.
    pub(crate) stored: bool,
    pub(crate) updates: Updates,
    /// What a DELETE that is done answers with: the object, or a `Status`.
    pub(crate) returns_deleted: bool,
    pub(crate) subresources: &'static [&'static str],
    /// Field selectors beside `metadata.name` and `metadata.namespace`.
    pub(crate) fields: &'static [&'static str],
}

impl Kind {
    /// `pods`, or `leases.coordination.k8s.io`.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// `v1`, or `coordination.k8s.io/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The name of its part of the store.
    pub(crate) fn storage(&self) -> &'static str {
        self.plural
    }

    /// The first parts of the key in etcd, which some messages carry.
    pub(crate) fn registry(&self) -> &'static str {
        match self.plural {
            "nodes" => "minions",
            "services" => "services/specs",
            other => other,
        }
    }

    pub(crate) fn has_sub(&self, sub: &str) -> bool {
        self.subresources.contains(&sub)
    }

    /// Verbs of discovery, of the resource itself.
    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        if self.stored {
            &[
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch",
            ]
        } else {
            &["create"]
        }
    }
}

const BASE: Kind = Kind {
    group: "",
    version: "v1",
    plural: "",
    kind: "",
    namespaced: true,
    short: &[],
    stored: true,
    updates: Updates {
        creates: false,
        unconditional: true,
    },
    returns_deleted: false,
    subresources: &[],
    fields: &[],
};

const UPSERT: Updates = Updates {
    creates: true,
    unconditional: true,
};

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

/// Every resource.
pub(crate) static KINDS: &[Kind] = &[
    Kind {
        plural: "pods",
        kind: "Pod",
        short: &["po"],
        returns_deleted: true,
        subresources: &[
            "status",
            "binding",
            "eviction",
            "ephemeralcontainers",
            "resize",
            "log",
            "exec",
            "attach",
            "portforward",
        ],
        fields: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ..BASE
    },
    Kind {
        plural: "nodes",
        kind: "Node",
        namespaced: false,
        short: &["no"],
        subresources: &["status"],
        fields: &["spec.unschedulable"],
        ..BASE
    },
    Kind {
        plural: "namespaces",
        kind: "Namespace",
        namespaced: false,
        short: &["ns"],
        returns_deleted: true,
        subresources: &["status", "finalize"],
        fields: &["status.phase"],
        ..BASE
    },
    Kind {
        plural: "configmaps",
        kind: "ConfigMap",
        short: &["cm"],
        ..BASE
    },
    Kind {
        plural: "secrets",
        kind: "Secret",
        fields: &["type"],
        ..BASE
    },
    Kind {
        plural: "services",
        kind: "Service",
        short: &["svc"],
        updates: UPSERT,
        returns_deleted: true,
        subresources: &["status"],
        fields: &["spec.clusterIP", "spec.type"],
        ..BASE
    },
    Kind {
        plural: "serviceaccounts",
        kind: "ServiceAccount",
        short: &["sa"],
        returns_deleted: true,
        subresources: &["token"],
        ..BASE
    },
    Kind {
        plural: "persistentvolumes",
        kind: "PersistentVolume",
        namespaced: false,
        short: &["pv"],
        returns_deleted: true,
        subresources: &["status"],
        ..BASE
    },
    Kind {
        plural: "persistentvolumeclaims",
        kind: "PersistentVolumeClaim",
        short: &["pvc"],
        returns_deleted: true,
        subresources: &["status"],
        ..BASE
    },
    Kind {
        plural: "events",
        kind: "Event",
        short: &["ev"],
        updates: UPSERT,
        fields: EVENT_FIELDS,
        ..BASE
    },
    Kind {
        group: "coordination.k8s.io",
        plural: "leases",
        kind: "Lease",
        updates: Updates {
            creates: true,
            unconditional: false,
        },
        ..BASE
    },
    Kind {
        group: "discovery.k8s.io",
        plural: "endpointslices",
        kind: "EndpointSlice",
        ..BASE
    },
    Kind {
        group: "certificates.k8s.io",
        plural: "certificatesigningrequests",
        kind: "CertificateSigningRequest",
        namespaced: false,
        short: &["csr"],
        subresources: &["status", "approval"],
        fields: &["spec.signerName"],
        ..BASE
    },
    Kind {
        group: "certificates.k8s.io",
        plural: "clustertrustbundles",
        kind: "ClusterTrustBundle",
        namespaced: false,
        fields: &["spec.signerName"],
        ..BASE
    },
    Kind {
        group: "certificates.k8s.io",
        plural: "podcertificaterequests",
        kind: "PodCertificateRequest",
        subresources: &["status"],
        fields: &["spec.nodeName", "spec.signerName"],
        ..BASE
    },
    Kind {
        group: "authentication.k8s.io",
        plural: "tokenreviews",
        kind: "TokenReview",
        namespaced: false,
        stored: false,
        ..BASE
    },
    Kind {
        group: "authorization.k8s.io",
        plural: "subjectaccessreviews",
        kind: "SubjectAccessReview",
        namespaced: false,
        stored: false,
        ..BASE
    },
    Kind {
        group: "node.k8s.io",
        plural: "runtimeclasses",
        kind: "RuntimeClass",
        namespaced: false,
        updates: Updates {
            creates: true,
            unconditional: false,
        },
        ..BASE
    },
    Kind {
        group: "scheduling.k8s.io",
        plural: "priorityclasses",
        kind: "PriorityClass",
        namespaced: false,
        short: &["pc"],
        ..BASE
    },
];

/// The resource of that group, version and plural.
pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    KINDS
        .iter()
        .find(|k| k.group == group && k.version == version && k.plural == plural)
}

/// The resource of an object's `apiVersion` and `kind`.
pub(crate) fn find_kind(api_version: &str, kind: &str) -> Option<&'static Kind> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    KINDS
        .iter()
        .find(|k| k.group == group && k.version == version && k.kind == kind)
}

/// A resource by its plural alone.
pub(crate) fn plural(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|k| k.plural == name)
}
