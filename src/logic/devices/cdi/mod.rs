//! Devices as their vendors describe them in files: Container Device Interface, CDI.
//!
//! | file | what it is |
//! |---|---|
//! | `file` | reader of a file, with its checks |
//! | `edits` | choice of the file for each device, and the changes to a container's configuration |
//!
//! Source: cncf-tags/container-device-interface `SPEC.md` (1.1.0).

mod edits;
mod file;

pub(crate) use edits::winner;
pub use edits::{apply, resolve};
pub use file::read_named;
pub(crate) use file::{is_kind, read};
