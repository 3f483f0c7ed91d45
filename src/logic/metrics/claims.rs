//! The part of `/metrics` about volumes that claims are bound to (MET-06). Source: kubelet
//! `pkg/kubelet/metrics/collectors/volume_stats.go`.

use alloc::rc::Rc;

use super::exposition::{
    FamilyPage, MetricFamily, MetricType, SampleValue, SampleWriter, families,
};
use crate::api::stats::{ClaimUsage, DiskUsage};

/// Rows are sorted by namespace and claim; pods that share a claim have a row each, and the first counts.
#[must_use]
pub fn claims_page(claims: Rc<[ClaimUsage]>) -> FamilyPage<Rc<[ClaimUsage]>> {
    FamilyPage::new(FAMILIES, claims)
}

type ClaimRows = Rc<[ClaimUsage]>;

/// Sorted by name.
const FAMILIES: &[MetricFamily<ClaimRows>] = families![MetricFamily:
    "kubelet_volume_stats_available_bytes" Gauge "Bytes of a volume that are free for everybody."
        |rows, n, s| write_claim_value(rows, n, s, |c| c.fs.available_bytes);
    "kubelet_volume_stats_capacity_bytes" Gauge "Bytes of a volume."
        |rows, n, s| write_claim_value(rows, n, s, |c| c.fs.capacity_bytes);
    "kubelet_volume_stats_inodes" Gauge "Inodes of a volume."
        |rows, n, s| write_claim_value(rows, n, s, |c| c.fs.inodes);
    "kubelet_volume_stats_inodes_free" Gauge "Inodes of a volume that are free."
        |rows, n, s| write_claim_value(rows, n, s, |c| c.fs.inodes_free);
    "kubelet_volume_stats_inodes_used" Gauge "Inodes of a volume that are used."
        |rows, n, s| write_claim_value(rows, n, s, |c| DiskUsage::of_filesystem(&c.fs).inodes_used);
    "kubelet_volume_stats_used_bytes" Gauge "Bytes of a volume that are used."
        |rows, n, s| write_claim_value(rows, n, s, |c| DiskUsage::of_filesystem(&c.fs).used_bytes);
];

fn write_claim_value(
    rows: &ClaimRows,
    n: usize,
    samples: &mut SampleWriter<'_>,
    value: impl Fn(&ClaimUsage) -> u64,
) -> bool {
    let Some(row) = rows.get(n) else {
        return false;
    };
    let is_told = n
        .checked_sub(1)
        .and_then(|n| rows.get(n))
        .is_some_and(|before| (&before.namespace, &before.claim) == (&row.namespace, &row.claim));
    if !is_told {
        let labels = [
            ("namespace", &*row.namespace),
            ("persistentvolumeclaim", &*row.claim),
        ];
        samples.write_sample(&labels, SampleValue::Count(value(row)), None);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cri::FsInfo;
    use alloc::string::String;

    #[test]
    fn the_page() {
        // MET-06
        let claim = |uid: &str, name: &str, capacity_bytes| ClaimUsage {
            uid: uid.into(),
            volume: "v".into(),
            namespace: "home".into(),
            claim: name.into(),
            fs: FsInfo {
                capacity_bytes,
                available_bytes: 500,
                free_bytes: 600,
                inodes: 70,
                inodes_free: 40,
                read_only: false,
            },
        };
        // Two pods of one claim are one volume.
        let claims = [
            claim("1", "films", 2000),
            claim("1", "music", 1000),
            claim("2", "music", 1000),
        ];
        let text: String = claims_page(claims.into()).collect();
        super::super::sample::testing::golden("claims.txt", &text);
        assert_eq!(claims_page([].into()).count(), 0);
    }
}
