//! A stand-in for a konnectivity server, written from its protocol: agents dial it, and what it is asked for by `CONNECT` it
//! dials through them. With the bad habits of servers, each on request.
//!
//! It speaks HTTP/2 frame by frame, so that it can do what no library lets one do.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;

use picolet::api::MonoTime;
use picolet::grpc::hpack::HpackDecoder;
use picolet::sys::clock;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::host::{PATIENCE, pause};

/// How long a reader waits for what may come.
const TICK: Duration = Duration::from_millis(5);
const FRAME_BYTES: usize = 16 * 1024;

/// What it does that others do not.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// As which it answers.
    pub(crate) server_id: String,
    /// How many there are; `None`: it does not say.
    pub(crate) count: Option<String>,
    /// Whom it knows: without, nobody shows who it is.
    pub(crate) refuses: bool,
    /// It does not answer PING.
    pub(crate) is_mute: bool,
    /// It reads nothing any more.
    pub(crate) is_deaf: bool,
    /// It closes connections before TLS.
    pub(crate) is_away: bool,
}

/// A packet as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) kind: u64,
    pub(crate) id: i64,
    pub(crate) random: i64,
    pub(crate) error: String,
    pub(crate) data: Vec<u8>,
}

pub(crate) const DIAL_REQUEST: u64 = 0;
pub(crate) const DIAL_RESPONSE: u64 = 1;
pub(crate) const CLOSE_REQUEST: u64 = 2;
pub(crate) const CLOSE_RESPONSE: u64 = 3;
pub(crate) const DATA: u64 = 4;
pub(crate) const CLOSE_DIAL: u64 = 5;
pub(crate) const DRAIN: u64 = 6;

/// A stream of an agent.
pub(crate) struct Link {
    /// What it sent with the call.
    pub(crate) fields: Vec<(String, String)>,
    /// It has shown a certificate that the cluster has signed.
    pub(crate) is_known: bool,
    /// As what the server answered it, and when.
    pub(crate) answered: (Habits, MonoTime),
    /// What came, but for bytes of connections that were made by `CONNECT`.
    packets: Mutex<Vec<Packet>>,
    out: Mutex<VecDeque<Vec<u8>>>,
    messages: Mutex<VecDeque<u8>>,
    ways: Mutex<BTreeMap<i64, mpsc::Sender<Vec<u8>>>>,
    pub(crate) pings: AtomicUsize,
    gone: AtomicBool,
    cut: AtomicBool,
    /// Bytes of TLS, both ways.
    pub(crate) bytes: AtomicU64,
}

struct Shared {
    tls: Mutex<Arc<ServerConfig>>,
    habits: Mutex<Habits>,
    links: Mutex<Vec<Arc<Link>>>,
    accepted: AtomicUsize,
    random: AtomicU64,
    end: AtomicBool,
}

/// See the module.
pub(crate) struct Konnectivity {
    /// Where agents come.
    pub(crate) agents: SocketAddr,
    /// Where `CONNECT` is taken.
    pub(crate) egress: SocketAddr,
    /// Who signed its certificate.
    pub(crate) ca: String,
    /// Its certificate and key.
    pair: (String, String),
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody fell")
}

/// A CA, and the certificate and key that it has signed for these names.
fn certificates(names: &[String]) -> (String, String, String) {
    let mut params = CertificateParams::new(Vec::new()).expect("params");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("key");
    let ca = params.self_signed(&key).expect("CA").pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("key");
    let params = CertificateParams::new(names.to_vec()).expect("params");
    let leaf = params.signed_by(&key, &issuer).expect("certificate");
    (ca, leaf.pem(), key.serialize_pem())
}

/// As this server, for clients that this CA has signed, and for those who show nothing.
fn tls(chain: &str, key: &str, of_clients: &str) -> Arc<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let of_clients = CertificateDer::from_pem_slice(of_clients.as_bytes()).expect("CA");
    roots.add(of_clients).expect("CA");
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = verifier.allow_unauthenticated().build().expect("verifier");
    let chain = CertificateDer::from_pem_slice(chain.as_bytes()).expect("chain");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("key");
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![chain], key)
        .expect("pair");
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(tls)
}

