//! User and groups that a container runs as, from its settings, its image and the image's `/etc/passwd` and
//! `/etc/group`.
//!
//! The backend reads those two files inside the container's root file system; the rule is here.

use alloc::{collections::BTreeSet, string::ToString};

use crate::api::order::GatherExt;
use crate::api::{PodError, cri::LinuxSecurity, oci::ResolvedUser};

/// Decides uid, gid and supplementary groups (RTM-10, SEC-04).
///
/// - `image_user`: `config.User` of the image; used when neither a uid nor a name is given.
/// - `passwd`, `group`: contents of the files; empty if absent. Malformed lines are skipped, as the C library does.
/// - Errors: a name that the files do not have; a group without a user; an id outside 0..2^31.
pub fn resolve_user(
    security: &LinuxSecurity,
    image_user: &str,
    passwd: &str,
    group: &str,
) -> Result<ResolvedUser, PodError> {
    let from_image = security.run_as_user.is_none() && security.username.is_empty();
    if from_image && security.run_as_group.is_some() {
        return Err(PodError::Spec(
            "a group to run as is given without a user".into(),
        ));
    }
    let (image_name, image_group) = image_user.split_once(':').unwrap_or((image_user, ""));
    let uid_text;
    let who = match security.run_as_user {
        Some(uid) => {
            uid_text = uid.to_string();
            &uid_text
        }
        None if !security.username.is_empty() => &security.username,
        None => image_name,
    };
    let account = find_account(if who.is_empty() { "0" } else { who }, passwd)?;
    let gid = match security.run_as_group {
        Some(gid) => check_id(gid)?,
        None if from_image && !image_group.is_empty() => group_id(image_group, group)?,
        None => account.gid,
    };
    let mut groups: BTreeSet<u32> = [gid].into_iter().gather_items();
    if !security.strict_supplemental_groups
        && let Some(name) = account.name
    {
        groups.extend(groups_of_member(name, group));
    }
    for &gid in &security.supplemental_groups {
        groups.insert(check_id(gid)?);
    }
    Ok(ResolvedUser {
        uid: account.uid,
        gid,
        additional_gids: groups.into_iter().collect(),
    })
}

struct PasswdAccount<'a> {
    name: Option<&'a str>,
    uid: u32,
    gid: u32,
}

fn find_account<'a>(who: &str, passwd: &'a str) -> Result<PasswdAccount<'a>, PodError> {
    let entries = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let uid = parse_id(fields.nth(1)?)?;
        let gid = parse_id(fields.next()?)?;
        Some(PasswdAccount {
            name: Some(name),
            uid,
            gid,
        })
    });
    if let Ok(number) = who.parse::<i64>() {
        let uid = check_id(number)?;
        let mut entries = entries;
        return Ok(entries
            .find(|entry| entry.uid == uid)
            .unwrap_or(PasswdAccount {
                name: None,
                uid,
                gid: 0,
            }));
    }
    let mut entries = entries;
    entries
        .find(|entry| entry.name == Some(who))
        .ok_or_else(|| PodError::Image(format!("user {who:?} is not in /etc/passwd of the image")))
}

/// (name, gid, members) of each group.
fn parse_groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let gid = parse_id(fields.nth(1)?)?;
        Some((name, gid, fields.next().unwrap_or("")))
    })
}

fn group_id(who: &str, group: &str) -> Result<u32, PodError> {
    if let Ok(number) = who.parse::<i64>() {
        return check_id(number);
    }
    parse_groups(group)
        .find(|(name, ..)| *name == who)
        .map(|(_, gid, _)| gid)
        .ok_or_else(|| PodError::Image(format!("group {who:?} is not in /etc/group of the image")))
}

fn groups_of_member<'a>(name: &'a str, group: &'a str) -> impl Iterator<Item = u32> {
    parse_groups(group)
        .filter(move |(_, _, members)| members.split(',').any(|member| member.trim() == name))
        .map(|(_, gid, _)| gid)
}

/// Reads an id from a file, in the range of [`check_id`]: a line with another is malformed. All ones means "unchanged" to the
/// kernel, so some runtimes would leave the process to root.
fn parse_id(text: &str) -> Option<u32> {
    check_id(text.trim().parse().ok()?).ok()
}

