//! `cargo xtask bench pull`: a large image from a registry on loopback, beside `skopeo copy` and `umoci raw unpack`.
//!
//! Both sides take turns, each from nothing: what one round does to caches and disk, it does to both. umoci writes no list
//! of what it unpacked here (`unpack` would), and neither side of the bare pair waits for the disk, as the agent does.

use std::{
    fs::{self, File},
    io::{BufWriter, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{aim, mib, proc, table::Table};
use crate::{
    Failure, image, install,
    process::{output, run},
    stage::Stage,
    wait::{Watch, pass, until},
};

/// Layers of the image.
const LAYERS: u64 = 4;
/// Files of a layer, and bytes of each: 100 MiB, of which 75 are left when they are compressed.
const FILES: u64 = 400;
const FILE_BYTES: usize = 256 * 1024;
/// Name of the image in the registry.
const NAME: &str = "bench/large";
/// Each side pulls so often; medians count.
const ROUNDS: usize = 3;
/// Between two looks at the agent's memory.
const LOOK: Duration = Duration::from_millis(10);
/// A registry that does not listen by then does not start.
const START_LIMIT: Duration = Duration::from_secs(20);

/// docker-registry, ended with its value.
struct Registry {
    child: Child,
    address: SocketAddr,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures and judges.
pub(super) fn run_on(mut stage: Stage) -> Result<(), Failure> {
    let missing = install::ensure(&[&install::TEST])?;
    if !missing.is_empty() {
        return Err(format!("still missing after installation: {}", missing.join(", ")).into());
    }
    println!("Filling a registry");
    let registry = start_registry(&stage.base)?;
    let image = format!("{}/{NAME}:1", registry.address);
    let layout = stage.base.join("layout");
    write_layout(&layout)?;
    copy(
        &format!("oci:{}:1", layout.display()),
        &format!("docker://{image}"),
    )?;
    fs::remove_dir_all(&layout)?;
    let bytes = fetched_bytes(&image)?;

    stage.start_agent()?;
    let agent = stage.agent_pid().ok_or("no agent runs")?;
    let (mut ours, mut theirs, mut most) = (Vec::new(), Vec::new(), 0);
    let idle = proc::memory(agent)?.pss;
    for round in 1..=ROUNDS {
        let bare = bare(&image, &stage.base.join("bare"))?;
        let (time, pss) = pull(&stage, agent, &image)?;
        println!(
            "Round {round}: picolet {:.2} s, at most {:.2} MiB; skopeo and umoci {:.2} s",
            time.as_secs_f64(),
            mib(pss),
            bare.as_secs_f64()
        );
        ours.push(time);
        theirs.push(bare);
        most = most.max(pss);
    }
    let after = proc::memory(agent)?.pss;

    let mut table = Table::default();
    table.show(
        format!("image, {LAYERS} layers at once, compressed"),
        format!("{} MiB", bytes >> 20),
    );
    table.show("agent before, PSS", format!("{:.2} MiB", mib(idle)));
    table.at_most("agent while it pulls, PSS", mib(most), aim::PULL_MIB, "MiB");
    table.show("agent after, PSS", format!("{:.2} MiB", mib(after)));
    table.beside(
        "pull: fetched, checked, unpacked, durable",
        median(ours),
        median(theirs),
        aim::PULL,
    );
    table.print();
    stage.stop_all()?;
    stage.dismantle()?;
    match table.missed().as_slice() {
        [] => Ok(()),
        missed => Err(format!("aims missed: {}", missed.join("; ")).into()),
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// One pull into an empty store: its time, and the most memory that the agent had, KiB.
fn pull(stage: &Stage, agent: u32, image: &str) -> Result<(Duration, u64), Failure> {
    settle()?;
    let over = AtomicBool::new(false);
    let (time, most) = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !over.load(Ordering::SeqCst) {
                most = most.max(proc::memory(agent).map_or(0, |m| m.pss));
                pass(LOOK);
            }
            most
        });
        let watch = Watch::start();
        let pulled = stage.client(&["image", "pull", "--quiet", image]);
        let time = watch.elapsed();
        over.store(true, Ordering::SeqCst);
        let most = watcher.join().map_err(|_| "the watcher panicked")?;
        pulled.map(|_| (time, most))
    })?;
    stage.client(&["image", "rm", image])?;
    Ok((time, most))
}

/// The same by other programs.
fn bare(image: &str, dir: &Path) -> Result<Duration, Failure> {
    fs::create_dir(dir)?;
    settle()?;
    let layout = dir.join("layout");
    let watch = Watch::start();
    copy(
        &format!("docker://{image}"),
        &format!("oci:{}:1", layout.display()),
    )?;
    run(Command::new("umoci")
        .args(["raw", "unpack", "--image"])
        .arg(format!("{}:1", layout.display()))
        .arg(dir.join("rootfs")))?;
    let time = watch.elapsed();
    fs::remove_dir_all(dir)?;
    Ok(time)
}

/// What was written before is on disk, so that nobody writes beside what is measured.
fn settle() -> Result<(), Failure> {
    run(&mut Command::new("sync"))
}

fn copy(from: &str, to: &str) -> Result<(), Failure> {
    run(Command::new("skopeo")
        .args(["--insecure-policy", "copy", "--quiet"])
        .args([
            "--src-tls-verify=false",
            "--dest-tls-verify=false",
            from,
            to,
        ]))
}

/// Bytes of the image's layers as they are fetched.
fn fetched_bytes(image: &str) -> Result<u64, Failure> {
    let manifest = output(
        Command::new("skopeo")
            .args(["inspect", "--tls-verify=false", "--raw"])
            .arg(format!("docker://{image}")),
    )?;
    let manifest: Value = serde_json::from_str(&manifest)?;
    let layers = manifest["layers"].as_array().ok_or("no layers")?;
    Ok(layers.iter().filter_map(|l| l["size"].as_u64()).sum())
}

fn start_registry(base: &Path) -> Result<Registry, Failure> {
    // Free a moment ago; whoever takes it meanwhile makes the registry fail, loudly.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let config = json!({
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": true}},
        "storage": {"filesystem": {"rootdirectory": base.join("registry")}},
        "http": {"addr": address.to_string()},
    });
    let file = base.join("registry.yml");
    fs::write(&file, config.to_string())?;
    let child = Command::new("docker-registry")
        .arg("serve")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut registry = Registry { child, address };
    until(START_LIMIT, || {
        if let Some(status) = registry.child.try_wait()? {
            return Ok(Err(format!("docker-registry ended: {status}")));
        }
        TcpStream::connect(address)?;
        Ok(Ok(()))
    })??;
    Ok(registry)
}

