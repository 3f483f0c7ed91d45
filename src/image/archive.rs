//! Image archives as a sequence of members, read front to back: a tar file (plain, gzip, zstd) or a directory.
//!
//! A member is named as the archive's own documents name it: no `./`, no leading `/`.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::compress::{self, StreamCompression};
use super::error::ImageProblem;
use super::tarball::{TarEntryKind, TarInput, TarReader};
use crate::api::order::OrderExt;

/// Members of one archive: an image of 127 layers has about 400.
pub const MAX_MEMBERS: u64 = 20_000;
/// Longest member name taken note of, bytes.
pub const MAX_MEMBER_NAME_BYTES: usize = 512;

/// Block of a tar file, bytes: the first one is a header.
const BLOCK_BYTES: usize = 512;

/// Kind of an archive's member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemberKind {
    /// A file of this many bytes.
    File(u64),
    /// A link to the member of this name, resolved against the archive's root.
    Link(String),
}

/// An archive that can be gone through more than once.
pub(super) struct Archive {
    path: PathBuf,
    form: ArchiveForm,
}

enum ArchiveForm {
    Directory,
    /// Members of a directory by name; its other files are ignored.
    Some(Vec<String>),
    Tar,
}

/// Gets each member. Data that it does not read is skipped.
pub(super) type MemberVisitor<'v> =
    &'v mut dyn FnMut(&str, &MemberKind, &mut dyn Read) -> Result<(), ImageProblem>;

impl Archive {
    /// Opens the archive at `path`. Only regular files and directories are archives.
    pub(super) fn open(path: &Path) -> Result<Self, ImageProblem> {
        let kind = fs::metadata(path).map_err(ImageProblem::Read)?;
        let form = if kind.is_dir() {
            ArchiveForm::Directory
        } else if kind.is_file() {
            ArchiveForm::Tar
        } else {
            return Err(ImageProblem::Unsupported(
                "it is neither a file nor a directory".into(),
            ));
        };
        Ok(Self {
            path: path.into(),
            form,
        })
    }

    /// Opens certain members of an OCI layout directory. Its other files are not looked at.
    pub(super) const fn open_members(layout: PathBuf, members: Vec<String>) -> Self {
        Self {
            path: layout,
            form: ArchiveForm::Some(members),
        }
    }

    /// Goes through all members once. A plain archive's unread data is passed over by seeking.
    pub(super) fn visit_members(&self, visit: MemberVisitor<'_>) -> Result<(), ImageProblem> {
        match &self.form {
            ArchiveForm::Directory => self.visit_layout_files(visit),
            ArchiveForm::Some(members) => members
                .iter()
                .try_for_each(|member| self.visit_layout_file(member, visit)),
            ArchiveForm::Tar => self.visit_tar_archive(visit),
        }
    }

    fn visit_tar_archive(&self, visit: MemberVisitor<'_>) -> Result<(), ImageProblem> {
        let mut file = File::open(&self.path).map_err(ImageProblem::Read)?;
        let mut head = [0; BLOCK_BYTES];
        let n = compress::read_up_to(&mut file, &mut head).map_err(ImageProblem::Read)?;
        file.seek(SeekFrom::Start(0)).map_err(ImageProblem::Read)?;
        if n == 0 {
            return Err(ImageProblem::Truncated);
        }
        match compress::detect_compression(&head[..n]).map_err(ImageProblem::from_read_error)? {
            StreamCompression::Plain => {
                refuse_short_text(&head[..n])?;
                let length = file.metadata().map_err(ImageProblem::Read)?.len();
                visit_tar_entries(
                    &mut PlainFileInput {
                        file,
                        at: 0,
                        length,
                    },
                    visit,
                )
            }
            StreamCompression::Gzip | StreamCompression::Zstd => {
                let (_, mut input) =
                    compress::open_decoder(file).map_err(ImageProblem::from_read_error)?;
                let n = compress::read_up_to(&mut *input, &mut head)
                    .map_err(|error| classify_tar_error(0, error))?;
                refuse_short_text(&head[..n])?;
                visit_tar_entries(&mut DecodedInput(&mut head[..n].chain(input)), visit)
            }
        }
    }

    /// An OCI layout: two documents and the blobs.
    fn visit_layout_files(&self, visit: MemberVisitor<'_>) -> Result<(), ImageProblem> {
        for name in ["oci-layout", "index.json"] {
            self.visit_layout_file(name, visit)?;
        }
        let blobs = "blobs/sha256";
        let mut names = Vec::new();
        let list = match fs::read_dir(self.path.join(blobs)) {
            Ok(list) => list,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(ImageProblem::Read(e)),
        };
        for entry in list {
            if let Ok(name) = entry.map_err(ImageProblem::Read)?.file_name().into_string() {
                names.push(name);
            }
            check_count(names.len() as u64)?;
        }
        names.stable_sort();
        for name in names {
            self.visit_layout_file(&format!("{blobs}/{name}"), visit)?;
        }
        Ok(())
    }

