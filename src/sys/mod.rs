//! Every unsafe block and every clock read, one file per family of system calls.

pub mod child;
pub mod clock;
pub mod lane;
pub mod lock;
pub mod pidfd;
pub mod proc;
pub mod tty;
