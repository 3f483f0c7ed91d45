//! `picolet stop`: ends the agent, and if it is told to, its pods before that.

use core::time::Duration;
use std::{
    fs,
    io::{self, Write as _},
    os::fd::AsRawFd as _,
    path::Path,
};

use serde_json::Value;

use super::{
    CliError, KUBELET,
    args::{CliWord, CliWords, unexpected_word},
    check,
    client::{AgentAnswer, AgentClient},
    health::LOOK_MS,
    progress::{ProgressDisplay, TransferProgress},
};
use crate::{api::health::AgentHealth, sys::start};

/// Longest silence of an agent that ends its pods.
const PATIENCE: Duration = Duration::from_secs(2);
/// Directory in which OpenRC notes the services that run.
const STARTED: &str = "/run/openrc/started";
/// Name of OpenRC's supervisor, which starts an agent again whatever it ended with. The kernel keeps 15 characters of a
/// name.
const SUPERVISOR: &str = "supervise-daemo";

pub(super) fn run_stop(mut words: CliWords) -> Result<(), CliError> {
    let (mut all, mut shutdown, mut quiet) = (false, false, false);
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("all") => all = words.switch_value()?,
            CliWord::Flag("shutdown") => shutdown = words.switch_value()?,
            CliWord::Flag("quiet") => quiet = words.switch_value()?,
            CliWord::Value(name) => {
                return Err(CliError::new(format!(
                    "unexpected argument {name:?}: stop ends the agent; to end a pod, use 'picolet delete pod NAME'"
                )));
            }
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    if all && shutdown {
        return Err(CliError::new("use only one of --all and --shutdown"));
    }
    let path = match (shutdown, all) {
        (true, _) => "/stop?shutdown=true",
        (false, true) => "/stop?all=true",
        (false, false) => "/stop",
    };
    // Units that call `stop --shutdown` name no socket: the configured one counts.
    let configured = || check::AgentPaths::from_flags(Vec::new()).ok();
    let place = (shutdown && !words.has_named_socket()).then(configured);
    let client = match place.flatten() {
        Some(place) => AgentClient::new(&place.socket),
        None => words.agent_client(),
    };
    // OpenRC itself asks for a shutdown: it is stopping services then.
    let service = if shutdown {
        None
    } else {
        find_supervised_service(&client)
    };
    let mut answer = match (all || shutdown) && !quiet {
        true => stop_with_progress(&client, path)?,
        false => client.send_request("POST", path, "")?,
    };
    let told = answer.copy_body_to(&mut io::stdout());
    if let Some(name) = service {
        stop_supervisor(name);
    }
    told
}

/// Finds the service of OpenRC whose supervisor would start this agent again, if there is one.
pub(super) fn find_supervised_service(client: &AgentClient) -> Option<&'static str> {
    let started = Path::new(STARTED);
    if !started.is_dir() {
        return None;
    }
    let look = client.clone().with_patience(PATIENCE);
    let health: AgentHealth = look.fetch_typed("/health").ok()?;
    service_of_process(health.pid, Path::new("/proc"), started)
}

/// Finds the service whose agent a process is. Source: proc_pid_status(5).
fn service_of_process(pid: u32, proc: &Path, started: &Path) -> Option<&'static str> {
    let status = fs::read_to_string(proc.join(format!("{pid}/status"))).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    let parent = fs::read_to_string(proc.join(parent.trim()).join("comm")).ok()?;
    let mut names = ["picolet", KUBELET].into_iter();
    let is_supervised = parent.trim_end() == SUPERVISOR;
    names.find(|name| is_supervised && started.join(name).exists())
}

/// Ends the supervisor too, before it starts the agent again, which takes it some seconds.
pub(super) fn stop_supervisor(name: &str) {
    if !matches!(
        check::run_program("rc-service", &[name, "stop"]),
        Some(Ok(_))
    ) {
        let _ = writeln!(
            io::stderr(),
            "warning: OpenRC will start the agent again. To prevent that: rc-service {name} stop"
        );
    }
}

/// Asks, and shows how many pods have ended until the answer comes.
fn stop_with_progress(client: &AgentClient, path: &str) -> Result<AgentAnswer, CliError> {
    // A failure of the display does not prevent the stop.
    let look = client.clone().with_patience(PATIENCE);
    let pods = count_running_pods(&look).unwrap_or(0);
    let asked = client.start_request("POST", path, "")?;
    let mut progress = ProgressDisplay::new("stop", false);
    // Bounded: by the agent's answer, or its end.
    loop {
        let mut answer = [libc::pollfd {
            fd: asked.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        if start::poll_fds(&mut answer, LOOK_MS).map_or(true, |ready| ready > 0) {
            drop(progress);
            return AgentClient::read_answer_head(asked);
        }
        // The agent may have ended already; then its answer is on its way.
        if pods > 0
            && let Ok(left) = count_running_pods(&look)
        {
            progress.show_step(TransferProgress {
                stage: "ending".into(),
                done: pods.saturating_sub(left),
                all: pods,
                parts: "pods",
                bytes: None,
            });
        }
    }
}

/// Counts the pods with a container that runs.
fn count_running_pods(client: &AgentClient) -> Result<u64, CliError> {
    let pods = client.fetch_items("/pods")?;
    let runs = |pod: &&Value| {
        ["initContainerStatuses", "containerStatuses"]
            .iter()
            .filter_map(|list| pod["status"][list].as_array())
            .flatten()
            .any(|container| container["state"]["running"].is_object())
    };
    let count = pods.iter().filter(runs).count();
    Ok(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_starts_an_agent_again() {
        let dir = crate::testing::unused_path("supervised");
        let put = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().expect("parent")).expect("directory");
            fs::write(path, text).expect("written");
        };
        put("proc/9/status", "Name:\tpicolet\nPid:\t9\nPPid:\t7\n");
        put("proc/7/comm", "supervise-daemo\n");
        put("started/sshd", "");
        let service = || service_of_process(9, &dir.join("proc"), &dir.join("started"));
        assert_eq!(service(), None, "neither of its services");
        put("started/kubelet", "");
        assert_eq!(service(), Some("kubelet"));
        put("started/picolet", "");
        assert_eq!(service(), Some("picolet"));
        // Somebody runs another agent by hand.
        put("proc/7/comm", "sh\n");
        assert_eq!(service(), None);
        put("proc/9/status", "Name:\tpicolet\n");
        assert_eq!(service(), None);
        assert_eq!(
            service_of_process(8, &dir.join("proc"), &dir.join("started")),
            None
        );
        fs::remove_dir_all(dir).expect("removed");
    }
}
