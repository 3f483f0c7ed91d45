//! What one more pod costs: the two-hundredth as much as the fiftieth.
//!
//! Costs are counts of this thread, on which a whole agent runs beside a runtime that takes its time: pieces of the heap that
//! are taken, for all work takes some, and bytes that are held. No clock and no other program has a say. The bytes that the
//! runtime of the test holds are among them, the pieces that it takes are not.

use core::time::Duration;

use serde_json::json;

use super::world::{World, manifest};
use crate::{
    api::pod_status::PodPhase,
    sys::counted_heap::{HeapCount, thread_heap_count},
};

/// Pods of the two nodes that are compared.
const FEW: usize = 50;
const MANY: usize = 200;
/// Cost of a pod among many, in hundredths of its cost among few, at most.
const RATIO_PER_CENT: i64 = 110;
/// Costs of a pod among few, at most: pieces until it runs; pieces in a minute at rest; bytes. See `tests/limits.md`.
const START_PIECES: i64 = 1310;
const REST_PIECES: i64 = 350;
const HELD_BYTES: i64 = 12_500;
/// Bytes by which an agent may hold more after the time at rest than before it. One byte a pod and round would be more.
const GROWTH_BYTES: i64 = 65_536;

/// Time that a call of the runtime takes at most, before its work and after it, in milliseconds.
const CALL_MS: u64 = 20;
/// Time in which a crowd is up.
const START: Duration = Duration::from_secs(20);
/// Time until nothing is left of a start.
const SETTLE: Duration = Duration::from_secs(300);
/// Time at rest that is looked at, in minutes: some syncs of each pod.
const REST_MINUTES: u32 = 15;

/// Costs of a node.
#[derive(Clone, Copy, Debug)]
struct NodeCosts {
    /// Pieces taken until all pods run.
    start: i64,
    /// Pieces taken at rest.
    rest: i64,
    /// Bytes held at rest.
    held: i64,
    /// Bytes by which they grow at rest.
    growth: i64,
}

/// Selects one of the costs.
type CostOf = fn(&NodeCosts) -> i64;

fn node_costs(pods: usize) -> NodeCosts {
    let world = World::with(&["--max-pods=250"], None);
    world.advance(START);
    let names: Vec<String> = (0..pods).map(|n| format!("pod-{n:03}")).collect();
    let manifests: Vec<_> = names.iter().map(|name| manifest(name, json!({}))).collect();
    world.fake.set_latency(CALL_MS, 7);
    let before = thread_heap_count();
    world.apply(&manifests);
    world.advance(START);
    let started = thread_heap_count();
    let runs = |name: &&String| world.phase(name) == Some(PodPhase::Running);
    assert_eq!(names.iter().filter(runs).count(), pods, "all run");
    world.fake.set_latency(0, 7);
    world.advance(SETTLE);
    // What the runtime of the test remembers has no end.
    drop(world.fake.take_calls());
    let HeapCount { taken, held_bytes } = thread_heap_count();
    world.advance(REST_MINUTES * Duration::from_secs(60));
    drop(world.fake.take_calls());
    let after = thread_heap_count();
    NodeCosts {
        start: started.taken - before.taken,
        rest: after.taken - taken,
        held: held_bytes - before.held_bytes,
        growth: after.held_bytes - held_bytes,
    }
}

#[test]
fn one_more_pod_costs_what_the_last_one_did() {
    let [none, few, many] = [0, FEW, MANY].map(node_costs);
    println!("without pods {none:?}\n{FEW} pods {few:?}\n{MANY} pods {many:?}");
    let minutes = i64::from(REST_MINUTES);
    let kinds: [(&str, i64, CostOf); 3] = [
        ("pieces until it runs", START_PIECES, |costs| costs.start),
        ("pieces at rest", minutes * REST_PIECES, |costs| costs.rest),
        ("bytes", HELD_BYTES, |costs| costs.held),
    ];
    for (what, most, cost_of) in kinds {
        let of_pod = |costs: &NodeCosts, pods: usize| {
            (cost_of(costs) - cost_of(&none)) / i64::try_from(pods).expect("a few")
        };
        let (one, last) = (of_pod(&few, FEW), of_pod(&many, MANY));
        println!("{what} of a pod: {one} among {FEW}, {last} among {MANY}");
        assert!(one > 0 && one <= most, "{what}: {one} of at most {most}");
        assert!(
            100 * last <= RATIO_PER_CENT * one,
            "{what}: {one} among {FEW}, {last} among {MANY}"
        );
    }
    for costs in [none, few, many] {
        assert!(costs.growth <= GROWTH_BYTES, "grows at rest: {costs:?}");
    }
}
