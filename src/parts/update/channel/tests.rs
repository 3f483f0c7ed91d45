use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::{fs, io};

use super::*;
use crate::net::{ProxyVariables, Url};
use crate::source::WHOLE_TIMEOUT;
use crate::testing::TestDir;

/// A server's way with a request of the tarball.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Ranges, and so many bytes an answer.
    Parts(usize),
    /// No ranges, and so many bytes an answer.
    Whole(usize),
    /// Ranges that begin somewhere else.
    Elsewhere,
    /// A status.
    Status(u16),
}

/// A server of a channel; the ranges that were asked for.
struct Site {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

const TARBALL: &[u8] = b"0123456789abcdefghij";

impl Site {
    fn new(way: Way) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listener");
        let url = format!(
            "http://{}/c/stable.json?k=1",
            listener.local_addr().expect("address")
        );
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let shared = Arc::clone(&asked);
        // Ends with the process of the tests.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(&stream, way, &shared);
            }
        });
        Self { url, asked }
    }

    fn channel(&self) -> ReleaseChannel {
        ReleaseChannel::at_url(DocumentLocation {
            url: Url::parse(&self.url).expect("url"),
            headers: Vec::new(),
            ca: None,
            proxies: ProxyVariables::default(),
            time: WHOLE_TIMEOUT,
        })
    }

    fn asked(&self) -> Vec<String> {
        core::mem::take(&mut self.asked.lock().expect("lock"))
    }
}

fn answer(mut stream: &TcpStream, way: Way, asked: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut from = 0;
    while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
        if let Some(range) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().expect("a range");
        }
    }
    let path = first.split(' ').nth(1).unwrap_or("");
    let (head, body): (String, &[u8]) = match path {
        "/c/stable.json?k=1" => ("200 x".into(), b"offer"),
        "/c/stable.json.sig?k=1" => ("200 x".into(), b"signature"),
        "/c/r/t.tar.gz" => {
            asked.lock().expect("lock").push(format!("{from}"));
            let end = |start: usize, most: usize| (start + most).min(TARBALL.len());
            match way {
                Way::Parts(_) if from == 0 => ("200 x".into(), TARBALL),
                Way::Parts(_) => (
                    format!("206 x\r\ncontent-range: bytes {from}-19/20"),
                    &TARBALL[from..],
                ),
                Way::Whole(_) => ("200 x".into(), TARBALL),
                Way::Elsewhere if from > 0 => (
                    "206 x\r\ncontent-range: bytes 1-19/20".into(),
                    &TARBALL[1..],
                ),
                Way::Elsewhere => ("200 x".into(), &TARBALL[..end(0, 20)]),
                Way::Status(status) => (format!("{status} x"), b""),
            }
        }
        _ => ("404 x".into(), b""),
    };
    let sent = match way {
        Way::Parts(most) | Way::Whole(most) => &body[..body.len().min(most.max(9))],
        Way::Elsewhere | Way::Status(_) => body,
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    )?;
    stream.write_all(sent)
}

