//! The direct backend on the real kernel: namespaces, CNI plugins, an OCI runtime, shims. Needs root, runc, the CNI plugins,
//! iptables and a static busybox; says aloud when it is skipped for want of them.
//!
//! Every test has directories, a bridge, a subnet and cgroups of its own, and checks at its end that nothing is left.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    pin::Pin,
    process::Command,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use nix::mount::MsFlags;
use picolet::image::{ImageError, ImageProgress};
use picolet::{
    api::{
        ContainerId, PodUid, SandboxId,
        cri::{
            ANNOTATION_TERMINATION_PATH, ANNOTATION_TERMINATION_POLICY, AuthConfig,
            ContainerConfig, ContainerMount, ContainerState, ContainerStatus, FsInfo, IdMap,
            LinuxResources, MountedImage, NamespaceMode, NamespaceOptions, PodRuntimeStatus,
            PortMapping, SandboxConfig, SandboxState, SandboxStatus, StoredImage,
            UserNamespaceSupport,
        },
        oci::ImageProcess,
        stats::StatsDetail,
    },
    cgroup::Cgroups,
    logic,
    runtime::{
        AttachOptions, ExecOptions, ImageService as _, LogRetention, OutputRead, OutputRoom,
        RuntimeCall, RuntimeError, RuntimeService, SessionStart, StreamRoute, StreamSession,
        contract,
        runc::{
            BuiltInNetwork, Runc, RuncSettings, host,
            images::{BackendImageHold, BackendImageStore, ResolvedImage},
        },
    },
    sys::{clock, lane::Lane, mount},
};

/// How long a condition is waited for.
const PATIENCE: Duration = Duration::from_secs(180);
/// Image id of the only image.
const IMAGE: &str = "sha256:busybox";

/// Why the tests cannot run here, if so.
fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root".into());
    }
    [
        "/usr/bin/busybox",
        "/usr/lib/cni/bridge",
        "/usr/sbin/iptables",
        "/usr/sbin/runc",
    ]
    .into_iter()
    .find(|p| !Path::new(p).exists())
    .map(|p| format!("{p} is missing"))
}

/// Images that containers mount as volumes.
const FLAT: &str = "sha256:flat";
const DEEP: &str = "sha256:deep";

/// The image that containers are made of, of one layer; and those for volumes, of one and of two.
#[derive(Clone)]
struct OneImage {
    dir: PathBuf,
}

impl OneImage {
    fn image() -> StoredImage {
        StoredImage {
            id: IMAGE.into(),
            repo_tags: vec!["busybox:test".into()],
            size_bytes: 1,
            ..StoredImage::default()
        }
    }
}

impl BackendImageStore for OneImage {
    fn resolve_image(&self, reference: &str) -> Result<Option<ResolvedImage>, ImageError> {
        let (id, layers) = match reference {
            IMAGE | "busybox:test" => (IMAGE, &["layer"][..]),
            FLAT => (FLAT, &["flat"][..]),
            DEEP => (DEEP, &["top", "bottom"][..]),
            _ => return Ok(None),
        };
        Ok(Some(ResolvedImage {
            id: id.into(),
            reference: id.into(),
            process: ImageProcess {
                env: vec!["FROM_IMAGE=yes".into()],
                ..ImageProcess::default()
            },
            layers: layers.iter().map(|name| self.dir.join(name)).collect(),
        }))
    }
    fn describe_image(&self, reference: &str) -> Result<Option<StoredImage>, ImageError> {
        Ok(self.resolve_image(reference)?.map(|_| Self::image()))
    }
    fn hold_image(&self, _: &str) -> Option<BackendImageHold> {
        Some(Box::new(()))
    }
    fn list_stored_images(&self) -> Vec<StoredImage> {
        vec![Self::image()]
    }
    fn pull_to_store<'a>(&'a self, _: &'a str, _: Option<AuthConfig>) -> RuntimeCall<'a, String> {
        Box::pin(async { Err(RuntimeError::Failed("no registry".into())) })
    }
    fn pull_progress(&self, _: &str) -> Option<ImageProgress> {
        None
    }
    fn is_pulling(&self, _: &str) -> bool {
        false
    }
    fn remove_stored_image<'a>(&'a self, id: &'a str, in_use: Vec<String>) -> RuntimeCall<'a, ()> {
        Box::pin(async move {
            if in_use.iter().any(|used| used == id) {
                return Err(RuntimeError::Failed("in use".into()));
            }
            Ok(())
        })
    }
    fn store_fs_info(&self) -> RuntimeCall<'_, FsInfo> {
        Box::pin(async { Ok(FsInfo::default()) })
    }
}

/// A session of this backend: its streams are never elsewhere.
async fn local(
    opened: RuntimeCall<'_, StreamRoute<SessionStart<'_>>>,
) -> Result<StreamSession, RuntimeError> {
    match opened.await? {
        StreamRoute::Local(start) => start.await,
        StreamRoute::Url(url) => panic!("streams at {url}"),
    }
}

/// The same for a port of a pod.
async fn connect(
    runtime: &dyn RuntimeService,
    sandbox: &SandboxId,
    port: u16,
) -> Result<OwnedFd, RuntimeError> {
    match runtime.port_forward(sandbox, &[]).await? {
        StreamRoute::Local(connect) => connect(port).await,
        StreamRoute::Url(url) => panic!("ports at {url}"),
    }
}

/// One agent's world.
struct Lab {
    dir: PathBuf,
    number: u32,
    disk: Lane,
    runtime: RefCell<Option<Rc<Runc>>>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);
/// Plugins share the machine's iptables; one test at a time keeps their figures apart.
static ALONE: Mutex<()> = Mutex::new(());

fn lab(name: &str, test: impl AsyncFnOnce(&Lab)) {
    if let Some(why) = missing() {
        skipped!("{name}: {why}");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("picolet-runc-{}-{number}", std::process::id()));
    let bin = dir.join("layer/bin");
    for sub in [
        "layer/bin",
        "layer/etc",
        "layer/tmp",
        "run",
        "root",
        "logs",
        "conf",
        "links",
    ] {
        fs::create_dir_all(dir.join(sub)).expect("dir");
    }
    fs::copy("/usr/bin/busybox", bin.join("busybox")).expect("busybox");
    for tool in [
        "sh", "cat", "sleep", "echo", "httpd", "wget", "id", "ls", "ps", "hostname", "stty", "dd",
        "tail", "ip", "df", "kill", "date",
    ] {
        std::os::unix::fs::symlink("busybox", bin.join(tool)).expect("link");
    }
    fs::write(
        dir.join("layer/etc/passwd"),
        "root:x:0:0::/:/bin/sh\nweb:x:33:34::/:/bin/sh\n",
    )
    .expect("passwd");
    fs::write(dir.join("layer/etc/group"), "root:x:0:\nextra:x:55:web\n").expect("group");
    let lab = Lab {
        dir,
        number,
        disk: Lane::start("disk").expect("lane"),
        runtime: RefCell::new(None),
    };
    smol::block_on(async {
        lab.boot().await;
        test(&lab).await;
        lab.runtime().reset_backend().await.expect("reset");
        lab.nothing_is_left();
    });
    fs::remove_dir_all(&lab.dir).expect("clean");
}

impl Lab {
    fn bridge(&self) -> String {
        format!("pt{}n{}", std::process::id() % 100_000, self.number)
    }

    fn kubepods(&self) -> String {
        format!("/{}-pods", self.bridge())
    }

    fn cgroups() -> Cgroups {
        Cgroups::detect().expect("cgroups")
    }

    fn exe() -> Arc<OwnedFd> {
        Arc::new(
            fs::File::open(env!("CARGO_BIN_EXE_picolet"))
                .expect("program")
                .into(),
        )
    }

    /// Starts the backend, as an agent does that knows nothing but its directories.
    async fn boot(&self) {
        self.runtime.replace(None);
        let cgroups = Self::cgroups();
        let own = self.dir.join("oci");
        let settings = RuncSettings {
            root_dir: self.dir.join("root"),
            run_dir: self.dir.join("run"),
            runtime: if own.exists() {
                own.display().to_string()
            } else {
                "runc".into()
            },
            handlers: match self.handler().exists() {
                true => [("other".to_owned(), self.handler().display().to_string())].into(),
                false => BTreeMap::new(),
            },
            search_path: fs::read_to_string(self.dir.join("path"))
                .unwrap_or_default()
                .into(),
            cni_conf_dir: self.dir.join("conf"),
            cni_bin_dir: PathBuf::new(),
            built_in_network: BuiltInNetwork {
                bridge: self.bridge(),
                subnets: vec![format!(
                    "10.{}.{}.0/24",
                    200 + self.number % 50,
                    std::process::id() % 250
                )],
                mtu: 0,
            },
            spanning_network: None,
            kubepods: self.kubepods(),
            shim_cgroup: format!("{}/shims", self.kubepods()),
            container_log_links: self.dir.join("links"),
            log_limit: None,
            log_memory: None,
            exe: Self::exe(),
            host: host::read_host_facts(&cgroups),
            spec: logic::oci::container_spec,
            resolve_user: logic::user::resolve_user,
            same_label: logic::security::is_same_selinux_label,
            devices: None,
            process: None,
            parallel: None,
        };
        let images = OneImage {
            dir: self.dir.clone(),
        };
        let runtime = Runc::open(settings, Box::new(images), self.disk.clone(), cgroups).await;
        self.runtime.replace(Some(Rc::new(runtime.expect("open"))));
    }

    /// An OCI runtime of its own for the handler `other`, where there is one.
    fn handler(&self) -> PathBuf {
        self.dir.join("other")
    }

    fn runtime(&self) -> Rc<Runc> {
        Rc::clone(self.runtime.borrow().as_ref().expect("booted"))
    }

    fn sandbox(&self, name: &str) -> SandboxConfig {
        SandboxConfig {
            name: name.into(),
            namespace: "default".into(),
            uid: PodUid::new(format!("uid-{name}")),
            hostname: name.into(),
            log_directory: self.dir.join("logs").join(name).display().to_string(),
            cgroup_parent: format!("{}/pod{name}", self.kubepods()),
            namespaces: NamespaceOptions {
                pid: NamespaceMode::Container,
                ..NamespaceOptions::default()
            },
            ..SandboxConfig::default()
        }
    }

    fn container(&self, sandbox: &SandboxConfig, name: &str, script: &str) -> ContainerConfig {
        let mut config = ContainerConfig {
            name: name.into(),
            image: IMAGE.into(),
            user_image: "busybox:test".into(),
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            log_path: format!("{name}/0.log"),
            ..ContainerConfig::default()
        };
        config.security.namespaces = sandbox.namespaces;
        config
    }

    async fn start(&self, sandbox: &SandboxStatus, config: &ContainerConfig) -> ContainerId {
        let runtime = self.runtime();
        let id = runtime
            .create_container(&sandbox.id, config, None)
            .await
            .expect("create");
        runtime.start_container(&id).await.expect("start");
        id
    }

    async fn pod(&self, sandbox: &SandboxConfig) -> PodRuntimeStatus {
        self.runtime()
            .pod_status(&sandbox.uid)
            .await
            .expect("status")
    }

    async fn instance(&self, sandbox: &SandboxConfig, id: &ContainerId) -> ContainerStatus {
        let pod = self.pod(sandbox).await;
        pod.containers
            .into_iter()
            .find(|c| c.id == *id)
            .expect("listed")
    }

    async fn ended(&self, sandbox: &SandboxConfig, id: &ContainerId) -> ContainerStatus {
        let runtime = self.runtime();
        let deadline = clock::mono_now() + PATIENCE;
        loop {
            let status = self.instance(sandbox, id).await;
            if status.state == ContainerState::Exited {
                return status;
            }
            assert!(clock::mono_now() < deadline, "container {id} does not end");
            smol::future::or(runtime.wait_for_doorbell(), async {
                async_io::Timer::after(Duration::from_secs(1)).await;
            })
            .await;
        }
    }

    fn log(&self, sandbox: &SandboxConfig, name: &str) -> String {
        let path = Path::new(&sandbox.log_directory).join(format!("{name}/0.log"));
        fs::read_to_string(path).unwrap_or_default()
    }

