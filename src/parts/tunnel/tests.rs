//! Streams as their server meets them: over a pipe within the test, at times of its own.

use alloc::collections::VecDeque;
use core::{
    pin::pin,
    task::{Context, Poll, Waker},
};
use std::{
    io::{self, Read as _},
    path::PathBuf,
};

use smol::{
    channel::{self, Sender},
    future::{block_on, or, poll_once},
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
};

use super::{
    packet::{MAX_MESSAGE_BYTES, ServerMessage, tests::of_server},
    *,
};
use crate::{
    agent::{
        clock::{Clock, GrpcClock},
        complaints::Complaints,
        link_policy::{FreeLink, LinkPolicy},
        tests::world::{Hands, NODE, Template, TestClock},
        waker_set::WakerSet,
    },
    api::{self, MonoTime, node::NodeAddress},
    grpc::{
        ConnectionClock,
        client::{CallOptions, connect},
        server::{CallFuture, CallHandler, ServerCall, serve_calls},
    },
    logic::tunnel::{carried::DialRefusal, stream::MAX_REPLACED},
    parts::tunnel::board::TunnelStatus,
    server::pipe::PipeServerEnd,
    sys::lane::Lane,
    testing::TestDir,
};

const PORT: u16 = 10250;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A direction of a connection within the test.
#[derive(Default)]
pub(super) struct Way {
    pub(super) bytes: VecDeque<u8>,
    pub(super) is_ended: bool,
    /// Most bytes that it holds; `None`: no limit.
    pub(super) room: Option<usize>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Way {
    pub(super) fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()]
            .into_iter()
            .flatten()
        {
            waker.wake();
        }
    }
}

/// An end of a connection within the test.
pub(super) struct End {
    pub(super) from: Rc<RefCell<Way>>,
    pub(super) to: Rc<RefCell<Way>>,
}

