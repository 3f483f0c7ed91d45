//! Asks an apiserver as its administrator: one connection for each request, JSON both ways.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    time_provider::TimeProvider,
};
use serde_json::{Value, json};

use crate::Failure;

/// Longest wait for a connection, and for each part of an answer.
const LIMIT: Duration = Duration::from_secs(20);
/// Most bytes read of an answer.
const ANSWER_LIMIT: u64 = 64 * 1024 * 1024;

/// A time at which certificates are judged.
#[derive(Debug)]
struct Then(UnixTime);

impl TimeProvider for Then {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

/// Who asks, and whom.
#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
}

/// What came back.
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) body: Value,
}

impl Answer {
    /// The body, if it was a success.
    pub(super) fn ok(self) -> Result<Value, Failure> {
        if (200..300).contains(&self.code) {
            Ok(self.body)
        } else {
            Err(format!("{}: {}", self.code, self.body["message"]).into())
        }
    }
}

impl Client {
    /// Of a kubeconfig written as JSON, with a client certificate in it and a server at an address.
    pub(super) fn of_kubeconfig(text: &str) -> Result<Self, Failure> {
        let config: Value = serde_json::from_str(text)?;
        let cluster = &config["clusters"][0]["cluster"];
        let user = &config["users"][0]["user"];
        let data = |value: &Value| -> Result<Vec<u8>, Failure> {
            Ok(STANDARD.decode(value.as_str().ok_or("the kubeconfig lacks data")?)?)
        };
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(&data(&cluster["certificate-authority-data"])?) {
            roots.add(ca?)?;
        }
        let chain = CertificateDer::pem_slice_iter(&data(&user["client-certificate-data"])?)
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&data(&user["client-key-data"])?)?;
        let server = cluster["server"].as_str().unwrap_or_default();
        let address = server
            .strip_prefix("https://")
            .ok_or("the server is not https")?
            .parse()
            .map_err(|e| format!("{server}: {e}"))?;
        // A machine whose clock is set to 1970 for a test believes certificates all the same.
        let now = Arc::new(Then(UnixTime::now()));
        let tls = ClientConfig::builder_with_details(Arc::new(default_provider()), now)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        Ok(Self {
            address,
            tls: Arc::new(tls),
        })
    }

    /// Errors: no answer came. What the answer is worth is the caller's to say.
    pub(super) fn ask(
        &self,
        method: &str,
        path: &str,
        media: &str,
        body: &Value,
    ) -> Result<Answer, Failure> {
        let stream = TcpStream::connect_timeout(&self.address, LIMIT)
            .map_err(|e| format!("{}: {e}", self.address))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let name = ServerName::from(self.address.ip());
        let connection = ClientConnection::new(Arc::clone(&self.tls), name)?;
        let mut stream = StreamOwned::new(connection, stream);
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nUser-Agent: xtask\r\n\
             Content-Type: {media}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        stream.flush()?;
        let mut answer = Vec::new();
        match stream.take(ANSWER_LIMIT).read_to_end(&mut answer) {
            // Ended without a farewell: whether it is whole is seen from its head.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {}
            done => {
                done?;
            }
        }
        parse(&answer).ok_or_else(|| format!("{method} {path}: the answer is not whole").into())
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        self.ask("GET", path, "application/json", &Value::Null)?
            .ok()
            .map_err(|e| format!("GET {path}: {e}").into())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.ask("POST", path, "application/json", body)?
            .ok()
            .map_err(|e| format!("POST {path}: {e}").into())
    }

    pub(crate) fn patch(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.patch_as("application/merge-patch+json", path, body)
    }

    /// Patches items of lists, which are found by their names.
    pub(crate) fn patch_items(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.patch_as("application/strategic-merge-patch+json", path, body)
    }

    fn patch_as(&self, form: &str, path: &str, body: &Value) -> Result<Value, Failure> {
        self.ask("PATCH", path, form, body)?
            .ok()
            .map_err(|e| format!("PATCH {path}: {e}").into())
    }

    /// `grace_s` of none leaves it to the object.
    pub(crate) fn delete(&self, path: &str, grace_s: Option<u32>) -> Result<Value, Failure> {
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1",
            "gracePeriodSeconds": grace_s, "propagationPolicy": "Background",
        });
        self.ask("DELETE", path, "application/json", &options)?
            .ok()
            .map_err(|e| format!("DELETE {path}: {e}").into())
    }

    /// Whether there is nothing at `path`.
    pub(super) fn is_gone(&self, path: &str) -> Result<bool, Failure> {
        let answer = self.ask("GET", path, "application/json", &Value::Null)?;
        if answer.code == 404 {
            return Ok(true);
        }
        answer.ok().map(|_| false)
    }
}

/// Status and body of an HTTP answer that is whole. A body that is no JSON is a string.
fn parse(answer: &[u8]) -> Option<Answer> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let code = head.split(' ').nth(1)?.parse().ok()?;
    let header = |name: &str| {
        head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let mut rest = &answer[end + 4..];
    let mut body = Vec::new();
    if header("Transfer-Encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
        loop {
            let line = rest.windows(2).position(|w| w == b"\r\n")?;
            let size = core::str::from_utf8(&rest[..line]).ok()?;
            let size = usize::from_str_radix(size.split(';').next()?, 16).ok()?;
            rest = &rest[line + 2..];
            if size == 0 {
                break;
            }
            body.extend_from_slice(rest.get(..size)?);
            rest = rest.get(size + 2..)?;
        }
    } else {
        let length = header("Content-Length").and_then(|v| v.parse().ok());
        body.extend_from_slice(rest.get(..length.unwrap_or(rest.len()))?);
    }
    let body = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
    Some(Answer { code, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        for (text, want) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}",
                Some((200, json!({"a": 1}))),
            ),
            (
                "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4;x\r\n\":1}\r\n0\r\n\r\n",
                Some((404, json!({"a": 1}))),
            ),
            ("HTTP/1.1 200 OK\r\n\r\nok", Some((200, json!("ok")))),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", None),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nshort",
                None,
            ),
            ("HTTP/1.1 200 OK\r\n", None),
            ("", None),
        ] {
            let found = parse(text.as_bytes()).map(|a| (a.code, a.body));
            assert_eq!(found, want, "{text:?}");
        }
    }
}
