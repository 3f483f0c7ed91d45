//! Table of commands and their flags, for the parser, the help texts, completion and the man page. The flags of the
//! agent are a table of their own (`config::flags`), taken by [`CliCommand::agent_flags`].

use core::fmt::Write as _;

use crate::{config, logic::text::two_columns, parts};

/// A flag of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandFlag {
    /// Name without dashes.
    pub(crate) name: &'static str,
    /// `-x`, if it has that form.
    pub(crate) short: Option<char>,
    /// Kind of the flag's value, in capitals; empty for a switch. Words separated by `|` are the only values.
    pub(crate) value: &'static str,
    /// Help text in one line.
    pub(crate) help: &'static str,
}

/// Kind of words that completion offers behind a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionKind {
    /// No words, or none that can be guessed.
    Nothing,
    /// Names of pods.
    Pods,
    /// A kind, then names.
    Kinds,
    /// Files.
    Files,
    /// References of images.
    Images,
    /// Names of shells.
    Shells,
    /// Names of commands.
    Commands,
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CliCommand {
    /// Name in one word or two: `image import`.
    pub(crate) name: &'static str,
    /// Arguments, as help shows them.
    pub(crate) args: &'static str,
    /// Heading in the help.
    pub(crate) group: &'static str,
    /// Help text in one line.
    pub(crate) help: &'static str,
    /// Flags of this command alone.
    pub(crate) flags: &'static [CommandFlag],
    /// Set if the command takes the agent's flags too, `--socket` among them.
    pub(crate) agent_flags: bool,
    /// Kind of words that completion offers.
    pub(crate) takes: CompletionKind,
}

pub(crate) const fn switch_flag(
    name: &'static str,
    short: Option<char>,
    help: &'static str,
) -> CommandFlag {
    value_flag(name, short, "", help)
}

pub(crate) const fn value_flag(
    name: &'static str,
    short: Option<char>,
    value: &'static str,
    help: &'static str,
) -> CommandFlag {
    CommandFlag {
        name,
        short,
        value,
        help,
    }
}

/// Shells that can be completed for.
pub(crate) const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Flags of every command that talks to the agent.
pub(crate) const COMMON: [CommandFlag; 2] = [
    value_flag(
        "socket",
        None,
        "PATH",
        "where the agent listens (PICOLET_SOCKET, default /run/picolet/picolet.sock)",
    ),
    switch_flag("help", Some('h'), "print help"),
];

const NAMESPACE: CommandFlag = value_flag(
    "namespace",
    Some('n'),
    "NAME",
    "namespace of the pod (default \"default\")",
);
const ALL_NAMESPACES: CommandFlag = switch_flag(
    "all-namespaces",
    Some('A'),
    "of all namespaces, in place of --namespace",
);
const SELECTOR: CommandFlag = value_flag(
    "selector",
    Some('l'),
    "LABELS",
    "only objects with these labels (app=web,tier!=back)",
);
const NO_HEADERS: CommandFlag = switch_flag("no-headers", None, "without the header line");
const WATCH: CommandFlag = switch_flag(
    "watch",
    Some('w'),
    "keep watching: a live table on a terminal, otherwise one line per change",
);
pub(crate) const QUIET: CommandFlag = switch_flag("quiet", Some('q'), "show no progress");
const CONTAINER: CommandFlag = value_flag(
    "container",
    Some('c'),
    "NAME",
    "container of the pod (default: the first)",
);

const AGENT: &str = "Agent";
const PODS: &str = "Pods";
const IMAGES: &str = "Images";
pub(crate) const MACHINE: &str = "Machine";
const OTHER: &str = "Other";

/// Headings of the help, in its order.
const GROUPS: [&str; 5] = [AGENT, PODS, IMAGES, MACHINE, OTHER];