pub(super) fn ends() -> (End, End) {
    let (there, back) = (Rc::<RefCell<Way>>::default(), Rc::<RefCell<Way>>::default());
    let ours = End {
        from: Rc::clone(&back),
        to: Rc::clone(&there),
    };
    let theirs = End {
        from: there,
        to: back,
    };
    (ours, theirs)
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut way = self.from.borrow_mut();
        if way.bytes.is_empty() && !way.is_ended {
            way.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let read = way.bytes.read(buf);
        way.wake();
        Poll::Ready(read)
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut way = self.to.borrow_mut();
        let room = way
            .room
            .map_or(buf.len(), |room| room.saturating_sub(way.bytes.len()));
        let count = buf.len().min(room);
        if count == 0 {
            way.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        way.bytes.extend(&buf[..count]);
        way.wake();
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut way = self.to.borrow_mut();
        way.is_ended = true;
        way.wake();
    }
}

/// The server's end of a stream.
struct Server {
    says: Sender<Vec<u8>>,
    heard: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Server {
    fn say(&self, said: ServerMessage) {
        self.says.try_send(of_server(said)).expect("it listens");
    }

    fn dial(&self, random: i64, host: &str) {
        self.say(ServerMessage::Dial {
            protocol: "tcp".into(),
            address: format!("{host}:{PORT}"),
            random,
        });
    }
}

/// Base of a tunnel in a test. `near`: takes the connections that are served.
pub(super) fn new_test_base(
    port: u16,
    clock: &Rc<dyn Clock>,
    link_policy: Rc<dyn LinkPolicy>,
    board: &Rc<TunnelStatus>,
    near: &Rc<RefCell<Vec<PipeServerEnd>>>,
) -> Rc<TunnelBase> {
    let near = Rc::clone(near);
    Rc::new(TunnelBase {
        kubeconfig: PathBuf::new(),
        kept: None,
        port,
        serve: Box::new(move |end| near.borrow_mut().push(end)),
        clock: Rc::clone(clock),
        complaints: Rc::new(Complaints::new(Rc::clone(clock))),
        disk: Lane::without_thread(),
        link_policy,
        executor: Rc::new(LocalExecutor::new()),
        board: Rc::clone(board),
        is_stopping: Cell::new(false),
        changed: WakerSet::default(),
    })
}

/// State that all streams of a node share.
struct World {
    shared: Rc<TunnelShared>,
    hands: Rc<Hands>,
    /// Connections that the server of the node was given.
    near: Rc<RefCell<Vec<PipeServerEnd>>>,
    /// Opened streams that lines find when they dial, one after the other.
    offers: Rc<RefCell<VecDeque<OpenedStream>>>,
    _scratch: TestDir,
}

impl World {
    fn new() -> Self {
        let scratch = TestDir::new("tunnel");
        let hands = Rc::new(Hands::default());
        hands.set(MonoTime(1000));
        let template = Template::new(&scratch.join(""), &[]);
        let clock: Rc<dyn Clock> = Rc::new(TestClock(Rc::clone(&hands)));
        let near = Rc::new(RefCell::new(Vec::new()));
        let offers = Rc::new(RefCell::new(VecDeque::new()));
        let found = Rc::clone(&offers);
        let base = new_test_base(PORT, &clock, Rc::new(FreeLink), &Rc::default(), &near);
        let shared = Rc::new(TunnelShared {
            base,
            settings: TunnelSettings {
                cfg: TunnelConfig {
                    servers: vec![("server".into(), 8091)],
                    ca: None,
                    token_file: None,
                },
                agent_id: "node-boot".into(),
            },
            open: Box::new(move |_, _, _| {
                let next = found.borrow_mut().pop_front();
                Box::pin(
                    async move { next.ok_or_else(|| StreamFailure::broken("nobody is there")) },
                )
            }),
            recorder: Rc::new(EventRecorder::new(clock, NODE.into())),
            node: template.node(),
            ids: RefCell::new(ConnectionIds::new(0)),
            servers: RefCell::default(),
            lines: Cell::new(0),
        });
        let world = Self {
            shared,
            hands,
            near,
            offers,
            _scratch: scratch,
        };
        world.moves_to("192.0.2.7");
        world
    }

    /// The node has this address from now on.
    fn moves_to(&self, address: &str) {
        let mut node = api::Node::default();
        node.status.addresses = vec![NodeAddress {
            kind: "InternalIP".into(),
            address: address.into(),
        }];
        self.shared.node.learn_node_object(node);
    }

    /// Runs everything that can run at this instant.
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

    /// Result of a future that is ready at this instant.
    fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        loop {
            if let Some(done) = block_on(poll_once(what.as_mut())) {
                return done;
            }
            assert!(self.shared.base.executor.try_tick(), "it waits for nothing");
        }
    }

    /// Offers a server to the next line that dials; the server says that there are `count`.
    fn offer(&self, name: &str, count: usize) -> Server {
        let (opened, server) = self.opened(name, count);
        self.offers.borrow_mut().push_back(opened);
        server
    }

    /// A stream to a server.
    fn open(&self) -> (StreamCarrier, Server) {
        let (opened, server) = self.opened("one", 1);
        let (identifiers, own) = self.shared.node_identifiers().expect("addresses");
        let carrying = StreamCarrier::new(&self.shared, opened, own, identifiers);
        (carrying, server)
    }

    fn opened(&self, name: &str, count: usize) -> (OpenedStream, Server) {
        let (says, said) = channel::unbounded::<Vec<u8>>();
        let server = Server {
            says,
            heard: Rc::default(),
        };
        let heard = Rc::clone(&server.heard);
        let handler: CallHandler = Rc::new(move |mut exchange: ServerCall| -> CallFuture {
            let (said, heard) = (said.clone(), Rc::clone(&heard));
            Box::pin(async move {
                loop {
                    let came = async { Ok(exchange.next_message().await) };
                    let say = async { Err(said.recv().await) };
                    let step = or(came, say).await;
                    match step {
                        Ok(Ok(Some(message))) => heard.borrow_mut().push(message),
                        Ok(Err(status)) => return Err(status),
                        Err(Ok(message)) => exchange.send_message(&message).await?,
                        Ok(Ok(None)) | Err(Err(_)) => return Ok(()),
                    }
                }
            })
        });
        let (ours, theirs) = ends();
        let time: Rc<dyn ConnectionClock> = Rc::new(GrpcClock(Rc::clone(&self.shared.base.clock)));
        let (client, driver) = connect(ours, "server", Rc::clone(&time));
        let executor = &self.shared.base.executor;
        let driver = executor.spawn(driver);
        executor.spawn(serve_calls(theirs, handler, time)).detach();
        let options = CallOptions::default();
        let call = self.wait(client.begin_call("/AgentService/Connect", &options));
        let mut call = call.expect("a call");
        call.make_lasting(MAX_MESSAGE_BYTES);
        let opened = OpenedStream {
            client,
            call,
            driver,
            server: name.to_owned(),
            count,
        };
        (opened, server)
    }

    /// Number of open streams, and the running lines.
    fn up(&self) -> (usize, u32) {
        self.settle();
        (
            self.shared.base.board.streams.get(),
            self.shared.lines.get(),
        )
    }

    /// Carries. The returned cell gets the reason of the end.
    fn run(
        &self,
        mut carrying: StreamCarrier,
        replaced: Option<&Rc<WakeFlag>>,
    ) -> Rc<RefCell<Option<String>>> {
        let why = Rc::new(RefCell::new(None));
        let (told, replaced) = (Rc::clone(&why), replaced.cloned());
        let task = async move {
            let mut line = TunnelLine::default();
            let turned = carrying
                .carry_until_turn(&mut line, replaced.as_deref())
                .await;
            *told.borrow_mut() = Some(match turned {
                StreamTurn::Ended(failed) => failed.why,
                StreamTurn::Leaves(why) => why.to_owned(),
            });
        };
        self.shared.base.executor.spawn(task).detach();
        why
    }

    /// Messages that came since the last call.
    fn heard(&self, server: &Server) -> Vec<Vec<u8>> {
        self.settle();
        server.heard.take()
    }

    /// Reads the bytes that came for a connection, at most `most`; `None`: none yet.
    fn read(&self, near: &mut PipeServerEnd, most: usize) -> Option<Vec<u8>> {
        self.settle();
        let mut piece = vec![0; most];
        let read = block_on(poll_once(near.read(&mut piece)));
        piece.truncate(read?.expect("a pipe"));
        Some(piece)
    }

    /// The agent ends.
    fn stop(&self) {
        self.shared.base.is_stopping.set(true);
        self.shared.base.changed.wake_all();
    }
}

#[test]
fn a_stream_that_is_replaced_takes_dials_until_the_agent_ends() {
    // TUN-11 TUN-14
    let world = World::new();
    let (carrying, server) = world.open();
    let replaced = Rc::new(WakeFlag::default());
    let ended = world.run(carrying, Some(&replaced));
    server.dial(1, NODE);
    assert_eq!(
        world.heard(&server),
        [packet::encode_dial_response(1, Ok(1))]
    );
    replaced.wake_waiters();
    assert_eq!(world.heard(&server), [packet::encode_drain()]);
    server.dial(2, NODE);
    assert_eq!(
        world.heard(&server),
        [packet::encode_dial_response(2, Ok(2))]
    );
    // It is told once.
    world.stop();
    assert_eq!(world.heard(&server), Vec::<Vec<u8>>::new());
    server.dial(3, NODE);
    let refused = packet::encode_dial_response(3, Err(DialRefusal::Leaving.answer_text()));
    assert_eq!(world.heard(&server), [refused]);
    server.say(ServerMessage::Close { id: 1 });
    assert_eq!(world.heard(&server), [packet::encode_close_response(1, "")]);
    assert_eq!(*ended.borrow(), None);
    server.say(ServerMessage::Close { id: 2 });
    assert_eq!(world.heard(&server), [packet::encode_close_response(2, "")]);
    assert_eq!(ended.borrow().as_deref(), Some("it was left"));
    assert_eq!(world.shared.base.board.streams.get(), 0);
}

#[test]
fn a_stream_that_is_replaced_ends_in_the_end() {
    // TUN-11
    let world = World::new();
    let (carrying, server) = world.open();
    let replaced = Rc::new(WakeFlag::default());
    let ended = world.run(carrying, Some(&replaced));
    world.advance(2 * MAX_REPLACED);
    assert_eq!(*ended.borrow(), None, "the other is not there yet");
    replaced.wake_waiters();
    assert_eq!(world.heard(&server), [packet::encode_drain()]);
    assert_eq!(ended.borrow().as_deref(), Some("it was left"));
    // Open connections go on, for as long as they like.
    let (carrying, server) = world.open();
    let ended = world.run(carrying, Some(&replaced));
    server.dial(1, NODE);
    assert_eq!(
        world.heard(&server),
        [packet::encode_dial_response(1, Ok(1))]
    );
    replaced.wake_waiters();
    assert_eq!(world.heard(&server), [packet::encode_drain()]);
    world.advance(2 * MAX_REPLACED);
    assert_eq!(*ended.borrow(), None);
    // A server that dials here all the same has to take the other in the end.
    server.dial(2, NODE);
    assert_eq!(
        world.heard(&server),
        [packet::encode_dial_response(2, Ok(2))]
    );
    world.advance(MAX_REPLACED - MINUTE);
    assert_eq!(*ended.borrow(), None);
    world.advance(MINUTE);
    assert!(ended.borrow().is_some());
    let mut near = world.near.borrow_mut().pop().expect("two connections");
    assert_eq!(world.read(&mut near, 1), Some(Vec::new()), "it is over");
}

#[test]
fn dials_for_an_address_that_the_node_had() {
    // TUN-06 TUN-07
    let world = World::new();
    let (carrying, server) = world.open();
    let ended = world.run(carrying, None);
    world.moves_to("192.0.2.8");
    for (random, host, answer) in [
        (1, "192.0.2.7", Err(DialRefusal::Moved.answer_text())),
        (2, "192.0.2.8", Ok(1)),
        (3, NODE, Ok(2)),
        (4, "192.0.2.9", Err(DialRefusal::Misrouted.answer_text())),
    ] {
        server.dial(random, host);
        let answer = packet::encode_dial_response(random, answer);
        assert_eq!(world.heard(&server), [answer], "{host}");
    }
    assert_eq!(world.shared.base.board.tunnel_health().misrouted, 1);
    world.advance(MINUTE);
    let why = "the addresses of the node have changed";
    assert_eq!(ended.borrow().as_deref(), Some(why));
}

#[test]
fn who_reads_a_little_now_and_then_is_closed() {
    // TUN-12
    const KIB: usize = 1024;
    let world = World::new();
    let (carrying, server) = world.open();
    let ended = world.run(carrying, None);
    server.dial(1, NODE);
    server.dial(2, NODE);
    let dialled = [1, 2].map(|n| packet::encode_dial_response(n, Ok(n)));
    assert_eq!(world.heard(&server), dialled);
    let taken = world.near.take();
    let [mut slow, mut other]: [PipeServerEnd; 2] = taken.try_into().ok().expect("two connections");
    for _ in 0..12 {
        let bytes = vec![0; 16 * KIB];
        server.say(ServerMessage::Data { id: 1, bytes });
    }
    let bytes = b"hello".to_vec();
    server.say(ServerMessage::Data { id: 2, bytes });
    let mut seconds = 0;
    let came = loop {
        if let Some(came) = world.read(&mut other, KIB) {
            break came;
        }
        assert!(seconds < 12, "the other waits for too long");
        let read = world.read(&mut slow, KIB).expect("there is more");
        assert_eq!(read.len(), KIB);
        world.advance(SECOND);
        seconds += 1;
    };
    assert_eq!((came, seconds), (b"hello".to_vec(), 11));
    let closed = packet::encode_close_response(1, "the node reads too slowly");
    let told = world.heard(&server).into_iter();
    assert_eq!(told.filter(|said| *said == closed).count(), 1);
    assert_eq!(*ended.borrow(), None);
}

#[test]
fn what_is_carried_is_waited_for() {
    // TUN-14
    let world = World::new();
    let (carrying, server) = world.open();
    let executor = &world.shared.base.executor;
    let mut old = ReplacedStream::spawn(Box::new(carrying), TunnelLine::default(), executor);
    server.dial(1, NODE);
    assert_eq!(
        world.heard(&server),
        [packet::encode_dial_response(1, Ok(1))]
    );
    let mut ended = pin!(old.wait_until_ended());
    let mut has_ended = || block_on(poll_once(ended.as_mut())).is_some();
    assert!(!has_ended());
    assert_eq!(world.heard(&server), [packet::encode_drain()]);
    world.stop();
    world.settle();
    assert!(!has_ended());
    server.say(ServerMessage::Close { id: 1 });
    assert_eq!(world.heard(&server), [packet::encode_close_response(1, "")]);
    assert!(has_ended());
}

#[test]
fn the_end_waits_for_a_stream_that_was_replaced() {
    // TUN-07 TUN-14
    let world = World::new();
    let first = world.offer("one", 1);
    world.shared.start_lines();
    first.dial(1, NODE);
    assert_eq!(
        world.heard(&first),
        [packet::encode_dial_response(1, Ok(1))]
    );
    let second = world.offer("one", 1);
    world.moves_to("192.0.2.8");
    world.advance(MINUTE);
    assert_eq!(world.heard(&first), [packet::encode_drain()]);
    assert_eq!(world.heard(&second), Vec::<Vec<u8>>::new());
    assert_eq!(world.up(), (2, 1));
    // The newer one carries nothing.
    world.stop();
    assert_eq!(world.heard(&second), [packet::encode_drain()]);
    assert_eq!(world.up(), (1, 1));
    first.say(ServerMessage::Close { id: 1 });
    assert_eq!(world.heard(&first), [packet::encode_close_response(1, "")]);
    assert_eq!(world.up(), (0, 0));
}

#[test]
fn a_line_that_is_not_wanted_any_more_carries_on() {
    // TUN-10 TUN-11
    let world = World::new();
    let _one = world.offer("one", 2);
    world.shared.start_lines();
    assert_eq!(world.up(), (1, 0b11));
    let two = world.offer("two", 2);
    world.advance(2 * SECOND);
    two.dial(1, NODE);
    assert_eq!(world.heard(&two), [packet::encode_dial_response(1, Ok(1))]);
    // The first line dials anew before the second one does, and hears that there is one server.
    let _next = world.offer("one", 1);
    world.moves_to("192.0.2.8");
    world.advance(MINUTE);
    assert_eq!(world.heard(&two), [packet::encode_drain()]);
    assert_eq!(world.up(), (2, 0b11));
    // There are two again.
    let again = world.offer("two", 2);
    world
        .shared
        .servers
        .borrow_mut()
        .record_stream(7, "seven", 2);
    world.shared.start_lines();
    again.dial(2, NODE);
    assert_eq!(
        world.heard(&again),
        [packet::encode_dial_response(2, Ok(2))]
    );
    assert_eq!(world.up(), (3, 0b11));
    two.say(ServerMessage::Close { id: 1 });
    assert_eq!(world.heard(&two), [packet::encode_close_response(1, "")]);
    assert_eq!(world.up(), (2, 0b11));
}

#[test]
fn a_line_that_is_not_wanted_any_more_ends_with_what_it_carries() {
    // TUN-10
    let world = World::new();
    let _one = world.offer("one", 2);
    world.shared.start_lines();
    world.settle();
    let two = world.offer("two", 2);
    world.advance(2 * SECOND);
    two.dial(1, NODE);
    world.settle();
    let _next = world.offer("one", 1);
    world.moves_to("192.0.2.8");
    world.advance(MINUTE);
    assert_eq!(world.up(), (2, 0b11));
    two.say(ServerMessage::Close { id: 1 });
    assert_eq!(world.up(), (1, 0b01));
}

#[test]
fn a_server_that_has_a_stream_says_how_many_there_are() {
    // TUN-10
    let world = World::new();
    let _servers = [world.offer("one", 2), world.offer("one", 3)];
    world.shared.start_lines();
    assert_eq!(world.up(), (1, 0b111));
}
