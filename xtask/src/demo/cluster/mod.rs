//! `cargo xtask demo --cluster`: shows a node of a cluster. The control plane is made of the real programs where they are on
//! `PATH`; otherwise the test API server stands in, and the steps with Deployments, DaemonSets and Jobs are left out.
//!
//! | file | what it is |
//! |---|---|
//! | `plane` | the control plane: `real` or `double`; `pki` has its certificates |
//! | `client` | asks it as administrator |
//! | `audit` | what the node asked of it |
//! | `world`, `objects` | what steps look at, and what they make |
//! | `steps`, `outage` | the steps |

mod audit;
mod client;
mod double;
mod objects;
mod outage;
mod pki;
mod plane;
mod real;
mod steps;
mod world;

pub(crate) use self::{
    client::Client,
    double::{DOUBLE, Double},
};
use self::{plane::Plane, world::World};
use super::Show;
use crate::{Failure, stage::Stage};

/// All steps. The control plane ends before this returns.
pub(super) fn all(show: &mut Show, stage: &mut Stage) -> Result<(), Failure> {
    let missing = plane::missing();
    if missing.is_empty() {
        println!("The control plane is made of the real programs on PATH.");
    } else {
        println!(
            "The control plane is the test API server of this project: {} not on PATH.",
            missing.join(", ")
        );
    }
    stage.subnet = "";
    let dir = stage.base.join("plane");
    let mut plane = None;
    show.step("The control plane starts", || {
        let started = Plane::start(&dir)?;
        let version = started.client.get("/version")?;
        plane = Some(started);
        Ok(format!("{}", version["gitVersion"]).replace('"', ""))
    })?;
    let plane = plane.ok_or("it was started")?;
    let mut world = World { plane, stage };
    steps::all(show, &mut world)?;
    outage::all(show, &mut world)?;
    drop(world.plane);
    outage::nothing_left(show, world.stage)
}
