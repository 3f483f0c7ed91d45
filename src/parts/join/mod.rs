//! `picolet join`: makes this machine a node of a cluster. Everything is asked and checked first, then written beside its
//! place, then renamed: after an error the machine is as it was. No error repeats a text that may be a token.

mod apiserver;
mod document;
mod k3s_flags;
mod kubeadm;

use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io::{self, Read, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::{Map, Value, json};

use super::{Part, PartCommand};
use crate::{
    agent::cluster_network,
    api::cluster_network::K3sClusterFacts,
    cli::{
        CliCommand, CliError, args, check,
        commands::{CompletionKind, MACHINE, switch_flag, value_flag},
        print_text, read_proxies,
    },
    config::{
        self, AgentConfig, DEFAULT_CONFIG_FILE, HostIdentity, KUBELET_VERSION,
        flags::{self, CommandLineFlags, FlagError},
        join::{ExistingNodeConfig, OWN_DROP_IN, default_drop_in_dir, read_existing_config},
    },
    error::error_chain,
    kube::{
        Kubeconfig,
        join::{
            JoinError, k3s,
            staged::{self, StagedFiles},
        },
        kubeconfig::{KubeconfigMaterial, ServerTrust},
        store::CertificateStore,
    },
    net::{ProxyVariables, Url},
    sys::{clock, file},
};
use apiserver::{is_node_name_taken, read_apiserver_version};
use document::ClusterFiles;
use k3s_flags::K3sAgentFlags;

/// Port of an apiserver.
const API_PORT: &str = ":6443";
/// Largest token file, bytes.
const MAX_TOKEN_BYTES: u64 = 4096;
/// The name of standard input.
const STDIN: &str = "-";

/// The part; see the module.
pub(super) struct JoinPart;

#[rustfmt::skip]
static COMMANDS: [PartCommand; 1] = [
    PartCommand {
        command: CliCommand { name: "join", args: "[HOST:PORT]", group: MACHINE, help: "Make this machine a node of a cluster of kubeadm or k3s", flags: &[
            value_flag("token", None, "TOKEN", "token that kubeadm token create or k3s token create has printed; every user of this machine can see it"),
            value_flag("token-file", None, "FILE", "file with the token, which only root may be able to read; - is standard input"),
            value_flag("discovery-token-ca-cert-hash", None, "sha256:HASH", "digest of the cluster's CA, as kubeadm prints it; may be repeated"),
            switch_flag("discovery-token-unsafe-skip-ca-verification", None, "trust any CA that the token has signed; with --k3s: any CA"),
            value_flag("k3s", None, "URL", "server of a k3s cluster, in place of HOST:PORT"),
            value_flag("node-password-file", None, "PATH", "file with the password by which k3s knows this node (default /etc/rancher/node/password)"),
            value_flag("node-name", None, "NAME", "with --k3s: name of the node, as --hostname-override"),
            value_flag("node-label", None, "KEY=VALUE", "with --k3s: label of the node, as --node-labels; may be repeated"),
            value_flag("node-taint", None, "KEY=VALUE:EFFECT", "with --k3s: taint of a new Node, as --register-with-taints; may be repeated"),
            value_flag("kubelet-arg", None, "KEY=VALUE", "with --k3s: flag of the agent; may be repeated"),
            switch_flag("with-node-id", None, "with --k3s: add an ID to the name of the node, which is kept in /etc/rancher/node/id"),
            switch_flag("force", Some('f'), "join even if this machine is a node, or a ready node has its name"),
            switch_flag("no-start", None, "do not restart the agent"),
        ], agent_flags: true, takes: CompletionKind::Nothing },
        run: |command, words| run_join(command, words).map(|()| ExitCode::SUCCESS),
    },
];

impl Part for JoinPart {
    fn name(&self) -> &'static str {
        "join"
    }

    fn commands(&self) -> &'static [PartCommand] {
        &COMMANDS
    }
}

/// The command's own flags.
#[derive(Default)]
struct JoinFlags {
    token: String,
    hashes: Vec<String>,
    any_ca: bool,
    k3s: Option<String>,
    password_file: PathBuf,
    /// Flags under the names of `k3s agent`.
    of_k3s: K3sAgentFlags,
    force: bool,
    no_start: bool,
}

/// State of the machine before the join: flags, configuration, places.
struct MachineBeforeJoin {
    flags: CommandLineFlags,
    host: HostIdentity,
    /// Configuration that an agent would have now.
    config: AgentConfig,
    /// The configuration file.
    file: PathBuf,
    before: ExistingNodeConfig,
    proxies: ProxyVariables,
}

