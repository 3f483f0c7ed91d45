//! Resources, their units, and who holds them (DEV-03, DEV-04, DEV-06, DEV-07, DEV-35, DEV-40). A resource is declared in the
//! configuration, and what is here of it is reported; or it is a plugin's, which lists it.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    vec::Vec,
};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Demand, Health, Refusal};
use crate::api::{Mono, PodUid, device::Number};

/// A unit that is gone no longer than this is not told of: a device resets itself, or somebody pulls the wrong plug.
const SHORT_ABSENCE: Duration = Duration::from_secs(5);

/// How long a resource is told of whose plugin has gone (DEV-04).
const PLUGIN_ABSENCE: Duration = Duration::from_secs(5 * 60);

/// A unit that is here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Lasting id, at most 63 bytes.
    pub id: Box<str>,
    /// Its nodes, for people.
    pub nodes: Box<str>,
    /// Another one: who has opened the nodes cannot go on with them.
    pub mark: u64,
    /// Numbers of its nodes: who has a unit may open whatever has them.
    pub numbers: Vec<Number>,
}

/// What one container holds of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// Container.
    pub container: Box<str>,
    /// Resource.
    pub resource: Box<str>,
    /// Ids of units; one that is held twice is there twice.
    pub ids: Vec<Box<str>>,
    /// The container ends before the regular ones begin, which may take over what it holds.
    #[serde(default)]
    pub plain_init: bool,
    /// It is a plugin's, which says what the container gets.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub plugin: bool,
}

/// A unit as its plugin lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id, 1 to 63 bytes.
    pub id: Box<str>,
    /// It can be given.
    pub healthy: bool,
}

/// What a plugin is asked before units are chosen: which of them it would choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Container.
    pub container: Box<str>,
    /// Resource.
    pub resource: Box<str>,
    /// Ids among which is chosen.
    pub available: Vec<Box<str>>,
    /// Those that the container gets anyway.
    pub must_include: Vec<Box<str>>,
    /// How many it gets in all.
    pub size: u32,
}

/// What the plugin would choose: a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preferred {
    /// Container.
    pub container: Box<str>,
    /// Resource.
    pub resource: Box<str>,
    /// Ids; what is not free of them does not count.
    pub ids: Vec<Box<str>>,
}

/// What a pod holds, container by container.
pub type PodDevices = Rc<Vec<Held>>;

/// Who holds a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Pod.
    pub pod: PodUid,
    /// Container.
    pub container: Box<str>,
}

/// Something that happened to a unit that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Resource.
    pub resource: Box<str>,
    /// Unit.
    pub id: Box<str>,
    /// Its nodes as they are, or were.
    pub nodes: Box<str>,
    /// What happened.
    pub what: What,
    /// Who holds it.
    pub holders: Vec<Holder>,
}

/// What happened to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It is gone.
    Lost,
    /// It is back. Neither `moved` nor `told`: after so short a time that nobody is told now either.
    Back {
        /// Its nodes are others.
        moved: bool,
        /// It was told that it is gone.
        told: bool,
    },
}

/// Amounts of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Resource.
    pub resource: Box<str>,
    /// How often its units may be held.
    pub capacity: u32,
    /// The same of those that are here.
    pub allocatable: u32,
}

/// A unit, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Resource.
    pub resource: Box<str>,
    /// Unit.
    pub id: Box<str>,
    /// Its nodes.
    pub nodes: Box<str>,
    /// It is here.
    pub healthy: bool,
    /// It is a plugin's.
    pub plugin: bool,
    /// How often it may be held.
    pub shares: u32,
    /// How often it is.
    pub used: u32,
    /// Who holds it.
    pub holders: Vec<Holder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Here,
    /// Since when, and nobody was told.
    Missing(Mono),
    /// Its plugin is, and nobody was told.
    Unknown,
    Lost,
}

#[derive(Clone, Debug)]
struct Unit {
    found: Found,
    presence: Presence,
    /// It is a part of what the node has, here or not.
    counts: bool,
}

impl Unit {
    const fn new(found: Found, presence: Presence) -> Self {
        Self {
            found,
            presence,
            counts: true,
        }
    }

    const fn is_told_of(&self) -> bool {
        matches!(self.presence, Presence::Here | Presence::Missing(_))
    }
}

/// How a resource that is a plugin's stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plugin {
    /// It is connected. Whether it has a say in which units are chosen.
    Here { prefers: bool },
    /// It has gone.
    Gone(Mono),
    /// That is long ago, or was before this agent.
    Forgotten,
}

#[derive(Clone, Debug, Default)]
struct Resource {
    shares: u32,
    units: Vec<Unit>,
    /// `None`: it is declared.
    plugin: Option<Plugin>,
}

impl Resource {
    fn here(&self) -> impl Iterator<Item = &Unit> {
        self.units.iter().filter(|u| u.presence == Presence::Here)
    }

    /// What was listed does not hold any more.
    fn doubt(&mut self) {
        for unit in &mut self.units {
            if unit.presence == Presence::Here {
                unit.presence = Presence::Unknown;
            }
        }
    }

    /// When it is forgotten.
    fn gone(&self) -> Option<Mono> {
        match self.plugin {
            Some(Plugin::Gone(since)) => Some(since + PLUGIN_ABSENCE),
            Some(Plugin::Here { .. } | Plugin::Forgotten) | None => None,
        }
    }

    fn has(&self, id: &str) -> bool {
        self.here().any(|unit| *unit.found.id == *id)
    }
}

/// A unit, as one container of a pod may have it.
struct Room<'a> {
    id: &'a str,
    /// How often it has it already.
    times: u32,
    had: bool,
    /// Its plugin would choose it.
    preferred: bool,
    /// So often the pod holds it anyway.
    no_charge: u32,
    /// How often other pods hold it.
    others: u32,
    /// How often the container may have it.
    most: u32,
}

impl Room<'_> {
    /// The least is next: one that the container had, one that an init container of the pod is done with by then, one that
    /// the plugin prefers, then the one that is used least.
    fn order(&self) -> (u32, bool, bool, bool, u32) {
        let costs = self.times >= self.no_charge;
        (self.times, !self.had, costs, !self.preferred, self.others)
    }

    /// The container gets it anyway.
    const fn is_given(&self) -> bool {
        self.most > 0 && (self.had || self.no_charge > 0)
    }
}

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub struct Table {
    resources: BTreeMap<Box<str>, Resource>,
    holders: BTreeMap<PodUid, PodDevices>,
    /// What plugins would choose for pods that wait.
    preferred: BTreeMap<PodUid, Vec<Preferred>>,
}

impl Table {
    /// There is such a resource, whose units may be held so often. It has none yet.
    pub fn declare(&mut self, resource: &str, shares: u32) {
        let new = Resource {
            shares,
            ..Resource::default()
        };
        self.resources.insert(resource.into(), new);
    }

    /// A plugin offered the resource to an agent before this one. It has no units yet (DEV-12).
    pub fn recall(&mut self, resource: &str) {
        let known = self.resources.entry(resource.into());
        known.or_insert_with(|| Resource {
            shares: 1,
            units: Vec::new(),
            plugin: Some(Plugin::Forgotten),
        });
    }

