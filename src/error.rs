//! Rules for all errors of this program: each names what failed, and its causes are its sources. Only code that shows
//! an error to people puts them together.

use core::error::Error;

/// Writes an error with all its causes in one line.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        // Errors of other crates may have their cause in their own text, too.
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("cannot start")]
        Start(#[source] Box<Self>),
        #[error("no room: {0}")]
        Room(#[source] std::num::ParseIntError),
    }

    #[test]
    fn each_cause_is_told_once() {
        let cause = "x".parse::<u8>().expect_err("no number");
        let text = format!("cannot start: no room: {cause}");
        assert_eq!(
            error_chain(&Failed::Start(Box::new(Failed::Room(cause)))),
            text
        );
    }
}
