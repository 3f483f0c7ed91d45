//! The agent that runs now: its program, its flags, the command that restarts it, and the containers that must survive
//! the restart.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use serde_json::Value;

use super::{
    switch::{self, ProgramPaths},
    upgrade::{TakeoverFailure, file_error},
};
use crate::{
    api::{health::AgentHealth, strict::from_json},
    cli::{CliError, KUBELET, check::flags_of_command_line, client::AgentClient},
    config::{self, AgentConfig, HostIdentity, flags},
    error::error_chain,
    logic::update::upgrade::{MAX_KEPT, TRIES, TrialContainer, UpgradeTrial},
    net::ProxyVariables,
    shim,
    sys::{
        child::{self, Command},
        proc,
    },
};

/// Directories that are searched for programs.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Time in which a program has to say its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a program's look at the machine: it asks the runtime, and an apiserver that may not answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a service manager has to take an order.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of an answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Most bytes of an environment: more than the kernel lets a program start with by default.
const MAX_ENVIRON_BYTES: u64 = 8 << 20;

/// A finding of `picolet check`.
#[derive(Debug, Deserialize)]
pub(super) struct CheckReportFinding {
    pub(super) name: String,
    pub(super) level: String,
    pub(super) message: String,
}

/// Report of `picolet check -o json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckReport {
    pub(super) checks: Vec<CheckReportFinding>,
    /// True if the apiserver answers; `None`: it was not asked, or an older program does not tell.
    pub(super) apiserver_answers: Option<bool>,
}

/// Facts about the agent that runs.
pub(super) struct RunningAgent {
    pub(super) client: AgentClient,
    pub(super) program: PathBuf,
    health: AgentHealth,
    /// Flags of the agent, and the directory that relative paths in them are below.
    words: Vec<OsString>,
    cwd: PathBuf,
    /// Proxies that the agent's unit sets: whoever asks the apiserver in its place goes the same way.
    proxies: ProxyVariables,
    /// Set if the agent was called as `kubelet`: its flags and its configuration mean something else then.
    is_kubelet: bool,
}

impl RunningAgent {
    pub(super) fn find(client: &AgentClient) -> Result<Self, CliError> {
        let health: AgentHealth = client.fetch_typed("/health")?;
        let of = |name: &str| PathBuf::from(format!("/proc/{}/{name}", health.pid));
        let link =
            |name: &str| fs::read_link(of(name)).map_err(|e| file_error("read", &of(name), &e));
        // The file may have been replaced by hand.
        let program = link("exe")?.into_os_string().into_vec();
        let program = program.strip_suffix(b" (deleted)").unwrap_or(&program);
        let typed = fs::read(of("cmdline")).map_err(|e| file_error("read", &of("cmdline"), &e))?;
        let (words, is_kubelet) = flags_of_command_line(&typed);
        let set = environ(&of("environ")).map_err(|e| file_error("read", &of("environ"), &e))?;
        Ok(Self {
            program: OsString::from_vec(program.to_vec()).into(),
            words,
            is_kubelet,
            cwd: link("cwd")?,
            proxies: proxies_of(&set),
            client: client.clone(),
            health,
        })
    }

    /// Returns true if the agent still runs, as the program of this file.
    pub(super) fn still_runs(&self, program: &Path) -> bool {
        let own = PathBuf::from(format!("/proc/{}/exe", self.health.pid));
        switch::is_same_file(&own, program)
    }

    /// Finds the command that restarts the agent's service.
    pub(super) fn find_restart_command(&self) -> Result<String, CliError> {
        let path = PathBuf::from(format!("/proc/{}/cgroup", self.health.pid));
        let groups = fs::read_to_string(&path).map_err(|e| file_error("read", &path, &e))?;
        if let Some(unit) = unit_of(&groups).filter(|_| Path::new("/run/systemd/system").is_dir()) {
            return Ok(format!("systemctl restart --no-block {unit}"));
        }
        for name in ["picolet", KUBELET] {
            if Path::new("/run/openrc/started").join(name).exists() {
                return Ok(format!("rc-service {name} restart"));
            }
        }
        Err(CliError::new(
            "the agent is not a service of systemd or OpenRC: give the command that restarts it with --restart",
        ))
    }

