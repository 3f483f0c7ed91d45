//! Certificate requests: whether they are valid, and whose they are.
//!
//! Source: `pkg/apis/certificates`, `pkg/controller/certificates`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

use crate::error::Fields;
use crate::json::{at, list, text};

pub(crate) const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(crate) const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// What a request asks for.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Request {
    pub(crate) der: Vec<u8>,
    pub(crate) common_name: String,
    pub(crate) organisations: Vec<String>,
    /// Names and addresses, and all other alternative names.
    pub(crate) hosts: usize,
    pub(crate) emails: usize,
    pub(crate) uris: usize,
}

/// Reads `spec.request` and checks its signature.
pub(crate) fn parse(csr: &Value) -> Result<Request, String> {
    let pem = STANDARD
        .decode(text(csr, "/spec/request"))
        .map_err(|e| e.to_string())?;
    let pem = String::from_utf8(pem).map_err(|_| "PEM block type must be CERTIFICATE REQUEST")?;
    let der = pem_body(&pem, "CERTIFICATE REQUEST")
        .ok_or("PEM block type must be CERTIFICATE REQUEST")?;
    let (_, request) =
        X509CertificationRequest::from_der(&der).map_err(|e| format!("asn1: {e}"))?;
    request
        .verify_signature()
        .map_err(|_| "the signature of the request is wrong")?;
    let subject = &request.certification_request_info.subject;
    let text =
        |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().unwrap_or("").to_owned();
    let mut out = Request {
        common_name: subject
            .iter_common_name()
            .next()
            .map(text)
            .unwrap_or_default(),
        organisations: subject.iter_organization().map(text).collect(),
        ..Request::default()
    };
    for extension in request.requested_extensions().into_iter().flatten() {
        if let ParsedExtension::SubjectAlternativeName(san) = extension {
            for name in &san.general_names {
                match name {
                    GeneralName::DNSName(_) | GeneralName::IPAddress(_) => out.hosts += 1,
                    GeneralName::RFC822Name(_) => out.emails += 1,
                    _ => out.uris += 1,
                }
            }
        }
    }
    drop(request);
    out.der = der;
    Ok(out)
}

/// The bytes of the first block of that label.
pub(crate) fn pem_body(pem: &str, label: &str) -> Option<Vec<u8>> {
    let (_, rest) = pem.split_once(&format!("-----BEGIN {label}-----"))?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    let body: String = body.chars().filter(|c| !c.is_whitespace()).collect();
    STANDARD.decode(body).ok()
}

/// What the signers of nodes' certificates demand, beyond a valid request.
pub(crate) fn signer_accepts(csr: &Value, request: &Request) -> Result<(), &'static str> {
    let signer = text(csr, "/spec/signerName");
    if request.organisations != ["system:nodes"] {
        return Err("subject organization is not system:nodes");
    }
    if !request.common_name.starts_with("system:node:") {
        return Err("subject common name does not begin with system:node:");
    }
    let auth = match signer {
        CLIENT_SIGNER if request.hosts + request.emails + request.uris > 0 => {
            return Err("subjectAltNames are not allowed");
        }
        CLIENT_SIGNER => "client auth",
        SERVING_SIGNER if request.hosts == 0 => return Err("DNS or IP subjectAltName is required"),
        SERVING_SIGNER if request.emails > 0 => {
            return Err("Email subjectAltNames are not allowed");
        }
        SERVING_SIGNER if request.uris > 0 => return Err("URI subjectAltNames are not allowed"),
        SERVING_SIGNER => "server auth",
        _ => return Ok(()),
    };
    let mut usages: Vec<&str> = list(csr, "/spec/usages")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    usages.sort_unstable();
    let mut wanted = vec!["digital signature", auth];
    wanted.sort_unstable();
    let mut with_rsa = vec!["digital signature", "key encipherment", auth];
    with_rsa.sort_unstable();
    if usages != wanted && usages != with_rsa {
        return Err("usages did not match");
    }
    Ok(())
}

/// Whether the controller would approve it for whoever asked: a bootstrap token, or the node itself.
pub(crate) fn auto_approves(csr: &Value, request: &Request) -> bool {
    let groups = list(csr, "/spec/groups");
    let member = |group: &str| groups.iter().any(|g| g.as_str() == Some(group));
    let own = member("system:nodes") && text(csr, "/spec/username") == request.common_name;
    text(csr, "/spec/signerName") == CLIENT_SIGNER
        && signer_accepts(csr, request).is_ok()
        && (own || member("system:bootstrappers"))
}

