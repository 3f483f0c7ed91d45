//! The records that a shim leaves for the agent. Written by hand, read with serde; every released version stays readable.

use core::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::file;
use crate::api::WallTime;
use crate::api::strict::from_json;

/// Version of both records. Fields may be added without a new one; readers ignore what they do not know.
pub const VERSION: u32 = 1;
/// Largest record that is read, in bytes.
pub const MAX_RECORD_BYTES: u64 = 4096;

/// Reason why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShimRecordError {
    /// The record cannot be read.
    #[error("read {path}")]
    Io {
        /// The record.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is no record of a version that this build knows. Treat the record as lost.
    #[error("{path} is not a shim record: {why}")]
    Malformed {
        /// The record.
        path: PathBuf,
        /// Fault of the record.
        why: String,
    },
}

/// A created container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ContainerStateRecord {
    /// [`VERSION`].
    pub v: u32,
    /// Pid of the container's init.
    pub pid: i32,
    /// Start time of init, in clock ticks since boot: tells it from a later process with the same number.
    pub start_time: u64,
    /// Pid of the shim.
    pub shim_pid: i32,
    /// Start time of the shim.
    pub shim_start_time: u64,
    /// The boot that both belong to.
    pub boot_id: String,
    /// The program's version.
    pub build: String,
}

impl fmt::Display for ContainerStateRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            r#"{{"v":{},"pid":{},"start_time":{},"shim_pid":{},"shim_start_time":{},"boot_id":"{}","build":"{}"}}"#,
            self.v,
            self.pid,
            self.start_time,
            self.shim_pid,
            self.shim_start_time,
            self.boot_id,
            self.build
        )
    }
}

/// An ended container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ContainerExitRecord {
    /// [`VERSION`].
    pub v: u32,
    /// Exit code of init; 128 + signal if one ended it; 128 if it was never created.
    pub code: i32,
    /// The signal that ended init, 0 if none.
    pub signal: i32,
    /// False if the runtime could not create the container: `runtime.log` says why.
    pub created: bool,
    /// False if the code is a guess (137) because the shim that could have known it died.
    pub known: bool,
    /// Processes of the container that the kernel killed for want of memory, during its whole life.
    pub oom_kills: u64,
    /// Log records that could not be written (disk full).
    pub log_lost: u64,
    /// Time of the end: wall clock, nanoseconds since 1970.
    pub wall_ns: i64,
    /// Time of the end: milliseconds since boot.
    pub boot_ms: u64,
    /// The boot that `boot_ms` counts from.
    pub boot_id: String,
    /// The program's version.
    pub build: String,
}

impl ContainerExitRecord {
    /// Returns true if want of memory ended the container: its cgroup counted a kill, of init or of a child, and init was
    /// not ended by a signal to stop. Of a container that the agent stopped, the `kills_before_stop` do not count
    /// (OOMW-03): it had outlived them. Zero for one that ended by itself.
    ///
    /// Source: containerd `internal/cri/server/events.go`, `TaskOOM`.
    #[must_use]
    pub const fn was_oom_killed(&self, kills_before_stop: u64) -> bool {
        self.oom_kills > kills_before_stop
            && !matches!(self.code.saturating_sub(128), 1 | 2 | 3 | 15)
    }

    /// Returns the time of the end, by the wall clock of that time.
    #[must_use]
    pub const fn ended_at(&self) -> WallTime {
        WallTime(self.wall_ns)
    }
}

impl fmt::Display for ContainerExitRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            r#"{{"v":{},"code":{},"signal":{},"created":{},"known":{},"oom_kills":{},"log_lost":{},"wall_ns":{},"boot_ms":{},"boot_id":"{}","build":"{}"}}"#,
            self.v,
            self.code,
            self.signal,
            self.created,
            self.known,
            self.oom_kills,
            self.log_lost,
            self.wall_ns,
            self.boot_ms,
            self.boot_id,
            self.build
        )
    }
}

/// Reads the state record in `dir`. `None` if there is none (yet).
pub fn read_state(dir: &Path) -> Result<Option<ContainerStateRecord>, ShimRecordError> {
    read_record(&dir.join(file::STATE), |r: &ContainerStateRecord| r.v)
}

/// Reads the exit record in `dir`. `None` if there is none (yet).
pub fn read_exit(dir: &Path) -> Result<Option<ContainerExitRecord>, ShimRecordError> {
    read_record(&dir.join(file::EXIT), |r: &ContainerExitRecord| r.v)
}

