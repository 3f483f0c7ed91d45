//! The keeper over a server that answers as a test says, a clock that stands, and a writer that only notes.

use alloc::{collections::BTreeSet, rc::Rc, sync::Arc};
use core::{
    cell::{Cell, RefCell},
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};
use std::{
    io,
    sync::{Mutex, mpsc},
};

use serde_json::{Value, json};
use smol::future::{block_on, or, yield_now, zip};

use super::{
    super::{
        ServicesBoard,
        doorbells::WATCH_TIME,
        settings::ServicesConfig,
        tools::KeeperTools,
        writer::{NftError, TableWriter, WriterFuture},
    },
    FIRST_PAUSE, LAST_REFUSED, POLL, REFUSED_PAUSE, ServicesKeeper, TABLE_LOOK, WATCHED_LIST,
    WRITE_PAUSE,
};
use crate::{
    agent::{
        clock::Clock,
        complaints::Complaints,
        link_policy::{FreeLink, LinkPolicy},
        recorder::EventRecorder,
        tests::world::{Hands, TestClock},
    },
    api::MonoTime,
    kube::{
        ClusterReader, Kubeconfig, SharedApiserver,
        testing::{Say, Server, Then, chunks, ok, say},
    },
    logic::services::{
        ProxyNode, index::ServiceIndex, parse_range, pause::GrowingPause, table::STAMP,
        transaction::DELETED_CHAINS, udp::UdpPort,
    },
    net::ProxyVariables,
    sys::{clock::mono_now, lane::Lane},
};

/// Element of the Service of [`Bench::new`].
const WEB: &str = "10.43.0.7 . tcp . 80 : goto ";
/// Time for what other threads do, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

const TABLES: &str = "table ip other\ntable ip picolet-services\n";
const HEALTHZ: SocketAddr = SocketAddr::new(core::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10256);

/// Writer of a table that is empty whenever somebody looks, but for its stamp.
#[derive(Default)]
struct NotedTexts {
    /// Texts that were taken.
    texts: RefCell<Vec<String>>,
    /// The text that wrote the stamp of IPv4.
    stamp: RefCell<String>,
    /// Texts that have this are refused, if it is not empty.
    refused: Cell<&'static str>,
    /// The program breaks at texts that have this, if it is not empty.
    broken: Cell<&'static str>,
    /// Tables and chains of the machine.
    listed: Cell<&'static str>,
    /// Chains of IPv4.
    chains: Cell<&'static str>,
    /// Lists that were asked for.
    looks: RefCell<Vec<String>>,
}

impl NotedTexts {
    /// Returns true if the texts from a number on have all these parts.
    fn has_written(&self, from: usize, parts: &[&str]) -> bool {
        let texts = self.texts.borrow()[from..].concat();
        parts.iter().all(|part| texts.contains(part))
    }

    fn count(&self) -> usize {
        self.texts.borrow().len()
    }

    /// Returns true if the texts from a number on only remove tables of our own.
    fn has_only_removed(&self, from: usize) -> bool {
        let texts = self.texts.borrow();
        let mut lines = texts[from..].iter().flat_map(|text| text.lines());
        lines.all(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            matches!(
                words[..],
                ["add" | "delete", "table", _, "picolet-services"]
            )
        })
    }
}

impl TableWriter for NotedTexts {
    fn write_text(&self, text: String) -> WriterFuture<'_> {
        let refused = self.refused.get();
        if !refused.is_empty() && text.contains(refused) {
            return Box::pin(async { Err(NftError::Refused("no".into())) });
        }
        let broken = self.broken.get();
        if !broken.is_empty() && text.contains(broken) {
            return Box::pin(async { Err(NftError::Run(io::ErrorKind::TimedOut.into())) });
        }
        if text.contains("delete table ip ") {
            self.stamp.take();
        }
        if text.contains(&format!("flush set ip picolet-services {STAMP}")) {
            self.stamp.replace(text.clone());
        }
        self.texts.borrow_mut().push(text);
        Box::pin(async { Ok(String::new()) })
    }

    fn list<'a>(&'a self, words: &'a [&'a str]) -> WriterFuture<'a> {
        self.looks.borrow_mut().push(words.join(" "));
        let printed = match words {
            ["list", "chains", "ip"] => self.chains.get().to_owned(),
            [.., "ip", _, STAMP] => self.stamp.borrow().clone(),
            ["list", "chains" | "tables"] => self.listed.get().to_owned(),
            _ => String::new(),
        };
        Box::pin(async { Ok(printed) })
    }

    fn check_text(&self, _: String) -> WriterFuture<'_> {
        Box::pin(async { Ok(String::new()) })
    }
}

