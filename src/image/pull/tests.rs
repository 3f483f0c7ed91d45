//! Pulls from a test registry that does as the test says, also wrong things.

use core::time::Duration;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::image::digest::Digest;
use crate::image::progress::ImageStage;
use crate::image::registry::{DockerConfig, RegistryCredential};
use crate::image::testing::{Layout, Stream, config, gzip};
use crate::testing::TestDir;

mod foreign;

/// A request, as it arrived.
#[derive(Clone, Debug, Default)]
pub(in crate::image) struct Seen {
    method: String,
    pub(in crate::image) path: String,
    authorization: String,
    pub(in crate::image) range: Option<usize>,
    body: String,
}

/// An answer.
pub(in crate::image) struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    pub(in crate::image) body: Vec<u8>,
    /// Bytes sent before the connection is cut.
    pub(in crate::image) cut: Option<usize>,
}

pub(in crate::image) fn reply(status: u16, body: impl Into<Vec<u8>>) -> Reply {
    Reply {
        status,
        headers: Vec::new(),
        body: body.into(),
        cut: None,
    }
}

impl Reply {
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Test server. It answers each request with the result of a function, and remembers all requests.
pub(in crate::image) struct Server {
    pub(in crate::image) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Bytes of bodies that were sent.
    sent: Arc<AtomicUsize>,
}

impl Server {
    pub(in crate::image) fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(None, answer)
    }

    /// Starts a server that speaks TLS, with a certificate that nobody knows.
    fn start_tls(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let key = rcgen::KeyPair::generate().expect("key");
        let params = rcgen::CertificateParams::new(["a.example".to_owned()]).expect("names");
        let own = params.self_signed(&key).expect("certificate");
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone()], key.into())
            .expect("certificate");
        Self::start_with(Some(Arc::new(config)), answer)
    }

    fn start_with(
        tls: Option<Arc<rustls::ServerConfig>>,
        answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let server = Self {
            address: listener.local_addr().expect("address"),
            seen: Arc::default(),
            sent: Arc::default(),
        };
        let (seen, sent) = (Arc::clone(&server.seen), Arc::clone(&server.sent));
        let answer = Arc::new(answer);
        // Both end with the process: a test has no use for their end.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, sent, answer) = (seen.clone(), sent.clone(), answer.clone());
                let tls = tls.clone();
                thread::spawn(move || match tls {
                    None => serve(stream, &seen, &sent, &*answer),
                    Some(config) => {
                        let session = rustls::ServerConnection::new(config).expect("session");
                        let stream = rustls::StreamOwned::new(session, stream);
                        serve(stream, &seen, &sent, &*answer);
                    }
                });
            }
        });
        server
    }

    pub(in crate::image) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("seen").clone()
    }

    fn count(&self, part: &str) -> usize {
        self.seen().iter().filter(|s| s.path.contains(part)).count()
    }
}

fn serve(
    stream: impl Read + Write,
    seen: &Mutex<Vec<Seen>>,
    sent: &AtomicUsize,
    answer: &dyn Fn(&Seen) -> Reply,
) {
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    if input.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split(' ');
    let mut request = Seen {
        method: words.next().unwrap_or("").into(),
        path: words.next().unwrap_or("").into(),
        ..Seen::default()
    };
    let mut length = 0;
    loop {
        let mut header = String::new();
        input.read_line(&mut header).expect("header");
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = value.into(),
            "range" => {
                let from = value
                    .strip_prefix("bytes=")
                    .and_then(|v| v.strip_suffix('-'));
                request.range = from.and_then(|f| f.parse().ok());
            }
            "content-length" => length = value.parse().expect("length"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).expect("body");
    request.body = String::from_utf8(body).expect("form");
    seen.lock().expect("seen").push(request.clone());
    let reply = answer(&request);
    let mut head = format!(
        "HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n",
        reply.status,
        reply.body.len()
    );
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let stream = input.get_mut();
    let cut = reply.cut.unwrap_or(reply.body.len());
    let body: &[u8] = if request.method == "HEAD" {
        &[]
    } else {
        &reply.body[..cut]
    };
    // A client may close the connection early.
    if stream.write_all(head.as_bytes()).is_ok() && stream.write_all(body).is_ok() {
        sent.fetch_add(body.len(), Ordering::SeqCst);
    }
}

/// Content of a registry: blobs, manifests among them, and the manifest that the tag `1` leads to.
#[derive(Clone)]
pub(in crate::image) struct Offer {
    blobs: Vec<(Digest, Vec<u8>)>,
    top: Value,
    layers: Vec<Digest>,
}

impl Offer {
    /// An image of these layers, compressed.
    pub(in crate::image) fn of(layers: &[Vec<u8>]) -> Self {
        let mut layout = Layout::new();
        let plain: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
        let packed: Vec<Vec<u8>> = plain.iter().map(|l| gzip(l)).collect();
        let packed: Vec<&[u8]> = packed.iter().map(Vec::as_slice).collect();
        let top = layout.image(&config(&plain, "x"), &packed);
        Self::from(
            layout,
            top,
            packed.iter().map(|l| Digest::compute(l)).collect(),
        )
    }

    fn from(layout: Layout, top: Value, layers: Vec<Digest>) -> Self {
        let blobs = layout.blobs.into_iter();
        Self {
            blobs: blobs
                .map(|(_, data)| (Digest::compute(&data), data))
                .collect(),
            top,
            layers,
        }
    }

    /// Two small layers.
    pub(in crate::image) fn small() -> Self {
        Self::of(&[file("a", b"base"), file("b", b"top")])
    }

    /// Two layers of `bytes` bytes each that do not compress.
    pub(in crate::image) fn large(bytes: usize) -> Self {
        let noise = |seed: u64| {
            let mut state = seed;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[0]
            };
            (0..bytes).map(|_| next()).collect::<Vec<u8>>()
        };
        Self::of(&[file("a", &noise(7)), file("b", &noise(11))])
    }

    fn size(&self) -> usize {
        self.blobs.iter().map(|(_, data)| data.len()).sum()
    }

    /// Answers like a registry without faults.
    pub(in crate::image) fn answer(&self, seen: &Seen) -> Reply {
        let path = seen.path.split('?').next().unwrap_or("");
        let Some((rest, name)) = path.rsplit_once('/') else {
            return reply(404, "");
        };
        let top = self.top["digest"].as_str().expect("digest");
        let manifest = rest.ends_with("/manifests");
        let wanted = if manifest && name == "1" { top } else { name };
        let found = self.blobs.iter().find(|(d, _)| d.to_string() == wanted);
        match found {
            None => reply(
                404,
                json!({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]})
                    .to_string(),
            ),
            Some((digest, data)) if manifest => reply(200, data.as_slice())
                .with("Docker-Content-Digest", digest.to_string())
                .with("Content-Type", "application/vnd.oci.image.manifest.v1+json"),
            Some((_, data)) => match seen.range {
                Some(from) if from >= data.len() => reply(416, ""),
                Some(from) => reply(206, &data[from..]).with(
                    "Content-Range",
                    format!("bytes {from}-{}/{}", data.len() - 1, data.len()),
                ),
                None => reply(200, data.as_slice()),
            },
        }
    }

    pub(in crate::image) fn is_layer(&self, path: &str) -> bool {
        self.layers.iter().any(|l| path.contains(&l.to_string()))
    }
}

pub(in crate::image) fn file(name: &str, data: &[u8]) -> Vec<u8> {
    Stream::new().file(name, data).bytes()
}

/// A store and a puller of its own.
struct Bench {
    scratch: TestDir,
    store: ImageStore,
    puller: Puller,
}

impl Bench {
    fn new() -> Self {
        Self::with(PullSettings::default())
    }

    fn with(settings: PullSettings) -> Self {
        let scratch = TestDir::new("pull");
        let store = ImageStore::open(&scratch.join("images")).expect("store");
        let puller = Puller::new(store.clone(), quick(settings));
        Self {
            scratch,
            store,
            puller,
        }
    }

    fn pull(&self, image: &str) -> PullOutcome {
        smol::block_on(self.puller.pull_image(image, None))
    }

    fn pulled(&self, image: &str) -> Arc<crate::image::ImageRecord> {
        let pulled = self.pull(image).unwrap_or_else(|e| panic!("{e}"));
        self.store.image_by_id(&pulled).expect("in the store")
    }

    /// A file of an image, from the uppermost layer that has it.
    fn read(&self, id: &str, name: &str) -> Vec<u8> {
        let dirs = self.store.layer_dirs(id).expect("layers");
        let path = dirs.iter().map(|d| d.join(name)).find(|p| p.exists());
        fs::read(path.expect(name)).expect("file")
    }

