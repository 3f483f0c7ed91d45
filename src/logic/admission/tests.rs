use alloc::{string::String, vec::Vec};

use serde_json::json;

use super::*;
use crate::api::pod::{
    CONFIG_SOURCE, PodOs, PodSecurityContext, SecurityContext, Sysctl, Toleration,
};
use crate::api::{Quantity, WallTime, cri::NamespaceOptions};
use crate::testing::{container, pod_with, sidecar};

fn node() -> AdmissionNodeFacts {
    AdmissionNodeFacts {
        name: "pi".into(),
        labels: [("zone".into(), "a".into())].into(),
        allocatable: [
            (PODS, 3),
            (CPU, 1000),
            (MEMORY, 1 << 30),
            (EPHEMERAL_STORAGE, 1 << 30),
        ]
        .map(|(name, n)| (name.into(), n))
        .into(),
        sysctls: SysctlAllowlist::new((5, 10), &[]).expect("list"),
        ..AdmissionNodeFacts::default()
    }
}

fn asking(text: &str) -> Pod {
    let mut pod = pod_with(&["a"]);
    pod.spec.containers[0].resources.requests = text
        .split_whitespace()
        .map(|pair| {
            let (name, amount) = pair.split_once('=').expect("name=amount");
            (name.into(), Quantity::parse(amount).expect("quantity"))
        })
        .collect();
    pod
}

fn with(edit: impl FnOnce(&mut Pod)) -> Pod {
    let mut pod = pod_with(&["a"]);
    edit(&mut pod);
    pod
}

fn is_static_pod(pod: &mut Pod) {
    let note = (CONFIG_SOURCE.into(), "file".into());
    pod.metadata.annotations.extend([note]);
}

fn port(host_port: u16, protocol: &str, host_ip: &str) -> ContainerPort {
    ContainerPort {
        host_port,
        container_port: 8080,
        protocol: protocol.into(),
        host_ip: host_ip.into(),
        ..ContainerPort::default()
    }
}

fn refs(active: &[ActivePod]) -> Vec<&ActivePod> {
    active.iter().collect()
}

fn reason(pod: &Pod, node: &AdmissionNodeFacts, active: &[ActivePod]) -> String {
    admit_pod(pod, node, &refs(active))
        .err()
        .map_or_else(String::new, |r| r.reason)
}

#[test]
fn resources() {
    let used = |text| ActivePod::from_pod(&asking(text));
    // ADM-06 ADM-07
    for (name, pod, active, why, text) in [
        ("fits", asking("cpu=1 memory=1Gi"), vec![], "", ""),
        (
            "pods come first, even without requests",
            asking("cpu=9"),
            vec![used(""), used(""), used("")],
            "OutOfpods",
            "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
        ),
        (
            "cpu",
            asking("cpu=600m memory=9Gi"),
            vec![used("cpu=300m"), used("cpu=200m")],
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 600, used: 500, capacity: 1000",
        ),
        (
            "memory",
            asking("memory=1Gi ephemeral-storage=9Gi"),
            vec![used("memory=1")],
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 1073741824, used: 1, capacity: 1073741824",
        ),
        (
            "ephemeral storage",
            asking("ephemeral-storage=2Gi"),
            vec![],
            "OutOfephemeral-storage",
            "Node didn't have enough resource: ephemeral-storage, requested: 2147483648, used: 0, capacity: 1073741824",
        ),
        (
            "huge pages that the node lacks",
            asking("hugepages-2Mi=2Mi"),
            vec![],
            "OutOfhugepages-2Mi",
            "Node didn't have enough resource: hugepages-2Mi, requested: 2097152, used: 0, capacity: 0",
        ),
        (
            "an extended resource the node does not list",
            asking("vendor.io/x=1"),
            vec![],
            "",
            "",
        ),
        (
            "overcommitted, but this pod asks for nothing",
            asking(""),
            vec![used("cpu=4")],
            "",
            "",
        ),
    ] {
        let got = admit_pod(&pod, &node(), &refs(&active)).err();
        let (r, m) = got.map_or_else(Default::default, |r| (r.reason, r.message));
        assert_eq!((r.as_str(), m.as_str()), (why, text), "{name}");
    }
    let mut listed = node();
    listed.allocatable.insert("vendor.io/x".into(), 0);
    let refused = admit_pod(&asking("vendor.io/x=1"), &listed, &[]).expect_err("listed with 0");
    assert_eq!(refused.reason, "OutOfvendor.io/x");
    assert_eq!(refused.metric_reason(), "OutOfExtendedResources");
}