/// Commands of the core, in the order of the help.
#[rustfmt::skip]
const COMMANDS: &[CliCommand] = &[
    CliCommand { name: "run", args: "", group: AGENT, help: "Run the node agent", flags: &[], agent_flags: true, takes: CompletionKind::Nothing },
    CliCommand { name: "stop", args: "", group: AGENT, help: "Stop the agent; pods keep running unless --all is given", flags: &[
        switch_flag("all", None, "end all pods first; they start again when the agent is started again"),
        switch_flag("shutdown", None, "for a machine that shuts down: end the pods as shutdownGracePeriod says, or else like --all"),
        QUIET,
    ], agent_flags: false, takes: CompletionKind::Nothing },

    CliCommand { name: "get", args: "KIND[,KIND...] [NAME...] | KIND/NAME...", group: PODS, help: "Show pods, images, node, devices, events, configmaps or secrets", flags: &[
        NAMESPACE,
        ALL_NAMESPACES,
        value_flag("output", Some('o'), "wide|json|yaml|name|jsonpath=|jsonpath-file=|custom-columns=|custom-columns-file=", "output format (default: a table)"),
        SELECTOR,
        value_flag("field-selector", None, "FIELDS", "only objects with these fields (status.phase!=Running)"),
        value_flag("sort-by", None, "PATH", "order of the objects ({.metadata.creationTimestamp})"),
        value_flag("label-columns", Some('L'), "LABEL,...", "a column for each of these labels"),
        switch_flag("show-labels", None, "a column with all labels"),
        switch_flag("show-kind", None, "put the kind before each name"),
        switch_flag("ignore-not-found", None, "a name that does not exist is no error"),
        WATCH,
        NO_HEADERS,
    ], agent_flags: false, takes: CompletionKind::Kinds },
    CliCommand { name: "describe", args: "KIND[,KIND...] [NAME...] | KIND/NAME...", group: PODS, help: "Show everything about a pod, configmap, secret or the node", flags: &[
        NAMESPACE,
        switch_flag("eviction-order", None, "for the node: also show which pods would be evicted first"),
    ], agent_flags: false, takes: CompletionKind::Kinds },
    CliCommand { name: "top", args: "pods|node|disk|net [NAME]", group: PODS, help: "Show what pods or the node use, which pods write to the disk, or the traffic of the link", flags: &[
        NAMESPACE,
        ALL_NAMESPACES,
        switch_flag("containers", None, "one line for each container"),
        value_flag("sort-by", None, "cpu|memory|name", "order of the lines (default: name, with --watch cpu)"),
        WATCH,
        NO_HEADERS,
    ], agent_flags: false, takes: CompletionKind::Nothing },
    CliCommand { name: "logs", args: "POD", group: PODS, help: "Print the logs of containers", flags: &[
        NAMESPACE,
        CONTAINER,
        switch_flag("all-containers", None, "the logs of all containers of the pod"),
        SELECTOR,
        switch_flag("prefix", None, "put the pod and the container before each line"),
        switch_flag("follow", Some('f'), "print new lines as they come"),
        value_flag("max-log-requests", None, "N", "follow at most N logs at once (default 5)"),
        switch_flag("ignore-errors", None, "go on with the other logs if one cannot be read"),
        switch_flag("previous", Some('p'), "the log of the instance before the last restart"),
        value_flag("tail", None, "N", "only the last N lines"),
        value_flag("since", None, "DURATION", "only lines younger than this (90s, 5m, 1h30m)"),
        value_flag("since-time", None, "TIME", "only lines after this time (RFC 3339)"),
        switch_flag("timestamps", None, "put the time before each line"),
        value_flag("limit-bytes", None, "N", "at most N bytes"),
    ], agent_flags: false, takes: CompletionKind::Pods },
    CliCommand { name: "events", args: "", group: PODS, help: "Show events, the newest last", flags: &[
        NAMESPACE,
        ALL_NAMESPACES,
        value_flag("for", None, "KIND/NAME", "only events of this pod or node"),
        value_flag("types", None, "TYPE,...", "only events of these types: Normal, Warning"),
        WATCH,
        NO_HEADERS,
    ], agent_flags: false, takes: CompletionKind::Nothing },
    CliCommand { name: "wait", args: "pod NAME...", group: PODS, help: "Wait until pods are in a state; exit code 1 if that takes too long", flags: &[
        NAMESPACE,
        value_flag("for", None, "GOAL", "condition=NAME[=STATUS], jsonpath=PATH[=VALUE], create or delete"),
        SELECTOR,
        switch_flag("all", None, "all pods of the namespace"),
        value_flag("timeout", None, "DURATION", "longest time to wait, for all pods together (default 30s; negative: a week)"),
    ], agent_flags: false, takes: CompletionKind::Pods },
    CliCommand { name: "restart", args: "POD...", group: PODS, help: "End static pods and start them anew", flags: &[NAMESPACE], agent_flags: false, takes: CompletionKind::Pods },
    CliCommand { name: "delete", args: "pod [NAME...]", group: PODS, help: "End static pods; each manifest is renamed to .NAME.deleted", flags: &[
        NAMESPACE,
        SELECTOR,
        switch_flag("all", None, "all pods of the namespace"),
        switch_flag("ignore-not-found", None, "a name that does not exist is no error"),
        switch_flag("wait", None, "wait until the pods have ended (default true)"),
        value_flag("timeout", None, "DURATION", "longest time to wait (default 0: as long as it takes)"),
    ], agent_flags: true, takes: CompletionKind::Pods },
    CliCommand { name: "exec", args: "POD -- COMMAND [ARG...]", group: PODS, help: "Run a command in a container", flags: &[
        NAMESPACE,
        CONTAINER,
        switch_flag("stdin", Some('i'), "pass standard input on"),
        switch_flag("tty", Some('t'), "give the command a terminal"),
    ], agent_flags: false, takes: CompletionKind::Pods },
    CliCommand { name: "cp", args: "FROM TO", group: PODS, help: "Copy files from a container (POD:PATH) or into one; it must have tar", flags: &[
        NAMESPACE,
        CONTAINER,
        switch_flag("no-preserve", None, "owners and permissions are not kept in the container"),
    ], agent_flags: false, takes: CompletionKind::Files },
    CliCommand { name: "attach", args: "POD", group: PODS, help: "Attach to a container's own streams", flags: &[
        NAMESPACE,
        CONTAINER,
        switch_flag("stdin", Some('i'), "pass standard input on"),
        switch_flag("tty", Some('t'), "standard input is the container's terminal"),
    ], agent_flags: false, takes: CompletionKind::Pods },
    CliCommand { name: "port-forward", args: "POD [LOCAL:]REMOTE...", group: PODS, help: "Forward local ports to a pod", flags: &[
        NAMESPACE,
        value_flag("address", None, "IP,...", "where to listen (default localhost)"),
    ], agent_flags: false, takes: CompletionKind::Pods },
    CliCommand { name: "explain", args: "FIELD", group: PODS, help: "List the fields of a manifest (pod.spec.containers)", flags: &[], agent_flags: false, takes: CompletionKind::Nothing },

    CliCommand { name: "image import", args: "FILE...", group: IMAGES, help: "Import docker and OCI archives; - is standard input", flags: &[
        value_flag("name", None, "REFERENCE", "name of an image that has none in its archive"),
        QUIET,
    ], agent_flags: false, takes: CompletionKind::Files },
    CliCommand { name: "image pull", args: "REFERENCE...", group: IMAGES, help: "Pull images from their registries", flags: &[
        switch_flag("now", None, "pull even if the daily budget of the link has no bytes left for it"),
        QUIET,
    ], agent_flags: false, takes: CompletionKind::Images },
    CliCommand { name: "image save", args: "IMAGE...", group: IMAGES, help: "Write images into a docker archive", flags: &[
        value_flag("output", Some('o'), "FILE", "file to write (default: standard output)"),
        QUIET,
    ], agent_flags: false, takes: CompletionKind::Images },
    CliCommand { name: "image ls", args: "[NAME...]", group: IMAGES, help: "List images (also: picolet images)", flags: &[
        value_flag("output", Some('o'), "wide|json|yaml|name", "output format (default: a table; wide: full identifiers)"),
        switch_flag("quiet", Some('q'), "only ids"),
        NO_HEADERS,
    ], agent_flags: false, takes: CompletionKind::Images },
    CliCommand { name: "image inspect", args: "IMAGE...", group: IMAGES, help: "Show the configuration, layers, size and digests of images", flags: &[
        value_flag("output", Some('o'), "json|yaml", "output format (default: json)"),
    ], agent_flags: false, takes: CompletionKind::Images },
    CliCommand { name: "image tag", args: "IMAGE NAME...", group: IMAGES, help: "Give an image further names", flags: &[], agent_flags: false, takes: CompletionKind::Images },
    CliCommand { name: "image rm", args: "IMAGE...", group: IMAGES, help: "Remove images", flags: &[], agent_flags: false, takes: CompletionKind::Images },
    CliCommand { name: "image verify", args: "", group: IMAGES, help: "Check that images have not changed since they were unpacked", flags: &[
        switch_flag("repair", None, "remove damaged images that no container uses; they are fetched again"),
        value_flag("root-dir", None, "DIR", "check the images in this root directory without an agent; no agent may be using the directory"),
        QUIET,
    ], agent_flags: false, takes: CompletionKind::Nothing },
    CliCommand { name: "image prune", args: "", group: IMAGES, help: "Remove images that no container uses", flags: &[], agent_flags: false, takes: CompletionKind::Nothing },

    CliCommand { name: "check", args: "[FILE...]", group: MACHINE, help: "Say what is wrong with this machine, or with manifests, and the exact fix", flags: &[
        value_flag("output", Some('o'), "json", "output format (default: lines)"),
        switch_flag("quiet", Some('q'), "show only problems"),
        switch_flag("strict", None, "exit code 1 for warnings too"),
        switch_flag("kubeadm", None, "do the checks that kubeadm join does, under the names that kubeadm uses"),
        switch_flag("kubelet", None, "read the flags as the program does when it is called as kubelet"),
    ], agent_flags: true, takes: CompletionKind::Files },
    CliCommand { name: "reset", args: "", group: MACHINE, help: "Remove everything the agent made; manifests and configuration stay", flags: &[
        switch_flag("yes", Some('y'), "do not ask"),
        switch_flag("force", Some('f'), "the same as --yes, for those who know it from kubeadm"),
        switch_flag("dry-run", None, "only list what would be removed"),
        switch_flag("stop", None, "if the agent is running, first end it and its pods; hooks of the pods are run"),
        switch_flag("keep-images", None, "keep the images"),
        value_flag("grace-period", None, "SECONDS", "longest time that a pod has to end, if no agent is running (default: as its manifest says)"),
    ], agent_flags: true, takes: CompletionKind::Nothing },
    CliCommand { name: "health", args: "", group: MACHINE, help: "Say whether the agent is healthy; exit code 1 if not", flags: &[
        value_flag("wait", None, "SECONDS", "wait up to this time for a healthy agent (default 0, at most 3600)"),
    ], agent_flags: false, takes: CompletionKind::Nothing },
    CliCommand { name: "config view", args: "", group: MACHINE, help: "Print the configuration that the agent uses, with all defaults", flags: &[
        value_flag("output", Some('o'), "json|yaml", "output format (default yaml)"),
    ], agent_flags: false, takes: CompletionKind::Nothing },
    CliCommand { name: "debug dump", args: "", group: MACHINE, help: "Print the latest events and actions of the agent's main loop", flags: &[], agent_flags: false, takes: CompletionKind::Nothing },

    CliCommand { name: "completion", args: "bash|zsh|fish", group: OTHER, help: "Print a completion script", flags: &[], agent_flags: false, takes: CompletionKind::Shells },
    CliCommand { name: "man", args: "", group: OTHER, help: "Print the manual page (picolet man | man -l -)", flags: &[], agent_flags: false, takes: CompletionKind::Nothing },
    CliCommand { name: "version", args: "", group: OTHER, help: "Print the version", flags: &[
        value_flag("output", Some('o'), "json|yaml", "output format, with the version of the agent if it answers (default: a line)"),
    ], agent_flags: false, takes: CompletionKind::Nothing },
    CliCommand { name: "help", args: "[COMMAND]", group: OTHER, help: "Print help", flags: &[], agent_flags: false, takes: CompletionKind::Commands },
];

