//! Settings of a kubelet that this agent fulfils in its own way. The document is changed to what the agent does
//! (`/configz` shows it), and a warning says what was asked.

use serde_json::{Map, Value, json};

use super::FieldWarning;

/// Directory in which `kubeadm reset` looks for the identity of the node, wherever the root directory is (KADM-24).
const KUBELET_CERT_DIR: &str = "/var/lib/kubelet/pki";

/// Changes `document` to what this agent does, and adds a warning for each difference.
///
/// `as_kubelet`: the program was called as `kubelet`. Then other defaults hold than for `picolet run`, unless the
/// document has values: certificates are kept where a kubelet keeps them, and the agent runs containers itself.
pub(super) fn adapt_document(
    document: &mut Value,
    as_kubelet: bool,
    warnings: &mut Vec<FieldWarning>,
) {
    if document.is_null() {
        *document = json!({});
    }
    if as_kubelet && document["picolet"].is_null() {
        document["picolet"] = json!({});
    }
    // The reader of the fields reports anything else.
    if as_kubelet && let Some(own) = document["picolet"].as_object_mut() {
        let mut unless_said = |name: &str, value: Value| {
            own.entry(name)
                .and_modify(|said| {
                    if said.is_null() {
                        *said = value.clone();
                    }
                })
                .or_insert(value);
        };
        unless_said("certDir", KUBELET_CERT_DIR.into());
        unless_said("useRuntimeEndpoint", false.into());
    }
    if document["picolet"]["useRuntimeEndpoint"] == false
        && let Some(fields) = document.as_object_mut()
    {
        drop_endpoints(fields, warnings);
    }
    let endpoint = document["containerRuntimeEndpoint"].as_str();
    if document["cgroupDriver"] == "systemd" && endpoint.is_none_or(str::is_empty) {
        document["cgroupDriver"] = "cgroupfs".into();
        // SVC-30: kubeadm writes it for all nodes of a cluster.
        warnings.push(FieldWarning {
            field: "cgroupDriver".into(),
            message: "cgroupDriver: systemd is not used: pods have a cgroup tree of their own, as with cgroupfs"
                .into(),
        });
    }
}

/// Removes the runtime's endpoints. kubeadm writes one for every node, that of containerd where it finds none (KADM-04,
/// KADM-15). A runtime may be there at one boot and not at the next, but the pods' runtime must not change.
fn drop_endpoints(fields: &mut Map<String, Value>, warnings: &mut Vec<FieldWarning>) {
    let field = "containerRuntimeEndpoint";
    let named = ["imageServiceEndpoint", field].map(|field| fields.remove(field));
    if let [_, Some(Value::String(endpoint))] = &named
        && !endpoint.is_empty()
    {
        let text = format!(
            "{endpoint} is not used: picolet runs the containers itself. If that runtime is to run them, set \
             picolet.useRuntimeEndpoint: true, or --use-runtime-endpoint"
        );
        warnings.push(FieldWarning::new(field, &text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapted(mut document: Value, as_kubelet: bool) -> (Value, Vec<String>) {
        let mut warnings = Vec::new();
        adapt_document(&mut document, as_kubelet, &mut warnings);
        let said = warnings.into_iter().map(|warning| warning.message);
        (document, said.collect::<Vec<_>>())
    }

    #[test]
    fn the_document_tells_what_is_so() {
        // SVC-30 KADM-04 KADM-24
        let kubeadm = || {
            json!({
                "cgroupDriver": "systemd", "maxPods": 7, "imageServiceEndpoint": "",
                "containerRuntimeEndpoint": "unix:///var/run/containerd/containerd.sock",
            })
        };
        let (document, warnings) = adapted(kubeadm(), true);
        assert_eq!(
            document,
            json!({
                "cgroupDriver": "cgroupfs", "maxPods": 7,
                "picolet": { "certDir": "/var/lib/kubelet/pki", "useRuntimeEndpoint": false },
            })
        );
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("containerd.sock is not used"));
        assert!(warnings[1].starts_with("cgroupDriver: systemd is not used"));

        // Called by its own name, the agent uses the configured runtime.
        let (document, warnings) = adapted(kubeadm(), false);
        assert_eq!(warnings, [""; 0]);
        assert_eq!(document["cgroupDriver"], "systemd");
        let endpoint = &document["containerRuntimeEndpoint"];
        assert_eq!(endpoint, "unix:///var/run/containerd/containerd.sock");

        let mut said = kubeadm();
        said["picolet"] = json!({ "certDir": "/c", "useRuntimeEndpoint": true });
        let (document, warnings) = adapted(said, true);
        assert_eq!(document["picolet"]["certDir"], "/c");
        assert!(document["containerRuntimeEndpoint"].is_string());
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn what_says_nothing_of_it_costs_no_warning() {
        for said in [Value::Null, json!({}), json!({ "picolet": null })] {
            let (document, warnings) = adapted(said, true);
            assert_eq!(document["picolet"]["certDir"], KUBELET_CERT_DIR);
            assert_eq!(warnings, [""; 0]);
        }
    }
}
