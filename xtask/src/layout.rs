//! `cargo xtask layout`: names the functions that agents at rest run, for `cross/rest.txt`.
//!
//! An agent is stepped instruction by instruction for some seconds: that names what waits in the middle of a function. Then each
//! function has a breakpoint at its begin, which goes when it is reached: the agent is nearly as fast as ever. A function is
//! named by its path, without the types that it is made for: such names stay when the compiler, a dependency or the board is
//! another. What has no such name is told beside that, with its address and its bytes: a pattern for it goes into
//! `cross/layout.txt`, if it lies far from the rest.

use core::time::Duration;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileExt as _,
    process::{Command, Stdio},
};

use nix::{
    libc::PTRACE_EVENT_EXEC,
    sys::{
        ptrace::{self, Options},
        signal::Signal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use crate::{
    Failure,
    wait::{Watch, pass},
};

/// Time in which each agent is stepped: what runs every second is seen.
const STEPS: Duration = Duration::from_secs(5);
/// Time in which each agent is watched: what runs every minute is seen.
const WATCHED: Duration = Duration::from_secs(130);
/// Time until a process is looked at again that does not stop.
const PAUSE: Duration = Duration::from_millis(1);
/// Breakpoint of x86-64: one byte, `int3`.
const BREAKPOINT: u8 = 0xcc;
/// A path that would bring more than that of other code along is left out, in bytes.
const MAX_IDLE: u64 = 16 * 1024;
/// Types that belong to no crate. What is theirs is small, and named after what it is made for.
const PRIMITIVES: [&str; 17] = [
    "bool", "char", "f32", "f64", "i128", "i16", "i32", "i64", "i8", "isize", "str", "u128", "u16",
    "u32", "u64", "u8", "usize",
];

/// Prints the paths for each of `agents`, those of the ones before it left out.
pub(crate) fn run(agents: &[String]) -> Result<(), Failure> {
    if agents.is_empty() {
        return Err("layout PID…: agents at rest, of a program with symbols (CARGO_PROFILE_RELEASE_STRIP=none)".into());
    }
    let mut known = BTreeSet::new();
    for (n, agent) in agents.iter().enumerate() {
        let pid: i32 = agent
            .parse()
            .map_err(|_| format!("no process id: {agent}"))?;
        let program = fs::canonicalize(format!("/proc/{pid}/exe"))?;
        let functions = functions(&program.display().to_string())?;
        let run = run_addresses(Pid::from_raw(pid), &functions)?;
        println!("[rest{n}]");
        let found = paths(&functions, &run);
        for (at, len, name) in &functions {
            let ran = run.range(*at..at + len).next().is_some();
            if ran && path(name).is_none() {
                eprintln!("without a path: {at:x} {len} {name}");
            }
        }
        for path in found {
            if known.insert(path.clone()) {
                println!("{path}");
            }
        }
    }
    Ok(())
}

/// A function of a program: begin, bytes, name.
type Function = (u64, u64, String);

/// All of a program, sorted.
fn functions(program: &str) -> Result<Vec<Function>, Failure> {
    let nm = Command::new("nm")
        .args(["--print-size", "--demangle", "--defined-only", program])
        .stderr(Stdio::inherit())
        .output()?;
    let mut all = Vec::new();
    for line in String::from_utf8(nm.stdout)?.lines() {
        let mut words = line.splitn(4, ' ');
        let (at, len) = (words.next(), words.next());
        let (Some(at), Some(len), Some(kind), Some(name)) = (at, len, words.next(), words.next())
        else {
            continue;
        };
        if let ("t" | "T" | "w" | "W", Ok(at), Ok(len)) = (
            kind,
            u64::from_str_radix(at, 16),
            u64::from_str_radix(len, 16),
        ) {
            all.push((at, len, name.to_owned()));
        }
    }
    all.sort();
    if all.is_empty() {
        return Err(format!("{program} has no symbols").into());
    }
    Ok(all)
}

/// Process under observation.
struct Observed {
    threads: BTreeSet<Pid>,
    /// Addresses that were run.
    run: BTreeSet<u64>,
    /// First byte of each function that has had a breakpoint.
    begins: BTreeMap<u64, u8>,
    is_stepped: bool,
}

/// Addresses that the process ran: all of the first seconds, begins of functions later.
fn run_addresses(pid: Pid, functions: &[Function]) -> Result<BTreeSet<u64>, Failure> {
    let mut observed = Observed {
        threads: BTreeSet::new(),
        run: BTreeSet::new(),
        begins: BTreeMap::new(),
        is_stepped: true,
    };
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = thread?.file_name().into_string().unwrap_or_default();
        let thread = Pid::from_raw(name.parse()?);
        let options = [
            Options::PTRACE_O_TRACECLONE,
            Options::PTRACE_O_TRACEFORK,
            Options::PTRACE_O_TRACEVFORK,
            Options::PTRACE_O_TRACEEXEC,
        ];
        ptrace::seize(thread, options.into_iter().collect())?;
        ptrace::interrupt(thread)?;
        observed.threads.insert(thread);
    }
    let started = Watch::start();
    // An agent at rest still does something every second.
    while started.elapsed() < STEPS {
        observed.wait()?;
    }
    observed.is_stepped = false;
    let memory = fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))?;
    for (begin, ..) in functions {
        let mut byte = [0];
        memory.read_exact_at(&mut byte, *begin)?;
        // Two functions may be one.
        if byte != [BREAKPOINT] {
            observed.begins.insert(*begin, byte[0]);
            memory.write_all_at(&[BREAKPOINT], *begin)?;
        }
    }
    while started.elapsed() < WATCHED {
        observed.wait()?;
    }
    for (begin, byte) in &observed.begins {
        memory.write_all_at(&[*byte], *begin)?;
    }
    for thread in observed.threads {
        let stopped = ptrace::interrupt(thread)
            .and_then(|()| waitpid(thread, Some(WaitPidFlag::__WALL)))
            .and_then(|_| ptrace::detach(thread, None));
        if let Err(e) = stopped {
            eprintln!("thread {thread}: {e}");
        }
    }
    Ok(observed.run)
}

