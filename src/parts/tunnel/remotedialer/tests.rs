//! Sessions as their server meets them: over a pipe within the test, at times of its own. The server is as strict as
//! remotedialer's, and as bad as none.

use alloc::{collections::VecDeque, vec::Vec};
use core::{future::ready, time::Duration};

use smol::{
    future::{block_on, poll_once},
    io::{AsyncReadExt as _, AsyncWriteExt as _},
};

use super::{connect::upgrade_stream, *};
use crate::{
    agent::{
        clock::Clock,
        link_policy::LinkPolicy,
        tests::world::{Hands, TestClock},
    },
    api::{MonoTime, WallTime, strict::from_json},
    kube::cluster_network::K3sCluster,
    logic::tunnel::carried::DialRefusal,
    logic::tunnel::remotedialer::session::{
        MAX_WAITING_BYTES, PAUSE_BYTES, PING, PING_METERED, RESUME_BYTES,
    },
    parts::tunnel::tests::{End, ends, new_test_base},
    server::pipe::PipeServerEnd,
    stream::upgrade::UpgradeRequest,
};

const PORT: u16 = 10250;
const OWN: &str = "tcp/127.0.0.1:10250";
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Word of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Data(i64, Vec<u8>),
    Error(i64, String),
    Pause(i64),
    Resume(i64),
    Ping,
    Pong,
    Close(u16),
}

/// The server's end of a session.
struct Server {
    end: End,
    number: Cell<i64>,
    numbers: RefCell<Vec<i64>>,
}

fn varint(out: &mut Vec<u8>, value: i64) {
    let mut left = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while left > 0x7f {
        out.push(u8::try_from(left & 0x7f).expect("7 bits") | 0x80);
        left >>= 7;
    }
    out.push(u8::try_from(left).expect("7 bits"));
}

fn read_varint(bytes: &mut &[u8]) -> i64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            break;
        }
    }
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

impl Server {
    fn new(end: End) -> Self {
        Self {
            end,
            number: Cell::new(-3),
            numbers: RefCell::default(),
        }
    }

    fn message(&self, kind: i64, id: i64, payload: &[u8]) -> Vec<u8> {
        self.number.set(self.number.get() + 1);
        let mut out = Vec::new();
        for value in [self.number.get(), id, kind] {
            varint(&mut out, value);
        }
        if matches!(kind, 1 | 2) {
            varint(&mut out, 15_000);
        }
        out.extend_from_slice(payload);
        out
    }

    fn raw(&self, bytes: &[u8]) {
        let mut way = self.end.to.borrow_mut();
        way.bytes.extend(bytes);
        way.wake();
    }

    /// Sends a frame without mask.
    fn frame(&self, head: u8, payload: &[u8]) {
        self.raw(&frame(head, payload));
    }

    fn say(&self, kind: i64, id: i64, payload: &[u8]) {
        self.frame(0x82, &self.message(kind, id, payload));
    }

    fn dial(&self, id: i64) {
        self.say(2, id, OWN.as_bytes());
    }

    fn data(&self, id: i64, bytes: &[u8]) {
        self.say(1, id, bytes);
    }

    /// Everything that the node has said since the last call. Each frame is whole, masked and unbroken.
    fn heard(&self) -> Vec<Said> {
        let mut said = Vec::new();
        let mut way = self.end.from.borrow_mut();
        let bytes: Vec<u8> = way.bytes.drain(..).collect();
        way.wake();
        drop(way);
        let mut rest = &bytes[..];
        while let [head, length, more @ ..] = rest {
            assert_eq!(length & 0x80, 0x80, "masked");
            let (length, more) = match length & 0x7f {
                126 => (usize::from(more[0]) << 8 | usize::from(more[1]), &more[2..]),
                127 => panic!("longer than any message of a node"),
                short => (usize::from(short), more),
            };
            let (key, more) = more.split_at(4);
            let (payload, more) = more.split_at(length);
            rest = more;
            let payload: Vec<u8> = payload
                .iter()
                .zip(key.iter().cycle())
                .map(|(b, k)| b ^ k)
                .collect();
            said.push(match head {
                0x82 => self.read_message(&payload),
                0x88 => Said::Close(u16::from_be_bytes([payload[0], payload[1]])),
                0x89 => Said::Ping,
                0x8a => Said::Pong,
                other => panic!("a frame {other:x}"),
            });
        }
        assert!(rest.is_empty(), "{rest:x?}");
        said
    }

    fn read_message(&self, mut bytes: &[u8]) -> Said {
        let [number, id, kind] = [(), (), ()].map(|()| read_varint(&mut bytes));
        self.numbers.borrow_mut().push(number);
        match kind {
            1 => {
                assert_eq!(read_varint(&mut bytes), 15_000);
                assert!(!bytes.is_empty() && bytes.len() <= 16 * 1024);
                Said::Data(id, bytes.to_vec())
            }
            3 => Said::Error(id, String::from_utf8(bytes.to_vec()).expect("text")),
            6 | 7 => {
                assert!(bytes.is_empty());
                if kind == 6 {
                    Said::Pause(id)
                } else {
                    Said::Resume(id)
                }
            }
            other => panic!("a message of type {other}"),
        }
    }

    fn has_ended(&self) -> bool {
        self.end.from.borrow().is_ended
    }
}

