//! Manifests at a URL, as a poller sees them (SRC-22 to SRC-24).

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::http::{DocumentAnswer, DocumentClient, DocumentLocation, DocumentTags, HttpError};
use super::manifest::{self, ManifestError};
use super::{KeyRule, PodRule, SourceProblem, SourceReading, SourceSnapshot};
use crate::api::encode_hex;
use crate::api::received::SnapshotEntry;
use crate::config::decode::MAX_DOCUMENT_BYTES;
use crate::sys::{clock, file};

/// Version of the form of a copy.
const COPY_VERSION: u32 = 1;
/// Longest head of a copy, bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;

/// Looks at a URL.
///
/// - An answer counts only if it is whole and all its pods are valid: one that is missing, late, wrong or too large
///   changes nothing. An empty one means: no pods.
/// - A server that knows the state of its document sends it once.
/// - The last good answer is on disk. An agent that gets no answer at its start begins with that.
///
/// Blocking, and for some seconds: belongs on a lane of its own.
#[derive(Debug)]
pub struct ManifestUrl {
    client: DocumentClient,
    /// Name of the node.
    node: String,
    rules: (PodRule, KeyRule),
    /// File with the last good answer.
    copy: PathBuf,
    copy_was_read: bool,
    /// Set if the last copy could not be written.
    unwritten: bool,
    last: Option<LastDocument>,
    /// Set if the agent has been told the pods.
    told: bool,
    trouble: Option<ManifestUrlFault>,
}

/// Last document of the server, as far as it is known.
#[derive(Debug)]
struct LastDocument {
    tags: DocumentTags,
    sum: String,
    /// Reason why the document cannot be used.
    wrong: Option<String>,
}

/// Fault of the server, as last reported. A fault that repeats is reported once.
#[derive(Debug, PartialEq, Eq)]
enum ManifestUrlFault {
    /// The server does not answer, for whatever reason.
    Link,
    /// The answer cannot be used.
    Answer(String),
}

/// An earlier good answer, as it was kept.
struct DocumentCopy {
    head: CopyHead,
    document: Vec<u8>,
}

/// First line of a copy's file; the document follows.
#[derive(Serialize, Deserialize)]
struct CopyHead {
    v: u32,
    url: String,
    /// SHA-256 of the document, hexadecimal.
    sum: String,
    tags: DocumentTags,
    /// Time at which the document was read, for people.
    at: String,
}

impl ManifestUrl {
    /// Makes a source that has not asked yet. `node` is the node's name; `copy` the file for the last good answer.
    #[must_use]
    pub const fn new(
        place: DocumentLocation,
        node: String,
        rules: (PodRule, KeyRule),
        copy: PathBuf,
    ) -> Self {
        Self {
            client: DocumentClient::new(place),
            node,
            rules,
            copy,
            copy_was_read: false,
            unwritten: false,
            last: None,
            told: false,
            trouble: None,
        }
    }

    /// Has the next look deliver every pod anew.
    pub const fn forget_reads(&mut self) {
        self.told = false;
    }

    /// Looks at the URL.
    pub fn read_source(&mut self) -> SourceReading {
        if !core::mem::replace(&mut self.copy_was_read, true) {
            self.last = self.read_kept_copy().map(|copy| LastDocument {
                tags: copy.head.tags,
                sum: copy.head.sum,
                wrong: None,
            });
        }
        let tags = self.last.as_ref().map(|last| last.tags.clone());
        match self.client.fetch_document(&tags.unwrap_or_default()) {
            Ok(DocumentAnswer::Same) => self.take_unchanged(),
            Ok(DocumentAnswer::Body(document, tags)) => self.take_document(&document, tags),
            Err(why @ HttpError::Link(_)) => {
                self.fail_read(ManifestUrlFault::Link, why.to_string())
            }
            Err(why) => self.fail_read(ManifestUrlFault::Answer(why.to_string()), why.to_string()),
        }
    }

    /// Takes the answer that the document is unchanged.
    fn take_unchanged(&mut self) -> SourceReading {
        let Some(last) = &self.last else {
            return SourceReading::Unchanged;
        };
        if let Some(wrong) = last.wrong.clone() {
            return self.fail_read(ManifestUrlFault::Answer(wrong.clone()), wrong);
        }
        if !self.told {
            let copy = self
                .read_kept_copy()
                .filter(|copy| copy.head.sum == last.sum);
            if let Some(Ok((pods, _))) = copy.map(|copy| self.decode_pods(&copy.document)) {
                self.record_recovery();
                return self.deliver_pods(pods, Vec::new());
            }
            // The document was not kept, or this agent cannot use it: the next look fetches it.
            self.last = None;
            return self.read_source();
        }
        self.record_recovery();
        SourceReading::Unchanged
    }

