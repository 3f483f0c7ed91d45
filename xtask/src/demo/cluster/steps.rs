//! The steps while everything works.

use std::time::Duration;

use serde_json::Value;

use super::{
    objects::{self, OTHER_IMAGE},
    world::{GONE, PODS, START, World, expect, is_ready, is_true, name, pod_path, runs, text, uid},
};
use crate::{
    Failure,
    demo::Show,
    stage::{IMAGE, NODE},
    wait::until,
};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// The service account of the namespace is made by a controller that is just starting.
const ACCOUNT: Duration = Duration::from_secs(60);
/// An edited ConfigMap is in its volumes by then.
const FOLLOWED: Duration = Duration::from_secs(120);
/// What stays until the end of the demo.
pub(super) const STATIC: &str = "fixed";
pub(super) const KEPT: &str = "kept";

pub(super) fn all(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    join(show, world)?;
    static_pod(show, world)?;
    if world.plane.runs_workloads() {
        deployment(show, world)?;
        daemon_set(show, world)?;
        job(show, world)?;
    }
    with_objects(show, world)?;
    evict(show, world)
}

fn join(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    show.step("The agent joins by a bootstrap token", || {
        let kubeconfig = world.stage.base.join("kubeconfig").display().to_string();
        let bootstrap = world.plane.bootstrap_kubeconfig().display().to_string();
        let flags = [
            "--kubeconfig",
            &kubeconfig,
            "--bootstrap-kubeconfig",
            &bootstrap,
        ];
        world.stage.flags = flags.map(str::to_owned).to_vec();
        world.stage.start_agent()?;
        Ok(format!(
            "pid {}",
            world.stage.agent_pid().unwrap_or_default()
        ))
    })?;
    show.step("Its node is registered and becomes Ready", || {
        until(START, || {
            let node = world.node()?;
            is_true(&node, "Ready")?;
            let cidr = text(&node["spec"]["podCIDR"]);
            if cidr.is_empty() {
                return Err("it has no subnet yet".into());
            }
            let info = &node["status"]["nodeInfo"];
            Ok(format!(
                "{}, {}, pods in {cidr}",
                text(&info["kubeletVersion"]),
                text(&info["containerRuntimeVersion"])
            ))
        })
    })?;
    show_table(show, world, &["get", "nodes", "-o", "wide"])?;
    show.step("The images come from archives", || {
        for (file, image) in [("busybox.tar", IMAGE), ("dropped.tar", OTHER_IMAGE)] {
            let archive = world.stage.base.join(file);
            world.stage.write_image(&archive, image)?;
            let archive = archive.display().to_string();
            world.stage.client(&["image", "import", &archive])?;
        }
        Ok(format!("{IMAGE}, {OTHER_IMAGE}"))
    })?;
    show.step("The namespace has its service account", || {
        until(ACCOUNT, || {
            world
                .plane
                .client
                .get("/api/v1/namespaces/default/serviceaccounts/default")
                .map(|_| String::new())
        })
    })
}

/// A table of `kubectl`, where there is one.
pub(super) fn show_table(
    show: &mut Show,
    world: &World<'_>,
    words: &[&str],
) -> Result<(), Failure> {
    if let Some(table) = world.plane.kubectl(words)? {
        show.table(&format!("kubectl {}", words.join(" ")), &table);
    }
    Ok(())
}

fn static_pod(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    let mark = world.stage.mark.clone();
    let mirror = format!("{STATIC}-{NODE}");
    let file = format!("{STATIC}.yaml");
    show.step("A static pod has a mirror in the API", || {
        let manifest = objects::static_pod(&mark, STATIC, "one");
        world.stage.write_manifest(&file, &manifest)?;
        until(START, || {
            let pod = world.pod(&mirror)?;
            is_ready(&pod)?;
            let notes = &pod["metadata"]["annotations"];
            Ok(format!(
                "{mirror}, {}",
                text(&notes["kubernetes.io/config.source"])
            ))
        })
    })?;
    show.step(
        "Its mirror is deleted: it goes on, the mirror comes back",
        || {
            let (before, pids) = (world.pod(&mirror)?, world.processes(STATIC, 1)?);
            world.delete_pod(&mirror, None)?;
            until(GONE, || {
                let pod = world.pod(&mirror)?;
                if uid(&pod) == uid(&before) {
                    return Err("the old mirror is still there".into());
                }
                is_ready(&pod)?;
                if runs(&[pod]) != runs(std::slice::from_ref(&before)) {
                    return Err("its container is another one".into());
                }
                Ok(())
            })?;
            if world.processes(STATIC, 1)? != pids {
                return Err(format!("its process is not {pids:?} any more").into());
            }
            Ok(format!("process {pids:?}"))
        },
    )?;
    show.step(
        "Its file is edited: it is replaced, and so is the mirror",
        || {
            let before = runs(&[world.pod(&mirror)?]);
            let manifest = objects::static_pod(&mark, STATIC, "two");
            world.stage.write_manifest(&file, &manifest)?;
            until(GONE, || {
                let pod = world.pod(&mirror)?;
                is_ready(&pod)?;
                expect(&pod["spec"]["containers"][0]["env"][0]["value"], "two")?;
                if runs(&[pod]) == before {
                    return Err("its container is the old one".into());
                }
                world.processes(STATIC, 1).map(|_| String::new())
            })
        },
    )
}