/// Commands of kubectl, crictl, podman and docker that picolet has not, with what serves instead.
#[rustfmt::skip]
pub(crate) const OF_OTHERS: &[(&str, &str)] = &[
    ("apply create replace patch edit scale rollout", "to run or change a pod, write its manifest into the directory of manifests (staticPodPath, by default /etc/picolet/manifests)"),
    ("rm rmp", "to end a pod, use 'picolet delete pod NAME', or remove its manifest from the directory of manifests (staticPodPath, by default /etc/picolet/manifests)"),
    ("start", "the service manager starts the agent: systemctl start picolet"),
    ("ps pods", "use 'picolet get pods'"),
    ("rmi pull", "use 'picolet image rm' or 'picolet image pull'"),
    ("load", "use 'picolet image import'"),
    ("inspect", "use 'picolet describe', 'picolet image inspect', or 'picolet get KIND NAME -o yaml'"),
    ("stats", "use 'picolet top pods'"),
    ("status info cluster-info", "use 'picolet health', 'picolet get node' or 'picolet check'"),
    ("install", "use 'picolet upgrade FILE' for another release; install.sh of a release installs picolet"),
];

/// Lists all commands, those of parts too, in the order of the help.
pub(crate) fn all_commands() -> impl Iterator<Item = &'static CliCommand> {
    GROUPS.iter().flat_map(|group| {
        let of_parts = parts::part_commands().map(|part| &part.command);
        let commands = COMMANDS.iter().chain(of_parts);
        commands.filter(move |command| command.group == *group)
    })
}

