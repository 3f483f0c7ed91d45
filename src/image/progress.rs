//! Progress of an image on its way into the store, for people who wait: pulls and imports have the same words.

use core::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Stage of a pull, an import or a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImageStage {
    /// Other pulls come first.
    #[default]
    Waiting,
    /// The registry is asked for the image of the name.
    Resolving,
    /// Layers arrive.
    Fetching,
    /// Layers are unpacked.
    Unpacking,
    /// Layers are read and compared with what was unpacked.
    Verifying,
}

impl ImageStage {
    /// The stage as one word.
    #[must_use]
    pub const fn stage_name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Resolving => "resolving",
            Self::Fetching => "fetching",
            Self::Unpacking => "unpacking",
            Self::Verifying => "verifying",
        }
    }
}

/// Progress of an image on its way into the store, or of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageProgress {
    /// Stage that is under way.
    pub stage: ImageStage,
    /// Layers that are through this stage.
    pub layers_done: usize,
    /// Layers that the store did not have.
    pub layers: usize,
    /// Bytes in this stage so far, over all layers: fetched ones (those of earlier attempts included) or unpacked ones.
    pub bytes: u64,
    /// Bytes of the stage at its end; 0 if unknown.
    pub bytes_total: u64,
    /// Server that is asked while the stage is [`ImageStage::Resolving`]: host and port. Empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
}

impl ImageProgress {
    /// The stage, and the server that is asked: `resolving at registry.example:5000`.
    #[must_use]
    pub fn stage_text(&self) -> String {
        let gap = if self.host.is_empty() { "" } else { " at " };
        [self.stage.stage_name(), gap, &self.host].concat()
    }
}

/// Progress in the words of events: `fetching 12 of 45 MiB (27%), 1 of 4 layers`.
impl fmt::Display for ImageProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stage {
            ImageStage::Waiting => f.write_str("waiting for other pulls")?,
            ImageStage::Resolving
            | ImageStage::Fetching
            | ImageStage::Unpacking
            | ImageStage::Verifying => f.write_str(&self.stage_text())?,
        }
        if matches!(self.stage, ImageStage::Waiting | ImageStage::Resolving) {
            return Ok(());
        }
        let mib = self.bytes >> 20;
        match (self.bytes * 100).checked_div(self.bytes_total) {
            Some(percent) => {
                let total = self.bytes_total.div_ceil(1 << 20);
                write!(f, " {mib} of {total} MiB ({percent}%)")?;
            }
            None if self.bytes > 0 => write!(f, " {mib} MiB")?,
            None => {}
        }
        write!(f, ", {} of {} layers", self.layers_done, self.layers)
    }
}

/// Progress that the threads of a pull write, and any thread reads.
#[derive(Debug, Default)]
pub(super) struct Tracker(Mutex<ImageProgress>);

impl Tracker {
    pub(super) fn current_progress(&self) -> ImageProgress {
        self.lock().clone()
    }

    pub(super) fn set_progress(&self, now: ImageProgress) {
        *self.lock() = now;
    }

    pub(super) fn begin_stage(&self, stage: ImageStage) {
        self.set_progress(ImageProgress {
            stage,
            ..ImageProgress::default()
        });
    }

    /// Notes the server that is asked, host and port.
    pub(super) fn note_host(&self, host: &str) {
        let mut now = self.lock();
        if now.stage == ImageStage::Resolving {
            host.clone_into(&mut now.host);
        }
    }

    pub(super) fn begin_fetching(&self, layers: usize, bytes_total: u64) {
        self.set_progress(ImageProgress {
            stage: ImageStage::Fetching,
            layers,
            bytes_total,
            ..ImageProgress::default()
        });
    }

    pub(super) fn add_fetched_bytes(&self, bytes: i64) {
        let mut now = self.lock();
        now.bytes = now.bytes.saturating_add_signed(bytes);
    }

    pub(super) fn count_fetched_layer(&self) {
        self.lock().layers_done += 1;
    }

    fn lock(&self) -> MutexGuard<'_, ImageProgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn said_in_words() {
        // IMG-28
        let tracker = Tracker::default();
        let words = |want: &str| assert_eq!(tracker.current_progress().to_string(), want);
        words("waiting for other pulls");
        tracker.begin_stage(ImageStage::Resolving);
        words("resolving");
        tracker.note_host("mirror.example:5000");
        words("resolving at mirror.example:5000");
        tracker.note_host("docker.io");
        words("resolving at docker.io");
        tracker.begin_fetching(3, 10 << 20);
        tracker.add_fetched_bytes(5 << 20);
        tracker.add_fetched_bytes(-(1 << 20));
        tracker.count_fetched_layer();
        tracker.note_host("blobs.example");
        words("fetching 4 of 10 MiB (40%), 1 of 3 layers");
        tracker.set_progress(ImageProgress {
            stage: ImageStage::Unpacking,
            layers_done: 2,
            layers: 3,
            bytes: 7 << 20,
            ..ImageProgress::default()
        });
        words("unpacking 7 MiB, 2 of 3 layers");
        tracker.begin_stage(ImageStage::Unpacking);
        words("unpacking, 0 of 0 layers");
        tracker.begin_fetching(0, 0);
        words("fetching, 0 of 0 layers");
    }
}
