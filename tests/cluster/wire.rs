//! A bad link: packets between this network namespace and another pass through here, late, or not at all.
//!
//! What `tc netem` and a NAT do, where the kernel has no netem: two TUN devices, and between them a delay, chance, and a table
//! of connections that forgets those that were silent, without telling either side.

use core::ffi::c_short;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use picolet::api::MonoTime;
use picolet::sys::clock;

/// What happens to packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Each way.
    pub(crate) delay: Duration,
    /// The last of so many packets is lost, each way.
    pub(crate) lost_one_in: u64,
    /// A connection that was silent for so long is forgotten.
    pub(crate) forgets: Duration,
}

/// A namespace behind a bad link; it goes with this.
pub(crate) struct Wire {
    /// Its name.
    pub(crate) namespace: String,
    /// This side of the link.
    pub(crate) near: Ipv4Addr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    weather: Weather,
    end: AtomicBool,
    forgotten: AtomicU64,
    seen: Mutex<BTreeMap<(u16, u16), MonoTime>>,
}

const PACKET_BYTES: usize = 2048;
const IP_HEADER: usize = 20;
const TCP: u8 = 6;
const SYN: u8 = 2;
const POLL_MS: u16 = 10;
/// Packets that wait while this machine is busy: more than any connection has under way, so that only the weather loses some.
const QUEUE_PACKETS: &str = "10000";

impl Wire {
    /// The other side is `far`, one above `near`.
    pub(crate) fn lay(number: u8, weather: Weather) -> Self {
        let id = std::process::id();
        let (namespace, device) = (
            format!("picolet-w{id}n{number}"),
            format!("pw{id}n{number}"),
        );
        let (near, far) = (
            Ipv4Addr::new(10, 199, number, 1),
            Ipv4Addr::new(10, 199, number, 2),
        );
        ip(&["netns", "add", &namespace]);
        let here = tun(&device);
        let inside = namespace.clone();
        // Only a thread of its own may change its namespace.
        let there = std::thread::spawn(move || {
            let path = Path::new("/run/netns").join(inside);
            let namespace = File::open(path).expect("namespace");
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("setns");
            tun("eth0")
        });
        let there = there.join().expect("a device");
        ip(&["addr", "add", &format!("{near}/30"), "dev", &device]);
        let up = ["txqueuelen", QUEUE_PACKETS, "up"];
        ip(&[&["link", "set", &device], &up[..]].concat());
        let inside = |words: &[&str]| ip(&[&["-n", &namespace], words].concat());
        inside(&["addr", "add", &format!("{far}/30"), "dev", "eth0"]);
        inside(&[&["link", "set", "eth0"], &up[..]].concat());
        inside(&["link", "set", "lo", "up"]);
        inside(&["route", "add", "default", "via", &near.to_string()]);
        let shared = Arc::new(Shared {
            weather,
            end: AtomicBool::new(false),
            forgotten: AtomicU64::new(0),
            seen: Mutex::default(),
        });
        let (here, there) = (Arc::new(here), Arc::new(there));
        let threads = [(&here, &there, 7), (&there, &here, 11)].map(|(from, to, first)| {
            let (from, to, shared) = (Arc::clone(from), Arc::clone(to), Arc::clone(&shared));
            std::thread::spawn(move || shared.carry(&from, &to, first))
        });
        Self {
            namespace,
            near,
            shared,
            threads: threads.into(),
        }
    }

    /// Packets of connections that were forgotten.
    pub(crate) fn forgotten(&self) -> u64 {
        self.shared.forgotten.load(Ordering::Relaxed)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        ip(&["netns", "del", &self.namespace]);
    }
}

impl Shared {
    /// Carries packets one way, as if so many had come before.
    fn carry(&self, from: &File, to: &File, mut count: u64) {
        let mut late: VecDeque<(MonoTime, Vec<u8>)> = VecDeque::new();
        let mut packet = [0; PACKET_BYTES];
        while !self.end.load(Ordering::Relaxed) {
            let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut fds, PollTimeout::from(POLL_MS)).unwrap_or(0);
            let now = clock::mono_now();
            if ready > 0
                && let Ok(length) = { from }.read(&mut packet)
            {
                count += 1;
                let is_lost = count.is_multiple_of(self.weather.lost_one_in);
                if !is_lost && self.is_known(&packet[..length], now) {
                    late.push_back((now + self.weather.delay, packet[..length].to_vec()));
                }
            }
            while late.front().is_some_and(|(due, _)| *due <= now) {
                let (_, packet) = late.pop_front().expect("there");
                let _ = { to }.write(&packet);
            }
        }
    }

    /// Whether a NAT would let it pass.
    fn is_known(&self, packet: &[u8], now: MonoTime) -> bool {
        let (Some(&version), Some(&protocol)) = (packet.first(), packet.get(9)) else {
            return false;
        };
        if version >> 4 != 4 {
            return false;
        }
        let tcp = packet.get(usize::from(version & 15) * 4..).unwrap_or(&[]);
        if protocol != TCP || tcp.len() < IP_HEADER {
            return true;
        }
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let (a, b) = (port(0), port(2));
        let mut seen = self.seen.lock().expect("table");
        let last = seen.entry((a.min(b), a.max(b)));
        if tcp[13] & SYN != 0 {
            *last.or_insert(now) = now;
            return true;
        }
        match last {
            std::collections::btree_map::Entry::Occupied(mut at)
                if now - *at.get() < self.weather.forgets =>
            {
                at.insert(now);
                true
            }
            _ => {
                self.forgotten.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }
}

fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().expect("ip");
    assert!(status.success(), "ip {}", words.join(" "));
}

nix::ioctl_write_int!(set_tun, b'T', 202);

/// A TUN device of the thread's namespace, gone when closed.
fn tun(name: &str) -> File {
    /// `struct ifreq`, as far as TUNSETIFF reads it.
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: c_short,
        rest: [u8; 22],
    }
    /// IFF_TUN and IFF_NO_PI: bare IP packets.
    const FLAGS: c_short = 0x1001;
    let mut request = Request {
        name: [0; 16],
        flags: FLAGS,
        rest: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .expect("/dev/net/tun");
    let at = core::ptr::from_ref(&request) as u64;
    #[expect(unsafe_code, reason = "no crate at hand makes TUN devices")]
    // SAFETY: `request` has the layout and size of `struct ifreq`, of which the kernel reads a name that ends with zero.
    unsafe { set_tun(device.as_raw_fd(), at) }.expect("TUNSETIFF");
    device
}