    fn nothing_is_left(&self) {
        let cgroups = Self::cgroups();
        smol::block_on(cgroups.destroy_group(&self.kubepods())).expect("cgroups");
        assert!(!cgroups.has_group(&self.kubepods()));
        assert_eq!(
            mount::mounts_below(&self.dir).expect("mounts"),
            Vec::<PathBuf>::new()
        );
        assert!(
            !Path::new("/sys/class/net").join(self.bridge()).exists(),
            "bridge"
        );
        for entry in fs::read_dir("/proc").expect("proc").flatten() {
            let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            assert!(
                !line.contains(&*self.dir.to_string_lossy()),
                "{} is left: {line}",
                entry.path().display()
            );
        }
        let rules = Command::new("/usr/sbin/iptables")
            .args(["-t", "nat", "-S"])
            .output()
            .expect("iptables");
        let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
        assert!(!rules.contains(&self.bridge()), "{rules}");
        for (dir, kept) in [("run", &[][..]), ("root", &["boot.json"])] {
            let entries = fs::read_dir(self.dir.join(dir)).expect(dir).flatten();
            let names: Vec<_> = entries.map(|e| e.file_name()).collect();
            assert_eq!(names, kept, "{dir}");
        }
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = clock::mono_now() + PATIENCE;
    while !holds() {
        assert!(clock::mono_now() < deadline, "{what}");
        async_io::Timer::after(Duration::from_millis(10)).await;
    }
}

fn get(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn keeps_the_contract() {
    // RTM-02 RTM-03 RTM-05 RTM-06 RTM-16
    lab("contract", async |lab| {
        let runtime = lab.runtime();
        let mut sandbox = lab.sandbox("contract");
        sandbox.namespaces.pid = NamespaceMode::Pod;
        let words = |script: &str| vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let fixture = contract::ContractFixture {
            sandbox,
            image: "busybox:test".into(),
            runs: words("trap 'exit 143' TERM; sleep 1000 & wait"),
            image_volumes: true,
            exits_3: words("exit 3"),
            cannot_start: vec!["/no/such/program".into()],
            echoes: ["/bin/echo", "heard"].map(Into::into).into(),
        };
        let pause = || -> Pin<Box<dyn Future<Output = ()>>> {
            Box::pin(async {
                async_io::Timer::after(Duration::from_millis(10)).await;
            })
        };
        contract::run_contract(&*runtime, &fixture, &pause)
            .await
            .expect("contract");
    });
}

#[test]
fn conditions_are_true() {
    // RTM-19
    lab("conditions", async |lab| {
        let status = lab.runtime().runtime_status().await.expect("status");
        assert!(status.runtime_ready.ok, "{:?}", status.runtime_ready);
        assert!(status.network_ready.ok, "{:?}", status.network_ready);
        let version = lab.runtime().version();
        assert!(
            version.name == "picolet" && version.version.contains("+runc-1."),
            "{version:?}"
        );
        fs::write(lab.dir.join("conf/1.conf"), "{").expect("broken");
        let status = lab.runtime().runtime_status().await.expect("status");
        assert_eq!(status.network_ready.reason, "NetworkConfigInvalid");
        fs::remove_file(lab.dir.join("conf/1.conf")).expect("repair");
    });
}

#[test]
fn a_pod_with_network_and_host_port() {
    // RTM-02 RTM-12
    lab("network", async |lab| {
        let runtime = lab.runtime();
        let port = 20_000 + u16::try_from(std::process::id() % 10_000).expect("port");
        let config = SandboxConfig {
            port_mappings: vec![PortMapping {
                protocol: "TCP".into(),
                container_port: 80,
                host_port: port,
                host_ip: String::new(),
            }],
            dns: picolet::api::cri::DnsConfig {
                servers: vec!["10.0.0.10".into()],
                ..Default::default()
            },
            sysctls: [(
                "net.ipv4.ip_unprivileged_port_start".to_owned(),
                "0".to_owned(),
            )]
            .into(),
            ..lab.sandbox("web")
        };
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        assert_eq!(sandbox.state, SandboxState::Ready);
        assert_eq!(sandbox.ips.len(), 1);
        let script = "echo hello > /tmp/index.html; hostname; cat /etc/resolv.conf; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; exec httpd -f -p 80 -h /tmp";
        let id = lab
            .start(&sandbox, &lab.container(&config, "web", script))
            .await;
        let direct = SocketAddr::new(sandbox.ips[0], 80);
        until("pod answers", || {
            get(direct).is_some_and(|t| t.contains("hello"))
        })
        .await;
        let mapped: SocketAddr = format!("127.0.0.1:{port}").parse().expect("address");
        until("hostPort answers", || {
            get(mapped).is_some_and(|t| t.contains("hello"))
        })
        .await;
        until("the log is written", || {
            lab.log(&config, "web").lines().count() >= 3
        })
        .await;
        let log = lab.log(&config, "web");
        for words in [
            " stdout F web\n",
            " stdout F nameserver 10.0.0.10\n",
            " stdout F 0\n",
        ] {
            assert!(log.contains(words), "{words:?} in {log}");
        }
        // A second container of the pod shares network, IPC and host name.
        let script = "wget -q -O - http://127.0.0.1/index.html; hostname; df /dev/shm | tail -n 1";
        let second = lab
            .start(&sandbox, &lab.container(&config, "second", script))
            .await;
        assert_eq!(lab.ended(&config, &second).await.exit_code, 0);
        let log = lab.log(&config, "second");
        assert!(
            log.contains("F hello\n") && log.contains("F web\n") && log.contains("65536"),
            "{log}"
        );
        let running = lab.instance(&config, &id).await;
        assert_eq!(
            (running.state, running.reason.as_str()),
            (ContainerState::Running, "")
        );
        runtime.stop_pod_sandbox(&sandbox.id).await.expect("stop");
        assert!(
            TcpStream::connect_timeout(&mapped, Duration::from_secs(1)).is_err(),
            "the port is released"
        );
        assert!(lab.pod(&config).await.ips.is_empty());
    });
}

/// A network beyond the node with a web server in it, which knows no way back to the pods.
struct World {
    name: String,
    server: std::process::Child,
}

impl World {
    const NODE: &str = "198.18.77.1/30";
    const SERVER: &str = "198.18.77.2/30";

    fn new(lab: &Lab) -> Self {
        let name = format!("{}w", lab.bridge());
        let ip = |words: &str| {
            let output = Command::new("ip").args(words.split(' ')).output();
            let output = output.expect("ip");
            assert!(output.status.success(), "ip {words}: {output:?}");
        };
        ip(&format!("netns add {name}"));
        ip(&format!(
            "link add {name} type veth peer name eth0 netns {name}"
        ));
        ip(&format!("addr add {} dev {name}", Self::NODE));
        ip(&format!("link set {name} up"));
        ip(&format!("-n {name} addr add {} dev eth0", Self::SERVER));
        ip(&format!("-n {name} link set eth0 up"));
        fs::write(lab.dir.join("index.html"), "world\n").expect("page");
        let server = Command::new("ip")
            .args(["netns", "exec", &name])
            .arg("/usr/bin/busybox")
            .args(["httpd", "-f", "-p", "80", "-h"])
            .arg(&lab.dir)
            .spawn()
            .expect("server");
        Self { name, server }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.name])
            .status();
    }
}

#[test]
fn pods_reach_the_world_under_the_nodes_address() {
    lab("world", async |lab| {
        let world = World::new(lab);
        let chain = format!("PICOLET-MASQ-{}", lab.bridge());
        let jumps = || {
            let rules = Command::new("/usr/sbin/iptables")
                .args(["-w", "-t", "nat", "-S", "POSTROUTING"])
                .output()
                .expect("iptables");
            let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
            let all = rules.lines().map(str::to_owned);
            all.filter(|rule| rule.ends_with(&chain))
                .collect::<Vec<_>>()
        };
        let script = "until wget -q -O - http://198.18.77.2/index.html; do sleep 0.1; done";
        for pod in ["first", "second"] {
            let config = lab.sandbox(pod);
            let sandbox = lab
                .runtime()
                .run_pod_sandbox(&config)
                .await
                .expect("sandbox");
            let id = lab
                .start(&sandbox, &lab.container(&config, "main", script))
                .await;
            assert_eq!(lab.ended(&config, &id).await.exit_code, 0, "{pod}");
            assert!(lab.log(&config, "main").contains("F world\n"), "{pod}");
            // One rule for both, and the second agent finds the first one's.
            let found = jumps();
            assert_eq!(found.len(), 1, "{pod}: {found:?}");
            if pod == "first" {
                // A firewall is reloaded while no agent runs.
                let delete = found[0].replacen("-A", "-D", 1);
                let mut command = Command::new("/usr/sbin/iptables");
                command.args(["-w", "-t", "nat"]).args(delete.split(' '));
                assert!(command.status().expect("iptables").success());
                assert_eq!(jumps().len(), 0);
            }
            lab.boot().await;
            // The first pod is still there, and no other one has come yet.
            assert_eq!(jumps().len(), 1, "{pod}");
        }
        drop(world);
    });
}

#[test]
fn exit_codes_oom_and_last_words() {
    // RTM-05 RTM-10 TMSG-01 TMSG-02
    lab("ends", async |lab| {
        let runtime = lab.runtime();
        let config = lab.sandbox("ends");
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let words = lab.dir.join("words");
        fs::write(&words, "").expect("file");
        let mut told = lab.container(&config, "told", "echo bye > /words; exit 7");
        told.mounts = vec![ContainerMount {
            host_path: words.display().to_string(),
            container_path: "/words".into(),
            ..ContainerMount::default()
        }];
        told.annotations = [(ANNOTATION_TERMINATION_PATH.to_owned(), "/words".to_owned())].into();
        let id = lab.start(&sandbox, &told).await;
        let status = lab.ended(&config, &id).await;
        assert_eq!(
            (
                status.exit_code,
                status.reason.as_str(),
                status.message.as_str()
            ),
            (7, "Error", "bye\n")
        );
        assert!(status.finished_at >= status.started_at);

        let mut fallback = lab.container(&config, "fallback", "echo last words; exit 1");
        fallback.annotations = [(
            ANNOTATION_TERMINATION_POLICY.to_owned(),
            "FallbackToLogsOnError".to_owned(),
        )]
        .into();
        let id = lab.start(&sandbox, &fallback).await;
        assert_eq!(lab.ended(&config, &id).await.message, "last words\n");

        let mut greedy = lab.container(
            &config,
            "greedy",
            "dd if=/dev/zero of=/dev/null bs=64M count=1",
        );
        greedy.resources.memory_limit_bytes = Some(16 << 20);
        let id = lab.start(&sandbox, &greedy).await;
        let status = lab.ended(&config, &id).await;
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (137, "OOMKilled")
        );
        // A child, which init outlives.
        for (code, name) in [(0, "outlived"), (1, "outlived-fails")] {
            let script = format!("sh -c 'tail /dev/zero'; exit {code}");
            let mut parent = lab.container(&config, name, &script);
            parent.resources.memory_limit_bytes = Some(24 << 20);
            let id = lab.start(&sandbox, &parent).await;
            let status = lab.ended(&config, &id).await;
            let ended = (status.exit_code, status.reason.as_str());
            assert_eq!(ended, (code, "OOMKilled"), "{name}");
        }

        let mut user = lab.container(&config, "user", "id");
        user.security.username = "web".into();
        let id = lab.start(&sandbox, &user).await;
        assert_eq!(
            lab.ended(&config, &id).await.user,
            Some((33, 34, vec![34, 55]))
        );
        assert!(
            lab.log(&config, "user")
                .contains("uid=33(web) gid=34 groups="),
            "{}",
            lab.log(&config, "user")
        );

        let mut absent = lab.container(&config, "absent", "true");
        absent.mounts = vec![ContainerMount {
            host_path: "/no/such/source".into(),
            container_path: "/x".into(),
            ..ContainerMount::default()
        }];
        let error = runtime
            .create_container(&sandbox.id, &absent, Some(&config))
            .await
            .expect_err("missing source");
        assert!(error.to_string().contains("/no/such/source"), "{error}");
        absent.mounts.clear();
        absent.image = "other:1".into();
        let error = runtime
            .create_container(&sandbox.id, &absent, Some(&config))
            .await
            .expect_err("missing image");
        assert!(matches!(error, RuntimeError::NotFound(_)), "{error}");
    });
}

#[test]
fn a_container_may_end_before_its_start_returns() {
    lab("short", async |lab| {
        // What runc does once the container runs, slowly: it removes a file of its own, and fails if that is gone.
        let script = format!(
            "#!/bin/sh\nid=\nfor word; do id=$word; done\ncase \" $* \" in *' start '*)\n\
             /usr/sbin/runc \"$@\" || exit; until [ -e {0}/go ]; do sleep 0.01; done\n\
             [ -e {0}/run/runtime/$id ] && exit; echo '{{\"level\":\"error\",\"msg\":\"it is gone\"}}' >&2; exit 1;;\n\
             esac\nexec /usr/sbin/runc \"$@\"\n",
            lab.dir.display()
        );
        let oci = lab.dir.join("oci");
        fs::write(&oci, script).expect("script");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&oci, mode).expect("mode");
        lab.boot().await;
        let (runtime, config) = (lab.runtime(), lab.sandbox("short"));
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let once = lab.container(&config, "once", "exit 0");
        let id = runtime
            .create_container(&sandbox.id, &once, Some(&config))
            .await
            .expect("create");
        let ended = async {
            // Looked at as the agent does when the doorbell rings.
            lab.ended(&config, &id).await;
            lab.pod(&config).await;
            fs::write(lab.dir.join("go"), "").expect("go");
        };
        let (started, ()) = smol::future::zip(runtime.start_container(&id), ended).await;
        started.expect("it was started");
        let status = lab.instance(&config, &id).await;
        assert_eq!((status.exit_code, &*status.reason), (0, "Completed"));
        assert!(!lab.dir.join("run/runtime").join(&*id).exists(), "resident");
    });
}

