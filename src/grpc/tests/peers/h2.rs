//! The h2 crate on the other side.

use core::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use std::{io, os::unix::net::UnixStream, rc::Rc};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream, client::SendRequest, server::SendResponse};
use http::{HeaderMap, Request, Response};
use picolet_grpc::{
    client::CallOptions,
    envelope::{EnvelopeReader, wrap_message},
    server,
    status::GrpcCode,
};
use smol::{
    Async, LocalExecutor,
    io::{AsyncRead as _, AsyncWrite as _},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Clock, Text, calls::service, pair, speak, text};
use picolet_grpc::proto::{Limits, decode, encode};

/// A pipe as h2 wants it.
struct Pipe(Async<UnixStream>);

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = into.initialize_unfilled();
        let len = ready!(Pin::new(&mut self.0).poll_read(cx, room))?;
        into.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_close(cx)
    }
}

/// Reads a whole body, as it comes.
async fn read(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

/// Sends all of a body, as there is room.
async fn write(stream: &mut SendStream<Bytes>, body: Vec<u8>, is_end: bool) {
    let mut rest = Bytes::from(body);
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let room = core::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let Some(Ok(room)) = room else {
            return;
        };
        let piece = rest.split_to(room.min(rest.len()));
        if stream.send_data(piece, is_end && rest.is_empty()).is_err() {
            return;
        }
    }
}

/// Answers a request: an echo, with what its path asks for.
async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let path = request.uri().path().to_owned();
    assert_eq!(request.headers()["te"], "trailers");
    let mut body = request.into_body();
    let Ok(bytes) = read(&mut body).await else {
        return;
    };
    let head = Response::builder().header("content-type", "application/grpc");
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("value"));
    match path.as_str() {
        "/h2/Reset" => respond.send_reset(Reason::REFUSED_STREAM),
        "/h2/TrailersOnly" => {
            let head = head
                .header("grpc-status", "9")
                .header("grpc-message", "not%20now");
            respond
                .send_response(head.body(()).expect("head"), true)
                .expect("sent");
        }
        "/h2/Never" => {
            let gone = core::future::poll_fn(|cx| respond.poll_reset(cx));
            assert_eq!(gone.await.expect("a reset"), Reason::CANCEL);
        }
        _ => {
            let mut stream = respond
                .send_response(head.body(()).expect("head"), false)
                .expect("sent");
            write(&mut stream, bytes, false).await;
            stream.send_trailers(trailers).expect("sent");
        }
    }
}

fn h2_server(theirs: Async<UnixStream>, executor: Rc<LocalExecutor<'static>>) {
    let inner = executor.clone();
    let serve = async move {
        let mut builder = h2::server::Builder::new();
        // Narrow, so that windows are waited for.
        builder
            .initial_window_size(20_000)
            .max_concurrent_streams(7);
        let mut connection = builder.handshake(Pipe(theirs)).await.expect("handshake");
        while let Some(Ok((request, respond))) = connection.accept().await {
            inner.spawn(answer(request, respond)).detach();
        }
    };
    executor.spawn(serve).detach();
}

#[test]
fn our_client_and_their_server() {
    speak(1, h2_server, async |client| {
        let options = CallOptions::default();
        // Many, so that tables of headers are used and run over.
        for n in 0..300 {
            let mut asked = text(&n.to_string());
            let path = format!("/h2/Echo{}", n % 150);
            let answer: Result<Text, _> = client.call_unary(&path, &mut asked, &options).await;
            assert_eq!(answer, Ok(asked));
        }
        let mut large = text(&"x".repeat(10 << 20));
        let answer: Result<Text, _> = client.call_unary("/h2/Echo", &mut large, &options).await;
        assert_eq!(answer, Ok(large));
        for (path, code, message) in [
            ("/h2/TrailersOnly", GrpcCode(9), "not now"),
            (
                "/h2/Reset",
                GrpcCode::UNAVAILABLE,
                "stream terminated by RST_STREAM with error code: 7",
            ),
        ] {
            let answer = client
                .call_unary::<Text>(path, &mut text(""), &options)
                .await;
            let status = answer.expect_err("refused");
            assert_eq!((status.code, status.message.as_str()), (code, message));
        }
        let short = CallOptions {
            timeout: Some(Duration::from_millis(10)),
            ..CallOptions::default()
        };
        let answer = client
            .call_unary::<Text>("/h2/Never", &mut text(""), &short)
            .await;
        assert_eq!(answer.expect_err("late").code, GrpcCode::DEADLINE_EXCEEDED);
        // At once, though seven streams are all there is.
        let executor = LocalExecutor::new();
        let calls: Vec<_> = (0..50)
            .map(|n: u32| {
                let client = client.clone();
                executor.spawn(async move {
                    let mut asked = text(&n.to_string().repeat(10_000));
                    let options = CallOptions::default();
                    let answer = client
                        .call_unary::<Text>("/h2/Echo", &mut asked, &options)
                        .await;
                    assert_eq!(answer, Ok(asked));
                })
            })
            .collect();
        executor
            .run(async {
                for call in calls {
                    call.await;
                }
            })
            .await;
    });
}

