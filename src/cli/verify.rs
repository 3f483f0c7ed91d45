//! `picolet image verify`: asks the agent, or looks at the store itself if there is no agent.

use std::path::Path;

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    escape_controls,
    image::{follow_operation, unexpected_answer},
    print_text,
    progress::ProgressDisplay,
};
use crate::error::error_chain;
use crate::image::{
    DamagedImage, ImageError, ImageProgress as Step, ImageStore, ImageVerifier, RepairResult,
    StoreVerification, progress::ImageStage,
};
use crate::server::backend::ProgressLine;

/// Directory of the store below the agent's root directory.
const IMAGES: &str = "images";

/// Runs the command. Fails with code 1 and no further message if an image is damaged.
pub(super) fn run_image_verify(mut words: CliWords) -> Result<(), CliError> {
    let (mut repair, mut quiet, mut dir) = (false, false, String::new());
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("repair") => repair = words.switch_value()?,
            CliWord::Flag("quiet") => quiet = words.switch_value()?,
            CliWord::Flag("root-dir") => dir = words.flag_value()?,
            other => return Err(unexpected_word(other)),
        }
    }
    let mut progress = ProgressDisplay::new("images", quiet);
    let found = if dir.is_empty() {
        let target = format!("/images/verify?repair={repair}");
        let answer = words.agent_client().send_request("POST", &target, "")?;
        match follow_operation(answer, &mut progress)? {
            ProgressLine::Verified(found) => found,
            other => return Err(unexpected_answer(&other)),
        }
    } else if repair {
        return Err(CliError::new(
            "--repair needs the agent, which knows the images that containers use: remove --root-dir",
        ));
    } else {
        verify_without_agent(&Path::new(&dir).join(IMAGES), &mut progress)?
    };
    drop(progress);
    print_text(&escape_controls(&verification_text(&found)))?;
    if found.found.damaged.is_empty() {
        return Ok(());
    }
    Err(CliError {
        message: String::new(),
        code: 1,
    })
}

/// Verifies the store without an agent, and does what the agent would do at its start.
fn verify_without_agent(
    dir: &Path,
    progress: &mut ProgressDisplay,
) -> Result<StoreVerification, CliError> {
    if !dir.join("records").is_dir() {
        let text = format!("{} is not an image store", dir.display());
        return Err(CliError::new(text));
    }
    let store = ImageStore::open(dir).map_err(|e| match e {
        ImageError::Locked(_) => CliError::new(format!(
            "{} is used by a running agent: remove --root-dir",
            dir.display()
        )),
        other => CliError::new(error_chain(&other)),
    })?;
    let mut verifying = ImageVerifier::new(store);
    while verifying.check_next_layer() {
        let (layers_done, layers, bytes) = verifying.progress_counts();
        progress.show_step(Step {
            stage: ImageStage::Verifying,
            layers_done,
            layers,
            bytes,
            ..Step::default()
        });
    }
    Ok(StoreVerification {
        found: verifying.collect_findings(),
        repairs: Vec::new(),
    })
}

/// Makes a line for each problem with its remedy, and a line for all.
fn verification_text(verification: &StoreVerification) -> String {
    let StoreVerification { found, repairs } = verification;
    let mut text = String::new();
    let repairs = repairs.iter().map(Option::as_ref);
    let repairs = repairs.chain(core::iter::repeat(None));
    for (image, repair) in found.damaged.iter().zip(repairs) {
        let name = match image.names.join(", ") {
            none if none.is_empty() => image.id.clone(),
            names => names,
        };
        for problem in &image.problems {
            text.push_str(&format!("{name}: {problem}\n"));
        }
        if let Some(repair) = repair {
            text.push_str(&repair_line(repair, image, &name));
        }
    }
    text.push_str(&format!(
        "{} images with {} layers checked, {} damaged\n",
        found.images,
        found.layers,
        found.damaged.len()
    ));
    if found.unrecorded > 0 {
        text.push_str(&format!(
            "{} of the layers were unpacked by an earlier version: they can be read, but it is not known whether they have changed\n",
            found.unrecorded
        ));
    }
    text
}

fn repair_line(repair: &RepairResult, image: &DamagedImage, name: &str) -> String {
    let why = match repair {
        RepairResult::Removed => return format!("Deleted: {name}\n"),
        RepairResult::Rewritten => return format!("Record rewritten: {name}\n"),
        RepairResult::Whole => "it was fetched again in the meantime",
        RepairResult::InUse(user) if *user == image.id => "a container uses it",
        RepairResult::InUse(user) => {
            &format!("a container uses {user}, which has the damaged layer too")
        }
        RepairResult::Failed(why) => why,
    };
    format!("Kept: {name}: {why}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::VerifyFindings;

    #[test]
    fn what_is_told() {
        let damaged = |id: &str, names: &[&str], problems: &[&str]| DamagedImage {
            id: id.into(),
            names: names.iter().map(|&name| name.into()).collect(),
            problems: problems.iter().map(|&problem| problem.into()).collect(),
            record_only: false,
        };
        let found = StoreVerification {
            found: VerifyFindings {
                images: 3,
                layers: 5,
                unrecorded: 1,
                damaged: vec![
                    damaged(
                        "sha256:aa",
                        &["a:1", "a:2"],
                        &["layer x: gone", "layer y: gone"],
                    ),
                    damaged("sha256:bb", &[], &["layer z: cut"]),
                    damaged("sha256:cc", &["c:1"], &["its record: half"]),
                ],
            },
            repairs: vec![
                Some(RepairResult::Removed),
                Some(RepairResult::InUse("sha256:bb".into())),
            ],
        };
        let line =
            crate::api::strict::to_value(&ProgressLine::Verified(found.clone())).expect("json");
        let read = crate::api::strict::from_json(line.to_string().as_bytes()).expect("the same");
        assert_eq!(ProgressLine::Verified(found.clone()), read);
        assert_eq!(
            verification_text(&found),
            "a:1, a:2: layer x: gone\na:1, a:2: layer y: gone\nDeleted: a:1, a:2\n\
             sha256:bb: layer z: cut\nKept: sha256:bb: a container uses it\n\
             c:1: its record: half\n\
             3 images with 5 layers checked, 3 damaged\n\
             1 of the layers were unpacked by an earlier version: they can be read, but it is not known whether they have changed\n"
        );
        let fine = StoreVerification {
            found: VerifyFindings::default(),
            repairs: Vec::new(),
        };
        assert_eq!(
            verification_text(&fine),
            "0 images with 0 layers checked, 0 damaged\n"
        );
    }

    #[test]
    fn a_directory_without_a_store_is_left_alone() {
        let dir = crate::testing::unused_path("verify");
        std::fs::create_dir_all(&dir).expect("dir");
        let mut progress = ProgressDisplay::new("x", true);
        let error = verify_without_agent(&dir, &mut progress).expect_err("no store");
        assert!(error.to_string().contains("is not an image store"));
        assert_eq!(std::fs::read_dir(&dir).expect("dir").count(), 0);
        std::fs::remove_dir(&dir).expect("dir");
    }
}
