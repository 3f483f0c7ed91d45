//! `get -w` and `top -w`: a table that follows what happens.
//!
//! On a terminal the whole table is drawn over itself on the alternate screen, as `watch` and `top` do, and the screen
//! is as before when the command ends. A frame is one write, without blanking first; without a change there is none.
//! Elsewhere each change is a line, as of `kubectl get -w`.

use core::time::Duration;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, raise},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd,
};

use super::{CliError, progress, table};
use crate::sys::{clock, start};

/// Enters the alternate screen, hides the cursor and cuts lines at the edge.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// A line of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveRow {
    /// Name of the line. Changes are found by comparing lines of the same name.
    pub(crate) id: String,
    /// Cells without the parts that change with time alone.
    pub(crate) said: Vec<String>,
    /// Cells as they are shown now.
    pub(crate) cells: Vec<String>,
}

impl LiveRow {
    /// Makes a line whose first `names` cells name it.
    pub(crate) fn with_name_cells(cells: Vec<String>, names: usize) -> Self {
        let id: Vec<&str> = cells.iter().take(names).map(String::as_str).collect();
        Self {
            id: id.join("/"),
            said: cells.clone(),
            cells,
        }
    }
}

/// Result of one look.
#[derive(Default)]
pub(crate) struct LiveTable {
    pub(crate) header: Vec<&'static str>,
    /// Lines of the table, in the order in which they are shown.
    pub(crate) rows: Vec<LiveRow>,
    /// Lines below the table. Only terminals show them.
    pub(crate) notes: Vec<String>,
}

/// Longest silence of an agent before it is reported.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Function that looks once.
pub(crate) type ReadTableFn = Box<dyn FnMut() -> Result<LiveTable, CliError> + Send>;

/// Looks at intervals of `every`, and shows the table until the reader leaves. The first look has to succeed. Later a
/// terminal shows the error, and goes on.
pub(crate) fn watch_table(
    every: Duration,
    no_headers: bool,
    mut look: ReadTableFn,
) -> Result<(), CliError> {
    let first = look()?;
    let done = match io::stdout().is_terminal() {
        true => watch_on_terminal(every, no_headers, first, look),
        false => watch_as_lines(every, no_headers, first, look),
    };
    match done {
        // The reader left (`| head`, a terminal that was closed): that is the end, not an error.
        Err(LiveTableError::Write(Errno::EPIPE | Errno::EIO)) => Ok(()),
        Err(LiveTableError::Write(e)) => Err(CliError::new(format!("cannot write: {e}"))),
        Err(LiveTableError::Look(e)) => Err(e),
        Ok(()) => Ok(()),
    }
}

enum LiveTableError {
    Write(Errno),
    Look(CliError),
}

impl From<Errno> for LiveTableError {
    fn from(e: Errno) -> Self {
        Self::Write(e)
    }
}

