//! Timer of the looks at the channel (UPD-07): a process of its own, `picolet update --look`, reads the channel and does the
//! rest. Without `picolet.update` nothing of this runs.

use alloc::rc::Rc;
use core::{cell::RefCell, time::Duration};
use std::{io, path::PathBuf};

use crate::{
    agent::{
        clock::{Clock, align_to_second},
        link_policy::LinkPolicy,
        recorder::{EventRecorder, EventSeverity},
    },
    api::{WallTime, node::NodeCondition},
    logic::update::{EXPIRED, LATER, NextLook, UpdateLooks, UpdateSchedule},
    net::ProxyVariables,
    sys::{
        child::{self, ChildOutput, Command},
        clock,
    },
};

/// Path of the running program, also after its file was replaced.
const OWN: &str = "/proc/self/exe";
/// Search path for the programs that an upgrade needs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A look, with all that has to be fetched, is over within this time.
const LOOK_TIME: Duration = Duration::from_secs(3 * 3600);
/// Bytes of what it says.
const MAX_SAID_BYTES: usize = 4096;

/// Name of the condition of `get node`.
const CONDITION: &str = "UpdateChannelExpired";

/// State of the channel after the last complete look. Written by [`UpdateTimer`], read by status pages.
#[derive(Debug, Default)]
pub(super) struct ChannelState(RefCell<Option<ChannelFinding>>);

#[derive(Debug)]
struct ChannelFinding {
    expired: bool,
    message: String,
    since: WallTime,
}

impl ChannelState {
    fn record_look(&self, expired: bool, message: &str, now: WallTime) {
        let mut found = self.0.borrow_mut();
        let same = found.as_ref().filter(|found| found.expired == expired);
        *found = Some(ChannelFinding {
            since: same.map_or(now, |found| found.since),
            expired,
            message: message.to_owned(),
        });
    }

    /// Condition of `get node` for the channel. `None` before the first look.
    pub(super) fn channel_condition(&self, now: WallTime) -> Option<NodeCondition> {
        self.0.borrow().as_ref().map(|found| NodeCondition {
            kind: CONDITION.into(),
            status: if found.expired { "True" } else { "False" }.into(),
            last_heartbeat_time: Some(now.truncated_to_second()),
            last_transition_time: Some(found.since.truncated_to_second()),
            reason: if found.expired { "Expired" } else { "Looked" }.into(),
            message: found.message.clone(),
        })
    }
}

/// See the module.
pub(super) struct UpdateTimer {
    pub(super) schedule: UpdateSchedule,
    /// Cost of the link; `None` if a look takes no bytes.
    pub(super) link_policy: Option<Rc<dyn LinkPolicy>>,
    /// Name of the node.
    pub(super) node: String,
    /// Socket of the local API.
    pub(super) socket: PathBuf,
    pub(super) proxies: ProxyVariables,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) recorder: Rc<EventRecorder>,
    pub(super) channel: Rc<ChannelState>,
}

impl UpdateTimer {
    /// As long as the agent.
    pub(super) async fn run_timer(self) {
        let mut looks = UpdateLooks::new(self.clock.now());
        let mut told = NewsMemory::default();
        // Bounded: by its pauses.
        loop {
            let now = self.clock.now();
            let times = (now, self.clock.wall_time());
            let trusted = clock::is_synchronized() == Some(true);
            let costs = self.link_policy.as_ref();
            let costs = costs.is_some_and(|link| link.is_metered());
            match looks.next_step(&self.schedule, &self.node, times, trusted, costs) {
                NextLook::Wait(time) => {
                    self.clock
                        .sleep_until(align_to_second(now + time, now))
                        .await
                }
                NextLook::Look(window) => {
                    // On the heap for its time: between two looks nothing of it is kept.
                    let said = told.take_look_result(Box::pin(self.run_look()).await);
                    looks.record_look_end(window, said.again, self.clock.now());
                    if !said.again {
                        self.channel
                            .record_look(said.expired, &said.text, self.clock.wall_time());
                    }
                    match said.news {
                        Some(UpdateNews::Refused(why)) => {
                            self.recorder.record_node_event(
                                EventSeverity::Warning,
                                "UpdateRefused",
                                &why,
                            );
                        }
                        Some(UpdateNews::Nothing(why)) => log::info!("{why}"),
                        None => {}
                    }
                }
            }
        }
    }

    /// Runs the look. The child outlives an agent that it replaces; a word to end is heard only before its work has
    /// begun.
    async fn run_look(&self) -> io::Result<ChildOutput> {
        let look = Command::new(OWN)
            .args(["update", "--look", "--quiet", "--socket"])
            .arg(&self.socket)
            .env("PATH", PATH)
            .env("HTTP_PROXY", &self.proxies.http)
            .env("HTTPS_PROXY", &self.proxies.https)
            .env("NO_PROXY", &self.proxies.no_proxy)
            .kill_by_sigterm()
            .capture_output(MAX_SAID_BYTES);
        child::run_command(look, Some(LOOK_TIME)).await
    }
}

