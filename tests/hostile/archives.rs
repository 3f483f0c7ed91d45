//! Image archives: paths and links that lead out, devices, bombs, headers without end, digests that lie.

use std::fs;
use std::io::Write as _;

use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::bystander::{Bystander, one_complaint};
use crate::host::{self, Host, IMAGE};

/// Most memory that the agent may have used during one archive, KiB: none of it is ever in memory whole.
const MAX_PEAK_KIB: u64 = 32 * 1024;

/// A tar stream in the making. Names go in as they are.
struct Tar(Builder<Vec<u8>>);

impl Tar {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn add(mut self, kind: EntryType, path: &str, link: &str, data: &[u8]) -> Self {
        let header = header(kind, path, link, data.len() as u64);
        self.0.append(&header, data).expect("memory");
        self
    }

    fn file(self, path: &str, data: &[u8]) -> Self {
        self.add(EntryType::Regular, path, "", data)
    }

    fn link(self, path: &str, to: &str) -> Self {
        self.add(EntryType::Symlink, path, to, b"")
    }

    fn hard(self, path: &str, to: &str) -> Self {
        self.add(EntryType::Link, path, to, b"")
    }

    fn pax(mut self, key: &str, value: &[u8]) -> Self {
        self.0
            .append_pax_extensions([(key, value)])
            .expect("memory");
        self
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().expect("memory")
    }
}

fn header(kind: EntryType, path: &str, link: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    let raw = header.as_old_mut();
    raw.name[..path.len()].copy_from_slice(path.as_bytes());
    raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    header
}

fn hex(data: &[u8]) -> String {
    let digest = Sha256::digest(data);
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

fn config(layer: &[u8]) -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(layer))] },
    })
}

/// A docker archive of one layer, named by `tag`; what the archive calls its layer may be compressed.
fn archive_of(tag: &str, config: &[u8], layer: &[u8]) -> Vec<u8> {
    let manifest =
        json!([{ "Config": "c.json", "RepoTags": [tag], "Layers": ["layer.tar"] }]).to_string();
    Tar::new()
        .file("c.json", config)
        .file("layer.tar", layer)
        .file("manifest.json", manifest.as_bytes())
        .bytes()
}

/// The same with the configuration that fits.
fn archive(layer: &[u8]) -> Vec<u8> {
    archive_of("localhost/x:1", config(layer).to_string().as_bytes(), layer)
}

/// `count` MiB of zeros in a few KiB a MiB: gzip takes any number of members for one stream.
fn zeros(head: &[u8], count: usize) -> Vec<u8> {
    let pack = |data: &[u8]| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(data).expect("memory");
        packed.finish().expect("memory")
    };
    let member = pack(&vec![0; 1 << 20]);
    let mut all = pack(head);
    (0..count).for_each(|_| all.extend_from_slice(&member));
    all
}

/// An OCI archive whose `index.json` leads `times` times to one index of so many platforms that nobody has.
fn repeated_index(platforms: usize, times: usize) -> Vec<u8> {
    let kind = "application/vnd.oci.image.index.v1+json";
    let platforms: Vec<Value> = (0..platforms)
        .map(|n| {
            json!({
                "digest": format!("sha256:{}", hex(&n.to_be_bytes())), "size": 1,
                "platform": { "os": "linux", "architecture": format!("none{n}") },
            })
        })
        .collect();
    let inner = json!({ "schemaVersion": 2, "manifests": platforms }).to_string();
    let digest = hex(inner.as_bytes());
    let entry =
        json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": inner.len() });
    let outer = json!({ "schemaVersion": 2, "manifests": vec![entry; times] }).to_string();
    Tar::new()
        .file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)
        .file("index.json", outer.as_bytes())
        .file(&format!("blobs/sha256/{digest}"), inner.as_bytes())
        .bytes()
}

struct Case {
    name: &'static str,
    archive: Vec<u8>,
    says: &'static [&'static str],
}

