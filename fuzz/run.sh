#!/bin/bash
# Runs fuzz targets, one after the other, each for FUZZ_SECONDS (default 60).
#   fuzz/run.sh [TARGET]...          all targets without one
# Builds with coverage counters on the stable toolchain; `cargo fuzz` is not needed, nor a C compiler but the system's.
# Inputs that crash are left in fuzz/artifacts/<target>/; `fuzz/run.sh TARGET FILE` runs one again.
# Exit code: 0 nothing found, 1 a target crashed, 3 the targets cannot be built.
set -u
cd "$(dirname "$0")" || exit 3
SECONDS_EACH=${FUZZ_SECONDS:-60}
MEMORY=${FUZZ_MEMORY_MB:-2048}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
HOST=$(rustc -vV | sed -n 's/^host: //p')

# What `cargo fuzz` passes too, but for the address sanitizer, which needs a nightly toolchain: counters on every edge and
# on comparisons. With --target, build scripts and macros stay free of them.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares ${RUSTFLAGS:-}"

mapfile -t ALL < <(sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | grep -Ev '^(tympan-fuzz|seeds)$')
FILE=
if [ $# -eq 2 ] && [ -f "$2" ]; then FILE=$(realpath "$2"); set -- "$1"; fi
TARGETS=("$@")
[ $# -gt 0 ] || TARGETS=("${ALL[@]}")
for target in "${TARGETS[@]}"; do
  [ -f "fuzz_targets/$target.rs" ] || { echo "there is no target \`$target\`; there are ${ALL[*]}" >&2; exit 2; }
done

BINS=()
for target in "${TARGETS[@]}"; do BINS+=(--bin "$target"); done
cargo build --release --locked --target "$HOST" "${BINS[@]}" || exit 3

crashed=()
for target in "${TARGETS[@]}"; do
  program=$CARGO_TARGET_DIR/$HOST/release/$target
  if [ -n "$FILE" ]; then "$program" "$FILE"; exit $?; fi
  mkdir -p "artifacts/$target" "target/corpus/$target" "corpus/$target"
  options=(-max_total_time="$SECONDS_EACH" -timeout=10 -rss_limit_mb="$MEMORY" -print_final_stats=1 -artifact_prefix="artifacts/$target/")
  [ -f "dict/$target.dict" ] && options+=(-dict="dict/$target.dict")
  log=target/$target.log
  # New inputs go to the first folder; the seeds in the second stay as they are.
  if "$program" "${options[@]}" "target/corpus/$target" "corpus/$target" >"$log" 2>&1; then verdict=ok; else verdict=CRASHED; crashed+=("$target"); fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  edges=$(grep -o 'cov: [0-9]*' "$log" | tail -1)
  printf '%-14s %-8s %10s runs  %s\n' "$target" "$verdict" "${runs:-?}" "$edges"
  [ "$verdict" = ok ] || grep -E 'panicked at|ERROR|SUMMARY|Test unit written' -A1 "$log" | head -8
done
[ ${#crashed[@]} -eq 0 ] || { echo "crashed: ${crashed[*]}; inputs in fuzz/artifacts/"; exit 1; }
