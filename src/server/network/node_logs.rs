//! `/logs/?query=…`: logs of the node's services from its journal, or a file below `/var/log` (NLQ).
//!
//! `journalctl` is a child whose output is sent as it comes and never held: a client that does not read holds the child
//! back. The child ends with the answer, however that ends. Nothing is started for a query with a fault.
//!
//! Source: kubelet `kubelet_server_journal.go`.

use core::{cell::Cell, time::Duration};
use std::{
    fs::File,
    io::{self, PipeReader, Read as _, Write as _},
    path::{Path, PathBuf},
};

use async_io::{Async, Timer};
use flate2::{Compression, write::GzEncoder};
use regex_lite::RegexBuilder;

use crate::{
    api::MonoTime,
    error::error_chain,
    logic::node_logs::{
        JournalUnitSearch, NodeLogQuery, NodeLogSource, UNIT_LIST_ARGUMENTS, parse_node_log_query,
        service_log_files,
    },
    server::{
        ServeOutcome,
        allowance::Allowance,
        backend::ServerBackend,
        http::{self, AnswerStream, HttpRequest, Refusal, StreamConnection},
    },
    sys::{
        child::{Child, Command, OutputSink},
        clock,
        lane::HostFileJobError,
        open, turn,
    },
};

/// An answer is complete after so long, or ends.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Bytes that are read at a time.
const PIECE_BYTES: usize = 16 * 1024;
/// Memory for a pattern that is only tried, bytes.
const PATTERN_MEMORY_BYTES: usize = 256 * 1024;
/// Owner of jobs that touch files of the host, which may lie on a network file system. One query is answered at a time.
const JOB_OWNER: &str = "node-logs";
const PROGRAM_DIRS: [&str; 2] = ["/usr/bin", "/bin"];
const TEXT: &str = "text/plain;charset=UTF-8";

/// Places of the logs of a machine.
#[derive(Clone, Debug)]
pub struct NodeLogSettings {
    /// The program `journalctl`, absolute.
    pub journalctl: PathBuf,
    /// Directory of log files.
    pub dir: PathBuf,
    /// An answer is complete after so long, or ends.
    pub answer_time: Duration,
}

impl NodeLogSettings {
    /// Returns those of this machine. `journalctl` may be absent: then there are only files.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let [usual, other] = PROGRAM_DIRS.map(|dir| Path::new(dir).join("journalctl"));
        Self {
            journalctl: if other.exists() && !usual.exists() {
                other
            } else {
                usual
            },
            dir: "/var/log".into(),
            answer_time: ANSWER_TIME,
        }
    }
}

/// Server of queries, one at a time.
pub(super) struct NodeLogServer {
    settings: NodeLogSettings,
    is_busy: Cell<bool>,
}

/// Turn of a query; another may follow when it is dropped.
struct QueryTurn<'a>(&'a Cell<bool>);

impl Drop for QueryTurn<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// File of the host, opened.
struct OpenedLog {
    file: File,
    /// Its length when it was opened.
    length: u64,
}

/// Reason why an answer goes on, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerRoom {
    Open,
    /// Its time or its bytes are spent. It ends here, as a whole one does.
    Spent,
}

impl NodeLogServer {
    pub(super) const fn new(settings: NodeLogSettings) -> Self {
        Self {
            settings,
            is_busy: Cell::new(false),
        }
    }

    /// Serves `/logs/…`. `None`: the request is no query.
    pub(super) async fn serve_query(
        &self,
        backend: &dyn ServerBackend,
        connection: &mut StreamConnection,
        request: &HttpRequest,
    ) -> Option<ServeOutcome> {
        if !matches!(request.method.as_str(), "GET" | "POST") {
            let refusal = Refusal::new(405, "405: Method Not Allowed");
            let lines = "Allow: GET, POST\r\n";
            let sent = http::send_refusal_with_headers(connection, &refusal, lines).await;
            return Some(sent.map(Ok));
        }
        let query = match parse_node_log_query(&request.query) {
            Ok(query) => query?,
            Err(e) => return Some(Ok(Err(Refusal::bad_request(e.to_string())))),
        };
        let is_gzip = request.header_value("accept-encoding") == Some("gzip");
        let is_bare = request.path.len() == 1;
        Some(match self.admit_query(backend, &query, is_bare).await {
            Ok((_turn, file)) => {
                let answered = self.answer_query(backend, connection, &query, file, is_gzip);
                Box::pin(answered).await.map(Ok)
            }
            Err(refusal) => Ok(Err(refusal)),
        })
    }

