//! Choice of images to delete (IGC-01, IGC-02, GC-10, GC-11). Names follow kubelet `images/image_gc_manager.go`.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::time::Duration;

use crate::api::order::{GatherExt, OrderExt};
use crate::api::{MonoTime, cri::FsInfo};

/// Time between two image garbage collections, by default.
pub const PERIOD: Duration = Duration::from_secs(300);

/// Rules for deleting images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGcPolicy {
    /// Use of the file system, percent, from which space is made. 100 switches that off.
    pub high_percent: u8,
    /// Use down to which space is made, percent.
    pub low_percent: u8,
    /// An image seen for less is not deleted to make space.
    pub min_age: Duration,
    /// An image unused for longer is deleted whatever the use; zero switches that off.
    pub max_age: Duration,
}

impl Default for ImageGcPolicy {
    fn default() -> Self {
        Self {
            high_percent: 85,
            low_percent: 80,
            min_age: Duration::from_secs(120),
            max_age: Duration::ZERO,
        }
    }
}

/// The image file system says it has no capacity (event `InvalidDiskCapacity`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDiskCapacity;

impl ImageGcPolicy {
    /// Bytes to free; 0 if use is below the high mark.
    ///
    /// # Errors
    /// The file system has no capacity.
    pub fn bytes_to_free(&self, fs: &FsInfo) -> Result<u64, InvalidDiskCapacity> {
        if self.high_percent >= 100 {
            return Ok(0);
        }
        if fs.capacity_bytes == 0 {
            return Err(InvalidDiskCapacity);
        }
        let capacity = u128::from(fs.capacity_bytes);
        let available = u128::from(fs.available_bytes.min(fs.capacity_bytes));
        let use_percent = 100 - available * 100 / capacity;
        if use_percent < u128::from(self.high_percent) {
            return Ok(0);
        }
        let wanted = capacity * u128::from(100 - self.low_percent.min(100)) / 100;
        Ok(u64::try_from(wanted.saturating_sub(available)).unwrap_or(u64::MAX))
    }
}

/// An image, as the choice needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageUse<'a> {
    /// Image id.
    pub id: &'a str,
    /// Bytes that deleting it frees.
    pub size_bytes: u64,
    /// Never deleted.
    pub pinned: bool,
    /// An instance, dead ones included, or an image volume refers to it.
    pub in_use: bool,
}

#[derive(Clone, Copy, Debug)]
struct ImageSighting {
    first: MonoTime,
    used: Option<MonoTime>,
}

/// First sighting and last use of each image. In memory only: after a restart of the agent all images are new.
///
/// Keeps as many entries as the store has images.
#[derive(Clone, Debug, Default)]
pub struct ImageUseHistory {
    seen: BTreeMap<Box<str>, ImageSighting>,
    since: Option<MonoTime>,
}

impl ImageUseHistory {
    /// Takes note of all images of the store. Call it at start, every few minutes, and before each choice.
    pub fn observe_images(&mut self, images: &[ImageUse<'_>], now: MonoTime) {
        self.since.get_or_insert(now);
        let present: BTreeSet<&str> = images.iter().map(|i| i.id).gather_items();
        self.seen.retain(|id, _| present.contains(&**id));
        for image in images {
            let seen = match self.seen.get_mut(image.id) {
                Some(seen) => seen,
                None => self.seen.entry(image.id.into()).or_insert(ImageSighting {
                    first: now,
                    used: None,
                }),
            };
            if image.in_use {
                seen.used = Some(now);
            }
        }
    }

    /// Images unused for longer than the maximum age, least recently used first.
    ///
    /// None before the agent has itself run that long. An image never seen in use counts from its first sighting.
    #[must_use]
    pub fn images_over_max_age<'a>(
        &self,
        images: &[ImageUse<'a>],
        policy: &ImageGcPolicy,
        now: MonoTime,
    ) -> Vec<&'a str> {
        let up = self.since.map_or(Duration::ZERO, |since| now - since);
        if policy.max_age.is_zero() || up <= policy.max_age {
            return Vec::new();
        }
        self.removal_candidates(images)
            .into_iter()
            .filter(|(seen, _)| now - seen.used.unwrap_or(seen.first) > policy.max_age)
            .map(|(_, image)| image.id)
            .collect()
    }

