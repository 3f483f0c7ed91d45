//! How many children of the backend run at a time.

use smol::lock::{Semaphore, SemaphoreGuard};

/// Memory that one OCI runtime or CNI plugin may need while it runs, bytes (runc 1.1 peaks at about 12 MiB).
const CHILD_BYTES: u64 = 16 * 1024 * 1024;
/// More children than this for each core only wait for one another.
const PER_CORE: u64 = 2;

/// Lets a bounded number of children run at once; the rest wait in the order they came.
#[derive(Debug)]
pub struct Gate {
    permits: Semaphore,
}

impl Gate {
    /// Lets `children` (at least one) run at a time.
    #[must_use]
    pub fn new(children: usize) -> Self {
        Self {
            permits: Semaphore::new(children.max(1)),
        }
    }

    /// How many children a machine bears: half of its available memory, and [`PER_CORE`] for each core.
    #[must_use]
    pub fn width(available_bytes: u64, cores: usize) -> usize {
        let by_memory = available_bytes / 2 / CHILD_BYTES;
        let by_cores = PER_CORE * u64::try_from(cores).unwrap_or(1);
        usize::try_from(by_memory.min(by_cores).max(1)).unwrap_or(1)
    }

    /// Waits for a place; dropping the guard frees it.
    pub async fn pass(&self) -> SemaphoreGuard<'_> {
        self.permits.acquire().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_follows_memory_and_cores() {
        const MIB: u64 = 1 << 20;
        for (name, bytes, cores, want) in [
            ("Pi Zero", 60 * MIB, 1, 1),
            ("nothing free", 0, 4, 1),
            ("1 GiB board", 700 * MIB, 4, 8),
            ("big", 24_000 * MIB, 2, 4),
        ] {
            assert_eq!(Gate::width(bytes, cores), want, "{name}");
        }
    }
}
