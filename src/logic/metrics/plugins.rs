//! Counts of device plugins (DEV-18). There is no series before the first plugin registers.

use alloc::{boxed::Box, collections::BTreeMap};
use core::time::Duration;

use super::{
    exposition::{SampleValue, SampleWriter},
    histogram::{DEFAULT, Histogram},
};

/// Resources with figures of their own.
const MAX_RESOURCES: usize = 64;
/// Label of all resources beyond [`MAX_RESOURCES`], together: names that came and went since the agent started.
const OTHER: &str = "other";

/// Counts by resource.
#[derive(Clone, Debug, Default)]
pub struct PluginCounts(BTreeMap<Box<str>, PluginResourceCounts>);

#[derive(Clone, Debug, Default)]
struct PluginResourceCounts {
    registrations: u64,
    allocations: Histogram<11>,
}

impl PluginCounts {
    /// Counts a plugin that has registered.
    pub fn count_registration(&mut self, resource: &str) {
        self.resource_counts(resource).registrations += 1;
    }

    /// Counts an allocation: a plugin was asked what a container gets, and answered or failed after the time `took`.
    pub fn count_allocation(&mut self, resource: &str, took: Duration) {
        self.resource_counts(resource)
            .allocations
            .observe(&DEFAULT, took);
    }

    fn resource_counts(&mut self, resource: &str) -> &mut PluginResourceCounts {
        let has_room = self.0.len() < MAX_RESOURCES || self.0.contains_key(resource);
        let name = if has_room { resource } else { OTHER };
        self.0.entry(name.into()).or_default()
    }

    pub(super) fn write_registrations(&self, s: &mut SampleWriter<'_>) {
        for (resource, counts) in &self.0 {
            let labels = [("resource_name", &**resource)];
            s.write_sample(&labels, SampleValue::Count(counts.registrations), None);
        }
    }

    pub(super) fn write_allocations(&self, s: &mut SampleWriter<'_>) {
        let asked = self.0.iter();
        for (resource, counts) in asked.filter(|(_, c)| c.allocations.count() > 0) {
            let labels = [("resource_name", &**resource)];
            counts.allocations.write_series(&DEFAULT, &labels, s);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::{
        super::own::{AgentCounters, tests::page_of},
        *,
    };

    #[test]
    fn families() {
        // DEV-18
        let mut counters = AgentCounters::default();
        assert!(!page_of(&counters).contains("plugin"), "there is none");
        let plugins = counters.plugin_counts();
        for n in 0..MAX_RESOURCES + 2 {
            plugins.count_registration(&format!("a.io/{n:02}"));
        }
        plugins.count_registration("a.io/03");
        plugins.count_allocation("a.io/03", Duration::from_millis(30));
        let text = page_of(&counters);
        for line in [
            "kubelet_device_plugin_registration_total{resource_name=\"a.io/03\"} 2",
            "kubelet_device_plugin_registration_total{resource_name=\"a.io/63\"} 1",
            "kubelet_device_plugin_registration_total{resource_name=\"other\"} 2",
            "kubelet_device_plugin_alloc_duration_seconds_bucket{le=\"0.025\",resource_name=\"a.io/03\"} 0",
            "kubelet_device_plugin_alloc_duration_seconds_bucket{le=\"0.05\",resource_name=\"a.io/03\"} 1",
            "kubelet_device_plugin_alloc_duration_seconds_count{resource_name=\"a.io/03\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert!(!text.contains("a.io/64"), "{text}");
        let asked = text.matches("alloc_duration_seconds_count").count();
        assert_eq!(asked, 1, "who was never asked is not there: {text}");
    }
}
