//! Removal of all that the network has made on this machine: for a reset, and once there is to be none (PROX-28). Nothing of
//! another program goes: a device `flannel.1` may be that of a real flannel, and there may be another agent.

use alloc::rc::Rc;
use core::time::Duration;
use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{SUBNET_FILE, device_name, firewall, kernel};
use crate::{
    agent::{clock::Clock, record::read_boot_id},
    error::error_chain,
    logic::pod_network::{
        PodNetworkBackend,
        entries::{EntryChange, EntryPlan},
        mark::{FILE, NetworkMark, ThingNumbers},
    },
    runtime::runc::cni::end_exemptions,
    sys::{file, lane::Lane},
};

/// File in the root directory that says which network this agent made: the boot, and the numbers of its things.
const MARK: &str = "pod-network";
const MARK_MODE: u32 = 0o600;
/// Most bytes of it.
const MAX_MARK_BYTES: u64 = 256;
/// Number of times that an agent which is to make no network tries to remove one.
const TRIES: u32 = 6;
/// Pause after the first try; it doubles. Another program may hold the lock of iptables.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// Places of what the network leaves.
#[derive(Clone, Debug)]
pub(super) struct NetworkRemains {
    /// File that flannel's CNI plugin reads.
    pub(super) subnet_file: PathBuf,
    /// File that says that there is a network of this agent.
    pub(super) mark: PathBuf,
    /// Bridge of the built-in network.
    pub(super) bridge: String,
}

impl NetworkRemains {
    /// Those of an agent with this root directory and bridge.
    pub(super) fn of_agent(root: &Path, bridge: &str) -> Self {
        Self {
            subnet_file: SUBNET_FILE.into(),
            mark: root.join(MARK),
            bridge: bridge.to_owned(),
        }
    }

    /// Notes the things of the network that this agent has `made`, beside those that are noted. The file is written only
    /// if it changes. Blocking.
    pub(super) fn write_mark(&self, made: [bool; 3]) -> io::Result<()> {
        let noted = self.read_mark();
        let mark = noted.unwrap_or_default().settle(self.find_numbers(), made);
        if noted == Some(mark) {
            return Ok(());
        }
        self.store_mark(&mark)
    }

    /// Notes that this agent is about to make a `device`, beside what it has `made`. The file is written only if it changes.
    /// Blocking.
    pub(super) fn announce_device(&self, device: usize, made: [bool; 3]) -> io::Result<()> {
        let found = self.find_numbers();
        let noted = self.read_mark();
        let settled = noted.unwrap_or_default().settle(found, made);
        let mark = settled.announce(device, found);
        if noted == Some(mark) {
            return Ok(());
        }
        self.store_mark(&mark)
    }

    fn store_mark(&self, mark: &NetworkMark) -> io::Result<()> {
        self.tell_unclear_devices();
        let text = mark.format(&read_boot_id());
        file::write_atomic(&self.mark, text.as_bytes(), MARK_MODE, true)
    }

    /// Reads the mark; `None`: no agent with this root directory made a network in this boot, or an older version noted
    /// none of its things.
    fn read_mark(&self) -> Option<NetworkMark> {
        let text = String::from_utf8(file::read_start(&self.mark, MAX_MARK_BYTES).ok()?).ok()?;
        NetworkMark::parse(&text, &read_boot_id())
    }

    /// Tells of devices that an older version may have made: its mark is empty, and does not tell them from those of
    /// flannel. They are nobody's for good.
    fn tell_unclear_devices(&self) {
        if !fs::metadata(&self.mark).is_ok_and(|mark| mark.len() == 0) {
            return;
        }
        let names = [false, true].map(device_name).into_iter();
        for name in names.filter(|name| kernel::find_vxlan_index(name) != 0) {
            log::warn!(
                "pod network: flannel or an older picolet made {name}: picolet will not remove it; to do so, ip link delete {name}"
            );
        }
    }

    fn find_numbers(&self) -> ThingNumbers {
        let device = |is_v6| kernel::find_vxlan_index(device_name(is_v6)).into();
        let file = fs::metadata(&self.subnet_file);
        [
            device(false),
            device(true),
            file.map_or(0, |file| file.ino()),
        ]
    }

    /// Finds the things that are there and that this agent has noted.
    fn find_own_numbers(&self) -> ThingNumbers {
        let mark = self.read_mark().unwrap_or_default();
        mark.removable_numbers(self.find_numbers())
    }

