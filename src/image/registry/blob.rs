//! A layer, from the registry to a file that is whole: resumed where it stopped, however often.
//!
//! The file grows at its end only, and its bytes are hashed before more is asked for. A power cut leaves a prefix of
//! the blob, or, on a file system that shows unwritten blocks, bytes with another digest: then the blob is fetched
//! anew, once.

use core::time::Duration;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::error::RegistryError;
use super::http::header_text;
use super::pace::{MIN_RATE, Throttle};
use super::session::{RegistryAnswer, RegistrySession};
use crate::api::MonoTime;
use crate::image::digest::Digest;
use crate::net::pace::StopFlag;
use crate::sys::{clock, file::sync_dir};

/// Bytes read at once.
const PIECE_BYTES: usize = 64 * 1024;
/// Milliseconds between two syncs of arrived bytes: a power cut costs the bytes of this time.
const SYNC_MS: u64 = 5000;
/// Time over which a layer must arrive at [`MIN_RATE`] at least.
const RATE_WINDOW: Duration = Duration::from_secs(60);
/// Bytes between two looks at the free space: other pulls and other programs write too.
const ROOM_BYTES: u64 = 1 << 20;
/// Times that a blob is fetched from its first byte because its digest was wrong.
const MAX_SPOILED: u32 = 3;

/// A blob to fetch, and what it may use.
pub(in crate::image) struct BlobFetch<'a> {
    pub(in crate::image) digest: Digest,
    pub(in crate::image) size: u64,
    /// Growing file; bytes that it has already are taken for the blob's beginning.
    pub(in crate::image) part: &'a Path,
    pub(in crate::image) throttle: &'a Throttle,
    pub(in crate::image) stop: &'a StopFlag,
    /// Checks that there is room for more. Errors: the pull ends with it.
    pub(in crate::image) room: &'a (dyn Fn() -> io::Result<()> + Sync),
    /// Waits before the next attempt; others may use what this fetch does not need meanwhile.
    pub(in crate::image) pause: &'a dyn Fn(Duration) -> Result<(), RegistryError>,
    /// Called with bytes: positive ones arrived, negative ones were thrown away.
    pub(in crate::image) arrived: &'a (dyn Fn(i64) + Sync),
}

/// The growing file.
struct PartialBlob {
    file: File,
    hash: Sha256,
    length: u64,
    synced_ms: u64,
    /// Bytes that may arrive before the free space is looked at.
    granted: u64,
}

