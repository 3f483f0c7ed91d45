//! Ways to an image or artefact: one endpoint after the other, and at each of them one credential after the other.

use core::ops::ControlFlow;

use super::absent::AbsentServers;
use crate::api::order::OrderExt;
use crate::image::registry::hosts::RegistryEndpoint;
use crate::image::registry::http::RegistryHttp;
use crate::image::registry::session::RegistrySession;
use crate::image::registry::{RegistryCredential, RegistryError};

/// Tries one way: one credential, or none, at one endpoint.
pub(super) type RegistryAttempt<'a> = dyn FnMut(
        &RegistrySession<'_>,
        &RegistryEndpoint,
        Option<&RegistryCredential>,
    ) -> ControlFlow<(), RegistryError>
    + 'a;

/// Tries one way after the other until `attempt` breaks. After a refusal the next credential is tried, after any other
/// failure the next endpoint. `credentials` returns the credentials for an endpoint, in order. An endpoint without any
/// is asked anonymously.
///
/// Returns the errors of the ways that failed.
pub(super) fn try_endpoints(
    http: &RegistryHttp<'_>,
    mut endpoints: Vec<RegistryEndpoint>,
    absent: &AbsentServers,
    credentials: &dyn Fn(&RegistryEndpoint) -> Vec<RegistryCredential>,
    attempt: &mut RegistryAttempt<'_>,
) -> Vec<RegistryError> {
    let mut errors: Vec<RegistryError> = Vec::new();
    // The sort is stable: servers that are not absent keep their order.
    endpoints.stable_sort_by_key(|endpoint| absent.is_absent(&endpoint.base));
    let count = endpoints.len();
    for (n, mut endpoint) in endpoints.into_iter().enumerate() {
        http.settle_scheme(&mut endpoint);
        let credentials = credentials(&endpoint);
        let ways = if credentials.is_empty() {
            vec![None]
        } else {
            credentials.iter().map(Some).collect()
        };
        for credential in ways {
            let session = RegistrySession::new(http, &endpoint, credential, n + 1 < count);
            let ControlFlow::Continue(error) = attempt(&session, &endpoint, credential) else {
                return errors;
            };
            let refused = error.is_refusal();
            if matches!(error, RegistryError::Unreachable { .. }) {
                absent.mark_absent(&endpoint.base);
            }
            errors.push(error);
            if !refused {
                break;
            }
        }
    }
    errors
}

/// Joins the errors of all ways into one text.
pub(super) fn join_errors(errors: &[RegistryError]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for error in errors {
        let text = error.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join("; ")
}
