#!/usr/bin/env bash
# Runs every suite to its end and closes with one line: N passed, N failed.
set -u
cd "$(dirname "$0")/.."
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0} CARGO_TERM_COLOR=never
# The same random cases each time: what passes here passes again. `make torture` looks for new ones.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}
passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Runs a suite that either passes or fails as a whole.
whole() { # name, command…
  local name=$1; shift
  if "$@"; then passed=$((passed + 1)); echo "suite $name: passed"; else failed=$((failed + 1)); echo "suite $name: FAILED"; fi
}

# Adds up the lines by which test runners close.
add() { # status
  local ok bad
  ok=$(grep -oE '[0-9]+ passed' "$log" | awk '{ sum += $1 } END { print sum + 0 }')
  bad=$(grep -oE '[0-9]+ failed' "$log" | awk '{ sum += $1 } END { print sum + 0 }')
  # A runner that ends badly without naming a failure, as on a compile error, counts as one.
  if [ "$1" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
  passed=$((passed + ok)) failed=$((failed + bad))
}

whole interface-build bash -c 'cd ui && npm ci --no-audit --no-fund --silent && npm run --silent build'
whole lint scripts/lint.sh

(cd ui && npm run --silent check) 2>&1 | tee "$log"; add "${PIPESTATUS[0]}"
cargo test --workspace --no-fail-fast 2>&1 | grep -vE '^(running [0-9]+ tests?|test .* \.\.\. ok|)$' | tee "$log"; add "${PIPESTATUS[0]}"
(cd ui && npm run --silent test:ui) 2>&1 | tee "$log"; add "${PIPESTATUS[0]}"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
