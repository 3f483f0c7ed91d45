//! Certificates of pods (PCT-01 to PCT-05).
//!
//! A pair lies where the pod reads it, in a volume in memory that no container may write: from there it is read back, so
//! that an agent that starts anew asks for none. The agent holds a key only while its request is under way, and until the
//! pair is in the volume.

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::{cell::RefCell, fmt::Display, time::Duration};

use serde_json::Value;
use smol::future::FutureExt as _;

use super::{
    content::ObjectReadError,
    store::{FORBIDDEN_PAUSES, ObjectStore, RequestingPod, SILENT},
};
use crate::{
    agent::executor::CallCancel,
    api::{MonoTime, Pod, PodError, PodUid, pod::PodCertificateProjection},
    kube::{
        KubeApi,
        csr::{self, PodKey},
        x509,
    },
    logic::{
        certificate_versions::CertificateResource,
        metrics::exposition::{MetricType, MetricsText, SampleValue},
        pod_certificate::{
            self, CertificatePair, CertificateRecord, CertificateStep, KeyProof, PairTimes,
            RequestParties, RequestVerdict,
        },
        pod_refs::{self, CertificateLocation},
        token,
    },
    net::{serving, tls},
};

/// Longest wait of one sync for the certificates of a volume that was never set up; the next sync waits again.
const ISSUE_WAIT: Duration = Duration::from_secs(20);

/// Names a certificate: pod, volume, number of the source.
type CertificateKey = (PodUid, String, usize);

/// Certificates that pods of this node ask for: as many as sources of their volumes.
#[derive(Debug, Default)]
pub(super) struct PodCertificates {
    known: RefCell<BTreeMap<CertificateKey, CertificateEntry>>,
}

#[derive(Default)]
struct CertificateEntry {
    signer: String,
    record: CertificateRecord,
    pending: Option<PendingRequest>,
    /// Pair that is not in the volume yet.
    unwritten: Option<CertificatePair>,
}

impl core::fmt::Debug for CertificateEntry {
    /// Shows no key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.record.fmt(f)
    }
}

/// A request that was made, and the key that it is for.
#[derive(Clone)]
struct PendingRequest {
    name: String,
    /// PEM
    key: String,
}

impl PodCertificates {
    /// Forgets a pod's.
    pub(super) fn forget_pod(&self, uid: &PodUid) {
        self.known.borrow_mut().retain(|(of, ..), _| of != uid);
    }

    /// Pods with a certificate that needs a sync by now.
    pub(super) fn pods_due(&self, now_s: i64, now: MonoTime) -> Vec<PodUid> {
        let known = self.known.borrow();
        let due = known
            .iter()
            .filter(|(_, entry)| entry.record.is_due(now_s, now));
        let mut pods: Vec<PodUid> = due.map(|((uid, ..), _)| uid.clone()).collect();
        pods.dedup();
        pods
    }

    fn with_entry<T>(
        &self,
        key: &CertificateKey,
        read: impl FnOnce(&mut CertificateEntry) -> T,
    ) -> T {
        read(self.known.borrow_mut().entry(key.clone()).or_default())
    }
}

/// Certificates that one step of a pod uses, and the events that it is to send.
#[derive(Debug, Default)]
pub(super) struct LoadedCertificates {
    pub(super) pairs: BTreeMap<(String, usize), Result<CertificatePair, PodError>>,
    /// Reason and message of each.
    pub(super) warnings: Vec<(&'static str, String)>,
}

impl ObjectStore {
    /// All certificates of the pod's volumes: those in force, new ones where they are due.
    pub(super) async fn load_pod_certificates(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
    ) -> LoadedCertificates {
        let mut loaded = LoadedCertificates::default();
        let end = self.now() + ISSUE_WAIT;
        for (n, place) in pod_refs::certificate_locations(pod).enumerate() {
            if cancel.is_cancelled() {
                break;
            }
            let pair = match n < pod_certificate::MAX_POD_CERTIFICATES {
                true => {
                    self.current_pair(pod, cancel, &place, end, &mut loaded.warnings)
                        .await
                }
                false => Err(pod_certificate::many_error()),
            };
            let of = (place.volume.to_owned(), place.source);
            loaded.pairs.insert(of, pair);
        }
        loaded
    }

