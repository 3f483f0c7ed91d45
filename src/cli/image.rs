//! `picolet image pull|import|save|ls|inspect|tag|rm|verify|prune`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    client::{AgentAnswer, AgentClient},
    get::{self, OutputFormat},
    parse_document_format, print_text,
    progress::{ProgressDisplay, TransferProgress},
    table, verify,
};
use crate::{
    api::{
        cri::StoredImage,
        order::OrderExt as _,
        strict::{self, from_json},
    },
    error::error_chain,
    image::{ImageArchiveWriter, ImageReference},
    logic::image_names,
    server::{
        backend::{ObjectList, ProgressLine},
        http::percent_encode,
    },
};

/// Standard input or output in the place of a file.
const STANDARD_STREAM: &str = "-";
/// Directory for an archive that comes through a pipe: on the disk, not in memory as `/tmp` may be.
const SPOOL_DIR: &str = "/var/tmp";

/// Bytes that are copied from a pipe at a time.
const PIECE_BYTES: usize = 64 * 1024;

#[derive(Default)]
struct ImageCommand {
    /// Arguments.
    values: Vec<String>,
    name: String,
    output: OutputFormat,
    /// File to write.
    file: String,
    no_headers: bool,
    quiet: bool,
    now: bool,
}

pub(super) fn run_image_command(verb: &str, mut words: CliWords) -> Result<(), CliError> {
    if verb == "verify" {
        return verify::run_image_verify(words);
    }
    let mut image = ImageCommand::default();
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("name") => image.name = words.flag_value()?,
            CliWord::Flag("quiet") => image.quiet = words.switch_value()?,
            CliWord::Flag("now") => image.now = words.switch_value()?,
            CliWord::Flag("no-headers") => image.no_headers = words.switch_value()?,
            CliWord::Flag("output") if verb == "save" => image.file = words.flag_value()?,
            CliWord::Flag("output") if verb == "inspect" => {
                image.output = parse_document_format(&words.flag_value()?)?;
            }
            CliWord::Flag("output") => {
                image.output = get::parse_output_format(&words.flag_value()?)?;
            }
            CliWord::Value(value) if verb != "prune" => image.values.push(value),
            other => return Err(unexpected_word(other)),
        }
    }
    let client = words.agent_client();
    let values = &image.values;
    let least = match verb {
        "ls" | "prune" => 0,
        "tag" => 2,
        _ => 1,
    };
    if values.len() < least {
        return Err(words.usage_error());
    }
    if values.len() > 1 && !image.name.is_empty() {
        return Err(CliError::new(
            "--name is for one image: import each FILE by itself",
        ));
    }
    match verb {
        "import" => values
            .iter()
            .try_for_each(|file| import_archive(&client, file, &image)),
        "pull" => values.iter().try_for_each(|name| {
            let more = if image.now { "&now=true" } else { "" };
            let target = format!("/images/pull?reference={}{more}", percent_encode(name));
            let answer = client.send_request("POST", &target, "")?;
            for id in follow_transfer(answer, &mut ProgressDisplay::new(name, image.quiet))? {
                print_text(&format!("Pulled: {name} {id}\n"))?;
            }
            Ok(())
        }),
        "ls" => list_images(&client, &image),
        "inspect" => values.iter().try_for_each(|name| {
            let shown = client.request_json("GET", &inspect_target(name))?;
            print_text(&get::object_text(&shown, &image.output)?)
        }),
        "save" => save_images(&client, &image),
        "tag" => values[1..].iter().try_for_each(|name| {
            let (source, name) = (percent_encode(&values[0]), percent_encode(name));
            let target = ["/images/tag?reference=", &source, "&name=", &name].concat();
            copy_answer(&client, "POST", &target)
        }),
        "rm" => values.iter().try_for_each(|name| {
            let target = format!("/images?reference={}", percent_encode(name));
            copy_answer(&client, "DELETE", &target)
        }),
        "prune" => copy_answer(&client, "POST", "/images/prune"),
        other => Err(CliError::new(format!("unknown command \"image {other}\""))),
    }
}

