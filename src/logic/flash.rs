//! Writes to the disk of the root directory, and the part of its life that is used (WEAR-06).

use alloc::{
    format,
    string::{String, ToString as _},
    vec::Vec,
};

use serde::Serialize;

use super::check::DiskWearFacts;
use crate::api::cri::RuntimeCondition;

/// Part of its life from which on a disk is worn, percent: 0x09 in an eMMC's `life_time`.
const WORN_PERCENT: u8 = 90;
/// Shortest time that a rate is computed from, seconds: the start of a writer does not show its rate per day.
const LEAST_SECONDS: u64 = 3600;
const DAY_SECONDS: u64 = 24 * 3600;

/// Returns true if the disk reports that it is near the end of its life.
#[must_use]
pub fn is_disk_worn(disk: &DiskWearFacts) -> bool {
    disk.at_its_end || disk.used_life.is_some_and(|used| used >= WORN_PERCENT)
}

/// Used part of the disk's life, as text for people.
#[must_use]
pub fn used_life_text(disk: &DiskWearFacts) -> String {
    match disk.used_life {
        Some(percent) => format!("{}: up to {percent} % of its life is used", disk.name),
        None => format!("{}: it does not report its wear", disk.name),
    }
}

/// `StorageWorn` of the node, [`RuntimeCondition::ok`] while it is not; `None`: the disk does not tell.
#[must_use]
pub fn storage_worn_condition(disk: &DiskWearFacts) -> Option<RuntimeCondition> {
    if disk.used_life.is_none() && !disk.at_its_end {
        return None;
    }
    let ok = !is_disk_worn(disk);
    let spare = match disk.at_its_end {
        true => "; its spare blocks are nearly used up",
        false => "",
    };
    Some(RuntimeCondition {
        ok,
        reason: if ok {
            "StorageIsNotWorn"
        } else {
            "StorageIsWorn"
        }
        .into(),
        message: format!("{}{spare}", used_life_text(disk)),
    })
}

/// Bytes of a writer, and the seconds in which it wrote them.
pub type WrittenBytes = (u64, u64);

