#!/usr/bin/env bash
# Builds a release of restic with Go, and prints the folder that it is in; builds it once.
#   RESTIC_VERSION  which one (default v0.18.1)
# Go is installed from Debian when root and missing. Exit code: 0 it is there, 3 it cannot be built, and why.
set -eu
cd "$(dirname "$0")/.."
version=${RESTIC_VERSION:-v0.18.1}
place=$PWD/target/restic/$version
if [ ! -x "$place/restic" ]; then
  if ! command -v go >/dev/null && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends golang-go >/dev/null 2>&1 || true
  fi
  command -v go >/dev/null || { echo "restic: Go is missing (Debian: golang-go), so restic $version is not built" >&2; exit 3; }
  # What the build needs beside goes with it: 1 GB of sources and objects.
  work=$(mktemp -d)
  trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
  export GOBIN=$work/bin GOPATH=$work/path GOCACHE=$work/cache
  # Where a proxy lists no versions, `go install` of a version refuses, and the module's own sources are built.
  if ! go install "github.com/restic/restic/cmd/restic@$version" >"$work/log" 2>&1 &&
    ! { go mod download "github.com/restic/restic@$version" && cd "$work/path/pkg/mod/github.com/restic/restic@$version" &&
      go install ./cmd/restic; } >"$work/log" 2>&1; then
    echo "restic: $(go version) cannot build restic $version: $(tail -n 3 "$work/log" | tr '\n' ' ')" >&2
    exit 3
  fi
  cd "$work"
  mkdir -p "$place"
  mv "$work/bin/restic" "$place/restic"
fi
echo "$place"
