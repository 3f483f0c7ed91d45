//! The apiserver, if this machine is to be a node of one.

use alloc::format;

use super::{Answer, Apiserver, Bootstrap, Facts, Finding};
use crate::api::Wall;

/// A certificate that ends within this time and that nobody renews is worth a word, seconds.
const SHORT_SECS: i64 = 14 * 24 * 3600;

fn told(facts: &Facts) -> Result<&Apiserver, Finding> {
    facts
        .apiserver
        .as_ref()
        .ok_or_else(|| Finding::ok("none: this node stands alone"))
}

pub(super) fn kubeconfig(facts: &Facts) -> Finding {
    let it = match told(facts) {
        Ok(it) => it,
        Err(alone) => return alone,
    };
    let path = &it.kubeconfig;
    match (&it.error, &it.bootstrap) {
        (None, _) => Finding::ok(format!("{path} for {}", it.server)),
        // The agent writes it.
        (Some(_), Some(Bootstrap::Usable(bootstrap))) => {
            Finding::ok(format!("{path} will be written as {bootstrap} says"))
        }
        (Some(why), Some(Bootstrap::Unusable(bootstrap))) => Finding::error(
            format!("{why}; {bootstrap}"),
            "copy a kubeconfig with a bootstrap token from the control plane: kubeadm token create",
        ),
        (Some(why), None) => Finding::error(
            why.clone(),
            format!(
                "copy a kubeconfig for this node to {path}, or name one with --bootstrap-kubeconfig"
            ),
        ),
    }
}

pub(super) fn certificate(facts: &Facts) -> Finding {
    let it = match told(facts) {
        Ok(it) => it,
        Err(alone) => return alone,
    };
    let Some((begins, ends)) = it.certificate else {
        return Finding::ok(match it.bootstrap {
            Some(_) => "none yet: it is asked for",
            None => "none: another way to say who this is",
        });
    };
    let now = facts.clock.now;
    let renew = "name a file with a token with --bootstrap-kubeconfig, or copy a new kubeconfig from the control plane";
    let set_clock = "timedatectl set-ntp true; without a network: date -s '2026-01-31 12:00'";
    if now < begins {
        return Finding::warning(
            format!("holds from {begins} on, and it is {now}"),
            set_clock,
        );
    }
    if now > ends {
        let says = format!("ended at {ends}");
        return match &it.bootstrap {
            Some(Bootstrap::Usable(_)) => Finding::ok(format!("{says}: another is asked for")),
            _ => Finding::error(says, renew),
        };
    }
    if !it.renews && ends < Wall::from_secs(now.secs().saturating_add(SHORT_SECS)) {
        return Finding::warning(
            format!("ends at {ends}, and the agent does not renew it"),
            "picolet run --rotate-certificates  (or rotateCertificates: true in the configuration)",
        );
    }
    Finding::ok(format!("holds until {ends}"))
}

pub(super) fn apiserver(facts: &Facts) -> Finding {
    let it = match told(facts) {
        Ok(it) => it,
        Err(alone) => return alone,
    };
    if let Some(clock) = &it.clock {
        return Finding::warning(
            clock.clone(),
            "timedatectl set-ntp true; without a network: date -s '2026-01-31 12:00'",
        );
    }
    match &it.answer {
        None => Finding::ok("not asked"),
        Some(Answer::Given) => Finding::ok(format!("{} answers", it.server)),
        Some(Answer::Silent(why)) => Finding::warning(
            format!("{why}; pods go on without it"),
            format!("curl -kv {}/healthz", it.server),
        ),
    }
}
