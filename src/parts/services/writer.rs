//! The table of nftables: read and written by the program `nft`, behind a trait (PROX-24 to PROX-26).
//!
//! One program runs at a time: the keeper waits for it. Each text is one transaction: the kernel takes it whole, or not
//! at all.

use core::{pin::Pin, time::Duration};
use std::{io, path::Path};

use crate::{
    logic::services::{
        AddressFamily, ProxyNetwork,
        live::{LiveTable, has_own_table},
        plan::TableMap,
        table::{HAIRPINS, STAMP, TABLE, base_table, remove_table, table_stamp},
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

/// Removes the tables of these families, there or not. A machine without the program has none.
pub(super) async fn remove_tables(
    writer: &dyn TableWriter,
    families: &[AddressFamily],
) -> Result<(), NftError> {
    for family in families {
        match writer.write_text(remove_table(*family)).await {
            Ok(_) => {}
            Err(NftError::Missing) => return Ok(()),
            // The kernel may have no IPv6.
            Err(NftError::Refused(e)) if *family == AddressFamily::V6 => log::debug!("nft: {e}"),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes the tables if the machine shows one, whatever is configured. Where `nft` cannot look, there is none.
pub(super) async fn remove_found_tables(writer: &dyn TableWriter) -> Result<(), NftError> {
    match writer.list(&["list", "tables"]).await {
        Ok(printed) if has_own_table(&printed) => remove_tables(writer, &AddressFamily::ALL).await,
        Ok(_) | Err(NftError::Missing) => Ok(()),
        // A program that was killed has said nothing: they are removed, there or not.
        Err(NftError::Refused(_)) => remove_tables(writer, &AddressFamily::ALL).await,
        Err(e) => Err(e),
    }
}

/// Makes or renews the tables of all families. A table whose form `nft` refuses twice is made anew, without a Service: then
/// returns true.
pub(super) async fn write_base_tables(
    writer: &dyn TableWriter,
    network: &ProxyNetwork,
) -> Result<bool, NftError> {
    let mut is_anew = false;
    for family in &network.families {
        let text = base_table(*family, network);
        let mut sent = writer.write_text(text.clone()).await;
        if matches!(sent, Err(NftError::Refused(_))) {
            sent = writer.write_text(text.clone()).await;
        }
        if let Err(NftError::Refused(e)) = &sent {
            // The table of another version has sets of another form: all is made anew in one transaction.
            log::info!("table of Services: nft: {e}; it is made anew");
            sent = writer
                .write_text([remove_table(*family), text].concat())
                .await;
            is_anew = true;
        }
        sent?;
    }
    Ok(is_anew)
}

/// Returns true if the tables are there, made by this version with these settings.
pub(super) async fn has_tables(writer: &dyn TableWriter, network: &ProxyNetwork) -> bool {
    for family in &network.families {
        let stamp = table_stamp(*family, network);
        if !has_stamp(writer, *family, &stamp).await {
            return false;
        }
    }
    true
}

/// Returns true if the table has the stamp: all that belongs to no Service is as it was written.
async fn has_stamp(writer: &dyn TableWriter, family: AddressFamily, stamp: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use core::cell::RefCell;

    use super::*;

    /// Writer that answers as it is told, and remembers the texts.
    #[derive(Default)]
    struct ToldWriter {
        answers: RefCell<Vec<Result<String, NftError>>>,
        texts: RefCell<Vec<String>>,
    }

    impl ToldWriter {
        fn new(answers: Vec<Result<String, NftError>>) -> Self {
            Self {
                answers: answers.into(),
                texts: RefCell::default(),
            }
        }

        fn answer(&self, text: String) -> WriterFuture<'_> {
            self.texts.borrow_mut().push(text);
            let answer = self.answers.borrow_mut().remove(0);
            Box::pin(core::future::ready(answer))
        }
    }

    impl TableWriter for ToldWriter {
        fn write_text(&self, text: String) -> WriterFuture<'_> {
            self.answer(text)
        }

        fn list<'a>(&'a self, words: &'a [&'a str]) -> WriterFuture<'a> {
            self.answer(words.join(" "))
        }

        fn check_text(&self, text: String) -> WriterFuture<'_> {
            self.answer(text)
        }
    }

    fn refused<T>() -> Result<T, NftError> {
        Err(NftError::Refused("no".into()))
    }

    fn broken<T>() -> Result<T, NftError> {
        Err(NftError::Run(io::ErrorKind::TimedOut.into()))
    }

    #[test]
    fn only_a_table_that_is_refused_twice_is_made_anew() {
        // PROX-25
        let network = ProxyNetwork {
            families: vec![AddressFamily::V4],
            ..ProxyNetwork::default()
        };
        let anew = |text: &String| text.contains("delete table");
        for (answers, is_written, texts) in [
            (vec![Ok(String::new())], true, 1),
            (vec![broken()], false, 1),
            (vec![Err(NftError::Missing)], false, 1),
            (vec![refused(), Ok(String::new())], true, 2),
            (vec![refused(), broken()], false, 2),
            (vec![refused(), refused(), Ok(String::new())], true, 3),
        ] {
            let writer = ToldWriter::new(answers);
            let written = smol::block_on(write_base_tables(&writer, &network));
            let told = writer.texts.borrow();
            assert_eq!((written.is_ok(), told.len()), (is_written, texts));
            assert_eq!(told.iter().any(anew), texts == 3, "{told:?}");
        }
    }

    #[test]
    fn a_reset_removes_tables_that_it_finds() {
        // PROX-28
        let mine = || Ok(format!("table ip other\ntable ip {TABLE}\n"));
        for (answers, is_done, texts) in [
            (vec![mine(), Ok(String::new()), refused()], true, 3),
            (vec![mine(), refused()], false, 2),
            (vec![mine(), Ok(String::new()), broken()], false, 3),
            (vec![Ok("table ip other\n".into())], true, 1),
            (vec![Err(NftError::Missing)], true, 1),
            (vec![refused(), Ok(String::new()), refused()], true, 3),
            (vec![refused(), broken()], false, 2),
        ] {
            let writer = ToldWriter::new(answers);
            let removed = smol::block_on(remove_found_tables(&writer));
            assert_eq!(
                (removed.is_ok(), writer.texts.borrow().len()),
                (is_done, texts)
            );
        }
    }
}
