//! Processors for single containers (CPUM-20 to CPUM-23): the policy `static` of a kubelet's CPU manager.
//!
//! A container of a Guaranteed pod that asks for whole processors gets so many for itself. All other containers share the
//! rest.
//!
//! - Source: kubelet `cm/cpumanager/policy_static.go`, `cpu_assignment.go`.

use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use crate::{
    api::{Container, Pod, PodUid, pod_status::QosClass},
    cpu_set::CpuSet,
    pod_resources::{AmountKind, container_amount},
    qos,
};

/// Name of the policy in the configuration and in the record.
pub const STATIC_POLICY: &str = "static";
/// Thousandths of a processor.
const WHOLE: i64 = 1000;

/// Options of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuPolicyOptions {
    /// `full-pcpus-only`: only whole cores are given, with all their threads.
    pub full_cores: bool,
    /// `strict-cpu-reservation`: reserved processors are not shared by containers.
    pub strict_reservation: bool,
}

/// Processors that a container asks for itself alone; `None`: it shares.
#[must_use]
pub fn exclusive_cpus(pod: &Pod, container: &Container) -> Option<usize> {
    let milli = container_amount(container, AmountKind::Requests, "cpu")?;
    let is_whole = milli > 0 && milli % WHOLE == 0;
    // Resources of the whole pod are shared by its containers.
    let is_alone = pod.spec.resources.is_none() && qos::qos_class(pod) == QosClass::Guaranteed;
    usize::try_from(milli / WHOLE)
        .ok()
        .filter(|_| is_whole && is_alone)
}

/// Counts the containers of the pod that ask for processors for themselves.
#[must_use]
pub fn count_exclusive_containers(pod: &Pod) -> usize {
    let is_exclusive = |container: &&Container| exclusive_cpus(pod, container).is_some();
    all_containers(pod).filter(is_exclusive).count()
}

fn all_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().chain(&pod.spec.containers)
}

/// Processors of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineCpus {
    /// Those that can be given or shared.
    pub all: CpuSet,
    /// Threads of each core.
    pub cores: Vec<CpuSet>,
}

/// Processors that are to be reserved, and that the machine does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("names processors that are not on-line: {absent}; on-line are {online}")]
pub struct AbsentCpus {
    absent: CpuSet,
    online: CpuSet,
}

impl MachineCpus {
    /// Checks that the machine has the processors that are to be reserved (CONF-13).
    ///
    /// # Errors
    ///
    /// Some of them are not on-line.
    pub fn check_reserved(&self, listed: &CpuSet) -> Result<(), AbsentCpus> {
        let absent = listed.without(&self.all);
        let online = self.all.clone();
        match absent.is_empty() {
            true => Ok(()),
            false => Err(AbsentCpus { absent, online }),
        }
    }

    /// Chooses the processors that are reserved (CPUM-20): so many, the lowest cores first.
    #[must_use]
    pub fn choose_reserved(&self, count: usize) -> CpuSet {
        self.choose(&self.all, count)
    }

    /// Chooses so many processors of `free`: whole cores first, then those of cores of which fewest are free.
    fn choose(&self, free: &CpuSet, count: usize) -> CpuSet {
        let mut taken = CpuSet::default();
        for core in &self.cores {
            let is_free = core.without(free).is_empty();
            if is_free && !core.is_empty() && taken.len() + core.len() <= count {
                taken = taken.union(core);
            }
        }
        let most = self.cores.iter().map(CpuSet::len).max().unwrap_or(1);
        for free_threads in 1..=most {
            for core in &self.cores {
                let left = core.common(&free.without(&taken));
                if left.len() == free_threads {
                    left.move_lowest(&mut taken, count);
                }
            }
        }
        // Those of which no core is known.
        free.without(&taken).move_lowest(&mut taken, count);
        taken
    }
}

