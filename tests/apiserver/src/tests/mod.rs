//! The whole server over HTTPS, as a client meets it.

mod auth;
mod client;
mod controllers;
mod faults;
mod node;
mod pods;
mod reads;
mod replay;
mod writes;
