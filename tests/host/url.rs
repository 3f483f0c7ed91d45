//! Manifests at a URL: an agent that finds its pods there, and one that finds nobody.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, manifest, sh, status_of};

/// In place of a status: the document is the whole answer, or the part of it that ever comes.
const RAW: u16 = 0;

/// A server of one document. Ends with its value: then nobody listens.
struct Site {
    address: SocketAddr,
    inner: Arc<Inner>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Inner {
    /// Status, and the document.
    says: Mutex<(u16, String)>,
    /// Requests, and those whose answer had no document.
    asked: Mutex<(usize, usize)>,
    ends: AtomicBool,
}

impl Site {
    fn at(port: u16, document: &Value) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("listener");
        let address = listener.local_addr().expect("address");
        let inner = Arc::<Inner>::default();
        let shared = Arc::clone(&inner);
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.ends.load(Ordering::SeqCst) {
                    return;
                }
                let _ = shared.answer(&stream);
            }
        });
        let site = Self {
            address,
            inner,
            thread: Some(thread),
        };
        site.say(200, &document.to_string());
        site
    }

    fn say(&self, status: u16, document: &str) {
        let mut says = self
            .inner
            .says
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *says = (status, document.to_owned());
    }

    fn asked(&self) -> (usize, usize) {
        *self
            .inner
            .asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn answer(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(core::time::Duration::from_secs(2)))?;
        let mut known = String::new();
        let mut lines = BufReader::new(stream).lines();
        while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
            if let Some(tag) = line.to_ascii_lowercase().strip_prefix("if-none-match: ") {
                known = tag.to_owned();
            }
        }
        let (status, document) = self
            .says
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        // Of a document that differs the tag does too: the test never takes an image or a name of the same length.
        let tag = format!(
            "\"{:x}\"",
            document
                .bytes()
                .fold(7_u64, |sum, b| sum.wrapping_mul(31) ^ u64::from(b))
        );
        if status == RAW {
            let mut stream = stream;
            stream.write_all(document.as_bytes())?;
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).0 += 1;
            // It is for the agent to lose patience.
            stream.set_read_timeout(Some(core::time::Duration::from_secs(120)))?;
            return stream.read(&mut [0]).map(drop);
        }
        let same = status == 200 && known == tag;
        {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.0 += 1;
            asked.1 += usize::from(same);
        }
        let (status, body) = if same {
            (304, "")
        } else {
            (status, &*document)
        };
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 {status} x\r\nconnection: close\r\netag: {tag}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.inner.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// SRC-01 SRC-09 SRC-22 SRC-23 SRC-24 SRC-25 SRC-27
// GET-07
fn shows_no_secret(host: &Host) {
    for words in [
        &["config", "view"][..],
        &["config", "view", "-o", "yaml"],
        &["config", "view", "-o", "json"],
    ] {
        let said = host.ok(words);
        assert!(said.contains("staticPodURLHeader"), "{said}");
        // In JSON, the signs around the word are escapes.
        assert!(said.contains("masked"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[test]
fn pods_at_a_url_and_a_start_without_link() {
    if !host::able() {
        return;
    }
    let pod = |name: &str, word: &str| {
        manifest(
            name,
            json!({"containers": [sh("main", &format!("echo {word}; {IDLE}"))]}),
        )
    };
    let list = |pods: &[Value]| json!({"apiVersion": "v1", "kind": "PodList", "items": pods});
    let first = list(&[pod("a", "one"), pod("b", "one")]);
    let site = Site::at(0, &first);
    let port = site.address.port();
    let url = format!("http://127.0.0.1:{port}/pods");
    let mut host = Host::start(&[
        "--manifest-url",
        &url,
        "--manifest-url-header",
        "Authorization:Bearer-s3cret",
        "--http-check-frequency",
        "1s",
    ]);
    shows_no_secret(&host);
    host.pod("file", json!({"containers": [sh("main", IDLE)]}));
    let a = host.wait_ready("a");
    let b = host.wait_ready("b");
    host.wait_ready("file");
    assert_eq!(
        a["metadata"]["annotations"]["kubernetes.io/config.source"],
        "http"
    );
    let tolerations = &a["spec"]["tolerations"];
    assert!(
        !tolerations.to_string().contains("NoExecute"),
        "{tolerations}"
    );
    let pids = |host: &Host| ["a", "b", "file"].map(|pod| host.pid(pod, "main"));
    let before = pids(&host);
    let (asked, _) = site.asked();
    host.until("nothing is sent twice", |_| {
        let (all, same) = site.asked();
        (
            all >= asked + 3 && same + 1 >= all,
            format!("{same} of {all}"),
        )
    });

    // What is of no use changes nothing, and is told once.
    let lines = |host: &Host, what: &str| {
        host.agent_log()
            .lines()
            .filter(|line| line.contains(what))
            .count()
    };
    for (status, document, says) in [
        (500, "", "answers with status 500"),
        (200, "kind: Pod", "apiVersion and kind are required"),
        (
            RAW,
            "HTTP/1.1 302 x\r\nlocation: /pods\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            "redirects more than 5 times",
        ),
        (
            RAW,
            "HTTP/1.1 200 x\r\ncontent-length: 99999999\r\n\r\n",
            "sends 10485760 bytes or more",
        ),
        (RAW, "HTTP/1.1 200 x\r\n", "cannot be read: "),
    ] {
        site.say(status, document);
        let (asked, _) = site.asked();
        host.until("it asks again", |_| {
            (site.asked().0 >= asked + 3, String::new())
        });
        host.until("it is told", |host| {
            (lines(host, says) > 0, host.agent_log())
        });
        assert_eq!(lines(&host, says), 1, "{}", host.agent_log());
        assert_eq!(pids(&host), before);
    }

    // Nobody answers: the next agent takes the pods over, and so does one after a clean stop.
    drop(site);
    host.end_agent(Signal::SIGKILL);
    host.start_agent();
    host.wait_ready("a");
    assert_eq!(pids(&host), before);
    assert_eq!(host.get("a")["metadata"]["uid"], a["metadata"]["uid"]);
    let agent = host.agent_pid();
    host.ok(&["stop", "--all"]);
    host.wait_process_gone(agent);
    host.reap_agent();
    host.start_agent();
    let again = host.wait_ready("a");
    host.wait_ready("b");
    assert_eq!(status_of(&again, "main")["restartCount"], 1);
    let log = host.agent_log();
    assert!(
        log.lines()
            .any(|line| line.contains(&url) && line.contains("its answer of 20")),
        "{log}"
    );

    // The link is back, with another document.
    let before = pids(&host);
    let site = Site::at(port, &list(&[pod("a", "another"), pod("b", "one")]));
    host.wait_pod("a", "replaced", |pod| {
        pod["metadata"]["uid"] != a["metadata"]["uid"] && status_of(pod, "main")["ready"] == true
    });
    assert_eq!(host.get("b")["metadata"]["uid"], b["metadata"]["uid"]);
    assert_eq!(pids(&host)[1..], before[1..], "no concern of theirs");
    site.say(200, "");
    host.wait_gone("a");
    host.wait_gone("b");
    host.wait_ready("file");
    host.finish();
}
