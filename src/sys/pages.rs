//! Buffers in pages of their own, which can be given back while they hold nothing.

#![expect(unsafe_code, reason = "anonymous mappings")]

use core::ffi::c_void;
use core::num::NonZeroUsize;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a page: 4 KiB, or up to 64 KiB on some boards. The kernel tells every program.
#[must_use]
pub fn page_size_bytes() -> u64 {
    let told = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    let told = told
        .ok()
        .flatten()
        .and_then(|bytes| u64::try_from(bytes).ok());
    told.expect("the C library has it from the kernel")
}

/// Zeroed bytes in whole pages. A page takes memory from when it is first written until it is released.
#[derive(Debug)]
pub struct PageBuffer {
    start: NonNull<c_void>,
    len: NonZeroUsize,
    page: usize,
}

impl PageBuffer {
    /// Maps at least `len` bytes, rounded up to whole pages (up to 64 KiB each on some boards).
    pub fn map(len: usize) -> nix::Result<Self> {
        let page = usize::try_from(page_size_bytes()).map_err(|_| nix::Error::EINVAL)?;
        let len = NonZeroUsize::new(len.next_multiple_of(page)).ok_or(nix::Error::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }?;
        Ok(Self { start, len, page })
    }

    /// Gives back the memory behind the bytes from `from` on, whole pages only: they read as zero (or as before) from now.
    pub fn release(&mut self, from: usize) {
        let from = from.next_multiple_of(self.page);
        if from >= self.len.get() {
            return;
        }
        // SAFETY: `from` is less than the length of the mapping.
        let start = unsafe { self.start.byte_add(from) };
        // SAFETY: the range lies in our mapping, and `&mut self` proves that nobody looks at it. It stays readable.
        let _ = unsafe { madvise(start, self.len.get() - from, MmapAdvise::MADV_DONTNEED) };
        // Only locked pages are refused: then the memory is kept, no more.
    }
}

impl Deref for PageBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped readable for `len` bytes as long as `self` lives; zero bytes are valid `u8`s.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr().cast(), self.len.get()) }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` proves that it is the only view.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len.get()) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: our mapping, and no slice of it outlives `self`.
        let done = unsafe { munmap(self.start, self.len.get()) };
        debug_assert!(done.is_ok(), "a whole mapping can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_read_as_zero() {
        let mut pages = PageBuffer::map(100_000).expect("map");
        assert!(pages.len() >= 100_000 && pages.iter().all(|b| *b == 0));
        pages.fill(7);
        let page = pages.page;
        pages.release(1);
        assert!(pages[..page].iter().all(|b| *b == 7));
        assert!(pages[page..].iter().all(|b| *b == 0));
        let len = pages.len();
        pages.release(len);
        pages[len - 1] = 1;
    }
}
