//! Plan of an import: the images of an archive, read from its documents in a first pass, before any layer is unpacked.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use core::cell::Cell;
use std::io::Read;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::archive::{Archive, MemberKind, member_name};
use super::digest::Digest;
use super::error::ImageProblem;
use super::platform::MachinePlatform;
use super::reference::ImageReference;
use super::store::insert_sorted;
use crate::api::oci::{Descriptor, ImageConfig, Index, Manifest, Platform};
use crate::api::order::OrderExt;
use crate::api::strict::from_foreign_json;

/// Largest document (manifest, index, configuration), bytes.
pub const MAX_JSON_BYTES: u64 = 4 * 1024 * 1024;
/// Largest sum of all documents of one archive, bytes: a pass keeps them in memory.
pub const MAX_JSON_TOTAL_BYTES: u64 = 16 * 1024 * 1024;
/// Layers of one image. The kernel's overlayfs takes 500, every runtime in use at least this many.
pub const MAX_LAYERS: usize = 127;
/// A layer as its manifest tells it, bytes. No board has room for more; sums over an image stay far from the type's end.
pub const MAX_LAYER_BYTES: u64 = 64 << 30;
/// Images in one archive.
pub const MAX_ARCHIVE_IMAGES: usize = 256;
/// Times that documents of one archive are followed: an index, a manifest and a configuration for each image that it may hold,
/// and some more.
pub const MAX_ARCHIVE_DOCUMENTS: usize = 4 * MAX_ARCHIVE_IMAGES;
/// Bytes of documents of one archive that are followed: a document counts each time that a descriptor leads to it.
pub const MAX_FOLLOWED_BYTES: u64 = 4 * MAX_JSON_TOTAL_BYTES;
/// Indexes within indexes.
const MAX_NESTING: usize = 4;
/// Platforms named in the error of an index without an image for this machine, and characters of each.
const MAX_PLATFORMS_TOLD: usize = 16;
const MAX_PLATFORM_CHARS: usize = 64;
/// Links from member to member.
const MAX_LINKS: usize = 8;

const REF_NAME: &str = "org.opencontainers.image.ref.name";
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// A problem and the member it lies in.
pub(super) type LocatedProblem = (Option<String>, ImageProblem);

/// An image to import.
#[derive(Clone, Debug)]
pub(super) struct PlannedImage {
    /// Place in the archive.
    pub(super) order: usize,
    pub(super) id: Digest,
    pub(super) config: ImageConfig,
    /// Lowest first.
    pub(super) layers: Vec<PlannedLayer>,
    /// Normalised names with tags, sorted.
    pub(super) names: Vec<String>,
    /// Normalised names with digests, sorted.
    pub(super) digests: Vec<String>,
    /// The name among `digests` that led here: of the index, if there is one. Empty: no digest is known.
    pub(super) led_by: String,
}

/// A layer to unpack.
#[derive(Clone, Debug)]
pub(super) struct PlannedLayer {
    pub(super) diff_id: Digest,
    /// Member of the archive that holds it.
    pub(super) member: String,
    /// Digest and size of the member, if the archive says.
    pub(super) blob: Option<(Digest, u64)>,
}

/// First pass: reads the documents, follows them, checks them.
///
/// `names`, if not empty, replace the archive's own and need it to hold exactly one image.
pub(super) fn plan_archive(
    archive: &Archive,
    names: &[ImageReference],
    machine: MachinePlatform,
) -> Result<Vec<PlannedImage>, LocatedProblem> {
    let members = Members::read_archive(archive).map_err(|problem| (None, problem))?;
    let mut images = if members.find_document("oci-layout").is_some() {
        plan_oci_layout(&members, machine, names)?
    } else if members.find_document("manifest.json").is_some() {
        plan_docker_archive(&members, machine)?
    } else if members.all.contains_key("repositories") {
        return Err((
            None,
            ImageProblem::Unsupported(
                "it has no manifest.json: it was saved by Docker before 1.10; save it again".into(),
            ),
        ));
    } else {
        return Err((
            None,
            ImageProblem::Unsupported("it has neither oci-layout nor manifest.json".into()),
        ));
    };
    if !names.is_empty() {
        let [image] = images.as_mut_slice() else {
            return Err((
                None,
                ImageProblem::Unsupported(format!(
                    "it holds {} images: names can be given for one only",
                    images.len()
                )),
            ));
        };
        apply_requested_names(image, names).map_err(|problem| (None, problem))?;
    }
    for image in &images {
        if image.names.is_empty() && image.digests.is_empty() {
            return Err((None, ImageProblem::Unnamed));
        }
    }
    Ok(images)
}

