//! The yardstick: runc and the CNI plugins, called one after the other with nothing around them.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use super::{LIMIT, SHORT_LIVED, SLEEP, account::Account, median};
use crate::{
    Failure,
    process::{find, output, run, show},
    stage::Stage,
    wait::{Watch, until_each},
};

/// How often a stopped container is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// Bundles, leases and states below the stage's directory; removed with the value.
pub(super) struct Bare {
    base: PathBuf,
    state: PathBuf,
    bridge: String,
    runc: PathBuf,
    plugins: PathBuf,
}

/// What one container costs, and what it costs to end it.
pub(super) struct Times {
    pub(super) up: Duration,
    pub(super) up_cpu: Duration,
    pub(super) down: Duration,
    pub(super) down_cpu: Duration,
}

impl Bare {
    pub(super) fn new(stage: &Stage) -> Result<Self, Failure> {
        let plugins = ["/usr/lib/cni", "/opt/cni/bin"]
            .iter()
            .map(PathBuf::from)
            .find(|dir| dir.join("bridge").exists())
            .ok_or("no CNI plugins")?;
        let bare = Self {
            base: stage.base.join("bare"),
            state: PathBuf::from(format!("/run/picolet-{}-bare", stage.mark)),
            bridge: format!("b{}", stage.mark),
            runc: find("runc").ok_or("no runc")?,
            plugins,
        };
        fs::create_dir_all(&bare.state)?;
        // As the agent's run directory: in memory.
        run(Command::new("mount")
            .args(["-t", "tmpfs", "picolet-bench"])
            .arg(&bare.state))?;
        let bin = bare.base.join("rootfs/bin");
        fs::create_dir_all(&bin)?;
        for dir in ["proc", "sys", "dev", "etc", "tmp"] {
            fs::create_dir_all(bare.base.join("rootfs").join(dir))?;
        }
        fs::copy(
            crate::install::static_busybox().ok_or("no static busybox")?,
            bin.join("busybox"),
        )?;
        fs::create_dir_all(bare.base.join("template"))?;
        output(
            Command::new(&bare.runc)
                .arg("spec")
                .current_dir(bare.base.join("template")),
        )?;
        Ok(bare)
    }

    /// Starts and ends `count` containers one after the other, each of which ends at SIGTERM.
    pub(super) fn singles(&self, count: usize) -> Result<Times, Failure> {
        let mut account = Account::open(&self.bridge)?;
        account.enter("caller")?;
        let (mut ups, mut downs) = (Vec::new(), Vec::new());
        let (mut up_cpu, mut down_cpu) = (Duration::ZERO, Duration::ZERO);
        for n in 0..count {
            let name = format!("single{n}");
            let start = account.used()?;
            let watch = Watch::start();
            self.start(&name, &SHORT_LIVED)?;
            ups.push(watch.elapsed());
            let middle = account.used()?;
            let watch = Watch::start();
            self.end(&name)?;
            downs.push(watch.elapsed());
            up_cpu += middle.saturating_sub(start);
            down_cpu += account.used()?.saturating_sub(middle);
        }
        let count = u32::try_from(count)?;
        Ok(Times {
            up: median(&mut ups),
            up_cpu: up_cpu / count,
            down: median(&mut downs),
            down_cpu: down_cpu / count,
        })
    }

    /// Starts `count` containers, `parallel` at a time; how long until all run, and until all are gone again.
    pub(super) fn crowd(
        &self,
        count: usize,
        parallel: usize,
    ) -> Result<(Duration, Duration), Failure> {
        let next = AtomicUsize::new(0);
        let each = |job: &(dyn Fn(&str) -> Result<(), String> + Sync)| -> Result<(), String> {
            next.store(0, Ordering::SeqCst);
            thread::scope(|scope| {
                let workers: Vec<_> = (0..parallel)
                    .map(|_| {
                        scope.spawn(|| {
                            loop {
                                let n = next.fetch_add(1, Ordering::SeqCst);
                                if n >= count {
                                    return Ok(());
                                }
                                job(&format!("crowd{n}"))?;
                            }
                        })
                    })
                    .collect();
                workers
                    .into_iter()
                    .try_for_each(|w| w.join().unwrap_or_else(|_| Err("a worker panicked".into())))
            })
        };
        let watch = Watch::start();
        each(&|name| self.start(name, &SLEEP).map_err(|e| e.to_string()))?;
        let up = watch.elapsed();
        let watch = Watch::start();
        each(&|name| {
            self.stop(name);
            Ok(())
        })?;
        Ok((up, watch.elapsed()))
    }

    fn netns(&self, name: &str) -> String {
        format!("{}-{name}", self.bridge)
    }

