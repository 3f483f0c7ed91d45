//! The keeper over a server that answers as a test says, a clock that stands, and a writer that only notes.

use alloc::{rc::Rc, sync::Arc};
use core::{cell::RefCell, time::Duration};
use std::sync::{Mutex, mpsc};

use serde_json::json;
use smol::future::{block_on, or, yield_now};

use super::{
    super::{
        doorbells::WATCH_TIME,
        settings::ServicesConfig,
        tools::KeeperTools,
        writer::{TableWriter, WriterFuture},
    },
    FIRST_PAUSE, LAST_REFUSED, ServicesKeeper,
};
use crate::{
    agent::{
        clock::Clock,
        complaints::Complaints,
        link_policy::FreeLink,
        recorder::EventRecorder,
        tests::world::{Hands, TestClock},
    },
    api::MonoTime,
    kube::{
        ClusterReader, Kubeconfig, SharedApiserver,
        testing::{Server, chunks, ok},
    },
    logic::services::{ProxyNode, index::ServiceIndex, parse_range, pause::GrowingPause},
    net::ProxyVariables,
    sys::{clock::mono_now, lane::Lane},
};

/// Time for what other threads do, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Writer of a table that is empty whenever somebody looks.
#[derive(Default)]
struct NotedTexts(RefCell<Vec<String>>);

impl TableWriter for NotedTexts {
    fn write_text(&self, text: String) -> WriterFuture<'_> {
        self.0.borrow_mut().push(text);
        Box::pin(async { Ok(String::new()) })
    }

    fn list<'a>(&'a self, _: &'a [&'a str]) -> WriterFuture<'a> {
        Box::pin(async { Ok(String::new()) })
    }

    fn check_text(&self, _: String) -> WriterFuture<'_> {
        Box::pin(async { Ok(String::new()) })
    }
}

/// A keeper, and all that it sees.
struct Bench {
    server: Server,
    /// Each word ends one watch: of Services, of slices.
    end_watch: [mpsc::Sender<()>; 2],
    hands: Rc<Hands>,
    writer: Rc<NotedTexts>,
}

impl Bench {
    fn new() -> (Self, ServicesKeeper) {
        let channels = [mpsc::channel(), mpsc::channel()];
        let [(of_services, services), (of_slices, slices)] = channels;
        let (end_watch, ends) = ([of_services, of_slices], [services, slices].map(Mutex::new));
        let server = Server::plain(move |seen| {
            if seen.path.contains("watch=1") {
                let ends = &ends[usize::from(seen.path.contains("endpointslices"))];
                let _ = ends.lock().expect("a word").recv();
                return chunks(&[], true);
            }
            ok(&match seen.path.contains("endpointslices") {
                false => list(json!({
                    "metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "3"},
                    "spec": {"clusterIP": "10.43.0.7", "clusterIPs": ["10.43.0.7"], "ports": [{"port": 80, "protocol": "TCP"}]},
                })),
                true => list(json!({
                    "metadata": {"name": "web-1", "namespace": "shop", "uid": "s", "resourceVersion": "4",
                        "labels": {"kubernetes.io/service-name": "web"}},
                    "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
                    "endpoints": [{"addresses": ["10.42.0.2"]}, {"addresses": ["10.42.0.3"]}],
                })),
            })
        });
        let hands = Rc::<Hands>::default();
        let clock: Rc<dyn Clock> = Rc::new(TestClock(Rc::clone(&hands)));
        let writer = Rc::<NotedTexts>::default();
        let range = |text: &str| parse_range(text).expect("a range");
        let keeper = ServicesKeeper {
            cfg: ServicesConfig {
                cluster_ranges: vec![range("10.42.0.0/16")],
                service_ranges: vec![range("10.43.0.0/16")],
                ..ServicesConfig::default()
            },
            tools: KeeperTools {
                board: Rc::default(),
                writer: Rc::<NotedTexts>::clone(&writer),
                recorder: Rc::new(EventRecorder::new(Rc::clone(&clock), "n1".into())),
                complaints: Rc::new(Complaints::new(Rc::clone(&clock))),
                disk: Lane::start("disk").expect("a thread"),
                clock,
                read_node: Box::new(|| ProxyNode {
                    name: "n1".into(),
                    zone: String::new(),
                    addresses: Vec::new(),
                }),
                link_policy: Rc::new(FreeLink),
                cluster_network: Rc::default(),
                reader: Some(Rc::new(reader(&server.url()))),
            },
            index: ServiceIndex::default(),
            stale: Vec::new(),
            is_suspect: true,
            is_removed: false,
            is_list_failing: false,
            retry_due: None,
            retry_pause: GrowingPause::new(FIRST_PAUSE, LAST_REFUSED),
        };
        let bench = Self {
            server,
            end_watch,
            hands,
            writer,
        };
        (bench, keeper)
    }

