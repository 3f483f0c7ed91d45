//! The configuration of a node of a cluster, as `picolet join` writes it: the cluster's settings for kubelets, the
//! paths of the cluster's files, and the typed flags. The operator's earlier file goes on counting as a drop-in.

use core::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::api::yaml::yaml_text;
use crate::config::{
    ConfigError, HostIdentity, LoadedConfig,
    decode::{self, DecodeError},
    drop_in, file, flags,
    join::OWN_DROP_IN,
    keys, load_config, read_bounded,
};

/// First line of the configuration file.
const HEAD: &str = "# Written by picolet join. Put settings of your own into a drop-in: config.d/NAME.conf beside this file.\n";
/// Fields that kubeadm sets for a kubelet with other manifests and another runtime.
const OF_OTHERS: [&str; 4] = [
    "cgroupDriver",
    "containerRuntimeEndpoint",
    "imageServiceEndpoint",
    "staticPodPath",
];

/// Finds the first drop-in below `dir` that is read before [`OWN_DROP_IN`]. Such a drop-in would lose its rank to the
/// operator's file.
///
/// - Errors: the directory cannot be read.
pub(super) fn find_earlier_drop_in(dir: &Path) -> Result<Option<PathBuf>, ConfigError> {
    if !dir.is_dir() {
        return Ok(None);
    }
    let own = dir.join(OWN_DROP_IN);
    let first = drop_in::list_drop_ins(dir)?.into_iter().next();
    Ok(first.filter(|path| *path < own))
}

/// Finds the file that decides about a key, and its value: a drop-in, or the file at `path`. `None`: no file has the
/// key.
///
/// - `key`: dotted.
/// - Errors: the directory or a file cannot be read.
pub(super) fn find_deciding_file(
    key: &str,
    path: &Path,
    drop_ins: Option<&Path>,
) -> Result<Option<(PathBuf, Value)>, ConfigError> {
    let mut all = vec![path.to_path_buf()];
    if let Some(dir) = drop_ins.filter(|dir| dir.is_dir()) {
        all.extend(drop_in::list_drop_ins(dir)?);
    }
    // Bounded: by the limit of drop-ins.
    for path in all.into_iter().rev() {
        let bytes = read_bounded(&path).map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?;
        let read = decode::parse_patch(&bytes).map_err(|source| ConfigError::Decode {
            path: path.display().to_string(),
            source,
        })?;
        if let Some(value) = patch_value(&read.value, key) {
            return Ok(Some((path, value.clone())));
        }
    }
    Ok(None)
}

/// Value of the dotted `key` in a merge patch; null: the patch deletes the key.
fn patch_value<'a>(mut value: &'a Value, key: &str) -> Option<&'a Value> {
    for part in key.split('.') {
        value = value.get(part)?;
        if value.is_null() {
            break;
        }
    }
    Some(value)
}

/// Paths of a cluster's files on this machine.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterFiles {
    /// The node's own kubeconfig.
    pub(super) kubeconfig: PathBuf,
    /// Kubeconfig by which the node asks for its certificate.
    pub(super) bootstrap: Option<PathBuf>,
    /// CAs of the clients that call the node.
    pub(super) client_ca: PathBuf,
}

impl ClusterFiles {
    /// Replaces the usual paths by those that were typed.
    pub(super) fn apply_typed_paths(&mut self, overlay: &Map<String, Value>) {
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        let own = overlay.get("picolet").unwrap_or(&Value::Null);
        let ca = overlay.get("authentication").unwrap_or(&Value::Null);
        for (place, said) in [
            (&mut self.kubeconfig, &own["kubeconfig"]),
            (&mut self.client_ca, &ca["x509"]["clientCAFile"]),
        ] {
            *place = path(said).unwrap_or_else(|| core::mem::take(place));
        }
        if self.bootstrap.is_some() {
            self.bootstrap = path(&own["bootstrapKubeconfig"]).or_else(|| self.bootstrap.take());
        }
    }
}

/// Reads a kubeadm cluster's settings for kubelets, without those that are not for this one. `text`: the document of
/// its ConfigMap.
pub(super) fn read_kubeadm_settings(text: &str) -> Result<Value, DecodeError> {
    let mut document = decode::parse_document(text.as_bytes())?.value;
    if let Some(fields) = document.as_object_mut() {
        // Bounded: four names.
        for field in OF_OTHERS {
            fields.remove(field);
        }
        // kubeadm sets it for machines with systemd-resolved.
        let resolver = fields.get("resolvConf").and_then(Value::as_str);
        if resolver.is_some_and(|path| !Path::new(path).exists()) {
            fields.remove("resolvConf");
        }
    }
    Ok(document)
}