fn inspect_target(name: &str) -> String {
    format!("/images/inspect?reference={}", percent_encode(name))
}

fn copy_answer(client: &AgentClient, method: &str, target: &str) -> Result<(), CliError> {
    client
        .send_request(method, target, "")?
        .copy_body_to(&mut io::stdout())
}

fn list_images(client: &AgentClient, image: &ImageCommand) -> Result<(), CliError> {
    let mut list: ObjectList<StoredImage> = client.fetch_typed("/images")?;
    image_names::filter_images(&mut list.items, &image.values);
    // An image has its place by its first name.
    list.items
        .stable_sort_by(|a, b| a.repo_tags.cmp(&b.repo_tags));
    let wide = match &image.output {
        OutputFormat::Table | OutputFormat::Name => false,
        OutputFormat::Wide => true,
        OutputFormat::Columns(_) => {
            return Err(CliError::new("custom-columns: use 'picolet get images'"));
        }
        output => {
            let list = strict::to_value(&list).unwrap_or_default();
            return print_text(&get::object_text(&list, output)?);
        }
    };
    let rows = list.items.iter();
    if image.quiet {
        let ids = rows.map(|i| table::image_rows(i, wide)[0][2].clone() + "\n");
        return print_text(&ids.collect::<String>());
    }
    let mut rows: Vec<_> = rows.flat_map(|i| table::image_rows(i, wide)).collect();
    rows.stable_sort();
    if let OutputFormat::Name = image.output {
        let names = rows.iter().map(|row| match &*row[1] {
            "<none>" => row[2].clone() + "\n",
            tag => [&row[0], ":", tag, "\n"].concat(),
        });
        return print_text(&names.collect::<String>());
    }
    print_text(&table::render_table(
        &table::IMAGE_HEADER,
        &rows,
        image.no_headers,
    ))
}

fn import_archive(client: &AgentClient, file: &str, image: &ImageCommand) -> Result<(), CliError> {
    let failed = |e: io::Error| CliError::new(format!("{file}: {e}"));
    // The agent opens the file: it needs the whole path. An archive is read twice, which a pipe cannot be.
    let spooled;
    let path = if file == STANDARD_STREAM {
        let input = io::stdin().as_fd().try_clone_to_owned();
        spooled = input
            .and_then(|fd| spool_input(fd.into()))
            .map_err(failed)?;
        let pid = std::process::id();
        format!("/proc/{pid}/fd/{}", spooled.as_raw_fd())
    } else {
        let path = std::path::absolute(file).map_err(failed)?;
        let path = path.into_os_string().into_string();
        path.map_err(|_| CliError::new(format!("{file}: path is not UTF-8")))?
    };
    let target = format!(
        "/images/import?progress=true&path={}&name={}",
        percent_encode(&path),
        percent_encode(&image.name)
    );
    let answer = client.send_request("POST", &target, "")?;
    let imported = follow_transfer(answer, &mut ProgressDisplay::new(file, image.quiet));
    let imported = imported.map_err(|mut e| {
        if file == STANDARD_STREAM {
            e.message = e.message.replace(&path, "standard input");
        }
        e
    });
    for name in imported? {
        print_text(&format!("Imported: {name}\n"))?;
    }
    Ok(())
}

/// Returns `input` as a file that can be read twice. The file has no name, so it goes with this process.
fn spool_input(mut input: File) -> io::Result<File> {
    if input.metadata()?.is_file() {
        return Ok(input);
    }
    if input.is_terminal() {
        return Err(io::Error::other(
            "it is a terminal: name a file, or use a pipe",
        ));
    }
    spool_pipe(&mut input)
        .map_err(|e| io::Error::other(format!("cannot be copied to {SPOOL_DIR}: {e}")))
}

