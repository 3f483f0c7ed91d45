//! Devices that processes of a group may use while they run (DEV-44): exactly those that their container has. Version 1
//! takes rules in files. On version 2 the OCI runtime lets the container use whole majors; a program of ours, beside
//! that of the runtime, closes all their devices but the container's own.

use std::{collections::BTreeMap, fs, io, path::Path};

use super::{CgroupVersion, Cgroups};
use crate::{
    api::device::{DeviceAccess, DeviceNumber, LiveDeviceRules},
    sys::bpf::{self, BpfInstruction},
};

/// Name of the program in the kernel.
const PROGRAM: &str = "picolet_live";
/// Numbers that a program does not close: it has a few instructions for each, and a kernel takes a million from root.
const MAX_NUMBERS: usize = 1024;

impl Cgroups {
    /// Lets processes of a group use these devices. `before`: devices that they could use until now; those that are not
    /// among the new ones are closed.
    ///
    /// # Errors
    /// The kernel refuses it; devices that should be closed may stay open then.
    pub fn allow_devices(
        &self,
        rules: &LiveDeviceRules,
        before: &[DeviceAccess],
    ) -> io::Result<()> {
        let Some(dir) = self.hierarchy.controller_dir("devices", &rules.cgroup) else {
            return Err(io::Error::other("there is no cgroup of devices"));
        };
        match self.hierarchy.cgroup_version() {
            CgroupVersion::V1 => write_device_rules(&dir, rules, before),
            CgroupVersion::V2 => replace_device_filter(&dir, rules),
        }
    }
}

fn write_device_rules(
    dir: &Path,
    rules: &LiveDeviceRules,
    before: &[DeviceAccess],
) -> io::Result<()> {
    let write = |file: &str, allowed: &DeviceAccess| {
        let DeviceAccess {
            number: (block, major, minor),
            access,
        } = allowed;
        let kind = if *block { 'b' } else { 'c' };
        fs::write(dir.join(file), format!("{kind} {major}:{minor} {access}"))
    };
    for old in before {
        let has = |number: &DeviceNumber| *number == old.number;
        let stays = rules.allowed.iter().map(|allowed| &allowed.number).any(has);
        let limited = rules.limited.iter().map(|allowed| &allowed.number);
        if !stays && !rules.others.iter().chain(limited).any(has) {
            write("devices.deny", old)?;
        }
    }
    rules
        .allowed
        .iter()
        .try_for_each(|allowed| write("devices.allow", allowed))
}

fn replace_device_filter(dir: &Path, rules: &LiveDeviceRules) -> io::Result<()> {
    let group = fs::File::open(dir)?;
    let old = bpf::attached_programs(&group, PROGRAM)?;
    let program = bpf::load_program(&build_filter_program(rules)?, PROGRAM)?;
    // For a moment both programs are asked: no device is open that should be closed.
    bpf::attach_program(&group, &program)?;
    old.iter()
        .try_for_each(|old| bpf::detach_program(&group, old))
}

/// `code`, registers, jump, and number, as in `struct bpf_insn`.
const fn encode_instruction(code: u8, to: u8, from: u8, jump: i16, number: u32) -> BpfInstruction {
    let [j0, j1] = jump.to_ne_bytes();
    let [n0, n1, n2, n3] = number.to_ne_bytes();
    let registers = match cfg!(target_endian = "little") {
        true => from << 4 | to,
        false => to << 4 | from,
    };
    BpfInstruction::from_ne_bytes([code, registers, j0, j1, n0, n1, n2, n3])
}

const fn answer_instructions(yes: bool) -> [BpfInstruction; 2] {
    const SET: u8 = 0xb7;
    const EXIT: u8 = 0x95;
    [
        encode_instruction(SET, ANSWER, 0, 0, if yes { 1 } else { 0 }),
        encode_instruction(EXIT, 0, 0, 0, 0),
    ]
}

/// Registers. The second one points to the question: access and type, major, minor.
const ANSWER: u8 = 0;
const ASKED: u8 = 1;
const TYPE: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;
const WAYS: u8 = 6;

/// Access to each device number. Rules for the same number add up.
fn access_by_device(rules: &LiveDeviceRules) -> BTreeMap<DeviceNumber, u32> {
    let others = rules.others.iter().map(|number| (*number, READS | WRITES));
    let each = rules.allowed.iter().chain(&rules.limited).map(|allowed| {
        let bit = |letter, bit| {
            if allowed.access.contains(letter) {
                bit
            } else {
                0
            }
        };
        (allowed.number, bit('r', READS) | bit('w', WRITES))
    });
    let mut ways = BTreeMap::new();
    for (number, bits) in others.chain(each) {
        *ways.entry(number).or_default() |= bits;
    }
    ways
}

