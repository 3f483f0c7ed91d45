//! Limits and cost of the link (METER).

use super::checks::{InvalidField, invalid_field};
use super::file::{LinkSection, PicoletSection};
use super::values::LinkConfig;
use crate::api::Quantity;
use crate::logic::link_budget::{self, DailyWindow};
use crate::logic::link_cost::{self, MAX_INTERFACES, interface_name_fault};

const DAILY: &str = "picolet.link.dailyBytes";
const INTERFACES: &str = "picolet.link.meteredInterfaces";
const STREAM: &str = "picolet.link.streamBytes";
const WINDOW: &str = "picolet.link.pullWindow";

/// Resolves the fields of [`LinkConfig`].
pub(super) fn resolve_link(own: &PicoletSection) -> Result<LinkConfig, InvalidField> {
    let link = &own.link;
    let interfaces = link.metered_interfaces.clone();
    if interfaces.len() > MAX_INTERFACES {
        return invalid_field(INTERFACES, format!("has more than {MAX_INTERFACES} items"));
    }
    for (n, name) in interfaces.iter().enumerate() {
        if let Some(why) = interface_name_fault(name) {
            return invalid_field(&format!("{INTERFACES}[{n}]"), format!("{name:?} {why}"));
        }
    }
    let stream_bytes = link.stream_bytes.as_ref();
    let stream_bytes = stream_bytes.map(|bytes| positive_bytes(STREAM, bytes));
    Ok(LinkConfig {
        budget: resolve_link_budget(link)?,
        cost: link_cost::LinkSettings {
            always: own.metered.unwrap_or(false),
            interfaces,
            stream_bytes: stream_bytes.transpose()?,
        },
    })
}

/// Reads how much may go over the link in a day; `None`: no limit.
fn resolve_link_budget(
    link: &LinkSection,
) -> Result<Option<link_budget::LinkBudgetSettings>, InvalidField> {
    let text = link.pull_window.as_deref().filter(|text| !text.is_empty());
    let Some(bytes) = &link.daily_bytes else {
        return match text {
            None => Ok(None),
            Some(_) => invalid_field(WINDOW, format!("needs {DAILY}")),
        };
    };
    let daily_bytes = positive_bytes(DAILY, bytes)?;
    let pull_window = match text.map(|text| (text, DailyWindow::parse(text))) {
        None => None,
        Some((_, Some(parsed))) => Some(parsed),
        Some((text, None)) => {
            return invalid_field(
                WINDOW,
                format!("is {text:?}, must be HH:MM-HH:MM, two times of a day (UTC)"),
            );
        }
    };
    Ok(Some(link_budget::LinkBudgetSettings {
        daily_bytes,
        pull_window,
    }))
}

fn positive_bytes(field: &str, bytes: &Quantity) -> Result<u64, InvalidField> {
    match u64::try_from(bytes.value()) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => invalid_field(field, format!("is {bytes}, must be more than 0")),
    }
}
