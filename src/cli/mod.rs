//! Command line and local commands. Habits of kubectl carry over: names, columns, flags, exit codes.
//!
//! Two steps: words become one of the command structures (typed text first), then the command is carried out.

pub(crate) mod args;
mod attach;
pub(crate) mod check;
pub(crate) mod client;
pub(crate) mod commands;
mod completion;
mod cp;
pub(crate) mod delete;
mod describe;
mod elastic;
mod events;
mod exec;
mod explain;
pub(crate) mod get;
pub(crate) mod health;
mod image;
mod live;
pub(crate) mod logs;
mod man;
#[cfg(test)]
mod mistakes;
mod pods;
mod port_forward;
pub(crate) mod progress;
mod remote;
mod reset;
pub(crate) mod restart;
mod stop;
pub(crate) mod table;
mod top;
mod verify;
mod wait;

use std::{
    ffi::OsString,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use args::{CliWord, CliWords};
pub(crate) use client::AgentClient;
pub(crate) use commands::CliCommand;
use get::OutputFormat;
use serde_json::json;

use crate::agent::{ProgramName, ServiceManagerEnv};
use crate::logic::spelling::suggest_name;
use crate::net::ProxyVariables;
use crate::parts;
use crate::runtime::runc::{exec_wait, pod_init, process};

/// Name under which the program, as a link or a copy, is `picolet run` with a kubelet's ways (KADM-02).
pub(crate) const KUBELET: &str = "kubelet";
/// Socket of the agent, unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/picolet/picolet.sock";
/// Environment variable that names the agent's socket.
pub const SOCKET_VARIABLE: &str = "PICOLET_SOCKET";

/// Error of a command, with its exit code.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CliError {
    pub(crate) message: String,
    pub(crate) code: u8,
}

impl CliError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: format!("error: {}", message.into()),
            code: 1,
        }
    }

    /// Message as a part of another sentence.
    pub(crate) fn bare_message(&self) -> &str {
        self.message.trim_start_matches("error: ")
    }

    /// Makes the error of an agent's answer, in kubectl's words for one of the apiserver.
    fn from_server(status: u16, text: &str) -> Self {
        let reason = match status {
            400 => "BadRequest",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            _ => "InternalError",
        };
        Self {
            message: format!("Error from server ({reason}): {text}"),
            code: 1,
        }
    }
}

impl From<lexopt::Error> for CliError {
    fn from(e: lexopt::Error) -> Self {
        Self::new(e.to_string())
    }
}

/// Entry point of the program, but for `picolet shim`.
///
/// Not inlined, like [`execute_command`] and [`crate::agent::agent_main`]: the frames of commands would be part of
/// the stack of the process that stays, the shim's (80 KiB, once).
#[must_use]
#[inline(never)]
pub fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next();
    let mut words: Vec<OsString> = words.collect();
    let called_as = |name: &str| {
        called
            .as_ref()
            .is_some_and(|path| Path::new(path).file_name() == Some(name.as_ref()))
    };
    if called_as(KUBELET) {
        return crate::agent::agent_main(words, ProgramName::Kubelet, read_service_manager());
    }
    if called_as(process::PROGRAM) {
        return process::run_process_runtime(&words);
    }
    let at = command_place(&words);
    let command = if at < words.len() {
        words.remove(at)
    } else {
        "help".into()
    };
    match run_command(&command.to_string_lossy(), words) {
        Ok(code) => code,
        Err(e) => {
            if e.code == 0 {
                let _ = print_text(&format!("{e}\n"));
            } else if !e.message.is_empty() {
                print_error(&e);
            }
            ExitCode::from(e.code)
        }
    }
}

/// Finds the place of the command: flags of all commands may stand before it, as kubectl takes them.
fn command_place(words: &[OsString]) -> usize {
    match words.first().and_then(|w| w.to_str()) {
        Some("--socket") => 2,
        Some(word) if word.starts_with("--socket=") => 1,
        _ => 0,
    }
}

