//! View of the layers below a layer: it takes over the metadata of their directories, writes through their links, and
//! links to their files.
//!
//! A layer is unpacked alone as a rule, and [`settle_implied_dirs`] afterwards copies metadata to directories that it
//! used without declaring them. Where that is not enough it is unpacked with a view of the layers below
//! ([`LowerLayers`]), which shows them as overlayfs would: nearest first, removed names and opaque directories
//! heeded. Everything is looked up name by name from opened layer roots, links resolved with the image's root as `/`,
//! so that nothing of an image can lead out of it.

use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use core::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod};
use nix::unistd::{Gid, Uid, fchown};

use super::error::{ImageProblem, LayerError};
use super::tree::{self, PathComponent, TreePathError};
use crate::sys::xattr;

/// Look-ups of one layer in those below: 500 for each of its entries in the largest images, minutes on a small board.
pub const MAX_LOOKUPS: u64 = 50_000_000;

/// The layers below, as one tree.
#[derive(Debug)]
pub(super) struct LowerLayers {
    /// Roots of the layers, nearest first.
    layers: Vec<Rc<OwnedFd>>,
    lookups_left: u64,
}

/// Entry that the layers below show under a name.
#[derive(Debug)]
pub(super) enum LowerEntry {
    Nothing,
    /// The nearest of the directories that are merged.
    Directory(OwnedFd, FileStat),
    /// Anything else, with the directory it is in.
    Other(Rc<OwnedFd>, FileStat),
}

impl LowerLayers {
    /// `layers` nearest first, cut below one that hides the rest.
    pub(super) fn new(layers: Vec<OwnedFd>) -> Self {
        Self {
            layers: layers.into_iter().map(Rc::new).collect(),
            lookups_left: MAX_LOOKUPS,
        }
    }

    /// The layer above hides all of them.
    pub(super) fn hide(&mut self) {
        self.layers.clear();
    }

    /// Looks up `name` in the directory `path` of the layers below. `path` has no links on the way. `upper` is the root
    /// of the layer above: its opaque directories hide the layers below.
    pub(super) fn find_entry(
        &mut self,
        upper: BorrowedFd<'_>,
        path: &[PathComponent],
        name: &[u8],
    ) -> Result<LowerEntry, TreePathError> {
        let mut dirs = self.layers.clone();
        // As long as the layer above has the directory itself.
        let mut above = true;
        for (at, part) in path.iter().enumerate() {
            dirs = self.descend_merged(&dirs, part)?;
            if above {
                match tree::open_beneath(upper, &path[..=at]) {
                    Ok(dir) if is_opaque(dir.as_fd())? => dirs.clear(),
                    Ok(_) => {}
                    Err(Errno::ENOENT) => above = false,
                    Err(errno) => return Err(errno.into()),
                }
            }
            if dirs.is_empty() {
                return Ok(LowerEntry::Nothing);
            }
        }
        for dir in dirs {
            self.count_lookup()?;
            return match tree::stat_entry(dir.as_fd(), name) {
                Err(Errno::ENOENT) => continue,
                Err(errno) => Err(errno.into()),
                Ok(stat) if tree::is_whiteout(&stat) => Ok(LowerEntry::Nothing),
                Ok(stat) if tree::file_type(&stat) == SFlag::S_IFDIR => {
                    let found = tree::open_beneath(dir.as_fd(), &[name.into()])?;
                    Ok(LowerEntry::Directory(found, stat))
                }
                Ok(stat) => Ok(LowerEntry::Other(dir, stat)),
            };
        }
        Ok(LowerEntry::Nothing)
    }

