#!/bin/sh
# Tympan in the words by which `backup.sh` of the peers calls a program that it does not know: init, backup, restore.
#   SPIKE=bench/peers/backup-tympan.sh PEERS="restic spike" ../shared/peers/backup.sh full
# TYMPAN names the program (default: target/release/tympan).
set -eu
tympan=${TYMPAN:-$(dirname "$0")/../../target/release/tympan}
export TYMPAN_VAULT_PASSWORD=pw
case ${1:-} in
  init) exec "$tympan" backup init -r "$2" ;;
  backup) exec "$tympan" backup save --quiet -r "$2" "$3" ;;
  restore) exec "$tympan" backup restore -r "$2" "$3" --to "$4" ;;
  *) sed -n 2,4p "$0" >&2; exit 2 ;;
esac
