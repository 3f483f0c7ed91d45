//! Plugins that wait at sockets of their own until they are asked for their identity (DEV-16): checks of a plugin, and
//! pauses before one that failed is asked again.

use alloc::string::String;
use core::time::Duration;

use super::plugin::{
    PluginMessageError, VERSION, check_offered_resource, has_controls, shorten_to_id_limit,
};

/// The only type of plugins that is taken.
const KIND: &str = "DevicePlugin";
/// Bytes of the path of a socket. Source: unix(7), `sun_path`.
const MAX_PATH_BYTES: usize = 107;
/// Pause before a failed plugin is asked again; doubles up to [`MAX_RETRY`].
const RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(122);

/// Checks the data that a plugin gives at its own socket: its type, the resource, the path at which it serves (empty:
/// the same socket), versions of its protocol. `declared`: the configuration offers the resource.
///
/// - Errors: the answer to the plugin. The answer holds as long as the socket is the same.
/// - Source: kubelet `pluginmanager/operationexecutor`, `cm/devicemanager/plugin/v1beta1/handler.go`, `ValidatePlugin`.
pub fn check_plugin_info(
    kind: &str,
    resource: &str,
    endpoint: &str,
    versions: &[String],
    declared: bool,
) -> Result<(), PluginMessageError> {
    if kind != KIND {
        return Err(PluginMessageError::Kind(shorten_to_id_limit(kind)));
    }
    if !versions.iter().any(|version| version == VERSION) {
        let said = versions.first().map_or("", |version| version);
        return Err(PluginMessageError::Version(shorten_to_id_limit(said)));
    }
    check_offered_resource(resource, declared)?;
    let is_path = endpoint.is_empty()
        || endpoint.starts_with('/') && endpoint.len() <= MAX_PATH_BYTES && !has_controls(endpoint);
    match is_path {
        true => Ok(()),
        false => Err(PluginMessageError::Path(shorten_to_id_limit(endpoint))),
    }
}

/// Pause after this number of failures in a row, at least one.
#[must_use]
pub fn retry_pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (RETRY * (1 << doublings)).min(MAX_RETRY)
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString as _, vec, vec::Vec};

    use super::*;

    #[test]
    fn who_is_taken() {
        // DEV-16
        let of = |kind: &str, resource: &str, endpoint: &str, version: &str| {
            let versions: Vec<String> = vec!["v1".into(), version.into()];
            let declared = resource == "example.com/declared";
            let found = check_plugin_info(kind, resource, endpoint, &versions, declared);
            found.map_err(|why| why.to_string())
        };
        let (kind, resource) = ("DevicePlugin", "example.com/x");
        assert_eq!(of(kind, resource, "", "v1beta1"), Ok(()));
        assert_eq!(of(kind, resource, "/run/x.sock", "v1beta1"), Ok(()));
        let long = "/".repeat(MAX_PATH_BYTES + 1);
        for (kind, resource, endpoint, version, says) in [
            (
                "CSIPlugin",
                "example.com",
                "",
                "v1beta1",
                "plugins of type \"CSIPlugin\" are not supported, only those of type \"DevicePlugin\"",
            ),
            ("DRAPlugin", "x", "", "v1beta1", "type \"DRAPlugin\""),
            ("", "x", "", "v1beta1", "type \"\""),
            (
                kind,
                resource,
                "",
                "v2",
                "API version \"v1\" is not supported",
            ),
            (
                kind,
                "x",
                "",
                "v1beta1",
                "the ResourceName \"x\" is invalid",
            ),
            (
                kind,
                "example.com/declared",
                "",
                "v1beta1",
                "example.com/declared is defined in picolet.devices",
            ),
            (
                kind,
                resource,
                "x.sock",
                "v1beta1",
                "the endpoint \"x.sock\" is not the absolute path of a socket",
            ),
            (kind, resource, &long, "v1beta1", "is not the absolute path"),
            (
                kind,
                resource,
                "/a\n",
                "v1beta1",
                "is not the absolute path",
            ),
        ] {
            let said = of(kind, resource, endpoint, version).expect_err(says);
            assert!(said.contains(says) && said.len() < 300, "{said}");
        }
        let long = of(&"x".repeat(5000), resource, "", "v1beta1");
        assert!(long.is_err_and(|said| said.len() < 300));
    }

    #[test]
    fn pauses() {
        // DEV-16
        let pauses: Vec<_> = (1..=10).map(|n| retry_pause(n).as_millis()).collect();
        assert_eq!(
            pauses,
            [
                500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000
            ]
        );
        assert_eq!(retry_pause(u32::MAX), MAX_RETRY);
        assert_eq!(retry_pause(0), RETRY);
    }
}
