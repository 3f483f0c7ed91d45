//! `picolet join`: makes this machine a node of a cluster. Everything is asked and checked first, then written beside its
//! place, then renamed: whoever is told of an error finds the machine as it was.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{CliError, args, check, commands::Command, print, proxies};
use crate::{
    config::{
        self, Config, DEFAULT_CONFIG_FILE, Host, KUBELET_VERSION,
        flags::{self, FlagError, Flags},
        join::{self as node, Before, Files},
    },
    error::chain,
    kube::{
        Kubeconfig,
        join::{JoinError, is_taken, k3s, kubeadm, version},
        kubeconfig::{Material, Trust},
        store::Store,
    },
    net::{ProxyVariables, Url},
    sys::{clock, file},
};

/// How the name of a file ends before it counts.
const STAGED: &str = ".joining";
/// Port of an apiserver.
const API_PORT: &str = ":6443";

/// The command's own flags.
#[derive(Default)]
struct Asked {
    token: String,
    hashes: Vec<String>,
    any_ca: bool,
    k3s: Option<String>,
    password_file: PathBuf,
    force: bool,
    no_start: bool,
}

/// What there is to do with, and where.
struct Machine {
    flags: Flags,
    host: Host,
    /// What the agent would do by now.
    config: Config,
    /// The configuration file.
    file: PathBuf,
    before: Before,
    proxies: ProxyVariables,
}

/// What a cluster has said, ready to be written.
struct Joined {
    document: Value,
    own: Map<String, Value>,
    files: Files,
    /// Path, content and mode of the files of the cluster.
    written: Vec<(PathBuf, Vec<u8>, u32)>,
    /// Certificates that the cluster has made already: chain and key of the client, then of the server.
    pairs: Vec<(String, String)>,
    server: String,
    /// What the operator should know.
    notes: Vec<String>,
    next: &'static str,
}

pub(super) fn run(command: &'static Command, words: Vec<OsString>) -> Result<(), CliError> {
    let (own, words) = args::split(command, words)?;
    let asked = flags_of(own)?;
    let (flags, server) = typed(words)?;
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::new("joining needs root: sudo picolet join …"));
    }
    let machine = Machine::look(flags)?;
    machine.may_join(&asked)?;
    let joined = match (&asked.k3s, &server) {
        (Some(_), Some(word)) => {
            return Err(CliError::new(format!(
                "unexpected argument {word:?} beside --k3s"
            )));
        }
        (Some(url), None) => beside_k3s(&asked, &machine, url),
        (None, Some(server)) => beside_kubeadm(&asked, &machine, server),
        (None, None) => {
            return Err(CliError::new(
                "where to? picolet join --token … --discovery-token-ca-cert-hash sha256:… HOST:6443, or --k3s https://HOST:6443",
            ));
        }
    };
    let joined = joined.map_err(|e| CliError::new(chain(&e)))?;
    for note in &joined.notes {
        let _ = writeln!(io::stderr(), "warning: {note}");
    }
    machine.write(&joined)?;
    print(&format!(
        "This machine is node {:?} of {}.\n",
        machine.config.node_name, joined.server
    ))?;
    if !asked.no_start {
        start();
    }
    print(joined.next)
}

fn flags_of(own: Vec<(&'static str, String)>) -> Result<Asked, CliError> {
    let mut asked = Asked {
        password_file: config::K3S_PASSWORD_FILE.into(),
        ..Asked::default()
    };
    for (name, value) in own {
        let on = || match value.as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            other => Err(CliError::new(format!("invalid boolean value {other:?}"))),
        };
        match name {
            "token" => asked.token = value,
            "discovery-token-ca-cert-hash" => asked.hashes.push(value),
            "discovery-token-unsafe-skip-ca-verification" => asked.any_ca = on()?,
            "k3s" => asked.k3s = Some(value),
            "node-password-file" => asked.password_file = value.into(),
            "force" => asked.force = on()?,
            "no-start" => asked.no_start = on()?,
            _ => unreachable!("the table of commands has no such flag"),
        }
    }
    if asked.token.is_empty() {
        return Err(CliError::new("--token is missing"));
    }
    Ok(asked)
}

