#!/usr/bin/env bash
# Moves the debug information of a program into the file PROGRAM.debug beside it, where debuggers and the program's own
# backtraces find it by the link that is left in its place. Usage: scripts/split_debug.sh PROGRAM
set -eu
program=${1:?the program}
objcopy --only-keep-debug --compress-debug-sections=zlib "$program" "$program.debug"
# A new file, moved over the old one: Cargo's own copy stays whole and a running program is not disturbed.
objcopy --strip-all --add-gnu-debuglink="$program.debug" "$program" "$program.stripped"
mv "$program.stripped" "$program"
