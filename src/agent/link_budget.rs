//! The budget of the link (`picolet.link.dailyBytes`): asked by pulls on their threads, by the tunnel and by polls; shown to
//! people; kept in `link-budget.json`. What is decided is [`DownloadBudget`]'s. There is none unless it is configured.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::{
    clock::Clock,
    complaints::Complaints,
    link_policy::{DeferredPull, PullBudget},
    record,
    times::ClockCertainty,
};
use crate::{
    api::{
        MonoTime, PodUid, WallTime,
        link::{LinkBytes, LinkClass, PullUrgency},
        node::NodeCondition,
    },
    image::{
        ImageReference,
        pull::{FetchGate, LinkBudgetRefusal},
    },
    logic::link_budget::{
        BudgetMoment, DeferralEnd, DownloadBudget, KeptBudget, LinkBudgetSettings,
        is_wall_clock_usable,
    },
    net::meter,
    sys::{clock, file, lane::Lane},
};

/// Name of the record in the root directory.
const FILE: &str = "link-budget.json";
/// Version of its form.
const VERSION: u32 = 1;
/// Bytes read of it.
const MAX_BYTES: u64 = 64 * 1024;
/// Time between two writes of it: a power cut forgets at most what was used in so long.
const WRITTEN_EVERY: Duration = Duration::from_secs(6 * 3600);
/// Pulls that wait, at most; a further one asks its registry each time.
const MAX_WAITING: usize = 512;
/// Name of the condition of `get node`.
const CONDITION: &str = "LinkBudget";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LinkBudgetFile {
    v: u32,
    #[serde(default)]
    day: Option<i64>,
    used: u64,
    /// Time that the agent was up on that day, seconds.
    #[serde(default)]
    elapsed_s: u64,
    bytes: LinkBytes,
}

/// A pull that waits.
#[derive(Clone, Debug)]
struct WaitingPull {
    uid: PodUid,
    reference: String,
    needs: Option<u64>,
    until: DeferralEnd,
    /// Text that people were told.
    says: String,
}

#[derive(Debug)]
struct LinkBudgetState {
    budget: DownloadBudget,
    /// Images whose pulls are not of normal urgency, and how many pods want each.
    urgent: Vec<(String, PullUrgency, u32)>,
    /// At most [`MAX_WAITING`].
    waiting: Vec<WaitingPull>,
    /// Last refusal of an image: bytes that are missing, and the time until which nobody asks again; the tag may name a
    /// smaller image by then. At most [`MAX_WAITING`].
    needs: Vec<(String, u64, MonoTime)>,
}

impl LinkBudgetState {
    fn pull_urgency(&self, key: &str) -> PullUrgency {
        let asked = self.urgent.iter().find(|(known, ..)| known == key);
        asked.map_or_else(PullUrgency::default, |(_, urgency, _)| *urgency)
    }

    fn missing_bytes(&self, key: &str, now: MonoTime) -> Option<u64> {
        let mut known = self.needs.iter();
        let known = known.find(|(known, _, until)| known == key && *until > now);
        known.map(|(_, needs, _)| *needs)
    }
}

/// See the module.
pub(super) struct LinkBudget {
    state: Mutex<LinkBudgetState>,
    now: Box<dyn Fn() -> BudgetMoment + Send + Sync>,
    /// Set if the wall clock was right in this boot, by the one who watches it.
    pub(super) certainty: ClockCertainty,
}

/// Reads the machine's clocks. `synchronized`: the kernel's word on the wall clock, if there is one.
fn read_budget_clocks(certainty: &ClockCertainty, synchronized: Option<bool>) -> BudgetMoment {
    BudgetMoment {
        wall: is_wall_clock_usable(certainty.is_certain(), synchronized).then(clock::wall_now),
        up: clock::mono_now(),
        counted: meter::counted_bytes().total_bytes(),
    }
}

