//! ConfigMaps and Secrets that lie beside the manifests: what pods get of them, and when.

use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, full, sh, status_of, text, with};

/// ConfigMap `settings`; `a` is its value of the key `a`.
fn settings(a: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, labels: {{of: tests}}}}\n\
         data: {{a: '{a}', {more}}}\nbinaryData: {{blob: AAEC}}\n"
    )
}

/// A Secret; `hunter2` must never be seen outside of its pods.
const TOKEN: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\ntype: kubernetes.io/basic-auth\n\
    data: {username: cm9vdA==}\nstringData: {password: hunter2}\n";
/// `hunter2` in base64, without its end.
const ENCODED: &str = "aHVudGVyM";

fn reader() -> Value {
    json!({
        "containers": [with(
            sh("c", IDLE),
            json!({
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}],
                "envFrom": [
                    {"prefix": "P_", "configMapRef": {"name": "settings"}},
                    {"prefix": "S_", "secretRef": {"name": "token"}},
                    {"prefix": "N_", "configMapRef": {"name": "late", "optional": true}}
                ],
                "volumeMounts": [
                    {"name": "all", "mountPath": "/all"},
                    {"name": "some", "mountPath": "/some"},
                    {"name": "maybe", "mountPath": "/maybe"},
                    {"name": "mix", "mountPath": "/mix"},
                    {"name": "all", "mountPath": "/sub", "subPath": "a"}
                ]
            }),
        )],
        "volumes": [
            {"name": "all", "configMap": {"name": "settings", "defaultMode": 0o440}},
            {"name": "some", "configMap": {"name": "settings", "items": [{"key": "a", "path": "deep/x", "mode": 0o400}]}},
            {"name": "maybe", "configMap": {"name": "late", "optional": true}},
            {"name": "mix", "projected": {"sources": [
                {"configMap": {"name": "settings"}},
                {"secret": {"name": "token", "items": [{"key": "password", "path": "a"}, {"key": "username", "path": "who"}]}},
                {"configMap": {"name": "late", "optional": true}}
            ]}}
        ]
    })
}

/// Runs `script` in the container until it prints `expected`.
fn until_prints(host: &Host, pod: &str, script: &str, expected: &str) {
    host.until(&format!("{script}: {expected:?}"), |host| {
        let said = host.cli(&["exec", &full(pod), "-c", "c", "--", "sh", "-c", script]);
        let said = text(&said.stdout);
        (said == expected, said)
    });
}

// ENV-01 ENV-02 ENV-03 VOL-01 VOL-05 VOL-06 VOL-07 VOL-09 VOL-10 VOL-26
#[test]
fn pods_follow_their_objects() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    host.write("settings.yaml", &settings("1", "b: old"));
    host.write("token.yaml", TOKEN);
    host.pod("reader", reader());
    host.wait_ready("reader");
    let says = |script: &str| host.exec("reader", "c", script);
    assert_eq!(
        says("echo $A $P_a $P_b $S_username $S_password; env | grep -c -e P_blob -e N_; true"),
        "1 1 old root hunter2\n0\n",
        "binary data is no variable, and an optional object that is absent adds none"
    );
    assert_eq!(
        says("cd /all && echo * && stat -Lc %a a"),
        "a b blob\n440\n"
    );
    assert_eq!(says("od -An -tx1 /all/blob | tr -d ' \\n'"), "000102");
    assert_eq!(
        says("cat /some/deep/x; stat -Lc ' %a' /some/deep/x; ls /some"),
        "1 400\ndeep\n"
    );
    assert_eq!(says("ls /maybe | wc -l"), "0\n");
    assert_eq!(
        says("cd /mix && echo * && cat a who; stat -fc ' %T' ."),
        "a b blob who\nhunter2root tmpfs\n",
        "the later source wins"
    );
    let generation = says("readlink /all/..data");
    assert!(generation.starts_with(".."), "{generation}");

    // Edited: the files follow, all of one volume at once; what was handed over at the start stays.
    host.write("settings.yaml", &settings("2", "n: new"));
    until_prints(&host, "reader", "cat /all/a /some/deep/x", "22");
    assert_ne!(says("readlink /all/..data"), generation);
    until_prints(&host, "reader", "cd /all; echo *", "a blob n\n");
    until_prints(&host, "reader", "cd /mix; echo *", "a blob n who\n");
    assert_eq!(says("cat /sub; echo $A $P_b"), "11 old\n");
    host.write("token.yaml", &TOKEN.replace("cm9vdA==", "YWxpY2U="));
    until_prints(&host, "reader", "cat /mix/who", "alice");

    // One that is optional comes and goes.
    host.write(
        "late.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late}\ndata: {late: x}\n",
    );
    until_prints(&host, "reader", "cat /maybe/late /mix/late", "xx");
    host.remove("late.yaml");
    until_prints(
        &host,
        "reader",
        "ls /maybe /mix | tr '\\n' ' '",
        "/maybe:  /mix: a blob n who ",
    );

    // One that is needed goes: the pod keeps what it has, and says so.
    host.remove("settings.yaml");
    host.until("an event tells it", |host| {
        let events = host.ok(&["get", "events"]);
        let told = events.lines().any(|l| {
            l.contains("FailedMount")
                && l.contains("reader")
                && l.contains("configmap \"settings\" not found")
        });
        (told, events)
    });
    assert_eq!(says("cat /all/a /mix/n"), "2new");
    let pod = host.get("reader");
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(status_of(&pod, "c")["restartCount"], 0, "{pod}");
    host.write("settings.yaml", &settings("3", "b: b"));
    until_prints(&host, "reader", "cat /all/a", "3");

    // The next instance gets what is true then.
    let pid = host.pid("reader", "c");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("kill");
    host.wait_pod("reader", "restarted", |pod| {
        let c = status_of(pod, "c");
        c["restartCount"] == 1 && c["ready"] == true
    });
    assert_eq!(says("echo $A $S_username; cat /sub"), "3 alice\n3");
    objects_are_shown(&host);
    host.finish();
}