/// Reason why a pod does not get processors of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuRefusal {
    /// Too few are left.
    #[error(
        "not enough cpus available to satisfy request: requested={want}, available={available}"
    )]
    TooFew {
        /// Number that the container asks for.
        want: usize,
        /// Number that is left.
        available: usize,
    },
    /// Only whole cores are given.
    #[error("SMT Alignment Error: requested {want} cpus not multiple cpus per core = {threads}")]
    HalfCore {
        /// Number that the container asks for.
        want: usize,
        /// Processors of a core.
        threads: usize,
    },
}

/// State of the policy, as it is recorded: the form of a kubelet's `cpu_manager_state`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuManagerState {
    /// [`STATIC_POLICY`].
    pub policy_name: String,
    /// Processors that containers share.
    pub default_cpu_set: String,
    /// Processors of containers, by the pod's UID and the container's name.
    #[serde(default)]
    pub entries: BTreeMap<String, BTreeMap<String, String>>,
}

/// Processors of the Node, and the containers that have some for themselves.
#[derive(Clone, Debug, Default)]
pub struct CpuManager {
    cpus: MachineCpus,
    reserved: CpuSet,
    options: CpuPolicyOptions,
    given: BTreeMap<PodUid, BTreeMap<String, CpuSet>>,
}

impl CpuManager {
    /// A manager that has given nothing.
    #[must_use]
    pub const fn new(cpus: MachineCpus, reserved: CpuSet, options: CpuPolicyOptions) -> Self {
        Self {
            cpus,
            reserved,
            options,
            given: BTreeMap::new(),
        }
    }

    /// Takes over what an earlier agent gave. Returns the UIDs of pods whose processors cannot be theirs any more: those of
    /// another machine, reserved ones, or those of two pods.
    pub fn restore(&mut self, state: &CpuManagerState) -> Vec<String> {
        let mut lost = Vec::new();
        if state.policy_name != STATIC_POLICY {
            return lost;
        }
        let usable = self.cpus.all.without(&self.reserved);
        for (uid, containers) in &state.entries {
            let mut pod = BTreeMap::new();
            let mut whole = CpuSet::default();
            for (name, text) in containers {
                let set = CpuSet::parse(text).unwrap_or_default();
                whole = whole.union(&set);
                pod.insert(name.clone(), set);
            }
            let is_good = !pod.values().any(CpuSet::is_empty)
                && whole.without(&usable).is_empty()
                && whole.common(&self.given_cpus()).is_empty();
            match is_good {
                true => drop(self.given.insert(uid.as_str().into(), pod)),
                false => lost.push(uid.clone()),
            }
        }
        lost
    }

    /// State to be recorded.
    #[must_use]
    pub fn state(&self) -> CpuManagerState {
        let entries = self.given.iter().map(|(uid, containers)| {
            let sets = containers.iter();
            let sets = sets.map(|(name, set)| (name.clone(), set.to_string()));
            (uid.to_string(), sets.collect())
        });
        CpuManagerState {
            policy_name: STATIC_POLICY.into(),
            default_cpu_set: self.shared_cpus().to_string(),
            entries: entries.collect(),
        }
    }

    fn given_cpus(&self) -> CpuSet {
        let sets = self.given.values().flat_map(BTreeMap::values);
        sets.fold(CpuSet::default(), |all, set| all.union(set))
    }

    /// Processors that containers share.
    #[must_use]
    pub fn shared_cpus(&self) -> CpuSet {
        let shared = self.cpus.all.without(&self.given_cpus());
        match self.options.strict_reservation {
            true => shared.without(&self.reserved),
            false => shared,
        }
    }

    /// Processors of a container.
    #[must_use]
    pub fn cpus_of(&self, pod: &PodUid, container: &str) -> CpuSet {
        let own = self.given.get(pod).and_then(|pod| pod.get(container));
        own.cloned().unwrap_or_else(|| self.shared_cpus())
    }

