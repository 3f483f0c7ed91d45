//! Security settings of a container (SEC-01 to SEC-08). [`super::sysctl`] decides about sysctls.

use alloc::{borrow::ToOwned, collections::BTreeSet, string::String};

use crate::api::cri::{
    LinuxSecurity, NamespaceMode, NamespaceOptions, SandboxUser, SecurityProfile, StoredImage,
};
use crate::api::pod::{SeLinuxOptions, SeccompProfile, SecurityContext};
use crate::api::{Container, Pod, PodError};

/// Categories of an SELinux policy, at most: usual policies have as many.
const SELINUX_CATEGORIES: usize = 1024;
/// Annotation that asked for an AppArmor profile before there was a field; the container's name follows.
pub(crate) const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Security settings of the machine and of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecuritySettings {
    /// `seccompDefault`.
    pub seccomp_default: bool,
    /// Directory of `Localhost` seccomp profiles, absolute: `<root>/seccomp`.
    pub seccomp_root: String,
}

/// Namespace modes of a pod (CFG-13).
#[must_use]
pub fn namespace_options(pod: &Pod) -> NamespaceOptions {
    let spec = &pod.spec;
    let shared = |host| {
        if host {
            NamespaceMode::Node
        } else {
            NamespaceMode::Pod
        }
    };
    NamespaceOptions {
        network: shared(spec.host_network),
        ipc: shared(spec.host_ipc),
        pid: match (spec.host_pid, spec.share_process_namespace) {
            (true, _) => NamespaceMode::Node,
            (false, Some(true)) => NamespaceMode::Pod,
            (false, Some(false) | None) => NamespaceMode::Container,
        },
        // Only the agent knows which ids the pod has.
        users: None,
    }
}

/// Returns true if any container of the pod is privileged.
#[must_use]
pub fn is_privileged(pod: &Pod) -> bool {
    pod.spec.all_containers().any(|container| {
        let own = container.security_context.as_ref();
        own.and_then(|own| own.privileged) == Some(true)
    })
}

/// Security settings of one container: its own fields over the pod's, the image's user last.
///
/// Namespaces are the pod's; a target is for the caller to set.
///
/// Errors: runAsNonRoot cannot be kept or checked (SEC-03), a profile without a name, an unknown profile type.
pub fn linux_security(
    pod: &Pod,
    container: &Container,
    image: &StoredImage,
    settings: &SecuritySettings,
) -> Result<LinuxSecurity, PodError> {
    let empty = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&empty);
    let whole = pod.spec.security_context.as_ref();
    let run_as_user = own
        .run_as_user
        .or_else(|| whole.and_then(|pod| pod.run_as_user));
    let non_root = own
        .run_as_non_root
        .or_else(|| whole.and_then(|pod| pod.run_as_non_root));
    if non_root == Some(true) {
        verify_non_root(pod, container, run_as_user, image)?;
    }
    let capabilities = own.capabilities.clone().unwrap_or_default();
    let selinux = own
        .se_linux_options
        .as_ref()
        .or_else(|| whole.and_then(|pod| pod.se_linux_options.as_ref()));
    let supplemental = whole.map_or(&[][..], |pod| &pod.supplemental_groups);
    let fs_group = whole.and_then(|pod| pod.fs_group);
    let policy = whole.and_then(|pod| pod.supplemental_groups_policy.as_deref());
    // An image without a user runs as root (kubelet `getImageUser`). Without an image there is no such default.
    let root = || (!image.id.is_empty() && image.username.is_empty()).then_some(0);
    Ok(LinuxSecurity {
        privileged: own.privileged == Some(true),
        add_capabilities: capabilities.add,
        drop_capabilities: capabilities.drop,
        namespaces: namespace_options(pod),
        target: None,
        run_as_user: run_as_user.or(image.uid).or_else(root),
        run_as_group: own
            .run_as_group
            .or_else(|| whole.and_then(|pod| pod.run_as_group)),
        username: if run_as_user.is_none() {
            image.username.clone()
        } else {
            String::new()
        },
        supplemental_groups: fs_group.iter().chain(supplemental).copied().collect(),
        strict_supplemental_groups: policy == Some("Strict"),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        unmasked_proc: own.proc_mount.as_deref() == Some("Unmasked"),
        seccomp: seccomp_profile_of(
            own.seccomp_profile
                .as_ref()
                .or_else(|| whole.and_then(|pod| pod.seccomp_profile.as_ref())),
            settings,
        )?,
        apparmor: apparmor_profile_of(pod, container)?,
        selinux_label: selinux.map(selinux_label).unwrap_or_default(),
    })
}

