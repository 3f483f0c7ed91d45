//! The steps, in the order they are shown.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

use super::{
    Show,
    manifests::{self, HOST_PORT},
};
use crate::{
    Failure,
    containerd::Containerd,
    process::{kill, output, with_word},
    stage::{IMAGE, NODE, Stage},
    wait::until,
};

/// A pod that is not there by then does not come.
const START: Duration = Duration::from_secs(30);
/// First back-off of a crashing container (10 s) and the restart after it.
const BACK_OFF: Duration = Duration::from_secs(30);
/// Grace, teardown and the poll of the manifest directory.
const GONE: Duration = Duration::from_secs(40);
/// Most bytes read of an HTTP answer.
const ANSWER_LIMIT: u64 = 64 * 1024;
/// A pod's containers whose processes carry the mark.
const MARKED: [&str; 3] = ["sidecar", "server", "writer"];

/// `containerd`: the runtime, where it is not the agent itself. What only the agent's own backend has is left out then.
pub(super) fn all(
    show: &mut Show,
    stage: &mut Stage,
    mut containerd: Option<&mut Containerd>,
) -> Result<(), Failure> {
    show.step("The agent starts on directories of its own", || {
        stage.start_agent()?;
        Ok(format!("pid {}", stage.agent_pid().unwrap_or_default()))
    })?;
    match containerd {
        Some(_) => show.step("It finds the images of containerd", || {
            has_image(stage, "localhost/picolet/busybox")
        })?,
        None => import_images(show, stage)?,
    }
    begin(show, stage)?;
    use_pod(show, stage)?;
    crash(show, stage)?;
    restart_agent(show, stage)?;
    if let Some(containerd) = containerd.as_deref_mut() {
        restart_runtime(show, stage, containerd)?;
    }
    change_manifests(show, stage)?;
    end(show, stage)?;
    match containerd {
        Some(containerd) => show.step("containerd runs nothing of its pods any more", || {
            let listed = output(containerd.ctr().args(["tasks", "ls", "-q"]))?;
            match listed.trim() {
                "" => Ok(String::new()),
                left => Err(format!("left: {left}").into()),
            }
        }),
        None => Ok(()),
    }
}

fn import_images(show: &mut Show, stage: &Stage) -> Result<(), Failure> {
    show.step("An image is imported from an archive", || {
        let archive = stage.base.join("busybox.tar");
        stage.write_image(&archive, IMAGE)?;
        stage.client(&["image", "import", &archive.display().to_string()])?;
        has_image(stage, "localhost/picolet/busybox")
    })?;
    show.step(
        "Another one by dropping it into the image directory",
        || {
            stage.write_image(
                &stage.image_dir().join("dropped.tar"),
                "localhost/picolet/dropped:demo",
            )?;
            until(START, || has_image(stage, "localhost/picolet/dropped"))
        },
    )
}

fn begin(show: &mut Show, stage: &mut Stage) -> Result<(), Failure> {
    let mark = stage.mark.clone();
    show.step(
        "A pod with init container, sidecar and two containers becomes Running",
        || {
            stage.write_manifest("config.yaml", &manifests::config())?;
            stage.write_manifest("web.yaml", &manifests::web(&mark, "greeting"))?;
            until(START, || {
                let pod = stage.pod("web")?;
                expect(&pod["status"]["phase"], "Running")?;
                all_ready(&pod)?;
                Ok(format!("pod IP {}", text(&pod["status"]["podIP"])))
            })
        },
    )?;
    show.step("The init container ended before the others began", || {
        let pod = stage.pod("web")?;
        let done = &status(&pod, "initContainerStatuses", "prepare")?["state"]["terminated"];
        expect(&done["exitCode"], 0)?;
        let finished = text(&done["finishedAt"]);
        let started =
            text(&status(&pod, "containerStatuses", "writer")?["state"]["running"]["startedAt"]);
        if finished.is_empty() || finished > started {
            return Err(
                format!("it finished at {finished:?}, the writer started at {started:?}").into(),
            );
        }
        Ok(String::new())
    })
}

fn has_image(stage: &Stage, name: &str) -> Result<String, Failure> {
    let images = stage.client(&["get", "images"])?;
    if images.contains(name) {
        Ok(name.to_owned())
    } else {
        Err(format!("get images does not show {name}").into())
    }
}

