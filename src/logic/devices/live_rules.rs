//! Device rules of a container whose device nodes come and go (DEV-44).

use alloc::{borrow::ToOwned as _, vec::Vec};

use crate::api::{
    cri::LiveDevices,
    device::{DeviceAccess, DeviceNumber, LiveDeviceRules},
    oci::{DeviceRule, Spec},
    order::OrderExt as _,
};

/// Computes the device rules of a container while none of its live nodes is there. `v2`: the OCI runtime has to allow
/// all devices of their kinds (majors), because it loads a program that cannot be changed later; our own program beside
/// it closes all but the nodes.
#[must_use]
pub fn compute_live_rules(
    all: &[LiveDevices],
    cgroup: &str,
    v2: bool,
    spec: &mut Spec,
) -> LiveDeviceRules {
    let own = &mut spec.linux.resources.devices;
    let (mut others, mut limited): (Vec<DeviceNumber>, Vec<DeviceAccess>) = Default::default();
    let mut open = Vec::new();
    for rule in own.iter().filter(|rule| rule.allow) {
        let block = rule.kind == "b";
        let number = |number: Option<i64>| number.and_then(|n| u32::try_from(n).ok());
        match (number(rule.major), number(rule.minor)) {
            (Some(major), Some(minor)) => {
                let number = (block, major, minor);
                match ['r', 'w']
                    .iter()
                    .all(|letter| rule.access.contains(*letter))
                {
                    true => others.push(number),
                    false => limited.push(DeviceAccess {
                        number,
                        access: rule.access.clone(),
                    }),
                }
            }
            // The container may use the whole kind anyway.
            (Some(major), None) => open.push((block, major)),
            (None, _) => {}
        }
    }
    let kinds = all.iter().flat_map(|live| &live.majors).copied();
    let mut majors: Vec<_> = kinds.filter(|kind| !open.contains(kind)).collect();
    majors.stable_sort();
    majors.dedup();
    if v2 {
        for live in all {
            own.extend(live.majors.iter().map(|(block, major)| DeviceRule {
                allow: true,
                kind: if *block { "b" } else { "c" }.to_owned(),
                major: Some((*major).into()),
                minor: None,
                access: live.permissions.clone(),
            }));
        }
    }
    LiveDeviceRules {
        cgroup: cgroup.to_owned(),
        majors,
        others,
        limited,
        allowed: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn kinds_are_open_where_a_program_closes_them() {
        // DEV-30 DEV-41 DEV-44
        let rule = |kind: &str, major, minor, access: &str| DeviceRule {
            allow: true,
            kind: kind.into(),
            major,
            minor,
            access: access.into(),
        };
        let before = vec![
            DeviceRule::default(),
            rule("c", None, None, "m"),
            rule("c", Some(188), Some(3), "rw"),
            rule("c", Some(188), Some(4), "rm"),
            rule("c", Some(136), None, "rwm"),
        ];
        let live = |majors: &[(bool, u32)], permissions: &str| LiveDevices {
            majors: majors.to_vec(),
            permissions: permissions.into(),
            ..LiveDevices::default()
        };
        let all = [
            live(&[(false, 188), (true, 8)], "r"),
            live(&[(false, 188), (false, 136)], "rw"),
        ];
        for v2 in [false, true] {
            let mut spec = Spec::default();
            spec.linux.resources.devices.clone_from(&before);
            let rules = compute_live_rules(&all, "/a", v2, &mut spec);
            let mut want = before.clone();
            if v2 {
                want.extend([
                    rule("c", Some(188), None, "r"),
                    rule("b", Some(8), None, "r"),
                    rule("c", Some(188), None, "rw"),
                    rule("c", Some(136), None, "rw"),
                ]);
            }
            assert_eq!(spec.linux.resources.devices, want);
            let want = LiveDeviceRules {
                cgroup: "/a".into(),
                majors: vec![(false, 188), (true, 8)],
                others: vec![(false, 188, 3)],
                limited: vec![DeviceAccess {
                    number: (false, 188, 4),
                    access: "rm".into(),
                }],
                allowed: Vec::new(),
            };
            assert_eq!(rules, want);
        }
    }
}
