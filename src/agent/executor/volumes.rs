//! Volumes of a pod, on the way to the disk lane: contents from `logic::projection`, effects in `volume`.

use alloc::{collections::BTreeMap, rc::Rc};
use std::{
    io::{ErrorKind, Read as _},
    path::Path,
};

use super::{cancel::CallCancel, errors::SyncError, steps::CallPlan};
use crate::{
    agent::{
        cluster::{self, LoadedObjects},
        objects::ManifestObjects,
        recorder::{EventRecorder, EventSeverity},
    },
    api::{ConfigMap, Container, Pod, PodError, Secret},
    error::error_chain,
    logic::{
        bound_volume::BoundVolume,
        cgroup, env,
        generate::NodeContext,
        pod_certificate::CertificatePair,
        pod_refs::{self, PodObjectKey},
        projection,
    },
    sys::{lane::Lane, open},
    volume::{EmptyDirMedium, MountedVolume, PodVolumes, VolumeSetUp, VolumeSource, Volumes},
};

/// Most bytes of a file for a `fileKeyRef`. Source: KEP-3721.
const MAX_ENV_FILE_BYTES: u64 = 64 << 10;

/// Volumes of a pod that can be mounted now, by name.
pub(crate) type MountedVolumes = BTreeMap<String, MountedVolume>;

/// Sets up volumes. Nothing is kept between two pods.
pub(in crate::agent) struct VolumeMounter {
    pub(in crate::agent) volumes: Volumes,
    pub(in crate::agent) disk: Lane,
    pub(in crate::agent) recorder: Rc<EventRecorder>,
    pub(in crate::agent) of_api: Option<Rc<cluster::ObjectStore>>,
    pub(in crate::agent) context: Rc<NodeContext>,
}

impl VolumeMounter {
    /// Sets up all volumes of the pod and refreshes the projected ones (SYNC-09).
    pub(in crate::agent) async fn set_up_volumes(
        &self,
        pod: &Pod,
        plan: &CallPlan,
    ) -> Result<MountedVolumes, SyncError> {
        if let Some(objects) = &self.of_api {
            objects.note_runtime_class(pod);
        }
        if pod.spec.volumes.is_empty() {
            return Ok(MountedVolumes::new());
        }
        let cancel = &*plan.cancel;
        let mut outside = self.external_volume_sources(pod, cancel).await;
        outside.extend(huge_page_volumes(pod));
        let loaded = match cluster::objects_for_pod(self.of_api.as_ref(), pod) {
            Some(objects) => Some(objects.load_for_volumes(pod, cancel).await),
            None => None,
        };
        if cancel.is_cancelled() {
            // What is not known now is nobody's fault, and nothing to tell of (VOL-28).
            return Err(SyncError::new("the pod is to end"));
        }
        let objects = PodObjects {
            objects: &plan.objects,
            files: &VolumeFiles::new(),
            loaded: loaded.as_ref(),
        };
        let files = projection::project_pod_files(pod, &objects, self.context.allocatable);
        for (reason, message) in loaded.iter().flat_map(LoadedObjects::certificate_warnings) {
            self.recorder
                .record_pod_event(pod, EventSeverity::Warning, reason, message);
        }
        drop(loaded);
        let failed = |message: &str| {
            let reason = "FailedMount";
            self.recorder
                .record_pod_event(pod, EventSeverity::Warning, reason, message);
        };
        let request = PodVolumes::from_pod(pod, Some(self.tmpfs_limit_bytes(pod)), files, outside);
        let mut request = request.map_err(|e| {
            let message = e.to_string();
            failed(&message);
            SyncError::new(message)
        })?;
        let volumes = self.volumes.clone();
        let checks = request.split_off_checks();
        let mut set_up = self
            .disk
            .run_job(move || volumes.set_up_volumes(&request))
            .await;
        if !checks.volumes.is_empty() {
            set_up.merge_others(check_host_paths(&self.volumes, &self.disk, checks).await);
        }
        for failure in &set_up.failed {
            failed(&error_chain(failure));
        }
        for (reason, message) in &set_up.warnings {
            self.recorder
                .record_pod_event(pod, EventSeverity::Warning, reason, message);
        }
        set_up.into_result().map_err(|e| {
            SyncError::new(format!(
                "Unable to attach or mount volumes: {}",
                error_chain(&e)
            ))
        })
    }

