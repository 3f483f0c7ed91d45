//! `/metrics/resource`: what metrics-server reads (MET-07). Source: kubelet `metrics/collectors/resource_metrics.go`.

use alloc::rc::Rc;

use super::{
    exposition::{FamilyPage, MetricFamily, MetricType, SampleValue, SampleWriter, families},
    sample::{SampleRows, UsageSample},
};
use crate::api::{
    WallTime,
    stats::{CgroupUsage, ContainerUsage, PodUsage},
};

/// The page of one sample.
#[must_use]
pub fn resource_page(sample: Rc<UsageSample>) -> FamilyPage<SampleRows> {
    FamilyPage::new(FAMILIES, SampleRows::new(sample))
}

fn write_container_figure(
    rows: &SampleRows,
    n: usize,
    samples: &mut SampleWriter<'_>,
    value: impl Fn(&ContainerUsage) -> Option<(SampleValue, Option<WallTime>)>,
) -> bool {
    let Some((pod, container)) = rows.container_at(n) else {
        return false;
    };
    if let Some((value, at)) = value(container) {
        let labels = [
            ("container", &*container.name),
            ("namespace", &*pod.namespace),
            ("pod", &*pod.name),
        ];
        samples.write_sample(&labels, value, at);
    }
    true
}

fn write_pod_figure(
    rows: &SampleRows,
    n: usize,
    samples: &mut SampleWriter<'_>,
    value: impl Fn(&PodUsage) -> Option<(SampleValue, Option<WallTime>)>,
) -> bool {
    let Some(pod) = rows.pod_at(n) else {
        return false;
    };
    if let Some((value, at)) = value(pod) {
        let labels = [("namespace", &*pod.namespace), ("pod", &*pod.name)];
        samples.write_sample(&labels, value, at);
    }
    true
}

fn write_node_figure(
    rows: &SampleRows,
    n: usize,
    samples: &mut SampleWriter<'_>,
    value: impl Fn(&CgroupUsage) -> Option<(SampleValue, Option<WallTime>)>,
) -> bool {
    if n == 0
        && let Some((value, at)) = value(&rows.sample.machine)
    {
        samples.write_sample(&[], value, at);
    }
    n == 0
}

type ResourceFigure = Option<(SampleValue, Option<WallTime>)>;

fn cpu_figure(usage: &CgroupUsage) -> ResourceFigure {
    usage
        .cpu
        .map(|cpu| (SampleValue::Nanos(cpu.total_ns), Some(usage.at)))
}

fn working_set_figure(usage: &CgroupUsage) -> ResourceFigure {
    usage
        .memory
        .map(|memory| (SampleValue::Count(memory.working_set_bytes), Some(usage.at)))
}

fn swap_figure(usage: &CgroupUsage) -> ResourceFigure {
    usage
        .swap
        .map(|swap| (SampleValue::Count(swap.usage_bytes), Some(usage.at)))
}

fn swap_limit_figure(usage: &CgroupUsage) -> ResourceFigure {
    let limit = usage.swap?.limit_bytes?;
    Some((SampleValue::Count(limit), Some(usage.at)))
}

fn start_time_figure(container: &ContainerUsage) -> ResourceFigure {
    (container.started_at.0 > 0).then_some((SampleValue::Time(container.started_at), None))
}

