//! The test API server as a process: `test-apiserver --dir DIR [options]`. Runs until its standard input ends, or
//! forever with `--forever`. A line `down` there closes the listening socket and all connections, a line `up` opens it.

use std::env;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use picolet_test_apiserver::{Builder, CsrMode, TestServer};

/// Bytes of a line of standard input.
const MAX_LINE: u64 = 256;

const USAGE: &str = "\
usage: test-apiserver --dir DIR [options]

Writes DIR/admin.kubeconfig, DIR/bootstrap.kubeconfig, DIR/ca.crt and DIR/NODE.kubeconfig, then prints
`ready URL` and serves until its standard input ends. A line `down` there refuses all connections, a line `up` takes them.

  --listen ADDR:PORT     where (127.0.0.1, a free port)
  --host NAME            a further name or address; the first is put into the kubeconfigs
  --node NAME            write a kubeconfig for this node; may be repeated
  --version MINOR        behave as Kubernetes 1.MINOR (36)
  --csr MODE             auto, manual, deny or never-sign (auto)
  --node-grace SECONDS   how long a node may be silent (50)
  --graph-lag MS         how long after its binding a node may not read what a pod refers to (0)
  --managed-fields       objects say who wrote which field
  --no-controllers       neither bind pods nor watch over nodes
  --forever              do not end with standard input
";

struct Args {
    dir: PathBuf,
    builder: Builder,
    forever: bool,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut builder = TestServer::builder().controllers(true);
    let mut dir = None;
    let mut nodes = Vec::new();
    let mut forever = false;
    while let Some(flag) = args.next() {
        if flag == "--no-controllers" {
            builder = builder.controllers(false);
            continue;
        }
        if flag == "--managed-fields" {
            builder = builder.managed_fields(true);
            continue;
        }
        if flag == "--forever" {
            forever = true;
            continue;
        }
        let value = args
            .next()
            .ok_or_else(|| format!("{flag}: a value is wanted"))?;
        let number = || {
            value
                .parse()
                .map_err(|_| format!("{flag}: not a number: {value}"))
        };
        match flag.as_str() {
            "--dir" => dir = Some(PathBuf::from(&value)),
            "--listen" => {
                let address: SocketAddr = value
                    .parse()
                    .map_err(|_| format!("{flag}: not an address: {value}"))?;
                builder = builder.listen(address);
            }
            "--host" => builder = builder.host(&value),
            "--node" => nodes.push(value),
            "--version" => builder = builder.version(number()?),
            "--csr" => {
                builder = builder.csr(match value.as_str() {
                    "auto" => CsrMode::Auto,
                    "manual" => CsrMode::Manual,
                    "deny" => CsrMode::Deny,
                    "never-sign" => CsrMode::NeverSign,
                    _ => return Err(format!("{flag}: not a mode: {value}")),
                });
            }
            "--graph-lag" => builder = builder.graph_lag(Duration::from_millis(number()?.into())),
            "--node-grace" => builder = builder.node_grace(Duration::from_secs(number()?.into())),
            _ => return Err(format!("unknown option {flag}")),
        }
    }
    Ok(Args {
        dir: dir.ok_or("--dir is wanted")?,
        builder: builder.nodes(nodes),
        forever,
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
    if args.forever {
        loop {
            std::thread::park();
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
