//! The heap of the program: one for all threads, with any C library, whose free pages go back to the system.
//!
//! What C libraries bring differs. That of zig rounds sizes up to powers of two and returns nothing: after a crowd of 100 pods
//! an agent had 11 MiB. One measured heap is the same on every board.
//! Man pages: `mmap(2)`, `mremap(2)`, `madvise(2)`.
#![expect(
    unsafe_code,
    reason = "an allocator is made of raw memory; mmap and mremap are given what they returned"
)]

use core::{
    alloc::{GlobalAlloc, Layout},
    ffi::c_void,
    ptr::{self, NonNull},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::{Allocator, Dlmalloc};

/// From this size on, in bytes, a piece has a mapping of its own, which goes when the piece goes.
const OWN_MAPPING_BYTES: usize = 64 << 10;
/// By which the heap grows and shrinks, in bytes.
const GRANULE_BYTES: usize = 16 << 10;
/// The largest free piece whose pages are given back in one step, in bytes.
const LARGEST_PIECE_BYTES: usize = 1 << 20;

static HEAP: Mutex<Dlmalloc<Pages>> = Mutex::new(new());

const fn new() -> Dlmalloc<Pages> {
    let mut heap = Dlmalloc::new_with_allocator(Pages { may_grow: true });
    assert!(heap.set_granularity(GRANULE_BYTES), "a power of two");
    heap
}

/// The heap, as `#[global_allocator]` wants it.
pub struct Heap;

fn lock() -> MutexGuard<'static, Dlmalloc<Pages>> {
    HEAP.lock().unwrap_or_else(PoisonError::into_inner)
}

// SAFETY: pieces come from one allocator behind a lock or have a mapping of their own; which of both follows from the layout alone.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_own_mapping(layout) {
            return map(layout.size());
        }
        // SAFETY: any size and alignment is fine.
        unsafe { lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_own_mapping(layout) {
            return map(layout.size());
        }
        // SAFETY: any size and alignment is fine.
        unsafe { lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if is_own_mapping(layout) {
            unmap(piece, layout.size());
        } else {
            // SAFETY: the caller had `piece` from here, with this layout.
            unsafe { lock().free(piece, layout.size(), layout.align()) }
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that is valid with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_own_mapping(layout), is_own_mapping(new)) {
            (true, true) => remap(piece, layout.size(), size),
            // SAFETY: the caller had `piece` from here, with this layout.
            (false, false) => unsafe { lock().realloc(piece, layout.size(), layout.align(), size) },
            _ => {
                // SAFETY: as the caller promises.
                let moved = unsafe { self.alloc(new) };
                if !moved.is_null() {
                    let kept = layout.size().min(size);
                    // SAFETY: both pieces are that long, and are different ones.
                    unsafe { ptr::copy_nonoverlapping(piece, moved, kept) };
                    // SAFETY: as the caller promises.
                    unsafe { self.dealloc(piece, layout) };
                }
                moved
            }
        }
    }
}

/// A mapping is aligned to a page, and nothing asks for more.
const fn is_own_mapping(layout: Layout) -> bool {
    layout.size() >= OWN_MAPPING_BYTES && layout.align() <= MIN_PAGE_BYTES
}

/// The smallest page of any machine, in bytes.
const MIN_PAGE_BYTES: usize = 4096;

/// Gives the pages of free pieces back to the system, wherever in the heap they lie. Returns when that is done.
///
/// Each free piece of a page or more is taken, the largest first and so nearly whole; its pages are dropped, and it is given back.
/// Pages at both ends stay: what the allocator remembers of a piece lies there.
pub fn trim() {
    let mut heap = lock();
    heap.allocator_mut().may_grow = false;
    let mut taken: *mut u8 = ptr::null_mut();
    let page = page_bytes();
    for bytes in (page..=LARGEST_PIECE_BYTES).rev().step_by(page) {
        loop {
            // SAFETY: any size is fine.
            let piece = unsafe { heap.c_malloc(bytes) };
            if piece.is_null() {
                break;
            }
            drop_pages(piece, bytes);
            // SAFETY: the piece is ours, large enough and aligned for a pointer.
            unsafe { piece.cast::<*mut u8>().write(taken) };
            taken = piece;
        }
    }
    while !taken.is_null() {
        // SAFETY: this was written above, to a piece that is still ours.
        let next = unsafe { taken.cast::<*mut u8>().read() };
        // SAFETY: it came from this heap, and nobody else has it.
        unsafe { heap.c_free(taken) };
        taken = next;
    }
    // SAFETY: releases free memory only.
    unsafe { heap.trim(0) };
    heap.allocator_mut().may_grow = true;
}

