//! Objects that pods refer to, as the fake apiserver keeps them: by path, with trouble on request. Nothing is checked
//! here; the test server checks.

use alloc::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::api::{broken, refused};
use crate::{api::WallTime, kube::api::ApiResult};

/// Kinds of trouble with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Trouble {
    /// No answer comes.
    Silent,
    /// The answer is a refusal with this status.
    Refuses(u16),
}

/// Objects at paths such as `configmaps/ns/name`.
#[derive(Default)]
pub(super) struct Stored {
    objects: BTreeMap<String, Value>,
    /// Paths that were asked for.
    pub(super) asked: Vec<String>,
    /// Trouble of the next requests: prefix of their paths, number of requests, kind of trouble.
    pub(super) troubles: Vec<(String, u32, Trouble)>,
    /// Clock of the apiserver, seconds since 1970.
    pub(super) now_s: i64,
    tokens: u32,
    requests: u32,
}

impl Stored {
    pub(super) fn put(&mut self, path: &str, mut object: Value) {
        let mut names = path.split('/').skip(1);
        object["metadata"]["namespace"] = names.next().unwrap_or_default().into();
        object["metadata"]["name"] = names.next().unwrap_or_default().into();
        self.objects.insert(path.into(), object);
    }

    pub(super) fn object(&self, path: &str) -> Option<Value> {
        self.objects.get(path).cloned()
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.objects.remove(path);
    }

    fn arrive(&mut self, path: &str) -> ApiResult<()> {
        self.asked.push(path.into());
        let mut troubles = self.troubles.iter_mut();
        let hit = troubles.find(|(prefix, times, _)| *times > 0 && path.starts_with(&**prefix));
        let Some((_, times, trouble)) = hit else {
            return Ok(());
        };
        *times -= 1;
        Err(match *trouble {
            Trouble::Silent => broken(),
            Trouble::Refuses(status) => refused(status, "Trouble"),
        })
    }

    pub(super) fn read(&mut self, kind: &str, namespace: &str, name: &str) -> ApiResult<Value> {
        let path = format!("{kind}/{namespace}/{name}");
        self.arrive(&path)?;
        let found = self.objects.get(&path).cloned();
        found.ok_or_else(|| refused(404, "NotFound"))
    }

    pub(super) fn list(&mut self, kind: &str, namespace: &str) -> ApiResult<Vec<Value>> {
        let path = format!("{kind}/{namespace}/");
        self.arrive(&path)?;
        let all = self.objects.iter();
        let found = all.filter(|(own, _)| own.starts_with(&path));
        Ok(found.map(|(_, object)| object.clone()).collect())
    }

    /// Takes a request for a certificate of a pod.
    pub(super) fn create_request(
        &mut self,
        version: &str,
        namespace: &str,
        body: Value,
    ) -> ApiResult<Value> {
        self.arrive(&format!("create/{version}/{namespace}"))?;
        self.requests += 1;
        let path = format!("requests/{namespace}/req-{}", self.requests);
        self.put(&path, body);
        Ok(self.objects[&path].clone())
    }

    /// Makes a token that says its times and its number.
    pub(super) fn token(
        &mut self,
        namespace: &str,
        account: &str,
        body: &[u8],
    ) -> ApiResult<Value> {
        self.arrive(&format!("tokens/{namespace}/{account}"))?;
        let mut request: Value = serde_json::from_slice(body).expect("json");
        let spec = &request["spec"];
        let seconds = spec["expirationSeconds"].as_i64().unwrap_or(3600);
        self.tokens += 1;
        let end_s = self.now_s + seconds;
        let claims = json!({
            "iat": self.now_s, "exp": end_s, "n": self.tokens, "aud": spec["audiences"],
            "uid": spec["boundObjectRef"]["uid"],
        });
        let payload = URL_SAFE_NO_PAD.encode(claims.to_string());
        request["spec"]["expirationSeconds"] = seconds.into();
        request["status"] = json!({
            "token": format!("e30.{payload}.c2ln"),
            "expirationTimestamp": WallTime::from_unix_seconds(end_s).to_string(),
        });
        Ok(request)
    }
}
