#!/bin/busybox sh
# The first process of an emulated board: loads what the kernel needs to see its disk, and goes on from there.
bb=/bin/busybox
$bb mount -t devtmpfs dev /dev
$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
while read -r module; do $bb insmod "/modules/$module"; done </modules/order
tries=0
until root=$($bb findfs LABEL=root) || [ "$tries" -ge 100 ]; do
    tries=$((tries + 1))
    $bb sleep 0.1
done
$bb mount -t ext4 "$root" /root
for dir in dev proc sys; do $bb mount -o move "/$dir" "/root/$dir"; done
exec $bb switch_root /root /sbin/init