    fn start(&self, name: &str, args: &[&str]) -> Result<(), Failure> {
        let netns = self.netns(name);
        output(Command::new("ip").args(["netns", "add", &netns]))?;
        let result = self.plugin("bridge", "ADD", name, &self.network("bridge", None))?;
        self.plugin(
            "portmap",
            "ADD",
            name,
            &self.network("portmap", Some(&result)),
        )?;

        let bundle = self.base.join(name);
        fs::create_dir_all(&bundle)?;
        let template = fs::read(self.base.join("template/config.json"))?;
        let mut spec: Value = serde_json::from_slice(&template)?;
        spec["process"]["terminal"] = false.into();
        let args: Vec<_> = ["/bin/busybox"].iter().chain(args).collect();
        spec["process"]["args"] = json!(args);
        spec["root"] = json!({ "path": self.base.join("rootfs"), "readonly": true });
        spec["hostname"] = name.into();
        spec["linux"]["cgroupsPath"] = format!("/{}/{name}", self.bridge).into();
        for space in spec["linux"]["namespaces"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            if space["type"] == "network" {
                space["path"] = format!("/run/netns/{netns}").into();
            }
        }
        fs::write(bundle.join("config.json"), serde_json::to_vec(&spec)?)?;
        let mut command = self.runc();
        command
            .args(["run", "--detach", "--pid-file"])
            .arg(bundle.join("pid"))
            .arg("--bundle")
            .arg(&bundle)
            .arg(name);
        // Not captured: the container keeps these descriptors for its life.
        let status = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{}: {status}", show(&command)).into())
        }
    }

    /// Ends a container as it should be ended: asked first, and cleaned up after.
    fn end(&self, name: &str) -> Result<(), Failure> {
        let pid: u32 = fs::read_to_string(self.base.join(name).join("pid"))?
            .trim()
            .parse()?;
        output(self.runc().args(["kill", name, "TERM"]))?;
        until_each(LOOK, LIMIT, || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                Ok(())
            } else {
                Err(format!("{name} does not end").into())
            }
        })?;
        output(self.runc().args(["delete", name]))?;
        self.disconnect(name);
        Ok(())
    }

    /// Ends what [`Bare::start`] made, as far as it got.
    fn stop(&self, name: &str) {
        let _ = output(self.runc().args(["delete", "--force", name]));
        self.disconnect(name);
    }

    fn disconnect(&self, name: &str) {
        for plugin in ["portmap", "bridge"] {
            let _ = self.plugin(plugin, "DEL", name, &self.network(plugin, None));
        }
        let _ = output(Command::new("ip").args(["netns", "delete", &self.netns(name)]));
    }

    fn runc(&self) -> Command {
        let mut command = Command::new(&self.runc);
        command.arg("--root").arg(self.state.join("runc"));
        command
    }

    fn network(&self, plugin: &str, previous: Option<&Value>) -> Value {
        let mut config = json!({
            "cniVersion": "0.4.0",
            "name": self.bridge,
            "type": plugin,
        });
        if plugin == "bridge" {
            config["bridge"] = self.bridge.as_str().into();
            config["isGateway"] = true.into();
            config["ipMasq"] = true.into();
            config["ipam"] = json!({
                "type": "host-local",
                "dataDir": self.state.join("leases"),
                "ranges": [[{ "subnet": "10.214.0.0/16" }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            });
        } else {
            config["snat"] = true.into();
        }
        if let Some(previous) = previous {
            config["prevResult"] = previous.clone();
        }
        config
    }

    fn plugin(
        &self,
        plugin: &str,
        verb: &str,
        name: &str,
        config: &Value,
    ) -> Result<Value, Failure> {
        let mut child = Command::new(self.plugins.join(plugin))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", format!("{}{name}", self.bridge))
            .env("CNI_NETNS", Path::new("/run/netns").join(self.netns(name)))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(config.to_string().as_bytes())?;
        }
        let done = child.wait_with_output()?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stdout);
            return Err(format!("{plugin} {verb}: {}: {}", done.status, said.trim()).into());
        }
        Ok(serde_json::from_slice(&done.stdout).unwrap_or_default())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let list = output(self.runc().args(["list", "--quiet"])).unwrap_or_default();
        for name in list.lines() {
            self.stop(name);
        }
        let _ = output(Command::new("ip").args(["link", "delete", &self.bridge]));
        for hierarchy in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = fs::remove_dir(hierarchy.path().join(&self.bridge));
        }
        let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(&self.bridge));
        let _ = output(Command::new("umount").arg(&self.state));
        let _ = fs::remove_dir_all(&self.state);
        let _ = fs::remove_dir_all(&self.base);
    }
}
