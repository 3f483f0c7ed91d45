//! Pod sources: the manifest directory.
