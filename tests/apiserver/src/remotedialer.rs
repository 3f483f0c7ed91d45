//! The server's side of remotedialer, as a k3s server has it: nodes open sessions, and what the apiserver asks of a node goes
//! through the oldest of its sessions. As strict as the real one, and about masks, lengths and unknown types stricter: a node
//! that is wrong there loses its session, and the test finds it in [`Sessions::wrong`].
//!
//! Source: remotedialer `session.go`, `session_serve.go`, `connection.go`, `wsconn.go`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

use crate::clock;
use crate::core::Core;
use crate::http::Head;
use crate::lock;
use crate::server::Wire;

/// A session ends so long after the last ping.
const PING_WAIT: Duration = Duration::from_secs(60);
/// How often a quiet session looks whether there is anything to send.
const TICK: Duration = Duration::from_millis(5);
/// Bytes of a connection in one message, as upstream copies them.
const PIECE: usize = 32 * 1024;
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const DATA: i64 = 1;
const CONNECT: i64 = 2;
const ERROR: i64 = 3;
const PAUSE: i64 = 6;
const RESUME: i64 = 7;
const SYNC: i64 = 8;

/// A session of a node.
struct Session {
    node: String,
    out: Mutex<VecDeque<Vec<u8>>>,
    connections: Mutex<BTreeMap<i64, TcpStream>>,
    paused: Mutex<BTreeSet<i64>>,
    /// Told when `paused` has fewer, and at the end.
    resumed: Condvar,
    next: AtomicI64,
    is_over: AtomicBool,
}

/// Sessions of all nodes, the oldest first.
#[derive(Default)]
pub(crate) struct Sessions {
    open: Mutex<Vec<Arc<Session>>>,
    wrong: Mutex<Vec<String>>,
}

impl Sessions {
    /// How many sessions a node has.
    pub(crate) fn count(&self, node: &str) -> usize {
        let open = lock(&self.open);
        open.iter().filter(|session| session.node == node).count()
    }

    /// What nodes have done that they must not.
    pub(crate) fn wrong(&self) -> Vec<String> {
        lock(&self.wrong).clone()
    }

    /// Connects to a target of a node, as `tcp/127.0.0.1:10250`. Without a session there is no other way.
    pub(crate) fn dial(&self, node: &str, target: &str) -> io::Result<TcpStream> {
        let open = lock(&self.open);
        let session = open.iter().find(|session| session.node == node);
        let session = session
            .map(Arc::clone)
            .ok_or_else(|| io::Error::other(format!("failed to find Session for client {node}")))?;
        drop(open);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let ours = TcpStream::connect(listener.local_addr()?)?;
        let (theirs, _) = listener.accept()?;
        let id = session.next.fetch_add(1, Ordering::Relaxed);
        lock(&session.connections).insert(id, theirs.try_clone()?);
        session.say(CONNECT, id, target.as_bytes());
        thread::spawn(move || session.send_all(id, theirs));
        Ok(ours)
    }
}

impl Session {
    fn say(&self, kind: i64, id: i64, payload: &[u8]) {
        let mut message = Vec::new();
        for value in [7, id, kind] {
            varint(&mut message, value);
        }
        if matches!(kind, DATA | CONNECT) {
            varint(&mut message, 15_000);
        }
        message.extend_from_slice(payload);
        lock(&self.out).push_back(frame(0x82, &message));
    }

    /// Sends what is written into a connection, until its end.
    fn send_all(&self, id: i64, mut from: TcpStream) {
        let mut part = vec![0; PIECE];
        while let Ok(count) = from.read(&mut part) {
            let is_held = |paused: &mut BTreeSet<i64>| {
                paused.contains(&id) && !self.is_over.load(Ordering::Relaxed)
            };
            let waited = self.resumed.wait_while(lock(&self.paused), is_held);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            if count == 0 || self.is_over.load(Ordering::Relaxed) {
                break;
            }
            self.say(DATA, id, &part[..count]);
        }
        if lock(&self.connections).remove(&id).is_some() {
            self.say(ERROR, id, b"EOF");
        }
    }

    /// Lets a connection send again.
    fn resume(&self, id: i64) {
        lock(&self.paused).remove(&id);
        self.resumed.notify_all();
    }

    fn close(&self, id: i64) {
        self.resume(id);
        if let Some(tcp) = lock(&self.connections).remove(&id) {
            let _ = tcp.shutdown(Shutdown::Both);
            // Upstream answers an end by another one.
            self.say(ERROR, id, b"EOF");
        }
    }