    /// Returns true if there is a mark, of whatever boot.
    pub(super) fn has_mark(&self) -> bool {
        self.mark.exists()
    }

    /// Returns true if there are rules of the firewall that are ours. `is_wanted`: this agent is to make the network.
    async fn has_rules(&self, is_wanted: bool) -> bool {
        let may_have = is_wanted || self.read_mark().is_some();
        for is_v6 in [false, true] {
            // A family that cannot be asked about is left.
            if may_have && firewall::has_rules(is_v6).await.unwrap_or_default() {
                return true;
            }
        }
        false
    }

    /// Lists what would be removed, one thing a line. It blocks.
    pub(super) fn list(&self, is_wanted: bool) -> Vec<String> {
        let own = self.find_own_numbers();
        let mut lines = Vec::new();
        for is_v6 in [false, true] {
            if own[usize::from(is_v6)] != 0 {
                lines.push(format!("device {}", device_name(is_v6)));
            }
        }
        if own[FILE] != 0 {
            lines.push(self.subnet_file.display().to_string());
        }
        if smol::block_on(self.has_rules(is_wanted)) {
            lines.push("routes to pods of other nodes, and iptables rules for them".into());
        }
        lines
    }

    /// Removes it, as far as it is ours; the kernel's part on a lane if one is given. Returns what could not be removed.
    pub(super) async fn remove(&self, is_wanted: bool, lane: Option<&Lane>) -> Vec<String> {
        let mut left = Vec::new();
        self.tell_unclear_devices();
        if self.read_mark().is_some() || self.has_rules(is_wanted).await {
            let this = self.clone();
            left = match lane {
                Some(lane) => lane.run_job(move || this.remove_from_kernel()).await,
                None => this.remove_from_kernel(),
            };
            for is_v6 in [false, true] {
                if let Err(e) = firewall::remove_rules(is_v6).await {
                    left.push(format!("iptables: {}", error_chain(&e)));
                }
            }
            if let Err(e) = end_exemptions(&self.bridge).await {
                left.push(format!("iptables: {}", error_chain(&e)));
            }
        }
        // The last thing: until then the next one goes on.
        if left.is_empty() {
            remove_file(&self.mark, &mut left);
        }
        left
    }

    /// Removes it for an agent that is to make none, with some further tries.
    pub(super) async fn remove_with_tries(self, lane: Lane, clock: Rc<dyn Clock>) {
        let mut pause = FIRST_PAUSE;
        for rest in (0..TRIES).rev() {
            let left = self.remove(false, Some(&lane)).await;
            if left.is_empty() {
                return;
            }
            let next = match rest {
                0 => "it stays until the next start",
                _ => "it is tried again",
            };
            let left = left.join("; ");
            log::warn!("pod network: cannot remove what is left of it: {left}: {next}");
            if rest > 0 {
                clock.sleep_until(clock.now() + pause).await;
                pause *= 2;
            }
        }
    }

    /// Deletes the device of a family, if it is ours.
    pub(super) fn delete_device(&self, is_v6: bool) -> Result<(), kernel::PodNetworkError> {
        match self.find_own_numbers()[usize::from(is_v6)] {
            0 => Ok(()),
            _ => kernel::delete_device(device_name(is_v6)),
        }
    }

    /// Removes devices, the file and routes. Returns what could not be removed.
    fn remove_from_kernel(&self) -> Vec<String> {
        let mut left = Vec::new();
        for is_v6 in [false, true] {
            if let Err(e) = self.delete_device(is_v6) {
                left.push(error_chain(&e));
            }
            match kernel::read_entries(0, is_v6) {
                Ok(found) => {
                    let routes = found.routes.into_iter().map(EntryChange::DeleteRoute);
                    let plan = EntryPlan {
                        sets: Vec::new(),
                        deletions: routes.collect(),
                    };
                    let applied = kernel::apply_plan(&plan, 0, PodNetworkBackend::HostGateway);
                    left.extend(applied.undeleted);
                }
                Err(e) => left.push(error_chain(&e)),
            }
        }
        if self.find_own_numbers()[FILE] != 0 {
            remove_file(&self.subnet_file, &mut left);
        }
        left
    }
}

fn remove_file(path: &Path, left: &mut Vec<String>) {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            left.push(format!("{}: {e}", path.display()));
        }
        _ => {}
    }
}
