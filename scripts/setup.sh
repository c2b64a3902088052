#!/usr/bin/env bash
# Makes sure that what a target needs is on the machine: says what is missing and why, installs it when root on Debian,
# and otherwise prints the command that does. What it cannot install it names in one sentence, before anything is built.
# Usage: scripts/setup.sh build|demo|test|bench|package
set -eu
purpose=${1:?build, demo, test, bench or package}
cd "$(dirname "$0")/.."

stop() { # sentence
  echo "setup: $1" >&2
  exit 1
}

# What no package of the system provides.
command -v cargo >/dev/null 2>&1 || stop "Rust is missing: install it with rustup, then run this again"
if ! reason=$(scripts/node_version.sh); then
  [ "$purpose" != test ] || stop "$reason, so that the interface cannot be tested"
  echo "setup: $reason, so that the program carries a notice page in place of the interface"
fi

# Gibibytes that a first build writes.
case $purpose in
  test) needed=14 ;;
  build | bench) needed=8 ;;
  demo) needed=5 ;;
  *) needed=2 ;;
esac
target=${CARGO_TARGET_DIR:-target}
existing=$(dirname "$target")
# Most of what was built already need not fit again.
if [ -d "$target" ]; then needed=1 existing=$target; fi
free=$(df -Pk "$existing" | awk 'NR == 2 { print int($4 / 1048576) }')
[ "${free:-$needed}" -ge "$needed" ] || stop "the disk has $free GiB free, and the build needs $needed: free some, or set CARGO_TARGET_DIR to a folder on another disk"
for folder in . ui "$existing"; do
  [ -w "$folder" ] || stop "this user cannot write to \`$folder\` of the project, where the build puts its files: use a copy of your own"
done

packages=()
reasons=()
add() { # package, reason
  packages+=("$1")
  reasons+=("$(printf '  %-28s %s' "$1" "$2")")
}
need() { # command, package, reason
  command -v "$1" >/dev/null 2>&1 || add "$2" "$3"
}

need cc build-essential "compiles the C libraries in the program and links it"
need cmake cmake "builds the JPEG decoder"
need nasm nasm "assembles the JPEG decoder's vector code"

if [ "$purpose" = demo ] && [ "$(id -u)" -eq 0 ]; then
  # Spares the demo their compilation. Without them it compiles its own copies, so only root is bothered.
  need pkg-config pkg-config "finds the system's C libraries"
  [ -f /usr/include/sqlite3.h ] || add libsqlite3-dev "SQLite, which the demo need not compile then"
  [ -f /usr/include/zstd.h ] || add libzstd-dev "Zstandard, which the demo need not compile then"
fi
if [ "$purpose" = test ]; then
  # Without any font a browser draws no text to click on.
  command -v chromium >/dev/null 2>&1 || { add chromium "the browser of the interface's tests"; add fonts-liberation "its letters"; }
  if ! compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null && ! command -v postgres >/dev/null 2>&1; then
    # The tests start servers of their own; no other is used.
    add postgresql "the database that authors share"
  fi
  if ! python3 -c "import venv, ensurepip" >/dev/null 2>&1; then
    add python3 "holds the JSON API against its description"
    add python3-venv "its packages"
  fi
  need vipsthumbnail libvips-tools "renditions are compared with its"
  need pdftoppm poppler-utils "draws previews of PDF"
  # AVIF is written by it: 60 KB. Films need ffmpeg, 53 MB to download: tests of them run where it is installed.
  need avifenc libavif-bin "writes AVIF"
  need exiftool libimage-exiftool-perl "reads metadata that was written into files"
  need identify imagemagick "reads and makes pictures"
  need restic restic "reads, checks and restores backups"
  need nginx nginx-light "serves exported pages"
  # With promtool, which checks metrics, alert rules and their tests. 60 MB to download.
  need prometheus prometheus "scrapes the roles, for the dashboards and alerts"
  # Mounts snapshots where the kernel has /dev/fuse; tests of it say so where it does not mount.
  need fusermount3 fuse3 "mounts snapshots"
  [ -x /usr/sbin/sshd ] || add openssh-server "keeps vaults over SFTP"
fi
if [ "$purpose" = package ]; then
  need dpkg-deb dpkg "builds the Debian package"
  need dpkg-shlibdeps dpkg-dev "finds the libraries that it depends on"
  need strip binutils "removes debug information"
  need python3 python3 "collects the licenses"
  if [ "$(id -u)" -eq 0 ]; then
    # Only root makes the image, and installs the package on a clean system.
    need mmdebstrap mmdebstrap "makes a clean system"
    need buildah buildah "makes the image"
    need zstd zstd "unpacks the stored homes that an upgrade is tried with"
    need ip iproute2 "gives the clean system a network of its own"
  fi
fi
if [ "$purpose" = bench ]; then
  # Peers to measure against; a row whose peer is missing says so.
  need nginx nginx-light "a peer: static files and a cache"
  need varnishd varnish "a peer: a cache"
  # Its server without a service; httpd's and nginx's MIME types are another package.
  need apache2 apache2-bin "a peer: a server and a cache"
  [ -f /etc/mime.types ] || add media-types "their media types"
  need wrk wrk "a peer: load"
  need taskset util-linux "pins servers and loads to cores"
  need h2load nghttp2-client "load over HTTP/2"
  need openssl openssl "certificates and handshakes"
  need ab apache2-utils "a peer: load"
  need vipsthumbnail libvips-tools "a peer: renditions"
  need restic restic "a peer: backup"
  need borg borgbackup "a peer: backup"
  need fdfind fd-find "walks folders"
  need zstd zstd "a peer: compression"
  [ -x /usr/bin/time ] || add time "CPU and memory of whole programs"
  [ -x /usr/sbin/sshd ] || add openssh-server "keeps vaults over SFTP"
fi
# Downloads the crates, so that a missing network is known before the build begins; without one, what a cache has is enough.
fetch_crates() {
  [ "$purpose" != package ] || return 0
  local host said
  host=$(rustc -vV | sed -n 's/^host: //p')
  cargo fetch --locked --offline --target "$host" >/dev/null 2>&1 && return 0
  # The last line of its chain of causes is the reason.
  said=$(cargo fetch --locked --quiet --target "$host" 2>&1) ||
    stop "the crates cannot be downloaded ($(sed -n '$s/^ *//p' <<<"$said")): connect to the network, or set the proxy that reaches it in HTTPS_PROXY"
}

if [ ${#packages[@]} -eq 0 ]; then
  fetch_crates
  exit 0
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "setup: installing these packages of the system:"
  printf '%s\n' "${reasons[@]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null ||
    stop "they cannot be installed, see above: connect to the network, or install them by hand: apt-get install ${packages[*]}"
  # A freshly installed server starts by itself; tests and bench start their own.
  for service in nginx varnish ssh prometheus; do
    case " ${packages[*]} " in
      *" $service-light "* | *" $service "* | *" open$service-server "*)
        if command -v service >/dev/null 2>&1; then service "$service" stop >/dev/null 2>&1 || true; fi ;;
    esac
  done
  fetch_crates
else
  echo "setup: these packages of the system are missing:" >&2
  printf '%s\n' "${reasons[@]}" >&2
  echo "setup: please install them first: apt-get install ${packages[*]}" >&2
  exit 1
fi