    /// Volumes that lie outside the pod's directory, by name: those that claims are bound to, and shares of the network, which
    /// are mounted here.
    async fn external_volume_sources(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
    ) -> BTreeMap<String, VolumeSource> {
        let mut sources = BTreeMap::new();
        let bound = match cluster::objects_for_pod(self.of_api.as_ref(), pod) {
            Some(objects) => objects.read_bound_volumes(pod, cancel).await,
            None => BTreeMap::new(),
        };
        for (name, bound) in bound {
            let source = match bound {
                Ok(bound) => self.bound_source(pod, bound).await,
                Err(why) => VolumeSource::Unknown(why.to_string()),
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
                let source = self.bound_source(pod, bound).await;
                sources.insert(volume.name.clone(), source);
            }
        }
        sources
    }

    async fn bound_source(&self, pod: &Pod, bound: BoundVolume) -> VolumeSource {
        let read_only = bound.read_only;
        if let Some(host) = bound.host_path {
            VolumeSource::HostPath {
                path: host.path,
                kind: host.kind.as_deref().unwrap_or_default().into(),
                read_only,
            }
        } else if let Some(path) = bound.local_path {
            VolumeSource::Local {
                name: bound.name,
                path,
                read_only,
            }
        } else if let Some(nfs) = bound.nfs {
            let share = cluster::NfsShare {
                server: nfs.server,
                path: nfs.path,
                options: bound.mount_options,
                read_only,
            };
            VolumeSource::Nfs {
                mounted: {
                    let uid = &pod.metadata.uid;
                    let name = &bound.name;
                    cluster::mount_nfs(&self.volumes, &self.disk, uid, name, &share).await
                },
                name: bound.name,
                read_only,
            }
        } else {
            VolumeSource::Unknown("its volume is of no kind".into())
        }
    }

    /// Most bytes one tmpfs of the pod may hold: its memory limit, else what all pods may ask for together (VOL-10).
    fn tmpfs_limit_bytes(&self, pod: &Pod) -> u64 {
        let limit = cgroup::memory_limit_bytes(pod)
            .and_then(|bytes| u64::try_from(bytes).ok())
            .filter(|bytes| *bytes > 0);
        let most = u64::try_from(self.context.allocatable.memory_bytes).unwrap_or(0);
        limit.map_or(most, |bytes| bytes.min(most))
    }
}

/// Looks at paths of the host, which may not answer.
async fn check_host_paths(volumes: &Volumes, disk: &Lane, request: PodVolumes) -> VolumeSetUp {
    let names: Vec<_> = request.volumes.iter().map(|v| v.name.clone()).collect();
    let (volumes, uid) = (volumes.clone(), request.uid.clone());
    let checked = disk.run_host_file_job(&uid, move || volumes.set_up_volumes(&request));
    let checked = checked.await;
    checked.unwrap_or_else(|e| VolumeSetUp::all_refused(&names, &error_chain(&e)))
}

/// Volumes of huge pages, by name: the size of their pages depends on what the containers request (VOL-14).
fn huge_page_volumes(pod: &Pod) -> impl Iterator<Item = (String, VolumeSource)> {
    pod.spec.volumes.iter().filter_map(|volume| {
        let empty = volume.empty_dir.as_ref()?;
        let medium = match cgroup::medium_page_size(pod, &empty.medium)? {
            Ok(bytes) => EmptyDirMedium::HugePages(bytes),
            Err(why) => EmptyDirMedium::Refused(why.to_string()),
        };
        // How much of it the pod may use its cgroup says.
        let size_limit = None;
        Some((
            volume.name.clone(),
            VolumeSource::EmptyDir { medium, size_limit },
        ))
    })
}

/// Texts of files in volumes, by volume and path.
pub(in crate::agent) type VolumeFiles<'a> = BTreeMap<(&'a str, &'a str), Result<String, PodError>>;