fn frame(head: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![head];
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(short @ ..126), _) => out.push(short),
        (_, Ok(long)) => {
            out.push(126);
            out.extend(long.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend(u64::try_from(payload.len()).expect("short").to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}

/// A link whose cost a test chooses.
#[derive(Default)]
struct Link {
    is_metered: Cell<bool>,
    is_spent: Cell<bool>,
}

impl LinkPolicy for Link {
    fn is_metered(&self) -> bool {
        self.is_metered.get()
    }

    fn is_spent(&self) -> bool {
        self.is_spent.get()
    }
}

type Answers = Rc<RefCell<VecDeque<Result<Vec<String>, StreamFailure>>>>;
type Offers = Rc<RefCell<VecDeque<Result<OpenedSession, StreamFailure>>>>;

struct World {
    shared: Rc<DialerShared>,
    hands: Rc<Hands>,
    link: Rc<Link>,
    /// Connections that the server of the node was given.
    near: Rc<RefCell<Vec<PipeServerEnd>>>,
    /// Sessions that lines find when they dial, and whom they dialled.
    offers: Offers,
    dialled: Rc<RefCell<Vec<String>>>,
    /// Answers of supervisors, and the times of the questions in seconds.
    answers: Answers,
    asked: Rc<RefCell<Vec<u64>>>,
}

impl World {
    fn new() -> Self {
        let hands = Rc::new(Hands::default());
        hands.set(MonoTime(1000));
        let clock: Rc<dyn Clock> = Rc::new(TestClock(Rc::clone(&hands)));
        let (near, link) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Link::default()));
        let (offers, answers) = (Offers::default(), Answers::default());
        let dialled = Rc::new(RefCell::new(Vec::new()));
        let asked = Rc::new(RefCell::new(Vec::new()));
        let sources = DialerSources {
            is_pod_address: Rc::new(|_| Box::pin(ready(false))),
            open: {
                let (offers, dialled) = (Rc::clone(&offers), Rc::clone(&dialled));
                Box::new(move |_, (host, port)| {
                    dialled.borrow_mut().push(format!("{host}:{port}"));
                    let next = offers.borrow_mut().pop_front();
                    let nobody = || Err(StreamFailure::broken("nobody is there"));
                    Box::pin(async move { next.unwrap_or_else(nobody) })
                })
            },
            ask: {
                let (answers, asked) = (Rc::clone(&answers), Rc::clone(&asked));
                let hands = Rc::clone(&hands);
                Box::new(move |_| {
                    asked.borrow_mut().push(hands.now().0 / 1000);
                    let next = answers.borrow_mut().pop_front();
                    let silent = || Err(StreamFailure::broken("no server answers"));
                    Box::pin(async move { next.unwrap_or_else(silent) })
                })
            },
        };
        let status = Rc::<K3sTunnelStatus>::default();
        let link_policy = Rc::clone(&link) as Rc<dyn LinkPolicy>;
        let base = new_test_base(PORT, &clock, link_policy, &status.board, &near);
        let shared = Rc::new(DialerShared {
            base,
            settings: DialerSettings {
                supervisors: Vec::new(),
                proxies: ProxyVariables::default(),
            },
            sources,
            cluster: Rc::default(),
            status,
            servers: RefCell::new(K3sServers::new(("joined".into(), 6443))),
            lines: RefCell::default(),
            message: Cell::new(i64::MAX - 1),
        });
        Self {
            shared,
            hands,
            link,
            near,
            offers,
            dialled,
            answers,
            asked,
        }
    }

    fn settle(&self) {
        while self.shared.base.executor.try_tick() {}
    }

    /// Lets time pass, stopping at every alarm on the way.
    fn advance(&self, by: Duration) {
        let end = self.hands.now() + by;
        self.settle();
        while let Some(at) = self.hands.next_alarm().filter(|at| *at <= end) {
            self.hands.set(at.max(self.hands.now()));
            self.settle();
        }
        self.hands.set(end);
        self.settle();
    }

    fn opened(rest: &[u8]) -> (OpenedSession, Server) {
        let (ours, theirs) = ends();
        let opened = OpenedSession {
            stream: Box::new(ours),
            rest: rest.to_vec(),
        };
        (opened, Server::new(theirs))
    }

    /// A session that is carried. The returned cell gets the reason of its end.
    fn session(&self) -> (Server, Rc<RefCell<Option<String>>>) {
        self.session_with(&[])
    }

    fn session_with(&self, rest: &[u8]) -> (Server, Rc<RefCell<Option<String>>>) {
        let (opened, server) = Self::opened(rest);
        let why = Rc::new(RefCell::new(None));
        let told = Rc::clone(&why);
        let mut carrier = SessionCarrier::new(&self.shared, opened);
        let task = async move {
            let failed = carrier.carry(|| true).await;
            drop(carrier);
            *told.borrow_mut() = Some(failed.why);
        };
        self.shared.base.executor.spawn(task).detach();
        self.settle();
        (server, why)
    }

    fn take_near(&self) -> PipeServerEnd {
        self.near.borrow_mut().remove(0)
    }

    /// Bytes that the server of the node gets now, and if they are all.
    fn read(&self, near: &mut PipeServerEnd) -> (Vec<u8>, bool) {
        let mut all = Vec::new();
        let mut is_settled = false;
        loop {
            let mut part = [0; 4096];
            match block_on(poll_once(near.read(&mut part))) {
                None if is_settled => return (all, false),
                None => {
                    // What waits outside has room now.
                    self.settle();
                    is_settled = true;
                }
                Some(Ok(0)) => return (all, true),
                Some(Ok(count)) => {
                    is_settled = false;
                    all.extend_from_slice(&part[..count]);
                }
                Some(Err(e)) => panic!("{e}"),
            }
        }
    }

    fn write(&self, near: &mut PipeServerEnd, bytes: &[u8]) {
        block_on(poll_once(near.write_all(bytes)))
            .expect("there is room")
            .expect("somebody reads it");
        self.settle();
    }

    fn streams(&self) -> usize {
        self.shared.status.board.streams.get()
    }
}