/// Result of asking a cluster, ready to be written.
struct JoinResult {
    document: Value,
    own: Map<String, Value>,
    files: ClusterFiles,
    /// Path, content and mode of the files of the cluster.
    written: Vec<(PathBuf, Vec<u8>, u32)>,
    /// Certificates that the cluster has made already: chain and key of the client, then of the server.
    pairs: Vec<(String, String)>,
    server: String,
    /// Facts of a cluster of k3s, and its server.
    facts: Option<(Url, K3sClusterFacts)>,
    /// Notes for the operator.
    notes: Vec<String>,
    next: &'static str,
}

fn run_join(command: &'static CliCommand, words: Vec<OsString>) -> Result<(), CliError> {
    let (own, mut words) = args::split_flags(command, words)?;
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::new("joining needs root: sudo picolet join …"));
    }
    let asked = read_join_flags(own)?;
    if asked.k3s.is_none() && !asked.of_k3s.is_empty() {
        return Err(CliError::new(
            "--node-name, --node-label, --node-taint, --kubelet-arg and --with-node-id work only with --k3s",
        ));
    }
    let hostname = host_name()?;
    words.extend(asked.of_k3s.agent_words(&hostname, &asked.password_file)?);
    let (flags, server) = read_agent_flags(words)?;
    let _alone = JoinLock::new(flags.config.as_deref())?;
    let machine = MachineBeforeJoin::inspect(flags)?;
    machine.finish_left_join()?;
    machine.may_join(&asked)?;
    let joined = match (&asked.k3s, &server) {
        (Some(_), Some(_)) => {
            return Err(CliError::new(
                "too many arguments: with --k3s, HOST:PORT is not given",
            ));
        }
        (Some(_), None) if !asked.hashes.is_empty() => {
            return Err(CliError::new(
                "with --k3s, the token names the CA: remove --discovery-token-ca-cert-hash",
            ));
        }
        (None, Some(_)) if asked.password_file != Path::new(config::K3S_PASSWORD_FILE) => {
            return Err(CliError::new("--node-password-file works only with --k3s"));
        }
        (Some(url), None) => join_k3s_cluster(&asked, &machine, url),
        (None, Some(server)) => join_kubeadm_cluster(&asked, &machine, server),
        (None, None) => {
            return Err(CliError::new(
                "no server is given. Use: picolet join --token-file FILE --discovery-token-ca-cert-hash sha256:… HOST:6443, or --k3s https://HOST:6443",
            ));
        }
    };
    let joined = joined.map_err(|e| CliError::new(error_chain(&e)))?;
    for note in &joined.notes {
        let _ = writeln!(io::stderr(), "warning: {note}");
    }
    machine.write_join_files(&joined)?;
    machine.keep_facts(&joined);
    print_text(&format!(
        "This machine is node {:?} of {}.\n",
        machine.config.node_name, joined.server
    ))?;
    if !asked.no_start {
        restart_agent_service();
    }
    print_text(joined.next)
}

fn host_name() -> Result<String, CliError> {
    let hostname = nix::unistd::gethostname();
    let hostname =
        hostname.map_err(|e| CliError::new(format!("cannot read the host name: {e}")))?;
    Ok(hostname.to_string_lossy().into_owned())
}