    /// A plugin offers the resource, and lists its units next. `prefers`: it has a say in which units are chosen. Nothing
    /// happens if the resource is declared.
    pub fn register(&mut self, resource: &str, prefers: bool) {
        self.recall(resource);
        if let Some(known) = self.resources.get_mut(resource)
            && known.plugin.is_some()
        {
            known.plugin = Some(Plugin::Here { prefers });
            known.doubt();
        }
    }

    /// Whether the resource is a plugin's.
    #[must_use]
    pub fn is_plugins(&self, resource: &str) -> bool {
        let known = self.resources.get(resource);
        known.is_some_and(|known| known.plugin.is_some())
    }

    /// A plugin lists its units, all of them (DEV-03). Returns what happened to those that are held.
    pub fn list(&mut self, resource: &str, all: Vec<Listed>) -> Vec<Change> {
        let known = self.resources.get_mut(resource);
        let Some(known) = known.filter(|known| known.plugin.is_some()) else {
            return Vec::new();
        };
        let mut all: BTreeMap<Box<str>, bool> =
            all.into_iter().map(|l| (l.id, l.healthy)).collect();
        let mut changes = Vec::new();
        for unit in &mut known.units {
            let listed = all.remove(&unit.found.id);
            let was_lost = unit.presence == Presence::Lost;
            unit.counts = listed.is_some();
            unit.presence = match listed {
                Some(true) => Presence::Here,
                Some(false) | None => Presence::Lost,
            };
            let what = match (was_lost, unit.presence == Presence::Lost) {
                (false, true) => What::Lost,
                (true, false) => What::Back {
                    moved: false,
                    told: true,
                },
                (true, true) | (false, false) => continue,
            };
            changes.push((unit.found.clone(), what));
        }
        for (id, healthy) in all {
            let presence = match healthy {
                true => Presence::Here,
                false => Presence::Lost,
            };
            let found = Found {
                id,
                ..Found::default()
            };
            known.units.push(Unit::new(found, presence));
        }
        let changes = self.of_holders(resource, changes);
        self.forget_lost();
        changes
    }

    /// The plugin has gone: nothing of it can be given (DEV-04). Containers that hold something go on, and nobody is told: as a
    /// rule it is back soon.
    pub fn disconnect(&mut self, resource: &str, now: Mono) {
        let known = self.resources.get_mut(resource);
        let Some(known) = known.filter(|known| known.plugin.is_some()) else {
            return;
        };
        known.plugin = Some(Plugin::Gone(now));
        known.doubt();
    }

    /// Whether the resource can make room for that of another plugin: its own has gone long ago, the node tells of none of its
    /// units by now, and no pod holds any (DEV-11).
    #[must_use]
    pub fn can_spare(&self, resource: &str) -> bool {
        let known = self.resources.get(resource);
        let is_held = |held: &Held| *held.resource == *resource;
        known.is_some_and(|known| known.plugin == Some(Plugin::Forgotten))
            && !self.holders.values().any(|all| all.iter().any(is_held))
    }

    /// The resource makes room. Nothing happens if it cannot.
    pub fn spare(&mut self, resource: &str) {
        if self.can_spare(resource) {
            self.resources.remove(resource);
        }
    }