/// A keeper, and all that it sees.
struct Bench {
    server: Server,
    /// Each answers one watch: of Services, of slices.
    answer_watch: [mpsc::Sender<Say>; 2],
    /// Set while single Services may not be read.
    is_away: Arc<AtomicBool>,
    hands: Rc<Hands>,
    writer: Rc<NotedTexts>,
    board: Rc<ServicesBoard>,
}

fn service(name: &str, ip: &str, protocol: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "3"},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80, "protocol": protocol}]},
    })
}

impl Bench {
    /// A Service with two endpoints.
    fn new() -> (Self, ServicesKeeper) {
        Self::of(vec![service("web", "10.43.0.7", "TCP")])
    }

    /// These Services; the first has two endpoints.
    fn of(services: Vec<Value>) -> (Self, ServicesKeeper) {
        let first = services[0].clone();
        let (name, protocol) = (
            &first["metadata"]["name"],
            &first["spec"]["ports"][0]["protocol"],
        );
        let slice = json!({
            "metadata": {"name": "one", "namespace": "shop", "uid": "s", "resourceVersion": "4",
                "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": protocol}],
            "endpoints": [{"addresses": ["10.42.0.2"]}, {"addresses": ["10.42.0.3"]}],
        });
        let channels = [mpsc::channel(), mpsc::channel()];
        let [(of_services, to_services), (of_slices, to_slices)] = channels;
        let (answer_watch, answers) = (
            [of_services, of_slices],
            [to_services, to_slices].map(Mutex::new),
        );
        let is_away = Arc::<AtomicBool>::default();
        let seen_away = Arc::clone(&is_away);
        let server = Server::plain(move |seen| {
            let is_of_slices = seen.path.contains("endpointslices");
            if seen.path.contains("watch=1") {
                let answers = answers[usize::from(is_of_slices)].lock();
                let answer = answers.expect("no panic").recv();
                return answer.unwrap_or_else(|_| chunks(&[], true));
            }
            let mut items = services.clone();
            if is_of_slices {
                items = vec![slice.clone()];
            } else if let Some((_, name)) = seen.path.split_once("metadata.name%3D") {
                if seen_away.load(Ordering::SeqCst) {
                    return say(403, "", b"{}");
                }
                let is_it =
                    |item: &Value| item["metadata"]["name"].as_str() == name.split('&').next();
                items.retain(is_it);
            }
            ok(&json!({"metadata": {"resourceVersion": "7"}, "items": items}).to_string())
        });
        let hands = Rc::<Hands>::default();
        let clock: Rc<dyn Clock> = Rc::new(TestClock(Rc::clone(&hands)));
        let writer = Rc::<NotedTexts>::default();
        let board = Rc::<ServicesBoard>::default();
        let range = |text: &str| parse_range(text).expect("a range");
        let keeper = ServicesKeeper {
            cfg: ServicesConfig {
                cluster_ranges: vec![range("10.42.0.0/16")],
                service_ranges: vec![range("10.43.0.0/16")],
                healthz: Some(HEALTHZ),
                watch: true,
                ..ServicesConfig::default()
            },
            tools: KeeperTools {
                board: Rc::clone(&board),
                writer: Rc::<NotedTexts>::clone(&writer),
                recorder: Rc::new(EventRecorder::new(Rc::clone(&clock), "n1".into())),
                complaints: Rc::new(Complaints::new(Rc::clone(&clock))),
                disk: Lane::start("disk").expect("a thread"),
                clock,
                remove_flows: |_| Ok(0),
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
            stale: BTreeSet::new(),
            is_suspect: true,
            is_removed: false,
            is_list_failing: false,
            has_failed: false,
            busy: BTreeSet::new(),
            busy_due: None,
            busy_pause: GrowingPause::new(FIRST_PAUSE, LAST_REFUSED),
            retry_due: None,
            retry_pause: GrowingPause::new(FIRST_PAUSE, LAST_REFUSED),
        };
        let bench = Self {
            server,
            answer_watch,
            is_away,
            hands,
            writer,
            board,
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

    /// Number of times that a Service was read alone.
    fn count_reads(&self, name: &str) -> usize {
        let part = format!("metadata.name%3D{name}&");
        let seen = self.server.seen();
        seen.iter().filter(|seen| seen.path.contains(&part)).count()
    }

    /// Lets the time come, once the keeper sleeps until then.
    async fn pass(&self, time: Duration) {
        self.until_alarm(time).await;
        self.hands.set(MonoTime::default() + time);
    }

    async fn until_alarm(&self, time: Duration) {
        let time = Some(MonoTime::default() + time);
        self.until("an alarm", |bench| bench.hands.next_alarm() == time)
            .await;
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
                let endpoints = ["10.42.0.2 . 8080", "10.42.0.3 . 8080"];
                bench.writer.has_written(0, &[WEB]) && bench.writer.has_written(0, &endpoints)
            })
            .await;

        // Both watches have lived their time: they go on, from the version of the list.
        bench.hands.set(MonoTime::default() + WATCH_TIME);
        for watch in &bench.answer_watch {
            watch.send(chunks(&[], true)).expect("told");
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
            bench.answer_watch[0].send(chunks(&[], true)).expect("told");
            let due = bench.hands.now() + pause;
            let alarm = Some(due - MonoTime::default());
            bench.until_asked(1, watches - 1, alarm).await;
            bench.hands.set(due);
            bench.until_asked(1, watches, None).await;
        }
    };
    block_on(or(keeper.keep_services(), test));
}