fn read_join_flags(own: Vec<(&'static str, String)>) -> Result<JoinFlags, CliError> {
    let mut asked = JoinFlags {
        password_file: config::K3S_PASSWORD_FILE.into(),
        ..JoinFlags::default()
    };
    let mut token_file = None;
    for (name, value) in own {
        let on = || args::parse_switch(&value);
        match name {
            "token" => asked.token = value,
            "token-file" => token_file = Some(value),
            "discovery-token-ca-cert-hash" => asked.hashes.push(value),
            "discovery-token-unsafe-skip-ca-verification" => asked.any_ca = on()?,
            "k3s" => asked.k3s = Some(value),
            "node-password-file" => asked.password_file = value.into(),
            "force" => asked.force = on()?,
            "no-start" => asked.no_start = on()?,
            _ => {
                let is_on = name == "with-node-id" && on()?;
                let is_known = asked.of_k3s.take_flag(name, &value, is_on);
                assert!(is_known, "the table of commands has no such flag");
            }
        }
    }
    match (asked.token.is_empty(), token_file) {
        (true, Some(file)) => {
            // A token at this place has no slash.
            let named = if file.contains('/') { &*file } else { "FILE" };
            asked.token = read_token(&file)
                .map_err(|why| CliError::new(format!("--token-file {named}: {why}")))?;
        }
        (false, None) => {}
        (true, None) => {
            return Err(CliError::new(
                "no token is given: use --token-file or --token",
            ));
        }
        (false, Some(_)) => {
            return Err(CliError::new("use only one of --token and --token-file"));
        }
    }
    Ok(asked)
}

/// Reads a token that is not among the words of the command, which every user of the machine can read.
///
/// - Errors: a file that another user can read is refused: the token in it may be known.
fn read_token(file: &str) -> io::Result<String> {
    let mut from: Box<dyn Read> = Box::new(io::stdin());
    if file != STDIN {
        let opened = File::open(file)?;
        let about = opened.metadata()?;
        if about.uid() != nix::unistd::geteuid().as_raw() || about.mode() & 0o077 != 0 {
            return Err(io::Error::other(
                "users other than root may read or change it: give it to root, chmod 600, and use a new token if somebody may have read this one",
            ));
        }
        from = Box::new(opened);
    }
    let mut text = String::new();
    from.take(MAX_TOKEN_BYTES + 1).read_to_string(&mut text)?;
    match text.trim() {
        "" => Err(io::Error::other("it is empty")),
        _ if text.len() as u64 > MAX_TOKEN_BYTES => Err(io::Error::other(format!(
            "it has more than {MAX_TOKEN_BYTES} bytes"
        ))),
        token => Ok(token.to_owned()),
    }
}

/// Reads the agent's flags, and the only word that belongs to none of them.
fn read_agent_flags(
    mut words: Vec<OsString>,
) -> Result<(CommandLineFlags, Option<String>), CliError> {
    let cwd = std::env::current_dir()
        .map_err(|e| CliError::new(format!("cannot read the working directory: {e}")))?;
    let mut server = None;
    // Bounded: the second time there is a server.
    loop {
        match flags::parse_flags(words.clone(), &cwd) {
            Ok(flags) => return Ok((flags, server)),
            Err(FlagError::Stray(word)) if server.is_none() => {
                // The last such word: an earlier one may be a flag's value.
                if let Some(at) = words.iter().rposition(|one| one.to_string_lossy() == *word) {
                    words.remove(at);
                }
                server = Some(word);
            }
            Err(FlagError::Stray(_)) => {
                return Err(CliError::new(
                    "too many arguments: only HOST:PORT is given without a flag",
                ));
            }
            Err(e) => return Err(CliError::new(e.to_string())),
        }
    }
}

/// The lock of a join, and the directory that was made for it.
struct JoinLock {
    _held: File,
    made: Option<PathBuf>,
}

impl JoinLock {
    fn new(config: Option<&Path>) -> Result<Self, CliError> {
        let file = config.unwrap_or_else(|| Path::new(DEFAULT_CONFIG_FILE));
        let dir = file.parent().unwrap_or_else(|| Path::new("/"));
        let cannot = |e: &dyn core::fmt::Display| {
            CliError::new(format!("cannot lock {}: {e}", dir.display()))
        };
        let made = (!dir.exists()).then(|| dir.to_owned());
        fs::create_dir_all(dir).map_err(|e| cannot(&e))?;
        match staged::lock_join(file) {
            Ok(held) => Ok(Self { _held: held, made }),
            Err(TryLockError::WouldBlock) => Err(CliError::new(
                "another picolet join is under way on this machine",
            )),
            Err(TryLockError::Error(e)) => Err(cannot(&e)),
        }
    }
}

impl Drop for JoinLock {
    fn drop(&mut self) {
        // The directory stays if it holds files by now.
        if let Some(dir) = &self.made {
            let _ = fs::remove_dir(dir);
        }
    }
}

impl MachineBeforeJoin {
    fn inspect(flags: CommandLineFlags) -> Result<Self, CliError> {
        let wrong = |e: config::ConfigError| CliError::new(error_chain(&e));
        let host = HostIdentity {
            hostname: host_name()?,
        };
        let file = flags.config.clone();
        let file = file.unwrap_or_else(|| DEFAULT_CONFIG_FILE.into());
        let before = read_existing_config(&file).map_err(wrong)?;
        // A file that is not there yet may be named.
        let looked = CommandLineFlags {
            config: flags
                .config
                .clone()
                .filter(|_| before != ExistingNodeConfig::Nothing),
            ..flags.clone()
        };
        let config = config::load_config(looked, &host).map_err(wrong)?.config;
        Ok(Self {
            flags,
            host,
            config,
            file,
            before,
            proxies: read_proxies(),
        })
    }

    fn may_join(&self, asked: &JoinFlags) -> Result<(), CliError> {
        if let ExistingNodeConfig::Member(kubeconfig) = &self.before
            && !asked.force
        {
            return Err(CliError::new(format!(
                "this machine is a node already: {} names {kubeconfig}. Nothing was changed; --force joins again",
                self.file.display()
            )));
        }
        if matches!(self.before, ExistingNodeConfig::Own(_))
            && self.flags.config.is_some()
            && self.flags.config_dir.is_none()
        {
            return Err(CliError::new(format!(
                "{} exists, and picolet join has to replace it: give a directory with --config-dir, where it is kept as a drop-in",
                self.file.display()
            )));
        }
        if let (ExistingNodeConfig::Own(_), Some(dir)) = (&self.before, self.drop_ins()) {
            let first =
                document::find_earlier_drop_in(&dir).map_err(|e| CliError::new(error_chain(&e)))?;
            if let Some(first) = first {
                return Err(CliError::new(format!(
                    "{} sorts before {}, the new name of {}, and would no longer override it: give it a name that sorts after. Nothing was changed",
                    first.display(),
                    OWN_DROP_IN,
                    self.file.display()
                )));
            }
        }
        Ok(())
    }

    /// Keeps what a server of k3s has told of its cluster for the first start. Without it the agent asks then.
    fn keep_facts(&self, joined: &JoinResult) {
        let Some((server, facts)) = &joined.facts else {
            return;
        };
        let root = &self.config.dirs.root;
        // A certificate of another cluster is of no use, and would not be renewed while it is valid.
        let other = CertificateStore::kube_proxy(&self.config.cluster.cert_dir);
        if let Err(e) = other.forget_current() {
            let _ = writeln!(io::stderr(), "warning: {}", error_chain(&e));
        }
        let kept = file::make_dirs(root, 0o750);
        let kept = kept.and_then(|()| cluster_network::keep_facts(root, server, facts.clone()));
        if let Err(e) = kept {
            let _ = writeln!(io::stderr(), "warning: {}: {e}", root.display());
        }
    }

    /// Finishes a join that was cut off.
    fn finish_left_join(&self) -> Result<(), CliError> {
        let places = staged::join_file_paths(&self.config);
        let finished =
            staged::finish_interrupted_join(&self.file, &places, self.drop_ins().as_deref());
        finished.map_err(|e| CliError::new(error_chain(&e)))?;
        Ok(())
    }

    /// Refuses to overwrite a kubeconfig, unless forced.
    fn check_kubeconfig_free(kubeconfig: &Path, asked: &JoinFlags) -> Result<(), JoinRefusal> {
        match asked.force || !kubeconfig.exists() {
            true => Ok(()),
            false => Err(JoinRefusal::Taken(kubeconfig.into())),
        }
    }

    /// Finds the directory of drop-ins that the agent will read.
    fn drop_ins(&self) -> Option<PathBuf> {
        let usual = || {
            self.flags
                .config
                .is_none()
                .then(|| default_drop_in_dir(&self.file))
        };
        self.flags.config_dir.clone().or_else(usual)
    }

    /// Finds the version to tell the cluster, if not our own: a node must not be newer than its apiserver (KADM-13).
    fn version_to_tell(&self, apiserver: &str) -> Option<String> {
        let minor = |version: &str| -> Option<(u32, u32)> {
            let (major, rest) = version.strip_prefix('v')?.split_once('.')?;
            let minor = rest.split('.').next()?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let own = &self.config.node.kubelet_version;
        let is_newer = minor(own) > minor(apiserver) && own == KUBELET_VERSION;
        (is_newer && minor(apiserver).is_some()).then(|| apiserver.to_owned())
    }

    /// Checks that the agent would start as the node that has joined.
    ///
    /// - `seen`: configuration that the agent will read from the file at `waiting` and from the drop-ins.
    fn check_joined_config(
        &self,
        joined: &JoinResult,
        seen: &AgentConfig,
        waiting: &Path,
    ) -> Result<(), CliError> {
        let path = |path: Option<&PathBuf>| {
            // Doubled slashes make no difference.
            let plain = |path: &PathBuf| path.components().collect::<PathBuf>();
            let text = path.map(|path| plain(path).display().to_string());
            text.unwrap_or_default()
        };
        let (files, cluster) = (&joined.files, &seen.cluster);
        // If the cluster has none, the agent's own is not used.
        let asks_by = cluster.bootstrap_kubeconfig.as_ref();
        let asks_by = asks_by.filter(|_| files.bootstrap.is_some());
        // Name of the fact, the keys that decide it, the value of the join, and the value that the agent will see.
        let facts: [(&str, &[&str], String, String); 4] = [
            (
                "name",
                &["picolet.hostnameOverride"],
                self.config.node_name.clone(),
                seen.node_name.clone(),
            ),
            (
                "directory of certificates",
                &["picolet.certDir", "picolet.rootDir"],
                path(Some(&self.config.cluster.cert_dir)),
                path(Some(&cluster.cert_dir)),
            ),
            (
                "kubeconfig",
                &["picolet.kubeconfig"],
                path(Some(&files.kubeconfig)),
                path(cluster.kubeconfig.as_ref()),
            ),
            (
                "bootstrap kubeconfig",
                &["picolet.bootstrapKubeconfig"],
                path(files.bootstrap.as_ref()),
                path(asks_by),
            ),
        ];
        match facts.iter().find(|(_, _, ours, theirs)| ours != theirs) {
            None => Ok(()),
            Some((what, keys, ours, theirs)) => {
                Err(self.other_value_error(what, keys, [ours, theirs], waiting)?)
            }
        }
    }

    /// Checks that a kubeconfig is configured. An agent without one sees no cluster: its other settings of a cluster
    /// are wrong then.
    fn check_kubeconfig_set(&self, joined: &JoinResult, waiting: &Path) -> Result<(), CliError> {
        const KEY: &str = "picolet.kubeconfig";
        let decided = document::find_deciding_file(KEY, waiting, self.drop_ins().as_deref());
        let decided = decided.map_err(|e| CliError::new(error_chain(&e)))?;
        let is_none = |said: &Value| said.as_str().is_none_or(str::is_empty);
        if !decided.is_some_and(|(_, said)| is_none(&said)) {
            return Ok(());
        }
        let ours = joined.files.kubeconfig.display().to_string();
        Err(self.other_value_error("kubeconfig", &[KEY], [&ours, ""], waiting)?)
    }

    /// Makes the error of a machine that would start with another value. `values`: the one it joins with, and the one
    /// its agent would see.
    fn other_value_error(
        &self,
        what: &str,
        keys: &[&str],
        [ours, theirs]: [&str; 2],
        waiting: &Path,
    ) -> Result<CliError, CliError> {
        let way_out = self.advise_on_value(keys, waiting)?;
        Ok(CliError::new(format!(
            "this machine joins with the {what} {ours:?}, but its agent would start with {theirs:?}. {way_out}. Nothing was changed"
        )))
    }

    /// Advises how to mend a value that is not the one that was joined with.
    ///
    /// - `keys`: keys that decide about the value, the first one first.
    fn advise_on_value(&self, keys: &[&str], waiting: &Path) -> Result<String, CliError> {
        let drop_ins = self.drop_ins();
        // Bounded: two keys at most.
        for key in keys {
            let file = document::find_deciding_file(key, waiting, drop_ins.as_deref());
            let Some((mut file, _)) = file.map_err(|e| CliError::new(error_chain(&e)))? else {
                continue;
            };
            if file == waiting {
                return Ok(format!(
                    "The cluster sets {key} for all its nodes: remove it there"
                ));
            }
            let own = drop_ins.as_ref().map(|dir| dir.join(OWN_DROP_IN));
            if matches!(self.before, ExistingNodeConfig::Own(_)) && own.as_ref() == Some(&file) {
                // This join replaces the copy, so the file is named.
                file.clone_from(&self.file);
            }
            return Ok(format!(
                "{} sets {key}, which takes precedence: change it there",
                file.display()
            ));
        }
        let flag = flags::flag_descriptions().find(|flag| keys.first() == Some(&flag.field));
        Ok(format!(
            "The new {} does not set it: use --{}",
            self.file.display(),
            flag.map_or("", |flag| flag.name)
        ))
    }

    /// Writes all files of the join, or none.
    fn write_join_files(&self, joined: &JoinResult) -> Result<(), CliError> {
        let failed = |e: &dyn core::error::Error| CliError::new(error_chain(e));
        let unwritten = |e: staged::StageError| failed(&e);
        let typed = self.flags.overlay.clone();
        // The file may hold secrets.
        let before = fs::metadata(&self.file).map_or(0o644, |file| file.mode() & 0o777);
        let of_cluster = joined.document.as_object();
        let parts = [Some(&typed), of_cluster].into_iter().flatten();
        let mode = document::config_file_mode(before, &parts.collect::<Vec<_>>());
        let text = document::config_file_text(
            joined.document.clone(),
            &joined.files,
            joined.own.clone(),
            typed,
        );
        let mut staged =
            StagedFiles::stage_config(&self.file, text.as_bytes(), mode).map_err(unwritten)?;
        let drop_ins = self.drop_ins();
        if let (ExistingNodeConfig::Own(bytes), Some(dir)) = (&self.before, &drop_ins) {
            // The copy says the same as the operator's file, which is still there: it may count at once.
            let own = dir.join(OWN_DROP_IN);
            staged.add_now(&own, bytes, before).map_err(unwritten)?;
        }
        let temporary = staged.waiting_config_path();
        self.check_kubeconfig_set(joined, &temporary)?;
        let seen = document::preview(&temporary, drop_ins.as_deref(), &self.host).map_err(|e| {
            let from = temporary.display().to_string();
            let to = "what the cluster says";
            CliError::new(error_chain(&e).replace(&from, to))
        })?;
        self.check_joined_config(joined, &seen.config, &temporary)?;
        let places = staged::join_file_paths(&seen.config);
        staged.clear_leftovers(&places).map_err(unwritten)?;
        for (path, content, mode) in &joined.written {
            staged.add_file(path, content, *mode).map_err(unwritten)?;
        }
        // An identity of another cluster must not go into this one (KADM-24).
        let stores = [CertificateStore::client, CertificateStore::server]
            .map(|of| of(&self.config.cluster.cert_dir));
        for store in &stores {
            // The link of a switch that was cut short would become the current one at the next start.
            store.recover().map_err(|e| failed(&e))?;
        }
        for (store, pair) in stores.iter().zip(&joined.pairs) {
            let kept = store.keep_pair(&pair.0, &pair.1, clock::wall_now());
            let kept = kept.map_err(|e| failed(&e))?;
            let link = store.current_path();
            staged.add_link(&link, &kept).map_err(unwritten)?;
        }
        if joined.pairs.is_empty() {
            let [client, server] = stores.map(|store| store.current_path());
            for path in [&joined.files.kubeconfig, &client, &server] {
                staged.add_removal(path).map_err(unwritten)?;
            }
        }
        staged.commit().map_err(unwritten)
    }
}

/// Reason why this machine does not join.
#[derive(Debug, thiserror::Error)]
enum JoinRefusal {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error("{0} is not the address of a server: {1}")]
    Server(&'static str, crate::net::UrlError),
    #[error("{0} must begin with https://")]
    NoTls(&'static str),
    #[error("{0} is a token: give the server there, and the token with --token-file")]
    IsToken(&'static str),
    #[error(
        "--discovery-token-ca-cert-hash is missing. On the control plane: kubeadm token create --print-join-command"
    )]
    NoPin,
    #[error(
        "the token names no CA, so this machine would trust any server that answers. A full token is K10, 64 hexadecimal digits, :: and the secret: see 'k3s token create' or /var/lib/rancher/k3s/server/node-token on the server. --discovery-token-unsafe-skip-ca-verification joins anyway"
    )]
    NoCa,
    #[error("{} exists: this machine is or was a node with another kubelet. Nothing was changed; --force takes its place", _0.display())]
    Taken(PathBuf),
    #[error(
        "the cluster has a node {0:?} already, and it is ready: give this one another name with --hostname-override, or use --force"
    )]
    Name(String),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot read the kubelet configuration of the cluster: {0}")]
    Document(#[from] config::decode::DecodeError),
    #[error(transparent)]
    Kubeconfig(#[from] crate::kube::kubeconfig::KubeconfigTextError),
}

/// Reads a URL. `what`: name of the word. Errors do not repeat the text: it may be a token at the wrong place.
fn parse_https_url(text: &str, what: &'static str) -> Result<Url, JoinRefusal> {
    let url = Url::parse(text).map_err(|e| JoinRefusal::Server(what, e))?;
    if !url.https {
        return Err(JoinRefusal::NoTls(what));
    }
    // A token has the form of a host name.
    if kubeadm::BootstrapToken::parse(url.host()).is_ok() {
        return Err(JoinRefusal::IsToken(what));
    }
    Ok(url)
}

/// Makes the URL of `HOST`, `HOST:PORT`, or either with `https://` before it.
fn apiserver_url(server: &str) -> Result<Url, JoinRefusal> {
    let host = server.strip_prefix("https://").unwrap_or(server);
    let (_, port) = crate::net::url::split_port(host);
    let port = port.map_or(API_PORT, |_| "");
    parse_https_url(&format!("https://{host}{port}"), "HOST:PORT")
}

fn join_kubeadm_cluster(
    asked: &JoinFlags,
    machine: &MachineBeforeJoin,
    server: &str,
) -> Result<JoinResult, JoinRefusal> {
    let mut files = ClusterFiles {
        kubeconfig: "/etc/kubernetes/kubelet.conf".into(),
        bootstrap: Some("/etc/kubernetes/bootstrap-kubelet.conf".into()),
        client_ca: "/etc/kubernetes/pki/ca.crt".into(),
    };
    files.apply_typed_paths(&machine.flags.overlay);
    MachineBeforeJoin::check_kubeconfig_free(&files.kubeconfig, asked)?;
    let token = kubeadm::BootstrapToken::parse(&asked.token)?;
    let hashes = asked.hashes.iter().map(String::as_str);
    let pins = match (asked.hashes.is_empty(), asked.any_ca) {
        (false, _) => Some(kubeadm::CaPins::parse(hashes)?),
        (true, true) => None,
        (true, false) => return Err(JoinRefusal::NoPin),
    };
    let url = apiserver_url(server)?;
    let proxies = &machine.proxies;
    let found = kubeadm::discover_cluster(&url, &token, pins.as_ref(), proxies)?;
    let node = &machine.config.node_name;
    if !asked.force && is_node_name_taken(found.config.clone(), node, proxies)? {
        return Err(JoinRefusal::Name(node.clone()));
    }
    let apiserver = read_apiserver_version(found.config.clone(), proxies)?;
    let text = kubeadm::kubelet_config(&found, &apiserver, proxies)?;
    let mut own = Map::new();
    if let Some(version) = machine.version_to_tell(&apiserver) {
        own.insert("kubeletVersion".into(), version.into());
    }
    let bootstrap = files.bootstrap.clone().unwrap_or_default();
    Ok(JoinResult {
        document: document::read_kubeadm_settings(&text)?,
        own,
        written: vec![
            (bootstrap, found.text.into_bytes(), 0o600),
            (files.client_ca.clone(), found.ca, 0o644),
        ],
        files,
        pairs: Vec::new(),
        server: first_server_text(&found.config),
        facts: None,
        notes: Vec::new(),
        next: "The agent asks for its certificate when it starts. Then 'kubectl get nodes' shows the node. If it does not, 'picolet check' says why.\n",
    })
}

fn join_k3s_cluster(
    asked: &JoinFlags,
    machine: &MachineBeforeJoin,
    server: &str,
) -> Result<JoinResult, JoinRefusal> {
    let cert_dir = &machine.config.cluster.cert_dir;
    let client = CertificateStore::client(cert_dir).current_path();
    let mut files = ClusterFiles {
        kubeconfig: "/etc/picolet/kubeconfig".into(),
        bootstrap: None,
        client_ca: "/etc/picolet/client-ca.crt".into(),
    };
    files.apply_typed_paths(&machine.flags.overlay);
    MachineBeforeJoin::check_kubeconfig_free(&files.kubeconfig, asked)?;
    let url = parse_https_url(server, "--k3s")?;
    let token = k3s::K3sToken::parse(&asked.token)?;
    let mut notes = Vec::new();
    if !token.names_ca() {
        if !asked.any_ca {
            return Err(JoinRefusal::NoCa);
        }
        notes.push("the token does not name the CA of the cluster (K10…::): any server that answers now is trusted".into());
    }
    let proxies = &machine.proxies;
    let (supervisor, ca) = k3s::find_supervisor(&url, token, proxies)?;
    let cluster = supervisor.read_cluster()?;
    let node = k3s::K3sNodeIdentity {
        name: machine.config.node_name.clone(),
        password: read_or_make_password(&asked.password_file)?,
        ips: machine.config.node_ips.clone(),
    };
    let first = supervisor.certify_new_key(&node, k3s::CertificatePurpose::Client)?;
    let second = supervisor.certify_new_key(&node, k3s::CertificatePurpose::Serving)?;
    let client_ca = supervisor.client_ca()?;
    let api = cluster.apiserver_url(&url);
    let config = k3s::apiserver_kubeconfig(&api, ServerTrust::Ca(KubeconfigMaterial::Inline(ca)));
    // The certificate is tried before it counts.
    let mut member = config.clone();
    let inline = |text: &String| KubeconfigMaterial::Inline(text.clone().into_bytes());
    member.user.certificate = Some((inline(&first.0), inline(&first.1)));
    let apiserver = read_apiserver_version(member, proxies)?;
    let mut own = Map::new();
    own.insert(
        "k3sServer".into(),
        url.to_string().trim_end_matches('/').into(),
    );
    if asked.password_file != Path::new(config::K3S_PASSWORD_FILE) {
        own.insert("k3sPasswordFile".into(), json!(asked.password_file));
    }
    if let Some(version) = machine.version_to_tell(&apiserver) {
        own.insert("kubeletVersion".into(), version.into());
    }
    let facts = cluster.to_facts(supervisor.read_apiservers()?);
    let others = k3s::other_apiserver_urls(&facts.apiservers, &api)?;
    if !others.is_empty() {
        own.insert("apiServers".into(), json!(others));
    }
    if cluster.wants_tunnel() && !cfg!(feature = "k3s") {
        notes.push(format!(
            "kubectl logs and exec will not reach this node: the servers reach nodes through tunnels (egress-selector-mode: {}). \
             Run all servers with --egress-selector-mode=disabled",
            cluster.egress_selector_mode
        ));
    }
    Ok(JoinResult {
        document: document::k3s_settings(&cluster.name_servers(), &cluster.cluster_domain),
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
        server: first_server_text(&config),
        facts: Some((url, facts)),
        notes,
        next: "'kubectl get nodes' shows the node when the agent runs. 'picolet check' says what this node needs and the cluster does not provide.\n",
    })
}

fn first_server_text(config: &Kubeconfig) -> String {
    let text = config
        .servers
        .first()
        .map(Url::without_query)
        .unwrap_or_default();
    text.trim_end_matches('/').to_owned()
}

/// Reads the password by which the cluster knows the node. A new one is on disk before it is sent (K3SJ-04).
fn read_or_make_password(path: &Path) -> Result<String, JoinRefusal> {
    let failed = |source| JoinRefusal::File {
        path: path.into(),
        source,
    };
    if let Some(known) = k3s::read_node_password(path).map_err(failed)? {
        return Ok(known);
    }
    let password = k3s::make_node_password()?;
    let text = format!("{password}\n");
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| file::write_atomic(path, text.as_bytes(), 0o600, true))
        .map_err(failed)?;
    Ok(password)
}