fn error(id: i64, text: &str) -> Said {
    Said::Error(id, text.into())
}

#[test]
fn a_dial_is_carried_both_ways() {
    // K3ST-03 K3ST-04 K3ST-06
    let world = World::new();
    let (server, why) = world.session();
    // There is no answer to a dial: bytes come right behind it.
    server.dial(2);
    server.data(2, b"hello ");
    server.data(2, b"node");
    world.settle();
    assert_eq!(server.heard(), []);
    let mut near = world.take_near();
    assert_eq!(world.read(&mut near), (b"hello node".to_vec(), false));
    world.write(&mut near, b"hello server");
    assert_eq!(server.heard(), [Said::Data(2, b"hello server".to_vec())]);
    // The local end: all bytes, then the end, once.
    block_on(poll_once(near.write_all(&[7; 16 * 1024])))
        .expect("room")
        .expect("written");
    drop(near);
    world.settle();
    assert_eq!(
        server.heard(),
        [Said::Data(2, vec![7; 16 * 1024]), error(2, "EOF")]
    );
    // The server sends an end, too, as upstream does; and two of them.
    server.say(3, 2, b"EOF");
    server.say(3, 2, b"broken");
    world.settle();
    assert_eq!(server.heard(), []);
    // The server's end: both directions are over.
    server.dial(3);
    server.data(3, b"last");
    server.say(3, 3, b"EOF");
    world.settle();
    let mut near = world.take_near();
    assert_eq!(world.read(&mut near), (b"last".to_vec(), true));
    assert!(block_on(near.write_all(b"late")).is_err());
    drop(near);
    world.settle();
    assert_eq!(server.heard(), []);
    // The numbers of messages count up, and may overflow.
    let numbers = server.numbers.take();
    assert_eq!(numbers[..3], [i64::MAX, i64::MIN, i64::MIN + 1]);
    // Session lost: every connection of it is closed.
    server.dial(4);
    server.dial(5);
    world.settle();
    drop(server);
    world.settle();
    assert_eq!(
        why.borrow().as_deref(),
        Some("the server has ended the session")
    );
    for _ in 0..2 {
        assert_eq!(world.read(&mut world.take_near()), (Vec::new(), true));
    }
    assert_eq!(world.streams(), 0);
    let figures = world.shared.status.board.tunnel_figures();
    assert_eq!((figures.opened, figures.refused), (4, 0));
    assert_eq!((figures.bytes_in, figures.bytes_out), (14, 12 + 16 * 1024));
}

#[test]
fn what_came_with_the_answer_is_not_lost() {
    // K3ST-01 K3ST-03
    let world = World::new();
    let (_, theirs) = ends();
    let early = Server::new(theirs);
    let bytes = [
        frame(0x82, &early.message(2, 2, OWN.as_bytes())),
        frame(0x82, &early.message(1, 2, b"early")),
    ];
    let (server, _) = world.session_with(&bytes.concat());
    assert_eq!(
        world.read(&mut world.take_near()),
        (b"early".to_vec(), false)
    );
    drop(server);
}

#[test]
fn a_forbidden_dial_ends_only_itself() {
    // K3ST-05 K3ST-06
    let world = World::new();
    let (server, why) = world.session();
    server.dial(2);
    world.settle();
    let mut follows = world.take_near();
    let forbidden = [
        "tcp/127.0.0.1:10010",
        "tcp/10.0.0.1:10250",
        "unix//run/picolet/picolet.sock",
        "nonsense",
        "",
        &format!("{OWN}{}", "0".repeat(300)),
        // Read up to 266 bytes it would be right.
        &format!("tcp/127.0.0.1:{}10250", "0".repeat(260)),
    ];
    for (id, target) in (3..).zip(forbidden) {
        server.say(2, id, target.as_bytes());
        world.settle();
        let refused = server.heard();
        let [Said::Error(of, text)] = &refused[..] else {
            panic!("{refused:?}");
        };
        assert_eq!(*of, id);
        assert!(text.contains("not allowed") && text.len() <= 100, "{text}");
        // The running log goes on.
        world.write(&mut follows, b"line");
        assert_eq!(server.heard(), [Said::Data(2, b"line".to_vec())]);
    }
    assert_eq!(*why.borrow(), None);
    assert!(world.near.borrow().is_empty());
    let health = world.shared.status.tunnel_health();
    assert_eq!(health.tunnel.misrouted, 7);
    // A number that is in use: both are over, and nothing else.
    server.dial(2);
    world.settle();
    assert_eq!(server.heard(), [error(2, "the connection exists already")]);
    assert!(world.read(&mut follows).1);
    server.dial(2);
    world.settle();
    assert_eq!(world.near.borrow().len(), 1);
    world.link.is_spent.set(true);
    server.dial(9);
    world.settle();
    assert!(matches!(&server.heard()[..], [Said::Error(9, why)] if why.contains("dailyBytes")));
}

