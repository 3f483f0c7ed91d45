//! This crate's client and server with each other.

use core::{cell::Cell, future::pending, time::Duration};
use std::rc::Rc;

use picolet_grpc::{
    client::{CallOptions, ClientCall, GrpcClient},
    envelope::MAX_MESSAGE_BYTES,
    server::{CallHandler, ServerCall},
    status::{GrpcCode, GrpcStatus},
};
use smol::future::{or, yield_now};

use super::{Text, text, with_server};

/// Counts handlers that are at work.
struct Working(Rc<Cell<usize>>);

impl Working {
    fn begin(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(count.clone())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

pub(crate) async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        smol::Timer::after(Duration::from_millis(1)).await;
    }
}

/// A service of all kinds of methods, and the number of handlers at work.
pub(crate) fn service() -> (CallHandler, Rc<Cell<usize>>) {
    let count = Rc::new(Cell::new(0));
    let working = count.clone();
    let handler: CallHandler = Rc::new(move |mut exchange: ServerCall| {
        let working = Working::begin(&working);
        Box::pin(async move {
            let _working = working;
            let path = exchange.method_path().to_owned();
            match path.as_str() {
                "/test.Echo/Once" => {
                    let mut asked: Text = exchange.single_request().await?;
                    exchange.send_answer(&mut asked).await
                }
                "/test.Echo/Many" => {
                    let asked: Text = exchange.single_request().await?;
                    for number in 0..asked.number {
                        let mut answer = Text {
                            number,
                            ..asked.clone()
                        };
                        exchange.send_answer(&mut answer).await?;
                    }
                    Ok(())
                }
                "/test.Echo/Each" => {
                    while let Some(message) = exchange.next_message().await? {
                        exchange.send_message(&message).await?;
                    }
                    Ok(())
                }
                "/test.Echo/Metadata" => {
                    let sent = exchange.metadata().iter().find(|(n, _)| n == b"x-test");
                    let sent = sent.map(|(_, v)| String::from_utf8_lossy(v).into_owned());
                    exchange
                        .send_answer(&mut text(&sent.unwrap_or_default()))
                        .await
                }
                "/test.Echo/Never" => pending().await,
                "/test.Echo/Refused" => Err(GrpcStatus::new(
                    GrpcCode::NOT_FOUND,
                    "no \"pod\" of 100 %, né\n",
                )),
                other => {
                    let text = format!("unknown method {other}");
                    Err(GrpcStatus::new(GrpcCode::UNIMPLEMENTED, text))
                }
            }
        })
    });
    (handler, count)
}

async fn once(client: &GrpcClient, mut request: Text) -> Result<Text, GrpcStatus> {
    let options = CallOptions::default();
    client
        .call_unary("/test.Echo/Once", &mut request, &options)
        .await
}

async fn begin(client: &GrpcClient, path: &str) -> ClientCall {
    let call = client.begin_call(path, &CallOptions::default()).await;
    call.expect("a call")
}

#[test]
fn all_kinds_of_methods() {
    with_server(service().0, 1, async |client| {
        assert_eq!(once(&client, text("a")).await, Ok(text("a")));
        let mut request = Text {
            text: "b".into(),
            number: 3,
        };
        let options = CallOptions::default();
        let call = client.call_streaming("/test.Echo/Many", &mut request, &options);
        let mut call = call.await.expect("a call");
        for number in 0..3 {
            let answer = call
                .next_answer::<Text>()
                .await
                .expect("well")
                .expect("more");
            assert_eq!((answer.number, answer.text.as_str()), (number, "b"));
        }
        assert_eq!(call.next_answer::<Text>().await, Ok(None));
        let mut call = begin(&client, "/test.Echo/Each").await;
        for message in [&b"x"[..], b"", &[7; 300_000]] {
            call.send_message(message).await.expect("sent");
            assert_eq!(call.next_message().await, Ok(Some(message.to_vec())));
        }
        call.finish_sending();
        assert_eq!(call.next_message().await, Ok(None));
        let options = CallOptions {
            metadata: vec![(b"x-test".to_vec(), b"value".to_vec())],
            timeout: Some(Duration::from_secs(60)),
            ..CallOptions::default()
        };
        let answer = client.call_unary("/test.Echo/Metadata", &mut text(""), &options);
        assert_eq!(answer.await, Ok(text("value")));
    });
}

#[test]
fn failures_say_why() {
    with_server(service().0, 1, async |client| {
        let options = CallOptions::default();
        for (path, code, message) in [
            (
                "/test.Echo/Refused",
                GrpcCode::NOT_FOUND,
                "no \"pod\" of 100 %, né\n",
            ),
            ("/a.B/C", GrpcCode::UNIMPLEMENTED, "unknown method /a.B/C"),
        ] {
            let answer = client
                .call_unary::<Text>(path, &mut text(""), &options)
                .await;
            assert_eq!(answer, Err(GrpcStatus::new(code, message)));
        }
        // More than one answer, or none, is no answer to a question.
        for number in [0, 2] {
            let mut request = Text {
                text: String::new(),
                number,
            };
            let answer = client.call_unary::<Text>("/test.Echo/Many", &mut request, &options);
            assert_eq!(answer.await.map_err(|e| e.code), Err(GrpcCode::INTERNAL));
        }
        let mut call = begin(&client, "/test.Echo/Once").await;
        call.send_message(b"\xff").await.expect("sent");
        call.finish_sending();
        let status = call.next_message().await.expect_err("no message");
        assert_eq!(status.code, GrpcCode::INTERNAL);
        assert_eq!(once(&client, text("still")).await, Ok(text("still")));
    });
}

