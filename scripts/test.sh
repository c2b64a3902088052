#!/usr/bin/env bash
# Runs every suite to its end, prints what each step and the slowest tests took, and closes with one line: N passed, N failed.
# Usage: scripts/test.sh [LANES]    LANES: test programs that run at the same time (default 2)
set -u
cd "$(dirname "$0")/.."
lanes=${1:-2}
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0} CARGO_TERM_COLOR=never
# The same random cases each time: what passes here passes again. `make torture` looks for new ones.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}
# Clippy compiles the crates of the workspace and lints them in the same pass.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver
# Debug information takes a quarter of the CPU time of compiling the workspace. Panics name their place without it.
export CARGO_PROFILE_DEV_DEBUG=false
# Empty where they cannot be fetched; their test says so then.
TYMPAN_HTTP_CACHE_TESTS=$(scripts/http_cache_package.sh) && [ -n "$TYMPAN_HTTP_CACHE_TESTS" ] && export TYMPAN_HTTP_CACHE_TESTS
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log tests=$work/tests steps=$work/steps compiled=$work/compiled
touch "$tests" "$steps"

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

# Compiles and lints all targets; any finding fails.
compile() {
  cargo test --workspace --no-run 2>&1 | tee "$compiled" | grep -vE '^ +(Compiling|Downloaded|Executable|Finished) '
  [ "${PIPESTATUS[0]}" -eq 0 ] && ! grep -qE '^warning: .* generated [0-9]+ warnings?' "$compiled"
}

# Runs the command of a line of the queue, as cargo would, and prints what it said when it has ended.
run_program() { # size, folder and command
  local folder command said status
  IFS=$'\t' read -r _ folder command <<<"$1"
  said=$(mktemp "$TEST_WORK/said.XXXXXX")
  # shellcheck disable=SC2086
  (cd "$folder" && exec $command) >"$said" 2>&1
  status=$?
  # One that ends badly without naming a failure counts as one.
  if [ "$status" -ne 0 ] && ! grep -qE '[1-9][0-9]* failed' "$said"; then
    echo "error: \`$command\` ended with status $status: 1 failed" >>"$said"
  fi
  flock "$TEST_WORK" cat "$said"
  return "$((status != 0))"
}
export -f run_program

# Runs all test programs, several at a time: those of `bench`, whose compilation fills waits of others, then by size.
run_programs() {
  local host
  host=$(rustc -vV | awk '/^host:/ { print toupper($2) }' | tr - _)
  export TEST_WORK=$work TEST_QUEUE=$work/queue
  if ! env "CARGO_TARGET_${host}_RUNNER=$PWD/scripts/queue_test.sh" \
    cargo test --workspace -- -Z unstable-options --report-time 2>/dev/null; then
    echo "error: the tests do not compile, see above"
    return 1
  fi
  # Those of the root package start programs and take longest, so they begin first.
  awk -F '\t' -v OFS='\t' -v root="$PWD" '{ $1 = sprintf("%.0f", $2 == root ? $1 * 1000 : $1) } 1' "$TEST_QUEUE" |
    sort -rn >"$work/ordered"
  { printf '0\t%s\tscripts/bench_tests.sh test\n' "$PWD"; cat "$work/ordered"; } | tr '\n' '\0' |
    xargs -0 -n 1 -P "$lanes" bash -c 'run_program "$1"' run_program
}

whole interface-build bash -c 'cd ui && npm ci --no-audit --no-fund --silent && npm run --silent build'
whole lint scripts/lint.sh without-compiling
counted "interface check" npm --prefix ui run --silent check
whole "clippy and compile tests" compile
counted "rust tests" run_programs
counted "interface tests" node ui/tests/ui.test.mjs

echo
echo "steps:"
cat "$steps"
echo "slowest tests:"
sed -nE 's/^test (.*) \.\.\. (ok|FAILED) <([0-9.]+)s>$/\3 s  \1/p' "$tests" | sort -rn | head -20 | sed 's/^/  /'
# Names and reasons once more at the end: a log that is cut keeps its end.
if grep -qE '^test .* \.\.\. FAILED|^FAILED  |^error: ' "$tests"; then
  echo "failed:"
  grep -E '^test .* \.\.\. FAILED|^FAILED  |^error: ' "$tests" | head -40 | sed 's/^/  /'
  echo "why:"
  grep -hE -A 6 "^(thread '.*' .*panicked at|FAILED  )" "$tests" | head -120 | sed 's/^/  /'
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