#[test]
fn what_servers_may_do() {
    // K3ST-02 K3ST-04 K3ST-14 K3ST-15 K3ST-20
    let world = World::new();
    let (server, why) = world.session();
    // Unknown connections: only bytes are answered.
    for (kind, payload) in [
        (3, &b"EOF"[..]),
        (6, b""),
        (7, b""),
        (1, b"bytes"),
        (1, b""),
    ] {
        server.say(kind, 99, payload);
    }
    // Types of other sessions, of clients, and unknown ones.
    for kind in [0, 4, 5, 8, 9, -1, i64::MAX] {
        server.say(kind, 2, b"a/1");
    }
    server.frame(0x89, b"are you there?");
    world.settle();
    let missing = || error(99, "there is no such connection");
    assert_eq!(server.heard(), [missing(), missing(), Said::Pong]);
    // In fragments of a byte, with pings between them.
    let dial = server.message(2, 7, OWN.as_bytes());
    for (at, byte) in dial.iter().enumerate() {
        let head = if at == 0 { 0x02 } else { 0 };
        let last = if at + 1 == dial.len() { 0x80 } else { 0 };
        server.frame(head | last, &[*byte]);
        server.frame(0x89, b"");
    }
    // 40 at once.
    (100..139).for_each(|id| server.dial(id));
    world.settle();
    let heard = server.heard();
    let refused: Vec<&Said> = heard.iter().filter(|said| **said != Said::Pong).collect();
    assert_eq!(refused.len(), 8);
    let is_full =
        |said: &&Said| matches!(said, Said::Error(131..139, why) if why == "too many connections");
    assert!(refused.iter().all(is_full), "{refused:?}");
    assert_eq!(world.near.borrow().len(), 32);
    // A message of 8 MiB goes through piece by piece.
    let mut near = world.take_near();
    let whole: Vec<u8> = (0..8_u32 << 18).flat_map(u32::to_le_bytes).collect();
    server.data(7, &whole);
    let mut got = Vec::new();
    while got.len() < whole.len() {
        world.settle();
        let (more, is_end) = world.read(&mut near);
        assert!(!more.is_empty() && !is_end);
        got.extend(more);
    }
    assert!(got == whole);
    // All of them end, half of them here; the places are free again, and none is told twice.
    server.heard();
    for id in 100..116 {
        server.say(3, id, b"EOF");
    }
    world.settle();
    world.near.borrow_mut().drain(16..);
    world.settle();
    let heard = server.heard();
    assert_eq!(
        heard,
        (116..131).map(|id| error(id, "EOF")).collect::<Vec<_>>()
    );
    world.near.take();
    drop(near);
    world.settle();
    assert_eq!(server.heard(), [error(7, "EOF")]);
    for id in 200..1200 {
        server.dial(id);
        if id % 2 == 0 {
            server.say(3, id, b"EOF");
        }
        world.settle();
        drop(world.take_near());
        world.settle();
        let told = server.heard();
        let want = (id % 2 == 1).then(|| error(id, "EOF"));
        assert_eq!(told, Vec::from_iter(want));
    }
    assert_eq!(*why.borrow(), None);
}

#[test]
fn what_ends_a_session() {
    // K3ST-02 K3ST-20
    for (name, bytes, reason, told) in [
        ("text", frame(0x81, b"hello"), "it sends text", Some(1003)),
        (
            "a mask",
            vec![0x82, 0x81, 0, 0, 0, 0, 1],
            "WebSocket: a server's frame with a mask",
            Some(1002),
        ),
        (
            "an extension",
            vec![0xc2, 0],
            "WebSocket: an extension that was not agreed on",
            Some(1002),
        ),
        (
            "a long frame",
            vec![0x82, 127, 0xff, 0, 0, 0, 0, 0, 0, 0],
            "WebSocket frame of",
            Some(1009),
        ),
        (
            "a long ping",
            vec![0x89, 126, 0, 126],
            "WebSocket: a control frame",
            Some(1002),
        ),
        (
            "no head",
            frame(0x82, b""),
            "it sends a message without a head",
            None,
        ),
        (
            "half a head",
            frame(0x82, &[2, 4]),
            "it sends a message without a head",
            None,
        ),
        (
            "a long number",
            frame(0x82, &[0xff; 12]),
            "it sends no messages: a number of more than 64 bits",
            None,
        ),
        (
            "goodbye",
            frame(0x88, &[3, 0xe9]),
            "the server closes the session (1001)",
            Some(1001),
        ),
        (
            "a mute goodbye",
            frame(0x88, &[]),
            "the server closes the session",
            Some(1000),
        ),
        (
            "nonsense",
            b"HTTP/1.1 400 Bad Request".to_vec(),
            "WebSocket",
            Some(1002),
        ),
    ] {
        let world = World::new();
        let (server, why) = world.session();
        server.dial(2);
        server.raw(&bytes);
        world.settle();
        let found = why.borrow().clone().expect(name);
        assert!(found.starts_with(reason), "{name}: {found}");
        let closed = told.map(Said::Close);
        assert_eq!(server.heard(), Vec::from_iter(closed), "{name}");
        assert!(server.has_ended(), "{name}: the connection is closed");
        assert_eq!(world.read(&mut world.take_near()), (Vec::new(), true));
        assert_eq!(world.streams(), 0);
    }
}

