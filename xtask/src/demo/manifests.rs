//! What the demo drops into the manifest directory. `MARK` stands for a word by which processes are found.

use crate::stage::IMAGE;

/// Port of the host that leads to the web pod.
pub(super) const HOST_PORT: u16 = 28_080;

/// A ConfigMap lying beside the pods that use it.
pub(super) fn config() -> String {
    "apiVersion: v1
kind: ConfigMap
metadata:
  name: greetings
data:
  greeting: hello
  motd: |
    served from a ConfigMap beside the pod
"
    .to_owned()
}

/// Init container, sidecar, two containers sharing an emptyDir, env and downward API.
pub(super) fn web(mark: &str, greeting_key: &str) -> String {
    const TEXT: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: web
  labels:
    app: demo
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
    volumeMounts:
    - {name: shared, mountPath: /www}
  - name: sidecar
    image: IMAGE
    imagePullPolicy: Never
    restartPolicy: Always
    command: [sh, -c, 'trap "exit 0" TERM; echo sidecar is up; while :; do sleep 1 & wait $!; done', MARK-sidecar]
  containers:
  - name: server
    image: IMAGE
    imagePullPolicy: Never
    command: [httpd, -f, -p, '8080', -h, /MARK-server]
    ports:
    - {containerPort: 8080, hostPort: HOST_PORT}
    volumeMounts:
    - {name: shared, mountPath: /MARK-server, readOnly: true}
  - name: writer
    image: IMAGE
    imagePullPolicy: Never
    command:
    - sh
    - -c
    - |
      trap "exit 0" TERM
      n=0
      while :; do
        n=$((n + 1))
        echo "$GREETING from $POD_IP on $NODE line $n"
        echo $n > /www/count
        sleep 0.2 & wait $!
      done
    - MARK-writer
    env:
    - name: GREETING
      valueFrom: {configMapKeyRef: {name: greetings, key: KEY}}
    - name: POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    - name: NODE
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    volumeMounts:
    - {name: shared, mountPath: /www}
    - {name: info, mountPath: /etc/podinfo}
    - {name: config, mountPath: /etc/motd, subPath: motd}
    resources:
      limits: {memory: 32Mi}
  volumes:
  - {name: shared, emptyDir: {}}
  - name: config
    configMap: {name: greetings}
  - name: info
    downwardAPI:
      items:
      - {path: labels, fieldRef: {fieldPath: metadata.labels}}
      - {path: memory, resourceFieldRef: {containerName: writer, resource: limits.memory, divisor: 1Mi}}
"#;
    fill(TEXT, mark)
        .replace("HOST_PORT", &HOST_PORT.to_string())
        .replace("KEY", greeting_key)
}

/// Ends with code 7 as soon as the file `now` appears in `dir`.
pub(super) fn job(mark: &str, dir: &str) -> String {
    const TEXT: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: job
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, 'while [ ! -e /signal/now ]; do sleep 0.05; done; echo done; exit 7', MARK-job]
    volumeMounts:
    - {name: signal, mountPath: /signal}
  volumes:
  - name: signal
    hostPath: {path: DIR, type: Directory}
"#;
    fill(TEXT, mark).replace("DIR", dir)
}

/// Not YAML any more.
pub(super) fn broken() -> String {
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: [broken\n".to_owned()
}

fn fill(text: &str, mark: &str) -> String {
    text.replace("MARK", mark).replace("IMAGE", IMAGE)
}

#[cfg(test)]
mod tests {
    use picolet::{api::ConfigMap, config::decode, logic::static_pod};

    use super::*;

    #[test]
    fn the_agent_takes_them() {
        for (name, text) in [
            ("web", web("m1", "greeting")),
            ("job", job("m1", "/tmp")),
            ("crowd", crate::bench::manifest("crowd-1", &["sleep", "1"])),
        ] {
            let document = decode::parse_document(text.as_bytes()).expect(name);
            assert_eq!(document.duplicates, Vec::<String>::new(), "{name}");
            static_pod::prepare_static_pod(document.value, "node", "/manifests/x.yaml")
                .expect(name);
        }
        let config = decode::parse_document(config().as_bytes()).expect("config");
        decode::deserialize_value::<ConfigMap>(&config.value).expect("config");
        decode::parse_document(broken().as_bytes()).expect_err("it is to be broken");
    }
}
