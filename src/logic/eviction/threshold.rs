//! Thresholds as an operator writes them (EVICT-01, EVICT-03).

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::{fmt, time::Duration};

use crate::api::{Quantity, order::OrderExt as _};

/// Resource that may run short. Sorted by urgency: memory comes before all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionSignal {
    /// Memory of the node.
    MemoryAvailable,
    /// Memory that all pods together may use.
    AllocatableMemory,
    /// Bytes of the file system of the root directory.
    NodeFsAvailable,
    /// Inodes of that file system.
    NodeFsInodes,
    /// Bytes of the file system of the images.
    ImageFsAvailable,
    /// Inodes of that file system.
    ImageFsInodes,
    /// Bytes of the file system of the writable layers, which is one of the two above.
    ContainerFsAvailable,
    /// Inodes of that file system.
    ContainerFsInodes,
    /// Process numbers.
    PidAvailable,
}

impl EvictionSignal {
    /// All signals, in their order.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemory,
        Self::NodeFsAvailable,
        Self::NodeFsInodes,
        Self::ImageFsAvailable,
        Self::ImageFsInodes,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodes,
        Self::PidAvailable,
    ];

    /// Name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemory => "allocatableMemory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodes => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodes => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodes => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == text)
    }

    /// Resource that pods use up when this signal is short.
    #[must_use]
    pub const fn starved_resource(self) -> StarvedResource {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemory => StarvedResource::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => {
                StarvedResource::EphemeralStorage
            }
            Self::NodeFsInodes | Self::ImageFsInodes | Self::ContainerFsInodes => {
                StarvedResource::Inodes
            }
            Self::PidAvailable => StarvedResource::Pids,
        }
    }

    /// An amount in a kubelet's notation: bytes in powers of 1024, counts in powers of 1000.
    pub(super) fn format_amount(self, amount: i64) -> Quantity {
        match self.starved_resource() {
            StarvedResource::Memory | StarvedResource::EphemeralStorage => {
                Quantity::from_binary_units(amount)
            }
            StarvedResource::Inodes | StarvedResource::Pids => Quantity::from_decimal_units(amount),
        }
    }
}

/// Kind of resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StarvedResource {
    /// Memory.
    Memory,
    /// Bytes on disk.
    EphemeralStorage,
    /// Inodes on disk.
    Inodes,
    /// Process numbers.
    Pids,
}

impl StarvedResource {
    /// Name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }
}

/// Amount in a threshold.
#[derive(Clone, Debug, PartialEq)]
pub enum ThresholdLimit {
    /// Bytes, inodes or processes.
    Amount(Quantity),
    /// Percentage of the capacity, above 0 and below 100. Single precision, as in a kubelet.
    Percent(f32),
}

impl ThresholdLimit {
    /// Amount for this capacity.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "as a kubelet reckons; a capacity is no larger than what a double holds to the byte but for 8 PiB and more"
    )]
    pub fn amount_of_capacity(&self, capacity: i64) -> i64 {
        match self {
            Self::Amount(quantity) => quantity.value(),
            Self::Percent(percent) => (capacity as f64 * f64::from(percent / 100.0)) as i64,
        }
    }

    /// Amount for this capacity, as messages write it.
    pub(super) fn quantity_of_capacity(&self, capacity: i64) -> Quantity {
        match self {
            Self::Percent(_) => Quantity::from_binary_units(self.amount_of_capacity(capacity)),
            Self::Amount(quantity) => shortest_quantity(quantity, quantity.value()),
        }
    }
}

impl fmt::Display for ThresholdLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(quantity) => write!(f, "{quantity}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Writes `value` as short as possible, in binary or decimal units like `like`.
pub(super) fn shortest_quantity(like: &Quantity, value: i64) -> Quantity {
    if like.as_str().ends_with('i') {
        Quantity::from_binary_units(value)
    } else {
        Quantity::from_decimal_units(value)
    }
}

/// Least amount of a resource that must be left.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionThreshold {
    /// Watched resource.
    pub signal: EvictionSignal,
    /// Amount that must be left.
    pub limit: ThresholdLimit,
    /// Time for which less may be left (a soft threshold); `None`: a hard threshold.
    pub grace: Option<Duration>,
    /// Additional amount that must be free again before the threshold is no longer met.
    pub min_reclaim: Option<ThresholdLimit>,
}

