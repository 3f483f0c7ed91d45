//! The test API server in the place of a control plane, run as a program.

use std::{
    env, fs,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use super::client::Client;
use crate::{
    Failure,
    process::{cargo, output, run},
    wait::until,
};

/// Names the program where it is built already.
pub(crate) const DOUBLE: &str = "PICOLET_TEST_APISERVER";
/// It listens again, or not any more.
const TURNED: Duration = Duration::from_secs(10);

/// The running server; ends with its value, and with this task.
pub(crate) struct Double {
    child: Child,
}

impl Double {
    /// Where it is: the file that [`DOUBLE`] names, or built here.
    pub(crate) fn build() -> Result<PathBuf, Failure> {
        if let Some(file) = env::var_os(DOUBLE) {
            return Ok(std::path::absolute(file)?);
        }
        let build = || {
            let mut command = cargo();
            command.args(["build", "--package", "picolet-test-apiserver"]);
            command.args(["--bin", "test-apiserver"]);
            command
        };
        run(build().arg("--quiet"))?;
        // Nothing is built the second time: this only asks where the file is.
        let messages = output(build().args(["--message-format", "json"]))?;
        let path: PathBuf = messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find_map(|m| Some(m.get("executable")?.as_str()?.into()))
            .ok_or("cargo named no program")?;
        Ok(env::current_dir()?.join(path))
    }

    /// Starts `program` with more options. `dir` is an empty directory.
    pub(crate) fn start(
        program: &Path,
        dir: &Path,
        options: &[&str],
    ) -> Result<(Self, Client), Failure> {
        let log = File::create(dir.join("test-apiserver.log"))?;
        let mut child = Command::new(program)
            .arg("--dir")
            .arg(dir)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let double = Self { child };
        if !line.starts_with("ready ") {
            let log = fs::read_to_string(dir.join("test-apiserver.log")).unwrap_or_default();
            return Err(format!("the test API server does not start: {log}").into());
        }
        let client = Client::of_kubeconfig(&fs::read_to_string(dir.join("admin.kubeconfig"))?)?;
        Ok((double, client))
    }

    /// Nobody is answered, or everybody again.
    pub(crate) fn set_down(&mut self, client: &Client, down: bool) -> Result<(), Failure> {
        let stdin = self.child.stdin.as_mut().ok_or("it is not to be told")?;
        stdin.write_all(if down { b"down\n" } else { b"up\n" })?;
        stdin.flush()?;
        until(TURNED, || match (client.get("/readyz"), down) {
            (Ok(_), false) | (Err(_), true) => Ok(()),
            (Err(e), false) => Err(e),
            (Ok(_), true) => Err("it still answers".into()),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