/// Gives an image the caller's names instead of the archive's. Names by digest keep the digests of the manifest.
fn apply_requested_names(
    image: &mut PlannedImage,
    names: &[ImageReference],
) -> Result<(), ImageProblem> {
    let led_by = core::mem::take(&mut image.led_by);
    let manifests: Vec<Digest> = core::iter::once(&led_by)
        .chain(&image.digests)
        .filter_map(|name| Digest::parse(name.split_once('@')?.1).ok())
        .collect();
    image.names.clear();
    image.digests.clear();
    for name in names {
        add_name(image, name, &manifests)?;
    }
    Ok(())
}

/// Adds a name. `manifests`: the digests of its manifest, that of the index around it first.
fn add_name(
    image: &mut PlannedImage,
    name: &ImageReference,
    manifests: &[Digest],
) -> Result<(), ImageProblem> {
    if let Some(digest) = name.digest()
        && !manifests.contains(&digest)
    {
        return Err(ImageProblem::Damaged(format!(
            "it is called {name}, but no manifest of it has that digest"
        )));
    }
    if let Some(tagged) = name.tagged_name() {
        insert_sorted(&mut image.names, tagged);
    }
    for digest in manifests {
        add_digest(image, name.repository(), *digest);
    }
    Ok(())
}

/// Adds a name by digest. The first one is the one that led to the image.
fn add_digest(image: &mut PlannedImage, repository: &str, digest: Digest) {
    let name = format!("{repository}@{digest}");
    if image.led_by.is_empty() {
        image.led_by.clone_from(&name);
    }
    insert_sorted(&mut image.digests, name);
}

/// Members of an archive, with the text of those that may be documents.
struct Members {
    all: BTreeMap<String, ArchiveMember>,
    /// Number of documents followed, and their bytes.
    followed: Cell<(usize, u64)>,
}

enum ArchiveMember {
    File {
        size: u64,
        document: Option<Vec<u8>>,
    },
    Link(String),
}

impl Members {
    fn read_archive(archive: &Archive) -> Result<Self, ImageProblem> {
        let mut members = BTreeMap::new();
        let mut kept: u64 = 0;
        archive.visit_members(&mut |name, kind, data| {
            let member = match kind {
                MemberKind::Link(target) => ArchiveMember::Link(target.clone()),
                MemberKind::File(size) => {
                    let document = read_json_member(name, *size, data, kept)?;
                    kept += document.as_ref().map_or(0, |d| d.len() as u64);
                    ArchiveMember::File {
                        size: *size,
                        document,
                    }
                }
            };
            members.insert(name.to_owned(), member);
            Ok(())
        })?;
        Ok(Self {
            all: members,
            followed: Cell::default(),
        })
    }

    /// Follows links to a file.
    fn find_file(&self, name: &str) -> Option<(&str, u64)> {
        let mut name = name;
        for _ in 0..MAX_LINKS {
            match self.all.get_key_value(name)? {
                (name, ArchiveMember::File { size, .. }) => return Some((name, *size)),
                (_, ArchiveMember::Link(target)) => name = target,
            }
        }
        None
    }

    fn find_document(&self, name: &str) -> Option<&[u8]> {
        let (name, _) = self.find_file(name)?;
        match self.all.get(name)? {
            ArchiveMember::File { document, .. } => document.as_deref(),
            ArchiveMember::Link(_) => None,
        }
    }

