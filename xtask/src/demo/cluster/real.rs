//! A control plane of the real programs, on loopback and on ports of its own.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    client::Client,
    pki::{Authority, Identity, kubeconfig, signing_key},
};
use crate::{
    Failure,
    held_port::held_port,
    process::{find, output},
    wait::until,
};

/// What has to be on `PATH`.
pub(super) const PROGRAMS: [&str; 5] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
];
/// An apiserver that is not ready by then does not become so.
const READY: Duration = Duration::from_secs(120);
/// How a node asks for its first certificate.
const TOKEN_ID: &str = "demo01";
const TOKEN_SECRET: &str = "0123456789abcdef";
/// Where Services have their addresses; nobody routes there.
const SERVICES: &str = "10.97.0.0/24";
/// What nodes get their subnets of.
const PODS: &str = "10.214.0.0/16";
/// Only what the node asks is written down.
const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
    {"level": "Metadata", "userGroups": ["system:nodes", "system:bootstrappers"]}, {"level": "None"}]}"#;

/// One of the programs.
struct Program {
    name: &'static str,
    words: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    fn start(&mut self) -> Result<(), Failure> {
        let program = find(self.name).ok_or_else(|| format!("{} is not on PATH", self.name))?;
        let log = File::options().create(true).append(true).open(&self.log)?;
        let child = Command::new(program)
            .args(&self.words)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|e| format!("{}: {e}", self.name))?;
        self.child = Some(child);
        Ok(())
    }

    /// As a crash would.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn check(&mut self) -> Result<(), Failure> {
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        match child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                self.child = None;
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default();
                Err(format!("{} ended: {status}: {last}", self.name).into())
            }
        }
    }
}

/// The running programs; they end with its value.
pub(super) struct Real {
    dir: PathBuf,
    programs: Vec<Program>,
    /// Which of them is the apiserver.
    apiserver: usize,
}

impl Real {
    /// Starts everything. `dir` is an empty directory.
    pub(super) fn start(dir: &Path) -> Result<(Self, Client), Failure> {
        let [api, etcd, peer] = [(); 3].map(|()| held_port());
        let server = format!("https://127.0.0.1:{api}");
        let file = |name: &str| dir.join(name).display().to_string();
        prepare(dir, &server)?;
        let etcd_url = format!("http://127.0.0.1:{etcd}");
        let words = |all: &[(&str, &str)]| -> Vec<String> {
            all.iter()
                .map(|(flag, value)| format!("--{flag}={value}"))
                .collect()
        };
        let all = [
            (
                "etcd",
                words(&[
                    ("data-dir", &file("etcd")),
                    ("listen-client-urls", &etcd_url),
                    ("advertise-client-urls", &etcd_url),
                    ("listen-peer-urls", &format!("http://127.0.0.1:{peer}")),
                    ("unsafe-no-fsync", "true"),
                    ("log-level", "warn"),
                ]),
            ),
            (
                "kube-apiserver",
                words(&[
                    ("etcd-servers", &etcd_url),
                    ("bind-address", "127.0.0.1"),
                    ("advertise-address", "127.0.0.1"),
                    ("endpoint-reconciler-type", "none"),
                    ("secure-port", &api.to_string()),
                    ("tls-cert-file", &file("apiserver.crt")),
                    ("tls-private-key-file", &file("apiserver.key")),
                    ("client-ca-file", &file("ca.crt")),
                    ("service-account-key-file", &file("tokens.pub")),
                    ("service-account-signing-key-file", &file("tokens.key")),
                    ("service-account-issuer", "https://kubernetes.default.svc"),
                    ("service-cluster-ip-range", SERVICES),
                    ("authorization-mode", "Node,RBAC"),
                    ("enable-admission-plugins", "NodeRestriction"),
                    ("enable-bootstrap-token-auth", "true"),
                    ("allow-privileged", "true"),
                    ("audit-log-path", &file("audit.log")),
                    ("audit-policy-file", &file("policy.json")),
                ]),
            ),
            (
                "kube-controller-manager",
                words(&[
                    ("kubeconfig", &file("controllers.kubeconfig")),
                    ("use-service-account-credentials", "true"),
                    ("root-ca-file", &file("ca.crt")),
                    ("service-account-private-key-file", &file("tokens.key")),
                    ("cluster-signing-cert-file", &file("ca.crt")),
                    ("cluster-signing-key-file", &file("ca.key")),
                    ("allocate-node-cidrs", "true"),
                    ("cluster-cidr", PODS),
                    ("service-cluster-ip-range", SERVICES),
                    ("leader-elect", "false"),
                    ("secure-port", "0"),
                ]),
            ),
            (
                "kube-scheduler",
                words(&[
                    ("kubeconfig", &file("scheduler.kubeconfig")),
                    ("leader-elect", "false"),
                    ("secure-port", "0"),
                ]),
            ),
        ];
        let mut real = Self {
            dir: dir.to_owned(),
            programs: Vec::new(),
            apiserver: 1,
        };
        let client = Client::of_kubeconfig(&fs::read_to_string(dir.join("admin.kubeconfig"))?)?;
        for (name, words) in all {
            let mut program = Program {
                name,
                words,
                log: dir.join(format!("{name}.log")),
                child: None,
            };
            program.start()?;
            real.programs.push(program);
            if name == "kube-apiserver" {
                real.wait_ready(&client)?;
            }
        }
        let_nodes_in(&client)?;
        Ok((real, client))
    }