impl BlobFetch<'_> {
    /// Fetches until the file is whole and its digest right; then it is durable.
    pub(in crate::image) fn fetch_blob(
        &self,
        session: &RegistrySession<'_>,
    ) -> Result<(), RegistryError> {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut part = self.open_part(&mut buffer)?;
        let mut delays = session.retry_delays();
        let (mut attempts, mut spoiled) = (0, 0);
        loop {
            let before = part.length;
            let mut pace = TransferPace::new(clock::mono_now());
            let result = if part.length < self.size {
                self.read_one_answer(session, &mut part, &mut pace, &mut buffer)
            } else {
                Ok(())
            };
            if part.length == self.size {
                let found = part.digest();
                if found == self.digest {
                    return part
                        .file
                        .sync_data()
                        .map_err(RegistryError::local_file_error("sync", self.part));
                }
                spoiled += 1;
                log::warn!(
                    "the pulled layer {} has digest {found}; pulling it again",
                    self.digest
                );
                self.restart(&mut part)?;
                if spoiled >= MAX_SPOILED {
                    return Err(RegistryError::Wrong {
                        url: self.digest.to_string(),
                        why: format!(
                            "{spoiled} downloads had a wrong digest, the last one {found}"
                        ),
                    });
                }
                continue;
            }
            let error = match result {
                Ok(()) => RegistryError::Unreachable {
                    url: self.digest.to_string(),
                    why: format!("the answer ended at byte {} of {}", part.length, self.size),
                },
                Err(e) if e.may_pass() => e,
                Err(e) => return Err(e),
            };
            // A byte now and then is no progress: such a server is given up.
            if pace.is_progress(part.length.saturating_sub(before), clock::mono_now()) {
                attempts = 0;
                delays.reset();
            }
            attempts += 1;
            if attempts >= session.max_attempts(&error) {
                return Err(error);
            }
            log::debug!("{error}; resuming at byte {}", part.length);
            (self.pause)(error.retry_after() + delays.next_delay())?;
        }
    }

    /// Opens the part and hashes its bytes.
    fn open_part(&self, buffer: &mut [u8]) -> Result<PartialBlob, RegistryError> {
        let local = |action| RegistryError::local_file_error(action, self.part);
        let fresh = !self.part.exists();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.part)
            .map_err(local("open"))?;
        if fresh && let Some(dir) = self.part.parent() {
            // Bytes that are made durable later must have a name by then.
            sync_dir(dir).map_err(local("sync the directory of"))?;
        }
        let mut part = PartialBlob {
            file,
            hash: Sha256::new(),
            length: 0,
            synced_ms: clock::mono_now().0,
            granted: 0,
        };
        loop {
            let n = part.file.read(buffer).map_err(local("read"))?;
            if n == 0 {
                break;
            }
            part.hash.update(&buffer[..n]);
            part.length += n as u64;
        }
        if part.length > self.size {
            self.restart(&mut part)?;
        } else {
            (self.arrived)(signed(part.length));
        }
        Ok(part)
    }

    fn restart(&self, part: &mut PartialBlob) -> Result<(), RegistryError> {
        if part.length <= self.size {
            (self.arrived)(-signed(part.length));
        }
        part.hash = Sha256::new();
        part.length = 0;
        part.file
            .set_len(0)
            .and_then(|()| part.file.seek(SeekFrom::Start(0)))
            .map(drop)
            .map_err(RegistryError::local_file_error("truncate", self.part))
    }

    /// Reads one answer, as far as it goes.
    fn read_one_answer(
        &self,
        session: &RegistrySession<'_>,
        part: &mut PartialBlob,
        pace: &mut TransferPace,
        buffer: &mut [u8],
    ) -> Result<(), RegistryError> {
        let answer = match session.open_blob(self.digest, part.length, self.size) {
            Err(RegistryError::Status { status: 416, .. }) if part.length > 0 => {
                // The server says that the blob ends where the part does, yet the part is too short.
                self.restart(part)?;
                session.open_blob(self.digest, 0, self.size)?
            }
            answer => answer?,
        };
        let skip = self.count_known_bytes(&answer, part.length)?;
        let url = answer.url;
        let mut body = answer
            .response
            .into_body()
            .into_with_config()
            .limit(u64::MAX)
            .reader();
        // A server that knows no ranges starts over: bytes that are here already are read past, not written again.
        let mut skip = skip;
        let piece = self.throttle.piece_bytes(buffer.len());
        loop {
            let most = (self.size - part.length + skip).min(piece as u64);
            if most == 0 {
                // It must end here. One byte more and it is another blob.
                let more = body.read(&mut buffer[..1]).unwrap_or(0);
                if more > 0 {
                    self.restart(part)?;
                    return Err(RegistryError::wrong_answer(
                        &url,
                        format!("it has more than {} bytes", self.size),
                    ));
                }
                return Ok(());
            }
            let most = usize::try_from(most).unwrap_or(buffer.len());
            let n = body
                .read(&mut buffer[..most])
                .map_err(|e| RegistryError::Unreachable {
                    url: url.without_query(),
                    why: e.to_string(),
                })?;
            if n == 0 {
                return Ok(());
            }
            let before = clock::mono_now();
            if self.throttle.wait_for_bytes(n, self.stop).is_break() || self.stop.is_stopped() {
                return Err(RegistryError::Cancelled);
            }
            let now = clock::mono_now();
            pace.exclude_wait(now - before);
            let past = usize::try_from(skip).map_or(n, |skip| skip.min(n));
            skip -= past as u64;
            self.append_bytes(part, &buffer[past..n])?;
            if !pace.record_arrival(n as u64, now) {
                return Err(RegistryError::Unreachable {
                    url: url.without_query(),
                    why: format!("it sends less than {MIN_RATE} bytes per second"),
                });
            }
        }
    }

    /// Returns the number of bytes of the answer that are here already.
    fn count_known_bytes(&self, answer: &RegistryAnswer, have: u64) -> Result<u64, RegistryError> {
        let wrong = |why| RegistryError::wrong_answer(&answer.url, why);
        if answer.response.status().as_u16() != 206 {
            let length = header_text(&answer.response, "content-length");
            return match length.and_then(|l| l.parse::<u64>().ok()) {
                Some(length) if length != self.size => Err(wrong(format!(
                    "it has {length} bytes, its manifest says {}",
                    self.size
                ))),
                _ => Ok(have),
            };
        }
        let range = header_text(&answer.response, "content-range").unwrap_or("");
        let Some((start, total)) = parse_content_range(range) else {
            return Err(wrong(format!("its range {range:?} is not valid")));
        };
        if total.is_some_and(|total| total != self.size) {
            return Err(wrong(format!(
                "its range is {range:?}, its manifest says {} bytes",
                self.size
            )));
        }
        have.checked_sub(start).ok_or_else(|| {
            wrong(format!(
                "its range {range:?} leaves a gap behind byte {have}"
            ))
        })
    }

    fn append_bytes(&self, part: &mut PartialBlob, bytes: &[u8]) -> Result<(), RegistryError> {
        if bytes.is_empty() {
            return Ok(());
        }
        if part.granted < bytes.len() as u64 {
            (self.room)().map_err(RegistryError::local_file_error("write", self.part))?;
            part.granted = ROOM_BYTES;
        }
        part.granted = part.granted.saturating_sub(bytes.len() as u64);
        part.file
            .write_all(bytes)
            .map_err(|e| self.failed_write(part, e))?;
        crate::image::count_written(bytes.len());
        part.hash.update(bytes);
        part.length += bytes.len() as u64;
        (self.arrived)(signed(bytes.len() as u64));
        let now = clock::mono_now().0;
        if now.saturating_sub(part.synced_ms) >= SYNC_MS {
            part.synced_ms = now;
            part.file
                .sync_data()
                .map_err(RegistryError::local_file_error("sync", self.part))?;
        }
        Ok(())
    }

    /// Cuts the file back to the bytes that are hashed: a failed write may have left a part of its bytes.
    fn failed_write(&self, part: &PartialBlob, error: io::Error) -> RegistryError {
        let _ = part.file.set_len(part.length);
        RegistryError::local_file_error("write", self.part)(error)
    }
}

