//! From the configuration to an apiserver: which credentials are used (BOOT-01, BOOT-02), lanes to ask on.
//!
//! Nothing is sent here, and nothing waited for: an apiserver that cannot be reached, a certificate that is still to be
//! issued or a clock that stands in 1970 hold up no start. What the operator got wrong does.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::{fs, path::Path};

use super::{
    certificates::{BootstrapIdentity, RenewedCertificate, earliest_chain_end},
    link::ServerClockSkew,
    signing::K3sSigner,
};
use crate::{
    agent::cluster_network::recall_facts,
    api::{WallTime, cluster_network::K3sClusterFacts},
    config::{AgentConfig, ClusterConfig},
    error::error_chain,
    kube::{
        self, ClientTimeouts, ClusterReader, HttpApi, KubeApi, KubeLanes, Kubeconfig,
        KubeconfigError, RequestRates, authority, bootstrap,
        client::HEARTBEAT_TIMEOUT,
        kubeconfig::{KubeconfigMaterial, KubeconfigUser, MAX_SERVERS},
        store::CertificateStore,
        x509::{self, Certificate},
    },
    logic::certificates::{self, CertificateCandidate, CredentialChoice, KubeconfigFacts},
    net::{ProxyVariables, Url, way::PeerAddress},
    sys::clock,
};

/// Reason why a node cannot join: one line for the operator.
#[derive(Debug, thiserror::Error)]
pub(in crate::agent) enum NodeJoinError {
    /// Files or flags are wrong.
    #[error("{0}")]
    Usage(String),
    /// An operation on this machine failed.
    #[error("{0}")]
    Failed(String),
}

/// See [`JoinedCluster::answers`].
const ANSWERS: usize = 4;

/// Everything that a member of a cluster begins with.
pub(in crate::agent) struct JoinedCluster {
    /// The apiserver, and the threads that wait for it.
    pub(super) lanes: KubeLanes,
    pub(super) skew: Arc<ServerClockSkew>,
    /// Certificate of this node, if the agent renews it.
    pub(super) certificate: Option<RenewedCertificate>,
    /// Supervisor of k3s, which signs certificates in place of the apiserver.
    pub(super) k3s: Option<Arc<K3sSigner>>,
    /// Reader of what no node may read, if a part wants it.
    pub(super) reader: Option<Rc<ClusterReader>>,
    /// Facts of a cluster of k3s, as an agent before this one has kept them.
    pub(super) facts: Option<K3sClusterFacts>,
    /// Identity of the cluster (KADM-32).
    pub(in crate::agent) authority: String,
    /// Set if a watch is used beside polling.
    pub(super) doorbells: bool,
    /// Decides the spread of delays.
    pub(super) seed: u64,
    /// Address at which the apiserver was last reached.
    pub(in crate::agent) peer: Arc<PeerAddress>,
    /// Answers about pods that may wait: whole pods of a list are read no faster than they are recorded.
    pub(in crate::agent) answers: usize,
}

impl JoinedCluster {
    /// By these lanes, with credentials that others keep.
    pub(in crate::agent) fn from_lanes(lanes: KubeLanes, doorbells: bool, seed: u64) -> Self {
        Self {
            lanes,
            skew: Arc::default(),
            certificate: None,
            k3s: None,
            reader: None,
            facts: None,
            authority: String::new(),
            doorbells,
            seed,
            peer: Arc::default(),
            answers: ANSWERS,
        }
    }
}

