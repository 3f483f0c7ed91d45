//! Reader of the cluster: lists and watches of objects that no node may read (FLAN-02, PROX-02), by an identity of its
//! own.
//!
//! ```text
//! parts ─▶ one request at a time ─▶ a thread that ends with it ─▶ page ─▶ item ─▶ visitor ─▶ what the visitor gathered
//!      ─▶ metadata watch: a thread of its own, which only rings
//! ```
//!
//! On a node of k3s the identity is `system:kube-proxy`, whose certificate the agent fetches and renews (K3SN-02);
//! elsewhere it is a kubeconfig (`picolet.networkKubeconfig`). Nothing is decided here, and nothing repeated.

use alloc::sync::Arc;
use std::io;

use serde_json::Value;
use smol::lock::{Mutex, OnceCell};

use super::api::CompleteList;
use super::client::{ApiRequest, ClientTimeouts, JSON, KubeClient, SharedApiserver};
use super::error::KubeError;
use super::lanes::{STACK_BYTES, WatchDoorbell};
use super::requests::{META_LIST, list_page, list_pages, parse_item_metadata};
use super::stream::ListMeta;
use super::watch::watch_metadata;
use crate::api::{ObjectMeta, link::LinkClass};
use crate::sys::lane::Lane;

/// Items of metadata that are asked for in one page: 1 to 6 KiB each, mostly `managedFields`. One item is in memory at a time.
/// The apiserver packs only answers of 128 KiB or more, to a twentieth: smaller pages would be sent as they are.
pub const METADATA_PAGE_ITEMS: usize = 500;
/// Most objects in one list of metadata.
pub const MAX_LISTED: usize = 20_000;

/// See the module. Cheap to hold; it sends nothing before it is asked.
pub struct ClusterReader {
    client: Arc<KubeClient>,
    /// Held by the request under way: parts wait for each other, so that one page is in memory at a time.
    turn: Arc<Mutex<()>>,
    /// Set once there are credentials.
    is_ready: OnceCell<()>,
}

impl ClusterReader {
    /// Makes a reader with the credentials of `cluster`, which are there only after [`ClusterReader::set_ready`].
    #[must_use]
    pub fn new(cluster: Arc<SharedApiserver>) -> Self {
        let timeouts = ClientTimeouts::default();
        Self {
            client: Arc::new(KubeClient::new(cluster, timeouts, None, LinkClass::Api)),
            turn: Arc::default(),
            is_ready: OnceCell::new(),
        }
    }

    /// Lets requests begin: there is a certificate, or the kubeconfig has its own credentials.
    pub fn set_ready(&self) {
        let _ = self.is_ready.set_blocking(());
    }

    /// Looks at the files of certificates with the next request: there is a new pair.
    pub fn reread_credentials(&self) {
        self.client.cluster.reread_credentials();
    }