/// User and groups of the sandbox's own processes (CRI-21). `volume_groups`: groups whose members may use the pod's
/// volumes.
#[must_use]
pub fn sandbox_user(pod: &Pod, volume_groups: &[i64]) -> SandboxUser {
    let Some(whole) = &pod.spec.security_context else {
        return SandboxUser {
            supplemental_groups: volume_groups.to_vec(),
            ..SandboxUser::default()
        };
    };
    let groups = whole.fs_group.iter().chain(volume_groups);
    SandboxUser {
        run_as_user: whole.run_as_user,
        run_as_group: whole.run_as_group,
        supplemental_groups: groups.chain(&whole.supplemental_groups).copied().collect(),
        strict_supplemental_groups: whole.supplemental_groups_policy.as_deref() == Some("Strict"),
        selinux_label: whole
            .se_linux_options
            .as_ref()
            .map(selinux_label)
            .unwrap_or_default(),
    }
}

/// Checks runAsNonRoot (SEC-03). The error texts are those people search for.
fn verify_non_root(
    pod: &Pod,
    container: &Container,
    run_as_user: Option<i64>,
    image: &StoredImage,
) -> Result<(), PodError> {
    let pod = crate::pod_kind::pod_ref(pod);
    let place = format!("(pod: {pod:?}, container: {})", container.name);
    match (run_as_user, image.uid) {
        (Some(0), _) => Err(PodError::Spec(format!(
            "container's runAsUser breaks non-root policy {place}"
        ))),
        (Some(_), _) => Ok(()),
        (None, _) if !image.username.is_empty() => Err(PodError::Image(format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root {place}",
            image.username
        ))),
        (None, Some(0) | None) => Err(PodError::Image(format!(
            "container has runAsNonRoot and image will run as root {place}"
        ))),
        (None, Some(_)) => Ok(()),
    }
}

fn seccomp_profile_of(
    profile: Option<&SeccompProfile>,
    settings: &SecuritySettings,
) -> Result<SecurityProfile, PodError> {
    let Some(profile) = profile else {
        return Ok(if settings.seccomp_default {
            SecurityProfile::RuntimeDefault
        } else {
            SecurityProfile::Unconfined
        });
    };
    match profile.kind.as_str() {
        "RuntimeDefault" => Ok(SecurityProfile::RuntimeDefault),
        "Unconfined" => Ok(SecurityProfile::Unconfined),
        "Localhost" => match profile.localhost_profile.as_deref() {
            None | Some("") => Err(PodError::Spec(
                "localhostProfile must be set if seccompProfile type is Localhost.".into(),
            )),
            Some(name) if name.starts_with('/') || name.split('/').any(|part| part == "..") => {
                Err(PodError::Spec(format!(
                    "seccomp profile {name:?} must be a path below the profile directory"
                )))
            }
            Some(name) => Ok(SecurityProfile::Localhost(format!(
                "{}/{name}",
                settings.seccomp_root
            ))),
        },
        other => Err(PodError::Spec(format!(
            "unknown seccomp profile type {other:?}"
        ))),
    }
}

