//! `picolet completion bash|zsh|fish`: scripts made from the tables of commands and flags. The agent is asked for the
//! names of pods and images while the user types; without an answer no name is completed.

use core::fmt::Write as _;

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    commands::{self, CliCommand, CommandFlag, CompletionKind, KINDS, SHELLS},
    print_text,
};
use crate::config::flags::flag_descriptions;

/// Shell command that prints the names of pods, one a line.
const POD_NAMES: &str = "picolet get pods -o name 2>/dev/null | sed s,pod/,,";
/// Shell command that prints the references of images, one a line.
const IMAGE_NAMES: &str = "picolet image ls -o name 2>/dev/null";

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
            list if list.contains(|c: char| c.is_ascii_lowercase()) => {
                FlagCompletion::OneOf(list.split('|').collect())
            }
            _ => FlagCompletion::Anything,
        },
    }
}

fn completion_flags(command: &CliCommand) -> Vec<CompletionFlag<'_>> {
    let mut all: Vec<CompletionFlag<'_>> = command.all_flags().map(completion_flag).collect();
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

/// Lists the words of the first place.
fn first_words() -> Vec<&'static str> {
    let mut words: Vec<&str> = commands::all_commands()
        .map(|c| c.name.split(' ').next().unwrap_or(c.name))
        .collect();
    words.dedup();
    words
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

/// Makes a shell command that prints the words that may stand behind `command`. True: files may stand there, too.
fn argument_words_command(command: &CliCommand) -> (String, bool) {
    match command.takes {
        CompletionKind::Nothing => (String::new(), false),
        CompletionKind::Files => (String::new(), true),
        CompletionKind::Pods => (POD_NAMES.into(), false),
        CompletionKind::Images => (IMAGE_NAMES.into(), false),
        CompletionKind::Kinds => (format!("echo '{}'; {POD_NAMES}", KINDS.join(" ")), false),
        CompletionKind::Shells => (format!("echo '{}'", SHELLS.join(" ")), false),
        CompletionKind::Commands => (format!("echo '{}'", first_words().join(" ")), false),
    }
}

fn bash_script() -> String {
    let mut out = String::from(
        "# bash completion of picolet: put it into /etc/bash_completion.d/ or source it.\n\
         _picolet() {\n\
         \x20   local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word i\n\
         \x20   for ((i = 1; i < COMP_CWORD; i++)); do\n\
         \x20       word=${COMP_WORDS[i]}\n\
         \x20       case $word in\n\
         \x20       --socket) ((i++)) ;;\n\
         \x20       -*) ;;\n",
    );
    let families = command_families();
    for (family, _) in &families {
        let _ = writeln!(
            out,
            "        {family}) command=$word; [[ $((i + 1)) -lt $COMP_CWORD ]] && command=\"$word ${{COMP_WORDS[i+1]}}\"; break ;;"
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
        first_words().join(" ")
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
        let (words, files) = argument_words_command(command);
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
    out.push_str("    esac\n}\ncomplete -F _picolet picolet\n");
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
         _picolet_pods() { local -a names; names=(${(f)\"$(picolet get pods -o name 2>/dev/null | sed s,pod/,,)\"}); compadd -a names }\n",
    );
    let _ = writeln!(
        out,
        "_picolet_images() {{ local -a names; names=(${{(f)\"$({IMAGE_NAMES})\"}}); compadd -a names }}"
    );
    out.push_str(
        "_picolet() {\n\
         \x20   local context state state_descr line\n\
         \x20   typeset -A opt_args\n\
         \x20   if (( CURRENT == 2 )); then\n\
         \x20       local -a commands\n\
         \x20       commands=(\n",
    );
    for word in first_words() {
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
            CompletionKind::Pods => Some("'*:pod:_picolet_pods'".to_owned()),
            CompletionKind::Images => Some("'*:image:_picolet_images'".to_owned()),
            CompletionKind::Files => Some("'*:file:_files'".to_owned()),
            CompletionKind::Kinds => Some(format!(
                "'1:kind:({})' '*:pod:_picolet_pods'",
                KINDS.join(" ")
            )),
            CompletionKind::Shells => Some(format!("'1:shell:({})'", SHELLS.join(" "))),
            CompletionKind::Commands => Some(format!("'1:command:({})'", first_words().join(" "))),
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
    for word in first_words() {
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
        let (words, files) = argument_words_command(command);
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
        for (line, has, has_not) in [
            ("picolet ''", "check get image logs", "ls"),
            ("picolet image ''", "import ls prune rm", "get"),
            ("picolet --socket /x im", "image", "import"),
            ("picolet get -o ''", "json yaml", "--output"),
            ("picolet logs --f", "--follow", "--tail"),
            ("picolet run --root", "--root-dir", "--run-dir"),
            ("picolet completion ''", "bash zsh fish", "sh"),
        ] {
            let ask = format!(
                "{}\nCOMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _picolet; echo \"${{COMPREPLY[@]}}\"\n",
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
}
