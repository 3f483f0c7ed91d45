//! Queries for the logs of the node: their parameters, the arguments of `journalctl`, and the files that a service may log
//! to (NLQ).
//!
//! Source: kubelet `kubelet_server_journal.go`, `kubelet_server_journal_linux.go`.

use alloc::{
    format,
    string::{String, ToString as _},
    vec,
    vec::Vec,
};

use crate::api::WallTime;

/// Most services of one query.
pub const MAX_SERVICES: usize = 4;
/// Longest name of a service, bytes.
pub const MAX_SERVICE_BYTES: usize = 256;
/// Most lines that may be asked for from the end of a journal.
pub const MAX_TAIL_LINES: i32 = 100_000;
/// Longest pattern, bytes.
pub const MAX_PATTERN_BYTES: usize = 1024;
/// Longest name of a unit in the journal that is compared, bytes. Longer than that of any service that may be asked for.
const MAX_UNIT_BYTES: usize = 512;
/// Ending of the unit of a service.
const UNIT_SUFFIX: &str = ".service";

/// Query for logs of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLogQuery {
    /// Sources of the logs.
    pub source: NodeLogSource,
    options: NodeLogOptions,
}

/// Sources of the logs of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeLogSource {
    /// 1 to [`MAX_SERVICES`] services, by the names of their units, mostly without `.service`.
    Services(Vec<String>),
    /// A file, relative to the directory of logs.
    File(String),
}

/// Part of a journal that a query asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeLogOptions {
    since: Option<WallTime>,
    until: Option<WallTime>,
    tail_lines: Option<i32>,
    /// 0 is the current boot, -1 the one before.
    boot: Option<i32>,
    /// Regular expression; empty: all lines.
    pattern: String,
}

/// Fault of a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeLogQueryError {
    /// Options without a source.
    #[error("query: Required value: cannot be empty with options")]
    NoSource,
    /// So many services.
    #[error("query: Too many: {0}: must have at most {MAX_SERVICES} items")]
    TooManyServices(usize),
    /// A parameter has a wrong value.
    #[error("{parameter}: Invalid value: {value:?}: {reason}")]
    Invalid {
        /// Name of the parameter.
        parameter: &'static str,
        /// Its value.
        value: String,
        /// Fault of the value.
        reason: &'static str,
    },
}

fn invalid_value<T>(
    parameter: &'static str,
    value: &str,
    reason: &'static str,
) -> Result<T, NodeLogQueryError> {
    Err(NodeLogQueryError::Invalid {
        parameter,
        value: value.into(),
        reason,
    })
}

/// Reads the parameters of a request; `None`: none of them belongs to a query.
pub fn parse_node_log_query(
    parameters: &[(String, String)],
) -> Result<Option<NodeLogQuery>, NodeLogQueryError> {
    let values = |name: &'static str| {
        let named = parameters.iter().filter(move |(key, _)| key == name);
        named.map(|(_, value)| value.as_str())
    };
    let first = |name| values(name).next().unwrap_or("");
    let options = NodeLogOptions {
        since: parse_time("sinceTime", first("sinceTime"))?,
        until: parse_time("untilTime", first("untilTime"))?,
        tail_lines: parse_number("tailLines", first("tailLines"))?,
        boot: parse_number("boot", first("boot"))?,
        pattern: first("pattern").into(),
    };
    let asked = values("query").filter(|value| !value.trim().is_empty());
    let (files, services): (Vec<_>, Vec<_>) = asked.partition(|value| value.contains(['/', '\\']));
    let source = match (files.as_slice(), services.as_slice()) {
        ([], []) if values("query").next().is_some() => {
            return invalid_value("query", first("query"), "query cannot be empty");
        }
        ([], []) if options == NodeLogOptions::default() => return Ok(None),
        ([], []) => return Err(NodeLogQueryError::NoSource),
        ([file, ..], [_, ..]) => {
            return invalid_value("query", file, "cannot specify a file and service");
        }
        ([_, file, ..], []) => {
            return invalid_value("query", file, "cannot specify more than one file");
        }
        ([file], []) if options != NodeLogOptions::default() => {
            return invalid_value("query", file, "cannot specify file with options");
        }
        ([file], []) => NodeLogSource::File(file.replace('\\', "/")),
        ([], services) => {
            for service in services {
                check_service_name(service)?;
            }
            if services.len() > MAX_SERVICES {
                return Err(NodeLogQueryError::TooManyServices(services.len()));
            }
            NodeLogSource::Services(services.iter().map(|name| String::from(*name)).collect())
        }
    };
    check_options(&options)?;
    Ok(Some(NodeLogQuery { source, options }))
}

