//! Hostile input against a real agent on a real runtime: manifests, archives, containers. Of each case the agent says one
//! clear line that names what and where, the pods beside it go on, and the agent's memory stays bounded.

#[macro_use]
#[path = "../common/skipped.rs"]
mod skipped;

#[path = "../common/held_port.rs"]
mod held_port;
#[path = "../host/host.rs"]
#[expect(dead_code, reason = "the tests of the host use the rest")]
mod host;
#[path = "../host/image.rs"]
mod image;

mod archives;
mod bystander;
mod containers;
mod escapes;
mod manifests;
