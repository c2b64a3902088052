#!/usr/bin/env bash
# Makes the packages of the two programs in target/package: a Debian package, a tarball, and an image for containers.
# Usage: scripts/package.sh [deb] [tarball] [image]    (default: deb and tarball, and the image as root)
#   PROGRAM_DIR        with `tympan` and `tympan-lab` (default target/release, as `make build` leaves them)
#   GENERATOR_DIR      with programs of the same version that run here, if those of PROGRAM_DIR are for another processor,
#                      which PACKAGE_ARCHITECTURE then names; they print unit files, completions and man pages
#   PACKAGE_DIR        that the packages are written to (default target/package)
#   PACKAGE_VERSION    (default: the version of the workspace)
#   SOURCE_DATE_EPOCH  time of all files (default: that of the last commit). Two runs with the same programs, time and
#                      packages of Debian write the same bytes.
#   DEB_COMPRESSION    of the Debian package: xz, or one that `dpkg-deb -Z` takes, such as none for a test
#   BASE_SUITE         of Debian, for the image (default: that of this machine)
#   BASE_TAR           a root file system of Debian with `adduser` and `ca-certificates` for the image, instead of one
#                      that mmdebstrap makes
set -euo pipefail
cd "$(dirname "$0")/.."

program_dir=$(realpath "${PROGRAM_DIR:-target/release}")
generator_dir=$(realpath "${GENERATOR_DIR:-$program_dir}")
package_dir=${PACKAGE_DIR:-target/package}
version=${PACKAGE_VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# The bytes of a listing must not depend on who runs this.
export LC_ALL=C TZ=UTC
umask 022

for program in tympan tympan-lab; do
  [ -x "$program_dir/$program" ] || { echo "package: \`$program_dir/$program\` is missing: run \`make build\`" >&2; exit 1; }
done
mkdir -p "$package_dir"
package_dir=$(realpath "$package_dir")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
architecture=${PACKAGE_ARCHITECTURE:-$(dpkg --print-architecture)}
name=tympan_${version}_$architecture

# Everything that is installed, as it lies below `/usr`.
fill_tree() { # folder
  local tree=$1 program shell role unit
  install -d "$tree/bin" "$tree/lib/systemd/system" "$tree/lib/sysusers.d" "$tree/lib/tmpfiles.d" \
    "$tree/share/bash-completion/completions" "$tree/share/zsh/vendor-completions" \
    "$tree/share/fish/vendor_completions.d" "$tree/share/man" "$tree/share/doc/tympan/examples"
  for program in tympan tympan-lab; do
    # Names of functions stay, for backtraces; the rest of the debug information is in the build's folder.
    strip --strip-debug -o "$tree/bin/$program" "$program_dir/$program"
    chmod 755 "$tree/bin/$program"
    "$generator_dir/$program" completions bash >"$tree/share/bash-completion/completions/$program"
    "$generator_dir/$program" completions zsh >"$tree/share/zsh/vendor-completions/_$program"
    "$generator_dir/$program" completions fish >"$tree/share/fish/vendor_completions.d/$program.fish"
    # The lab comes second: its page replaces the one about the command that starts it.
    "$generator_dir/$program" man-pages "$tree/share/man/man1" >/dev/null
  done
  gzip -9n "$tree"/share/man/man1/*.1
  unit=$tree/lib/systemd/system
  for role in author publish dispatcher; do
    "$generator_dir/tympan" service print "$role" --program /usr/bin/tympan >"$unit/tympan-$role@.service"
    "$generator_dir/tympan" service print "$role" --socket >"$unit/tympan-$role@.socket"
  done
  install -m 644 scripts/package/sysusers.conf "$tree/lib/sysusers.d/tympan.conf"
  install -m 644 scripts/package/tmpfiles.conf "$tree/lib/tmpfiles.d/tympan.conf"
  # The pages of `docs` are beside it there.
  sed 's#(docs/#(#g' README.md >"$tree/share/doc/tympan/README.md"
  gzip -9nc CHANGELOG.md >"$tree/share/doc/tympan/changelog.gz"
  install -m 644 src/command/demo.any "$tree/share/doc/tympan/examples/dispatcher.any"
  install -d "$tree/share/tympan/monitoring/grafana"
  install -m 644 monitoring/alerts.yml "$tree/share/tympan/monitoring"
  install -m 644 monitoring/grafana/*.json "$tree/share/tympan/monitoring/grafana"
  (cd docs && find tutorials guides runbooks concepts reference formats compat pictures -type f | sort | tar -cf - -T -) |
    tar -xf - -C "$tree/share/doc/tympan"
  scripts/package/licenses.py >"$tree/share/doc/tympan/copyright"
  scripts/package/sbom.py "$version" >"$tree/share/doc/tympan/sbom.cdx.json"
  find "$tree" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# The packages of Debian whose libraries the programs load.
library_packages() {
  mkdir -p "$work/depends/debian"
  printf 'Source: tympan\n\nPackage: tympan\nArchitecture: any\n' >"$work/depends/debian/control"
  (cd "$work/depends" && dpkg-shlibdeps -O "$work/root/usr/bin/tympan" "$work/root/usr/bin/tympan-lab" 2>/dev/null) |
    sed -n 's/^shlibs:Depends=//p'
}

make_deb() {
  local control=$work/root/DEBIAN script
  install -d "$control"
  sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@LIBRARIES@/$(library_packages)/" \
    -e "s/@SIZE@/$(du -sk --apparent-size "$work/root/usr" | cut -f1)/" scripts/package/control >"$control/control"
  for script in postinst prerm postrm; do
    install -m 755 "scripts/package/$script" "$control/$script"
  done
  (cd "$work/root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$control/md5sums"
  find "$control" "$work/root" -maxdepth 1 -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group --threads-max=1 "-Z${DEB_COMPRESSION:-xz}" --build "$work/root" "$package_dir/$name.deb" >/dev/null
  rm -r "$control"
  echo "package: $package_dir/$name.deb"
}

make_tarball() {
  local top=tympan-$version-linux-$architecture
  # As in `/usr`, with the text that says how to install it.
  cp -al "$work/root/usr" "$work/$top"
  install -m 644 LICENSE docs/guides/install.md "$work/$top/"
  find "$work/$top" -maxdepth 1 -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=gnu \
    -cf - "$top" | gzip -9n >"$package_dir/$top.tar.gz"
  rm -r "${work:?}/$top"
  echo "package: $package_dir/$top.tar.gz"
}

# The packages that the image needs besides those that every Debian has.
IMAGE_PACKAGES=ca-certificates,adduser

make_image() {
  local deb=$package_dir/$name.deb root=$work/image container image
  local file=$package_dir/tympan-$version-$architecture.docker.tar
  [ -f "$deb" ] || make_deb
  mkdir "$root"
  if [ -n "${BASE_TAR:-}" ]; then
    tar -C "$root" --numeric-owner -xpf "$BASE_TAR"
  else
    local suite=${BASE_SUITE:-$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)}
    echo "package: making a root file system of Debian $suite, which takes minutes"
    # Without a mirror it takes the sources of this machine.
    mmdebstrap --quiet --variant=essential --include="$IMAGE_PACKAGES" "$suite" "$work/base.tar"
    tar -C "$root" --numeric-owner -xpf "$work/base.tar"
  fi
  install -m 644 "$deb" "$root/tympan.deb"
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
    dpkg --install /tympan.deb >/dev/null
  # What differs from run to run, and what nobody needs.
  rm -rf "$root/tympan.deb" "$root"/var/log/* "$root"/var/cache/ldconfig/aux-cache "$root"/var/lib/apt/lists/* \
    "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- "$root"/etc/gshadow- "$root"/var/lib/dpkg/*-old
  find "$root/dev" -mindepth 1 -delete
  tar -C "$root" --sort=name --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --clamp-mtime --format=gnu \
    -cf "$work/image.tar" .
  # Storage of its own, that needs no kernel module and leaves nothing on the machine.
  local buildah=(buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs)
  # Docker's format: OCI's has no field for the health check.
  export BUILDAH_FORMAT=docker
  container=$("${buildah[@]}" from scratch)
  "${buildah[@]}" add --quiet "$container" "$work/image.tar" / >/dev/null
  "${buildah[@]}" config \
    --entrypoint '["/usr/bin/tympan"]' \
    --cmd 'author --home /var/lib/tympan/home --listen 0.0.0.0:4502' \
    --env PATH=/usr/sbin:/usr/bin:/sbin:/bin --env TYMPAN_STATUS_URL=http://127.0.0.1:4502 \
    --user tympan --workingdir /var/lib/tympan --volume /var/lib/tympan --stop-signal SIGTERM \
    --port 4502 --port 4503 --port 8080 \
    --healthcheck "CMD-SHELL 'tympan status --url \$TYMPAN_STATUS_URL'" \
    --healthcheck-interval 30s --healthcheck-timeout 10s --healthcheck-start-period 5m \
    --label org.opencontainers.image.title=tympan \
    --label "org.opencontainers.image.version=$version" \
    --label org.opencontainers.image.licenses=Apache-2.0 \
    "$container"
  image=$("${buildah[@]}" commit --quiet --format docker --omit-history --timestamp "$SOURCE_DATE_EPOCH" \
    "$container" "tympan:$version")
  "${buildah[@]}" push --quiet --format v2s2 "$image" "docker-archive:$work/archive.tar:tympan:$version"
  scripts/package/plain_image.py "$work/archive.tar" "$file"
  chmod 644 "$file"
  echo "package: $file"
}

parts=("$@")
if [ $# -eq 0 ]; then
  parts=(deb tarball)
  if [ "$(id -u)" -eq 0 ]; then parts+=(image); else echo "package: no image, which root makes"; fi
fi
mkdir "$work/root"
fill_tree "$work/root/usr"
install -m 644 "$work/root/usr/share/doc/tympan/sbom.cdx.json" "$package_dir/$name.cdx.json"
echo "package: $package_dir/$name.cdx.json"
for part in "${parts[@]}"; do
  case $part in
    deb) make_deb ;;
    tarball) make_tarball ;;
    image) make_image ;;
    *) echo "package: there is no part \`$part\`; there are deb, tarball, image" >&2; exit 2 ;;
  esac
done
