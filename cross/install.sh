#!/bin/sh
# Installs picolet from the directory that this file is in, or from the tarball of a release, on Debian-like systems and
# Alpine. For dash and busybox sh. It asks no network. A second run changes and restarts nothing.
#
# Exit codes: 0 done, 1 failed, 2 wrong usage, 3 this machine cannot run it (nothing was written).
set -u

usage() {
    cat <<END
Usage: install.sh [FLAGS] [TARBALL]

TARBALL is picolet-VERSION-BOARD.tar.gz. SHA256SUMS and SHA256SUMS.sig of its release are beside it.

  --mode standalone|kubeadm  run standalone (default), or as the kubelet for kubeadm
  --key FILE                 public key that the release is signed by (default: of the installed release, else release.pub
                             beside this file)
  --root DIR                 install into the system below DIR, such as a mounted SD card; starts nothing
  --no-start                 install and enable, but start nothing
  --enable-memory            also switch on the memory controller, in cmdline.txt of a Raspberry Pi (a copy of that file stays
                             beside it); restart the machine afterwards
  --dry-run                  say what would be done
  --uninstall                remove the program and its units; pods, data and configuration stay
  --purge                    with --uninstall: end the pods, remove data and configuration too
END
}

wrong() {
    echo "install.sh: $1 (try --help)" >&2
    exit 2
}

failed() {
    echo "install.sh: $1" >&2
    exit 1
}

mode=standalone root='' start=yes memory='' dry='' remove='' purge='' key='' tarball=''
while [ $# -gt 0 ]; do
    case $1 in
    --mode=* | --root=* | --key=*) set -- "${1%%=*}" "${1#*=}" "$@" && flag=$1 value=$2 && shift 3 ;;
    --mode | --root | --key)
        [ $# -ge 2 ] || wrong "$1 needs a value"
        flag=$1 value=$2
        shift 2
        ;;
    *) flag=$1 value='' && shift ;;
    esac
    case $flag in
    --mode)
        case $value in
        standalone | kubeadm) mode=$value ;;
        *) wrong "--mode is \"$value\", must be standalone or kubeadm" ;;
        esac
        ;;
    --root)
        [ -d "$value" ] || wrong "--root: $value is no directory"
        root=$(cd "$value" && pwd -P)
        [ "$root" != / ] || root=''
        ;;
    --key)
        [ -f "$value" ] || wrong "--key: there is no file $value"
        key=$value
        ;;
    --no-start) start='' ;;
    --enable-memory) memory=yes ;;
    --dry-run) dry=yes ;;
    --uninstall) remove=yes ;;
    --purge) purge=yes ;;
    -h | --help) usage && exit 0 ;;
    -*) wrong "unknown flag $flag" ;;
    *)
        [ -z "$tarball" ] || wrong "one tarball is enough"
        [ -f "$flag" ] || wrong "there is no file $flag"
        tarball=$flag
        ;;
    esac
done
[ -z "$tarball" ] || [ -z "$remove" ] || wrong "--uninstall needs no tarball"
[ -z "$memory" ] || [ -z "$remove" ] || wrong "--enable-memory goes with an installation"
[ -z "$purge" ] || [ -n "$remove" ] || wrong "--purge goes with --uninstall"
# Another system is not run: nothing of it can be asked or started.
[ -z "$root" ] || start=''

here=$(cd "$(dirname "$0")" && pwd) || failed "cannot find the directory of this file"
# Images for boards without a registry: also if the program comes from a tarball.
beside=$here/images
bin=$root/usr/local/bin
target=$bin/picolet
library=$root/usr/local/lib/picolet
share=$root/usr/local/share
kubelet=$root/usr/bin/kubelet
link=/usr/local/bin/picolet
units=$root/etc/systemd/system
scripts=$root/etc/init.d
rotation=$root/etc/logrotate.d/picolet
import=$root/var/lib/picolet/import
# There from the first file that a running agent does not have yet until that agent is restarted.
unfinished=$library/unfinished
cri='picolet-cri.socket picolet-cri.service'
boot='picolet-first-boot.service picolet-join.service'
service=picolet
[ "$mode" = standalone ] || service=kubelet

