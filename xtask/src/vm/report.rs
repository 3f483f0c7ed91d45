//! What the guest tells: one line a verdict, over a serial port of its own, so that no other message can fall into it.

use std::{fmt, sync::mpsc, time::Duration};

use crate::{Failure, wait::Watch};

/// Longest time without a verdict: more than one step of the guest may take, on an emulated processor. The machine's start is one.
const SILENCE_LIMIT: Duration = Duration::from_secs(450);
/// Between two signs of life of the guest, which it gives whatever its steps do.
pub(super) const ALIVE_EACH: Duration = Duration::from_secs(10);
/// So long without one, and the machine stands still as a whole.
const ALIVE_LIMIT: Duration = Duration::from_secs(180);

const HELD: &str = "held ";
const FAILED: &str = "failed ";
const NOTE: &str = "note ";
const END: &str = "end";
const ALIVE: &str = "alive";
const MONITOR: &str = "monitor ";
/// Tells the guest which boot it is.
const WORD: &str = "picolet.boot=";

/// Which start of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boot {
    /// A new machine, on which picolet is installed. Ends with churn, in which the power is cut.
    Fresh,
    /// The same disk again.
    AfterPowerCut,
    /// Another new machine, with half the memory.
    Small,
    /// The same disk again, with the cable out. Ends in an upgrade, in which the power is cut.
    Unplugged,
    /// The same disk once more.
    AfterUpgradeCut,
    /// The same, and the kernel is told to have no memory controller.
    WithoutMemory,
    /// A new machine, whose clock is set to 1970.
    Clock,
    /// A new small machine, where pods take what there is. Only if it is asked for.
    Pressure,
    /// A new machine, where agents are killed. Only if it is asked for.
    Chaos,
}

impl Boot {
    /// Those of a virtual machine.
    pub(super) const MACHINE: [Self; 4] =
        [Self::Fresh, Self::AfterPowerCut, Self::Small, Self::Clock];
    /// Those of an emulated board that wait for nothing.
    pub(super) const FIRST: [Self; 3] = [Self::Fresh, Self::AfterPowerCut, Self::Small];
    /// Those of an emulated board.
    pub(super) const BOARD: [Self; 6] = [
        Self::Fresh,
        Self::AfterPowerCut,
        Self::Small,
        Self::Unplugged,
        Self::AfterUpgradeCut,
        Self::WithoutMemory,
    ];
    /// Those that no board has.
    const OTHERS: [Self; 3] = [Self::Clock, Self::Pressure, Self::Chaos];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Fresh => "a new machine",
            Self::AfterPowerCut => "the same machine after a power cut",
            Self::Small => "a new machine of 256 MiB",
            Self::Unplugged => "the same machine with the cable out",
            Self::AfterUpgradeCut => "the same machine after a power cut in an upgrade",
            Self::WithoutMemory => "the same machine without the memory controller",
            Self::Clock => "a new machine in 1970",
            Self::Pressure => "a new machine of 256 MiB that runs short",
            Self::Chaos => "a new machine where agents are killed",
        }
    }

    /// Also that of its log.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::AfterPowerCut => "cut",
            Self::Small => "small",
            Self::Unplugged => "unplugged",
            Self::AfterUpgradeCut => "upgrade",
            Self::WithoutMemory => "memory",
            Self::Clock => "clock",
            Self::Pressure => "pressure",
            Self::Chaos => "chaos",
        }
    }

    /// Its words on the kernel's command line.
    pub(super) fn words(self) -> String {
        let more = match self {
            Self::WithoutMemory => " cgroup_disable=memory",
            _ => "",
        };
        format!("{WORD}{}{more}", self.name())
    }

    /// The one of a command line.
    pub(super) fn of(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let name = words.find_map(|word| word.strip_prefix(WORD))?;
        let mut all = Self::BOARD.into_iter().chain(Self::OTHERS);
        all.find(|boot| boot.name() == name)
    }

    /// Memory of the machine, MiB: as a rule the smallest board that is aimed at, or half of that.
    pub(super) fn memory_mib(self) -> u32 {
        match self {
            Self::Fresh | Self::AfterPowerCut | Self::Clock => 512,
            // Its pods ask for so much.
            Self::Chaos => 1024,
            _ => 256,
        }
    }

    /// Whether the disk is a new one.
    pub(super) fn is_new(self) -> bool {
        matches!(
            self,
            Self::Fresh | Self::Small | Self::Clock | Self::Pressure | Self::Chaos
        )
    }

    /// Whether the machine is switched off at the end; otherwise its power is cut.
    pub(super) fn ends_in_order(self) -> bool {
        !matches!(self, Self::Fresh | Self::Unplugged)
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
    /// What the machine's monitor is to be told: the guest cannot pull its own cable.
    Monitor(String),
    /// A sign of life.
    Alive,
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
            Self::Monitor(what) => format!("{MONITOR}{}", plain(what)),
            Self::Alive => ALIVE.to_owned(),
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
            .or_else(|| rest(MONITOR).map(Self::Monitor))
            .or_else(|| (line == END).then_some(Self::End))
            .or_else(|| (line == ALIVE).then_some(Self::Alive))
    }
}