    /// Checks the rest of a query, takes its turn, and opens the file that it asks for.
    async fn admit_query(
        &self,
        backend: &dyn ServerBackend,
        query: &NodeLogQuery,
        is_bare: bool,
    ) -> Result<(QueryTurn<'_>, Option<OpenedLog>), Refusal> {
        if !is_bare {
            return Err(Refusal::new(406, "path not allowed in query mode"));
        }
        let mut pattern = RegexBuilder::new(query.pattern());
        if let Err(e) = pattern.size_limit(PATTERN_MEMORY_BYTES).build() {
            let text = format!("pattern: Invalid value: {:?}: {e}", query.pattern());
            return Err(Refusal::bad_request(text));
        }
        if self.is_busy.replace(true) {
            return Err(Refusal::new(
                429,
                "another query for logs is being answered",
            ));
        }
        let turn = QueryTurn(&self.is_busy);
        let NodeLogSource::File(file) = &query.source else {
            return Ok((turn, None));
        };
        match self.open_file(backend, file).await {
            Ok(opened) => Ok((turn, Some(opened))),
            Err(e) => {
                let text = format!("query: Invalid value: {file:?}: {e}");
                Err(Refusal::bad_request(text))
            }
        }
    }

    async fn open_file(&self, backend: &dyn ServerBackend, path: &str) -> io::Result<OpenedLog> {
        let (dir, path) = (self.settings.dir.clone(), PathBuf::from(path));
        let job = move || -> io::Result<OpenedLog> {
            let file = open::open_file_in_root(&dir, &path)?;
            let length = file.metadata()?.len();
            Ok(OpenedLog { file, length })
        };
        let opened = backend.disk_lane().run_host_file_job(JOB_OWNER, job).await;
        opened.unwrap_or_else(|e| Err(to_io_error(&e)))
    }

    async fn answer_query(
        &self,
        backend: &dyn ServerBackend,
        connection: &mut StreamConnection,
        query: &NodeLogQuery,
        file: Option<OpenedLog>,
        is_gzip: bool,
    ) -> io::Result<()> {
        let allowance = Allowance::new(backend, connection);
        let lines = if is_gzip {
            "Content-Encoding: gzip\r\n"
        } else {
            ""
        };
        let mut answer = LogAnswer {
            stream: http::start_stream_with_headers(connection, TEXT, lines).await?,
            packer: is_gzip.then(|| GzEncoder::new(Vec::new(), Compression::fast())),
            allowance,
            deadline: clock::mono_now() + self.settings.answer_time,
        };
        match (&query.source, file) {
            (NodeLogSource::Services(services), _) => {
                self.send_services(backend, &mut answer, query, services)
                    .await?;
            }
            (NodeLogSource::File(_), Some(file)) => {
                answer.send_file(backend, file).await?;
            }
            (NodeLogSource::File(_), None) => {}
        }
        answer.finish().await
    }

