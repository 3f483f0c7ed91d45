//! `cargo xtask release`: packs what `cargo xtask dist` has built into what is given away (PKG-01 to PKG-03, PKG-10): a
//! tarball and Debian packages for each board, their sums, and a signature of these. The same sources and programs give the
//! same bytes, wherever and whenever they are packed. The crates in them are held against known advisories first.

mod advisories;
mod archive;
mod debian;
mod sbom;
mod sign;
#[cfg(test)]
mod tests;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest as _, Sha256};

use crate::{
    Failure,
    dist::{self, Board, Edition, boards},
    process::{find, output},
    source_date, stage,
};
use archive::Tree;
use sign::Key;

/// Where a release is put.
const DIR: &str = "target/release-files";
/// The list of its files, in the form of sha256sum(1), and its signature.
const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.sig";
/// The key that the signature is checked by.
const PUBLIC_KEY: &str = "release.pub";
/// Names a file with the private key.
const KEY_VARIABLE: &str = "PICOLET_RELEASE_KEY";

/// Texts that the program makes of itself.
struct Texts {
    bash: String,
    zsh: String,
    fish: String,
    man: String,
}

/// What a release is made from, its programs apart.
struct Source {
    /// The project.
    root: PathBuf,
    date: u64,
    /// Version of the program.
    version: String,
    /// In PEM.
    public_key: Option<String>,
    texts: Texts,
}

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let mut names = Vec::new();
    let mut key = env::var_os(KEY_VARIABLE).map(PathBuf::from);
    let mut reason = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--key" => key = Some(words.next().ok_or("--key needs a file")?.into()),
            "--skip-advisories" => {
                reason = Some(words.next().ok_or("--skip-advisories needs a reason")?);
            }
            odd if odd.starts_with('-') => {
                let known = "--key FILE, --skip-advisories REASON";
                return Err(format!("unknown option {odd}; known: {known}").into());
            }
            name => names.push(name),
        }
    }
    let key = key.map(|path| Key::read(&path)).transpose()?;
    let boards = boards(&names)?.into_iter();
    let editions = [Edition::Full, Edition::Core];
    let programs = boards.flat_map(|board| editions.map(|edition| (edition, board.clone())));
    let programs =
        programs.map(|(edition, board)| (dist::program(&board, edition), edition, board));
    let programs: Vec<_> = programs.collect();
    let program = find("cargo-deny");
    let record = advisories::check(program.as_deref(), reason.map(String::as_str))?;
    pack(Path::new(DIR), &programs, key.as_ref(), record)
}

/// A release of these programs, with all parts, for a test in `dir`, signed by a key that nobody keeps.
pub(crate) fn pack_signed(dir: &Path, programs: &[(PathBuf, Board)]) -> Result<(), Failure> {
    let programs = programs.iter().cloned();
    let programs: Vec<_> = programs
        .map(|(file, board)| (file, Edition::Full, board))
        .collect();
    pack(dir, &programs, Some(&Key::new()?), None)
}

/// - `record`: a file that says what of the release was not checked.
fn pack(
    dir: &Path,
    programs: &[(PathBuf, Edition, Board)],
    key: Option<&Key>,
    record: Option<(String, Vec<u8>)>,
) -> Result<(), Failure> {
    let mut files = Vec::from_iter(record);
    for edition in [Edition::Full, Edition::Core] {
        let mut of_edition = programs
            .iter()
            .filter(|(_, of, _)| *of == edition)
            .peekable();
        if of_edition.peek().is_none() {
            continue;
        }
        let source = Source {
            root: env::current_dir()?,
            date: source_date::get()?,
            version: program_version()?,
            public_key: key.map(Key::public),
            texts: texts(edition)?,
        };
        for (file, _, board) in of_edition {
            let program = fs::read(file).map_err(|e| {
                let (file, words) = (file.display(), edition.dist_words());
                format!(
                    "{file}: {e}: build it by cargo xtask dist {words}{}",
                    board.name
                )
            })?;
            dist::check(board, edition, &program)?;
            let sbom = sbom::of(board, edition, &source)?;
            files.extend(source.files(edition, board, &program, &sbom)?);
        }
    }
    files.push(("install.sh".into(), fs::read("cross/install.sh")?));
    finish(dir, files, key)
}

