//! A node of a cluster that boots in 1970, first without anybody to ask, then with its apiserver, then with a clock that is right
//! (TIME-01, TIME-03, TIME-05, TIME-06).

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};

use super::{
    Guest, LIMIT, call, expect,
    node::{self, drop_manifest},
    until, wait_running,
};
use crate::{
    Failure,
    chaos::APISERVER,
    demo::{Client, Double},
    stage::IMAGE,
    vm::{
        disk::{HOSTNAME, PAYLOAD},
        manifests,
        report::Line,
    },
    wait::Watch,
};

/// Where the control plane keeps its files.
const PLANE: &str = "/run/plane";
/// Seconds since 1970 of a clock that was never set.
const NEVER_SET: u64 = 86_400;
/// How long a node without a certificate waits at most until it asks again: 32 s and a tenth (BOOT-05).
const RETRY_LIMIT: Duration = Duration::from_millis(35_200);
/// From the apiserver's first answer to a node that is ready.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// From a clock that is right to dates that are.
const DATED_LIMIT: Duration = Duration::from_secs(30);
/// Tells the kernel that somebody keeps the clock right, as time services do: adjtimex(2) with ADJ_STATUS, ADJ_MAXERROR and
/// ADJ_ESTERROR, all of them 0.
const KEPT_RIGHT: &str =
    "my $b = pack('L x4 q4 l x164', 0x1c, 0, 0, 0, 0, 0); syscall(159, $b) >= 0 or die $!";
const PODS: &str = "/api/v1/namespaces/default/pods";

pub(super) fn run(guest: &mut Guest) {
    match plane() {
        Ok((mut plane, client)) => checks(guest, &mut plane, &client),
        Err(e) => guest.say(&Line::Failed(format!("the control plane: {e}"))),
    }
    guest.say(&Line::End);
}

/// A control plane, which nobody reaches yet.
fn plane() -> Result<(Double, Client), Failure> {
    let dir = Path::new(PLANE);
    fs::create_dir_all(dir)?;
    let program = Path::new(PAYLOAD).join(APISERVER);
    let (mut plane, client) = Double::start(&program, dir, &[])?;
    plane.set_down(&client, true)?;
    Ok((plane, client))
}

fn seconds() -> Result<u64, Failure> {
    Ok(call(&["date", "+%s"])?.parse()?)
}

