//! Inside the machine: installs picolet as an operator does and checks what cannot be checked on another machine.

mod apparmor;
mod board;
mod boots;
mod chaos;
mod clock;
mod facts;
mod figures;
mod groups;
mod node;
mod pressure;
mod small;

use std::{
    fs::File,
    io::Write,
    process::{Command, ExitCode},
    time::Duration,
};

use serde_json::Value;

pub(crate) use chaos::TASK as CHAOS_GUEST;

use super::{
    disk::HOSTNAME,
    report::{ALIVE_EACH, Boot, Line},
};
use crate::{
    Failure,
    process::output,
    wait::{Watch, pass, until_each},
};

/// Where the verdicts go, if no port of a board is named after them.
const PORT: &str = "/dev/ttyS1";
/// A pod's start, and everything else that takes its time on an emulated processor.
const LIMIT: Duration = Duration::from_secs(400);

/// Between two looks at a condition: each calls a program, and the only processor has pods to start.
const POLL: Duration = Duration::from_millis(250);

/// Runs the checks of this boot; `xtask vm-guest`.
pub(crate) fn run() -> ExitCode {
    let path = board::port().unwrap_or_else(|| PORT.into());
    let port = match File::options().write(true).open(&path) {
        Ok(port) => port,
        Err(e) => {
            eprintln!("error: {path}: {e}");
            return ExitCode::FAILURE;
        }
    };
    match port.try_clone() {
        Ok(port) => _ = std::thread::spawn(move || live(Guest { port })),
        Err(e) => eprintln!("error: {path}: {e}"),
    }
    let mut guest = Guest { port };
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    match Boot::of(&line) {
        Some(Boot::Fresh) => boots::fresh(&mut guest),
        Some(Boot::AfterPowerCut) => boots::after_power_cut(&mut guest),
        Some(Boot::Small) => small::run(&mut guest),
        Some(Boot::Unplugged) => board::unplugged(&mut guest),
        Some(Boot::AfterUpgradeCut) => board::after_upgrade_cut(&mut guest),
        Some(Boot::WithoutMemory) => board::without_memory(&mut guest),
        Some(Boot::Clock) => clock::run(&mut guest),
        Some(Boot::Pressure) => pressure::run(&mut guest),
        Some(Boot::Chaos) => chaos::run(&mut guest),
        None => guest.say(&Line::Failed("no word of a boot".into())),
    }
    ExitCode::SUCCESS
}

/// The checks' way out.
struct Guest {
    port: File,
}

impl Guest {
    fn say(&mut self, line: &Line) {
        // The journal has it too. Without the port nobody outside learns anything: then silence tells.
        println!("{}", line.text());
        self.tell(line);
    }

    /// At one stroke: signs of life come in between.
    fn tell(&mut self, line: &Line) {
        let _ = self.port.write_all(format!("{}\n", line.text()).as_bytes());
    }

    /// Runs one check and tells how it went; `check` returns what was seen.
    fn step(&mut self, what: &str, check: impl FnOnce() -> Result<String, Failure>) {
        let watch = Watch::start();
        let line = match check() {
            Ok(seen) => {
                let colon = if seen.is_empty() { "" } else { ": " };
                let time = watch.elapsed().as_secs_f64();
                Line::Held(format!("{what}{colon}{seen} ({time:.2} s)"))
            }
            Err(why) => Line::Failed(format!("{what}: {why}")),
        };
        self.say(&line);
    }

    fn note(&mut self, what: String) {
        self.say(&Line::Note(what));
    }
}

/// Gives signs of life until the machine ends.
fn live(mut guest: Guest) {
    loop {
        guest.tell(&Line::Alive);
        pass(ALIVE_EACH);
    }
}

/// Calls a program of the machine and returns what it prints.
fn call(words: &[&str]) -> Result<String, Failure> {
    output(Command::new(words[0]).args(&words[1..])).map(|text| text.trim().to_owned())
}

/// Looks until `look` answers, at most for `limit`.
fn until<T>(limit: Duration, look: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    until_each(POLL, limit, look)
}

/// Every pod as `get pods -o json` shows it.
fn pods() -> Result<Vec<Value>, Failure> {
    let text = call(&["picolet", "get", "pods", "-o", "json"])?;
    let list: Value = serde_json::from_str(&text)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn pod(name: &str) -> Result<Value, Failure> {
    let name = format!("{name}-{HOSTNAME}");
    pods()?
        .into_iter()
        .find(|pod| pod["metadata"]["name"] == name.as_str())
        .ok_or_else(|| format!("there is no pod {name}").into())
}

/// Waits until the pods are Running and all their containers are ready.
fn wait_running(names: &[String]) -> Result<String, Failure> {
    until(LIMIT, || {
        let pods = pods()?;
        for name in names {
            let full = format!("{name}-{HOSTNAME}");
            let pod = pods
                .iter()
                .find(|pod| pod["metadata"]["name"] == full.as_str())
                .ok_or_else(|| format!("there is no pod {full}"))?;
            let ready = pod["status"]["containerStatuses"]
                .as_array()
                .is_some_and(|list| !list.is_empty() && list.iter().all(|c| c["ready"] == true));
            if pod["status"]["phase"] != "Running" || !ready {
                return Err(format!("{full}: {}", pod["status"]).into());
            }
        }
        Ok(format!("{} pods", names.len()))
    })
}

/// The full container id (`scheme://id`), without its scheme.
fn container_id(pod: &Value, container: &str) -> Result<String, Failure> {
    pod["status"]["containerStatuses"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|status| status["name"] == container)
        .and_then(|status| status["containerID"].as_str()?.rsplit('/').next())
        .map(str::to_owned)
        .ok_or_else(|| format!("no container {container} with an id").into())
}

fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &T,
    wanted: &T,
) -> Result<(), Failure> {
    if found == wanted {
        Ok(())
    } else {
        Err(format!("{what} is {found:?}, not {wanted:?}").into())
    }
}
