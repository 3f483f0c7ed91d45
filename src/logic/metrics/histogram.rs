//! Counts of durations in fixed buckets.

use core::time::Duration;

use super::exposition::{MetricLabels, SampleValue, SampleWriter};

/// Upper bounds: as the text form writes them, and in nanoseconds; ascending.
pub type BucketBounds<const N: usize> = [(&'static str, u64); N];

/// Prometheus' default buckets, 5 ms to 10 s.
pub const DEFAULT: BucketBounds<11> = [
    ("0.005", 5_000_000),
    ("0.01", 10_000_000),
    ("0.025", 25_000_000),
    ("0.05", 50_000_000),
    ("0.1", 100_000_000),
    ("0.25", 250_000_000),
    ("0.5", 500_000_000),
    ("1", 1_000_000_000),
    ("2.5", 2_500_000_000),
    ("5", 5_000_000_000),
    ("10", 10_000_000_000),
];

/// A kubelet's buckets of calls to its runtime: 5 ms, and each two and a half times the one before.
pub const OPERATION: BucketBounds<14> = [
    ("0.005", 5_000_000),
    ("0.0125", 12_500_000),
    ("0.03125", 31_250_000),
    ("0.078125", 78_125_000),
    ("0.1953125", 195_312_500),
    ("0.48828125", 488_281_250),
    ("1.220703125", 1_220_703_125),
    ("3.0517578125", 3_051_757_812),
    ("7.62939453125", 7_629_394_531),
    ("19.073486328125", 19_073_486_328),
    ("47.6837158203125", 47_683_715_820),
    ("119.20928955078125", 119_209_289_550),
    ("298.0232238769531", 298_023_223_876),
    ("745.0580596923828", 745_058_059_692),
];

/// A kubelet's buckets of starts of pods.
pub const POD_START: BucketBounds<25> = [
    ("0.5", 500_000_000),
    ("1", 1_000_000_000),
    ("2", 2_000_000_000),
    ("3", 3_000_000_000),
    ("4", 4_000_000_000),
    ("5", 5_000_000_000),
    ("6", 6_000_000_000),
    ("8", 8_000_000_000),
    ("10", 10_000_000_000),
    ("20", 20_000_000_000),
    ("30", 30_000_000_000),
    ("45", 45_000_000_000),
    ("60", 60_000_000_000),
    ("120", 120_000_000_000),
    ("180", 180_000_000_000),
    ("240", 240_000_000_000),
    ("300", 300_000_000_000),
    ("360", 360_000_000_000),
    ("480", 480_000_000_000),
    ("600", 600_000_000_000),
    ("900", 900_000_000_000),
    ("1200", 1_200_000_000_000),
    ("1800", 1_800_000_000_000),
    ("2700", 2_700_000_000_000),
    ("3600", 3_600_000_000_000),
];

/// A kubelet's buckets of containers in a pod; a container counts as a second.
pub const CONTAINERS: BucketBounds<5> = [
    ("1", 1_000_000_000),
    ("2", 2_000_000_000),
    ("4", 4_000_000_000),
    ("8", 8_000_000_000),
    ("16", 16_000_000_000),
];

/// Histogram: number of durations in each bucket, and their sum. Counts stop at their largest number.
#[derive(Clone, Copy, Debug)]
pub struct Histogram<const N: usize> {
    counts: [u32; N],
    count: u64,
    sum_ns: u64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self {
            counts: [0; N],
            count: 0,
            sum_ns: 0,
        }
    }
}

impl<const N: usize> Histogram<N> {
    /// Counts a duration.
    pub fn observe(&mut self, bounds: &BucketBounds<N>, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(n) = bounds.iter().position(|(_, bound)| ns <= *bound) {
            self.counts[n] = self.counts[n].saturating_add(1);
        }
        self.count = self.count.saturating_add(1);
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Number of durations.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Writes the samples of one series. The label `le` is sorted in between `labels`.
    pub fn write_series(
        &self,
        bounds: &BucketBounds<N>,
        labels: MetricLabels<'_>,
        samples: &mut SampleWriter<'_>,
    ) {
        let mut all = labels.to_vec();
        let at = all.iter().position(|(name, _)| *name > "le");
        let at = at.unwrap_or(all.len());
        all.insert(at, ("le", ""));
        let mut sum = 0_u64;
        for ((bound, _), count) in bounds.iter().zip(self.counts) {
            sum = sum.saturating_add(count.into());
            all[at].1 = bound;
            samples.write_sample_line("_bucket", &all, SampleValue::Count(sum), None);
        }
        all[at].1 = "+Inf";
        samples.write_sample_line("_bucket", &all, SampleValue::Count(self.count), None);
        samples.write_sample_line("_sum", labels, SampleValue::Nanos(self.sum_ns), None);
        samples.write_sample_line("_count", labels, SampleValue::Count(self.count), None);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::exposition::{MetricType, MetricsText},
        *,
    };

    #[test]
    fn counts_are_cumulative() {
        const BOUNDS: BucketBounds<2> = [("0.01", 10_000_000), ("1", 1_000_000_000)];
        let mut histogram = Histogram::default();
        for ms in [10, 11, 1000, 5000] {
            histogram.observe(&BOUNDS, Duration::from_millis(ms));
        }
        let mut text = MetricsText::default();
        text.write_family("h", MetricType::Histogram, "H.", |s| {
            histogram.write_series(&BOUNDS, &[("a", "1"), ("z", "2")], s);
        });
        assert_eq!(
            text.0,
            "# HELP h H.\n# TYPE h histogram\n\
             h_bucket{a=\"1\",le=\"0.01\",z=\"2\"} 1\n\
             h_bucket{a=\"1\",le=\"1\",z=\"2\"} 3\n\
             h_bucket{a=\"1\",le=\"+Inf\",z=\"2\"} 4\n\
             h_sum{a=\"1\",z=\"2\"} 6.021\n\
             h_count{a=\"1\",z=\"2\"} 4\n"
        );
        assert_eq!(histogram.count(), 4);
    }

    #[test]
    fn bounds_are_what_they_say() {
        fn check<const N: usize>(bounds: &BucketBounds<N>) {
            for (text, ns) in bounds {
                let seconds: f64 = text.parse().expect("a number");
                let said = Duration::from_secs_f64(seconds).as_nanos();
                assert!(said.abs_diff(u128::from(*ns)) <= 1, "{text}");
            }
            assert!(bounds.is_sorted_by_key(|(_, ns)| *ns));
        }
        check(&DEFAULT);
        check(&OPERATION);
        check(&POD_START);
    }
}
