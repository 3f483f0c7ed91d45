//! The kinds of boards: what `cross/NAME.conf` says of each.

use std::{fs, path::Path};

use crate::Failure;

/// Where that is.
const DIR: &str = "cross";
const END: &str = ".conf";

/// A kind of board.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    pub(crate) name: String,
    /// Rust's name of it.
    pub(crate) triple: String,
    /// Zig's name of it.
    pub(crate) zig: String,
    /// Zig's name of what assembler files are for.
    pub(crate) zig_assembler: String,
    /// Zig's name of its processors.
    pub(crate) zig_processor: String,
    /// More flags of the compiler.
    pub(crate) flags: String,
    /// `e_machine` of its programs.
    pub(crate) machine: usize,
    /// Largest pages of memory that its kernels have, bytes.
    pub(crate) page: usize,
    /// Most bytes of the program.
    pub(crate) max_bytes: usize,
    /// Most bytes of the program without parts.
    pub(crate) max_core_bytes: usize,
    /// Debian's name of it, if it has one that is its own.
    pub(crate) debian: Option<String>,
    /// The emulator, by the name of its program.
    pub(crate) emulator: String,
    /// Words that make it as poor as the poorest of these boards.
    pub(crate) emulator_words: String,
}

impl Board {
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, Failure> {
        let value = |key: &str| -> Result<String, Failure> {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let mut pairs = lines.filter_map(|line| line.split_once('='));
            let found = pairs.find(|(k, _)| k.trim() == key);
            let (_, value) = found.ok_or_else(|| format!("{DIR}/{name}{END}: no {key}"))?;
            Ok(value.trim().to_owned())
        };
        Ok(Self {
            name: name.to_owned(),
            triple: value("triple")?,
            zig: value("zig")?,
            zig_assembler: value("zig-assembler")?,
            zig_processor: value("zig-processor")?,
            flags: value("flags")?,
            machine: value("machine")?.parse()?,
            page: value("page-bytes")?.parse()?,
            max_bytes: value("max-bytes")?.parse()?,
            max_core_bytes: value("max-core-bytes")?.parse()?,
            debian: value("debian").ok(),
            emulator: value("emulator")?,
            emulator_words: value("emulator-words")?,
        })
    }

    /// Name of the environment variable by which cargo is told `what` of this target.
    pub(crate) fn variable(&self, what: &str) -> String {
        let triple = self.triple.replace('-', "_").to_uppercase();
        format!("CARGO_TARGET_{triple}_{what}")
    }
}

/// The boards of these names; of none: all.
pub(crate) fn boards(names: &[impl AsRef<str>]) -> Result<Vec<Board>, Failure> {
    let mut known = Vec::new();
    for entry in fs::read_dir(DIR)? {
        let file = entry?.file_name();
        known.extend(
            file.to_str()
                .and_then(|f| f.strip_suffix(END))
                .map(str::to_owned),
        );
    }
    known.sort();
    let mut wanted: Vec<_> = names.iter().map(AsRef::as_ref).collect();
    if wanted.is_empty() {
        wanted.extend(known.iter().map(String::as_str));
    }
    let read = |name: &str| {
        if !known.iter().any(|k| k == name) {
            let known = known.join(", ");
            return Err(format!("unknown board {name:?}; there are {known}").into());
        }
        let file = Path::new(DIR).join(format!("{name}{END}"));
        Board::parse(name, &fs::read_to_string(file)?)
    };
    wanted.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files() {
        let text = "# machine = 1\nmachine = 40\ntriple = t\nzig = z\nzig-assembler = a\nzig-processor = p\n\
                    flags = -C a=b\npage-bytes = 9\nmax-bytes = 7\nmax-core-bytes = 5\n\
                    emulator = e\nemulator-words =\n";
        let board = Board::parse("b", text).unwrap();
        assert_eq!(
            (board.machine, board.max_bytes, board.max_core_bytes),
            (40, 7, 5)
        );
        assert_eq!((&*board.flags, &*board.emulator_words), ("-C a=b", ""));
        let missing = Board::parse("b", "machine = 40\n").unwrap_err().to_string();
        assert_eq!(missing, "cross/b.conf: no triple");
    }
}
