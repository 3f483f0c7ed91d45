//! An HTTPS client of a few lines, which shows what goes over the wire.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::{Credentials, TestServer};

const LIMIT: Duration = Duration::from_mins(2);

/// A user of a server, on one connection that is opened anew when it ended.
pub(super) struct Client {
    config: Arc<ClientConfig>,
    port: u16,
    pub(super) token: Option<String>,
    pub(super) accept: String,
    pub(super) gzip: bool,
    stream: Option<StreamOwned<ClientConnection, TcpStream>>,
    buffer: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) code: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Got {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map_or("", |(_, v)| v.as_str())
    }

    /// The answer as JSON; panics when its status is another.
    pub(super) fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The message of a refusal with that status.
    pub(super) fn refusal(self, code: u16) -> String {
        let value = self.expect(code);
        assert_eq!(value["kind"], "Status");
        assert_eq!(value["code"], code);
        value["message"].as_str().unwrap_or("").to_owned()
    }
}

impl Client {
    fn with(server: &TestServer, credentials: Option<&Credentials>) -> Self {
        Self::to(server.ca_pem(), server.port(), credentials)
    }

    /// Of any server on this machine.
    pub(super) fn to(ca_pem: &str, port: u16, credentials: Option<&Credentials>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes()).expect("ca");
        roots.add(ca).expect("ca");
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let config = match credentials {
            Some(c) => {
                let cert =
                    CertificateDer::from_pem_slice(c.certificate.as_bytes()).expect("certificate");
                let key = PrivateKeyDer::from_pem_slice(c.key.as_bytes()).expect("key");
                config
                    .with_client_auth_cert(vec![cert], key)
                    .expect("client")
            }
            None => config.with_no_client_auth(),
        };
        Self {
            config: Arc::new(config),
            port,
            token: None,
            accept: String::new(),
            gzip: false,
            stream: None,
            buffer: Vec::new(),
        }
    }

    pub(super) fn user(server: &TestServer, name: &str, groups: &[&str]) -> Self {
        let credentials = server
            .credentials(name, groups, Duration::from_secs(3600))
            .expect("credentials");
        Self::with(server, Some(&credentials))
    }

    pub(super) fn certificate(server: &TestServer, credentials: &Credentials) -> Self {
        Self::with(server, Some(credentials))
    }

    pub(super) fn admin(server: &TestServer) -> Self {
        Self::user(server, "admin", &["system:masters"])
    }

    pub(super) fn node(server: &TestServer, name: &str) -> Self {
        Self::user(server, &format!("system:node:{name}"), &["system:nodes"])
    }

    pub(super) fn anonymous(server: &TestServer) -> Self {
        Self::with(server, None)
    }

    pub(super) fn token(server: &TestServer, token: &str) -> Self {
        let mut client = Self::with(server, None);
        client.token = Some(token.to_owned());
        client
    }

    fn open(&mut self) -> io::Result<()> {
        if self.stream.is_none() {
            let tcp = TcpStream::connect(("127.0.0.1", self.port))?;
            tcp.set_read_timeout(Some(LIMIT))?;
            tcp.set_nodelay(true)?;
            let name = ServerName::try_from("localhost").expect("name");
            let conn =
                ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
            self.stream = Some(StreamOwned::new(conn, tcp));
            self.buffer.clear();
        }
        Ok(())
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        let stream = self.stream.as_mut().expect("open");
        match stream.read(&mut chunk)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.buffer.extend_from_slice(&chunk[..n]);
                Ok(())
            }
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.fill()?;
        }
    }

    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            self.fill()?;
        }
        Ok(self.buffer.drain(..length).collect())
    }

    /// One chunk; empty at the end of the body.
    fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let size = usize::from_str_radix(self.line()?.trim(), 16).map_err(io::Error::other)?;
        let data = self.take(size)?;
        self.line()?;
        Ok(data)
    }

    /// Sends a request and reads the head of the answer.
    fn head(&mut self, method: &str, uri: &str, media: &str, body: &[u8]) -> io::Result<Got> {
        self.open()?;
        let mut head =
            format!("{method} {uri} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\n");
        if !self.accept.is_empty() {
            head.push_str(&format!("Accept: {}\r\n", self.accept));
        }
        if self.gzip {
            head.push_str("Accept-Encoding: gzip\r\n");
        }
        if let Some(token) = &self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("Content-Type: {media}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let stream = self.stream.as_mut().expect("open");
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        stream.flush()?;
        let status = self.line()?;
        let code = status
            .split(' ')
            .nth(1)
            .and_then(|c| c.parse().ok())
            .ok_or(io::ErrorKind::InvalidData)?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Ok(Got {
            code,
            headers,
            body: Vec::new(),
        })
    }

    pub(super) fn try_send(
        &mut self,
        method: &str,
        uri: &str,
        media: &str,
        body: &[u8],
    ) -> io::Result<Got> {
        let outcome = (|| {
            let mut got = self.head(method, uri, media, body)?;
            if got.header("transfer-encoding") == "chunked" {
                loop {
                    let chunk = self.chunk()?;
                    if chunk.is_empty() {
                        break;
                    }
                    got.body.extend(chunk);
                }
            } else if method != "HEAD" {
                let length = got
                    .header("content-length")
                    .parse()
                    .map_err(io::Error::other)?;
                got.body = self.take(length)?;
            }
            if got.header("content-encoding") == "gzip" {
                let mut plain = Vec::new();
                flate2::read::GzDecoder::new(&*got.body).read_to_end(&mut plain)?;
                got.body = plain;
            }
            Ok(got)
        })();
        if outcome.is_err() {
            self.stream = None;
        }
        outcome
    }

    pub(super) fn send(&mut self, method: &str, uri: &str, body: &Value) -> Got {
        let media = if method == "PATCH" {
            "application/strategic-merge-patch+json"
        } else {
            "application/json"
        };
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.try_send(method, uri, media, body.as_bytes())
            .expect("answer")
    }

    pub(super) fn get(&mut self, uri: &str) -> Got {
        self.send("GET", uri, &Value::Null)
    }

    /// Begins a watch; lines come from [`Client::event`].
    pub(super) fn watch(&mut self, uri: &str) -> Got {
        self.head("GET", uri, "", b"").expect("head")
    }

    /// The next event of a watch: type and object; none at its end.
    pub(super) fn event(&mut self) -> io::Result<Option<(String, Value)>> {
        let chunk = self.chunk()?;
        if chunk.is_empty() {
            return Ok(None);
        }
        let value: Value = serde_json::from_slice(&chunk).map_err(io::Error::other)?;
        let ty = value["type"].as_str().unwrap_or("").to_owned();
        Ok(Some((ty, value["object"].clone())))
    }
}
