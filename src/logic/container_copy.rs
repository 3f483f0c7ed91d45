//! Rules of `picolet cp`: paths that a tar stream may write to.
//!
//! Source: kubectl's cp.go.

use alloc::vec::Vec;

/// Splits a path into its names. `..` takes away the name before it, and is nothing at the start, as for tar.
#[must_use]
pub fn clean_path(path: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    names
}

/// Finds the place of a tar entry below the target: a relative path, empty for the target itself. `source`: the path
/// that was asked for, as [`clean_path`] splits it.
///
/// Returns `None` if the entry is not part of the source, or could leave the target.
#[must_use]
pub fn path_in_target(entry: &[u8], source: &[&str]) -> Option<Vec<u8>> {
    let names = entry.split(|&b| b == b'/');
    let mut names = names.filter(|name| !matches!(*name, b"" | b"."));
    if !source
        .iter()
        .all(|name| names.next() == Some(name.as_bytes()))
    {
        return None;
    }
    let below: Vec<&[u8]> = names.collect();
    let leaves = below.iter().any(|name| *name == b".." || name.contains(&0));
    (!leaves).then(|| below.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_entries() {
        // CMD-08
        for (source, entry, place) in [
            ("/etc/app", "etc/app/", Some("")),
            ("/etc/app", "etc/app/a/b", Some("a/b")),
            ("etc/app/", "./etc//app/a", Some("a")),
            ("/x/../etc/./app", "etc/app/a", Some("a")),
            ("../up", "up/a", Some("a")),
            (".", "./a", Some("a")),
            ("/", "a", Some("a")),
            ("/etc/app", "/etc/app/a", Some("a")),
            ("/etc/app", "etc/app/../../passwd", None),
            ("/etc/app", "etc/app/..", None),
            ("/etc/app", "../etc/app/a", None),
            ("/", "../a", None),
            ("/etc/app", "etc/apple", None),
            ("/etc/app", "etc", None),
            ("/etc/app", "root/.ssh/authorized_keys", None),
            ("/", "a\0b", None),
        ] {
            let found = path_in_target(entry.as_bytes(), &clean_path(source));
            assert_eq!(
                found.as_deref(),
                place.map(str::as_bytes),
                "{source} {entry}"
            );
        }
    }
}
