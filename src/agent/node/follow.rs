//! Addresses of the node, while no cluster's Node object says them.

use alloc::rc::Rc;
use core::{net::IpAddr, time::Duration};

use super::LocalNode;
use crate::{
    agent::clock::{Clock, align_to_second},
    logic::node,
    sys::lane::Lane,
};

/// Time between two looks at the addresses of the machine.
pub(in crate::agent) const LOOK: Duration = Duration::from_secs(60);

/// Looks at the addresses again and again, as long as the agent runs: a cable may come after the agent, and a lease may
/// bring another address. `asked`: the addresses that the configuration names.
pub(in crate::agent) async fn follow_addresses(
    own: Rc<LocalNode>,
    asked: Vec<IpAddr>,
    disk: Lane,
    clock: Rc<dyn Clock>,
) {
    loop {
        let now = clock.now();
        clock.sleep_until(align_to_second(now + LOOK, now)).await;
        let (addresses, name, asked) = (own.addresses, own.name.clone(), asked.clone());
        let look = disk.run_job(move || {
            // If none is found, the last ones stay.
            node::choose_host_ips(&asked, &name, &addresses(&name)).unwrap_or_default()
        });
        own.set_host_ips(look.await);
    }
}
