//! What images were pulled with, on disk, and whether a pod may use one that is there (IMG-20). What is decided is
//! [`PulledRecord`]'s.
//!
//! ```text
//! <root>/image_manager/pulled/<64 hex digits>     an image, and what it was had with, or that it was imported
//! <root>/image_manager/pulling/<64 hex digits>    a pull with a pod's credentials, from before its begin until after the record
//! ```
//!
//! An image without either was not pulled by this agent: everybody may use it. A record ends with its image.

use alloc::collections::BTreeMap;
use core::cell::RefCell;
use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

use super::{
    ctx::Ctx,
    image_pulls::{self, Credentials},
};
use crate::{
    api::{Pod, strict},
    image::Reference,
    logic::image_access::{PullSecret, PulledRecord, RECORD_VERSION, Standing},
    sys::file,
};

/// Bytes of a file: what a record can hold at most, and more.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Pulls with credentials of pods that are under way, by reference: as many as there are pods at most.
#[derive(Debug, Default)]
pub(super) struct UnderWay(RefCell<BTreeMap<String, u32>>);

/// A pull that has begun.
#[derive(Debug)]
pub(super) struct Begun {
    reference: String,
}

#[derive(Serialize, Deserialize)]
struct Intent {
    v: u32,
    image: String,
}

/// Whether the pod may use the image that `reference` names without asking the registry.
pub(super) async fn may_use(ctx: &Ctx, pod: &Pod, reference: &str, id: &str) -> bool {
    let Ok(parsed) = Reference::parse(reference) else {
        return false;
    };
    let repository = parsed.repository();
    let (files, image, name) = (Files::of(ctx), id.to_owned(), reference.to_owned());
    let found = ctx
        .disk
        .run(move || Ok::<_, io::Error>((files.record(&image)?, files.is_pulling(&name))));
    let record = match found.await {
        Ok((Some(record), _)) => record,
        Ok((None, is_pulling)) => return !is_pulling,
        Err(e) => {
            ctx.complain(&format!(
                "what image {id} was pulled with is not known: {e}"
            ));
            return false;
        }
    };
    if record.everybody_may(repository) {
        return true;
    }
    let brought = image_pulls::brought(ctx, pod, repository).await;
    match record.standing(repository, &brought) {
        Standing::Known => true,
        Standing::New => {
            note(ctx, id, repository, brought).await;
            true
        }
        Standing::Ask => false,
    }
}

/// A pull is to begin.
///
/// - Errors: that could not be noted, and without a note the image would be everybody's after a crash.
pub(super) async fn begin(
    ctx: &Ctx,
    reference: &str,
    credentials: &Credentials,
) -> io::Result<Option<Begun>> {
    if credentials.brought.is_empty() {
        return Ok(None);
    }
    {
        let mut under_way = ctx.pulls_under_way.0.borrow_mut();
        *under_way.entry(reference.into()).or_default() += 1;
    }
    let begun = Begun {
        reference: reference.into(),
    };
    let (files, name) = (Files::of(ctx), reference.to_owned());
    if let Err(e) = ctx.disk.run(move || files.begin(&name)).await {
        end(ctx, Some(begun)).await;
        return Err(e);
    }
    Ok(Some(begun))
}

/// An image is there: with the credential of this digest, or without any of the pod's.
pub(super) async fn pulled(
    ctx: &Ctx,
    reference: &str,
    id: &str,
    credentials: &Credentials,
    with: Option<&str>,
) {
    let Ok(parsed) = Reference::parse(reference) else {
        return;
    };
    let with = match with {
        None => Vec::new(),
        Some(digest) => {
            let mut good = credentials.brought.clone();
            good.retain(|own| own.digest == digest);
            if good.is_empty() {
                // A credential of the pod for a mirror alone.
                return note_pulled(ctx, id).await;
            }
            good
        }
    };
    note(ctx, id, parsed.repository(), with).await;
}

/// The operator brought these images: they are everybody's, whatever the same bytes were pulled with before.
pub(super) async fn imported(ctx: &Ctx, ids: &[&str]) {
    for id in ids {
        let image = (*id).to_owned();
        change(ctx, id, move |record| {
            *record = PulledRecord::imported(&image);
            true
        })
        .await;
    }
}

/// A pull that has begun is over, however it ended.
pub(super) async fn end(ctx: &Ctx, begun: Option<Begun>) {
    let Some(Begun { reference }) = begun else {
        return;
    };
    let is_last = {
        let mut under_way = ctx.pulls_under_way.0.borrow_mut();
        let count = under_way.remove(&reference).unwrap_or_default();
        if count > 1 {
            under_way.insert(reference.clone(), count - 1);
        }
        count <= 1
    };
    if is_last {
        let files = Files::of(ctx);
        ctx.disk.run(move || files.end(&reference)).await;
    }
}

