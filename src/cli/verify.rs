//! `picolet image verify`: asks the agent, or looks at the store itself where there is no agent.

use std::path::Path;

use serde_json::Value;

use super::{
    CliError,
    args::{Word, Words, unexpected},
    image::outcome,
    print,
    progress::{Progress, Step},
};
use crate::error::chain;
use crate::image::{ImageError, Store, Verification, Verifying, progress::Stage};

/// Directory of the store below the agent's root directory.
const IMAGES: &str = "images";

/// Fails with code 1, and nothing more to say, if an image is damaged.
pub(super) fn run(mut words: Words) -> Result<(), CliError> {
    let (mut repair, mut quiet, mut dir) = (false, false, String::new());
    while let Some(word) = words.next()? {
        match word {
            Word::Flag("repair") => repair = words.switch()?,
            Word::Flag("quiet") => quiet = words.switch()?,
            Word::Flag("root-dir") => dir = words.value()?,
            other => return Err(unexpected(other)),
        }
    }
    let mut progress = Progress::new("images", quiet);
    let found = if dir.is_empty() {
        let target = format!("/images/verify?repair={repair}");
        let answer = words.client().send("POST", &target, "")?;
        outcome(answer, &mut progress, "verified")?
    } else if repair {
        return Err(CliError::new(
            "--repair needs the agent, which knows what containers use: leave --root-dir out",
        ));
    } else {
        by_itself(&Path::new(&dir).join(IMAGES), &mut progress)?
    };
    drop(progress);
    print(&told(&found))?;
    if found["damaged"].as_array().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    Err(CliError {
        message: String::new(),
        code: 1,
    })
}

/// Without an agent: what it would do at its start is done too.
fn by_itself(dir: &Path, progress: &mut Progress) -> Result<Value, CliError> {
    if !dir.join("records").is_dir() {
        let text = format!("{} is not an image store", dir.display());
        return Err(CliError::new(text));
    }
    let store = Store::open(dir).map_err(|e| match e {
        ImageError::Locked(_) => CliError::new(format!(
            "{} belongs to an agent that runs: leave --root-dir out",
            dir.display()
        )),
        other => CliError::new(chain(&other)),
    })?;
    let mut verifying = Verifying::new(store);
    while verifying.step() {
        let (done, parts, bytes) = verifying.progress();
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        progress.show(Step {
            stage: Stage::Verifying.word().into(),
            done: count(done),
            parts: count(parts),
            bytes,
            total: 0,
        });
    }
    Ok(Verification {
        found: verifying.found(),
        repairs: Vec::new(),
    }
    .to_json())
}

/// A line for each problem, what was done about it, and a line for all.
fn told(found: &Value) -> String {
    let mut text = String::new();
    let list = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let damaged = found["damaged"].as_array().map_or(&[][..], Vec::as_slice);
    for image in damaged {
        let mut name = list(&image["names"]).join(", ");
        if name.is_empty() {
            image["id"].as_str().unwrap_or("?").clone_into(&mut name);
        }
        for problem in list(&image["problems"]) {
            text.push_str(&format!("{name}: {problem}\n"));
        }
        let why = image["why"].as_str().unwrap_or("");
        match image["repair"].as_str().unwrap_or("") {
            "removed" => text.push_str(&format!("Deleted: {name}\n")),
            "rewritten" => text.push_str(&format!("Written again: the record of {name}\n")),
            "kept" => text.push_str(&format!("Kept: {name}: {why}\n")),
            _ => {}
        }
    }
    let number = |key: &str| found[key].as_u64().unwrap_or(0);
    text.push_str(&format!(
        "{} images with {} layers checked, {} damaged\n",
        number("images"),
        number("layers"),
        damaged.len()
    ));
    if number("unrecorded") > 0 {
        text.push_str(&format!(
            "{} of the layers were unpacked by an earlier version: they can be read, more is not known\n",
            number("unrecorded")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_told() {
        let found = json!({
            "images": 3, "layers": 5, "unrecorded": 1,
            "damaged": [
                {"id": "sha256:aa", "names": ["a:1", "a:2"], "problems": ["layer x: gone", "layer y: gone"],
                    "repair": "removed", "why": ""},
                {"id": "sha256:bb", "names": [], "problems": ["layer z: cut"], "repair": "kept",
                    "why": "a container uses it"},
                {"id": "sha256:cc", "names": ["c:1"], "problems": ["its record: half"], "repair": "", "why": ""},
            ],
        });
        assert_eq!(
            told(&found),
            "a:1, a:2: layer x: gone\na:1, a:2: layer y: gone\nDeleted: a:1, a:2\n\
             sha256:bb: layer z: cut\nKept: sha256:bb: a container uses it\n\
             c:1: its record: half\n\
             3 images with 5 layers checked, 3 damaged\n\
             1 of the layers were unpacked by an earlier version: they can be read, more is not known\n"
        );
        let fine = json!({"images": 0, "layers": 0, "unrecorded": 0, "damaged": []});
        assert_eq!(told(&fine), "0 images with 0 layers checked, 0 damaged\n");
    }

    #[test]
    fn a_directory_without_a_store_is_left_alone() {
        let dir = std::env::temp_dir().join(format!("picolet-verify-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("dir");
        let mut progress = Progress::new("x", true);
        let error = by_itself(&dir, &mut progress).expect_err("no store");
        assert!(error.to_string().contains("is not an image store"));
        assert_eq!(std::fs::read_dir(&dir).expect("dir").count(), 0);
        std::fs::remove_dir(&dir).expect("dir");
    }
}
