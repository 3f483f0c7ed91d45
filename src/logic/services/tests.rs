//! A table of cases (PROX-29): Objects, the chains and elements that they become, and, in `tests/services_packets.rs`,
//! the answers to real packets.

use alloc::{borrow::ToOwned as _, format, string::String, vec::Vec};
use std::eprintln;

use serde_json::{Value, json};

use super::{
    AddressFamily, ProxyNetwork, ProxyNode, ProxyProtocol,
    endpoints::EndpointCollector,
    index::{ServiceIndex, ServiceListing, WrittenService},
    live::{LiveTable, has_kube_proxy},
    object::{ObjectFaults, ProxyService, collect_slice},
    parse_range,
    plan::{ChainKind, ChainName, ElementKey, ServicePlan, TableMap, plan_service},
    range_contains,
    table::{base_table, remove_table, table_stamp},
    transaction::{
        PART_BYTES, TableBefore, TransactionParts, delete_chains, remove_hairpins, update_live,
        write_service,
    },
    udp::{UdpFlow, is_stale_flow, udp_ports},
};
use crate::metrics::exposition::MetricsText;

/// The cases: see the comment at their head.
const CASES: &str = include_str!("../../../tests/golden/services/cases.json");

pub(super) fn network() -> ProxyNetwork {
    let ranges = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| parse_range(text).expect("a range"))
            .collect()
    };
    ProxyNetwork {
        families: AddressFamily::ALL.to_vec(),
        cluster_ranges: ranges(&["10.42.0.0/16", "fd42::/56"]),
        service_ranges: ranges(&["10.43.0.0/16", "fd43::/112"]),
        node_port_ranges: Vec::new(),
    }
}

pub(super) fn node() -> ProxyNode {
    ProxyNode {
        name: "n1".into(),
        zone: "z1".into(),
        addresses: ["192.0.2.1".parse().expect("an address")].into(),
    }
}

pub(super) fn service_of(object: &Value) -> ProxyService {
    let mut faults = ObjectFaults::new();
    let service = ProxyService::from_json(object, &mut faults).expect("a service");
    assert_eq!(faults, ObjectFaults::new());
    service
}

pub(super) fn gather(service: &ProxyService, slices: &[Value]) -> EndpointCollector {
    let mut collector = EndpointCollector::new(service.ports.len());
    for slice in slices {
        collect_slice(
            slice,
            service,
            &node(),
            &mut collector,
            &mut ObjectFaults::new(),
        );
    }
    collector.finish();
    collector
}

pub(super) fn plan_of(object: &Value, slices: &[Value]) -> ServicePlan {
    let service = service_of(object);
    let endpoints = gather(&service, slices);
    plan_service(
        &service,
        &endpoints,
        &network(),
        &node(),
        &mut ObjectFaults::new(),
    )
}

fn written(plan: &ServicePlan) -> String {
    let mut out = String::new();
    let live = LiveTable::default();
    let before = TableBefore::Read {
        live: &live,
        is_new: true,
        is_living: &|_| false,
    };
    write_service(plan, before, &mut out);
    out
}

