#!/bin/sh
# Stands for cargo's runner of test programs: instead of running one it notes the program's size, the folder of its
# package, and the command in the file $TEST_QUEUE, from which `scripts/test.sh` runs several at a time.
# The stable test harness prints the seconds of each test only when it is told that unstable options are allowed.
printf '%s\t%s\tenv RUSTC_BOOTSTRAP=1 %s\n' "$(stat -L -c %s "$1")" "$PWD" "$*" >>"$TEST_QUEUE"
