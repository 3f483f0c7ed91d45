//! Health of the sync loop: the runtime's status, on which it depends, and its own beat.
//!
//! Names and rules follow kubelet `runtime.go` and `syncLoop`.

use alloc::{borrow::ToOwned as _, format, string::String, vec::Vec};
use core::time::Duration;

use crate::api::{MonoTime, cri::RuntimeStatus};

use super::pleg::PlegUnhealthy;

/// A runtime status of this age means the runtime is down.
pub const STATUS_THRESHOLD: Duration = Duration::from_secs(30);
/// A loop that began its last iteration this long ago is unhealthy, unless the sync period is longer still.
pub const LOOP_THRESHOLD: Duration = Duration::from_secs(300);

/// Reason why no pod may be handled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeDown {
    /// The runtime has never reported its status, or too long ago.
    #[error("container runtime is down")]
    Silent,
    /// The runtime says that it is not ready.
    #[error("container runtime is not ready: {reason}: {message}")]
    NotReady {
        /// CamelCase.
        reason: String,
        /// Text of the runtime.
        message: String,
    },
    /// Relists do not succeed.
    #[error("PLEG is not healthy: {0}")]
    Pleg(PlegUnhealthy),
}

/// Last status of the runtime, and the decisions that follow from it.
#[derive(Clone, Debug, Default)]
pub struct RuntimeGate {
    last: Option<(MonoTime, RuntimeStatus)>,
    /// Time of the last status that was ready.
    ready_at: Option<MonoTime>,
}

impl RuntimeGate {
    /// Takes a successful status. A failed one is not handed over: the last one grows old.
    pub fn on_status(&mut self, status: RuntimeStatus, now: MonoTime) {
        if status.runtime_ready.ok {
            self.ready_at = Some(now);
        }
        self.last = Some((now, status));
    }

    /// Last status of the runtime, of any age.
    #[must_use]
    pub fn last_status(&self) -> Option<&RuntimeStatus> {
        self.last.as_ref().map(|(_, status)| status)
    }

    /// Last status of the runtime, if it is younger than [`STATUS_THRESHOLD`].
    #[must_use]
    pub fn fresh_status(&self, now: MonoTime) -> Option<&RuntimeStatus> {
        let (at, status) = self.last.as_ref()?;
        (now - *at < STATUS_THRESHOLD).then_some(status)
    }

    /// Reasons why the node is not ready, as far as the runtime and its network go: one text each, none if it is
    /// (NODE-20).
    #[must_use]
    pub fn ready_errors(&self, pleg: Result<(), PlegUnhealthy>, now: MonoTime) -> Vec<String> {
        let mut errors = Vec::new();
        match self.ready_at {
            None => {
                errors.push("container runtime status check may not have completed yet".to_owned())
            }
            Some(at) if now - at >= STATUS_THRESHOLD => {
                errors.push("container runtime is down".to_owned());
            }
            Some(_) => {}
        }
        if let Err(why) = pleg {
            errors.push(format!("PLEG is not healthy: {why}"));
        }
        let Some((_, status)) = &self.last else {
            errors.push("network state unknown".to_owned());
            return errors;
        };
        for (prefix, name, condition) in [
            ("", "RuntimeReady", &status.runtime_ready),
            ("network ", "NetworkReady", &status.network_ready),
        ] {
            if !condition.ok {
                errors.push(format!(
                    "container runtime {prefix}not ready: {name}=false reason:{} message:{}",
                    condition.reason, condition.message
                ));
            }
        }
        errors
    }

    /// Checks that pods may be handled.
    ///
    /// - Errors: the first cause; the loop consumes nothing.
    pub fn check_runtime_ready(
        &self,
        pleg: Result<(), PlegUnhealthy>,
        now: MonoTime,
    ) -> Result<(), RuntimeDown> {
        let status = self.fresh_status(now).ok_or(RuntimeDown::Silent)?;
        let ready = &status.runtime_ready;
        if !ready.ok {
            return Err(RuntimeDown::NotReady {
                reason: ready.reason.clone(),
                message: ready.message.clone(),
            });
        }
        pleg.map_err(RuntimeDown::Pleg)
    }

