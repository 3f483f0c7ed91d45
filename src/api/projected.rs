//! Content of a configMap, secret, downwardAPI or projected volume: decided by `logic::projection`, written by `volume`.

/// A file of a projected volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectedFile {
    /// Relative path below the volume's root, as the items name it; checked when it is written.
    pub path: String,
    /// Content.
    pub data: Vec<u8>,
    /// Permission bits (`0o644`), applied whatever the umask.
    pub mode: u32,
    /// Owner; `None` is root. Only token files have one.
    pub owner: Option<u32>,
}