    /// Files of layers on their way.
    fn arriving(&self) -> Vec<String> {
        let list = fs::read_dir(self.scratch.join("images/pulls/blobs/sha256")).expect("pulls");
        list.map(|e| e.expect("entry").file_name().into_string().expect("utf-8"))
            .collect()
    }

    /// Opens the store again, as after a restart of the agent.
    fn restart(&mut self, settings: PullSettings) {
        // The lock must be free before the next one.
        self.store = ImageStore::open(&self.scratch.join("other")).expect("store");
        self.puller = Puller::new(self.store.clone(), PullSettings::default());
        // So must the thread of the last pull, which has told its outcome and is about to end.
        self.store = loop {
            match ImageStore::open(&self.scratch.join("images")) {
                Err(crate::image::ImageError::Locked(_)) => thread::yield_now(),
                store => break store.expect("store"),
            }
        };
        self.puller = Puller::new(self.store.clone(), quick(settings));
    }
}

/// Shortens all waits, for tests.
pub(in crate::image) fn quick(settings: PullSettings) -> PullSettings {
    PullSettings {
        limits: RegistryTimeLimits {
            stall: Duration::from_secs(2),
            answer: Duration::from_secs(5),
            retry: Duration::from_millis(1),
            ..RegistryTimeLimits::default()
        },
        ..settings
    }
}

fn image(server: &Server) -> String {
    format!("{}/team/app:1", server.address)
}

#[test]
fn a_whole_image() {
    // IMG-04
    let offer = Offer::small();
    let served = offer.clone();
    let server = Server::start(move |seen| served.answer(seen));
    let bench = Bench::new();
    let record = bench.pulled(&image(&server));
    assert_eq!(record.names, [image(&server)]);
    assert!(record.pulled && !record.pinned);
    assert_eq!(
        record.digests,
        [format!(
            "{}/team/app@{}",
            server.address,
            offer.top["digest"].as_str().expect("digest")
        )]
    );
    assert_eq!(bench.read(&record.id, "a"), b"base");
    assert_eq!(bench.read(&record.id, "b"), b"top");
    assert_eq!(bench.arriving(), Vec::<String>::new());
    // Asked again: one request without a body, and nothing else.
    let before = server.seen().len();
    assert_eq!(bench.pulled(&image(&server)).id, record.id);
    let again = server.seen().split_off(before);
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(again[0].method, "HEAD");
    // By digest too; and one that is not there is not found.
    let by_digest = record.digests[0].clone();
    assert_eq!(bench.pulled(&by_digest).id, record.id);
    let absent = format!("{}/team/app:2", server.address);
    assert!(
        matches!(bench.pull(&absent), Err(PullError::Denied(e)) if e.contains("manifest unknown"))
    );
    assert!(matches!(
        bench.pull("host.example/Case"),
        Err(PullError::Invalid(_))
    ));
}

#[test]
fn of_an_index_the_image_for_this_machine_and_nothing_else() {
    let (mine, other) = (file("a", b"mine"), file("a", b"other"));
    let mut layout = Layout::new();
    let mut foreign = layout.image(&config(&[&other], "foreign"), &[&other]);
    foreign["platform"] = json!({"os": "linux", "architecture": "s390x"});
    let mut suits = layout.image(&config(&[&mine], "mine"), &[&mine]);
    suits["platform"] =
        json!({"os": "linux", "architecture": crate::image::testing::architecture()});
    let suits_manifest = suits.clone();
    // An index whose digest comes behind the manifest's.
    let digest = |of: &Value| of["digest"].as_str().expect("digest").to_owned();
    let mut tops = (0..).map(|n: u32| {
        suits["annotations"] = json!({"n": n.to_string()});
        layout.index(&[foreign.clone(), suits.clone()])
    });
    let top = tops.find(|top| digest(top) > digest(&suits_manifest));
    let top = top.expect("half of all do");
    let index = digest(&top);
    let offer = Offer::from(layout, top, vec![]);
    let server = Server::start(move |seen| offer.answer(seen));
    let bench = Bench::new();
    let record = bench.pulled(&image(&server));
    assert_eq!(bench.read(&record.id, "a"), b"mine");
    assert_eq!(record.digests.len(), 2, "index and manifest");
    // IMG-22
    assert_eq!(
        record.image_id(),
        format!("{}/team/app@{index}", server.address)
    );
    assert_eq!(server.count(&digest(&foreign)), 0);
    assert_eq!(server.count(&Digest::compute(&other).to_string()), 0);
}

#[test]
fn a_registry_of_this_machine_is_asked_as_it_speaks() {
    // IMG-24
    let offer = Offer::small();
    let (plain, other) = (offer.clone(), offer);
    let servers = [
        (Server::start(move |seen| plain.answer(seen)), "http"),
        (Server::start_tls(move |seen| other.answer(seen)), "https"),
    ];
    for (server, scheme) in servers {
        let bench = Bench::new();
        bench.pulled(&image(&server));
        let absent = format!("{}/team/app:2", server.address);
        let error = bench.pull(&absent).expect_err("absent").to_string();
        let asked = format!("{scheme}://{absent}").replace("/team/app:2", "/v2/team/app/");
        assert!(error.starts_with(&asked), "{error}");
        // A mirror for all is asked likewise, if it is written without a scheme.
        let document = json!({"mirrors": {"*": {"endpoint": [server.address.to_string()]}}});
        let bench = Bench::with(PullSettings {
            registries: RegistriesConfig::parse(&document).expect("registries"),
            ..PullSettings::default()
        });
        bench.pulled(&image(&server));
        bench.pulled("a.invalid/team/app:1");
        // Written somewhere, it is no guess.
        let document = json!({"mirrors": {server.address.to_string(): {
            "endpoint": [format!("https://{}", server.address)],
        }}});
        let bench = Bench::with(PullSettings {
            registries: RegistriesConfig::parse(&document).expect("registries"),
            ..PullSettings::default()
        });
        let error = bench.pull(&image(&server)).expect_err("not trusted");
        assert!(
            error.to_string().contains("https://") || error.to_string().contains("trust"),
            "{error}"
        );
    }
}

#[test]
fn what_is_no_registry_is_named_and_not_asked_again() {
    // IMG-27
    let server = Server::start(|_| {
        reply(200, "<!DOCTYPE html><title>Log in to the hotel</title>")
            .with("Content-Type", "text/html; charset=utf-8")
    });
    let bench = Bench::new();
    let error = bench
        .pull(&image(&server))
        .expect_err("a portal")
        .to_string();
    let url = format!("http://{}/v2/team/app/manifests/1", server.address);
    assert!(
        error.starts_with(&url) && error.contains("this is not a registry"),
        "{error}"
    );
    assert!(error.contains("text/html"), "{error}");
    let asked = server.seen();
    assert_eq!(asked.iter().filter(|seen| seen.method == "GET").count(), 1);
}

#[test]
fn a_port_that_is_none_is_said_at_once() {
    // IMG-27
    let bench = Bench::new();
    for image in [
        "registry.invalid:99999/a:1",
        "localhost:65536/a:1",
        "[::1]:0/a:1",
    ] {
        let error = bench.pull(image).expect_err(image);
        assert!(matches!(error, PullError::Failed(_)), "{error:?}");
        assert!(
            error.to_string().contains("is not a port (1 to 65535)"),
            "{error}"
        );
    }
}

#[test]
fn a_name_with_a_digest_moves_no_tag() {
    let [new, old] = ["new", "old"].map(|text| Offer::of(&[file("a", text.as_bytes())]));
    let digest = old.top["digest"].as_str().expect("digest").to_owned();
    let server = Server::start(move |seen| match new.answer(seen) {
        Reply { status: 404, .. } => old.answer(seen),
        found => found,
    });
    let bench = Bench::new();
    let tagged = image(&server);
    let current = bench.pulled(&tagged);
    let pinned = format!("{tagged}@{digest}");
    // Fetched, and asked again.
    for _ in 0..2 {
        let record = bench.pulled(&pinned);
        assert_ne!(record.id, current.id);
        assert_eq!(record.names, [""; 0]);
        assert_eq!(bench.read(&record.id, "a"), b"old");
        let by_tag = bench
            .store
            .resolve_reference(&tagged)
            .expect("name")
            .expect("there");
        assert_eq!(by_tag.id, current.id);
    }
    let by_both = bench
        .store
        .resolve_reference(&pinned)
        .expect("name")
        .expect("there");
    assert_ne!(by_both.id, current.id);
}