    /// Images to delete, in this order, to free `bytes`: least recently used, then longest seen. What they free
    /// together may be less.
    #[must_use]
    pub fn images_to_free<'a>(
        &self,
        images: &[ImageUse<'a>],
        bytes: u64,
        policy: &ImageGcPolicy,
        now: MonoTime,
    ) -> Vec<&'a str> {
        let mut freed = 0_u64;
        let mut out = Vec::new();
        for (seen, image) in self.removal_candidates(images) {
            if freed >= bytes {
                break;
            }
            if now - seen.first >= policy.min_age {
                freed = freed.saturating_add(image.size_bytes);
                out.push(image.id);
            }
        }
        out
    }

    /// Unused, unpinned images that were seen, in the order of choice.
    fn removal_candidates<'a>(
        &self,
        images: &[ImageUse<'a>],
    ) -> Vec<(ImageSighting, ImageUse<'a>)> {
        let mut list: Vec<_> = images
            .iter()
            .filter(|image| !image.in_use && !image.pinned)
            .filter_map(|image| Some((*self.seen.get(image.id)?, *image)))
            .collect();
        list.stable_sort_by_key(|(seen, image)| (seen.used, seen.first, image.id));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, size_bytes: u64) -> ImageUse<'_> {
        ImageUse {
            id,
            size_bytes,
            pinned: false,
            in_use: false,
        }
    }

    fn used(id: &str) -> ImageUse<'_> {
        ImageUse {
            in_use: true,
            ..image(id, 10)
        }
    }

    const fn min(minutes: u64) -> MonoTime {
        MonoTime(minutes * 60_000)
    }

    #[test]
    fn when_to_free() {
        // IGC-01 GC-10
        let policy = ImageGcPolicy::default();
        for (name, high, capacity, available, expected) in [
            ("below", 85, 1000, 160, Ok(0)),
            (
                "percent are whole: 15.9 free is 85 used",
                85,
                1000,
                159,
                Ok(41),
            ),
            ("at the mark", 85, 1000, 150, Ok(50)),
            ("full", 85, 1000, 0, Ok(200)),
            ("off", 100, 1000, 0, Ok(0)),
            ("no capacity", 85, 0, 0, Err(InvalidDiskCapacity)),
            ("nonsense: more free than there is", 85, 1000, 2000, Ok(0)),
            ("huge", 85, u64::MAX, 0, Ok(u64::MAX / 5)),
        ] {
            let fs = FsInfo {
                capacity_bytes: capacity,
                available_bytes: available,
                ..FsInfo::default()
            };
            let policy = ImageGcPolicy {
                high_percent: high,
                ..policy
            };
            assert_eq!(policy.bytes_to_free(&fs), expected, "{name}");
        }
    }

    #[test]
    fn what_to_free() {
        // IGC-02 GC-10 GC-11
        let policy = ImageGcPolicy::default();
        let mut gc = ImageUseHistory::default();
        gc.observe_images(
            &[
                used("busy"),
                used("late"),
                used("early"),
                image("never", 10),
            ],
            min(0),
        );
        gc.observe_images(
            &[
                used("busy"),
                used("late"),
                image("early", 10),
                image("never", 10),
            ],
            min(1),
        );
        let mut pinned = image("pinned", 10);
        pinned.pinned = true;
        let now = [
            used("busy"),
            image("late", 10),
            image("early", 10),
            image("never", 10),
            pinned,
            image("new", 10),
        ];
        gc.observe_images(&now, min(9));
        for (name, bytes, at, expected) in [
            ("nothing to free", 0, 10, &[][..]),
            ("least recently used first", 10, 10, &["never"]),
            ("as many as needed", 15, 10, &["never", "early"]),
            (
                "never: used, pinned, too new",
                1000,
                10,
                &["never", "early", "late"],
            ),
            (
                "no longer too new",
                1000,
                11,
                &["never", "new", "early", "late"],
            ),
        ] {
            assert_eq!(
                gc.images_to_free(&now, bytes, &policy, min(at)),
                expected,
                "{name}"
            );
        }
        let mut restarted = ImageUseHistory::default();
        restarted.observe_images(&now, min(20));
        assert!(
            restarted
                .images_to_free(&now, 1000, &policy, min(21))
                .is_empty(),
            "after a restart every image is new"
        );
        gc.observe_images(&[], min(30));
        assert!(gc.seen.is_empty(), "forgotten with the image");
    }

    #[test]
    fn too_old() {
        // GC-11 IGC-02
        let off = ImageGcPolicy::default();
        let on = ImageGcPolicy {
            max_age: Duration::from_secs(600),
            ..off
        };
        let mut gc = ImageUseHistory::default();
        gc.observe_images(&[used("a"), used("b"), image("c", 1)], min(0));
        gc.observe_images(&[image("a", 1), used("b"), image("c", 1)], min(8));
        let now = [image("a", 1), image("b", 1), image("c", 1)];
        for (name, policy, at, expected) in [
            ("off", &off, 1000, &[][..]),
            ("the agent is younger", &on, 10, &[]),
            ("unused for longer", &on, 11, &["c", "a"]),
            ("used later", &on, 19, &["c", "a", "b"]),
        ] {
            assert_eq!(
                gc.images_over_max_age(&now, policy, min(at)),
                expected,
                "{name}"
            );
        }
    }
}
