#!/bin/sh
# kernel TREE PACKAGE: called by mmdebstrap before it cleans up. Unpacks the kernel that PACKAGE leads to: an installation would
# make an initramfs, program by program under the emulator.
set -eu

cd "$1"
name=$(chroot . apt-cache depends --important "$2" | awk '/Depends:/ { print $2; exit }')
[ -n "$name" ] || { echo "kernel: $2 leads to no package" >&2 && exit 1; }
chroot . sh -c "cd /tmp && apt-get download $name"
dpkg-deb --fsys-tarfile tmp/"$name"_*.deb >tmp/kernel.tar
# A link /lib leads to /usr/lib, and stays.
tar -x --keep-directory-symlink -f tmp/kernel.tar
rm tmp/kernel.tar tmp/"$name"_*.deb