#[test]
fn golden_cases() {
    // PROX-05 PROX-06 PROX-07 PROX-08 PROX-09 PROX-10 PROX-11 PROX-12 PROX-13 PROX-14 PROX-15 PROX-16 PROX-17
    let cases: Value = serde_json::from_str(CASES).expect("json");
    let mut wrong = Vec::new();
    for case in cases["cases"].as_array().expect("cases") {
        let name = case["name"].as_str().expect("a name");
        let slices = case["slices"].as_array().expect("slices");
        let text = written(&plan_of(&case["service"], slices));
        let text: Vec<&str> = text.lines().collect();
        let golden = case["rules"].as_array().map(|lines| {
            let lines = lines.iter().filter_map(Value::as_str);
            lines.collect::<Vec<_>>()
        });
        if golden.as_ref() != Some(&text) {
            eprintln!(
                "{name}:\n{}",
                serde_json::to_string_pretty(&text).expect("json")
            );
            wrong.push(name.to_owned());
        }
        // The order of slices, and of the endpoints in them, does not count (PROX-03).
        let mut turned: Vec<Value> = slices.clone();
        turned.reverse();
        for slice in &mut turned {
            if let Some(endpoints) = slice["endpoints"].as_array_mut() {
                endpoints.reverse();
            }
        }
        let turned = written(&plan_of(&case["service"], &turned));
        assert_eq!(turned.lines().collect::<Vec<_>>(), text, "{name}");
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn golden_table() {
    // PROX-22 PROX-23
    for (family, golden) in [
        (
            AddressFamily::V4,
            include_str!("../../../tests/golden/services/table.ip.nft"),
        ),
        (
            AddressFamily::V6,
            include_str!("../../../tests/golden/services/table.ip6.nft"),
        ),
    ] {
        let table = base_table(family, &network());
        assert_eq!(table, golden, "{}", family.word());
        let stamp = table_stamp(family, &network());
        assert!(table.ends_with(&format!(" stamp {{ {stamp} }}\n")));
        let other = ProxyNetwork::default();
        assert_ne!(table_stamp(family, &other), stamp);
        let (word, own) = (family.word(), "picolet-services");
        let gone = format!("add table {word} {own}\ndelete table {word} {own}\n");
        assert_eq!(remove_table(family), gone);
    }
}

/// A Service with ports 80 (node port 30080) and 53 (UDP), and an external address.
pub(super) fn web(uid: &str, ip: &str, external: &[&str]) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": uid, "resourceVersion": "1"},
        "spec": {
            "type": "NodePort", "clusterIP": ip, "externalIPs": external,
            "ports": [
                {"port": 80, "nodePort": 30080},
                {"name": "dns", "port": 53, "protocol": "UDP"},
            ],
        },
    })
}

pub(super) fn slice(name: &str, ips: &[&str]) -> Value {
    let endpoints: Vec<Value> = ips
        .iter()
        .map(|ip| json!({"addresses": [ip], "nodeName": "n1"}))
        .collect();
    json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "", "port": 8080}, {"name": "dns", "port": 8053, "protocol": "UDP"}],
    })
}

fn change(plan: &ServicePlan, live: &LiveTable, living: &[u64]) -> (String, Vec<String>) {
    let mut out = String::new();
    let before = TableBefore::Read {
        live,
        is_new: false,
        is_living: &|uid| living.contains(&uid),
    };
    let result = write_service(plan, before, &mut out);
    let conflicts = result.conflicts.iter().map(|key| format!("{key}"));
    (out, conflicts.collect())
}

pub(super) fn live_of(plans: &[&ServicePlan]) -> LiveTable {
    let mut live = LiveTable::default();
    for plan in plans {
        update_live(
            &mut live,
            plan,
            &super::transaction::ServiceWrite::default(),
        );
    }
    live
}

#[test]
fn changes_of_elements() {
    // PROX-25
    let before = plan_of(
        &web("a", "10.43.0.1", &["203.0.113.1"]),
        &[slice("s", &["10.42.0.11"])],
    );
    let live = live_of(&[&before]);
    // Endpoints alone: no element of a map is written.
    let more = plan_of(
        &web("a", "10.43.0.1", &["203.0.113.1"]),
        &[slice("s", &["10.42.0.11", "10.42.0.12"])],
    );
    assert_eq!(more.frontends_digest(), before.frontends_digest());
    assert_ne!(more.whole_digest(), before.whole_digest());
    let mut text = String::new();
    let same = TableBefore::SameFrontends { was_missing: false };
    let result = write_service(&more, same, &mut text);
    assert_eq!(result, super::transaction::ServiceWrite::default());
    let elements: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("element"))
        .collect();
    assert_eq!(
        elements,
        [
            "add element ip picolet-services hairpins { 10.42.0.11 . 10.42.0.11, 10.42.0.12 . 10.42.0.12 }"
        ]
    );
    assert!(text.len() < 4096, "{}", text.len());
    // An address goes, and one comes.
    let moved = plan_of(
        &web("a", "10.43.0.1", &["203.0.113.2"]),
        &[slice("s", &["10.42.0.11"])],
    );
    let (text, conflicts) = change(&moved, &live, &[]);
    assert_eq!(conflicts, Vec::<String>::new());
    let maps: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("service-ips"))
        .collect();
    let external = |port: &str| ChainName {
        kind: ChainKind::External,
        ..chain(&moved, port)
    };
    assert_eq!(maps, [
        "delete element ip picolet-services service-ips { 203.0.113.1 . tcp . 80, 203.0.113.1 . udp . 53 }".to_owned(),
        format!(
            "add element ip picolet-services service-ips {{ 203.0.113.2 . tcp . 80 : goto {}, 203.0.113.2 . udp . 53 : goto {} }}",
            external("tcp"), external("udp")
        ),
    ]);
    assert!(text.contains("delete element ip picolet-services no-endpoints-reject { 10.43.0.1 . tcp . 80, 10.43.0.1 . udp . 53, 203.0.113.1 . tcp . 80"));
    // The Service goes.
    let gone = ServicePlan {
        uid: before.uid,
        ..ServicePlan::default()
    };
    let (text, _) = change(&gone, &live, &[]);
    let mut sets: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("delete element ip picolet-services "))
        .collect();
    sets.retain(|set| !set.starts_with("no-endpoints"));
    assert_eq!(
        sets,
        [
            "cluster-ips { 10.43.0.1 }",
            "service-ips { 10.43.0.1 . tcp . 80, 10.43.0.1 . udp . 53, 203.0.113.1 . tcp . 80, 203.0.113.1 . udp . 53 }",
            "service-nodeports { tcp . 30080 }",
        ]
    );
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("flush chain"))
            .count(),
        4
    );
    let stale: Vec<_> = live.chains.into_iter().collect();
    let text = delete_chains(&stale);
    assert_eq!((text.lines().count(), stale.len()), (4, 4));
    assert!(
        text.lines()
            .all(|line| line.starts_with("delete chain ip picolet-services "))
    );
}

