//! A pod's own limits for its usage of the node's disk (EVICT-11). A pod that exceeds one is evicted, however much of
//! the disk is left.

use alloc::{format, string::String};

use super::{rank::PodFigures, threshold::shortest_quantity};
use crate::{
    api::{Pod, PodUid, Quantity, pod::Volume},
    pod_resources::{AmountKind, pod_sum},
    qos::EPHEMERAL_STORAGE,
};

/// Pod that uses more of the node's disk than its limits allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageViolation {
    /// The pod.
    pub uid: PodUid,
    /// Message of the pod's status. Ends with a blank, as a kubelet's does.
    pub message: String,
    /// Name of the signal in metrics.
    pub signal: &'static str,
}

/// Returns true if the pod has a limit of its own for the node's disk.
#[must_use]
pub fn has_storage_limit(pod: &Pod) -> bool {
    pod.spec
        .volumes
        .iter()
        .any(|v| volume_size_limit(v).is_some())
        || pod_sum(pod, AmountKind::Limits, EPHEMERAL_STORAGE).is_some()
}

/// Returns the first limit that the pod exceeds. `has_image_disk`: images have a file system of their own, and the
/// writable layers of containers do not count.
#[must_use]
pub fn find_violation(
    pod: &Pod,
    figures: &PodFigures,
    has_image_disk: bool,
) -> Option<StorageViolation> {
    let violation = |signal, message| {
        Some(StorageViolation {
            uid: pod.metadata.uid.clone(),
            message,
            signal,
        })
    };
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    for volume in &pod.spec.volumes {
        let Some(limit) = volume_size_limit(volume) else {
            continue;
        };
        let mut volumes = figures.volumes.iter();
        let used = volumes.find(|(name, _)| *name == volume.name);
        if used.is_some_and(|(_, used)| signed(used.used_bytes) > limit.value()) {
            let limit = shortest_quantity(limit, limit.value());
            let message = format!(
                "Usage of EmptyDir volume {:?} exceeds the limit \"{limit}\". ",
                volume.name
            );
            return violation("emptydirfs.limit", message);
        }
    }
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let first_limit = containers
        .filter_map(|c| c.resources.limits.get(EPHEMERAL_STORAGE))
        .next();
    if let Some(limit) = pod_sum(pod, AmountKind::Limits, EPHEMERAL_STORAGE)
        && signed(figures.ephemeral_bytes()) > limit
    {
        let limit = first_limit.map_or_else(
            || Quantity::from_binary_units(limit),
            |like| shortest_quantity(like, limit),
        );
        let message = format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        );
        return violation("ephemeralpodfs.limit", message);
    }
    for measured in &figures.containers {
        let mut all = pod.spec.containers.iter();
        let container = all.find(|c| c.name == measured.name);
        let limit = container.and_then(|c| c.resources.limits.get(EPHEMERAL_STORAGE));
        let Some(limit) = limit.filter(|limit| limit.value() > 0) else {
            continue;
        };
        let layer = measured.rootfs.filter(|_| !has_image_disk);
        let used = measured.logs.into_iter().chain(layer);
        let used = used
            .map(|part| part.used_bytes)
            .fold(0, u64::saturating_add);
        if signed(used) > limit.value() {
            let limit = shortest_quantity(limit, limit.value());
            let message = format!(
                "Container {} exceeded its local ephemeral storage limit \"{limit}\". ",
                measured.name
            );
            return violation("ephemeralcontainerfs.limit", message);
        }
    }
    None
}

/// Size limit of an `emptyDir` volume, if it is above 0.
fn volume_size_limit(volume: &Volume) -> Option<&Quantity> {
    let limit = volume.empty_dir.as_ref()?.size_limit.as_ref();
    limit.filter(|limit| limit.value() > 0)
}

#[cfg(test)]
mod tests {
    use super::{super::rank::ContainerFigures, *};
    use crate::{api::stats::DiskUsage, testing::pod_with};
    use serde_json::json;

    const MIB: u64 = 1 << 20;

    fn disk(bytes: u64) -> DiskUsage {
        DiskUsage {
            used_bytes: bytes,
            inodes_used: 1,
        }
    }

    fn pod(volume_limit: &str, limits: [&str; 2]) -> Pod {
        let mut pod = pod_with(&["a", "b"]);
        for (container, limit) in pod.spec.containers.iter_mut().zip(limits) {
            if let Ok(limit) = Quantity::parse(limit) {
                let limits = &mut container.resources.limits;
                limits.insert(EPHEMERAL_STORAGE.into(), limit);
            }
        }
        let mut dir = json!({});
        if !volume_limit.is_empty() {
            dir["sizeLimit"] = volume_limit.into();
        }
        let volume = json!({"name": "scratch", "emptyDir": dir});
        pod.spec.volumes = vec![serde_json::from_value(volume).expect("volume")];
        pod
    }

