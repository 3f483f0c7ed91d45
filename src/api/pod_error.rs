//! Reasons why a pod cannot have what it asks for, by who can mend it.

use alloc::string::String;
use core::fmt::Display;

/// A container, its sandbox or a volume cannot be made as the pod asks. It waits, and is tried again.
///
/// Texts are for the pod's status and events; nothing reads them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// Fault of the pod's author: a field asks for something impossible.
    #[error("{0}")]
    Spec(String),
    /// Whoever makes the objects that it refers to: one is missing, cannot be read now, or does not hold what it should.
    #[error("{0}")]
    Object(String),
    /// Fault of the image's builder.
    #[error("{0}")]
    Image(String),
    /// Fault of this node, for its operator: the machine cannot do it.
    #[error("{0}")]
    Node(String),
}

impl PodError {
    const fn text_mut(&mut self) -> &mut String {
        let (Self::Spec(text) | Self::Object(text) | Self::Image(text) | Self::Node(text)) = self;
        text
    }

    /// Puts the thing that the error is about in front of its text.
    #[must_use]
    pub fn with_subject(mut self, what: impl Display) -> Self {
        let text = self.text_mut();
        *text = format!("{what}: {text}");
        self
    }

    /// Both, as the fault of whose was first.
    #[must_use]
    pub fn with_second_error(mut self, other: &Self) -> Self {
        self.text_mut().push_str(&format!("; {other}"));
        self
    }
}
