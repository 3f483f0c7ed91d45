//! Answers of the apiserver, made ready on the lane that has read them: decoded, digested, judged.

use serde_json::Value;

use crate::{
    api::{ObjectMeta, Pod, pod::CONFIG_MIRROR, received::ReceivedPod, strict::WrongValue},
    kube::{CompleteList, KubeError, WatchEvent, WatchEventKind},
    logic::{
        api_pod,
        api_poll::{self, GetTicket, PodListItem, PodObjectSummary},
        mirror::{MirrorPod, PodFullName},
        pod_kind::is_mirror,
        status_patch::ApiStatusDigest,
        status_writer::{self, ApiPodCopy, WriteAnswer},
    },
};

/// Answer of the apiserver to a request of the poller, or to a write of this agent.
pub(super) enum ApiPodAnswer {
    /// A list of metadata ended; what it has shown until then.
    Listed(Vec<PodListItem>, Result<CompleteList, KubeError>),
    /// A whole object of a list.
    Object(Box<ApiPodSnapshot>),
    /// A read ended; `None`: what came was no pod.
    Got(GetTicket, Result<Option<Box<ApiPodSnapshot>>, KubeError>),
    /// A write of ours was answered with more than was known.
    Written(Box<ApiPodSnapshot>),
}

/// A pod as the API has shown it.
#[derive(Debug)]
pub(super) struct ApiPodSnapshot {
    pub(super) item: PodListItem,
    pub(super) sight: PodObjectSummary,
    /// The pod, or what is wrong with it.
    pub(super) pod: Result<Box<ReceivedPod>, WrongValue>,
}

impl ApiPodSnapshot {
    /// Judges an object; `None`: it has no identity.
    pub(super) fn from_object(raw: Value, node: &str) -> Option<Self> {
        let item = parse_item(&raw)?;
        Some(Self {
            item,
            sight: PodObjectSummary::from_raw_object(&raw),
            pod: api_pod::decode_api_pod(raw, node),
        })
    }
}

fn parse_item(raw: &Value) -> Option<PodListItem> {
    let metadata = &raw["metadata"];
    let text = |name: &str| {
        let text = metadata[name].as_str().unwrap_or("");
        (!text.is_empty()).then_some(text)
    };
    Some(PodListItem {
        namespace: text("namespace")?.into(),
        name: text("name")?.into(),
        uid: text("uid")?.into(),
        version: text("resourceVersion")?.into(),
        deleting: !metadata["deletionTimestamp"].is_null(),
        mirror: !metadata["annotations"][CONFIG_MIRROR].is_null(),
    })
}

/// Makes an item from a list of metadata.
pub(super) fn item_from_metadata(meta: ObjectMeta) -> PodListItem {
    PodListItem {
        deleting: meta.deletion_timestamp.is_some(),
        mirror: meta.annotations.contains_key(CONFIG_MIRROR),
        namespace: meta.namespace.into(),
        name: meta.name.into(),
        uid: meta.uid,
        version: meta.resource_version.into(),
    }
}

/// Picks what the writer needs of a pod that the API shows.
pub(super) fn api_copy_of(received: &ReceivedPod) -> ApiPodCopy {
    let pod = &received.pod;
    ApiPodCopy {
        status: ApiStatusDigest::from_status(&pod.status),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        mirror: is_mirror(pod),
    }
}

/// The pod as a mirror; `None`: it is none.
pub(super) fn parse_mirror(pod: &Pod) -> Option<(PodFullName, MirrorPod)> {
    Some((
        PodFullName::from_metadata(&pod.metadata),
        MirrorPod::from_metadata(&pod.metadata)?,
    ))
}

/// A ring in the poller's words; `None`: nobody knows for whom it rings.
pub(super) fn translate_ring(ring: WatchEvent) -> Option<api_poll::PodWatchEvent> {
    let kind = match ring.kind {
        WatchEventKind::Added | WatchEventKind::Modified => api_poll::PodWatchEventKind::Changed,
        WatchEventKind::Deleted => api_poll::PodWatchEventKind::Deleted,
        WatchEventKind::Bookmark => api_poll::PodWatchEventKind::Bookmark,
        WatchEventKind::Unknown => return None,
    };
    Some(api_poll::PodWatchEvent {
        kind,
        item: PodListItem {
            namespace: ring.namespace.into(),
            name: ring.name.into(),
            uid: ring.uid.as_str().into(),
            version: ring.resource_version.into(),
            deleting: false,
            mirror: false,
        },
    })
}

