//! The threads that wait for the apiserver. There are none without one.
//!
//! | lane | threads | for |
//! |---|---|---|
//! | heartbeat | 1 | lease, node status: nothing else may keep them waiting |
//! | work | [`WORK_THREADS`] | all other requests |
//! | doorbell | 1 | the watch, which blocks for as long as it lasts |

use alloc::{rc::Rc, sync::Arc};
use core::{
    future::ready,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
};
use std::io;
use std::thread;

use smol::channel::{Receiver, Sender, TrySendError, bounded};

use super::api::KubeApi;
use super::cancel::WatchCancel;
use super::error::KubeError;
use super::watch::{WatchEnd, WatchEvent, WatchOptions};
use crate::sys::lane::Lane;

/// Requests under way at a time, heartbeat and doorbell apart.
pub const WORK_THREADS: usize = 2;
/// Stack of each thread, bytes; only pages once touched cost memory. A TLS handshake and a list take about half of it
/// in a build without optimisation (see the test).
pub const STACK_BYTES: usize = 256 * 1024;
/// Rings that wait for the deciding thread. More at once mean a list anyway.
pub const RING_QUEUE: usize = 64;

/// An apiserver, and threads to ask it on. Cheap to clone.
#[derive(Clone)]
pub struct KubeLanes {
    api: Arc<dyn KubeApi>,
    heartbeat: Lane,
    work: Lane,
    way: Rc<dyn KubeTransport>,
}

/// Path between callers and the apiserver's client.
pub trait KubeTransport {
    /// Time that a request or an answer takes on its way.
    fn travel(&self) -> TravelDelay;
    /// Runs watches of `api`, which ring the bell at the other end of `rope`.
    ///
    /// # Errors
    /// The system refuses a thread.
    fn start_watch_thread(&self, api: &Arc<dyn KubeApi>, rope: WatchThread) -> io::Result<()>;
}

/// See [`KubeTransport::travel`].
pub type TravelDelay = Pin<Box<dyn Future<Output = ()>>>;

/// Threads of this process: requests and answers take no time on their way.
pub(crate) struct ThreadTransport;

impl KubeTransport for ThreadTransport {
    fn travel(&self) -> TravelDelay {
        Box::pin(ready(()))
    }

    fn start_watch_thread(&self, api: &Arc<dyn KubeApi>, rope: WatchThread) -> io::Result<()> {
        let api = Arc::clone(api);
        rope.start_thread(Box::new(move |options, cancel, each| {
            api.watch_pods(options, cancel, each)
        }))
    }
}

impl KubeLanes {
    /// Starts the threads. Fails only if the system refuses one.
    pub fn start(api: Arc<dyn KubeApi>) -> io::Result<Self> {
        let heartbeat = Lane::start_threads("kube-heartbeat", 1, STACK_BYTES)?;
        let work = Lane::start_threads("kube", WORK_THREADS, STACK_BYTES)?;
        Ok(Self::from_lanes(
            api,
            [heartbeat, work],
            Rc::new(ThreadTransport),
        ))
    }

    /// Makes an apiserver that is asked on these lanes: one for the heartbeat, one for all other requests.
    pub(crate) fn from_lanes(
        api: Arc<dyn KubeApi>,
        lanes: [Lane; 2],
        way: Rc<dyn KubeTransport>,
    ) -> Self {
        let [heartbeat, work] = lanes;
        Self {
            api,
            heartbeat,
            work,
            way,
        }
    }

    /// Runs a job of the heartbeat: lease or node status. Dropping the future does not stop it.
    pub async fn run_heartbeat<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn KubeApi) -> T + Send + 'static,
    ) -> T {
        self.run_on_lane(&self.heartbeat, job).await
    }

    /// Runs any other job. Dropping the future does not stop it.
    pub async fn run_request<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn KubeApi) -> T + Send + 'static,
    ) -> T {
        self.run_on_lane(&self.work, job).await
    }

    async fn run_on_lane<T: Send + 'static>(
        &self,
        lane: &Lane,
        job: impl FnOnce(&dyn KubeApi) -> T + Send + 'static,
    ) -> T {
        let api = Arc::clone(&self.api);
        self.way.travel().await;
        let done = lane.run_job(move || job(&*api)).await;
        self.way.travel().await;
        done
    }

    /// Hangs a doorbell; nothing is watched before [`WatchDoorbell::start_watch`].
    ///
    /// # Errors
    /// The system refuses its thread.
    pub fn open_doorbell(&self) -> io::Result<WatchDoorbell> {
        let (bell, rope) = WatchDoorbell::new();
        self.way.start_watch_thread(&self.api, rope)?;
        Ok(bell)
    }
}

