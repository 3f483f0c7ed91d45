//! install.sh on a system that runs, up to `--uninstall --purge`: what is left is looked for.
//!
//! The system is this one, with everything that is installed and kept in memory, or over it. A double stands for systemd.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

use serde_json::json;

use crate::host::{Host, IDLE, PICOLET, able, manifest, sh, text};

/// What install.sh wants of systemd.
const SYSTEMCTL: &str = include_str!("../common/systemctl.sh");

/// PID 1 of the system.
const SYSTEM: &str = r#"
set -eu
base=$1 mark=$2
for dir in /run /var/lib /var/log /usr/local; do mount -t tmpfs -o mode=755 none $dir; done
mkdir -p $base/etc.up $base/etc.work /run/systemd/system /usr/local/bin /usr/local/lib
mount -t overlay -o "lowerdir=/etc,upperdir=$base/etc.up,workdir=$base/etc.work" none /etc
PATH=$base/doubles:/usr/sbin:/usr/bin:/sbin:/bin
wait_for() {
    n=0
    until "$@" >$base/last 2>&1; do
        n=$((n + 1))
        [ $n -lt 1800 ] || { cat $base/last /run/double/log >&2; echo "waited for: $*" >&2; exit 1; }
        sleep 0.1
    done
}
# Everything that an installation, an agent and its pods may leave.
state() {
    find /run /var/lib /var/log /usr/local /etc -path /run/double -prune -o ! -path /run/xtables.lock -print | sort
    ip -o link | grep -o "$mark[^:@ ]*" || true
    iptables-save | grep "$mark" || true
    find /sys/fs/cgroup -path "*$mark*" || true
    for dir in /proc/[0-9]*; do
        words=$(tr '\0' ' ' <$dir/cmdline 2>/dev/null) || continue
        case $words in *picolet*) [ ${dir#/proc/} = 1 ] || echo "runs: $words" ;; esac
    done
}
# Mounts of others, copied into this namespace, go when their directories are removed: only new ones count.
mounts() { cut -d' ' -f5 /proc/self/mountinfo | sort; }
running() { picolet get pods -A -o json | tr -d ' \n' | grep -q '"phase":"Running"'; }
configure() {
    mkdir -p /etc/picolet/manifests
    cp $base/config.yaml /etc/picolet/config.yaml
}
state >$base/before
mounts >$base/mounts.before
configure
sh $base/tarball/install.sh
PATH=$PATH:/usr/local/bin
wait_for picolet get node
picolet image import $base/first.tar
cp $base/web.yaml /etc/picolet/manifests/
wait_for running
sh $base/tarball/install.sh | grep -x 'nothing to change'

sh $base/tarball/install.sh --uninstall
state >$base/kept
[ ! -e /usr/local/bin/picolet ] && [ ! -e /etc/systemd/system/picolet.service ]
echo "kept: $(grep -c 'sleep-of-the-pod' $base/kept || true)"
[ -d /var/lib/picolet/pods ] && [ -f /etc/picolet/config.yaml ]

sh $base/tarball/install.sh
wait_for running
sh $base/tarball/install.sh --uninstall --purge
state >$base/after
mounts >$base/mounts.after
echo "compared"
diff $base/before $base/after
comm -13 $base/mounts.before $base/mounts.after >$base/mounts.left
diff /dev/null $base/mounts.left
"#;

#[test]
fn a_purge_leaves_nothing() {
    // PKG-08
    if !able() {
        return;
    }
    let host = Host::new(&[]);
    let base = host.path("");
    let tarball = host.unpack();
    fs::copy(PICOLET, tarball.join("picolet")).expect("copied");
    fs::create_dir(host.path("doubles")).expect("directory");
    let double = host.path("doubles/systemctl");
    fs::write(&double, SYSTEMCTL).expect("written");
    fs::set_permissions(double, fs::Permissions::from_mode(0o755)).expect("mode");
    let (mark, flag) = (host.bridge(), |name: &str| {
        let at = host.flags.iter().position(|f| f == name).expect("flag");
        host.flags[at + 1].clone()
    });
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailSwapOn: false\nhealthzPort: 0\n\
         port: {}\ncgroupRoot: /picolet-{mark}\npicolet:\n  builtinNetwork:\n    bridge: {mark}\n    subnet: {}\n",
        flag("--port"),
        flag("--pod-cidr")
    );
    fs::write(host.path("config.yaml"), config).expect("written");
    host.write_image("first.tar", crate::host::IMAGE, &json!({}));
    let mut web = manifest(
        "web",
        json!({"containers": [sh("main", &format!(": sleep-of-the-pod; {IDLE}"))]}),
    );
    web["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 80, "hostPort": crate::held_port::held_port()}]);
    fs::write(host.path("web.yaml"), web.to_string()).expect("written");
    let output = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-c", SYSTEM, "sh"])
        .arg(&base)
        .arg(&mark)
        .stdin(Stdio::null())
        .output()
        .expect("unshare");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("\ncompared\n"), "{said}");
    // Without --purge the pod ran on, and its data was there.
    let kept = fs::read_to_string(host.path("kept")).expect("state");
    for part in [
        "/var/lib/picolet/pods/",
        "/run/picolet/containers/",
        &format!("picolet-{mark}/kubepods"),
        "runs: ",
    ] {
        assert!(kept.contains(part), "{part}: {kept}");
    }
    let before = fs::read_to_string(host.path("before")).expect("state");
    assert!(
        !before.contains("picolet/") && !before.contains("runs: "),
        "{before}"
    );
    host.dismantle().expect("only empty things are left");
}