/// Resolver file that programs use, and the one that systemd-resolved keeps of the servers behind it.
const RESOLVERS: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// Finds the resolver file for pods on a machine whose own one names a server of this machine only, which no pod
/// reaches (K3SN-13). `None`: the usual one is right, or there is no other.
fn find_resolver() -> Option<&'static str> {
    let [usual, behind] = RESOLVERS.map(|path| read_bounded(Path::new(path)).ok());
    let is_usable = |text: &Option<Vec<u8>>| text.as_deref().is_some_and(|it| !names_loopback(it));
    (!is_usable(&usual) && is_usable(&behind)).then_some(RESOLVERS[1])
}

/// Returns true if a resolver file names a server on loopback, or none at all.
fn names_loopback(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        words.next()?.parse::<IpAddr>().ok()
    });
    let mut servers = servers.peekable();
    servers.peek().is_none() || servers.any(|ip| ip.is_loopback())
}

/// Makes the settings of a kubelet beside a k3s server.
pub(super) fn k3s_settings(dns: &[&str], domain: &str) -> Value {
    let mut settings = json!({
        "apiVersion": file::API_VERSION,
        "kind": file::KIND,
        "clusterDNS": dns,
        "clusterDomain": domain,
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}},
        "authorization": {"mode": "Webhook"},
        "rotateCertificates": true,
        "serverTLSBootstrap": true,
    });
    if let Some(path) = find_resolver() {
        settings["resolvConf"] = path.into();
    }
    settings
}

/// Makes the text of the file. `document`: settings of the cluster; `own`: keys of picolet; `typed`: flags.
pub(super) fn config_file_text(
    mut document: Value,
    files: &ClusterFiles,
    own: Map<String, Value>,
    typed: Map<String, Value>,
) -> String {
    let mut own = Value::Object(own);
    own["kubeconfig"] = json!(files.kubeconfig);
    if let Some(path) = &files.bootstrap {
        own["bootstrapKubeconfig"] = json!(path);
    }
    let of_files = json!({
        "authentication": {"x509": {"clientCAFile": files.client_ca}},
        "picolet": own,
    });
    if let Value::Object(of_files) = of_files {
        flags::overlay_flags(&mut document, of_files);
    }
    flags::overlay_flags(&mut document, typed);
    HEAD.to_owned() + &yaml_text(&document)
}

/// Mode of the file, from that of the earlier file and the new content: the operator's secrets are for root alone.
pub(super) fn config_file_mode(before: u32, parts: &[&Map<String, Value>]) -> u32 {
    let is_secret =
        |part: &&Map<String, Value>| keys::secret_keys().any(|name| part.contains_key(name));
    match parts.iter().any(is_secret) {
        true => before & 0o700,
        false => before & 0o777,
    }
}

