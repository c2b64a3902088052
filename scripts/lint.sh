#!/usr/bin/env bash
# Format, lints and dependency rules; any finding fails. Usage: scripts/lint.sh [without-clippy]
set -eu
cd "$(dirname "$0")/.."
cargo fmt --all --check
[ "${1:-}" = without-clippy ] || cargo clippy --workspace --all-targets --quiet -- -D warnings
# A workspace of its own, which keeps the crates of its peers out of the program's lock file.
cargo check --quiet --locked --manifest-path bench/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}"
scripts/duplicate_crates.sh
if cargo deny --version >/dev/null 2>&1; then
  cargo deny --log-level error check bans licenses sources
else
  echo "lint: cargo-deny is not installed, so licenses and sources were not checked"
fi