/// AppArmor profile of a container (SEC-07): its own field, else the annotation, else the pod's field.
fn apparmor_profile_of(pod: &Pod, container: &Container) -> Result<SecurityProfile, PodError> {
    let own = container.security_context.as_ref();
    let whole = pod.spec.security_context.as_ref();
    if let Some(profile) = own.and_then(|own| own.app_armor_profile.as_ref()) {
        return apparmor_profile(profile);
    }
    let key = format!("{APPARMOR_ANNOTATION}{}", container.name);
    if let Some(value) = pod.metadata.annotations.get(&key) {
        return match value.as_str() {
            "runtime/default" => Ok(SecurityProfile::RuntimeDefault),
            "" | "unconfined" => Ok(SecurityProfile::Unconfined),
            value => match value.strip_prefix("localhost/") {
                Some(name) if !name.is_empty() => Ok(SecurityProfile::Localhost(name.into())),
                Some(_) | None => Err(PodError::Spec(format!(
                    "unknown AppArmor profile {value:?}"
                ))),
            },
        };
    }
    match whole.and_then(|pod| pod.app_armor_profile.as_ref()) {
        Some(profile) => apparmor_profile(profile),
        // Without a profile the runtime takes its default.
        None => Ok(SecurityProfile::Unset),
    }
}

fn apparmor_profile(profile: &SeccompProfile) -> Result<SecurityProfile, PodError> {
    match (profile.kind.as_str(), profile.localhost_profile.as_deref()) {
        ("RuntimeDefault", _) => Ok(SecurityProfile::RuntimeDefault),
        ("Unconfined", _) => Ok(SecurityProfile::Unconfined),
        ("Localhost", None | Some("")) => Err(PodError::Spec(
            "localhostProfile must be set if appArmorProfile type is Localhost".into(),
        )),
        ("Localhost", Some(name)) => Ok(SecurityProfile::Localhost(name.into())),
        (other, _) => Err(PodError::Spec(format!(
            "unknown AppArmor profile type {other:?}"
        ))),
    }
}

/// `user:role:type:level`; a part that is not given has the usual value of containers.
fn selinux_label(options: &SeLinuxOptions) -> String {
    let part = |given: &str, usual: &str| match given {
        "" => usual.to_owned(),
        given => given.to_owned(),
    };
    [
        part(&options.user, "system_u"),
        part(&options.role, "system_r"),
        part(&options.kind, "container_t"),
        part(&options.level, "s0"),
    ]
    .join(":")
}

/// Compares SELinux labels: `asked`, as a pod writes it, and `found`, as the kernel shows it. The kernel sorts
/// categories, and draws neighbours and equal levels together: `s0:c3,c1,c2` is shown as `s0:c1.c3`.
///
/// Source: kernel `security/selinux/ss/mls.c`, `mls_context_to_sid` and `mls_sid_to_context`.
#[must_use]
pub fn is_same_selinux_label(asked: &str, found: &str) -> bool {
    asked == found || selinux_parts(asked).is_some_and(|asked| selinux_parts(found) == Some(asked))
}

/// User, role and type, then both levels of a label. `None`: of another form.
fn selinux_parts(label: &str) -> Option<([&str; 3], [SelinuxLevel<'_>; 2])> {
    let mut parts = label.splitn(4, ':');
    let name = [parts.next()?, parts.next()?, parts.next()?];
    let level = parts.next().unwrap_or_default();
    let (low, high) = level.split_once('-').unwrap_or((level, level));
    Some((name, [selinux_level(low)?, selinux_level(high)?]))
}

/// A level's name and its categories.
type SelinuxLevel<'a> = (&'a str, BTreeSet<u16>);