#[test]
fn an_abandoned_start_is_no_end() {
    lab("abandoned", async |lab| {
        let config = lab.sandbox("abandoned");
        let sandbox = lab.runtime().run_pod_sandbox(&config).await.expect("run");
        let id = lab
            .start(&sandbox, &lab.container(&config, "once", "exit 3"))
            .await;
        assert_eq!(lab.ended(&config, &id).await.exit_code, 3);
        // An agent died while it undid a launch that was never started: whoever takes over that launch's shim leaves an
        // exit record.
        let record = lab
            .dir
            .join("run/containers")
            .join(&*id)
            .join("record.json");
        let mut value: serde_json::Value =
            serde_json::from_slice(&fs::read(&record).expect("record")).expect("JSON");
        value["made"] = false.into();
        value["started_at"] = serde_json::Value::Null;
        lab.runtime.replace(None);
        fs::write(&record, value.to_string()).expect("write");
        lab.boot().await;
        assert!(lab.pod(&config).await.newest_instance("once").is_none());
        assert!(!lab.dir.join("root/containers").join(&*id).exists());
        let again = lab
            .start(&sandbox, &lab.container(&config, "once", "exit 0"))
            .await;
        assert_eq!(lab.ended(&config, &again).await.exit_code, 0);
    });
}

/// An agent that dies between start and record of a sandbox's init leaves the other end of its pipe to nobody.
#[test]
fn an_init_that_nobody_recorded_ends() {
    let mut init = Command::new(env!("CARGO_BIN_EXE_picolet"))
        .args(["pod-init", "/run/nowhere"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("init");
    drop(init.stdin.take());
    assert!(init.wait().expect("reaped").success());
}

#[test]
fn read_only_root_and_shared_pids() {
    // RTM-02 RTM-17
    lab("shared", async |lab| {
        let runtime = lab.runtime();
        let mut config = lab.sandbox("shared");
        config.namespaces.pid = NamespaceMode::Pod;
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let first = lab
            .start(
                &sandbox,
                &lab.container(&config, "first", "sleep 1000 & exec sleep 2000"),
            )
            .await;
        let mut look = lab.container(&config, "look", "ps; echo x > /file");
        look.security.readonly_rootfs = true;
        let id = lab.start(&sandbox, &look).await;
        assert_eq!(
            lab.ended(&config, &id).await.exit_code,
            1,
            "the root is read-only"
        );
        let log = lab.log(&config, "look");
        assert!(
            log.contains("pod-init") && log.contains("sleep 2000") && log.contains("Read-only"),
            "{log}"
        );
        // Its child is not its init's: both must go.
        runtime
            .stop_container(&first, Duration::from_secs(1))
            .await
            .expect("stop");
        let pids = Lab::cgroups().list_pids(&format!("{}/{first}", config.cgroup_parent));
        assert_eq!(pids, Vec::<i32>::new());
        // Killing the namespace's init makes the sandbox unusable, and it is seen.
        let pod = lab.pod(&config).await;
        assert_eq!(pod.sandboxes[0].state, SandboxState::Ready);
        // Without hostPorts: CHECK of portmap 1.1 fails on IPv4 alone.
        runtime.check_network(&sandbox.id).await.expect("CNI CHECK");
        for pid in Lab::cgroups().list_pids(&config.cgroup_parent) {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL)
                .expect("kill");
        }
        runtime.wait_for_doorbell().await;
        assert_eq!(
            lab.pod(&config).await.sandboxes[0].state,
            SandboxState::NotReady
        );
    });
}

/// The init of a shared PID namespace: what is left of it when the sandbox is ready. What containers of the pod can do with it is
/// shown in tests/hostile.
#[test]
fn an_init_has_nothing_of_the_host() {
    // RTM-17
    /// Most memory of its own, KiB.
    const INIT_KIB: u64 = 64;
    lab("bare", async |lab| {
        let mut config = lab.sandbox("bare");
        config.namespaces.pid = NamespaceMode::Pod;
        let sandbox = lab.runtime().run_pod_sandbox(&config).await.expect("run");
        let group = format!("{}/{}", config.cgroup_parent, sandbox.id);
        let [pid] = Lab::cgroups().list_pids(&group)[..] else {
            panic!("one process in {group}");
        };
        let path = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
        let text = |name: &str| fs::read_to_string(path(name)).expect("of a process");
        let names = |name: &str| fs::read_dir(path(name)).expect("directory").count();
        let dir = lab.dir.join("run/sandboxes").join(&*sandbox.id);
        let called = format!("picolet\0pod-init\0{}\0", dir.display());
        // The pipe that said so was closed before the kernel had the program in place.
        while text("cmdline") != called {
            smol::future::yield_now().await;
        }
        // Nothing in its root directory, which is the only mount and takes nothing.
        assert_eq!((names("root"), names("cwd"), names("fd")), (0, 0, 0));
        let refused = fs::write(path("root/file"), "").expect_err("read-only");
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        let mounts = text("mountinfo");
        assert_eq!(mounts.lines().count(), 1, "{mounts}");
        assert_eq!(text("environ"), "");
        let exe = fs::read_link(path("exe")).expect("its program");
        assert_eq!(exe.display().to_string(), "/memfd:pod-init (deleted)");
        let status = text("status");
        for line in [
            "CapInh:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapEff:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "CapAmb:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(status.lines().any(|l| l == line), "{line} in {status}");
        }
        for kind in ["mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            let link = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).expect("link");
            assert_ne!(link(&pid.to_string()), link("self"), "{kind}");
        }
        let memory = text("smaps_rollup");
        let own = memory.lines().filter(|l| l.starts_with("Private_"));
        let own = own.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
        let own: u64 = own.sum();
        assert!((1..=INIT_KIB).contains(&own), "{memory}");
        println!("an init: {own} KiB of its own");
        // Who switches the machine off asks it to end.
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGTERM,
        )
        .expect("signal");
        lab.runtime().wait_for_doorbell().await;
        let state = lab.pod(&config).await.sandboxes[0].state;
        assert_eq!(state, SandboxState::NotReady);
    });
}

/// Files of a container are nobody's on the host: its users could read them, write to its /dev/shm, and run a setuid
/// program that the container made (the class of CVE-2021-41103).
#[test]
fn users_of_the_machine_have_no_way_to_a_container() {
    lab("closed", async |lab| {
        let runtime = lab.runtime();
        let config = lab.sandbox("closed");
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let script = "busybox cp /bin/busybox /busybox-suid; busybox chmod 4755 /busybox-suid; echo made; exec sleep 1000";
        let id = lab
            .start(&sandbox, &lab.container(&config, "main", script))
            .await;
        until("it made a setuid file", || {
            lab.log(&config, "main").contains("made")
        })
        .await;
        let (run, root) = (lab.dir.join("run"), lab.dir.join("root"));
        let rootfs = run.join("containers").join(&*id).join("rootfs");
        let upper = root.join("containers").join(&*id).join("upper");
        let shm = run.join("sandboxes").join(&*sandbox.id).join("shm");
        let hosts_files = root.join("sandboxes").join(&*sandbox.id);
        let tries = [
            format!("cat {}/etc/passwd", rootfs.display()),
            format!("cat {}/busybox-suid", upper.display()),
            format!("{}/busybox-suid true", rootfs.display()),
            format!("{}/busybox-suid true", upper.display()),
            format!("echo x > {}/by-a-user", shm.display()),
            format!("cat {}/hostname", hosts_files.display()),
        ];
        let works: Vec<&String> = tries.iter().filter(|t| as_user(t)).collect();
        assert_eq!(works, [""; 0], "as user 1000 of the machine");

        // Under a umask that would take everything from others, a container still has a root that it can enter; and from a
        // directory that only root enters come files that it can use.
        let closed = lab.dir.join("private");
        fs::create_dir(&closed).expect("dir");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("mode");
        fs::write(closed.join("words"), "").expect("file");
        fs::set_permissions(closed.join("words"), fs::Permissions::from_mode(0o666)).expect("mode");
        let script = "id -u; cat /etc/hostname; echo x > /dev/shm/x && echo x > /words && echo done; exec sleep 1000";
        let mut user = lab.container(&config, "user", script);
        user.security.run_as_user = Some(1000);
        user.mounts = vec![ContainerMount {
            host_path: closed.join("words").display().to_string(),
            container_path: "/words".into(),
            ..ContainerMount::default()
        }];
        let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
        let user = runtime
            .create_container(&sandbox.id, &user, Some(&config))
            .await;
        nix::sys::stat::umask(mask);
        let user = user.expect("create");
        runtime.start_container(&user).await.expect("start");
        until("it works as another user", || {
            lab.log(&config, "user").contains("done")
        })
        .await;

        // An agent of an earlier version left all of it open, and its containers run.
        lab.runtime.replace(None);
        let open = |dir: &Path| {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("mode");
        };
        for base in [&run, &root] {
            for kind in ["containers", "sandboxes"] {
                open(&base.join(kind));
                for entry in fs::read_dir(base.join(kind)).expect("list").flatten() {
                    open(&entry.path());
                }
            }
        }
        let refused: Vec<&String> = tries.iter().filter(|t| !as_user(t)).collect();
        assert_eq!(refused, [""; 0], "the way was open");
        lab.boot().await;
        let works: Vec<&String> = tries.iter().filter(|t| as_user(t)).collect();
        assert_eq!(works, [""; 0], "after the start of an agent");
        for base in [&run, &root] {
            for kind in ["containers", "sandboxes"] {
                let ids = fs::read_dir(base.join(kind)).expect("list").flatten();
                for dir in ids.map(|e| e.path()).chain([base.join(kind)]) {
                    let mode = fs::metadata(&dir).expect("stat").permissions().mode();
                    assert_eq!(mode & 0o7777, 0o700, "{}", dir.display());
                }
            }
        }
        // Nothing that runs noticed.
        let command = ["/bin/sh", "-c", "cat /dev/shm/x /words && id -u"].map(str::to_owned);
        let output = lab.runtime().exec_sync(&user, &command, None, 64).await;
        assert_eq!(output.expect("exec").stdout, b"x\nx\n1000\n");
    });
}

/// Whether a shell of user 1000 of this machine succeeds with `script`.
fn as_user(script: &str) -> bool {
    let mut shell = Command::new("/usr/bin/busybox");
    shell.args(["sh", "-c", script]).current_dir("/");
    std::os::unix::process::CommandExt::uid(&mut shell, 1000);
    std::os::unix::process::CommandExt::gid(&mut shell, 1000);
    shell.output().expect("busybox").status.success()
}

/// What was looked at on the host is what the container gets, whatever its path leads to by then.
#[test]
fn a_host_path_that_became_a_link_starts_nothing() {
    lab("swapped", async |lab| {
        let shared = lab.dir.join("shared");
        let [wanted, secret] = ["wanted", "secret"].map(|name| shared.join(name));
        for dir in [&wanted, &secret] {
            fs::create_dir_all(dir).expect("dir");
            fs::write(dir.join("file"), dir.display().to_string()).expect("file");
        }
        fs::write(shared.join("plain"), "").expect("file");
        // Between our look and the runtime's somebody who may write to `shared` puts a link there, if `swap` says so.
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in *' create '*) [ -e {0}/swap ] && mv {0}/wanted {0}/old && \
             ln -s secret {0}/wanted;; esac\nexec /usr/sbin/runc \"$@\"\n",
            shared.display()
        );
        let oci = lab.dir.join("oci");
        fs::write(&oci, script).expect("script");
        fs::set_permissions(&oci, fs::Permissions::from_mode(0o755)).expect("mode");
        lab.boot().await;
        let (runtime, config) = (lab.runtime(), lab.sandbox("swapped"));
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let mount = |host: &Path, path: &str| ContainerMount {
            host_path: host.display().to_string(),
            container_path: path.into(),
            ..ContainerMount::default()
        };
        let with = |name: &str| {
            let mut container =
                lab.container(&config, name, "cat /data/file; echo; exec sleep 1000");
            // Also what lies under another mount, and what a link of the image leads to, is no reason to refuse.
            container.mounts = vec![
                mount(&shared.join("plain"), "/data/deep/plain"),
                mount(&wanted, "/data"),
                mount(&shared, "/tmp"),
            ];
            container
        };
        let good = lab.start(&sandbox, &with("good")).await;
        until("it reads what was meant", || {
            lab.log(&config, "good").contains("wanted")
        })
        .await;
        assert_eq!(
            lab.instance(&config, &good).await.state,
            ContainerState::Running
        );
        fs::write(shared.join("swap"), "").expect("file");
        let bad = runtime
            .create_container(&sandbox.id, &with("bad"), Some(&config))
            .await
            .expect("create");
        let refused = runtime.start_container(&bad).await.expect_err("refused");
        let text = refused.to_string();
        assert!(
            text.contains("/data") && text.contains("changed while"),
            "{text}"
        );
        assert_eq!(lab.log(&config, "bad"), "", "no program of it ran");
        let status = lab.instance(&config, &bad).await;
        assert_eq!(
            (status.state, status.reason.as_str()),
            (ContainerState::Exited, "StartError")
        );
    });
}

