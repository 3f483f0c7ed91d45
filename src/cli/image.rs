//! `picolet image import|ls|rm|prune`.

use super::{
    CliError,
    args::{Word, Words, unexpected},
    get, print,
};
use crate::server::http::encode;

pub(super) fn run(mut words: Words) -> Result<(), CliError> {
    let mut verb = None;
    let mut values = Vec::new();
    let mut name = String::new();
    let (mut wide, mut no_headers) = (false, false);
    while let Some(word) = words.next()? {
        match word {
            Word::Long(flag) if flag == "name" => name = words.value()?,
            Word::Long(flag) if flag == "no-headers" => no_headers = words.switch()?,
            Word::Short('o') => wide = words.value()? == "wide",
            Word::Value(value) if verb.is_none() => verb = Some(value),
            Word::Value(value) => values.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let client = words.client();
    match verb.as_deref() {
        Some("import") => {
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
        Some("ls" | "list") => get::show_images(&client, wide, no_headers),
        Some("rm" | "remove") => {
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
        Some("prune") => client
            .send("POST", "/images/prune", "")?
            .copy_to(&mut std::io::stdout()),
        Some(other) => Err(CliError::new(format!("unknown command \"image {other}\""))),
        None => Err(CliError::new("expected 'image import|ls|rm|prune'")),
    }
}