fn case(name: &'static str, archive: Vec<u8>, says: &'static [&'static str]) -> Case {
    Case {
        name,
        archive,
        says,
    }
}

/// What is read to its end, or to a limit of much.
fn heavy() -> Vec<Case> {
    let file = header(EntryType::Regular, "zeros", "", 4 << 30);
    let bomb = zeros(file.as_bytes(), 4096);
    let comment = header(EntryType::XHeader, "x", "", 4 << 30);
    let endless = zeros(comment.as_bytes(), 64);
    let many = (0..30_000).fold(Tar::new(), |tar, n| {
        tar.pax("comment", format!("{n}").as_bytes())
    });
    let dirs = (0..12_000).fold(Tar::new(), |tar, n| tar.file(&format!("{n}/f"), b""));
    vec![
        case(
            "a bomb of 4 GiB",
            archive(&bomb),
            &[": layer.tar: ", "not enough disk space"],
        ),
        case(
            "a whole archive that is a bomb",
            zeros(&[], 4096),
            &["neither oci-layout nor manifest.json"],
        ),
        case(
            "a header of 4 GiB",
            archive(&endless),
            &[": layer.tar: ", "extended headers of one entry exceed"],
        ),
        case(
            "headers without end",
            archive(&many.bytes()),
            &[": layer.tar: ", "extended headers of one entry exceed"],
        ),
        case(
            "directories without entries",
            archive(&dirs.bytes()),
            &[": layer.tar: ", "more than 10000"],
        ),
        case(
            "a configuration of 5 MiB",
            archive_of("localhost/x:1", &vec![b' '; 5 << 20], b""),
            &["c.json", "not a JSON document of at most 4194304 bytes"],
        ),
        case(
            "an index that is led to 3000 times",
            repeated_index(2000, 3000),
            &["more than 67108864 bytes of documents"],
        ),
        case(
            "a window of 1 GiB",
            archive(&[0x28, 0xb5, 0x2f, 0xfd, 0, 20 << 3, 1, 0, 0]),
            &[": layer.tar: ", "window"],
        ),
    ]
}

fn light() -> Vec<Case> {
    let layer = |tar: Tar| archive(&tar.bytes());
    let good = Tar::new().file("f", b"f").bytes();
    let right = config(&good).to_string();
    let none: &[&str] = &[
        ": layer.tar: ",
        "entry \"h\"",
        "neither the layer nor those below have",
    ];
    let long = "x".repeat(99);
    let named = |tag: &str| archive_of(tag, right.as_bytes(), &good);
    vec![
        case(
            "a hard link that leads up",
            layer(Tar::new().hard("h", "../../../../secret")),
            none,
        ),
        case(
            "a hard link through a link",
            layer(Tar::new().link("up", "../../../..").hard("h", "up/secret")),
            none,
        ),
        case(
            "a hard link to nothing",
            layer(Tar::new().hard("h", "/etc/nobody")),
            &[": layer.tar: ", "entry \"h\""],
        ),
        case(
            "a circle of links",
            layer(Tar::new().link("a", "b").link("b", "a").file("a/f", b"")),
            &[": layer.tar: ", "entry \"a/f\""],
        ),
        case(
            "a type nobody knows",
            layer(Tar::new().add(EntryType::new(b'Z'), "f", "", b"")),
            &[": layer.tar: ", "'Z' is not supported"],
        ),
        case(
            "a size below nothing",
            layer(Tar::new().pax("size", b"-1").file("f", b"")),
            &[": layer.tar: ", "not a number"],
        ),
        case(
            "a path of 5000 bytes",
            layer(
                Tar::new()
                    .pax("path", long.repeat(60).as_bytes())
                    .file("f", b""),
            ),
            &[": layer.tar: ", "longer than 4096"],
        ),
        case(
            "a layer that ends early",
            archive(&good[..300]),
            &[": layer.tar: ", "ends early"],
        ),
        case(
            "a layer that is none",
            archive(&[b'x'; 2048]),
            &[": layer.tar: "],
        ),
        case(
            "another layer than promised",
            archive_of(
                "localhost/x:1",
                config(b"other").to_string().as_bytes(),
                &good,
            ),
            &[": layer.tar: ", "digest is sha256:", "not sha256:"],
        ),
        case(
            "a configuration that is none",
            archive_of("localhost/x:1", b"{broken", &good),
            &["c.json", "line 1"],
        ),
        case(
            "a deep configuration",
            archive_of("localhost/x:1", "[".repeat(100_000).as_bytes(), &good),
            &["c.json", "recursion limit"],
        ),
        case(
            "a name with a way out",
            named("localhost/../../x:1"),
            &["manifest.json", "localhost/../../x:1"],
        ),
        case(
            "a long name",
            named(&long.repeat(50)),
            &["manifest.json", "255"],
        ),
        case(
            "an archive that ends early",
            named("localhost/x:1")[..1500].to_vec(),
            &["ends early"],
        ),
        case(
            "a program",
            fs::read("/proc/self/exe").expect("this program"),
            &["not an image archive"],
        ),
        case("nothing", Vec::new(), &["ends early"]),
    ]
}

/// What the store holds: files and directories, with their sizes.
fn stored(host: &Host) -> Vec<String> {
    let script = format!(
        "find {} -mindepth 1 ! -name dropin.json -printf '%P %s\\n' | sort",
        host.path("root/images").display()
    );
    let list = std::process::Command::new("sh")
        .args(["-c", &script])
        .output();
    let list = host::text(&list.expect("find").stdout);
    list.lines().map(str::to_owned).collect()
}

#[test]
fn of_each_bad_archive_one_line_tells() {
    if !host::able() {
        return;
    }
    let mut host = Host::new(&[]);
    // A small disk: of it 64 MiB are kept from images.
    let root = host.path("root");
    mount(
        Some("picolet-test"),
        &root,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755,size=192m"),
    )
    .expect("tmpfs");
    host.start_agent();
    host.write_image("first.tar", IMAGE, &json!({}));
    host.ok(&[
        "image",
        "import",
        &host.path("first.tar").display().to_string(),
    ]);
    let good = Bystander::start(&host, MAX_PEAK_KIB);
    fs::write(host.path("secret"), "secret").expect("file");
    let before = stored(&host);
    let mut wrong = Vec::new();
    let (heavy, light) = (heavy(), light());
    for (number, round) in heavy.chunks(1).chain([&light[..]]).enumerate() {
        good.forget_peak();
        let file = |n: usize| format!("case-{number}-{n}.tar");
        for (n, case) in round.iter().enumerate() {
            fs::write(host.path("shared/new"), &case.archive).expect("archive");
            fs::rename(host.path("shared/new"), host.path("images").join(file(n)))
                .expect("archive");
        }
        for (n, Case { name, says, .. }) in round.iter().enumerate() {
            let told = one_complaint(&host, &format!("image directory: {}", file(n)), says);
            wrong.extend(told.err().map(|e| format!("{name}: {e}")));
        }
        good.is_untouched(&host, round[0].name);
        for n in 0..round.len() {
            fs::remove_file(host.path("images").join(file(n))).expect("archive");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(stored(&host), before, "of none is anything left");
    assert_eq!(fs::read(host.path("secret")).expect("file"), b"secret");
    assert!(!host.path("escape").exists() && !host.path("root/escape").exists());
    // Links that lead out are an image's own affair: what goes through them stays in the image. So do paths.
    let inside = Tar::new()
        .link("up", "../../../../..")
        .file("up/escape", b"x")
        .file("../../../../../escape-too", b"xx")
        .file("../../../.wh.secret", b"")
        .add(EntryType::Char, "mark", "", b"");
    fs::write(host.path("inside.tar"), archive(&inside.bytes())).expect("archive");
    host.ok(&[
        "image",
        "import",
        &host.path("inside.tar").display().to_string(),
    ]);
    let now = stored(&host);
    for kept in ["/escape 1", "/escape-too 2", "/secret 0", "/mark 0"] {
        assert!(now.iter().any(|f| f.ends_with(kept)), "{now:#?}");
    }
    for out in ["escape", "root/escape", "escape-too", "root/escape-too"] {
        assert!(!host.path(out).exists(), "{out}");
    }
    assert_eq!(fs::read(host.path("secret")).expect("file"), b"secret");
    // The same by hand: one line, and the exit code tells.
    fs::write(host.path("by-hand.tar"), &light[0].archive).expect("archive");
    let said = host.cli(&[
        "image",
        "import",
        &host.path("by-hand.tar").display().to_string(),
    ]);
    let text = host::text(&said.stderr);
    // How far it is is said beside it, if it takes long.
    let mut lines = text.lines().filter(|line| !line.contains(": unpacking, "));
    let line = lines.next().unwrap_or_default();
    assert!(!said.status.success() && lines.next().is_none(), "{text}");
    assert!(
        line.contains("by-hand.tar: ") && line.contains("neither the layer nor"),
        "{text}"
    );
    host.finish();
}