#[test]
fn exec_with_and_without_terminal() {
    // RTM-15
    lab("exec", async |lab| {
        let runtime = lab.runtime();
        let config = lab.sandbox("exec");
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let id = lab
            .start(&sandbox, &lab.container(&config, "main", "exec sleep 1000"))
            .await;
        let words = |script: &str| vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let output = runtime
            .exec_sync(
                &id,
                &words("echo out $FROM_IMAGE; echo err >&2; exit 5"),
                None,
                1024,
            )
            .await
            .expect("exec");
        assert_eq!(
            (output.exit_code, &*output.stdout, &*output.stderr),
            (5, &b"out yes\n"[..], &b"err\n"[..])
        );
        let output = runtime
            .exec_sync(&id, &words("echo 12345678"), None, 4)
            .await
            .expect("exec");
        assert_eq!(output.stdout, b"1234");
        let error = runtime
            .exec_sync(&id, &["/no/such".to_owned()], None, 64)
            .await
            .expect_err("missing");
        assert!(error.to_string().contains("no such file"), "{error}");
        let error = runtime
            .exec_sync(
                &id,
                &words("exec sleep 777"),
                Some(Duration::from_millis(700)),
                64,
            )
            .await
            .expect_err("late");
        assert!(matches!(error, RuntimeError::Timeout { .. }), "{error}");
        let cgroup = format!("{}/{id}", config.cgroup_parent);
        until("the late command is killed", || {
            Lab::cgroups().list_pids(&cgroup).len() == 1
        })
        .await;

        let with = |script: &str, stdin: bool, tty: bool| ExecOptions {
            command: words(script),
            stdin,
            tty,
            ..ExecOptions::default()
        };
        let options = with("cat; exit 4", true, false);
        let mut session = local(runtime.exec(&id, &options)).await.expect("session");
        say(&mut session, b"through").await;
        session.streams.end_input();
        let (text, end) = finish(session).await;
        assert_eq!((&*text, end), ("through", Ok(4)));

        let options = with("read x; stty size; exit 6", true, true);
        let mut session = local(runtime.exec(&id, &options)).await.expect("session");
        session.streams.resize_terminal(123, 45);
        say(&mut session, b"go\n").await;
        let (text, end) = finish(session).await;
        assert_eq!(end, Ok(6));
        assert!(text.contains("45 123"), "{text:?}");
        assert_eq!(text.matches("go").count(), 1, "echoed once: {text:?}");
    });
}

#[test]
fn commands_whose_clients_go() {
    // STREAM-09
    lab("left", async |lab| {
        let runtime = lab.runtime();
        let config = lab.sandbox("left");
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let id = lab
            .start(&sandbox, &lab.container(&config, "main", "exec sleep 1000"))
            .await;
        let options = |script: &str, stdin, tty| ExecOptions {
            command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
            stdin,
            tty,
            ..ExecOptions::default()
        };
        let cgroup = format!("{}/{id}", config.cgroup_parent);
        let running = |word: &str| {
            let pids = Lab::cgroups().list_pids(&cgroup);
            let lines = pids
                .iter()
                .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
            lines.filter(|line| line.contains(word)).count()
        };
        let helpers = || {
            let entries = fs::read_dir("/proc").expect("proc").flatten();
            let lines = entries.filter_map(|e| fs::read_to_string(e.path().join("cmdline")).ok());
            let ours = |l: &String| l.contains("exec-wait") && l.contains(id.as_str());
            lines.filter(ours).count()
        };
        // Who waits for input, speaks, or has a terminal, ends with the client.
        for (name, script, stdin, tty) in [
            ("input", "cat; sleep 0", true, false),
            ("output", "while :; do echo word; done", false, false),
            ("terminal", "read x; sleep 0", true, true),
        ] {
            let options = options(script, stdin, tty);
            let session = local(runtime.exec(&id, &options)).await.expect("session");
            until("it runs", || running(script) == 1).await;
            drop(session);
            until(name, || running(script) == 0).await;
        }
        // Who is just being started never runs.
        for _ in 0..6 {
            let options = options("exec sleep 777", false, false);
            let session = local(runtime.exec(&id, &options)).await.expect("session");
            drop(session);
        }
        until("the helpers end", || helpers() == 0).await;
        assert_eq!(
            Lab::cgroups().list_pids(&cgroup).len(),
            1,
            "a command is left"
        );
        // Who has nothing to say runs on; but only so many do.
        let mut sessions = Vec::new();
        for _ in 0..70 {
            let options = options("exec sleep 888", false, false);
            sessions.push(local(runtime.exec(&id, &options)).await.expect("session"));
            until("it runs", || running("888") == sessions.len()).await;
        }
        drop(sessions);
        until("some are ended", || running("888") == 64 && helpers() == 64).await;
        let kill_all = || {
            for pid in Lab::cgroups().list_pids(&cgroup) {
                let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                if !line.contains("1000") {
                    let pid = nix::unistd::Pid::from_raw(pid);
                    let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL);
                }
            }
        };
        kill_all();
        until("the helpers end with them", || helpers() == 0).await;
        // The runtime is somewhere between its start and the command's when the session is dropped.
        for moment in 0..12 {
            let options = options("exec sleep 999", false, false);
            let session = local(runtime.exec(&id, &options)).await.expect("session");
            async_io::Timer::after(Duration::from_millis(moment * 5)).await;
            drop(session);
        }
        until("each helper has its command", || {
            helpers() == running("999")
        })
        .await;
        kill_all();
        until("the helpers end", || helpers() == 0).await;
        let leftovers = || {
            let dir = lab.dir.join("run/containers").join(id.as_str());
            let names = fs::read_dir(dir).expect("dir").flatten();
            let names = names.map(|e| e.file_name().to_string_lossy().into_owned());
            let names: Vec<String> = names.filter(|n| n.starts_with("exec-")).collect();
            names
        };
        // A look at the pods clears away what has ended: a board may run no further command.
        until("what is left goes", || {
            // A helper that had not begun to be one was not counted above.
            kill_all();
            smol::block_on(runtime.list_pods()).expect("pods");
            leftovers().is_empty()
        })
        .await;
        let next = ["/bin/sh", "-c", "exit 3"].map(str::to_owned);
        let ended = runtime.exec_sync(&id, &next, None, 1).await;
        assert_eq!(ended.expect("the next command").exit_code, 3);
        assert_eq!(leftovers(), [""; 0]);
    });
}

/// Writes all of `bytes`.
async fn say(session: &mut StreamSession, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let streams = &mut session.streams;
        let written = core::future::poll_fn(|cx| streams.poll_input(cx, bytes)).await;
        bytes = &bytes[written.expect("input")..];
    }
}

/// What is said next on standard output; `None` at the end.
async fn hear(session: &mut StreamSession) -> Option<String> {
    let room = OutputRoom {
        stdout: usize::MAX,
        stderr: usize::MAX,
    };
    let mut buffer = vec![0; 8192];
    loop {
        let streams = &mut session.streams;
        let output = core::future::poll_fn(|cx| streams.poll_output(cx, room, &mut buffer)).await;
        match output.expect("output") {
            OutputRead::Stdout(n) => {
                return Some(String::from_utf8_lossy(&buffer[..n]).into_owned());
            }
            OutputRead::Stderr(_) => {}
            OutputRead::End => return None,
        }
    }
}

/// All that a session says on standard output, and how it ends.
async fn finish(mut session: StreamSession) -> (String, Result<i32, RuntimeError>) {
    let mut all = String::new();
    while let Some(text) = hear(&mut session).await {
        all += &text;
    }
    (all, session.end.await)
}

#[test]
fn attached_to_a_container() {
    // STREAM-09
    lab("attach", async |lab| {
        let runtime = lab.runtime();
        let config = lab.sandbox("attach");
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let mut plain = lab.container(&config, "plain", "cat; exit 3");
        (plain.stdin, plain.stdin_once) = (true, true);
        let plain = lab.start(&sandbox, &plain).await;
        let all = AttachOptions {
            stdin: true,
            stdout: true,
            stderr: true,
            tty: false,
            stdin_once: true,
        };
        let watcher = AttachOptions {
            stdin: false,
            ..all
        };
        let watcher = local(runtime.attach(&plain, watcher))
            .await
            .expect("watcher");
        let mut session = local(runtime.attach(&plain, all)).await.expect("attach");
        // More than all buffers hold: whoever talks waits for the container.
        let sent: String = (0..40_000).map(|n| format!("line {n}\n")).collect();
        let talk = async {
            let mut bytes = sent.as_bytes();
            let mut heard = String::new();
            while !bytes.is_empty() {
                let (now, rest) = bytes.split_at(bytes.len().min(4096));
                say(&mut session, now).await;
                bytes = rest;
                while heard.len() < sent.len() - bytes.len() {
                    heard += &hear(&mut session).await.expect("echo");
                }
            }
            session.streams.end_input();
            (heard, finish(session).await)
        };
        let (seen, (heard, (rest, end))) = smol::future::zip(finish(watcher), talk).await;
        assert!(heard == sent && rest.is_empty(), "{} bytes", heard.len());
        assert!(seen.0 == sent && seen.1 == Ok(0), "{} bytes", seen.0.len());
        assert_eq!(end, Ok(0), "the end of a connection");
        let ended = |status: &PodRuntimeStatus| {
            let all = status.containers.iter();
            all.filter(|c| c.state == ContainerState::Exited)
                .any(|c| c.id == plain && c.exit_code == 3)
        };
        loop {
            let status = runtime.pod_status(&config.uid).await.expect("status");
            if ended(&status) {
                break;
            }
            runtime.wait_for_doorbell().await;
        }

        let mut shell = lab.container(&config, "shell", "while read x; do stty size; done");
        (shell.stdin, shell.tty) = (true, true);
        let shell = lab.start(&sandbox, &shell).await;
        for (columns, expected) in [(100, "30 100"), (120, "30 120")] {
            let options = AttachOptions {
                tty: true,
                stdin_once: false,
                ..all
            };
            // Each leaves without ending anything.
            let mut session = local(runtime.attach(&shell, options))
                .await
                .expect("attach");
            session.streams.resize_terminal(columns, 30);
            // What was asked for earlier may be answered first; the size is sent when output is waited for.
            let mut text = String::new();
            while !text.contains(expected) {
                assert!(text.len() < 10_000, "{text:?}");
                say(&mut session, b"\n").await;
                text += &hear(&mut session).await.expect("a terminal");
            }
        }
        let gone = local(runtime.attach(&plain, all)).await;
        assert!(matches!(gone, Err(RuntimeError::NotFound(_))));
    });
}

#[test]
fn limits_of_a_running_container_change_wholly_or_not() {
    // RTM-19
    lab("limits", async |lab| {
        let runtime = lab.runtime();
        let config = lab.sandbox("limits");
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let id = lab
            .start(&sandbox, &lab.container(&config, "main", "sleep 1000"))
            .await;
        let limit = async || {
            let pods = runtime
                .list_pod_usage(StatsDetail::Basic)
                .await
                .expect("usage");
            let usage = pods[0].containers[0].usage.memory.expect("memory");
            usage.limit_bytes
        };
        assert_eq!(limit().await, None);
        let resources = LinuxResources {
            memory_limit_bytes: Some(64 << 20),
            ..LinuxResources::default()
        };
        let updated = runtime.update_container_resources(&id, &resources).await;
        assert_eq!(updated, Ok(()));
        assert_eq!(limit().await, Some(64 << 20));
        let more = LinuxResources {
            memory_limit_bytes: Some(128 << 20),
            hugepage_limits: [("2MB".into(), 1)].into(),
            ..LinuxResources::default()
        };
        let refused = runtime.update_container_resources(&id, &more).await;
        assert!(
            matches!(refused, Err(RuntimeError::Invalid(_))),
            "{refused:?}"
        );
        assert_eq!(limit().await, Some(64 << 20));
    });
}

