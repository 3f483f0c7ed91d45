//! Resources, their units, and the holders of these (DEV-03, DEV-04, DEV-06, DEV-07, DEV-35, DEV-40). A resource is
//! declared in the configuration, and its units that are here are reported; or it is a plugin's, which lists its units.
//! Both are taken in by one way.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    vec::Vec,
};
use core::time::Duration;

use super::{DeviceRefusal, UnitHealth};
use crate::{
    api::{MonoTime, PodUid, device::DeviceNumber},
    extended_resources::{HeldUnits, PodDevices, ResourceDemand, ResourceUnits},
};

/// Longest absence of a unit that is not reported: a device resets itself, or a person pulls the wrong plug.
const SHORT_ABSENCE: Duration = Duration::from_secs(5);

/// Time for which the node still reports a resource whose plugin has gone (DEV-04).
const PLUGIN_ABSENCE: Duration = Duration::from_secs(5 * 60);

/// A unit that is here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundUnit {
    /// Lasting id, at most 63 bytes.
    pub id: Box<str>,
    /// Names of the unit's nodes, for people.
    pub nodes: Box<str>,
    /// Hash of the unit's nodes. If it changes, a process that has opened the nodes cannot go on with them.
    pub mark: u64,
    /// Numbers of the unit's nodes. A holder of the unit may open every device with these numbers.
    pub numbers: Vec<DeviceNumber>,
}

/// A unit as its plugin lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedUnit {
    /// Id of the unit, 1 to 63 bytes.
    pub id: Box<str>,
    /// Set if the unit can be given.
    pub healthy: bool,
}

/// Question to a plugin before units are chosen: which units it would choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferenceQuestion {
    /// Container.
    pub container: Box<str>,
    /// Resource.
    pub resource: Box<str>,
    /// Ids of units that can be chosen.
    pub available: Vec<Box<str>>,
    /// Ids of units that the container gets in any case.
    pub must_include: Vec<Box<str>>,
    /// Number of units that the container gets in all.
    pub size: u32,
}

/// Units that a plugin would choose: a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferredUnits {
    /// Container.
    pub container: Box<str>,
    /// Resource.
    pub resource: Box<str>,
    /// Ids of units; ids that are not free are ignored.
    pub ids: Vec<Box<str>>,
}

/// Container that holds a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitHolder {
    /// Pod.
    pub pod: PodUid,
    /// Container.
    pub container: Box<str>,
}

/// Change of a unit that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitChange {
    /// Resource.
    pub resource: Box<str>,
    /// Unit.
    pub id: Box<str>,
    /// Names of the unit's nodes as they are, or were.
    pub nodes: Box<str>,
    /// Kind of the change.
    pub what: UnitChangeKind,
    /// Containers that hold the unit.
    pub holders: Vec<UnitHolder>,
}

/// Kind of a change of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitChangeKind {
    /// The unit is gone.
    Lost,
    /// The unit is back. Neither `moved` nor `told`: it was away so shortly that its return is not reported either.
    Back {
        /// Set if the unit has other nodes than before.
        moved: bool,
        /// Set if the loss of the unit was reported.
        told: bool,
    },
}

/// A unit, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitView {
    /// Resource.
    pub resource: Box<str>,
    /// Unit.
    pub id: Box<str>,
    /// Names of the unit's nodes.
    pub nodes: Box<str>,
    /// Set if the unit is here.
    pub healthy: bool,
    /// Set if the unit is a plugin's.
    pub plugin: bool,
    /// Number of times that the unit may be held.
    pub shares: u32,
    /// Number of times that the unit is held.
    pub used: u32,
    /// Containers that hold the unit.
    pub holders: Vec<UnitHolder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnitPresence {
    Here,
    /// The unit is missing since this time. Its loss was not reported.
    Missing(MonoTime),
    /// The plugin is missing, or has not listed its units yet. No loss was reported.
    Unknown,
    Lost,
}

#[derive(Clone, Debug)]
struct ResourceUnit {
    found: FoundUnit,
    presence: UnitPresence,
    /// Set if the unit counts for the node's capacity, here or not.
    counts: bool,
}

impl ResourceUnit {
    const fn new(found: FoundUnit, presence: UnitPresence) -> Self {
        Self {
            found,
            presence,
            counts: true,
        }
    }

    const fn is_reported(&self) -> bool {
        matches!(self.presence, UnitPresence::Here | UnitPresence::Missing(_))
    }
}

/// Provider of a resource: whoever offers its units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UnitProvider {
    /// The machine, of which the configuration declares the resource.
    #[default]
    Machine,
    /// A plugin that is connected. `prefers`: it wants to be asked which units it would choose.
    Plugin { prefers: bool },
    /// A plugin that has gone at this time.
    GonePlugin(MonoTime),
    /// A plugin that has gone long ago, or before this agent started.
    ForgottenPlugin,
}

#[derive(Clone, Debug, Default)]
struct DeviceResource {
    shares: u32,
    units: Vec<ResourceUnit>,
    provider: UnitProvider,
}

impl DeviceResource {
    fn is_of_plugin(&self) -> bool {
        self.provider != UnitProvider::Machine
    }

    fn present_units(&self) -> impl Iterator<Item = &ResourceUnit> {
        self.units
            .iter()
            .filter(|u| u.presence == UnitPresence::Here)
    }

    /// Marks the units that the plugin listed as healthy as unknown.
    fn mark_units_unknown(&mut self) {
        for unit in &mut self.units {
            if unit.presence == UnitPresence::Here {
                unit.presence = UnitPresence::Unknown;
            }
        }
    }

    /// Time at which a plugin that has gone is forgotten.
    fn plugin_forget_time(&self) -> Option<MonoTime> {
        match self.provider {
            UnitProvider::GonePlugin(since) => Some(since + PLUGIN_ABSENCE),
            UnitProvider::Machine | UnitProvider::Plugin { .. } | UnitProvider::ForgottenPlugin => {
                None
            }
        }
    }

    fn has_present_unit(&self, id: &str) -> bool {
        self.present_units().any(|unit| *unit.found.id == *id)
    }
}

/// A unit, as one container of a pod may have it.
struct UnitCandidate<'a> {
    id: &'a str,
    /// Number of times that the container has it already.
    times: u32,
    had: bool,
    /// Set if the unit's plugin would choose it.
    preferred: bool,
    /// Number of times that the pod holds the unit for init containers only: giving it again is free.
    no_charge: u32,
    /// Number of times that other pods hold it.
    others: u32,
    /// Number of times that the container may have it.
    most: u32,
}

impl UnitCandidate<'_> {
    /// Sort key: the least unit is given next. Units that the container has the fewest times come first; then units that
    /// it had before, units that an init container of the pod has left by then, units that the plugin prefers, and units
    /// that other pods hold least.
    fn sort_key(&self) -> (u32, bool, bool, bool, u32) {
        let costs = self.times >= self.no_charge;
        (self.times, !self.had, costs, !self.preferred, self.others)
    }

    /// Returns true if the container gets the unit in any case.
    const fn is_always_given(&self) -> bool {
        self.most > 0 && (self.had || self.no_charge > 0)
    }
}