#[test]
fn host_port_conflicts() {
    let on = |ports: Vec<ContainerPort>| with(|pod| pod.spec.containers[0].ports = ports);
    // ADM-09
    for (name, other, mine, taken) in [
        (
            "same port",
            on(vec![port(80, "TCP", "")]),
            on(vec![port(80, "", "")]),
            true,
        ),
        (
            "other protocol",
            on(vec![port(80, "UDP", "")]),
            on(vec![port(80, "", "")]),
            false,
        ),
        (
            "other port",
            on(vec![port(81, "", "")]),
            on(vec![port(80, "", "")]),
            false,
        ),
        (
            "other address",
            on(vec![port(80, "", "1.1.1.1")]),
            on(vec![port(80, "", "2.2.2.2")]),
            false,
        ),
        (
            "same address",
            on(vec![port(80, "", "1.1.1.1")]),
            on(vec![port(80, "", "1.1.1.1")]),
            true,
        ),
        (
            "all addresses",
            on(vec![port(80, "", "0.0.0.0")]),
            on(vec![port(80, "", "2.2.2.2")]),
            true,
        ),
        (
            "no host port",
            on(vec![port(0, "", "")]),
            on(vec![port(0, "", "")]),
            false,
        ),
        (
            "host network makes declared ports host ports",
            with(|pod| {
                pod.spec.host_network = true;
                pod.spec.containers[0].ports = vec![port(0, "", "")];
            }),
            on(vec![port(8080, "", "")]),
            true,
        ),
        (
            "a sidecar's",
            with(|pod| {
                pod.spec.init_containers = vec![sidecar("s")];
                pod.spec.init_containers[0].ports = vec![port(80, "", "")];
            }),
            on(vec![port(80, "", "")]),
            true,
        ),
        (
            "a plain init container's do not count",
            with(|pod| {
                pod.spec.init_containers = vec![container("i")];
                pod.spec.init_containers[0].ports = vec![port(80, "", "")];
            }),
            on(vec![port(80, "", "")]),
            false,
        ),
    ] {
        let got = admit_pod(&mine, &node(), &[&ActivePod::from_pod(&other)]);
        assert_eq!(got.is_err(), taken, "{name}");
        if let Err(refused) = got {
            assert_eq!(refused.reason, "NodePorts");
            assert_eq!(
                refused.message,
                "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
            );
        }
    }
}

#[test]
fn fit_to_the_node() {
    let select =
        |zone: &str| with(|pod| pod.spec.node_selector = [("zone".into(), zone.into())].into());
    // ADM-05 ADM-08
    for (name, pod, why, text) in [
        ("selector fits", select("a"), "", ""),
        (
            "selector does not",
            select("b"),
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            "own name",
            with(|pod| pod.spec.node_name = "pi".into()),
            "",
            "",
        ),
        (
            "other name",
            with(|pod| pod.spec.node_name = "po".into()),
            "NodeName",
            "Predicate NodeName failed: node(s) didn't match the requested node name",
        ),
        (
            "label of another system",
            with(|pod| pod.metadata.labels = [(OS_LABEL.into(), "windows".into())].into()),
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ),
        (
            "another system",
            with(|pod| {
                pod.spec.os = Some(PodOs {
                    name: "windows".into(),
                })
            }),
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            "this system",
            with(|pod| {
                pod.spec.os = Some(PodOs {
                    name: "linux".into(),
                })
            }),
            "",
            "",
        ),
        (
            "strict groups",
            with(|pod| {
                pod.spec.security_context = Some(PodSecurityContext {
                    supplemental_groups_policy: Some("Strict".into()),
                    ..PodSecurityContext::default()
                });
            }),
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            "a feature that is not declared",
            with(|pod| {
                pod.spec.host_network = true;
                pod.spec.host_users = Some(false);
            }),
            "PodFeatureUnsupported",
            "Pod requires node features that are not available: UserNamespacesHostNetworkSupport",
        ),
    ] {
        let got = admit_pod(&pod, &node(), &[]).err();
        let verdict = judge_admission(&pod, &node(), &[]);
        let want = got.clone().map_or(AdmissionVerdict::Admit, |r| match why {
            "NodeAffinity" | "TaintToleration" => AdmissionVerdict::ReadNodeAgain(r),
            _ => AdmissionVerdict::Refuse(r),
        });
        assert_eq!(verdict, want, "{name}");
        let (r, m) = got.map_or_else(Default::default, |r| (r.reason, r.message));
        assert_eq!((r.as_str(), m.as_str()), (why, text), "{name}");
    }
}

