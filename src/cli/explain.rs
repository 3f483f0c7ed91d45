//! `picolet explain pod.spec`: fields that a manifest may have. No agent is asked.

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    print_text,
};
use crate::logic::object_fields;

pub(super) fn run_explain(mut words: CliWords) -> Result<(), CliError> {
    let mut path = None;
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Value(word) if path.is_none() => path = Some(word),
            other => return Err(unexpected_word(other)),
        }
    }
    let path =
        path.ok_or_else(|| CliError::new("expected 'explain pod.spec', or another field"))?;
    let text = object_fields::explain_field(&path);
    print_text(&text.ok_or_else(|| {
        CliError::new(format!(
            "field {path:?} does not exist: begin with pod, configmap or secret"
        ))
    })?)
}