    /// Usage in MiB: of the volume, of the writable layer of a, of its log.
    fn figures([volume, layer, log]: [u64; 3]) -> PodFigures {
        PodFigures {
            containers: vec![ContainerFigures {
                name: "a".into(),
                rootfs: Some(disk(layer * MIB)),
                logs: Some(disk(log * MIB)),
                ..ContainerFigures::default()
            }],
            volumes: vec![("scratch".into(), disk(volume * MIB))],
            ..PodFigures::default()
        }
    }

    #[test]
    fn limits_of_pods() {
        // EVICT-11
        for (name, pod, used, has_image_disk, want) in [
            (
                "no limit at all",
                pod("", ["", ""]),
                [99, 99, 99],
                false,
                None,
            ),
            (
                "as much as it may",
                pod("10Mi", ["", ""]),
                [10, 99, 99],
                false,
                None,
            ),
            (
                "a volume",
                pod("10240Ki", ["", ""]),
                [11, 0, 0],
                false,
                Some((
                    "emptydirfs.limit",
                    "Usage of EmptyDir volume \"scratch\" exceeds the limit \"10Mi\". ",
                )),
            ),
            (
                "a volume before all else",
                pod("10Mi", ["1Mi", "1Mi"]),
                [11, 9, 9],
                false,
                Some((
                    "emptydirfs.limit",
                    "Usage of EmptyDir volume \"scratch\" exceeds the limit \"10Mi\". ",
                )),
            ),
            (
                "the pod, volumes included",
                pod("", ["20Mi", "10Mi"]),
                [20, 6, 5],
                false,
                Some((
                    "ephemeralpodfs.limit",
                    "Pod ephemeral local storage usage exceeds the total limit of containers 30Mi. ",
                )),
            ),
            (
                "the pod, just not",
                pod("", ["20Mi", "10Mi"]),
                [20, 5, 5],
                false,
                None,
            ),
            (
                "a container by layer and log",
                pod("", ["10Mi", "90Mi"]),
                [0, 6, 5],
                false,
                Some((
                    "ephemeralcontainerfs.limit",
                    "Container a exceeded its local ephemeral storage limit \"10Mi\". ",
                )),
            ),
            (
                "its layer does not count beside the node's disk",
                pod("", ["10Mi", "90Mi"]),
                [0, 6, 5],
                true,
                None,
            ),
            (
                "its log does",
                pod("", ["10M", "90Mi"]),
                [0, 0, 11],
                true,
                Some((
                    "ephemeralcontainerfs.limit",
                    "Container a exceeded its local ephemeral storage limit \"10M\". ",
                )),
            ),
        ] {
            let found = find_violation(&pod, &figures(used), has_image_disk);
            let found = found.map(|v| (v.signal, v.message));
            let want = want.map(|(signal, message)| (signal, message.into()));
            assert_eq!(found, want, "{name}");
        }
    }

    #[test]
    fn pods_with_limits() {
        // EVICT-11
        assert!(!has_storage_limit(&pod("", ["", ""])));
        assert!(!has_storage_limit(&pod("0", ["", ""])));
        assert!(has_storage_limit(&pod("1", ["", ""])));
        assert!(has_storage_limit(&pod("", ["", "1Gi"])));
    }

    #[test]
    fn words_are_those_of_the_specification() {
        // EVICT-11
        let rows = include_str!("../../../tests/spec/node.md");
        let row = rows.lines().find(|row| row.starts_with("| EVICT-11 |"));
        let row = row.expect("its row");
        for (pod, used, names) in [
            (
                pod("10Mi", ["", ""]),
                [11, 0, 0],
                [("scratch", "V"), ("10Mi", "L")],
            ),
            (
                pod("", ["20Mi", "10Mi"]),
                [31, 0, 0],
                [("30Mi", "L"), ("", "")],
            ),
            (
                pod("", ["10Mi", "99Mi"]),
                [0, 11, 0],
                [(" a ", " C "), ("10Mi", "L")],
            ),
        ] {
            let found = find_violation(&pod, &figures(used), false).expect("too much");
            let [(one, is), (other, means)] = names;
            let said = found.message.replace(one, is);
            let said = match other {
                "" => said,
                other => said.replace(other, means),
            };
            assert!(row.contains(&format!("`{said}`")), "{said}");
        }
    }
}