#[test]
fn first_refusal_counts() {
    // ADM-02 ADM-05
    let mut pod = asking("cpu=9");
    pod.spec.node_selector = [("zone".into(), "b".into())].into();
    let mut node = node();
    assert_eq!(
        reason(&pod, &node, &[]),
        "OutOfcpu",
        "resources before affinity"
    );
    pod.spec.os = Some(PodOs {
        name: "windows".into(),
    });
    assert_eq!(reason(&pod, &node, &[]), "PodOSNotSupported");
    pod.spec.security_context = Some(PodSecurityContext {
        sysctls: vec![Sysctl {
            name: "vm.swappiness".into(),
            value: "1".into(),
        }],
        ..PodSecurityContext::default()
    });
    assert_eq!(reason(&pod, &node, &[]), "SysctlForbidden");
    node.pressure = vec!["DiskPressure".into()];
    assert_eq!(reason(&pod, &node, &[]), "Evicted");
}

#[test]
fn taints() {
    let taint = |effect: &str| Taint {
        key: "k".into(),
        value: "v".into(),
        effect: effect.into(),
        time_added: None,
    };
    let tolerant = with(|pod| {
        pod.spec.tolerations = vec![Toleration {
            key: "k".into(),
            operator: "Exists".into(),
            ..Toleration::default()
        }];
    });
    // ADM-10
    for (name, pod, effect, why) in [
        ("NoExecute", with(|_| ()), "NoExecute", "TaintToleration"),
        (
            "NoSchedule never refuses here",
            with(|_| ()),
            "NoSchedule",
            "",
        ),
        ("tolerated", tolerant, "NoExecute", ""),
        (
            "static pods are exempt",
            with(is_static_pod),
            "NoExecute",
            "",
        ),
    ] {
        let mut node = node();
        node.taints = vec![taint(effect)];
        assert_eq!(reason(&pod, &node, &[]), why, "{name}");
    }
}

#[test]
fn pressure() {
    let memory = &["MemoryPressure"][..];
    let disk = &["MemoryPressure", "DiskPressure"][..];
    let tolerant = with(|pod| {
        pod.spec.tolerations = vec![Toleration {
            key: "node.kubernetes.io/memory-pressure".into(),
            operator: "Exists".into(),
            effect: "NoSchedule".into(),
            ..Toleration::default()
        }];
    });
    // ADM-11
    for (name, pod, conditions, text) in [
        ("none", with(|_| ()), &[][..], ""),
        (
            "memory, best effort",
            with(|_| ()),
            memory,
            "The node had condition: [MemoryPressure]. ",
        ),
        ("memory, burstable", asking("cpu=1m"), memory, ""),
        ("memory, tolerated", tolerant.clone(), memory, ""),
        (
            "disk, tolerated",
            tolerant,
            disk,
            "The node had condition: [MemoryPressure DiskPressure]. ",
        ),
        (
            "critical",
            with(|pod| pod.spec.priority = Some(2_000_000_000)),
            disk,
            "",
        ),
        ("static", with(is_static_pod), disk, ""),
    ] {
        let mut node = node();
        node.pressure = conditions.iter().map(|c| (*c).into()).collect();
        let got = admit_pod(&pod, &node, &[])
            .err()
            .map_or_else(String::new, |r| r.message);
        assert_eq!(got, text, "{name}");
    }
}

