//! Tokens of service accounts: signed as upstream signs them, checked as upstream checks them.
//!
//! Source: `pkg/registry/core/serviceaccount/storage/token.go`, `pkg/serviceaccount`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
    UnparsedPublicKey,
};
use serde_json::{Value, json};

use crate::auth::User;
use crate::clock;
use crate::error::{ApiError, Fields};
use crate::json::{at, list, text};
use crate::kinds::{self, Kind};
use crate::store::Store;

/// Who signs tokens, and whom they are for when they do not say.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Seconds of a token that asks for none.
const DEFAULT_S: i64 = 3600;

/// Signs tokens.
pub(crate) struct Signer {
    key: EcdsaKeyPair,
    id: String,
}

impl Signer {
    pub(crate) fn new() -> Option<Self> {
        let rng = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &rng).ok()?;
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &rng)
                .ok()?;
        let id = URL_SAFE_NO_PAD.encode(ring::digest::digest(
            &ring::digest::SHA256,
            key.public_key().as_ref(),
        ));
        Some(Self { key, id })
    }

    fn sign(&self, claims: &Value) -> Option<String> {
        let header = json!({"alg": "ES256", "kid": self.id});
        let body = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header.to_string()),
            URL_SAFE_NO_PAD.encode(claims.to_string())
        );
        let signature = self.key.sign(&SystemRandom::new(), body.as_bytes()).ok()?;
        Some(format!("{body}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Claims of a token that this server signed; none for anything else.
    fn open(&self, token: &str) -> Option<Value> {
        let (body, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref())
            .verify(body.as_bytes(), &signature)
            .ok()?;
        let (_, claims) = body.split_once('.')?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    /// Who carries the token, and for which of the wanted audiences it is good.
    pub(crate) fn authenticate(
        &self,
        store: &Store,
        now_s: i64,
        token: &str,
        audiences: &[String],
    ) -> Option<(User, Vec<String>)> {
        let claims = self.open(token)?;
        let exp = at(&claims, "/exp").as_i64()?;
        if exp <= now_s {
            return None;
        }
        let good: Vec<String> = audiences
            .iter()
            .filter(|wanted| {
                list(&claims, "/aud")
                    .iter()
                    .any(|a| a.as_str() == Some(wanted))
            })
            .cloned()
            .collect();
        if good.is_empty() {
            return None;
        }
        let private = at(&claims, "/kubernetes.io");
        let ns = text(private, "/namespace");
        let account = text(private, "/serviceaccount/name");
        let found = store.find("serviceaccounts", ns, account)?;
        let uid = text(private, "/serviceaccount/uid");
        if text(found, "/metadata/uid") != uid {
            return None;
        }
        let mut extra = BTreeMap::new();
        let mut note = |key: &str, value: &str| {
            extra.insert(
                format!("authentication.kubernetes.io/{key}"),
                vec![value.to_owned()],
            );
        };
        note("credential-id", &format!("JTI={}", text(&claims, "/jti")));
        let pod = text(private, "/pod/name");
        if !pod.is_empty() {
            let uid = text(private, "/pod/uid");
            let found = store.find("pods", ns, pod);
            if found.is_none_or(|pod| text(pod, "/metadata/uid") != uid) {
                return None;
            }
            note("pod-name", pod);
            note("pod-uid", uid);
        }
        let user = User {
            name: format!("system:serviceaccount:{ns}:{account}"),
            uid: uid.to_owned(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{ns}"),
                "system:authenticated".to_owned(),
            ],
            extra,
        };
        Some((user, good))
    }

    /// Answers `POST serviceaccounts/NAME/token`; admission has been asked already.
    pub(crate) fn request(
        &self,
        store: &Store,
        now_s: i64,
        ns: &str,
        name: &str,
        mut request: Value,
    ) -> Result<Value, ApiError> {
        let account = account(store, ns, name)?;
        let seconds = at(&request, "/spec/expirationSeconds")
            .as_i64()
            .unwrap_or(DEFAULT_S);
        let mut errors = Fields::default();
        if seconds < 600 {
            errors.invalid(
                "spec.expirationSeconds",
                &json!(seconds),
                "may not specify a duration less than 10 minutes",
            );
        }
        if seconds > 1 << 32 {
            errors.invalid(
                "spec.expirationSeconds",
                &json!(seconds),
                "may not specify a duration larger than 2^32 seconds",
            );
        }
        errors.finish_as("authentication.k8s.io", "TokenRequest", "")?;
        request["spec"]["expirationSeconds"] = json!(seconds);
        let audiences = match list(&request, "/spec/audiences") {
            [] => json!([ISSUER]),
            some => json!(some),
        };
        request["spec"]["audiences"] = audiences.clone();
        let mut private = json!({
            "namespace": ns,
            "serviceaccount": {"name": name, "uid": text(account, "/metadata/uid")},
        });
        let bound = at(&request, "/spec/boundObjectRef").clone();
        if !bound.is_null() {
            bind(store, ns, name, &bound, &mut private)?;
        }
        let claims = json!({
            "iss": ISSUER, "sub": format!("system:serviceaccount:{ns}:{name}"), "aud": audiences,
            "iat": now_s, "nbf": now_s, "exp": now_s + seconds, "jti": clock::uuid(), "kubernetes.io": private,
        });
        let token = self
            .sign(&claims)
            .ok_or_else(|| ApiError::internal("failed to generate token"))?;
        request["apiVersion"] = json!("authentication.k8s.io/v1");
        request["kind"] = json!("TokenRequest");
        request["metadata"] = json!({
            "name": name, "namespace": ns, "creationTimestamp": clock::rfc3339(now_s),
            "uid": text(account, "/metadata/uid"),
        });
        request["status"] =
            json!({"token": token, "expirationTimestamp": clock::rfc3339(now_s + seconds)});
        Ok(request)
    }
}

fn account<'a>(store: &'a Store, ns: &str, name: &str) -> Result<&'a Value, ApiError> {
    let kind = kind("serviceaccounts")?;
    store
        .find("serviceaccounts", ns, name)
        .map(|a| &**a)
        .ok_or_else(|| ApiError::not_found(kind, name))
}