/// Has the service manager restart the agent, if there is one.
fn restart_agent_service() {
    let asked = if Path::new("/run/systemd/system").is_dir() {
        check::run_program("systemctl", &["restart", "--no-block", "picolet"])
    } else {
        check::run_program("rc-service", &["picolet", "restart"])
    };
    if !matches!(asked, Some(Ok(_))) {
        let why = asked
            .and_then(Result::err)
            .map_or_else(String::new, |e| format!(" ({e})"));
        let _ = writeln!(
            io::stderr(),
            "warning: the service picolet could not be started{why}: start the agent yourself (picolet run)"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::testing::TestDir;

    const SECRET: &str = "abcdef.0123456789abcdef";

    #[test]
    fn a_token_comes_from_a_file_of_root_alone() {
        // KADM-20
        let scratch = TestDir::new("join");
        let path = scratch.join("token").display().to_string();
        let flags = |words: &[(&'static str, &str)]| {
            let words = words.iter().map(|(name, value)| (*name, (*value).into()));
            read_join_flags(words.collect()).map(|asked| asked.token)
        };
        let file = ("token-file", &*path);
        let most = usize::try_from(MAX_TOKEN_BYTES).expect("small");
        for (mode, text, says) in [
            (0o600, format!("{SECRET}\n"), Ok(())),
            (0o400, format!("{SECRET}\r\n\n"), Ok(())),
            (0o640, SECRET.into(), Err("users other than root may read")),
            (0o604, SECRET.into(), Err("users other than root may read")),
            (0o620, SECRET.into(), Err("users other than root may read")),
            (0o600, " \n".into(), Err("it is empty")),
            (0o600, "x".repeat(most + 1), Err("more than 4096 bytes")),
        ] {
            let _ = fs::remove_file(&path);
            fs::write(&path, text).expect("file");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("mode");
            match (flags(&[file]), says) {
                (Ok(token), Ok(())) => assert_eq!(token, SECRET),
                (Err(said), Err(says)) => {
                    let said = said.bare_message();
                    assert!(said.contains(says) && said.contains(&path), "{said}");
                    assert!(!said.contains(SECRET), "{said}");
                }
                (found, says) => panic!("{mode:o} {says:?}: {}", found.is_ok()),
            }
        }
        fs::remove_file(&path).expect("removed");
        assert!(flags(&[file]).is_err_and(|said| said.bare_message().contains(&path)));
        let swapped = flags(&[("token-file", SECRET)]).expect_err("no file");
        assert!(!swapped.bare_message().contains("abcdef"), "{swapped}");
        let both = flags(&[file, ("token", SECRET)]).expect_err("two");
        assert!(both.bare_message().contains("only one"), "{both}");
        assert!(flags(&[]).is_err() && flags(&[("token", SECRET)]).is_ok());
    }

    #[test]
    fn a_token_at_the_place_of_a_server_is_not_repeated() {
        // KADM-20 K3SJ-13
        let whole = format!("K10{}::{SECRET}", "0".repeat(64));
        let no_tls = format!("http://{SECRET}");
        let user = format!("https://node:{SECRET}@10.0.0.1");
        let host = format!("https://{SECRET}:6443");
        for text in [SECRET, &whole, &no_tls, &user, &host] {
            let k3s = parse_https_url(text, "--k3s").map(|url| url.to_string());
            let kubeadm = apiserver_url(text).map(|url| url.to_string());
            for said in [k3s, kubeadm] {
                let said = said.expect_err(text).to_string();
                assert!(!said.contains("abcdef"), "{text}: {said}");
                assert!(
                    said.starts_with("--k3s ") || said.starts_with("HOST:PORT "),
                    "{said}"
                );
            }
        }
        assert_eq!(
            apiserver_url("10.0.0.1").expect("a URL").to_string(),
            "https://10.0.0.1:6443/"
        );
        let of = |words: &[&str]| read_agent_flags(words.iter().map(OsString::from).collect());
        let (_, server) = of(&["10.0.0.1:6443", "--max-pods=9"]).expect("one");
        assert_eq!(server.as_deref(), Some("10.0.0.1:6443"));
        let said = of(&["10.0.0.1:6443", SECRET]).expect_err("too many");
        assert!(!said.bare_message().contains(SECRET), "{said}");
    }
}
