//! `$(NAME)` in env values, command lines and subPathExpr (ENV-05).

use alloc::string::String;

use crate::api::PodError;

/// Longest word of a command line or environment, bytes: the kernel refuses longer ones (`MAX_ARG_STRLEN`, execve(2)).
pub const MAX_WORD_BYTES: usize = 128 * 1024 - 1;
/// All words of a command line and its environment together, bytes: the kernel takes no more, whatever the stack limit.
pub const MAX_WORDS_BYTES: usize = 6 * 1024 * 1024;

/// Expands every reference in `text`.
///
/// - Errors: the result would be longer than [`MAX_WORD_BYTES`]. References to references grow exponentially.
/// - `$(NAME)`: what `lookup` answers; left as written if it answers nothing. No recursion into the answer.
/// - `$$`: one dollar, so that `$$(NAME)` stays a literal. Any other dollar stays.
/// - Source: Kubernetes `third_party/forked/golang/expansion`.
pub fn expand_references(
    text: &str,
    mut lookup: impl FnMut(&str) -> Option<String>,
) -> Result<String, PodError> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        check_length(out.len() + at)?;
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after
            .strip_prefix('(')
            .and_then(|tail| tail.split_once(')'))
        {
            match lookup(name) {
                Some(value) => {
                    check_length(out.len() + value.len())?;
                    out.push_str(&value);
                }
                None => out.extend(["$(", name, ")"]),
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    check_length(out.len() + rest.len())?;
    out.push_str(rest);
    Ok(out)
}

fn check_length(bytes: usize) -> Result<(), PodError> {
    if bytes <= MAX_WORD_BYTES {
        return Ok(());
    }
    Err(PodError::Spec(format!(
        "is longer than {MAX_WORD_BYTES} bytes, which is the most that the kernel passes to a program"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        // ENV-05
        for (text, want) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "1"),
            ("$(A)$(B)", "12"),
            ("x$(A)y", "x1y"),
            ("$(NO)", "$(NO)"),
            ("$()", "$()"),
            ("$$", "$"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$(A)", "$$(A)"),
            ("$(A", "$(A"),
            ("$($$", "$($"),
            ("$A $ é$é", "$A $ é$é"),
            ("cost: 5$", "cost: 5$"),
            ("$(REF)", "$(A)"),
            ("$(A $(A)", "$(A $(A)"),
            ("$( A)", "$( A)"),
            ("))$(A)((", "))1(("),
        ] {
            let got = expand_references(text, |name| match name {
                "A" => Some("1".into()),
                "B" => Some("2".into()),
                "REF" => Some("$(A)".into()),
                _ => None,
            });
            assert_eq!(got.as_deref(), Ok(want), "{text:?}");
        }
    }

    #[test]
    fn growth_is_bounded() {
        let mut value = "x".repeat(1000);
        let mut rounds = 0;
        let error = loop {
            rounds += 1;
            match expand_references(&"$(A)".repeat(10), |_| Some(value.clone())) {
                Ok(longer) => value = longer,
                Err(error) => break error,
            }
        };
        assert_eq!((rounds, value.len()), (3, 100_000));
        assert!(format!("{error}").contains("131071 bytes"));
        let longest = "y".repeat(MAX_WORD_BYTES);
        assert_eq!(
            expand_references(&longest, |_| None).as_deref(),
            Ok(longest.as_str())
        );
        for long in [
            format!("{longest}y"),
            format!("{longest}$(A)"),
            format!("$$$(A){longest}"),
        ] {
            assert!(expand_references(&long, |_| Some("z".into())).is_err());
        }
    }
}
