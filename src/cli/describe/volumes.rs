//! Volumes in `picolet describe pod`.

use core::fmt::Write as _;

use serde_json::Value;

use super::{list_at, quantity_text, text_at, text_or};

/// Writes the volumes of a pod.
pub(super) fn write_volumes(out: &mut String, volumes: &[Value]) {
    if volumes.is_empty() {
        out.push_str("Volumes:\t<none>\n");
        return;
    }
    out.push_str("Volumes:\n");
    for volume in volumes {
        let _ = writeln!(out, "  {}:", text_at(volume, "/name"));
        let mut line = |title: &str, value: &str| {
            let _ = writeln!(out, "    {title}:\t{value}");
        };
        let is_true = |value: &Value| if *value == true { "true" } else { "false" };
        let optional = |of: &Value| is_true(&of["optional"]);
        if let of @ Value::Object(_) = &volume["emptyDir"] {
            line(
                "Type",
                "EmptyDir (a temporary directory that shares a pod's lifetime)",
            );
            line("Medium", text_at(of, "/medium"));
            line(
                "SizeLimit",
                text_or(&quantity_text(&of["sizeLimit"]), "<unset>"),
            );
        } else if let of @ Value::Object(_) = &volume["hostPath"] {
            line("Type", "HostPath (bare host directory volume)");
            line("Path", text_at(of, "/path"));
            line("HostPathType", text_at(of, "/type"));
        } else if let of @ Value::Object(_) = &volume["configMap"] {
            line("Type", "ConfigMap (a volume populated by a ConfigMap)");
            line("Name", text_at(of, "/name"));
            line("Optional", optional(of));
        } else if let of @ Value::Object(_) = &volume["secret"] {
            line("Type", "Secret (a volume populated by a Secret)");
            line("SecretName", text_at(of, "/secretName"));
            line("Optional", optional(of));
        } else if let of @ Value::Object(_) = &volume["image"] {
            line("Type", "Image (a container image or OCI artifact)");
            line("Reference", text_at(of, "/reference"));
            line("PullPolicy", text_at(of, "/pullPolicy"));
        } else if let of @ Value::Object(_) = &volume["nfs"] {
            line(
                "Type",
                "NFS (an NFS mount that lasts the lifetime of a pod)",
            );
            line("Server", text_at(of, "/server"));
            line("Path", text_at(of, "/path"));
            line("ReadOnly", is_true(&of["readOnly"]));
        } else if let of @ Value::Object(_) = &volume["persistentVolumeClaim"] {
            line(
                "Type",
                "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
            );
            line("ClaimName", text_at(of, "/claimName"));
            line("ReadOnly", is_true(&of["readOnly"]));
        } else if volume["downwardAPI"].is_object() {
            line(
                "Type",
                "DownwardAPI (a volume populated by information about the pod)",
            );
            out.push_str("    Items:\n");
            write_downward_items(out, list_at(volume, "/downwardAPI/items"));
        } else if volume["projected"].is_object() {
            line(
                "Type",
                "Projected (a volume that contains injected data from multiple sources)",
            );
            for source in list_at(volume, "/projected/sources") {
                if let of @ Value::Object(_) = &source["secret"] {
                    let _ = writeln!(out, "    SecretName:\t{}", text_at(of, "/name"));
                    let _ = writeln!(out, "    Optional:\t{}", optional(of));
                } else if let of @ Value::Object(_) = &source["configMap"] {
                    let _ = writeln!(out, "    ConfigMapName:\t{}", text_at(of, "/name"));
                    let _ = writeln!(out, "    Optional:\t{}", optional(of));
                } else if source["downwardAPI"].is_object() {
                    out.push_str("    DownwardAPI:\ttrue\n");
                } else if source["serviceAccountToken"].is_object() {
                    let seconds = &source["serviceAccountToken"]["expirationSeconds"];
                    let _ = writeln!(out, "    TokenExpirationSeconds:\t{seconds}");
                } else if let of @ Value::Object(_) = &source["podCertificate"] {
                    let _ = writeln!(out, "    PodCertificate:\t{}", text_at(of, "/signerName"));
                } else if let of @ Value::Object(_) = &source["clusterTrustBundle"] {
                    let name = text_or(text_at(of, "/name"), text_at(of, "/signerName"));
                    let _ = writeln!(out, "    ClusterTrustBundle:\t{name}");
                    let _ = writeln!(out, "    Optional:\t{}", optional(of));
                }
            }
        } else {
            line("Type", "<unknown>");
        }
    }
}

fn write_downward_items(out: &mut String, items: &[Value]) {
    for item in items {
        let field = text_at(item, "/fieldRef/fieldPath");
        let of = text_or(field, text_at(item, "/resourceFieldRef/resource"));
        let _ = writeln!(out, "      {of} -> {}", text_at(item, "/path"));
    }
}