#[test]
fn layers_of_any_size_are_not_believed() {
    let offer = Offer::small();
    let top = Digest::parse(offer.top["digest"].as_str().expect("digest")).expect("digest");
    let manifest = offer.blobs.iter().find(|b| b.0 == top).expect("manifest");
    for size in [u64::MAX, u64::MAX / 2 + 1, (64 << 30) + 1] {
        let mut edited: Value = serde_json::from_slice(&manifest.1).expect("json");
        for layer in edited["layers"].as_array_mut().expect("layers") {
            layer["size"] = size.into();
        }
        let served = offer.clone();
        let server = Server::start(move |seen| match seen.path.ends_with("/manifests/1") {
            true => reply(200, edited.to_string()),
            false => served.answer(seen),
        });
        let error = Bench::new().pull(&image(&server)).expect_err("too large");
        assert!(
            matches!(&error, PullError::Failed(why) if why.contains("bytes in a layer")),
            "{error}"
        );
    }
}

#[test]
fn an_index_without_end_is_not_read_to_its_end() {
    let layer = file("a", b"x");
    let mut layout = Layout::new();
    // None says in the index that it is for another machine.
    let images: Vec<Value> = (0..200)
        .map(|n| {
            let text = config(&[&layer], &n.to_string());
            let mut config: Value = serde_json::from_slice(&text).expect("json");
            config["architecture"] = format!("other{n}").into();
            layout.image(config.to_string().as_bytes(), &[&layer])
        })
        .collect();
    let few = layout.index(&images[..20]);
    let many = layout.index(&images);
    for (top, says) in [
        (few, "it has linux/other0, linux/other1, "),
        (many, "more than 48 documents for an image"),
    ] {
        let offer = Offer::from(Layout::new(), top, vec![]);
        let blobs = layout.blobs.iter();
        let blobs = blobs
            .map(|(_, data)| (Digest::compute(data), data.clone()))
            .collect();
        let offer = Offer { blobs, ..offer };
        let server = Server::start(move |seen| offer.answer(seen));
        let error = Bench::new().pull(&image(&server)).expect_err("none");
        let text = error.to_string();
        assert!(text.contains(says) && text.len() < 2000, "{text}");
        assert!(server.seen().len() <= 49, "{}", server.seen().len());
    }
}

#[test]
fn layers_that_are_there_are_not_fetched() {
    let (base, one, two) = (file("a", b"base"), file("b", b"1"), file("b", b"2"));
    let offers = [Offer::of(&[base.clone(), one]), Offer::of(&[base, two])];
    let shared = offers[0].layers[0].to_string();
    let server =
        Server::start(move |seen| offers[usize::from(seen.path.contains("/two/"))].answer(seen));
    let bench = Bench::new();
    bench.pulled(&format!("{}/one/app:1", server.address));
    let record = bench.pulled(&format!("{}/two/app:1", server.address));
    assert_eq!(bench.read(&record.id, "b"), b"2");
    assert_eq!(server.count(&shared), 1);
}

#[test]
fn a_link_that_is_cut_twenty_times_costs_nothing() {
    let offer = Offer::large(400_000);
    let (served, cuts) = (offer.clone(), AtomicUsize::new(0));
    let server = Server::start(move |seen| {
        let mut reply = served.answer(seen);
        if served.is_layer(&seen.path)
            && reply.body.len() > 30_000
            && cuts.fetch_add(1, Ordering::SeqCst) < 20
        {
            reply.cut = Some(30_000);
        }
        reply
    });
    let bench = Bench::new();
    let record = bench.pulled(&image(&server));
    assert_eq!(bench.read(&record.id, "a").len(), 400_000);
    let ranges = server.seen().iter().filter(|s| s.range.is_some()).count();
    assert_eq!(ranges, 20);
    let sent = server.sent.load(Ordering::SeqCst);
    assert!(
        sent <= offer.size() * 105 / 100,
        "{sent} of {}",
        offer.size()
    );
}

#[test]
fn a_pull_goes_on_where_the_agent_ended() {
    let offer = Offer::large(300_000);
    let (served, layers) = (offer.clone(), offer.layers.clone());
    let cut = Arc::new(AtomicUsize::new(100_000));
    let at = Arc::clone(&cut);
    let server = Server::start(move |seen| {
        let mut reply = served.answer(seen);
        if served.is_layer(&seen.path) {
            let end = at.load(Ordering::SeqCst);
            let from = seen.range.unwrap_or(0);
            reply.cut = Some(end.saturating_sub(from).min(reply.body.len()));
        }
        reply
    });
    let mut bench = Bench::new();
    // The link is dead behind the first third: in the end the pull gives up.
    let error = bench.pull(&image(&server)).expect_err("cut");
    assert!(matches!(error, PullError::Unavailable(_)), "{error}");
    assert!(bench.store.list_images().is_empty());
    assert_eq!(bench.arriving().len(), 2);
    let before = server.sent.load(Ordering::SeqCst);
    bench.restart(PullSettings::default());
    cut.store(usize::MAX, Ordering::SeqCst);
    let record = bench.pulled(&image(&server));
    assert_eq!(bench.read(&record.id, "b").len(), 300_000);
    let after = server.sent.load(Ordering::SeqCst) - before;
    assert!(after < offer.size() - 2 * 99_000, "{after}");
    for layer in &layers {
        let resumed = |s: &Seen| s.path.contains(&layer.to_string()) && s.range == Some(100_000);
        assert!(server.seen().iter().any(resumed));
    }
}

#[test]
fn a_part_that_the_power_cut_spoiled_is_fetched_anew() {
    let offer = Offer::large(200_000);
    let served = offer.clone();
    let server = Server::start(move |seen| served.answer(seen));
    let bench = Bench::new();
    let part = |layer: &Digest| {
        let blob = offer.blobs.iter().find(|b| b.0 == *layer).expect("layer");
        let domain = server.address.to_string();
        let way = crate::image::whose::RegistryAccess::new(&domain, None);
        let wanted = blobs::BlobKey::new(*layer, blob.1.len() as u64, &way);
        bench.puller.inner.blobs.part_path(wanted)
    };
    // One has blocks that were never written, the other one is longer than the layer.
    fs::write(part(&offer.layers[0]), vec![0; 70_000]).expect("part");
    fs::write(part(&offer.layers[1]), vec![1; 300_000]).expect("part");
    let record = bench.pulled(&image(&server));
    let clean = Bench::new();
    clean.pulled(&image(&server));
    for name in ["a", "b"] {
        assert_eq!(bench.read(&record.id, name), clean.read(&record.id, name));
    }
}

#[test]
fn what_others_left_is_in_nobodys_way() {
    let offer = Offer::small();
    let server = Server::start(move |seen| offer.answer(seen));
    let bench = Bench::new();
    let dir = bench.scratch.join("images/pulls/blobs/sha256");
    // More than an archive may have members.
    for n in 0..=crate::image::archive::MAX_MEMBERS {
        fs::write(dir.join(Digest::compute(&n.to_le_bytes()).hex()), b"").expect("left");
    }
    bench.pulled(&image(&server));
    assert_eq!(bench.arriving().len(), 512);
}

#[test]
fn another_registry_cannot_spoil_what_arrived() {
    let offer = Offer::large(200_000);
    let (served, whole) = (offer.clone(), Arc::new(AtomicUsize::new(0)));
    let now_whole = Arc::clone(&whole);
    let server = Server::start(move |seen| {
        let mut reply = served.answer(seen);
        if served.is_layer(&seen.path) && now_whole.load(Ordering::SeqCst) == 0 {
            let end = 100_000_usize.saturating_sub(seen.range.unwrap_or(0));
            reply.cut = Some(end);
        }
        reply
    });
    let bench = Bench::new();
    bench.pull(&image(&server)).expect_err("cut");
    // Names the same layers with other sizes, or sends something else for them.
    let top = Digest::parse(offer.top["digest"].as_str().expect("digest")).expect("digest");
    let manifest = offer.blobs.iter().find(|b| b.0 == top).expect("manifest");
    let mut edited: Value = serde_json::from_slice(&manifest.1).expect("json");
    for layer in edited["layers"].as_array_mut().expect("layers") {
        layer["size"] = 5.into();
    }
    for short in [true, false] {
        let (served, edited) = (offer.clone(), edited.clone());
        let evil = Server::start(move |seen| {
            let mut answer = served.answer(seen);
            if short && seen.path.ends_with("/manifests/1") {
                return reply(200, edited.to_string());
            } else if served.is_layer(&seen.path) {
                answer.body = vec![0; if short { 5 } else { answer.body.len() }];
            }
            answer
        });
        bench.pull(&image(&evil)).expect_err("wrong");
    }
    whole.store(1, Ordering::SeqCst);
    let before = server.seen().len();
    bench.pulled(&image(&server));
    let again = server.seen().split_off(before);
    let ranges = again.iter().filter(|s| s.range == Some(100_000)).count();
    assert_eq!(ranges, 2, "{again:?}");
}