/// Drops the whole pages of a piece that nobody needs, but for its beginning. An error leaves them.
fn drop_pages(piece: *mut u8, bytes: usize) {
    let page = page_bytes();
    let start = (piece.addr() + size_of::<usize>()).next_multiple_of(page);
    let end = (piece.addr() + bytes) / page * page;
    if start < end
        && let Some(at) = NonNull::new(piece.with_addr(start).cast::<c_void>())
    {
        // SAFETY: these pages lie in a free piece: what was in them is wanted by nobody.
        unsafe { libc::madvise(at.as_ptr(), end - start, libc::MADV_DONTNEED) };
    }
}

fn page_bytes() -> usize {
    usize::try_from(super::pages::bytes()).unwrap_or(MIN_PAGE_BYTES)
}

/// Memory of the system.
struct Pages {
    /// Not while free pieces are looked for.
    may_grow: bool,
}

// SAFETY: mappings are of the size that is said, private, and used by this heap only.
unsafe impl Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let size = size.next_multiple_of(page_bytes());
        let at = if self.may_grow {
            map(size)
        } else {
            ptr::null_mut()
        };
        (at, size, 0)
    }

    fn remap(&self, at: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        remap_with(
            at,
            old,
            new,
            if can_move { libc::MREMAP_MAYMOVE } else { 0 },
        )
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        unmap(at.wrapping_add(new), old - new)
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        unmap(at, size)
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        page_bytes()
    }
}

/// New memory of zeros. Null: there is none.
fn map(size: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel wants it.
    let at = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        ptr::null_mut()
    } else {
        at.cast()
    }
}

fn remap(at: *mut u8, old: usize, new: usize) -> *mut u8 {
    remap_with(at, old, new, libc::MREMAP_MAYMOVE)
}

fn remap_with(at: *mut u8, old: usize, new: usize, flags: i32) -> *mut u8 {
    // SAFETY: `at` is a mapping of `old` bytes that came from here, and the caller's alone.
    let at = unsafe { libc::mremap(at.cast(), old, new, flags) };
    if at == libc::MAP_FAILED {
        ptr::null_mut()
    } else {
        at.cast()
    }
}

