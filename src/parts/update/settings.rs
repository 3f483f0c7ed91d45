//! Settings of updates by themselves (UPD-02, UPD-07).

use core::time::Duration;
use std::path::PathBuf;

use serde::Deserialize;

use crate::{
    config::{
        checks::{InvalidField, invalid_field, read_absolute_path},
        duration::GoDuration,
    },
    error::error_chain,
    image::ImageReference,
    logic::update::{self, UpdateSchedule, WeeklyWindow},
    net::{Url, url::is_loopback},
};

/// Prefix of an artefact's name.
const OCI: &str = "oci://";
/// Most keys that a channel may be signed by.
const MAX_KEYS: usize = 8;
/// Most bytes of the command that restarts the agent.
const MAX_RESTART_BYTES: usize = 1024;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const EVERY_DAY: u8 = 0x7f;
const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: Duration = Duration::from_secs(60);

/// Channel of this node's updates, and the times to look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpdateConfig {
    /// Place of the channel.
    pub(super) source: UpdateSource,
    /// CAs of the channel's server; `None`: those of the system.
    pub(super) ca: Option<PathBuf>,
    /// Public Ed25519 keys, one of which has to sign the channel. 1 to 8.
    pub(super) keys: Vec<[u8; 32]>,
    /// Times to look. Default: every day, all day, spread over three quarters of it.
    pub(super) schedule: UpdateSchedule,
    /// Command that restarts the agent; `None`: the agent is a service of systemd or OpenRC.
    pub(super) restart: Option<String>,
}

/// Place of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UpdateSource {
    /// URL of the channel file, by https or on this machine.
    Url(Url),
    /// Artefact of a registry that holds the channel.
    Registry(ImageReference),
    /// Directory that holds the channel.
    Dir(PathBuf),
}

impl UpdateSource {
    /// Returns true if updates come over the link.
    pub(super) const fn is_over_link(&self) -> bool {
        !matches!(self, Self::Dir(_))
    }
}

/// `picolet.update`
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct UpdateSection {
    ca: Option<String>,
    keys: Vec<String>,
    restart: Option<String>,
    source: Option<String>,
    spread: Option<GoDuration>,
    trust_clock: Option<bool>,
    window: UpdateWindow,
}

/// `picolet.update.window`
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct UpdateWindow {
    days: Vec<String>,
    length: Option<GoDuration>,
    start: Option<String>,
}

/// Resolves the updates; `None`: no updates.
pub(super) fn resolve_updates(own: &UpdateSection) -> Result<Option<UpdateConfig>, InvalidField> {
    let field = "picolet.update.source";
    let Some(source) = own.source.as_deref().filter(|s| !s.is_empty()) else {
        if *own == UpdateSection::default() {
            return Ok(None);
        }
        return invalid_field(field, "must be set for picolet.update");
    };
    let source = if source.starts_with('/') {
        UpdateSource::Dir(read_absolute_path(field, Some(source), "")?)
    } else if let Some(name) = source.strip_prefix(OCI) {
        UpdateSource::Registry(read_artifact_reference(field, source, name)?)
    } else {
        match Url::parse(source) {
            Ok(url) if url.https || is_loopback(url.host()) => UpdateSource::Url(url),
            _ => {
                return invalid_field(
                    field,
                    format!(
                        "is {source:?}, must be an https:// URL, an oci:// reference or an absolute path"
                    ),
                );
            }
        }
    };
    let is_https = matches!(&source, UpdateSource::Url(url) if url.https);
    let ca_field = "picolet.update.ca";
    let ca = own.ca.as_deref().filter(|path| !path.is_empty());
    let ca = ca.map(|path| read_absolute_path(ca_field, Some(path), ""));
    let ca = ca.transpose()?;
    if ca.is_some() && !is_https {
        return invalid_field(ca_field, "needs a picolet.update.source with https");
    }
    Ok(Some(UpdateConfig {
        source,
        ca,
        keys: read_release_keys(&own.keys)?,
        schedule: resolve_schedule(own)?,
        restart: read_restart_command(own)?,
    }))
}

/// Reads the name of an artefact, in which the registry is written out.
fn read_artifact_reference(
    field: &str,
    source: &str,
    name: &str,
) -> Result<ImageReference, InvalidField> {
    let why = match ImageReference::parse(name) {
        Ok(name_of) if name.split('/').next() == Some(name_of.domain()) => return Ok(name_of),
        Ok(_) => "it names no registry".into(),
        Err(e) => error_chain(&e),
    };
    let form = "must be oci://REGISTRY/REPOSITORY:TAG";
    invalid_field(field, format!("is {source:?}, {form}: {why}"))
}