/// The agent's flags, and the one word that belongs to none of them.
fn typed(mut words: Vec<OsString>) -> Result<(Flags, Option<String>), CliError> {
    let cwd = std::env::current_dir()
        .map_err(|e| CliError::new(format!("cannot read the working directory: {e}")))?;
    let mut server = None;
    // Bounded: the second time there is a server.
    loop {
        match flags::parse(words.clone(), &cwd) {
            Ok(flags) => return Ok((flags, server)),
            Err(FlagError::Stray(word)) if server.is_none() => {
                // The last one: before it, it may be a flag's value.
                if let Some(at) = words.iter().rposition(|one| one.to_string_lossy() == *word) {
                    words.remove(at);
                }
                server = Some(word);
            }
            Err(e) => return Err(CliError::new(e.to_string())),
        }
    }
}

impl Machine {
    fn look(flags: Flags) -> Result<Self, CliError> {
        let wrong = |e: config::ConfigError| CliError::new(chain(&e));
        let hostname = nix::unistd::gethostname()
            .map_err(|e| CliError::new(format!("cannot read the host name: {e}")))?;
        let host = Host {
            hostname: hostname.to_string_lossy().into_owned(),
        };
        let file = flags.config.clone();
        let file = file.unwrap_or_else(|| DEFAULT_CONFIG_FILE.into());
        let before = node::before(&file).map_err(wrong)?;
        // A file that is not there yet may be named.
        let looked = Flags {
            config: flags.config.clone().filter(|_| before != Before::Nothing),
            ..flags.clone()
        };
        let config = config::load(looked, &host).map_err(wrong)?.config;
        Ok(Self {
            flags,
            host,
            config,
            file,
            before,
            proxies: proxies(),
        })
    }

    fn may_join(&self, asked: &Asked) -> Result<(), CliError> {
        if let Before::Member(kubeconfig) = &self.before
            && !asked.force
        {
            return Err(CliError::new(format!(
                "this machine is a node already: {} names {kubeconfig}. Nothing was changed; --force joins anew",
                self.file.display()
            )));
        }
        if matches!(self.before, Before::Own(_))
            && self.flags.config.is_some()
            && self.flags.config_dir.is_none()
        {
            return Err(CliError::new(format!(
                "{} is there, and has to make room: name a directory with --config-dir, where it goes on counting as a drop-in",
                self.file.display()
            )));
        }
        Ok(())
    }

    /// A kubeconfig that is there belongs to somebody, unless a join left it whose files had begun to count when the power
    /// failed: the configuration, which is the last one, waits beside its place then.
    fn is_free(&self, kubeconfig: &Path, asked: &Asked) -> Result<(), Refusal> {
        if asked.force || !kubeconfig.exists() || staged(&self.file).exists() {
            return Ok(());
        }
        Err(Refusal::Taken(kubeconfig.into()))
    }

    /// The directory of drop-ins that the agent will read.
    fn drop_ins(&self) -> Option<PathBuf> {
        let usual = || {
            self.flags
                .config
                .is_none()
                .then(|| node::drop_in_dir(&self.file))
        };
        self.flags.config_dir.clone().or_else(usual)
    }