fn chain(plan: &ServicePlan, protocol: &str) -> ChainName {
    let mut chains = plan.chains.iter().map(|chain| chain.name);
    chains
        .find(|name| name.protocol.word() == protocol)
        .expect("a chain")
}

#[test]
fn addresses_of_others() {
    // PROX-13
    let owner = plan_of(&web("a", "10.43.0.1", &["203.0.113.1"]), &[]);
    let live = live_of(&[&owner]);
    let thief = json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "b"},
        "spec": {"clusterIP": "10.43.0.2", "externalIPs": ["10.43.0.1", "203.0.113.1"], "ports": [{"port": 80}]},
    });
    let thief = plan_of(&thief, &[]);
    let (text, conflicts) = change(&thief, &live, &[owner.uid]);
    assert_eq!(
        conflicts,
        ["10.43.0.1 . tcp . 80", "203.0.113.1 . tcp . 80"]
    );
    assert!(!text.contains("203.0.113.1"), "{text}");
    // Its owner is gone.
    let (text, conflicts) = change(&thief, &live, &[]);
    assert_eq!(conflicts, Vec::<String>::new());
    assert!(text.contains("delete element ip picolet-services service-ips { 10.43.0.1 . tcp . 80, 203.0.113.1 . tcp . 80 }"), "{text}");
    // An address in the cluster is the apiserver's to give.
    let live = live_of(&[&plan_of(&web("c", "10.43.0.9", &["10.43.0.1"]), &[])]);
    let living: Vec<u64> = live.owners();
    let (text, conflicts) = change(&owner, &live, &living);
    assert_eq!(
        conflicts,
        [
            "203.0.113.1 . tcp . 80",
            "203.0.113.1 . udp . 53",
            "tcp . 30080"
        ][2..]
            .to_vec(),
        "{text}"
    );
}