#[test]
fn a_wrong_byte_never_gets_in() {
    let offer = Offer::large(100_000);
    // Each document and layer in turn, always spoiled: nothing of it becomes visible.
    for (digest, _) in &offer.blobs {
        let (served, spoiled) = (offer.clone(), digest.to_string());
        let top = served.top["digest"].as_str().expect("digest").to_owned();
        let server = Server::start(move |seen| {
            let mut reply = served.answer(seen);
            let hit = seen.path.contains(&spoiled) || (seen.path.ends_with("/1") && top == spoiled);
            if hit && let Some(last) = reply.body.last_mut() {
                *last ^= 1;
            }
            reply
        });
        let bench = Bench::new();
        let error = bench
            .pull(&image(&server))
            .expect_err("spoiled")
            .to_string();
        let why = if offer.is_layer(&digest.to_string()) {
            "3 downloads had a wrong digest, the last one sha256:"
        } else {
            "the registry sent other content than requested: its digest is sha256:"
        };
        assert!(error.contains(why), "{error}");
        assert!(bench.store.list_images().is_empty());
        assert!(
            bench
                .arriving()
                .iter()
                .all(|n| !n.starts_with(&digest.hex()) || n.ends_with(".part"))
        );
    }
    // Spoiled once: it is asked for again.
    let (served, once) = (offer.clone(), AtomicUsize::new(0));
    let server = Server::start(move |seen| {
        let mut reply = served.answer(seen);
        if served.is_layer(&seen.path) && once.fetch_add(1, Ordering::SeqCst) == 0 {
            reply.body[500] ^= 0x40;
        }
        reply
    });
    let bench = Bench::new();
    let record = bench.pulled(&image(&server));
    assert_eq!(bench.read(&record.id, "a").len(), 100_000);
}

#[test]
fn servers_without_ranges_and_with_odd_lengths() {
    let offer = Offer::large(120_000);
    let (served, cuts) = (offer.clone(), AtomicUsize::new(0));
    let server = Server::start(move |seen| {
        let mut reply = served.answer(&Seen {
            range: None,
            ..seen.clone()
        });
        if served.is_layer(&seen.path) && cuts.fetch_add(1, Ordering::SeqCst) < 4 {
            reply.cut = Some(50_000);
        }
        reply
    });
    let bench = Bench::new();
    bench.pulled(&image(&server));
    // More bytes than the manifest says, or another range than was asked for: never taken.
    for odd in ["longer", "gap"] {
        let served = offer.clone();
        let server = Server::start(move |seen| {
            let mut reply = served.answer(seen);
            if served.is_layer(&seen.path) {
                match odd {
                    "longer" => reply.body.extend([0; 10]),
                    _ => {
                        let size = reply.body.len();
                        reply.status = 206;
                        reply
                            .headers
                            .push(("Content-Range", format!("bytes 10-{}/{size}", size - 1)));
                        reply.body.drain(..10);
                    }
                }
            }
            reply
        });
        let bench = Bench::new();
        let error = bench.pull(&image(&server)).expect_err(odd).to_string();
        assert!(error.contains("bytes"), "{odd}: {error}");
        assert!(bench.store.list_images().is_empty());
    }
}

#[test]
fn outages_are_waited_out_and_told_apart() {
    // IMG-08
    let offer = Offer::small();
    for (name, status, times, outage) in [
        ("busy for a while", 503, 3, None),
        ("too many requests for a while", 429, 3, None),
        ("broken for good", 500, usize::MAX, Some(true)),
        ("too many for good", 429, usize::MAX, Some(true)),
        ("gone", 404, usize::MAX, Some(false)),
        ("forbidden", 403, usize::MAX, Some(false)),
    ] {
        let (served, count) = (offer.clone(), AtomicUsize::new(0));
        let server = Server::start(move |seen| {
            if count.fetch_add(1, Ordering::SeqCst) < times {
                return reply(status, "{}").with("Retry-After", "0");
            }
            served.answer(seen)
        });
        let bench = Bench::new();
        match (bench.pull(&image(&server)), outage) {
            (Ok(_), None) => {}
            (Err(PullError::Unavailable(e) | PullError::Limited(e)), Some(true)) => {
                assert!(e.contains(&status.to_string()), "{name}: {e}");
            }
            (Err(PullError::Failed(e) | PullError::Denied(e)), Some(false)) => {
                assert!(e.contains(&status.to_string()), "{name}: {e}");
                assert_eq!(server.seen().len(), 1, "{name}: asked once");
            }
            (other, _) => panic!("{name}: {other:?}"),
        }
    }
    // Who wants to be left alone for long is, at once.
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (status, after) in [
        (429, "61"),
        (503, "3600"),
        (429, "Sun, 06 Nov 1994 09:49:37 GMT"),
    ] {
        let server = Server::start(move |_| {
            reply(status, "{}")
                .with("Retry-After", after)
                .with("Date", date)
        });
        let error = Bench::new().pull(&image(&server)).expect_err("busy");
        // Of too many requests it may be another credential that has not sent them.
        assert_eq!(
            matches!(&error, PullError::Limited(_)),
            status == 429,
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.starts_with("RegistryUnavailable: ") && text.contains("try again in"),
            "{text}"
        );
        assert_eq!(server.seen().len(), 1, "{after}");
    }
    // Nobody there at all.
    let closed = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = closed.local_addr().expect("address");
    drop(closed);
    let error = Bench::new()
        .pull(&format!("{address}/a:1"))
        .expect_err("closed");
    assert!(
        error.to_string().starts_with("RegistryUnavailable: "),
        "{error}"
    );
}

#[test]
fn a_link_that_falls_silent_is_cut() {
    let offer = Offer::small();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("address");
    let silent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&silent);
    thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming().flatten() {
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                // Takes the request and says nothing.
                held.push(stream);
                continue;
            }
            serve(stream, &Mutex::default(), &AtomicUsize::new(0), &|s| {
                offer.answer(s)
            });
        }
    });
    let bench = Bench::new();
    bench.pulled(&format!("{address}/a:1"));
    assert!(silent.load(Ordering::SeqCst) > 1);
}

/// Answers whatever it is asked with `head` and then one byte after the other, for ever. Bytes sent so far.
fn drip(head: &'static str, every: Duration) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("address");
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            thread::spawn(move || {
                let (_hold, wait) = std::sync::mpsc::channel::<()>();
                let request = BufReader::new(stream.try_clone().expect("socket")).lines();
                // A handshake of TLS is no text, and a client that has gone ends no request.
                if !request.map_while(Result::ok).any(|line| line.is_empty()) {
                    return;
                }
                let _ = stream.write_all(head.as_bytes());
                while stream.write_all(b"1").is_ok() {
                    count.fetch_add(1, Ordering::SeqCst);
                    let _ = wait.recv_timeout(every);
                }
            });
        }
    });
    (address, sent)
}

const LONG: &str = "HTTP/1.1 200 X\r\nContent-Length: 4000\r\n\r\n";
/// Head of an answer whose first chunk has a length that never ends.
const CHUNKED: &str = "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n";
const ERROR: &str = "HTTP/1.1 404 X\r\nContent-Length: 4000\r\n\r\n";

#[test]
fn a_document_that_arrives_byte_by_byte_ends_the_pull() {
    for (name, head, token) in [
        ("manifest", LONG, false),
        ("chunks", CHUNKED, false),
        ("error", ERROR, false),
        ("token", LONG, true),
    ] {
        let (address, sent) = drip(head, Duration::from_millis(20));
        let guard = Server::start(move |_| {
            let realm = format!("Bearer realm=\"http://{address}/token\"");
            reply(401, "").with("WWW-Authenticate", realm)
        });
        let asked = if token { guard.address } else { address };
        let bench = Bench::new();
        let limits = RegistryTimeLimits {
            document: Duration::from_millis(200),
            retry: Duration::from_millis(1),
            ..RegistryTimeLimits::default()
        };
        let settings = PullSettings {
            limits,
            ..PullSettings::default()
        };
        let puller = Puller::new(bench.store.clone(), settings);
        let pulled = smol::block_on(puller.pull_image(&format!("{asked}/a:1"), None));
        assert!(pulled.is_err(), "{name}");
        // Not six times as long as it may take, either.
        let sent = sent.load(Ordering::SeqCst);
        assert!(sent > 0 && sent < 60, "{name}: {sent} bytes");
    }
}

