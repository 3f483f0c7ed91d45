//! Access of pods to an image that was pulled with a pod's own credentials (IMG-20).
//!
//! A registry decides who gets an image. An image on this node must not be open to every pod just because one pod's
//! credentials brought it. So the credentials of each pull are recorded. A pod that brings the same may use the image;
//! any other pod asks the registry with its own.
//!
//! An image that the operator imports is open to every pod, by all its names, whatever credentials the same bytes were
//! pulled with before or after. A record ends with its image. [`VerificationPolicy`] makes exceptions of that.
//!
//! - Source: KEP-2535; kubelet `pkg/kubelet/images/pullmanager`, `MustAttemptImagePull`.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

/// Version of the record written.
pub const RECORD_VERSION: u32 = 1;
/// Most Secrets noted of one repository; a pod with another one asks the registry each time.
pub const MAX_SECRETS: usize = 100;
/// Most repositories noted of one image; for others the registry is asked each time.
pub const MAX_REPOSITORIES: usize = 100;

/// Policy that says for which images on the node a pod has to have the right (ICV-01). By default for those that this agent
/// pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// For none: every pod may use every image.
    Never,
    /// For all but images that the agent did not pull.
    #[default]
    NotPreloaded,
    /// For all but images that the agent did not pull and that a pattern names: a repository, or a prefix that ends with
    /// a slash.
    NotAllowed(Vec<String>),
    /// For all.
    Always,
}

impl VerificationPolicy {
    /// Returns true if a pod needs the right. `preloaded`: the agent did not pull the image, or the operator imported it.
    #[must_use]
    pub fn is_needed(&self, repository: &str, preloaded: bool) -> bool {
        let allows = |pattern: &String| {
            repository == pattern || (pattern.ends_with('/') && repository.starts_with(pattern))
        };
        match self {
            Self::Never => false,
            Self::NotPreloaded => !preloaded,
            Self::NotAllowed(patterns) => !(preloaded && patterns.iter().any(allows)),
            Self::Always => true,
        }
    }
}

/// A credential of a pod, and the Secret that it came in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PullSecret {
    /// UID of the Secret; empty for one of the manifest directory.
    pub uid: String,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// Digest of the credential, never the credential.
    pub digest: String,
}

impl PullSecret {
    /// Returns true if both name the same Secret, whatever its content by now.
    fn is_same_secret(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

/// Right to use an image by the names of one repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RepositoryAccess {
    /// Set if the image was pulled anonymously, or with credentials of the node.
    pub everybody: bool,
    /// Credentials of pods that the image was pulled with.
    pub secrets: Vec<PullSecret>,
}

/// Record about an image that this agent pulled or imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PulledRecord {
    /// [`RECORD_VERSION`].
    pub v: u32,
    /// Id of the image.
    pub image: String,
    /// The operator brought it.
    pub imported: bool,
    /// By repository.
    pub repositories: BTreeMap<String, RepositoryAccess>,
}

/// Right of a pod to use an image that is on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageRight {
    /// Yes.
    Known,
    /// Yes, and its credential is to be noted: its Secret or its content is that of one that was good.
    New,
    /// Only if the registry gives it.
    Ask,
}

impl PulledRecord {
    /// Makes the record of a pulled image about which no more is known: every pod has to ask the registry.
    #[must_use]
    pub fn new(image: &str) -> Self {
        Self {
            v: RECORD_VERSION,
            image: image.into(),
            imported: false,
            repositories: BTreeMap::new(),
        }
    }

    /// Returns true if every pod has the right, whatever credentials it brings.
    #[must_use]
    pub fn is_open_to_all(&self, repository: &str) -> bool {
        let access = self.repositories.get(repository);
        access.is_some_and(|access| access.everybody)
    }

    /// Decides the right of a pod that brings these credentials for `repository`.
    #[must_use]
    pub fn right_of_pod(&self, repository: &str, brought: &[PullSecret]) -> ImageRight {
        let Some(access) = self.repositories.get(repository) else {
            return ImageRight::Ask;
        };
        if access.everybody || brought.iter().any(|own| access.secrets.contains(own)) {
            return ImageRight::Known;
        }
        let is_good = |own: &PullSecret| {
            access.secrets.iter().any(|known| {
                known.is_same_secret(own)
                    || (!known.digest.is_empty() && known.digest == own.digest)
            })
        };
        if brought.iter().any(is_good) {
            ImageRight::New
        } else {
            ImageRight::Ask
        }
    }

