//! Debian's docker-registry on loopback, filled by skopeo.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use flate2::{Compression, write::GzEncoder};
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// A directory of its own, removed at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = std::env::temp_dir().join(format!(
            "picolet-registry-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir_all(&path).expect("scratch");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether the tests can run; says what is missing.
pub(crate) fn able() -> bool {
    let mut missing = Vec::new();
    for tool in ["docker-registry", "skopeo", "openssl", "curl"] {
        let found = ["/usr/bin", "/usr/local/bin", "/bin"]
            .iter()
            .any(|dir| Path::new(dir).join(tool).exists());
        if !found {
            missing.push(tool);
        }
    }
    if !nix::unistd::geteuid().is_root() {
        missing.push("root");
    }
    if !missing.is_empty() {
        skipped!("pulls from docker-registry: {} missing", missing.join(", "));
    }
    missing.is_empty()
}

/// A running registry, ended with its value.
pub(crate) struct Registry {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) dir: Scratch,
}

/// Starts the program and waits until it listens.
fn serve(dir: &Path, address: SocketAddr) -> Child {
    let mut child = Command::new("docker-registry")
        .arg("serve")
        .arg(dir.join("config.yml"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("docker-registry");
    while TcpStream::connect(address).is_err() {
        assert!(
            child.try_wait().expect("wait").is_none(),
            "docker-registry ended"
        );
        std::thread::yield_now();
    }
    child
}

impl Registry {
    /// Starts one without TLS and without credentials.
    pub(crate) fn start() -> Self {
        Self::start_with(|_| json!({}), None)
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again where it was.
    pub(crate) fn start_again(&mut self) {
        self.child = serve(&self.dir.0, self.address);
    }

    /// Starts one whose certificate is signed by `<dir>/ca.pem`, made here.
    pub(crate) fn start_tls() -> Self {
        Self::start_with(
            |dir| {
                certificate(dir);
                json!({"certificate": dir.join("cert.pem"), "key": dir.join("key.pem")})
            },
            None,
        )
    }

    /// Starts one that wants `user` and `secret`.
    pub(crate) fn start_guarded() -> Self {
        // bcrypt of `secret`.
        let line = "user:$2y$05$W.9klhmEM.CiqYnchUX9fOEe5Mpd5iYUcShV5aQovRsZMxtImPmAu\n";
        Self::start_with(|_| json!({}), Some(line))
    }

    fn start_with(tls: impl FnOnce(&Path) -> serde_json::Value, htpasswd: Option<&str>) -> Self {
        let dir = Scratch::new();
        // Free a moment ago; whoever takes it meanwhile makes the registry fail, loudly.
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("port");
        let mut config = json!({
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": dir.0.join("data")}},
            "http": {"addr": address.to_string(), "tls": tls(&dir.0)},
        });
        if let Some(line) = htpasswd {
            let path = dir.0.join("htpasswd");
            fs::write(&path, line).expect("htpasswd");
            config["auth"] = json!({"htpasswd": {"realm": "test", "path": path}});
        }
        // JSON is YAML.
        let file = dir.0.join("config.yml");
        fs::write(&file, config.to_string()).expect("config");
        let child = serve(&dir.0, address);
        Self {
            child,
            address,
            dir,
        }
    }

    /// Puts an image there. `flags` go to skopeo.
    pub(crate) fn fill(&self, name: &str, layers: &[Vec<u8>], flags: &[&str]) -> Filled {
        let layout = self.dir.0.join(name.replace('/', "-"));
        let filled = write_layout(&layout, layers);
        let output = Command::new("skopeo")
            .args([
                "--insecure-policy",
                "copy",
                "--quiet",
                "--dest-tls-verify=false",
            ])
            .args(flags)
            .arg(format!("oci:{}:1", layout.display()))
            .arg(format!("docker://{}/{name}:1", self.address))
            .output()
            .expect("skopeo");
        assert!(
            output.status.success(),
            "skopeo: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        filled
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What an image in the registry weighs.
pub(crate) struct Filled {
    /// Bytes of its layers, compressed.
    pub(crate) layer_bytes: u64,
    /// Bytes of manifest and configuration.
    pub(crate) document_bytes: u64,
    /// Digests of its layers, lowest first.
    pub(crate) layers: Vec<String>,
}

impl Filled {
    /// Everything that a pull has to fetch.
    pub(crate) fn bytes(&self) -> u64 {
        self.layer_bytes + self.document_bytes
    }
}

/// An OCI layout with one image for this machine, tagged `1`.
fn write_layout(dir: &Path, layers: &[Vec<u8>]) -> Filled {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("layout");
    let put = |kind: &str, data: &[u8]| {
        let hex = hex(data);
        fs::write(blobs.join(&hex), data).expect("blob");
        json!({"mediaType": kind, "digest": format!("sha256:{hex}"), "size": data.len()})
    };
    let mut filled = Filled {
        layer_bytes: 0,
        document_bytes: 0,
        layers: Vec::new(),
    };
    let mut descriptors = Vec::new();
    let mut diff_ids = Vec::new();
    for layer in layers {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(layer).expect("gzip");
        let packed = packed.finish().expect("gzip");
        filled.layer_bytes += packed.len() as u64;
        filled.layers.push(format!("sha256:{}", hex(&packed)));
        descriptors.push(put("application/vnd.oci.image.layer.v1.tar+gzip", &packed));
        diff_ids.push(format!("sha256:{}", hex(layer)));
    }
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": {"Cmd": ["/bin/true"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
    .to_string();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put("application/vnd.oci.image.config.v1+json", config.as_bytes()),
        "layers": descriptors,
    })
    .to_string();
    filled.document_bytes = (config.len() + manifest.len()) as u64;
    let mut top = put(
        "application/vnd.oci.image.manifest.v1+json",
        manifest.as_bytes(),
    );
    top["annotations"] = json!({"org.opencontainers.image.ref.name": "1"});
    let index = json!({"schemaVersion": 2, "manifests": [top]});
    fs::write(dir.join("index.json"), index.to_string()).expect("layout");
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("layout");
    filled
}

pub(crate) fn hex(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// A layer with one file of so many bytes that do not compress.
pub(crate) fn layer(name: &str, bytes: usize) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes as u64);
    header.set_mode(0o644);
    let mut tar = tar::Builder::new(Vec::new());
    let data = noise(name, bytes);
    tar.append_data(&mut header, name, &data[..]).expect("tar");
    tar.into_inner().expect("tar")
}

/// Bytes that do not compress, by a seed.
pub(crate) fn noise(seed: &str, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed.bytes().fold(7, |s, b| s * 31 + u64::from(b)));
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        data.extend(random.next().to_le_bytes());
    }
    data.truncate(bytes);
    data
}

/// xorshift64
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A place in a list of so many.
    pub(crate) fn pick(&mut self, places: u64) -> usize {
        usize::try_from(self.below(places)).expect("a small number")
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn certificate(dir: &Path) {
    let run = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        let output = Command::new("openssl")
            .args(&words)
            .current_dir(dir)
            .output()
            .expect("openssl");
        assert!(
            output.status.success(),
            "openssl {command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    fs::write(
        dir.join("names"),
        "subjectAltName=IP:127.0.0.1,DNS:registry.test\nbasicConstraints=CA:FALSE\n",
    )
    .expect("names");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    run(&format!(
        "req -x509 {key} -keyout ca-key.pem -out ca.pem -days 2 -subj /CN=test-ca"
    ));
    run(&format!(
        "req {key} -keyout key.pem -out request.pem -subj /CN=registry"
    ));
    run(
        "x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -out cert.pem -days 2 -extfile names",
    );
}