/// `BPF_DEVCG_ACC_READ`, `BPF_DEVCG_ACC_WRITE`.
const READS: u32 = 2;
const WRITES: u32 = 4;

/// Writes the program: it closes all devices of these majors, except those with these numbers, each with its access.
/// Making a node is no use of a device, and stays allowed.
///
/// - Errors: there are too many.
fn build_filter_program(rules: &LiveDeviceRules) -> io::Result<Vec<BpfInstruction>> {
    const LOAD: u8 = 0x61;
    const COPY: u8 = 0xbc;
    const AND: u8 = 0x54;
    const SHIFT_RIGHT: u8 = 0x74;
    /// `BPF_DEVCG_ACC_MKNOD`, `BPF_DEVCG_DEV_BLOCK`, `BPF_DEVCG_DEV_CHAR`.
    const MAKES_NODE: u32 = 1;
    const BLOCK: u32 = 1;
    const CHAR: u32 = 2;
    let ways = access_by_device(rules);
    if ways.len() > MAX_NUMBERS {
        let text = format!("a container with more than {MAX_NUMBERS} device nodes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut program = vec![
        encode_instruction(LOAD, TYPE, ASKED, 0, 0),
        encode_instruction(COPY, ACCESS, TYPE, 0, 0),
        encode_instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        skip_unless_equal(ACCESS, MAKES_NODE, 2),
    ];
    program.extend(answer_instructions(true));
    program.extend([
        encode_instruction(AND, TYPE, 0, 0, 0xffff),
        encode_instruction(LOAD, MAJOR, ASKED, 4, 0),
        encode_instruction(LOAD, MINOR, ASKED, 8, 0),
    ]);
    for (block, major) in &rules.majors {
        let mut of_major = Vec::new();
        for (&(_, _, minor), bits) in ways.iter().filter(|(n, _)| (n.0, n.1) == (*block, *major)) {
            let closed = (READS | WRITES) & !bits;
            of_major.push(skip_unless_equal(MINOR, minor, 5));
            of_major.push(encode_instruction(COPY, WAYS, ACCESS, 0, 0));
            of_major.push(encode_instruction(AND, WAYS, 0, 0, closed));
            of_major.push(skip_unless_equal(WAYS, 0, 2));
            of_major.extend(answer_instructions(true));
        }
        of_major.extend(answer_instructions(false));
        let past = i16::try_from(of_major.len()).map_err(io::Error::other)?;
        let kind = if *block { BLOCK } else { CHAR };
        program.extend([
            skip_unless_equal(TYPE, kind, past + 1),
            skip_unless_equal(MAJOR, *major, past),
        ]);
        program.extend(of_major);
    }
    program.extend(answer_instructions(true));
    Ok(program)
}

/// Jumps over so many instructions if the register is something else.
const fn skip_unless_equal(register: u8, number: u32, past: i16) -> BpfInstruction {
    const IF_OTHER: u8 = 0x55;
    encode_instruction(IF_OTHER, register, 0, past, number)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;
    use crate::cgroup::Hierarchy;

    /// The version 2 tree of this machine, which may lie beside version 1.
    fn tree() -> Option<PathBuf> {
        let text = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mut lines = text.lines().filter(|line| line.contains(" - cgroup2 "));
        let point = lines.find_map(|line| line.split(' ').nth(4));
        point.map(PathBuf::from)
    }

    fn rules(
        cgroup: &str,
        majors: &[(bool, u32)],
        minors: &[u32],
        others: &[u32],
    ) -> LiveDeviceRules {
        let number = |minor: &u32| (false, 1, *minor);
        LiveDeviceRules {
            cgroup: cgroup.into(),
            majors: majors.to_vec(),
            others: others.iter().map(number).collect(),
            limited: Vec::new(),
            allowed: minors
                .iter()
                .map(|minor| DeviceAccess {
                    number: number(minor),
                    access: "rw".into(),
                })
                .collect(),
        }
    }

    #[test]
    fn a_program_closes_all_but_what_is_given() {
        // DEV-44
        let Some(tree) = tree().filter(|_| nix::unistd::geteuid().is_root()) else {
            skipped!("device filters: it needs root, and control groups version 2");
            return;
        };
        let name = format!("picolet-devices-{}", std::process::id());
        let dir = tree.join(&name);
        fs::create_dir(&dir).expect("group");
        let hierarchy = format!("1 1 0:1 / {} rw - cgroup2 cgroup2 rw", tree.display());
        let cgroups = Cgroups::with_hierarchy(Hierarchy::parse(&hierarchy).expect("version 2"));
        // Null, zero and full are 1:3, 1:5 and 1:7.
        let inside = |script: &str| -> String {
            let script = format!("echo $$ > {}/cgroup.procs; {script}", dir.display());
            let done = Command::new("sh").args(["-c", &script]).output();
            let text = String::from_utf8(done.expect("sh").stdout).expect("text");
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let usable = || {
            inside(&format!(
                "for n in null zero full tty; do (: < /dev/$n) 2>&- && echo $n; done; \
                 mknod /tmp/{name} c 1 7 && echo made; rm -f /tmp/{name}"
            ))
        };
        let opened_for_writing =
            || inside("for n in null zero full; do (: > /dev/$n) 2>&- && echo $n; done");
        let all = usable();
        assert!(
            all.starts_with("null zero full") && all.ends_with("made"),
            "{all}"
        );
        let major = [(false, 1)];
        let mut before = Vec::new();
        for (minors, others, want) in [
            (&[3, 7][..], &[][..], "null full"),
            (&[5], &[3], "null zero"),
            (&[], &[7], "full"),
            (&[], &[], ""),
        ] {
            let rules = rules(&name, &major, minors, others);
            cgroups.allow_devices(&rules, &before).expect("taken");
            let own = bpf::attached_programs(fs::File::open(&dir).expect("group"), PROGRAM);
            assert_eq!(own.expect("programs").len(), 1, "one after the other");
            let seen = usable();
            let seen = seen.replace(" tty", "");
            assert_eq!(seen, format!("{want} made").trim(), "{minors:?} {others:?}");
            before = rules.allowed;
        }
        // A device that may only be read must not be written, even if the OCI runtime has opened it.
        let read_only = |number| DeviceAccess {
            number,
            access: "r".into(),
        };
        let mut some = rules(&name, &major, &[3], &[5]);
        some.allowed = vec![read_only((false, 1, 3))];
        some.limited = vec![read_only((false, 1, 7))];
        cgroups.allow_devices(&some, &before).expect("taken");
        assert_eq!(usable().replace(" tty", ""), "null zero full made");
        assert_eq!(opened_for_writing(), "zero");
        some.limited.push(DeviceAccess {
            number: (false, 1, 7),
            access: "w".into(),
        });
        cgroups.allow_devices(&some, &before).expect("taken");
        assert_eq!(opened_for_writing(), "zero full");
        // Devices of other majors stay open.
        let other = rules(&name, &[(true, 1), (false, 2)], &[], &[]);
        cgroups.allow_devices(&other, &before).expect("taken");
        assert_eq!(usable(), all);
        let many: Vec<u32> = (0..1025).collect();
        let refused = cgroups.allow_devices(&rules(&name, &major, &many, &[]), &[]);
        assert!(refused.is_err());
        let most: Vec<u32> = (0..1024).collect();
        let taken = cgroups.allow_devices(&rules(&name, &major, &most, &[]), &[]);
        taken.expect("taken");
        fs::remove_dir(&dir).expect("removed");
    }

    #[test]
    fn files_of_version_1_are_told_what_changes() {
        // DEV-44
        let top = crate::testing::unused_path("devices");
        fs::create_dir_all(top.join("a")).expect("directory");
        let text = format!(
            "1 1 0:1 / {} rw - cgroup cgroup rw,devices\n1 1 0:1 / /m rw - cgroup cgroup rw,memory",
            top.display()
        );
        let cgroups = Cgroups::with_hierarchy(Hierarchy::parse(&text).expect("version 1"));
        let file = |name: &str| fs::read_to_string(top.join("a").join(name)).unwrap_or_default();
        let now = rules("/a", &[(false, 1)], &[3], &[5]);
        let old = rules("/a", &[], &[7, 5, 3], &[]).allowed;
        cgroups.allow_devices(&now, &old).expect("written");
        // A device that another rule allows stays open.
        assert_eq!(file("devices.deny"), "c 1:7 rw");
        assert_eq!(file("devices.allow"), "c 1:3 rw");
        fs::remove_dir_all(&top).expect("removed");
    }
}
