#!/usr/bin/env bash
# Builds the program with the `demo` profile, which compiles in minutes, and runs the sample site with it. The fast
# program is what `make build` makes. The lab is a program of its own and left out, so that `tympan lab` of this build says
# that it is missing. Arguments go to `tympan demo`; DEMO_BUILD_ONLY=1 ends after the build.
set -eu
cd "$(dirname "$0")/.."

# Takes a C library of the system where its headers are installed; elsewhere the crate compiles its own copy.
use_system_library() { # name and least version for pkg-config, variable that the crate reads
  if pkg-config --exists "$1" 2>/dev/null; then export "$2=1"; fi
}
# RETURNING, STRICT and the JSON functions that the program uses are in SQLite since 3.38.
use_system_library 'sqlite3 >= 3.38' LIBSQLITE3_SYS_USE_PKG_CONFIG
use_system_library 'libzstd >= 1.4.8' ZSTD_SYS_USE_PKG_CONFIG

program=${CARGO_TARGET_DIR:-target}/demo/tympan
if [ -x "$program" ]; then
  echo "demo: compiling what changed (under a minute after an edit)"
else
  echo "demo: compiling the program the first time: 5 to 10 minutes on two processors, less on more"
fi
"${CARGO:-cargo}" build --profile demo --package tympan
[ "${DEMO_BUILD_ONLY:-}" = 1 ] || exec "$program" demo "$@"
