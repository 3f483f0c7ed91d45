//! Entry points of the fuzz targets into what an apiserver sends and operators configure. See [`crate::fuzz`].

use std::io::Read;
use std::path::Path;

use super::body::UnpackedBody;
use super::exec;
use super::kubeconfig::{Kubeconfig, MAX_SERVERS};
use super::stream::{self, DocumentReadError, MAX_ITEM_BYTES};
use super::watch::{self, WatchEnd};
use super::x509;
use crate::api::{MonoTime, WallTime};

/// Items taken from one list.
const MOST: usize = 100;

/// Kubeconfigs, what exec plugins print, certificates.
pub(crate) fn kubeconfig(data: &[u8]) -> String {
    let path = Path::new("/etc/kubernetes/kubelet.conf");
    let found = match Kubeconfig::parse(path, data, &["10.0.0.2:6443".into()]) {
        Ok(config) => {
            assert!((1..=MAX_SERVERS).contains(&config.servers.len()));
            for file in config.tls_files() {
                assert!(file.is_absolute());
            }
            // What is written for it can be read again, and leads to the same place.
            let text = config
                .with_certificate(Path::new("/pki/current.pem"))
                .expect("text");
            let again = Kubeconfig::parse(path, text.as_bytes(), &[]).expect("a kubeconfig");
            assert_eq!(again.servers[0], config.servers[0], "{text}");
            assert_eq!(again.trust, config.trust, "{text}");
            format!("ok {}", config.user.exec.is_some())
        }
        Err(why) => why.to_string(),
    };
    let version = "client.authentication.k8s.io/v1";
    let answer =
        match exec::parse_plugin_output(data, version, MonoTime(5), WallTime::from_unix_seconds(5))
        {
            Ok(answer) => {
                assert!(answer.is_valid_at(MonoTime(5)), "for a moment at least");
                assert!(answer.token.is_some() || answer.pair.is_some());
                "ok".into()
            }
            Err(why) => why.to_string(),
        };
    let certificate = match x509::read_certificate(data) {
        Ok(found) => {
            let key = x509::public_key(data).expect("what was read has a key");
            assert!(key.len() < data.len() && key[0] == 0x30);
            format!(
                "{} {}",
                found.dns_names.len().min(2),
                found.ips.len().min(2)
            )
        }
        Err(why) => why.to_string(),
    };
    format!("{answer} {certificate} {found}")
}

/// Lists and objects, plain and packed. A list that was cut is none.
pub(crate) fn pod_list(data: &[u8]) -> String {
    let read = |bytes: &[u8]| -> String {
        let mut items = 0;
        let result = stream::read_list_items(Box::new(bytes), MOST, &mut |item| {
            items += 1;
            assert!(item["metadata"].get("managedFields").is_none());
            Ok(())
        });
        assert!(items <= MOST);
        match result {
            Ok((meta, count)) => {
                assert_eq!(count, items);
                assert!(!meta.resource_version.is_empty());
                let last = bytes.trim_ascii_end().len() - 1;
                let cut = stream::read_list_items(Box::new(&bytes[..last]), MOST, &mut |_| Ok(()));
                assert!(cut.is_err(), "a list that was cut");
                format!("list {} {}", count.min(2), meta.continues.is_empty())
            }
            Err(e) => outcome(e),
        }
    };
    let document = match stream::read_document(Box::new(data)) {
        Ok(value) => {
            assert!(value.is_object() && !value.to_string().is_empty());
            "object".into()
        }
        Err(e) => outcome(e),
    };
    let mut unpacked = Vec::new();
    let body = UnpackedBody::new(data, Some("gzip")).expect("gzip");
    let packed = match body.take(MAX_ITEM_BYTES).read_to_end(&mut unpacked) {
        Ok(_) => read(&unpacked),
        Err(e) => e.to_string(),
    };
    format!("{} {document} {packed}", read(data))
}

/// The doorbell's stream.
pub(crate) fn watch(data: &[u8]) -> String {
    let (mut rings, mut known) = (0_usize, 0_usize);
    let end = watch::read_events(Box::new(data), &mut |ring| {
        rings += 1;
        for field in [
            &ring.uid,
            &ring.resource_version,
            &ring.namespace,
            &ring.name,
        ] {
            assert!(field.len() <= 256);
        }
        known += usize::from(!ring.uid.is_empty());
    });
    assert!(rings <= data.iter().filter(|b| **b == b'\n').count() + 1);
    let end = match end {
        Ok(WatchEnd::Clean) => "clean".into(),
        Ok(WatchEnd::Error(error)) => {
            assert!(error.message.chars().count() <= super::error::MAX_MESSAGE_CHARS);
            "error".into()
        }
        Err(e) => outcome(e),
    };
    format!("{} {} {end}", rings.min(2), known.min(2))
}

fn outcome(error: DocumentReadError) -> String {
    match error {
        DocumentReadError::Cut(why) => format!("cut {why}"),
        DocumentReadError::Wrong(why) => why,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    /// A certificate in DER, to start from.
    pub(crate) fn certificate() -> Vec<u8> {
        use super::super::testing::{Authority, NOW};
        let pair = Authority::new().server(&["node", "10.0.0.1"], NOW);
        crate::net::tls::parse_certificates(pair.certificate.as_bytes())[0].to_vec()
    }

    /// Requests are our own; that they can be made from any names is not given.
    #[test]
    fn requests_for_odd_names() {
        use super::super::csr;

        for name in ["", "\u{0}", "\u{e9}\u{1f980}", &"x".repeat(70_000)] {
            let subject = csr::CertificateSubject {
                common_name: name.into(),
                dns_names: vec![name.into()],
                ..csr::CertificateSubject::default()
            };
            assert!(csr::make_key_and_request(&subject).is_ok());
        }
    }
}
