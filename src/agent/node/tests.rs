use super::*;

#[test]
fn when_the_disk_of_the_images_is_full() {
    // NODE-18
    let roomy = FsInfo {
        capacity_bytes: 1 << 30,
        available_bytes: 1 << 29,
        free_bytes: 1 << 29,
        inodes: 100_000,
        inodes_free: 50_000,
        read_only: false,
    };
    for (name, fs, says) in [
        ("room", roomy, None),
        ("not known", FsInfo::default(), None),
        (
            "no bytes",
            FsInfo {
                available_bytes: 5 << 20,
                ..roomy
            },
            Some("has 5 MiB left, 64 MiB are kept free"),
        ),
        (
            "no inodes",
            FsInfo {
                inodes_free: 7,
                ..roomy
            },
            Some("has 7 inodes left"),
        ),
        (
            "read-only",
            FsInfo {
                read_only: true,
                ..roomy
            },
            Some("is read-only"),
        ),
    ] {
        let found = too_full(&fs);
        match says {
            None => assert_eq!(found, None, "{name}"),
            Some(says) => assert!(found.is_some_and(|f| f.contains(says)), "{name}"),
        }
    }
}

#[test]
fn what_is_kept_from_pods() {
    // NODE-10 CG-12
    let quantity = |text: &str| Quantity::parse(text).expect(text);
    let reserved = Reserved {
        system: [("cpu", "100m"), ("memory", "16Mi"), ("pid", "100")]
            .map(|(name, text)| (name.to_owned(), quantity(text)))
            .into(),
        kube: [("memory", "8Mi"), ("ephemeral-storage", "1Gi")]
            .map(|(name, text)| (name.to_owned(), quantity(text)))
            .into(),
        eviction_hard: [
            (
                "memory.available".to_owned(),
                Threshold::Amount(quantity("100Mi")),
            ),
            ("nodefs.available".to_owned(), Threshold::Permille(100)),
        ]
        .into(),
        local_storage: true,
    };
    let capacity = Capacity {
        memory_bytes: 512 << 20,
        storage_bytes: 10 << 30,
        ..Capacity::default()
    };
    let want = Reservations {
        cpu_milli: 100,
        memory_bytes: 24 << 20,
        storage_bytes: 1 << 30,
        pids: 100,
        eviction_memory_bytes: 100 << 20,
        eviction_storage_bytes: 1 << 30,
    };
    assert_eq!(reservations(&reserved, capacity), want);
    assert_eq!(
        reservations(&Reserved::default(), capacity),
        Reservations::default()
    );
}

#[test]
fn the_version_is_one_of_kubernetes() {
    // NODE-12: vMAJOR.MINOR.PATCH, then build metadata of semantic versioning.
    let version = KUBELET_VERSION.strip_prefix('v').expect("v");
    let (core, build) = version.split_once('+').expect("build");
    assert_eq!(
        core.split('.').filter(|n| n.parse::<u32>().is_ok()).count(),
        3
    );
    assert!(build.split('.').all(|part| {
        !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
    }));
}
