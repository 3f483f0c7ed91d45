//! The head of an ELF file, read to tell how a program was linked. Source: elf(5).

/// Program headers that are told apart.
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
    for n in 0..count.min(MAX_HEADERS) {
        kinds.push(number(at.checked_add(n * size)?, 4)?);
    }
    Some(Linked {
        machine: number(18, 2)?,
        interpreted: kinds.contains(&PT_INTERP),
        fixed: number(16, 2)? == ET_EXEC && !kinds.contains(&PT_DYNAMIC),
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
                };
                assert_eq!(linked(&head(wide, kind, headers)), Some(expected));
            }
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