#[test]
fn a_release_is_fetched_where_it_stopped() {
    // UPD-02
    let dir = TestDir::new("channel-http");
    let part = dir.0.join("part");
    for (name, way, there, asked) in [
        ("at once", Way::Parts(20), &b""[..], &["0"][..]),
        ("in parts", Way::Parts(9), b"", &["0", "9", "18"]),
        (
            "from where it stopped",
            Way::Parts(20),
            &TARBALL[..7],
            &["7"],
        ),
        ("all is there", Way::Parts(20), TARBALL, &[]),
        ("of something else", Way::Parts(20), &[b'x'; 21], &["0"]),
        ("without ranges", Way::Whole(20), &TARBALL[..7], &["7"]),
        ("another range", Way::Elsewhere, &TARBALL[..7], &["7"]),
    ] {
        let site = Site::new(way);
        fs::write(&part, there).expect("written");
        let mut found = site.channel().fetch_tarball("r/t.tar.gz", (20, ""), &part);
        if matches!(way, Way::Elsewhere) {
            // It begins anew at the next look.
            assert!(
                matches!(found, Err(ChannelError::Short(_, 0, 20))),
                "{found:?}"
            );
            assert_eq!(site.asked(), asked, "{name}");
            found = site.channel().fetch_tarball("r/t.tar.gz", (20, ""), &part);
        } else {
            assert_eq!(site.asked(), asked, "{name}");
        }
        let at_once = ["at once", "of something else", "another range"].contains(&name);
        assert_eq!(found.expect(name), !at_once, "{name}");
        assert_eq!(fs::read(&part).expect("read"), TARBALL, "{name}");
    }
    // The bytes that came stay for the next look.
    fs::write(&part, b"").expect("written");
    let short = Site::new(Way::Whole(9))
        .channel()
        .fetch_tarball("r/t.tar.gz", (20, ""), &part);
    let short = short.expect_err("ends early");
    assert!(short.may_succeed_later(), "{short}");
    assert_eq!(fs::read(&part).expect("read"), &TARBALL[..9]);
    let gone = Site::new(Way::Status(404)).channel();
    let gone = { gone }
        .fetch_tarball("r/t.tar.gz", (20, ""), &part)
        .expect_err("gone");
    assert!(
        gone.to_string().ends_with("answers with status 404"),
        "{gone}"
    );
    let nowhere = Site::new(Way::Parts(20))
        .channel()
        .fetch_tarball("ftp://x/y", (20, ""), &part);
    assert!(
        matches!(nowhere, Err(ChannelError::Location(..))),
        "{nowhere:?}"
    );
}

#[test]
fn channels_are_read_with_bounds() {
    // UPD-01 UPD-02
    let read = Site::new(Way::Parts(20))
        .channel()
        .read_channel_file()
        .expect("read");
    assert_eq!(read, (b"offer".to_vec(), b"signature".to_vec()));
    let dir = TestDir::new("channel-dir");
    let mut channel = ReleaseChannel::in_dir(dir.0.clone());
    let missing = channel.read_channel_file().expect_err("nothing there");
    assert!(missing.may_succeed_later() && missing.to_string().contains("channel.json"));
    fs::write(dir.0.join(CHANNEL), [0; MAX_CHANNEL_BYTES_OF_TESTS]).expect("written");
    fs::write(dir.0.join("channel.json.sig"), "s").expect("written");
    assert_eq!(channel.read_channel_file().expect("read").1, b"s");
    fs::write(dir.0.join(CHANNEL), [0; MAX_CHANNEL_BYTES_OF_TESTS + 1]).expect("written");
    let large = channel.read_channel_file().expect_err("too large");
    assert!(matches!(large, ChannelError::TooLarge(_)) && !large.may_succeed_later());
    let part = dir.0.join("part");
    let mut fetch = |part| channel.fetch_tarball("t.tar.gz", (20, ""), part);
    let missing = fetch(&part).expect_err("nothing there");
    assert!(missing.may_succeed_later(), "{missing}");
    // A change of the original after that does not change the copy.
    let tarball = dir.0.join("t.tar.gz");
    fs::write(&tarball, &TARBALL[..9]).expect("written");
    let short = fetch(&part).expect_err("too short");
    assert!(matches!(short, ChannelError::Short(_, 9, 20)), "{short}");
    fs::write(&tarball, [TARBALL, b"more"].concat()).expect("written");
    assert!(!fetch(&part).expect("copied"));
    fs::write(&tarball, [b'x'; 20]).expect("written");
    assert!(fetch(&part).expect("it is there"));
    assert_eq!(fs::read(&part).expect("read"), TARBALL);
    fs::remove_file(&part).expect("removed");
    std::os::unix::fs::symlink(&tarball, &part).expect("link");
    let link = fetch(&part).expect_err("a link");
    assert!(matches!(link, ChannelError::File("open", ..)), "{link}");
    for wrong in ["", "a/b", "../x", ".", "/x"] {
        let refused = channel
            .fetch_tarball(wrong, (20, ""), &part)
            .expect_err(wrong);
        assert!(matches!(refused, ChannelError::Name(_)), "{wrong}");
    }
}

const MAX_CHANNEL_BYTES_OF_TESTS: usize = 16 * 1024;
