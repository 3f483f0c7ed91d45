//! The heap of programs whose C library is not glibc: one for all threads, whose free pages go back to the system.
//!
//! The allocators of such libraries differ. That of zig, with which programs for boards are linked, rounds sizes up to
//! powers of two and returns nothing: after a crowd of 100 pods an agent had 11 MiB. glibc has its own way to give
//! pages back, and a shim takes less with it.
//! Man pages: `mmap(2)`, `mremap(2)`, `madvise(2)`.
#![expect(
    unsafe_code,
    reason = "an allocator is made of raw memory; mmap and mremap are given what they returned"
)]

use core::{
    alloc::{GlobalAlloc, Layout},
    ffi::c_void,
    ptr,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::{Allocator, Dlmalloc};
use nix::errno::Errno;

/// Size of a piece, in bytes, from which on it has a mapping of its own, which goes when the piece goes.
const OWN_MAPPING_BYTES: usize = 64 << 10;
/// Largest alignment of such a piece, in bytes: that of a line of the processor's cache, which every mapping has.
const OWN_MAPPING_ALIGN: usize = 64;
/// Step by which the heap grows and shrinks, in bytes: a page, if that is larger.
const GRANULE_BYTES: usize = 16 << 10;
/// The largest free piece whose pages are given back in one step, in bytes.
const LARGEST_PIECE_BYTES: usize = 1 << 20;
/// Size of free pieces, in pages, up to which they are looked for in steps of [`FINE_STEP_BYTES`]; larger ones in steps
/// of a page. A piece may begin anywhere in a page: the rest that a step leaves of a small one could be all that there
/// is to give back.
const FINE_PAGES: usize = 16;
const FINE_STEP_BYTES: usize = 256;
/// Alignment of every piece of the allocator, in bytes.
const NATURAL_ALIGN: usize = 2 * size_of::<usize>();

static HEAP: Mutex<Dlmalloc<SystemPages>> = Mutex::new(new());

const fn new() -> Dlmalloc<SystemPages> {
    Dlmalloc::new_with_allocator(SystemPages {
        page_bytes: 0,
        may_grow: true,
    })
}

/// The heap, as `#[global_allocator]` wants it.
#[derive(Debug)]
pub struct Heap;

/// Locks the heap. Keeps `errno`: callers of an allocator do not expect it to change.
fn lock() -> MutexGuard<'static, Dlmalloc<SystemPages>> {
    let mut heap = HEAP.try_lock().unwrap_or_else(|_| {
        let errno = Errno::last_raw();
        let heap = HEAP.lock().unwrap_or_else(PoisonError::into_inner);
        Errno::set_raw(errno);
        heap
    });
    if heap.allocator().page_bytes == 0 {
        make_ready(&mut heap);
    }
    heap
}

/// Sets the sizes that are known only while the program runs. A heap that was used must not be moved.
fn make_ready(heap: &mut Dlmalloc<SystemPages>) {
    let page = usize::try_from(super::pages::page_size_bytes()).unwrap_or(GRANULE_BYTES);
    heap.allocator_mut().page_bytes = page;
    // Both are powers of two, so the larger is one too.
    heap.set_granularity(GRANULE_BYTES.max(page));
}

