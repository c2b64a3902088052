#!/usr/bin/env bash
# Exits with 0 if there is a Node.js that builds the interface; otherwise prints why not, and exits with 1. The versions are
# those of `engines` in ui/package.json.
set -eu
needed="Node.js 20.19 or a later 20, or 22.12 or newer"
if ! command -v npm >/dev/null 2>&1 || ! command -v node >/dev/null 2>&1; then
  echo "$needed is missing"
  exit 1
fi
version=$(node --version 2>/dev/null | tr -d v)
major=${version%%.*} rest=${version#*.}
minor=${rest%%.*}
case $major$minor in
  '' | *[!0-9]*) echo "$needed is needed, and \`node --version\` does not tell its version"; exit 1 ;;
esac
if [ "$major" -gt 22 ] || { [ "$major" -eq 22 ] && [ "$minor" -ge 12 ]; } || { [ "$major" -eq 20 ] && [ "$minor" -ge 19 ]; }; then
  exit 0
fi
echo "Node.js $version is too old to build the interface, which needs $needed"
exit 1
