//! Linux capabilities of a container (RTM-10).

use alloc::{collections::BTreeSet, string::String, vec::Vec};

use crate::api::PodError;
use crate::api::cri::LinuxSecurity;
use crate::api::order::GatherExt;

/// Every capability of Linux 5.9 and later. Source: capabilities(7).
pub const ALL: [&str; 41] = [
    "CAP_AUDIT_CONTROL",
    "CAP_AUDIT_READ",
    "CAP_AUDIT_WRITE",
    "CAP_BLOCK_SUSPEND",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_KILL",
    "CAP_LEASE",
    "CAP_LINUX_IMMUTABLE",
    "CAP_MAC_ADMIN",
    "CAP_MAC_OVERRIDE",
    "CAP_MKNOD",
    "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_RAW",
    "CAP_PERFMON",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYSLOG",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_CHROOT",
    "CAP_SYS_MODULE",
    "CAP_SYS_NICE",
    "CAP_SYS_PACCT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_WAKE_ALARM",
];

/// Capabilities of a container that asks for none (RTM-10).
pub const DEFAULT: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// The capabilities of a container, sorted. `held` are those the agent can pass on; empty means not known.
///
/// Order: `ALL` in add, `ALL` in drop, single adds, single drops. What comes with the default set, `ALL` or privilege is
/// cut to what is held; a capability added by name is kept, so that a lack of it is an error of the runtime and not silent.
///
/// Errors: a name that is no capability.
pub fn effective_capabilities(
    security: &LinuxSecurity,
    held: &[String],
) -> Result<Vec<String>, PodError> {
    let everything = || -> BTreeSet<&str> { ALL.into_iter().gather_items() };
    let is_held = |name: &&str| held.is_empty() || held.iter().any(|h| h == *name);
    if security.privileged {
        return Ok(everything()
            .into_iter()
            .filter(is_held)
            .map(Into::into)
            .collect());
    }
    let add = parse_capability_names(&security.add_capabilities)?;
    let drop = parse_capability_names(&security.drop_capabilities)?;
    let mut set: BTreeSet<&str> = DEFAULT.into_iter().gather_items();
    if add.contains(&None) {
        set = everything();
    }
    if drop.contains(&None) {
        set.clear();
    }
    set.retain(is_held);
    set.extend(add.into_iter().flatten());
    for name in drop.into_iter().flatten() {
        set.remove(name);
    }
    Ok(set.into_iter().map(Into::into).collect())
}

/// Each as listed in [`ALL`]; `None` stands for the word `ALL`.
fn parse_capability_names(written: &[String]) -> Result<Vec<Option<&'static str>>, PodError> {
    written
        .iter()
        .map(|text| {
            let upper = text.to_ascii_uppercase();
            let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
            if short == "ALL" {
                return Ok(None);
            }
            ALL.into_iter()
                .find(|name| name.strip_prefix("CAP_") == Some(short))
                .map(Some)
                .ok_or_else(|| PodError::Spec(format!("unknown capability {text:?}")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::*;

    #[test]
    fn sets() {
        // RTM-10: default set, ALL, adds, drops, prefix; RTM-11: privileged means all.
        let default: Vec<&str> = DEFAULT.to_vec();
        let without = |names: &[&str]| -> Vec<&str> {
            let all = DEFAULT.into_iter();
            all.filter(|name| !names.contains(name)).collect()
        };
        for (name, privileged, add, drop, want) in [
            ("default", false, vec![], vec![], default.clone()),
            ("privileged", true, vec![], vec!["ALL"], ALL.to_vec()),
            ("add all", false, vec!["ALL"], vec![], ALL.to_vec()),
            ("drop all", false, vec![], vec!["all"], vec![]),
            (
                "drop all, add one",
                false,
                vec!["NET_BIND_SERVICE"],
                vec!["ALL"],
                vec!["CAP_NET_BIND_SERVICE"],
            ),
            (
                "drop beats add",
                false,
                vec!["NET_ADMIN"],
                vec!["CAP_NET_ADMIN", "mknod"],
                without(&["CAP_MKNOD"]),
            ),
            (
                "with prefix, in lower case",
                false,
                vec!["cap_sys_time"],
                vec!["ALL"],
                vec!["CAP_SYS_TIME"],
            ),
            ("both all", false, vec!["ALL"], vec!["ALL"], vec![]),
        ] {
            let security = LinuxSecurity {
                privileged,
                add_capabilities: add.into_iter().map(Into::into).collect(),
                drop_capabilities: drop.into_iter().map(Into::into).collect(),
                ..LinuxSecurity::default()
            };
            assert_eq!(
                effective_capabilities(&security, &[]).expect(name),
                want,
                "{name}"
            );
        }
    }

    #[test]
    fn agent_holds_less() {
        let held = ["CAP_CHOWN".to_owned(), "CAP_KILL".to_owned()];
        let mut security = LinuxSecurity::default();
        assert_eq!(
            effective_capabilities(&security, &held).expect("default"),
            ["CAP_CHOWN", "CAP_KILL"]
        );
        security.add_capabilities = vec!["NET_ADMIN".into()];
        assert_eq!(
            effective_capabilities(&security, &held).expect("add"),
            ["CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN"]
        );
        security.privileged = true;
        assert_eq!(
            effective_capabilities(&security, &held).expect("privileged"),
            ["CAP_CHOWN", "CAP_KILL"]
        );
    }

    #[test]
    fn unknown_name() {
        let security = LinuxSecurity {
            drop_capabilities: vec!["CAP_FLY".into()],
            ..LinuxSecurity::default()
        };
        assert_eq!(
            effective_capabilities(&security, &[]),
            Err(PodError::Spec("unknown capability \"CAP_FLY\"".into()))
        );
    }

    #[test]
    fn tables_are_sorted() {
        assert!(ALL.is_sorted() && DEFAULT.is_sorted());
        assert!(DEFAULT.iter().all(|name| ALL.contains(name)));
    }
}