/// Turns what crashed pulls have left into records, and removes those of images that are gone.
pub(super) async fn tidy(ctx: &Ctx) {
    let files = Files::of(ctx);
    let (records, mut intents) = ctx
        .disk
        .run(move || (files.list(PULLED), files.intents()))
        .await;
    let under_way = |name: &String| ctx.pulls_under_way.0.borrow().contains_key(name);
    intents.retain(|name| !under_way(name));
    for reference in intents {
        // While the runtime does not answer nothing is known.
        let Ok(found) = ctx.runtime.image_status(&reference).await else {
            return;
        };
        if let Some(image) = found {
            note_pulled(ctx, &image.id).await;
        }
        let files = Files::of(ctx);
        ctx.disk.run(move || files.end(&reference)).await;
    }
    if records.is_empty() {
        return;
    }
    let Ok(images) = ctx.runtime.list_images().await else {
        return;
    };
    let files = Files::of(ctx);
    let there: Vec<String> = images.iter().map(|image| file_name(&image.id)).collect();
    let gone = records.into_iter().filter(|name| !there.contains(name));
    let gone: Vec<String> = gone.collect();
    if !gone.is_empty() {
        ctx.disk.run(move || files.remove(&gone)).await;
    }
}

async fn note(ctx: &Ctx, id: &str, repository: &str, with: Vec<PullSecret>) {
    let repository = repository.to_owned();
    change(ctx, id, move |record| record.note(&repository, &with)).await;
}

/// Only that it was pulled: whoever wants it asks.
async fn note_pulled(ctx: &Ctx, id: &str) {
    change(ctx, id, |_| true).await;
}

async fn change(
    ctx: &Ctx,
    id: &str,
    change: impl FnOnce(&mut PulledRecord) -> bool + Send + 'static,
) {
    let (files, image) = (Files::of(ctx), id.to_owned());
    let written = ctx.disk.run(move || {
        let known = files.record(&image).unwrap_or_else(|e| {
            log::warn!("what image {image} was pulled with is noted anew: {e}");
            None
        });
        let mut record = known.clone().unwrap_or_else(|| PulledRecord::new(&image));
        if change(&mut record) && known.as_ref() != Some(&record) {
            files.write(PULLED, &image, &record)?;
        }
        Ok::<_, io::Error>(())
    });
    if let Err(e) = written.await {
        ctx.complain(&format!(
            "what image {id} was pulled with cannot be noted: {e}"
        ));
    }
}

const PULLED: &str = "pulled";
const PULLING: &str = "pulling";

/// The files of one agent.
struct Files {
    dir: PathBuf,
}

impl Files {
    fn of(ctx: &Ctx) -> Self {
        Self {
            dir: ctx.cfg.dirs.root.join("image_manager"),
        }
    }

    fn path(&self, kind: &str, name: &str) -> PathBuf {
        self.dir.join(kind).join(file_name(name))
    }

    fn record(&self, id: &str) -> io::Result<Option<PulledRecord>> {
        let record: Option<PulledRecord> = read(&self.path(PULLED, id))?;
        match record {
            Some(record) if record.v != RECORD_VERSION || record.image != id => Err(
                io::Error::new(io::ErrorKind::InvalidData, "its record is another's"),
            ),
            record => Ok(record),
        }
    }

    fn is_pulling(&self, reference: &str) -> bool {
        self.path(PULLING, reference).exists()
    }

    fn begin(&self, reference: &str) -> io::Result<()> {
        if self.is_pulling(reference) {
            return Ok(());
        }
        let intent = Intent {
            v: RECORD_VERSION,
            image: reference.into(),
        };
        self.write(PULLING, reference, &intent)
    }

    fn end(&self, reference: &str) {
        remove(&self.path(PULLING, reference));
    }

    /// References of all pulls that have begun and not ended.
    fn intents(&self) -> Vec<String> {
        let names = self.list(PULLING).into_iter();
        let intents = names.filter_map(|name| {
            let path = self.dir.join(PULLING).join(&name);
            let intent: Option<Intent> = read(&path).ok().flatten();
            if intent.is_none() {
                remove(&path);
            }
            intent.map(|intent| intent.image)
        });
        intents.collect()
    }

    fn write(&self, kind: &str, name: &str, content: &impl Serialize) -> io::Result<()> {
        let path = self.path(kind, name);
        if let Some(dir) = path.parent()
            && !dir.exists()
        {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)?;
        }
        file::write_atomic(&path, &serde_json::to_vec(content)?, 0o600, true)
    }

    /// Names of files.
    fn list(&self, kind: &str) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join(kind));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    fn remove(&self, names: &[String]) {
        for name in names {
            remove(&self.dir.join(PULLED).join(name));
        }
    }
}

/// Ids and references may be longer than names of files, and have slashes.
fn file_name(name: &str) -> String {
    use core::fmt::Write as _;
    let sum = Sha256::digest(name.as_bytes());
    sum.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    use io::Read as _;
    let file = match fs::File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
    Ok(Some(strict::from_json(&text)?))
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            log::warn!("cannot remove {}: {e}", path.display());
        }
        _ => {}
    }
}
