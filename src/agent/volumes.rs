//! Volumes of a pod, on the way to the disk lane: contents from `logic::projection`, effects in `volume`.

use alloc::collections::BTreeMap;
use core::cell::Ref;
use std::{io::Read as _, os::fd::OwnedFd, path::Path};

use nix::fcntl::OFlag;

use super::{
    ctx::Ctx,
    objects::Objects,
    recorder::Severity,
    sync::{SyncError, chain},
};
use crate::{
    api::{ConfigMap, Pod, Secret},
    logic::{env, pod_resources, projection, qos},
    sys::open,
    volume::{MountedVolume, PodVolumes},
};

/// Bytes read of a file for a `fileKeyRef`.
const MAX_ENV_FILE_BYTES: u64 = 1 << 20;

/// Volumes of a pod that can be mounted now, by name.
pub(super) type Mounted = BTreeMap<String, MountedVolume>;

/// Sets up all volumes of the pod and refreshes the projected ones (SYNC-09).
pub(super) async fn set_up(ctx: &Ctx, pod: &Pod) -> Result<Mounted, SyncError> {
    if pod.spec.volumes.is_empty() {
        return Ok(Mounted::new());
    }
    let nothing = Mounted::new();
    let files = {
        let objects = PodObjects {
            ctx,
            mounted: &nothing,
        };
        projection::pod_files(pod, &objects.borrow(), ctx.node_context.allocatable)
    };
    let failed = |message: String| {
        ctx.pod_event(pod, Severity::Warning, "FailedMount", &message);
        SyncError::new(message)
    };
    let request = PodVolumes::of(pod, Some(tmpfs_limit(ctx, pod)), files, BTreeMap::new())
        .map_err(|e| failed(e.to_string()))?;
    let volumes = ctx.volumes.clone();
    let set_up = ctx.disk.run(move || volumes.set_up(&request)).await;
    for failure in &set_up.failed {
        ctx.pod_event(pod, Severity::Warning, "FailedMount", &chain(failure));
    }
    set_up
        .into_result()
        .map_err(|e| SyncError::new(format!("Unable to attach or mount volumes: {}", chain(&e))))
}

/// Most bytes one tmpfs of the pod may hold: its memory limit, else what all pods may ask for together (VOL-10).
fn tmpfs_limit(ctx: &Ctx, pod: &Pod) -> u64 {
    let limit = pod_resources::pod_sum(pod, pod_resources::Amount::Limits, qos::MEMORY);
    let limit = limit
        .and_then(|bytes| u64::try_from(bytes).ok())
        .filter(|bytes| *bytes > 0);
    let most = u64::try_from(ctx.node_context.allocatable.memory_bytes).unwrap_or(0);
    limit.map_or(most, |bytes| bytes.min(most))
}

/// Objects a pod may refer to: those of the manifest directory, and files of its own volumes.
pub(super) struct PodObjects<'a> {
    pub(super) ctx: &'a Ctx,
    pub(super) mounted: &'a Mounted,
}

/// [`PodObjects`] for as long as the store of objects is borrowed.
pub(super) struct Borrowed<'a> {
    objects: Ref<'a, Objects>,
    mounted: &'a Mounted,
}

impl<'a> PodObjects<'a> {
    pub(super) fn borrow(&self) -> Borrowed<'a> {
        Borrowed {
            objects: self.ctx.objects.borrow(),
            mounted: self.mounted,
        }
    }
}

impl env::Objects for Borrowed<'_> {
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<&ConfigMap>, String> {
        Ok(self.objects.config_map(namespace, name))
    }

    fn secret(&self, namespace: &str, name: &str) -> Result<Option<&Secret>, String> {
        Ok(self.objects.secret(namespace, name))
    }

    fn volume_file(&self, volume: &str, path: &str) -> Result<String, String> {
        let mounted = self
            .mounted
            .get(volume)
            .ok_or_else(|| format!("volume {volume:?} is not mounted"))?;
        let read = || -> std::io::Result<String> {
            let root: OwnedFd = open::dir(&mounted.host_path)?;
            let file = open::beneath(
                &root,
                Path::new(path),
                OFlag::O_RDONLY | OFlag::O_NONBLOCK,
                0,
            )?;
            let mut text = String::new();
            file.take(MAX_ENV_FILE_BYTES).read_to_string(&mut text)?;
            Ok(text)
        };
        // The kind of the error only: the owner of the pod need not know the host's paths.
        read().map_err(|e| format!("file {path:?} in volume {volume:?}: {}", e.kind()))
    }

    fn service_account_token(&self, _: &str, _: Option<i64>) -> Result<Vec<u8>, String> {
        Err("service account tokens need an API server".into())
    }
}