    async fn send_services(
        &self,
        backend: &dyn ServerBackend,
        answer: &mut LogAnswer<'_>,
        query: &NodeLogQuery,
        services: &[String],
    ) -> io::Result<()> {
        let Some((of_journal, of_files)) = self.find_services(answer, services).await? else {
            return Ok(());
        };
        if !of_journal.is_empty() {
            let arguments = query.journal_arguments(&of_journal);
            match self.start_journalctl(&arguments, true) {
                Ok((mut child, mut pipe)) => {
                    let mut piece = vec![0; PIECE_BYTES];
                    // Bounded: by the time of the answer, and each round waits for the child.
                    while let Some(length) = answer.read_output(&mut pipe, &mut piece).await? {
                        if answer.send_bytes(&piece[..length]).await? == AnswerRoom::Spent {
                            return Ok(());
                        }
                    }
                    // Its exit code says only that there was nothing to print, or what it has said itself.
                    answer.wait_within(child.wait()).await?;
                }
                Err(e) => {
                    log::info!("{e}");
                    let text = b"\nerror: journal output not available\n";
                    answer.send_bytes(text).await?;
                }
            }
        }
        if of_files.is_empty() {
            return Ok(());
        }
        if query.has_options() {
            let names = of_files.join(" ");
            let text = format!(
                "\noptions present and query resolved to log files for [{names}]\ntry without specifying options\n"
            );
            return answer.send_bytes(text.as_bytes()).await.map(drop);
        }
        for service in &of_files {
            if self.send_service_file(backend, answer, service).await? == AnswerRoom::Spent {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn send_service_file(
        &self,
        backend: &dyn ServerBackend,
        answer: &mut LogAnswer<'_>,
        service: &str,
    ) -> io::Result<AnswerRoom> {
        for path in service_log_files(service) {
            let opened = self.open_file(backend, &path);
            let Some(opened) = answer.wait_within(opened).await? else {
                return Ok(AnswerRoom::Spent);
            };
            match opened {
                Ok(file) => return answer.send_file(backend, file).await,
                // A directory is no log.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
                    ) => {}
                Err(e) => {
                    let text = format!("\nerror getting log for {service}: {e}\n");
                    return answer.send_bytes(text.as_bytes()).await;
                }
            }
        }
        let text = format!("\nlog not found for {service}\n");
        answer.send_bytes(text.as_bytes()).await
    }

    /// Divides the services into those of the journal, and the others. Without a journal all are others. `None`: the
    /// time of the answer is over.
    async fn find_services(
        &self,
        answer: &mut LogAnswer<'_>,
        services: &[String],
    ) -> io::Result<Option<(Vec<String>, Vec<String>)>> {
        let arguments = UNIT_LIST_ARGUMENTS.map(String::from);
        let Ok((mut child, mut pipe)) = self.start_journalctl(&arguments, false) else {
            return Ok(Some((Vec::new(), services.to_vec())));
        };
        let mut search = JournalUnitSearch::new(services);
        let mut piece = vec![0; PIECE_BYTES];
        // Bounded: by the time of the answer, and each round waits for the child.
        while let Some(length) = answer.read_output(&mut pipe, &mut piece).await? {
            search.feed_bytes(&piece[..length]);
        }
        Ok(match answer.wait_within(child.wait()).await? {
            None => None,
            Some(Ok(status)) if status.success() => Some(search.split_services()),
            Some(_) => Some((Vec::new(), services.to_vec())),
        })
    }

    /// Starts `journalctl`; its errors come in the same pipe if they are wanted. Dropping the child kills it.
    fn start_journalctl(
        &self,
        arguments: &[String],
        with_errors: bool,
    ) -> io::Result<(Child, Async<PipeReader>)> {
        let (reader, writer) = io::pipe()?;
        let errors = match with_errors {
            true => OutputSink::Fd(writer.try_clone()?.into()),
            false => OutputSink::Null,
        };
        let child = Command::new(&self.settings.journalctl)
            .args(arguments)
            .env("PATH", PROGRAM_DIRS.join(":"))
            // Times in arguments are local ones.
            .env("TZ", "UTC")
            .env("LC_ALL", "C.UTF-8")
            .stdout(OutputSink::Fd(writer.into()))
            .stderr(errors)
            .spawn()?;
        Ok((child, Async::new(reader)?))
    }
}

/// Makes an error of the thread that was to look at a file into one of the file.
fn to_io_error(error: &HostFileJobError) -> io::Error {
    io::Error::other(error_chain(error))
}

/// Answer that is under way.
struct LogAnswer<'a> {
    stream: AnswerStream<'a>,
    packer: Option<GzEncoder<Vec<u8>>>,
    allowance: Option<Allowance<'a>>,
    deadline: MonoTime,
}

impl LogAnswer<'_> {
    /// Waits for `work`, but not longer than the answer has time: then `None`.
    ///
    /// # Errors
    /// The client has left.
    async fn wait_within<T>(&mut self, work: impl Future<Output = T>) -> io::Result<Option<T>> {
        let left = self.deadline - clock::mono_now();
        let work = async { Ok(Some(work.await)) };
        let late = async {
            Timer::after(left).await;
            Ok(None)
        };
        let gone = async {
            self.stream.wait_for_close().await;
            Err(io::ErrorKind::ConnectionAborted.into())
        };
        smol::future::or(work, smol::future::or(late, gone)).await
    }