/// News from the doorbell.
#[derive(Debug)]
pub enum DoorbellNews {
    /// An event.
    Ring(WatchEvent),
    /// Events were lost, for more came than were taken. A list is due.
    Overrun,
    /// The watch is over. Any error is a break: a list is due.
    Ended(Result<WatchEnd, KubeError>),
}

/// Receiver of the events of watches. When the value is dropped, open watches are cut.
#[derive(Debug)]
pub struct WatchDoorbell {
    watches: Sender<WatchOptions>,
    rungs: Receiver<DoorbellNews>,
    overrun: Arc<AtomicBool>,
    cancel: Arc<WatchCancel>,
}

/// The other end of a [`WatchDoorbell`], on the thread that watches.
pub struct WatchThread {
    /// Watches to make, in this order.
    pub(crate) watches: Receiver<WatchOptions>,
    /// News for the doorbell; one place is kept for the end of a watch.
    pub(crate) rungs: Sender<DoorbellNews>,
    /// Set if there was no place for an event.
    pub(crate) overrun: Arc<AtomicBool>,
    cancel: Arc<WatchCancel>,
}

/// Makes a watch, and rings with each event, until it ends.
pub(super) type RunWatch = Box<
    dyn Fn(
            &WatchOptions,
            &Arc<WatchCancel>,
            &mut dyn FnMut(WatchEvent),
        ) -> Result<WatchEnd, KubeError>
        + Send,
>;

impl WatchThread {
    /// Starts the thread that makes watches.
    pub(super) fn start_thread(self, watch: RunWatch) -> io::Result<()> {
        let thread = thread::Builder::new()
            .name("kube-doorbell".into())
            .stack_size(STACK_BYTES);
        thread.spawn(move || self.run_watches(&watch)).map(drop)
    }

    /// Runs the watches that are asked for, until the bell is gone. Blocks.
    fn run_watches(&self, watch: &RunWatch) {
        while let Ok(options) = self.watches.recv_blocking() {
            let end = watch(&options, &self.cancel, &mut |ring| {
                if self.rungs.len() >= RING_QUEUE {
                    self.overrun.store(true, Ordering::SeqCst);
                } else if let Err(TrySendError::Full(_)) =
                    self.rungs.try_send(DoorbellNews::Ring(ring))
                {
                    self.overrun.store(true, Ordering::SeqCst);
                }
            });
            let is_told = self.rungs.send_blocking(DoorbellNews::Ended(end)).is_ok();
            if !is_told || self.cancel.is_cancelled() {
                return;
            }
        }
    }
}

impl WatchDoorbell {
    pub(super) fn new() -> (Self, WatchThread) {
        let (watches, wanted) = bounded(1);
        // One place more than rings may take, so that the end is always told.
        let (told, rungs) = bounded(RING_QUEUE + 1);
        let (overrun, cancel): (Arc<AtomicBool>, Arc<WatchCancel>) = Default::default();
        let rope = WatchThread {
            watches: wanted,
            rungs: told,
            overrun: Arc::clone(&overrun),
            cancel: Arc::clone(&cancel),
        };
        let bell = Self {
            watches,
            rungs,
            overrun,
            cancel,
        };
        (bell, rope)
    }

    /// Begins a watch. The one before has to have ended; otherwise this one begins when it has.
    pub async fn start_watch(&self, options: WatchOptions) {
        // The thread ends only with this value.
        let _ = self.watches.send(options).await;
    }

    /// Waits for the doorbell's next news. Dropping the future loses nothing.
    pub async fn next_news(&self) -> DoorbellNews {
        if self.overrun.swap(false, Ordering::SeqCst) {
            return DoorbellNews::Overrun;
        }
        match self.rungs.recv().await {
            Ok(rung) => rung,
            Err(_) => DoorbellNews::Ended(Err(KubeError::Cancelled)),
        }
    }
}

