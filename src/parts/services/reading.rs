//! Requests to the apiserver: metadata of all Services and slices, and single Services with their slices (PROX-02).
//!
//! The identity may list and watch these objects, not get them: one Service is a list with a selector of its name.

use alloc::rc::Rc;

use serde_json::Value;

use crate::{
    kube::{
        ClusterReader, KubeError,
        path::{encode_query, encode_segment},
    },
    logic::services::{
        ProxyNode,
        endpoints::EndpointCollector,
        index::ServiceListing,
        object::{ObjectFaults, ProxyService, SERVICE_NAME, collect_slice},
    },
};

/// Selector of the objects that no other proxy serves.
const SELECTOR: &str = "labelSelector=%21service.kubernetes.io%2Fheadless%2C%21service.kubernetes.io%2Fservice-proxy-name";
/// Services of one page.
const SERVICE_PAGE: usize = 50;
/// Slices of one page: each has up to 100 endpoints, usually, which take 35 KiB.
const SLICE_PAGE: usize = 10;
/// Most pages of slices of some Services: 20 Services of 5,000 endpoints.
const MAX_PAGES: usize = 100;
/// Most slices of a Service that is read alone.
pub(super) const MAX_SLICES: usize = MAX_PAGES * SLICE_PAGE;
/// Services whose slices are in memory at a time.
pub(super) const TOGETHER: usize = 10;

/// Path of all Services.
pub(super) fn services_path() -> String {
    format!("/api/v1/services?{SELECTOR}")
}

/// Path of all slices of Services. A watch of them tells of one that loses its Service as of one that is deleted: with
/// the labels that it had.
pub(super) fn slices_path() -> String {
    format!("/apis/discovery.k8s.io/v1/endpointslices?{SELECTOR}%2Ckubernetes.io%2Fservice-name")
}

/// A Service, its endpoints, and what is wrong with its Objects.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadService {
    pub(super) namespace: String,
    pub(super) name: String,
    /// `None`: there is nothing to serve.
    pub(super) service: Option<ProxyService>,
    /// Digests of UID and version.
    pub(super) uid: u64,
    pub(super) version: u64,
    pub(super) endpoints: EndpointCollector,
    pub(super) faults: ObjectFaults,
    /// Set if slices were left out because there are too many: it must not be written.
    pub(super) is_cut: bool,
}

impl ReadService {
    fn from_json(object: &Value) -> Self {
        use crate::logic::services::object::digest_text;
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let mut faults = ObjectFaults::new();
        let service = ProxyService::from_json(object, &mut faults);
        let ports = service.as_ref().map_or(0, |service| service.ports.len());
        Self {
            namespace: text("namespace").into(),
            name: text("name").into(),
            service,
            uid: digest_text(text("uid")),
            version: digest_text(text("resourceVersion")),
            endpoints: EndpointCollector::new(ports),
            faults,
            is_cut: false,
        }
    }
}

/// Reader of Services.
pub(super) struct ServiceReader {
    pub(super) reader: Rc<ClusterReader>,
}

/// Metadata of all Services and slices, and the versions of the two lists.
pub(super) struct ListedServices {
    pub(super) listing: ServiceListing,
    pub(super) services_version: String,
    pub(super) slices_version: String,
}

impl ServiceReader {
    /// Lists the metadata of all Services, then of all slices.
    pub(super) async fn list_all(&self) -> Result<ListedServices, KubeError> {
        let listing = ServiceListing::default();
        let services = services_path();
        let listed = self
            .reader
            .list_metadata(&services, listing, |listing, meta| {
                listing.add_service(
                    &meta.namespace,
                    &meta.name,
                    meta.uid.as_str(),
                    &meta.resource_version,
                );
            });
        let (listing, services) = listed.await?;
        let slices = slices_path();
        let listed = self
            .reader
            .list_metadata(&slices, listing, |listing, meta| {
                if let Some(service) = meta.labels.get(SERVICE_NAME) {
                    let slice = (&*meta.name, meta.uid.as_str(), &*meta.resource_version);
                    listing.add_slice(&meta.namespace, service, slice);
                }
            });
        let (listing, slices) = listed.await?;
        Ok(ListedServices {
            listing,
            services_version: services.resource_version,
            slices_version: slices.resource_version,
        })
    }

    /// Reads one page of all Services, without endpoints. Returns also the token of the next page.
    pub(super) async fn read_service_page(
        &self,
        continues: &str,
    ) -> Result<(Vec<ReadService>, String), KubeError> {
        let path = services_path();
        let read = self
            .reader
            .read_page(&path, SERVICE_PAGE, continues, Vec::new(), add_service);
        let (services, meta) = read.await?;
        Ok((services, meta.continues))
    }

    /// Reads one Service, without endpoints; `None`: it is gone, or another proxy serves it.
    pub(super) async fn read_service(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ReadService>, KubeError> {
        let path = format!(
            "/api/v1/namespaces/{}/services?{SELECTOR}&fieldSelector=metadata.name%3D{}",
            encode_segment(namespace)?,
            encode_segment(name)?
        );
        let read = self
            .reader
            .read_page(&path, SERVICE_PAGE, "", Vec::new(), add_service);
        let (mut services, _) = read.await?;
        services.retain(|it| it.name == name);
        Ok(services.pop())
    }

    /// Adds the endpoints of some Services of one namespace, at most [`TOGETHER`].
    pub(super) async fn add_endpoints(
        &self,
        services: Vec<ReadService>,
        node: &ProxyNode,
    ) -> Result<Vec<ReadService>, KubeError> {
        let Some(first) = services.first() else {
            return Ok(services);
        };
        let names: Vec<&str> = services.iter().map(|it| it.name.as_str()).collect();
        let selector = format!(
            "{SERVICE_NAME} in ({}),!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name",
            names.join(",")
        );
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector={}",
            encode_segment(&first.namespace)?,
            encode_query(&selector)
        );
        let mut gathered = services;
        let mut continues = String::new();
        for _ in 0..MAX_PAGES {
            let node = node.clone();
            let each = move |services: &mut Vec<ReadService>, slice: Value| {
                let owner = slice["metadata"]["labels"][SERVICE_NAME].as_str();
                let mut all = services.iter_mut();
                let Some(ReadService {
                    service,
                    endpoints,
                    faults,
                    ..
                }) = all.find(|it| Some(it.name.as_str()) == owner)
                else {
                    return;
                };
                match service {
                    Some(service) => collect_slice(&slice, service, &node, endpoints, faults),
                    // It has nothing to serve: its slices only count as read.
                    None => endpoints.count_slice(slice_number(&slice)),
                }
            };
            let read = self
                .reader
                .read_page(&path, SLICE_PAGE, &continues, gathered, each);
            let (services, meta) = read.await?;
            gathered = services;
            continues = meta.continues;
            if continues.is_empty() {
                break;
            }
        }
        for service in &mut gathered {
            service.endpoints.finish();
            service.is_cut = !continues.is_empty();
        }
        Ok(gathered)
    }
}

fn slice_number(slice: &Value) -> u64 {
    let text = |field: &str| slice["metadata"][field].as_str().unwrap_or_default();
    crate::logic::services::object::slice_digest(text("name"), text("uid"), text("resourceVersion"))
}

fn add_service(services: &mut Vec<ReadService>, object: Value) {
    services.push(ReadService::from_json(&object));
}
