//! Pods as an answer: written one by one, so that a node of many pods needs the memory of one.

use core::{fmt::Write as _, time::Duration};
use std::io;

use super::{
    ServeOutcome,
    backend::ServerBackend,
    http::{self, StreamConnection},
};

/// A client takes each pod within this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Metadata of a list on the local socket, as the CLI prints it.
pub(super) const LOCAL_META: &str = r#"{"resourceVersion":""}"#;

/// Answers with a `PodList` of that metadata.
pub(super) async fn serve_pod_list(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    namespace: Option<&str>,
    metadata: &str,
) -> ServeOutcome {
    let uids = match backend.pod_uids(namespace).await {
        Ok(uids) => uids,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut stream = http::start_answer_stream(connection, "application/json").await?;
    let mut text =
        format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{metadata},"items":["#);
    let mut comma = "";
    for uid in uids {
        // A pod that went meanwhile is left out.
        let Ok(Some(pod)) = backend.pod_object(&uid).await else {
            continue;
        };
        let _ = write!(text, "{comma}{pod}");
        comma = ",";
        let late = async {
            async_io::Timer::after(PATIENCE).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        smol::future::or(stream.send_bytes(text.as_bytes()), late).await?;
        text.clear();
    }
    stream.send_bytes(text.as_bytes()).await?;
    stream.send_bytes(b"]}\n").await?;
    stream.finish_answer().await.map(Ok)
}

#[cfg(test)]
mod tests {
    use smol::io::AsyncReadExt as _;

    use super::{
        super::{connection::testing, testing::FakeBackend},
        *,
    };

    #[test]
    fn a_pod_that_went_is_left_out() {
        let backend = FakeBackend::default();
        let (mut connection, mut client) = testing::pair();
        let text = smol::block_on(async move {
            let served = serve_pod_list(&backend, &mut connection, None, "{}").await;
            assert!(matches!(served, Ok(Ok(()))));
            drop(connection);
            let mut text = String::new();
            client.read_to_string(&mut text).await.expect("answer");
            text
        });
        let (_, body) = text.split_once("\r\n\r\n").expect("a body");
        let list: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(list["items"].as_array().map(Vec::len), Some(2), "{list}");
    }
}
