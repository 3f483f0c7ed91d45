//! Devices for pods (DEV, CDI): those of the machine that the operator declares, and those of device plugins. They are the
//! Node's extended resources.
//!
//! | file | what it is |
//! |---|---|
//! | `config` | keys of the configuration, and the attachment of the part |
//! | `holders` | the half that the loop owns: who gets which device, who waits for one |
//! | `giver` | the half with effects: what containers get, and the records of what pods hold |
//! | `containers` | devices of the direct backend that are more than nodes: CDI, nodes that come and go |
//! | `watch` | the look at the machine, again and again |
//! | `plugins`, `plugin_registry` | connections to device plugins; those that wait until they are found |
//! | `news` | what the loop's half is told |
//! | `machine` | device nodes, CDI files, and the protocol of plugins |
//!
//! Decisions are those of `logic::devices`.

mod config;
mod containers;
mod giver;
mod holders;
mod machine;
mod news;
mod plugin_registry;
mod plugins;
mod watch;

#[cfg(test)]
pub(crate) use self::{
    config::tests::with_machine,
    giver::{DeviceGiver, FollowedContainers},
    machine::DeviceMachine,
    news::{DeviceLoop, DeviceNews},
};
pub(super) use config::DevicesPart;
