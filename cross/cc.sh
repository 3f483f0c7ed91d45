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
case " $* " in
*' -Wl,-T,'*) ;;
*) exec '@zig@' cc -target "$target" -mcpu=@processor@ "$@" ;;
esac
# The program, which is laid out by a script, is linked once more: zig's linker can fold functions that are equal, but zig has
# no word for it. It says how it calls the linker. A path with a space would be two words there.
said=$(ZIG_VERBOSE_LINK=1 '@zig@' cc -target "$target" -mcpu=@processor@ "$@" 2>&1) || {
    echo "$said" >&2
    exit 1
}
case $PWD@cache@ in
*' '*) exit 0 ;;
esac
echo "$said" | grep '^ld\.lld ' | tail -n 1 | {
    read -r _ line
    # shellcheck disable=SC2086 # its words
    exec '@zig@' ld.lld $line --icf=all
}
