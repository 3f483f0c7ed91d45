//! Devices that pods request by `limits` (DEV): the declared resources, the units that are here, and their holders.
//!
//! | file | what it is |
//! |---|---|
//! | `glob` | patterns of device nodes |
//! | `declared` | the operator's entries, checked; `preset`: entries that many boards need |
//! | `cdi` | devices as their vendors describe them in files |
//! | `udev` | devices by what udev knows of them |
//! | `units` | from a look at the machine to units with lasting ids |
//! | `plugin` | data from plugins, checked; what a container gets of it |
//! | `registry` | plugins that are asked what they are: which are taken, and when one is asked again |
//! | `table` | resources, their units, their holders. Where a resource comes from does not matter here |
//! | `live_rules` | device rules of a container whose nodes come and go |
//! | `health` | health of a pod's devices in its status |
//! | `refusal` | reasons why a pod does not get its devices, and how long it waits |
//!
//! A *unit* is what is given to one container as a whole: a node, or several that belong together.

pub mod cdi;
mod declared;
mod glob;
mod health;
mod live_rules;
mod plugin;
mod preset;
mod refusal;
mod registry;
mod table;
mod udev;
mod units;

pub use declared::{DeclaredDevices, DeviceEntry, ReplugPolicy, parse_declared_devices};
pub use health::{UnitHealth, set_unit_health};
pub use live_rules::compute_live_rules;
pub use plugin::{
    HeldUnitsAnswer, PluginMessageError, check_allocate_answer, check_preference,
    check_registration, check_unit_list, escape_message, merge_answers,
};
pub use refusal::{
    DeviceRefusal, DeviceWaitFacts, DeviceWaitVerdict, judge_refusal, plugins_may_come,
};
pub use registry::{check_plugin_info, retry_pause};
pub use table::{
    DeviceTable, FoundUnit, ListedUnit, PreferenceQuestion, PreferredUnits, UnitChange,
    UnitChangeKind, UnitHolder, UnitView,
};
pub use units::{
    ContainerLiveNodes, GivenDevices, LiveUnits, compute_given_devices, compute_live_nodes,
    find_units,
};

/// Units of all resources together (DEV-46).
pub const MAX_UNITS: usize = 256;
/// Entries of the configuration.
pub const MAX_ENTRIES: usize = 64;
/// Alternatives of an entry, and members of a group.
pub const MAX_MATCHES: usize = 16;
/// Pods that may hold one unit at once.
pub const MAX_SHARES: u32 = 1024;
/// Resources of plugins.
pub const MAX_PLUGINS: usize = 64;
/// Units that one plugin lists.
pub const MAX_LISTED: usize = 1024;
/// Units of all plugins together.
pub const MAX_ALL_LISTED: usize = 4096;
