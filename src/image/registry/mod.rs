//! The registry client: from a reference to bytes whose digest is right.
//!
//! | module | content |
//! |---|---|
//! | [`hosts`] | `registries.yaml`: mirrors, rewrites, TLS; the endpoints of a reference |
//! | [`keyring`] | credentials, and the choice for an image |
//! | [`http`] | an exchange: redirects, time limits; below it is [`crate::net`] |
//! | [`challenge`], [`session`] | credentials as asked for, retries, documents |
//! | [`blob`] | layers: resumed, checked |
//! | [`pace`] | delays, the bandwidth cap |
//!
//! Everything blocks: it runs on threads of a pull, never on the deciding one. A registry's answers are untrusted:
//! every length is bounded, nothing is used before its digest is checked, a secret goes to the origin that asked for it.
//!
//! Source: opencontainers/distribution-spec 1.1; distribution `docs/content/spec/auth`.

pub(in crate::image) mod blob;
mod challenge;
pub mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod hosts;
pub mod http;
pub mod keyring;
pub mod pace;
pub(in crate::image) mod session;

pub use error::RegistryError;
pub use hosts::RegistriesConfig;
pub use http::RegistryTimeLimits;
pub use keyring::{DockerConfig, Keyring, RegistryCredential};
