//! The audit audited: everything it must find is left behind on purpose, and has to be found.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::json;

use super::{
    Options,
    audit::{self, audit},
    cluster::session_word,
    ledger::WITNESS,
    world::{Kind, World},
};
use crate::{
    Failure,
    process::{find, output},
};

/// The agent is away meanwhile: it would clean up some of it.
pub(super) fn planted(world: &mut World, _: &Options) -> Result<String, Failure> {
    let plants: &[_] = match world.cluster.is_some() {
        true => &IN_CLUSTER,
        false => &PLANTS,
    };
    audit(world)?;
    let pods = world.settle()?;
    world.stage.kill_agent()?;
    let victim = audit::sandbox_with_network(world, &pods)?;
    let mut found = Vec::new();
    for (what, plant) in plants {
        let (planted, words) = plant(world, &victim)?;
        let problems = audit::problems(world, &pods)?;
        drop(planted);
        if !problems.iter().any(|p| p.contains(&words)) {
            return Err(format!("the audit does not see {what} ({words}): {problems:?}").into());
        }
        found.push(*what);
    }
    world.stage.start_agent()?;
    Ok(format!("found {}", found.join(", ")))
}

/// Undoes what was planted when it is dropped.
type Planted = Box<dyn std::any::Any>;
/// Leaves something, given the id of a sandbox that is ready; with words that the audit must say.
type Plant = fn(&World, &str) -> Result<(Planted, String), Failure>;

const PLANTS: [(&str, Plant); 22] = [
    ("a mount", mount),
    ("a namespace", namespace),
    ("a process", process),
    ("a process in a pod's network", intruder),
    ("an interface", interface),
    ("a rule", |world, _| rule(world, "iptables", "10.121.255.9")),
    ("a rule of IPv6", |world, _| {
        rule(world, "ip6tables", "fd00:79::9")
    }),
    ("a chain", chain),
    ("a table of nft", table),
    ("an address", address),
    ("an attachment", left_attachment),
    ("a lost attachment", lost_attachment),
    ("a cgroup", cgroup),
    ("a pod at the provider", lamp),
    ("a pod's directory", |world, _| {
        let dir = world.stage.base.join("root/pods/left");
        directory(dir, "directory of pod left")
    }),
    ("a writable layer", |world, _| {
        let dir = world.stage.base.join("root/containers/left");
        directory(dir, "layer left")
    }),
    ("a log", |world, _| {
        let dir = world.stage.base.join("logs/default_pod_left");
        directory(dir, "logs default_pod_left")
    }),
    ("a second instance", twin),
    ("a layer of an image", |world, _| {
        let dir = world.stage.base.join("root/images/layers/left");
        directory(dir, "layer left of no image")
    }),
    ("a blob", |world, _| {
        let dir = world.stage.base.join("root/images/pulls/blobs/sha256");
        fs::create_dir_all(&dir)?;
        directory(dir.join("left"), "blob left of no image")
    }),
    ("a copy of an object", |world, _| {
        let dir = world.stage.base.join("root/objects");
        fs::create_dir_all(&dir)?;
        directory(dir.join("secret-left"), "copy secret-left of an object")
    }),
    ("a temporary file", |world, _| {
        let file = attachment(world, ".left").with_extension("json.tmp");
        fs::write(&file, "")?;
        let words = format!("{} was on its way", file.display());
        Ok((undo(move || drop(fs::remove_file(&file))), words))
    }),
];

/// What only a node of a cluster can leave.
const IN_CLUSTER: [(&str, Plant); 5] = [
    ("a copy of a token", |world, _| {
        let dir = world.stage.base.join("root/objects/token-left-left");
        directory(dir, "copy token-left-left of an object")
    }),
    ("a pod in the API", |world, _| {
        let cluster = world.cluster.as_ref().ok_or("no cluster")?;
        let spec = json!({"containers": [{"name": "main", "image": "none"}]});
        cluster.create("left", json!({"metadata": {"name": "left"}, "spec": spec}))?;
        // Nobody has begun it: by force it is gone at once.
        let path = "/api/v1/namespaces/default/pods/left";
        let client = cluster.client.clone();
        let planted = undo(move || drop(client.delete(path, Some(0))));
        Ok((planted, "pod left in the API, which is gone".into()))
    }),
    ("another phase in the API", phase),
    ("another memory limit", limit),
    ("the command of a session", |_, _| {
        let child = reader(&mut command("sh", &["-c", "read x", &session_word()])?)?;
        let words = format!("commands [{}] of sessions", child.id());
        Ok((ending(child), words))
    }),
];

/// Calls a function when it is dropped. What cannot be undone is found by the audit after this phase.
struct Undo<F: FnMut()>(F);

