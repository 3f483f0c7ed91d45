//! Words of a command line, with the flags every client command takes.

use std::{ffi::OsString, path::PathBuf};

use lexopt::{Arg, Parser};

use super::{CliError, Client, default_socket};

/// One word, understood as far as it can be without knowing the command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// `--name`, without its value.
    Long(String),
    /// `-n`, without its value.
    Short(char),
    /// Anything else.
    Value(String),
}

/// The words after a command.
pub(super) struct Words {
    parser: Parser,
    socket: PathBuf,
}

impl Words {
    pub(super) fn new(words: Vec<OsString>) -> Self {
        Self {
            parser: Parser::from_args(words),
            socket: default_socket(),
        }
    }

    /// The next word that is not a flag of all commands.
    pub(super) fn next(&mut self) -> Result<Option<Word>, CliError> {
        loop {
            let word = match self.parser.next()? {
                None => return Ok(None),
                Some(Arg::Long(name)) => Word::Long(name.to_owned()),
                Some(Arg::Short(letter)) => Word::Short(letter),
                Some(Arg::Value(value)) => return Ok(Some(Word::Value(text(value)?))),
            };
            match word {
                Word::Long(name) if name == "socket" => {
                    self.socket = PathBuf::from(self.parser.value()?)
                }
                Word::Long(name) if name == "help" => return Err(help()),
                Word::Short('h') => return Err(help()),
                word => return Ok(Some(word)),
            }
        }
    }

    /// The value of the flag just read.
    pub(super) fn value(&mut self) -> Result<String, CliError> {
        text(self.parser.value()?)
    }

    /// The value of a switch just read: `--all`, `--all=false`.
    pub(super) fn switch(&mut self) -> Result<bool, CliError> {
        match self.parser.optional_value() {
            None => Ok(true),
            Some(value) => match text(value)?.as_str() {
                "true" | "1" => Ok(true),
                "false" | "0" => Ok(false),
                other => Err(CliError::new(format!("invalid boolean value {other:?}"))),
            },
        }
    }

    /// The value of the flag just read, as a number.
    pub(super) fn number<T: core::str::FromStr>(&mut self, flag: &str) -> Result<T, CliError> {
        let value = self.value()?;
        value.parse().map_err(|_| {
            CliError::new(format!(
                "invalid argument {value:?} for \"{flag}\": not a valid number"
            ))
        })
    }

    /// Everything that is left, untouched (the command after `--`).
    pub(super) fn rest(&mut self) -> Result<Vec<String>, CliError> {
        self.parser.raw_args()?.map(text).collect()
    }

    /// The client for the socket that was named.
    pub(super) fn client(&self) -> Client {
        Client::new(&self.socket)
    }
}

/// A word no command takes at this place.
pub(super) fn unexpected(word: Word) -> CliError {
    CliError::new(match word {
        Word::Long(name) => format!("unknown flag: --{name}"),
        Word::Short(letter) => format!("unknown shorthand flag: -{letter}"),
        Word::Value(value) => format!("unexpected argument {value:?}"),
    })
}

fn text(word: OsString) -> Result<String, CliError> {
    word.into_string()
        .map_err(|word| CliError::new(format!("argument {word:?} is not UTF-8")))
}

fn help() -> CliError {
    CliError {
        message: super::HELP.trim_end().to_owned(),
        code: 0,
    }
}

/// Parses a duration as Go writes it: `90s`, `1h30m`, `1.5m`. In milliseconds; `None` if malformed.
pub(super) fn duration_ms(text: &str) -> Option<u64> {
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
            assert_eq!(duration_ms(text), Some(ms), "{text}");
        }
        for bad in ["", "5", "s", "1d", "-1s", "1..5s"] {
            assert_eq!(duration_ms(bad), None, "{bad}");
        }
    }

    #[test]
    fn words() {
        let mut words = Words::new(
            ["-n", "x", "--all=false", "pod", "--", "-c"]
                .map(OsString::from)
                .into(),
        );
        assert_eq!(words.next().ok().flatten(), Some(Word::Short('n')));
        assert_eq!(words.value().ok().as_deref(), Some("x"));
        assert_eq!(words.next().ok().flatten(), Some(Word::Long("all".into())));
        assert_eq!(words.switch().ok(), Some(false));
        assert_eq!(words.next().ok().flatten(), Some(Word::Value("pod".into())));
        assert_eq!(words.rest().ok(), Some(vec!["--".into(), "-c".into()]));
    }
}
