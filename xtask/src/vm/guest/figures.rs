//! Memory of picolet on this machine, told and held to what SPECIFICATION.md promises.

use super::{
    expect,
    facts::{available, memory, shims, unit},
    pods,
};
use crate::Failure;

/// Memory (PSS) of the agent, KiB.
const AGENT_KIB: u64 = 8 * 1024;
/// Memory of its own that a shim may have, KiB.
const SHIM_PRIVATE_KIB: u64 = 64;

/// One look; all in KiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pods: usize,
    /// PSS and private memory of the agent.
    agent: (u64, u64),
    shims: u64,
    /// PSS of all shims together.
    shims_pss: u64,
    /// Private memory of the largest shim.
    shim_private: u64,
    /// `memory.current` of the agent's unit: with page cache.
    unit: u64,
    /// `MemAvailable`.
    pub(super) available: u64,
}

impl Figures {
    pub(super) fn read() -> Result<Self, Failure> {
        let shims: Vec<_> = shims().into_iter().map(memory).collect::<Result<_, _>>()?;
        Ok(Self {
            pods: pods()?.len(),
            agent: memory(unit("MainPID")?.parse()?)?,
            shims: u64::try_from(shims.len())?,
            shims_pss: shims.iter().map(|(pss, _)| pss).sum(),
            shim_private: shims.iter().map(|(_, own)| *own).max().unwrap_or(0),
            unit: unit("MemoryCurrent")?.parse::<u64>()? / 1024,
            available: available()?,
        })
    }

    pub(super) fn text(&self) -> String {
        format!(
            "{} pods: agent {} KiB PSS ({} private), {} shims {} KiB PSS each (most private {}), all {} KiB; \
             unit's memory.current {} KiB; MemAvailable {} MiB",
            self.pods,
            self.agent.0,
            self.agent.1,
            self.shims,
            self.shims_pss / self.shims.max(1),
            self.shim_private,
            self.agent.0 + self.shims_pss,
            self.unit,
            self.available / 1024,
        )
    }
}

/// Looks, and holds what does not depend on the number of pods.
pub(super) fn hold() -> Result<String, Failure> {
    let found = Figures::read()?;
    for (what, has, limit) in [
        ("memory of the agent", found.agent.0, AGENT_KIB),
        (
            "memory of a shim's own",
            found.shim_private,
            SHIM_PRIVATE_KIB,
        ),
    ] {
        expect(
            &format!("{what} ({has} KiB) within {limit} KiB"),
            &(has <= limit),
            &true,
        )?;
    }
    Ok(found.text())
}