/// Memory of what was told: each news is told once.
#[derive(Debug, Default)]
struct NewsMemory {
    last: String,
    /// The last refusal, whatever was said since.
    refused: String,
}

/// Result of a look.
#[derive(Debug, PartialEq, Eq)]
struct UpdateLookResult {
    /// Set if the look has to be repeated soon.
    again: bool,
    /// The channel file is one whose time has passed.
    expired: bool,
    text: String,
    news: Option<UpdateNews>,
}

#[derive(Debug, PartialEq, Eq)]
enum UpdateNews {
    /// The offered program is not taken.
    Refused(String),
    /// There is nothing, or it has to wait.
    Nothing(String),
}

impl NewsMemory {
    fn take_look_result(&mut self, look: io::Result<ChildOutput>) -> UpdateLookResult {
        let (code, text) = match look {
            Err(e) => (LATER, format!("no look for updates: {e}")),
            Ok(output) => {
                let code = output.exit_code();
                let said = if code == 0 {
                    output.stdout
                } else {
                    output.stderr
                };
                let said = String::from_utf8_lossy(&said);
                let line = said.trim().trim_start_matches("error: ");
                match code {
                    0 | 1 | LATER | EXPIRED => (code, line.replace('\n', " ")),
                    // It says nothing of the release.
                    _ => (LATER, format!("a look for updates ended with {code}")),
                }
            }
        };
        let known = match code {
            1 | EXPIRED => &mut self.refused,
            _ => &mut self.last,
        };
        let is_new = !text.is_empty() && text != *known;
        let news = is_new.then(|| {
            known.clone_from(&text);
            match code {
                1 | EXPIRED => UpdateNews::Refused(text.clone()),
                _ => UpdateNews::Nothing(text.clone()),
            }
        });
        UpdateLookResult {
            again: code == LATER,
            expired: code == EXPIRED,
            text,
            news,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

    use super::*;

    #[test]
    fn the_same_is_told_once() {
        // UPD-01
        let output = |code: i32, stdout: &str, stderr: &str| {
            Ok(ChildOutput {
                status: ExitStatus::from_raw(code << 8),
                stdout: stdout.into(),
                stderr: stderr.into(),
                truncated: false,
            })
        };
        let refused = |n: u32| output(1, "", &format!("error: update refused: serial {n}\n"));
        let nothing = |text: &str| Some(UpdateNews::Nothing(text.into()));
        let mut told = NewsMemory::default();
        for (look, again, news) in [
            (
                output(0, "serial 3 is installed\n", "x"),
                false,
                nothing("serial 3 is installed"),
            ),
            (output(0, "serial 3 is installed\n", ""), false, None),
            (
                refused(4),
                false,
                Some(UpdateNews::Refused("update refused: serial 4".into())),
            ),
            (refused(4), false, None),
            (
                refused(5),
                false,
                Some(UpdateNews::Refused("update refused: serial 5".into())),
            ),
            (
                output(LATER, "", "no update now: pods start or end: 1\n"),
                true,
                nothing("no update now: pods start or end: 1"),
            ),
            (refused(5), false, None),
            (
                output(101, "", "thread 'main' panicked\n"),
                true,
                nothing("a look for updates ended with 101"),
            ),
            (
                Err(io::Error::other("it hangs")),
                true,
                nothing("no look for updates: it hangs"),
            ),
            (output(0, "", ""), false, None),
        ] {
            let said = told.take_look_result(look);
            assert_eq!((said.again, said.news), (again, news));
            assert!(!said.expired, "{}", said.text);
        }
        let text = "update refused: the channel file expired at 2026-01-01T00:00:00Z";
        for is_first in [true, false] {
            let said = told.take_look_result(output(EXPIRED, "", &format!("error: {text}\n")));
            assert!(said.expired && !said.again && said.text == text);
            let news = is_first.then(|| UpdateNews::Refused(text.into()));
            assert_eq!(said.news, news, "told once");
        }
    }

    #[test]
    fn an_expired_channel_is_a_condition_until_another_look_finds_none() {
        // UPD-01
        let channel = ChannelState::default();
        let at = WallTime::from_unix_seconds;
        let shown = |now: i64| {
            let condition = channel
                .channel_condition(at(now))
                .expect("there was a look");
            let since = condition.last_transition_time.expect("known");
            (condition.status.to_string(), condition.message, since)
        };
        assert_eq!(channel.channel_condition(at(1)), None);
        for (now, expired, text, status, since) in [
            (10, false, "serial 3 is installed", "False", 10),
            (20, true, "expired", "True", 20),
            (30, true, "expired again", "True", 20),
            (40, false, "serial 4 is installed", "False", 40),
        ] {
            channel.record_look(expired, text, at(now));
            let wanted = (status.to_owned(), text.to_owned(), at(since));
            assert_eq!(shown(now + 5), wanted);
        }
    }
}
