//! Programs in images that do not fit the pages of this kernel (SVC-17).
//!
//! The kernel maps a program by pages. One whose parts lie 4 KiB apart cannot be mapped by pages of 16 KiB: it dies by
//! SIGSEGV at its exec, before anything of it has run. An allocator built for 4 KiB aborts at its first call.
//!
//! Source: Linux `fs/exec.c` (`bprm_execve`), `fs/binfmt_elf.c`; jemalloc `src/pages.c`.

use core::time::Duration;

use alloc::string::String;

use crate::api::cri::{ContainerState, ContainerStatus};

/// Page size that programs are built for unless their authors took care, bytes.
pub const COMMON_PAGE_BYTES: u64 = 4096;
/// Exit codes of SIGABRT and SIGSEGV.
const ABORTED: i32 = 134;
const DEAD_AT_EXEC: i32 = 139;
/// Longest life of a program that ends this way; one that lived longer has passed its start.
const START_TIME: Duration = Duration::from_secs(2);

/// Text for people about a container that ended as programs built for smaller pages do; `None`: it did not.
#[must_use]
pub fn page_size_misfit(page_bytes: u64, container: &ContainerStatus) -> Option<String> {
    let (began, ended) = (container.started_at?, container.finished_at?);
    let lived_ns = ended.0.saturating_sub(began.0);
    let is_short = u128::try_from(lived_ns).is_ok_and(|ns| ns <= START_TIME.as_nanos());
    let told = match container.exit_code {
        DEAD_AT_EXEC => "SIGSEGV",
        ABORTED => "SIGABRT",
        _ => return None,
    };
    (page_bytes > COMMON_PAGE_BYTES
        && is_short
        && container.state == ContainerState::Exited)
        .then(|| {
            format!(
                "{told} ended it right at its start. This kernel has pages of {} KiB: a program built for pages of {} KiB fails like this",
                page_bytes / 1024,
                COMMON_PAGE_BYTES / 1024
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::WallTime, testing::exited};

    #[test]
    fn who_is_meant() {
        // SVC-17
        let ended = |code: i32, lived_ms: i64| ContainerStatus {
            started_at: Some(WallTime::from_unix_seconds(100)),
            finished_at: Some(WallTime(
                WallTime::from_unix_seconds(100).0 + lived_ms * 1_000_000,
            )),
            ..exited("c", code)
        };
        for (name, page_bytes, container, told) in [
            ("at exec", 16_384, ended(139, 3), Some("pages of 16 KiB")),
            ("jemalloc", 65_536, ended(134, 900), Some("pages of 64 KiB")),
            ("it fits", 4096, ended(139, 3), None),
            ("its own fault", 16_384, ended(1, 3), None),
            ("killed", 16_384, ended(137, 3), None),
            ("it ran", 16_384, ended(139, 60_000), None),
            ("the clock was set back", 16_384, ended(139, -60_000), None),
            (
                "it runs",
                16_384,
                ContainerStatus {
                    state: ContainerState::Running,
                    ..ended(139, 3)
                },
                None,
            ),
            (
                "never started",
                16_384,
                ContainerStatus {
                    started_at: None,
                    ..ended(139, 3)
                },
                None,
            ),
        ] {
            let said = page_size_misfit(page_bytes, &container);
            match told {
                None => assert_eq!(said, None, "{name}"),
                Some(part) => assert!(said.is_some_and(|s| s.contains(part)), "{name}"),
            }
        }
    }
}