fn spool_pipe(input: &mut File) -> io::Result<File> {
    let mut spool = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(SPOOL_DIR)?;
    let mut piece = vec![0; PIECE_BYTES];
    // Bounded: by the disk.
    loop {
        match input.read(&mut piece)? {
            0 => return Ok(spool),
            n => spool.write_all(&piece[..n])?,
        }
    }
}

fn save_images(client: &AgentClient, image: &ImageCommand) -> Result<(), CliError> {
    // An image that is not there leaves the file as it was.
    let found = image.values.iter().map(|name| {
        let target = inspect_target(name) + "&layers=true";
        Ok((&**name, client.request_json("GET", &target)?))
    });
    let found = found.collect::<Result<Vec<(&str, Value)>, CliError>>()?;
    let file = Some(&*image.file).filter(|file| !matches!(*file, "" | STANDARD_STREAM));
    let failed = |e| CliError::new(format!("{}: {e}", image.file));
    let stdout = || io::stdout().as_fd().try_clone_to_owned().map(File::from);
    match file.map(Path::new) {
        // A device or a pipe has no other name.
        Some(file) if fs::metadata(file).is_ok_and(|meta| !meta.is_file()) => {
            let out = OpenOptions::new().write(true).open(file);
            write_archive(out.map_err(failed)?, &found, image.quiet)
        }
        Some(file) => {
            let part = PartFile::create(file).map_err(failed)?;
            let out = part.file.try_clone().map_err(failed)?;
            write_archive(out, &found, image.quiet)?;
            part.publish().map_err(failed)
        }
        None if io::stdout().is_terminal() => Err(CliError::new(
            "an archive is not for a terminal: use -o FILE, or redirect the output",
        )),
        None => write_archive(stdout().map_err(failed)?, &found, image.quiet),
    }
}

/// A file in the making: it stands beside its place until it is whole. Dropped before, it is removed.
struct PartFile {
    file: File,
    path: PathBuf,
    /// Place of the whole file.
    target: PathBuf,
}

impl PartFile {
    /// Begins a file. What a command that was killed has left is replaced.
    fn create(target: &Path) -> io::Result<Self> {
        let before = fs::metadata(target).ok();
        // A link stays, and the file that it leads to is replaced.
        let target = match before {
            Some(_) => fs::canonicalize(target)?,
            None if fs::symlink_metadata(target).is_ok() => {
                let why = "it is a link to a file that does not exist";
                return Err(io::Error::other(why));
            }
            None => target.to_owned(),
        };
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name([".", &name, ".part"].concat());
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)?;
        let part = Self { file, path, target };
        if let Some(before) = before {
            part.file.set_permissions(before.permissions())?;
        }
        Ok(part)
    }

    /// Returns true unless another command has begun the same file meanwhile.
    fn is_in_place(&self) -> bool {
        let id = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let found = fs::symlink_metadata(&self.path).map(id);
        found.is_ok_and(|found| self.file.metadata().is_ok_and(|own| id(own) == found))
    }

    /// Puts the whole file into its place. After a power cut there is it or the one before.
    fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        if !self.is_in_place() {
            return Err(io::Error::other("another command writes this file"));
        }
        fs::rename(&self.path, &self.target)
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            // The next command removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn write_archive(out: File, found: &[(&str, Value)], quiet: bool) -> Result<(), CliError> {
    let failed = |e| CliError::new(error_chain(&e));
    let mut archive = ImageArchiveWriter::new(out);
    for (typed, image) in found {
        let mut progress = ProgressDisplay::new(typed, quiet);
        let all = image["info"]["layers"].as_array().map_or(0, Vec::len);
        let mut on_layer = |done| {
            progress.show_step(TransferProgress {
                stage: "saving".into(),
                done: u64::try_from(done).unwrap_or(u64::MAX),
                all: u64::try_from(all).unwrap_or(u64::MAX),
                parts: "layers",
                bytes: None,
            });
        };
        let names = saved_names(typed, &image["status"]["repoTags"]);
        archive
            .add_image(&image["info"], &names, &mut on_layer)
            .map_err(failed)?;
    }
    archive.finish_archive().map_err(failed)
}