    /// Names of the resources, sorted.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.resources.keys().map(|name| &**name)
    }

    /// A pod holds this since before this agent.
    pub fn restore(&mut self, pod: PodUid, held: Vec<Held>) {
        for held in &held {
            if held.plugin {
                self.recall(&held.resource);
            }
            let Some(resource) = self.resources.get_mut(&held.resource) else {
                continue;
            };
            for id in &held.ids {
                if !resource.units.iter().any(|unit| unit.found.id == *id) {
                    let found = Found {
                        id: id.clone(),
                        ..Found::default()
                    };
                    let mut unit = Unit::new(found, Presence::Lost);
                    if resource.plugin.is_some() {
                        // It is not lost: its plugin begins, too.
                        unit.presence = Presence::Unknown;
                        unit.counts = false;
                    }
                    resource.units.push(unit);
                }
            }
        }
        self.holders.insert(pod, Rc::new(held));
    }

    /// The units of a resource that are here now, all of them. Returns what happened to those that are held.
    pub fn report(&mut self, resource: &str, all: Vec<Found>, now: Mono) -> Vec<Change> {
        let Some(known) = self.resources.get_mut(resource) else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        for unit in &mut known.units {
            match all.iter().find(|found| found.id == unit.found.id) {
                None if unit.presence == Presence::Here => unit.presence = Presence::Missing(now),
                None => {}
                Some(found) => {
                    let moved = unit.found.mark != found.mark;
                    let told = unit.presence == Presence::Lost;
                    let was_missing = matches!(unit.presence, Presence::Missing(_));
                    unit.found.clone_from(found);
                    unit.presence = Presence::Here;
                    if told || moved || was_missing {
                        changes.push((unit.found.clone(), What::Back { moved, told }));
                    }
                }
            }
        }
        for found in all {
            if !known.units.iter().any(|unit| unit.found.id == found.id) {
                known.units.push(Unit::new(found, Presence::Here));
            }
        }
        self.of_holders(resource, changes)
    }

    /// Time has passed. Returns the units that are held and gone.
    pub fn handle_timeout(&mut self, now: Mono) -> Vec<Change> {
        let mut lost = Vec::new();
        for (name, resource) in &mut self.resources {
            let gone = resource.gone().is_some_and(|due| due <= now);
            if gone {
                resource.plugin = Some(Plugin::Forgotten);
            }
            for unit in &mut resource.units {
                unit.counts &= !gone;
                let is_new = unit.presence != Presence::Lost;
                if gone && is_new || due(unit).is_some_and(|due| due <= now) {
                    unit.presence = Presence::Lost;
                    lost.push((name.clone(), unit.found.clone()));
                }
            }
        }
        let mut changes = Vec::new();
        for (name, found) in lost {
            changes.extend(self.of_holders(&name, Vec::from([(found, What::Lost)])));
        }
        self.forget_lost();
        changes
    }

    /// When [`Table::handle_timeout`] has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Mono> {
        let gone = self.resources.values().filter_map(Resource::gone);
        let all = self.resources.values().flat_map(|r| &r.units);
        all.filter_map(due).chain(gone).min()
    }

    fn of_holders(&self, resource: &str, changes: Vec<(Found, What)>) -> Vec<Change> {
        let changes = changes.into_iter().map(|(found, what)| Change {
            resource: resource.into(),
            holders: self.holders_of(resource, &found.id),
            id: found.id,
            nodes: found.nodes,
            what,
        });
        changes.filter(|c| !c.holders.is_empty()).collect()
    }

    fn holders_of(&self, resource: &str, id: &str) -> Vec<Holder> {
        let mut holders = Vec::new();
        for (pod, held) in &self.holders {
            let holds = |h: &&Held| *h.resource == *resource && h.ids.iter().any(|i| **i == *id);
            holders.extend(held.iter().filter(holds).map(|h| Holder {
                pod: pod.clone(),
                container: h.container.clone(),
            }));
        }
        holders
    }

    /// What is gone and nobody holds is not waited for.
    fn forget_lost(&mut self) {
        for (name, resource) in &mut self.resources {
            let holders = &self.holders;
            let is_held = |id: &str| holders.values().any(|held| uses(held, name, id) > 0);
            let plugin = resource.plugin.is_some();
            let units = &mut resource.units;
            units.retain(|unit| {
                let stays = unit.is_told_of() || plugin && unit.counts;
                stays || is_held(&unit.found.id)
            });
        }
    }

    /// What the pod holds.
    #[must_use]
    pub fn held_by(&self, pod: &PodUid) -> Option<&PodDevices> {
        self.holders.get(pod)
    }

    /// Takes back what pods hold that are not among these (DEV-14). Returns whether there was any.
    pub fn release(&mut self, keeps: impl Fn(&PodUid) -> bool) -> bool {
        let before = self.holders.len();
        self.holders.retain(|pod, _| keeps(pod));
        self.preferred.retain(|pod, _| keeps(pod));
        let released = self.holders.len() < before;
        if released {
            self.forget_lost();
        }
        released
    }

    /// The first resource that nobody offers (DEV-05).
    #[must_use]
    pub fn unregistered(&self, demands: &[Demand]) -> Option<Refusal> {
        let unknown = |demand: &&Demand| !self.resources.contains_key(&*demand.resource);
        let demand = demands.iter().find(unknown)?;
        Some(Refusal::Unregistered(demand.resource.as_str().into()))
    }

    /// Whether [`Table::allocate`] would succeed.
    ///
    /// # Errors
    /// Why it would not.
    pub fn check(&self, pod: &PodUid, demands: &[Demand]) -> Result<(), Refusal> {
        self.choose(pod, demands).map(drop)
    }

    /// What a plugin is to be asked before the pod is given what it asks for (DEV-06); `None`: nothing, or it would get nothing.
    #[must_use]
    pub fn question(&self, pod: &PodUid, demands: &[Demand]) -> Option<Question> {
        let mut question = None;
        let chosen = self.choose_each(pod, demands, |resource, demand, rooms| {
            let prefers = resource.plugin == Some(Plugin::Here { prefers: true });
            if !prefers || question.is_some() || self.preference(pod, demand).is_some() {
                return;
            }
            let ids = |rooms: &mut dyn Iterator<Item = &Room<'_>>| {
                rooms.map(|room| room.id.into()).collect::<Vec<Box<str>>>()
            };
            let mut must_include = ids(&mut rooms.iter().filter(|room| room.is_given()));
            let size = usize::try_from(demand.count).unwrap_or(usize::MAX);
            must_include.truncate(size);
            if must_include.len() == size {
                return;
            }
            question = Some(Question {
                container: demand.container.as_str().into(),
                resource: demand.resource.as_str().into(),
                available: ids(&mut rooms.iter().filter(|room| room.most > 0)),
                must_include,
                size: demand.count,
            });
        });
        chosen.ok().and(question)
    }

    /// A plugin has answered.
    pub fn prefer(&mut self, pod: &PodUid, answer: Preferred) {
        self.preferred.entry(pod.clone()).or_default().push(answer);
    }

    fn preference(&self, pod: &PodUid, demand: &Demand) -> Option<&Preferred> {
        let of =
            |p: &&Preferred| *p.container == *demand.container && *p.resource == *demand.resource;
        self.preferred.get(pod)?.iter().find(of)
    }

    /// Gives a pod what it asks for, of which nothing runs: what it holds and can use it keeps. Resources that are not
    /// known here are passed over: a cluster may count them by itself.
    ///
    /// # Errors
    /// Something is not here or is not free. Nothing has changed then.
    pub fn allocate(&mut self, pod: &PodUid, demands: &[Demand]) -> Result<(), Refusal> {
        let held = self.choose(pod, demands)?;
        self.preferred.remove(pod);
        match held.is_empty() {
            true => self.holders.remove(pod),
            false => self.holders.insert(pod.clone(), Rc::new(held)),
        };
        self.forget_lost();
        Ok(())
    }

    /// Whether all that the pod holds is here.
    #[must_use]
    pub fn can_use(&self, pod: &PodUid) -> bool {
        let is_here = |held: &Held| {
            let known = self.resources.get(&held.resource);
            known.is_some_and(|known| held.ids.iter().all(|id| known.has(id)))
        };
        self.holders
            .get(pod)
            .is_none_or(|held| held.iter().all(is_here))
    }

    /// Gives a pod other units for those that it cannot use any more: before anything of it began, and it could not begin with
    /// what it holds. Nothing happens if all of that is here (DEV-08).
    ///
    /// # Errors
    /// As of [`Table::allocate`].
    pub fn allocate_again(&mut self, pod: &PodUid, demands: &[Demand]) -> Result<(), Refusal> {
        match self.can_use(pod) {
            true => Ok(()),
            false => self.allocate(pod, demands),
        }
    }

    fn choose(&self, pod: &PodUid, demands: &[Demand]) -> Result<Vec<Held>, Refusal> {
        self.choose_each(pod, demands, |_, _, _| {})
    }

    /// Chooses for one demand after the other; `look` sees what there is for each that can be met.
    fn choose_each(
        &self,
        pod: &PodUid,
        demands: &[Demand],
        mut look: impl FnMut(&Resource, &Demand, &[Room<'_>]),
    ) -> Result<Vec<Held>, Refusal> {
        let before = self.holders.get(pod).map_or(&[][..], |held| held);
        let mut held: Vec<Held> = Vec::new();
        for demand in demands {
            let name = demand.resource.as_str();
            let Some(resource) = self.resources.get(name) else {
                continue;
            };
            let had = before
                .iter()
                .find(|h| *h.container == *demand.container && *h.resource == *name)
                .map_or(&[][..], |h| &h.ids);
            let mut new = Held {
                container: demand.container.as_str().into(),
                resource: name.into(),
                ids: Vec::new(),
                plain_init: demand.plain_init,
                plugin: resource.plugin.is_some(),
            };
            let mut rooms = self.rooms(pod, resource, demand, &held, had);
            let available = rooms.iter().map(|room| room.most);
            let available = available.fold(0, u32::saturating_add);
            if available < demand.count {
                return Err(refusal(resource, demand, available, had));
            }
            look(resource, demand, &rooms);
            for _ in 0..demand.count {
                let free = rooms.iter_mut().filter(|room| room.times < room.most);
                let Some(best) = free.min_by_key(|room| room.order()) else {
                    break;
                };
                best.times += 1;
                new.ids.push(best.id.into());
            }
            held.push(new);
        }
        Ok(held)
    }

    /// What a container may have of each unit that is here, if the pod holds `held` besides.
    fn rooms<'a>(
        &self,
        pod: &PodUid,
        resource: &'a Resource,
        demand: &Demand,
        held: &[Held],
        had: &[Box<str>],
    ) -> Vec<Room<'a>> {
        let name = demand.resource.as_str();
        let reachable = self.reachable(pod, name, resource.shares);
        let preferred = self.preference(pod, demand);
        let preferred = preferred.map_or(&[][..], |p| &p.ids);
        let closed = |unit: &Unit| unit.found.numbers.iter().any(|n| reachable.contains(n));
        let units = resource.here().filter(|unit| !closed(unit));
        let rooms = units.map(|unit| {
            let id = &unit.found.id;
            let others = self.holders.iter().filter(|(other, _)| *other != pod);
            let others = others
                .map(|(_, held)| uses(held, name, id))
                .fold(0, u32::saturating_add);
            let (init, regular) = parts(held, name, id);
            let left = resource.shares.saturating_sub(others);
            Room {
                id,
                times: 0,
                had: had.contains(id),
                preferred: preferred.contains(id),
                no_charge: init.saturating_sub(regular),
                others,
                most: left.saturating_sub(regular),
            }
        });
        rooms.collect()
    }

    /// Numbers that other pods can open, and that are to be nobody else's: of units that are gone while those pods hold them,
    /// whatever has such a number now; and of units of other resources, if either of them is given to one at a time. `wanted`
    /// has so many `shares`.
    fn reachable(&self, pod: &PodUid, wanted: &str, shares: u32) -> BTreeSet<Number> {
        let mut numbers = BTreeSet::new();
        for (name, resource) in &self.resources {
            let is_exclusive = **name != *wanted && (shares == 1 || resource.shares == 1);
            for unit in &resource.units {
                let mut others = self.holders.iter().filter(|(other, _)| *other != pod);
                if (is_exclusive || unit.presence != Presence::Here)
                    && others.any(|(_, held)| uses(held, name, &unit.found.id) > 0)
                {
                    numbers.extend(&unit.found.numbers);
                }
            }
        }
        numbers
    }

    /// How much there is of each resource, by name.
    #[must_use]
    pub fn amounts(&self) -> Vec<Amount> {
        let all = self.resources.iter();
        all.map(|(name, resource)| {
            let count = |units: usize| {
                let units = u32::try_from(units).unwrap_or(u32::MAX);
                units.saturating_mul(resource.shares)
            };
            let all = || resource.units.iter().filter(|unit| unit.counts);
            Amount {
                resource: name.clone(),
                capacity: count(all().count()),
                allocatable: count(all().filter(|unit| unit.is_told_of()).count()),
            }
        })
        .collect()
    }

    /// How a unit is that somebody holds (DEV-15). `starts`: the agent is so new that plugins of before it may yet come.
    #[must_use]
    pub fn health(&self, resource: &str, id: &str, starts: bool) -> Health {
        let Some(known) = self.resources.get(resource) else {
            return Health::Unhealthy;
        };
        let unit = known.units.iter().find(|unit| *unit.found.id == *id);
        match (unit.map(|unit| unit.presence), known.plugin) {
            (Some(Presence::Here | Presence::Missing(_)), _) => Health::Healthy,
            (Some(Presence::Unknown), Some(Plugin::Here { .. })) => Health::Unsaid,
            (Some(Presence::Unknown), Some(Plugin::Forgotten)) if starts => Health::Unsaid,
            (Some(Presence::Unknown | Presence::Lost) | None, _) => Health::Unhealthy,
        }
    }

    /// Who holds what a plugin has not listed since it registered: until it does, nobody knows how that is.
    #[must_use]
    pub fn in_doubt(&self, resource: &str) -> Vec<PodUid> {
        let known = self.resources.get(resource);
        let units = known.map_or(&[][..], |known| &known.units);
        let doubted = units.iter().filter(|u| u.presence == Presence::Unknown);
        let holders = doubted.flat_map(|unit| self.holders_of(resource, &unit.found.id));
        let pods: BTreeSet<PodUid> = holders.map(|holder| holder.pod).collect();
        pods.into_iter().collect()
    }

    /// Every unit, by resource. The resource of a plugin that has none is there once, without an id.
    #[must_use]
    pub fn shown(&self) -> Vec<Shown> {
        let mut shown = Vec::new();
        for (name, resource) in &self.resources {
            let plugin = resource.plugin.is_some();
            if plugin && resource.units.is_empty() {
                shown.push(Shown {
                    resource: name.clone(),
                    plugin,
                    ..Shown::default()
                });
            }
            shown.extend(resource.units.iter().map(|unit| Shown {
                resource: name.clone(),
                id: unit.found.id.clone(),
                nodes: unit.found.nodes.clone(),
                healthy: unit.is_told_of(),
                plugin,
                shares: resource.shares,
                used: self.used(name, &unit.found.id),
                holders: self.holders_of(name, &unit.found.id),
            }));
        }
        shown
    }

    fn used(&self, resource: &str, id: &str) -> u32 {
        let pods = self.holders.values();
        pods.map(|held| uses(held, resource, id))
            .fold(0, u32::saturating_add)
    }
}

