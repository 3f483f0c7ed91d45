//! Cluster that a pod was recorded for: the certificates of its authority, as short texts (KADM-32).

/// Returns true if `recorded` and `now` are of one cluster. Each is a comma-separated list of the certificates of its
/// authority, as short texts.
///
/// An authority is renewed by a bundle of the old and the new certificate, so one in common is enough. An empty list
/// matches every cluster: records of older agents have none.
#[must_use]
pub fn is_same_authority(recorded: &str, now: &str) -> bool {
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
            assert_eq!(
                is_same_authority(recorded, now),
                same,
                "{recorded:?} {now:?}"
            );
        }
    }
}
