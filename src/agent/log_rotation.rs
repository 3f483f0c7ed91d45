//! Rotating the logs of running containers (LOG-06, IGC-04).

use std::path::PathBuf;

use super::ctx::Ctx;
use crate::{
    api::{ContainerId, cri::ContainerState},
    runtime::log_rotation,
};

/// Looks at every running container's log once and rotates what is too large.
pub(super) async fn pass(ctx: &Ctx) {
    let limit = ctx.cfg.logs.max_size_bytes;
    let max_files = usize::try_from(ctx.cfg.logs.max_files).unwrap_or(usize::MAX);
    let mut running: Vec<(ContainerId, PathBuf)> = Vec::new();
    for pod in ctx.view.statuses() {
        let containers = pod.containers.iter();
        let open =
            containers.filter(|c| c.state == ContainerState::Running && !c.log_path.is_empty());
        running.extend(open.map(|c| (c.id.clone(), PathBuf::from(&c.log_path))));
    }
    let due = ctx.disk.run(move || {
        let due =
            |(_, path): &(ContainerId, PathBuf)| log_rotation::is_due(path, limit).unwrap_or(false);
        running.into_iter().filter(due).collect::<Vec<_>>()
    });
    for (id, path) in due.await {
        let now = ctx.clock.wall();
        let live = path.clone();
        let rotated = match ctx
            .disk
            .run(move || log_rotation::rotate(&live, max_files, now))
            .await
        {
            Ok(rotated) => rotated,
            Err(e) => {
                ctx.complain(&format!(
                    "container={id} cannot rotate {}: {e}",
                    path.display()
                ));
                continue;
            }
        };
        if let Err(e) = ctx.runtime.reopen_log(&id).await {
            ctx.complain(&format!(
                "container={id} cannot reopen {}: {e}",
                path.display()
            ));
            if let Some(rotated) = rotated {
                let _ = ctx
                    .disk
                    .run(move || log_rotation::undo(&path, &rotated))
                    .await;
            }
        }
    }
}