#[test]
fn tables_that_nft_prints() {
    // PROX-25
    let plan = plan_of(
        &web("a", "10.43.0.1", &["203.0.113.1"]),
        &[slice("s", &["10.42.0.11"])],
    );
    let mut live = LiveTable::default();
    for map in TableMap::ALL {
        let own = plan.elements.iter().filter(|((of, _), _)| *of == map);
        let own: Vec<String> = own
            .map(|((_, key), chain)| {
                format!("{key} : goto {chain}")
                    .replace("tcp . ", "6 . ")
                    .replace("udp . ", "17 . ")
            })
            .collect();
        let elements = match own.is_empty() {
            true => String::new(),
            false => format!("\t\telements = {{ {} }}\n", own.join(",\n\t\t\t     ")),
        };
        let printed = format!(
            "table ip picolet-services {{\n\tmap m {{\n\t\ttype t : verdict\n{elements}\t}}\n}}\n"
        );
        live.read_map(AddressFamily::V4, map, &printed);
    }
    let chains: Vec<String> = plan
        .chains
        .iter()
        .map(|chain| format!("\tchain {} {{\n\t}}\n", chain.name))
        .collect();
    let printed = format!(
        "table ip nat {{\n\tchain service-00-tcp-1 {{\n\t}}\n}}\ntable ip picolet-services {{\n{}\tchain services {{\n\t}}\n}}\n",
        chains.concat()
    );
    live.read_chains(AddressFamily::V4, &printed);
    assert_eq!(live, live_of(&[&plan]));
    assert_eq!(live.owners(), [plan.uid]);
    assert!(!has_kube_proxy(&printed));
    assert!(has_kube_proxy(
        "table ip nat {\n\tchain KUBE-SERVICES {\n\t}\n}\n"
    ));
    assert!(has_kube_proxy("table ip kube-proxy {\n}\n"));
    live.read_hairpins("elements = { 10.42.0.11 . 10.42.0.11,\n 10.42.0.12 . 10.42.0.12 }");
    assert_eq!(live.hairpins.len(), 2);
    let gone: Vec<_> = live.hairpins.iter().copied().take(1).collect();
    assert_eq!(
        remove_hairpins(&gone),
        "add element ip picolet-services hairpins { 10.42.0.11 . 10.42.0.11 }\ndelete element ip picolet-services hairpins { 10.42.0.11 . 10.42.0.11 }\n"
    );
    for ip in ["10.42.0.11", "fd42::11"] {
        let name = ChainName {
            kind: ChainKind::Endpoint(ip.parse().expect("an address"), 8080),
            ..chain(&plan, "tcp")
        };
        assert_eq!(ChainName::parse(&format!("{name}")), Some(name));
    }
    for odd in [
        "",
        "service",
        "service-x-tcp-1",
        "service-1-tcp-99999",
        "endpoint-1-tcp-1-x-1",
        "stamp",
        "nat-output",
    ] {
        assert_eq!(ChainName::parse(odd), None, "{odd}");
    }
}

#[test]
fn parts() {
    // PROX-26
    let mut parts = TransactionParts::default();
    let service = "x".repeat(PART_BYTES / 3);
    let sent: Vec<Option<usize>> = (0..4)
        .map(|_| parts.push(&service).map(|text| text.len()))
        .collect();
    assert_eq!(sent, [None, None, None, Some(PART_BYTES / 3 * 3)]);
    let large = "y".repeat(3 * PART_BYTES);
    assert_eq!(parts.push(&large), Some(service));
    assert_eq!(parts.finish(), Some(large));
    assert_eq!(parts.finish(), None);
    // A Service of 5,000 endpoints.
    let slices: Vec<Value> = (0..50_u32)
        .map(|n| {
            let ips: Vec<String> = (0..100)
                .map(|m| format!("10.42.{}.{}", n + 1, m + 1))
                .collect();
            let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
            slice(&format!("s{n}"), &ips)
        })
        .collect();
    let text = written(&plan_of(&web("a", "10.43.0.1", &[]), &slices));
    assert!(
        text.contains("numgen random mod 5000 map { 0 : 10.42.1.1 . 8080, "),
        "{}",
        text.len()
    );
}