fn due(unit: &Unit) -> Option<Mono> {
    match unit.presence {
        Presence::Missing(since) => Some(since + SHORT_ABSENCE),
        Presence::Here | Presence::Unknown | Presence::Lost => None,
    }
}

fn refusal(resource: &Resource, demand: &Demand, available: u32, had: &[Box<str>]) -> Refusal {
    let name = || demand.resource.as_str().into();
    if had.iter().any(|id| !resource.has(id)) {
        return Refusal::NoLongerHealthy(name());
    }
    if resource.here().next().is_none() {
        return Refusal::NoneHealthy(name());
    }
    Refusal::TooFew {
        resource: name(),
        requested: demand.count,
        available,
    }
}

/// How often a pod holds a unit: plain init containers run one after the other, beside the sidecars that began before them,
/// and before all others.
fn uses(held: &[Held], resource: &str, id: &str) -> u32 {
    let (init, others) = parts(held, resource, id);
    init.max(others)
}

/// The same while its plain init containers run, and of the others after them. `held` is in the order in which they begin.
fn parts(held: &[Held], resource: &str, id: &str) -> (u32, u32) {
    let (mut init, mut others) = (0, 0_u32);
    for held in held.iter().filter(|h| *h.resource == *resource) {
        let times = held.ids.iter().filter(|i| ***i == *id).count();
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        match held.plain_init {
            true => init = init.max(others.saturating_add(times)),
            false => others = others.saturating_add(times),
        }
    }
    (init, others)
}

#[cfg(test)]
mod tests {
    use alloc::{
        borrow::ToOwned,
        format,
        string::{String, ToString},
        vec,
    };

    use super::*;

    const R: &str = "picolet/serial";

    fn found(id: &str, mark: u64) -> Found {
        Found {
            id: id.into(),
            nodes: format!("/dev/{id}").into(),
            mark,
            numbers: Vec::new(),
        }
    }

    fn tty(id: &str, minor: u32) -> Found {
        Found {
            numbers: vec![(false, 188, minor)],
            ..found(id, u64::from(minor))
        }
    }