/// Loads the file at `path` with these drop-ins as an agent would, before the file counts.
pub(super) fn preview(
    path: &Path,
    drop_ins: Option<&Path>,
    host: &HostIdentity,
) -> Result<LoadedConfig, ConfigError> {
    let flags = flags::CommandLineFlags {
        config: Some(path.into()),
        config_dir: drop_ins.filter(|dir| dir.is_dir()).map(Into::into),
        ..flags::CommandLineFlags::default()
    };
    load_config(flags, host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn what_the_file_says() {
        // KADM-20
        let cluster = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\n\
            clusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\nstaticPodPath: /etc/kubernetes/manifests\n\
            resolvConf: /nowhere/resolv.conf\ncontainerRuntimeEndpoint: unix:///x\nmaxPods: 50\n\
            authentication: {x509: {clientCAFile: /theirs}, webhook: {enabled: true, cacheTTL: 0s}}\n";
        let document = read_kubeadm_settings(cluster).expect("a document");
        let mut files = ClusterFiles {
            kubeconfig: "/k".into(),
            bootstrap: Some("/b".into()),
            client_ca: "/ca".into(),
        };
        let typed = json!({"maxPods": 7, "picolet": {"hostnameOverride": "n", "bootstrapKubeconfig": "/b2"}});
        let Value::Object(typed) = typed else {
            unreachable!()
        };
        files.apply_typed_paths(&typed);
        let text = config_file_text(document, &files, Map::new(), typed);
        let read = decode::parse_document(text.as_bytes()).expect("YAML").value;
        assert_eq!(
            read,
            json!({
                "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "maxPods": 7,
                "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local",
                "authentication": {"x509": {"clientCAFile": "/ca"}, "webhook": {"enabled": true, "cacheTTL": "0s"}},
                "picolet": {"kubeconfig": "/k", "bootstrapKubeconfig": "/b2", "hostnameOverride": "n"},
            })
        );
    }

    #[test]
    fn resolvers_of_this_machine_only() {
        // K3SN-13
        for (text, is_own) in [
            ("nameserver 127.0.0.53\noptions edns0\n", true),
            ("nameserver 192.0.2.1\nnameserver ::1\n", true),
            ("search lan\n", true),
            ("", true),
            ("# nameserver 127.0.0.1\nnameserver 192.0.2.1\n", false),
            ("nameserver\t2001:db8::1\n", false),
        ] {
            assert_eq!(names_loopback(text.as_bytes()), is_own, "{text}");
        }
    }

    #[test]
    fn who_has_the_last_word() {
        // KADM-20
        let scratch = TestDir::new("document");
        let (file, dir) = (scratch.join("config.yaml"), scratch.join("config.d"));
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let write = |path: &Path, text: &str| {
            std::fs::write(path, format!("{head}{text}\n")).expect("file");
        };
        let by = |key: &str| {
            let decided = find_deciding_file(key, &file, Some(&dir)).expect("read");
            decided.map(|(path, _)| path.strip_prefix(&scratch.0).expect("below").to_path_buf())
        };
        let before = || find_earlier_drop_in(&dir).expect("listed");
        write(&file, "picolet: {hostnameOverride: a, certDir: /c}");
        assert_eq!(by("picolet.hostnameOverride"), Some("config.yaml".into()));
        assert_eq!(by("picolet.rootDir"), None);
        assert_eq!(before(), None);
        std::fs::create_dir_all(dir.join("20-more")).expect("directory");
        write(&dir.join(OWN_DROP_IN), "picolet: {hostnameOverride: b}");
        write(&dir.join("10-first.conf"), "picolet: null");
        write(
            &dir.join("20-more/x.conf"),
            "picolet: {hostnameOverride: null}",
        );
        write(&dir.join("30-last.conf"), "maxPods: 9");
        write(&dir.join("40-none.txt"), "picolet: {certDir: /d}");
        write(&dir.join("00-a.txt"), "");
        for (key, file) in [
            ("picolet.hostnameOverride", "config.d/20-more/x.conf"),
            ("picolet.certDir", "config.d/10-first.conf"),
            ("maxPods", "config.d/30-last.conf"),
        ] {
            assert_eq!(by(key), Some(file.into()), "{key}");
        }
        assert_eq!(before(), None);
        std::fs::create_dir(dir.join("00-a")).expect("directory");
        assert_eq!(before(), None);
        write(&dir.join("00-a/x.conf"), "");
        assert_eq!(before(), Some(dir.join("00-a/x.conf")));
        // Broken ones are named.
        std::fs::write(dir.join("90-x.conf"), "[").expect("file");
        let why = find_deciding_file("maxPods", &file, Some(&dir)).expect_err("broken");
        assert!(why.to_string().contains("90-x.conf"), "{why}");
    }

    #[test]
    fn who_may_read_it() {
        // KADM-20
        let of = |value: Value| match value {
            Value::Object(map) => map,
            other => unreachable!("{other}"),
        };
        let plain = of(json!({"staticPodURL": "https://h/m", "maxPods": 7}));
        let secret = of(json!({"staticPodURLHeader": {"Authorization": ["Bearer x"]}}));
        for (before, parts, want) in [
            (0o100_644, vec![&plain], 0o644),
            (0o600, vec![&plain], 0o600),
            (0o644, vec![&plain, &secret], 0o600),
            (0o644, vec![&secret, &plain], 0o600),
            (0o644, vec![], 0o644),
        ] {
            assert_eq!(config_file_mode(before, &parts), want, "{parts:?}");
        }
    }
}