fn parse_time(name: &'static str, text: &str) -> Result<Option<WallTime>, NodeLogQueryError> {
    match WallTime::parse(text) {
        _ if text.is_empty() => Ok(None),
        None => invalid_value(name, text, "invalid time format"),
        at => Ok(at),
    }
}

fn parse_number(name: &'static str, text: &str) -> Result<Option<i32>, NodeLogQueryError> {
    match text.parse() {
        _ if text.is_empty() => Ok(None),
        Err(_) => invalid_value(name, text, "is not a number"),
        Ok(number) => Ok(Some(number)),
    }
}

/// Names go into arguments and paths: only characters that mean nothing there.
fn check_service_name(name: &str) -> Result<(), NodeLogQueryError> {
    if name.len() > MAX_SERVICE_BYTES {
        return invalid_value("query", name, "must be at most 256 characters");
    }
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "-_@.:".contains(c);
    match name.chars().all(is_safe) {
        true => Ok(()),
        false => invalid_value("query", name, "input contains unsupported characters"),
    }
}

fn check_options(options: &NodeLogOptions) -> Result<(), NodeLogQueryError> {
    if let (Some(since), Some(until)) = (options.since, options.until)
        && since > until
    {
        return invalid_value("untilTime", &until.to_string(), "must be after `sinceTime`");
    }
    if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
        return invalid_value("boot", &boot.to_string(), "must be less than 1");
    }
    let is_out = |lines: &i32| !(0..=MAX_TAIL_LINES).contains(lines);
    if let Some(lines) = options.tail_lines.filter(is_out) {
        let reason = "must be between 0 and 100000, inclusive";
        return invalid_value("tailLines", &lines.to_string(), reason);
    }
    match options.pattern.len() {
        0..=MAX_PATTERN_BYTES => Ok(()),
        _ => invalid_value("pattern", "", "must be at most 1024 bytes"),
    }
}

impl NodeLogQuery {
    /// Regular expression that lines have to match; empty: none.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.options.pattern
    }

    /// Returns true if only a part of the logs is asked for. Files have no parts.
    #[must_use]
    pub fn has_options(&self) -> bool {
        self.options != NodeLogOptions::default()
    }

    /// Arguments of the `journalctl` that prints the logs of these services. Its local time has to be UTC.
    #[must_use]
    pub fn journal_arguments(&self, services: &[String]) -> Vec<String> {
        let options = &self.options;
        let mut all = vec![
            "--utc".into(),
            "--no-pager".into(),
            "--output=short-precise".into(),
        ];
        let times = [("since", options.since), ("until", options.until)];
        for (name, at) in times {
            all.extend(at.map(|at| format!("--{name}={}", journal_time(at))));
        }
        if let Some(lines) = options.tail_lines {
            all.push("--pager-end".into());
            all.push(format!("--lines={lines}"));
        }
        all.extend(services.iter().map(|service| format!("--unit={service}")));
        if !options.pattern.is_empty() {
            all.push(format!("--grep={}", options.pattern));
        }
        all.extend(options.boot.map(|boot| format!("--boot={boot}")));
        all
    }
}

/// Date and time as `journalctl` reads them: whole seconds.
fn journal_time(at: WallTime) -> String {
    const SECONDS_END: usize = "2026-01-01T00:00:00".len();
    let mut text = at.rfc3339_nanos();
    text.truncate(SECONDS_END);
    text.replace('T', " ")
}

/// Arguments of the `journalctl` that lists all units of the journal, one a line.
pub const UNIT_LIST_ARGUMENTS: [&str; 2] = ["--field", "_SYSTEMD_UNIT"];