    fn table(shares: u32, ids: &[&str]) -> Table {
        let mut table = Table::default();
        table.declare(R, shares);
        let changes = table.report(R, ids.iter().map(|id| found(id, 1)).collect(), Mono(0));
        assert!(changes.is_empty());
        table
    }

    fn asks(container: &str, count: u32) -> Demand {
        Demand {
            container: container.into(),
            resource: R.into(),
            count,
            plain_init: container.starts_with("init"),
        }
    }

    fn pod(name: &str) -> PodUid {
        PodUid::from(name)
    }

    fn ids(table: &Table, name: &str) -> String {
        let held = table.held_by(&pod(name));
        let all = held.into_iter().flat_map(|h| h.iter());
        let all: Vec<String> = all
            .map(|h| format!("{}={}", h.container, h.ids.join("+")))
            .collect();
        all.join(" ")
    }

    #[test]
    fn each_unit_once() {
        // DEV-06 DEV-07 DEV-35
        let mut table = table(1, &["a", "b"]);
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("b");
        assert_eq!(
            (ids(&table, "p"), ids(&table, "q")),
            ("c=a".into(), "c=b".into())
        );
        let refused = table.allocate(&pod("r"), &[asks("c", 1)]);
        let refused = refused.expect_err("none is free");
        assert_eq!(
            refused.rejection().message,
            "Allocate failed due to requested number of devices unavailable for picolet/serial. Requested: 1, \
             Available: 0, which is unexpected"
        );
        assert_eq!(refused.rejection().reason, "UnexpectedAdmissionError");
        // What a pod has it keeps, also in another order.
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("b again");
        assert_eq!(ids(&table, "q"), "c=b");
        // All of a pod, or nothing.
        table.release(|p| *p == pod("q"));
        let refused = table.allocate(&pod("r"), &[asks("c", 1), asks("d", 1)]);
        assert_eq!(
            refused.expect_err("one is free").to_string(),
            "requested number of devices unavailable for picolet/serial. Requested: 1, Available: 0"
        );
        assert_eq!(ids(&table, "r"), "");
        table.allocate(&pod("r"), &[asks("d", 1)]).expect("a");
        assert_eq!(ids(&table, "r"), "d=a");
        // Another amount: anew.
        table.release(|_| false);
        table.allocate(&pod("r"), &[asks("d", 2)]).expect("both");
        assert_eq!(ids(&table, "r"), "d=a+b");
    }

    #[test]
    fn shared_units() {
        // DEV-35
        let mut shared = table(2, &["a", "b"]);
        for (name, got) in [("p", "c=a"), ("q", "c=b"), ("r", "c=a"), ("s", "c=b")] {
            shared.allocate(&pod(name), &[asks("c", 1)]).expect(name);
            assert_eq!(ids(&shared, name), got, "the one that is used least");
        }
        assert!(shared.check(&pod("t"), &[asks("c", 1)]).is_err());
        assert_eq!(
            shared.amounts(),
            [Amount {
                resource: R.into(),
                capacity: 4,
                allocatable: 4
            }]
        );
        let mut shared = table(2, &["a"]);
        shared.allocate(&pod("p"), &[asks("c", 2)]).expect("twice");
        assert_eq!(ids(&shared, "p"), "c=a+a");
        assert!(shared.check(&pod("q"), &[asks("c", 1)]).is_err());
    }

    #[test]
    fn init_containers() {
        // DEV-06
        let mut table = table(1, &["a", "b"]);
        let demands = [
            asks("init1", 2),
            asks("init2", 1),
            asks("sidecar", 1),
            asks("c", 1),
        ];
        table.allocate(&pod("p"), &demands).expect("reused");
        assert_eq!(ids(&table, "p"), "init1=a+b init2=a sidecar=a c=b");
        assert!(table.check(&pod("q"), &[asks("c", 1)]).is_err());
        // Regular ones take what init containers had, although others are free.
        table.release(|_| false);
        table.allocate(&pod("o"), &[asks("c", 1)]).expect("a");
        table
            .allocate(&pod("p"), &[asks("init", 1), asks("c", 1)])
            .expect("b");
        assert_eq!(ids(&table, "p"), "init=b c=b");
    }

    #[test]
    fn sidecars_keep_theirs() {
        // DEV-06
        let both = [asks("sidecar", 1), asks("init", 1)];
        let mut one = table(1, &["a"]);
        let refused = one.allocate(&pod("p"), &both).expect_err("it runs still");
        assert!(refused.to_string().ends_with("Requested: 1, Available: 0"));
        let mut two = table(1, &["a", "b"]);
        two.allocate(&pod("p"), &both).expect("one each");
        assert_eq!(ids(&two, "p"), "sidecar=a init=b");
        // What a plain init container had is free for who begins after it, and for nobody who began before.
        let all = [
            asks("init1", 1),
            asks("sidecar1", 1),
            asks("init2", 1),
            asks("sidecar2", 1),
        ];
        two.allocate(&pod("o"), &all).expect_err("p holds both");
        two.release(|_| false);
        two.allocate(&pod("o"), &all).expect("reused");
        assert_eq!(ids(&two, "o"), "init1=a sidecar1=a init2=b sidecar2=b");
        let mut more = all.to_vec();
        more.push(asks("c", 1));
        assert!(
            two.check(&pod("o"), &more).is_err(),
            "sidecars run beside it"
        );
        // A unit that two may hold at once: a regular container follows the plain one.
        let all = [asks("sidecar", 1), asks("init", 1), asks("c", 1)];
        for demands in [&all[..2], &all] {
            let mut shared = table(2, &["a"]);
            shared.allocate(&pod("p"), demands).expect("two at a time");
            assert!(shared.check(&pod("q"), &[asks("c", 1)]).is_err());
            assert_eq!(shared.shown()[0].used, 2);
        }
    }

    #[test]
    fn far_too_many() {
        // DEV-07
        let mut table = table(1024, &["a", "b"]);
        table.allocate(&pod("p"), &[asks("c", 3)]).expect("some");
        for container in ["c", "init"] {
            let refused = table.check(&pod("q"), &[asks(container, 4_000_000_000)]);
            assert_eq!(
                refused.expect_err("too many"),
                Refusal::TooFew {
                    resource: R.into(),
                    requested: 4_000_000_000,
                    available: 2045
                }
            );
        }
        // What another container of the pod has is not free either.
        let refused = table.check(&pod("q"), &[asks("c", 2000), asks("d", 46)]);
        let refused = refused.expect_err("too many").to_string();
        assert!(refused.ends_with("Requested: 46, Available: 45"));
        let all = [asks("init", 2045), asks("c", 2000), asks("d", 45)];
        table.allocate(&pod("q"), &all).expect("the rest");
    }