type Requests = SendRequest<Bytes>;

/// Runs what asks a server of ours through h2.
fn ask<F: Future>(handler: server::CallHandler, ask: impl FnOnce(Requests) -> F) -> F::Output {
    let executor = LocalExecutor::new();
    let (ours, theirs) = pair();
    let serve = server::serve_calls(ours, handler, Rc::new(Clock { speed: 1 }));
    executor.spawn(serve).detach();
    smol::block_on(executor.run(async {
        let (requests, connection) = h2::client::handshake(Pipe(theirs))
            .await
            .expect("handshake");
        executor.spawn(async { drop(connection.await) }).detach();
        ask(requests).await
    }))
}

fn request(path: &str) -> http::request::Builder {
    Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers")
}

/// Asks once: status code of gRPC, message, and what was answered.
async fn call(
    requests: &Requests,
    request: http::request::Builder,
    body: &[u8],
) -> (String, String, Vec<u8>) {
    let mut requests = requests.clone().ready().await.expect("room");
    let request = request.body(()).expect("a request");
    let (response, mut stream) = requests.send_request(request, false).expect("sent");
    write(&mut stream, wrap_message(body), true).await;
    let response = response.await.expect("an answer");
    let head = response.headers().clone();
    let mut body = response.into_body();
    let mut bytes = &read(&mut body).await.expect("a body")[..];
    let trailers = body.trailers().await.expect("trailers");
    let fields = trailers.unwrap_or(head);
    let value = |name: &str| {
        let value = fields.get(name).map(|value| value.to_str().expect("text"));
        value.unwrap_or_default().to_owned()
    };
    let message = EnvelopeReader::default()
        .take_message(&mut bytes)
        .expect("a message");
    (
        value("grpc-status"),
        value("grpc-message"),
        message.unwrap_or_default(),
    )
}

#[test]
fn their_client_and_our_server() {
    let (handler, working) = service();
    ask(handler, async |requests| {
        for n in 0..300 {
            let mut asked = text(&n.to_string());
            let head = request("/test.Echo/Once").header("x-test", n);
            let (status, _, answer) = call(&requests, head, &encode(&mut asked)).await;
            let mut read = Text::default();
            decode(&mut read, &answer, Limits::default()).expect("a message");
            assert_eq!((status.as_str(), read), ("0", asked));
        }
        let large = encode(&mut text(&"x".repeat(10 << 20)));
        let (status, _, answer) = call(&requests, request("/test.Echo/Once"), &large).await;
        assert_eq!((status.as_str(), answer == large), ("0", true));
        for (path, code, message) in [
            (
                "/test.Echo/Refused",
                "5",
                "no \"pod\" of 100 %25, n%C3%A9%0A",
            ),
            ("/a.B/C", "12", "unknown method /a.B/C"),
        ] {
            let (status, text, _) = call(&requests, request(path), b"").await;
            assert_eq!((status.as_str(), text.as_str()), (code, message));
        }
        // The server keeps the time that it is told, and lets go of what is given up.
        let head = request("/test.Echo/Never").header("grpc-timeout", "20m");
        assert_eq!(call(&requests, head, b"").await.0, "4");
        let head = request("/test.Echo/Never").header("grpc-timeout", "20x");
        assert_eq!(call(&requests, head, b"").await.0, "13");
        smol::future::or(
            async { drop(call(&requests, request("/test.Echo/Never"), b"").await) },
            super::calls::until(|| working.get() == 1),
        )
        .await;
        super::calls::until(|| working.get() == 0).await;
    });
}

#[test]
fn what_is_no_call_is_told_so() {
    ask(service().0, async |requests| {
        let other = Request::get("http://localhost/a").header("content-type", "application/grpc");
        let plain = Request::post("http://localhost/a").header("content-type", "text/plain");
        for (head, want) in [(other, 405), (plain, 415)] {
            let mut requests = requests.clone().ready().await.expect("room");
            let head = head.body(()).expect("a request");
            let (response, _) = requests.send_request(head, true).expect("sent");
            assert_eq!(response.await.expect("an answer").status(), want);
        }
    });
}