impl LinkBudget {
    /// Goes on where the record in `root` ends. Blocking, and brief.
    pub(super) fn open(settings: LinkBudgetSettings, root: &Path) -> Self {
        let record = read_budget_file(&root.join(FILE)).unwrap_or_else(|e| {
            log::warn!("cannot read how much of the link's budget was used: {e}");
            None
        });
        let kept = record.map_or_else(KeptBudget::default, |record| {
            for (class, bytes) in LinkClass::ALL.into_iter().zip(record.bytes.0) {
                meter::add_bytes(class, bytes);
            }
            KeptBudget {
                day: record.day,
                used: record.used,
                elapsed: Duration::from_secs(record.elapsed_s),
            }
        });
        let certainty = ClockCertainty::default();
        let known = certainty.clone();
        let now = move || read_budget_clocks(&known, clock::is_synchronized());
        Self {
            certainty,
            ..Self::from_record(settings, kept, Box::new(now))
        }
    }

    pub(super) fn from_record(
        settings: LinkBudgetSettings,
        kept: KeptBudget,
        now: Box<dyn Fn() -> BudgetMoment + Send + Sync>,
    ) -> Self {
        Self {
            state: Mutex::new(LinkBudgetState {
                budget: DownloadBudget::new(settings, kept, now()),
                urgent: Vec::new(),
                waiting: Vec::new(),
                needs: Vec::new(),
            }),
            now,
            certainty: ClockCertainty::default(),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, LinkBudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the bytes of the day are used up.
    pub(super) fn is_spent(&self) -> bool {
        self.lock_state().budget.is_spent((self.now)())
    }

    /// State of the budget, for people; true if images wait.
    pub(super) fn describe_budget(&self) -> (String, bool) {
        self.lock_state().budget.describe_budget((self.now)())
    }

    /// Condition of `get node` for the budget.
    pub(super) fn budget_condition(&self, now: WallTime) -> NodeCondition {
        let (says, waits) = self.describe_budget();
        let (status, reason) = match (waits, self.is_spent()) {
            (false, _) => ("True", "BytesLeft"),
            (true, false) => ("False", "ImagesWait"),
            (true, true) => ("False", "Spent"),
        };
        NodeCondition {
            kind: CONDITION.into(),
            status: status.into(),
            last_heartbeat_time: Some(now.truncated_to_second()),
            last_transition_time: None,
            reason: reason.into(),
            message: says,
        }
    }

    /// Writes the record. Blocking.
    pub(super) fn save_budget(&self, root: &Path) -> io::Result<()> {
        let KeptBudget { day, used, elapsed } =
            self.lock_state().budget.state_to_keep((self.now)());
        let record = LinkBudgetFile {
            v: VERSION,
            day,
            used,
            elapsed_s: elapsed.as_secs(),
            bytes: meter::counted_bytes(),
        };
        let text = serde_json::to_vec(&record)?;
        file::write_atomic(&root.join(FILE), &text, 0o600, true)
    }

    /// Writes it now and then, for the agent's life.
    pub(super) async fn save_periodically(
        self: Arc<Self>,
        root: PathBuf,
        clock: Rc<dyn Clock>,
        disk: Lane,
        complaints: Rc<Complaints>,
    ) {
        loop {
            clock.sleep_until(clock.now() + WRITTEN_EVERY).await;
            let (this, at) = (Arc::clone(&self), root.clone());
            if let Err(e) = disk.run_job(move || this.save_budget(&at)).await {
                complaints.complain(&format!("cannot store the link's budget: {e}"));
            }
        }
    }
}

impl FetchGate for LinkBudget {
    fn admit_fetch(&self, reference: &ImageReference, needs: u64) -> Result<(), LinkBudgetRefusal> {
        let now = (self.now)();
        let mut state = self.lock_state();
        let key = reference.to_string();
        let urgency = state.pull_urgency(&key);
        let admitted = state.budget.admit_download(Some(needs), urgency, now);
        let old = |(known, _, until): &(String, u64, MonoTime)| *known == key || *until <= now.up;
        state.needs.retain(|known| !old(known));
        if let Err(deferral) = &admitted {
            if state.needs.len() >= MAX_WAITING {
                state.needs.clear();
            }
            let until = now.up + deferral.after;
            state.needs.push((key, needs, until));
        }
        admitted.map_err(|deferral| LinkBudgetRefusal(deferral.to_string()))
    }

    fn may_continue_fetch(&self, reference: &ImageReference) -> Result<(), LinkBudgetRefusal> {
        let now = (self.now)();
        let mut state = self.lock_state();
        let urgency = state.pull_urgency(&reference.to_string());
        let goes_on = state.budget.check_continue(urgency, now);
        goes_on.map_err(|deferral| LinkBudgetRefusal(deferral.to_string()))
    }

    fn record_fetch_end(&self, needs: u64) {
        self.lock_state()
            .budget
            .finish_download(needs, (self.now)());
    }
}

impl PullBudget for LinkBudget {
    fn may_begin_pull(
        &self,
        uid: &PodUid,
        reference: &str,
        is_here: bool,
        urgency: PullUrgency,
    ) -> Result<(), DeferredPull> {
        let now = (self.now)();
        let mut state = self.lock_state();
        let needs = state.missing_bytes(&image_key(reference), now.up);
        let needs = if is_here { needs.or(Some(0)) } else { needs };
        let is_it = |w: &WaitingPull| w.uid == *uid && w.reference == reference;
        // Only asked: the pull itself is admitted when it knows what is missing.
        match state.budget.check_download(needs, urgency, now) {
            Ok(()) => {
                state.waiting.retain(|waiting| !is_it(waiting));
                Ok(())
            }
            Err(deferral) => {
                // What is left changes with each heartbeat, which is no news.
                if let Some(known) = state.waiting.iter().find(|waiting| is_it(waiting))
                    && known.until == deferral.until
                    && known.needs == needs
                {
                    return Err(DeferredPull {
                        says: known.says.clone(),
                        is_news: false,
                        after: deferral.after,
                    });
                }
                let says = deferral.to_string();
                state.waiting.retain(|waiting| !is_it(waiting));
                if state.waiting.len() >= MAX_WAITING {
                    state.waiting.clear();
                }
                let waiting = WaitingPull {
                    uid: uid.clone(),
                    reference: reference.to_owned(),
                    needs,
                    until: deferral.until,
                    says: says.clone(),
                };
                state.waiting.push(waiting);
                Err(DeferredPull {
                    says,
                    is_news: true,
                    after: deferral.after,
                })
            }
        }
    }

    fn begin_urgent(&self, reference: &str, urgency: PullUrgency) {
        let key = image_key(reference);
        let mut state = self.lock_state();
        let mut known = state.urgent.iter_mut();
        match known.find(|(known, ..)| *known == key) {
            Some((_, highest, count)) => {
                *highest = urgency.max(*highest);
                *count += 1;
            }
            None => state.urgent.push((key, urgency, 1)),
        }
    }

    fn end_urgent(&self, reference: &str) {
        let key = image_key(reference);
        let mut state = self.lock_state();
        if let Some(at) = state.urgent.iter().position(|(known, ..)| *known == key) {
            state.urgent[at].2 -= 1;
            if state.urgent[at].2 == 0 {
                state.urgent.swap_remove(at);
            }
        }
    }
}

/// Short names and whole ones are the same image.
fn image_key(reference: &str) -> String {
    ImageReference::parse(reference)
        .map_or_else(|_| reference.to_owned(), |parsed| parsed.to_string())
}

fn read_budget_file(path: &Path) -> io::Result<Option<LinkBudgetFile>> {
    match record::read_record::<LinkBudgetFile>(path, MAX_BYTES)? {
        Some(record) if record.v != VERSION => {
            Err(io::Error::other(format!("its version is {}", record.v)))
        }
        record => Ok(record),
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use super::*;
    use crate::{
        agent::{
            link_policy::UrgentPull,
            tests::world::{Hands, TestClock},
            times::DateCorrector,
        },
        logic::clock_history::ClockObservation,
        testing::TestDir,
    };

    /// 2026-11-26T00:00:00Z.
    const MIDNIGHT: i64 = 1_795_651_200;

    #[derive(Default)]
    struct Moment {
        second: AtomicI64,
        counted: AtomicU64,
    }

    fn budget(daily_bytes: u64, kept: KeptBudget) -> (Arc<Moment>, LinkBudget) {
        let moment = Arc::new(Moment::default());
        let read = Arc::clone(&moment);
        let settings = LinkBudgetSettings {
            daily_bytes,
            pull_window: None,
        };
        let now = move || {
            let second = read.second.load(Ordering::Relaxed);
            BudgetMoment {
                wall: Some(WallTime::from_unix_seconds(MIDNIGHT + second)),
                up: MonoTime(u64::try_from(second).expect("later") * 1000),
                counted: read.counted.load(Ordering::Relaxed),
            }
        };
        (
            moment,
            LinkBudget::from_record(settings, kept, Box::new(now)),
        )
    }

    #[test]
    fn a_pull_waits_is_told_once_and_goes_on_with_the_day() {
        // METER-04
        let (moment, budget) = budget(1000, KeptBudget::default());
        let (uid, image) = (PodUid::from("u"), "reg.example/a:1");
        let parsed = ImageReference::parse(image).expect("a reference");
        let begins = || budget.may_begin_pull(&uid, image, false, PullUrgency::Normal);
        moment.counted.store(300, Ordering::Relaxed);
        // Its size is known only after its manifest was read.
        assert_eq!(begins(), Ok(()));
        let why = budget.admit_fetch(&parsed, 600).expect_err("too much").0;
        assert!(why.contains("needs 600B, 500B of 800B are left"), "{why}");
        let told = begins().expect_err("it waits");
        assert_eq!((told.says, told.is_news), (why.clone(), true));
        // No registry is asked, nor anybody told, while that does not change.
        moment.counted.store(310, Ordering::Relaxed);
        let again = begins().expect_err("it waits");
        assert_eq!((again.says, again.is_news), (why, false));
        // A critical pod has the whole day.
        assert_eq!(
            budget.may_begin_pull(&uid, image, false, PullUrgency::Critical),
            Ok(())
        );
        let wants = UrgentPull::begin(&budget, "reg.example/a:1", PullUrgency::Critical);
        assert_eq!(budget.admit_fetch(&parsed, 600), Ok(()));
        budget.record_fetch_end(600);
        drop(wants);
        assert!(budget.admit_fetch(&parsed, 600).is_err());
        moment.second.store(24 * 3600, Ordering::Relaxed);
        assert_eq!(begins(), Ok(()));
        assert_eq!(budget.admit_fetch(&parsed, 600), Ok(()));
    }

    #[test]
    fn what_is_too_large_for_a_day_is_asked_for_once_a_day() {
        // METER-04
        let (moment, budget) = budget(1000, KeptBudget::default());
        let (uid, image) = (PodUid::from("u"), "reg.example/a:1");
        let parsed = ImageReference::parse(image).expect("a reference");
        let begins = || budget.may_begin_pull(&uid, image, false, PullUrgency::Normal);
        moment.second.store(3600, Ordering::Relaxed);
        assert!(budget.admit_fetch(&parsed, 5000).is_err());
        moment.second.store(24 * 3600 - 1, Ordering::Relaxed);
        assert!(begins().is_err());
        // The tag may name a smaller one by now.
        moment.second.store(24 * 3600, Ordering::Relaxed);
        assert_eq!(begins(), Ok(()));
        assert!(budget.admit_fetch(&parsed, 5000).is_err());
        assert!(begins().is_err());
    }

    #[test]
    fn what_the_operator_wants_now() {
        // METER-04
        let (moment, budget) = budget(1000, KeptBudget::default());
        moment.counted.store(2000, Ordering::Relaxed);
        let image = ImageReference::parse("a:1").expect("a reference");
        assert!(budget.may_continue_fetch(&image).is_err() && budget.is_spent());
        let wants = UrgentPull::begin(&budget, "a:1", PullUrgency::Now);
        let others = UrgentPull::begin(&budget, "a:1", PullUrgency::Critical);
        assert_eq!(budget.admit_fetch(&image, 5000), Ok(()));
        assert_eq!(budget.may_continue_fetch(&image), Ok(()));
        drop(wants);
        drop(others);
        assert!(budget.may_continue_fetch(&image).is_err());
        let shown = budget.budget_condition(WallTime::from_unix_seconds(MIDNIGHT));
        assert_eq!((&*shown.status, &*shown.reason), ("False", "Spent"));
    }

    #[test]
    fn a_clock_that_was_right_counts_on() {
        // TIME-06
        let mut world = Hands::default();
        let certainty = ClockCertainty::default();
        let scratch = TestDir::new("link-budget");
        let times = |world: Hands, certainty: &ClockCertainty| {
            let clock = Rc::new(TestClock(Rc::new(world)));
            DateCorrector::restore(clock, &scratch.0, "boot", certainty.clone())
        };
        let is_dated = |certainty: &ClockCertainty, says: Option<bool>| {
            read_budget_clocks(certainty, says).wall.is_some()
        };
        // Nobody keeps it right yet.
        world.set_wrong(true);
        let before = times(world, &certainty);
        assert_eq!(before.observe_clocks(MonoTime(1000)), ClockObservation::Set);
        assert!(!is_dated(&certainty, Some(false)));
        assert!(is_dated(&certainty, Some(true)) && is_dated(&certainty, None));
        // Somebody did, once.
        world = Hands::default();
        let once = times(world, &certainty);
        assert_eq!(once.observe_clocks(MonoTime(2000)), ClockObservation::Right);
        for says in [Some(false), Some(true), None] {
            assert!(is_dated(&certainty, says), "{says:?}");
        }
        // The next agent of this boot knows it, one of the next boot does not.
        once.make_history_file().save_history(&scratch.0);
        let next = ClockCertainty::default();
        let lost = Hands::default();
        lost.set_wrong(true);
        let _next = times(lost, &next);
        assert!(is_dated(&next, Some(false)));
        let (other, clock) = (ClockCertainty::default(), Rc::new(Hands::default()));
        let clock = Rc::new(TestClock(clock));
        let _other = DateCorrector::restore(clock, &scratch.0, "another", other.clone());
        assert!(!is_dated(&other, Some(false)));
    }

    #[test]
    fn the_day_outlives_the_agent() {
        // METER-01
        let scratch = TestDir::new("link-budget");
        let root = scratch.join("");
        assert!(
            read_budget_file(&root.join(FILE))
                .expect("none yet")
                .is_none()
        );
        let (moment, budget) = budget(
            1000,
            KeptBudget {
                day: Some(MIDNIGHT / 86_400),
                used: 700,
                elapsed: Duration::from_secs(60),
            },
        );
        moment.counted.store(50, Ordering::Relaxed);
        moment.second.store(7, Ordering::Relaxed);
        budget.save_budget(&root).expect("written");
        let record = read_budget_file(&root.join(FILE))
            .expect("read")
            .expect("a record");
        assert_eq!((record.day, record.used), (Some(MIDNIGHT / 86_400), 750));
        assert_eq!(record.elapsed_s, 67);
        for (text, is_read) in [
            ("", false),
            ("{", false),
            (r#"{"v":2,"used":0,"bytes":[]}"#, false),
        ] {
            std::fs::write(root.join(FILE), text).expect("written");
            assert_eq!(
                read_budget_file(&root.join(FILE)).is_ok(),
                is_read,
                "{text}"
            );
        }
    }
}
