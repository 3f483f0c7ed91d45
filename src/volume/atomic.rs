//! The atomic writer of projected volumes.
//!
//! ```text
//! <volume>/..2026_11_21_08_15_00.123456789/dir/file    payload, never changed once published
//! <volume>/..data -> ..2026_11_21_08_15_00.123456789   the switch, replaced by rename
//! <volume>/dir    -> ..data/dir                        what a container sees
//! ```
//!
//! Source: kubelet `pkg/volume/util/atomic_writer.go`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt, fchown, symlink},
    path::{Component, Path, PathBuf},
};

use time::OffsetDateTime;

use super::{StepContext, VolumeErrorCause, beneath, mkdir_all};
use crate::api::order::GatherExt;
use crate::{
    api::ProjectedFile,
    sys::{clock, crash, file, remove},
};

/// Longest payload path in bytes.
const PATH_LIMIT_BYTES: usize = 4096;
/// Longest component of a payload path in bytes.
const COMPONENT_LIMIT_BYTES: usize = 255;
/// Directories deep a published payload is read when it is compared.
const DEPTH_LIMIT: usize = PATH_LIMIT_BYTES / 2;

const DATA: &str = "..data";
const DATA_TMP: &str = "..data_tmp";

/// Returns true if files were published in `volume`.
pub(super) fn has_files(volume: &Path) -> bool {
    fs::symlink_metadata(volume.join(DATA)).is_ok()
}

/// Publishes `files` in `volume`; returns whether a new generation was written. `own` sets the owners of the whole volume
/// before it becomes visible.
///
/// - Shape: of two files with one path the later wins.
/// - Errors: the generation that was published before stays as it is.
pub(super) fn publish_files(
    volume: &Path,
    files: &[ProjectedFile],
    own: impl FnOnce() -> Result<(), VolumeErrorCause>,
) -> Result<bool, VolumeErrorCause> {
    let mut payload = BTreeMap::new();
    for file in files {
        payload.insert(check_path(&file.path)?, file);
    }
    let current = current_payload(volume).at_step("failed to read the volume")?;
    let same = current
        .as_ref()
        .is_some_and(|name| is_same_payload(&volume.join(name), &payload).unwrap_or(false));
    if !same {
        let new = write_payload(volume, &payload).at_step("failed to write the volume's files")?;
        own()?;
        switch_data_link(volume, &new).at_step("failed to publish the volume's files")?;
    }
    update_visible_links(volume, &payload).at_step("failed to link the volume's files")?;
    if !same {
        // Also what an agent left that died half way.
        remove_old(volume).at_step("failed to remove the volume's former files")?;
    }
    Ok(!same)
}

/// Makes the mount points of other volumes inside this one.
pub(super) fn make_nested(volume: &Path, nested: &[String]) -> Result<(), VolumeErrorCause> {
    for path in nested {
        mkdir_all(&volume.join(check_path(path)?), 0o755)
            .at_step("failed to make a mount point inside the volume")?;
    }
    Ok(())
}

fn check_path(text: &str) -> Result<PathBuf, VolumeErrorCause> {
    let path = Path::new(text);
    let refuse = |why: &str| {
        Err(VolumeErrorCause::Refused(format!(
            "invalid path {text:?}: {why}"
        )))
    };
    if text.is_empty() {
        return refuse("must not be empty");
    }
    if path.is_absolute() {
        return refuse("must be a relative path");
    }
    if text.len() > PATH_LIMIT_BYTES {
        return Err(VolumeErrorCause::Refused(format!(
            "invalid path of {} bytes: must not be longer than {PATH_LIMIT_BYTES}",
            text.len()
        )));
    }
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => {
                if name.len() > COMPONENT_LIMIT_BYTES {
                    return refuse("a file name must not be longer than 255 bytes");
                }
                clean.push(name);
            }
            _ => return refuse("must not contain '..'"),
        }
    }
    match clean.as_os_str().as_encoded_bytes() {
        b"" => refuse("must name a file"),
        [b'.', b'.', ..] => refuse("must not start with '..'"),
        _ => Ok(clean),
    }
}