# ---- What was released. A tarball is unpacked only after that.

refuse_release() {
    echo "install.sh: $1" >&2
    exit 3
}

# Checks copies, and leaves that of the tarball to be unpacked: where the release lies others may write, and a file could be
# another one after its check.
verify() {
    dir=$(dirname "$tarball") name=$(basename "$tarball")
    sums=$dir/SHA256SUMS signature=$dir/SHA256SUMS.sig
    for file in "$sums" "$signature"; do
        [ -f "$file" ] || refuse_release "there is no $file: put SHA256SUMS and SHA256SUMS.sig of the release beside the tarball"
    done
    if [ -z "$key" ]; then
        key=$library/release.pub
        [ -f "$key" ] || key=$here/release.pub
        [ -f "$key" ] || refuse_release "there is no $key to check the release with: give the key with --key"
    fi
    command -v openssl >/dev/null ||
        refuse_release "openssl is needed to check the signature, but is not installed: install it, or unpack the tarball and run its install.sh"
    openssl pkeyutl -help 2>&1 | grep -q -e -rawin ||
        refuse_release "this openssl is too old to check the signature, it must be 3.0 or newer: upgrade it, or unpack the tarball and run its install.sh"
    for file in "$sums" "$signature" "$tarball"; do
        cp "$file" "$unpacked/" || failed "cannot copy $file to $unpacked"
    done
    sums=$unpacked/SHA256SUMS signature=$unpacked/SHA256SUMS.sig copy=$unpacked/$name
    openssl pkeyutl -verify -pubin -inkey "$key" -rawin -in "$sums" -sigfile "$signature" >/dev/null 2>&1 ||
        refuse_release "SHA256SUMS is not signed by $key: fetch it and SHA256SUMS.sig again, or give the publisher's key with --key"
    sum=$(awk -v name="$name" '$2 == name { print $1 }' "$sums")
    [ -n "$sum" ] || refuse_release "SHA256SUMS does not name $name: both files must be from the same release, under their original names"
    [ "$(sha256sum <"$copy" | cut -d' ' -f1)" = "$sum" ] || refuse_release "$name does not match its checksum in the release: fetch it again"
}

if [ -n "$tarball" ]; then
    # For nobody but this user.
    unpacked=$(mktemp -d) || failed "cannot make a directory to unpack into"
    trap 'rm -rf "$unpacked"' EXIT
    verify
    tar -xzf "$copy" -C "$unpacked" || failed "cannot unpack $tarball"
    rm -f "$copy"
    here=$unpacked/$(basename "$tarball" .tar.gz)
fi
program=$here/picolet
# picolet-core cannot join by itself.
joins=$boot
[ ! -f "$here/core" ] || joins=''

# ---- What the machine is. Nothing is written here.

# Class and processor of a program, such as 02b700: from its ELF header. Nothing if it has none.
elf() {
    head=$(dd if="$1" bs=20 count=1 2>/dev/null | od -An -tx1 | tr -d ' \n')
    case $head in 7f454c46*) echo "$head" | cut -c9-10,37-40 ;; esac
}

name_of() {
    case $1 in
    02b700) echo "aarch64" ;;
    012800) echo "32-bit ARM" ;;
    023e00) echo "x86_64" ;;
    010300) echo "32-bit x86" ;;
    '') echo "none (it is no program)" ;;
    *) echo "unknown ($1)" ;;
    esac
}

# The mount that a path is on, as $disk, and its $options.
find_mount() {
    disk=$1
    while [ ! -e "$disk" ]; do disk=$(dirname "$disk"); done
    disk=$(cd "$disk" && pwd -P)
    # Bounded: the path gets shorter. The last one in the table is on top.
    while :; do
        options=$(at=$disk awk '{ gsub(/\\040/, " ", $2) } $2 == ENVIRON["at"] { o = $4 } END { print o }' /proc/mounts)
        if [ -n "$options" ] || [ "$disk" = / ]; then break; fi
        disk=$(dirname "$disk")
    done
}