    /// Notes the credentials that the image was pulled with; none: it needs none. Returns true if that is news.
    pub fn record_pull_secrets(&mut self, repository: &str, with: &[PullSecret]) -> bool {
        if !self.repositories.contains_key(repository)
            && self.repositories.len() >= MAX_REPOSITORIES
        {
            return false;
        }
        let access = self.repositories.entry(repository.into()).or_default();
        if access.everybody {
            return false;
        }
        if with.is_empty() {
            *access = RepositoryAccess {
                everybody: true,
                secrets: Vec::new(),
            };
            return true;
        }
        let mut is_news = false;
        for secret in with {
            if access.secrets.contains(secret) {
                continue;
            }
            access.secrets.retain(|known| !known.is_same_secret(secret));
            if access.secrets.len() < MAX_SECRETS {
                access.secrets.push(secret.clone());
                is_news = true;
            }
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn secret(uid: &str, digest: &str) -> PullSecret {
        PullSecret {
            uid: uid.into(),
            namespace: "ns".into(),
            name: "pull".into(),
            digest: digest.into(),
        }
    }

    #[test]
    fn who_may_use_an_image() {
        // IMG-20 ICV-04
        let (a, b) = (secret("a", "1"), secret("b", "2"));
        let with_a = [a.clone()];
        for (name, noted, repository, brought, want) in [
            (
                "the same",
                Some(&with_a[..]),
                "r/x",
                vec![a.clone()],
                ImageRight::Known,
            ),
            (
                "one of several",
                Some(&with_a),
                "r/x",
                vec![b.clone(), a.clone()],
                ImageRight::Known,
            ),
            (
                "changed since",
                Some(&with_a),
                "r/x",
                vec![secret("a", "9")],
                ImageRight::New,
            ),
            (
                "the same in another",
                Some(&with_a),
                "r/x",
                vec![secret("c", "1")],
                ImageRight::New,
            ),
            (
                "another",
                Some(&with_a),
                "r/x",
                vec![b.clone()],
                ImageRight::Ask,
            ),
            ("none", Some(&with_a), "r/x", vec![], ImageRight::Ask),
            (
                "another repository",
                Some(&with_a),
                "r/y",
                vec![a.clone()],
                ImageRight::Ask,
            ),
            ("anonymously", Some(&[]), "r/x", vec![], ImageRight::Known),
            (
                "nobody knows",
                None,
                "r/x",
                vec![a.clone()],
                ImageRight::Ask,
            ),
        ] {
            let mut record = PulledRecord::new("i");
            if let Some(noted) = noted {
                record.record_pull_secrets("r/x", noted);
            }
            assert_eq!(record.right_of_pod(repository, &brought), want, "{name}");
        }
    }

    #[test]
    fn what_is_noted() {
        // ICV-04
        let mut record = PulledRecord::new("i");
        assert!(record.record_pull_secrets("r", &[secret("a", "1")]));
        assert!(!record.record_pull_secrets("r", &[secret("a", "1")]));
        assert!(
            record.record_pull_secrets("r", &[secret("a", "2")]),
            "it was changed"
        );
        assert_eq!(record.repositories["r"].secrets, [secret("a", "2")]);
        for n in 0..MAX_SECRETS + 5 {
            record.record_pull_secrets("r", &[secret(&n.to_string(), "x")]);
        }
        assert_eq!(record.repositories["r"].secrets.len(), MAX_SECRETS);
        assert!(
            record.record_pull_secrets("r", &[])
                && !record.record_pull_secrets("r", &[secret("z", "1")])
        );
        assert!(record.is_open_to_all("r") && record.repositories["r"].secrets.is_empty());
        for n in 0..MAX_REPOSITORIES + 5 {
            record.record_pull_secrets(&n.to_string(), &[]);
        }
        assert_eq!(record.repositories.len(), MAX_REPOSITORIES);
        assert_eq!(record.right_of_pod("none", &[]), ImageRight::Ask);
    }

    #[test]
    fn for_which_images_a_pod_needs_the_right() {
        // ICV-01
        let patterns = ["docker.io/library/busybox", "quay.io/team/"];
        let listed = VerificationPolicy::NotAllowed(patterns.map(Into::into).into());
        for (policy, preloaded, repository, want) in [
            (VerificationPolicy::Never, true, "r/x", false),
            (VerificationPolicy::Never, false, "r/x", false),
            (VerificationPolicy::NotPreloaded, true, "r/x", false),
            (VerificationPolicy::NotPreloaded, false, "r/x", true),
            (VerificationPolicy::Always, true, "r/x", true),
            (VerificationPolicy::Always, false, "r/x", true),
            (listed.clone(), true, "docker.io/library/busybox", false),
            (listed.clone(), true, "docker.io/library/busybox2", true),
            (listed.clone(), true, "quay.io/team/a/b", false),
            (listed.clone(), true, "quay.io/teams/a", true),
            (listed.clone(), true, "quay.io/team", true),
            // The list speaks of preloaded images only.
            (listed, false, "docker.io/library/busybox", true),
        ] {
            let needed = policy.is_needed(repository, preloaded);
            assert_eq!(needed, want, "{policy:?} {preloaded} {repository}");
        }
        assert_eq!(
            VerificationPolicy::default(),
            VerificationPolicy::NotPreloaded
        );
    }

    #[test]
    fn a_record_of_version_1_is_still_read() {
        let text = r#"{"v":1,"image":"sha256:00","repositories":{"r/x":{"everybody":false,
            "secrets":[{"uid":"a","namespace":"ns","name":"pull","digest":"1"}]}}}"#;
        let record: PulledRecord = serde_json::from_str(text).expect("record");
        assert_eq!(
            record.right_of_pod("r/x", &[secret("a", "1")]),
            ImageRight::Known
        );
    }
}
