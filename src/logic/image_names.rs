//! Names of images as people type them: beginnings of ids, and filters of a list.

use alloc::{string::String, vec::Vec};

use crate::api::cri::StoredImage;

/// Fewest digits of an id that name an image, as podman and CRI-O have it: a slip of the finger is no name.
const MIN_ID_DIGITS: usize = 3;

/// Returns true if `typed` is the beginning of this id, with or without `sha256:`.
fn begins_id(image: &StoredImage, typed: &str) -> bool {
    let digits = typed.strip_prefix("sha256:").unwrap_or(typed);
    let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
    digits.len() >= MIN_ID_DIGITS && id.starts_with(digits)
}

/// Beginning of several ids. The text names their images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmbiguousImageId(pub String);

/// Finds the image whose id begins with `typed`.
pub fn find_by_short_id<'a>(
    images: &'a [StoredImage],
    typed: &str,
) -> Result<Option<&'a StoredImage>, AmbiguousImageId> {
    let found: Vec<&StoredImage> = images.iter().filter(|i| begins_id(i, typed)).collect();
    if found.len() < 2 {
        return Ok(found.first().copied());
    }
    let names = found
        .iter()
        .map(|i| &**i.repo_tags.first().unwrap_or(&i.id));
    let names = names.collect::<Vec<_>>().join(", ");
    let text = [
        "the id \"",
        typed,
        "\" is ambiguous (",
        &names,
        "): give more digits of it, or a name",
    ];
    Err(AmbiguousImageId(text.concat()))
}

/// Returns true if `typed` is a reference or the end of it behind a slash, with or without its tag or digest:
/// `nginx`, `library/nginx`, `nginx:1.29` of `docker.io/library/nginx:1.29`.
fn matches_reference(reference: &str, typed: &str) -> bool {
    let slash = reference.rfind('/').map_or(0, |at| at + 1);
    let end = reference[slash..].find([':', '@']);
    let repository = &reference[..end.map_or(reference.len(), |at| slash + at)];
    [reference, repository].iter().any(|whole| {
        let before = whole.strip_suffix(typed);
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    })
}

/// Leaves the images that one of `filters` means, by a reference or the beginning of an id. An image that is meant by a
/// reference keeps the tags that match; without filters all stay.
pub fn filter_images(images: &mut Vec<StoredImage>, filters: &[String]) {
    if filters.is_empty() {
        return;
    }
    images.retain_mut(|image| {
        if filters.iter().any(|typed| begins_id(image, typed)) {
            return true;
        }
        let is_meant = |name: &String| filters.iter().any(|typed| matches_reference(name, typed));
        let is_untagged = image.repo_tags.is_empty();
        image.repo_tags.retain(is_meant);
        !image.repo_tags.is_empty() || is_untagged && image.repo_digests.iter().any(is_meant)
    });
}

#[cfg(test)]
mod tests {
    use alloc::{borrow::ToOwned as _, vec};

    use super::*;

    fn image(id: &str, tags: &[&str], digests: &[&str]) -> StoredImage {
        let owned = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect();
        StoredImage {
            id: id.to_owned(),
            repo_tags: owned(tags),
            repo_digests: owned(digests),
            ..StoredImage::default()
        }
    }

    fn some() -> Vec<StoredImage> {
        vec![
            image(
                "sha256:12ab",
                &["docker.io/library/a:1", "localhost:5000/a:2"],
                &[],
            ),
            image("sha256:12ac", &[], &["docker.io/library/b@sha256:00"]),
            image("sha256:ef00", &["docker.io/library/ef:1"], &[]),
        ]
    }

    #[test]
    fn beginnings_of_ids() {
        // IMG-29
        let images = some();
        let found = |typed| find_by_short_id(&images, typed).map(|i| i.map(|i| &*i.id));
        for (typed, id) in [
            ("12ab", Some("sha256:12ab")),
            ("sha256:12ac", Some("sha256:12ac")),
            ("ef0", Some("sha256:ef00")),
            ("sha256:ef0", Some("sha256:ef00")),
            ("ef", None),
            ("sha256:ef", None),
            ("e", None),
            ("2ab", None),
            ("", None),
            ("sha256:", None),
            ("a", None),
        ] {
            assert_eq!(found(typed), Ok(id), "{typed:?}");
        }
        let AmbiguousImageId(several) = found("12a").expect_err("two");
        assert!(
            several.contains("\"12a\" is ambiguous (docker.io/library/a:1, sha256:12ac)"),
            "{several}"
        );
    }

    #[test]
    fn filters_of_a_list() {
        // IMG-29
        for (typed, left) in [
            (
                &["a"][..],
                &[("12ab", &["docker.io/library/a:1", "localhost:5000/a:2"][..])][..],
            ),
            (&["library/a"], &[("12ab", &["docker.io/library/a:1"])]),
            (&["a:2"], &[("12ab", &["localhost:5000/a:2"])]),
            (&["localhost:5000/a"], &[("12ab", &["localhost:5000/a:2"])]),
            (&["b"], &[("12ac", &[])]),
            (
                &["12ab"],
                &[("12ab", &["docker.io/library/a:1", "localhost:5000/a:2"])],
            ),
            (
                &["ef", "b"],
                &[("12ac", &[]), ("ef00", &["docker.io/library/ef:1"])],
            ),
            (&["ef0"], &[("ef00", &["docker.io/library/ef:1"])]),
            (&["12"], &[]),
            (&["x"], &[]),
            (&["rary/a"], &[]),
        ] {
            let mut images = some();
            let typed: Vec<String> = typed.iter().map(|&one| one.to_owned()).collect();
            filter_images(&mut images, &typed);
            let got: Vec<_> = images.iter().map(|i| (&i.id[7..], &*i.repo_tags)).collect();
            assert_eq!(got.len(), left.len(), "{typed:?}: {got:?}");
            for ((id, tags), (want, names)) in got.iter().zip(left) {
                assert_eq!(id, want, "{typed:?}");
                assert_eq!(tags, names, "{typed:?}");
            }
        }
        let mut images = some();
        filter_images(&mut images, &[]);
        assert_eq!(images, some());
    }
}
