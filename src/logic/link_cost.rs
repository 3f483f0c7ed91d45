//! Cost of the link: if its bytes cost money now (METER-06), and the limit of a session because of that (METER-05).
//!
//! Bytes cost money always, or while the way to the apiserver leaves by one of some interfaces. A caller asks before
//! each use; no answer is kept.

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use crate::api::{MonoTime, names::matches_glob};

/// Names of interfaces at most.
pub const MAX_INTERFACES: usize = 16;
/// Bytes of the name of an interface (`IFNAMSIZ` without its zero).
const MAX_NAME_BYTES: usize = 15;
/// Time after which the way is looked up again.
const LOOK: Duration = Duration::from_secs(1);

/// Settings of the link, from the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// Bytes cost money, whatever the way.
    pub always: bool,
    /// Interfaces by which the way costs money: names, with `*` and `?`. At most [`MAX_INTERFACES`].
    pub interfaces: Vec<String>,
    /// A session of logs, exec, attach or port forwarding ends after so many bytes.
    pub stream_bytes: Option<u64>,
}

/// Returns the reason why `name` is neither the name of an interface nor a pattern of names. Source: Linux,
/// `dev_valid_name`.
#[must_use]
pub fn interface_name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("is empty, must be the name of an interface");
    }
    if name.len() > MAX_NAME_BYTES {
        return Some("is longer than 15 bytes, as no interface's name is");
    }
    let is_wrong = |c: char| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control();
    let is_none = matches!(name, "." | "..") || name.contains(is_wrong);
    is_none.then_some("is no name of an interface")
}

/// See the module.
#[derive(Clone, Debug)]
pub struct LinkMetering {
    settings: LinkSettings,
    looked: Option<MonoTime>,
    /// Interface by which the way left when it was last found.
    interface: Option<String>,
    is_metered: bool,
}

impl LinkMetering {
    /// Makes the cost of a link whose way is not known yet: until then no interface costs money.
    #[must_use]
    pub const fn new(settings: LinkSettings) -> Self {
        Self {
            is_metered: settings.always,
            settings,
            looked: None,
            interface: None,
        }
    }

    /// Returns true if the cost depends on the way.
    #[must_use]
    pub const fn depends_on_interface(&self) -> bool {
        !self.settings.interfaces.is_empty()
    }

    /// Returns true if the way must be looked up before [`LinkMetering::is_metered`] is asked.
    #[must_use]
    pub fn is_lookup_due(&self, now: MonoTime) -> bool {
        self.depends_on_interface() && self.looked.is_none_or(|at| now >= at + LOOK)
    }

    /// Takes in the interface by which the way leaves; `None`: there is no way now, and the last known one stays.
    /// Returns true if the interface has changed.
    pub fn record_interface(&mut self, interface: Option<String>, now: MonoTime) -> bool {
        self.looked = Some(now);
        if interface.is_none() || interface == self.interface {
            return false;
        }
        let name = interface.as_deref().unwrap_or_default();
        let mut patterns = self.settings.interfaces.iter();
        self.is_metered =
            self.settings.always || patterns.any(|pattern| matches_glob(pattern, name));
        self.interface = interface;
        true
    }

    /// Returns true if bytes cost money.
    #[must_use]
    pub const fn is_metered(&self) -> bool {
        self.is_metered
    }

    /// Interface by which the way leaves, if it was looked up and found.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }

    /// Bytes after which a session ends now. Where the cost depends on the way, a session ends only while bytes cost
    /// money.
    #[must_use]
    pub const fn stream_limit_bytes(&self) -> Option<u64> {
        match self.depends_on_interface() && !self.is_metered {
            true => None,
            false => self.settings.stream_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::*;

    fn cost(always: bool, interfaces: &[&str]) -> LinkMetering {
        LinkMetering::new(LinkSettings {
            always,
            interfaces: interfaces.iter().map(|&name| name.to_owned()).collect(),
            stream_bytes: Some(9),
        })
    }

    #[test]
    fn the_way_decides() {
        // METER-05 METER-06
        let by = |interfaces: &[&str], always, name: Option<&str>| {
            let mut cost = cost(always, interfaces);
            cost.record_interface(name.map(ToOwned::to_owned), MonoTime(1));
            (cost.is_metered(), cost.stream_limit_bytes())
        };
        for (interfaces, always, name, is_metered, stream_bytes) in [
            (&["wwan0"][..], false, Some("wwan0"), true, Some(9)),
            (&["wwan0"], false, Some("wwan1"), false, None),
            (&["wwan0"], false, Some("eth0"), false, None),
            (&["eth9", "wwan*"], false, Some("wwan0"), true, Some(9)),
            (&["ppp?"], false, Some("ppp0"), true, Some(9)),
            (&["ppp?"], false, Some("ppp"), false, None),
            (&["*"], false, Some("eth0"), true, Some(9)),
            // Without a way, bytes cost nothing.
            (&["wwan0"], false, None, false, None),
            (&["wwan0"], true, Some("eth0"), true, Some(9)),
            (&[], true, None, true, Some(9)),
            // A limit alone always counts.
            (&[], false, None, false, Some(9)),
        ] {
            let got = by(interfaces, always, name);
            assert_eq!(got, (is_metered, stream_bytes), "{interfaces:?} {name:?}");
        }
    }

    #[test]
    fn a_change_is_seen_and_no_way_changes_nothing() {
        // METER-06
        let mut fixed = cost(false, &[]);
        assert!(!fixed.is_lookup_due(MonoTime(0)) && !fixed.depends_on_interface());
        assert!(!fixed.is_metered());
        let mut cost = cost(false, &["wwan0"]);
        assert!(cost.is_lookup_due(MonoTime(0)));
        let on = |name: &str| Some(name.to_owned());
        for (ms, interface, is_news, is_metered) in [
            (1000, on("eth0"), true, false),
            (2000, on("eth0"), false, false),
            (3000, on("wwan0"), true, true),
            (4000, None, false, true),
            (5000, on("wwan0"), false, true),
            (6000, on("eth0"), true, false),
            (7000, None, false, false),
        ] {
            assert!(cost.is_lookup_due(MonoTime(ms)), "{ms}");
            assert_eq!(
                cost.record_interface(interface, MonoTime(ms)),
                is_news,
                "{ms}"
            );
            assert!(!cost.is_lookup_due(MonoTime(ms + 999)), "{ms}");
            assert_eq!(cost.is_metered(), is_metered, "{ms}");
        }
        assert_eq!(cost.interface(), Some("eth0"));
        fixed.record_interface(None, MonoTime(0));
        assert_eq!(fixed.interface(), None);
    }

    #[test]
    fn names() {
        // METER-06
        for good in ["wwan0", "ppp*", "?", "eth0.100", "0123456789abcde"] {
            assert_eq!(interface_name_fault(good), None, "{good}");
        }
        for bad in [
            "",
            "0123456789abcdef",
            "a/b",
            ".",
            "..",
            "a b",
            "eth0:1",
            "a\0",
        ] {
            assert!(interface_name_fault(bad).is_some(), "{bad:?}");
        }
    }
}
