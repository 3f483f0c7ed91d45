//! Rules of the firewall for packets between nodes: which addresses are hidden, and what is forwarded (FLAN-13, FLAN-14).
//!
//! All are in chains of this program, one in the table `nat` and one in the table `filter`.
//!
//! Source: flannel `pkg/trafficmngr/iptables/iptables.go`.

use alloc::{string::String, vec::Vec};

use crate::node::Cidr;

/// Name of both chains.
pub const CHAIN: &str = "PICOLET-POD-NETWORK";

/// Rules of one table: a chain, and the jump to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRules {
    /// Table.
    pub table: &'static str,
    /// Chain of the table that leads to ours.
    pub from: &'static str,
    /// Set if the jump is to be the first of its chain when it is made.
    pub is_first: bool,
    /// Rules of our chain, as `iptables -S` prints them behind `-A CHAIN `.
    pub rules: Vec<String>,
}

/// Words of the jump into our chain, behind the name of the chain that has it.
pub const JUMP: [&str; 2] = ["-j", CHAIN];

/// Makes the rules of one family. `network`: the range of all pods; `own`: that of this node's pods. With `hides` set,
/// the addresses of pods are hidden from everyone else.
#[must_use]
pub fn table_rules(network: Cidr, own: Cidr, hides: bool) -> [TableRules; 2] {
    let multicast = match network.address.is_ipv4() {
        true => "224.0.0.0/4",
        false => "ff00::/8",
    };
    // Kube-proxy hides the source of packets with this mark itself.
    let mut nat = vec![
        "-m mark --mark 0x4000/0x4000 -j RETURN".into(),
        format!("-s {own} -d {network} -j RETURN"),
        format!("-d {own} -j RETURN"),
    ];
    if hides {
        nat.push(format!(
            "-s {network} ! -d {multicast} -j MASQUERADE --random-fully"
        ));
        nat.push(format!(
            "! -s {network} -d {network} -j MASQUERADE --random-fully"
        ));
    }
    [
        TableRules {
            table: "nat",
            from: "POSTROUTING",
            is_first: false,
            rules: nat,
        },
        TableRules {
            table: "filter",
            from: "FORWARD",
            is_first: true,
            rules: vec![
                format!("-s {network} -j ACCEPT"),
                format!("-d {network} -j ACCEPT"),
            ],
        },
    ]
}

impl TableRules {
    /// Returns true if a listing of our chain (`iptables -S CHAIN`) has these rules and no others.
    #[must_use]
    pub fn is_listed(&self, listing: &str) -> bool {
        let mut listed = listing.lines().filter_map(|line| {
            let rule = line.trim_end().strip_prefix("-A ")?;
            rule.strip_prefix(CHAIN).map(str::trim_start)
        });
        let has_all = self.rules.iter().all(|rule| listed.next() == Some(rule));
        has_all && listed.next().is_none()
    }

    /// Writes the input of `iptables-restore --noflush` that makes our chain anew, and the jump if it is missing.
    #[must_use]
    pub fn restore_input(&self, lacks_jump: bool) -> String {
        let mut text = format!("*{}\n:{CHAIN} - [0:0]\n", self.table);
        for rule in &self.rules {
            text.push_str(&format!("-A {CHAIN} {rule}\n"));
        }
        if lacks_jump {
            let verb = if self.is_first { "-I" } else { "-A" };
            text.push_str(&format!("{verb} {} -j {CHAIN}\n", self.from));
        }
        text.push_str("COMMIT\n");
        text
    }
}