fn read_record<T: for<'de> Deserialize<'de>>(
    path: &Path,
    version: impl Fn(&T) -> u32,
) -> Result<Option<T>, ShimRecordError> {
    let mut bytes = Vec::new();
    let result = File::open(path).and_then(|f| f.take(MAX_RECORD_BYTES).read_to_end(&mut bytes));
    match result {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(ShimRecordError::Io {
                path: path.into(),
                source,
            });
        }
    }
    let malformed = |why: String| ShimRecordError::Malformed {
        path: path.into(),
        why,
    };
    let record: T = from_json(&bytes).map_err(|e| malformed(e.to_string()))?;
    match version(&record) {
        1..=VERSION => Ok(Some(record)),
        v => Err(malformed(format!("version {v} is newer than {VERSION}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As version 1 was released: these texts never change.
    const STATE_1: &str = r#"{"v":1,"pid":4711,"start_time":123456,"shim_pid":4700,"shim_start_time":123400,"boot_id":"b0a7","build":"0.1.0"}
"#;
    const EXIT_1: &str = r#"{"v":1,"code":137,"signal":9,"created":true,"known":true,"oom_kills":2,"log_lost":0,"wall_ns":1700000000123456789,"boot_ms":9000,"boot_id":"b0a7","build":"0.1.0"}
"#;

    fn state() -> ContainerStateRecord {
        ContainerStateRecord {
            v: 1,
            pid: 4711,
            start_time: 123_456,
            shim_pid: 4700,
            shim_start_time: 123_400,
            boot_id: "b0a7".into(),
            build: "0.1.0".into(),
        }
    }

    fn exit() -> ContainerExitRecord {
        ContainerExitRecord {
            v: 1,
            code: 137,
            signal: 9,
            created: true,
            known: true,
            oom_kills: 2,
            log_lost: 0,
            wall_ns: 1_700_000_000_123_456_789,
            boot_ms: 9000,
            boot_id: "b0a7".into(),
            build: "0.1.0".into(),
        }
    }

    #[test]
    fn golden() {
        assert_eq!(state().to_string(), STATE_1);
        assert_eq!(exit().to_string(), EXIT_1);
        assert_eq!(
            serde_json::from_str::<ContainerStateRecord>(STATE_1).expect("state"),
            state()
        );
        assert_eq!(
            serde_json::from_str::<ContainerExitRecord>(EXIT_1).expect("exit"),
            exit()
        );
    }

    #[test]
    fn reading() {
        let dir = crate::testing::unused_path("record");
        std::fs::create_dir_all(&dir).expect("dir");
        assert!(matches!(read_state(&dir), Ok(None)));
        for (name, text, good) in [
            ("as written", STATE_1.to_string(), true),
            (
                "fields of a later build",
                STATE_1.replace("\"v\":1", "\"v\":1,\"new\":[1]"),
                true,
            ),
            (
                "a later version",
                STATE_1.replace("\"v\":1", "\"v\":2"),
                false,
            ),
            ("cut off", STATE_1[..20].to_string(), false),
            ("empty", String::new(), false),
        ] {
            std::fs::write(dir.join(file::STATE), text).expect("write");
            match read_state(&dir) {
                Ok(Some(record)) => assert!(good && record == state(), "{name}"),
                Err(ShimRecordError::Malformed { .. }) => assert!(!good, "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        std::fs::remove_dir_all(&dir).expect("remove");
    }

    #[test]
    fn oom() {
        // RTM-05 OOMW-01 OOMW-03
        for (code, kills, before, oom) in [
            (137, 1, 0, true),
            (137, 0, 0, false),
            (0, 3, 0, true),
            (1, 1, 0, true),
            (139, 1, 0, true),
            (255, 1, 0, true),
            (0, 0, 0, false),
            (1, 0, 0, false),
            // Told to end, after a child was killed.
            (143, 1, 0, false),
            (130, 1, 0, false),
            // Stopped by the agent long after that, and while it was stopped.
            (0, 1, 1, false),
            (137, 2, 2, false),
            (137, 3, 2, true),
            (143, 3, 2, false),
            // The count of another group: it was made anew.
            (137, 1, 2, false),
        ] {
            let exit = ContainerExitRecord {
                code,
                oom_kills: kills,
                ..exit()
            };
            assert_eq!(exit.was_oom_killed(before), oom, "{code} {kills} {before}");
        }
    }
}
