#!/usr/bin/env bash
# K1, K2, K4, K5 and K8 at the size of source 002: 155,000 files, 3.66 GiB, by `backup.sh` of the peers.
# Usage: scripts/backup_peers.sh [PHASE]...    (default: prepare full nochange change restore floor report)
#   QUICK=1       31,000 files, 0.75 GiB, one round
#   WORK          the folder for all of it, which it empties at the end, however that comes, unless phases are named (default
#                 target/backup-peers)
#   FILES, GIB    the data (default 155000, 3.66); it takes up to four times the room, which is looked for first
#   ROUNDS        of each phase (default 2)
#   TYMPAN        the program (default target/release/tympan)
#   TYMPAN_PEERS  where backup.sh is (default ../shared/peers)
#   RESTIC        the peer; default the release that scripts/restic.sh builds, or the installed one
# Each figure is a line as it is measured: phase, peer, round, seconds, user and system seconds, most memory in KB; they are in
# results.csv, too, which `prepare` begins anew. Tympan stands as `spike` there. borg saves once in full, and takes part in
# `nochange`, where it is installed. A run that is cut off tells what it has measured.
# Exit code: 0 measured, 1 a program failed, 3 it could not run, or was cut off.
set -u
cd "$(dirname "$0")/.." || exit 3
peers=${TYMPAN_PEERS:-../shared/peers}
[ -x "$peers/backup.sh" ] || { echo "backup_peers: there is no \`$peers/backup.sh\`; set TYMPAN_PEERS" >&2; exit 3; }
if [ "${QUICK:-0}" != 0 ] && [ -n "${QUICK:-}" ]; then
  FILES=${FILES:-31000} GIB=${GIB:-0.75} ROUNDS=${ROUNDS:-1}
fi
export FILES=${FILES:-155000} GIB=${GIB:-3.66} ROUNDS=${ROUNDS:-2}
export TYMPAN=${TYMPAN:-$PWD/target/release/tympan} WORK=${WORK:-$PWD/target/backup-peers}
export SPIKE=$PWD/bench/peers/backup-tympan.sh
[ -x "$TYMPAN" ] || { echo "backup_peers: there is no \`$TYMPAN\`" >&2; exit 3; }
for needed in /usr/bin/time flock zstd python3; do
  command -v "$needed" >/dev/null || { echo "backup_peers: there is no \`$needed\`" >&2; exit 3; }
done
if [ -z "${RESTIC:-}" ]; then
  if built=$(scripts/restic.sh); then RESTIC=$built/restic; else RESTIC=restic; fi
fi
command -v "$RESTIC" >/dev/null || { echo "backup_peers: there is no restic" >&2; exit 3; }
export RESTIC
child=
phase() { # phase, peers
  # In a process group of its own, so that a signal ends the peer under way, and no other process.
  set -m
  { PEERS=$2 "$peers/backup.sh" "$1" | tee -a "$WORK/said"; } &
  child=$!
  set +m
  wait "$child"
  child=
}
stop() {
  [ -z "$child" ] || kill -- "-$child" 2>/dev/null
  wait
  exit 3
}
mkdir -p "$WORK" || exit 3
# What failed in a call before is not this one's.
rm -f "$WORK/said"
phases=("$@")
[ $# -gt 0 ] || phases=(prepare full nochange change restore floor report)
named=$#
end() {
  local code=$?
  trap - EXIT
  if [ "$code" -eq 3 ] && [ -s "$WORK/results.csv" ]; then
    echo "backup_peers: cut off; what was measured until then:"
    phase report "restic spike"
  fi
  [ "$named" -gt 0 ] || rm -rf "$WORK"
  exit "$code"
}
trap end EXIT
trap stop INT TERM HUP
if [ "${phases[0]}" = prepare ]; then
  # What an earlier program took must not be counted with this one's.
  rm -f "$WORK/results.csv"
  left=$(df --output=avail -B 1M "$WORK" | tail -n 1 | tr -d " ")
  # The data, three vaults, and what is restored; small files take whole blocks.
  need=$(python3 -c "print(int($GIB * 1024 * 4 + $FILES * 0.008))")
  if [ "$left" -lt "$need" ]; then
    echo "backup_peers: \`$WORK\` has $left MiB left, and this takes up to $need; set WORK, or FILES and GIB" >&2
    exit 3
  fi
fi
echo "$("$RESTIC" version); $(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg); $FILES files, $GIB GiB, $ROUNDS rounds"
for one in "${phases[@]}"; do
  case $one in
    full)
      phase full "restic spike"
      for peer in restic spike; do du -sb "$WORK/repo-$peer" | sed "s|^\([0-9]*\).*|size of the vault, bytes, $peer: \1|"; done
      if command -v borg >/dev/null; then ROUNDS=1 phase full borg; else echo "skipped: borg is not installed"; fi ;;
    nochange) phase nochange "restic spike$([ -d "$WORK/repo-borg" ] && echo " borg")" ;;
    restore) VERIFY=1 phase restore "restic spike" ;;
    *) phase "$one" "restic spike" ;;
  esac
done
! grep -qs '^FAILED\|DIFFERS' "$WORK/said"
