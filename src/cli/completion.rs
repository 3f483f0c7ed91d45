//! `picolet completion bash|zsh|fish`: scripts made from the tables of commands and flags. While the user types, the scripts
//! call [`NAMES_COMMAND`], which asks the agent for names; without an answer no name is completed.

use core::{fmt::Write as _, time::Duration};
use std::{ffi::OsString, path::PathBuf};

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    client::AgentClient,
    commands::{self, CliCommand, CommandFlag, CompletionKind, SHELLS},
    default_socket, describe, find_command_of_words, get, print_text,
};
use crate::config::flags::{FlagDescription, flag_descriptions};

/// Command of the scripts: prints the names that may stand in the place of the last word, one a line. The words of the line
/// follow it.
pub(super) const NAMES_COMMAND: &str = "__complete";
/// Longest silence of the agent while a user waits for names.
const PATIENCE: Duration = Duration::from_millis(700);
/// [`NAMES_COMMAND`] as bash and fish call it.
const BASH_NAMES: &str = "picolet __complete \"${words[@]:1}\" 2>/dev/null";
const FISH_NAMES: &str = "picolet __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null";

/// Prints names; none if the agent does not answer at once.
pub(super) fn print_names(words: Vec<OsString>) -> Result<(), CliError> {
    let words = words.into_iter().map(|w| w.to_string_lossy().into_owned());
    let line = TypedLine::parse(words.collect());
    let names = line.and_then(|line| line.list_names()).unwrap_or_default();
    let names = names.iter().filter(|name| is_plain_name(name));
    print_text(&names.map(|name| format!("{name}\n")).collect::<String>())
}

/// Returns true if no shell finds more than a word in the name: `compgen -W` runs what stands in `$(...)`, and a device
/// plugin or another program may choose names.
fn is_plain_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:/@,+=".contains(c);
    !name.starts_with('-') && name.chars().all(is_plain)
}

/// Words of a command line before the one that is completed.
struct TypedLine {
    command: &'static CliCommand,
    socket: PathBuf,
    namespace: Option<String>,
    /// Words that belong to no flag.
    values: Vec<String>,
    /// Flag whose value is completed.
    flag: Option<&'static str>,
}

impl TypedLine {
    /// Reads a line; `None` if it begins with no command.
    fn parse(mut words: Vec<String>) -> Option<Self> {
        // The word that is completed.
        words.pop();
        let mut socket = default_socket();
        let begin = if words.first()? == "--socket" {
            socket = words.get(1)?.into();
            2
        } else {
            0
        };
        let mut rest = words.split_off(begin).into_iter();
        let first = rest.next()?;
        let (command, rest) =
            find_command_of_words(&first, rest.map(OsString::from).collect()).ok()?;
        let mut line = Self {
            command,
            socket,
            namespace: None,
            values: Vec::new(),
            flag: None,
        };
        for word in rest {
            let word = word.to_string_lossy().into_owned();
            let (dashed, value) = match word.split_once('=') {
                Some((dashed, value)) => (dashed, Some(value.to_owned())),
                None => (&*word, None),
            };
            match (line.flag.take(), dashed.strip_prefix('-')) {
                // bash takes `--flag=value` for three words.
                (Some(flag), _) if word == "=" => line.flag = Some(flag),
                (Some(flag), _) => line.set_flag(flag, word),
                (None, None) => line.values.push(word),
                (None, Some(name)) => {
                    let is_it = |f: &&CommandFlag| {
                        name.strip_prefix('-') == Some(f.name)
                            || f.short
                                .is_some_and(|c| name.ends_with(c) && !name.starts_with('-'))
                    };
                    let found = command.all_flags().find(is_it);
                    let found = found.filter(|f| !f.value.is_empty()).map(|f| f.name);
                    let of_agent = |f: &FlagDescription| {
                        command.agent_flags
                            && name.strip_prefix('-') == Some(f.name)
                            && !f.hint.is_empty()
                    };
                    let found = found.or_else(|| Some(flag_descriptions().find(of_agent)?.name));
                    match (found, value) {
                        (Some(flag), Some(value)) => line.set_flag(flag, value),
                        (flag, _) => line.flag = flag,
                    }
                }
            }
        }
        Some(line)
    }

