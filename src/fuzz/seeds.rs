//! Start of the mutator: valid inputs of each target.

use crate::image::testing::{
    Layout, Stream, config, docker_archive, estargz, gzip, zstd, zstd_chunked,
};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: &l {app: web}, annotations: {a: "1"}}
spec:
  hostNetwork: false
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 30
  securityContext: {fsGroup: 3000, runAsUser: 1000, sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "0"}]}
  initContainers:
  - {name: init, image: "localhost/a:1", restartPolicy: Always, command: [sh, -c, "exit 0"]}
  containers:
  - name: main
    image: docker.io/library/busybox@sha256:0000000000000000000000000000000000000000000000000000000000000000
    args: ["$(A)", "$$(B)"]
    env: [{name: A, value: x}, {name: B, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}]
    envFrom: [{configMapRef: {name: c}, prefix: P_}]
    ports: [{containerPort: 80, hostPort: 8080, protocol: TCP}]
    resources: {limits: {cpu: 250m, memory: 64Mi, "hugepages-2Mi": 4Mi}, requests: {cpu: 0.1}}
    volumeMounts: [{name: d, mountPath: /data, subPathExpr: "a/$(A)", readOnly: true, mountPropagation: HostToContainer}]
    livenessProbe: {httpGet: {path: /, port: http}, periodSeconds: 10}
    lifecycle: {preStop: {exec: {command: [sleep, "1"]}}}
    securityContext: {capabilities: {add: [NET_ADMIN], drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
  volumes:
  - {name: d, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: h, hostPath: {path: /srv, type: DirectoryOrCreate}}
  - name: p
    projected: {defaultMode: 0644, sources: [{configMap: {name: c, items: [{key: k, path: a/b}]}}, {secret: {name: s}}]}
"#;

const CDI: &str = r#"
cdiVersion: 1.1.0
kind: v.com/c
annotations: {a: b}
containerEdits: {env: [A=b], additionalGids: [0, 5]}
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - {path: /dev/a, hostPath: /dev/null, type: c, major: 1, minor: 3, fileMode: 0660, permissions: rw, uid: 1, gid: 2}
    - {path: /dev/b, type: p, permissions: none}
    mounts: [{hostPath: /a, containerPath: /b/, type: bind, options: [ro, rbind, rslave]}]
    hooks: [{hookName: prestart, path: /bin/a, args: [a], env: [A=b], timeout: 3}]
- name: one
  annotations: {}
  containerEdits: {intelRdt: {closID: a, schemata: [b], enableMonitoring: true}, netDevices: [{hostInterfaceName: a, name: b}]}
"#;

/// Inputs for `target`.
pub(super) fn of(target: &str) -> Vec<Vec<u8>> {
    let texts = |all: &[&str]| all.iter().map(|t| t.as_bytes().to_vec()).collect();
    match target {
        "manifest" => texts(&[
            POD,
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#,
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: v}\nbinaryData: {b: AAE=}\n",
            "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: c2Vj}\nstringData: {t: x}\n",
            "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\nd: {<<: {e: 1}}\n",
        ]),
        "config" => texts(&[
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 20\nstaticPodPath: manifests\n\
             containerLogMaxSize: 10Mi\nfileCheckFrequency: 20s\nevictionHard: {memory.available: 5%}\npicolet: {podCIDR: 10.1.0.0/16}\n",
        ]),
        "channel" => texts(&[
            r#"{"name":"picolet","version":"0.2.0","arch":"armv7","size":5,"serial":7,"url":"a.tar.gz","share":10,"sha256":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}"#,
        ]),
        "quantity" => texts(&[
            "0",
            "1",
            "250m",
            "1.5Gi",
            "1e3",
            "12E",
            "100n",
            "-1Ki",
            "+0.000000001",
            "9223372036854775807",
        ]),
        "jsonpath" => texts(&[
            r#"{range .items[*]}{.name}{"\t"}{.list[0:-1]}{"\n"}{end}"#,
            r#"{.items[?(@.name=="a")].list[-1]} {..name} {.map['a\.b','d.e']}"#,
            "{.items[::2].list[?(@>1)]}{$.map.*}",
        ]),
        "reference" => texts(&[
            "busybox",
            "docker.io/library/busybox:1.36",
            "registry.example:5000/a/b-c_d.e:tag@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "[::1]:5000/x",
        ]),
        "image_documents" => vec![
            docker_archive("a:1", &[&layer()]),
            layout(false),
            layout(true),
        ],
        "image_json" => texts(&[
            r#"{"schemaVersion":2,"config":{"digest":"sha256:00","size":1},"layers":[{"mediaType":"x","digest":"sha256:11","size":2}]}"#,
            r#"{"manifests":[{"mediaType":"m","digest":"sha256:22","size":3,"platform":{"architecture":"arm","os":"linux","variant":"v7"},"annotations":{"a":"b"}}]}"#,
            r#"{"architecture":"amd64","os":"linux","config":{"User":"1:2","Env":["A=b"],"Entrypoint":["/x"],"Volumes":{"/v":{}},"ExposedPorts":{"80/tcp":{}}},"rootfs":{"type":"layers","diff_ids":["sha256:33"]}}"#,
            r#"{"v":1,"id":"sha256:00","sequence":3,"names":["a:1"],"layers":[{"key":"sha256:aa","dir":"00000000000000aa","sizeBytes":5}],"config":{}}"#,
        ]),
        "tar" | "layer" => vec![layer(), sparse(), through()],
        "compressed" => vec![
            gzip(&layer()),
            zstd(&layer()),
            layer(),
            estargz(&[("a", b"one"), ("b", &[0; 600])]).0,
            zstd_chunked(&[("a", b"one"), ("b", &[0; 600])]).0,
        ],
        "registry_headers" => texts(&[
            r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull", error="invalid_token""#,
            "Basic realm=\"a\\\"b\", Negotiate, Bearer REALM=x",
            "bytes 5-9/10",
            "bytes 0-0/*",
            "https://blobs.example:8443/x/y?sig=a%2Fb&ns=z",
            "//other.example/z",
            "../up?x",
            "http://[2001:db8::1]:80/",
            "120",
        ]),
        "registry_bodies" => texts(&[
            r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown","detail":{"Tag":"1"}},{"code":"DENIED"}]}"#,
            r#"{"token":"abc.def","access_token":"x","expires_in":300,"issued_at":"2026-01-01T00:00:00Z"}"#,
            r#"{"details":"incorrect username or password"}"#,
            r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}"#,
            r#"{"name":"a/b","tags":["1","2"]}"#,
        ]),
        "cdi" => texts(&[CDI]),
        "registries" => texts(&[
            "mirrors:\n  docker.io: {endpoint: [\"https://m.example:5000/v2/cache\"], rewrite: {\"^library/(.*)\": \"x/$1\"}}\n  \"*\": {endpoint: [\"http://10.0.0.1:5000\"]}\n",
            "configs:\n  \"registry.example:5000\":\n    auth: {username: u, password: p, auth: dTpw, identity_token: t}\n    tls: {ca_file: /a, cert_file: /b, key_file: /c, insecure_skip_verify: true}\n",
            r#"{"mirrors":{"quay.io":{"endpoint":["https://quay.io"]}},"configs":{}}"#,
        ]),
        "kubeconfig" => {
            let mut seeds: Vec<Vec<u8>> = texts(&[
                "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n\
                 clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443/x', certificate-authority-data: Q0E=, tls-server-name: k, proxy-url: 'http://p:1'}}]\n\
                 users: [{name: u, user: {client-certificate: c.pem, client-key-data: Sw==, token: t, tokenFile: /t}}]\n",
                "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: h, insecure-skip-tls-verify: true}}]\n\
                 users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: ./p, args: [a], env: [{name: A, value: b}], interactiveMode: Never}}}]\n",
                r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t","expirationTimestamp":"2030-01-01T00:00:00Z","clientCertificateData":"C","clientKeyData":"K"}}"#,
            ]);
            seeds.push(crate::kube::fuzz::tests::certificate());
            seeds
        }
        "pod_list" => {
            let text = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"c"},"items":[{"metadata":{"name":"a","uid":"u","resourceVersion":"5","managedFields":[{"x":1.5e3}]},"spec":null},{"metadata":{"labels":{"a":"\u00e9"}}}]}"#;
            let mut seeds: Vec<Vec<u8>> =
                texts(&[text, r#"{"items":null,"metadata":{"resourceVersion":"1"}}"#]);
            seeds.push(gzip(text.as_bytes()));
            seeds
        }
        "provider_words" => texts(&[
            r#"{"instance":"i","cursor":"7","pods":[{"uid":"u","node":"node","namespace":"n","name":"p","generation":"g","status":{"containers":[
                {"name":"c","state":"running","startedAt":"2023-11-14T22:13:20Z","restartCount":1},
                {"name":"d","state":"terminated","finishedAt":"2023-11-14T22:13:20Z","exitCode":3,"reason":"Error","message":"why"}],"podIPs":["10.0.0.1"]}},
                {"uid":"v","node":"node","namespace":"n","name":"q","status":{"containers":[{"name":"x","state":"waiting"}]}},
                {"uid":"w","node":"other"}]}"#,
            r#"{"uid":"u","generation":"g","status":{"containers":[{"name":"c","state":"terminated","startedAt":"2023-11-14T22:13:20Z","finishedAt":"2023-11-14T22:13:20.5Z","exitCode":-9}]}}"#,
        ]),
        "provider_streams" => crate::parts::fuzz::provider::tests::seeds(),
        "spdy" | "websocket" => crate::stream::fuzz::tests::seeds(target),
        #[cfg(feature = "tunnel")]
        "tunnel" => crate::parts::tunnel::fuzz::tests::seeds(),
        "http2" | "hpack" | "protobuf" => super::grpc::tests::seeds(target),
        "watch" => texts(&[
            "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"uid\":\"u\",\"resourceVersion\":\"7\"}}}\n\
             {\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\"}}}\n",
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"reason\":\"Expired\",\"message\":\"m\",\"code\":410}}\n",
        ]),
        "credentials" => texts(&[
            r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"*.example":{"username":"u","password":"p","identitytoken":"t"}},"credsStore":"x","credHelpers":{"gcr.io":"gcr"}}"#,
            r#"{"quay.io/a":{"auth":"dXNlcjpwYXNz"},"[::1]:5000":{"registrytoken":"r"}}"#,
            r#"{"Username":"<token>","Secret":"s","ServerURL":"https://gcr.io"}"#,
            r#"{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Registry","cacheDuration":"1h30m","auth":{"*.example":{"username":"u","password":"p"}}}"#,
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: ecr\n  matchImages: [\"*.amazonaws.com\"]\n  defaultCacheDuration: 12h\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  args: [get]\n  env: [{name: A, value: b}]\n",
        ]),
        "cni" => texts(&[
            r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24","interface":1,"gateway":"10.1.0.1"}],"interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/x"}]}"#,
            r#"{"cniVersion":"1.0.0","code":11,"msg":"try again later","details":"d"}"#,
            r#"{"cniVersion":"0.4.0","name":"net","disableCheck":true,"plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap","capabilities":{"portMappings":true}}]}"#,
            r#"{"cniVersions":["0.4.0","1.1.0"],"name":"one","type":"ptp"}"#,
        ]),
        "runtime_message" => texts(&[
            "{\"level\":\"warning\",\"msg\":\"x\"}\n{\"level\":\"error\",\"msg\":\"container does not exist\",\"time\":\"t\"}\n",
            "panic: runtime error\n\ngoroutine 1\n",
        ]),
        "records" => texts(&[
            r#"{"v":1,"pid":4711,"start_time":123456,"shim_pid":4700,"shim_start_time":123400,"boot_id":"b0a7","build":"0.1.0"}"#,
            r#"{"v":1,"code":137,"signal":9,"created":true,"known":true,"oom_kills":2,"log_lost":0,"wall_ns":1700000000123456789,"boot_ms":9000,"boot_id":"b0a7","build":"0.1.0"}"#,
            include_str!("../../tests/golden/sandbox_record.1.json"),
            include_str!("../../tests/golden/container_record.1.json"),
        ]),
        "pod_record" => texts(&[
            "{\"v\":1,\"source\":\"file\",\"resourceVersion\":\"\",\"digest\":7}\n{\"metadata\":{\"name\":\"a\",\"uid\":\"u\"},\"spec\":{\"containers\":[{\"name\":\"c\"}]}}\n",
        ]),
        "log_lines" => vec![
            b"one\ntwo\n\nthree".to_vec(),
            vec![b'x'; 40_000],
            b"\xff\x00\r\n".repeat(5000),
        ],
        "log_reader" => texts(&[
            "2023-11-14T22:13:20.123456789Z stdout F text\n2023-11-14T22:13:21.1Z stderr P a\n2023-11-14T22:13:21.2Z stderr F b\n",
            "2023-11-14T22:13:20Z stdout P:x no end",
        ]),
        "http" => texts(&[
            "POST /exec/n/p/c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nA: b\r\n\r\n",
            "GET /logs/default/web/main?tail=10&follow=true HTTP/1.1\r\nHost: x\r\n\r\n",
            "POST /exec/ns/pod%20a?command=sh&command=-c HTTP/1.1\r\nUpgrade: picolet-stream\r\nContent-Length: 3\r\n\r\nabc",
        ]),
        "expansion" => texts(&["$(A)$(BB)$$(C)", "cost: 5$ $(x", "plain"]),
        "passwd" => texts(&[
            "web:extra\u{1}root:x:0:0:root:/:/bin/sh\nweb:x:33:34::/:/bin/sh\n\u{1}root:x:0:\nextra:x:55:web,root\n",
            "1000\u{1}\u{1}",
        ]),
        "texts" => texts(&[
            "1h30m5.5s",
            "20ms",
            "127.0.0.1:8899",
            "[::1]:8899",
            "2026-01-01T00:00:00.5+01:00",
            "nameserver 1.1.1.1\nsearch a b\noptions ndots:5\n# x\n",
            r#"{"defaultAction":"SCMP_ACT_ERRNO","architectures":["SCMP_ARCH_X86_64"],"syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ"}]}]}"#,
        ]),
        other => unreachable!("{other} has no seeds"),
    }
}