impl fmt::Display for EvictionThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<{}", self.signal.name(), self.limit)?;
        match self.grace {
            None => Ok(()),
            Some(grace) => write!(f, " for {}s", grace.as_secs()),
        }
    }
}

/// Thresholds as the maps of the configuration write them.
#[derive(Clone, Copy, Debug)]
pub struct ThresholdMaps<'a> {
    /// `evictionHard`.
    pub hard: &'a BTreeMap<String, String>,
    /// `evictionSoft`.
    pub soft: &'a BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`, parsed.
    pub grace: &'a BTreeMap<String, Duration>,
    /// `evictionMinimumReclaim`.
    pub min_reclaim: &'a BTreeMap<String, String>,
    /// Set if `pods` is in `enforceNodeAllocatable`: hard thresholds of memory hold for all pods together, too.
    pub enforce_pods: bool,
}

/// Wrong entry in a map of thresholds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}[{signal}]: {why}")]
pub struct ThresholdError {
    /// Name of the map.
    pub field: &'static str,
    /// Key of the entry.
    pub signal: String,
    /// Fault of the entry.
    pub why: String,
}

/// Reads the thresholds. The result is sorted by signal, hard ones first. Thresholds of `containerfs` are left out,
/// because they follow those of the file system that it is on.
///
/// - Errors: an unknown signal; a wrong amount; a soft threshold without a grace period.
pub fn parse_thresholds(
    maps: &ThresholdMaps<'_>,
) -> Result<Vec<EvictionThreshold>, ThresholdError> {
    let mut reclaim = BTreeMap::new();
    for (name, text) in maps.min_reclaim {
        let field = "evictionMinimumReclaim";
        let signal = parse_signal(field, name)?;
        if let Some(limit) = parse_limit(field, name, text, true)? {
            reclaim.insert(signal, limit);
        }
    }
    for name in maps.grace.keys() {
        parse_signal("evictionSoftGracePeriod", name)?;
    }
    let mut found = Vec::new();
    for (field, map, is_soft) in [
        ("evictionHard", maps.hard, false),
        ("evictionSoft", maps.soft, true),
    ] {
        for (name, text) in map {
            let signal = parse_signal(field, name)?;
            let Some(limit) = parse_limit(field, name, text, false)? else {
                continue;
            };
            let grace = match (is_soft, maps.grace.get(name)) {
                (false, _) => None,
                (true, Some(grace)) => Some(*grace),
                (true, None) => {
                    let why = "needs a grace period in evictionSoftGracePeriod";
                    return Err(threshold_error(field, name, why.into()));
                }
            };
            let min_reclaim = reclaim.get(&signal).cloned();
            found.push(EvictionThreshold {
                signal,
                limit,
                grace,
                min_reclaim,
            });
        }
    }
    if maps.enforce_pods {
        let of_memory = |t: &&EvictionThreshold| {
            t.signal == EvictionSignal::MemoryAvailable && t.grace.is_none()
        };
        let allocatable: Vec<EvictionThreshold> = found.iter().filter(of_memory).cloned().collect();
        found.extend(allocatable.into_iter().map(|threshold| EvictionThreshold {
            signal: EvictionSignal::AllocatableMemory,
            ..threshold
        }));
    }
    found.retain(|t| {
        !matches!(
            t.signal,
            EvictionSignal::ContainerFsAvailable | EvictionSignal::ContainerFsInodes
        )
    });
    found.stable_sort_by_key(|t| (t.signal, t.grace));
    Ok(found)
}