/// Names of a saved image: the one that was typed, or all if it was named by an id or a digest.
fn saved_names(typed: &str, tags: &Value) -> Vec<String> {
    let tags = tags.as_array().into_iter().flatten();
    let tags: Vec<String> = tags
        .filter_map(|tag| tag.as_str().map(str::to_owned))
        .collect();
    let named = ImageReference::parse(typed)
        .ok()
        .and_then(|name| name.tagged_name());
    match named.filter(|name| tags.contains(name)) {
        Some(name) => vec![name],
        None => tags,
    }
}

/// Most bytes of one line of a transfer's answer: the last one names every image.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Shows the steps of a transfer until it has ended. Returns the references that it brought.
fn follow_transfer(
    answer: AgentAnswer,
    progress: &mut ProgressDisplay,
) -> Result<Vec<String>, CliError> {
    match follow_operation(answer, progress)? {
        ProgressLine::Imported(names) => Ok(names),
        other => Err(unexpected_answer(&other)),
    }
}

/// Shows the steps of an operation until it has ended. Returns its last line, which is no failure.
pub(super) fn follow_operation(
    mut answer: AgentAnswer,
    progress: &mut ProgressDisplay,
) -> Result<ProgressLine, CliError> {
    let lost = |why: &str| CliError::new(format!("connection to the agent failed: {why}"));
    loop {
        let mut line = String::new();
        let read = (&mut answer.body).take(MAX_LINE_BYTES).read_line(&mut line);
        if read.map_err(|e| lost(&e.to_string()))? == 0 {
            return Err(lost("it ended before the work was done"));
        }
        match from_json(line.as_bytes()).map_err(|e| lost(&e.to_string()))? {
            ProgressLine::Step(step) => progress.show_step(step),
            ProgressLine::Failed { status, error } => {
                return Err(CliError::from_server(status, &error));
            }
            last => return Ok(last),
        }
    }
}