impl<F: FnMut()> Drop for Undo<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn undo(how: impl FnMut() + 'static) -> Planted {
    Box::new(Undo(how))
}

fn command(program: &str, words: &[&str]) -> Result<Command, Failure> {
    let mut command = Command::new(find(program).ok_or_else(|| format!("no {program}"))?);
    command.args(words);
    Ok(command)
}

fn call(program: &str, words: &[&str]) -> Result<(), Failure> {
    output(&mut command(program, words)?).map(drop)
}

fn undo_by(program: &'static str, words: &[&str]) -> Planted {
    let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
    undo(move || {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _ = call(program, &words);
    })
}

fn mount(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let dir = world.stage.run.join("left");
    fs::create_dir(&dir)?;
    let point = dir.display().to_string();
    call("mount", &["-t", "tmpfs", "none", &point])?;
    let planted = undo(move || {
        let _ = call("umount", &[&dir.display().to_string()]);
        let _ = fs::remove_dir(&dir);
    });
    Ok((planted, format!("mount {point} belongs to nothing")))
}

fn namespace(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let dir = world.stage.run.join("sandboxes/left");
    fs::create_dir_all(dir.join("ns"))?;
    let pin = dir.join("ns/net");
    fs::write(&pin, "")?;
    let path = pin.display().to_string();
    call("unshare", &[&format!("--net={path}"), "true"])?;
    let words = format!("mount {path} belongs to nothing");
    let planted = undo(move || {
        let _ = call("umount", &[&path]);
        let _ = fs::remove_dir_all(&dir);
    });
    Ok((planted, words))
}

/// A process that reads until it is ended.
fn reader(command: &mut Command) -> Result<Child, Failure> {
    Ok(command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?)
}

fn ending(mut child: Child) -> Planted {
    undo(move || {
        let _ = child.kill();
        let _ = child.wait();
    })
}

fn process(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let child = reader(&mut command("sh", &["-c", "read x", &world.stage.mark])?)?;
    let words = format!("process {}: ", child.id());
    Ok((ending(child), words))
}

fn intruder(world: &World, sandbox: &str) -> Result<(Planted, String), Failure> {
    let pin = pin(world, sandbox);
    let net = format!("--net={}", pin.display());
    // It tells when it is there, and has nothing of the stage's name in its words.
    let mut child = command("nsenter", &[&net, "sh", "-c", "echo; read x"])?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(said) = &mut child.stdout {
        std::io::Read::read_exact(said, &mut [0])?;
    }
    let words = format!("process {} in the network of sandbox {sandbox}", child.id());
    Ok((ending(child), words))
}

fn pin(world: &World, sandbox: &str) -> PathBuf {
    world
        .stage
        .run
        .join("sandboxes")
        .join(sandbox)
        .join("ns/net")
}

fn interface(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let name = "chaosleft";
    call("ip", &["link", "add", name, "type", "veth"])?;
    let planted = undo_by("ip", &["link", "delete", name]);
    call("ip", &["link", "set", name, "master", &world.stage.mark])?;
    Ok((planted, "the bridge has".into()))
}

fn rule(world: &World, iptables: &'static str, from: &str) -> Result<(Planted, String), Failure> {
    let comment = format!("name: \"picolet-{}\" id: \"left\"", world.stage.mark);
    let words = |how| {
        let rule = ["-s", from, "-m", "comment", "--comment", &comment];
        let mut words = vec!["-w", "-t", "nat", how, "POSTROUTING"];
        words.extend(rule);
        words.extend(["-j", "RETURN"]);
        words
    };
    call(iptables, &words("-A"))?;
    let planted = undo_by(iptables, &words("-D"));
    let found = format!("rule of a sandbox that is gone: -A POSTROUTING -s {from}");
    Ok((planted, found))
}

fn chain(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let uid = world.ledger.uids().pop().ok_or("no pod ever ran")?;
    let (chain, words) = audit::chain_of_old_sandbox(world, &uid);
    call("iptables", &["-w", "-t", "nat", "-N", &chain])?;
    Ok((
        undo_by("iptables", &["-w", "-t", "nat", "-X", &chain]),
        words,
    ))
}

fn table(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let mark = &world.stage.mark;
    call("nft", &["add", "table", "inet", mark])?;
    let planted = undo_by("nft", &["delete", "table", "inet", mark]);
    let found = format!("rule of a sandbox that is gone: table inet {mark}");
    Ok((planted, found))
}

