//! A double of the bus, of systemd and of logind. It has an encoder of its own.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use super::*;
use crate::{bus::logind::LogindPaths, cgroup::Slices, sys::lane::Lane};

/// Reaction of the double to a call of a method.
#[derive(Clone)]
pub(crate) enum Reply {
    /// Returns with a body of this signature.
    Return(&'static str, Vec<u8>),
    /// Returns with a descriptor beside it: the end of a pipe.
    Lock,
    /// Fails with this name and text.
    Fail(&'static str, &'static str),
    /// A job: signals of others, then its own with this result.
    Job(&'static str),
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// No answer, and the end of the connection.
    Close,
    /// No answer at all.
    Hang,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) member: String,
    /// The whole message.
    bytes: Vec<u8>,
}

impl Call {
    pub(crate) fn has(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        self.bytes.windows(bytes.len()).any(|part| part == bytes)
    }
}

type Script = Arc<Mutex<Box<dyn FnMut(&Call) -> Reply + Send>>>;

pub(crate) struct Double {
    pub(crate) path: PathBuf,
    calls: Arc<Mutex<Vec<Call>>>,
    /// The last connection.
    pub(crate) peer: Arc<Mutex<Option<UnixStream>>>,
    /// Locks that were given out: the other ends of their pipes.
    pub(crate) locks: mpsc::Receiver<io::PipeReader>,
}

/// A text as it is marshalled, at a place that is aligned to 4.
pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len())
        .expect("short")
        .to_le_bytes()
        .to_vec();
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}

pub(crate) fn pad(bytes: &mut Vec<u8>, to: usize) {
    while !bytes.len().is_multiple_of(to) {
        bytes.push(0);
    }
}

/// A message: its kind, the header fields as (code, signature, value), signature and body.
pub(crate) fn message(
    kind: u8,
    fields: &[(u8, &str, Vec<u8>)],
    signature: &str,
    body: &[u8],
) -> Vec<u8> {
    let mut all = Vec::new();
    let mut own = vec![u8::try_from(signature.len()).expect("short")];
    own.extend(signature.as_bytes());
    own.push(0);
    let own = [(8, "g", own)];
    for (code, kind, value) in fields.iter().chain(&own) {
        pad(&mut all, 8);
        all.extend([*code, 1, kind.as_bytes()[0], 0]);
        all.extend(value);
    }
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_le_bytes();
    let mut message = vec![b'l', kind, 1, 1];
    message.extend(length(body));
    message.extend(7_u32.to_le_bytes());
    message.extend(length(&all));
    message.extend(all);
    pad(&mut message, 8);
    message.extend(body);
    message
}

/// `sender`: empty without a bus.
pub(crate) fn signal(sender: &str, member: &str, signature: &str, body: &[u8]) -> Vec<u8> {
    let mut fields = vec![
        (1, "o", text("/org/freedesktop/systemd1")),
        (2, "s", text("org.freedesktop.systemd1.Manager")),
        (3, "s", text(member)),
    ];
    if !sender.is_empty() {
        fields.push((7, "s", text(sender)));
    }
    message(wire::SIGNAL, &fields, signature, body)
}

/// `JobRemoved`
fn job_removed(job: &str, result: &str) -> Vec<u8> {
    let mut body = 9_u32.to_le_bytes().to_vec();
    for part in [job, "kubepods.slice", result] {
        pad(&mut body, 4);
        body.extend(text(part));
    }
    signal("", "JobRemoved", "uoss", &body)
}

/// logind's unique name on the bus.
const OWNER: &str = ":1.3";

pub(crate) fn shutdown(begins: bool) -> Vec<u8> {
    let body = u32::from(begins).to_le_bytes();
    signal(OWNER, "PrepareForShutdown", "b", &body)
}

/// Reads a call, and how the client may be answered.
fn read_call(stream: &mut UnixStream) -> Option<(Call, u32)> {
    let mut bytes = vec![0; wire::FIXED];
    stream.read_exact(&mut bytes).ok()?;
    let fixed = core::array::from_fn(|n| bytes[n]);
    let (header, whole) = wire::read_message_lengths(&fixed).expect("a header");
    bytes.resize(whole, 0);
    stream.read_exact(&mut bytes[wire::FIXED..]).ok()?;
    let serial = u32::from_le_bytes(core::array::from_fn(|n| bytes[8 + n]));
    let member = BusMessage::parse_message(&bytes, header)
        .expect("a message")
        .member;
    Some((Call { member, bytes }, serial))
}

