//! Mistakes of beginners, with the words that the answer must have: the fault and the next step. None of them needs an agent.

use std::{ffi::OsString, fs};

use super::{CliError, check, run_command};
use crate::{
    logic::check::FindingLevel,
    sys::{clock, start},
    testing::TestDir,
};

/// Longest time of an answer, ms: its work and its waits, without the time in which other programs had the processor.
const MAX_ANSWER_MS: u64 = 1000;
/// A disk that is busy delays one of so many tries, a wait of the answer all of them.
const TRIES: usize = 3;

/// Command lines.
#[rustfmt::skip]
const LINES: &[(&str, &[&str])] = &[
    ("gett pods", &["unknown command \"gett\"", "did you mean get?", "picolet help"]),
    ("descibe pod web", &["unknown command", "did you mean describe?"]),
    ("apply -f pod.yaml", &["unknown command", "write its manifest", "/etc/picolet/manifests"]),
    ("create -f pod.yaml", &["/etc/picolet/manifests"]),
    ("rm web", &["picolet delete pod NAME", "remove its manifest", "/etc/picolet/manifests"]),
    ("ps", &["picolet get pods"]),
    ("delete web", &["\"web\"", "expected pod NAME or pod/NAME"]),
    ("delete pod pod/", &["\"pod/\"", "expected pod NAME or pod/NAME"]),
    ("delete pod web --wait=maybe", &["invalid boolean value \"maybe\": expected true or false"]),
    ("wait pod --for=delete -l app=web --all", &["only one of --all and --selector"]),
    ("events --for pod/", &["\"pod/\"", "expected pod/NAME or node/NAME"]),
    ("rmi nginx", &["picolet image rm"]),
    ("pull nginx", &["picolet image pull"]),
    ("inspect web", &["picolet describe"]),
    ("start", &["systemctl start picolet"]),
    ("restart", &["expected 'restart POD...'"]),
    ("restart web -c main", &["unknown shorthand flag: -c", "picolet help restart"]),
    ("status", &["picolet health"]),
    ("-n kube-system get pods", &["only --socket can stand before the command"]),
    ("-v=6 get pods", &["only --socket can stand before the command"]),
    ("--version now", &["unexpected argument \"now\": remove it"]),
    ("image pul nginx", &["unknown command \"image pul\"", "expected 'picolet image", "did you mean pull?"]),
    ("image fly rm", &["unknown command \"image fly\"", "expected 'picolet image"]),
    ("image pull", &["expected 'picolet image pull REFERENCE...'"]),
    ("image ls -o table", &["\"table\"", "name,wide,yaml"]),
    ("image prune nginx", &["unexpected argument \"nginx\": remove it"]),
    ("image import a.tar b.tar --name x", &["--name is for one image", "by itself"]),
    ("get", &["you must say what to show", "pods, images, nodes"]),
    ("get pdos", &["doesn't have a resource type \"pdos\"", "did you mean pods?"]),
    ("get deployments", &["doesn't have a resource type", "pods, images, nodes"]),
    ("get pods -o josn", &["\"josn\"", "name,wide,yaml"]),
    ("get pods --all-namespace", &["unknown flag: --all-namespace", "did you mean --all-namespaces?"]),
    ("get pods -x", &["unknown shorthand flag: -x", "picolet help get"]),
    ("get pod/a web", &["expected TYPE/NAME", "\"web\""]),
    ("get pods web -l app=web", &["name cannot be provided when a selector is specified", "use only one of them"]),
    ("get pods -n", &["missing argument", "-n"]),
    ("get node -n default", &["not in a namespace", "remove --namespace"]),
    ("get images -A", &["not in a namespace", "--all-namespaces"]),
    ("get pods -w -o json", &["--watch shows only a table", "remove --output"]),
    ("get pods --socket /no/agent", &["cannot reach the agent at /no/agent", "is the agent running (picolet run)?"]),
    ("describe images", &["doesn't have a resource type", "pods, nodes, configmaps, secrets"]),
    ("describe pod web --eviction-order", &["--eviction-order cannot be used here: remove it"]),
    ("top nod", &["only pods, node, disk and net", "did you mean node?"]),
    ("top node --containers", &["top node", "--containers", "use 'top pods'"]),
    ("top disk web", &["top disk", "no name of a pod"]),
    ("logs", &["expected 'logs POD [-c CONTAINER]'"]),
    ("logs web main more", &["unexpected argument \"more\": remove it"]),
    ("logs web main -c other", &["only one of -c"]),
    ("logs web --since-time 2026-01-01T00:00:00Z --since 5m", &["only one of --since-time / --since"]),
    ("logs web --folow", &["unknown flag: --folow", "did you mean --follow?"]),
    ("logs web --tail ten", &["\"ten\"", "--tail", "not a valid number"]),
    ("logs web --tail -5", &["--tail must be greater than or equal to -1"]),
    ("exec web", &["at least one command", "picolet exec POD -- COMMAND"]),
    ("attach web main", &["unexpected argument \"main\"", "with -c"]),
    ("port-forward web http", &["invalid port \"http\"", "PORT or LOCAL:REMOTE"]),
    ("stop --all --shutdown", &["only one of --all and --shutdown"]),
    ("stop web", &["unexpected argument \"web\"", "picolet delete pod NAME"]),
    ("health --wait 4000", &["\"4000\"", "--wait", "at most 3600 seconds"]),
    ("check --ouput json", &["--ouput", "did you mean --output?"]),
    ("check --max-pod 3", &["--max-pod", "did you mean --max-pods?"]),
    ("check --strict=maybe", &["invalid boolean value \"maybe\": expected true or false"]),
    ("check --kubeadm pod.yaml", &["use only one of them"]),
    ("reset --dry-runn", &["--dry-runn", "did you mean --dry-run?"]),
    ("dashboard --listen 8080", &["\"8080\"", "as in 127.0.0.1:8899"]),
    ("completion tcsh", &["bash|zsh|fish"]),
    ("help get pods", &["unexpected argument \"pods\": remove it"]),
];