/// A link whose bytes cost money.
struct CostlyLink;

impl LinkPolicy for CostlyLink {
    fn is_metered(&self) -> bool {
        true
    }
}

#[test]
fn where_bytes_cost_money_watches_are_silent() {
    // PROX-21
    for (is_metered, bookmarks) in [
        (false, "allowWatchBookmarks=true"),
        (true, "allowWatchBookmarks=false"),
    ] {
        let (bench, mut keeper) = Bench::new();
        if is_metered {
            keeper.tools.link_policy = Rc::new(CostlyLink);
        }
        let test = async {
            bench.pass(WRITE_PAUSE).await;
            bench.until_asked(1, 2, None).await;
            let (_, watches) = bench.asked();
            assert!(
                watches.iter().all(|path| path.contains(bookmarks)),
                "{watches:?}"
            );
            let before = WATCHED_LIST - Duration::from_secs(1);
            bench.hands.set(MonoTime::default() + before);
            bench.until_asked(1, 2, Some(WATCHED_LIST)).await;
            bench.hands.set(MonoTime::default() + WATCHED_LIST);
            bench.until_asked(2, 4, None).await;
        };
        block_on(or(keeper.keep_services(), test));
    }
}

#[test]
fn a_watch_whose_version_has_expired_is_followed_by_a_list() {
    // PROX-21
    let (bench, keeper) = Bench::new();
    let expired = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    let event = json!({"type": "ERROR", "object": expired}).to_string() + "\n";
    let test = async {
        bench.pass(WRITE_PAUSE).await;
        let answers = [
            say(
                410,
                "content-type: application/json\r\n",
                expired.to_string().as_bytes(),
            ),
            chunks(&[&event], true),
        ];
        for (number, answer) in (1..).zip(answers) {
            let lists = usize::try_from(number).expect("small");
            bench.until_asked(lists, 2 * lists, None).await;
            bench.answer_watch[0].send(answer).expect("told");
            // Not before the time in which a node without watches lists, and twice that the next time.
            bench.pass(POLL * ((1 << number) - 1)).await;
            bench.until_asked(lists + 1, 2 * (lists + 1), None).await;
        }
    };
    block_on(or(keeper.keep_services(), test));
}

#[test]
fn a_slice_that_leaves_its_service_rings() {
    // PROX-02 PROX-21
    let (bench, keeper) = Bench::new();
    // A watch tells so of an object that its selector does not match any more.
    let event = json!({"type": "DELETED", "object": {"metadata": {
        "name": "one", "namespace": "shop", "uid": "s", "resourceVersion": "8",
        "labels": {"kubernetes.io/service-name": "web"},
    }}});
    let event = event.to_string() + "\n";
    let test = async {
        bench.pass(WRITE_PAUSE).await;
        bench.until_asked(1, 2, None).await;
        let (_, watches) = bench.asked();
        let label = "endpointslices?watch=1&labelSelector=";
        let of_slices = watches.iter().find(|path| path.contains(label));
        let of_slices = of_slices.expect("a watch");
        assert!(
            of_slices.contains("%2Ckubernetes.io%2Fservice-name&"),
            "{of_slices}"
        );
        assert_eq!(bench.count_reads("web"), 1);
        let answer = Say {
            then: Then::Hang,
            ..chunks(&[&event], false)
        };
        bench.answer_watch[1].send(answer).expect("told");
        bench
            .until("a look at the Service", |bench| {
                bench.count_reads("web") == 2
            })
            .await;
        bench.until_asked(1, 2, None).await;
    };
    block_on(or(keeper.keep_services(), test));
}