fn checks(guest: &mut Guest, plane: &mut Double, client: &Client) {
    // What the clock says in truth, less the time since boot: what is dated before that is dated wrongly.
    let mut booted = 0;
    guest.step("The clock is set to 1970", || {
        let up: u64 = call(&["cut", "-d.", "-f1", "/proc/uptime"])?.parse()?;
        booted = seconds()?.saturating_sub(up + 1);
        call(&["date", "-s", &format!("@{NEVER_SET}")])?;
        call(&["date", "-u", "+%F"])
    });
    let off = booted.saturating_sub(NEVER_SET);
    node::set_up_with(
        guest,
        &format!(
            "podCIDR: 10.122.7.0/24\npicolet:\n  kubeconfig: /etc/picolet/kubelet.conf\n  \
             bootstrapKubeconfig: {PLANE}/bootstrap.kubeconfig\n"
        ),
    );
    let own = ["lively".to_owned()];
    guest.step("A pod runs while nobody answers", || {
        drop_manifest("lively", &manifests::lively("lively"))?;
        drop_manifest("waiting", &waiting())?;
        wait_running(&own)
    });
    guest.step(
        "Nothing of one starts that waits for a clock that is right",
        || {
            until(LIMIT, || {
                let events = call(&["picolet", "get", "events", "-A"])?;
                expect(&events, &events.contains("ClockUntrusted"), &true)
            })?;
            let pod = super::pod("waiting")?;
            expect("phase", &pod["status"]["phase"], &"Pending".into())?;
            Ok(String::new())
        },
    );
    guest.step("The apiserver is reached, and the node is ready", || {
        plane.set_down(client, false)?;
        let watch = Watch::start();
        // Nothing tells the node that it would be answered now.
        until(RETRY_LIMIT + READY_LIMIT, || is_ready(client))?;
        let seconds = watch.elapsed().as_secs_f64();
        let year = call(&["date", "-u", "+%Y"])?;
        expect("the year", &year, &"1970".to_owned())?;
        Ok(format!("after {seconds:.1} s"))
    });
    guest.step("A pod of the apiserver runs", || {
        client.post(PODS, &api_pod())?;
        until(LIMIT, || {
            let pod = client.get(&format!("{PODS}/of-api"))?;
            let main = &pod["status"]["containerStatuses"][0];
            expect("ready", &main["ready"], &true.into())
        })?;
        let dated = dates(client)?;
        let wrong = dated.iter().all(|(_, at)| *at < booted);
        expect("all is dated in 1970", &wrong, &true)?;
        Ok(format!("{} dates", dated.len()))
    });
    guest.step("A clock that is right corrects what was dated", || {
        let now = seconds()?;
        call(&["date", "-s", &format!("@{}", now + off)])?;
        call(&["perl", "-e", KEPT_RIGHT])?;
        let watch = Watch::start();
        until(DATED_LIMIT, || {
            let now = seconds()?;
            for (what, at) in dates(client)? {
                let in_time = at >= booted && at <= now;
                expect(&format!("{what}: {at}, {booted} to {now}"), &in_time, &true)?;
            }
            Ok(())
        })?;
        Ok(format!("after {:.1} s", watch.elapsed().as_secs_f64()))
    });
    guest.step(
        "What has waited for it runs, and nothing began anew",
        || {
            wait_running(&["lively".to_owned(), "waiting".to_owned()])?;
            until(READY_LIMIT, || is_ready(client))?;
            let pod = client.get(&format!("{PODS}/of-api"))?;
            let main = &pod["status"]["containerStatuses"][0];
            expect("restartCount", &main["restartCount"], &0.into())?;
            node::no_restarts()?;
            Ok(String::new())
        },
    );
}

fn waiting() -> String {
    let text = manifests::sleeper("waiting", 1_000_000);
    text.replacen(
        "{name: waiting}",
        "{name: waiting, annotations: {picolet/wait-for-clock: 'true'}}",
        1,
    )
}

fn api_pod() -> Value {
    json!({
        "metadata": {"name": "of-api"},
        "spec": {
            "nodeName": HOSTNAME,
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["sleep", "1000000"]}],
        },
    })
}

fn is_ready(client: &Client) -> Result<(), Failure> {
    let node = client.get(&format!("/api/v1/nodes/{HOSTNAME}"))?;
    let conditions = node["status"]["conditions"].as_array();
    let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
    let is_ready = conditions.is_some_and(|all| all.iter().any(ready));
    expect(&node["status"].to_string(), &is_ready, &true)
}

/// What the agent has dated, in the statuses of its pods and of its node, as seconds since 1970.
fn dates(client: &Client) -> Result<Vec<(String, u64)>, Failure> {
    let mut found = Vec::new();
    for pod in client.get(PODS)?["items"].as_array().into_iter().flatten() {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        collect(name, &pod["status"], &mut found)?;
    }
    let node = client.get(&format!("/api/v1/nodes/{HOSTNAME}"))?;
    collect("node", &node["status"]["conditions"], &mut found)?;
    expect("some are dated", &(found.len() > 10), &true)?;
    Ok(found)
}

fn collect(what: &str, value: &Value, found: &mut Vec<(String, u64)>) -> Result<(), Failure> {
    match value {
        Value::Array(all) => {
            for one in all {
                collect(what, one, found)?;
            }
        }
        Value::Object(all) => {
            for (key, one) in all {
                let is_date = ["Time", "startedAt", "finishedAt"];
                if one.is_string() && is_date.iter().any(|end| key.ends_with(end)) {
                    let text = one.as_str().unwrap_or_default();
                    let at = call(&["date", "-d", text, "+%s"])?.parse()?;
                    found.push((format!("{what} {key}"), at));
                } else {
                    collect(&format!("{what} {key}"), one, found)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}
