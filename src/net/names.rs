//! Look-up of a host's addresses: `/etc/hosts`, then the name servers of `/etc/resolv.conf`.
//!
//! Not by the C library: a static program's calls that of another installation, if there is one, and none of them ends
//! in a time of our choosing. Nothing is remembered, no other program is asked: a program that resolves names in
//! another way (mDNS, LDAP) has to offer a name server, as systemd-resolved does.
//!
//! Source: resolv.conf(5), hosts(5).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::path::PathBuf;

use rustls::crypto::ring;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::dns::{self, DnsQuestionKind, DnsReply};
use super::meter::{self, ConnectionMeter};
use crate::api::MonoTime;
use crate::api::link::LinkClass;
use crate::api::order::OrderExt as _;
use crate::sys::clock;

/// Bytes read of either file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Name servers asked, and domains tried. The C library's own limits.
const MAX_SERVERS: usize = 3;
const MAX_DOMAINS: usize = 6;
/// Addresses kept of a name: as many as the transport takes.
const MAX_ADDRESSES: usize = 16;
/// Addresses from which the kept ones are chosen: as many as the answers for both kinds hold.
const MAX_FOUND: usize = 32;
/// Time for one server to answer, and rounds, unless the file says otherwise.
const ANSWER_TIME: Duration = Duration::from_secs(5);
const ROUNDS: u32 = 2;
/// Time for addresses of one kind once those of the other are here. Servers that know of IPv4 only are common.
const OTHER_KIND_TIME: Duration = Duration::from_millis(500);
/// Longest such time and most rounds that the file may ask for.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(30);
const MAX_ROUNDS: u32 = 5;
/// Largest answer without a connection, bytes.
const MAX_DATAGRAM: usize = 4096;

/// Finds addresses.
#[derive(Debug)]
pub(crate) struct NameResolver {
    hosts: PathBuf,
    resolv: PathBuf,
    /// Port of name servers.
    port: u16,
}

/// Settings in `/etc/resolv.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ResolverSettings {
    servers: Vec<SocketAddr>,
    domains: Vec<String>,
    /// Number of dots from which a name is first tried as it is.
    dots: usize,
    time: Duration,
    rounds: u32,
}

/// Reason why a look-up found no address.
#[derive(Debug)]
enum LookupError {
    /// The servers say so.
    NoSuchName,
    /// No server answers; the last one's error.
    NoAnswer(String),
}

impl LookupError {
    fn for_host(self, host: &str) -> UnresolvedHost {
        UnresolvedHost {
            host: host.into(),
            why: self,
        }
    }
}

/// Error of a host without an address.
#[derive(Debug)]
pub(crate) struct UnresolvedHost {
    host: String,
    why: LookupError,
}

impl fmt::Display for UnresolvedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        match &self.why {
            LookupError::NoSuchName => write!(f, "there is no address for the name {host}"),
            LookupError::NoAnswer(why) => write!(
                f,
                "cannot find the address of {host}: no name server answers ({why})"
            ),
        }
    }
}

impl core::error::Error for UnresolvedHost {}

impl NameResolver {
    /// Look-ups with this machine's configuration.
    pub(crate) fn system_default() -> Self {
        Self {
            hosts: "/etc/hosts".into(),
            resolv: "/etc/resolv.conf".into(),
            port: 53,
        }
    }

    /// The addresses of a host, best first. Blocks for `time` at the latest.
    pub(crate) fn resolve_host(
        &self,
        host: &str,
        time: Duration,
    ) -> Result<Vec<IpAddr>, UnresolvedHost> {
        let end = clock::mono_now() + time.min(MAX_ANSWER_TIME);
        self.lookup_addresses(host, end)
            .map_err(|why| why.for_host(host))
    }

    /// The addresses of a host, best first. Blocks until `end` at the latest.
    fn lookup_addresses(&self, host: &str, end: MonoTime) -> Result<Vec<IpAddr>, LookupError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse() {
            return Ok(vec![address]);
        }
        let name = bare.trim_end_matches('.').to_ascii_lowercase();
        let mut found = find_in_hosts(&read_text_file(&self.hosts), &name);
        if found.is_empty() && (name == "localhost" || name.ends_with(".localhost")) {
            found = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        }
        if found.is_empty() {
            let settings = parse_resolv_conf(&read_text_file(&self.resolv), self.port);
            found = ask_candidates(&settings, &name, bare.ends_with('.'), end)?;
        }
        Ok(pick_best_addresses(found, has_route))
    }
}