#[test]
fn sysctls_and_apparmor() {
    // SEC-10 ADM-12 SEC-07 ADM-13
    let sysctl = with(|pod| {
        pod.spec.host_network = true;
        pod.spec.security_context = Some(PodSecurityContext {
            sysctls: vec![Sysctl {
                name: "net/ipv4/tcp_syncookies".into(),
                value: "1".into(),
            }],
            ..PodSecurityContext::default()
        });
    });
    let refused = admit_pod(&sysctl, &node(), &[]).expect_err("host network");
    assert_eq!(
        refused.message,
        "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host net enabled"
    );
    let profile = |kind: &str| {
        Some(SeccompProfile {
            kind: kind.into(),
            localhost_profile: None,
        })
    };
    let of_pod = |kind: &str| {
        with(|pod| {
            pod.spec.security_context = Some(PodSecurityContext {
                app_armor_profile: profile(kind),
                ..PodSecurityContext::default()
            });
        })
    };
    let mut overridden = of_pod("RuntimeDefault");
    overridden.spec.containers[0].security_context = Some(SecurityContext {
        app_armor_profile: profile("Unconfined"),
        ..SecurityContext::default()
    });
    let mut running = of_pod("RuntimeDefault");
    running.status.phase = PodPhase::Running;
    let annotated = with(|pod| {
        let key = format!("{APPARMOR_ANNOTATION}a");
        pod.metadata
            .annotations
            .insert(key, "runtime/default".into());
    });
    for (name, pod, why) in [
        ("nothing asked", with(|_| ()), ""),
        ("unconfined", of_pod("Unconfined"), ""),
        ("pod profile", of_pod("RuntimeDefault"), "AppArmor"),
        ("container overrides", overridden, ""),
        ("annotation", annotated, "AppArmor"),
        ("only while pending", running, ""),
    ] {
        let mut node = node();
        assert_eq!(reason(&pod, &node, &[]), why, "{name}");
        node.apparmor = true;
        assert_eq!(reason(&pod, &node, &[]), "", "{name}, AppArmor works");
    }
}

#[test]
fn who_claims_resources_does_not_start_without_them() {
    // DEV-47
    let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "c"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}]}}))
    .expect("pod");
    let refused = admit_pod(&pod, &node(), &[]).expect_err("refused");
    assert_eq!(refused.reason, "UnexpectedAdmissionError");
    let want =
        "resource claim \"gpu\": this node serves no resource claims (dynamic resource allocation)";
    assert_eq!(refused.message, want);
}

#[test]
fn metric_labels() {
    // ADM-03
    for (reason, label) in [
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfnvidia.com/gpu", "OutOfExtendedResources"),
        ("NodePorts", "Other"),
        ("NodeAffinity", "Other"),
        ("anything", "Other"),
        ("SysctlForbidden", "SysctlForbidden"),
    ] {
        assert_eq!(Rejection::new(reason, "").metric_reason(), label);
    }
}

#[test]
fn labels_alone_may_be_old() {
    // ADM-08
    let elsewhere = |pod: &mut Pod| pod.spec.node_selector = [("zone".into(), "b".into())].into();
    let mut pod = with(elsewhere);
    let node = node();
    let AdmissionVerdict::ReadNodeAgain(rejection) = judge_admission(&pod, &node, &[]) else {
        panic!("read again")
    };
    assert_eq!(rejection.reason, "NodeAffinity");
    // If anything else is against the pod, a new read of the Node is of no use.
    pod.spec.node_name = "po".into();
    let AdmissionVerdict::Refuse(rejection) = judge_admission(&pod, &node, &[]) else {
        panic!("refused")
    };
    assert_eq!(rejection.reason, "NodeAffinity");
    let mut big = asking("cpu=9");
    elsewhere(&mut big);
    let AdmissionVerdict::Refuse(rejection) = judge_admission(&big, &node, &[]) else {
        panic!("refused")
    };
    assert_eq!(rejection.reason, "OutOfcpu");
}