/// Table of the resources and the pods that hold units.
#[derive(Clone, Debug, Default)]
pub struct DeviceTable {
    resources: BTreeMap<Box<str>, DeviceResource>,
    holders: BTreeMap<PodUid, PodDevices>,
    /// Preferences of plugins for pods that wait.
    preferred: BTreeMap<PodUid, Vec<PreferredUnits>>,
}

impl DeviceTable {
    /// Adds a declared resource, without units yet. Each unit may be held `shares` times.
    pub fn declare_resource(&mut self, resource: &str, shares: u32) {
        let new = DeviceResource {
            shares,
            ..DeviceResource::default()
        };
        self.resources.insert(resource.into(), new);
    }

    /// Adds a resource that a plugin offered to an agent before this one, without units yet (DEV-12).
    pub fn recall_resource(&mut self, resource: &str) {
        let known = self.resources.entry(resource.into());
        known.or_insert_with(|| DeviceResource {
            shares: 1,
            units: Vec::new(),
            provider: UnitProvider::ForgottenPlugin,
        });
    }

    /// Takes in that a plugin offers the resource; the list of its units comes next. `prefers`: the plugin wants to be
    /// asked which units it would choose. No change if the resource is declared.
    pub fn register_plugin(&mut self, resource: &str, prefers: bool) {
        self.recall_resource(resource);
        if let Some(known) = self.resources.get_mut(resource)
            && known.is_of_plugin()
        {
            known.provider = UnitProvider::Plugin { prefers };
            known.mark_units_unknown();
        }
    }

    /// Returns true if the resource is a plugin's.
    #[must_use]
    pub fn is_plugin_resource(&self, resource: &str) -> bool {
        let known = self.resources.get(resource);
        known.is_some_and(DeviceResource::is_of_plugin)
    }

    /// Takes in a plugin's complete list of units (DEV-03). Returns the changes of units that are held.
    pub fn take_plugin_units(&mut self, resource: &str, all: Vec<ListedUnit>) -> Vec<UnitChange> {
        if !self.is_plugin_resource(resource) {
            return Vec::new();
        }
        // The last word on an id counts.
        let all: BTreeMap<Box<str>, bool> = all.into_iter().map(|l| (l.id, l.healthy)).collect();
        let all = all.into_iter().map(|(id, healthy)| {
            let found = FoundUnit {
                id,
                ..FoundUnit::default()
            };
            (found, healthy)
        });
        self.take_units(resource, all.collect(), |_| UnitPresence::Lost)
    }

    /// Takes in the units of a declared resource that are here now, all of them. Returns the changes of units that are held.
    pub fn take_machine_units(
        &mut self,
        resource: &str,
        all: Vec<FoundUnit>,
        now: MonoTime,
    ) -> Vec<UnitChange> {
        let all = all.into_iter().map(|found| (found, true));
        self.take_units(resource, all.collect(), |before| match before {
            UnitPresence::Here => UnitPresence::Missing(now),
            UnitPresence::Missing(_) | UnitPresence::Unknown | UnitPresence::Lost => before,
        })
    }

    /// Takes in all units that the provider of a resource has, each healthy or not. `absent`: what becomes of one that it
    /// does not have any more.
    fn take_units(
        &mut self,
        resource: &str,
        all: Vec<(FoundUnit, bool)>,
        absent: impl Fn(UnitPresence) -> UnitPresence,
    ) -> Vec<UnitChange> {
        let Some(known) = self.resources.get_mut(resource) else {
            return Vec::new();
        };
        let is_plugins = known.is_of_plugin();
        let mut changes = Vec::new();
        let listed: BTreeMap<_, _> = all
            .iter()
            .map(|(f, healthy)| (&*f.id, (f, healthy)))
            .collect();
        for unit in &mut known.units {
            let listed = listed.get(&*unit.found.id).copied();
            let before = unit.presence;
            let mut moved = false;
            unit.counts = !is_plugins || listed.is_some();
            unit.presence = match listed {
                Some((found, true)) => {
                    moved = unit.found.mark != found.mark;
                    unit.found.clone_from(found);
                    UnitPresence::Here
                }
                Some((_, false)) => UnitPresence::Lost,
                None => absent(before),
            };
            let told = before == UnitPresence::Lost;
            let what = match (before, unit.presence) {
                (UnitPresence::Missing(_) | UnitPresence::Lost, UnitPresence::Here) => {
                    UnitChangeKind::Back { moved, told }
                }
                (_, UnitPresence::Here) if moved => UnitChangeKind::Back { moved, told },
                (_, UnitPresence::Lost) if !told => UnitChangeKind::Lost,
                _ => continue,
            };
            changes.push((unit.found.clone(), what));
        }
        let mut ids: BTreeSet<_> = known
            .units
            .iter()
            .map(|unit| unit.found.id.clone())
            .collect();
        for (found, healthy) in all {
            if ids.insert(found.id.clone()) {
                let presence = match healthy {
                    true => UnitPresence::Here,
                    false => UnitPresence::Lost,
                };
                known.units.push(ResourceUnit::new(found, presence));
            }
        }
        let changes = self.held_unit_changes(resource, changes);
        self.forget_lost();
        changes
    }

    /// Takes in that the plugin has gone: none of its units can be given (DEV-04). Containers that hold units go on,
    /// and no change is reported: as a rule the plugin is back soon.
    pub fn disconnect_plugin(&mut self, resource: &str, now: MonoTime) {
        let known = self.resources.get_mut(resource);
        let Some(known) = known.filter(|known| known.is_of_plugin()) else {
            return;
        };
        known.provider = UnitProvider::GonePlugin(now);
        known.mark_units_unknown();
    }

    /// Returns true if the resource may be dropped in favour of another plugin's: its own plugin has gone long ago, the
    /// node no longer reports its units, and no pod holds one (DEV-11).
    #[must_use]
    pub fn can_drop(&self, resource: &str) -> bool {
        let known = self.resources.get(resource);
        let is_held = |held: &HeldUnits| *held.resource == *resource;
        known.is_some_and(|known| known.provider == UnitProvider::ForgottenPlugin)
            && !self.holders.values().any(|all| all.iter().any(is_held))
    }

    /// Drops the resource if [`DeviceTable::can_drop`] allows it.
    pub fn drop_spare_resource(&mut self, resource: &str) {
        if self.can_drop(resource) {
            self.resources.remove(resource);
        }
    }

    /// Names of the resources, sorted.
    pub fn resource_names(&self) -> impl Iterator<Item = &str> {
        self.resources.keys().map(|name| &**name)
    }

