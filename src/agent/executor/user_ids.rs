//! Host ids of pods with a user namespace: chosen once, and kept beside the pod's record before anything uses them. Taken
//! are the ids of these files, which go with the directories of their pods, and of all sandboxes that the runtime has. What
//! another agent on this machine gave its pods is not known.
//!
//! While a pod's sandbox lives its ids are those of the sandbox: a file that was lost is written again.

use core::time::Duration;
use std::path::Path;

use super::generation::ConfigGenerator;
use crate::{
    agent::pod_store::PodStore,
    api::{
        Pod, PodError, PodUid,
        cri::{IdMap, SandboxStatus, UserNamespaceSupport},
    },
    logic::user_namespaces::{PodIds, find_ids_in_use, read_map_file, write_map_file},
    runtime::RuntimeError,
    sys::{
        child::{self, Command, find_system_program},
        file,
    },
};

/// Bytes read of a pod's file.
const MAX_FILE_BYTES: u64 = 4096;
/// Bytes read of the list of users.
const MAX_PASSWD_BYTES: u64 = 1 << 20;
/// Bytes kept of what `getsubids` says.
const MAX_OUTPUT_BYTES: usize = 4096;
/// Time for `getsubids`: it may ask a server.
const SUB_IDS_TIMEOUT: Duration = Duration::from_secs(30);

impl ConfigGenerator {
    /// Finds the ids of the pod's user namespace; `None`: it has the machine's. They are chosen only if it has no `sandbox`
    /// that lives.
    ///
    /// # Errors
    /// The runtime or the machine cannot do it, all ids are taken, or the pod's file cannot be read.
    pub(super) async fn find_user_ids(
        &self,
        pod: &Pod,
        handler: &str,
        sandbox: Option<&SandboxStatus>,
    ) -> Result<Option<IdMap>, PodError> {
        if pod.spec.host_users != Some(false) {
            return Ok(None);
        }
        let uid = &pod.metadata.uid;
        let found = self.find_or_choose_ids(uid, handler, sandbox).await;
        let told = |e: PodError| PodError::Node(format!("hostUsers: false: {e}"));
        found.map(Some).map_err(told)
    }

    async fn find_or_choose_ids(
        &self,
        uid: &PodUid,
        handler: &str,
        sandbox: Option<&SandboxStatus>,
    ) -> Result<IdMap, PodError> {
        let support = self.runtime.capabilities().judge_user_namespaces(handler);
        if let UserNamespaceSupport::Lacks(why) = support {
            return Err(PodError::Node(why));
        }
        let (store, of) = (self.store.clone(), uid.clone());
        if let Some(sandbox) = sandbox {
            let made_with = sandbox.namespaces.users;
            let find = move || keep_ids_in_use(&store, &of, made_with);
            return self.disk.run_job(find).await;
        }
        if let Some(known) = self.disk.run_job(move || read_ids(&store, &of)).await? {
            return Ok(known);
        }
        let all = self.read_pod_ids().await?;
        let living = self.read_living_ids().await?;
        let (store, of) = (self.store.clone(), uid.clone());
        // In one go on the lane: no other pod chooses meanwhile.
        self.disk
            .run_job(move || choose_ids(&store, &of, all, living))
            .await
    }

    /// Ids of all sandboxes that the runtime has, whatever the files say.
    async fn read_living_ids(&self) -> Result<Vec<IdMap>, PodError> {
        let failed = |e: RuntimeError| PodError::Node(format!("list the sandboxes: {e}"));
        let mut living = Vec::new();
        for pod in self.runtime.list_pods().await.map_err(failed)? {
            let status = self.runtime.pod_status(&pod.uid).await.map_err(failed)?;
            let sandboxes = status.sandboxes.iter();
            living.extend(sandboxes.filter_map(|sandbox| sandbox.namespaces.users));
        }
        Ok(living)
    }

    /// The ids that pods may get: those of the user `kubelet` if the machine has one, else all (UNS-30).
    async fn read_pod_ids(&self) -> Result<PodIds, PodError> {
        let read = || file::read_start(Path::new("/etc/passwd"), MAX_PASSWD_BYTES);
        let passwd = self.disk.run_job(read).await.unwrap_or_default();
        let mut users = passwd.split(|byte| *byte == b'\n');
        let program = match users.any(|line| line.starts_with(b"kubelet:")) {
            true => find_system_program("getsubids"),
            false => None,
        };
        let Some(program) = program else {
            return Ok(PodIds::of_whole_host(self.ids_per_pod));
        };
        let mut told = [String::new(), String::new()];
        for (told, kind) in told.iter_mut().zip([None, Some("-g")]) {
            let command = Command::new(&program).args(kind).arg("kubelet");
            let command = command.capture_output(MAX_OUTPUT_BYTES);
            let failed =
                |why: String| PodError::Node(format!("getsubids for user \"kubelet\": {why}"));
            let output = child::run_command(command, Some(SUB_IDS_TIMEOUT)).await;
            let output = output.map_err(|e| failed(e.to_string()))?;
            if !output.status.success() {
                let text = String::from_utf8_lossy(&output.stderr);
                return Err(failed(text.trim().to_owned()));
            }
            *told = String::from_utf8_lossy(&output.stdout).into_owned();
        }
        let [users, groups] = told;
        PodIds::from_sub_ids(&users, &groups, self.ids_per_pod, self.max_pods)
    }
}

fn read_ids(store: &PodStore, uid: &PodUid) -> Result<Option<IdMap>, PodError> {
    let read = store
        .read_user_ids(uid, MAX_FILE_BYTES)
        .map_err(|e| PodError::Node(format!("user namespace mappings file: {e}")));
    let text = read?;
    text.map(|text| read_map_file(&text)).transpose()
}

fn keep_ids(store: &PodStore, uid: &PodUid, ids: IdMap) -> Result<(), PodError> {
    let kept = store.keep_user_ids(uid, write_map_file(ids).as_bytes());
    kept.map_err(|e| PodError::Node(format!("keep its ids: {e}")))
}

/// The ids of a pod whose sandbox lives; its file has them afterwards.
fn keep_ids_in_use(
    store: &PodStore,
    uid: &PodUid,
    made_with: Option<IdMap>,
) -> Result<IdMap, PodError> {
    let found = find_ids_in_use(read_ids(store, uid), made_with)?;
    if let Some(why) = found.lost {
        log::warn!(
            "uid={uid} hostUsers: false: {why}; it is written again, with the ids of the sandbox"
        );
        keep_ids(store, uid, found.ids)?;
    }
    Ok(found.ids)
}

/// Chooses ids that neither a file nor one of the `living` sandboxes has.
fn choose_ids(
    store: &PodStore,
    uid: &PodUid,
    all: PodIds,
    living: Vec<IdMap>,
) -> Result<IdMap, PodError> {
    if let Some(known) = read_ids(store, uid)? {
        return Ok(known);
    }
    let pods = store.all_recorded_pods();
    let pods = pods.map_err(|e| PodError::Node(format!("read the pods on the disk: {e}")))?;
    let mut taken = living;
    // A pod with a bad file waits, and what of it still runs is among the living.
    let known = pods.iter().map(|pod| read_ids(store, pod));
    taken.extend(known.filter_map(|ids| ids.ok().flatten()));
    let chosen = all.choose_range(&taken);
    let none = || PodError::Node("all ids for user namespaces are taken".into());
    let chosen = chosen.ok_or_else(none)?;
    keep_ids(store, uid, chosen)?;
    Ok(chosen)
}
