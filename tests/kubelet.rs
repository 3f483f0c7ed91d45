//! The program called as `kubelet`, as a unit, kubeadm or an operator calls it.

use std::{
    env::var_os,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

/// Names the directory of Kubernetes' own programs.
const K8S_BIN: &str = "K8S_BIN";

/// A directory with a link of that name, which goes with the test.
struct Kubelet(PathBuf);

impl Kubelet {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("picolet-kubelet-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("directory");
        symlink(env!("CARGO_BIN_EXE_picolet"), dir.join("kubelet")).expect("link");
        Self(dir)
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.0.join("kubelet"));
        command
            .args(words)
            .current_dir(&self.0)
            .output()
            .expect("started")
    }

    /// Runs it where it has to fail; returns what it said.
    fn refuses(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_version_is_one_line_that_kubeadm_reads() {
    // KADM-01 KADM-02
    let kubelet = Kubelet::new("version");
    for words in [
        &["--version"][..],
        &["--version=raw"],
        &["--v=2", "--version"],
    ] {
        let output = kubelet.run(words);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        let version = text.strip_prefix("Kubernetes v").expect(&text);
        let version = version.strip_suffix('\n').expect(&text);
        let (numbers, rest) = version.split_once('+').expect(&text);
        assert_eq!(numbers.split('.').count(), 3, "{text}");
        assert!(
            numbers.split('.').all(|n| n.parse::<u16>().is_ok()),
            "{text}"
        );
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        assert!(
            rest.starts_with("picolet-") && rest.chars().all(allowed),
            "{text}"
        );
    }
    let help = kubelet.run(&["--help"]);
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).starts_with("Usage: kubelet [FLAGS]\n"));
}

#[test]
fn what_is_wrong_is_named_and_the_code_is_1() {
    // KADM-02 KADM-03 KADM-08
    let kubelet = Kubelet::new("wrong");
    let config = kubelet.0.join("config.yaml");
    let named = format!("--config={}", config.display());
    for (words, says) in [
        (&["run"][..], "unexpected argument \"run\""),
        (&["--network-plugin=cni"], "unknown flag --network-plugin"),
        (
            &["--iptables-drop-bit=x"],
            "--iptables-drop-bit: \"x\" is not a number",
        ),
        // Before a join: it does not stand alone instead.
        (&[&*named], "config.yaml"),
        (&["--kubeconfig=/nowhere", &*named], "config.yaml"),
    ] {
        let said = kubelet.refuses(words);
        assert!(said.contains(says), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn every_flag_of_a_kubelet_is_known() {
    // KADM-03
    let Some(theirs) = var_os(K8S_BIN)
        .map(|dir| Path::new(&dir).join("kubelet"))
        .filter(|path| is_new_enough(path))
    else {
        skipped!("every_flag_of_a_kubelet_is_known: {K8S_BIN} has no kubelet 1.36");
        return;
    };
    let kubelet = Kubelet::new("flags");
    let help = Command::new(theirs).arg("--help").output().expect("help");
    let help = String::from_utf8(help.stdout).expect("text");
    let mut found = 0;
    for line in help.lines() {
        let Some(at) = line.find("--").filter(|at| line[..*at].trim().len() <= 3) else {
            continue;
        };
        let end = |c: char| !c.is_ascii_alphanumeric() && c != '-';
        let name = line[at + 2..].split(end).next().unwrap_or_default();
        // A switch, a number, an empty text or a list: nothing else is said of a known flag than that, or of the file.
        let said = kubelet.run(&[&format!("--{name}=0"), "--config=/nowhere/config.yaml"]);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.contains("unknown flag"), "{said}");
        found += 1;
    }
    assert!(found >= 140, "{found} flags were read from the help");
}

/// Whether it is of 1.36: others have flags that came and went.
fn is_new_enough(kubelet: &Path) -> bool {
    let output = Command::new(kubelet).arg("--version").output();
    output.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).starts_with("Kubernetes v1.36."))
}