# Whether something is mounted at or below a path without links.
has_mounts() {
    at=$1 awk '{ gsub(/\\040/, " ", $2) } $2 == ENVIRON["at"] || index($2, ENVIRON["at"] "/") == 1 { n++ } END { exit !n }' /proc/mounts
}

init=none
if [ -n "$root" ]; then
    if [ -e "$root/lib/systemd/systemd" ] || [ -e "$root/usr/lib/systemd/systemd" ]; then
        init=systemd
    elif [ -e "$root/sbin/openrc" ] || [ -e "$root/usr/sbin/openrc" ]; then
        init=openrc
    fi
elif [ -d /run/systemd/system ]; then
    init=systemd
elif [ -d /run/openrc ]; then
    init=openrc
fi

unfit=''
refuse() {
    echo "install.sh: $1" >&2
    unfit=yes
}

# The userland decides, not the kernel: uname -m says aarch64 on many 32-bit systems.
fits_processor() {
    if [ -n "$root" ]; then
        # Init and shell are links on most systems. A link of another system may lead into this one.
        set -- sbin/init bin/sh usr/lib/systemd/systemd lib/systemd/systemd bin/dash bin/busybox bin/busybox.nosuid bin/bash
    else
        set -- /proc/1/exe /bin/sh
    fi
    own=''
    for file; do
        if [ -n "$root" ]; then
            dir=$(cd "$root/${file%/*}" 2>/dev/null && pwd -P) || continue
            case $dir in "$root"/*) file=$dir/${file##*/} ;; *) continue ;; esac
            [ ! -L "$file" ] || continue
        fi
        own=$(elf "$file")
        [ -z "$own" ] || break
    done
    if [ -z "$own" ]; then
        refuse "cannot tell the processor of the system${root:+ below $root}: there is no program in the usual places"
        return
    fi
    given=$(elf "$program")
    if [ "$own" != "$given" ]; then
        refuse "this program is for $(name_of "$given"), the system is $(name_of "$own"): take the tarball for that"
        return
    fi
    # The processor that another system will run on cannot be asked.
    [ -z "$root" ] || return
    # An ARMv7 program starts on an ARMv6 processor, and dies later.
    case $(cat "$here/arch" 2>/dev/null)-$(uname -m) in
    armv7-armv6*) refuse "this program is for ARMv7, the processor is ARMv6: take the tarball for armv6" ;;
    esac
}

fits_kernel() {
    release=$(uname -r)
    major=${release%%.*} rest=${release#*.}
    minor=${rest%%[!0-9]*}
    if [ "$major" -lt 5 ] || { [ "$major" -eq 5 ] && [ "$minor" -lt 6 ]; }; then
        refuse "the kernel is Linux $release, it must be 5.6 or newer: upgrade it"
    fi
}

fits_disk() {
    find_mount "$bin"
    case ,$options, in
    *,ro,*) refuse "$bin is on $disk, which is read-only: mount -o remount,rw $disk" ;;
    *,noexec,*) refuse "$bin is on $disk, which is mounted noexec: mount -o remount,exec $disk" ;;
    esac
    # The new program stands beside the old one for a moment.
    need=$(($(wc -c <"$program") / 1024 + 64))
    has=$(df -Pk "$disk" | awk 'NR == 2 { print $4 }')
    [ "$has" -ge "$need" ] || refuse "$disk has $has KiB free, but $need KiB are needed: make room there"
}

