//! Checkpoints of running containers: CRIU writes the processes, and an archive takes these files and all else that a
//! restore needs (CKPT-01 to CKPT-04).
//!
//! ```text
//! <root>/checkpoints/.unfinished-…/   files/: what CRIU and this module write   archive: renamed once it is complete
//! ```
//!
//! The container runs on, also if CRIU is killed. Its own files are read while it runs.

mod rules;

use core::time::Duration;
use std::{
    env,
    fs::{self, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde_json::Value;

use self::rules::CheckpointSubject;
use super::{
    Runc, failed_at_step, failed_error, files,
    gate::ChildPriority,
    not_found, process,
    program::{self, OciRuntime},
    record::{self, ContainerRecord},
    tracers::may_trace,
};
use crate::{
    api::{ContainerId, cri::NamespaceMode, stats::StatsDetail},
    cgroup::Cgroups,
    error::error_chain,
    image::TreeArchiveWriter,
    runtime::RuntimeError,
    shim,
    sys::{
        child::{self, ChildOutput, Command},
        clock, disk_usage, file,
        lane::run_on_fresh_thread,
        open, remove,
    },
};

/// Beginning of the names of directories in which archives are made.
const UNFINISHED: &str = ".unfinished-";
/// Name of CRIU's configuration beside the files of an archive.
const CONFIGURATION: &str = "criu.conf";
/// Most bytes of output of a program that are kept.
const OUTPUT_BYTES: usize = 64 * 1024;
/// Bytes at the end of CRIU's log in which its last errors are looked for.
const LOG_END_BYTES: u64 = 64 * 1024;
/// Longest answer of `criu --version` and of the OCI runtime's `features`.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a checkpoint counts among the children that run: the rest of it is writing.
const CHECKPOINT_WIDTH_TIME: Duration = Duration::from_secs(10);

/// Lets the container go on at its end: CRIU stops it, and may be killed before it does so itself.
struct ThawGuard<'a> {
    cgroups: &'a Cgroups,
    group: &'a str,
}

impl Drop for ThawGuard<'_> {
    fn drop(&mut self) {
        if let Err(e) = self.cgroups.thaw_group(self.group) {
            log::warn!("after a checkpoint: {}", error_chain(&e));
        }
    }
}

/// Removes what an agent left that was killed while it made a checkpoint.
pub(super) fn remove_unfinished(dir: &Path) -> io::Result<()> {
    for name in files::sorted_names(dir)? {
        if name.starts_with(UNFINISHED) {
            remove::remove_path(&dir.join(name))?;
        }
    }
    Ok(())
}

impl Runc {
    /// Makes the archive `location` of a container. Its directory is made, and has nothing unfinished afterwards.
    pub(super) async fn checkpoint_instance(
        &self,
        id: &ContainerId,
        location: &Path,
        timeout: Duration,
    ) -> Result<(), RuntimeError> {
        let run_dir = self.container_dirs(id).run;
        let record: ContainerRecord = record::load_record(&run_dir)
            .map_err(failed_at_step("read the container record"))?
            .ok_or_else(|| not_found("container", id))?;
        let refused = |why: String| Err(RuntimeError::Failed(why));
        if record.config.security.namespaces.users.is_some() {
            return refused("pods with a user namespace have no checkpoints".into());
        }
        let shares = [NamespaceMode::Pod, NamespaceMode::Target];
        let security = &record.config.security;
        if shares.contains(&security.namespaces.pid) || may_trace(security) {
            // Meanwhile the group of a tracer would go on that is stopped while others are made beside it.
            return refused(
                "containers that share or may trace processes have no checkpoints".into(),
            );
        }
        if self.container_handler(id) == process::HANDLER {
            return refused("programs of the machine have no checkpoints".into());
        }
        let program = self.oci_runtime_of(id).map_err(failed_error)?;
        if !self.can_checkpoint(&program).await {
            let why = rules::NO_CRIU;
            return refused(format!(
                "rpc error: code = Unknown desc = {why}. Failed to checkpoint container \"{id}\""
            ));
        }
        if !self.is_running(&program, id).await? {
            return refused(format!("container {} is not running", record.config.name));
        }
        let parent = location.parent().unwrap_or(location).to_owned();
        let name = format!("{UNFINISHED}{id}-{}", clock::mono_now().0);
        let work = parent.join(name);
        let images = work.join("files/checkpoint");
        let prepare = {
            let (parent, configuration) = (parent.clone(), work.join(CONFIGURATION));
            move || {
                files::make_private_dir(&parent)?;
                remove_unfinished(&parent)?;
                file::make_dirs(&images, 0o700)?;
                fs::write(configuration, describe_shim_files(&run_dir)?)
            }
        };
        let prepared = self.disk.run_job(prepare).await;
        prepared.map_err(failed_at_step("make the directory of checkpoints"))?;
        let made = async {
            let room = self.demand_room(&record, &parent).await?;
            self.dump_processes(&program, &record, &work, timeout)
                .await?;
            self.write_archive(&program, record, &work, (location, room))
                .await
        };
        let made = made.await;
        let removed = self.disk.run_job(move || remove::remove_path(&work)).await;
        if let Err(e) = removed {
            log::warn!("container={id} unfinished checkpoint: {e}");
        }
        made
    }

