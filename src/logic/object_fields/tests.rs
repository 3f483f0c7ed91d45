use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use serde_json::json;

use super::*;
use crate::api::{Pod, strict};

const SCHEMA: &str = include_str!("../../../tests/golden/fields/kubernetes-1.37.txt");

/// A line of the schema.
struct Row<'a> {
    owner: &'a str,
    name: &'a str,
    is_list: bool,
    holds: &'a str,
    fate: &'a str,
    reason: &'a str,
}

fn rows(schema: &str) -> Vec<Row<'_>> {
    let lines = schema.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let field = words.next().expect("a field");
            let (owner, field) = field.split_once('.').expect("a type");
            let (field, holds) = field.split_once(':').unwrap_or((field, ""));
            Row {
                owner,
                name: field.trim_end_matches("[]"),
                is_list: field.ends_with("[]"),
                holds,
                fate: words.next().expect("what becomes of it"),
                reason: words.next().unwrap_or(""),
            }
        })
        .collect()
}

/// Compares the schema with the table, and both with what a reader of pods takes.
fn differences(schema: &str) -> Vec<String> {
    let rows = rows(schema);
    let mut wrong = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &rows {
        *counts.entry(row.fate).or_default() += 1;
        let place = format!("{}.{}", row.owner, row.name);
        let known = fields_of(row.owner).find(|known| known.name == row.name);
        let mark = match row.fate {
            "used" => ' ',
            "told" => '!',
            "refused" => '=',
            "harmless" => '~',
            other => panic!("{place}: {other}"),
        };
        match known {
            Some(known) if known.mark == mark && known.holds == row.holds => {}
            Some(_) => wrong.push(format!("{place}: the table says something else")),
            None => wrong.push(format!("{place}: not in the table")),
        }
        if matches!(row.fate, "refused" | "harmless") && row.reason.is_empty() {
            wrong.push(format!("{place}: without a reason"));
        }
        if row.fate == "used" && row.owner != "Pod" && !is_read(&rows, row) {
            wrong.push(format!("{place}: nothing reads it"));
        }
        if matches!(row.fate, "told") && is_read(&rows, row) {
            wrong.push(format!("{place}: it is read"));
        }
    }
    let of_table = TYPES.lines().flat_map(|line| {
        let owner = line.split(' ').next().unwrap_or("");
        fields_of(owner).map(move |known| (owner, known.name))
    });
    for (owner, name) in of_table.filter(|(owner, _)| !matches!(*owner, "ConfigMap" | "Secret")) {
        if !rows
            .iter()
            .any(|row| (row.owner, row.name) == (owner, name))
        {
            wrong.push(format!("{owner}.{name}: no field of Kubernetes"));
        }
    }
    let count = |fate| counts.get(fate).copied().unwrap_or(0);
    let sum = format!(
        "# {} fields: {} used, {} refused, {} told, {} harmless",
        rows.len(),
        count("used"),
        count("refused"),
        count("told"),
        count("harmless")
    );
    if !schema.lines().any(|line| line == sum) {
        wrong.push(format!("the counts are: {sum}"));
    }
    wrong
}

