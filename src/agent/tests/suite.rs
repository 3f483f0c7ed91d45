//! The pods of `tests/common/pods.rs` over the fake runtime, which treats them as the real runtimes do.

#[path = "../../../tests/common/pods.rs"]
mod pods;

use serde_json::json;

use super::world::{IMAGE, World, manifest};

#[test]
fn pods_on_the_fake_runtime() {
    become_what_they_are_to(&pods::cases(IMAGE));
    // PRVD-09
    become_what_they_are_to(&pods::of_every_driver(IMAGE, pods::of_images, &json!({})));
}

fn become_what_they_are_to(cases: &[pods::Case]) {
    let world = World::new();
    let manifests: Vec<_> = cases
        .iter()
        .map(|case| manifest(&case.name, case.spec.clone()))
        .collect();
    world.apply(&manifests);
    for case in cases {
        world.until(&case.name, |world| {
            let status = world
                .status(&case.name)
                .map(|status| json!({"status": status}));
            status.is_some_and(|pod| case.missing(&pod).is_empty())
        });
    }
    world.apply(&[]);
    for case in cases {
        world.until(&case.name, |world| world.is_gone(&case.name));
    }
}
