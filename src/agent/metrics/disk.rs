//! Disk use of files: walked through when somebody asks, and at most once in `volumeStatsAggPeriod`.
//!
//! Everything runs in slices on the disk lane, so that pods go on in between. Files that take too long are left out,
//! and tried again with the next period.

use alloc::rc::Rc;
use core::time::Duration;
use std::{fs, path::Path};

use smol::future::FutureExt as _;

use super::{Metrics, MetricsTools};
use crate::{
    api::{
        MonoTime,
        stats::{DiskUsage, PodUsage, VolumeUsage},
    },
    logic::metrics::sample::DiskSample,
    sys::disk_usage,
};

/// Time of all walks of one round together.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Bytes of the mount table that are looked through for the device of the root directory.
const MAX_MOUNTS: u64 = 256 * 1024;

/// Returns the disk use of files, at most one period old.
pub(super) async fn files_disk_usage(metrics: &Metrics, pods: &[PodUsage]) -> Rc<DiskSample> {
    let now = metrics.tools.clock.now();
    if let Some((at, disk)) = &*metrics.disk.borrow()
        && now - *at < metrics.tools.settings.volume_stats
    {
        return Rc::clone(disk);
    }
    let disk = Rc::new(walk_disk(metrics, pods, now + MAX_TIME).await);
    *metrics.disk.borrow_mut() = Some((now, Rc::clone(&disk)));
    disk
}

async fn walk_disk(metrics: &Metrics, pods: &[PodUsage], until: MonoTime) -> DiskSample {
    let tools = &metrics.tools;
    let root = tools.settings.root_dir.clone();
    let of_node = tools.disk.run_job(move || {
        let fs = disk_usage::read_file_system(&root).ok();
        (fs, mounted_device(&root).unwrap_or_default())
    });
    let (node_fs, device) = of_node.await;
    let images = tools.runtime.list_images().await.ok();
    let mut disk = DiskSample {
        at: tools.clock.wall_time(),
        node_fs,
        device,
        image_fs: tools.runtime.image_fs_info().await.ok(),
        images_bytes: images.map(|all| all.iter().map(|image| image.size_bytes).sum()),
        ..DiskSample::default()
    };
    for pod in pods {
        let in_time = async {
            count_pod_files(tools, pod, &mut disk).await;
            true
        };
        let late = async {
            tools.clock.sleep_until(until).await;
            false
        };
        // Dropping a walk ends it with the slice that runs.
        if !in_time.or(late).await {
            tools
                .complaints
                .complain("files of pods are too many to be counted in time");
            break;
        }
    }
    for claim in &*super::claims::claim_usage(metrics).await {
        let volumes = disk.volumes.entry(claim.uid.clone()).or_default();
        volumes.push(VolumeUsage {
            name: claim.volume.clone(),
            claim: Some(claim.claim.clone()),
            ephemeral: false,
            used: Some(DiskUsage::of_filesystem(&claim.fs)),
            fs: Some(claim.fs),
        });
    }
    disk
}

async fn count_pod_files(tools: &MetricsTools, pod: &PodUsage, disk: &mut DiskSample) {
    let files = tools.files.count_pod_files(pod).await;
    let containers = pod.containers.iter().zip(files.containers);
    for (container, files) in containers {
        disk.containers.insert(container.id.clone(), files);
    }
    let hosts = files.hosts.map(|hosts| (pod.uid.clone(), hosts));
    disk.hosts.extend(hosts);
    disk.volumes.insert(pod.uid.clone(), files.volumes);
}

/// The device that a directory is on, as the mount table names it. Source: proc_pid_mountinfo(5).
fn mounted_device(dir: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let table = fs::File::open("/proc/self/mountinfo").ok()?;
    table.take(MAX_MOUNTS).read_to_string(&mut text).ok()?;
    find_mounted_device(&text, dir).map(str::to_owned)
}

/// Finds the device of `dir` in a mount table. The longest mount point counts; of mounts on top of each other, the last
/// one.
fn find_mounted_device<'a>(mounts: &'a str, dir: &Path) -> Option<&'a str> {
    let covering = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?;
        dir.starts_with(point)
            .then_some((point.len(), right.split(' ').nth(1)?))
    });
    covering
        .max_by_key(|(len, _)| *len)
        .map(|(_, device)| device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_below() {
        let mounts = "\
21 1 8:2 / / rw - ext4 /dev/root rw
22 21 0:5 / /proc rw - proc proc rw
30 21 8:3 / /var rw shared:1 - ext4 /dev/sda3 rw
31 21 8:4 / /var/li rw - ext4 /dev/sda4 rw
rubbish
";
        for (dir, want) in [
            ("/var/lib/picolet", Some("/dev/sda3")),
            ("/srv", Some("/dev/root")),
            ("relative", None),
        ] {
            assert_eq!(find_mounted_device(mounts, Path::new(dir)), want, "{dir}");
        }
    }
}
