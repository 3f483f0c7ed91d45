//! Upgrade on trial: the file that describes it, and the decision if the new program may stay. Rows PKG-20 to PKG-22.
//!
//! `systemd/guard.sh` counts the starts and puts the old program back. It reads the lines `tries`, `sum` and `version`.

use alloc::{borrow::ToOwned as _, collections::BTreeSet, string::String, vec::Vec};
use core::{fmt, str::FromStr, time::Duration};

use crate::api::MonoTime;

/// Suffix of the file beside a program that exists while the program is on trial. `systemd/guard.sh` knows these
/// suffixes, too.
pub const TRIAL: &str = ".trial";
/// Suffix of the file in which the guard leaves what it put back, and why, for the agent to tell.
pub const BACK: &str = ".back";
/// Starts that a new program has to become healthy in.
pub const TRIES: u32 = 3;
/// Time in which a new program has to be healthy, seconds, unless another time is asked for.
pub const PATIENCE_S: u64 = 120;
/// Shortest and longest time that can be asked for, seconds: a healthy agent needs some on a slow board, and [`HOLD`].
pub const MIN_PATIENCE_S: u64 = 20;
/// See [`MIN_PATIENCE_S`].
pub const MAX_PATIENCE_S: u64 = 3600;
/// Time for which one process has to stay healthy: some relists, and a round of housekeeping.
pub const HOLD: Duration = Duration::from_secs(5);
/// Longest time for which the apiserver may answer others and not the new program: an agent does not notice at once
/// that a link is back.
pub const LINK_GRACE: Duration = Duration::from_secs(60);
/// Signals by which agents, and people in their place, end containers: SIGTERM, SIGKILL, SIGINT, SIGHUP, SIGQUIT.
/// Source: signal(7).
const BY_AGENT: [i32; 5] = [15, 9, 2, 1, 3];
/// Containers whose processes are remembered: more than a node runs. Further ones are not looked at.
pub const MAX_KEPT: usize = 1024;
/// Most bytes of a trial's file: [`MAX_KEPT`] containers, and paths.
pub const MAX_TRIAL_BYTES: u64 = 512 * 1024;

/// Program on trial, as its file describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpgradeTrial {
    /// Starts that are left.
    pub tries: u32,
    /// Seconds in which the program has to become healthy, from the start of the watch.
    pub patience_s: u64,
    /// SHA-256 of the program, in hexadecimal.
    pub sum: String,
    /// Version of the program.
    pub version: String,
    /// Socket of the agent.
    pub socket: String,
    /// Directory of its containers.
    pub containers_dir: String,
    /// Shell command that restarts the agent.
    pub restart: String,
    /// Boot id of the machine that the processes belong to.
    pub boot: String,
    /// Set if the apiserver answered the old program.
    pub apiserver: bool,
    /// Containers that ran under the old program; at most [`MAX_KEPT`].
    pub kept: Vec<TrialContainer>,
}

/// Container that must not notice the upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrialContainer {
    /// Container id.
    pub id: String,
    /// UID of its pod.
    pub pod: String,
    /// Process id.
    pub pid: i32,
    /// Start of the process, in clock ticks since boot.
    pub start_time: u64,
}

impl fmt::Display for UpgradeTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tries {}", self.tries)?;
        writeln!(f, "patience {}", self.patience_s)?;
        for (word, value) in [
            ("sum", &self.sum),
            ("version", &self.version),
            ("socket", &self.socket),
            ("containers", &self.containers_dir),
            ("restart", &self.restart),
            ("boot", &self.boot),
        ] {
            writeln!(f, "{word} {value}")?;
        }
        if self.apiserver {
            writeln!(f, "apiserver answers")?;
        }
        for TrialContainer {
            id,
            pod,
            pid,
            start_time,
        } in &self.kept
        {
            writeln!(f, "kept {id} {pod} {pid} {start_time}")?;
        }
        Ok(())
    }
}

/// Line that makes a file no trial.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a line of a trial")]
pub struct TrialLineError(String);

impl FromStr for UpgradeTrial {
    type Err = TrialLineError;

