//! `exec` on the local socket: frames on one side, the command's descriptors on the other. Fixed buffers, and a slow
//! side holds only its own stream back.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
};

use async_io::Async;
use smol::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    lock::Mutex,
};

use super::{
    backend::{Backend, ExecRequest},
    http::{self, Connection, Refusal, Request},
    stream,
};
use crate::runtime::ExecSession;

/// Serves one exec request to its end.
pub(super) async fn serve(
    backend: &dyn Backend,
    connection: &Connection,
    request: &Request,
    exec: ExecRequest,
) -> io::Result<Result<(), Refusal>> {
    if request.upgrade.as_deref() != Some(stream::PROTOCOL) {
        return Ok(Err(Refusal::bad(format!(
            "exec needs 'Upgrade: {}'",
            stream::PROTOCOL
        ))));
    }
    if exec.command.is_empty() {
        return Ok(Err(Refusal::bad("command: required")));
    }
    let mut session = match backend.exec(exec).await {
        Ok(session) => session,
        Err(refusal) => return Ok(Err(refusal)),
    };
    http::switch_protocols(connection, stream::PROTOCOL).await?;
    run(connection, &request.early_body, session.as_mut())
        .await
        .map(Ok)
}

async fn run(
    connection: &Connection,
    early: &[u8],
    session: &mut dyn ExecSession,
) -> io::Result<()> {
    let io = session.take_streams();
    let writer = Mutex::new(connection);
    let stdin = io.stdin.map(open).transpose()?;
    let code = {
        let session: &_ = &*session;
        // The client's frames are read for as long as the command runs, and no longer.
        let input = async {
            let end = read_frames(connection, early, stdin, session).await;
            // The client is gone or talks nonsense: nobody waits for the command any more.
            end.err()
                .unwrap_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))
        };
        let output = async {
            let out = copy(io.stdout, stream::STDOUT, &writer);
            let err = copy(io.stderr, stream::STDERR, &writer);
            let (out, err) = smol::future::zip(out, err).await;
            out.and(err)
        };
        let input = async { Err(input.await) };
        smol::future::or(output, input).await
    };
    code?;
    let end = session.wait().await;
    let status = match end {
        Ok(0) => serde_json::json!({ "metadata": {}, "status": "Success" }),
        Ok(code) => serde_json::json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
        Err(message) => {
            serde_json::json!({ "metadata": {}, "status": "Failure", "reason": "InternalError", "message": message.to_string() })
        }
    };
    send(&writer, stream::ERROR, status.to_string().as_bytes()).await
}

fn open(fd: OwnedFd) -> io::Result<Async<File>> {
    Async::new(File::from(fd))
}

async fn send(writer: &Mutex<&Connection>, channel: u8, bytes: &[u8]) -> io::Result<()> {
    let mut connection = writer.lock().await;
    connection
        .write_all(&stream::head(channel, bytes.len()))
        .await?;
    connection.write_all(bytes).await
}

/// Copies what the command writes into frames, until it closes the stream.
async fn copy(from: Option<OwnedFd>, channel: u8, writer: &Mutex<&Connection>) -> io::Result<()> {
    let Some(from) = from.map(open).transpose()? else {
        return Ok(());
    };
    let mut buffer = vec![0; stream::MAX_FRAME];
    loop {
        // A file's own read and write: `Async<File>` has no stream traits, and a pipe or terminal never blocks here.
        match from.read_with(|mut file| file.read(&mut buffer)).await {
            Ok(0) => return Ok(()),
            Ok(n) => send(writer, channel, &buffer[..n]).await?,
            // The master of a terminal whose other side is closed.
            Err(e) if e.raw_os_error() == Some(libc::EIO) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}

/// Reads the client's frames: stdin, window sizes, the end of stdin. Ends with the connection.
async fn read_frames(
    connection: &Connection,
    early: &[u8],
    mut stdin: Option<Async<File>>,
    session: &dyn ExecSession,
) -> io::Result<()> {
    let mut input = smol::io::AsyncReadExt::chain(early, connection);
    let mut payload = vec![0; stream::MAX_FRAME];
    loop {
        let mut head = [0; stream::HEAD_BYTES];
        input.read_exact(&mut head).await?;
        let (channel, length) = stream::parse_head(head)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "frame too long"))?;
        let payload = &mut payload[..length];
        input.read_exact(payload).await?;
        match channel {
            stream::STDIN => {
                let mut rest: &[u8] = payload;
                while let (Some(file), false) = (&stdin, rest.is_empty()) {
                    match file.write_with(|mut f| f.write(rest)).await {
                        Ok(n) => rest = &rest[n..],
                        // The command does not read any more: what else comes is dropped.
                        Err(_) => stdin = None,
                    }
                }
            }
            stream::RESIZE => {
                let size: serde_json::Value = serde_json::from_slice(payload).unwrap_or_default();
                let side = |name: &str| size[name].as_u64().and_then(|n| u16::try_from(n).ok());
                if let (Some(columns), Some(rows)) = (side("Width"), side("Height")) {
                    session.resize(columns, rows);
                }
            }
            stream::CLOSE if payload == [stream::STDIN] => stdin = None,
            _ => {}
        }
    }
}