    /// Counts a followed document of `bytes`. An archive may lead to one document again and again, and each time it is
    /// read as a whole.
    fn count_followed_document(&self, bytes: usize) -> Result<(), ImageProblem> {
        let limit = |what, limit| Err(ImageProblem::Limit { what, limit });
        let (documents, total) = self.followed.get();
        let (documents, total) = (documents + 1, total + bytes as u64);
        if documents > MAX_ARCHIVE_DOCUMENTS {
            let what = "documents read of an archive, one that is read again counted again";
            return limit(what, MAX_ARCHIVE_DOCUMENTS as u64);
        }
        if total > MAX_FOLLOWED_BYTES {
            let what =
                "bytes of documents read of an archive, one that is read again counted again";
            return limit(what, MAX_FOLLOWED_BYTES);
        }
        self.followed.set((documents, total));
        Ok(())
    }
}

/// Source of the documents that a descriptor leads to.
pub(super) trait DocumentSource {
    /// The document that `descriptor` names, at most [`MAX_JSON_BYTES`], its digest checked.
    fn read_blob(&self, descriptor: &Descriptor)
    -> Result<(Digest, Cow<'_, [u8]>), LocatedProblem>;
}

impl DocumentSource for Members {
    /// A blob of an OCI layout that must be a document.
    fn read_blob(
        &self,
        descriptor: &Descriptor,
    ) -> Result<(Digest, Cow<'_, [u8]>), LocatedProblem> {
        let (digest, name) = blob_name(descriptor)?;
        let at = |problem| (Some(name.clone()), problem);
        if self.find_file(&name).is_none() {
            return Err(at(ImageProblem::Damaged("it is not in the archive".into())));
        }
        let data = self.find_document(&name).ok_or_else(|| {
            at(ImageProblem::Damaged(format!(
                "it is not a JSON document of at most {MAX_JSON_BYTES} bytes"
            )))
        })?;
        self.count_followed_document(data.len()).map_err(at)?;
        let found = Digest::compute(data);
        if found != digest {
            return Err(at(ImageProblem::WrongDigest {
                expected: digest,
                found,
            }));
        }
        Ok((digest, Cow::Borrowed(data)))
    }
}

/// Plans an image of a registry. Follows `top`, the descriptor of the manifest or index that `reference` leads to
/// there.
pub(super) fn plan_remote(
    documents: &dyn DocumentSource,
    top: &Descriptor,
    reference: &ImageReference,
    machine: MachinePlatform,
) -> Result<PlannedImage, LocatedProblem> {
    let (manifest_digest, manifest, id, config) =
        match choose_image(documents, top, machine, MAX_NESTING)? {
            ManifestChoice::Image(found) => *found,
            ManifestChoice::OtherMachines(others) => {
                return Err((None, no_image_problem(machine, others)));
            }
        };
    let mut manifests =
        vec![Digest::parse(&top.digest).map_err(|why| (Some(top.digest.clone()), why.into()))?];
    if !manifests.contains(&manifest_digest) {
        manifests.push(manifest_digest);
    }
    let mut image = PlannedImage {
        order: 0,
        id,
        layers: plan_manifest_layers(&manifest, &config)?,
        config,
        names: Vec::new(),
        digests: Vec::new(),
        led_by: String::new(),
    };
    add_name(&mut image, reference, &manifests).map_err(|problem| (None, problem))?;
    if reference.digest().is_some() {
        // The registry said nothing of the tag: it may lead to another image, and here it would do so for every pod.
        image.names.clear();
    }
    Ok(image)
}

fn blob_name(descriptor: &Descriptor) -> Result<(Digest, String), LocatedProblem> {
    let digest = Digest::parse(&descriptor.digest)
        .map_err(|why| (Some(descriptor.digest.clone()), why.into()))?;
    Ok((digest, format!("blobs/sha256/{}", digest.hex())))
}

/// Keeps a member if it looks like JSON: blobs carry no type in their names.
fn read_json_member(
    name: &str,
    size: u64,
    data: &mut dyn Read,
    kept: u64,
) -> Result<Option<Vec<u8>>, ImageProblem> {
    let candidate = name == "oci-layout"
        || name.starts_with("blobs/")
        // The directories of old layers have a document each that is not needed.
        || (name.ends_with(".json") && !name.contains('/'));
    if !candidate || size > MAX_JSON_BYTES || size == 0 {
        return Ok(None);
    }
    let mut head = [0; 1];
    data.read_exact(&mut head)
        .map_err(ImageProblem::from_read_error)?;
    if !matches!(head[0], b'{' | b'[' | b' ' | b'\n' | b'\t' | b'\r') {
        return Ok(None);
    }
    if kept + size > MAX_JSON_TOTAL_BYTES {
        return Err(ImageProblem::Limit {
            what: "bytes of documents in an archive",
            limit: MAX_JSON_TOTAL_BYTES,
        });
    }
    let mut text = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    text.push(head[0]);
    data.take(size - 1)
        .read_to_end(&mut text)
        .map_err(ImageProblem::from_read_error)?;
    if text.len() as u64 != size {
        return Err(ImageProblem::Truncated);
    }
    Ok(Some(text))
}

fn parse_member_json<T: DeserializeOwned>(name: &str, data: &[u8]) -> Result<T, LocatedProblem> {
    from_foreign_json(data)
        .map_err(|e| (Some(name.to_owned()), ImageProblem::Damaged(e.to_string())))
}

// --- OCI layout ---

fn plan_oci_layout(
    members: &Members,
    machine: MachinePlatform,
    names: &[ImageReference],
) -> Result<Vec<PlannedImage>, LocatedProblem> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct OciLayoutFile {
        image_layout_version: String,
    }
    let layout: OciLayoutFile = parse_member_json(
        "oci-layout",
        members.find_document("oci-layout").unwrap_or(b""),
    )?;
    if !layout.image_layout_version.starts_with("1.") {
        return Err((
            Some("oci-layout".into()),
            ImageProblem::Unsupported(format!("version {:?}", layout.image_layout_version)),
        ));
    }
    let Some(index) = members.find_document("index.json") else {
        return Err((
            Some("index.json".into()),
            ImageProblem::Damaged("it is not in the archive".into()),
        ));
    };
    let index: Index = parse_member_json("index.json", index)?;
    let mut images: Vec<PlannedImage> = Vec::new();
    let mut wrong_machine = OtherPlatforms::default();
    for descriptor in &index.manifests {
        if is_not_an_image(descriptor) {
            continue;
        }
        let choice = choose_image(members, descriptor, machine, MAX_NESTING)?;
        let (manifest_digest, manifest, config_digest, config) = match choice {
            ManifestChoice::Image(found) => *found,
            ManifestChoice::OtherMachines(what) => {
                wrong_machine.extend(what.0);
                continue;
            }
        };
        let at = images.iter().position(|image| image.id == config_digest);
        let at = match at {
            Some(at) => at,
            None => {
                let layers = plan_manifest_layers(&manifest, &config)?;
                images.push(PlannedImage {
                    order: images.len(),
                    id: config_digest,
                    config,
                    layers,
                    names: Vec::new(),
                    digests: Vec::new(),
                    led_by: String::new(),
                });
                images.len() - 1
            }
        };
        if images.len() > MAX_ARCHIVE_IMAGES {
            return Err((
                None,
                ImageProblem::Limit {
                    what: "images in an archive",
                    limit: MAX_ARCHIVE_IMAGES as u64,
                },
            ));
        }
        let top = Digest::parse(&descriptor.digest).unwrap_or(manifest_digest);
        let mut manifests = vec![top];
        if manifest_digest != top {
            manifests.push(manifest_digest);
        }
        add_annotated_name(&mut images[at], descriptor, &manifests, names)
            .map_err(|problem| (Some("index.json".into()), problem))?;
    }
    if images.is_empty() {
        return Err((None, no_image_problem(machine, wrong_machine)));
    }
    prefer_own_architecture(&mut images, machine);
    for image in &images {
        for layer in &image.layers {
            check_blob_present(members, layer)?;
        }
    }
    Ok(images)
}

