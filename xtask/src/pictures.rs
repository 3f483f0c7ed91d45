//! `cargo xtask pictures`: shows a node with pods in the dashboard, takes pictures of it for docs/dashboard.md, and records the
//! demo as text for docs/demo.md. What the documents show is so what the program does.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;

use crate::{
    Failure,
    browser::Browser,
    install, png,
    process::{is_root, output},
    stage::{IMAGE, NODE, Stage},
    wait::until,
};

const DIR: &str = "docs/pictures";
/// Width and height of a picture, pixels; each is taken light and dark, of a few pods and of a crowd.
const SIZES: [(u32, u32); 3] = [(360, 1500), (1024, 1000), (1400, 1000)];
/// Has the page hear of 100 pods and 100 images, each like one that is there: a third like any of them, the others like the
/// pods that are well.
const CROWD: &str = "const ask = fetch; window.fetch = async (path, more) => { const answer = await ask(path, more); \
     if (!answer.ok || !path.startsWith('state')) return answer; const news = await answer.json(); \
     for (const list of news.state?.pods ? ['pods', 'images'] : []) { const some = news.state[list]; \
     const well = some.filter((o) => !o.ready || o.ready === '1/1'); const like = (n) => n % 3 && well.length ? well[n % well.length] : some[n / 3 % some.length | 0]; \
     news.state[list] = some.length && Array.from({ length: 100 }, (_, n) => ({ ...like(n), uid: 'u' + n, name: like(n).name + '-' + n })); } \
     for (const name in news.usage) for (let n = 0; n < 100; n++) news.usage[name + '-' + n] = news.usage[name]; \
     return new Response(JSON.stringify(news)); };";
/// Bytes that a picture has at most: who clones the project gets all of them.
const MAX_BYTES: usize = 150_000;
/// Pods are there by then.
const START: Duration = Duration::from_secs(60);
/// Points of a plot that are worth a picture.
const POINTS: u32 = 13;
const RECORDING: &str = "docs/demo.md";
/// What the recording leaves out: how long something took differs with every run.
const HEAD: &str = "# The demo\n\n`cargo xtask demo` starts an agent on directories of its own and shows what it does, step by step. `cargo xtask pictures`\n\
     has recorded this.\n\n```text\n";

/// Manifests: what is shown has something of everything.
const PODS: [(&str, &str); 5] = [
    (
        "web",
        "containers: [{name: server, image: IMAGE, command: [sh, -c, 'httpd -p 8080; n=0; while sleep 1; do n=$((n+1)); echo request $n; done'], \
         readinessProbe: {httpGet: {port: 8080, path: /}, periodSeconds: 2}, livenessProbe: {tcpSocket: {port: 8080}}, \
         lifecycle: {postStart: {exec: {command: [sh, -c, 'echo hello >index.html']}}}}]",
    ),
    (
        "meter",
        "containers: [{name: reader, image: IMAGE, command: [sh, -c, 'while :; do :; done'], resources: {limits: {cpu: 200m, memory: 32Mi}}}]",
    ),
    (
        "broken",
        "containers: [{name: main, image: IMAGE, command: [sh, -c, 'echo no configuration >/dev/termination-log; exit 7']}]",
    ),
    (
        "late",
        "containers: [{name: main, image: IMAGE, command: [sleep, '3600'], readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1}}]",
    ),
    (
        "once",
        "restartPolicy: Never, containers: [{name: main, image: IMAGE, command: ['true']}]",
    ),
];

