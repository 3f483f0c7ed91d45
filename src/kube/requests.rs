//! The apiserver over HTTP: paths, verbs, media types of [`KubeApi`].

use alloc::sync::Arc;

use serde_json::{Value, json};
use ureq::http::Method;

use super::api::{
    ApiResult, CompleteList, KubeApi, MAX_BUNDLES, MAX_NODE_PODS, MAX_SERVICES, PAGE_ITEMS,
    PatchFormat,
};
use super::cancel::WatchCancel;
use super::client::{
    ApiRequest, ClientTimeouts, HEARTBEAT_TIMEOUT, JSON, KubeClient, SharedApiserver,
};
use super::error::KubeError;
use super::path::{
    encode_query, encode_segment, node_selector, one_selector, pod_selector, query_separator,
};
use super::rate::RequestRate;
use super::stream::{ListItemError, ListMeta};
use super::watch::{self, WatchEnd, WatchEvent, WatchOptions};
use crate::api::link::LinkClass;
use crate::api::strict::typed_from_value;
use crate::api::{ObjectMeta, PodUid};

/// Media type of the metadata of an object.
pub(super) const META: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// Media type of a list of the metadata of objects.
pub(super) const META_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Most pages of one list.
const MAX_PAGES: usize = 200;
/// Path of the leases of nodes.
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Path of requests for certificates.
const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// Limits of requests: a rate per second, and a burst after a pause. Rate 0: no limit (CONF-07).
#[derive(Clone, Copy, Debug)]
pub struct RequestRates {
    /// `kubeAPIQPS` and `kubeAPIBurst`.
    pub main: (u32, u32),
    /// `eventRecordQPS` and `eventBurst`.
    pub events: (u32, u32),
}

impl Default for RequestRates {
    fn default() -> Self {
        Self {
            main: (50, 100),
            events: (50, 100),
        }
    }
}

/// The apiserver over HTTP, by three clients (CONF-21).
pub struct HttpApi {
    pub(super) main: KubeClient,
    /// Client that shares nothing with the others but the credentials: if their rate is used up or their connection
    /// stuck, the node must not be lost.
    heartbeat: KubeClient,
    events: KubeClient,
}

impl HttpApi {
    /// `heartbeat`: time for one exchange of the heartbeat, [`HEARTBEAT_TIMEOUT`] if `None`.
    #[must_use]
    pub fn new(
        cluster: &Arc<SharedApiserver>,
        timeouts: ClientTimeouts,
        rates: RequestRates,
        heartbeat: Option<core::time::Duration>,
    ) -> Self {
        let client = |timeouts, (per_second, burst), class| {
            let rate = (per_second > 0).then(|| Arc::new(RequestRate::new(per_second, burst)));
            KubeClient::new(Arc::clone(cluster), timeouts, rate, class)
        };
        Self {
            main: client(timeouts, rates.main, LinkClass::Api),
            heartbeat: client(
                ClientTimeouts {
                    whole: Some(heartbeat.unwrap_or(HEARTBEAT_TIMEOUT)),
                    ..timeouts
                },
                (0, 0),
                LinkClass::Heartbeat,
            ),
            events: client(timeouts, rates.events, LinkClass::Api),
        }
    }

    fn get_object(&self, path: &str) -> ApiResult<Value> {
        self.main
            .send_request(&ApiRequest::get(path))?
            .read_document()
    }

    /// Reads an object that may be large, and lets the apiserver compress it.
    ///
    /// An apiserver compresses answers of more than 128 KiB. For smaller ones the header would only cost bytes. Request
    /// bodies are sent plain, for it takes no compressed ones. Source: apiserver
    /// `endpoints/handlers/responsewriters/writers.go`, `defaultGzipThresholdBytes`.
    fn get_compressed(&self, path: &str) -> ApiResult<Value> {
        let ask = ApiRequest {
            packed: true,
            ..ApiRequest::get(path)
        };
        self.main.send_request(&ask)?.read_document()
    }

    fn post_object(&self, path: &str, body: &[u8]) -> ApiResult<Value> {
        let ask = ApiRequest::with_body(Method::POST, path, JSON, body);
        self.main.send_request(&ask)?.read_document()
    }

    /// All pages of a list.
    fn list_pages(
        &self,
        path: &str,
        accept: &str,
        most: usize,
        each: &mut dyn FnMut(Value) -> Result<(), ListItemError>,
    ) -> ApiResult<CompleteList> {
        list_pages(&self.main, path, accept, (PAGE_ITEMS, most), each)
    }
}