fn read_release_keys(texts: &[String]) -> Result<Vec<[u8; 32]>, InvalidField> {
    let field = "picolet.update.keys";
    if !(1..=MAX_KEYS).contains(&texts.len()) {
        let found = texts.len();
        return invalid_field(
            field,
            format!("has {found} items, must have 1 to {MAX_KEYS}"),
        );
    }
    let mut keys = Vec::new();
    for (n, text) in texts.iter().enumerate() {
        let Some(key) = update::parse_public_key(text.trim()) else {
            return invalid_field(
                &format!("{field}[{n}]"),
                "is not an Ed25519 public key, such as the line between the marks of release.pub",
            );
        };
        keys.push(key);
    }
    Ok(keys)
}

fn resolve_schedule(own: &UpdateSection) -> Result<UpdateSchedule, InvalidField> {
    let mut days = 0;
    for text in &own.window.days {
        match DAYS.iter().position(|day| day == text) {
            Some(n) => days |= 1 << n,
            None => {
                return invalid_field(
                    "picolet.update.window.days",
                    format!("has {text:?}, must have some of {}", DAYS.join(", ")),
                );
            }
        }
    }
    let start = own.window.start.as_deref().unwrap_or("00:00");
    let Some(start_s) = time_of_day(start) else {
        return invalid_field(
            "picolet.update.window.start",
            format!("is {start:?}, must be a time such as \"02:30\", UTC"),
        );
    };
    let length = own.window.length.map_or(DAY, |time| time.0);
    if !(MINUTE..=DAY).contains(&length) {
        return invalid_field(
            "picolet.update.window.length",
            format!("is {length:?}, must be between 1m and 24h"),
        );
    }
    let spread = own.spread.map_or(length / 4 * 3, |time| time.0);
    if spread > length {
        return invalid_field(
            "picolet.update.spread",
            format!("is {spread:?}, must not be longer than the window, {length:?}"),
        );
    }
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    Ok(UpdateSchedule {
        window: WeeklyWindow {
            days: if days == 0 { EVERY_DAY } else { days },
            start_s,
            length_s: seconds(length),
        },
        spread_s: seconds(spread),
        trusts_clock: own.trust_clock.unwrap_or(false),
    })
}

/// Reads a time such as `02:30` as seconds of the day.
fn time_of_day(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str, end: u32| {
        let is_plain = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse::<u32>().ok();
        number.filter(|n| is_plain && *n < end)
    };
    Some(number(hours, 24)? * 3600 + number(minutes, 60)? * 60)
}

