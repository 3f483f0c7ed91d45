//! The part of `/metrics` about containers: what kube-state-metrics tells in a cluster, for a board without it.
//! The names differ, for a cluster with kube-state-metrics has its names already. Series go with their pod.

use alloc::{boxed::Box, vec::Vec};

use super::exposition::{
    FamilyPage, MetricFamily, MetricType, SampleValue, SampleWriter, families,
};
use crate::api::pod_status::{ContainerStatus, PodStatus};

/// Figures of a container, from its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStatusFigures {
    /// Namespace of the pod.
    pub namespace: Box<str>,
    /// Name of the pod.
    pub pod: Box<str>,
    /// Name of the container.
    pub container: Box<str>,
    /// Number of restarts.
    pub restarts: u32,
    /// Reason why the container waits; empty if it does not.
    pub waiting: Box<str>,
}

/// Figures of a pod's containers, without ephemeral ones.
pub fn pod_container_figures<'a>(
    (namespace, pod): (&'a str, &'a str),
    status: &'a PodStatus,
) -> impl Iterator<Item = ContainerStatusFigures> + 'a {
    let all = status.init_container_statuses.iter();
    let all = all.chain(&status.container_statuses);
    all.map(move |container: &ContainerStatus| {
        let waiting = container.state.waiting.as_ref();
        ContainerStatusFigures {
            namespace: namespace.into(),
            pod: pod.into(),
            container: container.name.as_str().into(),
            restarts: container.restart_count,
            waiting: waiting.map_or("", |w| w.reason.as_str()).into(),
        }
    })
}

/// The page of all containers.
#[must_use]
pub fn containers_page(
    containers: Vec<ContainerStatusFigures>,
) -> FamilyPage<Vec<ContainerStatusFigures>> {
    FamilyPage::new(FAMILIES, containers)
}

/// Sorted by name.
const FAMILIES: &[MetricFamily<Vec<ContainerStatusFigures>>] = families![MetricFamily:
    "picolet_container_restarts_total" Counter "How often a container of a pod was started again."
        |rows, n, s| {
            write_each_container(rows, n, s, |row, labels, s| {
                s.write_sample(labels, SampleValue::Count(row.restarts.into()), None);
            })
        };
    "picolet_container_waiting" Gauge "Why a container does not run: 1 for each that waits."
        |rows, n, s| {
            write_each_container(rows, n, s, |row, labels, s| {
                if !row.waiting.is_empty() {
                    let mut labels = labels.to_vec();
                    labels.push(("reason", &row.waiting));
                    s.write_sample(&labels, SampleValue::Count(1), None);
                }
            })
        };
];

fn write_each_container(
    rows: &[ContainerStatusFigures],
    n: usize,
    samples: &mut SampleWriter<'_>,
    put: impl Fn(&ContainerStatusFigures, &[(&str, &str)], &mut SampleWriter<'_>),
) -> bool {
    let Some(row) = rows.get(n) else {
        return false;
    };
    let labels = [
        ("container", &*row.container),
        ("namespace", &*row.namespace),
        ("pod", &*row.pod),
    ];
    put(row, &labels, samples);
    true
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;
    use crate::api::pod_status::ContainerState;

    #[test]
    fn the_page() {
        let container = |name: &str, restart_count, reason: &str| {
            let mut state = ContainerState::default();
            if !reason.is_empty() {
                state.waiting.get_or_insert_default().reason = reason.into();
            }
            ContainerStatus {
                name: name.into(),
                restart_count,
                state,
                ..ContainerStatus::default()
            }
        };
        let status = PodStatus {
            init_container_statuses: alloc::vec![container("prepare", 0, "")],
            container_statuses: alloc::vec![
                container("app", 7, "CrashLoopBackOff"),
                container("side", 0, ""),
            ],
            ..PodStatus::default()
        };
        let text: String =
            containers_page(pod_container_figures(("default", "web"), &status).collect()).collect();
        super::super::sample::testing::golden("containers.txt", &text);
        assert_eq!(containers_page(Vec::new()).count(), 0);
    }
}