fn run_command(command: &str, words: Vec<OsString>) -> Result<ExitCode, CliError> {
    match command {
        "run" => {
            #[cfg(feature = "crash-points")]
            if let Some(text) = std::env::var_os(crate::sys::crash::VARIABLE) {
                crate::sys::crash::arm(&text.to_string_lossy());
            }
            return Ok(crate::agent::agent_main(
                words,
                ProgramName::Picolet,
                read_service_manager(),
            ));
        }
        completion::NAMES_COMMAND => {
            return completion::print_names(words).map(|()| ExitCode::SUCCESS);
        }
        pod_init::COMMAND => return Ok(pod_init::run_pod_init(words)),
        exec_wait::COMMAND => return Ok(exec_wait::run_exec_wait(&words)),
        "--help" | "-h" => {
            return print_text(&commands::overview_text()).map(|()| ExitCode::SUCCESS);
        }
        _ => {}
    }
    let command = match command {
        "--version" | "-V" | "-v" => "version",
        other => other,
    };
    let (known, words) = find_command_of_words(command, words)?;
    execute_command(known, words)
}

/// Counts the sockets that the service manager has handed over to this process. Source: sd_listen_fds(3).
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the environment is read"
)]
pub(crate) fn handed_sockets() -> usize {
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    let own = usize::try_from(std::process::id()).ok();
    let is_ours = number("LISTEN_PID") == own;
    number("LISTEN_FDS").filter(|_| is_ours).unwrap_or(0)
}

/// Reads the environment variables of a service manager.
fn read_service_manager() -> ServiceManagerEnv {
    ServiceManagerEnv {
        socket: std::env::var_os("NOTIFY_SOCKET"),
        watchdog_usec: std::env::var_os("WATCHDOG_USEC"),
        watchdog_pid: std::env::var_os("WATCHDOG_PID"),
        proxies: read_proxies(),
    }
}

/// Finds a command. Takes the second word of a command of two out of the words behind the first.
fn find_command_of_words(
    first: &str,
    mut words: Vec<OsString>,
) -> Result<(&'static CliCommand, Vec<OsString>), CliError> {
    let second = |word: &OsString| CliCommand::find_command(first, word.to_str());
    if let Some((command, _)) = CliCommand::find_command(first, None) {
        return Ok((command, words));
    }
    if CliCommand::is_command_family(first) {
        // Flags may stand before the second word, each with its value.
        let mut typed = "";
        let mut unknown = String::new();
        let mut is_value = false;
        for (at, word) in words.iter().enumerate() {
            if let Some((command, _)) = second(word) {
                words.remove(at);
                return Ok((command, words));
            }
            typed = word.to_str().unwrap_or("");
            let is_flag = typed.starts_with('-');
            if !is_flag && !is_value {
                unknown = format!("unknown command \"{first} {typed}\": ");
                break;
            }
            is_value = is_flag && !typed.contains('=');
        }
        let is_help = |word: &OsString| word == "-h" || word == "--help";
        if words.is_empty() || words.iter().any(is_help) {
            let message = commands::family_text(first).trim_end().to_owned();
            return Err(CliError { message, code: 0 });
        }
        let verbs: Vec<&str> = commands::all_commands()
            .filter_map(|c| c.name.split_once(' '))
            .filter(|(family, _)| *family == first)
            .map(|(_, verb)| verb)
            .collect();
        let meant = suggest_name(typed, "", &mut verbs.iter().copied());
        return Err(CliError::new(format!(
            "{unknown}expected 'picolet {first} {}'{meant}",
            verbs.join("|")
        )));
    }
    let of_others = commands::OF_OTHERS.iter();
    let hint = match of_others
        .into_iter()
        .find(|(words, _)| words.split(' ').any(|w| w == first))
    {
        Some((_, hint)) => format!(": {hint}"),
        None if first.starts_with('-') => ": only --socket can stand before the command".into(),
        None => suggest_name(first, "", &mut commands::first_words().into_iter()),
    };
    Err(CliError::new(format!(
        "unknown command {first:?}{hint}\nRun 'picolet help' for usage."
    )))
}