#[test]
fn only_a_service_that_was_refused_is_tried_again() {
    // PROX-25
    let other = service("db", "10.43.0.8", "TCP");
    let (bench, keeper) = Bench::of(vec![service("web", "10.43.0.7", "TCP"), other]);
    bench.writer.refused.set("10.43.0.8 ");
    let test = async {
        bench.pass(WRITE_PAUSE).await;
        assert!(bench.writer.has_written(0, &[WEB]));
        bench.pass(FIRST_PAUSE).await;
        bench.until_alarm(FIRST_PAUSE * 3).await;
        assert_eq!(bench.count_reads("db"), 2);
        assert_eq!(bench.board.health.borrow().refused, 1);
        bench.writer.refused.set("");
        let count = bench.writer.count();
        bench.pass(FIRST_PAUSE * 3).await;
        bench
            .until("it is written", |bench| {
                bench
                    .writer
                    .has_written(count, &["10.43.0.8 . tcp . 80 : goto "])
            })
            .await;
        bench.pass(FIRST_PAUSE * 3 + WRITE_PAUSE).await;
        assert_eq!((bench.count_reads("web"), bench.count_reads("db")), (1, 3));
        assert!(!bench.writer.has_written(count, &["10.43.0.7"]));
        assert_eq!(bench.board.health.borrow().refused, 0);
    };
    block_on(or(keeper.keep_services(), test));
}

#[test]
fn failures_do_not_put_off_the_next_try() {
    // PROX-25
    let other = service("db", "10.43.0.8", "TCP");
    let (bench, keeper) = Bench::of(vec![service("web", "10.43.0.7", "TCP"), other]);
    bench.writer.refused.set("10.43.0.8 ");
    let event = json!({"type": "MODIFIED", "object": {"metadata": {
        "name": "db", "namespace": "shop", "uid": "db", "resourceVersion": "8",
    }}});
    let event = event.to_string() + "\n";
    let test = async {
        bench.pass(WRITE_PAUSE).await;
        bench.until_alarm(FIRST_PAUSE).await;
        let answer = Say {
            then: Then::Hang,
            ..chunks(&[&event], false)
        };
        bench.answer_watch[0].send(answer).expect("told");
        bench
            .until("it is refused again", |bench| {
                bench.board.figures.get().failed == 2
            })
            .await;
        bench.until_alarm(FIRST_PAUSE).await;
        // A Service that the kernel does not take makes not all look unhealthy.
        assert_eq!(bench.board.failing_since.get(), None);
    };
    block_on(or(keeper.keep_services(), test));
}

#[test]
fn services_that_were_refused_cost_one_look_at_the_table() {
    // PROX-25
    let mut services = vec![service("web", "10.43.0.7", "TCP")];
    let refused = ["91", "92", "93"];
    services.extend(refused.map(|end| service(end, &format!("10.43.0.{end}"), "TCP")));
    let (bench, keeper) = Bench::of(services);
    bench.writer.refused.set("10.43.0.9");
    let test = async {
        bench.pass(WRITE_PAUSE).await;
        bench.until_alarm(FIRST_PAUSE).await;
        assert_eq!(bench.board.health.borrow().refused, 3);
        bench.writer.looks.take();
        bench.pass(FIRST_PAUSE).await;
        bench.until_alarm(FIRST_PAUSE * 3).await;
        assert!(refused.iter().all(|name| bench.count_reads(name) == 2));
        let looks = bench.writer.looks.take();
        let count = |end: &str| looks.iter().filter(|look| look.ends_with(end)).count();
        assert_eq!((count(STAMP), count("list chains ip")), (1, 1), "{looks:?}");
        // What they would have is free for them.
        bench.writer.refused.set("");
        let count = bench.writer.count();
        bench.pass(FIRST_PAUSE * 3).await;
        bench.pass(FIRST_PAUSE * 3 + WRITE_PAUSE).await;
        let elements = refused.map(|end| format!("10.43.0.{end} . tcp . 80 : goto "));
        let elements = elements.each_ref().map(String::as_str);
        assert!(bench.writer.has_written(count, &elements));
        assert_eq!(bench.board.health.borrow().refused, 0);
    };
    block_on(or(keeper.keep_services(), test));
}