fn use_pod(show: &mut Show, stage: &mut Stage) -> Result<(), Failure> {
    show.step("get pods", || {
        let table = stage.client(&["get", "pods"])?;
        let row = table
            .lines()
            .find(|line| line.starts_with(&format!("web-{NODE}")))
            .ok_or("the table has no row for the pod")?;
        let cells: Vec<_> = row.split_whitespace().collect();
        // The sidecar counts among the ready containers, as it does for kubectl.
        if cells.get(1..3) != Some(&["3/3", "Running"]) {
            return Err(format!("unexpected row: {row}").into());
        }
        Ok(cells.join(" "))
    })?;
    show.step(
        "logs: environment from a ConfigMap and the downward API",
        || {
            let ip = text(&stage.pod("web")?["status"]["podIP"]);
            let log = logs(stage, "writer")?;
            let first = log.lines().next().unwrap_or_default();
            let wanted = format!("hello from {ip} on {NODE} line 1");
            if first == wanted {
                Ok(wanted)
            } else {
                Err(format!("expected {wanted:?}, the log begins with {first:?}").into())
            }
        },
    )?;
    show.step(
        "exec: downward API volume, ConfigMap through a subPath, exit code",
        || {
            for (file, wanted) in [
                ("/etc/podinfo/labels", "app=\"demo\""),
                ("/etc/podinfo/memory", "32"),
                ("/etc/motd", "served from a ConfigMap beside the pod"),
            ] {
                let said = exec(stage, "writer", &["cat", file])?;
                if said.trim_end() != wanted {
                    return Err(format!("{file} holds {said:?}, not {wanted:?}").into());
                }
            }
            match exec(stage, "writer", &["sh", "-c", "exit 3"]) {
                Err(e) if e.to_string().contains("exit status: 3") => Ok(String::new()),
                Err(e) => Err(format!("exit 3 came back as: {e}").into()),
                Ok(_) => Err("exit 3 came back as success".into()),
            }
        },
    )?;
    show.step(
        "HTTP from the host to the pod's IP, content shared by an emptyDir",
        || {
            let ip: IpAddr = text(&stage.pod("web")?["status"]["podIP"]).parse()?;
            let page = http(SocketAddr::new(ip, 8080), "/")?;
            if page.trim_end() != format!("prepared for web-{NODE}") {
                return Err(format!("unexpected page: {page:?}").into());
            }
            // Written by one container, served by the other.
            let count: u64 = until(START, || {
                Ok(http(SocketAddr::new(ip, 8080), "/count")?.trim().parse()?)
            })?;
            Ok(format!("{} and count {count}", page.trim_end()))
        },
    )?;
    show.step("HTTP through the hostPort", || {
        // A machine without any network still has itself.
        let ip = match text(&stage.pod("web")?["status"]["hostIP"]) {
            none if none.is_empty() => IpAddr::from([127, 0, 0, 1]),
            ip => ip.parse()?,
        };
        let page = http(SocketAddr::new(ip, HOST_PORT), "/")?;
        Ok(format!("{ip}:{HOST_PORT} says {:?}", page.trim_end()))
    })
}

fn crash(show: &mut Show, stage: &mut Stage) -> Result<(), Failure> {
    let others = pids(stage, &["sidecar", "writer"])?;
    show.step("A container that is killed is restarted at once", || {
        kill_container(stage, "server")?;
        restarted(stage, "server", 1, START)
    })?;
    show.step("Killed again it waits in CrashLoopBackOff", || {
        kill_container(stage, "server")?;
        until(START, || {
            let pod = stage.pod("web")?;
            let waiting = &status(&pod, "containerStatuses", "server")?["state"]["waiting"];
            expect(&waiting["reason"], "CrashLoopBackOff")?;
            Ok(text(&waiting["message"]))
        })
    })?;
    show.step("and runs again after the back-off", || {
        restarted(stage, "server", 2, BACK_OFF)
    })?;
    show.step("Its neighbours never noticed", || same_pids(stage, &others))
}

fn kill_container(stage: &Stage, container: &str) -> Result<(), Failure> {
    let pid = pid(stage, container)?;
    kill(pid)?;
    until(START, || {
        if with_word(&word(stage, container)).contains(&pid) {
            return Err(format!("process {pid} does not end").into());
        }
        Ok(())
    })
}

fn restarted(
    stage: &Stage,
    container: &str,
    count: u64,
    limit: Duration,
) -> Result<String, Failure> {
    until(limit, || {
        let pod = stage.pod("web")?;
        let status = status(&pod, "containerStatuses", container)?;
        expect(&status["restartCount"], count)?;
        if status["state"]["running"].is_null() {
            return Err(format!("{container} is not running: {}", status["state"]).into());
        }
        Ok(format!(
            "restart {count}, last exit code {}",
            status["lastState"]["terminated"]["exitCode"]
        ))
    })
}

