//! What the guest tells: one line a verdict, over a serial port of its own, so that no other message can fall into it.

use std::{sync::mpsc, time::Duration};

use crate::Failure;

/// Longest silence of the guest: more than one of its steps may take, on an emulated processor.
const SILENCE_LIMIT: Duration = Duration::from_secs(450);

const HELD: &str = "held ";
const FAILED: &str = "failed ";
const NOTE: &str = "note ";
const END: &str = "end";

/// Which start of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boot {
    /// A new machine, on which picolet is installed. Ends with churn, in which the power is cut.
    Fresh,
    /// The same disk again.
    AfterPowerCut,
    /// Another new machine, with half the memory.
    Small,
}

impl Boot {
    pub(super) const ALL: [Self; 3] = [Self::Fresh, Self::AfterPowerCut, Self::Small];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Fresh => "a new machine",
            Self::AfterPowerCut => "the same machine after a power cut",
            Self::Small => "a new machine of 256 MiB",
        }
    }

    /// Its word on the kernel's command line.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Fresh => "picolet.boot=fresh",
            Self::AfterPowerCut => "picolet.boot=cut",
            Self::Small => "picolet.boot=small",
        }
    }

    /// Memory of the machine, MiB: the smallest board that is aimed at, and half of that.
    pub(super) fn memory_mib(self) -> u32 {
        match self {
            Self::Fresh | Self::AfterPowerCut => 512,
            Self::Small => 256,
        }
    }

    /// Whether the disk is a new one.
    pub(super) fn is_new(self) -> bool {
        match self {
            Self::Fresh | Self::Small => true,
            Self::AfterPowerCut => false,
        }
    }

    /// Whether the machine is switched off at the end; otherwise its power is cut.
    pub(super) fn ends_in_order(self) -> bool {
        match self {
            Self::Fresh => false,
            Self::AfterPowerCut | Self::Small => true,
        }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A check held; what was seen.
    Held(String),
    /// A check did not hold; why.
    Failed(String),
    /// A figure, or where something stands.
    Note(String),
    /// Nothing follows.
    End,
}

impl Line {
    pub(super) fn text(&self) -> String {
        let plain = |text: &str| text.replace(['\n', '\r'], " | ");
        match self {
            Self::Held(what) => format!("{HELD}{}", plain(what)),
            Self::Failed(what) => format!("{FAILED}{}", plain(what)),
            Self::Note(what) => format!("{NOTE}{}", plain(what)),
            Self::End => END.to_owned(),
        }
    }

    /// `None` for what firmware and boot loader may have said on the port before.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let line = line.trim_end();
        let rest = |word: &str| line.strip_prefix(word).map(str::to_owned);
        rest(HELD)
            .map(Self::Held)
            .or_else(|| rest(FAILED).map(Self::Failed))
            .or_else(|| rest(NOTE).map(Self::Note))
            .or_else(|| (line == END).then_some(Self::End))
    }
}

/// Prints what comes until the end and returns how many checks held. One that did not is an error, and so is silence.
pub(super) fn read(lines: &mpsc::Receiver<String>, boot: Boot) -> Result<u32, Failure> {
    let mut held = 0;
    let mut failed = 0;
    loop {
        let line = lines.recv_timeout(SILENCE_LIMIT).map_err(|e| match e {
            mpsc::RecvTimeoutError::Timeout => {
                format!("silent for {} s", SILENCE_LIMIT.as_secs())
            }
            mpsc::RecvTimeoutError::Disconnected => "ended early".to_owned(),
        })?;
        match Line::parse(&line) {
            Some(Line::Held(what)) => {
                println!("✓ {what}");
                held += 1;
            }
            Some(Line::Failed(what)) => {
                println!("✗ {what}");
                failed += 1;
            }
            Some(Line::Note(what)) => println!("  {what}"),
            Some(Line::End) if failed > 0 => {
                return Err(format!("{}: {failed} steps did not hold", boot.title()).into());
            }
            Some(Line::End) if held == 0 => return Err("nothing was checked".into()),
            Some(Line::End) => return Ok(held),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &[&str]) -> Result<u32, String> {
        let (sender, receiver) = mpsc::channel();
        for line in lines {
            sender.send((*line).to_owned()).expect("open");
        }
        drop(sender);
        read(&receiver, Boot::Fresh).map_err(|e| e.to_string())
    }

    #[test]
    fn only_a_whole_report_without_a_failure_counts() {
        for (name, lines, wanted) in [
            (
                "all held",
                &["noise", "held a\r", "note b", "held c", "end"][..],
                Some(2),
            ),
            ("one failed", &["held a", "failed b", "end"], None),
            ("cut short", &["held a"], None),
            ("nothing said", &["end"], None),
        ] {
            assert_eq!(outcome(lines).ok(), wanted, "{name}");
        }
    }

    #[test]
    fn lines_come_back() {
        for line in [
            Line::Held("a: b".into()),
            Line::Failed("c".into()),
            Line::Note("d".into()),
            Line::End,
        ] {
            assert_eq!(Line::parse(&line.text()), Some(line));
        }
        assert_eq!(
            Line::Failed("two\nlines".into()).text(),
            "failed two | lines"
        );
    }
}
