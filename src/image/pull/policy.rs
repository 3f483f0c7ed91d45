//! Policy of pulls: the images that this node may pull from registries.
//!
//! The policy is for pulls only. It does not apply to archives, which the operator imports or puts into the image
//! directory. A mirror counts as the registry whose images it has.

use crate::image::reference::ImageReference;
use crate::image::registry::keyring;

/// Pulls that the operator allows. The default allows everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeImagePolicy {
    /// Patterns of registries and repositories as in pull secrets: `registry.example:5000`, `*.example/team`.
    /// A repository is matched by whole components. Empty: all.
    pub allowed: Vec<String>,
    /// Set if a reference must name a digest.
    pub require_digest: bool,
}

/// Reason why the operator does not allow a pull. The pod's author takes another image, or asks the operator.
#[derive(Debug, thiserror::Error)]
pub enum ImagePolicyError {
    /// [`NodeImagePolicy::require_digest`]
    #[error("image policy of this node: {0} must name a digest (…@sha256:…)")]
    NoDigest(ImageReference),
    /// [`NodeImagePolicy::allowed`]: the repository, and the allowed patterns.
    #[error("image policy of this node: {0} is not from an allowed registry ({1})")]
    Registry(String, String),
}

impl NodeImagePolicy {
    /// Checks that an image may be pulled.
    pub fn check_reference(&self, reference: &ImageReference) -> Result<(), ImagePolicyError> {
        if self.require_digest && reference.digest().is_none() {
            return Err(ImagePolicyError::NoDigest(reference.clone()));
        }
        let name = reference.repository();
        let allowed = |pattern: &String| {
            let pattern = keyring::normalise_key(pattern);
            let pattern = pattern.trim_end_matches('/');
            let pattern_path = pattern.split_once('/').map_or("", |(_, path)| path);
            let image_path = name.split_once('/').map_or("", |(_, path)| path);
            // A name matches by whole components: `team` does not match `teamwork/…`.
            let is_below = pattern_path.is_empty()
                || image_path
                    .strip_prefix(pattern_path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            is_below && keyring::key_matches_image(pattern, name)
        };
        if self.allowed.is_empty() || self.allowed.iter().any(allowed) {
            return Ok(());
        }
        Err(ImagePolicyError::Registry(
            name.into(),
            self.allowed.join(", "),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_pulled() {
        let digest = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for (allowed, require_digest, image, ok) in [
            (&[][..], false, "busybox", true),
            (&[], true, "busybox:1", false),
            (&[], true, &format!("busybox{digest}"), true),
            (&["quay.io"], false, "busybox", false),
            (&["quay.io"], false, "quay.io/a/b", true),
            (&["quay.io"], false, "quay.io:5000/a/b", false),
            (
                &["*.example", "docker.io/library"],
                false,
                "r.example/a",
                true,
            ),
            (&["*.example", "docker.io/library"], false, "busybox", true),
            (&["docker.io/library"], false, "user/app", false),
            (&["docker.io/user"], false, "users/app", false),
            (&["docker.io/user/"], false, "user/app", true),
            (&["docker.io/user/app"], false, "user/app", true),
            (&["docker.io/user/app"], false, "user/apple", false),
            (&["https://quay.io/v2/a/"], false, "quay.io/a/b", true),
            (&["https://quay.io"], false, "docker.io/a/b", false),
        ] {
            let policy = NodeImagePolicy {
                allowed: allowed.iter().map(|&a| a.into()).collect(),
                require_digest,
            };
            let reference = ImageReference::parse(image).expect(image);
            assert_eq!(
                policy.check_reference(&reference).is_ok(),
                ok,
                "{allowed:?} {image}"
            );
        }
    }
}
