//! `picolet check`: gathers facts, lets `logic::check` judge them, prints what it says.

mod apiserver;
mod dirs;
mod gather;
mod kubeadm;
mod machine;
mod manifests;
mod runtime;

pub(crate) use gather::{AgentPaths, flags_of_command_line, run_program, split_files};

use std::{ffi::OsString, io::IsTerminal as _, path::Path, process::ExitCode};

use serde_json::{Value, json};

use super::{CliError, args, commands::CliCommand, print_text};
use crate::logic::check::{self, CheckFinding, FindingLevel};

/// Findings of a check behind which its warnings are only counted, for people.
const MAX_SHOWN: usize = 40;

/// Exit code if pods cannot run.
const EXIT_ERRORS: u8 = 1;

pub(crate) fn run_check(
    command: &'static CliCommand,
    words: Vec<OsString>,
) -> Result<ExitCode, CliError> {
    let (own, agent) = args::split_flags(command, words)?;
    let (mut json, mut quiet, mut strict) = (false, false, false);
    let (mut of_kubeadm, mut is_kubelet) = (false, false);
    for (flag, value) in own {
        match (flag, value.as_str()) {
            ("output", "json") => json = true,
            ("output", other) => {
                return Err(CliError::new(format!(
                    "unable to match a printer suitable for the output format \"{other}\", allowed formats are: json"
                )));
            }
            ("kubeadm", value) => of_kubeadm = args::parse_switch(value)?,
            ("kubelet", value) => is_kubelet = args::parse_switch(value)?,
            ("strict", value) => strict = args::parse_switch(value)?,
            (_, value) => quiet = args::parse_switch(value)?,
        }
    }
    let (agent, files) = split_files(agent)?;
    if !files.is_empty() && (of_kubeadm || is_kubelet) {
        return Err(CliError::new(
            "--kubeadm and --kubelet check this machine, and FILE a manifest by itself: use only one of them",
        ));
    }
    let (findings, answers) = if files.is_empty() {
        let mut facts = gather::gather_facts(agent, is_kubelet)?;
        let findings = if of_kubeadm {
            let (release, name) = (&facts.kernel.release, &facts.wanted.node_name);
            facts.kubeadm = kubeadm::gather_kubeadm(release, name, &super::read_proxies());
            check::run_kubeadm_checks(&facts)
        } else {
            check::run_checks(&facts)
        };
        (findings, facts.apiserver_answers())
    } else {
        (judge_files(&files, agent)?, None)
    };
    if json {
        let mut report = json_report(&findings, answers);
        if quiet && let Some(checks) = report["checks"].as_array_mut() {
            checks.retain(|check| check["level"] != FindingLevel::Ok.as_str());
        }
        print_text(&format!("{report:#}\n"))?;
    } else {
        print_text(&findings_as_lines(
            &findings,
            quiet,
            std::io::stdout().is_terminal(),
        ))?;
    }
    Ok(if has_failed(&findings, strict) {
        EXIT_ERRORS.into()
    } else {
        ExitCode::SUCCESS
    })
}

/// Returns true if a finding makes the command fail. `strict`: warnings count too.
fn has_failed(findings: &CheckFindings, strict: bool) -> bool {
    let least = if strict {
        FindingLevel::Warning
    } else {
        FindingLevel::Error
    };
    findings.iter().any(|(_, f)| f.level >= least)
}