/// Returns true if the apiserver itself gave this answer, not a proxy on the way to it.
pub(super) fn is_api_refusal(e: &KubeError, status: u16, reason: &str) -> bool {
    matches!(e, KubeError::Api(e) if e.status == status && e.reason == reason)
}

/// Sorts the error of a read for the poller.
pub(super) fn classify_read_failure(e: &KubeError) -> api_poll::ApiRequestFailure {
    match e {
        e if is_api_refusal(e, 404, "NotFound") => api_poll::ApiRequestFailure::NotFound,
        e if is_api_refusal(e, 403, "Forbidden") => api_poll::ApiRequestFailure::Forbidden,
        KubeError::Wrong { .. } => api_poll::ApiRequestFailure::Unusable,
        e => classify_list_failure(e),
    }
}

/// Sorts the error of a list for the poller.
pub(super) fn classify_list_failure(e: &KubeError) -> api_poll::ApiRequestFailure {
    api_poll::ApiRequestFailure::Server {
        retry_after: e.retry_after(),
    }
}

/// The apiserver's word on a write that is not done; `None`: it was not asked.
pub(super) const fn failed_write_answer(e: &KubeError) -> Option<WriteAnswer> {
    match (e.http_status(), e.retry_after()) {
        (Some(404), _) => Some(WriteAnswer::Gone),
        (Some(403), _) => Some(WriteAnswer::Forbidden),
        (Some(409), _) => Some(WriteAnswer::Conflict),
        (Some(400 | 413 | 422), _) => Some(WriteAnswer::Refused),
        (Some(429), _) | (Some(503), Some(_)) => Some(WriteAnswer::Busy),
        _ if matches!(e, KubeError::Cancelled) => None,
        _ => Some(WriteAnswer::Failed),
    }
}

/// Sorts the error of a write, as far as its fate is known.
pub(super) fn classify_write_failure(e: &KubeError) -> status_writer::WriteFailure {
    use status_writer::WriteFailure;
    match failed_write_answer(e) {
        Some(WriteAnswer::Gone | WriteAnswer::Forbidden | WriteAnswer::Conflict) => {
            WriteFailure::Unsure
        }
        Some(WriteAnswer::Refused) => WriteFailure::Refused,
        Some(WriteAnswer::Busy) => WriteFailure::Busy {
            retry_after: e.retry_after(),
        },
        Some(WriteAnswer::Done | WriteAnswer::Failed) | None => WriteFailure::Failed,
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::kube::ApiError;

    fn error(status: u16, reason: &str, retry_after: Option<u64>) -> KubeError {
        KubeError::Api(ApiError {
            status,
            reason: reason.into(),
            retry_after: retry_after.map(Duration::from_secs),
            ..ApiError::default()
        })
    }

    #[test]
    fn failures() {
        // SRC-30 SM-05 DEL-06
        use api_poll::ApiRequestFailure as Read;
        use status_writer::WriteFailure as Write;
        let wait = |s: u64| Some(Duration::from_secs(s));
        let server = Read::Server { retry_after: None };
        for (e, read, write) in [
            (error(404, "NotFound", None), Read::NotFound, Write::Unsure),
            // A proxy that does not know the path says nothing of the pod.
            (error(404, "", None), server, Write::Unsure),
            (
                error(403, "Forbidden", None),
                Read::Forbidden,
                Write::Unsure,
            ),
            (error(403, "", None), server, Write::Unsure),
            (error(409, "Conflict", None), server, Write::Unsure),
            (error(422, "Invalid", None), server, Write::Refused),
            (
                error(429, "", Some(3)),
                Read::Server {
                    retry_after: wait(3),
                },
                Write::Busy {
                    retry_after: wait(3),
                },
            ),
            (error(503, "", None), server, Write::Failed),
            (error(500, "", None), server, Write::Failed),
            (KubeError::Local("no key".into()), server, Write::Failed),
        ] {
            assert_eq!(classify_read_failure(&e), read, "{e}");
            assert_eq!(classify_write_failure(&e), write, "{e}");
        }
    }

    #[test]
    fn objects_without_identity_are_nobody() {
        let whole = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "1"}});
        assert!(
            ApiPodSnapshot::from_object(whole.clone(), "n").is_some_and(|seen| seen.pod.is_err())
        );
        for field in ["namespace", "name", "uid", "resourceVersion"] {
            let mut raw = whole.clone();
            raw["metadata"][field] = json!(7);
            assert!(ApiPodSnapshot::from_object(raw, "n").is_none(), "{field}");
        }
        assert!(ApiPodSnapshot::from_object(json!([]), "n").is_none());
        assert!(ApiPodSnapshot::from_object(json!("pod"), "n").is_none());
    }
}