    #[test]
    fn another_takes_the_number() {
        // DEV-40
        const OTHER: &str = "picolet/other";
        let mut table = table(1, &[]);
        table.declare(OTHER, 1);
        table.report(R, vec![tty("a", 0), tty("b", 1)], Mono(0));
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        table.report(R, vec![tty("b", 0), tty("d", 2)], Mono(1));
        table.report(OTHER, vec![tty("x", 0)], Mono(1));
        let mut other = asks("c", 1);
        other.resource = OTHER.into();
        for lost in [false, true] {
            if lost {
                table.handle_timeout(Mono(10_000));
            }
            let refused = table.check(&pod("q"), &[asks("c", 2)]).expect_err("one");
            assert_eq!(
                refused.to_string(),
                "requested number of devices unavailable for picolet/serial. Requested: 2, Available: 1"
            );
            let refused = table.check(&pod("q"), core::slice::from_ref(&other));
            let refused = refused.expect_err("of any resource").to_string();
            assert!(refused.ends_with("Requested: 1, Available: 0"), "{refused}");
        }
        // Its own number is nothing new to the holder, of which nothing runs then.
        assert_eq!(table.check(&pod("p"), &[asks("c", 2)]), Ok(()));
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("d");
        assert_eq!(ids(&table, "q"), "c=d");
        // The holding ends.
        let mut after = table.clone();
        after.release(|p| *p != pod("p"));
        after.allocate(&pod("r"), &[asks("c", 1)]).expect("b");
        assert_eq!(ids(&after, "r"), "c=b");
        // Or what is held is back, with another number.
        table.report(R, vec![tty("a", 3), tty("b", 0), tty("d", 2)], Mono(11_000));
        table.allocate(&pod("r"), &[asks("c", 1)]).expect("b");
        assert_eq!(ids(&table, "r"), "c=b");
    }

    #[test]
    fn two_resources_have_one_node() {
        // DEV-30
        const OTHER: &str = "picolet/other";
        let of = |resource: &str| Demand {
            resource: resource.into(),
            ..asks("c", 1)
        };
        for (shares, others, is_free) in [(1, 1, false), (1, 2, false), (2, 1, false), (2, 2, true)]
        {
            let mut table = table(shares, &[]);
            table.declare(OTHER, others);
            table.report(R, vec![tty("a", 0)], Mono(0));
            table.report(OTHER, vec![tty("x", 0), tty("y", 1)], Mono(0));
            table.allocate(&pod("p"), &[of(R)]).expect("a");
            table.allocate(&pod("q"), &[of(OTHER)]).expect("y at least");
            let expected = if is_free { "c=x" } else { "c=y" };
            assert_eq!(ids(&table, "q"), expected, "{shares} {others}");
            // Its own node is free for the pod that has it.
            assert_eq!(table.check(&pod("p"), &[of(R), of(OTHER)]), Ok(()));
            table.release(|_| false);
            table.allocate(&pod("q"), &[of(OTHER)]).expect("x");
            assert_eq!(ids(&table, "q"), "c=x");
            let refused = table.check(&pod("p"), &[of(R)]);
            assert_eq!(refused.is_ok(), is_free, "{shares} {others}");
        }
    }

    #[test]
    fn how_much_is_used() {
        // DEV-37
        let mut once = table(1, &["a"]);
        let both = [asks("init", 1), asks("c", 1)];
        once.allocate(&pod("p"), &both)
            .expect("one after the other");
        let shown = once.shown().remove(0);
        assert_eq!((shown.used, shown.shares, shown.holders.len()), (1, 1, 2));
        let mut twice = table(2, &["a"]);
        twice.allocate(&pod("p"), &[asks("c", 2)]).expect("twice");
        let shown = twice.shown().remove(0);
        assert_eq!((shown.used, shown.shares, shown.holders.len()), (2, 2, 1));
    }

    #[test]
    fn a_twin_is_plugged_in() {
        // DEV-36 DEV-40
        let mut table = table(1, &[]);
        table.report(R, vec![tty("serial", 0)], Mono(0));
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("it");
        // By their ports now.
        let two = vec![tty("port1", 0), tty("port2", 1)];
        table.report(R, two, Mono(1));
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("twin");
        assert_eq!(ids(&table, "q"), "c=port2");
        assert!(table.check(&pod("r"), &[asks("c", 1)]).is_err());
        assert_eq!(ids(&table, "p"), "c=serial");
    }

    #[test]
    fn what_nobody_offers() {
        // DEV-05 DEV-07
        let mut table = table(1, &["a"]);
        let mut other = asks("c", 1);
        other.resource = "example.com/x".into();
        let refusal = table.unregistered(&[asks("c", 1), other.clone()]);
        let refusal = refusal.expect("unknown");
        assert_eq!(
            refusal.to_string(),
            "cannot allocate unregistered device example.com/x"
        );
        assert_eq!(table.unregistered(&[asks("c", 1)]), None);
        table.allocate(&pod("p"), &[other]).expect("passed over");
        assert_eq!(table.held_by(&pod("p")), None);
    }

    #[test]
    fn unplugged_and_back() {
        // DEV-39 DEV-40
        let mut table = table(1, &["a", "b"]);
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        let at = |s: u64| Mono(s * 1000);
        assert_eq!(table.report(R, vec![], at(10)), []);
        let amounts = |table: &Table| {
            let amount = table.amounts().remove(0);
            (amount.capacity, amount.allocatable)
        };
        assert_eq!(amounts(&table), (2, 2), "nobody is told yet");
        assert!(
            table.check(&pod("q"), &[asks("c", 1)]).is_err(),
            "yet it is not given"
        );
        assert_eq!(table.next_timeout(), Some(at(15)));
        // A short absence: nobody is told, and who wants a restart at any replug gets it.
        let short = table.report(R, vec![found("a", 1), found("b", 1)], at(12));
        let back = |moved, told| What::Back { moved, told };
        let whats: Vec<_> = short.iter().map(|c| (&*c.id, c.what)).collect();
        assert_eq!(whats, [("a", back(false, false))], "the one that is held");
        assert_eq!(table.next_timeout(), None);
        let same = table.report(R, vec![found("a", 1), found("b", 1)], at(12));
        assert_eq!(same, [], "it was never gone");
        // A short one, and it is another node by now.
        assert_eq!(table.report(R, vec![], at(13)), []);
        let moved = table.report(R, vec![found("a", 2)], at(14));
        assert_eq!(moved[0].what, back(true, false));
        // A long one.
        assert_eq!(table.report(R, vec![], at(20)), []);
        assert_eq!(table.handle_timeout(at(24)), []);
        let lost = table.handle_timeout(at(25));
        let [lost] = &*lost else {
            panic!("the one that is held: {lost:?}");
        };
        let holder = Holder {
            pod: pod("p"),
            container: "c".into(),
        };
        assert_eq!((lost.what, &lost.holders), (What::Lost, &vec![holder]));
        assert_eq!(amounts(&table), (1, 0), "what nobody holds is forgotten");
        assert_eq!(ids(&table, "p"), "c=a", "the allocation is kept");
        let refused = table.check(&pod("p"), &[asks("c", 1)]).expect_err("gone");
        assert_eq!(
            refused.to_string(),
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices picolet/serial"
        );
        let refused = table.check(&pod("q"), &[asks("c", 1)]).expect_err("gone");
        assert_eq!(
            refused.to_string(),
            "no healthy devices present; cannot allocate unhealthy devices picolet/serial"
        );
        let changes = table.report(R, vec![found("a", 2)], at(30));
        assert_eq!(changes[0].what, back(false, true));
        assert_eq!(amounts(&table), (1, 1));
        // Nobody waits for what a pod left behind.
        table.report(R, vec![], at(40));
        table.handle_timeout(at(45));
        table.release(|_| false);
        assert_eq!(amounts(&table), (0, 0));
    }