type CheckFindings = [(&'static str, CheckFinding)];

/// Judges manifests by themselves: the agent, if there is one, is not asked. `flags`: of an agent that would read them.
pub(super) fn judge_files(
    files: &[String],
    flags: Vec<OsString>,
) -> Result<Vec<(&'static str, CheckFinding)>, CliError> {
    let node = AgentPaths::from_flags(flags)?.node_name;
    let judge = |file: &String| {
        let manifests = manifests::gather_manifest_file(Path::new(file), &node);
        check::judge_manifests(&manifests).list_all("manifest")
    };
    Ok(files.iter().flat_map(judge).collect())
}

fn count_level(findings: &CheckFindings, level: FindingLevel) -> usize {
    findings.iter().filter(|(_, f)| f.level == level).count()
}

/// Makes a line for each check, with its fix below, and a sum.
fn findings_as_lines(findings: &CheckFindings, quiet: bool, color: bool) -> String {
    let width = findings.iter().map(|(n, _)| n.len()).max().unwrap_or(0);
    let mut out = String::new();
    for of_check in findings.chunk_by(|a, b| a.0 == b.0) {
        let mut hidden = 0;
        for (n, (name, finding)) in of_check.iter().enumerate() {
            if quiet && finding.level == FindingLevel::Ok {
                continue;
            }
            if n >= MAX_SHOWN && finding.level == FindingLevel::Warning {
                hidden += 1;
                continue;
            }
            let (word, paint) = match finding.level {
                FindingLevel::Ok => ("ok   ", "32"),
                FindingLevel::Warning => ("warn ", "33"),
                FindingLevel::Error => ("ERROR", "31"),
            };
            let word = if color {
                format!("\x1b[{paint}m{word}\x1b[0m")
            } else {
                word.to_owned()
            };
            out += &format!("{word} {name:width$}  {}\n", finding.says);
            if !finding.fix.is_empty() {
                out += &format!("      {:width$}  fix: {}\n", "", finding.fix);
            }
        }
        if hidden > 0 {
            out += &format!(
                "      {:width$}  and {hidden} more warnings: -o json shows all\n",
                ""
            );
        }
    }
    let (errors, warnings) = (
        count_level(findings, FindingLevel::Error),
        count_level(findings, FindingLevel::Warning),
    );
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    out += &format!(
        "{}: {}, {}\n",
        plural(findings.len(), "check"),
        plural(errors, "error"),
        plural(warnings, "warning")
    );
    out
}

/// Checks an agent with these flags, and reports as `check -o json` does.
pub(crate) fn check_as_json(flags: Vec<OsString>) -> Result<Value, CliError> {
    let facts = gather::gather_facts(flags, false)?;
    Ok(json_report(
        &check::run_checks(&facts),
        facts.apiserver_answers(),
    ))
}

/// Makes the report for programs. `answers`: true if the apiserver answers; `None`: it was not asked. People read its
/// finding instead, which says what matters most.
fn json_report(findings: &CheckFindings, answers: Option<bool>) -> Value {
    let checks: Vec<_> = findings
        .iter()
        .map(|(name, f)| json!({"name": name, "level": f.level.as_str(), "message": f.says, "fix": f.fix}))
        .collect();
    json!({
        "version": crate::VERSION,
        "errors": count_level(findings, FindingLevel::Error),
        "warnings": count_level(findings, FindingLevel::Warning),
        "apiserverAnswers": answers,
        "checks": checks,
    })
}

#[cfg(test)]
pub(super) use gather::tests::judge_configuration;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    fn finding(level: FindingLevel, says: &str, fix: &str) -> CheckFinding {
        CheckFinding {
            level,
            says: says.into(),
            fix: fix.into(),
            more: Vec::new(),
        }
    }

    #[test]
    fn manifests_by_themselves() {
        // SRC-34
        let dir = crate::testing::unused_path("judge");
        std::fs::create_dir_all(&dir).expect("directory");
        let pod = |keys: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: c, {keys}}}]}}\n"
            )
        };
        let files = [
            ("good.yaml", pod("image: i"), FindingLevel::Ok, "1 pods in "),
            (
                "odd.yaml",
                pod("image: i, comand: [x]"),
                FindingLevel::Warning,
                "unknown field spec.containers[0].comand is ignored, did you mean command?",
            ),
            (
                "bad.yaml",
                pod("imgae: i"),
                FindingLevel::Error,
                "spec.containers[0].image: Required value; unknown field spec.containers[0].imgae is ignored, did you mean image?",
            ),
        ];
        let mut words: Vec<OsString> = ["--hostname-override", "node", "--max-pods=3"]
            .map(OsString::from)
            .into();
        for (name, text, ..) in &files {
            let path = dir.join(name);
            std::fs::write(&path, text).expect("written");
            words.push(path.into());
        }
        words.push("/no/such/file".into());
        let (flags, named) = split_files(words).expect("files");
        assert_eq!((flags.len(), named.len()), (3, 4));
        let findings = judge_files(&named, flags).expect("judged");
        std::fs::remove_dir_all(&dir).expect("removed");
        for ((_, found), (name, _, level, says)) in findings.iter().zip(&files) {
            assert_eq!(found.level, *level, "{name}: {}", found.says);
            assert!(
                found.says.contains(says) && found.says.contains(name),
                "{}",
                found.says
            );
        }
        let (_, absent) = &findings[3];
        assert_eq!(
            (absent.level, &*absent.says),
            (FindingLevel::Error, "/no/such/file: does not exist")
        );
        assert_eq!(findings[1].1.fix, format!("correct {}", named[1]));
        for (findings, fails, fails_strictly) in [
            (&findings[..1], false, false),
            (&findings[1..2], false, true),
            (&findings[2..], true, true),
        ] {
            assert_eq!(has_failed(findings, false), fails);
            assert_eq!(has_failed(findings, true), fails_strictly);
        }
    }

    #[test]
    fn a_board_with_several_faults_shows_each_with_file_place_and_fix() {
        // CONF-22 SRC-34
        let dir = TestDir::new("faulty-board");
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect("file");
        std::fs::create_dir(dir.join("m")).expect("directory");
        write("m/bad.yaml", "kind: Pod\n");
        write(
            "m/odd.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n\
             spec: {containers: [{name: c, image: i, comand: [x]}]}\n",
        );
        write("r.yaml", "configs: {}\nmirrrors: {}\n");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
            memoryManagerPolicy: Static\nstaticPodPath: m\npicolet: {registriesFile: r.yaml, nodeip: x, hostnameOverride: board}\n";
        let shown = |more: &str| -> Vec<String> {
            write("c.yaml", &format!("{head}{more}"));
            let words = ["--config".into(), dir.join("c.yaml").into()];
            let findings = judge_configuration(words.into()).expect("judged");
            let lines = findings
                .iter()
                .filter(|(name, _)| matches!(*name, "config" | "manifests" | "registries"));
            let place = format!("{}/", dir.0.display());
            let lines = lines.map(|(name, f)| {
                format!("{} {name} {} | {}", f.level.as_str(), f.says, f.fix).replace(&place, "")
            });
            lines.collect()
        };
        let config = [
            "warning config c.yaml: unknown field picolet.nodeip is ignored, did you mean nodeIP? | correct c.yaml",
            "warning config c.yaml: memoryManagerPolicy is without effect here | correct c.yaml",
        ];
        let others = [
            "error manifests m/bad.yaml: ",
            "warning manifests m/odd.yaml: unknown field spec.containers[0].comand is ignored, did you mean command? | correct m/odd.yaml",
            "warning registries r.yaml:2: mirrrors: unknown key is ignored (known there: mirrors, configs) | correct r.yaml, then restart the agent",
        ];
        let gate = "error config c.yaml: featureGates.Nope: is not a feature gate of Kubernetes; only MemoryQoS has an effect here | correct c.yaml";
        for (more, gate) in [("", None), ("featureGates: {Nope: true}\n", Some(gate))] {
            let lines = shown(more);
            let want: Vec<&str> = gate.into_iter().chain(config).chain(others).collect();
            assert_eq!(lines.len(), want.len(), "{lines:#?}");
            for (line, want) in lines.iter().zip(want) {
                assert!(line.starts_with(want), "{line}");
            }
        }
    }

    #[test]
    fn forms() {
        let findings = [
            ("clock", finding(FindingLevel::Ok, "2026-01-01", "")),
            (
                "runtime",
                finding(FindingLevel::Error, "none", "apt-get install runc"),
            ),
            ("rtc", finding(FindingLevel::Warning, "no clock", "buy one")),
        ];
        assert_eq!(
            findings_as_lines(&findings, false, false),
            "ok    clock    2026-01-01\n\
             ERROR runtime  none\n               fix: apt-get install runc\n\
             warn  rtc      no clock\n               fix: buy one\n\
             3 checks: 1 error, 1 warning\n"
        );
        let short = findings_as_lines(&findings[..1], true, true);
        assert_eq!(short, "1 check: 0 errors, 0 warnings\n");
        assert!(findings_as_lines(&findings, true, true).contains("\x1b[31mERROR\x1b[0m runtime"));
        let many = vec![("config", finding(FindingLevel::Warning, "odd", "")); MAX_SHOWN + 2];
        let text = findings_as_lines(&many, true, false);
        assert_eq!(text.matches("odd").count(), MAX_SHOWN);
        assert!(text.ends_with(
            "and 2 more warnings: -o json shows all\n42 checks: 0 errors, 42 warnings\n"
        ));
        let report = json_report(&findings, Some(true));
        assert_eq!(report["errors"], 1);
        assert_eq!(report["apiserverAnswers"], true);
        assert_eq!(report["checks"][1]["level"], "error");
        assert_eq!(report["checks"][1]["fix"], "apt-get install runc");
    }
}
