//! Watches the new program until it may stay or is put back.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::{
    running::{self, PATH, RunningAgent},
    switch::{self, ProgramPaths},
    upgrade::file_error,
};
use crate::{
    cli::{
        CliError,
        client::AgentClient,
        health,
        progress::{ProgressDisplay, TransferProgress},
    },
    logic::update::upgrade::{
        self, EndedContainer, TrialJudge, TrialLook, TrialVerdict, UpgradeTrial,
    },
    shim,
    sys::{
        child::{self, Command},
        clock, proc,
    },
};

/// Time in which a new program has to report its health.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);
/// Time in which the guard has to put a program back.
const BACK_TIMEOUT: Duration = Duration::from_secs(60);

/// Path of the program that watches, which is the old one.
const OWN: &str = "/proc/self/exe";

/// Result of a trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TrialOutcome {
    /// The new program of this version is the one from now on.
    Stays(String),
    /// The old one is back.
    Back(String),
}

/// Watches a trial to its end. That comes at the latest some looks and [`crate::logic::update::upgrade::LINK_GRACE`] after the
/// time that the program has.
pub(super) fn watch_trial(
    places: &ProgramPaths,
    trial: &UpgradeTrial,
    quiet: bool,
) -> Result<TrialOutcome, CliError> {
    let client = AgentClient::new(Path::new(&trial.socket)).with_patience(LOOK_PATIENCE);
    let begun = clock::mono_now();
    let mut gate = TrialJudge::new(trial, begun);
    let mut progress = ProgressDisplay::new(&format!("picolet {}", trial.version), quiet);
    let boot = proc::boot_id().unwrap_or_default();
    // Bounded: by the gate's deadline, and the time that a healthy program and a link are given beyond it.
    loop {
        if switch::read_trial(places)?.is_none() {
            let version = &trial.version;
            if !switch::is_same_file(&places.program, &places.old_path()) {
                return Ok(TrialOutcome::Stays(version.clone()));
            }
            // The guard has put the old program back: no starts were left. On a full disk it leaves no note.
            let why = switch::read_put_back_reason(places, &trial.sum);
            let why = why.unwrap_or_else(|| format!("{version} it did not become healthy"));
            return Ok(TrialOutcome::Back(why));
        }
        let look = look_at_trial(places, trial, &client, &boot);
        let reason = match gate.judge_look(look, clock::mono_now()) {
            TrialVerdict::Wait => {
                progress.show_step(TransferProgress {
                    stage: "on trial".into(),
                    done: (clock::mono_now() - begun).as_secs().min(trial.patience_s),
                    all: trial.patience_s,
                    parts: "seconds at most",
                    bytes: None,
                });
                health::wait_for_next_look();
                continue;
            }
            TrialVerdict::AskApiserver if is_at_fault(&client, Path::new(OWN)) => {
                gate.blame_program(clock::mono_now());
                continue;
            }
            TrialVerdict::Stay | TrialVerdict::AskApiserver => {
                switch::end_trial(places)
                    .map_err(|e| file_error("remove", &places.trial_path(), &e))?;
                return Ok(TrialOutcome::Stays(trial.version.clone()));
            }
            TrialVerdict::Back(reason) => reason,
        };
        put_back(places, &reason)?;
        running::restart_agent(trial).map_err(|e| running::restart_by_hand_error(&e))?;
        return Ok(TrialOutcome::Back(format!("{} {reason}", trial.version)));
    }
}

fn look_at_trial(
    places: &ProgramPaths,
    trial: &UpgradeTrial,
    client: &AgentClient,
    boot: &str,
) -> TrialLook {
    let mut look = TrialLook::default();
    let health = match health::check_health(client) {
        Ok(health) => health,
        Err(e) => {
            look.trouble = Some(e.bare_message().to_owned());
            return look;
        }
    };
    let exe = PathBuf::from(format!("/proc/{}/exe", health.pid));
    if !switch::is_same_file(&exe, &places.program) {
        look.trouble = Some("another program runs".into());
        return look;
    }
    let answered = |api: &crate::api::health::ApiserverHealth| {
        api.trouble.is_none() && api.answered_age_ms.is_some()
    };
    look.answered = health.apiserver.as_ref().is_some_and(answered);
    look.pid = Some(health.pid);
    match client.request_json("GET", "/pods") {
        Ok(pods) => look.pods = uids(&pods),
        Err(e) => look.trouble = Some(e.bare_message().to_owned()),
    }
    if boot == trial.boot {
        look.gone = list_gone_containers(trial, client);
    }
    look
}

fn uids(pods: &Value) -> Vec<(String, bool)> {
    let items = pods["items"].as_array().into_iter().flatten();
    let uid = |pod: &Value| {
        let meta = &pod["metadata"];
        let terminating = !meta["deletionTimestamp"].is_null();
        (meta["uid"].as_str().unwrap_or("").to_owned(), terminating)
    };
    items.map(uid).collect()
}

