#!/usr/bin/env bash
# Format, lints and dependency rules; any finding fails.
# Usage: scripts/lint.sh [without-compiling]    the latter leaves out what compiles
set -eu
cd "$(dirname "$0")/.."
cargo fmt --all --check
if [ "${1:-}" != without-compiling ]; then
  cargo clippy --workspace --all-targets --quiet -- -D warnings
  scripts/bench_tests.sh check
fi
# A dependency that a crate here got belongs in the lock files of the two other workspaces, too.
for manifest in bench/Cargo.toml fuzz/Cargo.toml; do
  cargo metadata --locked --format-version 1 --manifest-path "$manifest" >/dev/null || {
    echo "lint: \`cargo metadata --manifest-path $manifest\` brings its lock file up to date" >&2
    exit 1
  }
done
scripts/duplicate_crates.sh
if cargo deny --version >/dev/null 2>&1; then
  cargo deny --log-level error check bans licenses sources
  # Its data base is on the network: a machine without one checks the rest.
  if cargo deny fetch db >/dev/null 2>&1; then
    cargo deny --log-level error check advisories --disable-fetch
  else
    echo "lint: the data base of vulnerabilities cannot be fetched, so it was not asked"
  fi
else
  echo "lint: cargo-deny is not installed, so licenses, sources and vulnerabilities were not checked"
fi
