//! The tunnel of a k3s server, by which its apiserver reaches a node: the node dials. These are the decisions of a
//! client of remotedialer, as far as they differ from those of the tunnel of konnectivity. Rows K3ST.
//!
//! | module | decisions |
//! |---|---|
//! | [`message`] | the messages on a session, without I/O |
//! | [`session`] | the connections of a session: dials, turns, back-pressure, pings |
//! | [`servers`] | servers that are to have a session, and when they are asked who they are |
//! | [`health`] | state of the tunnel for people |

pub mod health;
pub mod message;
pub mod servers;
pub mod session;