    /// Gives the containers of an admitted pod the processors that they ask for. What a container has stays, whatever it asks
    /// for by now: it may run. Returns true if something has changed. The processors of an init container go to later
    /// containers of the pod too (CPUM-22).
    ///
    /// # Errors
    ///
    /// Too few are left, or whole cores are asked for and the number does not fit: the pod has none then.
    pub fn give(&mut self, pod: &Pod) -> Result<bool, CpuRefusal> {
        let uid = &pod.metadata.uid;
        let had = self.given.remove(uid).unwrap_or_default();
        let inits = pod.spec.init_containers.len();
        let containers = || {
            let all = all_containers(pod).enumerate();
            all.map(|(place, container)| (container, place < inits && !container.is_sidecar()))
        };
        let mut free = self.cpus.all.without(&self.reserved);
        free = free.without(&self.given_cpus());
        // What is kept is nobody else's, also where an init container had it before.
        let mut kept = CpuSet::default();
        for (container, is_init) in containers() {
            if let Some(set) = had.get(&container.name) {
                free = free.without(set);
                kept = if is_init { kept } else { kept.union(set) };
            }
        }
        let mut own = BTreeMap::new();
        let mut reusable = CpuSet::default();
        for (container, is_init) in containers() {
            let set = match (had.get(&container.name), exclusive_cpus(pod, container)) {
                (Some(set), _) => set.clone(),
                (None, Some(want)) => self.choose_own(&free, &reusable.without(&kept), want)?,
                (None, None) => continue,
            };
            free = free.without(&set);
            reusable = match is_init {
                true => reusable.union(&set),
                false => reusable.without(&set),
            };
            own.insert(container.name.clone(), set);
        }
        let is_change = own != had;
        if !own.is_empty() {
            self.given.insert(uid.clone(), own);
        }
        Ok(is_change)
    }

    fn choose_own(
        &self,
        free: &CpuSet,
        reusable: &CpuSet,
        want: usize,
    ) -> Result<CpuSet, CpuRefusal> {
        let threads = self.cpus.cores.iter().map(CpuSet::len).max().unwrap_or(1);
        if self.options.full_cores && !want.is_multiple_of(threads.max(1)) {
            return Err(CpuRefusal::HalfCore { want, threads });
        }
        let mut available = free.union(reusable);
        if self.options.full_cores {
            // A core of which a thread is somebody else's is nobody's whole core.
            let broken = self
                .cpus
                .cores
                .iter()
                .filter(|core| !core.without(&available).is_empty());
            let broken = broken.fold(CpuSet::default(), |all, core| all.union(core));
            available = available.without(&broken);
        }
        let reusable = &reusable.common(&available);
        let mut set = self.cpus.choose(reusable, want.min(reusable.len()));
        let more = self.cpus.choose(&available.without(&set), want - set.len());
        set = set.union(&more);
        if set.len() < want {
            let available = available.len();
            return Err(CpuRefusal::TooFew { want, available });
        }
        Ok(set)
    }