fn objects_are_shown(host: &Host) {
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let maps = host.ok(&["get", "configmaps"]);
    let rows: Vec<_> = maps.lines().map(words).collect();
    assert_eq!(rows[0], ["NAME", "DATA", "AGE"]);
    assert_eq!(rows[1][..2], ["settings", "3"], "{maps}");
    let secrets = host.ok(&["get", "secrets", "-A"]);
    let rows: Vec<_> = secrets.lines().map(words).collect();
    assert_eq!(rows[0], ["NAMESPACE", "NAME", "TYPE", "DATA", "AGE"]);
    assert_eq!(
        rows[1][..4],
        ["default", "token", "kubernetes.io/basic-auth", "2"],
        "{secrets}"
    );
    assert_eq!(
        host.ok(&["get", "cm", "-o", "name"]),
        "configmap/settings\n"
    );
    let map: Value =
        serde_json::from_str(&host.ok(&["get", "cm", "settings", "-o", "json"])).expect("one");
    assert_eq!(
        (&map["kind"], &map["data"]["a"]),
        (&json!("ConfigMap"), &json!("3"))
    );
    let described = host.ok(&["describe", "cm", "settings"]);
    assert!(
        described.contains("a:\n----\n3\n") && described.contains("blob: 3 bytes"),
        "{described}"
    );
    let secret = host.ok(&["describe", "secret", "token"]);
    assert!(
        secret.contains("password:  7 bytes\nusername:  5 bytes\n"),
        "{secret}"
    );
    let absent = host.cli(&["get", "secret", "none"]);
    assert_eq!(absent.status.code(), Some(1));
    assert_eq!(
        text(&absent.stderr),
        "Error from server (NotFound): secrets \"none\" not found\n"
    );
    let json = host.ok(&["get", "secrets", "-o", "json"]);
    let yaml = host.ok(&["get", "secret", "token", "-o", "yaml"]);
    assert!(yaml.contains("password: 7"), "{yaml}");
    let pod =
        host.ok(&["describe", "pod", &full("reader")]) + &host.ok(&["get", "pods", "-o", "json"]);
    let rest = host.ok(&["debug", "dump"])
        + &host.ok(&["get", "events", "-o", "json"])
        + &host.agent_log();
    for (what, text) in [
        ("describe", &secret),
        ("json", &json),
        ("yaml", &yaml),
        ("pod", &pod),
        ("rest", &rest),
    ] {
        assert!(
            !text.contains("hunter2") && !text.contains(ENCODED),
            "{what}: {text}"
        );
    }
}

// ENV-03 WAIT-02
#[test]
fn objects_serve_their_own_namespace() {
    if !host::able() {
        return;
    }
    // Without doorbells all comes with the next poll.
    let host = Host::start(&["--doorbells=false", "--file-check-frequency=1s"]);
    host.write(
        "token.yaml",
        &TOKEN.replace("name: token", "name: token, namespace: other"),
    );
    let user = || {
        json!({"containers": [with(
            sh("c", IDLE),
            json!({"env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "token", "key": "password"}}}]}),
        )]})
    };
    let mut other = host::manifest("other", user());
    other["metadata"]["namespace"] = "other".into();
    host.write("other.yaml", &other.to_string());
    host.pod("own", user());
    host.wait_ready("other");
    let pod = host.wait_pod("own", "waits", |pod| {
        status_of(pod, "c")["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    let waiting = &status_of(&pod, "c")["state"]["waiting"];
    assert_eq!(waiting["message"], "secret \"token\" not found");
    let events = host.ok(&["get", "events"]);
    let told = events.lines().any(|l| {
        l.contains("Warning")
            && l.contains("Failed")
            && l.contains("Error: secret \"token\" not found")
    });
    assert!(told, "{events}");
    // A key that is missing holds it up too.
    let bare = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {user: x}\n";
    host.write("own-token.yaml", bare);
    host.wait_pod("own", "waits for the key", |pod| {
        status_of(pod, "c")["state"]["waiting"]["message"]
            == "couldn't find key password in secret default/token"
    });
    host.write("own-token.yaml", &bare.replace("user", "password"));
    host.wait_ready("own");
    assert_eq!(host.exec("own", "c", "echo $P"), "x\n");
    // A wrong one is refused by name and key, and what was there is gone with its file.
    host.write(
        "own-token.yaml",
        &bare.replace("stringData", "type: kubernetes.io/tls\nstringData"),
    );
    host.until("the file is named", |host| {
        let log = host.agent_log();
        (
            log.contains(
                "own-token.yaml: Secret \"token\" is invalid: data[tls.crt]: Required value",
            ),
            log,
        )
    });
    host.until("it is gone", |host| {
        let secrets = host.ok(&["get", "secrets", "--no-headers"]);
        (secrets.is_empty(), secrets)
    });
    host.finish();
}
