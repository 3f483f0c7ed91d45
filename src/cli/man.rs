//! `picolet man`: the manual page as roff, made from the tables of commands and flags.
//!
//! Source: man(7), groff_man(7).

use core::fmt::Write as _;

use super::commands::{self, CliCommand};
use crate::config::flags::flag_descriptions;

/// Makes the whole page.
pub(super) fn manual_page() -> String {
    let mut out = format!(
        ".TH PICOLET 8 \"\" \"picolet {}\" \"System administration\"\n.SH NAME\npicolet \\- a kubelet for very small machines\n.SH SYNOPSIS\n",
        escape_roff(crate::VERSION)
    );
    out.push_str(".B picolet\n.I COMMAND\n.RI [ FLAGS ]\n");
    write_section(
        &mut out,
        "DESCRIPTION",
        &[
            "picolet runs the pods whose manifests lie in a directory, with no control plane and no container daemon: it calls an OCI runtime and CNI plugins, and keeps a small shim beside each container. Containers outlive the agent.",
            "A pod's name is that of its manifest with the node's behind it. Edit the manifest and the pod is replaced; remove it and the pod ends. ConfigMap and Secret manifests in the same directory serve the pods beside them.",
        ],
    );
    out.push_str(".SH COMMANDS\n");
    for command in commands::all_commands() {
        write_command(&mut out, command);
    }
    out.push_str(".SH FLAGS OF THE AGENT\n");
    let takers = commands::all_commands().filter(|c| c.agent_flags);
    let takers: Vec<&str> = takers.map(|c| c.name).collect();
    if let Some((last, others)) = takers.split_last() {
        let others = escape_roff(&others.join(", "));
        let _ = writeln!(out, ".B {others}\nand\n.B {}", escape_roff(last));
    }
    out.push_str(
        "take these. Each sets the configuration key in brackets; a flag overrides the file.\n",
    );
    for flag in flag_descriptions() {
        write_tag(
            &mut out,
            &format!("--{}", flag.name),
            flag.hint.trim_start(),
        );
        let field = if flag.field.is_empty() {
            String::new()
        } else {
            format!(" [{}]", flag.field)
        };
        let _ = writeln!(
            out,
            "{}",
            escape_roff_line(&format!("{}{field}", flag.help))
        );
    }
    out.push_str(".SH EXIT STATUS\n");
    for (code, what) in [
        ("0", "done"),
        (
            "1",
            "failed; of check: something keeps pods from running; of image verify: an image is damaged",
        ),
        (
            "2",
            "of run: the command line or the configuration is wrong",
        ),
    ] {
        write_tag(&mut out, code, "");
        let _ = writeln!(out, "{what}");
    }
    out.push_str(".PP\n.B exec\nends with the exit status of the command that it ran.\n");
    out.push_str(".SH ENVIRONMENT\n");
    write_tag(&mut out, super::SOCKET_VARIABLE, "");
    out.push_str("where the agent listens, for commands without --socket\n");
    out.push_str(".SH FILES\n");
    for (path, what) in [
        (
            crate::config::DEFAULT_CONFIG_FILE,
            "KubeletConfiguration (v1beta1), with keys of picolet's own under picolet",
        ),
        (
            "/etc/picolet/manifests",
            "manifests of pods, ConfigMaps and Secrets",
        ),
        (
            "/var/lib/picolet",
            "data that survives a reboot: pods, images, volumes; archives in import are imported",
        ),
        (
            "/run/picolet",
            "data that does not survive a reboot: sandboxes, containers, the socket",
        ),
        ("/var/log/pods", "logs of containers"),
    ] {
        write_tag(&mut out, path, "");
        let _ = writeln!(out, "{}", escape_roff_line(what));
    }
    out.push_str(".SH SEE ALSO\n.BR runc (8),\n.BR iptables (8),\n.BR systemctl (1)\n");
    out
}

