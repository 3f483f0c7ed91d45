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

/// Items of metadata that are asked for in one page: about 3 KiB each, mostly `managedFields`.
pub const METADATA_PAGE_ITEMS: usize = 100;
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