    /// The directories that are merged at `name` in the merged directories `dirs`.
    fn descend_merged(
        &mut self,
        dirs: &[Rc<OwnedFd>],
        name: &PathComponent,
    ) -> Result<Vec<Rc<OwnedFd>>, TreePathError> {
        let mut found = Vec::new();
        for dir in dirs {
            self.count_lookup()?;
            match tree::open_beneath(dir.as_fd(), core::slice::from_ref(name)) {
                Ok(inner) => {
                    let last = is_opaque(inner.as_fd())?;
                    found.push(Rc::new(inner));
                    if last {
                        break;
                    }
                }
                Err(Errno::ENOENT) => {}
                // Removed, a file or a link: nothing further down is seen.
                Err(Errno::ENOTDIR | Errno::ELOOP) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(found)
    }

    fn count_lookup(&mut self) -> Result<(), TreePathError> {
        self.lookups_left = self
            .lookups_left
            .checked_sub(1)
            .ok_or(TreePathError::TooManyLookups)?;
        Ok(())
    }
}

/// Result of [`settle_implied_dirs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImpliedDirsResult {
    Yes,
    /// A symbolic link is below in the place of a directory: the layer must be unpacked with a view of the layers
    /// below.
    Link,
}

/// Gives directories that a layer implies the metadata of those below. `below` has the layers under it, nearest first.
pub(super) fn settle_implied_dirs(
    layer: BorrowedFd<'_>,
    implied: &BTreeSet<Vec<u8>>,
    below: &mut LowerLayers,
) -> Result<ImpliedDirsResult, LayerError> {
    for path in implied {
        let settled = settle_implied_dir(layer, path, below).map_err(|problem| LayerError {
            entry: Some(tree::display_path(path)),
            problem,
        })?;
        if settled == ImpliedDirsResult::Link {
            return Ok(settled);
        }
    }
    Ok(ImpliedDirsResult::Yes)
}

fn settle_implied_dir(
    layer: BorrowedFd<'_>,
    path: &[u8],
    below: &mut LowerLayers,
) -> Result<ImpliedDirsResult, ImageProblem> {
    let names = tree::split_path(path).map_err(ImageProblem::from)?;
    let Some((last, parents)) = names.split_last() else {
        return Ok(ImpliedDirsResult::Yes);
    };
    match below
        .find_entry(layer, parents, last)
        .map_err(ImageProblem::from)?
    {
        LowerEntry::Directory(from, stat) => {
            let to = tree::open_beneath(layer, &names)
                .map_err(ImageProblem::write_error("open the directory"))?;
            copy_metadata(from.as_fd(), &stat, to.as_fd())?;
        }
        LowerEntry::Other(_, stat) if tree::file_type(&stat) == SFlag::S_IFLNK => {
            return Ok(ImpliedDirsResult::Link);
        }
        // A removed name, or a file that becomes a directory here: nothing to copy.
        LowerEntry::Nothing | LowerEntry::Other(..) => {}
    }
    Ok(ImpliedDirsResult::Yes)
}

/// Returns true if overlayfs shows nothing of the layers below this directory.
pub(super) fn is_opaque(dir: BorrowedFd<'_>) -> Result<bool, TreePathError> {
    xattr::read_attribute(dir, tree::OPAQUE)
        .map(|value| value.as_deref() == Some(b"y"))
        .map_err(TreePathError::Io)
}

/// Owner, attributes, mode and time of `from` for `to`.
pub(super) fn copy_metadata(
    from: BorrowedFd<'_>,
    stat: &FileStat,
    to: BorrowedFd<'_>,
) -> Result<(), ImageProblem> {
    fchown(
        to,
        Some(Uid::from_raw(stat.st_uid)),
        Some(Gid::from_raw(stat.st_gid)),
    )
    .map_err(ImageProblem::write_error("set the owner"))?;
    let names = xattr::list_attribute_names(from)
        .map_err(ImageProblem::write_error("read extended attributes"))?;
    for name in names.split_inclusive(|&b| b == 0) {
        if let Ok(name) = CStr::from_bytes_with_nul(name)
            && !name.to_bytes().starts_with(b"trusted.overlay.")
            && let Ok(Some(value)) = xattr::read_attribute(from, name)
        {
            ImageProblem::ignore_unsupported(xattr::set_attribute(to, name, &value))?;
        }
    }
    fchmod(to, Mode::from_bits_truncate(stat.st_mode & 0o7777))
        .map_err(ImageProblem::write_error("set the mode"))?;
    tree::restore_mtime(to, stat).map_err(ImageProblem::write_error("set the time"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use std::path::PathBuf;

    use super::super::layer::{SpaceBudget, UnpackedLayer, unpack};
    use super::super::testing::Stream;
    use super::*;
    use crate::testing::TestDir;

    /// Layers unpacked over each other, and files beside them that must not be touched.
    struct Pile {
        scratch: TestDir,
        layers: usize,
    }

    impl Pile {
        fn new() -> Self {
            let scratch = TestDir::new("below");
            fs::write(scratch.join("secret"), b"secret").expect("scratch");
            Self { scratch, layers: 0 }
        }

        fn open(&self, at: usize) -> OwnedFd {
            let dir = self.scratch.join(format!("l{at}"));
            fs::File::open(dir).expect("layer").into()
        }

        fn below(&self) -> LowerLayers {
            LowerLayers::new((0..self.layers).rev().map(|at| self.open(at)).collect())
        }

        fn try_layer(&mut self, stream: Stream, bytes: u64) -> Result<UnpackedLayer, LayerError> {
            let below = self.below();
            fs::create_dir(self.scratch.join(format!("l{}", self.layers))).expect("scratch");
            let mut budget = SpaceBudget {
                bytes,
                bytes_left: bytes,
                inodes: 1000,
                inodes_left: 1000,
            };
            let result = unpack(
                &mut &stream.bytes()[..],
                self.open(self.layers),
                Some(below),
                &mut budget,
                &mut |_| Ok(()),
            );
            self.layers += 1;
            let secret = fs::read(self.scratch.join("secret")).expect("still there");
            assert_eq!(secret, b"secret");
            result
        }

        fn layer(&mut self, stream: Stream) -> UnpackedLayer {
            self.try_layer(stream, 1 << 30)
                .unwrap_or_else(|e| panic!("{:?}: {}", e.entry, e.problem))
        }

        /// A path of the uppermost layer.
        fn top(&self, name: &str) -> PathBuf {
            self.scratch
                .join(format!("l{}", self.layers - 1))
                .join(name)
        }

        fn stat(&self, name: &str) -> fs::Metadata {
            fs::symlink_metadata(self.top(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.top(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
        }

        fn whiteout(&self, name: &str) -> bool {
            let stat = self.stat(name);
            stat.file_type().is_char_device() && stat.rdev() == 0
        }
    }

    fn is_root() -> bool {
        let root = nix::unistd::geteuid().is_root();
        if !root {
            skipped!("unpacking needs root");
        }
        root
    }

    #[test]
    fn implied_directories_take_after_those_below() {
        if !is_root() {
            return;
        }
        let mut pile = Pile::new();
        pile.layer(
            Stream::new()
                .dir("tmp", 0o1777)
                .dir("hidden", 0o700)
                .dir("closed", 0o711)
                .symlink("lib", "usr/lib"),
        );
        pile.layer(
            Stream::new()
                .file(".wh.hidden", b"")
                .file("closed/.wh..wh..opq", b""),
        );
        for (name, layer, settled) in [
            (
                "directories",
                Stream::new().file("tmp/a/x", b"1").file("hidden/y", b"2"),
                ImpliedDirsResult::Yes,
            ),
            (
                "a link",
                Stream::new().file("lib/x", b"1"),
                ImpliedDirsResult::Link,
            ),
        ] {
            fs::create_dir(pile.scratch.join(name)).expect("scratch");
            let alone = pile.scratch.join(name);
            let root = || OwnedFd::from(fs::File::open(&alone).expect("root"));
            let mut budget = SpaceBudget {
                bytes: 1 << 20,
                bytes_left: 1 << 20,
                inodes: 99,
                inodes_left: 99,
            };
            let on_bytes = &mut |_| Ok(());
            let unpacked =
                unpack(&mut &layer.bytes()[..], root(), None, &mut budget, on_bytes).expect(name);
            let done = settle_implied_dirs(root().as_fd(), &unpacked.implied, &mut pile.below())
                .expect(name);
            assert_eq!(done, settled, "{name}");
        }
        let mode = |path: &str| {
            let stat = fs::metadata(pile.scratch.join("directories").join(path)).expect(path);
            stat.mode() & 0o7777
        };
        assert_eq!(mode("tmp"), 0o1777);
        assert_eq!(mode("tmp/a"), 0o755);
        assert_eq!(mode("hidden"), 0o755, "removed in between");
    }

    #[test]
    fn links_below_are_followed_inside_the_image() {
        if !is_root() {
            return;
        }
        let mut pile = Pile::new();
        pile.layer(
            Stream::new()
                .dir("usr", 0o755)
                .dir("usr/lib", 0o751)
                .file("usr/lib/old", b"0")
                .dir("run", 0o755)
                .symlink("lib", "usr/lib")
                .symlink("var", "/run/nowhere")
                .symlink("out", "../../../../../../../../tmp")
                .symlink("circle", "circle/x"),
        );
        pile.layer(Stream::new().dir("gone", 0o700).file("plain", b"1"));
        let unpacked = pile.layer(
            Stream::new()
                .file("lib/new", b"1")
                .file("usr/lib/new", b"2")
                .file("lib/.wh.old", b"")
                .file("var/x", b"3")
                .file("out/secret", b"4")
                .dir("gone/in", 0o700),
        );
        assert_eq!(
            pile.text("usr/lib/new"),
            "2",
            "one file, the later entry counts"
        );
        assert!(!pile.top("lib").exists(), "the link below is not hidden");
        assert_eq!(pile.stat("usr/lib").mode() & 0o7777, 0o751);
        assert_eq!(pile.stat("usr/lib").mtime(), 1_000_000);
        assert!(pile.whiteout("usr/lib/old"));
        assert_eq!(
            pile.text("run/nowhere/x"),
            "3",
            "absolute: from the image's root"
        );
        assert_eq!(pile.text("tmp/secret"), "4", "above the root is the root");
        assert_eq!(pile.stat("gone").mode() & 0o7777, 0o700);
        assert!(!unpacked.implied.contains(&b"lib"[..]));
        // A declared directory takes the link's place, as with every runtime.
        pile.layer(Stream::new().dir("lib", 0o700).file("lib/own", b"1"));
        assert_eq!(pile.text("lib/own"), "1");
        let error = pile
            .try_layer(Stream::new().file("circle/y", b"1"), 1 << 20)
            .expect_err("a circle");
        assert!(
            error.problem.to_string().contains("symbolic links"),
            "{}",
            error.problem
        );
    }

    #[test]
    fn hard_links_to_files_below() {
        if !is_root() {
            return;
        }
        let mut pile = Pile::new();
        pile.layer(
            Stream::new()
                .dir("bin", 0o711)
                .entry(tar::EntryType::Regular, "bin/tool", "", 0o4755, b"tool")
                .symlink("bin/sym", "tool")
                .file("hidden/x", b"1")
                .device(tar::EntryType::Char, "null", 1, 3)
                .symlink("sbin", "bin"),
        );
        pile.layer(
            Stream::new()
                .dir("bin", 0o711)
                .file("hidden/.wh..wh..opq", b""),
        );
        let unpacked = pile.layer(
            Stream::new()
                .hard_link("one", "bin/tool")
                .hard_link("two", "sbin/tool")
                .hard_link("three", "one")
                .hard_link("link", "/bin/sym"),
        );
        assert_eq!(unpacked.size_bytes, 4, "copied once");
        let inode = |name: &str| pile.stat(name).ino();
        assert_eq!(pile.text("one"), "tool");
        assert_eq!(pile.stat("one").mode() & 0o7777, 0o4755);
        assert_eq!(pile.stat("one").mtime(), 1_000_000);
        assert!(
            [inode("two"), inode("three"), inode("bin/tool")]
                .iter()
                .all(|&i| i == inode("one"))
        );
        assert_eq!(pile.stat("bin").mode() & 0o7777, 0o711);
        assert_eq!(pile.stat("bin").mtime(), 1_000_000);
        assert_eq!(
            fs::read_link(pile.top("link")).expect("a link"),
            PathBuf::from("tool")
        );

        for (name, stream, says) in [
            (
                "nowhere",
                Stream::new().hard_link("x", "bin/none"),
                "neither the layer nor those below have",
            ),
            (
                "hidden below",
                Stream::new().hard_link("x", "hidden/x"),
                "neither the layer nor those below have",
            ),
            (
                "hidden by the root",
                Stream::new()
                    .file(".wh..wh..opq", b"")
                    .hard_link("x", "bin/tool"),
                "neither",
            ),
            (
                "a directory",
                Stream::new().hard_link("x", "bin"),
                "neither the layer nor those below have",
            ),
            (
                "a device",
                Stream::new().hard_link("x", "null"),
                "a device or pipe of a layer below",
            ),
            (
                "outside",
                Stream::new().hard_link("x", "sbin/../../secret"),
                "neither the layer nor those below have",
            ),
        ] {
            let error = pile.try_layer(stream, 1 << 20).expect_err(name);
            let text = error.problem.to_string();
            assert!(text.contains(says), "{name}: {text}");
            assert_eq!(error.entry.as_deref(), Some("x"), "{name}");
            pile.layers -= 1;
            fs::remove_dir_all(pile.scratch.join(format!("l{}", pile.layers))).expect("scratch");
        }
    }

    #[test]
    fn what_was_copied_for_a_link_can_be_removed() {
        // IMG-25
        if !is_root() {
            return;
        }
        let lower = || {
            Stream::new()
                .file("orig", b"text")
                .file("a/f", b"text")
                .file("a/g", b"other")
                .file("a/deep/er/f", b"text")
        };
        let removed = |stream: Stream| {
            let mut pile = Pile::new();
            pile.layer(lower());
            pile.layer(stream);
            assert_eq!(pile.text("b"), "text");
            pile
        };
        let link = |to: &str| Stream::new().hard_link("b", to);
        assert!(removed(link("orig").file(".wh.orig", b"")).whiteout("orig"));
        assert!(removed(link("a/f").file(".wh.a", b"")).whiteout("a"));
        assert!(removed(link("a/deep/er/f").file(".wh.a", b"")).whiteout("a"));
        assert!(removed(link("a/f").file("a/.wh.f", b"")).whiteout("a/f"));
        // Declared, or with something of its own, the directory stays, without what is below.
        for (name, stream) in [
            ("declared", link("a/f").dir("a", 0o755).file(".wh.a", b"")),
            ("opaque", link("a/f").file("a/.wh..wh..opq", b"")),
            (
                "deep",
                link("a/deep/er/f").dir("a", 0o755).file(".wh.a", b""),
            ),
            (
                "the root",
                link("a/f").file(".wh..wh..opq", b"").dir("a", 0o755),
            ),
        ] {
            let pile = removed(stream);
            let left = fs::read_dir(pile.top("a")).expect(name).count();
            assert_eq!(left, 0, "{name}");
        }
        let own = removed(link("a/f").file("a/own", b"1").file(".wh.a", b""));
        assert!(own.text("a/own") == "1" && !own.top("a/f").exists());
        // An entry of the layer is its own, also if it is the file that was copied.
        let again = removed(link("a/f").hard_link("a/f", "b").file(".wh.a", b""));
        assert_eq!(again.text("a/f"), "text");
        let other = removed(link("a/f").file("a/f", b"new").file(".wh.a", b""));
        assert_eq!(other.text("a/f"), "new");
        // A file that was removed before cannot be linked to.
        for (name, stream) in [
            (
                "itself",
                Stream::new().file(".wh.orig", b"").hard_link("b", "orig"),
            ),
            (
                "its directory",
                Stream::new().file(".wh.a", b"").hard_link("b", "a/f"),
            ),
            (
                "after a link",
                link("orig").file(".wh.orig", b"").hard_link("c", "orig"),
            ),
            (
                "in the directory",
                Stream::new().file("a/.wh.f", b"").hard_link("b", "a/f"),
            ),
            (
                "opaque",
                Stream::new()
                    .file("a/.wh..wh..opq", b"")
                    .hard_link("b", "a/f"),
            ),
        ] {
            let mut pile = Pile::new();
            pile.layer(lower());
            let error = pile.try_layer(stream, 1 << 20).expect_err(name);
            let text = error.problem.to_string();
            assert!(
                text.contains("neither the layer nor those below have"),
                "{name}: {text}"
            );
        }
    }

    #[test]
    fn copies_and_look_ups_are_bounded() {
        if !is_root() {
            return;
        }
        let mut pile = Pile::new();
        pile.layer(Stream::new().file("big", &[7; 100_000]).symlink("l", "d"));
        // A copy counts as what the layer writes.
        let error = pile
            .try_layer(Stream::new().hard_link("x", "big"), 50_000)
            .expect_err("no space");
        assert!(
            matches!(error.problem, ImageProblem::NoSpace { .. }),
            "{}",
            error.problem
        );
        let mut below = pile.below();
        below.lookups_left = 3;
        let upper = pile.open(0);
        let mut looks = 0;
        let end = loop {
            match below.find_entry(upper.as_fd(), &[], b"none") {
                Ok(found) => assert!(matches!(found, LowerEntry::Nothing)),
                Err(end) => break end,
            }
            looks += 1;
            assert!(looks < 10, "no bound");
        };
        assert!(matches!(end, TreePathError::TooManyLookups));
        assert!(
            ImageProblem::from(end)
                .to_string()
                .contains("look-ups in the layers below")
        );
    }
}
