//! Surroundings that fail: shims die, the OCI runtime fails, hangs or is missing, the disk is full, read-only or slow.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command, time::Duration};

use super::{
    Options,
    audit::audit_briefly,
    world::{Kind, World},
};
use crate::{
    Failure,
    process::{find, output},
    wait::pass,
};

/// How long a trouble lasts while pods come and go.
const TROUBLE: Duration = Duration::from_secs(4);
/// Between two things done meanwhile.
const STEP: Duration = Duration::from_millis(400);
/// Pods that are resized beside those that are there, and times that one of all is.
const RESIZES: (u32, u32) = (18, 200);
const QUICK_RESIZES: (u32, u32) = (2, 30);
/// Between two of them.
const RESIZE_STEP: Duration = Duration::from_millis(150);
const RESIZES_PER_KILL: u32 = 10;
/// What a runtime does that refuses a call.
const NO: &str = "{ echo '{\"level\":\"error\",\"msg\":\"chaos says no\"}' >&2; exit 1; }";
/// Calls of the OCI runtime that can go wrong.
const VERBS: [&str; 5] = ["create", "start", "kill", "delete", "state"];

/// All shims die, with and without an agent.
pub(super) fn shims(world: &mut World, _: &Options) -> Result<String, Failure> {
    world.settle()?;
    let with = world.kill_shims()?;
    audit_briefly(world)?;
    world.stage.kill_agent()?;
    let without = world.kill_shims()?;
    world.stage.start_agent()?;
    Ok(format!("{with} killed under an agent, {without} without"))
}

/// Pods come and go for a while, and the agent dies once.
fn stir(world: &mut World) -> Result<(), Failure> {
    let steps = TROUBLE.as_millis() / STEP.as_millis();
    for step in 0..steps {
        world.churn()?;
        pass(STEP);
        if step == steps / 2 {
            world.stage.kill_agent()?;
            world.stage.start_agent()?;
        }
    }
    Ok(())
}

fn control(world: &World) -> PathBuf {
    world.stage.base.join("oci-trouble")
}

/// What is called in place of the OCI runtime, and where it is while there is none.
fn script(world: &World) -> PathBuf {
    world.stage.base.join("oci")
}

fn hidden(world: &World) -> PathBuf {
    world.stage.base.join("oci.hidden")
}