/// Makes what a member of a cluster has; `None` on a node that stands alone. Reads and writes a few small files.
pub(in crate::agent) fn join_cluster(
    cfg: &AgentConfig,
    proxies: ProxyVariables,
) -> Result<Option<JoinedCluster>, NodeJoinError> {
    let Some(path) = &cfg.cluster.kubeconfig else {
        return Ok(None);
    };
    let joined = cfg.cluster.k3s.as_ref();
    let facts = joined.and_then(|(server, _)| recall_facts(&cfg.dirs.root, server));
    let wanted = &with_known_servers(&cfg.cluster, facts.as_ref());
    let store = CertificateStore::client(&wanted.cert_dir);
    let is_kept = wanted.renewed_certificate_dir().is_some();
    if is_kept && let Err(e) = store.recover() {
        // A disk that cannot be written now may hold all that is needed.
        log::warn!("certificates: {}", error_chain(&e));
    }
    let now = clock::wall_now();
    let trusted = clock::is_synchronized() == Some(true);
    let mut config = choose_credentials(wanted, path, &store, now, trusted)?;
    let keeps = is_kept && config.user.certificate.is_some();
    if keeps {
        let own = bootstrap::node_subject(&cfg.node_name).common_name;
        adopt_stored_pair(&mut config, &store, &own, now);
    } else if is_kept {
        log::info!(
            "{} names no client certificate, so none is renewed",
            path.display()
        );
    }
    let k3s = wanted.k3s.clone().map(|(server, password_file)| {
        // Each server of k3s has a supervisor beside its apiserver, at the same port unless somebody wants another one.
        let others = wanted.servers.iter().filter_map(|url| Url::parse(url).ok());
        let others = others.filter(|url| url.https && !url.same_origin(&server));
        Arc::new(K3sSigner {
            node: cfg.node_name.clone(),
            kubeconfig: path.clone(),
            kept: is_kept.then(|| store.clone()),
            servers: core::iter::once(server.clone()).chain(others).collect(),
            password_file,
            proxies: proxies.clone(),
        })
    });
    let skew = Arc::new(ServerClockSkew::default());
    let connect = ApiConnector {
        proxies,
        rates: RequestRates {
            main: wanted.qps,
            events: wanted.event_qps,
        },
        heartbeat: heartbeat_timeout(cfg),
        skew: Arc::clone(&skew),
    };
    let authority = authority::authority_digests(&config);
    let reader = make_cluster_reader(cfg, &config, &connect.proxies)?;
    let (cluster, api) = connect.make_api_client(config);
    let peer = cluster.peer();
    let lanes = KubeLanes::start(Arc::new(api))
        .map_err(|e| NodeJoinError::Failed(format!("cannot start a thread: {e}")))?;
    // Delays need spreading, not secrecy.
    let seed = clock::mono_now().0 ^ now.0.unsigned_abs();
    let bootstrap = wanted.bootstrap_kubeconfig.clone().map(|kubeconfig| {
        let connect = connect.clone();
        BootstrapIdentity {
            kubeconfig,
            servers: wanted.servers.clone(),
            connect: Box::new(move |config| -> Arc<dyn KubeApi> {
                Arc::new(connect.make_api_client(config).1)
            }),
        }
    });
    Ok(Some(JoinedCluster {
        certificate: keeps.then(|| RenewedCertificate {
            store,
            cluster,
            bootstrap,
        }),
        skew,
        k3s,
        reader,
        facts,
        authority,
        peer,
        ..JoinedCluster::from_lanes(lanes, cfg.doorbells, seed)
    }))
}

/// Adds the apiservers that a server of k3s has told before: the one that was joined may be gone (K3SN-12).
fn with_known_servers(wanted: &ClusterConfig, facts: Option<&K3sClusterFacts>) -> ClusterConfig {
    let mut wanted = wanted.clone();
    let told = facts.map(|facts| &facts.apiservers[..]).unwrap_or_default();
    // A path or a query would make the kubeconfig invalid, and no start may depend on what a server says.
    let told = told
        .iter()
        .filter(|address| !address.contains(['/', '?', '#', '@']));
    for url in told.map(|address| format!("https://{address}")) {
        // The kubeconfig has one of its own.
        let is_room = wanted.servers.len() + 1 < MAX_SERVERS;
        if is_room && Url::parse(&url).is_ok() && !wanted.servers.contains(&url) {
            wanted.servers.push(url);
        }
    }
    wanted
}

/// Makes the reader of what no node may read, if a part wants it and there is an identity for it. `config`: that of the
/// node.
fn make_cluster_reader(
    cfg: &AgentConfig,
    config: &Kubeconfig,
    proxies: &ProxyVariables,
) -> Result<Option<Rc<ClusterReader>>, NodeJoinError> {
    if !cfg.parts.iter().any(|part| part.reads_cluster()) {
        return Ok(None);
    }
    let given = cfg.cluster.network_kubeconfig.as_deref();
    let config = match given {
        Some(path) => {
            Kubeconfig::load(path, &[]).map_err(|e| NodeJoinError::Usage(e.to_string()))?
        }
        None if cfg.cluster.k3s.is_some() => {
            let store = CertificateStore::kube_proxy(&cfg.cluster.cert_dir);
            let mut config = config.clone();
            config.user = KubeconfigUser::default();
            config.use_pair_file(&store.current_path());
            config
        }
        None => return Ok(None),
    };
    let cluster = kube::SharedApiserver::new(config, proxies.clone(), None);
    let reader = ClusterReader::new(Arc::new(cluster));
    if given.is_some() {
        reader.set_ready();
    }
    Ok(Some(Rc::new(reader)))
}