    /// Has `program` check this machine, with the configuration and the proxies of the agent.
    pub(super) fn run_check(&self, program: &Path) -> Result<CheckReport, TakeoverFailure> {
        let mut check = Command::new(program)
            .args(["check", "-o", "json"])
            .args(self.is_kubelet.then_some("--kubelet"))
            .args(&self.words)
            .env("PATH", PATH)
            .cwd(&self.cwd)
            .capture_output(MAX_ANSWER_BYTES);
        // Bounded: three names.
        for (name, value) in self.proxies.to_environment() {
            check = check.env(name, value);
        }
        let cannot = |why: &dyn core::fmt::Display| {
            CliError::new(format!("{} check: {why}", program.display()))
        };
        let done = smol::block_on(child::run_command(check, Some(CHECK_TIMEOUT)))
            .map_err(|e| cannot(&e))?;
        from_json(&done.stdout).map_err(|_| TakeoverFailure {
            why: cannot(&String::from_utf8_lossy(&done.stderr).trim()),
            lasts: done.status.code().is_some(),
        })
    }

    /// Makes the trial of the staged program.
    pub(super) fn make_trial(
        &self,
        version: &str,
        restart: String,
        patience_s: u64,
        places: &ProgramPaths,
    ) -> Result<UpgradeTrial, CliError> {
        let dir = self.containers_dir()?;
        let answers = |api: &crate::api::health::ApiserverHealth| api.trouble.is_none();
        let boot = proc::boot_id().map_err(|e| CliError::new(format!("boot id: {e}")))?;
        let mut trial = UpgradeTrial {
            tries: TRIES,
            patience_s,
            sum: super::release::compute_sha256(&places.staged_path())?,
            version: version.to_owned(),
            socket: self.client.socket_path().display().to_string(),
            restart,
            boot,
            apiserver: self.health.apiserver.as_ref().is_some_and(answers),
            kept: list_running_containers(&self.client.request_json("GET", "/pods")?, &dir),
            containers_dir: dir.display().to_string(),
        };
        trial.kept.truncate(MAX_KEPT);
        let lines = [&trial.socket, &trial.restart, &trial.containers_dir];
        if lines.iter().any(|line| line.contains('\n')) {
            return Err(CliError::new(
                "a path or --restart has a line break, which an upgrade does not support",
            ));
        }
        Ok(trial)
    }

    fn containers_dir(&self) -> Result<PathBuf, CliError> {
        Ok(self.load_agent_config()?.dirs.run.join("containers"))
    }

    /// Loads the configuration that the agent would have if it was started now.
    pub(super) fn load_agent_config(&self) -> Result<AgentConfig, CliError> {
        let wrong = |e: &dyn core::error::Error| {
            CliError::new(format!(
                "the configuration of the agent: {}",
                error_chain(e)
            ))
        };
        let mut flags = flags::parse_flags(self.words.clone(), &self.cwd).map_err(|e| wrong(&e))?;
        flags.as_kubelet = self.is_kubelet;
        let host = HostIdentity {
            hostname: "localhost".into(),
        };
        let loaded = config::load_config(flags, &host).map_err(|e| wrong(&e))?;
        Ok(loaded.config)
    }
}