/// The guest gives no sign of life any more: kernel or emulator stand still, whatever the agent does.
#[derive(Debug)]
pub(super) struct Stalled;

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = ALIVE_LIMIT.as_secs();
        write!(f, "the machine has given no sign of life for {limit} s")
    }
}

impl std::error::Error for Stalled {}

/// Prints what comes until the end and returns how many checks held. One that did not is an error, and so is silence.
/// `monitor` takes what the guest wants of the machine.
pub(super) fn read(
    lines: &mpsc::Receiver<String>,
    boot: Boot,
    mut monitor: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<u32, Failure> {
    let mut held = 0;
    let mut failed = 0;
    let mut lives = false;
    let mut since = Watch::start();
    loop {
        let left = SILENCE_LIMIT.saturating_sub(since.elapsed());
        let patience = if lives { left.min(ALIVE_LIMIT) } else { left };
        let line = lines.recv_timeout(patience).map_err(|e| -> Failure {
            match e {
                mpsc::RecvTimeoutError::Timeout if patience < left => Stalled.into(),
                mpsc::RecvTimeoutError::Timeout => {
                    format!("no verdict for {} s", SILENCE_LIMIT.as_secs()).into()
                }
                mpsc::RecvTimeoutError::Disconnected => "ended early".into(),
            }
        })?;
        let line = Line::parse(&line);
        match line {
            Some(Line::Alive) => lives = true,
            Some(_) => since = Watch::start(),
            None => {}
        }
        match line {
            Some(Line::Held(what)) => {
                println!("✓ {what}");
                held += 1;
            }
            Some(Line::Failed(what)) => {
                println!("✗ {what}");
                failed += 1;
            }
            Some(Line::Note(what)) => println!("  {what}"),
            Some(Line::Monitor(what)) => monitor(&what)?,
            Some(Line::End) if failed > 0 => {
                return Err(format!("{}: {failed} steps did not hold", boot.title()).into());
            }
            Some(Line::End) if held == 0 => return Err("nothing was checked".into()),
            Some(Line::End) => return Ok(held),
            Some(Line::Alive) | None => {}
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
        read(&receiver, Boot::Fresh, |_| Ok(())).map_err(|e| e.to_string())
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
            ("nothing but alive", &["alive", "end"], None),
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
            Line::Monitor("set_link cable off".into()),
            Line::Alive,
            Line::End,
        ] {
            assert_eq!(Line::parse(&line.text()), Some(line));
        }
        assert_eq!(
            Line::Failed("two\nlines".into()).text(),
            "failed two | lines"
        );
    }

    #[test]
    fn every_boot_is_told_from_the_others() {
        for boot in Boot::BOARD.into_iter().chain(Boot::OTHERS) {
            assert_eq!(Boot::of(&format!("quiet {}", boot.words())), Some(boot));
        }
        assert_eq!(Boot::of("quiet"), None);
    }
}
