//! Files in which vendors describe their devices (CDI-01). They are read each time they are needed, and not kept.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    api::{
        cdi::{self, CdiEdits, HostNodeLookup, ReadCdiFileFn},
        device::{DeviceFilter, MachineDevices},
        oci,
        order::OrderExt as _,
        strict::WrongValue,
    },
    config::decode,
    error::error_chain,
};

/// Files of all directories together.
const MAX_FILES: usize = 64;
/// Bytes of a file.
const MAX_BYTES: u64 = 1 << 20;
/// Entries of a directory that are read, of any kind.
const MAX_ENTRIES: usize = 1024;
/// Names of devices that one look returns.
const MAX_SEEN: usize = 1024;
/// Longest text about an invalid file, bytes.
const MAX_TOLD: usize = 512;

/// Hands each file in these directories to `take`, with the number of its directory and its path, in the order of their
/// names. Returns the faults of files that cannot be read, or that `take` refuses. Blocking.
pub(super) fn for_each_cdi_file(
    dirs: &[PathBuf],
    take: &mut dyn FnMut(usize, &Path, Value) -> Result<(), WrongValue>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut say = |path: &Path, why: &dyn core::fmt::Display| {
        let mut text = format!("{}: {why}", path.display());
        text.truncate(text.floor_char_boundary(MAX_TOLD));
        wrong.push(text);
    };
    let mut left = MAX_FILES;
    for (n, dir) in dirs.iter().enumerate() {
        let names = match list_cdi_files(dir) {
            Ok(names) => names,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => {
                say(dir, &e);
                continue;
            }
        };
        for path in names {
            if left == 0 {
                say(
                    &path,
                    &format_args!("more than {MAX_FILES} files are not read"),
                );
                break;
            }
            left -= 1;
            match read_cdi_file(&path) {
                Ok(Some(value)) => {
                    if let Err(e) = take(n, &path, value) {
                        say(&path, &e);
                    }
                }
                Ok(None) => {}
                Err(e) => say(&path, &error_chain(&e)),
            }
        }
    }
    wrong
}

/// Paths of the files of a directory that may be meant, sorted.
fn list_cdi_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for (n, entry) in fs::read_dir(dir)?.enumerate() {
        if n == MAX_ENTRIES {
            return Err(io::Error::other(format!("more than {MAX_ENTRIES} entries")));
        }
        let path = entry?.path();
        let end = path.extension().and_then(|end| end.to_str());
        if matches!(end, Some("json" | "yaml")) {
            paths.push(path);
        }
    }
    paths.stable_sort();
    Ok(paths)
}

/// Reads a file; `None` if it is no regular file, or has gone.
fn read_cdi_file(path: &Path) -> io::Result<Option<Value>> {
    // A FIFO without writer would block the open.
    let open = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = match open {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > MAX_BYTES) {
        return Err(io::Error::other(format!("more than {MAX_BYTES} bytes")));
    }
    let document = decode::parse_document(&bytes).map_err(io::Error::other)?;
    match document.duplicates.first() {
        None => Ok(Some(document.value)),
        Some(field) => Err(io::Error::other(format!("field {field} occurs twice"))),
    }
}

/// Adds the wanted devices to `seen`.
pub(super) fn find_wanted_devices(
    dirs: &[PathBuf],
    wanted: &dyn DeviceFilter,
    seen: &mut MachineDevices,
) {
    let found = &mut seen.cdi;
    seen.wrong = for_each_cdi_file(dirs, &mut |dir, _, value| {
        let names = wanted.wanted_cdi_devices(value)?.into_iter();
        found.extend(names.map(|name| (name, dir)));
        Ok(())
    });
    found.stable_sort();
    found.truncate(MAX_SEEN);
}

/// Reads the files that describe devices of these names. Returns them, and the faults of other files. Blocking.
pub(crate) fn read_named_files(
    dirs: &[PathBuf],
    read: ReadCdiFileFn,
    names: &[String],
) -> (Vec<cdi::CdiFile>, Vec<String>) {
    let mut files = Vec::new();
    let wrong = for_each_cdi_file(dirs, &mut |dir, path, value| {
        let mut file = read(value, names)?;
        if !file.devices.is_empty() {
            file.path = path.display().to_string();
            file.dir = dir;
            files.push(file);
        }
        Ok(())
    });
    (files, wrong)
}

/// Looks at the nodes. Blocking.
pub(crate) fn fill_in_node_numbers(all: &mut [CdiEdits]) {
    for node in all.iter_mut().flat_map(|edits| &mut edits.nodes) {
        let seen = read_device_node(Path::new(&node.host_path));
        node.seen = seen.map_or_else(
            |e| HostNodeLookup::Wrong(e.to_string()),
            HostNodeLookup::Node,
        );
    }
}

