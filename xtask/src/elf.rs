//! The head of an ELF file, read to tell how a program was linked. Source: elf(5).

/// Program headers that are told apart.
const PT_LOAD: usize = 1;
const PT_DYNAMIC: usize = 2;
const PT_INTERP: usize = 3;
/// `e_type` of a program that lies where it was linked to.
const ET_EXEC: usize = 2;
/// Most program headers that are looked at; linkers write about ten.
const MAX_HEADERS: usize = 1000;

/// How a program was linked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Linked {
    /// `e_machine`.
    pub(crate) machine: usize,
    /// Needs a dynamic loader (`PT_INTERP`).
    pub(crate) interpreted: bool,
    /// Lies at the addresses that the linker gave it: not position independent, nothing to relocate.
    pub(crate) fixed: bool,
    /// The largest pages by which every part of it can be mapped, bytes; 0: it has no part.
    pub(crate) page: usize,
}

/// `None` for anything but a whole head of a little-endian ELF file.
pub(crate) fn linked(file: &[u8]) -> Option<Linked> {
    let number = |at: usize, len: usize| -> Option<usize> {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(file.get(at..at.checked_add(len)?)?);
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    if !file.starts_with(b"\x7fELF") {
        return None;
    }
    let (at, size, count) = match file.get(4)? {
        1 => (number(28, 4)?, number(42, 2)?, number(44, 2)?),
        2 => (number(32, 8)?, number(54, 2)?, number(56, 2)?),
        _ => return None,
    };
    let mut kinds = Vec::new();
    let mut pages = Vec::new();
    for n in 0..count.min(MAX_HEADERS) {
        let header = at.checked_add(n * size)?;
        kinds.push(number(header, 4)?);
        if kinds.ends_with(&[PT_LOAD]) {
            let (offset, address, align) = match file.get(4)? {
                1 => (
                    number(header + 4, 4)?,
                    number(header + 8, 4)?,
                    number(header + 28, 4)?,
                ),
                _ => (
                    number(header + 8, 8)?,
                    number(header + 16, 8)?,
                    number(header + 48, 8)?,
                ),
            };
            // What it says of itself, as far as its place in the file keeps it.
            let apart = 1 << (offset ^ address).trailing_zeros().min(usize::BITS - 1);
            pages.push(align.min(apart));
        }
    }
    Some(Linked {
        machine: number(18, 2)?,
        interpreted: kinds.contains(&PT_INTERP),
        fixed: number(16, 2)? == ET_EXEC && !kinds.contains(&PT_DYNAMIC),
        page: pages.into_iter().min().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head with program headers of these kinds.
    fn head(wide: bool, kind: u8, headers: &[u8]) -> Vec<u8> {
        let (len, entry, fields) = if wide {
            (64, 56, [32, 54, 56])
        } else {
            (52, 32, [28, 42, 44])
        };
        let mut file = vec![0; usize::from(len + entry) * 4];
        file[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', 1 + u8::from(wide)]);
        (file[16], file[18]) = (kind, 40);
        for (at, value) in
            fields
                .into_iter()
                .zip([len, entry, u8::try_from(headers.len()).unwrap()])
        {
            file[at] = value;
        }
        for (n, header) in headers.iter().enumerate() {
            file[usize::from(len) + n * usize::from(entry)] = *header;
        }
        file
    }

    #[test]
    fn kinds_of_programs() {
        for wide in [false, true] {
            for (kind, headers, interpreted, fixed) in [
                (2, &[1, 1, 7][..], false, true),
                (3, &[1, 2], false, false),
                (3, &[3, 1, 2], true, false),
                (2, &[3, 1, 2], true, false),
            ] {
                let expected = Linked {
                    machine: 40,
                    interpreted,
                    fixed,
                    page: 0,
                };
                assert_eq!(linked(&head(wide, kind, headers)), Some(expected));
            }
        }
    }

    #[test]
    fn pages_of_programs() {
        // SVC-17
        for (wide, at, step) in [(false, 52, 32), (true, 64, 56)] {
            let mut file = head(wide, 2, &[1, 7, 1]);
            let mut set = |n: usize, offset: u32, address: u32, align: u32| {
                let fields = if wide { [8, 16, 48] } else { [4, 8, 28] };
                for (field, value) in fields.into_iter().zip([offset, address, align]) {
                    let at = at + n * step + field;
                    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
                }
            };
            set(0, 0, 0x20_0000, 0x1_0000);
            set(2, 0x1_2340, 0x23_2340, 0x1_0000);
            assert_eq!(linked(&file).unwrap().page, 0x1_0000);
            let mut set = |align: u32, address: u32| {
                let fields = if wide { [16, 48] } else { [8, 28] };
                for (field, value) in fields.into_iter().zip([address, align]) {
                    let at = at + 2 * step + field;
                    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
                }
                linked(&file).unwrap().page
            };
            assert_eq!(set(0x1000, 0x23_2340), 0x1000);
            // It says more than it keeps.
            assert_eq!(set(0x1_0000, 0x23_3340), 0x1000);
        }
    }

    #[test]
    fn other_files() {
        let whole = head(true, 2, &[1]);
        for file in [&b""[..], b"#!/bin/sh", &whole[..20], &whole[..40]] {
            assert_eq!(linked(file), None);
        }
        // Tests of this project are linked as the program is.
        let own = linked(&std::fs::read("/proc/self/exe").unwrap()).unwrap();
        assert!(own.fixed && !own.interpreted);
    }
}