fn layer() -> Vec<u8> {
    Stream::new()
        .dir("etc", 0o755)
        .file("etc/passwd", b"root:x:0:0:::\n")
        .symlink("lib", "usr/lib")
        .hard_link("etc/alias", "etc/passwd")
        .pax(&[
            ("path", b"long/name"),
            ("mtime", b"1.5"),
            ("SCHILY.xattr.user.a", b"1"),
        ])
        .file("x", b"1")
        .device(tar::EntryType::Fifo, "pipe", 0, 0)
        .file("etc/.wh.gone", b"")
        .file("var/.wh..wh..opq", b"")
        .bytes()
}

fn through() -> Vec<u8> {
    Stream::new()
        .file("lib/new", b"1")
        .hard_link("copy", "lib/f")
        .file("up/secret", b"2")
        .file("abs/lib/x", b"3")
        .file("a/loop", b"4")
        .file("lib/.wh.f", b"")
        .bytes()
}

fn sparse() -> Vec<u8> {
    Stream::new()
        .pax(&[
            ("GNU.sparse.major", b"0"),
            ("GNU.sparse.size", b"100000"),
            ("GNU.sparse.map", b"0,5,5000,5"),
        ])
        .file("s", b"0123456789")
        .entry(
            tar::EntryType::GNULongName,
            "././@LongLink",
            "",
            0o644,
            &[b'n'; 200],
        )
        .file("short", b"x")
        .bytes()
}

fn layout(index: bool) -> Vec<u8> {
    let mut layout = Layout::new();
    let layer = layer();
    let mut image = layout.image(&config(&[&layer], "x"), &[&gzip(&layer)]);
    if index {
        image = layout.index(&[image]);
    }
    layout.name(image, "a:1");
    layout.tar()
}
