#!/bin/sh
# Stands for cargo's runner of test programs: notes the program's folder, itself and its arguments in the file $TEST_QUEUE
# instead of running it. `scripts/test.sh` then runs several at a time.
printf '%s\t%s\n' "$PWD" "$*" >>"$TEST_QUEUE"