    /// Takes in the units that a pod has held since before this agent.
    pub fn restore_holder(&mut self, pod: PodUid, held: Vec<HeldUnits>) {
        for held in &held {
            if held.plugin {
                self.recall_resource(&held.resource);
            }
            let Some(resource) = self.resources.get_mut(&held.resource) else {
                continue;
            };
            for id in &held.ids {
                if !resource.units.iter().any(|unit| unit.found.id == *id) {
                    let found = FoundUnit {
                        id: id.clone(),
                        ..FoundUnit::default()
                    };
                    let mut unit = ResourceUnit::new(found, UnitPresence::Lost);
                    if resource.is_of_plugin() {
                        // The unit is not lost: its plugin is starting, too.
                        unit.presence = UnitPresence::Unknown;
                        unit.counts = false;
                    }
                    resource.units.push(unit);
                }
            }
        }
        self.holders.insert(pod, Rc::new(held));
    }

    /// Applies the passage of time. Returns the units that are held and now count as lost.
    pub fn handle_timeout(&mut self, now: MonoTime) -> Vec<UnitChange> {
        let mut lost = Vec::new();
        for (name, resource) in &mut self.resources {
            let gone = resource.plugin_forget_time().is_some_and(|due| due <= now);
            if gone {
                resource.provider = UnitProvider::ForgottenPlugin;
            }
            for unit in &mut resource.units {
                unit.counts &= !gone;
                let is_new = unit.presence != UnitPresence::Lost;
                if gone && is_new || loss_time(unit).is_some_and(|due| due <= now) {
                    unit.presence = UnitPresence::Lost;
                    lost.push((name.clone(), unit.found.clone()));
                }
            }
        }
        let mut changes = Vec::new();
        for (name, found) in lost {
            changes
                .extend(self.held_unit_changes(&name, Vec::from([(found, UnitChangeKind::Lost)])));
        }
        self.forget_lost();
        changes
    }

