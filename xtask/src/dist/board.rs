//! The kinds of boards.

use crate::Failure;

/// A kind of board.
pub(crate) struct Board {
    pub(crate) name: &'static str,
    /// Rust's name of it.
    pub(crate) triple: &'static str,
    /// Zig's words for it.
    pub(crate) zig: &'static [&'static str],
    /// `e_machine` of its programs.
    pub(crate) machine: usize,
    /// Most bytes of the program.
    pub(crate) max_bytes: u64,
    /// Qemu's name of its processors.
    pub(crate) processor: &'static str,
    /// Words that make the emulator as poor as the poorest of them.
    pub(crate) emulator: &'static [&'static str],
}

impl Board {
    /// Name of the environment variable by which cargo is told `what` of this target.
    pub(crate) fn variable(&self, what: &str) -> String {
        let triple = self.triple.replace('-', "_").to_uppercase();
        format!("CARGO_TARGET_{triple}_{what}")
    }
}

/// 4.25 MiB: TLS and the client of registries are a million bytes of it, what a node of a cluster takes is half of that, and
/// so is what its HTTPS server takes with streams and metrics.
const MAX_BYTES: u64 = 4_456_448;
/// 5 MiB, where the same takes more instructions.
const MAX_BYTES_OTHERS: u64 = 5_242_880;

/// What `cargo xtask dist` builds, most used first.
pub(crate) const BOARDS: [Board; 4] = [
    Board {
        name: "aarch64",
        triple: "aarch64-unknown-linux-musl",
        zig: &["aarch64-linux-musl"],
        machine: 183,
        max_bytes: MAX_BYTES,
        processor: "aarch64",
        emulator: &["-cpu", "cortex-a53"],
    },
    Board {
        name: "armv7",
        triple: "armv7-unknown-linux-musleabihf",
        // As Rust's target: not every ARMv7 has NEON.
        zig: &["arm-linux-musleabihf", "-mcpu=generic+v7a+vfp3d16-neon"],
        machine: 40,
        max_bytes: MAX_BYTES_OTHERS,
        processor: "arm",
        emulator: &["-cpu", "cortex-a7"],
    },
    Board {
        name: "armv6",
        triple: "arm-unknown-linux-musleabihf",
        // The first Raspberry Pi and the Zero.
        zig: &["arm-linux-musleabihf", "-mcpu=arm1176jzf_s"],
        machine: 40,
        max_bytes: MAX_BYTES_OTHERS,
        processor: "arm",
        emulator: &["-cpu", "arm1176"],
    },
    Board {
        name: "x86_64",
        triple: "x86_64-unknown-linux-musl",
        zig: &["x86_64-linux-musl"],
        machine: 62,
        max_bytes: MAX_BYTES_OTHERS,
        processor: "x86_64",
        emulator: &[],
    },
];

/// The boards of these names.
pub(crate) fn boards(names: &[impl AsRef<str>]) -> Result<Vec<&'static Board>, Failure> {
    let find = |name: &str| {
        BOARDS.iter().find(|b| b.name == name).ok_or_else(|| {
            let known: Vec<_> = BOARDS.iter().map(|b| b.name).collect();
            format!("unknown board {name:?}; there are {}", known.join(", ")).into()
        })
    };
    names.iter().map(|name| find(name.as_ref())).collect()
}
