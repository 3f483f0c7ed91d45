//! Bytes written to the disk of the root directory, by writer, read when somebody asks (`picolet top disk`).

use super::{super::node::machine, Metrics};
use crate::{
    cgroup::Cgroups,
    image,
    logic::flash::{self, WrittenBytes},
    sys::proc,
};

/// Writes the page `/stats/disk`.
pub(super) async fn write_disk_page(metrics: &Metrics) -> String {
    let tools = &metrics.tools;
    let root = tools.settings.root_dir.clone();
    let cgroups = Cgroups::clone(&tools.cgroups);
    let [_, (_, shims), (_, pods)] = super::system_groups(&tools.settings.tree);
    let read = move || {
        let up = proc::uptime_s().unwrap_or(0);
        let disk = machine::disk_with_number(&root);
        let of_process = |pid: i32| -> Option<WrittenBytes> {
            let age = up.saturating_sub(proc::start_time(pid).ok()? / proc::TICKS);
            Some((proc::written_bytes(pid)?, age))
        };
        let shims = shims.filter(|path| cgroups.has_group(path));
        let shims = shims.map(|path| cgroups.list_pids(&path).into_iter());
        let number = disk.as_ref().map(|(_, number)| &**number);
        let of_pods = pods.zip(number);
        let agent = i32::try_from(std::process::id()).ok().and_then(of_process);
        flash::FlashWrites {
            agent,
            images_bytes: image::written_bytes(),
            // A kernel that does not count written bytes for the agent counts them for no process.
            shims: shims
                .filter(|_| agent.is_some())
                .map(|pids| pids.filter_map(of_process).collect()),
            pods: of_pods
                .and_then(|(path, number)| cgroups.read_written_bytes(&path, number))
                .map(|bytes| (bytes, up)),
            disk: disk.map(|(disk, _)| (disk, up)),
        }
    };
    flash::render_disk_page(&tools.disk.run_job(read).await)
}