/// What has succeeded is told to run.
fn phase(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let cluster = world.cluster.as_ref().ok_or("no cluster")?;
    let ended = world.pods.iter().find(|(_, kind)| **kind == Kind::Task);
    let name = ended.ok_or("no pod of the API has ended")?.0.clone();
    let path = format!("/api/v1/namespaces/default/pods/{name}/status");
    let told = |phase: &str| json!({"status": {"phase": phase}});
    cluster.client.patch(&path, &told("Running"))?;
    let client = cluster.client.clone();
    let planted = undo(move || drop(client.patch(&path, &told("Succeeded"))));
    Ok((planted, format!("pod {name} is Succeeded")))
}

/// The control group of a pod of the API has more memory than it asks for.
fn limit(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let groups = world.stage.cgroups().into_iter();
    let files =
        groups.flat_map(|dir| ["memory.limit_in_bytes", "memory.max"].map(|file| dir.join(file)));
    let is_of_pod = |path: &PathBuf| {
        let group = path.parent().and_then(Path::file_name);
        group.is_some_and(|name| name.to_string_lossy().starts_with("pod"))
            && path.iter().any(|part| part == "burstable")
    };
    let mut files = files.filter(|path| is_of_pod(path) && path.exists());
    let file = files.next().ok_or("no pod with a memory limit")?;
    let before = fs::read_to_string(&file)?;
    fs::write(&file, "268435456")?;
    let words = format!("{} is 268435456, not ", file.display());
    Ok((undo(move || drop(fs::write(&file, before.trim()))), words))
}

/// The file that says how a sandbox is attached to its network.
fn attachment(world: &World, sandbox: &str) -> PathBuf {
    let all = world.stage.run.join("cni/attachments");
    all.join(format!("{sandbox}.json"))
}

/// A second sandbox with the address of one that is there.
fn address(world: &World, sandbox: &str) -> Result<(Planted, String), Failure> {
    let file = attachment(world, "left");
    fs::copy(attachment(world, sandbox), &file)?;
    let planted = undo(move || drop(fs::remove_file(&file)));
    Ok((planted, "is lent to ".into()))
}

fn left_attachment(world: &World, sandbox: &str) -> Result<(Planted, String), Failure> {
    let (planted, _) = address(world, sandbox)?;
    let words = "attachment of sandbox left, which is gone".into();
    Ok((planted, words))
}

fn lost_attachment(world: &World, sandbox: &str) -> Result<(Planted, String), Failure> {
    let file = attachment(world, sandbox);
    let kept = world.stage.base.join("kept");
    fs::copy(&file, &kept)?;
    fs::remove_file(&file)?;
    let planted = undo(move || {
        let _ = fs::copy(&kept, &file);
        let _ = fs::remove_file(&kept);
    });
    Ok((planted, format!("sandbox {sandbox} has no attachment")))
}

fn cgroup(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let groups = world.stage.cgroups();
    let parent = groups
        .iter()
        .find(|dir| dir.ends_with("kubepods"))
        .ok_or("no cgroup of pods")?;
    let dir = parent.join("podleft");
    fs::create_dir(&dir)?;
    let words = format!("cgroup {} of a pod that does not run", dir.display());
    Ok((undo(move || drop(fs::remove_dir(&dir))), words))
}

fn lamp(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let lamps = world.lamps.as_ref().ok_or("there is no provider")?;
    let (file, before) = (lamps.file(), lamps.state());
    let mut more = before.clone();
    more["pods"]["left"] = json!({"told": {"name": "left"}});
    fs::write(&file, more.to_string())?;
    let planted = undo(move || drop(fs::write(&file, before.to_string())));
    Ok((planted, "do not agree on pod left".into()))
}

fn directory(dir: PathBuf, words: &str) -> Result<(Planted, String), Failure> {
    fs::create_dir(&dir)?;
    Ok((undo(move || drop(fs::remove_dir(&dir))), words.into()))
}

/// What a container does that is started beside itself: the witness finds the lock taken.
fn twin(world: &World, _: &str) -> Result<(Planted, String), Failure> {
    let dir = world.ledger.dir();
    let lock = living_lock(dir).ok_or("no container lives")?;
    let lines = lock.with_extension("");
    let before = fs::read(&lines)?;
    let witness = Command::new(dir.join(".witness"))
        .arg(WITNESS)
        .stdin(fs::File::open(&lock)?)
        .status()?;
    if witness.success() {
        return Err("the witness took a lock that is held".into());
    }
    fs::File::options()
        .append(true)
        .open(&lines)?
        .write_all(b"D\n")?;
    let planted = undo(move || drop(fs::write(&lines, &before)));
    Ok((planted, "ran twice at a time".into()))
}

fn living_lock(dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    entries.map(|e| e.path()).find(|path| {
        path.extension().is_some_and(|e| e == "lock")
            && fs::File::open(path).is_ok_and(|file| file.try_lock_shared().is_err())
    })
}
