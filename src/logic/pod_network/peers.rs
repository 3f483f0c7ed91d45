//! The other nodes of the cluster: what is kept of each, and which are believed (FLAN-01, FLAN-09).
//!
//! Nodes are the leases of the network: a list of them says where each is, and one look at each says which addresses its
//! pods have. Any node can write its own annotations, so that none of them may reach beyond the network.

use alloc::{borrow::ToOwned as _, boxed::Box, string::String, vec::Vec};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    HardwareAddress, PodNetworkBackend,
    announcement::{AnnouncementFault, NodeAnnouncement, NodePlace},
    ranges::{contains, covers, is_overlapping},
};
use crate::{fnv::fnv1a, node::Cidr};

/// Most nodes that are kept. Each takes at most 96 bytes and its name here, and about a kilobyte in the kernel.
pub const MAX_PEERS: usize = 1000;
/// Longest name of a node, bytes. Source: RFC 1123.
const MAX_NAME_BYTES: usize = 253;

/// A node that pods of this node can reach, in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Addresses of its pods.
    pub range: Cidr,
    /// Address to which packets for them are sent.
    pub public_ip: IpAddr,
    /// Hardware address of its vxlan device.
    pub mac: HardwareAddress,
}

/// Reason why a node is not reached although it takes part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// Its annotations cannot be used.
    #[error(transparent)]
    Announcement(#[from] AnnouncementFault),
    /// The pod CIDR is no range of a node's pods, such as `0.0.0.0/0`.
    #[error("its pod CIDR is not a network with room for pods")]
    NoNetwork,
    /// Its pods have addresses that the network does not have.
    #[error("its pod CIDR {0} is outside the network of pods")]
    OutsideNetwork(Cidr),
    /// Its pods have addresses of this node's pods.
    #[error("its pod CIDR {0} overlaps that of this node")]
    OwnRange(Cidr),
    /// Its pods would have the address of a machine.
    #[error("its pod CIDR {0} contains {1}, the address of a node")]
    CoversNode(Cidr, IpAddr),
    /// It announces an address of this node, or of a pod.
    #[error("its public IP {0} cannot be that of another node")]
    PublicIp(IpAddr),
    /// An older node has the addresses of its pods.
    #[error("its pod CIDR {0} belongs to the older node {1}")]
    RangeTaken(Cidr, String),
    /// An older node, or this one, has the hardware address of its device.
    #[error("its hardware address {0} belongs to node {1}")]
    MacTaken(HardwareAddress, String),
}

/// Place of this node, which its peers must not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnPlace {
    /// Ranges of the whole network.
    pub network: Vec<Cidr>,
    /// Ranges of this node's pods.
    pub ranges: Vec<Cidr>,
    /// Addresses of this machine.
    pub addresses: Vec<IpAddr>,
    /// Hardware addresses of its vxlan devices.
    pub macs: Vec<HardwareAddress>,
}

/// IPv4 side of a node. Zeros: not known.
#[derive(Clone, Copy, Debug, Default)]
struct PeerV4 {
    range: [u8; 4],
    prefix: u8,
    has_wrong_range: bool,
    public_ip: [u8; 4],
    mac: HardwareAddress,
}

/// IPv6 side of a node. Zeros: not known.
#[derive(Clone, Copy, Debug, Default)]
struct PeerV6 {
    range: [u8; 16],
    prefix: u8,
    has_wrong_range: bool,
    public_ip: [u8; 16],
    mac: HardwareAddress,
}

/// Record of a node.
#[derive(Clone, Debug)]
struct PeerRecord {
    /// Digest of the UID: another one is another node.
    uid: u64,
    /// Seconds since 1970 at its creation.
    created_s: u32,
    /// Place of the name.
    name_at: u32,
    name_bytes: u8,
    /// Set once the ranges of its pods were read, right or wrong.
    has_ranges: bool,
    /// Set once the node was read, also if it had no ranges yet.
    is_read: bool,
    /// Set if the last whole list did not have it.
    is_unlisted: bool,
    v4: PeerV4,
    v6: Option<Box<PeerV6>>,
}

/// Node as a list has it.
#[derive(Clone, Debug)]
pub struct ListedNode<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// UID of the Node object.
    pub uid: &'a str,
    /// Seconds since 1970 at its creation.
    pub created_s: i64,
    /// Its announcement: [`super::announcement::read_announcement`].
    pub announcement: Result<Option<NodeAnnouncement>, AnnouncementFault>,
}