/// Manifests: the fields of a pod's only container, or a whole document.
#[rustfmt::skip]
const MANIFESTS: &[(&str, &[&str])] = &[
    ("name: c, imgae: i", &["spec.containers[0].image: Required value", "did you mean image?"]),
    ("name: c, image: i, comand: [x]", &["unknown field spec.containers[0].comand", "did you mean command?"]),
    ("name: C_1, image: i", &["spec.containers[0].name", "\"C_1\""]),
    ("name: c, image: i, ports: [{containerPort: '80'}]", &["spec.containers[0].ports[0].containerPort", "\"80\"", "expected a whole number from 0 to 65535"]),
    ("name: c, image: i, env: [{name: A, value: 5}]", &["spec.containers[0].env[0].value", "`5`", "expected a string in quotes"]),
    ("name: c, image: i, resources: {limits: {memory: 64MB}}", &["spec.containers[0].resources.limits", "64MB"]),
    ("name: c, image: i, volumeMounts: [{name: data, mountPath: /d}]", &["spec.containers[0].volumeMounts[0].name", "data"]),
    ("kind: Deployment\napiVersion: apps/v1\nmetadata: {name: a}\n", &["Deployment"]),
    ("kind: Pod\n\tmetadata: {name: a}\n", &["line 2"]),
];

/// Lines of a configuration file.
#[rustfmt::skip]
const CONFIGURATIONS: &[(&str, &[&str])] = &[
    ("maxPod: 7", &["unknown field maxPod", "did you mean maxPods?", "correct"]),
    ("maxPods: many", &["maxPods", "many", "expected a whole number"]),
    ("picolet: {nodeip: 10.0.0.1}", &["unknown field picolet.nodeip", "did you mean nodeIP?"]),
    ("featureGates: {Nope: true}", &["featureGates.Nope", "is not a feature gate"]),
    ("syncFrequency: 5", &["syncFrequency", "5"]),
];

