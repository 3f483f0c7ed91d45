#!/bin/sh
# A board beside a real k3s, by hand, once a release (K3SN-17). Prints a line for each thing that works; ends at the first that does not.
#
#   tests/k3s-trial.sh BOARD OTHER [IMAGE]
#
# BOARD has joined with `picolet join --k3s`; OTHER is another node. kubectl on this machine reaches the cluster, and this machine the board.
# IMAGE has sh, wget and httpd (busybox). At the end the board is drained and its Node deleted: join it anew and run this again.
set -eu
board=$1 other=$2 image=${3:-busybox:1.36} space=picolet-trial

fail() { echo "FAILED: $1" >&2; exit 1; }
ok() { echo "ok: $1"; }
k() { kubectl -n "$space" "$@"; }
# until_works WHAT COMMAND...: tries 90 times, with two seconds between two tries
until_works() {
    what=$1; shift; n=0
    while ! "$@" >/dev/null 2>&1; do
        n=$((n + 1)); [ $n -lt 90 ] || fail "$what"; sleep 2
    done
    ok "$what"
}
inside() { pod=$1; shift; k exec "$pod" -- "$@"; }
fetches() { [ "$(inside "$1" wget -T 5 -qO- "http://$2/")" = "$3" ]; }
one_of_both() { got=$(inside "$1" wget -T 5 -qO- "http://$2/"); [ "$got" = "$board" ] || [ "$got" = "$other" ]; }
field() { kubectl get node "$board" -o "jsonpath=$1"; }
seconds() { date -d "$1" +%s; }

forward=
trap '[ -z "$forward" ] || kill "$forward" 2>/dev/null || true; kubectl delete namespace "$space" --wait=false >/dev/null 2>&1 || true' EXIT
kubectl create namespace "$space" >/dev/null

made=$(seconds "$(field '{.metadata.creationTimestamp}')")
ready=$(seconds "$(field '{.status.conditions[?(@.type=="Ready")].lastTransitionTime}')")
# The condition tells its last change: run this before the node was ever not ready.
took=$((ready - made))
[ "$took" -le 30 ] || fail "Ready $took s after the Node was made"
ok "Ready $took s after the Node was made"
[ "$(field '{.spec.providerID}')" = "k3s://$board" ] || fail "providerID"

for node in "$board" "$other"; do
    k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: web-$node, labels: {app: web}}
spec:
  nodeName: $node
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  containers:
  - name: c
    image: $image
    command: [sh, -c, "mkdir -p /w; echo $node >/w/index.html; echo serves; exec httpd -f -p 8080 -h /w"]
    readinessProbe: {httpGet: {port: 8080}}
Y
done
k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 18080, targetPort: 8080}]}
Y
for node in "$board" "$other"; do
    until_works "pod on $node is Ready" k wait --for=condition=Ready --timeout=1s "pod/web-$node"
done
until_works "logs" sh -c "kubectl -n $space logs web-$board | grep -q serves"
until_works "exec" inside "web-$board" true
k port-forward "pod/web-$board" 28080:8080 >/dev/null & forward=$!
until_works "port-forward" sh -c "[ \"\$(wget -T 5 -qO- http://127.0.0.1:28080/)\" = $board ]"
kill "$forward"
forward=

ip_of() { k get pod "web-$1" -o 'jsonpath={.status.podIP}'; }
until_works "pod of the board to a pod of $other" fetches "web-$board" "$(ip_of "$other"):8080" "$other"
until_works "pod of $other to a pod of the board" fetches "web-$other" "$(ip_of "$board"):8080" "$board"
until_works "Service and DNS from a pod of the board" one_of_both "web-$board" "web.$space.svc.cluster.local:18080"

address=$(field '{.status.addresses[?(@.type=="InternalIP")].address}')
address=${address%% *}
port=$(k get service web -o 'jsonpath={.spec.ports[0].nodePort}')
until_works "node port from outside" wget -T 5 -qO /dev/null "http://$address:$port/"
until_works "pods of the load balancer on the board are Ready" sh -c "kubectl -n kube-system get pods \
    --field-selector spec.nodeName=$board -o 'jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}' \
    | grep -q '^svclb-web-.* True'"
until_works "port of the load balancer from outside" wget -T 5 -qO /dev/null "http://$address:18080/"

kubectl drain "$board" --ignore-daemonsets --force --delete-emptydir-data --timeout=3m >/dev/null || fail "drain"
ok "drain"
kubectl delete node "$board" --timeout=1m >/dev/null || fail "delete the Node"
ok "Node deleted: on the board, join anew with --force, and run this again"