// SAFETY: pieces come from one allocator behind a lock or have a mapping of their own; which of both follows from the layout alone.
// Nothing here panics: the calls that compare a layout with what the allocator remembers are not used.
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
            // SAFETY: the caller had `piece` from here.
            unsafe { lock().c_free(piece) }
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that is valid with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_own_mapping(layout), is_own_mapping(new)) {
            (true, true) => remap(piece, layout.size(), size),
            (false, false) if layout.align() <= NATURAL_ALIGN => {
                // SAFETY: the caller had `piece` from here.
                unsafe { lock().c_realloc(piece, size) }
            }
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

/// Returns true if a piece has a mapping of its own. The layout alone decides.
const fn is_own_mapping(layout: Layout) -> bool {
    layout.size() >= OWN_MAPPING_BYTES && layout.align() <= OWN_MAPPING_ALIGN
}

/// Gives the pages of free pieces back to the system, wherever in the heap they lie. Returns when that is done.
pub fn trim() {
    trim_heap(&mut lock());
}

/// Takes each free piece of a page or more, the largest first and so nearly whole, drops its pages, and gives it back.
/// Pages at both ends stay: the allocator keeps its data of a piece there.
fn trim_heap(heap: &mut Dlmalloc<SystemPages>) {
    // SAFETY: releases free memory only.
    unsafe { heap.trim(0) };
    heap.allocator_mut().may_grow = false;
    let page = heap.allocator().page_bytes;
    let fine = FINE_PAGES * page;
    let large = (fine + page..=LARGEST_PIECE_BYTES.max(fine))
        .rev()
        .step_by(page);
    let small = (page..=fine).rev().step_by(FINE_STEP_BYTES);
    let mut taken: *mut u8 = ptr::null_mut();
    for bytes in large.chain(small) {
        loop {
            // SAFETY: any size is fine.
            let piece = unsafe { heap.c_malloc(bytes) };
            if piece.is_null() {
                break;
            }
            drop_pages(piece, bytes, page);
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
    heap.allocator_mut().may_grow = true;
}

/// Drops the whole pages of a free piece, except its beginning. On an error they stay.
fn drop_pages(piece: *mut u8, bytes: usize, page: usize) {
    let start = (piece.addr() + size_of::<usize>()).next_multiple_of(page);
    let end = (piece.addr() + bytes) / page * page;
    if start < end {
        let at = piece.with_addr(start).cast::<c_void>();
        // SAFETY: these pages lie in a free piece: what was in them is wanted by nobody.
        unsafe { libc::madvise(at, end - start, libc::MADV_DONTNEED) };
    }
}

/// Memory of the system.
struct SystemPages {
    /// Bytes of a page; 0 until the heap is first used.
    page_bytes: usize,
    /// False while free pieces are looked for: then the heap must not grow.
    may_grow: bool,
}

// SAFETY: mappings are of the size that is said, private, and used by this heap only.
unsafe impl Allocator for SystemPages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let size = size.next_multiple_of(self.page_bytes);
        let at = if self.may_grow {
            map(size)
        } else {
            ptr::null_mut()
        };
        if !at.is_null() {
            let errno = Errno::last_raw();
            // The kernel would fill huge pages up again where pages were given back.
            // SAFETY: changes nothing but how the kernel backs this new mapping; without huge pages it is refused.
            unsafe { libc::madvise(at.cast(), size, libc::MADV_NOHUGEPAGE) };
            Errno::set_raw(errno);
        }
        (at, size, 0)
    }

    /// Refuses: the allocator makes no mappings for one piece each, so there is none to move.
    fn remap(&self, _at: *mut u8, _old: usize, _new: usize, _can_move: bool) -> *mut u8 {
        ptr::null_mut()
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
        self.page_bytes
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
    // SAFETY: `at` is a mapping of `old` bytes that came from here, and the caller's alone.
    let at = unsafe { libc::mremap(at.cast(), old, new, libc::MREMAP_MAYMOVE) };
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

    /// A piece of the program's heap that goes when it is dropped.
    struct Piece(*mut u8, Layout);

    impl Piece {
        fn new(size: usize, align: usize) -> Self {
            let layout = Layout::from_size_align(size, align).expect("a layout");
            // SAFETY: the size is not zero.
            let at = unsafe { Heap.alloc(layout) };
            assert!(!at.is_null() && at.addr().is_multiple_of(align));
            Self(at, layout)
        }

        fn zeroed(size: usize) -> Self {
            let layout = Layout::from_size_align(size, 8).expect("a layout");
            // SAFETY: the size is not zero.
            let at = unsafe { Heap.alloc_zeroed(layout) };
            assert!(!at.is_null());
            Self(at, layout)
        }

        fn fill(&mut self, byte: u8) {
            // SAFETY: the piece is that long.
            unsafe { self.0.write_bytes(byte, self.1.size()) };
        }

        fn begins_with(&self, byte: u8, bytes: usize) -> bool {
            // SAFETY: the piece is that long, and was filled.
            let all = unsafe { core::slice::from_raw_parts(self.0, self.1.size()) };
            all[..bytes].iter().all(|b| *b == byte)
        }

        fn is_full_of(&self, byte: u8) -> bool {
            self.begins_with(byte, self.1.size())
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

    /// Returns true if there is memory behind the page at this address.
    fn is_resident(page: *mut u8) -> bool {
        let mut is_there = 0;
        // SAFETY: asks for one page, and writes one byte for it; of what is not mapped it says so.
        let said = unsafe { libc::mincore(page.cast(), 1, &raw mut is_there) };
        said == 0 && is_there & 1 == 1
    }

    #[test]
    fn free_pages_in_the_middle_go_back() {
        /// Number of pieces. Odd: the last one stays, and the memory behind it may go back at once.
        const PIECES: usize = 65;
        /// Pages of a mapping. All pieces lie in one: unmapped memory could belong to another thread in the next
        /// moment.
        const MAPPING_PAGES: usize = 512;
        /// Bytes at the beginning of a free piece in which the allocator keeps its list.
        const NODE_BYTES: usize = size_of::<[usize; 8]>();
        let mut looked_at = 0;
        for sixteenths in [29, 35, 51, 81] {
            // A heap of its own: others use that of the program at the same time.
            let mut heap = new();
            make_ready(&mut heap);
            let page = heap.allocator().page_bytes;
            assert!(heap.set_granularity(MAPPING_PAGES * page));
            let bytes = page / 16 * sixteenths;
            let all: Vec<*mut u8> = (0..PIECES)
                .map(|_| {
                    // SAFETY: any size is fine.
                    let piece = unsafe { heap.c_malloc(bytes) };
                    assert!(!piece.is_null());
                    // SAFETY: it is that long.
                    unsafe { piece.write_bytes(7, bytes) };
                    piece
                })
                .collect();
            // Every second one goes, and between two that stay there are whole pages.
            let (kept, gone): (Vec<_>, Vec<_>) = (0..).zip(all).partition(|(n, _)| n % 2 == 0);
            let mut pages = Vec::new();
            for (_, piece) in gone {
                let first = (piece.addr() + NODE_BYTES).next_multiple_of(page);
                let last = piece.addr() + bytes - FINE_STEP_BYTES - page;
                pages.extend((first..=last).step_by(page).map(|at| piece.with_addr(at)));
                // SAFETY: it came from this heap, and nobody else has it.
                unsafe { heap.c_free(piece) };
            }
            looked_at += pages.len();
            assert!(pages.iter().all(|page| is_resident(*page)));
            trim_heap(&mut heap);
            let left = pages.iter().filter(|page| is_resident(**page)).count();
            assert_eq!(left, 0, "of {} pages", pages.len());
            for (_, piece) in kept {
                // SAFETY: nobody else has it, and it was filled.
                let piece = unsafe { core::slice::from_raw_parts(piece, bytes) };
                assert!(piece.iter().all(|b| *b == 7));
            }
            // Pages that were given back can be used again.
            // SAFETY: any size is fine.
            let piece = unsafe { heap.calloc(bytes, 8) };
            assert!(!piece.is_null());
            // SAFETY: it is that long.
            let piece = unsafe { core::slice::from_raw_parts(piece, bytes) };
            assert!(piece.iter().all(|b| *b == 0));
        }
        assert!(looked_at > 2 * PIECES, "{looked_at} pages");
    }

    #[test]
    fn pieces_keep_what_is_in_them_as_they_change_their_size() {
        for align in [1, 8, 64, 4096, 8192] {
            let mut piece = Piece::new(100, align);
            // Up and down over the size from which a piece has a mapping of its own.
            let limit = OWN_MAPPING_BYTES;
            for (n, size) in
                (0..).zip([200, limit - 1, limit, 3 * limit, limit + 1, limit - 1, 150])
            {
                piece.fill(n);
                let kept = piece.1.size().min(size);
                piece.resize(size);
                assert!(piece.begins_with(n, kept), "{size} bytes at {align}");
            }
        }
    }

    #[test]
    fn zeroed_pieces_are_zero_where_others_were() {
        for size in [1, 5000, 40_000, OWN_MAPPING_BYTES] {
            Piece::new(size, 8).fill(0xff);
            assert!(Piece::zeroed(size).is_full_of(0));
            Piece::new(size, 8).fill(0xff);
            trim();
            assert!(Piece::zeroed(size).is_full_of(0));
        }
    }

    #[test]
    fn threads_share_it_while_it_is_trimmed() {
        std::thread::scope(|scope| {
            for byte in 1..=4 {
                scope.spawn(move || {
                    let mut kept: Vec<Piece> = Vec::new();
                    for n in 0..5000_usize {
                        let mut piece = Piece::new(1 + n * 31 % 9000, 8);
                        piece.fill(byte);
                        if n % 7 == 0 {
                            let size = 1 + n * 97 % (2 * OWN_MAPPING_BYTES);
                            piece.resize(size);
                            piece.fill(byte);
                        }
                        kept.push(piece);
                        if kept.len() > 50 {
                            let gone = kept.swap_remove(n * 17 % 50);
                            assert!(gone.is_full_of(byte));
                        }
                        if n % 500 == 0 {
                            trim();
                        }
                    }
                    assert!(kept.iter().all(|piece| piece.is_full_of(byte)));
                });
            }
        });
    }
}