#[test]
fn ports_of_pods() {
    // STREAM-13
    lab("ports", async |lab| {
        use std::io::{Read as _, Write as _};
        let runtime = lab.runtime();
        let host = fs::read_link("/proc/self/ns/net").expect("own network");
        let config = lab.sandbox("ports");
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let serve = "echo hello > /tmp/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp";
        lab.start(&sandbox, &lab.container(&config, "serve", serve))
            .await;
        let ask = async || {
            let fd = connect(&*runtime, &sandbox.id, 8080).await?;
            let mut stream = TcpStream::from(fd);
            stream.set_nonblocking(false).expect("blocking");
            let request = b"GET /index.html HTTP/1.0\r\n\r\n";
            stream.write_all(request).expect("request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("answer");
            assert!(answer.ends_with("hello\n"), "{answer}");
            Ok::<_, RuntimeError>(())
        };
        // Until the server listens.
        let begun = clock::mono_now();
        while let Err(e) = ask().await {
            assert!(clock::mono_now() - begun < PATIENCE, "{e}");
        }
        for _ in 0..50 {
            ask().await.expect("answer");
        }
        let refused = connect(&*runtime, &sandbox.id, 9).await;
        let refused = refused.expect_err("nobody listens").to_string();
        assert!(
            refused.contains("127.0.0.1:9: Connection refused"),
            "{refused}"
        );
        assert_eq!(fs::read_link("/proc/self/ns/net").expect("own"), host);
        // A pod of the host's network: the host's ports.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("address").port();
        let mut config = lab.sandbox("hosted");
        config.namespaces.network = NamespaceMode::Node;
        let hosted = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let fd = connect(&*runtime, &hosted.id, port).await;
        fd.expect("connected");
        listener.accept().expect("connection");
        runtime.stop_pod_sandbox(&hosted.id).await.expect("stop");
        let gone = connect(&*runtime, &hosted.id, port).await;
        assert!(matches!(gone, Err(RuntimeError::NotFound(_))));
    });
}

#[test]
fn an_agent_restart_changes_nothing() {
    // RTM-01 RTM-03 RTM-18
    lab("restart", async |lab| {
        let config = lab.sandbox("restart");
        let sandbox = lab
            .runtime()
            .run_pod_sandbox(&config)
            .await
            .expect("sandbox");
        let go = lab.dir.join("go");
        fs::create_dir(&go).expect("dir");
        let mut waits = lab.container(
            &config,
            "waits",
            "echo early; while [ ! -e /go/now ]; do sleep 0.05; done; echo late; exit 9",
        );
        waits.mounts = vec![ContainerMount {
            host_path: go.display().to_string(),
            container_path: "/go".into(),
            ..ContainerMount::default()
        }];
        let ends = lab.start(&sandbox, &waits).await;
        let stays = lab
            .start(
                &sandbox,
                &lab.container(&config, "stays", "exec sleep 1000"),
            )
            .await;
        let created = lab
            .runtime()
            .create_container(
                &sandbox.id,
                &lab.container(&config, "created", "exit 0"),
                Some(&config),
            )
            .await
            .expect("created");
        let layer = lab.dir.join("root/containers").join(&*created);
        assert!(layer.exists());
        let before = lab.pod(&config).await;
        lab.runtime.replace(None);
        fs::write(go.join("now"), "").expect("go");
        until("it ends without an agent", || {
            lab.log(&config, "waits").contains("late")
        })
        .await;
        lab.boot().await;
        let ended = lab.ended(&config, &ends).await;
        assert_eq!((ended.exit_code, ended.reason.as_str()), (9, "Error"));
        let after = lab.pod(&config).await;
        assert_eq!(after.sandboxes, before.sandboxes);
        assert_eq!(after.ips, before.ips);
        let (old, new) = (
            before.newest_instance("stays").expect("stays"),
            after.newest_instance("stays").expect("stays"),
        );
        assert_eq!(
            (new.pid, new.state, new.created_at),
            (old.pid, old.state, old.created_at)
        );
        // It never ran: the next try is its first, and nothing of this one is in the way.
        assert!(after.newest_instance("created").is_none());
        assert!(!layer.exists());
        let again = lab
            .start(&sandbox, &lab.container(&config, "created", "exit 0"))
            .await;
        assert_eq!(again, created);
        assert_eq!(lab.ended(&config, &again).await.exit_code, 0);
        let output = lab
            .runtime()
            .exec_sync(&stays, &["/bin/echo".into(), "x".into()], None, 9)
            .await
            .expect("exec");
        assert_eq!(output.stdout, b"x\n");
        let newest = lab
            .runtime()
            .create_container(
                &sandbox.id,
                &lab.container(&config, "newest", "exit 0"),
                Some(&config),
            )
            .await
            .expect("create");
        let pod = lab.pod(&config).await;
        assert_eq!(
            pod.containers[0].id, newest,
            "order goes on after a restart"
        );
    });
}

#[test]
fn a_handler_has_an_oci_runtime_of_its_own() {
    // CFG-16 NODE-14 RC-01
    lab("handler", async |lab| {
        let calls = lab.dir.join("calls");
        let script = format!(
            "#!/bin/sh\nfor word; do case $word in --version) exec runc --version;; \
             create|start|state|exec|update|kill|delete) echo $word >> {};; esac; done\nexec runc \"$@\"\n",
            calls.display()
        );
        fs::write(lab.handler(), script).expect("script");
        fs::set_permissions(lab.handler(), fs::Permissions::from_mode(0o755)).expect("mode");
        lab.boot().await;
        let runtime = lab.runtime();
        let handlers = runtime.capabilities().handlers;
        let names: Vec<_> = handlers.iter().map(|h| &*h.name).collect();
        assert_eq!(names, ["", "other"], "the Node tells of both");

        let mut strange = lab.sandbox("strange");
        strange.runtime_handler = "nobody".into();
        let refused = runtime.run_pod_sandbox(&strange).await;
        let refused = refused.expect_err("nobody runs it").to_string();
        assert!(
            refused.contains("\"nobody\" is not configured"),
            "{refused}"
        );
        assert!(lab.pod(&strange).await.sandboxes.is_empty());

        let called = |word: &str| {
            let calls = fs::read_to_string(&calls).unwrap_or_default();
            calls.lines().any(|line| line == word)
        };
        // It says when it can be told to end.
        let idle = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done";
        let mut pod = Vec::new();
        for handler in ["", "other"] {
            let mut config = lab.sandbox(if handler.is_empty() { "plain" } else { "own" });
            config.runtime_handler = handler.into();
            let made = lab.runtime().run_pod_sandbox(&config).await.expect("made");
            assert_eq!(made.runtime_handler, handler);
            let id = lab.start(&made, &lab.container(&config, "c", idle)).await;
            pod.push((config, id));
            assert_eq!(called("create") && called("start"), !handler.is_empty());
        }
        let (own, id) = &pod[1];
        drop(runtime);
        // The next agent finds by the record whose it is.
        lab.runtime.replace(None);
        lab.boot().await;
        let words = ["/bin/echo".into(), "x".into()];
        let runtime = lab.runtime();
        let said = runtime.exec_sync(id, &words, None, 9).await.expect("exec");
        assert_eq!(said.stdout, b"x\n");
        let limits = LinuxResources {
            cpu_shares: Some(7),
            ..LinuxResources::default()
        };
        let updated = runtime.update_container_resources(id, &limits).await;
        updated.expect("updated");
        // One that has to go at once is signalled without its runtime, which takes memory that a node may lack.
        let sandbox = &lab.pod(own).await.sandboxes[0];
        let quick = lab.container(own, "quick", idle);
        let quick = lab.start(sandbox, &quick).await;
        for name in ["c", "quick"] {
            until("it is up", || lab.log(own, name).contains("up")).await;
        }
        let grace = Duration::from_secs(1);
        let stopped = runtime.stop_container(&quick, grace).await;
        stopped.expect("stopped");
        assert_eq!(lab.ended(own, &quick).await.exit_code, 0);
        assert!(!called("kill"));
        let grace = Duration::from_secs(20);
        runtime.stop_container(id, grace).await.expect("stopped");
        assert_eq!(lab.ended(own, id).await.exit_code, 0);
        runtime
            .remove_container(id, LogRetention::Remove)
            .await
            .expect("removed");
        // ACT-72: one whose pod starts over leaves its log.
        let removed = runtime.remove_container(&quick, LogRetention::Keep).await;
        removed.expect("removed");
        assert!(lab.log(own, "quick").contains("up"));
        for word in ["exec", "update", "kill", "delete"] {
            assert!(called(word), "{word}");
        }

        // Pods end all the same where their runtime is gone.
        let sandbox = &lab.pod(own).await.sandboxes[0];
        let config = lab.container(own, "again", idle);
        let id = lab.start(sandbox, &config).await;
        fs::remove_file(lab.handler()).expect("removed");
        drop(runtime);
        lab.runtime.replace(None);
        lab.boot().await;
        assert_eq!(lab.runtime().capabilities().handlers.len(), 1);
        let refused = lab.runtime().exec_sync(&id, &words, None, 9).await;
        assert!(refused.is_err());
        for (config, _) in &pod {
            let sandbox = &lab.pod(config).await.sandboxes[0];
            let removed = lab.runtime().remove_pod_sandbox(&sandbox.id).await;
            removed.expect("removed");
        }
    });
}

#[test]
fn what_a_crash_leaves_is_found() {
    // RTM-03 RTM-18
    lab("crash", async |lab| {
        let config = lab.sandbox("crash");
        let sandbox = lab
            .runtime()
            .run_pod_sandbox(&config)
            .await
            .expect("sandbox");
        let half = lab
            .runtime()
            .create_container(
                &sandbox.id,
                &lab.container(&config, "half", "exit 0"),
                Some(&config),
            )
            .await
            .expect("create");
        let lost = lab
            .start(&sandbox, &lab.container(&config, "lost", "exec sleep 1000"))
            .await;
        let started = lab
            .start(
                &sandbox,
                &lab.container(&config, "started", "exec sleep 1000"),
            )
            .await;
        lab.runtime.replace(None);
        // As if the agent had died: in the middle of a create, of a sandbox, of a start.
        let run = lab.dir.join("run");
        let edit = |path: PathBuf, from: &str, to: &str| {
            let text = fs::read_to_string(&path).expect("record");
            assert!(text.contains(from), "{text}");
            fs::write(path, text.replace(from, to)).expect("record");
        };
        edit(
            run.join("containers").join(&*half).join("record.json"),
            "\"made\":true",
            "\"made\":false",
        );
        let record = run.join("containers").join(&*started).join("record.json");
        let text = fs::read_to_string(&record).expect("record");
        let at = text.find("\"started_at\":\"").expect("started");
        let end = at + text[at..].find("Z\"").expect("time") + 2;
        fs::write(&record, text.replace(&text[at..end], "\"started_at\":null")).expect("record");
        let second = lab.sandbox("second");
        let making = run
            .join("sandboxes")
            .join("0123456789abcdef0123456789abcdef");
        fs::create_dir_all(&making).expect("dir");
        let text = fs::read_to_string(run.join("sandboxes").join(&*sandbox.id).join("record.json"))
            .expect("record");
        let text = text
            .replace(&*sandbox.id, "0123456789abcdef0123456789abcdef")
            .replace("uid-crash", &second.uid)
            .replace("\"Ready\"", "\"Making\"");
        fs::write(making.join("record.json"), text).expect("record");
        fs::create_dir_all(run.join("sandboxes/ffffffffffffffffffffffffffffffff")).expect("dir");
        fs::create_dir_all(
            lab.dir
                .join("root/containers/eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee/upper"),
        )
        .expect("dir");
        // A shim that is killed leaves no record.
        let state =
            fs::read_to_string(run.join("containers").join(&*lost).join("state")).expect("state");
        let state: serde_json::Value = serde_json::from_str(&state).expect("json");
        let pid = i32::try_from(state["shim_pid"].as_i64().expect("pid")).expect("pid");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL)
            .expect("kill");

        lab.boot().await;
        let pods = lab.runtime().list_pods().await.expect("list");
        let other = pods.iter().find(|p| p.uid == second.uid).expect("listed");
        assert_eq!(other.sandboxes[0].state, SandboxState::NotReady);
        lab.runtime()
            .remove_pod_sandbox(&other.sandboxes[0].id)
            .await
            .expect("remove");
        let status = lab.ended(&config, &lost).await;
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (137, "ContainerStatusUnknown")
        );
        let pod = lab.pod(&config).await;
        assert!(
            pod.newest_instance("half").is_none(),
            "nothing of it had run"
        );
        assert_eq!(
            pod.newest_instance("started").expect("started").state,
            ContainerState::Running
        );
        assert!(
            !run.join("sandboxes/ffffffffffffffffffffffffffffffff")
                .exists()
        );
        assert!(
            !lab.dir
                .join("root/containers/eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee")
                .exists()
        );
    });
}