#[test]
fn what_takes_too_long_or_is_dropped_is_given_up_on_both_sides() {
    let (handler, working) = service();
    with_server(handler, 1, async |client| {
        let options = CallOptions {
            timeout: Some(Duration::from_millis(20)),
            ..CallOptions::default()
        };
        let answer = client.call_unary::<Text>("/test.Echo/Never", &mut text(""), &options);
        let status = answer.await.expect_err("never");
        assert_eq!(status.code, GrpcCode::DEADLINE_EXCEEDED);
        until(|| working.get() == 0).await;
        let forever = CallOptions::default();
        let asked = async {
            let answer = client.call_unary::<Text>("/test.Echo/Never", &mut text(""), &forever);
            let _ = answer.await;
        };
        or(asked, until(|| working.get() == 1)).await;
        until(|| working.get() == 0).await;
        assert_eq!(once(&client, text("on")).await, Ok(text("on")));
    });
}

#[test]
fn large_messages() {
    with_server(service().0, 1, async |client| {
        let large = text(&"x".repeat(MAX_MESSAGE_BYTES - 100));
        assert_eq!(once(&client, large.clone()).await, Ok(large));
        let mut call = begin(&client, "/test.Echo/Each").await;
        call.send_message(&vec![0; MAX_MESSAGE_BYTES + 1])
            .await
            .expect("sent");
        let status = call.next_message().await.expect_err("too large");
        assert_eq!(status.code, GrpcCode::RESOURCE_EXHAUSTED);
        assert_eq!(once(&client, text("on")).await, Ok(text("on")));
    });
}

#[test]
fn a_reader_that_sleeps_loses_its_call_and_holds_up_nobody() {
    let (handler, working) = service();
    with_server(handler, 100, async |client| {
        let mut request = Text {
            text: "x".repeat(100),
            number: 1_000_000,
        };
        let options = CallOptions::default();
        let call = client.call_streaming("/test.Echo/Many", &mut request, &options);
        let mut sleeper = call.await.expect("a call");
        for _ in 0..200 {
            assert_eq!(once(&client, text("a")).await, Ok(text("a")));
        }
        // Read in time, it goes on; not read at all, it ends.
        for number in 0..5000 {
            let answer = sleeper.next_answer::<Text>().await.expect("in time");
            assert_eq!(answer.expect("more").number, number);
        }
        until(|| working.get() == 0).await;
        let status = sleeper.next_answer::<Text>().await.expect_err("too late");
        assert_eq!(status.code, GrpcCode::RESOURCE_EXHAUSTED);
        // One that reads gets all.
        request.number = 20_000;
        let call = client.call_streaming("/test.Echo/Many", &mut request, &options);
        let mut reader = call.await.expect("a call");
        let mut count = 0;
        while let Some(answer) = reader.next_answer::<Text>().await.expect("well") {
            assert_eq!(answer.number, count);
            count += 1;
        }
        assert_eq!(count, 20_000);
    });
}

#[test]
fn more_calls_than_streams() {
    let (handler, working) = service();
    let executor = smol::LocalExecutor::new();
    with_server(handler, 1, async |client| {
        let never = |client: GrpcClient| async move {
            let options = CallOptions::default();
            let answer = client.call_unary::<Text>("/test.Echo/Never", &mut text(""), &options);
            answer.await.expect_err("dropped")
        };
        let calls: Vec<_> = (0..150)
            .map(|_| executor.spawn(never(client.clone())))
            .collect();
        let full = async {
            until(|| working.get() == 100).await;
            // As each is given up, another has its turn.
            for call in calls.into_iter().take(149) {
                drop(call);
                yield_now().await;
            }
            until(|| working.get() == 0).await;
        };
        executor.run(full).await;
        assert_eq!(once(&client, text("on")).await, Ok(text("on")));
    });
}

#[test]
fn a_connection_that_ends() {
    let silent = |theirs, executor: Rc<smol::LocalExecutor<'static>>| {
        executor
            .spawn(async move {
                smol::Timer::after(Duration::from_millis(20)).await;
                drop::<smol::Async<_>>(theirs);
            })
            .detach();
    };
    super::speak(1, silent, async |client| {
        let status = once(&client, text("a")).await.expect_err("nobody is there");
        assert_eq!(status.code, GrpcCode::UNAVAILABLE);
        assert!(client.is_leaving());
        let status = once(&client, text("a")).await.expect_err("still nobody");
        assert_eq!(status.code, GrpcCode::UNAVAILABLE);
    });
}
