//! The pods of the machine.

use crate::stage::IMAGE;

/// Port of the host that leads to the web pod.
pub(super) const HOST_PORT: u16 = 28_080;
/// Pods that only sleep.
pub(super) const CROWD: u32 = 16;
/// The same, in the small machine.
pub(super) const SMALL_CROWD: usize = 30;
/// Name of the AppArmor profile that one pod asks for.
pub(super) const PROFILE: &str = "picolet-vm";

/// All but the crowd: file name and content.
pub(super) fn few() -> Vec<(&'static str, String)> {
    [
        ("web", WEB),
        ("exact", EXACT),
        ("hog", HOG),
        ("armored", ARMORED),
        ("guarded", GUARDED),
        ("shared", SHARED),
    ]
    .into_iter()
    .map(|(name, text)| (name, fill(text)))
    .collect()
}

/// A BestEffort pod that ends as soon as it is told to.
pub(super) fn sleeper(name: &str, seconds: u32) -> String {
    fill(SLEEPER)
        .replace("NAME", name)
        .replace("SECONDS", &seconds.to_string())
}

/// A pod that prints a line and is alive as long as a file is there.
pub(super) fn lively(name: &str) -> String {
    fill(LIVELY).replace("NAME", name)
}

/// A pod of that image.
pub(super) fn of_image(name: &str, image: &str) -> String {
    sleeper(name, 1_000_000).replace(IMAGE, image)
}

/// A pod that may write so much a second.
pub(super) fn slow_writer(name: &str, limit: &str) -> String {
    let metadata = format!("annotations: {{picolet/write-limit: {limit}}}, name: {name}");
    sleeper(name, 1_000_000).replace(&format!("name: {name}"), &metadata)
}

/// Where the agent looks for devices: a disk that becomes another one is none that is plugged in again.
pub(super) const MACHINE: &str = "/var/lib/picolet-machine";

/// What pods may ask for: a device that comes and goes while they run.
pub(super) const DEVICES: &str =
    "{resource: line, match: {path: /dev/line}, live: true, containerPath: /dev/lines}";

/// A pod that has it.
pub(super) fn holder(name: &str) -> String {
    let asking = "imagePullPolicy: Never\n    resources: {limits: {picolet/line: 1}}";
    sleeper(name, 1_000_000).replace("imagePullPolicy: Never", asking)
}

/// Pods that take little, of which nothing may end.
pub(super) const BYSTANDERS: [&str; 3] = ["modest-1", "modest-2", "modest-3"];

/// Those: two ask for memory.
pub(super) fn bystanders() -> Vec<(String, String)> {
    let asking = "imagePullPolicy: Never\n    resources: {requests: {memory: 8Mi}}";
    let mut all: Vec<_> = BYSTANDERS
        .iter()
        .map(|name| ((*name).to_owned(), sleeper(name, 1_000_000)))
        .collect();
    for (_, text) in &mut all[1..] {
        *text = text.replace("imagePullPolicy: Never", asking);
    }
    all
}

/// A Burstable pod with a limit.
pub(super) fn kept() -> String {
    let asking =
        "imagePullPolicy: Never\n    resources: {requests: {memory: 8Mi}, limits: {memory: 32Mi}}";
    sleeper("kept", 1_000_000).replace("imagePullPolicy: Never", asking)
}

/// A pod that takes all there is of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eater {
    /// Some MiB a second, in a volume.
    Memory,
    /// As fast as a process can.
    MemoryAtOnce,
    Disk,
    Inodes,
    Pids,
}

impl Eater {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::MemoryAtOnce => "at-once",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// As a status names what is short.
    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::Memory | Self::MemoryAtOnce => "memory",
            Self::Disk => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }

    pub(super) fn manifest(self, name: &str) -> String {
        let (medium, script) = match self {
            Self::Memory => (
                "Memory",
                "n=0; while :; do n=$((n+1)); dd if=/dev/zero of=/data/$n bs=1M count=4; sleep 0.5; done",
            ),
            Self::MemoryAtOnce => ("", "tail /dev/zero"),
            Self::Disk => (
                "",
                "dd if=/dev/zero of=/data/x bs=1M count=128; sleep 1000000",
            ),
            Self::Inodes => ("", "cd /data && seq 1 6000 | xargs touch; sleep 1000000"),
            Self::Pids => (
                "",
                "n=0; while [ $n -lt 160 ]; do sleep 1000000 & n=$((n+1)); done; wait",
            ),
        };
        fill(EATER)
            .replace("NAME", name)
            .replace("MEDIUM", medium)
            .replace("SCRIPT", script)
    }
}

/// Name of the profile that picolet loads.
pub(super) const DEFAULT_PROFILE: &str = "picolet-default-v1";

/// A pod under an AppArmor profile of that name.
pub(super) fn under_profile(name: &str, profile: &str) -> String {
    ARMORED
        .replace("name: armored", &format!("name: {name}"))
        .replace("IMAGE", IMAGE)
        .replace("PROFILE", profile)
}