#[test]
fn cut_at_each_byte() {
    // K3ST-02 K3ST-04 K3ST-20
    let (_, theirs) = ends();
    let script = Server::new(theirs);
    let bytes = [
        frame(0x82, &script.message(2, 2, OWN.as_bytes())),
        frame(0x02, &script.message(1, 2, &[1; 130])),
        frame(0x89, b"x"),
        frame(0x80, b"end"),
        frame(0x82, &script.message(6, 2, b"")),
        frame(0x82, &script.message(3, 2, b"EOF")),
    ];
    let bytes = bytes.concat();
    for cut in 0..bytes.len() {
        let world = World::new();
        let (server, why) = world.session();
        // In two halves, too.
        server.raw(&bytes[..cut / 2]);
        world.settle();
        server.raw(&bytes[cut / 2..cut]);
        world.settle();
        assert_eq!(*why.borrow(), None, "{cut}");
        drop(server);
        world.settle();
        assert!(why.borrow().is_some(), "{cut}");
        assert_eq!(world.streams(), 0);
        for mut near in world.near.take() {
            assert!(world.read(&mut near).1, "{cut}");
        }
    }
}

#[test]
fn a_server_that_pauses_holds_up_one_connection() {
    // K3ST-13 K3ST-14
    let world = World::new();
    let (server, why) = world.session();
    server.dial(2);
    server.dial(3);
    world.settle();
    let (mut paused, mut other) = (world.take_near(), world.take_near());
    server.say(6, 2, b"");
    world.settle();
    // What the node has for it waits where it is made.
    let mut put = 0;
    while let Some(more) = block_on(poll_once(paused.write(&[1; 1000]))) {
        put += more.expect("somebody is there");
        world.settle();
    }
    assert_eq!(put, 16 * 1024);
    assert_eq!(server.heard(), []);
    for _ in 0..100 {
        world.write(&mut other, b"line");
        assert_eq!(server.heard(), [Said::Data(3, b"line".to_vec())]);
    }
    server.say(7, 2, b"");
    world.settle();
    assert_eq!(server.heard(), [Said::Data(2, vec![1; put])]);
    // For ever: pings are answered, and the connection ends when the server says so.
    server.say(6, 2, b"");
    for _ in 0..10 {
        world.advance(PING);
        assert_eq!(server.heard(), [Said::Ping]);
        server.frame(0x8a, b"");
    }
    server.say(3, 2, b"EOF");
    world.settle();
    assert!(world.read(&mut paused).1);
    assert_eq!(*why.borrow(), None);
}

#[test]
fn a_reader_that_stalls_pauses_the_server() {
    // K3ST-13
    let world = World::new();
    let (server, why) = world.session();
    server.dial(2);
    server.data(2, &[1; PAUSE_BYTES]);
    world.settle();
    assert_eq!(server.heard(), []);
    server.data(2, &[2]);
    // What was on its way when the pause came still finds room.
    server.data(2, &[3; MAX_WAITING_BYTES - PAUSE_BYTES - 1]);
    server.dial(3);
    world.settle();
    assert_eq!(server.heard(), [Said::Pause(2)], "once");
    let (mut stalled, mut other) = (world.take_near(), world.take_near());
    server.data(3, b"goes on");
    world.settle();
    assert_eq!(world.read(&mut other), (b"goes on".to_vec(), false));
    let mut left = MAX_WAITING_BYTES;
    while left > RESUME_BYTES {
        assert_eq!(server.heard(), []);
        let mut part = vec![0; 4096];
        block_on(stalled.read_exact(&mut part)).expect("bytes");
        left -= part.len();
        world.settle();
    }
    assert_eq!(server.heard(), [Said::Resume(2)]);
    assert_eq!(*why.borrow(), None);
}

#[test]
fn a_server_that_ignores_the_pause_loses_the_connection() {
    // K3ST-13 K3ST-14 K3ST-20
    let world = World::new();
    let (server, why) = world.session();
    server.dial(2);
    server.dial(3);
    server.data(2, &vec![1; MAX_WAITING_BYTES]);
    server.data(3, b"before");
    server.data(2, b"too much");
    server.data(3, b"behind");
    world.settle();
    let (stalled, mut other) = (world.take_near(), world.take_near());
    assert_eq!(server.heard(), [Said::Pause(2)]);
    assert_eq!(
        world.read(&mut other),
        (b"before".to_vec(), false),
        "it waits for the other"
    );
    world.advance(9 * SECOND);
    assert_eq!(server.heard(), []);
    world.advance(2 * SECOND);
    assert_eq!(server.heard(), [error(2, "the node reads too slowly")]);
    assert_eq!(world.read(&mut other), (b"behind".to_vec(), false));
    drop(stalled);
    // Its further bytes are for nobody.
    server.data(2, b"more");
    world.settle();
    assert_eq!(server.heard(), [error(2, "there is no such connection")]);
    assert_eq!(*why.borrow(), None);
    // All of them at once: together they hold 2 MiB, and what each may have.
    server.say(3, 3, b"EOF");
    (10..42).for_each(|id| server.dial(id));
    (10..42).for_each(|id| server.data(id, &vec![1; 2 * MAX_WAITING_BYTES]));
    let most = |world: &World| -> usize {
        let mut all = 0;
        for near in world.near.borrow_mut().iter_mut() {
            let mut part = vec![0; 4 * MAX_WAITING_BYTES];
            if let Some(Ok(count)) = block_on(poll_once(near.read(&mut part))) {
                all += count;
            }
        }
        all
    };
    world.advance(10 * 32 * SECOND);
    let held = most(&world);
    assert!(held <= (2 << 20) + 32 * PAUSE_BYTES, "{held}");
}