/// Reads a level; `None`: its categories are of another form.
fn selinux_level(level: &str) -> Option<SelinuxLevel<'_>> {
    let (level, list) = level.split_once(':').unwrap_or((level, ""));
    let mut categories = BTreeSet::new();
    let number = |name: &str| name.strip_prefix('c')?.parse::<u16>().ok();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('.').unwrap_or((range, range));
        let range = number(first)?..=number(last)?;
        categories.extend(range.take(SELINUX_CATEGORIES));
    }
    Some((level, categories))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_compared_as_the_kernel_means_them() {
        // SEC-13
        for (asked, found, same) in [
            ("u:r:t:s0", "u:r:t:s0", true),
            ("u:r:t:s0:c2,c1", "u:r:t:s0:c1,c2", true),
            ("u:r:t:s0:c3,c1,c2", "u:r:t:s0:c1.c3", true),
            ("u:r:t:s0-s0", "u:r:t:s0", true),
            ("u:r:t:s0-s0:c0.c1023", "u:r:t:s0-s0:c0.c1023", true),
            ("u:r:t:s0:c1,c1", "u:r:t:s0:c1", true),
            ("u:r:t", "u:r:t", true),
            ("by name", "by name", true),
            ("u:r:t:secret", "u:r:t:secret", true),
            ("u:r:t:s0", "", false),
            ("u:r:t:s0", "unconfined", false),
            ("u:r:t:s0", "u:r:other_t:s0", false),
            ("u:r:t:s0", "other:r:t:s0", false),
            ("u:r:t:s0:c1", "u:r:t:s0", false),
            ("u:r:t:s0:c1", "u:r:t:s0:c1,c2", false),
            ("u:r:t:s0", "u:r:t:s1", false),
            ("u:r:t:s0", "u:r:t:s0-s0:c1", false),
            ("u:r:t:s0:all", "u:r:t:s0:each", false),
        ] {
            assert_eq!(is_same_selinux_label(asked, found), same, "{asked} {found}");
        }
    }

    fn pod(spec: &str) -> Pod {
        let text = format!(
            r#"{{"metadata":{{"name":"web","namespace":"prod","uid":"u"}},"spec":{spec}}}"#
        );
        serde_json::from_str(&text).expect("pod")
    }

    fn settings() -> SecuritySettings {
        SecuritySettings {
            seccomp_root: "/var/lib/picolet/seccomp".into(),
            ..SecuritySettings::default()
        }
    }

    fn security(whole: &str, own: &str, image: &StoredImage) -> Result<LinuxSecurity, PodError> {
        let pod = pod(&format!(
            r#"{{"securityContext":{whole},"containers":[{{"name":"app","securityContext":{own}}}]}}"#
        ));
        linux_security(&pod, &pod.spec.containers[0], image, &settings())
    }

    #[test]
    fn container_over_pod() {
        // SEC-01
        let image = StoredImage::default();
        let whole = r#"{"runAsUser":1,"runAsGroup":2,"seLinuxOptions":{"level":"s0:c1"},
            "seccompProfile":{"type":"RuntimeDefault"},"appArmorProfile":{"type":"RuntimeDefault"}}"#;
        let got = security(whole, "{}", &image).expect("pod only");
        assert_eq!((got.run_as_user, got.run_as_group), (Some(1), Some(2)));
        assert_eq!(got.seccomp, SecurityProfile::RuntimeDefault);
        assert_eq!(got.apparmor, SecurityProfile::RuntimeDefault);
        assert_eq!(got.selinux_label, "system_u:system_r:container_t:s0:c1");
        // SEC-13
        let all = r#"{"seLinuxOptions":{"user":"u","role":"r","type":"t","level":"l"}}"#;
        let given = security("{}", all, &image).expect("all");
        assert_eq!(given.selinux_label, "u:r:t:l");
        let own = security(whole, all, &image).expect("both");
        assert_eq!(own.selinux_label, "u:r:t:l", "the container's own");
        let none = security("{}", "{}", &image).expect("none");
        assert_eq!(none.selinux_label, "");
        assert!(!got.no_new_privs && !got.privileged && !got.readonly_rootfs);
        let own = r#"{"runAsUser":3,"runAsGroup":4,"privileged":true,"readOnlyRootFilesystem":true,
            "allowPrivilegeEscalation":false,"procMount":"Unmasked","capabilities":{"add":["A"],"drop":["B"]},
            "seccompProfile":{"type":"Unconfined"},"appArmorProfile":{"type":"Localhost","localhostProfile":"p"}}"#;
        let got = security(whole, own, &image).expect("both");
        assert_eq!((got.run_as_user, got.run_as_group), (Some(3), Some(4)));
        assert_eq!(got.seccomp, SecurityProfile::Unconfined);
        assert_eq!(got.apparmor, SecurityProfile::Localhost("p".into()));
        assert!(got.no_new_privs && got.privileged && got.readonly_rootfs && got.unmasked_proc);
        assert_eq!(
            (got.add_capabilities, got.drop_capabilities),
            (vec!["A".into()], vec!["B".into()])
        );
        let got =
            security("{}", r#"{"allowPrivilegeEscalation":true}"#, &image).expect("explicit true");
        assert!(!got.no_new_privs);
    }

    fn image(uid: Option<i64>, username: &str) -> StoredImage {
        StoredImage {
            id: "sha256:1".into(),
            uid,
            username: username.into(),
            ..StoredImage::default()
        }
    }

    #[test]
    fn user_and_non_root() {
        // SEC-02 SEC-03
        for (name, own, image, want) in [
            (
                "runAsUser",
                r#"{"runAsUser":7}"#,
                image(Some(5), ""),
                Ok((Some(7), "")),
            ),
            (
                "runAsUser over a name",
                r#"{"runAsUser":7}"#,
                image(None, "app"),
                Ok((Some(7), "")),
            ),
            (
                "numeric image user",
                "{}",
                image(Some(5), ""),
                Ok((Some(5), "")),
            ),
            (
                "image user by name",
                "{}",
                image(None, "app"),
                Ok((None, "app")),
            ),
            ("nobody", "{}", image(None, ""), Ok((Some(0), ""))),
            ("no image", "{}", StoredImage::default(), Ok((None, ""))),
            (
                "root by field",
                r#"{"runAsNonRoot":true,"runAsUser":0}"#,
                image(Some(5), ""),
                Err("runAsUser breaks non-root policy"),
            ),
            (
                "not root by field",
                r#"{"runAsNonRoot":true,"runAsUser":7}"#,
                image(Some(0), ""),
                Ok((Some(7), "")),
            ),
            (
                "not root by image",
                r#"{"runAsNonRoot":true}"#,
                image(Some(5), ""),
                Ok((Some(5), "")),
            ),
            (
                "root by image",
                r#"{"runAsNonRoot":true}"#,
                image(Some(0), ""),
                Err("image will run as root"),
            ),
            (
                "root by default",
                r#"{"runAsNonRoot":true}"#,
                image(None, ""),
                Err("image will run as root"),
            ),
            (
                "name cannot be checked",
                r#"{"runAsNonRoot":true}"#,
                image(None, "app"),
                Err("non-numeric user (app), cannot verify user is non-root"),
            ),
        ] {
            match (security("{}", own, &image), want) {
                (Ok(got), Ok((uid, username))) => {
                    assert_eq!(
                        (got.run_as_user, got.username.as_str()),
                        (uid, username),
                        "{name}"
                    );
                }
                (Err(got), Err(want)) => {
                    assert!(format!("{got}").contains(want), "{name}: {got}");
                    let of_spec = matches!(got, PodError::Spec(_));
                    assert_eq!(of_spec, own.contains("runAsUser"), "{name}");
                }
                (got, want) => panic!("{name}: {got:?}, want {want:?}"),
            }
        }
        let own_false = r#"{"runAsNonRoot":false}"#;
        assert!(security(r#"{"runAsNonRoot":true}"#, own_false, &image(None, "")).is_ok());
    }

    #[test]
    fn a_group_alone_is_roots() {
        // SEC-02
        let own = r#"{"runAsGroup":3000}"#;
        for (name, image, user, want) in [
            ("an image without USER", image(None, ""), "", Ok((0, 3000))),
            ("of a group alone", image(None, ""), ":5", Ok((0, 3000))),
            ("of a number", image(Some(5), ""), "5", Ok((5, 3000))),
            ("of a name", image(None, "app"), "app", Ok((7, 3000))),
            (
                "no image",
                StoredImage::default(),
                "",
                Err("a group to run as is given without a user"),
            ),
        ] {
            let got = security("{}", own, &image).expect(name);
            let ids = crate::user::resolve_user(&got, user, "app:x:7:8::/:\n", "")
                .map(|ids| (ids.uid, ids.gid));
            let want = want.map_err(|why: &str| PodError::Spec(why.into()));
            assert_eq!(ids, want, "{name}");
        }
    }

    #[test]
    fn groups() {
        // SEC-04
        let whole =
            r#"{"fsGroup":9,"supplementalGroups":[3,4],"supplementalGroupsPolicy":"Strict"}"#;
        let got = security(whole, "{}", &StoredImage::default()).expect("groups");
        assert_eq!(got.supplemental_groups, [9, 3, 4]);
        assert!(got.strict_supplemental_groups);
    }

    #[test]
    fn seccomp_order() {
        // SEC-06
        let localhost = |name: &str| {
            format!(r#"{{"seccompProfile":{{"type":"Localhost","localhostProfile":"{name}"}}}}"#)
        };
        let image = StoredImage::default();
        let got = security("{}", &localhost("a/b.json"), &image).expect("localhost");
        assert_eq!(
            got.seccomp,
            SecurityProfile::Localhost("/var/lib/picolet/seccomp/a/b.json".into())
        );
        for bad in ["", "/etc/x", "../x", "a/../../x"] {
            assert!(security("{}", &localhost(bad), &image).is_err(), "{bad}");
        }
        assert!(security("{}", r#"{"seccompProfile":{"type":"Odd"}}"#, &image).is_err());
        let mut settings = settings();
        assert_eq!(
            seccomp_profile_of(None, &settings),
            Ok(SecurityProfile::Unconfined)
        );
        settings.seccomp_default = true;
        assert_eq!(
            seccomp_profile_of(None, &settings),
            Ok(SecurityProfile::RuntimeDefault)
        );
    }

    #[test]
    fn apparmor_order() {
        // SEC-07
        for (name, annotation, whole, want) in [
            ("nothing", "", "{}", Ok(SecurityProfile::Unset)),
            (
                "annotation",
                "runtime/default",
                "{}",
                Ok(SecurityProfile::RuntimeDefault),
            ),
            (
                "annotation by name",
                "localhost/p",
                "{}",
                Ok(SecurityProfile::Localhost("p".into())),
            ),
            (
                "annotation over pod",
                "unconfined",
                r#"{"appArmorProfile":{"type":"RuntimeDefault"}}"#,
                Ok(SecurityProfile::Unconfined),
            ),
            ("odd annotation", "p", "{}", Err(())),
            ("localhost without name", "localhost/", "{}", Err(())),
            (
                "pod without name",
                "-",
                r#"{"appArmorProfile":{"type":"Localhost"}}"#,
                Err(()),
            ),
        ] {
            let mut pod = pod(&format!(
                r#"{{"securityContext":{whole},"containers":[{{"name":"app"}}]}}"#
            ));
            if !annotation.is_empty() && annotation != "-" {
                let key = "container.apparmor.security.beta.kubernetes.io/app";
                pod.metadata
                    .annotations
                    .insert(key.into(), annotation.into());
            }
            let got = apparmor_profile_of(&pod, &pod.spec.containers[0]).map_err(|_| ());
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn namespaces() {
        // CFG-13
        use NamespaceMode::{Container, Node, Pod};
        for (spec, network, ipc, pid) in [
            ("{}", Pod, Pod, Container),
            (r#"{"hostNetwork":true}"#, Node, Pod, Container),
            (r#"{"hostIPC":true}"#, Pod, Node, Container),
            (r#"{"shareProcessNamespace":true}"#, Pod, Pod, Pod),
            (
                r#"{"hostPID":true,"shareProcessNamespace":true}"#,
                Pod,
                Pod,
                Node,
            ),
        ] {
            let want = NamespaceOptions {
                network,
                ipc,
                pid,
                users: None,
            };
            assert_eq!(namespace_options(&pod(spec)), want, "{spec}");
        }
    }
}