impl Resolver for NameResolver {
    fn resolve(
        &self,
        uri: &Uri,
        _: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let host = uri.host().unwrap_or("");
        let https = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let time = (*timeout.after).min(MAX_ANSWER_TIME);
        let found = self
            .lookup_addresses(host, clock::mono_now() + time)
            .map_err(|why| io::Error::other(why.for_host(host)))?;
        let mut addresses = self.empty();
        for ip in found {
            addresses.push(SocketAddr::new(ip, port));
        }
        Ok(addresses)
    }
}

/// The file's text as far as it is text; nothing if it cannot be read.
fn read_text_file(path: &PathBuf) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|f| f.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
    if let Err(e) = read
        && e.kind() != io::ErrorKind::NotFound
    {
        log::warn!("{}: {e}", path.display());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn find_in_hosts(text: &str, name: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or("").split_whitespace();
        if let Some(Ok(address)) = words.next().map(str::parse)
            && words.any(|word| word.trim_end_matches('.').eq_ignore_ascii_case(name))
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

fn parse_resolv_conf(text: &str, port: u16) -> ResolverSettings {
    let mut settings = ResolverSettings {
        servers: Vec::new(),
        domains: Vec::new(),
        dots: 1,
        time: ANSWER_TIME,
        rounds: ROUNDS,
    };
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or("");
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => {
                let server = words.next().and_then(|word| parse_server(word, port));
                settings
                    .servers
                    .extend(server.filter(|_| settings.servers.len() < MAX_SERVERS));
            }
            // The last line counts.
            Some("search" | "domain") => {
                settings.domains = words
                    .map(|word| word.trim_end_matches('.').to_ascii_lowercase())
                    .filter(|word| !word.is_empty())
                    .take(MAX_DOMAINS)
                    .collect();
            }
            Some("options") => {
                for word in words {
                    let Some((name, Ok(value))) =
                        word.split_once(':').map(|(n, v)| (n, v.parse::<u32>()))
                    else {
                        continue;
                    };
                    match name {
                        "ndots" => settings.dots = usize::try_from(value.min(15)).unwrap_or(1),
                        "timeout" => {
                            settings.time =
                                Duration::from_secs(value.max(1).into()).min(MAX_ANSWER_TIME);
                        }
                        "attempts" => settings.rounds = value.clamp(1, MAX_ROUNDS),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if settings.servers.is_empty() {
        settings.servers.push((Ipv4Addr::LOCALHOST, port).into());
    }
    settings
}

/// A server's address; `fe80::1%eth0` has an interface.
fn parse_server(text: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, port));
    }
    let (ip, interface) = text.split_once('%')?;
    let scope = nix::net::if_::if_nametoindex(interface).ok()?;
    Some(SocketAddrV6::new(ip.parse().ok()?, port, 0, scope).into())
}

/// The names that `name` may be short for, in the order in which they are asked for.
fn candidate_names(settings: &ResolverSettings, name: &str, whole: bool) -> Vec<String> {
    let dots = name.bytes().filter(|b| *b == b'.').count();
    let mut names: Vec<String> = Vec::new();
    if !whole {
        names.extend(
            settings
                .domains
                .iter()
                .map(|domain| format!("{name}.{domain}")),
        );
    }
    let at = if dots >= settings.dots {
        0
    } else {
        names.len()
    };
    names.insert(at, name.to_owned());
    names
}

fn ask_candidates(
    settings: &ResolverSettings,
    name: &str,
    whole: bool,
    end: MonoTime,
) -> Result<Vec<IpAddr>, LookupError> {
    let mut silent = None;
    for candidate in candidate_names(settings, name, whole) {
        match ask_servers(settings, &candidate, end) {
            Ok(found) if found.is_empty() => {}
            Ok(found) => return Ok(found),
            Err(why) => silent = Some(why),
        }
    }
    // Of a name that no server could speak of it is not known whether it is there.
    Err(silent.unwrap_or(LookupError::NoSuchName))
}

/// Asks the servers, one after the other, until one can tell. Errors: that of the last one.
fn ask_servers(
    settings: &ResolverSettings,
    name: &str,
    end: MonoTime,
) -> Result<Vec<IpAddr>, LookupError> {
    let mut why = LookupError::NoAnswer("no name server is configured".into());
    for _ in 0..settings.rounds {
        for server in &settings.servers {
            let until = end.min(clock::mono_now() + settings.time);
            match ask_server(*server, name, until) {
                Ok(found) => return Ok(found),
                Err(e) => why = LookupError::NoAnswer(format!("{}: {e}", server.ip())),
            }
            if clock::mono_now() >= end {
                return Err(why);
            }
        }
    }
    Err(why)
}

/// Asks one server for both kinds of addresses at once.
fn ask_server(server: SocketAddr, name: &str, until: MonoTime) -> io::Result<Vec<IpAddr>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    let mut open = Vec::new();
    for kind in [DnsQuestionKind::V6, DnsQuestionKind::V4] {
        let id = random_id()?;
        let Some(question) = dns::build_question(id, name, kind) else {
            return Ok(Vec::new());
        };
        let sent = socket.send(&question)?;
        meter::count_datagram(server, LinkClass::Api, [0, sent]);
        open.push((id, kind, question));
    }
    let mut found = Vec::new();
    let mut failed = None;
    let mut until = until;
    let mut message = [0; MAX_DATAGRAM];
    while !open.is_empty() {
        let received = remaining_time(until)
            .and_then(|time| socket.set_read_timeout(Some(time)))
            .and_then(|()| socket.recv(&mut message));
        let length = match received {
            Ok(length) => length,
            Err(e) => {
                failed = Some(describe_error(e));
                break;
            }
        };
        meter::count_datagram(server, LinkClass::Api, [length, 0]);
        // A forger that guesses a question right has to guess its number too.
        let mut n = 0;
        while n < open.len() {
            let (id, kind, question) = &open[n];
            let reply = match dns::parse_answer(*id, name, *kind, &message[..length]) {
                DnsReply::Cut => ask_server_over_tcp(server, name, (*id, *kind, question), until),
                reply => Ok(reply),
            };
            match reply {
                Ok(DnsReply::Other | DnsReply::Cut) => {
                    n += 1;
                    continue;
                }
                Ok(DnsReply::Failed) => failed = Some(io::Error::other("it cannot answer")),
                Err(e) => failed = Some(e),
                Ok(DnsReply::Addresses(addresses)) => found.extend(addresses),
            }
            open.remove(n);
        }
        if !found.is_empty() {
            until = until.min(clock::mono_now() + OTHER_KIND_TIME);
        }
    }
    match failed {
        // A failure for one kind does not lose the addresses of the other.
        Some(e) if found.is_empty() => Err(e),
        _ => Ok(found),
    }
}

/// Asks over TCP, after an answer that did not fit into a datagram.
fn ask_server_over_tcp(
    server: SocketAddr,
    name: &str,
    (id, kind, question): (u16, DnsQuestionKind, &[u8]),
    until: MonoTime,
) -> io::Result<DnsReply> {
    let mut stream = TcpStream::connect_timeout(&server, remaining_time(until)?)?;
    stream.set_write_timeout(Some(remaining_time(until)?))?;
    stream.set_read_timeout(Some(remaining_time(until)?))?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), question].concat())?;
    let mut head = [0; 2];
    stream.read_exact(&mut head).map_err(describe_error)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(head))];
    stream.set_read_timeout(Some(remaining_time(until)?))?;
    stream.read_exact(&mut message).map_err(describe_error)?;
    ConnectionMeter::new(&stream).count_last_bytes(&stream, LinkClass::Api);
    match dns::parse_answer(id, name, kind, &message) {
        DnsReply::Other | DnsReply::Cut => Err(io::Error::other("its answer is not valid")),
        reply => Ok(reply),
    }
}