/// A mount of an image.
fn image_mount(image: &str, path: &str, sub_path: &str) -> ContainerMount {
    ContainerMount {
        container_path: path.into(),
        read_only: true,
        image: Some(MountedImage {
            image: image.into(),
            user_image: "volume:1".into(),
        }),
        image_sub_path: sub_path.into(),
        ..ContainerMount::default()
    }
}

/// What [`FLAT`] and [`DEEP`] are unpacked to.
fn unpack_volume_images(lab: &Lab) {
    for dir in ["flat/dir/in", "top", "bottom"] {
        fs::create_dir_all(lab.dir.join(dir)).expect("dir");
    }
    let write = |name: &str, text: &str| fs::write(lab.dir.join(name), text).expect("file");
    write("flat/dir/in/file", "flat\n");
    write("top/both", "top\n");
    write("bottom/both", "bottom\n");
    write("bottom/low", "low\n");
    write("bottom/gone", "");
    let busybox = lab.dir.join("flat/busybox");
    fs::copy("/usr/bin/busybox", &busybox).expect("busybox");
    fs::set_permissions(&busybox, fs::Permissions::from_mode(0o4755)).expect("mode");
    for (target, link) in [
        ("dir/in", "flat/inside"),
        ("../../..", "flat/out"),
        ("/etc", "flat/absolute"),
    ] {
        std::os::unix::fs::symlink(target, lab.dir.join(link)).expect("link");
    }
    let whiteout = nix::sys::stat::SFlag::S_IFCHR;
    let mode = nix::sys::stat::Mode::empty();
    for name in ["top/gone", "flat/whiteout"] {
        nix::sys::stat::mknod(&lab.dir.join(name), whiteout, mode, 0).expect("whiteout");
    }
}

#[test]
fn images_as_volumes() {
    // IMG-21 VOL-18 VOL-26 GC-11 OAV-01 OAV-02
    lab("volumes", async |lab| {
        unpack_volume_images(lab);
        let config = lab.sandbox("volumes");
        let runtime = lab.runtime();
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let run = lab.dir.join("run/containers");
        let mounts = |id: &ContainerId| {
            let volumes = run.join(&**id).join("volumes");
            mount::mounts_below(&volumes).expect("mounts").len()
        };
        let script = "cat /flat/dir/in/file /sub/file /deep/both /deep/low; ls /deep /flat; /flat/busybox echo runs; \
                      echo x > /deep/new || echo read-only; echo x > /sub/file || echo read-only; \
                      while read -r _ at _ options _; do case $at in /sub|/deep) echo $at $options;; esac; done < /proc/mounts; \
                      exec sleep 1000";
        let mut reader = lab.container(&config, "reader", script);
        reader.mounts = vec![
            image_mount(FLAT, "/flat", ""),
            image_mount(FLAT, "/sub", "inside/."),
            image_mount(DEEP, "/deep", ""),
        ];
        let id = lab.start(&sandbox, &reader).await;
        until("it has read", || {
            let log = lab.log(&config, "reader");
            log.contains("/deep ro") && log.contains("/sub ro")
        })
        .await;
        let log = lab.log(&config, "reader");
        let said: Vec<&str> = log
            .lines()
            .filter_map(|l| l.split_once(" stdout F "))
            .map(|(_, text)| text)
            .collect();
        assert_eq!(
            said[..14],
            [
                "flat", "flat", "top", "low", "/deep:", "both", "low", "", "/flat:", "absolute",
                "busybox", "dir", "inside", "out"
            ],
            "{log}"
        );
        assert_eq!(said[14..17], ["runs", "read-only", "read-only"], "{log}");
        for line in &said[17..] {
            let options: Vec<&str> = line.split([' ', ',']).collect();
            for wanted in ["ro", "nosuid", "nodev"] {
                assert!(options.contains(&wanted), "{line}");
            }
            assert!(!options.contains(&"noexec"), "{line}");
        }
        assert_eq!(mounts(&id), 2, "each image once");
        let status = lab.instance(&config, &id).await;
        assert_eq!(status.volume_images, [DEEP, FLAT]);
        for image in [DEEP, FLAT] {
            assert!(runtime.remove_image(image).await.is_err(), "{image}");
        }

        // What leads out, is no directory or is not there: one clear refusal, and nothing of it is left.
        for (n, (image, sub_path, why)) in (1..).zip([
            (FLAT, "out", "subPath \"out\" leads out of the image"),
            (
                FLAT,
                "absolute",
                "subPath \"absolute\" leads out of the image",
            ),
            (
                FLAT,
                "dir/in/file",
                "subPath \"dir/in/file\" is not a directory",
            ),
            (FLAT, "missing", "subPath \"missing\" is not in the image"),
            (FLAT, "../x", "subPath \"../x\" leads out of the image"),
            (DEEP, "gone", "subPath \"gone\" is not in the image"),
            ("sha256:absent", "", "image sha256:absent not found"),
        ]) {
            let mut bad = lab.container(&config, "bad", "exit 0");
            bad.attempt = n;
            bad.mounts = vec![
                image_mount(DEEP, "/deep", ""),
                image_mount(image, "/v", sub_path),
            ];
            let refused = runtime
                .create_container(&sandbox.id, &bad, Some(&config))
                .await;
            let refused = refused.expect_err(why).to_string();
            assert!(
                refused.starts_with("ImageVolumeMountFailed: ") && refused.contains(why),
                "{refused}"
            );
            assert!(
                !refused.contains(&*lab.dir.display().to_string()),
                "{refused}"
            );
            assert_eq!(fs::read_dir(&run).expect("containers").count(), 1, "{why}");
        }
        let mut writes = lab.container(&config, "writes", "exit 0");
        writes.mounts = vec![ContainerMount {
            read_only: false,
            ..image_mount(FLAT, "/v", "")
        }];
        let refused = runtime
            .create_container(&sandbox.id, &writes, Some(&config))
            .await;
        assert!(
            matches!(refused, Err(RuntimeError::Invalid(_))),
            "{refused:?}"
        );

        // Another agent knows what is in use; one that died before its record was whole leaves no mount.
        let mut half = lab.container(&config, "half", "exit 0");
        half.mounts = vec![image_mount(FLAT, "/v", "")];
        let half = runtime
            .create_container(&sandbox.id, &half, Some(&config))
            .await;
        let half = half.expect("create");
        assert_eq!(mounts(&half), 1);
        drop(runtime);
        lab.runtime.replace(None);
        let record = run.join(&*half).join("record.json");
        let text = fs::read_to_string(&record).expect("record");
        fs::write(&record, text.replace("\"made\":true", "\"made\":false")).expect("record");
        lab.boot().await;
        assert!(!run.join(&*half).exists() && mounts(&half) == 0);
        let runtime = lab.runtime();
        assert!(runtime.remove_image(FLAT).await.is_err());
        assert_eq!(mounts(&id), 2);

        // What has ended needs no mount, and keeps its images until it is removed.
        runtime
            .stop_container(&id, Duration::ZERO)
            .await
            .expect("stop");
        lab.ended(&config, &id).await;
        assert_eq!(mounts(&id), 0);
        assert!(runtime.remove_image(DEEP).await.is_err());
        runtime
            .remove_container(&id, LogRetention::Remove)
            .await
            .expect("remove");
        assert!(!run.join(&*id).exists());
        for image in [DEEP, FLAT] {
            runtime.remove_image(image).await.expect("in use no more");
        }
        let kept = fs::read_to_string(lab.dir.join("flat/dir/in/file"));
        assert_eq!(kept.expect("the image is whole"), "flat\n");
    });
}

/// A runc that joins user namespaces and maps the owners of mounts, as its own `features` say.
fn find_capable_runc() -> Option<PathBuf> {
    let newer = std::env::var_os("PICOLET_NEWER_PROGRAMS").map(PathBuf::from);
    let path = std::env::var_os("PATH")?;
    let dirs = newer.into_iter().chain(std::env::split_paths(&path));
    let mut all = dirs.map(|dir| dir.join("runc"));
    all.find(|program| {
        let Ok(told) = Command::new(program).arg("features").output() else {
            return false;
        };
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap_or_default();
        told["linux"]["mountExtensions"]["idmap"]["enabled"] == true
    })
}

fn use_oci_runtime(lab: &Lab, script: &str) {
    let path = lab.dir.join("oci");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
}

/// A directory with a runc and a CRIU that can make checkpoints on this machine.
fn find_newer_programs() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("PICOLET_NEWER_PROGRAMS")?);
    let checked = Command::new(dir.join("criu")).arg("check").output();
    let works = checked.is_ok_and(|output| output.status.success());
    (works && dir.join("runc").is_file()).then_some(dir)
}

/// Writes a script that stands in for CRIU: it tells a version, and hangs.
fn install_hanging_criu(dir: &Path) {
    fs::create_dir_all(dir).expect("dir");
    let text =
        "#!/bin/sh\ncase $1 in --version) echo Version: 4.2.1; exit ;; esac\nsleep 1000\nexit 0\n";
    fs::write(dir.join("criu"), text).expect("script");
    fs::set_permissions(dir.join("criu"), fs::Permissions::from_mode(0o755)).expect("mode");
}

/// Names in an archive, and the content of each.
fn read_archive(archive: impl Read) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().expect("archive").map(|entry| {
        let mut entry = entry.expect("entry");
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("content");
        let name = entry.path().expect("name").display().to_string();
        (name, content)
    });
    entries.collect()
}

