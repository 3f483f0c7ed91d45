//! Words of a command line, with the flags that every client command takes.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use lexopt::{Arg, Parser};

use super::{AgentClient, CliError, commands::CliCommand, default_socket};
use crate::{
    config::flags::{self, FlagError},
    logic::spelling::suggest_name,
};

/// A word of a command line, understood as far as the table of commands goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CliWord {
    /// A flag of the command, in its long form, without its value.
    Flag(&'static str),
    /// Any other word.
    Value(String),
}

/// The words after a command.
pub(crate) struct CliWords {
    parser: Parser,
    command: &'static CliCommand,
    socket: PathBuf,
    /// Set if the flag just read is a letter: others may follow it (`-it`).
    is_letter: bool,
}

impl CliWords {
    pub(crate) fn new(command: &'static CliCommand, words: Vec<OsString>) -> Self {
        Self {
            parser: Parser::from_args(words),
            command,
            socket: default_socket(),
            is_letter: false,
        }
    }

    /// Reads the next word that is not a flag of all commands.
    pub(crate) fn next_word(&mut self) -> Result<Option<CliWord>, CliError> {
        loop {
            let word = self.parser.next()?;
            self.is_letter = matches!(word, Some(Arg::Short(_)));
            let long = match word {
                None => return Ok(None),
                Some(Arg::Value(value)) => return Ok(Some(CliWord::Value(word_to_text(value)?))),
                Some(Arg::Short('h') | Arg::Long("help")) => return Err(self.help_as_error()),
                Some(Arg::Long("socket")) => {
                    self.socket = PathBuf::from(self.parser.value()?);
                    continue;
                }
                Some(Arg::Short(letter)) => match self.command.long_flag_name(letter) {
                    Some(name) => name,
                    None => return Err(unknown_flag(self.command, &format!("-{letter}"))),
                },
                Some(Arg::Long(name)) => match self.command.flags.iter().find(|f| f.name == name) {
                    Some(flag) => flag.name,
                    None => return Err(unknown_flag(self.command, &format!("--{name}"))),
                },
            };
            return Ok(Some(CliWord::Flag(long)));
        }
    }

    /// Reads the value of the flag just read.
    pub(crate) fn flag_value(&mut self) -> Result<String, CliError> {
        word_to_text(self.parser.value()?)
    }

    /// Reads the value of the switch just read: `--all`, `--all=false`, `-a`.
    pub(crate) fn switch_value(&mut self) -> Result<bool, CliError> {
        if self.is_letter {
            return Ok(true);
        }
        match self.parser.optional_value() {
            None => Ok(true),
            Some(value) => parse_switch(&word_to_text(value)?),
        }
    }

    /// Reads the value of the flag just read, as a number.
    pub(crate) fn number_value<T: core::str::FromStr>(
        &mut self,
        flag: &str,
    ) -> Result<T, CliError> {
        let value = self.flag_value()?;
        value.parse().map_err(|_| {
            CliError::new(format!(
                "invalid argument {value:?} for \"{flag}\": not a valid number"
            ))
        })
    }

    /// Returns all words that are left, untouched (the command after `--`).
    pub(crate) fn remaining_words(&mut self) -> Result<Vec<String>, CliError> {
        self.parser.raw_args()?.map(word_to_text).collect()
    }

    /// Makes the error of a command that has too few arguments.
    pub(crate) fn usage_error(&self) -> CliError {
        let CliCommand { name, args, .. } = self.command;
        CliError::new(["expected 'picolet ", name, " ", args, "'"].concat())
    }

    fn help_as_error(&self) -> CliError {
        CliError {
            message: self.command.help_text().trim_end().to_owned(),
            code: 0,
        }
    }

    /// Returns true if a socket was named, by a flag or the environment.
    pub(crate) fn has_named_socket(&self) -> bool {
        self.socket != Path::new(super::DEFAULT_SOCKET)
    }

    /// Makes the client for the socket that was named.
    pub(crate) fn agent_client(&self) -> AgentClient {
        AgentClient::new(&self.socket)
    }
}

/// Reads the value of a switch.
pub(crate) fn parse_switch(text: &str) -> Result<bool, CliError> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(CliError::new(format!(
            "invalid boolean value {other:?}: expected true or false"
        ))),
    }
}

/// Makes the error of a flag that a command does not take. `shown`: with its dashes.
fn unknown_flag(command: &'static CliCommand, shown: &str) -> CliError {
    let kind = if shown.starts_with("--") {
        "flag"
    } else {
        "shorthand flag"
    };
    let of_agent = command.agent_flags.then(flags::flag_descriptions);
    let of_agent = of_agent.into_iter().flatten().map(|flag| flag.name);
    let mut names = command.all_flags().map(|flag| flag.name).chain(of_agent);
    let meant = suggest_name(shown.trim_start_matches('-'), "--", &mut names);
    CliError::new(format!(
        "unknown {kind}: {shown}{meant}\n'picolet help {}' lists the flags",
        command.name
    ))
}