/// Time until then. Errors: it is over.
fn remaining_time(until: MonoTime) -> io::Result<Duration> {
    match until.since_ms(clock::mono_now()) {
        0 => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "it does not answer",
        )),
        ms => Ok(Duration::from_millis(ms)),
    }
}

fn describe_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "it does not answer"),
        _ => error,
    }
}

fn random_id() -> io::Result<u16> {
    let mut bytes = [0; 2];
    ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("no random numbers"))?;
    Ok(u16::from_be_bytes(bytes))
}

/// Picks the addresses to keep: first those with a route, of these IPv6 first. A name may have more addresses of the
/// kind without a route than are kept in all.
fn pick_best_addresses(found: Vec<IpAddr>, has_route: impl Fn(IpAddr) -> bool) -> Vec<IpAddr> {
    let found = found.into_iter().take(MAX_FOUND);
    let (mut best, mut rest): (Vec<_>, Vec<_>) = found.partition(|ip| has_route(*ip));
    best.stable_sort_by_key(IpAddr::is_ipv4);
    rest.stable_sort_by_key(IpAddr::is_ipv4);
    best.extend(rest);
    best.truncate(MAX_ADDRESSES);
    best
}

/// Returns true if this machine has a route to an address. No packet is sent.
fn has_route(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect((ip, 53)).is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::thread;

    use super::super::dns::tests::{reply, wire};
    use super::*;
    use crate::testing::TestDir;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|t| t.parse().expect("address")).collect()
    }

    fn soon() -> MonoTime {
        clock::mono_now() + Duration::from_secs(20)
    }

    #[test]
    fn hosts() {
        let text = "127.0.0.1 localhost\n# 10.0.0.9 a\n10.0.0.1\tA.example a # b\n::1 a\nx a\n10.0.0.2 a\n10.0.0.2 a";
        for (name, want) in [
            ("a", &["10.0.0.1", "::1", "10.0.0.2"][..]),
            ("a.example", &["10.0.0.1"]),
            ("b", &[]),
            ("x", &[]),
        ] {
            assert_eq!(find_in_hosts(text, name), ips(want), "{name}");
        }
    }

    #[test]
    fn resolv_conf() {
        let found = parse_resolv_conf(
            "nameserver 10.0.0.1 # first\nnameserver ::1\nnameserver x\nsearch lost\n\
             search A.example. b\noptions ndots:5 timeout:0 attempts:9 rotate\n\
             nameserver 10.0.0.3\nnameserver 10.0.0.4",
            53,
        );
        assert_eq!(
            found,
            ResolverSettings {
                servers: ips(&["10.0.0.1", "::1", "10.0.0.3"])
                    .into_iter()
                    .map(|ip| (ip, 53).into())
                    .collect(),
                domains: vec!["a.example".into(), "b".into()],
                dots: 5,
                time: Duration::from_secs(1),
                rounds: MAX_ROUNDS,
            }
        );
        let none = parse_resolv_conf("", 53);
        assert_eq!(none.servers, [(Ipv4Addr::LOCALHOST, 53).into()]);
        assert_eq!(
            (none.dots, none.time, none.rounds),
            (1, ANSWER_TIME, ROUNDS)
        );
        assert!(
            parse_server("fe80::1%lo", 53).is_some() && parse_server("fe80::1%nope", 53).is_none()
        );
    }

    #[test]
    fn which_names_are_tried() {
        let settings = parse_resolv_conf("search a.example b\noptions ndots:2", 53);
        for (name, whole, want) in [
            ("r", false, &["r.a.example", "r.b", "r"][..]),
            ("r", true, &["r"]),
            ("r.s", false, &["r.s.a.example", "r.s.b", "r.s"]),
            ("r.s.t", false, &["r.s.t", "r.s.t.a.example", "r.s.t.b"]),
        ] {
            assert_eq!(candidate_names(&settings, name, whole), want, "{name}");
        }
    }

    /// A name server on loopback: `answer` gets name and kind and returns flags and records.
    fn serve(
        answer: impl Fn(&str, bool) -> (u16, Vec<(String, u16, Vec<u8>)>) + Send + 'static,
    ) -> u16 {
        // The same port both ways.
        let (socket, listener) = loop {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
            let port = socket.local_addr().expect("address").port();
            if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
                break (socket, listener);
            }
        };
        let port = socket.local_addr().expect("address").port();
        let make = move |question: &[u8], stream: bool| {
            let mut name = String::new();
            let mut at = 12;
            while question[at] > 0 {
                let label = &question[at + 1..=at + usize::from(question[at])];
                name.push_str(core::str::from_utf8(label).expect("text"));
                name.push('.');
                at += 1 + label.len();
            }
            let six = question[at + 2] == 28;
            let (flags, records) = answer(name.trim_end_matches('.'), six);
            let records: Vec<(&str, u16, &[u8])> = records
                .iter()
                .map(|(o, k, d)| (o.as_str(), *k, d.as_slice()))
                .collect();
            if flags == 0x200 && stream {
                reply(question, 0, &records)
            } else if flags == 0x200 {
                reply(question, flags, &[])
            } else {
                reply(question, flags, &records)
            }
        };
        thread::spawn(move || {
            let mut message = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut message) {
                let answered = make(&message[..length], false);
                // Stray and forged ones come first: they count for nothing.
                let mut forged = answered.clone();
                forged[0] ^= 0x55;
                for datagram in [&b"?"[..], &forged, &answered] {
                    socket.send_to(datagram, from).expect("sent");
                }
                if answered[2] & 2 != 0 {
                    let (mut stream, _) = listener.accept().expect("connection");
                    let mut head = [0; 2];
                    stream.read_exact(&mut head).expect("length");
                    let mut question = vec![0; usize::from(u16::from_be_bytes(head))];
                    stream.read_exact(&mut question).expect("question");
                    let whole = make(&question, true);
                    let length = u16::try_from(whole.len()).expect("short").to_be_bytes();
                    stream
                        .write_all(&[&length, &whole[..]].concat())
                        .expect("sent");
                }
            }
        });
        port
    }

    fn names(scratch: &TestDir, resolv: &str, port: u16) -> NameResolver {
        fs::write(scratch.join("hosts"), "10.9.9.9 listed.example\n").expect("hosts");
        fs::write(scratch.join("resolv.conf"), resolv).expect("resolv.conf");
        NameResolver {
            hosts: scratch.join("hosts"),
            resolv: scratch.join("resolv.conf"),
            port,
        }
    }

    #[test]
    fn asked_of_a_server() {
        let port = serve(|name, six| {
            let a = |d: [u8; 4]| (String::new(), 1, d.to_vec());
            match (name, six) {
                ("both.example", true) => (
                    0,
                    vec![(String::new(), 28, {
                        let mut loopback = vec![0; 16];
                        loopback[15] = 1;
                        loopback
                    })],
                ),
                ("both.example" | "short.lan", false) => (0, vec![a([127, 0, 0, 1])]),
                ("alias.example", false) => (
                    0,
                    vec![
                        (String::new(), 5, wire("target.example")),
                        ("target.example".into(), 1, vec![127, 0, 0, 7]),
                    ],
                ),
                ("large.example", false) => (0x200, (1..=40).map(|n| a([127, 0, 0, n])).collect()),
                ("broken.example", _) | ("four.example" | "six.example", true) => (2, Vec::new()),
                ("four.example", false) => (0, vec![a([127, 0, 0, 4])]),
                ("six.example", false) => (0, Vec::new()),
                ("alias.example" | "large.example", true) => (0, Vec::new()),
                _ => (3, Vec::new()),
            }
        });
        let scratch = TestDir::new("names");
        let names = names(
            &scratch,
            "nameserver 127.0.0.1\nsearch lan\noptions timeout:5 attempts:1\n",
            port,
        );
        for (host, want) in [
            ("short", &["127.0.0.1"][..]),
            ("alias.example", &["127.0.0.7"]),
            ("alias.example.", &["127.0.0.7"]),
            ("listed.example", &["10.9.9.9"]),
            ("10.1.1.1", &["10.1.1.1"]),
            ("[::1]", &["::1"]),
        ] {
            assert_eq!(
                names.lookup_addresses(host, soon()).expect(host),
                ips(want),
                "{host}"
            );
        }
        // A server that fails for one kind has answered the other; with no address from either it is not known.
        let four = names
            .lookup_addresses("four.example", soon())
            .expect("four");
        assert_eq!(four, ips(&["127.0.0.4"]));
        assert!(matches!(
            names.lookup_addresses("six.example", soon()),
            Err(LookupError::NoAnswer(_))
        ));
        let both = names
            .lookup_addresses("both.example", soon())
            .expect("both");
        assert!(both.contains(&Ipv4Addr::LOCALHOST.into()), "{both:?}");
        assert!(both.contains(&Ipv6Addr::LOCALHOST.into()), "{both:?}");
        if has_route(Ipv6Addr::LOCALHOST.into()) {
            assert!(both[0].is_ipv6(), "{both:?}");
        }
        let large = names
            .lookup_addresses("large.example", soon())
            .expect("large");
        assert_eq!(large.len(), MAX_ADDRESSES);
        assert!(
            names
                .lookup_addresses("localhost", soon())
                .expect("localhost")
                .contains(&Ipv4Addr::LOCALHOST.into())
        );
        assert!(matches!(
            names.lookup_addresses("gone.example", soon()),
            Err(LookupError::NoSuchName)
        ));
        assert!(matches!(
            names.lookup_addresses("", soon()),
            Err(LookupError::NoSuchName)
        ));
        assert!(
            matches!(names.lookup_addresses("broken.example", soon()), Err(LookupError::NoAnswer(why)) if why.contains("cannot answer"))
        );
    }

    #[test]
    fn addresses_that_lead_somewhere_are_kept() {
        let six = (0..16).map(|n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n).into());
        let four = (0..3).map(|n| Ipv4Addr::new(192, 0, 2, n).into());
        let found: Vec<IpAddr> = six.chain(four).collect();
        let kept = pick_best_addresses(found.clone(), |ip| ip.is_ipv4());
        assert_eq!(kept[..3], found[16..]);
        assert_eq!(kept[3..], found[..13]);
        assert_eq!(pick_best_addresses(found.clone(), |_| true), found[..16]);
        let mut turned = found.clone();
        turned.rotate_left(16);
        assert_eq!(pick_best_addresses(turned, |_| true), found[..16]);
    }

    #[test]
    fn of_one_kind_alone_nobody_waits_for_the_other() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let port = socket.local_addr().expect("address").port();
        thread::spawn(move || {
            let mut message = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut message) {
                let question = &message[..length];
                let four = question[length - 3] == 1;
                if four {
                    let answer = reply(question, 0, &[("", 1, &[127, 0, 0, 5])]);
                    socket.send_to(&answer, from).expect("sent");
                }
            }
        });
        let scratch = TestDir::new("names");
        let names = names(
            &scratch,
            "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n",
            port,
        );
        let before = clock::mono_now();
        let found = names.lookup_addresses("r.example", before + Duration::from_secs(60));
        assert_eq!(found.expect("found"), ips(&["127.0.0.5"]));
        assert!(clock::mono_now() - before < Duration::from_secs(15));
    }

    #[test]
    fn the_next_server_is_asked_when_one_is_silent() {
        let port = serve(|_, six| match six {
            true => (0, Vec::new()),
            false => (0, vec![(String::new(), 1, vec![127, 0, 0, 3])]),
        });
        // Bound, so that the kernel does not refuse, and never read.
        let silent = UdpSocket::bind(("127.0.0.9", port)).expect("loopback");
        let scratch = TestDir::new("names");
        let names = names(
            &scratch,
            "nameserver 127.0.0.9\nnameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
            port,
        );
        let found = names.lookup_addresses("r.example", soon()).expect("found");
        assert_eq!(found, ips(&["127.0.0.3"]));
        // Alone it is silent for as long as it is given.
        fs::write(scratch.join("resolv.conf"), "nameserver 127.0.0.9\n").expect("resolv.conf");
        let before = clock::mono_now();
        let end = before + Duration::from_millis(200);
        let error = names
            .lookup_addresses("r.example", end)
            .expect_err("silent");
        assert!(
            matches!(&error, LookupError::NoAnswer(why) if why.contains("does not answer")),
            "{error:?}"
        );
        assert!(clock::mono_now() - before >= Duration::from_millis(150));
        drop(silent);
        let end = clock::mono_now() + Duration::from_millis(200);
        let error = names
            .lookup_addresses("r.example", end)
            .expect_err("refused");
        assert!(matches!(error, LookupError::NoAnswer(_)), "{error:?}");
    }
}
