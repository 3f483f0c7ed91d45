//! A container's log as an answer: read on the disk lane, sent as it comes.

use core::time::Duration;

use super::{
    ServeOutcome,
    allowance::Allowance,
    backend::{LogTarget, ServerBackend},
    http::{self, AnswerStream, Refusal, StreamConnection},
    log_reader::{LogChunk, LogOptions, LogReader},
};

/// A followed log is looked at so often at its end. LOG-03 asks for at least once a second.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// Sends a log until its end; a followed one until its container has ended or the client has left.
pub(super) async fn stream_log(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    target: LogTarget,
    options: LogOptions,
) -> ServeOutcome {
    if target.path.as_os_str().is_empty() {
        return stream_provided_log(backend, connection, &target, &options).await;
    }
    let follow = options.follow;
    let (path, memory) = (target.path.clone(), target.memory.clone());
    let opened = backend
        .disk_lane()
        .run_job(move || LogReader::open(&path, Some(memory), options));
    let mut reader = match opened.await {
        Ok(reader) => reader,
        Err(e) => {
            let text = format!("log of container {}: {e}", target.id.as_str());
            return Ok(Err(Refusal::new(500, text)));
        }
    };
    let allowance = Allowance::new(backend, connection);
    let mut stream = http::start_answer_stream(connection, "text/plain").await?;
    // Ask before reading: what an ending container wrote last is then read after it was seen to have ended.
    let mut ended = false;
    // Bounded: each round waits for the disk's lane.
    loop {
        let (back, chunk) = backend
            .disk_lane()
            .run_job(move || {
                let chunk = reader.next_chunk();
                (reader, chunk)
            })
            .await;
        reader = back;
        match chunk? {
            LogChunk::Text(text) => {
                stream.send_bytes(&text).await?;
                if let Some(why) = allowance.and_then(|it| it.spent_reason(stream.carried_bytes()))
                {
                    return end_log_early(stream, &text, &why).await;
                }
            }
            LogChunk::Limit => return stream.finish_answer().await.map(Ok),
            LogChunk::End if !follow || ended => return stream.finish_answer().await.map(Ok),
            LogChunk::End => {
                if backend
                    .is_instance_running(&target.id)
                    .await
                    .unwrap_or(false)
                {
                    let pause = async {
                        async_io::Timer::after(FOLLOW_INTERVAL).await;
                        false
                    };
                    let left = async {
                        stream.wait_for_close().await;
                        true
                    };
                    if smol::future::or(left, pause).await {
                        return Ok(Ok(()));
                    }
                } else {
                    ended = true;
                }
            }
        }
    }
}

/// Sends a log that a provider keeps, as it comes.
async fn stream_provided_log(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    target: &LogTarget,
    options: &LogOptions,
) -> ServeOutcome {
    let mut incoming = match backend.open_provided_log(&target.id, options).await {
        Ok(incoming) => incoming,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut left = options.limit_bytes.unwrap_or(u64::MAX);
    let allowance = Allowance::new(backend, connection);
    let mut stream = http::start_answer_stream(connection, "text/plain").await?;
    loop {
        let next = async { Some(incoming.next_piece().await) };
        let gone = async {
            stream.wait_for_close().await;
            None
        };
        let piece = match smol::future::or(next, gone).await {
            None => return Ok(Ok(())),
            // The answer has begun: its reader sees that it breaks off.
            Some(Err(_)) => return Ok(Ok(())),
            Some(Ok(None)) => return stream.finish_answer().await.map(Ok),
            Some(Ok(Some(piece))) => piece,
        };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        stream.send_bytes(&piece[..most]).await?;
        left -= u64::try_from(most).unwrap_or(left);
        if left == 0 {
            return stream.finish_answer().await.map(Ok);
        }
        if let Some(why) = allowance.and_then(|it| it.spent_reason(stream.carried_bytes())) {
            return end_log_early(stream, &piece[..most], &why).await;
        }
        crate::sys::turn::yield_to_others().await;
    }
}

/// Says `why` as a line of its own behind `last`, and ends.
async fn end_log_early(mut stream: AnswerStream<'_>, last: &[u8], why: &str) -> ServeOutcome {
    let begin = if last.ends_with(b"\n") { "" } else { "\n" };
    let line = format!("{begin}picolet: {why}\n");
    stream.send_bytes(line.as_bytes()).await?;
    stream.finish_answer().await.map(Ok)
}