/// Reads the part of the environment of `container` that comes from files in its pod's volumes.
pub(in crate::agent) async fn read_volume_files<'a>(
    disk: &Lane,
    container: &'a Container,
    mounted: &MountedVolumes,
) -> VolumeFiles<'a> {
    let sources = container.env.iter().filter_map(|e| e.value_from.as_ref());
    let wanted = sources.filter_map(|source| source.file_key_ref.as_ref());
    let mut files = VolumeFiles::new();
    for file in wanted {
        let (volume, path) = (&*file.volume_name, &*file.path);
        if files.contains_key(&(volume, path)) {
            continue;
        }
        let text = match mounted.get(volume) {
            Some(mounted) => {
                let (dir, file) = (mounted.host_path.clone(), path.to_owned());
                let read = disk
                    .run_job(move || read_beneath(&dir, Path::new(&file)))
                    .await;
                // The kind of the error only: the owner of the pod need not know the host's paths.
                read.map_err(|e| {
                    let why = match e.kind() {
                        ErrorKind::FileTooLarge => {
                            format!("has more than {MAX_ENV_FILE_BYTES} bytes")
                        }
                        ErrorKind::InvalidData => "is not a text in UTF-8".into(),
                        ErrorKind::InvalidInput => "is not a regular file".into(),
                        kind => kind.to_string(),
                    };
                    PodError::Object(format!("file {path:?} in volume {volume:?}: {why}"))
                })
            }
            None => Err(not_mounted(volume)),
        };
        files.insert((volume, path), text);
    }
    files
}

fn not_mounted(volume: &str) -> PodError {
    PodError::Object(format!("volume {volume:?} is not mounted"))
}

fn read_beneath(dir: &Path, path: &Path) -> std::io::Result<String> {
    let file = open::open_file_beneath(open::open_dir(dir)?, path)?;
    let mut bytes = Vec::new();
    file.take(MAX_ENV_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_ENV_FILE_BYTES {
        return Err(ErrorKind::FileTooLarge.into());
    }
    String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into())
}

/// Objects a pod may refer to: those of the manifest directory or, for a pod of the apiserver, those that were loaded for
/// this step; and files of its own volumes.
pub(in crate::agent) struct PodObjects<'a> {
    pub(in crate::agent) objects: &'a ManifestObjects,
    pub(in crate::agent) files: &'a VolumeFiles<'a>,
    pub(in crate::agent) loaded: Option<&'a LoadedObjects>,
}