/// Writes the files, their sums, and the signature.
fn finish(dir: &Path, mut files: Vec<(String, Vec<u8>)>, key: Option<&Key>) -> Result<(), Failure> {
    if let Some(key) = key {
        files.push((PUBLIC_KEY.into(), key.public().into()));
    }
    files.sort();
    let sums = sums(&files);
    if let Some(key) = key {
        files.push((SIGNATURE.into(), key.sign(sums.as_bytes())));
    } else {
        println!("Not signed: --key or {KEY_VARIABLE} name no key.");
    }
    files.push((SUMS.into(), sums.into()));
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    for (name, bytes) in files {
        println!("{:>10}  {}", bytes.len(), dir.join(&name).display());
        fs::write(dir.join(name), bytes)?;
    }
    Ok(())
}

fn sums(files: &[(String, Vec<u8>)]) -> String {
    let line = |(name, bytes): &(String, Vec<u8>)| format!("{:x}  {name}\n", Sha256::digest(bytes));
    files.iter().map(line).collect()
}

/// The version in the program's `Cargo.toml`.
fn program_version() -> Result<String, Failure> {
    let text = fs::read_to_string("Cargo.toml")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("version = \""));
    Ok(line
        .ok_or("Cargo.toml has no version")?
        .trim_end_matches('"')
        .to_owned())
}

/// Asks the program as built for this machine.
fn texts(edition: Edition) -> Result<Texts, Failure> {
    let program = match (env::var_os(stage::SHIPPED), edition) {
        (Some(file), Edition::Full) => file.into(),
        _ => stage::build("dev", edition.features())?,
    };
    let say = |words: &[&str]| output(Command::new(&program).args(words));
    Ok(Texts {
        bash: say(&["completion", "bash"])?,
        zsh: say(&["completion", "zsh"])?,
        fish: say(&["completion", "fish"])?,
        man: say(&["man"])?,
    })
}

impl Source {
    /// Everything that is given away for a board: names and bytes. Packages of Debian have all parts.
    fn files(
        &self,
        edition: Edition,
        board: &Board,
        program: &[u8],
        sbom: &str,
    ) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let name = format!("{}-{}-{}", edition.name(), self.version, board.name);
        let tarball = self.tarball(&name, &board.name, program, sbom)?;
        let mut files = vec![(format!("{name}.tar.gz"), tarball)];
        if let (Some(debian), Edition::Full) = (&board.debian, edition) {
            files.extend(self.packages(debian, program, sbom)?);
        }
        Ok(files)
    }

    /// One directory, which install.sh installs.
    fn tarball(
        &self,
        name: &str,
        board: &str,
        program: &[u8],
        sbom: &str,
    ) -> Result<Vec<u8>, Failure> {
        let mut tree = Tree::default();
        let mut add = |path: &str, mode: u32, bytes: &[u8]| {
            tree.file(&format!("{name}/{path}"), mode, bytes);
        };
        add("picolet", 0o755, program);
        add("arch", 0o644, format!("{board}\n").as_bytes());
        if name.starts_with(Edition::Core.name()) {
            // The program has no `picolet join` and no `picolet cri`: install.sh leaves their services out.
            add("core", 0o644, &[]);
        }
        add("install.sh", 0o755, &self.read("cross/install.sh")?);
        add("guard", 0o755, &self.read("systemd/guard.sh")?);
        add("first-boot", 0o755, &self.read("systemd/first-boot.sh")?);
        add("LICENSE", 0o644, &self.read("LICENSE")?);
        add("sbom.json", 0o644, sbom.as_bytes());
        add("completion/bash", 0o644, self.texts.bash.as_bytes());
        add("completion/zsh", 0o644, self.texts.zsh.as_bytes());
        add("completion/fish", 0o644, self.texts.fish.as_bytes());
        add("man/picolet.8", 0o644, self.texts.man.as_bytes());
        if let Some(key) = &self.public_key {
            add(PUBLIC_KEY, 0o644, key.as_bytes());
        }
        for (dir, to, mode) in [
            ("systemd", "systemd", 0o644),
            ("systemd/openrc", "openrc", 0o755),
        ] {
            for entry in fs::read_dir(self.root.join(dir))? {
                let path = entry?.path();
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                if path.is_file() && !file.ends_with(".sh") {
                    add(&format!("{to}/{file}"), mode, &fs::read(&path)?);
                }
            }
        }
        tree.tar_gz(self.date)
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let path = self.root.join(path);
        fs::read(&path).map_err(|e| format!("{}: {e}", path.display()).into())
    }
}