fn restart_agent(show: &mut Show, stage: &mut Stage) -> Result<(), Failure> {
    let signal = stage.base.join("signal");
    let mark = stage.mark.clone();
    show.step("A second pod runs until it is told to end", || {
        fs::create_dir(&signal)?;
        stage.write_manifest(
            "job.yaml",
            &manifests::job(&mark, &signal.display().to_string()),
        )?;
        until(START, || {
            expect(&stage.pod("job")?["status"]["phase"], "Running")?;
            pid(stage, "job").map(|pid| format!("pid {pid}"))
        })
    })?;
    let before = pids(stage, &MARKED)?;
    let restarts = restart_counts(stage)?;
    show.step("The agent is killed with SIGKILL; its pods stay", || {
        stage.kill_agent()?;
        same_pids(stage, &before)
    })?;
    show.step(
        "While nobody watches, the second pod ends with code 7",
        || {
            fs::write(signal.join("now"), "")?;
            until(START, || {
                if with_word(&word(stage, "job")).is_empty() {
                    Ok(String::new())
                } else {
                    Err("its process still runs".into())
                }
            })
        },
    )?;
    show.step("The next agent finds every process again", || {
        stage.start_agent()?;
        until(START, || {
            let pod = stage.pod("web")?;
            expect(&pod["status"]["phase"], "Running")?;
            all_ready(&pod)
        })?;
        if restart_counts(stage)? != restarts {
            return Err("a restart was counted that never happened".into());
        }
        same_pids(stage, &before)
    })?;
    show.step(
        "and the exit that happened meanwhile, with its code",
        || {
            until(START, || {
                let pod = stage.pod("job")?;
                expect(&pod["status"]["phase"], "Failed")?;
                let ended = &status(&pod, "containerStatuses", "main")?["state"]["terminated"];
                expect(&ended["exitCode"], 7)?;
                Ok(format!("phase Failed, exit code {}", ended["exitCode"]))
            })
        },
    )?;
    show.step("No log line was lost", || {
        let log = logs(stage, "writer")?;
        for (n, line) in log.lines().enumerate() {
            if !line.ends_with(&format!(" line {}", n + 1)) {
                return Err(format!("line {} reads {line:?}", n + 1).into());
            }
        }
        Ok(format!("{} consecutive lines", log.lines().count()))
    })
}

fn restart_runtime(
    show: &mut Show,
    stage: &Stage,
    containerd: &mut Containerd,
) -> Result<(), Failure> {
    let (before, restarts) = (pids(stage, &MARKED)?, restart_counts(stage)?);
    show.step("containerd is killed with SIGKILL; its pods stay", || {
        containerd.kill();
        let same = same_pids(stage, &before)?;
        expect(&stage.pod("web")?["status"]["phase"], "Running")?;
        Ok(same)
    })?;
    show.step("It is started again, and nothing is started anew", || {
        containerd.run();
        until(START, || {
            let said = exec(stage, "writer", &["cat", "/etc/podinfo/memory"])?;
            match said.trim_end() {
                "32" => Ok(()),
                odd => Err(format!("the container says {odd:?}").into()),
            }
        })?;
        if restart_counts(stage)? != restarts {
            return Err("a restart was counted that never happened".into());
        }
        same_pids(stage, &before)
    })
}

fn change_manifests(show: &mut Show, stage: &mut Stage) -> Result<(), Failure> {
    let mark = stage.mark.clone();
    show.step("A manifest is edited: the pod is replaced", || {
        let old = text(&stage.pod("web")?["metadata"]["uid"]);
        stage.write_manifest("web.yaml", &manifests::web(&mark, "motd"))?;
        until(GONE, || {
            let pod = stage.pod("web")?;
            expect(&pod["status"]["phase"], "Running")?;
            all_ready(&pod)?;
            let new = text(&pod["metadata"]["uid"]);
            let log = logs(stage, "writer")?;
            if new == old || !log.starts_with("served from a ConfigMap") {
                return Err("the old pod is still there".into());
            }
            Ok(format!("uid {old} became {new}"))
        })
    })?;
    let running = pids(stage, &MARKED)?;
    show.step("A broken manifest is named and harms nobody", || {
        stage.write_manifest("broken.yaml", &manifests::broken())?;
        let line = until(START, || {
            stage
                .agent_log()
                .lines()
                .find(|line| line.contains("broken.yaml"))
                .map(str::to_owned)
                .ok_or_else(|| "the agent does not speak of broken.yaml".into())
        })?;
        same_pids(stage, &running)?;
        Ok(line.trim().to_owned())
    })?;
    show.step("A manifest is removed: the pod ends", || {
        stage.remove_manifest("broken.yaml")?;
        stage.remove_manifest("web.yaml")?;
        until(GONE, || {
            for container in MARKED {
                if !with_word(&word(stage, container)).is_empty() {
                    return Err(format!("{container} still runs").into());
                }
            }
            match stage.pod("web") {
                Ok(_) => Err("get pods still shows it".into()),
                Err(_) => Ok(String::new()),
            }
        })
    })
}

