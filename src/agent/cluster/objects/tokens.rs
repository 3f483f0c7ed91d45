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
    pub(super) async fn tokens(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
    ) -> BTreeMap<TokenRef, Result<Vec<u8>, PodError>> {
        let mut tokens = BTreeMap::new();
        for place in pod_refs::tokens(pod) {
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
        let times = mounted.as_deref().and_then(token::times);
        let now = self.now();
        let due = match (self.tokens.of(uid, &place.token), times) {
            (Some(due), _) if !due.is_found => due,
            (_, Some(times)) => TokenRenewalTime {
                at: now + token::lease_left(times, uid, self.server_time()),
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
            self.tokens.set(uid, &place.token, due);
            return Ok(token.clone());
        }
        let why = match self.ask_for_token(pod, cancel, &place.token).await {
            Ok(issued) => {
                let due = TokenRenewalTime {
                    at: self.now() + token::lease(issued.times, uid),
                    is_found: false,
                };
                self.tokens.set(uid, &place.token, due);
                self.keep_first_token(uid, &place.token, &issued).await;
                return Ok(issued.token.into_bytes());
            }
            Err(why) => why,
        };
        // One that does not say how long it is good may be.
        let is_taken = |token: &Vec<u8>| {
            token::times(token).is_none_or(|times| token::is_taken(times, self.server_time()))
        };
        let old = match mounted.filter(is_taken) {
            Some(token) => Some(token),
            None => self.kept_token(uid, &place.token).await.filter(is_taken),
        };
        let Some(token) = old else {
            return Err(why.of(format_args!(
                "failed to fetch token for service account {:?}",
                token::account(pod)
            )));
        };
        let meta = &pod.metadata;
        self.complain(&format!(
            "pod={}/{} a token is not replaced, the old one goes on: {why}",
            meta.namespace, meta.name
        ));
        Ok(token)
    }

    /// The time of day by the clock that tokens are issued by.
    fn server_time(&self) -> WallTime {
        self.tools.skew.server_time(&*self.tools.clock)
    }

    /// The token that the pod has now.
    async fn mounted_token(&self, uid: &PodUid, place: &TokenLocation<'_>) -> Option<Vec<u8>> {
        let (volumes, uid) = (self.tools.volumes.clone(), uid.clone());
        let (volume, path) = (place.volume.to_owned(), place.path.to_owned());
        let read = self.tools.disk.run(move || {
            let limit = u64::try_from(token::MAX_TOKEN_BYTES).unwrap_or(u64::MAX);
            volumes.projected_file(&uid, &volume, &path, limit)
        });
        read.await.ok().filter(|token| !token.is_empty())
    }

    async fn ask_for_token(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        token: &TokenRef,
    ) -> Result<IssuedToken, PodError> {
        if !self.reach.borrow_mut().may_ask(self.now()) {
            return Err(PodError::Object(SILENT.into()));
        }
        let user = RequestingPod {
            uid: &pod.metadata.uid,
            cancel,
        };
        let mut pauses = FORBIDDEN_PAUSES.iter();
        loop {
            let request = token::request(pod, token).to_string();
            let (namespace, account) = (
                pod.metadata.namespace.clone(),
                token::account(pod).to_owned(),
            );
            let asked = self.ask(user, None, move |api| {
                let answer = api.create_token(&namespace, &account, request.as_bytes())?;
                token::issued(&answer)
                    .map_err(|e| ObjectReadError::Other(PodError::Object(e.to_string())))
            });
            let answer = asked.await;
            if !self.pause(user, &answer, &mut pauses).await {
                return answer.map_err(PodError::from);
            }
        }
    }

    async fn keep_first_token(&self, uid: &PodUid, token: &TokenRef, issued: &IssuedToken) {
        let (files, text) = (self.files.clone(), issued.token.clone());
        let (uid, token) = (uid.clone(), token.clone());
        let write = move || files.write_token(&uid, &token, &text);
        match self.tools.disk.run(write).await {
            Ok(written) => self.note_written(written),
            Err(e) => self.complain(&format!("no copy of a token is kept on disk: {e}")),
        }
    }

    async fn kept_token(&self, uid: &PodUid, token: &TokenRef) -> Option<Vec<u8>> {
        let (files, uid, token) = (self.files.clone(), uid.clone(), token.clone());
        let read = move || files.read_token(&uid, &token);
        self.tools.disk.run(read).await
    }
}