/// Returns true if the rules of a chain (`iptables -S INPUT`) let packets to this UDP port in, as far as its simple rules
/// tell: a chain that drops the rest and has no rule with the port does not.
#[must_use]
pub fn is_port_open(listing: &str, port: u16) -> bool {
    let port = format!("{port}");
    let mut drops = false;
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["-P", _, policy] => drops = *policy == "DROP",
            ["-A", _, "-j", "DROP" | "REJECT", ..] => drops = true,
            // A chain of another program, which may know the port.
            ["-A", _, "-j", target] if !matches!(*target, "RETURN" | "ACCEPT") => return true,
            ["-A", _, "-j", "ACCEPT"] => return true,
            _ if words.iter().any(|word| *word == port) => return true,
            _ => {}
        }
    }
    !drops
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(network: &str, own: &str, hides: bool) -> [TableRules; 2] {
        let range = |text: &str| text.parse::<Cidr>().expect(text);
        table_rules(range(network), range(own), hides)
    }

    #[test]
    fn the_rules_of_a_family() {
        // FLAN-13 FLAN-14
        let [nat, filter] = rules("10.42.0.0/16", "10.42.3.0/24", true);
        assert_eq!(
            nat.restore_input(true),
            "*nat\n:PICOLET-POD-NETWORK - [0:0]\n\
             -A PICOLET-POD-NETWORK -m mark --mark 0x4000/0x4000 -j RETURN\n\
             -A PICOLET-POD-NETWORK -s 10.42.3.0/24 -d 10.42.0.0/16 -j RETURN\n\
             -A PICOLET-POD-NETWORK -d 10.42.3.0/24 -j RETURN\n\
             -A PICOLET-POD-NETWORK -s 10.42.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully\n\
             -A PICOLET-POD-NETWORK ! -s 10.42.0.0/16 -d 10.42.0.0/16 -j MASQUERADE --random-fully\n\
             -A POSTROUTING -j PICOLET-POD-NETWORK\nCOMMIT\n"
        );
        assert_eq!(
            filter.restore_input(true),
            "*filter\n:PICOLET-POD-NETWORK - [0:0]\n\
             -A PICOLET-POD-NETWORK -s 10.42.0.0/16 -j ACCEPT\n\
             -A PICOLET-POD-NETWORK -d 10.42.0.0/16 -j ACCEPT\n\
             -I FORWARD -j PICOLET-POD-NETWORK\nCOMMIT\n"
        );
        assert!(!filter.restore_input(false).contains("FORWARD"));
    }

    #[test]
    fn ipv6_addresses_are_hidden_only_if_asked() {
        // FLAN-18
        let [nat, _] = rules("fd42::/56", "fd42::/64", false);
        assert!(nat.rules.iter().all(|rule| rule.ends_with("RETURN")));
        let [nat, _] = rules("fd42::/56", "fd42::/64", true);
        assert!(nat.rules.iter().any(|rule| rule.contains("! -d ff00::/8")));
    }

    #[test]
    fn listings_are_compared() {
        // FLAN-14
        let [_, filter] = rules("10.42.0.0/16", "10.42.3.0/24", true);
        let right = "-N PICOLET-POD-NETWORK\n\
                     -A PICOLET-POD-NETWORK -s 10.42.0.0/16 -j ACCEPT\n\
                     -A PICOLET-POD-NETWORK -d 10.42.0.0/16 -j ACCEPT\n";
        assert!(filter.is_listed(right));
        for wrong in [
            "",
            "-N PICOLET-POD-NETWORK\n",
            &right.replace("-s 10.42", "-s 10.43"),
            &right.replace("-A PICOLET-POD-NETWORK -d", "-A OTHER -d"),
            &format!("{right}-A PICOLET-POD-NETWORK -j DROP\n"),
        ] {
            assert!(!filter.is_listed(wrong), "{wrong}");
        }
    }

    #[test]
    fn closed_ports_are_seen() {
        // FLAN-19
        for (listing, is_open) in [
            ("-P INPUT ACCEPT\n", true),
            ("-P INPUT DROP\n", false),
            (
                "-P INPUT DROP\n-A INPUT -p udp -m udp --dport 22 -j ACCEPT\n",
                false,
            ),
            (
                "-P INPUT DROP\n-A INPUT -p udp -m udp --dport 8472 -j ACCEPT\n",
                true,
            ),
            ("-P INPUT DROP\n-A INPUT -j ufw-before-input\n", true),
            (
                "-P INPUT ACCEPT\n-A INPUT -i lo -j ACCEPT\n-A INPUT -j REJECT --reject-with x\n",
                false,
            ),
            ("-P INPUT DROP\n-A INPUT -j ACCEPT\n", true),
            ("", true),
        ] {
            assert_eq!(is_port_open(listing, 8472), is_open, "{listing}");
        }
    }
}