/// Restarts the agent with a script in place of the OCI runtime, which does `trouble` to the calls named in its file.
fn take_over_runc(world: &mut World, trouble: &str) -> Result<(), Failure> {
    let script = script(world);
    let runc = find("runc").ok_or("no runc")?;
    let text = format!(
        "#!/bin/sh\nbad=$(cat {control} 2>/dev/null)\nfor word; do\n  case \" $bad \" in *\" $word \"*) {trouble};; esac\ndone\nexec {runc} \"$@\"\n",
        control = control(world).display(),
        runc = runc.display(),
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    world.stage.kill_agent()?;
    let flag = format!("--oci-runtime={}", script.display());
    world.stage.flags.push(flag);
    world.stage.start_agent()
}

fn give_runc_back(world: &mut World) -> Result<(), Failure> {
    let _ = fs::remove_file(control(world));
    world.stage.kill_agent()?;
    world.stage.flags.pop();
    world.stage.start_agent()
}

/// Pods are resized again and again. Each tenth update fails, and the agent dies often.
pub(super) fn resizes(world: &mut World, options: &Options) -> Result<String, Failure> {
    // An emulated processor has an image of what it needs.
    let few = options.quick || options.from.is_some();
    let (pods, resizes) = if few { QUICK_RESIZES } else { RESIZES };
    for _ in 0..pods {
        world.add(Kind::Member)?;
    }
    world.settle()?;
    let count = world.stage.base.join("updates");
    fs::write(control(world), "update")?;
    let refuse = format!(
        "echo >> {count}; [ $(($(wc -l < {count}) % 10)) = 0 ] && {NO}",
        count = count.display()
    );
    take_over_runc(world, &refuse)?;
    for n in 1..=resizes {
        world.hold_session()?;
        world.resize_any()?;
        pass(RESIZE_STEP);
        if n % RESIZES_PER_KILL == 0 {
            world.stage.kill_agent()?;
            world.stage.start_agent()?;
        }
    }
    audit_briefly(world)?;
    give_runc_back(world)?;
    let updates = fs::read(&count)?.len();
    for _ in 0..pods {
        world.remove_oldest(Kind::Member)?;
    }
    let kills = resizes / RESIZES_PER_KILL;
    Ok(format!(
        "{resizes} of {pods} pods and more, {kills} kills, {updates} updates, of which {} failed",
        updates / 10
    ))
}

/// Each call of runc fails for a while, then all of them.
pub(super) fn runc_fails(world: &mut World, _: &Options) -> Result<String, Failure> {
    world.frugal = true;
    take_over_runc(world, NO)?;
    for verbs in VERBS
        .into_iter()
        .map(str::to_owned)
        .chain([VERBS.join(" ")])
    {
        fs::write(control(world), &verbs)?;
        stir(world)?;
        fs::remove_file(control(world))?;
        audit_briefly(world).map_err(|e| format!("after {verbs} failed: {e}"))?;
    }
    give_runc_back(world)?;
    world.frugal = false;
    Ok(format!("{} and all of them", VERBS.join(", ")))
}

/// Each call of runc does not answer for a while; the agent dies meanwhile.
pub(super) fn runc_hangs(world: &mut World, _: &Options) -> Result<String, Failure> {
    world.frugal = true;
    take_over_runc(world, "sleep 7")?;
    for verb in VERBS {
        fs::write(control(world), verb)?;
        stir(world)?;
        fs::remove_file(control(world))?;
        audit_briefly(world).map_err(|e| format!("after {verb} hung: {e}"))?;
    }
    give_runc_back(world)?;
    world.frugal = false;
    Ok(VERBS.join(", "))
}

/// The runtime is gone: pods that go must still end, those that stay run on.
pub(super) fn runc_missing(world: &mut World, _: &Options) -> Result<String, Failure> {
    world.frugal = true;
    world.add(Kind::Plain)?;
    world.settle()?;
    take_over_runc(world, ":")?;
    let (script, hidden) = (script(world), hidden(world));
    fs::rename(&script, &hidden)?;
    world.remove_oldest(Kind::Plain)?;
    world.settle()?;
    world.stage.kill_agent()?;
    world.stage.start_agent()?;
    world.remove_oldest(Kind::Full)?;
    world.settle()?;
    fs::rename(&hidden, &script)?;
    world.add(Kind::Full)?;
    audit_briefly(world)?;
    give_runc_back(world)?;
    world.frugal = false;
    Ok("pods ended without it".into())
}

/// Not a byte is free.
pub(super) fn disk_full(world: &mut World, _: &Options) -> Result<String, Failure> {
    world.frugal = true;
    let filler = world.stage.base.join("root/filler");
    world.settle()?;
    fill(&filler)?;
    world.stage.kill_agent()?;
    world.stage.start_agent()?;
    world.remove_oldest(Kind::Full)?;
    world.settle()?;
    stir(world)?;
    fs::remove_file(filler)?;
    world.frugal = false;
    Ok("filled under churn".into())
}

/// Writes until nothing more fits.
fn fill(path: &PathBuf) -> Result<(), Failure> {
    use std::io::Write as _;
    let mut file = fs::File::create(path)?;
    for size in [1 << 20, 4096, 1] {
        let block = vec![b'x'; size];
        while file.write_all(&block).is_ok() {}
    }
    // What is written later than now must not find that blocks were only promised.
    let _ = file.sync_all();
    Ok(())
}

/// The disk is mounted read-only, as the kernel does after an error.
pub(super) fn disk_read_only(world: &mut World, _: &Options) -> Result<String, Failure> {
    world.frugal = true;
    world.settle()?;
    // A mount that an agent has its lock file open on is not made read-only.
    world.stage.kill_agent()?;
    remount(world, "ro")?;
    // Those that stay are shown by an agent that never wrote a byte.
    world.stage.start_agent()?;
    world.settle()?;
    // The one that goes ends, and is shown as long as its files cannot be removed.
    if let Some(name) = world.remove_oldest(Kind::Full)? {
        world.ends(&name)?;
    }
    stir(world)?;
    remount(world, "rw")?;
    world.frugal = false;
    Ok("under churn".into())
}

fn remount(world: &World, how: &str) -> Result<(), Failure> {
    // The mount, not the file system: while containers have it open for writing, the latter is refused.
    let root = world.stage.base.join("root");
    output(
        Command::new("mount")
            .arg("-o")
            .arg(format!("remount,bind,{how}"))
            .arg(&root),
    )
    .map(drop)
}

/// The disk does not answer for a while: what needs it waits, and nothing else does.
pub(super) fn disk_slow(world: &mut World, _: &Options) -> Result<String, Failure> {
    let root = world.stage.base.join("root");
    let freeze = |how: &str| output(Command::new("fsfreeze").arg(how).arg(&root)).map(drop);
    for _ in 0..3 {
        freeze("-f")?;
        let stirred = (|| {
            for _ in 0..5 {
                world.churn()?;
                pass(STEP);
            }
            // The loop answers although its disk does not.
            world.stage.client(&["get", "node"]).map(drop)
        })();
        freeze("-u")?;
        stirred?;
        world.stage.kill_agent()?;
        world.stage.start_agent()?;
        audit_briefly(world)?;
    }
    Ok("frozen three times".into())
}

/// Undoes what a phase that failed may have left.
pub(super) fn heal(world: &mut World) {
    let root = world.stage.base.join("root");
    let _ = output(Command::new("fsfreeze").arg("-u").arg(&root));
    let _ = remount(world, "rw");
    let _ = fs::remove_file(root.join("filler"));
    let _ = fs::remove_file(control(world));
    let _ = fs::rename(hidden(world), script(world));
}
