//! Servers of a k3s cluster that are to have a session of this node, and the time at which they are asked again
//! (K3ST-10, K3ST-19).
//!
//! A server reaches this node by its own session only, so each of them has one.

use alloc::{
    borrow::ToOwned as _,
    string::{String, ToString as _},
    vec::Vec,
};
use core::{net::Ipv6Addr, time::Duration};

use crate::api::MonoTime;

/// Most servers of a cluster that have a session.
pub const MAX_SERVERS: usize = 8;
/// Time between two questions for the list of servers. A question is a TLS connection of its own: each minute would be
/// 6 MB a day.
const LIST: Duration = Duration::from_secs(5 * 60);
/// Time between two questions while bytes cost money.
const SELDOM: Duration = Duration::from_secs(60 * 60);
/// Shortest time between two questions, whatever happens.
const SOON: Duration = Duration::from_secs(60);

/// Host, without brackets, and port of a supervisor.
pub type SupervisorAddress = (String, u16);

/// Servers of the cluster, as far as they are known.
#[derive(Debug)]
pub struct K3sServers {
    /// Server that was joined.
    joined: SupervisorAddress,
    /// Port of supervisors.
    port: u16,
    /// Way of the apiserver to nodes; `None`: it is not known yet.
    mode: Option<String>,
    /// Hosts of the apiservers, without brackets.
    known: Vec<String>,
    /// Time of the last answer.
    listed: Option<MonoTime>,
    /// Set if a session has ended since the last answer.
    is_doubtful: bool,
}

impl K3sServers {
    /// Begins with the server that was joined.
    #[must_use]
    pub const fn new(joined: SupervisorAddress) -> Self {
        Self {
            port: joined.1,
            joined,
            mode: None,
            known: Vec::new(),
            listed: None,
            is_doubtful: false,
        }
    }

    /// Takes in what servers tell of the cluster: the way to nodes, and the port of supervisors; 0: that of the joined one.
    pub fn take_configuration(&mut self, mode: &str, port: u16) {
        self.mode = Some(mode.to_owned());
        self.port = if port > 0 { port } else { self.joined.1 };
    }

    /// Takes in addresses of apiservers, `host:port`. An empty list changes nothing, and neither do entries that are no
    /// addresses.
    pub fn take_list(&mut self, apiservers: &[String], now: MonoTime) {
        self.listed = Some(now);
        self.is_doubtful = false;
        let mut found: Vec<String> = Vec::new();
        for host in apiservers.iter().filter_map(|text| parse_host(text)) {
            if !found.contains(&host) {
                found.push(host);
            }
        }
        found.truncate(MAX_SERVERS);
        if !found.is_empty() {
            self.known = found;
        }
    }

    /// Takes in that a session has ended: the list may have changed.
    pub const fn doubt_list(&mut self) {
        self.is_doubtful = true;
    }

    /// Time at which the servers are to be asked again; `None`: at once.
    #[must_use]
    pub fn next_question(&self, is_metered: bool) -> Option<MonoTime> {
        let pause = match (self.is_doubtful, is_metered) {
            (true, _) => SOON,
            (false, false) => LIST,
            (false, true) => SELDOM,
        };
        Some(self.listed? + pause)
    }

    /// Way of the apiserver to nodes, `disabled` if it is directly. `None`: it is not known yet.
    #[must_use]
    pub fn mode(&self) -> Option<&str> {
        self.mode.as_deref().map(|mode| match mode {
            "" => "disabled",
            mode => mode,
        })
    }

    /// Servers that are to have a session now, in no order.
    #[must_use]
    pub fn wanted_servers(&self) -> Vec<SupervisorAddress> {
        match self.mode() {
            None | Some("disabled") => Vec::new(),
            Some(_) if self.known.is_empty() => Vec::from([self.joined.clone()]),
            // Each apiserver has a supervisor beside it.
            Some(_) => {
                let hosts = self.known.iter().cloned();
                hosts.map(|host| (host, self.port)).collect()
            }
        }
    }
}