fn kind(plural: &str) -> Result<&'static Kind, ApiError> {
    kinds::plural(plural).ok_or_else(ApiError::no_route)
}

/// Adds the pod that the token is bound to.
fn bind(
    store: &Store,
    ns: &str,
    account: &str,
    bound: &Value,
    private: &mut Value,
) -> Result<(), ApiError> {
    let name = text(bound, "/name");
    let (version, of) = (text(bound, "/apiVersion"), text(bound, "/kind"));
    if (version, of) != ("v1", "Pod") {
        return Err(ApiError::bad_request(format!(
            "cannot bind token to object of type {version}, Kind={of}"
        )));
    }
    let kind = kind("pods")?;
    let object = store
        .find("pods", ns, name)
        .ok_or_else(|| ApiError::not_found(kind, name))?;
    if text(object, "/spec/serviceAccountName") != account {
        return Err(ApiError::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        )));
    }
    let uid = text(object, "/metadata/uid");
    let wanted = text(bound, "/uid");
    if !wanted.is_empty() && wanted != uid {
        return Err(ApiError::precondition(
            kind,
            name,
            &format!(
                "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might \
                 have been deleted and then recreated"
            ),
        ));
    }
    private["pod"] = json!({"name": name, "uid": uid});
    let node = text(object, "/spec/nodeName");
    if !node.is_empty() {
        private["node"] = json!({"name": node});
        if let Some(found) = store.find("nodes", "", node) {
            private["node"]["uid"] = found["metadata"]["uid"].clone();
        }
    }
    Ok(())
}
