//! A real etcd and kube-apiserver, on loopback and ports of their own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Peer, client};
use crate::Credentials;
use crate::clock::{Clock, instant};
use crate::held_port::held_port;
use crate::pki::Authority;

/// One that is not ready by then does not become so.
const READY: Duration = Duration::from_secs(120);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);
const HOUR_S: i64 = 3600;

/// Both programs; they end with this value.
pub(super) struct Real {
    authority: Authority,
    dir: PathBuf,
    port: u16,
    children: Vec<Child>,
}

fn find(name: &str) -> Option<PathBuf> {
    let lists = [env::var_os("K8S_BIN"), env::var_os("PATH")];
    let dirs = lists.iter().flatten().flat_map(env::split_paths);
    dirs.map(|dir| dir.join(name)).find(|file| file.exists())
}

fn pem(label: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        STANDARD.encode(der)
    )
}

impl Real {
    /// Starts them. What is missing, if so.
    pub(super) fn start() -> Result<Self, String> {
        let program =
            |name: &str| find(name).ok_or_else(|| format!("no {name} in K8S_BIN or on PATH"));
        let (etcd, apiserver) = (program("etcd")?, program("kube-apiserver")?);
        let [port, of_etcd, of_peers] = [(); 3].map(|()| held_port());
        let dir = env::temp_dir().join(format!("picolet-apiserver-{port}"));
        fs::create_dir_all(&dir).expect("directory");
        let now_s = Clock::default().now_s();
        let mut real = Self {
            authority: Authority::new(now_s).expect("authority"),
            dir,
            port,
            children: Vec::new(),
        };
        let file = |name: &str| real.dir.join(name).display().to_string();
        let (certificate, key) = real.authority.server(now_s, &[]).expect("certificate");
        let tokens = rcgen::KeyPair::generate().expect("key");
        for (name, text) in [
            ("ca.crt", real.authority.pem.clone()),
            ("server.crt", pem("CERTIFICATE", &certificate)),
            ("server.key", pem("PRIVATE KEY", key.secret_der())),
            ("tokens.key", tokens.serialize_pem()),
            ("tokens.pub", tokens.public_key_pem()),
        ] {
            fs::write(file(name), text).expect(name);
        }
        let etcd_words = [
            format!("--data-dir={}", file("etcd")),
            format!("--listen-client-urls=http://127.0.0.1:{of_etcd}"),
            format!("--advertise-client-urls=http://127.0.0.1:{of_etcd}"),
            format!("--listen-peer-urls=http://127.0.0.1:{of_peers}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        let words = [
            format!("--etcd-servers=http://127.0.0.1:{of_etcd}"),
            format!("--secure-port={port}"),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--service-account-key-file={}", file("tokens.pub")),
            format!("--service-account-signing-key-file={}", file("tokens.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged".to_owned(),
        ];
        let children = [
            run(&etcd, &etcd_words, &real.dir),
            run(&apiserver, &words, &real.dir),
        ];
        real.children.extend(children);
        real.wait();
        Ok(real)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Until it is ready, and has made its namespaces.
    fn wait(&mut self) {
        let end = instant() + READY;
        let mut admin = client(self, "admin");
        let mut ok = |uri: &str| {
            let got = admin.try_send("GET", uri, "", b"");
            got.is_ok_and(|got| got.code == 200)
        };
        while !(ok("/readyz")
            && ok("/api/v1/namespaces/default")
            && ok("/api/v1/namespaces/kube-node-lease"))
        {
            assert!(
                instant() < end,
                "the real one is not ready: {}",
                self.dir.display()
            );
            thread::park_timeout(PAUSE);
        }
    }
}

fn run(program: &Path, words: &[String], dir: &Path) -> Child {
    let name = program.file_name().unwrap_or_default();
    let log = fs::File::create(dir.join(name).with_extension("log")).expect("log");
    let child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("log"))
        .stderr(log)
        .spawn();
    child.expect("started")
}

impl Peer for Real {
    fn ca_pem(&self) -> &str {
        &self.authority.pem
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn credentials(&self, user: &str, groups: &[&str]) -> Credentials {
        let now_s = Clock::default().now_s();
        let made = self
            .authority
            .client(user, groups, now_s - HOUR_S, now_s + HOUR_S);
        made.expect("credentials")
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        // The apiserver before its store.
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
