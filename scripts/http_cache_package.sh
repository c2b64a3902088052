#!/usr/bin/env bash
# Fetches the public HTTP cache tests (npm package `http-cache-tests`) once and prints their folder, for
# TYMPAN_HTTP_CACHE_TESTS. Without npm or without a network it says so and prints nothing.
set -eu
cd "$(dirname "$0")/.."
version=0.4.5
folder=${1:-target/http-cache-tests-$version}
if [ ! -f "$folder/done" ]; then
  if ! command -v node >/dev/null 2>&1 || ! command -v npm >/dev/null 2>&1; then
    echo "the public HTTP cache tests need node and npm" >&2
    exit 0
  fi
  mkdir -p "$folder"
  # Its dependencies are for its web page, but for this one.
  if ! (cd "$folder" && npm pack --silent "http-cache-tests@$version" >/dev/null &&
    tar xzf "http-cache-tests-$version.tgz" &&
    npm install --silent --no-save --no-audit --no-fund --prefix . node-fetch@2.7.0 >/dev/null); then
    echo "cannot fetch the public HTTP cache tests" >&2
    exit 0
  fi
  touch "$folder/done"
fi
echo "$(cd "$folder" && pwd)/package"
