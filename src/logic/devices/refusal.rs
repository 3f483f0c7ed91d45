//! Reasons why a pod does not get the devices that it requests, and the verdict on it (DEV-07, DEV-13, DEV-38).

use alloc::{boxed::Box, format};
use core::{fmt, time::Duration};

use crate::admission::Rejection;

/// Time after the start of the agent in which pods wait for plugins, which run in pods themselves (DEV-13).
const PLUGIN_START: Duration = Duration::from_secs(5 * 60);

/// Reason why a pod does not get the devices that it requests (DEV-07).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceRefusal {
    /// No configuration and no plugin has offered the resource.
    Unregistered(Box<str>),
    /// No unit of the resource is here.
    NoneHealthy(Box<str>),
    /// A unit that the pod had is gone.
    NoLongerHealthy(Box<str>),
    /// Other pods hold the units.
    TooFew {
        /// Resource.
        resource: Box<str>,
        /// Asked for.
        requested: u32,
        /// Free.
        available: u32,
    },
}

impl fmt::Display for DeviceRefusal {
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

impl DeviceRefusal {
    /// The resource that is missing.
    #[must_use]
    pub fn missing_resource(&self) -> &str {
        match self {
            Self::Unregistered(r) | Self::NoneHealthy(r) | Self::NoLongerHealthy(r) => r,
            Self::TooFew { resource, .. } => resource,
        }
    }

    /// Rejection that admission reports for the pod.
    #[must_use]
    pub fn rejection(&self) -> Rejection {
        Rejection {
            reason: "UnexpectedAdmissionError".into(),
            message: format!("Allocate failed due to {self}, which is unexpected"),
        }
    }
}

/// Decision about a pod that does not get the devices that it requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceWaitVerdict {
    /// The pod stays Pending and tries again.
    Wait,
    /// The pod is rejected and never runs.
    Refuse,
}

/// Facts about a waiting pod that decide how long it may wait.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWaitFacts {
    /// Set for a static pod: no controller would replace it.
    pub is_static: bool,
    /// Time that the pod has waited.
    pub waited: Duration,
    /// Longest wait as a rule.
    pub at_most: Duration,
    /// Set if the missing resource is a plugin's, or may be.
    pub of_plugin: bool,
    /// Time from the start of the agent to the pod's arrival.
    pub came_after: Duration,
}

/// Returns true if the agent started so recently that plugins of the time before may yet register again.
#[must_use]
pub fn plugins_may_come(since_start: Duration) -> bool {
    since_start < PLUGIN_START
}

/// Decides about a pod that does not get the devices that it requests (DEV-13, DEV-38). A static pod waits for ever,
/// since no controller would replace it. Other pods wait for a while, and longer for a plugin's resource soon after the
/// start of the agent. For a resource that is not offered only static pods wait, and only if a plugin may offer it.
#[must_use]
pub fn judge_refusal(refusal: &DeviceRefusal, pod: DeviceWaitFacts) -> DeviceWaitVerdict {
    let start = PLUGIN_START.saturating_sub(pod.came_after);
    let at_most = match pod.of_plugin {
        true => pod.at_most.max(start),
        false => pod.at_most,
    };
    let waits = match refusal {
        DeviceRefusal::Unregistered(_) => pod.is_static && pod.of_plugin,
        DeviceRefusal::NoneHealthy(_)
        | DeviceRefusal::NoLongerHealthy(_)
        | DeviceRefusal::TooFew { .. } => pod.is_static || pod.waited < at_most,
    };
    if waits {
        DeviceWaitVerdict::Wait
    } else {
        DeviceWaitVerdict::Refuse
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
        let few = DeviceRefusal::TooFew {
            resource: R.into(),
            requested: 1,
            available: 0,
        };
        let none = DeviceRefusal::NoneHealthy(R.into());
        let unknown = DeviceRefusal::Unregistered(R.into());
        for (refusal, is_static, waited, verdict) in [
            (&none, false, s(0), DeviceWaitVerdict::Wait),
            (&none, false, s(119), DeviceWaitVerdict::Wait),
            (&none, false, s(120), DeviceWaitVerdict::Refuse),
            (&few, false, s(0), DeviceWaitVerdict::Wait),
            (&few, false, s(120), DeviceWaitVerdict::Refuse),
            (&few, true, s(9999), DeviceWaitVerdict::Wait),
            (&none, true, s(9999), DeviceWaitVerdict::Wait),
            (&unknown, true, s(0), DeviceWaitVerdict::Refuse),
        ] {
            let pod = DeviceWaitFacts {
                is_static,
                waited,
                at_most: wait,
                of_plugin: false,
                came_after: s(0),
            };
            assert_eq!(judge_refusal(refusal, pod), verdict);
        }
    }

    #[test]
    fn who_waits_for_a_plugin() {
        // DEV-05 DEV-13
        let s = Duration::from_secs;
        let none = DeviceRefusal::NoneHealthy(R.into());
        let unknown = DeviceRefusal::Unregistered(R.into());
        for (refusal, is_static, came_after, waited, verdict) in [
            // Five minutes after the start, or two minutes after the pod came.
            (&none, false, s(10), s(289), DeviceWaitVerdict::Wait),
            (&none, false, s(10), s(290), DeviceWaitVerdict::Refuse),
            (&none, false, s(400), s(119), DeviceWaitVerdict::Wait),
            (&none, false, s(400), s(120), DeviceWaitVerdict::Refuse),
            (&none, true, s(400), s(9999), DeviceWaitVerdict::Wait),
            (&unknown, true, s(400), s(9999), DeviceWaitVerdict::Wait),
            (&unknown, false, s(0), s(0), DeviceWaitVerdict::Refuse),
        ] {
            let pod = DeviceWaitFacts {
                is_static,
                waited,
                at_most: s(120),
                of_plugin: true,
                came_after,
            };
            assert_eq!(judge_refusal(refusal, pod), verdict, "{refusal:?} {pod:?}");
        }
    }
}