/// Sorted by name.
const FAMILIES: &[MetricFamily<SampleRows>] = families![MetricFamily:
    "container_cpu_usage_seconds_total" Counter "Processor time that the container has used, in core-seconds."
        |rows, n, s| write_container_figure(rows, n, s, |c| cpu_figure(&c.usage));
    "container_memory_working_set_bytes" Gauge "Working set of the container, in bytes."
        |rows, n, s| write_container_figure(rows, n, s, |c| working_set_figure(&c.usage));
    "container_start_time_seconds" Gauge "When the container was started, in seconds since 1970."
        |rows, n, s| write_container_figure(rows, n, s, start_time_figure);
    "container_swap_limit_bytes" Gauge "Swap that the container may use, in bytes."
        |rows, n, s| write_container_figure(rows, n, s, |c| swap_limit_figure(&c.usage));
    "container_swap_usage_bytes" Gauge "Swap that the container uses, in bytes."
        |rows, n, s| write_container_figure(rows, n, s, |c| swap_figure(&c.usage));
    "node_cpu_usage_seconds_total" Counter "Processor time that the node has used, in core-seconds."
        |rows, n, s| write_node_figure(rows, n, s, cpu_figure);
    "node_memory_working_set_bytes" Gauge "Working set of the node, in bytes."
        |rows, n, s| write_node_figure(rows, n, s, working_set_figure);
    "node_swap_usage_bytes" Gauge "Swap that the node uses, in bytes."
        |rows, n, s| write_node_figure(rows, n, s, swap_figure);
    "pod_cpu_usage_seconds_total" Counter "Processor time that the pod has used, in core-seconds."
        |rows, n, s| write_pod_figure(rows, n, s, |p| cpu_figure(&p.usage));
    "pod_memory_working_set_bytes" Gauge "Working set of the pod, in bytes."
        |rows, n, s| write_pod_figure(rows, n, s, |p| working_set_figure(&p.usage));
    "pod_swap_usage_bytes" Gauge "Swap that the pod uses, in bytes."
        |rows, n, s| write_pod_figure(rows, n, s, |p| swap_figure(&p.usage));
    "resource_scrape_error" Gauge "1 if the figures of containers could not be read, else 0."
        |rows, n, s| {
            if n == 0 {
                s.write_sample(&[], SampleValue::Count(rows.sample.failed.into()), None);
            }
            n == 0
        };
];

#[cfg(test)]
mod tests {
    use super::{super::sample::testing, *};
    use alloc::{
        collections::{BTreeMap, BTreeSet},
        string::String,
        vec::Vec,
    };

    #[test]
    fn the_page() {
        // MET-07
        let text: String = resource_page(Rc::new(testing::sample())).collect();
        testing::golden("resource.txt", &text);
        assert!(FAMILIES.is_sorted_by_key(|f| f.name));
        let failed = UsageSample {
            failed: true,
            ..UsageSample::default()
        };
        let text: String = resource_page(Rc::new(failed)).collect();
        assert!(text.ends_with("resource_scrape_error 1\n"), "{text}");
    }

    /// The text between `tag` and the next quote: metrics-server finds a label in this way.
    fn label<'a>(series: &'a str, tag: &str) -> &'a str {
        let start = series.find(tag).expect("the label") + tag.len();
        series[start..].split('"').next().expect("its end")
    }

    #[test]
    fn metrics_server_finds_all_it_needs() {
        // MET-07: read as metrics-server does: the name up to the brace, labels by their text, time in milliseconds, and
        // nothing of a pod counts if one container has no processor time or no memory.
        let mut sample = testing::sample();
        sample.pods.pop();
        let text: String = resource_page(Rc::new(sample)).collect();
        let mut node = BTreeMap::new();
        let mut containers: BTreeMap<(&str, &str, &str), BTreeSet<&str>> = BTreeMap::new();
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let end = line
                .rfind('}')
                .map_or_else(|| line.find(' '), |at| Some(at + 1));
            let (series, rest) = line.split_at(end.expect("a value"));
            let rest: Vec<&str> = rest.split_whitespace().collect();
            let value: f64 = rest[0].parse().expect("a number");
            let name = series.split('{').next().expect("a name");
            let timed = !matches!(
                name,
                "container_start_time_seconds" | "resource_scrape_error"
            );
            assert_eq!(rest.len(), 1 + usize::from(timed), "{line}");
            if timed {
                assert_eq!(rest[1], "1700000100250");
            }
            if name.starts_with("node_") {
                node.insert(name, value);
            } else if name.starts_with("container_") {
                let key = (
                    label(series, "namespace=\""),
                    label(series, "pod=\""),
                    label(series, "container=\""),
                );
                assert!(value > 0.0, "{line}");
                containers.entry(key).or_default().insert(name);
            }
        }
        assert!(node["node_cpu_usage_seconds_total"] > 0.0);
        assert!(node["node_memory_working_set_bytes"] > 0.0);
        assert_eq!(containers.len(), 2);
        for names in containers.values() {
            for needed in [
                "container_cpu_usage_seconds_total",
                "container_memory_working_set_bytes",
                "container_start_time_seconds",
            ] {
                assert!(names.contains(needed), "{names:?}");
            }
        }
    }
}