    /// Time at which [`DeviceTable::handle_timeout`] has work.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        let gone = self
            .resources
            .values()
            .filter_map(DeviceResource::plugin_forget_time);
        let all = self.resources.values().flat_map(|r| &r.units);
        all.filter_map(loss_time).chain(gone).min()
    }

    fn held_unit_changes(
        &self,
        resource: &str,
        changes: Vec<(FoundUnit, UnitChangeKind)>,
    ) -> Vec<UnitChange> {
        let changes = changes.into_iter().map(|(found, what)| UnitChange {
            resource: resource.into(),
            holders: self.unit_holders(resource, &found.id),
            id: found.id,
            nodes: found.nodes,
            what,
        });
        changes.filter(|c| !c.holders.is_empty()).collect()
    }

    fn unit_holders(&self, resource: &str, id: &str) -> Vec<UnitHolder> {
        let mut holders = Vec::new();
        for (pod, held) in &self.holders {
            let holds =
                |h: &&HeldUnits| *h.resource == *resource && h.ids.iter().any(|i| **i == *id);
            holders.extend(held.iter().filter(holds).map(|h| UnitHolder {
                pod: pod.clone(),
                container: h.container.clone(),
            }));
        }
        holders
    }

    /// Removes lost units without a holder.
    fn forget_lost(&mut self) {
        for (name, resource) in &mut self.resources {
            let holders = &self.holders;
            let is_held = |id: &str| holders.values().any(|held| use_count(held, name, id) > 0);
            let plugin = resource.is_of_plugin();
            let units = &mut resource.units;
            units.retain(|unit| {
                let stays = unit.is_reported() || plugin && unit.counts;
                stays || is_held(&unit.found.id)
            });
        }
    }

    /// Units that the pod holds.
    #[must_use]
    pub fn held_units(&self, pod: &PodUid) -> Option<&PodDevices> {
        self.holders.get(pod)
    }

    /// Takes back the units of pods for which `keeps` is false (DEV-14). Returns true if there were any.
    pub fn release_units(&mut self, keeps: impl Fn(&PodUid) -> bool) -> bool {
        let before = self.holders.len();
        self.holders.retain(|pod, _| keeps(pod));
        self.preferred.retain(|pod, _| keeps(pod));
        let released = self.holders.len() < before;
        if released {
            self.forget_lost();
        }
        released
    }

    /// Refusal for the first requested resource that is not known here (DEV-05).
    #[must_use]
    pub fn unregistered_refusal(&self, demands: &[ResourceDemand]) -> Option<DeviceRefusal> {
        let unknown = |demand: &&ResourceDemand| !self.resources.contains_key(&*demand.resource);
        let demand = demands.iter().find(unknown)?;
        Some(DeviceRefusal::Unregistered(demand.resource.as_str().into()))
    }

    /// Checks that [`DeviceTable::allocate`] would succeed.
    ///
    /// # Errors
    /// The refusal that it would return.
    pub fn check_allocation(
        &self,
        pod: &PodUid,
        demands: &[ResourceDemand],
    ) -> Result<(), DeviceRefusal> {
        self.choose_units(pod, demands).map(drop)
    }

    /// The next question to a plugin before the pod's units are allocated (DEV-06); `None`: no question is open, or the
    /// allocation would fail.
    #[must_use]
    pub fn next_question(
        &self,
        pod: &PodUid,
        demands: &[ResourceDemand],
    ) -> Option<PreferenceQuestion> {
        let mut question = None;
        let chosen = self.choose_by_demand(pod, demands, |resource, demand, rooms| {
            let prefers = resource.provider == UnitProvider::Plugin { prefers: true };
            if !prefers || question.is_some() || self.preference_for(pod, demand).is_some() {
                return;
            }
            let ids = |rooms: &mut dyn Iterator<Item = &UnitCandidate<'_>>| {
                rooms.map(|room| room.id.into()).collect::<Vec<Box<str>>>()
            };
            let mut must_include = ids(&mut rooms.iter().filter(|room| room.is_always_given()));
            let size = usize::try_from(demand.count).unwrap_or(usize::MAX);
            must_include.truncate(size);
            if must_include.len() == size {
                return;
            }
            question = Some(PreferenceQuestion {
                container: demand.container.as_str().into(),
                resource: demand.resource.as_str().into(),
                available: ids(&mut rooms.iter().filter(|room| room.most > 0)),
                must_include,
                size: demand.count,
            });
        });
        chosen.ok().and(question)
    }

    /// Takes in a plugin's answer to a [`PreferenceQuestion`].
    pub fn take_preference(&mut self, pod: &PodUid, answer: PreferredUnits) {
        self.preferred.entry(pod.clone()).or_default().push(answer);
    }

    fn preference_for(&self, pod: &PodUid, demand: &ResourceDemand) -> Option<&PreferredUnits> {
        let of = |p: &&PreferredUnits| {
            *p.container == *demand.container && *p.resource == *demand.resource
        };
        self.preferred.get(pod)?.iter().find(of)
    }

    /// Gives a pod the units that it requests, while none of its containers runs. The pod keeps units that it holds and
    /// can use. Resources that are not known here are skipped: a cluster may count them by itself.
    ///
    /// # Errors
    /// A unit is not here or not free. The table is unchanged then.
    pub fn allocate(
        &mut self,
        pod: &PodUid,
        demands: &[ResourceDemand],
    ) -> Result<(), DeviceRefusal> {
        let held = self.choose_units(pod, demands)?;
        self.preferred.remove(pod);
        match held.is_empty() {
            true => self.holders.remove(pod),
            false => self.holders.insert(pod.clone(), Rc::new(held)),
        };
        self.forget_lost();
        Ok(())
    }

    /// Returns true if all units that the pod holds are here.
    #[must_use]
    pub fn can_use(&self, pod: &PodUid) -> bool {
        let is_here = |held: &HeldUnits| {
            let known = self.resources.get(&held.resource);
            known.is_some_and(|known| held.ids.iter().all(|id| known.has_present_unit(id)))
        };
        self.holders
            .get(pod)
            .is_none_or(|held| held.iter().all(is_here))
    }

    /// Replaces units that a pod holds and cannot use any more (DEV-08). Called before the first container of the pod
    /// starts, when the pod could not start with the units that it holds. No change if all of them are here.
    ///
    /// # Errors
    /// As of [`DeviceTable::allocate`].
    pub fn allocate_again(
        &mut self,
        pod: &PodUid,
        demands: &[ResourceDemand],
    ) -> Result<(), DeviceRefusal> {
        match self.can_use(pod) {
            true => Ok(()),
            false => self.allocate(pod, demands),
        }
    }

    fn choose_units(
        &self,
        pod: &PodUid,
        demands: &[ResourceDemand],
    ) -> Result<Vec<HeldUnits>, DeviceRefusal> {
        self.choose_by_demand(pod, demands, |_, _, _| {})
    }

    /// Chooses units for one demand after the other; `look` sees the candidates of each demand that can be met.
    fn choose_by_demand(
        &self,
        pod: &PodUid,
        demands: &[ResourceDemand],
        mut look: impl FnMut(&DeviceResource, &ResourceDemand, &[UnitCandidate<'_>]),
    ) -> Result<Vec<HeldUnits>, DeviceRefusal> {
        let before = self.holders.get(pod).map_or(&[][..], |held| held);
        let mut held: Vec<HeldUnits> = Vec::new();
        for demand in demands {
            let name = demand.resource.as_str();
            let Some(resource) = self.resources.get(name) else {
                continue;
            };
            let had = before
                .iter()
                .find(|h| *h.container == *demand.container && *h.resource == *name)
                .map_or(&[][..], |h| &h.ids);
            let mut new = HeldUnits {
                container: demand.container.as_str().into(),
                resource: name.into(),
                ids: Vec::new(),
                plain_init: demand.plain_init,
                plugin: resource.is_of_plugin(),
            };
            let mut rooms = self.unit_candidates(pod, resource, demand, &held, had);
            let available = rooms.iter().map(|room| room.most);
            let available = available.fold(0, u32::saturating_add);
            if available < demand.count {
                return Err(shortage_refusal(resource, demand, available, had));
            }
            look(resource, demand, &rooms);
            for _ in 0..demand.count {
                let free = rooms.iter_mut().filter(|room| room.times < room.most);
                let Some(best) = free.min_by_key(|room| room.sort_key()) else {
                    break;
                };
                best.times += 1;
                new.ids.push(best.id.into());
            }
            held.push(new);
        }
        Ok(held)
    }

    /// Candidates for a container among the units that are here. `held`: units of the pod's other containers.
    fn unit_candidates<'a>(
        &self,
        pod: &PodUid,
        resource: &'a DeviceResource,
        demand: &ResourceDemand,
        held: &[HeldUnits],
        had: &[Box<str>],
    ) -> Vec<UnitCandidate<'a>> {
        let name = demand.resource.as_str();
        let reachable = self.reachable_numbers(pod, name, resource.shares);
        let preferred = self.preference_for(pod, demand);
        let preferred = preferred.map_or(&[][..], |p| &p.ids);
        let closed = |unit: &ResourceUnit| unit.found.numbers.iter().any(|n| reachable.contains(n));
        let units = resource.present_units().filter(|unit| !closed(unit));
        let rooms = units.map(|unit| {
            let id = &unit.found.id;
            let others = self.holders.iter().filter(|(other, _)| *other != pod);
            let others = others
                .map(|(_, held)| use_count(held, name, id))
                .fold(0, u32::saturating_add);
            let (init, regular) = use_counts_by_stage(held, name, id);
            let left = resource.shares.saturating_sub(others);
            UnitCandidate {
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

    /// Numbers that other pods can open and that this pod must not get. These are numbers of lost units that those pods
    /// hold, for another device may have such a number now; and numbers of units of other resources, if one of the two
    /// resources has one share. `shares`: shares of the resource `wanted`.
    fn reachable_numbers(&self, pod: &PodUid, wanted: &str, shares: u32) -> BTreeSet<DeviceNumber> {
        let mut numbers = BTreeSet::new();
        for (name, resource) in &self.resources {
            let is_exclusive = **name != *wanted && (shares == 1 || resource.shares == 1);
            for unit in &resource.units {
                let mut others = self.holders.iter().filter(|(other, _)| *other != pod);
                if (is_exclusive || unit.presence != UnitPresence::Here)
                    && others.any(|(_, held)| use_count(held, name, &unit.found.id) > 0)
                {
                    numbers.extend(&unit.found.numbers);
                }
            }
        }
        numbers
    }

    /// Amounts of each resource, by name.
    #[must_use]
    pub fn resource_amounts(&self) -> Vec<ResourceUnits> {
        let all = self.resources.iter();
        all.map(|(name, resource)| {
            let count = |units: usize| {
                let units = u32::try_from(units).unwrap_or(u32::MAX);
                units.saturating_mul(resource.shares)
            };
            let all = || resource.units.iter().filter(|unit| unit.counts);
            ResourceUnits {
                resource: name.clone(),
                capacity: count(all().count()),
                allocatable: count(all().filter(|unit| unit.is_reported()).count()),
            }
        })
        .collect()
    }

    /// Health of a unit that is held (DEV-15). `starts`: the agent started so recently that plugins of the time before
    /// may yet register again.
    #[must_use]
    pub fn unit_health(&self, resource: &str, id: &str, starts: bool) -> UnitHealth {
        let Some(known) = self.resources.get(resource) else {
            return UnitHealth::Unhealthy;
        };
        let unit = known.units.iter().find(|unit| *unit.found.id == *id);
        match (unit.map(|unit| unit.presence), known.provider) {
            (Some(UnitPresence::Here | UnitPresence::Missing(_)), _) => UnitHealth::Healthy,
            (Some(UnitPresence::Unknown), UnitProvider::Plugin { .. }) => UnitHealth::Unsaid,
            (Some(UnitPresence::Unknown), UnitProvider::ForgottenPlugin) if starts => {
                UnitHealth::Unsaid
            }
            (Some(UnitPresence::Unknown | UnitPresence::Lost) | None, _) => UnitHealth::Unhealthy,
        }
    }

    /// Pods that hold units which the plugin has not listed since it registered: until it does, their health is
    /// unknown.
    #[must_use]
    pub fn pods_in_doubt(&self, resource: &str) -> Vec<PodUid> {
        let known = self.resources.get(resource);
        let units = known.map_or(&[][..], |known| &known.units);
        let doubted = units.iter().filter(|u| u.presence == UnitPresence::Unknown);
        let holders = doubted.flat_map(|unit| self.unit_holders(resource, &unit.found.id));
        let pods: BTreeSet<PodUid> = holders.map(|holder| holder.pod).collect();
        pods.into_iter().collect()
    }

    /// Lists every unit, by resource. A plugin's resource without units is there once, without an id.
    #[must_use]
    pub fn unit_views(&self) -> Vec<UnitView> {
        let mut shown = Vec::new();
        for (name, resource) in &self.resources {
            let plugin = resource.is_of_plugin();
            if plugin && resource.units.is_empty() {
                shown.push(UnitView {
                    resource: name.clone(),
                    plugin,
                    ..UnitView::default()
                });
            }
            shown.extend(resource.units.iter().map(|unit| UnitView {
                resource: name.clone(),
                id: unit.found.id.clone(),
                nodes: unit.found.nodes.clone(),
                healthy: unit.is_reported(),
                plugin,
                shares: resource.shares,
                used: self.total_use_count(name, &unit.found.id),
                holders: self.unit_holders(name, &unit.found.id),
            }));
        }
        shown
    }

    fn total_use_count(&self, resource: &str, id: &str) -> u32 {
        let pods = self.holders.values();
        pods.map(|held| use_count(held, resource, id))
            .fold(0, u32::saturating_add)
    }
}

fn loss_time(unit: &ResourceUnit) -> Option<MonoTime> {
    match unit.presence {
        UnitPresence::Missing(since) => Some(since + SHORT_ABSENCE),
        UnitPresence::Here | UnitPresence::Unknown | UnitPresence::Lost => None,
    }
}

fn shortage_refusal(
    resource: &DeviceResource,
    demand: &ResourceDemand,
    available: u32,
    had: &[Box<str>],
) -> DeviceRefusal {
    let name = || demand.resource.as_str().into();
    if had.iter().any(|id| !resource.has_present_unit(id)) {
        return DeviceRefusal::NoLongerHealthy(name());
    }
    if resource.present_units().next().is_none() {
        return DeviceRefusal::NoneHealthy(name());
    }
    DeviceRefusal::TooFew {
        resource: name(),
        requested: demand.count,
        available,
    }
}

/// Number of times that a pod holds a unit. Plain init containers run one after the other, beside the sidecars that
/// began before them, and before all other containers.
fn use_count(held: &[HeldUnits], resource: &str, id: &str) -> u32 {
    let (init, others) = use_counts_by_stage(held, resource, id);
    init.max(others)
}

/// Number of times that a pod holds a unit while its plain init containers run, and after them. `held` is in the order
/// in which the containers start.
fn use_counts_by_stage(held: &[HeldUnits], resource: &str, id: &str) -> (u32, u32) {
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

    fn found(id: &str, mark: u64) -> FoundUnit {
        FoundUnit {
            id: id.into(),
            nodes: format!("/dev/{id}").into(),
            mark,
            numbers: Vec::new(),
        }
    }

    fn tty(id: &str, minor: u32) -> FoundUnit {
        FoundUnit {
            numbers: vec![(false, 188, minor)],
            ..found(id, u64::from(minor))
        }
    }

    fn table(shares: u32, ids: &[&str]) -> DeviceTable {
        let mut table = DeviceTable::default();
        table.declare_resource(R, shares);
        let changes =
            table.take_machine_units(R, ids.iter().map(|id| found(id, 1)).collect(), MonoTime(0));
        assert!(changes.is_empty());
        table
    }

    fn asks(container: &str, count: u32) -> ResourceDemand {
        ResourceDemand {
            container: container.into(),
            resource: R.into(),
            count,
            plain_init: container.starts_with("init"),
        }
    }

    fn pod(name: &str) -> PodUid {
        PodUid::from(name)
    }

    fn ids(table: &DeviceTable, name: &str) -> String {
        let held = table.held_units(&pod(name));
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
        // A pod keeps its units, whatever the order.
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("b again");
        assert_eq!(ids(&table, "q"), "c=b");
        // A pod gets all its units, or none.
        table.release_units(|p| *p == pod("q"));
        let refused = table.allocate(&pod("r"), &[asks("c", 1), asks("d", 1)]);
        assert_eq!(
            refused.expect_err("one is free").to_string(),
            "requested number of devices unavailable for picolet/serial. Requested: 1, Available: 0"
        );
        assert_eq!(ids(&table, "r"), "");
        table.allocate(&pod("r"), &[asks("d", 1)]).expect("a");
        assert_eq!(ids(&table, "r"), "d=a");
        // Another amount is allocated anew.
        table.release_units(|_| false);
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
        assert!(shared.check_allocation(&pod("t"), &[asks("c", 1)]).is_err());
        assert_eq!(
            shared.resource_amounts(),
            [ResourceUnits {
                resource: R.into(),
                capacity: 4,
                allocatable: 4
            }]
        );
        let mut shared = table(2, &["a"]);
        shared.allocate(&pod("p"), &[asks("c", 2)]).expect("twice");
        assert_eq!(ids(&shared, "p"), "c=a+a");
        assert!(shared.check_allocation(&pod("q"), &[asks("c", 1)]).is_err());
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
        assert!(table.check_allocation(&pod("q"), &[asks("c", 1)]).is_err());
        // Regular containers take the units of init containers, although other units are free.
        table.release_units(|_| false);
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
        // The unit of a plain init container is free for containers that start after it, not for those before.
        let all = [
            asks("init1", 1),
            asks("sidecar1", 1),
            asks("init2", 1),
            asks("sidecar2", 1),
        ];
        two.allocate(&pod("o"), &all).expect_err("p holds both");
        two.release_units(|_| false);
        two.allocate(&pod("o"), &all).expect("reused");
        assert_eq!(ids(&two, "o"), "init1=a sidecar1=a init2=b sidecar2=b");
        let mut more = all.to_vec();
        more.push(asks("c", 1));
        assert!(
            two.check_allocation(&pod("o"), &more).is_err(),
            "sidecars run beside it"
        );
        // A unit with two shares: a regular container follows the plain init container.
        let all = [asks("sidecar", 1), asks("init", 1), asks("c", 1)];
        for demands in [&all[..2], &all] {
            let mut shared = table(2, &["a"]);
            shared.allocate(&pod("p"), demands).expect("two at a time");
            assert!(shared.check_allocation(&pod("q"), &[asks("c", 1)]).is_err());
            assert_eq!(shared.unit_views()[0].used, 2);
        }
    }

    #[test]
    fn far_too_many() {
        // DEV-07
        let mut table = table(1024, &["a", "b"]);
        table.allocate(&pod("p"), &[asks("c", 3)]).expect("some");
        for container in ["c", "init"] {
            let refused = table.check_allocation(&pod("q"), &[asks(container, 4_000_000_000)]);
            assert_eq!(
                refused.expect_err("too many"),
                DeviceRefusal::TooFew {
                    resource: R.into(),
                    requested: 4_000_000_000,
                    available: 2045
                }
            );
        }
        // The units of other containers of the pod are not free either.
        let refused = table.check_allocation(&pod("q"), &[asks("c", 2000), asks("d", 46)]);
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
        table.declare_resource(OTHER, 1);
        table.take_machine_units(R, vec![tty("a", 0), tty("b", 1)], MonoTime(0));
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        table.take_machine_units(R, vec![tty("b", 0), tty("d", 2)], MonoTime(1));
        table.take_machine_units(OTHER, vec![tty("x", 0)], MonoTime(1));
        let mut other = asks("c", 1);
        other.resource = OTHER.into();
        for lost in [false, true] {
            if lost {
                table.handle_timeout(MonoTime(10_000));
            }
            let refused = table
                .check_allocation(&pod("q"), &[asks("c", 2)])
                .expect_err("one");
            assert_eq!(
                refused.to_string(),
                "requested number of devices unavailable for picolet/serial. Requested: 2, Available: 1"
            );
            let refused = table.check_allocation(&pod("q"), core::slice::from_ref(&other));
            let refused = refused.expect_err("of any resource").to_string();
            assert!(refused.ends_with("Requested: 1, Available: 0"), "{refused}");
        }
        // The holder may get its own number again: none of its containers runs then.
        assert_eq!(table.check_allocation(&pod("p"), &[asks("c", 2)]), Ok(()));
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("d");
        assert_eq!(ids(&table, "q"), "c=d");
        // The holder releases its units.
        let mut after = table.clone();
        after.release_units(|p| *p != pod("p"));
        after.allocate(&pod("r"), &[asks("c", 1)]).expect("b");
        assert_eq!(ids(&after, "r"), "c=b");
        // Or the held unit is back, with another number.
        table.take_machine_units(
            R,
            vec![tty("a", 3), tty("b", 0), tty("d", 2)],
            MonoTime(11_000),
        );
        table.allocate(&pod("r"), &[asks("c", 1)]).expect("b");
        assert_eq!(ids(&table, "r"), "c=b");
    }

    #[test]
    fn two_resources_have_one_node() {
        // DEV-30
        const OTHER: &str = "picolet/other";
        let of = |resource: &str| ResourceDemand {
            resource: resource.into(),
            ..asks("c", 1)
        };
        for (shares, others, is_free) in [(1, 1, false), (1, 2, false), (2, 1, false), (2, 2, true)]
        {
            let mut table = table(shares, &[]);
            table.declare_resource(OTHER, others);
            table.take_machine_units(R, vec![tty("a", 0)], MonoTime(0));
            table.take_machine_units(OTHER, vec![tty("x", 0), tty("y", 1)], MonoTime(0));
            table.allocate(&pod("p"), &[of(R)]).expect("a");
            table.allocate(&pod("q"), &[of(OTHER)]).expect("y at least");
            let expected = if is_free { "c=x" } else { "c=y" };
            assert_eq!(ids(&table, "q"), expected, "{shares} {others}");
            // Its own node is free for the pod that has it.
            assert_eq!(
                table.check_allocation(&pod("p"), &[of(R), of(OTHER)]),
                Ok(())
            );
            table.release_units(|_| false);
            table.allocate(&pod("q"), &[of(OTHER)]).expect("x");
            assert_eq!(ids(&table, "q"), "c=x");
            let refused = table.check_allocation(&pod("p"), &[of(R)]);
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
        let shown = once.unit_views().remove(0);
        assert_eq!((shown.used, shown.shares, shown.holders.len()), (1, 1, 2));
        let mut twice = table(2, &["a"]);
        twice.allocate(&pod("p"), &[asks("c", 2)]).expect("twice");
        let shown = twice.unit_views().remove(0);
        assert_eq!((shown.used, shown.shares, shown.holders.len()), (2, 2, 1));
    }

    #[test]
    fn a_twin_is_plugged_in() {
        // DEV-36 DEV-40
        let mut table = table(1, &[]);
        table.take_machine_units(R, vec![tty("serial", 0)], MonoTime(0));
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("it");
        // A twin was plugged in: ids are made of ports now.
        let two = vec![tty("port1", 0), tty("port2", 1)];
        table.take_machine_units(R, two, MonoTime(1));
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("twin");
        assert_eq!(ids(&table, "q"), "c=port2");
        assert!(table.check_allocation(&pod("r"), &[asks("c", 1)]).is_err());
        assert_eq!(ids(&table, "p"), "c=serial");
    }

    #[test]
    fn what_nobody_offers() {
        // DEV-05 DEV-07
        let mut table = table(1, &["a"]);
        let mut other = asks("c", 1);
        other.resource = "example.com/x".into();
        let refusal = table.unregistered_refusal(&[asks("c", 1), other.clone()]);
        let refusal = refusal.expect("unknown");
        assert_eq!(
            refusal.to_string(),
            "cannot allocate unregistered device example.com/x"
        );
        assert_eq!(table.unregistered_refusal(&[asks("c", 1)]), None);
        table.allocate(&pod("p"), &[other]).expect("passed over");
        assert_eq!(table.held_units(&pod("p")), None);
    }

    #[test]
    fn unplugged_and_back() {
        // DEV-39 DEV-40
        let mut table = table(1, &["a", "b"]);
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        let at = |s: u64| MonoTime(s * 1000);
        assert_eq!(table.take_machine_units(R, vec![], at(10)), []);
        let amounts = |table: &DeviceTable| {
            let amount = table.resource_amounts().remove(0);
            (amount.capacity, amount.allocatable)
        };
        assert_eq!(amounts(&table), (2, 2), "nobody is told yet");
        assert!(
            table.check_allocation(&pod("q"), &[asks("c", 1)]).is_err(),
            "yet it is not given"
        );
        assert_eq!(table.next_timeout(), Some(at(15)));
        // A short absence is not reported as a loss; a container that wants a restart at any replug gets it.
        let short = table.take_machine_units(R, vec![found("a", 1), found("b", 1)], at(12));
        let back = |moved, told| UnitChangeKind::Back { moved, told };
        let whats: Vec<_> = short.iter().map(|c| (&*c.id, c.what)).collect();
        assert_eq!(whats, [("a", back(false, false))], "the one that is held");
        assert_eq!(table.next_timeout(), None);
        let same = table.take_machine_units(R, vec![found("a", 1), found("b", 1)], at(12));
        assert_eq!(same, [], "it was never gone");
        // A short absence, and another node after it.
        assert_eq!(table.take_machine_units(R, vec![], at(13)), []);
        let moved = table.take_machine_units(R, vec![found("a", 2)], at(14));
        assert_eq!(moved[0].what, back(true, false));
        // A long absence.
        assert_eq!(table.take_machine_units(R, vec![], at(20)), []);
        assert_eq!(table.handle_timeout(at(24)), []);
        let lost = table.handle_timeout(at(25));
        let [lost] = &*lost else {
            panic!("the one that is held: {lost:?}");
        };
        let holder = UnitHolder {
            pod: pod("p"),
            container: "c".into(),
        };
        assert_eq!(
            (lost.what, &lost.holders),
            (UnitChangeKind::Lost, &vec![holder])
        );
        assert_eq!(amounts(&table), (1, 0), "what nobody holds is forgotten");
        assert_eq!(ids(&table, "p"), "c=a", "the allocation is kept");
        let refused = table
            .check_allocation(&pod("p"), &[asks("c", 1)])
            .expect_err("gone");
        assert_eq!(
            refused.to_string(),
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices picolet/serial"
        );
        let refused = table
            .check_allocation(&pod("q"), &[asks("c", 1)])
            .expect_err("gone");
        assert_eq!(
            refused.to_string(),
            "no healthy devices present; cannot allocate unhealthy devices picolet/serial"
        );
        let changes = table.take_machine_units(R, vec![found("a", 2)], at(30));
        assert_eq!(changes[0].what, back(false, true));
        assert_eq!(amounts(&table), (1, 1));
        // A lost unit without a holder is forgotten.
        table.take_machine_units(R, vec![], at(40));
        table.handle_timeout(at(45));
        table.release_units(|_| false);
        assert_eq!(amounts(&table), (0, 0));
    }

    #[test]
    fn another_agent_begins() {
        // DEV-12
        let mut table = table(1, &["a"]);
        let held = |ids: &[&str]| {
            vec![HeldUnits {
                container: "c".into(),
                resource: R.into(),
                ids: ids.iter().map(|id| (*id).into()).collect(),
                plain_init: false,
                plugin: false,
            }]
        };
        table.restore_holder(pod("p"), held(&["a"]));
        table.restore_holder(pod("q"), held(&["b"]));
        assert!(table.check_allocation(&pod("r"), &[asks("c", 1)]).is_err());
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("its own");
        assert_eq!(ids(&table, "p"), "c=a");
        assert_eq!(ids(&table, "q"), "c=b", "which is not here now");
        let shown: Vec<_> = table.unit_views();
        let shown = shown.iter();
        let shown: Vec<_> = shown
            .map(|s| (&*s.id, s.healthy, s.holders.len()))
            .collect();
        assert_eq!(shown, [("a", true, 1), ("b", false, 1)]);
        let back = table.take_machine_units(R, vec![found("a", 1), found("b", 1)], MonoTime(1));
        assert_eq!(back.len(), 1);
        // A pod without a running container takes another unit if its own is gone.
        table.take_machine_units(R, vec![found("c", 1)], MonoTime(2));
        table.allocate(&pod("q"), &[asks("c", 1)]).expect("another");
        assert_eq!(ids(&table, "q"), "c=c");
    }

    fn listed(ids: &[(&str, bool)]) -> Vec<ListedUnit> {
        let all = ids.iter();
        all.map(|(id, healthy)| ListedUnit {
            id: (*id).into(),
            healthy: *healthy,
        })
        .collect()
    }

    fn of_plugin(ids: &[(&str, bool)], prefers: bool) -> DeviceTable {
        let mut table = DeviceTable::default();
        table.register_plugin(R, prefers);
        assert_eq!(table.take_plugin_units(R, listed(ids)), []);
        table
    }

    fn amounts(table: &DeviceTable) -> (u32, u32) {
        let amount = table.resource_amounts().remove(0);
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
        assert!(table.held_units(&pod("p")).expect("held")[0].plugin);
        let refused = table
            .check_allocation(&pod("q"), &[asks("c", 1)])
            .expect_err("none");
        assert!(refused.to_string().ends_with("Available: 0"));
        // A list replaces the one before. A held unit that is not listed is lost, and no part of the node any more.
        let changes = table.take_plugin_units(R, listed(&[("a", false), ("b", true)]));
        let lost = |c: &&UnitChange| c.what == UnitChangeKind::Lost;
        assert_eq!(changes.iter().filter(lost).count(), 2, "{changes:?}");
        assert_eq!(amounts(&table), (2, 1));
        assert_eq!(ids(&table, "p"), "c=a+c", "the allocation is kept");
        let changes = table.take_plugin_units(R, listed(&[("a", true)]));
        let [back] = &*changes else {
            panic!("one that is held: {changes:?}");
        };
        let what = UnitChangeKind::Back {
            moved: false,
            told: true,
        };
        assert_eq!((&*back.id, back.what), ("a", what));
        assert_eq!(amounts(&table), (1, 1));
        let shown = table.unit_views();
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
        table.register_plugin(R, false);
        assert_eq!(table.take_plugin_units(R, listed(&[("x", true)])), []);
        table.disconnect_plugin(R, MonoTime(0));
        table.recall_resource(R);
        assert_eq!(amounts(&table), (1, 1));
        assert!(!table.is_plugin_resource(R));
    }

    #[test]
    fn a_plugin_goes() {
        // DEV-04
        let at = |s: u64| MonoTime(s * 1000);
        let mut table = of_plugin(&[("a", true), ("b", true)], false);
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        table.disconnect_plugin(R, at(10));
        assert_eq!(amounts(&table), (2, 0), "at once");
        let refused = table
            .check_allocation(&pod("q"), &[asks("c", 1)])
            .expect_err("gone");
        assert_eq!(refused, DeviceRefusal::NoneHealthy(R.into()));
        // The plugin is back: no change is reported.
        table.register_plugin(R, false);
        assert_eq!(amounts(&table), (2, 0), "until it lists");
        assert_eq!(
            table.take_plugin_units(R, listed(&[("a", true), ("b", true)])),
            []
        );
        assert_eq!((amounts(&table), table.next_timeout()), ((2, 2), None));
        // The plugin does not come back.
        table.disconnect_plugin(R, at(20));
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
        let health = |table: &DeviceTable, id: &str| table.unit_health(R, id, false);
        let mut table = of_plugin(&[("a", true), ("b", false)], false);
        assert_eq!(health(&table, "a"), UnitHealth::Healthy);
        assert_eq!(health(&table, "b"), UnitHealth::Unhealthy);
        assert_eq!(
            health(&table, "c"),
            UnitHealth::Unhealthy,
            "it is not listed"
        );
        assert_eq!(
            table.unit_health("x.io/y", "a", true),
            UnitHealth::Unhealthy
        );
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        assert_eq!(table.pods_in_doubt(R), []);
        // The plugin goes, and comes back.
        table.disconnect_plugin(R, MonoTime(0));
        assert_eq!(health(&table, "a"), UnitHealth::Unhealthy);
        assert_eq!(table.pods_in_doubt(R), [pod("p")]);
        table.register_plugin(R, false);
        assert_eq!(health(&table, "a"), UnitHealth::Unsaid);
        assert_eq!(table.take_plugin_units(R, listed(&[("a", true)])), []);
        assert_eq!(health(&table, "a"), UnitHealth::Healthy);
        assert_eq!(table.pods_in_doubt(R), []);
        // Another agent starts, and the plugin has not come yet, or does not come.
        let mut table = DeviceTable::default();
        let held = HeldUnits {
            container: "c".into(),
            resource: R.into(),
            ids: vec!["a".into()],
            plain_init: false,
            plugin: true,
        };
        table.restore_holder(pod("p"), vec![held]);
        assert_eq!(table.unit_health(R, "a", true), UnitHealth::Unsaid);
        assert_eq!(health(&table, "a"), UnitHealth::Unhealthy);
        // A declared unit: a short absence does not count.
        let mut table = self::table(1, &["a"]);
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        table.take_machine_units(R, vec![], MonoTime(0));
        assert_eq!(health(&table, "a"), UnitHealth::Healthy);
        table.handle_timeout(MonoTime(5000));
        assert_eq!(health(&table, "a"), UnitHealth::Unhealthy);
        table.take_machine_units(R, vec![found("a", 1)], MonoTime(6000));
        assert_eq!(health(&table, "a"), UnitHealth::Healthy);
    }

    #[test]
    fn what_went_bad_before_it_was_used() {
        // DEV-08
        let all = [("a", true), ("b", true), ("c", true)];
        let mut table = of_plugin(&all, false);
        let demands = [asks("c", 2)];
        table.allocate(&pod("p"), &demands).expect("two");
        assert_eq!(ids(&table, "p"), "c=a+b");
        // The plugin refuses although its units are healthy.
        assert!(table.can_use(&pod("p")));
        assert_eq!(table.allocate_again(&pod("p"), &demands), Ok(()));
        assert_eq!(ids(&table, "p"), "c=a+b");
        // One unit is unhealthy: the other one stays.
        table.take_plugin_units(R, listed(&[("a", false), ("b", true), ("c", true)]));
        assert!(!table.can_use(&pod("p")));
        assert_eq!(table.allocate_again(&pod("p"), &demands), Ok(()));
        assert_eq!(ids(&table, "p"), "c=b+c");
        // There is no other unit: the pod keeps what it has.
        table.take_plugin_units(R, listed(&[("a", false), ("b", true), ("c", false)]));
        assert_eq!(
            table.allocate_again(&pod("p"), &demands),
            Err(DeviceRefusal::NoLongerHealthy(R.into()))
        );
        assert_eq!(ids(&table, "p"), "c=b+c");
        // No other unit while the plugin is away, either.
        table.disconnect_plugin(R, MonoTime(0));
        assert!(table.allocate_again(&pod("p"), &demands).is_err());
        assert!(table.can_use(&pod("q")), "it has none");
    }

    #[test]
    fn what_makes_room() {
        // DEV-11
        let mut table = of_plugin(&[("a", true)], false);
        let spares = |table: &DeviceTable| table.can_drop(R);
        assert!(!spares(&table), "its plugin is here");
        table.allocate(&pod("p"), &[asks("c", 1)]).expect("a");
        table.disconnect_plugin(R, MonoTime(0));
        table.release_units(|_| false);
        assert!(!spares(&table), "the node tells of it");
        table.drop_spare_resource(R);
        assert_eq!(table.resource_amounts().len(), 1);
        table.handle_timeout(MonoTime(300_000));
        let held = HeldUnits {
            container: "c".into(),
            resource: R.into(),
            ids: vec!["a".into()],
            plain_init: false,
            plugin: true,
        };
        table.restore_holder(pod("p"), vec![held]);
        assert!(!spares(&table), "a pod holds it");
        table.release_units(|_| false);
        assert!(spares(&table));
        // The resource has no units any more, and is shown all the same.
        let none = UnitView {
            resource: R.into(),
            plugin: true,
            ..UnitView::default()
        };
        assert_eq!(table.unit_views(), [none]);
        table.drop_spare_resource(R);
        assert_eq!(table.resource_amounts(), []);
        assert_eq!(table.unit_views(), []);
        let mut declared = self::table(1, &[]);
        declared.drop_spare_resource(R);
        assert_eq!(declared.resource_amounts().len(), 1);
    }

    #[test]
    fn another_agent_begins_before_the_plugin() {
        // DEV-12 DEV-13
        let mut table = DeviceTable::default();
        table.recall_resource("example.com/known");
        let held = HeldUnits {
            container: "c".into(),
            resource: R.into(),
            ids: vec!["a".into()],
            plain_init: false,
            plugin: true,
        };
        table.restore_holder(pod("p"), vec![held]);
        let all = table.resource_amounts().into_iter();
        let all: Vec<_> = all.map(|a| (a.capacity, a.allocatable)).collect();
        assert_eq!(all, [(0, 0), (0, 0)]);
        let mut known = asks("c", 1);
        known.resource = "example.com/known".into();
        let refused = table
            .check_allocation(&pod("q"), &[known])
            .expect_err("not yet");
        assert_eq!(
            refused,
            DeviceRefusal::NoneHealthy("example.com/known".into())
        );
        table.register_plugin(R, false);
        let all = listed(&[("a", true), ("b", true)]);
        assert_eq!(table.take_plugin_units(R, all), [], "it was never lost");
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
        let question = table.next_question(&pod("p"), &demands).expect("asks");
        let texts = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect::<Vec<Box<str>>>();
        assert_eq!(
            question,
            PreferenceQuestion {
                container: "init".into(),
                resource: R.into(),
                available: texts(&["a", "b", "c"]),
                must_include: vec![],
                size: 1,
            }
        );
        let answer = |container: &str, ids: &[&str]| PreferredUnits {
            container: container.into(),
            resource: R.into(),
            ids: texts(ids),
        };
        table.take_preference(&pod("p"), answer("init", &["c"]));
        let question = table
            .next_question(&pod("p"), &demands)
            .expect("asks again");
        assert_eq!(
            (&*question.container, question.must_include),
            ("c", texts(&["c"])),
            "what its init container had"
        );
        // Ids that are not there, or not healthy, are ignored.
        table.take_preference(&pod("p"), answer("c", &["d", "x", "b"]));
        assert_eq!(table.next_question(&pod("p"), &demands), None);
        table.allocate(&pod("p"), &demands).expect("given");
        assert_eq!(ids(&table, "p"), "init=c c=c+b");
        // The container keeps its units, and the plugin is not asked.
        assert_eq!(table.next_question(&pod("p"), &demands), None);
        // There is no question if no unit can be given, or if the plugin does not want one.
        assert_eq!(table.next_question(&pod("q"), &[asks("c", 2)]), None);
        let table = of_plugin(&all, false);
        assert_eq!(table.next_question(&pod("p"), &demands), None);
    }

    #[test]
    fn records() {
        // DEV-12
        let held = HeldUnits {
            container: "c".into(),
            resource: R.into(),
            ids: vec!["a".into()],
            plain_init: true,
            plugin: false,
        };
        let text = r#"{"container":"c","resource":"picolet/serial","ids":["a"],"plainInit":true}"#;
        assert_eq!(serde_json::to_string(&held).expect("text"), text.to_owned());
        assert_eq!(serde_json::from_str::<HeldUnits>(text).expect("held"), held);
        let text = r#"{"container":"c","resource":"picolet/serial","ids":["a"],"plainInit":true,"plugin":true}"#;
        let of_plugin = HeldUnits {
            plugin: true,
            ..held
        };
        assert_eq!(
            serde_json::to_string(&of_plugin).expect("text"),
            text.to_owned()
        );
    }
}