    fn visit_layout_file(&self, name: &str, visit: MemberVisitor<'_>) -> Result<(), ImageProblem> {
        let path = self.path.join(name);
        match fs::metadata(&path) {
            Ok(stat) if stat.is_file() => {
                let mut file = File::open(&path).map_err(ImageProblem::Read)?;
                visit(name, &MemberKind::File(stat.len()), &mut file)
            }
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(ImageProblem::Read(e)),
        }
    }
}

fn check_count(members: u64) -> Result<(), ImageProblem> {
    if members > MAX_MEMBERS {
        return Err(ImageProblem::Limit {
            what: "members in an archive",
            limit: MAX_MEMBERS,
        });
    }
    Ok(())
}

fn visit_tar_entries(
    input: &mut dyn TarInput,
    visit: MemberVisitor<'_>,
) -> Result<(), ImageProblem> {
    let mut tar = TarReader::new(input);
    let mut members = 0;
    while let Some(entry) = tar
        .next_entry()
        .map_err(|error| classify_tar_error(members, error))?
    {
        members += 1;
        check_count(members)?;
        let Some(name) = member_name("", &entry.path) else {
            continue;
        };
        let kind = match entry.kind {
            TarEntryKind::File if entry.sparse.is_none() => MemberKind::File(entry.size),
            // A hard link names its target from the root, a symbolic one from its own directory.
            TarEntryKind::HardLink => match member_name("", &entry.link) {
                Some(target) => MemberKind::Link(target),
                None => continue,
            },
            TarEntryKind::Symlink => {
                let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
                match member_name(dir, &entry.link) {
                    Some(target) => MemberKind::Link(target),
                    None => continue,
                }
            }
            _ => continue,
        };
        visit(&name, &kind, &mut tar)?;
    }
    Ok(())
}

/// Problem of an archive that cannot be read. If the very first block is no tar header, the file is no archive at all.
fn classify_tar_error(members: u64, error: io::Error) -> ImageProblem {
    if members == 0 && error.kind() == io::ErrorKind::InvalidData {
        return not_an_archive();
    }
    ImageProblem::from_read_error(error)
}

/// Refuses a file that ends in its first block without a zero byte: in a part of a header they stand behind the name.
fn refuse_short_text(head: &[u8]) -> Result<(), ImageProblem> {
    if head.len() < BLOCK_BYTES && !head.contains(&0) {
        return Err(not_an_archive());
    }
    Ok(())
}

fn not_an_archive() -> ImageProblem {
    ImageProblem::Unsupported(
        "it is not an image archive (docker-archive or OCI layout as tar, gzip or zstd)".into(),
    )
}

/// The name of a member, relative paths resolved against `dir`. `None` for a path that no document can name.
pub(super) fn member_name(dir: &str, path: &[u8]) -> Option<String> {
    let path = core::str::from_utf8(path).ok()?;
    let mut parts: Vec<&str> = if path.starts_with('/') {
        Vec::new()
    } else {
        dir.split('/').filter(|part| !part.is_empty()).collect()
    };
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    let name = parts.join("/");
    (!name.is_empty() && name.len() <= MAX_MEMBER_NAME_BYTES).then_some(name)
}

/// A plain file: skipping is seeking.
struct PlainFileInput {
    file: File,
    at: u64,
    length: u64,
}

impl Read for PlainFileInput {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buf)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl TarInput for PlainFileInput {
    fn skip_bytes(&mut self, n: u64) -> io::Result<()> {
        // Seeking past the end would succeed.
        let to = self.at.checked_add(n).filter(|&to| to <= self.length);
        let to = to.ok_or(io::ErrorKind::UnexpectedEof)?;
        if n > 0 {
            self.file.seek(SeekFrom::Start(to))?;
            self.at = to;
        }
        Ok(())
    }
}

/// A decompressed stream.
struct DecodedInput<'a>(&'a mut dyn Read);

impl Read for DecodedInput<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl TarInput for DecodedInput<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn certain_members_and_no_others() {
        let scratch = TestDir::new("archive");
        let dir = scratch.join("blobs/sha256");
        fs::create_dir_all(&dir).expect("layout");
        for name in ["a", "b", "c"] {
            fs::write(dir.join(name), name).expect("blob");
        }
        let members = ["b", "absent"].map(|n| format!("blobs/sha256/{n}"));
        let archive = Archive::open_members(scratch.0.clone(), members.into());
        let mut seen = Vec::new();
        let walked = archive.visit_members(&mut |name, kind, _| {
            seen.push((name.to_owned(), kind.clone()));
            Ok(())
        });
        assert!(walked.is_ok());
        assert_eq!(seen, [("blobs/sha256/b".to_owned(), MemberKind::File(1))]);
    }

    #[test]
    fn member_names() {
        for (dir, path, want) in [
            ("", "a/b", Some("a/b")),
            ("", "./a//b/", Some("a/b")),
            ("", "/a", Some("a")),
            ("x/y", "../z/layer.tar", Some("x/z/layer.tar")),
            ("x", "../../etc/passwd", None),
            ("x", "/abs", Some("abs")),
            ("", ".", None),
        ] {
            assert_eq!(
                member_name(dir, path.as_bytes()).as_deref(),
                want,
                "{dir} {path}"
            );
        }
        assert_eq!(member_name("", &[0xff]), None);
    }
}
