//! Lanes: fixed threads of our own for work that must block. The deciding thread never blocks.
//!
//! A lane is one thread, or a few, with a named stack size and a bounded queue. No lane waits for another.

use core::{any::Any, time::Duration};
use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use async_io::Timer;
use smol::{
    channel::{Sender, bounded},
    future,
};

/// Jobs that may wait in one lane; a producer that finds it full waits on the executor (see [`Lane::run_job`]).
pub const LANE_QUEUE: usize = 128;
/// Stack of a lane's thread in bytes; only pages once touched cost memory. Unpacking a layer takes well below 128 KiB.
/// The rest is for compressing a log: a compressor of 330 KiB is built on the stack, unless the optimizer avoids it.
pub const LANE_STACK_BYTES: usize = 1024 * 1024;

/// Time limit for files of the host (see [`Lane::run_host_file_job`]).
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Jobs that may run apart at a time. Their owners come and go; threads that hang stay.
const MAX_APART: usize = 256;

/// Result of a job. All jobs share this type, so that queue and answers are in the program once, not once for each job.
type JobAnswer = Box<dyn Any + Send>;

struct LaneJob {
    work: Box<dyn FnOnce() -> JobAnswer + Send>,
    reply: Sender<JobAnswer>,
}

/// Worker threads and their queue.
#[derive(Clone)]
pub struct Lane {
    /// `None`: jobs run where they are asked for.
    jobs: Option<Sender<LaneJob>>,
    /// Owners of the jobs that run apart.
    apart: JobOwners,
}

/// Owners of jobs that have not ended, in order.
type JobOwners = Arc<Mutex<BTreeSet<String>>>;

/// Reason why a job that ran apart has no result.
#[derive(Debug, thiserror::Error)]
pub enum HostFileJobError {
    /// The job still runs, or it was not begun: the owner's job before it, or too many jobs, run.
    #[error("files of the host do not answer: is the server of a network file system gone?")]
    NoAnswer,
    /// The system refuses a thread, or the job broke off.
    #[error("cannot look at files of the host on a thread")]
    Thread(#[source] io::Error),
}

/// A running job of an owner; dropping it makes room for the next.
struct OwnerSlot {
    owners: JobOwners,
    owner: String,
}

impl OwnerSlot {
    /// `None`: the owner has a job already, or there are too many.
    fn take_slot(owners: &JobOwners, owner: &str) -> Option<Self> {
        let mut all = owners.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = all.len() < MAX_APART && all.insert(owner.to_owned());
        is_first.then(|| Self {
            owners: Arc::clone(owners),
            owner: owner.to_owned(),
        })
    }
}

impl Drop for OwnerSlot {
    fn drop(&mut self) {
        let mut all = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.owner);
    }
}

impl Lane {
    /// Starts the lane's thread. Fails only if the system refuses a thread.
    pub fn start(name: &str) -> io::Result<Self> {
        Self::start_threads(name, 1, LANE_STACK_BYTES)
    }

    /// Starts a lane of several threads that share one queue: jobs begin in order and may overtake each other.
    pub fn start_threads(name: &str, threads: usize, stack_bytes: usize) -> io::Result<Self> {
        let (jobs, queue) = bounded::<LaneJob>(LANE_QUEUE);
        for _ in 0..threads {
            let queue = queue.clone();
            thread::Builder::new()
                .name(name.into())
                .stack_size(stack_bytes)
                .spawn(move || {
                    while let Ok(job) = queue.recv_blocking() {
                        // The caller may have gone: then the answer is not needed.
                        let _ = job.reply.try_send((job.work)());
                    }
                })?;
        }
        Ok(Self {
            jobs: Some(jobs),
            apart: JobOwners::default(),
        })
    }

    /// Runs `job` on the lane's thread and returns its result. Waits while the queue is full.
    /// Dropping the future does not stop a job that was queued.
    pub async fn run_job<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let Some(jobs) = &self.jobs else {
            return job();
        };
        let answer = queue_and_wait(jobs, Box::new(move || Box::new(job()))).await;
        *answer.downcast().expect("it is what the job came to")
    }

    /// Runs `job` on a thread of its own, which ends with it: for a job that may never end, because it touches files of the
    /// host whose server may be gone. The lane is not held up.
    ///
    /// - Shape: one such job for each `owner`, and no more than [`MAX_APART`] in all.
    /// - Errors: no answer within [`ANSWER_TIMEOUT`], or at once while the owner's job before, or too many, run. The job goes on:
    ///   what it does late must do no harm.
    pub async fn run_host_file_job<T: Send + 'static>(
        &self,
        owner: &str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostFileJobError> {
        if self.jobs.is_none() {
            return Ok(job());
        }
        let work = Box::new(move || Box::new(job()) as JobAnswer);
        let answer = run_within_limit(&self.apart, owner, ANSWER_TIMEOUT, work).await?;
        Ok(*answer.downcast().expect("it is what the job came to"))
    }
}