impl Konnectivity {
    /// Listens at a port of `ip`. It knows no agent yet.
    pub(crate) fn start(ip: IpAddr, server_id: &str) -> Self {
        let (ca, chain, key) = certificates(&[ip.to_string()]);
        let tls = tls(&chain, &key, &ca);
        let habits = Habits {
            server_id: server_id.to_owned(),
            count: Some("1".into()),
            refuses: false,
            is_mute: false,
            is_deaf: false,
            is_away: false,
        };
        let shared = Arc::new(Shared {
            tls: Mutex::new(tls),
            habits: Mutex::new(habits),
            links: Mutex::default(),
            accepted: AtomicUsize::new(0),
            random: AtomicU64::new(1000),
            end: AtomicBool::new(false),
        });
        let listen = |serve: fn(&Arc<Shared>, TcpStream)| {
            let listener = TcpListener::bind((ip, 0)).expect("listener");
            let address = listener.local_addr().expect("address");
            listener.set_nonblocking(true).expect("listener");
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                while !shared.end.load(Ordering::Relaxed) {
                    let Ok((tcp, _)) = listener.accept() else {
                        pause(TICK);
                        continue;
                    };
                    tcp.set_nonblocking(false).expect("socket");
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || serve(&shared, tcp));
                }
            });
            address
        };
        let (agents, egress) = (listen(of_agent), listen(of_client));
        Self {
            agents,
            egress,
            ca,
            pair: (chain, key),
            shared,
        }
    }

    /// From now on it knows agents that show a certificate of this cluster.
    pub(crate) fn know(&self, cluster_ca: &str) {
        let (chain, key) = &self.pair;
        *lock(&self.shared.tls) = tls(chain, key, cluster_ca);
    }

    /// Takes up other habits; they hold for the streams that there are, too, where that can be.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Habits)) {
        change(&mut lock(&self.shared.habits));
    }

    /// Connections that agents have made.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Streams that are open.
    pub(crate) fn open(&self) -> Vec<Arc<Link>> {
        let links = lock(&self.shared.links);
        let open = links.iter().filter(|link| !link.is_gone());
        open.map(Arc::clone).collect()
    }

    /// All streams that there were, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Link>> {
        lock(&self.shared.links).clone()
    }

    /// Waits for a stream that is none of these.
    pub(crate) fn wait_other(&self, than: &[&Arc<Link>]) -> Arc<Link> {
        until("another stream", || {
            let is_other = |link: &Arc<Link>| !than.iter().any(|of| Arc::ptr_eq(of, link));
            self.open().into_iter().find(is_other)
        })
    }

    /// Waits for a stream.
    pub(crate) fn wait(&self) -> Arc<Link> {
        self.wait_other(&[])
    }
}

impl Drop for Konnectivity {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
    }
}

/// Waits until there is an answer.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = clock::mono_now() + PATIENCE * 2;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock::mono_now() < end, "waited for {what}");
        pause(TICK * 4);
    }
}

impl Link {
    /// A field that it sent exactly once.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(of, _)| of == name);
        let value = found.next().map(|(_, value)| value.as_str());
        value.filter(|_| found.next().is_none())
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn wait_gone(&self) {
        until("the end of a stream", || self.is_gone().then_some(()));
    }

    /// Ends the connection.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    /// Sends a frame.
    pub(crate) fn frame(&self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        lock(&self.out).push_back(frame(kind, flags, id, payload));
    }

    /// Sends bytes of messages, as the windows allow it.
    pub(crate) fn send_raw(&self, bytes: &[u8]) {
        lock(&self.messages).extend(bytes);
    }

    /// Sends a packet.
    pub(crate) fn send(&self, packet: &[u8]) {
        self.send_raw(&message(packet));
    }

    /// All that came until now.
    pub(crate) fn packets(&self) -> Vec<Packet> {
        lock(&self.packets).clone()
    }

    /// Waits for a packet like this.
    pub(crate) fn wait_packet(&self, what: &str, is: impl Fn(&Packet) -> bool) -> Packet {
        until(what, || self.packets().into_iter().find(|p| is(p)))
    }

    /// The answer to a dial.
    pub(crate) fn answer(&self, random: i64) -> Packet {
        let is = |p: &Packet| p.kind == DIAL_RESPONSE && p.random == random;
        self.wait_packet("the answer to a dial", is)
    }

    /// Dials, and demands that it is taken; the number of the connection.
    pub(crate) fn dial(&self, random: i64, address: &str) -> i64 {
        self.send(&dial(random, address));
        let answer = self.answer(random);
        assert_eq!(answer.error, "", "{address}");
        assert_ne!(answer.id, 0);
        answer.id
    }