/// Checks that an answer has the words.
fn assert_told(mistake: &str, told: &str, words: &[&str]) {
    for word in words {
        assert!(
            told.contains(word),
            "{mistake:?} does not tell {word:?}: {told}"
        );
    }
}

/// Milliseconds for which this thread could have run and another had the processor. A kernel that does not count them says
/// none.
///
/// Source: Linux `Documentation/scheduler/sched-stats.rst`, `/proc/PID/schedstat`.
fn queued_ms() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let queued_ns = text.split_whitespace().nth(1);
    queued_ns.and_then(|ns| ns.parse().ok()).unwrap_or(0) / 1_000_000
}

/// Does something; its result, and the milliseconds that it took by itself, however busy the machine is.
fn own_ms<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let (began, queued) = (clock::mono_now(), queued_ms());
    let done = work();
    let took = clock::mono_now().since_ms(began);
    (done, took.saturating_sub(queued_ms() - queued))
}

/// Takes the answer to a mistake, and checks that it comes at once.
fn answer_at_once<T>(mistake: &str, answer: impl Fn() -> T) -> T {
    let mut least = u64::MAX;
    for _ in 0..TRIES {
        let (told, ms) = own_ms(&answer);
        if ms <= MAX_ANSWER_MS {
            return told;
        }
        least = least.min(ms);
    }
    panic!("{mistake:?} is answered after {least} ms");
}

#[test]
fn a_wait_is_part_of_the_time() {
    let (waited, ms) = own_ms(|| start::poll_fds(&mut [], 50));
    assert!(waited.is_ok() && ms >= 40, "{ms}");
}

#[test]
fn mistakes_of_beginners_are_told_with_the_next_step() {
    // CLI-02 CLI-03
    assert!(LINES.len() + MANIFESTS.len() + CONFIGURATIONS.len() >= 50);
    for (line, words) in LINES {
        let told = answer_at_once(line, || {
            let mut typed = line.split(' ');
            let command = typed.next().unwrap_or("");
            run_command(command, typed.map(OsString::from).collect())
        });
        let CliError { message, code } = told.expect_err(line);
        assert_eq!(code, 1, "{line}");
        assert_told(line, &message, words);
        assert!(message.lines().count() <= 2, "{line}: {message}");
    }
}

#[test]
fn mistakes_in_files_are_told_with_the_place() {
    // CONF-22 SRC-34
    let dir = TestDir::new("mistakes");
    let file = dir.join("file.yaml");
    let worst = |findings: Vec<(&str, crate::logic::check::CheckFinding)>, of: &[&str]| {
        let mine = findings
            .into_iter()
            .filter(|(name, f)| of.contains(name) && f.level > FindingLevel::Ok);
        mine.map(|(_, f)| format!("{} | {}\n", f.says, f.fix))
            .collect::<String>()
    };
    for (text, words) in MANIFESTS {
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{{text}}}]}}\n"
        );
        fs::write(
            &file,
            if text.starts_with("kind") {
                *text
            } else {
                &pod
            },
        )
        .expect("file");
        let found = answer_at_once(text, || {
            check::judge_files(&[file.display().to_string()], Vec::new()).expect("judged")
        });
        let told = worst(found, &["manifest"]);
        assert_told(text, &told, &[&["file.yaml"][..], words].concat());
    }
    for (text, words) in CONFIGURATIONS {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        fs::write(&file, format!("{head}{text}\n")).expect("file");
        let judged = answer_at_once(text, || {
            let flags = ["--config".into(), file.clone().into_os_string()];
            check::judge_configuration(flags.into())
        });
        let told = match judged {
            Ok(found) => worst(found, &["config"]),
            Err(e) => e.message,
        };
        assert_told(text, &told, &[&["file.yaml"][..], words].concat());
    }
}