/// The other nodes, sorted by name. At most [`MAX_PEERS`].
#[derive(Clone, Debug, Default)]
pub struct PeerTable {
    names: String,
    records: Vec<PeerRecord>,
}

/// A list of all nodes that is being read. It changes nothing before it is whole.
#[derive(Clone, Debug, Default)]
pub struct PeerList {
    next: PeerTable,
    faults: Vec<(String, PeerFault)>,
    /// Nodes that are too many.
    left_out: usize,
}

/// Returns true if a node may have the name. It becomes a part of paths.
fn is_node_name(name: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.bytes().all(is_usual)
        && !name.starts_with('.')
}

/// Most faults of nodes that are kept for people.
const MAX_FAULTS: usize = 16;

impl PeerList {
    /// Takes a node of the list. The own node is not to be given.
    pub fn note_node(&mut self, node: &ListedNode<'_>) {
        if !is_node_name(node.name) {
            return;
        }
        let (v4, v6) = match &node.announcement {
            Ok(None) => return,
            Ok(Some(announcement)) => {
                if let Some(fault) = &announcement.fault {
                    self.note_fault(node.name, fault.clone().into());
                }
                (announcement.v4, announcement.v6)
            }
            // It is not reached, and its addresses stay its own.
            Err(fault) => {
                self.note_fault(node.name, fault.clone().into());
                (None, None)
            }
        };
        if self.next.records.len() >= MAX_PEERS {
            self.left_out += 1;
            return;
        }
        let mut record = PeerRecord {
            uid: fnv1a(node.uid.bytes()),
            created_s: u32::try_from(node.created_s.max(0)).unwrap_or(u32::MAX),
            name_at: 0,
            name_bytes: 0,
            has_ranges: false,
            is_read: false,
            is_unlisted: false,
            v4: PeerV4::default(),
            v6: None,
        };
        record.set_places(v4, v6);
        self.next.push(node.name, record);
    }

    fn note_fault(&mut self, name: &str, fault: PeerFault) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push((name.to_owned(), fault));
        }
    }
}

/// Result of a list that was read to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOutcome {
    /// Set if the nodes, or what they announce, differ from before.
    pub is_changed: bool,
    /// Nodes whose annotations cannot be used, at most 16.
    pub faults: Vec<(String, PeerFault)>,
    /// Number of nodes beyond [`MAX_PEERS`].
    pub left_out: usize,
}

/// Question about one node, which the list left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerQuestion {
    /// The ranges of its pods are not known.
    Ranges,
    /// The list did not have it.
    Existence,
}

impl PeerRecord {
    fn set_places(&mut self, v4: Option<NodePlace>, v6: Option<NodePlace>) {
        if let Some((IpAddr::V4(ip), mac)) = v4.map(|place| (place.public_ip, place.mac)) {
            self.v4.public_ip = ip.octets();
            self.v4.mac = mac;
        }
        if let Some((IpAddr::V6(ip), mac)) = v6.map(|place| (place.public_ip, place.mac)) {
            let v6 = self.v6.get_or_insert_default();
            v6.public_ip = ip.octets();
            v6.mac = mac;
        }
    }

    fn set_ranges(&mut self, ranges: &[Cidr]) {
        self.has_ranges = true;
        for range in ranges {
            match range.address {
                IpAddr::V4(ip) => {
                    self.v4.range = ip.octets();
                    self.v4.prefix = range.prefix;
                }
                IpAddr::V6(ip) => {
                    let v6 = self.v6.get_or_insert_default();
                    v6.range = ip.octets();
                    v6.prefix = range.prefix;
                }
            }
        }
    }

    fn set_wrong_ranges(&mut self, [v4, v6]: [bool; 2]) {
        self.has_ranges |= v4 || v6;
        self.v4.has_wrong_range |= v4;
        if v6 {
            self.v6.get_or_insert_default().has_wrong_range = true;
        }
    }

    fn take_ranges_of(&mut self, known: &Self) {
        (self.has_ranges, self.is_read) = (known.has_ranges, known.is_read);
        self.v4 = PeerV4 {
            public_ip: self.v4.public_ip,
            mac: self.v4.mac,
            ..known.v4
        };
        if let Some(known) = &known.v6
            && (known.prefix > 0 || known.has_wrong_range)
        {
            let v6 = self.v6.get_or_insert_default();
            **v6 = PeerV6 {
                public_ip: v6.public_ip,
                mac: v6.mac,
                ..**known
            };
        }
    }

