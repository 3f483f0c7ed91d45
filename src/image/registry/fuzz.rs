//! Entry points of the fuzz targets into what registries answer and operators configure. See [`crate::fuzz`].

use serde_json::Value;

use super::blob::parse_content_range;
use super::challenge::{self, Challenge};
use super::keyring::{DockerConfig, Keyring};
use super::session::{MAX_ERROR_CHARS, claimed_manifest_type, errors_text, read_token};
use super::{RegistriesConfig, RegistryCredential};
use crate::image::pull::fuzz as node;
use crate::image::reference::ImageReference;
use crate::net::url::{MAX_URL_BYTES, Url};

/// Images that credentials and mirrors are asked for.
const IMAGES: [&str; 4] = [
    "busybox",
    "registry.example:5000/team/app:1",
    "[::1]:5000/x",
    "quay.io/a/b@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
];

/// Tells amounts apart; digits do not, they are left out of an outcome.
const fn amount(n: usize) -> &'static str {
    match n {
        0 => "none ",
        1 => "one ",
        2 => "two ",
        _ => "more ",
    }
}

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// Headers: challenges, ranges, locations.
pub(crate) fn headers(data: &[u8]) -> String {
    let text = text(data);
    let challenges = challenge::parse_challenges(&text);
    for challenge in &challenges {
        if let Challenge::Bearer {
            realm,
            service,
            scope,
        } = challenge
        {
            for part in [realm, service, scope] {
                assert!(part.len() <= text.len(), "nothing is added");
            }
        }
    }
    assert!(challenges.len() <= text.len());
    let range = parse_content_range(&text);
    if let Some((start, Some(total))) = range {
        assert!(start < total);
    }
    let mut outcome = format!("{}{}", amount(challenges.len()), range.is_some());
    for base in ["https://a.example:5000/v2/x/blobs/y?ns=z", "http://[::1]"] {
        let base = Url::parse(base).expect("a URL");
        match base.resolve_location(&text) {
            Ok(url) => {
                assert!(url.to_string().len() <= MAX_URL_BYTES * 2);
                assert!(!url.host().is_empty() && !url.authority.contains(['/', '@', '?']));
                assert!(url.path.starts_with('/') && !url.without_query().contains('?'));
                assert!(url.to_string().bytes().all(|b| b.is_ascii_graphic()));
                let again = Url::parse(&url.to_string());
                assert!(
                    again.is_err() || again.as_ref() == Ok(&url),
                    "{again:?} {url:?}"
                );
                outcome.push_str(if url.same_origin(&base) {
                    " same"
                } else {
                    " other"
                });
            }
            Err(why) => outcome.push_str(&why.to_string()),
        }
    }
    outcome
}

/// Bodies: errors, tokens, the type of a manifest.
pub(crate) fn bodies(data: &[u8]) -> String {
    let errors = errors_text(data);
    assert!(errors.chars().count() <= MAX_ERROR_CHARS && !errors.contains(char::is_control));
    let token = read_token(data);
    if let Some(token) = &token {
        assert!(!token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic()));
    }
    let kind = claimed_manifest_type(data, String::new());
    format!(
        "{}{} {}{}",
        amount(errors.len().min(2)),
        token.is_some(),
        amount(kind.len().min(2)),
        errors.contains(';')
    )
}

/// Credentials: docker's configuration, what its helpers and the kubelet's plugins answer, and their configuration.
pub(crate) fn credentials(data: &[u8], document: Option<&Value>) -> String {
    let mut ring = Keyring::default();
    let mut outcome = String::new();
    for parsed in [
        DockerConfig::parse(data),
        DockerConfig::parse_dockercfg(data),
    ] {
        match parsed {
            Ok(config) => {
                outcome.push_str(if config.auths.is_empty() {
                    "none "
                } else {
                    "some "
                });
                ring.add_place(config.auths);
            }
            Err(why) => outcome.push_str(&why.to_string()),
        }
    }
    for image in IMAGES {
        let found = ring.lookup_credentials(image);
        for credential in &found {
            let shown = format!("{credential:?}");
            let secret = credential.basic_auth().map(|(_, password)| password);
            // Short ones stand in any text.
            let told = secret.is_some_and(|s| s.len() > 16 && shown.contains(&s));
            assert!(!told, "a secret is shown");
        }
        outcome.push_str(amount(found.len()));
    }
    assert_eq!(RegistryCredential::default().basic_auth(), None);
    outcome + &node::run(data, document)
}

/// `registries.yaml`, and where it leads.
pub(crate) fn registries(document: &Value) -> String {
    let registries = match RegistriesConfig::parse(document) {
        Ok(registries) => registries,
        Err(why) => return why.to_string(),
    };
    let mut outcome = String::new();
    for image in IMAGES {
        let reference = ImageReference::parse(image).expect("a reference");
        let endpoints = registries.image_endpoints(&reference);
        assert!(!endpoints.is_empty(), "the registry itself comes last");
        for endpoint in &endpoints {
            let url = endpoint.base.to_string();
            assert!(Url::parse(&url).is_ok(), "{url}");
            assert!(!endpoint.repository.is_empty());
        }
        outcome.push_str(amount(endpoints.len()));
    }
    outcome
}