/// Plays the other side of one connection.
fn serve(
    mut stream: UnixStream,
    calls: &Mutex<Vec<Call>>,
    script: &Script,
    locks: &mpsc::Sender<io::PipeReader>,
) {
    let mut greeting = Vec::new();
    while !greeting.ends_with(b"BEGIN\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        greeting.push(byte[0]);
    }
    assert!(greeting.starts_with(b"\0AUTH EXTERNAL "));
    let _ = stream.write_all(b"OK 0123456789abcdef\r\nAGREE_UNIX_FD\r\n");
    while let Some((call, serial)) = read_call(&mut stream) {
        calls.lock().expect("calls").push(call.clone());
        let to = (5, "u", serial.to_le_bytes().to_vec());
        let reply = (script.lock().expect("script"))(&call);
        let sent = match reply {
            Reply::Return(signature, body) => {
                stream.write_all(&message(wire::RETURN, &[to], signature, &body))
            }
            Reply::Fail(name, said) => {
                let fields = [to, (4, "s", text(name))];
                stream.write_all(&message(wire::ERROR, &fields, "s", &text(said)))
            }
            Reply::Job(result) => {
                let mut all = job_removed("/job/8", "failed");
                all.extend(message(wire::RETURN, &[to], "o", &text("/job/9")));
                all.extend(signal(
                    "",
                    "UnitNew",
                    "so",
                    &[text("a.scope"), vec![0; 2], text("/u")].concat(),
                ));
                all.extend(job_removed("/job/9", result));
                stream.write_all(&all)
            }
            Reply::Lock => {
                let (reader, writer) = io::pipe().expect("pipe");
                let answer = message(
                    wire::RETURN,
                    &[to, (9, "u", vec![1, 0, 0, 0])],
                    "h",
                    &[0; 4],
                );
                let fds = [std::os::fd::AsRawFd::as_raw_fd(&writer)];
                let rights = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
                let parts = [io::IoSlice::new(&answer)];
                let fd = std::os::fd::AsRawFd::as_raw_fd(&stream);
                let flags = nix::sys::socket::MsgFlags::empty();
                nix::sys::socket::sendmsg::<()>(fd, &parts, &rights, flags, None).expect("send");
                let _ = locks.send(reader);
                Ok(())
            }
            Reply::Raw(bytes) => stream.write_all(&bytes),
            // A clone of it is kept.
            Reply::Close => stream.shutdown(std::net::Shutdown::Both),
            Reply::Hang => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
}

impl Double {
    pub(crate) fn new(script: impl FnMut(&Call) -> Reply + Send + 'static) -> Self {
        let path = crate::testing::unused_path("bus");
        let listener = UnixListener::bind(&path).expect("bind");
        let (send_lock, locks) = mpsc::channel();
        let double = Self {
            path,
            calls: Arc::default(),
            peer: Arc::default(),
            locks,
        };
        let (calls, peer) = (Arc::clone(&double.calls), Arc::clone(&double.peer));
        let script: Script = Arc::new(Mutex::new(Box::new(script)));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                *peer.lock().expect("peer") = stream.try_clone().ok();
                serve(stream, &calls, &script, &send_lock);
            }
        });
        double
    }

    pub(crate) fn slices(&self) -> Slices {
        Slices::at_socket(&self.path, Lane::without_thread())
    }

    pub(crate) fn members(&self) -> Vec<String> {
        let calls = self.calls.lock().expect("calls");
        calls.iter().map(|call| call.member.clone()).collect()
    }

    pub(crate) fn call(&self, member: &str) -> Call {
        let calls = self.calls.lock().expect("calls");
        let mut all = calls.iter().rev();
        all.find(|call| call.member == member)
            .cloned()
            .expect(member)
    }

    /// Sends a message to the client that is connected.
    pub(crate) fn tell(&self, bytes: &[u8]) {
        let peer = self.peer.lock().expect("peer");
        peer.as_ref()
            .expect("a peer")
            .write_all(bytes)
            .expect("tell");
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) fn logind(delay_us: u64) -> impl FnMut(&Call) -> Reply + Send + 'static {
    let mut delay = delay_us;
    move |call| match &*call.member {
        "Hello" => Reply::Return("s", text(":1.7")),
        "AddMatch" => Reply::Return("", Vec::new()),
        "Get" => {
            let mut body = vec![1, b't', 0];
            pad(&mut body, 8);
            body.extend(delay.to_le_bytes());
            Reply::Return("v", body)
        }
        // logind reads its configuration anew.
        "KillUnit" => {
            delay = 60_000_000;
            Reply::Return("", Vec::new())
        }
        "GetNameOwner" if call.has("org.freedesktop.login1") => Reply::Return("s", text(OWNER)),
        "Inhibit" => Reply::Lock,
        _ => Reply::Fail("org.freedesktop.DBus.Error.UnknownMethod", "unknown"),
    }
}

pub(crate) fn places(double: &Double) -> LogindPaths {
    LogindPaths {
        bus: double.path.clone(),
        drop_ins: double.path.with_extension("d"),
    }
}