#[test]
fn the_index() {
    // PROX-02 PROX-04 PROX-21 PROX-27
    let listing = |services: &[(&str, &str)], slices: &[(&str, &str)]| {
        let mut listing = ServiceListing::default();
        for (name, version) in services {
            let (namespace, name) = name.split_once('/').expect("a name");
            listing.add_service(namespace, name, name, version);
        }
        for (service, version) in slices {
            let (namespace, name) = service.split_once('/').expect("a name");
            listing.add_slice(namespace, name, ("slice", "uid", version));
        }
        listing
    };
    let mut index = ServiceIndex::default();
    index.ring("shop", "early");
    assert_eq!(index.take_due(), None, "nothing before a whole list");
    let all = [
        ("shop/web", "1"),
        ("kube-system/kube-dns", "1"),
        ("shop/api", "1"),
        ("default/kubernetes", "1"),
    ];
    index.take_listing(listing(&all, &[("shop/web", "1"), ("shop/none", "1")]));
    let taken = |index: &mut ServiceIndex| {
        let mut names = Vec::new();
        while let Some((_, name)) = index.take_due() {
            names.push(name);
        }
        names.join(" ")
    };
    assert_eq!(taken(&mut index), "kubernetes kube-dns api web");
    let write = |index: &mut ServiceIndex, namespace: &str, name: &str, slices| {
        let service = WrittenService {
            uid: super::object::digest_text(name),
            version: super::object::digest_text("1"),
            slices,
            frontends: 1,
            written: 2,
            ..WrittenService::default()
        };
        index.set_written(namespace, name, service);
    };
    let slices = super::object::slice_digest("slice", "uid", "1");
    for name in all {
        let (namespace, name) = name.0.split_once('/').expect("a name");
        write(
            &mut index,
            namespace,
            name,
            if name == "web" { slices } else { 0 },
        );
    }
    index.take_listing(listing(&all, &[("shop/web", "1")]));
    assert_eq!(
        (index.count_due(), index.count_written()),
        (0, 4),
        "no change"
    );
    index.take_listing(listing(&all, &[("shop/web", "2")]));
    assert!(index.is_due("shop", "web") && !index.is_due("shop", "api"));
    assert_eq!(taken(&mut index), "web", "a slice changed");
    index.take_listing(listing(&all[..3], &[("shop/web", "2")]));
    assert_eq!(
        index.take_gone(),
        [super::object::digest_text("kubernetes")]
    );
    index.ring("shop", "api");
    index.ring("shop", "new");
    index.ring("bad/name", "x");
    assert_eq!(taken(&mut index), "api new");
    index.remove_service("shop", "new");
    let idle = WrittenService {
        uid: super::object::digest_text("web"),
        ..WrittenService::default()
    };
    index.set_idle("shop", "web", idle);
    assert_eq!(index.take_gone(), [super::object::digest_text("web")]);
    index.ring("shop", "web");
    assert_eq!(
        (taken(&mut index).as_str(), index.count_written()),
        ("web", 2)
    );
    index.set_idle("shop", "web", idle);
    assert_eq!(index.take_gone().len(), 0);
    let living =
        |index: &ServiceIndex, name| index.living().contains(super::object::digest_text(name));
    assert!(
        living(&index, "api") && !living(&index, "web"),
        "nothing to serve"
    );
    index.mark_all();
    assert_eq!(index.count_due(), 3);
    let api = index.written_before("shop", "api");
    assert_eq!(
        (api.frontends, api.written),
        (0, 0),
        "elements are written again, too"
    );
}

#[test]
fn flows() {
    // PROX-20
    let object = web("a", "10.43.0.1", &["203.0.113.1"]);
    let service = service_of(&object);
    let ports = udp_ports(&service, &gather(&service, &[slice("s", &["10.42.0.12"])]));
    let lost = ElementKey {
        family: AddressFamily::V4,
        ip: "203.0.113.1".parse().ok(),
        protocol: ProxyProtocol::Udp,
        port: 53,
    };
    let mut rest = ports.clone();
    rest.iter_mut().for_each(|port| port.leave_out(&lost));
    let flow = |dialled: &str, answers: &str| UdpFlow {
        dialled: dialled.parse().expect("an address"),
        answers: answers.parse().expect("an address"),
    };
    let own = node().addresses;
    for (dialled, answers, is_stale) in [
        ("10.43.0.1:53", "10.42.0.11:8053", true),
        ("203.0.113.1:53", "10.42.0.11:8053", true),
        ("10.43.0.1:53", "10.42.0.12:8053", false),
        ("10.43.0.1:54", "10.42.0.11:8053", false),
        ("192.0.2.1:53", "192.0.2.1:53", false),
    ] {
        assert_eq!(
            is_stale_flow(&flow(dialled, answers), &ports, &own),
            is_stale,
            "{dialled} {answers}"
        );
        let is_lost = dialled.starts_with("203");
        assert_eq!(
            is_stale_flow(&flow(dialled, answers), &rest, &own),
            is_stale && !is_lost,
            "of another Service: {dialled}"
        );
    }
    assert_eq!(
        udp_ports(&service, &gather(&service, &[])),
        [],
        "without an endpoint flows stay"
    );
    let mut with_node_port = object;
    with_node_port["spec"]["ports"][1]["nodePort"] = json!(30053);
    let service = service_of(&with_node_port);
    let ports = udp_ports(&service, &gather(&service, &[slice("s", &["10.42.0.12"])]));
    assert!(is_stale_flow(
        &flow("192.0.2.1:30053", "10.42.0.11:8053"),
        &ports,
        &own
    ));
    // Another machine has that port, too.
    for dialled in ["198.51.100.1:30053", "10.43.0.7:30053"] {
        let flow = flow(dialled, "10.42.0.11:8053");
        assert!(!is_stale_flow(&flow, &ports, &own), "{dialled}");
    }
    assert!(!is_stale_flow(
        &flow("[fd00::1]:30053", "[fd00::2]:8053"),
        &ports,
        &["fd00::1".parse().expect("an address")]
    ));
}

