//! qemu: a machine with two disks, two serial ports and nothing else.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::{disk::Base, report::Boot};
use crate::{Failure, process::find};

/// The kernel's command line, but for the word of the boot.
///
/// - `no_timer_check`: on a busy machine the emulated timer may come too late for the kernel, which then gives up.
/// - `mitigations=off`: what they cost is many times as much when it is emulated, and nothing hostile runs here.
const KERNEL_WORDS: &str = "root=/dev/vda rw console=ttyS0 panic=-1 quiet no_timer_check mitigations=off \
    systemd.show_status=false systemd.journald.forward_to_console=1";
/// Longest line that is taken from the guest, bytes.
const LINE_LIMIT: u64 = 64 << 10;
/// Switching off, with every pod ended first, on an emulated processor that has other things to do.
pub(super) const OFF_LIMIT: Duration = Duration::from_secs(300);

/// A running machine. Dropping it cuts the power.
pub(super) struct Machine {
    qemu: Child,
    lines: mpsc::Receiver<String>,
}

impl Machine {
    pub(super) fn start(
        dir: &Path,
        base: &Base,
        root: &Path,
        payload: &Path,
        boot: Boot,
    ) -> Result<Self, Failure> {
        let program = find("qemu-system-x86_64").ok_or("qemu-system-x86_64 is not installed")?;
        let mut command = Command::new(program);
        command
            .args(["-machine", "q35", "-accel", accelerator()])
            .args(["-cpu", "max", "-smp", "2"])
            .args(["-m", &boot.memory_mib().to_string()])
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-nic", "none", "-no-reboot"])
            .args(["-device", "virtio-rng-pci"])
            .arg("-kernel")
            .arg(&base.kernel)
            .arg("-initrd")
            .arg(&base.initrd)
            .arg("-append")
            .arg(format!("{KERNEL_WORDS} {}", boot.word()))
            .arg("-drive")
            // What the guest has written is in the file when qemu is killed, whether the file is on a disk or not: there
            // is no reason to wait for one.
            .arg(format!(
                "file={},format=raw,if=virtio,cache=unsafe",
                root.display()
            ))
            .arg("-drive")
            .arg(format!(
                "file={},format=raw,if=virtio,readonly=on",
                payload.display()
            ))
            .arg("-serial")
            .arg(format!("file:{}", console(dir, boot).display()))
            .args(["-serial", "stdio"]);
        let mut qemu = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("qemu: {e}"))?;
        let output = qemu.stdout.take().ok_or("qemu has no output")?;
        let (sender, lines) = mpsc::channel();
        // Ends with qemu, which is killed when the machine is dropped.
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
        Ok(Self { qemu, lines })
    }

    /// What the guest writes to its second serial port.
    pub(super) fn lines(&self) -> &mpsc::Receiver<String> {
        &self.lines
    }

    pub(super) fn has_ended(&mut self) -> Result<(), Failure> {
        match self.qemu.try_wait()? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("qemu: {status}").into()),
            None => Err("the machine does not switch itself off".into()),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SIGKILL: the guest's memory is gone as in a power cut; what it had flushed is in the file.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// What runs the guest's instructions: the processor, or qemu itself, which takes some ten times as long.
///
/// A device of that name alone is not enough: there are kernels whose KVM only takes guests made for it, on processors
/// that cannot virtualize. Debian's kernel does not start there.
pub(crate) fn accelerator() -> &'static str {
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
    dir.join(match boot {
        Boot::Fresh => "console-1.log",
        Boot::AfterPowerCut => "console-2.log",
        Boot::Small => "console-3.log",
    })
}
