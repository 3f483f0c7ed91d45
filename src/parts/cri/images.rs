//! Images (CRI-70 to CRI-76).

use core::time::Duration;
use std::path::PathBuf;

use super::{
    CriClient, RuntimeDirectories,
    answer::{self, nonsense_answer},
    link::CallKind,
    request, translate_failure, unless_gone, wire,
};
use crate::{
    api::cri::{AuthConfig, FsInfo, SandboxConfig, StoredImage},
    api::order::OrderExt as _,
    grpc::status::GrpcCode,
    runtime::RuntimeError,
    sys::disk_usage,
};

/// Time limit for answers that the Node object waits for: it reports that the runtime hangs, and must not wait for it.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// Text of the kernel's error for a full disk, as a runtime's message has it.
const DISK_FULL: &str = "no space left on device";

impl CriClient {
    async fn ask_image_service(
        &self,
        method: &'static str,
        request: &mut dyn crate::grpc::proto::Message,
        answer: &mut dyn crate::grpc::proto::Message,
    ) -> Result<(), RuntimeError> {
        let mut timeout = self.settings.request_timeout;
        if matches!(method, "ListImages" | "ImageFsInfo") {
            timeout = timeout.min(NODE_TIMEOUT);
        }
        self.ask_within(CallKind::Image, method, request, answer, timeout)
            .await
    }

    /// Asks for an image; `None` if the runtime does not have it.
    pub(super) async fn ask_image(
        &self,
        reference: &str,
    ) -> Result<Option<StoredImage>, RuntimeError> {
        let mut request = wire::ImageRequest {
            image: Some(request::image_spec(reference, "")),
        };
        let mut answer = wire::ImageStatusResponse::default();
        match self
            .ask_image_service("ImageStatus", &mut request, &mut answer)
            .await
        {
            Err(RuntimeError::NotFound(_)) => return Ok(None),
            asked => asked?,
        }
        answer.image.map(answer::read_image).transpose()
    }

    /// All images, sorted by id.
    pub(super) async fn list_all_images(&self) -> Result<Vec<StoredImage>, RuntimeError> {
        let mut answer = wire::ListImagesResponse::default();
        let request = &mut wire::CriEmpty::default();
        self.ask_image_service("ListImages", request, &mut answer)
            .await?;
        let all = answer.images.into_iter().map(answer::read_image);
        let mut images: Vec<StoredImage> = all.filter_map(Result::ok).collect();
        images.stable_sort_by(|a, b| a.id.cmp(&b.id));
        Ok(images)
    }

    /// Pulls with one credential. No runtime tells why a registry refuses: another credential is always worth a try.
    pub(super) async fn pull_with_credential(
        &self,
        reference: &str,
        credential: Option<&AuthConfig>,
        sandbox: Option<&SandboxConfig>,
    ) -> Result<String, RuntimeError> {
        let mut image = request::image_spec(reference, "");
        if let Some(sandbox) = sandbox {
            image.annotations.clone_from(&sandbox.annotations);
        }
        let mut request = wire::PullImageRequest {
            image: Some(image),
            auth: credential.map(|auth| wire::AuthConfigMessage {
                username: auth.username.clone(),
                password: auth.password.clone(),
                auth: auth.auth.clone(),
                server_address: String::new(),
                identity_token: auth.identity_token.clone(),
                registry_token: auth.registry_token.clone(),
            }),
            sandbox_config: sandbox.map(request::sandbox_config),
        };
        let mut answer = wire::TextMessage::default();
        let asked =
            self.images
                .ask_once(CallKind::Pull, "PullImage", &mut request, &mut answer, None);
        asked.await.map_err(|status| match status.code {
            // A full disk has no code of its own.
            GrpcCode::UNKNOWN if status.message.contains(DISK_FULL) => {
                RuntimeError::Full(status.message)
            }
            GrpcCode::UNKNOWN => RuntimeError::Denied(status.message),
            GrpcCode::UNAVAILABLE | GrpcCode::CANCELED => {
                translate_failure("PullImage", None, status)
            }
            _ => RuntimeError::Denied(status.to_string()),
        })?;
        match answer.word {
            word if word.is_empty() => Err(nonsense_answer("a pull without an image")),
            // A name with a digest: the runtime is asked for the image's id (CRI-73).
            word if word.contains('@') => match self.ask_image(&word).await? {
                Some(image) => Ok(image.id),
                None => Err(RuntimeError::NotFound(word)),
            },
            word => Ok(word),
        }
    }

    /// Removes an image. Refuses one that an instance is made of or mounts: not every runtime would refuse (CRI-75).
    pub(super) async fn remove_unused_image(&self, id: &str) -> Result<(), RuntimeError> {
        let Some(image) = self.ask_image(id).await? else {
            return Ok(());
        };
        for container in self.ask_containers(None).await? {
            let status = match self.ask_container_status(&container.id).await {
                Err(RuntimeError::NotFound(_)) => continue,
                // The list still tells its image, if not the images that it mounts: one unreadable container must not
                // keep all images.
                Err(RuntimeError::Failed(_)) => wire::ContainerStatusMessage::default(),
                status => status?,
            };
            let spec = container.image.unwrap_or_default();
            let mounted = status.mounts.into_iter().filter_map(|mount| mount.image);
            let mut used = mounted.map(|spec| spec.image).chain([
                spec.image,
                container.image_ref,
                container.image_id,
                status.image_id,
                status.image_ref,
            ]);
            if used.any(|used| used == image.id || image.repo_digests.contains(&used)) {
                let text = format!("image {id} is used by container {}", container.id);
                return Err(RuntimeError::Failed(text));
            }
        }
        let mut request = wire::ImageRequest {
            image: Some(request::image_spec(id, "")),
        };
        let answer = &mut wire::CriEmpty::default();
        unless_gone(
            self.ask_image_service("RemoveImage", &mut request, answer)
                .await,
        )
    }

    /// Asks for the directories of images and of writable layers.
    async fn ask_directories(&self) -> Result<RuntimeDirectories, RuntimeError> {
        let mut answer = wire::ImageFsInfoResponse::default();
        let request = &mut wire::CriEmpty::default();
        self.ask_image_service("ImageFsInfo", request, &mut answer)
            .await?;
        let images = first_place(answer.image_filesystems);
        let images = images.ok_or_else(|| nonsense_answer("no file system of images"))?;
        let layers = first_place(answer.container_filesystems);
        Ok(RuntimeDirectories {
            layers: layers.unwrap_or_else(|| images.clone()),
            images,
        })
    }

    /// Reads the file system of the images: the runtime tells its directory, the kernel its size.
    pub(super) async fn read_image_fs_info(&self) -> Result<FsInfo, RuntimeError> {
        self.read_image_directories().await.map(|(_, info)| info)
    }

    /// Asks for the runtime's directories, and reads the file system of the images.
    pub(super) async fn read_image_directories(
        &self,
    ) -> Result<(RuntimeDirectories, FsInfo), RuntimeError> {
        let places = self.ask_directories().await?;
        let path = places.images.clone();
        let looked = self.disk.run_job(move || {
            let found = disk_usage::read_file_system(&path);
            found.map_err(|e| RuntimeError::Failed(format!("{}: {e}", path.display())))
        });
        Ok((places, looked.await?))
    }
}

/// Directory of the first of these file systems.
fn first_place(all: Vec<wire::FilesystemUsage>) -> Option<PathBuf> {
    let first = all.into_iter().next()?.fs_id?.word;
    Some(PathBuf::from(first)).filter(|path| path.is_absolute())
}