/// Whether a request has a true condition of that type.
pub(crate) fn has_condition(csr: &Value, ty: &str) -> bool {
    list(csr, "/status/conditions")
        .iter()
        .any(|c| text(c, "/type") == ty)
}

/// Checks a `PodCertificateRequest`.
pub(crate) fn validate_of_pod(new: &Value, errors: &mut Fields) {
    for name in [
        "signerName",
        "podName",
        "podUID",
        "serviceAccountName",
        "serviceAccountUID",
        "nodeName",
        "nodeUID",
    ] {
        if text(new, &format!("/spec/{name}")).is_empty() {
            errors.required(&format!("spec.{name}"), "");
        }
    }
    let seconds = at(new, "/spec/maxExpirationSeconds");
    if seconds
        .as_i64()
        .is_none_or(|s| !(3600..=7_862_400).contains(&s))
    {
        errors.invalid(
            "spec.maxExpirationSeconds",
            seconds,
            "must be in the range [3600, 7862400]",
        );
    }
    let stub = at(new, "/spec/stubPKCS10Request");
    let der = STANDARD
        .decode(stub.as_str().unwrap_or(""))
        .unwrap_or_default();
    let is_signed = X509CertificationRequest::from_der(&der)
        .is_ok_and(|(rest, request)| rest.is_empty() && request.verify_signature().is_ok());
    if !is_signed {
        errors.invalid(
            "spec.stubPKCS10Request",
            stub,
            "is not a signed PKCS#10 request",
        );
    }
}

pub(crate) fn validate(csr: &Value, errors: &mut Fields) {
    if let Err(why) = parse(csr) {
        errors.invalid("spec.request", at(csr, "/spec/request"), &why);
    }
    let usages = list(csr, "/spec/usages");
    if usages.is_empty() {
        errors.required("spec.usages", "");
    }
    for (n, usage) in usages.iter().enumerate() {
        let field = format!("spec.usages[{n}]");
        if !USAGES.contains(&usage.as_str().unwrap_or("")) {
            errors.unsupported(&field, usage, USAGES);
        }
        if usages[..n].contains(usage) {
            errors.duplicate(&field, usage);
        }
    }
    let signer = text(csr, "/spec/signerName");
    match signer.split_once('/') {
        _ if signer.is_empty() => errors.required("spec.signerName", ""),
        Some(("kubernetes.io", "legacy-unknown")) => errors.invalid(
            "spec.signerName",
            &json!(signer),
            "the legacy signerName is not allowed via this API version",
        ),
        Some((domain, path)) if domain.contains('.') && !path.is_empty() => {}
        _ => errors.invalid(
            "spec.signerName",
            &json!(signer),
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        ),
    }
    let seconds = at(csr, "/spec/expirationSeconds");
    if seconds.as_i64().is_some_and(|s| s < 600) {
        errors.invalid(
            "spec.expirationSeconds",
            seconds,
            "may not specify a duration less than 600 seconds (10 minutes)",
        );
    }
    let conditions = list(csr, "/status/conditions");
    for (n, condition) in conditions.iter().enumerate() {
        let path = format!("status.conditions[{n}]");
        let status = text(condition, "/status");
        if text(condition, "/type").is_empty() {
            errors.required(&format!("{path}.type"), "");
        }
        match status {
            "" => errors.required(&format!("{path}.status"), ""),
            "True" => {}
            _ => errors.unsupported(&format!("{path}.status"), &condition["status"], &["True"]),
        }
    }
    if has_condition(csr, "Approved") && has_condition(csr, "Denied") {
        errors.invalid(
            "status.conditions",
            &json!("Denied"),
            "Approved and Denied conditions are mutually exclusive",
        );
    }
}

pub(crate) fn validate_update(sub: &str, new: &Value, old: &Value, errors: &mut Fields) {
    for ty in ["Approved", "Denied", "Failed"] {
        if has_condition(old, ty) && !has_condition(new, ty) {
            errors.forbidden(
                "status.conditions",
                &format!("updates may not remove a condition of type {ty:?}"),
            );
        }
        if sub != "approval" && ty != "Failed" && has_condition(new, ty) && !has_condition(old, ty)
        {
            errors.forbidden(
                "status.conditions",
                &format!("updates may not add a condition of type {ty:?}"),
            );
        }
    }
    let before = text(old, "/status/certificate");
    if text(new, "/status/certificate") != before && (sub != "status" || !before.is_empty()) {
        errors.forbidden(
            "status.certificate",
            "updates may not set certificate content",
        );
    }
}