fn deployment(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    const WEB: &str = "web";
    let mark = world.stage.mark.clone();
    let path = format!("{DEPLOYMENTS}/{WEB}");
    show.step("A Deployment of three", || {
        let wanted = objects::deployment(&mark, WEB, 3);
        world.plane.client.post(DEPLOYMENTS, &wanted)?;
        let pods = world.ready(WEB, 3)?;
        let cidr = text(&world.node()?["spec"]["podCIDR"]);
        let subnet = cidr.rsplit_once('.').ok_or("the node has no subnet")?.0;
        for pod in &pods {
            says(world, &name(pod), "one")?;
            let ip = text(&pod["status"]["podIP"]);
            // Both control planes give 256 addresses to a node.
            if !ip.starts_with(&format!("{subnet}.")) {
                return Err(format!("{ip} is not in the node's subnet {cidr}").into());
            }
        }
        world.processes(WEB, 3)?;
        Ok(addresses(&pods))
    })?;
    show_table(show, world, &["get", "pods", "-o", "wide"])?;
    show.step(
        "Image and environment are updated: three are always ready",
        || {
            let before = runs(&world.pods(WEB)?);
            world
                .plane
                .client
                .patch(&path, &objects::second_version(&mark, WEB))?;
            let pods = until(GONE, || {
                let pods = world.pods(WEB)?;
                let ready = pods.iter().filter(|pod| is_ready(pod).is_ok()).count();
                if ready < 3 {
                    return Ok(Err(format!("only {ready} are ready")));
                }
                if pods.len() != 3 || pods.iter().any(|pod| before.contains_key(&name(pod))) {
                    return Err("the old ones are still there".into());
                }
                Ok(Ok(pods))
            })??;
            for pod in &pods {
                expect(&pod["status"]["containerStatuses"][0]["image"], OTHER_IMAGE)?;
                says(world, &name(pod), "two")?;
            }
            until(GONE, || {
                let deployment = world.plane.client.get(&path)?;
                expect(&deployment["status"]["updatedReplicas"], 3)?;
                expect(&deployment["status"]["availableReplicas"], 3)?;
                world.processes(WEB, 3)
            })?;
            Ok(addresses(&pods))
        },
    )?;
    show.step("It is scaled to five, then to one", || {
        for count in [5, 1] {
            let scaled = serde_json::json!({"spec": {"replicas": count}});
            world.plane.client.patch(&path, &scaled)?;
            world.ready(WEB, count)?;
            until(GONE, || world.processes(WEB, count))?;
        }
        Ok(String::new())
    })?;
    show.step("It is deleted: nothing of it is left", || {
        world.plane.client.delete(&path, None)?;
        world.gone(WEB)?;
        Ok(String::new())
    })
}

/// What the container's environment has, and where it is.
fn says(world: &World<'_>, pod: &str, version: &str) -> Result<(), Failure> {
    let env = world.exec(pod, &["env"])?;
    for line in [format!("VERSION={version}"), format!("NODE={NODE}")] {
        if !env.lines().any(|l| l == line) {
            return Err(format!("{pod} does not have {line}: {env}").into());
        }
    }
    Ok(())
}

fn addresses(pods: &[Value]) -> String {
    let all: Vec<String> = pods.iter().map(|p| text(&p["status"]["podIP"])).collect();
    all.join(", ")
}

fn daemon_set(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    const AGENTS: &str = "agents";
    let path = format!("{DAEMON_SETS}/{AGENTS}");
    let mark = world.stage.mark.clone();
    show.step("A DaemonSet has a pod on the node", || {
        let wanted = objects::daemon_set(&mark, AGENTS);
        world.plane.client.post(DAEMON_SETS, &wanted)?;
        let pods = world.ready(AGENTS, 1)?;
        until(START, || {
            let set = world.plane.client.get(&path)?;
            expect(&set["status"]["numberReady"], 1)
        })?;
        Ok(name(&pods[0]))
    })?;
    show.step("Its pod is deleted: another one comes", || {
        let before = world.ready(AGENTS, 1)?;
        world.delete_pod(&name(&before[0]), None)?;
        until(GONE, || {
            let pods = world.ready(AGENTS, 1)?;
            if uid(&pods[0]) == uid(&before[0]) {
                return Err("the old one is still there".into());
            }
            world.processes(AGENTS, 1)?;
            Ok(name(&pods[0]))
        })
    })?;
    show.step("It is deleted with its pod", || {
        world.plane.client.delete(&path, None)?;
        world.gone(AGENTS)?;
        Ok(String::new())
    })
}

