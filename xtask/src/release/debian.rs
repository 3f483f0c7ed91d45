//! Debian packages: `picolet`, and `picolet-kubelet`, which takes the place of the kubelet for kubeadm (PKG-10).

use super::{
    Source,
    archive::{Tree, ar, gzip},
};
use crate::Failure;

/// The kubelet that the agent stands for, as kubeadm's package asks for one.
const KUBELET_VERSION: &str = "1.36.0";
const MAINTAINER: &str = "picolet <https://github.com/picolet/picolet>";
const CONFIG: &str = "# The configuration of picolet; docs/configure.md has its keys.\n\
                      apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
/// An example: a configuration file in place would switch the default thresholds of eviction on.
const CONFIG_PATH: &str = "usr/share/doc/picolet/examples/config.yaml";

/// Before unpacking. dpkg tells the script after it of a version before also if that was removed: the mark says what is so.
const PREINST: &str = "#!/bin/sh
set -e
if [ \"$1\" = install ] && [ -e /usr/local/lib/picolet/guard ]; then
    echo 'picolet: it is installed from a tarball, whose program would be used instead of this one: sh install.sh --uninstall first' >&2
    exit 1
fi
[ \"$1\" != install ] || : >/run/@package@.first
@trial@";
/// Also before the program is unpacked: from then on the guard puts nothing back over it.
const END_TRIAL: &str =
    "# An upgrade that was on trial ends: this package is what the operator wants.
rm -f /usr/bin/picolet.trial
";
/// After unpacking. Only the agent is restarted: the pods do not notice. While an image is built, nothing runs, and nothing is
/// started. A configuration that an agent cannot start with keeps no package from being installed.
const POSTINST: &str = "#!/bin/sh
set -e
[ \"$1\" = configure ] || exit 0
command -v systemctl >/dev/null || exit 0
first=''
if [ -z \"$2\" ] || [ -e /run/@package@.first ]; then first=yes; fi
rm -f /run/@package@.first
if [ -n \"$first\" ]; then
    @enable@
fi
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
if [ -n \"$first\" ]; then
    @start@
else
    systemctl try-restart @service@
fi || echo 'picolet: a service did not start. What is wrong: picolet check' >&2
";
const PRERM: &str = "#!/bin/sh
set -e
# The agent alone: to end the pods and remove their data, run picolet reset --stop before.
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable -q --now @services@
fi
";
const POSTRM: &str = "#!/bin/sh
set -e
[ \"$1\" = upgrade ] || rm -f /usr/bin/picolet.old /usr/bin/picolet.new /usr/bin/picolet.bad /usr/bin/picolet.back
[ ! -d /run/systemd/system ] || systemctl daemon-reload
";

impl Source {
    /// The packages for an architecture of Debian: names and bytes.
    pub(super) fn packages(
        &self,
        architecture: &str,
        program: &[u8],
        sbom: &str,
    ) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let mut host = Tree::default();
        let unit = |tree: &mut Tree, name: &str| -> Result<(), Failure> {
            let text = String::from_utf8(self.read(&format!("systemd/{name}"))?)?;
            // The tarball is below /usr/local.
            let text = text.replace("/usr/local/", "/usr/");
            tree.file(
                &format!("./usr/lib/systemd/system/{name}"),
                0o644,
                text.as_bytes(),
            );
            Ok(())
        };
        for name in [
            "picolet.service",
            "picolet-pods.service",
            "picolet-upgrade.service",
            "picolet-first-boot.service",
            "picolet-join.service",
        ] {
            unit(&mut host, name)?;
        }
        let first_boot = String::from_utf8(self.read("systemd/first-boot.sh")?)?;
        let first_boot = first_boot.replace("/usr/local/", "/usr/").into_bytes();
        let share = "./usr/share";
        let man = gzip(self.texts.man.as_bytes())?;
        for (path, mode, bytes) in [
            ("./usr/bin/picolet".to_owned(), 0o755, program),
            (
                "./usr/lib/picolet/guard".into(),
                0o755,
                &*self.read("systemd/guard.sh")?,
            ),
            ("./usr/lib/picolet/first-boot".into(), 0o755, &*first_boot),
            (format!("./{CONFIG_PATH}"), 0o644, CONFIG.as_bytes()),
            (
                format!("{share}/bash-completion/completions/picolet"),
                0o644,
                self.texts.bash.as_bytes(),
            ),
            (
                format!("{share}/zsh/vendor-completions/_picolet"),
                0o644,
                self.texts.zsh.as_bytes(),
            ),
            (
                format!("{share}/fish/vendor_completions.d/picolet.fish"),
                0o644,
                self.texts.fish.as_bytes(),
            ),
            (format!("{share}/man/man8/picolet.8.gz"), 0o644, &*man),
            (
                format!("{share}/doc/picolet/copyright"),
                0o644,
                &*self.read("LICENSE")?,
            ),
            (
                format!("{share}/doc/picolet/sbom.json"),
                0o644,
                sbom.as_bytes(),
            ),
        ] {
            host.file(&path, mode, bytes);
        }
        if let Some(key) = &self.public_key {
            host.file("./usr/lib/picolet/release.pub", 0o644, key.as_bytes());
        }
        let mut kubelet = Tree::default();
        for name in [
            "kubelet.service",
            "picolet-cri.socket",
            "picolet-cri.service",
        ] {
            unit(&mut kubelet, name)?;
        }
        kubelet.link("./usr/bin/kubelet", "picolet");
        kubelet.file(
            "./usr/share/doc/picolet-kubelet/copyright",
            0o644,
            &self.read("LICENSE")?,
        );

        let version = &self.version;
        let packages = [
            (
                "picolet",
                host,
                "Depends: runc | crun, iptables\nRecommends: containernetworking-plugins\n"
                    .to_owned(),
                "a kubelet for very small machines",
                "systemctl enable -q picolet.service picolet-first-boot.service picolet-join.service",
                "systemctl start picolet.service",
            ),
            (
                "picolet-kubelet",
                kubelet,
                format!(
                    "Depends: picolet (= {version})\nProvides: kubelet (= {KUBELET_VERSION})\nConflicts: kubelet\nReplaces: kubelet\n"
                ),
                "picolet in the place of the kubelet, for kubeadm",
                // Both would want the same port. kubeadm starts the kubelet.
                "systemctl disable -q picolet.service\n    systemctl enable -q kubelet.service picolet-cri.socket",
                "systemctl stop picolet.service && systemctl start picolet-cri.socket",
            ),
        ];
        let made = packages.map(|(name, tree, relations, summary, enable, start)| {
            let control = format!(
                "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
                 Installed-Size: {}\n{relations}Section: admin\nPriority: optional\n\
                 Homepage: https://github.com/picolet/picolet\nDescription: {summary}\n",
                tree.kib()
            );
            let service = if name == "picolet" { "picolet.service" } else { "kubelet.service" };
            let all = if name == "picolet" {
                "picolet.service picolet-first-boot.service picolet-join.service"
            } else {
                "kubelet.service picolet-cri.socket"
            };
            let trial = if name == "picolet" { END_TRIAL } else { "" };
            let script = |text: &str| {
                let text = text.replace("@trial@", trial);
                let text = text.replace("@service@", service).replace("@services@", all);
                let text = text.replace("@enable@", enable).replace("@start@", start);
                text.replace("@package@", name)
            };
            let mut about = Tree::default();
            about.file("./control", 0o644, control.as_bytes());
            about.file("./postinst", 0o755, script(POSTINST).as_bytes());
            about.file("./prerm", 0o755, script(PRERM).as_bytes());
            about.file("./preinst", 0o755, script(PREINST).as_bytes());
            if name == "picolet" {
                about.file("./postrm", 0o755, POSTRM.as_bytes());
            }
            let members: [(&str, &[u8]); 3] = [
                ("debian-binary", b"2.0\n"),
                ("control.tar.gz", &about.tar_gz(self.date)?),
                ("data.tar.gz", &tree.tar_gz(self.date)?),
            ];
            let file = format!("{name}_{version}_{architecture}.deb");
            Ok((file, ar(&members, self.date)))
        });
        made.into_iter().collect()
    }
}