/// Drops 32-bit images that are listed beside the machine's own ones, unless they have names of their own: without,
/// they are most often the same image for another board, and would take its name.
fn prefer_own_architecture(images: &mut Vec<PlannedImage>, machine: MachinePlatform) {
    let is_own = |image: &PlannedImage| is_own_architecture(&image.config, machine);
    if !images.iter().any(is_own) {
        return;
    }
    let taken = images.iter().filter(|image| is_own(image));
    let taken: Vec<String> = taken.flat_map(|image| image.names.clone()).collect();
    let has_own_names = |image: &PlannedImage| {
        !image.names.is_empty() && !image.names.iter().any(|name| taken.contains(name))
    };
    images.retain(|image| is_own(image) || has_own_names(image));
}

/// Returns true if the image is of the machine's own architecture, not a 32-bit one that it runs as well. An image
/// without an architecture is trusted.
fn is_own_architecture(config: &ImageConfig, machine: MachinePlatform) -> bool {
    config.architecture.is_empty() || machine.is_own_architecture(&config.architecture)
}

fn check_blob_present(members: &Members, layer: &PlannedLayer) -> Result<(), LocatedProblem> {
    let at = |problem| Err((Some(layer.member.clone()), problem));
    match (members.find_file(&layer.member), layer.blob) {
        (None, _) => at(ImageProblem::Damaged("it is not in the archive".into())),
        (Some((_, found)), Some((_, size))) if found != size => at(ImageProblem::Damaged(format!(
            "it has {found} bytes, its manifest says {size}"
        ))),
        _ => Ok(()),
    }
}