    /// Passes over lines with a word that this version does not know.
    fn from_str(text: &str) -> Result<Self, TrialLineError> {
        let mut trial = Self::default();
        for line in text.lines() {
            let wrong = || TrialLineError(line.to_owned());
            let (word, value) = line.split_once(' ').ok_or_else(wrong)?;
            let field = match word {
                "tries" => {
                    trial.tries = value.parse().map_err(|_| wrong())?;
                    continue;
                }
                "patience" => {
                    let seconds: u64 = value.parse().map_err(|_| wrong())?;
                    trial.patience_s = seconds.min(MAX_PATIENCE_S);
                    continue;
                }
                "apiserver" => {
                    trial.apiserver = true;
                    continue;
                }
                "kept" => {
                    trial.kept.push(parse_container(value).ok_or_else(wrong)?);
                    continue;
                }
                "sum" => &mut trial.sum,
                "version" => &mut trial.version,
                "socket" => &mut trial.socket,
                "containers" => &mut trial.containers_dir,
                "restart" => &mut trial.restart,
                "boot" => &mut trial.boot,
                _ => continue,
            };
            value.clone_into(field);
        }
        Ok(trial)
    }
}

fn parse_container(value: &str) -> Option<TrialContainer> {
    let mut words = value.split(' ');
    Some(TrialContainer {
        id: words.next()?.to_owned(),
        pod: words.next()?.to_owned(),
        pid: words.next()?.parse().ok()?,
        start_time: words.next()?.parse().ok()?,
    })
}

/// Returns true if version `new` is before version `old`. Versions count by their three numbers, without any suffix. A
/// version of another form is neither before nor after another.
#[must_use]
pub fn is_older_version(new: &str, old: &str) -> bool {
    let numbers = |text: &str| -> Option<[u32; 3]> {
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(|part| part.parse().ok());
        Some([parts.next()??, parts.next()??, parts.next()??])
    };
    matches!((numbers(new), numbers(old)), (Some(new), Some(old)) if new < old)
}

/// A look at the agent while a program is on trial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrialLook {
    /// The process of the agent that answers, if it runs the new program.
    pub pid: Option<u32>,
    /// Reason why that agent is not well, or does not answer.
    pub trouble: Option<String>,
    /// Set if the apiserver answered that agent.
    pub answered: bool,
    /// Pods of the agent: UID, and true if the pod is terminating.
    pub pods: Vec<(String, bool)>,
    /// Containers that ran and do not any more.
    pub gone: Vec<EndedContainer>,
}

/// A container that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedContainer {
    /// Container id.
    pub id: String,
    /// UID of its pod.
    pub pod: String,
    /// Set if the container ended by itself ([`ends_by_itself`]), and the agent did not ask it to.
    pub by_itself: bool,
}

/// Returns true if a container with this end ended by itself: by its exit, by a crash, or for want of memory. A
/// container that a signal ended has the exit code 128 + signal.
#[must_use]
pub fn ends_by_itself(code: i32, oom_killed: bool) -> bool {
    oom_killed || !BY_AGENT.contains(&code.saturating_sub(128))
}

/// Verdict on a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialVerdict {
    /// Look again.
    Wait,
    /// The new program stays.
    Stay,
    /// The new program is well, but the apiserver does not answer it. Another program has to try, to learn if that may
    /// be the new program's fault ([`TrialJudge::blame_program`]).
    AskApiserver,
    /// The old program comes back, for this reason.
    Back(String),
}

/// Judge of the looks of one trial, one after the other.
#[derive(Debug)]
pub struct TrialJudge {
    patience_s: u64,
    deadline: MonoTime,
    apiserver: bool,
    /// End of the time in which the apiserver may answer others and not the new program.
    blamed_until: Option<MonoTime>,
    /// The process that is well, and the time since which it is.
    well: Option<(u32, MonoTime)>,
    /// Pods that were seen on their way out: their containers may end.
    leaving: BTreeSet<String>,
}

impl TrialJudge {
    /// Makes the gate of a trial that is watched from `now` on.
    #[must_use]
    pub fn new(trial: &UpgradeTrial, now: MonoTime) -> Self {
        Self {
            patience_s: trial.patience_s,
            deadline: now + Duration::from_secs(trial.patience_s),
            apiserver: trial.apiserver,
            blamed_until: None,
            well: None,
            leaving: BTreeSet::new(),
        }
    }

