//! Credentials of this node for the server of a tunnel: those for the apiserver, or a token of its own (TUN-09).

use alloc::sync::Arc;
use std::path::Path;

use rustls::{ClientConfig, client::Resumption};

use crate::{
    error::error_chain,
    kube::{
        KubeError,
        bootstrap::kubeconfig_in_use,
        credentials::{pem_source, read_token},
        kubeconfig::ServerTrust,
        store::CertificateStore,
    },
    net::tls::{self, ClientIdentity, PemSource, ServerRoots},
};

/// Reads the credentials anew, from a few small files: a renewed certificate is shown on the next connection.
///
/// - `kept`: directory in which this node keeps the certificate that it renews, if it does.
/// - `ca`: CAs of the servers, if they are not the apiserver's.
/// - `token_file`: a token is shown instead of the certificate. It is returned.
/// - `protocol`: what is spoken within TLS.
pub(super) fn read_credentials(
    kubeconfig: &Path,
    kept: Option<&CertificateStore>,
    ca: Option<&Path>,
    token_file: Option<&Path>,
    protocol: &[u8],
) -> Result<(Arc<ClientConfig>, Option<String>), KubeError> {
    let local = KubeError::Local;
    let config = kubeconfig_in_use(kubeconfig, &[], kept).map_err(|e| local(e.to_string()))?;
    let roots = match (ca, &config.trust) {
        (Some(path), _) => ServerRoots::Only(PemSource::File(path)),
        (None, ServerTrust::Ca(material)) => {
            ServerRoots::Only(pem_source("certificate-authority-data", material))
        }
        (None, ServerTrust::System | ServerTrust::Any) => ServerRoots::SystemAnd(None),
    };
    let (identity, token) = match token_file {
        Some(path) => {
            let token = read_token(path);
            let failed = |e| local(format!("token {}: {e}", path.display()));
            (None, Some(token.map_err(failed)?))
        }
        None => {
            let Some((chain, key)) = &config.user.certificate else {
                let why = format!(
                    "{} has no client certificate to show: set picolet.tunnel.tokenFile",
                    kubeconfig.display()
                );
                return Err(local(why));
            };
            let identity = ClientIdentity {
                chain: pem_source("client-certificate-data", chain),
                key: pem_source("client-key-data", key),
            };
            (Some(identity), None)
        }
    };
    let config = tls::client_config(roots, identity).map_err(|e| local(error_chain(&e)))?;
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![protocol.to_vec()];
    // A connection lasts for days.
    config.resumption = Resumption::disabled();
    Ok((Arc::new(config), token))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        api::WallTime,
        kube::testing::{Authority, NOW, Pair},
        testing::TestDir,
    };

    #[test]
    fn the_tunnel_shows_what_was_renewed() {
        // TUN-09
        let ca = Authority::new();
        let scratch = TestDir::new("credentials");
        let own = |_| ca.client("system:nodes", "system:node:a", NOW);
        let [brought, first, second] = [(), (), ()].map(own);
        let pem = scratch.join("brought.pem");
        fs::write(&pem, brought.both()).expect("pair");
        let path = scratch.join("kubelet.conf");
        let text = |user: &str| {
            format!(
                "current-context: a\nclusters: [{{name: c, cluster: {{server: 'https://192.0.2.1'}}}}]\n\
                 users: [{{name: u, user: {{{user}}}}}]\n\
                 contexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n"
            )
        };
        let user = format!(
            "client-certificate: '{0}', client-key: '{0}'",
            pem.display()
        );
        fs::write(&path, text(&user)).expect("kubeconfig");
        let store = CertificateStore::client(&scratch.join("pki"));
        store.recover().expect("directory");
        // As each dial reads it.
        let shown = |kept: Option<&CertificateStore>| {
            let (config, token) =
                read_credentials(&path, kept, None, None, b"h2").expect("credentials");
            assert_eq!(token, None);
            let schemes = [rustls::SignatureScheme::ECDSA_NISTP256_SHA256];
            let pair = config.client_auth_cert_resolver.resolve(&[], &schemes);
            pair.expect("a certificate").cert[0].to_vec()
        };
        let der = |pair: &Pair| {
            let all = tls::parse_certificates(pair.certificate.as_bytes());
            all[0].to_vec()
        };
        assert_eq!(shown(Some(&store)), der(&brought), "there is no other yet");
        for (pair, at) in [(&first, 0), (&second, 60)] {
            let at = WallTime::from_unix_seconds(at);
            store
                .store_pair(&pair.certificate, &pair.key, at)
                .expect("renewed");
            assert_eq!(shown(Some(&store)), der(pair));
        }
        assert_eq!(shown(None), der(&brought), "this node renews none");
        // Who shows a token to the apiserver has no certificate to show.
        fs::write(&path, text("token: t")).expect("kubeconfig");
        assert!(read_credentials(&path, Some(&store), None, None, b"h2").is_err());
    }
}