fits_neighbours() {
    # Its units and its program would be hidden by these, and so would each newer one of the package.
    if [ -e "$root/usr/lib/picolet/guard" ]; then
        refuse "the Debian package picolet is installed: upgrade it by apt, or remove it first (apt-get remove picolet)"
    fi
    if [ "$mode" = kubeadm ] && [ -e "$kubelet" ] && [ "$(readlink "$kubelet")" != "$link" ]; then
        refuse "$kubelet is another kubelet: remove its package first (apt-get remove kubelet), or move it"
    fi
    # Of k3s, of a distribution, or written by hand.
    if [ -f "$units/kubelet.service" ] && ! grep -q picolet "$units/kubelet.service"; then
        refuse "$units/kubelet.service belongs to another kubelet: disable it and move it away first"
    fi
    [ -z "$root" ] || return
    for comm in /proc/[0-9]*/comm; do
        read -r name <"$comm" 2>/dev/null || continue
        case $name in
        kubelet | k3s | k3s-server | k3s-agent) ;;
        *) continue ;;
        esac
        pid=${comm#/proc/} pid=${pid%/comm}
        case $(readlink "/proc/$pid/exe") in
        "$link"*) ;;
        *) refuse "$name (pid $pid) runs here and uses the same port and cgroups: stop and disable it first" ;;
        esac
    done
}

check() {
    [ -n "$root" ] || [ "$(id -u)" -eq 0 ] || refuse "must run as root: sudo sh install.sh"
    [ -f "$program" ] || failed "there is no program at $program: unpack the whole tarball"
    for file in guard first-boot; do
        [ -f "$here/$file" ] || failed "there is no $here/$file: unpack the whole tarball"
    done
    [ "$mode" = standalone ] || [ ! -f "$here/core" ] ||
        refuse "this is picolet-core, which has no 'picolet cri' for kubeadm: take the tarball of picolet"
    fits_processor
    [ -n "$root" ] || fits_kernel
    [ $init != none ] || refuse "the system has neither systemd nor OpenRC: start '$link run' with its own service manager"
    fits_disk
    fits_neighbours
    [ -z "$unfit" ] || exit 3
    # The firmware of a Raspberry Pi switches it off. /proc/cgroups may lack it although it is on.
    groups=/sys/fs/cgroup/cgroup.controllers
    if [ -z "$root$memory" ] && [ -r $groups ] && ! grep -qw memory $groups; then
        if [ -n "$(cmdline)" ]; then
            echo "warning: the memory controller is off, pods with memory limits do not start: run this again with --enable-memory, which adds" \
                "cgroup_enable=memory to the one line of $(cmdline), and restart" >&2
        else
            echo "warning: the memory controller is off, pods with memory limits do not start: add cgroup_enable=memory to the kernel's" \
                "command line and restart" >&2
        fi
    fi
    [ -z "$memory" ] || [ -n "$(cmdline)" ] ||
        { refuse "there is no cmdline.txt with a root= in $root/boot/firmware or $root/boot: add cgroup_enable=memory to the kernel's command line in the way of this board" && exit 3; }
}

# The file that the firmware of a Raspberry Pi takes the kernel's command line from: before Debian 12 in /boot, where a note that
# it has moved is left since.
cmdline() {
    for file in "$root/boot/firmware/cmdline.txt" "$root/boot/cmdline.txt"; do
        if [ -f "$file" ] && sed -n 1p "$file" | grep -qE '(^|[[:space:]])root=.'; then
            printf '%s\n' "$file"
            return
        fi
    done
}

# Its first line is the command line. What switches the controller off goes, and the rest stays as it is.
enable_memory() {
    file=$(cmdline)
    line=$(sed -n 1p "$file" | tr -d '\r')
    new=$(printf '%s\n' "$line" | sed -e 's/ *$/ /' -e :a -e 's/^cgroup_disable=memory  *//' -e 's/ cgroup_disable=memory  */ /' -e ta -e 's/ *$//')
    case " $new " in *" cgroup_enable=memory "*) ;; *) new="$new cgroup_enable=memory" ;; esac
    [ "$new" != "$line" ] || return 0
    changed=yes
    if [ -n "$dry" ]; then
        printf '%s\n' "would write to $file: $new"
        return
    fi
    before=$file.before-picolet
    if [ ! -f "$before" ]; then
        cp "$file" "$before.new" || failed "cannot keep a copy of $file"
        flush "$before.new"
        mv -f "$before.new" "$before" || failed "cannot keep a copy of $file"
    fi
    printf '%s\n' "$new" >"$file.new" || failed "cannot write $file.new"
    sed 1d "$file" >>"$file.new" || failed "cannot write $file.new"
    flush "$file.new"
    mv -f "$file.new" "$file" || failed "cannot replace $file"
    flush "$(dirname "$file")"
    echo "switched on the memory controller in $file (copy of the old file: $before): restart the board to use it"
}