/// Lists the words of the first place.
pub(crate) fn first_words() -> Vec<&'static str> {
    let mut words: Vec<&str> = all_commands()
        .map(|c| c.name.split(' ').next().unwrap_or(c.name))
        .collect();
    words.dedup();
    words
}

impl CliCommand {
    /// Finds a command by its words. Returns also the number of words of its name.
    pub(crate) fn find_command(
        first: &str,
        second: Option<&str>,
    ) -> Option<(&'static Self, usize)> {
        // crictl's and podman's word.
        if first == "images" {
            return Self::find_command("image", Some("ls")).map(|(c, _)| (c, 1));
        }
        let named = |name: &str| all_commands().find(|c| c.name == name);
        named(first).map(|c| (c, 1)).or_else(|| {
            let both = format!("{first} {}", second?);
            named(&both).map(|c| (c, 2))
        })
    }

    /// Returns true if some command's name begins with this word and has another.
    pub(crate) fn is_command_family(first: &str) -> bool {
        all_commands().any(|c| c.name.split_once(' ').is_some_and(|(f, _)| f == first))
    }

    /// Flags of this command and those that every command takes; not the agent's.
    pub(crate) fn all_flags(&'static self) -> impl Iterator<Item = &'static CommandFlag> {
        let common = COMMON
            .iter()
            .filter(|f| !(self.agent_flags && f.name == "socket"));
        self.flags.iter().chain(common)
    }

    /// Finds the name of a flag that was typed as one letter.
    pub(crate) fn long_flag_name(&self, short: char) -> Option<&'static str> {
        let own = self.flags.iter().find(|f| f.short == Some(short));
        own.map(|f| f.name)
    }