fn unmap(at: *mut u8, size: usize) -> bool {
    // SAFETY: `at` are `size` bytes of a mapping that came from here, and the caller's alone.
    unsafe { libc::munmap(at.cast(), size) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece that goes when it is dropped.
    struct Piece(*mut u8, Layout);

    impl Piece {
        fn new(size: usize, align: usize) -> Self {
            let layout = Layout::from_size_align(size, align).expect("a layout");
            // SAFETY: the size is not zero.
            let at = unsafe { Heap.alloc(layout) };
            assert!(!at.is_null() && at.addr().is_multiple_of(align));
            Self(at, layout)
        }

        fn fill(&mut self, byte: u8) {
            // SAFETY: the piece is that long.
            unsafe { self.0.write_bytes(byte, self.1.size()) };
        }

        fn begins_with(&self, byte: u8, bytes: usize) -> bool {
            assert!(bytes <= self.1.size());
            // SAFETY: the piece is that long, and was filled.
            let all = unsafe { core::slice::from_raw_parts(self.0, bytes) };
            all.iter().all(|b| *b == byte)
        }

        fn resize(&mut self, size: usize) {
            // SAFETY: the piece is of this heap, with this layout.
            self.0 = unsafe { Heap.realloc(self.0, self.1, size) };
            assert!(!self.0.is_null() && self.0.addr().is_multiple_of(self.1.align()));
            self.1 = Layout::from_size_align(size, self.1.align()).expect("a layout");
        }
    }

    impl Drop for Piece {
        fn drop(&mut self) {
            // SAFETY: the piece is of this heap, with this layout.
            unsafe { Heap.dealloc(self.0, self.1) };
        }
    }

    /// Pages of memory behind these addresses.
    fn resident(from: *mut u8, to: *mut u8) -> usize {
        let page = page_bytes();
        let first = from.addr() / page * page;
        let pages = (first..to.addr()).step_by(page);
        pages
            .filter(|at| {
                let mut is_there = 0;
                // SAFETY: asks for one page, and writes one byte for it; of what is not mapped it says so.
                let said =
                    unsafe { libc::mincore(from.with_addr(*at).cast(), 1, &raw mut is_there) };
                said == 0 && is_there & 1 == 1
            })
            .count()
    }

    #[test]
    fn free_pages_in_the_middle_go_back() {
        const PIECES: usize = 4096;
        const KEPT_OF: usize = 128;
        let mut pieces: Vec<Option<Piece>> = (0..PIECES)
            .map(|_| {
                let mut piece = Piece::new(1000, 8);
                piece.fill(7);
                Some(piece)
            })
            .collect();
        let all = || pieces.iter().flatten().map(|piece| piece.0);
        let (from, to) = (all().min().expect("pieces"), all().max().expect("pieces"));
        for (n, piece) in pieces.iter_mut().enumerate() {
            if n % KEPT_OF != 0 {
                *piece = None;
            }
        }
        let before = resident(from, to);
        assert!(before * page_bytes() >= PIECES / 2 * 1000, "{before} pages");
        trim();
        let after = resident(from, to);
        // Each piece that is kept holds a page, and another one if it lies across their border or at an end of free ones.
        assert!(after <= 3 * PIECES / KEPT_OF, "{after} of {before} pages");
        assert!(pieces.iter().flatten().all(|p| p.begins_with(7, 1000)));
        // What was given back can be had again.
        let mut piece = Piece::new(60_000, 8);
        piece.fill(9);
        assert!(pieces.iter().flatten().all(|p| p.begins_with(7, 1000)));
    }

    #[test]
    fn pieces_keep_what_is_in_them_as_they_change_their_size() {
        for align in [1, 8, 64, 4096, 8192] {
            let mut piece = Piece::new(100, align);
            piece.fill(3);
            // Up and down over the size from which a piece has a mapping of its own.
            for size in [
                200,
                OWN_MAPPING_BYTES,
                3 * OWN_MAPPING_BYTES,
                OWN_MAPPING_BYTES,
                150,
            ] {
                piece.resize(size);
                assert!(piece.begins_with(3, 100), "{size} bytes at {align}");
            }
        }
    }

    #[test]
    fn zeroed_pieces_are_zero_where_others_were() {
        for size in [1, 5000, OWN_MAPPING_BYTES] {
            Piece::new(size, 8).fill(0xff);
            let layout = Layout::from_size_align(size, 8).expect("a layout");
            // SAFETY: the size is not zero.
            let piece = Piece(unsafe { Heap.alloc_zeroed(layout) }, layout);
            assert!(!piece.0.is_null() && piece.begins_with(0, size));
        }
    }

    #[test]
    fn threads_share_it_while_it_is_trimmed() {
        std::thread::scope(|scope| {
            for byte in 1..=4 {
                scope.spawn(move || {
                    let mut kept: Vec<Piece> = Vec::new();
                    for n in 0..20_000_usize {
                        let mut piece = Piece::new(1 + n * 31 % 9000, 8);
                        piece.fill(byte);
                        kept.push(piece);
                        if kept.len() > 50 {
                            let gone = kept.swap_remove(n * 17 % 50);
                            assert!(gone.begins_with(byte, gone.1.size()));
                        }
                        if n % 500 == 0 {
                            trim();
                        }
                    }
                });
            }
        });
    }
}