    fn route(&self, packet: Packet) {
        let mut ways = lock(&self.ways);
        match packet.kind {
            DATA if ways.contains_key(&packet.id) => {
                // Its reader may have gone.
                let _ = ways[&packet.id].send(packet.data);
            }
            CLOSE_RESPONSE if ways.remove(&packet.id).is_some() => {}
            _ => lock(&self.packets).push(packet),
        }
    }
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = u32::try_from(payload.len()).expect("short").to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(id.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A message in its envelope.
pub(crate) fn message(packet: &[u8]) -> Vec<u8> {
    let len = u32::try_from(packet.len()).expect("short").to_be_bytes();
    [&[0], &len[..], packet].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let low = u8::try_from(number & 127).expect("7 bits");
        number >>= 7;
        if number == 0 {
            out.push(low);
            return out;
        }
        out.push(low | 128);
    }
}

fn number(field: u64, value: i64) -> Vec<u8> {
    match value {
        0 => Vec::new(),
        value => [varint(field << 3), varint(value.cast_unsigned())].concat(),
    }
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    let len = u64::try_from(value.len()).expect("short");
    [varint(field << 3 | 2), varint(len), value.to_vec()].concat()
}

fn packet(kind: u64, field: u64, payload: &[u8]) -> Vec<u8> {
    [number(1, kind.cast_signed()), bytes(field, payload)].concat()
}

pub(crate) fn dial(random: i64, address: &str) -> Vec<u8> {
    let payload = [
        bytes(1, b"tcp"),
        bytes(2, address.as_bytes()),
        number(3, random),
    ];
    packet(DIAL_REQUEST, 2, &payload.concat())
}

pub(crate) fn data(id: i64, data: &[u8]) -> Vec<u8> {
    packet(DATA, 4, &[number(1, id), bytes(3, data)].concat())
}

pub(crate) fn close(id: i64) -> Vec<u8> {
    packet(CLOSE_REQUEST, 5, &number(1, id))
}

pub(crate) fn close_dial(random: i64) -> Vec<u8> {
    packet(CLOSE_DIAL, 7, &number(1, random))
}

/// Fields of a message: numbers, and what has a length.
fn fields(mut rest: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    fn take(rest: &mut &[u8]) -> u64 {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let (&byte, after) = rest.split_first().expect("a whole number");
            *rest = after;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                break;
            }
        }
        number
    }
    let mut all = Vec::new();
    while !rest.is_empty() {
        let tag = take(&mut rest);
        let value = take(&mut rest);
        match tag & 7 {
            0 => all.push((tag >> 3, value, Vec::new())),
            2 => {
                let (piece, after) = rest.split_at(usize::try_from(value).expect("short"));
                rest = after;
                all.push((tag >> 3, 0, piece.to_vec()));
            }
            other => panic!("a field of kind {other}"),
        }
    }
    all
}

fn read(message: &[u8]) -> Packet {
    let mut packet = Packet::default();
    for (field, value, inner) in fields(message) {
        if field == 1 {
            packet.kind = value;
            continue;
        }
        for (inner_field, value, text) in fields(&inner) {
            match (field, inner_field) {
                (3 | 6, 1) | (4, 2) => packet.error = String::from_utf8(text).expect("text"),
                (3, 2) | (6, 2) | (4, 1) => packet.id = value.cast_signed(),
                (3, 3) => packet.random = value.cast_signed(),
                (4, 3) => packet.data = text,
                other => panic!("an agent does not send {other:?}"),
            }
        }
    }
    packet
}

/// Headers as they are written without a table.
fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        let len = u8::try_from(text.len()).expect("short");
        assert!(len < 127);
        [&[len], text.as_bytes()].concat()
    };
    let one = |(name, value): &(&str, &str)| [vec![0], text(name), text(value)].concat();
    fields.iter().flat_map(one).collect()
}

/// What may be sent: of the stream, of the connection.
struct Windows {
    stream: i64,
    connection: i64,
    first: i64,
}

struct Session {
    shared: Arc<Shared>,
    tcp: TcpStream,
    tls: ServerConnection,
    decoder: HpackDecoder,
    link: Option<Arc<Link>>,
    held: Vec<u8>,
    messages: Vec<u8>,
    windows: Windows,
    bytes: u64,
}

fn of_agent(shared: &Arc<Shared>, tcp: TcpStream) {
    shared.accepted.fetch_add(1, Ordering::Relaxed);
    if lock(&shared.habits).is_away {
        return;
    }
    tcp.set_read_timeout(Some(TICK)).expect("timeout");
    tcp.set_nodelay(true).expect("socket");
    let mut session = Session {
        shared: Arc::clone(shared),
        tcp,
        tls: ServerConnection::new(Arc::clone(&lock(&shared.tls))).expect("session"),
        decoder: HpackDecoder::default(),
        link: None,
        held: Vec::new(),
        messages: Vec::new(),
        windows: Windows {
            stream: 65_535,
            connection: 65_535,
            first: 65_535,
        },
        bytes: 0,
    };
    // It ends in one way or another.
    let _ = session.run();
    if let Some(link) = session.link {
        link.gone.store(true, Ordering::Relaxed);
        lock(&link.ways).clear();
    }
}

