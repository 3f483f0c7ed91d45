//! End of a command, as a client is told.

use alloc::format;
use alloc::string::{String, ToString as _};

use serde_json::json;

/// End of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The command exited with this code.
    Exited(i32),
    /// The command was not run, or its end is unknown: the reason.
    Failed(String),
    /// The session was ended before it: the reason.
    Cut(String),
}

impl CommandOutcome {
    /// A `metav1.Status` as JSON: what v4 and v5 send.
    #[must_use]
    pub fn status_json(&self) -> String {
        match self {
            Self::Exited(0) => json!({ "metadata": {}, "status": "Success" }),
            Self::Exited(code) => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": self.message_text(),
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Self::Failed(_) => json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": self.message_text(),
            }),
            Self::Cut(why) => json!({
                "metadata": {}, "status": "Failure", "reason": "Forbidden", "code": 403, "message": why,
            }),
        }
        .to_string()
    }

    /// A text: what older protocols send; empty on success.
    #[must_use]
    pub fn message_text(&self) -> String {
        match self {
            Self::Exited(0) => String::new(),
            Self::Exited(code) => {
                format!("command terminated with non-zero exit code: exit status {code}")
            }
            Self::Failed(why) => {
                format!("Internal error occurred: error executing command in container: {why}")
            }
            Self::Cut(why) => why.clone(),
        }
    }
}
