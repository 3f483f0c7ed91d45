//! Keys of devices below `picolet` in the configuration, and the attachment of the part.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::{
    containers::VendorDevices,
    giver::DeviceGiver,
    machine::{DeviceMachine, LocalMachine},
};
use crate::{
    agent::node_resources::{ResourceGiver, ResourceTools},
    api::strict::{self, WrongValue},
    config::{
        AgentConfig, InvalidField, TableKey,
        checks::{duration_or_default, invalid_field, read_absolute_path},
        duration::GoDuration,
        key,
    },
    logic::{
        check,
        devices::{self, DeclaredDevices},
    },
    parts::{ConfiguredPart, Part},
    runtime::runc::DeviceInjector,
};

/// Directories in which vendors put CDI files. At most [`MAX_CDI_DIRS`] others may be configured.
const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const MAX_CDI_DIRS: usize = 16;
/// Directory in which device plugins look for a kubelet, whatever its root directory is (DEV-01).
const DEVICE_PLUGIN_DIR: &str = "/var/lib/kubelet/device-plugins";
/// Time for which a pod of the apiserver waits for a device.
const DEVICE_WAIT: Duration = Duration::from_secs(120);

/// The part; see the module above.
pub(crate) struct DevicesPart;

const KEYS: [TableKey; 7] = [
    key("picolet.cdiHooks"),
    key("picolet.cdiSpecDirs"),
    key("picolet.devicePluginDir").path(),
    key("picolet.devicePlugins"),
    key("picolet.deviceRoot").path(),
    key("picolet.deviceWait"),
    key("picolet.devices"),
];

impl Part for DevicesPart {
    fn name(&self) -> &'static str {
        "devices"
    }

    fn keys(&self) -> &'static [TableKey] {
        &KEYS
    }

    fn configure(
        &self,
        own: &Value,
        config: &AgentConfig,
    ) -> Result<Option<Rc<dyn ConfiguredPart>>, InvalidField> {
        let Some(cfg) = read_device_config(own)? else {
            return Ok(None);
        };
        if config.runtime.endpoints.is_some() {
            refuse_live_devices(&cfg.declared)?;
        }
        let machine = Arc::new(LocalMachine::below(&cfg.root, &cfg.cdi));
        Ok(Some(Rc::new(ConfiguredDevices { cfg, machine })))
    }
}

/// Keys as they are written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DevicesSection {
    cdi_hooks: Option<bool>,
    cdi_spec_dirs: Option<Vec<String>>,
    device_plugin_dir: Option<String>,
    device_plugins: Option<bool>,
    device_root: Option<String>,
    device_wait: Option<GoDuration>,
    devices: Value,
}

/// Settings of devices.
#[derive(Clone, Debug)]
pub(super) struct DeviceConfig {
    /// Devices that pods may ask for: at least one entry, unless device plugins may come.
    pub(super) declared: Arc<DeclaredDevices>,
    /// Directory of the sockets of device plugins; `None`: no plugin may come.
    pub(super) plugins: Option<PathBuf>,
    /// Directory below which `dev` and `sys` are searched. Default `/`.
    root: PathBuf,
    /// Time for which a pod of the apiserver waits for a device. Default 2 min.
    pub(super) wait: Duration,
    /// Directories of CDI files; a later directory wins. Default `/etc/cdi` and `/var/run/cdi`.
    pub(super) cdi: Vec<PathBuf>,
    /// Hooks of CDI devices may run, as root on the machine. Default false.
    pub(super) cdi_hooks: bool,
}

/// Devices that are configured, and the machine that has them.
#[derive(Clone, Debug)]
struct ConfiguredDevices {
    cfg: DeviceConfig,
    machine: Arc<dyn DeviceMachine>,
}

impl ConfiguredPart for ConfiguredDevices {
    fn resource_giver(&self, tools: &ResourceTools<'_>) -> Option<Rc<dyn ResourceGiver>> {
        let machine = Arc::clone(&self.machine);
        Some(Rc::new(DeviceGiver::new(&self.cfg, machine, tools)))
    }

    fn container_devices(&self) -> Option<Arc<dyn DeviceInjector>> {
        Some(Arc::new(VendorDevices::from(&self.cfg)))
    }

    fn resource_facts(&self) -> Option<check::OfferedDevices> {
        let declared = &*self.cfg.declared;
        let seen = self.machine.find_devices(declared);
        let found = devices::find_units(declared, &seen);
        let all = declared.entries.iter().zip(found);
        let units = all.map(|(entry, units)| (entry.resource.clone(), units.len()));
        Some(check::OfferedDevices {
            units: units.collect(),
            wrong: seen.wrong,
            ..check::OfferedDevices::default()
        })
    }
}

