//! Figures and counters of an agent at work.

use core::time::Duration;

use serde_json::{Value, json};

use super::world::{IMAGE, World, fails, manifest};
use crate::{
    api::stats::StatsDetail,
    runtime::{
        RuntimeError,
        fake::{Fault, Op, Trouble},
    },
    server::backend::{MetricsEndpoint, TextPieces},
};

fn asked(world: &World, figures: MetricsEndpoint) -> Result<TextPieces, u16> {
    let page = world.wait(world.metrics.metrics_page(figures));
    page.map_err(|refusal| refusal.status)
}

fn text(world: &World, figures: MetricsEndpoint) -> String {
    asked(world, figures).expect("served").collect()
}

fn line(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "{line} in {text}");
}

#[test]
fn images_of_volumes_are_counted() {
    // OAV-03
    let world = World::new();
    world.fake.offer_image("model:1");
    let failed = RuntimeError::Failed("ImageVolumeMountFailed: no such directory".into());
    world.fake.add_fault(Fault {
        op: Op::CreateContainer,
        target: Some("reads".into()),
        times: 1,
        trouble: Trouble::Fails(failed),
    });
    let volume = |name: &str| json!({"name": name, "image": {"reference": "model:1"}});
    let mount = |name: &str, at: &str| json!({"name": name, "mountPath": at});
    let container = |name: &str, mounts: Value| json!({"name": name, "image": IMAGE, "command": ["sleep"], "volumeMounts": mounts});
    let spec = json!({
        "volumes": [volume("v"), volume("w"), volume("unused")],
        "containers": [
            container("none", json!([])),
            container("reads", json!([mount("v", "/a"), mount("v", "/b"), mount("w", "/c")])),
        ],
    });
    world.apply(&[manifest("a", spec)]);
    world.until("all run", |w| {
        let status = w.status("a").unwrap_or_default();
        let mut all = status.container_statuses.iter();
        all.len() == 2 && all.all(|c| c.state.running.is_some())
    });
    let text = text(&world, MetricsEndpoint::Own);
    for wanted in [
        "kubelet_image_volume_requested_total 4",
        "kubelet_image_volume_mounted_succeed_total 2",
        "kubelet_image_volume_mounted_errors_total 1",
    ] {
        line(&text, wanted);
    }
}

#[test]
fn work_is_counted() {
    // MET-02 MET-03 MET-05
    let world = World::new();
    world.fake.add_fault(fails(Op::RunPodSandbox, 1));
    world.apply(&[manifest("a", json!({})), manifest("b", json!({}))]);
    let page = || text(&world, MetricsEndpoint::Own);
    world.until("both run", |_| {
        page().contains("\nkubelet_running_pods 2\n")
    });
    world.advance(Duration::from_secs(3));
    let text = page();
    for wanted in [
        "kubelet_desired_pods{static=\"true\"} 2",
        "kubelet_active_pods{static=\"true\"} 2",
        "kubelet_working_pods{config=\"desired\",lifecycle=\"sync\",static=\"true\"} 2",
        "kubelet_running_containers{container_state=\"running\"} 2",
        "kubelet_started_pods_total 3",
        "kubelet_started_pods_errors_total 1",
        "kubelet_started_containers_total{container_type=\"container\"} 2",
        "kubelet_pod_start_duration_seconds_count 2",
        "kubelet_pod_worker_start_duration_seconds_count 2",
        "kubelet_containers_per_pod_count_sum 2",
        "kubelet_containers_per_pod_count_count 2",
        "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1",
        "picolet_pod_slots{state=\"taken\"} 2",
    ] {
        line(&text, wanted);
    }
    assert!(!world.agent.borrow().pods().some_start());
    line(
        &self::text(&world, MetricsEndpoint::Slis),
        "kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 1",
    );
}

#[test]
fn rates_come_with_the_second_question() {
    // MET-07 MET-12 MET-14
    let world = World::new();
    world.apply(&[manifest("a", json!({}))]);
    world.advance(Duration::from_secs(5));
    let cpu = || -> Value {
        let text = text(&world, MetricsEndpoint::Summary(StatsDetail::Basic));
        let summary: Value = serde_json::from_str(&text).expect("JSON");
        let pods = summary["pods"].as_array().expect("pods").clone();
        assert_eq!(pods.len(), 1, "{text}");
        pods[0]["containers"][0]["cpu"].clone()
    };
    assert_eq!(cpu()["usageNanoCores"], Value::Null);
    world.advance(Duration::from_secs(10));
    // Every container of the fake uses this much.
    assert_eq!(cpu()["usageNanoCores"], 10_000_000);
    let text = text(&world, MetricsEndpoint::Resource);
    assert!(text.contains("container_cpu_usage_seconds_total{container="));
    line(&text, "resource_scrape_error 0");
    world.fake.add_fault(fails(Op::ListPodUsage, 1));
    world.advance(Duration::from_secs(2));
    line(
        &self::text(&world, MetricsEndpoint::Resource),
        "resource_scrape_error 1",
    );
}

#[test]
fn few_read_at_a_time() {
    // SRV-16
    let world = World::new();
    let mut readers: Vec<TextPieces> = (0..4)
        .map(|_| asked(&world, MetricsEndpoint::Resource).expect("served"))
        .collect();
    assert_eq!(asked(&world, MetricsEndpoint::Own).err(), Some(429));
    readers.pop();
    assert!(asked(&world, MetricsEndpoint::Own).is_ok());
}