/// Search for services among the units of a journal, which come as lines in pieces.
#[derive(Debug)]
pub struct JournalUnitSearch<'a> {
    services: &'a [String],
    is_found: Vec<bool>,
    /// Start of a line whose end has not come; at most [`MAX_UNIT_BYTES`].
    line: Vec<u8>,
}

impl<'a> JournalUnitSearch<'a> {
    /// Begins a search.
    #[must_use]
    pub fn new(services: &'a [String]) -> Self {
        Self {
            services,
            is_found: vec![false; services.len()],
            line: Vec::new(),
        }
    }

    /// Takes the next piece.
    pub fn feed_bytes(&mut self, piece: &[u8]) {
        for byte in piece {
            match byte {
                b'\n' => self.end_line(),
                // A line that is full is longer than all that is looked for.
                byte if self.line.len() < MAX_UNIT_BYTES => self.line.push(*byte),
                _ => {}
            }
        }
    }

    fn end_line(&mut self) {
        for (service, is_found) in self.services.iter().zip(&mut self.is_found) {
            let is_unit = |end: &[u8]| end == UNIT_SUFFIX.as_bytes() || end.is_empty();
            let rest = self.line.strip_prefix(service.as_bytes());
            // The name of another kind of unit, such as a mount, is whole.
            *is_found |=
                rest.is_some_and(|end| is_unit(end) && (!end.is_empty() || service.contains('.')));
        }
        self.line.clear();
    }

    /// Divides the services into those of the journal, and the others. Each in the order of the query.
    #[must_use]
    pub fn split_services(mut self) -> (Vec<String>, Vec<String>) {
        self.end_line();
        let both = self.services.iter().cloned().zip(self.is_found);
        let (journal, files): (Vec<_>, Vec<_>) = both.partition(|(_, is_found)| *is_found);
        let names = |all: Vec<(String, bool)>| all.into_iter().map(|(name, _)| name).collect();
        (names(journal), names(files))
    }
}

