//! Programs of the machine that run as pods: fields that they cannot honour, variables that reach them. Row PRVD-08.

use alloc::string::String;

use crate::api::{
    Container, Pod,
    pod::{SeccompProfile, SecurityContext},
};

/// Last character of a list entry that matches all variables with its beginning.
const ANY_END: char = '*';

/// Reason why a variable does not reach the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableFault {
    /// The dynamic linker would load code from elsewhere because of the variable. No list allows that.
    #[error("it would load code from outside of picolet.process.directories")]
    LoadsCode,
    /// The operator has not listed the variable.
    #[error("it is not in picolet.process.variables")]
    NotListed,
}

/// Judges a variable of a pod by the operator's list. Many programs run code that a variable holds or names:
/// `BASH_ENV`, `PERL5OPT`, `NODE_OPTIONS`. So only the operator, who knows the programs, can say which are harmless.
///
/// Variables of Services need no entry: the cluster makes them for each pod. `set_by_pod`: the pod sets it, or may: then its form
/// says nothing.
pub fn judge_variable(
    name: &str,
    set_by_pod: bool,
    listed: &[String],
) -> Result<(), VariableFault> {
    if loads_code(name) {
        return Err(VariableFault::LoadsCode);
    }
    let is_meant = |entry: &String| match entry.strip_suffix(ANY_END) {
        Some(begin) => name.starts_with(begin),
        None => entry == name,
    };
    if (!set_by_pod && is_of_service(name)) || listed.iter().any(is_meant) {
        return Ok(());
    }
    Err(VariableFault::NotListed)
}

/// Source: ld.so(8).
fn loads_code(name: &str) -> bool {
    name.starts_with("LD_") || name == "GLIBC_TUNABLES"
}

/// The forms that [`super::service_env`] makes.
fn is_of_service(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    let is_of_port = |(_, port): (&str, &str)| port.starts_with(|c: char| c.is_ascii_digit());
    name.bytes().all(is_plain)
        && (name.ends_with("_SERVICE_HOST")
            || name.ends_with("_SERVICE_PORT")
            || name.contains("_SERVICE_PORT_")
            || name.ends_with("_PORT")
            || name.rsplit_once("_PORT_").is_some_and(is_of_port))
}

