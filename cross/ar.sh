#!/bin/sh
exec '@zig@' ar "$@"
