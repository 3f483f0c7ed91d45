//! Tokens of service accounts (TOK-01 to TOK-04).
//!
//! A token lies where the pod reads it, in a volume in memory that no container may write: from there it is read back, so
//! that the agent holds none, and one that starts anew asks for none. A pod's first token is kept on disk as well, for a
//! start without the apiserver; later ones are not.

use alloc::collections::{BTreeMap, btree_map::Entry};

use super::{
    content::ObjectReadError,
    store::{FORBIDDEN_PAUSES, ObjectStore, RequestingPod, SILENT},
    token_times::TokenRenewalTime,
};
use crate::{
    agent::executor::CallCancel,
    api::{Pod, PodError, PodUid, WallTime},
    logic::{
        pod_refs::{self, TokenLocation, TokenRef},
        token::{self, IssuedToken},
    },
};

impl ObjectStore {
    /// All tokens of the pod's volumes: those in force, new ones where they are due.
    pub(super) async fn pod_tokens(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
    ) -> BTreeMap<TokenRef, Result<Vec<u8>, PodError>> {
        let mut tokens = BTreeMap::new();
        for place in pod_refs::token_locations(pod) {
            if let Entry::Vacant(token) = tokens.entry(place.token.clone()) {
                token.insert(self.current_token(pod, cancel, &place).await);
            }
        }
        tokens
    }

    async fn current_token(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        place: &TokenLocation<'_>,
    ) -> Result<Vec<u8>, PodError> {
        let uid = &pod.metadata.uid;
        let mounted = self.mounted_token(uid, place).await;
        let times = mounted.as_deref().and_then(token::parse_token_times);
        let now = self.now();
        let due = match (self.tokens.renewal_time(uid, &place.token), times) {
            (Some(due), _) if !due.is_found => due,
            (_, Some(times)) => TokenRenewalTime {
                at: now + token::time_left_to_refresh(times, uid, self.server_time()),
                is_found: true,
            },
            (Some(due), None) => due,
            (None, None) => TokenRenewalTime {
                at: now,
                is_found: true,
            },
        };
        if let Some(token) = &mounted
            && now < due.at
        {
            self.tokens.set_renewal_time(uid, &place.token, due);
            return Ok(token.clone());
        }
        let why = match self.request_token(pod, cancel, &place.token).await {
            Ok(issued) => {
                let due = TokenRenewalTime {
                    at: self.now() + token::refresh_interval(issued.times, uid),
                    is_found: false,
                };
                self.tokens.set_renewal_time(uid, &place.token, due);
                self.keep_first_token(uid, &place.token, &issued).await;
                return Ok(issued.token.into_bytes());
            }
            Err(why) => why,
        };
        // One that does not say how long it is good may be.
        let is_taken = |token: &Vec<u8>| {
            token::parse_token_times(token)
                .is_none_or(|times| token::is_still_accepted(times, self.server_time()))
        };
        let old = match mounted.filter(is_taken) {
            Some(token) => Some(token),
            None => self.kept_token(uid, &place.token).await.filter(is_taken),
        };
        let Some(token) = old else {
            return Err(why.with_subject(format_args!(
                "failed to fetch token for service account {:?}",
                token::service_account_of(pod)
            )));
        };
        let meta = &pod.metadata;
        self.complain(&format!(
            "pod={}/{} cannot replace a token, the old one stays in use: {why}",
            meta.namespace, meta.name
        ));
        Ok(token)
    }

    /// The time of day by the clock that tokens are issued by.
    pub(super) fn server_time(&self) -> WallTime {
        self.tools.skew.server_time(&*self.tools.clock)
    }

    /// The token that the pod has now.
    async fn mounted_token(&self, uid: &PodUid, place: &TokenLocation<'_>) -> Option<Vec<u8>> {
        let (volumes, uid) = (self.tools.volumes.clone(), uid.clone());
        let (volume, path) = (place.volume.to_owned(), place.path.to_owned());
        let read = self.tools.disk.run_job(move || {
            let limit = u64::try_from(token::MAX_TOKEN_BYTES).unwrap_or(u64::MAX);
            volumes.read_projected_file(&uid, &volume, &path, limit)
        });
        read.await.ok().filter(|token| !token.is_empty())
    }

    async fn request_token(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        token: &TokenRef,
    ) -> Result<IssuedToken, PodError> {
        if !self.reach.borrow_mut().may_ask_now(self.now()) {
            return Err(PodError::Object(SILENT.into()));
        }
        let user = RequestingPod {
            uid: &pod.metadata.uid,
            cancel,
        };
        let mut pauses = FORBIDDEN_PAUSES.iter();
        loop {
            let request = token::token_request(pod, token).to_string();
            let (namespace, account) = (
                pod.metadata.namespace.clone(),
                token::service_account_of(pod).to_owned(),
            );
            let asked = self.ask_apiserver(user, None, move |api| {
                let answer = api.create_token(&namespace, &account, request.as_bytes())?;
                token::parse_issued_token(&answer)
                    .map_err(|e| ObjectReadError::Other(PodError::Object(e.to_string())))
            });
            let answer = asked.await;
            if !self.pause_before_retry(user, &answer, &mut pauses).await {
                return answer.map_err(PodError::from);
            }
        }
    }

    /// A new token for a credential plugin (ICV-07). The agent keeps none: it is asked for at each pull.
    ///
    /// - Errors: the apiserver gives none, for this audience for example.
    pub(in crate::agent) async fn token_for_plugin(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        audience: &str,
    ) -> Result<String, PodError> {
        let token = TokenRef {
            audience: audience.to_owned(),
            expiration_s: None,
        };
        let issued = self.request_token(pod, cancel, &token).await?;
        Ok(issued.token)
    }

    async fn keep_first_token(&self, uid: &PodUid, token: &TokenRef, issued: &IssuedToken) {
        let (files, text) = (self.files.clone(), issued.token.clone());
        let (uid, token) = (uid.clone(), token.clone());
        let write = move || files.write_token(&uid, &token, &text);
        match self.tools.disk.run_job(write).await {
            Ok(written) => self.note_written(written),
            Err(e) => self.complain(&format!("cannot keep a copy of a token on disk: {e}")),
        }
    }

    async fn kept_token(&self, uid: &PodUid, token: &TokenRef) -> Option<Vec<u8>> {
        let (files, uid, token) = (self.files.clone(), uid.clone(), token.clone());
        let read = move || files.read_token(&uid, &token);
        self.tools.disk.run_job(read).await
    }
}