    fn set_flag(&mut self, flag: &str, value: String) {
        match flag {
            "namespace" => self.namespace = Some(value),
            "socket" => self.socket = value.into(),
            _ => {}
        }
    }

    /// Lists the names that may stand in the next place; `None`: the agent does not answer, or none can be guessed.
    fn list_names(&self) -> Option<Vec<String>> {
        let client = AgentClient::new(&self.socket).with_patience(PATIENCE);
        let list = |kind: &str| get::list_names(&client, kind, self.namespace.as_deref());
        let first = self.values.first();
        let containers = || get::list_containers(&client, first?, self.namespace.as_deref());
        match (self.flag, self.command.takes) {
            (Some("container"), _) => containers(),
            (Some("namespace"), _) => get::list_namespaces(&client),
            (Some(_), _) => None,
            (None, CompletionKind::Pods) if self.command.args.starts_with("pod ") => match first {
                Some(_) => list("pods"),
                None => Some(vec!["pod".into()]),
            },
            (None, CompletionKind::Pods) if first.is_none() => list("pods"),
            (None, CompletionKind::Pods) if self.command.name == "logs" => containers(),
            (None, CompletionKind::Images) => list("images"),
            (None, CompletionKind::Kinds) => match first {
                Some(kind) => list(kind),
                None => {
                    let kinds: &[_] = match self.command.name {
                        "describe" => &describe::KINDS,
                        _ => &get::KINDS,
                    };
                    Some(kinds.iter().map(|kind| kind.names[0].to_owned()).collect())
                }
            },
            _ => None,
        }
    }
}

pub(super) fn run_completion(mut words: CliWords) -> Result<(), CliError> {
    let mut shell = None;
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Value(name) if shell.is_none() => shell = Some(name),
            other => return Err(unexpected_word(other)),
        }
    }
    print_text(&match shell.as_deref() {
        Some("bash") => bash_script(),
        Some("zsh") => zsh_script(),
        Some("fish") => fish_script(),
        _ => {
            return Err(CliError::new(format!(
                "expected 'picolet completion {}'",
                SHELLS.join("|")
            )));
        }
    })
}

/// A flag of a command or of the agent, as completion needs it.
struct CompletionFlag<'a> {
    name: &'a str,
    short: Option<char>,
    help: &'a str,
    takes: FlagCompletion<'a>,
}

/// Values that complete a flag.
enum FlagCompletion<'a> {
    /// The flag takes no value.
    None,
    /// Values that cannot be guessed.
    Anything,
    /// A path.
    Path,
    /// Names that the agent knows.
    Names,
    /// A word of this list.
    OneOf(Vec<&'a str>),
}

fn completion_flag<'a>(flag: &'a CommandFlag) -> CompletionFlag<'a> {
    CompletionFlag {
        name: flag.name,
        short: flag.short,
        help: flag.help,
        takes: match flag.value {
            "" => FlagCompletion::None,
            "PATH" => FlagCompletion::Path,
            "NAME" => FlagCompletion::Names,
            list if list.contains(|c: char| c.is_ascii_lowercase()) => {
                FlagCompletion::OneOf(list.split('|').collect())
            }
            _ => FlagCompletion::Anything,
        },
    }
}

fn completion_flags(command: &'static CliCommand) -> Vec<CompletionFlag<'static>> {
    let mut all: Vec<CompletionFlag<'static>> = command.all_flags().map(completion_flag).collect();
    if command.agent_flags {
        all.extend(flag_descriptions().map(|f| CompletionFlag {
            name: f.name,
            short: None,
            help: f.help,
            takes: match (f.hint, f.path) {
                ("", _) => FlagCompletion::None,
                (_, true) => FlagCompletion::Path,
                (_, false) => FlagCompletion::Anything,
            },
        }));
    }
    all
}

/// Lists the families of commands with their second words.
fn command_families() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut families: Vec<(&str, Vec<&str>)> = Vec::new();
    for (family, verb) in commands::all_commands().filter_map(|c| c.name.split_once(' ')) {
        match families.last_mut() {
            Some((last, verbs)) if *last == family => verbs.push(verb),
            _ => families.push((family, vec![verb])),
        }
    }
    families
}