    /// Judges a look at the agent.
    pub fn judge_look(&mut self, look: TrialLook, now: MonoTime) -> TrialVerdict {
        let leaving = look.pods.iter().filter(|(_, terminating)| *terminating);
        // Bounded: a node has a limited number of pods.
        self.leaving.extend(leaving.map(|(uid, _)| uid.clone()));
        let reason = match (look.pid, look.trouble) {
            (None, trouble) => {
                self.well = None;
                trouble.unwrap_or_else(|| "the new program does not run".to_owned())
            }
            (Some(_), Some(trouble)) => {
                self.well = None;
                trouble
            }
            (Some(pid), None) => {
                let ended =
                    |gone: &&EndedContainer| !gone.by_itself && !self.leaving.contains(&gone.pod);
                if let Some(gone) = look.gone.iter().find(ended) {
                    return TrialVerdict::Back(format!(
                        "container {} did not keep running",
                        gone.id
                    ));
                }
                let since = self.well.filter(|(other, _)| *other == pid);
                let (_, since) = *self.well.insert(since.unwrap_or((pid, now)));
                let holds = now - since >= HOLD;
                if holds && (look.answered || !self.apiserver) {
                    return TrialVerdict::Stay;
                }
                if holds && now >= self.deadline {
                    return match self.blamed_until {
                        None => TrialVerdict::AskApiserver,
                        Some(until) if now < until => TrialVerdict::Wait,
                        Some(_) => TrialVerdict::Back(
                            "the apiserver can be reached, but the agent gets no answer from it"
                                .to_owned(),
                        ),
                    };
                }
                "it was not healthy for long enough".to_owned()
            }
        };
        // A program that is well now gets the rest of `HOLD`.
        if now < self.deadline || self.well.is_some() {
            return TrialVerdict::Wait;
        }
        TrialVerdict::Back(format!(
            "it was not healthy within {} s: {reason}",
            self.patience_s
        ))
    }