#[test]
fn critical_pods_make_room() {
    let critical = |text: &str, edit: fn(&mut Pod)| {
        let mut pod = asking(text);
        is_static_pod(&mut pod);
        edit(&mut pod);
        pod
    };
    let small = || ActivePod::from_pod(&asking("cpu=300m"));
    let large = || ActivePod::from_pod(&asking("cpu=600m"));
    let preempts = |victims: &[usize], resource: &str| AdmissionVerdict::Preempt {
        victims: victims.to_vec(),
        resource: resource.into(),
    };
    let refuses =
        |reason: &str, message: &str| AdmissionVerdict::Refuse(Rejection::new(reason, message));
    // ADM-14
    for (name, pod, active, want) in [
        (
            "there is room",
            critical("cpu=100m", |_| ()),
            vec![small(), large()],
            AdmissionVerdict::Admit,
        ),
        (
            "the one that is enough",
            critical("cpu=500m", |_| ()),
            vec![small(), large()],
            preempts(&[1], "cpu"),
        ),
        (
            "a place",
            critical("cpu=10m", |_| ()),
            vec![ActivePod::default(), ActivePod::default(), small()],
            preempts(&[0], "pods"),
        ),
        (
            "an ordinary pod makes none",
            asking("cpu=500m"),
            vec![small(), large()],
            refuses(
                "OutOfcpu",
                "Node didn't have enough resource: cpu, requested: 500, used: 900, capacity: 1000",
            ),
        ),
        (
            "another refusal as well: nobody is killed",
            critical("cpu=500m", |pod| pod.spec.node_name = "po".into()),
            vec![small(), large()],
            refuses(
                "NodeName",
                "Predicate NodeName failed: node(s) didn't match the requested node name",
            ),
        ),
        (
            "nor for one that AppArmor refuses",
            critical("cpu=500m", |pod| {
                let profile = SeccompProfile {
                    kind: "RuntimeDefault".into(),
                    ..SeccompProfile::default()
                };
                pod.spec.security_context = Some(PodSecurityContext {
                    app_armor_profile: Some(profile),
                    ..PodSecurityContext::default()
                });
            }),
            vec![small(), large()],
            refuses(
                "AppArmor",
                "Cannot enforce AppArmor: AppArmor is not enabled on the host",
            ),
        ),
        (
            "not enough, whoever goes",
            critical("cpu=2", |_| ()),
            vec![small(), large()],
            refuses(
                "UnexpectedAdmissionError",
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]",
            ),
        ),
    ] {
        assert_eq!(
            judge_admission(&pod, &node(), &refs(&active)),
            want,
            "{name}"
        );
    }
}

#[test]
fn what_the_api_says_of_the_node() {
    // NODE-06 NODE-11
    let mut facts = node();
    let mut seen = Node::default();
    seen.metadata.labels = [("zone".into(), "b".into())].into();
    seen.spec.taints = vec![Taint {
        key: "k".into(),
        effect: "NoExecute".into(),
        ..Taint::default()
    }];
    seen.status.allocatable = [("vendor.io/x", "2"), ("cpu", "64")]
        .map(|(name, n)| (name.into(), Quantity::parse(n).expect("quantity")))
        .into();
    facts.learn_from_node(&seen);
    assert_eq!(facts.labels["zone"], "b");
    assert_eq!(facts.taints.len(), 1);
    assert_eq!(facts.allocatable["vendor.io/x"], 2);
    assert_eq!(facts.allocatable[CPU], 1000, "what is measured here stays");
    seen.status.allocatable.clear();
    facts.learn_from_node(&seen);
    assert!(!facts.allocatable.contains_key("vendor.io/x"));
}

#[test]
fn taints_alone_may_be_old() {
    // ADM-08 ADM-10
    let mut node = node();
    node.taints = vec![Taint {
        key: "k".into(),
        effect: "NoExecute".into(),
        ..Taint::default()
    }];
    let mut pod = with(|pod| pod.spec.node_selector = [("zone".into(), "a".into())].into());
    let AdmissionVerdict::ReadNodeAgain(rejection) = judge_admission(&pod, &node, &[]) else {
        panic!("read again")
    };
    assert_eq!(rejection.reason, "TaintToleration");
    // With labels and taints both against the pod, the Node is read again, too.
    pod.spec.node_selector = [("zone".into(), "b".into())].into();
    let AdmissionVerdict::ReadNodeAgain(rejection) = judge_admission(&pod, &node, &[]) else {
        panic!("read again")
    };
    assert_eq!(rejection.reason, "NodeAffinity");
}

#[test]
fn what_an_agent_before_this_one_has_learnt() {
    // NODE-06 ADM-04
    let taint = |key: &str, effect: &str| Taint {
        key: key.into(),
        effect: effect.into(),
        time_added: Some(WallTime::from_unix_seconds(1)),
        ..Taint::default()
    };
    let mut seen = Node::default();
    seen.metadata.labels = [("disk", "ssd"), ("kubernetes.io/hostname", "old")]
        .map(|(key, value)| (key.into(), value.into()))
        .into();
    seen.spec.taints = vec![
        taint("k", "NoExecute"),
        taint("cordon", "NoSchedule"),
        taint("node.kubernetes.io/unreachable", "NoExecute"),
    ];
    let kept = KeptNode::from_node(&seen);
    assert_eq!(kept.taints.len(), 1, "what counts, and stays");
    seen.spec.taints.truncate(1);
    seen.spec.taints[0].time_added = None;
    assert_eq!(kept, KeptNode::from_node(&seen), "the same for admission");
    let mut facts = node();
    facts.labels = [("kubernetes.io/hostname".into(), "pi".into())].into();
    facts.restore_kept_node(Some(kept));
    assert_eq!(facts.labels["disk"], "ssd");
    assert_eq!(facts.labels["kubernetes.io/hostname"], "pi", "NODE-03");
    assert_eq!(facts.taints, seen.spec.taints);
    assert!(!facts.unread);
}