/// Reads the device number and mode of a node. A link is an error: it may lead to another node at the next moment.
fn read_device_node(path: &Path) -> io::Result<oci::OciDevice> {
    let metadata = fs::symlink_metadata(path)?;
    let kind = metadata.file_type();
    let kind = match () {
        () if kind.is_block_device() => "b",
        () if kind.is_char_device() => "c",
        () if kind.is_fifo() => "p",
        () => return Err(io::Error::other("is no device node")),
    };
    let number = match kind {
        "p" => 0,
        _ => metadata.rdev(),
    };
    Ok(oci::OciDevice {
        kind: kind.to_owned(),
        major: libc::major(number).into(),
        minor: libc::minor(number).into(),
        file_mode: Some(metadata.mode() & 0o777),
        ..oci::OciDevice::default()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use serde_json::json;

    use super::{
        super::{DeviceMachine as _, LocalMachine},
        *,
    };
    use crate::logic::devices::parse_declared_devices;

    fn place(name: &str) -> PathBuf {
        let dir = crate::testing::unused_path(&format!("cdi-{name}"));
        fs::create_dir_all(&dir).expect("directory");
        dir
    }

    fn all(dirs: &[PathBuf]) -> (Vec<(usize, String, Value)>, Vec<String>) {
        let mut found = Vec::new();
        let wrong = for_each_cdi_file(dirs, &mut |dir, path, value| {
            let name = path.file_name().expect("name").to_string_lossy();
            let is_good = value["bad"].is_null();
            found.push((dir, name.into_owned(), value));
            match is_good {
                true => Ok(()),
                false => Err(WrongValue::new("bad", "x".repeat(2 * MAX_TOLD))),
            }
        });
        (found, wrong)
    }

    #[test]
    fn files_of_directories() {
        // CDI-01
        let top = place("dirs");
        let [first, second, missing] = ["first", "second", "missing"].map(|name| top.join(name));
        for dir in [&first, &second] {
            fs::create_dir(dir).expect("directory");
        }
        let large = usize::try_from(MAX_BYTES).expect("fits") + 1;
        for (path, text) in [
            (first.join("b.yaml"), "a: 1\n"),
            (first.join("a.json"), r#"{"a": 2}"#),
            (first.join("c.txt"), "a: 3\n"),
            (first.join("octal.yaml"), "mode: 0660\n"),
            (first.join("d.yml"), "a: 4\n"),
            (first.join("broken.json"), "{"),
            (first.join("large.json"), &" ".repeat(large)),
            (first.join("refused.yaml"), "bad: 1\n"),
            (first.join("twice.yaml"), "x: {a: 1, a: 2}\n"),
            (second.join("a.json"), r#"{"a": 5}"#),
        ] {
            fs::write(path, text).expect("written");
        }
        // Not recursive; a link counts, and an entry that is no file does not block the read.
        fs::create_dir(first.join("sub.json")).expect("directory");
        fs::write(first.join("sub.json/a.json"), "{}").expect("written");
        nix::unistd::mkfifo(&first.join("fifo.json"), Mode::S_IRWXU).expect("fifo");
        symlink("../first/a.json", second.join("link.json")).expect("link");
        symlink("nowhere", second.join("none.json")).expect("link");
        let (found, wrong) = all(&[first, missing, second]);
        let want = [
            (0, "a.json", json!({"a": 2})),
            (0, "b.yaml", json!({"a": 1})),
            (0, "octal.yaml", json!({"mode": "0660"})),
            (0, "refused.yaml", json!({"bad": 1})),
            (2, "a.json", json!({"a": 5})),
            (2, "link.json", json!({"a": 2})),
        ];
        let want = want.map(|(dir, name, value)| (dir, name.to_owned(), value));
        assert_eq!(found, want);
        let names: Vec<bool> = [
            "broken.json: ",
            "large.json: more than 1048576 bytes",
            "refused.yaml: bad: xxx",
            "twice.yaml: field x.a occurs twice",
        ]
        .iter()
        .zip(&wrong)
        .map(|(want, wrong)| wrong.contains(want) && wrong.len() <= MAX_TOLD)
        .collect();
        assert_eq!(names, [true; 4], "{wrong:?}");
        assert_eq!(wrong.len(), 4);
        fs::remove_dir_all(&top).expect("removed");
    }

    #[test]
    fn files_are_read_only_where_a_device_of_theirs_is_wanted() {
        // DEV-46
        let top = place("wanted");
        let edits = json!({"env": ["A="]});
        let file = json!({"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": [{"name": "0", "containerEdits": edits}]});
        fs::write(top.join("a.json"), file.to_string()).expect("written");
        fs::write(top.join("b.json"), "{").expect("written");
        let machine = LocalMachine::below(&top, std::slice::from_ref(&top));
        let look = |wanted: Value| {
            let wanted = parse_declared_devices(&json!([{"resource": "a", "match": wanted}]));
            let seen = machine.find_devices(&wanted.expect("right"));
            (seen.cdi, seen.wrong.len())
        };
        assert_eq!(look(json!({"path": "/dev/x"})), (Vec::new(), 0));
        let found = vec![("v.com/gpu=0".to_owned(), 0)];
        assert_eq!(look(json!({"cdi": "v.com/gpu=*"})), (found, 1));
        fs::remove_dir_all(&top).expect("removed");
    }

    #[test]
    fn no_more_files_than_that() {
        // CDI-01
        let top = place("many");
        for n in 0..=MAX_FILES {
            fs::write(top.join(format!("{n:03}.json")), "{}").expect("written");
        }
        let (found, wrong) = all(std::slice::from_ref(&top));
        assert_eq!(found.len(), MAX_FILES);
        assert!(
            wrong[0].ends_with("064.json: more than 64 files are not read"),
            "{wrong:?}"
        );
        fs::remove_dir_all(&top).expect("removed");
    }

    #[test]
    fn what_a_node_is() {
        // CDI-05
        let top = place("nodes");
        nix::unistd::mkfifo(&top.join("fifo"), Mode::from_bits_truncate(0o640)).expect("fifo");
        symlink("/dev/null", top.join("link")).expect("link");
        let look = |path: &Path| {
            let seen = read_device_node(path).map_err(|e| e.to_string())?;
            Ok::<_, String>((seen.kind, seen.major, seen.minor))
        };
        assert_eq!(look(Path::new("/dev/null")), Ok(("c".into(), 1, 3)));
        assert_eq!(look(&top.join("fifo")), Ok(("p".into(), 0, 0)));
        assert_eq!(look(&top.join("link")), Err("is no device node".into()));
        assert!(look(&top.join("none")).is_err_and(|e| e.contains("No such file")));
        fs::remove_dir_all(&top).expect("removed");
    }
}
