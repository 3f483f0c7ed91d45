use serde_json::json;

use super::*;

#[test]
fn features_of_handlers() {
    // NODE-14
    for able in [true, false] {
        let told = runtime_handler(HandlerCapabilities {
            name: "runc".into(),
            recursive_read_only_mounts: !able,
            user_namespaces: match able {
                true => UserNamespaceSupport::Works,
                false => UserNamespaceSupport::Lacks("a kernel".into()),
            },
        });
        assert_eq!(
            serde_json::to_value(told).expect("json"),
            json!({"name": "runc", "features": {"recursiveReadOnlyMounts": !able, "userNamespaces": able}})
        );
    }
}

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
        let found = disk_full_reason(&fs);
        match says {
            None => assert_eq!(found, None, "{name}"),
            Some(says) => assert!(found.is_some_and(|f| f.contains(says)), "{name}"),
        }
    }
}