    /// The version to tell the cluster: a node must not be newer than its apiserver (KADM-13).
    fn told_version(&self, apiserver: &str) -> Option<String> {
        let minor = |version: &str| -> Option<(u32, u32)> {
            let (major, rest) = version.strip_prefix('v')?.split_once('.')?;
            let minor = rest.split('.').next()?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let own = &self.config.node.kubelet_version;
        let is_newer = minor(own) > minor(apiserver) && own == KUBELET_VERSION;
        (is_newer && minor(apiserver).is_some()).then(|| apiserver.to_owned())
    }

    /// Writes all of it, or nothing.
    fn write(&self, joined: &Joined) -> Result<(), CliError> {
        if staged(&self.file).exists() && !matches!(self.before, Before::Member(_)) {
            // Left by a join that was cut off: no configuration names it. Should this one fail, the next finds nothing in its way.
            remove(&joined.files.kubeconfig)?;
        }
        let mut staged = Staged::default();
        // It may hold what is not for everybody.
        let mode = fs::metadata(&self.file).map_or(0o644, |file| file.mode() & 0o777);
        let failed = |e: &dyn core::error::Error| CliError::new(chain(e));
        let typed = self.flags.overlay.clone();
        let text = node::text(
            joined.document.clone(),
            &joined.files,
            joined.own.clone(),
            typed,
        );
        let text = text.map_err(|e| failed(&e))?;
        for (path, content, mode) in &joined.written {
            staged.add(path, content, *mode)?;
        }
        let drop_ins = self.drop_ins();
        if let (Before::Own(bytes), Some(dir)) = (&self.before, &drop_ins) {
            // It says what the file says that is still there: it may count at once.
            staged.add_now(&dir.join(node::OWN_DROP_IN), bytes, mode)?;
        }
        let temporary = staged.add(&self.file, text.as_bytes(), mode)?;
        node::preview(&temporary, drop_ins.as_deref(), &self.host).map_err(|e| {
            let from = temporary.display().to_string();
            let to = "what the cluster says";
            CliError::new(chain(&e).replace(&from, to))
        })?;
        // An identity of another cluster must not go into this one (KADM-24).
        let stores = [Store::client, Store::server].map(|of| of(&self.config.cluster.cert_dir));
        for (store, pair) in stores.iter().zip(&joined.pairs) {
            store.recover().map_err(|e| failed(&e))?;
            store
                .store(&pair.0, &pair.1, clock::wall())
                .map_err(|e| failed(&e))?;
        }
        if joined.pairs.is_empty() {
            remove(&joined.files.kubeconfig)?;
            remove(&stores[0].current_path())?;
        }
        staged.commit()
    }
}

/// Why this machine stays what it is.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error("{0:?} is no address of a server: {1}")]
    Server(String, crate::net::UrlError),
    #[error("{0:?} must begin with https://")]
    NoTls(String),
    #[error(
        "--discovery-token-ca-cert-hash is missing. On the control plane: kubeadm token create --print-join-command"
    )]
    NoPin,
    #[error("{} is there: another kubelet of this machine is or was a node. Nothing was changed; --force takes its place", _0.display())]
    Taken(PathBuf),
    #[error(
        "the cluster has a node {0:?} already, and it is ready: give this one another name with --hostname-override, or --force"
    )]
    Name(String),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("what the cluster wants of its kubelets is no document: {0}")]
    Document(#[from] config::decode::DecodeError),
    #[error(transparent)]
    Kubeconfig(#[from] crate::kube::kubeconfig::TextError),
}

fn url(text: &str, shown: &str) -> Result<Url, Refusal> {
    let url = Url::parse(text).map_err(|e| Refusal::Server(shown.into(), e))?;
    if !url.https {
        return Err(Refusal::NoTls(shown.into()));
    }
    Ok(url)
}

fn beside_kubeadm(asked: &Asked, machine: &Machine, server: &str) -> Result<Joined, Refusal> {
    let mut files = Files {
        kubeconfig: "/etc/kubernetes/kubelet.conf".into(),
        bootstrap: Some("/etc/kubernetes/bootstrap-kubelet.conf".into()),
        client_ca: "/etc/kubernetes/pki/ca.crt".into(),
    };
    files.typed(&machine.flags.overlay);
    machine.is_free(&files.kubeconfig, asked)?;
    let token = kubeadm::Token::parse(&asked.token)?;
    let hashes = asked.hashes.iter().map(String::as_str);
    let pins = match (asked.hashes.is_empty(), asked.any_ca) {
        (false, _) => Some(kubeadm::Pins::parse(hashes)?),
        (true, true) => None,
        (true, false) => return Err(Refusal::NoPin),
    };
    let host = server.strip_prefix("https://").unwrap_or(server);
    let (_, port) = crate::net::url::split_port(host);
    let port = port.map_or(API_PORT, |_| "");
    let url = url(&format!("https://{host}{port}"), server)?;
    let proxies = &machine.proxies;
    let found = kubeadm::discover(&url, &token, pins.as_ref(), proxies)?;
    let node = &machine.config.node_name;
    if !asked.force && is_taken(found.config.clone(), node, proxies)? {
        return Err(Refusal::Name(node.clone()));
    }
    let apiserver = version(found.config.clone(), proxies)?;
    let text = kubeadm::kubelet_config(&found, &apiserver, proxies)?;
    let mut own = Map::new();
    if let Some(version) = machine.told_version(&apiserver) {
        own.insert("kubeletVersion".into(), version.into());
    }
    let bootstrap = files.bootstrap.clone().unwrap_or_default();
    Ok(Joined {
        document: node::of_kubeadm(&text)?,
        own,
        written: vec![
            (bootstrap, found.text.into_bytes(), 0o600),
            (files.client_ca.clone(), found.ca, 0o644),
        ],
        files,
        pairs: Vec::new(),
        server: shown(&found.config),
        notes: Vec::new(),
        next: "The agent asks for its certificate when it starts. Then 'kubectl get nodes' shows the node. If it does not, 'picolet check' says why.\n",
    })
}

fn beside_k3s(asked: &Asked, machine: &Machine, server: &str) -> Result<Joined, Refusal> {
    let cert_dir = &machine.config.cluster.cert_dir;
    let client = Store::client(cert_dir).current_path();
    let mut files = Files {
        kubeconfig: "/etc/picolet/kubeconfig".into(),
        bootstrap: None,
        client_ca: "/etc/picolet/client-ca.crt".into(),
    };
    files.typed(&machine.flags.overlay);
    machine.is_free(&files.kubeconfig, asked)?;
    let url = url(server, server)?;
    let token = k3s::Token::parse(&asked.token)?;
    let mut notes = Vec::new();
    if !token.names_ca() {
        notes.push("the token does not say which CA the cluster has (K10…::): whoever answers now is trusted".into());
    }
    let proxies = &machine.proxies;
    let (supervisor, ca) = k3s::find(&url, token, proxies)?;
    let cluster = supervisor.cluster()?;
    let node = k3s::Node {
        name: machine.config.node_name.clone(),
        password: password(&asked.password_file)?,
        ips: machine.config.node_ips.clone(),
    };
    let first = supervisor.certify(&node, k3s::Purpose::Client)?;
    let second = supervisor.certify(&node, k3s::Purpose::Serving)?;
    let client_ca = supervisor.client_ca()?;
    let api = cluster.api(&url);
    let config = k3s::kubeconfig(&api, Trust::Ca(Material::Inline(ca)));
    // The certificate is tried before it counts.
    let mut member = config.clone();
    let inline = |text: &String| Material::Inline(text.clone().into_bytes());
    member.user.certificate = Some((inline(&first.0), inline(&first.1)));
    let apiserver = version(member, proxies)?;
    let mut own = Map::new();
    own.insert(
        "k3sServer".into(),
        url.to_string().trim_end_matches('/').into(),
    );
    if asked.password_file != Path::new(config::K3S_PASSWORD_FILE) {
        own.insert("k3sPasswordFile".into(), json!(asked.password_file));
    }
    if let Some(version) = machine.told_version(&apiserver) {
        own.insert("kubeletVersion".into(), version.into());
    }
    let others = supervisor.apiservers(&api)?;
    if !others.is_empty() {
        own.insert("apiServers".into(), json!(others));
    }
    if cluster.wants_tunnel() {
        notes.push(format!(
            "kubectl logs and exec will not reach this node: the servers reach nodes through tunnels (egress-selector-mode: {}). \
             Run all servers with --egress-selector-mode=disabled",
            cluster.egress_selector_mode
        ));
    }
    Ok(Joined {
        document: node::of_k3s(&cluster.dns(), &cluster.cluster_domain),
        own,
        written: vec![
            (
                files.kubeconfig.clone(),
                config.with_certificate(&client)?.into_bytes(),
                0o600,
            ),
            (files.client_ca.clone(), client_ca, 0o644),
        ],
        files,
        pairs: vec![first, second],
        server: shown(&config),
        notes,
        next: "'kubectl get nodes' shows the node when the agent runs. 'picolet check' says what the cluster does not bring to this node.\n",
    })
}

fn shown(config: &Kubeconfig) -> String {
    let text = config.servers.first().map(Url::shown).unwrap_or_default();
    text.trim_end_matches('/').to_owned()
}

/// The password that the cluster knows the node by. A new one is on disk before anybody hears it (K3SJ-04).
fn password(path: &Path) -> Result<String, Refusal> {
    let failed = |source| Refusal::File {
        path: path.into(),
        source,
    };
    if let Some(known) = k3s::password(path).map_err(failed)? {
        return Ok(known);
    }
    let password = k3s::new_password()?;
    let text = format!("{password}\n");
    made_dir(path)
        .and_then(|()| file::write_atomic(path, text.as_bytes(), 0o600, true))
        .map_err(failed)?;
    Ok(password)
}

/// Where a file waits until it counts.
fn staged(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(STAGED);
    name.into()
}

fn made_dir(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn remove(path: &Path) -> Result<(), CliError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(unwritten(path, &e)),
        _ => Ok(()),
    }
}

