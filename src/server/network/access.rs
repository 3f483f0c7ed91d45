//! Authentication and authorization of clients (SRV-05 to SRV-10). The questions to the apiserver are decided in
//! [`crate::logic::access`].
//!
//! Answers of the apiserver are kept for a time, by digest: no token stands in memory longer than its question. One
//! question is under way at a time, so that the network's threads are left to the pods; a request that waited behind it
//! may find its own answer there. A request that comes when [`MAX_WAITING`] wait is told to come again.
//!
//! A certificate is verified once for a connection, and again if the CAs change or it expires. A certificate that came
//! alone costs one signature, as the handshake did before, and is verified at once. If others came with it, a way from
//! it to a trusted CA is searched among them, on a thread of its own ([`ChainVerifier`]). So strangers whose chains are
//! expensive to search wait for each other, and the apiserver, whose certificate the CA has signed itself, waits for
//! none of them.

use alloc::sync::Arc;
use core::{
    cell::{Cell, OnceCell, RefCell},
    pin::Pin,
    time::Duration,
};

use async_io::Timer;
use base64::{
    Engine as _,
    engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD},
};
use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use smol::lock::Mutex;

use crate::{
    api::WallTime,
    kube::x509,
    logic::access::{self, AnswerCache},
    net::known_time::KNOWN,
    net::serving::ClientAuthorities,
    server::http::{HttpRequest, Refusal, UserIdentity},
    sys::{clock, lane::Lane},
};

/// Answers kept of each kind.
const MAX_ANSWERS: usize = 1024;
/// Requests that wait for the apiserver's answer.
const MAX_WAITING: u32 = 64;
/// Chains of certificates that wait to be verified, the one under way included: at most 64 signatures each.
pub(super) const MAX_CHAINS: usize = 16;
/// Stack of the thread that verifies them, bytes; only pages once touched cost memory.
const VERIFIER_STACK_BYTES: usize = 256 * 1024;
/// Longest token, bytes.
const MAX_TOKEN_BYTES: usize = 32 * 1024;

/// Group of all users whose credential was believed.
const AUTHENTICATED: &str = "system:authenticated";
/// User name of a client without a credential.
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// A question to the apiserver: may this user do this?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessQuestion {
    /// User who asks.
    pub user: UserIdentity,
    /// Verb, may be empty.
    pub verb: &'static str,
    /// Subresource of this node.
    pub subresource: &'static str,
}

/// Reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ReviewError {
    /// Text for the log.
    pub why: String,
    /// Set if another try may get an answer.
    pub may_pass: bool,
}

/// An answer on its way.
pub type ReviewReply<'a, T> = Pin<Box<dyn Future<Output = Result<T, ReviewError>> + 'a>>;

/// Authority on users and their rights: the apiserver.
pub trait Reviewer {
    /// Finds the user of a token; `None`: no user has it.
    fn find_token_user(&self, token: String) -> ReviewReply<'_, Option<UserIdentity>>;
    /// Returns true if the user may do so.
    fn is_user_allowed(&self, question: AccessQuestion) -> ReviewReply<'_, bool>;
}

/// Mode of authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Every user may do everything, the anonymous one too if there is one.
    AlwaysAllow,
    /// The apiserver is asked; times for which its yes and its no count.
    Webhook(Duration, Duration),
}

/// Settings of authentication and authorization.
#[derive(Clone, Copy, Debug)]
pub struct AccessSettings {
    /// Tokens are shown to the apiserver, whose answer counts for so long.
    pub tokens: Option<Duration>,
    /// Set if a client without a credential is taken as the anonymous user.
    pub anonymous: bool,
    /// Mode of authorization.
    pub authorization: AuthorizationMode,
}

/// See the module.
pub struct AccessControl {
    settings: AccessSettings,
    reviewer: Option<Box<dyn Reviewer>>,
    authorities: RefCell<Option<Arc<ClientAuthorities>>>,
    /// Number of changes of the CAs.
    generation: Cell<u64>,
    verifier: ChainVerifier,
    tokens: RefCell<AnswerCache<[u8; 32], Option<UserIdentity>>>,
    rights: RefCell<AnswerCache<[u8; 32], bool>>,
    asking: Mutex<()>,
    waiting: Cell<u32>,
}

