//! The heap of unit tests: that of the C library, with a count of what each thread takes and holds.
//!
//! A test that runs an agent on its own thread counts only this agent, whatever other tests do at the same time.
#![expect(unsafe_code, reason = "an allocator is made of raw memory")]

use core::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
};
use std::alloc::System;

/// Bytes that an allocator keeps beside a piece, and multiple to which it rounds both.
const HEAD_BYTES: i64 = 8;
const STEP_BYTES: i64 = 16;

/// Use that one thread makes of the heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeapCount {
    /// Pieces that the thread took since it began; one that grows or shrinks is taken again.
    pub(crate) taken: i64,
    /// Bytes that it took and did not give back, as an allocator needs them.
    pub(crate) held_bytes: i64,
}

#[global_allocator]
static HEAP: CountedHeap = CountedHeap;

thread_local! {
    static COUNT: Cell<HeapCount> = const { Cell::new(HeapCount { taken: 0, held_bytes: 0 }) };
    /// Set while what is taken is work of a test's own.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Use that this thread made of the heap until now.
pub(crate) fn thread_heap_count() -> HeapCount {
    COUNT.get()
}

/// Does work of a test's own: the pieces that it takes are not counted, the bytes that it leaves are.
pub(crate) fn take_uncounted<T>(work: impl FnOnce() -> T) -> T {
    let before = IS_OWN.replace(true);
    let made = work();
    IS_OWN.set(before);
    made
}

fn count(pieces: i64, bytes: i64) {
    // Without a destructor the count outlives all others of the thread.
    COUNT.set({
        let HeapCount { taken, held_bytes } = COUNT.get();
        HeapCount {
            taken: taken + if IS_OWN.get() { 0 } else { pieces },
            held_bytes: held_bytes + bytes,
        }
    });
}

/// Bytes that an allocator needs for a piece of this size.
fn needed_bytes(size: usize) -> i64 {
    let bytes = i64::try_from(size).unwrap_or(i64::MAX / 2) + HEAD_BYTES;
    (bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES
}

/// The heap, as `#[global_allocator]` wants it.
pub(crate) struct CountedHeap;

// SAFETY: all is passed on to the allocator of the C library; a count touches no memory of the heap.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, needed_bytes(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, needed_bytes(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        count(0, -needed_bytes(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(piece, layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, needed_bytes(size) - needed_bytes(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(piece, layout, size) }
    }
}
