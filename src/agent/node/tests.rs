use serde_json::json;

use super::*;

#[test]
fn no_handler_has_user_namespaces() {
    // NODE-14
    for rro in [true, false] {
        let told = runtime_handler(HandlerCapabilities {
            name: "runc".into(),
            recursive_read_only_mounts: rro,
        });
        assert_eq!(
            serde_json::to_value(told).expect("json"),
            json!({"name": "runc", "features": {"recursiveReadOnlyMounts": rro, "userNamespaces": false}})
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
