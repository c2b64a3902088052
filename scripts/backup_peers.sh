#!/usr/bin/env bash
# K1, K2, K4, K5 and K8 at the size of source 002: 155,000 files, 3.66 GiB, by `backup.sh` of the peers.
# Usage: scripts/backup_peers.sh [PHASE]...    (default: prepare full nochange change restore floor report)
#   WORK          the folder for all of it, which it empties at the end unless phases are named (default target/backup-peers)
#   FILES, GIB    the data (default 155000, 3.66); it takes about three times the room
#   ROUNDS        of each phase (default 2)
#   TYMPAN        the program (default target/release/tympan)
#   TYMPAN_PEERS  where backup.sh is (default ../shared/peers)
#   RESTIC        the peer; default the release that scripts/restic.sh builds, or the installed one
# Tympan stands as `spike` in what is printed. borg saves once in full, and takes part in `nochange`, where it is installed.
# Exit code: 0 measured, 1 a program failed, 3 it could not run.
set -u
cd "$(dirname "$0")/.." || exit 3
peers=${TYMPAN_PEERS:-../shared/peers}
[ -x "$peers/backup.sh" ] || { echo "backup_peers: there is no \`$peers/backup.sh\`; set TYMPAN_PEERS" >&2; exit 3; }
export TYMPAN=${TYMPAN:-$PWD/target/release/tympan} WORK=${WORK:-$PWD/target/backup-peers} ROUNDS=${ROUNDS:-2}
export SPIKE=$PWD/bench/peers/backup-tympan.sh
[ -x "$TYMPAN" ] || { echo "backup_peers: there is no \`$TYMPAN\`" >&2; exit 3; }
if [ -z "${RESTIC:-}" ]; then
  if built=$(scripts/restic.sh); then RESTIC=$built/restic; else RESTIC=restic; fi
fi
command -v "$RESTIC" >/dev/null || { echo "backup_peers: there is no restic" >&2; exit 3; }
export RESTIC
phase() { # phase, peers
  PEERS=$2 "$peers/backup.sh" "$1" | tee -a "$WORK/said"
}
mkdir -p "$WORK" && : >"$WORK/said"
phases=("$@")
[ $# -gt 0 ] || phases=(prepare full nochange change restore floor report)
echo "$("$RESTIC" version); $(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg)"
for one in "${phases[@]}"; do
  case $one in
    full)
      phase full "restic spike"
      for peer in restic spike; do du -sb "$WORK/repo-$peer" | sed "s|^\([0-9]*\).*|size of the vault, bytes, $peer: \1|"; done
      if command -v borg >/dev/null; then ROUNDS=1 phase full borg; else echo "skipped: borg is not installed"; fi ;;
    nochange) phase nochange "restic spike$(command -v borg >/dev/null && echo " borg")" ;;
    restore) VERIFY=1 phase restore "restic spike" ;;
    *) phase "$one" "restic spike" ;;
  esac
done
grep -q '^FAILED\|DIFFERS' "$WORK/said" && failed=1 || failed=0
[ $# -gt 0 ] || rm -rf "$WORK"
exit $failed
