//! Units of systemd: the slices that pods and their classes are in, where the cgroup driver is `systemd`.
//!
//! They are transient units. systemd makes their control groups, and keeps their limits over a reload. Each call has a
//! connection of its own, straight to systemd: no bus daemon is needed, and nothing is to be subscribed to.
//!
//! Source: org.freedesktop.systemd1(5), systemd.resource-control(5).

use core::time::Duration;
use std::path::PathBuf;

use super::values::weight_from_shares;
use crate::{
    api::cri::LinuxResources,
    bus::{
        BusConnection, BusError,
        wire::{BusProperty, CallArguments, MethodAddress, PropertyValue},
    },
    sys::lane::Lane,
};

/// Socket at which systemd listens for root.
pub const SOCKET: &str = "/run/systemd/private";
/// Time limit for a job of systemd.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections that are tried for one call. systemd closes all when it executes itself anew.
const TRIES: u32 = 3;

const MANAGER: MethodAddress = MethodAddress {
    destination: "",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// See the module.
#[derive(Clone)]
pub struct Slices {
    socket: PathBuf,
    /// Lane for calls that wait for systemd.
    lane: Lane,
}

impl Slices {
    /// Slices of the systemd that listens at `socket`.
    #[must_use]
    pub fn at_socket(socket: impl Into<PathBuf>, lane: Lane) -> Self {
        Self {
            socket: socket.into(),
            lane,
        }
    }

    /// Lane for calls that wait for systemd.
    #[must_use]
    pub const fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Returns true if there is a systemd to call.
    #[must_use]
    pub fn has_systemd(&self) -> bool {
        self.socket.exists()
    }

    /// Makes the slice with its limits, and waits until it is there. One that is there gets the limits written again.
    ///
    /// # Errors
    /// See [`BusError`]; it may be called again.
    pub fn start_slice(&self, unit: &str, limits: &LinuxResources) -> Result<(), BusError> {
        let limits = limit_properties(limits);
        self.call_systemd(|bus| {
            let mut all = vec![
                (
                    "Description",
                    PropertyValue::Text(format!("Pods of picolet: {unit}")),
                ),
                // The slice above stays as long as this one.
                (
                    "Wants",
                    PropertyValue::Texts(vec![parent_slice(unit).into()]),
                ),
                // Each of these hands its controller down.
                ("CPUAccounting", PropertyValue::Bool(true)),
                ("IOAccounting", PropertyValue::Bool(true)),
                ("MemoryAccounting", PropertyValue::Bool(true)),
                ("TasksAccounting", PropertyValue::Bool(true)),
                // Pods end with the machine in their own way, not in that of a unit.
                ("DefaultDependencies", PropertyValue::Bool(false)),
            ];
            all.extend(limits.iter().cloned());
            let body = CallArguments::default()
                .with_text(unit)
                .with_text("replace");
            let body = body.with_properties(&all).with_no_auxiliaries();
            match run_systemd_job(bus, "StartTransientUnit", unit, body) {
                Err(e) if e.is_error_named(UNIT_EXISTS) => {
                    // Until the machine goes down, as everything of a transient unit.
                    let runtime = true;
                    let body = CallArguments::default()
                        .with_text(unit)
                        .with_bool(runtime)
                        .with_properties(&limits);
                    bus.call_method(MANAGER, "SetUnitProperties", body)
                        .map(drop)
                }
                made => made,
            }
        })
    }

    /// Stops the slice and everything in it, and waits for that. One that is unknown is stopped.
    ///
    /// # Errors
    /// See [`BusError`]; it may be called again.
    pub fn stop_slice(&self, unit: &str) -> Result<(), BusError> {
        self.call_systemd(|bus| {
            let body = CallArguments::default()
                .with_text(unit)
                .with_text("replace");
            match run_systemd_job(bus, "StopUnit", unit, body) {
                Err(e) if e.is_error_named(NO_SUCH_UNIT) => Ok(()),
                stopped => stopped,
            }
        })
    }

    /// Opens a connection and makes a call on it. A connection that breaks is opened again: `call` may run several
    /// times.
    fn call_systemd(
        &self,
        call: impl Fn(&mut BusConnection) -> Result<(), BusError>,
    ) -> Result<(), BusError> {
        let mut tries = 1;
        loop {
            let asked = BusConnection::open(&self.socket, "JobRemoved", PATIENCE)
                .and_then(|mut bus| call(&mut bus));
            match asked {
                Err(BusError::Io { .. }) if tries < TRIES => tries += 1,
                asked => return asked,
            }
        }
    }
}

/// The slice that is at this path.
pub(super) fn unit_at_path(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next();
    name.filter(|name| name.ends_with(".slice"))
}

/// Calls a method that begins a job, and waits for the end of that.
fn run_systemd_job(
    bus: &mut BusConnection,
    method: &'static str,
    unit: &str,
    body: CallArguments,
) -> Result<(), BusError> {
    let answer = bus.call_method(MANAGER, method, body)?;
    let begun = answer.arguments("o")?.read_text()?;
    loop {
        let signal = bus.next_signal("a job of systemd")?;
        let mut told = signal.arguments("uoss")?;
        told.read_u32()?;
        let (ended, _, result) = (told.read_text()?, told.read_text()?, told.read_text()?);
        if ended == begun {
            return match result {
                "done" => Ok(()),
                result => Err(BusError::Job {
                    unit: unit.into(),
                    result: result.into(),
                }),
            };
        }
    }
}

/// The slice above, by the name of the unit.
fn parent_slice(unit: &str) -> String {
    match unit.rsplit_once('-') {
        Some((above, _)) => format!("{above}.slice"),
        None => "-.slice".into(),
    }
}

/// Translates limits into properties of systemd. Limits that it does not know (huge pages) are only written to files.
fn limit_properties(limits: &LinuxResources) -> Vec<BusProperty> {
    /// "infinity"
    const NONE: u64 = u64::MAX;
    /// Unit to which systemd rounds, microseconds of a second: a hundredth of a processor. The quota is rounded up, so
    /// that the groups below are not limited more than they ask.
    const STEP: u64 = 10_000;
    /// The kernel's own period, microseconds.
    const DEFAULT_PERIOD_US: u64 = 100_000;
    let limit = |value: i64| u64::try_from(value).ok().filter(|&v| v > 0).unwrap_or(NONE);
    let mut all = Vec::new();
    let mut put = |name, value: Option<u64>| {
        if let Some(value) = value {
            all.push((name, PropertyValue::Number(value)));
        }
    };
    put("CPUWeight", limits.cpu_shares.map(weight_from_shares));
    put("CPUQuotaPeriodUSec", limits.cpu_period_us);
    let quota = limits.cpu_quota_us.map(limit);
    put(
        "CPUQuotaPerSecUSec",
        quota.map(|quota| match quota {
            NONE => NONE,
            quota => {
                let period = limits.cpu_period_us.unwrap_or(DEFAULT_PERIOD_US).max(1);
                (quota.saturating_mul(1_000_000) / period).next_multiple_of(STEP)
            }
        }),
    );
    put("MemoryMax", limits.memory_limit_bytes.map(limit));
    put("TasksMax", limits.pids_limit.map(limit));
    for (file, name) in [("memory.min", "MemoryMin"), ("memory.low", "MemoryLow")] {
        let kept = limits.unified.get(file);
        put(name, kept.and_then(|bytes| bytes.parse().ok()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_in_systemds_words() {
        // CG-10 CG-16
        let number = |name, value| (name, PropertyValue::Number(value));
        let limits = LinuxResources {
            cpu_shares: Some(1024),
            cpu_quota_us: Some(1234),
            cpu_period_us: Some(100_000),
            memory_limit_bytes: Some(1 << 20),
            pids_limit: Some(7),
            unified: [("memory.low", "0"), ("memory.min", "9")]
                .map(|(file, value)| (file.into(), value.into()))
                .into(),
            ..LinuxResources::default()
        };
        assert_eq!(
            limit_properties(&limits),
            [
                number("CPUWeight", 39),
                number("CPUQuotaPeriodUSec", 100_000),
                // 12,340 µs of each second, rounded up.
                number("CPUQuotaPerSecUSec", 20_000),
                number("MemoryMax", 1 << 20),
                number("TasksMax", 7),
                number("MemoryMin", 9),
                number("MemoryLow", 0),
            ]
        );
        assert_eq!(limit_properties(&LinuxResources::default()), []);
        let without = LinuxResources {
            cpu_quota_us: Some(-1),
            memory_limit_bytes: Some(0),
            pids_limit: Some(-1),
            ..LinuxResources::default()
        };
        assert_eq!(
            limit_properties(&without),
            [
                number("CPUQuotaPerSecUSec", u64::MAX),
                number("MemoryMax", u64::MAX),
                number("TasksMax", u64::MAX),
            ]
        );
    }

    #[test]
    fn a_slice_is_in_the_one_that_its_name_says() {
        // SVC-31
        for (unit, above) in [
            ("kubepods.slice", "-.slice"),
            ("kubepods-burstable.slice", "kubepods.slice"),
            (
                "kubepods-burstable-podu_1.slice",
                "kubepods-burstable.slice",
            ),
        ] {
            assert_eq!(parent_slice(unit), above);
        }
    }
}