    /// Makes the help for this command alone.
    pub(crate) fn help_text(&'static self) -> String {
        let mut out = format!("{}.\n\nUsage: picolet {}", self.help, self.name);
        for part in [self.args, "[FLAGS]"] {
            if !part.is_empty() {
                let _ = write!(out, " {part}");
            }
        }
        out.push_str("\n\nFlags:\n");
        let left = |f: &CommandFlag| {
            let short = f
                .short
                .map_or_else(|| "    ".to_owned(), |c| format!("-{c}, "));
            format!("{short}--{}{}", f.name, with_leading_space(f.value))
        };
        let rows: Vec<_> = self.all_flags().map(|f| (left(f), f.help)).collect();
        out += &two_columns(rows.iter().map(|(left, right)| (&**left, *right)));
        match (self.agent_flags, self.name) {
            (true, "run") => {
                out += "\nEach flag sets the configuration key that stands in brackets:\n";
                out += &config::flags::help_text();
            }
            (true, _) => {
                out += "\nIt also takes the flags of the agent: see 'picolet run --help'.\n"
            }
            (false, _) => {}
        }
        out
    }
}

fn with_leading_space(value: &str) -> String {
    if value.is_empty() {
        String::new()
    } else {
        format!(" {value}")
    }
}

/// Makes the help for the commands whose names begin with one word, `image`.
pub(crate) fn family_text(first: &str) -> String {
    let of_family = |command: &&CliCommand| {
        command
            .name
            .split_once(' ')
            .is_some_and(|(f, _)| f == first)
    };
    let rows = command_rows(&mut all_commands().filter(of_family));
    format!("Usage: picolet {first} COMMAND [FLAGS]\n\n{rows}\n{HELP_HINT}")
}