/// An OCI layout with one image, tagged `1`; skopeo compresses its layers.
fn write_layout(dir: &Path) -> Result<(), Failure> {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let put = |kind: &str, data: &[u8]| -> Result<Value, Failure> {
        let digest = image::hex(data);
        fs::write(blobs.join(&digest), data)?;
        Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": data.len()}))
    };
    let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
    for n in 0..LAYERS {
        let (digest, size) = write_layer(&blobs, n)?;
        let digest = format!("sha256:{digest}");
        layers.push(json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": digest, "size": size,
        }));
        diff_ids.push(digest);
    }
    let config = json!({
        "architecture": image::architecture(), "os": "linux",
        "config": {"Cmd": ["/none"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?,
        "layers": layers,
    });
    let mut top = put(
        "application/vnd.oci.image.manifest.v1+json",
        manifest.to_string().as_bytes(),
    )?;
    top["annotations"] = json!({"org.opencontainers.image.ref.name": "1"});
    let index = json!({"schemaVersion": 2, "manifests": [top]});
    fs::write(dir.join("index.json"), index.to_string())?;
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(())
}

/// Writes one layer; its digest and its bytes.
fn write_layer(blobs: &Path, n: u64) -> Result<(String, u64), Failure> {
    let path: PathBuf = blobs.join("new");
    let mut tar = tar::Builder::new(BufWriter::new(File::create(&path)?));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(n + 1);
    let mut data = vec![0; FILE_BYTES];
    for file in 0..FILES {
        // Six bits of eight: about as much as libraries and programs leave.
        for byte in &mut data {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = b' ' + (state.to_le_bytes()[4] & 0x3f);
        }
        let mut header = tar::Header::new_gnu();
        header.set_size(FILE_BYTES as u64);
        header.set_mode(0o644);
        let name = format!("layer{n}/{}/file{file}", file % 20);
        tar.append_data(&mut header, name, &data[..])?;
    }
    tar.into_inner()?.flush()?;
    let (mut hash, mut size, mut file) = (Sha256::new(), 0, File::open(&path)?);
    loop {
        match file.read(&mut data)? {
            0 => break,
            n => {
                hash.update(&data[..n]);
                size += n as u64;
            }
        }
    }
    let digest: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    fs::rename(path, blobs.join(&digest))?;
    Ok((digest, size))
}
