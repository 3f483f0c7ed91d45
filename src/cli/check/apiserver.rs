//! Looks at the kubeconfig, and asks the apiserver for this node's lease: any answer shows that it is there.

use alloc::sync::Arc;
use core::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use crate::{
    api::WallTime,
    config::AgentConfig,
    error::error_chain,
    kube::{
        ClientTimeouts, HttpApi, KubeApi as _, Kubeconfig, RequestRates, SharedApiserver,
        bootstrap,
        join::k3s::{self, K3sSupervisor},
        store::CertificateStore,
        x509::Certificate,
    },
    logic::{
        check::{ApiserverAnswer, ApiserverFacts, BootstrapKubeconfig},
        server_clock::is_clock_wrong,
    },
    net::ProxyVariables,
};

/// Time after which an apiserver counts as silent.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Looks at the apiserver. `None`: this machine is no node of a cluster.
pub(super) fn gather_apiserver(
    cfg: &AgentConfig,
    proxies: ProxyVariables,
) -> Option<ApiserverFacts> {
    let wanted = &cfg.cluster;
    let path = wanted.kubeconfig.as_ref()?;
    let mut facts = ApiserverFacts {
        kubeconfig: path.display().to_string(),
        bootstrap: wanted.bootstrap_kubeconfig.as_ref().map(|path| {
            match Kubeconfig::load(path, &wanted.servers) {
                Ok(_) => BootstrapKubeconfig::Usable(path.display().to_string()),
                Err(e) => BootstrapKubeconfig::Unusable(e.to_string()),
            }
        }),
        ..ApiserverFacts::default()
    };
    let kept = wanted
        .renewed_certificate_dir()
        .map(CertificateStore::client);
    let config = match bootstrap::kubeconfig_in_use(path, &wanted.servers, kept.as_ref()) {
        Ok(config) => config,
        Err(e) => {
            facts.error = Some(e.to_string());
            return Some(facts);
        }
    };
    facts.server = config.servers.first().map_or_else(String::new, |url| {
        url.to_string().trim_end_matches('/').to_owned()
    });
    facts.renews = kept.is_some() && config.user.certificate.is_some();
    match bootstrap::client_certificate(&config) {
        Ok(None) => {}
        Ok(Some(chain)) => facts.certificate = chain_validity(&chain),
        Err(why) => {
            let path = path.display();
            let why = error_chain(&why);
            facts.error = Some(format!("kubeconfig {path}: its client certificate: {why}"));
            return Some(facts);
        }
    }
    let k3s = wanted
        .k3s
        .as_ref()
        .map(|(server, _)| K3sSupervisor::for_member(config.clone(), server, &proxies));
    let skew = Arc::new(AtomicI64::new(0));
    let heard = Arc::clone(&skew);
    let on_date = move |theirs: WallTime, ours: WallTime| {
        heard.store(
            ours.unix_seconds().saturating_sub(theirs.unix_seconds()),
            Ordering::Relaxed,
        );
    };
    let cluster = Arc::new(SharedApiserver::new(
        config,
        proxies,
        Some(Box::new(on_date)),
    ));
    let timeouts = ClientTimeouts {
        connect: ANSWER_TIME,
        answer: ANSWER_TIME,
        stall: ANSWER_TIME,
        whole: Some(ANSWER_TIME),
    };
    let api = HttpApi::new(
        &cluster,
        timeouts,
        RequestRates::default(),
        Some(ANSWER_TIME),
    );
    facts.answer = Some(match api.read_lease(&cfg.node_name) {
        Ok(_) => ApiserverAnswer::Given,
        Err(e) if e.is_answer() && e.http_status() != Some(401) => ApiserverAnswer::Given,
        Err(e) => ApiserverAnswer::Silent(e.to_string()),
    });
    let said = k3s.filter(|_| facts.answer == Some(ApiserverAnswer::Given));
    let cluster = said.and_then(|supervisor| supervisor.read_cluster().ok());
    facts.k3s = cluster.as_ref().map(|cluster| cluster.to_facts(Vec::new()));
    facts.tunnel = cluster
        .filter(k3s::K3sCluster::wants_tunnel)
        .map(|cluster| cluster.egress_selector_mode);
    let ahead = skew.load(Ordering::Relaxed);
    if is_clock_wrong(ahead) {
        let word = if ahead > 0 { "ahead of" } else { "behind" };
        facts.clock = Some(format!(
            "the clock of this machine is {} s {word} the apiserver's",
            ahead.unsigned_abs()
        ));
    }
    Some(facts)
}

/// Returns the time in which all certificates of a chain are valid.
fn chain_validity(chain: &[Certificate]) -> Option<(WallTime, WallTime)> {
    let begins = chain.iter().map(|c| c.not_before).max()?;
    let ends = chain.iter().map(|c| c.not_after).min()?;
    Some((begins, ends))
}