    fn wait_ready(&mut self, client: &Client) -> Result<(), Failure> {
        until(READY, || {
            for program in &mut self.programs {
                if let Err(e) = program.check() {
                    return Ok(Err(e));
                }
            }
            client.get("/readyz").map(|_| Ok(()))
        })?
    }

    /// Kills the apiserver.
    pub(super) fn down(&mut self) {
        self.programs[self.apiserver].kill();
    }

    /// Starts it again.
    pub(super) fn up(&mut self, client: &Client) -> Result<(), Failure> {
        self.programs[self.apiserver].start()?;
        self.wait_ready(client)
    }

    /// Pids of all of them.
    pub(super) fn pids(&self) -> Vec<u32> {
        let children = self.programs.iter().filter_map(|p| p.child.as_ref());
        children.map(Child::id).collect()
    }

    /// What `kubectl` prints for the administrator.
    pub(super) fn kubectl(&self, words: &[&str]) -> Result<String, Failure> {
        let program = find("kubectl").ok_or("kubectl is not on PATH")?;
        output(
            Command::new(program)
                .arg("--kubeconfig")
                .arg(self.dir.join("admin.kubeconfig"))
                // Otherwise it leaves one in the home directory.
                .arg("--cache-dir")
                .arg(self.dir.join("kubectl"))
                .args(words),
        )
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            program.kill();
        }
    }
}

/// Certificates, keys and kubeconfigs.
fn prepare(dir: &Path, server: &str) -> Result<(), Failure> {
    let write = |name: &str, text: &str| {
        fs::write(dir.join(name), text).map_err(|e| Failure::from(format!("{name}: {e}")))
    };
    let authority = Authority::new()?;
    let ca = &authority.own.certificate;
    write("ca.crt", ca)?;
    write("ca.key", &authority.own.key)?;
    let hosts = ["127.0.0.1", "localhost", "kubernetes.default.svc"];
    let pair = authority.server("kube-apiserver", &hosts)?;
    write("apiserver.crt", &pair.certificate)?;
    write("apiserver.key", &pair.key)?;
    let (private, public) = signing_key()?;
    write("tokens.key", &private)?;
    write("tokens.pub", &public)?;
    for (name, user, groups) in [
        ("admin", "admin", &["system:masters"][..]),
        ("controllers", "system:kube-controller-manager", &[]),
        ("scheduler", "system:kube-scheduler", &[]),
    ] {
        let pair = authority.client(user, groups)?;
        let text = kubeconfig(server, ca, &Identity::Certificate(&pair));
        write(&format!("{name}.kubeconfig"), &text)?;
    }
    let token = format!("{TOKEN_ID}.{TOKEN_SECRET}");
    write(
        "bootstrap.kubeconfig",
        &kubeconfig(server, ca, &Identity::Token(&token)),
    )?;
    write("policy.json", POLICY)
}

/// What `kubeadm` does for those who join: a bootstrap token, and roles that let its owner have a node's certificate.
fn let_nodes_in(client: &Client) -> Result<(), Failure> {
    const GROUP: &str = "system:bootstrappers:demo";
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{TOKEN_ID}"), "namespace": "kube-system"},
        "stringData": {
            "token-id": TOKEN_ID, "token-secret": TOKEN_SECRET,
            "usage-bootstrap-authentication": "true", "auth-extra-groups": GROUP,
        },
    });
    // Its namespace is made a moment after the apiserver is ready.
    until(READY, || {
        client.post("/api/v1/namespaces/kube-system/secrets", &secret)
    })?;
    let role = "system:certificates.k8s.io:certificatesigningrequests";
    for (name, role, group) in [
        (
            "demo-bootstrap",
            "system:node-bootstrapper".to_owned(),
            GROUP,
        ),
        ("demo-approve", format!("{role}:nodeclient"), GROUP),
        (
            "demo-renew",
            format!("{role}:selfnodeclient"),
            "system:nodes",
        ),
    ] {
        let group_of = "rbac.authorization.k8s.io";
        let binding: Value = json!({
            "apiVersion": format!("{group_of}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": group_of, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group_of, "kind": "Group", "name": group}],
        });
        client.post(
            &format!("/apis/{group_of}/v1/clusterrolebindings"),
            &binding,
        )?;
    }
    Ok(())
}