/// Platforms of images that this machine cannot run, each once, cut; at most one more than are told.
#[derive(Default)]
struct OtherPlatforms(Vec<String>);

impl OtherPlatforms {
    /// Returns true if further platforms make no difference.
    const fn is_full(&self) -> bool {
        self.0.len() > MAX_PLATFORMS_TOLD
    }

    fn add(&mut self, name: &str) {
        if self.is_full() {
            return;
        }
        let name: String = name.chars().take(MAX_PLATFORM_CHARS).collect();
        if !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    fn extend(&mut self, names: Vec<String>) {
        names.iter().for_each(|name| self.add(name));
    }
}

fn no_image_problem(machine: MachinePlatform, others: OtherPlatforms) -> ImageProblem {
    let mut what = others.0;
    if what.is_empty() {
        return ImageProblem::Damaged("it holds no image".into());
    }
    if what.len() > MAX_PLATFORMS_TOLD {
        what[MAX_PLATFORMS_TOLD] = "…".into();
    }
    ImageProblem::Unsupported(format!(
        "it has no image for linux/{} (it has {})",
        machine.architecture,
        what.join(", ")
    ))
}

/// Signatures and attestations lie in the same index as the image they are about.
fn is_not_an_image(descriptor: &Descriptor) -> bool {
    descriptor
        .annotations
        .contains_key("vnd.docker.reference.type")
        || descriptor
            .platform
            .as_ref()
            .is_some_and(|p| p.os == "unknown" && p.architecture == "unknown")
}

enum ManifestChoice {
    Image(Box<(Digest, Manifest, Digest, ImageConfig)>),
    /// No image for this machine; the platforms that there are instead.
    OtherMachines(OtherPlatforms),
}

/// Follows a descriptor to the image for this machine.
fn choose_image(
    members: &dyn DocumentSource,
    descriptor: &Descriptor,
    machine: MachinePlatform,
    nesting: usize,
) -> Result<ManifestChoice, LocatedProblem> {
    let (digest, data) = members.read_blob(descriptor)?;
    let data = &*data;
    let name = digest.to_string();
    // Some writers leave the type out; only an index has `manifests`.
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct IndexProbe {
        manifests: Option<serde::de::IgnoredAny>,
    }
    let is_index = match descriptor.media_type.as_str() {
        "application/vnd.oci.image.index.v1+json"
        | "application/vnd.docker.distribution.manifest.list.v2+json" => true,
        "application/vnd.oci.image.manifest.v1+json"
        | "application/vnd.docker.distribution.manifest.v2+json" => false,
        "" => parse_member_json::<IndexProbe>(&name, data)?
            .manifests
            .is_some(),
        other => {
            return Err((
                Some(name),
                ImageProblem::Unsupported(format!("media type {other:?}")),
            ));
        }
    };
    if !is_index {
        return choose_manifest_image(members, digest, parse_member_json(&name, data)?, machine);
    }
    if nesting == 0 {
        return Err((
            Some(name),
            ImageProblem::Limit {
                what: "indexes within each other",
                limit: MAX_NESTING as u64,
            },
        ));
    }
    let index: Index = parse_member_json(&name, data)?;
    // Best first; of equals the first listed.
    let mut ranked: Vec<(u8, &Descriptor)> = Vec::new();
    let mut others = OtherPlatforms::default();
    for inner in index.manifests.iter().filter(|d| !is_not_an_image(d)) {
        match &inner.platform {
            Some(platform) if !platform.architecture.is_empty() => {
                match machine.rank_platform(platform) {
                    Some(rank) => ranked.push((rank, inner)),
                    None if others.is_full() => {}
                    None => others.add(&platform_name(platform)),
                }
            }
            // The configuration will tell.
            _ => ranked.push((0, inner)),
        }
    }
    ranked.stable_sort_by_key(|(rank, _)| core::cmp::Reverse(*rank));
    let mut narrow = None;
    for (_, inner) in ranked {
        let is_told = inner.platform.as_ref();
        let is_told = is_told.is_some_and(|platform| !platform.architecture.is_empty());
        // One of 32 bits is found: only one of which its configuration tells may still be the machine's own.
        if narrow.is_some() && is_told {
            continue;
        }
        match choose_image(members, inner, machine, nesting - 1)? {
            ManifestChoice::OtherMachines(more) => others.extend(more.0),
            ManifestChoice::Image(found) if is_own_architecture(&found.3, machine) => {
                return Ok(ManifestChoice::Image(found));
            }
            image @ ManifestChoice::Image(_) => _ = narrow.get_or_insert(image),
        }
    }
    Ok(narrow.unwrap_or(ManifestChoice::OtherMachines(others)))
}

fn choose_manifest_image(
    members: &dyn DocumentSource,
    manifest_digest: Digest,
    manifest: Manifest,
    machine: MachinePlatform,
) -> Result<ManifestChoice, LocatedProblem> {
    let (config_digest, data) = members.read_blob(&manifest.config)?;
    let config: ImageConfig = parse_member_json(&config_digest.to_string(), &data)?;
    if let Some(other) = unsuitable_platform(&config, machine) {
        let mut others = OtherPlatforms::default();
        others.add(&other);
        return Ok(ManifestChoice::OtherMachines(others));
    }
    Ok(ManifestChoice::Image(Box::new((
        manifest_digest,
        manifest,
        config_digest,
        config,
    ))))
}

/// The platform of a configuration that this machine cannot run. One that says nothing is trusted.
fn unsuitable_platform(config: &ImageConfig, machine: MachinePlatform) -> Option<String> {
    if config.architecture.is_empty() {
        return None;
    }
    let platform = Platform {
        architecture: config.architecture.clone(),
        os: if config.os.is_empty() {
            "linux".into()
        } else {
            config.os.clone()
        },
        variant: config.variant.clone(),
    };
    // In a configuration an arm variant is often absent: nothing to hold against it.
    let lenient = Platform {
        variant: if platform.variant.is_empty() && machine.architecture == "arm" {
            format!("v{}", machine.variant)
        } else {
            platform.variant.clone()
        },
        ..platform.clone()
    };
    machine
        .rank_platform(&lenient)
        .is_none()
        .then(|| platform_name(&platform))
}

fn platform_name(platform: &Platform) -> String {
    let mut name = format!("{}/{}", platform.os, platform.architecture);
    if !platform.variant.is_empty() {
        name.push('/');
        name.push_str(&platform.variant);
    }
    name
}

fn plan_manifest_layers(
    manifest: &Manifest,
    config: &ImageConfig,
) -> Result<Vec<PlannedLayer>, LocatedProblem> {
    let diff_ids = parse_diff_ids(config, manifest.layers.len())?;
    manifest
        .layers
        .iter()
        .zip(diff_ids)
        .map(|(descriptor, diff_id)| {
            if !is_layer_type(&descriptor.media_type) {
                return Err((
                    Some(descriptor.digest.clone()),
                    ImageProblem::Unsupported(format!(
                        "layer media type {:?}",
                        descriptor.media_type
                    )),
                ));
            }
            if descriptor.size > MAX_LAYER_BYTES {
                return Err((
                    Some(descriptor.digest.clone()),
                    ImageProblem::Limit {
                        what: "bytes in a layer",
                        limit: MAX_LAYER_BYTES,
                    },
                ));
            }
            let (digest, member) = blob_name(descriptor)?;
            Ok(PlannedLayer {
                diff_id,
                member,
                blob: Some((digest, descriptor.size)),
            })
        })
        .collect()
}

/// Tar layers in any compression; the bytes tell which. Encrypted ones and other artifacts are not layers.
fn is_layer_type(media_type: &str) -> bool {
    let tar = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
    ];
    media_type.is_empty()
        || tar.iter().any(|prefix| {
            matches!(
                media_type.strip_prefix(prefix),
                Some("" | "+gzip" | "+zstd" | ".gzip" | ".zstd")
            )
        })
}

