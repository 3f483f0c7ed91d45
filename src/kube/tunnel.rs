//! Credentials of this node for the server of a tunnel: those for the apiserver, or a token of its own (TUN-09).

use alloc::sync::Arc;
use std::path::Path;

use rustls::{ClientConfig, client::Resumption};

use super::{
    bootstrap::kubeconfig_in_use,
    credentials::{pem, read_token},
    error::KubeError,
    kubeconfig::Trust,
    store::Store,
};
use crate::{
    error::chain,
    net::tls::{self, Identity, Pem, Roots},
};

/// Reads the credentials anew, from a few small files: a renewed certificate is shown on the next connection.
///
/// - `kept`: directory in which this node keeps the certificate that it renews, if it does.
/// - `ca`: CAs of the servers, if they are not the apiserver's.
/// - `token_file`: a token is shown instead of the certificate. It is returned.
pub(crate) fn credentials(
    kubeconfig: &Path,
    kept: Option<&Store>,
    ca: Option<&Path>,
    token_file: Option<&Path>,
) -> Result<(Arc<ClientConfig>, Option<String>), KubeError> {
    let local = KubeError::Local;
    let config = kubeconfig_in_use(kubeconfig, &[], kept).map_err(|e| local(e.to_string()))?;
    let roots = match (ca, &config.trust) {
        (Some(path), _) => Roots::Only(Pem::File(path)),
        (None, Trust::Ca(material)) => Roots::Only(pem("certificate-authority-data", material)),
        (None, Trust::System | Trust::Any) => Roots::SystemAnd(None),
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
            let identity = Identity {
                chain: pem("client-certificate-data", chain),
                key: pem("client-key-data", key),
            };
            (Some(identity), None)
        }
    };
    let config = tls::config(roots, identity).map_err(|e| local(chain(&e)))?;
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A connection lasts for days.
    config.resumption = Resumption::disabled();
    Ok((Arc::new(config), token))
}
