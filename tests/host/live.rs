//! What goes on while somebody looks: tables that live on a terminal, lines elsewhere, bars.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::host::{self, Host, IDLE, sh, text, with};

/// Ends a while after it is told to, so that there is something to wait for.
const SLOW: &str = "trap 'sleep 15; exit 0' TERM; while :; do sleep 1; done";

/// A terminal with a command on it.
pub(crate) struct Terminal {
    master: File,
    child: Child,
    output: Arc<Mutex<String>>,
    /// It ends when all that was written has been read.
    reader: JoinHandle<()>,
}

const fn size(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Terminal {
    pub(crate) fn start(host: &Host, words: &[&str]) -> Self {
        let pty = openpty(Some(&size(80, 24)), None).expect("a terminal");
        for end in [&pty.master, &pty.slave] {
            // Who holds it keeps it open.
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("flag");
        }
        let mut command = Command::new("setsid");
        // The terminal has to be the command's own, or it would not hear of its keys and sizes.
        let slave = || Stdio::from(pty.slave.try_clone().expect("descriptor"));
        let picolet = host.command(words);
        let child = command
            .args(["--wait", "--ctty"])
            .arg(picolet.get_program())
            .args(picolet.get_args())
            .envs(picolet.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .expect("setsid");
        drop(command);
        drop(pty.slave);
        let master = File::from(pty.master);
        let output = Arc::new(Mutex::new(String::new()));
        let (mut from, into) = (master.try_clone().expect("descriptor"), Arc::clone(&output));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Without a process on the other side the read fails.
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                into.lock().expect("output").push_str(&text(&buffer[..n]));
            }
        });
        Self {
            master,
            child,
            output,
            reader,
        }
    }

    /// Everything that was written.
    pub(crate) fn said(&self) -> String {
        self.output.lock().expect("output").clone()
    }

    /// The lines of the last whole picture.
    fn lines(&self) -> Vec<String> {
        let said = self.said();
        let Some((whole, _)) = said.rsplit_once("\x1b[J") else {
            return Vec::new();
        };
        let (_, last) = whole.rsplit_once("\x1b[H").expect("a beginning");
        last.split("\r\n")
            .map(|l| l.replace("\x1b[K", "").replace('\r', ""))
            .collect()
    }

    fn until(&self, host: &Host, what: &str, holds: impl Fn(&[String]) -> bool) {
        host.until(what, |_| {
            let lines = self.lines();
            (holds(&lines), lines.join("\n"))
        });
    }

    /// As the keys of `text` do.
    pub(crate) fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).expect("keys");
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let done = picolet::sys::tty::set_window_size(self.master.as_fd(), columns, rows);
        done.expect("resized");
    }

    /// As the keys Ctrl and C do. What was written in all.
    fn interrupt(mut self, host: &Host) -> String {
        self.type_in("\x03");
        self.end(host)
    }

    fn end(&mut self, host: &Host) -> String {
        host.until("the command ends", |_| {
            let ended = self.child.try_wait().expect("child").is_some();
            (ended && self.reader.is_finished(), self.said())
        });
        assert!(
            self.child.wait().expect("child").success(),
            "{}",
            self.said()
        );
        self.said()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // `setsid` becomes the command.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn row<'a>(lines: &'a [String], pod: &str) -> Option<(usize, &'a String)> {
    let name = format!("{} ", host::full(pod));
    let mut found = lines.iter().enumerate();
    found.find(|(_, line)| line.starts_with(&name))
}

fn runs(lines: &[String], pod: &str) -> bool {
    row(lines, pod).is_some_and(|(_, line)| line.contains("1/1") && line.contains("Running"))
}

