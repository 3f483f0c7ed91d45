//! Errors below an exchange: they tell whether the request was sent, and which server is not to be trusted.

use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{ConnectionDetails, Connector, NextTimeout, Transport};

use super::error::KubeError;
use crate::net::NameResolver;

/// Error before the request was sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct ConnectError(ureq::Error);

fn connect_error(error: ureq::Error) -> ureq::Error {
    ureq::Error::Other(Box::new(ConnectError(error)))
}

/// Marks the errors of connectors: the request was not sent.
#[derive(Debug)]
pub(super) struct MarkedConnector<C>(pub(super) C);

impl<In: Transport, C: Connector<In>> Connector<In> for MarkedConnector<C> {
    type Out = C::Out;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        self.0.connect(details, chained).map_err(connect_error)
    }
}

/// Marks the errors of names.
#[derive(Debug)]
pub(super) struct MarkedResolver(pub(super) NameResolver);

impl Resolver for MarkedResolver {
    fn resolve(
        &self,
        uri: &ureq::http::Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        self.0.resolve(uri, config, timeout).map_err(connect_error)
    }
}

/// Translates an error of the transport for the caller.
pub(super) fn transport_error(url: &str, error: ureq::Error) -> KubeError {
    let (mut error, mut sent) = (error, true);
    while let ureq::Error::Other(inner) = error {
        match inner.downcast::<ConnectError>() {
            Ok(inner) => {
                sent = false;
                error = inner.0;
            }
            Err(other) => {
                error = ureq::Error::Other(other);
                break;
            }
        }
    }
    // rustls speaks through the reader it wraps.
    if let ureq::Error::Io(e) = &error
        && let Some(e) = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>())
    {
        use rustls::{CertificateError as Certificate, Error::InvalidCertificate};
        let clock = matches!(
            e,
            InvalidCertificate(
                Certificate::Expired
                    | Certificate::ExpiredContext { .. }
                    | Certificate::NotValidYet
                    | Certificate::NotValidYetContext { .. }
            )
        );
        return KubeError::Tls {
            url: url_without_query(url).into(),
            why: e.to_string(),
            clock,
        };
    }
    KubeError::Unreachable {
        url: url_without_query(url).into(),
        why: error.to_string(),
        sent,
    }
}

/// URL without its query.
pub(super) fn url_without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or("")
}