    /// Takes a document that the server has sent.
    fn take_document(&mut self, document: &[u8], tags: DocumentTags) -> SourceReading {
        let sum = document_sum(document);
        if document.is_empty() {
            // The empty document is not remembered: the one before it may come back (SRC-23).
            self.last = None;
            let trouble = ManifestUrlFault::Answer(String::new());
            let new =
                self.trouble.replace(trouble) != Some(ManifestUrlFault::Answer(String::new()));
            if self.told && !new {
                return SourceReading::Unchanged;
            }
            let mut problems = self.keep_document(document, DocumentTags::default(), sum);
            problems.push(SourceProblem {
                new,
                ..self.source_problem("answers with an empty document: its pods end".into())
            });
            return self.deliver_pods(Vec::new(), problems);
        }
        if let Some(last) = self.last.as_mut().filter(|last| last.sum == sum) {
            last.tags = tags.clone();
            if self.told || last.wrong.is_some() {
                return self.take_unchanged();
            }
        }
        match self.decode_pods(document) {
            Ok((pods, notes)) => {
                self.last = Some(LastDocument {
                    tags: tags.clone(),
                    sum: sum.clone(),
                    wrong: None,
                });
                self.record_recovery();
                let mut problems = self.keep_document(document, tags, sum);
                problems.extend(notes.into_iter().map(|note| SourceProblem {
                    fatal: false,
                    ..self.source_problem(note)
                }));
                self.deliver_pods(pods, problems)
            }
            Err(why) => {
                let wrong = why.message();
                self.last = Some(LastDocument {
                    tags,
                    sum,
                    wrong: Some(wrong.clone()),
                });
                self.fail_read(ManifestUrlFault::Answer(wrong.clone()), wrong)
            }
        }
    }

    fn decode_pods(
        &self,
        document: &[u8],
    ) -> Result<(Vec<SnapshotEntry>, Vec<String>), ManifestError> {
        if document.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let url = self.client.document_url().to_string();
        manifest::decode_pods(document, &self.node, &url, self.rules)
    }

    fn deliver_pods(
        &mut self,
        pods: Vec<SnapshotEntry>,
        problems: Vec<SourceProblem>,
    ) -> SourceReading {
        self.told = true;
        SourceReading::Snapshot(SourceSnapshot {
            pods,
            problems,
            ..SourceSnapshot::default()
        })
    }

    /// Reports a failed look. Nothing changes, but if the agent has not been told anything yet, it begins with the last
    /// good answer.
    fn fail_read(&mut self, trouble: ManifestUrlFault, message: String) -> SourceReading {
        let new = self.trouble.as_ref() != Some(&trouble);
        self.trouble = Some(trouble);
        let mut problem = SourceProblem {
            new,
            ..self.source_problem(message)
        };
        if !self.told
            && let Some(copy) = self.read_kept_copy()
            && let Ok((pods, _)) = self.decode_pods(&copy.document)
        {
            problem.message = format!(
                "{}; its answer of {} stays in use",
                problem.message, copy.head.at
            );
            return self.deliver_pods(pods, vec![problem]);
        }
        SourceReading::Failed(problem)
    }

    /// Notes that the server gives good answers again.
    fn record_recovery(&mut self) {
        if self.trouble.take().is_some() {
            log::info!(
                "{}: answers again",
                self.client.document_url().without_query()
            );
        }
    }

    fn source_problem(&self, message: String) -> SourceProblem {
        SourceProblem {
            path: self.client.document_url().without_query().into(),
            message,
            fatal: true,
            new: true,
        }
    }

    /// Keeps a good answer. If it cannot be kept, it is only missing at a start without link.
    fn keep_document(
        &mut self,
        document: &[u8],
        tags: DocumentTags,
        sum: String,
    ) -> Vec<SourceProblem> {
        let head = CopyHead {
            v: COPY_VERSION,
            url: self.client.document_url().to_string(),
            sum,
            tags,
            at: clock::wall_now().to_string(),
        };
        match write_copy(&self.copy, &head, document) {
            Ok(()) => {
                self.unwritten = false;
                Vec::new()
            }
            Err(e) => vec![SourceProblem {
                path: self.copy.clone(),
                message: format!("cannot store the answer for a start without a link: {e}"),
                fatal: false,
                new: !core::mem::replace(&mut self.unwritten, true),
            }],
        }
    }

    /// Reads the last good answer of this URL, if it is whole.
    fn read_kept_copy(&self) -> Option<DocumentCopy> {
        match read_copy(&self.copy) {
            Ok(copy) => {
                Some(copy).filter(|copy| copy.head.url == self.client.document_url().to_string())
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => {
                log::debug!("{}: not used: {e}", self.copy.display());
                None
            }
        }
    }
}

fn document_sum(document: &[u8]) -> String {
    encode_hex(&Sha256::digest(document))
}

fn write_copy(path: &Path, head: &CopyHead, document: &[u8]) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(head)?;
    bytes.push(b'\n');
    bytes.extend_from_slice(document);
    file::write_atomic(path, &bytes, 0o600, true)
}

fn read_copy(path: &Path) -> io::Result<DocumentCopy> {
    let wrong = |why: &str| io::Error::other(why.to_owned());
    let limit = u64::try_from(MAX_DOCUMENT_BYTES + MAX_HEAD_BYTES).unwrap_or(u64::MAX);
    let mut bytes = file::read_start(path, limit)?;
    let line = bytes.iter().position(|byte| *byte == b'\n');
    let line = line.ok_or_else(|| wrong("it has no head"))?;
    let head: CopyHead = serde_json::from_slice(&bytes[..line])?;
    let document = bytes.split_off(line + 1);
    if head.v != COPY_VERSION || document_sum(&document) != head.sum {
        return Err(wrong("it is not whole"));
    }
    Ok(DocumentCopy { head, document })
}