/// Writers and their bytes, as the kernel counts them.
#[derive(Clone, Debug, Default)]
pub struct FlashWrites {
    /// The agent, with the programs that it ran.
    pub agent: Option<WrittenBytes>,
    /// Part of the agent's bytes that was images.
    pub images_bytes: u64,
    /// Shims that run now: each writes the log of its container. `None`: another runtime writes logs, or no container
    /// ever ran.
    pub shims: Option<Vec<WrittenBytes>>,
    /// All pods; `None` with control groups of version 1, which do not tell.
    pub pods: Option<WrittenBytes>,
    /// The disk of the root directory, since the machine was started.
    pub disk: Option<(DiskWearFacts, u64)>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WriterLine {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    written_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    day_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_life_percent: Option<u8>,
}

/// `/stats/disk`: a JSON list of who writes: `name`, `writtenBytes` in `seconds`, `dayBytes` at that rate,
/// `usedLifePercent`. What is not known is left out.
#[must_use]
pub fn render_disk_page(facts: &FlashWrites) -> String {
    let agent = facts.agent;
    let own = agent.map(|(bytes, seconds)| (bytes.saturating_sub(facts.images_bytes), seconds));
    let mut lines = Vec::from([
        writer_line("agent", own),
        writer_line(
            "images",
            agent.map(|(_, seconds)| (facts.images_bytes, seconds)),
        ),
        facts
            .shims
            .as_deref()
            .map_or_else(|| writer_line("logs", None), sum_shim_logs),
        writer_line("pods", facts.pods),
    ]);
    if let Some((disk, seconds)) = &facts.disk {
        let mut line = writer_line(&disk.name, Some((disk.written, *seconds)));
        line.used_life_percent = disk.used_life;
        lines.push(line);
    }
    serde_json::to_value(lines).unwrap_or_default().to_string() + "\n"
}

fn writer_line(name: &str, wrote: Option<WrittenBytes>) -> WriterLine {
    WriterLine {
        name: name.into(),
        written_bytes: wrote.map(|(bytes, _)| bytes),
        seconds: wrote.map(|(_, seconds)| seconds),
        day_bytes: wrote.map(bytes_per_day),
        used_life_percent: None,
    }
}

/// Adds up the rates of the shims that run now, each over its own time: shims come and go with their containers.
fn sum_shim_logs(shims: &[WrittenBytes]) -> WriterLine {
    let sum = |of: fn(WrittenBytes) -> u64| {
        shims
            .iter()
            .map(|wrote| of(*wrote))
            .fold(0, u64::saturating_add)
    };
    let longest = shims.iter().map(|(_, seconds)| *seconds).max();
    WriterLine {
        day_bytes: Some(sum(bytes_per_day)),
        ..writer_line(
            "logs",
            Some((sum(|(bytes, _)| bytes), longest.unwrap_or(0))),
        )
    }
}

fn bytes_per_day((bytes, seconds): WrittenBytes) -> u64 {
    let day = u128::from(bytes) * u128::from(DAY_SECONDS) / u128::from(seconds.max(LEAST_SECONDS));
    u64::try_from(day).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn disk(used_life: Option<u8>, at_its_end: bool) -> DiskWearFacts {
        DiskWearFacts {
            name: "mmcblk0".into(),
            written: 2 << 30,
            used_life,
            at_its_end,
        }
    }

    #[test]
    fn from_when_on_a_disk_is_worn() {
        // WEAR-06
        let seen = |used_life, at_its_end| {
            let condition = storage_worn_condition(&disk(used_life, at_its_end))?;
            Some((condition.ok, condition.reason, condition.message))
        };
        assert_eq!(seen(None, false), None, "it does not tell");
        for (used, at_its_end, ok, message) in [
            (
                Some(80),
                false,
                true,
                "mmcblk0: up to 80 % of its life is used",
            ),
            (
                Some(90),
                false,
                false,
                "mmcblk0: up to 90 % of its life is used",
            ),
            (
                Some(10),
                true,
                false,
                "mmcblk0: up to 10 % of its life is used; its spare blocks are nearly used up",
            ),
            (
                None,
                true,
                false,
                "mmcblk0: it does not report its wear; its spare blocks are nearly used up",
            ),
        ] {
            let reason = if ok {
                "StorageIsNotWorn"
            } else {
                "StorageIsWorn"
            };
            assert_eq!(
                seen(used, at_its_end),
                Some((ok, reason.into(), message.into()))
            );
            assert_eq!(is_disk_worn(&disk(used, at_its_end)), !ok);
        }
    }

    #[test]
    fn who_writes_how_much_a_day() {
        // WEAR-06
        let day = 24 * 3600;
        let mut facts = FlashWrites {
            agent: Some((900, 2 * day)),
            images_bytes: 600,
            // A shim that began a minute ago counts as if it had run for an hour.
            shims: Some([(100, day), (1000, 2 * day), (10, 60)].into()),
            pods: Some((4 << 30, 4 * day)),
            disk: Some((disk(Some(30), false), 2 * day)),
        };
        let read = |facts: &FlashWrites| -> Value {
            serde_json::from_str(&render_disk_page(facts)).expect("JSON")
        };
        let line = |name: &str, bytes: u64, seconds: u64, a_day: u64| json!({"name": name, "writtenBytes": bytes, "seconds": seconds, "dayBytes": a_day});
        let mut of_disk = line("mmcblk0", 2 << 30, 2 * day, 1 << 30);
        of_disk["usedLifePercent"] = 30.into();
        assert_eq!(
            read(&facts),
            json!([
                line("agent", 300, 2 * day, 150),
                line("images", 600, 2 * day, 300),
                line("logs", 1110, 2 * day, 100 + 500 + 240),
                line("pods", 4 << 30, 4 * day, 1 << 30),
                of_disk,
            ])
        );
        facts = FlashWrites {
            images_bytes: 1,
            ..FlashWrites::default()
        };
        assert_eq!(
            read(&facts),
            json!([{"name": "agent"}, {"name": "images"}, {"name": "logs"}, {"name": "pods"}])
        );
    }
}