# ---- What is done.

run() {
    if [ -n "$dry" ]; then
        echo "would run: $*"
    else
        "$@" || failed "failed: $*"
    fi
}

changed='' reload=''

flush() {
    sync "$1" 2>/dev/null || sync
}

# Puts a file in place as a whole, if it is another one: shims use the old program, and the power may fail.
place() {
    from=$1 to=$2 bits=$3
    if cmp -s "$from" "$to" && [ "$(ls -ld "$to" | cut -c1-10)" = "$bits" ]; then return; fi
    changed=yes
    case $to in "$units"/*) reload=yes ;; esac
    if [ -n "$dry" ]; then
        echo "would install $to"
        return
    fi
    mkdir -p "$(dirname "$to")" || failed "cannot make $(dirname "$to")"
    # A run that is cut off here would find nothing to change the next time.
    if [ -z "$root" ] && [ ! -e "$unfinished" ]; then
        mkdir -p "$library" && : >"$unfinished" || failed "cannot write $unfinished"
    fi
    { cp "$from" "$to.new" && chmod "$([ "$bits" = -rwxr-xr-x ] && echo 755 || echo 644)" "$to.new"; } ||
        failed "cannot write $to.new"
    flush "$to.new"
    # One that is on trial may not be well: the program before it is what is kept.
    [ "$to" != "$target" ] || [ ! -f "$to" ] || [ -e "$to.trial" ] || ln -f "$to" "$to.old" || failed "cannot keep $to"
    mv -f "$to.new" "$to" || failed "cannot install $to"
    # An upgrade that was on trial ends with that: this program is what the operator wants.
    [ "$to" != "$target" ] || rm -f "$to.trial"
    flush "$(dirname "$to")"
    echo "installed $to"
}

forget_cri() {
    if [ -z "$root" ] && [ $init = systemd ] && [ -e "$units/picolet-cri.socket" ]; then
        run systemctl disable -q --now picolet-cri.socket
        run systemctl stop -q picolet-cri.service
    fi
    for unit in $cri; do delete "$units/$unit" "$units/sockets.target.wants/$unit"; done
}

forget_boot() {
    if [ -z "$root" ] && [ $init = systemd ]; then
        for unit in $boot; do [ ! -e "$units/$unit" ] || run systemctl disable -q --now "$unit"; done
    fi
    for unit in $boot; do delete "$units/$unit" "$units/multi-user.target.wants/$unit"; done
}

# One agent at a time: both want the same port.
retire() {
    other=kubelet
    [ "$service" = picolet ] || other=picolet
    if [ "$mode" = standalone ]; then forget_cri; else forget_boot; fi
    [ -n "$joins" ] || forget_boot
    [ -e "$units/$other.service" ] || [ -L "$root/etc/runlevels/default/$other" ] || return 0
    if [ -z "$root" ] && [ $init = systemd ] && systemctl is-enabled -q $other 2>/dev/null; then
        run systemctl disable -q --now $other
    elif [ -z "$root" ] && [ $init = openrc ]; then
        run rc-service -q --ifstarted $other stop
    fi
    delete "$units/multi-user.target.wants/$other.service" "$root/etc/runlevels/default/$other"
}

delete() {
    for file; do
        if [ -e "$file" ] || [ -L "$file" ]; then run rm -f "$file"; fi
    done
}

want() {
    wants=$units/$1.wants
    [ -L "$wants/$2" ] && return
    run mkdir -p "$wants"
    run ln -sf "/etc/systemd/system/$2" "$wants/$2"
}

enable() {
    case $init in
    systemd)
        if [ -n "$root" ]; then
            want multi-user.target $service.service
            if [ "$mode" = standalone ]; then
                for unit in $joins; do want multi-user.target "$unit"; done
            else
                want sockets.target picolet-cri.socket
            fi
            return
        fi
        [ -z "$reload" ] || run systemctl daemon-reload
        systemctl is-enabled -q $service 2>/dev/null || run systemctl enable -q $service
        others=picolet-cri.socket
        [ "$mode" != standalone ] || others=$joins
        for unit in $others; do systemctl is-enabled -q "$unit" 2>/dev/null || run systemctl enable -q "$unit"; done
        ;;
    openrc)
        for name in $service picolet-pods; do
            [ -L "$root/etc/runlevels/default/$name" ] && continue
            run mkdir -p "$root/etc/runlevels/default"
            run ln -sf "/etc/init.d/$name" "$root/etc/runlevels/default/$name"
        done
        ;;
    esac
}

begin() {
    [ -n "$start" ] || return
    case $init in
    systemd)
        if [ -n "$changed" ] || ! systemctl is-active -q $service; then run systemctl restart $service; fi
        [ "$mode" = standalone ] || systemctl is-active -q picolet-cri.socket || run systemctl start picolet-cri.socket
        ;;
    openrc)
        # Before the join the kubelet does not start: kubeadm starts it.
        if [ "$mode" = standalone ] || [ -f /var/lib/kubelet/config.yaml ]; then
            rc-service -q $service status >/dev/null 2>&1 || changed=yes
            [ -z "$changed" ] || run rc-service $service restart
        fi
        rc-service -q picolet-pods status >/dev/null 2>&1 || run rc-service picolet-pods start
        ;;
    esac
    delete "$unfinished"
}

install() {
    check
    [ -z "$start" ] || [ ! -e "$unfinished" ] || { changed=yes && reload=yes; }
    place "$program" "$target" -rwxr-xr-x
    # Also if the program was there already.
    delete "$target.trial"
    place "$here/guard" "$library/guard" -rwxr-xr-x
    place "$here/first-boot" "$library/first-boot" -rwxr-xr-x
    for pair in release.pub:"$library/release.pub" completion/bash:"$share/bash-completion/completions/picolet" \
        completion/zsh:"$share/zsh/site-functions/_picolet" completion/fish:"$share/fish/vendor_completions.d/picolet.fish" \
        man/picolet.8:"$share/man/man8/picolet.8"; do
        [ ! -f "$here/${pair%%:*}" ] || place "$here/${pair%%:*}" "${pair#*:}" -rw-r--r--
    done
    if [ "$mode" = kubeadm ] && [ ! -L "$kubelet" ]; then
        changed=yes
        run mkdir -p "$(dirname "$kubelet")"
        run ln -s "$link" "$kubelet"
    fi
    case $init in
    systemd)
        for unit in $service picolet-pods picolet-upgrade; do place "$here/systemd/$unit.service" "$units/$unit.service" -rw-r--r--; done
        # kubeadm wants a container runtime to speak to.
        [ "$mode" != standalone ] || for unit in $joins; do place "$here/systemd/$unit" "$units/$unit" -rw-r--r--; done
        [ "$mode" = standalone ] || for unit in $cri; do place "$here/systemd/$unit" "$units/$unit" -rw-r--r--; done
        ;;
    openrc)
        for unit in $service picolet-pods; do place "$here/openrc/$unit" "$scripts/$unit" -rwxr-xr-x; done
        place "$here/openrc/logrotate" "$rotation" -rw-r--r--
        ;;
    esac
    for file in "$beside"/*; do
        [ ! -f "$file" ] || place "$file" "$import/${file##*/}" -rw-r--r--
    done
    [ -z "$memory" ] || enable_memory
    retire
    enable
    begin
    if [ -z "$changed" ]; then echo "nothing to change"; fi
}

