//! A proxy in front of a registry that cuts, delays, truncates, spoils and refuses, as it is told.

use core::time::Duration;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use picolet::api::MonoTime;
use picolet::sys::clock;

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// The connection ends behind so many bytes of the answer, its head included.
    Cut(u64),
    /// The answer has only so many bytes of its body, and says that this is all.
    Truncate(u64),
    /// One bit of the byte at this place of the body is turned.
    Spoil(u64),
    /// An answer of the proxy's own, to be asked again at once.
    Status(u16),
    /// 429, to be asked again after so many seconds.
    Busy(u64),
    /// So many bytes of the answer come, then nothing, and the connection stays.
    Stall(u64),
    /// The answer comes late.
    Delay(Duration),
}

/// A request, as a fault is chosen by it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// First byte of the range wanted.
    pub(crate) from: u64,
    /// When it came.
    pub(crate) at: MonoTime,
}

/// The proxy; it ends with the process.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    /// Bytes of bodies that were passed on.
    pub(crate) bytes: Arc<AtomicU64>,
    /// Faults that happened.
    pub(crate) faults: Arc<AtomicU64>,
    /// Requests that came.
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Proxy {
    pub(crate) fn start(
        registry: SocketAddr,
        choose: impl Fn(&Asked) -> Fault + Send + Sync + 'static,
    ) -> Self {
        Self::start_at("127.0.0.1:0", registry, choose)
    }

    /// At an address of this machine, port 0 for any.
    pub(crate) fn start_at(
        at: &str,
        registry: SocketAddr,
        choose: impl Fn(&Asked) -> Fault + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(at).expect("loopback");
        let proxy = Self {
            address: listener.local_addr().expect("address"),
            bytes: Arc::default(),
            faults: Arc::default(),
            asked: Arc::default(),
        };
        let (bytes, faults) = (Arc::clone(&proxy.bytes), Arc::clone(&proxy.faults));
        let asked = Arc::clone(&proxy.asked);
        let choose = Arc::new(move |request: Asked| {
            let fault = choose(&request);
            asked.lock().expect("asked").push(request);
            if fault != Fault::None {
                faults.fetch_add(1, Ordering::SeqCst);
            }
            fault
        });
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (bytes, choose) = (bytes.clone(), choose.clone());
                // A client that leaves is no error of the proxy.
                thread::spawn(move || drop(pass(client, registry, &*choose, &bytes)));
            }
        });
        proxy
    }

    /// Requests for this blob or manifest, in order.
    pub(crate) fn asked(&self, name: &str) -> Vec<Asked> {
        let asked = self.asked.lock().expect("asked");
        asked
            .iter()
            .filter(|a| a.path.contains(name))
            .cloned()
            .collect()
    }
}

fn pass(
    mut client: TcpStream,
    registry: SocketAddr,
    choose: &dyn Fn(Asked) -> Fault,
    bytes: &AtomicU64,
) -> std::io::Result<()> {
    let mut input = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line.trim_end().is_empty() {
            break;
        }
        if !line.to_ascii_lowercase().starts_with("connection:") {
            head.push_str(&line);
        }
    }
    let lower = head.to_ascii_lowercase();
    let range = lower.lines().find_map(|l| l.strip_prefix("range: bytes="));
    let fault = choose(Asked {
        path: head.split(' ').nth(1).unwrap_or("").to_owned(),
        from: range.map_or(0, |r| r.trim_end_matches('-').parse().expect("a range")),
        at: clock::mono_now(),
    });
    let mut refuse = |status: u16, again: u64| {
        write!(
            client,
            "HTTP/1.1 {status} X\r\nContent-Length: 2\r\nRetry-After: {again}\r\nConnection: close\r\n\r\n{{}}"
        )
    };
    match fault {
        Fault::Status(status) => return refuse(status, 0),
        Fault::Busy(again) => return refuse(429, again),
        Fault::Delay(time) => {
            let (_hold, wait) = std::sync::mpsc::channel::<()>();
            let _ = wait.recv_timeout(time);
        }
        Fault::None | Fault::Cut(_) | Fault::Stall(_) | Fault::Truncate(_) | Fault::Spoil(_) => {}
    }
    let mut upstream = TcpStream::connect(registry)?;
    write!(upstream, "{head}Connection: close\r\n\r\n")?;
    let mut answer = BufReader::new(upstream);
    let mut answer_head = Vec::new();
    loop {
        let before = answer_head.len();
        if answer.read_until(b'\n', &mut answer_head)? == 0 || &answer_head[before..] == b"\r\n" {
            break;
        }
    }
    let mut left = match fault {
        Fault::Cut(at) | Fault::Stall(at) => at,
        _ => u64::MAX,
    };
    if let Fault::Truncate(at) = fault {
        let text = String::from_utf8(answer_head).expect("a head is text");
        let lines = text.split_inclusive("\r\n");
        let told = |line: &str| match line.to_ascii_lowercase().starts_with("content-length:") {
            true => format!("Content-Length: {at}\r\n"),
            false => line.to_owned(),
        };
        client.write_all(lines.map(told).collect::<String>().as_bytes())?;
        left = at;
    } else {
        let n = left.min(answer_head.len() as u64);
        client.write_all(&answer_head[..usize::try_from(n).expect("small")])?;
        left -= n;
    }
    let (mut place, mut buffer) = (0_u64, vec![0; 16 * 1024]);
    while left > 0 {
        let most = usize::try_from(left.min(buffer.len() as u64)).expect("small");
        let n = answer.read(&mut buffer[..most])?;
        if n == 0 {
            break;
        }
        if let Fault::Spoil(at) = fault
            && let Some(at) = at.checked_sub(place).filter(|at| *at < n as u64)
        {
            buffer[usize::try_from(at).expect("small")] ^= 0x10;
        }
        client.write_all(&buffer[..n])?;
        bytes.fetch_add(n as u64, Ordering::SeqCst);
        place += n as u64;
        left -= n as u64;
    }
    if matches!(fault, Fault::Stall(_)) {
        // Until the client leaves.
        let _ = input.read(&mut [0])?;
    }
    Ok(())
}

/// A proxy as `HTTPS_PROXY` names them: it tunnels to `target`, whatever it is asked for, and remembers that.
pub(crate) struct Tunnel {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Tunnel {
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let tunnel = Self {
            address: listener.local_addr().expect("address"),
            heads: Arc::default(),
        };
        let heads = Arc::clone(&tunnel.heads);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let heads = Arc::clone(&heads);
                // Ends of either side are no errors of the proxy.
                thread::spawn(move || drop(through(&client, target, &heads)));
            }
        });
        tunnel
    }

    /// The heads of all requests.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("heads").clone()
    }
}

fn through(
    client: &TcpStream,
    target: SocketAddr,
    heads: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut input = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if input.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    heads.lock().expect("heads").push(head.clone());
    let mut client = client.try_clone()?;
    if !head.starts_with("CONNECT ") {
        return client.write_all(b"HTTP/1.1 405 X\r\nContent-Length: 0\r\n\r\n");
    }
    let server = TcpStream::connect(target)?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let mut to_server = server.try_clone()?;
    thread::spawn(move || {
        let _ = std::io::copy(&mut input, &mut to_server);
        let _ = to_server.shutdown(std::net::Shutdown::Write);
    });
    let mut server = server;
    std::io::copy(&mut server, &mut client).map(drop)
}
