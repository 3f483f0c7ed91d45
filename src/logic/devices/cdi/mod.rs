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

pub(crate) use edits::choose_file_by_dir;
pub use edits::{apply_edits, resolve_edits};
pub use file::read_named_devices;
pub(crate) use file::{is_cdi_kind, read_cdi_file};
