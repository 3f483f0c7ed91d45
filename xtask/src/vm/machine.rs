//! A machine with two disks, two serial ports and nothing else: by qemu, or by a kernel that is a program of this one.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::{
    disk::Base,
    emulated::{self, CABLE, Emulated},
    report::{self, Boot},
    uml,
};
use crate::{Failure, process::find, wait::until};

/// What both kernels are told: the journal has to be read from outside when a check does not hold.
pub(super) const WORDS: &str =
    "quiet systemd.show_status=false systemd.journald.forward_to_console=1";
/// The rest for the one in qemu.
///
/// - `no_timer_check`: on a busy machine the emulated timer may come too late for the kernel, which then gives up.
/// - `mitigations=off`: what they cost is many times as much when it is emulated, and nothing hostile runs here.
const QEMU_WORDS: &str = "root=/dev/vda rw console=ttyS0 panic=-1 no_timer_check mitigations=off";
/// Until qemu takes commands.
const MONITOR_LIMIT: Duration = Duration::from_secs(60);
/// Longest line that is taken from the guest, bytes.
const LINE_LIMIT: u64 = 64 << 10;
/// Switching off, with every pod ended first, on an emulated processor that has other things to do.
pub(super) const OFF_LIMIT: Duration = Duration::from_secs(300);

/// What the machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Debian's kernel for machines of its kind, by qemu; takes ten times as long where the processor does not help.
    Qemu,
    /// User Mode Linux: Debian's kernel as a program of this machine's kernel, with one processor. Not for every machine.
    Uml,
    /// Another processor, by qemu.
    Board(&'static Emulated),
}

impl Backend {
    /// The quickest that there is here.
    pub(crate) fn quick() -> Self {
        if accelerator() == "kvm" || !uml::is_possible() {
            Self::Qemu
        } else {
            Self::Uml
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Uml => "uml",
            Self::Board(board) => board.name,
        }
    }

    /// What it is, for who reads along.
    pub(super) fn title(self) -> String {
        match self {
            Self::Qemu => format!("qemu, {}", accelerator()),
            Self::Uml => "User Mode Linux".into(),
            Self::Board(board) => format!("{}, emulated by qemu", board.name),
        }
    }
}

/// What a machine is started from.
pub(super) struct Plan<'a> {
    /// Logs, and what a backend keeps.
    pub(super) dir: &'a Path,
    pub(super) base: &'a Base,
    pub(super) root: &'a Path,
    pub(super) payload: &'a Path,
    pub(super) boot: Boot,
}

/// A running machine. Dropping it cuts the power.
pub(super) struct Machine {
    backend: Backend,
    child: Child,
    lines: mpsc::Receiver<String>,
    /// Of a board.
    monitor: Option<UnixStream>,
}

impl Machine {
    pub(super) fn start(plan: &Plan<'_>) -> Result<Self, Failure> {
        let backend = plan.base.backend;
        let mut command = match backend {
            Backend::Qemu => qemu(plan, pc(plan)?),
            Backend::Uml => uml::command(plan)?,
            Backend::Board(board) => qemu(plan, board.command(plan)?),
        };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", backend.name()))?;
        let output = child.stdout.take().ok_or("the machine has no output")?;
        let (sender, lines) = mpsc::channel();
        // Ends with the machine, which is killed when it is dropped.
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while let Ok(1..) = output
                .by_ref()
                .take(LINE_LIMIT)
                .read_until(b'\n', &mut line)
            {
                let text = String::from_utf8_lossy(&line).into_owned();
                if sender.send(text).is_err() {
                    break;
                }
                line.clear();
            }
        });
        let mut machine = Self {
            backend,
            child,
            lines,
            monitor: None,
        };
        if let Backend::Board(_) = backend {
            let path = emulated::monitor(plan.dir);
            let monitor = until(MONITOR_LIMIT, || Ok(UnixStream::connect(&path)?))?;
            machine.monitor = Some(monitor);
            if plan.boot == Boot::Unplugged {
                machine.tell(&format!("set_link {CABLE} off"))?;
            }
            machine.tell("cont")?;
        }
        Ok(machine)
    }

    /// Has qemu do something with the machine.
    fn tell(&self, command: &str) -> Result<(), Failure> {
        let mut monitor = self.monitor.as_ref().ok_or("it has no monitor")?;
        Ok(writeln!(monitor, "{command}")?)
    }

    /// What the guest writes to its second serial port, until it ends; what that wants of qemu is done.
    pub(super) fn report(&self, boot: Boot) -> Result<u32, Failure> {
        report::read(&self.lines, boot, |command| self.tell(command))
    }

    pub(super) fn has_ended(&mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{}: {status}", self.backend.name()).into()),
            None => Err("the machine does not switch itself off".into()),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.backend == Backend::Uml {
            uml::cut(self.child.id());
        }
        // SIGKILL: the guest's memory is gone as in a power cut; what it had flushed is in the file.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What every machine in qemu has, beside what is its own.
fn qemu(plan: &Plan<'_>, mut command: Command) -> Command {
    command
        .args(["-smp", "2", "-m", &plan.boot.memory_mib().to_string()])
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .arg("-no-reboot")
        .arg("-kernel")
        .arg(&plan.base.kernel)
        .arg("-initrd")
        .arg(&plan.base.initrd);
    command
}

fn pc(plan: &Plan<'_>) -> Result<Command, Failure> {
    let program = find("qemu-system-x86_64").ok_or("qemu-system-x86_64 is not installed")?;
    let mut command = Command::new(program);
    command
        .args(["-machine", "q35", "-accel", accelerator()])
        .args(["-cpu", "max", "-nic", "none"])
        .args(["-device", "virtio-rng-pci"])
        .arg("-append")
        .arg(format!("{QEMU_WORDS} {WORDS} {}", plan.boot.words()))
        .arg("-drive")
        // What the guest has written is in the file when qemu is killed, whether the file is on a disk or not: there
        // is no reason to wait for one.
        .arg(format!(
            "file={},format=raw,if=virtio,cache=unsafe",
            plan.root.display()
        ))
        .arg("-drive")
        .arg(format!(
            "file={},format=raw,if=virtio,readonly=on",
            plan.payload.display()
        ))
        .arg("-serial")
        .arg(format!("file:{}", console(plan.dir, plan.boot).display()))
        .args(["-serial", "stdio"]);
    Ok(command)
}

/// What runs the guest's instructions in qemu: the processor, or qemu itself, which takes some ten times as long.
///
/// A device of that name alone is not enough: there are kernels whose KVM only takes guests made for it, on processors
/// that cannot virtualize. Debian's kernel does not start there.
pub(super) fn accelerator() -> &'static str {
    let can = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| {
        text.split_whitespace()
            .any(|flag| flag == "vmx" || flag == "svm")
    });
    let opens = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok();
    if can && opens { "kvm" } else { "tcg" }
}

/// The first serial port: kernel, systemd and journal.
pub(super) fn console(dir: &Path, boot: Boot) -> PathBuf {
    dir.join(format!("console-{}.log", boot.name()))
}
