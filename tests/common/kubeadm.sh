#!/bin/sh
# Does to a machine what kubeadm 1.36 does: join, upgrade node, reset; the files, the calls, the waits. What it needs of the
# cluster lies in /run/cluster. Sources: kubeadm cmd/phases/join/kubelet.go, phases/upgrade/node, cmd/phases/reset/cleanupnode.go.
set -eu
dir=/var/lib/kubelet kube=/etc/kubernetes
say() { echo "double of kubeadm: $*" >&2; exit 1; }
health() { curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$(sed -n 's/^healthzPort: //p' $dir/config.yaml)/healthz"; }
case $1 in
join)
    # Preflight, as far as it is about files and programs.
    kubelet --version | grep -Eqx 'Kubernetes v([0-9]+\.){2}[0-9]+([-+][-_.+0-9A-Za-z]*)?' || say "the version of the kubelet"
    for file in $kube/kubelet.conf $kube/bootstrap-kubelet.conf $kube/pki/ca.crt; do [ ! -e $file ] || say "$file is there"; done
    # Service-kubelet, the stop before the files are written.
    systemctl status kubelet | grep -q 'Loaded: loaded' || say "no service"
    systemctl is-enabled kubelet
    mkdir -p $kube/pki $dir
    cp /run/cluster/bootstrap $kube/bootstrap-kubelet.conf
    cp /run/cluster/ca.crt $kube/pki/ca.crt
    systemctl status kubelet | grep -q 'Loaded: loaded'
    systemctl stop kubelet
    resolv=''
    ! systemctl is-active systemd-resolved || resolv=/run/systemd/resolve/resolv.conf
    echo 'containerRuntimeEndpoint: "unix:///var/run/containerd/containerd.sock"' >$dir/instance-config.yaml
    cat /run/cluster/config.yaml $dir/instance-config.yaml >$dir/config.yaml
    [ -z "$resolv" ] || echo "resolvConf: $resolv" >>$dir/config.yaml
    echo 'KUBELET_KUBEADM_ARGS="--register-with-taints=example.com/new=:NoSchedule"' >$dir/kubeadm-flags.env
    chmod 644 $dir/*
    systemctl status kubelet | grep -q 'Loaded: loaded'
    systemctl daemon-reload
    systemctl restart kubelet
    n=0
    until [ "$(health)" = 200 ]; do
        n=$((n + 1))
        [ $n -lt 480 ] || say "the kubelet is not healthy"
        sleep 0.5
    done
    n=0
    until [ -s $kube/kubelet.conf ]; do
        n=$((n + 1))
        [ $n -lt 300 ] || say "no kubelet.conf"
        sleep 1
    done
    rm $kube/bootstrap-kubelet.conf
    ;;
upgrade-node)
    # The node's own kubeconfig is the client, and says who it is.
    pem=$(sed -n 's/.*client-certificate: *"\{0,1\}\([^"]*\).*/\1/p' $kube/kubelet.conf)
    grep -q 'PRIVATE KEY' "$pem" || say "kubelet.conf names no pair: $pem"
    curl -sS --fail --cacert $kube/pki/ca.crt --cert "$pem" --key "$pem" "$(cat /run/cluster/url)/api/v1/nodes/node" >/dev/null
    mkdir -p /etc/kubernetes/tmp
    cp $dir/config.yaml /etc/kubernetes/tmp/kubeadm-kubelet-config.yaml
    # From the flags into a file of its own; then all of it anew.
    sed -i 's/--container-runtime-endpoint=[^ "]*//' $dir/kubeadm-flags.env
    echo 'containerRuntimeEndpoint: "unix:///var/run/containerd/containerd.sock"' >$dir/instance-config.yaml
    cat /run/cluster/config.yaml $dir/instance-config.yaml >$dir/config.yaml
    # It restarts nothing.
    ;;
reset)
    systemctl stop kubelet
    grep " $dir/" /proc/self/mountinfo | cut -d' ' -f5 | sort -r | xargs -r umount
    # The containers by CRI: nobody answers.
    for empty in $kube/manifests $kube/pki $dir /var/lib/etcd; do [ ! -d $empty ] || find $empty -mindepth 1 -delete; done
    rm -f $kube/kubelet.conf $kube/bootstrap-kubelet.conf
    ;;
*) say "$1" ;;
esac
