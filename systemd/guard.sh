#!/bin/sh
# Puts the program back that `picolet upgrade` has replaced, if the new one does not become healthy. It needs no working
# agent: the units call it before each start of one. For dash and busybox sh.
#
#   guard PROGRAM [COMMAND...]     counts a start of a program on trial, or puts the old one back; then becomes COMMAND
#   guard --back PROGRAM REASON    puts the old one back now
#
# Beside PROGRAM: PROGRAM.old, the program before; PROGRAM.trial, there while a new one is on trial, its first line the
# starts that are left; PROGRAM.bad, what was put back and why; PROGRAM.back, the same for the agent to tell as an event.
# A power cut after any step leaves one whole program, and the next call goes on from there.
set -u

# Versions that are remembered as bad.
most_bad=8

say() {
    echo "picolet guard: $1" >&2
}

flush() {
    sync "$1" 2>/dev/null || sync
}

# Replaces a file by what comes in: as a whole, and on disk before this returns.
put() {
    cat >"$1.part" && flush "$1.part" && mv -f "$1.part" "$1" && flush "$(dirname "$1")"
}

# The rest of the line of the trial that begins with this word.
told() {
    sed -n "s/^$1 //p" "$trial" | head -n 1
}

# Says how many starts are left, one digit for another.
leave() {
    { echo "tries $1" && sed 1d "$trial"; } | put "$trial" || {
        rm -f "$trial.part"
        # On a full disk in place, which needs no room.
        echo "tries $1" 1<>"$trial" && flush "$trial"
    }
}

end_trial() {
    rm -f "$trial" && flush "$(dirname "$trial")"
}

back() {
    # What was judged bad gets no start more: after a power cut the next one goes on from here.
    case $(told tries) in
    [1-9]) leave 0 || say "cannot write $trial" ;;
    esac
    sum=$(told sum)
    line="$sum $(told version) $1"
    { grep -v "^$sum " "$program.bad" 2>/dev/null | tail -n $((most_bad - 1)) && echo "$line"; } | put "$program.bad" &&
        echo "$line" | put "$program.back" || {
        # The swap needs no room on the disk, and does not wait for the notes.
        rm -f "$program.bad.part" "$program.back.part"
        say "cannot note it: $line"
    }
    rm -f "$program.part" && ln "$old" "$program.part" && mv -f "$program.part" "$program" &&
        flush "$(dirname "$program")" && end_trial || return 1
    say "put the old program back: $line"
}

count() {
    [ -e "$trial" ] || return 0
    if [ "$program" -ef "$old" ]; then
        # The power failed before the new one was in place, or after the old one was back.
        end_trial
        return
    fi
    tries=$(told tries)
    case $tries in
    [1-9])
        leave $((tries - 1))
        ;;
    *)
        if [ -e "$old" ]; then
            back "it did not become healthy after the allowed number of starts"
        else
            say "$old is gone, there is nothing to put back"
            end_trial
        fi
        ;;
    esac
}

if [ "${1:-}" = --back ] && [ $# -eq 3 ]; then
    program=$2 old=$2.old trial=$2.trial
    [ -e "$trial" ] || exit 0
    if [ "$program" -ef "$old" ]; then end_trial; else back "$3"; fi
    exit
fi
[ $# -ge 1 ] || {
    say "usage: guard PROGRAM [COMMAND...]"
    exit 2
}
program=$1 old=$1.old trial=$1.trial
shift
# What fails here, as on a full disk, keeps no agent from starting.
count || say "cannot write beside $program"
[ $# -eq 0 ] || exec "$@"