    /// Reads the next bytes of a child. `None`: its output ends, or the time.
    async fn read_output(
        &mut self,
        pipe: &mut Async<PipeReader>,
        piece: &mut [u8],
    ) -> io::Result<Option<usize>> {
        turn::yield_to_others().await;
        let read = pipe.read_with(|mut pipe| pipe.read(piece));
        let read = self.wait_within(read).await?.transpose()?;
        Ok(read.filter(|length| *length > 0))
    }

    /// Sends a file as long as it was when it was opened: one that grows would have no end.
    async fn send_file(
        &mut self,
        backend: &dyn ServerBackend,
        log: OpenedLog,
    ) -> io::Result<AnswerRoom> {
        let (mut file, mut left) = (log.file, log.length);
        // Bounded: by the length of the file and the time of the answer; each round waits for a thread.
        while left > 0 {
            let job = move || {
                let mut piece = vec![0; PIECE_BYTES];
                let read = file.read(&mut piece);
                (file, piece, read)
            };
            let job = backend.disk_lane().run_host_file_job(JOB_OWNER, job);
            let Some(done) = self.wait_within(job).await? else {
                return Ok(AnswerRoom::Spent);
            };
            let (back, piece, read) = done.map_err(|e| to_io_error(&e))?;
            file = back;
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let length = read?.min(most);
            if length == 0 {
                break;
            }
            left -= u64::try_from(length).unwrap_or(left);
            if self.send_bytes(&piece[..length]).await? == AnswerRoom::Spent {
                return Ok(AnswerRoom::Spent);
            }
        }
        Ok(AnswerRoom::Open)
    }

    /// Sends more of it. If these were the last bytes that its client may have, they say so.
    async fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<AnswerRoom> {
        self.send_packed(bytes).await?;
        let carried = self.stream.carried_bytes();
        let Some(why) = self.allowance.and_then(|it| it.spent_reason(carried)) else {
            return Ok(AnswerRoom::Open);
        };
        let line = format!("\npicolet: {why}\n");
        self.send_packed(line.as_bytes()).await?;
        Ok(AnswerRoom::Spent)
    }

    async fn send_packed(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.packer {
            None => self.send_in_time(bytes).await,
            Some(packer) => {
                packer.write_all(bytes)?;
                let ready = core::mem::take(packer.get_mut());
                self.send_in_time(&ready).await
            }
        }
    }

    /// A client that takes the bytes too late gets no end of the answer: part of them may have been sent.
    async fn send_in_time(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.deadline - clock::mono_now();
        let late = async {
            Timer::after(left).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        smol::future::or(self.stream.send_bytes(bytes), late).await
    }

    async fn finish(mut self) -> io::Result<()> {
        if let Some(packer) = self.packer.take() {
            self.stream.send_bytes(&packer.finish()?).await?;
        }
        self.stream.finish_answer().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_program_takes_the_arguments() {
        // NLQ-03
        let settings = NodeLogSettings::of_this_machine();
        if !settings.journalctl.exists() {
            eprintln!("SKIPPED the_real_program_takes_the_arguments: no journalctl");
            return;
        }
        let server = NodeLogServer::new(settings);
        let parameters = [
            ("query", "a"),
            ("sinceTime", "2026-01-01T00:00:00Z"),
            ("untilTime", "2026-01-02T00:00:00Z"),
            ("tailLines", "1"),
            ("boot", "0"),
            ("pattern", "x"),
        ];
        let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let query = parse_node_log_query(&parameters).expect("valid");
        let listed = UNIT_LIST_ARGUMENTS.map(String::from).to_vec();
        let printed = query.expect("a query").journal_arguments(&["a".into()]);
        for arguments in [listed, printed] {
            let (mut child, pipe) = server.start_journalctl(&arguments, true).expect("started");
            let text = smol::block_on(async {
                let mut text = Vec::new();
                let mut piece = [0; 1024];
                loop {
                    let read = pipe.read_with(|mut pipe| pipe.read(&mut piece)).await;
                    match read.expect("read") {
                        0 => break,
                        length => text.extend_from_slice(&piece[..length]),
                    }
                }
                child.wait().await.expect("ended");
                String::from_utf8_lossy(&text).into_owned()
            });
            for bad in ["option", "parse", "argument"] {
                assert!(!text.contains(bad), "{arguments:?}: {text}");
            }
        }
    }
}