#[test]
fn a_chain_that_is_busy_is_deleted_later_and_keeps_no_other() {
    // PROX-25
    let (bench, keeper) = Bench::new();
    let chain = |port: usize| format!("\tchain service-aa-tcp-{port} {{\n\t}}\n");
    let chains: String = (1..=DELETED_CHAINS + 100).map(chain).collect();
    let chains = format!("table ip picolet-services {{\n{chains}}}\n");
    bench.writer.chains.set(chains.leak());
    let bad = "delete chain ip picolet-services service-00000000000000aa-tcp-81\n";
    bench.writer.refused.set(bad);
    let count_deleted = |bench: &Bench| {
        let texts = bench.writer.texts.borrow().concat();
        texts.matches("delete chain ").count()
    };
    let test = async {
        bench.pass(WRITE_PAUSE).await;
        // It alone is tried again, after pauses that grow. Nothing is read for it.
        let mut next = WRITE_PAUSE;
        for pause in [FIRST_PAUSE, FIRST_PAUSE * 2] {
            next += pause;
            bench.until_alarm(next).await;
            assert_eq!(count_deleted(&bench), DELETED_CHAINS + 100 - 1);
            assert!(!bench.writer.has_written(0, &[bad]));
            bench.writer.looks.take();
            bench.pass(next).await;
        }
        next += FIRST_PAUSE * 4;
        bench.until_alarm(next).await;
        let looks = bench.writer.looks.take();
        assert!(looks.iter().all(|look| look.ends_with(STAMP)), "{looks:?}");
        bench.writer.refused.set("");
        bench.pass(next).await;
        bench.until_alarm(TABLE_LOOK).await;
        assert!(bench.writer.has_written(0, &[bad]));
        assert_eq!(count_deleted(&bench), DELETED_CHAINS + 100);
        assert_eq!(bench.count_reads("web"), 1);
    };
    block_on(or(keeper.keep_services(), test));
}

#[test]
fn a_failure_of_the_table_lasts_until_what_failed_is_written() {
    // PROX-18 PROX-19
    let start = Some(MonoTime::default());
    // Rules of a Service, and the base.
    for (broken, since) in [(WEB, start), (STAMP, None)] {
        let (bench, keeper) = Bench::new();
        bench.writer.broken.set(broken);
        let test = async {
            bench.until_alarm(FIRST_PAUSE).await;
            assert_eq!(bench.board.failing_since.get(), start, "{broken}");
            // It can be written again, but nobody tells what.
            bench.writer.broken.set("");
            bench.is_away.store(true, Ordering::SeqCst);
            bench.pass(FIRST_PAUSE).await;
            bench.until_alarm(FIRST_PAUSE * 3).await;
            assert_eq!(bench.board.failing_since.get(), since, "{broken}");
            let trouble = bench.board.health.borrow().trouble.clone();
            assert!(trouble.is_some_and(|why| why.contains("cannot read Services")));
            bench.is_away.store(false, Ordering::SeqCst);
            bench.pass(FIRST_PAUSE * 3).await;
            bench.pass(FIRST_PAUSE * 3 + WRITE_PAUSE).await;
            assert!(bench.writer.has_written(0, &[WEB]));
            assert_eq!(bench.board.failing_since.get(), None, "{broken}");
            assert_eq!(bench.board.health.borrow().trouble, None);
        };
        block_on(or(keeper.keep_services(), test));
    }
}

/// Number of times that flows were looked through.
static FLOW_LOOKS: AtomicUsize = AtomicUsize::new(0);

fn fail_once(ports: &[UdpPort]) -> io::Result<usize> {
    match FLOW_LOOKS.fetch_add(1, Ordering::SeqCst) {
        0 => Err(io::ErrorKind::OutOfMemory.into()),
        _ => Ok(ports.len()),
    }
}

#[test]
fn flows_that_could_not_be_removed_are_looked_at_again() {
    // PROX-20
    let (bench, mut keeper) = Bench::of(vec![service("dns", "10.43.0.10", "UDP")]);
    keeper.tools.remove_flows = fail_once;
    let test = async {
        bench.pass(WRITE_PAUSE).await;
        assert_eq!(bench.board.figures.get().flows, 0);
        bench.pass(FIRST_PAUSE).await;
        bench.pass(FIRST_PAUSE + WRITE_PAUSE).await;
        assert_eq!(bench.board.figures.get().flows, 1);
        // Once is enough.
        bench.pass(TABLE_LOOK).await;
        assert_eq!(
            (FLOW_LOOKS.load(Ordering::SeqCst), bench.count_reads("dns")),
            (2, 2)
        );
    };
    block_on(or(keeper.keep_services(), test));
}

