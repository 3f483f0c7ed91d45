//! The process beside each container.
