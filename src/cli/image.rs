//! `picolet image import|ls|rm|prune`.

use super::{
    CliError,
    args::{Word, Words, unexpected},
    get, print,
};
use crate::server::http::encode;

pub(super) fn run(verb: &str, mut words: Words) -> Result<(), CliError> {
    let mut values = Vec::new();
    let mut name = String::new();
    let (mut wide, mut no_headers) = (false, false);
    while let Some(word) = words.next()? {
        match word {
            Word::Flag("name") => name = words.value()?,
            Word::Flag("no-headers") => no_headers = words.switch()?,
            Word::Flag("output") => wide = words.value()? == "wide",
            Word::Value(value) => values.push(value),
            other @ Word::Flag(_) => return Err(unexpected(other)),
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
                    "/images/import?path={}&name={}",
                    encode(path),
                    encode(&name)
                );
                client
                    .send("POST", &target, "")?
                    .copy_to(&mut std::io::stdout())?;
            }
            Ok(())
        }
        "ls" => get::show_images(&client, wide, no_headers),
        "rm" => {
            if values.is_empty() {
                return Err(CliError::new("expected 'image rm IMAGE...'"));
            }
            for image in values {
                client.send(
                    "DELETE",
                    &format!("/images?reference={}", encode(&image)),
                    "",
                )?;
                print(&format!("Deleted: {image}\n"))?;
            }
            Ok(())
        }
        "prune" => client
            .send("POST", "/images/prune", "")?
            .copy_to(&mut std::io::stdout()),
        other => Err(CliError::new(format!("unknown command \"image {other}\""))),
    }
}