fn write_command(out: &mut String, command: &CliCommand) {
    let _ = writeln!(
        out,
        ".SS \"{}{}{}\"",
        escape_roff(command.name),
        if command.args.is_empty() { "" } else { " " },
        escape_roff(command.args)
    );
    let _ = writeln!(out, "{}.", escape_roff_line(command.help));
    // Flags of all commands are described once, with the environment.
    for flag in command.flags {
        let short = flag.short.map_or_else(String::new, |c| format!("-{c}, "));
        write_tag(out, &format!("{short}--{}", flag.name), flag.value);
        let _ = writeln!(out, "{}", escape_roff_line(flag.help));
    }
}

fn write_section(out: &mut String, heading: &str, texts: &[&str]) {
    let _ = writeln!(out, ".SH {heading}");
    for (n, one) in texts.iter().enumerate() {
        if n > 0 {
            out.push_str(".PP\n");
        }
        let _ = writeln!(out, "{}", escape_roff_line(one));
    }
}

/// Writes a hanging tag: bold, its value in italics.
fn write_tag(out: &mut String, bold: &str, italic: &str) {
    out.push_str(".TP\n");
    if italic.is_empty() {
        let _ = writeln!(out, ".B {}", escape_roff(bold));
    } else {
        let _ = writeln!(
            out,
            ".BI \"{} \" \"{}\"",
            escape_roff(bold),
            escape_roff(italic)
        );
    }
}

/// Escapes text for roff: dashes that can be typed, no escapes, and nothing outside of ASCII.
fn escape_roff(plain: &str) -> String {
    let mut out = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '"' => out.push_str("\\(dq"),
            '\'' => out.push_str("\\(aq"),
            '…' => out.push_str("..."),
            c => out.push(c),
        }
    }
    out
}

/// Escapes text at the start of a line, where a dot or an apostrophe would be a request.
fn escape_roff_line(plain: &str) -> String {
    let text = escape_roff(plain);
    if text.starts_with('.') {
        format!("\\&{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command as Process, Stdio};

    use super::*;

    #[test]
    fn roff_is_clean() {
        let page = manual_page();
        assert!(page.is_ascii());
        // Not part of every machine; where it is, it finds nothing to complain about.
        let Ok(mut groff) = Process::new("groff")
            .args(["-man", "-Tutf8", "-ww", "-b", "-z"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
        else {
            return;
        };
        let mut stdin = groff.stdin.take().expect("stdin");
        stdin.write_all(page.as_bytes()).expect("page");
        drop(stdin);
        let said = groff.wait_with_output().expect("groff");
        assert_eq!(String::from_utf8_lossy(&said.stderr), "");
        assert!(said.status.success());
    }

    #[test]
    fn every_command_and_flag_is_there() {
        let page = manual_page();
        for command in commands::all_commands() {
            assert!(
                page.contains(&format!(".SS \"{}", escape_roff(command.name))),
                "{}",
                command.name
            );
            for flag in command.flags {
                assert!(
                    page.contains(&escape_roff(&format!("--{}", flag.name))),
                    "{}",
                    flag.name
                );
            }
        }
        for flag in flag_descriptions() {
            assert!(
                page.contains(&escape_roff(&format!("--{}", flag.name))),
                "{}",
                flag.name
            );
        }
        assert!(!page.contains("[."), "a key that no document has");
    }

    #[test]
    fn who_takes_the_flags_of_the_agent() {
        let page = manual_page();
        let parts = page.split_once(".SH FLAGS OF THE AGENT\n");
        let (_, rest) = parts.expect("a heading");
        let (takers, _) = rest.split_once("take these").expect("takers");
        for command in commands::all_commands() {
            let is_named = takers.contains(command.name);
            assert_eq!(is_named, command.agent_flags, "{}", command.name);
        }
    }

    #[test]
    fn what_roff_would_take_for_itself() {
        assert_eq!(
            escape_roff("a-b \"c\" \\n 'd' A,B,…"),
            "a\\-b \\(dqc\\(dq \\en \\(aqd\\(aq A,B,..."
        );
        assert_eq!(escape_roff_line(".x"), "\\&.x");
    }
}
