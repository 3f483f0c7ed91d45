//! `picolet image pull|import|rm|verify|prune`.

use std::io::{BufRead as _, Read as _};

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    client::AgentAnswer,
    print_text,
    progress::ProgressDisplay,
    verify,
};
use crate::api::strict::from_json;
use crate::server::{backend::ProgressLine, http::percent_encode};

pub(super) fn run_image_command(verb: &str, mut words: CliWords) -> Result<(), CliError> {
    if verb == "verify" {
        return verify::run_image_verify(words);
    }
    let mut values = Vec::new();
    let mut name = String::new();
    let (mut quiet, mut now) = (false, false);
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("name") => name = words.flag_value()?,
            CliWord::Flag("quiet") => quiet = words.switch_value()?,
            CliWord::Flag("now") => now = words.switch_value()?,
            CliWord::Value(value) if verb != "prune" => values.push(value),
            other => return Err(unexpected_word(other)),
        }
    }
    let client = words.agent_client();
    match verb {
        "import" => {
            if values.is_empty() {
                return Err(CliError::new("expected 'image import FILE...'"));
            }
            if values.len() > 1 && !name.is_empty() {
                return Err(CliError::new(
                    "--name is for one image: import each FILE by itself",
                ));
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
                    percent_encode(path),
                    percent_encode(&name)
                );
                let answer = client.send_request("POST", &target, "")?;
                for name in follow_transfer(answer, &mut ProgressDisplay::new(&file, quiet))? {
                    print_text(&format!("Imported: {name}\n"))?;
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
                let target = format!("/images/pull?reference={}{more}", percent_encode(&image));
                let answer = client.send_request("POST", &target, "")?;
                for id in follow_transfer(answer, &mut ProgressDisplay::new(&image, quiet))? {
                    print_text(&format!("Pulled: {image} {id}\n"))?;
                }
            }
            Ok(())
        }
        "rm" => {
            if values.is_empty() {
                return Err(CliError::new("expected 'image rm IMAGE...'"));
            }
            for image in values {
                let target = format!("/images?reference={}", percent_encode(&image));
                client
                    .send_request("DELETE", &target, "")?
                    .copy_body_to(&mut std::io::stdout())?;
            }
            Ok(())
        }
        "prune" => client
            .send_request("POST", "/images/prune", "")?
            .copy_body_to(&mut std::io::stdout()),
        other => Err(CliError::new(format!("unknown command \"image {other}\""))),
    }
}

/// Most bytes of one line of a transfer's answer: the last one names every image.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Shows the steps of a transfer until it has ended. Returns the references that it brought.
fn follow_transfer(
    answer: AgentAnswer,
    progress: &mut ProgressDisplay,
) -> Result<Vec<String>, CliError> {
    match follow_operation(answer, progress)? {
        ProgressLine::Imported(names) => Ok(names),
        other => Err(unexpected_answer(&other)),
    }
}

/// Shows the steps of an operation until it has ended. Returns its last line, which is no failure.
pub(super) fn follow_operation(
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
            ProgressLine::Step(step) => progress.show_step(step),
            ProgressLine::Failed { status, error } => {
                return Err(CliError::from_server(status, &error));
            }
            last => return Ok(last),
        }
    }
}

/// Makes the error of an answer that does not fit the request.
pub(super) fn unexpected_answer(line: &ProgressLine) -> CliError {
    CliError::new(format!("the agent's answer is not understood: {line:?}"))
}