/// Returns the files that a service may log to, below the directory of logs; the first that is there counts.
#[must_use]
pub fn service_log_files(service: &str) -> [String; 3] {
    [
        service.into(),
        format!("{service}.log"),
        format!("{service}/{service}.log"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Option<NodeLogQuery>, String> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs: Vec<_> = pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        parse_node_log_query(&pairs).map_err(|e| e.to_string())
    }

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| String::from(*name)).collect()
    }

    #[test]
    fn sources() {
        // NLQ-01 NLQ-02
        let services = |all: &[&str]| NodeLogSource::Services(names(all));
        for (query, source) in [
            ("query=picolet", services(&["picolet"])),
            (
                "query=a&query=b@1&query=c_d&query=E-f.g:h&other=x",
                services(&["a", "b@1", "c_d", "E-f.g:h"]),
            ),
            ("query=a&query=", services(&["a"])),
            ("query=/syslog", NodeLogSource::File("/syslog".into())),
            (
                "query=nginx\\access.log",
                NodeLogSource::File("nginx/access.log".into()),
            ),
        ] {
            let parsed = parse(query).expect(query).expect(query);
            assert_eq!(parsed.source, source, "{query}");
            assert!(!parsed.has_options(), "{query}");
        }
        for none in ["", "follow=true", "sinceTime=&boot=&pattern="] {
            assert_eq!(parse(none), Ok(None), "{none}");
        }
        let many = ["x"; 5].map(|name| format!("query={name}")).join("&");
        let long = format!("query={}", "x".repeat(MAX_SERVICE_BYTES + 1));
        for (query, says) in [
            ("query=", "query cannot be empty"),
            ("query= &query=", "query cannot be empty"),
            (
                "tailLines=3",
                "query: Required value: cannot be empty with options",
            ),
            ("pattern=x", "cannot be empty with options"),
            ("query=a/b&query=c", "cannot specify a file and service"),
            ("query=/a&query=/b", "cannot specify more than one file"),
            ("query=/a&boot=0", "cannot specify file with options"),
            (
                "query=a b",
                "query: Invalid value: \"a b\": input contains unsupported characters",
            ),
            ("query=$(reboot)", "unsupported characters"),
            ("query=ü", "unsupported characters"),
            (&*many, "query: Too many: 5: must have at most 4 items"),
            (&*long, "must be at most 256 characters"),
        ] {
            let error = parse(query).expect_err(query);
            assert!(error.contains(says), "{query}: {error}");
        }
        let longest = format!("query={}", "x".repeat(MAX_SERVICE_BYTES));
        assert!(parse(&longest).is_ok());
    }

    #[test]
    fn options_and_arguments() {
        // NLQ-02 NLQ-03
        for (query, says) in [
            (
                "sinceTime=yesterday",
                "sinceTime: Invalid value: \"yesterday\": invalid time format",
            ),
            (
                "untilTime=2026-01-01",
                "untilTime: Invalid value: \"2026-01-01\": invalid time format",
            ),
            (
                "sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                "must be after `sinceTime`",
            ),
            ("tailLines=-1", "must be between 0 and 100000"),
            ("tailLines=100001", "must be between 0 and 100000"),
            (
                "tailLines=1.5",
                "tailLines: Invalid value: \"1.5\": is not a number",
            ),
            ("boot=1", "must be less than 1"),
            ("boot=x", "is not a number"),
            (
                &*format!("pattern={}", "x".repeat(MAX_PATTERN_BYTES + 1)),
                "must be at most 1024 bytes",
            ),
        ] {
            let query = format!("query=a&{query}");
            let error = parse(&query).expect_err(&query);
            assert!(error.contains(says), "{query}: {error}");
        }
        for (query, arguments) in [
            ("", &["--unit=a", "--unit=b"][..]),
            (
                "sinceTime=2026-09-04T01:02:03.5%2B02:00",
                &["--since=2026-09-03 23:02:03", "--unit=a", "--unit=b"],
            ),
            // Alone: some kubelets fail.
            (
                "untilTime=2026-09-04T01:02:03Z",
                &["--until=2026-09-04 01:02:03", "--unit=a", "--unit=b"],
            ),
            (
                "sinceTime=2026-01-01T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                &[
                    "--since=2026-01-01 00:00:00",
                    "--until=2026-01-01 00:00:00",
                    "--unit=a",
                    "--unit=b",
                ],
            ),
            (
                "tailLines=0",
                &["--pager-end", "--lines=0", "--unit=a", "--unit=b"],
            ),
            (
                "tailLines=100000",
                &["--pager-end", "--lines=100000", "--unit=a", "--unit=b"],
            ),
            ("pattern=^--x y", &["--unit=a", "--unit=b", "--grep=^--x y"]),
            ("boot=0", &["--unit=a", "--unit=b", "--boot=0"]),
            ("boot=-2", &["--unit=a", "--unit=b", "--boot=-2"]),
        ] {
            let query = format!("query=a&query=b&{query}").replace("%2B", "+");
            let parsed = parse(&query).expect(&query).expect(&query);
            let NodeLogSource::Services(services) = &parsed.source else {
                panic!("{query}");
            };
            let all = parsed.journal_arguments(services);
            assert_eq!(all[..3], ["--utc", "--no-pager", "--output=short-precise"]);
            assert_eq!(all[3..], *arguments, "{query}");
            assert_eq!(parsed.has_options(), arguments.len() > 2, "{query}");
        }
    }

    #[test]
    fn services_of_the_journal() {
        // NLQ-04
        let services = names(&["ssh", "cron", "proc.mount", "x.service", "proc"]);
        let long = "y".repeat(2 * MAX_UNIT_BYTES);
        let units =
            format!("my-ssh.service\n{long}\nssh.service\nproc.mount\ncron.service.d\nx.service");
        for step in [1, 7, units.len()] {
            let mut search = JournalUnitSearch::new(&services);
            for piece in units.as_bytes().chunks(step) {
                search.feed_bytes(piece);
                assert!(search.line.len() <= MAX_UNIT_BYTES);
            }
            let (journal, files) = search.split_services();
            assert_eq!(journal, ["ssh", "proc.mount", "x.service"], "{step}");
            assert_eq!(files, ["cron", "proc"], "{step}");
        }
        assert_eq!(service_log_files("a"), ["a", "a.log", "a/a.log"]);
    }
}