    /// Lists the metadata of all objects of `path` (`/api/v1/nodes`; a query may follow), page by page. `each` adds an
    /// object to `gathered`, on another thread.
    ///
    /// - Waits for credentials, and for requests of other parts.
    /// - Errors: **what a failed list has gathered is dropped**. Status 403: the identity may not list that.
    pub async fn list_metadata<T: Send + 'static>(
        &self,
        path: &str,
        mut gathered: T,
        mut each: impl FnMut(&mut T, ObjectMeta) + Send + 'static,
    ) -> Result<(T, CompleteList), KubeError> {
        let path = path.to_owned();
        let list = move |client: &KubeClient| {
            let items = (METADATA_PAGE_ITEMS, MAX_LISTED);
            let listed = list_pages(client, &path, META_LIST, items, &mut |item| {
                each(&mut gathered, parse_item_metadata(&item)?);
                Ok(())
            })?;
            Ok((gathered, listed))
        };
        self.run_request(list).await
    }

    /// Lists one page of whole objects of `path`: the first, or the one that `continues` names. `each` adds an object
    /// to `gathered`, on another thread; one object is in memory at a time. Returns also the token of the next page,
    /// which is empty on the last.
    ///
    /// - `limit`: objects asked for; an answer with more is an error.
    /// - Errors: as in [`ClusterReader::list_metadata`]. Status 410: the list is too old, begin anew.
    pub async fn read_page<T: Send + 'static>(
        &self,
        path: &str,
        limit: usize,
        continues: &str,
        mut gathered: T,
        mut each: impl FnMut(&mut T, Value) + Send + 'static,
    ) -> Result<(T, ListMeta), KubeError> {
        let (path, continues) = (path.to_owned(), continues.to_owned());
        let list = move |client: &KubeClient| {
            let items = (limit, limit);
            let (meta, _) = list_page(client, &path, JSON, items, &continues, &mut |item| {
                parse_item_metadata(&item)?;
                each(&mut gathered, item);
                Ok(())
            })?;
            Ok((gathered, meta))
        };
        self.run_request(list).await
    }

    /// Reads the object at `path`, and takes from it what is needed, on another thread. Status 404: there is none.
    pub async fn read_object<T: Send + 'static>(
        &self,
        path: &str,
        take: impl FnOnce(Value) -> T + Send + 'static,
    ) -> Result<T, KubeError> {
        let path = path.to_owned();
        let read = move |client: &KubeClient| {
            let ask = ApiRequest {
                packed: true,
                ..ApiRequest::get(&path)
            };
            client.send_request(&ask)?.read_document().map(take)
        };
        self.run_request(read).await
    }

    /// Hangs a doorbell for the objects of `path`, on a thread of its own. Nothing is watched before
    /// [`WatchDoorbell::start_watch`], in whose options `node` is not used. To be called once there was a list.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub fn open_doorbell(&self, path: &str) -> io::Result<WatchDoorbell> {
        let (client, path) = (Arc::clone(&self.client), path.to_owned());
        let (bell, thread) = WatchDoorbell::new();
        thread.start_thread(Box::new(move |options, cancel, each| {
            watch_metadata(&client, &path, options, cancel, each)
        }))?;
        Ok(bell)
    }

    async fn run_request<T: Send + 'static>(
        &self,
        job: impl FnOnce(&KubeClient) -> Result<T, KubeError> + Send + 'static,
    ) -> Result<T, KubeError> {
        self.is_ready.wait().await;
        let turn = self.turn.lock_arc().await;
        let lane = Lane::start_threads("cluster-reader", 1, STACK_BYTES)
            .map_err(|e| KubeError::Local(format!("cannot start a thread: {e}")))?;
        let client = Arc::clone(&self.client);
        let asked = lane.run_job(move || {
            let answer = job(&client);
            // Also if nobody waits for the answer any more.
            drop(turn);
            answer
        });
        asked.await
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use smol::future::{block_on, poll_once};

    use super::super::testing::{Server, chunks, ok, say};
    use super::super::{DoorbellNews, Kubeconfig, WatchEnd, WatchEventKind, WatchOptions};
    use super::*;
    use crate::net::ProxyVariables;

    fn reader(url: &str) -> ClusterReader {
        let text = format!(
            "{{current-context: a, clusters: [{{name: c, cluster: {{server: '{url}'}}}}], \
             users: [{{name: u, user: {{}}}}], contexts: [{{name: a, context: {{cluster: c, user: u}}}}]}}"
        );
        let config = Kubeconfig::parse("/k".as_ref(), text.as_bytes(), &[]).expect("kubeconfig");
        let cluster = SharedApiserver::new(config, ProxyVariables::default(), None);
        ClusterReader::new(Arc::new(cluster))
    }

    fn list(names: &[&str], continues: &str) -> String {
        let item = |name: &&str| {
            format!(
                r#"{{"metadata":{{"name":"{name}","uid":"u-{name}","resourceVersion":"1"}},"spec":{{"podCIDR":"10.42.0.0/24"}}}}"#
            )
        };
        let items: Vec<String> = names.iter().map(item).collect();
        format!(
            r#"{{"metadata":{{"resourceVersion":"7","continue":"{continues}"}},"items":[{}]}}"#,
            items.join(",")
        )
    }

    #[test]
    fn lists_pages_objects_and_rings() {
        // PROX-02: requests of the reader.
        const RING: &str = r#"{"type":"MODIFIED","object":{"metadata":{"name":"a","uid":"u-a","resourceVersion":"8"}}}"#;
        let server = Server::plain(|seen| match &*seen.path {
            path if path.starts_with("/api/v1/nodes?watch=1&resourceVersion=7&") => {
                assert!(seen.header("accept").contains("PartialObjectMetadata;"));
                chunks(&[RING, "\n"], true)
            }
            "/api/v1/nodes?limit=500" => ok(&list(&["a", "b"], "c d")),
            "/api/v1/nodes?limit=500&continue=c%20d" => ok(&list(&["c"], "")),
            "/api/v1/services?fieldSelector=metadata.name%3Dweb&limit=10" => {
                assert!(!seen.header("accept").contains("Partial"));
                ok(&list(&["web"], "more"))
            }
            "/api/v1/services?fieldSelector=metadata.name%3Dweb&limit=10&continue=more" => {
                ok(&list(&["web"; 11], ""))
            }
            "/api/v1/nodes/a" => ok(r#"{"spec":{"podCIDR":"10.42.0.0/24"}}"#),
            "/api/v1/broken?limit=500" => ok(&list(&["a"], "x")),
            _ => say(403, "", b"{}"),
        });
        let reader = reader(&server.url());
        let names = |all: &mut Vec<String>, meta: ObjectMeta| all.push(meta.name);
        block_on(async {
            // Nothing is asked without credentials.
            let mut early = Box::pin(reader.list_metadata("/api/v1/nodes", Vec::new(), names));
            assert!(poll_once(&mut early).await.is_none());
            assert_eq!(server.seen().len(), 0);
            reader.set_ready();
            reader.set_ready();
            let (found, listed) = early.await.expect("a list");
            assert_eq!(found, ["a", "b", "c"]);
            assert_eq!((&*listed.resource_version, listed.items), ("7", 3));
            // Half a list is none.
            let half = reader.list_metadata("/api/v1/broken", Vec::new(), names);
            assert_eq!(
                half.await.expect_err("no second page").http_status(),
                Some(403)
            );

            let path = "/api/v1/services?fieldSelector=metadata.name%3Dweb";
            let count = |count: &mut usize, item: Value| {
                assert_eq!(item["spec"]["podCIDR"], "10.42.0.0/24");
                *count += 1;
            };
            let (found, meta) = reader
                .read_page(path, 10, "", 0, count)
                .await
                .expect("a page");
            assert_eq!((found, &*meta.continues), (1, "more"));
            let more = reader.read_page(path, 10, "more", 0, count).await;
            assert!(more.is_err(), "more than were asked for");
            let cidr = |node: Value| node["spec"]["podCIDR"].as_str().map(str::to_owned);
            let read = reader.read_object("/api/v1/nodes/a", cidr).await;
            assert_eq!(read.expect("a node").as_deref(), Some("10.42.0.0/24"));
            let gone = reader.read_object("/api/v1/nodes/b", cidr).await;
            assert!(gone.is_err());

            let bell = reader.open_doorbell("/api/v1/nodes").expect("a thread");
            bell.start_watch(WatchOptions {
                node: String::new(),
                resource_version: "7".into(),
                timeout: Duration::from_secs(60),
                bookmarks: true,
            })
            .await;
            let DoorbellNews::Ring(ring) = bell.next_news().await else {
                panic!("a ring");
            };
            assert_eq!((ring.kind, &*ring.name), (WatchEventKind::Modified, "a"));
            let end = bell.next_news().await;
            assert!(
                matches!(end, DoorbellNews::Ended(Ok(WatchEnd::Clean))),
                "{end:?}"
            );
        });
    }
}