#[test]
fn a_running_container_is_checkpointed() {
    // CKPT-01 CKPT-02 CKPT-03
    let Some(newer) = find_newer_programs() else {
        skipped!("a_running_container_is_checkpointed: no criu and runc in PICOLET_NEWER_PROGRAMS");
        return;
    };
    lab("checkpoint", async |lab| {
        let minutes = Duration::from_mins(2);
        let usual = "/usr/sbin:/usr/bin:/sbin:/bin";
        use_oci_runtime(lab, &format!("exec {}/runc \"$@\"", newer.display()));
        let config = lab.sandbox("checkpoint");
        let dir = lab.dir.join("checkpoints");
        let location = dir.join("checkpoint.tar");
        let refused = async |id: &ContainerId, timeout: Duration, words: &str| {
            let runtime = lab.runtime();
            let made = runtime.checkpoint_container(id, &location, timeout).await;
            let error = made.expect_err(words).to_string();
            assert!(error.contains(words), "{words}: {error}");
        };
        lab.boot().await;
        let sandbox = lab.runtime().run_pod_sandbox(&config).await;
        let sandbox = sandbox.expect("sandbox");
        let script = "echo written > /written; rm /etc/group; echo ready; exec sleep 1000";
        let id = lab
            .start(&sandbox, &lab.container(&config, "main", script))
            .await;
        until("it has written", || {
            said(lab, &config, "main").contains(&"ready".to_owned())
        })
        .await;
        let words = "CRIU binary not found or too old (<31600)";
        refused(&id, minutes, words).await;

        // As an agent leaves it that was killed.
        let unfinished = lab.dir.join("root/checkpoints/.unfinished-1");
        fs::create_dir_all(unfinished.join("files")).expect("dir");
        let path = format!("{}:{usual}", newer.display());
        fs::write(lab.dir.join("path"), &path).expect("path");
        lab.boot().await;
        assert!(!unfinished.exists());
        fs::remove_dir(lab.dir.join("root/checkpoints")).expect("empty");
        let runtime = lab.runtime();
        let idle = lab.container(&config, "idle", script);
        let created = runtime.create_container(&sandbox.id, &idle, None).await;
        refused(&created.expect("create"), minutes, "is not running").await;
        let group = format!("{}/{id}", config.cgroup_parent);
        let cgroups = Lab::cgroups();
        cgroups.freeze_group(&group).await.expect("freeze");
        refused(&id, minutes, "is not running").await;
        cgroups.thaw_group(&group).expect("thaw");

        let pid = lab.instance(&config, &id).await.pid;
        let made = runtime.checkpoint_container(&id, &location, minutes).await;
        made.expect("checkpoint");
        let meta = fs::metadata(&location).expect("archive");
        assert_eq!(meta.mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(&dir).expect("dir").mode() & 0o7777, 0o700);
        let archive = fs::File::open(&location).expect("archive");
        let entries = read_archive(archive);
        for name in [
            "checkpoint/inventory.img",
            "spec.dump",
            "config.dump",
            "status.dump",
            "stats-dump",
            "dump.log",
            "container.log",
            "rootfs-diff.tar",
        ] {
            assert!(entries.contains_key(name), "{name}: {:?}", entries.keys());
        }
        let spec = lab
            .dir
            .join("run/containers")
            .join(&*id)
            .join("config.json");
        assert_eq!(entries["spec.dump"], fs::read(spec).expect("spec"));
        let told: serde_json::Value =
            serde_json::from_slice(&entries["config.dump"]).expect("JSON");
        assert_eq!(told["id"], &*id);
        assert_eq!(told["name"], "main");
        let log = String::from_utf8_lossy(&entries["container.log"]);
        assert!(log.contains("stdout F ready"), "{log}");
        let files = read_archive(&*entries["rootfs-diff.tar"]);
        assert_eq!(files["written"], b"written\n");
        assert!(files.contains_key("etc/.wh.group"), "{:?}", files.keys());

        let runs_on = async || {
            let now = lab.instance(&config, &id).await;
            assert_eq!((now.state, now.pid), (ContainerState::Running, pid));
            let command = ["echo", "alive"].map(str::to_owned);
            let answer = runtime.exec_sync(&id, &command, None, 64).await;
            assert_eq!(answer.expect("exec").stdout, b"alive\n");
            let names = fs::read_dir(&dir).expect("dir").flatten();
            let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
            assert_eq!(names, ["checkpoint.tar"]);
        };
        runs_on().await;
        let made = runtime.checkpoint_container(&id, &location, minutes).await;
        made.expect("second checkpoint");
        let second = fs::metadata(&location).expect("archive");
        assert_ne!(second.ino(), meta.ino());
        runs_on().await;

        let slow = lab.dir.join("slow");
        install_hanging_criu(&slow);
        let path = format!("{}:{usual}", slow.display());
        fs::write(lab.dir.join("path"), path).expect("path");
        drop(runtime);
        lab.boot().await;
        let runtime = lab.runtime();
        refused(&id, Duration::from_secs(1), "timed out after 1s").await;
        let runs_criu = || {
            let all = fs::read_dir("/proc").expect("proc").flatten();
            let mut lines = all.map(|entry| fs::read_to_string(entry.path().join("cmdline")));
            lines.any(|line| line.is_ok_and(|line| line.contains(&*slow.to_string_lossy())))
        };
        until("CRIU is killed", || !runs_criu()).await;
        let grace = Duration::ZERO;
        runtime.stop_container(&id, grace).await.expect("stop");
        refused(&id, minutes, "is not running").await;
        runtime
            .remove_pod_sandbox(&sandbox.id)
            .await
            .expect("remove");
    });
}

/// Lines that a container has written.
fn said(lab: &Lab, config: &SandboxConfig, name: &str) -> Vec<String> {
    let log = lab.log(config, name);
    let lines = log.lines().filter_map(|l| l.split_once(" stdout F "));
    lines.map(|(_, text)| text.to_owned()).collect()
}

/// Why this machine cannot do it whatever the runtime can: it needs Linux 6.3, and a file system that maps owners.
fn lacks_mapped_owners(told: &UserNamespaceSupport) -> Option<&str> {
    match told {
        UserNamespaceSupport::Lacks(why) if why.starts_with("owners cannot be mapped") => Some(why),
        UserNamespaceSupport::Lacks(_) | UserNamespaceSupport::Works => None,
    }
}