/// Chooses the credentials of this node for the apiserver (BOOT-01). `trusted`: the clock is known to be right.
fn choose_credentials(
    wanted: &ClusterConfig,
    path: &Path,
    store: &CertificateStore,
    now: WallTime,
    trusted: bool,
) -> Result<Kubeconfig, NodeJoinError> {
    let found = FoundKubeconfig::read_kubeconfig(path, &wanted.servers);
    let bootstrap = wanted.bootstrap_kubeconfig.as_deref();
    match certificates::choose_credentials(found.facts, bootstrap.is_some(), now, trusted) {
        CredentialChoice::Kubeconfig => found
            .config
            .map_err(|e| NodeJoinError::Usage(e.to_string())),
        CredentialChoice::Neither => Err(NodeJoinError::Usage(found.describe_fault())),
        CredentialChoice::Bootstrap => {
            match begin_with_bootstrap(wanted, path, bootstrap, &found, store) {
                Err(e) if found.facts.is_usable() => {
                    // Pods run meanwhile, and whoever puts the file there again needs no restart.
                    log::warn!(
                        "{e}. The agent looks for the bootstrap kubeconfig again before each request"
                    );
                    found
                        .config
                        .map_err(|e| NodeJoinError::Usage(e.to_string()))
                }
                begun => begun,
            }
        }
    }
}

/// Time for one exchange of the heartbeat (CONF-21).
fn heartbeat_timeout(cfg: &AgentConfig) -> Duration {
    let lease = Duration::from_secs(cfg.node.lease_duration_s.into());
    cfg.node.status_update.min(lease).min(HEARTBEAT_TIMEOUT)
}

/// All that it takes to ask an apiserver, whoever one is.
#[derive(Clone)]
struct ApiConnector {
    proxies: ProxyVariables,
    rates: RequestRates,
    heartbeat: Duration,
    skew: Arc<ServerClockSkew>,
}

impl ApiConnector {
    /// Makes a client of the cluster. Reads and sends nothing yet.
    fn make_api_client(&self, config: Kubeconfig) -> (Arc<kube::SharedApiserver>, HttpApi) {
        let skew = Arc::clone(&self.skew);
        let on_date = move |theirs, _ours| skew.take_server_date(theirs, clock::mono_now());
        let proxies = self.proxies.clone();
        let cluster = kube::SharedApiserver::new(config, proxies, Some(Box::new(on_date)));
        let cluster = Arc::new(cluster);
        let timeouts = ClientTimeouts::default();
        let api = HttpApi::new(&cluster, timeouts, self.rates, Some(self.heartbeat));
        (cluster, api)
    }
}

/// A kubeconfig and its certificate, as far as they are there.
pub(in crate::agent) struct FoundKubeconfig {
    pub(in crate::agent) config: Result<Kubeconfig, KubeconfigError>,
    pub(in crate::agent) facts: KubeconfigFacts,
    /// Reason why its certificate cannot be used; empty if it can.
    bad: String,
}

impl FoundKubeconfig {
    pub(in crate::agent) fn read_kubeconfig(path: &Path, servers: &[String]) -> Self {
        let config = Kubeconfig::load(path, servers);
        let mut bad = String::new();
        let facts = match &config {
            Err(e) if e.is_missing() => KubeconfigFacts::Missing,
            Err(_) => KubeconfigFacts::Wrong,
            Ok(config) => match bootstrap::client_certificate(config) {
                Ok(None) => KubeconfigFacts::WithoutCertificate,
                Ok(Some(chain)) => {
                    let end = earliest_chain_end(&chain).unwrap_or(WallTime(i64::MIN));
                    bad = format!("it expired at {end}");
                    KubeconfigFacts::Until(end)
                }
                Err(why) => {
                    bad = error_chain(&why);
                    KubeconfigFacts::BadCertificate
                }
            },
        };
        Self { config, facts, bad }
    }

    fn describe_fault(&self) -> String {
        match &self.config {
            Err(e) => e.to_string(),
            Ok(config) => format!(
                "kubeconfig {}: its client certificate: {}",
                config.path.display(),
                self.bad
            ),
        }
    }
}