fn write_stdout(text: &str) -> Result<(), Errno> {
    let stdout = io::stdout();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match unistd::write(&stdout, rest) {
            Ok(n) => rest = &rest[n..],
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn poll_millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

fn watch_as_lines(
    every: Duration,
    no_headers: bool,
    mut seen: LiveTable,
    mut look: ReadTableFn,
) -> Result<(), LiveTableError> {
    let mut lines = WrittenLines {
        wants_header: !no_headers,
        ..WrittenLines::default()
    };
    let stdout = io::stdout();
    // Bounded: by the reader, whose end is seen at once even if nothing changes.
    loop {
        write_stdout(&lines.changed_lines(seen))?;
        let mut reader = [libc::pollfd {
            fd: stdout.as_fd().as_raw_fd(),
            events: 0,
            revents: 0,
        }];
        if start::poll_fds(&mut reader, poll_millis(every)).is_ok_and(|left| left > 0) {
            return Ok(());
        }
        seen = look().map_err(LiveTableError::Look)?;
    }
}

/// The lines that were written already.
#[derive(Default)]
struct WrittenLines {
    wants_header: bool,
    widths: Vec<usize>,
    last: Vec<LiveRow>,
}

impl WrittenLines {
    /// Returns the lines that are new, changed or gone since the look before. The last state of a line that is gone is
    /// told once more, as kubectl does.
    fn changed_lines(&mut self, seen: LiveTable) -> String {
        let mut before = core::mem::take(&mut self.last);
        let mut told = Vec::new();
        for row in seen.rows {
            // Nearly always the first one of the lines that are left.
            let old = before.iter().position(|old| old.id == row.id);
            let old = old.map(|at| before.remove(at));
            if old.is_none_or(|old| old.said != row.said) {
                told.push(row.cells.clone());
            }
            self.last.push(row);
        }
        told.extend(before.into_iter().map(|row| row.cells));
        if told.is_empty() {
            return String::new();
        }
        let header: Vec<String> = seen.header.iter().map(|h| (*h).to_owned()).collect();
        if core::mem::take(&mut self.wants_header) {
            told.insert(0, header);
        }
        for row in &told {
            table::widen_columns(&mut self.widths, row);
        }
        let mut out = String::new();
        for row in &told {
            table::write_row(&mut out, &self.widths, row);
            out.push('\n');
        }
        out
    }
}

/// Guard of the alternate screen: it is left on drop.
struct AlternateScreen;

impl AlternateScreen {
    fn enter() -> Result<Self, Errno> {
        write_stdout(ENTER)?;
        Ok(Self)
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        // Nobody is left to see it.
        let _ = write_stdout(LEAVE);
    }
}

fn watch_on_terminal(
    every: Duration,
    no_headers: bool,
    mut seen: LiveTable,
    mut look: ReadTableFn,
) -> Result<(), LiveTableError> {
    let ends = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    let all = ends.into_iter().chain([Signal::SIGTSTP, Signal::SIGWINCH]);
    let signals: SigSet = all.collect();
    signals.thread_block()?;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let signals = SignalFd::with_flags(&signals, flags)?;
    // An agent that hangs must not block the terminal: another thread looks, which ends with the process.
    let (bell, other) = UnixStream::pair().map_err(|e| raw_errno(&e))?;
    let looked = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&looked);
    thread::spawn(move || {
        // Bounded: a look for each byte that asks for one.
        while (&other).read(&mut [0]).is_ok_and(|n| n > 0) {
            let seen = look();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
            if (&other).write_all(&[0]).is_err() {
                return;
            }
        }
    });
    let stdout = io::stdout();
    let mut screen = Some(AlternateScreen::enter()?);
    let (mut shown, mut trouble) = (String::new(), None);
    let mut next = Some(clock::mono_now() + every);
    // Bounded: until a signal ends it.
    loop {
        let frame = draw_frame(
            &seen,
            no_headers,
            trouble.as_deref(),
            progress::terminal_size(),
        );
        if frame != shown {
            write_stdout(&frame)?;
            shown = frame;
        }
        let waits = [
            (signals.as_fd(), libc::POLLIN),
            (bell.as_fd(), libc::POLLIN),
            (stdout.as_fd(), 0),
        ];
        let mut fds = waits.map(|(fd, events)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events,
            revents: 0,
        });
        let wait = next.map_or(-1, |next| poll_millis(next - clock::mono_now()));
        let _ = start::poll_fds(&mut fds, wait);
        if fds[2].revents != 0 {
            // The terminal is closed.
            return Ok(());
        }
        while let Some(info) = signals.read_signal()? {
            let signal = i32::try_from(info.ssi_signo).unwrap_or(0);
            match Signal::try_from(signal)? {
                Signal::SIGWINCH => {}
                Signal::SIGTSTP => {
                    drop(screen.take());
                    raise(Signal::SIGSTOP)?;
                    screen = Some(AlternateScreen::enter()?);
                    shown.clear();
                }
                _ => return Ok(()),
            }
        }
        let answer = fds[1].revents != 0;
        let answer = answer
            .then(|| (&bell).read(&mut [0]).is_ok())
            .and_then(|_| looked.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(answer) = answer {
            match answer {
                Ok(now) => (seen, trouble) = (now, None),
                Err(e) => trouble = Some(e.to_string()),
            }
            next = Some(clock::mono_now() + every);
        } else if next.is_some_and(|next| clock::mono_now() >= next) {
            next = None;
            (&bell).write_all(&[0]).map_err(|e| raw_errno(&e))?;
        }
    }
}

fn raw_errno(e: &io::Error) -> Errno {
    Errno::from_raw(e.raw_os_error().unwrap_or(0))
}

/// Draws a whole picture of the terminal: never more lines than it has, each cut at its edge, the rest of each line
/// cleared.
fn draw_frame(
    seen: &LiveTable,
    no_headers: bool,
    trouble: Option<&str>,
    (columns, rows): (usize, usize),
) -> String {
    let header: Vec<String> = seen.header.iter().map(|h| (*h).to_owned()).collect();
    let cells = seen.rows.iter().map(|row| &row.cells);
    let all: Vec<&Vec<String>> = (!no_headers && !seen.rows.is_empty())
        .then_some(&header)
        .into_iter()
        .chain(cells)
        .collect();
    let mut widths = Vec::new();
    for row in &all {
        table::widen_columns(&mut widths, row);
    }
    let below: Vec<&str> = trouble
        .into_iter()
        .chain(seen.notes.iter().map(String::as_str))
        .collect();
    // The error is shown in any case; the table comes before the other notes.
    let room = rows.saturating_sub(usize::from(trouble.is_some())).max(1);
    let fits = all.len() <= room;
    let table_rows = if fits { all.len() } else { room - 1 };
    let mut lines = Vec::new();
    for row in &all[..table_rows] {
        let mut text = String::new();
        table::write_row(&mut text, &widths, row);
        lines.push(text);
    }
    if !fits {
        lines.push(format!("... {} more", all.len() - table_rows));
    }
    lines.extend(below.into_iter().map(str::to_owned));
    lines.truncate(rows.max(1));
    let mut out = String::from("\x1b[H");
    for (n, line) in lines.iter().enumerate() {
        if n > 0 {
            out.push_str("\r\n");
        }
        // Messages of events and names of images come from outside: characters that would move the cursor are left out.
        out.extend(line.chars().filter(|c| !c.is_control()).take(columns));
        out.push_str("\x1b[K");
    }
    out.push_str("\x1b[J");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: &str, age: &str) -> LiveRow {
        LiveRow {
            id: name.into(),
            said: vec![name.into(), state.into()],
            cells: vec![name.into(), state.into(), age.into()],
        }
    }

    fn seen(rows: &[LiveRow]) -> LiveTable {
        LiveTable {
            header: vec!["NAME", "STATUS", "AGE"],
            rows: rows.to_vec(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_line_for_each_change() {
        let mut lines = WrittenLines {
            wants_header: true,
            ..WrittenLines::default()
        };
        let two = [row("a", "Pending", "0s"), row("b", "Running", "9s")];
        assert_eq!(
            lines.changed_lines(seen(&two)),
            "NAME   STATUS    AGE\na      Pending   0s\nb      Running   9s\n"
        );
        let older = [row("a", "Pending", "1s"), row("b", "Running", "10s")];
        assert_eq!(lines.changed_lines(seen(&older)), "", "time is no change");
        let one = [
            row("a", "CrashLoopBackOff", "2s"),
            row("b", "Running", "11s"),
        ];
        assert_eq!(
            lines.changed_lines(seen(&one)),
            "a      CrashLoopBackOff   2s\n",
            "columns only grow"
        );
        assert_eq!(
            lines.changed_lines(seen(&[row("c", "Running", "0s")])),
            "c      Running            0s\na      CrashLoopBackOff   2s\nb      Running            11s\n",
            "who has gone is said once more"
        );
        assert_eq!(lines.changed_lines(seen(&[row("c", "Running", "1s")])), "");
    }

    #[test]
    fn a_frame_fits_the_terminal() {
        let mut many: Vec<LiveRow> = (0..9)
            .map(|n| row(&format!("p{n}"), "Running", "1s"))
            .collect();
        many[1].cells[1] = "\x1b[2Jred".into();
        let mut all = seen(&many);
        all.notes.push("pod/p1: Pulling".into());
        let lines = |frame: &str| -> Vec<String> {
            let inner = frame
                .strip_prefix("\x1b[H")
                .and_then(|f| f.strip_suffix("\x1b[J"));
            let lines = inner.expect("a frame").split("\r\n");
            let text = |line: &str| line.strip_suffix("\x1b[K").expect("cleared").to_owned();
            lines.map(text).collect()
        };
        for (size, trouble, count, last) in [
            ((80, 24), None, 11, "pod/p1: Pulling"),
            ((80, 10), None, 10, "p8     Running   1s"),
            ((80, 5), None, 5, "... 6 more"),
            ((80, 5), Some("gone"), 5, "gone"),
            ((9, 10), None, 10, "p8     Ru"),
            ((0, 0), None, 1, ""),
        ] {
            let found = lines(&draw_frame(&all, false, trouble, size));
            assert_eq!(found.len(), count, "{size:?}: {found:?}");
            assert_eq!(found[count - 1], last, "{size:?}");
            assert!(
                found.iter().all(|l| l.chars().count() <= size.0),
                "{found:?}"
            );
            assert!(found.iter().all(|l| !l.contains('\x1b')), "{found:?}");
        }
        let bare = lines(&draw_frame(&all, true, None, (80, 24)));
        assert_eq!(bare[0], "p0    Running   1s");
        let empty = draw_frame(&seen(&[]), false, None, (80, 24));
        assert_eq!(empty, "\x1b[H\x1b[J");
    }
}