fn unwritten(path: &Path, e: &io::Error) -> CliError {
    CliError::new(format!("cannot write {}: {e}", path.display()))
}

/// Files beside their places. What does not come to count is removed again.
#[derive(Default)]
struct Staged {
    /// Where each is, and where it goes.
    waiting: Vec<(PathBuf, PathBuf)>,
    /// What counts already.
    early: Option<PathBuf>,
}

impl Staged {
    fn add(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<PathBuf, CliError> {
        let temporary = staged(path);
        self.waiting.push((temporary.clone(), path.into()));
        made_dir(path)
            .and_then(|()| file::write_atomic(&temporary, content, mode, true))
            .map_err(|e| unwritten(path, &e))?;
        Ok(temporary)
    }

    fn add_now(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<(), CliError> {
        self.early = Some(path.into());
        made_dir(path)
            .and_then(|()| file::write_atomic(path, content, mode, true))
            .map_err(|e| unwritten(path, &e))
    }

    /// In the order in which they were added: the last one makes the others count.
    fn commit(mut self) -> Result<(), CliError> {
        self.early = None;
        for (temporary, path) in core::mem::take(&mut self.waiting) {
            let renamed = fs::rename(&temporary, &path);
            let dir = path.parent().unwrap_or_else(|| Path::new("/"));
            renamed
                .and_then(|()| file::sync_dir(dir))
                .map_err(|e| unwritten(&path, &e))?;
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for path in self
            .waiting
            .iter()
            .map(|(temporary, _)| temporary)
            .chain(&self.early)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Has the service manager start the agent anew, if there is one.
fn start() {
    let asked = if Path::new("/run/systemd/system").is_dir() {
        check::ask("systemctl", &["restart", "--no-block", "picolet"])
    } else {
        check::ask("rc-service", &["picolet", "restart"])
    };
    if !matches!(asked, Some(Ok(_))) {
        let why = asked
            .and_then(Result::err)
            .map_or_else(String::new, |e| format!(" ({e})"));
        let _ = writeln!(
            io::stderr(),
            "warning: no service picolet could be started{why}: start the agent yourself (picolet run)"
        );
    }
}
