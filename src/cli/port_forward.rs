//! `picolet port-forward POD [LOCAL:]REMOTE...`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{
    io::{self, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
};

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    client::AgentClient,
    exec::parse_pod_name,
    get::DEFAULT_NAMESPACE,
    pods,
};
use crate::server::{http::percent_encode, streaming::PROTOCOL};

/// Most ports of one call.
const MAX_PORTS: usize = 64;

/// A port that is listened on, and the pod's port that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ForwardedPort {
    /// Port to listen on; 0: any that is free.
    local: u16,
    remote: u16,
}

pub(super) fn run_port_forward(mut words: CliWords) -> Result<(), CliError> {
    let mut namespace = DEFAULT_NAMESPACE.to_owned();
    let mut addresses = vec!["localhost".to_owned()];
    let mut pod = String::new();
    let mut forwards = Vec::new();
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => namespace = words.flag_value()?,
            CliWord::Flag("address") => {
                addresses = words.flag_value()?.split(',').map(str::to_owned).collect();
            }
            CliWord::Value(value) if pod.is_empty() => pod = parse_pod_name(value),
            CliWord::Value(value) => forwards.push(parse_forwarded_port(&value)?),
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    if pod.is_empty() || forwards.is_empty() {
        return Err(CliError::new(
            "TYPE/NAME and list of ports are required for port-forward",
        ));
    }
    if forwards.len() > MAX_PORTS {
        return Err(CliError::new(format!("more than {MAX_PORTS} ports")));
    }
    let client = words.agent_client();
    check_pod_runs(&client, &namespace, &pod)?;
    let target = format!(
        "/portForward/{}/{}",
        percent_encode(&namespace),
        percent_encode(&pod)
    );
    let mut listening = Vec::new();
    for forward in forwards {
        for listener in listen_on_addresses(&addresses, forward)? {
            let (client, target) = (client.clone(), target.clone());
            let remote = forward.remote;
            listening.push(thread::spawn(move || {
                accept_connections(&listener, &client, &target, remote)
            }));
        }
    }
    for thread in listening {
        // The threads go on until the command is ended.
        let _ = thread.join();
    }
    Ok(())
}

/// Reads `[LOCAL:]REMOTE`.
fn parse_forwarded_port(text: &str) -> Result<ForwardedPort, CliError> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let number = |part: &str| part.parse().ok().filter(|n: &u16| *n > 0);
    let local = if local.is_empty() {
        Some(0)
    } else {
        number(local)
    };
    match (local, number(remote)) {
        (Some(local), Some(remote)) => Ok(ForwardedPort { local, remote }),
        _ => Err(CliError::new(format!(
            "invalid port {text:?}: expected PORT or LOCAL:REMOTE, numbers from 1 to 65535"
        ))),
    }
}

fn check_pod_runs(client: &AgentClient, namespace: &str, pod: &str) -> Result<(), CliError> {
    let pods = pods::fetch_pods(client, namespace)?;
    let found = pods::find_pod(&pods, pod).ok_or_else(|| pods::pod_not_found(pod))?;
    let phase = found["status"]["phase"].as_str().unwrap_or("Unknown");
    if phase != "Running" {
        return Err(CliError::new(format!(
            "unable to forward port because pod is not running. Current status={phase}"
        )));
    }
    Ok(())
}

/// Listens on every address that is possible; an error if none is.
fn listen_on_addresses(
    addresses: &[String],
    forward: ForwardedPort,
) -> Result<Vec<TcpListener>, CliError> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut failed = None;
    let mut local = forward.local;
    for address in addresses {
        let ips: &[IpAddr] = match (&**address, address.parse::<IpAddr>()) {
            ("localhost", _) => &[
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(Ipv6Addr::LOCALHOST),
            ],
            (_, Ok(ip)) => &[ip],
            _ => {
                return Err(CliError::new(format!("{address:?} is not an IP address")));
            }
        };
        for ip in ips {
            match TcpListener::bind(SocketAddr::new(*ip, local)) {
                Ok(listener) => {
                    let bound = listener.local_addr();
                    let bound = bound.map_err(|e| CliError::new(e.to_string()))?;
                    // The other addresses take the port of the first.
                    local = bound.port();
                    let _ = writeln!(
                        io::stdout(),
                        "Forwarding from {bound} -> {}",
                        forward.remote
                    );
                    listeners.push(listener);
                }
                Err(e) => {
                    let text = format!("unable to listen on port {local} at {ip}: {e}");
                    failed = Some(CliError::new(text));
                }
            }
        }
    }
    match failed {
        Some(e) if listeners.is_empty() => Err(e),
        _ => Ok(listeners),
    }
}

fn accept_connections(listener: &TcpListener, client: &AgentClient, target: &str, remote: u16) {
    let local = listener.local_addr().map_or(0, |address| address.port());
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(e) => {
                let _ = writeln!(io::stderr(), "error: cannot accept: {e}");
                return;
            }
        };
        let _ = writeln!(io::stdout(), "Handling connection for {local}");
        let (client, target) = (client.clone(), format!("{target}?port={remote}"));
        thread::spawn(move || {
            if let Err(e) = forward_connection(&client, &target, stream) {
                let _ = writeln!(io::stderr(), "error: {}", e.message);
            }
        });
    }
}

/// Forwards one connection to its end.
fn forward_connection(
    client: &AgentClient,
    target: &str,
    mut local: TcpStream,
) -> Result<(), CliError> {
    let headers = format!("Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n");
    let mut answer = client.send_request("POST", target, &headers)?;
    let lost = |e: io::Error| CliError::new(format!("connection to the agent failed: {e}"));
    let mut to_agent = answer.body.get_ref().try_clone().map_err(lost)?;
    let mut from_local = local.try_clone().map_err(lost)?;
    let there = thread::spawn(move || {
        let _ = io::copy(&mut from_local, &mut to_agent);
        let _ = to_agent.shutdown(Shutdown::Write);
    });
    let _ = io::copy(&mut answer.body, &mut local);
    let _ = local.shutdown(Shutdown::Write);
    let _ = there.join();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        for (text, expected) in [
            ("80", Some((80, 80))),
            ("8080:80", Some((8080, 80))),
            (":80", Some((0, 80))),
            ("0:80", None),
            ("80:", None),
            ("http", None),
            ("80:65536", None),
            ("1:2:3", None),
        ] {
            let got = parse_forwarded_port(text).ok().map(|f| (f.local, f.remote));
            assert_eq!(got, expected, "{text}");
        }
    }
}