fn parse_diff_ids(config: &ImageConfig, layers: usize) -> Result<Vec<Digest>, LocatedProblem> {
    let wrong = |problem| Err((Some("configuration".to_owned()), problem));
    if layers > MAX_LAYERS {
        return wrong(ImageProblem::Limit {
            what: "layers in an image",
            limit: MAX_LAYERS as u64,
        });
    }
    let ids = &config.rootfs.diff_ids;
    if ids.len() != layers {
        return wrong(ImageProblem::Damaged(format!(
            "it lists {} layers, the manifest {layers}",
            ids.len()
        )));
    }
    ids.iter()
        .map(|id| Digest::parse(id).map_err(|why| (Some("configuration".to_owned()), why.into())))
        .collect()
}

fn add_annotated_name(
    image: &mut PlannedImage,
    descriptor: &Descriptor,
    manifests: &[Digest],
    asked: &[ImageReference],
) -> Result<(), ImageProblem> {
    let annotation = |key| descriptor.annotations.get(key).filter(|v| !v.is_empty());
    // containerd writes the whole name; the specification's annotation may be a name or a bare tag.
    let name = annotation(CONTAINERD_NAME)
        .or_else(|| annotation(REF_NAME).filter(|name| name.contains([':', '/', '@'])));
    match name {
        Some(name) => {
            let reference =
                ImageReference::parse(name).map_err(|e| ImageProblem::Damaged(e.to_string()))?;
            add_name(image, &reference, manifests)
        }
        None => {
            // Kept under a placeholder until the caller's names replace it.
            if !asked.is_empty() {
                for digest in manifests {
                    add_digest(image, "unnamed", *digest);
                }
            }
            Ok(())
        }
    }
}