    /// Looks for CRIU, and asks it and the OCI runtime for what they can.
    async fn can_checkpoint(&self, program: &OciRuntime) -> bool {
        let mut dirs = env::split_paths(&self.settings.search_path);
        let Some(criu) = dirs
            .by_ref()
            .map(|dir| dir.join("criu"))
            .find(|path| program::is_executable(path))
        else {
            return false;
        };
        let version = self.ask_program(&criu, "--version").await;
        let features = self.ask_program(&program.path, "features").await;
        let features: Value = serde_json::from_str(&features).unwrap_or_default();
        rules::is_criu_new_enough(&version) && !rules::lacks_checkpoints(&features)
    }

    /// Output of a program; empty if it fails.
    async fn ask_program(&self, program: &Path, word: &str) -> String {
        let command = Command::new(program)
            .env("PATH", &self.settings.search_path)
            .arg(word)
            .capture_output(OUTPUT_BYTES);
        let output = child::run_command(command, Some(PROBE_TIMEOUT)).await;
        output.map_or_else(
            |_| String::new(),
            |output| String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    }

    /// Asks the OCI runtime: a container that somebody has paused does not run.
    async fn is_running(
        &self,
        program: &OciRuntime,
        id: &ContainerId,
    ) -> Result<bool, RuntimeError> {
        if self.demand_running(id).is_err() {
            return Ok(false);
        }
        let root = self.runtime_root();
        let state = program
            .call_runtime(&root, "state", &[id], &self.gate)
            .await;
        let state: Value = serde_json::from_slice(&state.map_err(failed_error)?)
            .map_err(failed_at_step("read the state of the container"))?;
        Ok(state["status"] == "running")
    }

    /// Refuses a checkpoint that could fill the disk. Without a memory controller the container may have all memory that
    /// is in use. Returns the bytes that it may take.
    async fn demand_room(&self, record: &ContainerRecord, dir: &Path) -> Result<u64, RuntimeError> {
        let upper = self.container_dirs(&record.id).root.join("upper");
        let layer = disk_usage::measure_disk_usage(&self.disk, upper).await;
        let layer = layer.map_err(failed_at_step("count the container's files"))?;
        let usage = self.cgroups.read_usage(&record.cgroup, StatsDetail::Basic);
        let usage = usage.filter(|usage| usage.memory.is_some());
        let usage = usage.unwrap_or_else(|| self.cgroups.read_machine_usage(StatsDetail::Basic));
        let needed = [
            usage.memory.map_or(0, |memory| memory.working_set_bytes),
            usage.swap.map_or(0, |swap| swap.usage_bytes),
            layer.used_bytes,
        ];
        let needed = needed.into_iter().fold(0, u64::saturating_add);
        let free = disk_usage::read_file_system(dir).map_err(failed_at_step("read free space"))?;
        let room = rules::checkpoint_room(free.available_bytes);
        if needed <= room {
            return Ok(room);
        }
        Err(RuntimeError::Full(format!(
            "no space for checkpoint: it needs {needed} bytes, and may have a quarter of {} free bytes",
            free.available_bytes
        )))
    }

    /// Lets CRIU write the processes below `work`.
    async fn dump_processes(
        &self,
        program: &OciRuntime,
        record: &ContainerRecord,
        work: &Path,
        timeout: Duration,
    ) -> Result<(), RuntimeError> {
        let logs = work.join("files");
        let command = program
            .add_global_options(Command::new(&program.path), &self.runtime_root())
            .env("PATH", &self.settings.search_path)
            .env("CRIU_CONFIG_FILE", work.join(CONFIGURATION))
            .args(["checkpoint", "--image-path"])
            .arg(logs.join("checkpoint"))
            .arg("--work-path")
            .arg(&logs)
            .args(["--leave-running", &record.id])
            .capture_output(OUTPUT_BYTES);
        let thawed = ThawGuard {
            cgroups: &self.cgroups,
            group: &record.cgroup,
        };
        let command = self.gate.attach_lock(command);
        let call = child::run_command(command, Some(timeout));
        let output = self
            .gate
            .run_with_permit(ChildPriority::Connect, CHECKPOINT_WIDTH_TIME, call)
            .await;
        drop(thawed);
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(dump_error(&output, &logs.join("dump.log"))),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => Err(RuntimeError::Timeout {
                what: "checkpoint".into(),
                after: timeout,
            }),
            Err(e) => Err(failed_error(e)),
        }
    }

