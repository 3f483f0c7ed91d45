//! The table of nftables: read and written by the program `nft`, behind a trait (PROX-24 to PROX-26).
//!
//! One program runs at a time: the keeper waits for it. Each text is one transaction: the kernel takes it whole, or not
//! at all.

use core::{pin::Pin, time::Duration};
use std::{io, path::Path};

use crate::{
    logic::services::{
        AddressFamily,
        live::LiveTable,
        plan::TableMap,
        table::{HAIRPINS, STAMP, TABLE, remove_table},
    },
    sys::child::{self, ChildInput, Command},
};

/// Directories in which the program is looked for.
const PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin";
/// A call that takes longer is killed.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer that is read, bytes: 20,000 Services have 4 MB of elements.
const ANSWER_LIMIT: usize = 8 << 20;
/// Bytes of an error that are told.
const ERROR_BYTES: usize = 400;

/// Error of a call of `nft`.
#[derive(Debug, thiserror::Error)]
pub(super) enum NftError {
    /// The program is not installed.
    #[error("nft is not installed: install the package nftables")]
    Missing,
    /// The program could not be run, or did not end.
    #[error("nft")]
    Run(#[source] io::Error),
    /// The program refused.
    #[error("nft: {0}")]
    Refused(String),
    /// The answer is longer than any that is read.
    #[error("the answer of nft is longer than {ANSWER_LIMIT} bytes")]
    TooLong,
}

/// Answer of a writer.
pub(super) type WriterFuture<'a> = Pin<Box<dyn Future<Output = Result<String, NftError>> + 'a>>;

/// Program or library that carries out commands of nftables.
pub(super) trait TableWriter {
    /// Carries out the commands of `text`: all, or none.
    fn write_text(&self, text: String) -> WriterFuture<'_>;
    /// Carries out one command that prints.
    fn list<'a>(&'a self, words: &'a [&'a str]) -> WriterFuture<'a>;
    /// Looks if the commands of `text` would be taken, and changes nothing.
    fn check_text(&self, text: String) -> WriterFuture<'_>;
}

/// The program `nft`.
pub(super) struct NftProgram;

impl TableWriter for NftProgram {
    fn write_text(&self, text: String) -> WriterFuture<'_> {
        Box::pin(run_nft(vec!["-f", "-"], Some(text)))
    }

    fn list<'a>(&'a self, words: &'a [&'a str]) -> WriterFuture<'a> {
        let words = ["-n"].iter().chain(words).copied().collect();
        Box::pin(run_nft(words, None))
    }

    fn check_text(&self, text: String) -> WriterFuture<'_> {
        Box::pin(run_nft(vec!["-c", "-f", "-"], Some(text)))
    }
}

async fn run_nft(words: Vec<&str>, input: Option<String>) -> Result<String, NftError> {
    let program = PATH.split(':').map(|dir| Path::new(dir).join("nft"));
    let program = program
        .into_iter()
        .find(|path| path.is_file())
        .ok_or(NftError::Missing)?;
    let mut command = Command::new(program)
        .args(words)
        .env("PATH", PATH)
        .capture_output(ANSWER_LIMIT);
    if let Some(text) = input {
        command = command.stdin(ChildInput::Bytes(text.into_bytes()));
    }
    let output = child::run_command(command, Some(CALL_TIMEOUT))
        .await
        .map_err(NftError::Run)?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let words = words.trim();
        let words = crate::logic::text::truncate_text(words, ERROR_BYTES);
        return Err(NftError::Refused(words.to_owned()));
    }
    if output.truncated {
        return Err(NftError::TooLong);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Removes the tables of all families, there or not. A machine without the program has none.
pub(super) async fn remove_tables(writer: &dyn TableWriter) -> Result<(), NftError> {
    for family in AddressFamily::ALL {
        match writer.write_text(remove_table(family)).await {
            Ok(_) => {}
            Err(NftError::Missing) => return Ok(()),
            // The kernel may have no IPv6.
            Err(e) if family == AddressFamily::V4 => return Err(e),
            Err(e) => log::debug!("{e}"),
        }
    }
    Ok(())
}

/// Returns true if the table has the stamp: all that belongs to no Service is as it was written.
pub(super) async fn has_stamp(
    writer: &dyn TableWriter,
    family: AddressFamily,
    stamp: &str,
) -> bool {
    let listed = writer
        .list(&["list", "set", family.word(), TABLE, STAMP])
        .await;
    listed.is_ok_and(|printed| printed.contains(stamp))
}

/// Reads the elements and chains of the tables of these families. A table that is not there has none.
pub(super) async fn read_live_table(
    writer: &dyn TableWriter,
    families: &[AddressFamily],
) -> Result<LiveTable, NftError> {
    let mut live = LiveTable::default();
    for family in families {
        let word = family.word();
        for map in TableMap::ALL {
            let printed = writer
                .list(&["list", "map", word, TABLE, map.name()])
                .await?;
            live.read_map(*family, map, &printed);
        }
        let printed = writer.list(&["list", "set", word, TABLE, HAIRPINS]).await?;
        live.read_hairpins(&printed);
        let printed = writer.list(&["list", "chains", word]).await?;
        live.read_chains(*family, &printed);
    }
    Ok(live)
}