impl Session {
    fn run(&mut self) -> io::Result<()> {
        const PREFACE: usize = 24;
        let mut is_greeted = false;
        self.put(&frame(4, 0, 0, &[]))?;
        while !self.shared.end.load(Ordering::Relaxed) {
            if self
                .link
                .as_ref()
                .is_some_and(|link| link.cut.load(Ordering::Relaxed))
            {
                // What was said before is to arrive.
                self.send_messages()?;
                return Ok(());
            }
            let is_deaf = lock(&self.shared.habits).is_deaf;
            if is_deaf {
                pause(TICK);
            } else if !self.take()? {
                return Ok(());
            }
            if !is_greeted && self.held.len() >= PREFACE {
                assert!(self.held.starts_with(b"PRI * HTTP/2.0"));
                self.held.drain(..PREFACE);
                is_greeted = true;
            }
            while is_greeted && self.next_frame()? {}
            if let Some(link) = self.link.clone() {
                let out: Vec<u8> = lock(&link.out).drain(..).flatten().collect();
                self.put(&out)?;
                self.send_messages()?;
                link.bytes.store(self.bytes, Ordering::Relaxed);
            }
            self.flush()?;
        }
        Ok(())
    }

    /// Reads what there is; false: the agent has gone.
    fn take(&mut self) -> io::Result<bool> {
        match self.tls.read_tls(&mut self.tcp) {
            Ok(0) => return Ok(false),
            Ok(n) => self.bytes += u64::try_from(n).expect("short"),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(e) => return Err(e),
        }
        let state = self.tls.process_new_packets();
        if let Err(e) = state {
            // The agent is told why.
            let _ = self.flush();
            return Err(io::Error::other(e));
        }
        let mut piece = [0; FRAME_BYTES];
        loop {
            match self.tls.reader().read(&mut piece) {
                Ok(0) => return Ok(false),
                Ok(n) => self.held.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) => return Err(e),
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(FRAME_BYTES) {
            self.tls.writer().write_all(piece)?;
            if !self.tls.is_handshaking() {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            let sent = self.tls.write_tls(&mut self.tcp)?;
            self.bytes += u64::try_from(sent).expect("short");
        }
        Ok(())
    }

    fn send_messages(&mut self) -> io::Result<()> {
        let Some(link) = self.link.clone() else {
            return Ok(());
        };
        loop {
            let window = self.windows.stream.min(self.windows.connection);
            let window = usize::try_from(window).unwrap_or(0).min(FRAME_BYTES);
            let piece: Vec<u8> = {
                let mut messages = lock(&link.messages);
                let len = messages.len().min(window);
                messages.drain(..len).collect()
            };
            if piece.is_empty() {
                return Ok(());
            }
            let len = i64::try_from(piece.len()).expect("short");
            self.windows.stream -= len;
            self.windows.connection -= len;
            self.put(&frame(0, 0, 1, &piece))?;
        }
    }

    fn next_frame(&mut self) -> io::Result<bool> {
        let &[a, b, c, kind, flags, i, d, e, f, ..] = self.held.as_slice() else {
            return Ok(false);
        };
        let len = usize::try_from(u32::from_be_bytes([0, a, b, c])).expect("short");
        if self.held.len() < 9 + len {
            return Ok(false);
        }
        let payload: Vec<u8> = self.held.drain(..9 + len).skip(9).collect();
        let id = u32::from_be_bytes([i, d, e, f]);
        let word = |at: usize| {
            let word = payload
                .get(at..at + 4)
                .and_then(|word| word.try_into().ok());
            u32::from_be_bytes(word.expect("four bytes"))
        };
        match kind {
            0 => self.came(&payload)?,
            1 => self.call(&payload)?,
            3 | 7 => return Err(io::ErrorKind::ConnectionReset.into()),
            4 if flags & 1 == 0 => {
                for at in (0..payload.len()).step_by(6) {
                    if payload[at..at + 2] == [0, 4] {
                        let first = i64::from(word(at + 2));
                        self.windows.stream += first - self.windows.first;
                        self.windows.first = first;
                    }
                }
                self.put(&frame(4, 1, 0, &[]))?;
            }
            6 if flags & 1 == 0 => {
                if let Some(link) = &self.link {
                    link.pings.fetch_add(1, Ordering::Relaxed);
                }
                let is_mute = lock(&self.shared.habits).is_mute;
                if !is_mute {
                    self.put(&frame(6, 1, 0, &payload))?;
                }
            }
            8 if id == 0 => self.windows.connection += i64::from(word(0)),
            8 => self.windows.stream += i64::from(word(0)),
            _ => {}
        }
        Ok(true)
    }

    fn call(&mut self, block: &[u8]) -> io::Result<()> {
        let fields = self.decoder.decode(block, FRAME_BYTES).expect("headers");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let fields = fields.expect("short").into_iter();
        let fields: Vec<_> = fields.map(|(n, v)| (text(&n), text(&v))).collect();
        let habits = lock(&self.shared.habits).clone();
        let now = clock::mono_now();
        let status = (":status", "200");
        let kind = ("content-type", "application/grpc");
        if habits.refuses {
            let no = [
                status,
                kind,
                ("grpc-status", "2"),
                ("grpc-message", "invalid identity"),
            ];
            return self.put(&frame(1, 5, 1, &headers(&no)));
        }
        let mut answer = vec![status, kind, ("serverid", &*habits.server_id)];
        answer.extend(habits.count.as_deref().map(|count| ("servercount", count)));
        self.put(&frame(1, 4, 1, &headers(&answer)))?;
        let link = Arc::new(Link {
            fields,
            is_known: self.tls.peer_certificates().is_some(),
            answered: (habits, now),
            packets: Mutex::default(),
            out: Mutex::default(),
            messages: Mutex::default(),
            ways: Mutex::default(),
            pings: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
        });
        lock(&self.shared.links).push(Arc::clone(&link));
        self.link = Some(link);
        Ok(())
    }

    fn came(&mut self, payload: &[u8]) -> io::Result<()> {
        let len = u32::try_from(payload.len()).expect("short").to_be_bytes();
        if !payload.is_empty() {
            self.put(&[frame(8, 0, 0, &len), frame(8, 0, 1, &len)].concat())?;
        }
        self.messages.extend_from_slice(payload);
        while let Some(len) = self.messages.get(1..5) {
            let len = u32::from_be_bytes(len.try_into().expect("four bytes"));
            let end = 5 + usize::try_from(len).expect("short");
            if self.messages.len() < end {
                break;
            }
            let message: Vec<u8> = self.messages.drain(..end).skip(5).collect();
            if let Some(link) = &self.link {
                link.route(read(&message));
            }
        }
        Ok(())
    }
}

/// `CONNECT host:port`, by the newest agent that is known under that host.
fn of_client(shared: &Arc<Shared>, mut tcp: TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match tcp.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).expect("text");
    let target = head.split(' ').nth(1).expect("a target");
    let (host, _) = target.rsplit_once(':').expect("a port");
    let names = ["host", "ipv4", "ipv6"].map(|kind| format!("{kind}={host}"));
    let is_known = |link: &&Arc<Link>| {
        let all = link.field("agentidentifiers").unwrap_or_default();
        !link.is_gone()
            && all
                .split('&')
                .any(|one| names.iter().any(|name| name == one))
    };
    let link = lock(&shared.links)
        .iter()
        .rev()
        .find(is_known)
        .map(Arc::clone);
    let Some(link) = link else {
        let _ = tcp.write_all(b"HTTP/1.1 503 no agent\r\n\r\n");
        return;
    };
    let random = shared.random.fetch_add(1, Ordering::Relaxed).cast_signed();
    let (sender, came) = mpsc::channel();
    link.send(&dial(random, target));
    let answer = link.answer(random);
    if !answer.error.is_empty() {
        let _ = write!(tcp, "HTTP/1.1 503 {}\r\n\r\n", answer.error);
        return;
    }
    lock(&link.ways).insert(answer.id, sender);
    let _ = tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
    let mut reader = tcp.try_clone().expect("socket");
    let (to, id) = (Arc::clone(&link), answer.id);
    thread::spawn(move || {
        let mut piece = [0; FRAME_BYTES];
        loop {
            match reader.read(&mut piece) {
                Ok(n) if n > 0 => to.send(&data(id, &piece[..n])),
                _ => return to.send(&close(id)),
            }
        }
    });
    for piece in came {
        if tcp.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = tcp.shutdown(std::net::Shutdown::Both);
}