#[test]
fn a_pull_that_nobody_waits_for_ends_whatever_the_registry_does() {
    for (head, every) in [
        (LONG, Duration::from_millis(20)),
        (CHUNKED, Duration::from_millis(20)),
        (LONG, Duration::from_secs(3600)),
        ("H", Duration::from_secs(3600)),
    ] {
        let (address, sent) = drip(head, every);
        let bench = Bench::new();
        let puller = Puller::new(bench.store.clone(), PullSettings::default());
        let name = format!("{address}/a:1");
        let flight = smol::block_on(async {
            let mut pull = Box::pin(puller.pull_image(&name, None));
            while sent.load(Ordering::SeqCst) == 0 {
                assert_eq!(smol::future::poll_once(&mut pull).await, None);
                smol::future::yield_now().await;
            }
            let queue = puller.inner.lock();
            Arc::clone(queue.flights.values().next().expect("one"))
        });
        let before = clock::mono_now();
        let _ = flight.done.recv_blocking();
        // Else what ends it is the registry's silence, or the time for a document.
        assert!(
            clock::mono_now() - before < RegistryTimeLimits::default().stall,
            "{head}"
        );
    }
}

/// A registry that wants tokens, and the service that gives them to `user:secret`.
fn guarded(offer: Offer, anonymous: bool) -> Server {
    Server::start(move |seen| {
        let basic = "Basic dXNlcjpzZWNyZXQ="; // user:secret
        if seen.path.starts_with("/token") {
            let wanted = "service=reg&scope=repository:team/app:pull";
            if !(seen.path.contains(wanted) || seen.body.contains(wanted)) {
                return reply(400, "");
            }
            let ok = seen.authorization == basic
                || seen.body.contains("refresh_token=identity")
                || (anonymous && seen.authorization.is_empty());
            return if ok {
                reply(200, json!({"access_token": "good"}).to_string())
            } else {
                reply(401, json!({"details": "wrong password"}).to_string())
            };
        }
        if seen.authorization != "Bearer good" {
            return reply(401, "").with(
                "WWW-Authenticate",
                "Bearer realm=\"/token\",service=\"reg\",scope=\"repository:team/app:pull\"",
            );
        }
        offer.answer(seen)
    })
}

/// The only credential of a docker configuration.
fn only(config: &Value) -> Option<RegistryCredential> {
    let config = DockerConfig::parse(config.to_string().as_bytes()).expect("config");
    let mut all = config.auths.into_values();
    let one = all.next();
    assert!(all.next().is_none(), "one");
    one
}

#[test]
fn kinds_of_credentials() {
    // IMG-13
    let server = guarded(Offer::small(), false);
    let host = server.address.to_string();
    let bench = Bench::new();
    let error = bench.pull(&image(&server)).expect_err("anonymous");
    assert!(
        matches!(&error, PullError::Denied(e) if e.contains("wrong password")),
        "{error}"
    );
    for (name, auths) in [
        (
            "password",
            json!({ &host: {"username": "user", "password": "secret"} }),
        ),
        ("auth", json!({ &host: {"auth": "dXNlcjpzZWNyZXQ="} })),
        (
            "identity token",
            json!({ &host: {"identitytoken": "identity"} }),
        ),
        ("ready token", json!({ &host: {"registrytoken": "good"} })),
    ] {
        let bench = Bench::new();
        let credential = only(&json!({ "auths": auths }));
        let pulled = smol::block_on(bench.puller.pull_image(&image(&server), credential));
        assert!(pulled.is_ok(), "{name}: {pulled:?}");
    }
    let wrong = only(&json!({"auths": { &host: {"username": "user", "password": "old"} }}));
    let error = smol::block_on(bench.puller.pull_image(&image(&server), wrong)).expect_err("wrong");
    assert!(
        matches!(&error, PullError::Denied(e) if e.contains("refuses access")),
        "{error}"
    );
    // The node's own file.
    let bench = Bench::with(PullSettings {
        docker_configs: vec![bench.scratch.join("config.json")],
        ..PullSettings::default()
    });
    let path = bench.puller.inner.settings.docker_configs[0].clone();
    let auths = json!({"auths": { &host: {"username": "user", "password": "secret"} }});
    fs::create_dir_all(path.parent().expect("parent")).expect("scratch");
    fs::write(&path, auths.to_string()).expect("config");
    let lookup = bench.puller.credential_lookup();
    let [own] = &lookup.lookup_credentials(&image(&server), false)[..] else {
        panic!("there is one");
    };
    let pulled = smol::block_on(bench.puller.pull_image(&image(&server), Some(own.clone())));
    assert!(pulled.is_ok(), "{pulled:?}");
    fs::remove_dir_all(path.parent().expect("parent")).expect("scratch");
    // Tokens for nobody in particular.
    let open = guarded(Offer::small(), true);
    assert!(Bench::new().pull(&image(&open)).is_ok());
    let tokens = open.count("/token");
    assert_eq!(tokens, 1, "one token for all requests");
}

#[test]
fn what_another_credential_may_mend_is_told_apart() {
    // IMG-13
    let offer = Offer::small();
    let server = Server::start(move |seen| {
        if seen.path.starts_with("/token") {
            return match seen.body.contains("refresh_token=good") {
                true => reply(200, json!({"access_token": "good"}).to_string()),
                false => reply(400, json!({"error": "invalid_grant"}).to_string()),
            };
        }
        match seen.authorization.as_str() {
            "Bearer good" => offer.answer(seen),
            "Bearer busy" => reply(429, "{}").with("Retry-After", "3600"),
            _ => reply(401, "").with("WWW-Authenticate", "Bearer realm=\"/token\""),
        }
    });
    let host = server.address.to_string();
    let bench = Bench::new();
    let pull = |auth: Value| {
        let credential = only(&json!({"auths": { &host: auth }}));
        smol::block_on(bench.puller.pull_image(&image(&server), credential))
    };
    let revoked = pull(json!({"identitytoken": "revoked"}));
    assert!(
        matches!(&revoked, Err(PullError::Denied(e)) if e.contains("refuses access to team/app")),
        "{revoked:?}"
    );
    let anonymous = bench.pull(&image(&server));
    assert!(
        matches!(&anonymous, Err(PullError::Failed(e)) if e.contains("400")),
        "{anonymous:?}"
    );
    let busy = pull(json!({"registrytoken": "busy"}));
    assert!(
        matches!(&busy, Err(PullError::Limited(e)) if e.contains("429")),
        "{busy:?}"
    );
    let good = pull(json!({"identitytoken": "good"}));
    assert!(good.is_ok(), "{good:?}");
}

#[test]
fn a_token_that_runs_out_is_replaced() {
    let offer = Offer::large(50_000);
    let issued = AtomicUsize::new(0);
    let uses = AtomicUsize::new(0);
    let server = Server::start(move |seen| {
        if seen.path.starts_with("/token") {
            let n = issued.fetch_add(1, Ordering::SeqCst) + 1;
            return reply(200, json!({ "token": format!("t{n}") }).to_string());
        }
        let current = format!("Bearer t{}", issued.load(Ordering::SeqCst));
        // Each is good for two requests.
        if seen.authorization != current || uses.fetch_add(1, Ordering::SeqCst) % 3 == 2 {
            return reply(401, "").with("WWW-Authenticate", "Bearer realm=\"/token\"");
        }
        offer.answer(seen)
    });
    Bench::new().pulled(&image(&server));
    assert!(server.count("/token") > 1);
}

