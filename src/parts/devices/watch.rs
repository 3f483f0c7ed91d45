//! Tells the loop of devices that come and go, and lets containers that run follow them: they are looked at every ten seconds, and
//! when the kernel rings (DEV-39, DEV-44).

use alloc::rc::Rc;
use core::{future::pending, time::Duration};

use smol::future::FutureExt as _;

use super::{
    giver::{DeviceGiver, FollowedContainers},
    machine::UeventDoorbell,
    news::DeviceNews,
};
use crate::{
    agent::{
        asker::AgentHandle,
        clock::{Clock, align_to_second},
    },
    api::device::MachineDevices,
};

/// Time between two looks.
const POLL: Duration = Duration::from_secs(10);
/// Once the kernel has said nothing for so long, udev has made its links and modes.
const QUIET: Duration = Duration::from_millis(200);
/// A machine whose kernel never is quiet is looked at all the same.
const MOST_QUIETS: usize = 10;

/// Tells the loop what there is, whenever it is something else.
pub(crate) struct DeviceWatch {
    pub(crate) devices: Rc<DeviceGiver>,
    pub(crate) clock: Rc<dyn Clock>,
    /// Set if the kernel's events are used.
    pub(crate) doorbell: bool,
    pub(crate) agent: AgentHandle,
}

impl DeviceWatch {
    /// Until the loop is gone.
    pub(crate) async fn watch_devices(self) {
        let doorbell = self.doorbell.then(UeventDoorbell::open);
        let mut doorbell = doorbell.and_then(|laid| {
            let told = laid.inspect_err(|e| {
                log::info!(
                    "the kernel does not report devices, so they are looked at every ten seconds: {e}"
                );
            });
            told.ok()
        });
        let mut told: Option<(MachineDevices, FollowedContainers)> = None;
        // Bounded: by its pauses.
        loop {
            let seen = self.devices.find_devices().await;
            let mut followed = self.devices.update_live_containers(&seen).await;
            let of_files = seen.wrong.iter().map(|wrong| format!("CDI file {wrong}"));
            followed.wrong.extend(of_files);
            let known = told.as_ref().map_or(&[][..], |(_, told)| &told.wrong);
            for text in followed.wrong.iter().filter(|text| !known.contains(text)) {
                log::warn!("{text}");
            }
            // Who is unfit may not have been seen to run when the loop was told.
            let found = (seen, followed);
            if told.as_ref() != Some(&found) || !found.1.unfit.is_empty() {
                let (seen, followed) = found.clone();
                let seen = Box::new(seen);
                let news = Box::new(DeviceNews::Looked { seen, followed });
                if self.agent.send_resource_news(news).await.is_err() {
                    return;
                }
                told = Some(found);
            }
            let now = self.clock.now();
            let poll = self.clock.sleep_until(align_to_second(now + POLL, now));
            let poll = async {
                poll.await;
                Ok(())
            };
            if let Err(e) = poll
                .or(wait_for_doorbell(doorbell.as_ref(), &*self.clock))
                .await
            {
                log::info!("the kernel no longer reports devices: {e}");
                doorbell = None;
            }
        }
    }
}

/// The kernel rang, and is quiet again.
async fn wait_for_doorbell(
    doorbell: Option<&UeventDoorbell>,
    clock: &dyn Clock,
) -> std::io::Result<()> {
    let Some(doorbell) = doorbell else {
        return pending().await;
    };
    doorbell.wait_for_ring().await?;
    for _ in 0..MOST_QUIETS {
        let quiet = async {
            clock.sleep_until(clock.now() + QUIET).await;
            Ok(true)
        };
        let again = async { doorbell.wait_for_ring().await.map(|()| false) };
        if quiet.or(again).await? {
            break;
        }
    }
    Ok(())
}