fn threshold_error(field: &'static str, signal: &str, why: String) -> ThresholdError {
    ThresholdError {
        field,
        signal: signal.into(),
        why,
    }
}

fn parse_signal(field: &'static str, name: &str) -> Result<EvictionSignal, ThresholdError> {
    EvictionSignal::parse(name).ok_or_else(|| {
        let known = EvictionSignal::ALL.map(EvictionSignal::name).join(", ");
        threshold_error(field, name, format!("unknown signal; known: {known}"))
    })
}

/// Reads a limit. `None`: no threshold, written as 0% or 100%. `allows_zero`: an amount of 0 is allowed.
fn parse_limit(
    field: &'static str,
    name: &str,
    text: &str,
    allows_zero: bool,
) -> Result<Option<ThresholdLimit>, ThresholdError> {
    let wrong = || {
        let least = if allows_zero {
            "not negative"
        } else {
            "more than 0"
        };
        let why =
            format!("is {text:?}, must be a quantity that is {least} or a percentage up to 100%");
        threshold_error(field, name, why)
    };
    let Some(percent) = text.strip_suffix('%') else {
        let quantity = Quantity::parse(text).map_err(|_| wrong())?;
        // A fraction rounds up to a whole number.
        return match quantity.value() {
            value if value < 0 || (value == 0 && !allows_zero) => Err(wrong()),
            _ => Ok(Some(ThresholdLimit::Amount(quantity))),
        };
    };
    let percent: f32 = percent.parse().map_err(|_| wrong())?;
    if !(0.0..=100.0).contains(&percent) {
        return Err(wrong());
    }
    let is_none = percent <= 0.0 || percent >= 100.0;
    Ok((!is_none).then_some(ThresholdLimit::Percent(percent)))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    fn map(text: &str) -> BTreeMap<String, String> {
        text.split_whitespace()
            .map(|pair| {
                let (signal, value) = pair.split_once('<').expect("signal<value");
                (signal.into(), value.into())
            })
            .collect()
    }

    fn parse(
        hard: &str,
        soft: &str,
        grace: &[(&str, u64)],
        reclaim: &str,
    ) -> Result<Vec<String>, String> {
        let grace = grace
            .iter()
            .map(|(signal, s)| ((*signal).into(), Duration::from_secs(*s)))
            .collect();
        let found = parse_thresholds(&ThresholdMaps {
            hard: &map(hard),
            soft: &map(soft),
            grace: &grace,
            min_reclaim: &map(reclaim),
            enforce_pods: hard.contains("memory"),
        });
        // Of a capacity of 1000.
        let shown = |t: EvictionThreshold| {
            let grace = t
                .grace
                .map_or(String::new(), |g| format!(" for {}s", g.as_secs()));
            let more = t.min_reclaim.map_or(String::new(), |l| {
                format!(" +{}", l.amount_of_capacity(1000))
            });
            format!(
                "{}<{}{grace}{more}",
                t.signal.name(),
                t.limit.amount_of_capacity(1000)
            )
        };
        found
            .map(|list| list.into_iter().map(shown).collect())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn thresholds_as_they_are_written() {
        // EVICT-01 EVICT-02 EVICT-03
        for (name, hard, soft, grace, reclaim, want) in [
            (
                "amounts and percentages, and memory of pods too",
                "nodefs.available<10% memory.available<100 pid.available<7.5%",
                "",
                &[][..],
                "",
                &[
                    "memory.available<100",
                    "allocatableMemory.available<100",
                    "nodefs.available<100",
                    "pid.available<75",
                ][..],
            ),
            (
                "nothing and everything are no threshold",
                "nodefs.available<0% imagefs.available<100% nodefs.inodesFree<5%",
                "",
                &[],
                "",
                &["nodefs.inodesFree<50"],
            ),
            (
                "soft ones with a grace period, both with a minimum",
                "imagefs.available<1%",
                "imagefs.available<20%",
                &[("imagefs.available", 90)],
                "imagefs.available<50",
                &[
                    "imagefs.available<9 +50",
                    "imagefs.available<200 for 90s +50",
                ],
            ),
            (
                "a minimum of nothing is fine, and so is a grace period of nothing",
                "imagefs.inodesFree<1",
                "imagefs.inodesFree<2",
                &[("imagefs.inodesFree", 0)],
                "imagefs.inodesFree<0",
                &["imagefs.inodesFree<1 +0", "imagefs.inodesFree<2 for 0s +0"],
            ),
            (
                "that of writable layers follows another",
                "containerfs.available<5 containerfs.inodesFree<5",
                "",
                &[],
                "",
                &[],
            ),
        ] {
            let want: Vec<String> = want.iter().map(|s| (*s).into()).collect();
            assert_eq!(parse(hard, soft, grace, reclaim), Ok(want), "{name}");
        }
    }

    #[test]
    fn what_is_no_threshold() {
        // EVICT-03
        for (hard, soft, grace, reclaim, want) in [
            (
                "memory.available<0",
                "",
                &[][..],
                "",
                "evictionHard[memory.available]: is \"0\", must be a quantity that is more than 0",
            ),
            (
                "memory.available<-1Mi",
                "",
                &[],
                "",
                "evictionHard[memory.available]: is \"-1Mi\"",
            ),
            (
                "nodefs.available<101%",
                "",
                &[],
                "",
                "evictionHard[nodefs.available]: is \"101%\"",
            ),
            (
                "nodefs.available<-1%",
                "",
                &[],
                "",
                "evictionHard[nodefs.available]: is \"-1%\"",
            ),
            (
                "nodefs.available<NaN%",
                "",
                &[],
                "",
                "evictionHard[nodefs.available]: is \"NaN%\"",
            ),
            (
                "memory.free<1",
                "",
                &[],
                "",
                "evictionHard[memory.free]: unknown signal; known: memory.available, ",
            ),
            (
                "",
                "memory.available<1",
                &[("nodefs.available", 1)],
                "",
                "evictionSoft[memory.available]: needs a grace period in evictionSoftGracePeriod",
            ),
            (
                "",
                "",
                &[("disk", 1)],
                "",
                "evictionSoftGracePeriod[disk]: unknown signal",
            ),
            (
                "",
                "",
                &[],
                "nodefs.available<-1",
                "evictionMinimumReclaim[nodefs.available]: is \"-1\", must be a quantity that is not negative",
            ),
            (
                "",
                "",
                &[],
                "x<1",
                "evictionMinimumReclaim[x]: unknown signal",
            ),
        ] {
            let error = parse(hard, soft, grace, reclaim).expect_err(want);
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn amounts_as_messages_say_them() {
        let amount = |text: &str| ThresholdLimit::Amount(Quantity::parse(text).expect(text));
        for (limit, capacity, want) in [
            (amount("0.5Gi"), 0, "512Mi"),
            (amount("104857600"), 0, "104857600"),
            (amount("1000k"), 0, "1M"),
            (ThresholdLimit::Percent(50.0), 85_937_152 * 2, "83923Ki"),
            // In single precision a tenth is a little more.
            (ThresholdLimit::Percent(10.0), 85_937_152 * 10, "85937153"),
        ] {
            assert_eq!(limit.quantity_of_capacity(capacity).as_str(), want);
        }
        let soft = EvictionThreshold {
            signal: EvictionSignal::NodeFsAvailable,
            limit: ThresholdLimit::Percent(7.5),
            grace: Some(Duration::from_secs(90)),
            min_reclaim: None,
        };
        assert_eq!(format!("{soft}"), "nodefs.available<7.5% for 90s");
        assert_eq!(format!("{}", amount("100Mi")), "100Mi");
        assert_eq!(
            EvictionSignal::NodeFsInodes.format_amount(2000).as_str(),
            "2k"
        );
        assert_eq!(
            EvictionSignal::NodeFsAvailable.format_amount(2048).as_str(),
            "2Ki"
        );
    }
}