    /// Notes that the apiserver answered another program at `now`. After that [`TrialVerdict::AskApiserver`] does not come
    /// again.
    pub fn blame_program(&mut self, now: MonoTime) {
        self.blamed_until = Some(now + LINK_GRACE);
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    fn trial() -> UpgradeTrial {
        UpgradeTrial {
            tries: TRIES,
            patience_s: PATIENCE_S,
            sum: "abc".into(),
            version: "0.2.0".into(),
            socket: "/run/picolet/picolet.sock".into(),
            containers_dir: "/run/picolet/containers".into(),
            restart: "sv restart picolet".into(),
            boot: "b".into(),
            apiserver: true,
            kept: [TrialContainer {
                id: "c1".into(),
                pod: "p1".into(),
                pid: 7,
                start_time: 9,
            }]
            .into(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        // PKG-22
        let written = trial().to_string();
        assert!(written.starts_with("tries 3\npatience 120\nsum abc\nversion 0.2.0\n"));
        assert_eq!(written.parse(), Ok(trial()));
        let more = format!("{written}later words\n");
        assert_eq!(more.parse(), Ok(trial()), "of a newer program");
        let longest = UpgradeTrial {
            kept: (0..MAX_KEPT)
                .map(|n| TrialContainer {
                    id: format!("{n:064}"),
                    pod: format!("{n:0128}"),
                    pid: i32::MAX,
                    start_time: u64::MAX,
                })
                .collect(),
            ..trial()
        };
        assert!(longest.to_string().len() as u64 <= MAX_TRIAL_BYTES / 2);
        for wrong in ["tries", "tries x", "patience x", "kept a b c", "kept a b 1"] {
            let said = wrong.parse::<UpgradeTrial>().expect_err(wrong).to_string();
            assert!(said.contains(wrong), "{said}");
        }
    }

    #[test]
    fn versions() {
        for (new, old, expected) in [
            ("0.1.9", "0.2.0", true),
            ("0.9.0", "0.10.0", true),
            ("0.2.0", "0.2.0", false),
            ("0.2.0-rc1", "0.2.0", false),
            ("1.0.0", "0.2.0", false),
            ("x", "0.2.0", false),
            ("0.1", "0.2.0", false),
        ] {
            assert_eq!(is_older_version(new, old), expected, "{new} {old}");
        }
    }

    fn well(pid: u32) -> TrialLook {
        TrialLook {
            pid: Some(pid),
            answered: true,
            pods: [("p1".into(), false)].into(),
            ..TrialLook::default()
        }
    }

    fn ill(why: &str) -> TrialLook {
        TrialLook {
            trouble: Some(why.into()),
            ..well(1)
        }
    }

    fn gone(by_itself: bool) -> TrialLook {
        let gone = EndedContainer {
            id: "c1".into(),
            pod: "p1".into(),
            by_itself,
        };
        TrialLook {
            gone: [gone].into(),
            ..well(1)
        }
    }

    /// Judges looks at seconds; the last verdict.
    fn judged(trial: &UpgradeTrial, looks: &[(u64, TrialLook)]) -> TrialVerdict {
        let at = |s: u64| MonoTime::default() + Duration::from_secs(s);
        let mut gate = TrialJudge::new(trial, at(0));
        let mut last = TrialVerdict::Wait;
        for (s, look) in looks {
            assert_eq!(last, TrialVerdict::Wait, "nothing follows a verdict");
            last = gate.judge_look(look.clone(), at(*s));
        }
        last
    }

    #[test]
    fn verdicts() {
        // PKG-21 UPD-05 UPD-06
        let absent = TrialLook::default;
        let unanswered = |pid| TrialLook {
            answered: false,
            ..well(pid)
        };
        let leaving = || TrialLook {
            pods: [("p1".into(), true)].into(),
            ..well(1)
        };
        let back = |why: &str| TrialVerdict::Back(why.into());
        for (name, looks, expected) in [
            (
                "holds",
                &[(1, well(1)), (6, well(1))][..],
                TrialVerdict::Stay,
            ),
            ("not yet", &[(1, well(1)), (5, well(1))], TrialVerdict::Wait),
            (
                "begins again",
                &[(1, well(1)), (3, ill("x")), (6, well(1)), (10, well(1))],
                TrialVerdict::Wait,
            ),
            (
                "another process",
                &[(1, well(1)), (6, well(2))],
                TrialVerdict::Wait,
            ),
            (
                "never there",
                &[(1, absent()), (120, absent())],
                back("it was not healthy within 120 s: the new program does not run"),
            ),
            (
                "never well",
                &[(1, ill("no relist")), (120, ill("no relist"))],
                back("it was not healthy within 120 s: no relist"),
            ),
            (
                "well at the last moment",
                &[(119, well(1)), (121, well(1)), (124, well(1))],
                TrialVerdict::Stay,
            ),
            (
                "not for long",
                &[(119, well(1)), (121, ill("x"))],
                back("it was not healthy within 120 s: x"),
            ),
            (
                "killed one",
                &[(1, well(1)), (2, gone(false))],
                back("container c1 did not keep running"),
            ),
            (
                "one ended",
                &[(1, gone(true)), (6, gone(true))],
                TrialVerdict::Stay,
            ),
            (
                "deleted meanwhile",
                &[(1, leaving()), (6, gone(false))],
                TrialVerdict::Stay,
            ),
            (
                "no apiserver yet",
                &[(1, unanswered(1)), (100, unanswered(1))],
                TrialVerdict::Wait,
            ),
            (
                "no apiserver",
                &[(1, unanswered(1)), (120, unanswered(1))],
                TrialVerdict::AskApiserver,
            ),
        ] {
            assert_eq!(judged(&trial(), looks), expected, "{name}");
        }
        let alone = UpgradeTrial {
            apiserver: false,
            ..trial()
        };
        let looks = [(1, unanswered(1)), (6, unanswered(1))];
        assert_eq!(judged(&alone, &looks), TrialVerdict::Stay, "stands alone");
    }

    #[test]
    fn a_link_that_has_just_come_back_gets_time() {
        // PKG-21
        let at = |s: u64| MonoTime::default() + Duration::from_secs(s);
        let unanswered = || TrialLook {
            answered: false,
            ..well(1)
        };
        let asked = || {
            let mut gate = TrialJudge::new(&trial(), at(0));
            assert_eq!(gate.judge_look(unanswered(), at(100)), TrialVerdict::Wait);
            assert_eq!(
                gate.judge_look(unanswered(), at(120)),
                TrialVerdict::AskApiserver
            );
            gate.blame_program(at(125));
            assert_eq!(gate.judge_look(unanswered(), at(184)), TrialVerdict::Wait);
            gate
        };
        assert_eq!(asked().judge_look(well(1), at(184)), TrialVerdict::Stay);
        let back = |why: &str| TrialVerdict::Back(why.into());
        let why = "the apiserver can be reached, but the agent gets no answer from it";
        assert_eq!(asked().judge_look(unanswered(), at(185)), back(why));
        // Any other trouble gets no more time.
        let why = "it was not healthy within 120 s: x";
        assert_eq!(asked().judge_look(ill("x"), at(184)), back(why));
    }

    #[test]
    fn what_ends_by_itself() {
        // PKG-21
        for (name, code, oom_killed, by_itself) in [
            ("done", 0, false, true),
            ("failed", 1, false, true),
            ("SIGSEGV", 139, false, true),
            ("SIGABRT", 134, false, true),
            ("-1", 255, false, true),
            ("out of memory", 137, true, true),
            ("SIGTERM", 143, false, false),
            ("SIGKILL", 137, false, false),
            ("SIGINT", 130, false, false),
            ("SIGHUP", 129, false, false),
            ("SIGQUIT", 131, false, false),
            ("exit codes that are no signals", 15, false, true),
            ("of another program", i32::MIN, false, true),
        ] {
            assert_eq!(ends_by_itself(code, oom_killed), by_itself, "{name}");
        }
    }
}