    /// Range of a family, if it is known. `Err`: it is none.
    fn range(&self, is_v6: bool) -> Option<Result<Cidr, PeerFault>> {
        let (address, prefix, is_wrong): (IpAddr, _, _) = match (is_v6, self.v6.as_deref()) {
            (false, _) => {
                let v4 = &self.v4;
                (
                    Ipv4Addr::from(v4.range).into(),
                    v4.prefix,
                    v4.has_wrong_range,
                )
            }
            (true, v6) => {
                let v6 = v6?;
                (
                    Ipv6Addr::from(v6.range).into(),
                    v6.prefix,
                    v6.has_wrong_range,
                )
            }
        };
        match prefix {
            0 => is_wrong.then_some(Err(PeerFault::NoNetwork)),
            _ => Some(Ok(Cidr { address, prefix })),
        }
    }

    /// Public address and hardware address of a family, if it is announced.
    fn place(&self, is_v6: bool) -> Option<NodePlace> {
        let (public_ip, mac): (IpAddr, _) = match (is_v6, self.v6.as_deref()) {
            (false, _) => (Ipv4Addr::from(self.v4.public_ip).into(), self.v4.mac),
            (true, v6) => {
                let v6 = v6?;
                (Ipv6Addr::from(v6.public_ip).into(), v6.mac)
            }
        };
        (!public_ip.is_unspecified()).then_some(NodePlace { public_ip, mac })
    }

    /// Returns true if both announce the same.
    fn is_same_as(&self, other: &Self) -> bool {
        let six = |record: &Self| {
            let v6 = record.v6.as_deref().copied().unwrap_or_default();
            (v6.public_ip, v6.mac)
        };
        self.uid == other.uid
            && (self.v4.public_ip, self.v4.mac) == (other.v4.public_ip, other.v4.mac)
            && six(self) == six(other)
    }
}

impl PeerTable {
    fn push(&mut self, name: &str, mut record: PeerRecord) {
        let (Ok(at), Ok(bytes)) = (u32::try_from(self.names.len()), u8::try_from(name.len()))
        else {
            return;
        };
        self.names.push_str(name);
        record.name_at = at;
        record.name_bytes = bytes;
        self.records.push(record);
    }

    fn name_of(&self, record: &PeerRecord) -> &str {
        let at = usize::try_from(record.name_at).unwrap_or(usize::MAX);
        let end = at.saturating_add(record.name_bytes.into());
        self.names.get(at..end).unwrap_or_default()
    }

    fn find(&self, name: &str) -> Option<usize> {
        let found = self
            .records
            .binary_search_by(|record| self.name_of(record).cmp(name));
        found.ok()
    }