fn environ(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_ENVIRON_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the proxies that an environment names. Source: proc_pid_environ(5).
fn proxies_of(environ: &[u8]) -> ProxyVariables {
    ProxyVariables::from_environment(|name| {
        let value = |line: &[u8]| {
            let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        environ.split(|b| *b == 0).find_map(value)
    })
}

/// Finds the service that a process belongs to. Source: proc_pid_cgroup(5).
fn unit_of(groups: &str) -> Option<&str> {
    let systemd = |line: &&str| line.starts_with("0::/") || line.contains(":name=systemd:/");
    let line = groups.lines().find(systemd)?;
    let parts = line.rsplit('/');
    parts.into_iter().find(|part| part.ends_with(".service"))
}

/// Lists the containers that run, as their shims have recorded them.
fn list_running_containers(pods: &Value, dir: &Path) -> Vec<TrialContainer> {
    let mut found = Vec::new();
    for pod in pods["items"].as_array().into_iter().flatten() {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or("");
        for list in [
            "initContainerStatuses",
            "containerStatuses",
            "ephemeralContainerStatuses",
        ] {
            for container in pod["status"][list].as_array().into_iter().flatten() {
                let id = container["containerID"].as_str().unwrap_or("");
                let id = id.rsplit('/').next().unwrap_or("");
                // A container without a record is another runtime's: the end of an agent cannot end it.
                if let Ok(Some(state)) = shim::read_state(&dir.join(id))
                    && !id.is_empty()
                    && proc::start_time(state.pid).is_ok_and(|t| t == state.start_time)
                {
                    found.push(TrialContainer {
                        id: id.to_owned(),
                        pod: uid.to_owned(),
                        pid: state.pid,
                        start_time: state.start_time,
                    });
                }
            }
        }
    }
    found
}

/// Asks a program for its version.
pub(super) fn ask_program_version(program: &Path) -> Result<String, TakeoverFailure> {
    let asked = Command::new(program)
        .arg("--version")
        .capture_output(MAX_ANSWER_BYTES);
    let cannot = |why: &dyn core::fmt::Display| {
        CliError::new(format!("this program does not start here: {why}"))
    };
    let done =
        smol::block_on(child::run_command(asked, Some(VERSION_TIMEOUT))).map_err(|e| cannot(&e))?;
    let said = String::from_utf8_lossy(&done.stdout);
    match said.trim().strip_prefix("picolet ") {
        Some(version) if done.status.success() && !version.contains(char::is_whitespace) => {
            Ok(version.to_owned())
        }
        _ => Err(TakeoverFailure {
            why: cannot(&format_args!(
                "picolet --version ended with {}",
                done.exit_code()
            )),
            lasts: done.status.code().is_some(),
        }),
    }
}

/// Has the service manager restart the agent.
pub(super) fn restart_agent(trial: &UpgradeTrial) -> Result<(), CliError> {
    let sh = Command::new("/bin/sh")
        .args(["-c", &trial.restart])
        .env("PATH", PATH)
        .capture_output(MAX_ANSWER_BYTES);
    let done: io::Result<_> = smol::block_on(child::run_command(sh, Some(RESTART_TIMEOUT)));
    let why = match done {
        Ok(done) if done.status.success() => return Ok(()),
        Ok(done) => String::from_utf8_lossy(&done.stderr).trim().to_owned(),
        Err(e) => e.to_string(),
    };
    Err(CliError::new(format!(
        "cannot restart the agent ({}): {why}",
        trial.restart
    )))
}

/// Makes the error of a restart that the operator has to do.
pub(super) fn restart_by_hand_error(e: &CliError) -> CliError {
    CliError::new(format!("{}: restart it by hand", e.bare_message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_was_called() {
        for (text, wanted, as_kubelet) in [
            (
                "/usr/local/bin/picolet\0run\0-v\x004\0",
                &["-v", "4"][..],
                false,
            ),
            ("/usr/bin/kubelet\0-v\x004\0", &["-v", "4"], true),
            ("picolet\0run\0", &[], false),
            (
                "picolet\0--socket\0/s\0run\0-v4\0",
                &["--socket", "/s", "-v4"],
                false,
            ),
            ("picolet\0--socket=/s\0run\0", &["--socket=/s"], false),
            ("", &[], false),
        ] {
            let wanted = wanted.iter().map(OsString::from).collect();
            assert_eq!(
                flags_of_command_line(text.as_bytes()),
                (wanted, as_kubelet),
                "{text:?}"
            );
        }
        for (text, http, https, no_proxy) in [
            (
                "PATH=/bin\0HTTPS_PROXY=http://p:1\0https_proxy=http://q:1\0no_proxy=10.0.0.0/8\0",
                "",
                "http://p:1",
                "10.0.0.0/8",
            ),
            (
                "HTTPS_PROXY=\0https_proxy=http://u:a=b@q:1\0http_proxy=http://r:1\0NO_PROXY=*\0",
                "http://r:1",
                "http://u:a=b@q:1",
                "*",
            ),
            ("XHTTPS_PROXY=x\0HTTPS_PROXY_=x\0HTTPS_PROXY\0", "", "", ""),
            ("", "", "", ""),
        ] {
            let wanted = ProxyVariables {
                http: http.into(),
                https: https.into(),
                no_proxy: no_proxy.into(),
            };
            assert_eq!(proxies_of(text.as_bytes()), wanted, "{text:?}");
        }
        for (text, unit) in [
            (
                "0::/system.slice/picolet.service\n",
                Some("picolet.service"),
            ),
            (
                "12:cpu:/x.service\n1:name=systemd:/system.slice/kubelet.service\n",
                Some("kubelet.service"),
            ),
            (
                "0::/system.slice/picolet.service/agent\n",
                Some("picolet.service"),
            ),
            ("0::/user.slice\n", None),
            ("", None),
        ] {
            assert_eq!(unit_of(text), unit, "{text}");
        }
    }
}
