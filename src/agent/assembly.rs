//! What runs the calls of workers, put together once.

use alloc::rc::Rc;

use super::{
    ctx::Ctx,
    executor::{Executors, Generator, Hooks, Killer, Mounter, Starter, Syncer, Terminator},
};

/// What runs the calls of this agent's workers.
pub(super) fn executors(ctx: &Ctx) -> Executors {
    let runtime = || Rc::clone(&ctx.runtime);
    let recorder = || Rc::clone(&ctx.recorder);
    let of_api = || ctx.cluster.as_ref().map(|c| Rc::clone(&c.objects));
    let hooks = Hooks {
        runtime: runtime(),
        clock: Rc::clone(&ctx.clock),
        recorder: recorder(),
        wire: Rc::clone(&ctx.wire),
    };
    let killer = Killer {
        runtime: runtime(),
        clock: Rc::clone(&ctx.clock),
        recorder: recorder(),
        hooks: hooks.clone(),
    };
    let generator = Generator {
        runtime: runtime(),
        context: Rc::clone(ctx.node.context()),
        store: ctx.store.clone(),
        disk: ctx.disk.clone(),
        volumes: ctx.volumes.clone(),
        recorder: recorder(),
        of_api: of_api(),
        resolv_conf: ctx.cfg.network.resolv_conf.clone(),
        pod_logs: ctx.cfg.dirs.pod_logs.clone(),
    };
    let mounter = Mounter {
        volumes: ctx.volumes.clone(),
        disk: ctx.disk.clone(),
        recorder: recorder(),
        of_api: of_api(),
        context: Rc::clone(ctx.node.context()),
    };
    let starter = Starter {
        runtime: runtime(),
        images: Rc::clone(&ctx.images),
        generator,
        hooks,
        killer: killer.clone(),
        recorder: recorder(),
        disk: ctx.disk.clone(),
        of_api: of_api(),
        run_dir: ctx.cfg.dirs.run.clone(),
        container_logs: ctx.cfg.dirs.container_logs.clone(),
    };
    let syncer = Syncer {
        store: ctx.store.clone(),
        disk: ctx.disk.clone(),
        runtime: runtime(),
        recorder: recorder(),
        complaints: Rc::clone(&ctx.complaints),
        cgroups: ctx.pod_cgroups.clone(),
        mounter,
        killer: killer.clone(),
        starter,
    };
    let terminator = Terminator {
        store: ctx.store.clone(),
        disk: ctx.disk.clone(),
        runtime: runtime(),
        clock: Rc::clone(&ctx.clock),
        recorder: recorder(),
        complaints: Rc::clone(&ctx.complaints),
        cgroups: ctx.pod_cgroups.clone(),
        volumes: ctx.volumes.clone(),
        killer,
        of_api: of_api(),
    };
    Executors { syncer, terminator }
}
