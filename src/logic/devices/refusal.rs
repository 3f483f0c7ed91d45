//! Why a pod does not get what it asks for, and what becomes of it then (DEV-07, DEV-13, DEV-38).

use alloc::{boxed::Box, format};
use core::{fmt, time::Duration};

use crate::admission::Rejection;

/// How long after the start of the agent pods wait for plugins, which are pods themselves (DEV-13).
const PLUGIN_START: Duration = Duration::from_secs(5 * 60);

/// Why a pod does not get what it asks for (DEV-07).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody ever offered the resource.
    Unregistered(Box<str>),
    /// None of its units is here.
    NoneHealthy(Box<str>),
    /// What the pod had is gone.
    NoLongerHealthy(Box<str>),
    /// Others hold them.
    TooFew {
        /// Resource.
        resource: Box<str>,
        /// Asked for.
        requested: u32,
        /// Free.
        available: u32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unregistered(r) => write!(f, "cannot allocate unregistered device {r}"),
            Self::NoneHealthy(r) => write!(
                f,
                "no healthy devices present; cannot allocate unhealthy devices {r}"
            ),
            Self::NoLongerHealthy(r) => write!(
                f,
                "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {r}"
            ),
            Self::TooFew {
                resource,
                requested,
                available,
            } => write!(
                f,
                "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
            ),
        }
    }
}

impl Refusal {
    /// What there is not enough of.
    #[must_use]
    pub fn resource(&self) -> &str {
        match self {
            Self::Unregistered(r) | Self::NoneHealthy(r) | Self::NoLongerHealthy(r) => r,
            Self::TooFew { resource, .. } => resource,
        }
    }

    /// As admission tells it.
    #[must_use]
    pub fn rejection(&self) -> Rejection {
        Rejection {
            reason: "UnexpectedAdmissionError".into(),
            message: format!("Allocate failed due to {self}, which is unexpected"),
        }
    }
}

/// What becomes of a pod that does not get what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is Pending, and asks again.
    Wait,
    /// It never runs.
    Refuse,
}

/// How a pod waits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Nobody would make it anew.
    pub is_static: bool,
    /// How long it has waited.
    pub waited: Duration,
    /// How long it waits as a rule.
    pub at_most: Duration,
    /// What it waits for is a plugin's, or may be.
    pub of_plugin: bool,
    /// How long after the start of the agent it came.
    pub came_after: Duration,
}

/// Whether the agent is so new that plugins that were there before it may yet come.
#[must_use]
pub fn plugins_may_come(since_start: Duration) -> bool {
    since_start < PLUGIN_START
}

/// Decides about a pod that does not get what it asks for (DEV-13, DEV-38): a static pod, which nobody would make anew, waits
/// for ever, others for a while, and for a plugin after the start of the agent for longer. For what nobody offers nobody waits,
/// but static pods where a plugin may come.
#[must_use]
pub fn judge(refusal: &Refusal, pod: Patience) -> Verdict {
    let start = PLUGIN_START.saturating_sub(pod.came_after);
    let at_most = match pod.of_plugin {
        true => pod.at_most.max(start),
        false => pod.at_most,
    };
    let waits = match refusal {
        Refusal::Unregistered(_) => pod.is_static && pod.of_plugin,
        Refusal::NoneHealthy(_) | Refusal::NoLongerHealthy(_) | Refusal::TooFew { .. } => {
            pod.is_static || pod.waited < at_most
        }
    };
    if waits {
        Verdict::Wait
    } else {
        Verdict::Refuse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: &str = "picolet/serial";

    #[test]
    fn who_waits() {
        // DEV-13 DEV-38
        let (s, wait) = (Duration::from_secs, Duration::from_secs(120));
        let few = Refusal::TooFew {
            resource: R.into(),
            requested: 1,
            available: 0,
        };
        let none = Refusal::NoneHealthy(R.into());
        let unknown = Refusal::Unregistered(R.into());
        for (refusal, is_static, waited, verdict) in [
            (&none, false, s(0), Verdict::Wait),
            (&none, false, s(119), Verdict::Wait),
            (&none, false, s(120), Verdict::Refuse),
            (&few, false, s(0), Verdict::Wait),
            (&few, false, s(120), Verdict::Refuse),
            (&few, true, s(9999), Verdict::Wait),
            (&none, true, s(9999), Verdict::Wait),
            (&unknown, true, s(0), Verdict::Refuse),
        ] {
            let pod = Patience {
                is_static,
                waited,
                at_most: wait,
                of_plugin: false,
                came_after: s(0),
            };
            assert_eq!(judge(refusal, pod), verdict);
        }
    }

    #[test]
    fn who_waits_for_a_plugin() {
        // DEV-05 DEV-13
        let s = Duration::from_secs;
        let none = Refusal::NoneHealthy(R.into());
        let unknown = Refusal::Unregistered(R.into());
        for (refusal, is_static, came_after, waited, verdict) in [
            // Five minutes after the start, or two minutes after the pod came.
            (&none, false, s(10), s(289), Verdict::Wait),
            (&none, false, s(10), s(290), Verdict::Refuse),
            (&none, false, s(400), s(119), Verdict::Wait),
            (&none, false, s(400), s(120), Verdict::Refuse),
            (&none, true, s(400), s(9999), Verdict::Wait),
            (&unknown, true, s(400), s(9999), Verdict::Wait),
            (&unknown, false, s(0), s(0), Verdict::Refuse),
        ] {
            let pod = Patience {
                is_static,
                waited,
                at_most: s(120),
                of_plugin: true,
                came_after,
            };
            assert_eq!(judge(refusal, pod), verdict, "{refusal:?} {pod:?}");
        }
    }
}
