//! Watches of Services and slices: they only ring (PROX-21).

use alloc::rc::Rc;
use core::time::Duration;

use super::{
    keeper::{FIRST_PAUSE, LAST_PAUSE},
    reading::{ListedServices, ServiceReader, services_path, slices_path},
};
use crate::{
    agent::link_policy::LinkPolicy,
    api::MonoTime,
    kube::{DoorbellNews, WatchDoorbell, WatchOptions},
    logic::services::pause::GrowingPause,
};

/// Time that a watch lasts.
pub(super) const WATCH_TIME: Duration = Duration::from_secs(8 * 60);

/// Doorbells of Services and of slices.
pub(super) struct ServiceDoorbells {
    bells: [KeptDoorbell; 2],
    /// Cost of the link. While bytes cost money, no bookmarks are asked for.
    link_policy: Rc<dyn LinkPolicy>,
}

/// A doorbell and the version that its next watch begins with.
struct KeptDoorbell {
    bell: WatchDoorbell,
    version: String,
    started: MonoTime,
    /// Time of the next watch; `None`: one runs.
    due: Option<MonoTime>,
    /// Grows while watches end soon.
    pause: GrowingPause,
}

impl KeptDoorbell {
    async fn start_watch(&mut self, bookmarks: bool, now: MonoTime) {
        let options = WatchOptions {
            node: String::new(),
            resource_version: self.version.clone(),
            timeout: WATCH_TIME,
            bookmarks,
        };
        self.bell.start_watch(options).await;
        self.started = now;
        self.due = None;
    }
}

impl ServiceDoorbells {
    /// Opens both, with watches that are due.
    pub(super) fn open(
        reader: &ServiceReader,
        listed: &ListedServices,
        link_policy: &Rc<dyn LinkPolicy>,
        now: MonoTime,
    ) -> std::io::Result<Self> {
        let open = |path: &str, version: &str| -> std::io::Result<KeptDoorbell> {
            Ok(KeptDoorbell {
                bell: reader.reader.open_doorbell(path)?,
                version: version.to_owned(),
                started: now,
                due: Some(now),
                pause: GrowingPause::new(FIRST_PAUSE, LAST_PAUSE),
            })
        };
        let services = open(&services_path(), &listed.services_version)?;
        let slices = open(&slices_path(), &listed.slices_version)?;
        Ok(Self {
            bells: [services, slices],
            link_policy: Rc::clone(link_policy),
        })
    }

    /// Starts the watches that are due.
    pub(super) async fn start_due(&mut self, now: MonoTime) {
        for bell in &mut self.bells {
            if bell.due.is_some_and(|due| now >= due) {
                let bookmarks = !self.link_policy.is_metered();
                bell.start_watch(bookmarks, now).await;
            }
        }
    }

    /// Time of the next watch.
    pub(super) fn next_due(&self) -> Option<MonoTime> {
        self.bells.iter().filter_map(|bell| bell.due).min()
    }

    /// Waits for the next news. The number is that of the doorbell: 0 is that of Services.
    pub(super) async fn next_news(&self) -> (usize, DoorbellNews) {
        let [services, slices] = &self.bells;
        let services = async { (0, services.bell.next_news().await) };
        let slices = async { (1, slices.bell.next_news().await) };
        smol::future::or(services, slices).await
    }

    /// Notes a version that was seen.
    pub(super) fn note_version(&mut self, number: usize, version: &str) {
        if !version.is_empty() {
            version.clone_into(&mut self.bells[number].version);
        }
    }

    /// Notes the end of a watch whose successor goes on where it ended.
    pub(super) fn note_end(&mut self, number: usize, now: MonoTime) {
        let bell = &mut self.bells[number];
        bell.due = Some(now + bell.pause.take_after_watch(now - bell.started));
    }
}
