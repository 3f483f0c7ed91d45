//! Programs that replace the one that runs: given by the operator (`picolet upgrade`), or offered by a channel that the
//! node looks at (`picolet.update`, `picolet update`).
//!
//! | file | content |
//! |---|---|
//! | `settings` | the keys below `picolet.update` |
//! | `timer` | the agent's task that has the channel looked at |
//! | `command` | `picolet update`: a look at the channel |
//! | `channel` | the signed file that names a release, and the release |
//! | `upgrade` | `picolet upgrade`: another program takes over |
//! | `release`, `running`, `switch`, `watch` | the program that is to take over, the agent that runs, the exchange of their files, the trial |
//! | `undone` | the note that an upgrade was undone |

pub mod channel;
mod command;
mod release;
mod running;
mod settings;
mod switch;
mod timer;
mod undone;
mod upgrade;
mod watch;

use alloc::rc::Rc;
use std::process::ExitCode;

use serde_json::Value;

use super::{ConfiguredPart, Part, PartCommand, PartTools, read_section};
use crate::{
    agent::tasks::{AgentTask, box_task},
    api::{WallTime, node::NodeCondition},
    cli::{
        CliCommand,
        args::CliWords,
        commands::{CompletionKind, MACHINE, QUIET, switch_flag, value_flag},
    },
    config::{AgentConfig, InvalidField, TableKey, key},
};
use settings::UpdateConfig;
use timer::{ChannelState, UpdateTimer};

/// The part; see the module.
pub(super) struct UpdatePart;

#[rustfmt::skip]
static COMMANDS: [PartCommand; 2] = [
    PartCommand {
        command: CliCommand { name: "upgrade", args: "FILE", group: MACHINE, help: "Replace picolet with FILE; put the old one back if the new one does not become healthy", flags: &[
            switch_flag("dry-run", None, "only check whether FILE can replace the installed program"),
            switch_flag("force", None, "even if FILE is older, was put back before, or finds something wrong; it is still on trial"),
            value_flag("key", None, "PATH", "public key that the release is signed by (default ../lib/picolet/release.pub beside the program's directory)"),
            value_flag("restart", None, "COMMAND", "command that restarts the agent (default: restart its service of systemd or OpenRC)"),
            value_flag("wait", None, "SECONDS", "time for the new program to become healthy, from 20 to 3600 (default 120)"),
            switch_flag("watch", None, "continue a trial that was interrupted; picolet-upgrade.service calls this"),
            QUIET,
        ], agent_flags: false, takes: CompletionKind::Files },
        run: |command, words| upgrade::run_upgrade(CliWords::new(command, words)).map(|()| ExitCode::SUCCESS),
    },
    PartCommand {
        command: CliCommand { name: "update", args: "", group: MACHINE, help: "Show how this node updates itself (picolet.update), or look for an update now", flags: &[
            switch_flag("status", None, "show where and when it looks for updates, and what is installed (the default)"),
            switch_flag("now", None, "update to what the channel offers now; ignore the time window and the share of nodes"),
            switch_flag("force", None, "with --now: also a lower serial, or one that was put back before"),
            switch_flag("look", None, "update if the settings allow it now; the agent calls this. Exit code 75: try again later"),
            QUIET,
        ], agent_flags: false, takes: CompletionKind::Nothing },
        run: |command, words| command::run_update(CliWords::new(command, words)).map(|()| ExitCode::SUCCESS),
    },
];

/// Keys in the configuration.
static KEYS: [TableKey; 9] = [
    key("picolet.update.ca").path(),
    key("picolet.update.keys"),
    key("picolet.update.restart"),
    key("picolet.update.source"),
    key("picolet.update.spread"),
    key("picolet.update.trustClock"),
    key("picolet.update.window.days"),
    key("picolet.update.window.length"),
    key("picolet.update.window.start"),
];

impl Part for UpdatePart {
    fn name(&self) -> &'static str {
        "update"
    }

    fn commands(&self) -> &'static [PartCommand] {
        &COMMANDS
    }

    fn keys(&self) -> &'static [TableKey] {
        &KEYS
    }

    /// Configures the part on every node: an upgrade can be undone without a channel too.
    fn configure(
        &self,
        own: &Value,
        _: &AgentConfig,
    ) -> Result<Option<Rc<dyn ConfiguredPart>>, InvalidField> {
        Ok(Some(Rc::new(ConfiguredUpdates {
            config: settings::resolve_updates(&read_section(own, "update")?)?,
            channel: Rc::default(),
        })))
    }
}

/// The part with its checked configuration.
#[derive(Debug)]
struct ConfiguredUpdates {
    /// Channel of this node; `None`: the node does not look for updates.
    config: Option<UpdateConfig>,
    channel: Rc<ChannelState>,
}

impl ConfiguredPart for ConfiguredUpdates {
    fn start(&self, tools: &PartTools<'_>) -> Vec<AgentTask> {
        undone::report_undone_upgrade(tools.recorder);
        let timer = self.config.as_ref().map(|config| {
            let timer = UpdateTimer {
                schedule: config.schedule,
                link_policy: config
                    .source
                    .is_over_link()
                    .then(|| Rc::clone(tools.link_policy)),
                node: tools.config.node_name.clone(),
                socket: tools.config.dirs.socket.clone(),
                proxies: tools.proxies.clone(),
                clock: Rc::clone(tools.clock),
                recorder: Rc::clone(tools.recorder),
                channel: Rc::clone(&self.channel),
            };
            box_task(timer.run_timer())
        });
        timer.into_iter().collect()
    }

    fn conditions(&self, now: WallTime) -> Vec<NodeCondition> {
        self.channel.channel_condition(now).into_iter().collect()
    }
}
