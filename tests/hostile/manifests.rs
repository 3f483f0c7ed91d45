//! Manifests: too large, too deep, too many, of the wrong type, with references that lead nowhere or out.

use serde_json::{Value, json};

use crate::bystander::{Bystander, one_complaint};
use crate::host::{self, Host, IDLE, full, manifest, sh, with};

/// Most memory that the agent may have used during one manifest of 10 MiB, KiB. A board with 256 MiB has that to spare
/// for a moment.
const MAX_PEAK_KIB: u64 = 96 * 1024;

/// What one file holds, and what the one line about it says beside its name.
struct Case {
    name: &'static str,
    text: Vec<u8>,
    says: &'static [&'static str],
}

fn case(name: &'static str, text: impl Into<Vec<u8>>, says: &'static [&'static str]) -> Case {
    Case {
        name,
        text: text.into(),
        says,
    }
}

/// A pod with `more` over its container.
fn pod(more: Value) -> String {
    manifest("x", json!({"containers": [with(sh("main", IDLE), more)]})).to_string()
}

/// A pod with `more` over its specification.
fn pod_spec(more: Value) -> String {
    let spec = with(json!({"containers": [sh("main", IDLE)]}), more);
    manifest("x", spec).to_string()
}

/// A pod with `more` over its metadata.
fn pod_meta(more: Value) -> String {
    let mut pod = manifest("x", json!({"containers": [sh("main", IDLE)]}));
    pod["metadata"] = with(pod["metadata"].clone(), more);
    pod.to_string()
}

/// Grows to a thousand million words when its references are followed.
fn bomb() -> String {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..9 {
        let before = format!("*a{}", n - 1);
        text.push_str(&format!("a{n}: &a{n} [{}]\n", vec![before; 10].join(", ")));
    }
    text
}

const HEAD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n";
/// Just under the largest size that is read.
const LARGE: usize = (10 << 20) - 1024;

/// What takes memory or time to read.
fn heavy() -> Vec<Case> {
    let padded = |n: usize| format!("{HEAD}{}", "#".repeat(n));
    let containers: Vec<Value> = (0..5000).map(|_| json!({"name": "Bad_Name"})).collect();
    let many_fields: String = (0..199_000).map(|n| format!("f{n}: 1\n")).collect();
    let big = "x".repeat(9 << 20);
    vec![
        // Size.
        case(
            "11 MiB",
            padded(11 << 20),
            &["document is too large: 10485760 bytes or more"],
        ),
        case(
            "a hole of 8 GiB",
            Vec::new(),
            &["document is too large: 10485760 bytes or more"],
        ),
        case(
            "10 MiB of brackets",
            "[".repeat(LARGE),
            &["more than 500 brackets are open at once"],
        ),
        case(
            "10 MiB of lists",
            format!("[{}1]", "[],".repeat(LARGE / 3 - 10)),
            &["more than 400000 lines and separators"],
        ),
        case(
            "10 MiB of lists in JSON",
            format!("{{\"a\":[{}1]}}", "[],".repeat(LARGE / 3 - 10)),
            &["more than 400000 lines and separators"],
        ),
        case(
            "10 MiB of dashes",
            "- ".repeat(LARGE / 2),
            &["more than 400000 lines and separators"],
        ),
        case(
            "10 MiB of names",
            format!("{HEAD}{many_fields}"),
            &["more than 100000 values"],
        ),
        case(
            "9 MiB in one annotation",
            pod_meta(json!({"annotations": {"a": big.as_str()}})),
            &["metadata.annotations: Forbidden: may not be more than 262144 bytes"],
        ),
        case(
            "9 MiB in a name",
            pod_meta(json!({"name": big.as_str()})),
            &["metadata.name: Invalid value"],
        ),
        case(
            "9 MiB in the image",
            pod(json!({"image": big.as_str()})),
            &["spec.containers[0].image: Forbidden: may not be more than 4096 bytes"],
        ),
        case(
            "5000 bad containers",
            pod_spec(json!({"containers": containers})),
            &["spec.containers[0].name: Invalid value"],
        ),
        // Depth and references.
        case(
            "deep, in brackets",
            "[".repeat(400),
            &["more than 40 maps and lists within each other"],
        ),
        case(
            "deep, in JSON",
            "{\"a\":".repeat(400),
            &["more than 40 maps and lists within each other"],
        ),
        case(
            "deep, in dashes",
            "- ".repeat(5000),
            &["more than 40 maps and lists within each other"],
        ),
        case(
            "aliases without end",
            bomb(),
            &["more than 100000 values (aliases expanded)"],
        ),
        case(
            "aliases of a large text",
            format!("a: &a {}\nb: [{}]", "x".repeat(1 << 20), "*a, ".repeat(100)),
            &["bytes of text (aliases expanded)"],
        ),
        case(
            "an alias of itself",
            format!("{HEAD}spec: &s {{containers: [*s]}}\n"),
            &["more than 40 maps and lists within each other"],
        ),
        case(
            "an alias of nothing",
            format!("{HEAD}spec: *s\n"),
            &["unknown anchor"],
        ),
    ]
}

/// What takes little to read.
fn light() -> Vec<Case> {
    let mount = |path: &str| {
        json!({
            "containers": [with(sh("main", IDLE), json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": path}]}))],
            "volumes": [{"name": "v", "emptyDir": {}}]
        })
    };
    vec![
        // Bytes.
        case("no text", b"apiVersion: \xff\xfe\n".to_vec(), &["not UTF-8 text: bad byte at offset 12"]),
        case("control characters", "\u{0}\u{1}\u{2}", &["control characters are not allowed"]),
        case("a program", std::fs::read("/proc/self/exe").expect("this program")[..9 << 20].to_vec(), &["not UTF-8 text"]),
        case("two documents", format!("{HEAD}---\n{HEAD}"), &["more than one document: a file holds one object"]),
        case("a list", "apiVersion: v1\nkind: PodList\nitems: []\n", &["kind: PodList: lists are not read"]),
        case("an infinite number", format!("{HEAD}spec: {{a: .inf}}\n"), &["infinite numbers have no JSON form"]),
        // Types.
        case("text for a list", pod_spec(json!({"containers": "none"})), &["spec.containers: invalid type: string"]),
        case("a list for a name", pod_meta(json!({"name": ["x"]})), &["metadata.name: invalid type: sequence"]),
        case("a number for a name", pod(json!({"name": 7})), &["spec.containers[0].name: invalid type: integer"]),
        case("a number too large", pod(json!({"ports": [{"containerPort": 1e300}]})), &["spec.containers[0].ports[0].containerPort: invalid type: floating point"]),
        case("a negative port", pod(json!({"ports": [{"containerPort": -1}]})), &["spec.containers[0].ports[0].containerPort: invalid value: integer `-1`"]),
        case("an amount that is none", pod(json!({"resources": {"limits": {"memory": "9".repeat(100_000) + "Zi"}}})), &["spec.containers[0].resources.limits.memory"]),
        case("a negative amount", pod(json!({"resources": {"limits": {"memory": "-1"}}})), &["spec.containers[0].resources.limits[memory]: Invalid value"]),
        // What becomes a path.
        case("a name with a way out", pod_meta(json!({"name": "../../x"})), &["metadata.name: Invalid value: \"../../x-node\""]),
        case("a uid with a way out", pod_meta(json!({"uid": "../../../x"})), &["metadata.uid"]),
        case("a namespace with a way out", pod_meta(json!({"namespace": "../x"})), &["metadata.namespace: Invalid value: \"../x\""]),
        case("a container with a way out", pod(json!({"name": "../x"})), &["spec.containers[0].name: Invalid value: \"../x\""]),
        case("a volume with a way out", pod_spec(json!({"volumes": [{"name": "../x", "emptyDir": {}}]})), &["spec.volumes[0].name: Invalid value: \"../x\""]),
        case("a subPath with a way out", manifest("x", mount("a/../../x")).to_string(), &["spec.containers[0].volumeMounts[0].subPath: Invalid value", "must not contain '..'"]),
        case("a hostPath with a way out", pod_spec(json!({"volumes": [{"name": "v", "hostPath": {"path": "/a/../../etc"}}]})), &["spec.volumes[0].hostPath.path: Invalid value", "must not contain '..'"]),
        case("a file with a way out", pod_spec(json!({"volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "../../x", "fieldRef": {"fieldPath": "metadata.name"}}]}}]})), &["spec.volumes[0].downwardAPI"]),
        case("a key with a way out", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"../x": ""}}).to_string(), &["data[../x]: Invalid value"]),
        // References that are no names.
        case("a mount of no volume", pod(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})), &["spec.containers[0].volumeMounts[0].name: Not found: \"v\""]),
        case("an account", pod_spec(json!({"serviceAccountName": "x"})), &["static pods may not reference serviceaccounts"]),
        case("a claim", pod_spec(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]})), &["static pods may not reference persistentvolumeclaims"]),
        case("a secret too large", json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"a": "s3cret".repeat(200_000)}}).to_string(), &["data: Forbidden: may not be more than 1048576 bytes"]),
    ]
}