/// Speed of an answer, without the time that this side waits by itself.
struct TransferPace {
    /// Start of the answer; then the start of the present window. Both move by the excused time.
    start: MonoTime,
    window: MonoTime,
    /// Bytes in this window.
    bytes: u64,
}

impl TransferPace {
    const fn new(now: MonoTime) -> Self {
        Self {
            start: now,
            window: now,
            bytes: 0,
        }
    }

    fn exclude_wait(&mut self, time: Duration) {
        self.start = self.start + time;
        self.window = self.window + time;
    }

    /// Takes `bytes` in. Returns true while the answer is fast enough to be read on.
    fn record_arrival(&mut self, bytes: u64, now: MonoTime) -> bool {
        self.bytes += bytes;
        let enough = self.bytes >= least_bytes(RATE_WINDOW);
        if enough {
            (self.window, self.bytes) = (now, 0);
        }
        enough || now - self.window < RATE_WINDOW
    }

    /// Returns true if `bytes` are enough for the whole answer to count as progress.
    fn is_progress(&self, bytes: u64, now: MonoTime) -> bool {
        bytes > 0 && bytes >= least_bytes(now - self.start)
    }
}

/// Bytes that arrive in `time` at the lowest rate.
const fn least_bytes(time: Duration) -> u64 {
    MIN_RATE.saturating_mul(time.as_secs())
}

impl PartialBlob {
    fn digest(&self) -> Digest {
        Digest::from_sha256_bytes(self.hash.clone().finalize().into())
    }
}

/// First byte and whole length of `bytes 5-9/10`; the length may be `*`.
pub(super) fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    let total = match total {
        "*" => None,
        number => Some(number.parse().ok()?),
    };
    (first <= last && total.is_none_or(|t| last < t)).then_some((first, total))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Removes a part or blob; absent is success.
pub(in crate::image) fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_now_and_then_is_no_progress() {
        let at = |seconds: u64| MonoTime(seconds * 1000);
        let mut pace = TransferPace::new(at(0));
        // One each 29 seconds, as often as the time without any allows.
        assert!(pace.record_arrival(1, at(29)) && pace.record_arrival(1, at(58)));
        assert!(!pace.record_arrival(1, at(87)));
        assert!(!pace.is_progress(3, at(87)));
        assert!(!pace.is_progress(0, at(0)));
        // As much as a thin link has, with a silence.
        let mut pace = TransferPace::new(at(0));
        for n in 1..=100 {
            assert!(pace.record_arrival(MIN_RATE * 2, at(n)), "{n}");
        }
        assert!(pace.record_arrival(1, at(128)));
        assert!(pace.is_progress(MIN_RATE * 200, at(128)));
        // Waiting for the cap is not the registry's fault.
        let mut pace = TransferPace::new(at(0));
        pace.exclude_wait(Duration::from_secs(3600));
        assert!(pace.record_arrival(1000, at(3601)) && pace.is_progress(1000, at(3601)));
    }

    #[test]
    fn ranges() {
        for (text, want) in [
            ("bytes 5-9/10", Some((5, Some(10)))),
            ("bytes 0-0/1", Some((0, Some(1)))),
            ("bytes 5-9/*", Some((5, None))),
            ("bytes 5-10/10", None),
            ("bytes 6-5/10", None),
            ("bytes */10", None),
            ("5-9/10", None),
            ("bytes -1-9/10", None),
            ("bytes 5-99999999999999999999/*", None),
            ("", None),
        ] {
            assert_eq!(parse_content_range(text), want, "{text}");
        }
    }
}