#[inline(never)]
fn execute_command(
    command: &'static CliCommand,
    words: Vec<OsString>,
) -> Result<ExitCode, CliError> {
    let done = |()| ExitCode::SUCCESS;
    if command.name == "check" {
        return check::run_check(command, words);
    }
    if let Some(part) = parts::part_commands().find(|part| part.command.name == command.name) {
        return (part.run)(command, words);
    }
    if command.name == "reset" {
        return reset::run_reset(command, words).map(done);
    }
    if command.name == "delete" {
        return delete::run_delete(command, words).map(done);
    }
    let words = CliWords::new(command, words);
    match command.name {
        "get" => get::run_get(words).map(done),
        "describe" => describe::run_describe(words).map(done),
        "logs" => logs::run_logs(words).map(done),
        "events" => events::run_events(words).map(done),
        "explain" => explain::run_explain(words).map(done),
        "wait" => wait::run_wait(words).map(done),
        "restart" => restart::run_restart(words).map(done),
        "top" => top::run_top(words).map(done),
        "exec" => exec::run_exec(words),
        "cp" => cp::run_cp(words),
        "attach" => attach::run_attach(words),
        "port-forward" => port_forward::run_port_forward(words).map(done),
        "stop" => stop::run_stop(words).map(done),
        "completion" => completion::run_completion(words).map(done),
        "man" => expect_no_words(words)
            .and_then(|()| print_text(&man::manual_page()))
            .map(done),
        "help" => print_help(words).map(done),
        "health" => health::run_health(words).map(done),
        "debug dump" => print_debug_dump(words).map(done),
        "config view" => print_configuration(words).map(done),
        "version" => print_versions(words).map(done),
        other => match other.split_once(' ') {
            Some(("image", verb)) => image::run_image_command(verb, words).map(done),
            // Not reached: a test checks that every command of the table is carried out.
            _ => Err(CliError::new(format!(
                "command {other:?} is not carried out"
            ))),
        },
    }
}

fn print_version() -> Result<(), CliError> {
    print_text(&format!("picolet {}\n", crate::VERSION))
}

/// Runs `version`. In JSON and YAML the agent's version stands beside this program's.
fn print_versions(mut words: CliWords) -> Result<(), CliError> {
    let Some(output) = read_output_format(&mut words)? else {
        return print_version();
    };
    let mut versions = json!({"clientVersion": {"gitVersion": crate::VERSION}});
    let client = words.agent_client().with_patience(live::PATIENCE);
    let answer = client.send_request("GET", "/version", "");
    if let Ok(text) = answer.and_then(|mut answer| answer.read_text()) {
        let version = text.trim_end().trim_start_matches("picolet ");
        versions["serverVersion"] = json!({"gitVersion": version});
    }
    print_text(&match output {
        // kubectl has steps of two blanks here, and of four elsewhere.
        OutputFormat::Json => format!("{versions:#}\n"),
        output => get::object_text(&versions, &output)?,
    })
}

/// Runs `config view`.
fn print_configuration(mut words: CliWords) -> Result<(), CliError> {
    let output = read_output_format(&mut words)?.unwrap_or(OutputFormat::Yaml);
    let answer = words.agent_client().request_json("GET", "/configz")?;
    print_text(&get::object_text(&answer["kubeletconfig"], &output)?)
}

fn parse_document_format(text: &str) -> Result<OutputFormat, CliError> {
    match text {
        "json" => Ok(OutputFormat::Json),
        "yaml" => Ok(OutputFormat::Yaml),
        _ => Err(CliError::new("--output must be 'yaml' or 'json'")),
    }
}

/// Reads the words of a command that takes only `-o json|yaml`.
fn read_output_format(words: &mut CliWords) -> Result<Option<OutputFormat>, CliError> {
    let mut output = None;
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("output") => {
                output = Some(parse_document_format(&words.flag_value()?)?);
            }
            other => return Err(args::unexpected_word(other)),
        }
    }
    Ok(output)
}

fn print_debug_dump(mut words: CliWords) -> Result<(), CliError> {
    if let Some(word) = words.next_word()? {
        return Err(args::unexpected_word(word));
    }
    let mut answer = words.agent_client().request_stream("/debug/dump")?;
    answer.copy_body_to(&mut std::io::stdout())
}

/// Checks that a command has no arguments.
fn expect_no_words(mut words: CliWords) -> Result<(), CliError> {
    words
        .next_word()?
        .map_or(Ok(()), |w| Err(args::unexpected_word(w)))
}

/// Runs `help`, `help logs`, `help image import`.
fn print_help(mut words: CliWords) -> Result<(), CliError> {
    let mut names = Vec::new();
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Value(name) => names.push(name),
            other @ CliWord::Flag(_) => return Err(args::unexpected_word(other)),
        }
    }
    let Some((first, rest)) = names.split_first() else {
        return print_text(&commands::overview_text());
    };
    let (command, rest) = find_command_of_words(first, rest.iter().map(OsString::from).collect())?;
    match rest.first() {
        None => print_text(&command.help_text()),
        Some(word) => {
            let word = word.to_string_lossy().into_owned();
            Err(args::unexpected_word(CliWord::Value(word)))
        }
    }
}

/// Writes to standard output; a reader that left is no error.
pub(crate) fn print_text(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout();
    // Nobody else flushes: the program of glibc has an entry of its own.
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot write: {e}")))
        }
        _ => Ok(()),
    }
}

