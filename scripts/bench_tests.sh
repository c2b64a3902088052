#!/usr/bin/env bash
# Checks or tests `bench/`, a workspace of its own, which keeps the crates of its peers out of the program's lock file.
# With the program's profile and target folder, crates of others are compiled once for both.
# Usage: scripts/bench_tests.sh check|test
set -eu
cd "$(dirname "$0")/.."
profile=$(mktemp --suffix .toml)
trap 'rm -f "$profile"' EXIT
awk '/^\[/ { on = /^\[profile\.dev/ } on' Cargo.toml >"$profile"
options=(--quiet --locked --manifest-path bench/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}"
  --config "$profile" --config profile.dev.debug=false)
case ${1:?check or test} in
  check) cargo check --tests "${options[@]}" ;;
  test) env -u RUSTC_WORKSPACE_WRAPPER cargo test "${options[@]}" ;;
esac
