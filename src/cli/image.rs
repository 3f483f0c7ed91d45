//! `picolet image pull|import|ls|rm|verify|prune`.

use std::io::{BufRead as _, Read as _};

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected},
    client::AgentAnswer,
    get, print,
    progress::ProgressDisplay,
    verify,
};
use crate::api::strict::from_json;
use crate::server::{backend::ProgressLine, http::encode};

pub(super) fn run(verb: &str, mut words: CliWords) -> Result<(), CliError> {
    if verb == "verify" {
        return verify::run(words);
    }
    let mut values = Vec::new();
    let mut name = String::new();
    let (mut wide, mut no_headers, mut quiet, mut now) = (false, false, false, false);
    while let Some(word) = words.next()? {
        match word {
            CliWord::Flag("name") => name = words.value()?,
            CliWord::Flag("quiet") => quiet = words.switch()?,
            CliWord::Flag("now") => now = words.switch()?,
            CliWord::Flag("no-headers") => no_headers = words.switch()?,
            CliWord::Flag("output") => wide = words.value()? == "wide",
            CliWord::Value(value) => values.push(value),
            other @ CliWord::Flag(_) => return Err(unexpected(other)),
        }
    }
    let client = words.client();
    match verb {
        "import" => {
            if values.is_empty() {
                return Err(CliError::new("expected 'image import FILE...'"));
            }
            for file in values {
                // The agent opens the file: it needs the whole path.
                let path = std::path::absolute(&file)
                    .map_err(|e| CliError::new(format!("{file}: {e}")))?;
                let path = path
                    .to_str()
                    .ok_or_else(|| CliError::new(format!("{file}: path is not UTF-8")))?;
                let target = format!(
                    "/images/import?progress=true&path={}&name={}",
                    encode(path),
                    encode(&name)
                );
                let answer = client.send("POST", &target, "")?;
                for name in follow(answer, &mut ProgressDisplay::new(&file, quiet))? {
                    print(&format!("Imported: {name}\n"))?;
                }
            }
            Ok(())
        }
        "pull" => {
            if values.is_empty() {
                return Err(CliError::new("expected 'image pull REFERENCE...'"));
            }
            for image in values {
                let more = if now { "&now=true" } else { "" };
                let target = format!("/images/pull?reference={}{more}", encode(&image));
                let answer = client.send("POST", &target, "")?;
                for id in follow(answer, &mut ProgressDisplay::new(&image, quiet))? {
                    print(&format!("Pulled: {image} {id}\n"))?;
                }
            }
            Ok(())
        }
        "ls" => get::show_images(&client, wide, no_headers),
        "rm" => {
            if values.is_empty() {
                return Err(CliError::new("expected 'image rm IMAGE...'"));
            }
            for image in values {
                let target = format!("/images?reference={}", encode(&image));
                client
                    .send("DELETE", &target, "")?
                    .copy_to(&mut std::io::stdout())?;
            }
            Ok(())
        }
        "prune" => client
            .send("POST", "/images/prune", "")?
            .copy_to(&mut std::io::stdout()),
        other => Err(CliError::new(format!("unknown command \"image {other}\""))),
    }
}

/// Most bytes of one line of a transfer's answer: the last one names every image.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Shows the steps of a transfer until it has ended. Returns the references that it brought.
fn follow(answer: AgentAnswer, progress: &mut ProgressDisplay) -> Result<Vec<String>, CliError> {
    match outcome(answer, progress)? {
        ProgressLine::Imported(names) => Ok(names),
        other => Err(unforeseen(&other)),
    }
}

/// Shows the steps of an operation until it has ended. Returns its last line, which is no failure.
pub(super) fn outcome(
    mut answer: AgentAnswer,
    progress: &mut ProgressDisplay,
) -> Result<ProgressLine, CliError> {
    let lost = |why: &str| CliError::new(format!("connection to the agent failed: {why}"));
    loop {
        let mut line = String::new();
        let read = (&mut answer.body).take(MAX_LINE_BYTES).read_line(&mut line);
        if read.map_err(|e| lost(&e.to_string()))? == 0 {
            return Err(lost("it ended before the work was done"));
        }
        match from_json(line.as_bytes()).map_err(|e| lost(&e.to_string()))? {
            ProgressLine::Step(step) => progress.show(step),
            ProgressLine::Failed { status, error } => {
                return Err(CliError::from_server(status, &error));
            }
            last => return Ok(last),
        }
    }
}

/// Makes the error of an answer that does not fit the request.
pub(super) fn unforeseen(line: &ProgressLine) -> CliError {
    CliError::new(format!("the agent's answer is not understood: {line:?}"))
}
