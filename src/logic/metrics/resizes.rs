//! Counts of resizes (RSZ-33).

use alloc::collections::BTreeMap;
use core::time::Duration;

use super::{
    exposition::{SampleValue, SampleWriter},
    histogram::{BucketBounds, Histogram},
};
use crate::{
    api::Quantity,
    pod_resources::{AmountKind, amount_in_base_unit},
    qos::{CPU, MEMORY},
    resize::{ContainerResources, PodResources},
};

/// A kubelet's buckets of resizes, in milliseconds; one of them counts as a second.
const MILLISECONDS: BucketBounds<14> = [
    ("10", 10_000_000_000),
    ("50", 50_000_000_000),
    ("100", 100_000_000_000),
    ("500", 500_000_000_000),
    ("1000", 1_000_000_000_000),
    ("2000", 2_000_000_000_000),
    ("5000", 5_000_000_000_000),
    ("10000", 10_000_000_000_000),
    ("20000", 20_000_000_000_000),
    ("30000", 30_000_000_000_000),
    ("60000", 60_000_000_000_000),
    ("120000", 120_000_000_000_000),
    ("300000", 300_000_000_000_000),
    ("600000", 600_000_000_000_000),
];

/// Counts of resizes. All labels are names in this program: there are few.
#[derive(Clone, Debug, Default)]
pub struct ResizeCounts {
    /// By resource, kind of the amount, and operation.
    requested: BTreeMap<[&'static str; 3], u64>,
    pub(super) infeasible: BTreeMap<&'static str, u64>,
    pub(super) accepted_late: BTreeMap<&'static str, u64>,
    /// Failed passes, and those that succeeded.
    took: [Histogram<14>; 2],
}

impl ResizeCounts {
    /// Counts the amounts of containers that an edit changes.
    pub fn count_edit(&mut self, had: &PodResources, wants: &PodResources) {
        let all = |of: &'_ PodResources| -> alloc::vec::Vec<ContainerResources> {
            [&*of.init_containers, &*of.containers].concat()
        };
        for (had, wants) in all(had).iter().zip(all(wants)) {
            for (kind, label) in [
                (AmountKind::Requests, "requests"),
                (AmountKind::Limits, "limits"),
            ] {
                for name in [CPU, MEMORY] {
                    let amount = |of: &ContainerResources| {
                        let found = kind.quantities_of(&of.resources).get(name);
                        found.map_or(0, |amount: &Quantity| amount_in_base_unit(name, amount))
                    };
                    let operation = match (amount(had), amount(&wants)) {
                        (had, wants) if had == wants => continue,
                        (0, _) => "add",
                        (_, 0) => "remove",
                        (had, wants) if had < wants => "increase",
                        _ => "decrease",
                    };
                    let count = self.requested.entry([name, label, operation]);
                    *count.or_default() += 1;
                }
            }
        }
    }

    /// Counts a resize that this node can never carry out, by the reason.
    pub fn count_infeasible(&mut self, detail: &'static str) {
        *self.infeasible.entry(detail).or_default() += 1;
    }

    /// Counts a resize that waited for room and got it; `trigger`: the reason to look again.
    pub fn count_accepted_late(&mut self, trigger: &'static str) {
        *self.accepted_late.entry(trigger).or_default() += 1;
    }

    /// Counts a pass of steps.
    pub fn observe_pass(&mut self, took: Duration, succeeded: bool) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.took[usize::from(succeeded)].observe(&MILLISECONDS, Duration::from_secs(ms));
    }

    pub(super) fn write_requested(&self, samples: &mut SampleWriter<'_>) {
        for ([resource, requirement, operation], n) in &self.requested {
            let labels = [
                ("operation", *operation),
                ("requirement", *requirement),
                ("resource", *resource),
            ];
            samples.write_sample(&labels, SampleValue::Count(*n), None);
        }
    }

    pub(super) fn write_took(&self, samples: &mut SampleWriter<'_>) {
        for (label, took) in ["false", "true"].into_iter().zip(&self.took) {
            if took.count() > 0 {
                took.write_series(&MILLISECONDS, &[("success", label)], samples);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::{
        super::own::{AgentCounters, tests::page_of},
        *,
    };
    use crate::api::pod::Resources;

    #[test]
    fn families() {
        // RSZ-33
        let of = |requests: &[(&str, &str)], limits: &[(&str, &str)]| {
            let list = |amounts: &[(&str, &str)]| {
                let one = |(name, text): &(&str, &str)| {
                    ((*name).into(), Quantity::parse(text).expect("quantity"))
                };
                amounts.iter().map(one).collect()
            };
            let own = ContainerResources {
                name: "c".into(),
                resources: Resources {
                    requests: list(requests),
                    limits: list(limits),
                },
            };
            PodResources {
                containers: vec![own],
                ..PodResources::default()
            }
        };
        let mut counters = AgentCounters::default();
        let resizes = counters.resize_counts();
        let had = of(
            &[("cpu", "1"), ("memory", "8Mi")],
            &[("memory", "8Mi"), ("cpu", "2")],
        );
        let wants = of(
            &[("cpu", "1000m"), ("memory", "4Mi")],
            &[("memory", "16Mi")],
        );
        resizes.count_edit(&had, &wants);
        resizes.count_edit(&wants, &had);
        resizes.count_infeasible("swap_limitation");
        resizes.count_infeasible("insufficient_node_allocatable");
        resizes.count_accepted_late("periodic_retry");
        resizes.observe_pass(Duration::from_millis(40), true);
        let text = page_of(&counters);
        let requested = |resource: &str, requirement: &str, operation: &str| {
            format!(
                "kubelet_container_requested_resizes_total{{operation=\"{operation}\",requirement=\"{requirement}\",resource=\"{resource}\"}} 1"
            )
        };
        for line in [
            requested("cpu", "limits", "remove"),
            requested("cpu", "limits", "add"),
            requested("memory", "limits", "increase"),
            requested("memory", "requests", "decrease"),
            "kubelet_pod_infeasible_resizes_total{reason_detail=\"swap_limitation\"} 1".into(),
            "kubelet_pod_deferred_accepted_resizes_total{retry_trigger=\"periodic_retry\"} 1"
                .into(),
            "kubelet_pod_resize_duration_milliseconds_bucket{le=\"10\",success=\"true\"} 0".into(),
            "kubelet_pod_resize_duration_milliseconds_bucket{le=\"50\",success=\"true\"} 1".into(),
            "kubelet_pod_resize_duration_milliseconds_sum{success=\"true\"} 40".into(),
            "kubelet_pod_pending_resizes{reason=\"deferred\"} 0".into(),
            "kubelet_pod_in_progress_resizes 0".into(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert!(!text.contains("resource=\"cpu\",requirement=\"requests\""));
    }
}
