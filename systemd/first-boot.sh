#!/bin/sh
# What whoever flashes a card has put on its boot partition, taken at the first boot. For dash and busybox sh.
#
#   picolet.yaml       a part of the configuration, such as labels; it becomes a drop-in
#   picolet-join.txt   the line that `kubeadm token create --print-join-command` prints, or the words of `picolet join`
#
#   first-boot take    copies both to where root alone reads them, and wipes them from the partition, which everybody can read.
#                      The copy is whole on the disk before the file is wiped: the power may fail at any moment. A picolet.yaml
#                      that is not used stays, as picolet.yaml.wrong. If the copy is in memory, nothing is wiped.
#   first-boot join    joins by the copy. It stays until the machine is a node; picolet-join.service tries again.
#
# What is wrong is told in picolet-join.error.txt beside the file, for who takes the card out. The secret part of the token is not in it.
#
# Exit codes: 0 done, or nothing to do; 1 failed, try again.
set -u
umask 077

# They are set by tests alone.
: "${PICOLET_ROOT:=}" "${PICOLET:=/usr/local/bin/picolet}" "${PICOLET_MOUNTS:=/proc/mounts}"
kept=$PICOLET_ROOT/etc/picolet/first-boot.join
dropin=$PICOLET_ROOT/etc/picolet/config.d/10-first-boot.conf
# No file of these has more bytes.
most=65536

say() {
    echo "first-boot: $1" >&2
}

boots() {
    for dir in "$PICOLET_ROOT/boot/firmware" "$PICOLET_ROOT/boot"; do
        [ ! -d "$dir" ] || echo "$dir"
    done
}

flush() {
    sync "$1" 2>/dev/null || sync
}

# Beside the file: the boot partition is all that is seen of a board that did not join.
complain() {
    say "$2"
    # A join that fails again says the same, but for the time of day: cards wear.
    [ "$(tr -d 0-9 <"$1/picolet-join.error.txt" 2>/dev/null)" != "$(printf '%s' "$2" | tr -d 0-9)" ] || return 0
    printf '%s\n' "$2" >"$1/picolet-join.error.txt" 2>/dev/null && flush "$1/picolet-join.error.txt"
}

fits() {
    [ "$(wc -c <"$1")" -le $most ]
}

# A file in place, whole and for root alone.
place() {
    mkdir -p "$(dirname "$2")" && cat "$1" >"$2.new" && flush "$2.new" && mv -f "$2.new" "$2" && flush "$(dirname "$2")"
}

# FAT has no rights, and a card may be read elsewhere: the words are written over first, as far as flash lets that happen. In
# place: a file that is emptied first gets other blocks.
wipe() {
    tr -c '' '#' <"$1" 1<>"$1" && flush "$1"
    rm -f "$1" && flush "$(dirname "$1")"
}

# Under another name first: what is half written over is never read again.
wipe_taken() {
    mv -f "$1" "$1.taken" && flush "$(dirname "$1")" && wipe "$1.taken"
}

# Type and options of the mount that a path is on.
mount_of() {
    at=$1
    while [ ! -e "$at" ]; do at=$(dirname "$at"); done
    at=$(cd "$at" && pwd -P) || return 1
    # Bounded: the path gets shorter. The last one in the table is on top.
    while :; do
        found=$(awk -v at="$at" '$2 == at { o = $3 " " $4 } END { print o }' "$PICOLET_MOUNTS")
        if [ -n "$found" ] || [ "$at" = / ]; then break; fi
        at=$(dirname "$at")
    done
    echo "$found"
}

# Whether what is written there ends with the power.
in_memory() {
    mount=$(mount_of "$1")
    case $mount in
    "tmpfs "* | "ramfs "* | "rootfs "*) return 0 ;;
    "overlay "*",upperdir="*)
        upper=${mount#*,upperdir=} upper=${upper%%,*}
        # What nobody sees any more is a file system of the initramfs.
        [ -d "$upper" ] || return 0
        case $(mount_of "$upper") in "tmpfs "* | "ramfs "* | "rootfs "*) return 0 ;; esac
        ;;
    esac
    return 1
}

# Wipes what was taken, if its copy in this directory lasts.
settle() {
    if in_memory "$1"; then
        complain "$boot" "$1 is in memory, so picolet.yaml and picolet-join.txt stay here: restart without the overlay once, or put /etc/picolet on a disk"
        return 0
    fi
    wipe_taken "$file" || return 1
    say "took and wiped $file"
}

# What the agent would not start with.
faults() {
    "$PICOLET" check -q 2>/dev/null | grep '^ERROR config '
}

