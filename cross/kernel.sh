#!/bin/sh
# kernel TREE PACKAGE: called by mmdebstrap before it cleans up. Unpacks the kernel that PACKAGE leads to: an installation would
# make an initramfs, program by program under the emulator.
set -eu

cd "$1"
name=$(chroot . apt-cache depends --important "$2" | awk '/Depends:/ { print $2; exit }')
chroot . sh -c "cd /tmp && apt-get download $name"
# A link /lib leads to /usr/lib, and stays.
dpkg-deb --fsys-tarfile tmp/"$name"_*.deb | tar -x --keep-directory-symlink
rm tmp/"$name"_*.deb