/// Name of the published payload directory.
fn current_payload(volume: &Path) -> io::Result<Option<PathBuf>> {
    match fs::read_link(volume.join(DATA)) {
        Ok(target) => {
            let plain = target.components().count() == 1
                && target.as_os_str().as_encoded_bytes().starts_with(b"..")
                && target != Path::new("..");
            Ok(plain.then_some(target))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Returns true if directory `published` holds exactly `payload`. Modes do not count.
fn is_same_payload(
    published: &Path,
    payload: &BTreeMap<PathBuf, &ProjectedFile>,
) -> io::Result<bool> {
    for (path, file) in payload {
        let path = published.join(path);
        let status = fs::symlink_metadata(&path)?;
        if !status.is_file() || status.len() != u64::try_from(file.data.len()).unwrap_or(u64::MAX) {
            return Ok(false);
        }
        let mut data = Vec::with_capacity(file.data.len());
        File::open(&path)?
            .take(status.len() + 1)
            .read_to_end(&mut data)?;
        if data != file.data {
            return Ok(false);
        }
    }
    Ok(count_files(published, payload.len(), 0)? == payload.len())
}

/// Files in the tree at `dir`; stops counting above `limit`.
fn count_files(dir: &Path, limit: usize, depth: usize) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() && depth < DEPTH_LIMIT {
            count_files(&entry.path(), limit, depth + 1)?
        } else {
            1
        };
        if count > limit {
            break;
        }
    }
    Ok(count)
}

fn write_payload(
    volume: &Path,
    payload: &BTreeMap<PathBuf, &ProjectedFile>,
) -> io::Result<PathBuf> {
    file::mark_change(volume)?;
    let name = new_directory(volume)?;
    let base = volume.join(&name);
    let written = payload
        .iter()
        .try_for_each(|(path, file)| write_file(&base.join(path), file));
    if let Err(e) = written {
        let _ =
            beneath::open_dir(volume).and_then(|dir| remove::remove_entry(dir, name.as_os_str()));
        return Err(e);
    }
    Ok(name)
}

fn new_directory(volume: &Path) -> io::Result<PathBuf> {
    let wall = clock::wall_now().0;
    let now = OffsetDateTime::from_unix_timestamp_nanos(i128::from(wall))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let stamp = format!(
        "..{:04}_{:02}_{:02}_{:02}_{:02}_{:02}",
        now.year(),
        u8::from(now.month()),
        now.day(),
        now.hour(),
        now.minute(),
        now.second()
    );
    let mut suffix = u64::from(now.nanosecond());
    loop {
        let name = PathBuf::from(format!("{stamp}.{suffix}"));
        let path = volume.join(&name);
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {
                fs::set_permissions(&path, Permissions::from_mode(0o755))?;
                return Ok(name);
            }
            // A clock that stood still or went back.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => suffix += 1,
            Err(e) => return Err(e),
        }
    }
}

fn write_file(path: &Path, file: &ProjectedFile) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        mkdir_all(parent, 0o755)?;
    }
    let mut out = File::options().write(true).create_new(true).open(path)?;
    out.write_all(&file.data)?;
    if let Some(owner) = file.owner {
        fchown(&out, Some(owner), None)?;
    }
    out.set_permissions(Permissions::from_mode(file.mode & 0o7777))
}

fn switch_data_link(volume: &Path, new: &Path) -> io::Result<()> {
    let tmp = volume.join(DATA_TMP);
    match fs::remove_file(&tmp) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    file::mark_change(&tmp)?;
    symlink(new, &tmp)?;
    crash::point("volume.payload-written");
    fs::rename(tmp, volume.join(DATA))
}

