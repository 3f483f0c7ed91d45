//! Installed machines that have never been started, in the user's cache directory: other clones take them from there. Each is
//! known by what it was made of. Of a kind the last two are kept, some 400 MB each.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
};

use sha2::{Digest as _, Sha256};

use super::{DIR, disk::remove};
use crate::Failure;

/// Below the cache directory.
const OWN: &str = "picolet/machines";
/// What an image was made of, in its directory.
const RECIPE: &str = "base.recipe";
/// Images of a kind that are kept.
const KEPT: usize = 2;

/// Where images are kept; without a user's directory in this clone.
pub(super) fn place() -> PathBuf {
    let named = |name: &str| env::var_os(name).filter(|dir| Path::new(dir).is_absolute());
    let cache = named("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&named("HOME")?).join(".cache")));
    cache.map_or_else(|| PathBuf::from(DIR), |cache| cache.join(OWN))
}

/// The directory of the image that `recipe` makes. If it is not there, `make` is given a directory to make it in.
pub(super) fn image(
    place: &Path,
    kind: &str,
    recipe: &str,
    make: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<PathBuf, Failure> {
    let digest = format!("{:x}", Sha256::digest(recipe));
    let dir = place.join(format!("{kind}-{}", &digest[..16]));
    let stamp = dir.join(RECIPE);
    if fs::read_to_string(&stamp).is_ok_and(|known| known == recipe) {
        // It was used last now.
        fs::write(stamp, recipe)?;
        return Ok(dir);
    }
    // What is not whole is in nobody's way, nor is another clone that makes the same.
    let new = place.join(format!(".{kind}-{}", process::id()));
    remove(&new)?;
    fs::create_dir_all(&new)?;
    make(&new)?;
    fs::write(new.join(RECIPE), recipe)?;
    remove(&dir)?;
    fs::rename(&new, &dir)?;
    tidy(place, kind)?;
    Ok(dir)
}

/// Removes images of a kind that were not used for the longest time, and what interrupted tasks left of one.
fn tidy(place: &Path, kind: &str) -> Result<(), Failure> {
    let mut known = Vec::new();
    for entry in fs::read_dir(place)? {
        let dir = entry?.path();
        let name = dir.file_name().and_then(|name| name.to_str());
        let Some((of, end)) = name.and_then(|name| name.rsplit_once('-')) else {
            continue;
        };
        if of.strip_prefix('.') == Some(kind) && !Path::new("/proc").join(end).exists() {
            remove(&dir)?;
        } else if of == kind
            && let Ok(stamp) = fs::metadata(dir.join(RECIPE))
        {
            known.push((stamp.modified()?, dir));
        }
    }
    known.sort();
    let many = known.len().saturating_sub(KEPT);
    known.iter().take(many).try_for_each(|(_, dir)| remove(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_once_is_taken_and_the_oldest_goes() {
        let place = env::temp_dir().join(format!("picolet-shelf-{}", process::id()));
        let take = |kind: &str, recipe: &str, made: &mut bool| {
            image(&place, kind, recipe, |dir| {
                *made = true;
                Ok(fs::write(dir.join("root"), recipe)?)
            })
        };
        let (mut made, mut again) = (false, false);
        let first = take("uml", "a", &mut made).unwrap();
        assert_eq!(take("uml", "a", &mut again).unwrap(), first);
        assert_eq!((made, again), (true, false));
        // One that was interrupted is not taken.
        image(&place, "uml", "b", |_| Err("no network".into())).unwrap_err();
        let second = take("uml", "b", &mut again).unwrap();
        assert!(again);
        let old = fs::File::open(first.join(RECIPE)).unwrap();
        old.set_modified(std::time::UNIX_EPOCH).unwrap();
        let other = take("qemu", "a", &mut again).unwrap();
        // No process has that number.
        let half = place.join(".uml-0");
        fs::create_dir_all(&half).unwrap();
        let third = take("uml", "c", &mut again).unwrap();
        assert!(!half.exists());
        let left = [first, second, third, other].map(|dir| dir.join("root").exists());
        assert_eq!(left, [false, true, true, true]);
        fs::remove_dir_all(&place).unwrap();
    }
}
