//! ConfigMaps, Secrets, services, claims, tokens and trust bundles that pods refer to: read when they are needed and old, kept on disk, in
//! memory only while somebody uses them.
//!
//! | file | what it is |
//! |---|---|
//! | `store` | [`ObjectStore`], who owns what is known of them |
//! | `content`, `files`, `loaded` | what a read gives; its copy on disk; what one step uses |
//! | `loads`, `claims`, `tokens`, `token_times` | what steps of a pod ask for |
//! | `pod_certificates` | certificates that the agent gets for pods |
//! | `certificate_api` | versions of the API of certificates, and trust bundles |
//! | `upkeep` | what is done beside the pods |
//!
//! What is due is decided by [`ObjectTable`](crate::logic::object_table::ObjectTable). A read that fails leaves what was
//! there: only "not found" is an answer (OBJ-04). While the apiserver is silent, what is on disk is used, also by an agent
//! that has started without it (OFF-02).

mod certificate_api;
mod claims;
mod content;
mod files;
mod loaded;
mod loads;
mod pod_certificates;
mod store;
mod token_times;
mod tokens;
mod upkeep;

pub(in crate::agent) use loaded::LoadedObjects;
pub(in crate::agent) use store::ObjectStore;
pub(super) use store::ObjectTools;
pub(super) use upkeep::ObjectKeeper;