/// Writes an error to standard error.
fn print_error(e: &CliError) {
    // If standard error is closed, nobody can be told.
    let _ = writeln!(std::io::stderr(), "{}", escape_controls(&e.message));
}

/// Escapes control characters, but for line breaks and tabs: a text from a container must not move the cursor or change
/// the terminal.
pub(crate) fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && !matches!(c, '\n' | '\t') {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// Finds the socket's path: environment, else the default.
fn default_socket() -> PathBuf {
    socket_from_environment().unwrap_or_else(|| DEFAULT_SOCKET.into())
}

/// Reads the proxies from the environment. A client of a CGI program can set `HTTP_PROXY` by a header, but this is no
/// CGI program.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the environment is read"
)]
pub(crate) fn read_proxies() -> ProxyVariables {
    ProxyVariables::from_environment(|name| std::env::var(name).ok())
}

/// Socket of an agent with these flags. `configured`: where it listens by its flags and its configuration.
fn agent_socket(flags: &[OsString], configured: &Path) -> PathBuf {
    chosen_socket(flags, socket_from_environment(), configured)
}

/// Chooses a socket: `--socket` wins over the environment (`named`), and this over the file.
fn chosen_socket(flags: &[OsString], named: Option<PathBuf>, configured: &Path) -> PathBuf {
    let typed = flags
        .iter()
        .any(|w| w.to_string_lossy().starts_with("--socket"));
    let named = named.filter(|_| !typed);
    named.unwrap_or_else(|| configured.to_owned())
}

/// Reads the socket that the environment names.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the environment is read"
)]
fn socket_from_environment() -> Option<PathBuf> {
    std::env::var(SOCKET_VARIABLE).ok().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_carried_out() {
        for command in commands::all_commands() {
            if command.name == "run" {
                // Carried out before the table is asked: the agent has a table of its own.
                continue;
            }
            let said = execute_command(command, vec!["--help".into()]).expect_err(command.name);
            assert_eq!(said.code, 0, "{}: {said}", command.name);
            assert!(said.message.starts_with(command.help), "{said}");
        }
    }

    #[test]
    fn controls_do_not_reach_the_terminal() {
        // CMD-10
        for (text, shown) in [
            ("tar: a: No such file\n", "tar: a: No such file\n"),
            ("a\tb\u{e9}", "a\tb\u{e9}"),
            ("\u{1b}]0;x\u{7}", "\\u{1b}]0;x\\u{7}"),
            ("a\rb\u{9b}2J\u{7f}", "a\\rb\\u{9b}2J\\u{7f}"),
        ] {
            assert_eq!(escape_controls(text), shown, "{text:?}");
        }
    }

    #[test]
    fn who_says_where_the_agent_is() {
        for (flags, named, found) in [
            (&[][..], None, "/configured"),
            (&["-v4"], Some("/named"), "/named"),
            (&["--root-dir", "/x"], Some("/named"), "/named"),
            (&["--socket", "/configured"], Some("/named"), "/configured"),
            (&["--socket=/configured"], Some("/named"), "/configured"),
        ] {
            let words: Vec<OsString> = flags.iter().map(OsString::from).collect();
            let named = named.map(PathBuf::from);
            let chosen = chosen_socket(&words, named, Path::new("/configured"));
            assert_eq!(chosen, Path::new(found), "{flags:?}");
        }
    }

    #[test]
    fn words_of_a_command() {
        let found = |first: &str, rest: &[&str]| {
            find_command_of_words(first, rest.iter().map(OsString::from).collect())
                .map(|(command, rest)| (command.name, rest.len()))
                .map_err(|e| e.to_string())
        };
        assert_eq!(found("get", &["pods"]), Ok(("get", 1)));
        assert_eq!(
            found("image", &["--socket", "/x", "rm", "a"]),
            Ok(("image rm", 3))
        );
        for (first, rest, says) in [
            ("image", &[][..], "Usage: picolet image COMMAND"),
            ("image", &["--help"], "  image ls [NAME...]"),
            (
                "image",
                &["fly"],
                "expected 'picolet image import|pull|save|ls|inspect|tag|rm|verify|prune'",
            ),
            ("image", &["fly", "rm"], "expected 'picolet image import"),
            ("image", &["pul"], ", did you mean pull?"),
            ("fly", &["image"], "unknown command \"fly\""),
        ] {
            let error = found(first, rest).expect_err(first);
            assert!(error.contains(says), "{error}");
        }
    }
}