/// Worth of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CredentialWorth {
    /// The client showed no credential, or one without a user.
    None,
    /// The credential is not valid.
    Bad,
    Good(UserIdentity),
}

/// Certificates that a client showed in its handshake, and the verdict on them.
#[derive(Debug, Default)]
pub(super) struct HandshakeCertificates {
    chain: Arc<[CertificateDer<'static>]>,
    found: Option<ChainVerdict>,
}

impl HandshakeCertificates {
    /// Takes a client's chain, its own certificate first.
    pub(super) fn new(chain: &[CertificateDer<'static>]) -> Self {
        Self {
            chain: chain.into(),
            found: None,
        }
    }
}

/// Worth of a chain, and the time for which that counts.
#[derive(Debug)]
struct ChainVerdict {
    credential: CredentialWorth,
    /// Generation of the CAs that the chain was verified with.
    generation: u64,
    /// Time of the verification. A clock that was put back since may stand before the validity of the chain.
    from: WallTime,
    until: WallTime,
}

impl ChainVerdict {
    fn is_valid_at(&self, generation: u64, now: WallTime) -> bool {
        self.generation == generation && self.from <= now && now < self.until
    }
}

impl AccessControl {
    /// Makes an access that takes no certificate until [`AccessControl::set_authorities`].
    pub fn new(settings: AccessSettings, reviewer: Option<Box<dyn Reviewer>>) -> Self {
        Self {
            settings,
            reviewer,
            authorities: RefCell::new(None),
            generation: Cell::new(0),
            verifier: ChainVerifier::default(),
            tokens: RefCell::new(AnswerCache::new(MAX_ANSWERS)),
            rights: RefCell::new(AnswerCache::new(MAX_ANSWERS)),
            asking: Mutex::new(()),
            waiting: Cell::new(0),
        }
    }

    /// Makes these authorities the ones that vouch for certificates, on open connections too.
    pub fn set_authorities(&self, authorities: Arc<ClientAuthorities>) {
        self.authorities.replace(Some(authorities));
        self.generation.set(self.generation.get() + 1);
    }

    /// Asks both questions. A token is taken out of the request.
    pub(super) async fn admit_request(
        &self,
        request: &mut HttpRequest,
        papers: &mut HandshakeCertificates,
    ) -> Result<UserIdentity, Refusal> {
        let token = take_bearer_token(request);
        let user = self.authenticate(token, papers).await?;
        self.authorize(&user, request).await?;
        Ok(user)
    }

    async fn authenticate(
        &self,
        token: Option<String>,
        papers: &mut HandshakeCertificates,
    ) -> Result<UserIdentity, Refusal> {
        let mut bad = false;
        match self.authenticate_by_certificate(papers).await? {
            CredentialWorth::Good(user) => return Ok(add_authenticated_group(user)),
            CredentialWorth::Bad => bad = true,
            CredentialWorth::None => {}
        }
        match self.authenticate_by_token(token).await? {
            CredentialWorth::Good(user) => return Ok(add_authenticated_group(user)),
            CredentialWorth::Bad => bad = true,
            CredentialWorth::None => {}
        }
        if self.settings.anonymous && !bad {
            return Ok(UserIdentity {
                name: ANONYMOUS.into(),
                groups: vec![UNAUTHENTICATED.into()],
                ..UserIdentity::default()
            });
        }
        Err(Refusal::new(401, "Unauthorized"))
    }

