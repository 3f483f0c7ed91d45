//! Flags of `k3s agent` that `picolet join --k3s` takes under their own names, and what they are to the agent (K3SN-14).
//! The others have the same name there, or are refused by it.

use std::{ffi::OsString, fs, io, io::Read as _, path::Path};

use crate::{cli::CliError, kube::join::k3s::make_node_id, sys::file};

/// Name of the file with the ID of the node, beside that with its password.
const ID_FILE: &str = "id";
/// Hexadecimal digits of an ID.
const ID_DIGITS: usize = 8;

/// Flags of `k3s agent` as typed.
#[derive(Default)]
pub(super) struct K3sAgentFlags {
    name: Option<String>,
    labels: Vec<String>,
    taints: Vec<String>,
    kubelet_args: Vec<String>,
    with_id: bool,
}

impl K3sAgentFlags {
    /// Takes one of them; false: it is none.
    pub(super) fn take_flag(&mut self, name: &str, value: &str, is_on: bool) -> bool {
        match name {
            "node-name" => self.name = Some(value.into()),
            "node-label" => self.labels.push(value.into()),
            "node-taint" => self.taints.push(value.into()),
            "kubelet-arg" => self.kubelet_args.push(value.into()),
            "with-node-id" => self.with_id = is_on,
            _ => return false,
        }
        true
    }

    /// Returns true if none was typed.
    pub(super) const fn is_empty(&self) -> bool {
        self.name.is_none()
            && self.labels.is_empty()
            && self.taints.is_empty()
            && self.kubelet_args.is_empty()
            && !self.with_id
    }

    /// Flags of the agent that mean the same. `id`: that of the node, if its name is to have it.
    fn to_agent_words(&self, hostname: &str, id: Option<&str>) -> Vec<OsString> {
        let mut words = Vec::new();
        let mut add = |name: &str, value: &str| words.push(format!("--{name}={value}").into());
        match (&self.name, id) {
            (name, Some(id)) => {
                let name = name.as_deref().unwrap_or(hostname);
                add("hostname-override", &format!("{name}-{id}"));
            }
            (Some(name), None) => add("hostname-override", name),
            (None, None) => {}
        }
        for (flag, values) in [
            ("node-labels", &self.labels),
            ("register-with-taints", &self.taints),
        ] {
            if !values.is_empty() {
                add(flag, &values.join(","));
            }
        }
        for argument in &self.kubelet_args {
            let (name, value) = argument.split_once('=').unwrap_or((argument, "true"));
            add(name.trim_start_matches('-'), value);
        }
        words
    }

    /// Flags of the agent that mean the same. `password_file`: the ID of the node is beside it, and made if it is not
    /// there.
    pub(super) fn agent_words(
        &self,
        hostname: &str,
        password_file: &Path,
    ) -> Result<Vec<OsString>, CliError> {
        let id = match self.with_id {
            true => {
                let path = password_file.with_file_name(ID_FILE);
                let id = read_or_make_id(&path);
                Some(id.map_err(|e| CliError::new(format!("{}: {e}", path.display())))?)
            }
            false => None,
        };
        Ok(self.to_agent_words(hostname.trim(), id.as_deref()))
    }
}

fn read_or_make_id(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let most = u64::try_from(2 * ID_DIGITS).unwrap_or(u64::MAX);
    match fs::File::open(path).and_then(|file| file.take(most).read_to_string(&mut text)) {
        Ok(_) => {
            let id = text.trim();
            let is_id = id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
            return match is_id {
                true => Ok(id.to_ascii_lowercase()),
                false => Err(io::Error::other("it holds no ID of a node")),
            };
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Err(_) => {}
    }
    let id = make_node_id().map_err(|e| io::Error::other(e.to_string()))?;
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    file::write_atomic(path, format!("{id}\n").as_bytes(), 0o644, true)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn flags_of_an_agent_of_k3s() {
        // K3SN-14
        let scratch = TestDir::new("k3s-flags");
        let password = scratch.join("password");
        let words = |typed: &[(&str, &str)]| {
            let mut flags = K3sAgentFlags::default();
            for (name, value) in typed {
                assert!(flags.take_flag(name, value, *value == "true"), "{name}");
            }
            assert_eq!(flags.is_empty(), typed.is_empty());
            flags.agent_words("pi", &password)
        };
        let text = |typed: &[(&str, &str)]| -> Vec<String> {
            let words = words(typed).expect("words");
            words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect()
        };
        assert_eq!(text(&[]), [""; 0]);
        assert_eq!(
            text(&[
                ("node-label", "a=b"),
                ("node-taint", "k=v:NoSchedule"),
                ("node-label", "c=d"),
                ("node-name", "board"),
                ("kubelet-arg", "max-pods=9"),
                ("kubelet-arg", "rotate-certificates"),
            ]),
            [
                "--hostname-override=board",
                "--node-labels=a=b,c=d",
                "--register-with-taints=k=v:NoSchedule",
                "--max-pods=9",
                "--rotate-certificates=true",
            ]
        );
        // The ID is made once.
        assert!(!scratch.join("id").exists());
        let first = text(&[("with-node-id", "true")]);
        let id = fs::read_to_string(scratch.join("id")).expect("an ID");
        assert_eq!(first, [format!("--hostname-override=pi-{}", id.trim())]);
        assert_eq!(id.trim().len(), ID_DIGITS);
        assert_eq!(text(&[("with-node-id", "true")]), first);
        let named = text(&[("with-node-id", "true"), ("node-name", "board")]);
        assert_eq!(named, [format!("--hostname-override=board-{}", id.trim())]);
        fs::write(scratch.join("id"), "../../x").expect("written");
        assert!(words(&[("with-node-id", "true")]).is_err());
        assert!(!K3sAgentFlags::default().take_flag("token", "t", false));
    }
}