    /// Lists of all Services, and watches, as they were asked for.
    fn asked(&self) -> (usize, Vec<String>) {
        let seen = self.server.seen();
        let mut paths: Vec<_> = seen.into_iter().map(|seen| seen.path).collect();
        let lists = paths
            .iter()
            .filter(|path| path.starts_with("/api/v1/services?") && !path.contains("watch=1"));
        let lists = lists.count();
        paths.retain(|path| path.contains("watch=1"));
        (lists, paths)
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = mono_now() + PATIENCE;
        while !holds(self) {
            let asked = self.asked();
            assert!(
                mono_now() < end,
                "{what}: {asked:?}, {:?}",
                self.hands.next_alarm()
            );
            yield_now().await;
        }
    }

    /// Waits until so many lists and watches were asked for, and the keeper sleeps until `alarm`.
    async fn until_asked(&self, lists: usize, watches: usize, alarm: Option<Duration>) {
        let alarm = alarm.map(|alarm| MonoTime::default() + alarm);
        let what = format!("{lists} lists, {watches} watches");
        self.until(&what, |bench| {
            let (seen_lists, seen_watches) = bench.asked();
            let is_asleep = alarm.is_none() || bench.hands.next_alarm() == alarm;
            seen_lists >= lists && seen_watches.len() >= watches && is_asleep
        })
        .await;
        let (seen_lists, seen_watches) = self.asked();
        assert_eq!((seen_lists, seen_watches.len()), (lists, watches));
    }
}

fn list(item: serde_json::Value) -> String {
    json!({"metadata": {"resourceVersion": "7"}, "items": [item]}).to_string()
}

fn reader(url: &str) -> ClusterReader {
    let text = format!(
        "{{current-context: a, clusters: [{{name: c, cluster: {{server: '{url}'}}}}], \
         users: [{{name: u, user: {{}}}}], contexts: [{{name: a, context: {{cluster: c, user: u}}}}]}}"
    );
    let config = Kubeconfig::parse("/k".as_ref(), text.as_bytes(), &[]).expect("kubeconfig");
    let cluster = SharedApiserver::new(config, ProxyVariables::default(), None);
    let reader = ClusterReader::new(Arc::new(cluster));
    reader.set_ready();
    reader
}

#[test]
fn watches_that_end_go_on_and_those_that_end_soon_wait() {
    // PROX-21
    let (bench, keeper) = Bench::new();
    let test = async {
        // Two endpoints are listed, planned and written.
        bench.until_asked(1, 2, None).await;
        bench
            .until("a transaction", |bench| {
                let texts = bench.writer.0.borrow().concat();
                [
                    "10.43.0.7 . tcp . 80",
                    "10.42.0.2 . 8080",
                    "10.42.0.3 . 8080",
                ]
                .iter()
                .all(|part| texts.contains(part))
            })
            .await;

        // Both watches have lived their time: they go on, from the version of the list.
        bench.hands.set(MonoTime::default() + WATCH_TIME);
        for watch in &bench.end_watch {
            watch.send(()).expect("told");
        }
        bench.until_asked(1, 4, None).await;
        let (_, watches) = bench.asked();
        assert!(
            watches
                .iter()
                .all(|path| path.contains("resourceVersion=7&")),
            "{watches:?}"
        );

        // One ends too soon, again and again: the next one waits, longer each time.
        for (watches, pause) in [(5, FIRST_PAUSE), (6, FIRST_PAUSE * 2)] {
            bench.end_watch[0].send(()).expect("told");
            let due = bench.hands.now() + pause;
            let alarm = Some(due - MonoTime::default());
            bench.until_asked(1, watches - 1, alarm).await;
            bench.hands.set(due);
            bench.until_asked(1, watches, None).await;
        }
    };
    block_on(or(keeper.keep_services(), test));
}
