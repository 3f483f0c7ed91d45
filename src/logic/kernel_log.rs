//! Records of the kernel's log that the agent acts on.

use alloc::{format, string::String};

/// Returns the message of the event about a process that the kernel killed because the machine had no memory left (CG-20),
/// from the first line of a record of `/dev/kmsg`. `None` for all other records: a kill within a memory group is told of its
/// container.
///
/// Source: Linux `mm/oom_kill.c`, `dump_oom_summary` (5.0); `Documentation/ABI/testing/dev-kmsg`.
#[must_use]
pub fn parse_system_oom(line: &str) -> Option<String> {
    let (prefix, text) = line.split_once(';')?;
    let priority: u32 = prefix.split(',').next()?.parse().ok()?;
    // The kernel is facility 0. Programs cannot write as it.
    if priority >> 3 != 0 {
        return None;
    }
    let facts = text.strip_prefix("oom-kill:constraint=")?;
    if facts.starts_with("CONSTRAINT_MEMCG,") {
        return None;
    }
    let (before, after) = facts.rsplit_once(",pid=")?;
    let (_, name) = before.rsplit_once(",task=")?;
    let pid: u32 = after.split(',').next()?.parse().ok()?;
    Some(format!(
        "System OOM encountered, victim process: {name}, pid: {pid}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_for_want_of_memory() {
        // CG-20 OOMW-05
        let of_machine = "CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=tail,pid=77,uid=0";
        let of_group = "CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/kubepods/x,task_memcg=/kubepods/x,task=tail,pid=77,uid=0";
        let told = Some("System OOM encountered, victim process: tail, pid: 77");
        for (name, line, says) in [
            ("the machine", format!("6,1,2,-;oom-kill:constraint={of_machine}"), told),
            ("a caller is named", format!("6,1,2,-,caller=T9;oom-kill:constraint={of_machine}"), told),
            ("a group", format!("6,1,2,-;oom-kill:constraint={of_group}"), None),
            ("a program writes it", format!("14,1,2,-;oom-kill:constraint={of_machine}"), None),
            ("another record", "6,1,2,-;usb 1-1: new device".into(), None),
            ("the end of a record", " SUBSYSTEM=usb".into(), None),
            (
                "an odd name",
                "6,1,2,-;oom-kill:constraint=CONSTRAINT_CPUSET,global_oom,task_memcg=/,task=a,pid=1;b,pid=78,uid=0".into(),
                Some("System OOM encountered, victim process: a,pid=1;b, pid: 78"),
            ),
            ("cut off", "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task=a,pid=".into(), None),
            ("empty", String::new(), None),
        ] {
            assert_eq!(parse_system_oom(&line).as_deref(), says, "{name}");
        }
    }
}