/// Allows everything but one file.
pub(super) fn profile() -> String {
    format!(
        "profile {PROFILE} flags=(attach_disconnected) {{
  file,
  capability,
  network,
  signal,
  ptrace,
  mount,
  umount,
  deny /tmp/forbidden w,
}}
"
    )
}

fn fill(text: &str) -> String {
    text.replace("IMAGE", IMAGE)
        .replace("HOST_PORT", &HOST_PORT.to_string())
        .replace("PROFILE", PROFILE)
}

/// Burstable: init container, sidecar, hostPort, an emptyDir in memory shared by two containers.
const WEB: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: prepare
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, 'echo "prepared for $POD_NAME" > /www/index.html']
    env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    resources: {limits: {memory: 16Mi}}
    volumeMounts:
    - {name: shared, mountPath: /www}
  - name: sidecar
    image: IMAGE
    imagePullPolicy: Never
    restartPolicy: Always
    command: [sleep, '1000000']
    resources: {limits: {memory: 16Mi}}
  containers:
  - name: server
    image: IMAGE
    imagePullPolicy: Never
    command: [httpd, -f, -p, '8080', -h, /www]
    ports:
    - {containerPort: 8080, hostPort: HOST_PORT}
    resources:
      requests: {cpu: 100m, memory: 8Mi}
      limits: {cpu: 500m, memory: 32Mi}
    volumeMounts:
    - {name: shared, mountPath: /www, readOnly: true}
  - name: writer
    image: IMAGE
    imagePullPolicy: Never
    command:
    - sh
    - -c
    - |
      n=0
      while :; do
        n=$((n + 1))
        echo line $n
        echo $n > /www/count
        sleep 0.2
      done
    resources: {limits: {memory: 32Mi}}
    volumeMounts:
    - {name: shared, mountPath: /www}
  volumes:
  - {name: shared, emptyDir: {medium: Memory, sizeLimit: 4Mi}}
"#;

/// Guaranteed.
const EXACT: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: exact}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sleep, '1000000']
    resources:
      limits: {cpu: 250m, memory: 32Mi}
"#;

/// A child of the container's first process asks for more memory than there is; the first process alone would live on.
const HOG: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: hog}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, 'busybox head -c 67108864 /dev/zero | busybox tail > /dev/null; sleep 1000000']
    resources: {limits: {memory: 16Mi}}
"#;

/// Under an AppArmor profile that denies a single file.
/// Another process is the first one of its PID namespace.
const SHARED: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  terminationGracePeriodSeconds: 1
  shareProcessNamespace: true
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, 'grep -q pod-init /proc/1/cmdline && exec sleep 1000000']
    resources: {limits: {memory: 16Mi}}
"#;
const ARMORED: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: armored}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sleep, '1000000']
    securityContext:
      appArmorProfile: {type: Localhost, localhostProfile: PROFILE}
"#;

/// The capability that AppArmor has to hold, with our profile and without one.
const GUARDED: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: guarded}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sleep, '1000000']
    securityContext:
      appArmorProfile: {type: RuntimeDefault}
      capabilities: {add: [SYS_ADMIN]}
  - name: bare
    image: IMAGE
    imagePullPolicy: Never
    command: [sleep, '1000000']
    securityContext:
      appArmorProfile: {type: Unconfined}
      capabilities: {add: [SYS_ADMIN]}
"#;

const SLEEPER: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sleep, 'SECONDS']
"#;

const LIVELY: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, 'touch /tmp/alive; echo begun; sleep 1000000']
    startupProbe: {exec: {command: [test, -f, /tmp/alive]}, periodSeconds: 1, failureThreshold: 300}
    livenessProbe: {exec: {command: [test, -f, /tmp/alive]}, periodSeconds: 2, timeoutSeconds: 30}
"#;

const EATER: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, 'SCRIPT']
    volumeMounts:
    - {name: data, mountPath: /data}
  volumes:
  - {name: data, emptyDir: {medium: "MEDIUM"}}
"#;

#[cfg(test)]
mod tests {
    use picolet::{config::decode, logic::static_pod};

    use super::*;

    #[test]
    fn the_profile_is_the_agents() {
        assert_eq!(
            DEFAULT_PROFILE,
            picolet::runtime::runc::apparmor::DEFAULT_PROFILE
        );
    }

    #[test]
    fn the_agent_takes_them() {
        let mut all = few();
        all.push(("sleeper", sleeper("crowd-1", 7)));
        all.push(("lively", lively("lively")));
        all.push(("holder", holder("holder")));
        all.push(("slow", slow_writer("slow", "1Mi")));
        all.push(("foreign", of_image("foreign", "localhost/x:1")));
        all.push(("stray", under_profile("stray", "other")));
        let few: Vec<_> = bystanders();
        all.extend(few.into_iter().map(|(_, text)| ("bystander", text)));
        all.push(("kept", kept()));
        all.push(("eater", Eater::Memory.manifest("eater")));
        for (name, text) in all {
            let document = decode::parse_document(text.as_bytes()).expect(name);
            assert_eq!(document.duplicates, Vec::<String>::new(), "{name}");
            static_pod::prepare_static_pod(document.value, "node", "/manifests/x.yaml")
                .expect(name);
        }
    }
}