#[test]
fn by_a_node_that_nobody_knows_no_pod_of_the_api_is_refused() {
    // NODE-06 ADM-04
    let pick = |pod: &mut Pod| pod.spec.node_selector = [("zone".into(), "b".into())].into();
    let mut facts = node();
    facts.restore_kept_node(None);
    facts.taints = vec![Taint {
        key: "k".into(),
        effect: "NoExecute".into(),
        ..Taint::default()
    }];
    let of_api = with(pick);
    assert_eq!(reason(&of_api, &facts, &[]), "");
    let of_file = with(|pod| {
        is_static_pod(pod);
        pick(pod);
    });
    assert_eq!(reason(&of_file, &facts, &[]), "NodeAffinity");
    let mut seen = Node::default();
    seen.metadata.labels = facts.labels.clone();
    facts.learn_from_node(&seen);
    assert_eq!(reason(&of_api, &facts, &[]), "NodeAffinity");
}

#[test]
fn addresses_of_pods() {
    // K3ST-16
    let ip = |text: &str| text.parse::<IpAddr>().expect(text);
    let port = |protocol: &str, port| HostPort {
        protocol: protocol.into(),
        port,
        ip: String::new(),
    };
    let ports = [port("TCP", 9100), port("UDP", 53)];
    let host_ips = [ip("192.0.2.1"), ip("fd00::1")];
    let (own, host) = (NamespaceMode::Pod, NamespaceMode::Node);
    let (ready, ended) = (SandboxState::Ready, SandboxState::NotReady);
    for (to, ips, network, state, is_its) in [
        ("10.42.1.5:80", "10.42.1.5", own, ready, true),
        ("10.42.1.6:80", "10.42.1.5", own, ready, false),
        ("[fd42::5]:80", "fd42::5", own, ready, true),
        // The address may be another pod's by now.
        ("10.42.1.5:80", "10.42.1.5", own, ended, false),
        // With the host's network only what it has declared.
        ("192.0.2.1:9100", "", host, ready, true),
        ("192.0.2.1:53", "", host, ready, false),
        ("192.0.2.1:22", "", host, ready, false),
        ("[fd00::1]:9100", "", host, ready, true),
        ("192.0.2.9:9100", "", host, ready, false),
        ("192.0.2.1:9100", "", host, ended, false),
        // Host ports of another pod lead through the node's address, which is not the pod's.
        ("192.0.2.1:9100", "10.42.1.5", own, ready, false),
        ("192.0.2.1:9100", "192.0.2.1", own, ready, false),
    ] {
        let sandbox = SandboxStatus {
            id: "s".into(),
            uid: "u".into(),
            name: "p".into(),
            namespace: "ns".into(),
            attempt: 0,
            state,
            created_at: WallTime::from_unix_seconds(1),
            ips: ips.parse().into_iter().collect(),
            namespaces: NamespaceOptions {
                network,
                ..NamespaceOptions::default()
            },
            runtime_handler: String::new(),
        };
        let to = to.parse().expect("an address");
        assert_eq!(
            is_pod_address(to, &sandbox, &ports, &host_ips),
            is_its,
            "{to} {ips} {network:?} {state:?}"
        );
    }
}

#[test]
fn pods_without_processors_of_their_own() {
    // CPUM-23
    let (want, available, threads) = (3, 1, 2);
    for (refusal, reason, message) in [
        (
            CpuRefusal::TooFew { want, available },
            "UnexpectedAdmissionError",
            "Allocate failed due to not enough cpus available to satisfy request: requested=3, available=1, which is unexpected",
        ),
        (
            CpuRefusal::HalfCore { want, threads },
            "SMTAlignmentError",
            "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
        ),
    ] {
        assert_eq!(Rejection::from(refusal), Rejection::new(reason, message));
    }
}