/// Lists all pages of `path`. `items`: those of one page, and those of all.
pub(super) fn list_pages(
    client: &KubeClient,
    path: &str,
    accept: &str,
    items: (usize, usize),
    each: &mut dyn FnMut(Value) -> Result<(), ListItemError>,
) -> ApiResult<CompleteList> {
    let (page_items, most) = items;
    let mut listed = CompleteList::default();
    let mut continues = String::new();
    for _ in 0..MAX_PAGES {
        let left = most - listed.items;
        let (meta, count) = list_page(client, path, accept, (page_items, left), &continues, each)?;
        listed.items += count;
        // All pages are of the version of the first.
        listed.resource_version = meta.resource_version;
        if meta.continues.is_empty() {
            return Ok(listed);
        }
        continues = meta.continues;
    }
    Err(KubeError::Wrong {
        url: path.split('?').next().unwrap_or("").into(),
        why: format!("its list has more than {MAX_PAGES} pages"),
    })
}

/// Lists one page of `path`, the first or that of `continues`. `items`: those asked for, and those taken at most.
pub(super) fn list_page(
    client: &KubeClient,
    path: &str,
    accept: &str,
    (page_items, most): (usize, usize),
    continues: &str,
    each: &mut dyn FnMut(Value) -> Result<(), ListItemError>,
) -> ApiResult<(ListMeta, usize)> {
    let mut page = format!("{path}{}limit={page_items}", query_separator(path));
    if !continues.is_empty() {
        page.push_str("&continue=");
        page.push_str(&encode_query(continues));
    }
    let ask = ApiRequest {
        accept,
        packed: true,
        paced: false,
        ..ApiRequest::get(&page)
    };
    client.send_request(&ask)?.read_list(most, each)
}

fn object_path(kind: &str, namespace: &str, name: &str) -> ApiResult<String> {
    let (namespace, name) = (encode_segment(namespace)?, encode_segment(name)?);
    Ok(format!("/api/v1/namespaces/{namespace}/{kind}/{name}"))
}

fn collection_path(kind: &str, namespace: &str) -> ApiResult<String> {
    Ok(format!(
        "/api/v1/namespaces/{}/{kind}",
        encode_segment(namespace)?
    ))
}

fn trust_bundles_path(version: &str) -> ApiResult<String> {
    let version = encode_segment(version)?;
    Ok(format!(
        "/apis/certificates.k8s.io/{version}/clustertrustbundles"
    ))
}

fn pod_requests_path(version: &str, namespace: &str) -> ApiResult<String> {
    let (version, namespace) = (encode_segment(version)?, encode_segment(namespace)?);
    Ok(format!(
        "/apis/certificates.k8s.io/{version}/namespaces/{namespace}/podcertificaterequests"
    ))
}

/// Request whose answer is the metadata only.
fn meta_request<'a>(
    method: Method,
    path: &'a str,
    content_type: &'static str,
    body: &'a [u8],
) -> ApiRequest<'a> {
    ApiRequest {
        accept: META,
        ..ApiRequest::with_body(method, path, content_type, body)
    }
}

/// Reads the metadata of an item. An item without identity makes the whole list invalid.
pub(super) fn parse_item_metadata(item: &Value) -> Result<ObjectMeta, ListItemError> {
    let meta: ObjectMeta = typed_from_value(&item["metadata"])?;
    if meta.uid.is_empty() || meta.name.is_empty() || meta.resource_version.is_empty() {
        return Err(ListItemError::Nameless);
    }
    Ok(meta)
}

impl KubeApi for HttpApi {
    fn list_pods(&self, node: &str, each: &mut dyn FnMut(ObjectMeta)) -> ApiResult<CompleteList> {
        let path = format!("/api/v1/pods?{}", pod_selector(node)?);
        self.list_pages(&path, META_LIST, MAX_NODE_PODS, &mut |item| {
            each(parse_item_metadata(&item)?);
            Ok(())
        })
    }

    fn list_all_pods(
        &self,
        node: &str,
        each: &mut dyn FnMut(ObjectMeta),
    ) -> ApiResult<CompleteList> {
        let path = format!("/api/v1/pods?{}", node_selector(node)?);
        self.list_pages(&path, META_LIST, MAX_NODE_PODS, &mut |item| {
            each(parse_item_metadata(&item)?);
            Ok(())
        })
    }