#[test]
fn a_secret_stays_with_whom_it_is_for() {
    let offer = Offer::small();
    let store = {
        let offer = offer.clone();
        Server::start(move |seen| offer.answer(seen))
    };
    let elsewhere = store.address;
    let served = offer.clone();
    let server = Server::start(move |seen| {
        if !seen.authorization.starts_with("Basic ") {
            return reply(401, "").with("WWW-Authenticate", "Basic realm=\"x\"");
        }
        if seen.path.contains("/blobs/") {
            return reply(307, "").with("Location", format!("http://{elsewhere}{}", seen.path));
        }
        served.answer(seen)
    });
    let bench = Bench::new();
    let host = server.address.to_string();
    let auths = json!({"auths": { &host: {"username": "user", "password": "secret"} }});
    let pulled = smol::block_on(bench.puller.pull_image(&image(&server), only(&auths)));
    assert!(pulled.is_ok(), "{pulled:?}");
    assert!(!store.seen().is_empty());
    assert!(store.seen().iter().all(|s| s.authorization.is_empty()));
    // A mirror is not told what is for the registry.
    let mirror = Server::start(move |seen| offer.answer(seen));
    let registries = json!({"mirrors": {
        "registry.example": {"endpoint": [format!("http://{}", mirror.address)]},
    }});
    let bench = Bench::with(PullSettings {
        registries: RegistriesConfig::parse(&registries).expect("registries"),
        ..PullSettings::default()
    });
    let auths = json!({"auths": {"registry.example": {"username": "user", "password": "secret"}}});
    let pulled = smol::block_on(
        bench
            .puller
            .pull_image("registry.example/team/app:1", only(&auths)),
    );
    assert!(pulled.is_ok(), "{pulled:?}");
    assert!(mirror.seen().iter().all(|s| s.authorization.is_empty()));
    assert!(
        mirror
            .seen()
            .iter()
            .all(|s| s.path.ends_with("?ns=registry.example"))
    );
}

#[test]
fn a_registry_of_another_name_gives_a_token_to_nobody_in_particular() {
    let auths = |host: &str| json!({"auths": { host: {"username": "user", "password": "secret"} }});
    for (name, basic, anonymous) in [
        ("both open", false, true),
        ("the name wants a password", true, true),
        ("the other wants one too", true, false),
    ] {
        let other = guarded(Offer::small(), anonymous);
        let to = other.address;
        let server = Server::start(move |seen| {
            if basic && !seen.authorization.starts_with("Basic ") {
                return reply(401, "").with("WWW-Authenticate", "Basic realm=\"x\"");
            }
            reply(307, "").with("Location", format!("http://{to}{}", seen.path))
        });
        let bench = Bench::new();
        let credential = only(&auths(&server.address.to_string())).filter(|_| basic);
        let pulled = smol::block_on(bench.puller.pull_image(&image(&server), credential));
        assert_eq!(pulled.is_ok(), anonymous, "{name}: {pulled:?}");
        if anonymous {
            assert_eq!(other.count("/token"), 1, "{name}: one for all requests");
        } else {
            let error = pulled.expect_err(name).to_string();
            assert!(error.contains("wrong password"), "{error}");
        }
        for seen in other.seen() {
            let token = seen.path.starts_with("/token");
            let may =
                seen.authorization.is_empty() || !token && seen.authorization == "Bearer good";
            assert!(may && seen.body.is_empty(), "{name}: {seen:?}");
        }
        let own = server.seen();
        assert!(
            own.iter().all(|s| !s.authorization.starts_with("Bearer")),
            "{name}"
        );
    }
}

#[test]
fn a_refusal_elsewhere_that_names_no_token_service_is_the_last_word() {
    for challenge in [
        "Bearer authorization_uri=\"http://127.0.0.1/\"",
        "Basic realm=\"x\"",
        "",
    ] {
        let store = Server::start(move |_| reply(401, "").with("WWW-Authenticate", challenge));
        let to = store.address;
        let server = Server::start(move |seen| {
            reply(307, "").with("Location", format!("http://{to}{}", seen.path))
        });
        let auths = json!({"auths": { server.address.to_string(): {"registrytoken": "good"} }});
        let bench = Bench::new();
        let pulled = smol::block_on(bench.puller.pull_image(&image(&server), only(&auths)));
        assert!(
            matches!(pulled, Err(PullError::Denied(_))),
            "{challenge}: {pulled:?}"
        );
        assert!(
            store.seen().iter().all(|s| s.authorization.is_empty()),
            "{challenge}"
        );
    }
}

#[test]
fn redirects_end_somewhere() {
    let server = Server::start(|_| reply(302, "").with("Location", "/again"));
    let error = Bench::new()
        .pull(&image(&server))
        .expect_err("circle")
        .to_string();
    assert!(error.contains("redirects more than"), "{error}");
    let server = Server::start(|_| reply(302, "").with("Location", "file:///etc/passwd"));
    let error = Bench::new()
        .pull(&image(&server))
        .expect_err("file")
        .to_string();
    assert!(error.contains("redirects to an invalid URL"), "{error}");
}

#[test]
fn mirrors_come_first_and_the_registry_helps_out() {
    let offer = Offer::small();
    let full = Server::start({
        let offer = offer.clone();
        move |seen| offer.answer(seen)
    });
    let empty = Server::start(|_| reply(404, "{}"));
    // Has the documents and not the layers.
    let half = Server::start({
        let offer = offer.clone();
        move |seen| {
            if offer.is_layer(&seen.path) {
                return reply(500, "{}");
            }
            offer.answer(seen)
        }
    });
    let endpoints = [&empty, &half, &full].map(|s| format!("http://{}", s.address));
    let registries = json!({"mirrors": {"registry.example": {
        "endpoint": endpoints,
        "rewrite": {"^(.*)$": "cache/$1"},
    }}});
    let bench = Bench::with(PullSettings {
        registries: RegistriesConfig::parse(&registries).expect("registries"),
        ..PullSettings::default()
    });
    let record = bench.pulled("registry.example/app:1");
    assert_eq!(record.names, ["registry.example/app:1"]);
    assert!(empty.count("/v2/cache/app/manifests/1") > 0);
    assert!(half.count("/blobs/") > 0 && full.count("/blobs/") > 0);
}

#[test]
fn a_mirror_that_is_not_there_costs_little() {
    // Takes connections and closes them.
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let dead = listener.local_addr().expect("address");
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    let offers = [Offer::small(), Offer::large(100)];
    let full =
        Server::start(move |seen| offers[usize::from(seen.path.contains("/two/"))].answer(seen));
    let registries = json!({"mirrors": {"registry.example": {
        "endpoint": [format!("http://{dead}"), format!("http://{}", full.address)],
    }}});
    let bench = Bench::with(PullSettings {
        registries: RegistriesConfig::parse(&registries).expect("registries"),
        ..PullSettings::default()
    });
    bench.pulled("registry.example/one/app:1");
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    // Asked last for a while.
    bench.pulled("registry.example/two/app:1");
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    // Alone, it is what there is to be asked.
    bench.pull(&format!("{dead}/x:1")).expect_err("not there");
    assert_eq!(connections.load(Ordering::SeqCst), 8);
}

#[test]
fn what_lasts_is_not_asked_for_again() {
    let long = "x".repeat(5 << 20);
    for (says, asked, answer) in [
        (
            "redirects more than",
            6,
            reply(302, "").with("Location", "/again"),
        ),
        (
            "redirects to an invalid URL",
            1,
            reply(302, "").with("Location", "ftp://x/"),
        ),
        ("has more than", 1, reply(200, long)),
        (
            "the URL of its token service is not valid",
            1,
            reply(401, "").with("WWW-Authenticate", "Bearer realm=\"ftp://x/\""),
        ),
    ] {
        let server = Server::start(move |_| Reply {
            headers: answer.headers.clone(),
            body: answer.body.clone(),
            ..answer
        });
        let error = Bench::new().pull(&image(&server)).expect_err(says);
        assert!(
            matches!(&error, PullError::Failed(why) if why.contains(says)),
            "{error}"
        );
        assert_eq!(server.seen().len(), asked, "{says}");
    }
}

#[test]
fn who_asks_at_the_same_time_shares_one_pull() {
    let offer = Offer::large(50_000);
    let server = Server::start(move |seen| offer.answer(seen));
    let bench = Bench::new();
    let name = image(&server);
    let all = smol::block_on(async {
        let one = bench.puller.pull_image(&name, None);
        let two = bench.puller.pull_image(&name, None);
        // Given up at once: the others get it all the same.
        let mut left = Box::pin(bench.puller.pull_image(&name, None));
        assert!(smol::future::poll_once(&mut left).await.is_none());
        drop(left);
        smol::future::zip(one, two).await
    });
    assert_eq!(all.0, all.1);
    assert!(all.0.is_ok());
    assert_eq!(server.count("/manifests/"), 1);
    assert_eq!(bench.puller.pull_progress(&name), None);
}

