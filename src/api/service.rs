//! core/v1 Service, as far as environments tell of services.
#![expect(missing_docs, reason = "field names and meanings are those of core/v1")]

use serde::{Deserialize, Serialize};

use super::pod::{is_default, object};

object!(
    /// A service, limited to what the agent reads.
    Service { metadata: ServiceMeta, spec: ServiceSpec }
);
object!(ServiceMeta {
    name: String,
    namespace: String,
});
object!(ServiceSpec {
    /// Empty or `None` for a headless one.
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    ports: Vec<ServicePort>,
});
object!(ServicePort {
    name: String,
    /// `TCP` when empty.
    protocol: String,
    port: u16,
});