fn end(show: &mut Show, stage: &mut Stage) -> Result<(), Failure> {
    show.step("stop --all ends what is left, then the agent", || {
        stage.stop_all()?;
        Ok(String::new())
    })?;
    show.step("Nothing is left behind", || {
        stage.dismantle()?;
        // The kernel takes a namespace's interfaces down a moment after its last process.
        until(START, || {
            let traces = stage.traces();
            if traces.is_empty() {
                Ok(())
            } else {
                Err(traces.join(", ").into())
            }
        })?;
        stage.remove_dirs()?;
        Ok("no process, mount, cgroup, interface, filter rule or directory".into())
    })
}

fn logs(stage: &Stage, container: &str) -> Result<String, Failure> {
    stage.client(&["logs", &format!("web-{NODE}"), "-c", container])
}

fn exec(stage: &Stage, container: &str, command: &[&str]) -> Result<String, Failure> {
    let pod = format!("web-{NODE}");
    let mut words = vec!["exec", &pod, "-c", container, "--"];
    words.extend_from_slice(command);
    stage.client(&words)
}

/// The word that a marked container's process has on its command line.
fn word(stage: &Stage, container: &str) -> String {
    format!("{}-{container}", stage.mark)
}

/// The one process of a marked container. A web server has another one for each answer, as long as that takes.
fn pid(stage: &Stage, container: &str) -> Result<u32, Failure> {
    until(START, || match with_word(&word(stage, container))[..] {
        [pid] => Ok(pid),
        ref many => Err(format!("{container} has the processes {many:?}, not one").into()),
    })
}

fn pids(
    stage: &Stage,
    containers: &[&'static str],
) -> Result<BTreeMap<&'static str, u32>, Failure> {
    // A shell that is just forking has its word twice.
    containers
        .iter()
        .map(|name| Ok((*name, until(START, || pid(stage, name))?)))
        .collect()
}

fn same_pids(stage: &Stage, before: &BTreeMap<&'static str, u32>) -> Result<String, Failure> {
    let names: Vec<_> = before.keys().copied().collect();
    let now = pids(stage, &names)?;
    if now == *before {
        Ok(before
            .iter()
            .map(|(name, pid)| format!("{name} {pid}"))
            .collect::<Vec<_>>()
            .join(", "))
    } else {
        Err(format!("processes were {before:?}, are {now:?}").into())
    }
}

fn restart_counts(stage: &Stage) -> Result<Vec<u64>, Failure> {
    let pod = stage.pod("web")?;
    Ok(["initContainerStatuses", "containerStatuses"]
        .iter()
        .flat_map(|list| pod["status"][list].as_array().cloned().unwrap_or_default())
        .map(|status| status["restartCount"].as_u64().unwrap_or_default())
        .collect())
}

fn all_ready(pod: &Value) -> Result<(), Failure> {
    for name in ["server", "writer"] {
        expect(&status(pod, "containerStatuses", name)?["ready"], true)?;
    }
    Ok(())
}

fn status<'a>(pod: &'a Value, list: &str, container: &str) -> Result<&'a Value, Failure> {
    pod["status"][list]
        .as_array()
        .into_iter()
        .flatten()
        .find(|status| status["name"] == container)
        .ok_or_else(|| format!("the pod's {list} has no {container}").into())
}

fn expect(found: &Value, wanted: impl Into<Value>) -> Result<(), Failure> {
    let wanted = wanted.into();
    if *found == wanted {
        Ok(())
    } else {
        Err(format!("expected {wanted}, found {found}").into())
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Body of `GET path`; anything but status 200 is an error.
fn http(address: SocketAddr, path: &str) -> Result<String, Failure> {
    let limit = Duration::from_secs(5);
    let mut stream =
        TcpStream::connect_timeout(&address, limit).map_err(|e| format!("{address}: {e}"))?;
    stream.set_read_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_LIMIT).read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or("the answer has no end of its head")?;
    let first = head.lines().next().unwrap_or_default();
    if first.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(format!("{address}{path}: {first}").into())
    }
}