# The words of a join on one line, of this file: the token, then the others. Or `!` and what is wrong. No shell ever reads them.
# Fails if the file cannot be read.
words_of() {
    # Windows' marks of UTF-8 and of UTF-16, whose every second byte is zero here.
    line=$(tr -d '\000\357\273\277\376\377' <"$1") || return 1
    # Its ends of lines, and the backslash by which kubeadm breaks its line.
    line=$(printf '%s' "$line" | tr '\r\n\t\\' '    ')
    wrong="! it is not the line that 'kubeadm token create --print-join-command' prints"
    case $line in *[!A-Za-z0-9\ :._/=,@[\]-]*) echo "$wrong" && return 0 ;; esac
    set -f
    # shellcheck disable=SC2086
    set -- $line
    case ${1:-} in kubeadm | picolet) shift ;; esac
    [ "${1:-}" != join ] || shift
    token='' result='' bare=0 most_bare=1
    while [ $# -gt 0 ]; do
        case $1 in
        --token | --discovery-token-ca-cert-hash | --k3s | --node-labels | --hostname-override)
            [ $# -ge 2 ] || break
            case $1 in
            --token) token=$2 ;;
            --k3s) most_bare=0 result="$result $1 $2" ;;
            *) result="$result $1 $2" ;;
            esac
            shift 2
            ;;
        --token=*) token=${1#*=} && shift ;;
        --discovery-token-ca-cert-hash=* | --k3s=* | --node-labels=* | --hostname-override=*)
            case $1 in --k3s=*) most_bare=0 ;; esac
            result="$result $1" && shift
            ;;
        --discovery-token-unsafe-skip-ca-verification*)
            echo "! ${1%%=*} cannot be used on a board that joins by itself: nobody checks which server answers"
            return 0
            ;;
        -*) break ;;
        *) bare=$((bare + 1)) result="$result $1" && shift ;;
        esac
    done
    # One too many may be the token.
    if [ $# -gt 0 ] || [ $bare -gt $most_bare ] || [ -z "$token" ]; then echo "$wrong" && return 0; fi
    case $most_bare$token in
    0K10*::*) ;;
    0*)
        echo "! its --token names no CA, so nobody checks which server answers: a full token, as 'k3s token create' prints it, is K10, 64 digits, :: and the secret"
        return 0
        ;;
    esac
    echo "$token$result"
}

# A part of the configuration. An agent that cannot read its configuration does not start.
take_part() {
    before=$dropin.before
    # The power failed before this file was found good or wrong.
    if [ -f "$before" ]; then
        mv -f "$before" "$dropin" || return 1
    elif cmp -s "$file" "$dropin"; then
        rm -f "$dropin"
    fi
    if [ -f "$dropin" ]; then place "$dropin" "$before" || cannot_write "$before" || return 1; fi
    place "$file" "$dropin" || cannot_write "$dropin" || return 1
    wrong=$(faults)
    if [ -n "$wrong" ]; then
        rm -f "$dropin"
        others=$(faults)
        if [ -z "$others" ]; then
            complain "$boot" "picolet.yaml is not used: $wrong"
            [ ! -f "$before" ] || mv -f "$before" "$dropin" || return 1
            flush "$(dirname "$dropin")"
            mv -f "$file" "$file.wrong"
            flush "$boot"
            return 0
        fi
        complain "$boot" "the configuration is wrong without picolet.yaml too: $others"
        place "$file" "$dropin" || cannot_write "$dropin" || return 1
    fi
    rm -f "$before" && flush "$(dirname "$dropin")"
    # A partition that cannot be written keeps nobody from joining.
    settle "$(dirname "$dropin")" || say "cannot wipe $file"
    return 0
}

cannot_write() {
    complain "$boot" "cannot write $1: /etc/picolet must be on a writable disk"
    return 1
}

take() {
    code=0
    for boot in $(boots); do
        [ ! -f "$boot/picolet.yaml" ] && [ ! -f "$boot/picolet-join.txt" ] || rm -f "$boot/picolet-join.error.txt"
        # The power failed while it was wiped.
        for file in "$boot/picolet.yaml.taken" "$boot/picolet-join.txt.taken"; do
            [ ! -f "$file" ] || wipe "$file" || say "cannot wipe $file"
        done
        file=$boot/picolet.yaml
        if [ -f "$file" ]; then
            if ! fits "$file"; then
                complain "$boot" "picolet.yaml has more than $most bytes: it is not used"
                mv -f "$file" "$file.wrong"
                flush "$boot"
            else
                # A part that cannot be used keeps nobody from joining.
                take_part || code=1
            fi
        fi
        file=$boot/picolet-join.txt
        if [ -f "$file" ]; then
            words="! it has more than $most bytes"
            if fits "$file"; then words=$(words_of "$file") || { complain "$boot" "cannot read $file" && return 1; }; fi
            case $words in
            '!'*)
                complain "$boot" "picolet-join.txt was wiped: ${words#! }"
                wipe_taken "$file" || return 1
                ;;
            *)
                place "$file" "$kept" || cannot_write "$kept" || return 1
                settle "$(dirname "$kept")" || return 1
                ;;
            esac
        fi
    done
    return $code
}

# On the first boot partition that is there.
tell() {
    for boot in $(boots); do
        complain "$boot" "$1"
        return
    done
    say "$1"
}

join() {
    [ -f "$kept" ] || return 0
    words=$(words_of "$kept") || { say "cannot read $kept" && return 1; }
    # What is on the card is not what the token was for any more.
    rm -f "$kept.new"
    case $words in
    '!'*)
        tell "$kept: ${words#! }"
        return 1
        ;;
    esac
    set -f
    # shellcheck disable=SC2086
    set -- $words
    token=$1
    shift
    # Not among the words of a program, which every user of the machine can read.
    said=$(
        "$PICOLET" join --token-file - "$@" 2>&1 <<EOF
$token
EOF
    ) || case $said in
    # The power failed after the last try, or it was cut off before it had restarted the agent.
    *"is a node already"*)
        if [ -z "$PICOLET_ROOT" ] && [ -d /run/systemd/system ]; then systemctl restart --no-block picolet; fi
        ;;
    *)
        tell "$said"
        return 1
        ;;
    esac
    say "$said"
    for boot in $(boots); do rm -f "$boot/picolet-join.error.txt"; done
    rm -f "$kept" && flush "$(dirname "$kept")"
}

case ${1:-} in
take) take ;;
join) join ;;
*)
    say "first-boot take|join"
    exit 1
    ;;
esac