    /// Checks that pods may be handled at all. As [`RuntimeGate::check_runtime_ready`], but a runtime that is not
    /// ready and can still stop containers holds up no pod; [`RuntimeGate::start_error`] then says that nothing may start.
    ///
    /// - Errors: the first cause.
    pub fn check_loop_may_run(
        &self,
        pleg: Result<(), PlegUnhealthy>,
        now: MonoTime,
    ) -> Result<(), RuntimeDown> {
        match self.check_runtime_ready(pleg, now) {
            Err(RuntimeDown::NotReady { .. }) if self.can_stop_containers() => {
                pleg.map_err(RuntimeDown::Pleg)
            }
            other => other,
        }
    }

    fn can_stop_containers(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|(_, s)| s.can_stop_containers)
    }

    /// Reason why no container may start, if the runtime was not ready when it last reported.
    #[must_use]
    pub fn start_error(&self) -> Option<&str> {
        let (_, status) = self.last.as_ref()?;
        let ready = &status.runtime_ready;
        (!ready.ok).then_some(&ready.message)
    }

    /// Reason why pods that need a network may not start, if there is one. Never holds up the loop.
    #[must_use]
    pub fn network_error(&self) -> Option<&str> {
        match &self.last {
            None => Some("network state unknown"),
            Some((_, status)) if status.network_ready.ok => None,
            Some((_, status)) => Some(&status.network_ready.message),
        }
    }
}

/// Time of the loop's last beat.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopHealth(Option<MonoTime>);

impl LoopHealth {
    /// Notes that the loop moves. Call it before and after each iteration, not while iterations are held up.
    pub const fn record_beat(&mut self, now: MonoTime) {
        self.0 = Some(now);
    }