#[test]
fn pings() {
    // K3ST-08
    let world = World::new();
    let (server, why) = world.session();
    server.dial(2);
    world.advance(PING - SECOND);
    assert_eq!(server.heard(), []);
    // Constant data changes nothing.
    let mut near = world.take_near();
    let mut pings = 0;
    for _ in 0..300 {
        server.data(2, b"x");
        world.write(&mut near, b"y");
        world.advance(SECOND);
        world.read(&mut near);
        for said in server.heard() {
            if said == Said::Ping {
                pings += 1;
                server.frame(0x8a, b"");
            }
        }
    }
    assert!((12..=13).contains(&pings), "{pings}");
    world.link.is_metered.set(true);
    let next = || {
        let since = world.hands.now();
        while server.heard() != [Said::Ping] {
            world.advance(SECOND);
        }
        world.hands.now() - since
    };
    next();
    server.frame(0x8a, b"");
    world.settle();
    assert_eq!(next(), PING_METERED);
    // No pong: the connection is closed.
    world.advance(19 * SECOND);
    assert_eq!(*why.borrow(), None);
    world.advance(2 * SECOND);
    assert_eq!(why.borrow().as_deref(), Some("the server is silent"));
    assert!(server.has_ended());
    // A server that talks and never pongs.
    world.link.is_metered.set(false);
    let (server, why) = world.session();
    let mut seconds = 0;
    while why.borrow().is_none() {
        server.say(8, 0, b"");
        world.advance(SECOND);
        server.heard();
        seconds += 1;
    }
    assert_eq!(seconds, 25 + 60);
}

#[test]
fn a_server_that_reads_nothing() {
    // K3ST-14 K3ST-20
    let world = World::new();
    let (server, why) = world.session();
    server.end.from.borrow_mut().room = Some(4096);
    (2..34).for_each(|id| server.dial(id));
    world.settle();
    // 32 followed logs: what waits of each is 16 KiB, and the messages that are on their way.
    let mut all = 0;
    for near in world.near.borrow_mut().iter_mut() {
        while let Some(more) = block_on(poll_once(near.write(&[1; 4096]))) {
            all += more.expect("somebody is there");
            world.settle();
        }
    }
    assert!(all <= 32 * 16 * 1024 + 2 * 16 * 1024 + 4096, "{all}");
    // Questions without end: each has an answer, and no more are read than there is room for.
    for _ in 0..10_000 {
        server.data(99, b"x");
        server.frame(0x89, b"");
    }
    world.settle();
    assert!(!server.end.to.borrow().bytes.is_empty());
    world.advance(PING + 19 * SECOND);
    assert_eq!(*why.borrow(), None);
    world.advance(2 * SECOND);
    assert_eq!(why.borrow().as_deref(), Some("the server is silent"));
    assert_eq!(world.streams(), 0);
    for mut near in world.near.take() {
        assert!(world.read(&mut near).1);
    }
}

#[test]
fn the_end_of_the_agent() {
    // K3ST-04
    let world = World::new();
    let (server, why) = world.session();
    server.dial(2);
    world.settle();
    let mut near = world.take_near();
    let tunnel = Rc::clone(&world.shared.base);
    let stopped = Rc::new(Cell::new(false));
    let told = Rc::clone(&stopped);
    let task = async move {
        tunnel.stop().await;
        told.set(true);
    };
    world.shared.base.executor.spawn(task).detach();
    world.settle();
    server.dial(3);
    world.settle();
    world.write(&mut near, b"goes on");
    assert_eq!(
        server.heard(),
        [
            error(3, "the agent is leaving"),
            Said::Data(2, b"goes on".to_vec())
        ]
    );
    assert!(!stopped.get());
    drop(near);
    world.settle();
    assert_eq!(server.heard(), [error(2, "EOF"), Said::Close(1001)]);
    assert!(stopped.get() && why.borrow().is_some());
    // It does not wait for ever.
    let world = World::new();
    let (server, _) = world.session();
    server.dial(2);
    world.settle();
    let tunnel = Rc::clone(&world.shared.base);
    let task = world
        .shared
        .base
        .executor
        .spawn(async move { tunnel.stop().await });
    world.advance(9 * SECOND);
    assert!(!task.is_finished());
    world.advance(2 * SECOND);
    assert!(task.is_finished());
}

fn list(apiservers: &[&str]) -> Vec<String> {
    apiservers.iter().map(|&text| text.to_owned()).collect()
}

/// A server tells that nodes are reached in that way.
fn tell_mode(world: &World, mode: &str) {
    let cluster: K3sCluster = from_json(b"{}").expect("a description");
    let mut facts = cluster.to_facts(Vec::new());
    facts.egress_mode = mode.into();
    assert!(world.shared.cluster.set_facts(facts));
    world.settle();
}

