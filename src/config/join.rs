//! The configuration file of a machine that joins a cluster, as far as an agent has to know it: a join that was cut off is
//! finished at the agent's start.

use std::path::{Path, PathBuf};

use super::{ConfigError, file, read_bounded};

/// Name of the drop-in that the operator's file becomes, in [`default_drop_in_dir`]. It sorts before the operator's drop-ins,
/// for the file had a lower rank than all of them.
pub const OWN_DROP_IN: &str = "00-before-join.conf";
/// Name of that drop-in on a machine that joined with an earlier version.
pub const EARLIER_OWN_DROP_IN: &str = "50-before-join.conf";
/// Present content of the place of a node's configuration.
#[derive(Debug, PartialEq, Eq)]
pub enum ExistingNodeConfig {
    /// No file.
    Nothing,
    /// The operator's file, for a node that stands alone.
    Own(Vec<u8>),
    /// A file that names this kubeconfig: this machine is a node of a cluster.
    Member(String),
}

/// Looks at the configuration file at `path`.
pub fn read_existing_config(path: &Path) -> Result<ExistingNodeConfig, ConfigError> {
    let bytes = match read_bounded(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Ok(ExistingNodeConfig::Nothing);
        }
        Err(source) => {
            return Err(ConfigError::Read {
                path: path.into(),
                source,
            });
        }
    };
    let dir = path.parent().unwrap_or_else(|| Path::new("/"));
    let read = file::read_config_document(&bytes, dir).map_err(|source| ConfigError::Decode {
        path: path.display().to_string(),
        source,
    })?;
    Ok(match read.value["picolet"]["kubeconfig"].as_str() {
        None | Some("") => ExistingNodeConfig::Own(bytes),
        Some(kubeconfig) => ExistingNodeConfig::Member(kubeconfig.into()),
    })
}

/// Directory of drop-ins that is read beside the file at `path` without `--config-dir`.
#[must_use]
pub fn default_drop_in_dir(path: &Path) -> PathBuf {
    path.with_file_name("config.d")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_there() {
        let dir = crate::testing::unused_path("before");
        std::fs::create_dir_all(&dir).expect("directory");
        let path = dir.join("config.yaml");
        assert_eq!(
            read_existing_config(&path).expect("absent"),
            ExistingNodeConfig::Nothing
        );
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        for (rest, member) in [
            ("", false),
            ("picolet: {kubeconfig: ''}\n", false),
            ("picolet: {kubeconfig: /k}\n", true),
        ] {
            let text = format!("{head}{rest}");
            std::fs::write(&path, &text).expect("file");
            let expected = if member {
                ExistingNodeConfig::Member("/k".into())
            } else {
                ExistingNodeConfig::Own(text.into_bytes())
            };
            assert_eq!(read_existing_config(&path).expect(rest), expected);
        }
        std::fs::write(&path, "kind: [").expect("file");
        assert!(read_existing_config(&path).is_err());
        let _ = std::fs::remove_dir_all(&dir);
    }
}