#[test]
fn users_of_their_own_need_a_runtime_that_can() {
    // UNS-20
    lab("no-users", async |lab| {
        for (features, missing) in [
            ("exit 1", true),
            (r#"echo '{"linux": {"namespaces": ["user"]}}'"#, true),
            (
                r#"echo '{"linux": {"mountExtensions": {"idmap": {"enabled": true}}}}'"#,
                true,
            ),
            (
                r#"echo '{"linux": {"namespaces": ["user"], "mountExtensions": {"idmap": {"enabled": true}}}}'"#,
                false,
            ),
        ] {
            let script = format!("case $1 in features) {features}; exit;; esac; exec runc \"$@\"");
            use_oci_runtime(lab, &script);
            lab.boot().await;
            let told = lab.runtime().capabilities().judge_user_namespaces("");
            if !missing {
                match lacks_mapped_owners(&told) {
                    Some(why) => {
                        skipped!("users_of_their_own_need_a_runtime_that_can: one that can: {why}");
                    }
                    None => assert_eq!(told, UserNamespaceSupport::Works),
                }
                continue;
            }
            assert_ne!(told, UserNamespaceSupport::Works, "{features}");
            let mut config = lab.sandbox("users");
            config.namespaces.users = Some(IdMap {
                host_id: 10 << 16,
                length: 1 << 16,
            });
            let refused = lab.runtime().run_pod_sandbox(&config).await;
            let refused = refused.expect_err(features).to_string();
            assert!(
                refused.contains("lacks linux.mountExtensions.idmap")
                    && refused.contains("install runc 1.2.1"),
                "{refused}"
            );
            assert!(lab.pod(&config).await.sandboxes.is_empty());
        }
        fs::remove_file(lab.dir.join("oci")).expect("script");
        lab.boot().await;
    });
}

#[test]
fn pods_with_users_of_their_own() {
    // UNS-20 UNS-22 UNS-23 UNS-24 UNS-26 UNS-27 UNS-28 UNS-31 CKPT-04
    let Some(runc) = find_capable_runc() else {
        skipped!("pods_with_users_of_their_own: no runc has mountExtensions.idmap");
        return;
    };
    lab("users", async |lab| {
        use_oci_runtime(lab, &format!("exec {} \"$@\"", runc.display()));
        lab.boot().await;
        let told = lab.runtime().capabilities().judge_user_namespaces("");
        if let Some(why) = lacks_mapped_owners(&told) {
            skipped!("pods_with_users_of_their_own: {why}");
            return;
        }
        assert_eq!(told, UserNamespaceSupport::Works);
        unpack_volume_images(lab);
        let volume = lab.dir.join("shared");
        fs::create_dir_all(&volume).expect("volume");
        // As for an fsGroup: group and set-group-ID bit are plain ids on the disk.
        std::os::unix::fs::chown(&volume, None, Some(7)).expect("group");
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o2775)).expect("mode");
        // As the volumes of Secrets are: these flags cannot be taken away from another user namespace.
        let memory = lab.dir.join("memory");
        fs::create_dir_all(&memory).expect("dir");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount::mount_tmpfs(&memory, Some(1 << 20), 0o755, flags).expect("tmpfs");
        fs::write(memory.join("secret"), "hush\n").expect("secret");
        let script = "cat /proc/self/uid_map /proc/self/gid_map; id -u; hostname; \
                      ls -ldn / /bin/busybox /etc/passwd /data /deep/low /etc/hostname; \
                      echo x > /new && echo x > /data/$(hostname) && echo x > /dev/shm/x && echo x > /memory/x \
                      && echo written; cat /secret/secret; echo x > /secret/x || echo read-only; ls -n /data; cat /proc/sys/net/ipv4/ip_unprivileged_port_start \
                      /proc/sys/kernel/msgmax; f=/sys/fs/cgroup/cgroup.procs; test -e $f || f=/sys/fs/cgroup/memory/cgroup.procs; echo 0 > $f || echo closed; ip addr show dev eth0 | cat; \
                      echo opened > /dev/stdout; echo opened > /dev/stderr; \
                      umask 077; echo mine > /private; set -- /others/*/upper/private; echo found $#; \
                      cat \"$@\" 2>/dev/null || echo denied; \
                      dd if=/dev/zero of=/dev/null bs=1 count=1 2>/dev/null && echo done; exec sleep 1000";
        let mut made = Vec::new();
        for (name, host_id, found) in [("one", 200 << 16, "found 1"), ("two", 201 << 16, "found 2")]
        {
            let mut config = lab.sandbox(name);
            config.namespaces.users = Some(IdMap {
                host_id,
                length: 1 << 16,
            });
            config.sysctls = [
                ("net.ipv4.ip_unprivileged_port_start", "77"),
                ("kernel.msgmax", "4242"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
            let runtime = lab.runtime();
            let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
            let mut main = lab.container(&config, "main", script);
            main.mounts = vec![
                ContainerMount {
                    host_path: volume.display().to_string(),
                    container_path: "/data".into(),
                    ..ContainerMount::default()
                },
                image_mount(DEEP, "/deep", ""),
                ContainerMount {
                    host_path: memory.display().to_string(),
                    container_path: "/secret".into(),
                    read_only: true,
                    ..ContainerMount::default()
                },
                ContainerMount {
                    host_path: memory.display().to_string(),
                    container_path: "/memory".into(),
                    ..ContainerMount::default()
                },
                ContainerMount {
                    host_path: lab.dir.join("logs").display().to_string(),
                    container_path: "/logs".into(),
                    read_only: true,
                    recursive_read_only: true,
                    ..ContainerMount::default()
                },
                ContainerMount {
                    host_path: lab.dir.join("root/containers").display().to_string(),
                    container_path: "/others".into(),
                    read_only: true,
                    ..ContainerMount::default()
                },
            ];
            let id = lab.start(&sandbox, &main).await;
            until("it has looked around", || {
                said(lab, &config, "main").iter().any(|l| l == "done")
            })
            .await;
            let lines = said(lab, &config, "main");
            let says = |text: &str| lines.iter().any(|line| line == text);
            for map in &lines[..2] {
                let words: Vec<_> = map.split_whitespace().collect();
                assert_eq!(words, ["0", &*host_id.to_string(), "65536"], "{lines:#?}");
            }
            assert_eq!(lines[2..4], ["0", name], "{lines:#?}");
            let owner = |path: &str| {
                let line = lines
                    .iter()
                    .find(|line| line.ends_with(&format!(" {path}")));
                let words = line.map(|line| line.split_whitespace().skip(2).take(2));
                words.map(|words| words.collect::<Vec<_>>().join(":"))
            };
            for path in [
                "/",
                "/bin/busybox",
                "/etc/passwd",
                "/deep/low",
                "/etc/hostname",
            ] {
                assert_eq!(owner(path).as_deref(), Some("0:0"), "{path}: {lines:#?}");
            }
            // Those of the other pod look the same.
            for path in ["/data", "one", name] {
                assert_eq!(owner(path).as_deref(), Some("0:7"), "{path}: {lines:#?}");
            }
            for text in [
                "written",
                "hush",
                "read-only",
                "77",
                "4242",
                "closed",
                "opened",
                found,
                "denied",
            ] {
                assert!(says(text), "{text}: {lines:#?}");
            }
            // What root of a pod keeps for itself nobody reads by a path of the machine.
            assert!(!says("mine"), "{lines:#?}");
            assert!(
                lines.iter().any(|line| line.contains("inet 10.")),
                "{lines:#?}"
            );
            let log = lab.log(&config, "main");
            assert!(log.contains(" stderr F opened\n"), "{log}");
            // On the machine.
            let owner = |path: PathBuf| {
                let metadata = fs::metadata(&path).expect("file");
                (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
            };
            let (run, upper) = (
                lab.dir.join("run/containers"),
                lab.dir.join("root/containers").join(&*id).join("upper"),
            );
            assert_eq!(owner(upper.join("new")), (host_id, host_id, 0o644));
            assert_eq!(owner(volume.join(name)).0, 0);
            assert_eq!(owner(lab.dir.join("layer/etc/passwd")).0, 0);
            assert_eq!(owner(run.clone()), (0, 0, 0o711));
            assert_eq!(owner(run.join(&*id)), (0, host_id, 0o710));
            let lower = mount::mounts_below(&run.join(&*id).join("lower"));
            assert_eq!(lower.expect("mounts"), Vec::<PathBuf>::new());
            let record = lab.dir.join("run/sandboxes").join(&*sandbox.id);
            let record = fs::read_to_string(record.join("record.json")).expect("record");
            assert!(
                record.contains("\"v\":2"),
                "older agents leave it alone: {record}"
            );
            let location = lab.dir.join("checkpoint.tar");
            let refused = runtime.checkpoint_container(&id, &location, PATIENCE).await;
            let refused = refused.expect_err("a user namespace").to_string();
            assert!(refused.contains("user namespace"), "{refused}");
            made.push((config, sandbox, main, id));
        }
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (config, sandbox, main, id) = made.remove(0);
        let bare = |name: &str| {
            let mut bare = lab.container(&config, name, "exit 0");
            bare.security.namespaces.users = None;
            bare
        };
        let create = async |container: ContainerConfig| {
            let runtime = lab.runtime();
            let made = runtime
                .create_container(&sandbox.id, &container, None)
                .await;
            made.map_err(|e| e.to_string())
        };
        let refused = create(bare("bare")).await.expect_err("never without a map");
        assert!(refused.contains("made with other user ids"), "{refused}");

        // The next agent goes on with it.
        lab.boot().await;
        let pod = lab.pod(&config).await;
        assert_eq!(pod.sandboxes[0].state, SandboxState::Ready);
        assert_eq!(pod.sandboxes[0].namespaces, config.namespaces);
        let told = lab
            .runtime()
            .exec_sync(&id, &words("/bin/id -u"), None, 64)
            .await;
        assert_eq!(told.expect("exec").stdout, b"0\n");
        // Also as another user than root.
        let mut other = lab.container(&config, "other", "echo opened > /dev/stdout; sleep 1000");
        other.security.run_as_user = Some(7);
        let other = lab.start(&sandbox, &other).await;
        until("it has opened its output", || {
            said(lab, &config, "other") == ["opened"]
        })
        .await;
        let script = "echo out > /dev/stdout; echo err > /dev/stderr".to_owned();
        let command = ["/bin/sh".to_owned(), "-c".to_owned(), script];
        for id in [&id, &other] {
            let told = lab.runtime().exec_sync(id, &command, None, 64).await;
            let told = told.expect("exec");
            assert_eq!(
                (&*told.stdout, &*told.stderr),
                (&b"out\n"[..], &b"err\n"[..])
            );
            let script = "cat /dev/stdin > /dev/stdout".to_owned();
            let options = ExecOptions {
                command: vec!["/bin/sh".into(), "-c".into(), script],
                stdin: true,
                ..ExecOptions::default()
            };
            let runtime = lab.runtime();
            let mut session = local(runtime.exec(id, &options)).await.expect("session");
            say(&mut session, b"through").await;
            session.streams.end_input();
            let (text, end) = finish(session).await;
            assert_eq!((&*text, end), ("through", Ok(0)));
        }
        let mut later = lab.container(&config, "later", "cat /proc/self/uid_map");
        later.mounts.clone_from(&main.mounts);
        let later = lab.start(&sandbox, &later).await;
        assert_eq!(lab.ended(&config, &later).await.exit_code, 0);
        assert!(said(lab, &config, "later")[0].contains("13107200"));

        // One whose containers share their processes.
        let mut shared = lab.sandbox("shared");
        shared.namespaces.users = Some(IdMap {
            host_id: 202 << 16,
            length: 1 << 16,
        });
        shared.namespaces.pid = NamespaceMode::Pod;
        let runtime = lab.runtime();
        let made_shared = runtime.run_pod_sandbox(&shared).await.expect("sandbox");
        let script = "cat /proc/self/uid_map; test $$ -gt 1 && ls -d /proc/1 && echo done";
        let c = lab.container(&shared, "c", script);
        let c = lab.start(&made_shared, &c).await;
        assert_eq!(lab.ended(&shared, &c).await.exit_code, 0);
        let lines = said(lab, &shared, "c");
        assert!(lines[0].contains("13238272"), "{lines:?}");
        assert_eq!(lines[1..], ["/proc/1", "done"]);

        // A runtime that cannot do it comes in its place.
        use_oci_runtime(lab, "case $1 in features) exit 1;; esac; exec runc \"$@\"");
        lab.boot().await;
        let next = lab.container(&config, "next", "exit 0");
        let refused = create(next).await.expect_err("it would drop the maps");
        assert!(
            refused.contains("lacks linux.mountExtensions.idmap"),
            "{refused}"
        );
        use_oci_runtime(lab, &format!("exec {} \"$@\"", runc.display()));
        lab.boot().await;
        mount::unmount(&memory).expect("unmount");
    });
}

#[test]
fn another_boot_is_noticed() {
    // RTM-18
    lab("boot", async |lab| {
        let config = lab.sandbox("boot");
        let sandbox = lab
            .runtime()
            .run_pod_sandbox(&config)
            .await
            .expect("sandbox");
        let id = lab
            .start(&sandbox, &lab.container(&config, "main", "exec sleep 1000"))
            .await;
        lab.runtime()
            .stop_container(&id, Duration::ZERO)
            .await
            .expect("stop");
        lab.runtime.replace(None);
        let record = lab
            .dir
            .join("run/sandboxes")
            .join(&*sandbox.id)
            .join("record.json");
        let text = fs::read_to_string(&record).expect("record");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("boot id");
        fs::write(&record, text.replace(boot.trim(), "another")).expect("record");
        lab.boot().await;
        let pod = lab.pod(&config).await;
        assert_eq!(pod.sandboxes[0].state, SandboxState::NotReady);
        assert!(pod.ips.is_empty());
        let refused = lab
            .runtime()
            .create_container(
                &sandbox.id,
                &lab.container(&config, "x", "true"),
                Some(&config),
            )
            .await;
        assert!(refused.is_err(), "nothing is started in it");
    });
}

#[test]
fn host_network_needs_no_plugin() {
    // RTM-12
    lab("host", async |lab| {
        fs::write(lab.dir.join("conf/1.conf"), "not even JSON").expect("broken network");
        let mut config = lab.sandbox("host");
        config.namespaces = NamespaceOptions {
            network: NamespaceMode::Node,
            ipc: NamespaceMode::Node,
            pid: NamespaceMode::Node,
            users: None,
        };
        config.hostname = String::new();
        let sandbox = lab
            .runtime()
            .run_pod_sandbox(&config)
            .await
            .expect("sandbox");
        assert!(sandbox.ips.is_empty());
        let id = lab
            .start(
                &sandbox,
                &lab.container(&config, "main", "hostname; ls -l /proc/self/ns/net"),
            )
            .await;
        assert_eq!(lab.ended(&config, &id).await.exit_code, 0);
        let host = fs::read_link("/proc/self/ns/net").expect("link");
        let log = lab.log(&config, "main");
        assert!(log.contains(&*host.to_string_lossy()), "{log}");
        let plain = lab.runtime().run_pod_sandbox(&lab.sandbox("plain")).await;
        assert!(
            plain
                .expect_err("no network")
                .to_string()
                .contains("1.conf")
        );
        assert!(
            lab.pod(&lab.sandbox("plain")).await.sandboxes.is_empty(),
            "nothing is left of it"
        );
        fs::remove_file(lab.dir.join("conf/1.conf")).expect("repair");
    });
}

#[test]
fn a_relist_at_rest_is_cheap() {
    lab("relist", async |lab| {
        let config = lab.sandbox("relist");
        let sandbox = lab
            .runtime()
            .run_pod_sandbox(&config)
            .await
            .expect("sandbox");
        for n in 0..4 {
            lab.start(
                &sandbox,
                &lab.container(&config, &format!("c{n}"), "exec sleep 1000"),
            )
            .await;
        }
        let runtime = lab.runtime();
        let fds = || fs::read_dir("/proc/self/fd").expect("fds").count();
        let before = fds();
        let start = clock::mono_now();
        const TIMES: u64 = 1000;
        for _ in 0..TIMES {
            runtime.list_pods().await.expect("list");
        }
        let spent = clock::mono_now().since_ms(start);
        eprintln!("{TIMES} relists of 4 containers: {spent} ms");
        // Two orders of magnitude above what is measured: a file read per container would go over it.
        assert!(spent < 1000, "{spent} ms");
        assert_eq!(fds(), before);
    });
}

/// One pod of one container, start to gone, by this backend and by the same programs called bare. Not a test of right and
/// wrong: `cargo test --release --test runc -- --ignored --nocapture cost`.
#[test]
#[ignore = "measures; needs a quiet machine and an optimised build"]
fn cost_of_a_pod() {
    const TIMES: u32 = 20;
    lab("cost", async |lab| {
        let account = format!("/sys/fs/cgroup/cpuacct{}", lab.kubepods());
        if fs::create_dir_all(&account).is_err() {
            skipped!("cost: no cpuacct hierarchy to count with");
            return;
        }
        // Shims and containers get groups below this one: all that happens is counted in it.
        fs::write(format!("{account}/cgroup.procs"), "0").expect("join");
        let cpu_ms = || {
            let text = fs::read_to_string(format!("{account}/cpuacct.usage")).expect("usage");
            text.trim().parse::<u64>().expect("number") / 1_000_000
        };
        let runtime = lab.runtime();
        let sample = lab.sandbox("sample");
        let sandbox = runtime.run_pod_sandbox(&sample).await.expect("sandbox");
        let id = lab
            .start(&sandbox, &lab.container(&sample, "main", "exec sleep 1000"))
            .await;
        let (start, cpu) = (clock::mono_now(), cpu_ms());
        let mut started_ms = 0;
        for n in 0..TIMES {
            let config = lab.sandbox(&format!("cost{n}"));
            let began = clock::mono_now();
            let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
            lab.start(&sandbox, &lab.container(&config, "main", "exec sleep 1000"))
                .await;
            started_ms += clock::mono_now().since_ms(began);
            runtime
                .remove_pod_sandbox(&sandbox.id)
                .await
                .expect("remove");
        }
        let own = (clock::mono_now().since_ms(start), cpu_ms() - cpu);
        let bundle = lab.dir.join("run/containers").join(&*id);
        let config = fs::read_to_string(bundle.join("config.json")).expect("config.json");
        let pin = |kind: &str| {
            format!(
                "{}/run/sandboxes/{}/ns/{kind}",
                lab.dir.display(),
                sandbox.id
            )
        };
        let config = config
            .replace(&format!(",\"path\":\"{}\"", pin("ipc")), "")
            .replace(&format!(",\"path\":\"{}\"", pin("uts")), "")
            .replace(&pin("net"), "/run/netns/NAME")
            .replace(&bundle.join("rootfs").display().to_string(), "DIR/rootfs")
            .replace(&*id, "NAME");
        fs::write(lab.dir.join("template.json"), config).expect("template");
        let script = r#"
set -e
cd $1; bridge=$2; subnet=$3; times=$4
export CNI_PATH=/usr/lib/cni CNI_IFNAME=eth0
chain() { # verb
  printf '{"cniVersion":"0.4.0","name":"bare-%s","type":"bridge","bridge":"%s","isGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":{"type":"host-local","dataDir":"%s/leases","ranges":[[{"subnet":"%s"}]],"routes":[{"dst":"0.0.0.0/0"}]}%s}' $bridge $bridge $PWD $subnet "$2" | CNI_COMMAND=$1 /usr/lib/cni/bridge
}
map() {
  printf '{"cniVersion":"0.4.0","name":"bare-%s","type":"portmap","snat":true,"prevResult":%s}' $bridge "$2" | CNI_COMMAND=$1 /usr/lib/cni/portmap
}
for n in $(seq $times); do
  name=bare-$bridge-$n; dir=$1/bare/$n
  mkdir -p $dir/rootfs $dir/upper $dir/work
  ip netns add $name; ip -n $name link set lo up
  export CNI_CONTAINERID=$name CNI_NETNS=/run/netns/$name
  result=$(chain ADD); result=$(map ADD "$result")
  mount -t overlay overlay -o lowerdir=$1/layer,upperdir=$dir/upper,workdir=$dir/work,volatile $dir/rootfs
  sed "s#NAME#$name#g; s#DIR#$dir#g" template.json > $dir/config.json
  runc create --bundle $dir --pid-file $dir/pid $name </dev/null >$dir/log 2>&1
  runc start $name
  date +%s%N >> $1/bare/started
  runc kill $name KILL
  # Ended is enough: who reaps it is another's affair.
  while [ -e /proc/$(cat $dir/pid)/root/. ]; do :; done
  runc delete --force $name
  map DEL "$result"; chain DEL ",\"prevResult\":$result"
  umount $dir/rootfs; ip netns del $name; rm -r $dir
done
ip link del $bridge
"#;
        let (start, cpu) = (clock::mono_now(), cpu_ms());
        let bridge = format!("{}b", lab.bridge());
        let bare = Command::new("/bin/bash")
            .args(["-c", script, "bare"])
            .arg(&lab.dir)
            .args([&bridge, "10.199.77.0/24", &TIMES.to_string()])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .status()
            .expect("bash");
        assert!(bare.success());
        let bare = (clock::mono_now().since_ms(start), cpu_ms() - cpu);
        let each = |total: u64| total / u64::from(TIMES);
        eprintln!(
            "a pod, start to gone: wall {} ms, cpu {} ms (started after {} ms); bare: wall {} ms, cpu {} ms",
            each(own.0),
            each(own.1),
            each(started_ms),
            each(bare.0),
            each(bare.1)
        );
        fs::write("/sys/fs/cgroup/cpuacct/cgroup.procs", "0").expect("leave");
    });
}
