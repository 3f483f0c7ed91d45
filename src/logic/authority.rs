//! Which cluster a pod was recorded for: the certificates of its authority, as short texts (KADM-32).

/// Whether `recorded` and `now` are of one cluster. Each is a list with commas of what its authority is known by.
///
/// An authority is renewed by a bundle of the old and the new one, so one in common is enough. An empty list, such as that of a
/// record made before there were any, says nothing.
#[must_use]
pub fn is_same(recorded: &str, now: &str) -> bool {
    let of_now = |id: &str| now.split(',').any(|other| other == id);
    recorded.is_empty() || now.is_empty() || recorded.split(',').any(of_now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_known_by_any_of_its_authorities() {
        // KADM-32
        for (recorded, now, same) in [
            ("", "", true),
            ("", "a", true),
            ("a", "", true),
            ("a", "a", true),
            ("a", "a,b", true),
            ("a,b", "b", true),
            ("a", "b", false),
            ("a,b", "c,d", false),
            ("aa", "a", false),
        ] {
            assert_eq!(is_same(recorded, now), same, "{recorded:?} {now:?}");
        }
    }
}
