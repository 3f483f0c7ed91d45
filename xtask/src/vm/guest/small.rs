//! A machine of 256 MiB: how many pods it holds.

use super::{
    Guest, call, expect,
    facts::{inits, text, unit},
    figures::{self, Figures},
    groups::unit_alone,
    node::{MIB, drop_manifest, no_restarts, set_up},
    wait_running,
};
use crate::vm::{
    manifests::{self, SMALL_CROWD},
    report::{Boot, Line},
};

/// What a sleeping pod may take from the machine altogether, KiB: its process, its shim, namespaces, page tables, control
/// groups, an interface, mounts. Measured: 1045 on Debian's kernel with two processors.
const POD_KIB: u64 = 1536;

/// The pods.
pub(super) fn crowd() -> Vec<String> {
    (0..SMALL_CROWD).map(|n| format!("crowd-{n}")).collect()
}

// QEMU-24: xtask looks from outside how each of them ends.
pub(super) fn run(guest: &mut Guest) {
    guest.step("It has no more memory than that", || {
        let total: u64 = text("/proc/meminfo")?
            .split_whitespace()
            .nth(1)
            .unwrap_or_default()
            .parse()?;
        let most = u64::from(Boot::Small.memory_mib()) * MIB / 1024;
        expect(
            &format!("{total} KiB at most {most} KiB"),
            &(total <= most),
            &true,
        )?;
        Ok(format!("MemTotal {total} KiB"))
    });
    set_up(guest);
    let before = Figures::read();
    guest.note(
        before
            .as_ref()
            .map_or_else(ToString::to_string, Figures::text),
    );

    let names = crowd();
    guest.step("All pods of a crowd run", || {
        for name in &names {
            drop_manifest(name, &manifests::sleeper(name, 1_000_000))?;
        }
        wait_running(&names)
    });
    guest.step("Memory is within what is promised", figures::hold);
    guest.step("What the crowd takes from the machine", || {
        let before = before.map_err(|e| format!("before: {e}"))?;
        let fall = before.available.saturating_sub(Figures::read()?.available);
        let each = fall / u64::try_from(SMALL_CROWD)?;
        expect(
            &format!("{each} KiB a pod within {POD_KIB} KiB"),
            &(each <= POD_KIB),
            &true,
        )?;
        Ok(format!(
            "MemAvailable fell by {} MiB, {each} KiB a pod",
            fall / 1024
        ))
    });
    guest.step(
        "Nothing else is resident, nothing had to be ended for want of memory",
        || {
            unit_alone()?;
            no_restarts()?;
            let said = call(&["journalctl", "-k", "-b", "-o", "cat"])?;
            let ended: Vec<_> = said
                .lines()
                .filter(|l| l.contains("Killed process"))
                .collect();
            expect("ended by the kernel", &ended, &Vec::new())?;
            Ok(String::new())
        },
    );
    let before = inits();
    guest.step("systemctl restart picolet: every container stays", || {
        let old = unit("MainPID")?;
        call(&["systemctl", "restart", "picolet"])?;
        expect("same agent", &(old == unit("MainPID")?), &false)?;
        wait_running(&names)?;
        expect("containers", &inits(), &before)?;
        no_restarts()?;
        figures::hold()
    });
    guest.say(&Line::End);
}
