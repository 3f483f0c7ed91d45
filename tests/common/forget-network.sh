# Removes what the built-in network of the bridge $1 keeps for its next pod: the bridge, the masquerading of its subnets.
# What is not there counts as removed; nothing uses force.
set -e
if [ -e "/sys/class/net/$1" ]; then
    ip link delete "$1"
fi
chain="PICOLET-MASQ-$1"
for iptables in iptables ip6tables; do
    $iptables -w -t nat -S POSTROUTING | sed -n "s/^-A \(.* -j $chain\)$/-D \1/p" | while read -r rule; do
        $iptables -w -t nat $rule
    done
    if $iptables -w -t nat -S "$chain" >/dev/null 2>&1; then
        $iptables -w -t nat -F "$chain"
        $iptables -w -t nat -X "$chain"
    fi
done