    fn list_whole_pods(&self, node: &str, each: &mut dyn FnMut(Value)) -> ApiResult<CompleteList> {
        let path = format!("/api/v1/pods?{}", pod_selector(node)?);
        self.list_pages(&path, JSON, MAX_NODE_PODS, &mut |item| {
            parse_item_metadata(&item)?;
            each(item);
            Ok(())
        })
    }

    fn watch_pods(
        &self,
        options: &WatchOptions,
        cancel: &Arc<WatchCancel>,
        each: &mut dyn FnMut(WatchEvent),
    ) -> ApiResult<WatchEnd> {
        watch::watch_pods(&self.main, options, cancel, each)
    }

    /// Reads a pod by a list of one. The Node authorizer lets a node list its pods at any time. It lets it get one only
    /// when its graph knows of the binding, some milliseconds after the watch has told of it (AUTHZ-03, AUTHZ-08). Only
    /// a get proves that a pod is gone, for lists may be stale.
    fn read_pod(&self, node: &str, namespace: &str, name: &str) -> ApiResult<Value> {
        let (path, selector) = (
            collection_path("pods", namespace)?,
            one_selector(node, name)?,
        );
        let mut found = None;
        self.list_pages(&format!("{path}?{selector}"), JSON, 1, &mut |item| {
            parse_item_metadata(&item)?;
            found = Some(item);
            Ok(())
        })?;
        match found {
            Some(pod) => Ok(pod),
            None => self.get_object(&object_path("pods", namespace, name)?),
        }
    }

    fn patch_pod_status(
        &self,
        namespace: &str,
        name: &str,
        kind: PatchFormat,
        body: &[u8],
    ) -> ApiResult<Value> {
        let path = format!("{}/status", object_path("pods", namespace, name)?);
        let ask = ApiRequest::with_body(Method::PATCH, &path, kind.content_type(), body);
        self.main.send_request(&ask)?.read_document()
    }

    fn create_pod(&self, namespace: &str, body: &[u8]) -> ApiResult<Value> {
        self.post_object(&collection_path("pods", namespace)?, body)
    }