/// Writes a manifest; without text it is a hole, larger than memory.
fn put(host: &Host, file: &str, text: &[u8]) {
    let hidden = host.path("manifests").join(".new");
    std::fs::write(&hidden, text).expect("manifest");
    if text.is_empty() {
        let hole = std::fs::File::options().write(true).open(&hidden);
        hole.and_then(|f| f.set_len(8 << 30)).expect("a hole");
    }
    std::fs::rename(hidden, host.path("manifests").join(file)).expect("manifest");
}

// SRC-16 SRC-20 SRC-21
#[test]
fn of_each_bad_file_one_line_tells() {
    if !host::able() {
        return;
    }
    let host = Host::start(&["--file-check-frequency", "2s"]);
    let good = Bystander::start(&host, MAX_PEAK_KIB);
    let mut wrong = Vec::new();
    let (heavy, light) = (heavy(), light());
    // What is small comes all at once.
    let rounds = heavy.chunks(1).chain([&light[..]]);
    for (number, round) in rounds.enumerate() {
        good.forget_peak();
        let file = |n: usize| format!("case-{number}-{n}.yaml");
        for (n, case) in round.iter().enumerate() {
            put(&host, &file(n), &case.text);
        }
        for (n, Case { name, says, .. }) in round.iter().enumerate() {
            let told = one_complaint(&host, &format!("manifests/{}:", file(n)), says);
            wrong.extend(told.err().map(|e| format!("{name}: {e}")));
        }
        assert_eq!(host.pods().len(), 1, "{}", round[0].name);
        good.is_untouched(&host, round[0].name);
        for n in 0..round.len() {
            host.remove(&file(n));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(
        !host.agent_log().contains("s3cret"),
        "a secret is in the log"
    );
    host.finish();
}

/// Pods that are right by themselves and refer to what is not there, or grow: each waits, says why, and comes up or ends.
// IMG-01 SYNC-09 CFG-02
#[test]
fn of_each_bad_reference_the_pod_tells() {
    if !host::able() {
        return;
    }
    let host = Host::start(&["--file-check-frequency", "2s"]);
    let good = Bystander::start(&host, MAX_PEAK_KIB);
    let env = |from: Value| json!({"env": [{"name": "A", "valueFrom": from}]});
    // Each refers to the one before twice: 2^40 bytes.
    let doubling: Vec<Value> = (0..40)
        .map(|n| json!({"name": format!("V{n}"), "value": if n == 0 { "x".into() } else { format!("$(V{0})$(V{0})", n - 1) }}))
        .collect();
    let container = |more: Value| json!({"containers": [with(sh("main", IDLE), more)]});
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume = with(volume, source);
        with(
            container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})),
            json!({"volumes": [volume]}),
        )
    };
    for (name, spec, reason, says) in [
        (
            "no-image",
            container(json!({"image": "localhost/nobody:1", "imagePullPolicy": "Never"})),
            "ErrImageNeverPull",
            "localhost/nobody:1",
        ),
        (
            "odd-image",
            container(json!({"image": "UPPER//../case:1"})),
            "InvalidImageName",
            "UPPER//../case:1",
        ),
        (
            "no-map",
            container(env(
                json!({"configMapKeyRef": {"name": "nobody", "key": "k"}}),
            )),
            "CreateContainerConfigError",
            "configmap \"nobody\" not found",
        ),
        (
            "no-secret",
            container(env(json!({"secretKeyRef": {"name": "nobody", "key": "k"}}))),
            "CreateContainerConfigError",
            "secret \"nobody\" not found",
        ),
        (
            "growing",
            container(json!({"env": doubling})),
            "CreateContainerConfigError",
            "131071 bytes",
        ),
        (
            "no-user",
            container(json!({"securityContext": {"runAsUser": 4_000_000}})),
            "",
            "",
        ),
        (
            "no-program",
            container(json!({"command": ["/no/such/program"]})),
            "",
            "/no/such/program",
        ),
        (
            "no-files",
            volume(json!({"configMap": {"name": "nobody"}})),
            "ContainerCreating",
            "configmap \"nobody\" not found",
        ),
        (
            "no-path",
            volume(json!({"hostPath": {"path": "/proc/nobody", "type": "Directory"}})),
            "ContainerCreating",
            "hostPath type check failed",
        ),
    ] {
        good.forget_peak();
        host.pod(name, spec);
        let told = |host: &Host| {
            let log = host.agent_log();
            let lines = log.lines().filter(|l| l.contains(&full(name)));
            lines
                .filter(|l| l.contains("WARN") && l.contains(says))
                .count()
        };
        if reason.is_empty() && says.is_empty() {
            // A user that nobody lists is a number like any other.
            host.wait_ready(name);
        } else {
            host.until(name, |host| (told(host) > 0, host.agent_log()));
        }
        if !reason.is_empty() {
            host.wait_pod(name, reason, |pod| {
                let waits = &host::status_of(pod, "main")["state"]["waiting"];
                waits["reason"] == reason
            });
        }
        good.is_untouched(&host, name);
        host.remove(&format!("{name}.yaml"));
        host.wait_gone(name);
    }
    host.finish();
}

/// More files than are read are no snapshot: nothing is ended for that.
// SRC-17
#[test]
fn too_many_files_end_nothing() {
    if !host::able() {
        return;
    }
    let host = Host::start(&["--file-check-frequency", "2s"]);
    let good = Bystander::start(&host, MAX_PEAK_KIB);
    good.forget_peak();
    let dir = host.path("manifests");
    for n in 0..5000 {
        std::fs::write(dir.join(format!("many-{n}")), "").expect("file");
    }
    let shown = format!(
        "{}: cannot be read: has more than 4096 entries",
        dir.display()
    );
    host.until("it is told", |host| {
        let log = host.agent_log();
        (log.contains(&shown), String::new())
    });
    good.is_untouched(&host, "too many files");
    for n in 0..5000 {
        std::fs::remove_file(dir.join(format!("many-{n}"))).expect("file");
    }
    // It reads again.
    host.pod("later", json!({"containers": [sh("main", IDLE)]}));
    host.wait_ready("later");
    good.is_untouched(&host, "after too many files");
    host.finish();
}