/// Makes the lines of an overview.
fn command_rows(commands: &mut dyn Iterator<Item = &'static CliCommand>) -> String {
    let left = |c: &CliCommand| format!("{}{}", c.name, with_leading_space(c.args));
    let rows: Vec<_> = commands
        .map(|command| (left(command), command.help))
        .collect();
    two_columns(rows.iter().map(|(left, right)| (&**left, *right)))
}

const HELP_HINT: &str = "'picolet help COMMAND' lists the flags of a command.\n";

/// Makes the help for all commands.
pub(crate) fn overview_text() -> String {
    let mut out =
        "picolet: a kubelet for very small machines\n\nUsage: picolet COMMAND [FLAGS]\n".to_owned();
    for group in GROUPS {
        let _ = write!(out, "\n{group}:\n");
        out += &command_rows(&mut all_commands().filter(|command| command.group == group));
    }
    out + "\n" + HELP_HINT + "Commands find the agent by --socket or PICOLET_SOCKET.\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::text::HELP_COLUMNS;

    #[test]
    fn the_table_is_sound() {
        for command in all_commands() {
            let mut names: Vec<&str> = command.all_flags().map(|f| f.name).collect();
            let mut letters: Vec<char> = command.all_flags().filter_map(|f| f.short).collect();
            names.sort_unstable();
            letters.sort_unstable();
            assert!(names.windows(2).all(|w| w[0] != w[1]), "{}", command.name);
            assert!(letters.windows(2).all(|w| w[0] != w[1]), "{}", command.name);
            let texts = command.flags.iter().map(|f| f.help).chain([command.help]);
            for text in texts {
                assert!(!text.is_empty() && !text.ends_with('.'), "{text:?}");
            }
        }
        let mut groups: Vec<&str> = all_commands().map(|c| c.group).collect();
        groups.dedup();
        assert_eq!(
            groups, GROUPS,
            "no command has a group that is not in the help"
        );
        assert_eq!(
            all_commands()
                .filter(|c| COMMANDS.iter().any(|own| own.name == c.name))
                .count(),
            COMMANDS.len()
        );
    }

    #[test]
    fn commands_are_found() {
        for (first, second, found) in [
            ("get", Some("pods"), Some(("get", 1))),
            ("image", Some("import"), Some(("image import", 2))),
            ("images", None, Some(("image ls", 1))),
            ("images", Some("nginx"), Some(("image ls", 1))),
            ("debug", Some("dump"), Some(("debug dump", 2))),
            ("image", Some("fly"), None),
            ("image", None, None),
            ("shim", None, None),
        ] {
            let got = CliCommand::find_command(first, second).map(|(c, n)| (c.name, n));
            assert_eq!(got, found, "{first} {second:?}");
        }
        assert!(CliCommand::is_command_family("image") && !CliCommand::is_command_family("get"));
    }

    /// Flags of kubectl 1.36 with their letters, for the commands that are here too. tests/kubectl.rs asks a real kubectl.
    const KUBECTL_FLAGS: &str = include_str!("../../tests/golden/kubectl/flags.txt");

    /// Compares docs/kubectl.md with the tables of both programs.
    #[test]
    fn the_comparison_with_kubectl_is_right() {
        let paper = include_str!("../../docs/kubectl.md");
        let rows = paper.lines().filter_map(|line| line.strip_prefix("| `"));
        let rows: Vec<Vec<&str>> = rows
            .map(|row| row.split('|').map(str::trim).collect())
            .collect();
        let names: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
        let kubectl = KUBECTL_FLAGS.lines().filter(|line| !line.starts_with('#'));
        let kubectl: Vec<_> = kubectl.filter_map(|line| line.split_once(':')).collect();
        assert_eq!(
            names,
            kubectl.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        );
        for (row, (name, kubectl)) in rows.iter().zip(kubectl) {
            let (command, _) = name
                .split_once(' ')
                .map_or_else(
                    || CliCommand::find_command(name, None),
                    |(first, second)| CliCommand::find_command(first, Some(second)),
                )
                .expect(name);
            let named = |cell: &'static str| -> Vec<&str> {
                cell.split('`')
                    .filter_map(|word| word.strip_prefix("--"))
                    .collect()
            };
            let sorted = |mut all: Vec<&'static str>| {
                all.sort_unstable();
                all
            };
            let absent = row[3].split(", ").filter(|word| !word.is_empty());
            let own = command.flags.iter().map(|flag| flag.name);
            assert_eq!(
                sorted(named(row[1]).into_iter().chain(named(row[2])).collect()),
                sorted(own.collect()),
                "{name}: the flags of picolet"
            );
            let theirs = kubectl
                .split_whitespace()
                .map(|flag| flag.split(':').next().unwrap_or(flag));
            assert_eq!(
                sorted(named(row[1]).into_iter().chain(absent).collect()),
                sorted(theirs.collect()),
                "{name}: the flags of kubectl"
            );
            for flag in named(row[1]) {
                let own = command.flags.iter().find(|own| own.name == flag);
                let letter = own
                    .and_then(|own| own.short)
                    .map_or_else(String::new, |c| format!(":{c}"));
                assert!(
                    kubectl
                        .split_whitespace()
                        .any(|word| word == format!("{flag}{letter}")),
                    "{name} --{flag}{letter}"
                );
            }
        }
    }

    #[test]
    fn help_names_every_command_and_flag() {
        let overview = overview_text();
        for command in all_commands() {
            assert!(
                overview.contains(&format!("  {}", command.name)),
                "{}",
                command.name
            );
            let one = command.help_text();
            for flag in command.all_flags() {
                assert!(
                    one.contains(&format!("--{}", flag.name)),
                    "{}: {}",
                    command.name,
                    flag.name
                );
            }
        }
        let (check, _) = CliCommand::find_command("check", None).expect("check");
        assert!(
            !check.help_text().contains("--socket "),
            "it is the agent's own"
        );
        let (run, _) = CliCommand::find_command("run", None).expect("run");
        assert_eq!(run.help_text().matches("--socket ").count(), 1);
        for text in all_commands().map(CliCommand::help_text).chain([overview]) {
            let widest = text.lines().max_by_key(|line| line.chars().count());
            let widest = widest.unwrap_or("");
            assert!(widest.chars().count() <= HELP_COLUMNS, "{widest}");
        }
    }
}
