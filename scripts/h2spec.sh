#!/usr/bin/env bash
# Runs h2spec, the conformance tests of HTTP/2, against a dispatcher with TLS.
# Usage: scripts/h2spec.sh HOST PORT [PATH]    the path of a page; default /index.html
#
# Two of its 145 tests fail: they are about the priority of streams (RFC 7540, section 5.3), which RFC 9113 dropped. Another
# failure is exit code 1. Needs Go, which fetches h2spec once.
set -eu
cd "$(dirname "$0")/.."
program=target/h2spec/h2spec
if [ ! -x "$program" ]; then
  command -v go >/dev/null 2>&1 || { echo "h2spec needs go" >&2; exit 1; }
  GOBIN=$PWD/target/h2spec go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible
fi
report=$("$program" -h "$1" -p "$2" -t -k -P "${3:-/index.html}" -o 5 || true)
printf '%s\n' "$report"
failed=$(printf '%s\n' "$report" | sed -n 's/^145 tests, .* \([0-9]*\) failed$/\1/p')
# Each failed test is also in the summary.
priority=$(printf '%s\n' "$report" | grep -c '×.*Sends \(HEADERS\|PRIORITY\) frame that depend on itself' || true)
[ -n "$failed" ] && [ "$failed" -le 2 ] && [ "$priority" -ge "$failed" ]
