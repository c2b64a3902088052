#!/usr/bin/env bash
# Runs every suite to its end, prints what each step and the slowest tests took, and closes with one line: N passed, N failed.
set -u
cd "$(dirname "$0")/.."
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0} CARGO_TERM_COLOR=never
# The same random cases each time: what passes here passes again. `make torture` looks for new ones.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}
# The stable test harness prints the seconds of each test only when it is told that unstable options are allowed. The
# runner sets that for the test programs alone, so that nothing is compiled anew.
target=$(rustc -vV | awk '/^host:/ { print toupper($2) }' | tr - _)
export "CARGO_TARGET_${target}_RUNNER=env RUSTC_BOOTSTRAP=1"
passed=0 failed=0
log=$(mktemp) tests=$(mktemp) steps=$(mktemp)
trap 'rm -f "$log" "$tests" "$steps"' EXIT

# Runs a step and notes its seconds.
timed() { # name, command…
  local name=$1 begin=$SECONDS status; shift
  "$@"; status=$?
  printf '%6d s  %s\n' $((SECONDS - begin)) "$name" >>"$steps"
  return "$status"
}

# Runs a suite that either passes or fails as a whole.
whole() { # name, command…
  local name=$1; shift
  if timed "$name" "$@"; then passed=$((passed + 1)); echo "suite $name: passed"; else failed=$((failed + 1)); echo "suite $name: FAILED"; fi
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

# Runs a suite whose runner counts its tests. The lines of tests that passed are kept for their seconds only.
counted() { # name, command…
  local name=$1 begin=$SECONDS; shift
  "$@" 2>&1 | tee -a "$tests" | grep -vE '^(running [0-9]+ tests?|test .* \.\.\. ok( <[0-9.]+s>)?|)$' | tee "$log"
  add "${PIPESTATUS[0]}"
  printf '%6d s  %s\n' $((SECONDS - begin)) "$name" >>"$steps"
}

whole interface-build bash -c 'cd ui && npm ci --no-audit --no-fund --silent && npm run --silent build'
whole lint scripts/lint.sh
counted "interface check" npm --prefix ui run --silent check
# Apart from the run, so that the time of either can be seen; a compile error shows in the run.
timed "compile tests" cargo test --workspace --no-run --quiet
counted "rust tests" cargo test --workspace --no-fail-fast -- -Z unstable-options --report-time
counted "interface tests" npm --prefix ui run --silent test:ui

echo
echo "steps:"
cat "$steps"
echo "slowest tests:"
sed -nE 's/^test (.*) \.\.\. (ok|FAILED) <([0-9.]+)s>$/\3 s  \1/p' "$tests" | sort -rn | head -20 | sed 's/^/  /'
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
