//! `picolet dashboard` in a browser.

#[path = "../common/browser.rs"]
#[expect(dead_code, reason = "only tasks take pictures")]
mod browser;

#[path = "../registry/registry.rs"]
#[expect(dead_code, reason = "one image is enough here")]
mod registry;

use core::time::Duration;
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use crate::{
    host::{self, Host, IDLE, IMAGE, full, sh, text, with},
    lamps::{Lamps, NO_THRESHOLDS, lamp},
    metrics::anonymous_kib,
};
use browser::Browser;
use registry::{Registry, layer};

/// A page that knows what the agent knows has asked so often since: the answer that was under way says nothing of it.
const MAX_ASKED: u64 = 2;

/// Opens what is folded.
const OPEN_ALL: &str = "document.querySelectorAll('details').forEach((d) => { d.open = true; })";
/// Widths of screens, pixels.
const WIDTHS: [u32; 10] = [320, 360, 600, 768, 900, 1024, 1150, 1280, 1400, 1920];
/// What does not fit: parts that are wider than their place, and names of pods with room for less than 12 characters.
const MISFITS: &str = "[...document.querySelectorAll('body *')].filter((e) => e.clientWidth && !e.closest('small, svg') \
     && (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline' || e.matches('.row > :first-child') && e.clientWidth < 126)) \
     .map((e) => e.outerHTML.slice(0, 200)).join('\\n')";
/// How many answers the page has got.
const ASKED: &str =
    "performance.getEntriesByType('resource').filter((e) => e.name.includes('/state?')).length";

/// Whether there is a browser, and all that pods need.
fn able() -> bool {
    let is_there = Path::new(browser::CHROMIUM).exists();
    if !is_there {
        skipped!("dashboard needs chromium");
    }
    is_there && host::able()
}

/// The same, and a registry.
fn able_to_pull() -> bool {
    able() && registry::able()
}

/// The command, for as long as this lives.
struct Dashboard {
    child: Child,
    address: SocketAddr,
    token: String,
}

impl Dashboard {
    fn start(host: &Host, more: &[&str]) -> Self {
        let mut words = vec!["dashboard", "--listen", "127.0.0.1:0"];
        words.extend(more);
        words.extend(host.flags.iter().map(String::as_str));
        let mut child = host
            .command(&words)
            .stdout(Stdio::piped())
            .spawn()
            .expect("picolet");
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        said.read_line(&mut line).expect("a line");
        let url = line.trim_end().strip_prefix("Open http://");
        let (address, token) = url.and_then(|u| u.split_once("/#")).expect("a URL");
        Self {
            child,
            address: address.parse().expect("an address"),
            token: token.to_owned(),
        }
    }

    fn url(&self) -> String {
        format!("http://{}/#{}", self.address, self.token)
    }