#[test]
fn skipped_and_odd_objects() {
    // PROX-02 PROX-03
    let base = web("a", "10.43.0.1", &[]);
    for (pointer, value) in [
        ("/spec/clusterIP", json!("None")),
        ("/spec/clusterIP", json!("")),
        ("/spec/type", json!("ExternalName")),
        (
            "/metadata/labels",
            json!({"service.kubernetes.io/service-proxy-name": ""}),
        ),
        (
            "/metadata/labels",
            json!({"service.kubernetes.io/headless": ""}),
        ),
    ] {
        let mut object = base.clone();
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
        object.pointer_mut(parent).expect("there")[field] = value.clone();
        assert_eq!(
            ProxyService::from_json(&object, &mut ObjectFaults::new()),
            None,
            "{pointer} {value}"
        );
    }
    let mut faults = ObjectFaults::new();
    let mut object = base.clone();
    object["spec"]["externalIPs"] = json!(["127.0.0.1", "x", null, "224.0.0.1", "203.0.113.1"]);
    object["spec"]["loadBalancerSourceRanges"] = json!(["10.0.0.0/33"]);
    object["spec"]["ports"] =
        json!([{"port": 0}, {"port": 80, "protocol": "ICMP"}, {"port": 80}, {"port": 80}]);
    let service = ProxyService::from_json(&object, &mut faults).expect("a service");
    assert_eq!(
        (
            service.external_ips.len(),
            service.ports.len(),
            faults.len()
        ),
        (1, 1, 8),
        "{faults:?}"
    );
}

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end.max(1)
    }
}

/// Changes a place of a document to something else.
fn mutate(value: &mut Value, random: &mut Random) {
    let odd = [
        json!(null),
        json!(-1),
        json!(70000),
        json!("None"),
        json!("\u{0}{ } ;\n"),
        json!([]),
        json!({}),
        json!("fd00::1"),
        json!(true),
        json!("255.255.255.255/32"),
    ];
    if let Value::Object(fields) = value
        && !fields.is_empty()
        && random.below(6) > 0
    {
        let at = random.below(fields.len());
        if let Some(field) = fields.values_mut().nth(at) {
            mutate(field, random);
        }
    } else if let Value::Array(items) = value
        && !items.is_empty()
        && random.below(6) > 0
    {
        let at = random.below(items.len());
        mutate(&mut items[at], random);
    } else {
        *value = odd[random.below(odd.len())].clone();
    }
}

#[test]
fn any_document_is_planned() {
    // PROX-29
    let cases: Value = serde_json::from_str(CASES).expect("json");
    let cases = cases["cases"].as_array().expect("cases");
    let mut random = Random(29);
    let plain = |c: char| c.is_ascii_alphanumeric() || " -_.,:;/@{}[]!=()\"".contains(c);
    for _ in 0..3000 {
        let mut case = cases[random.below(cases.len())].clone();
        for _ in 0..=random.below(3) {
            mutate(&mut case["service"], &mut random);
            mutate(&mut case["slices"], &mut random);
        }
        let mut faults = ObjectFaults::new();
        let Some(service) = ProxyService::from_json(&case["service"], &mut faults) else {
            continue;
        };
        let slices = case["slices"].as_array().cloned().unwrap_or_default();
        let endpoints = gather(&service, &slices);
        let plan = plan_service(&service, &endpoints, &network(), &node(), &mut faults);
        let text = written(&plan);
        assert!(text.lines().all(|line| line.chars().all(plain)), "{text}");
        let _ = udp_ports(&service, &endpoints);
    }
}