impl Observed {
    /// Waits until a thread stops, and lets it go on.
    fn wait(&mut self) -> Result<(), Failure> {
        let (thread, signal) =
            match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG))? {
                WaitStatus::StillAlive => {
                    pass(PAUSE);
                    return Ok(());
                }
                // Another program has no breakpoints.
                WaitStatus::PtraceEvent(thread, _, PTRACE_EVENT_EXEC) => {
                    self.threads.remove(&thread);
                    let _ = ptrace::detach(thread, None);
                    return Ok(());
                }
                WaitStatus::Stopped(thread, Signal::SIGTRAP | Signal::SIGSTOP)
                | WaitStatus::PtraceEvent(thread, ..) => (thread, None),
                WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
                WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, ..) => {
                    self.threads.remove(&thread);
                    return Ok(());
                }
                _ => return Ok(()),
            };
        self.threads.insert(thread);
        // A thread may be killed at any time.
        if let Ok(mut registers) = ptrace::getregs(thread) {
            let begin = registers.rip.wrapping_sub(1);
            if self.is_stepped {
                self.run.insert(registers.rip);
            } else if let Some(byte) = self.begins.get(&begin) {
                self.run.insert(begin);
                // Through this thread: a child that has just been forked has a memory of its own.
                let memory = fs::File::options()
                    .write(true)
                    .open(format!("/proc/{thread}/mem"))?;
                memory.write_all_at(&[*byte], begin)?;
                registers.rip = begin;
                ptrace::setregs(thread, registers)?;
            }
            let _ = if self.is_stepped {
                ptrace::step(thread, signal)
            } else {
                ptrace::cont(thread, signal)
            };
        }
        Ok(())
    }
}

/// The paths of what was run.
fn paths(functions: &[Function], run: &BTreeSet<u64>) -> BTreeSet<String> {
    // Bytes of each that ran, and that did not.
    let mut all: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (at, len, name) in functions {
        if let Some(path) = path(name) {
            let bytes = all.entry(path).or_default();
            if run.range(*at..at + len).next().is_some() {
                bytes.0 += len;
            } else {
                bytes.1 += len;
            }
        }
    }
    all.retain(|_, (ran, idle)| *ran > 0 && *idle <= MAX_IDLE);
    all.into_keys().collect()
}