    /// Returns true if the loop moves. A loop that never ran counts as healthy.
    #[must_use]
    pub fn is_healthy(self, sync_frequency: Duration, now: MonoTime) -> bool {
        let threshold = LOOP_THRESHOLD.max(sync_frequency * 2);
        self.0.is_none_or(|last| now - last <= threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cri::RuntimeCondition;

    fn condition(ok: bool, reason: &str, message: &str) -> RuntimeCondition {
        RuntimeCondition {
            ok,
            reason: reason.into(),
            message: message.into(),
        }
    }

    fn status(runtime: bool, network: bool) -> RuntimeStatus {
        RuntimeStatus {
            runtime_ready: condition(runtime, "Why", "because"),
            network_ready: condition(network, "Net", "no network"),
            can_stop_containers: false,
        }
    }

    #[test]
    fn gate() {
        let not_ready = RuntimeDown::NotReady {
            reason: "Why".into(),
            message: "because".into(),
        };
        let never = PlegUnhealthy::Never;
        // LOOP-03
        for (name, said, pleg, now_ms, expected) in [
            ("nothing said", None, Ok(()), 1, Err(RuntimeDown::Silent)),
            ("well", Some(true), Ok(()), 29_999, Ok(())),
            ("old", Some(true), Ok(()), 30_000, Err(RuntimeDown::Silent)),
            ("not ready", Some(false), Ok(()), 1, Err(not_ready)),
            (
                "before the first relist",
                Some(true),
                Err(never),
                1,
                Err(RuntimeDown::Pleg(never)),
            ),
        ] {
            let mut gate = RuntimeGate::default();
            if let Some(ready) = said {
                gate.on_status(status(ready, false), MonoTime(0));
            }
            assert_eq!(
                gate.check_runtime_ready(pleg, MonoTime(now_ms)),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn a_runtime_that_can_stop_containers_starts_nothing_and_holds_up_nothing() {
        let mut gate = RuntimeGate::default();
        for (can_stop_containers, pleg, now_ms, passes) in [
            (false, Ok(()), 1, false),
            (true, Ok(()), 1, true),
            (true, Ok(()), 30_000, false),
            (true, Err(PlegUnhealthy::Never), 1, false),
        ] {
            let said = RuntimeStatus {
                can_stop_containers,
                ..status(false, true)
            };
            gate.on_status(said, MonoTime(0));
            let now = MonoTime(now_ms);
            assert_eq!(
                gate.check_loop_may_run(pleg, now).is_ok(),
                passes,
                "{now_ms}"
            );
            assert!(
                gate.check_runtime_ready(pleg, now).is_err(),
                "the node is not ready"
            );
            assert_eq!(gate.start_error(), Some("because"));
        }
        gate.on_status(status(true, true), MonoTime(0));
        assert_eq!(gate.start_error(), None);
    }

    #[test]
    fn why_the_node_is_not_ready() {
        let down = "container runtime is down";
        let unchecked = "container runtime status check may not have completed yet";
        let runtime = "container runtime not ready: RuntimeReady=false reason:Why message:because";
        let network =
            "container runtime network not ready: NetworkReady=false reason:Net message:no network";
        let pleg = format!("PLEG is not healthy: {}", PlegUnhealthy::Never);
        // NODE-20
        for (name, said, relisted, now_ms, want) in [
            ("well", vec![(true, true, 0)], Ok(()), 29_999, vec![]),
            (
                "nothing known",
                vec![],
                Err(PlegUnhealthy::Never),
                0,
                vec![unchecked, &pleg, "network state unknown"],
            ),
            (
                "never ready",
                vec![(false, true, 0)],
                Ok(()),
                1,
                vec![unchecked, runtime],
            ),
            ("silent", vec![(true, true, 0)], Ok(()), 30_000, vec![down]),
            (
                "not ready any more",
                vec![(true, true, 0), (false, true, 5_000)],
                Ok(()),
                6_000,
                vec![runtime],
            ),
            (
                "for long",
                vec![(true, true, 0), (false, false, 29_000)],
                Ok(()),
                30_000,
                vec![down, runtime, network],
            ),
            (
                "no network",
                vec![(true, false, 0)],
                Ok(()),
                1,
                vec![network],
            ),
        ] {
            let mut gate = RuntimeGate::default();
            for (ready, network, at) in said {
                gate.on_status(status(ready, network), MonoTime(at));
            }
            assert_eq!(
                gate.ready_errors(relisted, MonoTime(now_ms)),
                want,
                "{name}"
            );
        }
    }

    #[test]
    fn the_network_is_apart() {
        // LOOP-04
        let mut gate = RuntimeGate::default();
        assert_eq!(gate.network_error(), Some("network state unknown"));
        gate.on_status(status(true, false), MonoTime(0));
        assert_eq!(gate.network_error(), Some("no network"));
        assert_eq!(
            gate.check_runtime_ready(Ok(()), MonoTime(1)),
            Ok(()),
            "does not block"
        );
        gate.on_status(status(true, true), MonoTime(0));
        assert_eq!(gate.network_error(), None);
    }

    #[test]
    fn health() {
        // LOOP-05
        let minute = Duration::from_secs(60);
        let mut health = LoopHealth::default();
        assert!(health.is_healthy(minute, MonoTime(u64::MAX)), "no beat yet");
        health.record_beat(MonoTime(1000));
        for (sync_frequency, age_ms, healthy) in [
            (minute, 300_000, true),
            (minute, 300_001, false),
            (minute * 5, 600_000, true),
            (minute * 5, 600_001, false),
        ] {
            let now = MonoTime(1000 + age_ms);
            assert_eq!(health.is_healthy(sync_frequency, now), healthy, "{age_ms}");
        }
    }
}