    async fn authenticate_by_certificate(
        &self,
        papers: &mut HandshakeCertificates,
    ) -> Result<CredentialWorth, Refusal> {
        let authorities = self.authorities.borrow().clone();
        let Some(authorities) = authorities.filter(|_| !papers.chain.is_empty()) else {
            return Ok(CredentialWorth::None);
        };
        let (generation, now) = (self.generation.get(), KNOWN.certificate_time().at);
        let kept = papers.found.as_ref();
        if let Some(found) = kept.filter(|found| found.is_valid_at(generation, now)) {
            return Ok(found.credential.clone());
        }
        let chain = Arc::clone(&papers.chain);
        let (credential, until) = match &*chain {
            [_] => verify_chain(&authorities, &chain),
            _ => {
                self.verifier
                    .verify_chain_on_lane(authorities, chain)
                    .await?
            }
        };
        papers.found = Some(ChainVerdict {
            credential: credential.clone(),
            generation,
            from: now,
            until,
        });
        Ok(credential)
    }

    async fn authenticate_by_token(
        &self,
        token: Option<String>,
    ) -> Result<CredentialWorth, Refusal> {
        let (Some(token), Some(lifetime)) = (token, self.settings.tokens) else {
            return Ok(CredentialWorth::None);
        };
        let Some(reviewer) = self.reviewer.as_ref() else {
            return Ok(CredentialWorth::Bad);
        };
        if token.len() > MAX_TOKEN_BYTES {
            return Ok(CredentialWorth::Bad);
        }
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let asked = self.ask_reviewer(
            &self.tokens,
            key,
            |_| lifetime,
            || reviewer.find_token_user(token.clone()),
        );
        Ok(match asked.await? {
            Ok(Some(user)) => CredentialWorth::Good(user),
            Ok(None) => CredentialWorth::Bad,
            Err(e) => {
                log::warn!("a token could not be reviewed: {e}");
                CredentialWorth::Bad
            }
        })
    }

    async fn authorize(&self, user: &UserIdentity, request: &HttpRequest) -> Result<(), Refusal> {
        let AuthorizationMode::Webhook(yes, no) = self.settings.authorization else {
            return Ok(());
        };
        // A path that can be read in two ways is nobody's but his who may do everything.
        let path: &[String] = match request.is_plain {
            true => &request.path,
            false => &[],
        };
        let verb = access::required_verb(&request.method, path);
        let asked = access::node_subresources(path);
        for subresource in asked {
            let question = AccessQuestion {
                user: user.clone(),
                verb,
                subresource,
            };
            let key = question_digest(&question);
            let lifetime = |may: &bool| if *may { yes } else { no };
            let answer = match &self.reviewer {
                None => Ok(false),
                Some(reviewer) => {
                    let ask = || reviewer.is_user_allowed(question.clone());
                    self.ask_reviewer(&self.rights, key, lifetime, ask).await?
                }
            };
            match answer {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) => {
                    log::warn!("user={:?} could not be authorized: {e}", user.name);
                    let text = format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.name
                    );
                    return Err(Refusal::new(500, text));
                }
            }
        }
        Err(Refusal::new(
            403,
            access::forbidden_message(&user.name, verb, asked),
        ))
    }

    /// The answer that is kept, or that of the apiserver, asked as often as it may help. A failure is not kept.
    async fn ask_reviewer<'a, T: Clone>(
        &'a self,
        kept: &RefCell<AnswerCache<[u8; 32], T>>,
        key: [u8; 32],
        lifetime: impl Fn(&T) -> Duration,
        question: impl Fn() -> ReviewReply<'a, T>,
    ) -> Result<Result<T, ReviewError>, Refusal> {
        let answer = || kept.borrow().cached_answer(&key, clock::mono_now());
        if let Some(answer) = answer() {
            return Ok(Ok(answer));
        }
        let _waiting = WaitingRequest::count_waiting(&self.waiting)?;
        let mut tried = 0;
        loop {
            let asked = {
                let _turn = self.asking.lock().await;
                // Another request may have asked the same question meanwhile.
                if let Some(answer) = answer() {
                    return Ok(Ok(answer));
                }
                question().await
            };
            let failed = match asked {
                Ok(answer) => {
                    let lifetime = lifetime(&answer);
                    let now = clock::mono_now();
                    kept.borrow_mut()
                        .keep_answer(key, answer.clone(), lifetime, now);
                    return Ok(Ok(answer));
                }
                Err(failed) => failed,
            };
            tried += 1;
            let random =
                u32::try_from(clock::wall_now().0.unsigned_abs() / 1000 % 1000).unwrap_or(0);
            match access::review_pause(tried, random).filter(|_| failed.may_pass) {
                Some(pause) => drop(Timer::after(pause).await),
                None => return Ok(Err(failed)),
            }
        }
    }
}