/// Makes the error of an answer that does not fit the request.
pub(super) fn unexpected_answer(line: &ProgressLine) -> CliError {
    CliError::new(format!("the agent's answer is not understood: {line:?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::commands::CliCommand, *};

    #[test]
    fn words_that_do_not_fit_are_refused() {
        // IMG-29 IMG-30
        let (socket, none) = (crate::testing::unused_path("socket"), "no agent");
        for (verb, words, says) in [
            (
                "tag",
                &["a"][..],
                "expected 'picolet image tag IMAGE NAME...'",
            ),
            ("save", &[], "expected 'picolet image save IMAGE...'"),
            ("prune", &["a"], "unexpected argument \"a\""),
            ("ls", &["-o", "tree"], "allowed formats are"),
            ("inspect", &["a", "-o", "name"], "must be 'yaml' or 'json'"),
            (
                "import",
                &["a", "b", "--name", "c"],
                "--name is for one image",
            ),
            ("ls", &["a", "-q"], none),
            ("import", &["/a"], none),
        ] {
            let name = ["image ", verb].concat();
            let (command, _) = CliCommand::find_command(&name, None).expect("a command");
            let socket = ["--socket", socket.to_str().expect("UTF-8")];
            let words = socket.iter().chain(words).map(Into::into).collect();
            let error = run_image_command(verb, CliWords::new(command, words));
            let error = error.expect_err(verb).message;
            let says = if says == none {
                "cannot reach the agent"
            } else {
                says
            };
            assert!(error.contains(says), "{verb}: {error}");
        }
    }

    #[test]
    fn standard_input_can_be_read_twice() {
        // IMG-32
        let (reader, mut writer) = io::pipe().expect("pipe");
        let sent = vec![7; 2 * PIECE_BYTES + 1];
        let copy = sent.clone();
        let sender = std::thread::spawn(move || writer.write_all(&copy));
        let spooled = spool_input(File::from(std::os::fd::OwnedFd::from(reader)));
        let spooled = spooled.expect("spooled");
        sender.join().expect("a thread").expect("sent");
        let path = format!("/proc/{}/fd/{}", std::process::id(), spooled.as_raw_fd());
        for _ in 0..2 {
            assert!(fs::read(&path).expect("read by its path") == sent);
        }
        let name = fs::read_link(&path).expect("a link");
        assert!(name.starts_with(SPOOL_DIR), "{}", name.display());
        assert!(!name.exists(), "{}", name.display());
        // A file is read where it is.
        let dir = crate::testing::TestDir::new("spool");
        fs::write(dir.join("a.tar"), "a").expect("file");
        let own = File::open(dir.join("a.tar")).expect("file");
        let id = own.metadata().expect("file").ino();
        let taken = spool_input(own).expect("a file");
        assert_eq!(taken.metadata().expect("file").ino(), id);
        // The far end of a new terminal is one, too.
        let terminal = File::open("/dev/ptmx").expect("terminal");
        let refused = spool_input(terminal).expect_err("refused").to_string();
        assert!(refused.contains("it is a terminal"), "{refused}");
    }

    #[test]
    fn a_saved_file_is_whole_or_not_there() {
        // IMG-31
        use std::os::unix::fs::PermissionsExt as _;
        let dir = crate::testing::TestDir::new("save-part");
        let (target, part) = (dir.join("a.tar"), dir.join(".a.tar.part"));
        let begin = |text: &[u8]| {
            let mut begun = PartFile::create(&target).expect("begun");
            begun.file.write_all(text).expect("written");
            begun
        };
        let read = || fs::read_to_string(&target).ok();
        let leave_half = || core::mem::forget(begin(b"half of a long one"));
        leave_half();
        assert!(!target.exists() && part.exists(), "as after a kill");
        begin(b"first").publish().expect("published");
        assert_eq!(read().as_deref(), Some("first"));
        assert!(!part.exists());
        // An error leaves the file as it was, and nothing else.
        drop(begin(b"other"));
        assert_eq!(read().as_deref(), Some("first"));
        // The file that is replaced may be private, and behind a link. A leftover may be a link, too.
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).expect("private");
        std::os::unix::fs::symlink("a.tar", dir.join("link")).expect("link");
        std::os::unix::fs::symlink("a.tar", &part).expect("link");
        let mut linked = PartFile::create(&dir.join("link")).expect("begun");
        linked.file.write_all(b"second").expect("written");
        assert_eq!(read().as_deref(), Some("first"));
        linked.publish().expect("published");
        assert_eq!(read().as_deref(), Some("second"));
        let mode = fs::metadata(&target).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&*dir.join(".")).expect("directory").count(), 2);
        // Of two at once one ends with an error, and the other's file is whole.
        let (one, other) = (begin(b"one"), begin(b"other"));
        let refused = one.publish().expect_err("it has lost its name");
        assert!(refused.to_string().contains("another command"), "{refused}");
        other.publish().expect("published");
        assert_eq!(read().as_deref(), Some("other"));
    }

    #[test]
    fn names_of_saved_images() {
        // IMG-31
        let tags = json!(["docker.io/library/a:1", "docker.io/library/a:latest"]);
        for (typed, names) in [
            ("a:1", &["docker.io/library/a:1"][..]),
            ("a", &["docker.io/library/a:latest"]),
            (
                "12ab",
                &["docker.io/library/a:1", "docker.io/library/a:latest"],
            ),
        ] {
            assert_eq!(saved_names(typed, &tags), names, "{typed}");
        }
        assert_eq!(saved_names("12ab", &json!([])), [""; 0]);
    }
}
