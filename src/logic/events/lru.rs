//! A table of fixed capacity in which the entry that was not used for the longest time makes room.

use alloc::vec::Vec;

/// Entries by digest. Two keys with one digest would share an entry, nothing worse.
#[derive(Clone, Debug)]
pub(super) struct Lru<T> {
    pub(super) entries: Vec<LruEntry<T>>,
    capacity: usize,
    clock: u64,
}

#[derive(Clone, Debug)]
pub(super) struct LruEntry<T> {
    key: u64,
    used: u64,
    value: T,
}

impl<T> Lru<T> {
    pub(super) const fn new(capacity: usize) -> Self {
        Self {
            entries: Vec::new(),
            capacity,
            clock: 0,
        }
    }

    /// The entry of that key; if there is none, one is made.
    pub(super) fn entry_or_insert(&mut self, key: u64, make: impl FnOnce() -> T) -> &mut T {
        self.clock += 1;
        let known = self.entries.iter().position(|e| e.key == key);
        let index = known.unwrap_or_else(|| {
            let entry = LruEntry {
                key,
                used: 0,
                value: make(),
            };
            if self.entries.len() < self.capacity {
                self.entries.push(entry);
                return self.entries.len() - 1;
            }
            let all = self.entries.iter().enumerate();
            let oldest = all
                .min_by_key(|(_, e)| e.used)
                .map_or(0, |(index, _)| index);
            self.entries[oldest] = entry;
            oldest
        });
        let entry = &mut self.entries[index];
        entry.used = self.clock;
        &mut entry.value
    }
}
