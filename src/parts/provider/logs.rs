//! Logs that providers keep.

use core::fmt::Write as _;

use super::{PodProviders, socket::StreamedBody, wire::ProviderError};
use crate::{
    api::ContainerId,
    error::error_chain,
    server::{
        backend::{BackendReply, IncomingText},
        http::{Refusal, percent_encode},
        log_reader::LogOptions,
    },
};

impl IncomingText for StreamedBody {
    fn next_piece(&mut self) -> BackendReply<'_, Option<Vec<u8>>> {
        Box::pin(async { Self::next_piece(self).await.map_err(|e| log_refusal(&e)) })
    }
}

fn log_refusal(error: &ProviderError) -> Refusal {
    match error {
        ProviderError::Refused { status: 404, text } => Refusal::not_found(text.clone()),
        other => Refusal::new(503, error_chain(other)),
    }
}

impl PodProviders {
    /// The log of a container, from the provider or the runtime that runs it.
    pub(super) async fn read_log(
        &self,
        id: &ContainerId,
        options: &LogOptions,
    ) -> Result<Box<dyn IncomingText>, Refusal> {
        let gone = || Refusal::not_found(format!("container {id} is not there any more"));
        let (provider, uid, name) = self.find_container(id).ok_or_else(gone)?;
        let mut target = format!("/pods/{uid}/logs/{name}?");
        if let Some(tail) = options.tail {
            let _ = write!(target, "tailLines={tail}&");
        }
        if let Some(since) = options.since {
            let _ = write!(target, "sinceTime={}&", percent_encode(&since.to_string()));
        }
        for (name, is_set) in [
            ("follow", options.follow),
            ("timestamps", options.timestamps),
        ] {
            if is_set {
                let _ = write!(target, "{name}=1&");
            }
        }
        target.pop();
        let body = provider.wire.open_stream("GET", target).await;
        Ok(Box::new(body.map_err(|e| log_refusal(&e))?))
    }
}