async fn run_within_limit(
    owners: &JobOwners,
    owner: &str,
    limit: Duration,
    work: Box<dyn FnOnce() -> JobAnswer + Send>,
) -> Result<JobAnswer, HostFileJobError> {
    let place = OwnerSlot::take_slot(owners, owner).ok_or(HostFileJobError::NoAnswer)?;
    let job = move || {
        let answer = work();
        // Before the answer is sent: the owner may ask again at once.
        drop(place);
        answer
    };
    let done = async {
        let done = run_on_fresh_thread("host-files", job).await;
        done.map_err(HostFileJobError::Thread)
    };
    let late = async {
        Timer::after(limit).await;
        Err(HostFileJobError::NoAnswer)
    };
    future::or(done, late).await
}

/// Queues a job for the threads that read `jobs`, and waits for its result.
async fn queue_and_wait(
    jobs: &Sender<LaneJob>,
    work: Box<dyn FnOnce() -> JobAnswer + Send>,
) -> JobAnswer {
    let (reply, answer) = bounded(1);
    jobs.send(LaneJob { work, reply })
        .await
        .expect("a lane's thread lives as long as the agent");
    answer.recv().await.expect("a lane answers every job")
}

/// A value that is worked on in a lane, a piece at a time, so that others get the lane in between.
pub struct OnLane<T> {
    value: T,
    lane: Lane,
}

impl<T: Send + 'static> OnLane<T> {
    /// Makes the value in the lane.
    pub async fn new(lane: &Lane, make: impl FnOnce() -> T + Send + 'static) -> Self {
        Self {
            value: lane.run_job(make).await,
            lane: lane.clone(),
        }
    }

    /// The value between two pieces.
    pub const fn get(&self) -> &T {
        &self.value
    }

    /// Does a piece of the work and comes back with its result. Dropping the future loses the value.
    pub async fn run_piece<R: Send + 'static>(
        self,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> (Self, R) {
        let Self { mut value, lane } = self;
        let done = lane.run_job(move || {
            let result = work(&mut value);
            (value, result)
        });
        let (value, result) = done.await;
        (Self { value, lane }, result)
    }
}

/// Runs `job` on a thread of its own that ends with it, for jobs that change the thread's namespaces, or may never end.
pub async fn run_on_fresh_thread<T: Send + 'static>(
    name: &str,
    job: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (reply, answer) = bounded(1);
    let handle = thread::Builder::new()
        .name(name.into())
        .stack_size(LANE_STACK_BYTES)
        .spawn(move || {
            let _ = reply.try_send(job());
        })?;
    let result = answer
        .recv()
        .await
        .map_err(|_| io::Error::other("thread ended without an answer"));
    drop(handle);
    result
}

#[cfg(test)]
mod testing {
    //! Lanes for tests.
    impl super::Lane {
        /// A lane without a thread: jobs run at once, where they are asked for. For tests that step through an executor.
        #[must_use]
        pub fn without_thread() -> Self {
            Self {
                jobs: None,
                apart: super::JobOwners::default(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_job_that_hangs_holds_up_its_owner_only() {
        smol::block_on(async {
            let lane = Lane::start("test").expect("a thread");
            let (server, hangs) = mpsc::channel::<()>();
            let limit = Duration::from_millis(20);
            let hanging = Box::new(move || Box::new(hangs.recv().is_ok()) as JobAnswer);
            let first = run_within_limit(&lane.apart, "a", limit, hanging).await;
            assert!(matches!(first, Err(HostFileJobError::NoAnswer)), "in time");
            // No second thread for it.
            let again = lane.run_host_file_job("a", || ()).await;
            assert!(matches!(again, Err(HostFileJobError::NoAnswer)), "at once");
            assert_eq!(
                lane.run_host_file_job("b", || 1).await.expect("another's"),
                1
            );
            assert_eq!(lane.run_job(|| 2).await, 2, "the lane goes on");
            server.send(()).expect("it waits");
            // Bounded: the thread ends by itself now.
            while !lane.apart.lock().expect("owners").is_empty() {
                thread::yield_now();
            }
            // The place is free again before the answer is there.
            for n in 0..100 {
                assert_eq!(
                    lane.run_host_file_job("a", move || n)
                        .await
                        .expect("answers"),
                    n
                );
            }
        });
    }

    #[test]
    fn no_more_hang_than_there_is_room_for() {
        let owners = JobOwners::default();
        let take = |n: usize| OwnerSlot::take_slot(&owners, &n.to_string());
        let mut all: Vec<_> = (0..MAX_APART).map(|n| take(n).expect("room")).collect();
        assert!(take(MAX_APART).is_none());
        all.pop();
        assert!(take(MAX_APART).is_some());
    }
}