    /// Takes back what pods have that `keeps` does not name. Returns true if there were some.
    pub fn release(&mut self, keeps: impl Fn(&PodUid) -> bool) -> bool {
        let had = self.given.len();
        self.given.retain(|uid, _| keeps(uid));
        self.given.len() < had
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use serde_json::{Value, json};

    use super::*;

    fn set(text: &str) -> CpuSet {
        CpuSet::parse(text).expect("a list")
    }

    /// Cores of two threads each: 0 and 4, 1 and 5, …; or of one.
    fn manager(threads: u32, reserved: &str, options: CpuPolicyOptions) -> CpuManager {
        let core = |n: u32| {
            let mut core = CpuSet::default();
            (0..threads).for_each(|thread| core.insert(n + 4 * thread));
            core
        };
        let cores: Vec<_> = (0..4).map(core).collect();
        let all = cores.iter().fold(CpuSet::default(), |all, c| all.union(c));
        CpuManager::new(MachineCpus { all, cores }, set(reserved), options)
    }

    fn container(name: &str, cpu: &str) -> Value {
        let amounts = json!({"cpu": cpu, "memory": "1Mi"});
        json!({"name": name, "image": "i", "resources": {"requests": amounts, "limits": amounts}})
    }

    fn pod(uid: &str, init: Vec<Value>, containers: Vec<Value>) -> Pod {
        let spec = json!({"initContainers": init, "containers": containers});
        let pod = json!({"metadata": {"name": uid, "uid": uid}, "spec": spec});
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn whole_processors_of_guaranteed_pods() {
        // CPUM-20
        let mut cpus = manager(1, "0", CpuPolicyOptions::default());
        let given = |cpus: &mut CpuManager, uid: &str, cpu: &str| {
            let pod = pod(uid, vec![], vec![container("c", cpu)]);
            cpus.give(&pod).map(|_| cpus.cpus_of(&uid.into(), "c"))
        };
        assert_eq!(given(&mut cpus, "shares", "1500m"), Ok(set("0-3")));
        assert_eq!(given(&mut cpus, "two", "2"), Ok(set("1-2")));
        assert_eq!(cpus.cpus_of(&"shares".into(), "c"), set("0,3"));
        // Not enough are left: the reserved one is nobody's own.
        let refused = given(&mut cpus, "too-many", "2").expect_err("one is left");
        assert_eq!(
            refused.to_string(),
            "not enough cpus available to satisfy request: requested=2, available=1"
        );
        // Burstable, and with resources of the whole pod.
        let mut burstable = pod("b", vec![], vec![container("c", "1")]);
        burstable.spec.containers[0].resources.limits.clear();
        let mut whole = pod("w", vec![], vec![container("c", "1")]);
        whole.spec.resources = Some(whole.spec.containers[0].resources.clone());
        for pod in [burstable, whole] {
            assert_eq!(cpus.give(&pod), Ok(false));
            assert_eq!(count_exclusive_containers(&pod), 0);
        }
        // What is released is shared at once, and can be given again.
        assert!(cpus.release(|uid| uid.as_str() != "two"));
        assert!(!cpus.release(|_| true));
        assert_eq!(cpus.shared_cpus(), set("0-3"));
        assert_eq!(given(&mut cpus, "again", "3"), Ok(set("1-3")));
        assert_eq!(given(&mut cpus, "again", "3"), Ok(set("1-3")), "stays");
    }

    #[test]
    fn whole_cores_first() {
        // CPUM-20 CPUM-23
        let mut cpus = manager(2, "0,4", CpuPolicyOptions::default());
        let mut give = |uid: &str, cpu: &str| {
            let pod = pod(uid, vec![], vec![container("c", cpu)]);
            cpus.give(&pod).expect("enough");
            cpus.cpus_of(&uid.into(), "c")
        };
        assert_eq!(give("one", "1"), set("1"));
        assert_eq!(give("core", "2"), set("2,6"));
        assert_eq!(give("half", "1"), set("5"), "the rest of a core");
        let options = CpuPolicyOptions {
            full_cores: true,
            strict_reservation: true,
        };
        let mut cpus = manager(2, "0,4", options);
        let odd = pod("odd", vec![], vec![container("c", "3")]);
        let refused = cpus.give(&odd).expect_err("half a core");
        let expected = CpuRefusal::HalfCore {
            want: 3,
            threads: 2,
        };
        assert_eq!(refused, expected);
        assert_eq!(cpus.shared_cpus(), set("1-3,5-7"), "without reserved ones");
    }

    #[test]
    fn an_edited_pod_keeps_what_it_was_given_first() {
        // CPUM-22
        let mut cpus = manager(1, "0", CpuPolicyOptions::default());
        let edited = |cpus: &mut CpuManager, names: &[&'static str], amount: &'static str| {
            let containers = names.iter().map(|name| container(name, amount)).collect();
            let given = cpus.give(&pod("p", vec![container("i", "2")], containers))?;
            let of = |name: &&str| cpus.cpus_of(&"p".into(), name).to_string();
            Ok((given, names.iter().map(of).collect::<Vec<_>>()))
        };
        let has = |all: &[&str]| all.iter().copied().map(String::from).collect::<Vec<_>>();
        let first = edited(&mut cpus, &["a"], "1");
        assert_eq!(first, Ok((true, has(&["1"]))));
        for amount in ["1", "500m", "3"] {
            let again = edited(&mut cpus, &["a"], amount);
            assert_eq!(again, Ok((false, has(&["1"]))), "{amount}");
        }
        // A container that is new has none of another's, also not by way of the init container.
        let more = edited(&mut cpus, &["b", "a"], "1");
        assert_eq!(more, Ok((true, has(&["2", "1"]))));
        let (want, available) = (3, 2);
        let few = CpuRefusal::TooFew { want, available };
        assert_eq!(edited(&mut cpus, &["a", "c"], "3"), Err(few));
        assert_eq!(cpus.shared_cpus(), set("0-3"), "a refused pod has none");
    }

    #[test]
    fn reserved_processors_are_those_of_the_machine() {
        // CONF-13
        let cpus = manager(1, "0", CpuPolicyOptions::default()).cpus;
        assert_eq!(cpus.check_reserved(&set("0,3")), Ok(()));
        let refused = cpus.check_reserved(&set("3-5")).expect_err("absent");
        let text = "names processors that are not on-line: 4-5; on-line are 0-3";
        assert_eq!(refused.to_string(), text);
    }

    #[test]
    fn init_containers_hand_on_what_they_have() {
        // CPUM-22
        let mut cpus = manager(1, "0", CpuPolicyOptions::default());
        let mut sidecar = container("side", "1");
        sidecar["restartPolicy"] = "Always".into();
        let init = vec![container("first", "2"), sidecar];
        let pod = pod("p", init, vec![container("main", "1")]);
        assert_eq!(cpus.give(&pod), Ok(true));
        let of = |name: &str| cpus.cpus_of(&"p".into(), name).to_string();
        assert_eq!(
            [of("first"), of("side"), of("main")],
            ["1-2", "1", "2"].map(String::from)
        );
        assert_eq!(cpus.shared_cpus(), set("0,3"));
    }

    #[test]
    fn the_record_is_that_of_a_kubelet() {
        // CPUM-21
        let mut cpus = manager(1, "0", CpuPolicyOptions::default());
        let pod = pod("p", vec![], vec![container("c", "2")]);
        cpus.give(&pod).expect("enough");
        let state = cpus.state();
        let text =
            json!({"policyName": "static", "defaultCpuSet": "0,3", "entries": {"p": {"c": "1-2"}}});
        assert_eq!(serde_json::to_value(&state).expect("JSON"), text);
        let mut next = manager(1, "0", CpuPolicyOptions::default());
        assert_eq!(next.restore(&state), [""; 0]);
        assert_eq!(next.state(), state);
        // Of another machine, reserved, of two pods, nonsense, of another policy.
        let mut bad = state;
        for (uid, cpus) in [("far", "9"), ("mine", "0"), ("twin", "2"), ("odd", "x")] {
            let entry = [(String::from("c"), String::from(cpus))].into();
            bad.entries.insert(uid.into(), entry);
        }
        let mut next = manager(1, "0", CpuPolicyOptions::default());
        assert_eq!(next.restore(&bad), ["far", "mine", "odd", "twin"]);
        assert_eq!(next.shared_cpus(), set("0,3"));
        bad.policy_name = "none".into();
        let mut next = manager(1, "0", CpuPolicyOptions::default());
        assert_eq!(next.restore(&bad), [""; 0]);
        assert_eq!(next.shared_cpus(), set("0-3"));
    }
}
