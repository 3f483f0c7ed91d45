//! Programs that replace the one that runs: given by the operator (`picolet upgrade`), or offered by a channel that the
//! node looks at (`picolet.update`, `picolet update`).
//!
//! | file | content |
//! |---|---|
//! | `settings` | the keys below `picolet.update` |
//! | `channel` | the signed file that names a release, and the release |
//! | `command` | `picolet update`: a look at the channel |
//! | `upgrade` | `picolet upgrade`: another program takes over |
//! | `release`, `running`, `switch`, `watch` | the program that is to take over, the agent that runs, the exchange of their files, the trial |

pub mod channel;
mod command;
mod release;
mod running;
pub(crate) mod settings;
mod switch;
mod upgrade;
mod watch;

pub(crate) use command::run as update;
pub(crate) use upgrade::run as upgrade;
