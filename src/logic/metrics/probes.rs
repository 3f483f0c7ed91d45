//! `/metrics/probes` (MET-09). Series go with their pod.

use alloc::{string::ToString as _, vec::Vec};

use super::{
    exposition::{FamilyPage, MetricFamily, MetricType, SampleValue, SampleWriter, families},
    histogram::DEFAULT,
};
use crate::probe::NodeProbeFigures;

/// The page of all probes there are.
#[must_use]
pub fn probes_page(figures: NodeProbeFigures) -> FamilyPage<NodeProbeFigures> {
    FamilyPage::new(FAMILIES, figures)
}

/// Sorted by name.
const FAMILIES: &[MetricFamily<NodeProbeFigures>] = families![MetricFamily:
    "prober_probe_duration_seconds" Histogram "How long probes took."
        write_durations;
    "prober_probe_total" Counter "Probes by how they ended."
        write_totals;
];

fn write_durations(rows: &NodeProbeFigures, n: usize, samples: &mut SampleWriter<'_>) -> bool {
    let Some(probe) = rows.probes.get(n) else {
        return false;
    };
    let kind = probe.kind.to_string();
    let tail = [
        ("namespace", &*probe.namespace),
        ("pod", &*probe.pod),
        ("probe_type", &*kind),
    ];
    let with = |le: Option<&'static str>| {
        let mut all = Vec::with_capacity(5);
        all.push(("container", &*probe.container));
        all.extend(le.map(|le| ("le", le)));
        all.extend(tail);
        all
    };
    let mut sum = 0_u64;
    for ((bound, _), count) in DEFAULT.iter().zip(probe.took.buckets) {
        sum = sum.saturating_add(count.into());
        samples.write_sample_line("_bucket", &with(Some(bound)), SampleValue::Count(sum), None);
    }
    let count = SampleValue::Count(probe.took.count());
    samples.write_sample_line("_bucket", &with(Some("+Inf")), count, None);
    let ns = probe.took.sum_ms.saturating_mul(1_000_000);
    samples.write_sample_line("_sum", &with(None), SampleValue::Nanos(ns), None);
    samples.write_sample_line("_count", &with(None), count, None);
    true
}

fn write_totals(rows: &NodeProbeFigures, n: usize, samples: &mut SampleWriter<'_>) -> bool {
    let Some(probe) = rows.probes.get(n) else {
        return false;
    };
    let kind = probe.kind.to_string();
    let counts = &probe.counts;
    for (result, count) in [
        ("successful", counts.successful),
        ("failed", counts.failed),
        ("unknown", counts.unknown),
    ] {
        // Like a kubelet: no series for a result that never occurred.
        if count > 0 {
            let labels = [
                ("container", &*probe.container),
                ("namespace", &*probe.namespace),
                ("pod", &*probe.pod),
                ("pod_uid", &*probe.uid),
                ("probe_type", &*kind),
                ("result", result),
            ];
            samples.write_sample(&labels, SampleValue::Count(count.into()), None);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{ProbeCounts, ProbeDurations, ProbeFigures, ProbeKind};
    use alloc::{string::String, vec};

    #[test]
    fn the_page() {
        // MET-09
        let mut took = ProbeDurations::default();
        for ms in [3, 7, 20_000] {
            took.add_duration(ms);
        }
        let probe = ProbeFigures {
            namespace: "default".into(),
            pod: "web".into(),
            uid: "0a1b".into(),
            container: "app".into(),
            kind: ProbeKind::Readiness,
            counts: ProbeCounts {
                successful: 2,
                failed: 1,
                ..ProbeCounts::default()
            },
            took,
        };
        let figures = NodeProbeFigures {
            probes: vec![probe],
            ..NodeProbeFigures::default()
        };
        let text: String = probes_page(figures).collect();
        super::super::sample::testing::golden("probes.txt", &text);
    }
}
