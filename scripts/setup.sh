#!/usr/bin/env bash
# Makes sure that what a target needs is on the machine: installs Debian packages when root, and otherwise says exactly
# which to install. Usage: scripts/setup.sh build|test|bench
set -eu
purpose=${1:?build, test or bench}

packages=()
need() { # command, package
  command -v "$1" >/dev/null 2>&1 || packages+=("$2")
}
need cc build-essential
# Builds the JPEG decoder; the assembler makes it a quarter faster.
need cmake cmake
need nasm nasm
if [ "$purpose" = test ] && ! command -v chromium >/dev/null 2>&1; then
  # Without any font a browser draws no text to click on.
  packages+=(chromium fonts-liberation)
fi
if [ "$purpose" = test ] && ! compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null && ! command -v postgres >/dev/null 2>&1; then
  # The tests start servers of their own; no other is used.
  packages+=(postgresql)
fi
if [ "$purpose" = test ] && ! python3 -c "import venv, ensurepip" >/dev/null 2>&1; then
  # Holds the description of the JSON API against a live server.
  packages+=(python3 python3-venv)
fi
if [ "$purpose" = test ]; then
  # Renditions are compared with those of another program; PDF previews need one.
  need vipsthumbnail libvips-tools
  need pdftoppm poppler-utils
  # AVIF is written by it: 60 KB. Films need ffmpeg, 53 MB to download: tests of them run where it is installed.
  need avifenc libavif-bin
  # Metadata that is written into files is read by them.
  need exiftool libimage-exiftool-perl
  need identify imagemagick
  # Backups are checked and restored by it; exported pages are served by the other.
  need restic restic
  need nginx nginx-light
  # Mounts snapshots where the kernel has /dev/fuse; tests of it say so where it does not mount.
  need fusermount3 fuse3
  # Vaults over SFTP are kept by a server that the tests start themselves.
  [ -x /usr/sbin/sshd ] || packages+=(openssh-server)
fi
if [ "$purpose" = bench ]; then
  # Peers to measure against; a row whose peer is missing says so.
  need nginx nginx-light
  need varnishd varnish
  # Its server without a service; httpd's and nginx's MIME types are another package.
  need apache2 apache2-bin
  [ -f /etc/mime.types ] || packages+=(media-types)
  need wrk wrk
  # Pins servers and loads to cores.
  need taskset util-linux
  need h2load nghttp2-client
  need openssl openssl
  need ab apache2-utils
  need vipsthumbnail libvips-tools
  # Backups: other programs, a walk, and what tells CPU and memory of all of them.
  need restic restic
  need borg borgbackup
  need fdfind fd-find
  need zstd zstd
  [ -x /usr/bin/time ] || packages+=(time)
  [ -x /usr/sbin/sshd ] || packages+=(openssh-server)
fi
if ! command -v cargo >/dev/null 2>&1; then
  echo "setup: Rust is missing; install it with rustup, then run this again" >&2
  exit 1
fi
if ! command -v npm >/dev/null 2>&1 && [ "$purpose" = test ]; then
  echo "setup: Node.js 20.19 or newer is missing; the interface cannot be tested" >&2
  exit 1
fi
[ ${#packages[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "setup: installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  # A freshly installed server starts by itself; tests and bench start their own.
  if [[ " ${packages[*]} " == *" nginx-light "* ]] && command -v service >/dev/null 2>&1; then
    service nginx stop >/dev/null 2>&1 || true
  fi
  if [[ " ${packages[*]} " == *" varnish "* ]] && command -v service >/dev/null 2>&1; then
    service varnish stop >/dev/null 2>&1 || true
  fi
  if [[ " ${packages[*]} " == *" openssh-server "* ]] && command -v service >/dev/null 2>&1; then
    service ssh stop >/dev/null 2>&1 || true
  fi
else
  echo "setup: please install these packages first: apt-get install ${packages[*]}" >&2
  exit 1
fi
