//! Settings of eviction: resources that the node keeps free, and how (CONF-10).

use alloc::collections::BTreeMap;

use super::{
    checks::{InvalidField, invalid_field, nonzero_duration_or_default},
    file::KubeletConfiguration,
    values::EvictionConfig,
};
use crate::api::order::GatherExt as _;
use crate::logic::eviction::{self, ThresholdMaps};
use core::time::Duration;

/// `evictionHard` where a document was loaded that does not have it (CONF-10).
pub(super) const DEFAULT_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];
/// Default thresholds with `picolet.profile: board`, for 256 MiB to 1 GiB of memory: 100 MiB would be nearly half of
/// the smallest one.
const BOARD_HARD: [(&str, &str); 6] = [
    ("memory.available", "10%"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "10%"),
    ("imagefs.inodesFree", "5%"),
    ("pid.available", "5%"),
];
/// `evictionPressureTransitionPeriod`.
const DEFAULT_TRANSITION: Duration = Duration::from_secs(5 * 60);

/// Checks the thresholds. `from_file`: a document was loaded. `enforce_pods`: all pods together have a limit.
pub(super) fn resolve_eviction(
    fields: &KubeletConfiguration,
    from_file: bool,
    enforce_pods: bool,
) -> Result<EvictionConfig, InvalidField> {
    let merge = fields.merge_default_eviction_settings == Some(true);
    let defaults: &[_] = match fields.picolet.profile.as_deref() {
        None | Some("") if from_file => &DEFAULT_HARD,
        None | Some("") => &[],
        Some("board") => &BOARD_HARD,
        Some(other) => {
            let message = format!("is {other:?}, must be empty or \"board\"");
            return invalid_field("picolet.profile", message);
        }
    };
    let mut hard = BTreeMap::new();
    if fields.eviction_hard.is_none() || merge {
        let owned = |(signal, text): &(&str, &str)| ((*signal).to_owned(), (*text).to_owned());
        hard.extend(defaults.iter().map(owned));
    }
    hard.extend(fields.eviction_hard.clone().unwrap_or_default());
    let grace = fields.eviction_soft_grace_period.iter();
    let written = ThresholdMaps {
        hard: &hard,
        soft: &fields.eviction_soft,
        grace: &grace
            .map(|(name, time)| (name.clone(), time.0))
            .gather_items(),
        min_reclaim: &fields.eviction_minimum_reclaim,
        enforce_pods,
    };
    let thresholds = eviction::parse_thresholds(&written).map_err(|e| InvalidField {
        field: format!("{}[{}]", e.field, e.signal),
        message: e.why,
    })?;
    let period = fields.eviction_pressure_transition_period;
    Ok(EvictionConfig {
        settings: eviction::EvictionSettings {
            thresholds,
            transition: nonzero_duration_or_default(period, DEFAULT_TRANSITION),
            max_grace_s: fields.eviction_max_pod_grace_period.unwrap_or(0),
        },
        counts_kernel: fields.picolet.profile.as_deref() == Some("board"),
        static_pods: fields.picolet.evict_static_pods.unwrap_or(false),
    })
}