#[test]
fn each_server_has_one_session() {
    // K3ST-09 K3ST-10 K3ST-11 K3ST-12 K3ST-19
    let world = World::new();
    let shared = &world.shared;
    let status = |world: &World| {
        let condition = world
            .shared
            .status
            .board
            .node_condition(WallTime::from_unix_seconds(0));
        (condition.status.to_string(), condition.message)
    };
    // Time passes, and these answer pings.
    let pass = |time: Duration, all: &[&Server]| {
        let end = world.hands.now() + time;
        while world.hands.now() < end {
            world.advance((end - world.hands.now()).min(10 * SECOND));
            all.iter().for_each(|server| server.frame(0x8a, b""));
        }
        world.settle();
    };
    let offer = || {
        let (opened, server) = World::opened(&[]);
        world.offers.borrow_mut().push_back(Ok(opened));
        server
    };
    let [a, b] = [offer(), offer()];
    world.answers.borrow_mut().push_back(Ok(list(&[
        "10.0.0.1:6443",
        "10.0.0.2:6443",
        "10.0.0.3:6443",
    ])));
    tell_mode(&world, "agent");
    shared
        .base
        .executor
        .spawn(keep_servers(Rc::clone(shared)))
        .detach();
    world.settle();
    assert_eq!(
        world.dialled.take(),
        ["10.0.0.1:6443", "10.0.0.2:6443", "10.0.0.3:6443"]
    );
    let (up, message) = status(&world);
    assert_eq!((&*up, &*message), ("True", "streams to 2 of 3 servers"));
    let health = shared.status.tunnel_health();
    assert_eq!((health.tunnel.streams, health.tunnel.servers), (2, 3));
    assert_eq!(
        health.tunnel.trouble.as_deref(),
        Some("tunnel to 10.0.0.3:6443: nobody is there")
    );
    // The third is tried again and again, the others have no second session.
    pass(20 * SECOND, &[&a, &b]);
    let dialled = world.dialled.take();
    assert!(
        dialled.len() >= 4 && dialled.iter().all(|to| to == "10.0.0.3:6443"),
        "{dialled:?}"
    );
    // The third session lasts for longer than the pause before its next one, however that is spread.
    let c = offer();
    pass(30 * SECOND, &[&a, &b]);
    assert_eq!(status(&world).1, "streams to 3 of 3 servers");
    assert_eq!(world.streams(), 3);
    // A server that refuses this node is asked seldom.
    let refused = || {
        Err(StreamFailure {
            ending: StreamLossReason::Refused,
            why: "it does not accept the certificate".into(),
        })
    };
    world.offers.borrow_mut().extend([refused(), refused()]);
    world.dialled.take();
    drop(c);
    world.settle();
    let since = world.hands.now();
    while world.dialled.borrow().len() < 3 {
        world.advance(SECOND);
        [&a, &b].iter().for_each(|server| server.frame(0x8a, b""));
    }
    let passed = (world.hands.now() - since).as_secs();
    assert!((9 + 18..=11 + 22 + 3).contains(&passed), "{passed}");
    // It has left: the list is asked for again at most a minute after the end.
    world
        .answers
        .borrow_mut()
        .push_back(Ok(list(&["10.0.0.2:6443", "10.0.0.1:6443"])));
    pass(MINUTE, &[&a, &b]);
    assert!(world.asked.borrow().len() > 1);
    assert_eq!(shared.lines.borrow().len(), 2);
    assert_eq!(status(&world).1, "streams to 2 of 2 servers");
    // One that has left the list is left, the other goes on.
    world
        .answers
        .borrow_mut()
        .push_back(Ok(list(&["10.0.0.2:6443"])));
    pass(6 * MINUTE, &[&a, &b]);
    assert!(a.has_ended() && !b.has_ended());
    assert_eq!(world.streams(), 1);
    // No answer changes nothing; neither does an empty list.
    for _ in 0..3 {
        world.answers.borrow_mut().push_back(Ok(Vec::new()));
    }
    pass(20 * MINUTE, &[&b]);
    assert_eq!(world.streams(), 1);
    assert_eq!(status(&world).0, "True");
    // The servers reach nodes directly from now on.
    tell_mode(&world, "disabled");
    assert!(b.has_ended());
    assert!(shared.status.is_needless());
    assert_eq!((world.streams(), shared.lines.borrow().len()), (0, 0));
}

#[test]
fn dials_for_what_is_no_pod_of_this_node() {
    // K3ST-05 K3ST-16
    const POD: &[u8] = b"tcp/10.42.1.5:80";
    let world = World::new();
    let (server, why) = world.session();
    let misrouted = || world.shared.status.tunnel_health().tunnel.misrouted;
    for (mode, end) in [
        ("agent", DialRefusal::Foreign.answer_text()),
        ("pod", "EOF"),
        ("cluster", "EOF"),
        ("disabled", DialRefusal::Foreign.answer_text()),
    ] {
        tell_mode(&world, mode);
        world.shared.take_facts();
        let before = misrouted();
        server.say(2, 5, POD);
        server.dial(6);
        world.settle();
        assert_eq!(server.heard(), [Said::Error(5, end.into())], "{mode}");
        assert_eq!(misrouted(), before + 1, "{mode}");
        assert!(why.borrow().is_none());
        server.say(3, 6, b"EOF");
        world.settle();
        server.heard();
    }
}