fn job(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    const BATCH: &str = "batch";
    let mark = world.stage.mark.clone();
    let path = format!("{JOBS}/{BATCH}");
    show.step("A Job of two completes", || {
        world.plane.client.post(JOBS, &objects::job(&mark, BATCH))?;
        until(START, || {
            let job = world.plane.client.get(&path)?;
            is_true(&job, "Complete")?;
            expect(&job["status"]["succeeded"], 2)
        })?;
        for pod in world.pods(BATCH)? {
            expect(&pod["status"]["phase"], "Succeeded")?;
        }
        Ok(String::new())
    })?;
    show.step("It is deleted with its pods", || {
        world.plane.client.delete(&path, None)?;
        world.gone(BATCH)?;
        Ok(String::new())
    })
}

fn with_objects(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    const BOX: &str = "box";
    let mark = world.stage.mark.clone();
    let client = &world.plane.client;
    client.post(
        "/api/v1/namespaces/default/configmaps",
        &objects::config_map("first"),
    )?;
    client.post("/api/v1/namespaces/default/secrets", &objects::secret())?;
    client.post(PODS, &objects::with_objects(&mark, BOX))?;
    show.step("A pod with ConfigMap, Secret and projected token", || {
        until(START, || is_ready(&world.pod(BOX)?).map(|()| String::new()))?;
        let env = world.exec(BOX, &["env"])?;
        for line in ["GREETING=hello", "PASSWORD=not told"] {
            if !env.lines().any(|l| l == line) {
                return Err(format!("it does not have {line}: {env}").into());
            }
        }
        for (file, wanted) in [
            ("/settings/motd", "first"),
            ("/password/password", "not told"),
            ("/token/name", BOX),
        ] {
            expect(&world.exec(BOX, &["cat", file])?.trim_end().into(), wanted)?;
        }
        let token = world.exec(BOX, &["cat", "/token/token"])?;
        let review = world.plane.review(token.trim())?;
        expect(&review["authenticated"], true)?;
        let user = text(&review["user"]["username"]);
        expect(
            &user.clone().into(),
            "system:serviceaccount:default:default",
        )?;
        Ok(format!("the token is of {user}"))
    })?;
    show.step("The ConfigMap is edited: its volume follows", || {
        let edited = objects::config_map("second");
        world
            .plane
            .client
            .patch("/api/v1/namespaces/default/configmaps/settings", &edited)?;
        until(FOLLOWED, || {
            let said = world.exec(BOX, &["cat", "/settings/motd"])?;
            expect(&said.trim_end().into(), "second").map(|()| String::new())
        })
    })?;
    world.delete_pod(BOX, None)?;
    world.gone(BOX)
}

fn evict(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    const GUEST: &str = "guest";
    const STUBBORN: &str = "stubborn";
    let mark = world.stage.mark.clone();
    show.step("A pod is evicted", || {
        world.plane.client.post(PODS, &objects::pod(&mark, GUEST))?;
        world.ready(GUEST, 1)?;
        let path = format!("{}/eviction", pod_path(GUEST));
        world.plane.client.post(&path, &objects::eviction(GUEST))?;
        world.gone(GUEST)?;
        Ok(String::new())
    })?;
    show.step(
        "A pod that does not end is deleted by force, and comes again",
        || {
            let wanted = objects::stubborn(&mark, STUBBORN);
            world.plane.client.post(PODS, &wanted)?;
            world.ready(STUBBORN, 1)?;
            let before = world.processes(STUBBORN, 1)?;
            world.delete_pod(STUBBORN, Some(0))?;
            if !world.plane.client.is_gone(&pod_path(STUBBORN))? {
                return Err("the API still has it".into());
            }
            world.plane.client.post(PODS, &wanted)?;
            world.ready(STUBBORN, 1)?;
            let after = until(GONE, || world.processes(STUBBORN, 1))?;
            if after == before {
                return Err("its process is the old one".into());
            }
            world.delete_pod(STUBBORN, Some(0))?;
            world.gone(STUBBORN)?;
            Ok(String::new())
        },
    )?;
    show.step("A pod without an owner stays for what comes", || {
        world.plane.client.post(PODS, &objects::pod(&mark, KEPT))?;
        let pods = world.ready(KEPT, 1)?;
        Ok(addresses(&pods))
    })
}