    #[test]
    fn another_agent_begins() {
        // DEV-12
        let mut table = table(1, &["a"]);
        let held = |ids: &[&str]| {
            vec![Held {
                container: "c".into(),
                resource: R.into(),
                ids: ids.iter().map(|id| (*id).into()).collect(),
                plain_init: false,
                plugin: false,
            }]
        };
        table.restore(pod("p"), held(&["a"]));
        table.restore(pod("q"), held(&["b"]));
        assert!(table.check(&pod("r"), &[asks("c", 1)]).is_err());
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("its own");
        assert_eq!(ids(&table, "p"), "c=a");
        assert_eq!(ids(&table, "q"), "c=b", "which is not here now");
        let shown: Vec<_> = table.shown();
        let shown = shown.iter();
        let shown: Vec<_> = shown
            .map(|s| (&*s.id, s.healthy, s.holders.len()))
            .collect();
        assert_eq!(shown, [("a", true, 1), ("b", false, 1)]);
        let back = table.report(R, vec![found("a", 1), found("b", 1)], Mono(1));
        assert_eq!(back.len(), 1);
        // A pod of which nothing runs takes another one, if its own is gone.
        table.report(R, vec![found("c", 1)], Mono(2));
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("another");
        assert_eq!(ids(&table, "q"), "c=c");
    }

    fn listed(ids: &[(&str, bool)]) -> Vec<Listed> {
        let all = ids.iter();
        all.map(|(id, healthy)| Listed {
            id: (*id).into(),
            healthy: *healthy,
        })
        .collect()
    }

    fn of_plugin(ids: &[(&str, bool)], prefers: bool) -> Table {
        let mut table = Table::default();
        table.register(R, prefers);
        assert_eq!(table.list(R, listed(ids)), []);
        table
    }

    fn amounts(table: &Table) -> (u32, u32) {
        let amount = table.amounts().remove(0);
        (amount.capacity, amount.allocatable)
    }

    #[test]
    fn lists_of_a_plugin() {
        // DEV-03
        let mut table = of_plugin(&[("a", true), ("b", false), ("c", true)], false);
        assert_eq!(
            amounts(&table),
            (3, 2),
            "all ids, and those that are healthy"
        );
        table.allocate(&pod("p"), &[asks("c", 2)]).expect("two");
        assert_eq!(ids(&table, "p"), "c=a+c");
        assert!(table.held_by(&pod("p")).expect("held")[0].plugin);
        let refused = table.check(&pod("q"), &[asks("c", 1)]).expect_err("none");
        assert!(refused.to_string().ends_with("Available: 0"));
        // A list replaces what was before. What is held and not listed is lost, and no part of the node any more.
        let changes = table.list(R, listed(&[("a", false), ("b", true)]));
        let lost = |c: &&Change| c.what == What::Lost;
        assert_eq!(changes.iter().filter(lost).count(), 2, "{changes:?}");
        assert_eq!(amounts(&table), (2, 1));
        assert_eq!(ids(&table, "p"), "c=a+c", "the allocation is kept");
        let changes = table.list(R, listed(&[("a", true)]));
        let [back] = &*changes else {
            panic!("one that is held: {changes:?}");
        };
        let what = What::Back {
            moved: false,
            told: true,
        };
        assert_eq!((&*back.id, back.what), ("a", what));
        assert_eq!(amounts(&table), (1, 1));
        let shown = table.shown();
        let shown: Vec<_> = shown
            .iter()
            .map(|s| (&*s.id, s.healthy, s.plugin))
            .collect();
        assert_eq!(shown, [("a", true, true), ("c", false, true)]);
    }

    #[test]
    fn what_is_declared_is_no_plugins() {
        // DEV-30
        let mut table = table(1, &["a"]);
        table.register(R, false);
        assert_eq!(table.list(R, listed(&[("x", true)])), []);
        table.disconnect(R, Mono(0));
        table.recall(R);
        assert_eq!(amounts(&table), (1, 1));
        assert!(!table.is_plugins(R));
    }

    #[test]
    fn a_plugin_goes() {
        // DEV-04
        let at = |s: u64| Mono(s * 1000);
        let mut table = of_plugin(&[("a", true), ("b", true)], false);
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        table.disconnect(R, at(10));
        assert_eq!(amounts(&table), (2, 0), "at once");
        let refused = table.check(&pod("q"), &[asks("c", 1)]).expect_err("gone");
        assert_eq!(refused, Refusal::NoneHealthy(R.into()));
        // It is back: nobody is told of anything.
        table.register(R, false);
        assert_eq!(amounts(&table), (2, 0), "until it lists");
        assert_eq!(table.list(R, listed(&[("a", true), ("b", true)])), []);
        assert_eq!((amounts(&table), table.next_timeout()), ((2, 2), None));
        // It does not come back.
        table.disconnect(R, at(20));
        assert_eq!(table.next_timeout(), Some(at(320)));
        assert_eq!(table.handle_timeout(at(319)), []);
        assert_eq!(amounts(&table), (2, 0));
        let lost = table.handle_timeout(at(320));
        assert_eq!(lost.len(), 1, "what is held");
        assert_eq!(amounts(&table), (0, 0), "none, but told of");
        assert_eq!(table.next_timeout(), None);
        assert_eq!(ids(&table, "p"), "c=a");
    }

    #[test]
    fn how_units_are() {
        // DEV-15
        let health = |table: &Table, id: &str| table.health(R, id, false);
        let mut table = of_plugin(&[("a", true), ("b", false)], false);
        assert_eq!(health(&table, "a"), Health::Healthy);
        assert_eq!(health(&table, "b"), Health::Unhealthy);
        assert_eq!(health(&table, "c"), Health::Unhealthy, "it is not listed");
        assert_eq!(table.health("x.io/y", "a", true), Health::Unhealthy);
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        assert_eq!(table.in_doubt(R), []);
        // The plugin goes, and comes back.
        table.disconnect(R, Mono(0));
        assert_eq!(health(&table, "a"), Health::Unhealthy);
        assert_eq!(table.in_doubt(R), [pod("p")]);
        table.register(R, false);
        assert_eq!(health(&table, "a"), Health::Unsaid);
        assert_eq!(table.list(R, listed(&[("a", true)])), []);
        assert_eq!(health(&table, "a"), Health::Healthy);
        assert_eq!(table.in_doubt(R), []);
        // Another agent begins, and the plugin has not come yet, or does not.
        let mut table = Table::default();
        let held = Held {
            container: "c".into(),
            resource: R.into(),
            ids: vec!["a".into()],
            plain_init: false,
            plugin: true,
        };
        table.restore(pod("p"), vec![held]);
        assert_eq!(table.health(R, "a", true), Health::Unsaid);
        assert_eq!(health(&table, "a"), Health::Unhealthy);
        // Of the machine: a short absence is not told.
        let mut table = self::table(1, &["a"]);
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        table.report(R, vec![], Mono(0));
        assert_eq!(health(&table, "a"), Health::Healthy);
        table.handle_timeout(Mono(5000));
        assert_eq!(health(&table, "a"), Health::Unhealthy);
        table.report(R, vec![found("a", 1)], Mono(6000));
        assert_eq!(health(&table, "a"), Health::Healthy);
    }

