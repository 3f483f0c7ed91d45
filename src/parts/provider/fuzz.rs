//! Entry points of the fuzz targets for answers and streams of providers. See [`crate::fuzz`].

use core::future::poll_fn;
use std::{io::Write as _, os::unix::net::UnixStream};

use async_io::Async;

use super::{frames::FramedConnection, socket::StreamedBody};
use crate::{
    api::{WallTime, strict},
    logic::provider::{
        ID_PREFIX, MAX_CONTAINERS, MAX_PODS, ProviderPodList, ProviderPodReport, ProviderPodTable,
    },
    runtime::{OutputRead, OutputRoom},
};

/// Most bytes of input: a pair of sockets holds as many without a reader.
const MAX_INPUT_BYTES: usize = 64 * 1024;

/// Makes a connection on which all of `data` waits, and the end.
fn sent(data: &[u8]) -> Async<UnixStream> {
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    theirs.write_all(data).expect("it fits");
    Async::new(ours).expect("a socket")
}

/// Reads an answer of a provider as a list, as an acknowledgement and as last words.
pub(crate) fn words(data: &[u8]) -> String {
    const NOW: WallTime = WallTime::from_unix_seconds(1_700_000_000);
    let said: serde_json::Value = match strict::from_foreign_json(data) {
        Ok(said) => said,
        Err(e) => return e.to_string(),
    };
    let pod = serde_json::json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c"}, {"name": "d"}]},
    });
    let mut table = ProviderPodTable::default();
    table.expect_pod(&strict::typed_from_value(&pod).expect("a pod"));
    let whole = |table: &ProviderPodTable| {
        let pods = table.pod_items();
        assert!(pods.len() <= MAX_PODS + 1);
        for pod in pods {
            let status = table.pod_status(&pod.uid).expect("it is listed");
            assert!(status.containers.len() <= MAX_CONTAINERS);
            for sandbox in &status.sandboxes {
                assert_eq!(table.find_sandbox_pod(&sandbox.id).as_ref(), Some(&pod.uid));
            }
            for container in &status.containers {
                assert!(container.id.as_str().starts_with(ID_PREFIX));
                let (_, name) = table.find_container(&container.id).expect("it is there");
                assert!(
                    pod.uid.as_str() != "u" || ["c", "d"].contains(&&*name),
                    "{name}"
                );
            }
        }
    };
    let listed = ProviderPodList::parse(&said).and_then(|list| {
        let begun = table.begin_list();
        let news = table.take_pod_list(begun, list.clone(), "node", NOW)?;
        let begun = table.begin_list();
        let again = table.take_pod_list(begun, list, "node", NOW)?;
        assert!(!again.changed && again.bad.is_empty(), "{again:?}");
        Ok(news.bad.into_iter().next().map(|bad| bad.why))
    });
    whole(&table);
    let uid = "u".into();
    let one = ProviderPodReport::parse(&said).map(|one| {
        let bad = table.record_acknowledgement(&uid, "g", one.status.clone(), NOW);
        whole(&table);
        table.record_removal(&uid, Some(one.status), NOW);
        whole(&table);
        assert!(table.is_gone(&uid) && table.has_ended(&uid));
        bad.into_iter().next().map(|bad| bad.why)
    });
    format!("{listed:?} {one:?}")
}

/// Reads an answer if the first byte is even, else frames.
pub(crate) fn run(data: &[u8]) -> String {
    let Some((choice, data)) = data.split_first() else {
        return String::new();
    };
    let data = &data[..data.len().min(MAX_INPUT_BYTES)];
    if choice % 2 == 0 {
        return smol::block_on(answer(data));
    }
    let whole = smol::block_on(frames(data, MAX_INPUT_BYTES));
    let size = 1 + usize::from(*choice) / 2;
    let pieces = smol::block_on(frames(data, size));
    assert_eq!(whole, pieces, "by {size}");
    let (out, err, end) = whole;
    format!("{} {} {end}", out.is_empty(), err.is_empty())
}

async fn answer(data: &[u8]) -> String {
    let mut body = StreamedBody::from_connection(sent(data));
    let status = match body.read_head().await {
        Ok(status) => status,
        Err(e) => return e.to_string(),
    };
    let mut all = 0;
    let end = loop {
        match body.next_piece().await {
            Ok(Some(piece)) => {
                assert!(!piece.is_empty(), "a piece is something");
                all += piece.len();
            }
            Ok(None) => break String::new(),
            Err(e) => break e.to_string(),
        }
    };
    assert!(all <= data.len());
    format!("{} {} {end}", status / 100, all > 0)
}

/// Reads output, errors and the end, `size` bytes at a time.
async fn frames(data: &[u8], size: usize) -> (Vec<u8>, Vec<u8>, String) {
    let session = FramedConnection::open_session(sent(data));
    let (mut streams, end) = (session.streams, session.end);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; size];
    let room = OutputRoom {
        stdout: size,
        stderr: size,
    };
    loop {
        match poll_fn(|cx| streams.poll_output(cx, room, &mut buffer)).await {
            Ok(OutputRead::Stdout(n)) => out.extend_from_slice(&buffer[..n]),
            Ok(OutputRead::Stderr(n)) => err.extend_from_slice(&buffer[..n]),
            Ok(OutputRead::End) => break,
            Err(e) => return (out, err, e.to_string()),
        }
    }
    assert!(out.len() + err.len() <= data.len());
    let end = end.await;
    (
        out,
        err,
        end.map_or_else(|e| e.to_string(), |_| "ended".into()),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    /// Inputs to start from.
    pub(crate) fn seeds() -> Vec<Vec<u8>> {
        let frame = |channel: u8, bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).expect("short");
            [&[channel][..], &length.to_be_bytes(), bytes].concat()
        };
        let head = |more: &str| format!("HTTP/1.1 200 OK\r\npicolet-provider: 1\r\n{more}\r\n");
        let answer = |text: String| [&[0], text.as_bytes()].concat();
        let frames = |all: &[Vec<u8>]| [&[7][..], &all.concat()].concat();
        vec![
            answer(head("Content-Length: 5\r\n") + "hello"),
            answer(head("Transfer-Encoding: chunked\r\n") + "5;x=1\r\nhello\r\nb\r\n to the lamp\r\n0\r\n\r\n"),
            answer(head("") + "to the end"),
            answer("HTTP/1.1 101 Switching\r\npicolet-provider: 1\r\nUpgrade: picolet-stream\r\n\r\nbytes".into()),
            frames(&[
                frame(1, b"out"),
                frame(2, b"err"),
                frame(1, b""),
                frame(3, br#"{"exitCode": 3}"#),
            ]),
            frames(&[frame(1, &[b'x'; 300]), frame(3, br#"{"error": "why"}"#)]),
        ]
    }
}