pub(crate) fn run() -> Result<(), Failure> {
    if !is_root() {
        return Err("the pictures show pods: run it as root".into());
    }
    let missing = install::ensure(&[&install::BUILD, &install::HOST, &install::BROWSER])?;
    if !missing.is_empty() {
        return Err(format!("still missing after installation: {}", missing.join(", ")).into());
    }
    let mut stage = Stage::new("shots")?;
    stage.start_agent()?;
    stage.write_image(&stage.image_dir().join("demo.tar"), IMAGE)?;
    for (name, spec) in PODS {
        let spec = spec.replace("IMAGE", IMAGE);
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{terminationGracePeriodSeconds: 1, {spec}}}\n"
        );
        stage.write_manifest(&format!("{name}.yaml"), &manifest)?;
    }
    until(START, || {
        let broken = stage.pod("broken")?;
        let waits = &broken["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
        match *waits == "CrashLoopBackOff" {
            true => Ok(()),
            false => Err(format!("the pod that ends is {waits}").into()),
        }
    })?;
    let dashboard = Dashboard::start(&stage)?;
    let taken = pictures(&dashboard.url);
    drop(dashboard);
    stage.stop_all()?;
    taken?;
    drop(stage);
    record()
}

fn pictures(url: &str) -> Result<(), Failure> {
    fs::create_dir_all(DIR)?;
    let mut browser = Browser::start();
    browser.size(1400, 1000, "light");
    for pods in ["few", "crowd"] {
        if pods == "crowd" {
            browser.call(
                "Page.addScriptToEvaluateOnNewDocument",
                json!({"source": CROWD}),
            );
            browser.open("about:blank");
        }
        open(&mut browser, url);
        for (width, height) in SIZES {
            for scheme in ["light", "dark"] {
                let path = format!("{DIR}/{pods}-{width}-{scheme}.png");
                let bytes = take(&mut browser, &path, (width, height), scheme)?;
                if bytes > MAX_BYTES {
                    return Err(format!("{path} has {bytes} bytes").into());
                }
            }
        }
    }
    Ok(())
}

/// Opens the page, and unfolds the pods that fail.
fn open(browser: &mut Browser, url: &str) {
    browser.open(url);
    browser.wait(&format!(
        "document.getElementById('pods').innerText.includes('web-{NODE}')"
    ));
    // Something of the hour is over, and the checks have said what they find.
    let points = format!(
        "(document.querySelector('#plots path').getAttribute('d') || '').split('L').length > {POINTS}"
    );
    browser.wait(&points);
    browser.wait("document.getElementById('check').children.length > 3");
    let open = "[...document.querySelectorAll('#pods > li')].filter((li) => li.innerText.includes('broken')).slice(0, 1).forEach((li) => { li.querySelector('details').open = true; })";
    browser.eval(open);
}

/// Takes a picture; its bytes.
fn take(
    browser: &mut Browser,
    path: &str,
    (width, height): (u32, u32),
    scheme: &str,
) -> Result<usize, Failure> {
    browser.size(width, height, scheme);
    browser.eval("scrollTo(0, 0); new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
    let picture = png::pack(&STANDARD.decode(browser.picture())?)?;
    println!("{path}: {} bytes", picture.len());
    fs::write(path, &picture)?;
    Ok(picture.len())
}

/// The demo as it is seen.
fn record() -> Result<(), Failure> {
    let own = std::env::current_exe()?;
    let text = output(Command::new(own).arg("demo"))?;
    fs::write(RECORDING, format!("{HEAD}{}\n```\n", steady(&text).trim()))?;
    println!("{RECORDING}: {} lines", text.lines().count());
    Ok(())
}

/// Without trailing spaces, and without what is of this machine.
fn steady(text: &str) -> String {
    const OWN: [&str; 3] = ["Installing ", "Building ", "The agent's directories: "];
    let lines = text.lines().map(str::trim_end);
    let kept = lines.filter(|line| !OWN.iter().any(|own| line.starts_with(own)));
    kept.map(|line| format!("{line}\n")).collect()
}

/// The command, for as long as this lives.
struct Dashboard {
    child: Child,
    url: String,
}

impl Dashboard {
    fn start(stage: &Stage) -> Result<Self, Failure> {
        let mut child = stage
            .command("dashboard")
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let said = child.stdout.take().ok_or("no pipe")?;
        BufReader::new(said).read_line(&mut line)?;
        let url = line.trim_end().strip_prefix("Open ").unwrap_or_default();
        Ok(Self {
            child,
            url: url.to_owned(),
        })
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