fn read_restart_command(own: &UpdateSection) -> Result<Option<String>, InvalidField> {
    let command = own.restart.as_deref().filter(|text| !text.is_empty());
    if command.is_some_and(|text| text.len() > MAX_RESTART_BYTES || text.contains('\n')) {
        return invalid_field(
            "picolet.update.restart",
            format!("must be one line of at most {MAX_RESTART_BYTES} bytes"),
        );
    }
    Ok(command.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        config::{
            decode,
            file::{self, API_VERSION, KIND},
        },
        parts::read_section,
    };

    #[test]
    fn updates() {
        // UPD-02 UPD-07
        const KEY: &str = "MCowBQYDK2VwAyEABwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
        let of = |text: &str| {
            let text = format!("update: {{{}}}", text.replace("KEY", KEY));
            let own = decode::parse_document(text.as_bytes()).expect("YAML").value;
            let wrong = |e: InvalidField| format!("{}: {}", e.field, e.message);
            resolve_updates(&read_section(&own, "update").map_err(wrong)?).map_err(wrong)
        };
        assert_eq!(of(""), Ok(None), "off unless it is asked for");
        let found = of("source: https://a.example/stable.json, keys: [KEY]");
        let found = found.expect("a configuration").expect("updates");
        assert!(matches!(&found.source, UpdateSource::Url(url) if url.https));
        assert_eq!((&*found.keys, found.ca), (&[[7; 32]][..], None));
        let schedule = found.schedule;
        let window = schedule.window;
        assert_eq!(
            (window.days, window.start_s, window.length_s),
            (0x7f, 0, 86_400)
        );
        assert_eq!((schedule.spread_s, schedule.trusts_clock), (64_800, false));
        let found = of(
            "source: /updates, keys: [KEY, KEY], spread: 1h, trustClock: true, restart: sv restart picolet, \
             window: {days: [Mon, Sun], start: \"23:30\", length: 2h}",
        );
        let found = found.expect("a configuration").expect("updates");
        assert_eq!(found.source, UpdateSource::Dir("/updates".into()));
        assert_eq!(found.restart.as_deref(), Some("sv restart picolet"));
        let schedule = found.schedule;
        let window = schedule.window;
        assert_eq!(
            (window.days, window.start_s, window.length_s),
            (0x41, 84_600, 7200)
        );
        assert_eq!((schedule.spread_s, schedule.trusts_clock), (3600, true));
        assert!(of("source: http://127.0.0.1:1/x, keys: [KEY]").is_ok());
        let found = of("source: \"oci://a.example:5000/picolet/stable\", keys: [KEY]");
        let source = found.expect("a configuration").map(|update| update.source);
        assert!(
            matches!(&source, Some(UpdateSource::Registry(name)) if name.to_string() == "a.example:5000/picolet/stable:latest"),
            "{source:?}"
        );
        // PKG-26: none where bytes cost money, but what is on this machine.
        for (source, fetches) in [
            ("https://a.example/x", true),
            ("oci://a.example/x", true),
            ("/updates", false),
        ] {
            let found = of(&format!("source: \"{source}\", keys: [KEY]"));
            let found = found.expect("a configuration").expect("updates");
            assert_eq!(found.source.is_over_link(), fetches, "{source}");
        }
        for (text, says) in [
            ("keys: [KEY]", "source: must be set for picolet.update"),
            ("window: {length: x}", "window.length: "),
            (
                "source: http://a.example/x, keys: [KEY]",
                "source: is \"http://a.example/x\", must be an https:// URL, an oci:// reference or an absolute path",
            ),
            (
                "source: x, keys: [KEY]",
                "source: is \"x\", must be an https",
            ),
            (
                "source: \"oci://picolet/stable\", keys: [KEY]",
                "source: is \"oci://picolet/stable\", must be oci://REGISTRY/REPOSITORY:TAG: it names no registry",
            ),
            (
                "source: \"oci://a.example/Stable\", keys: [KEY]",
                "source: is \"oci://a.example/Stable\", must be oci://REGISTRY/REPOSITORY:TAG: invalid image reference",
            ),
            (
                "source: \"oci://a.example/x\", keys: [KEY], ca: /ca",
                "ca: needs a picolet.update.source with https",
            ),
            ("source: /a/../b, keys: [KEY]", "source: is \"/a/../b\""),
            ("source: /x", "keys: has 0 items, must have 1 to 8"),
            (
                "source: /x, keys: [a, a, a, a, a, a, a, a, a]",
                "keys: has 9 items",
            ),
            (
                "source: /x, keys: [KEY, a]",
                "keys[1]: is not an Ed25519 public key",
            ),
            (
                "source: /x, keys: [KEY], ca: /ca",
                "ca: needs a picolet.update.source with https",
            ),
            (
                "source: https://a/x, keys: [KEY], ca: /a/../b",
                "ca: is \"/a/../b\", must not contain '..'",
            ),
            (
                "source: /x, keys: [KEY], window: {days: [Monday]}",
                "window.days: has \"Monday\", must have some of Mon, Tue",
            ),
            (
                "source: /x, keys: [KEY], window: {start: \"24:00\"}",
                "window.start: is \"24:00\", must be a time such as \"02:30\", UTC",
            ),
            (
                "source: /x, keys: [KEY], window: {start: \"2:30\"}",
                "window.start: is \"2:30\"",
            ),
            (
                "source: /x, keys: [KEY], window: {length: 59s}",
                "window.length: is 59s, must be between 1m and 24h",
            ),
            (
                "source: /x, keys: [KEY], window: {length: 25h}",
                "window.length: is 90000s",
            ),
            (
                "source: /x, keys: [KEY], window: {length: 1h}, spread: 2h",
                "spread: is 7200s, must not be longer than the window, 3600s",
            ),
            (
                "source: /x, keys: [KEY], restart: \"a\\nb\"",
                "restart: must be one line of at most 1024 bytes",
            ),
        ] {
            let said = of(text).expect_err(text);
            let says = format!("picolet.update.{says}");
            assert!(said.contains(&says), "{text}: {said}");
        }
    }

    #[test]
    fn a_relative_path_counts_from_the_file() {
        // CONF-01
        let text = format!(
            "apiVersion: {API_VERSION}\nkind: {KIND}\npicolet: {{update: {{ca: pki/update.crt, window: {{days: []}}}}}}\n"
        );
        let read =
            file::read_config_document(text.as_bytes(), Path::new("/etc/x")).expect("a document");
        assert_eq!(read.warnings, Vec::<String>::new());
        let ca = &read.value["picolet"]["update"]["ca"];
        assert_eq!(ca, "/etc/x/pki/update.crt");
    }
}