#[test]
fn nothing_is_written_beside_a_kube_proxy() {
    // PROX-01
    let (bench, keeper) = Bench::new();
    bench
        .writer
        .listed
        .set("table ip kube-proxy\ntable ip picolet-services\n");
    let has_refused = |bench: &Bench| {
        let health = bench.board.health.borrow();
        let trouble = health.trouble.as_ref();
        !health.is_written && trouble.is_some_and(|trouble| trouble.contains("kube-proxy"))
    };
    let test = async {
        // One is there, and a table of our own.
        bench.until_alarm(REFUSED_PAUSE).await;
        assert!(bench.writer.has_only_removed(0) && bench.writer.count() > 0);
        assert!(has_refused(&bench) && bench.board.healthz.get().is_none());
        assert_eq!(bench.asked().0, 0, "nothing is listed");
        // A look later it is gone.
        bench.writer.listed.set(TABLES);
        bench.pass(REFUSED_PAUSE).await;
        bench.pass(REFUSED_PAUSE + WRITE_PAUSE).await;
        assert!(bench.writer.has_written(0, &[WEB]) && !has_refused(&bench));
        assert_eq!(bench.board.healthz.get(), Some(HEALTHZ));
        // One comes: its chain in a table of iptables.
        let count = bench.writer.count();
        let chain = "table ip nat {\n\tchain KUBE-SERVICES {\n\t}\n}\ntable ip picolet-services\n";
        bench.writer.listed.set(chain);
        let look = REFUSED_PAUSE + TABLE_LOOK;
        bench.pass(look).await;
        bench.until_alarm(look + REFUSED_PAUSE).await;
        assert!(bench.writer.has_only_removed(count) && bench.writer.count() > count);
        assert!(has_refused(&bench) && bench.board.healthz.get().is_none());
    };
    block_on(or(keeper.keep_services(), test));
}

#[test]
fn a_table_without_its_stamp_is_written_anew() {
    // PROX-25
    let (bench, keeper) = Bench::new();
    let test = async {
        bench.pass(WRITE_PAUSE).await;
        bench.until_alarm(TABLE_LOOK).await;
        let count = bench.writer.count();
        // The look renews the base alone: single chains may have been emptied.
        bench.pass(TABLE_LOOK).await;
        bench.until_alarm(TABLE_LOOK * 2).await;
        let chain = "flush chain ip picolet-services nat-prerouting\n";
        assert!(bench.writer.has_written(count, &[chain]));
        assert!(!bench.writer.has_written(count, &[WEB]));
        assert_eq!(bench.board.figures.get().repaired, 0);
        // Another program removes all tables.
        bench.writer.stamp.take();
        bench.pass(TABLE_LOOK * 2).await;
        bench.pass(TABLE_LOOK * 2 + WRITE_PAUSE).await;
        assert_eq!(bench.board.figures.get().repaired, 1);
        let base = ["add table ip picolet-services\n", WEB];
        assert!(bench.writer.has_written(count, &base));
        assert!(bench.writer.stamp.borrow().contains(STAMP));
    };
    block_on(or(keeper.keep_services(), test));
}

#[test]
fn who_is_turned_off_removes_its_table_and_nothing_foreign() {
    // PROX-28
    for (listed, count) in [(TABLES, 2), ("table ip other\n", 0)] {
        let (bench, mut keeper) = Bench::new();
        keeper.cfg.is_off = true;
        bench.writer.listed.set(listed);
        bench.writer.refused.set("delete table ip ");
        let test = async {
            if count > 0 {
                // It is tried again.
                bench
                    .until("an alarm", |bench| bench.hands.next_alarm().is_some())
                    .await;
                assert_eq!(bench.writer.count(), 0);
                bench.writer.refused.set("");
                bench.pass(REFUSED_PAUSE).await;
            }
        };
        // The keeper ends by itself.
        block_on(zip(keeper.keep_services(), test));
        assert_eq!(bench.writer.count(), count);
        assert!(bench.writer.has_only_removed(0));
        assert_eq!(bench.asked(), (0, Vec::new()));
    }
}