/// Reads the bootstrap kubeconfig and writes the one that is used from then on; its certificate is still to come.
fn begin_with_bootstrap(
    wanted: &ClusterConfig,
    path: &Path,
    bootstrap: Option<&Path>,
    found: &FoundKubeconfig,
    store: &CertificateStore,
) -> Result<Kubeconfig, NodeJoinError> {
    let complaint = |e: &dyn core::fmt::Display| {
        NodeJoinError::Usage(format!("{}; {e}", found.describe_fault()))
    };
    let from = bootstrap.ok_or_else(|| complaint(&"there is no bootstrap kubeconfig"))?;
    let from = Kubeconfig::load(from, &wanted.servers).map_err(|e| complaint(&e))?;
    log::info!(
        "requesting a client certificate with {}",
        from.path.display()
    );
    let pem = store.current_path();
    let text = from.with_certificate(&pem);
    let text = text.map_err(|e| NodeJoinError::Usage(error_chain(&e)))?;
    if fs::read(path).ok().as_deref() != Some(text.as_bytes()) {
        let written = bootstrap::write_kubeconfig(&from, path, &pem);
        written.map_err(|e| NodeJoinError::Failed(error_chain(&e)))?;
    }
    Kubeconfig::load(path, &wanted.servers).map_err(|e| NodeJoinError::Usage(e.to_string()))
}

/// Makes the pair of the store the one that is used, so that a new one takes effect. One that the kubeconfig brings is put
/// there first, if it is to take its place. `own`: CN of this node.
fn adopt_stored_pair(config: &mut Kubeconfig, store: &CertificateStore, own: &str, now: WallTime) {
    let current = store.current_path();
    if let Some((KubeconfigMaterial::File(path), _)) = &config.user.certificate
        && same_file(path, &current)
    {
        return;
    }
    let kept = match store.read_current() {
        Ok(Some(pair)) => x509::read_chain(&pair.chain).ok(),
        _ => None,
    };
    let brought = bootstrap::client_certificate(config).ok().flatten();
    let [of_kept, of_brought] =
        [&kept, &brought].map(|chain| certificate_candidate(chain.as_deref()?));
    if certificates::is_certificate_replaced(of_kept, of_brought, own, now) {
        let pair = bootstrap::client_pair(config);
        let stored = pair.map_err(|e| error_chain(&e)).and_then(|(pem, key)| {
            let stored = store.store_pair(&pem, &key, now);
            stored.map_err(|e| error_chain(&e))
        });
        if let Err(why) = stored {
            log::warn!("the client certificate cannot be renewed: {why}");
            return;
        }
    }
    config.use_pair_file(&current);
}

fn certificate_candidate(chain: &[Certificate]) -> Option<CertificateCandidate<'_>> {
    let first = chain.first()?;
    Some(CertificateCandidate {
        common_name: &first.common_name,
        not_before: first.not_before,
        end: earliest_chain_end(chain)?,
    })
}

fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    use super::*;
    use crate::api::strict::from_json;
    use crate::config::{HostIdentity, default_config};
    use crate::kube::cluster_network::K3sCluster;
    use crate::kube::testing::{Authority, NOW, Pair, Validity};
    use crate::testing::TestDir;

    const OWN: &str = "system:node:n";
    /// A validity that has ended.
    const ENDED: Validity = (-7200, -3600);

    fn client(ca: &Authority, name: &str, holds: Validity) -> Pair {
        ca.client("system:nodes", name, holds)
    }

    /// A kubeconfig with that pair in it, or with a token.
    fn kubeconfig(pair: Option<&Pair>) -> String {
        let user = match pair {
            None => "token: t".to_owned(),
            Some(pair) => format!(
                "client-certificate-data: {}, client-key-data: {}",
                STANDARD.encode(&pair.certificate),
                STANDARD.encode(&pair.key)
            ),
        };
        format!(
            "clusters: [{{name: c, cluster: {{server: 'https://192.0.2.1:6443'}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        )
    }

    fn wanted(scratch: &TestDir) -> ClusterConfig {
        let defaults = default_config(&HostIdentity {
            hostname: "n".into(),
        });
        ClusterConfig {
            bootstrap_kubeconfig: Some(scratch.join("bootstrap")),
            ..defaults.expect("defaults").cluster
        }
    }

    #[test]
    fn an_ended_certificate_and_no_bootstrap_kubeconfig() {
        // BOOT-01
        let scratch = TestDir::new("join");
        let (ca, path) = (Authority::new(), scratch.join("kubelet.conf"));
        let store = CertificateStore::client(&scratch.join("pki"));
        store.recover().expect("directory");
        let wanted = wanted(&scratch);
        let of = || choose_credentials(&wanted, &path, &store, clock::wall_now(), true);
        let why = of().expect_err("neither").to_string();
        assert!(why.contains("kubelet.conf"), "{why}");

        let text = kubeconfig(Some(&client(&ca, OWN, ENDED)));
        fs::write(&path, &text).expect("file");
        let found = FoundKubeconfig::read_kubeconfig(&path, &[]);
        let why = found.describe_fault();
        assert!(
            why.contains("its client certificate: it expired at 2"),
            "{why}"
        );
        let config = of().expect("it is tried");
        assert!(matches!(
            config.user.certificate,
            Some((KubeconfigMaterial::Inline(_), _))
        ));
        assert_eq!(fs::read_to_string(&path).expect("kubeconfig"), text);

        // The file is there again.
        fs::write(scratch.join("bootstrap"), kubeconfig(None)).expect("file");
        let config = of().expect("begun");
        let file = KubeconfigMaterial::File(store.current_path());
        assert!(config.user.certificate == Some((file.clone(), file)));

        // One that cannot be read helps nobody.
        fs::write(
            &path,
            kubeconfig(None).replace("token: t", "client-certificate: /none, client-key: /none"),
        )
        .expect("file");
        fs::remove_file(scratch.join("bootstrap")).expect("removed");
        assert!(of().is_err());
    }

    #[test]
    fn servers_that_were_told_before_are_tried_too() {
        // K3SN-12
        let scratch = TestDir::new("join");
        let mut wanted = wanted(&scratch);
        wanted.servers = vec!["https://b.lan:6443".into()];
        assert_eq!(with_known_servers(&wanted, None), wanted);
        let cluster: K3sCluster = from_json(b"{}").expect("a description");
        let told = |all: &[&str]| {
            let all = all.iter().map(|&address| address.to_owned()).collect();
            with_known_servers(&wanted, Some(&cluster.to_facts(all))).servers
        };
        assert_eq!(
            told(&[
                "10.0.0.1:6443",
                "b.lan:6443",
                "a b",
                "c/?d",
                "[fd00::1]:6443"
            ]),
            [
                "https://b.lan:6443",
                "https://10.0.0.1:6443",
                "https://[fd00::1]:6443"
            ]
        );
        // With that of the kubeconfig they are as many as may be.
        let many: Vec<String> = (0..40).map(|n| format!("10.0.0.{n}:6443")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(told(&many).len() + 1, MAX_SERVERS);
    }

    #[test]
    fn what_the_kubeconfig_brings() {
        // BOOT-01
        let ca = Authority::new();
        let hours = |from: i64, to: i64| (from * 3600, to * 3600);
        for (name, kept, brought, taken) in [
            ("an older one", (OWN, NOW), (OWN, hours(-2, 1)), false),
            ("a newer one", (OWN, NOW), (OWN, (0, 3600)), true),
            (
                "kubeadm's, dated back to its CA",
                (OWN, ENDED),
                (OWN, hours(-9999, 1)),
                true,
            ),
            (
                "an older one that was renewed",
                (OWN, hours(-1, 9)),
                (OWN, hours(-8, 1)),
                false,
            ),
            (
                "of another name",
                ("system:node:before", NOW),
                (OWN, hours(-9, 1)),
                true,
            ),
        ] {
            let scratch = TestDir::new("join");
            let store = CertificateStore::client(&scratch.0);
            let (kept, brought) = (
                client(&ca, kept.0, kept.1),
                client(&ca, brought.0, brought.1),
            );
            store
                .store_pair(&kept.certificate, &kept.key, WallTime::from_unix_seconds(0))
                .expect("stored");
            let text = kubeconfig(Some(&brought));
            let mut config = Kubeconfig::parse("k".as_ref(), text.as_bytes(), &[]).expect("parsed");
            adopt_stored_pair(&mut config, &store, OWN, clock::wall_now());
            let file = KubeconfigMaterial::File(store.current_path());
            assert!(
                config.user.certificate == Some((file.clone(), file)),
                "{name}"
            );
            let used = store.read_current().expect("read").expect("a pair").chain;
            let used = String::from_utf8(used).expect("text");
            let want = if taken { &brought } else { &kept };
            assert!(used.starts_with(&want.certificate), "{name}");
        }
    }
}