    fn delete_pod(&self, namespace: &str, name: &str, uid: &PodUid) -> ApiResult<Option<Value>> {
        let path = object_path("pods", namespace, name)?;
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        });
        let body = body.to_string();
        let ask = ApiRequest::with_body(Method::DELETE, &path, JSON, body.as_bytes());
        let left = self.main.send_request(&ask)?.read_document()?;
        let finalizers = left["metadata"]["finalizers"].as_array();
        let kept = finalizers.is_some_and(|all| !all.is_empty());
        Ok(kept.then_some(left))
    }

    fn read_node(&self, name: &str) -> ApiResult<Value> {
        let path = format!("/api/v1/nodes/{}", encode_segment(name)?);
        self.heartbeat
            .send_request(&ApiRequest::get(&path))?
            .read_document()
    }

    fn create_node(&self, body: &[u8]) -> ApiResult<Value> {
        let ask = ApiRequest::with_body(Method::POST, "/api/v1/nodes", JSON, body);
        self.heartbeat.send_request(&ask)?.read_document()
    }

    fn patch_node_status(&self, name: &str, kind: PatchFormat, body: &[u8]) -> ApiResult<Value> {
        let path = format!("/api/v1/nodes/{}/status", encode_segment(name)?);
        let ask = ApiRequest::with_body(Method::PATCH, &path, kind.content_type(), body);
        self.heartbeat.send_request(&ask)?.read_document()
    }

    fn read_lease(&self, name: &str) -> ApiResult<Value> {
        let path = format!("{LEASES}/{}", encode_segment(name)?);
        self.heartbeat
            .send_request(&ApiRequest::get(&path))?
            .read_document()
    }

    fn create_lease(&self, body: &[u8]) -> ApiResult<Value> {
        let ask = ApiRequest::with_body(Method::POST, LEASES, JSON, body);
        self.heartbeat.send_request(&ask)?.read_document()
    }

    fn patch_lease(&self, name: &str, body: &[u8]) -> ApiResult<Value> {
        let path = format!("{LEASES}/{}", encode_segment(name)?);
        let ask = meta_request(
            Method::PATCH,
            &path,
            PatchFormat::Merge.content_type(),
            body,
        );
        self.heartbeat.send_request(&ask)?.read_document()
    }

    fn create_event(&self, namespace: &str, body: &[u8]) -> ApiResult<Value> {
        let path = collection_path("events", namespace)?;
        let ask = meta_request(Method::POST, &path, JSON, body);
        self.events.send_request(&ask)?.read_document()
    }

    fn patch_event(&self, namespace: &str, name: &str, body: &[u8]) -> ApiResult<Value> {
        let path = object_path("events", namespace, name)?;
        let ask = meta_request(
            Method::PATCH,
            &path,
            PatchFormat::Strategic.content_type(),
            body,
        );
        self.events.send_request(&ask)?.read_document()
    }

    fn create_token(&self, namespace: &str, account: &str, body: &[u8]) -> ApiResult<Value> {
        let path = object_path("serviceaccounts", namespace, account)?;
        self.post_object(&format!("{path}/token"), body)
    }

    fn read_config_map(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.get_compressed(&object_path("configmaps", namespace, name)?)
    }

    fn read_secret(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.get_compressed(&object_path("secrets", namespace, name)?)
    }

    fn read_service_account(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.get_compressed(&object_path("serviceaccounts", namespace, name)?)
    }

    fn read_persistent_volume_claim(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.get_object(&object_path("persistentvolumeclaims", namespace, name)?)
    }

    fn read_persistent_volume(&self, name: &str) -> ApiResult<Value> {
        self.get_object(&format!(
            "/api/v1/persistentvolumes/{}",
            encode_segment(name)?
        ))
    }

    fn read_runtime_class(&self, name: &str) -> ApiResult<Value> {
        self.get_object(&format!(
            "/apis/node.k8s.io/v1/runtimeclasses/{}",
            encode_segment(name)?
        ))
    }

    fn list_api_resources(&self, group: &str, version: &str) -> ApiResult<Value> {
        self.get_object(&format!(
            "/apis/{}/{}",
            encode_segment(group)?,
            encode_segment(version)?
        ))
    }

    fn read_trust_bundle(&self, version: &str, name: &str) -> ApiResult<Value> {
        self.get_compressed(&format!(
            "{}/{}",
            trust_bundles_path(version)?,
            encode_segment(name)?
        ))
    }

    fn list_trust_bundles(
        &self,
        version: &str,
        signer: &str,
        labels: &str,
        each: &mut dyn FnMut(Value),
    ) -> ApiResult<CompleteList> {
        let mut path = format!(
            "{}?fieldSelector={}",
            trust_bundles_path(version)?,
            encode_query(&format!("spec.signerName={signer}"))
        );
        if !labels.is_empty() {
            path.push_str("&labelSelector=");
            path.push_str(&encode_query(labels));
        }
        self.list_pages(&path, JSON, MAX_BUNDLES, &mut |item| {
            each(item);
            Ok(())
        })
    }

    fn list_services(
        &self,
        namespace: &str,
        each: &mut dyn FnMut(Value),
    ) -> ApiResult<CompleteList> {
        let path = collection_path("services", namespace)?;
        self.list_pages(&path, JSON, MAX_SERVICES, &mut |item| {
            each(item);
            Ok(())
        })
    }

    fn read_service(&self, namespace: &str, name: &str) -> ApiResult<Value> {
        self.get_object(&object_path("services", namespace, name)?)
    }

    fn create_csr(&self, body: &[u8]) -> ApiResult<Value> {
        self.post_object(CSRS, body)
    }

    fn read_csr(&self, name: &str) -> ApiResult<Value> {
        self.get_object(&format!("{CSRS}/{}", encode_segment(name)?))
    }

    fn create_pod_certificate_request(
        &self,
        version: &str,
        namespace: &str,
        body: &[u8],
    ) -> ApiResult<Value> {
        self.post_object(&pod_requests_path(version, namespace)?, body)
    }

    fn read_pod_certificate_request(
        &self,
        version: &str,
        namespace: &str,
        name: &str,
    ) -> ApiResult<Value> {
        self.get_object(&format!(
            "{}/{}",
            pod_requests_path(version, namespace)?,
            encode_segment(name)?
        ))
    }

    fn review_token(&self, body: &[u8]) -> ApiResult<Value> {
        self.post_object("/apis/authentication.k8s.io/v1/tokenreviews", body)
    }

    fn review_access(&self, body: &[u8]) -> ApiResult<Value> {
        self.post_object("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    }

    fn close_heartbeat_connections(&self) {
        self.heartbeat.close_connections();
    }
}