/// A command's own flags with their values, and the words that are left.
pub(crate) type SplitCommandLine = (Vec<(&'static str, String)>, Vec<OsString>);

/// Separates the flags of a command from those of the agent. Values of switches are `true` unless given.
pub(crate) fn split_flags(
    command: &'static CliCommand,
    words: Vec<OsString>,
) -> Result<SplitCommandLine, CliError> {
    let (mut own, mut rest) = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let shown = word.to_string_lossy().into_owned();
        if matches!(shown.as_str(), "-h" | "--help") {
            return Err(CliError {
                message: command.help_text().trim_end().to_owned(),
                code: 0,
            });
        }
        // `--name`, `--name=value`, `-n`, `-nvalue`, `-n=value`.
        let (flag, attached) = if let Some(long) = shown.strip_prefix("--") {
            let (name, value) = long
                .split_once('=')
                .map_or((long, None), |(n, v)| (n, Some(v)));
            (command.flags.iter().find(|f| f.name == name), value)
        } else if let Some(short) = shown.strip_prefix('-') {
            let letter = short.chars().next();
            let value = short.get(letter.map_or(0, char::len_utf8)..).unwrap_or("");
            let value = value.strip_prefix('=').unwrap_or(value);
            let flag = command.flags.iter().find(|f| f.short == letter);
            (flag, Some(value).filter(|v| !v.is_empty()))
        } else {
            (None, None)
        };
        let Some(flag) = flag else {
            rest.push(word);
            continue;
        };
        let value = match attached {
            Some(value) => value.to_owned(),
            None if flag.value.is_empty() => "true".to_owned(),
            None => word_to_text(words.next().ok_or_else(|| {
                CliError::new(format!("flag needs an argument: --{}", flag.name))
            })?)?,
        };
        own.push((flag.name, value));
    }
    if let Err(FlagError::Unknown(name)) = flags::parse_flags(rest.clone(), Path::new("/")) {
        return Err(unknown_flag(command, &format!("--{name}")));
    }
    Ok((own, rest))
}

/// Makes the error of a word that the command does not take at this place.
pub(crate) fn unexpected_word(word: CliWord) -> CliError {
    CliError::new(match word {
        CliWord::Flag(name) => format!("flag --{name} cannot be used here: remove it"),
        CliWord::Value(value) => format!("unexpected argument {value:?}: remove it"),
    })
}

fn word_to_text(word: OsString) -> Result<String, CliError> {
    word.into_string()
        .map_err(|word| CliError::new(format!("argument {word:?} is not UTF-8")))
}

/// Parses a duration as Go writes it: `90s`, `1h30m`, `1.5m`. In milliseconds; `None` if malformed.
pub(crate) fn parse_duration_ms(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ms" => 1.0,
            "s" => 1000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            _ => return None,
        };
        total += number * unit;
        rest = &rest[end..];
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be in range"
    )]
    (!text.is_empty() && total < 1e15).then_some(total as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("90s", 90_000),
            ("1h30m", 5_400_000),
            ("1.5m", 90_000),
            ("250ms", 250),
        ] {
            assert_eq!(parse_duration_ms(text), Some(ms), "{text}");
        }
        for bad in ["", "5", "s", "1d", "-1s", "1..5s"] {
            assert_eq!(parse_duration_ms(bad), None, "{bad}");
        }
    }

    #[test]
    fn flags_of_two_tables() {
        let (check, _) = CliCommand::find_command("check", None).expect("check");
        let parted = |all: &[&str]| split_flags(check, all.iter().map(OsString::from).collect());
        for (words, own, rest) in [
            (
                &["-o", "json", "--root-dir", "/x"][..],
                &[("output", "json")][..],
                &["--root-dir", "/x"][..],
            ),
            (
                &["--output=json", "-q"],
                &[("output", "json"), ("quiet", "true")],
                &[],
            ),
            (
                &["-ojson", "--quiet=false", "-v4"],
                &[("output", "json"), ("quiet", "false")],
                &["-v4"],
            ),
        ] {
            let (got, left) = parted(words).expect("flags");
            let got: Vec<_> = got.iter().map(|(n, v)| (*n, v.as_str())).collect();
            assert_eq!(
                (got.as_slice(), left),
                (own, rest.iter().map(OsString::from).collect()),
                "{words:?}"
            );
        }
        assert!(
            parted(&["-o"])
                .expect_err("no value")
                .to_string()
                .contains("needs an argument: --output")
        );
        assert!(
            parted(&["--help"])
                .expect_err("help")
                .to_string()
                .contains("picolet run --help")
        );
    }

    #[test]
    fn words() {
        let (exec, _) = CliCommand::find_command("exec", None).expect("exec");
        let words = |all: &[&str]| CliWords::new(exec, all.iter().map(OsString::from).collect());
        let mut some = words(&["-n", "x", "--tty=false", "pod", "--", "-c"]);
        assert_eq!(
            some.next_word().ok().flatten(),
            Some(CliWord::Flag("namespace"))
        );
        assert_eq!(some.flag_value().ok().as_deref(), Some("x"));
        assert_eq!(some.next_word().ok().flatten(), Some(CliWord::Flag("tty")));
        assert_eq!(some.switch_value().ok(), Some(false));
        assert_eq!(
            some.next_word().ok().flatten(),
            Some(CliWord::Value("pod".into()))
        );
        assert_eq!(
            some.remaining_words().ok(),
            Some(vec!["--".into(), "-c".into()])
        );
        let mut both = words(&["-it", "pod"]);
        for name in ["stdin", "tty"] {
            assert_eq!(both.next_word().ok().flatten(), Some(CliWord::Flag(name)));
            assert_eq!(both.switch_value().ok(), Some(true));
        }
        assert_eq!(
            both.next_word().ok().flatten(),
            Some(CliWord::Value("pod".into()))
        );
        for (wrong, says) in [
            ("-x", "unknown shorthand flag: -x"),
            ("--follow", "unknown flag: --follow"),
            ("--help", "Usage: picolet exec POD"),
        ] {
            let error = words(&[wrong]).next_word().expect_err(wrong).to_string();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
