//! Choice of the image in an index that is for this machine.
//!
//! Source: image-spec `image-index.md` (platform variants); Go's names of architectures; containerd `platforms`,
//! `platformVector` (32-bit images on 64-bit machines).

use crate::api::oci::Platform;

/// Added to the rank of an arm64 image: above all variants of arm.
const ARM64: u8 = 16;

/// Platform of this machine: Go's architecture name and the variant number (arm 5–8, amd64 1–4; else 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachinePlatform {
    /// `amd64`, `arm64`, `arm`, …
    pub architecture: &'static str,
    /// Highest variant it can run.
    pub variant: u8,
}

impl MachinePlatform {
    /// The machine this program was built for, with the variant that the processor has.
    #[must_use]
    pub fn detect_current() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "loongarch64" => "loong64",
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            other => other,
        };
        Self {
            architecture,
            variant: variant(architecture),
        }
    }

    /// Returns true if images of this architecture are the machine's own, not 32-bit ones that it runs as well.
    #[must_use]
    pub fn is_own_architecture(&self, architecture: &str) -> bool {
        architecture == self.architecture
    }

    /// Ranks an image for `platform`: `None` if it cannot run, else the higher the better. A 32-bit image ranks below
    /// every 64-bit one. Some processors cannot run it: then its program does not start.
    #[must_use]
    pub fn rank_platform(&self, platform: &Platform) -> Option<u8> {
        if platform.os != "linux" {
            return None;
        }
        let given = platform.variant.strip_prefix('v').unwrap_or("");
        let given = given.split('.').next().unwrap_or("").parse::<u8>().ok();
        match (self.architecture, platform.architecture.as_str()) {
            // Without a variant: the oldest that Docker's tools mean by it.
            ("arm", "arm") => given.or(Some(7)).filter(|v| *v <= self.variant),
            ("amd64", "amd64") => given.or(Some(1)).filter(|v| *v <= self.variant),
            ("arm64", "arm64") => Some(ARM64.saturating_add(given.unwrap_or(0))),
            ("arm64", "arm") => given.or(Some(7)).filter(|v| *v <= 8),
            ("amd64", "386") => Some(0),
            (ours, theirs) if ours == theirs => Some(given.unwrap_or(0)),
            _ => None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn variant(_: &str) -> u8 {
    let v2 = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("popcnt");
    let v3 = v2
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("movbe");
    let v4 = v3
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    1 + u8::from(v2) + u8::from(v3) + u8::from(v4)
}

#[cfg(not(target_arch = "x86_64"))]
fn variant(architecture: &str) -> u8 {
    if architecture != "arm" {
        return 0;
    }
    // `armv6l`, `armv7l`; a 32-bit program on a 64-bit kernel sees `aarch64` or `armv8l`.
    let machine = nix::sys::utsname::uname()
        .map(|u| u.machine().to_string_lossy().into_owned())
        .unwrap_or_default();
    match machine.strip_prefix("armv").and_then(|m| m.bytes().next()) {
        Some(digit @ b'5'..=b'8') => digit - b'0',
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(machine: MachinePlatform, all: &[(&str, &str, &str)]) -> Option<usize> {
        all.iter()
            .enumerate()
            .filter_map(|(at, &(os, architecture, variant))| {
                let platform = Platform {
                    os: os.into(),
                    architecture: architecture.into(),
                    variant: variant.into(),
                };
                machine.rank_platform(&platform).map(|rank| (rank, at))
            })
            .max()
            .map(|(_, at)| at)
    }

    const fn machine(architecture: &'static str, variant: u8) -> MachinePlatform {
        MachinePlatform {
            architecture,
            variant,
        }
    }

    #[test]
    fn best_for() {
        let all = [
            ("linux", "amd64", ""),
            ("linux", "amd64", "v3"),
            ("linux", "arm", "v5"),
            ("linux", "arm", "v6"),
            ("linux", "arm", "v7"),
            ("linux", "arm64", "v8"),
            ("windows", "amd64", ""),
            ("unknown", "unknown", ""),
            ("linux", "riscv64", ""),
        ];
        for (name, machine, want) in [
            ("old PC", machine("amd64", 2), Some(0)),
            ("new PC", machine("amd64", 4), Some(1)),
            ("Pi Zero", machine("arm", 6), Some(3)),
            ("Pi 2", machine("arm", 7), Some(4)),
            ("32 bits on a Pi 3", machine("arm", 8), Some(4)),
            ("Pi 4", machine("arm64", 0), Some(5)),
            ("VisionFive", machine("riscv64", 0), Some(8)),
            ("mainframe", machine("s390x", 0), None),
        ] {
            assert_eq!(best(machine, &all), want, "{name}");
        }
    }

    #[test]
    fn of_32_bits_where_there_is_nothing_else() {
        let (arm64, amd64) = (machine("arm64", 0), machine("amd64", 1));
        let (v5, v7, v8) = (
            ("linux", "arm", "v5"),
            ("linux", "arm", "v7"),
            ("linux", "arm", "v8"),
        );
        let (pc, old_pc) = (("linux", "amd64", ""), ("linux", "386", ""));
        let any = ("linux", "arm", "");
        for (name, machine, all, want) in [
            ("the newest", arm64, &[v5, v7][..], Some(1)),
            ("without a variant", arm64, &[v5, any], Some(1)),
            (
                "its own first",
                arm64,
                &[("linux", "arm64", ""), v8],
                Some(0),
            ),
            ("too new", arm64, &[("linux", "arm", "v9")], None),
            ("a PC", amd64, &[old_pc], Some(0)),
            ("a PC's own first", amd64, &[pc, old_pc], Some(0)),
            (
                "too new a PC",
                amd64,
                &[("linux", "amd64", "v3"), old_pc],
                Some(1),
            ),
            (
                "the other way",
                machine("arm", 8),
                &[("linux", "arm64", "v8")],
                None,
            ),
            ("the other way on a PC", machine("386", 0), &[pc], None),
            ("of another kind", amd64, &[v7], None),
        ] {
            assert_eq!(best(machine, all), want, "{name}");
        }
    }

    #[test]
    fn arm_without_variant_means_v7() {
        let platform = Platform {
            os: "linux".into(),
            architecture: "arm".into(),
            variant: String::new(),
        };
        let rank = |variant| machine("arm", variant).rank_platform(&platform);
        assert_eq!((rank(6), rank(7)), (None, Some(7)));
    }
}
