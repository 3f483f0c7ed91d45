//! What holds for pods that hold devices whose nodes come and go in their containers (DEV-44). The rule of such a container
//! lets it use every device of a major, and it sees nodes of its own units alone. So nothing in its pod may make nodes.

use alloc::{format, string::String, vec::Vec};

use super::{Demand, demands};
use crate::{
    api::{Container, Pod, PodError, cri::LinuxSecurity},
    capabilities,
};

const MAKES_NODES: &str = "CAP_MKNOD";

/// Whether one path is below another.
pub(crate) fn is_in(path: &str, dir: &str) -> bool {
    let rest = path.strip_prefix(dir);
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// Whether the pod asks for such a device.
pub fn holds_live(pod: &Pod, is_live: impl Fn(&str) -> bool) -> bool {
    let asked: Vec<Demand> = demands(pod);
    asked.iter().any(|demand| is_live(&demand.resource))
}

/// The first container of the pod that asks for the right to make nodes. One that is privileged may use all devices anyway.
#[must_use]
pub fn makes_nodes(pod: &Pod) -> Option<&Container> {
    pod.spec.all_containers().find(|container| {
        let Some(context) = &container.security_context else {
            return false;
        };
        let asked = context.capabilities.as_ref();
        context.privileged != Some(true)
            && asked.is_some_and(|asked| capabilities::adds(&asked.add, &asked.drop, MAKES_NODES))
    })
}

/// Takes the right to make nodes from a container of such a pod.
///
/// # Errors
/// The container asks for it: one that came later than its pod does.
pub fn withhold(security: &mut LinuxSecurity) -> Result<(), PodError> {
    let (add, drop) = (&security.add_capabilities, &mut security.drop_capabilities);
    if !security.privileged && capabilities::adds(add, drop, MAKES_NODES) {
        return Err(PodError::Spec(format!("its pod {WHY}")));
    }
    drop.push(MAKES_NODES.into());
    Ok(())
}

/// Why a pod with such a container is refused.
#[must_use]
pub fn refusal(container: &Container) -> String {
    format!("container {:?}: the pod {WHY}", container.name)
}

const WHY: &str = "holds a device with live, so no container of it may have the capability MKNOD";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn who_may_make_nodes() {
        // DEV-44
        for (context, refused) in [
            (json!({}), false),
            (json!({"capabilities": {"add": ["NET_ADMIN"]}}), false),
            (json!({"capabilities": {"add": ["mknod"]}}), true),
            (
                json!({"capabilities": {"add": ["CAP_MKNOD"], "drop": ["ALL"]}}),
                true,
            ),
            (json!({"capabilities": {"add": ["ALL"]}}), true),
            (
                json!({"capabilities": {"add": ["ALL"], "drop": ["MKNOD"]}}),
                false,
            ),
            (
                json!({"capabilities": {"add": ["ALL"], "drop": ["ALL"]}}),
                false,
            ),
            (
                json!({"capabilities": {"add": ["MKNOD"], "drop": ["MKNOD"]}}),
                false,
            ),
            (
                json!({"privileged": true, "capabilities": {"add": ["MKNOD"]}}),
                false,
            ),
        ] {
            let pod = |key: &str| -> Pod {
                let c = json!({"name": "x", "securityContext": context.clone()});
                let mut spec = json!({"containers": [{"name": "c"}]});
                spec[key] = json!([c]);
                serde_json::from_value(json!({"spec": spec})).expect("pod")
            };
            for key in ["containers", "initContainers", "ephemeralContainers"] {
                let pod = pod(key);
                let found = makes_nodes(&pod).map(|c| &*c.name);
                assert_eq!(found, refused.then_some("x"), "{key} {context}");
            }
            let texts = |key: &str| -> Vec<_> {
                let all = context["capabilities"][key]
                    .as_array()
                    .into_iter()
                    .flatten();
                all.filter_map(Value::as_str).map(Into::into).collect()
            };
            let mut security = LinuxSecurity {
                privileged: context["privileged"] == true,
                add_capabilities: texts("add"),
                drop_capabilities: texts("drop"),
                ..LinuxSecurity::default()
            };
            let withheld = withhold(&mut security);
            assert_eq!(withheld.is_err(), refused, "{context}");
            let left = capabilities::effective_set(&security, &[]).expect("known");
            let has = left.iter().any(|name| name == MAKES_NODES);
            assert_eq!(has, refused || security.privileged, "{context}");
        }
    }
}