    #[test]
    fn what_went_bad_before_it_was_used() {
        // DEV-08
        let all = [("a", true), ("b", true), ("c", true)];
        let mut table = of_plugin(&all, false);
        let demands = [asks("c", 2)];
        table.allocate(&pod("p"), &demands).expect("two");
        assert_eq!(ids(&table, "p"), "c=a+b");
        // The plugin refuses, and its units are well.
        assert!(table.can_use(&pod("p")));
        assert_eq!(table.allocate_again(&pod("p"), &demands), Ok(()));
        assert_eq!(ids(&table, "p"), "c=a+b");
        // One is not: the other one stays.
        table.list(R, listed(&[("a", false), ("b", true), ("c", true)]));
        assert!(!table.can_use(&pod("p")));
        assert_eq!(table.allocate_again(&pod("p"), &demands), Ok(()));
        assert_eq!(ids(&table, "p"), "c=b+c");
        // There is no other one: it keeps what it has.
        table.list(R, listed(&[("a", false), ("b", true), ("c", false)]));
        assert_eq!(
            table.allocate_again(&pod("p"), &demands),
            Err(Refusal::NoLongerHealthy(R.into()))
        );
        assert_eq!(ids(&table, "p"), "c=b+c");
        // Nor while the plugin is away.
        table.disconnect(R, Mono(0));
        assert!(table.allocate_again(&pod("p"), &demands).is_err());
        assert!(table.can_use(&pod("q")), "it has none");
    }

    #[test]
    fn what_makes_room() {
        // DEV-11
        let mut table = of_plugin(&[("a", true)], false);
        let spares = |table: &Table| table.can_spare(R);
        assert!(!spares(&table), "its plugin is here");
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        table.disconnect(R, Mono(0));
        table.release(|_| false);
        assert!(!spares(&table), "the node tells of it");
        table.spare(R);
        assert_eq!(table.amounts().len(), 1);
        table.handle_timeout(Mono(300_000));
        let held = Held {
            container: "c".into(),
            resource: R.into(),
            ids: vec!["a".into()],
            plain_init: false,
            plugin: true,
        };
        table.restore(pod("p"), vec![held]);
        assert!(!spares(&table), "a pod holds it");
        table.release(|_| false);
        assert!(spares(&table));
        // It has no units any more, and is shown all the same.
        let none = Shown {
            resource: R.into(),
            plugin: true,
            ..Shown::default()
        };
        assert_eq!(table.shown(), [none]);
        table.spare(R);
        assert_eq!(table.amounts(), []);
        assert_eq!(table.shown(), []);
        let mut declared = self::table(1, &[]);
        declared.spare(R);
        assert_eq!(declared.amounts().len(), 1);
    }

    #[test]
    fn another_agent_begins_before_the_plugin() {
        // DEV-12 DEV-13
        let mut table = Table::default();
        table.recall("example.com/known");
        let held = Held {
            container: "c".into(),
            resource: R.into(),
            ids: vec!["a".into()],
            plain_init: false,
            plugin: true,
        };
        table.restore(pod("p"), vec![held]);
        let all = table.amounts().into_iter();
        let all: Vec<_> = all.map(|a| (a.capacity, a.allocatable)).collect();
        assert_eq!(all, [(0, 0), (0, 0)]);
        let mut known = asks("c", 1);
        known.resource = "example.com/known".into();
        let refused = table.check(&pod("q"), &[known]).expect_err("not yet");
        assert_eq!(refused, Refusal::NoneHealthy("example.com/known".into()));
        table.register(R, false);
        let all = listed(&[("a", true), ("b", true)]);
        assert_eq!(table.list(R, all), [], "it was never lost");
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("b");
        assert_eq!(ids(&table, "q"), "c=b");
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("its own");
        assert_eq!(ids(&table, "p"), "c=a");
    }

    #[test]
    fn a_plugin_has_a_say() {
        // DEV-06
        let all = [("a", true), ("b", true), ("c", true), ("d", false)];
        let mut table = of_plugin(&all, true);
        let demands = [asks("init", 1), asks("c", 2)];
        let question = table.question(&pod("p"), &demands).expect("asks");
        let texts = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect::<Vec<Box<str>>>();
        assert_eq!(
            question,
            Question {
                container: "init".into(),
                resource: R.into(),
                available: texts(&["a", "b", "c"]),
                must_include: vec![],
                size: 1,
            }
        );
        let answer = |container: &str, ids: &[&str]| Preferred {
            container: container.into(),
            resource: R.into(),
            ids: texts(ids),
        };
        table.prefer(&pod("p"), answer("init", &["c"]));
        let question = table.question(&pod("p"), &demands).expect("asks again");
        assert_eq!(
            (&*question.container, question.must_include),
            ("c", texts(&["c"])),
            "what its init container had"
        );
        // What is not there, or not healthy, does not count.
        table.prefer(&pod("p"), answer("c", &["d", "x", "b"]));
        assert_eq!(table.question(&pod("p"), &demands), None);
        table.allocate(&pod("p"), &demands).expect("given");
        assert_eq!(ids(&table, "p"), "init=c c=c+b");
        // What it has it keeps, and nobody is asked.
        assert_eq!(table.question(&pod("p"), &demands), None);
        // Nothing is asked where nothing can be given, or the plugin has no say.
        assert_eq!(table.question(&pod("q"), &[asks("c", 2)]), None);
        let table = of_plugin(&all, false);
        assert_eq!(table.question(&pod("p"), &demands), None);
    }

    #[test]
    fn records() {
        // DEV-12
        let held = Held {
            container: "c".into(),
            resource: R.into(),
            ids: vec!["a".into()],
            plain_init: true,
            plugin: false,
        };
        let text = r#"{"container":"c","resource":"picolet/serial","ids":["a"],"plainInit":true}"#;
        assert_eq!(serde_json::to_string(&held).expect("text"), text.to_owned());
        assert_eq!(serde_json::from_str::<Held>(text).expect("held"), held);
        let text = r#"{"container":"c","resource":"picolet/serial","ids":["a"],"plainInit":true,"plugin":true}"#;
        let of_plugin = Held {
            plugin: true,
            ..held
        };
        assert_eq!(
            serde_json::to_string(&of_plugin).expect("text"),
            text.to_owned()
        );
    }
}
