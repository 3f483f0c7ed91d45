//! User Mode Linux: a kernel that is a program of this machine's kernel, as Debian builds it.
//!
//! What runs in the machine are processes of this one, which the program traces. Should it end before them, they would go on
//! as processes of this machine. So they belong to a user who owns nothing, in namespaces of their own, and end before it.

use std::{
    fs::{self, File},
    os::unix::fs::{MetadataExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

use super::{
    disk::remove,
    machine::{Plan, WORDS, console},
};
use crate::{
    Failure,
    process::{find, output, pids, run},
    wait::until,
};

/// Root and payload, AppArmor. Serial ports lead nowhere, except for the verdicts' and the console.
const KERNEL_WORDS: &str = "ubd1r=payload.ext4 root=/dev/ubda rw apparmor=1 security=apparmor \
    con=null con0=null,fd:2 ssl=null ssl1=null,fd:1 umid=machine uml_dir=./uml/";
/// Where Debian has its modules, one directory a version.
const MODULES: &str = "/usr/lib/uml/modules";
/// Its nf_tables have no rules for addresses of version 4.
const ALTERNATIVES: [(&str, &str); 2] = [
    ("iptables", "/usr/sbin/iptables-legacy"),
    ("ip6tables", "/usr/sbin/ip6tables-legacy"),
];
/// Owner of the machine: nobody.
const OWNER: u32 = 65_534;
/// Where memory is in memory.
const MEMORY: &str = "/dev/shm";
/// Directory of the machine's owner, beside the disks.
const OWN: &str = "uml";
/// Until a process that was told to stop has stopped.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// What a processor has whose registers are more than this kernel keeps of a process (`struct _xstate`: up to those of AVX).
/// There it ends with "ptrace set fp regs failed".
const TOO_MANY_REGISTERS: [&str; 4] = ["avx512f", "amx_tile", "mpx", "pku"];

/// Whether it can run on this processor.
pub(super) fn is_possible() -> bool {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    keeps_registers(text.split_whitespace())
}

fn keeps_registers<'a>(mut flags: impl Iterator<Item = &'a str>) -> bool {
    !flags.any(|flag| TOO_MANY_REGISTERS.contains(&flag))
}

/// The kernel.
pub(super) fn kernel() -> Option<PathBuf> {
    find("linux.uml")
}

/// Tells one build of it from another, and what [`furnish`] does.
pub(super) fn recipe(kernel: &Path) -> Result<String, Failure> {
    let version = output(Command::new(kernel).arg("--version"))?;
    let file = fs::metadata(kernel)?;
    Ok(format!(
        "{} {} {}\n{ALTERNATIVES:?}\n",
        version.trim(),
        file.len(),
        file.mtime()
    ))
}

/// What this kernel wants from an installed Debian.
pub(super) fn furnish(tree: &Path) -> Result<(), Failure> {
    run(Command::new("cp")
        .arg("--archive")
        .arg(MODULES)
        .arg(tree.join("lib")))?;
    for (name, program) in ALTERNATIVES {
        output(Command::new("chroot").arg(tree).args([
            "update-alternatives",
            "--set",
            name,
            program,
        ]))?;
    }
    Ok(())
}

/// What starts a machine.
pub(super) fn command(plan: &Plan<'_>) -> Result<Command, Failure> {
    let own = plan.dir.join(OWN);
    remove(&own)?;
    fs::create_dir(&own)?;
    for path in [&own, plan.root] {
        chown(path, Some(OWNER), Some(OWNER))?;
    }
    let name = |path: &Path| -> Result<String, Failure> {
        // It looks for them in its working directory: its owner may not pass those above.
        let name = path.file_name().ok_or("a disk without a name")?;
        Ok(name.to_string_lossy().into_owned())
    };
    let owner = OWNER.to_string();
    let mut command = Command::new("setpriv");
    // Each is killed with the one before it, the first with this task.
    command
        .args(["--pdeathsig", "KILL"])
        .args(["unshare", "--pid", "--fork", "--net", "--ipc"])
        .args(["setpriv", "--pdeathsig", "KILL", "--clear-groups"])
        .args(["--reuid", &owner, "--regid", &owner])
        .args(["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"])
        .arg(&plan.base.kernel)
        .arg(format!("mem={}M", plan.boot.memory_mib()))
        .arg(format!("ubd0={}", name(plan.root)?))
        .args(KERNEL_WORDS.split_whitespace())
        .args(WORDS.split_whitespace())
        .arg(plan.boot.words())
        .current_dir(plan.dir)
        .stderr(File::create(console(plan.dir, plan.boot))?);
    let memory = if has_room(plan.boot.memory_mib()) {
        MEMORY
    } else {
        OWN
    };
    command.env("TMPDIR", memory);
    Ok(command)
}

/// Whether the machine's memory can be where memory is: there is room, and programs may run from there.
fn has_room(memory_mib: u32) -> bool {
    let free = output(Command::new("df").args(["--output=avail", "-BM", MEMORY]))
        .ok()
        .and_then(|text| text.lines().last()?.trim().strip_suffix('M')?.parse().ok())
        .unwrap_or(0_u32);
    let options = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let noexec = options.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some(MEMORY) && words.nth(1).is_some_and(|o| o.contains("noexec"))
    });
    free > memory_mib && !noexec
}

/// Cuts the power: the kernel stops, then its processes end, then it. `starter` is what [`command`] started.
pub(super) fn cut(starter: u32) {
    for kernel in children(starter) {
        let _ = signal::kill(kernel, Signal::SIGSTOP);
        let _ = until(STOP_LIMIT, || match state(kernel) {
            Some('T') | None => Ok(()),
            Some(state) => Err(format!("state {state}").into()),
        });
        for process in children(kernel.as_raw().unsigned_abs()) {
            let _ = signal::kill(process, Signal::SIGKILL);
        }
        let _ = signal::kill(kernel, Signal::SIGKILL);
    }
}

fn children(parent: u32) -> Vec<Pid> {
    let of = parent.to_string();
    pids()
        .into_iter()
        .filter(|pid| stat(*pid).is_some_and(|(_, parent)| parent == of))
        .filter_map(|pid| i32::try_from(pid).ok())
        .map(Pid::from_raw)
        .collect()
}

fn state(pid: Pid) -> Option<char> {
    stat(pid.as_raw().unsigned_abs()).map(|(state, _)| state)
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(char, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may have blanks.
    let mut words = text.rsplit(')').next()?.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors() {
        for (flags, expected) in [
            ("fpu sse2 avx avx2 xsave", true),
            ("fpu avx2 avx512f avx512dq", false),
            ("avx2 pku", false),
        ] {
            assert_eq!(keeps_registers(flags.split(' ')), expected, "{flags}");
        }
    }
}
