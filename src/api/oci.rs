//! OCI formats: runtime configuration (`config.json`), image manifest, index and configuration.
//!
//! Source: opencontainers/runtime-spec `config.md`, `config-linux.md`; opencontainers/image-spec.