    /// Sends a request as it is; the whole answer.
    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("connect");
        stream.set_read_timeout(Some(host::PATIENCE)).expect("time");
        stream.write_all(request.as_bytes()).expect("ask");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        text(&answer)
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens the page and waits for the first picture of the node; how long that took, ms.
fn open(browser: &mut Browser, dashboard: &Dashboard) -> u64 {
    browser.open(&dashboard.url());
    browser.eval("performance.setResourceTimingBufferSize(100000)");
    browser.wait("document.getElementById('name').textContent === 'node'");
    let ms = browser.eval("Math.ceil(performance.now())");
    ms.as_u64().expect("a number")
}

/// How many answers the page has got.
fn asked(browser: &mut Browser) -> u64 {
    browser.eval(ASKED).as_u64().expect("a number")
}

/// Waits until an expression is true: for how long, ms, and how many answers the page had got then.
fn seen(browser: &mut Browser, expression: &str) -> (u64, u64) {
    let ms = browser.wait(&format!("({expression}) && (window.had = {ASKED}, true)"));
    let had = browser.eval("window.had").as_u64();
    (ms, had.expect("a number"))
}

/// The agent knows something: it is on the page with one of the next answers.
fn shows(browser: &mut Browser, what: &str, expression: &str) {
    let before = asked(browser);
    let (ms, had) = seen(browser, expression);
    let answers = had - before;
    println!("{what}: seen {ms} ms after the agent knew it, with answer {answers}");
    assert!(answers <= MAX_ASKED, "{what}: {answers} answers later");
}

fn body(browser: &mut Browser) -> String {
    let shown = browser.eval("document.body.innerText");
    shown.as_str().unwrap_or_default().to_owned()
}

/// A text that is part of what is seen in the element of that id.
fn holds(id: &str, part: &str) -> String {
    format!("document.getElementById({id:?}).innerText.includes({part:?})")
}

// DASH-01 DASH-03 DASH-04
#[test]
fn a_node_seen_in_a_browser() {
    if !able_to_pull() {
        return;
    }
    let host = Host::start(&["--eviction-hard=nodefs.available<1%"]);
    host.pod(
        "talks",
        json!({"containers": [with(
            sh("main", &format!("echo begun; {IDLE}")),
            json!({"readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}}),
        )]}),
    );
    host.wait_ready("talks");
    let dashboard = Dashboard::start(&host, &["--allow-actions"]);
    let mut browser = Browser::start();
    browser.size(1400, 900, "light");
    open(&mut browser, &dashboard);
    browser.wait(&holds("pods", "default/talks-node"));
    browser.wait(&holds("pods", "1/1"));
    browser.wait(&holds("conditions", "Ready: True"));
    // What it measures, it measures again and again.
    browser.wait("document.querySelectorAll('#plots path[d*=L]').length >= 3");
    // The plot of the disk ends at its size, not at what is used of it.
    let disk = "document.querySelectorAll('#plots figure')[2]";
    browser.wait(&format!(
        "{disk}.children[2].innerText !== {disk}.children[0].innerText.split(': ')[1]"
    ));
    browser.wait(&holds("plots", "s ago"));
    browser.wait(&holds("check", "ok · "));

    crash_loops(&host, &mut browser);
    follows_a_log(&host, &mut browser);
    pulls(&host, &mut browser);
    acts(&host, &mut browser);
    drop(dashboard);
    browser.wait(&holds("trouble", "Is picolet dashboard still running?"));
    // Nobody knows whether the node and its pods are still ready.
    browser.wait("document.getElementById('conditions').innerText === ''");
    browser.wait("!document.getElementById('pods').innerText.includes('1/1')");
    drop(browser);
    host.finish();
}

fn crash_loops(host: &Host, browser: &mut Browser) {
    host.pod("fails", json!({"containers": [sh("main", "exit 7")]}));
    host.wait_pod("fails", "waits after a crash", |pod| {
        let main = host::status_of(pod, "main");
        main["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let row = "[...document.querySelectorAll('#pods > li')].find((li) => li.innerText.includes('fails-node')).innerText";
    let seen = format!("{row}.includes('CrashLoopBackOff') && /[1-9][0-9]* \\(.* ago/.test({row})");
    shows(browser, "a crash loop", &seen);
    browser.wait(&holds("events", "BackOff"));
    // Above all else.
    browser.wait("document.querySelector('#unready li').innerText.includes('default/fails-node CrashLoopBackOff')");
    // With the reason, and without words that say again which pod it is.
    browser.wait("/Error \\(exit code 7\\) · back-off [0-9ms]+$/.test(document.querySelector('#unready li').innerText.trim())");
    browser.eval(OPEN_ALL);
    browser.wait(&holds("pods", "before: Error (exit code 7)"));
    browser.wait(&holds("pods", IMAGE));
    browser.wait(&holds("pods", "readiness probe passes"));
    host.remove("fails.yaml");
    host.wait_gone("fails");
    shows(
        browser,
        "a pod that went",
        "!document.getElementById('pods').innerText.includes('fails-node')",
    );
}

fn follows_a_log(host: &Host, browser: &mut Browser) {
    let click = "[...document.querySelectorAll('#pods button')].find((b) => b.textContent === 'Log').click()";
    browser.eval(click);
    browser.wait(&holds("lines", "begun"));
    host.exec("talks", "main", "echo '<b>news</b> & more' >/proc/1/fd/1");
    let log = || host.ok(&["logs", &full("talks")]);
    host.until("the line is in the log", |_| {
        (log().contains("news"), log())
    });
    let ms = browser.wait(&holds("lines", "<b>news</b> & more"));
    println!("a line of a log: seen {ms} ms after the agent knew it");
    assert_eq!(
        browser.eval("document.querySelectorAll('#lines b').length"),
        0
    );
    let at_pod = "document.querySelector('#pods > li').contains(document.getElementById('log'))";
    assert_eq!(browser.eval(at_pod), true);
    assert!(
        !body(browser).contains("Z <b>news</b>"),
        "{}",
        body(browser)
    );
    browser.eval("document.getElementById('times').click()");
    browser.wait(&holds("lines", "Z <b>news</b>"));
    host.exec(
        "talks",
        "main",
        "printf '\\033[31mred\\033[0m\\n' >/proc/1/fd/1",
    );
    browser.wait("[...document.querySelectorAll('#lines span')].some((s) => s.textContent === 'red' && s.style.color)");
    browser.eval("const f = document.getElementById('find-lines'); f.value = 'NEWS'; f.dispatchEvent(new Event('input', { bubbles: true }))");
    browser.wait("!document.getElementById('lines').innerText.includes('begun')");
    // The whole log ends, though the container goes on.
    let whole = browser.eval(
        "fetch('log?namespace=default&pod=talks-node&all=true', \
         { headers: { authorization: 'Bearer ' + sessionStorage.getItem('picolet-token') } }).then((answer) => answer.text())",
    );
    let first = whole.as_str().and_then(|log| log.lines().next());
    assert!(first.is_some_and(|l| l.ends_with("Z begun")), "{whole}");
    browser.eval("document.getElementById('close').click()");
    assert_eq!(browser.eval("document.getElementById('log').hidden"), true);
}

fn pulls(host: &Host, browser: &mut Browser) {
    let registry = Registry::start();
    let layers = [layer("file", 1 << 20)];
    let names = ["first", "second"].map(|name| {
        registry.fill(name, &layers, &[]);
        format!("{}/{name}:1", registry.address)
    });
    host.ok(&["image", "pull", &names[0]]);
    shows(browser, "an image", &holds("images", &names[0]));
    // The page pulls one itself, and says how that goes.
    let fill = format!(
        "document.getElementById('reference').value = {:?}; document.querySelector('#pull button').click()",
        names[1]
    );
    browser.eval(&fill);
    browser.wait(&holds("said", &format!("{}: pulled", names[1])));
    browser.wait(&holds("images", &names[1]));
}

fn acts(host: &Host, browser: &mut Browser) {
    let started = |host: &Host| {
        let pod = host.get("talks");
        host::status_of(&pod, "main")["containerID"].clone()
    };
    let before = started(host);
    browser.eval("window.confirm = () => true");
    let click = |what: &str| {
        format!(
            "[...document.querySelectorAll('#pods button')].find((b) => b.textContent === {what:?}).click()"
        )
    };
    browser.eval(&click("Restart"));
    browser.wait(&holds("said", "Restarting: talks-node"));
    host.until("another instance runs", |host| {
        let after = started(host);
        (after.is_string() && after != before, after.to_string())
    });
    host.wait_ready("talks");
    browser.eval(&click("Delete"));
    browser.wait(&holds("said", "its manifest is now "));
    host.wait_gone("talks");
    shows(
        browser,
        "a pod that was deleted",
        &holds("pods", "No pods."),
    );
    assert!(host.path("manifests/.talks.yaml.deleted").exists());
    let fill = "document.getElementById('reference').value = 'nowhere.invalid/x:1'; document.querySelector('#pull button').click()";
    browser.eval(fill);
    browser.wait(&holds("said", "nowhere.invalid/x:1: failed: "));
}

/// What a container says when it ends: markup that would act, and marks that would turn round what is beside it.
const HOSTILE: &str = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u{202e}&amp;\u{2067}";

// DASH-05
#[test]
fn hostile_names_and_a_full_disk() {
    if !able() {
        return;
    }
    let mut host = Host::new(&["--eviction-hard=nodefs.available<25%"]);
    host::mount_tmpfs(&host.path("root"), "mode=755,size=128m");
    host.start_agent();
    host.import();
    // With the node's name it is as long as a name can be.
    let label = "a".repeat(62);
    let long = [
        &*label,
        &*label,
        &*label,
        &"b".repeat(253 - 3 * 63 - "-node".len()),
    ]
    .join(".");
    assert_eq!(full(&long).len(), 253);
    let idle = host::manifest(&long, json!({"containers": [sh("main", IDLE)]}));
    host.write("long.yaml", &idle.to_string());
    let says = "printf %s \"$SAYS\" >/dev/termination-log; printf '%s\\n' \"$SAYS\"; exit 1";
    let variables = json!({"env": [{"name": "SAYS", "value": HOSTILE}]});
    let containers = json!([with(sh("main", says), variables)]);
    host.pod(
        "hostile",
        json!({"containers": containers, "restartPolicy": "Never"}),
    );
    host.wait_phase("hostile", "Failed");
    // It cannot run: the directory of its logs would have too long a name.
    host.wait_pod(&long, "known", |pod| pod["status"]["phase"] == "Pending");
    let dashboard = Dashboard::start(&host, &[]);
    let mut browser = Browser::start();
    for (width, scheme) in [(400, "light"), (1400, "dark")] {
        browser.size(width, 900, scheme);
        open(&mut browser, &dashboard);
        browser.wait(&holds("pods", &format!("default/{}", full(&long))));
        browser.eval(OPEN_ALL);
        let shown = format!(
            "document.getElementById('pods').textContent.includes({})",
            json!(HOSTILE)
        );
        browser.wait(&shown);
        browser.eval("[...document.querySelectorAll('#pods > li')].find((li) => li.innerText.includes('default/hostile')).querySelector('button').click()");
        browser.wait(&format!(
            "document.getElementById('lines').textContent.includes({})",
            json!(HOSTILE)
        ));
        assert_eq!(
            browser.eval("document.querySelectorAll('img, script:not([src])').length"),
            0
        );
        assert_eq!(browser.eval("document.title"), "node – picolet");
        for width in WIDTHS {
            browser.size(width, 900, scheme);
            assert_eq!(browser.eval("document.documentElement.scrollWidth"), width);
            assert_eq!(browser.eval(MISFITS), "", "{width}");
        }
        // A mark turns only what it stands in.
        let isolated = "[...document.querySelectorAll('#pods bdi')].every((b) => getComputedStyle(b).unicodeBidi === 'isolate')";
        assert_eq!(browser.eval(isolated), true);
    }
    // It only shows: there is nothing that acts.
    assert_eq!(browser.eval("document.getElementById('pull').hidden"), true);
    let acts = "[...document.querySelectorAll('button')].filter((b) => /Restart|Delete/.test(b.textContent)).length";
    assert_eq!(browser.eval(acts), 0);

    let is_short = |host: &Host, wanted: &str| {
        let node: Value =
            serde_json::from_str(&host.ok(&["get", "node", "-o", "json"])).expect("node");
        let all = node["status"]["conditions"].as_array().cloned();
        let disk = all
            .into_iter()
            .flatten()
            .find(|c| c["type"] == "DiskPressure");
        let disk = disk.unwrap_or_default();
        (disk["status"] == wanted, disk.to_string())
    };
    let filler = host.path("root/filler");
    fs::write(&filler, vec![0; 110 << 20]).expect("a full disk");
    host.until("the disk is full", |host| is_short(host, "True"));
    shows(
        &mut browser,
        "pressure",
        &holds("bad", "DiskPressure: True for "),
    );
    browser.wait(&holds("short", "short of nodefs.available: "));
    fs::remove_file(filler).expect("filler");
    drop((browser, dashboard));
    host.finish();
}

/// Who asks is on the right page, knows the token, and wants what is allowed.
// DASH-02
#[test]
fn who_may_not_ask() {
    if !able() {
        return;
    }
    let host = Host::start(&[]);
    let only_shows = Dashboard::start(&host, &[]);
    let own = only_shows.address.to_string();
    let token = format!("Authorization: Bearer {}\r\n", only_shows.token);
    let wrong = format!("Authorization: Bearer {}\r\n", "0".repeat(32));
    let origin = format!("Origin: http://{own}\r\n");
    let foreign = "Origin: http://evil.example\r\n";
    for (request, of, more, status, says) in [
        ("GET /", &*own, String::new(), 200, ""),
        ("GET /state", &own, token.clone(), 200, "\"node\""),
        ("GET /state", "localhost", token.clone(), 200, "\"node\""),
        (
            "GET /state",
            &own,
            format!("{token}{origin}"),
            200,
            "\"node\"",
        ),
        (
            "GET /state",
            &own,
            String::new(),
            401,
            "the token is missing or wrong",
        ),
        (
            "GET /state",
            &own,
            wrong,
            401,
            "the token is missing or wrong",
        ),
        (
            "GET /log?namespace=x&pod=y",
            &own,
            String::new(),
            401,
            "the token is missing or wrong",
        ),
        (
            "GET /log?namespace=x&pod=y",
            &own,
            token.clone(),
            502,
            "pods \"y\" not found",
        ),
        (
            "GET /",
            "evil.example",
            String::new(),
            403,
            "host \"evil.example\" is not this machine's address",
        ),
        (
            "GET /state",
            "evil.example:80",
            token.clone(),
            403,
            "is not this machine's address",
        ),
        (
            "GET /state",
            &own,
            format!("Host: {own}\r\n{token}"),
            403,
            "is not this machine's address",
        ),
        (
            "GET /state",
            &own,
            format!("{token}{foreign}"),
            403,
            "a page of \"http://evil.example\" may not use this dashboard",
        ),
        (
            "GET /",
            &own,
            foreign.into(),
            403,
            "may not use this dashboard",
        ),
        (
            "POST /restart?namespace=x&pod=y",
            &own,
            token.clone(),
            403,
            "needs an Origin header",
        ),
        (
            "POST /restart?namespace=x&pod=y",
            &own,
            format!("{token}{origin}"),
            403,
            "--allow-actions to make changes",
        ),
        (
            "POST /delete?namespace=x&pod=y",
            &own,
            origin.clone(),
            401,
            "the token is missing or wrong",
        ),
        (
            "POST /state",
            &own,
            token.clone(),
            405,
            "method POST is not allowed here",
        ),
        ("GET /nothing", &own, token.clone(), 404, "no such page"),
        (
            "GET /state?from=x",
            &own,
            token.clone(),
            400,
            "from: \"x\" is not a valid number",
        ),
        (
            "GET /state",
            &own,
            format!("{token}Content-Length: 5\r\n"),
            413,
            "a request has no body here",
        ),
    ] {
        let asked = format!("{request} HTTP/1.1\r\nHost: {of}\r\n{more}\r\n");
        let answer = only_shows.ask(&asked);
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{asked}{answer}"
        );
        assert!(body.contains(says), "{asked}{answer}");
        if status >= 400 {
            assert_eq!(body.lines().count(), 1, "{body}");
        }
        for line in [
            "Content-Security-Policy: default-src 'none'; script-src 'self'; ",
            "frame-ancestors 'none'",
            "X-Content-Type-Options: nosniff",
            "X-Frame-Options: DENY",
            "Referrer-Policy: no-referrer",
            "Cache-Control: no-store",
        ] {
            assert!(head.contains(line), "{asked}{head}");
        }
        assert!(
            !head.to_ascii_lowercase().contains("access-control-allow"),
            "{head}"
        );
    }
    let head = "x".repeat(70_000);
    let answer = only_shows.ask(&format!("GET /{head} HTTP/1.1\r\n\r\n"));
    assert!(answer.is_empty() || answer.contains(" 431 "), "{answer}");
    // Who holds on to connections keeps no other from being told why.
    let held: Vec<TcpStream> = (0..16)
        .map(|_| TcpStream::connect(only_shows.address).expect("connect"))
        .collect();
    host.until("there are too many", |_| {
        let answer = only_shows.ask(&format!("GET / HTTP/1.1\r\nHost: {own}\r\n\r\n"));
        (answer.contains("more than 16 connections"), answer)
    });
    drop(held);
    host.until("there is room again", |_| {
        let answer = only_shows.ask(&format!("GET / HTTP/1.1\r\nHost: {own}\r\n\r\n"));
        (answer.contains(" 200 OK"), answer)
    });
    for (words, says) in [
        (
            &["--listen", "nowhere:1"][..],
            "expected an IP address and a port",
        ),
        (&["--listen", "192.0.2.1:1"], "cannot listen at 192.0.2.1:1"),
    ] {
        let said = host.command_with_flags("dashboard", words);
        assert!(
            !said.status.success() && text(&said.stderr).contains(says),
            "{said:?}"
        );
    }
    drop(only_shows);
    host.finish();
}

/// Pods of a crowd.
const CROWD: usize = 100;
/// By which the agent may grow while the page is open, KiB.
const GROWTH_KIB: u64 = 256;
/// What the allocator keeps of one look or another, KiB.
const NOISE_KIB: u64 = 64;
/// Answers of the page while the agent is measured.
const ROUNDS: u32 = 30;

// DASH-06 DASH-07
#[test]
fn a_hundred_pods() {
    if !able() {
        return;
    }
    let mut host = Host::new(&[]);
    let lamps = Lamps::start(&host.path("lamps"));
    let none = NO_THRESHOLDS.map(|name| (name, "0%"));
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "evictionHard": none.into_iter().collect::<std::collections::BTreeMap<_, _>>(), "imageGCHighThresholdPercent": 100,
        "picolet": {"providers": {"lamps": lamps.socket()}},
    });
    let path = host.path("config.yaml");
    fs::write(&path, config.to_string()).expect("configuration");
    host.flags
        .extend(["--config".into(), path.display().to_string()]);
    host.start_agent();
    for n in 0..CROWD {
        let spec = json!({"runtimeClassName": "lamps", "containers": [lamp("main", None)]});
        host.pod(&format!("lamp{n}"), spec);
    }
    host.until("all shine", |host| {
        let pods = host.pods();
        let ready = pods
            .iter()
            .filter(|p| host::status_of(p, "main")["ready"] == true)
            .count();
        (ready == CROWD, format!("{ready} are ready"))
    });
    let pid = host.agent_pid();
    // What something took is given back some seconds later.
    let settled = |host: &Host| {
        let mut last = [0; 3];
        host.until("memory settles", |_| {
            host::pause(Duration::from_secs(3));
            last.rotate_left(1);
            last[2] = anonymous_kib(pid);
            let (least, most) = (last.iter().min(), last.iter().max());
            let near = least.zip(most).is_some_and(|(a, b)| a + NOISE_KIB >= *b);
            (near, format!("{last:?}"))
        });
        last.into_iter().max().unwrap_or_default()
    };
    let before = settled(&host);
    let dashboard = Dashboard::start(&host, &[]);
    let mut browser = Browser::start();
    browser.size(1400, 900, "light");
    browser.open(&dashboard.url());
    let rows = format!("document.querySelectorAll('#pods > li').length === {CROWD}");
    let (_, had) = seen(&mut browser, &rows);
    let ms = browser.eval("Math.ceil(performance.now())");
    println!(
        "{CROWD} pods: the first picture {ms} ms after the page was opened, with answer {had}"
    );
    assert!(had <= MAX_ASKED, "{had} answers");
    let mut most = 0;
    for _ in 0..ROUNDS {
        let at = asked(&mut browser);
        browser.wait(&format!("{ASKED} > {at}"));
        most = most.max(anonymous_kib(pid));
    }
    drop(browser);
    let after = settled(&host);
    println!(
        "memory of the agent: {before} KiB before, {most} KiB while the page is open, {after} KiB after"
    );
    assert!(most <= before + GROWTH_KIB, "{before} {most}");
    assert!(after <= before + NOISE_KIB, "{before} {after}");
    drop(dashboard);
    for n in 0..CROWD {
        host.remove(&format!("lamp{n}.yaml"));
    }
    host.until("all are dark", |host| {
        let pods = host.pods().len();
        (pods == 0, format!("{pods} pods are left"))
    });
    drop(lamps);
    host.finish();
}
