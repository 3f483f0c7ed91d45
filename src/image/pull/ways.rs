//! Ways to an image or artefact: one endpoint after the other, and at each of them one credential after the other.

use core::ops::ControlFlow;

use super::absent::Absent;
use crate::api::order::Order;
use crate::image::registry::hosts::Endpoint;
use crate::image::registry::http::Http;
use crate::image::registry::session::Session;
use crate::image::registry::{Credential, RegistryError};

/// Goes one way.
pub(super) type Through<'a> =
    dyn FnMut(&Session<'_>, &Endpoint, Option<&Credential>) -> ControlFlow<(), RegistryError> + 'a;

/// Goes one way after the other until `through` breaks. After a refusal the next credential is tried, after any other
/// failure the next endpoint. `credentials`: those to present at an endpoint, in order; without any it is asked
/// anonymously.
///
/// Returns the errors of the ways that failed.
pub(super) fn each(
    http: &Http<'_>,
    mut endpoints: Vec<Endpoint>,
    absent: &Absent,
    credentials: &dyn Fn(&Endpoint) -> Vec<Credential>,
    through: &mut Through<'_>,
) -> Vec<RegistryError> {
    let mut errors: Vec<RegistryError> = Vec::new();
    // Stable: of those that are there the first named comes first.
    endpoints.order_by_key(|endpoint| absent.has(&endpoint.base));
    let count = endpoints.len();
    for (n, mut endpoint) in endpoints.into_iter().enumerate() {
        http.settle(&mut endpoint);
        let credentials = credentials(&endpoint);
        let ways = if credentials.is_empty() {
            vec![None]
        } else {
            credentials.iter().map(Some).collect()
        };
        for credential in ways {
            let session = Session::new(http, &endpoint, credential, n + 1 < count);
            let ControlFlow::Continue(error) = through(&session, &endpoint, credential) else {
                return errors;
            };
            let refused = error.is_refusal();
            if matches!(error, RegistryError::Unreachable { .. }) {
                absent.add(&endpoint.base);
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
pub(super) fn joined(errors: &[RegistryError]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for error in errors {
        let text = error.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join("; ")
}