#[test]
fn two_images_on_one_base_fetch_it_once() {
    let base = file("base", &[7; 3000]);
    let [one, two] = [b"one", b"two"].map(|text| Offer::of(&[base.clone(), file("top", text)]));
    let shared = one.layers[0];
    assert_eq!(two.layers[0], shared);
    // The base is held back until both pulls have their plan, so that neither finds it in the store.
    let planned = Arc::new((Mutex::new(0), Condvar::new()));
    let server = Server::start(move |seen| {
        let (count, bell) = &*planned;
        let offer = if seen.path.contains("/one/") {
            &one
        } else {
            &two
        };
        if seen.path.contains(&shared.to_string()) {
            let count = count.lock().expect("count");
            let both = bell.wait_while(count, |n| *n < 2).expect("count");
            drop(both);
        } else if offer.is_layer(&seen.path) {
            *count.lock().expect("count") += 1;
            bell.notify_all();
        }
        offer.answer(seen)
    });
    let bench = Bench::new();
    let pull = |name: &str| {
        let image = format!("{}/{name}/app:1", server.address);
        let puller = bench.puller.clone();
        async move { puller.pull_image(&image, None).await }
    };
    let (one, two) = smol::block_on(smol::future::zip(pull("one"), pull("two")));
    let ids = [one, two].map(|pulled| pulled.expect("pulled"));
    assert_ne!(ids[0], ids[1]);
    assert_eq!(server.count(&shared.to_string()), 1, "fetched once");
    let [one, two] = ids.map(|id| bench.store.image_by_id(&id).expect("there"));
    assert_eq!(one.layers[0].dir, two.layers[0].dir, "unpacked once");
    let dirs = fs::read_dir(bench.store.layers_root()).expect("layers");
    assert_eq!(dirs.count(), 4, "the base, two tops and the empty one");
    assert_eq!(bench.arriving(), Vec::<String>::new());
}

#[test]
fn a_slow_registry_keeps_nobody_else_waiting() {
    let files: Vec<_> = ["a", "b", "c", "d"].map(|n| file(n, b"slow")).into();
    let slow = Offer::of(&files);
    let layers = slow.clone();
    let free = Arc::new((Mutex::new(false), Condvar::new()));
    let until = Arc::clone(&free);
    let hung = Server::start(move |seen| {
        if slow.is_layer(&seen.path) {
            let (free, bell) = &*until;
            let free = free.lock().expect("free");
            drop(bell.wait_while(free, |free| !*free).expect("free"));
        }
        slow.answer(seen)
    });
    let good = {
        let offer = Offer::small();
        Server::start(move |seen| offer.answer(seen))
    };
    let bench = Bench::new();
    let (slow, fast) = (image(&hung), image(&good));
    smol::block_on(async {
        let mut slow = Box::pin(bench.puller.pull_image(&slow, None));
        let under_way = || {
            hung.seen()
                .iter()
                .filter(|s| layers.is_layer(&s.path))
                .count()
        };
        while under_way() < 4 {
            assert_eq!(smol::future::poll_once(&mut slow).await, None);
            smol::future::yield_now().await;
        }
        let fetched = bench.puller.pull_image(&fast, None).await;
        assert!(fetched.is_ok(), "{fetched:?}");
        *free.0.lock().expect("free") = true;
        free.1.notify_all();
        assert!(slow.await.is_ok());
    });
}

#[test]
fn who_pauses_gives_its_place_to_others() {
    let slots = FetchSlots::new(1);
    let stop = StopFlag::default();
    let (one, two) = (OwnFetchSlot::default(), OwnFetchSlot::default());
    let held =
        [slots.take_slot(&one, &stop), slots.take_slot(&one, &stop)].map(|s| s.expect("free"));
    let own = slots.take_slot(&two, &stop).expect("its own");
    // Both are taken: whoever waits for one gets it, or hears that it need not.
    thread::scope(|scope| {
        let more = scope.spawn(|| slots.take_slot(&two, &stop).is_some());
        drop(held);
        assert!(more.join().expect("thread"));
        drop(own);
        let held = [slots.take_slot(&one, &stop), slots.take_slot(&one, &stop)];
        let more = scope.spawn(|| slots.take_slot(&one, &stop).is_some());
        stop.stop();
        assert!(!more.join().expect("thread"));
        assert!(held.iter().all(Option::is_some));
    });
    // A pull whose layers are all in a pause holds none.
    let offer = Offer::large(1000);
    let server = Server::start(move |seen| match offer.is_layer(&seen.path) {
        true => reply(503, "").with("Retry-After", "50"),
        false => offer.answer(seen),
    });
    let bench = Bench::new();
    let name = image(&server);
    smol::block_on(async {
        let mut pull = Box::pin(bench.puller.pull_image(&name, None));
        while server.count("/blobs/") < 3 || *bench.puller.inner.slots.lock() < 3 {
            assert_eq!(smol::future::poll_once(&mut pull).await, None);
            smol::future::yield_now().await;
        }
    });
}

#[test]
fn the_queue_is_bounded_and_forgets_who_left() {
    let (address, sent) = drip(LONG, Duration::from_secs(3600));
    let bench = Bench::with(PullSettings {
        parallel: Some(1),
        ..PullSettings::default()
    });
    let ask = |n: usize| {
        let (puller, name) = (bench.puller.clone(), format!("{address}/a{n}:1"));
        Box::pin(async move { puller.pull_image(&name, None).await })
    };
    let counts = || {
        let queue = bench.puller.inner.lock();
        (queue.waiting.len(), queue.flights.len())
    };
    smol::block_on(async {
        let mut first = ask(0);
        while sent.load(Ordering::SeqCst) == 0 {
            assert_eq!(smol::future::poll_once(&mut first).await, None);
            smol::future::yield_now().await;
        }
        let mut asked: Vec<_> = (1..=MAX_WAITING).map(ask).collect();
        for pull in &mut asked {
            assert_eq!(smol::future::poll_once(pull).await, None);
        }
        assert_eq!(counts(), (MAX_WAITING, MAX_WAITING + 1));
        let one_more = ask(MAX_WAITING + 1).await;
        assert!(
            matches!(&one_more, Err(PullError::Failed(why)) if why.contains("waiting already")),
            "{one_more:?}"
        );
        drop(asked);
        assert_eq!(counts(), (0, 1));
    });
}

#[test]
fn pulls_are_queued_as_configured() {
    // IMG-16
    let offer = Offer::small();
    for (parallel, most) in [(Some(1), 1), (Some(3), 3)] {
        // Requests for a manifest: those that have come, that are being answered, the most at once. Each is made within its
        // pull, so that what is seen here is never more than what is under way.
        let seen = Arc::new((Mutex::new([0_usize; 3]), Condvar::new()));
        let (served, counted) = (offer.clone(), Arc::clone(&seen));
        let server = Server::start(move |asked| {
            if !asked.path.ends_with("/manifests/1") {
                return served.answer(asked);
            }
            let (counts, changed) = &*counted;
            let mut now = counts.lock().expect("counts");
            now[0] += 1;
            now[1] += 1;
            now[2] = now[2].max(now[1]);
            changed.notify_all();
            // As many as may are there at once; more than that would be seen now.
            let now = changed.wait_while(now, |now| now[0] < most);
            drop(now.expect("counts"));
            let answer = served.answer(asked);
            counts.lock().expect("counts")[1] -= 1;
            answer
        });
        let bench = Bench::with(PullSettings {
            parallel,
            ..PullSettings::default()
        });
        let executor = smol::LocalExecutor::new();
        let tasks: Vec<_> = (0..6)
            .map(|n| format!("{}/team/app{n}:1", server.address))
            .map(|name| {
                let puller = bench.puller.clone();
                executor.spawn(async move { puller.pull_image(&name, None).await })
            })
            .collect();
        smol::block_on(executor.run(async {
            for task in tasks {
                assert!(task.await.is_ok());
            }
        }));
        assert_eq!(seen.0.lock().expect("counts")[2], most);
        assert_eq!(bench.store.list_images()[0].names.len(), 6);
    }
}

#[test]
fn a_registry_that_is_not_allowed_is_not_asked() {
    let offer = Offer::small();
    let server = Server::start(move |seen| offer.answer(seen));
    let bench = Bench::with(PullSettings {
        policy: NodeImagePolicy {
            allowed: vec!["registry.example".into()],
            require_digest: false,
        },
        ..PullSettings::default()
    });
    let error = bench.pull(&image(&server)).expect_err("policy").to_string();
    assert!(error.contains("not from an allowed registry"), "{error}");
    assert_eq!(server.seen().len(), 0, "nobody was asked");
}