    async fn current_pair(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        place: &CertificateLocation<'_>,
        end: MonoTime,
        warnings: &mut Vec<(&'static str, String)>,
    ) -> Result<CertificatePair, PodError> {
        let uid = &pod.metadata.uid;
        let key = (uid.clone(), place.volume.to_owned(), place.source);
        let spread = pod_certificate::spread_number(uid, place.volume, place.source);
        let mut pair = self.find_pair(&key, place.projection, spread).await;
        // A sync of a pod that runs is not held up: each of its volumes was set up before.
        let may_wait = pair.is_none() && !self.is_set_up(uid, place.volume).await;
        let failed = loop {
            if cancel.is_cancelled() {
                break None;
            }
            let (now_s, now) = (self.server_time().unix_seconds(), self.now());
            let (step, failure) = self.pod_certificates.with_entry(&key, |entry| {
                let record = &entry.record;
                (record.next_step(now_s, now), record.failure().cloned())
            });
            let done = match step {
                CertificateStep::Keep => break None,
                CertificateStep::Wait(_) if pair.is_some() => break None,
                // The error is that of the pod until something is tried again.
                CertificateStep::Wait(_) if failure.is_some() => break failure,
                CertificateStep::Wait(until) if !may_wait || until > end => break None,
                CertificateStep::Wait(until) => {
                    let over = self.tools.clock.sleep_until(until);
                    over.or(cancel.wait_for_cancel()).await;
                    continue;
                }
                CertificateStep::Request => {
                    self.request_certificate(pod, cancel, &key, place.projection)
                        .await
                }
                CertificateStep::Look => {
                    let issued = self.look_at_request(pod, cancel, &key, spread, warnings);
                    issued.await.map(|issued| {
                        if issued.is_some() {
                            pair = issued;
                        }
                    })
                }
            };
            match done {
                Err(why) => break Some(why),
                Ok(()) if pair.is_some() => break None,
                Ok(()) => {}
            }
        };
        let now_s = self.server_time().unix_seconds();
        let refused = self.pod_certificates.with_entry(&key, |entry| {
            for (reason, message) in entry.record.take_warnings(now_s) {
                warnings.push((reason, message.into()));
            }
            entry.record.refusal_error(now_s)
        });
        match (refused, pair, failed) {
            (Some(refused), ..) => Err(refused),
            (None, Some(pair), failed) => {
                if let Some(why) = failed {
                    let meta = &pod.metadata;
                    self.complain(&format!(
                        "pod={}/{} cannot replace a certificate, the old one stays in use: {why}",
                        meta.namespace, meta.name
                    ));
                }
                Ok(pair)
            }
            (None, None, Some(why)) => Err(why.with_subject(format_args!(
                "failed to get a certificate of signer {:?}",
                place.projection.signer_name
            ))),
            (None, None, None) => Err(PodError::Object(format!(
                "signer {:?} has not issued the certificate yet",
                place.projection.signer_name
            ))),
        }
    }

    /// Writes how many certificates are in each state (PCT-06).
    pub(in crate::agent) fn write_certificate_states(&self, text: &mut MetricsText) {
        let now_s = self.server_time().unix_seconds();
        let known = self.pod_certificates.known.borrow();
        let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for entry in known.values() {
            let state = entry.record.state_name(now_s);
            *counts.entry((&entry.signer, state)).or_default() += 1;
        }
        let (name, help) = (
            "kubelet_podcertificate_states",
            "Certificates of pods, by signer and state.",
        );
        text.write_family(name, MetricType::Gauge, help, |s| {
            for ((signer, state), count) in counts {
                let labels = [("signer_name", signer), ("state", state)];
                s.write_sample(&labels, SampleValue::Count(count), None);
            }
        });
    }

    /// The pair that the pod has now, or is to have. One that an agent before this one has left counts if it is valid.
    async fn find_pair(
        &self,
        key: &CertificateKey,
        source: &PodCertificateProjection,
        spread: u64,
    ) -> Option<CertificatePair> {
        let mounted = self.mounted_pair(key, source).await;
        let now_s = self.server_time().unix_seconds();
        self.pod_certificates.with_entry(key, |entry| {
            if entry.signer.is_empty() {
                entry.signer.clone_from(&source.signer_name);
                entry.record.pair = mounted
                    .as_ref()
                    .and_then(|pair| found_times(pair, spread, now_s));
            }
            if entry.unwritten == mounted {
                entry.unwritten = None;
            }
            let pair = entry.unwritten.clone().or(mounted);
            if pair.is_none() {
                entry.record.pair = None;
            }
            pair.filter(|_| entry.record.pair.is_some())
        })
    }

    /// Returns true if the volume has files.
    async fn is_set_up(&self, uid: &PodUid, volume: &str) -> bool {
        let (volumes, uid, volume) = (self.tools.volumes.clone(), uid.clone(), volume.to_owned());
        let look = move || volumes.has_projected_files(&uid, &volume);
        self.tools.disk.run_job(look).await
    }

    async fn mounted_pair(
        &self,
        (uid, volume, _): &CertificateKey,
        source: &PodCertificateProjection,
    ) -> Option<CertificatePair> {
        let (volumes, uid, volume) = (self.tools.volumes.clone(), uid.clone(), volume.clone());
        let paths = match &*source.credential_bundle_path {
            "" => [&source.key_path, &source.certificate_chain_path]
                .map(String::clone)
                .to_vec(),
            path => [path.to_owned()].to_vec(),
        };
        let read = self.tools.disk.run_job(move || {
            let mut text = String::new();
            for path in paths {
                let limit = pod_certificate::MAX_BUNDLE_BYTES;
                let bytes = volumes
                    .read_projected_file(&uid, &volume, &path, limit)
                    .ok()?;
                text.push_str(&String::from_utf8(bytes).ok()?);
            }
            Some(text)
        });
        CertificatePair::from_bundle(&read.await?)
    }

    async fn request_certificate(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        key: &CertificateKey,
        source: &PodCertificateProjection,
    ) -> Result<(), PodError> {
        let kind = pod_certificate::key_type(source)?;
        let resource = CertificateResource::PodRequests;
        if self.certificates.is_missing(resource, self.now()) {
            return Err(resource.missing_error());
        }
        let node_uid = self.node_uid.borrow().clone();
        if node_uid.is_empty() {
            return Err(PodError::Node("the Node has not been read yet".into()));
        }
        if !self.reach.borrow_mut().may_ask_now(self.now()) {
            return Err(PodError::Object(SILENT.into()));
        }
        let user = RequestingPod {
            uid: &pod.metadata.uid,
            cancel,
        };
        let mut pauses = FORBIDDEN_PAUSES.iter();
        let answer = loop {
            if cancel.is_cancelled() {
                break Err(ObjectReadError::Ended);
            }
            let (pod, source) = (pod.clone(), source.clone());
            let (node, node_uid) = (self.node.clone(), node_uid.clone());
            let (versions, now) = (self.certificates.clone(), self.now());
            let asked = self.ask_apiserver(user, None, move |api| {
                // Before anything is read or made for a request that cannot be sent.
                versions.version_in_use(api, resource, now)?;
                let made = csr::make_pod_key(kind, pod.metadata.uid.as_bytes())
                    .map_err(|e| ObjectReadError::Other(PodError::Node(e.to_string())))?;
                let account = token::service_account_of(&pod);
                let account = api.read_service_account(&pod.metadata.namespace, account)?;
                let parties = RequestParties {
                    account_uid: account["metadata"]["uid"].as_str().unwrap_or(""),
                    node: &node,
                    node_uid: &node_uid,
                };
                let answer = versions.ask_in_version(api, resource, now, |version| {
                    post_request(api, &pod, &source, version, parties, &made)
                })?;
                Ok(PendingRequest {
                    name: answer["metadata"]["name"].as_str().unwrap_or("").into(),
                    key: made.key,
                })
            });
            let answer = asked.await;
            if !self.pause_before_retry(user, &answer, &mut pauses).await {
                break answer;
            }
        };
        let (now, is_metered) = (self.now(), self.tools.link_policy.is_metered());
        // That the resource is missing is remembered for all pods, and asked again in its own time.
        let is_counted = !self.certificates.is_missing(resource, now);
        self.pod_certificates.with_entry(key, |entry| match answer {
            Ok(pending) => {
                entry.record.record_request(is_metered, now);
                entry.pending = Some(pending);
                Ok(())
            }
            Err(why) => {
                let is_silent = matches!(why, ObjectReadError::Silent(_));
                let has_ended = matches!(why, ObjectReadError::Ended);
                let why = PodError::from(why);
                if is_counted && !has_ended {
                    entry.record.record_failure(why.clone(), is_silent, now);
                }
                Err(why)
            }
        })
    }

    /// Looks what became of the request under way; returns the pair if it was issued.
    async fn look_at_request(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        key: &CertificateKey,
        spread: u64,
        warnings: &mut Vec<(&'static str, String)>,
    ) -> Result<Option<CertificatePair>, PodError> {
        let pending = self
            .pod_certificates
            .with_entry(key, |entry| entry.pending.clone());
        let Some(pending) = pending else {
            return Ok(None);
        };
        if !self.reach.borrow_mut().may_ask_now(self.now()) {
            return Err(PodError::Object(SILENT.into()));
        }
        let (namespace, name) = (&pod.metadata.namespace, &pending.name);
        let answer = self.read_request(pod, cancel, namespace, name).await;
        let (now, is_metered) = (self.now(), self.tools.link_policy.is_metered());
        let read = match answer {
            Err(ObjectReadError::NotFound(_)) => {
                self.pod_certificates.with_entry(key, |entry| {
                    entry.record.record_absence(is_metered, now);
                });
                return Ok(None);
            }
            Err(ObjectReadError::Ended) => return Ok(None),
            answer => answer.map_err(PodError::from),
        };
        let taken = read
            .and_then(|request| self.take_answer(pod, key, pending, &request, spread, warnings));
        self.pod_certificates.with_entry(key, |entry| {
            let failure = taken.as_ref().err().cloned();
            entry.record.record_look(failure, is_metered, now);
        });
        taken
    }

    async fn read_request(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        namespace: &str,
        name: &str,
    ) -> Result<Value, ObjectReadError> {
        let user = RequestingPod {
            uid: &pod.metadata.uid,
            cancel,
        };
        let mut pauses = FORBIDDEN_PAUSES.iter();
        loop {
            if cancel.is_cancelled() {
                return Err(ObjectReadError::Ended);
            }
            let (versions, now) = (self.certificates.clone(), self.now());
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            let asked = self.ask_apiserver(user, None, move |api| {
                let resource = CertificateResource::PodRequests;
                versions.ask_in_version(api, resource, now, |version| {
                    api.read_pod_certificate_request(version, &namespace, &name)
                })
            });
            let answer = asked.await;
            if !self.pause_before_retry(user, &answer, &mut pauses).await {
                return answer;
            }
        }
    }

    /// Takes the answer of a signer, if there is one; returns the pair if it was issued.
    fn take_answer(
        &self,
        pod: &Pod,
        key: &CertificateKey,
        pending: PendingRequest,
        request: &Value,
        spread: u64,
        warnings: &mut Vec<(&'static str, String)>,
    ) -> Result<Option<CertificatePair>, PodError> {
        match pod_certificate::judge_request(request)? {
            RequestVerdict::Wait => Ok(None),
            RequestVerdict::Issued {
                chain,
                begin_refresh_s,
                not_after_s,
            } => {
                let blocks = tls::parse_certificates(chain.as_bytes());
                let pair = CertificatePair {
                    key: pending.key,
                    chain: blocks
                        .iter()
                        .map(|der| csr::encode_pem("CERTIFICATE", der))
                        .collect(),
                };
                read_pair(&pair).map_err(|why| {
                    why.with_subject(format_args!("PodCertificateRequest {}", pending.name))
                })?;
                self.pod_certificates.with_entry(key, |entry| {
                    let times = PairTimes::issued(begin_refresh_s, not_after_s, spread);
                    entry.record.record_pair(times);
                    entry.pending = None;
                    entry.unwritten = Some(pair.clone());
                });
                Ok(Some(pair))
            }
            RequestVerdict::Refused(refusal) => {
                let end = match refusal.kind {
                    "Denied" => "was denied",
                    _ => "failed",
                };
                warnings.push((
                    refusal.kind,
                    format!(
                        "PodCertificateRequest {}/{} {end}, {}",
                        pod.metadata.namespace, pending.name, refusal.why
                    ),
                ));
                self.pod_certificates.with_entry(key, |entry| {
                    entry.pending = None;
                    entry.record.record_refusal(refusal);
                });
                Ok(None)
            }
        }
    }
}

/// Sends a request in the form that the apiserver takes: one before 1.36 does not know that with PKCS#10, and says that
/// the request is invalid.
fn post_request(
    api: &dyn KubeApi,
    pod: &Pod,
    source: &PodCertificateProjection,
    version: &str,
    parties: RequestParties<'_>,
    made: &PodKey,
) -> crate::kube::api::ApiResult<Value> {
    let post = |proof| {
        let body = pod_certificate::certificate_request(pod, source, version, parties, proof);
        let namespace = &pod.metadata.namespace;
        api.create_pod_certificate_request(version, namespace, body.to_string().as_bytes())
    };
    let answer = post(KeyProof::Request(&made.request));
    match (&answer, &made.signature) {
        (Err(e), Some(signature)) if e.http_status() == Some(422) && version != "v1" => {
            post(KeyProof::Signature {
                public_key: &made.public_key,
                signature,
            })
        }
        _ => answer,
    }
}

/// Reads the validity of a pair, seconds since 1970, if its key is that of its certificate. Who else can use it, and for
/// what, is not asked: a pair that is given to a pod is also found again.
fn read_pair(pair: &CertificatePair) -> Result<(i64, i64), PodError> {
    let blocks = tls::parse_certificates(pair.chain.as_bytes());
    let unusable = |why: &dyn Display| PodError::Object(format!("the certificate: {why}"));
    let own = blocks.first().ok_or_else(|| unusable(&"there is none"))?;
    let (begin, end) = x509::read_validity(own).map_err(|e| unusable(&e))?;
    let certified = x509::public_key(own).map_err(|e| unusable(&e))?;
    let key = serving::public_key_of(pair.key.as_bytes()).map_err(|e| unusable(&e))?;
    if *key != *certified {
        return Err(unusable(&"it is for another key"));
    }
    Ok((begin.unix_seconds(), end.unix_seconds()))
}

fn found_times(pair: &CertificatePair, spread: u64, now_s: i64) -> Option<PairTimes> {
    let (begin_s, end_s) = read_pair(pair).ok()?;
    PairTimes::found(begin_s, end_s, spread, now_s)
}