/// Adds the missing visible links, then removes those of names that are gone.
fn update_visible_links(
    volume: &Path,
    payload: &BTreeMap<PathBuf, &ProjectedFile>,
) -> io::Result<()> {
    let tops: BTreeSet<&Path> = payload
        .keys()
        .filter_map(|path| path.iter().next().map(Path::new))
        .gather_items();
    for top in &tops {
        let link = volume.join(top);
        let target = Path::new(DATA).join(top);
        match fs::read_link(&link) {
            Ok(found) if found == target => {}
            Ok(_) => {
                fs::remove_file(&link)?;
                symlink(target, link)?;
            }
            Err(_) => symlink(target, link)?,
        }
    }
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_symlink()
            && !name.as_encoded_bytes().starts_with(b"..")
            && !tops.contains(Path::new(&name))
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn remove_old(volume: &Path) -> io::Result<()> {
    let keep = current_payload(volume)?;
    let dir = beneath::open_dir(volume)?;
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b"..")
            && entry.file_type()?.is_dir()
            && keep.as_deref() != Some(Path::new(&name))
        {
            remove::remove_entry(&dir, &name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::{super::testing::Scratch, *};

    fn file(path: &str, data: &str) -> ProjectedFile {
        ProjectedFile {
            path: path.into(),
            data: data.into(),
            mode: 0o644,
            owner: None,
        }
    }

    fn publish_plain(volume: &Path, files: &[ProjectedFile]) -> Result<bool, VolumeErrorCause> {
        publish_files(volume, files, || Ok(()))
    }

    fn listing(volume: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(volume)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn layout() {
        // VOL-01 VOL-02
        let scratch = Scratch::new();
        let volume = scratch.path();
        let mut script = file("dir/run.sh", "#!");
        script.mode = 0o755;
        assert!(publish_plain(volume, &[file("a", "1"), script, file("dir/b", "2")]).unwrap());
        let payload = fs::read_link(volume.join(DATA)).unwrap();
        let stamp = payload.to_str().unwrap();
        assert!(
            stamp.starts_with("..") && stamp.len() > 22 && stamp.as_bytes()[21] == b'.',
            "{stamp}"
        );
        assert_eq!(
            fs::read_link(volume.join("a")).unwrap(),
            Path::new("..data/a")
        );
        assert_eq!(
            fs::read_link(volume.join("dir")).unwrap(),
            Path::new("..data/dir")
        );
        assert_eq!(fs::read_to_string(volume.join("dir/b")).unwrap(), "2");
        let mode = |p: &str| fs::metadata(volume.join(p)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            (mode("a"), mode("dir/run.sh"), mode("dir"), mode(DATA)),
            (0o644, 0o755, 0o755, 0o755)
        );

        // The next generation: one name gone, one new, one changed. The former payload goes with it.
        assert!(publish_plain(volume, &[file("a", "3"), file("c", "4")]).unwrap());
        assert_eq!(listing(volume).len(), 4, "{:?}", listing(volume));
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "3");
        assert!(fs::symlink_metadata(volume.join("dir")).is_err());
        assert!(!volume.join(payload).exists());

        // Without files the links go, and the switch stays.
        assert!(publish_plain(volume, &[]).unwrap());
        assert_eq!(listing(volume).len(), 2);
    }

    #[test]
    fn unchanged_writes_nothing() {
        // VOL-03
        let scratch = Scratch::new();
        let volume = scratch.path();
        let mut files = [file("a", "1"), file("d/b", "2")];
        publish_plain(volume, &files).unwrap();
        let before = fs::read_link(volume.join(DATA)).unwrap();
        fs::remove_file(volume.join("d")).unwrap();
        files[0].mode = 0o600;
        assert!(!publish_plain(volume, &files).unwrap());
        assert_eq!(fs::read_link(volume.join(DATA)).unwrap(), before);
        assert_eq!(
            fs::read_to_string(volume.join("d/b")).unwrap(),
            "2",
            "the link is repaired"
        );
        for (name, other) in [
            ("content", vec![file("a", "2"), file("d/b", "2")]),
            ("one less", vec![file("a", "2")]),
            ("one more", vec![file("a", "2"), file("c", "2")]),
            ("renamed", vec![file("a", "2"), file("e", "2")]),
        ] {
            assert!(publish_plain(volume, &other).unwrap(), "{name}");
            assert!(!publish_plain(volume, &other).unwrap(), "{name}");
        }
    }

    #[test]
    fn paths() {
        // VOL-04
        let long_name = "n".repeat(256);
        let long_path = "d/".repeat(2048) + "n";
        for (name, path, ok) in [
            ("file", "a", true),
            ("deep", "a/b/c", true),
            ("dots inside a name", "a..b", true),
            ("hidden", ".a", true),
            ("two dots deeper", "a/..b", true),
            ("empty", "", false),
            ("only a dot", ".", false),
            ("absolute", "/a", false),
            ("up", "../a", false),
            ("up inside", "a/../b", false),
            ("like our own", "..data", false),
            ("long name", &long_name, false),
            ("long path", &long_path, false),
        ] {
            let scratch = Scratch::new();
            let answer = publish_plain(scratch.path(), &[file("good", "x"), file(path, "x")]);
            assert_eq!(answer.is_ok(), ok, "{name}: {answer:?}");
            if !ok {
                assert_eq!(
                    listing(scratch.path()),
                    Vec::<String>::new(),
                    "{name}: all or nothing"
                );
            }
        }
    }

    #[test]
    fn failure_keeps_the_former_generation() {
        // VOL-02
        let scratch = Scratch::new();
        let volume = scratch.path();
        publish_plain(volume, &[file("a", "1")]).unwrap();
        let refused = publish_files(volume, &[file("a", "2")], || {
            Err(VolumeErrorCause::Refused("no".into()))
        });
        assert_eq!(refused.unwrap_err().to_string(), "no");
        publish_plain(volume, &[file("a", "2"), file("a/b", "2")])
            .expect_err("a is both file and directory");
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1");
        // The leftovers of the failed tries go with the next success.
        publish_plain(volume, &[file("a", "3")]).unwrap();
        assert_eq!(listing(volume).len(), 3, "{:?}", listing(volume));
    }

    #[test]
    fn readers_see_one_generation() {
        // VOL-02
        let scratch = Scratch::new();
        let volume = scratch.path();
        let generation = |n: u32| [file("a", &n.to_string()), file("b", &n.to_string())];
        publish_plain(volume, &generation(0)).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..200 {
                    publish_plain(volume, &generation(n)).unwrap();
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                // A directory opened through the switch is one generation, whole, or deleted under the reader's feet.
                let Ok(payload) = beneath::open_dir(&volume.join(DATA)) else {
                    continue;
                };
                let read = |name| fs::read_to_string(beneath::fd_path(&payload).join(name));
                if let (Ok(a), Ok(b)) = (read("a"), read("b")) {
                    assert_eq!(a, b);
                }
            }
        });
    }
}