#[test]
fn progress_names_the_server_that_is_asked() {
    // IMG-28
    let gate = Arc::new(Mutex::new(()));
    let (offer, served) = (Offer::large(2000), Arc::clone(&gate));
    let server = Server::start(move |seen| {
        drop(served.lock());
        offer.answer(seen)
    });
    let bench = Bench::new();
    let name = image(&server);
    let silent = gate.lock().expect("gate");
    let mut pull = Box::pin(bench.puller.pull_image(&name, None));
    smol::block_on(async {
        assert_eq!(smol::future::poll_once(&mut pull).await, None);
    });
    let says = format!("resolving at {}", server.address);
    while bench.puller.pull_progress(&name).map(|p| p.to_string()) != Some(says.clone()) {
        thread::yield_now();
    }
    drop(silent);
    smol::block_on(pull).expect("pulled");
}

#[test]
fn progress_names_each_server_on_the_way() {
    // IMG-28
    /// A server that waits for its gate before it answers.
    fn gated(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> (Server, Arc<Mutex<()>>) {
        let gate = Arc::new(Mutex::new(()));
        let held = Arc::clone(&gate);
        let server = Server::start(move |seen| {
            drop(held.lock());
            answer(seen)
        });
        (server, gate)
    }
    let offer = Offer::large(2000);
    let (target, target_gate) = gated(move |seen| offer.answer(seen));
    let (tokens, tokens_gate) = gated(|_| reply(200, json!({"token": "good"}).to_string()));
    let realm = format!("Bearer realm=\"http://{}/token\"", tokens.address);
    let elsewhere = target.address;
    let (registry, registry_gate) = gated(move |seen| match &*seen.authorization {
        "Bearer good" => {
            let place = format!("http://{elsewhere}{}", seen.path);
            reply(307, "").with("Location", place)
        }
        _ => reply(401, "").with("WWW-Authenticate", &*realm),
    });
    let (mirror, mirror_gate) = gated(|_| reply(404, "{}"));
    let registries = json!({"mirrors": {registry.address.to_string(): {
        "endpoint": [format!("http://{}", mirror.address), format!("http://{}", registry.address)],
    }}});
    let bench = Bench::with(PullSettings {
        registries: RegistriesConfig::parse(&registries).expect("registries"),
        ..PullSettings::default()
    });
    let servers = [
        (&mirror, &mirror_gate),
        (&registry, &registry_gate),
        (&tokens, &tokens_gate),
        (&target, &target_gate),
    ];
    let silent = servers.map(|(server, gate)| (server, gate.lock().expect("gate")));
    let name = image(&registry);
    let mut pull = Box::pin(bench.puller.pull_image(&name, None));
    smol::block_on(async {
        assert_eq!(smol::future::poll_once(&mut pull).await, None);
    });
    for (server, gate) in silent {
        let says = format!("resolving at {}", server.address);
        while bench.puller.pull_progress(&name).map(|p| p.to_string()) != Some(says.clone()) {
            thread::yield_now();
        }
        drop(gate);
    }
    smol::block_on(pull).expect("pulled");
}

#[test]
fn a_pull_that_nobody_waits_for_ends_and_is_resumed() {
    let offer = Offer::large(200_000);
    let server = Server::start(move |seen| offer.answer(seen));
    let bench = Bench::with(PullSettings {
        // A quarter of a minute for all of it: nobody waits for that.
        bytes_per_second: Some(20_000),
        ..PullSettings::default()
    });
    let name = image(&server);
    let pull = || bench.puller.pull_image(&name, None);
    smol::block_on(async {
        let mut second = Box::pin(pull());
        assert_eq!(smol::future::poll_once(&mut second).await, None);
        let first = async {
            let _ = pull().await;
        };
        let arrives = async {
            while !matches!(bench.puller.pull_progress(&name), Some(p) if p.bytes > 0) {
                smol::future::yield_now().await;
            }
        };
        smol::future::or(first, arrives).await;
        let flight = Arc::clone(
            bench
                .puller
                .inner
                .lock()
                .flights
                .values()
                .next()
                .expect("one"),
        );
        assert!(!flight.stop.is_stopped(), "the second one still waits");
        drop(second);
        assert!(flight.stop.is_stopped());
        // Asked for again before it has ended, it comes behind itself.
        let mut third = Box::pin(pull());
        assert_eq!(smol::future::poll_once(&mut third).await, None);
        let _ = flight.done.recv().await;
        drop(third);
    });
    assert!(bench.arriving().iter().any(|n| n.ends_with(".part")));
    let fast = Puller::new(bench.store.clone(), quick(PullSettings::default()));
    smol::block_on(fast.pull_image(&name, None)).expect("pulled");
    assert!(server.seen().iter().any(|s| s.range.is_some()));
}

#[test]
fn a_pull_that_nobody_waits_for_is_told_of_until_it_has_ended() {
    // IMG-20
    let plain = file("a", b"base");
    let packed = gzip(&plain);
    let mut layout = Layout::new();
    let tops = ["x", "y"].map(|mark| layout.image(&config(&[&plain], mark), &[&packed]));
    let [first, second] = tops.map(|top| Offer::from(layout.clone(), top, Vec::new()));
    let offered = Arc::new(Mutex::new(first));
    let served = Arc::clone(&offered);
    let server = Server::start(move |seen| served.lock().expect("offer").answer(seen));
    let bench = Bench::new();
    let name = image(&server);
    let old = bench.pulled(&name);
    assert!(!bench.puller.is_pull_running(&name));
    // The tag has moved. All layers are there, so nothing is left to look whether it is wanted once the store is its own.
    *offered.lock().expect("offer") = second;
    let change = bench.store.lock_changes();
    let pull = || Box::pin(bench.puller.pull_image(&name, None));
    let mut left = pull();
    smol::block_on(async {
        assert_eq!(smol::future::poll_once(&mut left).await, None);
    });
    let unpacks = || {
        let progress = bench.puller.pull_progress(&name);
        progress.is_some_and(|p| p.stage == ImageStage::Unpacking)
    };
    while !unpacks() {
        thread::yield_now();
    }
    drop(left);
    assert!(bench.puller.is_pull_running(&name));
    // Also if it was asked for again meanwhile, and that has ended before.
    let mut again = pull();
    smol::block_on(async {
        assert_eq!(smol::future::poll_once(&mut again).await, None);
    });
    drop(again);
    assert!(bench.puller.is_pull_running(&name));
    drop(change);
    while bench.puller.is_pull_running(&name) {
        thread::yield_now();
    }
    let new = bench
        .store
        .resolve_reference(&name)
        .expect("valid")
        .expect("there");
    assert_ne!(new.id, old.id, "it came all the same");
    let queue = bench.puller.inner.lock();
    assert!(queue.flights.is_empty() && queue.ending.is_empty());
}

#[test]
fn a_stopped_pull_keeps_what_arrived() {
    let offer = Offer::large(200_000);
    let server = Server::start(move |seen| offer.answer(seen));
    let bench = Bench::with(PullSettings {
        // A quarter of a minute for all of it: nobody waits for that.
        bytes_per_second: Some(20_000),
        ..PullSettings::default()
    });
    let name = image(&server);
    let outcome = smol::block_on(async {
        let pull = bench.puller.pull_image(&name, None);
        let stop = async {
            while !matches!(bench.puller.pull_progress(&name), Some(p) if p.bytes > 0) {
                smol::future::yield_now().await;
            }
            for flight in bench.puller.inner.lock().flights.values() {
                flight.stop.stop();
            }
        };
        smol::future::zip(pull, stop).await.0
    });
    assert_eq!(outcome, Err(PullError::Failed("cancelled".into())));
    assert!(bench.arriving().iter().any(|n| n.ends_with(".part")));
    assert!(
        bench
            .puller
            .remove_unused_layers(Duration::ZERO)
            .expect("clear")
            > 0
    );
    assert_eq!(bench.arriving(), Vec::<String>::new());
}

#[test]
fn an_image_that_cannot_be_unpacked_leaves_nothing() {
    let bad = b"this is no tar stream, whatever its digest".repeat(20);
    let good = file("a", b"x");
    let mut layout = Layout::new();
    let top = layout.image(&config(&[&good, &bad], "x"), &[&good, &bad]);
    let offer = Offer::from(layout, top, vec![]);
    let server = Server::start(move |seen| offer.answer(seen));
    let bench = Bench::new();
    let error = bench.pull(&image(&server)).expect_err("no tar").to_string();
    assert!(error.starts_with("cannot unpack sha256/"), "{error}");
    assert!(bench.store.list_images().is_empty());
    assert_eq!(bench.arriving(), Vec::<String>::new());
    assert_eq!(RegistryCredential::default().basic_auth(), None);
}
