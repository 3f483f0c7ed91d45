//! Checks and defaults of single fields, for all parts of the configuration.

use core::time::Duration;
use std::path::{Component, PathBuf};

use super::duration::GoDuration;

/// A field with a value that cannot be used.
#[derive(Debug)]
pub(crate) struct InvalidField {
    /// Path of the field.
    pub(crate) field: String,
    /// Rule that the value breaks.
    pub(crate) message: String,
}

pub(crate) fn invalid_field<T>(field: &str, message: impl Into<String>) -> Result<T, InvalidField> {
    Err(InvalidField {
        field: field.into(),
        message: message.into(),
    })
}

/// Reads an absolute path, or its default when absent or empty.
pub(crate) fn read_absolute_path(
    field: &str,
    path: Option<&str>,
    default: &str,
) -> Result<PathBuf, InvalidField> {
    let path = PathBuf::from(path.filter(|p| !p.is_empty()).unwrap_or(default));
    if !path.is_absolute() {
        return invalid_field(field, format!("is {path:?}, must be an absolute path"));
    }
    if path.components().any(|c| c == Component::ParentDir) {
        return invalid_field(field, format!("is {path:?}, must not contain '..'"));
    }
    Ok(path)
}

/// Converts a number whose range was checked; the default when absent.
pub(crate) fn count_or_default(value: Option<i64>, default: u32) -> u32 {
    value.map_or(default, |n| u32::try_from(n).unwrap_or(u32::MAX))
}

/// Reads a duration whose zero means unset (CONF-05).
pub(crate) fn nonzero_duration_or_default(time: Option<GoDuration>, default: Duration) -> Duration {
    time.map(|t| t.0)
        .filter(|t| !t.is_zero())
        .unwrap_or(default)
}

/// Reads a duration whose zero means zero (CONF-05).
pub(crate) fn duration_or_default(time: Option<GoDuration>, default: Duration) -> Duration {
    time.map_or(default, |t| t.0)
}
