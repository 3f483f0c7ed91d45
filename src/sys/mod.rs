//! Every unsafe block and every clock read, one file per family of system calls.

pub mod clock;
pub mod lane;
