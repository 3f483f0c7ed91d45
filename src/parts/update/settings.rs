//! Settings of updates by themselves (UPD-02, UPD-07).

use core::time::Duration;

use crate::{
    config::{
        UpdateConfig, UpdateSource,
        checks::{Invalid, absolute, invalid},
        file::Update,
    },
    error::chain,
    image::Reference,
    logic::update::{self, Schedule, Window},
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

/// Resolves the updates; `None`: no updates.
pub(crate) fn resolve(own: &Update) -> Result<Option<UpdateConfig>, Invalid> {
    let field = "picolet.update.source";
    let Some(source) = own.source.as_deref().filter(|s| !s.is_empty()) else {
        if *own == Update::default() {
            return Ok(None);
        }
        return invalid(field, "must be set for picolet.update");
    };
    let source = if source.starts_with('/') {
        UpdateSource::Dir(absolute(field, Some(source), "")?)
    } else if let Some(name) = source.strip_prefix(OCI) {
        UpdateSource::Registry(reference(field, source, name)?)
    } else {
        match Url::parse(source) {
            Ok(url) if url.https || is_loopback(url.host()) => UpdateSource::Url(url),
            _ => {
                return invalid(
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
    let ca = ca.map(|path| absolute(ca_field, Some(path), ""));
    let ca = ca.transpose()?;
    if ca.is_some() && !is_https {
        return invalid(ca_field, "needs a picolet.update.source with https");
    }
    Ok(Some(UpdateConfig {
        source,
        ca,
        keys: keys(&own.keys)?,
        schedule: schedule(own)?,
        restart: restart(own)?,
    }))
}

/// Reads the name of an artefact, in which the registry is written out.
fn reference(field: &str, source: &str, name: &str) -> Result<Reference, Invalid> {
    let why = match Reference::parse(name) {
        Ok(name_of) if name.split('/').next() == Some(name_of.domain()) => return Ok(name_of),
        Ok(_) => "it names no registry".into(),
        Err(e) => chain(&e),
    };
    let form = "must be oci://REGISTRY/REPOSITORY:TAG";
    invalid(field, format!("is {source:?}, {form}: {why}"))
}

fn keys(texts: &[String]) -> Result<Vec<[u8; 32]>, Invalid> {
    let field = "picolet.update.keys";
    if !(1..=MAX_KEYS).contains(&texts.len()) {
        let found = texts.len();
        return invalid(
            field,
            format!("has {found} items, must have 1 to {MAX_KEYS}"),
        );
    }
    let mut keys = Vec::new();
    for (n, text) in texts.iter().enumerate() {
        let Some(key) = update::public_key(text.trim()) else {
            return invalid(
                &format!("{field}[{n}]"),
                "is no public key for Ed25519, such as the line between the marks of release.pub",
            );
        };
        keys.push(key);
    }
    Ok(keys)
}

fn schedule(own: &Update) -> Result<Schedule, Invalid> {
    let mut days = 0;
    for text in &own.window.days {
        match DAYS.iter().position(|day| day == text) {
            Some(n) => days |= 1 << n,
            None => {
                return invalid(
                    "picolet.update.window.days",
                    format!("has {text:?}, must have some of {}", DAYS.join(", ")),
                );
            }
        }
    }
    let start = own.window.start.as_deref().unwrap_or("00:00");
    let Some(start_s) = time_of_day(start) else {
        return invalid(
            "picolet.update.window.start",
            format!("is {start:?}, must be a time such as \"02:30\", UTC"),
        );
    };
    let length = own.window.length.map_or(DAY, |time| time.0);
    if !(MINUTE..=DAY).contains(&length) {
        return invalid(
            "picolet.update.window.length",
            format!("is {length:?}, must be between 1m and 24h"),
        );
    }
    let spread = own.spread.map_or(length / 4 * 3, |time| time.0);
    if spread > length {
        return invalid(
            "picolet.update.spread",
            format!("is {spread:?}, must not be longer than the window, {length:?}"),
        );
    }
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    Ok(Schedule {
        window: Window {
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

fn restart(own: &Update) -> Result<Option<String>, Invalid> {
    let command = own.restart.as_deref().filter(|text| !text.is_empty());
    if command.is_some_and(|text| text.len() > MAX_RESTART_BYTES || text.contains('\n')) {
        return invalid(
            "picolet.update.restart",
            format!("must be one line of at most {MAX_RESTART_BYTES} bytes"),
        );
    }
    Ok(command.map(str::to_owned))
}
