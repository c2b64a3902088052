#!/usr/bin/env bash
# Installs the Debian package on a clean system, starts the author by the command of its unit over a home that an older
# program wrote, upgrades the package with the content kept, and purges it. The network of the system is its own.
# Usage: scripts/package/test.sh, as root
#   PROGRAM_DIR  with `tympan` and `tympan-lab` (default target/release)
#   BASE_TAR     of a clean Debian (default: mmdebstrap makes one, which takes minutes)
# Exit code: 0 all as it should be, or it said what was skipped; 1 otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "$(id -u)" -ne 0 ]; then echo "package test: SKIPPED: only root makes a clean system"; exit 0; fi
work=$(mktemp -d)
root=$work/root
cleanup() {
  # Namespaces have unmounted what was mounted in them.
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() { echo "package test: FAILED: $1" >&2; exit 1; }
step() { echo "package test: $1"; }

step "two builds have the same bytes"
export DEB_COMPRESSION=none
for folder in first again; do
  PACKAGE_VERSION=0.1.0~1 PACKAGE_DIR=$work/$folder scripts/package.sh deb >/dev/null
done
first=$(echo "$work"/first/*.deb)
cmp "$first" "$work"/again/*.deb || fail "the packages differ"
rm -r "$work/again"
PACKAGE_VERSION=0.1.0~2 PACKAGE_DIR=$work/second scripts/package.sh deb >/dev/null
second=$(echo "$work"/second/*.deb)

step "a clean system"
mkdir "$root"
if [ -n "${BASE_TAR:-}" ]; then
  tar -C "$root" -xf "$BASE_TAR"
else
  mmdebstrap --quiet --variant=minbase "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" "$work/base.tar"
  tar -C "$root" -xf "$work/base.tar"
fi
cp "$first" "$root/first.deb"
cp "$second" "$root/second.deb"

# Runs a command on the clean system, in namespaces that end with it.
inside() {
  unshare --mount --pid --net --fork --kill-child=KILL bash -c '
    root=$1; shift
    mount --make-rprivate /
    ip link set lo up
    mount -t proc proc "$root/proc"
    exec chroot "$root" "$@"' bash "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"
}

step "installed"
inside dpkg --install /first.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "the package is not installed"; }
for file in usr/bin/tympan usr/bin/tympan-lab usr/lib/systemd/system/tympan-dispatcher@.socket \
  usr/share/bash-completion/completions/tympan usr/share/man/man1/tympan-author.1.gz usr/share/doc/tympan/copyright \
  usr/share/doc/tympan/sbom.cdx.json usr/share/tympan/monitoring/alerts.yml; do
  [ -e "$root/$file" ] || fail "\`/$file\` is missing"
done
grep -q '^tympan:' "$root/etc/passwd" || fail "there is no user"
[ "$(inside tympan --version)" = "tympan $(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)" ] ||
  fail "the program does not run"

step "a home of an older program"
zstd -dqf tests/samples/homes-v1.tar.zst -o "$work/homes.tar"
mkdir "$work/homes"
tar -C "$work/homes" -xf "$work/homes.tar"
home=$root/var/lib/tympan/author-main
mv "$work/homes/author" "$home"
inside chown -R tympan:tympan /var/lib/tympan/author-main

# The service manager's part: the command of the unit, as its user and without more rights, with a socket to report to.
cat >"$root/session" <<'END'
#!/bin/bash
# Usage: session TEXT TEXT    starts the author, expects the first text in a page, replaces it by the second, stops
set -u
command=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/tympan-author@.service | sed 's/%i/main/g')
[ -n "$command" ] || { echo "the unit has no command"; exit 1; }
NOTIFY_SOCKET=/run/notify setpriv --reuid tympan --regid tympan --init-groups --no-new-privs --bounding-set -all \
  -- $command >/var/log/author.log 2>&1 &
author=$!
ready=
for _ in $(seq 600); do
  if tympan status --url http://127.0.0.1:4502 >/dev/null 2>&1; then ready=1; break; fi
  kill -0 "$author" 2>/dev/null || break
  sleep 0.2
done
[ -n "$ready" ] || { echo "the author does not serve:"; cat /var/log/author.log; exit 1; }
login=$(printf 'admin:sample-admin-password' | base64)
ask() { # method, path, body
  exec 3<>/dev/tcp/127.0.0.1/4502
  printf '%s %s HTTP/1.1\r\nHost: 127.0.0.1:4502\r\nAuthorization: Basic %s\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %s\r\n\r\n%s' \
    "$1" "$2" "$login" "${#3}" "$3" >&3
  cat <&3
  exec 3>&-
}
ask GET /content/sample/news.html '' | tr -d '\0' | grep -qF "<p>$1</p>" || { echo "\`$1\` is not in the page"; exit 1; }
ask POST /content/sample/news/jcr:content "text=$2" | head -1 | grep -q ' 200' || { echo "the page cannot be changed"; exit 1; }
kill -TERM "$author"
wait "$author" || { echo "the author ended with $?"; cat /var/log/author.log; exit 1; }
END
chmod 755 "$root/session"

# Runs a session, and expects that the author reports to the service manager.
session() { # expected text, new text
  python3 - "$root/run/notify" "$work/reports" <<'END' &
import os, socket, sys
path, reports = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
if os.path.exists(path):
    os.remove(path)
listener.bind(path)
os.chmod(path, 0o777)
listener.settimeout(300)
with open(reports, "w") as out:
    while True:
        message = listener.recv(4096).decode()
        out.write(message)
        out.flush()
        if "STOPPING=1" in message:
            break
END
  local listener=$!
  until [ -S "$root/run/notify" ]; do kill -0 "$listener" || fail "no socket to report to"; sleep 0.1; done
  inside /session "$@" || { kill "$listener" 2>/dev/null || true; fail "the author of $(inside dpkg-query -W -f '${Version}' tympan)"; }
  wait "$listener" || fail "the author did not report that it stops"
  grep -q '^READY=1' "$work/reports" || fail "the author did not report that it is ready"
  rm -f "$root/run/notify"
}

step "started by the command of its unit"
session "a draft" "changed by the first package"
step "upgraded"
# A service manager that notes what it is told.
mkdir -p "$root/run/systemd/system"
printf '#!/bin/sh\necho "$*" >>/var/log/systemctl\n' >"$root/usr/bin/systemctl"
chmod 755 "$root/usr/bin/systemctl"
inside dpkg --install /second.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "the package is not upgraded"; }
[ "$(inside dpkg-query -W -f '${Version}' tympan)" = 0.1.0~2 ] || fail "the version is not the second"
grep -q '^try-restart tympan-author@' "$root/var/log/systemctl" || fail "the services that run are not restarted"
! grep -q '^stop' "$root/var/log/systemctl" || fail "the upgrade stops the sockets"
session "changed by the first package" "changed by the second package"
inside tympan repo check --home /var/lib/tympan/author-main >"$work/log" 2>&1 || { cat "$work/log"; fail "the home is damaged"; }
[ "$(cut -d' ' -f1 "$home/home-format")" = 1 ] || fail "the home has no format"

step "purged, with the content kept"
inside dpkg --purge tympan >"$work/log" 2>&1 || { cat "$work/log"; fail "the package is not purged"; }
grep -q '^stop tympan-\*@\*.socket' "$root/var/log/systemctl" || fail "the services were not stopped"
rm -r "$root/run/systemd" "$root/usr/bin/systemctl"
grep -q 'rm -r /var/lib/tympan' "$work/log" || fail "the purge does not say where the content is"
[ -d "$home/store" ] || fail "the purge removed content"
for file in usr/bin/tympan var/cache/tympan usr/lib/systemd/system/tympan-author@.service; do
  [ ! -e "$root/$file" ] || fail "\`/$file\` is left"
done
step "purged without content"
inside dpkg --install /second.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "it is not installed again"; }
rm -r "$home"
inside dpkg --purge tympan >"$work/log" 2>&1 || { cat "$work/log"; fail "the package is not purged"; }
[ ! -e "$root/var/lib/tympan" ] || fail "the folder of homes is left"
! grep -q '^tympan:' "$root/etc/passwd" || fail "the user is left"
echo "package test: all as it should be"
