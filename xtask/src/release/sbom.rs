//! What a program consists of: its crates, in the form of CycloneDX 1.5.

use serde_json::json;

use super::Source;
use crate::{
    Failure,
    dist::{Board, Edition},
    process::{cargo, output},
};

/// The crates of the program for a board, as cargo resolves them: neither those of tests and build scripts nor macros.
pub(super) fn of(board: &Board, edition: Edition, source: &Source) -> Result<String, Failure> {
    let mut command = cargo();
    command.args([
        "tree",
        "--locked",
        "--package=picolet",
        "--edges=normal,no-proc-macro",
        "--prefix=none",
        "--format={p}|{l}",
        "--target",
        &board.triple,
    ]);
    let tree = output(command.args(edition.features()))?;
    format(&tree, &source.version)
}

/// Of lines such as `ring v0.17.14|Apache-2.0 AND ISC`, one for each time that a crate is depended on.
fn format(tree: &str, version: &str) -> Result<String, Failure> {
    let mut components = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        // A crate that was shown before has a mark at its end.
        let line = line.trim_end_matches(" (*)");
        let wrong = || format!("cargo tree says {line:?}");
        let (package, licence) = line.split_once('|').ok_or_else(wrong)?;
        let mut words = package.split(' ');
        let (name, version) = words.next().zip(words.next()).ok_or_else(wrong)?;
        let version = version.trim_start_matches('v');
        if name == "picolet" {
            continue;
        }
        let mut component = json!({
            "type": "library",
            "name": name,
            "version": version,
            "licenses": [{ "expression": licence }],
        });
        // Crates of the project are nowhere else.
        if words.next().is_none() {
            component["purl"] = format!("pkg:cargo/{name}@{version}").into();
        }
        components.push(component);
    }
    components.sort_by_key(|c| (c["name"].to_string(), c["version"].to_string()));
    components.dedup();
    if components.is_empty() {
        return Err("cargo tree names no crate".into());
    }
    let sbom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "picolet", "version": version } },
        "components": components,
    });
    Ok(format!("{sbom:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_once() {
        // PKG-03
        let tree = "picolet v0.1.0 (/x)|Apache-2.0\nring v0.17.14|Apache-2.0 AND ISC\nlog v0.4.1|MIT\n\
                    picolet-api v0.1.0 (/x/src/api)|Apache-2.0\nring v0.17.14|Apache-2.0 AND ISC (*)\n";
        let made = format(tree, "0.1.0").unwrap();
        let sbom: serde_json::Value = serde_json::from_str(&made).unwrap();
        let all = sbom["components"].as_array().unwrap();
        let names: Vec<_> = all.iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["log", "picolet-api", "ring"]);
        assert_eq!(all[2]["purl"], "pkg:cargo/ring@0.17.14");
        assert!(all[1]["purl"].is_null());
        assert!(!made.contains("/x"), "paths of this machine");
        format("", "0.1.0").unwrap_err();
    }
}