#[test]
fn tables_live_on_a_terminal() {
    if !host::able() {
        return;
    }
    let mut host = Host::start(&[]);
    host.pod("middle", json!({"containers": [sh("main", IDLE)]}));
    let pod = host.wait_ready("middle");
    let terminal = Terminal::start(&host, &["get", "pods", "--watch"]);
    terminal.until(&host, "the pod is shown", |l| runs(l, "middle"));
    // What comes is shown in its place.
    host.pod("a-first", json!({"containers": [sh("main", IDLE)]}));
    terminal.until(&host, "both are shown", |l| {
        let at = |pod: &str| row(l, pod).map(|(n, _)| n);
        runs(l, "a-first") && (at("a-first"), at("middle")) == (Some(1), Some(2))
    });
    terminal.resize(12, 2);
    terminal.until(&host, "the table fits", |lines| {
        lines.len() == 2 && lines.iter().all(|l| l.len() <= 12) && lines[1] == "... 2 more"
    });
    terminal.resize(80, 24);
    terminal.until(&host, "the table is whole", |l| runs(l, "middle"));

    // It goes on while the agent does not, and pods are as old as before.
    let ages = |pod: &serde_json::Value| {
        [
            &pod["metadata"]["creationTimestamp"],
            &pod["status"]["startTime"],
        ]
        .map(|age| age.to_string())
    };
    let before = ages(&pod);
    assert_eq!(before[0], before[1], "{pod}");
    host.until("its age can be told", |host| {
        let line = host.ok(&["get", "pods", &host::full("middle"), "--no-headers"]);
        let age = line.trim_end().rsplit(' ').next().unwrap_or_default();
        (age.len() > 2 || age >= "3s", line.clone())
    });
    host.end_agent(Signal::SIGKILL);
    terminal.until(&host, "the trouble is told beside what was", |l| {
        runs(l, "middle") && l.iter().any(|l| l.contains("cannot reach the agent"))
    });
    host.start_agent();
    terminal.until(&host, "the trouble is over", |l| {
        runs(l, "middle") && !l.iter().any(|l| l.contains("cannot reach the agent"))
    });
    assert_eq!(ages(&host.wait_ready("middle")), before);
    host.remove("a-first.yaml");
    terminal.until(&host, "who has gone is not shown", |l| {
        row(l, "a-first").is_none() && runs(l, "middle")
    });
    let said = terminal.interrupt(&host);
    assert!(
        said.starts_with("\x1b[?1049h") && said.ends_with("\x1b[?1049l"),
        "{said:?}"
    );
    assert_eq!(said.matches("\x1b[2J").count(), 1, "blanked once: {said:?}");

    let terminal = Terminal::start(&host, &["top", "pods", "-w"]);
    terminal.until(&host, "figures are shown", |lines| {
        let head = lines
            .first()
            .is_some_and(|l| l.starts_with("NAME") && l.contains("CPU(cores)"));
        head && row(lines, "middle").is_some_and(|(_, line)| line.ends_with("Mi"))
    });
    terminal.interrupt(&host);
    host.finish();
}

#[test]
fn changes_are_lines_elsewhere() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    host.pod("stays", json!({"containers": [sh("main", IDLE)]}));
    host.wait_ready("stays");
    let mut watch = host
        .command(&["get", "pods", "-w"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("picolet");
    let mut lines = BufReader::new(watch.stdout.take().expect("output")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert!(next().starts_with("NAME"));
    assert!(next().starts_with("stays-node"));
    host.pod("goes", json!({"containers": [sh("main", IDLE)]}));
    // Blocks until the line comes: the test's own limit ends it.
    loop {
        let line = next();
        assert!(
            line.starts_with("goes-node"),
            "nothing else changes: {line}"
        );
        assert!(!line.contains('\x1b'), "{line}");
        if line.contains("Running") && line.contains("1/1") {
            break;
        }
    }
    host.remove("goes.yaml");
    assert!(next().starts_with("goes-node"));
    // It ends with its reader, though nothing changes any more.
    drop(lines);
    host.until("the command ends", |_| {
        let ended = watch.try_wait().expect("child");
        (ended.is_some(), String::new())
    });
    let wrong = host.cli(&["get", "pods", "-w", "-o", "json"]);
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    let none = host.cli(&["get", "pods", "nobody", "-w"]);
    assert!(
        text(&none.stderr).contains("\"nobody\" not found"),
        "{none:?}"
    );
    host.finish();
}

#[test]
fn stop_tells_how_many_pods_are_left() {
    if !host::able() {
        return;
    }
    let mut host = Host::start(&[]);
    let slow = || {
        let spec = json!({"containers": [sh("main", SLOW)]});
        with(spec, json!({"terminationGracePeriodSeconds": 60}))
    };
    host.pod("slow", slow());
    host.wait_ready("slow");
    let mut terminal = Terminal::start(&host, &["stop", "--all"]);
    host.until("it is told", |_| {
        let said = terminal.said();
        (said.contains("] ending 0/1 pods"), said)
    });
    let said = terminal.end(&host);
    assert!(said.ends_with("\r\x1b[Kstopped\r\n"), "{said:?}");
    host.reap_agent();
    host.start_agent();
    host.wait_ready("slow");
    let said = host.cli(&["stop", "--all"]);
    assert_eq!(text(&said.stdout), "stopped\n", "{said:?}");
    assert!(
        text(&said.stderr).contains("stop: ending, 0 of 1 pods\n"),
        "{said:?}"
    );
    host.reap_agent();
    host.start_agent();
    host.finish();
}
