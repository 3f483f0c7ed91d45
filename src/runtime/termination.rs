//! The last words of a container (TMSG-01, TMSG-02). Blocking, bounded.

use std::{
    fs,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use crate::sys::open;

/// Bytes of the termination log that are shown.
const MESSAGE_BYTES: u64 = 4096;
/// Lines of the container's log that stand in for an empty termination log.
const FALLBACK_LINES: usize = 80;
/// Bytes of those lines that are shown.
const FALLBACK_BYTES: usize = 2048;
/// Bytes read from the end of the log: 80 records, as far as they are shown, fit many times.
const LOG_TAIL_BYTES: u64 = 64 * 1024;

/// Sources of a container's last words.
#[derive(Clone, Debug)]
pub(crate) struct TerminationSource {
    /// The termination log on the host, empty for none.
    pub(crate) file: String,
    /// The container's log.
    pub(crate) log: String,
    /// Policy `FallbackToLogsOnError`.
    pub(crate) fallback: bool,
    /// Exit code of the container.
    pub(crate) exit_code: i32,
}

/// Reads the message of an ended container. A file that cannot be read gives an empty message.
pub(crate) fn read_termination_message(source: &TerminationSource) -> String {
    let own = match source.file.as_str() {
        "" => Vec::new(),
        path => read_tail(open_plain_file(Path::new(path)), MESSAGE_BYTES).unwrap_or_default(),
    };
    if own.is_empty() && source.fallback && source.exit_code != 0 {
        let log =
            read_tail(open::open_log(Path::new(&source.log)), LOG_TAIL_BYTES).unwrap_or_default();
        return last_lines(&log);
    }
    String::from_utf8_lossy(&own).into_owned()
}

/// Joins the message of the runtime and that of the container.
pub(crate) fn join_messages(of_runtime: &str, own: &str) -> String {
    let is_either = of_runtime.is_empty() || own.is_empty();
    let between = if is_either { "" } else { ": " };
    format!("{of_runtime}{between}{own}")
}

/// Opens a file that the pod could have replaced by a link or a FIFO.
fn open_plain_file(path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

/// Reads at most `limit` bytes from the end of a plain file.
fn read_tail(file: io::Result<fs::File>, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = file?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(Vec::new());
    }
    file.seek(SeekFrom::Start(meta.len().saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Contents of the last log records, partial ones joined (LOG-01), cut at the front.
fn last_lines(log: &[u8]) -> String {
    let records: Vec<&[u8]> = log
        .split_inclusive(|b| *b == b'\n')
        .rev()
        .take(FALLBACK_LINES)
        .collect();
    let mut text = Vec::new();
    for record in records.into_iter().rev() {
        // Timestamp, stream, tag, content. The first record of the tail may be cut: it is skipped.
        let mut fields = record.splitn(4, |b| *b == b' ');
        let (Some(_), Some(stream), Some(tag), Some(content)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if stream != b"stdout" && stream != b"stderr" {
            continue;
        }
        let partial = tag.first() == Some(&b'P');
        let content = if partial {
            content.strip_suffix(b"\n").unwrap_or(content)
        } else {
            content
        };
        text.extend_from_slice(content);
    }
    let from = text.len().saturating_sub(FALLBACK_BYTES);
    String::from_utf8_lossy(&text[from..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_words_count() {
        // TMSG-01 TMSG-02
        let dir = crate::testing::unused_path("tmsg");
        fs::create_dir_all(&dir).expect("dir");
        let long = "a".repeat(5000) + "END";
        let log = "2024-01-01T00:00:00.000000001Z stdout F one\n2024-01-01T00:00:00.000000002Z stderr P tw\n\
                   2024-01-01T00:00:00.000000003Z stderr F o\nrubbish\n";
        let many: String = (0..100).map(|n| format!("t stdout F line{n}\n")).collect();
        for (name, file, log, fallback, code, want) in [
            ("written", "bye\n", log, false, 0, "bye\n".to_owned()),
            (
                "the end counts",
                &long,
                log,
                false,
                0,
                long[long.len() - 4096..].to_owned(),
            ),
            ("empty, exit 0", "", log, true, 0, String::new()),
            ("empty, failed, File", "", log, false, 1, String::new()),
            (
                "empty, failed, fallback",
                "",
                log,
                true,
                1,
                "one\ntwo\n".to_owned(),
            ),
            ("written wins", "bye", log, true, 1, "bye".to_owned()),
            (
                "80 records",
                "",
                &many,
                true,
                1,
                (20..100).map(|n| format!("line{n}\n")).collect(),
            ),
        ] {
            fs::write(dir.join("file"), file).expect("file");
            fs::write(dir.join("log"), log).expect("log");
            let source = TerminationSource {
                file: dir.join("file").display().to_string(),
                log: dir.join("log").display().to_string(),
                fallback,
                exit_code: code,
            };
            assert_eq!(read_termination_message(&source), want, "{name}");
        }
        let long_log: String = (0..40)
            .map(|_| format!("t stdout F {}\n", "x".repeat(99)))
            .collect();
        assert_eq!(last_lines(long_log.as_bytes()).len(), FALLBACK_BYTES);
        let link = dir.join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).expect("link");
        assert!(
            read_tail(open_plain_file(&link), 10).is_err(),
            "links are not followed"
        );
        fs::remove_dir_all(dir).expect("clean");
    }
}