/// Makes a shell command that prints the words that may stand behind `command`. True: files may stand there, too. `names`:
/// calls [`NAMES_COMMAND`].
fn argument_words_command(command: &CliCommand, names: &str) -> (String, bool) {
    match command.takes {
        CompletionKind::Nothing => (String::new(), false),
        CompletionKind::Files => (String::new(), true),
        CompletionKind::Pods | CompletionKind::Images | CompletionKind::Kinds => {
            (names.into(), false)
        }
        CompletionKind::Shells => (format!("echo '{}'", SHELLS.join(" ")), false),
        CompletionKind::Commands => (
            format!("echo '{}'", commands::first_words().join(" ")),
            false,
        ),
    }
}

/// Function of bash that completes. bash takes `name:tag` for three words, and replaces only what stands behind the colon.
/// It does the same at `@`, but replaces the sign, too. So the words are put together again, and the replies lose what stays
/// in the line.
///
/// Source: bash(1), `COMP_WORDBREAKS`.
const BASH_WORDS: &str = r#"_picolet() {
    local words=() rest=$COMP_LINE before part i sign lead=
    for ((i = 0; i <= COMP_CWORD; i++)); do
        part=${COMP_WORDS[i]} before=$rest
        rest=${rest#"${rest%%[![:blank:]]*}"}
        if [[ $i -gt 0 && $before == "$rest" && ($part == [:@]* || ${COMP_WORDS[i-1]} == *[:@]) ]]; then
            words[${#words[@]}-1]+=$part
        else
            words+=("$part")
        fi
        rest=${rest#"$part"}
    done
    local typed=${words[${#words[@]}-1]}
    _picolet_reply
    for sign in : @; do
        part=${typed%"${typed##*"$sign"}"} part=${part%@}
        [[ $COMP_WORDBREAKS == *"$sign"* && ${#part} -gt ${#lead} ]] && lead=$part
    done
    COMPREPLY=("${COMPREPLY[@]#"$lead"}")
}
complete -F _picolet picolet
"#;

fn bash_script() -> String {
    let mut out = String::from(
        "# bash completion of picolet: put it into /etc/bash_completion.d/ or source it.\n\
         _picolet_reply() {\n\
         \x20   local cword=$((${#words[@]} - 1)) command= word i\n\
         \x20   local cur=${words[cword]} prev=${words[cword-1]}\n\
         \x20   for ((i = 1; i < cword; i++)); do\n\
         \x20       word=${words[i]}\n\
         \x20       case $word in\n\
         \x20       --socket) ((i++)) ;;\n\
         \x20       -*) ;;\n",
    );
    let families = command_families();
    for (family, _) in &families {
        let _ = writeln!(
            out,
            "        {family}) command=$word; [[ $((i + 1)) -lt $cword ]] && command=\"$word ${{words[i+1]}}\"; break ;;"
        );
    }
    out.push_str(
        "        *) command=$word; break ;;\n\
         \x20       esac\n\
         \x20   done\n\
         \x20   COMPREPLY=()\n\
         \x20   case \"$command $prev\" in\n",
    );
    for command in commands::all_commands() {
        for flag in completion_flags(command) {
            let reply = match &flag.takes {
                FlagCompletion::None => continue,
                FlagCompletion::Anything => String::new(),
                FlagCompletion::Path => {
                    "compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\")); "
                        .into()
                }
                FlagCompletion::Names => {
                    format!("COMPREPLY=($(compgen -W \"$({BASH_NAMES})\" -- \"$cur\")); ")
                }
                FlagCompletion::OneOf(words) => {
                    format!(
                        "COMPREPLY=($(compgen -W '{}' -- \"$cur\")); ",
                        words.join(" ")
                    )
                }
            };
            let mut names = vec![format!("\"{} --{}\"", command.name, flag.name)];
            names.extend(flag.short.map(|c| format!("\"{} -{c}\"", command.name)));
            let _ = writeln!(out, "    {}) {reply}return ;;", names.join("|"));
        }
    }
    out.push_str("    esac\n    case $command in\n");
    let _ = writeln!(
        out,
        "    '') COMPREPLY=($(compgen -W '{} --socket --help' -- \"$cur\")) ;;",
        commands::first_words().join(" ")
    );
    for (family, verbs) in &families {
        let _ = writeln!(
            out,
            "    {family}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")) ;;",
            verbs.join(" ")
        );
    }
    for command in commands::all_commands() {
        let flags: Vec<String> = completion_flags(command)
            .iter()
            .map(|f| format!("--{}", f.name))
            .collect();
        let (words, files) = argument_words_command(command, BASH_NAMES);
        let rest = if files {
            "compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\"))".to_owned()
        } else if words.is_empty() {
            ":".to_owned()
        } else {
            format!("COMPREPLY=($(compgen -W \"$({words})\" -- \"$cur\"))")
        };
        let _ = writeln!(
            out,
            "    '{}')\n        if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W '{}' -- \"$cur\"))\n        else {rest}; fi ;;",
            command.name,
            flags.join(" "),
        );
    }
    out.push_str("    esac\n}\n");
    out.push_str(BASH_WORDS);
    out
}

/// Escapes text for single quotes and brackets of `_arguments`.
fn escape_zsh(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\'' => out.push_str("'\\''"),
            '[' | ']' | ':' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

fn zsh_script() -> String {
    let mut out = String::from(
        "#compdef picolet\n\
         # zsh completion of picolet: put it into a directory of $fpath as _picolet.\n\
         _picolet_names() { local -a names; names=(${(f)\"$(picolet __complete \"${typed[@]}\" 2>/dev/null)\"}); compadd -a names }\n\
         _picolet() {\n\
         \x20   local context state state_descr line\n\
         \x20   local -a typed; typed=(\"${(@)words[2,CURRENT]}\")\n\
         \x20   typeset -A opt_args\n\
         \x20   if (( CURRENT == 2 )); then\n\
         \x20       local -a commands\n\
         \x20       commands=(\n",
    );
    for word in commands::first_words() {
        let help = commands::all_commands()
            .find(|c| c.name.split(' ').next() == Some(word))
            .filter(|c| c.name == word)
            .map_or("", |c| c.help);
        let _ = writeln!(out, "            '{word}:{}'", escape_zsh(help));
    }
    out.push_str("        )\n        _describe command commands\n        return\n    fi\n    local command=${words[2]}\n");
    for (family, verbs) in command_families() {
        let _ = write!(
            out,
            "    if [[ $command == {family} ]]; then\n        if (( CURRENT == 3 )); then compadd {}; return; fi\n        command=\"{family} ${{words[3]}}\"\n        shift words; (( CURRENT-- ))\n    fi\n",
            verbs.join(" ")
        );
    }
    out.push_str("    shift words; (( CURRENT-- ))\n    case $command in\n");
    for command in commands::all_commands() {
        let _ = write!(out, "    '{}')\n        _arguments -s", command.name);
        for flag in completion_flags(command) {
            let value = match &flag.takes {
                FlagCompletion::None => String::new(),
                FlagCompletion::Anything => format!(":{}: ", flag.name),
                FlagCompletion::Path => format!(":{}:_files", flag.name),
                FlagCompletion::Names => format!(":{}:_picolet_names", flag.name),
                FlagCompletion::OneOf(words) => format!(":{}:({})", flag.name, words.join(" ")),
            };
            let help = escape_zsh(flag.help);
            let _ = write!(out, " \\\n            '--{}[{help}]{value}'", flag.name);
            if let Some(short) = flag.short {
                let _ = write!(out, " \\\n            '-{short}[{help}]{value}'");
            }
        }
        let rest = match command.takes {
            CompletionKind::Nothing => None,
            CompletionKind::Pods | CompletionKind::Images | CompletionKind::Kinds => {
                Some("'*:name:_picolet_names'".to_owned())
            }
            CompletionKind::Files => Some("'*:file:_files'".to_owned()),
            CompletionKind::Shells => Some(format!("'1:shell:({})'", SHELLS.join(" "))),
            CompletionKind::Commands => Some(format!(
                "'1:command:({})'",
                commands::first_words().join(" ")
            )),
        };
        if let Some(rest) = rest {
            let _ = write!(out, " \\\n            {rest}");
        }
        out.push_str(" ;;\n");
    }
    out.push_str("    esac\n}\nif [[ $funcstack[1] == _picolet ]]; then _picolet \"$@\"; else compdef _picolet picolet; fi\n");
    out
}

/// Escapes text for single quotes of fish.
fn escape_fish(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "\\'")
}

fn fish_script() -> String {
    let mut out = String::from(
        "# fish completion of picolet: put it into ~/.config/fish/completions/picolet.fish.\n\
         function __picolet_at\n\
         \x20   set -l words (commandline -opc)\n\
         \x20   set -e words[1]\n\
         \x20   while set -q words[1]; and string match -q -- '-*' $words[1]\n\
         \x20       test $words[1] = --socket; and set -e words[1]\n\
         \x20       set -e words[1]\n\
         \x20   end\n\
         \x20   set -l wanted (string split ' ' -- $argv[1])\n\
         \x20   test -z \"$argv[1]\"; and test (count $words) -eq 0; and return 0\n\
         \x20   test -z \"$argv[1]\"; and return 1\n\
         \x20   test (count $words) -ge (count $wanted); or return 1\n\
         \x20   for i in (seq (count $wanted))\n\
         \x20       test $words[$i] = $wanted[$i]; or return 1\n\
         \x20   end\n\
         \x20   set -q argv[2]; and test (count $words) -ne (count $wanted); and return 1\n\
         \x20   return 0\n\
         end\n\
         complete -c picolet -f\n",
    );
    for word in commands::first_words() {
        let help = commands::all_commands()
            .find(|c| c.name == word)
            .map_or("", |c| c.help);
        let _ = writeln!(
            out,
            "complete -c picolet -n '__picolet_at \"\"' -a {word} -d '{}'",
            escape_fish(help)
        );
    }
    for (family, verbs) in command_families() {
        let _ = writeln!(
            out,
            "complete -c picolet -n '__picolet_at {family} only' -a '{}'",
            verbs.join(" ")
        );
    }
    for command in commands::all_commands() {
        let at = format!("-n '__picolet_at \"{}\"'", command.name);
        for flag in completion_flags(command) {
            let value = match &flag.takes {
                FlagCompletion::None => String::new(),
                FlagCompletion::Anything => " -x".into(),
                FlagCompletion::Path => " -r -F".into(),
                FlagCompletion::Names => format!(" -x -a '({FISH_NAMES})'"),
                FlagCompletion::OneOf(words) => format!(" -x -a '{}'", words.join(" ")),
            };
            let short = flag.short.map_or_else(String::new, |c| format!(" -s {c}"));
            let _ = writeln!(
                out,
                "complete -c picolet {at} -l {}{short}{value} -d '{}'",
                flag.name,
                escape_fish(flag.help)
            );
        }
        let (words, files) = argument_words_command(command, FISH_NAMES);
        if files {
            let _ = writeln!(out, "complete -c picolet {at} -F");
        } else if !words.is_empty() {
            let words = words.replace("echo ", "string split ' ' ");
            let _ = writeln!(
                out,
                "complete -c picolet {at} -a '({})'",
                escape_fish(&words)
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::process::{Command as Process, Stdio};

    use super::*;

    /// Feeds a script to a shell; `None` if there is no such shell.
    fn fed(shell: &str, words: &[&str], script: &str) -> Option<(bool, String)> {
        let dir = crate::testing::unused_path("completion");
        std::fs::write(&dir, script).expect("script");
        let said = Process::new(shell)
            .args(words)
            .arg(&dir)
            .stdin(Stdio::null())
            .output();
        std::fs::remove_file(&dir).expect("clean up");
        let said = said.ok()?;
        let text = [said.stdout, said.stderr].concat();
        Some((
            said.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        ))
    }

    #[test]
    fn shells_can_read_the_scripts() {
        for (shell, script) in [
            ("bash", bash_script()),
            ("zsh", zsh_script()),
            ("fish", fish_script()),
        ] {
            match fed(shell, &["-n"], &script) {
                Some((ok, said)) => assert!(ok && said.is_empty(), "{shell}: {said}"),
                // bash is part of every machine that tests run on.
                None => assert_ne!(shell, "bash", "no bash"),
            }
        }
    }

    #[test]
    fn every_command_and_flag_is_in_each() {
        for (shell, script) in [
            ("bash", bash_script()),
            ("zsh", zsh_script()),
            ("fish", fish_script()),
        ] {
            for command in commands::all_commands() {
                assert!(script.contains(command.name), "{shell}: {}", command.name);
                for flag in completion_flags(command) {
                    let dashed = if shell == "fish" { "-l " } else { "--" };
                    let word = format!("{dashed}{}", flag.name);
                    assert!(script.contains(&word), "{shell}: {word}");
                }
            }
        }
    }

    #[test]
    fn bash_completes() {
        // CLI-05
        for (line, has, has_not) in [
            ("picolet logs web -c ''", "side", "web"),
            ("picolet get pods w", "web", "side"),
            ("picolet ''", "check get image logs", "ls"),
            ("picolet image ''", "import ls prune rm", "get"),
            ("picolet --socket /x im", "image", "import"),
            ("picolet get -o ''", "json yaml", "--output"),
            ("picolet logs --f", "--follow", "--tail"),
            ("picolet run --root", "--root-dir", "--run-dir"),
            ("picolet completion ''", "bash zsh fish", "sh"),
        ] {
            let ask = format!(
                "{}\npicolet() {{ case \"$*\" in '__complete logs web -c ') echo side ;; '__complete get pods w') echo web side ;; esac }}\nCOMP_WORDS=({line}); COMP_LINE=\"${{COMP_WORDS[*]}}\" COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _picolet; echo \"${{COMPREPLY[@]}}\"\n",
                bash_script()
            );
            let (ok, said) = fed("bash", &[], &ask).expect("bash");
            let words: Vec<&str> = said.split_whitespace().collect();
            assert!(ok, "{line}: {said}");
            for word in has.split(' ') {
                assert!(words.contains(&word), "{line}: {said}");
            }
            assert!(!words.contains(&has_not), "{line}: {said}");
        }
    }

    #[test]
    fn bash_completes_names_with_colons() {
        // CLI-05
        // Signs that break words: those of bash, and of a user who has removed some.
        for (typed, breaks, line) in [
            ("image rm reg:5000/a:l", true, "image rm reg:5000/a:latest"),
            ("image rm reg:", true, "image rm reg:5000/a:latest"),
            ("image rm r", true, "image rm reg:5000/a:latest"),
            ("image rm x:1 b@", true, "image rm x:1 b@sha256:12"),
            ("image rm x:1 b@sha256:", true, "image rm x:1 b@sha256:12"),
            ("image rm reg:5000/a:l", false, "image rm reg:5000/a:latest"),
            ("image rm b@sh", true, "image rm b@sha256:12"),
            ("image rm b@sha", false, "image rm b@sha256:12"),
            ("get pods -n x w", true, "get pods -n x web"),
        ] {
            // readline of an interactive bash reads the line with its tab.
            let breaks = if breaks {
                ""
            } else {
                "COMP_WORDBREAKS=${COMP_WORDBREAKS//[:@]}"
            };
            let ask = format!(
                "{}\npicolet() {{ case \"$1 $#\" in __complete*) printf '%s\\n' reg:5000/a:latest b@sha256:12 web ;; *) echo \"ran $*\" ;; esac }}\n{breaks}\n",
                bash_script()
            );
            let (dir, input) = (
                crate::testing::TestDir::new("bash"),
                format!("picolet {typed}\t\n"),
            );
            std::fs::write(dir.join("rc"), ask).expect("script");
            std::fs::write(dir.join("input"), input).expect("input");
            // Without a terminal: an interactive bash takes it, and stops if it may not.
            let said = Process::new("setsid")
                .args(["--wait", "bash", "--noprofile", "--rcfile"])
                .arg(dir.join("rc"))
                .arg("-i")
                .env("TERM", "dumb")
                .env("INPUTRC", "/dev/null")
                .stdin(std::fs::File::open(dir.join("input")).expect("input"))
                .output()
                .expect("bash");
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            let ran = said.lines().find_map(|line| line.strip_prefix("ran "));
            assert_eq!(ran.map(str::trim_end), Some(line), "{typed}: {said}");
        }
    }

    #[test]
    fn places_of_names() {
        // CLI-05
        for (words, command, namespace, values, flag) in [
            (&["logs", ""][..], "logs", None, &[][..], None),
            (
                &["logs", "-n", "x", "web", "-c", "s"],
                "logs",
                Some("x"),
                &["web"],
                Some("container"),
            ),
            (
                &["exec", "-it", "web", "--container", ""],
                "exec",
                None,
                &["web"],
                Some("container"),
            ),
            (
                &["exec", "--namespace=x", "-n"],
                "exec",
                Some("x"),
                &[],
                None,
            ),
            (
                &["--socket", "/s", "get", "pods", "w"],
                "get",
                None,
                &["pods"],
                None,
            ),
            (
                &["image", "--socket", "/s", "rm", "a", ""],
                "image rm",
                None,
                &["a"],
                None,
            ),
            (&["get", "-A", "-o", ""], "get", None, &[], Some("output")),
            (
                &[
                    "delete",
                    "--root-dir",
                    "/r",
                    "--socket=/s",
                    "--fail-swap-on",
                    "pod",
                    "",
                ],
                "delete",
                None,
                &["pod"],
                None,
            ),
            (
                &["logs", "--namespace", "=", "x", "web", ""],
                "logs",
                Some("x"),
                &["web"],
                None,
            ),
            (
                &["logs", "--namespace", "=", "x"],
                "logs",
                None,
                &[],
                Some("namespace"),
            ),
        ] {
            let line = TypedLine::parse(words.iter().map(|w| (*w).to_owned()).collect());
            let line = line.expect("a command");
            let got = (line.command.name, line.namespace.as_deref(), line.flag);
            assert_eq!(got, (command, namespace, flag), "{words:?}");
            assert_eq!(line.values, values, "{words:?}");
            let is_named = words.iter().any(|word| word.ends_with("/s"));
            assert_eq!(*line.socket == *"/s", is_named, "{words:?}");
        }
        for words in [&["fly", ""][..], &["lo"], &[], &["image", "fly", ""]] {
            let words = words.iter().map(|w| (*w).to_owned());
            assert!(TypedLine::parse(words.collect()).is_none());
        }
        // Without an agent kinds are known, names are not, and nothing is said.
        let line = |words: &[&str]| {
            let words = words.iter().map(|w| (*w).to_owned()).collect();
            TypedLine::parse(words).expect("a command").list_names()
        };
        let kinds = line(&["describe", "--socket", "/no/agent", ""]).expect("kinds");
        assert_eq!(kinds, ["pods", "nodes", "configmaps", "secrets"]);
        assert_eq!(line(&["logs", "--socket", "/no/agent", ""]), None);
        for command in ["delete", "wait"] {
            let pod = line(&[command, "--socket", "/no/agent", ""]);
            assert_eq!(pod, Some(vec!["pod".to_owned()]), "{command}");
        }
        assert_eq!(
            line(&["logs", "--socket", "/no/agent", "web", "-c", ""]),
            None
        );
    }

    #[test]
    fn names_that_a_shell_would_run() {
        // CLI-05
        for (name, is_plain) in [
            ("registry.example:5000/a/b_c:v1.2", true),
            ("sha256:12ab", true),
            ("GPU-0,1", true),
            ("$(id)", false),
            ("`id`", false),
            ("a;id", false),
            ("a b", false),
            ("*", false),
            ("~root", false),
            ("-x", false),
            ("a\nb", false),
        ] {
            assert_eq!(is_plain_name(name), is_plain, "{name}");
        }
    }
}
