#!/bin/sh
# foreign PROCESSOR COMMAND...: runs COMMAND as root of a user namespace in which programs for PROCESSOR start, by qemu-user-static.
# Nothing is registered with the machine itself: since Linux 6.7 such a namespace has a binfmt_misc of its own.
set -eu

# shellcheck disable=SC2016
unshare --user --mount sh -c '
set -eu
# Until it has its users.
tries=0
until [ -n "$(cat /proc/self/gid_map)" ]; do
	tries=$((tries + 1))
	[ $tries -lt 300 ] || exit 1
	sleep 0.1
done
processor=$1 && shift
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
cat "/usr/lib/binfmt.d/qemu-$processor.conf" >/proc/sys/fs/binfmt_misc/register
exec setpriv --reuid 0 --regid 0 --clear-groups "$@"
' foreign "$@" &
child=$!
trap 'kill $child 2>/dev/null || true' EXIT
own=$(readlink /proc/self/ns/user)
tries=0
until [ "$(readlink /proc/$child/ns/user)" != "$own" ]; do
	tries=$((tries + 1))
	[ $tries -lt 300 ] || exit 1
	sleep 0.1
done
echo "0 0 4294967295" >/proc/$child/uid_map
echo "0 0 4294967295" >/proc/$child/gid_map
wait $child
