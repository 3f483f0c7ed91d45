//! `picolet dashboard`: one page that shows the node, served to a browser of this machine while the command runs. It asks the
//! agent's socket, and only while a page asks it: the agent keeps nothing for it.
//!
//! [`serve`] answers requests, [`watch`] asks the agent, [`view`] chooses the parts of its answers that are shown.

mod serve;
mod view;
mod watch;

use alloc::sync::Arc;
use core::{net::SocketAddr, time::Duration};
use std::{
    ffi::OsString,
    io::Write as _,
    net::TcpListener,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use ring::rand::{SecureRandom as _, SystemRandom};

use super::{Part, PartCommand};
use crate::{
    api::hex::encode_hex,
    cli::{
        AgentClient, CliCommand, CliError, args,
        check::AgentPaths,
        commands::{CompletionKind, MACHINE, switch_flag, value_flag},
        print_text,
    },
    sys::start,
};
use serve::DashboardState;
use watch::NodeStateCache;

/// Address of the page, unless told otherwise.
const DEFAULT_LISTEN: &str = "127.0.0.1:8899";
/// Requests at once, a followed log being one; a further one is answered 503.
const MAX_CONNECTIONS: usize = 16;
/// Bytes of the token.
const TOKEN_BYTES: usize = 16;
/// Stack of a thread that answers, bytes.
const STACK_BYTES: usize = 512 * 1024;
/// Longest silence of the agent: to the page, which asks for two things one after the other, and to an action.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(15);
/// Further requests that are answered 503 at once; beyond them the connection is closed.
const MAX_REFUSED: usize = 16;
/// Pause after a connection that cannot be accepted.
const RETRY_PAUSE_MS: i32 = 1000;

/// The part; see the module.
pub(super) struct DashboardPart;

/// The command that serves the page.
static COMMANDS: [PartCommand; 1] = [PartCommand {
    command: CliCommand {
        name: "dashboard",
        args: "",
        group: MACHINE,
        help: "Show the node in a browser, for as long as the command runs",
        flags: &[
            value_flag(
                "listen",
                None,
                "ADDRESS:PORT",
                "address that the browser connects to (default 127.0.0.1:8899)",
            ),
            switch_flag(
                "allow-actions",
                None,
                "the page can also restart and delete static pods, and pull images",
            ),
        ],
        agent_flags: true,
        takes: CompletionKind::Nothing,
    },
    run: |command, words| run_dashboard(command, words).map(|()| ExitCode::SUCCESS),
}];

impl Part for DashboardPart {
    fn name(&self) -> &'static str {
        "dashboard"
    }

    fn commands(&self) -> &'static [PartCommand] {
        &COMMANDS
    }
}

fn run_dashboard(command: &'static CliCommand, words: Vec<OsString>) -> Result<(), CliError> {
    let (own, agent) = args::split_flags(command, words)?;
    let (mut listen, mut allow_actions) = (DEFAULT_LISTEN.to_owned(), false);
    for (flag, value) in own {
        match flag {
            "listen" => listen = value,
            _ => allow_actions = args::parse_switch(&value)?,
        }
    }
    let address: SocketAddr = listen.parse().map_err(|_| {
        CliError::new(format!(
            "invalid argument {listen:?} for \"--listen\": expected an IP address and a port, as in {DEFAULT_LISTEN}"
        ))
    })?;
    let place = AgentPaths::of_running_agent(agent.clone())?;
    let client = AgentClient::new(&place.socket).with_patience(PATIENCE);
    client.check_permission()?;
    let listener = TcpListener::bind(address)
        .and_then(|listener| Ok((listener.local_addr()?, listener)))
        .map_err(|e| CliError::new(format!("cannot listen at {address}: {e}")));
    let (bound, listener) = listener?;
    let token = generate_token()?;
    print_text(&page_address_text(bound, &token))?;
    let looks = client.clone().with_patience(LOOK_PATIENCE);
    let watch = NodeStateCache::new(looks, place.root.clone(), agent);
    let dashboard = Arc::new(DashboardState {
        token,
        allow_actions,
        client,
        place,
        watch,
    });
    accept(&listener, &dashboard)
}

fn generate_token() -> Result<String, CliError> {
    let mut bytes = [0; TOKEN_BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| CliError::new("the system gives no random numbers"))?;
    Ok(encode_hex(&bytes))
}

/// Makes the text that is printed: the page's address. A browser keeps the token behind `#` to itself.
fn page_address_text(bound: SocketAddr, token: &str) -> String {
    let mut text = format!("Open http://{bound}/#{token}\n");
    if bound.ip().is_unspecified() {
        text = format!(
            "Open http://ADDRESS-OF-THIS-MACHINE:{}/#{token}\n",
            bound.port()
        );
    }
    if !bound.ip().is_loopback() {
        text += "Anyone who can read the network traffic can read the page and the token. ssh -L is safer.\n";
    }
    text + "The page is available until this command ends (Ctrl-C).\n"
}

fn accept(listener: &TcpListener, dashboard: &Arc<DashboardState>) -> Result<(), CliError> {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) => {
                // Out of descriptors, perhaps: other requests must end first.
                let _ = writeln!(std::io::stderr(), "error: cannot accept: {e}");
                let _ = start::poll_fds(&mut [], RETRY_PAUSE_MS);
                continue;
            }
        };
        let at_once = open.fetch_add(1, Ordering::Relaxed);
        let (dashboard, counted) = (Arc::clone(dashboard), Arc::clone(&open));
        let answer = move || {
            // Beyond the limit the only answer is that there are too many requests.
            dashboard.answer_request(stream, at_once >= MAX_CONNECTIONS);
            counted.fetch_sub(1, Ordering::Relaxed);
        };
        let is_too_much = at_once >= MAX_CONNECTIONS + MAX_REFUSED;
        if is_too_much || spawn(STACK_BYTES, Box::new(answer)).is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Starts a thread. If that fails, its work is dropped.
fn spawn(stack_bytes: usize, work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    let thread = thread::Builder::new().stack_size(stack_bytes);
    thread.spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed() {
        let of = |address: &str| page_address_text(address.parse().expect("address"), "t0");
        assert_eq!(
            of("127.0.0.1:8899"),
            "Open http://127.0.0.1:8899/#t0\nThe page is available until this command ends (Ctrl-C).\n"
        );
        assert!(of("[::1]:1").starts_with("Open http://[::1]:1/#t0\nThe page"));
        assert!(of("0.0.0.0:1").starts_with("Open http://ADDRESS-OF-THIS-MACHINE:1/#t0\nAnyone"));
        let (a, b) = (
            generate_token().expect("random"),
            generate_token().expect("random"),
        );
        assert!(a.len() == 2 * TOKEN_BYTES && a != b);
    }
}
