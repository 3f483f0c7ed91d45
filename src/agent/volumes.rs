//! Volumes of a pod, on the way to the disk lane: contents from `logic::projection`, effects in `volume`.

use alloc::collections::BTreeMap;
use core::cell::Ref;
use std::{io::Read as _, os::fd::OwnedFd, path::Path};

use nix::fcntl::OFlag;

use super::{
    cluster::{self, Loaded},
    ctx::Ctx,
    objects::Objects,
    recorder::Severity,
    sync::{SyncError, chain},
};
use crate::{
    api::{ConfigMap, Pod, Secret},
    logic::{bound_volume::BoundVolume, cgroup, env, pod_refs, pod_resources, projection, qos},
    sys::open,
    volume::{Medium, MountedVolume, PodVolumes, Source},
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
    let mut outside = outside(ctx, pod).await;
    outside.extend(of_huge_pages(pod));
    let loaded = match ctx.objects_of(pod) {
        Some(objects) => Some(objects.for_volumes(pod, ctx).await),
        None => None,
    };
    let uid = &pod.metadata.uid;
    let is_cancelled = || ctx.pods.is_pod_cancelled(uid);
    if is_cancelled() {
        // What is not known now is nobody's fault, and nothing to tell of (VOL-28).
        return Err(SyncError::new("the pod is to end"));
    }
    let files = {
        let objects = PodObjects {
            ctx,
            mounted: &nothing,
            loaded: loaded.as_ref(),
        };
        projection::pod_files(pod, &objects.borrow(), ctx.node.context().allocatable)
    };
    let failed = |message: String| {
        ctx.pod_event(pod, Severity::Warning, "FailedMount", &message);
        SyncError::new(message)
    };
    drop(loaded);
    let request = PodVolumes::of(pod, Some(tmpfs_limit(ctx, pod)), files, outside)
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

/// Volumes of huge pages, by name: the size of their pages depends on what the containers request (VOL-14).
fn of_huge_pages(pod: &Pod) -> impl Iterator<Item = (String, Source)> {
    pod.spec.volumes.iter().filter_map(|volume| {
        let empty = volume.empty_dir.as_ref()?;
        let medium = match cgroup::medium_page_size(pod, &empty.medium)? {
            Ok(bytes) => Medium::HugePages(bytes),
            Err(why) => Medium::Refused(why),
        };
        // How much of it the pod may use its cgroup says.
        let size_limit = None;
        Some((volume.name.clone(), Source::EmptyDir { medium, size_limit }))
    })
}

/// Volumes that lie outside the pod's directory, by name: those that claims are bound to, and shares of the network, which
/// are mounted here.
async fn outside(ctx: &Ctx, pod: &Pod) -> BTreeMap<String, Source> {
    let mut sources = BTreeMap::new();
    let bound = match ctx.objects_of(pod) {
        Some(objects) => objects.bound_volumes(pod, ctx).await,
        None => BTreeMap::new(),
    };
    for (name, bound) in bound {
        let source = match bound {
            Ok(bound) => bound_source(ctx, pod, bound).await,
            Err(why) => Source::Unknown(why),
        };
        sources.insert(name, source);
    }
    for volume in pod_refs::used_volumes(pod) {
        if let Some(nfs) = &volume.nfs {
            let bound = BoundVolume {
                name: volume.name.clone(),
                nfs: Some(nfs.clone()),
                read_only: nfs.read_only,
                ..BoundVolume::default()
            };
            let source = bound_source(ctx, pod, bound).await;
            sources.insert(volume.name.clone(), source);
        }
    }
    sources
}

async fn bound_source(ctx: &Ctx, pod: &Pod, bound: BoundVolume) -> Source {
    let read_only = bound.read_only;
    if let Some(host) = bound.host_path {
        Source::HostPath {
            path: host.path,
            kind: host.kind.as_deref().unwrap_or_default().into(),
            read_only,
        }
    } else if let Some(path) = bound.local_path {
        Source::Local {
            name: bound.name,
            path,
            read_only,
        }
    } else if let Some(nfs) = bound.nfs {
        let share = cluster::Share {
            server: nfs.server,
            path: nfs.path,
            options: bound.mount_options,
            read_only,
        };
        Source::Nfs {
            mounted: {
                let uid = &pod.metadata.uid;
                cluster::mount_nfs(&ctx.volumes, &ctx.disk, uid, &bound.name, &share).await
            },
            name: bound.name,
            read_only,
        }
    } else {
        Source::Unknown("its volume is of no kind".into())
    }
}

/// Most bytes one tmpfs of the pod may hold: its memory limit, else what all pods may ask for together (VOL-10).
fn tmpfs_limit(ctx: &Ctx, pod: &Pod) -> u64 {
    let limit = pod_resources::pod_sum(pod, pod_resources::Amount::Limits, qos::MEMORY);
    let limit = limit
        .and_then(|bytes| u64::try_from(bytes).ok())
        .filter(|bytes| *bytes > 0);
    let most = u64::try_from(ctx.node.context().allocatable.memory_bytes).unwrap_or(0);
    limit.map_or(most, |bytes| bytes.min(most))
}

/// Objects a pod may refer to: those of the manifest directory or, for a pod of the apiserver, those that were loaded for
/// this step; and files of its own volumes.
pub(super) struct PodObjects<'a> {
    pub(super) ctx: &'a Ctx,
    pub(super) mounted: &'a Mounted,
    pub(super) loaded: Option<&'a Loaded>,
}

/// [`PodObjects`] for as long as the store of objects is borrowed.
pub(super) struct Borrowed<'a> {
    objects: Ref<'a, Objects>,
    mounted: &'a Mounted,
    loaded: Option<&'a Loaded>,
}

impl<'a> PodObjects<'a> {
    pub(super) fn borrow(&self) -> Borrowed<'a> {
        Borrowed {
            objects: self.ctx.objects.borrow(),
            mounted: self.mounted,
            loaded: self.loaded,
        }
    }
}

impl env::Objects for Borrowed<'_> {
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<&ConfigMap>, String> {
        match self.loaded {
            Some(loaded) => loaded.config_map(name),
            None => Ok(self.objects.config_map(namespace, name)),
        }
    }

    fn secret(&self, namespace: &str, name: &str) -> Result<Option<&Secret>, String> {
        match self.loaded {
            Some(loaded) => loaded.secret(name),
            None => Ok(self.objects.secret(namespace, name)),
        }
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

    fn service_account_token(
        &self,
        audience: &str,
        expiration_s: Option<i64>,
    ) -> Result<Vec<u8>, String> {
        match self.loaded {
            Some(loaded) => loaded.token(audience, expiration_s),
            None => Err("service account tokens need an API server".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_huge_pages() {
        // VOL-14
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p"},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"hugepages-2Mi": "4Mi"}}}],
                "volumes": [
                    {"name": "a", "emptyDir": {"medium": "HugePages", "sizeLimit": "4Mi"}},
                    {"name": "b", "emptyDir": {"medium": "HugePages-1Gi"}},
                    {"name": "c", "emptyDir": {"medium": "Memory"}},
                    {"name": "d", "hostPath": {"path": "/"}},
                ],
            },
        }))
        .expect("a pod");
        let found: Vec<_> = of_huge_pages(&pod).collect();
        let empty = |name: &str, medium| {
            let size_limit = None;
            (name.to_owned(), Source::EmptyDir { medium, size_limit })
        };
        let refused = Medium::Refused("no container requests hugepages-1Gi".into());
        assert_eq!(
            found,
            [empty("a", Medium::HugePages(2 << 20)), empty("b", refused)]
        );
    }
}
