//! `cargo xtask crates`: licences, sources and versions of the crates of others, as far as no network is needed for it.
//!
//! What is allowed stands in `.cargo/deny.toml`, in the words of cargo-deny: who has that tool can have it read the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use serde_json::Value;

use crate::{
    Failure,
    process::{cargo, output},
};

/// See the file.
pub(crate) const RULES: &str = ".cargo/deny.toml";

pub(crate) fn run() -> Result<(), Failure> {
    let rules = fs::read_to_string(RULES).map_err(|e| format!("{RULES}: {e}"))?;
    let rules = Rules::parse(&rules)?;
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--locked"]);
    for target in &rules.targets {
        command.args(["--filter-platform", target]);
    }
    let metadata: Value = serde_json::from_str(&output(&mut command)?)?;
    let used: BTreeSet<_> = array(&metadata["resolve"]["nodes"])
        .filter_map(|node| node["id"].as_str())
        .collect();
    let mut faults = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in array(&metadata["packages"]) {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, version, source) = (text("name"), text("version"), text("source"));
        // One of the project's own, or for another system.
        if source.is_empty() || !used.contains(text("id")) {
            continue;
        }
        if !rules
            .sources
            .iter()
            .any(|known| source == format!("registry+{known}"))
        {
            faults.push(format!("{name} {version} comes from {source}"));
        }
        if !is_allowed(text("license"), &rules.licenses) {
            faults.push(format!(
                "{name} {version} has the licence {:?}",
                text("license")
            ));
        }
        versions.entry(name).or_default().insert(version);
    }
    let count = versions.len();
    for (name, versions) in versions {
        if versions.len() > 1 && !rules.skipped.iter().any(|known| known == name) {
            faults.push(format!("{name} is there in the versions {versions:?}"));
        }
    }
    if faults.is_empty() {
        println!("{count} crates, each with an allowed licence and source.");
        return Ok(());
    }
    Err(format!("{}\nWhat is allowed: {RULES}", faults.join("\n")).into())
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// What [`RULES`] says.
#[derive(Debug, PartialEq)]
struct Rules {
    targets: Vec<String>,
    licenses: Vec<String>,
    skipped: Vec<String>,
    sources: Vec<String>,
}

impl Rules {
    fn parse(text: &str) -> Result<Self, Failure> {
        let list = |section: &str, key: &str| -> Result<Vec<String>, Failure> {
            let text = text
                .split_once(&format!("\n[{section}]\n"))
                .and_then(|(_, after)| after.split("\n[").next())
                .and_then(|own| own.split_once(&format!("{key} = [")))
                .and_then(|(_, after)| after.split(']').next())
                .ok_or_else(|| format!("{RULES}: no list {key} in {section}"))?;
            Ok(text
                .split('"')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect())
        };
        Ok(Self {
            targets: list("graph", "targets")?,
            licenses: list("licenses", "allow")?,
            skipped: list("bans", "skip")?,
            sources: list("sources", "allow-registry")?,
        })
    }
}

/// Whether an SPDX expression can be kept with these licences. `/` is how `OR` was written once. An exception to a licence
/// only gives more.
fn is_allowed(expression: &str, licenses: &[String]) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut at = 0;
    let allowed = any(&words, &mut at, licenses);
    allowed && at == words.len()
}

/// `all OR all …`, from `at` on, which is then behind it.
fn any(words: &[&str], at: &mut usize, licenses: &[String]) -> bool {
    let mut allowed = all(words, at, licenses);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        allowed |= all(words, at, licenses);
    }
    allowed
}

/// `one AND one …`.
fn all(words: &[&str], at: &mut usize, licenses: &[String]) -> bool {
    let mut allowed = one(words, at, licenses);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        allowed &= one(words, at, licenses);
    }
    allowed
}

/// A licence, with an exception or without, or an expression in parentheses.
fn one(words: &[&str], at: &mut usize, licenses: &[String]) -> bool {
    let Some(word) = words.get(*at) else {
        return false;
    };
    *at += 1;
    if *word == "(" {
        let allowed = any(words, at, licenses);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return allowed && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    licenses.iter().any(|known| known == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let licenses = ["MIT", "ISC"].map(String::from);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND ISC", true),
            ("(MIT OR GPL-3.0) AND ISC", true),
            ("(MIT AND GPL-3.0) OR GPL-2.0", false),
            ("GPL-2.0 WITH exception OR MIT WITH exception", true),
            ("(MIT", false),
            ("MIT ISC", false),
        ] {
            assert_eq!(
                is_allowed(expression, &licenses),
                expected,
                "{expression:?}"
            );
        }
    }

    #[test]
    fn rules() {
        let text = "# Words.\n[graph]\ntargets = [\n  \"a\",\n]\n\n[licenses]\nallow = [\"MIT\"]\n\n[bans]\n\
                    skip = [{ crate = \"syn\" }]\n\n[sources]\nallow-registry = [\"u\"]\n";
        let one = |word: &str| vec![word.to_owned()];
        let expected = Rules {
            targets: one("a"),
            licenses: one("MIT"),
            skipped: one("syn"),
            sources: one("u"),
        };
        assert_eq!(Rules::parse(text).unwrap(), expected);
        Rules::parse("[graph]\n").unwrap_err();
    }
}