/// Reads the host of `host:port`, without brackets.
fn parse_host(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(v6) => Some(v6.parse::<Ipv6Addr>().ok()?.to_string()),
        None => (!host.is_empty() && host.chars().all(is_name)).then(|| host.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(apiservers: &[&str]) -> Vec<String> {
        apiservers.iter().map(|&text| text.to_owned()).collect()
    }

    fn servers() -> K3sServers {
        K3sServers::new(("k3s.lan".into(), 9443))
    }

    fn wanted(servers: &K3sServers) -> Vec<String> {
        let wanted = servers.wanted_servers();
        wanted
            .iter()
            .map(|(host, port)| alloc::format!("{host} {port}"))
            .collect()
    }

    #[test]
    fn each_server_has_a_session() {
        // K3ST-10 K3ST-19
        let now = MonoTime(0);
        let mut servers = servers();
        assert_eq!(servers.mode(), None);
        assert_eq!(wanted(&servers), [""; 0]);
        servers.take_configuration("agent", 0);
        servers.take_list(&[], now);
        assert_eq!(wanted(&servers), ["k3s.lan 9443"], "there is no other");
        let some = [
            "10.0.0.1:6443",
            "[fd00:0::2]:6443",
            "b.lan:6443",
            "10.0.0.1:6443",
        ];
        servers.take_list(&list(&some), now);
        let all = ["10.0.0.1 9443", "fd00::2 9443", "b.lan 9443"];
        assert_eq!(wanted(&servers), all);
        // An empty list, and one of nonsense, change nothing.
        let nonsense = [
            "", ":1", "a", "a b:1", "a/b:1", "[a]:1", "[::1:1", "::1:x", "a:99999", "a\r\nb:1",
        ];
        for told in [&[][..], &nonsense] {
            servers.take_list(&list(told), now);
            assert_eq!(wanted(&servers), all);
        }
        servers.take_list(&list(&["b.lan:6443", "nonsense"]), now);
        assert_eq!(wanted(&servers), ["b.lan 9443"]);
        let many: Vec<String> = (0..40).map(|n| alloc::format!("10.0.0.{n}:6443")).collect();
        servers.take_list(&many, now);
        assert_eq!(wanted(&servers).len(), MAX_SERVERS);
        servers.take_list(&list(&["10.0.0.1:6443"]), now);
        for (port, all) in [(9345, ["10.0.0.1 9345"]), (0, ["10.0.0.1 9443"])] {
            servers.take_configuration("agent", port);
            assert_eq!(wanted(&servers), all);
        }
    }

    #[test]
    fn modes() {
        // K3ST-16 K3ST-19
        let mut servers = servers();
        for (said, mode, is_wanted) in [
            ("disabled", "disabled", false),
            ("", "disabled", false),
            ("agent", "agent", true),
            ("cluster", "cluster", true),
            ("pod", "pod", true),
            ("disabled", "disabled", false),
        ] {
            servers.take_configuration(said, 0);
            servers.take_list(&list(&["10.0.0.1:6443"]), MonoTime(0));
            assert_eq!(servers.mode(), Some(mode));
            assert_eq!(!wanted(&servers).is_empty(), is_wanted, "{said}");
        }
    }

    #[test]
    fn questions() {
        // K3ST-10 K3ST-19
        let at = |minutes: u64| MonoTime(minutes * 60_000);
        let mut servers = servers();
        assert_eq!(servers.next_question(false), None);
        servers.take_list(&[], at(0));
        assert_eq!(servers.next_question(false), Some(at(5)));
        assert_eq!(servers.next_question(true), Some(at(60)));
        servers.doubt_list();
        assert_eq!(servers.next_question(true), Some(at(1)));
        servers.take_list(&[], at(2));
        assert_eq!(servers.next_question(false), Some(at(7)));
    }
}
