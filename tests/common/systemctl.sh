#!/bin/sh
# Stands for systemd where a test installs picolet: services by their files, drop-ins and environment files included. Each call
# is noted in /run/double/calls.
units=/etc/systemd/system now='' name='' verb=$1
mkdir -p /run/double
echo "$*" >>/run/double/calls
shift
for word; do
    case $word in
    --now) now=yes ;;
    -*) ;;
    *) name=${word%.service} ;;
    esac
done
main=/run/double/$name.pid wants=$units/multi-user.target.wants unit=$name.service
case $name in *.socket) wants=$units/sockets.target.wants unit=$name ;; esac
files() { ls $units/$unit $units/$unit.d/*.conf 2>/dev/null; }
lines() { files | xargs sed -n "s/^$1=//p"; }
runs() { [ -f $main ] && kill -0 "$(cat $main)" 2>/dev/null; }
start() {
    # A socket: its service starts when somebody connects.
    case $unit in
    *.socket)
        path=$(lines ListenStream)
        words=$(sed -n 's/^ExecStart=//p' "$units/${name%.socket}.service")
        setsid sh -c "echo \$\$ >$main; while :; do rm -f $path; systemd-socket-activate -l $path $words; done" >>/run/double/log 2>&1 </dev/null &
        until [ -s $main ] && [ -S "$path" ]; do sleep 0.1; done
        return
        ;;
    esac
    lines ConditionPathExists | while read -r path; do [ -e "$path" ] || exit 1; done || return 0
    # The last one counts; an empty one forgets those before it.
    words=$(lines ExecStart | tail -n 1)
    {
        lines Environment | sed 's/^"\([^=]*\)=\(.*\)"$/\1="\2"/'
        lines EnvironmentFile | sed 's/^-//; s/.*/[ ! -f & ] || . &/'
        echo "echo \$\$ >$main"
        echo "exec $words"
    } >/run/double/$name.sh
    rm -f $main
    setsid sh /run/double/$name.sh >>/run/double/log 2>&1 </dev/null &
    until [ -s $main ]; do sleep 0.1; done
}
stop() {
    # Who listens for a socket is more than one.
    case $unit in *.socket) ! runs || kill -- "-$(cat $main)" ;; *) ! runs || kill "$(cat $main)" ;; esac
    while runs; do sleep 0.1; done
    rm -f $main
    case $unit in *.socket) lines ListenStream | xargs -r rm -f ;; esac
}
case $verb in
daemon-reload) ;;
status)
    [ -n "$(files)" ] || { echo "Unit $unit could not be found." && exit 4; }
    echo "Loaded: loaded ($units/$unit)"
    runs
    ;;
is-enabled) [ -L $wants/$unit ] && echo enabled ;;
enable) mkdir -p $wants && ln -sf $units/$unit $wants/ ;;
disable)
    rm -f $wants/$unit
    [ -z "$now" ] || stop
    ;;
is-active) runs ;;
restart) stop && start ;;
start) runs || start ;;
stop) stop ;;
*) echo "double of systemctl: $verb" >&2 && exit 9 ;;
esac