impl env::ReferencedObjects for PodObjects<'_> {
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<&ConfigMap>, PodError> {
        match self.loaded {
            Some(loaded) => loaded.config_map(name),
            None => Ok(self.objects.config_map(namespace, name)),
        }
    }

    fn secret(&self, namespace: &str, name: &str) -> Result<Option<&Secret>, PodError> {
        match self.loaded {
            Some(loaded) => loaded.secret(name),
            None => Ok(self.objects.secret(namespace, name)),
        }
    }

    fn volume_file(&self, volume: &str, path: &str) -> Result<String, PodError> {
        let known = self.files.get(&(volume, path));
        known.cloned().unwrap_or_else(|| Err(not_mounted(volume)))
    }

    fn trust_bundle(&self, key: &PodObjectKey) -> Result<Option<&str>, PodError> {
        match self.loaded {
            Some(loaded) => loaded.trust_bundle(key),
            None => Err(env::static_mode_error("ClusterTrustBundle")),
        }
    }

    fn pod_certificate(&self, volume: &str, source: usize) -> Result<&CertificatePair, PodError> {
        match self.loaded {
            Some(loaded) => loaded.pod_certificate(volume, source),
            None => Err(env::static_mode_error("PodCertificate")),
        }
    }

    fn service_account_token(
        &self,
        audience: &str,
        expiration_s: Option<i64>,
    ) -> Result<Vec<u8>, PodError> {
        match self.loaded {
            Some(loaded) => loaded.service_account_token(audience, expiration_s),
            None => Err(PodError::Node(
                "service account tokens need an API server".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::{pin::pin, time::Duration};

    use smol::{
        Timer,
        future::{self, poll_once},
    };

    use super::*;
    use crate::{dead_share::DeadShare, volume::PodVolume};

    #[test]
    fn a_path_of_the_host_that_does_not_answer() {
        // VOL-15
        let top = crate::testing::unused_path("check");
        let dir = top.join("share");
        let Some(share) = DeadShare::mount(&dir) else {
            return;
        };
        let volumes = Volumes::new(&top).expect("root");
        let disk = Lane::start("disk").expect("a thread");
        let request = PodVolumes {
            uid: "u".into(),
            volumes: vec![PodVolume {
                name: "v".into(),
                source: VolumeSource::HostPath {
                    path: dir.join("x").display().to_string(),
                    kind: "Directory".into(),
                    read_only: false,
                },
                nested: Vec::new(),
            }],
            ..PodVolumes::default()
        };
        let check = || async {
            let checked = check_host_paths(&volumes, &disk, request.clone()).await;
            checked.into_result().expect_err("no answer").to_string()
        };
        smol::block_on(async {
            let mut first = pin!(check());
            assert!(poll_once(&mut first).await.is_none());
            let late = async {
                Timer::after(Duration::from_secs(10)).await;
                String::from("nothing is said")
            };
            assert_eq!(
                future::or(check(), late).await,
                "MountVolume.SetUp failed for volume \"v\" : files of the host do not answer: \
                 is the server of a network file system gone?"
            );
            assert_eq!(disk.run_job(|| 1).await, 1, "the lane goes on");
            drop(share);
            let error = first.await;
            assert!(error.contains("hostPath type check failed"), "{error}");
        });
        std::fs::remove_dir_all(top).expect("clean");
    }

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
        let found: Vec<_> = huge_page_volumes(&pod).collect();
        let empty = |name: &str, medium| {
            let size_limit = None;
            (
                name.to_owned(),
                VolumeSource::EmptyDir { medium, size_limit },
            )
        };
        let refused = EmptyDirMedium::Refused("no container requests hugepages-1Gi".into());
        assert_eq!(
            found,
            [
                empty("a", EmptyDirMedium::HugePages(2 << 20)),
                empty("b", refused)
            ]
        );
    }

    #[test]
    fn files_of_variables_stay_in_their_volume() {
        // ENVF-01
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        let top = crate::testing::unused_path("variables");
        let dir = top.join("volume");
        let limit = usize::try_from(MAX_ENV_FILE_BYTES).expect("small");
        std::fs::create_dir_all(dir.join("dir")).expect("directory");
        for (path, content) in [
            ("../outside", b"A='secret'".to_vec()),
            ("dir/file", b"A='1'".to_vec()),
            ("longest", vec![b'#'; limit]),
            ("longer", vec![b'#'; limit + 1]),
            ("bytes", vec![0xff, b'\n']),
        ] {
            std::fs::write(dir.join(path), content).expect("file");
        }
        for (link, target) in [
            ("inside", "dir/file"),
            ("out", "../outside"),
            ("absolute", "/etc/passwd"),
        ] {
            std::os::unix::fs::symlink(target, dir.join(link)).expect("link");
        }
        let rw = Mode::S_IRUSR;
        mknod(&dir.join("fifo"), SFlag::S_IFIFO, rw, 0).expect("FIFO");
        // Without the right to make one the path is missing.
        let device = mknod(&dir.join("device"), SFlag::S_IFCHR, rw, makedev(1, 3));
        let of_device = match device {
            Ok(()) => "is not a regular file",
            Err(_) => "entity not found",
        };
        let disk = Lane::start("disk").expect("a thread");
        let volume = MountedVolume {
            host_path: dir.clone(),
            read_only: false,
            size_limit: None,
        };
        let mounted = [("v".to_owned(), volume)].into();
        for (path, want) in [
            ("dir/file", Ok("A='1'")),
            ("inside", Ok("A='1'")),
            ("longest", Ok("#")),
            ("longer", Err("has more than 65536 bytes")),
            ("bytes", Err("is not a text in UTF-8")),
            ("out", Err("")),
            ("absolute", Err("")),
            ("../outside", Err("")),
            ("dir", Err("is not a regular file")),
            ("fifo", Err("is not a regular file")),
            ("device", Err(of_device)),
            ("missing", Err("entity not found")),
        ] {
            let reference = serde_json::json!({"volumeName": "v", "path": path, "key": "A"});
            let container: Container = serde_json::from_value(serde_json::json!({"env": [
                {"name": "X", "valueFrom": {"fileKeyRef": reference}}]}))
            .expect("container");
            let files = smol::block_on(read_volume_files(&disk, &container, &mounted));
            match (&files[&("v", path)], want) {
                (Ok(text), Ok(start)) => assert!(text.starts_with(start), "{path}: {text}"),
                (Err(e), Err(why)) => {
                    let says = format!("file {path:?} in volume \"v\": {why}");
                    assert!(e.to_string().starts_with(&says), "{e}");
                    assert!(!e.to_string().contains(&*top.display().to_string()), "{e}");
                }
                (found, want) => panic!("{path}: {found:?} for {want:?}"),
            }
        }
        std::fs::remove_dir_all(top).expect("clean");
    }
}