/// Verifies a chain; returns its worth and the time until which that counts. A bad chain stays bad until the CAs
/// change; one that fails for its dates is verified anew.
fn verify_chain(
    authorities: &ClientAuthorities,
    chain: &[CertificateDer<'_>],
) -> (CredentialWorth, WallTime) {
    const NEVER: WallTime = WallTime(i64::MAX);
    let moment = KNOWN.certificate_time();
    let now = moment.at;
    if let Err(why) = authorities.vouch_for_chain(chain, moment) {
        log::debug!("a client's certificate is not accepted: {why}");
        let until = match why.is_time_dependent() {
            true => now,
            false => NEVER,
        };
        return (CredentialWorth::Bad, until);
    }
    let Some(Ok(own)) = chain.first().map(|own| x509::read_certificate(own)) else {
        return (CredentialWorth::Bad, NEVER);
    };
    // The verifier does not say which of the others it needed. One that has expired was not needed; one that cannot be
    // read has no known end.
    let ends = chain.iter().map(|one| match x509::read_certificate(one) {
        Ok(read) if read.not_after > now => read.not_after,
        Ok(_) => NEVER,
        Err(_) => now,
    });
    let until = ends.min().unwrap_or(now);
    let credential = match own.common_name.is_empty() {
        true => CredentialWorth::None,
        false => CredentialWorth::Good(UserIdentity {
            name: own.common_name,
            groups: own.organizations,
            ..UserIdentity::default()
        }),
    };
    (credential, until)
}

/// A thread that searches ways among certificates. It is there once a client has shown more than one.
#[derive(Default)]
struct ChainVerifier {
    lane: OnceCell<Option<Lane>>,
    /// Reference count of the chains that wait, even if their clients have left.
    waiting: Arc<()>,
}

impl ChainVerifier {
    /// - Errors: 503 if [`MAX_CHAINS`] wait already.
    async fn verify_chain_on_lane(
        &self,
        authorities: Arc<ClientAuthorities>,
        chain: Arc<[CertificateDer<'static>]>,
    ) -> Result<(CredentialWorth, WallTime), Refusal> {
        let lane = self.lane.get_or_init(|| {
            Lane::start_threads("client-chains", 1, VERIFIER_STACK_BYTES)
                .map_err(|e| log::warn!("cannot start a thread: {e}"))
                .ok()
        });
        let lane = lane.as_ref();
        let lane = lane.ok_or_else(|| Refusal::new(503, "certificates cannot be verified"))?;
        if Arc::strong_count(&self.waiting) > MAX_CHAINS {
            let text = "too many certificates wait to be verified";
            return Err(Refusal::new(503, text));
        }
        let held = Arc::clone(&self.waiting);
        let job = move || {
            let found = verify_chain(&authorities, &chain);
            drop(held);
            found
        };
        Ok(lane.run_job(job).await)
    }
}

/// Counts the requests that wait.
struct WaitingRequest<'a>(&'a Cell<u32>);

impl<'a> WaitingRequest<'a> {
    fn count_waiting(count: &'a Cell<u32>) -> Result<Self, Refusal> {
        if count.get() >= MAX_WAITING {
            return Err(Refusal::new(429, "too many requests wait to be authorized"));
        }
        count.set(count.get() + 1);
        Ok(Self(count))
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn add_authenticated_group(mut user: UserIdentity) -> UserIdentity {
    if user.name != ANONYMOUS && !user.groups.iter().any(|g| g == AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.into());
    }
    user
}

/// Names a question, whatever is in it: each part with its length before it, each list with its number.
fn question_digest(question: &AccessQuestion) -> [u8; 32] {
    fn hash_number(sum: &mut Sha256, n: usize) {
        sum.update(u64::try_from(n).unwrap_or(u64::MAX).to_le_bytes());
    }
    fn hash_text(sum: &mut Sha256, text: &str) {
        hash_number(sum, text.len());
        sum.update(text.as_bytes());
    }
    fn hash_list(sum: &mut Sha256, all: &[String]) {
        hash_number(sum, all.len());
        all.iter().for_each(|one| hash_text(sum, one));
    }
    let AccessQuestion {
        user,
        verb,
        subresource,
    } = question;
    let mut sum = Sha256::new();
    for part in [*verb, *subresource, &*user.name, &*user.uid] {
        hash_text(&mut sum, part);
    }
    hash_list(&mut sum, &user.groups);
    hash_number(&mut sum, user.extra.len());
    for (key, values) in &user.extra {
        hash_text(&mut sum, key);
        hash_list(&mut sum, values);
    }
    sum.finalize().into()
}

/// The token of a request, in `AuthorizationMode` or, for a WebSocket, among its sub-protocols (SRV-07). Neither stays in it.
fn take_bearer_token(request: &mut HttpRequest) -> Option<String> {
    let header = request.header_value("authorization").and_then(|value| {
        let (scheme, token) = value.trim().split_once(' ')?;
        let token = token.trim();
        let bearer = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty();
        bearer.then(|| token.to_owned())
    });
    request
        .headers
        .retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    let is_websocket = request
        .header_value("upgrade")
        .is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"));
    let mut hidden = None;
    if is_websocket {
        for (name, value) in &mut request.headers {
            if !name.eq_ignore_ascii_case("sec-websocket-protocol") {
                continue;
            }
            let (token, others) = access::split_token_protocol(value);
            let decoded = token.and_then(|token| {
                let bytes = URL_SAFE_NO_PAD
                    .decode(token)
                    .or_else(|_| URL_SAFE.decode(token));
                String::from_utf8(bytes.ok()?).ok()
            });
            // A token that cannot be read is a bad one, not none.
            hidden = hidden.or_else(|| token.map(|_| decoded.unwrap_or_default()));
            *value = others.join(", ");
        }
    }
    header.or(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_have_names_of_their_own() {
        // SRV-10
        let question = |groups: &[&str], extra: &[(&str, &[&str])]| {
            let all = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
            let extra = extra
                .iter()
                .map(|(key, values)| ((*key).into(), all(values)));
            question_digest(&AccessQuestion {
                user: UserIdentity {
                    name: "u".into(),
                    groups: all(groups),
                    extra: extra.collect(),
                    ..UserIdentity::default()
                },
                verb: "get",
                subresource: "proxy",
            })
        };
        let names = [
            question(&[], &[]),
            // The words of a group here are an extra there.
            question(&["", "k", "v"], &[]),
            question(&[""], &[("k", &["v"])]),
            question(&["", "k"], &[("v", &[])]),
            question(&[], &[("k", &["v"])]),
            question(&[], &[("k", &["v", "", "l"])]),
            question(&[], &[("k", &["v"]), ("l", &[])]),
        ];
        for (n, name) in names.iter().enumerate() {
            assert!(!names[..n].contains(name), "number {n}");
        }
    }

    #[test]
    fn how_long_a_verdict_counts() {
        // SRV-05
        let verdict = ChainVerdict {
            credential: CredentialWorth::None,
            generation: 2,
            from: WallTime(1_000),
            until: WallTime(2_000),
        };
        for (generation, now, counts) in [
            (2, 1_000, true),
            (2, 1_999, true),
            (2, 2_000, false),
            (2, 999, false),
            (1, 1_500, false),
            (3, 1_500, false),
        ] {
            let at = (generation, now);
            assert_eq!(
                verdict.is_valid_at(generation, WallTime(now)),
                counts,
                "{at:?}"
            );
        }
    }
}