# What `picolet join` has written outside of the directories of picolet: a machine that has it counts as a node.
leave_cluster() {
    config=$root/etc/picolet/config.yaml
    if ! grep -qs '^# Written by picolet join' "$config"; then return; fi
    for name in kubeconfig bootstrapKubeconfig clientCAFile; do
        file=$(sed -n "s/^ *$name: //p" "$config")
        case $name-$file in
        # Another one is the operator's.
        clientCAFile-/etc/kubernetes/pki/ca.crt | kubeconfig-/* | bootstrapKubeconfig-/*) delete "$root$file" ;;
        esac
    done
}

uninstall() {
    [ -n "$root" ] || [ "$(id -u)" -eq 0 ] || { refuse "must run as root: sudo sh install.sh" && exit 3; }
    # While there is an agent: only that runs the hooks of the pods.
    if [ -n "$purge" ] && [ -z "$root" ] && [ -x "$target" ]; then run "$target" reset --stop --yes; fi
    for name in picolet kubelet; do
        case $name in kubelet) [ "$(readlink "$kubelet")" = "$link" ] || continue ;; esac
        if [ -z "$root" ] && [ $init = systemd ] && [ -e "$units/$name.service" ]; then
            run systemctl disable -q --now $name
        elif [ -z "$root" ] && [ $init = openrc ] && [ -e "$scripts/$name" ]; then
            run rc-service -q --ifstarted $name stop
        fi
        delete "$units/$name.service" "$units/multi-user.target.wants/$name.service" \
            "$scripts/$name" "$root/etc/runlevels/default/$name"
    done
    if [ -n "$purge" ]; then
        if [ -z "$root" ]; then
            # The pods are ended: so are the units that wait for that.
            if [ $init = systemd ]; then
                for unit in picolet-pods picolet-upgrade; do
                    [ ! -e "$units/$unit.service" ] || run systemctl stop -q $unit
                done
            elif [ $init = openrc ] && [ -e "$scripts/picolet-pods" ]; then
                run rc-service -q --ifstarted picolet-pods stop
            fi
        fi
        leave_cluster
        for dir in "$root/etc/picolet" "$root/var/lib/picolet" "$root/run/picolet"; do
            [ -d "$dir" ] || continue
            # A link may lead elsewhere, and the table of mounts has real paths.
            real=$(cd "$dir" && pwd -P) || failed "cannot enter $dir"
            case $real in "$root"/*) ;; *) failed "$dir leads out of $root, to $real: remove that link, and run this again" ;; esac
            # A disk that somebody has mounted there is theirs.
            ! has_mounts "$real" || failed "something is mounted at or below $real: unmount it, and run this again"
            run rm -r "$real"
            [ ! -L "$dir" ] || run rm "$dir"
        done
        # A kubelet writes it under the same name.
        delay=$root/etc/systemd/logind.conf.d/99-kubelet.conf
        if grep -qs '^# Written by picolet' "$delay"; then delete "$delay"; fi
    fi
    forget_cri
    forget_boot
    # Not stopped, which would end the pods: without its file it goes with the machine.
    delete "$units/picolet-pods.service" "$scripts/picolet-pods" "$root/etc/runlevels/default/picolet-pods"
    [ "$(readlink "$kubelet")" != "$link" ] || delete "$kubelet"
    # What `picolet upgrade` leaves beside the program.
    for end in part trial trial.part bad bad.part back back.part; do delete "$target.$end"; done
    delete "$target" "$target.old" "$target.new" "$units/picolet-upgrade.service" "$library/guard" "$library/first-boot" "$library/release.pub" \
        "$unfinished" "$rotation" "$share/bash-completion/completions/picolet" "$share/zsh/site-functions/_picolet" \
        "$share/fish/vendor_completions.d/picolet.fish" "$share/man/man8/picolet.8"
    [ ! -d "$library" ] || run rmdir "$library"
    if [ -z "$root" ] && [ $init = systemd ]; then run systemctl daemon-reload; fi
}

if [ -n "$remove" ]; then uninstall; else install; fi