    /// Takes a list that was read to its end. Nodes that it does not have stay until [`Self::forget_peer`] is told.
    pub fn take_list(&mut self, list: PeerList) -> ListOutcome {
        let PeerList {
            next: mut listed,
            faults,
            left_out,
        } = list;
        let order = {
            let listed = &listed;
            let mut order: Vec<_> = listed.records.iter().collect();
            order.sort_by(|a, b| listed.name_of(a).cmp(listed.name_of(b)));
            // A list does not name a node twice.
            order.dedup_by(|a, b| listed.name_of(a) == listed.name_of(b));
            order.into_iter().cloned().collect::<Vec<_>>()
        };
        listed.records = order;
        let mut next = Self::default();
        let mut is_changed = false;
        let (mut old, mut new) = (
            self.records.iter().peekable(),
            listed.records.iter().peekable(),
        );
        // Bounded: each turn takes a node of one of the two.
        loop {
            let turn = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(_), None) => core::cmp::Ordering::Less,
                (None, Some(_)) => core::cmp::Ordering::Greater,
                (Some(a), Some(b)) => self.name_of(a).cmp(listed.name_of(b)),
            };
            let known = turn.is_le().then(|| old.next()).flatten();
            let found = turn.is_ge().then(|| new.next()).flatten();
            match (known, found) {
                (Some(known), None) => {
                    let name = self.name_of(known);
                    if next.records.len() >= MAX_PEERS {
                        is_changed = true;
                        continue;
                    }
                    let is_unlisted = true;
                    next.push(
                        name,
                        PeerRecord {
                            is_unlisted,
                            ..known.clone()
                        },
                    );
                }
                (known, Some(found)) => {
                    let mut record = found.clone();
                    let known = known.filter(|known| known.uid == record.uid);
                    is_changed |= known.is_none_or(|known| !known.is_same_as(&record));
                    if let Some(known) = known {
                        record.take_ranges_of(known);
                    }
                    next.push(listed.name_of(found), record);
                }
                (None, None) => {}
            }
        }
        next.records.shrink_to_fit();
        next.names.shrink_to_fit();
        *self = next;
        ListOutcome {
            is_changed,
            faults,
            left_out,
        }
    }

    /// Lists the nodes that must be read one by one. A node that the list left out comes first.
    #[must_use]
    pub fn open_questions(&self) -> Vec<(String, PeerQuestion)> {
        let ask = |is_unlisted: bool, question| {
            let records = self.records.iter();
            let open = records.filter(move |record| match is_unlisted {
                true => record.is_unlisted,
                false => !record.is_unlisted && !record.has_ranges,
            });
            open.map(move |record| (self.name_of(record).to_owned(), question))
        };
        ask(true, PeerQuestion::Existence)
            .chain(ask(false, PeerQuestion::Ranges))
            .collect()
    }

    /// Takes the ranges of a node's pods: the answer to a question about it. `uid`: that of the answer. Another one is
    /// another node, about which the next list tells. `has_wrong`: it has one that is none, by family. Returns true if that
    /// is news: only then the next list is soon.
    pub fn learn_ranges(
        &mut self,
        name: &str,
        uid: &str,
        ranges: &[Cidr],
        has_wrong: [bool; 2],
    ) -> bool {
        let Some(record) = self.find(name).and_then(|at| self.records.get_mut(at)) else {
            return false;
        };
        if record.uid != fnv1a(uid.bytes()) {
            return false;
        }
        // The controller gives ranges after a node has come: until then it is asked again.
        let is_given = !ranges.is_empty() || has_wrong.contains(&true);
        let is_news = !record.is_read || (is_given && !record.has_ranges);
        record.is_read = true;
        if is_given {
            record.set_ranges(ranges);
            record.set_wrong_ranges(has_wrong);
        }
        is_news
    }

    /// Takes the answer that a node exists and cannot be read. It is asked about again, and hinders nobody: what others
    /// left in the kernel is removed as if it had been read. Returns true if that is news.
    pub fn note_unreadable(&mut self, name: &str) -> bool {
        let record = self.find(name).and_then(|at| self.records.get_mut(at));
        record.is_some_and(|record| !core::mem::replace(&mut record.is_read, true))
    }

    /// Removes a node that a whole list did not have and that the apiserver says does not exist. Returns true if it was
    /// there.
    pub fn forget_peer(&mut self, name: &str) -> bool {
        let found = self.find(name).filter(|at| {
            let record = self.records.get(*at);
            record.is_some_and(|record| record.is_unlisted)
        });
        if let Some(found) = found {
            self.records.remove(found);
        }
        found.is_some()
    }

    /// Returns true if every node was read once. Until then entries of earlier runs may belong to one that was not.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.records.iter().all(|record| record.is_read)
    }

    /// Chooses the nodes that are reached in one family, oldest first, and says why others are not: at most 16. A node that
    /// is not reached keeps the addresses of its pods as well.
    #[must_use]
    pub fn choose_peers(
        &self,
        backend: PodNetworkBackend,
        is_v6: bool,
        own: &OwnPlace,
    ) -> (Vec<Peer<'_>>, Vec<(String, PeerFault)>) {
        let mut by_age: Vec<&PeerRecord> = self.records.iter().collect();
        by_age.sort_by_key(|record| (record.created_s, record.uid));
        let mut peers: Vec<Peer<'_>> = Vec::new();
        let mut ranges: Vec<(Cidr, &str)> = Vec::new();
        let mut faults = Vec::new();
        for record in by_age {
            let (name, place) = (self.name_of(record), record.place(is_v6));
            let Some(range) = record.range(is_v6) else {
                continue;
            };
            let range = range.and_then(|range| {
                check_range(range, own, &peers, &ranges)?;
                ranges.push((range, name));
                Ok(range)
            });
            // Why it has no place is told elsewhere.
            let Some(NodePlace { public_ip, mac }) = place else {
                continue;
            };
            let peer = range.and_then(|range| {
                let peer = Peer {
                    name,
                    range,
                    public_ip,
                    mac,
                };
                check_place(&peer, backend, own, &peers)?;
                Ok(peer)
            });
            match peer {
                Ok(peer) => peers.push(peer),
                Err(fault) if faults.len() < MAX_FAULTS => faults.push((name.to_owned(), fault)),
                Err(_) => {}
            }
        }
        (peers, faults)
    }
}

