#!/bin/sh
# A board's C compiler and linker, by zig. `cargo xtask dist` writes it below `target` with the words between @ filled in.
set -eu
export ZIG_GLOBAL_CACHE_DIR='@cache@' ZIG_LOCAL_CACHE_DIR='@cache@'

# Zig has names of its own for targets, and no other words for them.
target=@target@
for word do
    shift
    case $word in
    --target=* | -Wl,-melf_i386) continue ;;
    *.S) target=@assembler@ ;;
    esac
    set -- "$@" "$word"
done
exec '@zig@' cc -target "$target" -mcpu=@processor@ "$@"