/// Lists the remembered containers whose processes are gone.
fn list_gone_containers(trial: &UpgradeTrial, client: &AgentClient) -> Vec<EndedContainer> {
    let ended = trial
        .kept
        .iter()
        .filter(|kept| !proc::start_time(kept.pid).is_ok_and(|started| started == kept.start_time));
    let ended: Vec<_> = ended.collect();
    if ended.is_empty() {
        return Vec::new();
    }
    let events = client.request_json("GET", "/events").unwrap_or_default();
    let was_killed = |pod: &str| {
        let mut events = events["items"].as_array().into_iter().flatten();
        events.any(|e| e["reason"] == "Killing" && e["involvedObject"]["uid"] == pod)
    };
    let dir = Path::new(&trial.containers_dir);
    ended
        .into_iter()
        .map(|kept| {
            let exit = shim::read_exit(&dir.join(&kept.id)).ok().flatten();
            let by_itself = exit.is_some_and(|exit| {
                exit.known && upgrade::ends_by_itself(exit.code, exit.was_oom_killed(0))
            });
            EndedContainer {
                id: kept.id.clone(),
                pod: kept.pod.clone(),
                by_itself: by_itself && !was_killed(&kept.pod),
            }
        })
        .collect()
}

/// Returns true if the program `own` reaches the apiserver, which the one on trial does not. If that cannot be told,
/// the apiserver is taken for out of reach.
fn is_at_fault(client: &AgentClient, own: &Path) -> bool {
    let found = RunningAgent::find(client).and_then(|running| Ok(running.run_check(own)?));
    // The level of the check would not do: it tells of a wrong clock, too.
    found.is_ok_and(|found| found.apiserver_answers == Some(true))
}

fn put_back(places: &ProgramPaths, reason: &str) -> Result<(), CliError> {
    let guard = Command::new("/bin/sh")
        .arg(places.guard_path())
        .arg("--back")
        .arg(&places.program)
        .arg(reason.replace('\n', " "))
        .env("PATH", PATH)
        .capture_output(4096);
    let done = smol::block_on(child::run_command(guard, Some(BACK_TIMEOUT)));
    let why = match done {
        Ok(done) if done.status.success() => return Ok(()),
        Ok(done) => String::from_utf8_lossy(&done.stderr).trim().to_owned(),
        Err(e) => e.to_string(),
    };
    Err(CliError::new(format!(
        "cannot put the old program back, which is {}: {why} ({reason})",
        places.old_path().display()
    )))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Read as _, Write as _},
        os::unix::net::UnixListener,
        process::Stdio,
        thread,
    };

    use super::*;
    use crate::{api::health::AgentHealth, testing::TestDir};

    /// Answers the first who asks how the agent is.
    fn tell(listener: &UnixListener, pid: u32) {
        let health = AgentHealth {
            pid,
            ..AgentHealth::default()
        };
        let health = serde_json::to_string(&health).expect("JSON");
        let (mut stream, _) = listener.accept().expect("somebody asks");
        let mut head = Vec::new();
        // Bounded: by what the client sends.
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a request");
            head.push(byte[0]);
        }
        write!(stream, "HTTP/1.1 200 OK\r\n\r\n{health}").expect("answered");
    }

    #[test]
    fn who_is_at_fault() {
        // PKG-21
        let scratch = TestDir::new("watch");
        let socket = scratch.join("picolet.sock");
        let listener = UnixListener::bind(&socket).expect("socket");
        let client = AgentClient::new(&socket);
        // The agent, with what its unit sets.
        let mut agent = std::process::Command::new("cat")
            .stdin(Stdio::piped())
            .env_clear()
            .env("https_proxy", "http://proxy:3128")
            .env("NO_PROXY", "10.0.0.0/8")
            .current_dir(&scratch.0)
            .spawn()
            .expect("started");
        let pid = agent.id();
        let is_at_fault = |script: &str| {
            // In the agent's directory the shell takes the first word for a file.
            fs::write(scratch.join("check"), script).expect("written");
            thread::scope(|scope| {
                scope.spawn(|| tell(&listener, pid));
                is_at_fault(&client, Path::new("/bin/sh"))
            })
        };
        let says = |level: &str, answers: &str| {
            format!(
                r#"echo '{{"checks": [{{"name": "apiserver", "level": "{level}", "message": "x"}}]{answers}}}'"#
            )
        };
        let (yes, no) = (
            r#", "apiserverAnswers": true"#,
            r#", "apiserverAnswers": false"#,
        );
        for (level, answers, wanted) in [
            ("ok", yes, true),
            // It says that the clock is wrong.
            ("warning", yes, true),
            ("warning", no, false),
            // Nobody was asked.
            ("ok", r#", "apiserverAnswers": null"#, false),
            ("ok", "", false),
        ] {
            assert_eq!(
                is_at_fault(&says(level, answers)),
                wanted,
                "{level} {answers}"
            );
        }
        // It takes the way of the agent.
        let way = r#"[ "$* $HTTPS_PROXY $NO_PROXY$HTTP_PROXY" = "-o json http://proxy:3128 10.0.0.0/8" ] && "#;
        assert!(is_at_fault(&(way.to_owned() + &says("ok", yes))));
        // It cannot be told.
        assert!(!is_at_fault("exit 1"));
        agent.kill().and_then(|()| agent.wait()).expect("ended");
        assert!(!is_at_fault(&says("ok", yes)));
    }
}