    /// Puts all files into one archive on a thread of its own: it may take minutes.
    async fn write_archive(
        &self,
        program: &OciRuntime,
        record: ContainerRecord,
        work: &Path,
        (location, room): (&Path, u64),
    ) -> Result<(), RuntimeError> {
        let dirs = self.container_dirs(&record.id);
        let state = shim::read_state(&dirs.run).ok().flatten();
        let subject = CheckpointSubject {
            id: &record.id,
            name: &record.config.name,
            image: &record.config.user_image,
            image_ref: &record.image_ref,
            runtime: &program.name,
            pid: state.map_or(0, |state| state.pid),
            created_at: record.created_at,
            started_at: record.started_at.unwrap_or(record.created_at),
            checkpointed_at: clock::wall_now().truncated_to_second(),
        };
        let texts = [
            ("config.dump", subject.config_dump().to_string()),
            ("status.dump", subject.status_dump().to_string()),
        ];
        let (work, location) = (work.to_owned(), location.to_owned());
        let pack = move || {
            let all = work.join("files");
            for (name, text) in texts {
                fs::write(all.join(name), text)?;
            }
            fs::copy(dirs.run.join("config.json"), all.join("spec.dump"))?;
            let archive = work.join("archive");
            let mut options = OpenOptions::new();
            let out = options.write(true).create_new(true).mode(0o600);
            let mut writer = TreeArchiveWriter::new(out.open(&archive)?, room);
            writer.add_tree(&all).map_err(io::Error::other)?;
            match open::open_log(Path::new(&record.log)) {
                Ok(log) => {
                    let added = writer.add_file("container.log", log);
                    added.map_err(io::Error::other)?;
                }
                Err(e) => log::warn!("a checkpoint is without the log of its container: {e}"),
            }
            let added = writer.add_overlay_diff("rootfs-diff.tar", &dirs.root.join("upper"));
            added.map_err(io::Error::other)?;
            writer.finish_archive()?;
            fs::rename(&archive, &location)?;
            file::sync_dir(location.parent().unwrap_or(&location))
        };
        let packed = run_on_fresh_thread("checkpoint", pack).await;
        let packed = packed.and_then(|packed| packed);
        packed.map_err(failed_at_step("write the archive"))
    }
}

/// Makes CRIU's configuration from the FIFOs that the shim in `run_dir` reads: its container writes to the same ones.
fn describe_shim_files(run_dir: &Path) -> io::Result<String> {
    let fifos = [shim::file::STDIN, shim::file::STDOUT, shim::file::STDERR];
    let inode = |name| fs::metadata(run_dir.join(name)).map(|meta| meta.ino());
    let inodes: Vec<u64> = fifos
        .into_iter()
        .filter_map(|name| inode(name).ok())
        .collect();
    let state = shim::read_state(run_dir).map_err(io::Error::other)?;
    let shim = PathBuf::from(format!("/proc/{}", state.map_or(0, |state| state.shim_pid)));
    // Bounded: by the files that a shim has open.
    for name in files::sorted_names(&shim.join("fd"))? {
        let meta = fs::metadata(shim.join("fd").join(&name));
        if !meta.is_ok_and(|meta| meta.file_type().is_fifo() && inodes.contains(&meta.ino())) {
            continue;
        }
        let fdinfo = fs::read_to_string(shim.join("fdinfo").join(&name))?;
        if let Some(mount_id) = rules::parse_mount_id(&fdinfo) {
            return Ok(rules::criu_configuration(Some((mount_id, &inodes))));
        }
    }
    Ok(rules::criu_configuration(None))
}

/// Makes the error of a failed dump: the words of the OCI runtime, and the last errors of CRIU.
fn dump_error(output: &ChildOutput, log: &Path) -> RuntimeError {
    let mut text = shim::runtime_message(&String::from_utf8_lossy(&output.stderr));
    let read_end = || {
        let mut file = fs::File::open(log)?;
        let begin = file.metadata()?.len().saturating_sub(LOG_END_BYTES);
        file.seek(SeekFrom::Start(begin))?;
        let mut end = Vec::new();
        file.take(LOG_END_BYTES).read_to_end(&mut end)?;
        Ok::<_, io::Error>(end)
    };
    let end = read_end().unwrap_or_default();
    let errors = rules::find_last_errors(&String::from_utf8_lossy(&end));
    if !errors.is_empty() {
        text = format!("{text}: {errors}");
    }
    RuntimeError::Failed(text)
}