impl Drop for WatchDoorbell {
    fn drop(&mut self) {
        self.rungs.close();
        self.cancel.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use super::super::testing::{Authority, NOW, Say, Server, Then, chunks, ok, say};
    use super::super::{
        ClientTimeouts, HttpApi, Kubeconfig, RequestRates, SharedApiserver, WatchEventKind,
    };
    use super::*;
    use crate::image::testing::gzip;
    use crate::net::ProxyVariables;
    use crate::sys::pages::page_size_bytes;
    use crate::testing::TestDir;

    fn event(n: usize) -> String {
        format!(
            "{{\"type\":\"MODIFIED\",\"object\":{{\"metadata\":{{\"uid\":\"u{n}\",\"resourceVersion\":\"{n}\"}}}}}}\n"
        )
    }

    fn api(url: &str, user: &str) -> Arc<dyn KubeApi> {
        let text = format!(
            "{{current-context: a, clusters: [{{name: c, cluster: {{server: '{url}', insecure-skip-tls-verify: true}}}}], \
             users: [{{name: u, user: {{{user}}}}}], contexts: [{{name: a, context: {{cluster: c, user: u}}}}]}}"
        );
        let config = Kubeconfig::parse("/k".as_ref(), text.as_bytes(), &[]).expect("kubeconfig");
        let cluster = Arc::new(SharedApiserver::new(
            config,
            ProxyVariables::default(),
            None,
        ));
        Arc::new(HttpApi::new(
            &cluster,
            ClientTimeouts::default(),
            RequestRates::default(),
            None,
        ))
    }

    fn options() -> WatchOptions {
        WatchOptions {
            node: "n".into(),
            resource_version: "1".into(),
            timeout: core::time::Duration::from_secs(60),
            bookmarks: false,
        }
    }

    #[test]
    fn rings_and_their_end() {
        let server = Server::plain(|seen| match seen.number {
            0 => chunks(&[&event(1), &event(2)], true),
            1 => {
                let many: Vec<String> = (0..200).map(event).collect();
                chunks(&[&many.concat()], true)
            }
            _ => Say {
                then: Then::Hang,
                ..chunks(&[&event(9)], false)
            },
        });
        let lanes = KubeLanes::start(api(&server.url(), "")).expect("threads");
        let bell = lanes.open_doorbell().expect("thread");
        smol::block_on(async {
            bell.start_watch(options()).await;
            for n in 1..=2 {
                let rung = bell.next_news().await;
                assert!(
                    matches!(&rung, DoorbellNews::Ring(r) if r.uid == format!("u{n}")),
                    "{rung:?}"
                );
            }
            assert!(matches!(
                bell.next_news().await,
                DoorbellNews::Ended(Ok(WatchEnd::Clean))
            ));
            // More rings than fit while nobody takes them: the overrun is told, and the end.
            bell.start_watch(options()).await;
            let (mut rings, mut overrun) = (0, false);
            while bell.rungs.len() <= RING_QUEUE {
                smol::future::yield_now().await;
            }
            loop {
                match bell.next_news().await {
                    DoorbellNews::Ring(_) => rings += 1,
                    DoorbellNews::Overrun => overrun = true,
                    DoorbellNews::Ended(end) => {
                        assert!(matches!(end, Ok(WatchEnd::Clean)), "{end:?}");
                        break;
                    }
                }
            }
            assert_eq!((rings, overrun), (RING_QUEUE, true));
            bell.start_watch(options()).await;
            assert!(
                matches!(bell.next_news().await, DoorbellNews::Ring(r) if r.kind == WatchEventKind::Modified)
            );
            bell.cancel.interrupt();
            assert!(matches!(
                bell.next_news().await,
                DoorbellNews::Ended(Err(_))
            ));
            // Dropped while it watches.
            bell.start_watch(options()).await;
            assert!(matches!(bell.next_news().await, DoorbellNews::Ring(_)));
        });
        drop(bell);
    }

    #[test]
    fn a_stuck_request_does_not_keep_the_heartbeat() {
        let server = Server::plain(|seen| {
            let then = if seen.path.contains("leases") {
                Then::Keep
            } else {
                Then::Hang
            };
            let mut say = ok("{}");
            if then == Then::Hang {
                say.bytes.truncate(20);
            }
            Say { then, ..say }
        });
        let lanes = KubeLanes::start(api(&server.url(), "")).expect("threads");
        let (told, begun) = mpsc::channel();
        smol::block_on(async {
            let executor = smol::LocalExecutor::new();
            let stuck: Vec<_> = (0..WORK_THREADS + 1)
                .map(|_| {
                    let (lanes, told) = (lanes.clone(), told.clone());
                    executor.spawn(async move {
                        lanes
                            .run_request(move |api| {
                                let _ = told.send(());
                                api.read_config_map("a", "b").is_err()
                            })
                            .await
                    })
                })
                .collect();
            let beat = lanes.run_heartbeat(|api| api.read_lease("n").is_ok());
            assert!(executor.run(beat).await);
            for _ in 0..WORK_THREADS {
                while begun.try_recv().is_err() {
                    executor.tick().await;
                }
            }
            // The end of the server ends the requests that wait.
            drop(server);
            for task in stuck {
                assert!(executor.run(task).await);
            }
        });
    }

    /// Counts the pages of the calling thread's stack that were ever touched, in bytes: those from this function down to `depth`
    /// bytes below it, which must not be more than the stack has left. The kernel may map a stack and its neighbours as one, so
    /// that the figures of the mapping tell less.
    #[expect(unsafe_code, reason = "mincore has no safe wrapper")]
    fn touched_stack_bytes(depth: usize) -> usize {
        let here = 0_u8;
        let page = usize::try_from(page_size_bytes()).expect("a size of pages");
        let start = ((&raw const here).addr() - depth) / page * page;
        let mut pages = vec![0; depth.div_ceil(page)];
        let first = (&raw const here).cast_mut().with_addr(start).cast();
        // SAFETY: the vector has a byte of each page of the range, and the call writes nothing else.
        let done = unsafe { libc::mincore(first, pages.len() * page, pages.as_mut_ptr()) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        pages.iter().filter(|state| **state & 1 != 0).count() * page
    }

    #[test]
    fn stacks_are_large_enough() {
        let ca = Authority::new();
        let items: Vec<_> = (0..500)
            .map(|n| format!(r#"{{"metadata":{{"name":"p{n}","uid":"u{n}","resourceVersion":"1","annotations":{{"a":"b"}}}}}}"#))
            .collect();
        let list = format!(
            r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{}]}}"#,
            items.join(",")
        );
        let deep = format!("{}1{}", r#"{"a":"#.repeat(40), "}".repeat(40));
        let server = Server::tls(&ca.server(&["127.0.0.1"], NOW), Some(&ca), move |seen| {
            if seen.path.contains("watch=1") {
                chunks(&[&event(1)], true)
            } else if seen.path.contains("pods?") {
                say(200, "content-encoding: gzip\r\n", &gzip(list.as_bytes()))
            } else {
                ok(&deep)
            }
        });
        let scratch = TestDir::new("lanes");
        let pem = scratch.join("pair.pem");
        fs::write(&pem, ca.client("system:nodes", "system:node:n", NOW).both()).expect("pair");
        let user = format!(
            "client-certificate: '{0}', client-key: '{0}'",
            pem.display()
        );
        let api = api(&server.url(), &user);
        let touched = thread::Builder::new()
            // Below the frames of this closure there are `STACK_BYTES`. No other thread of the tests has this size: glibc
            // gives it no stack that was used.
            .stack_size(STACK_BYTES + 3 * 4096)
            .spawn(move || {
                let listed = api.list_pods("n", &mut |_| {}).expect("list");
                assert_eq!(listed.items, 500);
                api.read_config_map("a", "b").expect("pod");
                let end =
                    api.watch_pods(&options(), &Arc::new(WatchCancel::default()), &mut |_| {});
                assert_eq!(end.expect("end"), WatchEnd::Clean);
                api.create_csr(b"{}").expect("request");
                touched_stack_bytes(STACK_BYTES)
            })
            .expect("thread")
            .join()
            .expect("work");
        println!("{touched} bytes of {STACK_BYTES}");
        // The requests touched some of it: what is measured is the stack.
        assert!(touched > 16 << 10, "{touched} bytes");
        assert!(touched * 4 <= STACK_BYTES * 3, "{touched} bytes");
    }
}