/// Returns the name of the first field of a container that the built-in handler `process` cannot honour (PRVD-08).
#[must_use]
pub fn refused_by_process(pod: &Pod, container: &Container) -> Option<&'static str> {
    let spec = &pod.spec;
    let empty = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&empty);
    let of_pod = spec.security_context.as_ref();
    let is_profile =
        |profile: Option<&SeccompProfile>| profile.is_some_and(|p| p.kind != "Unconfined");
    let checks = [
        (
            !spec.host_network && container.ports.iter().any(|port| port.host_port != 0),
            "hostPort",
        ),
        (!spec.host_network, "hostNetwork: false"),
        (!container.volume_mounts.is_empty(), "volumeMounts"),
        (!container.volume_devices.is_empty(), "volumeDevices"),
        (container.tty, "tty"),
        (own.privileged == Some(true), "privileged"),
        (
            own.capabilities.as_ref().is_some_and(|c| !c.add.is_empty()),
            "capabilities.add",
        ),
        (
            own.allow_privilege_escalation == Some(true),
            "allowPrivilegeEscalation",
        ),
        (
            own.read_only_root_filesystem == Some(true),
            "readOnlyRootFilesystem",
        ),
        (
            own.se_linux_options.is_some() || of_pod.is_some_and(|p| p.se_linux_options.is_some()),
            "seLinuxOptions",
        ),
        (
            is_profile(own.seccomp_profile.as_ref())
                || is_profile(of_pod.and_then(|p| p.seccomp_profile.as_ref())),
            "seccompProfile",
        ),
        (
            is_profile(own.app_armor_profile.as_ref())
                || is_profile(of_pod.and_then(|p| p.app_armor_profile.as_ref())),
            "appArmorProfile",
        ),
        (of_pod.is_some_and(|p| !p.sysctls.is_empty()), "sysctls"),
        (spec.dns_config.is_some(), "dnsConfig"),
        (!spec.host_aliases.is_empty(), "hostAliases"),
        (spec.host_users == Some(false), "hostUsers: false"),
        (
            spec.share_process_namespace == Some(true),
            "shareProcessNamespace",
        ),
    ];
    checks.into_iter().find_map(|(is, what)| is.then_some(what))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn variables_are_those_of_the_list() {
        // PRVD-08
        let listed = ["GREETING", "SENSOR_*", "LD_*"].map(String::from);
        for name in [
            "GREETING",
            "SENSOR_",
            "SENSOR_RATE",
            "KUBERNETES_SERVICE_HOST",
            "MY_DB_SERVICE_PORT",
            "MY_DB_SERVICE_PORT_SQL_IN",
            "MY_DB_PORT",
            "MY_DB_PORT_53_UDP",
            "MY_DB_PORT_53_UDP_ADDR",
        ] {
            assert_eq!(judge_variable(name, false, &listed), Ok(()), "{name}");
        }
        // Start scripts of programs for the JVM make options of it.
        let of_pod = judge_variable("JMX_PORT", true, &listed);
        assert_eq!(of_pod, Err(VariableFault::NotListed));
        assert_eq!(judge_variable("SENSOR_PORT", true, &listed), Ok(()));
        for name in [
            "GREETINGS",
            "greeting",
            "SENSOR",
            "PATH",
            "BASH_ENV",
            "PYTHONPATH",
            "BASH_FUNC_a%%_PORT",
            "node_PORT",
            "A_PORT_B",
            "",
        ] {
            let judged = judge_variable(name, false, &listed);
            assert_eq!(judged, Err(VariableFault::NotListed), "{name}");
        }
        for name in ["LD_PRELOAD", "LD_PRELOAD_SERVICE_HOST", "GLIBC_TUNABLES"] {
            for listed in [&listed[..], &["*".into()], &[]] {
                let judged = judge_variable(name, false, listed);
                assert_eq!(judged, Err(VariableFault::LoadsCode), "{name}");
            }
        }
        assert_eq!(judge_variable("PATH", true, &["*".into()]), Ok(()));
        assert!(judge_variable("GREETING", false, &[]).is_err());
    }

    fn pod(spec: Value) -> Pod {
        let meta = json!({"name": "p", "namespace": "n", "uid": "u"});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("pod")
    }

    #[test]
    fn what_processes_cannot_honour() {
        // PRVD-08
        let base = json!({
            "hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}],
        });
        let refused = |at: &str, value: Value| {
            let mut spec = base.clone();
            let (parent, field) = at.rsplit_once('/').expect("a pointer");
            spec.pointer_mut(parent).expect("there")[field] = value;
            let pod = pod(spec);
            refused_by_process(&pod, &pod.spec.containers[0])
        };
        assert_eq!(refused("/hostNetwork", json!(true)), None);
        let own = "/containers/0/securityContext";
        for (at, value, what) in [
            ("/hostNetwork", json!(false), "hostPort"),
            (
                "/containers/0/volumeMounts",
                json!([{"name": "v", "mountPath": "/x"}]),
                "volumeMounts",
            ),
            ("/containers/0/tty", json!(true), "tty"),
            (own, json!({"privileged": true}), "privileged"),
            (
                own,
                json!({"capabilities": {"add": ["NET_ADMIN"]}}),
                "capabilities.add",
            ),
            (
                own,
                json!({"allowPrivilegeEscalation": true}),
                "allowPrivilegeEscalation",
            ),
            (
                own,
                json!({"readOnlyRootFilesystem": true}),
                "readOnlyRootFilesystem",
            ),
            (
                own,
                json!({"seccompProfile": {"type": "RuntimeDefault"}}),
                "seccompProfile",
            ),
            (
                "/securityContext",
                json!({"sysctls": [{"name": "a", "value": "b"}]}),
                "sysctls",
            ),
            ("/dnsConfig", json!({"searches": ["a"]}), "dnsConfig"),
            (
                "/hostAliases",
                json!([{"ip": "10.0.0.1", "hostnames": ["a"]}]),
                "hostAliases",
            ),
            (
                "/shareProcessNamespace",
                json!(true),
                "shareProcessNamespace",
            ),
        ] {
            assert_eq!(refused(at, value), Some(what), "{at}");
        }
        let without = json!({"hostNetwork": false, "containers": [{"name": "c", "image": "i"}]});
        let without = pod(without);
        let said = refused_by_process(&without, &without.spec.containers[0]);
        assert_eq!(said, Some("hostNetwork: false"));
    }
}