/// Checks that the pods of a node take no address of this node, of `older` ones, or of their pods (`ranges`).
fn check_range(
    range: Cidr,
    own: &OwnPlace,
    older: &[Peer<'_>],
    ranges: &[(Cidr, &str)],
) -> Result<(), PeerFault> {
    if !own.network.iter().any(|network| covers(*network, range)) {
        return Err(PeerFault::OutsideNetwork(range));
    }
    if own.ranges.iter().any(|own| is_overlapping(*own, range)) {
        return Err(PeerFault::OwnRange(range));
    }
    let in_range = |ip: &&IpAddr| contains(range, **ip);
    let public = older.iter().map(|older| &older.public_ip);
    let mut machines = own.addresses.iter().chain(public);
    if let Some(ip) = machines.find(in_range) {
        return Err(PeerFault::CoversNode(range, *ip));
    }
    match ranges
        .iter()
        .find(|(older, _)| is_overlapping(*older, range))
    {
        Some((_, name)) => Err(PeerFault::RangeTaken(range, (*name).to_owned())),
        None => Ok(()),
    }
}

/// Checks that a node takes no address of this node, of a pod, or of an `older` node.
fn check_place(
    peer: &Peer<'_>,
    backend: PodNetworkBackend,
    own: &OwnPlace,
    older: &[Peer<'_>],
) -> Result<(), PeerFault> {
    let public_ip = peer.public_ip;
    let is_pod = own.network.iter().any(|n| contains(*n, public_ip));
    if is_pod || own.addresses.contains(&public_ip) {
        return Err(PeerFault::PublicIp(public_ip));
    }
    if backend == PodNetworkBackend::Vxlan {
        if own.macs.contains(&peer.mac) {
            return Err(PeerFault::MacTaken(peer.mac, "this one".to_owned()));
        }
        if let Some(older) = older.iter().find(|older| older.mac == peer.mac) {
            return Err(PeerFault::MacTaken(peer.mac, older.name.to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn range(text: &str) -> Cidr {
        text.parse().expect(text)
    }

    fn mac(last: u8) -> HardwareAddress {
        HardwareAddress([2, 0, 0, 0, 0, last])
    }

    fn announced(public_ip: &str, last: u8) -> Result<Option<NodeAnnouncement>, AnnouncementFault> {
        let place = NodePlace {
            public_ip: ip(public_ip),
            mac: mac(last),
        };
        Ok(Some(match place.public_ip {
            IpAddr::V4(_) => NodeAnnouncement {
                v4: Some(place),
                ..NodeAnnouncement::default()
            },
            IpAddr::V6(_) => NodeAnnouncement {
                v6: Some(place),
                ..NodeAnnouncement::default()
            },
        }))
    }

    /// Node of the tests: name, creation, range, public address, last byte of the hardware address.
    type Row<'a> = (&'a str, i64, &'a str, &'a str, u8);

    fn list(rows: &[Row<'_>]) -> PeerList {
        let mut list = PeerList::default();
        for (name, created_s, _, public_ip, last) in rows {
            list.note_node(&ListedNode {
                name,
                uid: name,
                created_s: *created_s,
                announcement: announced(public_ip, *last),
            });
        }
        list
    }

    fn table(rows: &[Row<'_>]) -> PeerTable {
        let mut table = PeerTable::default();
        table.take_list(list(rows));
        for (name, _, pods, _, _) in rows {
            learn(&mut table, name, &[range(pods)]);
        }
        table
    }

    fn learn(table: &mut PeerTable, name: &str, ranges: &[Cidr]) -> bool {
        table.learn_ranges(name, name, ranges, [false; 2])
    }

    fn broken<'a>(name: &'a str, created_s: i64) -> ListedNode<'a> {
        ListedNode {
            name,
            uid: name,
            created_s,
            announcement: Err(AnnouncementFault::NoPlace),
        }
    }

    fn own() -> OwnPlace {
        OwnPlace {
            network: vec![range("10.42.0.0/16"), range("fd42::/56")],
            ranges: vec![range("10.42.0.0/24")],
            addresses: vec![ip("192.0.2.100"), ip("10.42.77.1")],
            macs: vec![mac(100)],
        }
    }

    fn reached(table: &PeerTable) -> Vec<&str> {
        let (peers, _) = table.choose_peers(PodNetworkBackend::Vxlan, false, &own());
        peers.iter().map(|peer| peer.name).collect()
    }

    #[test]
    fn one_broken_node_hurts_only_itself() {
        // FLAN-01
        let mut broken = list(&[
            ("c", 3, "10.42.3.0/24", "192.0.2.3", 3),
            ("a", 1, "10.42.1.0/24", "192.0.2.1", 1),
        ]);
        let fault = AnnouncementFault::NoPlace;
        broken.note_node(&self::broken("b", 2));
        broken.note_node(&ListedNode {
            name: "d",
            uid: "d",
            created_s: 2,
            announcement: Ok(None),
        });
        let mut table = PeerTable::default();
        let outcome = table.take_list(broken);
        assert!(outcome.is_changed);
        assert_eq!(outcome.faults, [("b".to_owned(), fault.into())]);
        let ask = |name: &str| (name.to_owned(), PeerQuestion::Ranges);
        assert_eq!(table.open_questions(), [ask("a"), ask("b"), ask("c")]);
        assert!(learn(&mut table, "b", &[range("10.42.2.0/24")]));
        assert_eq!(reached(&table), Vec::<&str>::new(), "ranges are not known");
        assert!(learn(&mut table, "a", &[range("10.42.1.0/24")]));
        let pods = [range("10.42.3.0/24")];
        assert!(!table.learn_ranges("c", "another", &pods, [false; 2]));
        assert_eq!(reached(&table), ["a"]);
        assert_eq!(table.open_questions(), [ask("c")]);
        assert!(!table.is_settled());
        assert!(learn(&mut table, "c", &[]));
        assert_eq!(table.open_questions(), [ask("c")], "none given yet");
        assert!(table.is_settled());
        // The same answer again is no reason to list soon.
        assert!(!learn(&mut table, "c", &[]));
        assert!(!learn(&mut table, "a", &[range("10.42.1.0/24")]));
        assert!(learn(&mut table, "c", &pods));
        assert!(!learn(&mut table, "nobody", &[]));
    }

    #[test]
    fn a_range_that_is_none_is_named() {
        // FLAN-01
        let rows = [("a", 1, "10.42.1.0/24", "192.0.2.1", 1)];
        let mut table = PeerTable::default();
        table.take_list(list(&rows));
        assert!(table.learn_ranges("a", "a", &[], [true, false]));
        assert_eq!(table.open_questions(), [], "it stays so");
        // Also after the next list.
        table.take_list(list(&rows));
        let own = own();
        for (is_v6, expected) in [
            (false, &[("a".to_owned(), PeerFault::NoNetwork)][..]),
            (true, &[]),
        ] {
            let (peers, faults) = table.choose_peers(PodNetworkBackend::Vxlan, is_v6, &own);
            assert_eq!((peers.len(), &*faults), (0, expected));
        }
    }

    #[test]
    fn a_broken_node_keeps_its_range() {
        // FLAN-09
        let thief = ("thief", 9, "10.42.1.0/24", "192.0.2.9", 9);
        // Neither place can be that of another node.
        let with_place = ("old", 1, "10.42.1.0/24", "192.0.2.100", 1);
        for is_broken in [true, false] {
            let mut table = table(&[thief, with_place]);
            let rows = [thief, with_place];
            let mut rows = list(&rows[..2 - usize::from(is_broken)]);
            if is_broken {
                rows.note_node(&broken("old", 1));
            }
            table.take_list(rows);
            let own = own();
            let (peers, faults) = table.choose_peers(PodNetworkBackend::Vxlan, false, &own);
            assert_eq!(peers, []);
            let taken = PeerFault::RangeTaken(range("10.42.1.0/24"), "old".into());
            assert!(faults.contains(&("thief".into(), taken)), "{faults:?}");
            assert_eq!(faults.len(), 2 - usize::from(is_broken), "{faults:?}");
        }
        // One that claims more than a node may have defends nothing.
        let mut rows = list(&[thief]);
        rows.note_node(&broken("old", 1));
        let mut table = PeerTable::default();
        table.take_list(rows);
        learn(&mut table, "old", &[range("10.42.0.0/16")]);
        learn(&mut table, "thief", &[range(thief.2)]);
        assert_eq!(reached(&table), ["thief"]);
    }

    #[test]
    fn an_unreadable_node_hinders_nobody() {
        // FLAN-01 FLAN-09
        let mut table = PeerTable::default();
        table.take_list(list(&[("a", 1, "10.42.1.0/24", "192.0.2.1", 1)]));
        assert!(!table.is_settled());
        assert!(table.note_unreadable("a"));
        assert!(table.is_settled());
        assert_eq!(reached(&table), Vec::<&str>::new());
        let ask = ("a".to_owned(), PeerQuestion::Ranges);
        assert_eq!(table.open_questions(), [ask], "it is read again");
        assert!(!table.note_unreadable("a"));
        assert!(!table.note_unreadable("nobody"));
    }

    #[test]
    fn nodes_go_after_a_whole_list_and_a_look() {
        // FLAN-09
        let rows = [
            ("a", 1, "10.42.1.0/24", "192.0.2.1", 1),
            ("b", 2, "10.42.2.0/24", "192.0.2.2", 2),
        ];
        let mut table = table(&rows);
        assert!(!table.forget_peer("a"));
        assert_eq!(reached(&table), ["a", "b"], "it is listed");
        let outcome = table.take_list(list(&rows));
        assert!(!outcome.is_changed);
        assert_eq!(table.open_questions(), [], "ranges are kept");
        // Unlisted, and it may still be there.
        table.take_list(list(&rows[1..]));
        let gone = ("a".to_owned(), PeerQuestion::Existence);
        assert_eq!(table.open_questions(), [gone]);
        assert_eq!(reached(&table), ["a", "b"]);
        // A list that has it again.
        table.take_list(list(&rows));
        assert_eq!(table.open_questions(), []);
        table.take_list(list(&rows[1..]));
        assert!(table.forget_peer("a"));
        assert_eq!(reached(&table), ["b"]);
        // One that is there and takes no part any more.
        let mut list = PeerList::default();
        list.note_node(&broken("b", 2));
        assert!(table.take_list(list).is_changed);
        assert_eq!(reached(&table), Vec::<&str>::new());
    }

    #[test]
    fn another_uid_is_another_node() {
        // FLAN-05 FLAN-09
        let mut table = table(&[("a", 1, "10.42.1.0/24", "192.0.2.1", 1)]);
        let mut list = PeerList::default();
        list.note_node(&ListedNode {
            name: "a",
            uid: "second",
            created_s: 9,
            announcement: announced("192.0.2.1", 1),
        });
        assert!(table.take_list(list).is_changed);
        let ask = ("a".to_owned(), PeerQuestion::Ranges);
        assert_eq!(table.open_questions(), [ask]);
        assert_eq!(reached(&table), Vec::<&str>::new());
    }

    #[test]
    fn changed_places_are_noticed() {
        // FLAN-09
        let rows = [("a", 1, "10.42.1.0/24", "192.0.2.1", 1)];
        let mut table = table(&rows);
        for moved in [
            ("a", 1, "10.42.1.0/24", "192.0.2.9", 1),
            ("a", 1, "10.42.1.0/24", "192.0.2.9", 9),
        ] {
            assert!(table.take_list(list(&[moved])).is_changed);
            assert!(!table.take_list(list(&[moved])).is_changed);
            let own = own();
            let (peers, _) = table.choose_peers(PodNetworkBackend::Vxlan, false, &own);
            let found: Vec<_> = peers.iter().map(|p| (p.public_ip, p.mac)).collect();
            assert_eq!(found, [(ip(moved.3), mac(moved.4))]);
        }
    }

    #[test]
    fn nobody_takes_what_others_have() {
        // FLAN-09
        for (name, row, says) in [
            (
                "outside the network",
                ("evil", 9, "0.0.0.0/1", "192.0.2.9", 9),
                "its pod CIDR 0.0.0.0/1 is outside the network of pods",
            ),
            (
                "the whole network",
                ("evil", 0, "10.42.0.0/16", "192.0.2.9", 9),
                "its pod CIDR 10.42.0.0/16 overlaps that of this node",
            ),
            (
                "own range",
                ("evil", 0, "10.42.0.128/25", "192.0.2.9", 9),
                "its pod CIDR 10.42.0.128/25 overlaps that of this node",
            ),
            (
                "address of this machine",
                ("evil", 0, "10.42.77.0/24", "192.0.2.9", 9),
                "its pod CIDR 10.42.77.0/24 contains 10.42.77.1, the address of a node",
            ),
            (
                "public address of this machine",
                ("evil", 0, "10.42.9.0/24", "192.0.2.100", 9),
                "its public IP 192.0.2.100 cannot be that of another node",
            ),
            (
                "public address of a pod",
                ("evil", 0, "10.42.9.0/24", "10.42.1.7", 9),
                "its public IP 10.42.1.7 cannot be that of another node",
            ),
            (
                "range of an older node",
                ("evil", 9, "10.42.1.0/25", "192.0.2.9", 9),
                "its pod CIDR 10.42.1.0/25 belongs to the older node good",
            ),
            (
                "device of an older node",
                ("evil", 9, "10.42.9.0/24", "192.0.2.9", 1),
                "its hardware address 02:00:00:00:00:01 belongs to node good",
            ),
            (
                "own device",
                ("evil", 0, "10.42.9.0/24", "192.0.2.9", 100),
                "its hardware address 02:00:00:00:00:64 belongs to node this one",
            ),
        ] {
            let good = ("good", 5, "10.42.1.0/24", "192.0.2.1", 1);
            let table = table(&[row, good]);
            let own = own();
            let (peers, faults) = table.choose_peers(PodNetworkBackend::Vxlan, false, &own);
            let names: Vec<_> = peers.iter().map(|peer| peer.name).collect();
            assert_eq!(names, ["good"], "{name}");
            let faults: Vec<_> = faults.iter().map(|(n, f)| format!("{n}: {f}")).collect();
            assert_eq!(faults, [format!("evil: {says}")], "{name}");
        }
    }

    #[test]
    fn families_are_apart() {
        // FLAN-18
        let mut list = PeerList::default();
        for (name, v4, v6) in [
            ("both", Some("192.0.2.1"), Some("2001:db8::1")),
            ("four", Some("192.0.2.2"), None),
            ("six", None, Some("2001:db8::3")),
        ] {
            let place = |text: &str| NodePlace {
                public_ip: ip(text),
                mac: mac(name.as_bytes()[0]),
            };
            list.note_node(&ListedNode {
                name,
                uid: name,
                created_s: 1,
                announcement: Ok(Some(NodeAnnouncement {
                    v4: v4.map(place),
                    v6: v6.map(place),
                    fault: None,
                })),
            });
        }
        let mut table = PeerTable::default();
        table.take_list(list.clone());
        for (index, name) in ["both", "four", "six"].into_iter().enumerate() {
            let pods = [
                range(&format!("10.42.{}.0/24", index + 1)),
                range(&format!("fd42:0:0:{}::/64", index + 1)),
            ];
            learn(&mut table, name, &pods);
        }
        table.take_list(list);
        let own = own();
        for (is_v6, expected) in [(false, ["both", "four"]), (true, ["both", "six"])] {
            let (peers, faults) = table.choose_peers(PodNetworkBackend::Vxlan, is_v6, &own);
            let mut names: Vec<_> = peers.iter().map(|peer| peer.name).collect();
            names.sort_unstable();
            assert_eq!((&*names, faults.len()), (&expected[..], 0));
            assert!(
                peers
                    .iter()
                    .all(|peer| peer.range.address.is_ipv6() == is_v6)
            );
        }
    }

    #[test]
    fn a_hundred_nodes_are_small() {
        assert!(size_of::<PeerRecord>() <= 64);
        assert!(size_of::<PeerRecord>() + size_of::<PeerV6>() <= 96);
        let mut list = PeerList::default();
        for number in 0..=MAX_PEERS {
            let name = format!("node-{number:04}");
            list.note_node(&ListedNode {
                name: &name,
                uid: &name,
                created_s: 1,
                announcement: announced("192.0.2.1", 1),
            });
        }
        for name in [&*"n".repeat(254), "", "a/b", "..", "a?b"] {
            list.note_node(&ListedNode {
                name,
                uid: "wrong",
                created_s: 1,
                announcement: announced("192.0.2.1", 1),
            });
        }
        let mut table = PeerTable::default();
        assert_eq!(table.take_list(list).left_out, 1);
        assert_eq!(table.records.len(), MAX_PEERS);
        let bytes = table.names.capacity() + table.records.capacity() * size_of::<PeerRecord>();
        assert!(bytes / 10 <= 24 * 1024, "{bytes} for {MAX_PEERS}");
    }
}