#[test]
fn ranges() {
    for (range, ip, is_in) in [
        ("10.0.0.0/8", "10.1.2.3", true),
        ("10.0.0.0/8", "11.0.0.0", false),
        ("10.0.0.0/32", "10.0.0.1", false),
        ("0.0.0.0/0", "8.8.8.8", true),
        ("::/0", "8.8.8.8", false),
        ("fd00::/64", "fd00::1", true),
        ("fd00::/128", "fd00::1", false),
        ("::/0", "fd00::1", true),
    ] {
        let range = parse_range(range).expect("a range");
        assert_eq!(
            range_contains(range, ip.parse().expect("an address")),
            is_in,
            "{range:?} {ip}"
        );
    }
    for odd in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "x/8"] {
        assert_eq!(parse_range(odd), None, "{odd}");
    }
}

#[test]
fn health() {
    // PROX-18
    use super::health::{
        ServicesFigures, ServicesHealth, answer_health_port, answer_healthz, check_services,
        is_node_eligible, write_services_metrics,
    };
    use crate::{
        api::{Node, WallTime},
        check::FindingLevel,
    };
    let body = |n, healthy| {
        format!(
            "{{\"service\":{{\"namespace\":\"a\",\"name\":\"b\"}},\"localEndpoints\":{n},\"serviceProxyHealthy\":{healthy}}}"
        )
    };
    for (endpoints, is_healthy, status) in [(1, true, 200), (0, true, 503), (1, false, 503)] {
        let answer = answer_health_port(("a", "b"), endpoints, is_healthy);
        assert_eq!(answer, (status, body(endpoints, is_healthy)));
    }
    // PROX-19
    let (updated, now) = (WallTime(0), WallTime(60_000_000_000));
    let time = |text: &str| format!("\"1970-01-01T00:{text}:00Z\"");
    for (path, is_healthy, is_eligible, status, updated_at, more) in [
        ("/healthz", true, true, 200, "01", ",\"nodeEligible\":true"),
        (
            "/healthz",
            true,
            false,
            503,
            "00",
            ",\"nodeEligible\":false",
        ),
        ("/healthz", false, true, 503, "00", ",\"nodeEligible\":true"),
        ("/livez", true, false, 200, "01", ""),
        ("/livez", false, true, 503, "00", ""),
    ] {
        let times = (updated, now);
        let (updated_at, now_at) = (time(updated_at), time("01"));
        let body = format!("{{\"lastUpdated\":{updated_at},\"currentTime\":{now_at}{more}}}");
        let answer = answer_healthz(path.as_bytes(), is_healthy, is_eligible, times);
        assert_eq!(answer, (status, body), "{path}");
    }
    assert_eq!(answer_healthz(b"/", true, true, (updated, now)).0, 404);
    assert!(is_node_eligible(None));
    for (more, is_eligible) in [
        (json!({}), true),
        (
            json!({"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}}),
            true,
        ),
        (
            json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}}),
            false,
        ),
        (
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            false,
        ),
    ] {
        let node: Node = serde_json::from_value(more).expect("a Node");
        assert_eq!(is_node_eligible(Some(&node)), is_eligible, "{node:?}");
    }
    let state = |trouble: Option<&str>, is_written, is_polling| ServicesHealth {
        is_written,
        services: 3,
        trouble: trouble.map(str::to_owned),
        fix: None,
        is_polling,
        refused: 0,
    };
    for (state, level) in [
        (None, FindingLevel::Ok),
        (Some(state(None, true, false)), FindingLevel::Ok),
        (Some(state(None, false, false)), FindingLevel::Warning),
        (Some(state(None, true, true)), FindingLevel::Warning),
        (Some(state(Some("x"), true, false)), FindingLevel::Warning),
    ] {
        assert_eq!(
            check_services(state.as_ref(), true).level,
            level,
            "{state:?}"
        );
    }
    // Advice that was followed is none.
    for (watch, fix) in [
        (true, "see the log of the agent"),
        (false, "set picolet.services.watch: true"),
    ] {
        let polling = state(None, true, true);
        assert_eq!(check_services(Some(&polling), watch).fix, fix);
    }
    let one_refused = ServicesHealth {
        refused: 1,
        ..state(None, true, false)
    };
    let level = check_services(Some(&one_refused), true).level;
    assert_eq!(level, FindingLevel::Warning);
    let mut page = MetricsText::default();
    write_services_metrics(
        &ServicesFigures {
            services: 3,
            ..ServicesFigures::default()
        },
        &mut page,
    );
    assert!(page.0.contains("\npicolet_services 3\n"), "{}", page.0);
}
