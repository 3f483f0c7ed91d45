//! `/healthz` in plain text: says that the process serves, and nothing else (SRV-02).

use alloc::rc::Rc;
use core::{cell::Cell, time::Duration};
use std::{
    io,
    net::{SocketAddr, TcpStream},
};

use async_io::{Async, Timer};
use smol::LocalExecutor;

use super::{
    connection::StreamConnection,
    http::{self, Refusal},
    network::{RETRY_PAUSE, listen_when_free},
};
use crate::sys::turn;

/// Connections at once; a further one is closed.
pub const MAX_CONNECTIONS: usize = 16;
/// A request comes, and its answer goes, within this time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Listens and answers until the executor drops it.
pub async fn serve_healthz(address: SocketAddr, executor: Rc<LocalExecutor<'static>>) {
    let listener = listen_when_free(address, "/healthz").await;
    let open = Rc::new(Cell::new(0));
    loop {
        match listener.accept().await {
            Ok(_) if open.get() >= MAX_CONNECTIONS => {}
            Ok((stream, peer)) => {
                open.set(open.get() + 1);
                let open = Rc::clone(&open);
                let answered = async move {
                    let late = async {
                        Timer::after(TIMEOUT).await;
                        Err(io::ErrorKind::TimedOut.into())
                    };
                    if let Err(e) = smol::future::or(answer_healthz(stream), late).await {
                        log::debug!("/healthz: {peer}: {e}");
                    }
                    open.set(open.get() - 1);
                };
                executor.spawn(answered).detach();
            }
            Err(e) => {
                log::warn!("/healthz: cannot accept a connection: {e}");
                Timer::after(RETRY_PAUSE).await;
            }
        }
        // There may always be another.
        turn::yield_to_others().await;
    }
}

async fn answer_healthz(stream: Async<TcpStream>) -> io::Result<()> {
    let mut connection = StreamConnection::new(stream);
    let connection = &mut connection;
    let request = match http::read_request(connection).await? {
        Ok(Some(request)) => request,
        Ok(None) => return Ok(()),
        Err(refusal) => return http::send_refusal(connection, &refusal).await,
    };
    connection.answer.head_only = request.method == "HEAD";
    let is_page = request.is_plain && request.path == ["healthz"];
    if is_page {
        http::send_response(connection, 200, "text/plain; charset=utf-8", b"ok").await
    } else {
        http::send_refusal(connection, &Refusal::not_found("404 page not found\n")).await
    }
}

#[cfg(test)]
mod tests {
    use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn one_page() {
        // SRV-02
        let executor = Rc::new(LocalExecutor::new());
        smol::block_on(executor.run(async {
            let free = Async::<std::net::TcpListener>::bind(([127, 0, 0, 1], 0)).expect("port");
            let address = free.get_ref().local_addr().expect("address");
            drop(free);
            let _server = executor.spawn(serve_healthz(address, Rc::clone(&executor)));
            for (line, wanted) in [
                ("GET /healthz HTTP/1.1", "HTTP/1.1 200"),
                ("HEAD /healthz HTTP/1.1", "HTTP/1.1 200"),
                ("GET /healthz/ HTTP/1.0", "HTTP/1.1 200"),
                ("GET /pods HTTP/1.1", "HTTP/1.1 404"),
                ("GET //healthz HTTP/1.1", "HTTP/1.1 404"),
                ("nonsense", "HTTP/1.1 400"),
            ] {
                let mut client = loop {
                    match Async::<TcpStream>::connect(address).await {
                        Ok(client) => break client,
                        Err(_) => smol::future::yield_now().await,
                    }
                };
                let asked = format!("{line}\r\n\r\n");
                client.write_all(asked.as_bytes()).await.expect("ask");
                let mut text = String::new();
                client.read_to_string(&mut text).await.expect("answer");
                assert!(text.starts_with(wanted), "{line}: {text}");
                assert_eq!(
                    text.ends_with("\r\n\r\nok"),
                    line.starts_with("GET /healthz")
                );
            }
        }));
    }
}
