//! Looks for updates when it is time (UPD-07): a process of its own, `picolet update --look`, reads the channel and does the
//! rest. Without `picolet.update` nothing of this runs.

use alloc::rc::Rc;
use core::time::Duration;
use std::{io, path::PathBuf};

use super::{
    clock::{Clock, in_step},
    link_cost::LinkCost,
    recorder::{Recorder, Severity},
};
use crate::{
    logic::update::{LATER, Looks, Next, Schedule},
    net::ProxyVariables,
    sys::{
        child::{self, Command, Output},
        clock,
    },
};

/// This program, whatever its path holds by now.
const OWN: &str = "/proc/self/exe";
/// Where the programs are that an upgrade needs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A look, with all that has to be fetched, is over within this time.
const LOOK_TIME: Duration = Duration::from_secs(3 * 3600);
/// Bytes of what it says.
const MAX_SAID_BYTES: usize = 4096;

/// See the module.
pub(super) struct Updates {
    pub(super) schedule: Schedule,
    /// Whether the bytes of a look cost money; `None`: it takes none.
    pub(super) cost: Option<Rc<LinkCost>>,
    /// Name of the node.
    pub(super) node: String,
    /// Of the local API.
    pub(super) socket: PathBuf,
    pub(super) proxies: ProxyVariables,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) recorder: Rc<Recorder>,
}

impl Updates {
    /// As long as the agent.
    pub(super) async fn run(self) {
        let mut looks = Looks::new(self.clock.now());
        let mut told = Told::default();
        // Bounded: by its pauses.
        loop {
            let now = self.clock.now();
            let times = (now, self.clock.wall());
            let trusted = clock::synchronized() == Some(true);
            let costs = self.cost.as_ref().is_some_and(|cost| cost.is_metered());
            match looks.next(&self.schedule, &self.node, times, trusted, costs) {
                Next::Wait(time) => self.clock.until(in_step(now + time, now)).await,
                Next::Look(window) => {
                    // On the heap for its time: between two looks nothing of it is kept.
                    let said = told.of(Box::pin(self.look()).await);
                    looks.ended(window, said.again, self.clock.now());
                    match said.news {
                        Some(News::Refused(why)) => {
                            self.recorder.node(Severity::Warning, "UpdateRefused", &why);
                        }
                        Some(News::Nothing(why)) => log::info!("{why}"),
                        None => {}
                    }
                }
            }
        }
    }

    /// It outlives the agent that it replaces: told to end, it does so only as long as nothing has begun.
    async fn look(&self) -> io::Result<Output> {
        let look = Command::new(OWN)
            .args(["update", "--look", "--quiet", "--socket"])
            .arg(&self.socket)
            .env("PATH", PATH)
            .env("HTTP_PROXY", &self.proxies.http)
            .env("HTTPS_PROXY", &self.proxies.https)
            .env("NO_PROXY", &self.proxies.no_proxy)
            .polite()
            .capture(MAX_SAID_BYTES);
        child::run(look, Some(LOOK_TIME)).await
    }
}

/// What was told: the same is told once.
#[derive(Debug, Default)]
struct Told {
    last: String,
    /// The last refusal, whatever was said since.
    refused: String,
}

/// What came of a look.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    /// It has to be made up for.
    again: bool,
    news: Option<News>,
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    /// What is offered is not taken.
    Refused(String),
    /// There is nothing, or it has to wait.
    Nothing(String),
}

impl Told {
    fn of(&mut self, look: io::Result<Output>) -> Said {
        let (code, text) = match look {
            Err(e) => (LATER, format!("no look for updates: {e}")),
            Ok(output) => {
                let code = output.code();
                let said = if code == 0 {
                    output.stdout
                } else {
                    output.stderr
                };
                let said = String::from_utf8_lossy(&said);
                let line = said.trim().trim_start_matches("error: ");
                match code {
                    0 | 1 | LATER => (code, line.replace('\n', " ")),
                    // It says nothing of the release.
                    _ => (LATER, format!("a look for updates ended with {code}")),
                }
            }
        };
        let known = match code {
            1 => &mut self.refused,
            _ => &mut self.last,
        };
        let is_new = !text.is_empty() && text != *known;
        let news = is_new.then(|| {
            known.clone_from(&text);
            match code {
                1 => News::Refused(text),
                _ => News::Nothing(text),
            }
        });
        Said {
            again: code == LATER,
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
            Ok(Output {
                status: ExitStatus::from_raw(code << 8),
                stdout: stdout.into(),
                stderr: stderr.into(),
                truncated: false,
            })
        };
        let refused = |n: u32| output(1, "", &format!("error: update refused: serial {n}\n"));
        let nothing = |text: &str| Some(News::Nothing(text.into()));
        let mut told = Told::default();
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
                Some(News::Refused("update refused: serial 4".into())),
            ),
            (refused(4), false, None),
            (
                refused(5),
                false,
                Some(News::Refused("update refused: serial 5".into())),
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
            let said = told.of(look);
            assert_eq!(said, Said { again, news });
        }
    }
}
