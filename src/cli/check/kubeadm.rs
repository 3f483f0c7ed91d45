//! Gathers the facts that the checks of kubeadm need.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use flate2::read::MultiGzDecoder;

use super::gather::{MAX_FILE_BYTES, find_program, read_text, run_program};
use crate::{
    logic::check::{FILES, KERNEL_OPTIONS, KubeadmFacts, OWN_SOCKET, PROGRAMS, SOCKETS},
    net::ProxyVariables,
};

/// Configuration of the running kernel, if the kernel was built to show it.
const KERNEL_CONFIG: &str = "/proc/config.gz";

pub(super) fn gather_kubeadm(
    release: &str,
    node_name: &str,
    proxies: &ProxyVariables,
) -> KubeadmFacts {
    let there = |paths: &[&str]| -> Vec<String> {
        let found = paths.iter().filter(|path| Path::new(path).exists());
        found.map(|&path| path.to_owned()).collect()
    };
    let missing = PROGRAMS.iter().filter(|name| find_program(name).is_none());
    let (version, version_error) = match run_program("kubelet", &["--version"]) {
        Some(Ok(said)) => (said, None),
        Some(Err(e)) => (String::new(), Some(e.to_string())),
        None => (String::new(), Some("there is no such program".into())),
    };
    let enabled = run_program("systemctl", &["is-enabled", "kubelet"]);
    KubeadmFacts {
        files: there(&FILES),
        missing_programs: missing.map(|&name| name.to_owned()).collect(),
        sockets: there(&SOCKETS),
        own_socket: Path::new(OWN_SOCKET).exists(),
        version,
        version_error,
        kernel: check_kernel_config(release),
        enabled: enabled.map(|said| said.is_ok()),
        resolves: matches!(run_program("getent", &["ahosts", node_name]), Some(Ok(_))),
        proxy: !proxies.https.is_empty(),
    }
}

/// Finds the kernel's configuration: its path, and the options that it lacks.
pub(super) fn check_kernel_config(release: &str) -> Option<(String, Vec<String>)> {
    let packed = File::open(KERNEL_CONFIG).and_then(unpack_gzip);
    let (path, config) = match packed {
        Ok(config) => (KERNEL_CONFIG.to_owned(), config),
        Err(_) => {
            let path = format!("/boot/config-{release}");
            let config = read_text(&path);
            (path, config)
        }
    };
    (!config.is_empty()).then(|| (path, missing_options(&config)))
}

fn unpack_gzip(file: impl io::Read) -> io::Result<String> {
    let mut config = Vec::new();
    let mut reader = MultiGzDecoder::new(file).take(MAX_FILE_BYTES);
    reader.read_to_end(&mut config)?;
    Ok(String::from_utf8_lossy(&config).into_owned())
}

/// Lists the required options that are neither built in nor modules.
fn missing_options(config: &str) -> Vec<String> {
    let has = |option: &&str| {
        config.lines().any(|line| {
            let value = line.strip_prefix(option).and_then(|l| l.strip_prefix('='));
            matches!(value, Some("y" | "m"))
        })
    };
    let missing = KERNEL_OPTIONS.iter().filter(|any| !any.iter().any(has));
    missing.map(|any| any[0].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    #[test]
    fn configurations_of_kernels() {
        // KADM-12
        const WANTED: [&str; 17] = [
            "NAMESPACES",
            "NET_NS",
            "PID_NS",
            "IPC_NS",
            "UTS_NS",
            "CGROUPS",
            "CGROUP_BPF",
            "CGROUP_DEVICE",
            "CGROUP_FREEZER",
            "CGROUP_PIDS",
            "FAIR_GROUP_SCHED",
            "CPUSETS",
            "MEMCG",
            "INET",
            "EXT4_FS",
            "NETFILTER_XT_TARGET_REDIRECT",
            "NETFILTER_XT_MATCH_COMMENT",
        ];
        let line = |name: &str| format!("CONFIG_{name}=y\n");
        let all: String = WANTED.iter().map(|name| line(name)).collect();
        assert_eq!(missing_options(&all), [""; 0]);
        assert_eq!(missing_options("").len(), WANTED.len(), "and no other");
        for name in WANTED {
            let without = all.replace(&line(name), "");
            assert_eq!(missing_options(&without), [format!("CONFIG_{name}")]);
        }
        let other = all.replace("CONFIG_EXT4_FS=y", "CONFIG_EXT4_FS=m").replace(
            "CONFIG_NETFILTER_XT_TARGET_REDIRECT",
            "CONFIG_IP_NF_TARGET_REDIRECT",
        );
        assert_eq!(missing_options(&other), [""; 0]);
        let poor = all
            .replace(
                "CONFIG_MEMCG=y",
                "# CONFIG_MEMCG is not set\nCONFIG_MEMCG_V1=y",
            )
            .replace("CONFIG_CPUSETS=y", "CONFIG_CPUSETS=n");
        assert_eq!(missing_options(&poor), ["CONFIG_CPUSETS", "CONFIG_MEMCG"]);
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(all.as_bytes()).expect("packed");
        let packed = packed.finish().expect("packed");
        assert_eq!(unpack_gzip(&*packed).expect("whole"), all);
        assert!(unpack_gzip(&packed[..20]).is_err() && unpack_gzip(&b"text"[..]).is_err());
    }
}
