#!/usr/bin/env bash
# Installs the packages that build the interface. If they cannot be installed, says why in one sentence.
# Usage: scripts/ui_packages.sh
set -u
cd "$(dirname "$0")/../ui"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# npm tries three times. Its own pauses let a machine without a network wait for more than a minute.
if npm ci --no-audit --no-fund --loglevel error --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 5000 >"$log" 2>&1; then
  touch node_modules/.package-lock.json
  exit 0
fi
reason=$(sed -n 's/^npm error .*reason: //p' "$log" | head -1)
if [ -n "$reason" ]; then
  echo "ui: the packages of the interface cannot be downloaded ($reason): connect to the network, or set the proxy that reaches it in HTTPS_PROXY" >&2
else
  cat "$log" >&2
  echo "ui: the packages of the interface cannot be installed, see above" >&2
fi
exit 1