/// Checks an id: the API allows 0..2^31.
fn check_id(number: i64) -> Result<u32, PodError> {
    i32::try_from(number)
        .ok()
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| {
            PodError::Spec(format!(
                "{number} is not a user or group id (0 to 2147483647)"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken line\napp:x:1000:50::/:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nwheel:x:10:root\nbroken\nstaff:x:50:\nvideo:x:44:pi, app\n";

    fn security(uid: Option<i64>, name: &str, gid: Option<i64>) -> LinuxSecurity {
        LinuxSecurity {
            run_as_user: uid,
            username: name.into(),
            run_as_group: gid,
            ..LinuxSecurity::default()
        }
    }

    fn ids(uid: u32, gid: u32, groups: &[u32]) -> Result<ResolvedUser, PodError> {
        Ok(ResolvedUser {
            uid,
            gid,
            additional_gids: groups.to_vec(),
        })
    }

    #[test]
    fn rules() {
        // RTM-10 SEC-02
        let image = |why: &str| Err(PodError::Image(why.into()));
        let spec = |why: &str| Err(PodError::Spec(why.into()));
        for (name, security, image, want) in [
            (
                "nothing said",
                security(None, "", None),
                "",
                ids(0, 0, &[0, 10]),
            ),
            (
                "known uid",
                security(Some(1000), "", None),
                "",
                ids(1000, 50, &[44, 50]),
            ),
            (
                "unknown uid has group 0",
                security(Some(7), "", None),
                "app",
                ids(7, 0, &[0]),
            ),
            (
                "uid and group",
                security(Some(1000), "", Some(9)),
                "",
                ids(1000, 9, &[9, 44]),
            ),
            (
                "uid wins over name",
                security(Some(7), "app", None),
                "",
                ids(7, 0, &[0]),
            ),
            (
                "name",
                security(None, "app", None),
                "",
                ids(1000, 50, &[44, 50]),
            ),
            (
                "image name",
                security(None, "", None),
                "app",
                ids(1000, 50, &[44, 50]),
            ),
            (
                "image name and group",
                security(None, "", None),
                "app:wheel",
                ids(1000, 10, &[10, 44]),
            ),
            (
                "image ids",
                security(None, "", None),
                "5:6",
                ids(5, 6, &[6]),
            ),
            (
                "unknown name",
                security(None, "ghost", None),
                "",
                image("user \"ghost\" is not in /etc/passwd of the image"),
            ),
            (
                "unknown group",
                security(None, "", None),
                "app:ghost",
                image("group \"ghost\" is not in /etc/group of the image"),
            ),
            (
                "group without user",
                security(None, "", Some(5)),
                "app",
                spec("a group to run as is given without a user"),
            ),
            (
                "negative",
                security(Some(-1), "", None),
                "",
                spec("-1 is not a user or group id (0 to 2147483647)"),
            ),
        ] {
            assert_eq!(
                resolve_user(&security, image, PASSWD, GROUP),
                want,
                "{name}"
            );
        }
        let none = resolve_user(&security(Some(3), "", None), "", "", "");
        assert_eq!(none, ids(3, 0, &[0]), "no files in the image");
    }

    #[test]
    fn supplementary_groups() {
        // SEC-04
        let mut security = security(Some(1000), "", None);
        security.supplemental_groups = vec![3000, 44, 2000];
        let merged = resolve_user(&security, "", PASSWD, GROUP);
        assert_eq!(merged, ids(1000, 50, &[44, 50, 2000, 3000]), "Merge");
        security.supplemental_groups = vec![3000];
        security.strict_supplemental_groups = true;
        let strict = resolve_user(&security, "", PASSWD, GROUP);
        assert_eq!(strict, ids(1000, 50, &[50, 3000]), "Strict");
    }

    /// All ones means "as it was" to the kernel. Found by fuzzing.
    #[test]
    fn ids_beyond_the_api_are_no_ids() {
        let group = "all:x:4294967295:app\nhalf:x:2147483648:app\n";
        for line in ["app:x:4294967295:0::/:", "app:x:0:4294967295::/:"] {
            let found = resolve_user(&security(None, "app", None), "", line, group);
            let missing = Err(PodError::Image(
                "user \"app\" is not in /etc/passwd of the image".into(),
            ));
            assert_eq!(found, missing, "{line}");
        }
        let found = resolve_user(&security(None, "app", None), "", PASSWD, group);
        assert_eq!(found, ids(1000, 50, &[50]));
    }
}