    /// Takes a message of the node; an error is the end of the session.
    fn take(&self, mut bytes: &[u8]) -> Result<(), String> {
        let mut number = || read_varint(&mut bytes).ok_or("a message without a head");
        let (_, id, kind) = (number()?, number()?, number()?);
        match kind {
            DATA => {
                number()?;
                let tcp = lock(&self.connections).get(&id).map(TcpStream::try_clone);
                match tcp {
                    Some(Ok(mut tcp)) => {
                        // Who asked may have gone.
                        let _ = tcp.write_all(bytes);
                    }
                    _ => self.say(ERROR, id, b"connection not found"),
                }
            }
            ERROR => {
                self.close(id);
            }
            PAUSE => _ = lock(&self.paused).insert(id),
            RESUME => self.resume(id),
            SYNC => {}
            CONNECT => return Err("a node dials".into()),
            other => return Err(format!("a message of type {other}")),
        }
        Ok(())
    }
}

/// Serves a session on the connection that asked for it. The connection ends with it.
pub(crate) fn serve(
    core: &Core,
    sessions: &Sessions,
    wire: &mut Wire,
    node: String,
    head: &Head,
) -> io::Result<()> {
    let key = head.header("sec-websocket-key");
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key.as_bytes());
    digest.update(GUID);
    let accept = STANDARD.encode(digest.finish());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    wire.send(answer.as_bytes())?;
    wire.set_read_timeout(TICK)?;
    let session = Arc::new(Session {
        node,
        out: Mutex::default(),
        connections: Mutex::default(),
        paused: Mutex::default(),
        resumed: Condvar::new(),
        next: AtomicI64::new(2),
        is_over: AtomicBool::new(false),
    });
    lock(&sessions.open).push(Arc::clone(&session));
    let ended = carry(core, &session, wire);
    {
        let _paused = lock(&session.paused);
        session.is_over.store(true, Ordering::Relaxed);
    }
    session.resumed.notify_all();
    lock(&sessions.open).retain(|open| !Arc::ptr_eq(open, &session));
    for tcp in lock(&session.connections).values() {
        let _ = tcp.shutdown(Shutdown::Both);
    }
    if let Err(why) = ended {
        lock(&sessions.wrong).push(why);
    }
    Ok(())
}

/// Carries until the session ends; an error is the node's.
fn carry(core: &Core, session: &Session, wire: &mut Wire) -> Result<(), String> {
    let (mut came, mut message): (Vec<u8>, Option<Vec<u8>>) = (Vec::new(), None);
    let mut heard = clock::instant();
    let mut part = vec![0; PIECE];
    while !core.stopped() {
        while let Some(next) = { lock(&session.out).pop_front() } {
            if wire.send(&next).is_err() {
                return Ok(());
            }
        }
        if heard.elapsed() > PING_WAIT {
            return Ok(());
        }
        match wire.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(count) => came.extend_from_slice(&part[..count]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return Ok(()),
        }
        while let Some((head, payload, length)) = read_frame(&came)? {
            came.drain(..length);
            match head {
                0x88 => return Ok(()),
                0x89 => {
                    heard = clock::instant();
                    lock(&session.out).push_back(frame(0x8a, &payload));
                }
                0x8a => heard = clock::instant(),
                0x02 | 0x82 if message.is_none() => message = Some(payload),
                0x00 | 0x80 if message.is_some() => {
                    message.get_or_insert_default().extend(payload);
                }
                other => return Err(format!("a frame {other:x}")),
            }
            if head & 0x8f == 0x82 || head == 0x80 {
                session.take(&message.take().unwrap_or_default())?;
            }
        }
    }
    Ok(())
}

/// The first frame, its payload unmasked, and its length; `None`: it is not whole.
fn read_frame(bytes: &[u8]) -> Result<Option<(u8, Vec<u8>, usize)>, String> {
    let [head, second, rest @ ..] = bytes else {
        return Ok(None);
    };
    if second & 0x80 == 0 {
        return Err("a frame without a mask".into());
    }
    let long = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    if rest.len() < long + 4 {
        return Ok(None);
    }
    let (field, rest) = rest.split_at(long);
    let number = field.iter().fold(0, |n, b| n << 8 | usize::from(*b));
    let length = if long == 0 {
        usize::from(second & 0x7f)
    } else {
        number
    };
    let (key, rest) = rest.split_at(4);
    if rest.len() < length {
        return Ok(None);
    }
    let payload = rest[..length].iter().zip(key.iter().cycle());
    let payload = payload.map(|(byte, key)| byte ^ key).collect();
    Ok(Some((*head, payload, 2 + long + 4 + length)))
}

fn frame(head: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![head];
    match u8::try_from(payload.len()) {
        Ok(short @ ..126) => out.push(short),
        _ => {
            out.push(126);
            let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
            out.extend(length.to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}

fn varint(out: &mut Vec<u8>, value: i64) {
    let mut left = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while left > 0x7f {
        out.push(u8::try_from(left & 0x7f).unwrap_or_default() | 0x80);
        left >>= 7;
    }
    out.push(u8::try_from(left).unwrap_or_default());
}

fn read_varint(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
        }
    }
    None
}