/// The path of a function of Rust; `None` for others, and for those that no path says enough of.
fn path(name: &str) -> Option<String> {
    let whole = plain(name);
    // Closures go with what they are in.
    let path = whole.split("::{").next()?;
    let is_word =
        |w: &str| !w.is_empty() && w.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let words: Vec<&str> = path.split("::").collect();
    if words.len() < 2 || !words.iter().all(|w| is_word(w)) || path == "core::ptr::drop_in_place" {
        return None;
    }
    (!PRIMITIVES.contains(&words[0]) && !words[0].starts_with('_')).then(|| path.to_owned())
}

/// A name without hashes of crates and without types, but for the type that a method is of.
fn plain(name: &str) -> String {
    let mut out = String::new();
    let mut rest = name;
    while let Some(at) = rest.find(['<', '[']) {
        out += &rest[..at];
        let (inner, after) = bracketed(&rest[at..]);
        if rest.as_bytes()[at] == b'<' {
            if out.is_empty() {
                let inner = inner.trim_start_matches(['&', '*']);
                let this = before_as(inner.strip_prefix("mut ").unwrap_or(inner));
                out = plain(this);
            } else if out.ends_with("::") {
                out.truncate(out.len() - 2);
            }
        }
        rest = after;
    }
    out + rest
}

/// What is between the bracket that `text` begins with and its other half, and what follows.
fn bracketed(text: &str) -> (&str, &str) {
    let mut depth = 0;
    let mut last = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' | '[' => depth += 1,
            // Not that of `->`.
            '>' if last == '-' => {}
            '>' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[1..at], &text[at + 1..]);
        }
        last = c;
    }
    (&text[1..], "")
}

/// `Type` of `Type as Trait`.
fn before_as(inner: &str) -> &str {
    let mut from = 0;
    while let Some(found) = inner[from..].find(" as ") {
        let at = from + found;
        let open = |c| inner[..at].matches(c).count();
        if open('<') + inner[..at].matches("->").count() == open('>') {
            return &inner[..at];
        }
        from = at + 1;
    }
    inner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_go_by_their_paths() {
        for (name, want) in [
            (
                "<picolet[4ad0933b10d90d0a]::agent::core::Agent>::handle",
                Some("picolet::agent::core::Agent::handle"),
            ),
            (
                "<picolet[4ad0933b10d90d0a]::agent::core::Agent as picolet[4ad0933b10d90d0a]::agent::event_loop::Seat>::with::<(), a::b<c>>",
                Some("picolet::agent::core::Agent::with"),
            ),
            (
                "<alloc[0d0d0d0d0d0d0d0d]::vec::Vec<fn(u8) -> <T as A>::B> as core::ops::Drop>::drop",
                Some("alloc::vec::Vec::drop"),
            ),
            (
                "picolet[4ad0933b10d90d0a]::agent::run::serve::{closure#0}",
                Some("picolet::agent::run::serve"),
            ),
            (
                "<&mut async_io::reactor::Reactor>::get::<u8>",
                Some("async_io::reactor::Reactor::get"),
            ),
            ("<str>::contains::<char>", None),
            ("<[u8]>::sort_by::<F>", None),
            ("core::ptr::drop_in_place::<a::B>", None),
            ("_int_malloc", None),
        ] {
            assert_eq!(path(name).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn what_brings_too_much_along_is_left_out() {
        let functions = [
            (0, 10, "<a::B>::c::<u8>".to_owned()),
            (10, MAX_IDLE, "<a::B>::c::<u16>".to_owned()),
            (1 << 20, 10, "<a::B>::d".to_owned()),
            (2 << 20, MAX_IDLE + 1, "<a::B>::d::<u8>".to_owned()),
            (3 << 20, 10, "a::e".to_owned()),
        ];
        let run = BTreeSet::from([9, (1 << 20) + 1]);
        assert_eq!(
            paths(&functions, &run),
            BTreeSet::from(["a::B::c".to_owned()])
        );
    }
}
