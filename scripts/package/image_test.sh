#!/usr/bin/env bash
# Starts the command of an image as a runtime for containers does without root: in a user namespace whose root is nobody
# outside, with a network of its own. Expects its health check to pass, its content to survive a stop, and an end on the
# signal of the image.
# Usage: scripts/package/image_test.sh [FILE.docker.tar], as root, which only maps the users
# Without a file it makes one, twice, and expects the same bytes: PROGRAM_DIR and BASE_TAR are those of scripts/package.sh.
# Exit code: 0 all as it should be, 1 otherwise.
set -euo pipefail

# Inside: root of the user namespace, in a folder with the unpacked archive.
if [ "${1:-}" = --inside ]; then
  fail() { echo "image test: FAILED: $1" >&2; exit 1; }
  mount --make-rprivate /
  ip link set lo up
  mkdir root
  while read -r layer; do tar -C root --numeric-owner -xpf "$layer"; done <layers
  mount -t proc proc root/proc
  user=$(cat user)
  id=$(awk -F: -v name="$user" '$1 == name { print $3 }' root/etc/passwd)
  group=$(awk -F: -v name="$user" '$1 == name { print $4 }' root/etc/passwd)
  [ -n "$id" ] && [ "$id" != 0 ] || fail "the image runs as \`$user\`"
  mapfile -t environment <env
  mapfile -t command <command
  mapfile -t health <health
  # As the image's user, who has no rights, with its environment.
  contained() {
    exec chroot --userspec="$id:$group" --groups="$group" root env -i "${environment[@]}" "$@"
  }
  for start in first second; do
    contained "${command[@]}" >"log.$start" 2>&1 &
    program=$!
    is_healthy=
    for _ in $(seq 600); do
      if (contained "${health[@]}") >health.log 2>&1; then is_healthy=1; break; fi
      kill -0 "$program" 2>/dev/null || break
      sleep 0.2
    done
    [ -n "$is_healthy" ] || { cat "log.$start" health.log; fail "the health check does not pass"; }
    [ "$(stat -c %u "root/proc/$program")" = "$id" ] || fail "the program runs as another user"
    [ "$(awk '/^CapEff/ { print $2 }' "root/proc/$program/status")" = 0000000000000000 ] || fail "the program has rights"
    password=$(cat root/var/lib/tympan/home/initial-password)
    [ "${kept:=$password}" = "$password" ] || fail "the second start has another home"
    kill -s "$(cat signal)" "$program"
    wait "$program" || { cat "log.$start"; fail "it ended with $?"; }
  done
  echo "image test: all as it should be"
  exit 0
fi

[ "$(id -u)" -eq 0 ] || { echo "image test: SKIPPED: only root maps users"; exit 0; }
script=$(realpath "$0")
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
if [ $# -gt 0 ]; then
  archive=$(realpath "$1")
else
  cd "$(dirname "$script")/../.."
  if [ -z "${BASE_TAR:-}" ]; then
    export BASE_TAR=$work/base.tar
    mmdebstrap --quiet --variant=essential --include=ca-certificates,adduser \
      "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" "$BASE_TAR"
  fi
  for folder in first again; do
    DEB_COMPRESSION=none PACKAGE_DIR=$work/$folder scripts/package.sh image >/dev/null
  done
  archive=$(echo "$work"/first/*.docker.tar)
  cmp "$archive" "$work"/again/*.docker.tar || { echo "image test: FAILED: two images differ" >&2; exit 1; }
  echo "image test: two builds have the same bytes"
fi
tar -C "$work" -xf "$archive"
# What a runtime reads in the description of the image.
python3 - "$work" <<'EOF_PYTHON'
import json, pathlib, sys
work = pathlib.Path(sys.argv[1])
manifest = json.loads((work / "manifest.json").read_text())[0]
config = json.loads((work / manifest["Config"]).read_text())["config"]
check = config["Healthcheck"]["Test"]
assert check[0] in ("CMD", "CMD-SHELL"), check
health = check[1:] if check[0] == "CMD" else ["/bin/sh", "-c", check[1]]
for name, lines in {
    "layers": manifest["Layers"],
    "command": config["Entrypoint"] + config["Cmd"],
    "env": config["Env"],
    "health": health,
    "user": [config["User"]],
    "signal": [config["StopSignal"]],
}.items():
    (work / name).write_text("".join(line + "\n" for line in lines))
EOF_PYTHON
cp "$script" "$work/inside"
# Root of the namespace, and the 65,535 users after it. Its users are mapped before a program is started in it, as that one
# would have no rights otherwise.
base=1000000
chown -R "$base:$base" "$work"
cd "$work"
python3 - "$base" <<'EOF_PYTHON'
import ctypes, os, sys
CLONE_NEWUSER = 0x10000000
base = sys.argv[1]
(entered, tell_entered), (mapped, tell_mapped) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER) != 0:
        sys.exit("image test: FAILED: this machine refuses user namespaces")
    os.write(tell_entered, b".")
    os.read(mapped, 1)
    os.setgroups([])
    os.setgid(0)
    os.setuid(0)
    command = "unshare --mount --pid --net --fork --kill-child=KILL bash ./inside --inside"
    os.execvp("unshare", command.split())
os.close(tell_entered)
if os.read(entered, 1):
    for kind in "uid", "gid":
        with open(f"/proc/{child}/{kind}_map", "w") as users:
            users.write(f"0 {base} 65536")
os.write(tell_mapped, b".")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
EOF_PYTHON