/// Wraps the value of a field into the objects above it, up to a pod.
fn wrapped(rows: &[Row<'_>], row: &Row<'_>, value: Value) -> Value {
    let value = match row.is_list {
        true => json!([value]),
        false => value,
    };
    let object = json!({ row.name: value });
    match rows.iter().find(|above| above.holds == row.owner) {
        Some(above) => wrapped(rows, above, object),
        None => object,
    }
}

/// Returns true if the reader of pods takes a field: no field can be a list of lists.
fn is_read(rows: &[Row<'_>], row: &Row<'_>) -> bool {
    strict::typed_from_value::<Pod>(&wrapped(rows, row, json!([[]]))).is_err()
}

#[test]
fn the_table_has_what_kubernetes_has() {
    // SRC-33
    assert_eq!(differences(SCHEMA), [""; 0]);
    for planted in [
        "PodSpec.brandNew used",
        "PodSpec.brandNew refused no reason",
        "Probe.brandNew:BrandNew told",
        "Brand.new harmless no reason",
        "SleepAction.seconds told",
    ] {
        let schema = format!("{SCHEMA}{planted}\n");
        assert!(!differences(&schema).is_empty(), "{planted}");
    }
    let without = SCHEMA.replace("SleepAction.seconds used\n", "");
    assert!(!differences(&without).is_empty());
}

#[test]
fn fields_that_are_not_read_and_with_which_nothing_runs() {
    // SRC-33 SRC-20
    let rows = rows(SCHEMA);
    let is_refused = |owner: &str| {
        let mut above = rows.iter().filter(|above| above.holds == owner);
        above.all(|above| above.fate == "refused")
    };
    for row in rows.iter().filter(|row| row.fate == "refused") {
        if !is_read(&rows, row) && !is_refused(row.owner) {
            let pod = wrapped(&rows, row, json!({}));
            assert!(
                !crate::validation::find_unmodelled_fields(&pod).is_empty(),
                "{pod}"
            );
        }
    }
}

#[test]
fn fields_that_change_what_runs() {
    // SRC-33
    let rows = rows(SCHEMA);
    for row in rows.iter().filter(|row| row.fate == "told") {
        let pod = wrapped(&rows, row, json!(1));
        let found = unsupported_fields(&pod);
        assert_eq!(found.len(), 1, "{pod}");
        assert!(found[0].ends_with(row.name), "{found:?}");
    }
    let pod = json!({"spec": {
        "volumes": [{"name": "a"}, {"name": "v", "emptyDir": {"mode": 0}}, {"emptyDir": {"mode": 511}}],
        "initContainers": [{
            "livenessProbe": {"httpGet": {"protocol": "HTTP2"}}, "startupProbe": {"httpGet": {"protocol": "HTTP1"}},
        }],
        "containers": [{
            "livenessProbe": {"grpc": {"mode": "Plaintext"}},
            "volumeMounts": [{"bindMountOptions": ["noexec"]}, {"bindMountOptions": []}],
            "readinessProbe": {"grpc": {"mode": null}}, "resizePolicy": [{}],
        }],
        "topologySpreadConstraints": [{}], "preemptionPolicy": "Never",
    }});
    let mut found = unsupported_fields(&pod);
    found.sort();
    assert_eq!(
        found,
        [
            "spec.containers[0].volumeMounts[0].bindMountOptions",
            "spec.initContainers[0].livenessProbe.httpGet.protocol",
            "spec.volumes[1].emptyDir.mode",
        ]
    );
    let volumes: Vec<Value> = (0..100).map(|_| json!({"emptyDir": {"mode": 1}})).collect();
    let many = json!({"spec": {"volumes": volumes}});
    assert_eq!(unsupported_fields(&many).len(), MAX_FINDINGS);
}

#[test]
fn fields_that_the_author_of_a_pod_is_told_of() {
    // SRC-33
    let mounts = json!([{"bindMountOptions": ["noexec"]}]);
    let debugs = ["a", "b"].map(|name| json!({"name": name, "volumeMounts": mounts}));
    let volumes = json!([{"emptyDir": {"mode": 1}}]);
    let both = json!({"spec": {"volumes": volumes, "ephemeralContainers": debugs}});
    let one = json!({"spec": {"volumes": volumes}});
    let known: Vec<ContainerStatus> = ["a", "b"]
        .map(|name| ContainerStatus {
            name: name.into(),
            ..ContainerStatus::default()
        })
        .into();
    let place =
        |n: usize| format!("spec.ephemeralContainers[{n}].volumeMounts[0].bindMountOptions");
    let [first, second] = [0, 1].map(place);
    for (pod, is_new, known, told) in [
        (
            &both,
            true,
            &known[..0],
            Some(format!(
                "fields {first}, {second}, spec.volumes[0].emptyDir.mode are not supported by this node"
            )),
        ),
        (
            &one,
            true,
            &known[..0],
            Some("field spec.volumes[0].emptyDir.mode is not supported by this node".into()),
        ),
        (&one, false, &known[..0], None),
        (
            &both,
            false,
            &known[..0],
            Some(format!(
                "fields {first}, {second} are not supported by this node"
            )),
        ),
        (
            &both,
            false,
            &known[..1],
            Some(format!("field {second} is not supported by this node")),
        ),
        (&both, false, &known[..], None),
        (&json!({"spec": {}}), true, &known[..0], None),
    ] {
        assert_eq!(describe_unsupported_fields(pod, known, is_new), told);
    }
}

#[test]
fn keys_that_no_kubernetes_has() {
    // SRC-34
    let pod = |metadata: Value, spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let container = |container: Value| pod(json!({}), json!({"containers": [container]}));
    for (object, says) in [
        (
            container(json!({"imgae": "x"})),
            "unknown field spec.containers[0].imgae is ignored, did you mean image?",
        ),
        (
            container(json!({"comand": ["x"]})),
            "unknown field spec.containers[0].comand is ignored, did you mean command?",
        ),
        (container(json!({"volumemounts": null})), ""),
        (
            container(json!({"volumemounts": []})),
            "unknown field spec.containers[0].volumemounts is ignored, did you mean volumeMounts?",
        ),
        (
            container(json!({"livenessProbe": {"httpGet": {"prot": 80}}})),
            "unknown field spec.containers[0].livenessProbe.httpGet.prot is ignored, did you mean port?",
        ),
        (
            container(json!({"hostNetwork": true})),
            "unknown field spec.containers[0].hostNetwork is ignored, it is a field of spec",
        ),
        (
            pod(json!({"restartPolicy": "Never"}), json!({})),
            "unknown field metadata.restartPolicy is ignored, it is a field of spec",
        ),
        (
            pod(json!({}), json!({"labels": {"a": "b"}})),
            "unknown field spec.labels is ignored, it is a field of metadata",
        ),
        (
            pod(json!({}), json!({"image": "x"})),
            "unknown field spec.image is ignored, it is a field of a container",
        ),
        (
            container(json!({"limits": {"memory": "1Mi"}})),
            "unknown field spec.containers[0].limits is ignored, it is a field of resources",
        ),
        (
            container(json!({"livenessProbe": {"httpGet": {"initialDelaySeconds": 3}}})),
            "unknown field spec.containers[0].livenessProbe.httpGet.initialDelaySeconds is ignored, it is a field of livenessProbe",
        ),
        (
            pod(json!({}), json!({"qwertyuiop": 1})),
            "unknown field spec.qwertyuiop is ignored",
        ),
        (
            json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "date": {"k": "v"}}),
            "unknown field date is ignored, did you mean data?",
        ),
        (
            json!({"kind": "Secret", "stringdata": {"k": "v"}, "data": {"anything": ""}}),
            "unknown field stringdata is ignored, did you mean stringData?",
        ),
        (json!({"kind": "Job", "x": 1}), ""),
        (
            pod(
                json!({"annotations": {"x": "y"}}),
                json!({"affinity": {"podAffinity": {"any": 1}}}),
            ),
            "",
        ),
    ] {
        let found = misspelt_keys(&object);
        assert_eq!(found.join("; "), says, "{object}");
    }
    let long = "k".repeat(100_000);
    let found = misspelt_keys(&json!({"kind": "Pod", long: 1}));
    assert!(found[0].len() < 200, "{}", found[0].len());
}

#[test]
fn fields_that_are_explained() {
    // CMD-09
    assert_eq!(
        explain_field("pod.spec.volumes.emptyDir").as_deref(),
        Some(
            "emptyDir <EmptyDirVolumeSource>\n  medium\n  sizeLimit\n  mode  (not supported: refused in a static pod)\n"
        )
    );
    let pod = explain_field("pods").expect("a kind");
    assert!(pod.starts_with("Pod <Pod>\n  apiVersion\n") && pod.contains("\n  spec <PodSpec>\n"));
    assert!(
        pod.ends_with("\n  status  (no effect on this node)\n"),
        "{pod}"
    );
    assert_eq!(
        explain_field("po.spec.nodeName").as_deref(),
        Some("nodeName\n")
    );
    for absent in [
        "",
        "deployment",
        "pod.",
        "pod.spec.imgae",
        "pod.spec.nodeName.x",
        "Pod",
    ] {
        assert_eq!(explain_field(absent), None, "{absent}");
    }
}