/// Reads the devices that pods may ask for; `None`: there are none.
fn read_device_config(own: &Value) -> Result<Option<DeviceConfig>, InvalidField> {
    let wrong = |e: WrongValue| InvalidField {
        field: e.path,
        message: e.message,
    };
    let own: DevicesSection = match own {
        Value::Null => DevicesSection::default(),
        own => strict::typed_from_value(own).map_err(|e| InvalidField {
            field: format!("picolet.{}", e.path),
            message: e.message,
        })?,
    };
    let declared = devices::parse_declared_devices(&own.devices).map_err(wrong)?;
    let root = read_absolute_path("picolet.deviceRoot", own.device_root.as_deref(), "/")?;
    let plugins = own.device_plugin_dir.as_deref();
    let plugins = read_absolute_path("picolet.devicePluginDir", plugins, DEVICE_PLUGIN_DIR)?;
    let plugins = own.device_plugins.unwrap_or(false).then_some(plugins);
    let cdi = cdi_dirs(own.cdi_spec_dirs.as_deref())?;
    let is_wanted = plugins.is_some() || !declared.entries.is_empty();
    Ok(is_wanted.then(|| DeviceConfig {
        declared: Arc::new(declared),
        plugins,
        root,
        wait: duration_or_default(own.device_wait, DEVICE_WAIT),
        cdi,
        cdi_hooks: own.cdi_hooks.unwrap_or(false),
    }))
}

fn cdi_dirs(dirs: Option<&[String]>) -> Result<Vec<PathBuf>, InvalidField> {
    let field = "picolet.cdiSpecDirs";
    let Some(dirs) = dirs else {
        return Ok(CDI_DIRS.map(PathBuf::from).into());
    };
    if dirs.len() > MAX_CDI_DIRS {
        let count = dirs.len();
        let message = format!("has {count} entries, must have at most {MAX_CDI_DIRS}");
        return invalid_field(field, message);
    }
    let all = dirs.iter().enumerate();
    all.map(|(n, dir)| read_absolute_path(&format!("{field}[{n}]"), Some(dir), "."))
        .collect()
}

/// Refuses live devices with a CRI runtime: CRI cannot express device nodes that come and go.
fn refuse_live_devices(declared: &DeclaredDevices) -> Result<(), InvalidField> {
    let mut entries = declared.entries.iter();
    match entries.position(|entry| entry.live) {
        None => Ok(()),
        Some(n) => invalid_field(
            &format!("picolet.devices[{n}].live"),
            "cannot be used with containerRuntimeEndpoint: the runtime adds device nodes only when a container starts; set it to false",
        ),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use core::any::Any;

    use serde_json::json;

    use super::*;

    /// Looks at another machine for the devices of this configuration.
    pub(crate) fn with_machine(config: &mut AgentConfig, machine: &Arc<dyn DeviceMachine>) {
        for part in &mut config.parts {
            let other: Rc<dyn Any> = part.clone();
            if let Some(own) = other.downcast_ref::<ConfiguredDevices>() {
                *part = Rc::new(ConfiguredDevices {
                    cfg: own.cfg.clone(),
                    machine: Arc::clone(machine),
                });
            }
        }
    }

    #[test]
    fn directories_of_cdi_files() {
        // CDI-01 CDI-07
        let load = |mut own: Value| {
            own["devicePlugins"] = true.into();
            let devices =
                read_device_config(&own).map_err(|e| format!("{}: {}", e.field, e.message))?;
            let devices = devices.expect("plugins may come");
            Ok::<_, String>((devices.cdi, devices.cdi_hooks))
        };
        let dirs = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            load(json!({})),
            Ok((dirs(&["/etc/cdi", "/var/run/cdi"]), false))
        );
        assert_eq!(
            load(json!({"cdiSpecDirs": ["/a", "/b"], "cdiHooks": true})),
            Ok((dirs(&["/a", "/b"]), true))
        );
        assert_eq!(load(json!({"cdiSpecDirs": []})), Ok((dirs(&[]), false)));
        let wrong = |dirs: Value| load(json!({"cdiSpecDirs": dirs})).expect_err("wrong");
        assert!(wrong(json!(["/a", "b"])).contains("picolet.cdiSpecDirs[1]: is \"b\""));
        assert!(wrong(json!([""])).contains("picolet.cdiSpecDirs[0]: is"));
        let many = wrong(json!(vec!["/a"; 17]));
        assert!(many.contains("has 17 entries, must have at most 16"));
        // Without devices for pods none of it is kept.
        let none = read_device_config(&json!({"cdiSpecDirs": ["/a"]}));
        assert!(none.expect("right").is_none());
    }
}