#[test]
fn supervisors_that_do_not_answer() {
    // K3ST-12 K3ST-19
    let world = World::new();
    let shared = &world.shared;
    shared
        .base
        .executor
        .spawn(keep_servers(Rc::clone(shared)))
        .detach();
    world.advance(MINUTE);
    let asked = world.asked.take();
    assert!((8..=14).contains(&asked.len()), "{asked:?}");
    let health = shared.status.tunnel_health();
    assert_eq!(
        (health.mode, health.tunnel.trouble.as_deref()),
        (None, Some("no server answers"))
    );
    assert!(!shared.status.is_needless());
    // One does: without a list, it is the server that was joined. Nobody is dialled before.
    assert_eq!(world.dialled.take(), [""; 0]);
    world.answers.borrow_mut().push_back(Ok(Vec::new()));
    world.advance(12 * SECOND);
    assert_eq!(world.dialled.take(), [""; 0]);
    tell_mode(&world, "cluster");
    assert_eq!(world.dialled.borrow()[0], "joined:6443");
    // The agent ends while nobody is there.
    let tunnel = Rc::clone(&shared.base);
    let task = shared
        .base
        .executor
        .spawn(async move { tunnel.stop().await });
    world.settle();
    assert!(task.is_finished());
    assert!(shared.lines.borrow().is_empty());
}

/// What comes of an upgrade with this answer. `{accept}` in it is the right one.
fn upgrade(answer: &str, cut: usize) -> Result<Vec<u8>, StreamFailure> {
    let (mut ours, theirs) = ends();
    let mut upgrading = Box::pin(upgrade_stream(&mut ours, "[::1]:6443"));
    assert!(block_on(poll_once(&mut upgrading)).is_none());
    let asked: Vec<u8> = theirs.from.borrow_mut().bytes.drain(..).collect();
    let asked = String::from_utf8(asked).expect("text");
    assert!(
        asked.starts_with("GET /v1-k3s/connect HTTP/1.1\r\nHost: [::1]:6443\r\n"),
        "{asked}"
    );
    assert!(asked.ends_with("\r\n\r\n"));
    let headers = asked.lines().filter_map(|line| line.split_once(": "));
    let request = UpgradeRequest::parse("GET", headers.clone()).expect("a WebSocket");
    assert_eq!(headers.count(), 5, "no further headers");
    let head = request.answer_head("");
    let (_, accept) = head.split_once("Sec-WebSocket-Accept: ").expect("accept");
    let answer = answer.replace("{accept}", accept.trim_end());
    let answer = &answer.as_bytes()[..answer.len().min(cut)];
    for byte in answer {
        theirs.to.borrow_mut().bytes.push_back(*byte);
        theirs.to.borrow_mut().wake();
        if let Some(done) = block_on(poll_once(&mut upgrading)) {
            return done;
        }
    }
    drop(theirs);
    block_on(upgrading)
}

#[test]
fn answers_to_the_upgrade() {
    // K3ST-01 K3ST-12 K3ST-20
    let good = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n";
    assert_eq!(upgrade(good, usize::MAX).map_err(|e| e.why), Ok(Vec::new()));
    for cut in 0..good.len() {
        let cut = upgrade(good, cut).map_err(|e| e.ending);
        assert_eq!(cut, Err(StreamLossReason::Broken));
    }
    let long = format!("HTTP/1.1 101 x\r\nX: {}\r\n\r\n", "x".repeat(9000));
    let many = format!("HTTP/1.1 101 x\r\n{}\r\n", "X: y\r\n".repeat(100));
    let (broken, refused) = (StreamLossReason::Broken, StreamLossReason::Refused);
    for (answer, ending, why) in [
        (
            "HTTP/1.1 401 Unauthorized\r\n\r\n",
            refused,
            "does not accept the certificate of this node (401)",
        ),
        (
            "HTTP/1.1 403 Forbidden\r\n\r\n",
            refused,
            "does not accept the certificate of this node (403)",
        ),
        ("HTTP/1.1 404 Not Found\r\n\r\n", refused, "has no tunnel"),
        ("HTTP/1.1 200 OK\r\n\r\n", broken, "it answers 200"),
        (
            "HTTP/1.1 302 Found\r\nLocation: https://x\r\n\r\n",
            broken,
            "it answers 302",
        ),
        ("HTTP/1.1 503 x\r\n\r\n", broken, "it answers 503"),
        (
            &good.replace("{accept}", "AAAAAAAAAAAAAAAAAAAAAAAAAAA="),
            refused,
            "wrong Sec-WebSocket-Accept",
        ),
        (
            &good.replace("Upgrade: websocket\r\n", ""),
            refused,
            "wrong Upgrade",
        ),
        (
            &good.replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: x\r\n\r\n"),
            refused,
            "wrong Sec-WebSocket-Extensions or",
        ),
        ("SSH-2.0-x\r\n\r\n", broken, "it speaks no HTTP"),
        (&long, broken, "too long"),
        (&many, broken, "it speaks no HTTP"),
        ("", broken, "without an answer"),
    ] {
        let failed = upgrade(answer, usize::MAX).map(drop).expect_err(answer);
        assert_eq!(failed.ending, ending, "{answer}");
        assert!(failed.why.contains(why), "{answer}: {}", failed.why);
    }
}