// --- docker-archive ---

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Option<Vec<String>>,
}

fn plan_docker_archive(
    members: &Members,
    machine: MachinePlatform,
) -> Result<Vec<PlannedImage>, LocatedProblem> {
    let document = members.find_document("manifest.json").unwrap_or(b"");
    let listed: Vec<DockerImage> = parse_member_json("manifest.json", document)?;
    if listed.len() > MAX_ARCHIVE_IMAGES {
        return Err((
            None,
            ImageProblem::Limit {
                what: "images in an archive",
                limit: MAX_ARCHIVE_IMAGES as u64,
            },
        ));
    }
    let mut images: Vec<PlannedImage> = Vec::new();
    let mut others = OtherPlatforms::default();
    for listed in listed {
        let config_name = member_name("", listed.config.as_bytes()).unwrap_or_default();
        let at = |problem| (Some(config_name.clone()), problem);
        let data = members.find_document(&config_name).ok_or_else(|| {
            at(ImageProblem::Damaged(
                match members.find_file(&config_name) {
                    Some(_) => {
                        format!("it is not a JSON document of at most {MAX_JSON_BYTES} bytes")
                    }
                    None => "the configuration is not in the archive".into(),
                },
            ))
        })?;
        let id = Digest::compute(data);
        // Named after its digest: then it must have it.
        let stem = config_name.rsplit('/').next().unwrap_or(&config_name);
        let stem = stem.strip_suffix(".json").unwrap_or(stem);
        if let Some(expected) = Digest::from_hex(stem).filter(|&expected| expected != id) {
            return Err(at(ImageProblem::WrongDigest {
                expected,
                found: id,
            }));
        }
        members.count_followed_document(data.len()).map_err(at)?;
        let config: ImageConfig = parse_member_json(&config_name, data)?;
        if let Some(other) = unsuitable_platform(&config, machine) {
            others.add(&other);
            continue;
        }
        let mut layers = Vec::new();
        let listed_layers = listed.layers.unwrap_or_default();
        for (layer, diff_id) in listed_layers
            .iter()
            .zip(parse_diff_ids(&config, listed_layers.len())?)
        {
            let member = member_name("", layer.as_bytes())
                .and_then(|name| members.find_file(&name).map(|(name, _)| name.to_owned()))
                .ok_or_else(|| {
                    (
                        Some(layer.clone()),
                        ImageProblem::Damaged("it is not in the archive".into()),
                    )
                })?;
            layers.push(PlannedLayer {
                diff_id,
                member,
                blob: None,
            });
        }
        let known = images.iter().position(|image| image.id == id);
        let at = known.unwrap_or_else(|| {
            images.push(PlannedImage {
                order: images.len(),
                id,
                config,
                layers,
                names: Vec::new(),
                digests: Vec::new(),
                led_by: String::new(),
            });
            images.len() - 1
        });
        for tag in listed.repo_tags.unwrap_or_default() {
            let name = ImageReference::parse(&tag).map_err(|e| {
                (
                    Some("manifest.json".to_owned()),
                    ImageProblem::Damaged(e.to_string()),
                )
            })?;
            if let Some(tagged) = name.tagged_name() {
                insert_sorted(&mut images[at].names, tagged);
            }
        }
    }
    if images.is_empty() {
        return Err((None, no_image_problem(machine, others)));
    }
    prefer_own_architecture(&mut images, machine);
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Layout;
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn layers_are_tar_streams() {
        // OAV-02
        for (media_type, is_layer) in [
            ("", true),
            ("application/vnd.oci.image.layer.v1.tar", true),
            ("application/vnd.oci.image.layer.v1.tar+gzip", true),
            ("application/vnd.oci.image.layer.v1.tar+zstd", true),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", true),
            ("application/vnd.oci.image.layer.v1.tar+encrypted", false),
            ("application/vnd.oci.empty.v1+json", false),
            ("application/octet-stream", false),
            ("text/plain", false),
        ] {
            assert_eq!(is_layer_type(media_type), is_layer, "{media_type}");
        }
    }

    #[test]
    fn of_platforms_without_end_few_are_kept_and_told() {
        let platform = |n: usize, architecture: String| {
            serde_json::json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": Digest::compute(&n.to_be_bytes()).to_string(),
                "size": 1,
                "platform": {"os": "linux", "architecture": architecture},
            })
        };
        let long = "x".repeat(3 * MAX_PLATFORM_CHARS);
        let manifests: Vec<_> = (0..1000)
            .map(|n| platform(n, format!("a{}", n / 2)))
            .chain([platform(1000, long)])
            .rev()
            .collect();
        let mut layout = Layout::new();
        let inner = layout.index(&manifests);
        let outer = layout.index(&vec![inner; 50]);
        let scratch = TestDir::new("plan");
        let path = scratch.join("archive");
        std::fs::write(&path, layout.tar()).expect("scratch");
        let archive = Archive::open(&path).expect("an archive");
        let members = Members::read_archive(&archive).expect("members");
        let top: Descriptor = serde_json::from_value(outer).expect("a descriptor");
        let machine = MachinePlatform::detect_current();
        let Ok(ManifestChoice::OtherMachines(others)) =
            choose_image(&members, &top, machine, MAX_NESTING)
        else {
            panic!("nothing is for this machine");
        };
        assert_eq!(others.0.len(), MAX_PLATFORMS_TOLD + 1);
        let longest = others.0.iter().map(|name| name.chars().count()).max();
        assert_eq!(longest, Some(MAX_PLATFORM_CHARS));
        let told = no_image_problem(machine, others).to_string();
        assert!(told.ends_with(", …)"), "{told}");
        assert_eq!(told.matches("linux/a4").count(), 15, "each once: {told}");
    }
}
