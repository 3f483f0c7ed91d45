//! The test API server as a process: `test-apiserver --dir DIR [options]`. Runs until its standard input ends. A line `down`
//! there closes the listening socket and all connections, a line `up` opens it.

use std::env;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use picolet_test_apiserver::{Builder, TestServer};

/// Bytes of a line of standard input.
const MAX_LINE: u64 = 256;

const USAGE: &str = "\
usage: test-apiserver --dir DIR [options]

Writes DIR/admin.kubeconfig and DIR/bootstrap.kubeconfig, then prints `ready URL` and serves until its standard input
ends. A line `down` there refuses all connections, a line `up` takes them.

  --graph-lag MS         how long after its binding a node may not read what a pod refers to (0)
  --managed-fields       objects say who wrote which field
";

struct Args {
    dir: PathBuf,
    builder: Builder,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut builder = TestServer::builder().controllers(true);
    let mut dir = None;
    while let Some(flag) = args.next() {
        if flag == "--managed-fields" {
            builder = builder.managed_fields(true);
            continue;
        }
        let value = args
            .next()
            .ok_or_else(|| format!("{flag}: a value is wanted"))?;
        match flag.as_str() {
            "--dir" => dir = Some(PathBuf::from(&value)),
            "--graph-lag" => {
                let ms = value.parse();
                let ms = ms.map_err(|_| format!("{flag}: not a number: {value}"))?;
                builder = builder.graph_lag(Duration::from_millis(ms));
            }
            _ => return Err(format!("unknown option {flag}")),
        }
    }
    Ok(Args {
        dir: dir.ok_or("--dir is wanted")?,
        builder,
    })
}

fn run(args: Args) -> io::Result<()> {
    let server = args.builder.start()?;
    server.write_files(&args.dir)?;
    let mut out = io::stdout().lock();
    writeln!(out, "ready {}", server.url())?;
    out.flush()?;
    let mut input = io::stdin().lock();
    loop {
        let mut line = String::new();
        // Lines that are longer than any that is known come in pieces, which are unknown too.
        if (&mut input).take(MAX_LINE).read_line(&mut line)? == 0 {
            break;
        }
        match line.trim() {
            "down" => server.set_down(true),
            "up" => server.set_down(false),
            "" => {}
            other => eprintln!("test-apiserver: unknown: {other:?}; known: down, up"),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match parse(env::args().skip(1)) {
        Ok(args) => match run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("test-apiserver: {error}");
                ExitCode::FAILURE
            }
        },
        Err(why) => {
            eprintln!("test-apiserver: {why}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
